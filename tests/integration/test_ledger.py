# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""launch_record and deployment_lock on a real node: real runs that meet, and one that is killed while it holds the lock."""

from __future__ import annotations

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import typing as t

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lab"))

import play  # noqa: E402  (the path above must come first)

pytestmark = pytest.mark.lab

FOLDER = "/var/lib/sparkstack/deployments/ledger-test"
DEPLOYMENT = {"deployment": "ledger-test"}
# A run that takes the lock and goes on with something else.
LONG = """\
- hosts: spark1
  gather_facts: false
  tasks:
    - sparkstack.inference.deployment_lock:
        deployment: ledger-test
      become: true
    - ansible.builtin.wait_for:
        path: /run/never
        timeout: 120
"""


def begin(name: str, args: dict[str, t.Any], *options: str) -> subprocess.Popen[str]:
    """A run of one module on the head as root."""
    command = [str(play.BIN / "ansible"), "spark1", "-i", play.inventory(), "-b", "-m", f"sparkstack.inference.{name}", "-a", json.dumps(args), *options]
    environment = {**play.environment(), "ANSIBLE_CALLBACK_RESULT_FORMAT": "json", "ANSIBLE_LOAD_CALLBACK_PLUGINS": "1"}
    return subprocess.Popen(command, env=environment, cwd=play.ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def end(run: subprocess.Popen[str]) -> dict[str, t.Any]:
    """Its result."""
    output, _none = run.communicate(timeout=120)
    start = re.search(r"^spark1 \| ([A-Z]+)!? => ", output, re.MULTILINE)
    assert start, output
    result, _end = json.JSONDecoder().raw_decode(output[start.end() :])
    return {**t.cast("dict[str, t.Any]", result), "failed": start[1] == "FAILED"}


def module(name: str, args: dict[str, t.Any], *options: str) -> dict[str, t.Any]:
    return end(begin(name, args, *options))


@pytest.fixture(autouse=True)
def fresh() -> t.Iterator[None]:
    play.lab("up")
    play.node("spark1", f"rm -rf {FOLDER}")
    yield
    play.node("spark1", f"rm -rf {FOLDER}")


def test_a_launch_is_recorded_once_and_read_back() -> None:
    args = {**DEPLOYMENT, "record": {"launch_id": "L1", "began": 1.5, "recipe": {"name": "ledger-test"}}, "good": True}
    assert module("launch_record", args, "--check")["changed"]
    assert play.node("spark1", f"ls {FOLDER} 2>/dev/null || echo none").strip() == "none"
    assert module("launch_record", args)["changed"] and not module("launch_record", args)["changed"]
    assert play.node("spark1", f"stat -c '%a %U' {FOLDER} {FOLDER}/good.json {FOLDER}/launches/L1.json").split("\n")[:3] == ["700 root", "600 root", "600 root"]
    info = module("inference_info", DEPLOYMENT)
    kept = info["ledger"]["ledger-test"]
    assert kept["launches"] == ["L1"] and kept["good"]["recipe"] == {"name": "ledger-test"} and kept["lock"] is None and not kept["problems"]
    assert info["now"] > info["booted_at"] and info["now"] > info["docker_started_at"] >= info["booted_at"] - 1
    assert module("launch_record", {**DEPLOYMENT, "state": "absent"})["changed"]
    assert not module("launch_record", {**DEPLOYMENT, "state": "absent"})["changed"]


def test_of_two_runs_at_once_one_gets_the_lock() -> None:
    runs = [begin("deployment_lock", {**DEPLOYMENT, "run": name, "owner": {"user": name, "host": "ctl1", "pid": 7}}) for name in ("r1", "r2")]
    found = [end(run) for run in runs]
    (won,) = [result for result in found if not result["failed"]]
    (lost,) = [result for result in found if result["failed"]]
    assert won["changed"] and lost["lock"] == won["lock"]
    sentence = (
        r"ledger-test is being worked on by r\d at ctl1 \(pid 7\) since \d\d:\d\d:\d\dZ: wait for it, or set tp_launch_break_lock to true if that run is gone\."
    )
    assert re.fullmatch(sentence, lost["msg"]), lost["msg"]
    mine = {**DEPLOYMENT, "run": won["lock"]["run"], "state": "free"}
    assert module("deployment_lock", mine, "--check")["changed"] and module("deployment_lock", mine)["changed"]
    assert not module("deployment_lock", mine)["changed"]


def test_a_run_that_lives_is_waited_for_and_one_that_was_killed_is_not(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "long.yml"
    path.write_text(LONG)
    command = [str(play.BIN / "ansible-playbook"), str(path), "-i", play.inventory()]
    environment = {**play.environment(), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, env=environment, cwd=play.ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True) as run:
        try:
            play.wait_for_line(run, "changed: [spark1]", 60)
            refused = module("deployment_lock", DEPLOYMENT)
            assert refused["failed"] and f"(pid {run.pid})" in refused["msg"], refused
        finally:
            os.killpg(run.pid, signal.SIGKILL)
    taken = module("deployment_lock", DEPLOYMENT)
    assert taken["changed"] and taken["took_over"]["pid"] == run.pid, taken
    assert re.search(rf"\(pid {run.pid}\) held since .* was taken over, because that run is gone\.$", taken["msg"])
