# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""Who listens on a port, read from /proc: a connection to a rendezvous port would eat an accept."""

from __future__ import annotations

import errno
import os
import re
import socket
import typing as t

_LISTEN = "0A"
_SOCKET = re.compile(r"^socket:\[(\d+)\]$")
_CONTAINER = re.compile(r"([0-9a-f]{64})")


def parse(text: str, ports: t.Iterable[int]) -> t.Dict[str, int]:
    """The listening sockets on some ports, as C({inode: port}).

    :param text: the content of C(/proc/net/tcp) or C(/proc/net/tcp6), whose lines read
        C(0: 00000000:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 12345 1 ...): the second field's
        part after the colon is the local port in hexadecimal, the fourth the state (0A is LISTEN), the tenth the inode.
        Source: Linux, Documentation/networking/proc_net_tcp.
    """
    wanted = set(ports)
    found: t.Dict[str, int] = {}
    for line in text.splitlines()[1:]:
        fields = line.split()
        if len(fields) < 10 or fields[3] != _LISTEN:
            continue
        port = int(fields[1].rpartition(":")[2], 16)
        if port in wanted:
            found[fields[9]] = port
    return found


def listeners(ports: t.Sequence[int], proc: str = "/proc") -> t.List[t.Dict[str, t.Any]]:
    """Who listens on these ports: C(port), and C(pid), C(process), C(container) (id) where they can be seen.

    :param proc: the folder of the proc file system; another one is for tests.
    """
    sockets: t.Dict[str, int] = {}
    for table in ("tcp", "tcp6"):
        text = _read(os.path.join(proc, "net", table))
        if text:
            sockets.update(parse(text, ports))
    found: t.Dict[int, t.Dict[str, t.Any]] = {port: {"port": port, "pid": None, "process": None, "container": None} for port in sockets.values()}
    if not sockets:
        return []
    for pid in os.listdir(proc):
        if not pid.isdigit():
            continue
        for inode in _sockets(os.path.join(proc, pid, "fd")):
            if inode in sockets:
                entry = found[sockets[inode]]
                if entry["pid"] is None:
                    container = _CONTAINER.search(_read(os.path.join(proc, pid, "cgroup")))
                    entry["pid"] = int(pid)
                    entry["process"] = _read(os.path.join(proc, pid, "comm")).strip()
                    entry["container"] = container.group(1) if container else None
    return [found[port] for port in sorted(found)]


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


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read()
    except OSError:
        # A process may end while it is looked at.
        return ""


def _sockets(folder: str) -> t.Iterator[str]:
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
