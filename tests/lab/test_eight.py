# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""One model over eight nodes. The tests build on each other: what one leaves is the next one's beginning."""

from __future__ import annotations

import typing as t

import many
import play
import pytest
from faultlab.engines import SGLANG

pytestmark = [pytest.mark.lab, pytest.mark.engine, pytest.mark.long]

COUNT, LOST = 8, "spark5"
NAME = SGLANG.data["name"]
RECIPE = many.over(SGLANG, COUNT, REHEARSAL_PACE="0.2")


@pytest.fixture(scope="module", autouse=True)
def eight() -> t.Iterator[None]:
    with many.nodes(COUNT, "2G"):
        yield


def deploy() -> play.Play:
    run = play.playbook("playbooks/deploy.yml", extra={"tp_launch_recipe": RECIPE, "tp_launch_history_dir": ""})
    assert run.code == 0, run.output
    return run


def launches() -> dict[str, tuple[str, bool]]:
    """By node, the launch of its rank and whether that runs; each node has the rank of its place."""
    found = {}
    for rank, node in enumerate(many.names(COUNT)):
        (one,) = play.containers(node).values()
        assert one["labels"]["sparkstack.rank"] == str(rank) and one["labels"]["sparkstack.ranks"] == str(COUNT)
        found[node] = (one["labels"]["sparkstack.launch_id"], one["running"])
    return found


def test_a_model_is_split_over_eight_nodes() -> None:
    run = deploy()
    assert f"tensor parallel size {COUNT} over {COUNT} nodes" in run.text and f"({COUNT} ranks, launch " in run.text
    assert all(run.changed[node] > 0 for node in many.names(COUNT))
    found = launches()
    assert len(set(found.values())) == 1 and found["spark1"][1]


def test_a_second_run_changes_nothing() -> None:
    before = launches()
    assert deploy().changed == dict.fromkeys(many.names(COUNT), 0)
    assert launches() == before


def test_a_run_after_the_reboot_of_one_node_heals_all_of_them() -> None:
    before = launches()
    play.lab("reboot", LOST)
    run = deploy()
    assert f"rank 4 on {LOST} has ended" in run.text and "stop all ranks, then start all ranks, workers first" in run.text
    after = launches()
    assert len(set(after.values())) == 1 and after["spark1"][1] and after["spark1"][0] != before["spark1"][0]
    assert deploy().changed == dict.fromkeys(many.names(COUNT), 0)
