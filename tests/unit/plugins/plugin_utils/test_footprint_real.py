# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The plan of each real run beside what the engine reported of it."""

from __future__ import annotations

import json
import pathlib

import pytest
import real_memory

from ansible_collections.sparkstack.inference.plugins.module_utils._engines._memory import GIB
from ansible_collections.sparkstack.inference.plugins.plugin_utils import _footprint_needs
from ansible_collections.sparkstack.inference.plugins.plugin_utils._footprint_compare import reported
from ansible_collections.sparkstack.inference.plugins.plugin_utils._footprint_needs import ALONE, COMMUNICATION, CONTEXT, PROCESSES


def test_the_runs_are_there() -> None:
    assert len(real_memory.CASES) >= 6


@pytest.mark.parametrize("folder", real_memory.CASES, ids=lambda folder: folder.name)
def test_weights_and_tokens_are_as_planned(folder: pathlib.Path) -> None:
    """Weights within 2 %, tokens within 10 %."""
    found = real_memory.compared(folder)
    assert found["weights_error_share"] < 0.02, found["lines"]
    assert found["tokens_error_share"] < 0.10, found["lines"]


@pytest.mark.parametrize("folder", real_memory.CASES, ids=lambda folder: folder.name)
def test_what_ran_was_planned_to_fit(folder: pathlib.Path) -> None:
    found = real_memory.plan(folder)
    assert (found["fits"], found["problems"], found["assumed"]) == (True, [], [])


@pytest.mark.parametrize("folder", real_memory.CASES, ids=lambda folder: folder.name)
def test_what_a_rank_takes_beside_is_near_the_plan(folder: pathlib.Path) -> None:
    """The processes in main memory, which a GB10 has to hold too, and what is gone of the GPU before the load begins."""
    ranks, taken = real_memory.main_memory(folder)
    assert 0.6 * PROCESSES < taken / ranks < PROCESSES + 0.1 * GIB
    for report in real_memory.reports(folder).values():
        before = real_memory.free_before(folder) - reported(report)["free_bytes"]
        assert abs(before - CONTEXT - (COMMUNICATION if ranks > 1 else ALONE)) < 0.6 * GIB


@pytest.mark.parametrize("folder", real_memory.CASES, ids=lambda folder: folder.name)
def test_no_run_was_planned_higher_than_is_allowed_for_before_a_launch_is_refused(folder: pathlib.Path) -> None:
    found = real_memory.compared(folder)
    assert found["weights_error_share"] < _footprint_needs.WEIGHTS_ERROR
    assert max(found["tokens_error_share"], found["cache_error_share"] or 0.0) < _footprint_needs.CACHE_ERROR
    ranks, taken = real_memory.main_memory(folder)
    on_gpu = max(json.loads((folder / "facts.json").read_text())["most_used_bytes"])
    row = real_memory.plan(folder)["nodes"][0]
    fixed = sum(need["bytes"] for need in row["needs"] if need["what"] not in ("weights", "cache", "system")) / row["ranks"]
    # A GB10 holds both in one memory.
    weights = found["nodes"][0]["weights"]["reported"]
    real = on_gpu - weights - row["pool_bytes"] / row["ranks"] + taken / ranks
    assert fixed + PROCESSES - real < _footprint_needs.FIXED_ERROR * (fixed + PROCESSES)
