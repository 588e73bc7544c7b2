# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is private to the collection: it can change at any time.

"""The memory of a planned launch: what surely does not fit is refused, what is estimated is told. Pure."""

from __future__ import annotations

import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils._words import listed, size
from ansible_collections.sparkstack.inference.plugins.plugin_utils import _actual, _joining
from ansible_collections.sparkstack.inference.plugins.plugin_utils._footprint import plan_memory
from ansible_collections.sparkstack.inference.plugins.plugin_utils._memory_return import who
from ansible_collections.sparkstack.inference.plugins.plugin_utils._plan import Node, Plan, Settings

# Values that differ by less do the same.
_SAME = 0.005


def weights_per_rank(plan: Plan) -> int | None:
    """Bytes of the model's weights that each rank holds, if they are split evenly; None when nothing is known."""
    measured = plan.nodes[0].model.get("weight_bytes")
    whole = measured or plan.recipe.model_bytes
    return whole // (plan.recipe.tensor_parallel_size * plan.recipe.pipeline_parallel_size) if whole else None


def check(plan: Plan, settings: Settings, before: float | None, own: bool) -> None:
    """Add to a plan's problems, notes and assumptions what is to be said of its memory, and to C(memory) and C(evict) what is planned.

    :param before: what a plan has set for the last start. :param own: where the recipe leaves it open, the engine decides.
    """
    plan.evict = [[] for _node in plan.nodes]
    share = weights_per_rank(plan)
    if not share:
        plan.assumed.append("the model fits: the size of its weights is not known")
    if plan.action not in ("start", "restart"):
        return
    name, evict = plan.recipe.name, settings.evict
    plan.evict = [sorted({holder["name"] for holder in _actual.others(node.info, node.memory, name) if _may_go(holder, evict)}) for node in plan.nodes]
    if not share:
        return
    plan.memory = estimate(plan, settings, before, own)
    short, alone = plan.memory["refused"], _weights(plan, share, evict)
    if settings.memory_check == "refuse":
        plan.problems += [f"{short.rstrip('.')}; tp_launch_memory_check=warn starts it all the same."] if short else alone
    elif not short:
        plan.notes += [sentence.rstrip(".") for sentence in alone]
    plan.notes += [f"by estimate: {sentence.rstrip('.')}" for sentence in [*plan.memory["problems"], *plan.memory["notes"]]]
    plan.assumed += [f"memory: {sentence.rstrip('.')}" for sentence in plan.memory["assumed"]]


def estimate(plan: Plan, settings: Settings, before: float | None, own: bool) -> dict[str, t.Any]:
    """What :func:`_footprint.plan_memory` makes of a plan; see :func:`check`."""
    recipe = plan.recipe
    return plan_memory(
        plan.nodes[0].model,
        recipe.engine.name,
        recipe.arguments,
        [(node.name, {**_facts(plan, node, settings.evict), **_joining.memory(recipe, rank)}) for rank, node in enumerate(plan.nodes)],
        recipe.tensor_parallel_size,
        recipe.pipeline_parallel_size,
        environment=recipe.environment,
        model_bytes=recipe.model_bytes,
        before=before,
        own=own,
    )


def _facts(plan: Plan, node: Node, evict: t.Collection[str]) -> dict[str, t.Any]:
    """A node's memory as it is once the old ranks are gone, and what may be stopped."""
    if not node.memory:
        return {}
    others = [holder for holder in _actual.others(node.info, node.memory, plan.recipe.name) if not _may_go(holder, evict)]
    facts = {**node.memory, "coming_back_bytes": _going(plan, node, evict)}
    if node.memory.get("holders") is not None:
        facts["holders"] = [{**holder, "bytes": holder["held"]} for holder in others]
    else:
        own = {container["name"] for container in _actual.owned(node.info, plan.recipe.name)}
        gone = {*own, *evict}
        facts["processes"] = [each for each in node.memory.get("processes") or [] if (each.get("container") or {}).get("name") not in gone]
    total, available = node.memory.get("total_bytes"), node.memory.get("available_bytes")
    if total and available is not None and any(container["running"] for container in _actual.owned(node.info, plan.recipe.name)):
        facts["most_available_bytes"] = total - min(sum(holder["held"] for holder in others), total - available)
    return facts


def wanted_free(plan: Plan, rank: int) -> int:
    """Bytes that must be free on a rank's node before it starts, where page cache takes of them; 0 where nothing is to be given back."""
    rows = plan.memory.get("nodes") or []
    return int(rows[rank]["total_bytes"]) if rank < len(rows) and rows[rank].get("reclaim_bytes") else 0


def lines(plan: Plan) -> list[str]:
    """What the node needs that has the least to spare, as a small table; nothing where nothing is to start or was measured."""
    rows = [row for row in plan.memory.get("nodes") or [] if row["spare_bytes"] is not None]
    if not rows:
        return []
    row = min(rows, key=lambda each: each["spare_bytes"])
    told = [f"what {row['node']} needs, which has the least to spare, by estimate" if len(rows) > 1 else f"what {row['node']} needs, by estimate"]
    told += [f"{need['what']:<14}{size(need['bytes']):>10}  {need['why']}" for need in row["needs"]]
    told.append(f"{'in all':<14}{size(row['total_bytes']):>10}  of {size(row['available_bytes'])} that can be had")
    if plan.memory.get("context_length_that_fits") is not None:
        told.append(f"fits: requests of {plan.memory['context_length_that_fits']} tokens, {plan.memory['concurrency_that_fits']} at once")
    return told + _knob(plan.memory.get("knob"))


def _knob(knob: t.Mapping[str, t.Any] | None) -> list[str]:
    """How the engine is told how much memory to take, and why; one line."""
    if not knob:
        return []
    option, value, best = knob["option"], knob["value"], knob["recommended"]
    if knob["by"] == "plan":
        gone = f", since {knob['before']} of its last start fits no more" if knob["before"] is not None else ""
        return [f"{option} is set to {value} by what {knob['node']} has{gone}: {knob['why']}"]
    if knob["by"] == "kept":
        return [f"{option} stays {value}, which was computed for its last start" + (f"; now it would be {best}" if best != value and knob["settable"] else "")]
    if knob["by"] == "engine":
        return [f"{option} is left to the engine" + (f"; {best} is recommended: {knob['recommended_why']}" if knob["settable"] else ": no value is sure")]
    if value > 1:
        return [f"{option} is {size(value)}, as the recipe says; {size(knob['recommended_pool_bytes'])} are estimated to fit"]
    if abs(value - best) < _SAME or option != knob["recommended_option"]:
        return [f"{option} is {value}, as the recipe says; {best} is recommended"]
    # What the difference is about.
    now, then = size(knob["pool_bytes"]), size(knob["recommended_pool_bytes"])
    if knob["concurrency"] is None:
        return [f"{option} is {value}, as the recipe says; {best} is recommended: {then} of cache, not {now}"]
    few, many = knob["concurrency"], knob["recommended_concurrency"]
    return [f"{option} is {value}, as the recipe says; {best} is recommended: {then} of cache for {many} requests, not {now} for {few}"]


def _may_go(holder: t.Mapping[str, t.Any], evict: t.Collection[str]) -> bool:
    return bool(holder["kind"] == "container" and holder["name"] in evict)


def _weights(plan: Plan, share: int, evict: t.Collection[str]) -> list[str]:
    """Sentences on what can't be, whatever an engine does with the rest."""
    found: list[str] = []
    if not plan.nodes[0].model.get("weight_bytes"):
        plan.assumed.append(f"the weights are {size(plan.recipe.model_bytes)}, as the recipe says")
    for node in plan.nodes:
        total, available = node.memory.get("total_bytes"), node.memory.get("available_bytes")
        others = [holder for holder in _actual.others(node.info, node.memory, plan.recipe.name) if not _may_go(holder, evict)]
        if not total or available is None:
            plan.assumed.append(f"{node.name} has memory for {size(share)} of weights: it was not measured")
        elif share > total:
            found.append(
                f"{node.name} has {size(total)} of memory, but its rank needs {size(share)} for the weights alone: take more nodes or a smaller model."
            )
        elif _actual.owned(node.info, plan.recipe.name):
            # What the old rank holds comes back when it goes; how much that is, not every driver tells. What others hold stays.
            # Pages that processes share are counted for each of them: together they hold no more than is missing.
            held = min(sum(holder["held"] for holder in others), total - available)
            if share > total - held:
                found.append(
                    f"Others hold {size(held)} of the {size(total)} of {node.name}, but its rank needs {size(share)} for the weights alone: {_remedy(others)}."
                )
        elif share > available + _going(plan, node, evict):
            found.append(
                f"{node.name} has {size(available)} of {size(total)} available, but its rank needs {size(share)} for the weights alone: {_remedy(others)}."
            )
    return found


def _remedy(others: t.Sequence[t.Mapping[str, t.Any]]) -> str:
    largest = [holder for holder in others if holder["held"]][:3] or list(others[:1])
    if not largest:
        return "see what holds the memory there (ps aux --sort -rss) and stop it"
    named = listed([f"{who(holder)} holds {size(holder['held']) if holder['held'] else 'most'}" for holder in largest])
    containers = [holder["name"] for holder in largest if holder["kind"] == "container"]
    return f"{named}; stop it first" + (f", or let this do it: tp_launch_evict with {listed(containers)}" if containers else "")


def _going(plan: Plan, node: Node, evict: t.Collection[str]) -> int:
    """Bytes that come back before the ranks start: of the deployment's old ranks, and of what may be stopped."""
    going = [holder for holder in _actual.others(node.info, node.memory, plan.recipe.name) if _may_go(holder, evict)]
    own = {container["name"] for container in _actual.owned(node.info, plan.recipe.name)}
    mine = [holder for holder in _actual.others(node.info, node.memory, "") if holder["kind"] == "container" and holder["name"] in own]
    return sum(holder["held"] for holder in [*going, *mine])
