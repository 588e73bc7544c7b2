# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The unit on a node's disk: installed once, kept when nothing is new, and gone without a trace."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import pathlib
import threading
import types
import typing as t
import zlib

import pytest

from ansible_collections.sparkstack.inference.plugins.module_utils import _autostart_files as files
from ansible_collections.sparkstack.inference.plugins.module_utils._unit import Refused
from ansible_collections.sparkstack.inference.plugins.modules import inference_autostart as subject

PARAMS: dict[str, t.Any] = {
    "deployment": "qwen",
    "state": "present",
    "rank": 1,
    "nodes": ["spark1", "spark2"],
    "addresses": ["192.168.200.11", "192.168.200.12"],
    "container": "qwen-rank1",
    "engine": "vllm",
    "model": "tiny",
    "api": "http://127.0.0.1:8000",
    "port": 25050,
    "ready_timeout": 600,
    "stop_timeout": 10,
    "stall_timeouts": {},
    "docker_socket": "/var/run/docker.sock",
    "token": "t0ken-of-all",
    "program": base64.b64encode(zlib.compress(b"zip 1")).decode(),
}


class Systemd:
    """A node with systemd: enabling makes the link, and a unit that was started holds its file."""

    def __init__(self, root: pathlib.Path) -> None:
        self.root = root
        self.calls: list[str] = []
        self.held: dict[str, t.Any] = {}
        self.fails = ""
        (root / "usr/bin").mkdir(parents=True)
        (root / "usr/bin/python3").touch()

    def unit(self, check: bool = False, **params: t.Any) -> subject.Unit:
        module = types.SimpleNamespace(params={**PARAMS, **params}, check_mode=check, get_bin_path=lambda name: f"/bin/{name}", run_command=self.run)
        return subject.Unit(t.cast(t.Any, module), str(self.root))

    def run(self, command: list[str]) -> tuple[int, str, str]:
        words = [word for word in command[1:] if word != "--quiet"]
        if command[0] == "/bin/journalctl":
            return 0, "<3>qwen: 192.168.200.11 port 25050 can't be listened on.\n", ""
        self.calls.append(" ".join(words))
        if self.fails and words[0] == self.fails:
            return 1, "", "Job failed."
        name = words[-1][len("sparkstack-autostart@") : -len(".service")]
        link = self.root / files.UNITS / "multi-user.target.wants" / words[-1]
        if words[0] == "enable":
            link.parent.mkdir(exist_ok=True)
            link.symlink_to("x")
        elif words[0] in ("start", "restart"):
            self.held[name] = self.held.get(name) or files.hold(name, str(self.root))
        elif words[0] == "disable":
            link.unlink()
            os.close(self.held.pop(name))
        return 0, "", ""


@pytest.fixture(name="node")
def _node(tmp_path: pathlib.Path) -> Systemd:
    return Systemd(tmp_path)


def install(node: Systemd, **params: t.Any) -> subject.Unit:
    unit = node.unit(**params)
    unit.install()
    return unit


def everything(root: pathlib.Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir() or path.is_symlink()} - {"usr/bin/python3"}


def test_it_is_installed_enabled_and_started(node: Systemd) -> None:
    install(node)
    assert node.calls == ["daemon-reload", "enable sparkstack-autostart@qwen.service", "restart sparkstack-autostart@qwen.service"]
    settings = node.root / "etc/sparkstack/autostart/qwen.json"
    assert settings.stat().st_mode & 0o777 == 0o600 and settings.parent.stat().st_mode & 0o777 == 0o700
    assert json.loads(settings.read_text())["token"] == "t0ken-of-all"
    assert (node.root / files.PROGRAM).read_bytes() == b"zip 1"
    assert "ExecStart=/usr/bin/python3 -I -B /usr/local/lib/sparkstack/autostart.pyz /etc/sparkstack/autostart/%i.json" in files.unit_text()


def test_who_only_asks_whether_an_agent_runs_does_not_keep_it_from_running(tmp_path: pathlib.Path) -> None:
    agent = files.hold("qwen", str(tmp_path))
    assert agent is not None and files.runs("qwen", str(tmp_path)) and files.hold("qwen", str(tmp_path)) is None
    os.close(agent)
    asks = os.open(tmp_path / files.held("qwen"), os.O_RDONLY)
    fcntl.flock(asks, fcntl.LOCK_SH)
    threading.Timer(0.1, os.close, [asks]).start()
    agent = files.hold("qwen", str(tmp_path))
    assert agent is not None
    os.close(agent)


def test_what_a_killed_writer_has_left_goes_too(node: Systemd) -> None:
    install(node)
    for below in (files.settings("qwen"), files.PROGRAM):
        (node.root / (below + ".new")).write_text("half a token")
    node.unit(state="absent").remove()
    assert everything(node.root) == set()


def test_a_second_time_nothing_is_done(node: Systemd) -> None:
    install(node)
    node.calls.clear()
    assert install(node).actions == [] and node.calls == []
    # The token is kept where none is given.
    assert install(node, token=None).actions == [] and node.calls == []


@pytest.mark.parametrize(
    "params, written, called",
    [
        ({"port": 25051}, ["write /etc/sparkstack/autostart/qwen.json"], ["enable", "restart"]),
        ({"token": "new"}, ["write /etc/sparkstack/autostart/qwen.json"], ["enable", "restart"]),
        ({"program": base64.b64encode(zlib.compress(b"zip 2")).decode()}, ["write /usr/local/lib/sparkstack/autostart.pyz"], ["enable", "restart"]),
    ],
)
def test_what_is_new_is_written_and_the_agent_restarted(node: Systemd, params: dict[str, t.Any], written: list[str], called: list[str]) -> None:
    install(node)
    node.calls.clear()
    node.run = lambda command: (node.calls.append(command[1]), (0, "", ""))[1]  # type: ignore[method-assign]
    unit = install(node, **params)
    assert unit.actions == [*written, "start sparkstack-autostart@qwen.service"] and node.calls == called


def test_a_new_program_restarts_the_other_deployments_agents_too(node: Systemd) -> None:
    install(node)
    install(node, deployment="llama", port=25051)
    node.calls.clear()
    node.run = lambda command: (node.calls.append(" ".join(command[1:])), (0, "", ""))[1]  # type: ignore[method-assign]
    install(node, program=base64.b64encode(zlib.compress(b"zip 2")).decode())
    assert "try-restart sparkstack-autostart@llama.service" in node.calls


def test_check_mode_says_the_same_and_touches_nothing(node: Systemd) -> None:
    before = everything(node.root)
    unit = node.unit(check=True)
    unit.install()
    assert unit.actions == install(Systemd(node.root / "other")).actions
    assert {name for name in everything(node.root) if not name.startswith("other")} == before and node.calls == []


def test_no_secret_is_shown(node: Systemd) -> None:
    unit = install(node)
    assert "t0ken-of-all" not in json.dumps([unit.before, unit.after, unit.actions, files.installed(str(node.root))])


def test_it_is_removed_without_a_trace(node: Systemd) -> None:
    install(node)
    unit = node.unit(state="absent")
    unit.remove()
    assert everything(node.root) == set() and unit.actions[0] == "stop and disable sparkstack-autostart@qwen.service"
    node.calls.clear()
    again = node.unit(state="absent")
    again.remove()
    assert again.actions == [] and node.calls == []


def test_the_program_stays_for_another_deployment(node: Systemd) -> None:
    install(node)
    install(node, deployment="llama", port=25051)
    node.unit(state="absent").remove()
    assert (node.root / files.PROGRAM).exists() and list(files.installed(str(node.root))) == ["llama"]


@pytest.mark.parametrize(
    "prepare, sentence",
    [
        (lambda node: (node.root / "usr/bin/python3").unlink(), "has no /usr/bin/python3, which autostart needs: install python3"),
        (lambda node: setattr(node, "fails", "restart"), "systemctl restart sparkstack-autostart@qwen.service failed: Job failed. Its journal: .*25050"),
    ],
)
def test_what_is_in_the_way_is_one_sentence(node: Systemd, prepare: t.Callable[[Systemd], t.Any], sentence: str) -> None:
    prepare(node)
    with pytest.raises(Refused, match=sentence):
        install(node)


def test_without_a_token_nothing_is_installed(node: Systemd) -> None:
    with pytest.raises(Refused, match="token is missing"):
        install(node, token=None)
    assert everything(node.root) == set()


@pytest.mark.parametrize("name", ["../x", "a/b", "", "Qwen", ".."])
def test_a_name_that_leaves_the_folder_is_refused(node: Systemd, name: str) -> None:
    with pytest.raises(ValueError, match="can't be a deployment's name"):
        node.unit(deployment=name)


def test_damaged_settings_are_told_as_other_than_wanted_and_written_again(node: Systemd) -> None:
    install(node)
    (node.root / "etc/sparkstack/autostart/qwen.json").write_text("{")
    assert files.installed(str(node.root))["qwen"]["settings"]["token_hash"] != files.plain({"token": "t0ken-of-all"})["token_hash"]
    node.run = lambda command: (0, "", "")  # type: ignore[method-assign]
    assert install(node).actions[0] == "write /etc/sparkstack/autostart/qwen.json"
