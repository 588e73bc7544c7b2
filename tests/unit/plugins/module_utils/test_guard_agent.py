# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The guard itself: when it ends, in which order it tells and kills, and its program beside a real process."""

from __future__ import annotations

import ast
import http.server
import io
import json
import pathlib
import socket
import socketserver
import subprocess
import sys
import threading
import typing as t
import zipfile

import pytest

from ansible_collections.sparkstack.inference.plugins.module_utils import _guard_agent as subject
from ansible_collections.sparkstack.inference.plugins.module_utils._guard_node import Memory, Rank
from ansible_collections.sparkstack.inference.plugins.plugin_utils import _zipapp

ID = "34aa5170b20e1a553373055b0ff649cdac0695ae3fc98ffe3d407840212a8bbb"
GIB = 1 << 30
TOLD = "run/sparkstack/guard/qwen.told.json"


class Load:
    """A rank that takes what a curve says, on a clock of its own; what is done with it is noted in order."""

    def __init__(self, root: pathlib.Path, available: t.Sequence[float], processes: t.Sequence[int] = (3, 0)) -> None:
        self.root, self.now = root, 1000.0
        self.done: list[str] = []
        self._available, self._processes = list(available), list(processes)
        self.ended = False

    def clock(self) -> float:
        return self.now

    def memory(self) -> Memory:
        left = self._available.pop(0) if len(self._available) > 1 else self._available[0]
        return Memory(int(left * GIB), 120 * GIB if left >= 0 else 0, "", 16 * GIB, int((100 - left) / 20 * GIB))

    def refresh(self) -> None:
        self.done.append("refresh")

    def gone(self) -> bool:
        return self.ended

    def processes(self) -> list[int]:
        return list(range(self._processes[0]))

    def kill(self) -> int:
        self.done.append("kill" if (self.root / TOLD).exists() else "kill untold")
        count = self._processes.pop(0) if len(self._processes) > 1 else self._processes[0]
        self.now += 0.05
        return count


class Kills(http.server.BaseHTTPRequestHandler):
    """A daemon that is asked to kill, and may leave the asker waiting."""

    seen: t.ClassVar[list[str]] = []
    status: t.ClassVar[int] = 204

    def do_POST(self) -> None:
        self.seen.append(self.path)
        self.send_response(self.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_arguments: t.Any) -> None:
        pass

    def address_string(self) -> str:
        return "local"


@pytest.fixture(name="daemon")
def _daemon(tmp_path: pathlib.Path) -> t.Iterator[str]:
    class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
        daemon_threads = True

    Kills.seen.clear()
    Kills.status = 204
    path = str(tmp_path / "docker.sock")
    server = Server(path, Kills)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield path
    server.shutdown()
    server.server_close()


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject.time, "sleep", lambda _seconds: None)


def guard(load: Load, daemon: str = "/nowhere.sock", said: list[tuple[int, str]] | None = None, until: float = 600) -> subject.Guard:
    settings = {"deployment": "qwen", "container": ID, "name": "qwen-rank1", "pid": 42, "floor_bytes": 3 * GIB, "until": until, "docker_socket": daemon}
    heard = said if said is not None else []
    return subject.Guard(settings, lambda *line: heard.append(line), str(load.root), load.clock, t.cast(Rank, load))


def run(watched: subject.Guard, load: Load, most: int = 10000) -> int:
    """Turn until it ends; returns how many readings that took."""
    for number in range(1, most):
        wait = watched.turn()
        if wait is None:
            return number
        load.now += wait
    raise AssertionError("it never ended")


def test_it_tells_first_and_then_kills(tmp_path: pathlib.Path) -> None:
    load, said = Load(tmp_path, [100, 100, 50, 50, 2.9, 2.9]), []
    assert run(guard(load, said=said), load) == 5
    assert load.done[0] == "kill"
    told = json.loads((tmp_path / TOLD).read_text())
    assert (told["container"], told["why"], told["available"], told["floor"], told["total"]) == (ID, "floor", int(2.9 * GIB), 3 * GIB, 120 * GIB)
    assert [round(available / GIB, 1) for _at, available in told["curve"]] == [100.0, 50.0, 50.0, 2.9, 2.9]
    assert (told["swap_before"], told["swap_used"] > 4 * GIB) == (0, True)
    assert told["gone_s"] == pytest.approx(0.1)
    assert said == [(subject.CRITICAL, said[0][1])] and said[0][1].startswith("qwen-rank1 was stopped by the memory guard: 2.9 GiB of 120.0 GiB were left")


def test_a_reading_that_fails_is_no_reason(tmp_path: pathlib.Path) -> None:
    load = Load(tmp_path, [100, 100, -1, -1, -1, 100, 2.9, -1, 2.9])
    assert run(guard(load), load) == 8 and load.done[0] == "kill"
    assert [available // GIB for _at, available in json.loads((tmp_path / TOLD).read_text())["curve"]] == [100, 100, 2, 2]


def test_a_full_disk_does_not_keep_it_from_killing(tmp_path: pathlib.Path) -> None:
    (tmp_path / "run").write_text("a file where the folder should be")
    load = Load(tmp_path, [100, 2, 2])
    run(guard(load), load)
    assert load.done[0] == "kill untold"


def test_docker_is_asked_for_what_the_group_does_not_show(tmp_path: pathlib.Path, daemon: str) -> None:
    load = Load(tmp_path, [100, 2, 2], processes=[2, 2, 2, 2, 2, 2, 2, 0])
    run(guard(load, daemon), load)
    assert Kills.seen == [f"/containers/{ID}/kill?signal=KILL"]
    assert set(load.done) == {"kill"} and json.loads((tmp_path / TOLD).read_text())["gone_s"] == pytest.approx(0.4)


@pytest.mark.parametrize("status", [404, 409, 500])
def test_what_docker_says_to_it_changes_nothing(tmp_path: pathlib.Path, daemon: str, status: int) -> None:
    Kills.status = status
    load = Load(tmp_path, [100, 2, 2], processes=[2, 2, 2, 2, 2, 2, 2, 0])
    run(guard(load, daemon), load)
    assert len(Kills.seen) == 1 and load.done.count("kill") == 8


def test_a_daemon_that_does_not_answer_gets_a_second(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "_ANSWER", 0.1)
    path = str(tmp_path / "silent.sock")
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(path)
        silent.listen(1)
        load = Load(tmp_path, [100, 2, 2], processes=[2, 2, 2, 2, 2, 2, 2, 0])
        run(guard(load, path), load)
    assert load.done.count("kill") == 8


def test_processes_that_do_not_go_are_told_so(tmp_path: pathlib.Path) -> None:
    load = Load(tmp_path, [100, 2, 2], processes=[1])
    run(guard(load), load)
    assert json.loads((tmp_path / TOLD).read_text())["gone_s"] is None
    assert load.now - 1000 == pytest.approx(30, abs=1)


def test_it_ends_with_its_rank(tmp_path: pathlib.Path) -> None:
    load, said = Load(tmp_path, [100]), []
    watched = guard(load, said=said)
    for _reading in range(35):
        load.now += t.cast(float, watched.turn())
    # Three whole seconds: so often it has looked for new limits.
    assert load.done == ["refresh"] * 3
    load.ended = True
    assert run(watched, load) <= 10
    assert said == [(subject.INFO, "The rank's container has ended.")] and not (tmp_path / TOLD).exists()


def test_it_ends_when_its_time_is_over(tmp_path: pathlib.Path) -> None:
    load, said = Load(tmp_path, [100]), []
    assert run(guard(load, said=said, until=5), load) == pytest.approx(51, abs=1)
    assert said == [(subject.INFO, "Its time of 5 s is over.")] and "kill" not in load.done


# The program.


def test_the_same_sources_give_the_same_bytes() -> None:
    _zipapp.build.cache_clear()
    first = _zipapp.build("_guard_agent")
    _zipapp.build.cache_clear()
    assert _zipapp.build("_guard_agent") == first


def test_it_holds_no_more_than_it_needs_in_python_3_8() -> None:
    archive = zipfile.ZipFile(io.BytesIO(_zipapp.build("_guard_agent")))
    names = {pathlib.PurePosixPath(name).name for name in archive.namelist()}
    assert {"__main__.py", "_guard.py", "_guard_agent.py", "_guard_node.py", "_docker_api.py"} <= names
    assert not {"_diagnosis.py", "_timeline.py", "_autostart_agent.py", "vllm.py"} & names
    for name in archive.namelist():
        ast.parse(archive.read(name), name, feature_version=(3, 8))


def test_without_settings_it_says_so(tmp_path: pathlib.Path) -> None:
    program = tmp_path / "guard.pyz"
    program.write_bytes(_zipapp.build("_guard_agent"))
    done = subprocess.run([sys.executable, "-I", "-B", str(program), str(tmp_path / "no.json")], capture_output=True, text=True, cwd="/", check=False)
    assert (done.returncode, done.stderr) == (2, "<3>There are no settings to be read: give the path of /run/sparkstack/guard/DEPLOYMENT.json.\n")


def test_by_itself_it_tells_systemd_and_ends_with_a_rank_that_is_gone(tmp_path: pathlib.Path) -> None:
    program, notified = tmp_path / "guard.pyz", str(tmp_path / "notify")
    program.write_bytes(_zipapp.build("_guard_agent"))
    settings = {"deployment": "qwen", "container": ID, "name": "qwen-rank1", "pid": 1, "floor_bytes": 1, "until": 600, "docker_socket": "/nowhere"}
    (tmp_path / "qwen.json").write_text(json.dumps(settings))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(notified)
        argv = [sys.executable, "-I", "-B", str(program), str(tmp_path / "qwen.json")]
        done = subprocess.run(argv, capture_output=True, text=True, cwd="/", env={"NOTIFY_SOCKET": notified}, check=False, timeout=60)
        assert systemd.recv(100) == b"READY=1"
    first, last = done.stderr.splitlines()
    assert first.startswith("<6>qwen: Stops qwen-rank1 when less than 0 MiB of ") and first.endswith(" GiB are.")
    assert (done.returncode, last) == (0, "<6>qwen: The rank's container has ended.")
