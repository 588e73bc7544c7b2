# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# ruff: noqa: E501 - a real line is as long as it is.
"""Failures of several nodes as users have reported them, with the lines in the shape of their logs; and collectors that others use."""

from __future__ import annotations

import json
import typing as t

import pytest

from ansible_collections.sparkstack.inference.plugins.module_utils._diagnosis import judge
from ansible_collections.sparkstack.inference.plugins.module_utils._timeline import Timeline

SG_STEPS = (
    ("init", "[2026-11-29 22:50:00] server_args=ServerArgs(model_path='/m', tp_size=2, nnodes=2, node_rank={r}, dist_init_addr='10.0.0.1:5000')"),
    ("init", "[2026-11-29 22:50:10 TP{r}] Init torch distributed begin."),
    ("nccl", "[2026-11-29 22:50:12 TP{r}] sglang is using nccl==2.27.3"),
    ("load", "[2026-11-29 22:50:15 TP{r}] Init torch distributed ends. mem usage=1.96 GB"),
    ("load", "[2026-11-29 22:50:16 TP{r}] Load weight begin. avail mem=110.34 GB"),
    ("capture", "[2026-11-29 22:52:16 TP{r}] Load weight end. type=X, dtype=torch.bfloat16, avail mem=50 GB, mem usage=60 GB."),
    ("capture", "[2026-11-29 22:52:20 TP{r}] Capture cuda graph begin. This can take up to several minutes. avail mem=11.50 GB"),
    ("up", "[2026-11-29 22:52:42] INFO:     Uvicorn running on http://0.0.0.0:30000 (Press CTRL+C to quit)"),
)
V_STEPS = (
    ("init", "(APIServer pid=1) INFO 11-29 22:50:00 [utils.py:253] non-default args: {{'model_tag': '/m', 'tensor_parallel_size': 2}}"),
    ("init", "(EngineCore_DP0 pid=200) INFO 11-29 22:50:10 [core.py:93] Initializing a V1 LLM engine (v0.14.0) with config: model='/m'"),
    (
        "init",
        "(Worker pid=30{r}) INFO 11-29 22:50:15 [parallel_state.py:1212] world_size=2 rank={r} local_rank=0 distributed_init_method=tcp://10.0.0.1:29501 backend=nccl",
    ),
    ("load", "(Worker pid=30{r}) INFO 11-29 22:50:18 [parallel_state.py:1423] rank {r} in world size 2 is assigned as DP rank 0, PP rank 0, TP rank {r}"),
    ("load", "(Worker_TP{r} pid=30{r}) INFO 11-29 22:50:20 [gpu_model_runner.py:3808] Starting to load model /m..."),
)
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 119.68 GiB of which 1.10 GiB is free."
GLOO = "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:21213"
Log = str | None | tuple[str, dict[str, t.Any]]


def lines(*texts: str, before: str = "") -> str:
    return "".join(f"{before}{text}\n" for text in texts)


def upto(steps: t.Sequence[tuple[str, str]], step: str, rank: int) -> str:
    last = max(number for number, (name, _text) in enumerate(steps) if name == step)
    return lines(*(text.format(r=rank) for _name, text in steps[: last + 1]))


def sglang(step: str, rank: int, *after: str) -> str:
    return upto(SG_STEPS, step, rank) + lines(*after)


def scheduler(rank: int, raised: str, when: str = "22:53:00", hit: str = "Scheduler hit an exception: ") -> tuple[str, ...]:
    return (
        f"[2026-11-29 {when} TP{rank}] {hit}Traceback (most recent call last):",
        '  File "/sgl-workspace/sglang/python/sglang/srt/managers/scheduler.py", line 1816, in run_scheduler_process',
        "    scheduler = Scheduler(server_args, port_args, gpu_id, tp_rank, dp_rank)",
        *raised.split("\n"),
        "",
        f"[2026-11-29 {when}] Received sigquit from a child process. It usually means the child failed.",
    )


def vllm(step: str, rank: int, *after: str) -> str:
    return upto(V_STEPS, step, rank) + lines(*after)


def worker(rank: int, raised: str) -> tuple[str, ...]:
    before = f"(Worker_TP{rank} pid=30{rank}) ERROR 11-29 22:53:00 [multiproc_executor.py:772] "
    frames = (
        "WorkerProc failed to start.",
        "Traceback (most recent call last):",
        '  File "/x/vllm/v1/executor/multiproc_executor.py", line 743, in worker_main',
    )
    return tuple(before + text for text in (*frames, *raised.split("\n")))


CORE = "(EngineCore_DP0 pid=200) ERROR 11-29 22:53:00 [core.py:866] "
CORE_FRAMES = ("EngineCore failed to start.", "Traceback (most recent call last):", '  File "/x/vllm/v1/engine/core.py", line 857, in run_engine_core')
RAY_HEAD = vllm("init", 0).replace("(Worker pid=300)", "(EngineCore_DP0 pid=200) (RayWorkerWrapper pid=301)")
RAY_NODE = lines(
    "2026-11-29 22:49:00,101\tINFO scripts.py:1152 -- \x1b[37mLocal node IP\x1b[39m: \x1b[1m10.0.0.2\x1b[22m",
    "2026-11-29 22:49:02,500\tSUCC scripts.py:1169 -- \x1b[32mRay runtime started.\x1b[39m",
)
REMOTE = "(EngineCore_DP0 pid=200) (RayWorkerWrapper pid=277, ip=10.0.0.2) ERROR 11-29 22:52:59 [worker_base.py:341] "
DIED = "A worker died or was killed while executing a task by an unexpected system error. Worker IP address: 10.0.0.{} Worker port: 10002 Worker PID: 442"


def ray_error(node: int) -> str:
    """What ray.get() raises on the head for what a worker of a node has raised."""
    told = f"ray.exceptions.RayTaskError(OutOfMemoryError): ray::RayWorkerWrapper.execute_method() (pid=277, ip=10.0.0.{node}, actor_id=5066c201, repr=<X object at 0x7f>)"
    return RAY_HEAD + lines(*CORE_FRAMES, told, '  File "/x/vllm/v1/worker/worker_base.py", line 343, in execute_method', "    raise e", OOM, before=CORE)


def actor_died(node: int, first: str = "The actor died unexpectedly before finishing this task.") -> str:
    told = (
        f"ray.exceptions.ActorDiedError: {first}",
        "\tclass_name: RayWorkerWrapper",
        "\tpid: 442",
        f"\tip: 10.0.0.{node}",
        "The actor is dead because its worker process has died.",
    )
    return lines(*CORE_FRAMES, *told, before=CORE)


GONE = "torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:2363, remote process exited or there was a network error, NCCL version 2.27.3\nncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.\nLast error:\nsocketProgressOpt: Call to recv from 10.0.0.2<49901> failed : Broken pipe"
NO_ROUTE = "node5:240:240 [6] misc/socket.cc:533 NCCL WARN socketPollConnect: Connect to 10.0.0.4<56849> returned 113(No route to host) errno 115"
WATCHDOG = (
    "[rank0]:[E1129 23:22:22.222222222 ProcessGroupNCCL.cpp:632] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5, OpType=ALLREDUCE) ran for 600010 milliseconds",
    "terminate called after throwing an instance of 'c10::DistBackendError'",
    "Fatal Python error: Aborted",
    "[2026-11-29 23:22:30] Received sigquit from a child process. It usually means the child failed.",
)
CAPTURE = (
    'torch.OutOfMemoryError: CUDA out of memory.\n\nDuring handling of the above exception, another exception occurred:\n\nTraceback (most recent call last):\n  File "b.py", line 2, in y\n'
    "Exception: Capture cuda graph failed: CUDA out of memory. Tried to allocate 2.00 GiB.\nPossible solutions:\n1. set --mem-fraction-static to a smaller value (e.g., 0.8 or 0.7)"
)
DEAD_SCHEDULER = (
    "[2026-11-29 22:53:01] Rank 0 scheduler is dead. Please check if there are relevant logs.",
    "[2026-11-29 22:53:02] Exit code: {}",
    "Traceback (most recent call last):",
    '  File "/sgl-workspace/sglang/python/sglang/srt/entrypoints/engine.py", line 664, in _launch_subprocesses',
    "    data = scheduler_pipe_readers[i].recv()",
    "EOFError",
)
UNCAUGHT = ("Traceback (most recent call last):", '  File "/x/run.py", line 1, in <module>', "    sys.exit(main())")
GATED = (
    "Traceback (most recent call last):",
    '  File "/x/huggingface_hub/utils/_http.py", line 407, in hf_raise_for_status',
    "requests.exceptions.HTTPError: 401 Client Error: Unauthorized for url: https://huggingface.co/x/resolve/main/config.json",
    "",
    "The above exception was the direct cause of the following exception:",
    "",
    *UNCAUGHT,
    "OSError: You are trying to access a gated repo.",
)
NO_HUB = (
    "Traceback (most recent call last):",
    '  File "/x/urllib3/connection.py", line 204, in _new_conn',
    "socket.gaierror: [Errno -3] Temporary failure in name resolution",
    "",
    "The above exception was the direct cause of the following exception:",
    "",
    *UNCAUGHT,
    "OSError: We couldn't connect to 'https://huggingface.co' to load the files, and couldn't find them in the cached files.",
)
GCS = (
    "[2026-11-29 22:49:05,123 E 1 1] gcs_rpc_client.h:179: Failed to connect to GCS at address 10.0.0.1:6379 within 5 seconds.",
    "Traceback (most recent call last):",
    '  File "/usr/local/bin/ray", line 8, in <module>',
    "RuntimeError: Failed to connect to GCS.",
)
TRIED = lines(
    "Traceback (most recent call last):",
    '  File "/x/torch/_inductor/select_algorithm.py", line 2718, in benchmark',
    "triton.OutOfResources: out of resource: shared memory, Required: 147456, Hardware limit: 101376.",
    before="[rank1]:E1129 22:52:21.928000 1234 torch/_inductor/select_algorithm.py:2718] [0/0] ",
)
SHELL = "./run.sh: line 19: 867080 Killed                  python -m sglang.launch_server --model-path $MODEL_PATH"

# Logs, the head's first; a verdict is "failed" with this cause and culprit.
CASES: dict[str, tuple[list[Log], str | None, str | None]] = {
    "the worker's memory, and what the head says of it": ([sglang("load", 0, *scheduler(0, GLOO)), sglang("load", 1, *scheduler(1, OOM))], "oom", "spark2"),
    "memory, in the capture": ([sglang("capture", 0), sglang("capture", 1, *scheduler(1, CAPTURE))], "oom", "spark2"),
    "memory, and only the capture tells": (
        [sglang("capture", 0), sglang("capture", 1, *scheduler(1, "Exception: Capture cuda graph failed: CUDA out of memory. Tried to allocate 2.00 GiB."))],
        "oom",
        "spark2",
    ),
    "memory, after the trial of a kernel that doesn't fit": (
        [sglang("capture", 0), (sglang("capture", 1) + TRIED + lines(*scheduler(1, OOM)), {"exit_code": 1})],
        "oom",
        "spark2",
    ),
    "torch's word on a peer that is gone": ([sglang("capture", 0, *scheduler(0, GONE)), sglang("load", 1)], "peer_exited", "spark2"),
    "NCCL has no way to the other node": (
        [
            sglang("nccl", 0),
            sglang("nccl", 1, NO_ROUTE, *scheduler(1, "RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)")),
        ],
        "net_unreachable",
        "spark2",
    ),
    "torch's watchdog aborts a rank that waited in vain": ([sglang("capture", 0, *WATCHDOG), sglang("capture", 1)], "nccl_timeout", None),
    "a rank that lost its peer is ended": (
        [
            sglang("load", 0),
            sglang("load", 1, *scheduler(1, GLOO.replace("0.2]", "0.1]")), "[2026-11-29 22:53:09] Scheduler or DataParallelController 9 terminated with -9"),
        ],
        "peer_exited",
        "spark1",
    ),
    "a local crash, of which a neighbour on the node says that its peer is gone": (
        [sglang("load", 0), sglang("load", 1, *scheduler(1, GLOO), "[2026-11-29 22:53:09] Scheduler or DataParallelController 9 terminated with -11")],
        "worker_died",
        "spark2",
    ),
    "an older SGLang's scheduler was killed": ([sglang("load", 0), sglang("load", 1, *DEAD_SCHEDULER).format(-9)], "oom", "spark2"),
    "an older SGLang's scheduler ended": ([sglang("load", 0), sglang("load", 1, *DEAD_SCHEDULER).format(-11)], "worker_died", "spark2"),
    "the first request fails": (
        [
            sglang("up", 0, *scheduler(0, "AssertionError: res=<Response [503]>, res.text=''", hit="Initialization failed. warmup error: ")),
            sglang("capture", 1),
        ],
        "unknown",
        "spark1",
    ),
    "an image without the engine": ([sglang("init", 0), "/usr/bin/python3: No module named sglang.launch_server\n"], "bad_image", "spark2"),
    "a command that is not there": ([sglang("init", 0), ("/entrypoint.sh: 3: exec: serve: not found\n", {"exit_code": 127})], "bad_image", "spark2"),
    "of three, two complain of the same peer": (
        [sglang("load", 0, *scheduler(0, GLOO)), sglang("load", 1), sglang("load", 2, *scheduler(2, GLOO))],
        "peer_exited",
        "spark2",
    ),
    "of three, one complains of a peer that nobody knows": (
        [sglang("load", 0, *scheduler(0, GLOO)), sglang("load", 1), sglang("load", 2)],
        "peer_exited",
        None,
    ),
    "killed under a shell": ([sglang("load", 0), (sglang("load", 1, SHELL), {"exit_code": 137})], "killed", "spark2"),
    "an exception that nobody caught, as torch prints it": (
        [sglang("load", 0), sglang("load", 1) + lines(*UNCAUGHT, OOM, before="[rank1]: ")],
        "oom",
        "spark2",
    ),
    "an exception that nobody caught, as vLLM prints it": ([vllm("init", 0) + lines(*GATED, before="(APIServer pid=1) "), None], "permission", "spark1"),
    "no model, and no way to the hub": ([vllm("init", 0), lines(*NO_HUB)], "missing_weights", "spark2"),
    "vLLM's worker has no memory": ([vllm("load", 0), vllm("load", 1, *worker(1, OOM))], "oom", "spark2"),
    "a kernel that the GPU can't run": (
        [
            vllm(
                "load",
                0,
                *worker(
                    0,
                    "triton.runtime.errors.PTXASError: PTXAS error: Internal Triton PTX codegen error\n`ptxas` stderr:\nptxas fatal   : Value 'sm_121a' is not defined",
                ),
            ),
            vllm("load", 1),
        ],
        "unsupported_gpu_arch",
        "spark1",
    ),
    "nothing but the outermost word": (
        [
            vllm("load", 0) + lines(*UNCAUGHT, "RuntimeError: Engine core initialization failed. Failed core proc(s): {}", before="(APIServer pid=1) "),
            vllm("load", 1),
        ],
        "unknown",
        "spark1",
    ),
    "nothing but the outermost word, and what ended the core": (
        [
            vllm("load", 0)
            + lines(*UNCAUGHT, "RuntimeError: Engine core initialization failed. Failed core proc(s): {'EngineCore': -9}", before="(APIServer pid=1) "),
            vllm("load", 1),
        ],
        "worker_died",
        "spark1",
    ),
    "the compilers of kernels have no memory": (
        [
            vllm("load", 0),
            vllm(
                "load",
                1,
                *worker(
                    1,
                    "RuntimeError: Ninja build failed. Ninja output:\n[1/18] nvcc -c a.cu\nFAILED: [code=137] a.cuda.o\nninja: build stopped: subcommand failed.",
                ),
            ),
        ],
        "oom",
        "spark2",
    ),
    "vLLM stopped on request, by an older one's word": (
        [(vllm("load", 0, "(APIServer pid=1) INFO 11-29 23:00:00 [launcher.py:110] Shutting down FastAPI HTTP server."), {"exit_code": 0}), vllm("load", 1)],
        None,
        None,
    ),
    "ray: what a remote worker raised": ([ray_error(2), RAY_NODE], "oom", "spark2"),
    "ray: what the head's own worker raised": ([ray_error(1), RAY_NODE], "oom", "spark1"),
    "ray: what a remote worker raised, after its own lines": (
        [RAY_HEAD + lines("Error executing method 'load_model'.", *CORE_FRAMES[1:], OOM, before=REMOTE) + ray_error(2)[len(RAY_HEAD) :], RAY_NODE],
        "oom",
        "spark2",
    ),
    "ray: a remote worker died": ([RAY_HEAD + lines("(raylet, ip=10.0.0.2) " + DIED.format(2)) + actor_died(2), RAY_NODE], "worker_died", "spark2"),
    "ray: a remote worker died, by one raylet's word": ([RAY_HEAD + lines("(raylet) " + DIED.format(2)), RAY_NODE], "worker_died", "spark2"),
    "ray: the head's own worker died": ([RAY_HEAD + lines("(raylet) " + DIED.format(1)), RAY_NODE], "worker_died", "spark1"),
    "ray: an actor died": ([RAY_HEAD + actor_died(2), RAY_NODE], "worker_died", "spark2"),
    "ray: an actor's node died": ([RAY_HEAD + actor_died(2, "The actor died because its node has died. Node Id: 82"), RAY_NODE], "peer_exited", "spark2"),
    "ray: the memory monitor of a node": (
        [
            RAY_HEAD
            + "(raylet) 1 Workers (tasks / actors) killed due to memory pressure (OOM), 0 Workers crashed due to other reasons at node (ID: 82, IP: 10.0.0.2)\n",
            RAY_NODE,
        ],
        "ray_oom_kill",
        "spark2",
    ),
    "ray: a node does not reach the head's Ray": ([vllm("init", 0), (lines(*GCS), {"exit_code": 1})], "rendezvous_timeout", "spark2"),
}


def verdict(logs: t.Sequence[Log]) -> dict[str, t.Any]:
    records = []
    for rank, log in enumerate(logs):
        text, known = log if isinstance(log, tuple) else (log, {})
        record = {"node": f"spark{rank + 1}", "rank": rank, "started": log is not None, "quiet_seconds": 5.0, "running": log is not None and not known, **known}
        if text is not None:
            timeline = Timeline("auto", 2026)
            timeline.feed(text)
            record["reading"] = timeline.reading()
        records.append(record)
    return judge(records)


@pytest.mark.parametrize("name", CASES)
def test_reported(name: str) -> None:
    logs, cause, culprit = CASES[name]
    found = verdict(logs)
    assert (found["verdict"], found["cause"], found["culprit"]) == ("failed", cause, culprit), found["summary"]
    assert found["summary"].endswith(".") and found["remedy"].endswith(".")


@pytest.mark.parametrize(
    "collect",
    [
        lambda line: f"vllm_worker.1.x7k2@spark2    | {line}",
        lambda line: f"head-1  | 2026-11-29T22:53:00.123456789Z {line}",
        lambda line: f"2026-11-30T11:00:00+0000 spark1 docker[123]: {line}",
        lambda line: f"2026-11-30T11:00:00.123456+00:00 spark1 docker[123]: {line}",
        lambda line: f"[12345.678901] spark1 docker[123]: {line}",
        lambda line: f"Nov 30 11:00:00 spark-1a2b vllm-head/d3adb33f1234[77]: {line}",
        lambda line: f"Nov 30 11:00:00 {line}",
        lambda line: f"1: {line}",
        lambda line: f"[1,1]<stdout>: {line}",
        lambda line: f"\x1b[36m{line}\x1b[0m\r",
        lambda line: json.dumps({"__REALTIME_TIMESTAMP": "1796000000000000", "_HOSTNAME": "spark1", "MESSAGE": line}),
        lambda line: json.dumps({"ts": "2026-11-29T22:53:00.1Z", "line": line}),
        lambda line: json.dumps({"textPayload": line, "timestamp": "2026-11-29T22:53:00.1Z"}),
    ],
    ids="service compose iso rsyslog monotonic journal ts srun mpirun ansi journal-json loki gcp".split(),
)
def test_collected(collect: t.Callable[[str], str]) -> None:
    for name in ("the worker's memory, and what the head says of it", "vLLM's worker has no memory"):
        logs, cause, culprit = CASES[name]
        found = verdict([lines(*(collect(line) for line in str(log).split("\n")[:-1])) for log in logs])
        assert (found["verdict"], found["cause"], found["culprit"]) == ("failed", cause, culprit)
        assert any("File" in line for line in found["evidence"])
        assert [known["phase"] for known in found["nodes"].values()] == ["load_weights", "load_weights"]
