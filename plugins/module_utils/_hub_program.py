# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""The program that asks and reads a model hub; it runs in a Python that has huggingface_hub (0.34 or later), not in the one of Ansible.

It is handed to that Python as text, so it imports nothing else. Its request is JSON on stdin, the token is C(HF_TOKEN) in its environment.
The last line of its output is its answer: C(MARK), then JSON with what was asked for, or with C(error) (a word) and C(detail).

A file is written below C(parts), and has its name below C(tree) only once its content has the hash that the hub told. What came over HTTP
is gone on with after an interruption, to within the 10 MiB that huggingface_hub writes at a time. (Its own C(hf_hub_download) forgets what an
interrupted process had; seen in 2.4.0.)
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import errno
import hashlib
import importlib
import json
import os
import re
import shutil
import sys
import threading
import time
import typing as t
from urllib.parse import urljoin, urlsplit

MARK = "@@sparkstack-hub "
_CHUNK = 4 << 20
_WINDOW = 10.0
"""Seconds over which the rate is taken."""
_PAUSES = (1.0, 2.0, 4.0, 8.0)
"""Seconds before a file is tried again; as often as it brought nothing."""

Given = t.Mapping[str, t.Any]


class Ended(Exception):
    """It can't go on; C(args): a word for the reason, and a detail."""


def said(error: BaseException) -> str:
    """An error's own word in one line, without what is secret in it: the token, and the signatures behind a URL's question mark."""
    lines = (str(error) or type(error).__name__).strip().splitlines()
    text = re.sub(r"(https?://[^\s?'\"]+)\?[^\s'\"]*", r"\1", lines[0] if lines else "")
    token = os.environ.get("HF_TOKEN")
    return (text.replace(token, "***") if token else text)[:300]


def reason(error: BaseException) -> t.Tuple[str, str]:
    """A word for what went wrong, and the detail. The classes of all versions of huggingface_hub and of its HTTP libraries have these names."""
    if isinstance(error, Ended):
        return error.args[0], error.args[1]
    names = {kind.__name__ for kind in type(error).__mro__}
    status = getattr(getattr(error, "response", None), "status_code", None)
    for name, word in (("GatedRepoError", "gated"), ("RepositoryNotFoundError", "repository"), ("RevisionNotFoundError", "revision")):
        if name in names:
            return word, said(error)
    if status in (401, 403):
        return "denied", said(error)
    if status is not None:
        return "answered", said(error)
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "space", said(error)
    if isinstance(error, OSError) and error.filename:
        return "disk", said(error)
    if names & {"ConnectError", "ConnectionError", "TimeoutException", "TransportError", "Timeout", "OfflineModeIsEnabled", "RequestException"}:
        return "unreachable", said(error)
    return "other", "{}: {}".format(type(error).__name__, said(error))


class Hub:
    """The calls of huggingface_hub that are used here, of one repository."""

    def __init__(self, given: Given) -> None:
        try:
            self.api: t.Any = importlib.import_module("huggingface_hub")
            self.files: t.Any = importlib.import_module("huggingface_hub.file_download")
            self.utils: t.Any = importlib.import_module("huggingface_hub.utils")
        except ImportError as error:
            raise Ended("library", said(error)) from error
        self.repo: str = given["repo"]
        self.endpoint: t.Optional[str] = given.get("endpoint") or None
        # False keeps it from looking for the token of whoever is logged in on the node.
        self.token: t.Any = os.environ.get("HF_TOKEN") or False

    def listing(self, revision: str) -> t.Dict[str, t.Any]:
        """C(commit), and C(files): of each its C(name), C(size) in bytes and C(hash), a SHA-256, or git's own of the blob."""
        info = self.api.HfApi(endpoint=self.endpoint, token=self.token).model_info(self.repo, revision=revision, files_metadata=True)
        if not re.fullmatch(r"[0-9a-f]{40}", str(info.sha or "")):
            raise Ended("answered", "it told no commit of {}".format(revision))
        files = []
        for entry in info.siblings or []:
            lfs = entry.lfs
            content = (lfs.get("sha256") if isinstance(lfs, dict) else lfs.sha256) if lfs else entry.blob_id
            size = entry.size
            if size is None or not content:
                # A mirror may tell no more than the names.
                found = self.head(entry.rfilename, info.sha)
                size, content = found.size, found.etag
            if size is None or not re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", str(content)):
                raise Ended("answered", "it told no size or hash of {}".format(entry.rfilename))
            files.append({"name": entry.rfilename, "size": size, "hash": content})
        return {"commit": info.sha, "files": files, "library": self.api.__version__}

    def url(self, name: str, commit: str) -> str:
        url: str = self.files.hf_hub_url(self.repo, name, revision=commit, endpoint=self.endpoint)
        return url

    def head(self, name: str, commit: str) -> t.Any:
        return self.files.get_hf_file_metadata(self.url(name, commit), token=self.token, endpoint=self.endpoint)

    def load(self, entry: Given, commit: str, path: str, xet: t.Optional[str]) -> str:
        """Load a file to a path, going on with what is there; returns where it is, which is elsewhere where it came by Xet.

        :param xet: the folder for what comes by Xet, which can't be gone on with within a file; None: not by Xet.
        """
        name = entry["name"]
        found = self.head(name, commit)
        if found.xet_file_data is not None and xet is not None:
            with contextlib.suppress(ImportError):
                importlib.import_module("hf_xet")
                return str(self.api.hf_hub_download(self.repo, name, revision=commit, local_dir=xet, endpoint=self.endpoint, token=self.token))
        url = self.url(name, commit)
        where = urljoin(url, found.location)
        headers = self.utils.build_hf_headers(token=self.token)
        if urlsplit(where)[:2] != urlsplit(url)[:2]:
            # The hub has signed the address of another host, which the token is none of the business of; nor does it go unencrypted where it was not.
            headers = {key: value for key, value in headers.items() if key.lower() != "authorization"}
        with open(path, "ab") as stream:
            there = stream.tell()
            if there > entry["size"]:
                stream.truncate(0)
                there = 0
            if there < entry["size"]:
                self.files.http_get(where, stream, resume_size=there, headers=headers, expected_size=entry["size"])
        return path


def same(path: str, content: str, size: int) -> bool:
    """A file has this content, by the hub's hash. What is read is given back to the page cache at once."""
    digest = hashlib.sha256() if len(content) == 64 else hashlib.sha1(b"blob %d\0" % size)
    with open(path, "rb") as stream:
        for block in iter(lambda: stream.read(_CHUNK), b""):
            digest.update(block)
            os.posix_fadvise(stream.fileno(), max(0, stream.tell() - _CHUNK), _CHUNK, os.POSIX_FADV_DONTNEED)
    return digest.hexdigest() == content


class Fetch:
    """The load of the files that are missing."""

    def __init__(self, given: Given) -> None:
        self.given = given
        self.hub = Hub(given)
        self.parts: str = given["parts"]
        self.xet: t.Optional[str] = os.path.join(self.parts, "xet") if given["xet"] else None
        self.lock = threading.Lock()
        self.left: t.Dict[str, int] = {entry["name"]: entry["size"] for entry in given["files"]}
        self.total: int = sum(self.left.values())
        self.busy = 0  # Hashing or waiting, and so no bytes come.
        self.marks: t.List[t.Tuple[float, int]] = []
        self.stop = threading.Event()

    def run(self) -> t.Dict[str, t.Any]:
        os.makedirs(self.parts, exist_ok=True)
        if self.xet:
            # What is left of a run before is of no more use.
            shutil.rmtree(self.xet, ignore_errors=True)
        began = self.there()
        for work in (self.watch, self.sweep):
            threading.Thread(target=work, daemon=True).start()
        pool = concurrent.futures.ThreadPoolExecutor(self.given["workers"])
        # The small ones first: by them it is soon seen what the repository is.
        for done in concurrent.futures.as_completed([pool.submit(self.one, entry) for entry in sorted(self.given["files"], key=lambda one: one["size"])]):
            done.result()
        self.stop.set()
        return {"came": self.total - began, "resumed": began}

    def one(self, entry: Given) -> None:
        """A file, until it is whole. :raises Exception: the hub's own, where trying again brings nothing."""
        path = os.path.join(self.parts, "{}-{}".format(entry["hash"], hashlib.sha256(entry["name"].encode()).hexdigest()[:8]))
        wrong, pauses, before = 0, list(_PAUSES), -1
        while not self.stop.is_set():
            try:
                found = self.hub.load(entry, self.given["commit"], path, self.xet)
                with self.lock:
                    self.busy += 1
                try:
                    good = os.path.getsize(found) == entry["size"] and same(found, entry["hash"], entry["size"])
                finally:
                    with self.lock:
                        self.busy -= 1
                if good:
                    return self.keep(entry, found)
                os.unlink(found)
                wrong += 1
                if wrong > 1:
                    raise Ended("content", entry["name"])
            except Exception as error:
                there = os.path.getsize(path) if os.path.exists(path) else 0
                if there > before:
                    before, pauses = there, list(_PAUSES)
                status = getattr(getattr(error, "response", None), "status_code", None)
                if not pauses or reason(error)[0] not in ("unreachable", "other") and not (status and status >= 500):
                    raise
                self.stop.wait(pauses.pop(0))
        return None

    def keep(self, entry: Given, found: str) -> None:
        target = os.path.join(self.given["tree"], entry["name"])
        os.makedirs(os.path.dirname(target), exist_ok=True)
        handle = os.open(found, os.O_RDONLY)
        try:
            os.fchmod(handle, 0o644)
            os.fsync(handle)
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(handle)
        os.replace(found, target)
        with self.lock:
            del self.left[entry["name"]]

    def unfinished(self) -> t.List[str]:
        return [os.path.join(folder, name) for folder, _folders, names in os.walk(self.parts) for name in names]

    def there(self) -> int:
        """Bytes of the model that are on the disk, of those that were missing."""
        with self.lock:
            left = sum(self.left.values())
        here = 0
        for path in self.unfinished():
            with contextlib.suppress(OSError):
                status = os.stat(path)
                here += min(status.st_size, status.st_blocks * 512)
        return self.total - left + min(here, left)

    def watch(self) -> None:
        """Tell how far it is, once a second, and end where nothing comes any more, or nobody waits for it."""
        parent, began, moved, last = os.getppid(), time.monotonic(), time.monotonic(), -1
        while not self.stop.wait(1.0):
            now, here = time.monotonic(), self.there()
            if here != last or self.busy:
                moved, last = now, here
            if os.getppid() != parent:
                os._exit(3)
            try:
                self.tell(now, here)
            except OSError as error:
                leave({"error": reason(error)[0], "detail": said(error)})
            if now - moved > self.given["stall"]:
                leave({"error": "stalled", "detail": "{} of {} bytes are there".format(here, self.total)})
            if now - began > self.given["timeout"]:
                leave({"error": "timeout", "detail": "{} of {} bytes are there".format(here, self.total)})

    def tell(self, now: float, here: int) -> None:
        self.marks = [mark for mark in self.marks if now - mark[0] <= _WINDOW] + [(now, here)]
        spent = now - self.marks[0][0]
        rate = max(0.0, here - self.marks[0][1]) / spent if spent > 0 else 0.0
        told = {
            "bytes": here,
            "bytes_total": self.total,
            "files_left": len(self.left),
            "files_total": len(self.given["files"]),
            "rate": rate,
            "at": time.time(),
        }
        temporary = self.given["progress"] + ".new"
        with open(temporary, "w", encoding="utf-8") as stream:
            json.dump(told, stream)
        os.replace(temporary, self.given["progress"])

    def sweep(self) -> None:
        """Keep what is written out of the page cache, where it would take the memory that the next launch needs."""
        while not self.stop.wait(1.0):
            for path in self.unfinished():
                with contextlib.suppress(OSError):
                    handle = os.open(path, os.O_RDONLY)
                    try:
                        os.fdatasync(handle)
                        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
                    finally:
                        os.close(handle)


def leave(answer: Given) -> t.NoReturn:
    """Say the answer, and end: with threads that nothing else would end."""
    os.write(1, ("\n" + MARK + json.dumps(answer) + "\n").encode())
    os._exit(0)


def main() -> t.NoReturn:
    given = json.loads(sys.stdin.read())
    try:
        leave(Fetch(given).run() if given.get("files") is not None else Hub(given).listing(given["revision"]))
    except Exception as error:
        word, detail = reason(error)
        leave({"error": word, "detail": detail})


if __name__ == "__main__":
    main()
