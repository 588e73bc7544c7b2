# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is private to the collection: it can change at any time.

"""The phases of all ranks side by side: where each stood, when each began, and the numbers as a table. Pure."""

from __future__ import annotations

import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils._engines._types import PHASES
from ansible_collections.sparkstack.inference.plugins.module_utils._words import clock, duration
from ansible_collections.sparkstack.inference.plugins.plugin_utils._html import Markup, escaped, nice, number, percent, since, table, tag
from ansible_collections.sparkstack.inference.plugins.plugin_utils._report import failing

Node = t.Mapping[str, t.Any]
Named = t.Sequence[tuple[str, Node]]

_LABEL, _BAR, _GAP, _AXIS = 20, 26, 14, 26
"""Pixels: the line with the name, the bar below it, what is free below that, and the axis."""
_NUMBER, _NAME = 0.035, 0.16
"""Shares of the width from which on a segment has room for the phase's number, and for its name."""
_STRANGE = 20
"""By how many times the longest rank the whole may be longer: more is not waiting but a clock of another time zone."""
_NICE = {"tokens": "tokens", "requests": "requests", "version": "version", "architecture": "architecture", "backend": "backend", "nccl": "NCCL"}
_UNITS = (("_seconds", "s"), ("_gb", "GiB"), ("_gib", "GiB"), ("_tokens", "tokens"))
"""SGLang writes GB and means GiB."""


_SILENT = 10.0
"""Seconds without progress from which on they are told, as on the terminal."""


class Span(t.NamedTuple):
    """One phase of a rank, in seconds since the epoch by the controller's clock."""

    at: int
    """Its place among all phases."""
    begin: float
    end: float
    over: bool
    """The rank has left it."""


def spans(node: Node) -> list[Span]:
    """The phases of a rank that have a time; of the last one, how long the rank has been in it."""
    found: list[Span] = []
    phases = node.get("timeline") or []
    offset = number(node.get("clock_offset")) or 0.0
    for place, phase in enumerate(phases):
        name, began, took = phase.get("phase"), number(phase.get("time")), number(phase.get("seconds"))
        if name not in PHASES:
            continue
        begin = began - offset if began is not None else found[-1].end if found else None
        if begin is None:
            continue
        last = place + 1 == len(phases)
        here = 0.0 if name == "ready" else number(node.get("seconds_in_phase")) or 0.0
        spent = took if took is not None else here if last else 0.0
        found.append(Span(PHASES.index(name), begin, begin + max(0.0, spent), took is not None or not last or name == "ready"))
    return found


def begin(nodes: Named) -> float | None:
    """When the first rank began, or None where no log tells a time."""
    return min((all_of[0].begin for all_of in (spans(node) for _name, node in nodes) if all_of), default=None)


# Where each rank stood.


def place(node: Node) -> tuple[str, str]:
    """How a rank ended, as a sign and a class: what is bad is told by both, and by the words beside it."""
    state = node.get("state")
    if state == "ready" or node.get("serves"):
        return "✓", "good"
    if state in ("exited", "absent", "unreachable"):
        return {"exited": "✕", "absent": "–", "unreachable": "?"}[str(state)], "bad"
    if failing(node):
        return "!", "bad"
    return ("‖", "wait") if state == "paused" else ("▸", "wait")


def strip(node: Node) -> Markup:
    """The phases as a row of boxes: those that it came through, the one that it stood in, and those that it did not come to.

    The log of a worker that serves ends before the head's. It has not failed to come to what is the head's, so there is no box for that.
    """
    reached = {phase.get("phase") for phase in node.get("timeline") or []}
    phase = node.get("phase") or next((known for known in reversed(PHASES) if known in reached), None)
    here = PHASES.index(phase) if phase in PHASES else -1
    if node.get("serves") and here < 1:
        return Markup()
    sign, _kind = place(node)
    boxes: list[Markup] = []
    for at, name in enumerate(PHASES[1:], 1):
        left, wide = percent((at - 1) / 9), percent(1 / 9)
        came = at <= here
        if node.get("serves") and not came:
            break
        shape = tag("rect", x="1.5", y="1.5", width="92%", height="25", rx="3", class_=f"seg p{at}" if came else "hollow")
        word = tag("text", sign if at == here and sign != "✓" else str(at), x="50%", y="18", text_anchor="middle", class_="on" if came else "soft")
        boxes.append(tag("svg", tag("title", f"{at} {name}: {_came(at, here)}"), shape, word, x=left, width=wide, height="28"))
    told = f"phase {here} of 9, {phase}" if here > 0 else "before the first phase"
    return tag("svg", *boxes, width="100%", height="28", role="img", aria_label=f"It came to {told}." if here > 0 else f"It stood {told}.")


def _came(at: int, here: int) -> str:
    return "passed" if at < here else "here" if at == here else "not reached"


# When.


def chart(nodes: Named) -> Markup:
    """Each rank's phases as a bar over the time that all share; nothing where no log tells a time."""
    bars = [(name, node, spans(node)) for name, node in nodes]
    drawn = [one for one in bars if one[2]]
    if not drawn:
        return Markup()
    longest = max(all_of[-1].end - all_of[0].begin for _name, _node, all_of in drawn)
    origin = min(all_of[0].begin for _name, _node, all_of in drawn)
    whole = max(all_of[-1].end for _name, _node, all_of in drawn) - origin
    apart = whole > _STRANGE * max(longest, 60.0)
    whole = max(longest if apart else whole, 1.0)
    row = _LABEL + _BAR + _GAP
    height = row * len(bars) + _AXIS
    parts = [_defs(), _axis(whole, height - _AXIS)]
    for at, (name, node, all_of) in enumerate(bars):
        parts.append(_row(name, node, all_of, (all_of[0].begin if apart and all_of else origin), whole, at * row))
    note = "The clocks of the nodes are too far apart, so each bar begins at its rank's own start." if apart else ""
    label = "Bars of all ranks over time. The table below has the same numbers."
    picture = tag("svg", *parts, width="100%", height=height, role="img", aria_label=label)
    return tag("figure", picture, _legend(drawn), tag("p", note, class_="soft") if note else None)


def _defs() -> Markup:
    line = tag("path", d="M-2,2 l4,-4 M0,10 l10,-10 M8,12 l4,-4", class_="quiet")
    return tag("defs", tag("pattern", line, id="quiet", width="10", height="10", patternUnits="userSpaceOnUse"))


def _axis(whole: float, height: float) -> Markup:
    step = nice(whole * 1.02)
    marks = [step * at for at in range(int(whole / step) + 1)]
    return Markup("".join(_mark(mark / whole, since(round(mark, 1)), height) for mark in marks))


def _mark(share: float, word: str, height: float) -> Markup:
    where = percent(share)
    anchor = "start" if share < 0.03 else "end" if share > 0.94 else "middle"
    line = tag("line", x1=where, x2=where, y1="0", y2=height, class_="faint")
    return Markup(line + tag("text", word, x=where, y=height + 17, text_anchor=anchor, class_="soft"))


def _row(name: str, node: Node, all_of: t.Sequence[Span], origin: float, whole: float, top: float) -> Markup:
    sign, kind = place(node)
    head = tag("text", tag("tspan", name, class_="strong"), f" rank {node.get('rank', '?')}  ", tag("tspan", sign, class_=f"{kind}-word"), x="0", y=top + 14)
    parts: list[Markup] = [head]
    for span in all_of:
        quiet = 0.0 if span.over or span is not all_of[-1] else min(number(node.get("quiet_seconds")) or 0.0, span.end - span.begin)
        quiet = quiet if quiet >= _SILENT and not node.get("serves") else 0.0
        parts.append(_segment(span, node, (span.begin - origin) / whole, (span.end - quiet - span.begin) / whole, top + _LABEL))
        if quiet:
            parts.append(_quiet(span, (span.end - quiet - origin) / whole, quiet / whole, top + _LABEL))
    if all_of:
        parts.append(_end(sign, kind, (all_of[-1].end - origin) / whole, top + _LABEL))
    return Markup("".join(parts))


def _segment(span: Span, node: Node, at: float, share: float, top: float) -> Markup:
    name = PHASES[span.at]
    title = tag("title", f"{node.get('rank', '?')}: {span.at} {name}, {duration(span.end - span.begin)}")
    shape = tag("rect", width="100%", height=_BAR, class_=f"seg p{span.at}")
    words: list[Markup] = []
    if share >= _NAME:
        words.append(tag("text", f"{span.at} {name}", x="6", y="17", class_="on wide"))
    if share >= _NUMBER:
        words.append(tag("text", str(span.at), x="50%", y="17", text_anchor="middle", class_="on narrow" if share >= _NAME else "on"))
    return tag("svg", title, shape, *words, x=percent(at), y=top, width=percent(share), height=_BAR)


def _quiet(span: Span, at: float, share: float, top: float) -> Markup:
    """Hatched: for so long it has made no progress."""
    shapes = [tag("rect", width="100%", height=_BAR, class_=f"seg p{span.at}"), tag("rect", width="100%", height=_BAR, fill="url(#quiet)")]
    if share >= _NUMBER:
        shapes.append(tag("text", str(span.at), x="50%", y="17", text_anchor="middle", class_="strong"))
    return tag("svg", tag("title", f"{PHASES[span.at]}, without progress"), *shapes, x=percent(at), y=top, width=percent(share), height=_BAR)


def _end(sign: str, kind: str, share: float, top: float) -> Markup:
    """A cross where a rank has ended, a hook where it serves, an arrow where it goes on, and an exclamation mark where it goes on with a failure."""
    shapes = {"good": "M-5,0 l4,5 l7,-10", "bad": "M-5,-5 l10,10 M5,-5 l-10,10", "!": "M0,-6 l0,7 M0,4.5 l0,1"}
    shape = shapes.get(sign) or shapes.get(kind) or "M-3,-5 l6,5 l-6,5"
    middle = top + _BAR / 2
    halo = tag("circle", cx="0", cy="0", r="9", class_="halo")
    # The sign stands within the picture also at its very end.
    drawn = tag("svg", halo, tag("path", d=shape, class_=f"mark {kind}"), x="0", y="0", width="20", height="20", viewBox="-10 -10 20 20")
    at = min(max(share, 0.0), 1.0)
    inner = tag("svg", drawn, x=f"{-20 * at:.1f}", y="0", width="20", height="20", overflow="visible")
    return tag("svg", inner, x=percent(at), y=middle - 10, width="1", height="20", overflow="visible")


def _legend(bars: t.Sequence[tuple[str, Node, t.Sequence[Span]]]) -> Markup:
    used = sorted({span.at for _name, _node, all_of in bars for span in all_of})
    items = [_item(tag("rect", width="18", height="18", rx="3", class_=f"p{at}"), str(at), PHASES[at]) for at in used]
    hatch = [tag("rect", width="18", height="18", rx="3", class_="p1"), tag("rect", width="18", height="18", fill="url(#quiet)")]
    signs = [tag("li", f"{sign} {word}") for sign, word in (("✓", "serves"), ("✕", "has ended"), ("!", "runs, with a failure"), ("▸", "goes on"))]
    return tag("ul", *items, tag("li", tag("svg", *hatch, width="18", height="18", aria_hidden="true"), "no progress"), *signs, class_="legend")


def _item(shape: Markup, sign: str, word: str) -> Markup:
    inner = tag("text", sign, x="9", y="13.5", text_anchor="middle", class_="on")
    return tag("li", tag("svg", shape, inner, width="18", height="18", aria_hidden="true"), word)


# As a table.


def numbers(nodes: Named) -> list[Markup]:
    """Of every rank each phase: when it began, how long it took, and what its lines tell."""
    return [_numbers(name, node) for name, node in nodes if node.get("timeline")]


def _numbers(name: str, node: Node) -> Markup:
    rows: list[t.Sequence[t.Any]] = []
    phases = node.get("timeline") or []
    for at, phase in enumerate(phases):
        began, known = number(phase.get("time")), phase.get("phase")
        title = f"{PHASES.index(known)} {known}" if known in PHASES else str(known)
        rows.append([title, clock(began)[:-1] if began is not None else "", _took(phase, at + 1 == len(phases), node), values(phase.get("values") or {})])
    return table(["phase", "began (UTC)", "took", "what the engine told"], rows, f"The phases of {name} (rank {node.get('rank', '?')})", long=3)


def _took(phase: Node, last: bool, node: Node) -> str:
    took, here = number(phase.get("seconds")), number(node.get("seconds_in_phase"))
    if took is not None:
        return duration(took)
    if not last or phase.get("phase") == "ready" or here is None or node.get("serves"):
        return ""
    return f"for {duration(here)}" + (", then it ended" if node.get("state") == "exited" else " so far")


def values(told: t.Mapping[str, t.Any]) -> Markup:
    """The numbers that a phase's lines carry, in words."""
    words = []
    for key, value in sorted(told.items()):
        ending, unit = next(((ending, unit) for ending, unit in _UNITS if key.endswith(ending)), ("", ""))
        name = _NICE.get(key) or key[: len(key) - len(ending)].replace("_", " ")
        shown = f"{value:g}" if isinstance(value, float) else f"{value:,}".replace(",", " ") if isinstance(value, int) else str(value)
        words.append(f"{name} {shown}{' ' + unit if unit else ''}")
    return escaped(", ".join(words))
