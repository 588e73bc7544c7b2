# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is private to the collection: it can change at any time.

"""Judges the nodes' links and addresses by the facts alone, before a packet is sent. Pure."""

from __future__ import annotations

import re
import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils._words import listed, size
from ansible_collections.sparkstack.inference.plugins.plugin_utils import _fabric_group
from ansible_collections.sparkstack.inference.plugins.plugin_utils._preflight_group import nccl_of
from ansible_collections.sparkstack.inference.plugins.plugin_utils._preflight_words import (
    BLOCKED,
    READY,
    SLOW,
    Checked,
    Item,
    Node,
    Wanted,
    gbit,
    network,
    on,
)

# What fabric_facts finds wrong with one node, as an item and how bad it is. What is judged over all nodes instead is None.
CODES: dict[str, tuple[str, str] | None] = {
    "no_address": ("address", BLOCKED),
    "ipv6_only": ("address", BLOCKED),
    "fabric_address_absent": ("address", BLOCKED),
    "control_address_absent": ("address", BLOCKED),
    "wireless": ("address", SLOW),
    "several_addresses": ("address", READY),
    "link_down": ("link", BLOCKED),
    "rail_down": ("link", SLOW),
    "twins_one_subnet": ("twins", SLOW),
    "twin_unused": ("twins", SLOW),
    "bond": ("twins", SLOW),
    "rdma_down": ("rdma", BLOCKED),
    "no_roce_v2_gid": ("rdma", BLOCKED),
    "rdma_elsewhere": ("rdma", SLOW),
    "no_rdma": None,
    "mtu_small": None,
    "speed_degraded": None,
}
# What the filter fabric_group finds wrong with all of them together.
GROUP_CODES = {"no_shared_subnet": SLOW, "no_control_network": BLOCKED, "rail_unmatched": SLOW}
# Of a code that came later than this table a note is made here.
_OTHER = ("link", READY)


def of_codes(nodes: t.Sequence[Node], item: str) -> list[Item]:
    """What fabric_facts found of one item."""
    found = []
    for node in nodes:
        for problem in node.codes:
            place = CODES.get(problem["code"], _OTHER)
            if place and place[0] == item:
                names = {rail["netdev"] for rail in node.fabric.get("rails") or []}
                rail = next((word for word in problem["message"].replace(",", " ").split() if word in names), None)
                found.append(Item(item, place[1], problem["message"].rstrip("."), problem["remedy"], node.name, None, rail))
    return found


def stray(node: Node, nodes: t.Sequence[Node] = ()) -> t.Mapping[str, t.Any] | None:
    """A rail with an address of a node that has none inside the fabric: its address is in a wrong subnet.

    Where it has no RDMA device to be known by, it is the interface by whose name others are on the fabric.
    """
    if not any(problem["code"] == "no_address" for problem in node.codes):
        return None
    for rail in node.fabric.get("rails") or []:
        if rail.get("address") and rail.get("state") != "down":
            return t.cast("t.Mapping[str, t.Any]", rail)
    names = {other.fabric.get("netdev") for other in nodes}
    for interface in node.fabric.get("interfaces") or []:
        if interface["netdev"] in names and interface.get("addresses") and interface.get("state") != "down":
            address, _slash, prefix = interface["addresses"][0].partition("/")
            return {"netdev": interface["netdev"], "address": address, "prefix": int(prefix or 32)}
    return None


def address(nodes: t.Sequence[Node], wanted: Wanted) -> Checked:
    """Each node has one on the fabric."""
    found = [item for item in of_codes(nodes, "address") if not stray(next(node for node in nodes if node.name == item.node), nodes)]
    known = [node for node in nodes if node.fabric.get("address")]
    told = [f"{node.name} {node.fabric['address']} on {node.fabric.get('netdev')}" for node in known]
    return Checked(found, (", ".join(told) if len(told) < 4 else f"{told[0]}, to {told[-1]}") if told else None)


def link(nodes: t.Sequence[Node], wanted: Wanted) -> Checked:
    """The links are up. A cable between two nodes that is out is one finding, not one at each end."""
    found = of_codes(nodes, "link")
    down = [item for item in found if item.result == BLOCKED]
    if len(nodes) == 2 and len(down) == 2 and down[0].node != down[1].node:
        one, other = down
        rail = one.rail if one.rail == other.rail else f"{one.rail} to {other.rail}"
        text = f"the link between them is down at both ends ({one.rail} of {one.node}, {other.rail} of {other.node})"
        merged = Item("link", BLOCKED, text, "Check the cable between them; then bring both interfaces up.", one.node, other.node, rail)
        found = [merged, *(item for item in found if item not in down)]
    return Checked(found, "up on all nodes" if any(node.fabric for node in nodes) else None)


def subnet(nodes: t.Sequence[Node], wanted: Wanted) -> Checked:
    """All nodes' rails are in the subnets of the head's."""
    found = []
    known = [node for node in nodes if node.rails]
    head = next((node for node in known if node.name == wanted.head), known[0] if known else None)
    for node in nodes:
        rail = stray(node, nodes)
        if rail:
            its = f"its address {rail['address']}/{rail.get('prefix')}"
            text = f"{its} is outside the fabric" + (f", in another subnet than {head.name}'s {_own(head)}" if head else "")
            remedy = f"Give {rail['netdev']} an address in {network(head.rails[0]) if head else 'fabric_cidr'}, or correct fabric_cidr."
            found.append(Item("subnet", BLOCKED, text, remedy, node.name, head.name if head else None, rail["netdev"]))
        elif head and node.rails and node is not head:
            found += _apart(head, node)
    whole = _fabric_group.group({node.name: node.fabric for node in known})
    told = {item.node for item in found}
    for problem in whole.problems:
        if problem["code"] in GROUP_CODES and not (problem["code"] == "no_shared_subnet" and told):
            result, remedy = GROUP_CODES[problem["code"]], problem["remedy"]
            node_of = problem["nodes"][0] if len(problem["nodes"]) == 1 else None
            found.append(Item("subnet", result, problem["message"].rstrip("."), remedy, node_of))
    nets = sorted({str(network(rail)) for node in known for rail in node.rails})
    return Checked(found, listed(nets) if nets else None)


def _own(node: Node) -> str:
    return f"{node.rails[0]['address']}/{node.rails[0].get('prefix')}"


def _apart(head: Node, node: Node) -> list[Item]:
    """Of a node whose subnets are none of the head's."""
    heads, mine = {network(rail) for rail in head.rails}, {network(rail) for rail in node.rails}
    if heads & mine:
        return []
    rail, where = node.rails[0], network(head.rails[0])
    text = f"its address {_own(node)} is in another subnet than {head.name}'s {_own(head)}"
    if any(one.overlaps(other) for one in heads for other in mine):
        remedy = f"Give both the same prefix, that of {where}."
    else:
        remedy = f"Give {rail['netdev']} an address in {where}."
    return [Item("subnet", BLOCKED, text, remedy, node.name, head.name, rail["netdev"])]


def duplicate_address(nodes: t.Sequence[Node], wanted: Wanted) -> Checked:
    """No fabric address is on two nodes."""
    found = []
    told: set[str] = set()
    for node in nodes:
        for rail in node.rails:
            others = [other.name for other in nodes if other is not node and rail["address"] in other.addresses]
            if others and rail["address"] not in told:
                told.add(rail["address"])
                text = f"its address {rail['address']} is an address of {listed(others)}, too"
                remedy = f"Take it off {others[0]} with 'ip addr del {rail['address']}/{rail.get('prefix')} dev INTERFACE' and out of its netplan."
                found.append(Item("duplicate_address", BLOCKED, text, remedy, node.name, others[0], rail["netdev"]))
    return Checked(found, "each address is on one node" if any(node.rails for node in nodes) else None)


def twins(nodes: t.Sequence[Node], wanted: Wanted, down: t.Collection[str] = ()) -> Checked:
    """The two halves of one port are used, each in a subnet of its own. :param down: nodes whose link is down, which explains it."""
    if not any(node.fabric for node in nodes):
        return Checked()
    halves = any(rail.get("twin") for node in nodes for rail in node.rails)
    found = [item for item in of_codes(nodes, "twins") if item.node not in down]
    return Checked(found, "both halves of the port are used, in two subnets" if halves else "none")


def speed(nodes: t.Sequence[Node], wanted: Wanted) -> Checked:
    """No link is slower than is expected, or than the same link of another node."""
    rails = [(node, rail) for node in nodes for rail in node.rails if (rail.get("speed_mbps") or 0) > 0]
    found = []
    for node, rail in rails:
        same = [other["speed_mbps"] for _node, other in rails if network(other) == network(rail)]
        expected = wanted.expected_speed_mbps or max(same)
        if rail["speed_mbps"] >= expected:
            continue
        text = f"the link is at {gbit(rail['speed_mbps'])}, where {gbit(expected)} are expected"
        remedy = "Check the cable and its plugs; a Spark's network card that came up slow needs the power taken off for a minute."
        found.append(Item("speed", BLOCKED if rail["speed_mbps"] < expected * wanted.block_share else SLOW, text, remedy, node.name, None, rail["netdev"]))
    return Checked(found, listed(sorted({gbit(rail["speed_mbps"]) for _node, rail in rails})) if rails else None)


def rdma(nodes: t.Sequence[Node], wanted: Wanted) -> Checked:
    """All nodes have RDMA on the fabric, or none has it and none is expected."""
    found = of_codes(nodes, "rdma")
    known = [node for node in nodes if node.rails]
    without = [node for node in known if not any(rail.get("hca") for rail in node.rails)]
    told = {item.node for item in found}
    crossed = [problem for problem in _fabric_group.group({node.name: node.fabric for node in known}).problems if problem["code"] == "rails_crossed"]
    # In a ring there is no other way to plug the cables: with an NCCL that goes by the subnets it is well.
    result = READY if known and all(_by_subnets(node) for node in known) else SLOW
    found += [Item("rdma", result, problem["message"].rstrip("."), problem["remedy"]) for problem in crossed]
    if not wanted.uses_rdma or not known:
        return Checked([], "not wanted" if known else None)
    if without and (wanted.transport == "rdma" or len(without) < len(known)):
        why = "RDMA is wanted" if len(without) == len(known) else f"{listed([node.name for node in known if node not in without])} has RDMA"
        remedy = "Install or load the driver of its network card, put the fabric address on the card with RDMA, or set preflight_transport to tcp."
        found = [item for item in found if item.result == BLOCKED]
        for node in without:
            if node.name not in {item.node for item in found}:
                text = f"no RDMA device carries its fabric address, while {why}"
                found.append(Item("rdma", BLOCKED, text, remedy, node.name, None, node.rails[0]["netdev"]))
        return Checked(found)
    if len(without) == len(known) and not told:
        return Checked([], "none on any node: NCCL and gloo go over TCP")
    return Checked(found, listed(sorted({rail["hca"] for node in known for rail in node.rails if rail.get("hca")}) or ["none"]))


def _by_subnets(node: Node) -> bool:
    """Whether the image's NCCL is 2.30 or newer, which can be told to choose its devices by their subnets."""
    version = re.match(r"(\d+)\.(\d+)", nccl_of(node) or "")
    return version is not None and (int(version[1]), int(version[2])) >= (2, 30)


def infiniband(nodes: t.Sequence[Node], wanted: Wanted) -> Checked:
    """Where there is RDMA, containers can be given its devices: without them NCCL goes over TCP, in silence."""
    able = [node for node in nodes if any(rail.get("hca") for rail in node.rails)]
    without = [node for node in able if not any(name.startswith("uverbs") for name in node.preflight.get("infiniband") or [])]
    if not wanted.uses_rdma or not able:
        return Checked([], "no node needs it" if nodes and any(node.fabric for node in nodes) else None)
    blocked = wanted.transport == "rdma" or len(without) < len(able)
    remedy = "Load the module with 'modprobe ib_uverbs' and have it loaded at boot (/etc/modules-load.d); the package rdma-core does both."
    others = [node.name for node in able if node not in without]
    text = "there is no /dev/infiniband/uverbs*, so NCCL goes over TCP there" + (f", while {listed(others)} can use RDMA" if others else "")
    found = [Item("infiniband", BLOCKED if blocked else SLOW, text, remedy, node.name) for node in without]
    return Checked(found, f"/dev/infiniband is there {on([node.name for node in able], len(nodes))}")


def memlock(nodes: t.Sequence[Node], wanted: Wanted) -> Checked:
    """Containers can lock the memory that RDMA registers: a daemon with root's rights gives them that, whatever its own limit is."""
    found = []
    for node in nodes:
        limit = node.preflight.get("memlock")
        if node.docker.get("rootless") and limit not in (None, -1) and any(rail.get("hca") for rail in node.rails):
            text = f"Docker runs without root's rights and may lock {size(limit)} only, so RDMA can register no more"
            remedy = "Set LimitMEMLOCK=infinity for the user's docker.service, or run the system's Docker."
            found.append(Item("memlock", BLOCKED, text, remedy, node.name))
    return Checked(found, "no limit for containers" if any(node.docker.get("reachable") for node in nodes) else None)
