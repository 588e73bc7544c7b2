# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is private to the collection: it can change at any time.

"""The memory of each node while its rank loaded, beside what was planned, and the numbers as a table. Pure."""

from __future__ import annotations

import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils._engines._types import PHASES
from ansible_collections.sparkstack.inference.plugins.module_utils._words import GIB, duration, size
from ansible_collections.sparkstack.inference.plugins.plugin_utils._html import Markup, nice, number, percent, since, table, tag
from ansible_collections.sparkstack.inference.plugins.plugin_utils._html_time import Named, Node, spans

_HIGH, _AXIS, _TOP = 150, 26, 18
"""Pixels: the plot, the axis below it, and the line with the phases' numbers above it."""
_NEAR = 0.045
"""Share of the width within which two phases' numbers would stand on each other."""
_ALIKE = 0.1
"""Share by which two totals of one memory differ at most: what the driver or the kernel keeps for itself."""
Points = t.Sequence[tuple[float, float]]


class Memory(t.NamedTuple):
    """What is known of one node's memory; bytes, and seconds since the epoch by the controller's clock."""

    name: str
    points: Points
    source: str
    """Who has told the points."""
    total: float
    left: float | None
    """What the plan leaves when all is loaded."""
    floor: float | None
    need: t.Mapping[str, t.Any]


def known(name: str, node: Node, needs: t.Sequence[t.Mapping[str, t.Any]]) -> Memory | None:
    """What is known of one node's memory, or None where that is nothing that can be drawn."""
    need = next((row for row in needs if row.get("node") == name), {})
    planned = number(need.get("memory_bytes"))
    found = _curves(node)
    # Of a GPU with memory of its own the guard and the watch see nothing: what they tell is the node's main memory, and the plan's is not.
    alike = [each for each in found if planned is None or each[2] is None or abs(each[2] - planned) <= _ALIKE * planned]
    points, source, total = next(iter(alike + found), ([], "", None))
    left = planned_left(need) if alike or not found else None
    total = total or planned or max([point[1] for point in points] + [left or 0.0], default=0.0)
    if total <= 0 or (not points and left is None):
        return None
    return Memory(name, points, source, total, left, number((node.get("guard") or {}).get("floor")), need)


def planned_left(need: t.Mapping[str, t.Any]) -> float | None:
    """Bytes that are left of a node's memory when all is loaded, by the plan: without what it leaves to the system, and with all that the cache gets.

    :param need: a row of C(nodes) of :func:`_footprint.plan_memory`.
    """
    available, wanted, pool = (number(need.get(key)) for key in ("available_bytes", "total_bytes", "pool_bytes"))
    if available is None or wanted is None or pool is None:
        return None
    apart = sum(number(each.get("bytes")) or 0.0 for each in need.get("needs") or [] if each.get("what") in ("cache", "system"))
    return available - (wanted - apart) - pool


def _curves(node: Node) -> list[tuple[Points, str, float | None]]:
    """The curves that there are, the finest first, each with who told it and of how much memory: the guard's, the watch's, and what the engine tells."""
    offset = number(node.get("clock_offset")) or 0.0
    found: list[tuple[Points, str, float | None]] = []
    for key, source in (("guard", "the memory guard"), ("memory", "the watch")):
        told = node.get(key) or {}
        pairs = [(number(point[0]), number(point[1])) for point in told.get("curve") or [] if isinstance(point, (list, tuple)) and len(point) > 1]
        points = sorted((at - offset, value) for at, value in pairs if at is not None and value is not None and value >= 0)
        if len(points) > 1:
            found.append((points, source, number(told.get("total"))))
    own = []
    for phase, span in zip([phase for phase in node.get("timeline") or [] if phase.get("phase") in PHASES], spans(node), strict=False):
        free = number((phase.get("values") or {}).get("available_gb"))
        if free is not None and free >= 0:
            own.append((span.end, free * GIB))
    return [*found, (own, "the engine's own log", None)] if len(own) > 1 else found


def section(nodes: Named, needs: t.Sequence[t.Mapping[str, t.Any]], compared: t.Sequence[t.Mapping[str, t.Any]]) -> list[Markup]:
    """A picture for each node, and the tables; nothing where nothing is known of memory.

    :param needs: a row for each node of the plan's memory. :param compared: C(nodes) of C(_footprint_compare.compare).
    """
    found = [(memory, node) for name, node in nodes if (memory := known(name, node, needs))]
    drawn = [(memory, node) for memory, node in found if memory.points]
    times = [moment for memory, _node in drawn for moment, _bytes in memory.points]
    times += [moment for _memory, node in drawn for span in spans(node) for moment in (span.begin, span.end)]
    parts = [_picture(memory, node, min(times), max(max(times) - min(times), 1.0)) for memory, node in drawn]
    if parts:
        parts.append(tag("p", "Above: what was available on each node. The further down the line goes, the less was left.", class_="soft"))
    parts += [_summary([memory for memory, _node in found])] if found else []
    return parts + _tables(needs, compared)


# The picture.


def _picture(memory: Memory, node: Node, origin: float, whole: float) -> Markup:
    y = _Height(memory.total)
    parts = [_levels(y), _phases(node, origin, whole), _times(whole)]
    parts.append(_curve(memory, origin, whole))
    if memory.source == "the engine's own log":
        parts += [tag("circle", cx=percent((at - origin) / whole), cy=y.of(value), r="4", class_="dot") for at, value in memory.points]
    low = min(value for _at, value in memory.points)
    parts += _line("plan", memory.left, y, "when loaded, the plan leaves", "start")
    parts += _line("floor", memory.floor, y, "the guard's floor", "end")
    parts.append(_amounts(y))
    words = f"{memory.name}: {size(memory.points[0][1])} available at first, {size(low)} at the lowest, of {size(memory.total)}; told by {memory.source}"
    label = f"Available memory of {words}. The table below has the same numbers."
    picture = tag("svg", *parts, width="100%", height=_TOP + _HIGH + _AXIS, role="img", aria_label=label)
    return tag("figure", tag("h3", memory.name), tag("p", words[len(memory.name) + 2 :] + ".", class_="soft"), picture)


class _Height:
    """Where an amount of memory stands, in pixels from the top."""

    def __init__(self, total: float) -> None:
        self.total = total

    def of(self, value: float) -> float:
        """:param value: bytes."""
        return round(_TOP + _HIGH * (1 - min(max(value / self.total, 0.0), 1.0)), 1)


def _levels(y: _Height) -> Markup:
    parts = []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        at = y.of(y.total * share)
        parts.append(tag("line", x1="0", x2="100%", y1=at, y2=at, class_="faint" if share else "axis"))
    return Markup("".join(parts))


def _amounts(y: _Height) -> Markup:
    """What the levels stand for; at the right, as a curve begins at the top on the left."""
    levels = [(size(y.total * share), y.of(y.total * share) + 13) for share in (0.5, 1.0)]
    return Markup("".join(tag("text", words, x="100%", y=at, text_anchor="end", class_="soft") for words, at in levels))


def _times(whole: float) -> Markup:
    step = nice(whole * 1.02)
    parts = []
    for at in range(int(whole / step) + 1):
        share = step * at / whole
        anchor = "start" if share < 0.03 else "end" if share > 0.94 else "middle"
        parts.append(tag("text", since(round(step * at, 1)), x=percent(share), y=_TOP + _HIGH + 17, text_anchor=anchor, class_="soft"))
    return Markup("".join(parts))


def _phases(node: Node, origin: float, whole: float) -> Markup:
    """Where the rank's phases begin, with their numbers."""
    parts, last = [], -1.0
    for span in spans(node):
        share = (span.begin - origin) / whole
        where = percent(share)
        parts.append(tag("line", x1=where, x2=where, y1=_TOP, y2=_TOP + _HIGH, class_="faint"))
        if share - last >= _NEAR and share < 0.985:
            parts.append(tag("text", str(span.at), x=where, y=_TOP - 5, class_="soft"))
            last = share
    return Markup("".join(parts))


def _curve(memory: Memory, origin: float, whole: float) -> Markup:
    """In a field of 10000 by 1000 that is stretched to the room there is; its line keeps its width."""
    pairs = [(10000 * (at - origin) / whole, 1000 * (1 - min(value / memory.total, 1.0))) for at, value in memory.points]
    line = " ".join(f"{across:.0f},{down:.1f}" for across, down in pairs)
    area = f"{pairs[0][0]:.0f},1000 {line} {pairs[-1][0]:.0f},1000"
    inner = [tag("polygon", points=Markup(area), class_="area"), tag("polyline", points=Markup(line), class_="curve")]
    return tag("svg", *inner, x="0", y=_TOP, width="100%", height=_HIGH, viewBox="0 0 10000 1000", preserveAspectRatio="none")


def _line(kind: str, value: float | None, y: _Height, word: str, side: str) -> list[Markup]:
    if value is None:
        return []
    at = y.of(max(value, 0.0))
    # The words stand above their line, but not above the picture.
    base = at - 5 if at - 5 > _TOP + 12 else at + 14
    text = tag("text", f"{word} {size(max(value, 0.0))}", x="2" if side == "start" else "100%", y=base, text_anchor=side, class_=f"{kind}-word strong")
    return [tag("line", x1="0", x2="100%", y1=at, y2=at, class_=kind), text]


# The tables.


def _summary(found: t.Sequence[Memory]) -> Markup:
    rows = []
    for memory in found:
        low = min(memory.points, key=lambda point: point[1]) if memory.points else None
        fell = _fell(memory.points) if memory.points else ""
        need = memory.need
        rows.append(
            [
                memory.name,
                size(number(need.get("available_bytes"))),
                size(number(need.get("total_bytes"))),
                size(memory.left) if memory.left is None or memory.left >= 0 else f"{size(-memory.left)} too little",
                size(low[1]) if low else "?",
                size(memory.floor) if memory.floor else "",
                fell,
            ]
        )
    head = ["node", "could be had", "least that is needed", "plan leaves", "lowest seen", "guard's floor", "readings"]
    told = [at for at in range(len(head)) if any(row[at] not in ("", "?") for row in rows)]
    title = "Memory of each node beside the plan" if any(memory.need for memory in found) else "Memory of each node"
    return table([head[at] for at in told], [[row[at] for at in told] for row in rows], title, numbers=range(1, len(told)))


def _fell(points: Points) -> str:
    return f"{len(points)} in {duration(points[-1][0] - points[0][0])}"


def _tables(needs: t.Sequence[t.Mapping[str, t.Any]], compared: t.Sequence[t.Mapping[str, t.Any]]) -> list[Markup]:
    parts = []
    rows = []
    for row in compared:
        for what in ("weights", "cache", "tokens"):
            pair = row.get(what) or {}
            planned, told = number(pair.get("planned")), number(pair.get("reported"))
            if planned is not None and told:
                unit: t.Callable[[float], str] = size if what != "tokens" else "{:.0f}".format
                rows.append([str(row.get("node")), what, unit(planned), unit(told), f"{100 * (planned - told) / told:+.1f} %"])
    if rows:
        parts.append(table(["node", "what", "planned", "engine says", "plan is off by"], rows, "The plan beside the engine's own report", numbers=(2, 3, 4)))
    tight = min((row for row in needs if number(row.get("spare_bytes")) is not None), key=lambda row: float(row["spare_bytes"]), default=None)
    if tight and tight.get("needs"):
        listed = [
            [str(need.get("what")), size(number(need.get("bytes"))), str(need.get("why") or "")] for need in tight["needs"] if isinstance(need, t.Mapping)
        ]
        parts.append(table(["for", "bytes", "why"], listed, f"What {tight.get('node')} was planned to need, by estimate", numbers=(1,)))
    return parts
