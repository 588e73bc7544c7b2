# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is private to the collection: it can change at any time.

"""How the fabric is wired, out of who heard whom: segments (a cable, or all that hangs on a switch) and their lanes. Pure.

A segment joins physical ports. A port of a Spark has two interfaces, its PCI functions (the twins), and both hear what comes through its
cable. So each segment has lanes: the first interfaces of all its nodes are the first lane, the second ones the second, and each lane
gets a subnet of its own.
"""

from __future__ import annotations

import dataclasses
import typing as t

Place = tuple[str, str]
"""A host and one of its interfaces."""


@dataclasses.dataclass
class Node:
    """What M(sparkstack.inference.fabric_network_info) said of a host."""

    host: str
    network: dict[str, t.Any]
    address: str = ""
    """The address that the inventory wants it to have (C(fabric_address)), if any."""

    @property
    def links(self) -> dict[str, dict[str, t.Any]]:
        return t.cast("dict[str, dict[str, t.Any]]", self.network["links"])

    @property
    def candidates(self) -> list[dict[str, t.Any]]:
        return t.cast("list[dict[str, t.Any]]", self.network["candidates"])

    def port(self, netdev: str) -> str:
        """The physical port of a candidate."""
        return next((str(entry["port"]) for entry in self.candidates if entry["netdev"] == netdev), netdev)


@dataclasses.dataclass
class Segment:
    """What a cable or a switch joins."""

    lanes: list[list[Place]]

    def hosts(self) -> list[str]:
        """Its hosts, in the inventory's order."""
        return list(dict.fromkeys(host for lane in self.lanes for host, _netdev in lane))


def find(nodes: t.Sequence[Node]) -> list[Segment]:
    """The segments that join at least two hosts, in the order of the first host's first port in them.

    One call that was heard one way joins two ports: that a frame got lost is no reason to draw a cable twice.
    """
    order = {node.host: place for place, node in enumerate(nodes)}
    known = {node.host: node for node in nodes}
    ports = [(node.host, port) for node in nodes for port in dict.fromkeys(entry["port"] for entry in node.candidates)]
    group = {port: place for place, port in enumerate(ports)}
    for node in nodes:
        for netdev, callers in node.network["heard"].items():
            for host, other in callers:
                if host not in known:
                    continue
                one, two = (node.host, node.port(netdev)), (host, known[host].port(other))
                if one in group and two in group and one != two:
                    low, high = sorted((group[one], group[two]))
                    group = {port: low if place == high else place for port, place in group.items()}
    segments = []
    for place in sorted(set(group.values())):
        members = [port for port in ports if group[port] == place]
        if len({host for host, _port in members}) < 2:
            continue
        lists = {host: _interfaces(known[host], {port for name, port in members if name == host}) for host, _port in members}
        longest = max(len(own) for own in lists.values())
        lanes = [[(host, lists[host][lane]) for host in sorted(lists, key=order.__getitem__) if lane < len(lists[host])] for lane in range(longest)]
        segments.append(Segment([lane for lane in lanes if len(lane) > 1]))
    return segments


def _interfaces(node: Node, ports: set[str]) -> list[str]:
    """A node's interfaces in a segment, in the order of its ports and of their functions; those without a carrier are none."""
    return [entry["netdev"] for entry in node.candidates if entry["port"] in ports and node.links[entry["netdev"]]["carrier"]]


def problems(nodes: t.Sequence[Node], segments: t.Sequence[Segment]) -> list[str]:
    """Why no fabric can be made of this wiring, each in a sentence."""
    found = []
    for node in nodes:
        found += _node_problems(node)
    if found:
        return found
    alone = [node for node in nodes if not any(node.host in segment.hosts() for segment in segments)]
    for node in alone if len(alone) < len(nodes) else alone[:1]:
        up = [entry["netdev"] for entry in node.candidates if node.links[entry["netdev"]]["carrier"]]
        if up:
            found.append(
                f"{node.host} hears no other node on {', '.join(up)}: check that the cable leads to one of {', '.join(n.host for n in nodes if n is not node)}."
            )
        else:
            off = [entry["netdev"] for entry in node.candidates if not node.links[entry["netdev"]]["up"]]
            hint = f", and switch the interface on with 'ip link set {off[0]} up'" if off else ""
            names = ", ".join(entry["netdev"] for entry in node.candidates)
            found.append(f"{node.host} has no cable in {names}: plug one in{hint}.")
    if found:
        return found
    for place, one in enumerate(nodes):
        for two in nodes[place + 1 :]:
            if not any({one.host, two.host} <= set(segment.hosts()) for segment in segments):
                found.append(f"{one.host} and {two.host} have no cable or switch in common: connect them, or leave one of them out with --limit.")
    return found


def _node_problems(node: Node) -> list[str]:
    if not node.network["netplan"]:
        return [f"{node.host} has no netplan: install netplan.io, or give the fabric its addresses by hand."]
    if not node.candidates:
        managed = ", ".join(f"{netdev} ({why})" for netdev, why in node.network["managed_by"].items())
        return [
            f"{node.host} has no Ethernet interface with an RDMA device"
            + (f" but for those by which it is managed, {managed}" if managed else "")
            + ": name the fabric's own with fabric_configure_interfaces."
        ]
    found = []
    for entry in node.candidates:
        netdev = entry["netdev"]
        why = node.network["managed_by"].get(netdev)
        if why:
            found.append(f"{node.host} is managed by {netdev}, for {why}: it can't be changed from here, so name another one with fabric_configure_interfaces.")
        master = node.links[netdev]["master"]
        if master and node.links[netdev]["carrier"]:
            found.append(f"{netdev} of {node.host} is part of {master}, over which RDMA does not go: take it out of there first.")
    return found
