# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Whether what is judged is what the user takes it for: ranks in another order, too few of them, logs of something else."""

from __future__ import annotations

import itertools
import pathlib
import typing as t

import pytest

from ansible_collections.sparkstack.inference.plugins.module_utils import _doubts as subject
from ansible_collections.sparkstack.inference.plugins.module_utils._diagnosis import judge
from ansible_collections.sparkstack.inference.plugins.module_utils._timeline import Timeline

LOGS = pathlib.Path(__file__).parents[3] / "fixtures" / "logs"
NODES = ("spark1", "spark2")


def rank(node: str, number: int, log: bytes | str, **known: t.Any) -> dict[str, t.Any]:
    timeline = Timeline("auto", 2026)
    timeline.feed(log)
    return {"node": node, "rank": number, "started": True, "running": True, "quiet_seconds": 90000.0, "reading": timeline.reading(), **known}


def logs(case: str) -> list[bytes]:
    return [(LOGS / case / name).read_bytes() for name in ("head.log", "worker.log")]


def live(node: str, number: int, log: bytes | str, **known: t.Any) -> dict[str, t.Any]:
    """A rank whose container has run for ten minutes, as its node tells."""
    return rank(node, number, log, **{"began": 1795992120.0, "seconds": 600.0, "quiet_seconds": 3.0, "scene": {}, **known})


def numbers(verdict: dict[str, t.Any]) -> dict[str, int]:
    return {node: told["rank"] for node, told in verdict["nodes"].items()}


# Each by its number.


@pytest.mark.parametrize("make", [rank, live])
@pytest.mark.parametrize("case", ["vllm-cpu/ready", "sglang-gpu/ready-cold"])
def test_ranks_in_the_wrong_order_are_judged_by_their_own_numbers(case: str, make: t.Callable[..., dict[str, t.Any]]) -> None:
    head, worker = logs(case)
    verdict = judge([make("a", 0, worker), make("b", 1, head)])
    assert (verdict["verdict"], verdict["summary"], numbers(verdict)) == ("ready", "All 2 ranks serve.", {"a": 1, "b": 0})
    assert verdict["notes"][-2:] == [
        "The log of a says that it is rank 1, and it was given as rank 0: give the head's first. It is judged as rank 1.",
        "The log of b says that it is rank 0, and it was given as rank 1: give the head's first. It is judged as rank 0.",
    ]


@pytest.mark.parametrize("case", ["vllm-cpu/kv-cache-too-big", "sglang-gpu/squatter-no-context", "sglang-gpu/worker-killed-after-ready"])
def test_the_order_that_is_given_changes_no_verdict(case: str) -> None:
    known = [{"running": True}, {"running": False, "exit_code": 137}]
    told = []
    for order in itertools.permutations([0, 1]):
        told.append(judge([rank(NODES[which], number, logs(case)[which], **known[which]) for number, which in enumerate(order)]))
    assert {key: told[0][key] for key in ("verdict", "cause", "culprit", "summary", "phase")} == {
        key: told[1][key] for key in ("verdict", "cause", "culprit", "summary", "phase")
    }
    assert told[0]["culprit"] == "spark2"


def test_a_rank_whose_log_tells_no_number_gets_the_one_that_is_left() -> None:
    head, _worker = logs("vllm-cpu/ready")
    assert [(record["node"], record["rank"]) for record in subject.placed([rank("a", 0, ""), rank("b", 1, head)])] == [("b", 0), ("a", 1)]
    assert [(record["node"], record["rank"]) for record in subject.placed([rank("a", 0, head), rank("b", 1, "")])] == [("a", 0), ("b", 1)]


def test_what_contradicts_itself_is_left_as_it_was_given() -> None:
    head, worker = logs("sglang-gpu/ready-cold")
    twice = [rank("a", 0, head), rank("b", 1, head)]
    assert subject.placed(twice) == twice
    assert subject.doubts(twice) == ["The log of b says that it is rank 0, and it was given as rank 1: give the head's first."]
    # The ranks look for the head on a, which was started as rank 1.
    astray = [live("a", 0, worker, addresses=["10.77.1.1"]), live("b", 1, head, addresses=["10.77.1.2"])]
    assert subject.placed(astray) == astray
    verdict = judge([live("a", 0, worker[: worker.index(b"Load weight begin")], addresses=["10.77.1.1"], quiet_seconds=900.0)])
    assert verdict["nodes"]["a"]["rank"] == 0


def test_processes_of_one_node_are_no_ranks() -> None:
    line = (
        "(Worker_TP{0} pid=25763) INFO 11-29 22:16:00 [parallel_state.py:1906] world_size=4 rank={1} local_rank={0} "
        "distributed_init_method=tcp://192.168.200.11:29501 backend=nccl\n"
    )
    here = [rank("a", 0, line.format(0, 0) + line.format(1, 1)), rank("b", 1, line.format(0, 2) + line.format(1, 3))]
    assert subject.placed(here) == here and subject.doubts(here) == [] and subject.world(here) == 0


# All of the ranks.


@pytest.mark.parametrize("make", [rank, live])
def test_a_group_of_which_the_head_alone_is_looked_at(make: t.Callable[..., dict[str, t.Any]]) -> None:
    verdict = judge([make("spark1", 0, logs("vllm-cpu/ready")[0])])
    assert (verdict["verdict"], verdict["summary"]) == ("ready", "The head serves; 1 of its 2 ranks was looked at.")
    assert verdict["notes"] == [
        "The logs tell of 2 ranks, and one was looked at: take in the nodes of the others (--limit, -e target), or give their logs too."
    ]


@pytest.mark.parametrize("case", ["vllm-cpu/ready", "sglang-gpu/ready-cold"])
@pytest.mark.parametrize("make", [rank, live])
def test_a_group_of_which_a_worker_alone_is_looked_at_is_not_stalled(case: str, make: t.Callable[..., dict[str, t.Any]]) -> None:
    verdict = judge([make("spark2", 0, logs(case)[1], quiet_seconds=90000.0)])
    assert (verdict["verdict"], numbers(verdict)) == ("starting", {"spark2": 1})
    assert verdict["summary"] == (
        "spark2 (rank 1) came as far as the log of a worker shows; the head, whose log alone tells whether they serve, was not looked at."
    )
    assert verdict["remedy"] == "Take in the head's node (--limit, -e target), or give its log too."


def test_a_worker_alone_that_is_paused_or_on_its_way() -> None:
    worker = logs("sglang-gpu/ready-cold")[1]
    paused = judge([live("spark2", 0, worker, paused=True, quiet_seconds=90000.0)])
    assert (paused["verdict"], paused["culprit"]) == ("stalled", "spark2")
    young = judge([live("spark2", 0, worker[: worker.index(b"Load weight begin")])])
    assert (young["verdict"], young["summary"]) == ("starting", "Still starting: spark2 create_runner.")


def test_no_doubt_where_all_are_there() -> None:
    for case in ("vllm-cpu/ready", "vllm-cpu/ray-ready", "sglang-gpu/ready-cold"):
        head, worker = logs(case)
        assert subject.doubts([rank("a", 0, head), rank("b", 1, worker)]) == []
    head_alone = (LOGS / "vllm-cpu" / "head-only" / "head.log").read_bytes()
    assert subject.doubts([rank("a", 0, head_alone), {"node": "b", "rank": 1, "started": False}]) == []


def test_a_rank_that_must_have_run() -> None:
    absent = {"node": "b", "rank": 1, "started": False}
    assert subject.doubts([rank("a", 0, logs("vllm-cpu/kv-cache-too-big")[0]), absent]) == [
        "b (rank 1) must have run: a is past the rendezvous, to which all ranks come. Its container has another name or was removed."
    ]


# Each by the log of an engine.

FOREIGN = "Nov 29 22:42:02 spark1 systemd[1]: Started Daily apt download activities.\nNov 29 22:42:03 spark1 kernel: audit: type=1400\n"


@pytest.mark.parametrize(
    "records, summary",
    [
        ([rank("head", 0, "")], "Nothing can be told from the log: that of head is empty."),
        ([rank("head", 0, FOREIGN)], "Nothing can be told from the log: that of head has no line that SGLang or vLLM is known to write."),
        ([live("head", 0, FOREIGN)], "Nothing can be told from the log: that of head has no line that SGLang or vLLM is known to write."),
        (
            [rank("a", 0, FOREIGN, quiet_seconds=1.0), rank("b", 1, "", quiet_seconds=1.0)],
            "Nothing can be told from the logs: that of a has no line that SGLang or vLLM is known to write; that of b is empty.",
        ),
        (
            [rank("a", 0, ""), {"node": "b", "rank": 1, "started": False, "running": False}],
            "Nothing can be told from the log: that of a is empty. b has no container.",
        ),
    ],
)
def test_logs_without_a_line_of_an_engine(records: list[dict[str, t.Any]], summary: str) -> None:
    verdict = judge(records)
    assert (verdict["verdict"], verdict["summary"], verdict["culprit"]) == ("starting", summary, None)
    assert verdict["remedy"].startswith("Name the container in which the engine runs, or the file that its log was written to;")
    assert verdict["notes"] == []


def test_one_log_of_two_without_a_line_of_an_engine() -> None:
    head = logs("sglang-gpu/ready-cold")[0]
    verdict = judge([rank("a", 0, head[: head.index(b"Load weight begin")], quiet_seconds=5.0), rank("b", 1, "", quiet_seconds=5.0)])
    assert verdict["verdict"] == "starting" and verdict["remedy"].startswith("Name the container in which the engine runs")
    assert verdict["summary"].endswith(" Nothing can be told of b (rank 1): its log is empty.")


def test_one_log_of_something_else_beside_a_head_that_serves() -> None:
    verdict = judge([rank("a", 0, logs("vllm-cpu/ready")[0]), rank("b", 1, FOREIGN)])
    assert verdict["notes"] == ["The log of b has no line that SGLang or vLLM is known to write: look whether it is the right one."]


def test_logs_of_two_engines_are_hardly_of_one_launch() -> None:
    verdict = judge([rank("a", 0, logs("vllm-cpu/kv-cache-too-big")[0]), rank("b", 1, logs("sglang-gpu/ready-cold")[1])])
    assert verdict["notes"] == [
        "The logs are of different engines (a: vllm, b: sglang), and all ranks of a launch run the same: look whether these are of one launch."
    ]


def test_a_container_may_yet_come_to_its_first_line() -> None:
    for log, step in (("", "container"), (FOREIGN, "parse_args")):
        verdict = judge([live("a", 0, log, seconds=100.0)])
        assert (verdict["summary"], verdict["remedy"]) == (f"Still starting: a {step}.", "Wait.")
    # One that hangs over its imports has an empty log: that is a standstill.
    assert judge([live("a", 0, "", quiet_seconds=900.0, seconds=900.0)])["verdict"] == "stalled"


def test_what_shows_itself_goes_before_a_log_that_tells_nothing() -> None:
    verdict = judge([live("a", 0, FOREIGN, paused=True, quiet_seconds=400.0)])
    assert (verdict["verdict"], verdict["culprit"]) == ("stalled", "a")
    ended = judge([rank("a", 0, FOREIGN, running=False, exit_code=1)])
    assert ended["verdict"] == "failed"
