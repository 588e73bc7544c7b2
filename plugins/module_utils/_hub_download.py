# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""A model's folder that is filled from a hub: what is known of it, what is there of it already, and how it gets its final name in one step.

Beside C(/models/NAME) there is C(/models/.NAME.download) while a download runs or has been interrupted, with C(tree) (files that are
whole), C(parts) (those that aren't), C(record.json), C(progress.json) and C(lock). In the finished folder C(.sparkstack-model.json) says
which commit it is, and of each file the hub's hash, its size and the time of its last change.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import ctypes
import fcntl
import fnmatch
import json
import os
import re
import shutil
import time
import typing as t
from urllib.parse import urlsplit

from ansible_collections.sparkstack.inference.plugins.module_utils._hub_program import same
from ansible_collections.sparkstack.inference.plugins.module_utils._unit_files import read, write

RECORD = ".sparkstack-model.json"
"""In a finished folder; hidden, so that it is none of the model's files."""
COMMIT = re.compile(r"[0-9a-f]{40}")
SPARE = 256 << 20
"""Bytes that stay free on the disk."""
_REPO = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", re.ASCII)
_HASHERS = 4
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2

Entry = t.Mapping[str, t.Any]
"""A file of the hub's: C(name), C(size) in bytes and C(hash)."""
Data = t.Dict[str, t.Any]


class Places(t.NamedTuple):
    """Where things are."""

    final: str
    control: str

    @classmethod
    def of(cls, path: str) -> Places:
        """:param path: the model's folder as the user gives it; a link to it is followed, so that it stays one."""
        final = os.path.realpath(path)
        return cls(final, os.path.join(os.path.dirname(final), "." + os.path.basename(final) + ".download"))

    @property
    def tree(self) -> str:
        return os.path.join(self.control, "tree")

    @property
    def parts(self) -> str:
        return os.path.join(self.control, "parts")

    @property
    def progress(self) -> str:
        return os.path.join(self.control, "progress.json")

    @property
    def began(self) -> str:
        """The record of a download that isn't finished."""
        return os.path.join(self.control, "record.json")

    @property
    def record(self) -> str:
        return os.path.join(self.final, RECORD)


def problem(path: str, repo: str, endpoint: str, token: bool) -> t.Optional[str]:
    """One sentence about what is wrong with what was asked for, or None. :param token: whether there is one."""
    if not _REPO.fullmatch(repo) or ".." in repo:
        return f"{repo!r} is no repository of a hub: give it as ORGANISATION/NAME."
    if not os.path.isabs(path) or os.path.normpath(path) == os.sep:
        return f"The model's path {path!r} is not an absolute path of a folder of its own: give one, such as /models/NAME."
    final = os.path.realpath(path)
    if os.path.exists(final) and not os.path.isdir(final):
        return f"{path} is not a folder: give the model's folder."
    if os.path.ismount(final):
        return f"{path} is where a disk is mounted, so that the finished model can't get that name in one step: give a folder below it."
    if os.path.isdir(os.path.join(final, "snapshots")):
        return f"{path} is a folder of a hub's cache, which belongs to the hub's own programs: give a plain folder for the model."
    parts = urlsplit(endpoint)
    if endpoint and (parts.scheme not in ("http", "https") or not parts.hostname):
        return f"The endpoint {endpoint!r} is no address of a hub: give it as https://HOST."
    if parts.username or parts.password:
        return "The endpoint has a user's name or password in it: give it without, and the token by itself."
    if token and parts.scheme == "http" and parts.hostname not in ("localhost", "127.0.0.1", "::1"):
        return f"The token would cross the network readable for all on its way to {endpoint}: use https there, or no token."
    return None


def wanted(files: t.Iterable[Entry], include: t.Sequence[str], exclude: t.Sequence[str]) -> t.List[Entry]:
    """The files that match a pattern of C(include) (an empty one: all) and none of C(exclude); sorted by name.

    :raises ValueError: for a name that would lie outside the model's folder, or where the collection has files of its own.
    """
    found = []
    for entry in files:
        name = entry["name"]
        if include and not any(fnmatch.fnmatchcase(name, pattern) for pattern in include) or any(fnmatch.fnmatchcase(name, pattern) for pattern in exclude):
            continue
        if name.startswith("/") or set(name.split("/")) & {"", ".", ".."} or name == RECORD:
            raise ValueError(f"The hub names a file {name!r}, which can't be one of a model: look at the repository.")
        found.append(entry)
    return sorted(found, key=lambda entry: str(entry["name"]))


def record_of(folder: str, known: t.Mapping[str, t.Any], files: t.Iterable[Entry]) -> Data:
    """The record of a folder with these files. :param known: what it is of: the repository, the revision, the commit and the patterns."""
    told = {}
    for entry in files:
        status = os.stat(os.path.join(folder, entry["name"]))
        told[entry["name"]] = {"size": entry["size"], "hash": entry["hash"], "mtime_ns": status.st_mtime_ns}
    return {**known, "files": told}


def entries(record: t.Mapping[str, t.Any]) -> t.List[Entry]:
    """The files that a record names."""
    return [{"name": name, "size": told["size"], "hash": told["hash"]} for name, told in sorted(record["files"].items())]


def known(path: str) -> Data:
    """A record, or an empty one where there is none, or no whole one."""
    record = read(path) or {}
    files = record.get("files")
    fine = isinstance(files, dict) and all(isinstance(told, dict) and {"size", "hash"} <= set(told) for told in files.values())
    return record if fine and {"repo", "revision", "commit", "include", "exclude"} <= set(record) else {}


def settled(record: t.Mapping[str, t.Any], asked: t.Mapping[str, t.Any], update: bool) -> bool:
    """A record is of what is asked for, so that its commit holds: a branch's as long as nobody asks for its newer one."""
    if not record or any(record[name] != asked[name] for name in ("repo", "include", "exclude")):
        return False
    return bool(record["commit"] == asked["revision"] or record["revision"] == asked["revision"] and not update)


def stale(folder: str, record: t.Mapping[str, t.Any], files: t.Sequence[Entry], look: str) -> t.List[str]:
    """The names of the files that are not in the folder with the content wanted.

    :param look: how a file of the right size is proved: C(time) (it is as the record has it; others are read), C(all) (all are read) or
        C(size) (none is).
    """
    told = record.get("files") or {}
    missing, doubtful = [], []
    for entry in files:
        path, before = os.path.join(folder, entry["name"]), told.get(entry["name"]) or {}
        try:
            status = os.lstat(path)
        except OSError:
            missing.append(entry["name"])
            continue
        # A link could lead out of the folder, as those of a hub's cache do.
        if not os.path.isfile(path) or os.path.islink(path) or status.st_size != entry["size"]:
            missing.append(entry["name"])
        elif look == "all" or look == "time" and (before.get("hash") != entry["hash"] or before.get("mtime_ns") != status.st_mtime_ns):
            doubtful.append(entry)
    with concurrent.futures.ThreadPoolExecutor(_HASHERS) as pool:
        proved = pool.map(lambda entry: "" if same(os.path.join(folder, entry["name"]), entry["hash"], entry["size"]) else str(entry["name"]), doubtful)
        return sorted(missing + list(filter(None, proved)))


def tidy(places: Places, files: t.Sequence[Entry]) -> None:
    """Take away what an earlier, interrupted download has left of other content than these files."""
    began = known(places.began).get("files") or {}
    hashes = {entry["name"]: entry["hash"] for entry in files}
    for folder, _folders, names in os.walk(places.tree):
        for name in names:
            full = os.path.join(folder, name)
            relative = os.path.relpath(full, places.tree)
            if relative not in hashes or (began.get(relative) or {}).get("hash") != hashes[relative]:
                os.unlink(full)
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir(places.parts):
            if name.split("-")[0] not in hashes.values():
                path = os.path.join(places.parts, name)
                shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)


def link(source: str, target: str, names: t.Iterable[str]) -> t.List[str]:
    """Give files of one folder a second name in another, without their bytes; returns those for which the disk can't do that."""
    failed = []
    for name in names:
        path = os.path.join(target, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        try:
            os.link(os.path.join(source, name), path, follow_symlinks=False)
        except OSError:
            failed.append(name)
    return failed


def extra(folder: str, record: t.Mapping[str, t.Any], files: t.Iterable[Entry]) -> t.List[str]:
    """Files in a folder that are neither the model's nor were of its commit before: somebody has put them there."""
    names = {entry["name"] for entry in files} | set(record.get("files") or {}) | {RECORD}
    found = []
    for where, folders, there in os.walk(folder):
        # The hub's own programs keep their notes about a folder there.
        folders[:] = sorted(name for name in folders if name != ".cache")
        # A link to a folder is somebody's file like another, unless files of the model lie there.
        links = [name for name in folders if os.path.islink(os.path.join(where, name))]
        found += [os.path.relpath(os.path.join(where, name), folder) for name in there + links]
    return sorted(set(found) - names - {name[:place] for name in names for place, letter in enumerate(name) if letter == os.sep})


def partial(places: Places) -> int:
    """Bytes of unfinished files that need no space any more; what came by Xet, in a folder there, is not gone on with."""
    try:
        return sum(entry.stat().st_size for entry in os.scandir(places.parts) if entry.is_file(follow_symlinks=False))
    except FileNotFoundError:
        return 0


def free(path: str) -> int:
    """Bytes that are free where a folder is, or will be made."""
    while not os.path.exists(path):
        path = os.path.dirname(path)
    told = os.statvfs(path)
    return told.f_bavail * told.f_frsize


def finish(places: Places, record: t.Mapping[str, t.Any]) -> None:
    """Give the whole tree the final name, in one step, and take away what is not needed any more.

    Where there is a folder of that name already, both change names (renameat2(2), since Linux 3.15). :func:`left` knows where the power failed after that.
    """
    write(os.path.join(places.tree, RECORD), json.dumps(record, indent=1, sort_keys=True) + "\n", 0o644)
    for folder, _folders, _names in os.walk(places.tree):
        os.chmod(folder, 0o755)
        _on_disk(folder)
    if not os.path.isdir(places.final):
        os.rename(places.tree, places.final)
    elif not _exchange(places.tree, places.final):
        old = os.path.join(places.control, "old")
        os.rename(places.final, old)
        os.rename(places.tree, places.final)
    _on_disk(os.path.dirname(places.final))
    clear(places)


def left(places: Places, record: t.Mapping[str, t.Any]) -> bool:
    """What a finished download needed is still there, with the old model: it was cut short right after the new one had its name.

    :param record: that of the final folder. What was begun of another commit is no remainder, and is gone on with.
    """
    began = known(places.began)
    return bool(began and record) and all(began[name] == record[name] for name in ("repo", "commit", "include", "exclude"))


def clear(places: Places) -> None:
    """Take away all that a download needed, the record of it last: by it a remainder is known."""
    # As long as the lock is there, nobody else begins.
    for name in sorted(set(os.listdir(places.control)) - {os.path.basename(places.began)}, key="lock".__eq__):
        path = os.path.join(places.control, name)
        shutil.rmtree(path) if os.path.isdir(path) and not os.path.islink(path) else os.unlink(path)
    shutil.rmtree(places.control)


def _on_disk(folder: str) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _exchange(one: str, other: str) -> bool:
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "renameat2"):
        return False
    libc.renameat2.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]
    return bool(libc.renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0)


class Lock:
    """Held by one download of a folder; the program that loads holds it too, so that it is free only when both have ended."""

    def __init__(self, places: Places) -> None:
        self.path = os.path.join(places.control, "lock")
        self.handle = -1

    def taken(self) -> bool:
        """Somebody else holds it now."""
        try:
            handle = os.open(self.path, os.O_RDONLY)
        except OSError:
            return False
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
        except OSError:
            return True
        finally:
            os.close(handle)

    def take(self, timeout: float) -> bool:
        """Wait for it; returns whether somebody else had it. :param timeout: seconds; :raises TimeoutError: when they are over."""
        deadline, waited = time.monotonic() + timeout, False
        while True:
            os.makedirs(os.path.dirname(self.path), exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                self.handle = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
                if self._mine():
                    return waited
                self.free()
            waited = True
            if time.monotonic() > deadline:
                raise TimeoutError(f"another download to {self.path[: -len('/lock')]} has not ended within {timeout:.0f} s")
            time.sleep(0.5)

    def _mine(self) -> bool:
        try:
            fcntl.flock(self.handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        # Whoever had it may have finished, and taken the folder away with it.
        return os.path.exists(self.path) and os.fstat(self.handle).st_ino == os.stat(self.path).st_ino

    def free(self) -> None:
        if self.handle >= 0:
            os.close(self.handle)
            self.handle = -1
