# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Arguments against the parsers of real engines: tests/fixtures/options holds what they printed of themselves.

What a parser does with a name was tried with the very parsers: each beginning of each option, with and without dashes,
negations and dots (some 8,000 names an engine). The tables keep one of each kind.
"""

from __future__ import annotations

import json
import pathlib
import typing as t

import pytest
import yaml

from ansible_collections.sparkstack.inference.plugins.module_utils import _engines
from ansible_collections.sparkstack.inference.plugins.module_utils._options import Parser

ROOT = pathlib.Path(__file__).resolve().parents[4]
RECIPE = yaml.safe_load((ROOT / "playbooks" / "recipes" / "qwen3.5-122b-a10b-fp8.yml").read_text())


def parser(name: str) -> Parser:
    """The parser of "sglang-0.5.17"."""
    described = json.loads((ROOT / "tests" / "fixtures" / "options" / f"{name}.json").read_text())
    return Parser(_engines.get(name.partition("-")[0]), described)


@pytest.mark.parametrize(
    ("name", "options", "spellings"),
    [("sglang-0.5.17", 474, 491), ("sglang-0.5.23", 531, 559), ("vllm-0.32.0", 316, 428), ("vllm-0.33.0", 320, 483)],
)
def test_what_an_image_printed_is_read_whole(name: str, options: int, spellings: int) -> None:
    found = parser(name)
    assert found.version == name.partition("-")[2]
    assert len({id(option) for option in found.options.values()}) == options
    assert len(found.options) == spellings


@pytest.mark.parametrize(
    ("name", "argument", "value", "sentence"),
    [
        # A misspelt option, one of the other engine, and one that this version doesn't have yet.
        ("vllm-0.32.0", "max-num-seqz", 8, "--max-num-seqz is not an option of vLLM 0.32.0: the nearest that it has is --max-num-seqs."),
        (
            "vllm-0.32.0",
            "mem-fraction-static",
            0.6,
            "--mem-fraction-static is not an option of vLLM 0.32.0: the nearest that it has is --gpu-memory-utilization.",
        ),
        (
            "sglang-0.5.17",
            "language-model-only",
            True,
            "--language-model-only is not an option of SGLang 0.5.17: the nearest that it has is --language-only.",
        ),
        ("sglang-0.5.23", "language-model-only", True, None),
        (
            "sglang-0.5.23",
            "max-model-len",
            4096,
            "--max-model-len is not an option of SGLang 0.5.23: the nearest that it has is --context-length.",
        ),
        # 0.5.17 still lists the old spelling, though deprecated; in 0.5.23 it is the beginning of two options.
        ("sglang-0.5.17", "cuda-graph-max-bs", 8, None),
        (
            "sglang-0.5.23",
            "cuda-graph-max-bs",
            8,
            "--cuda-graph-max-bs is ambiguous in SGLang 0.5.23: write one of --cuda-graph-max-bs-decode, --cuda-graph-max-bs-prefill.",
        ),
        (
            "sglang-0.5.17",
            "tp",
            2,
            "--tp is set from the plan (it is SGLang --tensor-parallel-size): take it out of the recipe's arguments.",
        ),
        ("vllm-0.32.0", "tp", 2, "--tp is not an option of vLLM 0.32.0: the nearest that it has is --tensor-parallel-size."),
        (
            "vllm-0.32.0",
            "headless",
            True,
            "--headless is set from the plan (it is vLLM --headless): take it out of the recipe's arguments.",
        ),
        # Values.
        ("vllm-0.32.0", "enforce-eager", False, None),
        (
            "sglang-0.5.23",
            "trust-remote-code",
            False,
            "--trust-remote-code of SGLang 0.5.23 can't be turned off: leave it out of the recipe's arguments instead of giving false.",
        ),
        ("sglang-0.5.23", "max-running-requests", "many", "--max-running-requests of SGLang 0.5.23 takes a whole number, but the recipe gives 'many'."),
        # It has a type of its own: 256k is right as well.
        ("sglang-0.5.23", "context-length", "256k", None),
        ("sglang-0.5.23", "cuda-graph-bs-decode", [1, 2, 4, 8], None),
    ],
)
def test_one_sentence_or_none(name: str, argument: str, value: object, sentence: str | None) -> None:
    assert parser(name).problem(argument, value) == sentence


@pytest.mark.parametrize(
    ("name", "argument", "flags"),
    [
        # SGLang: beginnings, and dashes only.
        ("sglang-0.5.17", "dp", ["--dp-size"]),
        ("sglang-0.5.17", "ep", ["--ep"]),
        ("sglang-0.5.17", "context", ["--context-length"]),
        ("sglang-0.5.23", "context", ["--context-bucket", "--context-length"]),
        ("sglang-0.5.23", "context_length", []),
        ("sglang-0.5.23", "no-trust-remote-code", []),
        # vLLM: beginnings, underscores and one key of a JSON option.
        ("vllm-0.32.0", "max_model_len", ["--max-model-len"]),
        ("vllm-0.32.0", "gpu-mem", ["--gpu-memory-utilization"]),
        ("vllm-0.32.0", "max-model", ["--max-model-len"]),
        ("vllm-0.32.0", "compilation-config.level", ["--compilation-config"]),
        ("vllm-0.32.0", "compilation_config.pass_config.x", ["--compilation-config"]),
        # Every boolean has a --no-x, a switch such as --headless hasn't.
        ("vllm-0.32.0", "no-enforce-eager", ["--no-enforce-eager"]),
        ("vllm-0.32.0", "no-enable-prefix-caching", ["--no-enable-prefix-caching"]),
        ("vllm-0.32.0", "no-headless", []),
        ("vllm-0.32.0", "disable-trust-remote-code", []),
        # 0.33 makes a --disable-x of each --enable-x and the reverse, and keeps --no-enable-x.
        ("vllm-0.32.0", "disable-prefix-caching", []),
        ("vllm-0.33.0", "disable-prefix-caching", ["--disable-prefix-caching"]),
        ("vllm-0.33.0", "enable-cascade-attn", ["--enable-cascade-attn"]),
        ("vllm-0.33.0", "no-enable-prefix-caching", ["--no-enable-prefix-caching"]),
        ("vllm-0.33.0", "enable-log-stats", []),
    ],
)
def test_a_name_stands_for_what_the_parser_takes_it_for(name: str, argument: str, flags: list[str]) -> None:
    assert parser(name).matches(argument) == flags


@pytest.mark.parametrize("name", ["sglang-0.5.17", "sglang-0.5.23", "vllm-0.32.0", "vllm-0.33.0"])
def test_the_shipped_recipe_is_valid(name: str) -> None:
    arguments: dict[str, t.Any] = RECIPE["engines"][name.partition("-")[0]]["arguments"]
    assert parser(name).problems(arguments) == []


@pytest.mark.parametrize("name", ["sglang-0.5.17", "sglang-0.5.23", "vllm-0.32.0", "vllm-0.33.0"])
def test_every_option_that_the_plan_sets_exists(name: str) -> None:
    found = parser(name)
    spec = _engines._types.RankSpec("/m", "m", 0, 2, 2, "10.0.0.1", "10.0.0.1", 1, 2, "0.0.0.0")
    used = [word for word in found.engine.launch.command(spec) if word.startswith("--")]
    assert used and [word for word in used if word not in found.options] == []


@pytest.mark.parametrize("name", ["sglang-0.5.23", "vllm-0.33.0"])
def test_an_equivalent_is_an_option_of_the_engine_that_it_is_named_for(name: str) -> None:
    found = parser(name)
    assert [meant for meant in found.engine.launch.equivalents.values() if "--" + meant not in found.options] == []
