# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Where the controller sees that nothing is to be done, no node is asked."""

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.sparkstack.inference.plugins.action import inference_autostart as subject
from ansible_collections.sparkstack.inference.plugins.module_utils import _autostart_files as files
from ansible_collections.sparkstack.inference.plugins.module_utils._unit_files import digest
from ansible_collections.sparkstack.inference.plugins.modules import inference_autostart as module

GIVEN: dict[str, t.Any] = {
    "deployment": "qwen",
    "rank": 1,
    "nodes": ["spark1", "spark2"],
    "addresses": ["192.168.200.11", "192.168.200.12"],
    "container": "qwen-rank1",
    "engine": "vllm",
    "model": "tiny",
    "api": "http://127.0.0.1:8000",
    "port": 25050,
    "ready_timeout": 600,
    "stop_timeout": 10,
    "stall_timeouts": {},
    "docker_socket": "/var/run/docker.sock",
}


def unit(**changes: t.Any) -> dict[str, t.Any]:
    """What a node tells of a unit that is as wanted."""
    found = {
        "settings": files.plain({**GIVEN, "token": "t0ken"}),
        "program": digest(subject.build(subject.PROGRAM)),
        "unit": digest(files.unit_text().encode()),
        "enabled": True,
        "runs": True,
    }
    return {**found, **changes}


def test_a_unit_that_is_as_wanted_satisfies() -> None:
    assert subject.satisfied({**GIVEN, "seen": [{}, {"qwen": unit()}]})


@pytest.mark.parametrize(
    "seen",
    [
        [{}, {}],
        [{"qwen": unit()}, {}],
        [],
        [{}, {"qwen": unit(enabled=False)}],
        [{}, {"qwen": unit(runs=False)}],
        [{}, {"qwen": unit(program=None)}],
        [{}, {"qwen": unit(unit="0" * 64)}],
        [{}, {"qwen": unit(settings={**unit()["settings"], "port": 25051})}],
        [{}, {"qwen": unit(settings={})}],
    ],
    ids=["none", "only the other node's", "nobody looked", "disabled", "dead", "no program", "old unit", "another port", "damaged"],
)
def test_any_other_does_not(seen: list[dict[str, t.Any]]) -> None:
    assert not subject.satisfied({**GIVEN, "seen": seen})


def having(*hashes: str | None) -> list[dict[str, t.Any]]:
    return [{"qwen": {"settings": {"token_hash": value}}} if value else {} for value in hashes]


@pytest.mark.parametrize(
    "seen, same", [(having("a", "a"), True), (having("a", "b"), False), (having("a", None), False), (having(None, None), False), ([], False)]
)
def test_the_token_stays_where_all_nodes_have_the_same(seen: list[dict[str, t.Any]], same: bool) -> None:
    assert subject.agreed(seen, "qwen") is same


def test_what_is_compared_is_what_the_module_writes() -> None:
    assert set(subject.SETTINGS) == set(module.SETTINGS)
