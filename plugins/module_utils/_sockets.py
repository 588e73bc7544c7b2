# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""Who listens on a port and who talks to it, read from /proc: a connection to a rendezvous port would eat an accept."""

from __future__ import annotations

import errno
import ipaddress
import os
import re
import socket
import struct
import time
import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils import _cgroup
from ansible_collections.sparkstack.inference.plugins.module_utils._files import text

ESTABLISHED, SYN_SENT, LISTEN = 1, 2, 10
"""States that a socket can be in (include/net/tcp_states.h)."""
_SOCKET = re.compile(r"^socket:\[(\d+)\]$")
ANY = ("0.0.0.0", "::")
"""To listen on one of these is to listen on all of the node's own."""
PROBE = "fabric-probe"
"""What the listener of M(sparkstack.inference.fabric_probe) calls itself."""
_PATIENCE = 100.0
"""Seconds within which the listener of a probe that was cut off ends by itself; one at work needs fewer."""


class Socket(t.NamedTuple):
    """A TCP socket; addresses as text, those of IPv4 in that form also where IPv6 maps them."""

    address: str
    port: int
    peer: str
    peer_port: int
    state: int
    inode: str


def parse(table: str, ports: t.Collection[int]) -> t.List[Socket]:
    """The sockets of C(/proc/net/tcp) or C(/proc/net/tcp6) that have one of these ports on either side.

    A line reads C(0: 0BC8A8C0:733D 0CC8A8C0:C350 01 00000000:00000000 00:00000000 00000000 0 0 12345 1 ...): local and peer's
    address (32-bit words in the machine's byte order) with the port, all hexadecimal, the state, and as the tenth field the inode.
    Source: Linux, Documentation/networking/proc_net_tcp.
    """
    found = []
    marks = {"{0:04X}".format(port) for port in ports}
    for line in table.splitlines()[1:]:
        fields = line.split()
        if len(fields) >= 10 and not marks.isdisjoint((fields[1][-4:], fields[2][-4:])):
            (address, port), (peer, peer_port) = _endpoint(fields[1]), _endpoint(fields[2])
            found.append(Socket(address, port, peer, peer_port, int(fields[3], 16), fields[9]))
    return found


def _endpoint(field: str) -> t.Tuple[str, int]:
    digits, _colon, port = field.partition(":")
    words = [int(digits[place : place + 8], 16) for place in range(0, len(digits), 8)]
    packed = struct.pack("={0}I".format(len(words)), *words)
    if len(packed) == 4:
        return socket.inet_ntoa(packed), int(port, 16)
    address = ipaddress.IPv6Address(packed)
    # "0000000000000000FFFF00000BC8A8C0" is ::ffff:192.168.200.11: a socket of both families, with a peer of IPv4.
    return str(address.ipv4_mapped or address), int(port, 16)


def sockets(ports: t.Collection[int], process: str = "self", proc: str = "/proc") -> t.List[Socket]:
    """The TCP sockets in a process's network namespace that have one of these ports on either side."""
    folder = os.path.join(proc, process, "net")
    return [entry for table in ("tcp", "tcp6") for entry in parse(text(os.path.join(folder, table)), ports)]


def readable(process: str, proc: str = "/proc") -> bool:
    """Whether a process's sockets can be read: without root's rights other users' processes may be hidden (proc(5), C(hidepid))."""
    return os.access(os.path.join(proc, process, "net", "tcp"), os.R_OK)


def listeners(ports: t.Sequence[int], proc: str = "/proc") -> t.List[t.Dict[str, t.Any]]:
    """Who listens on these ports of the node: C(port), and C(pid), C(process), C(container) (id) where they can be seen.

    :param proc: the folder of the proc file system; another one is for tests.
    """
    listening = {entry.inode: entry.port for entry in sockets(ports, proc=proc) if entry.state == LISTEN and entry.port in ports} if ports else {}
    found: t.Dict[int, t.Dict[str, t.Any]] = {port: {"port": port, "pid": None, "process": None, "container": None} for port in listening.values()}
    for inode, owner in owners(set(listening), proc).items():
        if found[listening[inode]]["pid"] is None:
            found[listening[inode]].update(owner)
    return [found[port] for port in sorted(found)]


def probing(listener: t.Mapping[str, t.Any]) -> bool:
    """Whether one that :func:`listeners` tells of is a preflight's, which ends by itself."""
    return listener.get("process") == PROBE and not listener.get("container")


def settled(ports: t.Sequence[int], proc: str = "/proc", patience: float = _PATIENCE) -> t.List[t.Dict[str, t.Any]]:
    """As :func:`listeners`, once no preflight listens there: one of those is at work and soon over, or was cut off and ends by itself.

    :param patience: seconds after which one that still listens is told.
    """
    deadline = time.monotonic() + patience
    while True:
        found = listeners(ports, proc)
        if not any(probing(entry) for entry in found) or time.monotonic() >= deadline:
            return found
        time.sleep(0.5)


def owners(inodes: t.Set[str], proc: str = "/proc", first: t.Sequence[int] = ()) -> t.Dict[str, t.Dict[str, t.Any]]:
    """The processes that hold these sockets, by inode: C(pid), C(process) (its name), C(container) (id or None).

    :param first: processes to look at before all others, which are looked at only for what these don't hold.
    """
    found: t.Dict[str, t.Dict[str, t.Any]] = {}
    wanted = set(inodes)
    seen = [str(pid) for pid in first]
    for pids in (seen, None):
        if not wanted:
            break
        for pid in pids if pids is not None else sorted((name for name in os.listdir(proc) if name.isdigit() and name not in seen), key=int):
            for inode in wanted.intersection(_held(os.path.join(proc, pid, "fd"))):
                wanted.discard(inode)
                found[inode] = {
                    "pid": int(pid),
                    "process": text(os.path.join(proc, pid, "comm")).strip(),
                    "container": _cgroup.container_in(text(os.path.join(proc, pid, "cgroup"))),
                }
            if not wanted:
                break
    return found


def _held(folder: str) -> t.Iterator[str]:
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for name in names:
        try:
            match = _SOCKET.match(os.readlink(os.path.join(folder, name)))
        except OSError:
            continue
        if match:
            yield match.group(1)


def split(rendezvous: str) -> t.Tuple[str, t.Optional[int]]:
    """The host and the port of "192.168.200.11:29501", "[fd00::1]:29501" or "spark1:25000"; the port is None where there is none."""
    host, colon, port = rendezvous.rpartition(":")
    if not colon or not port.isdigit() or (":" in host and not host.endswith("]")):
        return rendezvous.strip("[]"), None
    return host.strip("[]"), int(port)


def around(entries: t.Sequence[Socket], host: t.Optional[str], port: int) -> t.Tuple[t.List[str], t.List[str], t.List[str]]:
    """Who has to do with a rendezvous: inodes of its listeners, addresses connected to it, addresses that are being dialled.

    :param host: the rendezvous' address, or None where only its port is known.
    """
    listening, connected, dialing = [], set(), set()
    for entry in entries:
        if entry.state == LISTEN:
            if entry.port == port and (host is None or entry.address in (host, *ANY)):
                listening.append(entry.inode)
            continue
        outward = entry.peer_port == port and host in (None, entry.peer)
        if entry.state == SYN_SENT and outward:
            dialing.add(entry.peer)
        # The head's rank 0 is a client of its own store: that is no peer.
        elif entry.state == ESTABLISHED and entry.peer != entry.address and (outward or entry.port == port):
            connected.add(entry.peer)
    return listening, sorted(connected), sorted(dialing)


def is_own(address: str) -> bool:
    """Whether a program on this node can listen on an address: it is one of the node's own, or stands for all of them.

    A socket is bound to a port that the kernel chooses, and closed again; nothing is listened on.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((address, 0))
    except socket.gaierror:
        return False
    except OSError as error:
        return error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
    return True
