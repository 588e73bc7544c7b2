# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the role's tasks do with the engine's memory setting, and with what the engine then reports; played by Ansible with stand-ins."""

from __future__ import annotations

import pathlib
import typing as t

import pytest
from test_tp_launch_ways import LAUNCH, Ways, plan, record

GIB = 1024**3
OPTION = "mem-fraction-static"


@pytest.fixture(name="ways")
def _ways(tmp_path: pathlib.Path) -> Ways:
    return Ways(tmp_path)


def planned(launch: str, image: str, computed: dict[str, float] | None, **changes: t.Any) -> dict[str, t.Any]:
    names = None if computed is None else list(computed)
    mine = {**LAUNCH, "arguments": dict(computed or {}), "planned": names}
    memory = {"nodes": [{"node": "spark1"}, {"node": "spark2"}], "weights_bytes": [3 * GIB, 3 * GIB], "tokens_that_fit": 1000, "knob": None}
    found = plan(launch, image, memory=memory, planned=computed, **changes)
    found["ranks"] = [{**rank, "launch": mine} for rank in found["ranks"]]
    return found


def ready(used: float = 3.0) -> dict[str, t.Any]:
    timeline = [{"phase": "load_weights", "time": 1.0, "seconds": 1.0, "values": {"used_gb": used}}]
    nodes = {name: {"rank": rank, "timeline": timeline, "guarded": False} for rank, name in enumerate(("spark1", "spark2"))}
    return {"verdict": "ready", "summary": "", "remedy": "", "nodes": nodes}


GUARD = {"memory_guard": [{"told": None}]}


def test_the_start_gets_what_was_computed_and_the_report_is_shown_and_kept(ways: Ways) -> None:
    told = ways.play("main", {**GUARD, "inference_plan": [{"plan": planned("L2", "new", {OPTION: 0.813})}], "init_phase_wait": [ready(2.97)]})
    for host in ("spark1", "spark2"):
        [start] = [call for call in ways.calls("inference_launch", host) if call["state"] == "started"]
        assert (start["arguments"], start["planned"]) == ({OPTION: 0.813}, [OPTION])
    assert "spark1  weights  3.0 GiB  3.0 GiB      +1.0 %" in told and "spark2  weights" in told
    kept = ways.calls("launch_record", "spark1")[-1]["record"]
    assert kept["planned"] == {OPTION: 0.813} and kept["memory"]["nodes"][1]["weights"]["planned"] == 3 * GIB


def test_nothing_is_shown_where_nothing_was_started_or_said(ways: Ways) -> None:
    found = planned("L2", "new", None)
    told = ways.play("main", {**GUARD, "inference_plan": [{"plan": found}]})
    assert "answered" in told and "plan is off by" not in told
    assert all("planned" not in call for call in ways.calls("inference_launch", "spark1"))
    found.update(action="watch", memory={})
    assert "plan is off by" not in ways.play("main", {**GUARD, "inference_plan": [{"plan": found}], "init_phase_wait": [ready()]})


@pytest.mark.parametrize(("kept", "given"), [({OPTION: 0.77}, {OPTION: 0.77}), ({}, {}), (None, None)])
def test_going_back_takes_the_value_of_that_launch(ways: Ways, kept: dict[str, float] | None, given: dict[str, float] | None) -> None:
    good = {**record("L1", "old"), "planned": kept}
    answers = {**GUARD, "inference_plan": [{"plan": planned("L3", "old", kept)}], "init_phase_wait": [ready()]}
    told = ways.play("rollback", answers, ledger={"last": record("L2", "new"), "good": good, "previous": None})
    calls = [call for call in ways.calls("inference_plan", "spark1") if "nodes" in call]
    assert "Going back to launch L1" in told and len(calls) == 1, told
    assert calls[0]["restore"] is True and calls[0].get("planned") == given
    assert (calls[0]["memory_setting"], calls[0]["memory_check"]) == ("auto", "refuse")
