# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""When the watch has the nodes looked at closely, and what the fabric's echoes tell it before."""

from __future__ import annotations

import pathlib
import typing as t

import pytest
from watching import ADDRESSES, HEAD, HOSTS, OOM, START, WORKER, Group, hanging, loading, looks, on_the_fabric


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
