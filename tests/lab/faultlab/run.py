# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Makes one row after the other, and the table of what was said."""

from __future__ import annotations

import contextlib
import fcntl
import pathlib
import re
import shutil
import textwrap
import time
import typing as t
from dataclasses import dataclass, field

import play

from . import guarding, makers, rows, wide
from .engines import NODES, WIDE, WORKER, Engine, start_of
from .launch import Launch, Missed

FOLDER = play.ROOT / "build" / "faults"


@dataclass
class Outcome:
    """How a row went; seconds from the fault to the verdict, or to ready."""

    engine: str
    row: rows.Row
    result: dict[str, t.Any] = field(default_factory=dict)
    seconds: float | None = None
    wrong: list[str] = field(default_factory=list)
    healthy: list[str] = field(default_factory=list)
    """The verdicts of all starts in it that were healthy."""
    told: dict[str, t.Any] = field(default_factory=dict)
    """What the memory guard told, where it had to stop a rank."""

    @property
    def right(self) -> bool:
        return not self.wrong

    def cells(self) -> list[str]:
        """The row of the table."""
        seconds = "-" if self.seconds is None else f"{self.seconds:.1f} s"
        shown = [str(self.result.get(key) or "-") for key in ("verdict", "culprit", "cause")]
        limits = self.row.watch.get("stall_timeouts") or {}
        return [self.engine, self.row.name, f"{max(limits.values())} s" if limits else "-", seconds, *shown, "right" if self.right else "WRONG"]

    def text(self) -> str:
        """What the user reads, and what is wrong with it."""
        words = [str(self.result.get("summary") or "(no verdict)"), *(f"Note: {note}" for note in self.result.get("notes") or [])]
        words += [f"WRONG: {problem}" for problem in self.wrong]
        return "\n".join(textwrap.fill(" ".join(word.split()), 150, initial_indent="    ", subsequent_indent="      ") for word in words)


@contextlib.contextmanager
def alone(lock: str | None) -> t.Iterator[None]:
    """Hold the file that those who share this lab have agreed on, if there is one."""
    if not lock:
        yield
        return
    with open(lock, "a") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def prepare(engines: t.Sequence[Engine]) -> None:
    """The lab is up, and images and models are on both nodes."""
    play.lab("up")
    play.install_engine("--images", ",".join(NODES))
    for engine in engines:
        for node in NODES:
            play.node(node, f"docker image inspect --format . {engine.image}")
    made = FOLDER / "wide"
    wide.make(play.built("tiny-qwen3-moe"), made)
    for node in NODES:
        play.lab("put-dir", node, str(made), WIDE)
    makers.clean()


def run(row: rows.Row, engine: Engine) -> Outcome:
    """Make one fault on nodes that :func:`makers.clean` has seen, and leave them clean."""
    folder = FOLDER / engine.name / re.sub(r"\W+", "-", row.name)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    outcome = Outcome(engine.name, row)
    try:
        _run(row, engine, folder, outcome)
    except (Missed, AssertionError) as error:  # the second: a word of the lab's tool failed
        outcome.wrong.append(f"{error} (see {folder})")
    finally:
        with contextlib.suppress(AssertionError):
            keep_logs(folder)
        makers.clean()
    return outcome


def _run(row: rows.Row, engine: Engine, folder: pathlib.Path, outcome: Outcome) -> None:
    for make in row.before:
        make(engine)
    start = start_of(engine, "", row.changes(engine), row.watch)
    start["again"], start["guard"] = "yes" if row.after_ready else "", row.guard
    with Launch(start, folder) as launch:
        # The first of the watch's own lines: Ansible prints the task's name with its first result, at its end.
        began = launch.wait_line(r"^\[spark\d\] ", 90)
        made = rows.make_it(row, launch)
        if row.after_ready:
            outcome.healthy.append("ready")
        known, outcome.result = launch.verdict()
    outcome.wrong += rows.problems(rows.wanted(row, engine), outcome.result)
    if row.guard:
        outcome.told = makers.guard_told(WORKER)
        outcome.wrong += guarding.problems(outcome.told)
    if rows.wanted(row, engine).verdict == "ready":
        outcome.healthy.append(outcome.result["verdict"])
    moment = row.moment() if row.moment else made if made is not None else began
    outcome.seconds = known - moment


def keep_logs(folder: pathlib.Path) -> None:
    """The logs of both ranks as they are, for whoever wants to know why a row is wrong."""
    for node in NODES:
        (folder / f"{node}.log").write_text(makers.logs(node))


def matrix(engine: Engine, chosen: t.Sequence[rows.Row], lock: str | None) -> list[Outcome]:
    """All rows, each told as soon as it is done."""
    outcomes = []
    for row in chosen:
        with alone(lock):
            begin = time.monotonic()
            if lock:  # whoever had the lab meanwhile may have left something
                makers.clean()
            outcome = run(row, engine)
        outcomes.append(outcome)
        print("  ".join(outcome.cells()) + f"  ({time.monotonic() - begin:.0f} s for the row)", flush=True)
        print(outcome.text(), flush=True)
    return outcomes


def table(outcomes: t.Sequence[Outcome]) -> str:
    """All rows below each other, with the text of each verdict.

    The limit is for how long nothing may move before it counts as a standstill; where there is none, the usual ones hold.
    """
    header = ["engine", "fault", "limit", "after", "verdict", "culprit", "cause", "result"]
    cells = [header, *(outcome.cells() for outcome in outcomes)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(header))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells]
    texts = ["", *(outcome.text() for outcome in outcomes)]
    return "\n".join(part for line, text in zip(lines, texts, strict=True) for part in (line, text) if part)


def figures(outcomes: t.Sequence[Outcome], mended: t.Sequence[bool]) -> list[str]:
    """The lines of figures.

    :param mended: of each fault that a deploy was to mend, whether it did.
    """
    faults = [outcome.right for outcome in outcomes if outcome.row.is_fault] + list(mended)
    crashes = [outcome.seconds for outcome in outcomes if outcome.row.crash and outcome.seconds is not None]
    healthy = [verdict for outcome in outcomes for verdict in outcome.healthy]
    stops = [outcome.told["gone_s"] for outcome in outcomes if outcome.told]
    lines = []
    if faults:
        lines += [f"figure faults_right_share {sum(faults) / len(faults):.2f} ratio", f"figure faults_made {len(faults)} faults"]
    if crashes:
        lines.append(f"figure crash_to_verdict_max_s {max(crashes):.1f} s")
    if stops:
        lines.append(f"figure guard_stop_s {max(stops):.2f} s")
    if healthy:
        lines.append(f"figure false_alarms {sum(verdict != 'ready' for verdict in healthy)} verdicts")
        lines.append(f"figure healthy_starts {len(healthy)} starts")
    return lines
