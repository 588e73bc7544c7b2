# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The program for the nodes: the same bytes each time, nothing of Ansible in it, and it runs with nothing but a Python."""

from __future__ import annotations

import ast
import io
import pathlib
import subprocess
import sys
import zipfile

import pytest

from ansible_collections.sparkstack.inference.plugins.plugin_utils import _zipapp

UTIL = "_autostart_agent"


def test_the_same_sources_give_the_same_bytes() -> None:
    _zipapp.build.cache_clear()
    first = _zipapp.build(UTIL)
    _zipapp.build.cache_clear()
    assert _zipapp.build(UTIL) == first


def test_it_holds_what_the_agent_needs_and_no_more() -> None:
    names = {pathlib.PurePosixPath(name).name for name in zipfile.ZipFile(io.BytesIO(_zipapp.build(UTIL))).namelist()}
    assert {"__main__.py", "_autostart.py", "_diagnosis.py", "_probe.py", "vllm.py", "sglang.py"} <= names
    assert not {"_transfer.py", "_image_stream.py", "_support_part.py"} & names


def test_all_of_it_is_python_3_8_without_ansible() -> None:
    archive = zipfile.ZipFile(io.BytesIO(_zipapp.build(UTIL)))
    for name in archive.namelist():
        tree = ast.parse(archive.read(name), name, feature_version=(3, 8))
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                assert not (node.module or "").startswith("ansible."), name


def test_it_runs_by_itself(tmp_path: pathlib.Path) -> None:
    program = tmp_path / "autostart.pyz"
    program.write_bytes(_zipapp.build(UTIL))
    done = subprocess.run([sys.executable, "-I", "-B", str(program), str(tmp_path / "no.json")], capture_output=True, text=True, cwd="/", check=False)
    assert done.returncode == 2
    assert done.stderr == "<3>There are no settings to be read: give the path of /etc/sparkstack/autostart/DEPLOYMENT.json.\n"


def test_a_util_that_needs_ansible_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    (tmp_path / "_x.py").write_text("from ansible.module_utils.basic import AnsibleModule\n")
    monkeypatch.setattr(_zipapp, "_UTILS", tmp_path)
    with pytest.raises(ValueError, match=r"_x\.py imports ansible\.module_utils\.basic, which a node does not have"):
        _zipapp.build("_x")
