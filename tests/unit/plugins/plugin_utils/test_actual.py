# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What runs against what is wanted: reboots, ranks that came back alone, and how long the last start took."""

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.sparkstack.inference.plugins.module_utils._words import utc
from ansible_collections.sparkstack.inference.plugins.plugin_utils import _actual, _container

SHOWN = [{"env": {"A": str(rank)}} for rank in range(3)]
TEN = 1795946400.0  # 2026-11-29T10:00:00Z


def stamp(seconds: float) -> str:
    return str(utc(TEN + seconds)).replace("Z", ".25Z")


def rank(number: int, **changes: t.Any) -> dict[str, t.Any]:
    """A running rank that was made at 10:00:00 and started at once, the head 2 s after the others."""
    began = 2.0 if number == 0 else 0.0
    return {
        "name": f"tiny-rank{number}", "deployment": "tiny", "rank": number, "launch_id": "L1", "running": True, "exit_code": 0, "oom_killed": False,
        "created_at": stamp(began), "started_at": stamp(began), "finished_at": "0001-01-01T00:00:00Z", "spec": SHOWN[number],
        "spec_hash": _container.spec_hash(SHOWN[number]), **changes,
    }  # fmt: skip


def info(*containers: dict[str, t.Any], **changes: t.Any) -> dict[str, t.Any]:
    return {"containers": list(containers), "now": TEN + 3600, "booted_at": TEN - 86400, "docker_started_at": TEN - 86000, **changes}


def reasons(*infos: dict[str, t.Any], answered: bool = False) -> list[str]:
    ranks = [(f"spark{number + 1}", found, f"tiny-rank{number}", SHOWN[number]) for number, found in enumerate(infos)]
    return _actual.compare(ranks, "tiny", answered)[0]


ENDED = {"running": False, "exit_code": 255}


@pytest.mark.parametrize(
    ("head", "worker", "wanted"),
    [
        (info(rank(0)), info(rank(1)), []),
        (
            info(rank(0)),
            info(rank(1, **ENDED, finished_at=stamp(1800)), booted_at=TEN + 1900),
            ["rank 1 on spark2 has ended (lost when its node was rebooted at 2026-11-29T10:31:40Z)"],
        ),
        (
            info(rank(0, **ENDED, finished_at=stamp(1805)), docker_started_at=TEN + 1800),
            info(rank(1)),
            ["rank 0 on spark1 has ended (lost when Docker was restarted at 2026-11-29T10:30:00Z)"],
        ),
        # The daemon was restarted an hour before the rank crashed.
        (info(rank(0)), info(rank(1, **ENDED, finished_at=stamp(1800)), docker_started_at=TEN - 1800), ["rank 1 on spark2 has ended (exit code 255)"]),
        (
            info(rank(0)),
            info(rank(1, **ENDED, started_at="0001-01-01T00:00:00Z")),
            ["rank 1 on spark2 has ended (it was made and never started)"],
        ),
        (info(rank(0)), info(rank(1, started_at=stamp(900))), ["rank 1 on spark2 was started again alone"]),
        (info(rank(0, started_at=stamp(900))), info(rank(1)), ["rank 0 on spark1 was started again alone"]),
        # Both were: the units on the nodes have brought the same launch back, workers first.
        (info(rank(0, started_at=stamp(902))), info(rank(1, started_at=stamp(900))), []),
        (
            info(rank(0, started_at=stamp(900))),
            info(rank(1, started_at=stamp(950))),
            ["rank 1 on spark2 was started after the head, so alone"],
        ),
        # The clocks differ by five minutes, the ages do not.
        (info(rank(0)), info(rank(1, created_at=stamp(300), started_at=stamp(300)), now=TEN + 3900), []),
        (info(rank(0)), info(), ["rank 1 is missing on spark2"]),
        (info(rank(0)), info(rank(1, launch_id="L0")), ["the ranks are of different launches"]),
        # What an older look does not tell is not held against a rank.
        (info(rank(0), now=None), info(rank(1, created_at=None), now=None, booted_at=None, docker_started_at=None), []),
    ],
)
def test_why_all_ranks_must_be_started_again(head: dict[str, t.Any], worker: dict[str, t.Any], wanted: list[str]) -> None:
    assert reasons(head, worker) == wanted


def test_a_slow_look_at_the_head_restarts_nothing_that_serves() -> None:
    # The head was started 2 s after the worker, but looked at 8 s later.
    late = [info(rank(0), now=TEN + 3608), info(rank(1))]
    assert reasons(*late, answered=True) == []
    assert reasons(*late) == ["rank 1 on spark2 was started after the head, so alone"]
    alone = [info(rank(0, started_at=stamp(900))), info(rank(1, started_at=stamp(950)))]
    assert reasons(*alone, answered=True) == ["rank 1 on spark2 was started after the head, so alone"]


def test_what_others_hold() -> None:
    memory = {
        "processes": [
            {"pid": 1, "name": "vllm", "used_bytes": 60, "container": {"name": "tiny-rank0"}},
            {"pid": 2, "name": "vllm", "used_bytes": 7, "container": {"name": "other", "image": "i"}},
            {"pid": 3, "name": "Xorg", "used_bytes": None, "container": None},
            # A proof of a run that was cut off: the next one removes it.
            {"pid": 4, "name": "python3", "used_bytes": 5, "container": {"name": "tiny-collective0"}},
        ]
    }
    other = {"kind": "container", "name": "other", "image": "i", "pid": 2, "held": 7}
    assert _actual.others(info(rank(0)), memory, "tiny") == [other, {"kind": "process", "name": "Xorg", "image": None, "pid": 3, "held": 0}]
    assert [holder["held"] for holder in _actual.others(info(rank(0)), memory, "another")] == [60, 7, 0, 5]


@pytest.mark.parametrize(("unified", "held"), [(True, [12, 5]), (False, [9])], ids=["one memory", "the GPU's own"])
def test_what_others_hold_of_the_memory_that_is_asked_for(unified: bool, held: list[int]) -> None:
    memory = {
        "unified": unified,
        "gpus": [{}],
        "processes": [],
        "holders": [
            {"kind": "container", "name": "tiny-rank0", "image": "i", "pid": None, "bytes": 60, "gpu_bytes": 50},
            {"kind": "container", "name": "old", "image": "i", "pid": None, "bytes": 12, "gpu_bytes": 9},
            {"kind": "process", "name": "java", "image": None, "pid": 7, "bytes": 5, "gpu_bytes": 0},
        ],
    }
    assert [holder["held"] for holder in _actual.others(info(rank(0)), memory, "tiny")] == held


def test_how_long_the_last_start_took() -> None:
    good = {"answered": True, "seconds_to_ready": 95.5}
    failed = {"answered": False, "seconds_to_ready": None}
    assert _actual.seconds_to_ready([info(ledger={}), info(ledger={"tiny": {"good": good, "last": failed}})], "tiny") == 95.5
    assert _actual.seconds_to_ready([info(ledger={"tiny": {"good": None, "last": failed}}), info()], "tiny") is None
