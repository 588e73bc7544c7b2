# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Agents of two nodes in one process, over real connections: they start what was lost, keep the lock meanwhile, and tell the journal."""

from __future__ import annotations

import json
import pathlib
import threading
import time
import typing as t

import pytest

from ansible_collections.sparkstack.inference.plugins.module_utils import _autostart_agent as subject
from ansible_collections.sparkstack.inference.plugins.module_utils import _autostart_node, _ledger

ADDRESSES = ["127.0.0.1", "127.0.0.2"]


class Node(_autostart_node.Node):
    """A node whose Docker is a variable."""

    running, boot, starts, phase = True, "b1", 1, "ready"

    def _look(self) -> dict[str, t.Any]:
        look = {"docker": True, "here": True, "id": "c", "launch": "L1", "running": self.running, "boot": self.boot, "began": str(self.starts)}
        now = time.time()
        return {**look, "started": now - 99, "finished": None if self.running else now, "daemon": "1/1", "booted": now - 9, "docker_started": now - 9}

    def _post(self, what: str, query: t.Mapping[str, str]) -> None:
        self.running = what == "start"
        self.starts += self.running

    def record(self) -> dict[str, t.Any]:
        reading = {"engine": "vllm", "phase": self.phase, "phases": [], "candidates": [], "claims": {}, "earlier": [], "last_line": "", "nccl": {}}
        return {
            "node": self.config["nodes"][self.config["rank"]],
            "rank": self.config["rank"],
            "started": True,
            "running": self.running,
            "reading": reading,
            "healthy": True,
            "quiet_seconds": 0.0,
            "now": time.time(),
            "exit_code": None,
        }

    def answered(self) -> bool:
        return True

    def reboot(self, boot: str) -> None:
        """Power off and on: its rank is gone, its disk is not."""
        self.running, self.boot = False, boot


class Pair:
    """The head's and the worker's agent."""

    def __init__(self, folder: pathlib.Path, port: int) -> None:
        self.folder = folder
        self.others = set(threading.enumerate())
        self.said: dict[int, list[str]] = {0: [], 1: []}
        self.nodes = []
        for rank in (0, 1):
            config = {
                "deployment": "qwen",
                "rank": rank,
                "nodes": ["spark1", "spark2"],
                "addresses": ADDRESSES,
                "container": f"qwen-rank{rank}",
                "port": port,
                "token": "t" * 64,
                "ready_timeout": 600,
                "stop_timeout": 10,
                "stall_timeouts": {},
                "docker_socket": "/nowhere",
            }
            self.nodes.append(Node(config, str(folder / f"spark{rank + 1}")))
        self.head = subject.Head(self.nodes[0], subject.Journal("qwen", self.said[0].append))
        self.head.serve()
        self.worker = subject.Worker(self.nodes[1], subject.Journal("qwen", self.said[1].append))

    def turns(self, count: int) -> None:
        for _turn in range(count):
            self.worker.turn()
            self.head.turn()

    def text(self, rank: int) -> str:
        return "".join(self.said[rank])

    @property
    def lock(self) -> pathlib.Path:
        return self.folder / "spark1" / _ledger.FOLDER / "qwen" / "lock.json"


@pytest.fixture(name="pair")
def _pair(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> t.Iterator[Pair]:
    servers = []
    listen = subject._autostart_wire.listen

    def remembered(address: str, port: int) -> t.Any:
        servers.append(listen(address, port))
        return servers[-1]

    monkeypatch.setattr(subject._autostart_wire, "listen", remembered)
    probe = listen("127.0.0.1", 0)
    port = probe.getsockname()[1]
    probe.close()
    pair = Pair(tmp_path, port)
    pair.turns(3)
    yield pair
    if pair.worker._channel:
        pair.worker._channel.close()
    for server in servers:
        server.close()


def test_while_all_run_it_tells_once_and_does_nothing(pair: Pair) -> None:
    pair.turns(5)
    assert pair.text(0).count("All ranks run.") == 1
    assert pair.text(1) == "<6>qwen: The head's agent takes the reports.\n"
    assert not pair.lock.exists() and [node.starts for node in pair.nodes] == [1, 1]


def test_a_lock_that_a_full_disk_keeps_is_given_back_later(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    assert pair.head._take(time.time())
    release = pair.head._ledger.release

    def full(run: str) -> None:
        raise _ledger.LedgerError("The folder can't be used: No space left on device.")

    monkeypatch.setattr(pair.head._ledger, "release", full)
    pair.turns(1)
    assert pair.lock.exists() and "No space left on device." in pair.text(0)
    monkeypatch.setattr(pair.head._ledger, "release", release)
    pair.turns(1)
    assert not pair.lock.exists()


def test_a_rebooted_worker_has_both_started_again_under_the_lock(pair: Pair) -> None:
    pair.nodes[1].reboot("b2")
    locked = []
    for _turn in range(12):
        pair.turns(1)
        locked.append(json.loads(pair.lock.read_text())["run"] if pair.lock.exists() else None)
    assert [node.starts for node in pair.nodes] == [2, 2] and all(node.running for node in pair.nodes)
    assert "autostart/spark1" in locked and locked[-1] is None
    told = pair.text(0)
    assert "<5>qwen: spark2 was restarted while its rank ran. All 2 ranks of launch L1 are started again (start 1 of at most 5 in an hour).\n" in told
    assert "<6>qwen: Stopping rank 0 on spark1.\n" in told and "<5>qwen: Serves again: the head has answered" in told
    assert "<5>qwen: The head's agent wants rank 1 running.\n" in pair.text(1)
    assert told.index("Starting rank 1 on spark2") < told.index("Starting rank 0 on spark1")


def test_a_live_lock_of_a_run_is_respected_until_it_is_given_back(pair: Pair) -> None:
    ledger = _ledger.Ledger("qwen", str(pair.folder / "spark1"))
    ledger.acquire({"run": "r1", "user": "alice", "host": "ctl1", "pid": 123}, time.time() + 60)
    pair.nodes[1].reboot("b2")
    pair.turns(5)
    assert [node.starts for node in pair.nodes] == [1, 1]
    assert "<6>qwen: alice at ctl1 (pid 123) works on the deployment: nothing is started here meanwhile.\n" in pair.text(0)
    ledger.release("r1")
    pair.turns(12)
    assert [node.starts for node in pair.nodes] == [2, 2]


def test_a_lock_whose_time_is_over_holds_nothing_up(pair: Pair) -> None:
    _ledger.Ledger("qwen", str(pair.folder / "spark1")).acquire({"run": "r1", "user": "alice", "host": "ctl1"}, time.time() - 1)
    pair.nodes[1].reboot("b2")
    pair.turns(12)
    assert [node.starts for node in pair.nodes] == [2, 2]


def test_the_heads_agent_is_killed_after_the_worker_was_started(pair: Pair) -> None:
    for node in pair.nodes:
        node.reboot("b2")
    for _turn in range(20):
        pair.turns(1)
        if pair.nodes[1].running:
            break
    assert pair.nodes[0].starts == 1 and pair.lock.exists()
    # What it knew is what it had written.
    again = Node(pair.nodes[0].config, pair.nodes[0].root)
    again.running, again.boot = pair.nodes[0].running, "b2"
    pair.nodes[0] = pair.head.node = again
    head = subject.Head(again, pair.head.journal)
    head._reports = pair.head._reports
    pair.head._decision = subject._autostart.Decision({})
    for _turn in range(8):
        pair.worker.turn()
        head.turn()
        pair.head._decision, pair.head._watching = head._decision, head._watching
    assert [node.starts for node in pair.nodes] == [2, 2] and not pair.lock.exists()
    assert "Serves again" in pair.text(0)


def test_a_worker_whose_head_is_silent_tells_it_after_some_looks(pair: Pair) -> None:
    assert pair.worker._channel is not None
    pair.worker._channel.close()
    pair.worker._channel = None
    pair.worker.config = {**pair.worker.config, "port": 1}
    for _turn in range(2):
        pair.worker.turn()
    assert "No agent answers" not in pair.text(1)
    for _turn in range(3):
        pair.worker.turn()
    assert pair.text(1).count("No agent answers at the head: Connection refused.") == 1


def test_a_worker_with_another_token_is_told_of_at_the_head(pair: Pair) -> None:
    assert pair.worker._channel is not None
    pair.worker._channel.close()
    pair.worker._channel = None
    pair.worker.config = {**pair.worker.config, "token": "wrong"}
    pair.worker.turn()
    deadline = time.monotonic() + 5
    while "hung up on" not in pair.text(0) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert "<4>qwen: 127.0.0.2 was hung up on: it has another token. A deploy gives all nodes the same settings again.\n" in pair.text(0)


def test_a_worker_that_has_called_again_is_not_silenced_by_the_end_of_its_call_before(pair: Pair) -> None:
    before, pair.worker._channel = pair.worker._channel, None
    pair.turns(1)
    newest = pair.head._reports[1]
    assert before is not None
    before.close()
    deadline = time.monotonic() + 5
    # The head's listener and the new call's thread are left.
    while len(set(threading.enumerate()) - pair.others) > 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(set(threading.enumerate()) - pair.others) == 2 and pair.head._reports[1] is newest


def test_a_line_for_the_journal_is_one_line() -> None:
    said: list[str] = []
    subject.Journal("qwen", said.append).say((3, "Start 1 failed.\nTraceback:  x"))
    assert said == ["<3>qwen: Start 1 failed. Traceback: x\n"]


def test_without_settings_it_ends(capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path) -> None:
    assert subject.main([str(tmp_path / "none.json")]) == 2
    assert "<3>There are no settings" in capsys.readouterr().err
