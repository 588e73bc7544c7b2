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
    try:
        return float(str(value).replace(",", ""))
    except ValueError:
        return None


def reported(phases: t.Sequence[t.Mapping[str, t.Any]]) -> dict[str, t.Any]:
    """What one rank's timeline tells of memory.

    :param phases: C(phases) of its timeline, each with C(phase) and C(values).
    :returns: C(weights_bytes), C(cache_tokens), C(context_tokens), C(requests), C(free_bytes) (before the load), C(left_bytes) (when it
        was ready), each None where no line told it.
    """
    told: dict[str, t.Any] = dict.fromkeys(("weights_bytes", "cache_tokens", "context_tokens", "requests", "free_bytes", "left_bytes"))

    def take(key: str, value: t.Any, factor: int = 1) -> None:
        number = _number(value)
        if number is not None:
            told[key] = round(number * factor)

    for phase in phases:
        values, name = phase.get("values") or {}, phase["phase"]
        for key in ("context_tokens", "requests"):
            take(key, values.get(key, ""))
        if name in ("kv_cache", "engine_ready"):
            take("cache_tokens", values.get("tokens", ""))
        if name == "load_weights":
            for key in _WEIGHTS:
                take("weights_bytes", values.get(key, ""), GIB)
        if name == "engine_ready":
            take("left_bytes", values.get("available_gb", ""), GIB)
    return told


def compare(plan: t.Mapping[str, t.Any], reports: t.Mapping[str, t.Sequence[t.Mapping[str, t.Any]]]) -> dict[str, t.Any]:
    """Set a plan beside what the ranks reported.

    :param plan: what C(plan_memory) returned. :param reports: node to C(phases) of its timeline; nodes may be missing.
    :returns: C(nodes), a list of C(node), and of C(weights) and C(tokens) each with C(planned), C(reported), C(difference) and
        C(error_share), or None where one of both is not known; C(weights_error_share) and C(tokens_error_share), the largest of them; and
        C(lines), sentences for people.
    """
    result: dict[str, t.Any] = {"nodes": [], "weights_error_share": None, "tokens_error_share": None, "lines": []}
    for at, row in enumerate(plan.get("nodes") or []):
        if row["node"] not in reports:
            continue
        told = reported(reports[row["node"]])
        weights = _pair(plan["weights_bytes"][at] or None, told["weights_bytes"])
        tokens = _pair(plan.get("tokens_that_fit"), told["cache_tokens"])
        result["nodes"].append({"node": row["node"], "weights": weights, "tokens": tokens})
        if weights:
            _worst(result, "weights_error_share", weights)
            result["lines"].append(f"{row['node']}: weights {size(weights['reported'])}, planned {size(weights['planned'])} ({_signed(weights)})")
        if tokens:
            _worst(result, "tokens_error_share", tokens)
            result["lines"].append(f"{row['node']}: cache for {tokens['reported']} tokens, planned {tokens['planned']} ({_signed(tokens)})")
    return result


def _pair(planned: int | None, told: int | None) -> dict[str, t.Any] | None:
    if planned is None or not told:
        return None
    return {"planned": planned, "reported": told, "difference": planned - told, "error_share": abs(planned - told) / told}


def _worst(result: dict[str, t.Any], key: str, pair: t.Mapping[str, t.Any]) -> None:
    result[key] = max(result[key] or 0.0, pair["error_share"])


def _signed(pair: t.Mapping[str, t.Any]) -> str:
    return f"{100 * pair['difference'] / pair['reported']:+.1f} %"
