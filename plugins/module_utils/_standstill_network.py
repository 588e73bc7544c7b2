# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""Rules of a standstill in which the ranks do not find or reach each other: the rendezvous, the fabric, NCCL. Pure."""

from __future__ import annotations

import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils._engines._types import PHASES
from ansible_collections.sparkstack.inference.plugins.module_utils._finding import EVIDENT, Finding, last_lines
from ansible_collections.sparkstack.inference.plugins.module_utils._records import (
    Record,
    name,
    own_addresses,
    phase,
    place,
    reading,
    scene,
    values,
)


def stranger(ranks: t.Sequence[Record], up: t.Sequence[Record]) -> t.Optional[Finding]:
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


def fabric(ranks: t.Sequence[Record], up: t.Sequence[Record]) -> t.Optional[Finding]:
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


def mtu(ranks: t.Sequence[Record], up: t.Sequence[Record]) -> t.Optional[Finding]:
    """Small packets pass between two nodes, large ones do not: TCP gets along with that more often than not, so it only explains a silence."""
    known = {str(scene(r, "fabric")["address"]): r for r in up if (scene(r, "fabric") or {}).get("address")}
    small = [(a, b) for (a, b), echo in _echoes(known).items() if echo.get("small") is not None and echo.get("large") is None]
    if not small or {phase(r) for r in up} != {"init_dist"}:
        return None
    a, b = small[0]
    mtu = {str(known[end]["node"]): scene(known[end], "fabric").get("mtu") for end in (a, b)}
    told = ", ".join(f"{node} {value}" for node, value in mtu.items())
    lines = ["{}: {} answers small packets, but none as large as the interface's MTU, {}.".format(known[a]["node"], b, scene(known[a], "fabric").get("mtu"))]
    remedy = f"Give both nodes and every switch between them the same MTU ({told}), then start all ranks again."
    return Finding("net_unreachable", None, lines, "large packets do not pass between {}".format(" and ".join(mtu)), remedy)


def rendezvous(ranks: t.Sequence[Record], up: t.Sequence[Record]) -> t.Optional[Finding]:
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
    if set(connected or []) - {address for r in up for address in own_addresses(r)}:
        # Whose these are is not known: on an overlay network a container has an address that its node has not.
        return None
    absent = [r for r in up if r is not head and phase(r) == "init_dist" and not set(connected or []) & set(own_addresses(r))]
    if absent and connected is not None:
        line = f"{head['node']}: port {sockets['port']} has no connection of {name(absent[0])}."
        return Finding(None, absent[0] if len(absent) == 1 else None, [line, *last_lines(up)], f"{name(absent[0])} has not reached the rendezvous")
    return None


_TRANSPORT = (
    "Check the link over which NCCL connects: NCCL_IB_HCA and NCCL_IB_GID_INDEX of both nodes (RoCE v2), the MTU, /dev/infiniband and the memlock "
    "limit of the containers; once with NCCL_IB_DISABLE=1 tells RDMA from the network."
)


def communicator(ranks: t.Sequence[Record], up: t.Sequence[Record]) -> t.Optional[Finding]:
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


def init(ranks: t.Sequence[Record], up: t.Sequence[Record]) -> t.Optional[Finding]:
    if min((place(r) for r in up), default=0) != PHASES.index("init_dist"):
        return None
    if any("nccl" in values(r, "init_dist") for r in up):
        return Finding("nccl_hang", None, last_lines(up), "NCCL was being set up")
    return Finding(None, None, last_lines(up), "the ranks do not find each other, by address, port, firewall or interface")
