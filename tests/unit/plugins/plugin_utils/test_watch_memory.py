# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The curve of a node's memory that a watch hands over with its verdict."""

from __future__ import annotations

import json
import pathlib
import typing as t

from watching import HEAD, START, WORKER, Group, looks

GIB = 1 << 30


def shrinking(look: t.Callable[[float], dict[str, t.Any]], until: float) -> t.Callable[[float], dict[str, t.Any]]:
    """A node whose memory goes down by a GiB a second, to so many of them."""

    def see(now: float) -> dict[str, t.Any]:
        return {**look(now), "memory": {"available": int(max(until, 120 - (now - START)) * GIB), "total": 128 * GIB}}

    return see


def test_each_node_has_its_own_curve(tmp_path: pathlib.Path) -> None:
    group = Group(tmp_path, {}, shrinking(looks(*HEAD), 100), shrinking(looks(*WORKER), 60)).run()
    nodes = json.loads(json.dumps(group.verdicts["spark1"]["nodes"]))
    assert group.verdicts["spark1"]["verdict"] == "ready"
    for node in nodes.values():
        curve = node["memory"]["curve"]
        assert node["memory"]["total"] == 128 * GIB
        assert curve[0] == [START, 120 * GIB] and curve == sorted(curve) and 5 <= len(curve) <= 8
        assert curve[-1][1] == int(120 - (curve[-1][0] - START)) * GIB


def test_half_an_hour_has_a_few_hundred_points_and_its_beginning(tmp_path: pathlib.Path) -> None:
    options = {"timeout": 1800, "closer_look": "never", "stall_timeouts": {"load_weights": 9000}}
    group = Group(tmp_path, options, shrinking(looks(*HEAD[:3]), 2), shrinking(looks(*WORKER[:3]), 2)).run()
    curve = group.verdicts["spark1"]["nodes"]["spark1"]["memory"]["curve"]
    assert len(curve) <= 310 and tuple(curve[0]) == (START, 120 * GIB) and curve[-1][0] - START > 1790


def test_where_nothing_is_known_there_is_none(tmp_path: pathlib.Path) -> None:
    nodes = Group(tmp_path, {}, looks(*HEAD), looks(*WORKER)).run().verdicts["spark1"]["nodes"]
    assert [node["memory"] for node in nodes.values()] == [None, None]
