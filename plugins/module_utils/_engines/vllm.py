# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""All that is particular to vLLM."""

from __future__ import annotations

import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils._engines import _ray
from ansible_collections.sparkstack.inference.plugins.module_utils._engines._argv import CACHE, render
from ansible_collections.sparkstack.inference.plugins.module_utils._engines._parser import DUMP
from ansible_collections.sparkstack.inference.plugins.module_utils._engines._types import (
    Engine,
    Launch,
    Log,
    RankSpec,
)
from ansible_collections.sparkstack.inference.plugins.module_utils._engines._types import Marker as M
from ansible_collections.sparkstack.inference.plugins.module_utils._engines._types import Signature as S
from ansible_collections.sparkstack.inference.plugins.module_utils._engines._vllm_memory import MEMORY

# How it is started.


def _command(spec: RankSpec) -> t.List[str]:
    argv = ["vllm", "serve", spec.model_path, "--served-model-name", spec.served_name]
    argv += ["--tensor-parallel-size", str(spec.tensor_parallel_size)]
    if spec.pipeline_parallel_size > 1:
        argv += ["--pipeline-parallel-size", str(spec.pipeline_parallel_size)]
    if spec.expert_parallel:
        argv += ["--enable-expert-parallel"]
    over_ray = spec.executor == "ray"
    if over_ray:
        # One command for all ranks: those of the other nodes are processes that Ray starts there.
        argv += ["--distributed-executor-backend", "ray"]
    else:
        # Native multi-node mode, since 0.11.1. "nnodes > 1 can only be set when distributed executor backend is mp, uni or
        # external_launcher."; a CPU build doesn't choose mp by itself, so it is said.
        argv += ["--nnodes", str(spec.ranks), "--node-rank", str(spec.rank), "--distributed-executor-backend", "mp"]
        argv += ["--master-addr", spec.head_address, "--master-port", str(spec.rendezvous_port)]
    if spec.rank == 0:
        argv += ["--host", spec.listen_address, "--port", str(spec.port)]
    elif not over_ray:
        argv += ["--headless"]
    argv += render(spec.arguments, negation=LAUNCH.negation)
    return _ray.command(spec, argv) if over_ray else argv


def _environment(spec: RankSpec) -> t.Dict[str, str]:
    return {
        "VLLM_HOST_IP": spec.address,
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CACHE_ROOT": CACHE + "/vllm",
        # The message queue's reader waits that long for a rank that has died (300 s) before the request fails.
        "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "120",
        **(_ray.environment(spec) if spec.executor == "ray" else {}),
    }


LAUNCH = Launch(
    port=8000,
    rendezvous_port=29501,
    command=_command,
    environment=_environment,
    owned=frozenset(
        "model served-model-name tensor-parallel-size pipeline-parallel-size enable-expert-parallel nnodes node-rank master-addr master-port "
        "headless host port distributed-executor-backend api-key".split()
    ),
    secret=frozenset(["hf-token"]),
    # What SGLang calls the same thing.
    equivalents={
        "mem-fraction-static": "gpu-memory-utilization",
        "context-length": "max-model-len",
        "max-running-requests": "max-num-seqs",
        "chunked-prefill-size": "max-num-batched-tokens",
        "max-prefill-tokens": "max-num-batched-tokens",
        "max-total-tokens": "kv-cache-memory-bytes",
        "disable-cuda-graph": "enforce-eager",
        "dist-timeout": "distributed-timeout-seconds",
        "tp-size": "tensor-parallel-size",
        "pp-size": "pipeline-parallel-size",
        "dp-size": "data-parallel-size",
        "dist-init-addr": "master-addr",
        "model-path": "model",
        "random-seed": "seed",
        "moe-runner-backend": "moe-backend",
        "disable-radix-cache": "no-enable-prefix-caching",
    },
    # The parser's own module has moved with almost every second version (0.32: vllm.entrypoints.launchers.cli_args); the
    # command that uses it has not.
    parser_source=DUMP
    + """
import vllm
from vllm.entrypoints.cli import serve

dump(serve.make_arg_parser(serve.FlexibleArgumentParser()), vllm.__version__, ["ray"])
""",
    abbreviations=True,
    underscores=True,
    negation="no-",
    api_key_variable="VLLM_API_KEY",
    executors=("mp", "ray"),
    joined_by={"ray": _ray.EXECUTOR},
)

# How its log reads: 0.9 to 0.33, from the wheels' own sources and from runs of 0.32.0 on two nodes.

_KV_ROOM = (
    "Free memory on {node} (drop the page cache, stop other processes), or lower max-model-len or the KV cache asked for, or raise gpu-memory-utilization."
)
_FREE = "Free memory on {node} (drop the page cache, stop other processes) or lower gpu-memory-utilization."
_ALONE = "Let nothing else take or free memory of {node}'s GPU while the engine starts: it measures how much is left."
_SLOW = "Look at the progress of the load: raise VLLM_ENGINE_READY_TIMEOUT_S where it is only slow, else see why it stands still."
_PLACEMENT = "Start Ray on every node with its fabric address (VLLM_HOST_IP), and compare `ray status` with the GPUs wanted."
_CAPTURE = r"Capturing CUDA graphs \((?P<capture>[^)]+)\)"

# fmt: off
LOG = Log(
    # "(Worker_TP0 pid=25763) INFO 11-29 22:16:01 [cpu_model_runner.py:68] "; the process stands apart, see _timeline. Of some modules there
    # is no first bracket: "INFO 08-16 15:50:41 config.py:774] ".
    prefix=r"(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)? \[?[^\[\]\s]+:\d+\] ?",
    markers=(
        M("parse_args", "non-default args:", start=True),
        # "Launching vLLM (v0.32.0) headless multiproc executor, with ..", "Launching 1 data parallel engine(s) in headless mode, with ..".
        M("parse_args", ", with head node address", r"\(v(?P<version>[^)]+)\)", start=True),
        M("parse_args", "vLLM API server version", r"version (?P<version>\S+)"),
        M("parse_args", "Resolved architecture:", r"architecture: (?P<architecture>\w+)"),
        # "Initializing a V1 LLM engine (v0.9.2) with config", until 0.10 also "a V0 LLM engine".
        M("parse_args", " LLM engine (v", r"\(v(?P<version>[^)]+)\)"),
        M("parse_args", "Using max model len", r"len (?P<context_tokens>\d+)"),
        # Ray's word on the node itself, and on the head's: needed to tell whose the lines are that it brings to the head's log.
        M("parse_args", "Local node IP:"),
        # The head's Ray is complete: what follows is the engine's.
        M("parse_args", "Ray launcher: all of "),
        M("parse_args", "existing Ray cluster at address:"),
        M("init_dist", "DP group leader: node_rank="),
        M("init_dist", "No current placement group found"),
        M("init_dist", "distributed_init_method=", r"backend=(?P<backend>\w+)"),
        M("init_dist", "vLLM is using nccl==", r"nccl==(?P<nccl>[\d.]+)"),
        M("create_runner", "is assigned as DP rank"),
        M("create_runner", "attention backend out of potential backends", r"Using (?P<attention>\w+) attention"),
        M("load_weights", "Starting to load model"),
        M("load_weights", "Filesystem type for checkpoints", r"checkpoints: (?P<filesystem>\w+)|size: (?P<checkpoint_gib>[\d.]+)|RAM: (?P<ram_gib>[\d.]+)"),
        M("load_weights", "Loading weights took", r"took (?P<load_seconds>[\d.]+)"),
        M("kv_cache", "Model loading took", r"took (?P<used_gib>[\d.]+) Gi?B|and (?P<load_seconds>[\d.]+) seconds", of="load_weights"),
        M("kv_cache", "Dynamo bytecode transform time"),
        M("kv_cache", "torch.compile take", r"takes? (?P<compile_seconds>[\d.]+) s"),
        M("kv_cache", "torch.compile took", r"took (?P<compile_seconds>[\d.]+) s"),
        M("kv_cache", "Initial profiling/warmup run took", r"took (?P<profile_seconds>[\d.]+)"),
        M("kv_cache", "Memory profiling takes", r"takes (?P<profile_seconds>[\d.]+)"),
        M("kv_cache", "Available KV cache memory", r"memory: (?P<available_gib>-?[\d.]+)"),
        M("kv_cache", "GiB for KV cache on node", r"\((?P<kv_gib>[\d.]+)/(?P<total_gib>[\d.]+)\) GiB"),
        M("kv_cache", "KV cache size:", r"size: (?P<tokens>[\d,]+) tokens|per request: (?P<concurrency>[\d.]+)x"),
        M("kv_cache", "Maximum concurrency for", r"per request: (?P<concurrency>[\d.]+)x"),
        M("graph_capture", "Autotuning process starts"),
        M("graph_capture", "Capturing CUDA graph", _CAPTURE),
        M("graph_capture", "Capturing cudagraphs for decoding"),
        M("graph_capture", "Graph capturing finished in", r"in (?P<capture_seconds>[\d.]+) secs?, took (?P<used_gib>-?[\d.]+)"),
        M("engine_ready", "init engine (", r"took (?P<init_seconds>[\d.]+)"),
        M("http_warmup", "Starting vLLM server on"),
        M("http_warmup", "Starting vLLM API server"),
        M("http_warmup", "Available routes are:"),
        M("ready", "Application startup complete."),
        # A log that begins later than the start: only a head that serves prints these.
        M("ready", "Avg prompt throughput"),
        M("ready", "Received request "),
        M("ready", '/completions HTTP/1.1" 200'),
    ),
    signatures=(
        *_ray.SIGNATURES,
        # Printed when idle as well.
        S("noise", "No available shared memory broadcast block found", "noise", line=True),
        S("noise", "WorkerProc initialization failed due to an exception", "wrapper"),
        # ".. See root cause above. Failed core proc(s): {'EngineCore_DP0': -9}": killed, and nothing stands above; of {} or 1 something does.
        S("worker_died", "Failed core proc(s): {'", "death", pattern=r"\{'[^']*': (?P<code>-\d+)"),
        S("noise", "Engine core initialization failed", "wrapper"),
        S("noise", "EngineDeadError", "wrapper"),
        S("noise", "Engine process failed to start", "wrapper"),
        S("noise", "Parent process exited, terminating worker", "wrapper", line=True),
        S("noise", "trigger received signal=SIGTERM", "stop", line="SIGTERM"),
        # Said upon a signal only, before the engine gets one of its own; the first until 0.20.
        S("noise", "Shutting down FastAPI HTTP server", "stop", line=True),
        S("noise", "API server: shutdown triggered", "stop", line="shutdown triggered"),
        # 0.33 also: "is less than the engine's budget after excluding external process's weights".
        S("oom", "Free memory on device", pattern=r"on startup is less than", remedy=_FREE),
        S("oom", "Externally held weights on device", remedy=_FREE),
        S("oom", "Error in memory profiling", remedy=_ALONE),
        S("oom", "Cannot auto-fit max_model_len", remedy=_KV_ROOM),
        S("oom", "leaving none for the KV cache", remedy=_KV_ROOM),
        S("oom", "No available memory for the cache blocks", remedy=_KV_ROOM),
        # Until 0.17 "the models's max seq len".
        S("oom", "To serve at least one request with the model", remedy=_KV_ROOM),
        S("oom", "on kv cache allocation is less than requested", "relay", r"Worker failed with error", remedy=_KV_ROOM),
        S("oom", "on kv cache allocation is less than requested", remedy=_KV_ROOM),
        S("noise", "One or more workers failed", "wrapper"),
        S("noise", "Executor failed.", "wrapper"),
        S("noise", "Frontend process failed during engine core initialization", "wrapper"),
        S("noise", "Did not receive response from front-end process", "wrapper"),
        S("noise", "Ray workers have not started successfully", "wrapper"),
        S("watchdog", "Timed out waiting for engine core processes to start", remedy=_SLOW),
        S("watchdog", "Timed out waiting for new engine core processes", remedy=_SLOW),
        S("unknown", "Worker failed with error", "relay", r"^(?!.*by peer)"),
        S("rendezvous_timeout", "Waiting for creating a placement group of specs for", "soft", line=True, remedy=_PLACEMENT),
        S("rendezvous_timeout", "Cannot provide a placement group", "peer", remedy=_PLACEMENT),
        S("rendezvous_timeout", "Not enough resources to allocate", "peer", remedy=_PLACEMENT),
        S("driver", "Current node has no", pattern=r"has no \w+ available"),
        S("driver", "Failed to infer device type"),
        S("bad_flag", "ipeline parallelism is", pattern=r"is (?:not|only) supported"),
        S("bad_flag", "exceeds the total number of available", pattern=r"placement group"),
        S("bad_flag", "Configuration mismatch detected for engine"),
        S("bad_flag", "use --headless", pattern=r"Remote engine .* must"),
        S("bad_flag", "Unknown vLLM environment variable"),
        S("bad_flag", "No valid attention backend found"),
        S("bad_flag", "is not valid for this configuration"),
        S("bad_flag", "is greater than the derived max_model_len"),
        # Pydantic's: the reason follows, in a line of its own.
        S("bad_flag", "validation error", "unknown", pattern=r"\d+ validation errors? for \w+Config"),
        S("unsupported_arch", "was supported in vLLM until"),
        S("unsupported_arch", "is not supported in-tree anymore"),
        S("net_unreachable", "Neither 127.0.0.1 nor ::1 are bound"),
        S("nccl_timeout", "Barrier timed out after", "peer"),
        S("bad_flag", "nnodes > 1 can only be set when"),
        S("custom_allreduce_ipc", "custom_all_reduce.cuh", line=True, pattern=r"invalid resource handle"),
        S("noise", "died unexpectedly", "noise", r"exit code: 0\)", line=True),
        S("worker_died", "died unexpectedly", "death", r"RayWorkerProc rank=\[?(?P<rank>\d+)", line=True),
        S("worker_died", "died unexpectedly", "death", r"Worker proc", line=True),
        S("worker_died", "died unexpectedly", "death", r"Engine core proc", line=True),
        # Ray, of any node: ".. by an unexpected system error. To troubleshoot the problem, .. Worker IP address: 172.20.96.130 Worker port: 10002 ..".
        S("worker_died", "A worker died or was killed while executing", "death", r"Worker IP address: (?P<address>[\d.a-fA-F:]+)", line=True),
        S("watchdog", "timed out", "peer", r"RPC call to \w+ timed out"),
        S("bad_image", "InvalidCxxCompiler"),
    ),
    bars=("% Completed |", "%|", "Capturing CUDA graph"),
    options=("/vllm/engine/arg_utils.py", "/vllm/config/"),
    fatal=("hit an exception", "failed to start.", "encountered a fatal error"),
    claims={
        "rank": r"\bworld_size=\d+ rank=(\d+) ",
        "ranks": r"\bworld_size=(\d+) rank=",
        "local": r"\blocal_rank=([1-9]\d*) ",
        "rendezvous": r"\bdistributed_init_method=tcp://(\S+)",
        "address": r"(?:Local node IP|existing Ray cluster at address): ([\d.]*\d)",
    },
    last_sign="kv_cache",
    elsewhere=("Ray runtime started.",),
)
# fmt: on

ENGINE = Engine(name="vllm", title="vLLM", launch=LAUNCH, log=LOG, memory=MEMORY)
