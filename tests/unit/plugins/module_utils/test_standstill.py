# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# ruff: noqa: E501 - a case is one line.
"""What the nodes tell beside the logs: the verdict, the cause and the culprit that come out of it, and whether the sentence names what it must."""

from __future__ import annotations

import typing as t

import pytest
from test_diagnosis import DEAD, HEAD_UP, SERVING, WORKER_UP, rank, upto

from ansible_collections.sparkstack.inference.plugins.module_utils._diagnosis import judge
from ansible_collections.sparkstack.inference.plugins.module_utils._standstill import spins

GIB = 1 << 30
ADDRESS = {0: "192.168.200.11", 1: "192.168.200.12", 2: "192.168.200.13"}
NCCL = "[2026-11-29 22:{m}:15 TP0] sglang is using nccl==2.28.9\n"
VANISHED = "[2026-11-29 22:{m}:44] Scheduler or DataParallelController 6843 terminated with -9\n"
NO_ROUTE = (
    "[W1129 22:{{m}}:{s}.128928280 socket.cpp:767] [c10d] The client socket has failed to connect to [10.77.1.1]:20000 (errno: 113 - No route to host).\n"
)
KILLED = "Memory cgroup out of memory: Killed process 4242 (sglang::schedul) total-vm:9437184kB, anon-rss:4194304kB"


def echo(small: float | None = 0.0002, large: float | None = 0.0003, **known: t.Any) -> dict[str, t.Any]:
    return {"small": small, "large": large, **known}


def scene(number: int, reach: t.Mapping[int, t.Any] | None = None, carrier: bool = True, **known: t.Any) -> dict[str, t.Any]:
    fabric = {"interface": "enp1s0f0np0", "address": ADDRESS[number], "prefix": 24, "mtu": 9000, "carrier": carrier, "speed_mbps": 200000}
    return {"fabric": fabric, "reach": {ADDRESS[other]: answer for other, answer in (reach or {}).items()}, **known}


def pair(step: int, head: dict[str, t.Any], worker: dict[str, t.Any], quiet: float = 40.0, extra: str = "", **known: t.Any) -> list[dict[str, t.Any]]:
    return [
        rank(0, upto(step) + extra, quiet_seconds=quiet, scene=head, **known),
        rank(1, upto(step), quiet_seconds=quiet, scene=worker, **known),
    ]


def nccl(**facts: t.Any) -> dict[str, t.Any]:
    return {"version": "2.28.9", "network": "IB", "started": 1, "complete": 0, "channels": {}, "devices": ["rocep1s0f0:1/RoCE"], **facts}


def with_nccl(record: dict[str, t.Any], facts: dict[str, t.Any]) -> dict[str, t.Any]:
    return {**record, "reading": {**record["reading"], "nccl": facts}}


GONE = echo(None, None, answered=True)
MUTE = echo(None, None, neighbour=True)

# records, verdict, cause, culprit, what the summary, the remedy or the evidence must name
CASES: dict[str, tuple[list[dict[str, t.Any]], str, str | None, str | None, tuple[str, ...]]] = {
    "a link that is cut, long before the phase's own limit": (
        pair(3, scene(0, {1: GONE}), scene(1, {0: GONE})),
        "stalled",
        "net_unreachable",
        None,
        ("spark1 and spark2", "192.168.200.12"),
    ),
    "a link that is cut for a moment": (pair(3, scene(0, {1: GONE}), scene(1, {0: GONE}), quiet=12.0), "starting", None, None, ()),
    "one side heard the other again": (pair(3, scene(0, {1: GONE}), scene(1, {0: echo()})), "starting", None, None, ()),
    "a firewall that drops the echo only": (pair(3, scene(0, {1: MUTE}), scene(1, {0: MUTE})), "starting", None, None, ()),
    "a hardware address that nobody tells": (
        pair(3, scene(0, {1: echo(None, None, neighbour=False)}), scene(1)),
        "stalled",
        "net_unreachable",
        None,
        ("fabric",),
    ),
    "a port without carrier": (pair(3, scene(0), scene(1, carrier=False)), "stalled", "net_unreachable", "spark2", ("enp1s0f0np0", "cable")),
    "a rank that finds no route, and the port that is down": (
        [
            rank(0, upto(1), quiet_seconds=20.0, scene=scene(0, carrier=False)),
            rank(1, upto(1) + NO_ROUTE.format(s=15) + NO_ROUTE.format(s=45), quiet_seconds=20.0, scene=scene(1, carrier=False)),
        ],
        "stalled",
        "net_unreachable",
        None,
        ("enp1s0f0np0", "No route to host", "cable"),
    ),
    "another MTU on the way": (
        pair(1, scene(0, {1: echo(large=None)}), scene(1, {0: echo(large=None)}), quiet=130.0),
        "stalled",
        "net_unreachable",
        None,
        ("MTU", "9000"),
    ),
    "another MTU on the way of ranks that get along": (
        pair(3, scene(0, {1: echo(large=None)}), scene(1, {0: echo(large=None)}), quiet=40.0),
        "starting",
        None,
        None,
        (),
    ),
    "a compiler was killed and its caller goes on": (
        [rank(0, upto(4), quiet_seconds=40.0, busy=True), rank(1, upto(4), quiet_seconds=40.0, busy=True, scene={"oom_kills": 1})],
        "starting",
        None,
        None,
        (),
    ),
    "a group that serves and once lost a compiler": ([SERVING[0], {**SERVING[1], "scene": {"oom_kills": 1}}], "ready", None, None, ()),
    "a worker on an overlay network": (
        pair(1, scene(0, sockets={"port": 20000, "listening": True, "owner": {"own": True}, "connected": ["10.0.1.7"], "dialing": []}), scene(1), quiet=130.0),
        "stalled",
        None,
        None,
        ("do not find each other",),
    ),
    "one of three nodes is cut off": (
        [
            rank(0, upto(1), quiet_seconds=40.0, scene=scene(0, {1: echo(), 2: GONE})),
            rank(1, upto(1), quiet_seconds=40.0, scene=scene(1, {0: echo(), 2: GONE})),
            rank(2, upto(1), quiet_seconds=40.0, scene=scene(2, {0: GONE, 1: GONE})),
        ],
        "stalled",
        "net_unreachable",
        "spark3",
        (),
    ),
    "a serving group whose link is cut": (
        [{**SERVING[0], "scene": scene(0, {1: GONE})}, {**SERVING[1], "scene": scene(1, {0: GONE})}],
        "stalled",
        "net_unreachable",
        None,
        ("cannot serve",),
    ),
    "a serving group whose worker is paused": ([SERVING[0], {**SERVING[1], "paused": True}], "stalled", None, "spark2", ("paused", "unpause")),
    "a worker paused while it loads": (
        [rank(0, upto(3), quiet_seconds=40.0), rank(1, upto(3), quiet_seconds=40.0, paused=True)],
        "stalled",
        None,
        "spark2",
        ("paused",),
    ),
    "a worker whose processes were stopped": (
        [
            rank(0, upto(3), quiet_seconds=40.0),
            rank(1, upto(3), quiet_seconds=40.0, closeup={"processes": [{"pid": 7, "name": "sglang::scheduler_TP1", "state": "T"}]}),
        ],
        "stalled",
        None,
        "spark2",
        ("sglang::scheduler_TP1", "-CONT"),
    ),
    "no container on the worker": ([rank(0, upto(1), quiet_seconds=40.0), rank(1, None)], "stalled", None, "spark2", ("no container on spark2",)),
    "a worker that may still come": ([rank(0, upto(1), quiet_seconds=20.0), rank(1, None)], "starting", None, None, ()),
    "a stranger on the rendezvous port": (
        pair(
            1,
            scene(
                0,
                sockets={
                    "port": 20000,
                    "listening": True,
                    "owner": {"pid": 99, "process": "nc", "container": None, "own": False},
                    "connected": [],
                    "dialing": [],
                },
            ),
            scene(1),
        ),
        "stalled",
        "port_in_use",
        "spark1",
        ("nc (pid 99)", "20000"),
    ),
    "a worker that gets no answer": (
        pair(
            1,
            scene(0, sockets={"port": 20000, "listening": True, "owner": {"own": True}, "connected": [], "dialing": []}),
            scene(1, sockets={"port": 20000, "listening": False, "owner": None, "connected": [], "dialing": ["192.168.200.11"]}),
            quiet=130.0,
        ),
        "stalled",
        "net_unreachable",
        "spark2",
        ("20000", "192.168.200.11"),
    ),
    "a worker that has not come to the rendezvous": (
        pair(1, scene(0, sockets={"port": 20000, "listening": True, "owner": {"own": True}, "connected": [], "dialing": []}), scene(1), quiet=130.0),
        "stalled",
        None,
        "spark2",
        ("has not reached the rendezvous",),
    ),
    "all have met, and then silence": (
        pair(
            1,
            scene(0, sockets={"port": 20000, "listening": True, "owner": {"own": True}, "connected": [ADDRESS[1]], "dialing": []}),
            scene(1),
            quiet=130.0,
            extra=NCCL,
        ),
        "stalled",
        "nccl_hang",
        None,
        (),
    ),
    "the kernel killed a worker that ended with 0": (
        [rank(0, upto(3)), rank(1, upto(3), running=False, exit_code=0, scene={"kernel": [{"time": 1.0, "text": KILLED, "cause": "oom"}]})],
        "failed",
        "oom",
        "spark2",
        ("Killed process 4242",),
    ),
    "the kernel killed a process of an engine that goes on": (
        [rank(0, upto(3)), rank(1, upto(3) + VANISHED, scene={"oom_kills": 1, "kernel": [{"time": 1.0, "text": KILLED, "cause": "oom"}]})],
        "failed",
        "oom",
        "spark2",
        ("Killed process 4242",),
    ),
    "another container's end is not this one's": (
        [rank(0, upto(5) + HEAD_UP, **DEAD), rank(1, upto(5) + WORKER_UP, closeup={"kernel": [{"time": 1.0, "text": KILLED, "cause": "oom", "own": False}]})],
        "failed",
        "killed",
        "spark1",
        (),
    ),
    "the kernel killed a process and nobody noticed": (
        [rank(0, upto(3), quiet_seconds=40.0), rank(1, upto(3), quiet_seconds=40.0, scene={"oom_kills": 1})],
        "stalled",
        "oom",
        "spark2",
        ("OOM killer",),
    ),
    "who holds the memory": (
        [
            rank(0, upto(3)),
            rank(
                1,
                upto(3),
                oom_killed=True,
                **DEAD,
                closeup={
                    "memory": {"total_bytes": 120 * GIB, "available_bytes": 9 * GIB},
                    "holders": [
                        {"kind": "page_cache", "name": "page cache", "bytes": 70 * GIB, "own": False},
                        {"kind": "container", "name": "squatter", "image": "comfyui:1", "bytes": 14 * GIB, "own": False},
                        {"kind": "process", "name": "sshd", "bytes": GIB, "own": False},
                    ],
                },
            ),
        ],
        "failed",
        "oom",
        "spark2",
        ("The container squatter of image comfyui:1 holds 14.0 GiB on spark2", "docker stop squatter", "9.0 GiB of 120.0 GiB"),
    ),
    "the node was restarted": (
        [rank(0, upto(5) + HEAD_UP), rank(1, upto(5) + WORKER_UP, running=False, exit_code=255, began=1000.0, finished=2000.0, scene={"booted": 2100.0})],
        "failed",
        "killed",
        "spark2",
        ("restarted",),
    ),
    "Docker was restarted": (
        [
            rank(0, upto(5) + HEAD_UP),
            rank(
                1,
                upto(5) + WORKER_UP + "[2026-11-29 22:{m}:58] SIGTERM received. signum=15. Draining requests and shutting down...\n",
                running=False,
                exit_code=137,
                began=1000.0,
                finished=2000.0,
                scene={"booted": 10.0, "docker_started": 2003.0},
            ),
        ],
        "failed",
        "killed",
        "spark2",
        ("Docker was restarted",),
    ),
    "NCCL waits for a rank": (
        [
            with_nccl(rank(0, upto(1) + NCCL, quiet_seconds=130.0), nccl()),
            with_nccl(rank(1, upto(1), quiet_seconds=130.0), {"version": "2.28.9", "bootstrap": "lo:127.0.0.1"}),
        ],
        "stalled",
        "nccl_hang",
        "spark2",
        ("has not come",),
    ),
    "NCCL's lines are held back": (
        [with_nccl(rank(0, upto(1) + NCCL, quiet_seconds=130.0), nccl()), with_nccl(rank(1, upto(1), quiet_seconds=130.0), {})],
        "stalled",
        "nccl_hang",
        None,
        ("NCCL_DEBUG_FILE",),
    ),
    "NCCL connects nobody": (
        [with_nccl(r, nccl()) for r in (rank(0, upto(1) + NCCL, quiet_seconds=130.0), rank(1, upto(1), quiet_seconds=130.0))],
        "stalled",
        "nccl_hang",
        None,
        ("over IB", "NCCL_IB_GID_INDEX"),
    ),
    "NCCL is complete on one side": (
        [with_nccl(rank(0, upto(1), quiet_seconds=130.0), nccl()), with_nccl(rank(1, upto(1), quiet_seconds=130.0), nccl(complete=1))],
        "stalled",
        "nccl_hang",
        "spark1",
        (),
    ),
    "NCCL is complete on all": (
        [with_nccl(r, nccl(complete=1, connected=1)) for r in (rank(0, upto(1), quiet_seconds=130.0), rank(1, upto(1), quiet_seconds=130.0))],
        "stalled",
        None,
        None,
        ("custom all-reduce",),
    ),
    "NCCL is complete, but its rings are not": (
        [with_nccl(r, nccl(complete=1)) for r in (rank(0, upto(1), quiet_seconds=130.0), rank(1, upto(1), quiet_seconds=130.0))],
        "stalled",
        "nccl_hang",
        None,
        ("rings", "NCCL_IB_GID_INDEX"),
    ),
    "a spinning GPU": (
        [
            rank(
                0,
                upto(5),
                quiet_seconds=2000.0,
                closeup={"gpus": [{"index": 0, "name": "NVIDIA GB10", "utilization_percent": 96, "power_watts": 20.0, "power_limit_watts": None}]},
            ),
            rank(
                1,
                upto(5),
                quiet_seconds=2000.0,
                closeup={"gpus": [{"index": 0, "name": "NVIDIA GB10", "utilization_percent": 0, "power_watts": 5.0, "power_limit_watts": None}]},
            ),
        ],
        "stalled",
        "nccl_hang",
        "spark2",
        ("96 % busy at 20 W",),
    ),
    "a rank that holds next to nothing": (
        [
            rank(0, upto(3), quiet_seconds=300.0, activity={"memory_bytes": 60 * GIB}),
            rank(1, upto(3), quiet_seconds=300.0, activity={"memory_bytes": 416 << 20}),
        ],
        "stalled",
        None,
        "spark2",
        ("416 MiB where the others hold 60.0 GiB",),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_rule(name: str) -> None:
    records, verdict, cause, culprit, words = CASES[name]
    found = judge(records)
    assert (found["verdict"], found["cause"], found["culprit"]) == (verdict, cause, culprit), found["summary"]
    assert found["summary"].endswith(".") and found["remedy"].endswith(".")
    text = " ".join([found["summary"], found["remedy"], *found["evidence"]])
    assert [word for word in words if word not in text] == [], text


def test_the_users_limit_holds_for_what_shows_itself_too() -> None:
    records = pair(3, scene(0, {1: GONE}), scene(1, {0: GONE}), quiet=12.0)
    assert judge(records, {"load_weights": 10})["cause"] == "net_unreachable"


def test_clocks() -> None:
    note = judge([{**SERVING[0], "clock_offset": 0.2}, {**SERVING[1], "clock_offset": 300.4}])["notes"]
    assert note == ["The clock of spark2 is 300 s ahead of that of spark1: times are corrected here; let both nodes follow one NTP server."]
    assert judge([{**SERVING[0], "clock_offset": 0.2}, {**SERVING[1], "clock_offset": -0.4}])["notes"] == []


def test_transport() -> None:
    over_tcp = with_nccl(SERVING[0], nccl(network="Socket", complete=1, channels={"NET/Socket/0": 4}))
    assert "NET/Socket" in judge([over_tcp, SERVING[1]])["notes"][0]
    one_rail = with_nccl(SERVING[0], nccl(complete=1, devices=["rocep1s0f0:1/RoCE", "roceP2p1s0f0:1/RoCE"], channels={"NET/IB/0": 4}))
    assert "2 RDMA devices and uses one" in judge([one_rail, SERVING[1]])["notes"][0]
    both = with_nccl(SERVING[0], nccl(complete=1, devices=["rocep1s0f0:1/RoCE", "roceP2p1s0f0:1/RoCE"], channels={"NET/IB/0": 4, "NET/IB/1": 4}))
    assert judge([both, SERVING[1]])["notes"] == []


@pytest.mark.parametrize(
    ("busy", "watts", "limit", "spinning"),
    [
        (96, 20.0, None, True),
        (96, 65.0, None, False),
        (10, 20.0, None, False),
        (100, 120.8, 700.0, True),
        (100, 690.0, 700.0, False),
        (None, 20.0, None, False),
    ],
)
def test_spinning(busy: int | None, watts: float, limit: float | None, spinning: bool) -> None:
    assert spins({"utilization_percent": busy, "power_watts": watts, "power_limit_watts": limit}) is spinning
