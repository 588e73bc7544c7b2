# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""What a node keeps of a copy: which chunks of an unfinished file are there (the journal), and the digests of finished ones (the memory).

The journal lies beside the unfinished file, in a hidden folder of the model's own, on the same file system::

    {"name": "model-00001-of-00039.safetensors", "size": 4998779744, "mtime_ns": 1795910400000000000, "sum": "gmac", "chunk": 16777216, "boot": "..."}
    0 77e539e81368852fd8dd00388f9b9fe8
    1 ...

A line is written after its chunk was. What the kernel has been told to write is there as long as it runs; after a boot, each chunk is read and
compared before it counts.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils._files import text

FOLDER = ".sparkstack-sync"
"""The hidden folder below the model's."""
CACHE = "/var/cache/sparkstack/staging"
"""Where the memory is kept. Without it all works, and costs more reading."""

Digests = t.Dict[int, bytes]


class Wanted(t.NamedTuple):
    """A file as the source has it, and how it is cut and proved."""

    name: str
    size: int
    mtime_ns: int
    sum: str
    chunk: int


def partial(root: str, name: str) -> str:
    """Where the unfinished file lies. :param name: below C(root)."""
    return os.path.join(root, FOLDER, hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()[:24] + ".part")


def journal(root: str, name: str) -> str:
    """Where its journal lies."""
    return partial(root, name)[: -len("part")] + "journal"


def boot() -> str:
    """What the kernel calls this run of itself."""
    return text("/proc/sys/kernel/random/boot_id").strip()


class Journal:
    """The journal of one unfinished file."""

    def __init__(self, root: str, wanted: Wanted) -> None:
        self._path = journal(root, wanted.name)
        self._head = {**wanted._asdict(), "boot": boot()}
        self._number: t.Optional[int] = None

    def read(self) -> t.Tuple[Digests, bool]:
        """The chunks that are there, each with its digest, and whether they count as they are: not after a boot.

        Nothing is there of a file that was another one on the source then.
        """
        lines = text(self._path).split("\n")
        try:
            head = json.loads(lines[0])
        except ValueError:
            return {}, False
        if not isinstance(head, dict) or {**head, "boot": ""} != {**self._head, "boot": ""}:
            return {}, False
        found: Digests = {}
        # What stands behind the last line break was cut short.
        for line in lines[1:-1]:
            index, _space, digest = line.partition(" ")
            with contextlib.suppress(ValueError):
                found[int(index)] = bytes.fromhex(digest)
        return found, head["boot"] == self._head["boot"]

    def begin(self, there: Digests) -> None:
        """Write it anew, with the chunks that count, and keep it open. :raises OSError:"""
        temporary = self._path + ".new"
        lines = [json.dumps(self._head)] + [f"{index} {digest.hex()}" for index, digest in sorted(there.items())]
        flags = os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(temporary, flags | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as stream:
            stream.write("\n".join(lines) + "\n")
        os.replace(temporary, self._path)
        self._number = os.open(self._path, flags | os.O_APPEND)

    def add(self, index: int, digest: bytes) -> None:
        """A chunk is there."""
        if self._number is not None:
            os.write(self._number, f"{index} {digest.hex()}\n".encode("ascii"))

    def close(self) -> None:
        """Keep it for the next run."""
        if self._number is not None:
            os.close(self._number)
            self._number = None

    def remove(self) -> None:
        """The file is finished."""
        self.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)


class Memory:
    """The digests of the files below one folder, valid as long as a file is untouched."""

    def __init__(self, root: str, sum_name: str, chunk: int, folder: str = CACHE) -> None:
        real = os.path.realpath(root)
        self._path = os.path.join(folder, hashlib.sha256(real.encode("utf-8", "surrogateescape")).hexdigest()[:24] + ".json")
        self._kind = {"root": real, "sum": sum_name, "chunk": chunk}
        self._lock = threading.Lock()
        self._files: t.Dict[str, t.Dict[str, t.Any]] = {}
        self._dirty = False
        with contextlib.suppress(ValueError):
            kept = json.loads(text(self._path) or "{}")
            if isinstance(kept, dict) and kept.get("kind") == self._kind and isinstance(kept.get("files"), dict):
                self._files = kept["files"]

    def recall(self, name: str, status: os.stat_result) -> Digests:
        """The digests of a file that is still what it was, as far as they are known."""
        with self._lock:
            kept = self._files.get(name) or {}
        if kept.get("mark") != _mark(status):
            return {}
        return {int(index): bytes.fromhex(digest) for index, digest in kept["digests"].items()}

    def learn(self, name: str, status: os.stat_result, digests: Digests) -> None:
        """Keep a file's digests, and those that are known already of the same file."""
        known = {**self.recall(name, status), **digests}
        with self._lock:
            self._files[name] = {"mark": _mark(status), "digests": {str(index): digest.hex() for index, digest in known.items()}}
            self._dirty = True

    def save(self) -> None:
        """Write it, where this user may: without it the next run reads more."""
        with self._lock:
            if not self._dirty:
                return
            self._dirty = False
            temporary = f"{self._path}.{os.getpid()}"
            try:
                os.makedirs(os.path.dirname(self._path), mode=0o755, exist_ok=True)
                with open(temporary, "w", encoding="utf-8") as stream:
                    json.dump({"kind": self._kind, "files": self._files}, stream)
                os.replace(temporary, self._path)
            except OSError:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)


def _mark(status: os.stat_result) -> t.List[int]:
    # The change time can't be set: it tells of a write whose writer has put the time back.
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
