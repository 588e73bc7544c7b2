# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is private to the collection: it can change at any time.

"""The fabric's network as it is to be: a netplan file for each node, and what speaks against it. Pure."""

from __future__ import annotations

import dataclasses
import ipaddress
import typing as t

from ansible_collections.sparkstack.inference.plugins.plugin_utils import _fabric_addresses, _fabric_segments
from ansible_collections.sparkstack.inference.plugins.plugin_utils._fabric_addresses import Address, PlanError
from ansible_collections.sparkstack.inference.plugins.plugin_utils._fabric_segments import Node, Place, Segment

FILE = "/etc/netplan/60-sparkstack-fabric.yaml"
LEAST_MTU = 1280
MOST_MTU = 9978
"""What a ConnectX-7 takes."""


@dataclasses.dataclass
class Settings:
    """What the user wants."""

    fabric: ipaddress.IPv4Network
    mtu: int = 9000
    first: int = 11
    renderer: str = ""
    replace: t.Sequence[str] = ()


@dataclasses.dataclass
class Plan:
    """What is to be done, by host. C(problems) speak against all of it."""

    problems: list[str]
    nodes: dict[str, dict[str, t.Any]] = dataclasses.field(default_factory=dict)
    lines: list[str] = dataclasses.field(default_factory=list)


def make(nodes: t.Sequence[Node], settings: Settings) -> Plan:
    """The plan. :param nodes: all of the fabric, in the inventory's order."""
    pending = [problem for node in nodes for problem in _pending(node)]
    segments = _fabric_segments.find(nodes)
    problems = pending or _fabric_segments.problems(nodes, segments)
    if problems:
        return Plan(problems)
    try:
        given = _fabric_addresses.give(nodes, segments, settings.fabric, settings.first)
    except PlanError as error:
        return Plan([str(error)])
    problems = [problem for node in nodes for problem in _conflicts(nodes, node, given)]
    found: dict[str, dict[str, t.Any]] = {}
    for node in nodes:
        own = {netdev: given[node.host, netdev] for entry in node.candidates for netdev in [entry["netdev"]] if (node.host, netdev) in given}
        by_others, replaced, refused = _by_others(node, own, settings)
        problems += refused
        ours = {netdev: address for netdev, address in own.items() if netdev not in by_others}
        found[node.host] = {
            "content": text(ours, settings),
            "interfaces": [{"netdev": netdev, "address": str(address), "mtu": settings.mtu} for netdev, address in sorted(ours.items())],
            "by_others": by_others,
            "replace": replaced,
            "peers": _peers(node.host, segments, given, settings.mtu),
        }
    return Plan(problems) if problems else Plan([], found, screen(nodes, segments, given, found, settings))


def text(interfaces: t.Mapping[str, Address], settings: Settings) -> str:
    """The netplan file; nothing where there is no interface.

    A cable that is out must not keep the node from booting (C(optional)), and nothing but the one address is wanted: none from DHCP, and
    no IPv6, whose addresses would stand in the GID table before that of the fabric.
    """
    if not interfaces:
        return ""
    lines = ["# Written by sparkstack.inference (role fabric_configure). Bring back what was before with the playbook fabric_restore.", "network:"]
    lines += ["  version: 2", "  ethernets:"]
    for netdev, address in sorted(interfaces.items()):
        lines += [f"    {netdev}:"]
        lines += [f"      renderer: {settings.renderer}"] if settings.renderer else []
        lines += ["      dhcp4: false", "      dhcp6: false", "      accept-ra: false", "      link-local: []", "      optional: true"]
        lines += [f"      mtu: {settings.mtu}", "      addresses:", f"        - {address}"]
    return "\n".join(lines) + "\n"


def _pending(node: Node) -> list[str]:
    trial = node.network["pending"]
    if not trial or not trial["active"]:
        return []
    left = round((trial["began"] or 0) + (trial["seconds"] or 0) - node.network["now"])
    when = f"within {left} s" if left > 0 else "soon"
    return [
        f"{node.host} has a network on trial that another run has not kept yet: it takes it back by itself {when}, so run this again then, "
        "or take it back now with the playbook sparkstack.inference.fabric_restore."
    ]


def _conflicts(nodes: t.Sequence[Node], node: Node, given: t.Mapping[Place, Address]) -> list[str]:
    """Addresses that somebody else has, and subnets that the node has elsewhere."""
    found = []
    for (host, netdev), address in given.items():
        if host != node.host:
            continue
        for other in nodes:
            for name, link in other.links.items():
                same = [entry for entry in link["addresses"] if Address(entry["address"]).ip == address.ip]
                if same and (other.host, name) != (host, netdev) and (other.host, name) not in given:
                    found.append(f"{address.ip}, meant for {netdev} of {host}, is used by {name} of {other.host}: set fabric_cidr to another network.")
        for name, link in node.links.items():
            if (host, name) in given:
                continue
            for entry in link["addresses"]:
                network = Address(entry["address"]).network
                if network.overlaps(address.network) and Address(entry["address"]).ip != address.ip:
                    found.append(
                        f"{address.network}, meant for {netdev} of {host}, overlaps {network} on its {name}: "
                        f"set fabric_cidr to another network, or take the address off {name}."
                    )
    return found


def _by_others(node: Node, own: t.Mapping[str, Address], settings: Settings) -> tuple[dict[str, str], list[str], list[str]]:
    """The interfaces that another file configures just as wanted (with the file), the files to replace, and what is refused."""
    right: dict[str, str] = {}
    replaced: list[str] = []
    refused: list[str] = []
    for entry in node.network["definitions"]:
        netdevs = [netdev for netdev in entry["netdevs"] if netdev in own]
        file = entry["file"]
        if file == FILE or not netdevs:
            continue
        if file in settings.replace:
            others = node.network["others"].get(file, [])
            if others or entry["pattern"]:
                what = ", ".join(others) or "whatever its pattern matches"
                refused.append(f"{file} of {node.host} can't be replaced, for it also configures {what}: take {', '.join(netdevs)} out of it by hand.")
            elif file not in replaced:
                replaced.append(file)
            continue
        wrong = {netdev: _differs(entry, own[netdev], settings) for netdev in netdevs}
        right.update({netdev: file for netdev in netdevs if not wrong[netdev]})
        for netdev in netdevs:
            if wrong[netdev]:
                refused.append(
                    f"{file} of {node.host} configures {netdev} already, and otherwise than wanted ({wrong[netdev]}): take it out of there, or have the file "
                    f'replaced with -e \'{{"fabric_configure_replace": ["{file}"]}}\'.'
                )
    return right, sorted(replaced), refused


def _differs(entry: t.Mapping[str, t.Any], address: Address, settings: Settings) -> str:
    """What another definition says otherwise than wanted, or nothing."""
    told = entry["settings"]
    if entry["section"] != "ethernets":
        return f"as part of {entry['id']} of its {entry['section']}"
    wrong = []
    addresses = [str(next(iter(value)) if isinstance(value, dict) else value) for value in told.get("addresses") or []]
    if addresses != [str(address)]:
        wrong.append(f"addresses {', '.join(addresses) or 'none'}, wanted {address}")
    if told.get("mtu") != settings.mtu:
        wrong.append(f"MTU {told.get('mtu', 'not set')}, wanted {settings.mtu}")
    wrong += [f"{key} {'on' if told[key] is True else told[key]}" for key in ("dhcp4", "dhcp6", "gateway4") if told.get(key)]
    return ", ".join(wrong)


def _peers(host: str, segments: t.Sequence[Segment], given: t.Mapping[Place, Address], mtu: int) -> list[dict[str, t.Any]]:
    """The addresses that have to answer a host, each by the interface that shares its subnet."""
    found = []
    for segment in segments:
        for lane in segment.lanes:
            own = [netdev for name, netdev in lane if name == host]
            others = [place for place in lane if place[0] != host]
            found += [{"host": name, "netdev": own[0], "address": str(given[name, netdev].ip), "mtu": mtu} for name, netdev in others if own]
    return found


def screen(
    nodes: t.Sequence[Node],
    segments: t.Sequence[Segment],
    given: t.Mapping[Place, Address],
    found: t.Mapping[str, t.Mapping[str, t.Any]],
    settings: Settings,
) -> list[str]:
    """The plan for the user, a line an interface."""
    known = {node.host: node for node in nodes}
    wide = [max(len(words[column]) for words in given) for column in (0, 1)] + [max(len(str(address)) for address in given.values())]
    lines = [f"Fabric {settings.fabric}, MTU {settings.mtu}"]
    for number, segment in enumerate(segments, 1):
        lines.append(f"  cable {number}: {' - '.join(segment.hosts())}")
        for host, netdev in (place for lane in segment.lanes for place in lane):
            link, address = known[host].links[netdev], str(given[host, netdev])
            now = [entry["address"] for entry in link["addresses"]]
            right = now == [address] and link["mtu"] == settings.mtu
            was = "as it is" if right else f"now {', '.join(now) or 'no address'}, MTU {link['mtu']}"
            by = found[host]["by_others"].get(netdev)
            lines.append(f"    {host:{wide[0]}}  {netdev:{wide[1]}}  {address:{wide[2]}}  {was}{f', by {by}' if by else ''}")
    lines += [f"  {host}: {file} is replaced" for host, entry in found.items() for file in entry["replace"]]
    for node in nodes:
        idle = [entry["netdev"] for entry in node.candidates if (node.host, entry["netdev"]) not in given]
        lines += [f"  {node.host}: {', '.join(idle)} left alone, as no other node is heard there"] if idle else []
    return lines
