# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The logs of real engines under tests/fixtures/logs, and how a verdict on them compares with the truth beside each."""

from __future__ import annotations

import pathlib
import typing as t

import yaml

from ansible_collections.sparkstack.inference.plugins.module_utils._diagnosis import judge
from ansible_collections.sparkstack.inference.plugins.module_utils._timeline import Timeline

LOGS = pathlib.Path(__file__).resolve().parent / "fixtures" / "logs"
CASES = sorted(path.parent for path in LOGS.glob("*/*/truth.yml"))


def name(folder: pathlib.Path) -> str:
    """The case's name: C(sglang-gpu/ready-cold)."""
    return f"{folder.parent.name}/{folder.name}"


def truth_of(folder: pathlib.Path) -> dict[str, t.Any]:
    """What is known of a case."""
    return t.cast("dict[str, t.Any]", yaml.safe_load((folder / "truth.yml").read_text()))


def read(path: pathlib.Path) -> dict[str, t.Any]:
    """The reading of a whole log."""
    timeline = Timeline()
    timeline.feed(path.read_bytes())
    return timeline.reading()


def records(folder: pathlib.Path, truth: dict[str, t.Any]) -> list[dict[str, t.Any]]:
    """The records of a case's ranks, as the judge takes them."""
    return [
        {
            "node": node,
            "rank": known["rank"],
            "started": known.get("started", True),
            "running": known.get("running"),
            "exit_code": known.get("exit_code"),
            "oom_killed": known.get("oom_killed"),
            "quiet_seconds": known.get("quiet_seconds"),
            "reading": read(folder / known["log"]) if "log" in known else None,
        }
        for node, known in truth["nodes"].items()
    ]


def answers(truth: dict[str, t.Any], key: str) -> list[t.Any]:
    """All that is right: what really was, and what is as good an answer."""
    return truth.get(f"{key}_any", []) + [truth[key]]


def wrong(folder: pathlib.Path) -> list[str]:
    """What the verdict on a case gets wrong, one sentence each; empty where phase, verdict, cause and culprit are right."""
    truth = truth_of(folder)
    found = judge(records(folder, truth))
    pairs = [(key, found[key], answers(truth, key)) for key in ("verdict", "culprit", "cause")]
    pairs += [(f"phase of {node}", found["nodes"][node]["phase"], answers(known, "phase")) for node, known in truth["nodes"].items() if "phase" in known]
    return [f"{key} is {got}, not {' or '.join(map(str, right))}" for key, got, right in pairs if got not in right]
