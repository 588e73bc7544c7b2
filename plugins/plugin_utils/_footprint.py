# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is private to the collection: it can change at any time.

"""Whether a model fits on the nodes, what fits beside it, and how the engine is to be told. Pure: data in, data out.

What was not measured, and what a configuration does not tell, is assumed and said so; it never leads to a refusal.
"""

from __future__ import annotations

import typing as t
from dataclasses import dataclass, field

from ansible_collections.sparkstack.inference.plugins.module_utils import _engines
from ansible_collections.sparkstack.inference.plugins.module_utils._engines._memory import Cache, Capacity, Memory, Room, Shape, Wish
from ansible_collections.sparkstack.inference.plugins.module_utils._words import size
from ansible_collections.sparkstack.inference.plugins.plugin_utils import (
    _footprint_cache,
    _footprint_knob,
    _footprint_needs,
    _footprint_remedies,
    _footprint_wish,
)
from ansible_collections.sparkstack.inference.plugins.plugin_utils._footprint_needs import Node
from ansible_collections.sparkstack.inference.plugins.plugin_utils._footprint_weights import Weights, positions, text_config, weights

# A request that an engine must be able to take, where neither the recipe nor the model says how long one may be.
SHORT = 8192


@dataclass
class Footprint:
    """All that the plan of one launch is made of, in the order in which it becomes known."""

    model: t.Mapping[str, t.Any]
    memory: Memory
    tensor_parallel: int
    wish: Wish
    nodes: list[Node]
    shape: Shape
    weights: Weights
    caches: _footprint_cache.Caches
    wanted: int
    """Tokens of the longest request that is asked for."""
    least: int
    """Tokens that must fit for the engine to be of use."""
    given: tuple[str, float] | None = None
    certain: bool = True
    """The model's shape is known, and nothing in the recipe is passed over."""
    assumed: list[str] = field(default_factory=list)

    def stage(self, at: int) -> int:
        """The pipeline stage of the node at that place: ranks are numbered stage by stage."""
        return min(at * self.nodes[at].ranks // self.tensor_parallel, len(self.weights.stages) - 1)

    def cache(self, at: int) -> Cache:
        return self.caches.stages[self.stage(at)]

    def needs(self, at: int) -> list[dict[str, t.Any]]:
        """What the node at that place needs, in bytes, each with its reason."""
        node, stage = self.nodes[at], self.stage(at)
        ranks = node.ranks
        parts = sorted(self.weights.stages[stage].items(), key=lambda item: -item[1])
        shares = ", ".join(f"{what} {size(each * ranks)}" for what, each in parts[:4])
        of = f"1/{self.tensor_parallel} of the model" if self.tensor_parallel > 1 else "the model"
        rows: list[tuple[str, int, str]] = [("weights", self.rank_weights(at), f"{of}: {shares}" if shares else "not known")]
        if node.gpus or not node.total:
            rows.append(("CUDA context", _footprint_needs.CONTEXT, "what a process holds before it does anything"))
        world = self.shape.ranks > 1
        rows.append(("communication", _footprint_needs.COMMUNICATION if world else _footprint_needs.ALONE, "NCCL's buffers and the libraries' own"))
        if node.shared:
            rows.append(("processes", _footprint_needs.processes(node), "the engine's own, in the memory that CPU and GPU share"))
        if node.joining:
            rows.append(("executor", node.joining, "processes that bring the ranks together, and the memory that they share"))
        if self.graphs(at):
            rows.append(("graphs", self.graphs(at), f"CUDA graphs for up to {self.wish.graph_batch} requests"))
        rows.append(("activations", self.activations(), f"{self.wish.batch_tokens} tokens of prompts at once"))
        if self.table(at):
            rows.append(("requests", self.table(at), f"a table for {self.requests(at)} requests of {self.wanted} tokens"))
        pool = self.pool_for(at, self.least)
        why = f"one request of {self.least} tokens, {self.cache(at).token + self.cache(at).window_token:.0f} bytes each"
        if pool:
            rows.append(("cache", pool, why + (", and states of linear attention" if self.cache(at).state else "")))
        told = [{"what": what, "bytes": each * ranks, "why": why} for what, each, why in rows]
        if node.total:
            told.append({"what": "system", "bytes": self.system(at), "why": "left over, for the machine and for estimates that are too low"})
        return told

    def rank_weights(self, at: int) -> int:
        stage = self.stage(at)
        rank = self.weights.rank(stage) + self.weights.latent // max(len(self.weights.stages), 1)
        if rank:
            rank += positions(self.model.get("config") or {}, self.memory.position_bytes)
        # In memory that is shared, what is moved to main memory stays in it.
        return rank if self.nodes[at].shared else max(rank - self.wish.offload, 0)

    def graphs(self, at: int) -> int:
        return self.memory.graphs(self.wish, self.shape) if self.nodes[at].gpus or not self.nodes[at].total else 0

    def requests(self, at: int) -> int:
        """How many requests the engine makes room for, by what is left for its cache."""
        node = self.nodes[at]
        if self.wish.requests or not node.total:
            return self.wish.requests or 0
        room = self.room(at)
        pool = room.free - room.weights - max(room.graphs + room.activations, self.memory.set_aside(self.wish, self.shape)) - self.system(at)
        return self.capacity(at, max(pool, 0)).requests or 0

    def table(self, at: int) -> int:
        return (self.requests(at) + 1) * (self.wanted + 4) * self.memory.table_bytes if self.caches.known and self.requests(at) else 0

    def activations(self) -> int:
        return _footprint_needs.activations(text_config(self.model.get("config") or {}), self.wish, self.tensor_parallel)

    def system(self, at: int) -> int:
        return _footprint_needs.system(self.nodes[at].total or 0, self.nodes[at].shared)

    def room(self, at: int) -> Room:
        """One rank's memory on a node that was measured."""
        node = self.nodes[at]
        fixed = (_footprint_needs.CONTEXT if node.gpus else 0) + (_footprint_needs.COMMUNICATION if self.shape.ranks > 1 else _footprint_needs.ALONE)
        fixed += _footprint_needs.processes(node) + node.joining
        total = (node.total or 0) if node.shared else (node.total or 0) // node.parts
        return Room(total, (node.available or 0) // node.parts - fixed, self.rank_weights(at), self.graphs(at), self.activations())

    def beside(self, at: int) -> int:
        """Bytes of a rank's that the engine takes beside weights and cache, and the system's."""
        return self.graphs(at) + self.activations() + self.table(at)

    def capacity(self, at: int, pool: int, tokens: int | None = None) -> Capacity:
        return self.memory.capacity(pool, self.cache(at), self.wish._replace(context=tokens or self.wanted))

    def pool_for(self, at: int, tokens: int) -> int:
        """The smallest pool that holds one request of that many tokens; 0 where the cache's shape is not known."""
        cache = self.cache(at)
        if not (cache.token or cache.window_token or cache.state):
            return 0
        high = 1 << 24
        while self.capacity(at, high, tokens).context < tokens and high < 1 << 50:
            high *= 2
        low = high // 2
        while high - low > 1 << 20:
            middle = (low + high) // 2
            low, high = (low, middle) if self.capacity(at, middle, tokens).context >= tokens else (middle, high)
        return high


def plan_memory(
    model: t.Mapping[str, t.Any],
    engine: str,
    arguments: t.Mapping[str, t.Any],
    nodes: t.Sequence[tuple[str, t.Mapping[str, t.Any]]],
    tensor_parallel_size: int,
    pipeline_parallel_size: int = 1,
    environment: t.Mapping[str, t.Any] | None = None,
    model_bytes: int | None = None,
    before: float | None = None,
    own: bool = False,
) -> dict[str, t.Any]:
    """Plan a launch's memory.

    :param model: the answer of M(sparkstack.inference.model_manifest_info) with C(tensors); of it C(config), C(tensors) and
        C(weight_bytes) are looked at, and none must be there.
    :param engine: its name. :param arguments: the recipe's, option without dashes to value; what they set is honoured.
    :param nodes: (name, its C(gpu_memory) facts, or {}) in rank order.
    :param environment: the recipe's variables. :param model_bytes: bytes of weights, for a model that is not there yet.
    :param before: what a plan has set for the last start, which is kept where it still fits.
    :param own: where the recipe leaves it open, the engine's memory is left to its own default.
    :returns: C(nodes), a list of C(node), C(needs) (list of C(what), C(bytes), C(why)), C(total_bytes) (of the needs),
        C(available_bytes), C(memory_bytes), C(spare_bytes), C(fits), C(short) (it does not fit even where the plan errs as far as it ever
        did), C(ranks) there, C(pool_bytes) (what the cache gets), C(reclaim_bytes) (page cache that must go first); numbers are None where
        nothing was measured. C(fits); C(context_length); C(context_length_that_fits); C(concurrency_that_fits) (requests of that length);
        C(tokens_that_fit); C(knob) (see :meth:`_footprint_knob.Choice.told`) or None; C(weights_bytes), C(draft_bytes) of them, and
        C(cache_token_bytes), a rank;
        C(problems), C(notes) and C(assumed): sentences; C(refused), that of the C(problems) which is sure in spite of all errors, or None.
    :raises ValueError: for an engine that is not known.
    """
    memory = _engines.get(engine).memory
    if memory is None:
        return {
            "nodes": [],
            "fits": None,
            "knob": None,
            "problems": [],
            "refused": None,
            "notes": [],
            "assumed": [f"all fits: how {engine} reckons is not known"],
        }
    footprint = _footprint(model, memory, arguments, nodes, tensor_parallel_size, pipeline_parallel_size, environment or {}, model_bytes)
    measured = [at for at, node in enumerate(footprint.nodes) if node.total]
    rows = [_row(footprint, at) for at in range(len(footprint.nodes))]
    result: dict[str, t.Any] = {
        "engine": engine,
        "source": memory.source,
        "nodes": rows,
        "fits": None,
        "context_length": footprint.wanted or None,
        "context_length_that_fits": None,
        "concurrency_that_fits": None,
        "tokens_that_fit": None,
        "knob": None,
        "weights_bytes": [footprint.rank_weights(at) for at in range(len(rows))],
        "draft_bytes": footprint.weights.draft if footprint.wish.speculative and not footprint.wish.draft_model else 0,
        "cache_token_bytes": [round(footprint.cache(at).token + footprint.cache(at).window_token) for at in range(len(rows))],
        "problems": [],
        "refused": None,
        "notes": _footprint_wish.unheeded(arguments, environment or {}, memory),
        "assumed": footprint.assumed,
    }
    if not footprint.weights.known and not footprint.weights.rank(0):
        footprint.assumed.append("the model fits: the size of its weights is not known")
        return result
    if measured:
        _size(footprint, measured, before, own, result)
    return result


def _footprint(
    model: t.Mapping[str, t.Any],
    memory: Memory,
    arguments: t.Mapping[str, t.Any],
    nodes: t.Sequence[tuple[str, t.Mapping[str, t.Any]]],
    tensor_parallel: int,
    pipeline: int,
    environment: t.Mapping[str, t.Any],
    model_bytes: int | None,
) -> Footprint:
    config = model.get("config") or {}
    text = text_config(config)
    wish = _footprint_wish.wish(arguments, memory, pipeline)
    world = tensor_parallel * wish.pipeline
    grounds = [_footprint_needs.node(name, facts or {}, max(-(-world // max(len(nodes), 1)), 1)) for name, facts in nodes]
    totals = [ground.total if ground.shared else ground.total // ground.parts for ground in grounds if ground.total]
    shape = Shape(
        ranks=world,
        tensor_parallel=tensor_parallel,
        total=min(totals, default=0),
        mla=bool(text.get("kv_lora_rank")),
        vision=config.get("vision_config"),
        vocabulary=text.get("vocab_size") or 0,
    )
    wish = memory.defaults(wish, shape)
    padding = next((size for name, size in memory.paddings.items() if name and name in str(wish.experts_backend or "").lower()), memory.paddings.get(""))
    split = weights(model.get("tensors") or (), config, tensor_parallel, wish, padding or (1, 1), model.get("weight_bytes") or model_bytes)
    kept = _footprint_cache.caches(config, tensor_parallel, wish, memory)
    longest = text.get("max_position_embeddings") or 0
    wanted = wish.context or longest or SHORT
    assumed = [*split.assumed, *kept.assumed, *_footprint_wish.unreckoned(arguments)]
    certain = not assumed
    assumed += [f"{ground.name} has room for all of it: its memory was not measured" for ground in grounds if not ground.total]
    if not wish.context and not longest and kept.known:
        assumed.append(f"requests of {SHORT} tokens: neither the recipe nor the model says how long they may be")
    least = wanted if wish.context or memory.whole_context else min(wanted, SHORT)
    given = _footprint_wish.knob(arguments, environment, memory)
    return Footprint(model, memory, tensor_parallel, wish, grounds, shape, split, kept, wanted, least, given, certain, assumed)


def _row(footprint: Footprint, at: int) -> dict[str, t.Any]:
    node, needs = footprint.nodes[at], footprint.needs(at)
    total = sum(need["bytes"] for need in needs)
    row = {"node": node.name, "needs": needs, "total_bytes": total, "memory_bytes": node.total, "available_bytes": None, "spare_bytes": None, "fits": None}
    row.update({"ranks": node.ranks, "pool_bytes": None, "reclaim_bytes": None, "short": False})
    if node.total:
        available = (node.available or 0) * node.ranks // node.parts
        spare = available - total
        # At the load's peak the cache is not there yet, but one tensor is twice: in its file's pages, and on its way.
        peak = (
            total
            - sum(need["bytes"] for need in needs if need["what"] in ("cache", "activations", "graphs", "requests"))
            + footprint.weights.largest * node.ranks
        )
        spare = min(spare, available - peak)
        # Whoever takes what is left to the system may come through; below that, and below what the plan may err by, nobody does.
        most = (node.most or 0) * node.ranks // node.parts
        sure = most < total - footprint.system(at) - _footprint_needs.error(needs)
        row.update(available_bytes=available, spare_bytes=spare, fits=spare >= 0, short=sure)
        if node.shared and node.free is not None:
            row["reclaim_bytes"] = max(0, total - node.free)
    return row


def _size(footprint: Footprint, measured: t.Sequence[int], before: float | None, own: bool, result: dict[str, t.Any]) -> None:
    """What the cache gets, by the recipe's own setting or by the plan's, and what that holds."""
    rooms = [footprint.room(at) for at in measured]
    result["fits"] = all(result["nodes"][at]["fits"] for at in measured) or None
    if any(result["nodes"][at]["fits"] is False for at in measured):
        result["fits"] = False
    elif len(measured) < len(footprint.nodes):
        result["fits"] = None
    choice = _footprint_knob.choose(footprint, measured, rooms, before, own)
    result["knob"] = choice.told()
    found = [footprint.capacity(at, max(pool, 0)) for at, pool in zip(measured, choice.pools, strict=True)]
    for at, pool in zip(measured, choice.pools, strict=True):
        result["nodes"][at]["pool_bytes"] = max(pool, 0) * footprint.nodes[at].ranks
    if footprint.caches.known:
        result["tokens_that_fit"] = min(each.tokens for each in found)
        result["context_length_that_fits"] = min(each.context for each in found)
        result["concurrency_that_fits"] = int(min(each.concurrency for each in found))
    _footprint_remedies.judge(footprint, measured, rooms, choice, result)
