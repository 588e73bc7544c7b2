# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# ruff: noqa: E501 - a real line is as long as it is.
"""Lines as collectors, versions and terminals shape them."""

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.sparkstack.inference.plugins.module_utils import _logline
from ansible_collections.sparkstack.inference.plugins.module_utils._candidates import KEPT_LINES
from ansible_collections.sparkstack.inference.plugins.module_utils._timeline import Timeline

# One line for each phase of a start, head first, as versions print them.
SGLANG_OLD = """\
[2025-03-01 10:00:00] server_args=ServerArgs(model_path='/m', tp_size=2, nnodes=2, node_rank=0, dist_init_addr='10.0.0.1:5000')
[2025-03-01 10:00:10 TP0] Init torch distributed begin.
[2025-03-01 10:00:15 TP0] sglang is using nccl==2.21.5
[2025-03-01 10:00:20 TP0] Load weight begin. avail mem=100.00 GB
[2025-03-01 10:01:20 TP0] Load weight end. type=Qwen2ForCausalLM, dtype=torch.bfloat16, avail mem=40.00 GB
[2025-03-01 10:01:25 TP0] Memory pool end. avail mem=11.87 GB
[2025-03-01 10:01:26 TP0] Capture cuda graph begin. This can take up to several minutes. avail mem=11.50 GB
[2025-03-01 10:01:37 TP0] Capture cuda graph end. Time elapsed: 11.4 s. mem usage=0.50 GB. avail mem=11.00 GB.
[2025-03-01 10:01:38 TP0] max_total_num_tokens=812345, chunked_prefill_size=8192, context_len=32768
[2025-03-01 10:01:39] INFO:     Uvicorn running on http://0.0.0.0:30000 (Press CTRL+C to quit)
[2025-03-01 10:01:45] The server is fired up and ready to roll!
"""
SGLANG_NEW = (
    SGLANG_OLD.replace(
        "ServerArgs(model_path='/m', tp_size=2, nnodes=2, node_rank=0, dist_init_addr='10.0.0.1:5000')",
        "{'model_path': '/m', 'tp_size': 2, 'dist_init_addr': '10.0.0.1:5000', 'nnodes': 2, 'node_rank': 0}",
    )
    .replace("Init torch distributed begin.", "Init parallel begin.")
    .replace(
        "[2025-03-01 10:00:20 TP0] Load weight begin",
        "[2025-03-01 10:00:18 TP0] Init parallel ends. elapsed=3.75 s\n[2025-03-01 10:00:19 TP0] Memory baseline taken. mem usage=1.96 GB\n"
        "[2025-03-01 10:00:20 TP0] Load weight begin",
    )
)
VLLM = """\
(APIServer pid=1) INFO 11-29 10:00:00 [utils.py:1] non-default args: {'model': '/m'}
(EngineCore pid=2) INFO 11-29 10:00:09 [core.py:1] Initializing a V1 LLM engine (v0.33.0) with config: model='/m'
(Worker pid=3) INFO 11-29 10:00:10 [parallel_state.py:1] world_size=2 rank=0 local_rank=0 distributed_init_method=tcp://10.0.0.1:29501 backend=nccl
(Worker pid=3) INFO 11-29 10:00:18 [parallel_state.py:2] rank 0 in world size 2 is assigned as DP rank 0, PP rank 0, TP rank 0
(Worker_TP0 pid=3) INFO 11-29 10:00:20 [gpu_model_runner.py:1] Starting to load model /m...
(Worker_TP0 pid=3) INFO 11-29 10:05:20 [gpu_model_runner.py:2] Model loading took 76.1 GiB memory and 302.1 seconds
(Worker_TP0 pid=3) INFO 11-29 10:05:40 [monitor.py:1] torch.compile took 18.4 s in total
(Worker_TP0 pid=3) INFO 11-29 10:05:50 [gpu_worker.py:1] Available KV cache memory: 52.66 GiB
(EngineCore pid=2) INFO 11-29 10:05:51 [kv_cache_utils.py:1] GPU KV cache size: 1,253,392 tokens, Maximum concurrency for 1 tokens per request: 6.15x
(Worker_TP0 pid=3) INFO 11-29 10:05:52 [gpu_model_runner.py:3] [Autotuner]: Autotuning process starts ...
(Worker_TP0 pid=3) INFO 11-29 10:06:30 [gpu_model_runner.py:4] Graph capturing finished in 14 secs, took 0.84 GiB
(EngineCore pid=2) INFO 11-29 10:06:31 [core.py:2] init engine (profile, create kv cache, warmup model) took 44.5 s (compilation: 18.4 s)
(APIServer pid=1) INFO 11-29 10:06:32 [entry.py:1] Starting vLLM server on http://0.0.0.0:8000
INFO:     Application startup complete.
"""
ORDER = ["parse_args", "init_dist", "create_runner", "load_weights", "kv_cache", "graph_capture", "engine_ready", "http_warmup", "ready"]


def read(text: str | bytes, engine: str = "auto") -> dict[str, t.Any]:
    timeline = Timeline(engine, 2026)
    timeline.feed(text)
    return timeline.reading()


def phases(reading: dict[str, t.Any]) -> list[str]:
    return [phase["phase"] for phase in reading["phases"]]


@pytest.mark.parametrize(
    ("text", "engine", "order"),
    [(SGLANG_OLD, "sglang", [p for p in ORDER if p != "create_runner"]), (SGLANG_NEW, "sglang", ORDER), (VLLM, "vllm", ORDER)],
    ids=["sglang 0.4", "sglang 0.5.23", "vllm 0.33"],
)
@pytest.mark.parametrize(
    "collect",
    [
        lambda line: line,
        lambda line: f"head-1  | {line}",
        lambda line: f"\x1b[36mhead-1  |\x1b[0m {line}",
        lambda line: f"2026-11-29T10:00:00.123456789Z {line}",
        lambda line: f"2026-11-29T10:00:00.123456789+00:00 stdout F {line}",
        lambda line: f"[pod/head-0/engine] {line}",
        lambda line: f"Nov 29 10:00:00 spark1 engine[42]: {line}",
        lambda line: '{"log":"' + line.replace('"', '\\"') + '\\n","stream":"stderr","time":"2026-11-29T10:00:00.1Z"}',
        lambda line: '{"timestamp": "2026-11-29 10:00:00", "level": "INFO", "message": "' + line.replace('"', '\\"') + '"}',
    ],
    ids=["plain", "compose", "compose in colour", "docker -t", "cri", "kubectl", "journald", "json-file", "json"],
)
def test_phases(text: str, engine: str, order: list[str], collect: t.Callable[[str], str]) -> None:
    reading = read("".join(collect(line) + "\n" for line in text.splitlines()))
    assert reading["engine"] == engine
    assert phases(reading) == order
    assert reading["candidates"] == []


def test_values_and_times() -> None:
    by = {phase["phase"]: phase for phase in read(VLLM)["phases"]}
    assert by["load_weights"]["values"] == {"used_gib": 76.1, "load_seconds": 302.1}
    assert by["load_weights"]["seconds"] == 300.0
    assert by["kv_cache"]["values"] == {"compile_seconds": 18.4, "available_gib": 52.66, "tokens": 1253392, "concurrency": 6.15}
    # uvicorn's line tells no time: it came no earlier than the line before.
    assert by["ready"]["time"] == by["http_warmup"]["time"]
    by = {phase["phase"]: phase for phase in read(SGLANG_NEW)["phases"]}
    assert by["init_dist"]["values"] == {"nccl": "2.21.5", "init_seconds": 3.75}
    assert by["graph_capture"]["values"]["capture_seconds"] == 11.4
    assert read(SGLANG_NEW)["claims"] == read(SGLANG_OLD)["claims"] == {"rank": "0", "ranks": "2", "tensor_parallel": "2", "rendezvous": "10.0.0.1:5000"}


@pytest.mark.parametrize(
    "said",
    [
        "[2025-03-01 10:02:00] ERROR:    Exception in ASGI application",
        "Exception ignored in: <function Pool.__del__ at 0x7f43a7587a60>",
        "[2025-03-01 10:02:00] Task exception was never retrieved\nfuture: <Task finished name='Task-7' exception=ValueError('bad request')>",
    ],
)
def test_an_exception_that_somebody_caught(said: str) -> None:
    """A rank that serves is not ended by a request that fails."""
    traceback = 'Traceback (most recent call last):\n  File "/x/httptools_impl.py", line 409, in run_asgi\n    result = await app(\nValueError: bad request\n\n'
    (found,) = read(SGLANG_OLD + said + "\n" + traceback)["candidates"]
    assert (found["message"], found["fatal"]) == ("ValueError: bad request", False)
    (found,) = read(SGLANG_OLD + said + "\n[2025-03-01 10:02:01] Some other error: it goes on\n" + traceback)["candidates"]
    assert found["fatal"] is True


def test_heralds_of_several_processes() -> None:
    """vLLM's workers fail at once, and each puts a carriage return before its line ends."""
    said = ["WorkerProc hit an exception.", "Traceback (most recent call last):", '  File "a.py", line 1', "ValueError: odd"]
    before = [f"(Worker_TP{rank} pid={rank}) ERROR 11-29 10:05:20 [multiproc_executor.py:9] " for rank in range(3)]
    found = read("".join(f"{who}{text}\r\n" for text in said[:2] for who in before) + "".join(f"{before[2]}{text}\r\n" for text in said[2:]), "vllm")[
        "candidates"
    ]
    assert [(c["message"], c["fatal"], len(c["lines"])) for c in found] == [("ValueError: odd", True, 4)]


def test_what_follows_a_traceback_at_once() -> None:
    """No empty line, and no other process between an exception that was overcome and the one that ends the process."""
    a = "(EngineCore pid=2) ERROR 11-29 10:05:20 [core.py:9] "
    lines = ["Traceback (most recent call last):", '  File "a.py", line 1', "ValueError: odd"]
    found = read("".join(f"{a}{line}\n" for line in [*lines, "EngineCore failed to start.", *lines[:2], "KeyError: worse"]), "vllm")["candidates"]
    assert [(c["message"], c["fatal"]) for c in found] == [("ValueError: odd", False), ("KeyError: worse", True)]


@pytest.mark.parametrize(
    "text",
    [
        'Error processing line 1 of /usr/lib/x.pth:\n\n  Traceback (most recent call last):\n    File "<string>", line 1, in <module>\n  KeyError: 1\n\nRemainder of file ignored\n',
        '--- Logging error ---\nTraceback (most recent call last):\n  File "/usr/lib/python3.12/logging/__init__.py", line 1160, in emit\n    msg = self.format(record)\nTypeError: x\n',
    ],
    ids=["site", "logging"],
)
def test_what_python_goes_on_after(text: str) -> None:
    assert not any(candidate["fatal"] for candidate in read(SGLANG_OLD + text)["candidates"])


def test_a_trial_of_torch_that_failed() -> None:
    """The autotuner goes on with another kernel."""
    before = "[rank0]:E1129 10:01:30.928000 1234 torch/_inductor/select_algorithm.py:2718] [0/0] "
    lines = ["Traceback (most recent call last):", '  File "/x/select_algorithm.py", line 1, in run', "triton.OutOfResources: out of resource: shared memory"]
    reading = read(SGLANG_OLD.split("[2025-03-01 10:01:37")[0] + "".join(f"{before}{line}\n" for line in lines))
    assert [(c["cause"], c["fatal"], len(c["lines"])) for c in reading["candidates"]] == [("unsupported_gpu_arch", False, 3)]


def test_a_time_of_torch_in_the_first_nine_months() -> None:
    warned = "[rank0]:[W424 10:55:34.5 ProcessGroupNCCL.cpp:1575] Warning: x\n"
    assert (
        read(VLLM.replace("INFO 11-29", "INFO 04-24") + warned)["last_time"]
        == read(VLLM.replace("11-29 10:06:32", "11-29 10:55:34.5"))["last_time"] - 219 * 86400
    )


def test_vllm_v0() -> None:
    old = VLLM.replace("a V1 LLM engine", "a V0 LLM engine")
    for text in (old, old.replace("Available KV cache memory: 52.66 GiB", "Memory profiling takes 34.26 seconds")):
        assert phases(read(text)) == ORDER


def test_a_second_run_in_the_same_log() -> None:
    crash = '[2025-03-01 10:02:00 TP0] Scheduler hit an exception: Traceback (most recent call last):\n  File "a"\nRuntimeError: CUDA error: out of memory\n\n'
    reading = read(SGLANG_OLD + crash + SGLANG_OLD.split("[2025-03-01 10:01:20")[0])
    assert reading["phase"] == "load_weights"
    assert reading["candidates"] == []
    assert reading["earlier"] == [{"phase": "ready", "cause": "oom"}]


@pytest.mark.parametrize(
    ("bar", "progress"),
    [
        ("\rLoading safetensors checkpoint shards:  40% Completed | 2/5 [00:10<00:15,  5.0s/it]\n\n", (40, 2, 5, 10, 15)),
        (
            "\rMulti-thread loading shards:   0% Completed | 0/12 [00:00<?, ?it/s]\rMulti-thread loading shards:  17% Completed | 2/12 [1:02:03<54:23, 57.2s/it]",
            (17, 2, 12, 3723, 3263),
        ),
    ],
)
def test_progress(bar: str, progress: tuple[int, ...]) -> None:
    reading = read(SGLANG_OLD.split("[2025-03-01 10:01:20")[0] + bar)
    assert reading["progress"] == dict(zip(("percent", "done", "total", "elapsed_seconds", "remaining_seconds"), progress, strict=True), phase="load_weights")


def test_a_bar_that_is_cut_anywhere() -> None:
    bar = "\rMulti-thread loading shards:  17% Completed | 2/12 [1:02:03<54:23, 57.2s/it]"
    start = SGLANG_OLD.split("[2025-03-01 10:01:20")[0]
    done = [(read(start + bar[:length])["progress"] or {}).get("remaining_seconds") for length in range(len(bar) + 1)]
    assert set(done) == {None, 3263}


def test_a_line_glued_to_a_bar() -> None:
    text = SGLANG_OLD.split("[2025-03-01 10:01:37")[0]
    text += "\rCapturing batches (bs=8 avail_mem=10.19 GB):  50%|#####     | 3/6 [00:04<00:04][2025-03-01 10:01:38 TP0] max_total_num_tokens=7, x\n"
    reading = read(text)
    assert reading["phase"] == "engine_ready"
    assert reading["phases"][-1]["time"] == reading["phases"][-2]["time"] + 12


@pytest.mark.parametrize(
    ("line", "phase", "values"),
    [
        (
            "[2025-03-01 10:01:26 TP0] Capture draft cuda graph begin. This can take up to several minutes. avail mem=9.10 GB",
            "graph_capture",
            {"available_gb": 9.1},
        ),
        (
            "[2025-03-01 10:01:26 TP0] KV Cache VA upper bound. dtype: torch.bfloat16, #tokens: 512, K size: 1.50 GB, V size: 1.50 GB",
            "kv_cache",
            {"tokens": 512, "k_gb": 1.5, "v_gb": 1.5},
        ),
        (
            "[2025-03-01 10:01:26 TP0] draft KV Cache is allocated. dtype: torch.bfloat16, #tokens: 7, KV size: 0.25 GB",
            "kv_cache",
            {"tokens": 7, "kv_gb": 0.25},
        ),
        ("[2025-03-01 10:01:26 TP1] Starting dummy health check server at 0.0.0.0:30000", "engine_ready", {}),
        ("[2025-03-01 10:01:26 TP1] Dummy health check server scheduled on existing loop at 0.0.0.0:30000", "engine_ready", {}),
        (
            "[2025-03-01 10:01:26] Engine startup timings (s): load_weight=61.20, kv_cache_allocation=0.50, scheduler_e2e=95.10, cuda_graph={decode: 11.4}, tokenizer_e2e=97.30",
            "engine_ready",
            {"load_seconds": 61.2, "kv_seconds": 0.5, "scheduler_seconds": 95.1, "start_seconds": 97.3},
        ),
        (
            "[2025-03-01 10:01:26 TP0] max_total_num_tokens=812345, chunked_prefill_size=8192, max_prefill_tokens=16384, max_running_requests=2048, context_len=32768, available_gpu_mem=11.00 GB",
            "engine_ready",
            {"tokens": 812345, "requests": 2048, "context_tokens": 32768, "available_gb": 11.0},
        ),
        (
            "(Worker pid=3) INFO 11-29 10:00:19 [cuda.py:1] Using FLASH_ATTN attention backend out of potential backends: ['FLASH_ATTN', 'FLASHINFER']",
            "create_runner",
            {"attention": "FLASH_ATTN"},
        ),
        (
            "(Worker_TP0 pid=3) INFO 11-29 10:00:20 [weight_utils.py:1] Filesystem type for checkpoints: NFS. Checkpoint size: 71.20 GiB. Available RAM: 101.50 GiB.",
            "load_weights",
            {"filesystem": "NFS", "checkpoint_gib": 71.2, "ram_gib": 101.5},
        ),
        (
            "(EngineCore_DP0 pid=2) INFO 11-29 10:05:51 [kv_cache_utils.py:1] Maximum concurrency for 32,768 tokens per request: 6.15x",
            "kv_cache",
            {"concurrency": 6.15},
        ),
        (
            "INFO 11-29 10:00:00 [serve.py:1] Launching 1 data parallel engine(s) in headless mode, with head node address tcp://10.0.0.1:13345.",
            "parse_args",
            {},
        ),
    ],
)
def test_what_versions_print(line: str, phase: str, values: dict[str, t.Any]) -> None:
    reached = read(line + "\n")["phases"][-1]
    assert (reached["phase"], reached["values"]) == (phase, values)


@pytest.mark.parametrize(
    ("line", "engine"),
    [
        (
            "[2026-11-29 22:44:13 TP0] Decode batch, #running-req: 8, #token: 18231, token usage: 0.01, gen throughput (token/s): 412.31, #queue-req: 0",
            "sglang",
        ),
        ("(APIServer pid=1) INFO 11-29 22:44:13 [loggers.py:257] Engine 000: Avg prompt throughput: 1.0 tokens/s, Running: 1 reqs", "vllm"),
        ('[2026-11-29 22:44:13] INFO:     10.0.0.5:54054 - "POST /v1/chat/completions HTTP/1.1" 200 OK', None),
    ],
)
def test_a_log_that_begins_while_it_serves(line: str, engine: str | None) -> None:
    reading = read(line[40:] + "\n" + f"{line}\n" * 3)
    assert (reading["phase"], reading["engine"]) == ("ready", engine)


def test_a_run_that_begins_anew_shows_all_its_phases() -> None:
    for text in (SGLANG_NEW, VLLM):
        timeline = Timeline("auto", 2026)
        timeline.feed(text)
        timeline.feed(text)
        reading = timeline.reading()
        assert phases(reading) == ORDER
        assert reading["earlier"] == [{"phase": "ready", "cause": None}]


@pytest.mark.parametrize("log", [b"", b"\n\n\r\n", b"\x00\xff\xfe\x80" * 500, b"\x1b[36m\x1b[0m", b"Traceback (most recent call last):", b'{}\n[]\n{"a": 1}\n'])
def test_what_is_no_log(log: bytes) -> None:
    reading = read(log)
    assert reading["phase"] in ("container", "parse_args")
    assert (reading["candidates"], reading["progress"], reading["nccl"]) == ([], None, {})


# SGLang 0.5.23 begins with a dictionary of 19 kB, and collectors break what is longer than 16 KiB.
LONG = (
    "[2026-11-29 22:42:42] server_args={'model_path': '/m', 'padding': '"
    + "x" * 17000
    + "', 'api_key': 'abcDEF123456abcDEF123456', 'tp_size': 2, 'dist_init_addr': '10.0.0.1:5000', 'nnodes': 2, 'node_rank': 0}"
)
STAMP = "2026-11-29T10:00:00.123456789Z "


@pytest.mark.parametrize(
    "log",
    [
        LONG + "\n",
        STAMP + LONG[:16384] + STAMP + LONG[16384:] + "\n",
        f"{STAMP}stderr P {LONG[:16384]}\n{STAMP}stderr F {LONG[16384:]}\n",
        f'{{"log":"{LONG[:16384]}","stream":"stderr","time":"x"}}\n{{"log":"{LONG[16384:]}\\n","stream":"stderr","time":"x"}}\n',
    ],
    ids=["plain", "docker logs -t", "cri", "json-file"],
)
def test_a_line_in_parts(log: str) -> None:
    reading = read(log + "[2026-11-29 22:42:43 TP0] Init parallel begin.\n")
    assert reading["claims"] == {"rank": "0", "ranks": "2", "tensor_parallel": "2", "rendezvous": "10.0.0.1:5000"}
    assert phases(reading) == ["parse_args", "init_dist"]


def test_bars_between_lines_that_matter() -> None:
    bar = "\rCapturing CUDA graphs (decode, FULL): {:3}%|#         | {}/35 [00:{:02}<00:30,  1.0it/s]"
    start, end = VLLM.split("(Worker_TP0 pid=3) INFO 11-29 10:05:52")
    text = start + "".join(bar.format(n * 3, n, n) for n in range(30)) + "\n"
    reading = read(text)
    assert reading["phase"] == "graph_capture"
    assert reading["progress"] == {"phase": "graph_capture", "percent": 87, "done": 29, "total": 35, "elapsed_seconds": 29, "remaining_seconds": 30}
    assert reading["phases"][-1]["values"] == {"capture": "decode, FULL"}
    assert phases(read(text + "(Worker_TP0 pid=3) INFO 11-29 10:05:52" + end)) == ORDER


def test_pydantic_tells_the_reason_in_the_second_line() -> None:
    a = "(APIServer pid=1) "
    lines = [
        "Traceback (most recent call last):",
        '  File "/usr/lib/vllm/engine/arg_utils.py", line 1, in create_model_config',
        '  File "/usr/lib/pydantic/_internal/_dataclasses.py", line 121, in __init__',
        "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig",
    ]
    reason = "  Value error, The checkpoint you are trying to load has model type `qwen4` but Transformers does not recognize this architecture."
    (found,) = read("".join(f"{a}{line}\n" for line in lines))["candidates"]
    assert (found["cause"], found["kind"]) == ("bad_flag", "unknown")
    (found,) = read("".join(f"{a}{line}\n" for line in [*lines, reason, "    For further information visit https://errors.pydantic.dev"]))["candidates"]
    assert (found["cause"], found["kind"]) == ("unsupported_arch", "cause")
    assert found["message"].strip().startswith("Value error, The checkpoint")


@pytest.mark.parametrize(
    ("engine", "path"),
    [("sglang", "/sglang/srt/server_args.py"), ("sglang", "/sglang/srt/arg_groups/overrides.py"), ("vllm", "/usr/lib/vllm/config/parallel.py")],
)
def test_what_the_code_that_checks_options_raises(engine: str, path: str) -> None:
    text = (
        f'Traceback (most recent call last):\n  File "x.py", line 1, in <module>\n  File "{path}", line 9, in check\n    assert x, "y"\nAssertionError: y\n\n'
    )
    (found,) = read(text, engine)["candidates"]
    assert (found["cause"], found["kind"]) == ("bad_flag", "cause")
    (found,) = read(text.replace(path, "/elsewhere.py"), engine)["candidates"]
    assert (found["cause"], found["kind"]) == ("unknown", "unknown")


def test_a_traceback_between_the_lines_of_other_processes() -> None:
    a = "(Worker_TP0 pid=3) ERROR 11-29 10:05:20 [multiproc_executor.py:9] "
    b = "(EngineCore pid=2) INFO 11-29 10:05:20 [core.py:5] "
    lines = ["WorkerProc failed to start.", "Traceback (most recent call last):", '  File "a.py", line 1', "    x()", "ValueError: odd", "more of it"]
    text = "".join(f"{a}{line}\n{b}something {number}\n" for number, line in enumerate(lines))
    (found,) = read(text, "vllm")["candidates"]
    assert found["lines"] == [a + line for line in lines]
    assert (found["cause"], found["message"]) == ("unknown", "ValueError: odd")


def test_an_empty_line_with_a_time_ends_a_traceback() -> None:
    lines = ["Traceback (most recent call last):", '  File "a"', "ValueError: odd", "", "something else"]
    (found,) = read("".join(f"2026-11-29T10:00:00.123456789Z {line}\n" for line in lines))["candidates"]
    assert found["lines"] == lines[:3]


def test_a_chain_gives_its_first_reason_and_all_its_lines() -> None:
    first = 'Traceback (most recent call last):\n  File "a"\nhuggingface_hub.errors.HFValidationError: bad id\n\n'
    second = "The above exception was the direct cause of the following exception:\n\n" + 'Traceback (most recent call last):\n  File "b"\nOSError: odd\n'
    (found,) = read(first + second)["candidates"]
    assert found["cause"] == "missing_weights"
    assert found["lines"][-1] == "OSError: odd" and len(found["lines"]) == 8


def test_a_traceback_in_a_line_of_json() -> None:
    line = '{"level": "ERROR", "message": "Scheduler hit an exception: Traceback (most recent call last):\\n  File \\"a\\"\\nRuntimeError: NCCL error: internal error\\n"}'
    (found,) = read(line + "\n", "sglang")["candidates"]
    assert (found["cause"], found["fatal"], len(found["lines"])) == ("nccl_error", True, 3)


def test_an_error_that_was_overcome_is_forgotten() -> None:
    refused = "[W1129 22:53:21.012162461 socket.cpp:764] [c10d] The client socket has failed to connect to x (errno: 113 - No route to host).\n"
    start, rest = SGLANG_OLD.split("[2025-03-01 10:00:20")
    assert [c["count"] for c in read(start + refused * 3)["candidates"]] == [3]
    assert read(start + refused * 3 + "[2025-03-01 10:00:20" + rest)["candidates"] == []


def test_repeated_trouble_is_no_progress() -> None:
    refused = b"[W1129 22:53:21.012162461 socket.cpp:764] [c10d] The client socket has failed to connect to x (errno: 113 - No route to host).\n"
    timeline = Timeline("sglang", 2026)
    timeline.feed(SGLANG_OLD)
    before = timeline.reading()["useful"]
    timeline.feed(refused * 100)
    assert timeline.reading()["useful"] - before < 2 * 100


def test_a_very_long_traceback_keeps_both_ends() -> None:
    frames = "".join(f'  File "f{number}.py", line {number}\n' for number in range(5000))
    (found,) = read("Traceback (most recent call last):\n" + frames + "RecursionError: deep\n\n")["candidates"]
    assert len(found["lines"]) == KEPT_LINES
    assert found["lines"][1].startswith('  File "f0.py"') and found["lines"][-1] == "RecursionError: deep"


def test_memory_is_bounded() -> None:
    timeline = Timeline("sglang", 2026)
    for number in range(200):
        timeline.feed(f'Traceback (most recent call last):\n  File "a"\nValueError: number {number}\n\n')
    timeline.feed("x" * 10_000_000)
    assert len(str(timeline.state())) < 200_000


@pytest.mark.parametrize(
    "line",
    [
        "vllm serve /m --api-key {}",
        "vllm serve /m --api-key={} --port 8000",
        "server_args=ServerArgs(model_path='/m', api_key='{}', admin_api_key='{}')",
        "server_args={{'model_path': '/m', 'api_key': '{}', 'admin_api_key': None, 'ssl_keyfile_password': '{}'}}",
        "server_args={{'api_key': \"it's {}\", 'port': 8000}}",
        "non-default args: {{'api_key': ['{}', '{}'], 'port': 8000}}",
        "Authorization: Bearer {}",
        "HF_TOKEN={}",
        "token hf_{} was refused",
        "AWS_SECRET_ACCESS_KEY={}",
        "EngineArgs(hf_token='{}', port=8000)",
        "ProxyError: https://user:{}@proxy:3128/ is not reachable",
    ],
)
def test_secrets(line: str) -> None:
    secret = "abcDEF123456abcDEF123456"
    masked = _logline.mask(line.format(secret, secret))
    assert secret not in masked and "***" in masked
    assert read(line.format(secret, secret) + "\n")["last_line"] == masked


def test_no_secret_is_no_secret() -> None:
    for line in (
        "api_key=None, admin_api_key=None",
        "--api-key None",
        "the token is missing",
        "eos_token='</s>'",
        "http://127.0.0.1:8000/v1",
        "tcp://[fd00::1]:29501",
    ):
        assert _logline.mask(line) == line
