#!/usr/bin/env python3
# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How long a collective proof takes on two of the lab's nodes in the real engine's image, and what it measures there.

Needs root: it makes the lab's nodes ready when they are not. Prints to standard error each time, then "figure collective_gate_s VALUE s" (the median
of three, each with Ansible's own start), "figure collective_remembered_s VALUE s" (where nothing has changed since) and "figure collective_bus_mb_s
VALUE MB/s", over gloo.
"""

from __future__ import annotations

import os
import pathlib
import statistics
import sys

LAB = pathlib.Path(__file__).resolve().parents[1] / "lab"
sys.path.insert(0, str(LAB))
import play  # noqa: E402 - lies beside the lab's tests
from proving import ADDRESS, prove, same  # noqa: E402

TURNS = 3


def measure(again: bool) -> tuple[float, float]:
    """The median of the seconds that a proof takes, or its memory, and the best bus bandwidth in MB/s."""
    times, bus = [], []
    for _turn in range(TURNS):
        found, seconds = prove(again=again)
        proof = same(found)
        if proof["verdict"] != "ready" or proof["remembered"] is again:
            sys.exit(f"bench_collective: {proof['msg']}")
        times.append(seconds)
        bus.append(proof["group"]["bus_gb_s"] * 1000)
    sys.stderr.write(f"{'proved' if again else 'remembered'}: {', '.join(f'{value:.2f}' for value in times)} s\n")
    return statistics.median(times), max(bus)


def main() -> None:
    if os.geteuid():
        sys.exit("bench_collective: the lab's nodes need root: run it with sudo.")
    play.lab("up")
    play.install_engine("--images", ",".join(ADDRESS))
    play.empty(*ADDRESS)
    proved, bus = measure(again=True)
    remembered, _bus = measure(again=False)
    sys.stdout.write(f"figure collective_gate_s {proved:.2f} s\n")
    sys.stdout.write(f"figure collective_remembered_s {remembered:.2f} s\n")
    sys.stdout.write(f"figure collective_bus_mb_s {bus:.0f} MB/s\n")


if __name__ == "__main__":
    main()
