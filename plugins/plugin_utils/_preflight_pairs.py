# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is private to the collection: it can change at any time.

"""Judges what the probes have measured between the nodes. One cause is told once: what a cut explains is no finding of its own. Pure."""

from __future__ import annotations

import typing as t
from dataclasses import dataclass, field

from ansible_collections.sparkstack.inference.plugins.module_utils._words import duration, listed
from ansible_collections.sparkstack.inference.plugins.plugin_utils._preflight_edges import Edge, Group, collapse, edges
from ansible_collections.sparkstack.inference.plugins.plugin_utils._preflight_words import (
    BLOCKED,
    SLOW,
    Checked,
    Item,
    Node,
    Wanted,
    network,
)

LOSS_BLOCKED, LOSS_SLOW = 0.2, 0.005
"""Shares of packets. RDMA sends all that follows a lost packet again: half a percent costs most of the speed, and over a fifth nothing works."""
JUMBO = 9000
_UNPLUGGED = "Check the cable and the switch's ports, then firewalls on both ends ('nft list ruleset') and routes ('ip route get')."
_FILTERED = (
    "The other end answers to ARP, so the cable is good: look for what drops IP, a firewall on either end ('nft list ruleset') or a filter on the switch."
)
_OPEN = {
    "ufw": "'ufw allow from {net}'",
    "firewalld": "'firewall-cmd --permanent --zone=trusted --add-source={net}'",
    "nftables": "a rule 'ip saddr {net} accept' at the head of its input chain",
    "iptables": "'iptables -I INPUT -s {net} -j ACCEPT', and keep it with netfilter-persistent",
}


@dataclass
class Measured:
    """The edges, and which of them are explained already; each judge adds to that what it has told."""

    nodes: t.Sequence[Node]
    whole: list[Edge]
    explained: set[tuple[str, str, str, str]] = field(default_factory=set)

    @classmethod
    def of(cls, nodes: t.Sequence[Node]) -> Measured:
        """Of what the probes told."""
        return cls(nodes, edges(nodes))

    @property
    def open(self) -> list[Edge]:
        """The edges that nothing explains so far."""
        return [edge for edge in self.whole if edge.key not in self.explained]

    def explain(self, items: t.Iterable[Item]) -> None:
        """Take out the edges that blocked links and addresses explain: all of a node or of its rail, or those between two nodes."""
        for item in items:
            if item.result != BLOCKED or not item.node:
                continue
            for edge in self.whole:
                ends = {edge.src: edge.netdev, edge.dst: edge.peer_netdev}
                if item.node in ends and (item.peer in ends or not item.peer) and (item.peer or item.rail in (None, ends[item.node])):
                    self.explained.add(edge.key)

    def beside(self, edge: Edge) -> bool:
        """Whether a pair of rails is for RDMA alone: at neither end it is the interface that ranks meet by."""
        nodes = {node.name: node for node in self.nodes}
        ends = [(nodes[edge.src], edge.netdev), (nodes[edge.dst], edge.peer_netdev)]
        hcas = {(node.name, rail["netdev"]) for node in self.nodes for rail in node.rails if rail.get("hca")}
        return all(netdev != node.fabric.get("netdev") and (node.name, netdev) in hcas for node, netdev in ends)

    def left_out(self, edge: Edge) -> bool:
        """Whether a pair of rails in two subnets is nothing that a launch needs: its nodes have met on other rails, and this is told as the subnet's."""
        nets = {(node.name, rail["netdev"]): network(rail) for node in self.nodes for rail in node.rails}
        own, other = nets.get((edge.src, edge.netdev)), nets.get((edge.dst, edge.peer_netdev))
        met = any(one.loss is not None for one in self.whole if {one.src, one.dst} == {edge.src, edge.dst})
        return met and own is not None and other is not None and own != other


def items(groups: t.Iterable[Group], item: str, result: str, texts: t.Mapping[str, str], remedy: str) -> list[Item]:
    """Findings of groups. In the texts {node} and {peer} stand for their names."""
    return [
        Item(item, result, texts[group.kind].format(node=group.node, peer=group.peer), remedy.format(rail=group.rail), group.node, group.peer, group.rail)
        for group in groups
    ]


def reach(seen: Measured, wanted: Wanted) -> Checked:
    """Each node's packets arrive at each other's address."""
    found = []
    for node in seen.nodes:
        if not node.read:
            found.append(
                Item(
                    "reach",
                    BLOCKED,
                    "it could not be looked at, as told above",
                    "See that you can log in to it by ssh from this machine, then run this again.",
                    node.name,
                )
            )
        elif node.probe and "pairs" not in node.probe:
            why = str(node.probe.get("msg") or "no reason given").rstrip(".")
            found.append(Item("reach", BLOCKED, f"it could not be measured: {why}", "Run this again with -vvv to see more of it.", node.name))
    counted = [edge for edge in seen.open if edge.loss is not None]
    # What TCP connects to is reached: then it is UDP that a firewall keeps out, which is told as that.
    dead = {edge.key for edge in counted if edge.loss == 1 and not edge.connects}
    texts = {
        "all": "no node's packets arrive at any other node",
        "node": "no packet gets from it to the others, nor from them to it",
        "into": "nothing that the others send arrives there, though what it sends arrives at them",
        "out_of": "nothing that it sends arrives at the others, though what they send arrives there",
        "pair": "nothing that either sends arrives at the other",
        "one_way": "nothing that {node} sends arrives at {peer}, though what {peer} sends arrives at {node}",
    }
    for group in collapse(counted, dead):
        # ARP crosses every cable that is good, and no firewall for IP has a part in it.
        near = all(edge.told.get("macs") for edge in group.edges)
        # Of what a firewall drops on a rail beside the one that ranks meet by, RDMA may still pass: the collective shows it.
        beside = near and all(seen.beside(edge) for edge in group.edges)
        found += items([group], "reach", SLOW if beside else BLOCKED, texts, _FILTERED if near else _UNPLUGGED)
    # An answer needs both directions, and so do TCP and all that is measured by it.
    seen.explained |= dead | {edge.turned for edge in counted if edge.key in dead}
    # What could not be tried at all, for a reason that nothing before has told.
    told = {item.node for item in found}
    untried = [
        edge
        for edge in seen.open
        if edge.loss is None and edge.told.get("error") and edge.turned not in dead and not told & {edge.src, edge.dst} and not seen.left_out(edge)
    ]
    for group in collapse(untried, {edge.key for edge in untried}):
        why = str(group.edges[0].told["error"]).rstrip(".")
        found.append(Item("reach", BLOCKED, f"not tried: {why}", "Mend that, then run this again.", group.node, group.peer, group.rail))
    return Checked(found, f"{len(counted)} of {len(counted)} directions" if counted else None)


def loss(seen: Measured, wanted: Wanted) -> Checked:
    """Packets are not lost on the way."""
    counted = [edge for edge in seen.open if edge.loss is not None]
    found = []
    remedy = "Look at the errors of {rail} on both ends ('ip -s link', 'ethtool -S'); clean or change the cable, and try another port of the switch."
    for result, least, most in ((BLOCKED, LOSS_BLOCKED, 2.0), (SLOW, LOSS_SLOW, LOSS_BLOCKED)):
        # One packet alone is no measure of anything.
        lossy = {edge.key: edge for edge in counted if least <= (edge.loss or 0) < most and _lost(edge) > 1}
        for group in collapse(counted, lossy.keys()):
            share = max(edge.loss or 0 for edge in group.edges)
            texts = {
                "all": f"up to {share:.0%} of the packets between all nodes are lost",
                "node": f"up to {share:.0%} of the packets to and from it are lost",
                "into": f"up to {share:.0%} of the packets that the others send to it are lost",
                "out_of": f"up to {share:.0%} of the packets that it sends are lost",
                "pair": f"up to {share:.0%} of the packets between them are lost, in both directions",
                "one_way": f"{share:.0%} of the packets that {{node}} sends to {{peer}} are lost",
            }
            found += items([group], "loss", result, texts, remedy)
        if result == BLOCKED:
            # Under such a loss no other measure says anything, in either direction.
            seen.explained |= set(lossy) | {edge.turned for edge in lossy.values()}
    slowest = max((edge.told["rtt_ms"] for edge in counted if edge.told.get("rtt_ms") is not None), default=None)
    return Checked(found, (f"none, answers within {slowest:.2g} ms" if slowest is not None else "none") if counted else None)


def _lost(edge: Edge) -> float:
    return (edge.loss or 0) * (edge.told.get("sent") or 100)


def path_mtu(seen: Measured, wanted: Wanted) -> Checked:
    """Whole frames pass: all rails of a subnet have one MTU, and what lies between them takes it."""
    rails = [(node, rail) for node in seen.nodes for rail in node.rails if rail.get("mtu")]
    found = []
    small: set[tuple[str, str]] = set()
    for node, rail in rails:
        same = [(other, its) for other, its in rails if network(its) == network(rail)]
        other, largest = max(same, key=lambda entry: entry[1]["mtu"])
        if rail["mtu"] < largest["mtu"]:
            small.add((node.name, rail["netdev"]))
            text = f"its MTU is {rail['mtu']}, where {other.name} has {largest['mtu']}, so larger packets to it are lost and RDMA sends smaller pieces"
            found.append(Item("path_mtu", SLOW, text, _mtu(rail["netdev"], largest["mtu"]), node.name, None, rail["netdev"]))
        elif rail["mtu"] < JUMBO and rail.get("hca") and rail.get("link_layer") != "infiniband":
            text = f"its MTU is {rail['mtu']}, so RDMA sends small pieces"
            found.append(Item("path_mtu", SLOW, text, _mtu(rail["netdev"], JUMBO), node.name, None, rail["netdev"]))
    mtus = {(node.name, rail["netdev"]): rail["mtu"] for node, rail in rails}
    measured = [edge for edge in seen.open if edge.told.get("path_mtu")]
    narrow = {edge.key for edge in measured if edge.told["path_mtu"] < min(mtus.get((edge.src, edge.netdev), 0), mtus.get((edge.dst, edge.peer_netdev), 0))}
    for group in collapse(measured, narrow):
        least = min(edge.told["path_mtu"] for edge in group.edges)
        texts = dict.fromkeys(("all", "node", "into", "out_of", "pair"), f"packets of more than {least} bytes are lost on the way, though both ends take them")
        texts["one_way"] = f"packets of more than {least} bytes from {{node}} to {{peer}} are lost on the way, though both ends take them"
        remedy = "Have the switch between them take frames of 9216 bytes on both ports, or give {rail} a smaller MTU on all nodes."
        found += items([group], "path_mtu", BLOCKED, texts, remedy)
    passed = sorted({edge.told["path_mtu"] for edge in measured})
    return Checked(found, f"{' and '.join(map(str, passed))} bytes pass" if passed else None)


def _mtu(netdev: str, mtu: int) -> str:
    return f"Set it with 'ip link set {netdev} mtu {mtu}', and in the node's netplan so that it stays."


def arp(seen: Measured, wanted: Wanted) -> Checked:
    """Who answers for a fabric address is the interface that has it."""
    found = []
    owners: dict[str, tuple[str, str]] = {}
    for node in seen.nodes:
        # Where the management network is on the same switch, its interface hears the question as well, and Linux answers for all of a node's addresses.
        for its in [*(node.fabric.get("interfaces") or []), *(node.fabric.get("rails") or [])]:
            if its.get("mac"):
                owners[str(its["mac"]).lower()] = (node.name, its["netdev"])
    rails = {(node.name, rail["netdev"]) for node in seen.nodes for rail in node.fabric.get("rails") or []}
    told: set[tuple[str, str]] = set()
    for edge in seen.open:
        right = str(edge.told.get("mac_told") or "").lower()
        for mac in _macs(edge.told):
            address = edge.told.get("peer_address") or "its address"
            if not right or mac == right or (edge.dst, mac) in told:
                continue
            told.add((edge.dst, mac))
            owner, netdev = owners.get(mac, (None, None))
            if owner == edge.dst:
                half = (owner, netdev) in rails
                text = f"{netdev} answers for {address}, which is the address of {edge.peer_netdev}: packets take the wrong " + (
                    "half of the port" if half else "interface"
                )
                remedy = "Set net.ipv4.conf.all.arp_ignore=1 and net.ipv4.conf.all.arp_announce=2 (node_prep_sysctl does), or " + (
                    "take the twins into two subnets." if half else "keep the two networks apart on the switch."
                )
                found.append(Item("arp", SLOW, text, remedy, edge.dst, None, edge.peer_netdev))
            else:
                who = owner or f"a machine that is none of these nodes ({mac})"
                text = f"{who} answers for its address {address}, too: whoever asks reaches the one or the other"
                remedy = f"Find the other one with 'arping -D -I {edge.netdev} {address}' on {edge.src}, and give it another address."
                found.append(Item("duplicate_address", BLOCKED, text, remedy, edge.dst, owner, edge.peer_netdev))
                seen.explained |= {other.key for other in seen.whole if edge.dst in (other.src, other.dst)}
    return Checked(found, "each address is answered for by its own interface" if any(_macs(edge.told) for edge in seen.whole) else None)


def _macs(record: t.Mapping[str, t.Any]) -> list[str]:
    """All that answered for the peer's address."""
    return list(dict.fromkeys(str(mac).lower() for mac in [*(record.get("macs") or []), record.get("mac_seen")] if mac))


def firewall(seen: Measured, wanted: Wanted) -> Checked:
    """The ports that ranks need are let in."""
    found = []
    tried = [edge for edge in seen.open if edge.told.get("tcp")]
    uses = {(entry.port, entry.host): entry.use for entry in wanted.ports}
    for node in seen.nodes:
        shut: dict[tuple[int, str], list[Edge]] = {}
        for edge in (edge for edge in tried if edge.dst == node.name):
            for port, answer in edge.told["tcp"].items():
                use = uses.get((int(port), node.name)) or uses.get((int(port), None))
                if use and answer not in ("ok", "in_use"):
                    shut.setdefault((int(port), answer), []).append(edge)
        for answer in sorted({its for _port, its in shut}):
            ports = sorted(port for port, its in shut if its == answer)
            found.append(_shut(node, ports, answer, [edge for port in ports for edge in shut[port, answer]], wanted))
        deaf = sorted({edge.src for edge in seen.open if edge.dst == node.name and edge.loss == 1 and edge.connects})
        if deaf:
            text = f"no UDP packet of {listed(deaf)} arrives there, though TCP does: a firewall drops it, and loss and MTU can't be measured"
            found.append(Item("firewall", SLOW, text, _let_in(node), node.name, deaf[0] if len(deaf) == 1 else None))
    tcp = sorted({int(port) for edge in tried for port in edge.told["tcp"]})
    return Checked(found, f"TCP {listed([str(port) for port in tcp])} let in" if tcp else None)


def _shut(node: Node, ports: list[int], answer: str, shut: list[Edge], wanted: Wanted) -> Item:
    its = node.preflight.get("firewall") or {}
    peers = sorted({edge.src for edge in shut})
    # Ranks meet, and NCCL's sockets go, by the node's address on the fabric. What goes over its other rails is RDMA, of which no firewall of a node hears.
    met = any(edge.peer_netdev == node.fabric.get("netdev") for edge in shut)
    vital = met and any(entry.use != "api" and entry.port in ports and entry.host in (None, node.name) for entry in wanted.ports)
    words = ", ".join(f"{port} ({next((entry.use for entry in wanted.ports if entry.port == port), 'other')})" for port in ports)
    what = "is dropped" if answer == "timeout" else f"is refused ({answer})"
    text = f"what {listed(peers)} sends to its TCP port{'s' if len(ports) > 1 else ''} {words} {what} by a firewall" + (
        f" ({its['tool']})" if its.get("tool") else ""
    )
    rail = next((rail["netdev"] for rail in node.rails if rail["netdev"] in {edge.peer_netdev for edge in shut}), None)
    return Item("firewall", BLOCKED if vital else SLOW, text, _let_in(node), node.name, peers[0] if len(peers) == 1 else None, rail)


def _let_in(node: Node) -> str:
    """How its firewall lets the others in."""
    nets = list(dict.fromkeys(str(network(rail)) for rail in node.rails)) or ["the fabric's network"]
    tool = (node.preflight.get("firewall") or {}).get("tool") or ""
    told = [_OPEN.get(tool, "all that comes from {net}").format(net=net) for net in nets]
    told += ["then 'firewall-cmd --reload'"] if tool == "firewalld" else []
    return f"Let the fabric's network in on {node.name}: {listed(told)}."


def clock(seen: Measured, wanted: Wanted) -> Checked:
    """The clocks agree as far as it matters: the nodes' logs are told as one story, and a store of tokens or certificates goes by them.

    Ranks wait for each other by clocks that nobody sets, so a difference stops no launch.
    """
    offsets: dict[str, float] = {}
    error = 0.0
    first = next((edge.src for edge in seen.whole if edge.told.get("clock_offset_s") is not None), None)
    for edge in seen.whole:
        if first and edge.src == first and edge.told.get("clock_offset_s") is not None:
            offsets.setdefault(edge.dst, float(edge.told["clock_offset_s"]))
            error = max(error, float(edge.told.get("clock_error_s") or 0))
    if first is None:
        return Checked()
    offsets[first] = 0.0
    middle = sorted(offsets.values())[len(offsets) // 2] if len(offsets) > 2 else _trusted(seen.nodes, offsets)
    found = []
    for node in seen.nodes:
        off = offsets.get(node.name, middle) - middle
        if abs(off) - error > wanted.clock_seconds:
            told = node.preflight.get("clock") or {}
            other = next((name for name, value in offsets.items() if value == middle), first)
            text = f"its clock is {duration(abs(off))} {'ahead of' if off > 0 else 'behind'} {other}'s" + (
                ", and it is not synchronised" if told.get("synchronised") is False else ""
            )
            remedy = f"Have it set by NTP: 'timedatectl set-ntp true', or {told.get('by') or 'chrony'} with a server that it reaches."
            found.append(Item("clock", SLOW, text, remedy, node.name, other if len(offsets) == 2 else None))
    return Checked(found, f"within {(max(abs(value - middle) for value in offsets.values()) + error) * 1000:.2g} ms")


def _trusted(nodes: t.Sequence[Node], offsets: t.Mapping[str, float]) -> float:
    """Of two clocks, that of the one that is synchronised; else the first node's."""
    known = [node for node in nodes if node.name in offsets]
    synchronised = [node for node in known if (node.preflight.get("clock") or {}).get("synchronised")]
    return offsets[(synchronised if len(synchronised) == 1 else known)[0].name]
