#!/usr/bin/env python3
# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How fast long logs are judged: a real start with very many lines of one kind in it, or after it.

Prints to standard error each kind's rate, then "figure log_judging_mb_s VALUE MB/s" (the slowest kind's) and
"figure log_judging_memory_mib VALUE MiB" (the most that the process took).
"""

from __future__ import annotations

import argparse
import json
import pathlib
import random
import resource
import sys
import time
import typing as t

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS))
import conftest  # noqa: E402, F401 - makes the collection importable

from ansible_collections.sparkstack.inference.plugins.module_utils._timeline import Timeline  # noqa: E402

LOGS = TESTS / "fixtures/logs"
SGLANG = (LOGS / "sglang-gpu/worker-killed-after-ready/head.log").read_bytes()
VLLM = (LOGS / "vllm-cpu/worker-killed-after-ready/head.log").read_bytes()
NCCL = [line for line in (LOGS / "sglang-gpu/ready-nccl-info/head.log").read_bytes().split(b"\n") if b"NCCL INFO" in line]
BATCH = 1 << 20  # what the probe feeds at once
LINES = 20_000
dice = random.Random(7)


def number(most: int) -> int:
    return dice.randrange(most)


def clock() -> str:
    return f"2026-11-29 22:{number(60):02}:{number(60):02}"


def serving() -> str:
    """What SGLang's head prints while it serves."""
    kind = number(4)
    if kind < 2:
        return (
            f"[{clock()} TP0] Decode batch, #running-req: {number(64)}, #token: {number(10**6)}, token usage: 0.{number(100):02}, "
            f"cuda graph: True, gen throughput (token/s): {number(90000) / 100:.2f}, #queue-req: {number(9)}"
        )
    if kind == 2:
        return (
            f"[{clock()} TP0] Prefill batch, #new-seq: {number(9)}, #new-token: {number(9000)}, #cached-token: {number(9000)}, "
            f"token usage: 0.{number(100):02}, #running-req: {number(64)}, #queue-req: {number(9)}, cuda graph: False"
        )
    return f'[{clock()}] INFO:     10.0.0.{number(255)}:{number(65536)} - "POST /v1/chat/completions HTTP/1.1" 200 OK'


def access() -> str:
    """The access log of an API server."""
    verb = dice.choice(["POST /v1/chat/completions", "GET /health", "GET /metrics", "POST /v1/completions"])
    answer = "400 Bad Request" if number(10) == 0 else "200 OK"
    return f'(APIServer pid=1) INFO:     10.0.{number(9)}.{number(255)}:{number(65536)} - "{verb} HTTP/1.1" {answer}'


def engine() -> str:
    """vLLM's own statistics."""
    return (
        f"(APIServer pid=1) INFO {clock()[5:]} [loggers.py:257] Engine 000: Avg prompt throughput: {number(9000) / 10} tokens/s, "
        f"Avg generation throughput: {number(9000) / 10} tokens/s, Running: {number(64)} reqs, Waiting: {number(9)} reqs, "
        f"GPU KV cache usage: {number(1000) / 10}%, Prefix cache hit rate: {number(1000) / 10}%"
    )


def request() -> str:
    """A log of requests: no line is like another."""
    words = "the a model of to and in is you that it time answer question code file def return list python for while get user system".split()
    prompt = " ".join(dice.choice(words) for _ in range(30))
    return f"(APIServer pid=1) INFO {clock()[5:]} [logger.py:40] Received request chatcmpl-{dice.getrandbits(128):032x}: prompt: '{prompt}'"


def nccl() -> str:
    """NCCL's lines, with other process numbers and pointers."""
    line = dice.choice(NCCL).decode()
    return line.replace("3603", str(number(9000))).replace("0x3919a660", hex(number(1 << 32)))


def bars() -> str:
    """The updates of a bar, which end in a carriage return."""
    updates = ""
    for step in range(58):
        drawn = "#" * (step * 10 // 58)
        updates += f"\rCapturing batches (bs={58 - step} avail_mem=10.19 GB): {step * 100 // 58:3}%|{drawn:10}| {step}/58 [00:{step:02}<54:23, 57.2s/it]"
    return updates


def plain(line: bytes) -> bytes:
    return line


def compose(line: bytes) -> bytes:
    return b"head-1  | " + line


def kubernetes(line: bytes) -> bytes:
    return b"2026-11-29T10:00:00.123456789Z stderr F " + line


def as_json(line: bytes) -> bytes:
    return json.dumps({"timestamp": "2026-11-29 22:44:13", "level": "INFO", "message": line.decode()}).encode()


class Kind(t.NamedTuple):
    line: t.Callable[[], str]
    wrap: t.Callable[[bytes], bytes] = plain
    log: bytes = SGLANG
    before: bytes = b"Scheduler hit an exception"
    """They stand before the line of the real log that holds this text."""
    causes: tuple[str, ...] = ("peer_exited",)


KINDS = {
    "serving": Kind(serving),
    "NCCL INFO": Kind(nccl, before=b"Load weight begin"),
    "access log": Kind(access),
    "bars": Kind(bars, before=b"Capture cuda graph end" if b"Capture cuda graph end" in SGLANG else b"CUDA graph end"),
    "docker compose": Kind(serving, compose),
    "Kubernetes": Kind(serving, kubernetes),
    "JSON": Kind(serving, as_json),
    "vLLM": Kind(engine, log=VLLM, before=b"Engine core proc" if b"Engine core proc" in VLLM else b"ERROR"),
    "requests": Kind(request, log=VLLM, before=b"ERROR"),
}
MAIN = "serving"


def judged(name: str, kind: Kind, wanted: int) -> float:
    """Seconds a megabyte of a log of so many bytes, which must be judged right."""
    piece = b"".join(kind.wrap(kind.line().encode()) + b"\n" for _ in range(LINES // 50 if kind.line is bars else LINES))
    place = kind.log.index(kind.before)
    place = kind.log.rfind(b"\n", 0, place) + 1
    start, end = (b"".join(kind.wrap(line) + b"\n" for line in part.rstrip(b"\n").split(b"\n")) for part in (kind.log[:place], kind.log[place:]))
    timeline = Timeline()
    size = 0
    began = time.perf_counter()
    timeline.feed(start)
    while size < wanted:
        for begin in range(0, len(piece), BATCH):
            timeline.feed(piece[begin : begin + BATCH])
        size += len(piece)
    timeline.feed(end)
    seconds = time.perf_counter() - began
    reading = timeline.reading()
    causes = {candidate["cause"] for candidate in reading["candidates"]}
    if reading["phase"] != "ready" or not set(kind.causes) <= causes:
        sys.exit(f"The log of {name} was misjudged: phase {reading['phase']}, causes {sorted(causes)}.")
    sys.stderr.write(f"{name:15} {size / 1e6:5.0f} MB at {size / 1e6 / seconds:4.0f} MB/s\n")
    return seconds / (size / 1e6)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=1000, help="length of the main log in 10^6 bytes; the others have a fifth (default: 1000)")
    wanted = parser.parse_args().megabytes * 1_000_000
    rates = {name: 1 / judged(name, kind, wanted if name == MAIN else wanted // 5) for name, kind in KINDS.items()}
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    slowest = min(rates, key=lambda name: rates[name])
    sys.stderr.write(f"The slowest kind is {slowest}.\n")
    sys.stdout.write(f"figure log_judging_mb_s {rates[slowest]:.1f} MB/s\n")
    sys.stdout.write(f"figure log_judging_memory_mib {memory:.0f} MiB\n")


if __name__ == "__main__":
    main()
