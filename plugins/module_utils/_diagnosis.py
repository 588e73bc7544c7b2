# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""From what is known of all ranks (see C(_records)) to one verdict: is the group ready, starting, stalled or failed; whose fault, and why.

Pure. It knows no engine by name, only what their tables say of a line.
"""

from __future__ import annotations

import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils import _absence, _doubts
from ansible_collections.sparkstack.inference.plugins.module_utils._causes import CAUSES
from ansible_collections.sparkstack.inference.plugins.module_utils._engines._types import PHASES
from ansible_collections.sparkstack.inference.plugins.module_utils._explain import holder, notes
from ansible_collections.sparkstack.inference.plugins.module_utils._records import (
    Candidate,
    Record,
    age,
    broken,
    came,
    candidates,
    done,
    guarded,
    killed_by_kernel,
    least,
    message,
    missing,
    name,
    of_kind,
    only_other,
    own_addresses,
    phase,
    reading,
    up,
    values,
)
from ansible_collections.sparkstack.inference.plugins.module_utils._standstill import NETWORK, SERVING, explain
from ansible_collections.sparkstack.inference.plugins.module_utils._suspects import WORTH, Suspect, suspects

STALL_TIMEOUTS: t.Dict[str, float] = {
    "container": 60,
    "parse_args": 300,
    "init_dist": 120,
    "create_runner": 120,
    "load_weights": 240,
    "kv_cache": 600,
    "graph_capture": 600,
    "engine_ready": 120,
    "http_warmup": 600,
}
"""Seconds without progress, by phase. torch.compile and the first graph can be silent for minutes: 57 s for a graph's first
step with cold caches, and 22 min for a whole capture, have been seen in healthy starts."""
BUSY_FACTOR = 3
"""A rank that only uses the processor gets so many times as long: it may compile, or spin in a collective."""
_NOTICED = 2.0
"""Seconds within which Docker notices a container's end, and writes it down as of then: its peers have failed over it before that."""
_RETRYING = 10
"""Seconds over which a rank must have retried in vain before the network is blamed."""
_DEBIAN = "127.0.1.1"
"""What Debian's and Ubuntu's installers let a node's own name lead to."""

_JUST = 60.0
"""Seconds between the kernel's kill in one rank and the end of another, so that the one explains the other."""


def judge(records: t.Sequence[Record], stall_timeouts: t.Optional[t.Mapping[str, float]] = None, once: bool = False) -> t.Dict[str, t.Any]:
    """The verdict over all ranks.

    :param records: one a rank, see above. :param stall_timeouts: over :data:`STALL_TIMEOUTS`, in seconds.
    :param once: nobody will look again: what is seen to be in the way is told though the ranks have not been silent for long.
    :returns: C(verdict), C(phase), C(cause), C(culprit), C(summary), C(remedy), C(evidence) (a list of lines), C(notes) (sentences) and
        C(nodes); and C(sure): whether a first-hand reason is known, or only what a victim or an echo tells.
    """
    ranks = _doubts.placed(records)
    limits = dict(STALL_TIMEOUTS, **(stall_timeouts or {}))
    head = ranks[0] if ranks else {}
    fallen = [r for r in ranks if broken(r) or (phase(head) == "ready" and not r.get("started", True))]
    serves = phase(head) == "ready" and head.get("healthy") is not False and not any(r.get("unreachable") for r in ranks)
    if fallen:
        fallen += [record for record in ranks if record not in fallen and _killed_before(record, fallen)]
        pool = [suspect for record in fallen for suspect in suspects(record, failing=True)]
        found = dict(_failed(ranks, fallen, pool), sure=max((s.worth for s in pool), default=0.0) >= WORTH["killed"])
    elif serves:
        found = _not_serving(ranks) or {"verdict": "ready", "summary": _doubts.serving(ranks), "remedy": "Nothing is to be done."}
    else:
        found = _doubts.unsure(ranks) or _stalled(ranks, limits, once) or _doubts.tempered(_starting(ranks), ranks)
    verdict: t.Dict[str, t.Any] = {"verdict": "starting", "cause": None, "culprit": None, "summary": "", "remedy": "", "evidence": [], "sure": True}
    verdict.update(found)
    verdict["phase"] = "ready" if verdict["verdict"] == "ready" else least(ranks)
    verdict["notes"] = notes(ranks) + _doubts.doubts(records)
    verdict["nodes"] = {str(record["node"]): _node(record) for record in ranks}
    return verdict


def _killed_before(record: Record, fallen: t.Sequence[Record]) -> bool:
    """The kernel has just killed a process of a rank that still runs, and others have ended: on a node without memory an end takes long."""
    told = [float(entry["time"]) - float(record.get("clock_offset") or 0) for entry in killed_by_kernel(record) if entry.get("time") is not None]
    ends = [float(other["finished"]) - float(other.get("clock_offset") or 0) for other in fallen if other.get("finished") is not None]
    return any(abs(end - moment) <= _JUST for moment in told for end in ends)


def _node(record: Record) -> t.Dict[str, t.Any]:
    """What is told of one rank."""
    told = reading(record)
    listed = sorted(suspects(record), key=lambda s: (-s.worth, s.time))
    soft = next((c["cause"] for c in candidates(record) if c["kind"] == "soft"), None)
    started = record.get("started", True)
    if record.get("unreachable"):
        state = "unreachable"
    elif not started:
        state = "absent"
    elif not record.get("running"):
        state = "exited"
    elif record.get("paused"):
        state = "paused"
    else:
        state = "ready" if phase(record) == "ready" else "running"
    seconds = age(record)
    return {
        "rank": record["rank"],
        "phase": phase(record) if started else None,
        "cause": listed[0].candidate["cause"] if listed else soft,
        "state": state,
        "progress": told.get("progress"),
        "seconds_in_phase": round(seconds, 1) if seconds is not None else None,
        "quiet_seconds": record.get("quiet_seconds"),
        "exit_code": record.get("exit_code"),
        "oom_killed": record.get("oom_killed"),
        "guarded": guarded(record) is not None,
        "guard": guarded(record),
        "memory": record.get("memory"),
        "restarts": record.get("restarts"),
        "last_line": told.get("last_line") or "",
        "timeline": told.get("phases") or [],
        "earlier_runs": told.get("earlier") or [],
        "nccl": told.get("nccl") or {},
        "clock_offset": record.get("clock_offset"),
        "closeup": record.get("closeup"),
    }


# The group has failed.


def _failed(ranks: t.Sequence[Record], fallen: t.Sequence[Record], pool: t.Sequence[Suspect]) -> t.Dict[str, t.Any]:
    if not pool:
        gone = fallen[0]
        return _verdict("failed", "peer_exited", gone, [], _absence.needed(gone), ranks, _absence.REMEDY.format(rank=gone["rank"]))
    best = min(pool, key=lambda s: (-s.worth, s.time, s.record["rank"]))
    if best.candidate["kind"] == "killed":
        # A rank that was killed in silence comes before another's unknown error, unless its clock says otherwise.
        earlier = [s for s in pool if s.worth == WORTH["unknown"] and best.time - _NOTICED > s.time > float("-inf")]
        best = min(earlier, key=lambda s: s.time) if earlier else best
    mutual = [s for s in pool if s.candidate["kind"] == "peer" and s.candidate["cause"] == best.candidate["cause"] == "rendezvous_timeout"]
    if best in mutual and len({s.record["rank"] for s in mutual}) == len(ranks):
        # Each has waited for another until its patience was over: when tells who was started first, and not whose fault it is. Who has dialed the
        # head in vain knows more than the head, which has only waited to be called.
        best = max(mutual, key=lambda s: s.record["rank"])
    candidate, kind = best.candidate, best.candidate["kind"]
    if kind == "stopped":
        who = name(best.record)
        return dict(
            _verdict("failed", None, None, candidate["lines"], f"{who} was stopped on request.", ranks),
            remedy="Start all ranks again: none of them heals alone.",
        )
    alike = [s for s in pool if s.worth == best.worth and s.candidate["cause"] == candidate["cause"]]
    if kind != "peer" and kind != "relay" and len(ranks) > 1 and len({s.record["rank"] for s in alike}) == len(ranks):
        return _alike(ranks, best, alike)
    cause, culprit, lines = candidate["cause"], t.cast("t.Optional[Record]", best.record), list(candidate["lines"])
    if kind == "death" and "rank" in candidate["values"]:
        number = candidate["values"]["rank"]
        # Ray places the ranks beyond the head's as it likes, and the log tells where: "(RayWorkerProc pid=94, ip=192.168.200.12) .. rank=1 ..".
        place = (reading(best.record).get("claims") or {}).get(f"node of rank {number}")
        placed = next((r for r in ranks if place and place in own_addresses(r)), None)
        culprit = placed or next((r for r in ranks if r["rank"] == number), culprit)
    elif candidate.get("address"):
        # Ray: a remote worker's lines stand in the head's log, "(RayWorkerProc pid=17722, ip=192.168.200.12) ..".
        elsewhere = next((r for r in ranks if candidate["address"] in own_addresses(r)), None)
        culprit = elsewhere or only_other(ranks, best.record) or culprit
    elif kind == "relay":
        culprit = _shortest(ranks, best.record) if cause == "memory_unbalanced" else only_other(ranks, best.record)
        if candidate["values"].get("loopback") == _DEBIAN:
            # The installer writes "127.0.1.1 <host name>" on each node alike: who dialed first says nothing.
            culprit = None
    elif kind == "peer":
        cause, culprit, lines = _victim(ranks, best)
    summary = ""
    if culprit is not None and not culprit.get("started", True):
        cause, culprit, summary = _absence.blamed(cause, culprit, candidate, best.record)
    elif culprit is None and (kind == "relay" or cause == "peer_exited") and not candidate["values"].get("loopback"):
        summary = _absence.somebody(cause, candidate, best.record)
    if cause == "nccl_error":
        warning = of_kind(best.record, "soft", "nccl_error")
        lines = (warning["lines"] if warning else []) + lines
    remedy = candidate["remedy"]
    if culprit is not None:
        extra, better = holder(cause, culprit)
        lines, remedy = lines + extra, better or remedy
    summary = summary or _sentence(cause, culprit, best, ranks)
    if culprit is not None and culprit.get("unreachable"):
        # Its peers tell of its end, its node tells nothing: "Docker does not answer on /var/run/docker.sock: ..".
        why = str(culprit["unreachable"]).rstrip(".")
        lines, summary = [f"{culprit['node']}: {why}", *lines], f"{summary[:-1]}; {why}."
    return _verdict("failed", cause, culprit, lines, summary, ranks, remedy)


def _alike(ranks: t.Sequence[Record], best: Suspect, alike: t.Sequence[Suspect]) -> t.Dict[str, t.Any]:
    """All ranks have met the same."""
    candidate = best.candidate
    stopped = all(s.candidate.get("what") for s in alike)
    what = candidate["what"] if stopped else CAUSES[candidate["cause"]].what
    told = ": " + "; ".join("{} on {}".format(s.candidate["message"], s.record["node"]) for s in alike) if stopped else message(candidate)
    # Each node's memory has a curve of its own, also where the kernel was faster on another one.
    lines = [line for s in alike for line in s.candidate["lines"]] if any(s.candidate.get("what") for s in alike) else candidate["lines"]
    return _verdict("failed", candidate["cause"], None, lines, f"All ranks failed alike: each {what}{told}.", ranks, candidate["remedy"])


def lost(record: Record) -> t.Dict[str, t.Any]:
    """What makes a verdict that of a failure because nothing is known of a rank's node, now or at all.

    :param record: one with C(unreachable); one that was looked at before has C(started) as well.
    """
    node, why = str(record["node"]), str(record["unreachable"]).rstrip(".")
    seen = "started" in record
    return {
        "verdict": "failed",
        "cause": None,
        "culprit": node,
        "summary": f"Nothing is known of {name(record)} any more: {why}." if seen else f"{name(record)} could not be looked at: {why}.",
        "remedy": f"Look at {node} and at the controller's connection to it, then run this again{': the ranks go on meanwhile' if seen else ''}.",
        "evidence": [f"{node}: {why}"],
    }


def _victim(ranks: t.Sequence[Record], best: Suspect) -> t.Tuple[str, t.Optional[Record], t.List[str]]:
    """Whom a rank points at that only says that another one left, never came or doesn't answer."""
    cause, record, lines = best.candidate["cause"], best.record, list(best.candidate["lines"])
    if cause in ("rendezvous_timeout", "net_unreachable"):
        for other in [record] + [r for r in ranks if r is not record]:
            unreachable = of_kind(other, "soft", "net_unreachable")
            if unreachable:
                culprit = ranks[0] if other["rank"] and missing(ranks[0]) else other
                return "net_unreachable", culprit, unreachable["lines"] + lines
        if record["rank"] == 0:
            late = [r for r in ranks if r is not record and missing(r)] or [r for r in ranks if r is not record]
            return cause, late[0] if len(late) == 1 else None, lines
        return cause, ranks[0] if missing(ranks[0]) else record, lines
    if cause in ("nccl_timeout", "watchdog"):
        return cause, None, lines
    named = _named(ranks, best)
    if named is not None and named.get("running"):
        began = came(named)
        if began is not None and best.time > float("-inf") and began > best.time + 1:
            # The other rank was started again alone, after this one's end: what is missing now is this one.
            return cause, record, lines
    return cause, named, lines


def _named(ranks: t.Sequence[Record], best: Suspect) -> t.Optional[Record]:
    peer = str(best.candidate["values"].get("peer") or "")
    named = [r for r in ranks if peer and r is not best.record and peer in own_addresses(r)]
    # Several nodes can have the same address, such as docker0's: it names none of them.
    if len(named) == 1:
        return named[0]
    # Who complains of an address does not have it.
    silent = [r for r in ranks if r is not best.record and not any(peer and c["values"].get("peer") == peer for c in candidates(r))]
    return silent[0] if len(silent) == 1 else only_other(ranks, best.record)


def _shortest(ranks: t.Sequence[Record], record: Record) -> t.Optional[Record]:
    """The other rank with the least free memory, where that is known of all, or the only other one."""
    others = [r for r in ranks if r is not record]
    known = [(values(r, "load_weights")["available_gb"], r) for r in others if "available_gb" in values(r, "load_weights")]
    if len(known) == len(others) and known:
        return min(known, key=lambda pair: pair[0])[1]
    return only_other(ranks, record)


# The group waits.


def _stalled(ranks: t.Sequence[Record], limits: t.Mapping[str, float], once: bool) -> t.Optional[t.Dict[str, t.Any]]:
    running = up(ranks)
    for record in running:
        trouble = _struggle(record)
        if trouble and trouble["cause"] == "rendezvous_timeout" and any(_coming(other, limits) for other in running if other is not record):
            continue
        if trouble:
            to_blame = ranks[0] if record["rank"] and missing(ranks[0]) else record
            summary = "{} {}{}.".format(name(record), CAUSES[trouble["cause"]].what, message(trouble))
            if trouble["cause"] == "rendezvous_timeout":
                summary = f"{name(record)} waits in vain for the others{message(trouble)}."
            link = explain(ranks, NETWORK)
            if link:
                # "No route to host" is what the log tells of a link that the node itself sees to be down.
                summary = summary[:-1] + f"; {link.why}."
                return _verdict("stalled", link.cause, link.culprit, link.lines + trouble["lines"], summary, ranks, link.remedy)
            return _verdict("stalled", trouble["cause"], to_blame, trouble["lines"], summary, ranks, trouble["remedy"])
    quiet = [float(r["quiet_seconds"]) for r in running if r.get("quiet_seconds") is not None]
    if not quiet or (phase(ranks[0]) == "ready" and ranks[0].get("healthy") is not False):
        return None
    # A rank that waits for another, or that prints nothing by design, borrows the progress of the group.
    seconds = min(quiet)
    known = [r for r in running if reading(r)] or running
    telling = [r for r in known if not done(r)] or known
    incomplete = any(not r.get("started", True) or r.get("unreachable") for r in ranks)
    step = "container" if incomplete else min((phase(r) for r in telling), key=PHASES.index)
    limit = limits.get(step, STALL_TIMEOUTS["http_warmup"])
    patient = limit * BUSY_FACTOR if step != "init_dist" and any(r.get("busy") for r in running) else limit
    found = explain(ranks)
    if found is None:
        return None
    why = f": {found.why}" if found.why else ""
    summary = f"No rank has moved for {seconds:.0f} s in phase {least(ranks)}{why}."
    if seconds < (patient if found.patience is None else min(limit, found.patience)):
        if not (once and found.plain):
            return None
        summary = f"The ranks cannot go on in phase {least(ranks)}{why}."
    return _verdict("stalled", found.cause, found.culprit, found.lines, summary, ranks, found.remedy)


def _not_serving(ranks: t.Sequence[Record]) -> t.Optional[t.Dict[str, t.Any]]:
    """The head says that it is ready, and its health page too, but a rank it needs can't do its part."""
    found = explain(ranks, SERVING)
    if found is None:
        return None
    summary = f"The head says that it is ready, but it cannot serve: {found.why}."
    return _verdict("stalled", found.cause, found.culprit, found.lines, summary, ranks, found.remedy)


def _coming(record: Record, limits: t.Mapping[str, float]) -> bool:
    """A rank on its way to the rendezvous, within the time that it may take: one that gave up waiting for it once tries again.

    On a loaded machine imports took 143 s, while the other rank said C(The client socket has timed out after 60000ms).
    """
    step, seconds = phase(record), age(record)
    return bool(record.get("running")) and PHASES.index(step) <= PHASES.index("init_dist") and seconds is not None and seconds < limits[step]


def _struggle(record: Record) -> t.Optional[Candidate]:
    """A trouble that the rank has retried in vain for long enough, and has not overcome."""
    for candidate in candidates(record):
        if candidate["kind"] != "soft" or not record.get("running"):
            continue
        first, last = candidate["time"], candidate["last_time"]
        lasting = first is None or last is None or last - first >= _RETRYING
        if candidate["cause"] == "net_unreachable" and candidate["count"] > 1 and lasting:
            return candidate
        if candidate["cause"] == "rendezvous_timeout" and ("timed out" in candidate["message"] or candidate["count"] > 2):
            return candidate
    return None


def _starting(ranks: t.Sequence[Record]) -> t.Dict[str, t.Any]:
    where = ", ".join("{} {}".format(r["node"], phase(r) if r.get("started", True) else "without a container") for r in ranks)
    unwell = ranks and phase(ranks[0]) == "ready" and ranks[0].get("healthy") is False
    note = " The head says that it is ready, but its health URL does not answer yet." if unwell else ""
    return {"verdict": "starting", "summary": f"Still starting: {where}.{note}", "remedy": "Wait."}


# Words.


def _sentence(cause: str, culprit: t.Optional[Record], best: Suspect, ranks: t.Sequence[Record]) -> str:
    what = best.candidate.get("what") or CAUSES[cause].what
    teller = "" if culprit is best.record or culprit is None else f", as {name(best.record)} tells"
    if culprit is None and best.candidate["values"].get("loopback"):
        return f"The nodes' own host names lead to {_DEBIAN}, as {name(best.record)} tells{message(best.candidate)}."
    if culprit is None:
        return f"{name(best.record)} {what}{message(best.candidate)}."
    if culprit is best.record and cause == "peer_exited":
        return f"{name(culprit)} ended when a peer left, and nobody took its place."
    if culprit is best.record and cause == "rendezvous_timeout":
        return f"{name(culprit)} could not reach the head, which waits at the rendezvous{message(best.candidate)}."
    where = f" in phase {phase(culprit)}" if culprit.get("started", True) else " (it was never started)"
    if phase(ranks[0]) == "ready" and done(culprit) and culprit.get("started", True):
        # The log of a vLLM worker shows no phase after its KV cache.
        where = " while it served"
    return f"{name(culprit)} {what}{where}{teller}{message(best.candidate)}."


def _verdict(
    verdict: str,
    cause: t.Optional[str],
    culprit: t.Optional[Record],
    lines: t.List[str],
    summary: str,
    ranks: t.Sequence[Record],
    remedy: str = "",
) -> t.Dict[str, t.Any]:
    general = "Look at the last lines of all ranks, and at the link between the nodes."
    remedy = remedy or (CAUSES[cause].remedy if cause else general)
    others = [str(r["node"]) for r in ranks if r is not culprit]
    node = str(culprit["node"]) if culprit else "every node"
    return {
        "verdict": verdict,
        "cause": cause,
        "culprit": str(culprit["node"]) if culprit else None,
        "summary": summary,
        "remedy": remedy.format(node=node, peer=others[0] if others else ""),
        "evidence": lines,
    }
