# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The report: what stands where, for verdicts over real logs and for each part of a closer look."""

from __future__ import annotations

import pathlib
import typing as t

import pytest
import yaml
from ansible.errors import AnsibleFilterError

from ansible_collections.sparkstack.inference.plugins.filter.launch_report import FilterModule
from ansible_collections.sparkstack.inference.plugins.module_utils._diagnosis import judge
from ansible_collections.sparkstack.inference.plugins.module_utils._timeline import Timeline
from ansible_collections.sparkstack.inference.plugins.plugin_utils import _report, _report_closeup

LOGS = pathlib.Path(__file__).resolve().parents[3] / "fixtures" / "logs"
CASES = sorted(path.parent for path in LOGS.glob("*/*/truth.yml"))


def verdict_of(folder: pathlib.Path) -> dict[str, t.Any]:
    truth = yaml.safe_load((folder / "truth.yml").read_text())
    records = []
    for node, known in truth["nodes"].items():
        record = {**known, "node": node}
        if known.get("log"):
            timeline = Timeline("auto", 2026)
            timeline.feed((folder / known["log"]).read_bytes())
            record["reading"] = timeline.reading()
        records.append(record)
    return judge(records)


@pytest.mark.parametrize("folder", CASES, ids=lambda folder: f"{folder.parent.name}-{folder.name}")
@pytest.mark.parametrize("detail", _report.DETAILS)
def test_every_real_verdict_has_its_parts_in_order(folder: pathlib.Path, detail: str) -> None:
    verdict = verdict_of(folder)
    lines = _report.report(verdict, 100, detail)
    text = " ".join(" ".join(lines).split())
    assert lines[0].startswith(f"{verdict['verdict'].upper()}: ")
    assert " ".join(verdict["summary"].split()) in text
    if verdict["verdict"] != "ready":
        assert " ".join(verdict["remedy"].split()) in text
        assert next(i for i, line in enumerate(lines) if line.startswith("  remedy")) < next(i for i, line in enumerate(lines) if line.startswith("  cause"))
    for name, node in verdict["nodes"].items():
        assert [line for line in lines if line.startswith(f"  rank {node['rank']}  {name} ")]
    shown = [line for line in lines if line[2:10] in ("evidence", "        ") and not line.startswith("            ")] if verdict["evidence"] else []
    assert bool(shown) == bool(verdict["evidence"])
    prose = [line for line in lines if line.startswith("  rank ")]
    assert all(len(line) <= 100 for line in prose)


def test_a_failure_reads_from_the_top() -> None:
    lines = _report.report(verdict_of(LOGS / "vllm-cpu" / "kv-cache-too-big"), 110)
    assert lines[0].startswith("FAILED: spark2 (rank 1) ran out of memory in phase load_weights: ValueError: Available memory on node 0")
    assert "  cause     oom, culprit spark2, in phase load_weights" in lines
    assert lines[-2].startswith("  rank 1  spark2  runs, quiet for 100 s, but its log and container tell oom: parse_args 24 s > init_dist 13 s")
    assert any(line.startswith("  rank 0  spark1  ended with exit code 1: parse_args 12 s > init_dist 25 s") for line in lines)


def test_a_launch_that_serves_is_short() -> None:
    assert _report.report(verdict_of(LOGS / "vllm-cpu" / "ready"), 200) == [
        "READY: All 2 ranks serve.",
        "",
        "  rank 0  spark1  ready: parse_args 8.0 s > init_dist 9.0 s > create_runner 0.0 s > load_weights 2.0 s > kv_cache 6.0 s > engine_ready 2.0 s"
        " > http_warmup 0.0 s > ready at 22:16:11",
        "  rank 1  spark2  runs: parse_args 13 s > init_dist 28 s > create_runner 0.0 s > load_weights 2.0 s > kv_cache for 5.0 s",
    ]


@pytest.mark.parametrize("width", [1, 20, 39, 60])
def test_a_narrow_report_is_as_narrow_as_it_was_asked_for(width: int) -> None:
    verdict = {**verdict_of(LOGS / "vllm-cpu" / "kv-cache-too-big"), "evidence": [], "notes": ["A note of some words."]}
    lines = _report.report(verdict, width, "full")
    # A word longer than the line stays whole, behind what it is indented by; so does the head of a line, which has no spaces to break at.
    heads = ("FAILED:", "  remedy", "  cause", "  note", "  rank 0  spark1", "  rank 1  spark2", "  closer look at")
    assert not [line for line in lines if len(line) > width and len(line.split()) > 1 and not line.startswith(heads)]
    told = " ".join(" ".join(lines).split())
    for part in (verdict["summary"], verdict["remedy"], "A note of some words."):
        assert " ".join(part.split()) in told


def test_a_width_that_is_none() -> None:
    with pytest.raises(ValueError, match="width must be the number of characters in a line, not 0"):
        _report.report({"verdict": "ready"}, 0)


@pytest.mark.parametrize("most, kept", [(24, 24), (3, 3), (10**6, 100)])
def test_long_evidence_keeps_its_beginning_and_more_of_its_end(most: int, kept: int) -> None:
    lines = _report.evidence(["\n".join(f"line {number}" for number in range(100))], most)
    told = [line for line in lines if "left out" not in line]
    assert len(told) == kept and told[-1] == "            line 99"
    assert (len(lines) > len(told)) == (kept < 100)
    if most == 24:
        assert lines[0] == "  evidence  line 0" and lines[6] == "            [.. 76 lines are left out here; diagnose -e json=FILE has all ..]"


@pytest.mark.parametrize(
    "node, told",
    [
        ({"state": "absent"}, "has no container"),
        ({"state": "unreachable"}, "could not be looked at"),
        ({"state": "exited", "exit_code": 137, "oom_killed": True}, "ended with exit code 137, out of memory"),
        ({"state": "exited", "exit_code": 137, "guarded": True}, "ended with exit code 137, by the memory guard"),
        ({"state": "exited", "exit_code": None}, "ended"),
        ({"state": "paused"}, "is paused"),
        ({"state": "running", "quiet_seconds": 700}, "runs, quiet for 12 min"),
        ({"state": "running", "quiet_seconds": 3, "progress": {"percent": 71, "done": 5, "total": 7}}, "runs, 71% (5/7)"),
        (
            {"state": "running", "earlier_runs": [{"phase": "init_dist", "cause": None}, {"phase": "kv_cache", "cause": "oom"}]},
            "runs; its log holds 2 earlier runs, which came to init_dist (no cause known), kv_cache (oom)",
        ),
        ({"state": "running", "timeline": [{"phase": "load_weights", "time": None, "seconds": None}], "seconds_in_phase": 88.2}, "runs: load_weights for 88 s"),
        (
            {"state": "running", "timeline": [{"phase": "parse_args", "seconds": None}, {"phase": "init_dist", "seconds": None}]},
            "runs: parse_args > init_dist",
        ),
    ],
)
def test_a_rank(node: dict[str, t.Any], told: str) -> None:
    assert _report.rank(node) == told


CLOSEUP = {
    "memory": {"total_bytes": 128 << 30, "available_bytes": 3 << 30},
    "holders": [
        {"kind": "container", "name": "old-model", "image": "vllm/vllm-openai:v0.11.0", "bytes": 60 << 30, "own": False},
        {"kind": "container", "name": "qwen-rank1", "image": "sglang:1", "bytes": 900 << 20, "own": True},
        {"kind": "page_cache", "name": None, "image": None, "bytes": 20 << 30, "own": False},
    ],
    "gpus": [{"index": 0, "name": "NVIDIA GB10", "utilization_percent": 96, "power_watts": 20.4, "power_limit_watts": None}],
    "processes": [
        {"pid": 11, "name": "VLLM::Worker_TP1", "state": "R", "cpu_percent": 99.6, "waits_in": None},
        {"pid": 12, "name": "vllm serve", "state": "S", "cpu_percent": 0.0, "waits_in": "poll_schedule_timeout"},
    ],
    "fabric": {"interface": "enp1s0f0np0", "address": "192.168.200.12", "prefix": 24, "mtu": 1500, "carrier": False, "speed_mbps": 200000},
    "sockets": {"port": 29501, "listening": False, "owner": None, "connected": [], "dialing": ["192.168.200.11"]},
    "listeners": [{"port": 8000, "pid": 77, "process": "python3", "container_name": "squatter", "own": False}, {"port": 29501, "pid": 9, "own": True}],
    "reach": {"192.168.200.11": {"small": 0.0004, "large": None}},
    "kernel": [{"time": 1.0, "text": "NVRM: Xid (PCI:000f:01:00): 31, pid=11", "cause": ""}],
    "stacks": [
        {
            "pid": 11,
            "name": "VLLM::Worker_TP1",
            "text": 'Thread 11 (idle): "Other"\n    wait (threading.py:1)\nThread 12 (active): "MainThread"\n'
            + "".join(f"    {letter} (x.py:{line})\n" for line, letter in enumerate("abcde", 1)),
        }
    ],
    "stacks_problem": None,
}
NCCL = {
    "version": "2.28.9+cuda13.0",
    "network": "IB",
    "devices": ["rocep1s0f0:1/RoCE", "roceP2p1s0f0:1/RoCE"],
    "channels": {"NET/IB/0": 2},
    "started": 2,
    "complete": 1,
}


def test_a_closer_look() -> None:
    assert _report_closeup.lines({"closeup": CLOSEUP, "nccl": NCCL}) == [
        "memory: 3.0 GiB of 128.0 GiB available; held by container old-model of vllm/vllm-openai:v0.11.0 (60.0 GiB),"
        " this rank's container qwen-rank1 of sglang:1 (900 MiB), the page cache (20.0 GiB)",
        "GPU 0 NVIDIA GB10: busy 96%, 20 W",
        "processes: VLLM::Worker_TP1 (11) runs, 100% of a CPU; vllm serve (12) sleeps, 0% of a CPU in poll_schedule_timeout",
        "fabric: 192.168.200.12 on enp1s0f0np0, MTU 1500, NO LINK, 200000 Mbit/s",
        "rendezvous port 29501: dials 192.168.200.11 without an answer",
        "port 8000 is taken by squatter (pid 77)",
        "way to 192.168.200.11: small packets in 0.4 ms, large packets are not answered",
        "NCCL: version 2.28.9+cuda13.0, network IB, 2 rails (rocep1s0f0:1/RoCE, roceP2p1s0f0:1/RoCE), channels 2 x NET/IB/0, 1 of 2 communicators complete",
        "kernel: NVRM: Xid (PCI:000f:01:00): 31, pid=11",
        "stack of VLLM::Worker_TP1 (11):",
        '  Thread 12 (active): "MainThread"',
        "      a (x.py:1)",
        "      b (x.py:2)",
        "      c (x.py:3)",
        "      d (x.py:4)",
        "    .. 1 more frames, 1 more threads",
    ]


@pytest.mark.parametrize(
    "closeup, lines",
    [
        ({}, []),
        ({"problem": "the node cannot be reached."}, ["it could not be taken: the node cannot be reached."]),
        ({"memory": {"total_bytes": None, "available_bytes": None}}, ["memory: ? of ? available"]),
        ({"sockets": {"port": 1, "listening": True, "owner": {"container": "x", "pid": 4, "own": False}}}, ["rendezvous port 1: listened on by x (pid 4)"]),
        ({"sockets": {"port": 1, "listening": True, "owner": {"own": True}, "connected": ["a"]}}, ["rendezvous port 1: this rank listens; connected with a"]),
        ({"sockets": {"port": 1, "listening": False}}, ["rendezvous port 1: nobody listens and nothing is connected"]),
        ({"gpus": [{"index": 0, "name": None, "utilization_percent": None, "power_watts": None}]}, ["GPU 0 : tells nothing"]),
        ({"stacks_problem": "The image has no py-spy."}, ["stacks: The image has no py-spy."]),
    ],
)
def test_a_closer_look_that_tells_little(closeup: dict[str, t.Any], lines: list[str]) -> None:
    assert _report_closeup.lines({"closeup": closeup}) == lines


def report(verdict: str, detail: str = "normal") -> list[str]:
    node = {"rank": 0, "state": "running", "last_line": "x", "timeline": [], "closeup": CLOSEUP, "nccl": NCCL}
    told = {"verdict": verdict, "summary": "S.", "remedy": "R.", "evidence": [], "phase": "init_dist", "nodes": {"spark1": node}, "notes": ["N."]}
    return _report.report(told, 100, detail)


def test_a_running_rank_without_a_line_may_have_been_started_by_exec() -> None:
    verdict: dict[str, t.Any] = {"verdict": "starting", "summary": "S.", "nodes": {"spark1": {"rank": 0, "state": "running", "last_line": ""}}}
    assert "  note      The log of spark1 is empty." in "\n".join(_report.report(verdict))
    verdict["nodes"]["spark1"]["last_line"] = "INFO"
    assert "note" not in "\n".join(_report.report(verdict))


def test_an_empty_log_is_told_once() -> None:
    empty = {"node": "head", "rank": 0, "started": True, "running": True, "quiet_seconds": 5.0, "reading": Timeline("auto", 2026).reading()}
    told = "\n".join(_report.report(judge([empty])))
    assert "that of head is empty" in told and "started by docker exec" in " ".join(told.split()) and "note" not in told


def test_notes_and_the_closer_look_follow_the_ranks() -> None:
    lines = report("stalled")
    places = [lines.index(line) for line in ("  rank 0  spark1  runs", "  note      N.", "  closer look at spark1", "    stack of VLLM::Worker_TP1 (11):")]
    assert places == sorted(places)


def test_how_much_of_the_closer_look_is_told() -> None:
    assert not [line for line in report("failed") if "stack of" in line] and [line for line in report("failed", "full") if "stack of" in line]
    assert " ".join(line.strip() for line in report("ready") if line.startswith("    ")) == _report_closeup.nccl(NCCL)[0]
    assert "  closer look at spark1" not in report("stalled", "short")


def test_the_filter() -> None:
    launch_report = FilterModule().filters()["launch_report"]
    verdict = verdict_of(LOGS / "vllm-cpu" / "ready")
    assert launch_report(verdict) == _report.report(verdict)
    assert launch_report(verdict, width="60", detail="short") == _report.report(verdict, 60, "short")
    for given in ({}, None, {"verdict": None}):
        with pytest.raises(AnsibleFilterError, match="This is no verdict: give what init_phase_wait returned"):
            launch_report(given)
    with pytest.raises(AnsibleFilterError, match="knows no detail 'much': choose from short, normal, full"):
        launch_report(verdict, detail="much")
