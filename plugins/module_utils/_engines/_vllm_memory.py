# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""How vLLM reckons with memory.

Read in the wheel of 0.32.0: C(v1/worker/gpu_worker.py) (C(init_device), C(determine_available_memory)), C(v1/worker/utils.py)
(C(request_memory)), C(utils/mem_utils.py) (C(MemorySnapshot): MemAvailable counts as free on a GPU that shares the machine's memory) and
C(v1/core/kv_cache_utils.py) (C(get_kv_cache_groups), C(get_kv_cache_capacity)). It measures graphs and activations by a trial run.
"""

from __future__ import annotations

import math
import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils._engines._memory import GIB, MIB, Cache, Capacity, Memory, Room, Shape, Wish

_BYTES = "kv-cache-memory-bytes"


def _defaults(wish: Wish, shape: Shape) -> Wish:
    # engine/arg_utils.py: 8192 tokens and 1024 requests from 70 GiB on (but for an A100), 16384 from 160 GiB on, else 2048 and 256.
    large = shape.total >= 70 * GIB
    return wish._replace(
        batch_tokens=wish.batch_tokens or (16384 if shape.total >= 160 * GIB else 8192 if large else 2048),
        requests=wish.requests or (1024 if large else 256),
        graph_batch=wish.graph_batch or min(512, 2 * (wish.requests or (1024 if large else 256))),
        page=wish.page or 16,
    )


def _graphs(wish: Wish, shape: Shape) -> int:
    """Measured by the engine, so this is an estimate: some MiB for every size that is captured (1, 2, 4, then steps of 8 and 16)."""
    if wish.no_graphs:
        return 0
    batch = wish.graph_batch or 0
    sizes = 3 + min(batch, 256) // 8 + max(batch - 256, 0) // 16
    return int((256 + 12 * sizes) * MIB)


def _set_aside(wish: Wish, shape: Shape) -> int:
    return 0


def _default_value(wish: Wish, shape: Shape) -> float:
    return 0.92


def _pool(knob: str, value: float, rooms: t.Sequence[Room]) -> t.List[int]:
    if knob == _BYTES:
        return [int(value)] * len(rooms)
    return [math.ceil(room.total * value) - room.weights - room.activations - room.graphs for room in rooms]


def _value(rooms: t.Sequence[Room], leave: t.Sequence[int]) -> float:
    """The trial run's own needs lie within what the option grants, so only what is left beside counts against what is free."""
    shares = [(room.free - max(leave[at] - room.activations - room.graphs, 0)) / room.total for at, room in enumerate(rooms) if room.total]
    return max(math.floor(min([1.0, *shares] if shares else [0.0]) * 1000) / 1000, 0.0)


def _groups(cache: Cache) -> t.Tuple[int, int, int, int]:
    """Layers in a group, and the groups of each kind: full, window, state.

    C(_get_kv_cache_groups_uniform_page_size): the kind with fewest layers sets the size, unless the others have less than half more.
    """
    counts = [count for count in (cache.full_layers, cache.window_layers, cache.state_layers) if count]
    if not counts:
        return 0, 0, 0, 0
    size = max(counts) if max(counts) < min(counts) * 1.5 else min(counts)
    return (size,) + tuple(-(-count // size) for count in (cache.full_layers, cache.window_layers, cache.state_layers))  # type: ignore[return-value]


def block_tokens(cache: Cache, wish: Wish) -> int:
    """Tokens of a block: with linear attention they grow until a block is as large as a state.

    C(platforms/interface.py): "Setting attention block size to 2128 tokens to ensure that attention page size is >= mamba page size."
    """
    layer = cache.token / cache.full_layers if cache.full_layers else 0.0
    block = wish.page or 16
    if cache.state_layers and layer:
        block = max(block, -(-math.ceil(cache.state / cache.state_layers / layer) // 16) * 16)
    return block


def _capacity(pool: int, cache: Cache, wish: Wish) -> Capacity:
    """All kinds of layers share one pool of blocks; a block of any kind takes the same room, in as many layers as a group has."""
    size, full, window, state = _groups(cache)
    if not size:
        return Capacity(wish.context or 0, wish.requests, wish.context or 0, float(wish.requests or 0))
    layer = cache.token / cache.full_layers if cache.full_layers else cache.window_token / cache.window_layers
    block = block_tokens(cache, wish)
    drafts = wish.draft_tokens if wish.speculative else 0
    # MambaSpec.max_memory_usage_bytes: with a prefix cache ("align") the state before the last is kept as well.
    states = (1 if wish.no_prefix_cache else 2) + drafts
    page = max(block * layer, cache.state / cache.state_layers if state else 0.0)
    blocks = int(pool // (page * size)) if pool > 0 else 0

    def needed(length: int) -> int:
        # SlidingWindowSpec.max_memory_usage_bytes: what the window and one batch of a prompt hold.
        seen = min(cache.window - 1 + (wish.batch_tokens or 0), length)
        return full * -(-length // block) + window * (-(-seen // block) + 1) + state * states

    context = wish.context or 1
    concurrency = blocks / needed(context)
    low, high = 0, context
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if needed(middle) <= blocks else (low, middle - 1)
    return Capacity(int(concurrency * context), wish.requests, low, concurrency)


MEMORY = Memory(
    options={
        "context": ("max-model-len",),
        "cache_dtype": ("kv-cache-dtype",),
        "requests": ("max-num-seqs",),
        "batch_tokens": ("max-num-batched-tokens",),
        "pipeline": ("pipeline-parallel-size",),
        "offload": ("cpu-offload-gb",),
        "no_graphs": ("enforce-eager",),
        "graph_batch": ("max-cudagraph-capture-size",),
        "speculative": ("speculative-config",),
        "text_only": ("language-model-only",),
        "no_prefix_cache": ("no-enable-prefix-caching",),
        "page": ("block-size",),
        "quantization": ("quantization",),
        "experts_backend": ("moe-backend",),
        "state_dtype": ("mamba-ssm-cache-dtype", "mamba-cache-dtype"),
        "dtype": ("dtype",),
    },
    knobs=(_BYTES, "gpu-memory-utilization"),
    defaults=_defaults,
    set_aside=_set_aside,
    graphs=_graphs,
    pool=_pool,
    value=_value,
    default_value=_default_value,
    capacity=_capacity,
    whole_context=True,
    # model_executor/layers/fused_moe/oracle/mxfp4.py: mxfp4_round_up_hidden_size_and_intermediate_size.
    paddings={"triton": (64, 1), "deep_gemm": (128, 128), "flashinfer_cutlass": (128, 128), "b12x": (1, 1), "": (128, 256)},
    # model_executor/layers/mamba/mamba_utils.py: without a type of its own the state has the model's.
    state_dtype="bfloat16",
    state_drafts=True,
    # In GiB; read by the build for CPUs only, and there in place of the option (platforms/cpu.py: "Legacy setting").
    variables={"VLLM_CPU_KVCACHE_SPACE": (_BYTES, GIB)},
    source="vLLM 0.32.0",
)
