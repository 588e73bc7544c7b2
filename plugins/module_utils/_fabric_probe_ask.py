# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""The part of the probe that asks: all pairs of interfaces at once, in about a second."""

from __future__ import annotations

import concurrent.futures
import contextlib
import errno
import selectors
import time
import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils import _fabric_probe_arp as arp
from ansible_collections.sparkstack.inference.plugins.module_utils import _fabric_probe_packet as packet
from ansible_collections.sparkstack.inference.plugins.module_utils._fabric_probe_rail import Call, Udp, connect, hardware
from ansible_collections.sparkstack.inference.plugins.module_utils._reach import reach

SENDING = 0.6
"""Seconds over which the packets that are counted are spread."""
_TAIL, _END = 0.3, 2.0
"""Seconds without an answer after which no more is waited for once all is sent, and seconds in all: a busy machine may be late with either."""
_SIZES = tuple(0.06 + 0.06 * turn for turn in range(8))
"""Seconds at which the sizes that were not answered are tried again: where half of all is lost, eight are enough."""
_GREETING, _LOOK = 1.2, 0.01
"""Seconds for the others' hardware addresses: a question that is lost is asked again after one. And seconds between two looks whether they are known."""
_TCP = 2.0
"""Seconds for a TCP connection: a lost SYN comes again after one."""
_ECHO = 0.8
"""Seconds for an ICMP echo, which is asked for only where UDP was not answered at all."""
_WIRE = 120
"""Bytes of a packet that is only counted."""


class Target(t.NamedTuple):
    """A pair of interfaces: an own one and one of another node's listener."""

    row: int
    netdev: str
    address: str
    peer_address: str
    udp: int
    control: int
    """The listener's TCP port."""
    token: str
    ports: t.Sequence[int]
    """The launch's ports that it listens on as well."""
    mtu: int


class Answers:
    """What came back of one target."""

    def __init__(self) -> None:
        self.sent = 0
        self.refused: t.Optional[str] = None
        """What the own kernel said where it did not send."""
        self.numbers: t.Set[int] = set()
        self.sizes: t.Set[int] = set()
        self.trip: t.Optional[float] = None
        self.clock: t.Optional[t.Tuple[float, float]] = None

    def add(self, echo: packet.Echo, trip: float) -> None:
        """An answer. :param trip: seconds that it took, by a clock that nobody sets."""
        if echo.kind == packet.SIZE:
            self.sizes.add(echo.size)
            return
        self.numbers.add(echo.number)
        # The answer that was the quickest waited the least anywhere, so that it tells the clock best.
        if self.trip is None or trip < self.trip:
            self.trip = trip
            self.clock = packet.clock(echo.sent, echo.came, echo.left, echo.sent + trip)


def probe(targets: t.Sequence[Target], source: int) -> t.List[t.Dict[str, t.Any]]:
    """Ask all targets, and tell of each: see RV(rows) of M(sparkstack.inference.fabric_probe_node).

    :param source: the own number in the group.
    """
    questions: t.Dict[str, t.Tuple[str, t.List[str]]] = {}
    calls: t.Dict[Call, t.Tuple[int, int]] = {}
    for target in targets:
        asked = questions.setdefault(target.netdev, (target.address, []))[1]
        if target.peer_address not in asked:
            asked.append(target.peer_address)
        for port in [target.control, *target.ports]:
            calls[(target.netdev, target.address, target.peer_address, port)] = (target.row, port)
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        owners = pool.submit(arp.ask, questions)
        connected = pool.submit(connect, list(calls), _TCP)
        answers = _packets(targets, source)
        echoes = _echoes([target for target in targets if not answers[target.row].numbers])
        macs, reached = owners.result(), connected.result()
    rows = []
    for target in targets:
        tcp = {port: reached[call] for call, (row, port) in calls.items() if row == target.row}
        row = _row(target, answers[target.row], macs.get((target.netdev, target.peer_address)))
        rows.append({**row, "control": tcp.pop(target.control), "tcp": tcp, "echo_ms": echoes.get(target.row)})
    return rows


def _row(target: Target, found: Answers, heard: t.Optional[arp.Heard]) -> t.Dict[str, t.Any]:
    mac, state = hardware(target.netdev, target.peer_address)
    if heard is not None and not heard.macs and not found.numbers:
        # The table keeps for a minute what was true before a cable was pulled.
        state = "incomplete"
    return {
        "row": target.row,
        "sent": found.sent,
        "answered": len(found.numbers),
        "rtt_ms": round(found.trip * 1000, 3) if found.trip is not None else None,
        "answered_size": max(found.sizes, default=0),
        "clock_offset_s": round(found.clock[0], 6) if found.clock else None,
        "clock_error_s": round(found.clock[1], 6) if found.clock else None,
        "mac": mac,
        "arp": state,
        "macs": heard.macs if heard else [],
        "asks": bool(heard and heard.asked),
        "refused": found.refused,
    }


def _packets(targets: t.Sequence[Target], source: int) -> t.Dict[int, Answers]:
    """Send what is counted and what is large, and gather the answers, by row."""
    found = {target.row: Answers() for target in targets}
    keys = {target.row: target.token.encode() for target in targets}
    with contextlib.ExitStack() as stack, selectors.DefaultSelector() as selector:
        rails: t.Dict[t.Tuple[str, str], Udp] = {}
        for target in targets:
            if (target.netdev, target.address) not in rails:
                try:
                    udp = Udp(target.netdev, target.address)
                except OSError as error:
                    found[target.row].refused = str(error.strerror or error)
                    continue
                stack.callback(udp.close)
                selector.register(udp.socket, selectors.EVENT_READ, udp)
                rails[target.netdev, target.address] = udp
        flight = _Flight([(target, rails[target.netdev, target.address]) for target in targets if (target.netdev, target.address) in rails], source, found)
        flight.greet()
        while not flight.over():
            for key, _events in selector.select(flight.pause()):
                for came in key.data.receive():
                    echo = packet.read_echo(keys, source, came.data)
                    if echo is not None:
                        flight.note(echo)
            flight.turn()
    return found


class _Flight:
    """Which packet is due when."""

    def __init__(self, targets: t.Sequence[t.Tuple[Target, Udp]], source: int, found: t.Mapping[int, Answers]) -> None:
        self.targets, self.source, self.found = targets, source, found
        self.keys = {target.row: target.token.encode() for target, _udp in targets}
        self.wanted = packet.amount(len(targets))
        self.step = SENDING / self.wanted
        self.begun = self.moved = time.monotonic()
        self.number = self.size_turn = 0
        self.times: t.Dict[t.Tuple[int, int, int, int], float] = {}

    def greet(self) -> None:
        """Have the kernel ask for the hardware addresses first: what waits for them in its queue, and finds no room there, would count as lost."""
        for target, udp in self.targets:
            self._send(target, udp, packet.SIZE, len(_SIZES), _WIRE)
        until = time.monotonic() + _GREETING
        while time.monotonic() < until and any(hardware(target.netdev, target.peer_address)[1] == "incomplete" for target, _udp in self.targets):
            time.sleep(_LOOK)
        self.begun = self.moved = time.monotonic()

    def over(self) -> bool:
        """All is answered, or the time is over."""
        if self.number < self.wanted:
            return not self.targets
        now = time.monotonic()
        return now > self.moved + _TAIL or now > self.begun + _END or all(self._whole(target) for target, _udp in self.targets)

    def _whole(self, target: Target) -> bool:
        found = self.found[target.row]
        return len(found.numbers) == self.wanted and packet.sizes(target.mtu)[0] in found.sizes

    def pause(self) -> float:
        """Seconds until the next packet is due."""
        due = self.begun + self.number * self.step if self.number < self.wanted else self.moved + _TAIL
        return max(0.0, min(0.05, due - time.monotonic()))

    def turn(self) -> None:
        """Send what is due. A process that was not let run sends what it has missed, but not all of it at once."""
        if self.size_turn < len(_SIZES) and time.monotonic() >= self.begun + _SIZES[self.size_turn]:
            for target, udp in self.targets:
                for size in packet.sizes(target.mtu):
                    # Of what has passed, what is smaller passes too.
                    if size > max(self.found[target.row].sizes, default=0):
                        self._send(target, udp, packet.SIZE, self.size_turn, size)
            self.size_turn += 1
        if self.number < self.wanted and time.monotonic() >= self.begun + self.number * self.step:
            for target, udp in self.targets:
                self.found[target.row].sent += 1
                self._send(target, udp, packet.LOSS, self.number, _WIRE)
            self.number += 1
            self.moved = time.monotonic()

    def note(self, echo: packet.Echo) -> None:
        """Count an answer."""
        sent = self.times.get((echo.row, echo.kind, echo.number, echo.size))
        if sent is not None:
            self.moved = time.monotonic()
            self.found[echo.row].add(echo, time.monotonic() - sent)

    def _send(self, target: Target, udp: Udp, kind: int, number: int, size: int) -> None:
        self.times[target.row, kind, number, size] = time.monotonic()
        data = packet.probe(self.keys[target.row], packet.Probe(kind, self.source, target.row, number, size, time.time()))
        try:
            udp.send(data, (target.peer_address, target.udp))
        except OSError as error:
            # One that is too large for the interface does not pass, and that is known then. EAGAIN: many wait for the hardware address.
            if kind == packet.LOSS and error.errno != errno.EAGAIN:
                self.found[target.row].refused = str(error.strerror or error)


def _echoes(targets: t.Sequence[Target]) -> t.Dict[int, t.Optional[float]]:
    """Milliseconds until these answer an ICMP echo: a firewall may let those pass and nothing else. None where no answer came."""
    found: t.Dict[int, t.Optional[float]] = {}
    sources = list(dict.fromkeys(target.address for target in targets))
    with concurrent.futures.ThreadPoolExecutor(max(1, len(sources))) as pool:
        asked = {address: pool.submit(reach, [one.peer_address for one in targets if one.address == address], address, 1500, _ECHO) for address in sources}
        for target in targets:
            small = asked[target.address].result().get(target.peer_address, {}).get("small")
            found[target.row] = round(small * 1000, 3) if small is not None else None
    return found
