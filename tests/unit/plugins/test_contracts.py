# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is said in two places is the same in both: documentation and specifications, defaults and roles' specifications."""

from __future__ import annotations

import importlib
import pathlib
import re
import typing as t

import pytest
import yaml

from ansible_collections.sparkstack.inference.plugins.module_utils import _engines

ROOT = pathlib.Path(__file__).resolve().parents[3]
MODULES = sorted(path.stem for path in (ROOT / "plugins" / "modules").glob("*.py"))
ACTIONS = sorted(path.stem for path in (ROOT / "plugins" / "action").glob("*.py"))
ROLES = sorted(path.name for path in (ROOT / "roles").iterdir())


def load(*way: str) -> t.Any:
    return yaml.safe_load(ROOT.joinpath(*way).read_text(encoding="utf-8"))


def documented(module: str) -> dict[str, t.Any]:
    found = importlib.import_module(f"ansible_collections.sparkstack.inference.plugins.modules.{module}")
    return t.cast("dict[str, t.Any]", yaml.safe_load(found.DOCUMENTATION)["options"])


def flat(options: t.Mapping[str, t.Any], inner: str, where: str = "") -> dict[str, dict[str, t.Any]]:
    """Each option by its dotted name, with what both forms can say of it."""
    found: dict[str, dict[str, t.Any]] = {}
    for name, option in options.items():
        found[where + name] = {
            "type": option.get("type", "str"),
            "required": bool(option.get("required")),
            **{key: option.get(key) for key in ("default", "choices", "elements", "aliases")},
        }
        found.update(flat(option.get(inner) or {}, inner, f"{where}{name}."))
    return found


@pytest.mark.parametrize("action", ACTIONS)
def test_an_action_takes_what_its_module_documents(action: str) -> None:
    arguments = importlib.import_module(f"ansible_collections.sparkstack.inference.plugins.action.{action}").ARGUMENTS
    assert flat(arguments, "options") == flat(documented(action), "suboptions")


@pytest.mark.parametrize("module", [name for name in MODULES if "engine" in documented(name)])
def test_a_module_that_takes_an_engine_takes_all(module: str) -> None:
    assert [choice for choice in documented(module)["engine"]["choices"] if choice != "auto"] == sorted(_engines.ENGINES)


def test_every_entry_that_a_playbook_names_is_specified() -> None:
    """Ansible looks the name up as it stands in tasks_from, and checks nothing when it stands there with its ending."""
    entries = load("roles", "tp_launch", "meta", "argument_specs.yml")["argument_specs"]
    named = {
        name
        for path in (ROOT / "playbooks").glob("*.yml")
        for line in re.findall(r"tasks_from: (.+)", path.read_text(encoding="utf-8"))
        for name in re.findall(r"'([\w.]+)'", line) or [line]
    }
    # A user's own play names the role alone.
    assert named | {"main"} == set(entries)


def test_all_modules_are_in_the_action_group() -> None:
    assert load("meta", "runtime.yml")["action_groups"]["spark"] == MODULES


@pytest.mark.parametrize("role", ROLES)
def test_a_roles_defaults_are_those_that_it_documents(role: str) -> None:
    options = load("roles", role, "meta", "argument_specs.yml")["argument_specs"]["main"]["options"]
    defaults = load("roles", role, "defaults", "main.yml")
    assert set(options) == set(defaults)
    assert {name: option["default"] for name, option in options.items() if "default" in option} == {
        name: defaults[name] for name, option in options.items() if "default" in option
    }


@pytest.mark.parametrize("module", [name for name in MODULES if {"docker_socket", "docker_host"} & documented(name).keys()])
def test_dockers_socket_goes_by_both_names_everywhere(module: str) -> None:
    (own,) = {"docker_socket", "docker_host"} & documented(module).keys()
    assert {own, *documented(module)[own]["aliases"]} == {"docker_socket", "docker_host"}
