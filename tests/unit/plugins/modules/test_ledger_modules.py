# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""launch_record, deployment_lock and inference_info around one ledger: check, run, run again, and what comes back."""

from __future__ import annotations

import importlib
import json
import pathlib
import time
import typing as t

import pytest
import yaml
from ansible.module_utils import basic

from ansible_collections.sparkstack.inference.plugins.module_utils import _ledger

Run = t.Callable[..., "dict[str, t.Any]"]
RECORD = {"launch_id": "L1", "began": 1796025612.5, "recipe": {"name": "qwen"}}
LOCK = {"deployment": "qwen", "run": "r1", "owner": {"user": "alice", "host": "ctl1", "pid": 5}}


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path) -> Run:
    monkeypatch.setattr(_ledger, "FOLDER", str(tmp_path / "deployments"))

    def run_module(name: str, check: bool = False, **arguments: t.Any) -> dict[str, t.Any]:
        module = importlib.import_module(f"ansible_collections.sparkstack.inference.plugins.modules.{name}")
        whole = {**arguments, "_ansible_check_mode": check, "_ansible_diff": True}
        monkeypatch.setattr(basic, "_ANSIBLE_ARGS", json.dumps({"ANSIBLE_MODULE_ARGS": whole}).encode())
        monkeypatch.setattr(basic, "_ANSIBLE_PROFILE", "legacy", raising=False)
        with pytest.raises(SystemExit):
            module.main()
        return t.cast("dict[str, t.Any]", json.loads(capsys.readouterr().out))

    return run_module


def info(run: Run, docker: t.Any, **arguments: t.Any) -> dict[str, t.Any]:
    return run("inference_info", docker_socket=docker.socket + ".gone", **arguments)


def test_a_record_is_predicted_written_and_left_alone(run: Run, docker: t.Any, tmp_path: pathlib.Path) -> None:
    arguments = {"deployment": "qwen", "record": RECORD, "good": True}
    predicted = run("launch_record", check=True, **arguments)
    assert predicted["changed"] and not (tmp_path / "deployments").exists()
    done = run("launch_record", **arguments)
    assert done["changed"] and done["diff"] == predicted["diff"] and done["diff"]["before"] == ""
    assert json.loads(pathlib.Path(done["path"]).read_text()) == RECORD
    again = run("launch_record", **arguments)
    assert not again["changed"] and again["diff"]["before"] == again["diff"]["after"]
    assert run("launch_record", deployment="qwen", record={"launch_id": "L1", "answered": True}, check=True)["changed"]
    found = info(run, docker)["ledger"]
    assert found["qwen"]["launches"] == ["L1"] and found["qwen"]["good"]["recipe"] == {"name": "qwen"}
    assert info(run, docker, deployment="other")["ledger"] == {}
    gone = {"deployment": "qwen", "state": "absent"}
    assert run("launch_record", check=True, **gone)["changed"] and info(run, docker)["ledger"]
    assert run("launch_record", **gone)["changed"] and not run("launch_record", **gone)["changed"]
    assert info(run, docker)["ledger"] == {}


@pytest.mark.parametrize(
    "change, sentence",
    [
        ({"deployment": "../x"}, "'../x' can't be a deployment's name: give one of letters, digits, '.', '_' and '-', as the recipe has it."),
        ({"record": {}}, "'' can't be a launch's id: give the record the launch_id that its ranks have."),
        ({"keep": 0}, "keep is 0: keep one launch or more."),
        ({"record": None}, "'' can't be a launch's id: give the record the launch_id that its ranks have."),
    ],
)
def test_a_record_that_will_not_do(run: Run, change: dict[str, t.Any], sentence: str) -> None:
    result = run("launch_record", **{"deployment": "qwen", "record": RECORD, **change})
    assert result["failed"] and result["msg"] == sentence


def test_the_lock_is_predicted_taken_refused_and_given_back(run: Run, docker: t.Any) -> None:
    predicted = run("deployment_lock", check=True, **LOCK)
    assert predicted["changed"] and info(run, docker)["ledger"] == {}
    taken = run("deployment_lock", timeout=60, **LOCK)
    assert taken["changed"] and taken["took_over"] is None and "msg" not in taken
    assert taken["lock"] == {
        "run": "r1",
        "user": "alice",
        "host": "ctl1",
        "pid": 5,
        "job": None,
        "since": taken["lock"]["since"],
        "until": taken["lock"]["since"] + 60,
    }
    assert taken["lock"].keys() == yaml.safe_load(importlib.import_module(_name("deployment_lock")).RETURN)["lock"]["contains"].keys()
    again = run("deployment_lock", **LOCK)
    assert not again["changed"] and again["diff"]["before"] == again["diff"]["after"]
    assert again["lock"]["until"] > taken["lock"]["until"] and again["lock"]["since"] == taken["lock"]["since"]
    for check in (True, False):
        refused = run("deployment_lock", check=check, deployment="qwen", run="r2")
        assert refused["failed"] and refused["lock"] == again["lock"]
        assert refused["msg"].startswith("qwen is being worked on by alice at ctl1 (pid 5) since ")
    other = run("deployment_lock", deployment="qwen", run="r2", state="free")
    assert not other["changed"] and other["lock"] == again["lock"]
    assert run("deployment_lock", check=True, state="free", **LOCK)["changed"]
    assert info(run, docker)["ledger"]["qwen"]["lock"] == again["lock"]
    freed = run("deployment_lock", state="free", **LOCK)
    assert freed["changed"] and freed["lock"] is None and freed["diff"]["after"] == ""
    assert not run("deployment_lock", state="free", **LOCK)["changed"]
    found = info(run, docker)
    assert found["ledger"]["qwen"]["lock"] is None
    # Who looked before it was given back looks again; who looked after gets it.
    late = run("deployment_lock", deployment="qwen", run="r2", seen=found["ledger"]["qwen"]["changed_at"] - 1)
    assert late["failed"] and late["lock"] is None and "run this again" in late["msg"]
    assert run("deployment_lock", deployment="qwen", run="r2", seen=found["now"])["changed"]


@pytest.mark.parametrize("how, why", [({"replace": "r1"}, "that run is gone"), ({"force": True}, "it was broken")])
def test_a_lock_that_was_left_is_taken_over(run: Run, how: dict[str, t.Any], why: str) -> None:
    run("deployment_lock", **LOCK)
    taken = run("deployment_lock", deployment="qwen", run="r2", owner={"user": "bob"}, **how)
    assert taken["changed"] and taken["took_over"]["user"] == "alice" and taken["lock"]["user"] == "bob"
    told = time.strftime("%H:%M", time.gmtime(taken["took_over"]["since"]))
    assert taken["msg"].startswith(f"The lock that alice at ctl1 (pid 5) held since {told}")
    assert taken["msg"].endswith(f"Z was taken over, because {why}.")


def test_a_lock_is_broken_without_being_taken(run: Run) -> None:
    run("deployment_lock", **LOCK)
    assert run("deployment_lock", deployment="qwen", run="r2", state="free", force=True)["changed"]
    assert run("deployment_lock", deployment="qwen", run="r3")["changed"]


@pytest.mark.parametrize(
    "change, sentence",
    [
        ({"run": None}, "run is missing: name this run, or let the plugin of this module on the controller do it."),
        ({"timeout": 0}, "timeout is 0: give the seconds that the lock may be held."),
    ],
)
def test_a_lock_that_will_not_do(run: Run, change: dict[str, t.Any], sentence: str) -> None:
    result = run("deployment_lock", **{**LOCK, **change})
    assert result["failed"] and result["msg"] == sentence


def test_what_the_node_tells_of_its_clocks_is_true_and_documented(run: Run, docker: t.Any) -> None:
    before = time.time()
    found = info(run, docker)
    assert before <= found["now"] <= time.time() and 0 < found["booted_at"] <= found["now"] + 1
    assert found.keys() - {"changed", "invocation"} == yaml.safe_load(importlib.import_module(_name("inference_info")).RETURN).keys()
    run("deployment_lock", **LOCK)
    kept = info(run, docker)["ledger"]["qwen"]
    assert kept.keys() == yaml.safe_load(importlib.import_module(_name("inference_info")).RETURN)["ledger"]["contains"].keys()


def _name(module: str) -> str:
    return f"ansible_collections.sparkstack.inference.plugins.modules.{module}"
