# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The watch of ranks whose host, node, container or Docker goes, comes back or stands still."""

from __future__ import annotations

import pathlib
import typing as t

import pytest
from watching import HEAD, OOM, START, WORKER, Group, absent, loading, looks

from ansible_collections.sparkstack.inference.plugins.plugin_utils._watch import Unreachable


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
