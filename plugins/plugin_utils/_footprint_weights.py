# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is private to the collection: it can change at any time.

"""Bytes of weights on each rank: how the engines split a model's tensors. Pure.

Both engines build their layers from the same parts: ColumnParallelLinear and RowParallelLinear (one share a rank), QKVParallelLinear
(a rank has at least one key and value head), VocabParallelEmbedding (rows rounded up to a multiple of 64), FusedMoE, ReplicatedLinear.
Read in C(srt/layers/linear.py), C(srt/layers/vocab_parallel_embedding.py) and C(srt/models/) of SGLang 0.5.17, C(model_executor/layers/)
and C(model_executor/models/) of vLLM 0.32.0.
"""

from __future__ import annotations

import math
import re
import typing as t
from dataclasses import dataclass, field

from ansible_collections.sparkstack.inference.plugins.module_utils._engines._memory import Wish, round_up
from ansible_collections.sparkstack.inference.plugins.module_utils._tensors import size_of

# The first rule that a tensor's name fits decides. How: C(skip), C(whole) (every rank has all of it), C(kv), C(qkv), C(vocab), C(split).
_RULES: tuple[tuple[str, str, str], ...] = (
    (r"rotary_emb\.inv_freq|\.masked_bias$|\.attn\.bias$", "other", "skip"),
    (r"(^|\.)(visual|vision_tower|vision_model|vision_encoder|vit|audio_tower|audio_encoder)\..*(norm|patch_embed|pos_embed|embeddings\.)", "vision", "whole"),
    (r"(^|\.)(visual|vision_tower|vision_model|vision_encoder|vit|audio_tower|audio_encoder|multi_modal_projector|mm_projector)\.", "vision", "vision"),
    (r"(^|\.)(lm_head|embed_out)\.|^output\.weight$", "head", "vocab"),
    (r"(^|\.)(embed_tokens|wte|word_embeddings|tok_embeddings)\.", "embeddings", "vocab"),
    # An expert's name can hold "gate": it stands before the router. Only the routed ones have a number or are stacked.
    (r"\.experts\.", "experts", "experts"),
    (r"\.(gate|router|shared_expert_gate|gate\.wg)\.(weight|bias|e_score_correction_bias)$|e_score_correction_bias|\.router\.", "router", "whole"),
    (r"\.shared_experts?\.", "shared experts", "split"),
    # MLA: every rank makes the latent vectors for itself; V3.2's index looks through them as a whole.
    (r"\.(q_a_proj|kv_a_proj_with_mqa|fused_qkv_a_proj\w*|kv_a_proj)\.|\.indexer\.", "attention", "whole"),
    (r"(norm|layernorm|ln_\w+)\.(weight|bias)$|_norm\.", "norms", "whole"),
    (r"\.(k|v)_scale$|\.input_scale$|activation_scale|\.weight_scale_2$|input_global_scale|weight_global_scale", "scales", "whole"),
    (r"\.(o_proj|down_proj|out_proj|dense|fc2|w2|c_proj|dense_4h_to_h)\.bias$", "attention", "whole"),
    (r"\.(k_proj|v_proj|wk|wv)\.", "attention", "kv"),
    (r"\.(qkv_proj|query_key_value|c_attn|Wqkv|qkv|W_pack)\.", "attention", "qkv"),
    (r"\.linear_attn\.|\.mixer\.|\.mamba\.", "linear attention", "split"),
    (r"\.(self_attn|attention|attn|self_attention)\.", "attention", "split"),
    (r"\.(mlp|feed_forward|block_sparse_moe|ffn)\.", "dense layers", "split"),
)
_COMPILED = tuple((re.compile(pattern), what, how) for pattern, what, how in _RULES)
_DRAFT = re.compile(r"(^|\.)(mtp|mtp_layers|nextn)\.")
# The draft's embeddings and head are the model's own ("Sharing target model embedding weights with the draft model").
_SHARED_BY_DRAFT = re.compile(r"embed_tokens|shared_head\.head|lm_head")
_FLOATS = ("F32", "BF16", "F16", "F64")
_EIGHT_BIT = ("fp8", "w8a8_fp8", "modelopt_fp8")
# What stays in 32 bits in both engines.
_KEPT = re.compile(r"e_score_correction_bias|A_log|scale|\.D$")


@dataclass
class Weights:
    """Weights by pipeline stage; every rank of a stage holds the same."""

    stages: list[dict[str, int]]
    """What to bytes on a rank."""
    draft: int = 0
    """Bytes of the layers that predict further tokens, on a rank of the last stage: loaded when speculation is on, and counted then."""
    latent: int = 0
    """Bytes that MLA's up-projection takes once more: the engines keep it in a second form for decoding."""
    largest: int = 0
    """Bytes of the largest tensor in the files: what a load needs beside the rank's own share."""
    known: bool = True
    assumed: list[str] = field(default_factory=list)

    def rank(self, stage: int) -> int:
        return sum(self.stages[stage].values())


def text_config(config: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """The language model's part of a configuration, with what only the whole one says."""
    merged = dict(config)
    merged.pop("text_config", None)
    merged.update(config.get("text_config") or {})
    return merged


def positions(config: t.Mapping[str, t.Any], element: int) -> int:
    """Bytes of the table of angles that every rank makes once: for each position, a sine and a cosine for every pair that is turned.

    It is no tensor of the files, but part of what the engines report for their weights: 67 MB of Llama's 131072 positions.
    """
    text = text_config(config)
    heads = text.get("num_attention_heads")
    dimension = text.get("head_dim") or (text["hidden_size"] // heads if heads and text.get("hidden_size") else 0)
    turned = text.get("qk_rope_head_dim") or int(dimension * (text.get("partial_rotary_factor") or 1))
    return int((text.get("max_position_embeddings") or 0) * turned * element)


def stage_layers(layers: int, stages: int) -> list[tuple[int, int]]:
    """First and behind-the-last layer of each stage; the rest of an uneven split goes to the last ones (C(get_pp_indices) of both engines)."""
    base, rest = divmod(layers, stages)
    bounds, start = [], 0
    for stage in range(stages):
        end = start + base + (1 if stage >= stages - rest else 0)
        bounds.append((start, end))
        start = end
    return bounds


def _within(runs: t.Sequence[t.Sequence[int]], start: float, end: float) -> int:
    return int(sum(max(0, min(last + 1, end) - max(first, start)) for first, last in runs))


@dataclass
class _Split:
    config: t.Mapping[str, t.Any]
    wish: Wish
    tensor_parallel: int
    padding: tuple[int, int] = (1, 1)

    def share(self, how: str, name: str, shape: t.Sequence[int]) -> float:
        """Which part of a tensor a rank holds; more than its share where sizes are rounded up."""
        size = self.tensor_parallel
        heads = self.config.get("num_attention_heads") or 0
        kv_heads = self.config.get("num_key_value_heads") or heads
        if how == "whole" or (how == "vision" and self.wish.whole_vision) or not shape or math.prod(shape) == 1:
            return 1.0
        if how == "vocab":
            return round_up(shape[0], 64 if size <= 64 else size) / shape[0] / size
        if how == "kv" and kv_heads:
            return max(kv_heads / size, 1) / kv_heads
        if how == "qkv" and heads and kv_heads:
            return (heads / size + 2 * max(kv_heads / size, 1)) / (heads + 2 * kv_heads)
        if how == "experts":
            return self._padded(name, shape) / size
        return 1.0 / size

    def _padded(self, name: str, shape: t.Sequence[int]) -> float:
        """MXFP4's kernels round an expert's width on a rank and the hidden size up: gpt-oss' 2880 become 2944 and 3072."""
        if (self.config.get("quantization_config") or {}).get("quant_method") != "mxfp4" or len(shape) < 2:
            return 1.0
        hidden = self.config.get("hidden_size") or 1
        width = (self.config.get("moe_intermediate_size") or self.config.get("intermediate_size") or 1) / self.tensor_parallel
        wider = round_up(math.ceil(width), self.padding[0]) / width
        taller = round_up(hidden, self.padding[1]) / hidden
        if "bias" in name:
            return wider if "gate_up" in name else taller
        return wider * taller


def _bytes(group: t.Mapping[str, t.Any], what: str, config: t.Mapping[str, t.Any], wish: Wish) -> int | None:
    """One tensor's bytes once it is loaded; None for a dtype that isn't known."""
    name, dtype = group["name"], group["dtype"]
    size = size_of(dtype, group["shape"])
    if size is None or dtype not in _FLOATS:
        return size
    elements: int = math.prod(group["shape"])
    if "weight_scale" in name:
        # Qwen writes its block scales in 16 bits; both engines hold them in 32.
        return max(size, 4 * elements)
    if _KEPT.search(name):
        return size
    if wish.quantization in _EIGHT_BIT and not config.get("quantization_config") and len(group["shape"]) > 1 and what in _LINEAR:
        return elements
    wanted = wish.dtype if wish.dtype in ("float32", "bfloat16", "float16", "half", "float") else config.get("dtype")
    return elements * (4 if wanted in ("float32", "float") else 2) if wanted else size


_NO_WISH = Wish()
_LINEAR = ("experts", "shared experts", "attention", "linear attention", "dense layers")


def classify(name: str) -> tuple[str, str]:
    """What a tensor belongs to and how it is split; C(unknown) for a name that no rule fits."""
    return next(((what, how) for pattern, what, how in _COMPILED if pattern.search(name)), ("unknown", "split"))


def weights(
    groups: t.Sequence[t.Mapping[str, t.Any]],
    config: t.Mapping[str, t.Any],
    tensor_parallel: int,
    wish: Wish = _NO_WISH,
    padding: tuple[int, int] = (1, 1),
    whole: int | None = None,
) -> Weights:
    """Split a model's tensors.

    :param groups: as M(sparkstack.inference.model_manifest_info) returns C(tensors).
    :param config: its C(config).
    :param padding: what the engine rounds experts in MXFP4 up to: (width on a rank, hidden size).
    :param whole: bytes of all weights, for a model whose tensors aren't known.
    """
    text = text_config(config)
    layers = text.get("num_hidden_layers")
    stages = max(wish.pipeline, 1)
    result = Weights([{} for _stage in range(stages)])
    if not groups:
        result.known = False
        if whole:
            result.stages = [{"weights": whole // (tensor_parallel * stages)} for _stage in range(stages)]
            result.assumed.append("the weights are split evenly over the ranks: their tensors are not known")
        return result
    split = _Split(text, wish, tensor_parallel, padding)
    bounds = stage_layers(layers, stages) if layers else [(0, 1 << 30)] + [(0, 0)] * (stages - 1)
    unknown = 0
    for group in groups:
        name, count, runs = group["name"], group["count"], group["layers"]
        what, how = classify(name)
        each = _bytes(group, what, text, wish)
        if how == "skip" or (what == "vision" and wish.text_only):
            continue
        if each is None:
            result.assumed.append(f"tensors of the unknown type {group['dtype']} ({name}) take nothing")
            continue
        result.largest = max(result.largest, each)
        rank = each * split.share(how, name, group["shape"]) * count
        in_layers = bool(runs) and what != "vision"
        behind = _within(runs, layers, math.inf) / _within(runs, 0, math.inf) if in_layers and layers else 0.0
        if _DRAFT.search(name):
            behind = 1.0
        if behind:
            if not _SHARED_BY_DRAFT.search(name):
                result.draft += round(rank * behind)
            rank *= 1 - behind
        if what == "head" and text.get("tie_word_embeddings"):
            continue
        if what == "unknown":
            unknown += int(rank)
        if re.search(r"\.kv_b_proj\.weight$", name):
            # fp8 is turned into 16 bits for that ("w_kc", "w_vc"; "W_UK_T", "W_UV").
            result.latent += int(math.prod(group["shape"]) * 2 / tensor_parallel * count * (1 - behind))
        _place(result, what, rank, runs if in_layers and not _DRAFT.search(name) else [], bounds)
    if text.get("tie_word_embeddings") and stages > 1:
        result.stages[-1]["head"] = result.stages[0].get("embeddings", 0)
    if unknown:
        result.assumed.append(f"{unknown / 1024**2:.0f} MiB of tensors that are not known by name are split evenly")
    if wish.speculative and result.draft and not wish.draft_model:
        result.stages[-1]["draft layers"] = result.draft
    if wish.draft_model:
        result.assumed.append("the draft model takes nothing: its size is not known")
    return result


def _place(result: Weights, what: str, rank: float, runs: t.Sequence[t.Sequence[int]], bounds: t.Sequence[tuple[int, int]]) -> None:
    """Give a kind of tensors to the stages that hold them."""
    if not rank:
        return
    if runs:
        last = bounds[-1][1]
        total = _within(runs, 0, last)
        for stage, (start, end) in enumerate(bounds):
            part = rank * _within(runs, start, end) / total if total else 0
            if part:
                result.stages[stage][what] = result.stages[stage].get(what, 0) + round(part)
        return
    at = len(bounds) - 1 if what in ("head", "norms") else 0
    result.stages[at][what] = result.stages[at].get(what, 0) + round(rank)
