# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What counts as progress of a rank, and the lines that tell of it."""

from __future__ import annotations

from watching import HEAD, START, looks

from ansible_collections.sparkstack.inference.plugins.plugin_utils._progress import Progress, line, passed


def test_progress_of_any_kind() -> None:
    record = looks(HEAD[0])(START + 1)
    progress = Progress()
    assert progress.quiet(record, START) == 0.0
    assert progress.quiet(record, START + 50) == 50.0
    moved = {**record, "activity": {"read_bytes": 5 << 20, "memory_bytes": 0, "cpu_seconds": 1.0}}
    assert progress.quiet(moved, START + 60) == 0.0
    # A page or two are no progress, a core at work is only told.
    idle = {**record, "activity": {"read_bytes": (5 << 20) + 4096, "memory_bytes": 4096, "cpu_seconds": 11.0}}
    assert progress.quiet(idle, START + 70) == 10.0
    assert progress.busy
    # The clock was set back and ahead: no second of it counts.
    assert progress.quiet(idle, START - 300) == 10.0
    assert progress.quiet(idle, START + 3300) == 10.0
    assert progress.quiet(idle, START + 3310) == 20.0


def test_lines() -> None:
    record = {
        "node": "spark2",
        "started": True,
        "running": True,
        "seconds": 88.4,
        "seconds_in_phase": 80.0,
        "reading": {"phase": "load_weights", "progress": {"percent": 71, "done": 5, "total": 7}},
    }
    assert line(record) == "[spark2] 4/9 load_weights 71% (5/7), 88 s, about 32 s left in this phase"
    assert line({**record, "running": False, "exit_code": 137}) == "[spark2] 4/9 load_weights 71% (5/7), ended with exit code 137, after 88 s"
    assert line({"node": "spark2", "started": False}) == "[spark2] no container yet"
    assert line({"node": "spark2", "unreachable": "gone"}) == "[spark2] gone"
    read = {**record, "activity": {"read_bytes": 42.1e9, "memory_bytes": 3e9}, "rate": 1.2e9}
    assert line(read) == "[spark2] 4/9 load_weights 71% (5/7), 42.1 GB read at 1.20 GB/s, 88 s, about 32 s left in this phase"
    # From the page cache nothing is read.
    assert line({**read, "rate": 0.0}) == "[spark2] 4/9 load_weights 71% (5/7), 3.0 GB in memory, 88 s, about 32 s left in this phase"
    told = {**record, "reading": {"phase": "graph_capture", "progress": {"percent": 2, "done": 1, "total": 58, "remaining_seconds": 3263}}}
    assert line(told) == "[spark2] 6/9 graph_capture 2% (1/58), 88 s, about 3263 s left in this phase"
    assert line({**record, "paused": True}).startswith("[spark2] 4/9 load_weights 71% (5/7) paused, 88 s")


def test_phases_between_two_looks_are_told() -> None:
    phases = [{"phase": "init_dist", "seconds": 11.0}, {"phase": "create_runner", "seconds": None}, {"phase": "load_weights", "seconds": 2.04}]
    record = {"node": "spark1", "reading": {"phases": [*phases, {"phase": "kv_cache", "seconds": None}]}}
    assert passed(record, "init_dist") == ["[spark1] 4/9 load_weights, took 2.0 s"]
    assert passed(record, "load_weights") == [] and passed(record, None) == []
