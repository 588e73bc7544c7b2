# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# ruff: noqa: E501 - a real line is as long as it is.
"""Scenarios of vLLM, native and over Ray."""

from __future__ import annotations

from scenarios import ABSENT, BARE, NO_ROUTE, QUIET, RAY, STILL, UP, VLLM, WAITS, Case, gone, later, log, upto, vllm, worker_error

CASES: dict[str, Case] = {
    "vllm: the worker waits for a head that refuses": ((None, ABSENT), (vllm(1, WAITS), QUIET), "stalled", None, ["spark1"], (None, "init_dist")),
    "vllm: the worker waits for a head that is not there": (
        (None, ABSENT),
        (vllm(1, WAITS) + NO_ROUTE, STILL),
        "stalled",
        "net_unreachable",
        ["spark1"],
        (None, "init_dist"),
    ),
    "vllm: Gloo on the worker's loopback, and the worker says nothing": (
        (
            vllm(0, WAITS)
            + worker_error(
                0,
                "RuntimeError: Gloo connectFullMesh failed with [/pytorch/gloo/transport/tcp/pair.cc:144] timed out connecting: SO_ERROR: Connection refused, remote=[127.0.0.1]:34689",
                "22:16:09",
            ),
            gone(1),
        ),
        (vllm(1, WAITS), STILL),
        "failed",
        "gloo_wrong_iface",
        ["spark2"],
        ("init_dist", "init_dist"),
    ),
    "vllm: a shard cut short on the worker": (
        (
            vllm(0, "Filesystem type")
            + worker_error(
                0,
                "RuntimeError: [/pytorch/gloo/transport/tcp/pair.cc:553] Connection closed by peer [192.168.200.12]:16084. This is typically caused by",
                "22:16:09",
            ),
            gone(1),
        ),
        (
            vllm(1, "Filesystem type")
            + worker_error(1, "safetensors_rust.SafetensorError: Error while deserializing header: incomplete metadata, file not fully covered"),
            gone(1),
        ),
        "failed",
        "missing_weights",
        ["spark2"],
        ("load_weights", "load_weights"),
    ),
    "vllm: the worker runs out of its control group's memory, and ends with 0": (
        (vllm(0, "is assigned as"), STILL),
        (
            vllm(1, "Starting to load model")
            + "(MainProcess pid=23573) ERROR 11-29 22:16:05 [multiproc_executor.py:315] Worker proc VllmWorker-1 died unexpectedly (exit code: None), shutting down executor.\n",
            gone(0, oom_killed=True),
        ),
        "failed",
        "oom",
        ["spark2"],
        ("create_runner", "load_weights"),
    ),
    "vllm: the worker runs out of its control group's memory, and its container stays up": (
        (vllm(0, "is assigned as"), STILL),
        (
            vllm(1, "Starting to load model")
            + "(MainProcess pid=23573) ERROR 11-29 22:16:05 [multiproc_executor.py:315] Worker proc VllmWorker-1 died unexpectedly (exit code: None), shutting down executor.\n",
            {**STILL, "oom_killed": True},
        ),
        "failed",
        "oom",
        ["spark2"],
        ("create_runner", "load_weights"),
    ),
    "vllm: the worker's process vanishes, and nobody tells why": (
        (vllm(0, "is assigned as"), STILL),
        (
            vllm(1, "Starting to load model")
            + "(MainProcess pid=23573) ERROR 11-29 22:16:05 [multiproc_executor.py:315] Worker proc VllmWorker-1 died unexpectedly (exit code: -9), shutting down executor.\n",
            gone(0),
        ),
        "failed",
        "worker_died",
        ["spark2"],
        ("create_runner", "load_weights"),
    ),
    "vllm: the link is cut while it serves": (
        (
            VLLM[0]
            + "".join(
                f"(EngineCore pid=25591) INFO 11-29 22:{minute}:00 [shm_broadcast.py:681] No available shared memory broadcast block found in 60 seconds. This typically happens when some processes are hanging.\n"
                for minute in range(20, 25)
            )
            + "(EngineCore pid=25591) ERROR 11-29 22:25:00 [core.py:1] EngineCore encountered a fatal error.\n(EngineCore pid=25591) ERROR 11-29 22:25:00 [core.py:1] Traceback (most recent call last):\n"
            '(EngineCore pid=25591) ERROR 11-29 22:25:00 [core.py:1]   File "/opt/vllm/v1/executor/multiproc_executor.py", line 509, in get_response\n'
            + "".join(f"(EngineCore pid=25591) ERROR 11-29 22:25:00 [core.py:1] {line}\n" for line in BARE),
            gone(0),
        ),
        (VLLM[1], QUIET),
        "failed",
        "watchdog",
        [None, "spark2"],
        ("ready", "kv_cache"),
    ),
    "vllm: a new head finds the worker of an earlier launch": (
        (vllm(0, WAITS), QUIET),
        (VLLM[1], QUIET),
        "stalled",
        None,
        ["spark2"],
        ("init_dist", "kv_cache"),
    ),
    "vllm: a new head finds the worker of an earlier launch, seen soon": (
        (vllm(0, WAITS), STILL),
        (VLLM[1], QUIET),
        "stalled",
        None,
        ["spark2"],
        ("init_dist", "kv_cache"),
    ),
    "vllm: the worker is started again alone, and the head serves on": (
        (VLLM[0], STILL),
        (later(vllm(1, WAITS), "22:15", "22:25"), STILL),
        "stalled",
        None,
        ["spark2"],
        ("ready", "init_dist"),
    ),
    "vllm: the head is stopped": (
        (
            VLLM[0]
            + "(APIServer pid=25263) INFO 11-29 22:17:59 [launcher.py:254] [shutdown] API server: shutdown triggered\n"
            + "(APIServer pid=25263) INFO 11-29 22:17:59 [launcher.py:271] [shutdown] API server: stopping engine client mode=abort timeout=0s\n"
            + "INFO:     Shutting down\nINFO:     Waiting for application shutdown.\nINFO:     Application shutdown complete.\n",
            gone(0),
        ),
        (VLLM[1], STILL),
        "failed",
        None,
        [None],
        ("ready", "kv_cache"),
    ),
    "vllm: the API port is taken": (
        (
            vllm(0, "non-default args")
            + 'Traceback (most recent call last):\n  File "/opt/engine/venv/bin/vllm", line 8, in <module>\n    sock.bind(addr)\nOSError: [Errno 98] Address already in use\n',
            gone(1),
        ),
        (vllm(1, WAITS), STILL),
        "failed",
        "port_in_use",
        ["spark1"],
        ("parse_args", "init_dist"),
    ),
    "vllm: the rendezvous port is taken": (
        (
            vllm(0, WAITS)
            + worker_error(
                0,
                "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: 29501, useIpv6: false, code: -98, name: EADDRINUSE",
            ),
            gone(1),
        ),
        (vllm(1, WAITS), STILL),
        "failed",
        "port_in_use",
        ["spark1"],
        ("init_dist", "init_dist"),
    ),
    "ray: the worker's node is gone": (
        (
            RAY + "(EngineCore pid=17000) ERROR 11-29 22:58:17 [ray_executor_v2.py:508] RayWorkerProc rank=[1] died unexpectedly, shutting down executor.\n",
            gone(0),
        ),
        (log("vllm-cpu/ray-ready", 1), gone(137)),
        "failed",
        "killed",
        ["spark2"],
        ("ready", "container"),
    ),
    "ray: the worker's node is gone, and nobody knows how it ended": (
        (
            RAY + "(EngineCore pid=17000) ERROR 11-29 22:58:17 [ray_executor_v2.py:508] RayWorkerProc rank=[1] died unexpectedly, shutting down executor.\n",
            gone(0),
        ),
        (log("vllm-cpu/ray-ready", 1), {"running": False}),
        "failed",
        "worker_died",
        ["spark2"],
        ("ready", "container"),
    ),
    "ray: a platform that Ray does not know": (
        (
            upto(RAY, "Initializing a V1 LLM engine")
            + "".join(
                f"(EngineCore pid=17608) ERROR 11-29 22:56:10 [core.py:1510] {line}\n"
                for line in (
                    "EngineCore failed to start.",
                    "Traceback (most recent call last):",
                    "    raise ValueError(",
                    "ValueError: current platform cpu does not support ray.",
                )
            ),
            gone(1),
        ),
        (log("vllm-cpu/ray-ready", 1), UP),
        "failed",
        "unknown",
        ["spark1"],
        ("parse_args", "container"),
    ),
    "ray: no second node in the cluster": (
        (
            upto(RAY, "Initializing a V1 LLM engine")
            + "(EngineCore pid=1) INFO 11-29 22:56:10 [ray_utils.py:389] No current placement group found. Creating a new placement group.\n"
            + "".join(
                f"(EngineCore pid=1) INFO 11-29 22:{minute}:20 [ray_utils.py:233] Waiting for creating a placement group of specs for {seconds} seconds. specs=[{{'GPU': 1.0}}]. Check `ray status`\n"
                for minute, seconds in ((56, 10), (57, 70), (58, 150))
            ),
            STILL,
        ),
        (None, ABSENT),
        "stalled",
        "rendezvous_timeout",
        ["spark1", "spark2", None],
        ("init_dist", None),
    ),
}
