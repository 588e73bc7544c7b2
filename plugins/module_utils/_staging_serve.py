# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""The giving side of a copy: chunks of files, as they are asked for. Who may ask is M(_staging_counter)'s concern."""

from __future__ import annotations

import errno
import os
import threading
import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils import _staging_wire as wire
from ansible_collections.sparkstack.inference.plugins.module_utils._staging_disk import PART, Buffer, Plain, Room, chunks, length
from ansible_collections.sparkstack.inference.plugins.module_utils._staging_state import Digests, Memory, Wanted
from ansible_collections.sparkstack.inference.plugins.module_utils._staging_sum import PIECE, SUMS, Sum

BEAT = 1.0
"""Seconds from one sign of life to the next while a caller waits."""

Alive = t.Callable[[], None]
Put = t.Callable[[memoryview], None]


class Shelf(t.Protocol):
    """Where chunks come from. All methods are called from many threads."""

    def digest(self, file: int, chunk: int, alive: Alive) -> bytes:
        """A chunk's digest. :raises wire.NotHere: :raises wire.Refused: :raises OSError:"""

    def send(self, file: int, chunk: int, alive: Alive, begin: t.Callable[[int], None], put: Put) -> bytes:
        """Give a chunk: its length to C(begin), then its bytes to C(put); :returns: its digest.

        The same errors, before C(begin) or when all was given; where it ends in between, an OSError, upon which the caller is hung up on.
        """


class Store:
    """The source's shelf: files that are there, whole and untouched."""

    def __init__(self, root: str, files: t.Sequence[Wanted], memory: Memory, reread: bool = False) -> None:
        """:param reread: read all, whatever digests are remembered of an earlier copy."""
        self._root, self._files, self._memory, self._reread = root, files, memory, reread
        self._lock = threading.Lock()
        self._open: t.Dict[int, Plain] = {}
        self._known: t.Dict[int, Digests] = {}
        self._bad: t.Dict[int, str] = {}
        self._room = Room()

    def digest(self, file: int, chunk: int, alive: Alive) -> bytes:
        """See :class:`Shelf`."""
        return self._give(file, chunk, lambda size: None, None)

    def send(self, file: int, chunk: int, alive: Alive, begin: t.Callable[[int], None], put: Put) -> bytes:
        """See :class:`Shelf`."""
        return self._give(file, chunk, begin, put)

    def _give(self, file: int, chunk: int, begin: t.Callable[[int], None], put: t.Optional[Put]) -> bytes:
        wanted = self._files[file]
        known = self._digests(file).get(chunk)
        if known is not None and put is None:
            return known
        size = length(wanted.size, chunk, wanted.chunk)
        if size <= 0:
            raise wire.Refused(f"{wanted.name} has no chunk {chunk}.")
        made = SUMS[wanted.sum]() if known is None else None
        try:
            pieces(self._plain(file), chunk * wanted.chunk, size, self._room.buffer, begin, put, made)
        except Unreadable as error:
            self._plain(file)
            said = f"{wanted.name} can't be read at the source: {error}."
            if error.begun:
                # The caller waits for the rest of the chunk: it is hung up on, and hears why when it asks again.
                with self._lock:
                    self._bad[file] = said
                raise OSError(errno.EIO, said) from error
            raise wire.Refused(said) from error
        # What was written while it was read shows in the time.
        self._plain(file)
        return self._learn(file, chunk, made.digest() if made is not None else known or b"")

    def _digests(self, file: int) -> Digests:
        self._plain(file)
        return self._known[file]

    def _plain(self, file: int) -> Plain:
        wanted = self._files[file]
        with self._lock:
            if file in self._bad:
                raise wire.Refused(self._bad[file])
            if file not in self._open:
                try:
                    plain = Plain(os.path.join(self._root, wanted.name))
                except OSError as error:
                    raise wire.Refused(f"{wanted.name} can't be read at the source: {error.strerror or error}.") from error
                self._open[file] = plain
                self._known[file] = {} if self._reread else self._memory.recall(wanted.name, plain.status())
            plain = self._open[file]
        status = plain.status()
        if (status.st_size, status.st_mtime_ns) != (wanted.size, wanted.mtime_ns):
            raise wire.Refused(f"{wanted.name} changed at the source while it was copied: run this again when nothing writes there any more.")
        return plain

    def _learn(self, file: int, chunk: int, digest: bytes) -> bytes:
        with self._lock:
            known = self._known[file]
            known[chunk] = digest
            whole = len(known) == chunks(self._files[file].size, self._files[file].chunk)
        if whole:
            self.keep(file)
        return digest

    def keep(self, file: int) -> None:
        """Have the digests of a file remembered."""
        with self._lock:
            known, plain = dict(self._known[file]), self._open[file]
        self._memory.learn(self._files[file].name, plain.status(), known)

    def close(self, idle: bool) -> None:
        """Remember what was learnt, and close all. :param idle: no thread reads any more; else the files stay open, until the process ends."""
        for file in list(self._open):
            self.keep(file)
            if idle:
                self._open[file].close()
        self._memory.save()


class Unreadable(Exception):
    """A file can't be read; the text is the reason. C(begun): after a part of the chunk was given."""

    def __init__(self, why: str, begun: bool) -> None:
        super().__init__(why)
        self.begun = begun


def pieces(plain: Plain, offset: int, size: int, room: Buffer, begin: t.Callable[[int], None], put: t.Optional[Put], made: t.Optional[Sum] = None) -> None:
    """Read a chunk, part after part, and give it on, and make its digest while the processor's cache still has it.

    :param room: for a part; no two threads may have the same. :param begin: is told the size when the first part was read.
    :param put: takes the bytes; None: nobody does. :param made: the digest, where it isn't known.
    :raises Unreadable: :raises OSError: what C(put) raises.
    """
    for done in range(0, size, PART):
        part = min(PART, size - done)
        try:
            plain.read(room, offset + done, part)
        except OSError as error:
            raise Unreadable(error.strerror or str(error), done > 0) from error
        if not done:
            begin(size)
        for start in range(0, part, PIECE):
            piece = room.view[start : min(start + PIECE, part)]
            if made is not None:
                made.update(room.address + start, piece)
            if put is not None:
                put(piece)


def send_all(buffer: Buffer, size: int, put: Put) -> None:
    """Send a chunk that is in memory, and whose digest is known."""
    for start in range(0, size, PIECE):
        put(buffer.view[start : min(start + PIECE, size)])
