# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""What is told beside a verdict: who holds what the culprit lacked, and what else is worth knowing. Pure."""

from __future__ import annotations

import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils._records import Record, closeup, name, reading
from ansible_collections.sparkstack.inference.plugins.module_utils._words import size

_CLOCKS = 2.0
"""Seconds by which the clocks of two nodes may differ untold; the look from the controller itself is less exact than a part of one."""
_HOLDS = 0.05
"""The part of a node's memory from which on somebody who holds it is named."""


def holder(cause: str, culprit: Record) -> t.Tuple[t.List[str], str]:
    """Who holds what the culprit lacked: its memory, or its port; as lines, and as a remedy that names it."""
    if cause == "port_in_use":
        owners = [o for o in closeup(culprit, "listeners") if not o.get("own")]
        lines = ["{}: port {} belongs to {}.".format(culprit["node"], o["port"], _owner(o)) for o in owners]
        return lines, "Stop {} on {{node}}, or choose another port.".format(_owner(owners[0])) if owners else ""
    if cause not in ("oom", "memory_unbalanced", "killed", "worker_died"):
        return [], ""
    memory = (culprit.get("closeup") or {}).get("memory") or {}
    total = memory.get("total_bytes") or 0
    holders = [h for h in closeup(culprit, "holders") if not h.get("own") and h.get("kind") != "page_cache" and h.get("bytes", 0) >= _HOLDS * total]
    lines = ["{}: {} holds {}.".format(culprit["node"], _holder_name(h), size(h["bytes"])) for h in holders]
    if memory.get("available_bytes") is not None and lines:
        lines.append("{}: {} of {} are available.".format(culprit["node"], size(memory["available_bytes"]), size(total)))
    if not holders or cause not in ("oom", "memory_unbalanced"):
        return lines, ""
    first = holders[0]
    stop = f"docker stop {first['name']}" if first.get("kind") == "container" else "stop it"
    return lines, f"{_holder_name(first)} holds {size(first['bytes'])} on {{node}}: {stop}, or give the engine less.".replace("the ", "The ", 1)


def _holder_name(holder: t.Mapping[str, t.Any]) -> str:
    image = " of image {}".format(holder["image"]) if holder.get("image") else ""
    return "the {} {}{}".format(holder.get("kind") or "process", holder.get("name"), image).replace("{", "(").replace("}", ")")


def _owner(owner: t.Mapping[str, t.Any]) -> str:
    container = owner.get("container_name") or str(owner.get("container") or "")[:12]
    return "{}{}".format(f"container {container}, process " if container else "process ", f"{owner.get('process') or '?'} (pid {owner.get('pid')})")


def notes(ranks: t.Sequence[Record]) -> t.List[str]:
    """What is worth knowing beside the verdict."""
    found = []
    clocks = sorted((float(r["clock_offset"]), str(r["node"])) for r in ranks if r.get("clock_offset") is not None)
    if clocks and clocks[-1][0] - clocks[0][0] > _CLOCKS:
        ahead = clocks[-1][0] - clocks[0][0]
        found.append(
            f"The clock of {clocks[-1][1]} is {ahead:.0f} s ahead of that of {clocks[0][1]}: times are corrected here; let both nodes follow one NTP server."
        )
    slow = [name(record) for record in ranks if _over_sockets(reading(record).get("nccl") or {})]
    if slow:
        found.append(f"NCCL of {', '.join(slow)} goes over TCP sockets (NET/Socket), not over RDMA: it works, and is slow.")
    for record in ranks:
        nccl = reading(record).get("nccl") or {}
        ways = nccl.get("channels") or {}
        if len(nccl.get("devices") or []) > 1 and len({way for way in ways if way.startswith("NET/IB")}) == 1:
            found.append(f"NCCL of {name(record)} has {len(nccl['devices'])} RDMA devices and uses one: {', '.join(nccl['devices'])}.")
        earlier = reading(record).get("earlier") or []
        if earlier:
            causes = ", ".join(str(run.get("cause") or f"ended in {run.get('phase')}") for run in earlier)
            found.append(f"The log of {name(record)} holds {len(earlier)} earlier start(s): {causes}.")
    return found


def _over_sockets(nccl: t.Mapping[str, t.Any]) -> bool:
    ways = nccl.get("channels") or {}
    return nccl.get("network") == "Socket" or (any("NET/Socket" in way for way in ways) and not any(way.startswith("NET/IB") for way in ways))
