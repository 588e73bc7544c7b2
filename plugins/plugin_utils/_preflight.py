# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is private to the collection: it can change at any time.

"""The preflight's verdict: what the modules told of all nodes becomes items, each ready, slow or blocked, and a table of versions. Pure."""

from __future__ import annotations

import time
import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils._words import listed, utc
from ansible_collections.sparkstack.inference.plugins.plugin_utils import _preflight_bandwidth as rates
from ansible_collections.sparkstack.inference.plugins.plugin_utils import _preflight_collective as collectives
from ansible_collections.sparkstack.inference.plugins.plugin_utils import _preflight_group as group
from ansible_collections.sparkstack.inference.plugins.plugin_utils import _preflight_links as links
from ansible_collections.sparkstack.inference.plugins.plugin_utils import _preflight_needs as needs
from ansible_collections.sparkstack.inference.plugins.plugin_utils import _preflight_pairs as pairs
from ansible_collections.sparkstack.inference.plugins.plugin_utils._preflight_words import (
    BLOCKED,
    ITEMS,
    READY,
    Checked,
    Data,
    Item,
    Node,
    Wanted,
    WantedError,
    worst,
)

FORMAT = 1
"""Raised when a key of the mapping changes its meaning or goes; new keys may come at any time."""
_KEYS = ("fabric", "preflight", "gpu_memory", "probe", "collective")


def check_skip(skip: t.Sequence[str]) -> None:
    """Refuse a name that is no item's; :raises WantedError: with all names."""
    unknown = sorted(set(skip) - set(ITEMS))
    if unknown:
        raise WantedError(f"There is no item {unknown[0]} to skip: choose from {', '.join(ITEMS)}.")


def judge(told: t.Mapping[str, t.Mapping[str, t.Any] | None], wanted: Wanted, skip: t.Sequence[str] = (), now: float | None = None) -> Data:
    """The whole, as docs/preflight.md describes it.

    :param told: by node, C(fabric), C(preflight), C(gpu_memory), C(probe), C(collective), as the modules returned them; nothing of a node that could
        not be read. :param skip: names of items that are not to be told. What they explain of others stays explained.
    :param now: seconds since the epoch. :raises WantedError: for a name in C(skip) that is no item's.
    """
    check_skip(skip)
    nodes = [Node(name, **{key: (data or {}).get(key) or {} for key in _KEYS}) for name, data in told.items()]
    checked = _check(nodes, wanted)
    found: list[Item] = []
    left_out = []
    for name in ITEMS:
        one = checked[name]
        if name in skip:
            continue
        if not one.findings and one.detail is None:
            left_out.append(name)
        found += one.findings
        if one.detail and not any(item.result != READY for item in one.findings):
            found.append(Item(name, READY, one.detail))
    return {
        "format": FORMAT,
        "taken_at": utc(time.time() if now is None else now),
        "result": worst(item.result for item in found),
        "nodes": [node.name for node in nodes],
        "checks": [item.data() for item in found],
        "skipped": [name for name in ITEMS if name in skip],
        "not_checked": left_out,
        "parity": group.parity(nodes),
    }


def _check(nodes: t.Sequence[Node], wanted: Wanted) -> dict[str, Checked]:
    """All items. The order matters: what comes first explains what comes later."""
    read = [node for node in nodes if node.read]
    seen = pairs.Measured.of(nodes)
    found: dict[str, Checked] = {
        "address": links.address(read, wanted),
        "link": links.link(read, wanted),
        "subnet": links.subnet(read, wanted),
        "duplicate_address": links.duplicate_address(read, wanted),
    }
    down = {name for item in found["link"].findings if item.result == BLOCKED for name in (item.node, item.peer) if name}
    found["twins"] = links.twins(read, wanted, down)
    for name in ("address", "link", "subnet", "duplicate_address"):
        seen.explain(found[name].findings)
    found["arp"] = pairs.arp(seen, wanted)
    # Who answers for an address tells also that two machines have it.
    found["duplicate_address"].findings += [item for item in found["arp"].findings if item.item == "duplicate_address"]
    found["arp"].findings = [item for item in found["arp"].findings if item.item == "arp"]
    for name, judge_pairs in (("reach", pairs.reach), ("loss", pairs.loss), ("path_mtu", pairs.path_mtu), ("firewall", pairs.firewall)):
        found[name] = judge_pairs(seen, wanted)
    found["clock"] = pairs.clock(seen, wanted)
    found["bandwidth"] = rates.bandwidth(seen, wanted)
    for name, judge_nodes in _OF_NODES.items():
        found[name] = judge_nodes(read, wanted) if read else Checked()
    found["collective"] = collectives.collective(read, wanted, [item for one in found.values() for item in one.findings if item.result == BLOCKED])
    return found


_OF_NODES: dict[str, t.Callable[[t.Sequence[Node], Wanted], Checked]] = {
    "hosts_file": needs.hosts_file,
    "ports": needs.ports,
    "memlock": links.memlock,
    "infiniband": links.infiniband,
    "kernel": group.kernel,
    "driver": group.driver,
    "firmware": group.firmware,
    "docker": group.docker,
    "store": group.store,
    "image": group.image,
    "nccl": group.nccl,
    "disk": needs.disk,
    "speed": links.speed,
    "rdma": links.rdma,
}


def sentence(report: t.Mapping[str, t.Any]) -> str:
    """Why it is blocked, each cause with its remedy; nothing where it is not."""
    causes = [f"{item['message']} {item['remedy']}".strip() for item in report["checks"] if item["result"] == BLOCKED]
    names = sorted({item["item"] for item in report["checks"] if item["result"] == BLOCKED}, key=ITEMS.index)
    if not causes:
        return ""
    return " ".join([*causes, f"(To go on all the same, put {listed(names)} into preflight_skip.)"])
