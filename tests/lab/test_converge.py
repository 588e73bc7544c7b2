# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A few rows of the matrix that `make faults` makes: one run mends or refuses, a second one changes nothing, and nothing is left behind."""

from __future__ import annotations

import copy
import pathlib
import typing as t

import play
import pytest
from faultlab import converge, deploying, mending, run, stray, suites
from faultlab.engines import NODES
from faultlab.scene import Scene

pytestmark = [pytest.mark.lab, pytest.mark.engine]

# In this order: what one leaves serving is the next one's beginning. The last one starts the engine once more.
CHOSEN = ("recipe changed in harmless fields", "container removed, two runs at once")


@pytest.fixture(scope="module", name="scene")
def _scene() -> t.Iterator[Scene]:
    run.prepare([])
    scene = Scene()
    # `make faults` plays all of them with the real engine.
    scene.extra = {"tp_launch_engine": "sglang"}
    yield scene
    scene.leave()
    play.empty(*NODES)


@pytest.mark.long
@pytest.mark.parametrize("name", CHOSEN)
def test_a_fault_is_mended_by_one_run(scene: Scene, name: str) -> None:
    fault = next(fault for fault in mending.FAULTS if fault.name == name)
    outcome = converge.row(fault, scene)
    assert outcome.right, f"{outcome.cells()}\n{outcome.text()}"


def test_the_names_of_the_rows_tell_them_apart() -> None:
    names = [fault.name for fault in mending.FAULTS]
    assert len(set(names)) == len(names)
    assert set(CHOSEN) <= set(names)
    assert len({mending.log_of(name) for name in names}) == len(names)


SCREEN = """
Plan for tiny-qwen3-moe: sparkstack/tiny-qwen3-moe by vLLM, tensor parallel size 2 over 2 nodes

  endpoint   http://10.77.0.11:8000/v1
  action     stop all ranks, then start all ranks, workers first
  time       it serves after about 61 s, as long as its last start took
  because    rank 0 is missing on spark1
             rank 1 on spark2 has ended (exit code 137)
  assumed    one GPU a node: none was seen
"""


@pytest.mark.parametrize(
    ("code", "output", "action", "reasons"),
    [
        (0, SCREEN, "all ranks restarted", ["rank 0 is missing on spark1", "rank 1 on spark2 has ended (exit code 137)"]),
        (0, "  action     nothing\n  because    all ranks run\n", "nothing", ["all ranks run"]),
        (2, "fatal: [spark1]: FAILED! => \n    changed: false\n    msg: 'It is\n        taken.'\nPLAY RECAP", "refused", ["It is taken."]),
        (2, "fatal: [spark1]: UNREACHABLE!", "refused", ["it failed"]),
    ],
    ids=["restart", "nothing", "refusal", "no sentence"],
)
def test_a_plan_is_read_from_what_the_user_sees(code: int, output: str, action: str, reasons: list[str]) -> None:
    done = play.read(code, output, 1.0)
    assert (deploying.action(done), deploying.reasons(done)) == (action, reasons)


def clean_look() -> stray.Look:
    node = {
        "containers": [],
        "processes": [],
        "listeners": ["sshd listens on port 22"],
        "locks": [],
        "temporary": [],
        "launches": ["/var/lib/sparkstack/deployments/tiny-qwen3-moe/launches/a.json"],
        "images": ["engine:1"],
        "models": ["/srv/models/tiny/config.json 12"],
    }
    return {name: {**copy.deepcopy(node), "containers": [play.RANKS[name]]} for name in NODES}


@pytest.mark.parametrize(
    ("key", "there", "problem"),
    [
        ("containers", [play.RANKS["spark2"], "old"], "spark2 has a container old"),
        ("containers", [], "spark2 has no container tiny-qwen3-moe-rank1"),
        ("processes", ["vllm serve"], "spark2 has a process: vllm serve"),
        ("listeners", ["sshd listens on port 22", "vllm listens on port 8000"], "spark2 has a listener: vllm listens on port 8000"),
        ("locks", ["/x/tiny-qwen3-moe/lock.json"], "spark2 has a lock: /x/tiny-qwen3-moe/lock.json"),
        ("temporary", ["/x/good.json.new"], "spark2 has half a file: /x/good.json.new"),
        ("launches", [], "spark2 has lost the record of 1 launches"),
        ("images", [], "spark2 has lost the image engine:1"),
        ("models", ["/srv/models/tiny/config.json 6"], "spark2 has lost the file of a model /srv/models/tiny/config.json 12"),
    ],
)
def test_what_is_left_behind_or_lost_is_told(key: str, there: list[str], problem: str) -> None:
    after = clean_look()
    assert stray.problems(clean_look(), after) == []
    after["spark2"][key] = there
    assert stray.problems(clean_look(), after) == [problem]


def test_a_lock_that_was_there_before_is_still_told() -> None:
    before = clean_look()
    before["spark1"]["locks"] = ["/x/tiny-qwen3-moe/lock.json"]
    assert stray.problems(before, copy.deepcopy(before)) == ["spark1 has a lock: /x/tiny-qwen3-moe/lock.json"]


def test_ranks_that_should_be_gone_are_told() -> None:
    assert stray.problems(clean_look(), clean_look(), ranks=False) == [f"{node} still has {play.RANKS[node]}" for node in NODES]


def test_figures_count_rows_that_passed() -> None:
    outcomes = [converge.Outcome("a", mending.RESTARTED, seconds=60.4), converge.Outcome("b", mending.REFUSED, wrong=["it serves no more"])]
    assert converge.figures(outcomes) == ["figure faults_passed 1 faults", "figure faults_total 2 faults", "figure restart_to_serving_s 60 s"]
    assert converge.figures([]) == []
    assert converge.table(outcomes).splitlines()[-1] == "    WRONG: it serves no more"


def test_the_agents_scenarios_become_rows(tmp_path: pathlib.Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(
        '<testsuites><testsuite><testcase name="test_a_reboot[both]" time="61.5"/>'
        '<testcase name="test_b" time="2.0"><failure message="AssertionError: no"/></testcase></testsuite></testsuites>'
    )
    first, second = suites.read(report, suites.AUTOSTART)
    assert first.right and first.cells()[:4] == ["autostart: a reboot[both]", "serving", "by the agents", "62 s"]
    assert second.wrong == ["AssertionError: no"]
    assert suites.read(tmp_path / "none.xml", suites.AUTOSTART) == []
    assert suites.figures([first, second]) == ["figure fabric_faults_passed 1 faults", "figure fabric_faults_total 2 faults"]
    assert suites.figures([]) == []
