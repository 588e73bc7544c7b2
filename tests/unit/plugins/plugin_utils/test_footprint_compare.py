# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A plan beside the values that the real logs under tests/fixtures/logs carry."""

from __future__ import annotations

import typing as t

import pytest
import real_logs

from ansible_collections.sparkstack.inference.plugins.filter.memory_comparison import memory_comparison
from ansible_collections.sparkstack.inference.plugins.plugin_utils import _footprint_compare as subject

GIB = 1024**3


def phases(case: str, name: str = "head.log") -> list[dict[str, t.Any]]:
    return t.cast("list[dict[str, t.Any]]", real_logs.read(real_logs.LOGS / case / name)["phases"])


def plan(weights: float, tokens: int | None, **more: t.Any) -> dict[str, t.Any]:
    nodes = [{"node": "spark1"}, {"node": "spark2"}]
    return {"nodes": nodes, "weights_bytes": [int(weights * GIB)] * 2, "tokens_that_fit": tokens, **more}


@pytest.mark.parametrize(
    ("case", "name", "told"),
    [
        ("sglang-gpu/ready-cold", "head.log", (3.68, 138.33, 31888648, 31888648)),
        ("sglang-gpu/ready-cold", "worker.log", (3.68, 138.33, 31888648, None)),
        ("sglang-gpu/ready-qwen35-moe", "head.log", (4.23, 137.63, 33220788, 33220788)),
        ("sglang-gpu/no-kv-room-both", "head.log", (3.68, 4.70, None, None)),
        ("vllm-cpu/ready", "head.log", (None, None, 2097152, None)),
        ("vllm-cpu/ready", "worker.log", (None, None, None, None)),
    ],
)
def test_what_a_log_reports(case: str, name: str, told: tuple[float | None, ...]) -> None:
    found = subject.reported(phases(case, name))
    weights, free, tokens, ready = told
    assert found["weights_bytes"] == (None if weights is None else round(weights * GIB))
    assert found["free_bytes"] == (None if free is None else pytest.approx(free * GIB, abs=0.011 * GIB))
    assert (found["cache_tokens"], found["ready_tokens"]) == (tokens, ready)


def test_the_difference_is_told_for_each_node() -> None:
    case = "sglang-gpu/ready-cold"
    found = subject.compare(plan(3.7, 31_000_000), {"spark1": phases(case), "spark2": phases(case, "worker.log")})
    assert [node["node"] for node in found["nodes"]] == ["spark1", "spark2"]
    assert found["weights_error_share"] == pytest.approx(0.02 / 3.68, rel=0.01)
    assert found["tokens_error_share"] == pytest.approx(888648 / 31888648)
    assert found["nodes"][1]["tokens"]["difference"] == -888648
    assert found["lines"][:2] == ["spark1: weights 3.7 GiB, planned 3.7 GiB (+0.5 %)", "spark1: cache for 31888648 tokens, planned 31000000 (-2.8 %)"]


def test_what_is_not_known_is_not_compared() -> None:
    """A headless worker of vLLM tells no tokens of its own; the engine shares them."""
    found = subject.compare(plan(0, 2097152), {"spark1": phases("vllm-cpu/ready"), "spark2": phases("vllm-cpu/ready", "worker.log")})
    assert (found["weights_error_share"], found["tokens_error_share"]) == (None, 0.0)
    assert [(node["weights"], bool(node["tokens"])) for node in found["nodes"]] == [(None, True), (None, False)]
    assert subject.compare(plan(3.7, None), {}) == {
        "nodes": [],
        "weights_error_share": None,
        "cache_error_share": None,
        "tokens_error_share": None,
        "lines": [],
    }
    assert subject.compare({"nodes": []}, {"spark1": phases("vllm-cpu/ready")})["nodes"] == []


def test_a_draft_s_layers_are_told_by_themselves() -> None:
    """SGLang's second "Load weight end" is the draft's."""
    whole = plan(59.26, 1, draft_bytes=int(1.19 * GIB))
    report = [{"phase": "load_weights", "values": {"used_gb": 1.2, "available_gb": 50.0}}]
    assert subject.compare(whole, {"spark1": report})["weights_error_share"] < 0.02
    report[0]["values"] = {"used_gib": 59.3}
    assert subject.compare(whole, {"spark1": report})["weights_error_share"] < 0.02


def test_the_engine_s_own_word_counts_more_than_the_last_pool_of_a_worker() -> None:
    """gpt-oss: a pool of all tokens, then one of the window's."""
    head = [{"phase": "kv_cache", "values": {"tokens": 800}}, {"phase": "engine_ready", "values": {"tokens": 1000}}]
    worker = [{"phase": "kv_cache", "values": {"tokens": 800}}]
    assert subject.compare(plan(1, 1000), {"spark1": head, "spark2": worker})["tokens_error_share"] == 0.0


def test_keys_and_values_are_told_in_bytes() -> None:
    """ "K size: .., V size: .." of SGLang are those of the tokens; vLLM tells all that its cache has."""
    found = subject.reported(phases("sglang-gpu/ready-qwen35-moe"))
    assert (found["cache_bytes"], found["pool_bytes"]) == (pytest.approx(found["cache_tokens"] * 2048, rel=0.001), None)
    sglang = subject.compare(plan(4.2, 33_000_000, cache_token_bytes=[2048] * 2), {"spark1": phases("sglang-gpu/ready-qwen35-moe")})
    assert sglang["nodes"][0]["cache"]["planned"] == 33_000_000 * 2048 and sglang["cache_error_share"] < 0.01
    assert subject.reported(phases("vllm-cpu/ready"))["pool_bytes"] == GIB
    vllm = subject.compare({"nodes": [{"node": "spark1", "pool_bytes": 2 * GIB, "ranks": 2}], "weights_bytes": [0]}, {"spark1": phases("vllm-cpu/ready")})
    assert vllm["cache_error_share"] == 0.0
    gpu = [{"phase": "kv_cache", "values": {"available_gib": 39.5}}]
    assert subject.reported(gpu)["pool_bytes"] == round(39.5 * GIB)


def test_the_pool_of_the_layers_with_a_window_is_not_taken_for_all_of_it() -> None:
    head = [{"phase": "kv_cache", "values": {"tokens": 800, "k_gb": 1.0, "v_gb": 1.0}}, {"phase": "engine_ready", "values": {"tokens": 1000}}]
    assert subject.compare(plan(1, 1000, cache_token_bytes=[4096] * 2), {"spark1": head})["nodes"][0]["cache"] is None


def test_the_table_has_a_line_for_all_that_the_engine_tells() -> None:
    case = "sglang-gpu/ready-cold"
    nodes = {"spark1": {"timeline": phases(case)}, "spark2": {"timeline": phases(case, "worker.log")}, "spark3": {}}
    found = subject.compare(plan(3.7, 31_000_000, cache_token_bytes=[4096] * 2), subject.timelines(nodes))
    lines = subject.table(found)
    assert lines[0] == "memory           planned    engine says  plan is off by"
    assert lines[1] == "spark1  weights  3.7 GiB    3.7 GiB      +0.5 %"
    assert lines[3] == "spark1  tokens   31000000   31888648     -2.8 %"
    assert [line.split()[:2] for line in lines[1:]] == [[f"spark{rank}", what] for rank in (1, 2) for what in ("weights", "cache", "tokens")]


@pytest.mark.parametrize(
    ("memory", "nodes"),
    [({}, {}), ({"nodes": []}, {"spark1": {"timeline": []}}), ({"nodes": [{"node": "spark1"}], "weights_bytes": [5]}, {"spark1": {"timeline": [], "rank": 0}})],
)
def test_there_is_no_table_where_the_engine_tells_nothing(memory: dict[str, t.Any], nodes: dict[str, t.Any]) -> None:
    assert memory_comparison(memory, nodes) == []


def test_the_filter_wants_a_plan_and_nodes() -> None:
    with pytest.raises(Exception, match="give the memory of a plan"):
        memory_comparison([], {})
