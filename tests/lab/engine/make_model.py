#!/usr/bin/env python3
# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Makes a tiny Qwen3 MoE model with random weights, in several safetensors shards, with a tokenizer of its own.

Usage: make_model.py FOLDER. Needs torch, transformers and tokenizers (the engine image has them), no network. Two layers,
hidden size 128, four experts of which two answer, four heads and two key-value heads (so that tensor parallelism over two
ranks splits evenly): 0.6 million parameters, 1.3 MB in three shards. The seed is fixed: the weights are the same each time.
"""

from __future__ import annotations

import os
import pathlib
import sys

os.environ["HF_HUB_OFFLINE"] = "1"

import torch  # noqa: E402
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers  # noqa: E402
from transformers import (  # noqa: E402
    GenerationConfig,
    PreTrainedTokenizerFast,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

TEXT = "the quick brown fox jumps over the lazy dog. hello world, how are you today?"
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
POSITIONS = 2048
SHARD_SIZE = "500KB"


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Return a byte-level BPE tokenizer: the 256 bytes, the special tokens and the few merges that TEXT yields."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=500, special_tokens=SPECIAL, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator([TEXT] * 50, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=SPECIAL[0],
        eos_token=SPECIAL[2],
        additional_special_tokens=[SPECIAL[1]],
        model_max_length=POSITIONS,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def make_model() -> Qwen3MoeForCausalLM:
    """Return the model in bfloat16 with random weights of a fixed seed."""
    torch.manual_seed(0)
    tokens = {"bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 0}
    config = Qwen3MoeConfig(
        vocab_size=512,
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        intermediate_size=512,
        moe_intermediate_size=128,
        num_experts=4,
        num_experts_per_tok=2,
        decoder_sparse_step=1,
        norm_topk_prob=True,
        max_position_embeddings=POSITIONS,
        tie_word_embeddings=False,
        **tokens,
    )
    model = Qwen3MoeForCausalLM(config).to(torch.bfloat16)
    model.generation_config = GenerationConfig(**tokens)
    return model


def main() -> None:
    """Write model and tokenizer into the folder that the command line names."""
    if len(sys.argv) != 2:
        raise SystemExit("Usage: make_model.py FOLDER")
    folder = pathlib.Path(sys.argv[1])
    make_model().save_pretrained(folder, max_shard_size=SHARD_SIZE, safe_serialization=True)
    make_tokenizer().save_pretrained(folder)
    if not (folder / "model.safetensors.index.json").is_file():
        raise SystemExit("The model was written as one file, the lab needs several shards: lower SHARD_SIZE.")


if __name__ == "__main__":
    main()
