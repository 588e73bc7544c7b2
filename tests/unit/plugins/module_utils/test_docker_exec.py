# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A command in a container, against a daemon of our own that answers as Docker 26.1 does."""

from __future__ import annotations

import http.client
import http.server
import json
import pathlib
import socketserver
import threading
import time
import typing as t

import pytest

from ansible_collections.sparkstack.inference.plugins.module_utils._docker_api import (
    DockerAPI,
    DockerError,
    DockerTimeout,
    DockerUnreachable,
    Executed,
    unbroken,
)


class Daemon:
    def __init__(self, path: pathlib.Path) -> None:
        self.path = str(path)
        self.frames: list[bytes] = []
        self.refuse: dict[str, tuple[int, str]] = {}
        self.inspection: dict[str, t.Any] = {"Running": False, "ExitCode": 0, "Pid": 0}
        self.asked: list[tuple[str, dict[str, t.Any]]] = []
        self.done = threading.Event()
        self.done.set()
        daemon = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                daemon.asked.append((self.path, body))
                refused = next((answer for part, answer in daemon.refuse.items() if self.path.endswith(part)), None)
                if refused:
                    self._answer(refused[0], {"message": refused[1]})
                elif self.path.endswith("/exec"):
                    self._answer(201, {"Id": "e1"})
                else:
                    # As Docker does: a stream without a length, which ends with the connection.
                    self.send_response(200)
                    self.end_headers()
                    self.wfile.write(b"".join(daemon.frames))
                    daemon.done.wait(10)

            def do_GET(self) -> None:
                assert self.path == "/exec/e1/json"
                self._answer(200, daemon.inspection)

            def _answer(self, status: int, data: dict[str, t.Any]) -> None:
                body = json.dumps(data).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_arguments: t.Any) -> None:
                pass

            def address_string(self) -> str:
                return "local"

        class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
            daemon_threads = True

        self.server = Server(self.path, Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()


@pytest.fixture
def daemon(tmp_path: pathlib.Path) -> t.Iterator[Daemon]:
    made = Daemon(tmp_path / "docker.sock")
    yield made
    made.done.set()
    made.server.shutdown()
    made.server.server_close()


def frame(stream: int, payload: bytes) -> bytes:
    return bytes([stream, 0, 0, 0]) + len(payload).to_bytes(4, "big") + payload


def test_both_streams_and_the_code(daemon: Daemon) -> None:
    daemon.frames = [frame(1, b"Thread 25 "), frame(2, b"Error: no\n"), frame(1, "(idle) \u2713\n".encode())]
    daemon.inspection["ExitCode"] = 3
    found = DockerAPI(daemon.path).execute("rank/0", ["py-spy", "dump"], 5, user="0", privileged=True)
    assert found == Executed(3, "Thread 25 (idle) \u2713\n", "Error: no\n")
    assert daemon.asked == [
        ("/containers/rank%2F0/exec", {"AttachStdout": True, "AttachStderr": True, "Cmd": ["py-spy", "dump"], "User": "0", "Privileged": True}),
        ("/exec/e1/start", {"Detach": False, "Tty": False}),
    ]


@pytest.mark.parametrize(("part", "status"), [("/exec", 409), ("/exec", 404), ("/start", 400)])
def test_docker_refuses(daemon: Daemon, part: str, status: int) -> None:
    daemon.refuse[part] = (status, "Container rank is not running")
    with pytest.raises(DockerError, match="is not running") as error:
        DockerAPI(daemon.path).execute("rank", ["true"], 5)
    assert error.value.status == status


@pytest.mark.parametrize(("running", "pid"), [(True, 4711), (False, None)])
def test_a_command_that_does_not_end(daemon: Daemon, running: bool, pid: int | None) -> None:
    daemon.frames = [frame(1, b"begun\n")]
    daemon.inspection = {"Running": running, "ExitCode": None, "Pid": 4711}
    daemon.done.clear()
    begin = time.monotonic()
    with pytest.raises(DockerTimeout, match=r"py-spy in the container was not done within 0\.5 seconds\.") as error:
        DockerAPI(daemon.path).execute("rank", ["py-spy"], 0.5)
    assert error.value.pid == pid
    assert 0.4 < time.monotonic() - begin < 3


def test_an_output_without_an_end_is_not_kept(daemon: Daemon) -> None:
    daemon.frames = [frame(1, b"x" * (1 << 20))] * 6
    assert len(DockerAPI(daemon.path).execute("rank", ["yes"], 20).stdout) == 4 << 20


def test_no_daemon(tmp_path: pathlib.Path) -> None:
    with pytest.raises(DockerUnreachable, match="does not answer on"):
        DockerAPI(str(tmp_path / "none.sock")).execute("rank", ["true"], 1)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (TimeoutError("timed out"), "timed out"),
        (ConnectionResetError(), "ConnectionResetError"),
        (http.client.IncompleteRead(b"ab", 3), "IncompleteRead(2 bytes read, 3 more expected)"),
    ],
)
def test_an_answer_that_breaks_off(error: Exception, said: str) -> None:
    with pytest.raises(DockerUnreachable) as caught, unbroken():
        raise error
    assert str(caught.value) == f"Docker has broken off an answer: {said}."
