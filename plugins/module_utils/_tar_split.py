# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""A layer's archive, put together again from what Docker has kept of it: the files in a folder, and all the rest in a file of its own.

Docker's graph drivers unpack a layer and keep what is between the files' bytes, so that the very same archive can be made of it again. That file is
JSON, a line an entry, packed by gzip: C({"type":2,"payload":"b3B0LwAA..."}) are bytes of the archive, C({"type":1,"name":"opt/x","size":12,...}) stands
for a file's bytes, and only where there is a size. A name that is no UTF-8 comes as C(name_raw), in base64.
Source: the format of vbatts/tar-split; Docker 26.1, C(/var/lib/docker/image/overlay2/layerdb/sha256/*/tar-split.json.gz).
"""

from __future__ import annotations

import base64
import gzip
import json
import os
import typing as t
import zlib

PIECE = 1 << 20
"""Bytes read at once, and about as many as are given on at once."""
_LARGE = 4 << 20
"""Bytes of a file from which on the page cache is given back what was read of it."""


class SplitError(Exception):
    """The archive can't be put together; the text says why."""


def size(path: str) -> int:
    """The bytes of the archive. :raises SplitError:"""
    return sum(count if name is None else length for name, count, length, _payload in _entries(path, False))


def assemble(path: str, folder: str) -> t.Iterator[bytes]:
    """The archive, piece by piece. What comes is not proven to be it: the reader compares its digest.

    :param path: the file with what is between the files. :param folder: where the files lie; no link leads out of it.
    :raises SplitError: when a file is not there, is none, or has another size.
    """
    gathered = bytearray()
    files = _Folder(folder)
    try:
        for name, _count, length, payload in _entries(path, True):
            if name is None:
                gathered += payload
            else:
                for piece in files.read(name, length):
                    # A large file's pieces need no copy.
                    if len(piece) >= PIECE // 2:
                        if gathered:
                            yield bytes(gathered)
                            gathered.clear()
                        yield piece
                    else:
                        gathered += piece
            if len(gathered) >= PIECE:
                yield bytes(gathered)
                gathered.clear()
        if gathered:
            yield bytes(gathered)
    finally:
        files.close()


def _entries(path: str, decode: bool) -> t.Iterator[t.Tuple[t.Optional[bytes], int, int, bytes]]:
    """Each entry as a file's name (None for bytes of the archive), the number of these, the file's size, and the bytes where they are decoded."""
    try:
        with gzip.open(path, "rb") as stream:
            for line in stream:
                entry = json.loads(line)
                payload = entry.get("payload") or ""
                if entry["type"] == 2:
                    count = len(payload) // 4 * 3 - payload.count("=", -2)
                    yield None, count, 0, base64.b64decode(payload) if decode else b""
                elif entry["type"] == 1 and entry.get("size"):
                    raw = base64.b64decode(entry["name_raw"]) if entry.get("name_raw") else entry["name"].encode("utf-8")
                    yield raw, 0, int(entry["size"]), b""
    except (OSError, EOFError, zlib.error, ValueError, KeyError, TypeError) as error:
        raise SplitError(f"{path} can't be read: {error}") from error


class _Folder:
    """Files below a folder. A layer may hold a link to anywhere, and a name that goes through it: none is followed."""

    def __init__(self, path: str) -> None:
        try:
            self._root = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise SplitError(f"{path} can't be read: {error.strerror}") from error
        # Files come folder by folder, so that the last one is kept open.
        self._name: t.List[bytes] = []
        self._last = self._root

    def close(self) -> None:
        self._leave()
        os.close(self._root)

    def _leave(self) -> None:
        if self._last != self._root:
            os.close(self._last)
        self._name, self._last = [], self._root

    def _enter(self, parts: t.List[bytes]) -> int:
        if parts != self._name:
            self._leave()
            for part in parts:
                inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=self._last)
                if self._last != self._root:
                    os.close(self._last)
                self._last = inner
            self._name = parts
        return self._last

    def read(self, name: bytes, length: int) -> t.Iterator[bytes]:
        """The bytes of a file. :raises SplitError:"""
        parts = [part for part in name.split(b"/") if part not in (b"", b".")]
        try:
            if not parts or b".." in parts:
                raise OSError(0, "no name of a file")
            number = os.open(parts[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=self._enter(parts[:-1]))
            try:
                found = os.fstat(number).st_size
                if found != length:
                    raise OSError(0, f"it has {found} bytes instead of {length}")
                yield from pieces(number, length)
            finally:
                os.close(number)
        except OSError as error:
            raise SplitError("{} can't be read: {}".format(name.decode("utf-8", "replace"), error.strerror)) from error


def pieces(number: int, length: int) -> t.Iterator[bytes]:
    """An open file's bytes. Of a large one nothing stays in the page cache but what a process has mapped, as a container's libraries.

    :raises OSError: also when it ends before.
    """
    done = 0
    while done < length:
        piece = os.read(number, min(PIECE, length - done))
        if not piece:
            raise OSError(0, f"it ends after {done} bytes of {length}")
        yield piece
        done += len(piece)
        if length >= _LARGE:
            os.posix_fadvise(number, done - len(piece), len(piece), os.POSIX_FADV_DONTNEED)
