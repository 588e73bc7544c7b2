# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Trees of sysfs as the kernel shows the network interfaces of a node, for tests."""

from __future__ import annotations

import dataclasses
import ipaddress
import json
import pathlib
import typing as t
import zlib

# The card's sys_image_guid is on all four devices of a GB10, as its ibstat shows.
CARD = "fc4c:ea03:00f9:4230"


@dataclasses.dataclass
class Nic:
    """A network interface of a tree, with its RDMA device when it has one."""

    name: str
    pci: str = ""
    hca: str = ""
    addresses: tuple[str, ...] = ()
    ipv6: tuple[str, ...] = ()
    up: bool = True
    mtu: int = 9000
    speed: int = 200000
    state: str = "4: ACTIVE"
    guid: str = CARD
    gids: bool = True
    first_gid: int = 0
    link_layer: str = "Ethernet"
    mac: str = ""
    carrier: str = "1"
    devtype: str = ""
    members: tuple[str, ...] = ()
    mode: str = ""
    gid_netdev: str = ""
    """The interface whose addresses are in the GID table: a bond or a VLAN on top of this one."""
    driver: str = "mlx5_core"
    driver_version: str = ""
    firmware: str = "28.45.4028"
    board: str = "NVD0000000087"


# The four interfaces of a Spark: two ports, each with two PCI functions.
P0 = Nic("enp1s0f0np0", "0000:01:00.0", "rocep1s0f0")
P1 = Nic("enp1s0f1np1", "0000:01:00.1", "rocep1s0f1")
T0 = Nic("enP2p1s0f0np0", "0002:01:00.0", "roceP2p1s0f0")
T1 = Nic("enP2p1s0f1np1", "0002:01:00.1", "roceP2p1s0f1")
LAN = Nic("enP7s7", "0007:01:00.0", "", ("10.0.0.11/24",), mtu=1500, speed=10000)


def down(nic: Nic) -> Nic:
    """Set down, so that the kernel doesn't know whether there is a signal."""
    return dataclasses.replace(nic, up=False, state="1: DOWN", carrier="")


def unplugged(nic: Nic) -> Nic:
    """Set up, and no signal."""
    return dataclasses.replace(nic, up=False, state="1: DOWN", carrier="0")


def at(nic: Nic, *addresses: str, **changes: t.Any) -> Nic:
    return dataclasses.replace(nic, addresses=addresses, **changes)


def mac(name: str) -> str:
    """A MAC address for an interface, the same for the same name."""
    return "4c:bb:47:" + ":".join(f"{byte:02x}" for byte in zlib.crc32(name.encode()).to_bytes(4, "big")[:3])


def write(path: pathlib.Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def pair(ports: t.Sequence[Nic], host: int) -> list[Nic]:
    """A Spark on one cable; :param ports: the cable's port and its twin."""
    others = [down(nic) for nic in (P0, P1, T0, T1) if nic.name not in {port.name for port in ports}]
    lan = at(LAN, f"10.0.0.{host}/24")
    return [lan, *(at(port, f"192.168.{200 + index}.{host}/24") for index, port in enumerate(ports)), *others]


# Three in a ring, with the addresses of NVIDIA's own set-up of three Sparks: port 0 to the next node's port 1.
RING = {
    "one": [
        at(LAN, "10.0.0.11/24"), at(P0, "192.168.0.1/24"), at(T0, "192.168.1.1/24"), at(P1, "192.168.2.1/24"), at(T1, "192.168.3.1/24"),
    ],
    "two": [
        at(LAN, "10.0.0.12/24"), at(P0, "192.168.4.1/24"), at(T0, "192.168.5.1/24"), at(P1, "192.168.0.2/24"), at(T1, "192.168.1.2/24"),
    ],
    "three": [
        at(LAN, "10.0.0.13/24"), at(P0, "192.168.2.2/24"), at(T0, "192.168.3.2/24"), at(P1, "192.168.4.2/24"), at(T1, "192.168.5.2/24"),
    ],
}  # fmt: skip
RING_CIDR = "192.168.0.0/21"


def build(root: pathlib.Path, nics: t.Sequence[Nic]) -> str:
    """Write <root>/sys as the kernel would show these interfaces; return what C(ip -json addr) would say."""
    write(root / "sys/class/net/bonding_masters", "")
    write(root / "sys/class/net/lo/mtu", "65536")
    links: list[dict[str, t.Any]] = [{}, {"ifname": "lo", "addr_info": [{"family": "inet", "local": "127.0.0.1", "prefixlen": 8}]}]
    for nic in nics:
        device = root / "sys/devices" / (nic.pci or f"virtual-{nic.name}")
        device.mkdir(parents=True)
        net = device / "net" / nic.name
        arp = "32" if nic.link_layer == "InfiniBand" else "1"
        uevent = f"DEVTYPE={nic.devtype}\nINTERFACE={nic.name}" if nic.devtype else f"INTERFACE={nic.name}"
        texts: dict[str, t.Any] = {"mtu": nic.mtu, "operstate": "up" if nic.up else "down", "type": arp, "uevent": uevent, "address": nic.mac or mac(nic.name)}
        if nic.carrier:  # a link that is set down answers EINVAL, here: no file
            texts.update(carrier=nic.carrier, speed=nic.speed if nic.up else -1)
        for name, text in texts.items():
            write(net / name, str(text))
        for member in nic.members:
            (net / f"lower_{member}").symlink_to(root / "sys/class/net" / member)
        if nic.mode:
            write(net / "bonding/mode", nic.mode)
        (root / "sys/class/net" / nic.name).symlink_to(net)
        if nic.pci:
            (net / "device").symlink_to(device)
        if nic.hca:
            driver = root / "sys/bus/pci/drivers" / nic.driver
            driver.mkdir(parents=True, exist_ok=True)
            (device / "driver").symlink_to(driver)
            if nic.driver_version:
                write(root / "sys/module" / nic.driver / "version", nic.driver_version)
            _build_hca(root / "sys/class/infiniband" / nic.hca, device, nic, _table(nic, nics))
        info: list[dict[str, t.Any]] = []
        for family, own in (("inet", nic.addresses), ("inet6", nic.ipv6)):
            for text in own:
                local, prefix = text.split("/")
                info.append({"family": family, "local": local, "prefixlen": int(prefix), "scope": "global"})
        links.append({"ifname": nic.name, "addr_info": info})
    return json.dumps(links)


def _table(nic: Nic, nics: t.Sequence[Nic]) -> list[tuple[str, str]]:
    """The GID table as (interface, address): its own addresses, and those of what stands on it (roce_gid_mgmt.c)."""
    above = [other for other in nics if other.name == nic.gid_netdev]
    return [(holder.name, text.split("/")[0]) for holder in [nic, *above] for text in holder.addresses if nic.gids]


def _build_hca(folder: pathlib.Path, device: pathlib.Path, nic: Nic, entries: list[tuple[str, str]]) -> None:
    write(folder / "sys_image_guid", nic.guid)
    write(folder / "fw_ver", nic.firmware)
    write(folder / "board_id", nic.board)
    (folder / "device").symlink_to(device)
    port = folder / "ports/1"
    write(port / "state", nic.state)
    write(port / "link_layer", nic.link_layer)
    # Each address twice, for RoCE v1 and v2, after the link-local one; then free entries, whose type can't be read.
    table = [(nic.name, "fe80:0000:0000:0000:4ebb:47ff:fe2e:2991")]
    table += [(name, ipaddress.IPv6Address(f"::ffff:{text}").exploded) for name, text in entries]
    for index in range(16):
        place, kind = divmod(index - nic.first_gid, 2)
        used = 0 <= place < len(table)
        write(port / f"gids/{index}", table[place][1] if used else "0000:0000:0000:0000:0000:0000:0000:0000")
        if used:
            write(port / f"gid_attrs/types/{index}", ("IB/RoCE v1", "RoCE v2")[kind])
            write(port / f"gid_attrs/ndevs/{index}", table[place][0])
