# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Weights a rank, against what is published of the files and of engines that loaded them, and against sums by hand."""

from __future__ import annotations

import functools
import typing as t

import model_shapes
import pytest

from ansible_collections.sparkstack.inference.plugins.module_utils._engines._memory import Wish
from ansible_collections.sparkstack.inference.plugins.module_utils._model import config_summary
from ansible_collections.sparkstack.inference.plugins.module_utils._tensors import groups, size_of
from ansible_collections.sparkstack.inference.plugins.plugin_utils import _footprint_weights as subject

GIB = 1024**3


@functools.cache
def made(name: str) -> tuple[dict[str, t.Any], list[dict[str, t.Any]]]:
    return config_summary(model_shapes.MODELS[name][0]), groups(model_shapes.tensors(name))


def rank(name: str, tensor_parallel: int, padding: tuple[int, int] = (1, 1), **wish: t.Any) -> subject.Weights:
    config, table = made(name)
    return subject.weights(table, config, tensor_parallel, Wish(**wish), padding)


@pytest.mark.parametrize(
    ("name", "published"),
    [
        # "metadata": {"total_size": ..} of model.safetensors.index.json.
        ("Qwen3.5-122B-A10B-FP8", 127152313312),
        ("Llama-3.3-70B", 141107412992),
        ("gpt-oss-120b", 65248815744),
        ("gpt-oss-20b", 13761264768),
        # The hub's count of parameters, 140630071296, in 16 bits.
        ("Mixtral-8x22B", 2 * 140630071296),
    ],
)
def test_the_shapes_are_those_of_the_public_files(name: str, published: int) -> None:
    """To the byte: else the figures below would say nothing of the real models."""
    assert sum(t.cast("int", size_of(tensor.dtype, tensor.shape)) for tensor in model_shapes.tensors(name)) == published


@pytest.mark.parametrize(
    ("name", "billions"),
    # Parameters by the model cards: 235 B; 671 B and 14 B that predict further tokens; 106 B (the card counts no such layer); 80 B.
    [("Qwen3-235B-A22B-FP8", 235), ("DeepSeek-V3", 685), ("GLM-4.5-Air", 106), ("Qwen3-Next-80B-A3B", 80)],
)
def test_the_other_shapes_have_the_parameters_that_their_cards_tell(name: str, billions: int) -> None:
    count = 0
    for tensor in model_shapes.tensors(name):
        elements = 1
        for size in tensor.shape:
            elements *= size
        drafts = name == "GLM-4.5-Air" and ".46." in tensor.name or tensor.name.startswith("mtp.")
        count += 0 if "scale" in tensor.name or drafts else elements
    assert count / 1e9 == pytest.approx(billions, rel=0.015)


def by_hand(name: str, size: int) -> float:
    """A rank's bytes out of the configuration alone, by the sums that people make; scales, norms and biases are left out."""
    c = {**model_shapes.MODELS[name][0], **model_shapes.MODELS[name][0].get("text_config", {})}
    h, layers, heads, vocabulary = c["hidden_size"], c["num_hidden_layers"], c["num_attention_heads"], c["vocab_size"]
    d, kv = c.get("head_dim", 0), max(c["num_key_value_heads"], size)
    ends = 2 * 2 * vocabulary * h / size
    if name == "Llama-3.3-70B":
        return ends + 2 * layers * (2 * h * heads * d + 2 * h * kv * d + 3 * h * c["intermediate_size"]) / size
    if name == "Mixtral-8x22B":
        return ends + 2 * layers * (2 * h * heads * d + 2 * h * kv * d + 8 * 3 * h * c["intermediate_size"]) / size
    if name == "Qwen3-235B-A22B-FP8":
        return ends + layers * (2 * h * heads * d + 2 * h * kv * d + 128 * 3 * h * 1536) / size + 2 * layers * 128 * h
    if name == "GLM-4.5-Air":
        attention = layers * (2 * h * heads * d + 2 * h * kv * d)
        return ends + 2 * (attention + 45 * 129 * 3 * h * 1408 + 3 * h * 10944) / size + 2 * 45 * 128 * h
    if name == "DeepSeek-V3":
        whole = layers * (h * 1536 + h * 576)
        split = layers * (1536 * heads * 192 + 512 * heads * 256 + heads * 128 * h) + 3 * 3 * h * 18432 + 58 * 257 * 3 * h * 2048
        return ends + whole + split / size + 2 * 58 * 256 * h
    if name == "Qwen3-Next-80B-A3B":
        full, linear = 12 * (3 * h * heads * d + 2 * h * kv * d), 36 * (h * (2 * 2048 + 2 * 4096 + 64) + 4096 * h)
        return ends + 2 * (full + linear + 48 * 513 * 3 * h * 512) / size + 2 * 48 * 512 * h
    if name == "Qwen3.5-122B-A10B-FP8":
        full, linear = 12 * (3 * h * heads * d + 2 * h * kv * d), 36 * (h * (2 * 2048 + 2 * 8192) + 8192 * h)
        vision = 2 * (27 * (4 * 1152**2 + 2 * 1152 * 4304) + 4608**2 + 4608 * 3072)
        return ends + (full + linear + 48 * 257 * 3 * h * 1024 + vision + 2 * 36 * 128 * h) / size + 2 * 48 * 256 * h
    # gpt-oss-120b without padding: 4 bits and one scale of 8 for 32 numbers.
    return ends + 36 * (128 * 3 * h * 2880 * 0.53125 + 2 * (2 * h * 4096 + 2 * h * kv * d)) / size + 2 * 36 * 128 * h


EIGHT = [name for name in model_shapes.MODELS if name not in ("gpt-oss-20b", "Qwen3-30B-A3B", "Qwen3-235B-A22B")]


@pytest.mark.parametrize("size", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("name", EIGHT)
def test_a_rank_holds_what_a_sum_by_hand_says(name: str, size: int) -> None:
    assert rank(name, size).rank(0) == pytest.approx(by_hand(name, size), rel=0.005)


@pytest.mark.parametrize(
    ("name", "size", "padding", "wish", "gib"),
    [
        # vLLM 0.19 on an A100, kernels of Marlin: "Model loading took 13.72 GiB memory".
        ("gpt-oss-20b", 1, (128, 256), {}, 13.72),
        # vllm#17469, 0.8.5 on four A10: "Model loading took 14.2474 GiB".
        ("Qwen3-30B-A3B", 4, (1, 1), {}, 14.2474),
        # vllm#18446, eight ranks: "Model loading took 54.9206 GiB". Each of the four heads of keys and values lies on two of them.
        ("Qwen3-235B-A22B", 8, (1, 1), {}, 54.9206),
    ],
)
def test_an_engine_reported_as_much(name: str, size: int, padding: tuple[int, int], wish: dict[str, t.Any], gib: float) -> None:
    assert rank(name, size, padding, **wish).rank(0) / GIB == pytest.approx(gib, rel=0.005)


def test_keys_and_values_are_replicated_when_there_are_more_ranks_than_heads() -> None:
    """Two heads: a rank of eight has one, which is half of all and not an eighth."""
    table = [{"name": "model.layers.{}.self_attn.k_proj.weight", "dtype": "BF16", "shape": [512, 3072], "count": 1, "layers": [[0, 0]]}]
    config = {"num_hidden_layers": 1, "num_attention_heads": 32, "num_key_value_heads": 2, "dtype": "bfloat16"}
    assert [subject.weights(table, config, size).rank(0) for size in (1, 2, 8)] == [3145728, 1572864, 1572864]


def test_the_vocabulary_is_rounded_up_for_the_ranks() -> None:
    table = [{"name": "model.embed_tokens.weight", "dtype": "BF16", "shape": [50257, 1000], "count": 1, "layers": []}]
    assert subject.weights(table, {"num_hidden_layers": 1, "dtype": "bfloat16"}, 2).rank(0) == 50304 * 1000


def test_tied_embeddings_are_held_once_and_by_both_ends_of_a_pipeline() -> None:
    table = [{"name": name, "dtype": "BF16", "shape": [64, 10], "count": 1, "layers": []} for name in ("model.embed_tokens.weight", "lm_head.weight")]
    config = {"num_hidden_layers": 2, "tie_word_embeddings": True, "dtype": "bfloat16"}
    assert subject.weights(table, config, 1).rank(0) == 1280
    assert [subject.weights(table, config, 1, Wish(pipeline=2)).rank(stage) for stage in (0, 1)] == [1280, 1280]


@pytest.mark.parametrize(("name", "gib"), [("Qwen3.5-122B-A10B-FP8", 1.19), ("DeepSeek-V3", 5.47), ("GLM-4.5-Air", 2.21)])
def test_what_predicts_further_tokens_is_loaded_with_speculation_only(name: str, gib: float) -> None:
    """In "mtp.layers.0" or in the layer behind the last; its embeddings and its head are the model's own."""
    without, with_it = rank(name, 2), rank(name, 2, speculative=True)
    assert without.draft / GIB == pytest.approx(gib, abs=0.01)
    assert with_it.rank(0) - without.rank(0) == without.draft


def test_a_text_only_launch_loads_no_vision_tower() -> None:
    both, text = rank("Qwen3.5-122B-A10B-FP8", 2), rank("Qwen3.5-122B-A10B-FP8", 2, text_only=True)
    assert both.rank(0) - text.rank(0) == both.stages[0]["vision"]
    assert rank("Qwen3.5-122B-A10B-FP8", 2, whole_vision=True).stages[0]["vision"] == pytest.approx(2 * both.stages[0]["vision"], rel=0.03)


def test_a_pipeline_divides_the_layers_and_its_ends_hold_more() -> None:
    """94 layers over 4 stages: 23, 23, 24, 24."""
    assert subject.stage_layers(94, 4) == [(0, 23), (23, 46), (46, 70), (70, 94)]
    split, whole = rank("Qwen3-235B-A22B-FP8", 1, pipeline=4), rank("Qwen3-235B-A22B-FP8", 1)
    assert sum(split.rank(stage) for stage in range(4)) == pytest.approx(whole.rank(0), abs=64)
    assert split.stages[2]["experts"] / split.stages[0]["experts"] == pytest.approx(24 / 23)
    assert ("embeddings" in split.stages[0], "embeddings" in split.stages[3], "head" in split.stages[3]) == (True, False, True)


def test_the_first_layers_of_a_pipeline_without_experts_weigh_less() -> None:
    """DeepSeek's first three layers are dense; the one behind the last belongs to no stage."""
    split = rank("DeepSeek-V3", 1, pipeline=2)
    assert "dense layers" in split.stages[0] and "dense layers" not in split.stages[1]
    assert split.stages[1]["experts"] / split.stages[0]["experts"] == pytest.approx(31 / 27)


def test_mla_keeps_its_up_projection_twice() -> None:
    assert rank("DeepSeek-V3", 1).latent == 2 * 61 * 512 * 128 * 256


def test_eight_bits_made_while_loading_halve_the_layers_but_not_the_ends() -> None:
    sixteen, eight = rank("Llama-3.3-70B", 2), rank("Llama-3.3-70B", 2, quantization="fp8")
    assert eight.stages[0]["dense layers"] * 2 == sixteen.stages[0]["dense layers"]
    assert eight.stages[0]["head"] == sixteen.stages[0]["head"]


def test_a_name_that_no_rule_knows_is_split_and_told() -> None:
    table = [{"name": "model.layers.{}.wondrous.weight", "dtype": "BF16", "shape": [1024, 2048], "count": 2, "layers": [[0, 1]]}]
    found = subject.weights(table, {"num_hidden_layers": 2, "dtype": "bfloat16"}, 2)
    assert (found.rank(0), found.assumed) == (4194304, ["4 MiB of tensors that are not known by name are split evenly"])


def test_an_unknown_type_is_told_and_takes_nothing() -> None:
    table = [{"name": "model.layers.{}.mlp.up_proj.weight", "dtype": "Q9", "shape": [8, 8], "count": 1, "layers": [[0, 0]]}]
    found = subject.weights(table, {"num_hidden_layers": 1}, 2)
    assert (found.rank(0), found.assumed) == (0, ["tensors of the unknown type Q9 (model.layers.{}.mlp.up_proj.weight) take nothing"])


@pytest.mark.parametrize(
    ("name", "element", "size"),
    [
        ("Llama-3.3-70B", 4, 131072 * 128 * 4),
        ("DeepSeek-V3", 4, 163840 * 64 * 4),
        # A quarter of 256 is turned.
        ("Qwen3.5-122B-A10B-FP8", 2, 262144 * 64 * 2),
        ("Mixtral-8x22B", 2, 65536 * 128 * 2),
    ],
)
def test_the_table_of_angles(name: str, element: int, size: int) -> None:
    assert subject.positions(made(name)[0], element) == size


def test_a_model_without_positions_has_no_table() -> None:
    assert subject.positions({"num_attention_heads": 8, "hidden_size": 64}, 4) == subject.positions({}, 4) == 0


def test_without_tensors_the_whole_is_split_evenly() -> None:
    found = subject.weights([], {}, 2, whole=1000)
    assert (found.rank(0), found.known) == (500, False)
    assert found.assumed == ["the weights are split evenly over the ranks: their tensors are not known"]
