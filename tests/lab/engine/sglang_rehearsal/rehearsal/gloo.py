# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The connections between all ranks over the interface of GLOO_SOCKET_IFNAME, and collectives over them.

A collective waits for ever for a peer that is frozen or behind a cut cable, and fails at once when a peer's process ends.
"""

import os
import socket
import time
import typing as t

from . import net
from .rendezvous import Store

_PAIR = "/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc"


def own_address() -> str:
    """The address that this rank gives to the others: of the named interface, else what its host name means.

    Raises RuntimeError when there is no such interface.
    """
    interface = (os.environ.get("GLOO_SOCKET_IFNAME") or "").partition(",")[0]
    if interface:
        address = net.address_of(interface)
        if address is None:
            raise RuntimeError(
                f"[enforce fail at /pytorch/third_party/gloo/gloo/transport/tcp/device.cc:84] ifa != nullptr. Unable to find address for: {interface}"
            )
        return address
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return "127.0.0.1"


class Group:
    """All ranks, connected with each other."""

    def __init__(self, rank: int, wires: dict[int, net.Wire]) -> None:
        self.rank, self.wires = rank, wires

    def receive(self, rank: int) -> t.Any:
        """The next value from a rank; raises RuntimeError when its process is gone."""
        wire = self.wires[rank]
        try:
            return wire.receive()
        except net.Gone as error:
            raise self._lost(wire, error) from error

    def send(self, rank: int, value: t.Any) -> None:
        """Send a value to a rank; raises RuntimeError when its process is gone."""
        try:
            self.wires[rank].send(value)
        except net.Gone as error:
            raise self._lost(self.wires[rank], error) from error

    @staticmethod
    def _lost(wire: net.Wire, error: net.Gone) -> RuntimeError:
        peer = f"[{wire.peer[0]}]:{wire.peer[1]}"
        if error.reset:
            return RuntimeError(f"[{_PAIR}:538] Read error {peer}: Connection reset by peer")
        return RuntimeError(f"[{_PAIR}:553] Connection closed by peer {peer}")

    def all_gather(self, value: t.Any = None) -> list[t.Any]:
        """Everybody's value in the order of the ranks; all wait for all, so it is a barrier too."""
        for rank in self.wires:
            self.send(rank, value)
        found = {rank: self.receive(rank) for rank in self.wires}
        return [value if rank == self.rank else found[rank] for rank in range(len(found) + 1)]

    def broadcast(self, value: t.Any = None) -> t.Any:
        """Rank 0's value, for all."""
        if self.rank:
            return self.receive(0)
        for rank in self.wires:
            self.send(rank, value)
        return value


def _connect(address: str, port: int) -> socket.socket:
    problem = "Connection timed out"
    for _attempt in range(5):
        try:
            return socket.create_connection((address, port), timeout=10)
        except OSError as error:
            problem = os.strerror(error.errno) if error.errno else problem
        time.sleep(0.2)
    raise RuntimeError(f"Gloo connectFullMesh failed with [{_PAIR}:144] timed out connecting: SO_ERROR: {problem}, remote=[{address}]:{port}")


def connect_full_mesh(store: Store, rank: int) -> Group:
    """Connect with all others: of two ranks the one with the greater address dials, the other waits for it in silence."""
    address = own_address()
    server = net.listen(address, 0)
    addresses = store.exchange([address, server.getsockname()[1]])
    place = {other: (socket.inet_aton(where), port) for other, (where, port) in addresses.items()}
    wires = {}
    for other in sorted(addresses):
        if place[other] < place[rank]:
            wires[other] = net.Wire(_connect(*addresses[other]))
            wires[other].send(rank)
    while len(wires) < len(addresses) - 1:
        wire = net.Wire(server.accept()[0])
        try:
            wires[int(wire.receive(5))] = wire
        except (net.Gone, TimeoutError, ValueError, TypeError):
            wire.close()
    server.close()
    return Group(rank, wires)
