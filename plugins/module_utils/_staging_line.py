# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""How one thread of a receiver asks the nodes before it: its connections, and how long it insists."""

from __future__ import annotations

import threading
import time
import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils import _staging_wire as wire
from ansible_collections.sparkstack.inference.plugins.module_utils._transfer import Limits

_PAUSE = 0.2

T = t.TypeVar("T")


class Broken(Exception):
    """The copy failed; the text is a sentence."""


class Ways:
    """The nodes before this one, nearest first, the source last; what all threads know of them together."""

    def __init__(self, peers: t.Sequence[wire.Peer], token: str, limits: Limits) -> None:
        self.peers, self.token, self.limits = peers, token, limits
        self.last = len(peers) - 1
        """The source's place."""
        self.first = 0
        """The nearest one that is still there."""
        self.problem: t.Optional[str] = None
        """Why nobody asks any more."""
        self._sign = time.monotonic()
        self._lock = threading.Lock()
        self._lines: t.Set[Line] = set()

    def line(self, number: int) -> Line:
        """The connections of one more thread. :param number: the thread's."""
        line = Line(self, number)
        with self._lock:
            self._lines.add(line)
        return line

    def came(self) -> None:
        """There was a sign of life."""
        with self._lock:
            self._sign = time.monotonic()

    def gone(self, place: int) -> None:
        """Nobody need try this node again."""
        with self._lock:
            self.first = max(self.first, place + 1)

    def silent(self, since: float) -> bool:
        """There was no sign of life for longer than the time for a connection. :param since: when it was first waited for."""
        with self._lock:
            return time.monotonic() > max(since, self._sign) + self.limits.connect

    def end(self, why: str) -> None:
        """Have all threads that wait for another node go on at once, and ask no more."""
        with self._lock:
            self.problem = self.problem or why
            lines = list(self._lines)
        for line in lines:
            line.shut()

    def forget(self, line: Line) -> None:
        """A thread has ended."""
        with self._lock:
            self._lines.discard(line)


class Line:
    """One thread's connections, one a node."""

    def __init__(self, ways: Ways, number: int) -> None:
        self._ways = ways
        self._calls: t.Dict[int, wire.Call] = {}
        self._turn = number

    def ask(self, place: int, question: t.Callable[[wire.Call], T]) -> T:
        """Ask a node; the source again and again, as long as there was a sign of it within the time for a connection.

        :raises wire.Lost: :raises wire.NotHere: :raises wire.Refused: :raises Broken:
        """
        ways = self._ways
        begun = time.monotonic()
        while True:
            try:
                return question(self._call(place))
            except wire.Lost as error:
                self._drop(place)
                if ways.problem is not None:
                    raise Broken(ways.problem) from error
                if place < ways.last:
                    ways.gone(place)
                    raise
                if ways.silent(begun):
                    peer = ways.peers[place].host
                    raise Broken(f"The copy from {peer} stopped ({error}): run this again, what has arrived is not sent twice.") from error
                time.sleep(_PAUSE)

    def _call(self, place: int) -> wire.Call:
        """The connection to a node. :raises wire.Lost: :raises wire.Refused:"""
        if place not in self._calls:
            ways = self._ways
            peer = ways.peers[place]
            lane = peer.lanes[self._turn % len(peer.lanes)]
            # Of several rails one may be dead: none is waited for longer than for its share of the time.
            limits = ways.limits._replace(connect=ways.limits.connect / (2 * len(peer.lanes)))
            self._calls[place] = wire.Call(peer, lane, ways.token, limits)
        # Who ended it meanwhile knew nothing of a connection that was still being made.
        if self._ways.problem is not None:
            raise wire.Lost(self._ways.problem)
        return self._calls[place]

    def _drop(self, place: int) -> None:
        """Hang up; the next call goes over the next rail."""
        call = self._calls.pop(place, None)
        if call is not None:
            call.close()
        self._turn += 1

    def shut(self) -> None:
        """Have the thread that waits on one of them notice that it is over. To be called by another one."""
        for call in list(self._calls.values()):
            call.shut()

    def close(self) -> None:
        """Hang up on all."""
        for place in list(self._calls):
            self._drop(place)
        self._ways.forget(self)
