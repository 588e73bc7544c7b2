#!/usr/bin/env python3
# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a deploy, a run that finds nothing to do, and a verdict cost with more nodes, in time and in the controller's processor seconds.

Needs root: it makes labs of 2, 4 and 8 nodes (--nodes), serves the rehearsal engine on all of them, and leaves a lab of two. The deploy starts
ranks where none run, of an image that the nodes have; the verdict is diagnose's, of a launch whose last rank was killed. Each is measured several
times (--turns), and medians count. All nodes share this machine's processors, so that any work on more of them takes longer here: a bare
ansible.builtin.setup of the same nodes stands beside it. Prints a table to standard error, then "figure deploy_8_vs_2 VALUE ratio" and
"figure verdict_8_vs_2 VALUE ratio".
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import sys
import tempfile
import time
import typing as t

from bench_converge import Bench, Cost, seconds

LAB = pathlib.Path(__file__).resolve().parents[1] / "lab"
sys.path.insert(0, str(LAB))
import many  # noqa: E402 - lies beside the lab's tests
import play  # noqa: E402
from faultlab.engines import SGLANG  # noqa: E402

NAME = SGLANG.data["name"]
KINDS = ("setup", "deploy", "converged", "verdict")
# The engine itself computes as little as it can: what is measured is the work around it.
PACE = {"REHEARSAL_PACE": "0.1", "REHEARSAL_SHARD_SECONDS": "0.05"}


def measure(bench: Bench, nodes: t.Sequence[str], turns: int) -> dict[str, Cost]:
    """The costs by kind, on nodes that have nothing that runs."""
    costs = {kind: Cost() for kind in KINDS}
    recipe = many.over(SGLANG, len(nodes), **PACE)
    # The image comes to the nodes, and what is asked once is asked.
    bench.deploy(recipe)
    for _turn in range(turns):
        play.empty(*nodes)
        bench.run("ansible", "sparks", "-i", play.inventory(), "-m", "ansible.builtin.setup", cost=costs["setup"])
        bench.deploy(recipe, costs["deploy"])
        if any(bench.deploy(recipe, costs["converged"]).changed.values()):
            sys.exit("bench_many: a run that should find nothing to do changed something.")
        lose(nodes)
        said = bench.run("ansible-playbook", "sparkstack.inference.diagnose", "-i", play.inventory(), cost=costs["verdict"])
        if f"cause killed, culprit {nodes[-1]}," not in " ".join(said.split()):
            sys.exit(f"bench_many: the verdict is not that {nodes[-1]}'s rank was killed:\n{said}")
    return costs


def lose(nodes: t.Sequence[str]) -> None:
    """Kill the last rank, and wait until the others have ended of it."""
    play.node(nodes[-1], f"docker kill {NAME}-rank{len(nodes) - 1}")
    deadline = time.monotonic() + 60
    while any(play.node(node, "docker ps -q") for node in nodes):
        if time.monotonic() > deadline:
            sys.exit("bench_many: a rank runs on without the one that was killed.")
        time.sleep(0.5)


def table(costs: t.Mapping[int, t.Mapping[str, Cost]]) -> str:
    """Seconds and processor seconds of each kind at each number of nodes, their growth since the first, and how often a setup's they are."""
    first = min(costs)
    lines = [f"{'':10} nodes  seconds  growth  of a setup   controller's CPU s  growth  of a setup"]
    for kind in KINDS:
        for count, found in sorted(costs.items()):
            wall = [seconds(one[kind]) for one in (found, costs[first])]
            used = [statistics.median(one[kind].processor) for one in (found, costs[first])]
            beside = wall[0] / seconds(found["setup"]), used[0] / statistics.median(found["setup"].processor)
            of_time = f"{wall[0]:7.2f}  {wall[0] / wall[1]:6.2f}  {beside[0]:10.1f}"
            lines.append(f"{kind:10} {count:5}  {of_time}   {used[0]:18.2f}  {used[0] / used[1]:6.2f}  {beside[1]:10.1f}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", default="2,4,8", help="how many nodes the labs have, with commas between (default: 2,4,8)")
    parser.add_argument("--memory", default="2G", help="limit of each node (default: 2G)")
    parser.add_argument("--turns", type=int, default=2, help="how often each is measured (default: 2)")
    parser.add_argument("--json", help="also write the costs to this file")
    options = parser.parse_args()
    if os.geteuid():
        sys.exit("bench_many: the lab's nodes need root: run it with sudo.")
    counts = sorted(int(count) for count in options.nodes.split(","))
    costs = {}
    with tempfile.TemporaryDirectory(prefix="many-") as folder:
        many.ready()
        bench = Bench(pathlib.Path(folder))
        for count in counts:
            with many.nodes(count, options.memory) as nodes:
                costs[count] = measure(bench, nodes, options.turns)
                sys.stderr.write(f"{count} nodes: " + "; ".join(f"{kind} {cost}" for kind, cost in costs[count].items()) + "\n")
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps({count: {kind: vars(cost) for kind, cost in of.items()} for count, of in costs.items()}))
    sys.stderr.write(table(costs) + "\n")
    least, most = counts[0], counts[-1]
    for kind in ("deploy", "verdict"):
        sys.stdout.write(f"figure {kind}_{most}_vs_{least} {seconds(costs[most][kind]) / seconds(costs[least][kind]):.2f} ratio\n")


if __name__ == "__main__":
    main()
