# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Healthy starts, some slowed on purpose, with limits of silence that are far shorter than the usual ones."""

from __future__ import annotations

import typing as t

import play

from . import makers, rows, run
from .engines import CONTAINERS, HEAD, NODES, SGLANG, VLLM, WORKER, Engine


def slow_cpu(node: str, share: str) -> dict[str, t.Any]:
    """The rank's container gets this share of a core from its beginning on."""
    return {"at": ((node, r"\w+"),), "make": lambda: play.node(node, f"docker update --cpus {share} {CONTAINERS[node]}")}


def start(name: str, **options: t.Any) -> rows.Row:
    """A row that is to end ready."""
    return rows.Row(name, rows.Wanted("ready"), watch=rows.QUICK, **options)


STARTS: tuple[tuple[Engine, rows.Row], ...] = (
    (VLLM, start("healthy start")),
    (SGLANG, start("healthy start")),
    (VLLM, start("worker with half a core", **slow_cpu(WORKER, "0.5"))),
    (SGLANG, start("worker with a tenth of a core", **slow_cpu(WORKER, "0.1"))),
    (VLLM, start("disk of 1 MB/s", changes=rows.large, before=(makers.slow_disks("1M"),))),
    (SGLANG, start("disk of 0.5 MB/s", changes=rows.large, before=(makers.slow_disks("500K"),))),
    (VLLM, start("head with half a core", **slow_cpu(HEAD, "0.5"))),
    (SGLANG, start("head with a tenth of a core", **slow_cpu(HEAD, "0.1"))),
    (VLLM, start("clock of the worker 5 minutes off", before=(makers.wrong_clock(-300),))),
    (SGLANG, start("ten times slower", changes=lambda _engine: dict.fromkeys(NODES, {"environment": {"REHEARSAL_PACE": "10"}}))),
)


def starts(lock: str | None) -> list[run.Outcome]:
    """All of them."""
    return [outcome for engine, row in STARTS for outcome in run.matrix(engine, [row], lock)]
