# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is private to the collection: it can change at any time.

"""What is wrong with a plan of memory, each in one sentence with the best remedies. Pure."""

from __future__ import annotations

import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils._engines._memory import Room
from ansible_collections.sparkstack.inference.plugins.module_utils._words import size
from ansible_collections.sparkstack.inference.plugins.plugin_utils import _footprint_needs
from ansible_collections.sparkstack.inference.plugins.plugin_utils._footprint_knob import Choice
from ansible_collections.sparkstack.inference.plugins.plugin_utils._footprint_weights import text_config, weights

if t.TYPE_CHECKING:
    from ansible_collections.sparkstack.inference.plugins.plugin_utils._footprint import Footprint

MOST = 3
# A context that nobody wants is no remedy.
SHORTEST = 4096
# What is smaller explains no lack.
_LEAST = 256 << 20


def judge(footprint: Footprint, measured: t.Sequence[int], rooms: t.Sequence[Room], choice: Choice, result: dict[str, t.Any]) -> None:
    """Add C(problems), C(refused) and C(notes) to a result.

    :param measured: the places of the nodes that were measured; rooms and the choice's pools go by them.
    """
    short = sorted((at for at in measured if result["nodes"][at]["fits"] is False), key=lambda at: result["nodes"][at]["spare_bytes"])
    for at in short:
        row = result["nodes"][at]
        largest = sorted(row["needs"], key=lambda need: -need["bytes"])[:2]
        of = " and ".join(f"{need['what']} {size(need['bytes'])}" for need in largest)
        sentence = (
            f"{row['node']} lacks {size(-row['spare_bytes'])}: its part of the model needs {size(row['total_bytes'])} ({of} among it) of the "
            f"{size(row['available_bytes'])} that are available: {_either(remedies(footprint, at, -row['spare_bytes']))}."
        )
        _add(footprint, at, sentence, row["short"], result)
    # What an engine does by itself is known where it has GPUs.
    judged = choice.by == "recipe" or (choice.by == "engine" and all(footprint.nodes[at].gpus for at in measured))
    if judged and not short:
        _judge_value(footprint, measured, rooms, choice, result)
    elif judged and not result["refused"]:
        # The model may fit if the plan has erred, but not with a value that ends the engine's start in any case.
        alone = {**result, "problems": [], "notes": []}
        _judge_value(footprint, measured, rooms, choice, alone)
        result["problems"] += [alone["refused"]] if alone["refused"] else []
        result["refused"] = alone["refused"]
    fits, wanted = result["context_length_that_fits"], footprint.wanted
    if not result["problems"] and fits is not None and fits < wanted:
        result["notes"].append(f"requests of at most {fits} tokens fit, where {wanted} are allowed")


def _add(footprint: Footprint, at: int, sentence: str, sure: bool, result: dict[str, t.Any]) -> None:
    """A problem; the first that is sure is what a launch is refused for. An engine without a GPU reckons otherwise than is known here."""
    result["problems"].append(sentence)
    if sure and footprint.certain and footprint.nodes[at].gpus:
        result["refused"] = result["refused"] or sentence


def _judge_value(footprint: Footprint, measured: t.Sequence[int], rooms: t.Sequence[Room], choice: Choice, result: dict[str, t.Any]) -> None:
    """What the recipe's own setting leads to, or the engine's default, where the model itself fits."""
    option, value, recommended = choice.option, choice.value, choice.recommended
    advice = f"set {choice.recommended_option} to {recommended:g}" if recommended > 0 else "free memory first"
    told = f"{option} {value:g}" if value <= 1 else f"{option} {size(value)}"
    told = told if choice.by == "recipe" else f"the engine's own {told}"
    for at, room, pool in zip(measured, rooms, choice.pools, strict=True):
        node, system, rest = footprint.nodes[at], footprint.system(at), room.free - room.weights - pool
        name, needed = node.name, room.graphs + room.activations
        error = _footprint_needs.error(result["nodes"][at]["needs"]) // node.ranks
        if value <= 1 and footprint.memory.whole_context and room.total * value > room.free:
            sentence = (
                f"{told} asks for {size(room.total * value)} of {name}, where {size(max(room.free, 0))} are free, and the engine does not start: {advice}."
            )
            _add(footprint, at, sentence, room.total * value > (node.most or 0) // node.parts, result)
        elif pool <= 0 or (footprint.caches.known and footprint.capacity(at, pool).context < footprint.least):
            sentence = f"{told} leaves {size(max(pool, 0))} for the cache of {name}, too little for one request of {footprint.least} tokens: {advice}."
            # SGLang starts with a cache for shorter ones. What it makes of the rest goes by what is free, which may be more once the old ranks are gone.
            starts = footprint.capacity(at, pool + error).context >= footprint.least if footprint.memory.whole_context else True
            more = 0 if footprint.memory.whole_context else max((node.most or 0) - (node.available or 0), 0) // node.parts
            _add(footprint, at, sentence, pool + error + more <= 0 or not starts, result)
        elif rest < needed:
            sentence = (
                f"{told} leaves {size(max(rest, 0))} of {name} beside weights and cache, but graphs and activations are estimated to take "
                f"{size(needed)}: {advice} or less."
            )
            _add(footprint, at, sentence, rest + error + (node.most or 0) - (node.available or 0) < 0, result)
        elif rest < needed + system:
            result["notes"].append(f"{told} leaves little of {name} to the system: {advice} to leave it {size(system)}")


def remedies(footprint: Footprint, at: int, lack: int) -> list[str]:
    """What would help, the most welcome first; what suffices alone stands before what does not."""
    found = [*_holders(footprint, at, lack), *_smaller(footprint, at, lack), *_wider(footprint, at, lack)]
    ordered = [text for enough, text in found if enough] + [text for enough, text in found if not enough]
    # Who holds memory is told even if that alone does not do: it may be what nobody thought of.
    return ordered[:MOST] if not found or found[0][1] in ordered[:MOST] or not found[0][1].startswith("stop ") else [*ordered[: MOST - 1], found[0][1]]


def _holders(footprint: Footprint, at: int, lack: int) -> list[tuple[bool, str]]:
    node = footprint.nodes[at]
    found = []
    for holder in node.facts.get("holders") or []:
        held = holder.get("bytes") or 0
        if held < _LEAST:
            continue
        what = f"container {holder['name']} ({holder.get('image')})" if holder.get("kind") == "container" else f"process {holder.get('pid')} ({holder['name']})"
        found.append((held >= lack, f"stop {what}, which holds {size(held)} there{_evict(holder)}"))
    for process in (node.facts.get("processes") or []) if not found else []:
        held, container = process.get("used_bytes") or 0, process.get("container")
        if held < _LEAST:
            continue
        what = f"container {container['name'] or container['id'][:12]}" if container else f"process {process['pid']} ({process['name']})"
        found.append((held >= lack, f"stop {what}, which holds {size(held)} there"))
    return found[:1]


def _evict(holder: t.Mapping[str, t.Any]) -> str:
    return f" (tp_launch_evict: {holder['name']})" if holder.get("kind") == "container" else ""


def _smaller(footprint: Footprint, at: int, lack: int) -> list[tuple[bool, str]]:
    """A shorter context, a cache in 8 bits, fewer tokens of prompts at once."""
    found: list[tuple[bool, str]] = []
    options, ranks = footprint.memory.options, footprint.nodes[at].ranks
    cache = footprint.pool_for(at, footprint.least) * ranks
    room = cache - lack
    if room > 0:
        fits = footprint.capacity(at, room // ranks).context // 1024 * 1024
        if SHORTEST <= fits < footprint.least:
            found.append((True, f"set {options['context'][0]} to {fits}"))
    if cache and str(footprint.wish.cache_dtype) == "auto" and not footprint.cache(at).state_layers:
        found.append((cache // 2 >= lack, f"set {options['cache_dtype'][0]} to fp8, which halves the cache"))
    batch = footprint.wish.batch_tokens or 0
    if batch > 2048:
        saved = footprint.activations() * ranks * (batch - 2048) // batch
        if saved >= lack // 4:
            found.append((saved >= lack, f"set {options['batch_tokens'][0]} to 2048"))
    return found


def _wider(footprint: Footprint, at: int, lack: int) -> list[tuple[bool, str]]:
    """More nodes, or fewer bits."""
    found: list[tuple[bool, str]] = []
    config, groups = footprint.model.get("config") or {}, footprint.model.get("tensors") or ()
    heads = text_config(config).get("num_attention_heads") or 0
    now = footprint.rank_weights(at)
    for factor in (2, 4, 8):
        wider = footprint.tensor_parallel * factor
        if heads % wider:
            break
        then = weights(groups, config, wider, footprint.wish, whole=footprint.model.get("weight_bytes")).rank(footprint.stage(at))
        if (now - then) * footprint.nodes[at].ranks >= lack:
            found.append((True, f"spread it over {len(footprint.nodes) * factor} nodes (tensor parallel size {wider})"))
            break
    quantised = (config.get("quantization_config") or {}).get("quant_method")
    if not quantised:
        found.append((now // 2 >= lack, "take the model in FP8, which halves its weights"))
    elif quantised == "fp8":
        found.append((now * 2 // 5 >= lack, "take the model in 4 bits"))
    return found


def _either(texts: t.Sequence[str]) -> str:
    if not texts:
        return "take more nodes or a smaller model"
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])}, or {texts[-1]}"
