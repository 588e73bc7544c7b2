# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""Whether what is judged is what the user takes it for: all of the ranks, each by its number, each by the log of an engine. Pure."""

from __future__ import annotations

import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils._engines._types import PHASES
from ansible_collections.sparkstack.inference.plugins.module_utils._records import Record, candidates, done, exited, name, place, reading, scene, up
from ansible_collections.sparkstack.inference.plugins.module_utils._standstill import SERVING, explain

_PATIENCE = 300.0
"""Seconds after which a container's log without any line of an engine counts as none: before the first one, imports took 143 s on a loaded machine."""
_REMEDY = (
    "Name the container in which the engine runs, or the file that its log was written to; what an engine prints that was started by "
    "docker exec is not in the log of its container."
)


# Each by its number.


def placed(records: t.Sequence[Record]) -> t.List[Record]:
    """The records in the order of the ranks; where the logs tell another order than the user, in theirs, each with the number that it claims.

    What contradicts itself is left as it was given: two ranks of one number, or the head's on a node that the ranks look elsewhere for.
    """
    ranks = sorted(records, key=lambda record: record["rank"])
    numbers = [number for number in (_claim(record, "rank") for record in ranks) if number is not None]
    wrong = any(_claim(record, "rank") not in (None, record["rank"]) for record in ranks)
    if not wrong or len(set(numbers)) < len(numbers) or max(numbers) >= max(world(ranks), len(ranks)) or _misled(ranks):
        return ranks
    free = [number for number in range(len(ranks) + len(numbers)) if number not in numbers]
    found = []
    for record in ranks:
        number = _claim(record, "rank")
        if number is None:
            number = record["rank"] if record["rank"] in free else free[0]
            free.remove(number)
        found.append(dict(record, rank=number))
    return sorted(found, key=lambda record: record["rank"])


def world(ranks: t.Sequence[Record]) -> int:
    """How many ranks there are by the logs, or 0."""
    return max((_claim(record, "ranks") or 0 for record in ranks), default=0)


def _claim(record: Record, what: str) -> t.Optional[int]:
    """A number that a rank's log tells; None where it counts processes, of which this node has several."""
    claims = reading(record).get("claims") or {}
    text = str(claims.get(what, ""))
    return int(text) if text.isdigit() and not claims.get("local") else None


def _misled(ranks: t.Sequence[Record]) -> bool:
    """The node at the rendezvous has not the head: it is the ranks' options that are wrong, not the user's order."""
    for record in ranks:
        address = str((reading(record).get("claims") or {}).get("rendezvous") or "").rsplit(":", 1)[0]
        for other in ranks:
            owned = [*(other.get("addresses") or []), (scene(other, "fabric") or {}).get("address")]
            if address and address in owned and _claim(other, "rank"):
                return True
    return False


# All of the ranks.


def serving(ranks: t.Sequence[Record]) -> str:
    """What is said of ranks whose head serves."""
    count = world(ranks)
    looked = f"{len(ranks)} of its {count} ranks {'was' if len(ranks) == 1 else 'were'} looked at"
    return f"The head serves; {looked}." if count > len(ranks) else f"All {len(ranks)} ranks serve."


def _headless(ranks: t.Sequence[Record]) -> t.Optional[t.Dict[str, t.Any]]:
    """Ranks without the head, of which each has come as far as its log ever shows: only the head's tells whether they serve."""
    running = up(ranks)
    if not running or ranks[0]["rank"] == 0 or not all(record.get("running") and not record.get("paused") and done(record) for record in running):
        return None
    who = ", ".join(name(record) for record in running)
    summary = f"{who} came as far as the log of a worker shows; the head, whose log alone tells whether they serve, was not looked at."
    return {"verdict": "starting", "summary": summary, "remedy": "Take in the head's node (--limit, -e target), or give its log too."}


def unsure(ranks: t.Sequence[Record]) -> t.Optional[t.Dict[str, t.Any]]:
    """What is said of ranks that don't serve as far as is known, where nobody can tell whether they serve, start or stand still."""
    if explain(ranks, SERVING):
        return None
    return _untold(ranks) or _headless(ranks)


# Each by the log of an engine.


def _untold(ranks: t.Sequence[Record]) -> t.Optional[t.Dict[str, t.Any]]:
    """Ranks of which no log has a line of an engine."""
    here = [record for record in ranks if record.get("started", True) and not record.get("unreachable")]
    if not here or not all(_blank(record) and _ripe(record) for record in here):
        return None
    why = "; ".join(f"that of {record['node']} {_blank(record)}" for record in here)
    never = ", ".join(f"{record['node']} has no container" for record in ranks if not record.get("started", True))
    summary = f"Nothing can be told from the log{'s' if len(here) > 1 else ''}: {why}.{f' {never}.' if never else ''}"
    return {"verdict": "starting", "summary": summary, "remedy": _REMEDY}


def tempered(found: t.Mapping[str, t.Any], ranks: t.Sequence[Record]) -> t.Dict[str, t.Any]:
    """What is said of ranks that start, without what is not known of those whose logs have no line of an engine."""
    blank = [record for record in ranks if _blank(record) and _ripe(record)]
    told = "".join(f" Nothing can be told of {name(record)}: its log {_blank(record)}." for record in blank)
    return dict(found, summary=f"{found['summary']}{told}", **({"remedy": _REMEDY} if blank else {}))


def _blank(record: Record) -> str:
    """How a log is none of an engine; or nothing."""
    told = reading(record)
    # The first line of whatever kind counts as the beginning of parse_args.
    far = place(record) > PHASES.index("parse_args")
    if not told or told.get("engine") or told.get("elsewhere") or candidates(record) or far or exited(record) or record.get("unreachable"):
        return ""
    return "has no line that SGLang or vLLM is known to write" if told.get("last_line") else "is empty"


def _ripe(record: Record) -> bool:
    """A log file has all that it will have; a container that has printed its first lines may yet come to those of its engine."""
    if record.get("began") is None:
        return True
    return bool(reading(record).get("last_line")) and float(record.get("seconds") or 0) >= _PATIENCE


def doubts(records: t.Sequence[Record]) -> t.List[str]:
    """Sentences about what may not be what the user takes it for.

    :param records: as they were given, in any order.
    """
    found = []
    order = {record["node"]: record["rank"] for record in placed(records)}
    nothing = _untold(records)  # then the verdict itself says so
    for record in records:
        if _blank(record).startswith("has") and not nothing:
            found.append(f"The log of {record['node']} {_blank(record)}: look whether it is the right one.")
        claimed = _claim(record, "rank")
        if claimed not in (None, record["rank"]):
            so = f" It is judged as rank {claimed}." if order[record["node"]] == claimed else ""
            found.append(f"The log of {record['node']} says that it is rank {claimed}, and it was given as rank {record['rank']}: give the head's first.{so}")
    engines = {record["node"]: reading(record)["engine"] for record in records if reading(record).get("engine")}
    if len(set(engines.values())) > 1:
        told = ", ".join(f"{node}: {engine}" for node, engine in engines.items())
        found.append(f"The logs are of different engines ({told}), and all ranks of a launch run the same: look whether these are of one launch.")
    count = world(records)
    if count > len(records):
        looked = "one was" if len(records) == 1 else f"{len(records)} were"
        found.append(f"The logs tell of {count} ranks, and {looked} looked at: take in the nodes of the others (--limit, -e target), or give their logs too.")
    met = next((record for record in records if place(record) > PHASES.index("init_dist") and count > 1), None)
    for record in records:
        if met is not None and not record.get("started", True):
            found.append(
                f"{name(record)} must have run: {met['node']} is past the rendezvous, to which all ranks come. Its container has another name or was removed."
            )
    return found
