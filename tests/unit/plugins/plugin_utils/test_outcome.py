# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a job hands over: of launches that went well, failed or were refused, and of deployments that serve or do not."""

from __future__ import annotations

import typing as t

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.sparkstack.inference.plugins.filter import deployment_health, launch_outcome, scrape_targets
from ansible_collections.sparkstack.inference.plugins.plugin_utils import _outcome

PLAN = {
    "deployment": "qwen", "action": "restart", "reasons": ["spark2 has no rank"], "differences": [], "hosts": ["spark1", "spark2"], "engine": "vllm",
    "image": "vllm:1", "model_path": "/m", "served_name": "qwen3.5", "port": 8000, "endpoint": "http://spark1:8000/v1", "launch_id": "L2",
    "ranks": [{"launch": {"environment": {"HF_TOKEN": "hf_secret"}}}],
}  # fmt: skip
STALLED = {
    "verdict": "stalled", "phase": "init_dist", "cause": "nccl_unreachable", "culprit": "spark2", "summary": "spark2 does not reach spark1.",
    "remedy": "Check the cable.", "evidence": ["NCCL WARN"],
}  # fmt: skip


def bare(outcome: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """Without the prefix, and all keys are there."""
    assert list(outcome) == [f"sparkstack_{key}" for key in _outcome.KEYS]
    return {key.removeprefix("sparkstack_"): value for key, value in outcome.items()}


def test_a_launch_that_serves() -> None:
    found = bare(launch_outcome.launch_outcome(PLAN, {"verdict": "ready", "summary": "All serve.", "remedy": ""}))
    assert (found["stage"], found["verdict"], found["summary"], found["remedy"]) == ("deploy", "ready", "qwen serves at http://spark1:8000/v1.", "")
    assert (found["deployment"], found["endpoint"], found["launch_id"]) == ("qwen", "http://spark1:8000/v1", "L2")
    assert found["plan"]["action"] == "restart" and found["plan"]["hosts"] == ["spark1", "spark2"] and "ranks" not in found["plan"]
    assert "hf_secret" not in str(found)
    assert found["notification"] == (
        "READY: qwen serves at http://spark1:8000/v1.\nDeployment: qwen\nLaunch: L2\nEndpoint: http://spark1:8000/v1\nPlan: restart (spark2 has no rank)"
    )


def test_a_launch_that_stalled_tells_its_remedy_once() -> None:
    found = bare(launch_outcome.launch_outcome(PLAN, STALLED, f"{STALLED['summary']} {STALLED['remedy']}", "launch"))
    assert (found["verdict"], found["summary"], found["remedy"]) == ("stalled", "spark2 does not reach spark1.", "Check the cable.")
    assert found["notification"].splitlines()[:3] == [
        "STALLED: spark2 does not reach spark1.",
        "Remedy: Check the cable.",
        "Cause: nccl_unreachable, culprit spark2, in phase init_dist",
    ]


@pytest.mark.parametrize(
    ("plan", "verdict", "failure", "check", "told", "summary"),
    [
        ({}, {}, "The inventory's group 'workers' has no host.", False, "failed", "The inventory's group 'workers' has no host."),
        (PLAN, {"verdict": "ready"}, "The head gave no completion.", False, "failed", "The head gave no completion."),
        ({**PLAN, "action": "none"}, {}, "", False, "ready", "qwen serves at http://spark1:8000/v1, and nothing was to be done."),
        (PLAN, {}, "", True, "planned", "Nothing was done; the plan's action is restart."),
        ({}, {}, "", False, "ready", "prepare is done for qwen."),
        ({}, {}, "", True, "planned", "Nothing was done; prepare would go through."),
    ],
)
def test_every_end_has_a_verdict(plan: t.Any, verdict: t.Any, failure: str, check: bool, told: str, summary: str) -> None:
    found = bare(launch_outcome.launch_outcome(plan, verdict, failure, "prepare", "qwen", check))
    assert (found["verdict"], found["summary"], found["deployment"]) == (told, summary, "qwen")
    assert found["notification"].startswith(f"{told.upper()}: {summary}")


def test_what_a_log_line_says_is_no_template_in_the_next_job() -> None:
    failure = "ValueError: {{ lookup('pipe', 'id') }} {% if x %} {# y #} {{{"
    found = bare(launch_outcome.launch_outcome({**PLAN, "reasons": [failure]}, {}, failure))
    assert found["summary"] == "ValueError: { { lookup('pipe', 'id') }} { % if x %} { # y #} { { {"
    assert not any(mark in str(value) for value in (*found["plan"]["reasons"], found["notification"]) for mark in ("{{", "{%", "{#"))


def test_no_mapping_is_refused_by_name() -> None:
    with pytest.raises(AnsibleFilterError, match="launch_outcome: the verdict must be a mapping."):
        launch_outcome.launch_outcome(PLAN, "ready")
    with pytest.raises(AnsibleFilterError, match="deployment_health: give what the filter deployment_status returned."):
        deployment_health.deployment_health([])


def one(state: str, summary: str, **more: t.Any) -> dict[str, t.Any]:
    return {"state": state, "summary": summary, "endpoint": "http://spark1:8000/v1", "launch_id": "L2", "verdict": None, **more}


SERVES = one("serving", "all ranks run, and the head has answered a request")
LOST = one("failed", "rank 1 is missing")
HANGS = one("stalled", STALLED["summary"], verdict=STALLED)
STARTS = one("starting", "spark1 loads weights")
STOPPED = one("stopped", "no node has a rank of it")
AWAY = {"spark2": {"problem": "unreachable, its ranks are unknown"}}


@pytest.mark.parametrize(
    ("deployments", "asked", "serving", "verdict", "failure"),
    [
        ({"qwen": SERVES}, "", False, "ready", ""),
        ({"qwen": SERVES, "old": STOPPED}, "", True, "ready", ""),
        ({"qwen": STARTS}, "", False, "starting", ""),
        ({"qwen": STARTS}, "", True, "starting", "qwen: starting, spark1 loads weights. "),
        ({"qwen": HANGS}, "", False, "stalled", "qwen: stalled, spark2 does not reach spark1. Check the cable."),
        ({"a": SERVES, "qwen": LOST}, "", False, "failed", "qwen: failed, rank 1 is missing. Run sparkstack.inference.diagnose for the cause"),
        ({"a": HANGS, "qwen": LOST}, "", False, "stalled", "a: stalled, spark2 does not reach spark1. Not well either: qwen (failed). Check the cable."),
        ({"a": LOST, "qwen": SERVES}, "qwen", False, "ready", ""),
        ({"old": STOPPED}, "old", False, "stopped", "old: stopped, no node has a rank of it. Run sparkstack.inference.deploy"),
        ({"old": STOPPED}, "", False, "stopped", "No deployment runs on these nodes. Run sparkstack.inference.deploy"),
        ({"old": STOPPED}, "typo", False, "stopped", "No node has a rank or a record of 'typo'. "),
    ],
)
def test_health(deployments: t.Any, asked: str, serving: bool, verdict: str, failure: str) -> None:
    found = deployment_health.deployment_health({"nodes": {}, "deployments": deployments}, asked, "health", serving)
    assert found["failure"].startswith(failure) and bool(found["failure"]) == bool(failure)
    outcome = bare(found["outcome"])
    assert outcome["verdict"] == verdict and outcome["stage"] == "health" and outcome["plan"] == {}
    assert bool(outcome["remedy"]) is (verdict not in ("ready", "starting") or bool(failure))


def test_a_node_that_is_away_is_named_where_all_that_is_known_is_well() -> None:
    found = deployment_health.deployment_health({"nodes": AWAY, "deployments": {"qwen": SERVES}}, "")
    assert (found["failure"], found["outcome"]["sparkstack_verdict"]) == ("", "ready")
    assert found["outcome"]["sparkstack_summary"].endswith(" spark2 could not be looked at: what has all its ranks there is unknown.")


@pytest.mark.parametrize(
    ("state", "answer", "asked", "failure"),
    [
        ("running", {"answered": True, "problem": None}, "", ""),
        ("running", None, "", ""),
        ("running", {"answered": False, "problem": "502."}, "", "The replicas of qwen serve, but their router on spark1 does not answer: 502. Run sparkstack."),
        ("running", {"answered": False, "problem": "502."}, "qwen", "The replicas of qwen serve, but their router on spark1 does not answer: 502."),
        ("running", {"answered": False, "problem": "502."}, "qwen-r0", ""),
        ("ended", None, "", "The replicas of qwen serve, but their router on spark1 has ended (exit code 1). Run sparkstack.inference.router"),
    ],
)
def test_replicas_behind_a_silent_router_serve_nobody(state: str, answer: t.Any, asked: str, failure: str) -> None:
    router = {"deployment": "qwen", "node": "spark1", "state": state, "exit_code": None if state == "running" else 1, "answer": answer}
    status = {"nodes": {}, "deployments": {"qwen": SERVES, "qwen-r0": SERVES}, "routers": [router]}
    found = deployment_health.deployment_health(status, asked)
    assert found["failure"].startswith(failure) and bool(found["failure"]) == bool(failure)
    assert bare(found["outcome"])["verdict"] == ("failed" if failure else "ready")
    # While a replica starts, its router can't answer yet.
    starts = deployment_health.deployment_health({**status, "deployments": {"qwen": STARTS}}, asked if asked != "qwen-r0" else "")
    assert starts["failure"] == ""


def test_health_of_what_can_not_be_seen() -> None:
    found = deployment_health.deployment_health({"nodes": AWAY, "deployments": {}}, "")
    assert found["outcome"]["sparkstack_verdict"] == "unknown"
    again = "See that every node is switched on and that you can log in to it by ssh from this machine, then run this again."
    assert found["failure"] == f"It is unknown what runs. spark2: unreachable, its ranks are unknown. {again}"
    named = deployment_health.deployment_health({"nodes": AWAY, "deployments": {}}, "qwen")
    assert named["failure"].startswith("It is unknown whether 'qwen' runs. ") and named["outcome"]["sparkstack_deployment"] == "qwen"


def head(**more: t.Any) -> dict[str, t.Any]:
    return {"deployment": "qwen", "engine": "vllm", "model": "qwen3.5", "listen_address": "0.0.0.0", "port": 8000, **more}


def test_the_heads_that_have_metrics_are_targets() -> None:
    nodes = [
        {"node": "spark2", "host": "10.0.0.2", "answers": []},
        {"node": "spark1", "host": "10.0.0.1", "answers": [{"status": 200, "item": head()}, {"status": 200, "item": head(deployment="b", port=8001)}]},
        {"node": "spark3", "host": "fd00::3", "answers": [{"status": 200, "item": head(deployment="a")}]},
        {"node": "spark4", "host": "10.0.0.4", "answers": [{"status": 200, "item": head(deployment="c", listen_address="192.168.200.14")}]},
    ]
    found = scrape_targets.scrape_targets(nodes)
    assert [target["targets"] for target in found["targets"]] == [["[fd00::3]:8000"], ["10.0.0.1:8001"], ["192.168.200.14:8000"], ["10.0.0.1:8000"]]
    assert found["targets"][3]["labels"] == {"sparks_deployment": "qwen", "sparks_engine": "vllm", "sparks_model": "qwen3.5", "sparks_node": "spark1"}
    assert found["silent"] == []


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ({"status": 404, "item": head(engine="sglang")}, """(HTTP status 404). SGLang has them with -e '{"tp_launch_arguments": {"enable-metrics": true}}'."""),
        ({"status": 401, "item": head()}, "(HTTP status 401)."),
        ({"status": -1, "msg": "Connection refused", "item": head()}, "(it does not answer: Connection refused)."),
    ],
)
def test_a_head_without_metrics_is_told(answer: t.Any, told: str) -> None:
    found = scrape_targets.scrape_targets([{"node": "spark1", "host": "h", "answers": [answer]}])
    assert found == {"targets": [], "silent": [f"qwen is no target, for port 8000 of spark1 has no metrics {told}"]}


def test_what_is_no_answer_of_a_node_is_refused() -> None:
    with pytest.raises(AnsibleFilterError, match="each node needs a mapping with node, host and answers"):
        scrape_targets.scrape_targets([{"node": "spark1"}])
