# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Public models by their configuration, and the tensors that their files hold.

The names are those of the public checkpoints, as the engines' C(load_weights) read them (SGLang 0.5.17, vLLM 0.32.0). The bytes of
all tensors are compared with what is published of the files, so a wrong shape here shows.
"""

from __future__ import annotations

import functools
import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils._tensors import Tensor

Config = dict[str, t.Any]
Tensors = list[Tensor]


class Maker:
    """Collects tensors; linear layers in FP8 get their block scales."""

    def __init__(self, fp8: bool = False, scale: str = "F32") -> None:
        self.made: Tensors = []
        self.fp8 = fp8
        self.scale = scale

    def plain(self, name: str, *shape: int, dtype: str = "BF16") -> None:
        self.made.append(Tensor(name, dtype, shape))

    def linear(self, name: str, rows: int, columns: int, bias: bool = False, quantised: bool = True) -> None:
        if self.fp8 and quantised:
            self.plain(f"{name}.weight", rows, columns, dtype="F8_E4M3")
            self.plain(f"{name}.weight_scale_inv", -(-rows // 128), -(-columns // 128), dtype=self.scale)
        else:
            self.plain(f"{name}.weight", rows, columns)
        if bias:
            self.plain(f"{name}.bias", rows)

    def gated(self, name: str, hidden: int, width: int, names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")) -> None:
        self.linear(f"{name}.{names[0]}", width, hidden)
        self.linear(f"{name}.{names[1]}", width, hidden)
        self.linear(f"{name}.{names[2]}", hidden, width)

    def attention(self, name: str, c: Config, bias: bool = False, norms: bool = False, gate: bool = False) -> None:
        hidden, heads, kv, dimension = c["hidden_size"], c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
        self.linear(f"{name}.q_proj", heads * dimension * (2 if gate else 1), hidden, bias)
        self.linear(f"{name}.k_proj", kv * dimension, hidden, bias)
        self.linear(f"{name}.v_proj", kv * dimension, hidden, bias)
        self.linear(f"{name}.o_proj", hidden, heads * dimension)
        if norms:
            self.plain(f"{name}.q_norm.weight", dimension)
            self.plain(f"{name}.k_norm.weight", dimension)

    def frame(self, prefix: str, c: Config) -> None:
        self.plain(f"{prefix}.embed_tokens.weight", c["vocab_size"], c["hidden_size"])
        self.plain(f"{prefix}.norm.weight", c["hidden_size"])
        self.plain("lm_head.weight", c["vocab_size"], c["hidden_size"])

    def layer_norms(self, name: str, hidden: int) -> None:
        self.plain(f"{name}.input_layernorm.weight", hidden)
        self.plain(f"{name}.post_attention_layernorm.weight", hidden)


def _llama(c: Config) -> Tensors:
    make = Maker()
    make.frame("model", c)
    for layer in range(c["num_hidden_layers"]):
        name = f"model.layers.{layer}"
        make.attention(f"{name}.self_attn", c)
        make.gated(f"{name}.mlp", c["hidden_size"], c["intermediate_size"])
        make.layer_norms(name, c["hidden_size"])
    return make.made


def _mixtral(c: Config) -> Tensors:
    make = Maker()
    make.frame("model", c)
    for layer in range(c["num_hidden_layers"]):
        name = f"model.layers.{layer}"
        make.attention(f"{name}.self_attn", c)
        make.plain(f"{name}.block_sparse_moe.gate.weight", c["num_local_experts"], c["hidden_size"])
        for expert in range(c["num_local_experts"]):
            make.gated(f"{name}.block_sparse_moe.experts.{expert}", c["hidden_size"], c["intermediate_size"], ("w1", "w3", "w2"))
        make.layer_norms(name, c["hidden_size"])
    return make.made


def _qwen3_moe(c: Config) -> Tensors:
    make = Maker(fp8="quantization_config" in c, scale="BF16")
    make.frame("model", c)
    for layer in range(c["num_hidden_layers"]):
        name = f"model.layers.{layer}"
        make.attention(f"{name}.self_attn", c, norms=True)
        make.plain(f"{name}.mlp.gate.weight", c["num_experts"], c["hidden_size"])
        for expert in range(c["num_experts"]):
            make.gated(f"{name}.mlp.experts.{expert}", c["hidden_size"], c["moe_intermediate_size"])
        make.layer_norms(name, c["hidden_size"])
    return make.made


def _gpt_oss(c: Config) -> Tensors:
    """Two numbers of four bits a byte, 16 bytes and one scale for every 32 of them."""
    make = Maker()
    make.frame("model", c)
    hidden, width, experts = c["hidden_size"], c["intermediate_size"], c["num_local_experts"]
    for layer in range(c["num_hidden_layers"]):
        name = f"model.layers.{layer}"
        make.attention(f"{name}.self_attn", c, bias=True)
        make.plain(f"{name}.self_attn.o_proj.bias", hidden)
        make.plain(f"{name}.self_attn.sinks", c["num_attention_heads"])
        make.plain(f"{name}.mlp.router.weight", experts, hidden)
        make.plain(f"{name}.mlp.router.bias", experts)
        for part, rows, columns in (("gate_up_proj", 2 * width, hidden), ("down_proj", hidden, width)):
            make.plain(f"{name}.mlp.experts.{part}_blocks", experts, rows, columns // 32, 16, dtype="U8")
            make.plain(f"{name}.mlp.experts.{part}_scales", experts, rows, columns // 32, dtype="U8")
            make.plain(f"{name}.mlp.experts.{part}_bias", experts, rows)
        make.layer_norms(name, hidden)
    return make.made


def _deepseek(c: Config) -> Tensors:
    """The layer behind the last one predicts the token after the next."""
    make = Maker(fp8=True)
    make.frame("model", c)
    hidden, heads, latent, rope = c["hidden_size"], c["num_attention_heads"], c["kv_lora_rank"], c["qk_rope_head_dim"]
    for layer in range(c["num_hidden_layers"] + c["num_nextn_predict_layers"]):
        name = f"model.layers.{layer}"
        attention = f"{name}.self_attn"
        make.linear(f"{attention}.q_a_proj", c["q_lora_rank"], hidden)
        make.plain(f"{attention}.q_a_layernorm.weight", c["q_lora_rank"])
        make.linear(f"{attention}.q_b_proj", heads * (c["qk_nope_head_dim"] + rope), c["q_lora_rank"])
        make.linear(f"{attention}.kv_a_proj_with_mqa", latent + rope, hidden)
        make.plain(f"{attention}.kv_a_layernorm.weight", latent)
        make.linear(f"{attention}.kv_b_proj", heads * (c["qk_nope_head_dim"] + c["v_head_dim"]), latent)
        make.linear(f"{attention}.o_proj", hidden, heads * c["v_head_dim"])
        make.layer_norms(name, hidden)
        if layer < c["first_k_dense_replace"]:
            make.gated(f"{name}.mlp", hidden, c["intermediate_size"])
        else:
            _glm_experts(make, name, c, "F32")
        if layer >= c["num_hidden_layers"]:
            _next_token(make, name, c)
    return make.made


def _glm_experts(make: Maker, name: str, c: Config, bias: str) -> None:
    hidden, width = c["hidden_size"], c["moe_intermediate_size"]
    make.plain(f"{name}.mlp.gate.weight", c["n_routed_experts"], hidden)
    make.plain(f"{name}.mlp.gate.e_score_correction_bias", c["n_routed_experts"], dtype=bias)
    for expert in range(c["n_routed_experts"]):
        make.gated(f"{name}.mlp.experts.{expert}", hidden, width)
    make.gated(f"{name}.mlp.shared_experts", hidden, width * c["n_shared_experts"])


def _next_token(make: Maker, name: str, c: Config) -> None:
    hidden, vocabulary = c["hidden_size"], c["vocab_size"]
    make.plain(f"{name}.eh_proj.weight", hidden, 2 * hidden)
    for norm in ("enorm", "hnorm", "shared_head.norm"):
        make.plain(f"{name}.{norm}.weight", hidden)
    make.plain(f"{name}.embed_tokens.weight", vocabulary, hidden)
    make.plain(f"{name}.shared_head.head.weight", vocabulary, hidden)


def _glm(c: Config) -> Tensors:
    make = Maker()
    make.frame("model", c)
    for layer in range(c["num_hidden_layers"] + c["num_nextn_predict_layers"]):
        name = f"model.layers.{layer}"
        make.attention(f"{name}.self_attn", c, bias=True)
        make.layer_norms(name, c["hidden_size"])
        if layer < c["first_k_dense_replace"]:
            make.gated(f"{name}.mlp", c["hidden_size"], c["intermediate_size"])
        else:
            _glm_experts(make, name, c, "F32")
        if layer >= c["num_hidden_layers"]:
            _next_token(make, name, c)
    return make.made


def _gated_delta(make: Maker, name: str, c: Config, fused: bool) -> None:
    """Qwen3-Next keeps its projections fused, Qwen3.5 by part."""
    hidden, keys, values = c["hidden_size"], c["linear_num_key_heads"], c["linear_num_value_heads"]
    key_size, value_size = keys * c["linear_key_head_dim"], values * c["linear_value_head_dim"]
    if fused:
        make.linear(f"{name}.in_proj_qkvz", 2 * key_size + 2 * value_size, hidden)
        make.linear(f"{name}.in_proj_ba", 2 * values, hidden, quantised=False)
    else:
        make.linear(f"{name}.in_proj_qkv", 2 * key_size + value_size, hidden)
        make.linear(f"{name}.in_proj_z", value_size, hidden)
        make.linear(f"{name}.in_proj_a", values, hidden, quantised=False)
        make.linear(f"{name}.in_proj_b", values, hidden, quantised=False)
    make.plain(f"{name}.conv1d.weight", 2 * key_size + value_size, 1, c["linear_conv_kernel_dim"])
    make.plain(f"{name}.A_log", values, dtype="BF16" if fused else "F32")
    make.plain(f"{name}.dt_bias", values)
    make.plain(f"{name}.norm.weight", c["linear_value_head_dim"], dtype="BF16" if fused else "F32")
    make.linear(f"{name}.out_proj", hidden, value_size)


def _qwen_hybrid_layer(make: Maker, name: str, c: Config, full: bool, fused: bool) -> None:
    hidden = c["hidden_size"]
    if full:
        make.attention(f"{name}.self_attn", c, norms=True, gate=True)
    else:
        _gated_delta(make, f"{name}.linear_attn", c, fused)
    make.plain(f"{name}.mlp.gate.weight", c["num_experts"], hidden)
    for expert in range(c["num_experts"]):
        make.gated(f"{name}.mlp.experts.{expert}", hidden, c["moe_intermediate_size"])
    make.gated(f"{name}.mlp.shared_expert", hidden, c["shared_expert_intermediate_size"])
    make.plain(f"{name}.mlp.shared_expert_gate.weight", 1, hidden)
    make.layer_norms(name, hidden)


def _qwen_hybrid(c: Config, prefix: str, fp8: bool, fused: bool) -> Maker:
    make = Maker(fp8=fp8, scale="BF16")
    make.frame(prefix, c)
    for layer in range(c["num_hidden_layers"]):
        _qwen_hybrid_layer(make, f"{prefix}.layers.{layer}", c, (layer + 1) % c["full_attention_interval"] == 0, fused)
    _qwen_hybrid_layer(make, "mtp.layers.0", c, True, fused)
    make.plain("mtp.fc.weight", c["hidden_size"], 2 * c["hidden_size"])
    for norm in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"):
        make.plain(f"mtp.{norm}.weight", c["hidden_size"])
    return make


def _vision(make: Maker, v: Config) -> None:
    hidden, width, merged = v["hidden_size"], v["intermediate_size"], v["hidden_size"] * v["spatial_merge_size"] ** 2
    make.plain("model.visual.patch_embed.proj.weight", hidden, v["in_channels"], v["temporal_patch_size"], v["patch_size"], v["patch_size"])
    make.plain("model.visual.patch_embed.proj.bias", hidden)
    make.plain("model.visual.pos_embed.weight", v["num_position_embeddings"], hidden)
    for block in range(v["depth"]):
        name = f"model.visual.blocks.{block}"
        make.linear(f"{name}.attn.qkv", 3 * hidden, hidden, bias=True, quantised=False)
        make.linear(f"{name}.attn.proj", hidden, hidden, bias=True, quantised=False)
        make.linear(f"{name}.mlp.linear_fc1", width, hidden, bias=True, quantised=False)
        make.linear(f"{name}.mlp.linear_fc2", hidden, width, bias=True, quantised=False)
        for norm in ("norm1", "norm2"):
            make.plain(f"{name}.{norm}.weight", hidden)
            make.plain(f"{name}.{norm}.bias", hidden)
    make.plain("model.visual.merger.norm.weight", hidden)
    make.plain("model.visual.merger.norm.bias", hidden)
    make.linear("model.visual.merger.linear_fc1", merged, merged, bias=True, quantised=False)
    make.linear("model.visual.merger.linear_fc2", v["out_hidden_size"], merged, bias=True, quantised=False)


def _qwen3_next(c: Config) -> Tensors:
    return _qwen_hybrid(c, "model", "quantization_config" in c, True).made


def _qwen3_5(c: Config) -> Tensors:
    text = {**c["text_config"], "full_attention_interval": 4}
    make = _qwen_hybrid(text, "model.language_model", "quantization_config" in c, False)
    _vision(make, c["vision_config"])
    return make.made


def _without(name: str, *keys: str) -> tuple[Config, t.Callable[[Config], Tensors]]:
    config, made = MODELS[name]
    return {key: value for key, value in config.items() if key not in keys}, made


def _alternating(layers: int, first: str, every: int, other: str) -> list[str]:
    return [other if (at + 1) % every == 0 else first for at in range(layers)]


FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}

MODELS: dict[str, tuple[Config, t.Callable[[Config], Tensors]]] = {
    "Qwen3.5-122B-A10B-FP8": (
        {
            "architectures": ["Qwen3_5MoeForConditionalGeneration"],
            "model_type": "qwen3_5_moe",
            "tie_word_embeddings": False,
            "quantization_config": FP8,
            "text_config": {
                "dtype": "bfloat16", "num_hidden_layers": 48, "hidden_size": 3072, "num_attention_heads": 32, "num_key_value_heads": 2,
                "head_dim": 256, "vocab_size": 248320, "num_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 1024,
                "shared_expert_intermediate_size": 1024, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
                "linear_value_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 64, "mamba_ssm_dtype": "float32",
                "max_position_embeddings": 262144, "mtp_num_hidden_layers": 1,
                "rope_parameters": {"rope_type": "default", "rope_theta": 10000000, "partial_rotary_factor": 0.25},
                "layer_types": _alternating(48, "linear_attention", 4, "full_attention"),
            },
            "vision_config": {
                "depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "in_channels": 3, "patch_size": 16, "spatial_merge_size": 2,
                "temporal_patch_size": 2, "num_position_embeddings": 2304, "out_hidden_size": 3072,
            },
        },
        _qwen3_5,
    ),
    "Qwen3-235B-A22B-FP8": (
        {
            "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "torch_dtype": "bfloat16", "num_hidden_layers": 94,
            "hidden_size": 4096, "num_attention_heads": 64, "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 151936,
            "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 1536, "intermediate_size": 12288,
            "max_position_embeddings": 40960, "tie_word_embeddings": False, "quantization_config": FP8,
        },
        _qwen3_moe,
    ),
    "Qwen3-30B-A3B": (
        {
            "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "torch_dtype": "bfloat16", "num_hidden_layers": 48,
            "hidden_size": 2048, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 151936,
            "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "intermediate_size": 6144,
            "max_position_embeddings": 40960, "tie_word_embeddings": False,
        },
        _qwen3_moe,
    ),
    "gpt-oss-120b": (
        {
            "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "torch_dtype": "bfloat16", "num_hidden_layers": 36,
            "hidden_size": 2880, "intermediate_size": 2880, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64,
            "vocab_size": 201088, "num_local_experts": 128, "num_experts_per_tok": 4, "sliding_window": 128,
            "layer_types": _alternating(36, "sliding_attention", 2, "full_attention"), "max_position_embeddings": 131072,
            "tie_word_embeddings": False, "quantization_config": {"quant_method": "mxfp4"},
        },
        _gpt_oss,
    ),
    "gpt-oss-20b": (
        {
            "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "torch_dtype": "bfloat16", "num_hidden_layers": 24,
            "hidden_size": 2880, "intermediate_size": 2880, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64,
            "vocab_size": 201088, "num_local_experts": 32, "num_experts_per_tok": 4, "sliding_window": 128,
            "layer_types": _alternating(24, "sliding_attention", 2, "full_attention"), "max_position_embeddings": 131072,
            "tie_word_embeddings": False, "quantization_config": {"quant_method": "mxfp4"},
        },
        _gpt_oss,
    ),
    "DeepSeek-V3": (
        {
            "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "torch_dtype": "bfloat16", "num_hidden_layers": 61,
            "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048, "num_attention_heads": 128,
            "num_key_value_heads": 128, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128,
            "v_head_dim": 128, "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 3,
            "num_nextn_predict_layers": 1, "vocab_size": 129280, "max_position_embeddings": 163840, "tie_word_embeddings": False,
            "quantization_config": FP8,
        },
        _deepseek,
    ),
    "GLM-4.5-Air": (
        {
            "architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", "torch_dtype": "bfloat16", "num_hidden_layers": 46,
            "hidden_size": 4096, "intermediate_size": 10944, "moe_intermediate_size": 1408, "num_attention_heads": 96,
            "num_key_value_heads": 8, "head_dim": 128, "n_routed_experts": 128, "n_shared_experts": 1, "num_experts_per_tok": 8,
            "first_k_dense_replace": 1, "num_nextn_predict_layers": 1, "vocab_size": 151552, "max_position_embeddings": 131072,
            "tie_word_embeddings": False,
        },
        _glm,
    ),
    "Llama-3.3-70B": (
        {
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16", "num_hidden_layers": 80,
            "hidden_size": 8192, "intermediate_size": 28672, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128,
            "vocab_size": 128256, "max_position_embeddings": 131072, "tie_word_embeddings": False,
        },
        _llama,
    ),
    "Mixtral-8x22B": (
        {
            "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "torch_dtype": "bfloat16", "num_hidden_layers": 56,
            "hidden_size": 6144, "intermediate_size": 16384, "num_attention_heads": 48, "num_key_value_heads": 8, "head_dim": 128,
            "num_local_experts": 8, "num_experts_per_tok": 2, "vocab_size": 32768, "sliding_window": None,
            "max_position_embeddings": 65536, "tie_word_embeddings": False,
        },
        _mixtral,
    ),
    "Qwen3-Next-80B-A3B": (
        {
            "architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next", "torch_dtype": "bfloat16", "num_hidden_layers": 48,
            "hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256, "full_attention_interval": 4,
            "vocab_size": 151936, "num_experts": 512, "num_experts_per_tok": 10, "moe_intermediate_size": 512,
            "shared_expert_intermediate_size": 512, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
            "linear_num_key_heads": 16, "linear_num_value_heads": 32, "max_position_embeddings": 262144, "tie_word_embeddings": False,
            "partial_rotary_factor": 0.25,
        },
        _qwen3_next,
    ),
}  # fmt: skip
MODELS["Qwen3-235B-A22B"] = _without("Qwen3-235B-A22B-FP8", "quantization_config")


@functools.cache
def tensors(name: str) -> Tensors:
    """All tensors of a model's files."""
    config, made = MODELS[name]
    return made(config)
