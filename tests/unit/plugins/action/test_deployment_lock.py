# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The controller's half of deployment_lock: it says who it is, and takes over from a run that it knows to be gone."""

from __future__ import annotations

import os
import types
import typing as t

import pytest

from ansible_collections.sparkstack.inference.plugins.action import deployment_lock as subject
from ansible_collections.sparkstack.inference.plugins.plugin_utils import _run

OTHER = {"run": "ctl1/x/1/1", "user": "bob"}


@pytest.fixture(autouse=True)
def base(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject.ActionBase, "run", lambda self, tmp=None, task_vars=None: {})


def play(answers: list[dict[str, t.Any]], **arguments: t.Any) -> tuple[dict[str, t.Any], list[dict[str, t.Any]]]:
    """Run the action with a node that answers so; its result, and what the node was asked."""
    asked: list[dict[str, t.Any]] = []
    action = subject.ActionModule.__new__(subject.ActionModule)
    action._task = types.SimpleNamespace(args={}, check_mode=False, async_val=0)

    def execute(module_name: str, module_args: dict[str, t.Any], task_vars: object) -> dict[str, t.Any]:
        assert module_name == "sparkstack.inference.deployment_lock"
        asked.append(module_args)
        return answers[len(asked) - 1]

    action._execute_module = execute
    defaults = {name: option.get("default") for name, option in subject.ARGUMENTS.items()}
    action.validate_argument_spec = lambda argument_spec: (None, {**defaults, "deployment": "qwen", **arguments})
    return action.run(None, {"awx_job_id": 17}), asked


def test_the_node_is_told_who_this_run_is() -> None:
    result, asked = play([{"changed": True, "lock": {"run": "me"}}])
    me = _run.owner({"awx_job_id": 17}, os.getppid())
    assert result == {"changed": True, "lock": {"run": "me"}}
    name = me.pop("run")
    assert asked == [{"deployment": "qwen", "state": "held", "timeout": 3600, "force": False, "run": name, "owner": me}]


@pytest.mark.parametrize("gone, calls", [(True, 2), (False, 1)])
def test_a_lock_is_taken_over_only_from_a_run_that_is_gone(monkeypatch: pytest.MonkeyPatch, gone: bool, calls: int) -> None:
    monkeypatch.setattr(_run, "gone", lambda run: gone)
    refused = {"failed": True, "msg": "qwen is being worked on", "lock": OTHER}
    taken = {"changed": True, "lock": {"run": "me"}, "took_over": OTHER}
    result, asked = play([refused, taken])
    assert len(asked) == calls and "replace" not in asked[0]
    assert result == (taken if gone else refused)
    assert asked[-1].get("replace") == ("ctl1/x/1/1" if gone else None)


def test_a_name_of_ones_own_is_passed_on() -> None:
    _result, asked = play([{"changed": False, "lock": None}], run="nightly", owner={"user": "cron"}, state="free")
    assert (asked[0]["run"], asked[0]["owner"], asked[0]["state"]) == ("nightly", {"user": "cron"}, "free")
