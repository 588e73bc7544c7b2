# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""The part of the probe that listens: a small process of its own on the node, for seconds.

It listens on the fabric's addresses only, answers only who knows its one-time token, and ends when it is told, or at its deadline
when nobody is left to tell it.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import selectors
import socket
import threading
import time
import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils import _autostart_wire as wire
from ansible_collections.sparkstack.inference.plugins.module_utils import _detached
from ansible_collections.sparkstack.inference.plugins.module_utils import _fabric_probe_packet as packet
from ansible_collections.sparkstack.inference.plugins.module_utils._fabric_probe_rail import Udp, listen
from ansible_collections.sparkstack.inference.plugins.module_utils._fabric_probe_rate import CALL, ME, Sink, Talk
from ansible_collections.sparkstack.inference.plugins.module_utils._sockets import PROBE, listeners

_TURN = 0.1
"""Seconds from one look at the deadline to the next."""
_BACKLOG = 1024


class Count:
    """What came of one of the others' pairs of interfaces."""

    def __init__(self) -> None:
        self.numbers: t.Set[int] = set()
        self.largest = 0
        self.interfaces: t.Dict[int, int] = {}

    def add(self, found: packet.Probe, interface: int) -> None:
        """One packet more; one that comes a second time counts once."""
        if found.kind == packet.SIZE:
            self.largest = max(self.largest, found.size)
        else:
            self.numbers.add(found.number)
        self.interfaces[interface] = self.interfaces.get(interface, 0) + 1


class Listener:
    """What a node offers to the probes of the others."""

    def __init__(self, token: str, callers: t.Sequence[str], seconds: float) -> None:
        """
        :param token: made for this listener alone. :param callers: the addresses that may connect.
        :param seconds: after which it ends, unless the node itself says that it needs it for longer.
        """
        self.token, self.callers = token, callers
        self.until = time.monotonic() + seconds
        self._home = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._home.bind(home(token))
        self._home.listen(_BACKLOG)
        self._key = token.encode()
        self._counts: t.Dict[t.Tuple[int, int], Count] = {}
        self._udp: t.List[Udp] = []
        self._servers: t.List[socket.socket] = []
        self._launch: t.List[socket.socket] = []
        self._over = threading.Event()
        self.sink = Sink()

    def open_rail(self, netdev: str, address: str) -> t.Tuple[int, int]:
        """Listen on a rail: the UDP port and the TCP port for what has to be agreed on; :raises OSError: when it is not there."""
        udp = Udp(netdev, address)
        try:
            server = listen(address, 0)
        except BaseException:
            udp.close()
            raise
        self._udp.append(udp)
        self._servers.append(server)
        return udp.port, int(server.getsockname()[1])

    def open_ports(self, addresses: t.Sequence[str], ports: t.Sequence[int]) -> t.Dict[str, t.Any]:
        """Listen on the launch's ports, where nobody else does.

        :returns: C(bound), C(in_use) (see M(_sockets).listeners) and C(unbound), those that could not be tried, each with its C(error).
        """
        found: t.Dict[str, t.Any] = {"bound": [], "in_use": [], "unbound": []}
        taken = []
        for port in dict.fromkeys(ports):
            opened: t.List[socket.socket] = []
            try:
                for address in addresses:
                    opened.append(listen(address, port, _BACKLOG))
            except OSError as error:
                for server in opened:
                    server.close()
                if error.errno == errno.EADDRINUSE:
                    taken.append(port)
                else:
                    found["unbound"].append({"port": port, "error": str(error.strerror or error)})
                continue
            # Nothing is accepted: that a connection comes about is all that a peer wants to know.
            self._launch += opened
            found["bound"].append(port)
        known = {entry["port"]: entry for entry in listeners(taken)}
        nobody = {"pid": None, "process": None, "container": None}
        found["in_use"] = [known.get(port, {"port": port, **nobody}) for port in taken]
        return found

    def run(self) -> None:
        """Answer until it is told to end, or the time is over."""
        for server in self._servers:
            arguments = (server, self.callers, self._greet, self._talk, lambda _address, _why: None)
            threading.Thread(target=wire.serve, args=arguments, daemon=True).start()
        with selectors.DefaultSelector() as selector:
            for udp in self._udp:
                selector.register(udp.socket, selectors.EVENT_READ, udp)
            # Not before: it may be told to end at once, and what is closed can't be registered.
            threading.Thread(target=self._serve_home, daemon=True).start()
            while not self._over.is_set() and time.monotonic() < self.until:
                for key, _events in selector.select(_TURN):
                    self._answer(key.data)
        self.close()

    def close(self) -> None:
        """Give all ports back."""
        for server in [self._home, *self._launch, *self._servers]:
            # As long as a thread waits in accept(2), the kernel keeps a socket that was only closed.
            with contextlib.suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)
            server.close()
        for udp in self._udp:
            udp.close()

    def files(self) -> t.Set[int]:
        """The numbers of its open files."""
        return {entry.fileno() for entry in [self._home, *self._launch, *self._servers]} | {udp.socket.fileno() for udp in self._udp}

    def counts(self) -> t.Dict[str, t.Any]:
        """What came: a list of C(source), C(row), C(received), C(largest) (bytes) and C(interfaces) (packets by the interface they came in by)."""
        rows = []
        for (source, row), count in sorted(dict(self._counts).items()):
            names = {_name(index): number for index, number in sorted(dict(count.interfaces).items())}
            rows.append({"source": source, "row": row, "received": len(count.numbers), "largest": count.largest, "interfaces": names})
        return {"counts": rows, "overrun": {udp.address: udp.overrun for udp in self._udp}}

    def _answer(self, udp: Udp) -> None:
        for came in udp.receive():
            now = time.time()
            found = packet.read_probe(self._key, came.data)
            if found is None:
                continue
            self._counts.setdefault((found.source, found.row), Count()).add(found, came.interface)
            # No way back: that shows with the peer, whose answers are missing.
            with contextlib.suppress(OSError):
                udp.send(packet.echo(self._key, found, now, time.time()), came.peer)

    def _greet(self, connection: socket.socket) -> wire.Channel:
        return Talk(connection, self.token, True)

    def _talk(self, channel: wire.Channel) -> None:
        while self.sink.serve(t.cast(Talk, channel), channel.receive()):
            pass

    def _serve_home(self) -> None:
        """Answer this node's own modules, one after the other: they alone may say how long it lives."""
        while not self._over.is_set():
            try:
                connection, _address = self._home.accept()
            except OSError:
                return
            with contextlib.suppress(wire.WireError), contextlib.closing(Talk(connection, self.token, True)) as channel:
                while True:
                    message = channel.receive()
                    if message.get("do") == "end":
                        # The ports are free before the task goes on.
                        self.close()
                        channel.send(self.counts())
                        self._over.set()
                        break
                    if message.get("do") == "stay":
                        self.until = time.monotonic() + float(message["seconds"])
                        channel.send({})
                    elif not self.sink.serve(channel, message):
                        break


def home(token: str) -> str:
    """Where this node's own modules find the listener: a socket in the abstract namespace (unix(7)), which no firewall has a say in."""
    return "\0fabric-probe-" + hashlib.sha256(token.encode()).hexdigest()[:32]


def own(token: str) -> Talk:
    """A connection to this node's listener; :raises WireError: when it is gone."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(CALL)
        connection.connect(home(token))
        return Talk(connection, token, False, ME)
    except OSError as error:
        connection.close()
        raise wire.WireError("this node's listener is gone: {0}".format(error.strerror or error)) from error
    except BaseException:
        connection.close()
        raise


def start(listener: Listener) -> None:
    """Have the listener run in a process of its own, which outlives this one."""
    _detached.run(PROBE, listener.files, listener.run)


def _name(index: int) -> str:
    try:
        return socket.if_indextoname(index)
    except OSError:
        return str(index)
