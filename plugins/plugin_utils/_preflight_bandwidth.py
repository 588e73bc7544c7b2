# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is private to the collection: it can change at any time.

"""Judges what each direction of each rail carries against what its link says that it could. Pure."""

from __future__ import annotations

from ansible_collections.sparkstack.inference.plugins.plugin_utils._preflight_edges import Edge, collapse
from ansible_collections.sparkstack.inference.plugins.plugin_utils._preflight_pairs import Measured, items
from ansible_collections.sparkstack.inference.plugins.plugin_utils._preflight_words import BLOCKED, READY, SLOW, Checked, Item, Wanted, gbit, worst

TCP_MBPS = 5000
"""What TCP reaches in this test on any node that a model is served from, also on a busy one: of a faster link no more is asked of TCP."""
DEGRADED_MBPS = 25000
"""A Spark's card that is in its slow state gives 13 Gb/s while it says 200 (NVIDIA/dgx-spark-playbooks, pull 108). TCP that gives less than this
can't tell it from a processor that is busy."""

BUSY = 0.5
"""The share of the time that TCP's threads ran or waited for a processor, from which on that was the limit and not the link."""

# What stands in a sentence for the edges of a group.
_KINDS = {
    "pair": "each way",
    "one_way": "from {node} to {peer}",
    "into": "to it",
    "out_of": "from it",
    "node": "to and from it",
    "all": "between all nodes",
}


def bandwidth(seen: Measured, wanted: Wanted) -> Checked:
    """Each direction of each rail gives what its link's speed promises."""
    speeds = {(node.name, rail["netdev"]): rail.get("speed_mbps") or 0 for node in seen.nodes for rail in node.rails}
    rdma = {(node.name, rail["netdev"]) for node in seen.nodes for rail in node.rails if rail.get("hca")}
    serving = any(
        wanted.deployment and holder.get("deployment") == wanted.deployment for node in seen.nodes for holder in node.preflight.get("listeners") or []
    )
    measured: list[Edge] = []
    bad: dict[tuple[str, str, str, str], tuple[str, float, float]] = {}
    busy: list[Edge] = []
    unsure = set()
    for edge in seen.open:
        speed = min(speeds.get((edge.src, edge.netdev), 0), speeds.get((edge.dst, edge.peer_netdev), 0))
        if edge.told.get("mb_s") is None or speed <= 0:
            continue
        measured.append(edge)
        by_tcp, got = edge.told.get("by", "tcp") == "tcp", edge.told["mb_s"] * 8
        promised = min(speed, TCP_MBPS) if by_tcp else speed
        if got < promised * wanted.min_share and by_tcp and (edge.told.get("busy") or 0) >= BUSY:
            busy.append(edge)
        elif got < promised * wanted.min_share:
            bad[edge.key] = (BLOCKED if got < promised * wanted.block_share and not serving else SLOW, got, promised)
        elif by_tcp and speed > DEGRADED_MBPS > got and (edge.src, edge.netdev) in rdma:
            unsure.add(edge.src)
    found = []
    for group in collapse(measured, bad.keys()):
        result = worst(bad[edge.key][0] for edge in group.edges)
        edge = min(group.edges, key=lambda one: bad[one.key][1])
        _result, got, promised = bad[edge.key]
        speed = min(speeds[edge.src, edge.netdev], speeds[edge.dst, edge.peer_netdev])
        text = f"{gbit(got)} {_KINDS[group.kind]} by {edge.told.get('by', 'tcp')}, where {gbit(speed)} of link give {gbit(promised * wanted.min_share)}"
        remedy = (
            "Look for a limit with 'tc qdisc show dev {rail}' on both ends, then at the cable; a Spark's card that gives 13 Gb/s at 200 "
            "needs the power taken off for a minute, a reboot does not help."
        )
        if serving:
            # Ranks that serve use the same link: what is left of it must not end a run that is to restart them.
            remedy = f"{wanted.deployment} serves over the same link; measure again when it is stopped. If it is as slow then: {remedy[0].lower()}{remedy[1:]}"
        found += items([group], "bandwidth", result, dict.fromkeys(_KINDS, text), remedy)
    failed = {edge.key: str(edge.told["rdma_error"]).rstrip(".") for edge in seen.open if edge.told.get("rdma_error")}
    for group in collapse(measured, failed.keys()):
        text = f"RDMA failed there, though both ends have it (ib_write_bw: {failed[group.edges[0].key]}), so TCP was measured"
        remedy = "Look at 'ibv_devinfo' on both ends, and at the items rdma, infiniband and kernel here."
        found.append(Item("bandwidth", SLOW, text, remedy, group.node, group.peer, group.rail))
    if busy and not found:
        least = min(edge.told["mb_s"] * 8 for edge in busy)
        text = f"{gbit(least)} by TCP while the processor was the limit, so nothing is known of the link"
        found.append(Item("bandwidth", READY, text, "Run this again when the nodes have less to do."))
    elif unsure and not found:
        text = "measured by TCP, which can't tell a link in its slow state (13 Gb/s) from a busy processor"
        found.append(Item("bandwidth", READY, text, "To be sure, install the package perftest (ib_write_bw) on all nodes."))
    rates = [edge.told["mb_s"] * 8 for edge in measured]
    by = " and ".join(sorted({str(edge.told.get("by", "tcp")) for edge in measured}))
    return Checked(found, (f"{gbit(min(rates))} to {gbit(max(rates))} by {by}" if min(rates) < max(rates) else f"{gbit(rates[0])} by {by}") if rates else None)
