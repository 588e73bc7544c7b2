# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The files of a unit: names that can be files', contents that are there as a whole or not at all."""

from __future__ import annotations

import errno
import os
import pathlib

import pytest

from ansible_collections.sparkstack.inference.plugins.module_utils import _autostart_files, _guard_files
from ansible_collections.sparkstack.inference.plugins.module_utils import _unit_files as subject


@pytest.mark.parametrize(
    ("kind", "name", "unit_file"),
    [
        (_guard_files.KIND, "sparkstack-guard@qwen-3.5.service", "run/systemd/system/sparkstack-guard@.service"),
        (_autostart_files.KIND, "sparkstack-autostart@qwen-3.5.service", "etc/systemd/system/sparkstack-autostart@.service"),
    ],
)
def test_each_kind_has_its_names(kind: subject.Kind, name: str, unit_file: str) -> None:
    assert (kind.unit("qwen-3.5"), kind.unit_file) == (name, unit_file)


@pytest.mark.parametrize("name", ["../x", "a/b", "", "Qwen", "..", "-x", "a" * 64, "a\n"])
def test_a_name_that_can_be_no_files_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="can't be a deployment's name: give one of small letters"):
        _autostart_files.KIND.unit(name)


@pytest.mark.parametrize(("content", "found"), [('{"a": 1}', {"a": 1}), ("[]", None), ("{", None), (None, None)])
def test_a_mapping_is_read_or_nothing(tmp_path: pathlib.Path, content: str | None, found: object) -> None:
    if content is not None:
        (tmp_path / "x.json").write_text(content)
    assert subject.read(str(tmp_path / "x.json")) == found


def test_a_file_is_known_again_by_its_digest(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "a" / "b.pyz"
    assert subject.digest_of(str(path)) is None
    subject.write(str(path), b"zip 1", 0o640)
    # Of sha256sum.
    assert subject.digest_of(str(path)) == subject.digest(b"zip 1") == "a8933e1f944a049ba20f0b7c69be797b17d295d4bd6f646d049eb59220feeab1"
    assert path.stat().st_mode & 0o777 == 0o640


def test_what_a_killed_writer_has_left_is_in_nobodys_way(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "x.json"
    (tmp_path / ("x.json" + subject.HALF)).write_text("half a token")
    subject.write(str(path), subject.text({"b": 1, "a": 2}), 0o600)
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.json"] and path.read_text() == '{\n "a": 2,\n "b": 1\n}\n'


def test_a_full_disk_leaves_no_half_file_with_the_token(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "qwen.json"
    subject.write(str(path), "{}", 0o600)

    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        subject.write(str(path), '{"token": "t0ken-of-all"}', 0o600)
    assert [entry.name for entry in tmp_path.iterdir()] == ["qwen.json"] and path.read_text() == "{}"
