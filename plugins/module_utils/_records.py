# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""What is known of a rank, and the words for it. Pure; it knows no engine by name.

A record of a rank is a mapping, in which what is not known is None or missing:

C(node), C(rank); C(started) (false: it never ran); C(running), C(paused), C(exit_code), C(oom_killed), C(error) (what Docker says of a
container that would not start); C(removed) (it ran when it was last seen, and is there no more); C(restarts) (how often Docker has started it
again); C(reading) (see C(_timeline)); C(quiet_seconds) without progress of any kind; C(busy) (in
that time it used the processor); C(healthy) (None: not asked); C(addresses) of its node; C(began), C(finished) (of its container) and
C(clock_offset) (seconds since the epoch by its own clock, and how much that one is ahead); C(unreachable) (why nothing is known of it);
C(scene) (what its node tells beside the log at each look, see C(_probe)) and C(closeup) (what a close look told, see C(_closeup)).
"""

from __future__ import annotations

import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils._engines import ENGINES
from ansible_collections.sparkstack.inference.plugins.module_utils._engines._types import PHASES

Record = t.Mapping[str, t.Any]
Candidate = t.Dict[str, t.Any]

_SAME_TIME = 60.0
"""Seconds between a container's end and the start of its daemon within which the one explains the other: the daemon first stops, for
10 s a container, and marks a container that it finds dead with the time at which it found it."""
_LOOP = 3
"""Restarts by Docker from which on a rank counts as one that will end again as it did."""
_HEALS = (None, "unknown", "peer_exited", "rendezvous_timeout", "net_unreachable", "nccl_timeout", "watchdog", "port_in_use")
"""Causes that may be gone at the next start."""


def reading(record: Record) -> t.Dict[str, t.Any]:
    """What its log tells; empty where there is none."""
    return record.get("reading") or {}


def scene(record: Record, key: str) -> t.Any:
    """What its node tells beside the log: a close look's word where there was one, else the last look's."""
    closeup = record.get("closeup") or {}
    return closeup[key] if closeup.get(key) is not None else (record.get("scene") or {}).get(key)


def closeup(record: Record, key: str) -> t.Any:
    """What a close look told, an empty list where there was none."""
    return (record.get("closeup") or {}).get(key) or []


def phase(record: Record) -> str:
    """The furthest phase that its log shows."""
    return t.cast(str, reading(record).get("phase") or "container")


def place(record: Record) -> int:
    """That phase's place in the order."""
    return PHASES.index(phase(record))


def values(record: Record, of: str) -> t.Dict[str, t.Any]:
    """The numbers that the lines of a phase carried."""
    found = [p["values"] for p in reading(record).get("phases") or [] if p["phase"] == of]
    return found[-1] if found else {}


def candidates(record: Record) -> t.List[Candidate]:
    """What its log tells of troubles."""
    return t.cast("t.List[Candidate]", reading(record).get("candidates") or [])


def of_kind(record: Record, kind: str, cause: str = "") -> t.Optional[Candidate]:
    """Its first trouble of a kind."""
    return next((c for c in candidates(record) if c["kind"] == kind and cause in ("", c["cause"])), None)


def exited(record: Record) -> bool:
    """It ran, or was to run, and runs no more."""
    return bool(record.get("started", True)) and not record.get("unreachable") and not record.get("running")


def broken(record: Record) -> bool:
    """It has ended, or it will not recover from what it met though its container is up."""
    lost = guarded(record) is not None or looping(record) is not None or any(c["fatal"] for c in candidates(record))
    return exited(record) or (not record.get("unreachable") and lost)


def looping(record: Record) -> t.Optional[t.Dict[str, t.Any]]:
    """The last run of a rank that Docker starts again and again, where this one has come no further and will end alike; else None.

    What another rank, or time, can heal is none: a worker that is restarted until its head is there is a way to start them.
    """
    runs = reading(record).get("earlier") or []
    if not record.get("running") or (record.get("restarts") or 0) < _LOOP or not runs or runs[-1].get("cause") in _HEALS:
        return None
    return t.cast("t.Dict[str, t.Any]", runs[-1]) if place(record) <= PHASES.index(runs[-1]["phase"]) else None


def done(record: Record) -> bool:
    """Its log has shown all that it ever shows."""
    engine = ENGINES.get(reading(record).get("engine") or "")
    last = engine.log.last_sign if engine and record["rank"] > 0 else "ready"
    return place(record) >= PHASES.index(last)


def missing(record: Record) -> bool:
    """It never came as far as the rendezvous, or is gone."""
    early = bool(reading(record)) and place(record) < PHASES.index("init_dist") and not reading(record).get("elsewhere")
    return not record.get("started", True) or not record.get("running") or early


def up(ranks: t.Sequence[Record]) -> t.List[Record]:
    """Those that can be looked at and whose phases stand in their own logs."""
    return [r for r in ranks if r.get("started", True) and not r.get("unreachable") and not reading(r).get("elsewhere")]


def least(ranks: t.Sequence[Record]) -> str:
    """The phase of the least advanced rank; a rank that shows no more, or whose phases stand in another's log, lags not."""
    seen = [r for r in ranks if r.get("started", True) and not reading(r).get("elsewhere")]
    seen = [r for r in seen if reading(r)] or seen
    telling = [r for r in seen if not done(r)] or seen
    if all(phase(r) == "ready" for r in telling):
        # Over Ray: the head has served, and a node of Ray's, whose log has no phases, did not come so far.
        telling = [r for r in ranks if r.get("started", True) and reading(r)]
    return min((phase(r) for r in telling), key=PHASES.index, default="container")


def age(record: Record) -> t.Optional[float]:
    """Seconds that a rank has been in its phase; None where its log tells no times."""
    seconds, phases, last = record.get("seconds_in_phase"), reading(record).get("phases") or [], reading(record).get("last_time")
    if seconds is None and phases and phases[-1]["time"] is not None and last is not None:
        seconds = max(0.0, last - phases[-1]["time"]) + float(record.get("quiet_seconds") or 0 if record.get("running") else 0)
    return seconds


def came(record: Record, of: str = "") -> t.Optional[float]:
    """When its log came to a phase, or began its last run, on the controller's clock; None where it tells no such time."""
    times = [p["time"] for p in reading(record).get("phases") or [] if of in ("", p["phase"])]
    return times[0] - float(record.get("clock_offset") or 0) if times and times[0] is not None else None


def own_addresses(record: Record) -> t.List[str]:
    """The addresses by which others may name it."""
    rendezvous = str(reading(record).get("claims", {}).get("rendezvous") or "")
    fabric = scene(record, "fabric") or {}
    head = [rendezvous.rsplit(":", 1)[0]] if record["rank"] == 0 and rendezvous else []
    told = reading(record).get("claims", {}).get("address")
    head += [str(told)] if told else []
    return list(record.get("addresses") or []) + head + ([str(fabric["address"])] if fabric.get("address") else [])


def killed_by_kernel(record: Record) -> t.List[t.Dict[str, t.Any]]:
    """The kernel's messages that it killed a process of this rank's container for lack of memory."""
    # A close look brings the kernel's messages about everybody; the scene those about this container only.
    return [entry for entry in (record.get("scene") or {}).get("kernel") or [] if entry.get("cause") == "oom"]


def guarded(record: Record) -> t.Optional[t.Dict[str, t.Any]]:
    """What the memory guard of its node told when it stopped it, see C(_guard_told); None where it did not."""
    return t.cast("t.Optional[t.Dict[str, t.Any]]", scene(record, "guard"))


def swept_by(began: t.Optional[float], finished: t.Optional[float], booted: t.Optional[float], daemon: t.Optional[float]) -> str:
    """What a container ended with: C(node), C(docker) (its daemon), or nothing of them. All in seconds since the epoch by its node's clock.

    :param began: when it was started. :param finished: when it ended. :param booted: when its node was started. :param daemon: when its Docker was.
    """
    if began is None:
        return ""
    if booted is not None and booted > began:
        return "node"
    near = daemon is not None and finished is not None and daemon > began and abs(daemon - finished) < _SAME_TIME
    return "docker" if near else ""


def only_other(ranks: t.Sequence[Record], record: Record) -> t.Optional[Record]:
    """The other rank, where there is one only."""
    others = [r for r in ranks if r is not record]
    return others[0] if len(others) == 1 else None


# Words.


def name(record: t.Optional[Record]) -> str:
    """How a sentence calls a rank."""
    return "{} (rank {})".format(record["node"], record["rank"]) if record else "A rank"


def message(candidate: t.Mapping[str, t.Any]) -> str:
    """The end of a sentence that quotes what was raised; without the dot, which every sentence has already."""
    text = " ".join(str(candidate["message"]).split())
    text = text.rstrip(".") if len(text) <= 240 else text[:240].rsplit(" ", 1)[0] + " .."
    return ": " + text if text else ""
