# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Of the value of a variable that can't be meant a sentence says what to write; of every other one nothing."""

from __future__ import annotations

import pathlib
import re
import typing as t

import pytest
import yaml
from ansible.module_utils.parsing.convert_bool import boolean

from ansible_collections.sparkstack.inference.plugins.plugin_utils import _variables

ROOT = pathlib.Path(__file__).resolve().parents[4]
OPTIONS = _variables.options(str(ROOT / "roles"))
SWITCHES = sorted(name for name, option in OPTIONS.items() if option.get("type") == "bool")
NUMBERS = sorted(name for name, option in OPTIONS.items() if option.get("type") in ("int", "float"))
CHOICES = sorted(name for name, option in OPTIONS.items() if option.get("choices"))


def test_every_switch_that_a_playbook_or_role_reads_is_known() -> None:
    read = {
        name
        for folder in ("playbooks", "roles")
        for path in (ROOT / folder).rglob("*.yml")
        for name in re.findall(r"(?<![\w.])([a-z]\w*) \| default\((?:true|false)\) \| bool", path.read_text(encoding="utf-8"))
    }
    # What a playbook or role gives another one, and no user.
    assert read - {"whole_group", "image_sync_new"} <= set(SWITCHES) and len(SWITCHES) > 20


@pytest.mark.parametrize("name", SWITCHES)
def test_a_switch_is_true_or_false(name: str) -> None:
    told = f"{name} is 'maybe', and can only be true or false: write {name}=true or {name}=false."
    assert _variables.problem(name, "maybe", OPTIONS[name]) == told
    assert _variables.problem(name, "", OPTIONS[name]).startswith(f"{name} is empty, and can only be")
    for value in (True, False, "true", "False", "yes", "no", "on", "off", "1", "0", 1, 0, None):
        assert not _variables.problem(name, value, OPTIONS[name])
        if value is not None:
            boolean(value)  # Raises what Ansible's own check would refuse.


@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_is_one(name: str) -> None:
    whole = OPTIONS[name]["type"] == "int"
    told = _variables.problem(name, "eight", OPTIONS[name])
    assert re.fullmatch(rf"{name} is 'eight', and has to be {'a whole number' if whole else 'a number'}, such as [\d.]+\.", told)
    assert _variables.problem(name, True, OPTIONS[name]) and _variables.problem(name, [8], OPTIONS[name])
    assert bool(_variables.problem(name, "0.5", OPTIONS[name])) is whole
    for value in (8, "8", 0, None):
        assert not _variables.problem(name, value, OPTIONS[name])


@pytest.mark.parametrize("name", CHOICES)
def test_a_choice_is_one_of_those_that_there_are(name: str) -> None:
    choices = OPTIONS[name]["choices"]
    assert _variables.problem(name, "some", OPTIONS[name]) == f"{name} is 'some', and can only be one of these: {', '.join(filter(None, choices))}."
    assert not any(_variables.problem(name, value, OPTIONS[name]) for value in choices)


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("fabric_cidr", "10.0.0.0/33", "fabric_cidr '10.0.0.0/33' is no IPv4 network: write it like 192.168.200.0/24."),
        ("fabric_configure_cidr", "ring", "fabric_configure_cidr 'ring' is no IPv4 network: write it like 192.168.200.0/24."),
        ("fabric_cidr", "", "fabric_cidr is empty: write it like 192.168.200.0/24, or leave it out."),
        ("fabric_cidr", "192.168.200.0/24", ""),
        ("fabric_cidr", "192.168.200.11/24", ""),
        ("fabric_address", "192.168.200.300", "fabric_address '192.168.200.300' is no IPv4 address: write it like 192.168.200.11."),
        ("fabric_address", "", ""),
        ("preflight_ports", ["8000", "x"], "preflight_ports[1] is 'x', and has to be a whole number, such as 10."),
        ("preflight_ports", "8000, 8001", ""),
        ("preflight_ports", {"api": 8000}, "preflight_ports is a mapping, and has to be a list: write preflight_ports: [ONE, TWO]."),
        ("tp_launch_evict", "old-model", ""),
        (
            "tp_launch_arguments",
            "max-num-seqs",
            "tp_launch_arguments is 'max-num-seqs', and has to be a mapping: write tp_launch_arguments: {NAME: VALUE} in the inventory, "
            'or -e \'{"tp_launch_arguments": {"NAME": "VALUE"}}\'.',
        ),
        ("tp_launch_arguments", '{"max-num-seqs": 4}', ""),
        ("tp_launch_arguments", {"max-num-seqs": "many"}, ""),
        ("tp_launch_stall_timeouts", {"load_weights": "long"}, "tp_launch_stall_timeouts.load_weights is 'long', and has to be a number, such as 10."),
        ("tp_launch_stall_timeouts", {"load_weights": 900.5}, ""),
        ("tp_launch_recipe", {"name": "x"}, ""),
        ("tp_launch_report", 7, ""),
    ],
)
def test_other_values(name: str, value: t.Any, told: str) -> None:
    assert _variables.problem(name, value, OPTIONS[name]) == told


def test_a_part_that_is_unknown_is_told_with_those_that_there_are() -> None:
    told = _variables.problem("tp_launch_stall_timeouts", {"weights": 1}, OPTIONS["tp_launch_stall_timeouts"])
    assert told.startswith("There is no tp_launch_stall_timeouts.weights: tp_launch_stall_timeouts takes container, create_runner, ")


def test_no_value_is_shown_that_could_be_a_secret() -> None:
    for name in ("tp_launch_environment", "tp_launch_api_key", "model_staging_token", "model_staging_environment"):
        assert "hunter2" not in _variables.problem(name, {"HF_TOKEN": "hunter2"}, OPTIONS[name])
        assert "hunter2" not in _variables.problem(name, ["hunter2"], OPTIONS[name])


def test_what_the_playbooks_set_themselves_is_refused_on_the_command_line() -> None:
    text = "".join((ROOT / "playbooks" / f"{name}.yml").read_text(encoding="utf-8") for name in ("deploy", "prepare", "stage"))
    for name, instead in _variables.INSTEAD.items():
        assert f"{name}: " in text and name in OPTIONS and instead in OPTIONS
    assert _variables.overruling(["tp_launch_image", "fabric_cidr", "awx_job_id"]) == []
    told = "node_prep_cache_dir can't be given on the command line, as the playbooks set it by the recipe: give tp_launch_cache_dir."
    assert _variables.overruling(["tp_launch_image", "node_prep_cache_dir"]) == [told]


def test_what_a_role_takes_by_default_has_no_problem() -> None:
    for path in (ROOT / "roles").glob("*/defaults/main.yml"):
        for name, value in yaml.safe_load(path.read_text(encoding="utf-8")).items():
            if "{{" not in str(value) and OPTIONS[name]["type"] not in ("network", "address"):
                assert not _variables.problem(name, value, OPTIONS[name]), name
