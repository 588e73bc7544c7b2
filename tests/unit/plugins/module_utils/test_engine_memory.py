# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The engines' own arithmetic, against what they wrote into their logs (tests/fixtures/logs)."""

from __future__ import annotations

import pathlib
import re
import typing as t

import pytest
import real_logs

from ansible_collections.sparkstack.inference.plugins.module_utils._engines import _sglang_memory as sglang
from ansible_collections.sparkstack.inference.plugins.module_utils._engines import _vllm_memory as vllm
from ansible_collections.sparkstack.inference.plugins.module_utils._engines._memory import GIB, MIB, Cache, Room, Shape, Wish

H200 = 143771 * MIB
TOLERANCE = 0.002  # the logs round to 0.01 GB of about 120


def head(case: str) -> str:
    return (real_logs.LOGS / case / "head.log").read_text()


def before_and_after(case: str) -> list[Room]:
    """Every rank's free memory before its load and the weights it then held, as the logs tell."""
    rooms = []
    for name in ("head.log", "worker.log"):
        text = pathlib.Path(real_logs.LOGS / case / name).read_text()
        before = float(re.findall(r"Load weight begin. avail mem=([\d.]+)", text)[0])
        after = float(re.findall(r"Load weight end.*avail mem=([\d.]+)", text)[0])
        rooms.append(Room(H200, int(before * GIB), int((before - after) * GIB), 0, 0))
    return rooms


def number(pattern: str, text: str) -> float:
    found = re.search(pattern, text)
    assert found is not None
    return float(found.group(1))


# What two bytes a number make of the pools in the logs: 60.82 + 60.82 GB for 31888648 tokens are 4096 bytes for one.
DENSE = Cache(token=4096, full_layers=8)
# 31.68 + 31.68 GB for 33220788 tokens; 1.31 and 55.72 GB for 9508 states and one of padding: six layers of 16 key and 32 value heads.
HYBRID = Cache(token=2048, full_layers=2, state=6 * (8192 // 2 * 3 * 2 + 16 * 128 * 128 * 4), state_layers=6)


@pytest.mark.parametrize(("case", "cache"), [("ready-cold", DENSE), ("ready-small-squatter", DENSE), ("ready-nccl-info", DENSE), ("ready-qwen35-moe", HYBRID)])
def test_sglang_makes_these_tokens_of_that_memory(case: str, cache: Cache) -> None:
    text = head(f"sglang-gpu/{case}")
    fraction = number(r"mem_fraction_static=([\d.]+)", text)
    pools = sglang.MEMORY.pool("mem-fraction-static", fraction, before_and_after(f"sglang-gpu/{case}"))
    wish = sglang.MEMORY.defaults(Wish(context=32768), Shape(ranks=2, tensor_parallel=2, total=H200))
    found = sglang.MEMORY.capacity(min(pools), cache, wish)
    assert found.tokens == pytest.approx(number(r"max_total_num_tokens=(\d+)", text), rel=TOLERANCE)
    assert found.requests == pytest.approx(number(r"max_running_requests=(\d+), context", text), rel=TOLERANCE)


def test_sglang_sets_this_fraction_by_itself() -> None:
    """Two H200s, "cuda_graph_max_bs_decode=16", graphs of prompts up to 8192 tokens."""
    shape = Shape(ranks=2, tensor_parallel=2, total=H200)
    wish = sglang.MEMORY.defaults(Wish(graph_batch=16), shape)
    assert sglang.MEMORY.default_value(wish, shape) == number(r"mem_fraction_static=([\d.]+)", head("sglang-gpu/ready-cold"))
    text = head("sglang-gpu/ready-cold")
    listed = re.search(r"backend=breakable, num_tokens=\[([\d, ]+)\]", text)
    assert listed is not None and sglang._prefill_graphs(8192) == len(listed.group(1).split(","))


def test_sglang_says_which_fraction_would_do() -> None:
    """ "Raise --mem-fraction-static above 0.783": with less, the pool is empty."""
    rooms = before_and_after("sglang-gpu/no-kv-room-both")
    assert sglang.MEMORY.pool("mem-fraction-static", 0.5, rooms)[0] < 0
    assert sglang.MEMORY.pool("mem-fraction-static", 0.779, rooms)[0] < 0 < sglang.MEMORY.pool("mem-fraction-static", 0.787, rooms)[0]


def test_sglang_s_graphs_of_prompts_can_be_left_out() -> None:
    for mla, mib in ((False, 8 * sglang._prefill_graphs(8192)), (True, 1536)):
        shape = Shape(ranks=2, tensor_parallel=2, total=H200, mla=mla)
        wish = sglang.MEMORY.defaults(Wish(graph_batch=16), shape)
        assert sglang.MEMORY.graphs(wish, shape) - sglang.MEMORY.graphs(wish._replace(no_prompt_graphs=True), shape) == mib * MIB


@pytest.mark.parametrize(
    ("mib", "tensor_parallel", "batch_tokens", "graph_batch"),
    [(16000, 1, 2048, 8), (24000, 2, 2048, 24), (46000, 4, 4096, 160), (81559, 2, 8192, 256), (124610, 2, 8192, 256), (183359, 8, 16384, 512)],
)
def test_sglang_s_defaults_follow_the_gpu(mib: int, tensor_parallel: int, batch_tokens: int, graph_batch: int) -> None:
    found = sglang.MEMORY.defaults(Wish(), Shape(ranks=1, tensor_parallel=tensor_parallel, total=mib * MIB))
    assert (found.batch_tokens, found.graph_batch) == (batch_tokens, graph_batch)


def test_sglang_takes_less_for_a_model_that_sees() -> None:
    plain, seeing = Shape(1, 1, 81559 * MIB), Shape(1, 1, 81559 * MIB, vision={"hidden_size": 1152})
    wish = sglang.MEMORY.defaults(Wish(), plain)
    ratio = sglang.MEMORY.default_value(wish, seeing) / sglang.MEMORY.default_value(wish, plain)
    assert ratio == pytest.approx(0.95 * (1 - 0.1 * ((1152 / 1024) ** 2 - 1)))
    assert sglang.MEMORY.default_value(wish._replace(text_only=True), seeing) == sglang.MEMORY.default_value(wish, plain)


def test_the_smallest_node_decides_and_every_node_keeps_what_it_needs() -> None:
    rooms = [Room(120 * GIB, 110 * GIB, 58 * GIB, GIB, 3 * GIB), Room(120 * GIB, 100 * GIB, 58 * GIB, GIB, 3 * GIB)]
    leave = [10 * GIB, 12 * GIB]
    for memory in (sglang.MEMORY, vllm.MEMORY):
        option = memory.knobs[-1]
        value = memory.value(rooms, leave)
        pool = min(memory.pool(option, value, rooms))
        left = [room.free - room.weights - pool for room in rooms]
        assert all(rest >= wanted for rest, wanted in zip(left, leave, strict=True))
        assert left[1] - leave[1] < 0.2 * GIB


def test_sglang_keeps_a_share_of_the_tokens_for_layers_with_a_window() -> None:
    """gpt-oss: a full pool of N tokens, and one of 0.8 N for the window."""
    cache = Cache(token=1000, window_token=1000, window=128, full_layers=18, window_layers=18)
    wish = sglang.MEMORY.defaults(Wish(context=1000), Shape(1, 1, H200))
    assert sglang.MEMORY.capacity(1800 * 5000, cache, wish).tokens == 5000


def test_sglang_honours_the_most_tokens_requests_and_states() -> None:
    wish = sglang.MEMORY.defaults(Wish(context=1000, tokens=64000, requests=7, page=64), Shape(1, 1, H200))
    found = sglang.MEMORY.capacity(100 * GIB, Cache(token=1024, full_layers=1), wish)
    assert found == (64000, 7, 1000, 7.0)
    hybrid = sglang.MEMORY.capacity(100 * GIB, Cache(token=1024, full_layers=1, state=GIB, state_layers=1), wish._replace(state_slots=12, requests=None))
    assert hybrid.requests == 4


def test_sglang_needs_a_slot_for_each_draft_token() -> None:
    cache = Cache(token=1024, full_layers=1, state=100 * MIB, state_layers=3)
    wish = sglang.MEMORY.defaults(Wish(context=1000), Shape(1, 1, H200))
    slots = sglang._state_slots(20 * GIB, cache, wish)[0]
    drafting = sglang._state_slots(20 * GIB, cache, wish._replace(speculative=True, draft_tokens=4))[0]
    assert slots == int((20 * GIB * 0.9 / 1.9 - cache.state) // cache.state)
    assert drafting == int((20 * GIB * 0.9 / 1.9 - cache.state * 5) // (cache.state * (1 + 4 / 3)))


@pytest.mark.parametrize(
    ("case", "layers"),
    # Two of the four heads are keys and values, 32 wide, in 16 bits; one of them on each of two ranks.
    [("ready", 4), ("ready-moe", 2)],
)
def test_vllm_makes_these_tokens_of_that_memory(case: str, layers: int) -> None:
    text = head(f"vllm-cpu/{case}")
    wish = vllm.MEMORY.defaults(Wish(context=512), Shape(ranks=2, tensor_parallel=2, total=24 * GIB))
    pool = vllm.MEMORY.pool("kv-cache-memory-bytes", number(r"Explicitly set \(([\d.]+)/", text) * GIB, [Room(24 * GIB, 14 * GIB, 0, 0, 0)])[0]
    found = vllm.MEMORY.capacity(pool, Cache(token=layers * 2 * 32 * 2, full_layers=layers), wish)
    assert f"KV cache size: {found.tokens:,} tokens" in text
    assert f"Maximum concurrency for 512 tokens per request: {found.concurrency:.2f}x" in text


def test_vllm_grants_what_is_left_of_its_share() -> None:
    room = Room(100 * GIB, 90 * GIB, 40 * GIB, 2 * GIB, 3 * GIB)
    assert vllm.MEMORY.pool("gpu-memory-utilization", 0.8, [room]) == [35 * GIB]
    assert vllm.MEMORY.pool("kv-cache-memory-bytes", 7 * GIB, [room, room]) == [7 * GIB] * 2


def test_vllm_counts_blocks_by_groups_of_layers() -> None:
    """18 layers of each kind: a request of 131072 tokens takes 8192 blocks of the full ones and, for window and batch, 521 of the others."""
    cache = Cache(token=18 * 2048, window_token=18 * 2048, window=128, full_layers=18, window_layers=18)
    wish = vllm.MEMORY.defaults(Wish(context=131072), Shape(1, 1, H200))
    blocks = 10 * GIB // (16 * 18 * 2048)
    found = vllm.MEMORY.capacity(10 * GIB, cache, wish)
    assert found.concurrency == pytest.approx(blocks / (8192 + 521))
    assert found.tokens == int(blocks / (8192 + 521) * 131072)


def test_vllm_gives_a_request_s_state_a_block_of_each_group() -> None:
    """36 layers with a state and 12 without: blocks of twelve layers, as many tokens in one as a state is large."""
    cache = Cache(token=12 * 1024, full_layers=12, state=36 * 2_000_000, state_layers=36)
    wish = vllm.MEMORY.defaults(Wish(context=100_000), Shape(1, 1, H200))
    found = vllm.MEMORY.capacity(30 * GIB, cache, wish)
    tokens = -(-1954 // 16) * 16  # 2000000 bytes hold 1953.1 tokens of 1024
    blocks = 30 * GIB // (12 * tokens * 1024)
    assert found.concurrency == pytest.approx(blocks / (-(-100_000 // tokens) + 3 * 2))
    once = vllm.MEMORY.capacity(30 * GIB, cache, wish._replace(no_prefix_cache=True))
    assert once.concurrency == pytest.approx(blocks / (-(-100_000 // tokens) + 3))


@pytest.mark.parametrize(("pool", "context"), [(16 * 4096 * 10, 160), (16 * 4096 * 3, 48), (0, 0), (-5, 0)])
def test_vllm_tells_the_longest_request(pool: int, context: int) -> None:
    found = vllm.MEMORY.capacity(pool, Cache(token=4096, full_layers=4), vllm.MEMORY.defaults(Wish(context=1000), Shape(1, 1, H200)))
    assert (found.context, found.concurrency < 1) == (context, True)


def test_nothing_is_captured_without_graphs() -> None:
    for memory in (sglang.MEMORY, vllm.MEMORY):
        shape = Shape(1, 1, H200)
        wish = memory.defaults(Wish(), shape)
        assert memory.graphs(wish, shape) > 0
        assert memory.graphs(wish._replace(no_graphs=True), shape) == 0


def test_what_the_engines_are_asked_is_what_the_wish_knows() -> None:
    for memory in (sglang.MEMORY, vllm.MEMORY):
        assert set(memory.options) <= set(t.get_type_hints(Wish))
