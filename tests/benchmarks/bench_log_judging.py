#!/usr/bin/env python3
# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How fast a long log is judged: a real start, then what a serving engine prints, then a real end.

Prints one line: "figure log_judging_mb_s VALUE MB/s", and the memory that it took to standard error.
"""

from __future__ import annotations

import argparse
import pathlib
import resource
import sys
import time

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS))
import conftest  # noqa: E402, F401 - makes the collection importable

from ansible_collections.sparkstack.inference.plugins.module_utils._timeline import Timeline  # noqa: E402

SERVING = (
    b"[2026-11-29 22:44:13 TP0] Decode batch, #running-req: 8, #token: 18231, token usage: 0.01, cuda graph: True, "
    b"gen throughput (token/s): 412.31, #queue-req: 0\n"
    b'[2026-11-29 22:44:13] INFO:     10.0.0.5:54054 - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'
)
PIECE = SERVING * (4_000_000 // len(SERVING))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=200, help="length of the log in 10^6 bytes (default: 200)")
    wanted = parser.parse_args().megabytes * 1_000_000
    start = (TESTS / "fixtures/logs/sglang-gpu/worker-killed-after-ready/head.log").read_bytes()
    up, end = start.split(b"Scheduler hit an exception", 1)
    timeline = Timeline()
    size = 0
    began = time.perf_counter()
    timeline.feed(up)
    timeline.feed(b"\n")
    while size < wanted:
        timeline.feed(PIECE)
        size += len(PIECE)
    timeline.feed(b"[2026-11-29 22:44:21 TP0] Scheduler hit an exception" + end)
    seconds = time.perf_counter() - began
    reading = timeline.reading()
    causes = [candidate["cause"] for candidate in reading["candidates"]]
    if reading["phase"] != "ready" or causes != ["peer_exited"]:
        sys.exit(f"The log was misjudged: phase {reading['phase']}, causes {causes}.")
    sys.stderr.write(f"{size / 1e6:.0f} MB in {seconds:.2f} s, {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB of memory at most\n")
    sys.stdout.write(f"figure log_judging_mb_s {size / 1e6 / seconds:.1f} MB/s\n")


if __name__ == "__main__":
    main()
