# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# ruff: noqa: E501 - a real line is as long as it is.
"""The watch over several ranks, with scripted looks and a clock that the test moves."""

from __future__ import annotations

import json
import pathlib
import typing as t

import pytest

from ansible_collections.sparkstack.inference.plugins.module_utils._timeline import Timeline
from ansible_collections.sparkstack.inference.plugins.plugin_utils._board import Board
from ansible_collections.sparkstack.inference.plugins.plugin_utils._progress import Progress, line, passed
from ansible_collections.sparkstack.inference.plugins.plugin_utils._watch import Options, Unreachable, Watch

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


def test_ready(tmp_path: pathlib.Path) -> None:
    group = Group(tmp_path, {}, looks(*HEAD), looks(*WORKER)).run()
    assert {v["verdict"] for v in group.verdicts.values()} == {"ready"}
    # The worker's task ends with the head's, though its own log says no such thing.
    assert group.ends == {"spark1": 6.0, "spark2": 6.0}
    said = [text for _when, text in group.lines if text.startswith("[spark1]")]
    assert said == ["[spark1] 1/9 parse_args, 0 s", "[spark1] 2/9 init_dist, 2 s", "[spark1] 4/9 load_weights, 4 s", "[spark1] 9/9 ready, 6 s"]


def test_the_waiting_head_ends_with_the_worker(tmp_path: pathlib.Path) -> None:
    group = Group(tmp_path, {}, looks(*HEAD[:2]), looks(*WORKER[:2], OOM, running=False, exit_code=137)).run()
    assert {(v["verdict"], v["culprit"], v["cause"]) for v in group.verdicts.values()} == {("failed", "spark2", "oom")}
    assert max(group.ends.values()) <= 4 + 3
    assert "torch.OutOfMemoryError: CUDA out of memory." in group.verdicts["spark1"]["evidence"]


def test_the_first_to_fail_is_not_to_blame(tmp_path: pathlib.Path) -> None:
    head = looks(*HEAD[:2], UNBALANCED, running=False, exit_code=137)
    worker = looks(*WORKER[:2], "", OOM, step=1.9, running=False, exit_code=137)
    group = Group(tmp_path, {}, head, worker).run()
    assert {(v["culprit"], v["cause"]) for v in group.verdicts.values()} == {("spark2", "oom")}
    assert max(group.ends.values()) <= 4 + 5


def test_health_counts(tmp_path: pathlib.Path) -> None:
    sick = looks(*HEAD, healthy=False)
    group = Group(tmp_path, {"timeout": 60}, sick, looks(*WORKER)).run()
    assert {(v["verdict"], v["over"]) for v in group.verdicts.values()} == {("starting", True)}


def test_until(tmp_path: pathlib.Path) -> None:
    group = Group(tmp_path, {"until": "load_weights"}, looks(*HEAD[:3]), looks(*WORKER[:3])).run()
    assert {(v["verdict"], v["phase"], v["over"]) for v in group.verdicts.values()} == {("starting", "load_weights", False)}
    assert max(group.ends.values()) <= 5


def test_stalled(tmp_path: pathlib.Path) -> None:
    group = Group(tmp_path, {}, looks(*HEAD[:3]), looks(*WORKER[:3])).run()
    assert {v["verdict"] for v in group.verdicts.values()} == {"stalled"}
    assert 240 <= max(group.ends.values()) <= 250
    beats = [text for when, text in group.lines if when > 10]
    assert beats[0] == "[spark1] 4/9 load_weights, 34 s; [spark2] 4/9 load_weights, 33 s"
    assert len(beats) == 8


def test_reading_is_progress(tmp_path: pathlib.Path) -> None:
    loading = looks(*WORKER[:3])

    def worker(now: float) -> dict[str, t.Any]:
        return {**loading(now), "activity": {"read_bytes": int(now - START) * 50_000_000, "memory_bytes": None, "cpu_seconds": None}}

    group = Group(tmp_path, {"timeout": 900}, looks(*HEAD[:3]), worker).run()
    assert {(v["verdict"], v["over"]) for v in group.verdicts.values()} == {("starting", True)}


@pytest.mark.parametrize("verdict", ["starting", "failed"])
def test_judge_now(tmp_path: pathlib.Path, verdict: str) -> None:
    worker = looks(WORKER[0]) if verdict == "starting" else looks(WORKER[0] + OOM, running=False, exit_code=137)
    group = Group(tmp_path, {"timeout": 0}, looks(HEAD[0]), worker).run()
    assert {v["verdict"] for v in group.verdicts.values()} == {verdict}
    # A failure is looked at closely before the verdict stands.
    assert max(group.ends.values()) <= 2
    assert group.lines == []


def test_judge_now_looks_twice_before_it_says_stalled(tmp_path: pathlib.Path) -> None:
    old = "[2026-11-29 22:42:02] server_args=ServerArgs()\n[2026-11-29 22:42:03 TP0] Load weight begin. avail mem=1 GB\n"

    def quiet(now: float) -> dict[str, t.Any]:
        return {**looks(old)(now), "now": now + 1000, "activity": {"read_bytes": int(now - START) << 22}}

    group = Group(tmp_path, {"timeout": 0}, quiet, quiet).run()
    assert {v["verdict"] for v in group.verdicts.values()} == {"starting"}


def test_no_worker(tmp_path: pathlib.Path) -> None:
    group = Group(tmp_path, {}, looks(*HEAD[:2]), absent).run()
    assert {(v["verdict"], v["culprit"]) for v in group.verdicts.values()} == {("stalled", "spark2")}
    assert (0.0, "[spark2] no container yet") in group.lines


def test_a_host_that_does_not_take_part(tmp_path: pathlib.Path) -> None:
    group = Group(tmp_path, {}, looks(*HEAD[:2]), None).run()
    (verdict,) = group.verdicts.values()
    assert (verdict["verdict"], verdict["culprit"]) == ("failed", "spark2")
    assert "its task has not begun after 30 s" in verdict["summary"]


def test_a_host_whose_watch_breaks(tmp_path: pathlib.Path) -> None:
    def broken(now: float) -> dict[str, t.Any]:
        if now > START + 5:
            raise RuntimeError("odd")
        return looks(*WORKER[:2])(now)

    group = Group(tmp_path, {}, looks(*HEAD[:2]), broken).run()
    assert str(group.errors["spark2"]) == "odd"
    assert group.verdicts["spark1"]["summary"] == "Nothing is known of spark2 (rank 1) any more: its watch ended: odd."
    assert group.ends["spark1"] <= 8


def test_a_node_that_comes_back(tmp_path: pathlib.Path) -> None:
    def flaky(now: float) -> dict[str, t.Any]:
        if START + 3 < now < START + 15:
            raise Unreachable("Docker does not answer on /var/run/docker.sock: gone.")
        return looks(*WORKER)(now)

    group = Group(tmp_path, {}, looks(*HEAD), flaky).run()
    assert {v["verdict"] for v in group.verdicts.values()} == {"ready"}
    assert any("Docker does not answer" in text for _when, text in group.lines)


def test_a_node_that_stays_away(tmp_path: pathlib.Path) -> None:
    def gone(now: float) -> dict[str, t.Any]:
        raise Unreachable("Docker does not answer on /var/run/docker.sock: gone.")

    group = Group(tmp_path, {}, looks(*HEAD[:2]), gone).run()
    assert {(v["verdict"], v["culprit"]) for v in group.verdicts.values()} == {("failed", "spark2")}
    assert 30 <= max(group.ends.values()) <= 33


def test_a_host_that_writes_no_more(tmp_path: pathlib.Path) -> None:
    group = Group(tmp_path, {}, loading(HEAD[:3]), loading(WORKER[:3]))
    stuck = group.watches["spark2"].turn
    # Its look hangs from the fifth second on.
    group.watches["spark2"].turn = lambda start: stuck(start) if group.clock.now < START + 5 else None
    with pytest.raises(AssertionError, match="spark2"):
        group.run(100)
    assert group.verdicts["spark1"]["summary"] == "Nothing is known of spark2 (rank 1) any more: no word from it for 46 s."


@pytest.mark.parametrize("jump", [600.0, 3600.0])
def test_a_controller_that_slept_or_whose_clock_was_set(tmp_path: pathlib.Path, jump: float) -> None:
    group = Group(tmp_path, {"timeout": 9000}, looks(*HEAD[:3]), looks(*WORKER[:3]))
    head = group.watches["spark1"].turn
    jumped: list[float] = []

    def turn(start: float) -> dict[str, t.Any] | None:
        if group.clock.now > START + 100 and not jumped:
            jumped.append(jump)
            group.clock.now += jump
        return head(start)

    group.watches["spark1"].turn = turn
    with pytest.raises(AssertionError, match="go on"):
        group.run(jump + 200)
    assert jumped and not group.verdicts


def test_progress_of_any_kind() -> None:
    record = looks(HEAD[0])(START + 1)
    progress = Progress()
    assert progress.quiet(record, START) == 0.0
    assert progress.quiet(record, START + 50) == 50.0
    moved = {**record, "activity": {"read_bytes": 5 << 20, "memory_bytes": 0, "cpu_seconds": 1.0}}
    assert progress.quiet(moved, START + 60) == 0.0
    # A page or two are no progress, a core at work is only told.
    idle = {**record, "activity": {"read_bytes": (5 << 20) + 4096, "memory_bytes": 4096, "cpu_seconds": 11.0}}
    assert progress.quiet(idle, START + 70) == 10.0
    assert progress.busy
    # The clock was set back and ahead: no second of it counts.
    assert progress.quiet(idle, START - 300) == 10.0
    assert progress.quiet(idle, START + 3300) == 10.0
    assert progress.quiet(idle, START + 3310) == 20.0


def test_lines() -> None:
    record = {
        "node": "spark2",
        "started": True,
        "running": True,
        "seconds": 88.4,
        "seconds_in_phase": 80.0,
        "reading": {"phase": "load_weights", "progress": {"percent": 71, "done": 5, "total": 7}},
    }
    assert line(record) == "[spark2] 4/9 load_weights 71% (5/7), 88 s, about 32 s left in this phase"
    assert line({**record, "running": False, "exit_code": 137}) == "[spark2] 4/9 load_weights 71% (5/7), ended with exit code 137, after 88 s"
    assert line({"node": "spark2", "started": False}) == "[spark2] no container yet"
    assert line({"node": "spark2", "unreachable": "gone"}) == "[spark2] gone"
    read = {**record, "activity": {"read_bytes": 42.1e9, "memory_bytes": 3e9}, "rate": 1.2e9}
    assert line(read) == "[spark2] 4/9 load_weights 71% (5/7), 42.1 GB read at 1.20 GB/s, 88 s, about 32 s left in this phase"
    # From the page cache nothing is read.
    assert line({**read, "rate": 0.0}) == "[spark2] 4/9 load_weights 71% (5/7), 3.0 GB in memory, 88 s, about 32 s left in this phase"
    told = {**record, "reading": {"phase": "graph_capture", "progress": {"percent": 2, "done": 1, "total": 58, "remaining_seconds": 3263}}}
    assert line(told) == "[spark2] 6/9 graph_capture 2% (1/58), 88 s, about 3263 s left in this phase"
    assert line({**record, "paused": True}).startswith("[spark2] 4/9 load_weights 71% (5/7) paused, 88 s")


def test_phases_between_two_looks_are_told() -> None:
    phases = [{"phase": "init_dist", "seconds": 11.0}, {"phase": "create_runner", "seconds": None}, {"phase": "load_weights", "seconds": 2.04}]
    record = {"node": "spark1", "reading": {"phases": [*phases, {"phase": "kv_cache", "seconds": None}]}}
    assert passed(record, "init_dist") == ["[spark1] 4/9 load_weights, took 2.0 s"]
    assert passed(record, "load_weights") == [] and passed(record, None) == []


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


def test_a_cut_link_is_seen_long_before_the_phase_is_over(tmp_path: pathlib.Path) -> None:
    group = Group(tmp_path, {}, on_the_fabric("spark1", hanging(HEAD), 5), on_the_fabric("spark2", hanging(WORKER), 5))
    silent = {"small": None, "large": None}
    for host, other in (("spark1", "spark2"), ("spark2", "spark1")):
        fabric = {"interface": "enp1s0f0np0", "address": ADDRESSES[host], "mtu": 1500, "carrier": True}
        group.scene[host] = {"fabric": fabric, "reach": {ADDRESSES[other]: dict(silent)}, "stacks": [{"pid": 1, "name": "python", "text": "wait"}]}
    group.run()
    verdict = group.verdicts["spark1"]
    assert verdict == group.verdicts["spark2"]
    assert (verdict["verdict"], verdict["cause"], verdict["phase"]) == ("stalled", "net_unreachable", "init_dist")
    assert 30 <= group.ends["spark1"] < 45
    # Each host looked closely once, and its look is in the verdict.
    assert sorted(host for host, _when, _arguments in group.closer) == ["spark1", "spark2"]
    assert [arguments["peers"] for host, _when, arguments in sorted(group.closer)] == [["192.168.200.12"], ["192.168.200.11"]]
    assert all(node["closeup"]["stacks"] for node in verdict["nodes"].values())


def test_a_fabric_that_never_answered_is_not_blamed(tmp_path: pathlib.Path) -> None:
    group = Group(tmp_path, {}, on_the_fabric("spark1", hanging(HEAD), 0), on_the_fabric("spark2", hanging(WORKER), 0)).run()
    assert group.verdicts["spark1"]["cause"] is None and group.ends["spark1"] >= 120


def test_ranks_that_move_after_the_close_look(tmp_path: pathlib.Path) -> None:
    slow = Group(tmp_path, {"stall_timeouts": {"init_dist": 20}}, looks(*HEAD[:2], step=2.0), looks(*WORKER, step=2.0))
    head = slow.watches["spark1"].probe

    def late(state: dict[str, t.Any], peers: list[str]) -> dict[str, t.Any]:
        # The worker's look takes it to ready; the head follows after the group has been looked at closely.
        return looks(*HEAD, step=2.0)(slow.clock.now) if slow.closer and slow.clock.now - START > slow.closer[0][1] else head(state, peers)

    slow.watches["spark1"].probe = late
    slow.watches["spark2"].probe = lambda _state, _peers: looks(*WORKER[:2])(slow.clock.now) if not slow.closer else looks(*WORKER)(slow.clock.now)
    slow.run()
    assert slow.closer and slow.verdicts["spark1"]["verdict"] == "ready"


def test_no_close_look_where_the_log_says_all(tmp_path: pathlib.Path) -> None:
    usage = "usage: launch_server.py [-h]\nlaunch_server.py: error: unrecognized arguments: --max-num-seqz 8\n"
    group = Group(tmp_path, {}, looks(*HEAD[:2]), looks(usage, running=False, exit_code=2)).run()
    assert group.verdicts["spark1"]["cause"] == "bad_flag" and not group.closer


@pytest.mark.parametrize(("mode", "count"), [("always", 2), ("never", 0)])
def test_the_close_look_that_the_user_wants(tmp_path: pathlib.Path, mode: str, count: int) -> None:
    group = Group(tmp_path, {"closer_look": mode, "timeout": 0}, looks(*HEAD), looks(*WORKER))
    group.clock.now += 60
    group.run()
    assert group.verdicts["spark1"]["verdict"] == "ready" and len(group.closer) == count
    assert all(bool(node["closeup"] is not None) is bool(count) for node in group.verdicts["spark1"]["nodes"].values())


def loading(steps: list[str], **last: t.Any) -> t.Callable[[float], dict[str, t.Any]]:
    """A rank that reads 50 MB more at each look."""
    base = looks(*steps, **last)
    return lambda now: {**base(now), "activity": {"read_bytes": int(now - START) * 50_000_000, "memory_bytes": None, "cpu_seconds": None}}


@pytest.mark.parametrize(
    ("options", "worker", "verdict"),
    [
        ({"timeout": 0, "closer_look": "always"}, loading(WORKER[:3]), "starting"),
        # The worker has met what it does not recover from, and its other processes read on.
        ({"closer_look": "when_needed"}, loading([*WORKER[:3], OOM]), "failed"),
        ({"closer_look": "always"}, loading([*WORKER[:3], OOM]), "failed"),
    ],
)
def test_ranks_that_move_are_looked_at_closely_once(tmp_path: pathlib.Path, options: dict[str, t.Any], worker: t.Any, verdict: str) -> None:
    group = Group(tmp_path, options, loading(HEAD[:3]), worker)
    group.clock.now += 10
    group.run(60)
    assert {v["verdict"] for v in group.verdicts.values()} == {verdict}
    assert sorted(host for host, _when, _arguments in group.closer) == HOSTS
    assert all(node["closeup"] is not None for node in group.verdicts["spark1"]["nodes"].values())


def test_a_node_that_does_not_answer_is_told_at_once_where_nothing_is_waited_for(tmp_path: pathlib.Path) -> None:
    def gone(now: float) -> dict[str, t.Any]:
        raise Unreachable("Docker does not answer on /var/run/docker.sock")

    verdict = Group(tmp_path, {"timeout": 0}, looks(*HEAD[:2]), gone).run().verdicts["spark1"]
    assert (verdict["verdict"], verdict["culprit"]) == ("failed", "spark2")
    assert "Docker does not answer" in verdict["summary"] and "spark2" in verdict["remedy"]


def test_a_container_that_is_removed_while_it_is_watched(tmp_path: pathlib.Path) -> None:
    def worker(now: float) -> dict[str, t.Any]:
        return absent(now) if now >= START + 7 else looks(*WORKER[:3])(now)

    group = Group(tmp_path, {}, looks(*HEAD[:3]), worker).run()
    (summary,) = {v["summary"] for v in group.verdicts.values()}
    assert summary == "spark2 (rank 1) was killed from outside in phase load_weights: Its container was removed while it ran."
    assert {(v["verdict"], v["culprit"], v["cause"]) for v in group.verdicts.values()} == {("failed", "spark2", "killed")}
    assert max(group.ends.values()) <= 7 + 3
    assert (7.0, "[spark2] its container was removed") in group.lines


def test_a_container_that_is_removed_after_its_end(tmp_path: pathlib.Path) -> None:
    """docker run --rm: what it said before counts."""

    def worker(now: float) -> dict[str, t.Any]:
        return absent(now) if now >= START + 7 else looks(*WORKER[:2], OOM, step=3)(now)

    group = Group(tmp_path, {"closer_look": "never"}, looks(*HEAD[:2]), worker).run()
    assert {(v["culprit"], v["cause"]) for v in group.verdicts.values()} == {("spark2", "oom")}


def test_a_node_whose_docker_goes_while_its_peers_tell_of_it(tmp_path: pathlib.Path) -> None:
    left = "[2026-11-29 22:42:14 TP0] Scheduler hit an exception: Traceback (most recent call last):\n"
    left += "torch.distributed.DistBackendError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [192.168.200.12]:4242\n\n"

    def worker(now: float) -> dict[str, t.Any]:
        if now >= START + 7:
            raise Unreachable("Docker does not answer on /var/run/docker.sock: gone.")
        return looks(*WORKER[:3])(now)

    def head(now: float) -> dict[str, t.Any]:
        return looks(*HEAD[:3], left, running=False, exit_code=1, step=3)(now)

    group = Group(tmp_path, {}, head, worker).run()
    verdict = group.verdicts["spark1"]
    assert (verdict["verdict"], verdict["culprit"], verdict["phase"]) == ("failed", "spark2", "load_weights")
    assert "in phase load_weights" in verdict["summary"]
    assert verdict["summary"].endswith("; Docker does not answer on /var/run/docker.sock: gone.")
    assert verdict["evidence"][0] == "spark2: Docker does not answer on /var/run/docker.sock: gone"
    assert verdict["nodes"]["spark2"]["state"] == "unreachable"


def test_a_rank_that_ended_before_its_node_fell_silent(tmp_path: pathlib.Path) -> None:
    def worker(now: float) -> dict[str, t.Any]:
        if now >= START + 5:
            raise Unreachable("Docker does not answer on /var/run/docker.sock: gone.")
        return looks(*WORKER[:2], OOM, running=False, exit_code=137)(now)

    group = Group(tmp_path, {"closer_look": "never"}, looks(*HEAD[:2]), worker).run()
    assert {(v["culprit"], v["cause"]) for v in group.verdicts.values()} == {("spark2", "oom")}


def test_a_node_that_was_never_seen(tmp_path: pathlib.Path) -> None:
    def gone(now: float) -> dict[str, t.Any]:
        raise Unreachable("the node cannot be reached: no route to host")

    group = Group(tmp_path, {"timeout": 0}, looks(*HEAD[:2]), gone).run()
    verdict = group.verdicts["spark1"]
    assert verdict["summary"] == "spark2 (rank 1) could not be looked at: the node cannot be reached: no route to host."
    assert "meanwhile" not in verdict["remedy"] and "any more" not in verdict["summary"]


def test_a_slow_look_does_not_set_the_nodes_clock_off(tmp_path: pathlib.Path) -> None:
    """200 MB of new log: the look takes 14 s, and the node's clock is read at its beginning."""
    group = Group(tmp_path, {}, looks(*HEAD[:3]), looks(*WORKER[:3]))

    ahead = 0.0

    def slow(_state: t.Any, _peers: list[str]) -> dict[str, t.Any]:
        found = {**looks(*HEAD[:3])(group.clock.now), "now": group.clock.now + ahead}
        group.clock.now += 14
        return found

    watch = group.watches["spark1"]
    watch.probe = slow
    assert watch._look(group.clock.now)["clock_offset"] == 0.0
    # A quick look knows better; a slow one after it takes nothing of that back.
    ahead = 3.0
    watch.probe = lambda _state, _peers: {**looks(*HEAD[:3])(group.clock.now), "now": group.clock.now + 3}
    assert watch._look(group.clock.now)["clock_offset"] == 3.0
    watch.probe = slow
    assert watch._look(group.clock.now)["clock_offset"] == 3.0
    # Unless the clock was set meanwhile.
    watch.probe = lambda _state, _peers: {**looks(*HEAD[:3])(group.clock.now), "now": group.clock.now - 300}
    assert watch._look(group.clock.now)["clock_offset"] == -300.0


def test_judge_now_tells_of_a_paused_rank(tmp_path: pathlib.Path) -> None:
    group = Group(tmp_path, {"timeout": 0}, looks("".join(HEAD[:3])), looks("".join(WORKER[:3]), paused=True)).run()
    verdict = group.verdicts["spark1"]
    assert (verdict["verdict"], verdict["culprit"]) == ("stalled", "spark2")
    assert verdict["summary"] == "The ranks cannot go on in phase load_weights: the container of spark2 (rank 1) is paused."


def test_judge_now_tells_of_stopped_processes(tmp_path: pathlib.Path) -> None:
    group = Group(tmp_path, {"timeout": 0, "closer_look": "always"}, looks(*HEAD[:3]), looks(*WORKER[:3]))
    group.scene["spark2"] = {"processes": [{"pid": 7, "name": "sglang", "state": "T"}]}
    verdict = group.run().verdicts["spark1"]
    assert (verdict["verdict"], verdict["culprit"]) == ("stalled", "spark2")
    assert "kill -CONT" in verdict["remedy"]


def test_a_rank_that_docker_restarts_is_told_so(tmp_path: pathlib.Path) -> None:
    group = Group(tmp_path, {"timeout": 20}, looks(*HEAD[:2]), looks(*WORKER[:2], restarts=7)).run()
    assert any(text.startswith("[spark2] 2/9 init_dist, restarted by Docker 7 times") for _when, text in group.lines)
    assert group.verdicts["spark1"]["nodes"]["spark2"]["restarts"] == 7
