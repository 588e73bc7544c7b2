# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# ruff: noqa: E501 - a real line is as long as it is.
"""The rules by which a verdict comes out of several ranks, on cases that the real logs do not hold."""

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.sparkstack.inference.plugins.module_utils._diagnosis import judge
from ansible_collections.sparkstack.inference.plugins.module_utils._timeline import Timeline

ARGS = "[2026-11-29 22:{m}:00] server_args=ServerArgs(tp_size={tp}, nnodes=2, node_rank={rank}, dist_init_addr='10.77.1.1:20000')\n"
STEPS = [
    "[2026-11-29 22:{m}:10 TP0] Init torch distributed begin.\n",
    "[2026-11-29 22:{m}:20 TP0] Init torch distributed ends. elapsed=3.71 s, mem usage=0.45 GB\n",
    "[2026-11-29 22:{m}:21 TP0] Load weight begin. avail mem=138.33 GB\n",
    "[2026-11-29 22:{m}:30 TP0] Load weight end. elapsed=1.30 s, avail mem=134.65 GB, mem usage=3.68 GB.\n",
    "[2026-11-29 22:{m}:40 TP0] Capture target prefill CUDA graph begin. backend=full, avail mem=12.25 GB\n",
]
HEAD_UP = "[2026-11-29 22:{m}:50] INFO:     Uvicorn running on http://0.0.0.0:30000\n[2026-11-29 22:{m}:55] The server is fired up and ready to roll!\n"
WORKER_UP = "[2026-11-29 22:{m}:50] Dummy health check server started in background thread at 0.0.0.0:30000\n"
NO_ROOM = "[2026-11-29 22:{m}:39 TP1] Disabling auto-selected prefill CUDA graph: only 0.19 GiB is free after model/KV/eager-buffer allocation\n"
RAISED = '[2026-11-29 22:{m}:{s} TP1] Scheduler hit an exception: Traceback (most recent call last):\n  File "a.py"\n{what}\n\n'
OOM = "torch.OutOfMemoryError: CUDA out of memory."
PEER = "RuntimeError: [pair.cc:538] Read error [10.77.1.{ip}]:59012: Connection reset by peer"
LOOPBACK = "RuntimeError: Gloo connectFullMesh failed with [pair.cc:144] timed out connecting: Connection refused, remote=[127.0.0.1]:34689"
CLIENT = "[E1129 22:{m}:51.904256021 socket.cpp:1028] [c10d] The client socket has timed out after 600000ms while trying to connect to (10.77.1.1, 20000).\n"
HOSTS = ("spark1", "spark2", "spark3")


def rank(number: int, log: str | None, minute: int = 10, tp: int = 2, claimed: int | None = None, **known: t.Any) -> dict[str, t.Any]:
    record: dict[str, t.Any] = {"node": HOSTS[number], "rank": number, "started": log is not None, "running": log is not None, "quiet_seconds": 5.0}
    if log is not None:
        timeline = Timeline("sglang", 2026)
        shaped = (ARGS + log).replace("{m}", str(minute)).replace("{tp}", str(tp))
        timeline.feed(shaped.replace("{rank}", str(number if claimed is None else claimed)))
        record["reading"] = timeline.reading()
    return {**record, **known}


def upto(step: int) -> str:
    return "".join(STEPS[:step])


def raised(what: str, second: int = 45) -> str:
    return RAISED.replace("{what}", what).replace("{s}", str(second))


DEAD = {"running": False, "exit_code": 137}
UNFINISHED = "ValueError: TP rank 0 could finish the model loading, but there are other ranks that didn't finish loading."
KILL = {"cause": "oom", "kind": "oom", "time": 1000.0, "text": "Memory cgroup out of memory: Killed process 22738 (sglang::schedul) total-vm:6485596kB"}
QUIET = {"quiet_seconds": 900.0}
SERVING = rank(0, upto(5) + HEAD_UP), rank(1, upto(5) + WORKER_UP)

CASES: dict[str, tuple[list[dict[str, t.Any]], str, str | None, str | None]] = {
    "all serve": ([*SERVING], "ready", None, None),
    # Seen on a loaded machine: the imports of one rank took longer than the other's patience, which tries again.
    "a worker gave up once while the head was still on its way": ([rank(0, ""), rank(1, upto(1) + CLIENT)], "starting", None, None),
    "a worker gave up once just before the head came": ([rank(0, upto(1)), rank(1, upto(1) + CLIENT)], "starting", None, None),
    "a worker gives up on a head that has long been waiting": (
        [rank(0, upto(1), quiet_seconds=200.0), rank(1, upto(1) + CLIENT)],
        "stalled",
        "rendezvous_timeout",
        "spark2",
    ),
    "the head's health page does not answer": ([{**SERVING[0], "healthy": False}, SERVING[1]], "starting", None, None),
    "a crashed engine that ends with 0": (
        [rank(0, upto(1)), rank(1, upto(1) + raised(OOM), running=False, exit_code=0)],
        "failed",
        "oom",
        "spark2",
    ),
    # Seen on a node without memory: the kernel has killed the scheduler, and its launcher waits for its own pages (state D) for seconds.
    "a killed process of a rank that still runs, and the head's word about it": (
        [rank(0, upto(3) + raised(UNFINISHED), **DEAD, finished=1001.5), rank(1, upto(3), scene={"kernel": [KILL]})],
        "failed",
        "oom",
        "spark2",
    ),
    "a killed process of a rank that runs, long before the head's end": (
        [rank(0, upto(3) + raised(OOM), **DEAD, finished=5001.5), rank(1, upto(3), scene={"kernel": [KILL]})],
        "failed",
        "oom",
        "spark1",
    ),
    "a killed process, and all ranks go on": ([rank(0, upto(3)), rank(1, upto(3), scene={"kernel": [KILL]})], "starting", None, None),
    "the head is killed and the worker tells of it": (
        [rank(0, upto(5) + HEAD_UP, **DEAD), rank(1, upto(5) + WORKER_UP + raised(PEER.format(ip=1)), **DEAD)],
        "failed",
        "killed",
        "spark1",
    ),
    "the head is killed, and the worker meets an end that no table knows before Docker has noticed the head's": (
        [
            rank(0, upto(5) + HEAD_UP, finished=1795990258.4, **DEAD),
            rank(1, upto(5) + WORKER_UP + raised("engine.net.Gone: hung up", 57), running=False, exit_code=1),
        ],
        "failed",
        "killed",
        "spark1",
    ),
    "an error that no table knows, long before the head is killed": (
        [
            rank(0, upto(5) + HEAD_UP, finished=1795990280.0, **DEAD),
            rank(1, upto(5) + WORKER_UP + raised("engine.net.Gone: hung up", 57), running=False, exit_code=1),
        ],
        "failed",
        "unknown",
        "spark2",
    ),
    "out of memory by the container's state, with no word in the log": (
        [rank(0, upto(3)), rank(1, upto(3), oom_killed=True, **DEAD)],
        "failed",
        "oom",
        "spark2",
    ),
    "a scheduler that vanished in init, and the kernel's word": (
        [
            rank(0, upto(3)),
            rank(
                1, upto(3) + "[2026-11-29 22:{m}:44] Scheduler or DataParallelController 6843 terminated with -9\n", oom_killed=True, running=False, exit_code=3
            ),
        ],
        "failed",
        "oom",
        "spark2",
    ),
    "a scheduler killed alone, and the red herring after it": (
        [
            rank(0, upto(5) + HEAD_UP + raised(PEER.format(ip=2))),
            rank(
                1,
                upto(5) + WORKER_UP + "[2026-11-29 22:{m}:58] Scheduler or DataParallelController 6843 terminated with -9\n"
                "Traceback (most recent call last):\n  File \"a\"\nAttributeError: 'NoneType' object has no attribute 'server_args'\n",
                running=False,
                exit_code=3,
            ),
        ],
        "failed",
        "worker_died",
        "spark2",
    ),
    "a stop on request": (
        [
            rank(0, upto(5) + HEAD_UP + "[2026-11-29 22:{m}:58] SIGTERM received. signum=15. Draining requests and shutting down...\n", **DEAD),
            rank(1, upto(5) + WORKER_UP + "[2026-11-29 22:{m}:59] Scheduler or DataParallelController 6843 terminated with 0\n", running=False, exit_code=3),
        ],
        "failed",
        None,
        None,
    ),
    "a stop on request of a container's first process": (
        [
            rank(
                0,
                upto(5) + HEAD_UP + "[2026-11-29 22:{m}:58] SIGTERM received. signum=None frame=None. Draining requests and shutting down...\n"
                "[2026-11-29 22:{m}:59] ERROR:    Traceback (most recent call last):\n"
                '  File "/site/sglang/srt/managers/tokenizer_manager.py", line 3131, in sigterm_watchdog\n'
                "    kill_process_tree(os.getpid(), include_parent=True)\n"
                '  File "/site/sglang/srt/utils/common.py", line 2095, in kill_process_tree\n    sys.exit(0)\nSystemExit: 0\n\n'
                "During handling of the above exception, another exception occurred:\n\nTraceback (most recent call last):\n"
                '  File "/site/starlette/routing.py", line 668, in lifespan\n    await receive()\nasyncio.exceptions.CancelledError\n\n',
                running=False,
                exit_code=0,
            ),
            rank(1, upto(5) + WORKER_UP + "[2026-11-29 22:{m}:59] Scheduler or DataParallelController 6843 terminated with 0\n", running=False, exit_code=0),
        ],
        "failed",
        None,
        None,
    ),
    "the culprit says nothing, its loopback is in the victim's error": (
        [rank(0, upto(1) + raised(LOOPBACK), **DEAD), rank(1, upto(1))],
        "failed",
        "gloo_wrong_iface",
        "spark2",
    ),
    "the victim points at a running peer": ([rank(0, upto(3) + raised(PEER.format(ip=2)), **DEAD), rank(1, upto(3))], "failed", "peer_exited", "spark2"),
    "the peer was started again alone after the victim's end": (
        [rank(0, upto(5) + HEAD_UP + raised(PEER.format(ip=2)), **DEAD), rank(1, upto(1), minute=40)],
        "failed",
        "peer_exited",
        "spark1",
    ),
    "the worse clock does not make the victim the first": (
        # The worker's clock is 5 min ahead: its error was the first.
        [
            rank(0, upto(3) + raised("ValueError: CUDA error: no kernel image is available for execution on the device", 50), **DEAD),
            rank(1, upto(3) + raised(OOM, 45), minute=15, clock_offset=300.0, **DEAD),
        ],
        "failed",
        "oom",
        "spark2",
    ),
    "an echo of the other's end is no cause": (
        [rank(0, upto(3) + raised("RuntimeError: NCCL error: unhandled system error", 40), **DEAD), rank(1, upto(3), **DEAD)],
        "failed",
        "killed",
        "spark2",
    ),
    "Docker could not start it": (
        [
            rank(0, upto(1)),
            {"node": "spark2", "rank": 1, "started": True, "running": False, "exit_code": 255, "error": "exec /usr/bin/python3: exec format error"},
        ],
        "failed",
        "wrong_image_arch",
        "spark2",
    ),
    "one of three ranks never came": (
        [
            rank(0, upto(1) + raised("torch.distributed.DistStoreError: Timed out after 61 seconds waiting for clients. 2/3 clients joined."), **DEAD),
            rank(1, upto(1)),
            rank(2, None),
        ],
        "failed",
        "rendezvous_timeout",
        "spark3",
    ),
    "the HTTP port is taken and the engine stays up": (
        [
            rank(
                0,
                upto(5) + "[2026-11-29 22:{m}:50] ERROR:    [Errno 98] error while attempting to bind on address ('0.0.0.0', 30000): address already in use\n",
            ),
            SERVING[1],
        ],
        "failed",
        "port_in_use",
        "spark1",
    ),
    "a container that is gone while the head serves": ([SERVING[0], rank(1, None)], "failed", "peer_exited", "spark2"),
    # Waiting.
    "a silent worker borrows the head's progress": ([rank(0, upto(3)), rank(1, upto(3), **QUIET)], "starting", None, None),
    "the head waits for a worker that still imports": ([rank(0, upto(1), **QUIET), rank(1, "", quiet_seconds=3.0)], "starting", None, None),
    "a busy compile gets longer": ([rank(0, upto(5), busy=True, **QUIET), rank(1, upto(5), busy=True, **QUIET)], "starting", None, None),
    "a compile that is not busy": ([rank(0, upto(5), **QUIET), rank(1, upto(5), **QUIET)], "stalled", None, None),
    "the worker was never started": ([rank(0, upto(1), **QUIET), rank(1, None)], "stalled", None, "spark2"),
    "the head was never started": ([rank(0, None), rank(1, upto(1) + CLIENT)], "stalled", "rendezvous_timeout", "spark1"),
    "both wait for each other": ([rank(0, upto(1), **QUIET), rank(1, upto(1), **QUIET)], "stalled", None, None),
    "NCCL hangs": (
        [rank(0, upto(1) + "[2026-11-29 22:{m}:15 TP0] sglang is using nccl==2.28.9\n", **QUIET), rank(1, upto(1), **QUIET)],
        "stalled",
        "nccl_hang",
        None,
    ),
    "rank 0 twice": ([rank(0, upto(1), **QUIET), rank(1, upto(1), claimed=0, **QUIET)], "stalled", "bad_flag", "spark2"),
    "other parallel sizes": ([rank(0, upto(1), **QUIET), rank(1, upto(1), tp=4, **QUIET)], "stalled", "bad_flag", "spark2"),
    "a worker left from an earlier launch": ([rank(0, upto(1), **QUIET), rank(1, upto(4), **QUIET)], "stalled", None, "spark2"),
    "different graphs": (
        [rank(0, upto(5), quiet_seconds=93.0), rank(1, upto(4) + NO_ROOM + STEPS[4].replace("prefill", "decode"), quiet_seconds=93.0)],
        "stalled",
        "memory_unbalanced",
        "spark2",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_rule(name: str) -> None:
    records, verdict, cause, culprit = CASES[name]
    found = judge(records)
    assert (found["verdict"], found["cause"], found["culprit"]) == (verdict, cause, culprit), found["summary"]
    assert found["summary"].endswith(".") and found["remedy"].endswith(".")


def test_the_order_of_the_records_does_not_matter() -> None:
    for records, *_rest in CASES.values():
        assert judge(records)["culprit"] == judge(records[::-1])["culprit"]


def test_limits_are_the_users() -> None:
    records = [rank(0, upto(3), quiet_seconds=30.0), rank(1, upto(3), quiet_seconds=30.0)]
    assert judge(records)["verdict"] == "starting"
    assert judge(records, {"load_weights": 20})["verdict"] == "stalled"


def test_nodes() -> None:
    found = judge(CASES["a crashed engine that ends with 0"][0])
    assert found["phase"] == "init_dist"
    assert {key: found["nodes"]["spark2"][key] for key in ("rank", "phase", "cause", "state", "exit_code")} == {
        "rank": 1,
        "phase": "init_dist",
        "cause": "oom",
        "state": "exited",
        "exit_code": 0,
    }
    assert found["nodes"]["spark1"]["state"] == "running" and found["nodes"]["spark1"]["cause"] is None
    assert judge([*SERVING])["nodes"]["spark1"]["state"] == "ready"


@pytest.mark.parametrize(
    ("restarts", "before", "step", "verdict"),
    [
        (4, {"phase": "load_weights", "cause": "oom"}, 1, "failed"),
        (2, {"phase": "load_weights", "cause": "oom"}, 1, "starting"),  # twice is no loop yet
        (4, {"phase": "load_weights", "cause": "oom"}, 5, "starting"),  # it has come further this time
        (4, {"phase": "init_dist", "cause": "rendezvous_timeout"}, 1, "starting"),  # until its head is there
        (4, {"phase": "ready", "cause": "port_in_use"}, 1, "starting"),  # until the port is free
        (4, {"phase": "init_dist", "cause": None}, 1, "starting"),
        (None, {"phase": "load_weights", "cause": "oom"}, 1, "starting"),  # two runs in one file tell of no loop
    ],
)
def test_a_rank_that_docker_starts_again_and_again(restarts: int | None, before: dict[str, t.Any], step: int, verdict: str) -> None:
    looping = rank(1, upto(step), restarts=restarts)
    looping["reading"]["earlier"] = [before]
    found = judge([rank(0, upto(1)), looping])
    assert found["verdict"] == verdict
    if verdict == "failed":
        assert (found["cause"], found["culprit"]) == ("oom", "spark2")
        assert "Docker has started the container again 4 times, and its last run ended in phase load_weights." in found["summary"]
        assert found["nodes"]["spark2"]["restarts"] == 4
