# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What both units share: what is new is found and written, what is not wanted goes, and what is in the way is one sentence."""

from __future__ import annotations

import base64
import pathlib
import types
import typing as t
import zlib

import pytest

from ansible_collections.sparkstack.inference.plugins.module_utils import _unit as subject
from ansible_collections.sparkstack.inference.plugins.module_utils._docker_api import DockerError
from ansible_collections.sparkstack.inference.plugins.module_utils._unit_files import Kind, digest

KIND = Kind("the watcher", "x_watch", "run/x/x.pyz", "run/units", "x@.service")
PROGRAM = base64.b64encode(zlib.compress(b"zip 1")).decode()


class Failed(Exception):
    """fail_json was called; the text is its message."""


class Module(types.SimpleNamespace):
    """A module on a node with systemctl, which says this."""

    def __init__(self, said: tuple[int, str, str] = (0, "", ""), systemd: bool = True, check: bool = False, program: str | None = PROGRAM) -> None:
        super().__init__(params={"deployment": "qwen", "program": program}, check_mode=check, calls=[])
        self.said, self.systemd = said, systemd

    def get_bin_path(self, name: str) -> str | None:
        return f"/bin/{name}" if self.systemd else None

    def run_command(self, command: list[str]) -> tuple[int, str, str]:
        self.calls.append(" ".join(command))
        return self.said

    def fail_json(self, msg: str) -> None:
        raise Failed(msg)


def unit(root: pathlib.Path, **module: t.Any) -> subject.Unit:
    return subject.Unit(t.cast(t.Any, Module(**module)), KIND, KIND.unit("qwen"), str(root))


def want(of: subject.Unit, settings: str = "{}\n") -> None:
    of.want(of.program(), "[Unit]\n", subject.Entry("settings", "run/x/qwen.json", settings, settings, 0o600), runs=True)


def test_all_is_new_where_nothing_is(tmp_path: pathlib.Path) -> None:
    new = unit(tmp_path)
    want(new)
    assert new.actions == ["write /run/x/x.pyz", "write /run/units/x@.service", "write /run/x/qwen.json"]
    assert new.after == {"program": digest(b"zip 1"), "unit": digest(b"[Unit]\n"), "settings": "{}\n", "runs": True}
    new.write()
    assert (tmp_path / "run/x/x.pyz").read_bytes() == b"zip 1" and (tmp_path / "run/x/qwen.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(("key", "written"), [("program", "run/x/x.pyz"), ("unit", "run/units/x@.service"), ("settings", "run/x/qwen.json")])
def test_only_what_is_new_is_written(tmp_path: pathlib.Path, key: str, written: str) -> None:
    known = unit(tmp_path)
    want(known)
    known.before = {**known.after, key: "other"}
    want(known)
    known.write()
    assert known.actions == [f"write /{written}"] and known.is_new(key)
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()] == [written]


def lay(root: pathlib.Path, *paths: str) -> None:
    for below in paths:
        (root / below).parent.mkdir(parents=True, exist_ok=True)
        (root / below).touch()


END = ("stop and disable", ["disable", "--now"])


def test_the_last_one_takes_all_away(tmp_path: pathlib.Path) -> None:
    lay(tmp_path, "run/x/qwen.json", "run/x/x.pyz", "run/units/x@.service")
    gone = unit(tmp_path)
    gone.take_away(["run/x/qwen.json", "run/x/other"], [KIND.program, KIND.unit_file], END, ["run/x"])
    assert gone.actions == ["stop and disable x@qwen.service", "remove /run/x/qwen.json", "remove /run/x/x.pyz", "remove /run/units/x@.service"]
    assert gone.module.calls == ["/bin/systemctl disable --now x@qwen.service", "/bin/systemctl daemon-reload"]
    assert not (tmp_path / "run/x").exists()


def test_one_of_several_leaves_what_the_others_need(tmp_path: pathlib.Path) -> None:
    lay(tmp_path, "run/x/qwen.json", "run/x/x.pyz", "run/units/x@.service")
    gone = unit(tmp_path)
    gone.take_away(["run/x/qwen.json"], (), END, None)
    assert gone.module.calls == ["/bin/systemctl disable --now x@qwen.service"] and (tmp_path / "run/x/x.pyz").exists()


@pytest.mark.parametrize(("check", "paths"), [(True, ["run/x/qwen.json", "run/units/x@.service"]), (False, [])])
def test_nothing_is_taken_away_in_check_mode_or_where_nothing_is(tmp_path: pathlib.Path, check: bool, paths: list[str]) -> None:
    lay(tmp_path, *paths)
    gone = unit(tmp_path, check=check)
    gone.take_away(["run/x/qwen.json"], [KIND.unit_file], END, ["run/x"])
    assert bool(gone.actions) is check and gone.module.calls == [] and all((tmp_path / below).exists() for below in paths)


@pytest.mark.parametrize(
    ("call", "module", "sentence"),
    [
        (lambda of: of.need_python(), {}, "This node has no /usr/bin/python3, which the watcher needs: install python3."),
        (lambda of: of.program(), {"program": None}, "The program is missing: run the module as a task, whose controller brings it."),
        (lambda of: of.systemctl("start"), {"systemd": False}, "This node has no systemd, which the watcher needs: set x_watch to false."),
        (lambda of: of.systemctl("start", "a"), {"said": (1, "Job\n", "")}, "systemctl start a failed: Job"),
        (lambda of: of.systemctl("start", "a"), {"said": (1, "out", "Job\n failed.\n")}, "systemctl start a failed: Job failed."),
    ],
)
def test_what_is_in_the_way_is_one_sentence(tmp_path: pathlib.Path, call: t.Callable[[subject.Unit], object], module: dict[str, t.Any], sentence: str) -> None:
    with pytest.raises(subject.Refused) as raised:
        call(unit(tmp_path, **module))
    assert str(raised.value) == sentence


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (subject.Refused("No."), "No."),
        (DockerError("Docker is away."), "Docker is away."),
        (ValueError("'X' can't be a name."), "'X' can't be a name."),
        (PermissionError(13, "Permission denied", "/run/x"), "/run/x can't be written: Permission denied. Run this as root (become)."),
    ],
)
def test_a_module_fails_with_it(error: Exception, sentence: str) -> None:
    with pytest.raises(Failed) as raised, subject.failing(t.cast(t.Any, Module())):
        raise error
    assert str(raised.value) == sentence
