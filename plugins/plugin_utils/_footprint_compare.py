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
    :returns: C(weights_bytes); C(free_bytes), what was free before the load; C(cache_tokens), of the last pool; C(ready_tokens), what the
        engine as a whole tells, at the head only; each None where no line told it.
    """
    values = {phase["phase"]: phase.get("values") or {} for phase in phases}
    load = values.get("load_weights", {})
    weights = next((found for found in (_number(load.get(key)) for key in _WEIGHTS) if found is not None), None)
    left = _number(load.get("available_gb"))
    tokens = _number(values.get("kv_cache", {}).get("tokens"))
    ready = _number(values.get("engine_ready", {}).get("tokens"))
    return {
        "weights_bytes": None if weights is None else round(weights * GIB),
        "free_bytes": None if weights is None or left is None else round((weights + left) * GIB),
        "cache_tokens": None if tokens is None else int(tokens),
        "ready_tokens": None if ready is None else int(ready),
    }


def compare(plan: t.Mapping[str, t.Any], reports: t.Mapping[str, t.Sequence[t.Mapping[str, t.Any]]]) -> dict[str, t.Any]:
    """Set a plan beside what the ranks reported.

    :param plan: what C(plan_memory) returned. :param reports: node to C(phases) of its timeline; nodes may be missing.
    :returns: C(nodes), a list of C(node), and of C(weights) and C(tokens) each with C(planned), C(reported), C(difference) and
        C(error_share), or None where one of both is not known; C(weights_error_share) and C(tokens_error_share), the largest of them; and
        C(lines), sentences for people.
    """
    result: dict[str, t.Any] = {"nodes": [], "weights_error_share": None, "tokens_error_share": None, "lines": []}
    told = {name: reported(phases) for name, phases in reports.items()}
    ready = next((each["ready_tokens"] for each in told.values() if each["ready_tokens"]), None)
    for at, row in enumerate(plan.get("nodes") or []):
        name = row["node"]
        if name not in told:
            continue
        weights = _pair(_weights(plan, at, told[name]["weights_bytes"]), told[name]["weights_bytes"])
        # vLLM tells at the head only; a worker's last pool in SGLang may be that of the layers with a window.
        tokens = _pair(plan.get("tokens_that_fit"), ready or told[name]["cache_tokens"])
        result["nodes"].append({"node": name, "weights": weights, "tokens": tokens})
        if weights:
            _worst(result, "weights_error_share", weights)
            result["lines"].append(f"{name}: weights {size(weights['reported'])}, planned {size(weights['planned'])} ({_signed(weights)})")
        if tokens:
            _worst(result, "tokens_error_share", tokens)
            result["lines"].append(f"{name}: cache for {tokens['reported']} tokens, planned {tokens['planned']} ({_signed(tokens)})")
    return result


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
