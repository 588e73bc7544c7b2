# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a token and a request take, against published figures and what engines said of their pools."""

from __future__ import annotations

import typing as t

import model_shapes
import pytest

from ansible_collections.sparkstack.inference.plugins.module_utils._engines import _vllm_memory, get
from ansible_collections.sparkstack.inference.plugins.module_utils._engines._memory import Wish
from ansible_collections.sparkstack.inference.plugins.module_utils._model import config_summary
from ansible_collections.sparkstack.inference.plugins.plugin_utils import _footprint_cache as subject
from ansible_collections.sparkstack.inference.plugins.plugin_utils._footprint_weights import text_config

GIB = 1024**3


def cache(name: str, size: int, engine: str = "sglang", **wish: t.Any) -> t.Any:
    memory = get(engine).memory
    assert memory is not None
    return subject.caches(config_summary(model_shapes.MODELS[name][0]), size, Wish(**wish), memory)


@pytest.mark.parametrize(
    ("name", "token"),
    [
        # "70.272 KB" (DeepSeek-V3's paper on hardware, table 1); 2 x 80 layers x 8 heads x 128 in 16 bits, "320 KiB", is quoted everywhere.
        ("DeepSeek-V3", 70272),
        ("Llama-3.3-70B", 327680),
        ("Qwen3-235B-A22B-FP8", 2 * 94 * 4 * 128 * 2),
        ("GLM-4.5-Air", 2 * 46 * 8 * 128 * 2),
        ("Mixtral-8x22B", 2 * 56 * 8 * 128 * 2),
        # 12 of 48 layers look back at all tokens.
        ("Qwen3.5-122B-A10B-FP8", 2 * 12 * 2 * 256 * 2),
        ("Qwen3-Next-80B-A3B", 2 * 12 * 2 * 256 * 2),
    ],
)
def test_a_token_of_the_whole_model(name: str, token: int) -> None:
    assert cache(name, 1).stages[0].token == token


def test_layers_with_a_window_are_told_apart() -> None:
    """llama.cpp of gpt-oss-120b: "131072 cells, 18 layers, 2/2 seqs", "size = 9216.00 MiB": 36864 bytes a token and sequence."""
    found = cache("gpt-oss-120b", 1).stages[0]
    assert (found.token, found.window_token, found.window) == (36864, 36864, 128)


@pytest.mark.parametrize(
    ("name", "size", "bytes_told", "tokens"),
    [
        # vllm#21348, Qwen3-235B-A22B-FP8 on four GPUs, SGLang: "#tokens: 367404, K size: 8.23 GB, V size: 8.23 GB";
        # vLLM: "Available KV cache memory: 8.11 GiB", "GPU KV cache size: 178,880 tokens".
        ("Qwen3-235B-A22B-FP8", 4, 2 * 8.23 * GIB, 367404),
        ("Qwen3-235B-A22B-FP8", 4, 8.11 * GIB, 178880),
    ],
)
def test_engines_made_as_many_tokens_of_as_many_bytes(name: str, size: int, bytes_told: float, tokens: int) -> None:
    assert bytes_told / cache(name, size).stages[0].token == pytest.approx(tokens, rel=0.02)


def test_engine_made_states_and_tokens_of_a_hybrid_as_large() -> None:
    """Qwen3.5-397B-A17B, two ranks, SGLang (ktransformers#1870): "max_mamba_cache_size: 82, conv_state size: 0.13GB, ssm_state size: 7.29GB",
    "#tokens: 580364, K size: 4.15 GB, V size: 4.15 GB". It has 60 layers, 32 heads of which two of keys and values, 64 of linear values."""
    text = {**model_shapes.MODELS["Qwen3.5-122B-A10B-FP8"][0]["text_config"], "num_hidden_layers": 60, "hidden_size": 4096}
    text["layer_types"] = ["full_attention" if (at + 1) % 4 == 0 else "linear_attention" for at in range(60)]
    memory = get("sglang").memory
    assert memory is not None
    found = subject.caches({"text_config": text}, 2, Wish(), memory).stages[0]
    assert 580364 * found.token / GIB == pytest.approx(2 * 4.15, rel=0.01)
    assert 83 * found.state / GIB == pytest.approx(0.13 + 7.29, rel=0.01)


def test_vllm_chose_the_block_that_holds_a_state() -> None:
    """Qwen3.6-35B-A3B with MTP on two Sparks (spark-vllm-docker#237): "Setting attention block size to 2128 tokens". It comes out so
    with a cache in FP8 and drafts of two tokens, which the thread leaves open."""
    config = {**model_shapes.MODELS["Qwen3-Next-80B-A3B"][0], "num_hidden_layers": 40, "mamba_ssm_dtype": "float32"}
    wish = Wish(cache_dtype="fp8", speculative=True, draft_tokens=2)
    found = subject.caches(config, 2, wish, _vllm_memory.MEMORY).stages[0]
    assert _vllm_memory.block_tokens(found, wish) == 2128


@pytest.mark.parametrize(("size", "heads"), [(1, 8), (2, 4), (8, 1), (16, 1)])
def test_a_rank_has_at_least_one_head(size: int, heads: int) -> None:
    assert cache("Llama-3.3-70B", size).stages[0].token == 2 * 80 * heads * 128 * 2


def test_every_rank_keeps_the_latent_vector_of_mla() -> None:
    assert cache("DeepSeek-V3", 8).stages[0].token == cache("DeepSeek-V3", 1).stages[0].token


@pytest.mark.parametrize(
    ("dtype", "config", "size"),
    [
        ("auto", {"dtype": "bfloat16"}, 2.0),
        ("auto", {"dtype": "float32"}, 4.0),
        ("fp8_e4m3", {}, 1.0),
        ("fp8", {}, 1.0),
        ("bfloat16", {}, 2.0),
        ("fp4_e2m1", {}, 0.5625),
        ("nvfp4", {}, 0.5625),
        ("auto", {"dtype": "bfloat16", "quantization_config": {"kv_cache_scheme": {"num_bits": 8, "type": "float"}}}, 1.0),
        ("auto", {"dtype": "bfloat16", "quantization_config": {"kv_cache_quant_algo": "FP8"}}, 1.0),
        ("auto", {"dtype": "bfloat16", "quantization_config": {"quant_method": "fp8"}}, 2.0),
        ("auto", {}, 2.0),
    ],
)
def test_a_number_of_the_cache(dtype: str, config: dict[str, t.Any], size: float) -> None:
    assert subject.element_bytes(Wish(cache_dtype=dtype), config) == size


def test_the_index_of_sparse_attention_has_a_cache_of_its_own() -> None:
    """DeepSeek V3.2 in SGLang: 576 numbers or, in FP8, 656 bytes, and 132 bytes of the index."""
    config = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "index_head_dim": 128}
    assert [subject.layer_token(config, 8, element) for element in (2.0, 1.0)] == [1152 + 132, 656 + 132]


def test_speculation_adds_its_layers_to_the_last_stage() -> None:
    """SGLang: cell_size * (1 + draft layers / layers)."""
    plain, drafting = cache("Qwen3.5-122B-A10B-FP8", 2).stages[0], cache("Qwen3.5-122B-A10B-FP8", 2, speculative=True).stages[0]
    assert drafting.token == plain.token * 13 / 12
    split = cache("Llama-3.3-70B", 2, speculative=True, pipeline=3).stages
    assert [stage.full_layers for stage in split] == [26, 27, 28]


def test_an_engine_that_keeps_all_tokens_of_a_window_needs_the_room_of_all_layers() -> None:
    """SGLang keeps a window apart for architectures that it lists: not for Gemma 3."""
    config = {"architectures": ["Gemma3ForCausalLM"], "num_hidden_layers": 6, "layer_types": ["sliding_attention"] * 5 + ["full_attention"]}
    config.update(sliding_window=1024, num_attention_heads=8, num_key_value_heads=4, head_dim=256, dtype="bfloat16")
    found = {}
    for name in ("sglang", "vllm"):
        memory = get(name).memory
        assert memory is not None
        found[name] = subject.caches(config, 1, Wish(), memory).stages[0]
    assert (found["sglang"].token, found["sglang"].window_token) == (6 * 4096, 0)
    assert (found["vllm"].token, found["vllm"].window_token) == (4096, 5 * 4096)


def test_heads_are_derived_where_the_configuration_leaves_them_out() -> None:
    assert subject.layer_token({"num_attention_heads": 32, "hidden_size": 4096}, 2, 2.0) == 16 * 2 * 128 * 2


@pytest.mark.parametrize("config", [{}, {"num_hidden_layers": 4}, {"num_attention_heads": 4, "hidden_size": 64}])
def test_what_a_configuration_does_not_tell_is_assumed(config: dict[str, t.Any]) -> None:
    memory = get("vllm").memory
    assert memory is not None
    found = subject.caches(config, 2, Wish(pipeline=2), memory)
    assert (found.known, len(found.stages), found.stages[0].token) == (False, 2, 0)
    assert found.assumed == ["the cache takes nothing: config.json does not tell its shape"]


def test_a_linear_attention_of_unknown_shape_is_assumed() -> None:
    config = {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"], "num_attention_heads": 2, "head_dim": 64}
    memory = get("sglang").memory
    assert memory is not None
    found = subject.caches(config, 1, Wish(), memory)
    assert (found.stages[0].token, found.stages[0].state, found.known) == (512, 0, False)
    assert found.assumed == ["the states of linear attention take nothing: config.json does not tell their shape"]


def test_kinds_follow_the_interval_where_no_list_is_given() -> None:
    text = text_config(config_summary(model_shapes.MODELS["Qwen3-Next-80B-A3B"][0]))
    assert subject.kinds(text, True) == (["state"] * 3 + ["full"]) * 12
    assert subject.kinds({}, True) is None
