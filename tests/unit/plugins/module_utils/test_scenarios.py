# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# ruff: noqa: E501 - a real line is as long as it is.
"""Failures that tests/fixtures/logs does not hold: the beginning of a real log, and the end that such a failure gave it."""

from __future__ import annotations

import json
import re
import typing as t

import pytest
import scenarios_sglang
import scenarios_vllm
from scenarios import BEGIN, DUMMY, OOM, RAY, SGLANG, UP, VLLM, closed, gone, log, raised, record, sglang, upto, vllm, worker_error

from ansible_collections.sparkstack.inference.plugins.module_utils._diagnosis import judge

CASES = {**scenarios_sglang.CASES, **scenarios_vllm.CASES}


@pytest.mark.parametrize("name", CASES)
def test_scenario(name: str) -> None:
    head, worker, verdict, cause, culprits, phases = CASES[name]
    found = judge([record(0, head), record(1, worker)])
    assert (found["verdict"], found["cause"]) == (verdict, cause)
    assert found["culprit"] in culprits
    assert tuple(found["nodes"][node]["phase"] for node in ("spark1", "spark2")) == phases


def as_json(text: str) -> str:
    """As a logger for JSON writes it: a traceback stands in the record that it belongs to."""
    records = re.split(r"\n(?=[^ \n])", text.rstrip("\n"))
    return "".join(json.dumps({"level": "INFO", "message": part}) + "\n" for part in records)


def cri(text: str) -> str:
    """As a container runtime's file holds it: each line with a time, that of the line itself or of the last one that told any."""
    told = re.compile(r"\b\d\d:\d\d:\d\d\b")
    clock, lines = told.findall(text + "22:00:00")[0], []
    for line in text.split("\n"):
        clock = (told.findall(line[:120]) or [clock])[0]
        lines.append(f"2026-11-29T{clock}.123456789Z stderr F {line}\n")
    return "".join(lines)


@pytest.mark.parametrize("name", [name for name in CASES if "sglang" in name or "vllm" in name])
@pytest.mark.parametrize(
    "collect",
    [
        lambda text: "".join(f"head-1  | {line}\n" for line in text.split("\n")),
        cri,
        lambda text: "".join(f"\x1b[36m[pod/head-0/engine]\x1b[0m {line}\n" for line in text.split("\n")),
        lambda text: text.replace("\n", "\r\n"),
        as_json,
    ],
    ids=["compose", "cri", "pod in colour", "terminal", "json"],
)
def test_what_collectors_put_around_lines_changes_nothing(name: str, collect: t.Callable[[str], str]) -> None:
    head, worker, verdict, cause, culprits, _phases = CASES[name]
    sides = [(collect(text) if text is not None else None, known) for text, known in (head, worker)]
    found = judge([record(rank, side) for rank, side in enumerate(sides)])
    assert (found["verdict"], found["cause"]) == (verdict, cause)
    assert found["culprit"] in culprits


def test_what_failed_on_another_node_bears_its_address() -> None:
    remote = "\x1b[36m(RayWorkerProc pid=17722, ip=192.168.200.12)\x1b[0m "
    text = upto(RAY, "Starting to load model") + worker_error(1, OOM, process=remote)
    (found,) = [c for c in record(0, (text, UP))["reading"]["candidates"] if c["cause"] == "oom"]
    assert (found["address"], found["kind"], found["fatal"]) == ("192.168.200.12", "cause", True)
    found = judge([record(0, (text, gone(0))), record(1, (log("vllm-cpu/ray-ready", 1), UP))])
    assert (found["verdict"], found["cause"], found["culprit"]) == ("failed", "oom", "spark2")
    own = record(0, (vllm(0, "Starting to load model") + worker_error(0, OOM), UP))["reading"]["candidates"]
    assert [c["address"] for c in own] == [None]


def test_what_a_rank_of_another_node_claims_is_not_the_heads_claim() -> None:
    remote = "\x1b[36m(RayWorkerProc pid=17722, ip=192.168.200.12)\x1b[0m (Worker pid=17722) INFO 11-29 22:56:17 [parallel_state.py:1906] "
    text = (
        upto(RAY, "No current placement group") + remote + "world_size=2 rank=1 local_rank=0 distributed_init_method=tcp://192.168.200.11:43061 backend=gloo\n"
    )
    reading = record(0, (text, UP))["reading"]
    assert (reading["phase"], reading["claims"].get("rank")) == ("init_dist", None)
    assert record(0, (RAY, UP))["reading"]["claims"]["rank"] == "0"


def test_a_restart_policy_makes_several_runs() -> None:
    crash = raised(1, OOM)
    reading = record(1, (sglang(1, "Load weight begin") + crash + sglang(1, DUMMY) + raised(1, closed(1)) + sglang(1, BEGIN), UP))["reading"]
    assert reading["phase"] == "init_dist"
    assert reading["candidates"] == []
    assert reading["earlier"] == [{"phase": "load_weights", "cause": "oom"}, {"phase": "engine_ready", "cause": "peer_exited"}]


@pytest.mark.parametrize("process", ["", "(EngineCore pid=25591) "])
def test_json_of_vllm(process: str) -> None:
    lines = [line for line in vllm(0, "Application startup complete").split("\n") if line]
    text = "".join(
        process
        + json.dumps({"asctime": "2026-11-29 22:15:44,123", "levelname": "INFO", "name": "vllm", "processName": "EngineCore", "process": 1, "message": line})
        + "\n"
        for line in lines
    )
    told = record(0, (text, UP))["reading"]
    assert [p["phase"] for p in told["phases"]] == [p["phase"] for p in record(0, (VLLM[0], UP))["reading"]["phases"]]
    assert told["claims"] == record(0, (VLLM[0], UP))["reading"]["claims"]


@pytest.mark.parametrize("last", ["Load weight begin", "Uvicorn running on"])
def test_a_rotated_log(last: str) -> None:
    """What begins in the middle of a start shows what follows, and in the phases nothing that it does not hold."""
    text = SGLANG[0]
    text = text[text.index("\n", text.index(last)) + 1 :]
    reading = record(0, (text, UP))["reading"]
    assert reading["phase"] == "ready" and reading["engine"] == "sglang"
    assert [c["cause"] for c in reading["candidates"]] == ["peer_exited"]
