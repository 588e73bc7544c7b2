# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The guard's unit on a node: started beside the container of now, kept when nothing is new, and gone without a trace."""

from __future__ import annotations

import base64
import json
import pathlib
import types
import typing as t
import zlib

import pytest
from conftest import FakeDocker

from ansible_collections.sparkstack.inference.plugins.module_utils import _guard_files as files
from ansible_collections.sparkstack.inference.plugins.module_utils._unit import Refused
from ansible_collections.sparkstack.inference.plugins.modules import memory_guard as subject

ID = "34aa5170b20e1a553373055b0ff649cdac0695ae3fc98ffe3d407840212a8bbb"
LATER = "4f1c2d0e5b8a7963" * 4
PARAMS: dict[str, t.Any] = {
    "deployment": "qwen",
    "state": "started",
    "container": "qwen-rank1",
    "floor": "auto",
    "until": 2400,
    "program": base64.b64encode(zlib.compress(b"zip 1")).decode(),
}


class Node:
    """A node with systemd and Docker, on which the rank runs."""

    def __init__(self, root: pathlib.Path, docker: FakeDocker) -> None:
        self.root, self.docker = root, docker
        self.calls: list[str] = []
        self.active: set[str] = set()
        self.fails, self.systemd = "", True
        for path, content in {"usr/bin/python3": "", "proc/meminfo": "MemTotal: 6291456 kB\nMemAvailable: 5242880 kB\n"}.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(content)
        (root / files.UNITS).mkdir(parents=True)
        self.container(ID, 42)

    def container(self, identity: str, pid: int) -> None:
        self.docker.start(identity=identity)
        assert self.docker.inspection is not None
        self.docker.inspection["Name"] = "/qwen-rank1"
        self.docker.inspection["State"]["Pid"] = pid
        path = self.root / f"proc/{pid}/cgroup"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"0::/system.slice/docker-{identity}.scope\n")

    def unit(self, check: bool = False, **params: t.Any) -> subject.Unit:
        module = types.SimpleNamespace(
            params={**PARAMS, "docker_socket": self.docker.socket, **params},
            check_mode=check,
            get_bin_path=lambda name: f"/bin/{name}" if self.systemd else None,
            run_command=self.run,
        )
        return subject.Unit(t.cast(t.Any, module), str(self.root))

    def run(self, command: list[str]) -> tuple[int, str, str]:
        words = command[1:]
        if words[0] == "is-active":
            return (0 if words[-1] in self.active else 3), "", ""
        self.calls.append(" ".join(words))
        if self.fails == words[0]:
            return 1, "", "Job failed.\n"
        if words[0] == "restart":
            self.active.add(words[-1])
        elif words[0] == "stop":
            self.active.discard(words[-1])
        return 0, "", ""

    def start(self, **params: t.Any) -> subject.Unit:
        self.calls.clear()
        unit = self.unit(**params)
        unit.start()
        return unit

    def stop(self, **params: t.Any) -> subject.Unit:
        self.calls.clear()
        unit = self.unit(state="stopped", **params)
        unit.stop()
        return unit

    def tell(self, deployment: str = "qwen") -> None:
        (self.root / files.told(deployment)).write_text('{"at": 1.0}')

    def files(self) -> set[str]:
        found = {str(path.relative_to(self.root)) for path in (self.root / "run").rglob("*") if path.is_file()} if (self.root / "run").exists() else set()
        return {path.rpartition("/")[2] for path in found}


@pytest.fixture(name="node")
def _node(tmp_path: pathlib.Path, docker: FakeDocker) -> Node:
    return Node(tmp_path / "root", docker)


def test_it_is_started_beside_the_container_of_now(node: Node) -> None:
    unit = node.start()
    assert node.calls == ["daemon-reload", "restart sparkstack-guard@qwen.service"]
    assert unit.found == {"guarded": True, "msg": "", "floor_bytes": 384 << 20, "total_bytes": 6 << 30}
    assert json.loads((node.root / files.settings("qwen")).read_text()) == {
        "container": ID,
        "deployment": "qwen",
        "docker_socket": node.docker.socket,
        "floor_bytes": 384 << 20,
        "name": "qwen-rank1",
        "pid": 42,
        "until": 2400,
    }
    assert (node.root / files.PROGRAM).read_bytes() == b"zip 1"
    # Nothing of it outlives a reboot.
    assert {path.name for path in node.root.iterdir()} == {"usr", "proc", "run"}


def test_a_second_time_nothing_is_done(node: Node) -> None:
    node.start()
    node.tell()
    assert node.start().actions == [] and node.calls == [] and "qwen.told.json" in node.files()


@pytest.mark.parametrize(
    ("params", "written"),
    [
        ({"floor": "1g"}, ["write /run/sparkstack/guard/qwen.json"]),
        ({"until": 60}, ["write /run/sparkstack/guard/qwen.json"]),
        ({"program": base64.b64encode(zlib.compress(b"zip 2")).decode()}, ["write /run/sparkstack/guard/guard.pyz"]),
    ],
)
def test_what_is_new_is_written_and_the_guard_restarted(node: Node, params: dict[str, t.Any], written: list[str]) -> None:
    node.start()
    assert node.start(**params).actions == [*written, "start sparkstack-guard@qwen.service"]
    assert node.calls == ["restart sparkstack-guard@qwen.service"]


def test_a_later_container_of_that_name_is_another(node: Node) -> None:
    node.start()
    node.tell()
    node.container(LATER, 43)
    assert node.start().actions == ["write /run/sparkstack/guard/qwen.json", "start sparkstack-guard@qwen.service"]
    assert json.loads((node.root / files.settings("qwen")).read_text())["container"] == LATER
    # What was told is of the one before.
    assert "qwen.told.json" not in node.files()


def test_one_that_has_ended_is_started_again(node: Node) -> None:
    node.start()
    node.active.clear()
    assert node.start().actions == ["start sparkstack-guard@qwen.service"]


@pytest.mark.parametrize("gone", ["none", "ended", "just ended"])
def test_where_nothing_runs_nothing_is_guarded(node: Node, gone: str) -> None:
    if gone == "none":
        node.docker.inspection = None
    elif gone == "ended":
        node.docker.end(1)
    else:
        (node.root / "proc/42/cgroup").unlink()
    unit = node.start()
    assert unit.found == {"guarded": False, "msg": "Nothing is guarded: no container qwen-rank1 runs.", "floor_bytes": 384 << 20, "total_bytes": 6 << 30}
    assert unit.actions == [] and node.calls == [] and node.files() == set()


def test_check_mode_says_the_same_and_touches_nothing(node: Node) -> None:
    unit = node.unit(check=True)
    unit.start()
    assert node.calls == [] and node.files() == set()
    wanted = (unit.actions, unit.after, unit.found)
    real = node.start()
    assert (real.actions, real.after, real.found) == wanted
    gone = node.unit(check=True, state="stopped")
    gone.stop()
    assert gone.actions == node.stop().actions


def test_it_is_taken_away_and_what_it_has_told_stays(node: Node) -> None:
    node.start()
    node.tell()
    unit = node.stop()
    assert unit.actions[0] == "stop sparkstack-guard@qwen.service" and node.calls == ["stop sparkstack-guard@qwen.service", "daemon-reload"]
    assert node.files() == {"qwen.told.json"} and unit.told() == {"at": 1.0}
    assert node.stop().actions == [] and node.calls == []


def test_without_a_word_nothing_stays(node: Node) -> None:
    node.start()
    assert node.stop().told() is None
    assert node.files() == set() and not (node.root / files.FOLDER).exists()


def test_the_program_stays_for_another_deployment(node: Node) -> None:
    node.start()
    node.start(deployment="llama")
    node.tell("llama")
    assert node.stop().actions == ["stop sparkstack-guard@qwen.service", "remove /run/sparkstack/guard/qwen.json"]
    assert node.files() == {"guard.pyz", "llama.json", "llama.told.json", files.TEMPLATE}


@pytest.mark.parametrize(
    ("prepare", "params", "sentence"),
    [
        (lambda node: setattr(node, "systemd", False), {}, r"This node has no systemd, which the memory guard needs: set tp_launch_memory_guard to false\."),
        (lambda node: (node.root / files.UNITS).rmdir(), {}, r"This node has no systemd"),
        (lambda node: (node.root / "usr/bin/python3").unlink(), {}, r"This node has no /usr/bin/python3, which the memory guard needs: install python3\."),
        (lambda node: setattr(node, "fails", "restart"), {}, r"systemctl restart sparkstack-guard@qwen\.service failed: Job failed\. See 'journalctl -u "),
        (lambda node: None, {"program": None}, "The program is missing: run the module as a task"),
    ],
    ids=["no systemd", "another init", "no python", "it does not start", "no program"],
)
def test_what_is_in_the_way_is_one_sentence(node: Node, prepare: t.Callable[[Node], t.Any], params: dict[str, t.Any], sentence: str) -> None:
    prepare(node)
    with pytest.raises(Refused, match=sentence):
        node.start(**params)


def test_without_systemd_there_is_nothing_to_take_away(node: Node) -> None:
    node.systemd = False
    assert node.stop().actions == []


@pytest.mark.parametrize(("floor", "sentence"), [("lots", "'lots' is no floor: give auto"), ("5g", r"more than half of this node's 6\.0 GiB")])
@pytest.mark.parametrize("here", [True, False])
def test_a_floor_that_is_none_is_refused_before_anything_is_written(node: Node, floor: str, sentence: str, here: bool) -> None:
    if not here:
        node.docker.inspection = None
    with pytest.raises(ValueError, match=sentence):
        node.start(floor=floor)
    assert node.files() == set()


@pytest.mark.parametrize("name", ["../x", "a/b", "", "Qwen", "qwen.told"])
def test_a_name_that_can_be_no_files_is_refused(node: Node, name: str) -> None:
    with pytest.raises(ValueError, match="can't be a deployment's name"):
        node.unit(deployment=name)


def test_the_unit_comes_first_and_is_the_last_that_the_kernel_would_kill() -> None:
    lines = files.unit_text().splitlines()
    assert "ExecStart=/usr/bin/python3 -I -B /run/sparkstack/guard/guard.pyz /run/sparkstack/guard/%i.json" in lines
    assert {"Type=notify", "Nice=-10", "OOMScoreAdjust=-1000", "LimitMEMLOCK=infinity", "ReadWritePaths=/run/sparkstack/guard"} <= set(lines)
