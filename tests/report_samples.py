# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What reports are made of in the tests: verdicts over real logs, a record with all that a run can know, and a rank that the memory guard has stopped."""

from __future__ import annotations

import copy
import pathlib
import typing as t

import real_logs
import real_memory

from ansible_collections.sparkstack.inference.plugins.module_utils._diagnosis import judge
from ansible_collections.sparkstack.inference.plugins.plugin_utils import _history

GIB = 1 << 30


def verdict_of(folder: pathlib.Path) -> dict[str, t.Any]:
    """The verdict over the logs in a folder."""
    return judge(real_logs.records(folder, real_logs.truth_of(folder)))


def case(name: str) -> dict[str, t.Any]:
    """The verdict over a case: C(vllm-cpu/ready)."""
    return verdict_of(real_logs.LOGS / name)


PLAN: dict[str, t.Any] = {
    "launch_id": "20261130T080012Z-1a2b3c", "deployment": "qwen", "action": "restart", "reasons": ["rank 1 is missing on spark2"],
    "differences": ["context-length: 65536 -> 131072"], "image": "sglang:1", "image_content": "sha256:ab",
    "model_path": "/srv/models/qwen", "model_digest": "d",
    "recipe": {"name": "qwen", "engine": "sglang", "model": {"id": "Qwen/Qwen3"}, "engines": {"sglang": {"arguments": {"mem-fraction-static": 0.6}}}},
    "ranks": [{"node": "spark1", "spec_hash": "h0"}, {"node": "spark2", "spec_hash": "h1"}], "memory": real_memory.plan(real_memory.RUNS / "qwen35-moe"),
    "planned": {},
}  # fmt: skip
BESIDE: dict[str, t.Any] = {
    "transfers": {"spark1": [{"what": "model, from the hub", "bytes_sent": 117 * GIB, "seconds": 2100.0}, {}, {"bytes_sent": 0, "seconds": 1.2}],
                  "spark2": [{}, {"what": "model", "bytes_sent": 117 * GIB, "seconds": 61.2, "throughput_mb_s": 2053.0},
                             {"what": "image", "bytes_sent": 18 * GIB, "seconds": 33.0, "throughput_mb_s": 585.7}]},
    "preflight": {
        "result": "slow", "nodes": ["spark1", "spark2"],
        "checks": [
            {"item": "path_mtu", "result": "slow", "node": "spark2", "message": "spark2: its MTU is 1500.", "remedy": "Set it to 9000."},
            {"item": "bandwidth", "result": "ready", "message": "23.1 GB/s", "remedy": ""},
        ],
    },
    "collective": {
        "verdict": "ready", "message": "All 2 ranks reduce together.", "remedy": "",
        "group": {"bus_gb_s": 21.9, "transport": "rdma", "devices": ["rocep1s0f0"], "backend": "nccl", "correct": True},
    },
}  # fmt: skip


def served() -> dict[str, t.Any]:
    """The verdict over a real launch, with the readings of a watch beside it."""
    folder = real_memory.RUNS / "qwen35-moe"
    ranks = [
        {"node": f"spark{rank + 1}", "rank": rank, "started": True, "running": True, "quiet_seconds": 3, "reading": real_logs.read(folder / name)}
        for rank, name in enumerate(("head.log", "worker.log"))
    ]
    verdict = judge(ranks)
    for node in verdict["nodes"].values():
        first = node["timeline"][0]["time"]
        node["memory"] = {"total": 140 * GIB, "curve": [[first + at / 10, (139 - 80 * min(1.0, max(0, at - 150) / 150)) * GIB] for at in range(400)]}
    return verdict


VERDICT = served()
RECORD: dict[str, t.Any] = _history.record(
    PLAN, VERDICT, {"answered": True, "seconds": 1.5, "tokens": 16}, (1796029200.0, 1796029612.0), {"user": "alice", "host": "ctl1", "job": None}, beside=BESIDE
)


def guarded() -> dict[str, t.Any]:
    """The same launch, had the guard stopped rank 1 while it loaded; its log tries to break out of whatever shows it."""
    verdict = copy.deepcopy(VERDICT)
    head, worker = verdict["nodes"]["spark1"], verdict["nodes"]["spark2"]
    for node, phases, seconds in ((head, 5, 3.0), (worker, 4, 9.0)):
        node["timeline"] = node["timeline"][:phases]
        node["timeline"][-1]["seconds"] = None
        node.update(state="exited", exit_code=1, phase=node["timeline"][-1]["phase"], seconds_in_phase=seconds, quiet_seconds=None, last_line=HOSTILE)
    first = worker["timeline"][0]["time"]
    curve = [[first + at / 2, max(1.9, 130.5 * (1 - max(0, at - 20) / 44)) * GIB] for at in range(66)]
    worker.update(exit_code=137, guarded=True, cause="oom", memory=None)
    worker["guard"] = {
        "why": "floor",
        "at": first + 33,
        "floor": 2.6 * GIB,
        "total": 139.8 * GIB,
        "available": 1.9 * GIB,
        "rate": 9e9,
        "limit": "",
        "curve": curve,
    }
    head.update(cause="peer_exited")
    verdict.update(
        verdict="failed", cause="oom", culprit="spark2", phase="load_weights", evidence=[HOSTILE, *(f"line {at} of a long traceback" for at in range(60))],
        summary="spark2 (rank 1) was stopped by the memory guard in phase load_weights: 1.9 GiB of 139.8 GiB were left, falling by 8.4 GiB/s.",
        remedy="Let the engine take less on spark2 (memory fraction, context length, concurrency), or free what else holds memory there.",
    )  # fmt: skip
    return verdict


HOSTILE = "</pre></svg><script>document.title='hit'</script><img src=x onerror=\"document.title='hit'\"> {{ 7 * 7 }} \u202ereversed " + "x" * 300
