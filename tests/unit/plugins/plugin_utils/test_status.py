# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is told of deployments, out of what the modules return of nodes that run them, lost a rank, or can't be reached."""

from __future__ import annotations

import copy
import json
import typing as t

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.sparkstack.inference.plugins.filter import deployment_status, deployment_status_report
from ansible_collections.sparkstack.inference.plugins.plugin_utils import _status

NOW = 1796027412.0  # 2026-11-30T08:30:12Z
GIB = 1 << 30
RECIPE = {
    "name": "qwen",
    "engines": {"vllm": {"image": "vllm:1", "arguments": {"max-model-len": 512}}},
    "timeouts": {"ready": 1800},
}
RECORD = {
    "launch_id": "L2",
    "action": "start",
    "who": {"user": "alice", "host": "ctl1", "job": None},
    "began": NOW - 300,
    "ended": NOW - 200,
    "seconds_to_ready": 100.0,
    "answered": True,
    "restored": False,
    "verdict": {"verdict": "ready", "summary": "All 2 ranks serve."},
    "recipe": RECIPE,
    "image": {"name": "vllm:1", "content": "sha256:a"},
    "model": {"path": "/m", "digest": "sha256:m"},
}
LOCK = {"run": "ctl1/a/123/1", "user": "alice", "host": "ctl1", "pid": 123, "job": None, "since": NOW - 60, "until": NOW + 60}
WANTED = {"deployment": "qwen", "image": "vllm:1", "recipe": RECIPE}


def container(rank: int, **more: t.Any) -> dict[str, t.Any]:
    return {
        "name": f"qwen-rank{rank}", "deployment": "qwen", "engine": "vllm", "model": "qwen3.5", "rank": rank, "ranks": 2, "port": 8000,
        "listen_address": "0.0.0.0", "launch_id": "L2", "image": "vllm:1", "running": True, "exit_code": 0, "oom_killed": False,
        "started_at": "2026-11-30T08:27:12.123456789Z", "finished_at": "0001-01-01T00:00:00Z", "spec": {"image_identity": "sha256:a"}, **more,
    }  # fmt: skip


def ended(rank: int, code: int, **more: t.Any) -> dict[str, t.Any]:
    return container(rank, running=False, exit_code=code, finished_at="2026-11-30T08:29:12.5Z", **more)


def ledger(**more: t.Any) -> dict[str, t.Any]:
    return {"qwen": {"lock": None, "last": RECORD, "good": RECORD, "previous": None, "launches": ["L2"], "changed_at": NOW - 200, "problems": [], **more}}


def node(name: str, *containers: dict[str, t.Any], **more: t.Any) -> dict[str, t.Any]:
    known: dict[str, t.Any] = {
        "name": name,
        "host": f"{name}.lan",
        "info": {
            "docker": {"reachable": True, "error": None},
            "containers": list(containers),
            "ledger": ledger(),
            "now": NOW,
            "booted_at": NOW - 3600.0,
            "image": None,
        },
        "memory": {
            "total_bytes": 24 * GIB,
            "available_bytes": 18 * GIB,
            "unified": True,
            "holders": [{"kind": "container", "name": one["name"], "bytes": 3 * GIB} for one in containers if one["running"]],
        },
        "answers": [{"item": one, "answered": True, "seconds": 0.4, "problem": None} for one in containers if one["rank"] == 0 and one["running"]],
        "verdicts": {},
    }
    known["info"].update(more.pop("info", {}))
    return {**known, **more}


def pair(*nodes: dict[str, t.Any], **more: t.Any) -> dict[str, t.Any]:
    found = _status.survey(nodes, now=NOW, **more)
    assert json.loads(json.dumps(found)) == found
    return t.cast("dict[str, t.Any]", found["deployments"]["qwen"])


def test_what_serves() -> None:
    found = _status.survey([node("spark1", container(0)), node("spark2", container(1))], WANTED, NOW)
    one = found["deployments"]["qwen"]
    assert (one["state"], one["endpoint"], one["launch_id"], one["drift"]) == ("serving", "http://spark1.lan:8000/v1", "L2", [])
    assert one["answer"] == {"answered": True, "seconds": 0.4, "problem": None} and one["answered_at"] == found["taken_at"] == "2026-11-30T08:30:12Z"
    assert one["ranks"][1] == {
        "rank": 1,
        "node": "spark2",
        "container": "qwen-rank1",
        "state": "running",
        "launch_id": "L2",
        "started_at": "2026-11-30T08:27:12Z",
        "finished_at": None,
        "uptime_seconds": 180,
        "exit_code": None,
        "oom_killed": False,
        "memory_bytes": 3 * GIB,
        "phase": "ready",
        "cause": None,
    }
    assert one["last"]["ended"] == "2026-11-30T08:26:52Z" and "recipe" not in one["last"] and one["lock"] is None
    assert found["nodes"]["spark1"]["booted_at"] == "2026-11-30T07:30:12Z"
    assert _status.lines(found) == [
        "qwen: serving, qwen3.5 at http://spark1.lan:8000/v1 by vllm from vllm:1",
        "qwen rank 0 of 2 on spark1: runs since 2026-11-30T08:27:12Z (180 s), phase ready, launch L2, 3.0 GiB",
        "qwen rank 1 of 2 on spark2: runs since 2026-11-30T08:27:12Z (180 s), phase ready, launch L2, 3.0 GiB",
        "qwen at port 8000 of spark1: answered in 0.4 s",
        "qwen runs as the recipe says",
        "qwen autostart is off",
        "spark1: 18.0 of 24.0 GiB available",
        "spark2: 18.0 of 24.0 GiB available",
    ]


def test_the_mapping_has_the_same_keys_whatever_happened() -> None:
    everything = pair(node("spark1", container(0)), node("spark2", container(1)))
    for other in (
        pair(node("spark1"), node("spark2")),
        pair(node("spark1", ended(0, 1)), {"name": "spark2"}),
        pair(node("spark1", info={"ledger": {}}, verdicts={}), node("spark2", container(1))),
    ):
        assert other.keys() == everything.keys()
        assert all(rank.keys() == everything["ranks"][0].keys() for rank in other["ranks"])


HERE = {"ledger": ledger(nodes=["spark1", "spark2"])}


@pytest.mark.parametrize(
    ("nodes", "state", "summary"),
    [
        # Of a deployment that was always on the other two it is known.
        ((node("spark1", info=HERE), node("spark2", info=HERE)), "stopped", "no node has a rank of it"),
        ((node("spark1", container(0), info=HERE), node("spark2", info=HERE)), "failed", "its head answers, but rank 1 is missing"),
        ((node("spark1", container(0), info=HERE), node("spark2", container(1), info=HERE)), "serving", "all ranks run, and the head has answered a request"),
        # These may not tell of all: nothing was recorded, another launch runs, a run works on it, a file is damaged, the nodes had other names.
        ((node("spark1", info={"ledger": ledger(nodes=[])}), node("spark2")), "unknown", "what runs on spark3 is unknown"),
        ((node("spark1", container(0, launch_id="L9"), info=HERE), node("spark2")), "unknown", "its head answers, but what runs on spark3 is unknown"),
        ((node("spark1", info={"ledger": ledger(nodes=["spark1"], lock=LOCK)}), node("spark2")), "unknown", "what runs on spark3 is unknown"),
        ((node("spark1", info={"ledger": ledger(nodes=["spark1"], problems=["x"])}), node("spark2")), "unknown", "what runs on spark3 is unknown"),
        ((node("spark1", info={"ledger": ledger(nodes=["a", "b"])}), node("spark2")), "unknown", "what runs on spark3 is unknown"),
        # It was there once.
        ((node("spark1", info={"ledger": ledger(nodes=["spark1", "spark3"])}), node("spark2")), "unknown", "what runs on spark3 is unknown"),
    ],
)
def test_a_node_that_is_away_is_no_question_for_what_was_never_on_it(nodes: tuple[dict[str, t.Any], ...], state: str, summary: str) -> None:
    found = pair(*nodes, {"name": "spark3"})
    assert (found["state"], found["summary"]) == (state, summary)


SILENT = [{"item": container(0), "answered": False, "seconds": 60.0, "problem": "it gave no completion within 60 s."}]
VERDICT = {
    "verdict": "stalled", "phase": "load_weights", "cause": "nccl_hang", "culprit": "spark2", "summary": "spark2 stands still.", "remedy": "Look at the cable.",
    "nodes": {"spark1": {"phase": "load_weights", "cause": None}, "spark2": {"phase": "init_dist", "cause": "nccl_hang"}},
}  # fmt: skip
STARTING = {**VERDICT, "verdict": "starting", "cause": None, "summary": "All ranks load."}
FAILED = {**VERDICT, "verdict": "failed", "cause": "oom", "summary": "spark2 ran out of memory."}


@pytest.mark.parametrize(
    "head, worker, state, summary",
    [
        (node("spark1", container(0)), node("spark2", ended(1, 137)), "failed", "its head answers, but rank 1 on spark2 has ended (exit code 137)"),
        (
            node("spark1", container(0), answers=SILENT),
            node("spark2", ended(1, 137, oom_killed=True)),
            "failed",
            "rank 1 on spark2 has ended (killed by the kernel for memory)",
        ),
        (node("spark1", container(0), answers=SILENT, verdicts={"qwen": FAILED}), node("spark2", ended(1, 1)), "failed", "spark2 ran out of memory."),
        (node("spark1", container(0)), node("spark2"), "failed", "its head answers, but rank 1 is missing"),
        (node("spark1", container(0)), {"name": "spark2"}, "unknown", "its head answers, but what runs on spark2 is unknown"),
        (
            node("spark1", container(0), answers=SILENT),
            node("spark2", info={"docker": {"reachable": False, "error": "Docker does not answer."}}),
            "unknown",
            "what runs on spark2 is unknown",
        ),
        (node("spark1"), {"name": "spark2"}, "unknown", "what runs on spark2 is unknown"),
        (node("spark1"), node("spark2"), "stopped", "no node has a rank of it"),
        (node("spark1", container(0)), node("spark2", container(1, launch_id="L1")), "failed", "its head answers, but its ranks are of different launches"),
        (node("spark1", container(0), answers=SILENT, verdicts={"qwen": STARTING}), node("spark2", container(1)), "starting", "All ranks load."),
        (node("spark1", container(0), answers=SILENT, verdicts={"qwen": VERDICT}), node("spark2", container(1)), "stalled", "spark2 stands still."),
        (
            node("spark1", container(0), answers=SILENT, verdicts={"qwen": {**VERDICT, "verdict": "ready"}}),
            node("spark2", container(1)),
            "failed",
            "all ranks run, but the head does not answer: it gave no completion within 60 s.",
        ),
        (node("spark1", container(0), answers=[]), node("spark2", container(1)), "failed", "all ranks run, but the head does not answer: rank 0 was not asked"),
    ],
)
def test_what_does_not_serve(head: dict[str, t.Any], worker: dict[str, t.Any], state: str, summary: str) -> None:
    found = pair(head, worker)
    assert (found["state"], found["summary"]) == (state, summary)


def test_what_is_told_of_a_stall() -> None:
    found = _status.survey([node("spark1", container(0), answers=SILENT, verdicts={"qwen": VERDICT}), node("spark2", container(1))], now=NOW)
    told = _status.lines(found)
    assert "qwen: stalled, qwen3.5 at http://spark1.lan:8000/v1 by vllm from vllm:1: spark2 stands still." in told
    assert "qwen rank 1 of 2 on spark2: runs since 2026-11-30T08:27:12Z (180 s), phase init_dist, launch L2, 3.0 GiB" in told
    assert "qwen at port 8000 of spark1: does not answer: it gave no completion within 60 s." in told
    assert "qwen is last known to have answered at 2026-11-30T08:26:52Z (launch L2)" in told
    assert "qwen remedy: Look at the cable." in told


def test_a_node_that_is_not_reached_is_told_first() -> None:
    told = _status.lines(_status.survey([node("spark1", container(0)), {"name": "spark2"}], now=NOW))
    assert told[0] == "spark2: unreachable, its ranks are unknown" and "qwen rank 1 of 2 is unknown" in told


def test_where_nothing_runs() -> None:
    empty = _status.survey([node("spark1", info={"ledger": {}}), node("spark2", info={"ledger": {}})], now=NOW)
    room = ["spark1: 18.0 of 24.0 GiB available", "spark2: 18.0 of 24.0 GiB available"]
    assert _status.lines(empty) == ["No deployment runs on these nodes.", *room]
    assert _status.lines(empty, "qwn") == ["No node has a rank of 'qwn': leave the variable deployment out to see which deployments there are.", *room]
    stopped = _status.lines(_status.survey([node("spark1"), node("spark2")], now=NOW))
    assert stopped[:3] == [
        "No deployment runs on these nodes.",
        "qwen: stopped: no node has a rank of it",
        "qwen is last known to have answered at 2026-11-30T08:26:52Z (launch L2)",
    ]
    # What a node that can't be looked at runs is no "nothing".
    assert _status.lines(_status.survey([{"name": "spark1"}, {"name": "spark2"}], now=NOW)) == [
        "spark1: unreachable, its ranks are unknown",
        "spark2: unreachable, its ranks are unknown",
    ]


def changed(**more: t.Any) -> dict[str, t.Any]:
    recipe = copy.deepcopy(RECIPE)
    recipe["engines"]["vllm"]["arguments"].update(more.pop("arguments", {}))  # type: ignore[index]
    recipe.update(more)
    return {**WANTED, "recipe": recipe}


@pytest.mark.parametrize(
    "wanted, drift",
    [
        (WANTED, []),
        (changed(timeouts={"ready": 60}, description="Other words"), []),
        (changed(arguments={"max-model-len": 1024}), ["engines.vllm.arguments.max-model-len: 512 -> 1024"]),
        ({**WANTED, "deployment": "other"}, None),
        (None, None),
    ],
)
def test_how_it_differs_from_a_recipe(wanted: t.Any, drift: t.Any) -> None:
    assert pair(node("spark1", container(0)), node("spark2", container(1)), wanted=wanted)["drift"] == drift


def test_a_tag_that_moved_and_a_launch_without_a_record() -> None:
    moved = node("spark1", container(0), info={"image": {"identity": "sha256:b"}})
    found = pair(moved, node("spark2", container(1)), wanted=WANTED)
    assert found["drift"] == ["spark1: vllm:1 is another image there than the one that runs"]
    unknown = [container(rank, launch_id="L9") for rank in (0, 1)]
    assert pair(node("spark1", unknown[0]), node("spark2", unknown[1]), wanted=WANTED)["drift"] is None


@pytest.mark.parametrize(
    "lock, gone, told",
    [
        (LOCK, False, "qwen is being worked on by alice at ctl1 (pid 123) since 2026-11-30T08:29:12Z"),
        (LOCK, True, "qwen was being worked on by alice at ctl1 (pid 123) since 2026-11-30T08:29:12Z, a run that is over: the next one takes its lock over"),
        (
            {**LOCK, "until": NOW - 1},
            False,
            "qwen was being worked on by alice at ctl1 (pid 123) since 2026-11-30T08:29:12Z, a run that is over: the next one takes its lock over",
        ),
    ],
)
def test_who_works_on_it(lock: dict[str, t.Any], gone: bool, told: str) -> None:
    found = _status.survey([node("spark1", container(0), info={"ledger": ledger(lock=lock)}), node("spark2", container(1))], now=NOW, gone=lambda run: gone)
    assert told in _status.lines(found)


def test_a_launch_that_came_to_nothing_after_one_that_serves() -> None:
    lost = {**RECORD, "launch_id": "L3", "began": NOW - 90, "ended": NOW - 80, "answered": False, "verdict": {"verdict": "failed", "summary": "A bad flag."}}
    head = node("spark1", container(0), info={"ledger": ledger(last=lost, problems=["/x is damaged: remove it."])})
    found = _status.survey([head, node("spark2", container(1))], now=NOW)
    told = _status.lines(found)
    assert "qwen launch L3 came to nothing at 2026-11-30T08:28:52Z: A bad flag." in told and "qwen: /x is damaged: remove it." in told
    # The worker was away then: the newest record counts.
    assert found["deployments"]["qwen"]["last"]["launch_id"] == "L3"


def unit(**changes: t.Any) -> dict[str, t.Any]:
    """What a node tells of the autostart of the deployment."""
    settings = {"nodes": ["spark1", "spark2"], "port": 25050, "token_hash": "a"}
    return {"autostart": {"qwen": {"settings": settings, "program": "p", "unit": "u", "enabled": True, "runs": True, **changes}}}


OFF: dict[str, t.Any] = {"autostart": {}}


@pytest.mark.parametrize(
    "first, second, state, told",
    [
        (unit(), unit(), "on", "qwen autostart is on: after a reboot the nodes start it again"),
        (OFF, OFF, "off", "qwen autostart is off"),
        (unit(), OFF, "incomplete", "qwen autostart is incomplete: it is not installed on spark2; the next deploy mends that"),
        (
            unit(runs=False),
            unit(enabled=False),
            "incomplete",
            "qwen autostart is incomplete: it does not run on spark1 and is not enabled on spark2; the next deploy mends that",
        ),
        (unit(), None, "unknown", "qwen autostart is not known: a node could not be looked at"),
        (OFF, None, "unknown", "qwen autostart is not known: a node could not be looked at"),
        (unit(runs=False), None, "incomplete", "qwen autostart is incomplete: it does not run on spark1; the next deploy mends that"),
    ],
)
def test_whether_the_nodes_start_it_again(first: t.Any, second: t.Any, state: str, told: str) -> None:
    nodes = [node("spark1", container(0), info=first), node("spark2", container(1), info=second) if second is not None else {"name": "spark2"}]
    found = _status.survey(nodes, now=NOW)
    assert found["deployments"]["qwen"]["autostart"]["state"] == state
    assert [line for line in _status.lines(found) if "autostart" in line] == [told]


def test_an_autostart_that_is_left_of_what_is_gone() -> None:
    found = _status.survey([node("spark1", info={"ledger": {}, **unit()}), node("spark2", info={"ledger": {}, **OFF})], now=NOW)
    assert found["deployments"]["qwen"]["state"] == "stopped"
    assert "qwen autostart is incomplete: it is not installed on spark2; the next deploy mends that" in _status.lines(found)
    gone = [node("spark1", info=OFF), node("spark2", info=OFF)]
    assert not [line for line in _status.lines(_status.survey(gone, now=NOW)) if "autostart" in line]


def test_an_address_of_its_own_is_the_endpoint() -> None:
    assert pair(node("spark1", container(0, listen_address="127.0.0.1")), node("spark2", container(1)))["endpoint"] == "http://127.0.0.1:8000/v1"


def test_the_filters() -> None:
    found = deployment_status.FilterModule().filters()["deployment_status"]([node("spark1", container(0))], ["spark1", "spark2"])
    assert found["nodes"]["spark2"]["reachable"] is False and found["deployments"]["qwen"]["state"] == "unknown"
    report = deployment_status_report.FilterModule().filters()["deployment_status_report"]
    assert report(found)[0] == "spark2: unreachable, its ranks are unknown"
    with pytest.raises(AnsibleFilterError, match="this is no status"):
        report({"format": 0})
    with pytest.raises(AnsibleFilterError, match="each host needs a mapping with its name"):
        deployment_status.deployment_status([{}], ["spark1"])


ROUTER = {
    "name": "qwen-router", "id": "r1", "deployment": "qwen", "image": "nginx:1", "running": True, "exit_code": 0, "kind": "nginx", "port": 8080,
    "listen_address": "0.0.0.0", "upstreams": ["10.0.0.1:8000", "10.0.0.2:8000"], "model": "m",
}  # fmt: skip


@pytest.mark.parametrize(
    ("router", "routed", "told"),
    [
        ({}, {"answered": True, "seconds": 0.2, "problem": None}, ["", "qwen router at port 8080 of spark1: answered in 0.2 s"]),
        ({}, {"answered": False, "seconds": 0.2, "problem": "502."}, ["", "qwen router at port 8080 of spark1: does not answer: 502."]),
        ({"running": False, "exit_code": 1}, None, [": it has ended (exit code 1)"]),
    ],
)
def test_a_router_is_told(router: dict[str, t.Any], routed: dict[str, t.Any] | None, told: list[str]) -> None:
    one = {**ROUTER, **router}
    found = _status.survey([node("spark1", info={"routers": [one]}, routed=[{"item": one, **routed}] if routed else []), node("spark2")], now=NOW)
    first = "qwen router: nginx at http://spark1.lan:8080/v1 in front of 10.0.0.1:8000 and 10.0.0.2:8000"
    lines = [line for line in _status.lines(found) if "router" in line]
    assert lines == [first + told[0], *told[1:]] == [line for line in _status.lines(found, "qwen") if "router" in line]
    assert not [line for line in _status.lines(found, "other") if "router" in line]
    assert json.loads(json.dumps(found["routers"])) == found["routers"] and found["routers"][0]["endpoint"] == "http://spark1.lan:8080/v1"


def test_of_a_router_whose_file_is_lost_is_told_what_mends_that() -> None:
    lost = {**ROUTER, "kind": None, "port": None, "upstreams": None, "listen_address": None, "model": None}
    found = _status.survey([node("spark1", info={"routers": [lost]})], now=NOW)
    assert found["routers"][0]["endpoint"] is None
    assert "qwen router: qwen-router on spark1 is there, but what it was started with is lost; the playbook router mends that" in _status.lines(found)
