# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Parts of the matrix that are tests of their own, played whole, those marked as long too: each test becomes a row."""

from __future__ import annotations

import dataclasses
import pathlib
import subprocess
import sys
import typing as t
import xml.etree.ElementTree as ElementTree

import play

from .converge import Outcome
from .deploying import FOLDER


@dataclasses.dataclass(frozen=True)
class Suite:
    """A part: its name, its tests below tests/, and what a row of it says of the state before and of the actions."""

    name: str
    tests: tuple[str, ...]
    before: str
    actions: str


AUTOSTART = Suite("autostart", ("lab/test_autostart.py",), "serving", "by the agents")
FABRIC = Suite(
    "fabric",
    ("lab/test_preflight.py", "integration/test_fabric_probe.py", "integration/test_collective.py", "lab/test_fabric_configure.py"),
    "no launch",
    "told",
)


def scenarios(suite: Suite, texts: t.Sequence[str]) -> list[Outcome]:
    """All of them, each told when all are done; none where texts are given and the part's name holds none of them."""
    if texts and not any(text.lower() in suite.name for text in texts):
        return []
    FOLDER.mkdir(parents=True, exist_ok=True)
    report = FOLDER / f"{suite.name}.xml"
    report.unlink(missing_ok=True)
    files = [str(play.ROOT / "tests" / name) for name in suite.tests]
    command = [str(play.BIN / "pytest"), "-q", "-m", "lab", f"--junitxml={report}", *files]
    environment = {**play.environment(), "SPARKSTACK_LAB_ENGINE": "vllm"}
    done = subprocess.run(command, cwd=play.ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    outcomes = read(report, suite)
    if done.returncode and all(outcome.right for outcome in outcomes):
        outcomes.append(Outcome(suite.name, "", wrong=[f"the tests ended with code {done.returncode}: {done.stdout[-2000:]}"]))
    if any(not outcome.right for outcome in outcomes):
        sys.stderr.write(done.stdout)
    for outcome in outcomes:
        print("  ".join(outcome.cells()), flush=True)
    return outcomes


def read(report: pathlib.Path, suite: Suite) -> list[Outcome]:
    """The rows out of pytest's JUnit file; none where there is no file."""
    outcomes = []
    for case in ElementTree.parse(report).iter("testcase") if report.exists() else ():
        broken = [str(child.get("message")) for child in case if child.tag in ("failure", "error", "skipped")]
        name = case.get("name", "").removeprefix("test_").replace("_", " ")
        outcomes.append(Outcome(f"{suite.name}: {name}", "", suite.before, suite.actions, float(case.get("time", "0")), wrong=broken))
    return outcomes


def figures(told: t.Sequence[Outcome]) -> list[str]:
    """How many of the fabric's rows were right, for programs; none where none was played."""
    right = sum(outcome.right for outcome in told)
    return [f"figure fabric_faults_passed {right} faults", f"figure fabric_faults_total {len(told)} faults"] if told else []
