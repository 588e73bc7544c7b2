# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Secrets are found by the names that they go by, and replaced in every form that they are written in."""

from __future__ import annotations

import base64
import json
import shlex
import urllib.parse

import pytest

from ansible_collections.sparkstack.inference.plugins.module_utils import _secrets

KEY = "S3cret/Schlüssel+42'\"x"


@pytest.mark.parametrize(
    "name",
    [
        "HF_TOKEN",
        "VLLM_API_KEY",
        "api-key",
        "AWS_SECRET_ACCESS_KEY",
        "DB_PASSWORD",
        "tp_launch_api_key",
        "SSH_PRIVATE_KEY",
        "KEY",
        "NGC_KEY",
        "GIT_CREDENTIALS",
    ],
)
def test_names_of_secrets(name: str) -> None:
    assert _secrets.is_secret(name)


@pytest.mark.parametrize(
    "name", ["TOKENIZERS_PARALLELISM", "SGLANG_MAX_TOKENS", "max-prefill-tokens", "SSH_AUTH_SOCK", "KEYBOARD", "ssl-keyfile", "NCCL_IB_HCA", "PATH", "MONKEY"]
)
def test_names_of_none(name: str) -> None:
    assert not _secrets.is_secret(name)


@pytest.mark.parametrize(
    "words, values",
    [
        (["vllm", "serve", "/m", "--api-key", "abc-1", "def-2", "--port", "8000"], ["abc-1", "def-2"]),
        (["python3", "-m", "sglang.launch_server", "--api-key=abc-1"], ["abc-1"]),
        (["bash", "-c", "HF_TOKEN='to ken' exec vllm serve /m --api-key abc-1"], ["to ken", "abc-1"]),
        (["vllm", "serve", "/m", "--max-num-batched-tokens", "8192", "--tokenizer", "/m"], []),
    ],
)
def test_secrets_of_a_command_line(words: list[str], values: list[str]) -> None:
    assert sorted(_secrets.of_command(words)) == sorted(values)


def test_secrets_of_an_environment_and_of_a_file() -> None:
    assert _secrets.of_environment(["HF_TOKEN=hf=x", "PATH=/bin", "API_KEY="]) == ["hf=x"]
    assert _secrets.of_file(f"HF_TOKEN={shlex.quote(KEY)}\nVLLM_API_KEY=plain\n") == [KEY, "plain"]


@pytest.mark.parametrize(
    "written",
    [
        KEY,
        json.dumps({"key": KEY}),
        json.dumps({"key": KEY}, ensure_ascii=False),
        json.dumps({"label": json.dumps({"key": KEY})}),
        urllib.parse.quote(KEY, safe=""),
        urllib.parse.quote(KEY),
        urllib.parse.quote_plus(KEY),
        repr([KEY]),
        base64.b64encode(KEY.encode()).decode(),
        base64.b64encode(f"user:{KEY}".encode()).decode(),
        base64.b64encode(f"me:{KEY}@host".encode()).decode(),
        base64.urlsafe_b64encode(f"a{KEY}b".encode()).decode(),
        KEY.encode().hex(),
    ],
)
def test_a_secret_is_replaced_however_it_is_written(written: str) -> None:
    text = f"before {written} after\n"
    clean = _secrets.Scrubber([KEY]).text(text)
    assert _secrets.HIDDEN in clean and clean.startswith("before ") and clean.endswith(" after\n")
    for form in _secrets.forms(KEY):
        assert form not in clean


@pytest.mark.parametrize("value", ["", "abc", "true", "None", "EMPTY", "8000", "30000"])
def test_what_means_something_else_is_not_searched_for(value: str) -> None:
    text = "port 8000, 30000 tokens, true None EMPTY abc"
    assert _secrets.Scrubber([value]).text(text) == text


def test_what_looks_like_a_key_by_its_surroundings_is_replaced_too() -> None:
    clean = _secrets.Scrubber([]).text("a\rcurl -H 'Authorization: Bearer abcdef123456'\nHF_TOKEN=hf_abcdefghijklmnop\nplain\n")
    assert "abcdef123456" not in clean and "hf_abc" not in clean and clean.startswith("a\r") and clean.endswith("\nplain\n")


def test_bytes_that_are_no_text_stay() -> None:
    assert _secrets.Scrubber(["geheim-1"]).data(b"\xff\x00geheim-1\xfe\r\n") == b"\xff\x00***\xfe\r\n"


def test_variables_are_shown_without_the_values_of_secrets_and_these_are_found() -> None:
    used = {"tp_launch_api_key": "abcd-1", "tp_launch_environment": {"HF_TOKEN": "abcd-2", "A": "b"}, "list": [{"password": "abcd-3"}], "empty_token": ""}
    assert _secrets.variables(used) == {
        "tp_launch_api_key": "***",
        "tp_launch_environment": {"HF_TOKEN": "***", "A": "b"},
        "list": [{"password": "***"}],
        "empty_token": "",
    }
    assert sorted(_secrets.of_variables(used)) == ["abcd-1", "abcd-2", "abcd-3"]
