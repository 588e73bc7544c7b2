# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is private to the collection: it can change at any time.

"""A plan of memory beside what the engine reports of itself after the load. Pure."""

from __future__ import annotations

import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils._words import size

GIB = 1024**3
# SGLang writes "GB" and means GiB (get_available_gpu_memory divides by 1 << 30).
_WEIGHTS = ("used_gb", "used_gib")


def _number(value: t.Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None


def reported(phases: t.Sequence[t.Mapping[str, t.Any]]) -> dict[str, t.Any]:
    """What one rank's timeline tells of memory.

    :param phases: C(phases) of its timeline, each with C(phase) and C(values).
    :returns: C(weights_bytes); C(free_bytes), what was free before the load; C(cache_tokens), of the last pool; C(cache_bytes), keys and values
        of that pool; C(pool_bytes), all that the cache has, states and windows too; C(ready_tokens), what the engine as a whole tells, at the
        head only; each None where no line told it.
    """
    values = {phase["phase"]: phase.get("values") or {} for phase in phases}
    load = values.get("load_weights", {})
    weights = next((found for found in (_number(load.get(key)) for key in _WEIGHTS) if found is not None), None)
    left = _number(load.get("available_gb"))
    cache = values.get("kv_cache", {})
    tokens = _number(cache.get("tokens"))
    # "K size: 21.25 GB, V size: 21.25 GB"; with MLA "KV size: 88.39 GB".
    halves = [_number(cache.get(key)) for key in ("k_gb", "v_gb")]
    both = _number(cache.get("kv_gb")) if None in halves else sum(t.cast("list[float]", halves))
    # "Available KV cache memory: 39.55 GiB"; on a CPU "Explicitly set (1.0/23.54) GiB for KV cache on node 0".
    pool = next((found for found in (_number(cache.get(key)) for key in ("available_gib", "kv_gib")) if found is not None), None)
    ready = _number(values.get("engine_ready", {}).get("tokens"))
    return {
        "weights_bytes": None if weights is None else round(weights * GIB),
        "free_bytes": None if weights is None or left is None else round((weights + left) * GIB),
        "cache_tokens": None if tokens is None else int(tokens),
        "cache_bytes": None if both is None else round(both * GIB),
        "pool_bytes": None if pool is None else round(pool * GIB),
        "ready_tokens": None if ready is None else int(ready),
    }


def timelines(nodes: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """The phases of each node's timeline. :param nodes: RV(sparkstack.inference.init_phase_wait#module:nodes)."""
    return {name: found.get("timeline") or [] for name, found in nodes.items()}


def compare(plan: t.Mapping[str, t.Any], reports: t.Mapping[str, t.Sequence[t.Mapping[str, t.Any]]]) -> dict[str, t.Any]:
    """Set a plan beside what the ranks reported.

    :param plan: what C(plan_memory) returned. :param reports: node to C(phases) of its timeline; nodes may be missing.
    :returns: C(nodes), a list of C(node), and of C(weights), C(cache) (bytes) and C(tokens) each with C(planned), C(reported), C(difference) and
        C(error_share), or None where one of both is not known; C(weights_error_share), C(cache_error_share) and C(tokens_error_share), the
        largest of them; and C(lines), sentences for people.
    """
    result: dict[str, t.Any] = {"nodes": [], "weights_error_share": None, "cache_error_share": None, "tokens_error_share": None, "lines": []}
    told = {name: reported(phases) for name, phases in reports.items()}
    ready = next((each["ready_tokens"] for each in told.values() if each["ready_tokens"]), None)
    for at, row in enumerate(plan.get("nodes") or []):
        name = row["node"]
        if name not in told:
            continue
        weights = _pair(_weights(plan, at, told[name]["weights_bytes"]), told[name]["weights_bytes"])
        # vLLM tells at the head only; a worker's last pool in SGLang may be that of the layers with a window.
        tokens = _pair(plan.get("tokens_that_fit"), ready or told[name]["cache_tokens"])
        cache = _cache(plan, at, row, told[name], ready)
        result["nodes"].append({"node": name, "weights": weights, "cache": cache, "tokens": tokens})
        if weights:
            _worst(result, "weights_error_share", weights)
            result["lines"].append(f"{name}: weights {size(weights['reported'])}, planned {size(weights['planned'])} ({_signed(weights)})")
        if cache:
            _worst(result, "cache_error_share", cache)
        if tokens:
            _worst(result, "tokens_error_share", tokens)
            result["lines"].append(f"{name}: cache for {tokens['reported']} tokens, planned {tokens['planned']} ({_signed(tokens)})")
    return result


def table(compared: t.Mapping[str, t.Any]) -> list[str]:
    """What :func:`compare` found, as a small table; no line where the engine has told nothing."""
    rows = []
    for node in compared["nodes"]:
        for what, unit in (("weights", size), ("cache", size), ("tokens", lambda count: f"{count:.0f}")):
            pair = node[what]
            if pair:
                rows.append([node["node"], what, unit(pair["planned"]), unit(pair["reported"]), _signed(pair)])
    if not rows:
        return []
    rows.insert(0, ["memory", "", "planned", "engine says", "plan is off by"])
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _cache(plan: t.Mapping[str, t.Any], at: int, row: t.Mapping[str, t.Any], told: t.Mapping[str, t.Any], ready: int | None) -> dict[str, t.Any] | None:
    """vLLM tells all that its cache has; SGLang the keys and values of each pool, the last of which may be that of the layers with a window."""
    if told["pool_bytes"]:
        pool = row.get("pool_bytes")
        return _pair(None if pool is None else pool // (row.get("ranks") or 1), told["pool_bytes"])
    each, tokens = plan.get("cache_token_bytes") or [], plan.get("tokens_that_fit")
    if at >= len(each) or tokens is None or told["cache_tokens"] is None or ready not in (None, told["cache_tokens"]):
        return None
    return _pair(tokens * each[at], told["cache_bytes"])


def _weights(plan: t.Mapping[str, t.Any], at: int, told: int | None) -> int | None:
    """SGLang loads the draft's layers by themselves, with a figure of its own that stands last; vLLM has one for both."""
    whole: int | None = plan["weights_bytes"][at] or None
    draft = plan.get("draft_bytes") or 0
    if whole and draft and told:
        nearest: int = min((whole, whole - draft, draft), key=lambda each: abs(each - told))
        return nearest
    return whole


def _pair(planned: int | None, told: int | None) -> dict[str, t.Any] | None:
    if planned is None or not told:
        return None
    return {"planned": planned, "reported": told, "difference": planned - told, "error_share": abs(planned - told) / told}


def _worst(result: dict[str, t.Any], key: str, pair: t.Mapping[str, t.Any]) -> None:
    result[key] = max(result[key] or 0.0, pair["error_share"])


def _signed(pair: t.Mapping[str, t.Any]) -> str:
    return f"{100 * pair['difference'] / pair['reported']:+.1f} %"
