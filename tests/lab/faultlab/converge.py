# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Faults that the same playbook mends: each begins with a served model, and its seconds count from the playbook's start to the completion."""

from __future__ import annotations

import sys
import typing as t
from dataclasses import dataclass

import play

DEPLOY = "deploy_qwen.yml"


@dataclass(frozen=True)
class Fault:
    """A fault, what the plan must say of it, and whether all ranks must have been started anew."""

    name: str
    make: t.Callable[[], object]
    reason: str
    restarts: bool = True


def kill(name: str) -> t.Callable[[], object]:
    """The rank of a node, ended as the kernel would."""
    return lambda: play.node(name, f"docker kill --signal KILL {play.RANKS[name]}")


FAULTS = (
    Fault("nothing wrong", lambda: None, "all ranks run as wanted and the head answered a request", restarts=False),
    Fault("worker killed", kill("spark2"), "rank 1 on spark2 has ended (exit code 137)"),
    Fault("head killed", kill("spark1"), "rank 0 on spark1 has ended (exit code 137)"),
    Fault("worker removed", lambda: play.node("spark2", f"docker rm -f {play.RANKS['spark2']}"), "rank 1 is missing on spark2"),
    Fault("worker's node rebooted", lambda: play.lab("reboot", "spark2"), "rank 1 on spark2 has ended"),
    Fault("power cut on the head", lambda: (play.lab("power-cut", "spark1"), play.lab("up")), "rank 0 on spark1 has ended"),
    Fault("image gone from the worker", lambda: play.node("spark2", "docker ps -aq | xargs docker rm -f; docker images -q | xargs docker rmi -f"), "missing"),
)


def row(fault: Fault) -> tuple[bool, float, list[str]]:
    """Make one fault and let the playbook mend it: right or wrong, the seconds, and the table's cells."""
    before = {name: rank["id"] for name, rank in play.ranks().items()}
    fault.make()
    run = play.playbook(DEPLOY)
    seconds = run.seconds
    right = run.code == 0 and fault.reason in run.text and "answered" in run.text
    after = play.ranks() if run.code == 0 else {}
    new = {name for name, rank in after.items() if rank["id"] != before[name]}
    right = right and new == (set(play.RANKS) if fault.restarts else set())
    if right and fault.restarts:
        right = after["spark2"]["started"] < after["spark1"]["started"]
    if not right:
        sys.stderr.write(run.output)
    action = "all ranks restarted, worker first" if fault.restarts else "nothing"
    changed = " ".join(f"{name}={count}" for name, count in sorted(run.changed.items()))
    return right, seconds, [fault.name, action if right else "WRONG", f"{seconds:.0f} s", changed, "pass" if right else "FAIL"]


def main() -> tuple[list[bool], list[str]]:
    """Run all rows and print them: which were right, and the lines of figures."""
    first = play.playbook(DEPLOY)
    if first.code:
        sys.stderr.write(first.output)
        return [False], []
    results = []
    for fault in FAULTS:
        results.append(row(fault))
        print("  ".join(results[-1][2]), flush=True)
    header = ["fault", "actions", "to serving", "changed", "result"]
    cells = [header, *(line for _right, _seconds, line in results)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(header))]
    print()
    for line in cells:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    restarts = [seconds for (_right, seconds, _line), fault in zip(results, FAULTS, strict=True) if fault.restarts]
    unchanged = next(seconds for (_right, seconds, _line), fault in zip(results, FAULTS, strict=True) if not fault.restarts)
    figures = [f"figure converged_run_vs_restart {unchanged / (sum(restarts) / len(restarts)):.2f} ratio"]
    return [right for right, _seconds, _line in results], figures
