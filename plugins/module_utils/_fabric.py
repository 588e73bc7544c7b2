# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""The rails of a node: which network interface goes with which RDMA device, and which of them carry the fabric.

Pure over a root folder: it reads <root>/sys and takes the addresses as the text of C(ip -json addr), since sysfs has
none. On a Spark one cable shows as two rails, one for each of the port's two PCI functions (the twins).
"""

from __future__ import annotations

import dataclasses
import ipaddress
import json
import os
import re
import typing as t

_PCI = re.compile(r"^([0-9a-f]{4,}):([0-9a-f]{2}:[0-9a-f]{2}\.[0-7])$")
_EMPTY_GUID = "0000:0000:0000:0000"


class FabricError(Exception):
    """What was asked for makes no sense, or a tool's answer can't be read; the message says what to do."""


class Netdev(t.NamedTuple):
    """A network interface: MTU in bytes, speed in Mbit/s or None, PCI address as (domain, bus:device.function)."""

    name: str
    mtu: int
    speed_mbps: t.Optional[int]
    up: bool
    pci: t.Optional[t.Tuple[str, str]]


@dataclasses.dataclass(frozen=True)
class Gid:
    """An entry of a port's GID table; C(ipv4) is the address that is mapped into it, if any."""

    index: int
    ipv4: t.Optional[ipaddress.IPv4Address]
    roce_v2: bool


class HcaPort(t.NamedTuple):
    """A port of an RDMA device. C(state) is the kernel's word, such as ACTIVE or DOWN."""

    hca: str
    port: int
    ports: int
    netdevs: t.Tuple[str, ...]
    state: str
    ethernet: bool
    guid: t.Optional[str]
    pci: t.Optional[t.Tuple[str, str]]
    gids: t.Tuple[Gid, ...]


Addresses = t.Dict[str, t.List[ipaddress.IPv4Interface]]


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
        if self.port is None:
            return ""
        return self.port.hca if self.port.ports == 1 else f"{self.port.hca}:{self.port.port}"

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

    def fact(self) -> t.Dict[str, t.Any]:
        """The keys that RV(ansible_facts.fabric.rails) has. MTUs in bytes, speed in Mbit/s."""
        return {
            "netdev": self.netdev.name,
            "hca": self.port.hca if self.port else None,
            "port": self.port.port if self.port else None,
            "address": self.ip or None,
            "prefix": self.address.network.prefixlen if self.address else None,
            "mtu": self.netdev.mtu,
            "active_mtu": active_mtu(self.netdev.mtu) if self.port and self.port.ethernet else None,
            "speed_mbps": self.netdev.speed_mbps,
            "state": "up" if self.up else "down",
            "gid_index": self.gid_index,
        }


def active_mtu(mtu: int) -> int:
    """The RDMA MTU that the kernel gives a RoCE port on a link of this MTU, both in bytes.

    sysfs doesn't hold it. The kernel takes the largest RDMA MTU that fits with 96 bytes of headers (GRH, UDP, BTH,
    extended headers, ICRC): 9000 makes 4096, 1500 makes 1024. Source: iboe_get_mtu() in include/rdma/ib_addr.h.
    """
    return next((size for size in (4096, 2048, 1024, 512, 256) if mtu - 96 >= size), 0)


def parse_addresses(text: str) -> Addresses:
    """The IPv4 addresses of C(ip -json addr) by interface, in the kernel's order.

    :raises FabricError: when the text is no JSON list.
    """
    try:
        links = json.loads(text or "[]")
    except ValueError:
        links = None
    if not isinstance(links, list):
        raise FabricError("'ip -json addr' gave no JSON list: install iproute2 4.13 or newer on the node.")
    found: Addresses = {}
    for link in links:
        # Old versions write an empty object for each interface that a filter left out.
        for info in (link or {}).get("addr_info") or []:
            if info.get("family") == "inet" and "local" in info:
                interface = ipaddress.IPv4Interface("{}/{}".format(info["local"], info.get("prefixlen", 32)))
                found.setdefault(link["ifname"], []).append(interface)
    return found


def has_ipv6_only(text: str, netdevs: t.Container[str]) -> bool:
    """Whether one of the interfaces has a routable IPv6 address and no IPv4 address (C(ip -json addr))."""
    for link in json.loads(text or "[]"):
        infos = (link or {}).get("addr_info") or []
        families = {info.get("family") for info in infos if info.get("scope") == "global"}
        if (link or {}).get("ifname") in netdevs and families == {"inet6"}:
            return True
    return False


def read_netdevs(root: str) -> t.Dict[str, Netdev]:
    """The interfaces in <root>/sys/class/net, but for the loopback."""
    base = os.path.join(root, "sys/class/net")
    found = {}
    for name in _names(base):
        path = os.path.join(base, name)
        mtu = _read(path, "mtu")
        if name == "lo" or mtu is None:  # 'bonding_masters' is a file
            continue
        # A link that is down answers 'Invalid argument' for carrier and speed, one without a speed -1.
        speed = _read(path, "speed") or ""
        carrier, operstate = _read(path, "carrier"), _read(path, "operstate")
        up = operstate == "up" or (operstate == "unknown" and carrier == "1")
        found[name] = Netdev(name, int(mtu), int(speed) if speed.isdigit() else None, up, _pci(path))
    return found


def read_ports(root: str) -> t.List[HcaPort]:
    """The ports of all RDMA devices in <root>/sys/class/infiniband."""
    base = os.path.join(root, "sys/class/infiniband")
    found = []
    for hca in _names(base):
        path = os.path.join(base, hca)
        numbers = [int(name) for name in _names(os.path.join(path, "ports")) if name.isdigit()]
        guid = _read(path, "sys_image_guid")
        for number in sorted(numbers):
            port = os.path.join(path, "ports", str(number))
            found.append(
                HcaPort(
                    hca=hca,
                    port=number,
                    ports=len(numbers),
                    netdevs=_netdevs_of(path, port, number),
                    state=(_read(port, "state") or "").split(":")[-1].strip(),  # '4: ACTIVE'
                    ethernet=_read(port, "link_layer") != "InfiniBand",
                    guid=None if guid == _EMPTY_GUID else guid,
                    pci=_pci(path),
                    gids=_gids(port),
                )
            )
    return found


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


def used_rails(rails: t.Sequence[Rail], chosen: Rail, network: ipaddress.IPv4Network) -> t.List[Rail]:
    """The rails that traffic should go over: the chosen one, its twin, and the others inside the network.

    Two rails in one subnet are a known fault (answers leave by the wrong one), so only the first in each subnet counts.
    A link that is up is no reason to use it: its cable may lead elsewhere (a twin's leads where its sibling's does).
    """
    used = [chosen]
    fitting = [rail for rail in rails if are_twins(rail, chosen)]
    fitting += [rail for rail in rails if rail.address and rail.address.ip in network]
    fitting += [rail for rail in rails if any(are_twins(rail, other) for other in fitting)]
    for rail in fitting:
        taken = any(rail.netdev.name == other.netdev.name or rail.subnet == other.subnet for other in used)
        if rail.up and rail.address and not taken:
            used.append(rail)
    return used[:1] + sorted(used[1:], key=lambda rail: int(rail.address.ip) if rail.address else 0)


def parse_network(text: str) -> ipaddress.IPv4Network:
    """The fabric's network; raises FabricError with what to write instead."""
    try:
        return ipaddress.IPv4Network(text, strict=False)
    except ValueError:
        raise FabricError(f"fabric_cidr '{text}' is no IPv4 network: write it like 192.168.200.0/24.") from None


def parse_address(text: str) -> ipaddress.IPv4Address:
    """The forced address; raises FabricError with what to write instead."""
    try:
        return ipaddress.IPv4Address(text)
    except ValueError:
        raise FabricError(f"fabric_address '{text}' is no IPv4 address: write it like 192.168.200.11.") from None


def _netdevs_of(hca: str, port: str, number: int) -> t.Tuple[str, ...]:
    """The interfaces on a port: those in its GID table, and those of its device (with two ports: by dev_port)."""
    folder = os.path.join(port, "gid_attrs/ndevs")
    names = [name for name in (_read(folder, index) for index in _numbers(folder)) if name]
    folder = os.path.join(hca, "device/net")
    own = _names(folder)
    if len(own) > 1:
        own = [name for name in own if _read(os.path.join(folder, name), "dev_port") in (str(number - 1), None)]
    return tuple(dict.fromkeys(names + own))


def _gids(port: str) -> t.Tuple[Gid, ...]:
    found = []
    for index in _numbers(os.path.join(port, "gids")):
        try:
            gid = ipaddress.IPv6Address(_read(os.path.join(port, "gids"), index) or "::")
        except ValueError:
            continue
        if int(gid):  # the free entries are all zeros, and their type can't be read
            kind = _read(os.path.join(port, "gid_attrs/types"), index) or ""  # 'IB/RoCE v1' or 'RoCE v2'
            found.append(Gid(int(index), gid.ipv4_mapped, kind == "RoCE v2"))
    return tuple(found)


def _pci(path: str) -> t.Optional[t.Tuple[str, str]]:
    match = _PCI.match(os.path.basename(os.path.realpath(os.path.join(path, "device"))))
    return (match.group(1), match.group(2)) if match else None


def _names(folder: str) -> t.List[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _numbers(folder: str) -> t.List[str]:
    return sorted((name for name in _names(folder) if name.isdigit()), key=int)


def _read(folder: str, name: str) -> t.Optional[str]:
    try:
        with open(os.path.join(folder, name), encoding="utf-8", errors="replace") as handle:
            return handle.read().strip()
    except OSError:
        return None
