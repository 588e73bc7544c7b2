# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a guard has told: whether it is of this container, the words for it, and the verdict over all ranks."""

from __future__ import annotations

import json
import typing as t

import pytest

from ansible_collections.sparkstack.inference.plugins.module_utils import _guard_told as subject
from ansible_collections.sparkstack.inference.plugins.module_utils._diagnosis import judge
from ansible_collections.sparkstack.inference.plugins.module_utils._scene import scene
from ansible_collections.sparkstack.inference.plugins.plugin_utils._report import report
from ansible_collections.sparkstack.inference.tests.unit.plugins.module_utils.test_diagnosis import PEER, raised, rank, upto

ID = "34aa5170b20e1a553373055b0ff649cdac0695ae3fc98ffe3d407840212a8bbb"
GIB = 1 << 30
NOON = 1796040000.0
"""2026-11-30 12:00:00 UTC."""
PATH = "run/sparkstack/guard/qwen.told.json"


def record(**changes: t.Any) -> dict[str, t.Any]:
    """A load that took a second for 2 GiB, and then 20."""
    curve = [[NOON + 1 + second, int((118.2 - 2 * second) * GIB)] for second in range(40)] + [
        [NOON + 41 + part / 10, (35 - 5 * part) * GIB] for part in range(7)
    ]
    told = {
        "container": ID,
        "name": "qwen-rank1",
        "deployment": "qwen",
        "at": NOON + 41.7,
        "why": "floor",
        "available": int(2.9 * GIB),
        "total": int(119.6 * GIB),
    }
    told.update({"limit": "", "floor": 3 * GIB, "rate": int(1.8 * GIB), "swap_total": 0, "swap_used": 0, "swap_before": 0, "gone_s": 1.24})
    return {**told, "curve": [*curve, [NOON + 41.7, int(2.9 * GIB)]], **changes}


def inspection(identity: str = ID, deployment: str | None = "qwen") -> dict[str, t.Any]:
    labels = {"sparkstack.deployment": deployment} if deployment else None
    return {"Id": identity, "State": {"Running": False, "Pid": 0}, "Config": {"Env": [], "Labels": labels}}


@pytest.mark.parametrize(
    ("content", "of", "began", "found"),
    [
        (json.dumps(record()), inspection(), NOON, True),
        (json.dumps(record()), inspection(), None, True),
        (json.dumps(record()), inspection("b" * 64), NOON, False),
        # The same container was started again since.
        (json.dumps(record()), inspection(), NOON + 60, False),
        (json.dumps(record()), inspection(deployment=None), NOON, False),
        (json.dumps(record()), inspection(deployment="../../etc/x"), NOON, False),
        (json.dumps(record()), inspection(deployment="other"), NOON, False),
        ("{", inspection(), NOON, False),
        ("[]", inspection(), NOON, False),
        ("{}", inspection(), NOON, False),
        (json.dumps(record(at=None)), inspection(), NOON, False),
    ],
    ids=["it", "no start", "another container", "an earlier start", "foreign", "a name that leaves the folder", "another deployment", *["damaged"] * 4],
)
def test_it_counts_for_that_start_of_that_container_only(
    folder_of: t.Callable[[dict[str, str]], str], content: str, of: dict[str, t.Any], began: float | None, found: bool
) -> None:
    root = folder_of({PATH: content})
    assert (scene(of, None, began, {}, root=root)[0]["guard"] is not None) is found


def test_nobody_has_told(folder_of: t.Callable[[dict[str, str]], str]) -> None:
    root = folder_of({})
    assert scene(inspection(), None, NOON, {}, root=root)[0]["guard"] is None
    # There is no container at all.
    assert scene(None, None, None, {}, root=root)[0]["guard"] is None


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({}, "2.9 GiB of 119.6 GiB were left, falling by 1.8 GiB/s"),
        ({"rate": 0}, "2.9 GiB of 119.6 GiB were left"),
        ({"why": "fall"}, "2.9 GiB of 119.6 GiB were left, falling by 1.8 GiB/s"),
        ({"why": "fall", "available": 5 * GIB, "rate": 20 * GIB}, "5.0 GiB of 119.6 GiB were left, falling by 20.0 GiB/s towards the floor of 3.0 GiB"),
        ({"available": 380 << 20, "total": 6 * GIB, "rate": 200 << 20}, "380 MiB of 6.0 GiB were left, falling by 200 MiB/s"),
    ],
)
def test_how_much_was_left(changes: dict[str, t.Any], sentence: str) -> None:
    assert subject.message(record(**changes)) == sentence


def test_the_curve_in_a_line() -> None:
    assert subject.lines(record(), "spark2") == [
        "spark2: available: 118.2 GiB at 12:00:01.0, 94.2 GiB at 12:00:13.0, 70.2 GiB at 12:00:25.0, 48.2 GiB at 12:00:36.0, 25.0 GiB at 12:00:41.2, "
        "2.9 GiB at 12:00:41.7 UTC (floor 3.0 GiB).",
        "spark2: its last process was gone 1.2 s later.",
    ]


def test_what_else_belongs_to_it() -> None:
    changes = {"limit": "/docker", "total": 6 * GIB, "swap_total": 16 * GIB, "swap_used": 9 * GIB, "swap_before": GIB, "gone_s": None, "curve": []}
    assert subject.lines(record(**changes), "spark2") == [
        "spark2: what counts is the limit of 6.0 GiB of its control group /docker.",
        "spark2: swap in use went from 1.0 GiB to 9.0 GiB of 16.0 GiB meanwhile: the node was about to stand still.",
    ]


@pytest.mark.parametrize(
    ("curve", "found"),
    [
        ([], []),
        ([[0, 5]], [[0, 5]]),
        ([[0, 9], [1, 0]], [[0, 9], [1, 0]]),
        ([[0, 9], [1, 9], [2, 9]], [[0, 9], [2, 9]]),
        # What came back before the fall is no part of it.
        ([[0, 50], [1, 100], [2, 60], [3, 0]], [[1, 100], [2, 60], [3, 0]]),
        ([[0, 1], [1, 2], [2, 9]], [[2, 9]]),
    ],
)
def test_the_turns_of_a_curve(curve: list[list[float]], found: list[list[float]]) -> None:
    assert subject.turns(curve) == found


def test_a_time_is_rounded_whole() -> None:
    assert subject._clock(NOON + 59.97) == "12:01:00.0" and subject._clock(NOON + 59.94) == "12:00:59.9"


# The verdict.

DEAD = {"running": False, "exit_code": 137}


def guarded(**changes: t.Any) -> dict[str, t.Any]:
    return {"scene": {"guard": record(**changes)}}


def test_a_worker_that_was_stopped_is_named_though_the_head_tells_of_a_reset() -> None:
    ranks = [rank(0, upto(3) + raised(PEER.format(ip=2)), running=False, exit_code=1), rank(1, upto(3), **DEAD, **guarded())]
    found = judge(ranks)
    assert (found["verdict"], found["cause"], found["culprit"], found["sure"]) == ("failed", "oom", "spark2", True)
    assert found["summary"] == ("spark2 (rank 1) was stopped by the memory guard in phase load_weights: 2.9 GiB of 119.6 GiB were left, falling by 1.8 GiB/s.")
    assert found["evidence"][0].startswith("spark2: available: 118.2 GiB at 12:00:01.0, ") and found["evidence"][-1].endswith("avail mem=138.33 GB")
    assert "on spark2" in found["remedy"] and "less than 3.0 GiB are left (tp_launch_memory_floor)" in found["remedy"]
    assert {node: told["guarded"] for node, told in found["nodes"].items()} == {"spark1": False, "spark2": True}
    # A program that reads the JSON has the whole curve.
    assert found["nodes"]["spark1"]["guard"] is None and len(found["nodes"]["spark2"]["guard"]["curve"]) == 48


def test_the_head_that_was_stopped() -> None:
    ranks = [rank(0, upto(3), **DEAD, **guarded()), rank(1, upto(3) + raised(PEER.format(ip=1)), running=False, exit_code=1)]
    found = judge(ranks)
    assert (found["verdict"], found["cause"], found["culprit"]) == ("failed", "oom", "spark1")


def test_the_others_wait_without_a_word() -> None:
    """A rank in the middle of a collective may tell nothing for minutes."""
    found = judge([rank(0, upto(3)), rank(1, upto(3), **DEAD, **guarded())])
    assert (found["verdict"], found["cause"], found["culprit"]) == ("failed", "oom", "spark2")


def test_both_were_stopped() -> None:
    ranks = [rank(0, upto(3), **DEAD, **guarded(available=2 * GIB, rate=0)), rank(1, upto(3), **DEAD, **guarded(at=NOON + 45))]
    found = judge(ranks)
    assert (found["verdict"], found["cause"], found["culprit"]) == ("failed", "oom", None)
    assert found["summary"] == (
        "All ranks failed alike: each was stopped by the memory guard: 2.0 GiB of 119.6 GiB were left on spark1; "
        "2.9 GiB of 119.6 GiB were left, falling by 1.8 GiB/s on spark2."
    )
    assert [line.split(":")[0] for line in found["evidence"] if "available" in line] == ["spark1", "spark2"]
    assert "on every node" in found["remedy"]


def test_one_by_the_guard_and_one_by_the_kernel() -> None:
    found = judge([rank(0, upto(3), oom_killed=True, **DEAD), rank(1, upto(3), **DEAD, **guarded())])
    assert (found["cause"], found["culprit"]) == ("oom", None)
    assert found["summary"].startswith("All ranks failed alike: each ran out of memory")
    assert [line.split(" at ")[0] for line in found["evidence"] if "available: " in line] == ["spark2: available: 118.2 GiB"]


def test_it_counts_before_the_kernel_has_given_all_memory_back() -> None:
    """100 GiB of a process that is killed take seconds to be given back, and the container counts as running meanwhile."""
    found = judge([rank(0, upto(3)), rank(1, upto(3), **guarded(gone_s=None))])
    assert (found["verdict"], found["cause"], found["culprit"]) == ("failed", "oom", "spark2")


def shown(found: dict[str, t.Any], detail: str = "normal") -> str:
    return "\n".join(report(found, detail=detail))


@pytest.mark.parametrize("detail", ["short", "normal", "full"])
@pytest.mark.parametrize("end", [{}, {"running": False, "exit_code": 0}, {"running": False, "exit_code": 137}, {"running": False, "exit_code": 143}])
def test_the_curve_is_on_the_screen_and_in_the_json_also_when_it_is_diagnosed_later(detail: str, end: dict[str, t.Any]) -> None:
    """The other ranks have been stopped by then, each in its way."""
    found = json.loads(json.dumps(judge([rank(0, upto(3), **end), rank(1, upto(3), **DEAD, **guarded())])))
    assert (found["verdict"], found["cause"], found["culprit"]) == ("failed", "oom", "spark2")
    text = shown(found, detail)
    assert "spark2: available: 118.2 GiB at 12:00:01.0, 94.2 GiB" in text and "2.9 GiB at 12:00:41.7 UTC (floor 3.0 GiB)" in text
    assert "ended with exit code 137, by the memory guard" in text


def test_the_curve_comes_first_of_a_short_report_too() -> None:
    """Where the limit is a group's, and the kernel has spoken as well."""
    killed = {"time": 1.0, "text": "Memory cgroup out of memory: Killed process 77 (VLLM::Worker)", "cause": "oom"}
    scene_of = {"guard": record(limit="/docker", swap_total=16 * GIB, swap_used=9 * GIB), "kernel": [killed], "oom_kills": 1}
    found = judge([rank(0, upto(3)), rank(1, upto(3), **DEAD, scene=scene_of)])
    assert len(found["evidence"]) == 6 and "available: 118.2 GiB" in shown(found, "short")


def test_the_kernels_word_stands_beside_it() -> None:
    killed = {"time": 1.0, "text": "Memory cgroup out of memory: Killed process 77 (VLLM::Worker)", "cause": "oom"}
    ranks = [rank(0, upto(3)), rank(1, upto(3), **DEAD, scene={"guard": record(), "kernel": [killed], "oom_kills": 1})]
    found = judge(ranks)
    assert "was stopped by the memory guard" in found["summary"] and killed["text"] in found["evidence"]


def test_who_else_holds_memory_there_is_the_remedy() -> None:
    closeup = {
        "memory": {"total_bytes": 120 * GIB, "available_bytes": 90 * GIB},
        "holders": [{"kind": "container", "name": "forgotten", "image": "old/llm:1", "bytes": 12 * GIB, "own": False}],
    }
    found = judge([rank(0, upto(3)), rank(1, upto(3), **DEAD, **guarded(), closeup=closeup)])
    assert "The container forgotten of image old/llm:1 holds 12.0 GiB on spark2: docker stop forgotten" in found["remedy"]
