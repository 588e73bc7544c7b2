# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is private to the collection: it can change at any time.

"""Judges the collective that all ranks took part in. Pure."""

from __future__ import annotations

import typing as t

from ansible_collections.sparkstack.inference.plugins.plugin_utils._preflight_words import BLOCKED, RESULTS, Checked, Item, Node, Wanted

_EXPLAIN = ("address", "link", "subnet", "duplicate_address", "reach", "loss", "path_mtu", "firewall", "ports", "docker", "infiniband", "rdma")
"""Items that explain a collective that comes to nothing."""


def collective(nodes: t.Sequence[Node], wanted: Wanted, blocked: t.Sequence[Item]) -> Checked:
    """All ranks met and exchanged something, by the transport that is expected.

    :param blocked: what is blocked already. Where that explains why they could not, it is not told again.
    """
    # In check mode there is no verdict, and that is said.
    told = next((node for node in nodes if node.collective and node.collective.get("verdict", BLOCKED)), None)
    if told is None:
        return Checked()
    verdict = told.collective
    result = verdict.get("verdict") or BLOCKED
    text = str(verdict.get("message") or verdict.get("msg") or "it came to no end").rstrip(".")
    if result not in RESULTS or result == RESULTS[0]:
        return Checked([], text)
    if result == BLOCKED and any(item.item in _EXPLAIN for item in blocked):
        return Checked()
    remedy = str(verdict.get("remedy") or "See what it says above, and run this again.")
    return Checked([Item("collective", result, text, remedy, verdict.get("culprit"))])
