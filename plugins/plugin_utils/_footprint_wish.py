# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is private to the collection: it can change at any time.

"""What a recipe's arguments say of memory, whatever the engine calls it. Pure."""

from __future__ import annotations

import json
import re
import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils._engines._memory import GIB, Memory, Wish

# vLLM takes "32k" (1000) and "32K" (1024) for a number (engine/arg_utils.py, human_readable_int).
_FACTORS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "t": 1000**4, "K": 1024, "M": 1024**2, "G": 1024**3, "T": 1024**4}
_NUMBER = re.compile(r"^\s*(-?\d+(?:\.\d+)?)([kmgtKMGT]?)(?:i?[bB])?\s*$")
_FLAGS = ("no_graphs", "no_prompt_graphs", "text_only", "whole_vision", "no_prefix_cache")
_COUNTS = ("context", "requests", "tokens", "batch_tokens", "pipeline", "graph_batch", "draft_tokens", "page", "state_slots")
_SHARES = ("state_ratio", "window_ratio")
# What takes memory too, or splits the model another way, and is not reckoned with.
_UNRECKONED = (
    "enable-dp-attention",
    "dp-size",
    "data-parallel-size",
    "decode-context-parallel-size",
    "dcp-size",
    "enable-lora",
    "lora-paths",
    "lora-modules",
    "ep-num-redundant-experts",
    "enable-eplb",
    "enable-hierarchical-cache",
    "hicache-size",
    "kv-offloading-size",
    "kv-transfer-config",
    "swap-space",
    "enable-lmcache",
    "enable-symm-mem",
    "disaggregation-mode",
)


def number(value: t.Any) -> float | None:
    """A number as a recipe may write it; None for C(auto), -1 and whatever else is none."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, (int, float)):
        return float(value) if value > 0 else None
    found = _NUMBER.match(str(value))
    return (float(found.group(1)) * _FACTORS[found.group(2)] or None) if found and not found.group(1).startswith("-") else None


def _flag(value: t.Any) -> bool:
    return value is not None and str(value).lower() not in ("false", "0", "no", "none", "null", "")


def _named(arguments: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    return {str(name).replace("_", "-"): value for name, value in arguments.items()}


def wish(arguments: t.Mapping[str, t.Any], memory: Memory, pipeline: int = 1) -> Wish:
    """Read the arguments that an engine's memory depends on.

    :param arguments: the recipe's: names without dashes to values.
    :param pipeline: pipeline stages, where the arguments tell none.
    """
    named = _named(arguments)
    told: dict[str, t.Any] = {}
    for key, options in memory.options.items():
        value = next((named[option] for option in options if named.get(option) is not None), None)
        # "enable-prefix-caching: false" is "no-enable-prefix-caching".
        opposite = next((named[option[3:]] for option in options if option.startswith("no-") and named.get(option[3:]) is not None), None)
        if value is None and opposite is not None:
            value = not _flag(opposite)
        if value is None:
            continue
        if key in _FLAGS:
            told[key] = _flag(value)
        elif key in _COUNTS:
            found = number(value)
            told.update({key: int(found)} if found else {})
        elif key in _SHARES:
            told[key] = number(value)
        elif key == "offload":
            told[key] = int((number(value) or 0) * GIB)
        elif key == "speculative":
            told.update(_speculative(value))
        elif key == "draft_model":
            told[key] = True
        else:
            told[key] = str(value)
    told.setdefault("pipeline", max(pipeline, 1))
    return Wish(**told)


def unreckoned(arguments: t.Mapping[str, t.Any]) -> list[str]:
    """What the plan leaves out, one sentence for each option."""
    named = _named(arguments)
    return [f"{option} takes nothing: it is not reckoned with" for option in _UNRECKONED if _flag(named.get(option)) and str(named[option]) != "1"]


def _speculative(value: t.Any) -> dict[str, t.Any]:
    """SGLang names an algorithm; vLLM takes a mapping or its JSON: {"method": "mtp", "num_speculative_tokens": 2}."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            value = json.loads(value)
        except ValueError:
            return {"speculative": True, "draft_model": True}
    if not isinstance(value, t.Mapping):
        name = str(value).lower()
        return {} if name in ("", "none", "null", "false") else {"speculative": name not in ("ngram",)}
    method = str(value.get("method") or "").lower()
    if method in ("ngram", "suffix"):
        return {}
    own = "mtp" in method and not value.get("model")
    return {"speculative": True, "draft_model": not own, "draft_tokens": int(value.get("num_speculative_tokens") or 0)}


def knob(arguments: t.Mapping[str, t.Any], environment: t.Mapping[str, t.Any], memory: Memory) -> tuple[str, float] | None:
    """The option by which the recipe itself sets the memory, and its value; None where it leaves that open.

    A variable that sets an option counts before it: the engine's build that reads the variable heeds the option no more, and nobody else gives it.
    """
    named = _named(arguments)
    told = _variables(environment, memory).values()
    for option in memory.knobs:
        value = next((held for sets, held in told if sets == option), None) or number(named.get(option))
        if value:
            return option, value
    return None


def unheeded(arguments: t.Mapping[str, t.Any], environment: t.Mapping[str, t.Any], memory: Memory) -> list[str]:
    """What of the recipe's own settings an engine may not heed, a sentence each; see :func:`knob`."""
    named = _named(arguments)
    told = [(name, sets) for name, (sets, _held) in _variables(environment, memory).items() if number(named.get(sets))]
    return [
        f"the engine's build for CPUs heeds {name} and not {sets} beside it, one for GPUs the other way round: leave one of them out" for name, sets in told
    ]


def _variables(environment: t.Mapping[str, t.Any], memory: Memory) -> dict[str, tuple[str, float]]:
    """The variables that are given, each with the option that it sets and its value as that option's."""
    found = {name: (sets, (number(environment.get(name)) or 0) * factor) for name, (sets, factor) in memory.variables.items()}
    return {name: (sets, value) for name, (sets, value) in found.items() if value}
