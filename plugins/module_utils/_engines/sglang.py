# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""All that is particular to SGLang."""

from __future__ import annotations

import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils._engines._argv import CACHE, render
from ansible_collections.sparkstack.inference.plugins.module_utils._engines._parser import DUMP
from ansible_collections.sparkstack.inference.plugins.module_utils._engines._sglang_memory import MEMORY
from ansible_collections.sparkstack.inference.plugins.module_utils._engines._types import (
    Engine,
    Launch,
    Log,
    RankSpec,
)
from ansible_collections.sparkstack.inference.plugins.module_utils._engines._types import Marker as M
from ansible_collections.sparkstack.inference.plugins.module_utils._engines._types import Signature as S

# How it is started.


# SGLang takes its API key as an option only, and prints all options ("server_args=ServerArgs(.. api_key='..'",
# 0.5.23: "server_args={.. 'api_key': '..'").
# This keeps the key out of the container's command line, and out of its log: there it reads as asterisks. A process that is
# spawned doesn't know the class, and gets a plain text.
_WITH_KEY = """
import os, runpy, sys

class Key(str):
    def __str__(self): return self
    def __repr__(self): return "'***'"
    def __deepcopy__(self, memo): return self
    def __reduce__(self): return str, (str.__str__(self),)

sys.argv += ["--api-key", Key(os.environ["SGLANG_API_KEY"])]
runpy.run_module("sglang.launch_server", run_name="__main__", alter_sys=True)
"""


def _command(spec: RankSpec) -> t.List[str]:
    argv = ["python3", "-c", _WITH_KEY] if spec.with_api_key else ["python3", "-m", "sglang.launch_server"]
    argv += ["--model-path", spec.model_path, "--served-model-name", spec.served_name]
    argv += ["--tp-size", str(spec.tensor_parallel_size), "--nnodes", str(spec.ranks), "--node-rank", str(spec.rank)]
    if spec.pipeline_parallel_size > 1:
        argv += ["--pp-size", str(spec.pipeline_parallel_size)]
    if spec.expert_parallel:
        # "ep_size" counts GPUs, within one stage's tensor parallel group.
        argv += ["--ep-size", str(spec.tensor_parallel_size)]
    argv += ["--dist-init-addr", "{0}:{1}".format(spec.head_address, spec.rendezvous_port)]
    # A worker serves a dummy /health on the same port; it is not for the office network.
    argv += ["--host", spec.listen_address if spec.rank == 0 else "127.0.0.1", "--port", str(spec.port)]
    return argv + render(spec.arguments, negation=LAUNCH.negation)


def _environment(spec: RankSpec) -> t.Dict[str, str]:
    return {
        # Without it the message queue may advertise the Wi-Fi's address and TP=2 freezes after
        # "CustomAllreduce is disabled because this process group spans across nodes."
        "SGLANG_HOST_IP": spec.address,
        "HOST_IP": spec.address,
        "SGLANG_CACHE_DIR": CACHE + "/sglang",
        "SGLANG_JIT_CACHE_DIR": CACHE + "/sglang-jit",
    }


LAUNCH = Launch(
    port=30000,
    rendezvous_port=25000,
    command=_command,
    environment=_environment,
    owned=frozenset(
        "model-path model served-model-name tp-size tensor-parallel-size pp-size pipeline-parallel-size ep-size expert-parallel-size ep nnodes node-rank "
        "dist-init-addr nccl-init-addr host port api-key".split()
    ),
    secret=frozenset(["admin-api-key", "ssl-keyfile-password"]),
    # What vLLM calls the same thing.
    equivalents={
        "gpu-memory-utilization": "mem-fraction-static",
        "max-model-len": "context-length",
        "max-num-seqs": "max-running-requests",
        "max-num-batched-tokens": "chunked-prefill-size",
        "enforce-eager": "disable-cuda-graph",
        "distributed-timeout-seconds": "dist-timeout",
        "master-addr": "dist-init-addr",
        "seed": "random-seed",
        "moe-backend": "moe-runner-backend",
        "no-enable-prefix-caching": "disable-radix-cache",
    },
    # The launcher itself is asked, and stops where it would read its command line: the parser has moved within the package
    # (0.5.17: srt/server_args.py; 0.5.23: srt/arg_groups), and plugins of the image may add to it.
    parser_source=DUMP
    + """
import runpy
from sglang.version import __version__

read = argparse.ArgumentParser.parse_known_args


def answer(parser, *args, **named):
    if "--model-path" not in parser._option_string_actions:
        return read(parser, *args, **named)
    dump(parser, __version__)
    sys.exit(0)


argparse.ArgumentParser.parse_known_args = answer
runpy.run_module("sglang.launch_server", run_name="__main__", alter_sys=True)
""",
    abbreviations=True,
    underscores=False,
    negation=None,
    api_key_variable="SGLANG_API_KEY",
    even_experts=True,
    worker_ports=True,
)

# How its log reads: 0.4 to 0.5.23, from the wheels' own sources and from runs of 0.5.17 on two nodes.

_KV_ROOM = "Raise mem-fraction-static if {node} really has the memory free; else free some, or take a smaller model or more nodes."
_MEM = r"avail mem=(?P<available_gb>[\d.]+)"
_ENDS = r"elapsed=(?P<init_seconds>[\d.]+) s|mem usage=(?P<used_gb>-?[\d.]+)"
_WEIGHTS = r"elapsed=(?P<load_seconds>[\d.]+) s|avail mem=(?P<available_gb>[\d.]+)|mem usage=(?P<used_gb>-?[\d.]+)"
_KV = r"#tokens: (?P<tokens>\d+)|K size: (?P<k_gb>[\d.]+)|V size: (?P<v_gb>[\d.]+)|KV size: (?P<kv_gb>[\d.]+)"
_CAPTURED = r"(?:Time elapsed: |elapsed=)(?P<capture_seconds>[\d.]+)|avail mem=(?P<available_gb>[\d.]+)"
_READY = (
    r"max_total_num_tokens=(?P<tokens>\d+)|context_len=(?P<context_tokens>\d+)|max_running_requests=(?P<requests>\d+)"
    r"|available_gpu_mem=(?P<available_gb>[\d.]+)"
)
_TIMINGS = (
    r"load_weight=(?P<load_seconds>[\d.]+)|kv_cache_allocation=(?P<kv_seconds>[\d.]+)|scheduler_e2e=(?P<scheduler_seconds>[\d.]+)"
    r"|tokenizer_e2e=(?P<start_seconds>[\d.]+)"
)
_CAPTURE = r"Capture (?P<capture>(?:\w+ )?(?:prefill|decode|verify|extend)) CUDA graph|avail mem=(?P<available_gb>[\d.]+)"

# fmt: off
LOG = Log(
    # "[2026-11-29 22:42:44 TP0] ", with SGLANG_LOG_MS "[2026-11-29 22:42:44.123 DP0 TP1 EP1] ".
    prefix=r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?(?: [A-Z_]+\d+)*\] ",
    markers=(
        M("parse_args", "server_args=ServerArgs(", start=True),
        # 0.5.23: "server_args={'model_path': '/m', ..".
        M("parse_args", "server_args={'", start=True),
        M("init_dist", "Init torch distributed begin"),
        M("init_dist", "Init parallel begin"),
        M("init_dist", "sglang is using nccl==", r"nccl==(?P<nccl>[\d.]+)"),
        M("create_runner", "Init torch distributed ends", _ENDS, of="init_dist"),
        M("create_runner", "Init parallel ends", _ENDS, of="init_dist"),
        M("create_runner", "Memory baseline taken", r"mem usage=(?P<used_gb>-?[\d.]+)"),
        M("load_weights", "Load weight begin", _MEM),
        M("kv_cache", "Load weight end", _WEIGHTS, of="load_weights"),
        # 0.5.18: "[draft ]KV Cache VA upper bound. dtype: .." where the size is only settled after the captures.
        M("kv_cache", "KV Cache is allocated", _KV),
        M("kv_cache", "KV Cache VA upper bound", _KV),
        M("kv_cache", "KV cache allocated", _KV),
        M("kv_cache", "Mamba Cache is allocated", r"max_mamba_cache_size: (?P<mamba_slots>\d+)"),
        M("kv_cache", "Memory pool end", _MEM),
        M("kv_cache", "Disabling auto-selected", r"(?P<left_out>Disabling auto-selected \w+ CUDA graph.*)"),
        # Until 0.5.12 "Capture [draft ]cuda graph begin. This can take up to several minutes."
        M("graph_capture", "cuda graph begin", _MEM),
        M("graph_capture", "CUDA graph begin", _CAPTURE),
        M("graph_capture", "cuda graph end", _CAPTURED),
        M("graph_capture", "CUDA graph end", _CAPTURED),
        M("engine_ready", "max_total_num_tokens=", _READY),
        M("engine_ready", "Engine startup timings", _TIMINGS),
        M("engine_ready", "Dummy health check server started"),
        # 0.4.6 to 0.5.3.
        M("engine_ready", "Starting dummy health check server"),
        M("engine_ready", "Dummy health check server scheduled"),
        M("http_warmup", "Uvicorn running on"),
        M("http_warmup", "Started server process"),
        M("ready", "The server is fired up and ready to roll"),
        # A log that begins later than the start: only a head that serves prints these.
        M("ready", "Decode batch"),
        M("ready", '/completions HTTP/1.1" 200'),
    ),
    signatures=(
        S("noise", "Received sigquit from a child process", "wrapper", line=True),
        S("noise", "Initialization failed. Please see the error messages above", "wrapper"),
        # "Capture cuda graph failed: .." (0.4.6: "CUDA", 0.5.15: "prefill CUDA", ..): what it wraps stands after it.
        S("noise", "graph failed", "wrapper", pattern=r"Capture .*graph failed:\s*$"),
        # Follows whenever the scheduler ended, for whatever reason.
        S("noise", "'NoneType' object has no attribute 'server_args'", "noise"),
        # As a container's first process it can't kill itself: even a clean stop ends in these two.
        S("noise", "SystemExit: 0", "noise"),
        S("noise", "asyncio.exceptions.CancelledError", "noise"),
        S("noise", "SIGTERM received", "stop", line="SIGTERM"),
        S("oom", "Loaded weights leave no GPU memory for the KV cache", remedy=_KV_ROOM),
        S("oom", "Not enough memory. Please try to increase --mem-fraction-static", remedy=_KV_ROOM),
        S("oom", "Not enough GPU memory for hybrid", remedy=_KV_ROOM),
        S("oom", "state cache is too small to serve any requests", remedy=_KV_ROOM),
        S("oom", "leaves no room for the full KV pool", remedy=_KV_ROOM),
        S("oom", "cannot hold even one request", remedy=_KV_ROOM),
        S("oom", "scheduler died during initialization", "death", pattern=r"exit code: -9"),
        S("worker_died", "scheduler died during initialization", "death"),
        S("memory_unbalanced", "The memory capacity is unbalanced", "relay",
          r"pre_model_load_memory=(?P<least_gb>[\d.]+), local_gpu_memory=(?P<local_gb>[\d.]+)"),
        S("peer_exited", "could finish the model loading, but there are other ranks", "peer"),
        S("bad_flag", "does not support [", pattern=r"--[\w-]+ does not support \["),
        S("bad_flag", "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"),
        S("bad_flag", "is not equal to tensor_model_parallel_size"),
        S("bad_flag", "Setting SGLANG_LOGGING_CONFIG_PATH from env"),
        S("bad_image", "less than the minimum required version"),
        S("bad_image", "with minimum required version", pattern=r"is not installed"),
        S("bad_image", "Ray is required for --use-ray mode"),
        S("driver", "No accelerator (CUDA"),
        S("driver", "No CUDA devices found via torch.cuda"),
        S("driver", "No GPU memory values found"),
        S("unsupported_arch", "Couldn't determine number of kv heads"),
        S("port_in_use", "Port is already in use. dist_init_port="),
        S("port_in_use", "is not available in", pattern=r"at (?P<port>\d+) is not available in"),
        S("port_in_use", "Could not bind port", pattern=r"bind port (?P<port>\d+)"),
        S("port_in_use", "is already in use", pattern=r"port (?P<port>\d+) is already in use"),
        S("net_unreachable", "Can not get local ip"),
        # "Capture cuda graph failed: CUDA out of memory. Tried to allocate ..": what it wraps tells more.
        S("capture_failed", "graph failed", pattern=r"Capture .*graph failed(?!.*(?:out of memory|no kernel image|PTXAS|NCCL error|by peer))"),
        S("capture_failed", "Piecewise CUDA Graph failed with error"),
        S("watchdog", "watchdog timeout (self.watchdog_timeout", line="atchdog", pattern=r"soft=False|^(?!.*soft=)"),
        S("watchdog", "Watchdog timeout (self.watchdog_timeout", line="atchdog"),
        S("peer_exited", "Scheduler or DataParallelController", "peer", r"terminated with 0\b", line=True),
        S("worker_died", "Scheduler or DataParallelController", "death", r"terminated with (?P<code>-?\d+)", line=True),
        # Until 0.5.9: "Rank 0 scheduler is dead. Please check if there are relevant logs.", "Exit code: -9", and an EOFError of who reads from it.
        S("noise", "scheduler is dead. Please check", "wrapper"),
        S("noise", "EOFError", "wrapper", r"EOFError\s*$"),
        S("oom", "Exit code: -9", "death", line="] Exit code: "),
        S("worker_died", "] Exit code: ", "death", pattern=r"Exit code: (?P<code>-?[1-9]\d*)", line=True),
        S("worker_died", "crashed with exit code", "death", r"Subprocess \S+ .*exit code (?P<code>-?\d+)", line=True),
        S("unknown", "Initialization failed. warmup error", line=True),
    ),
    bars=("% Completed |", "%|"),
    fatal=("hit an exception", "Initialization failed. warmup error"),
    options=("/sglang/srt/server_args.py", "/sglang/srt/arg_groups/"),
    claims={
        "rank": r"\bnode_rank(?:=|': )(\d+)",
        "ranks": r"\bnnodes(?:=|': )(\d+)",
        "tensor_parallel": r"\btp_size(?:=|': )(\d+)",
        "rendezvous": r"\bdist_init_addr(?:=|': )'([^']+)'",
    },
    last_sign="engine_ready",
)
# fmt: on

ENGINE = Engine(name="sglang", title="SGLang", launch=LAUNCH, log=LOG, memory=MEMORY)
