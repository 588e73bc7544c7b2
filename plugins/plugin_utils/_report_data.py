# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is private to the collection: it can change at any time.

"""What a report tells of a launch, out of its record, of the verdict over it, or of both; and what a record keeps for that. Pure."""

from __future__ import annotations

import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils._secrets import Scrubber

Data = dict[str, t.Any]
Given = t.Mapping[str, t.Any]

BESIDE = ("transfers", "preflight", "collective")
"""What a run knows of a launch beside its verdict."""
_NODE = ("rank", "phase", "cause", "state", "progress", "seconds_in_phase", "quiet_seconds", "exit_code", "oom_killed", "guarded", "restarts", "clock_offset")
_GUARD = ("why", "at", "floor", "total", "available", "rate", "limit", "curve")
_NEED = ("node", "total_bytes", "available_bytes", "memory_bytes", "spare_bytes", "pool_bytes")
_CHECK = ("item", "result", "node", "peer", "rail", "message", "remedy")
_TRANSFER = ("what", "bytes_sent", "seconds", "throughput_mb_s")
_NUMBER = (int, float)
_KINDS: t.Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(("phase", "cause", "state", "last_line"), (str,)),
    **dict.fromkeys(("seconds_in_phase", "quiet_seconds", "clock_offset"), _NUMBER),
    **dict.fromkeys(("rank", "exit_code", "restarts"), (int,)),
    **dict.fromkeys(("progress", "guard", "memory", "nccl", "closeup"), (dict,)),
}
_PHASE: t.Mapping[str, tuple[type, ...]] = {"phase": (str,), "time": _NUMBER, "seconds": _NUMBER, "values": (dict,)}
"""What kind each thing is that is known of a rank, and of one of its phases."""
_WORDS = ("verdict", "phase", "cause", "culprit", "summary", "remedy")
_POINTS = 120
"""Points of a curve that a record keeps."""
_LINES, _LENGTH = 80, 600
"""Lines of evidence that a record keeps, and the characters of each: it is not to be larger than the ledger takes."""
_CHECKS = 200


def kept(verdict: Given, plan: Given, beside: Given | None = None) -> Data | None:
    """What a record keeps so that a report can be made of it later; None where nothing was seen.

    :param verdict: what M(sparkstack.inference.init_phase_wait) returned, or nothing. :param plan: RV(sparkstack.inference.inference_plan#module:plan).
    :param beside: C(transfers), by node one or a list of them; C(preflight), the report of M(sparkstack.inference.preflight_report); C(collective), what
        M(sparkstack.inference.collective_proof) returned.
    """
    found: Data = {}
    nodes = {name: _node(node) for name, node in mapping(verdict.get("nodes")).items()}
    if nodes:
        found["nodes"] = nodes
        found["evidence"] = _lines(verdict.get("evidence"))
        found["notes"] = [str(note)[:_LENGTH] for note in sequence(verdict.get("notes"))[:_LINES]]
    rows = sequence(mapping(plan.get("memory")).get("nodes"))
    if rows:
        found["needs"] = [{**{key: row.get(key) for key in _NEED}, "needs": [dict(need) for need in sequence(row.get("needs"))]} for row in rows]
    found.update(_beside(mapping(beside)))
    return found or None


def _node(node: Given) -> Data:
    guard, memory = mapping(node.get("guard")), mapping(node.get("memory"))
    phases = [mapping(phase) for phase in sequence(node.get("timeline"))]
    return {
        **{key: node.get(key) for key in _NODE},
        "last_line": str(node.get("last_line") or "")[:_LENGTH],
        "values": {str(phase["phase"]): dict(phase["values"]) for phase in phases if phase.get("phase") and phase.get("values")},
        "guard": {**{key: guard.get(key) for key in _GUARD}, "curve": thin(guard.get("curve"))} if guard else None,
        "memory": {"total": memory.get("total"), "curve": thin(memory.get("curve"))} if memory else None,
        "earlier_runs": [{key: run.get(key) for key in ("phase", "cause")} for run in map(mapping, sequence(node.get("earlier_runs")))][-5:],
    }


def _beside(beside: Given) -> Data:
    found: Data = {}
    transfers = {name: _moved(moved) for name, moved in mapping(beside.get("transfers")).items()}
    if any(transfers.values()):
        found["transfers"] = {name: moved for name, moved in transfers.items() if moved}
    preflight = mapping(beside.get("preflight"))
    if preflight:
        checks = [{key: check.get(key) for key in _CHECK} for check in map(mapping, sequence(preflight.get("checks")))]
        plain = ("result", "taken_at", "nodes", "skipped", "not_checked")
        found["preflight"] = {**{key: preflight.get(key) for key in plain}, "checks": checks[:_CHECKS]}
    collective = mapping(beside.get("collective"))
    if collective.get("verdict"):
        words = ("verdict", "cause", "culprit", "message", "remedy", "remembered")
        found["collective"] = {**{key: collective.get(key) for key in words}, "group": dict(mapping(collective.get("group")))}
    return found


def _moved(given: t.Any) -> list[Data]:
    """What came to a node: one thing, or several of which each may be nothing."""
    return [{key: moved[key] for key in _TRANSFER if key in moved} for moved in map(mapping, sequence(given) or [given]) if moved]


def _lines(evidence: t.Any) -> list[str]:
    lines = [line[:_LENGTH] for entry in sequence(evidence) for line in str(entry).splitlines()]
    # A traceback says what it is about at its end.
    return lines if len(lines) <= _LINES else [*lines[: _LINES // 4], "[..]", *lines[-(_LINES * 3 // 4) :]]


def thin(curve: t.Any, most: int = _POINTS) -> list[list[float]]:
    """A curve with so many points at most: the lowest of each stretch, which is what ends a launch, and the ends."""
    points = [[float(point[0]), float(point[1])] for point in sequence(curve) if isinstance(point, (list, tuple)) and len(point) > 1]
    if len(points) <= most:
        return points
    step = -(-len(points) // most)
    return [points[0], *(min(points[at : at + step], key=lambda point: point[1]) for at in range(1, len(points) - 1, step)), points[-1]]


def launch(given: t.Any, verdict: Given | None = None, beside: Given | None = None, note: str = "", hide: t.Iterable[str] = ()) -> Data:
    """All that a report tells, with what is secret replaced.

    :param given: a launch's record, or a verdict of M(sparkstack.inference.init_phase_wait) alone.
    :param verdict: the verdict over the launch of the record, with more in it than a record keeps; it may be empty. :param beside: see :func:`kept`.
    :param note: a sentence to be told as well. :param hide: secret texts, which are replaced wherever they stand.
    :returns: C(record) (empty where there is none), C(verdict), C(nodes) (pairs of name and what is known, by rank), C(needs), C(beside).
    :raises ValueError: when it is neither.
    """
    if not isinstance(given, t.Mapping) or not (given.get("launch_id") or isinstance(given.get("verdict"), str)):
        raise ValueError("this is neither a launch's record nor a verdict: give what launch_record or init_phase_wait returned.")
    record: Given = given if given.get("launch_id") else {}
    full = mapping(verdict) if record else given
    told = mapping(record.get("told"))
    word = _verdict(record, full, told, note)
    nodes = {name: _whole(name, node, record) for name, node in mapping(full.get("nodes") or told.get("nodes")).items()} or _bare(record)
    ordered = sorted(nodes.items(), key=lambda pair: (pair[1].get("rank") if isinstance(pair[1].get("rank"), int) else 999, pair[0]))
    data = {
        "record": dict(record),
        "verdict": word,
        "nodes": ordered,
        "needs": [mapping(row) for row in sequence(told.get("needs"))],
        "beside": {**{key: mapping(told.get(key)) for key in BESIDE}, **_beside(mapping(beside))},
    }
    return t.cast(Data, scrubbed(data, Scrubber(text for text in hide if isinstance(text, str))))


def _verdict(record: Given, full: Given, told: Given, note: str) -> Data:
    kept_word = mapping(record.get("verdict"))
    # What came after the watch is in the record alone: it was ready, and then gave no answer.
    last = kept_word.get("verdict") and kept_word.get("verdict") != full.get("verdict")
    word: Data = {**full, **kept_word} if last or not full else dict(full)
    word.update({key: str(word[key]) for key in _WORDS if word.get(key) is not None})
    word["verdict"] = str(word.get("verdict") or ("ready" if record.get("answered") else "not judged"))
    word["evidence"] = [str(line) for line in sequence(full.get("evidence") or told.get("evidence"))]
    word["notes"] = [str(each) for each in sequence(full.get("notes") or told.get("notes"))] + ([note] if note else [])
    if not word.get("summary"):
        word["summary"] = "It serves, and nothing had to be done." if word["verdict"] == "ready" else "What became of it was not seen."
    return word


def _whole(name: str, node: t.Any, record: Given) -> Data:
    found = dict(mapping(node))
    if "timeline" not in found:
        # As a record keeps it: the times apart from the values.
        values = mapping(found.get("values"))
        phases = map(mapping, sequence(mapping(record.get("timelines")).get(name)))
        found["timeline"] = [{**phase, "values": mapping(values.get(str(phase.get("phase"))))} for phase in phases]
    found["timeline"] = [_sound(mapping(phase), _PHASE) for phase in sequence(found["timeline"]) if mapping(phase).get("phase")]
    found["earlier_runs"] = [mapping(run) for run in sequence(found.get("earlier_runs"))]
    return _sound(found, _KINDS)


def _sound(data: Given, kinds: t.Mapping[str, tuple[type, ...]]) -> Data:
    """The data without what is of another kind than it should be: a record is a file, which anybody may have edited."""
    wrong = {key for key, kind in kinds.items() if data.get(key) is not None and (not isinstance(data[key], kind) or data[key] != data[key])}
    return {key: value for key, value in data.items() if key not in wrong}


def _bare(record: Given) -> dict[str, Data]:
    """The ranks of a record that keeps no more than their times."""
    timelines = mapping(record.get("timelines"))
    ranks = [mapping(rank) for rank in sequence(record.get("ranks"))]
    return {str(rank.get("node")): _whole(str(rank.get("node")), {"rank": rank.get("rank")}, {"timelines": timelines}) for rank in ranks if rank.get("node")}


def scrubbed(value: t.Any, scrubber: Scrubber) -> t.Any:
    """Plain data, the secrets in its texts replaced."""
    if isinstance(value, str):
        return scrubber.text(value)
    if isinstance(value, t.Mapping):
        return {scrubber.text(str(key)): scrubbed(inner, scrubber) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [scrubbed(inner, scrubber) for inner in value]
    return value


def mapping(value: t.Any) -> Given:
    """What is one, of data that anybody may have written; else an empty one."""
    return value if isinstance(value, t.Mapping) else {}


def sequence(value: t.Any) -> t.Sequence[t.Any]:
    """The same for a list."""
    return value if isinstance(value, (list, tuple)) else []
