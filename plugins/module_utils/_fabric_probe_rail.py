# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""Sockets that keep to one interface and its address, so that a wrong route shows instead of helping out."""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import socket
import struct
import time
import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils._files import text

# linux/in.h and asm-generic/socket.h; Python's socket module has no names for them in all versions.
_IP_PKTINFO, _IP_MTU_DISCOVER, _PROBE = 8, 10, 3
_SO_RCVBUFFORCE, _SO_RXQ_OVFL = 33, 40
_ROOM = 4 << 20
"""Bytes of a receiving buffer: a node of many can be asked faster than a busy machine lets this process run."""
_PKTINFO = struct.Struct("=I4s4s")
_MOST = 65536
_ETHERNET = len("00:00:00:00:00:00")
_RESET = struct.pack("ii", 1, 0)
_AGAIN = 0.25
"""Seconds after which a connection that does not come about is tried once more beside the first, for a SYN may be lost."""
_PENDING = (errno.EINPROGRESS, errno.EAGAIN)
_WORDS = {errno.ECONNREFUSED: "refused", errno.ECONNRESET: "refused", errno.ETIMEDOUT: "timeout"}


class Packet(t.NamedTuple):
    """A UDP packet that came: from whom, and the number of the interface that it came in by."""

    data: bytes
    peer: t.Tuple[str, int]
    interface: int


class Udp:
    """A UDP socket of one interface: it sends from there only, never in fragments, and tells by which interface things came."""

    def __init__(self, netdev: str, address: str) -> None:
        """:raises OSError: when the node has no such interface or address."""
        self.netdev, self.address = netdev, address
        try:
            self.index = socket.if_nametoindex(netdev)
        except OSError as error:
            # Python says it without a number, in words of its own.
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV)) from error
        self.overrun = 0
        """Packets that arrived and found no room, because this process was not let run."""
        self._from = _PKTINFO.pack(self.index, socket.inet_aton(address), bytes(4))
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            self.socket.setsockopt(socket.IPPROTO_IP, _IP_PKTINFO, 1)
            # The don't-fragment bit is set, and what the kernel believes of the path's MTU is not asked.
            self.socket.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _PROBE)
            self.socket.setsockopt(socket.SOL_SOCKET, _SO_RXQ_OVFL, 1)
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _ROOM)
            with contextlib.suppress(OSError):
                # Beyond net.core.rmem_max only root may.
                self.socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _ROOM)
            self.socket.setblocking(False)
            self.socket.bind((address, 0))
        except BaseException:
            self.socket.close()
            raise
        self.port: int = self.socket.getsockname()[1]

    def send(self, data: bytes, peer: t.Tuple[str, int]) -> None:
        """Send through this interface and no other; :raises OSError: what the kernel says where it does not."""
        self.socket.sendmsg([data], [(socket.IPPROTO_IP, _IP_PKTINFO, self._from)], 0, peer)

    def receive(self) -> t.Iterator[Packet]:
        """What has come and is not yet read."""
        while True:
            try:
                data, words, _flags, peer = self.socket.recvmsg(_MOST, 128)
            except OSError:
                return
            interface = 0
            for level, kind, word in words:
                if level == socket.IPPROTO_IP and kind == _IP_PKTINFO:
                    interface = _PKTINFO.unpack_from(word)[0]
                elif level == socket.SOL_SOCKET and kind == _SO_RXQ_OVFL:
                    self.overrun = struct.unpack_from("=I", word)[0]
            yield Packet(data, peer, interface)

    def close(self) -> None:
        """Give it back."""
        self.socket.close()


def tcp(netdev: str, address: str) -> socket.socket:
    """A TCP socket that will call from this address, and from this interface where the process may say so; :raises OSError: as bind does."""
    caller = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        with contextlib.suppress(PermissionError):
            caller.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, netdev.encode() + b"\0")
        caller.bind((address, 0))
    except BaseException:
        caller.close()
        raise
    return caller


def listen(address: str, port: int, backlog: int = 128) -> socket.socket:
    """A socket that listens on that address only; :raises OSError: EADDRINUSE when another one does."""
    server = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        # With it only who listens counts as taking the port, and not a connection that has ended within the last minute.
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((address, port))
        server.listen(backlog)
    except BaseException:
        server.close()
        raise
    return server


Call = t.Tuple[str, str, str, int]
"""Interface, own address, the other's address and port."""


def connect(calls: t.Sequence[Call], patience: float) -> t.Dict[Call, str]:
    """How it goes with these connections, all tried at once: C(ok), C(refused), C(timeout), or else what the kernel says.

    Each is reset at once, so that neither end keeps the port busy for a minute (TIME_WAIT). :param patience: seconds in all.
    """
    found: t.Dict[Call, str] = {}
    waiting = list(dict.fromkeys(calls))
    begun = time.monotonic()
    turn = 0
    with selectors.DefaultSelector() as selector:
        try:
            while waiting and time.monotonic() < begun + patience:
                if time.monotonic() >= begun + turn * _AGAIN:
                    turn += 1
                    for call in waiting:
                        _try(selector, call, found)
                until = min(begun + patience, begun + turn * _AGAIN)
                for key, _events in selector.select(max(0.0, until - time.monotonic())):
                    caller = t.cast(socket.socket, key.fileobj)
                    _note(found, key.data, caller.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
                    selector.unregister(caller)
                    _reset(caller)
                waiting = [call for call in waiting if call not in found]
        finally:
            for key in list((selector.get_map() or {}).values()):
                _reset(t.cast(socket.socket, key.fileobj))
    return {call: found.get(call, "timeout") for call in calls}


def _try(selector: selectors.BaseSelector, call: Call, found: t.Dict[Call, str]) -> None:
    netdev, address, peer, port = call
    try:
        caller = tcp(netdev, address)
    except OSError as error:
        found[call] = str(error.strerror or error)
        return
    caller.setblocking(False)
    code = caller.connect_ex((peer, port))
    if code in _PENDING:
        selector.register(caller, selectors.EVENT_WRITE, call)
    else:
        _note(found, call, code)
        _reset(caller)


def _note(found: t.Dict[Call, str], call: Call, code: int) -> None:
    if code == 0 or call not in found:
        found[call] = _WORDS.get(code, os.strerror(code)) if code else "ok"


def _reset(caller: socket.socket) -> None:
    with contextlib.suppress(OSError):
        caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    caller.close()


def hardware(netdev: str, address: str, table: t.Optional[str] = None) -> t.Tuple[t.Optional[str], str]:
    """What the neighbour table holds for an address: its hardware address, and C(complete), C(incomplete) or C(none).

    :param table: the content of C(/proc/net/arp), "192.168.200.12  0x1  0x2  4a:..:01  *  enp1s0f0np0": flag 0x2 is set once the
        address has answered (Linux, ATF_COM of if_arp.h), and without it "00:00:00:00:00:00" stands there. Of InfiniBand's 20 bytes the kernel
        writes nine, "80:00:02:08:fe:80:00:00:00", which name nobody.
    """
    for line in (text("/proc/net/arp") if table is None else table).splitlines()[1:]:
        fields = line.split()
        if len(fields) >= 6 and fields[0] == address and fields[5] == netdev:
            whole = fields[3].lower() if len(fields[3]) == _ETHERNET else None
            return (whole, "complete") if int(fields[2], 16) & 2 else (None, "incomplete")
    return None, "none"
