# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""Which interface is wired to which: every node calls out on each of its interfaces and writes down whom it hears there.

The calls are bare Ethernet frames, so they need no address, and nothing forwards them but a switch. A link that is up says only that
something is at the other end of the cable, not what.
"""

from __future__ import annotations

import json
import select
import socket
import time
import typing as t

ETHERTYPE = 0x88B5
"""IEEE Std 802, "local experimental ethertype 1": what no protocol has, and no switch looks into."""
_MARK = b"sparkstack fabric 1 "
_BROADCAST = b"\xff" * 6
_PAUSE = 0.1
"""Seconds between two calls."""
_SMALLEST = 60
"""Bytes of an Ethernet frame without its checksum."""

Heard = t.Dict[str, t.List[t.Tuple[str, str]]]
"""For each own interface the (host, interface) that were heard there, sorted."""


def frame(mac: bytes, run: str, host: str, netdev: str) -> bytes:
    """A call. :param mac: the sender's 6 bytes. :param run: the same word for all hosts that belong together."""
    body = _MARK + json.dumps([run, host, netdev]).encode() + b"\n"
    return (_BROADCAST + mac + ETHERTYPE.to_bytes(2, "big") + body).ljust(_SMALLEST, b"\0")


def parse(data: bytes, run: str) -> t.Optional[t.Tuple[str, str]]:
    """The (host, interface) that calls in a frame, or None when it is none of this run's calls."""
    if data[12:14] != ETHERTYPE.to_bytes(2, "big") or not data[14:].startswith(_MARK):
        return None
    try:
        words = json.loads(data[14 + len(_MARK) :].partition(b"\n")[0])
    except ValueError:
        return None
    if not isinstance(words, list) or len(words) != 3 or not all(isinstance(word, str) for word in words) or words[0] != run:
        return None
    return words[1], words[2]


class Wire:
    """The open interfaces; closed at the end of a C(with)."""

    def __init__(self, netdevs: t.Iterable[str]) -> None:
        """:raises OSError: when the user may not open them (that takes CAP_NET_RAW)."""
        self.sockets: t.Dict[str, socket.socket] = {}
        try:
            for netdev in netdevs:
                link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_NONBLOCK, socket.htons(ETHERTYPE))
                self.sockets[netdev] = link
                link.bind((netdev, ETHERTYPE))
        except OSError:
            self.close()
            raise

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_why: t.Any) -> None:
        self.close()

    def close(self) -> None:
        for link in self.sockets.values():
            link.close()

    def call(self, run: str, host: str) -> None:
        """Call once on each interface; one that has just gone down is passed over."""
        for netdev, link in self.sockets.items():
            try:
                link.send(frame(link.getsockname()[4], run, host, netdev))
            except OSError:
                continue

    def hear(self, run: str, seconds: float) -> t.List[t.Tuple[str, t.Tuple[str, str]]]:
        """What comes in within some seconds, as (own interface, who calls)."""
        ready = select.select(list(self.sockets.values()), [], [], seconds)[0]
        found = []
        for netdev, link in self.sockets.items():
            while link in ready:
                try:
                    data, address = link.recvfrom(2048)
                except OSError:
                    break
                caller = parse(data, run)
                if caller and address[2] != socket.PACKET_OUTGOING:
                    found.append((netdev, caller))
        return found


def listen(
    wire: Wire,
    run: str,
    host: str,
    hosts: t.Collection[str],
    longest: float,
    quiet: float = 1.0,
    clock: t.Callable[[], float] = time.monotonic,
) -> Heard:
    """Call and listen until each interface has heard somebody, or every host was heard, and nothing new came for a while.

    All hosts do this at the same time. Who has heard enough goes on calling for the quiet while, for the sake of those that began later.

    :param hosts: all that take part, this one too.
    :param longest: seconds after which it ends in any case: an interface may be wired to nobody.
    :param quiet: seconds without news after which it ends.
    """
    heard: t.Dict[str, t.Set[t.Tuple[str, str]]] = {netdev: set() for netdev in wire.sockets}
    others = set(hosts) - {host}
    began = news = called = clock()
    wire.call(run, host)
    while clock() - began < longest and others and heard:
        now = clock()
        enough = all({name for name, _netdev in callers} - {host} for callers in heard.values())
        enough = enough and {name for callers in heard.values() for name, _netdev in callers} >= others
        if enough and now - news >= quiet:
            break
        if now - called >= _PAUSE:
            wire.call(run, host)
            called = now
        for netdev, caller in wire.hear(run, _PAUSE):
            if caller[0] in hosts and caller not in heard[netdev]:
                heard[netdev].add(caller)
                news = clock()
    return {netdev: sorted(callers) for netdev, callers in heard.items()}
