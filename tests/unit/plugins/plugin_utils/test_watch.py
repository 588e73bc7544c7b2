# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The watch over several ranks, with scripted looks and a clock that the test moves."""

from __future__ import annotations

import pathlib
import typing as t

import pytest
from watching import HEAD, OOM, START, UNBALANCED, WORKER, Group, looks


def test_ready(tmp_path: pathlib.Path) -> None:
    group = Group(tmp_path, {}, looks(*HEAD), looks(*WORKER)).run()
    assert {v["verdict"] for v in group.verdicts.values()} == {"ready"}
    # The worker's task ends with the head's, though its own log says no such thing.
    assert group.ends == {"spark1": 6.0, "spark2": 6.0}
    said = [text for _when, text in group.lines if text.startswith("[spark1]")]
    assert said == ["[spark1] 1/9 parse_args, 0 s", "[spark1] 2/9 init_dist, 2 s", "[spark1] 4/9 load_weights, 4 s", "[spark1] 9/9 ready, 6 s"]


def test_the_waiting_head_ends_with_the_worker(tmp_path: pathlib.Path) -> None:
    group = Group(tmp_path, {}, looks(*HEAD[:2]), looks(*WORKER[:2], OOM, running=False, exit_code=137)).run()
    assert {(v["verdict"], v["culprit"], v["cause"]) for v in group.verdicts.values()} == {("failed", "spark2", "oom")}
    assert max(group.ends.values()) <= 4 + 3
    assert "torch.OutOfMemoryError: CUDA out of memory." in group.verdicts["spark1"]["evidence"]


def test_the_first_to_fail_is_not_to_blame(tmp_path: pathlib.Path) -> None:
    head = looks(*HEAD[:2], UNBALANCED, running=False, exit_code=137)
    worker = looks(*WORKER[:2], "", OOM, step=1.9, running=False, exit_code=137)
    group = Group(tmp_path, {}, head, worker).run()
    assert {(v["culprit"], v["cause"]) for v in group.verdicts.values()} == {("spark2", "oom")}
    assert max(group.ends.values()) <= 4 + 5


def test_health_counts(tmp_path: pathlib.Path) -> None:
    sick = looks(*HEAD, healthy=False)
    group = Group(tmp_path, {"timeout": 60}, sick, looks(*WORKER)).run()
    assert {(v["verdict"], v["over"]) for v in group.verdicts.values()} == {("starting", True)}


def test_until(tmp_path: pathlib.Path) -> None:
    group = Group(tmp_path, {"until": "load_weights"}, looks(*HEAD[:3]), looks(*WORKER[:3])).run()
    assert {(v["verdict"], v["phase"], v["over"]) for v in group.verdicts.values()} == {("starting", "load_weights", False)}
    assert max(group.ends.values()) <= 5


def test_stalled(tmp_path: pathlib.Path) -> None:
    group = Group(tmp_path, {}, looks(*HEAD[:3]), looks(*WORKER[:3])).run()
    assert {v["verdict"] for v in group.verdicts.values()} == {"stalled"}
    assert 240 <= max(group.ends.values()) <= 250
    beats = [text for when, text in group.lines if when > 10]
    assert beats[0] == "[spark1] 4/9 load_weights, 34 s; [spark2] 4/9 load_weights, 33 s"
    assert len(beats) == 8


def test_reading_is_progress(tmp_path: pathlib.Path) -> None:
    loading = looks(*WORKER[:3])

    def worker(now: float) -> dict[str, t.Any]:
        return {**loading(now), "activity": {"read_bytes": int(now - START) * 50_000_000, "memory_bytes": None, "cpu_seconds": None}}

    group = Group(tmp_path, {"timeout": 900}, looks(*HEAD[:3]), worker).run()
    assert {(v["verdict"], v["over"]) for v in group.verdicts.values()} == {("starting", True)}


@pytest.mark.parametrize("verdict", ["starting", "failed"])
def test_judge_now(tmp_path: pathlib.Path, verdict: str) -> None:
    worker = looks(WORKER[0]) if verdict == "starting" else looks(WORKER[0] + OOM, running=False, exit_code=137)
    group = Group(tmp_path, {"timeout": 0}, looks(HEAD[0]), worker).run()
    assert {v["verdict"] for v in group.verdicts.values()} == {verdict}
    # A failure is looked at closely before the verdict stands.
    assert max(group.ends.values()) <= 2
    assert group.lines == []


def test_judge_now_looks_twice_before_it_says_stalled(tmp_path: pathlib.Path) -> None:
    old = "[2026-11-29 22:42:02] server_args=ServerArgs()\n[2026-11-29 22:42:03 TP0] Load weight begin. avail mem=1 GB\n"

    def quiet(now: float) -> dict[str, t.Any]:
        return {**looks(old)(now), "now": now + 1000, "activity": {"read_bytes": int(now - START) << 22}}

    group = Group(tmp_path, {"timeout": 0}, quiet, quiet).run()
    assert {v["verdict"] for v in group.verdicts.values()} == {"starting"}
