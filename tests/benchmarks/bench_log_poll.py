#!/usr/bin/env python3
# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What another look at a log costs: what is new of it, however long it has become.

Prints to standard error the cost after short and long logs, then "figure log_poll_ms VALUE ms": taking up the kept state, reading
on by 4 KiB, and giving the reading and the state back, after a log of --megabytes.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
import time

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS))
import conftest  # noqa: E402, F401 - makes the collection importable

from ansible_collections.sparkstack.inference.plugins.module_utils._timeline import Timeline  # noqa: E402

START = (TESTS / "fixtures/logs/sglang-gpu/ready-cold/head.log").read_bytes()
LINE = b"[2026-11-29 22:44:13 TP0] Decode batch, #running-req: 8, #token: 18231, token usage: 0.01, gen throughput (token/s): 412.31\n"
PIECE = LINE * (1_000_000 // len(LINE))
NEW = LINE * (4096 // len(LINE))
LOOKS = 200


def poll(megabytes: int) -> tuple[float, float]:
    """Milliseconds that the whole log took, and that a look of 4 KiB takes after it."""
    timeline = Timeline()
    began = time.perf_counter()
    timeline.feed(START)
    for _ in range(megabytes):
        timeline.feed(PIECE)
    whole = time.perf_counter() - began
    kept = json.dumps(timeline.state())
    began = time.perf_counter()
    for _ in range(LOOKS):
        timeline = Timeline.from_state(json.loads(kept))
        timeline.feed(NEW)
        json.dumps(timeline.reading())
        kept = json.dumps(timeline.state())
    return whole * 1e3, (time.perf_counter() - began) / LOOKS * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=500, help="length of the longest log in 10^6 bytes (default: 500)")
    longest = parser.parse_args().megabytes
    costs = {}
    for megabytes in (1, longest):
        whole, costs[megabytes] = poll(megabytes)
        sys.stderr.write(f"{megabytes:4} MB: read whole in {whole:.0f} ms, each look at 4 KiB more costs {costs[megabytes]:.2f} ms\n")
    sys.stdout.write(f"figure log_poll_ms {costs[longest]:.2f} ms\n")


if __name__ == "__main__":
    main()
