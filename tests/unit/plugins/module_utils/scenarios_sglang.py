# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# ruff: noqa: E501 - a real line is as long as it is.
"""Scenarios of SGLang."""

from __future__ import annotations

from scenarios import ABSENT, ATTRIBUTE, BEGIN, CLIENT, DUMMY, OOM, QUIET, READY, SGLANG, STILL, UP, Case, closed, gone, later, raised, reset, sglang

CASES: dict[str, Case] = {
    "sglang: the worker waits for a head that is not there": (
        (None, ABSENT),
        (sglang(1, BEGIN) + CLIENT.format(51, 51), QUIET),
        "stalled",
        "rendezvous_timeout",
        ["spark1"],
        (None, "init_dist"),
    ),
    "sglang: memory short on the worker, the check off, the head sees it leave": (
        (sglang(0, "Load weight begin") + raised(0, closed(2), "22:42:50"), gone(137)),
        (sglang(1, "Load weight begin") + raised(1, OOM, "22:42:50"), gone(137)),
        "failed",
        "oom",
        ["spark2"],
        ("load_weights", "load_weights"),
    ),
    "sglang: a shard cut short on the worker": (
        (
            sglang(0, "Load weight begin")
            + raised(
                0,
                "ValueError: TP rank 0 could finish the model loading, but there are other ranks that didn't finish loading. It is likely due to unexpected failures (e.g., OOM) or a slow node.",
                "22:42:51",
            ),
            gone(137),
        ),
        (
            sglang(1, "Load weight begin")
            + raised(1, "safetensors_rust.SafetensorError: Error while deserializing header: incomplete metadata, file not fully covered", "22:42:50"),
            gone(137),
        ),
        "failed",
        "missing_weights",
        ["spark2"],
        ("load_weights", "load_weights"),
    ),
    "sglang: the HTTP port is taken": (
        (
            sglang(0, "Waiting for application startup")
            + "[2026-11-29 22:44:03] ERROR:    [Errno 98] error while attempting to bind on address ('0.0.0.0', 30000): address already in use\n[2026-11-29 22:44:03] INFO:     Waiting for application shutdown.\n",
            {"running": True, "quiet_seconds": 26},
        ),
        (sglang(1, DUMMY), UP),
        "failed",
        "port_in_use",
        ["spark1"],
        ("http_warmup", "engine_ready"),
    ),
    "sglang: both hosts' names lead to 127.0.1.1": (
        (sglang(0, BEGIN), STILL),
        (
            sglang(1, BEGIN)
            + raised(
                1,
                "RuntimeError: Gloo connectFullMesh failed with [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:144] timed out connecting: SO_ERROR: Connection refused, remote=[127.0.1.1]:34689",
                "22:42:59",
            ),
            gone(137),
        ),
        "failed",
        "gloo_wrong_iface",
        [None],
        ("init_dist", "init_dist"),
    ),
    "sglang: the head is killed": (
        (sglang(0, READY), gone(137)),
        (sglang(1, DUMMY) + raised(1, closed(1)), gone(137)),
        "failed",
        "killed",
        ["spark1"],
        ("ready", "engine_ready"),
    ),
    "sglang: the head is stopped": (
        (
            sglang(0, READY)
            + "[2026-11-29 22:44:21] SIGTERM received. signum=None frame=None. Draining requests and shutting down...\n[2026-11-29 22:44:26] Gracefully exiting... Remaining number of requests 0. Remaining requests remaining_rids=[].\n",
            gone(137),
        ),
        (sglang(1, DUMMY) + "[2026-11-29 22:44:27] Scheduler or DataParallelController 6843 terminated with 0\n" + ATTRIBUTE, gone(3)),
        "failed",
        None,
        [None],
        ("ready", "engine_ready"),
    ),
    "sglang: ranks that differ in what they leave free serve": (
        (sglang(0, READY), UP),
        (sglang(1, DUMMY), UP),
        "ready",
        None,
        [None],
        ("ready", "engine_ready"),
    ),
    "sglang: more nodes on the worker than on the head": (
        (sglang(0, BEGIN), STILL),
        (sglang(1, BEGIN) + raised(1, "torch.AcceleratorError: CUDA error: invalid device ordinal", "22:42:45"), gone(137)),
        "failed",
        "bad_flag",
        ["spark2"],
        ("init_dist", "init_dist"),
    ),
    "sglang: rank 0 twice": ((sglang(0, BEGIN), QUIET), (sglang(0, BEGIN), QUIET), "stalled", "bad_flag", ["spark2"], ("init_dist", "init_dist")),
    "sglang: rank 0 twice, seen soon: what it says of itself is proof": (
        (sglang(0, BEGIN), STILL),
        (sglang(0, BEGIN), STILL),
        "stalled",
        "bad_flag",
        ["spark2"],
        ("init_dist", "init_dist"),
    ),
    "sglang: the worker is started again alone, in the same container": (
        (SGLANG[0], gone(137)),
        (sglang(1, DUMMY) + later(sglang(1, BEGIN), "22:42", "22:50"), STILL),
        "failed",
        "peer_exited",
        ["spark1"],
        ("ready", "init_dist"),
    ),
    "sglang: the head is killed, its exit code told as Python tells it": (
        (sglang(0, READY), gone(-9)),
        (sglang(1, DUMMY) + raised(1, closed(1)), gone(-9)),
        "failed",
        "killed",
        ["spark1"],
        ("ready", "engine_ready"),
    ),
    "sglang: the worker's log after its head was killed, no exit codes known": (
        (sglang(0, READY), {"running": False}),
        (sglang(1, DUMMY) + raised(1, closed(1)), {"running": False}),
        "failed",
        "unknown",
        ["spark1"],
        ("ready", "engine_ready"),
    ),
    "sglang: the link was down for a minute": (
        (
            sglang(0, READY)
            + "[2026-11-29 22:45:21] Health check failed. Server couldn't get a response from detokenizer for last 20 seconds. tic start time: 22:45:01. last_heartbeat time: 22:44:16\n"
            + '[2026-11-29 22:46:21] INFO:     127.0.0.1:46006 - "GET /health HTTP/1.1" 200 OK\n',
            UP,
        ),
        (sglang(1, DUMMY), UP),
        "ready",
        None,
        [None],
        ("ready", "engine_ready"),
    ),
    "sglang: the worker's scheduler is killed": (
        (sglang(0, READY) + raised(0, reset(2)) + "[2026-11-29 22:44:26] Waiting 60.0 seconds for CUDA coredumps\n", UP),
        (sglang(1, DUMMY) + "[2026-11-29 22:44:21] Scheduler or DataParallelController 6843 terminated with -9\n" + ATTRIBUTE, gone(3)),
        "failed",
        "worker_died",
        ["spark2"],
        ("ready", "engine_ready"),
    ),
    "sglang: a rank dies in the load, its parent tells (0.5.10)": (
        (sglang(0, "Load weight begin"), STILL),
        (
            sglang(1, "Load weight begin")
            + 'Traceback (most recent call last):\n  File "/opt/sg/site/sglang/launch_server.py", line 60, in <module>\nRuntimeError: Rank 0 scheduler died during initialization (exit code: -9). If exit code is -9 (SIGKILL), a common cause is the OS OOM killer. Run `dmesg -T | grep -i oom` to check.\n',
            gone(1),
        ),
        "failed",
        "oom",
        ["spark2"],
        ("load_weights", "load_weights"),
    ),
}
