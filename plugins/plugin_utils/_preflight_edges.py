# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is private to the collection: it can change at any time.

"""What one node's packets come to at another: an edge for each direction of each pair of rails, and which edges have one cause. Pure."""

from __future__ import annotations

import typing as t
from dataclasses import dataclass

from ansible_collections.sparkstack.inference.plugins.plugin_utils._preflight_words import Node


@dataclass(frozen=True)
class Edge:
    """From one node's rail to another's, and what the sender's probe told of it."""

    src: str
    dst: str
    netdev: str
    peer_netdev: str
    told: t.Mapping[str, t.Any]

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What no other edge has."""
        return self.src, self.dst, self.netdev, self.peer_netdev

    @property
    def turned(self) -> tuple[str, str, str, str]:
        """The key of the other direction."""
        return self.dst, self.src, self.peer_netdev, self.netdev

    @property
    def rail(self) -> str:
        """The interface, or both where their names differ."""
        return self.netdev if self.netdev == self.peer_netdev else f"{self.netdev} to {self.peer_netdev}"

    @property
    def loss(self) -> float | None:
        """The share of what was sent that has not arrived, by the receiver's count; by the answers where that is not known; None: not measured."""
        sent = self.told.get("sent") or 0
        if not sent:
            return None
        if self.told.get("loss_share") is not None:
            return float(self.told["loss_share"])
        return max(0.0, 1 - float(self.told.get("answered") or 0) / float(sent))

    @property
    def connects(self) -> bool:
        """Whether a TCP connection came about."""
        return self.told.get("control") == "ok" or "ok" in (self.told.get("tcp") or {}).values()


def edges(nodes: t.Sequence[Node]) -> list[Edge]:
    """All edges that a probe has told of, in the nodes' order."""
    known = {node.name for node in nodes}
    return [
        Edge(node.name, record["peer"], record.get("netdev") or "?", record.get("peer_netdev") or "?", record)
        for node in nodes
        for record in node.probe.get("pairs") or []
        if record["peer"] in known
    ]


@dataclass(frozen=True)
class Group:
    """Edges with one cause. C(kind): V(all) (every edge), V(node) (all to and from a node), V(into) (all to it), V(out_of) (all from it),
    V(pair) (both directions between two), V(one_way)."""

    kind: str
    edges: tuple[Edge, ...]
    node: str | None = None
    peer: str | None = None
    rail: str | None = None


def collapse(whole: t.Sequence[Edge], bad: t.Collection[tuple[str, str, str, str]]) -> list[Group]:
    """Bad edges by what they have in common: of a node that nobody reaches, not each pair is told, but the node.

    :param whole: all edges that were measured. :param bad: the keys of those that are bad.
    """
    left = [edge for edge in whole if edge.key in bad]
    if len(left) == len(whole) and len({edge.src for edge in whole}) > 2:
        return [Group("all", tuple(left))]
    found = []
    places = sorted({(edge.src, edge.netdev) for edge in whole} | {(edge.dst, edge.peer_netdev) for edge in whole})
    for wanted in ("node", "into", "out_of"):
        for node, netdev in places:
            into = [edge for edge in whole if (edge.dst, edge.peer_netdev) == (node, netdev)]
            out = [edge for edge in whole if (edge.src, edge.netdev) == (node, netdev)]
            mine = {"node": into + out, "into": into, "out_of": out}[wanted]
            others = {edge.src if edge.dst == node else edge.dst for edge in mine}
            if len(others) > 1 and all(edge in left for edge in mine):
                found.append(Group(wanted, tuple(mine), node, None, netdev))
                left = [edge for edge in left if edge not in mine]
    while left:
        edge = left.pop(0)
        turned = next((other for other in left if other.key == edge.turned), None)
        if turned:
            left.remove(turned)
        found.append(Group("pair" if turned else "one_way", (edge, turned) if turned else (edge,), edge.src, edge.dst, edge.rail))
    return found
