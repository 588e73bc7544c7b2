# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which containers look like an engine: command lines as launchers write them."""

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.sparkstack.inference.plugins.module_utils import _engine_search


@pytest.mark.parametrize(
    "image, command, by",
    [
        ("nvcr.io/nvidia/pytorch:25.10", "vllm serve /models/qwen --port 8000", "command"),
        ("team/base:1", "python3 -m sglang.launch_server --model-path /m --nnodes 2", "command"),
        ("team/base:1", "python -m vllm.entrypoints.openai.api_server --model /m", "command"),
        ("team/base:1", "bash -c 'ray start --block --head --port 6379'", "command"),
        ("lmsysorg/sglang:spark", "sleep infinity", "image"),
        ("registry:5000/team/my-vLLM@sha256:0123", "/entrypoint.sh", "image"),
        ("vllm/prometheus:2", "prometheus --config.file=/etc/p.yml", ""),
        ("postgres:16", "postgres -c log_statement=all", ""),
    ],
)
def test_looks_like(image: str, command: str, by: str) -> None:
    assert _engine_search.looks_like(image, command) == by


class Docker:
    """A daemon that lists these."""

    def __init__(self, *entries: dict[str, t.Any]) -> None:
        self.entries = list(entries)

    def get(self, path: str, query: dict[str, str]) -> t.Any:
        assert (path, query) == ("/containers/json", {"all": "true"})
        return self.entries


def entry(name: str, created: int, **known: t.Any) -> dict[str, t.Any]:
    command = known.pop("command", "vllm serve /m --api-key geheim-123")
    return {
        "Names": [f"/{name}"],
        "Id": name.ljust(64, "0"),
        "Image": "vllm/vllm-openai:v0.33.0",
        "Command": command,
        "Created": created,
        "State": "running",
        "Labels": {},
        **known,
    }


def search(names: t.Sequence[str], *entries: dict[str, t.Any]) -> list[dict[str, t.Any]]:
    return _engine_search.search(t.cast(t.Any, Docker(*entries)), names)


def test_the_newest_stands_first_and_keys_are_hidden() -> None:
    two = "bash -c 'HF_TOKEN=abc-987 vllm serve /m --api-key geheim-123 geheim-456 --port 8000'"
    found = search([], entry("old", 1, State="exited", command=two), entry("new", 2), entry("db", 3, Image="postgres:16", Command="postgres"))
    assert [(container["name"], container["running"]) for container in found] == [("new", True), ("old", False)]
    assert found[0]["command"] == "vllm serve /m --api-key ***"
    assert found[1]["command"] == "bash -c 'HF_TOKEN=*** vllm serve /m --api-key *** *** --port 8000'"


def test_a_named_container_is_found_whatever_it_looks_like() -> None:
    db = entry("db", 3, Image="postgres:16", Command="postgres", Names=["/other/alias", "/db"])
    assert [(container["name"], container["by"]) for container in search(["db"], db)] == [("db", "name")]
    assert [container["by"] for container in search([db["Id"][:12]], db)] == ["name"]
    assert search(["db0"], db) == []
