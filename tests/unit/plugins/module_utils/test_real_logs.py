# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every log of real engines under tests/fixtures/logs, judged against the truth beside it."""

from __future__ import annotations

import json
import pathlib
import typing as t

import pytest
import yaml

from ansible_collections.sparkstack.inference.plugins.module_utils._diagnosis import judge
from ansible_collections.sparkstack.inference.plugins.module_utils._timeline import Timeline

LOGS = pathlib.Path(__file__).resolve().parents[3] / "fixtures" / "logs"
CASES = sorted(path.parent for path in LOGS.glob("*/*/truth.yml"))


def ids(path: pathlib.Path) -> str:
    return f"{path.parent.name}/{path.name}"


def read(path: pathlib.Path) -> dict[str, t.Any]:
    timeline = Timeline()
    timeline.feed(path.read_bytes())
    return timeline.reading()


def records(folder: pathlib.Path, truth: dict[str, t.Any]) -> list[dict[str, t.Any]]:
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
    return truth.get(f"{key}_any", []) + [truth[key]]


def test_there_are_logs() -> None:
    assert len(CASES) >= 32


@pytest.mark.parametrize("folder", CASES, ids=ids)
def test_verdict(folder: pathlib.Path) -> None:
    truth = yaml.safe_load((folder / "truth.yml").read_text())
    found = judge(records(folder, truth))
    assert found["verdict"] in answers(truth, "verdict")
    assert found["culprit"] in answers(truth, "culprit")
    assert found["cause"] in answers(truth, "cause")
    assert truth.get("evidence_contains", "") in "\n".join(found["evidence"])
    for node, known in truth["nodes"].items():
        if "phase" in known:
            assert found["nodes"][node]["phase"] in answers(known, "phase"), node
    assert found["summary"].endswith(".") and found["remedy"].endswith(".")
    assert "{" not in found["remedy"]
    assert (found["phase"] == "ready") == (found["verdict"] == "ready")


@pytest.mark.parametrize("folder", CASES, ids=ids)
@pytest.mark.parametrize("size", [61, 4096])
def test_fed_in_pieces_it_reads_the_same(folder: pathlib.Path, size: int) -> None:
    for path in folder.glob("*.log"):
        data = path.read_bytes()
        timeline = Timeline()
        for start in range(0, len(data), size):
            timeline.feed(data[start : start + size])
            if size > 61:
                timeline = Timeline.from_state(json.loads(json.dumps(timeline.state())))
        assert timeline.reading() == read(path)
