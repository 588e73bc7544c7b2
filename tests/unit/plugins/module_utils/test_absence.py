# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a rank that has no container, or never ran, is blamed for, over the logs of the other ranks."""

from __future__ import annotations

import pathlib
import typing as t

import pytest

from ansible_collections.sparkstack.inference.plugins.module_utils import _absence as subject
from ansible_collections.sparkstack.inference.plugins.module_utils._diagnosis import judge
from ansible_collections.sparkstack.inference.plugins.module_utils._timeline import Timeline

LOGS = pathlib.Path(__file__).parents[3] / "fixtures" / "logs"
HEADS = sorted(LOGS.glob("*/*/head.log"))
RAY = "\x1b[36m(RayWorkerProc pid=17722, ip=192.168.200.12)\x1b[0m "
RAY_OOM = (
    f"{RAY}(Worker pid=17722) ERROR 11-29 22:58:17 [multiproc_executor.py:1063] WorkerProc hit an exception.\n"
    f"{RAY}(Worker pid=17722) ERROR 11-29 22:58:17 [multiproc_executor.py:1063] Traceback (most recent call last):\n"
    f'{RAY}(Worker pid=17722) ERROR 11-29 22:58:17 [multiproc_executor.py:1063]   File "a.py", line 1, in b\n'
    f"{RAY}(Worker pid=17722) ERROR 11-29 22:58:17 [multiproc_executor.py:1063] torch.OutOfMemoryError: CUDA out of memory.\n"
)


def rank(node: str, number: int, log: bytes | str, **known: t.Any) -> dict[str, t.Any]:
    timeline = Timeline("auto", 2026)
    timeline.feed(log)
    return {"node": node, "rank": number, "started": True, "running": True, "quiet_seconds": 5.0, "reading": timeline.reading(), **known}


def gone(container: str | None = None, number: int = 1) -> dict[str, t.Any]:
    scene = {} if container is None else {"scene": {"absent": container}}
    return {"node": f"spark{number + 1}", "rank": number, "started": False, "running": False, **scene}


@pytest.mark.parametrize("running", [True, False])
@pytest.mark.parametrize("path", HEADS, ids=lambda path: f"{path.parents[1].name}-{path.parent.name}")
def test_a_rank_that_is_not_there_is_blamed_for_that_alone(path: pathlib.Path, running: bool) -> None:
    verdict = judge([rank("spark1", 0, path.read_bytes(), running=running, exit_code=None if running else 1), gone()])
    # Over Ray the head's log tells of the other's process: that one did run.
    told = ("worker_died",) if path.parent.name == "ray-worker-killed" else ()
    assert verdict["culprit"] != "spark2" or verdict["cause"] in ("rendezvous_timeout", "peer_exited", *told)


@pytest.mark.parametrize("others", [[], [gone()], [gone(), gone(number=2)]])
@pytest.mark.parametrize("path", ["sglang-gpu/squatter-head-fails-first", "vllm-cpu/kv-cache-too-big"])
def test_what_the_head_tells_of_somebody_names_nobody(path: str, others: list[dict[str, t.Any]]) -> None:
    verdict = judge([rank("spark1", 0, (LOGS / path / "head.log").read_bytes(), running=False, exit_code=1), *others])
    assert (verdict["verdict"], verdict["culprit"]) == ("failed", None)
    assert verdict["cause"] in ("memory_unbalanced", "oom")
    assert verdict["summary"].startswith("A rank ") and ", as spark1 (rank 0) tells: RuntimeError: " in verdict["summary"]
    assert verdict["remedy"].startswith(("Free GPU memory on every node", "Lower", "Free memory on every node"))


@pytest.mark.parametrize("path", ["sglang-gpu/no-kv-room-both", "sglang-gpu/rendezvous-port-taken", "sglang-gpu/model-code-rejects-config"])
def test_what_the_head_has_met_itself_stays_with_it(path: str) -> None:
    assert judge([rank("spark1", 0, (LOGS / path / "head.log").read_bytes(), running=False, exit_code=1), gone()])["culprit"] == "spark1"


def test_what_the_log_names_did_run() -> None:
    verdict = judge([rank("spark1", 0, RAY_OOM), gone()])
    assert (verdict["cause"], verdict["culprit"]) == ("oom", "spark2")
    assert verdict["summary"] == "spark2 (rank 1) ran out of memory, as spark1 (rank 0) tells: torch.OutOfMemoryError: CUDA out of memory."


@pytest.mark.parametrize(
    "container, words",
    [
        ("hh", "There is no container hh on spark2"),
        ("", "There is no container of an engine on spark2"),
        (None, "spark2 (rank 1) was given as never started"),
    ],
)
def test_a_head_that_serves_without_it(container: str | None, words: str) -> None:
    verdict = judge([rank("spark1", 0, (LOGS / "vllm-cpu" / "ready" / "head.log").read_bytes()), gone(container)])
    assert (verdict["verdict"], verdict["cause"], verdict["culprit"]) == ("failed", "peer_exited", "spark2")
    assert verdict["summary"] == f"{words}; the head, which says that it is ready, needs rank 1."
    assert verdict["remedy"] == subject.REMEDY.format(rank=1)


def test_a_peer_that_left() -> None:
    verdict = judge([rank("spark1", 0, (LOGS / "vllm-cpu" / "worker-killed-after-ready" / "head.log").read_bytes(), running=False, exit_code=0), gone("ww")])
    assert (verdict["cause"], verdict["culprit"]) == ("peer_exited", "spark2")
    assert verdict["summary"].startswith("There is no container ww on spark2, and spark1 (rank 0) tells that its peer left: RuntimeError: ")


def test_a_head_that_is_not_there() -> None:
    log = (LOGS / "vllm-cpu" / "worker-only" / "worker.log").read_bytes()
    verdict = judge([dict(gone(number=0), node="spark1"), rank("spark2", 1, log, running=False, exit_code=1)])
    assert (verdict["cause"], verdict["culprit"]) == ("rendezvous_timeout", "spark1")
    assert subject.blamed("net_unreachable", gone(), {"kind": "peer", "values": {}, "message": "x"}, rank("spark1", 0, ""))[:2] == (
        "net_unreachable",
        gone(),
    )
