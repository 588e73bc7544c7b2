# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The record of a launch, and which launch can be gone back to."""

from __future__ import annotations

import json
import typing as t

import pytest

from ansible_collections.sparkstack.inference.plugins.filter.launch_record import launch_record
from ansible_collections.sparkstack.inference.plugins.filter.launch_target import launch_target
from ansible_collections.sparkstack.inference.plugins.plugin_utils import _history

PLAN = {
    "launch_id": "L2", "deployment": "tiny", "action": "restart", "reasons": ["rank 1 is missing on spark2"], "differences": [],
    "recipe": {"name": "tiny"}, "image": "vllm:1", "image_content": "sha256:aa", "model_path": "/srv/models/tiny", "model_digest": "d1",
    "ranks": [{"node": "spark1", "spec_hash": "h0", "launch": {}}, {"node": "spark2", "spec_hash": "h1", "launch": {}}],
}  # fmt: skip
WHO = {"user": "alice", "host": "ctl1", "job": None}
READY = {
    "verdict": "ready", "phase": "ready", "cause": None, "culprit": None, "summary": "All 2 ranks serve.", "remedy": "Nothing.",
    "nodes": {"spark1": {"timeline": [{"phase": "init_dist", "time": 5.0, "seconds": 2.0, "values": {"a": 1}}]}},
}  # fmt: skip
ANSWER = {"answered": True, "seconds": 1.5, "tokens": 16, "text": "Paris"}


def test_a_launch_that_serves() -> None:
    record = _history.record(PLAN, READY, ANSWER, (100.0, 195.25), WHO)
    assert (record["answered"], record["seconds_to_ready"], record["answer"]) == (True, 95.2, {"seconds": 1.5, "tokens": 16})
    assert record["verdict"]["verdict"] == "ready"
    assert record["timelines"] == {"spark1": [{"phase": "init_dist", "time": 5.0, "seconds": 2.0}]}
    assert record["ranks"][1] == {"node": "spark2", "rank": 1, "container": "tiny-rank1", "spec_hash": "h1"}
    assert record["image"] == {"name": "vllm:1", "content": "sha256:aa"} and record["model"] == {"path": "/srv/models/tiny", "digest": "d1"}
    assert json.loads(json.dumps(record)) == record


@pytest.mark.parametrize(
    ("verdict", "answer", "failure", "wanted"),
    [
        ({**READY, "verdict": "failed", "summary": "spark2 ran out of memory."}, {}, "spark2 ran out of memory. Free some.", "spark2 ran out of memory."),
        # It was ready, and then gave no answer.
        (READY, {}, "The head gave no answer.", "The head gave no answer."),
        # Docker would not start a rank: nothing was watched.
        ({}, {}, "Docker refused.", "Docker refused."),
    ],
)
def test_a_launch_that_came_to_nothing(verdict: dict[str, t.Any], answer: dict[str, t.Any], failure: str, wanted: str) -> None:
    record = _history.record(PLAN, verdict, answer, (100.0, 130.0), WHO, failure)
    assert (record["answered"], record["seconds_to_ready"], record["answer"]) == (False, None, None)
    assert (record["verdict"]["verdict"], record["verdict"]["summary"]) == ("failed", wanted)


def test_the_planned_memory_is_kept_beside_the_engine_s_report() -> None:
    memory = {"nodes": [{"node": "spark1"}], "weights_bytes": [1 << 30], "tokens_that_fit": None, "knob": {"option": "mem-fraction-static", "value": 0.8}}
    timeline = [{"phase": "load_weights", "time": 5.0, "seconds": 2.0, "values": {"used_gb": 1.0}}]
    plan = {**PLAN, "memory": memory, "planned": {"mem-fraction-static": 0.8}}
    record = _history.record(plan, {**READY, "nodes": {"spark1": {"timeline": timeline}}}, ANSWER, (100.0, 195.25), WHO)
    assert (record["planned"], record["memory"]["knob"]["value"]) == ({"mem-fraction-static": 0.8}, 0.8)
    assert record["memory"]["nodes"][0]["weights"] == {"planned": 1 << 30, "reported": 1 << 30, "difference": 0, "error_share": 0.0}
    assert json.loads(json.dumps(record)) == record
    # Where the recipe or the user has decided, and nothing was planned.
    assert [_history.record(PLAN, READY, ANSWER, (100.0, 195.25), WHO)[key] for key in ("planned", "memory")] == [None, None]
    kept = _history.record({**plan, "action": "none", "memory": {}, "planned": {}}, {}, ANSWER, (900.0, 901.0), WHO)
    assert {"planned", "memory"} & set(kept) == set()


def test_of_a_launch_that_was_only_watched_its_log_tells_how_long_it_took() -> None:
    phases = [{"phase": "parse_args", "time": 10.0, "seconds": 80.0}, {"phase": "ready", "time": 90.5, "seconds": None}]
    verdict = {**READY, "nodes": {"spark1": {"rank": 0, "timeline": phases}, "spark2": {"rank": 1, "timeline": phases[:1]}}}
    record = _history.record({**PLAN, "action": "watch"}, verdict, ANSWER, (100.0, 105.0), WHO)
    assert record["seconds_to_ready"] == 80.5
    # Who began it, when and why, is the other run's word.
    assert {"who", "began", "action", "reasons", "differences"} & set(record) == set()


def test_a_launch_that_is_only_found_serving_keeps_what_is_known_of_it() -> None:
    known = _history.record(PLAN, READY, ANSWER, (100.0, 195.25), WHO)
    found = _history.record({**PLAN, "action": "none", "reasons": ["all ranks run"]}, {}, {**ANSWER, "seconds": 0.5}, (900.0, 901.0), WHO)
    assert {**known, **found} == {**known, "answer": {"seconds": 0.5, "tokens": 16}}


def test_the_filter_tells_who(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWX_JOB_ID", "17")
    who = launch_record(PLAN, READY, ANSWER, began=100.0)["who"]
    assert who["job"] == "17" and who["user"] and who["host"]
    with pytest.raises(Exception, match="no plan of a launch"):
        launch_record({"deployment": "tiny"})


def kept(identity: str, length: int, image: str = "a", digest: str = "d") -> dict[str, t.Any]:
    return {
        "launch_id": identity,
        "recipe": {"name": "tiny", "arguments": {"max-model-len": length}, "proof": {"prompt": identity}},
        "image": {"content": image},
        "model": {"digest": digest},
    }


@pytest.mark.parametrize(
    ("ledgers", "present", "wanted"),
    [
        ([{"good": kept("L1", 512), "previous": None}], None, "L1"),
        # A launch with other arguments has failed: back to what answered.
        ([{"good": kept("L1", 512), "previous": kept("L0", 256)}], kept("L2", 1024), "L1"),
        # What answered last is what is there: back to the one before.
        ([{"good": kept("L1", 512), "previous": kept("L0", 256)}], kept("L1", 512), "L0"),
        ([{"good": kept("L1", 512), "previous": None}], kept("L2", 512), None),
        ([{"good": kept("L1", 512), "previous": None}], kept("L2", 512, image="b"), "L1"),
        ([{"good": kept("L1", 512), "previous": None}], kept("L2", 512, digest="e"), "L1"),
        # The head's disk is new.
        ([{"good": None, "previous": None}, {"good": kept("L1", 512), "previous": None}], None, "L1"),
        ([], None, None),
    ],
)
def test_what_can_be_gone_back_to(ledgers: list[dict[str, t.Any]], present: dict[str, t.Any] | None, wanted: str | None) -> None:
    assert launch_target(ledgers, present).get("launch_id") == wanted


def test_the_filter_wants_a_list() -> None:
    with pytest.raises(Exception, match="give a list"):
        launch_target({"good": None})
