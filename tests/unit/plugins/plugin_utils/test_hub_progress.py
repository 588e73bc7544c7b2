# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How far a download is, as the node's program writes it and as the user reads it."""

from __future__ import annotations

import json
import pathlib
import subprocess
import typing as t

import pytest

from ansible_collections.sparkstack.inference.plugins.plugin_utils import _hub_progress as subject

TOLD = {"bytes": 42_100_000_000, "bytes_total": 127_300_000_000, "files_left": 26, "files_total": 39, "rate": 4.1e8, "at": 5.0}


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({}, "[spark1] a/b: 42.1 of 127.3 GB (33 %), 26 of 39 files left, 0.41 GB/s, about 208 s left"),
        ({"rate": 0.0}, "[spark1] a/b: 42.1 of 127.3 GB (33 %), 26 of 39 files left"),
        ({"bytes": 0, "bytes_total": 0, "files_left": 0}, "[spark1] a/b: 0.0 of 0.0 GB (100 %), 0 of 39 files left, 0.41 GB/s, about 0.0 s left"),
    ],
)
def test_a_line(change: dict[str, t.Any], line: str) -> None:
    assert subject.line("spark1", "a/b", {**TOLD, **change}) == line


@pytest.mark.parametrize("text", ["", "cat: no such file", "[]", '{"bytes": 1}'])
def test_what_is_no_word_is_none(text: str) -> None:
    assert subject.read(text) is None


def test_a_nodes_shell_finds_it_through_a_link_and_odd_names(tmp_path: pathlib.Path) -> None:
    (tmp_path / ".a model's.download").mkdir()
    (tmp_path / ".a model's.download" / "progress.json").write_text(json.dumps(TOLD))
    (tmp_path / "link").symlink_to(tmp_path / "a model's")
    for name in ("a model's", "link"):
        done = subprocess.run(["/bin/sh", "-c", subject.command(str(tmp_path / name))], text=True, capture_output=True, check=True)
        assert subject.read(done.stdout) == TOLD
