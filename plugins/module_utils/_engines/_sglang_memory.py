# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""How SGLang reckons with memory.

Read in the wheel of 0.5.17: C(srt/server_args.py) (C(_handle_gpu_memory_settings), C(reserve_for_graph_mb), C(adjust_mem_fraction_for_vlm)),
C(srt/mem_cache/kv_cache_configurator.py) (C(_profile_available_bytes), C(_handle_max_mamba_cache), C(resolve_max_num_reqs)) and
C(srt/model_executor/pool_configurator.py). On a GPU that shares the machine's memory C(get_available_gpu_memory) (C(srt/utils/common.py))
takes MemAvailable for what is free.
"""

from __future__ import annotations

import math
import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils._engines._memory import MIB, Cache, Capacity, Memory, Room, Shape, Wish

# GPU memory in MiB below which: (tokens of a prompt at once, largest graph up to TP 3, and from TP 4 on).
_TIERS = (
    (20 * 1024, 2048, 8, 8),
    (35 * 1024, 2048, 24, 80),
    (60 * 1024, 4096, 32, 160),
    (160 * 1024, 8192, 256, 512),
)
_LARGE = (16384, 512, 512)


def _defaults(wish: Wish, shape: Shape) -> Wish:
    mib = shape.total / MIB
    tier = next(((row[1], row[2], row[3]) for row in _TIERS if mib < row[0]), _LARGE)
    return wish._replace(
        batch_tokens=wish.batch_tokens or tier[0],
        graph_batch=wish.graph_batch or tier[1 if shape.tensor_parallel < 4 else 2],
        page=wish.page or 1,
        state_ratio=0.9 if wish.state_ratio is None else wish.state_ratio,
        window_ratio=0.8 if wish.window_ratio is None else wish.window_ratio,
    )


def _prefill_graphs(batch: int) -> int:
    """How many sizes it captures graphs of prompts for (C(_generate_prefill_cuda_graph_batch_sizes))."""
    sizes = list(range(4, 33, 4)) + list(range(48, 257, 16)) + list(range(288, 513, 32)) + list(range(576, 1025, 64))
    sizes += list(range(1280, 4097, 256)) + list(range(4608, batch + 1, 512))
    return sum(1 for size in sizes if size <= batch)


def _graphs(wish: Wish, shape: Shape) -> int:
    if wish.no_graphs:
        return 0
    prompts = 0.0 if wish.no_prompt_graphs else 1536.0 if shape.mla else 8.0 * _prefill_graphs(wish.batch_tokens or 0)
    return int((2 * (wish.graph_batch or 0) + prompts) * MIB)


def _set_aside(wish: Wish, shape: Shape) -> int:
    tokens = max(wish.batch_tokens or 0, 2048)
    mib = 512 + tokens * 1.5 + shape.ranks / 8 * 1024 + _graphs(wish, shape) / MIB
    if shape.total / MIB > 60 * 1024:
        mib = max(mib, 10 * 1024)
    return int(mib * MIB)


def _default_value(wish: Wish, shape: Shape) -> float:
    fraction = round((shape.total - _set_aside(wish, shape)) / shape.total, 3)
    if shape.vision is not None and not wish.text_only:
        layers = shape.vision.get("num_hidden_layers") or 24
        hidden = shape.vision.get("hidden_size") or 1024
        ratio = layers * hidden**2 / (24 * 1024**2)
        fraction *= 0.95 * max(0.8, min(1.05, 1.0 - 0.1 * (ratio - 1.0)))
    return fraction


def _pool(knob: str, value: float, rooms: t.Sequence[Room]) -> t.List[int]:
    """All ranks take what the one with least has ("distributed": the minimum over all GPUs), before the load and after it."""
    before = min(room.free for room in rooms)
    after = min(room.free - room.weights for room in rooms)
    return [int(after - before * (1 - value))] * len(rooms)


def _value(rooms: t.Sequence[Room], leave: t.Sequence[int]) -> float:
    before = min(room.free for room in rooms)
    return math.floor((1 - max(leave) / before) * 1000) / 1000 if before > 0 else 0.0


def _state_slots(pool: int, cache: Cache, wish: Wish) -> t.Tuple[int, int]:
    """Slots for states of fixed size, and the bytes that they take with the one for padding and with those of drafts."""
    drafts = wish.draft_tokens if wish.speculative else 0
    # "3 state slots per request": one that runs, two that the prefix cache keeps.
    ratio = 1 if wish.no_prefix_cache else 3
    if wish.state_slots:
        slots = wish.state_slots
    elif wish.no_prefix_cache and wish.requests:
        slots = wish.requests
    else:
        share = (wish.state_ratio or 0.0) / (1 + (wish.state_ratio or 0.0))
        slots = int((pool * share - cache.state * (1 + drafts)) // (cache.state * (1 + drafts / ratio)))
    slots = max(slots, 0)
    running = min(wish.requests or slots // ratio, slots // ratio)
    return slots, (slots + 1) * cache.state + (running + 1) * drafts * cache.state * bool(drafts)


def _capacity(pool: int, cache: Cache, wish: Wish) -> Capacity:
    """A request's tokens are those of the layers that look back at everything; window layers keep C(swa-full-tokens-ratio) as many."""
    limit = None
    if cache.state:
        slots, taken = _state_slots(pool, cache, wish)
        pool -= taken
        limit = slots // (1 if wish.no_prefix_cache else 3)
    cell = cache.token + cache.window_token * ((wish.window_ratio or 0.0) if cache.full_layers else 1.0)
    page = wish.page or 1
    tokens = max(int(pool // cell), 0) if cell else (wish.tokens or wish.context or 0)
    tokens = min(tokens, wish.tokens or tokens) // page * page
    context = wish.context or tokens or 1
    requests = min(max(min(int(tokens / context * 512), 4096), 2048), tokens // 2)
    requests = min(requests, wish.requests or requests)
    if limit is not None:
        requests = min(requests, limit)
    possible = requests > 0
    return Capacity(tokens, requests, min(tokens, context) if possible else 0, min(tokens / context, float(requests)))


MEMORY = Memory(
    options={
        "context": ("context-length",),
        "cache_dtype": ("kv-cache-dtype",),
        "requests": ("max-running-requests",),
        "tokens": ("max-total-tokens",),
        "batch_tokens": ("chunked-prefill-size",),
        "pipeline": ("pp-size", "pipeline-parallel-size"),
        "offload": ("cpu-offload-gb",),
        "no_graphs": ("disable-cuda-graph",),
        "no_prompt_graphs": ("disable-prefill-cuda-graph",),
        "graph_batch": ("cuda-graph-max-bs-decode", "cuda-graph-max-bs"),
        "speculative": ("speculative-algorithm", "speculative-algo"),
        "draft_tokens": ("speculative-num-draft-tokens",),
        "draft_model": ("speculative-draft-model-path", "speculative-draft-model"),
        "text_only": ("language-model-only", "language-only"),
        "whole_vision": ("mm-enable-dp-encoder",),
        "no_prefix_cache": ("disable-radix-cache",),
        "page": ("page-size",),
        "quantization": ("quantization",),
        "experts_backend": ("moe-runner-backend",),
        "state_ratio": ("mamba-full-memory-ratio",),
        "state_slots": ("max-mamba-cache-size",),
        "state_dtype": ("mamba-ssm-dtype",),
        "window_ratio": ("swa-full-tokens-ratio",),
        "dtype": ("dtype",),
    },
    knobs=("mem-fraction-static",),
    defaults=_defaults,
    set_aside=_set_aside,
    graphs=_graphs,
    pool=_pool,
    value=_value,
    default_value=_default_value,
    capacity=_capacity,
    whole_context=False,
    # srt/layers/quantization/mxfp4.py: create_weights.
    paddings={"triton": (64, 1), "triton_kernel": (64, 1), "deep_gemm": (1, 1), "flashinfer_mxfp4": (128, 128), "marlin": (128, 256), "": (128, 256)},
    # srt/configs/model_config.py: is_hybrid_swa_model.
    windows=frozenset(
        "Llama4ForConditionalGeneration GptOssForCausalLM MiMoV2FlashForCausalLM MiMoV2ForCausalLM Step3p5ForCausalLM "
        "Step3p7ForConditionalGeneration Gemma4ForCausalLM Gemma4ForConditionalGeneration LagunaForCausalLM MellumForCausalLM".split()
    ),
    # srt/layers/rotary_embedding/base.py: the table stays in 32 bits on CUDA.
    position_bytes=4,
    # srt/mem_cache/memory_pool.py: ReqToTokenPool, (requests + 1) x (context + 4) numbers of 32 bits, which its setting does not count.
    table_bytes=4,
    source="SGLang 0.5.17",
)
