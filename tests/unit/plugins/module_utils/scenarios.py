# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# ruff: noqa: E501 - a real line is as long as it is.
"""What the scenarios are made of: parts of real logs, and what else is known of a rank."""

from __future__ import annotations

import re
import typing as t

import real_logs

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
Case = tuple[Side, Side, str, str | None, list[str | None], tuple[str | None, str | None]]
"""Head, worker, verdict, cause, culprits that are right, phases."""


def record(rank: int, side: Side, engine: str = "auto") -> dict[str, t.Any]:
    text, known = side
    reading = None
    if text is not None:
        timeline = Timeline(engine, 2026)
        timeline.feed(text)
        reading = timeline.reading()
    return {"node": f"spark{rank + 1}", "rank": rank, "quiet_seconds": 5, "reading": reading, **known}
