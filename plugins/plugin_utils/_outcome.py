# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is private to the collection: it can change at any time.

"""What a job hands over when it ends: its verdict, endpoint, launch and plan, for the next job of a workflow and for a notification. Pure."""

from __future__ import annotations

import re
import typing as t

Data = dict[str, t.Any]

PREFIX = "sparkstack_"
"""What every name begins with: AWX gives them to the next job as extra variables, where a plain C(plan) would hide somebody else's."""
KEYS = ("stage", "verdict", "summary", "remedy", "cause", "culprit", "phase", "deployment", "endpoint", "launch_id", "plan", "notification")
"""All of them are always there, so that nothing of an earlier stage stays beside what this one says."""

WELL = ("ready", "planned", "starting")
"""The verdicts with which a job ends as a success."""

_PLAN = ("action", "reasons", "differences", "hosts", "engine", "image", "model_path", "served_name", "port")
"""What is told of a plan. Its ranks are not: they hold environments and command lines."""
_TEMPLATE = re.compile(r"\{(?=[{%#])")


def plain(value: t.Any) -> t.Any:
    """A value that no template engine takes for a template.

    A log line can hold C({{), as in C(ValueError: {{'a': 1}}), and extra variables are templates: braces are moved apart.
    """
    if isinstance(value, str):
        return _TEMPLATE.sub("{ ", value)
    if isinstance(value, t.Mapping):
        return {str(plain(str(key))): plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(entry) for entry in value]
    return value


def launch(
    stage: str,
    plan: t.Mapping[str, t.Any],
    verdict: t.Mapping[str, t.Any],
    failure: str,
    deployment: str = "",
    check_mode: bool = False,
) -> Data:
    """What a stage of a launch hands over.

    :param stage: its name, such as C(stage). :param plan: RV(sparkstack.inference.inference_plan#module:plan), or nothing where none was made.
    :param verdict: what M(sparkstack.inference.init_phase_wait) returned, or nothing.
    :param failure: the sentence that the job ends with; nothing where it went well.
    :param deployment: its name, where there is no plan that has it. :param check_mode: whether nothing was done.
    """
    named = plan.get("deployment") or deployment
    told = verdict.get("verdict") if failure else "planned" if check_mode else "ready"
    if told in (None, "", "ready") and failure:
        # Refused, or lost after it was ready.
        told = "failed"
    summary = failure or _well(stage, plan, named, check_mode)
    remedy = str(verdict.get("remedy") or "") if failure else ""
    if remedy and summary.endswith(remedy):
        # The role ends with both in one sentence.
        summary = summary[: -len(remedy)].rstrip()
    return _whole(
        stage=stage,
        verdict=str(told),
        summary=summary,
        remedy=remedy,
        cause=verdict.get("cause") if failure else "",
        culprit=verdict.get("culprit") if failure else "",
        phase=verdict.get("phase") if failure else "ready" if plan and not check_mode else "",
        deployment=named,
        endpoint=plan.get("endpoint"),
        launch_id=plan.get("launch_id"),
        plan={key: plan[key] for key in _PLAN if key in plan},
    )


def _well(stage: str, plan: t.Mapping[str, t.Any], deployment: str, check_mode: bool) -> str:
    """What is said of a job that went well."""
    action = plan.get("action")
    if check_mode:
        return f"Nothing was done; the plan's action is {action}." if action else f"Nothing was done; {stage} would go through."
    if action == "none":
        return f"{deployment} serves at {plan.get('endpoint')}, and nothing was to be done."
    if action:
        return f"{deployment} serves at {plan.get('endpoint')}."
    return f"{stage} is done" + (f" for {deployment}." if deployment else ".")


def health(status: t.Mapping[str, t.Any], deployment: str = "", stage: str = "health", serving: bool = False) -> Data:
    """Whether what should serve does, as a job hands it over.

    :param status: what RV(sparkstack.inference.deployment_status#filter:_value) is. :param deployment: the only one that is asked for, or nothing for all.
    :param serving: whether one that still starts is not well.
    """
    found = status.get("deployments") or {}
    # One that was stopped stays recorded, and is missed only by who asks for it.
    named = {name: one for name, one in found.items() if (name == deployment if deployment else one["state"] != "stopped")}
    if not named:
        away = [f"{name}: {node['problem']}." for name, node in (status.get("nodes") or {}).items() if node.get("problem")]
        verdict = "unknown" if away else "stopped"
        if away:
            told = f"It is unknown whether '{deployment}' runs." if deployment else "It is unknown what runs."
        else:
            told = f"No node has a rank or a record of '{deployment}'." if deployment else "No deployment runs on these nodes."
        return _whole(stage=stage, verdict=verdict, summary=" ".join([told, *away]), remedy=_REMEDIES[verdict], deployment=deployment)
    well = ("serving",) if serving else ("serving", "starting")
    # The first that is not well; where all are, the first that serves.
    name, one = min(named.items(), key=lambda pair: (pair[1]["state"] in well, pair[1]["state"] != "serving", pair[0]))
    ill = [f"{other} ({two['state']})" for other, two in sorted(named.items()) if two["state"] not in well and other != name]
    judged = one.get("verdict") or {}
    judged = judged if judged.get("verdict") == one["state"] else {}
    healthy = one["state"] in well
    summary = f"{name}: {one['state']}, {one['summary']}" + ("" if str(one["summary"]).endswith(".") else ".")
    if healthy and len(named) > 1:
        summary += f" All {len(named)} deployments are well."
    away = [node for node, seen in (status.get("nodes") or {}).items() if seen.get("problem")]
    if healthy and away:
        # All of this one's ranks are known without it; one that is on that node alone is not.
        summary += f" {' and '.join(away)} could not be looked at: what has all its ranks there is unknown."
    if ill:
        summary += f" Not well either: {', '.join(ill)}."
    # Behind a router that is silent, the best replica serves nobody. While some still start, it has nothing to say.
    silent = _silent_router(status.get("routers") or [], deployment) if all(two["state"] == "serving" for two in named.values()) else ""
    if silent:
        return _whole(stage=stage, verdict="failed", summary=silent, remedy=_REMEDIES["router"], deployment=name, endpoint=one.get("endpoint"))
    return _whole(
        stage=stage,
        verdict="ready" if one["state"] == "serving" else one["state"],
        summary=summary,
        remedy="" if healthy else judged.get("remedy") or _REMEDIES.get(one["state"], ""),
        cause=judged.get("cause"),
        culprit=judged.get("culprit"),
        phase=judged.get("phase"),
        deployment=name,
        endpoint=one.get("endpoint"),
        launch_id=one.get("launch_id"),
    )


def _silent_router(routers: t.Sequence[t.Mapping[str, t.Any]], deployment: str) -> str:
    """What is told of the first router through which nothing is answered, or nothing."""
    for router in routers:
        if deployment in ("", router["deployment"]):
            answer = router["answer"] or {}
            if router["state"] != "running":
                return f"The replicas of {router['deployment']} serve, but their router on {router['node']} has ended (exit code {router['exit_code']})."
            if answer.get("answered") is False:
                return f"The replicas of {router['deployment']} serve, but their router on {router['node']} does not answer: {answer['problem']}"
    return ""


_REMEDIES = {
    "router": "Run sparkstack.inference.router to have it as it was; `docker logs` of its container says more.",
    "failed": "Run sparkstack.inference.diagnose for the cause, and sparkstack.inference.deploy to have it serve again.",
    "starting": "Wait until it is ready, or run sparkstack.inference.diagnose.",
    "stalled": "Run sparkstack.inference.diagnose for the cause.",
    "stopped": "Run sparkstack.inference.deploy to have it serve again.",
    "unknown": "See that every node is switched on and that you can log in to it by ssh from this machine, then run this again.",
}


def unwell(outcome: t.Mapping[str, t.Any], serving: bool = False) -> str:
    """The sentence that a job ends with, or nothing. :param serving: whether one that still starts is not well."""
    verdict = outcome[f"{PREFIX}verdict"]
    if verdict in WELL and not (serving and verdict == "starting"):
        return ""
    return " ".join(word for word in (outcome[f"{PREFIX}summary"], outcome[f"{PREFIX}remedy"]) if word)


def _whole(**given: t.Any) -> Data:
    """All keys with their prefix; what there is none of is an empty text, which templates can print."""
    told = {key: given.get(key) or ("" if key != "plan" else {}) for key in KEYS}
    told["notification"] = _notification(told)
    return {f"{PREFIX}{key}": plain(value) for key, value in told.items()}


def _notification(told: t.Mapping[str, t.Any]) -> str:
    """The body of a notification: the verdict as people read it, without a line of log."""
    lines = [f"{str(told['verdict']).upper()}: {told['summary']}"]
    lines += [f"Remedy: {told['remedy']}"] if told["remedy"] else []
    cause = ", ".join(
        [str(told["cause"])] * bool(told["cause"])
        + [f"culprit {told['culprit']}"] * bool(told["culprit"])
        + [f"in phase {told['phase']}"] * bool(told["phase"] and told["verdict"] != "ready")
    )
    lines += [f"Cause: {cause}"] if told["cause"] else []
    for key, word in (("deployment", "Deployment"), ("launch_id", "Launch"), ("endpoint", "Endpoint")):
        lines += [f"{word}: {told[key]}"] if told[key] else []
    plan, reasons = told["plan"], "; ".join(str(reason) for reason in told["plan"].get("reasons") or [])
    lines += [f"Plan: {plan['action']}" + (f" ({reasons})" if reasons else "")] if plan.get("action") else []
    return "\n".join(lines)
