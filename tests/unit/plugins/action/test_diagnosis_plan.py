# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action: containers or logs as options give them, in the order that groups or logs tell; files checked before all else."""

from __future__ import annotations

import pathlib
import tempfile
import types
import typing as t

import pytest
from ansible.errors import AnsibleActionFail
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

from ansible_collections.sparkstack.inference.plugins.action import diagnosis_plan as subject

FOUND = {"name": "vllm", "id": "1", "image": "vllm:1", "command": "vllm serve", "by": "command"}
NAMES = {"name": "vllm", "id": "1", "image": "vllm:1", "command": "vllm serve", "by": "name", "running": True, "created": 0}
NODE = {"docker": {"reachable": True}, "containers": [], "found": [FOUND]}


class Action(subject.ActionModule):
    """The action with its surroundings scripted."""

    def __init__(self, arguments: dict[str, t.Any]) -> None:
        self._task = types.SimpleNamespace(args=arguments)
        self._loader = None

    def validate_argument_spec(self, argument_spec: dict[str, t.Any] | None = None, **_known: t.Any) -> tuple[t.Any, dict[str, t.Any]]:
        result = ArgumentSpecValidator(argument_spec).validate(self._task.args)
        assert not result.error_messages, result.error_messages
        return result, result.validated_parameters


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    monkeypatch.setattr(subject.ActionBase, "run", lambda self, tmp=None, task_vars=None: {})
    monkeypatch.chdir(tmp_path)


def plan(**arguments: t.Any) -> dict[str, t.Any]:
    result = Action(arguments).run(task_vars={})
    assert result["changed"] is False
    return t.cast("dict[str, t.Any]", result["plan"])


def order(found: dict[str, t.Any]) -> list[str]:
    return [rank["node"] for rank in found["ranks"]]


CHOICE = {"hosts": ["a", "b"], "nodes": {"a": NODE, "b": NODE}}


def test_the_groups_tell_the_order_when_there_is_one_head() -> None:
    found = plan(**CHOICE, head=["b"], workers=["a"])
    assert order(found) == ["b", "a"] and found["ordered"] and found["logs"] == [] and found["bundle"] == found["json"] == ""
    assert not plan(**CHOICE, head=["a", "b"])["ordered"]


def test_else_the_logs_do() -> None:
    assert order(plan(**CHOICE, claims={"a": {"rank": "1"}, "b": {"rank": "0"}})) == ["b", "a"]


def test_logs_and_files_start_from_where_ansible_was_started(tmp_path: pathlib.Path) -> None:
    (tmp_path / "v.json").touch()
    found = plan(logs=["head.log"], bundle="b.tar.gz", json="v.json")
    assert [entry["path"] for entry in found["logs"]] == [str(tmp_path / "head.log")]
    # A verdict is replaced by the next one, as a cron job wants it; a bundle is not.
    assert (found["bundle"], found["json"]) == (str(tmp_path / "b.tar.gz"), str(tmp_path / "v.json"))


def test_without_hosts_and_logs_only_the_files_are_checked() -> None:
    assert plan() == {"bundle": "", "json": ""}


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        ({"bundle": "no/b.tar.gz", **CHOICE}, "There is no folder"),
        ({"bundle": "old", "force": False}, "is there already"),
        ({"logs": 3}, "logs must be a list"),
        ({"hosts": ["a"], "nodes": {}}, "No node could be looked at: none can be reached."),
        ({"bundle": "x", "json": "./x"}, "/x would be the verdict as JSON and the bundle: give each a file of its own."),
        ({"logs": "old", "json": "old"}, "/old would be the verdict as JSON and the log of old: give each a file of its own."),
        ({"bundle": "/proc/b.tar.gz", **CHOICE}, "No file b.tar.gz can be made in /proc"),
    ],
)
def test_refusals(arguments: dict[str, t.Any], sentence: str, tmp_path: pathlib.Path) -> None:
    (tmp_path / "old").touch()
    with pytest.raises(AnsibleActionFail, match=sentence):
        plan(**arguments)


def test_a_misspelt_variable_of_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "load_extra_vars", lambda loader: {"log": "head.log"})
    with pytest.raises(AnsibleActionFail, match=r"^There is no variable log: do you mean logs\?$"):
        plan(variables=["logs", "json"])
    assert plan() == {"bundle": "", "json": ""}


def test_the_logs_tell_whether_a_node_without_the_container_takes_part() -> None:
    choice = {"hosts": ["a", "b"], "nodes": {"a": {**NODE, "found": [NAMES]}, "b": {**NODE, "found": []}}, "containers": {"a": "vllm", "b": "vllm"}}
    first = plan(**choice, head=["a"], workers=["b"])
    assert order(first) == ["a", "b"] and not first["ordered"]
    assert order(plan(**choice, head=["a"], workers=["b"], claims={"a": {"rank": "0", "ranks": "1"}})) == ["a"]
    assert order(plan(**choice, head=["a"], workers=["b"], claims={"a": {"rank": "0", "ranks": "2"}, "b": None})) == ["a", "b"]


def test_a_folder_that_is_closed_is_told_before_anything_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    # The tests may run as root, to whom no folder is closed.
    def closed(**_known: t.Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tempfile, "mkstemp", closed)
    with pytest.raises(AnsibleActionFail, match=r"No file b.tar.gz can be made in .* \(Permission denied\): name a file in another folder"):
        plan(bundle="b.tar.gz")
