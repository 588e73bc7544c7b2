# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""The rails of a node: which network interface goes with which RDMA device, and which of them carry the fabric.

Pure. On a Spark one cable shows as two rails, one for each of the port's two PCI functions (the twins).
"""

from __future__ import annotations

import ipaddress
import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils._fabric_read import Addresses, HcaPort, Netdev


class Rail(t.NamedTuple):
    """A network interface that carries the fabric or has an RDMA device, with that device's port (or None)."""

    netdev: Netdev
    port: t.Optional[HcaPort]
    address: t.Optional[ipaddress.IPv4Interface]

    @property
    def up(self) -> bool:
        """Whether the interface is up and the RDMA port, where there is one, is ACTIVE."""
        return self.netdev.up and (self.port is None or self.port.state == "ACTIVE")

    @property
    def subnet(self) -> t.Optional[ipaddress.IPv4Network]:
        """The subnet of its address."""
        return self.address.network if self.address else None

    @property
    def ip(self) -> str:
        """Its address as text, empty when it has none."""
        return str(self.address.ip) if self.address else ""

    @property
    def hca(self) -> str:
        """Its device's name as NCCL takes it, with the port where the device has several; empty without a device."""
        return self.port.name if self.port else ""

    @property
    def gid_index(self) -> t.Optional[int]:
        """Where the GID table holds this rail's IPv4 address for RoCE v2; None when it doesn't."""
        if self.port is None or self.address is None:
            return None
        ip = self.address.ip
        return next((gid.index for gid in self.port.gids if gid.roce_v2 and gid.ipv4 == ip), None)

    @property
    def rdma(self) -> bool:
        """Whether NCCL can use RDMA here: an ACTIVE port, and on Ethernet a RoCE v2 GID of the address."""
        return self.port is not None and self.up and (self.gid_index is not None or not self.port.ethernet)

    def fact(self, used: bool = False, twin: t.Optional[str] = None) -> t.Dict[str, t.Any]:
        """The keys that RV(ansible_facts.fabric.rails) has. MTUs in bytes, speed in Mbit/s.

        :param used: whether traffic goes over it. :param twin: the interface of the port's other half, where there is one.
        """
        netdev, port = self.netdev, self.port
        pci = netdev.pci or (port.pci if port else None)
        return {
            "netdev": netdev.name,
            "kind": netdev.kind,
            "members": list(netdev.members),
            "hca": port.hca if port else None,
            "port": port.port if port else None,
            "link_layer": None if port is None else "ethernet" if port.ethernet else "infiniband",
            "address": self.ip or None,
            "prefix": self.address.network.prefixlen if self.address else None,
            "mac": netdev.mac,
            "mtu": netdev.mtu,
            "active_mtu": active_mtu(netdev.mtu) if port and port.ethernet else None,
            "speed_mbps": netdev.speed_mbps,
            "carrier": netdev.carrier,
            "state": "up" if self.up else "down",
            "gid_index": self.gid_index,
            "pci": ":".join(pci) if pci else None,
            "twin": twin,
            "driver": port.driver if port else None,
            "driver_version": port.driver_version if port else None,
            "firmware": port.firmware if port else None,
            "board": port.board if port else None,
            "used": used,
        }


def active_mtu(mtu: int) -> int:
    """The RDMA MTU that the kernel gives a RoCE port on a link of this MTU, both in bytes.

    sysfs doesn't hold it. The kernel takes the largest RDMA MTU that fits with 96 bytes of headers (GRH, UDP, BTH,
    extended headers, ICRC): 9000 makes 4096, 1500 makes 1024. Source: iboe_get_mtu() in include/rdma/ib_addr.h.
    """
    return next((size for size in (4096, 2048, 1024, 512, 256) if mtu - 96 >= size), 0)


def build_rails(
    netdevs: t.Mapping[str, Netdev],
    ports: t.Sequence[HcaPort],
    addresses: Addresses,
    network: ipaddress.IPv4Network,
    forced: t.Optional[ipaddress.IPv4Address] = None,
) -> t.List[Rail]:
    """All rails: each RDMA port with its interface, then the interfaces that carry the fabric without one.

    A rail bears the forced address when it has it, else its address inside the network, else its first one.
    """

    def address(name: str) -> t.Optional[ipaddress.IPv4Interface]:
        return min(addresses.get(name, []), key=rank, default=None)

    def rank(interface: ipaddress.IPv4Interface) -> int:
        return 0 if interface.ip == forced else 1 if interface.ip in network else 2

    rails = []
    for port in ports:
        # A VLAN or a bond stands in the GID table beside the interface itself: the one with the address counts.
        known = [name for name in port.netdevs if name in netdevs]
        if known:
            chosen = min(known, key=lambda name: min(map(rank, addresses.get(name, [])), default=3))
            rails.append(Rail(netdevs[chosen], port, address(chosen)))
    covered = {rail.netdev.name for rail in rails}
    for name, netdev in netdevs.items():
        if name not in covered and any(rank(interface) < 2 for interface in addresses.get(name, [])):
            rails.append(Rail(netdev, None, address(name)))
    return rails


def are_twins(one: Rail, other: Rail) -> bool:
    """Whether two rails are the two PCI functions of one physical port.

    On a GB10 those are 0000:01:00.0 and 0002:01:00.0: all but the PCI domain is equal, and both bear the card's
    sys_image_guid (fc4c:ea03:00f9:4230 on all four devices, while their node GUIDs differ).
    """
    if one.port is None or other.port is None or one.port.hca == other.port.hca:
        return False
    if one.port.guid and other.port.guid and one.port.guid != other.port.guid:
        return False
    first, second = one.netdev.pci or one.port.pci, other.netdev.pci or other.port.pci
    return bool(first and second and first[1] == second[1] and first[0] != second[0])


def candidates(rails: t.Sequence[Rail], network: ipaddress.IPv4Network, forced: t.Optional[ipaddress.IPv4Address] = None) -> t.List[Rail]:
    """The rails that may give the node its address on the fabric, best first; empty when there is none.

    Links that are up come first, then those with RDMA, then the lowest subnet: so all nodes agree when the network
    holds several rails.
    """
    fitting = [
        (not rail.up, rail.port is None, rail.address, rail)
        for rail in rails
        if rail.address and (rail.address.ip == forced if forced else rail.address.ip in network)
    ]
    return [rail for *_order, rail in sorted(fitting, key=lambda item: item[:3])]


def twin_of(rail: Rail, rails: t.Sequence[Rail]) -> t.Optional[Rail]:
    """The other half of a rail's port, or None."""
    return next((other for other in rails if are_twins(other, rail)), None)


def used_rails(rails: t.Sequence[Rail], chosen: Rail, network: ipaddress.IPv4Network, without: t.Container[str] = ()) -> t.List[Rail]:
    """The rails that traffic should go over: the chosen one, its twin, and the others inside the network.

    Two rails in one subnet are a known fault (answers leave by the wrong one), so only the first in each subnet counts.
    A link that is up is no reason to use it: its cable may lead elsewhere (a twin's leads where its sibling's does).

    :param without: interfaces that are left out, since no other node is behind them.
    """
    used = [chosen]
    fitting = [rail for rail in rails if are_twins(rail, chosen)]
    fitting += [rail for rail in rails if rail.address and rail.address.ip in network]
    fitting += [rail for rail in rails if any(are_twins(rail, other) for other in fitting)]
    for rail in fitting:
        taken = any(rail.netdev.name == other.netdev.name or rail.subnet == other.subnet for other in used)
        if rail.up and rail.address and not taken and rail.netdev.name not in without:
            used.append(rail)
    return used[:1] + sorted(used[1:], key=lambda rail: int(rail.address.ip) if rail.address else 0)


def control_rail(netdevs: t.Mapping[str, Netdev], addresses: Addresses, address: ipaddress.IPv4Address) -> t.Optional[Rail]:
    """The interface that has an address which is no rail's, as a rail without RDMA; None when no interface has it.

    Sockets go over it; RDMA goes over the fabric's rails, so it has none here even where its interface has a device.
    """
    for name, own in addresses.items():
        found = next((interface for interface in own if interface.ip == address), None)
        if found and name in netdevs:
            return Rail(netdevs[name], None, found)
    return None
