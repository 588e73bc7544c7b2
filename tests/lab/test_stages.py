# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A deploy in stages, the health check and the monitoring hand-off on the lab's nodes with the real engine. The tests build on each other."""

from __future__ import annotations

import json
import pathlib

import play
import pytest

pytestmark = [pytest.mark.lab, pytest.mark.engine]

STAGES = ("prepare", "stage", "launch", "prove")


@pytest.fixture(scope="module", autouse=True)
def nodes() -> None:
    """The lab's nodes, on which nothing of the deployment runs."""
    play.lab("up")
    play.install_engine()
    run = play.playbook("playbooks/stop.yml", extra={"deployment": play.DEPLOYMENT})
    assert run.code == 0, run.output


def test_what_is_stopped_is_missed_when_it_is_asked_for() -> None:
    run = play.playbook("playbooks/health.yml", extra={"deployment": play.DEPLOYMENT})
    assert run.code == 2 and set(run.changed.values()) == {0}, run.output
    assert "Run sparkstack.inference.deploy to have it serve again." in run.text


def test_the_stages_serve_a_model() -> None:
    for stage in STAGES:
        run = play.playbook(f"playbooks/{stage}.yml")
        assert run.code == 0, run.output
    assert all(rank["running"] for rank in play.ranks().values())


@pytest.mark.long
def test_a_second_time_they_change_nothing() -> None:
    before = {name: rank["id"] + rank["started"] for name, rank in play.ranks().items()}
    for stage in STAGES:
        run = play.playbook(f"playbooks/{stage}.yml")
        assert run.code == 0 and set(run.changed.values()) == {0}, run.output
    assert {name: rank["id"] + rank["started"] for name, rank in play.ranks().items()} == before


def test_what_serves_is_well_and_a_target(tmp_path: pathlib.Path) -> None:
    run = play.playbook("playbooks/health.yml", extra={"must_serve": True})
    assert run.code == 0 and set(run.changed.values()) == {0}, run.output
    path = tmp_path / "targets.json"
    run = play.playbook("playbooks/monitoring.yml", extra={"monitoring_targets": str(path)})
    assert run.code == 0, run.output
    (target,) = json.loads(path.read_text())
    assert target["targets"] == ["10.77.0.11:8000"] and target["labels"]["sparks_deployment"] == play.DEPLOYMENT


def test_a_node_that_is_away_is_the_verdict(tmp_path: pathlib.Path) -> None:
    away = tmp_path / "away.ini"
    away.write_text("spark2 ansible_port=9\n")
    run = play.playbook("playbooks/health.yml", "-i", str(away), extra={"deployment": play.DEPLOYMENT})
    assert run.code == 2, run.output
    assert "its head answers, but what runs on spark2 is unknown. See that every node is switched on" in run.text
