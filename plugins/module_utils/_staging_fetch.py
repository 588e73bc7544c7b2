# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""The receiving side of a copy: several threads that take one step after the other, each over its own connections, until all files are there.

A chunk comes from the nearest node before this one in the chain that gives it, and in the end from the source. The digests that old files are
compared with come from the source itself. What has come is given on from memory to the next node, or from the disk when that one is behind.
"""

from __future__ import annotations

import contextlib
import errno
import heapq
import os
import shutil
import threading
import time
import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils import _staging_arrival as arrival
from ansible_collections.sparkstack.inference.plugins.module_utils import _staging_state as state
from ansible_collections.sparkstack.inference.plugins.module_utils import _staging_wire as wire
from ansible_collections.sparkstack.inference.plugins.module_utils._staging_arrival import Arrival, Step
from ansible_collections.sparkstack.inference.plugins.module_utils._staging_disk import Buffer, Pool
from ansible_collections.sparkstack.inference.plugins.module_utils._staging_line import Broken, Line, Ways
from ansible_collections.sparkstack.inference.plugins.module_utils._staging_shelf import Passing, Recent
from ansible_collections.sparkstack.inference.plugins.module_utils._transfer import Limits

_TRIES = 3
"""How often a chunk that came damaged is asked for again."""
_RECENT = 16
"""Chunks that are kept in memory for the next node."""
_END = 5.0
"""Seconds within which threads end that were told to: a write to a slow disk lasts."""


class Fetch:
    """All files of one node."""

    def __init__(
        self,
        root: str,
        files: t.Sequence[state.Wanted],
        compare: t.Collection[int],
        memory: state.Memory,
        limits: Limits,
        streams: int,
        token: str,
        dry: bool = False,
        reread: bool = False,
        passing_on: bool = False,
    ) -> None:
        """
        :param files: what is wanted, in the order of the whole group, by whose numbers all nodes call them.
        :param compare: the numbers of those that are there already and may be equal. :param passing_on: other nodes ask this one.
        """
        self._root, self._streams, self._dry = root, streams, dry
        self._token, self._limits = token, limits
        self._memory = memory
        self.files = {number: Arrival(root, number, wanted, number in compare, dry, reread, memory) for number, wanted in enumerate(files) if wanted.name}
        chunk = max((wanted.chunk for wanted in files), default=4096)
        self._pool = Pool(streams + (_RECENT if passing_on else 0), chunk)
        self._recent = Recent(self._pool, _RECENT) if passing_on else None
        self.shelf = Passing(self.files, self._recent, lambda: self.problem)
        """What the nodes behind this one are given."""
        # By file and chunk: all nodes of a chain go the same way, so that what one asks for the one before it has had already.
        self._steps = [(number, -1, arrival.OPEN) for number in self.files]
        self._changed = threading.Condition()
        self._working = 0
        self._damaged: t.Dict[t.Tuple[int, int], int] = {}
        self._ways = Ways((), token, limits)
        self._threads: t.List[threading.Thread] = []
        self.received = 0
        """Bytes of chunks that came over the network."""
        self.problem: t.Optional[str] = None
        """Why it failed."""

    @property
    def there(self) -> int:
        """Bytes that are known to be right."""
        return sum(one.there for one in self.files.values())

    def run(self, peers: t.Sequence[wire.Peer]) -> None:
        """Have it all come. :param peers: who gives, nearest first; the last one is the source. :raises Broken:"""
        with self._changed:
            # It may have been ended before it began.
            self._ways = Ways(peers, self._token, self._limits)
            self._ways.problem = self.problem
        self._greet()
        if not self._dry:
            try:
                self._clear()
            except OSError as error:
                self.stop(self._disk_sentence(error))
                raise Broken(str(self.problem)) from error
        try:
            for number in range(self._streams):
                thread = threading.Thread(target=self._work, args=(number,), daemon=True)
                thread.start()
                self._threads.append(thread)
        except RuntimeError as error:
            self.stop(f"The copy to {self._root} can't have its {self._streams} threads ({error}): take fewer `streams`, or raise `ulimit -u`.")
        for thread in self._threads:
            thread.join()
        if self.problem is not None:
            raise Broken(self.problem)

    def _greet(self) -> None:
        """See that the source is there, and is who it should be, before anything is touched."""
        line = self._ways.line(0)
        try:
            line.ask(self._ways.last, lambda call: None)
        except wire.Refused as error:
            self.stop(str(error))
            raise Broken(str(error)) from error
        except Broken as error:
            self.stop(str(error))
            raise
        finally:
            line.close()

    def stop(self, why: str) -> None:
        """End it, with what is there kept."""
        with self._changed:
            self.problem = self.problem or why
            ways = self._ways
            self._changed.notify_all()
        ways.end(why)
        for one in self.files.values():
            with one.changed:
                one.changed.notify_all()

    def close(self, idle: bool = True) -> None:
        """Let go of all files. After :meth:`stop`, or its end.

        :param idle: no other node reads from them. As long as a thread of any kind is at a file, it stays open, until the process ends: its number
            could be another file's a moment later, and what is written there.
        """
        until = time.monotonic() + _END
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        if idle and not any(thread.is_alive() for thread in self._threads):
            for one in self.files.values():
                one.close()
        self._memory.save()

    def _clear(self) -> None:
        """Remove what an earlier run has left of files that nobody wants any more."""
        wanted = {os.path.basename(make(self._root, one.wanted.name)) for one in self.files.values() for make in (state.partial, state.journal)}
        folder = os.path.join(self._root, state.FOLDER)
        with contextlib.suppress(FileNotFoundError):
            for name in set(os.listdir(folder)) - wanted:
                path = os.path.join(folder, name)
                # What rsync has left lies in a folder of its own.
                if os.path.isdir(path):
                    shutil.rmtree(path)
                else:
                    os.unlink(path)

    def _work(self, number: int) -> None:
        line = self._ways.line(number)
        buffer: t.Optional[Buffer] = None
        try:
            while True:
                step = self._next()
                if step is None:
                    return
                buffer = buffer or self._pool.take()
                more: t.List[Step] = []
                try:
                    more, used = self._take(step, buffer, line)
                    buffer = None if used else buffer
                finally:
                    self._done(more)
        except (Broken, wire.Refused) as error:
            self.stop(str(error))
        except OSError as error:
            self.stop(self._disk_sentence(error))
        except Exception as error:  # A mistake of ours must not look like a copy that still runs.
            self.stop(f"The copy to {self._root} failed: {type(error).__name__}: {error}.")
        finally:
            line.close()

    def _next(self) -> t.Optional[Step]:
        with self._changed:
            while self.problem is None:
                if self._steps:
                    self._working += 1
                    file, chunk, kind = heapq.heappop(self._steps)
                    return Step(kind, file, chunk)
                if not self._working:
                    return None
                self._changed.wait()
        return None

    def _done(self, more: t.Sequence[Step]) -> None:
        with self._changed:
            for step in more:
                heapq.heappush(self._steps, (step.file, step.chunk, step.kind))
            self._working -= 1
            self._changed.notify_all()

    def _take(self, step: Step, buffer: Buffer, line: Line) -> t.Tuple[t.List[Step], bool]:
        """Take one step; :returns: those that follow, and whether the buffer is kept."""
        one = self.files[step.file]
        if step.kind == arrival.OPEN:
            return one.begin(), False
        if step.kind == arrival.COMPARE:
            own = one.read_old(buffer, step.chunk)
            return one.compared(step.chunk, own, self._from_source(step, line)), False
        if step.kind == arrival.PROVE:
            right = one.read_back(buffer, step.chunk)
            if not right:
                self._count_damage(step, one, "does not stay on this node's disk as it was written: check the disk and the memory (`dmesg`)")
            return one.proved(step.chunk, right), False
        if step.kind == arrival.RECHECK:
            # Size and time say that the file is the same; a file of mixed chunks would be too bad to believe them.
            right = self._from_source(step, line) == one.kept(step.chunk) and (one.trusted or one.read_back(buffer, step.chunk))
            return (one.arrived(step.chunk, one.kept(step.chunk)) if right else [step._replace(kind=arrival.FETCH)]), False
        if step.kind == arrival.LOCAL:
            if one.read_old(buffer, step.chunk) != one.equal(step.chunk):
                return [step._replace(kind=arrival.FETCH)], False
            digest = one.equal(step.chunk)
        else:
            digest = self._over_network(step, one, buffer, line)
        one.write(buffer, step.chunk, digest)
        if self._recent is not None:
            self._recent.put((step.file, step.chunk), buffer)
        return one.arrived(step.chunk, digest), self._recent is not None

    def _from_source(self, step: Step, line: Line) -> bytes:
        return line.ask(self._ways.last, lambda call: call.digest(step.file, step.chunk))

    def _over_network(self, step: Step, one: Arrival, buffer: Buffer, line: Line) -> bytes:
        last = self._ways.last
        place = self._ways.first
        while True:
            peer = self._ways.peers[place]
            try:
                came, told = line.ask(place, lambda call: call.data(step.file, step.chunk, one.length(step.chunk), buffer, one.wanted.sum))
            except (wire.NotHere, wire.Lost):
                # Another node gives it: the one before, and in the end the source, of which this is never heard.
                place += 1
                continue
            except wire.Refused:
                if place == last:
                    raise
                place += 1
                continue
            self._ways.came()
            with self._changed:
                self.received += one.length(step.chunk)
            if came == told:
                return told
            self._count_damage(step, one, f"came damaged from {peer.host}: check the link's errors (`ethtool -S`) and the memory of both nodes (`dmesg`)")
            # A node that gives what is damaged is asked once; the source until it is enough.
            place = min(place + 1, last)

    def _count_damage(self, step: Step, one: Arrival, what: str) -> None:
        with self._changed:
            count = self._damaged[step[1:]] = self._damaged.get(step[1:], 0) + 1
        if count >= _TRIES:
            raise Broken(f"Chunk {step.chunk} of {one.wanted.name} {what}; {count} tries.")

    def _disk_sentence(self, error: OSError) -> str:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return f"There is no space left for the model in {self._root}: make room and run this again, what has arrived is not sent twice."
        where = f" ({error.filename})" if error.filename else ""
        return f"The model can't be written to {self._root}: {error.strerror or error}{where}."
