# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Option names, types and defaults of SGLang 0.5.15's launcher, a part of its 437; see the package's docstring.

The parser is plain argparse with abbreviations on, as SGLang's is: --tp is no alias, it is the only option that begins so.
--language-model-only is not there: SGLang has it only since a later release.
"""

import argparse

# name, type, default; an alias stands in ALIASES.
VALUES = (
    ("--model-path", str, None),
    ("--tokenizer-path", str, None),
    ("--tokenizer-mode", str, "auto"),
    ("--load-format", str, "auto"),
    ("--model-loader-extra-config", str, "{}"),
    ("--context-length", int, None),
    ("--model-impl", str, "auto"),
    ("--revision", str, None),
    ("--host", str, "127.0.0.1"),
    ("--port", int, 30000),
    ("--nccl-port", int, None),
    ("--dtype", str, "auto"),
    ("--quantization", str, None),
    ("--quantization-param-path", str, None),
    ("--kv-cache-dtype", str, "auto"),
    ("--mem-fraction-static", float, None),
    ("--max-running-requests", int, None),
    ("--max-queued-requests", int, None),
    ("--max-total-tokens", int, None),
    ("--chunked-prefill-size", int, None),
    ("--max-prefill-tokens", int, 16384),
    ("--schedule-policy", str, "fcfs"),
    ("--schedule-conservativeness", float, 1.0),
    ("--page-size", int, None),
    ("--swa-full-tokens-ratio", float, 0.8),
    ("--device", str, None),
    ("--tp-size", int, 1),
    ("--pp-size", int, 1),
    ("--dp-size", int, 1),
    ("--ep-size", int, 1),
    ("--stream-interval", int, 1),
    ("--random-seed", int, None),
    ("--watchdog-timeout", float, 300.0),
    ("--soft-watchdog-timeout", float, None),
    ("--dist-timeout", int, None),
    ("--dist-init-addr", str, None),
    ("--nnodes", int, 1),
    ("--node-rank", int, 0),
    ("--download-dir", str, None),
    ("--base-gpu-id", int, 0),
    ("--gpu-id-step", int, 1),
    ("--log-level", str, "info"),
    ("--log-level-http", str, None),
    ("--log-requests-level", int, 2),
    ("--crash-dump-folder", str, None),
    ("--decode-log-interval", int, 40),
    ("--api-key", str, None),
    ("--served-model-name", str, None),
    ("--weight-version", str, "default"),
    ("--chat-template", str, None),
    ("--completion-template", str, None),
    ("--reasoning-parser", str, None),
    ("--tool-call-parser", str, None),
    ("--tool-server", str, None),
    ("--sampling-defaults", str, "model"),
    ("--json-model-override-args", str, "{}"),
    ("--attention-backend", str, None),
    ("--prefill-attention-backend", str, None),
    ("--decode-attention-backend", str, None),
    ("--sampling-backend", str, None),
    ("--grammar-backend", str, None),
    ("--mm-attention-backend", str, None),
    ("--fp8-gemm-backend", str, "auto"),
    ("--fp4-gemm-backend", str, "auto"),
    ("--moe-runner-backend", str, "auto"),
    ("--moe-a2a-backend", str, "none"),
    ("--mamba-ssm-dtype", str, None),
    ("--mamba-full-memory-ratio", float, 0.9),
    ("--speculative-algorithm", str, None),
    ("--speculative-draft-model-path", str, None),
    ("--speculative-num-steps", int, None),
    ("--speculative-eagle-topk", int, None),
    ("--speculative-num-draft-tokens", int, None),
    ("--cuda-graph-max-bs", int, None),
    ("--num-continuous-decode-steps", int, 1),
    ("--lora-backend", str, "csgmv"),
    ("--max-loras-per-batch", int, 8),
    ("--hicache-ratio", float, 2.0),
    ("--cpu-offload-gb", int, 0),
)
# Options of several values.
LISTS = (("--cuda-graph-bs", int), ("--lora-paths", str), ("--warmups", str))
# Options without a value; there is no --no-... form of them.
FLAGS = (
    "--trust-remote-code",
    "--skip-tokenizer-init",
    "--skip-server-warmup",
    "--enable-metrics",
    "--enable-mixed-chunk",
    "--enable-dp-attention",
    "--enable-torch-compile",
    "--enable-p2p-check",
    "--enable-lora",
    "--enable-hierarchical-cache",
    "--log-requests",
    "--sleep-on-idle",
    "--disable-cuda-graph",
    "--disable-cuda-graph-padding",
    "--disable-radix-cache",
    "--disable-custom-all-reduce",
    "--disable-overlap-schedule",
    "--disable-chunked-prefix-cache",
    "--disable-shared-experts-fusion",
    "--weight-loader-disable-mmap",
)
ALIASES = {
    "--model-path": ("--model",),
    "--tp-size": ("--tensor-parallel-size",),
    "--pp-size": ("--pipeline-parallel-size",),
    "--dp-size": ("--data-parallel-size",),
    "--ep-size": ("--expert-parallel-size", "--ep"),
    "--dist-init-addr": ("--nccl-init-addr",),
}
CHOICES = {"--dtype": ("auto", "half", "float16", "bfloat16", "float", "float32")}


class ServerArgs:
    """The class that holds SGLang's options; here only its parser."""

    @staticmethod
    def add_cli_args(parser: argparse.ArgumentParser) -> None:
        """Add all options of this module to a parser."""
        for name, kind, default in VALUES:
            aliases = ALIASES.get(name, ())
            required = name == "--model-path"
            choices = CHOICES.get(name)
            dest = name[2:].replace("-", "_")
            parser.add_argument(name, *aliases, dest=dest, type=kind, default=default, choices=choices, required=required)
        for name, kind in LISTS:
            parser.add_argument(name, type=kind, nargs="+", default=None)
        for name in FLAGS:
            parser.add_argument(name, action="store_true")
