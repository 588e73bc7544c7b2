# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The store on --dist-init-addr: rank 0 listens, the others dial until it is there. Then each learns all ranks' addresses."""

import contextlib
import errno
import os
import select
import socket
import time
import typing as t

from . import faults, journal, net

DEFAULT_TIMEOUT = 600
_NO_WAY = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EADDRNOTAVAIL, errno.EINVAL)
_LOST = "Failed to recv, got 0 bytes. Connection was likely closed. Did the remote server shutdown or crash?"


class Store:
    """Rank 0's connections to all others, or another rank's connection to rank 0 (as wires[0])."""

    def __init__(self, rank: int, world: int, timeout: int, wires: dict[int, net.Wire]) -> None:
        self.rank, self.world, self.timeout, self.wires = rank, world, timeout, wires

    def exchange(self, value: t.Any) -> dict[int, t.Any]:
        """Give a value, get everybody's by rank. Who never gives its own is waited for, silently, until the time is over."""
        if self.rank:
            try:
                self.wires[0].send([self.rank, value])
                return {int(rank): found for rank, found in self.wires[0].receive().items()}
            except net.Gone as error:
                raise faults.DistNetworkError(_LOST) from error
        found, waiting = {0: value}, dict(self.wires)
        deadline = time.monotonic() + self.timeout
        while len(found) < self.world:
            ready = select.select(list(waiting.values()), [], [], max(0, deadline - time.monotonic()))[0]
            if not ready and time.monotonic() >= deadline:
                raise faults.DistStoreError(f"wait timeout after {self.timeout * 1000}ms, keys: /default_pg/0//{len(found)}//cpu//rank_address")
            for wire in ready:
                try:
                    rank, given = wire.receive()
                    found[rank] = given
                except net.Gone:
                    pass  # its process has ended; the store does not tell rank 0
                waiting = {rank: other for rank, other in waiting.items() if other is not wire}
        for wire in self.wires.values():
            with contextlib.suppress(net.Gone):
                wire.send(found)
        return found


def meet(host: str, port: int, rank: int, world: int, timeout: int) -> Store:
    """Rank 0 waits for all others, these dial it; returns when all are there. Raises DistStoreError, DistNetworkError."""
    if rank == 0:
        return Store(0, world, timeout, _host(port, world, timeout))
    return Store(rank, world, timeout, {0: _join(host, port, rank, world, timeout)})


def _host(port: int, world: int, timeout: int) -> dict[int, net.Wire]:
    try:
        server = net.listen("0.0.0.0", port)
    except OSError as error:
        raise faults.DistNetworkError(
            f"The server socket has failed to listen on any local network address. port: {port}, useIpv6: false, code: -{error.errno}, "
            f"name: {errno.errorcode[error.errno or 0]}, message: {os.strerror(error.errno or 0).lower()}"
        ) from error
    joined: dict[int, net.Wire] = {}
    deadline = time.monotonic() + timeout
    while len(joined) < world - 1:
        server.settimeout(max(0.01, deadline - time.monotonic()))
        try:
            wire = net.Wire(server.accept()[0])
            rank, there = wire.receive(5)  # whoever connects and is no rank says nothing
            wire.send("joined")
        except (TimeoutError, net.Gone, ValueError, TypeError, OSError):
            if time.monotonic() >= deadline:
                text = f"Timed out after {timeout + 1} seconds waiting for clients. {len(joined) + 1}/{world} clients joined."
                raise faults.DistStoreError(text) from None
            continue
        if there == world:
            joined[rank] = wire
    for wire in joined.values():
        with contextlib.suppress(net.Gone):
            wire.send("go")
    _KEPT.append(server)
    return joined


_KEPT: list[socket.socket] = []
"""The listening socket lives as long as its process."""


def _join(host: str, port: int, rank: int, world: int, timeout: int) -> net.Wire:
    begin, attempt = time.monotonic(), 0
    while True:
        try:
            wire = _dial(host, port, timeout)
            wire.send([rank, world])
            wire.receive()
        except (faults.DistNetworkError, net.Gone) as error:
            # A route that is missing is tried again until the time is over, a silence that took all of it once more.
            over = time.monotonic() - begin > timeout * (1.5 if "timed out" in str(error) else 1)
            word, line, delay = ("timed out", 328, "") if over else ("retrying", 340, ", delay=499ms")
            text = f"TCP client failed to connect/validate to host {host}:{port} - {word} (try={attempt}, timeout={timeout * 1000}ms{delay}): {error}"
            journal.c10d("E" if over else "W", f"TCPStore.cpp:{line}", text)
            if over:
                raise faults.DistNetworkError(str(error)) from None
            attempt += 1
            time.sleep(0.5)
            continue
        try:
            wire.receive()
        except net.Gone as error:
            raise faults.DistNetworkError(_LOST) from error
        return wire


def _dial(host: str, port: int, timeout: int) -> net.Wire:
    """Connect; who is refused tries again in silence. Raises DistNetworkError when there is no way or the time is over."""
    begin, delay = time.monotonic(), 0.25
    while True:
        left = timeout - (time.monotonic() - begin)
        try:
            return net.Wire(socket.create_connection((host, port), timeout=max(0.1, left)))
        except OSError as error:
            if error.errno in _NO_WAY:
                reason = f"(errno: {error.errno} - {os.strerror(error.errno or 0)})."
                journal.c10d("W", "socket.cpp:764", f"The client socket has failed to connect to {host}:{port} {reason}")
                text = f"The client socket has failed to connect to any network address of ({host}, {port})."
                journal.c10d("E", "socket.cpp:818", text)
                if error.errno != errno.EHOSTUNREACH:
                    time.sleep(2.5)  # the kernel answers at once here; an address that nobody has takes it three seconds
                raise faults.DistNetworkError(f"{text} The client socket has failed to connect to {host}:{port} {reason}") from None
        # The next wait must not pass the limit, else it gives up now.
        delay = min(delay * 1.5, 3)
        if time.monotonic() - begin + delay > timeout:
            text = f"The client socket has timed out after {timeout * 1000}ms while trying to connect to ({host}, {port})."
            journal.c10d("E", "socket.cpp:1028", text)
            raise faults.DistNetworkError(text)
        time.sleep(delay)
