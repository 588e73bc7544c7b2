# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A load that takes more than its node has, with the memory guard and without: rows of a part of their own, and what the guard must have done.

The node's limit is that of a control group, and its /proc/meminfo the whole machine's: so the rehearsal, which asks that first as engines do,
takes its weights bit by bit until the node has nothing left.
"""

from __future__ import annotations

import json
import typing as t

import play

from . import makers, rows
from .engines import NODES, SGLANG, WORKER, Engine
from .launch import Missed

_GIB = 1 << 30
_STOP = 5.0
"""Seconds in which the rank's last process must be gone."""


def too_large(engine: Engine) -> rows.Changes:
    """The worker's weights take a GiB more than its node may have in all; the container has no limit of its own.

    :raises Missed: where the machine itself has not that much, so that the rank would refuse by itself.
    """
    limit = next(int(node["memory_limit"]) for node in json.loads(play.lab("status", "--json", ok=(0, 1)))["nodes"] if node["name"] == WORKER)
    meminfo = dict(line.split(":") for line in play.node(WORKER, "cat /proc/meminfo").splitlines())
    left = int(meminfo["MemAvailable"].split()[0]) << 10
    if left < limit + 2 * _GIB:
        raise Missed(f"this machine has {left / _GIB:.1f} GiB left: give the nodes less than {left / _GIB - 2:.1f} GiB each (lab memory {WORKER} SIZE)")
    return {WORKER: {**engine.squeezed(limit), "memory": None}}


# A MB a second is some 300 MiB of the weights.
LOAD = {"changes": too_large, "before": (makers.slow_disks("1M"),), "crash": True, "engines": (SGLANG.name,)}
ROWS = (
    rows.Row(
        "load larger than the node, guarded",
        rows.Wanted("failed", WORKER, ("oom",), ("was stopped by the memory guard", "available:", "floor"), never=("Killed process",)),
        guard=True,
        moment=lambda: float(makers.guard_told(WORKER)["at"]),
        **t.cast("dict[str, t.Any]", LOAD),
    ),
    rows.Row(
        "load larger than the node, not guarded",
        rows.Wanted("failed", WORKER, ("oom",), ("Killed process",), never=("memory guard",)),
        moment=lambda: makers.oom_killed(WORKER),
        **t.cast("dict[str, t.Any]", LOAD),
    ),
)


def problems(told: t.Mapping[str, t.Any]) -> list[str]:
    """What is wrong about a stop, in words: it was slow, the kernel was faster, or a node does not answer."""
    found = []
    if told["gone_s"] > _STOP:
        found.append(f"the rank's last process was gone after {told['gone_s']} s only")
    if not told["curve"] or told["curve"][-1][1] > 2 * told["floor"]:
        found.append(f"the guard stopped it with {told['available'] / _GIB:.1f} GiB left")
    try:
        makers.oom_killed(WORKER)
        found.append("the kernel has killed too")
    except Missed:
        # As it should be.
        pass
    states = {node: play.node(node, "systemctl is-active docker || true").strip() for node in NODES}
    return found + [f"Docker on {node} is {state}" for node, state in states.items() if state != "active"]
