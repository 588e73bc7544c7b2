# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""How much goes over a link in a fraction of a second: several TCP streams, counted where they arrive.

A test is a step of the group's plan, with a number. Its receiver says which step it is at, and lets its sender in at that one only: so a
node sends or receives in one test at a time, whatever the clocks say.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import time
import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils import _autostart_wire as wire
from ansible_collections.sparkstack.inference.plugins.module_utils._files import text

CALL = 2.0
"""Seconds to reach a node that has answered a moment ago."""
MEET = 8.0
"""Seconds to wait for the other end: it may still be at another test, which takes its time."""
_CHUNK = 1 << 20
_PIECE = 4 << 20
_LOOK = 0.02
"""Seconds between two looks at the counters."""
_FIRST = 3.0
"""Seconds for the first byte to come."""
_WARM = 0.3
"""The share of the time that is not counted: TCP starts slowly, and a shaper lets a burst pass."""


ME = {"deployment": "fabric_probe", "rank": 0}
"""What a caller says of itself."""


class Talk(wire.Channel):
    """A signed connection whose socket stays at hand, for the bytes that are only counted."""

    def __init__(self, connection: socket.socket, token: str, serving: bool, me: t.Optional[wire.Message] = None) -> None:
        self.connection = connection
        super().__init__(connection, token, serving, me)

    def ask(self, message: t.Mapping[str, t.Any], seconds: float) -> wire.Message:
        """Send a message and wait for its answer; :raises WireError: when none comes in time."""
        self.connection.settimeout(seconds)
        self.send(message)
        return self.receive()


class Sink:
    """The receiving end, one for all steps of a node."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._step: t.Optional[int] = None
        self._done: t.Dict[int, t.Dict[str, t.Any]] = {}
        self._port = 0
        self._streams: t.Dict[int, t.List[t.List[int]]] = {}
        """Of each step, one counter a stream, which its own thread alone writes: the bytes so far, and the thread's id."""

    def serve(self, channel: Talk, message: wire.Message) -> bool:
        """Answer a message of a test; false when it is none, or its connection has become a stream that has ended."""
        what, step = message.get("do"), message.get("step")
        if not isinstance(step, int):
            return False
        if what == "step":
            with self._condition:
                self._step, self._port = step, int(message.get("port") or 0)
                self._condition.notify_all()
            channel.send({"step": step})
        elif what == "ready":
            channel.send({"go": self._wait(lambda: self._step == step, _seconds(message)), "port": self._port})
        elif what == "await":
            met = self._wait(lambda: step in self._done, _seconds(message))
            channel.send({"met": met})
        elif what == "done":
            with self._condition:
                self._done[step] = {}
                self._condition.notify_all()
            channel.send({"step": step})
        elif what == "sink":
            self._streams[step] = []
            channel.send({"step": step})
            channel.send(self._measure(step, _seconds(message)))
        elif what == "stream":
            channel.send({"step": step})
            self._take(step, channel.connection)
            return False
        else:
            return False
        return True

    def _wait(self, condition: t.Callable[[], bool], seconds: float) -> bool:
        with self._condition:
            return self._condition.wait_for(condition, seconds)

    def _take(self, step: int, connection: socket.socket) -> None:
        """Count what comes of one stream. The bytes are not even copied: tcp(7), MSG_TRUNC."""
        counter = [0, threading.get_native_id()]
        self._streams.setdefault(step, []).append(counter)
        connection.settimeout(CALL + _FIRST)
        room = bytearray(_CHUNK)
        with contextlib.suppress(OSError):
            while True:
                count = connection.recv_into(room, _CHUNK, socket.MSG_TRUNC)
                if not count:
                    return
                counter[0] += count

    def _measure(self, step: int, seconds: float) -> t.Dict[str, t.Any]:
        def total() -> int:
            return sum(counter[0] for counter in list(self._streams.get(step, [])))

        begun = time.monotonic()
        while not total():
            if time.monotonic() > begun + _FIRST:
                return {"mb_s": 0.0, "bytes": 0, "busy": 0.0, "error": "no byte came in {0:.1f} s".format(_FIRST)}
            time.sleep(_LOOK / 4)
        first = time.monotonic()
        before = ready([counter[1] for counter in self._streams[step]])
        looks = [(first, total())]
        while looks[-1][0] < first + seconds:
            time.sleep(_LOOK)
            looks.append((time.monotonic(), total()))
        threads = [counter[1] for counter in self._streams[step]]
        busy = share(before, ready(threads), looks[-1][0] - first)
        return {"mb_s": rate(looks, first + seconds * _WARM), "bytes": looks[-1][1], "busy": busy, "error": None}


def rate(looks: t.Sequence[t.Tuple[float, int]], since: float) -> float:
    """Megabytes (1000000 bytes) a second from the first look at or after C(since) to the last one. :param looks: each a time and the bytes so far."""
    start = next((look for look in looks[:-1] if look[0] >= since), looks[0])
    span = looks[-1][0] - start[0]
    return round((looks[-1][1] - start[1]) / span / 1e6, 1) if span > 0 else 0.0


def ready(threads: t.Sequence[int]) -> t.Dict[int, float]:
    """Seconds that each of these threads of this process has run or waited for a CPU so far; none where the kernel does not count it.

    Source: Linux, Documentation/scheduler/sched-stats: C(schedstat) has the nanoseconds on a CPU, and those of waiting for one.
    """
    found = {}
    for thread in threads:
        words = text("/proc/self/task/{0}/schedstat".format(thread)).split()
        if len(words) >= 2:
            found[thread] = (int(words[0]) + int(words[1])) / 1e9
    return found


def share(before: t.Mapping[int, float], after: t.Mapping[int, float], seconds: float) -> float:
    """The share of the time in which the threads had something to do, from 0 to 1. Those that wait for a link are near 0, those for a CPU near 1."""
    if not after or seconds <= 0:
        return 0.0
    spent = sum(after[thread] - before.get(thread, 0.0) for thread in after)
    return round(max(0.0, min(1.0, spent / len(after) / seconds)), 2)


def reach(connection: socket.socket, peer: str, port: int, token: str) -> Talk:
    """Greet a node's listener over a connection that is bound already; :raises WireError: why there is none."""
    connection.settimeout(CALL)
    try:
        connection.connect((peer, port))
        return Talk(connection, token, False, ME)
    except OSError as error:
        connection.close()
        raise wire.WireError(str(error.strerror or error)) from error
    except BaseException:
        connection.close()
        raise


def send(control: Talk, step: int, seconds: float, streams: int, call: t.Callable[[], Talk]) -> t.Dict[str, t.Any]:
    """Send for so many seconds in several streams, and return what the receiver counted: C(mb_s), C(bytes), C(error).

    C(busy) is the share of the time in which the threads of the busier end ran or waited for a CPU: near 1, the link was not the limit.

    :param call: makes a connection to the receiver's listener. :raises WireError: when the receiver is gone.
    """
    until = seconds + _FIRST + CALL
    control.ask({"do": "sink", "step": step, "seconds": seconds}, CALL)
    opened: t.List[Talk] = []
    threads = []
    with contextlib.ExitStack() as stack:
        piece = stack.enter_context(_piece())
        for _stream in range(streams):
            opened.append(call())
            opened[-1].ask({"do": "stream", "step": step}, CALL)
        enough = threading.Event()
        end = time.monotonic() + until
        for talk in opened:
            _prepare(talk.connection)
            threads.append(threading.Thread(target=_pour, args=(talk.connection, piece.fileno(), enough, end), daemon=True))
            threads[-1].start()
        begun = time.monotonic()
        control.connection.settimeout(until)
        try:
            found = control.receive()
            told = ready([thread.native_id for thread in threads if thread.native_id])
            found["busy"] = max(found.get("busy") or 0.0, share({}, told, time.monotonic() - begun))
        finally:
            enough.set()
        for talk in opened:
            # What still waits in the buffers of a slow link is thrown away.
            with contextlib.suppress(OSError):
                talk.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            talk.close()
        for thread in threads:
            thread.join(CALL)
    return found


def _prepare(connection: socket.socket) -> None:
    connection.settimeout(None)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 0, 300_000))


def _pour(connection: socket.socket, piece: int, enough: threading.Event, end: float) -> None:
    # A full buffer that nobody empties is an error as well.
    with contextlib.suppress(OSError):
        while not enough.is_set() and time.monotonic() < end:
            os.sendfile(connection.fileno(), piece, 0, _PIECE)


def _piece() -> t.BinaryIO:
    """A file in memory: its pages go to the network as they are, without a copy."""
    piece = os.fdopen(os.memfd_create("fabric-probe"), "r+b")
    piece.write(bytes(_PIECE))
    piece.flush()
    return piece


def _seconds(message: wire.Message) -> float:
    return max(0.0, min(120.0, float(message.get("seconds") or 0)))
