# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is private to the collection: it can change at any time.

"""Which address each interface of the fabric gets. Pure: the same nodes in the same order always get the same."""

from __future__ import annotations

import collections
import ipaddress
import typing as t

from ansible_collections.sparkstack.inference.plugins.plugin_utils._fabric_segments import Node, Place, Segment

Network = ipaddress.IPv4Network
Address = ipaddress.IPv4Interface

_PREFIX = 24
"""A lane's subnet is never larger."""
_LINK_LOCAL = Network("169.254.0.0/16")


class PlanError(Exception):
    """The text is a sentence for the user."""


def give(nodes: t.Sequence[Node], segments: t.Sequence[Segment], fabric: Network, first: int) -> dict[Place, Address]:
    """An address for each interface of each lane.

    What is there and right stays. Right are addresses of one lane that are all in one subnet, which no other lane has; that of a segment's
    first lane has to be inside the fabric, or no node would take it for its fabric address. The rest gets the next subnets from the
    fabric's beginning on, and in them the node's number: that of its address elsewhere, else C(first) and on in the inventory's order.

    :param first: the first node's number. :raises PlanError: when they can't be given.
    """
    prefix = max(fabric.prefixlen, _PREFIX)
    kept = _kept(nodes, segments, fabric)
    lanes = [(segment, place) for segment, whole in enumerate(segments) for place in range(len(whole.lanes))]
    networks = dict(kept)
    networks.update(_asked_for(nodes, segments, fabric, prefix, kept))
    block = fabric.network_address
    for lane in lanes:
        if lane in networks:
            continue
        network = Network((block, prefix))
        while any(network.overlaps(taken) for taken in networks.values()):
            network = _next(network)
        networks[lane] = network
        block = _next(network).network_address
    _check_room(segments, networks, fabric)
    numbers = _numbers(nodes, segments, kept, first)
    given: dict[Place, Address] = {}
    for lane in lanes:
        wanted = {node.host: node.address for node in nodes if lane[1] == 0 and node.address and ipaddress.IPv4Address(node.address) in networks[lane]}
        given.update(_lane(nodes, segments[lane[0]].lanes[lane[1]], networks[lane], numbers, wanted))
    for node in nodes:
        own = [str(address.ip) for (host, _netdev), address in given.items() if host == node.host]
        if node.address and node.address not in own:
            subnets = ", ".join(str(networks[lane]) for lane in lanes if lane[1] == 0)
            raise PlanError(f"fabric_address of {node.host} is {node.address}, in none of the fabric's subnets ({subnets}): correct it, or leave it out.")
    return given


def _asked_for(
    nodes: t.Sequence[Node], segments: t.Sequence[Segment], fabric: Network, prefix: int, kept: t.Mapping[tuple[int, int], Network]
) -> dict[tuple[int, int], Network]:
    """The subnets of the inventory's addresses, for first lanes that have no right one."""
    found: dict[tuple[int, int], Network] = {}
    for place, segment in enumerate(segments):
        asked = [Network((node.address, prefix), strict=False) for node in nodes if node.address and node.host in segment.hosts()]
        fitting = [network for network in asked if network.subnet_of(fabric) and not any(network.overlaps(n) for n in [*kept.values(), *found.values()])]
        if fitting and (place, 0) not in kept:
            found[place, 0] = fitting[0]
    return found


def _next(network: Network) -> Network:
    try:
        return Network((network.broadcast_address + 1, network.prefixlen))
    except ValueError:
        raise PlanError(f"There are no subnets behind {network}: set fabric_cidr to another network, such as 192.168.200.0/22.") from None


def _static(node: Node, netdev: str) -> list[Address]:
    """The addresses of an interface that somebody has given it, and that can carry the fabric."""
    addresses = [Address(entry["address"]) for entry in node.links[netdev]["addresses"] if not entry["dynamic"]]
    return [address for address in addresses if address.ip not in _LINK_LOCAL and address.network.prefixlen <= 30]


def _kept(nodes: t.Sequence[Node], segments: t.Sequence[Segment], fabric: Network) -> dict[tuple[int, int], Network]:
    """The lanes that have a right subnet already."""
    known = {node.host: node for node in nodes}
    found: dict[tuple[int, int], Network] = {}
    for place, segment in enumerate(segments):
        for number, members in enumerate(segment.lanes):
            counts = collections.Counter(network for host, netdev in members for network in {a.network for a in _static(known[host], netdev)})
            inside = [network for network in counts if number > 0 or network.subnet_of(fabric)]
            free = [network for network in inside if not any(network.overlaps(taken) for taken in found.values())]
            if free:
                found[place, number] = min(free, key=lambda network: (-counts[network], network))
            elif number == 0:
                # Its first lane moves, so the others do: one cable's subnets stay together.
                break
    return found


def _check_room(segments: t.Sequence[Segment], networks: t.Mapping[tuple[int, int], Network], fabric: Network) -> None:
    """:raises PlanError: when a cable's first subnet is outside the fabric, where nothing would use it."""
    outside = [lane for lane, network in networks.items() if lane[1] == 0 and not network.subnet_of(fabric)]
    if not outside:
        return
    large = fabric
    while large.prefixlen > 8 and not all(network.subnet_of(large) for network in networks.values()):
        large = large.supernet()
    subnets = len(networks)
    raise PlanError(
        f"The fabric {fabric} is too small for the {subnets} subnets of {len(segments)} cables: set fabric_cidr to {large}, which has room for all of them."
    )


def _numbers(nodes: t.Sequence[Node], segments: t.Sequence[Segment], kept: t.Mapping[tuple[int, int], Network], first: int) -> dict[str, int]:
    """The number that each node would like to have in every subnet."""
    found = {}
    for place, node in enumerate(nodes):
        found[node.host] = first + place
        own = [
            int(address.ip) - int(network.network_address)
            for (segment, number), network in sorted(kept.items())
            for host, netdev in segments[segment].lanes[number]
            for address in (_static(node, netdev) if host == node.host else [])
            if address.network == network
        ]
        if node.address:
            found[node.host] = int(ipaddress.IPv4Address(node.address)) & 0xFF
        elif own:
            found[node.host] = own[0]
    return found


def _lane(
    nodes: t.Sequence[Node], members: t.Sequence[Place], network: Network, numbers: t.Mapping[str, int], wanted: t.Mapping[str, str]
) -> dict[Place, Address]:
    """The addresses of one lane: first those that are asked for, then those that are there, then free ones."""
    known = {node.host: node for node in nodes}
    found: dict[Place, Address] = {}
    for host, netdev in members:
        if host in wanted:
            ip = ipaddress.IPv4Address(wanted[host])
            if ip not in network or ip in (network.network_address, network.broadcast_address):
                raise PlanError(f"fabric_address of {host} is {ip}, which is no node's address in {network}: correct it, or leave it out.")
            found[host, netdev] = Address((ip, network.prefixlen))
    for place in members:
        own = [address for address in _static(known[place[0]], place[1]) if address.network == network]
        if place not in found and own and own[0].ip not in [address.ip for address in found.values()]:
            found[place] = own[0]
    taken = {address.ip for address in found.values()}
    for place in members:
        if place in found:
            continue
        hosts = network.num_addresses - 2
        free = (network.network_address + (numbers[place[0]] - 1 + step) % hosts + 1 for step in range(hosts))
        left = next((address for address in free if address not in taken), None)
        if left is None:
            raise PlanError(f"{network} has no address left for {place[0]}: set fabric_cidr to a larger network.")
        taken.add(left)
        found[place] = Address((left, network.prefixlen))
    doubled = [str(ip) for ip, count in collections.Counter(address.ip for address in found.values()).items() if count > 1]
    if doubled:
        raise PlanError(f"fabric_address {doubled[0]} stands in the inventory for two hosts: give each one of its own.")
    return found
