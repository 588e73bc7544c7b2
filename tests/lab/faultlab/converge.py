# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Faults that the same playbook mends: each is made on a deployment that serves, then come one run and a second one that changes nothing."""

from __future__ import annotations

import re
import sys
import textwrap
import time
import typing as t
from dataclasses import dataclass, field

import play

from . import deploying, mending, run
from .engines import HEAD, NODES, WORKER
from .launch import Missed
from .mending import NOTHING, REFUSED, RESTARTED, WATCHED, WENT_BACK, Fault
from .scene import Scene
from .stray import look, stray

HEADER = ["fault", "state before", "actions", "to serving", "changed", "second run", "result"]


@dataclass
class Outcome:
    """How a row went; seconds of the one run, from its start to the completion."""

    name: str
    does: str
    before: str = ""
    actions: str = ""
    seconds: float | None = None
    changed: dict[str, int] = field(default_factory=dict)
    again: dict[str, int] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    @property
    def right(self) -> bool:
        return not self.wrong

    def cells(self) -> list[str]:
        """The row of the table."""
        seconds = "it serves" if self.seconds is None else f"{self.seconds:.0f} s"
        counts = [" ".join(f"{name}={count}" for name, count in sorted(changed.items())) or "-" for changed in (self.changed, self.again)]
        return [self.name, self.before, self.actions, seconds, *counts, "pass" if self.right else "FAIL"]

    def text(self) -> str:
        """Why it did what it did, and what is wrong with that."""
        words = [*(f"because {reason}" for reason in self.reasons[:3]), *(f"WRONG: {problem}" for problem in self.wrong)]
        return "\n".join(textwrap.fill(" ".join(word.split()), 150, initial_indent="    ", subsequent_indent="      ") for word in words)


def row(fault: Fault, scene: Scene) -> Outcome:
    """Make one fault on what serves, have it mended, and look what is left."""
    outcome = Outcome(fault.name, fault.does)
    try:
        scene.ensure()
        served = look()
        if fault.does in (REFUSED, WENT_BACK):
            with scene.unchanged():
                _mend(fault, scene, outcome)
                if fault.does == REFUSED:
                    fault.undo(scene)
        else:
            _mend(fault, scene, outcome)
            fault.then(scene)
        _again(fault, scene, outcome)
        outcome.wrong += stray(served)
        scene.left = scene.marks() if outcome.right else {}
    except (Missed, AssertionError) as error:  # the second: a word of the lab's tool failed
        outcome.wrong.append(str(error))
    finally:
        fault.undo(scene)
    return outcome


def _mend(fault: Fault, scene: Scene, outcome: Outcome) -> None:
    """The fault, the one run, and what is wrong about what it did."""
    before = scene.marks()
    fault.make(scene)
    outcome.before = fault.before or scene.state()
    # A rank of a node that can't be reached can't be looked at.
    found = before if fault.before else scene.marks()
    done = fault.run(scene)
    mending.log_of(fault.name).write_text(done.output)
    outcome.actions = "refused" if fault.does == REFUSED and done.code else deploying.action(done)
    outcome.reasons, outcome.changed = deploying.reasons(done), done.changed
    outcome.wrong += said(fault, done)
    if fault.does == REFUSED:
        fault.undo(scene)
    else:
        outcome.seconds = done.seconds if fault.does != NOTHING else None
    outcome.wrong += ranks_are_right(fault, found if fault.does == WATCHED else before, scene)
    if fault.does == WENT_BACK:
        outcome.actions = "restarted, failed, went back"


def said(fault: Fault, done: play.Play) -> list[str]:
    """What is wrong about the run itself."""
    wrong = []
    if (done.code == 0) == (fault.does in (REFUSED, WENT_BACK)):
        wrong.append(f"it ended with code {done.code} (see {mending.log_of(fault.name)})")
    if not re.search(fault.says, done.text):
        wrong.append(f"it does not say '{fault.says}' (see {mending.log_of(fault.name)})")
    if fault.does in (NOTHING, REFUSED) and any(done.changed.values()):
        wrong.append(f"it changed something: {done.changed}")
    if done.code == 0 and "answered" not in done.text:
        wrong.append("it shows no answer")
    return wrong


def ranks_are_right(fault: Fault, before: dict[str, str], scene: Scene) -> list[str]:
    """What is wrong about the ranks after the run: which are new, in which order they were started, and whether they serve."""
    wrong = []
    after = scene.marks()
    if not all(after.values()):
        return [f"not all ranks are there: {scene.state()}"]
    new = [node for node in NODES if after[node] != before[node]]
    if fault.does in (RESTARTED, WENT_BACK) and len(new) < len(NODES):
        wrong.append(f"not all ranks were started anew, only {new or 'none'}")
    if fault.does in (NOTHING, REFUSED, WATCHED) and new:
        wrong.append(f"the ranks of {', '.join(new)} were started anew")
    started = {node: mark.split()[-1] for node, mark in after.items()}
    if new and started[WORKER] > started[HEAD]:
        wrong.append("the worker was started after the head")
    if not scene.answers():
        wrong.append("the head does not answer a request")
    return wrong


def _again(fault: Fault, scene: Scene, outcome: Outcome) -> None:
    """The second run finds nothing to do."""
    before = scene.marks()
    second = scene.deploy()
    outcome.again = second.changed
    if second.code or any(second.changed.values()) or deploying.action(second) != "nothing":
        outcome.wrong.append(f"the second run: code {second.code}, {deploying.action(second)}, changed {second.changed}: {' '.join(deploying.reasons(second))}")
    if scene.marks() != before:
        outcome.wrong.append("the second run has touched the ranks")
    if scene.ledger("good.json").get("launch_id") != scene.launch_id():
        outcome.wrong.append("the launch that serves is not kept as the last one that answered")


def table(outcomes: t.Sequence[Outcome]) -> str:
    """All rows below each other, each with its reasons."""
    cells = [HEADER, *(outcome.cells() for outcome in outcomes)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(HEADER))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells]
    texts = ["", *(outcome.text() for outcome in outcomes)]
    return "\n".join(part for line, text in zip(lines, texts, strict=True) for part in (line, text) if part)


def figures(outcomes: t.Sequence[Outcome]) -> list[str]:
    """The lines of figures of this part; none where nothing was made."""
    if not outcomes:
        return []
    lines = [f"figure faults_passed {sum(outcome.right for outcome in outcomes)} faults", f"figure faults_total {len(outcomes)} faults"]
    restarts = [outcome.seconds for outcome in outcomes if outcome.does == RESTARTED and outcome.seconds is not None]
    return lines + ([f"figure restart_to_serving_s {sorted(restarts)[len(restarts) // 2]:.0f} s"] if restarts else [])


def matrix(chosen: t.Sequence[Fault], lock: str | None) -> list[Outcome]:
    """Make these rows: how they went, each told as soon as it is done.

    :param lock: see :func:`run.alone`; it is held while a row is made.
    """
    scene = Scene()
    outcomes = []
    try:
        for fault in chosen:
            with run.alone(lock):
                begin = time.monotonic()
                outcomes.append(row(fault, scene))
            print("  ".join(outcomes[-1].cells()) + f"  ({time.monotonic() - begin:.0f} s for the row)", flush=True)
            print(outcomes[-1].text() or "    -", flush=True)
    finally:
        with run.alone(lock):
            scene.leave()
    if any(not outcome.right for outcome in outcomes):
        sys.stderr.write(f"The output of each run is in {deploying.FOLDER}.\n")
    return outcomes
