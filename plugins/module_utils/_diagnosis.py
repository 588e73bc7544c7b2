# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""From what is known of all ranks to one verdict: is the group ready, starting, stalled or failed; whose fault, and why.

Pure. It knows no engine by name, only what their tables say of a line. A record of a rank is a mapping:

C(node), C(rank); C(started) (false: it never ran); C(running), C(exit_code), C(oom_killed), C(error) (what Docker says of a
container that would not start); C(reading) (see C(_timeline)); C(quiet_seconds) without progress of any kind; C(busy) (in
that time it used the processor); C(healthy) (None: not asked); C(addresses) of its node; C(finished) and C(clock_offset)
(seconds since the epoch by its own clock, and how much that one is ahead); C(unreachable) (why nothing is known of it).
"""

from __future__ import annotations

import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils._causes import CAUSES
from ansible_collections.sparkstack.inference.plugins.module_utils._engines import ENGINES
from ansible_collections.sparkstack.inference.plugins.module_utils._engines._common import SIGNATURES
from ansible_collections.sparkstack.inference.plugins.module_utils._engines._types import PHASES

Record = t.Mapping[str, t.Any]

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
_RETRYING = 10
"""Seconds over which a rank must have retried in vain before the network is blamed."""
_DIVERGED = 60
"""Seconds of silence after which ranks in different steps of one phase count as waiting for each other."""

# What a candidate is worth, over all ranks: the greatest decides, then the earliest.
_WORTH = {"cause": 6.0, "killed": 5.0, "unknown": 4.5, "death": 4.0, "relay": 3.0, "stopped": 2.5, "peer": 2.0, "wrapper": 1.0}
# These are often only the echo of another rank's end.
_ECHOES = {"nccl_error": 4.4, "ib_error": 4.4, "capture_failed": 4.4}
_SIGNALS = {132: "SIGILL", 134: "SIGABRT", 135: "SIGBUS", 136: "SIGFPE", 139: "SIGSEGV"}


class _Suspect(t.NamedTuple):
    worth: float
    time: float
    record: Record
    candidate: t.Dict[str, t.Any]


def judge(records: t.Sequence[Record], stall_timeouts: t.Optional[t.Mapping[str, float]] = None) -> t.Dict[str, t.Any]:
    """The verdict over all ranks.

    :param records: one a rank, see above. :param stall_timeouts: over :data:`STALL_TIMEOUTS`, in seconds.
    :returns: C(verdict), C(phase), C(cause), C(culprit), C(summary), C(remedy), C(evidence) (a list of lines) and C(nodes); and C(sure):
        whether a first-hand reason is known, or only what a victim or an echo tells.
    """
    ranks = sorted(records, key=lambda record: record["rank"])
    limits = dict(STALL_TIMEOUTS, **(stall_timeouts or {}))
    head = ranks[0] if ranks else {}
    broken = [r for r in ranks if _broken(r) or (_phase(head) == "ready" and not r.get("started", True))]
    if broken:
        found = dict(_failed(ranks, broken), sure=max((s.worth for r in broken for s in _suspects(r)), default=0.0) >= _WORTH["killed"])
    elif _phase(head) == "ready" and head.get("healthy") is not False and not any(r.get("unreachable") for r in ranks):
        found = {"verdict": "ready", "summary": f"All {len(ranks)} ranks serve.", "remedy": "Nothing is to be done."}
    else:
        found = _stalled(ranks, limits) or _starting(ranks)
    verdict: t.Dict[str, t.Any] = {"verdict": "starting", "cause": None, "culprit": None, "summary": "", "remedy": "", "evidence": [], "sure": True}
    verdict.update(found)
    verdict["phase"] = "ready" if verdict["verdict"] == "ready" else _least(ranks)
    verdict["nodes"] = {str(record["node"]): _node(record) for record in ranks}
    return verdict


# One rank.


def _reading(record: Record) -> t.Dict[str, t.Any]:
    return record.get("reading") or {}


def _phase(record: Record) -> str:
    return t.cast(str, _reading(record).get("phase") or "container")


def _candidates(record: Record) -> t.List[t.Dict[str, t.Any]]:
    return t.cast("t.List[t.Dict[str, t.Any]]", _reading(record).get("candidates") or [])


def _of_kind(record: Record, kind: str, cause: str = "") -> t.Optional[t.Dict[str, t.Any]]:
    return next((c for c in _candidates(record) if c["kind"] == kind and cause in ("", c["cause"])), None)


def _exited(record: Record) -> bool:
    return bool(record.get("started", True)) and not record.get("unreachable") and not record.get("running")


def _broken(record: Record) -> bool:
    """It has ended, or it will not recover from what it met though its container is up."""
    return _exited(record) or (not record.get("unreachable") and any(c["fatal"] for c in _candidates(record)))


def _done(record: Record) -> bool:
    """Its log has shown all that it ever shows."""
    engine = ENGINES.get(_reading(record).get("engine") or "")
    last = engine.log.last_sign if engine and record["rank"] > 0 else "ready"
    return PHASES.index(_phase(record)) >= PHASES.index(last)


def _least(ranks: t.Sequence[Record]) -> str:
    """The phase of the least advanced rank; a rank that shows no more, or whose phases stand in another's log, lags not."""
    seen = [r for r in ranks if r.get("started", True) and not _reading(r).get("elsewhere")]
    telling = [r for r in seen if not _done(r)] or seen
    return min((_phase(r) for r in telling), key=PHASES.index, default="container")


def _node(record: Record) -> t.Dict[str, t.Any]:
    reading = _reading(record)
    suspects = sorted(_suspects(record), key=lambda s: (-s.worth, s.time))
    soft = next((c["cause"] for c in _candidates(record) if c["kind"] == "soft"), None)
    started = record.get("started", True)
    if record.get("unreachable"):
        state = "unreachable"
    elif not started:
        state = "absent"
    elif not record.get("running"):
        state = "exited"
    else:
        state = "ready" if _phase(record) == "ready" else "running"
    age = _age(record)
    return {
        "rank": record["rank"],
        "phase": _phase(record) if started else None,
        "cause": suspects[0].candidate["cause"] if suspects else soft,
        "state": state,
        "progress": reading.get("progress"),
        "seconds_in_phase": round(age, 1) if age is not None else None,
        "quiet_seconds": record.get("quiet_seconds"),
        "exit_code": record.get("exit_code"),
        "oom_killed": record.get("oom_killed"),
        "last_line": reading.get("last_line") or "",
        "timeline": reading.get("phases") or [],
        "earlier_runs": reading.get("earlier") or [],
    }


def from_text(text: str) -> t.Optional[t.Dict[str, t.Any]]:
    """What a text from outside the log tells: Docker's word on a container, a line of the kernel's log."""
    for signature in SIGNATURES:
        if signature.text in text and signature.kind == "cause":
            return _candidate(signature.cause, [text], text, "cause")
    return None


def _candidate(cause: t.Optional[str], lines: t.List[str], message: str, kind: str, when: t.Optional[float] = None) -> t.Dict[str, t.Any]:
    return {"cause": cause, "kind": kind, "message": message, "lines": lines, "values": {}, "remedy": "", "time": when}


def _suspects(record: Record) -> t.List[_Suspect]:
    """All that may have ended a rank, each with its worth and time on the controller's clock."""
    found = list(_candidates(record))
    if record.get("running"):
        found = [c for c in found if c["fatal"]]
    found = [c for c in found if c["kind"] in _WORTH]
    fallen = min((c["order"] for c in found if c["kind"] in ("peer", "relay")), default=None)
    if (
        not record.get("started", True)
        or (_exited(record) and not any(c["kind"] in ("cause", "unknown") for c in found))
        or _exited(record)
        and record.get("oom_killed")
    ):
        found += _exit(record, found)
    suspects = []
    for candidate in found:
        worth = _ECHOES.get(candidate["cause"], _WORTH[candidate["kind"]])
        if candidate["kind"] == "unknown" and fallen is not None and candidate["order"] > fallen:
            worth = 1.5  # After a peer's end much else fails.
        when = candidate["time"]
        # What comes before the logger, such as a bad flag, tells no time and is early.
        time = when - float(record.get("clock_offset") or 0) if when is not None else float("-inf")
        suspects.append(_Suspect(worth, time, record, candidate))
    return suspects


def _exit(record: Record, found: t.Sequence[t.Mapping[str, t.Any]]) -> t.List[t.Dict[str, t.Any]]:
    """What the container's end tells where the log tells no cause."""
    code, last = record.get("exit_code"), _reading(record).get("last_line") or ""
    when = record.get("finished")
    if record.get("oom_killed"):
        # The kernel's word, and surer than any exit code.
        note = f"The container's state says OOMKilled: true (exit code {code})."
        return [_candidate("oom", [note, last] if last else [note], note, "cause", when)]
    if record.get("error"):
        text = str(record["error"])
        return [from_text(text) or _candidate("unknown", [text], text, "unknown", when)]
    if not record.get("started", True):
        return []
    note = f"The container ended with exit code {code}."
    lines = [note, "Its last line: " + last] if last else [note]
    if _reading(record).get("stopping") or code == 143:
        return [_candidate(None, lines, note, "stopped", when)]
    if any(c["kind"] in ("peer", "relay", "death") for c in found):
        return []
    if code == 137:
        return [_candidate("killed", lines, note, "killed", when)]
    if code in _SIGNALS:
        note = f"The container ended with exit code {code}, {_SIGNALS[t.cast(int, code)]}."
        return [_candidate("worker_died", [note] + lines[1:], note, "death", when)]
    return [_candidate("unknown", lines, note, "death", when)]


# The group has failed.


def _failed(ranks: t.Sequence[Record], broken: t.Sequence[Record]) -> t.Dict[str, t.Any]:
    pool = [suspect for record in broken for suspect in _suspects(record)]
    if not pool:
        gone = broken[0]
        return _verdict("failed", "peer_exited", gone, [], f"{_name(gone)} has no container any more.", ranks)
    best = min(pool, key=lambda s: (-s.worth, s.time, s.record["rank"]))
    if best.candidate["kind"] == "killed":
        # A rank that was killed in silence comes before another's unknown error, unless its clock says otherwise.
        earlier = [s for s in pool if s.worth == _WORTH["unknown"] and best.time > s.time > float("-inf")]
        best = min(earlier, key=lambda s: s.time) if earlier else best
    candidate, kind = best.candidate, best.candidate["kind"]
    if kind == "stopped":
        who = _name(best.record)
        return dict(
            _verdict("failed", None, None, candidate["lines"], f"{who} was stopped on request.", ranks),
            remedy="Start all ranks again: none of them heals alone.",
        )
    shared = {s.record["rank"] for s in pool if s.worth == best.worth and s.candidate["cause"] == candidate["cause"]}
    if kind != "peer" and kind != "relay" and len(ranks) > 1 and len(shared) == len(ranks):
        summary = "All ranks failed alike: each {}{}.".format(CAUSES[candidate["cause"]].what, _message(candidate))
        return _verdict("failed", candidate["cause"], None, candidate["lines"], summary, ranks, candidate["remedy"])
    cause, culprit, lines = candidate["cause"], t.cast("t.Optional[Record]", best.record), list(candidate["lines"])
    if kind == "death" and "rank" in candidate["values"]:
        culprit = next((r for r in ranks if r["rank"] == candidate["values"]["rank"]), culprit)
    elif kind == "relay":
        culprit = _shortest(ranks, best.record) if cause == "memory_unbalanced" else _only_other(ranks, best.record)
    elif kind == "peer":
        cause, culprit, lines = _victim(ranks, best)
    if cause == "nccl_error":
        warning = _of_kind(best.record, "soft", "nccl_error")
        lines = (warning["lines"] if warning else []) + lines
    return _verdict("failed", cause, culprit, lines, _sentence(cause, culprit, best), ranks, candidate["remedy"])


def _victim(ranks: t.Sequence[Record], best: _Suspect) -> t.Tuple[str, t.Optional[Record], t.List[str]]:
    """Whom a rank points at that only says that another one left, never came or doesn't answer."""
    cause, record, lines = best.candidate["cause"], best.record, list(best.candidate["lines"])
    if cause in ("rendezvous_timeout", "net_unreachable"):
        for other in [record] + [r for r in ranks if r is not record]:
            unreachable = _of_kind(other, "soft", "net_unreachable")
            if unreachable:
                culprit = ranks[0] if other["rank"] and _missing(ranks[0]) else other
                return "net_unreachable", culprit, unreachable["lines"] + lines
        if record["rank"] == 0:
            late = [r for r in ranks if r is not record and _missing(r)] or [r for r in ranks if r is not record]
            return cause, late[0] if len(late) == 1 else None, lines
        return cause, ranks[0] if _missing(ranks[0]) else record, lines
    if cause in ("nccl_timeout", "watchdog"):
        return cause, None, lines
    named = _named(ranks, best)
    if named is not None and named.get("running"):
        began = _reading(named).get("first_time")
        if began is not None and best.time > float("-inf") and began - float(named.get("clock_offset") or 0) > best.time + 1:
            # The other rank was started again alone, after this one's end: what is missing now is this one.
            return cause, record, lines
    return cause, named, lines


def _missing(record: Record) -> bool:
    """It never came as far as the rendezvous, or is gone."""
    early = PHASES.index(_phase(record)) < PHASES.index("init_dist") and not _reading(record).get("elsewhere")
    return not record.get("started", True) or not record.get("running") or early


def _named(ranks: t.Sequence[Record], best: _Suspect) -> t.Optional[Record]:
    peer = str(best.candidate["values"].get("peer") or "")
    for record in ranks:
        rendezvous = str(_reading(record).get("claims", {}).get("rendezvous") or "")
        own = list(record.get("addresses") or []) + ([rendezvous.rsplit(":", 1)[0]] if record["rank"] == 0 else [])
        if peer and peer in own and record is not best.record:
            return record
    return _only_other(ranks, best.record)


def _only_other(ranks: t.Sequence[Record], record: Record) -> t.Optional[Record]:
    others = [r for r in ranks if r is not record]
    return others[0] if len(others) == 1 else None


def _shortest(ranks: t.Sequence[Record], record: Record) -> t.Optional[Record]:
    """The other rank with the least free memory, where that is known of all, or the only other one."""
    known = []
    for other in ranks:
        values = [p["values"] for p in _reading(other).get("phases") or [] if p["phase"] == "load_weights"]
        if other is not record and values and "available_gb" in values[-1]:
            known.append((values[-1]["available_gb"], other))
    if len(known) == len(ranks) - 1 and known:
        return min(known, key=lambda pair: pair[0])[1]
    return _only_other(ranks, record)


# The group waits.


def _stalled(ranks: t.Sequence[Record], limits: t.Mapping[str, float]) -> t.Optional[t.Dict[str, t.Any]]:
    up = [r for r in ranks if r.get("started", True) and not r.get("unreachable") and not _reading(r).get("elsewhere")]
    for record in up:
        trouble = _struggle(record)
        if trouble and trouble["cause"] == "rendezvous_timeout" and any(_coming(other, limits) for other in up if other is not record):
            continue
        if trouble:
            to_blame = ranks[0] if record["rank"] and _missing(ranks[0]) else record
            summary = "{} {}{}.".format(_name(record), CAUSES[trouble["cause"]].what, _message(trouble))
            if trouble["cause"] == "rendezvous_timeout":
                summary = f"{_name(record)} waits in vain for the others{_message(trouble)}."
            return _verdict("stalled", trouble["cause"], to_blame, trouble["lines"], summary, ranks, trouble["remedy"])
    absent = [r for r in ranks if not r.get("started", True) or r.get("unreachable")]
    telling = [r for r in up if not _done(r)] or up
    quiet = [(float(r["quiet_seconds"]), r) for r in up if r.get("quiet_seconds") is not None]
    if not quiet or (_phase(ranks[0]) == "ready" and ranks[0].get("healthy") is not False):
        return None
    # A rank that waits for another, or that prints nothing by design, borrows the progress of the group.
    seconds, _latest = min(quiet, key=lambda pair: pair[0])
    phase = "container" if absent else min((_phase(r) for r in telling), key=PHASES.index)
    diverged = _diverged(up) if seconds >= _DIVERGED else None
    limit = limits.get(phase, STALL_TIMEOUTS["http_warmup"])
    if phase != "init_dist" and any(r.get("busy") for r in up):
        limit *= BUSY_FACTOR
    if diverged:
        return _verdict("stalled", diverged[0], diverged[1], diverged[2], diverged[3], ranks)
    if seconds < limit:
        return None
    cause, culprit, lines, why = _suspicion(ranks, up, absent, phase)
    where = f"in phase {_least(ranks)}"
    return _verdict("stalled", cause, culprit, lines, f"No rank has moved for {seconds:.0f} s {where}{why}.", ranks)


def _age(record: Record) -> t.Optional[float]:
    """Seconds that a rank has been in its phase; None where its log tells no times."""
    reading = _reading(record)
    age, phases, last = record.get("seconds_in_phase"), reading.get("phases") or [], reading.get("last_time")
    if age is None and phases and phases[-1]["time"] is not None and last is not None:
        age = max(0.0, last - phases[-1]["time"]) + float(record.get("quiet_seconds") or 0 if record.get("running") else 0)
    return age


def _coming(record: Record, limits: t.Mapping[str, float]) -> bool:
    """A rank on its way to the rendezvous, within the time that it may take: one that gave up waiting for it once tries again.

    On a loaded machine imports took 143 s, while the other rank said C(The client socket has timed out after 60000ms).
    """
    phase, age = _phase(record), _age(record)
    return bool(record.get("running")) and PHASES.index(phase) <= PHASES.index("init_dist") and age is not None and age < limits[phase]


def _struggle(record: Record) -> t.Optional[t.Dict[str, t.Any]]:
    """A trouble that the rank has retried in vain for long enough, and has not overcome."""
    for candidate in _candidates(record):
        if candidate["kind"] != "soft" or not record.get("running"):
            continue
        first, last = candidate["time"], candidate["last_time"]
        lasting = first is None or last is None or last - first >= _RETRYING
        if candidate["cause"] == "net_unreachable" and candidate["count"] > 1 and lasting:
            return candidate
        if candidate["cause"] == "rendezvous_timeout" and ("timed out" in candidate["message"] or candidate["count"] > 2):
            return candidate
    return None


def _diverged(
    up: t.Sequence[Record],
) -> t.Optional[t.Tuple[t.Optional[str], t.Optional[Record], t.List[str], str]]:
    """Ranks that wait for each other in different captures: one left a step out for lack of memory."""
    if {_phase(r) for r in up} != {"graph_capture"} or len(up) < 2:
        return None
    told = [(r, p["values"].get("left_out")) for r in up for p in _reading(r).get("phases") or []]
    short = [(r, line) for r, line in told if line]
    if len(short) != 1:
        return None
    record, line = short[0]
    why = f"{_name(record)} left out a graph for lack of memory and captures another one than the rest: they wait for each other."
    return "memory_unbalanced", record, [line], why


def _suspicion(
    ranks: t.Sequence[Record], up: t.Sequence[Record], absent: t.Sequence[Record], phase: str
) -> t.Tuple[t.Optional[str], t.Optional[Record], t.List[str], str]:
    """The cause, the culprit and why, as far as the difference between the ranks tells."""
    lines = ["{}: {}".format(r["node"], _reading(r).get("last_line")) for r in up if _reading(r).get("last_line")]
    if absent:
        culprit = absent[0] if len(absent) == 1 else None
        what = "nothing is known of" if any(r.get("unreachable") for r in absent) else "there is no container on"
        return None, culprit, lines, ": {} {}".format(what, ", ".join(str(r["node"]) for r in absent))
    order = {id(r): PHASES.index(_phase(r)) for r in up}
    low, high = min(order.values()), max(order.values())
    behind, ahead = [r for r in up if order[id(r)] == low], [r for r in up if order[id(r)] == high]
    if low <= PHASES.index("init_dist"):
        for claim, word in (("rank", "rank"), ("ranks", "number of ranks"), ("tensor_parallel", "tensor parallel size")):
            told = {r["rank"]: _reading(r).get("claims", {}).get(claim) for r in up}
            odd = [r for r in up if told[r["rank"]] is not None and told[r["rank"]] != _expected(claim, r, told)]
            if odd:
                note = "{} was started with {} {}".format(_name(odd[0]), word, told[odd[0]["rank"]])
                return "bad_flag", odd[0], [note] + lines, ": " + note
        addresses = {r["rank"]: str(_reading(r).get("claims", {}).get("rendezvous") or "") for r in up}
        odd = [r for r in up if addresses[r["rank"]] and addresses.get(0) and addresses[r["rank"]] != addresses[0]]
        if odd:
            note = "{} looks for the rendezvous at {}, the head at {}".format(_name(odd[0]), addresses[odd[0]["rank"]], addresses[0])
            return "bad_flag", odd[0], [note] + lines, ": " + note
    if low == PHASES.index("init_dist") and high >= PHASES.index("kv_cache") and len(ahead) == 1:
        return None, ahead[0], lines, f": {_name(ahead[0])} is left from an earlier launch"
    if low < high and low <= PHASES.index("load_weights") and len(behind) == 1:
        return None, behind[0], lines, f": {_name(behind[0])} is behind"
    if phase == "init_dist":
        nccl = any("nccl" in p["values"] for r in up for p in _reading(r).get("phases") or [] if p["phase"] == "init_dist")
        if nccl:
            return "nccl_hang", None, lines, ", and NCCL was being set up"
        return None, None, lines, ": the ranks do not find each other, by address, port, firewall or interface"
    return None, None, lines, ""


def _expected(claim: str, record: Record, told: t.Mapping[int, t.Optional[str]]) -> t.Optional[str]:
    return str(record["rank"]) if claim == "rank" else told.get(0) or told[record["rank"]]


def _starting(ranks: t.Sequence[Record]) -> t.Dict[str, t.Any]:
    where = ", ".join("{} {}".format(r["node"], _phase(r) if r.get("started", True) else "without a container") for r in ranks)
    unwell = ranks and _phase(ranks[0]) == "ready" and ranks[0].get("healthy") is False
    note = " The head says that it is ready, but its health URL does not answer yet." if unwell else ""
    return {"verdict": "starting", "summary": f"Still starting: {where}.{note}", "remedy": "Wait."}


# Words.


def _name(record: t.Optional[Record]) -> str:
    return "{} (rank {})".format(record["node"], record["rank"]) if record else "A rank"


def _message(candidate: t.Mapping[str, t.Any]) -> str:
    text = " ".join(str(candidate["message"]).split())
    # Every sentence ends it with one more dot.
    text = text.rstrip(".") if len(text) <= 240 else text[:240].rsplit(" ", 1)[0] + " .."
    return ": " + text if text else ""


def _sentence(cause: str, culprit: t.Optional[Record], best: _Suspect) -> str:
    what = CAUSES[cause].what
    teller = "" if culprit is best.record or culprit is None else f", as {_name(best.record)} tells"
    if culprit is None:
        return f"{_name(best.record)} {what}{_message(best.candidate)}."
    if culprit is best.record and cause == "peer_exited":
        return f"{_name(culprit)} ended when a peer left, and nobody took its place."
    if culprit is best.record and cause == "rendezvous_timeout":
        return f"{_name(culprit)} could not reach the head, which waits at the rendezvous{_message(best.candidate)}."
    phase = f" in phase {_phase(culprit)}" if culprit.get("started", True) else " (it was never started)"
    return f"{_name(culprit)} {what}{phase}{teller}{_message(best.candidate)}."


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
