# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The report that a run leaves, and the one that is made of a record later, played by Ansible; the modules only say what a case wants."""

from __future__ import annotations

import json
import pathlib
import stat
import typing as t

import pytest
from test_tp_launch_ways import Ways, plan

# What a log holds comes back in the evidence. None of it may be carried out, neither by Ansible nor by a browser.
HOSTILE = "ValueError: {{ lookup('ansible.builtin.pipe', 'touch carried-out') }} </pre><script>alert(1)</script>"
FAILED = {
    "verdict": "failed", "phase": "init_dist", "cause": "oom", "culprit": "spark2", "summary": "spark2 ran out of memory.", "remedy": "Free some.",
    "evidence": [HOSTILE], "notes": [],
    "nodes": {
        "spark1": {"rank": 0, "state": "running", "phase": "init_dist", "timeline": [{"phase": "init_dist", "time": 100.0, "seconds": None, "values": {}}]},
        "spark2": {"rank": 1, "state": "exited", "exit_code": 1, "phase": "init_dist", "cause": "oom", "last_line": HOSTILE,
                   "timeline": [{"phase": "init_dist", "time": 101.0, "seconds": None, "values": {}}]},
    },
}  # fmt: skip


@pytest.fixture
def ways(tmp_path: pathlib.Path) -> Ways:
    return Ways(tmp_path)


def report(ways: Ways, answers: dict[str, t.Any], *options: str, **variables: t.Any) -> tuple[str, pathlib.Path]:
    path = ways.folder / "launch.html"
    known = {"inference_plan": [{"plan": plan("L1", "new")}], "diagnosis_plan": [{"plan": {"json": str(path)}}]}
    return ways.play("main", {**known, **answers}, *options, tp_launch_report=str(path), **variables), path


def test_a_failed_run_leaves_a_report_and_still_fails(ways: Ways) -> None:
    said, path = report(ways, {"init_phase_wait": [FAILED]}, tp_launch_environment={"HF_TOKEN": "hf_abcdefghijklmnop"}, tp_launch_api_key="open-sesame")
    assert "failed=1" in said and f"The report is {path}." in said
    page = path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "spark2 ran out of memory." in page and "FAILED" in page and "L1" in page
    assert "<script" not in page and "&lt;script&gt;" in page and "{{ lookup(" in page
    assert not list(ways.folder.rglob("carried-out"))


def test_a_run_that_serves_leaves_one_too(ways: Ways) -> None:
    said, path = report(ways, {})
    assert "failed=0" in said
    assert "READY" in path.read_text()


def test_it_tells_what_came_to_the_nodes(ways: Ways) -> None:
    came = {"bytes_sent": 3 << 30, "seconds": 10.0, "throughput_mb_s": 322.1}
    known: dict[str, t.Any] = {"image_sync_moved": {**came, "what": "image"}, "model_staging_moved": {**came, "what": "model", "bytes_sent": 5 << 30}}
    known["preflight_report"] = {"result": "ready", "nodes": ["spark1", "spark2"], "checks": [{"item": "reach", "result": "ready", "message": "both ways"}]}
    known["__tp_launch_collective"] = {"verdict": "ready", "message": "They reduce.", "group": {"bus_gb_s": 21.9, "devices": ["rocep1s0f0"]}}
    said, path = report(ways, {}, "-e", json.dumps(known))
    page = path.read_text()
    assert "failed=0" in said and page.count(">3.0 GiB<") == page.count(">5.0 GiB<") == 2 and page.count(">322 MB/s<") == 4
    assert "from the hub" not in page and "both ways" in page and "21.9 GB/s" in page
    (kept,) = [call["record"] for call in ways.calls("launch_record", "spark1") if call["record"].get("answered")]
    assert kept["told"]["collective"]["group"]["devices"] == ["rocep1s0f0"] and kept["told"]["preflight"]["nodes"] == ["spark1", "spark2"]
    assert [[moved["what"] for moved in each] for each in kept["told"]["transfers"].values()] == [["model", "image"]] * 2


def test_check_mode_leaves_none(ways: Ways) -> None:
    said, path = report(ways, {}, "--check")
    assert "failed=0" in said and not path.exists()


def test_by_default_there_is_none(ways: Ways) -> None:
    said = ways.play("main", {"inference_plan": [{"plan": plan("L1", "new")}]})
    assert "failed=0" in said and not list(ways.folder.glob("*.html")) and not ways.calls("diagnosis_plan", "spark1")


def test_a_report_that_cannot_be_written_does_not_hide_what_became_of_the_launch(ways: Ways) -> None:
    gone = ways.folder / "gone" / "launch.html"
    said, _path = report(ways, {"init_phase_wait": [FAILED], "diagnosis_plan": [{"plan": {"json": str(gone)}}]})
    assert f"The report {gone} could not be written" in said
    assert "spark2 ran out of memory. Free some." in said


def test_the_record_that_is_kept_is_enough_for_a_report(ways: Ways) -> None:
    report(ways, {"init_phase_wait": [FAILED]})
    (kept,) = [call["record"] for call in ways.calls("launch_record", "spark1") if call["record"].get("verdict")]
    folder = ways.folder / "history" / "tiny" / "launches"
    folder.mkdir(parents=True)
    (folder / "L1.json").write_text(json.dumps(kept))
    path = ways.folder / "later.html"
    answers = {"diagnosis_plan": [{"plan": {"json": str(path)}}]}
    words = {"deployment": "tiny", "tp_launch_history_dir": str(ways.folder / "history"), "tp_launch_report": str(path)}
    (ways.folder / "inference_info spark1").unlink()
    said = ways.play("report", answers, **words)
    assert "FAILED: spark2 ran out of memory." in said and "ended with exit code 1" in said
    # No node was asked: the controller has it.
    assert "failed=0" in said and not ways.calls("inference_info", "spark1")
    page = path.read_text()
    assert "spark2 ran out of memory." in page and "<script" not in page and not list(ways.folder.rglob("carried-out"))


AWAY = "see that it is switched on and that you can log in to it by ssh from this machine, then run this again."


def test_nodes_that_do_not_answer_are_no_nodes_without_a_record(ways: Ways) -> None:
    words = {"deployment": "tiny", "tp_launch_history_dir": str(ways.folder / "none")}
    said = " ".join(ways.play("report", {"inference_info": [{"unreachable": True}]}, **words).split())
    lacks = f"so it is unknown whether they keep a record of 'tiny'; {ways.folder}/none has none."
    assert f"No node answers (spark1: Connection timed out), {lacks} For each of them, {AWAY}" in said and "There is no record" not in said
    said = " ".join(ways.play("report", {"inference_info": [{"unreachable": True}]}, deployment="tiny").split())
    assert f"whether they keep a record of 'tiny'; on the controller none is kept. For each of them, {AWAY}" in said
    said = " ".join(ways.play("report", {"inference_info spark2": [{"unreachable": True}]}, launch="L7", **words).split())
    lacks = f"There is no record of launch L7 of 'tiny', neither in {ways.folder}/none nor on the nodes that answer."
    assert f"{lacks} One may be on spark2, where nothing answers (Connection timed out): {AWAY}" in said


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({"deployment": "tiny"}, "There is no record of 'tiny', neither in"),
        ({"deployment": "tiny", "launch": "L7"}, "There is no record of launch L7 of 'tiny', neither in"),
        ({"deployment": "../../etc"}, "'../../etc' is no name of a deployment or launch"),
        ({"deployment": "tiny", "launch": "../../good"}, "'../../good' is no name of a deployment or launch"),
        ({"tp_launch_recipe": ""}, "Say which deployment with -e deployment=NAME"),
    ],
)
def test_what_cannot_be_told_of_is_one_sentence(ways: Ways, variables: dict[str, t.Any], told: str) -> None:
    said = ways.play("report", {}, tp_launch_history_dir=str(ways.folder / "none"), **variables)
    assert told in " ".join(said.replace("\\n", " ").split())
    assert "failed=1" in said
