# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the playbooks say where there is nothing to work on: one sentence and an end that is no success."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys
import typing as t

import pytest
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[3]
WHOLE = "[head]\nspark1\n[workers]\nspark2\n[sparks:children]\nhead\nworkers\n[others]\nnas\n"
"""No run below may reach one of these: each ends before its first word to a node."""


def play(folder: pathlib.Path, inventory: str, *words: str) -> tuple[int, str]:
    """How a run of a playbook ended, and the sentence that it failed with."""
    here = folder / "ansible_collections" / "sparkstack"
    here.mkdir(parents=True, exist_ok=True)
    if not (here / "inference").exists():
        (here / "inference").symlink_to(ROOT)
    (folder / "hosts.ini").write_text(inventory)
    environment = {**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(folder), "ANSIBLE_LOCALHOST_WARNING": "false", "ANSIBLE_HOME": str(folder)}
    line = [sys.executable, "-m", "ansible", "playbook", *(["-i", "hosts.ini"] if inventory else []), *words]
    done = subprocess.run(line, cwd=folder, env=environment, text=True, capture_output=True, check=False)
    said = re.search(r'^fatal: \[\w+\]: FAILED! => \{.*"msg": "(.*?)"\}$', done.stdout, re.MULTILINE)
    return done.returncode, said.group(1) if said else done.stdout + done.stderr


PLAYBOOKS = sorted(path.stem for path in (ROOT / "playbooks").glob("[a-z]*.yml"))


@pytest.mark.parametrize("playbook", PLAYBOOKS)
def test_a_pattern_that_names_no_host_is_no_success(tmp_path: pathlib.Path, playbook: str) -> None:
    told = "No host of the inventory is one of target=TYPO: name hosts or groups of it, such as head, others, sparks, workers."
    assert play(tmp_path, WHOLE, f"sparkstack.inference.{playbook}", "-e", "target=TYPO") == (2, told)


@pytest.mark.parametrize(
    "inventory, words, told",
    [
        ("spark1\nspark2\n", (), "The inventory has no host in its group 'sparks': put the nodes there, or name others with -e target=PATTERN."),
        ("[sparks]\n[head]\nspark1\n", (), "The inventory has no host in its group 'sparks': put the nodes there, or name others with -e target=PATTERN."),
        (WHOLE, ("--limit", "nas"), "--limit leaves out every host of sparks: run this without it, or with some of them in it."),
        (WHOLE, ("--limit", "spark1", "-e", "target=workers"), "--limit leaves out every host of workers: run this without it, or with some of them in it."),
        ("", (), "There is no node to work on: name an inventory with -i, and the nodes in it."),
    ],
)
def test_an_inventory_without_a_node_is_no_success(tmp_path: pathlib.Path, inventory: str, words: tuple[str, ...], told: str) -> None:
    assert play(tmp_path, inventory, "sparkstack.inference.stop", "-e", "deployment=qwen", *words) == (2, told)


@pytest.mark.parametrize("playbook", ["rollback", "stop"])
def test_what_works_on_a_deployment_asks_which_one(tmp_path: pathlib.Path, playbook: str) -> None:
    told = (
        "Say which deployment with -e deployment=NAME, or by its recipe with -e tp_launch_recipe=FILE: "
        "the playbook sparkstack.inference.status shows which there are."
    )
    assert play(tmp_path, WHOLE, f"sparkstack.inference.{playbook}") == (2, told)


@pytest.mark.parametrize(
    "inventory, told",
    [
        ("[sparks]\nspark1\n[head]\nspark1\n", "The inventory's group 'workers' has no host: put every node but the head there."),
        ("[sparks]\nspark1\nspark2\n", "The inventory's group 'head' has 0 hosts: put exactly one there, it becomes rank 0."),
    ],
)
def test_a_deployment_of_fewer_than_two_nodes_is_refused_before_any_is_reached(tmp_path: pathlib.Path, inventory: str, told: str) -> None:
    assert play(tmp_path, inventory, "sparkstack.inference.deploy_qwen") == (2, told)


def test_where_nothing_is_to_be_judged_log_files_are_offered(tmp_path: pathlib.Path) -> None:
    told = "There is no node to work on: name an inventory with -i, and the nodes in it, or give log files with -e logs=head.log,worker.log."
    assert play(tmp_path, "", "sparkstack.inference.diagnose") == (2, told)


def test_logs_that_a_limit_would_leave_unjudged_are_no_success(tmp_path: pathlib.Path) -> None:
    (tmp_path / "head.log").write_text("no engine\n")
    line = ("sparkstack.inference.diagnose", "-e", "logs=head.log", "--limit")
    assert play(tmp_path, WHOLE, *line, "spark1") == (2, "--limit leaves out this machine, on which log files are judged: run this without it.")
    code, told = play(tmp_path, WHOLE, *line, "spark1,localhost")
    assert code == 0 and "STARTING" in told


def test_logs_need_no_node(tmp_path: pathlib.Path) -> None:
    (tmp_path / "head.log").write_text("no engine\n")
    code, told = play(tmp_path, WHOLE, "sparkstack.inference.diagnose", "-e", "target=TYPO", "-e", "logs=head.log")
    assert code == 0 and "head" in told and "FAILED!" not in told


@pytest.mark.parametrize(
    ("playbook", "given", "told"),
    [
        ("health", "must_serve=maybe", "must_serve is 'maybe', and can only be true or false: write must_serve=true or must_serve=false."),
        ("deploy", "fabric_cidr=10.0.0.0/33", "fabric_cidr '10.0.0.0/33' is no IPv4 network: write it like 192.168.200.0/24."),
        ("prepare", "deploy_preflight=ja", "deploy_preflight is 'ja', and can only be true or false: write deploy_preflight=true or deploy_preflight=false."),
        ("status", "tp_launch_answer_timeout=soon", "tp_launch_answer_timeout is 'soon', and has to be a whole number, such as 60."),
        ("stage", "image_sync_image=x:1", "image_sync_image can't be given on the command line, as the playbooks set it by the recipe: give tp_launch_image."),
        ("diagnose", "report_detail=all", "report_detail is 'all', and can only be one of these: short, normal, full."),
    ],
)
def test_a_value_that_cannot_be_meant_is_refused_before_a_node_is_reached(tmp_path: pathlib.Path, playbook: str, given: str, told: str) -> None:
    assert play(tmp_path, WHOLE, f"sparkstack.inference.{playbook}", "-e", given) == (2, told)


def test_a_value_that_only_one_node_has_is_told_with_the_nodes_name(tmp_path: pathlib.Path) -> None:
    inventory = WHOLE.replace("spark2\n", "spark2 fabric_address=192.168.200.300\n", 1) + "[nowhere]\ngone fabric_address=x\n"
    told = "On spark2: fabric_address '192.168.200.300' is no IPv4 address: write it like 192.168.200.11."
    assert play(tmp_path, inventory, "sparkstack.inference.preflight") == (2, told)


def test_of_what_needs_no_node_the_values_are_looked_at_too(tmp_path: pathlib.Path) -> None:
    (tmp_path / "head.log").write_text("no engine\n")
    told = "strict is 'perhaps', and can only be true or false: write strict=true or strict=false."
    assert play(tmp_path, "", "sparkstack.inference.diagnose", "-e", "logs=head.log", "-e", "strict=perhaps") == (2, told)


def tasks_of(node: t.Any) -> t.Iterator[dict[str, t.Any]]:
    """All tasks of a file, those in blocks too."""
    for entry in node if isinstance(node, list) else []:
        yield entry
        for inside in ("block", "rescue", "always", "tasks", "pre_tasks", "post_tasks"):
            yield from tasks_of(entry.get(inside))


def test_what_is_registered_is_not_lost_to_a_host_that_skips() -> None:
    """Of a skipped task Ansible registers "skipped" for all hosts where run_once is a template: it looks at the text, which is true whatever it holds."""
    lost = [
        f"{path.relative_to(ROOT)}: {task.get('name')}"
        for folder in ("roles", "playbooks")
        for path in (ROOT / folder).rglob("*.yml")
        for task in tasks_of(yaml.safe_load(path.read_text()))
        if {"register", "when"} <= set(task) and isinstance(task.get("run_once"), str)
    ]
    assert lost == []
