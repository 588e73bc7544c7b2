# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Copies for the tests: trees of files, nodes on addresses of the loopback network, in threads or processes, and a cable between them."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils import _staging_agent as agent
from ansible_collections.sparkstack.inference.plugins.module_utils import _staging_state as state

CHUNK = 1 << 16
TOKEN = "5e" * 32
ADDRESS = {"spark1": "127.0.0.2", "spark2": "127.0.0.3", "spark3": "127.0.0.4"}
MODEL = {"model-1.bin": 20 * CHUNK + 77, "model-2.bin": 3 * CHUNK, "sub/config.txt": 10, "empty": 0}
TOTAL = sum(MODEL.values())


def lay(folder: pathlib.Path, files: t.Mapping[str, int] = MODEL, seed: int = 7) -> pathlib.Path:
    """A tree of files with the same content for the same seed."""
    chance = random.Random(seed)
    for name, size in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(chance.randbytes(size))
        os.utime(path, ns=(1_795_910_400_123_456_789, 1_795_910_400_123_456_789))
    return folder


def content(folder: pathlib.Path) -> dict[str, bytes]:
    """All files that are not hidden."""
    found = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found if state.FOLDER not in path.parts}


def listing(folder: pathlib.Path, mine: t.Collection[str] | None = None, compare: t.Collection[str] = ()) -> list[dict[str, t.Any]]:
    """The files of a copy, as the planner would list them."""
    files = [path for path in folder.rglob("*") if path.is_file() and state.FOLDER not in path.parts]
    entries = []
    for path in sorted(files, key=lambda path: (-path.stat().st_size, str(path))):
        name, status = str(path.relative_to(folder)), path.stat()
        entries.append({"name": name, "size": status.st_size, "mtime_ns": status.st_mtime_ns, "mine": mine is None or name in mine, "compare": name in compare})
    return entries


def until(condition: t.Callable[[], t.Any], seconds: float = 60) -> None:
    """Wait for something to come true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.01)


class Node:
    """An agent in a thread of the test."""

    def __init__(self, host: str, path: pathlib.Path, source: bool, files: list[dict[str, t.Any]], callers: t.Sequence[str] = (), **more: t.Any) -> None:
        lease = more.pop("lease", agent.LEASE)
        path.mkdir(exist_ok=True)
        self.host, self.path, self.address = host, path, ADDRESS[host]
        given = {
            "path": str(path),
            "source": source,
            "files": files,
            "sum": "sha256",
            "token": TOKEN,
            "callers": [ADDRESS[name] for name in callers],
            "streams": 4,
            "connect": 4,
            "stall": 30,
            "dry": False,
            "reread": False,
            "chunk": CHUNK,
            **more,
        }
        self.agent = agent.Agent(given, str(path.parent / f"cache-{host}"), lease)
        self.port = self.agent.counter.open(self.address, 0)
        self.thread = threading.Thread(target=self.agent.run, daemon=True)
        self.thread.start()
        until(lambda: self.ask({"do": "watch", "seconds": 0}) is not None)

    def ask(self, message: dict[str, t.Any], seconds: float = 0) -> dict[str, t.Any] | None:
        return agent.ask(str(self.path), message, seconds)

    def lane(self, own: str, port: int = 0) -> list[t.Any]:
        return [ADDRESS[own], self.address, port or self.port]

    def go(self, *providers: dict[str, t.Any]) -> None:
        assert self.ask({"do": "go", "providers": list(providers)}) is not None

    def end(self, seconds: float = 120) -> dict[str, t.Any]:
        """Its status when it is done or has failed."""
        deadline = time.monotonic() + seconds
        while True:
            status = self.ask({"do": "watch", "seconds": 1, "known": "running"}, 1)
            assert status is not None and time.monotonic() < deadline, status
            if status["state"] in ("done", "failed"):
                return status

    def close(self) -> None:
        self.ask({"do": "end", "force": True})
        self.thread.join(60)
        assert not self.thread.is_alive()


def provider(node: t.Any, own: str, port: int = 0, pin: str = "") -> dict[str, t.Any]:
    """A node as one behind it is told of it."""
    return {"host": node.host, "lanes": [node.lane(own, port)], "pin": pin}


PROGRAM = """
import itertools, json, os, sys, time
sys.path.insert(0, sys.argv[1])
from ansible_collections.sparkstack.inference.plugins.module_utils import _staging_agent as agent, _staging_disk as disk
given = json.load(sys.stdin)
turns = itertools.count(1)
def halting(deed):
    def take(*arguments):
        if next(turns) > given["halt"]:
            while not os.path.exists(given["gate"]):
                time.sleep(0.01)
        return deed(*arguments)
    return take
name = "read" if given["source"] else "write"
setattr(disk.Plain, name, halting(getattr(disk.Plain, name)))
one = agent.Agent(given, given["cache"])
print(one.counter.open(given["address"], 0), flush=True)
one.run()
"""


class Process:
    """An agent in a process of its own, which can be killed.

    It halts when it has read (the source) or written (a receiver) so many chunks, until :meth:`go_on`.
    """

    def __init__(self, host: str, path: pathlib.Path, source: bool, files: list[dict[str, t.Any]], callers: t.Sequence[str] = (), halt: int = 12) -> None:
        path.mkdir(exist_ok=True)
        self.host, self.path, self.address = host, path, ADDRESS[host]
        given = {
            "path": str(path),
            "source": source,
            "files": files,
            "sum": "sha256",
            "token": TOKEN,
            "callers": [ADDRESS[name] for name in callers],
            "streams": 2,
            "connect": 4,
            "stall": 30,
            "dry": False,
            "reread": False,
            "chunk": CHUNK,
            "halt": halt,
            "gate": str(path.parent / f"gate-{host}"),
            "cache": str(path.parent / f"cache-{host}"),
            "address": self.address,
        }
        where = str(pathlib.Path(agent.__file__).parents[5])
        self.process = subprocess.Popen([sys.executable, "-c", PROGRAM, where], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(given))
        self.process.stdin.close()
        self.port = int(self.process.stdout.readline())
        until(lambda: self.ask({"do": "watch", "seconds": 0}) is not None)

    ask, lane, go, end = Node.ask, Node.lane, Node.go, Node.end

    def go_on(self) -> None:
        (self.path.parent / f"gate-{self.host}").touch()

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(60)

    def close(self) -> None:
        self.ask({"do": "end", "force": True})
        self.process.wait(60)


class Cable:
    """A way to a node that can be cut, healed, and spoilt. :param own: the caller's host: the far side sees its address."""

    def __init__(self, node: t.Any, own: str) -> None:
        self.node, self.own = node, own
        self.spoil = 0
        """Bytes to let pass until one is changed; 0: none is."""
        self.always = False
        self.passed = 0
        self.intact = True
        self.ends: list[socket.socket] = []
        self.server = socket.create_server((node.address, 0), backlog=64)
        self.port = self.server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _peer = self.server.accept()
            except OSError:
                return
            if not self.intact:
                near.close()
                continue
            far = socket.create_connection((self.node.address, self.node.port), 5, (ADDRESS[self.own], 0))
            self.ends += [near, far]
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=self._pass, args=(one, other, other is near), daemon=True).start()

    def _pass(self, one: socket.socket, other: socket.socket, inward: bool) -> None:
        with contextlib.suppress(OSError):
            while data := bytearray(one.recv(1 << 16)):
                if inward:
                    self.passed += len(data)
                    if self.spoil and self.passed > self.spoil and len(data) > 4096:
                        data[2048] ^= 1
                        self.spoil = self.spoil if self.always else 0
                other.sendall(data)
        for end in (one, other):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def cut(self) -> None:
        self.intact = False
        for end in self.ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.cut()
        self.server.shutdown(socket.SHUT_RDWR)
        self.server.close()


def answers(address: str, port: int) -> bool:
    """Whether somebody listens there."""
    with socket.socket() as probe:
        return not probe.connect_ex((address, port))
