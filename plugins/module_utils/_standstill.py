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

from ansible_collections.sparkstack.inference.plugins.module_utils._engines._types import PHASES
from ansible_collections.sparkstack.inference.plugins.module_utils._records import (
    GIB,
    Record,
    came,
    closeup,
    done,
    killed_by_kernel,
    name,
    own_addresses,
    phase,
    place,
    reading,
    scene,
    size,
    values,
)


class Finding(t.NamedTuple):
    """Why the group stands still, as far as is known."""

    cause: t.Optional[str]
    culprit: t.Optional[Record]
    lines: t.List[str]
    why: str
    """Ends a sentence: "No rank has moved for 60 s in phase init_dist: <why>"."""
    remedy: str = ""
    patience: t.Optional[float] = None
    """Seconds of silence after which it is believed; None: as long as the phase may take."""


EVIDENT = 30.0
"""Seconds of silence that suffice where the reason shows itself."""
DIVERGED = 60.0
"""Seconds of silence after which ranks in different steps of one phase count as waiting for each other."""
_APART = 2.0
"""Seconds by which one time must be later than another node's to be believed so: clocks differ."""


def explain(ranks: t.Sequence[Record], rules: t.Optional[t.Sequence[Rule]] = None) -> t.Optional[Finding]:
    """The first finding.

    :param ranks: all ranks, by rank. :param rules: some of the rules only.
    """
    up = [r for r in ranks if r.get("started", True) and not r.get("unreachable") and not reading(r).get("elsewhere")]
    return next((found for found in (rule(ranks, up) for rule in (RULES if rules is None else rules)) if found), None)


def last_lines(up: t.Sequence[Record]) -> t.List[str]:
    """Each rank's last line, as evidence."""
    return ["{}: {}".format(r["node"], reading(r).get("last_line")) for r in up if reading(r).get("last_line")]


# Evident.


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
                None, record, [f"{record['node']}: the container is paused."], why, "Unpause it on {node} (docker unpause), or start all ranks again.", EVIDENT
            )
        halted = [p for p in closeup(record, "processes") if p.get("state") == "T"]
        if halted:
            lines = ["{}: process {} {} is stopped (state T).".format(record["node"], p["pid"], p["name"]) for p in halted]
            why = f"processes of {name(record)} are stopped"
            return Finding(None, record, lines, why, "Let them go on on {node} (kill -CONT), or start all ranks again.", EVIDENT)
    return None


def _killed(ranks: t.Sequence[Record], up: t.Sequence[Record]) -> t.Optional[Finding]:
    for record in up:
        told, count = killed_by_kernel(record), scene(record, "oom_kills")
        if told or count:
            lines = [entry["text"] for entry in told] or [f"{record['node']}: the kernel has killed {count} of the container's processes for lack of memory."]
            return Finding("oom", record, lines, f"{name(record)} has lost a process to the kernel's OOM killer", "", EVIDENT)
    return None


def _stranger(ranks: t.Sequence[Record], up: t.Sequence[Record]) -> t.Optional[Finding]:
    """Another program listens where the head's rendezvous should: the workers talk to a stranger, and wait."""
    head = next((r for r in up if r["rank"] == 0), None)
    sockets = scene(head, "sockets") if head else None
    owner = (sockets or {}).get("owner") or {}
    if not head or not sockets or not sockets.get("listening") or owner.get("own", True) or place(head) > PHASES.index("init_dist"):
        return None
    who = "{} (pid {}{})".format(
        owner.get("process"), owner.get("pid"), ", container {}".format(str(owner["container"])[:12]) if owner.get("container") else ""
    )
    line = "{}: {} listens on port {}.".format(head["node"], who, sockets["port"])
    why = f"the rendezvous port {sockets['port']} of {name(head)} belongs to {who}"
    return Finding("port_in_use", head, [line], why, "Stop that program on {node}, or choose another rendezvous port, and start all ranks again.", EVIDENT)


def _fabric(ranks: t.Sequence[Record], up: t.Sequence[Record]) -> t.Optional[Finding]:
    """The nodes' fabric addresses do not answer each other."""
    known = {str((scene(r, "fabric") or {}).get("address")): r for r in up if (scene(r, "fabric") or {}).get("address")}
    dark = [r for r in known.values() if scene(r, "fabric").get("carrier") is False]
    if dark:
        ports = " and ".join("{} of {}".format(scene(r, "fabric")["interface"], name(r)) for r in dark)
        lines = ["{}: {} ({}) has no carrier.".format(r["node"], scene(r, "fabric")["interface"], scene(r, "fabric")["address"]) for r in dark]
        why = "{} {} no carrier".format(ports, "has" if len(dark) == 1 else "have")
        remedy = "Check cable, transceiver and switch port of {node}, then start all ranks again."
        return Finding("net_unreachable", dark[0] if len(dark) == 1 else None, lines, why, remedy, EVIDENT)
    deaf = [(a, b) for (a, b), echo in _echoes(known).items() if _deaf(echo)]
    deaf = [(a, b) for a, b in deaf if (b, a) in deaf or a not in (scene(known[b], "reach") or {})]
    if deaf:
        pairs = _echoes(known)
        lost = [r for a, r in known.items() if len(known) > 2 and all(pair in deaf for pair in pairs if a in pair)]
        lines = ["{}: no answer from {} ({}).".format(known[a]["node"], b, known[b]["node"]) for a, b in deaf]
        both = "{} and {}".format(known[deaf[0][0]]["node"], known[deaf[0][1]]["node"])
        remedy = f"Check the link, the addresses and the firewall between {both} (ping each from the other), then start all ranks again."
        return Finding("net_unreachable", lost[0] if len(lost) == 1 else None, lines, f"the fabric between {both} does not answer", remedy, EVIDENT)
    return None


def _echoes(known: t.Mapping[str, Record]) -> t.Dict[t.Tuple[str, str], t.Mapping[str, t.Any]]:
    """What came back from each fabric address to each other one."""
    return {(a, b): echo for a, record in known.items() for b, echo in (scene(record, "reach") or {}).items() if b in known}


def _deaf(echo: t.Mapping[str, t.Any]) -> bool:
    """No answer where there was one before, or where not even the hardware address is told: a firewall may only drop the echo."""
    return echo.get("small") is None and (bool(echo.get("answered")) or echo.get("neighbour") is False)


def _mtu(ranks: t.Sequence[Record], up: t.Sequence[Record]) -> t.Optional[Finding]:
    """Small packets pass between two nodes, large ones do not."""
    known = {str(scene(r, "fabric")["address"]): r for r in up if (scene(r, "fabric") or {}).get("address")}
    small = [(a, b) for (a, b), echo in _echoes(known).items() if echo.get("small") is not None and echo.get("large") is None]
    if not small or all(place(r) > PHASES.index("load_weights") for r in up):
        return None
    a, b = small[0]
    mtu = {str(known[end]["node"]): scene(known[end], "fabric").get("mtu") for end in (a, b)}
    told = ", ".join(f"{node} {value}" for node, value in mtu.items())
    lines = ["{}: {} answers small packets, but none as large as the interface's MTU, {}.".format(known[a]["node"], b, scene(known[a], "fabric").get("mtu"))]
    remedy = f"Give both nodes and every switch between them the same MTU ({told}), then start all ranks again."
    return Finding("net_unreachable", None, lines, "large packets do not pass between {}".format(" and ".join(mtu)), remedy, EVIDENT)


# After a silence.


def _claims(ranks: t.Sequence[Record], up: t.Sequence[Record]) -> t.Optional[Finding]:
    """Ranks that were started for another group."""
    if min((place(r) for r in up), default=99) > PHASES.index("init_dist"):
        return None
    for claim, word in (("rank", "rank"), ("ranks", "number of ranks"), ("tensor_parallel", "tensor parallel size")):
        told = {r["rank"]: reading(r).get("claims", {}).get(claim) for r in up}
        odd = [r for r in up if told[r["rank"]] is not None and told[r["rank"]] != _expected(claim, r, told)]
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


def _rendezvous(ranks: t.Sequence[Record], up: t.Sequence[Record]) -> t.Optional[Finding]:
    """Who has come to the rendezvous, by the sockets of both ends."""
    head = next((r for r in up if r["rank"] == 0), None)
    sockets = scene(head, "sockets") if head else None
    if head is None or not sockets or phase(head) != "init_dist":
        return None
    if not sockets.get("listening") and not sockets.get("connected"):
        line = f"{head['node']}: nothing listens on port {sockets['port']}."
        return Finding(None, head, [line, *last_lines(up)], f"{name(head)} does not listen on its rendezvous port {sockets['port']}")
    dialing = [r for r in up if r is not head and (scene(r, "sockets") or {}).get("dialing")]
    if dialing:
        target = ", ".join(scene(dialing[0], "sockets")["dialing"])
        line = f"{dialing[0]['node']}: dials {target}, port {sockets['port']}, without an answer."
        remedy = f"Open port {sockets['port']} of {head['node']} for the other nodes, and check the route from {{node}} to it."
        return Finding("net_unreachable", dialing[0] if len(dialing) == 1 else None, [line], f"{name(dialing[0])} gets no answer from the rendezvous", remedy)
    connected = sockets.get("connected")
    absent = [r for r in up if r is not head and phase(r) == "init_dist" and not set(connected or []) & set(own_addresses(r))]
    if absent and connected is not None:
        line = f"{head['node']}: port {sockets['port']} has no connection of {name(absent[0])}."
        return Finding(None, absent[0] if len(absent) == 1 else None, [line, *last_lines(up)], f"{name(absent[0])} has not reached the rendezvous")
    return None


_TRANSPORT = (
    "Check the link over which NCCL connects: NCCL_IB_HCA and NCCL_IB_GID_INDEX of both nodes (RoCE v2), the MTU, /dev/infiniband and the memlock "
    "limit of the containers; once with NCCL_IB_DISABLE=1 tells RDMA from the network."
)


def _communicator(ranks: t.Sequence[Record], up: t.Sequence[Record]) -> t.Optional[Finding]:
    """Where NCCL's own lines stop: START is a rank's arrival, COMPLETE its ring."""
    told = {r["rank"]: reading(r).get("nccl") or {} for r in up}
    if not any(facts.get("started") for facts in told.values()) or max(place(r) for r in up) > PHASES.index("create_runner"):
        return None
    lines = ["{}: {}".format(r["node"], _nccl_line(told[r["rank"]])) for r in up]
    silent = [r for r in up if not told[r["rank"]]]
    if silent:
        # NCCL prints to a pipe in lumps of 4 KiB, and what a hanging or killed process has not printed is lost: no line proves nothing.
        why = f"NCCL has begun, but of {name(silent[0])} no line of it has come"
        return Finding("nccl_hang", None, lines, why, "Set NCCL_DEBUG=INFO and NCCL_DEBUG_FILE=/dev/stderr on all nodes: then its lines come at once.")
    without = [r for r in up if not told[r["rank"]].get("started")]
    if without:
        why = f"{name(without[0])} has not come to NCCL's set-up, the others have"
        return Finding("nccl_hang", without[0] if len(without) == 1 else None, lines, why, "Look first at {node}: NCCL waits for it.")
    behind = [r for r in up if told[r["rank"]].get("complete", 0) < told[r["rank"]]["started"]]
    if len(behind) == len(up):
        over = " and ".join(sorted({str(facts.get("network")) for facts in told.values() if facts.get("network")})) or "its network"
        return Finding("nccl_hang", None, lines, f"NCCL has begun on all ranks and connects them on none, over {over}", _TRANSPORT)
    if behind:
        return Finding("nccl_hang", behind[0] if len(behind) == 1 else None, lines, f"NCCL is connected on the others but not on {name(behind[0])}")
    if not all(told[r["rank"]].get("connected") for r in up):
        # Since about 2.20 the channels are connected by the first collective, after "Init COMPLETE".
        return Finding("nccl_hang", None, lines, "NCCL has begun on all ranks, but its rings are not connected", _TRANSPORT)
    remedy = "Look at what comes after NCCL: GLOO_SOCKET_IFNAME and the engine's host address of both nodes, and disable-custom-all-reduce."
    return Finding(None, None, lines, "NCCL is connected on all ranks: they wait in Gloo, a message queue or a custom all-reduce", remedy)


def _nccl_line(facts: t.Mapping[str, t.Any]) -> str:
    ways = ", ".join(f"{count} x {way}" for way, count in sorted((facts.get("channels") or {}).items())) or "no channel"
    return "NCCL {} by {}: {} begun, {} complete, {}".format(
        facts.get("version") or "?", facts.get("network") or facts.get("bootstrap") or "?", facts.get("started", 0), facts.get("complete", 0), ways
    )


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


def _init(ranks: t.Sequence[Record], up: t.Sequence[Record]) -> t.Optional[Finding]:
    if min((place(r) for r in up), default=0) != PHASES.index("init_dist"):
        return None
    if any("nccl" in values(r, "init_dist") for r in up):
        return Finding("nccl_hang", None, last_lines(up), "NCCL was being set up")
    return Finding(None, None, last_lines(up), "the ranks do not find each other, by address, port, firewall or interface")


def _silent(ranks: t.Sequence[Record], up: t.Sequence[Record]) -> t.Optional[Finding]:
    lost = [r for r in ranks if r.get("unreachable")]
    if lost:
        where = ", ".join(str(r["node"]) for r in lost)
        return Finding(None, lost[0] if len(lost) == 1 else None, last_lines(up), f"nothing is known of {where}")
    return Finding(None, None, last_lines(up), "")


Rule = t.Callable[[t.Sequence[Record], t.Sequence[Record]], t.Optional[Finding]]
# These are believed of a group that is said to serve as well.
SERVING: t.Tuple[Rule, ...] = (_stopped, _killed, _fabric, _back_alone)
NETWORK: t.Tuple[Rule, ...] = (_fabric, _mtu)
RULES: t.Tuple[Rule, ...] = (
    _absent,
    _stopped,
    _killed,
    _stranger,
    _fabric,
    _mtu,
    _claims,
    _rendezvous,
    _communicator,
    _different_graphs,
    _back_alone,
    _lagging,
    _little_memory,
    _spinning,
    _init,
    _silent,
)
