# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is private to the collection: it can change at any time.

"""The shape of a deployment: how many GPUs a launch needs, which nodes form a replica, who is which rank, and what a model allows. Pure.

Tensor parallel ranks split each layer, pipeline stages split the layers, replicas are launches of the same beside each other. Ranks are numbered
stage by stage, as both engines number them (vLLM's C(initialize_model_parallel) and SGLang's put tensor parallel innermost).
"""

from __future__ import annotations

import itertools
import typing as t
from dataclasses import dataclass

from ansible_collections.sparkstack.inference.plugins.module_utils._words import listed
from ansible_collections.sparkstack.inference.plugins.plugin_utils._footprint_weights import text_config
from ansible_collections.sparkstack.inference.plugins.plugin_utils._recipe import Recipe

_SHOWN = 6
# What each layer is split by: an engine's divide() ends with "is not divisible by" where a rank would get a part of one.
_SPLIT = {
    "num_attention_heads": "attention heads",
    "linear_num_key_heads": "linear attention's key heads",
    "linear_num_value_heads": "linear attention's value heads",
}
_EXPERTS = ("num_experts", "n_routed_experts", "num_local_experts")


@dataclass(frozen=True)
class Shape:
    """What a recipe asks for, in GPUs."""

    tensor: int = 1
    pipeline: int = 1
    replicas: int = 1
    expert: bool = False
    even_experts: bool = False
    """Experts can only be spread evenly over the GPUs of a stage."""

    @property
    def world(self) -> int:
        """GPUs of one replica."""
        return self.tensor * self.pipeline

    def told(self) -> str:
        """The shape in a recipe's words."""
        words = f"tensor_parallel_size {self.tensor}"
        words += f" with pipeline_parallel_size {self.pipeline}" if self.pipeline > 1 else ""
        return words + (f" and replicas {self.replicas}" if self.replicas > 1 else "")


@dataclass(frozen=True)
class Group:
    """The nodes of one replica, by rank: a launch of its own."""

    deployment: str
    hosts: tuple[str, ...]
    replica: int | None = None
    """Its number; None where the recipe has no replicas."""


def of_recipe(recipe: Recipe) -> Shape:
    """A recipe's shape."""
    return Shape(recipe.tensor_parallel_size, recipe.pipeline_parallel_size, recipe.replicas, recipe.expert_parallel, recipe.engine.launch.even_experts)


def nodes_each(shape: Shape, count: int) -> int | None:
    """How many of so many nodes a replica takes; None where it can't be spread over them.

    One GPU a node is enough for all shapes of up to so many GPUs as there are nodes. What needs more is spread over all of them evenly; whether they
    have those GPUs is seen only later (:func:`problem`).
    """
    each = count // shape.replicas
    if shape.world <= each:
        return shape.world
    return each if each and count % shape.replicas == 0 and shape.world % each == 0 else None


def groups(recipe: Recipe, hosts: t.Sequence[str]) -> list[Group]:
    """The replicas on hosts of which each has a part: the first so many are the first one's, and so on; their order is that of the ranks.

    :param hosts: as many as the shape takes (:func:`nodes_each` for each replica).
    """
    each = len(hosts) // recipe.replicas
    if recipe.replicas == 1:
        return [Group(recipe.name, tuple(hosts))]
    return [Group(f"{recipe.name}-r{at}", tuple(hosts[at * each : (at + 1) * each]), at) for at in range(recipe.replicas)]


def stage(shape: Shape, nodes: int, rank: int) -> range:
    """The pipeline stages of which a node of a replica has GPUs. :param nodes: of the replica. :param rank: the node's place among them."""
    gpus = shape.world // nodes
    return range(rank * gpus // shape.tensor, ((rank + 1) * gpus - 1) // shape.tensor + 1)


def problem(shape: Shape, count: int, gpus: int | None = None, config: t.Mapping[str, t.Any] | None = None) -> str | None:
    """One sentence when the shape fits the nodes or the model not, with those that would; else None.

    :param count: nodes that may be used. :param gpus: GPUs of the node that has fewest; None or 0 where none was seen.
    :param config: the model's configuration; None where it is not known.
    """
    split = _nodes_problem(shape, count, gpus)
    why = split or model_problem(shape, config or {})
    if why is None:
        return None
    fitting = [each.told() for each in possible(shape, count, gpus or 1, config or {})]
    more = len(fitting) - _SHOWN
    shown = fitting[:_SHOWN] + ([f"{more} more"] if more > 0 else [])
    where = (" for this model" if config else "") + ("" if split else f" on {_nodes(count, max(gpus or 1, 1))}")
    if not shown:
        return f"{why}: no shape is possible{where}, so change the inventory's workers."
    return f"{why}: possible{where} {'are' if len(shown) > 1 else 'is'} {listed(shown)}, or change the inventory's workers."


def _nodes(count: int, gpus: int) -> str:
    return f"{count} node{'s' if count != 1 else ''} with {gpus} GPU{'s' if gpus > 1 else ''} each"


def _nodes_problem(shape: Shape, count: int, gpus: int | None) -> str | None:
    taken = nodes_each(shape, count)
    if taken is not None and shape.world // taken <= max(gpus or 1, 1):
        return None
    if taken is not None and gpus is None:
        # Nobody has counted the GPUs yet.
        return None
    asked = f"tensor_parallel_size is {shape.tensor}"
    asked += f", pipeline_parallel_size {shape.pipeline}" if shape.pipeline > 1 else ""
    asked += f", replicas {shape.replicas}" if shape.replicas > 1 else ""
    return f"{asked}, but there {'are' if count != 1 else 'is'} {_nodes(count, max(gpus or 1, 1))}"


def model_problem(shape: Shape, config: t.Mapping[str, t.Any]) -> str | None:
    """Why a model can't be split so, without a full stop; None where it can, or where its configuration does not tell."""
    text = text_config(config)
    for key, what in _SPLIT.items():
        heads = text.get(key)
        if isinstance(heads, int) and heads % shape.tensor:
            return f"tensor_parallel_size {shape.tensor} does not divide the model's {heads} {what}"
    shared = text.get("num_key_value_heads")
    if isinstance(shared, int) and shared and shared % shape.tensor and shape.tensor % shared:
        return f"tensor_parallel_size {shape.tensor} and the model's {shared} key-value heads don't divide one another"
    layers = text.get("num_hidden_layers")
    if isinstance(layers, int) and shape.pipeline > layers:
        return f"pipeline_parallel_size {shape.pipeline} is more than the model's {layers} layers"
    return _experts_problem(shape, text)


def _experts_problem(shape: Shape, text: t.Mapping[str, t.Any]) -> str | None:
    experts = next((text[key] for key in _EXPERTS if isinstance(text.get(key), int) and text[key]), 0)
    if shape.expert:
        if not experts:
            # A configuration without layers is none that tells of experts.
            return "expert_parallel is set, but the model has no experts" if text.get("num_hidden_layers") else None
        if shape.tensor > experts:
            return f"expert_parallel spreads the model's {experts} experts over {shape.tensor} GPUs, which is more"
        if shape.even_experts and experts % shape.tensor:
            return f"expert_parallel with tensor_parallel_size {shape.tensor} does not divide the model's {experts} experts"
        return None
    width = text.get("moe_intermediate_size") if experts else text.get("intermediate_size")
    if isinstance(width, int) and width % shape.tensor:
        return f"tensor_parallel_size {shape.tensor} does not divide the width of the model's {'experts' if experts else 'layers'}, {width}"
    return None


def possible(shape: Shape, count: int, gpus: int, config: t.Mapping[str, t.Any]) -> list[Shape]:
    """The shapes that use all nodes and GPUs and that the model allows, those with the fewest replicas and stages first.

    :param shape: whose experts are spread, or not, in all of them. Where no shape takes all nodes, those that take most of them.
    """
    for used in range(count, 0, -1):
        found = []
        for replicas, pipeline in itertools.product(range(1, used + 1), range(1, used * gpus + 1)):
            whole = used * gpus
            if used % replicas or (whole // replicas) % pipeline:
                continue
            each = Shape(whole // replicas // pipeline, pipeline, replicas, shape.expert, shape.even_experts)
            if model_problem(each, config) is None:
                found.append(each)
        if found:
            return found
    return []
