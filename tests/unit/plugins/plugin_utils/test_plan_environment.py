# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the plan tells of an image that brings network variables of its own."""

from __future__ import annotations

import types
import typing as t

from test_planner import make, node

from ansible_collections.sparkstack.inference.plugins.plugin_utils import _plan_environment as subject
from ansible_collections.sparkstack.inference.plugins.plugin_utils import _screen

BAKED = {
    "environment": {"NCCL_IB_HCA": "rocep1s0f0", "NCCL_SOCKET_IFNAME": "eth0"},
    "files": [{"path": "/etc/nccl.conf", "values": {"NCCL_IB_USE_INLINE": "1", "TP_SOCKET_IFNAME": "eth0"}}],
}


def plan(action: str = "start", baked: t.Any = BAKED) -> t.Any:
    """Two ranks whose cables are in different ports."""
    launch = types.SimpleNamespace(environment=lambda rank: {"VLLM_HOST_IP": rank})
    requests = [
        types.SimpleNamespace(
            engine=types.SimpleNamespace(launch=launch),
            rank=f"192.168.200.1{number}",
            environment={"NCCL_IB_HCA": f"rocep1s0f{number}", "NCCL_SOCKET_IFNAME": f"enp1s0f{number}np{number}"},
        )
        for number in (0, 1)
    ]
    return types.SimpleNamespace(action=action, requests=requests, nodes=[types.SimpleNamespace(baked=baked)])


def test_each_rank_has_its_own_findings() -> None:
    told = [{finding["name"]: (finding["status"], finding["counts"]) for finding in subject.findings(plan(), rank)} for rank in (0, 1)]
    assert told[0]["NCCL_IB_HCA"] == ("same", "rocep1s0f0")
    assert told[1]["NCCL_IB_HCA"] == ("overridden", "rocep1s0f1")
    assert told[0]["NCCL_IB_USE_INLINE"] == ("left", "1")


def test_what_the_engine_gets_of_its_launch_counts_as_ours() -> None:
    made = plan(baked={"environment": {"VLLM_HOST_IP": "10.0.0.1"}})
    assert [(finding["status"], finding["counts"]) for finding in subject.findings(made, 1)] == [("overridden", "192.168.200.11")]


def test_notes_where_something_starts() -> None:
    assert subject.notes(plan()) == [
        "the image's own NCCL_IB_HCA=rocep1s0f0, NCCL_SOCKET_IFNAME=eth0 do not count: each node has its own value",
        "the image's own NCCL_IB_USE_INLINE=1 (/etc/nccl.conf) counts, and with some RDMA devices the first small message never arrives: "
        "set NCCL_IB_USE_INLINE in the recipe's environment or in nccl_env_extra",
        "the image's own TP_SOCKET_IFNAME=eth0 (/etc/nccl.conf) counts, and every node would use an interface of this name: "
        "set TP_SOCKET_IFNAME in the recipe's environment or in nccl_env_extra",
    ]


def test_no_notes_where_nothing_starts_or_nothing_is_known() -> None:
    assert [subject.notes(plan(action)) for action in ("none", "watch")] == [[], []]
    assert subject.notes(plan(baked={})) == []


def test_the_screen_tells_it_and_names_the_devices_that_are_used() -> None:
    rails = [{"netdev": f"enp1s0f{port}np{port}", "hca": f"rocep1s0f{port}", "used": port == 0} for port in (0, 1)]
    made = make([node(1, fabric__rails=rails, baked={"environment": {"GLOO_SOCKET_IFNAME": "eth0"}}), node(2)])
    assert (made.problems, made.action) == ([], "start")
    lines = _screen.screen(made)
    assert "  note       the image's own GLOO_SOCKET_IFNAME=eth0 does not count: each node has its own value" in lines
    (row,) = [line for line in lines if "192.168.200.11" in line]
    assert "rocep1s0f0 " in row and "rocep1s0f1" not in row
