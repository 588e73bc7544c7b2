# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# ruff: noqa: E501 - a real line is as long as it is.
"""Failures that tests/fixtures/logs does not hold: the beginning of a real log, and the end that such a failure gave it."""

from __future__ import annotations

import json
import re
import typing as t

import pytest
import real_logs

from ansible_collections.sparkstack.inference.plugins.module_utils._diagnosis import judge
from ansible_collections.sparkstack.inference.plugins.module_utils._timeline import Timeline


def log(case: str, rank: int) -> str:
    return (real_logs.LOGS / case / ("worker.log" if rank else "head.log")).read_text()


SGLANG = [log("sglang-gpu/worker-killed-after-ready", rank) for rank in (0, 1)]
VLLM = [log("vllm-cpu/ready", rank) for rank in (0, 1)]
RAY = log("vllm-cpu/ray-ready", 0)
# A real traceback of SGLang without its last line, and of vLLM.
TRACE = re.search(r"\[[^\n]* TP0\] Scheduler hit an exception.*?    work.wait\(\)\n", SGLANG[0], re.S)
READY = "The server is fired up and ready to roll!"
DUMMY = "Dummy health check server started"


def upto(text: str, last: str) -> str:
    """The log up to the line that holds a text."""
    place = text.index(last)
    return text[: text.index("\n", place) + 1]


def sglang(rank: int, last: str) -> str:
    return upto(SGLANG[rank], last)


def raised(rank: int, message: str, clock: str = "22:44:21") -> str:
    assert TRACE is not None
    body = re.sub(r"^\[[^\]]*\]", f"[2026-11-29 {clock} TP{rank}]", TRACE.group(0))
    return f"{body}{message}\n\n[2026-11-29 {clock}] Received sigquit from a child process. It usually means the child failed.\n"


def closed(by: int) -> str:
    return f"RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.77.1.{by}]:16084"


def reset(by: int) -> str:
    return f"RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:538] Read error [10.77.1.{by}]:59012: Connection reset by peer"


def vllm(rank: int, last: str) -> str:
    return upto(VLLM[rank], last)


def worker_error(rank: int, message: str, clock: str = "22:16:02", process: str = "", herald: str = "WorkerProc failed to start.") -> str:
    prefix = f"{process}(Worker_TP{rank} pid=23755) ERROR 11-29 {clock} [multiproc_executor.py:1063] "
    frames = [
        "Traceback (most recent call last):",
        '  File "/opt/vllm/v1/executor/multiproc_executor.py", line 1055, in worker_main',
        "    worker = WorkerProc(*args, **kwargs)",
    ]
    return "".join(f"{prefix}{line}\n" for line in [herald, *frames, message])


OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 128.00 MiB. GPU 0 has a total capacity of 139.80 GiB of which 98.06 MiB is free. "
    "Process 6709 has 136.37 GiB memory in use."
)
CLIENT = (
    "[E1129 22:{}:43.904256021 socket.cpp:1028] [c10d] The client socket has timed out after 600000ms while trying to connect to (10.77.1.1, 20000).\n"
    "[W1129 22:{}:43.904610079 TCPStore.cpp:342] [c10d] TCP client failed to connect/validate to host 10.77.1.1:20000 - retrying (try=0, timeout=600000ms, delay=71533ms): The client socket has timed out\n"
)
NO_ROUTE = "".join(
    f"[W1129 22:{minute}:43.904610079 TCPStore.cpp:342] [c10d] TCP client failed to connect/validate to host 192.168.200.11:29501 - retrying "
    f"(try={minute}, timeout=1800000ms, delay=7153ms): The client socket has failed to connect to any network address of (192.168.200.11, 29501). "
    "The client socket has failed to connect to 192.168.200.11:29501 (errno: 113 - No route to host).\n"
    for minute in (16, 17, 18)
)
# A worker whose scheduler has ended goes on as if it were the head, and uvicorn ends it with exit code 3.
ATTRIBUTE = (
    "[2026-11-29 22:44:27] INFO:     Started server process [1650]\n[2026-11-29 22:44:27] INFO:     Waiting for application startup.\n"
    '[2026-11-29 22:44:27] ERROR:    Traceback (most recent call last):\n  File "/opt/sg/site/starlette/routing.py", line 694, in lifespan\n'
    "    async with self.lifespan_context(app) as maybe_state:\n"
    "AttributeError: 'NoneType' object has no attribute 'server_args'\n\n[2026-11-29 22:44:27] ERROR:    Application startup failed. Exiting.\n"
)
# What the reader of vLLM's message queue raises, and what is raised from it.
BARE = [
    "TimeoutError",
    "",
    "The above exception was the direct cause of the following exception:",
    "",
    "Traceback (most recent call last):",
    '  File "/opt/vllm/v1/executor/multiproc_executor.py", line 442, in get_response',
    '    raise TimeoutError(f"RPC call to {method} timed out.") from e',
    "TimeoutError: RPC call to execute_model timed out.",
]
BEGIN = "Init torch distributed begin"
WAITS = "distributed_init_method="
ABSENT: dict[str, t.Any] = {"started": False, "running": False}
UP: dict[str, t.Any] = {"running": True}
QUIET: dict[str, t.Any] = {"running": True, "quiet_seconds": 900}
STILL: dict[str, t.Any] = {"running": True, "quiet_seconds": 90}


def gone(code: int, **known: t.Any) -> dict[str, t.Any]:
    return {"running": False, "exit_code": code, **known}


def later(text: str, minute: str, other: str) -> str:
    return text.replace(f" {minute}:", f" {other}:")


Side = tuple[str | None, dict[str, t.Any]]
CASES: dict[str, tuple[Side, Side, str, str | None, list[str | None], tuple[str | None, str | None]]] = {
    # name: head, worker, verdict, cause, culprits that are right, phases.
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


def record(rank: int, side: Side, engine: str = "auto") -> dict[str, t.Any]:
    text, known = side
    reading = None
    if text is not None:
        timeline = Timeline(engine, 2026)
        timeline.feed(text)
        reading = timeline.reading()
    return {"node": f"spark{rank + 1}", "rank": rank, "quiet_seconds": 5, "reading": reading, **known}


@pytest.mark.parametrize("name", CASES)
def test_scenario(name: str) -> None:
    head, worker, verdict, cause, culprits, phases = CASES[name]
    found = judge([record(0, head), record(1, worker)])
    assert (found["verdict"], found["cause"]) == (verdict, cause)
    assert found["culprit"] in culprits
    assert tuple(found["nodes"][node]["phase"] for node in ("spark1", "spark2")) == phases


def as_json(text: str) -> str:
    """As a logger for JSON writes it: a traceback stands in the record that it belongs to."""
    records = re.split(r"\n(?=[^ \n])", text.rstrip("\n"))
    return "".join(json.dumps({"level": "INFO", "message": part}) + "\n" for part in records)


def cri(text: str) -> str:
    """As a container runtime's file holds it: each line with a time, that of the line itself or of the last one that told any."""
    told = re.compile(r"\b\d\d:\d\d:\d\d\b")
    clock, lines = told.findall(text + "22:00:00")[0], []
    for line in text.split("\n"):
        clock = (told.findall(line[:120]) or [clock])[0]
        lines.append(f"2026-11-29T{clock}.123456789Z stderr F {line}\n")
    return "".join(lines)


@pytest.mark.parametrize("name", [name for name in CASES if "sglang" in name or "vllm" in name])
@pytest.mark.parametrize(
    "collect",
    [
        lambda text: "".join(f"head-1  | {line}\n" for line in text.split("\n")),
        cri,
        lambda text: "".join(f"\x1b[36m[pod/head-0/engine]\x1b[0m {line}\n" for line in text.split("\n")),
        lambda text: text.replace("\n", "\r\n"),
        as_json,
    ],
    ids=["compose", "cri", "pod in colour", "terminal", "json"],
)
def test_what_collectors_put_around_lines_changes_nothing(name: str, collect: t.Callable[[str], str]) -> None:
    head, worker, verdict, cause, culprits, _phases = CASES[name]
    sides = [(collect(text) if text is not None else None, known) for text, known in (head, worker)]
    found = judge([record(rank, side) for rank, side in enumerate(sides)])
    assert (found["verdict"], found["cause"]) == (verdict, cause)
    assert found["culprit"] in culprits


def test_what_failed_on_another_node_bears_its_address() -> None:
    remote = "\x1b[36m(RayWorkerProc pid=17722, ip=192.168.200.12)\x1b[0m "
    text = upto(RAY, "Starting to load model") + worker_error(1, OOM, process=remote)
    (found,) = [c for c in record(0, (text, UP))["reading"]["candidates"] if c["cause"] == "oom"]
    assert (found["address"], found["kind"], found["fatal"]) == ("192.168.200.12", "cause", True)
    found = judge([record(0, (text, gone(0))), record(1, (log("vllm-cpu/ray-ready", 1), UP))])
    assert (found["verdict"], found["cause"], found["culprit"]) == ("failed", "oom", "spark2")
    own = record(0, (vllm(0, "Starting to load model") + worker_error(0, OOM), UP))["reading"]["candidates"]
    assert [c["address"] for c in own] == [None]


def test_what_a_rank_of_another_node_claims_is_not_the_heads_claim() -> None:
    remote = "\x1b[36m(RayWorkerProc pid=17722, ip=192.168.200.12)\x1b[0m (Worker pid=17722) INFO 11-29 22:56:17 [parallel_state.py:1906] "
    text = (
        upto(RAY, "No current placement group") + remote + "world_size=2 rank=1 local_rank=0 distributed_init_method=tcp://192.168.200.11:43061 backend=gloo\n"
    )
    reading = record(0, (text, UP))["reading"]
    assert (reading["phase"], reading["claims"].get("rank")) == ("init_dist", None)
    assert record(0, (RAY, UP))["reading"]["claims"]["rank"] == "0"


def test_a_restart_policy_makes_several_runs() -> None:
    crash = raised(1, OOM)
    reading = record(1, (sglang(1, "Load weight begin") + crash + sglang(1, DUMMY) + raised(1, closed(1)) + sglang(1, BEGIN), UP))["reading"]
    assert reading["phase"] == "init_dist"
    assert reading["candidates"] == []
    assert reading["earlier"] == [{"phase": "load_weights", "cause": "oom"}, {"phase": "engine_ready", "cause": "peer_exited"}]


@pytest.mark.parametrize("process", ["", "(EngineCore pid=25591) "])
def test_json_of_vllm(process: str) -> None:
    lines = [line for line in vllm(0, "Application startup complete").split("\n") if line]
    text = "".join(
        process
        + json.dumps({"asctime": "2026-11-29 22:15:44,123", "levelname": "INFO", "name": "vllm", "processName": "EngineCore", "process": 1, "message": line})
        + "\n"
        for line in lines
    )
    told = record(0, (text, UP))["reading"]
    assert [p["phase"] for p in told["phases"]] == [p["phase"] for p in record(0, (VLLM[0], UP))["reading"]["phases"]]
    assert told["claims"] == record(0, (VLLM[0], UP))["reading"]["claims"]


@pytest.mark.parametrize("last", ["Load weight begin", "Uvicorn running on"])
def test_a_rotated_log(last: str) -> None:
    """What begins in the middle of a start shows what follows, and in the phases nothing that it does not hold."""
    text = SGLANG[0]
    text = text[text.index("\n", text.index(last)) + 1 :]
    reading = record(0, (text, UP))["reading"]
    assert reading["phase"] == "ready" and reading["engine"] == "sglang"
    assert [c["cause"] for c in reading["candidates"]] == ["peer_exited"]
