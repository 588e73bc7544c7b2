#!/usr/bin/env python3
# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a run costs that finds nothing to do, against a bare ansible.builtin.setup of the same nodes, and at more nodes.

Needs root: it makes the lab's nodes ready when they are not, and serves on two of them the tiny model by the real engine, then on two and on
--nodes of them the rehearsal engine. Both runs go over connections that are open already, three times in turn; medians count. Prints to standard
error each time and how often ssh was called, then "figure converged_vs_setup VALUE ratio" and "figure converged_8_vs_2 VALUE ratio".
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import typing as t
from dataclasses import dataclass, field

LAB = pathlib.Path(__file__).resolve().parents[1] / "lab"
sys.path.insert(0, str(LAB))
import many  # noqa: E402 - lies beside the lab's tests
import play  # noqa: E402
import yaml  # noqa: E402
from faultlab.engines import SGLANG, VLLM  # noqa: E402

TURNS = 3


@dataclass
class Cost:
    """Of one kind of run: wall seconds, seconds of the controller's processors, and calls of ssh, sftp and scp, each turn's."""

    seconds: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)
    trips: list[int] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"{statistics.median(self.seconds):.2f} s ({', '.join(f'{value:.2f}' for value in self.seconds)}), {statistics.median(self.trips):.0f} round trips"
        )


class Bench:
    """Runs programs of Ansible whose calls of ssh are counted."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder, self._calls = folder, folder / "calls"
        self._environment = {**play.environment(), "ANSIBLE_SSH_CONTROL_PATH_DIR": str(folder / "cp"), "CALLS": str(self._calls)}
        for program in ("ssh", "sftp", "scp"):
            path = folder / program
            path.write_text(f'#!/bin/sh\necho {program} >> "$CALLS"\nexec {program} "$@"\n')
            path.chmod(0o755)
            self._environment[f"ANSIBLE_{program.upper()}_EXECUTABLE"] = str(path)

    def run(self, *command: str, cost: Cost | None = None, code: int = 0) -> str:
        """Run a program of Ansible; its output. Another end than the code's ends the benchmark."""
        self._calls.write_text("")
        begin, used = time.perf_counter(), processor_seconds()
        done = subprocess.run([str(play.BIN / command[0]), *command[1:]], cwd=play.ROOT, env=self._environment, capture_output=True, text=True, check=False)
        seconds = time.perf_counter() - begin
        if done.returncode != code:
            sys.exit(f"{pathlib.Path(sys.argv[0]).stem}: {' '.join(command)} ended with code {done.returncode}:\n{done.stdout}{done.stderr}")
        if cost:
            cost.seconds.append(seconds)
            cost.processor.append(processor_seconds() - used)
            cost.trips.append(len(self._calls.read_text().splitlines()))
        return done.stdout

    def deploy(self, recipe: t.Mapping[str, t.Any], cost: Cost | None = None) -> play.Play:
        """A run of the deploy playbook."""
        path = self._folder / "recipe.yml"
        path.write_text(yaml.safe_dump(dict(recipe), sort_keys=False))
        extra = json.dumps({"tp_launch_recipe": str(path), "tp_launch_history_dir": ""})
        return play.read(0, self.run("ansible-playbook", "deploy_qwen.yml", "-i", play.inventory(), "-e", extra, cost=cost), 0)

    def measure(self, recipe: t.Mapping[str, t.Any], name: str) -> tuple[Cost, Cost]:
        """The costs of a bare setup and of a run that finds nothing to do, on what serves this recipe."""
        setup, converged = Cost(), Cost()
        self.deploy(recipe)
        for _turn in range(TURNS):
            self.run("ansible", "sparks", "-i", play.inventory(), "-m", "ansible.builtin.setup", cost=setup)
            done = self.deploy(recipe, converged)
            if any(done.changed.values()):
                sys.exit(f"bench_converge: a run that should find nothing to do changed something: {done.output}")
        sys.stderr.write(f"{name}: setup {setup}; converged run {converged}\n")
        return setup, converged


def processor_seconds() -> float:
    """What this program's children have used of the processors so far, with their own children; the nodes' processes are none of them."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def seconds(cost: Cost) -> float:
    """The median."""
    return statistics.median(cost.seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=8, help="how many the larger lab has (default: 8; 2: measure two only)")
    parser.add_argument("--memory", default="2G", help="limit of each node of the larger lab (default: 2G)")
    options = parser.parse_args()
    if os.geteuid():
        sys.exit("bench_converge: the lab's nodes need root: run it with sudo.")
    with tempfile.TemporaryDirectory(prefix="converge-") as folder:
        bench = Bench(pathlib.Path(folder))
        many.ready()
        setup, converged = bench.measure(many.over(VLLM, 2), "2 nodes, vLLM")
        sys.stdout.write(f"figure converged_vs_setup {seconds(converged) / seconds(setup):.2f} ratio\n")
        sys.stdout.write(f"figure converged_round_trips {statistics.median(converged.trips) / 2:.1f} trips\n")
        if options.nodes > 2:
            larger(bench, options.nodes, options.memory)


def larger(bench: Bench, nodes: int, memory: str) -> None:
    """Two nodes and more, with the rehearsal engine on both; then the lab is of two nodes again."""
    play.empty("spark1", "spark2")
    _setup, two = bench.measure(many.over(SGLANG, 2), "2 nodes, rehearsal")
    with many.nodes(nodes, memory):
        setup, more = bench.measure(many.over(SGLANG, nodes), f"{nodes} nodes, rehearsal")
    sys.stdout.write(f"figure converged_{nodes}_vs_2 {seconds(more) / seconds(two):.2f} ratio\n")
    sys.stdout.write(f"figure converged_vs_setup_at_{nodes} {seconds(more) / seconds(setup):.2f} ratio\n")


if __name__ == "__main__":
    main()
