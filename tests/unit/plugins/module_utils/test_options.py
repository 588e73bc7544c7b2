# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Arguments against parsers as the two engines really build them (names and kinds from their own option lists)."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import re

import pytest

from ansible_collections.sparkstack.inference.plugins.module_utils import _engines
from ansible_collections.sparkstack.inference.plugins.module_utils._engines._parser import DUMP, OPTIONS_MARK
from ansible_collections.sparkstack.inference.plugins.module_utils._options import Parser, read_description


def described(parser: argparse.ArgumentParser, version: str) -> dict:
    """What the program that runs in the image prints of a parser."""
    scope: dict = {}
    exec(DUMP, scope)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        scope["dump"](parser, version)
    line = read_description("WARNING something of the engine's own\n" + out.getvalue() + "bye\n", OPTIONS_MARK)
    assert line is not None
    return json.loads(line)


def sglang() -> Parser:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model-path", "--model", type=str, required=True)
    parser.add_argument("--tp-size", "--tensor-parallel-size", type=int, default=1)
    parser.add_argument("--mem-fraction-static", type=float)
    parser.add_argument("--context-length", type=int)
    parser.add_argument("--cuda-graph-max-bs-decode", type=int)
    parser.add_argument("--cuda-graph-max-bs-prefill", type=int)
    parser.add_argument("--language-only", action="store_true")
    parser.add_argument("--trust-remote-code", action="store_true")
    parser.add_argument("--kv-cache-dtype", choices=["auto", "fp8_e4m3", "fp8_e5m2"], default="auto")
    parser.add_argument("--cuda-graph-bs-decode", type=int, nargs="+")
    parser.add_argument("--disable-radix-cache", action="store_true")
    parser.add_argument("--trace-modules", "--trace-packages", type=str)
    return Parser(_engines.get("sglang"), described(parser, "0.5.15"))


def vllm() -> Parser:
    parser = argparse.ArgumentParser()
    parser.add_argument("--max-num-seqs", type=int)
    parser.add_argument("--max-model-len", type=int)
    parser.add_argument("--gpu-memory-utilization", type=float)
    parser.add_argument("--tensor-parallel-size", "-tp", type=int)
    parser.add_argument("--enforce-eager", action=argparse.BooleanOptionalAction)
    parser.add_argument("--enable-prefix-caching", action=argparse.BooleanOptionalAction)
    parser.add_argument("--enable-flashinfer-autotune", action="store_true")
    parser.add_argument("--compilation-config", type=json.loads)
    parser.add_argument("--headless", action="store_true")
    return Parser(_engines.get("vllm"), described(parser, "0.32.0"))


@pytest.mark.parametrize(
    "parser, name, value, sentence",
    [
        # The three refusals that the first story was made of.
        (vllm(), "max-num-seqz", 8, "--max-num-seqz is not an option of vLLM 0.32.0: the nearest that it has is --max-num-seqs."),
        (
            vllm(),
            "mem-fraction-static",
            0.6,
            "--mem-fraction-static is not an option of vLLM 0.32.0: the nearest that it has is --gpu-memory-utilization.",
        ),
        (
            sglang(),
            "language-model-only",
            True,
            "--language-model-only is not an option of SGLang 0.5.15: the nearest that it has is --language-only.",
        ),
        (vllm(), "zzzz", 1, "--zzzz is not an option of vLLM 0.32.0: it has none like it."),
        # Two spellings of one option are ambiguous as well.
        (
            sglang(),
            "trace",
            True,
            "--trace is ambiguous in SGLang 0.5.15: write one of --trace-modules, --trace-packages.",
        ),
        # argparse's prefix rule: --context is the only beginning of its kind; --cuda-graph-max-bs was an option once and
        # is an ambiguous beginning since the option was split.
        (sglang(), "context", 4096, None),
        (
            sglang(),
            "cuda-graph-max-bs",
            8,
            "--cuda-graph-max-bs is ambiguous in SGLang 0.5.15: write one of --cuda-graph-max-bs-decode, --cuda-graph-max-bs-prefill.",
        ),
        # --tp is no alias, but the only beginning of --tp-size: it belongs to the plan all the same.
        (
            sglang(),
            "tp",
            2,
            "--tp is set from the plan (it is SGLang --tensor-parallel-size): take it out of the recipe's arguments.",
        ),
        (vllm(), "headless", True, "--headless is set from the plan (it is vLLM --headless): take it out of the recipe's arguments."),
        # vLLM takes _ for -, SGLang doesn't.
        (vllm(), "max_model_len", 4096, None),
        (
            sglang(),
            "context_length",
            4096,
            "--context_length is not an option of SGLang 0.5.15: the nearest that it has is --context-length.",
        ),
        (vllm(), "compilation-config.level", 3, None),
        (vllm(), "no-enforce-eager", True, None),
        (
            vllm(),
            "disable-flashinfer-autotune",
            True,
            "--disable-flashinfer-autotune is not an option of vLLM 0.32.0: the nearest that it has is --enable-flashinfer-autotune.",
        ),
        (vllm(), "tp", 2, "--tp is not an option of vLLM 0.32.0: the nearest that it has is --tensor-parallel-size."),
        # What can be turned off has a form for it, registered with the parser.
        (vllm(), "enforce-eager", False, None),
        (
            vllm(),
            "enable-flashinfer-autotune",
            False,
            "--enable-flashinfer-autotune of vLLM 0.32.0 can't be turned off: leave it out of the recipe's arguments instead of giving false.",
        ),
        (
            sglang(),
            "disable-radix-cache",
            False,
            "--disable-radix-cache of SGLang 0.5.15 can't be turned off: leave it out of the recipe's arguments instead of giving false.",
        ),
        # Values.
        (vllm(), "max-num-seqs", "many", "--max-num-seqs of vLLM 0.32.0 takes a whole number, but the recipe gives 'many'."),
        (vllm(), "max-num-seqs", True, "--max-num-seqs of vLLM 0.32.0 needs a value, but the recipe gives true."),
        (vllm(), "max-num-seqs", [1, 2], "--max-num-seqs of vLLM 0.32.0 takes one value, but the recipe gives 2."),
        (sglang(), "trust-remote-code", "yes", "--trust-remote-code of SGLang 0.5.15 takes no value, but the recipe gives 'yes': write true."),
        (
            sglang(),
            "kv-cache-dtype",
            "fp8",
            "--kv-cache-dtype of SGLang 0.5.15 does not take 'fp8': choose one of auto, fp8_e4m3, fp8_e5m2.",
        ),
        (sglang(), "cuda-graph-bs-decode", [1, 2, 4], None),
        (sglang(), "mem-fraction-static", 0.6, None),
        (sglang(), "mem-fraction-static", None, None),
    ],
)
def test_one_sentence_or_none(parser: Parser, name: str, value: object, sentence: str | None) -> None:
    assert parser.problem(name, value) == sentence


def test_all_problems_are_told_at_once() -> None:
    assert len(vllm().problems({"max-num-seqz": 1, "max-num-seqs": 2, "headless": True})) == 2


@pytest.mark.parametrize("name", sorted(_engines.ENGINES))
def test_an_engine_refuses_what_the_plan_owns_in_every_spelling_that_its_command_uses(name: str) -> None:
    engine = _engines.get(name)
    spec = _engines._types.RankSpec("/m", "m", 0, 2, 2, "10.0.0.1", "10.0.0.1", 1, 2, "0.0.0.0")
    used = {word[2:] for rank in (0, 1) for word in engine.launch.command(_replaced(spec, rank)) if word.startswith("--")}
    assert used <= engine.launch.owned, used - engine.launch.owned


def _replaced(spec: object, rank: int) -> object:
    import dataclasses

    return dataclasses.replace(spec, rank=rank)


def test_an_unknown_engine_is_answered_with_those_that_there_are() -> None:
    with pytest.raises(ValueError, match=re.escape("'tgi' is not an engine: choose sglang or vllm.")):
        _engines.get("tgi")
