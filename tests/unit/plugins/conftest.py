# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A Docker daemon for the tests: one container behind a unix socket, in this process."""

from __future__ import annotations

import http.server
import json
import pathlib
import socketserver
import threading
import typing as t
import urllib.parse

import pytest


class FakeDocker:
    """Answers what the probe asks: a container's inspection and its log from a time on."""

    def __init__(self, path: pathlib.Path) -> None:
        self.socket = str(path)
        self.inspection: dict[str, t.Any] | None = None
        self.log: list[tuple[str, bytes]] = []
        self.queries: list[dict[str, str]] = []
        self.sent = 0
        self.unread = False
        docker = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                url = urllib.parse.urlsplit(self.path)
                if docker.inspection is None:
                    self._answer(404, b'{"message": "No such container: rank"}')
                elif url.path.endswith("/json"):
                    self._answer(200, json.dumps(docker.inspection).encode())
                else:
                    query = dict(urllib.parse.parse_qsl(url.query))
                    docker.queries.append(query)
                    if docker.unread:
                        self._answer(501, b'{"message": "configured logging driver does not support reading"}')
                        return
                    self._answer(200, docker.stream(query["since"], query.get("until")))

            def _answer(self, status: int, body: bytes) -> None:
                docker.sent += len(body)
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

        self.server = Server(self.socket, Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def start(
        self,
        began: str = "2026-11-29T22:42:00.5Z",
        identity: str = "a" * 64,
        tty: bool = False,
        ended: str = "0001-01-01T00:00:00Z",
        created: str = "2026-11-29T22:00:00Z",
        restarts: int = 0,
    ) -> None:
        """There is a running container with an empty log. :param ended: when its start before has ended."""
        state = {"Running": True, "StartedAt": began, "FinishedAt": ended, "ExitCode": 0, "OOMKilled": False, "Pid": 0, "Error": ""}
        self.inspection = {"Id": identity, "Created": created, "State": state, "Config": {"Tty": tty}, "RestartCount": restarts}

    def end(self, code: int, **state: t.Any) -> None:
        """The container has ended."""
        assert self.inspection is not None
        self.inspection["State"].update({"Running": False, "ExitCode": code, "FinishedAt": "2026-11-29T22:45:00.25Z", **state})

    def stream(self, since: str, until: str | None = None) -> bytes:
        """The log as Docker sends it: what is as old as C(since) comes again, and nothing that is younger than C(until)."""
        assert self.inspection is not None
        frames = []
        for stamp, text in self.log:
            if nanoseconds(stamp) >= nanoseconds_of_unix(since) and (until is None or nanoseconds(stamp) <= nanoseconds_of_unix(until)):
                payload = stamp.encode() + b" " + text
                frames.append(payload if self.inspection["Config"]["Tty"] else b"\x02\0\0\0" + len(payload).to_bytes(4, "big") + payload)
        return b"".join(frames)


def nanoseconds(stamp: str) -> int:
    """A time of a day in 2026-11, such as C(2026-11-29T22:42:04.123456789Z), in nanoseconds since 2026-11-29."""
    date, clock = stamp.rstrip("Z").split("T")
    hours, minutes, seconds = clock.split(":")
    whole, _dot, fraction = seconds.partition(".")
    day = int(date.split("-")[2]) - 29
    return (((day * 24 + int(hours)) * 60 + int(minutes)) * 60 + int(whole)) * 10**9 + int(fraction.ljust(9, "0"))


def nanoseconds_of_unix(since: str) -> int:
    whole, _dot, fraction = since.partition(".")
    return (int(whole) - 1795910400) * 10**9 + int(fraction.ljust(9, "0"))


@pytest.fixture
def docker(tmp_path: pathlib.Path) -> t.Iterator[FakeDocker]:
    fake = FakeDocker(tmp_path / "docker.sock")
    yield fake
    fake.server.shutdown()
    fake.server.server_close()


@pytest.fixture
def folder_of(tmp_path: pathlib.Path) -> t.Callable[[dict[str, str]], str]:
    """Writes files, by name under a root folder such as C(proc/42/cgroup), and returns that root."""

    def write(files: dict[str, str]) -> str:
        for name, content in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        return str(tmp_path)

    return write
