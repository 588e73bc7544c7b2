# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""What a node's network is now: its links, which of them may carry the fabric, and by which one it is managed. Pure over a root folder."""

from __future__ import annotations

import ipaddress
import json
import os
import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils._fabric_read import FabricError, Netdev, read_netdevs, read_ports
from ansible_collections.sparkstack.inference.plugins.module_utils._files import text

Data = t.Dict[str, t.Any]
Links = t.Dict[str, Data]
_DEEPEST = 50
"""Processes above this one that are looked at: sshd, a shell, sudo, a shell, Python are usual."""


def links(ip_json: str) -> Links:
    """The interfaces of C(ip -json addr), but for the loopback, by name.

    Each has C(mtu) (bytes), C(up) (it is switched on), C(carrier) (something is at the other end), C(mac), C(master) (the bond or bridge
    that it is part of, or None) and C(addresses): its IPv4 addresses with C(address) (with the prefix), C(dynamic) (from DHCP) and C(broadcast).

    :raises FabricError: when the text is no JSON list.
    """
    try:
        told = json.loads(ip_json or "[]")
    except ValueError:
        told = None
    if not isinstance(told, list):
        raise FabricError("'ip -json addr' gave no JSON list: install iproute2 4.13 or newer on the node.")
    found: Links = {}
    for link in told:
        # Old versions write an empty object for each interface that a filter left out.
        if not link or "LOOPBACK" in link.get("flags", []):
            continue
        addresses = [
            {
                "address": "{}/{}".format(info["local"], info.get("prefixlen", 32)),
                "dynamic": bool(info.get("dynamic")),
                "broadcast": info.get("broadcast"),
            }
            for info in link.get("addr_info") or []
            if info.get("family") == "inet" and "local" in info
        ]
        found[link["ifname"]] = {
            "mtu": link.get("mtu", 0),
            "up": "UP" in link.get("flags", []),
            "carrier": "LOWER_UP" in link.get("flags", []),
            "mac": link.get("address", ""),
            "master": link.get("master"),
            "addresses": addresses,
        }
    return found


def routed(*route_jsons: str) -> t.List[str]:
    """The interfaces of the default routes that C(ip -json route show default) tells, for IPv4 and for IPv6."""
    found = []
    for told in route_jsons:
        try:
            routes = json.loads(told or "[]")
        except ValueError:
            continue
        for route in routes if isinstance(routes, list) else []:
            hops = [route, *(route.get("nexthops") or [])] if isinstance(route, dict) else []
            found += [hop["dev"] for hop in hops if hop.get("dev")]
    return sorted(set(found))


def external(told: str) -> t.List[str]:
    """The interfaces whose addresses NetworkManager has left to somebody else.

    :param told: what C(nmcli -t -f DEVICE,STATE device) says, such as 'enp1s0f0np0:connected (externally)'.
    """
    return [line.partition(":")[0] for line in told.splitlines() if line.endswith(":connected (externally)")]


def ssh_address(root: str, pid: int) -> t.Optional[str]:
    """The address of this node that the SSH session was made to, or None where there is none.

    sshd tells it as 'SSH_CONNECTION=10.77.0.1 51922 10.77.0.11 22' to the processes of the session, but sudo takes it away: so it is
    looked for in all processes above this one.
    """
    for _step in range(_DEEPEST):
        if pid <= 1:
            return None
        for variable in text(os.path.join(root, "proc", str(pid), "environ")).split("\0"):
            name, _equals, value = variable.partition("=")
            if name == "SSH_CONNECTION" and len(value.split()) == 4:
                return value.split()[2].partition("%")[0]
        fields = text(os.path.join(root, "proc", str(pid), "stat")).rpartition(")")[2].split()
        pid = int(fields[1]) if len(fields) > 1 else 0
    return None


def holder(ip_json: str, address: t.Optional[str]) -> t.Optional[str]:
    """The interface that has an address of either family, or None."""
    for link in json.loads(ip_json or "[]"):
        for info in (link or {}).get("addr_info") or []:
            # Old versions write an empty object here, too.
            if address and "local" in info and ipaddress.ip_address(info["local"]) == _plain(address):
                return str(link["ifname"])
    return None


def _plain(address: str) -> t.Union[ipaddress.IPv4Address, ipaddress.IPv6Address]:
    found = ipaddress.ip_address(address)
    # sshd that listens on IPv6 only tells '::ffff:10.77.0.11'.
    return (found.ipv4_mapped or found) if isinstance(found, ipaddress.IPv6Address) else found


def candidates(root: str) -> t.List[Data]:
    """The Ethernet interfaces with an RDMA device, each with C(netdev), C(port) and C(lane).

    Two that have the same C(port) are the two PCI functions of one physical port (twins); C(lane) tells them apart. On a GB10 they are
    0000:01:00.0 and 0002:01:00.0, and bear the card's one sys_image_guid. Sorted by port, then by lane.
    """
    netdevs = read_netdevs(root)
    found: t.Dict[str, Data] = {}
    for port in read_ports(root):
        for name in port.netdevs if port.ethernet else ():
            netdev: t.Optional[Netdev] = netdevs.get(name)
            # A VLAN or a bond stands in the GID table too: only what has the device itself is meant, where it can be told.
            if netdev is None or (netdev.pci is None and len(port.netdevs) > 1):
                continue
            pci = netdev.pci or port.pci
            place = pci[1] if pci else name
            found[name] = {"netdev": name, "port": f"{place} {port.guid or ''}".strip(), "lane": pci[0] if pci else "0000"}
    return sorted(found.values(), key=lambda entry: (entry["port"], entry["lane"], entry["netdev"]))


def driver(root: str, netdev: str) -> str:
    """The kernel driver of an interface, such as C(mlx5_core), or nothing."""
    path = os.path.join(root, "sys/class/net", netdev, "device/driver")
    return os.path.basename(os.path.realpath(path)) if os.path.lexists(path) else ""
