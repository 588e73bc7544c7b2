# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""Who answers for an address: the neighbour table keeps one hardware address only, and two machines with one IP address both answer."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import time
import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils._files import integer, text

_ARP, _ETHERNET, _IPV4, _REQUEST, _REPLY = 0x0806, 1, 0x0800, 1, 2
_BODY = struct.Struct("!HHBBH6s4s6s4s")
_HEAD = 14
"""Bytes of an Ethernet header."""
_EVERYBODY = b"\xff" * 6
_ROUNDS, _AGAIN = 2, 0.15
"""How often all are asked, for one of two answers may be lost, and the seconds in between."""
_ANSWER, _SILENCE = 0.45, 2.0


def request(mac: bytes, own: str, target: str) -> bytes:
    """A frame that asks everybody on the link who has an address (RFC 826)."""
    body = _BODY.pack(_ETHERNET, _IPV4, 6, 4, _REQUEST, mac, socket.inet_aton(own), bytes(6), socket.inet_aton(target))
    return _EVERYBODY + mac + struct.pack("!H", _ARP) + body


def read(frame: bytes) -> t.Optional[t.Tuple[bool, str, str]]:
    """Whether a frame is an answer (else a question), and which address and hardware address its sender says it has; None for all else."""
    if len(frame) < _HEAD + _BODY.size:
        return None
    kind, protocol, length, width, operation, mac, address, _to, _target = _BODY.unpack_from(frame, _HEAD)
    if (kind, protocol, length, width) != (_ETHERNET, _IPV4, 6, 4) or operation not in (_REQUEST, _REPLY):
        return None
    return operation == _REPLY, socket.inet_ntoa(address), ":".join("{0:02x}".format(byte) for byte in mac)


class Heard:
    """What was heard of an address on a link."""

    def __init__(self) -> None:
        self.macs: t.List[str] = []
        """The hardware addresses that have answered for it, in the order of the answers."""
        self.asked = False
        """It has asked for somebody: so this direction of the link is open, also where no answer gets through."""


Question = t.Tuple[str, str]
"""An interface, and an address to ask for on it."""


def ask(questions: t.Mapping[str, t.Tuple[str, t.Sequence[str]]], patience: float = _ANSWER, longer: float = _SILENCE) -> t.Dict[Question, Heard]:
    """Who answers for these addresses.

    Nothing where the process may not open such a socket, which takes root's rights, or where the interface is no Ethernet.

    :param questions: by interface, the own address on it and those to ask for. :param patience: seconds in all, for whoever else has an
        address can answer later than its owner. :param longer: seconds where an address does not answer: its node may begin to ask later.
    """
    found: t.Dict[Question, Heard] = {}
    with contextlib.ExitStack() as stack:
        opened = {}
        for netdev, (_own, targets) in questions.items():
            link = _open(netdev)
            if link is not None:
                opened[stack.enter_context(link)] = netdev
                found.update({(netdev, target): Heard() for target in targets})
        begun = time.monotonic()
        turn = 0
        while opened:
            silent = any(not heard.macs for heard in found.values())
            end = begun + (longer if silent else patience)
            if time.monotonic() >= end:
                break
            if time.monotonic() >= begun + turn * _AGAIN:
                turn += 1
                for link, netdev in opened.items():
                    _send(link, netdev, questions[netdev][0], [target for target in questions[netdev][1] if turn <= _ROUNDS or not found[netdev, target].macs])
            until = min(end, begun + turn * _AGAIN)
            ready, _to, _failed = select.select(list(opened), [], [], max(0.0, until - time.monotonic()))
            for link in ready:
                with contextlib.suppress(OSError):
                    _note(found, opened[link], read(link.recv(2048)))
    return found


def _note(found: t.Mapping[Question, Heard], netdev: str, told: t.Optional[t.Tuple[bool, str, str]]) -> None:
    heard = found.get((netdev, told[1])) if told else None
    if told is None or heard is None:
        return
    if not told[0]:
        heard.asked = True
    elif told[2] not in heard.macs:
        heard.macs.append(told[2])


def _open(netdev: str) -> t.Optional[socket.socket]:
    if integer(os.path.join("/sys/class/net", netdev, "type")) != _ETHERNET:
        return None
    link = None
    try:
        link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ARP))
        link.setblocking(False)
        link.bind((netdev, _ARP))
    except OSError:
        if link is not None:
            link.close()
        return None
    return link


def _send(link: socket.socket, netdev: str, own: str, targets: t.Sequence[str]) -> None:
    mac = bytes.fromhex(text(os.path.join("/sys/class/net", netdev, "address")).strip().replace(":", ""))
    for target in targets:
        # A link that is down takes none.
        with contextlib.suppress(OSError):
            link.send(request(mac, own, target))
