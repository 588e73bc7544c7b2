# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The scenarios of tests/lab/test_autostart.py as rows of the matrix: they build on each other, so they are played by that file, in its order."""

from __future__ import annotations

import pathlib
import subprocess
import sys
import typing as t
import xml.etree.ElementTree as ElementTree

import play

from .converge import Outcome
from .deploying import FOLDER

TESTS = play.ROOT / "tests" / "lab" / "test_autostart.py"


def scenarios(texts: t.Sequence[str]) -> list[Outcome]:
    """All of them, each told when all are done; none where texts are given and the word "autostart" holds none of them."""
    if texts and not any(text.lower() in "autostart" for text in texts):
        return []
    FOLDER.mkdir(parents=True, exist_ok=True)
    report = FOLDER / "autostart.xml"
    report.unlink(missing_ok=True)
    command = [str(play.BIN / "pytest"), "-q", "-m", "lab", f"--junitxml={report}", str(TESTS)]
    done = subprocess.run(command, cwd=play.ROOT, env=play.environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    outcomes = read(report)
    if done.returncode and all(outcome.right for outcome in outcomes):
        outcomes.append(Outcome("autostart", "", wrong=[f"the tests ended with code {done.returncode}: {done.stdout[-2000:]}"]))
    if any(not outcome.right for outcome in outcomes):
        sys.stderr.write(done.stdout)
    for outcome in outcomes:
        print("  ".join(outcome.cells()), flush=True)
    return outcomes


def read(report: pathlib.Path) -> list[Outcome]:
    """The rows out of pytest's JUnit file; none where there is no file."""
    outcomes = []
    for case in ElementTree.parse(report).iter("testcase") if report.exists() else ():
        broken = [str(child.get("message")) for child in case if child.tag in ("failure", "error", "skipped")]
        name = case.get("name", "").removeprefix("test_").replace("_", " ")
        outcomes.append(Outcome(f"autostart: {name}", "", "serving", "by the agents", float(case.get("time", "0")), wrong=broken))
    return outcomes
