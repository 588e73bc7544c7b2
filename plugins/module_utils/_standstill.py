# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""Why ranks that all run do not move: what tells one standstill from another. Pure.

Each rule of C(RULES) looks at all ranks and gives a finding or None; the first that gives one decides. A finding that shows
itself (a cable without carrier, a stopped process) needs no long silence to be believed: it brings a patience of its own.
Any other one counts when the group has been silent for longer than its phase may take.
"""

from __future__ import annotations

import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils import _standstill_network as network
from ansible_collections.sparkstack.inference.plugins.module_utils._engines._types import PHASES
from ansible_collections.sparkstack.inference.plugins.module_utils._finding import DIVERGED, EVIDENT, Finding, Rule, last_lines
from ansible_collections.sparkstack.inference.plugins.module_utils._records import (
    Record,
    came,
    closeup,
    done,
    killed_by_kernel,
    name,
    phase,
    place,
    reading,
    scene,
    up,
)
from ansible_collections.sparkstack.inference.plugins.module_utils._words import GIB, size

_APART = 2.0
"""Seconds by which one time must be later than another node's to be believed so: clocks differ."""


def explain(ranks: t.Sequence[Record], rules: t.Optional[t.Sequence[Rule]] = None) -> t.Optional[Finding]:
    """The first finding.

    :param ranks: all ranks, by rank. :param rules: some of the rules only.
    """
    running = up(ranks)
    return next((found for found in (rule(ranks, running) for rule in (RULES if rules is None else rules)) if found), None)


def _absent(ranks: t.Sequence[Record], up: t.Sequence[Record]) -> t.Optional[Finding]:
    absent = [r for r in ranks if not r.get("started", True)]
    if not absent or not up:
        return None
    where = ", ".join(str(r["node"]) for r in absent)
    remedy = f"Start all ranks again, and look first why there is no container on {where}."
    return Finding(None, absent[0] if len(absent) == 1 else None, last_lines(up), f"there is no container on {where}", remedy, EVIDENT)


def _stopped(ranks: t.Sequence[Record], up: t.Sequence[Record]) -> t.Optional[Finding]:
    for record in up:
        if record.get("paused"):
            why = f"the container of {name(record)} is paused"
            return Finding(
                None,
                record,
                [f"{record['node']}: the container is paused."],
                why,
                "Unpause it on {node} (docker unpause), or start all ranks again.",
                EVIDENT,
                True,
            )
        halted = [p for p in closeup(record, "processes") if p.get("state") == "T"]
        if halted:
            lines = ["{}: process {} {} is stopped (state T).".format(record["node"], p["pid"], p["name"]) for p in halted]
            why = f"processes of {name(record)} are stopped"
            return Finding(None, record, lines, why, "Let them go on on {node} (kill -CONT), or start all ranks again.", EVIDENT, True)
    return None


def _killed(ranks: t.Sequence[Record], up: t.Sequence[Record]) -> t.Optional[Finding]:
    for record in up:
        told, count = killed_by_kernel(record), scene(record, "oom_kills")
        if told or count:
            lines = [entry["text"] for entry in told] or [f"{record['node']}: the kernel has killed {count} of the container's processes for lack of memory."]
            # A compiler that was killed is started again by whoever called it: a rank that works goes on.
            patience = None if record.get("busy") else EVIDENT
            return Finding("oom", record, lines, f"{name(record)} has lost a process to the kernel's OOM killer", "", patience)
    return None


def _claims(ranks: t.Sequence[Record], up: t.Sequence[Record]) -> t.Optional[Finding]:
    """Ranks that were started for another group."""
    if min((place(r) for r in up), default=99) > PHASES.index("init_dist"):
        return None
    for claim, word in (("rank", "rank"), ("ranks", "number of ranks"), ("tensor_parallel", "tensor parallel size")):
        # With several GPUs a node, vLLM's ranks are those of processes, not of nodes.
        told = {r["rank"]: reading(r).get("claims", {}).get(claim) for r in up if not reading(r).get("claims", {}).get("local")}
        odd = [r for r in up if told.get(r["rank"]) is not None and told[r["rank"]] != _expected(claim, r, told)]
        if odd:
            note = "{} was started with {} {}".format(name(odd[0]), word, told[odd[0]["rank"]])
            return Finding("bad_flag", odd[0], [note, *last_lines(up)], note, "", EVIDENT)
    addresses = {r["rank"]: str(reading(r).get("claims", {}).get("rendezvous") or "") for r in up}
    odd = [r for r in up if addresses[r["rank"]] and addresses.get(0) and addresses[r["rank"]] != addresses[0]]
    if odd:
        note = "{} looks for the rendezvous at {}, the head at {}".format(name(odd[0]), addresses[odd[0]["rank"]], addresses[0])
        return Finding("bad_flag", odd[0], [note, *last_lines(up)], note)
    return None


def _expected(claim: str, record: Record, told: t.Mapping[int, t.Optional[str]]) -> t.Optional[str]:
    return str(record["rank"]) if claim == "rank" else told.get(0) or told[record["rank"]]


def _different_graphs(ranks: t.Sequence[Record], up: t.Sequence[Record]) -> t.Optional[Finding]:
    """Ranks that wait for each other in different captures: one left a step out for lack of memory."""
    if {phase(r) for r in up} != {"graph_capture"} or len(up) < 2:
        return None
    told = [(r, values_of.get("left_out")) for r in up for values_of in [p["values"] for p in reading(r).get("phases") or []]]
    short = [(r, line) for r, line in told if line]
    if len(short) != 1:
        return None
    record, line = short[0]
    why = f"{name(record)} left out a graph for lack of memory and captures another one than the rest: they wait for each other"
    return Finding("memory_unbalanced", record, [line], why, "", DIVERGED)


def _back_alone(ranks: t.Sequence[Record], up: t.Sequence[Record]) -> t.Optional[Finding]:
    """A rank that was started again after the head had become ready: it waits at the rendezvous, and the head does not know of it.

    vLLM's head says so to nobody: /health stays 200 until the next request ends it.
    """
    head = next((r for r in up if r["rank"] == 0 and phase(r) == "ready"), None)
    since = came(head, "ready") if head else None
    for record in up:
        # A Ray node's log has no line of the engine.
        start = came(record) if reading(record).get("engine") else None
        if phase(record) in ("parse_args", "init_dist") and since is not None and start is not None and start > since + _APART:
            remedy = "Start all ranks again: the group does not take {node} back."
            return Finding(None, record, last_lines([record]), f"{name(record)} was started again alone, and waits for the others", remedy, EVIDENT)
    return None


def _lagging(ranks: t.Sequence[Record], up: t.Sequence[Record]) -> t.Optional[Finding]:
    """Ranks in different phases."""
    up = [r for r in up if reading(r)]  # of one whose log nobody has, the phase is unknown
    order = {id(r): place(r) for r in up}
    if not order:
        return None
    low, high = min(order.values()), max(order.values())
    behind, ahead = [r for r in up if order[id(r)] == low], [r for r in up if order[id(r)] == high]
    if low == PHASES.index("init_dist") and high >= PHASES.index("kv_cache") and len(ahead) == 1:
        remedy = "Remove the container of {node} and start all ranks again."
        return Finding(None, ahead[0], last_lines(up), f"{name(ahead[0])} is left from an earlier launch", remedy, EVIDENT)
    if low < high and low <= PHASES.index("load_weights") and len(behind) == 1:
        return Finding(None, behind[0], _held(up) + last_lines(up), f"{name(behind[0])} is behind{_little(behind[0], up)}")
    return None


def _memory(record: Record) -> t.Optional[float]:
    return (record.get("activity") or {}).get("memory_bytes")


def _held(up: t.Sequence[Record]) -> t.List[str]:
    return ["{}: the rank holds {}.".format(r["node"], size(t.cast(float, _memory(r)))) for r in up if _memory(r) is not None]


def _little(record: Record, up: t.Sequence[Record]) -> str:
    """Where a rank holds far less memory than the others: 416 MiB where 60 GB should be."""
    mine, theirs = _memory(record), [m for m in (_memory(r) for r in up if r is not record) if m is not None]
    if mine is None or not theirs or min(theirs) < 4 * mine or min(theirs) < 2 * GIB:
        return ""
    return ", and holds {} where the others hold {}".format(size(mine), size(min(theirs)))


def _little_memory(ranks: t.Sequence[Record], up: t.Sequence[Record]) -> t.Optional[Finding]:
    if any(place(r) < PHASES.index("load_weights") for r in up):
        return None
    poor = [r for r in up if not done(r) and _little(r, up)]
    return Finding(None, poor[0], _held(up) + last_lines(up), f"{name(poor[0])} does not load{_little(poor[0], up)}") if len(poor) == 1 else None


def _spinning(ranks: t.Sequence[Record], up: t.Sequence[Record]) -> t.Optional[Finding]:
    """A GPU that is busy at hardly any power runs the loop in which a collective waits for the others."""
    spinning = [(r, gpu) for r in up for gpu in closeup(r, "gpus") if spins(gpu)]
    if not spinning:
        return None
    lines = ["{}: GPU {} is {:.0f} % busy at {:.0f} W.".format(r["node"], g["index"], g["utilization_percent"], g["power_watts"]) for r, g in spinning]
    quiet = [r for r in up if r["rank"] not in {record["rank"] for record, _gpu in spinning}]
    why = "the GPU is busy at the power of an idle one: a collective operation waits for the other ranks"
    return Finding("nccl_hang", quiet[0] if len(quiet) == 1 else None, lines + last_lines(up), why)


def spins(gpu: t.Mapping[str, t.Any]) -> bool:
    """A GPU's figures are those of a waiting collective.

    Measured on two H200 (NCCL 2.28.9, limit 700 W): 100 % busy at 121 W, the power of the idle chip, while an all-reduce waited 30 s for the
    other rank, which was 0 % busy at 122 W; 100 % at 690 W in matrix products. A GB10, which tells no limit, was seen at 96 % and about
    20 W in NCCL hangs of 20 to 55 minutes (vLLM issues 42354 and 41725).
    """
    busy, watts, limit = gpu.get("utilization_percent"), gpu.get("power_watts"), gpu.get("power_limit_watts")
    return busy is not None and watts is not None and busy >= 90 and watts < (0.25 * limit if limit else 30)


def _silent(ranks: t.Sequence[Record], up: t.Sequence[Record]) -> t.Optional[Finding]:
    lost = [r for r in ranks if r.get("unreachable")]
    if lost:
        where = ", ".join(str(r["node"]) for r in lost)
        return Finding(None, lost[0] if len(lost) == 1 else None, last_lines(up), f"nothing is known of {where}")
    return Finding(None, None, last_lines(up), "")


# These are believed of a group that is said to serve as well.
SERVING: t.Tuple[Rule, ...] = (_stopped, network.fabric, _back_alone)
NETWORK: t.Tuple[Rule, ...] = (network.fabric,)
RULES: t.Tuple[Rule, ...] = (
    _absent,
    _stopped,
    _killed,
    network.stranger,
    network.fabric,
    network.mtu,
    _claims,
    network.rendezvous,
    network.communicator,
    _different_graphs,
    _back_alone,
    _lagging,
    _little_memory,
    _spinning,
    network.init,
    _silent,
)
