# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""What a node's sysfs and C(ip -json addr) tell of its network interfaces and RDMA devices.

Pure over a root folder: it reads <root>/sys and takes the addresses as a text, since sysfs has none.
Sources: the kernel's Documentation/ABI/stable/sysfs-class-infiniband, Documentation/ABI/testing/sysfs-class-net,
Documentation/ABI/stable/sysfs-module and Documentation/networking/bonding.rst.
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
_INFINIBAND = "32"  # ARPHRD_INFINIBAND in include/uapi/linux/if_arp.h


class FabricError(Exception):
    """What was asked for makes no sense, or a tool's answer can't be read; the message says what to do."""


class Netdev(t.NamedTuple):
    """A network interface: MTU in bytes, speed in Mbit/s or None, PCI address as (domain, bus:device.function)."""

    name: str
    mtu: int
    speed_mbps: t.Optional[int]
    up: bool
    pci: t.Optional[t.Tuple[str, str]]
    mac: t.Optional[str] = None
    carrier: t.Optional[bool] = None
    """Whether there is a signal; None for an interface that is set down, of which the kernel doesn't know it."""
    kind: str = "ethernet"
    """C(ethernet), C(infiniband), C(bond), C(vlan), C(bridge), C(wlan), or C(virtual)."""
    members: t.Tuple[str, ...] = ()
    """The interfaces that it stands on: those of a bond or a bridge, or a VLAN's one."""
    mode: t.Optional[str] = None
    """A bond's mode, such as 802.3ad."""


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
    driver: t.Optional[str] = None
    driver_version: t.Optional[str] = None
    """Only a driver from outside of the kernel has one (DOCA-OFED's, say); the kernel's own goes by the kernel's version."""
    firmware: t.Optional[str] = None
    board: t.Optional[str] = None
    """The maker's word for the board, at NVIDIA the PSID: firmware is made for one."""

    @property
    def name(self) -> str:
        """The device as NCCL takes it, with the port where the device has several."""
        return self.hca if self.ports == 1 else f"{self.hca}:{self.port}"


Addresses = t.Dict[str, t.List[ipaddress.IPv4Interface]]


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
        # A link that is set down answers 'Invalid argument' for carrier and speed, one without a speed -1.
        speed, carrier, operstate = _read(path, "speed") or "", _read(path, "carrier"), _read(path, "operstate")
        kind, pci = _kind(path), _pci(path)
        found[name] = Netdev(
            name=name,
            mtu=int(mtu),
            speed_mbps=int(speed) if speed.isdigit() else None,
            up=operstate == "up" or (operstate == "unknown" and carrier == "1"),
            pci=pci,
            mac=_read(path, "address") or None,
            carrier=None if carrier is None else carrier == "1",
            kind=kind,
            members=tuple(entry[len("lower_") :] for entry in _names(path) if entry.startswith("lower_")),
            mode=(_read(path, "bonding/mode") or "").partition(" ")[0] or None,  # '802.3ad 4'
        )
    return found


def read_ports(root: str) -> t.List[HcaPort]:
    """The ports of all RDMA devices in <root>/sys/class/infiniband."""
    base = os.path.join(root, "sys/class/infiniband")
    found = []
    for hca in _names(base):
        path = os.path.join(base, hca)
        numbers = [int(name) for name in _names(os.path.join(path, "ports")) if name.isdigit()]
        guid = _read(path, "sys_image_guid")
        driver = _link(os.path.join(path, "device/driver"))
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
                    driver=driver,
                    driver_version=_read(os.path.join(root, "sys/module", driver), "version") if driver else None,
                    firmware=_read(path, "fw_ver") or None,
                    board=_read(path, "board_id") or None,
                )
            )
    return found


def parse_network(text: str, option: str = "fabric_cidr") -> ipaddress.IPv4Network:
    """The fabric's network, that an option gives; raises FabricError with what to write instead."""
    try:
        return ipaddress.IPv4Network(text, strict=False)
    except ValueError:
        raise FabricError(f"{option} '{text}' is no IPv4 network: write it like 192.168.200.0/24.") from None


def parse_address(text: str, option: str = "fabric_address") -> ipaddress.IPv4Address:
    """The address that an option gives; raises FabricError with what to write instead."""
    try:
        return ipaddress.IPv4Address(text)
    except ValueError:
        raise FabricError(f"{option} '{text}' is no IPv4 address: write it like 192.168.200.11.") from None


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


def _kind(path: str) -> str:
    # 'DEVTYPE=bond' in uevent; a plain Ethernet interface has no such line.
    told = re.search(r"^DEVTYPE=(\w+)$", _read(path, "uevent") or "", re.MULTILINE)
    if told and told.group(1) in ("bond", "vlan", "bridge", "wlan"):
        return told.group(1)
    if _read(path, "type") == _INFINIBAND:
        return "infiniband"
    return "ethernet" if os.path.exists(os.path.join(path, "device")) else "virtual"


def _link(path: str) -> t.Optional[str]:
    return os.path.basename(os.path.realpath(path)) if os.path.exists(path) else None


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
