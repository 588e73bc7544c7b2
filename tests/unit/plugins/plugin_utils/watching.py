# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# ruff: noqa: E501 - a real line is as long as it is.
"""A group of hosts that watch their ranks, with looks and a clock that a test makes."""

from __future__ import annotations

import json
import pathlib
import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils._timeline import Timeline
from ansible_collections.sparkstack.inference.plugins.plugin_utils._board import Board
from ansible_collections.sparkstack.inference.plugins.plugin_utils._watch import Options, Watch

START = 1795992120.0
HOSTS = ["spark1", "spark2"]
HEAD = [
    "[2026-11-29 22:42:02] server_args=ServerArgs(nnodes=2, node_rank=0)\n",
    "[2026-11-29 22:42:04 TP0] Init torch distributed begin.\n",
    "[2026-11-29 22:42:06 TP0] Load weight begin. avail mem=138.33 GB\n",
    "[2026-11-29 22:42:08] The server is fired up and ready to roll!\n",
]
WORKER = [HEAD[0].replace("node_rank=0", "node_rank=1"), HEAD[1], HEAD[2], "[2026-11-29 22:42:07] Dummy health check server started in background thread\n"]
OOM = '[2026-11-29 22:42:07 TP1] Scheduler hit an exception: Traceback (most recent call last):\n  File "a.py"\ntorch.OutOfMemoryError: CUDA out of memory.\n\n'
UNBALANCED = OOM.replace(
    "torch.OutOfMemoryError: CUDA out of memory.", "RuntimeError: The memory capacity is unbalanced. pre_model_load_memory=1.4, local_gpu_memory=138"
)


class Clock:
    """One clock for all hosts, moved by hand."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> float:
        return self.now


def looks(*steps: str, step: float = 2.0, **last: t.Any) -> t.Callable[[float], dict[str, t.Any]]:
    """A rank whose log grows by a step every C(step) seconds; C(last) holds from the last step on."""

    def look(now: float) -> dict[str, t.Any]:
        count = min(len(steps), int((now - START) / step) + 1)
        timeline = Timeline("sglang", 2026)
        timeline.feed("".join(steps[:count]))
        found = {
            "exists": True,
            "started": True,
            "running": True,
            "exit_code": None,
            "oom_killed": False,
            "error": "",
            "started_at": START,
            "finished_at": None,
            "now": now,
            "reading": timeline.reading(),
            "activity": {},
            "healthy": None,
            "addresses": [],
            "state": {},
        }
        return {**found, **(last if count == len(steps) else {})}

    return look


def absent(now: float) -> dict[str, t.Any]:
    return {"exists": False, "started": False, "running": False, "now": now, "reading": None, "state": {}}


class Group:
    """The hosts of a task; where each has a fork, here each has its turn."""

    def __init__(self, tmp_path: pathlib.Path, options: dict[str, t.Any], *ranks: t.Callable[[float], dict[str, t.Any]] | None) -> None:
        self.clock = Clock()
        self.lines: list[tuple[float, str]] = []
        self.verdicts: dict[str, dict[str, t.Any]] = {}
        self.ends: dict[str, float] = {}
        self.errors: dict[str, Exception] = {}
        self.closer: list[tuple[str, float, dict[str, t.Any]]] = []
        self.scene: dict[str, dict[str, t.Any]] = {}
        self.watches = {host: self._watch(host, number, look, tmp_path, options) for number, (host, look) in enumerate(zip(HOSTS, ranks, strict=True)) if look}

    def _watch(self, host: str, number: int, look: t.Callable[[float], dict[str, t.Any]], path: pathlib.Path, options: dict[str, t.Any]) -> Watch:
        board = Board(str(path), host, HOSTS)
        return Watch(
            board,
            Options(rank=number, **options),
            lambda _state, peers: look(self.clock.now, peers) if look.__code__.co_argcount > 1 else look(self.clock.now),
            lambda arguments: self._close(host, arguments),
            lambda text: self.lines.append((self.clock.now - START, text)),
            self.clock,
        )

    def _close(self, host: str, arguments: dict[str, t.Any]) -> dict[str, t.Any]:
        self.closer.append((host, self.clock.now - START, arguments))
        return json.loads(json.dumps(self.scene.get(host, {})))

    def run(self, limit: float = 4000) -> Group:
        """Give each host one round a second, until all are done."""
        open_ = dict(self.watches)
        start = self.clock.now
        while open_ and self.clock.now - start < limit:
            for host, watch in list(open_.items()):
                try:
                    verdict = watch.turn(start)
                    if verdict is None:
                        continue
                    self.verdicts[host] = verdict
                except RuntimeError as error:
                    watch.gone(f"its watch ended: {error}")
                    self.errors[host] = error
                self.ends[host] = self.clock.now - start
                del open_[host]
            self.clock.now += 1
        assert not open_, f"{sorted(open_)} go on after {limit} s"
        return self


ADDRESSES = {"spark1": "192.168.200.11", "spark2": "192.168.200.12"}


def on_the_fabric(host: str, look: t.Callable[[float], dict[str, t.Any]], cut: float = 1e9) -> t.Callable[[float, list[str]], dict[str, t.Any]]:
    """A look with a fabric whose link is cut after so many seconds."""

    def see(now: float, peers: list[str]) -> dict[str, t.Any]:
        echo = {"small": None, "large": None} if now - START >= cut else {"small": 0.0002, "large": 0.0003}
        fabric = {"interface": "enp1s0f0np0", "address": ADDRESSES[host], "mtu": 1500, "carrier": True}
        return {**look(now), "scene": {"fabric": fabric, "reach": {peer: dict(echo) for peer in peers}}}

    return see


def hanging(steps: list[str]) -> t.Callable[[float], dict[str, t.Any]]:
    return looks(*steps[:2])


def loading(steps: list[str], **last: t.Any) -> t.Callable[[float], dict[str, t.Any]]:
    """A rank that reads 50 MB more at each look."""
    base = looks(*steps, **last)
    return lambda now: {**base(now), "activity": {"read_bytes": int(now - START) * 50_000_000, "memory_bytes": None, "cpu_seconds": None}}
