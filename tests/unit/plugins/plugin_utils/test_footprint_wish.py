# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Arguments as recipes write them."""

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.sparkstack.inference.plugins.module_utils._engines import _sglang_memory, _vllm_memory
from ansible_collections.sparkstack.inference.plugins.plugin_utils import _footprint_wish as subject


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (8192, 8192),
        ("8192", 8192),
        ("32k", 32000),
        ("32K", 32768),
        ("1.5k", 1500),
        ("16GiB", 16 * 1024**3),
        (0.8, 0.8),
        ("auto", None),
        (-1, None),
        ("-1", None),
        (None, None),
        (True, None),
        (0, None),
    ],
)
def test_numbers(value: t.Any, told: float | None) -> None:
    assert subject.number(value) == told


@pytest.mark.parametrize(
    ("memory", "arguments", "told"),
    [
        (_sglang_memory.MEMORY, {"context-length": 65536, "kv-cache-dtype": "fp8_e4m3"}, {"context": 65536, "cache_dtype": "fp8_e4m3"}),
        (_sglang_memory.MEMORY, {"max_running_requests": "8", "max-total-tokens": "100k"}, {"requests": 8, "tokens": 100000}),
        (_sglang_memory.MEMORY, {"cuda-graph-max-bs": 16, "cuda-graph-max-bs-decode": 8}, {"graph_batch": 8}),
        (_sglang_memory.MEMORY, {"speculative-algorithm": "NEXTN", "speculative-num-draft-tokens": 4}, {"speculative": True, "draft_tokens": 4}),
        (_sglang_memory.MEMORY, {"speculative-algorithm": "NGRAM"}, {"speculative": False}),
        (_sglang_memory.MEMORY, {"speculative-algorithm": "EAGLE3", "speculative-draft-model-path": "/m/d"}, {"speculative": True, "draft_model": True}),
        (_sglang_memory.MEMORY, {"chunked-prefill-size": -1, "disable-radix-cache": True}, {"batch_tokens": None, "no_prefix_cache": True}),
        (_sglang_memory.MEMORY, {"pp-size": 2, "cpu-offload-gb": 4}, {"pipeline": 2, "offload": 4 * 1024**3}),
        (_sglang_memory.MEMORY, {"mamba-full-memory-ratio": 0.5, "mamba-ssm-dtype": "bfloat16"}, {"state_ratio": 0.5, "state_dtype": "bfloat16"}),
        (_vllm_memory.MEMORY, {"max-model-len": "64K", "enforce-eager": True}, {"context": 65536, "no_graphs": True}),
        (_vllm_memory.MEMORY, {"max-model-len": "auto", "enforce-eager": False}, {"context": None, "no_graphs": False}),
        (_vllm_memory.MEMORY, {"speculative-config": {"method": "mtp", "num_speculative_tokens": 2}}, {"draft_tokens": 2, "draft_model": False}),
        (_vllm_memory.MEMORY, {"speculative-config": '{"method": "eagle3", "model": "/m/d"}'}, {"speculative": True, "draft_model": True}),
        (_vllm_memory.MEMORY, {"speculative-config": {"method": "ngram"}}, {"speculative": False}),
        (_vllm_memory.MEMORY, {"speculative-config": "{broken"}, {"speculative": True, "draft_model": True}),
        (_vllm_memory.MEMORY, {"enable-prefix-caching": False}, {"no_prefix_cache": True}),
        (_vllm_memory.MEMORY, {"enable-prefix-caching": True}, {"no_prefix_cache": False}),
        (_vllm_memory.MEMORY, {"dtype": "float16", "max-num-batched-tokens": 16384}, {"dtype": "float16", "batch_tokens": 16384}),
    ],
)  # fmt: skip
def test_arguments_become_wishes(memory: t.Any, arguments: dict[str, t.Any], told: dict[str, t.Any]) -> None:
    found = subject.wish(arguments, memory)._asdict()
    assert {key: found[key] for key in told} == told


def test_the_plan_s_own_stages_count_unless_the_arguments_tell_some() -> None:
    assert subject.wish({}, _vllm_memory.MEMORY, 3).pipeline == 3
    assert subject.wish({"pipeline-parallel-size": 2}, _vllm_memory.MEMORY, 3).pipeline == 2


@pytest.mark.parametrize(
    ("memory", "arguments", "environment", "told"),
    [
        (_sglang_memory.MEMORY, {"mem-fraction-static": "0.6"}, {}, ("mem-fraction-static", 0.6)),
        (_vllm_memory.MEMORY, {"gpu_memory_utilization": 0.8}, {}, ("gpu-memory-utilization", 0.8)),
        (_vllm_memory.MEMORY, {"gpu-memory-utilization": 0.8, "kv-cache-memory-bytes": "10G"}, {}, ("kv-cache-memory-bytes", 10 * 1024**3)),
        (_vllm_memory.MEMORY, {}, {"VLLM_CPU_KVCACHE_SPACE": 2}, ("kv-cache-memory-bytes", 2 * 1024**3)),
        (_vllm_memory.MEMORY, {"max-num-seqs": 4}, {"VLLM_HOST_IP": "10.0.0.1"}, None),
        (_sglang_memory.MEMORY, {}, {"VLLM_CPU_KVCACHE_SPACE": 2}, None),
    ],
)
def test_the_recipe_s_own_setting(memory: t.Any, arguments: dict[str, t.Any], environment: dict[str, t.Any], told: t.Any) -> None:
    assert subject.knob(arguments, environment, memory) == told


CPU = {"VLLM_CPU_KVCACHE_SPACE": "2"}


@pytest.mark.parametrize(
    ("arguments", "told", "unheeded"),
    [
        # vLLM 0.32.0 for CPUs takes the variable's word over the option's.
        ({"kv-cache-memory-bytes": "10G"}, ("kv-cache-memory-bytes", 2 * 1024**3), True),
        ({"kv_cache_memory_bytes": "1G", "gpu-memory-utilization": 0.5}, ("kv-cache-memory-bytes", 2 * 1024**3), True),
        ({"gpu-memory-utilization": 0.5}, ("kv-cache-memory-bytes", 2 * 1024**3), False),
        ({}, ("kv-cache-memory-bytes", 2 * 1024**3), False),
    ],
)
def test_a_variable_counts_before_the_option_that_it_sets(arguments: dict[str, t.Any], told: t.Any, unheeded: bool) -> None:
    assert subject.knob(arguments, CPU, _vllm_memory.MEMORY) == told
    sentence = "the engine's build for CPUs heeds VLLM_CPU_KVCACHE_SPACE and not kv-cache-memory-bytes beside it, one for GPUs the other way round"
    assert subject.unheeded(arguments, CPU, _vllm_memory.MEMORY) == [f"{sentence}: leave one of them out"] * unheeded
    assert not subject.unheeded(arguments, {}, _vllm_memory.MEMORY)


def test_what_is_not_reckoned_with_is_told() -> None:
    """One replica is what the plan is made for; a switch that is off costs nothing."""
    told = subject.unreckoned({"enable_dp_attention": True, "dp-size": 2, "data-parallel-size": 1, "enable-lora": False, "context-length": 8})
    assert told == [f"{option} takes nothing: it is not reckoned with" for option in ("enable-dp-attention", "dp-size")]
