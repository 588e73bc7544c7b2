# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later


"""Two ranks of the SGLang rehearsal as processes of this machine, each the first process of a PID namespace, as in a container."""

from __future__ import annotations

import json
import os
import pathlib
import socket
import subprocess
import sys
import time
import typing as t
import urllib.error
import urllib.request

import play

LOGS = play.ROOT / "tests" / "fixtures" / "logs" / "sglang-gpu"


def free_port() -> int:
    """A TCP port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return t.cast("int", probe.getsockname()[1])


class Rank:
    """One rank: a process tree of its own, and its log."""

    def __init__(self, folder: pathlib.Path, number: int, rendezvous: int, model: pathlib.Path, package: pathlib.Path) -> None:
        self.folder, self.number, self.port = folder, number, free_port()
        self.log = folder / f"rank{number}.log"
        self.options = {"--model-path": str(model), "--served-model-name": "tiny", "--tp-size": "2", "--nnodes": "2", "--node-rank": str(number)}
        self.options |= {"--dist-init-addr": f"127.0.0.1:{rendezvous}", "--host": "127.0.0.1", "--port": str(self.port)}
        self.environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(package), "PYTHONDONTWRITEBYTECODE": "1", "REHEARSAL_PACE": "0.1"}
        self.environment |= {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
        self.shell = ""
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it as the first process of a PID namespace; shell: commands before it, in its own mount namespace."""
        engine = f"{sys.executable} -m sglang.launch_server"
        words = [word for pair in self.options.items() for word in pair if word]
        command = ["unshare", "--pid", "--fork", "--kill-child", "--mount", "--mount-proc", "sh", "-c", f'{self.shell}exec {engine} "$@"', "sh", *words]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)

    @property
    def text(self) -> str:
        """The log so far."""
        return self.log.read_text(encoding="utf-8")

    def wait(self, text: str, seconds: float = 20) -> None:
        """Wait until the log holds a text."""
        deadline = time.monotonic() + seconds
        while text not in self.text:
            assert time.monotonic() < deadline, f"rank {self.number} never said {text!r}:\n{self.text[-3000:]}"
            time.sleep(0.02)

    def code(self, seconds: float = 20) -> int:
        """The exit code, once it has ended."""
        assert self.process
        return self.process.wait(seconds)

    def runs(self) -> bool:
        """Whether it has not ended."""
        assert self.process
        return self.process.poll() is None

    def pid(self, title: str) -> int:
        """The process of this rank with such a title: "python" for the launcher, "sglang::schedul" for the scheduler."""
        assert self.process
        todo = [self.process.pid]
        while todo:
            pid = todo.pop()
            if pid != self.process.pid and pathlib.Path(f"/proc/{pid}/comm").read_text().startswith(title):
                return pid
            todo += map(int, pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
        raise AssertionError(f"rank {self.number} has no process {title!r}")

    def signal(self, title: str, number: int) -> None:
        """Send one of its processes a signal."""
        os.kill(self.pid(title), number)

    def ask(self, path: str, body: t.Any = None, key: str = "") -> tuple[int, t.Any]:
        """Status and answer of its HTTP server."""
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", body and json.dumps(body).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    @property
    def last(self) -> str:
        """The log's last line that is not empty."""
        return self.text.strip().splitlines()[-1]
