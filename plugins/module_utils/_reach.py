# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""The fabric as seen from this node: its interface, and which of the other nodes answer over it."""

from __future__ import annotations

import array
import contextlib
import fcntl
import ipaddress
import os
import selectors
import socket
import struct
import time
import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils._files import integer

_SIOCGIFCONF, _SIOCGIFNETMASK = 0x8912, 0x891B
_IFREQ = 40
"""Bytes of a struct ifreq, and of its list's entries, on machines of 64 bits."""
# linux/in.h: DF is set, and what the kernel believes of the path's MTU is not asked.
_IP_MTU_DISCOVER, _IP_PMTUDISC_PROBE = 10, 3
_ECHO, _ECHO_REPLY = 8, 0
_HEADERS = 28
"""Bytes of an IPv4 header without options, and of an ICMP header."""
_SMALL = 56
"""Bytes of a small echo's payload."""
_PAYLOAD = struct.Struct("!8sHBB")
_ROUNDS = (0.0, 0.3, 0.55)
"""Seconds after which what has not answered is asked again: one lost packet is no broken link."""


class Address(t.NamedTuple):
    """An IPv4 address of an interface."""

    interface: str
    address: str
    prefix: int


def addresses() -> t.List[Address]:
    """The node's IPv4 addresses but those of the loopback, also of interfaces that are down.

    Source: netdevice(7), SIOCGIFCONF and SIOCGIFNETMASK.
    """
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        room = array.array("B", bytes(256 * _IFREQ))
        place, size = room.buffer_info()
        answer = fcntl.ioctl(probe.fileno(), _SIOCGIFCONF, struct.pack("iL", size, place))
        length: int = struct.unpack("iL", answer)[0]
        for start in range(0, length, _IFREQ):
            entry = room.tobytes()[start : start + _IFREQ]
            address = socket.inet_ntoa(entry[20:24])
            if address.startswith("127."):
                continue
            try:
                mask = fcntl.ioctl(probe.fileno(), _SIOCGIFNETMASK, entry)[20:24]
            except OSError:
                # It has been taken away since.
                continue
            # An additional address can have a label, "enp1s0f0np0:1".
            name = entry[:16].split(b"\0", 1)[0].decode("utf-8", "replace").partition(":")[0]
            found.append(Address(name, address, bin(int.from_bytes(mask, "big")).count("1")))
    return found


def check(peers: t.Iterable[str]) -> None:
    """Raise ValueError for a peer that is no IPv4 address: a name would have to be looked up, which can take half a minute."""
    for peer in peers:
        try:
            ipaddress.IPv4Address(peer)
        except ValueError:
            raise ValueError(f"peers: {peer} is no IPv4 address: give the other nodes' addresses on the fabric.") from None


def fabric(own: t.Iterable[Address], wanted: t.Sequence[str], root: str = "/") -> t.Optional[t.Dict[str, t.Any]]:
    """The interface on the subnet of the first of these addresses that the node has one for, or None.

    :param own: what M(addresses) returns. :param wanted: the rendezvous' address first, then what else tells the fabric.
    :param root: where C(/sys) hangs.
    :returns: C(interface), C(address), C(prefix), C(mtu) in bytes, C(carrier), C(speed_mbps) or None.
    """
    known = list(own)
    for text in wanted:
        try:
            target = ipaddress.IPv4Address(text)
        except ValueError:
            continue
        # Of two subnets that hold it the smaller one, and in the node's own case the very address.
        fits = [entry for entry in known if target in ipaddress.IPv4Interface((entry.address, entry.prefix)).network]
        if fits:
            best = max(fits, key=lambda entry: (entry.address == text, entry.prefix))
            folder = os.path.join(root, "sys", "class", "net", best.interface)
            return {
                "interface": best.interface,
                "address": best.address,
                "prefix": best.prefix,
                "mtu": integer(os.path.join(folder, "mtu")),
                # Of an interface that is down, the kernel doesn't tell it.
                "carrier": integer(os.path.join(folder, "carrier")) == 1,
                "speed_mbps": integer(os.path.join(folder, "speed")) or None,
            }
    return None


def echo(identity: int, number: int, payload: bytes) -> bytes:
    """An ICMP echo request (RFC 792)."""
    packet = struct.pack("!BBHHH", _ECHO, 0, 0, identity, number) + payload
    return packet[:2] + struct.pack("!H", checksum(packet)) + packet[4:]


def checksum(data: bytes) -> int:
    """The Internet's checksum (RFC 1071): over a packet that holds its own right one, it is 0."""
    total: int = sum(struct.unpack("!{0}H".format(len(data) // 2), data[: len(data) // 2 * 2])) + (data[-1] << 8 if len(data) % 2 else 0)
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def payload(token: bytes, number: int, turn: int, large: bool, size: int) -> bytes:
    """What an echo brings back: whose it is, to whom it went, in which round, and whether it is a large one; filled up to C(size) bytes."""
    return _PAYLOAD.pack(token, number, turn, large).ljust(size, b"\0")


def answered(packet: bytes, token: bytes, raw: bool) -> t.Optional[t.Tuple[int, int, bool]]:
    """The number, the round and the size of the echo that this packet answers; None when it answers none of ours.

    :param raw: an IPv4 header stands before the message.
    """
    message = packet[(packet[0] & 15) * 4 :] if raw and packet else packet
    if len(message) < 8 + _PAYLOAD.size or message[0] != _ECHO_REPLY:
        return None
    theirs, number, turn, large = _PAYLOAD.unpack_from(message, 8)
    return (number, turn, bool(large)) if theirs == token else None


def reach(peers: t.Sequence[str], source: str = "", mtu: int = 1500, patience: float = 0.8) -> t.Dict[str, t.Dict[str, t.Optional[float]]]:
    """How long the others take to answer an ICMP echo, all asked at once; nothing where this process may send none.

    :param peers: IPv4 addresses. :param source: the own address to ask from. :param mtu: bytes that the large one has with its
        headers, not to be taken apart on the way. :param patience: seconds in all.
    :returns: by address C(small) and C(large), seconds each, None where no answer came.
    """
    found: t.Dict[str, t.Dict[str, t.Optional[float]]] = {}
    opened = _socket(source)
    if opened is None:
        return found
    sender, raw = opened
    targets = list(dict.fromkeys(peers))
    found = {peer: {"small": None, "large": None} for peer in targets}
    token, identity = os.urandom(8), os.getpid() & 0xFFFF
    asked: t.Dict[t.Tuple[int, int, bool], float] = {}
    missing = {(number, large) for number in range(len(targets)) for large in (False, True)}
    begun = time.monotonic()
    turn = 0
    with sender, selectors.DefaultSelector() as selector:
        selector.register(sender, selectors.EVENT_READ)
        while missing and time.monotonic() < begun + patience:
            if turn < len(_ROUNDS) and time.monotonic() >= begun + _ROUNDS[turn]:
                for number, large in sorted(missing, key=lambda item: (item[1], item[0])):
                    size = max(_SMALL, mtu - _HEADERS) if large else _SMALL
                    asked[number, turn, large] = time.monotonic()
                    # No way there, or more than the interface takes now: that is no answer.
                    with contextlib.suppress(OSError):
                        sender.sendto(echo(identity, 2 * number + large, payload(token, number, turn, large, size)), (targets[number], 0))
                turn += 1
            until = begun + min(patience, _ROUNDS[turn] if turn < len(_ROUNDS) else patience)
            selector.select(max(0.0, until - time.monotonic()))
            for packet in _waiting(sender):
                key = answered(packet, token, raw)
                if key in asked and (key[0], key[2]) in missing:
                    missing.discard((key[0], key[2]))
                    found[targets[key[0]]]["large" if key[2] else "small"] = round(time.monotonic() - asked[key], 6)
    return found


def neighbours(table: str) -> t.Dict[str, bool]:
    """Which addresses of the own subnets have told their hardware address.

    :param table: the content of C(/proc/net/arp), "192.168.200.12  0x1  0x2  4a:..:01  *  enp1s0f0np0": the third column is 0x2 for one
        that has, 0x0 for one that was asked in vain (Linux, net/ipv4/arp.c, arp_format_neigh_entry).
    """
    found: t.Dict[str, bool] = {}
    for line in table.splitlines()[1:]:
        fields = line.split()
        if len(fields) >= 6:
            found[fields[0]] = found.get(fields[0], False) or bool(int(fields[2], 16) & 2)
    return found


def _socket(source: str) -> t.Optional[t.Tuple[socket.socket, bool]]:
    """A socket for ICMP and whether it is a raw one, which root may open; else that of ping(1), where the group is let."""
    for kind in (socket.SOCK_RAW, socket.SOCK_DGRAM):
        try:
            opened = socket.socket(socket.AF_INET, kind, socket.IPPROTO_ICMP)
        except OSError:
            continue
        try:
            opened.setblocking(False)
            opened.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _IP_PMTUDISC_PROBE)
            if source:
                opened.bind((source, 0))
        except OSError:
            opened.close()
            return None
        return opened, kind == socket.SOCK_RAW
    return None


def _waiting(opened: socket.socket) -> t.Iterator[bytes]:
    """What has arrived."""
    while True:
        try:
            yield opened.recv(65535)
        except BlockingIOError:
            return
        except OSError:
            # The news that an echo could not be delivered can come as an error of the socket.
            return
