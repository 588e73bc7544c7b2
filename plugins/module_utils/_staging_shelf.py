# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""What a receiver gives on to the nodes behind it: chunks that have come, from memory as long as they are young, else from its disk."""

from __future__ import annotations

import collections
import contextlib
import threading
import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils import _staging_wire as wire
from ansible_collections.sparkstack.inference.plugins.module_utils._staging_arrival import Arrival
from ansible_collections.sparkstack.inference.plugins.module_utils._staging_disk import Buffer, Pool, Room
from ansible_collections.sparkstack.inference.plugins.module_utils._staging_serve import BEAT, Alive, Put, Unreadable, pieces, send_all


class Recent:
    """The last chunks that came, kept as long as somebody reads them or there is room."""

    def __init__(self, pool: Pool, room: int) -> None:
        self._pool, self._room = pool, room
        self._lock = threading.Lock()
        self._kept: collections.OrderedDict[t.Tuple[int, int], t.List[t.Any]] = collections.OrderedDict()

    def put(self, key: t.Tuple[int, int], buffer: Buffer) -> None:
        """Keep a chunk, and give back the oldest ones that nobody reads and that there is no room for."""
        with self._lock:
            known = key in self._kept
            if not known:
                self._kept[key] = [buffer, 0]
        if known:
            self._pool.give(buffer)
        self._trim()

    @contextlib.contextmanager
    def reading(self, key: t.Tuple[int, int]) -> t.Iterator[t.Optional[Buffer]]:
        """A kept chunk, which stays what it is within the block, or None: half of the room is never read, so that readers that stand still hold up nobody."""
        with self._lock:
            entry = self._kept.get(key)
            if entry is not None and not entry[1] and sum(1 for other in self._kept.values() if other[1]) >= self._room // 2:
                entry = None
            if entry is not None:
                entry[1] += 1
        try:
            yield entry[0] if entry is not None else None
        finally:
            if entry is not None:
                with self._lock:
                    entry[1] -= 1
                self._trim()

    def _trim(self) -> None:
        with self._lock:
            idle = [key for key, entry in self._kept.items() if not entry[1]]
            leaving = [self._kept.pop(key)[0] for key in idle[: max(0, len(self._kept) - self._room)]]
        for buffer in leaving:
            self._pool.give(buffer)


class Passing:
    """A receiver's shelf (M(_staging_serve))."""

    def __init__(self, files: t.Mapping[int, Arrival], recent: t.Optional[Recent], problem: t.Callable[[], t.Optional[str]]) -> None:
        """:param problem: why nothing more will come, or None."""
        self._files, self._recent, self._problem = files, recent, problem
        self._room = Room()

    def digest(self, file: int, chunk: int, alive: Alive) -> bytes:
        """See M(_staging_serve), C(Shelf)."""
        return self._wait(file, chunk, alive).proven[chunk]

    def send(self, file: int, chunk: int, alive: Alive, begin: t.Callable[[int], None], put: Put) -> bytes:
        """See M(_staging_serve), C(Shelf). What came a moment ago is still in memory."""
        one = self._wait(file, chunk, alive)
        size = one.length(chunk)
        digest = one.proven[chunk]
        if self._recent is not None:
            with self._recent.reading((file, chunk)) as kept:
                if kept is not None:
                    begin(size)
                    send_all(kept, size, put)
                    return digest
        plain = one.reader()
        if plain is None:
            raise wire.NotHere("its file was closed")
        try:
            pieces(plain, chunk * one.wanted.chunk, size, self._room.buffer, begin, put)
        except Unreadable as error:
            # Who has had a part of it is hung up on, and asks another node.
            raise OSError(str(error)) if error.begun else wire.NotHere(str(error)) from error
        return digest

    def _wait(self, file: int, chunk: int, alive: Alive) -> Arrival:
        """The file, when its chunk is there."""
        one = self._files.get(file)
        if one is None or not 0 <= chunk < one.count:
            raise wire.NotHere("not one of its files")
        while True:
            with one.changed:
                if chunk in one.proven:
                    return one
                problem = self._problem()
                if problem is not None:
                    raise wire.NotHere(problem)
                one.changed.wait(BEAT)
                if chunk in one.proven:
                    return one
            alive()
