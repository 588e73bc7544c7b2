# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""status and stop on the lab's nodes. The tests build on each other: what one leaves is the next one's beginning."""

from __future__ import annotations

import json
import pathlib
import re
import subprocess
import typing as t

import play
import pytest

pytestmark = [pytest.mark.lab, pytest.mark.engine]

STATUS, STOP = "playbooks/status.yml", "playbooks/stop.yml"


@pytest.fixture(scope="module", autouse=True)
def serving(rehearsed: None) -> None:
    """The lab's deployment serves."""
    play.lab("up")
    play.install_engine()
    run = play.playbook("deploy_qwen.yml")
    assert run.code == 0, run.output


def look(folder: pathlib.Path, *arguments: str, code: int = 0, **extra: t.Any) -> tuple[dict[str, t.Any], play.Play]:
    """The JSON of status, and its run."""
    path = folder / "status.json"
    run = play.playbook(STATUS, *arguments, extra={"json": str(path), **extra})
    assert run.code == code and set(run.changed.values()) == {0}, run.output
    assert path.stat().st_mode & 0o777 == 0o600
    return json.loads(path.read_text()), run


def lock(*options: str, **arguments: t.Any) -> None:
    """Have another run take or free the lock."""
    words = [str(play.BIN / "ansible"), "spark1", "-i", play.inventory(), "-b", "-m", "sparkstack.inference.deployment_lock", *options]
    args = {"deployment": play.DEPLOYMENT, "run": "nightly", "owner": {"user": "alice", "host": "ctl1", "pid": 7}, **arguments}
    done = subprocess.run([*words, "-a", json.dumps(args)], env=play.environment(), cwd=play.ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_serves_is_told_whole(tmp_path: pathlib.Path) -> None:
    found, run = look(tmp_path)
    one = found["deployments"][play.DEPLOYMENT]
    assert (found["format"], one["state"], one["endpoint"], one["drift"], one["lock"]) == (1, "serving", "http://10.77.0.11:8000/v1", [], None)
    assert one["answer"]["answered"] and one["answered_at"] == found["taken_at"]
    assert [(rank["rank"], rank["node"], rank["state"], rank["phase"]) for rank in one["ranks"]] == [
        (0, "spark1", "running", "ready"),
        (1, "spark2", "running", "ready"),
    ]
    for rank in one["ranks"]:
        assert rank["memory_bytes"] > 10 << 20 and rank["uptime_seconds"] > 0 and rank["launch_id"] == one["launch_id"] == one["good"]["launch_id"]
    assert one["good"]["answered"] and one["good"]["who"]["user"]
    assert f"{play.DEPLOYMENT} runs as the recipe says" in run.text and re.search(r"spark2: \d+\.\d of \d+\.\d GiB available", run.text)


def test_what_differs_from_the_recipe_is_told(tmp_path: pathlib.Path) -> None:
    found, run = look(tmp_path, tp_launch_arguments={"context-length": 256})
    assert found["deployments"][play.DEPLOYMENT]["drift"] == ["engines.sglang.arguments.context-length: 512 -> 256"]
    assert f"{play.DEPLOYMENT} differs from the recipe: engines.sglang.arguments.context-length: 512 -> 256" in run.text


def test_of_a_node_that_is_not_reached_nothing_is_assumed(tmp_path: pathlib.Path) -> None:
    away = tmp_path / "away.ini"
    away.write_text("spark2 ansible_port=9\n")
    found, run = look(tmp_path, "-i", str(away), code=4)
    one = found["deployments"][play.DEPLOYMENT]
    assert (one["state"], one["summary"]) == ("unknown", "its head answers, but what runs on spark2 is unknown")
    assert [rank["state"] for rank in one["ranks"]] == ["running", "unknown"] and found["nodes"]["spark2"]["reachable"] is False
    assert "spark2: unreachable, its ranks are unknown" in run.text


def test_stop_is_refused_while_another_run_works_on_it(tmp_path: pathlib.Path) -> None:
    before = play.ranks()
    lock()
    found, run = look(tmp_path)
    assert found["deployments"][play.DEPLOYMENT]["lock"]["user"] == "alice" and "is being worked on by alice at ctl1 (pid 7) since" in run.text
    refused = play.playbook(STOP)
    assert refused.code != 0 and set(refused.changed.values()) == {0}
    assert f"{play.DEPLOYMENT} is being worked on by alice at ctl1 (pid 7) since " in refused.text
    assert "wait for it, or set tp_launch_break_lock to true if that run is gone." in refused.text
    after = play.ranks()
    assert {name: rank["id"] for name, rank in after.items()} == {name: rank["id"] for name, rank in before.items()}
    assert all(rank["running"] for rank in after.values())


def test_stop_gives_the_memory_back_and_proves_it(tmp_path: pathlib.Path) -> None:
    predicted = play.playbook(STOP, "--check", extra={"tp_launch_break_lock": True})
    assert predicted.code == 0 and all(count == 1 for count in predicted.changed.values()), predicted.output
    for name in play.RANKS:
        assert re.search(name + r": \S+ [GM]iB would come back, \d+\.\d of \d+\.\d GiB available", predicted.text), predicted.output
    assert play.ranks()["spark1"]["running"]
    run = play.playbook(STOP, "-e", "tp_launch_break_lock=true")
    assert run.code == 0 and all(count == 1 for count in run.changed.values()), run.output
    for name in play.RANKS:
        back = re.search(name + r": (\S+) ([GM])iB came back, \d+\.\d of \d+\.\d GiB available", run.text)
        assert back and float(back[1]) * (1024 if back[2] == "G" else 1) > 10, run.output
    assert not play.containers("spark1") and not play.containers("spark2")
    # Nothing is left but the records.
    for name in play.RANKS:
        kept = play.node(name, f"ls /var/lib/sparkstack/deployments/{play.DEPLOYMENT}").split()
        assert "good.json" in kept and "launches" in kept and "lock.json" not in kept
    found, told = look(tmp_path)
    one = found["deployments"][play.DEPLOYMENT]
    assert (one["state"], one["ranks"], one["lock"]) == ("stopped", [], None) and one["good"]["answered"]
    assert "No deployment runs on these nodes." in told.text and f"{play.DEPLOYMENT} is last known to have answered at" in told.text
    again = play.playbook(STOP)
    assert again.code == 0 and set(again.changed.values()) == {0} and f"No node had a rank of '{play.DEPLOYMENT}'" in again.text, again.output


def test_stop_of_a_part_of_the_nodes_says_which_was_not_reached(tmp_path: pathlib.Path) -> None:
    away = tmp_path / "away.ini"
    away.write_text("spark1 ansible_port=9\n")
    run = play.playbook(STOP, "-i", str(away))
    assert (
        run.code == 4 and "spark1 was not reached. A rank there may still run and hold memory: see that it is switched on and that you can log in" in run.text
    ), run.output
