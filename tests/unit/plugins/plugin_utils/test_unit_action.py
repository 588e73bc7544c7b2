# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The actions that send a program: it goes along only where it is wanted, and nobody is shown it."""

from __future__ import annotations

import base64
import importlib
import types
import typing as t
import zlib

import pytest

from ansible_collections.sparkstack.inference.plugins.plugin_utils import _unit_action as subject

GIVEN: dict[str, dict[str, t.Any]] = {
    "memory_guard": {"deployment": "qwen", "container": "qwen-rank1", "docker_host": "unix:///run/other.sock"},
    "inference_autostart": {"deployment": "qwen", "rank": 1, "token": "t0ken", "docker_host": "unix:///run/other.sock"},
}
STATES = {"memory_guard": ("started", "stopped"), "inference_autostart": ("present", "absent")}


@pytest.fixture(autouse=True)
def base(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject.ActionBase, "run", lambda self, tmp=None, task_vars=None: {})
    monkeypatch.setattr(subject, "build", lambda util: f"zip of {util}".encode())


def play(name: str, **options: t.Any) -> tuple[dict[str, t.Any], dict[str, t.Any]]:
    """What the node is asked, and the action's result."""
    action = importlib.import_module(f"ansible_collections.sparkstack.inference.plugins.action.{name}").ActionModule
    asked: dict[str, t.Any] = {}

    def execute(module_name: str, module_args: dict[str, t.Any], task_vars: t.Any) -> dict[str, t.Any]:
        asked.update(module_args, module=module_name)
        return {"changed": True, "invocation": {"module_args": dict(module_args)}}

    made = action.__new__(action)
    made._task = types.SimpleNamespace(args={**GIVEN[name], **options})
    made._execute_module = execute
    return asked, made.run(None, {})


@pytest.mark.parametrize(("name", "util"), [("memory_guard", "_guard_agent"), ("inference_autostart", "_autostart_agent")])
def test_the_program_goes_along_where_it_is_wanted(name: str, util: str) -> None:
    asked, result = play(name, state=STATES[name][0])
    assert asked["module"] == f"sparkstack.inference.{name}"
    assert zlib.decompress(base64.b64decode(asked["program"])).decode() == f"zip of {util}"
    assert result["changed"] and "program" not in result["invocation"]["module_args"]


@pytest.mark.parametrize("name", list(STATES))
def test_it_stays_where_it_is_not(name: str) -> None:
    asked, _result = play(name, state=STATES[name][1])
    assert "program" not in asked


@pytest.mark.parametrize("name", list(STATES))
def test_the_module_gets_each_option_by_one_name_and_none_that_is_not_given(name: str) -> None:
    asked, _result = play(name)
    assert asked["docker_socket"] == "unix:///run/other.sock" and not {"docker_host", "seen"} & set(asked)
    assert None not in asked.values()


@pytest.mark.parametrize(("hashes", "sent"), [(["a", "a"], False), (["a", "b"], True), (["a", None], True)])
def test_the_token_that_all_nodes_have_stays(hashes: list[str | None], sent: bool) -> None:
    seen = [{"qwen": {"settings": {"token_hash": value}, "enabled": False}} if value else {} for value in hashes]
    asked, _result = play("inference_autostart", seen=seen)
    assert ("token" in asked) is sent
