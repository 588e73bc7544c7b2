# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is private to the collection: it can change at any time.

"""What actually runs against what is wanted, over all ranks together. Pure.

A node's C(info) is the answer of M(sparkstack.inference.inference_info) there.
"""

from __future__ import annotations

import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils._logline import moment
from ansible_collections.sparkstack.inference.plugins.module_utils._records import swept_by
from ansible_collections.sparkstack.inference.plugins.module_utils._words import listed, utc
from ansible_collections.sparkstack.inference.plugins.plugin_utils import _collective, _container

Info = t.Mapping[str, t.Any]
Found = t.Mapping[str, t.Any]

_LATER = 30.0
"""Seconds after its making within which a container's first start comes; one that started later was started again."""
_APART = 3.0
"""Seconds by which a rank must be younger than another to be believed so: the nodes were not looked at in the same instant."""
_SLOW = 30.0
"""The same where the head has answered, for which it needs all ranks: a login at a node that works hard can take so long."""


def ending(info: Info, container: Found) -> str:
    """How a rank that does not run has ended, in words."""
    began, finished = moment(container.get("started_at")), moment(container.get("finished_at"))
    booted, daemon = info.get("booted_at"), info.get("docker_started_at")
    if began is None:
        return "it was made and never started"
    swept = swept_by(began, finished, booted, daemon)
    if swept == "node":
        return f"lost when its node was rebooted at {utc(booted or 0.0)}"
    if swept == "docker":
        return f"lost when Docker was restarted at {utc(daemon or 0.0)}"
    if container["oom_killed"]:
        return "killed by the kernel for memory"
    return f"exit code {container['exit_code']}"


def age(info: Info, container: Found) -> float | None:
    """Seconds since a rank was started, by its own node's clock; None where it isn't known."""
    began, now = moment(container.get("started_at")), info.get("now")
    return now - began if began is not None and now is not None else None


def started_again(container: Found) -> bool:
    """It was started later than by the launch that made it: by hand, or after a boot."""
    made, began = moment(container.get("created_at")), moment(container.get("started_at"))
    return made is not None and began is not None and began - made > _LATER


def apart(ranks: t.Sequence[tuple[str, Info, Found]], answered: bool = False) -> list[str]:
    """Sentences for running ranks that were not started together, head last: one that comes back alone finds no group.

    :param ranks: node, its info and its container, by rank; those that run. :param answered: the head has answered a request.
    """
    again = [(node, container["rank"]) for node, _info, container in ranks if started_again(container)]
    if again and len(again) < len(ranks):
        return [f"rank {rank} on {node} was started again alone" for node, rank in again]
    ages = {node: age(info, container) for node, info, container in ranks}
    if not ranks or ranks[0][2]["rank"] != 0 or ages[ranks[0][0]] is None:
        return []
    head = t.cast(float, ages[ranks[0][0]])
    # A worker is always started before the head.
    return [
        f"rank {container['rank']} on {node} was started after the head, so alone"
        for node, _info, container in ranks[1:]
        if (seconds := ages[node]) is not None and seconds < head - (_SLOW if answered else _APART)
    ]


def compare(ranks: t.Sequence[tuple[str, Info, str, dict[str, t.Any]]], deployment: str, answered: bool = False) -> tuple[list[str], list[str]]:
    """Why what runs is not what is wanted, and the fields that differ; both empty when all ranks run as wanted.

    :param ranks: by rank: node, its info, the name of its container, and what :func:`_container.public` shows of the wanted one.
    :param answered: the head has answered a request.
    """
    reasons: list[str] = []
    differences: list[str] = []
    launches = set()
    running = []
    for rank, (node, info, wanted, shown) in enumerate(ranks):
        own = owned(info, deployment)
        mine = next((container for container in own if container["name"] == wanted), None)
        extra = sorted(container["name"] for container in own if container["name"] != wanted)
        if extra:
            reasons.append(f"{node} also has {listed(extra)}, which is not its rank")
        if mine is None:
            reasons.append(f"rank {rank} is missing on {node}")
            continue
        launches.add(mine["launch_id"])
        if mine["running"]:
            running.append((node, info, mine))
        else:
            reasons.append(f"rank {rank} on {node} has ended ({ending(info, mine)})")
        if mine["spec_hash"] != _container.spec_hash(shown):
            found = _container.differences(mine["spec"], shown)
            differences += [f"{node}: {line}" for line in found]
            reasons.append(f"rank {rank} on {node} was started with something else ({_short(found)})")
    if len(launches) > 1:
        reasons.append("the ranks are of different launches")
    if not reasons:
        reasons += apart(running, answered)
    return reasons, differences


def owned(info: Info, deployment: str) -> list[t.Mapping[str, t.Any]]:
    """The deployment's containers on a node."""
    return [container for container in info.get("containers") or [] if container["deployment"] == deployment]


def others(info: Info, memory: t.Mapping[str, t.Any], deployment: str) -> list[dict[str, t.Any]]:
    """Who holds memory on a node and is none of the deployment's, largest first.

    :param memory: the fact C(gpu_memory), best with its C(holders); without, only what the driver tells is known.
    :returns: C(kind) (container or process), C(name), C(image), C(pid) and C(held) (bytes of what C(available_bytes) is about: a GPU's own
        memory, or the node's; 0 where the driver does not tell).
    """
    own = {container["name"] for container in owned(info, deployment)}
    key = "gpu_bytes" if memory.get("gpus") and not memory.get("unified") else "bytes"
    if memory.get("holders") is not None:
        found = [{**holder, "held": holder[key]} for holder in memory["holders"] if holder[key]]
    else:
        found = [_process(process) for process in memory.get("processes") or []]
    return [holder for holder in found if holder["kind"] != "container" or not (holder["name"] in own or _collective.leftover(holder["name"], deployment))]


def _process(process: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    container = process.get("container") or {}
    who = (
        {"kind": "container", "name": container.get("name"), "image": container.get("image")}
        if container
        else {"kind": "process", "name": process["name"], "image": None}
    )
    return {**who, "pid": process["pid"], "held": process.get("used_bytes") or 0}


def recorded(info: Info, deployment: str, launch_id: str) -> bool:
    """Whether a node has kept that a launch has answered; True where it can't be told."""
    if "ledger" not in info:
        return True
    good = (info["ledger"].get(deployment) or {}).get("good") or {}
    return bool(good.get("launch_id") == launch_id)


def seconds_to_ready(infos: t.Sequence[Info], deployment: str) -> float | None:
    """How long the last start took that came to serve, by what the nodes keep of it; None where none is kept."""
    for info in infos:
        kept = (info.get("ledger") or {}).get(deployment) or {}
        for record in (kept.get("good"), kept.get("last")):
            if record and record.get("answered") and record.get("seconds_to_ready"):
                return float(record["seconds_to_ready"])
    return None


def _short(lines: t.Sequence[str]) -> str:
    if not lines:
        return "an older form of this collection"
    return "; ".join(lines[:3]) + (f"; and {len(lines) - 3} more" if len(lines) > 3 else "")
