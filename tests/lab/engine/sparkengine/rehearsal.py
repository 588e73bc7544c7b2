# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Makes the SGLang rehearsal: its package with what it takes from the recorded logs, and a model that it can read.

The model is a Qwen3 MoE by its configuration, with random bytes for weights: the rehearsal reads and holds them, and
computes nothing with them. No package but the standard library is needed.
"""

from __future__ import annotations

import importlib.util
import json
import pathlib
import random
import shutil

HERE = pathlib.Path(__file__).resolve().parent.parent
SOURCE = HERE / "sglang_rehearsal"
LOGS = HERE.parent.parent / "fixtures" / "logs" / "sglang-gpu"
RECORDED = (LOGS / "flag-of-other-engine" / "head.log", LOGS / "ready-cold" / "head.log")
SHARDS, SHARD_SIZE = 6, 4 << 20
CONFIG = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "dtype": "bfloat16",
    "vocab_size": 512,
    "hidden_size": 128,
    "num_hidden_layers": 12,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 128,
    "intermediate_size": 512,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
}


def copy_package(folder: pathlib.Path) -> None:
    """Copy the rehearsal's packages into a folder, and beside them what they take from the recorded logs."""
    shutil.copytree(SOURCE, folder, ignore=shutil.ignore_patterns("__pycache__", "recorded"))
    path = folder / "rehearsal" / "options.py"
    spec = importlib.util.spec_from_file_location("rehearsal_options", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python module.")
    options = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(options)
    options.copy_recorded(LOGS, folder / "rehearsal" / "recorded")


def _write_shard(path: pathlib.Path, name: str, weights: bytes) -> None:
    """Write a safetensors file of one tensor: the header's length in 8 bytes, the header, the bytes."""
    header = json.dumps({"__metadata__": {"format": "pt"}, name: {"dtype": "BF16", "shape": [len(weights) // 2], "data_offsets": [0, len(weights)]}}).encode()
    header += b" " * (-len(header) % 8)
    path.write_bytes(len(header).to_bytes(8, "little") + header + weights)


def write_model(folder: pathlib.Path, shards: int = SHARDS, size: int = SHARD_SIZE) -> None:
    """Write a model of so many shards with so many bytes of weights each; the same bytes each time."""
    folder.mkdir(parents=True)
    rest, table = random.Random(0), {}
    for number in range(shards):
        name, file = f"model.layers.{number}.mlp.experts.weight", f"model-{number + 1:05d}-of-{shards:05d}.safetensors"
        _write_shard(folder / file, name, rest.randbytes(size))
        table[name] = file
    index = {"metadata": {"total_size": shards * size}, "weight_map": table}
    tokenizer = {"model_max_length": CONFIG["max_position_embeddings"], "tokenizer_class": "PreTrainedTokenizerFast"}
    tokens = {"version": "1.0", "added_tokens": [], "model": {"type": "BPE", "vocab": {}, "merges": []}}
    files = {"model.safetensors.index.json": index, "config.json": CONFIG, "tokenizer_config.json": tokenizer, "tokenizer.json": tokens}
    for file, value in {**files, "generation_config.json": {"bos_token_id": 0, "eos_token_id": 2}}.items():
        (folder / file).write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
