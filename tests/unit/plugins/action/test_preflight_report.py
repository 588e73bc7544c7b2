# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action: its options are checked before a node is looked at, and what it shows is what was asked for."""

from __future__ import annotations

import pathlib
import types
import typing as t

import pytest
from ansible.errors import AnsibleActionFail
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

from ansible_collections.sparkstack.inference.plugins.action import preflight_report as subject

DEAD = {"fabric": {"rails": [], "address": None, "problems": [{"code": "no_address", "message": "It has none.", "remedy": "Give it one."}]}}
NODES = {"spark1": {**DEAD, "preflight": {"arch": "arm64", "docker": {"reachable": True}}}, "spark2": {}}


class Action(subject.ActionModule):
    """The action with its surroundings scripted."""

    def __init__(self, arguments: dict[str, t.Any]) -> None:
        self._task = types.SimpleNamespace(args=arguments)
        self._loader = None
        self.shown: list[str] = []
        self._display = types.SimpleNamespace(display=self.shown.append)

    def validate_argument_spec(self, argument_spec: dict[str, t.Any] | None = None, **_known: t.Any) -> tuple[t.Any, dict[str, t.Any]]:
        result = ArgumentSpecValidator(argument_spec).validate(self._task.args)
        assert not result.error_messages, result.error_messages
        return result, result.validated_parameters


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    monkeypatch.setattr(subject.ActionBase, "run", lambda self, tmp=None, task_vars=None: {})
    monkeypatch.setattr(subject, "load_extra_vars", lambda _loader: {})
    monkeypatch.chdir(tmp_path)


def test_without_nodes_only_the_options_are_checked(tmp_path: pathlib.Path) -> None:
    action = Action({"skip": ["clock"], "json": "report.json", "wanted": {"more_ports": [5000], "gpus": "none"}})
    assert action.run(task_vars={}) == {"changed": False, "json": str(tmp_path / "report.json")}
    assert action.shown == [] and not (tmp_path / "report.json").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"skip": ["clocks"]}, "There is no item clocks to skip: choose from address, link, subnet"),
        ({"wanted": {"min_share": 0.1}}, "min_share is 0.1 and block_share 0.25: give shares"),
        ({"json": "nowhere/report.json"}, "There is no folder "),
    ],
)
def test_a_mistake_is_told_before_a_node_is_looked_at(arguments: dict[str, t.Any], said: str) -> None:
    with pytest.raises(AnsibleActionFail) as error:
        Action(arguments).run(task_vars={})
    assert str(error.value).startswith(said)


def test_a_variable_that_no_role_reads_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "load_extra_vars", lambda _loader: {"preflight_skips": ["clock"]})
    with pytest.raises(AnsibleActionFail, match="There is no variable preflight_skips: do you mean preflight_skip?"):
        Action({}).run(task_vars={})


@pytest.mark.parametrize(("show", "lines"), [("all", 15), ("problems", 5), ("none", 0)])
def test_what_is_shown(show: str, lines: int) -> None:
    action = Action({"nodes": NODES, "show": show})
    result = action.run(task_vars={})
    shown = "".join(action.shown).strip().splitlines()
    assert len(shown) == lines
    assert result["report"]["result"] == "blocked" and result["changed"] is False and result["json"] == ""
    assert [check["item"] for check in result["report"]["checks"] if check["result"] == "blocked"] == ["address", "reach"]
    assert result["sentence"].startswith("spark1: It has none. Give it one. spark2: it could not be looked at")
    assert result["table"][0] == "Preflight of 2 nodes (spark1, spark2): blocked (2 blocked)"
