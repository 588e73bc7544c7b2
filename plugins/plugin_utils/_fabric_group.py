# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is private to the collection: it can change at any time.

"""How the nodes' rails fit together: what no node can know of itself. Pure.

A node's C(fabric) is the fact of M(sparkstack.inference.fabric_facts). NCCL joins the first device of one node with the first of
the other, in the order of their PCI addresses (ncclIbCompareDevs() in NCCL's src/transport/net_ib/init.cc). Where these are in
different subnets, as in a ring or with both cables crossed, the connection fails after minutes ("ibv_modify_qp failed with 110
Connection timed out"), unless NCCL looks for the device in the peer's subnet.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import itertools
import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils._words import listed

Fabric = t.Mapping[str, t.Any]
Subnet = ipaddress.IPv4Network


@dataclasses.dataclass
class Group:
    """What follows from all nodes' rails."""

    topology: str
    """C(single) (one node), C(pair), C(switch) (one subnet holds all), C(ring) (each two share one), or C(split)."""
    nodes: dict[str, dict[str, t.Any]] = dataclasses.field(default_factory=dict)
    """By node: C(control_address) or None, C(subnet_aware), C(without), and C(again): whether its facts must be gathered with them."""
    problems: list[dict[str, t.Any]] = dataclasses.field(default_factory=list)
    """Each with C(code), C(message), C(remedy), and C(nodes) that it is of."""


def group(fabrics: t.Mapping[str, Fabric]) -> Group:
    """The group of all nodes that have an address on the fabric, in the order of the mapping.

    :param fabrics: by node, what was found there without a control address; a node without an address has no part in it.
    """
    known = {node: fabric for node, fabric in fabrics.items() if fabric.get("address")}
    subnets = {node: _subnets(fabric) for node, fabric in known.items()}
    pairs = list(itertools.combinations(known, 2))
    apart = [pair for pair in pairs if not subnets[pair[0]].keys() & subnets[pair[1]].keys()]
    common = set.intersection(*(set(own) for own in subnets.values())) if known else set()
    result = Group("single" if len(known) < 2 else "split" if apart else "ring" if not common else "switch" if len(known) > 2 else "pair")
    for node in known:
        result.nodes[node] = {"control_address": None, "subnet_aware": False, "without": [], "again": False}
    if result.topology == "single":
        return result
    if result.topology == "split":
        result.problems.append(_split(apart, subnets))
        return result
    _leave_out(result, subnets, common)
    _control(result, known, common)
    _order(result, known)
    for told in result.nodes.values():
        told["again"] = bool(told["control_address"] or told["subnet_aware"] or told["without"])
    return result


def _subnet(entry: t.Mapping[str, t.Any]) -> Subnet | None:
    return ipaddress.IPv4Network(f"{entry['address']}/{entry['prefix']}", strict=False) if entry.get("address") else None


def _subnets(fabric: Fabric) -> dict[Subnet, t.Mapping[str, t.Any]]:
    """The rails that traffic goes over, by their subnets."""
    found = {subnet: rail for rail in fabric.get("rails") or [] if rail.get("used") and (subnet := _subnet(rail))}
    return dict(sorted(found.items()))


def _split(apart: t.Sequence[tuple[str, str]], subnets: t.Mapping[str, t.Mapping[Subnet, t.Any]]) -> dict[str, t.Any]:
    def where(node: str) -> str:
        return f"{node} ({', '.join(map(str, subnets[node])) or 'none'})"

    shown = "; ".join(f"{where(one)} and {where(other)}" for one, other in apart[:3])
    more = f"; and {len(apart) - 3} more pairs" if len(apart) > 3 else ""
    return {
        "code": "no_shared_subnet",
        "nodes": sorted({node for pair in apart for node in pair}),
        "message": f"These nodes share no subnet on the fabric: {shown}{more}.",
        "remedy": "Give the two ends of each cable addresses in one subnet. Nothing is to be done where a router stands between them.",
    }


def _leave_out(result: Group, subnets: dict[str, dict[Subnet, t.Mapping[str, t.Any]]], common: t.Collection[Subnet]) -> None:
    """Rails behind which not every node is, where another rail holds them all; in a ring those behind which none is."""
    for node in subnets:
        others = {subnet for other, own in subnets.items() if other != node for subnet in own}
        wanted = set(common) or others
        lost = [(subnet, rail) for subnet, rail in subnets[node].items() if subnet not in wanted]
        for subnet, rail in lost:
            result.nodes[node]["without"].append(rail["netdev"])
            del subnets[node][subnet]
            result.problems.append(
                {
                    "code": "rail_unmatched",
                    "nodes": [node],
                    "message": f"{rail['netdev']} of {node} is in {subnet}, and so is not every other node: it is left out.",
                    "remedy": "Give the same rail of every node an address in one subnet, or take it down here.",
                }
            )


def _control(result: Group, known: t.Mapping[str, Fabric], common: t.Collection[Subnet]) -> None:
    """The address for sockets, where the nodes' own addresses are not in one subnet."""
    reached = {node: _reached(fabric) for node, fabric in known.items()}
    homes = {next((subnet for subnet, way in reached[node].items() if way["address"] == fabric["address"]), None) for node, fabric in known.items()}
    if len(homes) == 1:
        return
    shared = set.intersection(*(set(found) for found in reached.values()))
    # A bridge of Docker has the same address on every node, and leads nowhere.
    shared = {subnet for subnet in shared if len({reached[node][subnet]["address"] for node in known}) == len(known)}
    if not shared:
        result.problems.append(
            {
                "code": "no_control_network",
                "nodes": list(known),
                "message": f"No network holds {listed(list(known))}, so they can't all meet.",
                "remedy": "Connect them to one network as well, such as the one that Ansible reaches them by, with IPv4 addresses of one subnet.",
            }
        )
        return
    best = min(shared, key=lambda subnet: (subnet not in common, -min(reached[node][subnet]["speed_mbps"] or 0 for node in known), subnet))
    for node, fabric in known.items():
        address = reached[node][best]["address"]
        result.nodes[node]["control_address"] = address if address != fabric["address"] else None


def _reached(fabric: Fabric) -> dict[Subnet, dict[str, t.Any]]:
    """Every subnet that a node is in by a cabled interface that is up, with its address there."""
    found: dict[Subnet, dict[str, t.Any]] = {}
    for interface in fabric.get("interfaces") or []:
        if interface["state"] != "up" or interface["kind"] == "wlan":
            continue
        for text in interface["addresses"]:
            address = ipaddress.IPv4Interface(text)
            if address.network.prefixlen < 32:
                found.setdefault(address.network, {"address": str(address.ip), "speed_mbps": interface["speed_mbps"]})
    return found


def _order(result: Group, known: t.Mapping[str, Fabric]) -> None:
    """Whether NCCL, which goes by PCI addresses, would join devices that are in different subnets."""
    orders = {}
    for node, fabric in known.items():
        rails = [rail for rail in fabric["rails"] if rail.get("used") and rail.get("link_layer") == "ethernet" and rail.get("gid_index") is not None]
        rails = [rail for rail in rails if rail["netdev"] not in result.nodes[node]["without"]]
        orders[node] = [_subnet(rail) for rail in sorted(rails, key=lambda rail: rail["pci"] or "~")]
    if not all(orders.values()) or len({tuple(order) for order in orders.values()}) < 2:
        return
    for told in result.nodes.values():
        told["subnet_aware"] = True
    shown = "; ".join("{} {}".format(node, ", ".join(map(str, order))) for node, order in orders.items())
    result.problems.append(
        {
            "code": "rails_crossed",
            "nodes": list(known),
            "message": f"NCCL joins the nodes' RDMA devices in the order of their PCI addresses, and so they are in different subnets: {shown}.",
            "remedy": "Nothing is to be done with NCCL 2.30 and newer, which is told to go by the subnets. An older one can't connect them"
            + (
                "."
                if result.topology == "ring"
                else ": plug each cable into the same port at both ends, and give a port's halves their subnets in the same order."
            ),
        }
    )
