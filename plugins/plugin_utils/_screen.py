# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is private to the collection: it can change at any time.

"""The plan on one screen: what will run where, what is to be done and why, and what is only assumed."""

from __future__ import annotations

import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils._words import size
from ansible_collections.sparkstack.inference.plugins.plugin_utils import _container, _joining, _plan_memory, _shape
from ansible_collections.sparkstack.inference.plugins.plugin_utils._plan import Node, Plan

_ACTIONS = {
    "none": "nothing",
    "watch": "watch it until it is ready",
    "start": "start all ranks, {order}",
    "restart": "stop all ranks, then start all ranks, {order}",
}


def screen(plan: Plan) -> list[str]:
    """The lines of the plan's screen, at most about 120 characters wide."""
    recipe, head = plan.recipe, plan.nodes[0]
    lines = [f"Plan for {recipe.name}: {recipe.model_id} by {recipe.engine.title}, {_shape_words(plan)}", ""]
    lines += _table(
        ["rank", *_stages(plan, None), "node", "fabric address", "interface", "RDMA device", "memory available", "now"],
        [_row(plan, rank, node) for rank, node in enumerate(plan.nodes)],
    )
    share, weights = _plan_memory.weights_per_rank(plan), head.model.get("weight_bytes")
    weigh = f"{size(weights or recipe.model_bytes)} of weights, {size(share)} a rank" if share else "size not known"
    lines += [
        "",
        f"  model      {recipe.model_path}: {weigh}{'' if weights else ' (assumed)'}",
        f"  image      {recipe.image}: {_image(plan)}",
        f"  arguments  {_arguments(plan)}",
        f"  endpoint   {plan.endpoint}",
        f"  action     {_ACTIONS[plan.action].format(order=_joining.order(recipe))}",
    ]
    if plan.away is not None:
        stops = "it serves now, and is away" if plan.nodes[0].proof.get("answered") else "it serves after"
        lines.append(f"  time       {stops} about {plan.away:.0f} s, as long as its last start took")
    lines += _listed("because", plan.reasons)
    lines += _listed("changes", plan.differences)
    lines += _listed("memory", _plan_memory.lines(plan))
    lines += _listed("assumed", plan.assumed)
    lines += _listed("note", plan.notes)
    return lines


def _shape_words(plan: Plan) -> str:
    """How the model is split, as in "tensor parallel size 2, 2 stages, over 4 nodes, replica 1 of 0 to 1"."""
    recipe, count = plan.recipe, len(plan.nodes)
    words = f"tensor parallel size {recipe.tensor_parallel_size}"
    words += f" in {recipe.pipeline_parallel_size} pipeline stages" if recipe.pipeline_parallel_size > 1 else ""
    words += ", experts spread" if recipe.expert_parallel else ""
    words += f", joined by {_joining.title(recipe)}" if _joining.title(recipe) else ""
    words += f" over {count} node{'s' if count > 1 else ''}"
    return words + (f" (replica {recipe.replica}, the last is {recipe.replicas - 1})" if recipe.replica is not None else "")


def _listed(word: str, sentences: t.Sequence[str]) -> list[str]:
    return [f"  {word if not index else '':<9}  {sentence}" for index, sentence in enumerate(sentences)]


def _row(plan: Plan, rank: int, node: Node) -> list[str]:
    rails = [rail for rail in node.fabric.get("rails") or [] if rail.get("hca") and rail.get("used", True)]
    memory = node.memory
    available = f"{size(memory.get('available_bytes'))} of {size(memory.get('total_bytes'))}" if memory else "not measured"
    return [
        str(rank),
        *_stages(plan, rank),
        node.name,
        node.fabric["address"],
        node.fabric.get("netdev") or "?",
        ",".join(rail["hca"] for rail in rails) or "none (TCP)",
        available,
        _state(plan, rank, node),
    ]


def _stages(plan: Plan, rank: int | None) -> list[str]:
    """The column of the pipeline stages, where there are any: its title, or a rank's."""
    if plan.recipe.pipeline_parallel_size == 1:
        return []
    own = [] if rank is None else _shape.stage(_shape.of_recipe(plan.recipe), len(plan.nodes), rank)
    return ["stage" if rank is None else "-".join(dict.fromkeys((str(own[0]), str(own[-1]))))]


def _state(plan: Plan, rank: int, node: Node) -> str:
    name = _container.name(plan.recipe.name, rank)
    for container in node.info.get("containers") or []:
        if container["name"] == name:
            return f"runs since {container['started_at'][:19]}Z" if container["running"] else f"ended ({container['exit_code']})"
    return "not there"


def _image(plan: Plan) -> str:
    head, source = plan.image, plan.source or plan.nodes[0].name
    if not head:
        return f"not on {source} yet"
    without = [node.name for node in plan.nodes if (node.info.get("image") or {}).get("identity") != head["identity"]]
    where = f"{size(head['size_bytes'])} on {source}"
    return f"{where}, goes to {', '.join(without)}" if without else f"{where}, the same on all nodes"


def _arguments(plan: Plan) -> str:
    count = len(plan.recipe.arguments)
    computed = "".join(f"{option} {value} by the plan, " for option, value in (plan.planned or {}).items())
    by = f"checked by the parser of {plan.arguments_checked}" if plan.arguments_checked else "not checked (assumed)"
    return f"{count} in the recipe, {computed}{by}"


def _table(header: t.Sequence[str], rows: t.Sequence[t.Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    return ["  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in [header, *rows]]
