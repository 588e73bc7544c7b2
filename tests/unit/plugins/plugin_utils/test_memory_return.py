# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What came back of the ranks' memory: on GPUs with memory of their own, on shared memory, with others that take or keep it."""

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.sparkstack.inference.plugins.plugin_utils._memory_return import before_stop, compare

GIB = 1 << 30
RANK = "qwen-rank0"


def holder(name: str, gigabytes: float, kind: str = "container", gpu: float = 0, pid: int | None = None) -> dict[str, t.Any]:
    image = "sglang:1" if kind == "container" else None
    return {"kind": kind, "name": name, "image": image, "pid": pid, "bytes": int(gigabytes * GIB), "gpu_bytes": int(gpu * GIB)}


def memory(available: float, *holders: dict[str, t.Any], total: float = 119.7, unified: bool = True, gpus: bool = True) -> dict[str, t.Any]:
    return {
        "available_bytes": int(available * GIB),
        "total_bytes": int(total * GIB),
        "holders": list(holders),
        "unified": unified,
        "gpus": [{}] if gpus else [],
    }


PYTHON = holder("python3", 3, "process", pid=77)


@pytest.mark.parametrize(
    "before, after, done, sentence",
    [
        (memory(10, holder(RANK, 100)), memory(110), True, "n: 100.0 GiB came back, 110.0 of 119.7 GiB available"),
        # A tenth may be in use otherwise: page tables, a cache, somebody's shell.
        (memory(10, holder(RANK, 100)), memory(101), True, "n: 91.0 GiB came back, 101.0 of 119.7 GiB available"),
        (memory(10), memory(10.1), True, "n: the ranks held nothing, 10.1 of 119.7 GiB available"),
        (
            memory(10, {**holder("4f1c2d0e5b8a", 9), "image": None}),
            memory(19),
            True,
            "n: Docker could not say what the ranks held, 19.0 of 119.7 GiB available",
        ),
        (memory(10, holder(RANK, 0.4)), memory(9.9), True, "n: 0 MiB came back, 9.9 of 119.7 GiB available"),
        # The GPU's own memory is what counts there.
        (memory(4, holder(RANK, 60, gpu=40), unified=False), memory(44, unified=False), True, "n: 40.0 GiB came back, 44.0 of 119.7 GiB available"),
        (memory(4, holder(RANK, 3), gpus=False, unified=False), memory(7, gpus=False), True, "n: 3.0 GiB came back, 7.0 of 119.7 GiB available"),
        # Somebody else was quicker: it did come back.
        (
            memory(10, holder(RANK, 100)),
            memory(40, holder("eager", 70)),
            True,
            "n: 100.0 GiB came back, of which container eager (sglang:1) has taken 70.0 GiB meanwhile, 40.0 of 119.7 GiB available",
        ),
        (
            memory(10, holder(RANK, 100)),
            memory(15, holder(RANK, 95)),
            False,
            "n: of the 100.0 GiB that the ranks held 5.0 GiB came back within 60 s, 15.0 of 119.7 GiB available. "
            "Container qwen-rank0 (sglang:1) holds 95.0 GiB: stop it there.",
        ),
        (
            memory(10, holder(RANK, 100), PYTHON),
            memory(30, {**PYTHON, "bytes": 5 * GIB}),
            False,
            "n: of the 100.0 GiB that the ranks held 20.0 GiB came back within 60 s, 30.0 of 119.7 GiB available. "
            "Process 77 (python3) holds 5.0 GiB: stop it there.",
        ),
        (
            memory(10, holder(RANK, 100), PYTHON),
            memory(30, PYTHON),
            False,
            "n: of the 100.0 GiB that the ranks held 20.0 GiB came back within 60 s, 30.0 of 119.7 GiB available. "
            "No process is seen to hold it: if it stays so, the driver does, and a reboot of n gives it back.",
        ),
    ],
)
def test_what_came_back(before: dict[str, t.Any], after: dict[str, t.Any], done: bool, sentence: str) -> None:
    found = compare(before, after, [RANK])
    assert (found.done, found.sentence("n", 60)) == (done, sentence)


def test_another_deployments_ranks_are_nobody_to_wait_for() -> None:
    other = holder("other-rank0", 50)
    found = compare(memory(10, holder(RANK, 20), other), memory(30, other), [RANK])
    assert found.done and found.held_bytes == 20 * GIB and found.holder is None


# A guard has stopped the rank before anybody could look.

TOLD = {"name": RANK, "available": 2 * GIB, "curve": [[1.0, 110 * GIB], [2.0, 112 * GIB], [40.0, 2 * GIB]]}


@pytest.mark.parametrize(
    "earlier, after, done, sentence",
    [
        (memory(112), memory(111), True, "n: 109.0 GiB came back, 111.0 of 119.7 GiB available"),
        # A rank of an earlier launch was there when the plan was made, and had to go for this one.
        (memory(30, holder(RANK, 82)), memory(111), True, "n: 109.0 GiB came back, 111.0 of 119.7 GiB available"),
        (
            memory(112, PYTHON),
            memory(60, PYTHON),
            False,
            "n: of the 110.0 GiB that the ranks held 58.0 GiB came back within 60 s, 60.0 of 119.7 GiB available. "
            "No process is seen to hold it: if it stays so, the driver does, and a reboot of n gives it back.",
        ),
        (
            memory(112, PYTHON),
            memory(2, PYTHON, holder(RANK, 109)),
            False,
            "n: of the 110.0 GiB that the ranks held 0 MiB came back within 60 s, 2.0 of 119.7 GiB available. "
            "Container qwen-rank0 (sglang:1) holds 109.0 GiB: stop it there.",
        ),
        (
            memory(112),
            memory(60, holder("eager", 52)),
            True,
            "n: 110.0 GiB came back, of which container eager (sglang:1) has taken 52.0 GiB meanwhile, 60.0 of 119.7 GiB available",
        ),
        # Of the GPU's own memory the guard says nothing, but it must be as free as before.
        (
            memory(140, unified=False),
            memory(140, unified=False),
            True,
            "n: as much is available as before the ranks were started, 140.0 of 119.7 GiB available",
        ),
        (
            memory(140, unified=False),
            memory(100, unified=False),
            False,
            "n: 40.0 GiB that were available before are not after 60 s, 100.0 of 119.7 GiB available. "
            "No process is seen to hold it: if it stays so, the driver does, and a reboot of n gives it back.",
        ),
    ],
)
def test_what_came_back_of_a_rank_that_a_guard_has_stopped(earlier: dict[str, t.Any], after: dict[str, t.Any], done: bool, sentence: str) -> None:
    found = compare(before_stop(earlier, TOLD, [RANK]), after, [RANK])
    assert (found.done, found.sentence("n", 60)) == (done, sentence)


def test_a_guard_that_saw_no_curve_tells_of_nothing_held() -> None:
    found = before_stop(memory(50), {**TOLD, "curve": []}, [RANK])
    assert (found["available_bytes"], found["holders"][0]["bytes"]) == (50 * GIB, 0)
