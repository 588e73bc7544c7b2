# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What is refused of a command line: a variable that nobody reads, a file that can't be written or would be written over."""

from __future__ import annotations

import os
import pathlib
import stat
import typing as t

import pytest
import yaml

from ansible_collections.sparkstack.inference.plugins.plugin_utils import _command_line as subject

ROOT = pathlib.Path(__file__).resolve().parents[4]
SPECS = yaml.safe_load((ROOT / "roles" / "tp_launch" / "meta" / "argument_specs.yml").read_text())["argument_specs"]
KNOWN = sorted({name for spec in SPECS.values() for name in spec["options"]} | {"target"})


@pytest.mark.parametrize(
    "name, meant",
    [
        *(("log", "logs"), ("loga", "logs"), ("Logs", "logs"), ("jsn", "json"), ("bundel", "bundle"), ("containers", "container")),
        *(("targets", "target"), ("report-width", "report_width"), ("deploymnet", "deployment"), ("tp_launch_recpie", "tp_launch_recipe")),
        *(("stict", "strict"), ("re_launch", "relaunch"), ("forse", "force")),
    ],
)
def test_a_slip(name: str, meant: str) -> None:
    assert subject.misspelt({"awx_job_id": 1, name: "x"}, KNOWN) == f"There is no variable {name}: do you mean {meant}?"


def test_what_is_for_others_or_right() -> None:
    others = "awx_job_id awx_user_name tower_job_template_name ansible_user fabric_address fabric_cidr nccl_env_extra port host name env debug jobs".split()
    assert subject.misspelt([*KNOWN, *others], KNOWN) == ""


@pytest.mark.parametrize(
    "name, sentence",
    [
        ("tp_launch_listen_adress", "There is no variable tp_launch_listen_adress: do you mean tp_launch_listen_address?"),
        ("node_prep_swapp", "There is no variable node_prep_swapp: do you mean node_prep_swap?"),
        ("nccl_env_zzzzzzzz", "There is no variable nccl_env_zzzzzzzz: see the README of the role whose name it begins with."),
    ],
)
def test_a_variable_that_no_role_has(name: str, sentence: str) -> None:
    assert subject.unread([name, "awx_job_id", "tp_launch_recipe"], str(ROOT / "roles")) == sentence


def test_variables_that_the_roles_have_and_those_of_others() -> None:
    others = ["awx_job_id", "deployment", "target", "fabric_cidr", "node_preparation", "my_tp_launch_x"]
    assert subject.unread([*KNOWN, "node_prep_sysctl", "nccl_env_extra", *others], str(ROOT / "roles")) == ""


def test_a_new_file(tmp_path: pathlib.Path) -> None:
    (tmp_path / "old").touch()
    (tmp_path / "link").symlink_to(tmp_path / "old")
    assert subject.new_file("new", str(tmp_path), False) == str(tmp_path / "new")
    assert subject.new_file("old", str(tmp_path), True) == str(tmp_path / "old")
    assert subject.new_file("link", str(tmp_path), True) == str(tmp_path / "link")
    assert sorted(os.listdir(tmp_path)) == ["link", "old"]


@pytest.mark.parametrize(
    "name, sentence",
    [
        ("old", "is there already: name another file, or replace it with -e force=true."),
        ("no/new", "There is no folder .*/no for new on this machine"),
        (".", "is a folder: name a file in it."),
        ("pipe", "pipe is no plain file: name one."),
        ("/dev/null", "/dev/null is no plain file: name one."),
        ("/proc/b.tar.gz", r"No file b.tar.gz can be made in /proc \(.*\): name a file in another folder."),
        ("x" * 250, r"can be made in .* \(File name too long\): name a file in another folder."),
    ],
)
def test_a_file_that_cannot_be(name: str, sentence: str, tmp_path: pathlib.Path) -> None:
    (tmp_path / "old").touch()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(subject.ChoiceError, match=sentence):
        subject.new_file(name, str(tmp_path), False)
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode) and sorted(os.listdir(tmp_path)) == ["old", "pipe"]


@pytest.mark.parametrize(
    "files, sentence",
    [
        ({"bundle": "same", "json": "same"}, "same would be json and bundle: give each a file of its own."),
        ({"bundle": "", "json": "link"}, "link would be json and the log of a: give each a file of its own."),
        ({"bundle": "log", "json": ""}, "log would be bundle and the log of a: give each a file of its own."),
    ],
)
def test_files_that_are_one(files: dict[str, str], sentence: str, tmp_path: pathlib.Path) -> None:
    (tmp_path / "log").touch()
    (tmp_path / "link").symlink_to(tmp_path / "log")
    logs: list[dict[str, t.Any]] = [{"node": "a", "path": str(tmp_path / "log")}, {"node": "b", "started": False}]
    given = {use: str(tmp_path / name) if name else "" for use, name in files.items()}
    subject.apart({"bundle": str(tmp_path / "x"), "json": str(tmp_path / "y")}, logs)
    subject.apart({"bundle": "", "json": ""}, logs)
    with pytest.raises(subject.ChoiceError) as caught:
        subject.apart(given, logs)
    assert str(caught.value) == f"{tmp_path}/{sentence}"
