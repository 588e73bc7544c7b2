# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every log of real engines under tests/fixtures/logs, judged against the truth beside it."""

from __future__ import annotations

import json
import pathlib

import pytest
import real_logs

from ansible_collections.sparkstack.inference.plugins.module_utils._diagnosis import judge
from ansible_collections.sparkstack.inference.plugins.module_utils._timeline import Timeline

CASES = real_logs.CASES


def test_there_are_logs() -> None:
    assert len(CASES) >= 32


@pytest.mark.parametrize("folder", CASES, ids=real_logs.name)
def test_verdict(folder: pathlib.Path) -> None:
    assert real_logs.wrong(folder) == []
    truth = real_logs.truth_of(folder)
    found = judge(real_logs.records(folder, truth))
    assert truth.get("evidence_contains", "") in "\n".join(found["evidence"])
    assert found["summary"].endswith(".") and found["remedy"].endswith(".")
    assert "{" not in found["remedy"]
    assert (found["phase"] == "ready") == (found["verdict"] == "ready")


@pytest.mark.parametrize("folder", CASES, ids=real_logs.name)
@pytest.mark.parametrize("size", [61, 4096])
def test_fed_in_pieces_it_reads_the_same(folder: pathlib.Path, size: int) -> None:
    for path in folder.glob("*.log"):
        data = path.read_bytes()
        timeline = Timeline()
        for start in range(0, len(data), size):
            timeline.feed(data[start : start + size])
            if size > 61:
                timeline = Timeline.from_state(json.loads(json.dumps(timeline.state())))
        assert timeline.reading() == real_logs.read(path)
