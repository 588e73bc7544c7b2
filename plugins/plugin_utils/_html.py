# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is private to the collection: it can change at any time.

"""HTML and SVG that can't be broken out of: every text is escaped unless this module itself has made it. Pure."""

from __future__ import annotations

import html
import math
import re
import typing as t

_NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9-]*")
_VOID = frozenset(["meta", "br"])
_FORBIDDEN = re.compile(r"on|src|style$|action|formaction|xlink|data$|srcdoc", re.IGNORECASE)
"""Attributes that run something or fetch something; none of a report's does."""
# Logs are written by anybody: controls of a terminal, and those that turn the order of the characters on the screen round.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff\ufff9-\ufffb]")
_LONGEST = 4000
"""Characters of a line that are shown; a tensor's dump can have megabytes."""


class Markup(str):
    """A text that is markup already."""

    __slots__ = ()


Child = str | int | float | t.Sequence[t.Any] | None


def shown(value: str) -> str:
    """A text as it can be looked at: control characters are told by their numbers, and a line that has no end is cut."""
    lines = []
    for line in value.replace("\r\n", "\n").split("\n"):
        if len(line) > _LONGEST:
            line = f"{line[:_LONGEST]} [.. {len(line) - _LONGEST} characters are left out ..]"
        lines.append(_CONTROLS.sub(lambda match: f"\\u{ord(match.group()):04x}", line))
    return "\n".join(lines)


def escaped(child: Child) -> Markup:
    """A child as markup: what is markup stays as it is, a text is escaped, a sequence is put together, None is nothing."""
    if child is None:
        return Markup()
    if isinstance(child, Markup):
        return child
    if isinstance(child, str):
        return Markup(html.escape(shown(child), quote=True))
    if isinstance(child, (int, float)):
        return Markup(html.escape(str(child)))
    return Markup("".join(escaped(each) for each in child))


def tag(element: str, /, *children: Child, **attributes: t.Any) -> Markup:
    """An element.

    :param attributes: C(class_) for class, C(aria_label) for aria-label; those that are None or False are left out.
    :raises ValueError: for a name that is none, and for an attribute that would run or fetch something.
    """
    if not _NAME.fullmatch(element) or element.lower() in (
        "script",
        "iframe",
        "object",
        "embed",
        "link",
        "base",
        "form",
        "img",
        "image",
        "foreignobject",
        "use",
    ):
        raise ValueError(f"'{element}' is no element of a report.")
    told = "".join(_attribute(key, value) for key, value in attributes.items() if value is not None and value is not False)
    if element in _VOID:
        return Markup(f"<{element}{told}>")
    return Markup(f"<{element}{told}>{escaped(children)}</{element}>")


def _attribute(key: str, value: t.Any) -> str:
    name = key.rstrip("_").replace("_", "-")
    if not _NAME.fullmatch(name) or _FORBIDDEN.match(name) or (name == "href" and not str(value).startswith("#")):
        raise ValueError(f"'{name}' is no attribute of a report.")
    # The points of a curve are markup: they are never cut.
    text = value if isinstance(value, Markup) else shown(str(value))
    return f" {name}" if value is True else f' {name}="{html.escape(text, quote=True)}"'


def table(head: t.Sequence[Child], rows: t.Iterable[t.Sequence[Child]], caption: str, numbers: t.Collection[int] = (), long: int = -1) -> Markup:
    """A table that scrolls by itself where it is too wide; its first column names the rows.

    :param numbers: columns that are set to the right. :param long: the one that holds prose.
    """
    kind = ["number" if at in numbers else "long" if at == long else None for at in range(len(head))]
    lines = [tag("tr", *(tag("th" if not at else "td", cell, scope=None if at else "row", class_=kind[at]) for at, cell in enumerate(row))) for row in rows]
    titles = tag("tr", *(tag("th", cell, scope="col", class_=kind[at]) for at, cell in enumerate(head)))
    whole = tag("table", tag("caption", caption), tag("thead", titles), tag("tbody", *lines))
    return tag("div", whole, class_="scroll", role="region", aria_label=caption, tabindex="0")


def fold(title: Child, *children: Child, open_: bool = False) -> Markup:
    """What can be folded away."""
    return tag("details", tag("summary", title), *children, open=open_)


def number(value: t.Any) -> float | None:
    """A number out of data that anybody may have written; None for what is none, and for what has no place on an axis."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if math.isfinite(value) and abs(value) < 1e15 else None


def percent(share: float) -> str:
    """A place on an axis, in percent of its length: what is drawn so needs no width that is known before."""
    return f"{100 * min(max(share, 0.0), 1.0):.3f}%"


def nice(span: float, most: int = 6) -> float:
    """Seconds from mark to mark on an axis of so many seconds."""
    steps = (0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400)
    return next((step for step in steps if span / step <= most), 86400.0 * math.ceil(span / 86400 / most))


def since(seconds: float) -> str:
    """A mark of an axis: "0", "1.5 s", "90 s", "10 min"."""
    if not seconds:
        return "0"
    if seconds >= 120 and not seconds % 60:
        return f"{seconds / 60:.0f} min" if seconds < 7200 or seconds % 3600 else f"{seconds / 3600:.0f} h"
    return f"{seconds:g} s"
