# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is private to the collection: it can change at any time.

"""Bytes of cache that a token, and a request, takes on each rank. Pure.

Read in C(srt/model_executor/pool_configurator.py) and C(srt/configs/mamba_utils.py) of SGLang 0.5.17, C(v1/kv_cache_interface.py) and
C(model_executor/layers/mamba/mamba_utils.py) of vLLM 0.32.0; both agree on what a layer keeps.
"""

from __future__ import annotations

import typing as t
from dataclasses import dataclass, field

from ansible_collections.sparkstack.inference.plugins.module_utils._engines._memory import Cache, Memory, Wish
from ansible_collections.sparkstack.inference.plugins.plugin_utils._footprint_weights import stage_layers, text_config

_SIZES = {"float32": 4.0, "float": 4.0, "bfloat16": 2.0, "float16": 2.0, "bf16": 2.0, "fp16": 2.0, "half": 2.0}
# DeepSeek V3.2 in FP8 keeps the part with the positions in 16 bits, and a scale for every 128 of the others.
_SPARSE_BLOCK = 128


@dataclass
class Caches:
    """What each pipeline stage's ranks keep."""

    stages: list[Cache]
    known: bool = True
    assumed: list[str] = field(default_factory=list)


def element_bytes(wish: Wish, config: t.Mapping[str, t.Any]) -> float:
    """Bytes of one number in the cache: C(auto) is the model's type, unless its quantisation has one for the cache."""
    name = str(wish.cache_dtype or "auto").lower()
    if name == "auto":
        quantization = config.get("quantization_config") or {}
        scheme = quantization.get("kv_cache_scheme") or {}
        eight = (isinstance(scheme, dict) and scheme.get("num_bits") == 8) or str(quantization.get("kv_cache_quant_algo")).upper() == "FP8"
        name = "fp8" if eight else str(wish.dtype if wish.dtype not in (None, "auto") else config.get("dtype") or "bfloat16")
    if "fp4" in name:
        # 4 bits, and a scale of 8 for every 16 numbers.
        return 0.5625
    if name == "mxfp8":
        return 1 + 1 / 32
    if "fp8" in name or "int8" in name:
        return 1.0
    return _SIZES.get(name, 2.0)


def kinds(config: t.Mapping[str, t.Any], windows: bool) -> list[str] | None:
    """For each layer C(full), C(window) or C(state); None when the number of layers is not known.

    :param windows: whether the engine keeps only a window's tokens for a layer that looks at no more.
    """
    layers = config.get("num_hidden_layers")
    if not layers:
        return None
    named = config.get("layer_types")
    if isinstance(named, list) and len(named) >= layers:
        window = "window" if windows and config.get("sliding_window") else "full"
        found = {"linear_attention": "state", "sliding_attention": window, "chunked_attention": window}
        return [found.get(name, "full") for name in named[:layers]]
    interval = config.get("full_attention_interval") or (4 if config.get("linear_num_value_heads") else 0)
    if interval and config.get("linear_num_value_heads"):
        return ["full" if (at + 1) % interval == 0 else "state" for at in range(layers)]
    return ["full"] * layers


def layer_token(config: t.Mapping[str, t.Any], tensor_parallel: int, element: float) -> float | None:
    """Bytes that one layer keeps for one token on a rank; None when the configuration does not tell.

    With MLA each rank keeps the latent vector and the part with the positions, however many ranks there are; else at
    least one head of keys and of values.
    """
    latent = config.get("kv_lora_rank")
    if latent:
        rope = config.get("qk_rope_head_dim") or 0
        index = config.get("index_head_dim") or 0
        kept: float = (latent + rope) * element
        if index and element == 1.0:
            kept = latent + latent // _SPARSE_BLOCK * 4 + rope * 2
        return kept + index + index // _SPARSE_BLOCK * 4
    heads = config.get("num_attention_heads")
    kv_heads = config.get("num_key_value_heads") or heads
    dimension = config.get("head_dim") or (config["hidden_size"] // heads if heads and config.get("hidden_size") else None)
    if not kv_heads or not dimension:
        return None
    own: int = max(1, kv_heads // tensor_parallel) * (dimension + (config.get("v_head_dim") or dimension))
    return own * element


def layer_state(config: t.Mapping[str, t.Any], tensor_parallel: int, dtype: str, drafts: int = 0) -> int | None:
    """Bytes that one layer of linear attention keeps for one request on a rank: its convolution's last inputs, and its state.

    :param drafts: further inputs of the convolution.
    """
    needed = ("linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim", "linear_conv_kernel_dim")
    if any(not config.get(name) for name in needed):
        return None
    keys, values, key_size, value_size, kernel = (int(config[name]) for name in needed)
    convolution = (2 * keys * key_size + values * value_size) // tensor_parallel * (kernel - 1 + drafts) * 2
    return int(convolution + values // tensor_parallel * key_size * value_size * _SIZES.get(dtype, 4.0))


def caches(config: t.Mapping[str, t.Any], tensor_parallel: int, wish: Wish, memory: Memory) -> Caches:
    """What the ranks of each stage keep.

    :param config: C(config) of M(sparkstack.inference.model_manifest_info).
    """
    text = text_config(config)
    stages = max(wish.pipeline, 1)
    architectures = set(config.get("architectures") or ())
    layers = kinds(text, memory.windows is None or bool(architectures & memory.windows))
    token = layer_token(text, tensor_parallel, element_bytes(wish, text))
    if layers is None or token is None:
        return Caches([Cache() for _stage in range(stages)], known=False, assumed=["the cache takes nothing: config.json does not tell its shape"])
    result = Caches([])
    state = 0
    if "state" in layers:
        state_dtype = wish.state_dtype if wish.state_dtype not in (None, "auto") else text.get("mamba_ssm_dtype") or memory.state_dtype
        found = layer_state(text, tensor_parallel, str(state_dtype), wish.draft_tokens if wish.speculative and memory.state_drafts else 0)
        if found is None:
            result.known = False
            result.assumed.append("the states of linear attention take nothing: config.json does not tell their shape")
        state = found or 0
    drafts = (text.get("mtp_layers") or 1) if wish.speculative and not wish.draft_model else 0
    for stage, (start, end) in enumerate(stage_layers(len(layers), stages)):
        own = layers[start:end]
        full = own.count("full") + (drafts if stage == stages - 1 else 0)
        result.stages.append(
            Cache(
                token=token * full,
                window_token=token * own.count("window"),
                window=int(text.get("sliding_window") or 0) if "window" in own else 0,
                state=state * own.count("state"),
                full_layers=full,
                window_layers=own.count("window"),
                state_layers=own.count("state") if state else 0,
            )
        )
    return result
