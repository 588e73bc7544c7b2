#!/usr/bin/env python3
# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How long a clean preflight takes on two of the lab's nodes, and how that grows with more of them.

Needs root: it makes the lab's nodes ready when they are not. Each preflight is played three times over connections that are open already, and medians
count. Prints to standard error each time, then "figure preflight_2_nodes_s VALUE s" and "figure preflight_8_vs_2 VALUE ratio". The nodes share this
machine's processors, so the ratio is an upper bound: on real nodes the pairs that are measured at the same time do not take them from each other.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import sys

LAB = pathlib.Path(__file__).resolve().parents[1] / "lab"
sys.path.insert(0, str(LAB))
import play  # noqa: E402 - lies beside the lab's tests

TURNS = 3
PREFLIGHT = "playbooks/preflight.yml"


def measure(nodes: int, forks: int) -> float:
    """The median of the seconds that a preflight of so many nodes takes, none of which finds anything blocked."""
    times = []
    for turn in range(TURNS + 1):
        # Without a recipe: the lab's serves from two nodes.
        run = play.playbook(PREFLIGHT, "--forks", str(forks), extra={"tp_launch_recipe": "", "preflight_show": "problems"})
        if run.code or f"Preflight of {nodes} nodes" not in run.text:
            sys.exit(f"bench_preflight: a preflight of {nodes} nodes ended with code {run.code}:\n{run.output}")
        if turn:
            times.append(run.seconds)
    sys.stderr.write(f"{nodes} nodes: {statistics.median(times):.2f} s ({', '.join(f'{value:.2f}' for value in times)})\n")
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", default="4,8", help="the larger labs (default: 4,8; empty: measure two only)")
    parser.add_argument("--memory", default="1500M", help="limit of each node of a larger lab (default: 1500M)")
    options = parser.parse_args()
    if os.geteuid():
        sys.exit("bench_preflight: the lab's nodes need root: run it with sudo.")
    play.lab("up")
    before = f"{json.loads(play.lab('status', '--json', ok=(0, 1)))['nodes'][0]['memory_limit'] >> 30}G"
    larger = [int(count) for count in options.nodes.split(",") if count]
    two = measure(2, 2)
    sys.stdout.write(f"figure preflight_2_nodes_s {two:.2f} s\n")
    try:
        for count in larger:
            play.empty("spark1", "spark2")
            play.lab("up", "--nodes", str(count), "--memory", options.memory)
            sys.stdout.write(f"figure preflight_{count}_vs_2 {measure(count, count) / two:.2f} ratio\n")
    finally:
        if larger:
            play.lab("up", "--nodes", "2", "--memory", before)


if __name__ == "__main__":
    main()
