# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""What two nodes' probes send each other in UDP, and what follows from it: pure, with the times given.

Each packet bears a mark that only who knows the listener's one-time token can make. The token itself never goes over the wire.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
import typing as t

LOSS, SIZE = 1, 2
"""What a packet is sent for: to be counted, or to find out which sizes pass."""
HEADERS = 28
"""Bytes of an IPv4 header without options, and of a UDP header."""
_MAGIC = b"SkP1"
_ECHO = 0x80
_PROBE = struct.Struct("!4sBBHIId")
_ANSWER = struct.Struct("!4sBBHIIddd")
_MARK = 8
_LARGEST = 65535
"""Bytes of the largest IPv4 packet."""
# Ethernet's jumbo and plain frames, what RDMA's 4096 and 2048 need with their headers, what tunnels and VLANs leave of 1500, and the least of IPv6 and IPv4.
_USUAL = (9000, 8000, 4200, 2148, 1500, 1496, 1450, 1400, 1280, 576)


class Probe(t.NamedTuple):
    """A packet on its way to a listener."""

    kind: int
    source: int
    """The sending node's number in the group."""
    row: int
    """The sender's number for this pair of interfaces."""
    number: int
    size: int
    """Bytes of the whole IPv4 packet."""
    sent: float
    """The sender's clock, seconds since 1970."""


class Echo(t.NamedTuple):
    """A listener's answer: the probe's own words, and when it C(came) and the answer C(left) by the listener's clock."""

    kind: int
    row: int
    number: int
    size: int
    sent: float
    came: float
    left: float


def probe(key: bytes, packet: Probe) -> bytes:
    """A probe's payload, filled up so that its IPv4 packet has C(packet.size) bytes. :param key: the listener's token."""
    head = _PROBE.pack(_MAGIC, *packet)
    return (head + _mark(key, head)).ljust(packet.size - HEADERS, b"\0")


def read_probe(key: bytes, data: bytes) -> t.Optional[Probe]:
    """The probe that a payload is, or None where it is none or was made without the token."""
    head = data[: _PROBE.size]
    if len(data) < _PROBE.size + _MARK or not hmac.compare_digest(data[_PROBE.size : _PROBE.size + _MARK], _mark(key, head)):
        return None
    magic, *words = _PROBE.unpack(head)
    found = Probe(*words)
    # What has lost its end on the way has not passed.
    return found if magic == _MAGIC and len(data) >= found.size - HEADERS else None


def echo(key: bytes, packet: Probe, came: float, left: float) -> bytes:
    """The answer to a probe, small whatever the probe's size: it shall tell of one direction only."""
    head = _ANSWER.pack(_MAGIC, packet.kind | _ECHO, packet.source, packet.row, packet.number, packet.size, packet.sent, came, left)
    return head + _mark(key, head)


def read_echo(keys: t.Mapping[int, bytes], source: int, data: bytes) -> t.Optional[Echo]:
    """The answer that a payload is, or None. :param keys: the token of each row's listener. :param source: the own number in the group."""
    head = data[: _ANSWER.size]
    if len(data) != _ANSWER.size + _MARK:
        return None
    magic, kind, asker, row, number, size, sent, came, left = _ANSWER.unpack(head)
    if magic != _MAGIC or not kind & _ECHO or asker != source or row not in keys:
        return None
    if not hmac.compare_digest(data[_ANSWER.size :], _mark(keys[row], head)):
        return None
    return Echo(kind & ~_ECHO, row, number, size, sent, came, left)


def clock(sent: float, came: float, left: float, back: float) -> t.Tuple[float, float]:
    """How far the other clock is ahead, and how much that may be wrong, both in seconds.

    :param sent: when the question left, and C(back) when the answer was here, by the own clock. :param came: when it was there, and
        C(left) when the answer left, by the other one. Source: RFC 5905, part 8: the offset theta, and half of the delay delta.
    """
    return ((came - sent) + (left - back)) / 2, max(0.0, ((back - sent) - (left - came)) / 2)


def sizes(mtu: int) -> t.List[int]:
    """The sizes of IPv4 packets to try on an interface of this MTU, largest first, in bytes."""
    most = min(mtu, _LARGEST)
    return [most] + [size for size in _USUAL if size < most]


def amount(rows: int) -> int:
    """How many packets to send for each of so many pairs of interfaces: fewer where many are asked at once, but enough to see a loss of 5 %."""
    return max(60, min(200, 1600 // max(1, rows)))


def _mark(key: bytes, data: bytes) -> bytes:
    return hashlib.blake2b(data, key=key, digest_size=_MARK).digest()
