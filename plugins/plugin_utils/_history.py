# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is private to the collection: it can change at any time.

"""A launch's record: who started what, why, how far each rank came, and what became of it. And what can be gone back to. Pure."""

from __future__ import annotations

import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils._ledger import content
from ansible_collections.sparkstack.inference.plugins.plugin_utils import _footprint_compare, _report_data

Plan = t.Mapping[str, t.Any]
Record = dict[str, t.Any]

STARTS = ("start", "restart")
"""The plan's actions that begin a launch."""
_VERDICT = ("verdict", "phase", "cause", "culprit", "summary", "remedy")


def record(
    plan: Plan,
    verdict: t.Mapping[str, t.Any],
    answer: t.Mapping[str, t.Any],
    times: tuple[float, float],
    who: t.Mapping[str, t.Any],
    failure: str = "",
    restored: bool = False,
    beside: t.Mapping[str, t.Any] | None = None,
) -> Record:
    """The record of a launch.

    :param plan: RV(sparkstack.inference.inference_plan#module:plan). :param verdict: what M(sparkstack.inference.init_phase_wait) returned, or nothing.
    :param answer: what M(sparkstack.inference.inference_proof) returned, or nothing. :param times: when its ranks were first touched, and now.
    :param who: C(user), C(host) and C(job). :param failure: why it came to nothing, in a sentence.
    :param restored: it was started to go back to an earlier launch. :param beside: see :func:`_report_data.kept`.
    """
    began, ended = times
    answered = bool(answer.get("answered")) and not failure
    told = {key: verdict.get(key) for key in _VERDICT} if verdict.get("verdict") else None
    if failure and (told is None or told["verdict"] == "ready"):
        told = {**dict.fromkeys(_VERDICT), "verdict": "failed", "summary": failure}
    own = plan["action"] in STARTS
    whole: Record = {
        "launch_id": plan["launch_id"],
        "deployment": plan["deployment"],
        "action": plan["action"],
        "reasons": list(plan["reasons"]),
        "differences": list(plan["differences"]),
        "who": dict(who),
        "began": round(began, 1),
        "ended": round(ended, 1),
        "recipe": plan["recipe"],
        "image": {"name": plan["image"], "content": plan["image_content"]},
        "model": {"path": plan["model_path"], "digest": plan["model_digest"]},
        "ranks": [
            {"node": rank["node"], "rank": number, "container": f"{plan['deployment']}-rank{number}", "spec_hash": rank["spec_hash"]}
            for number, rank in enumerate(plan["ranks"])
        ],
        "verdict": told,
        "timelines": {
            node: [{key: phase.get(key) for key in ("phase", "time", "seconds")} for phase in found.get("timeline") or []]
            for node, found in (verdict.get("nodes") or {}).items()
        },
        "planned": plan.get("planned"),
        "memory": _memory(plan, verdict),
        "seconds_to_ready": (round(ended - began, 1) if own else _by_log(verdict)) if answered else None,
        "answer": {key: answer.get(key) for key in ("seconds", "tokens")} if answered else None,
        "answered": answered,
        "restored": restored,
        "told": _report_data.kept(verdict, plan, beside),
    }
    if own:
        return whole
    # What another run has begun stays that one's word, and what this one did not see takes nothing of that away.
    others = ("action", "reasons", "differences", "who", "began", "restored", *(() if told else ("ended",)))
    return {key: value for key, value in whole.items() if key not in others and value not in (None, {})}


def _memory(plan: Plan, verdict: t.Mapping[str, t.Any]) -> Record | None:
    """How the engine was told how much memory to take, and the plan of it beside the engine's own report; None where nothing was planned."""
    memory = plan.get("memory") or {}
    if not memory.get("nodes"):
        return None
    compared = _footprint_compare.compare(memory, _footprint_compare.timelines(verdict.get("nodes") or {}))
    return {"knob": memory.get("knob"), **{key: found for key, found in compared.items() if key != "lines"}}


def _by_log(verdict: t.Mapping[str, t.Any]) -> float | None:
    """How long a launch took that another run has begun, by the head's log: from its first phase until it was ready."""
    for found in (verdict.get("nodes") or {}).values():
        phases = found.get("timeline") or []
        if found.get("rank") == 0 and phases and phases[-1]["phase"] == "ready" and None not in (phases[0]["time"], phases[-1]["time"]):
            return round(float(phases[-1]["time"]) - float(phases[0]["time"]), 1)
    return None


def target(ledgers: t.Sequence[t.Mapping[str, t.Any]], present: t.Mapping[str, t.Any] | None = None) -> Record | None:
    """The launch to go back to, or None: the last one that answered and is something else than what is there.

    :param ledgers: what the nodes keep of the deployment, by rank: C(good) and C(previous).
    :param present: what is there and not wanted any more, with C(recipe), C(image) and C(model); None where nothing is.
    """
    for key in ("good", "previous"):
        for kept in ledgers:
            found = kept.get(key)
            if found and (present is None or content(found) != content(present)):
                return dict(found)
    return None
