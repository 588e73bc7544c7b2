# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is private to the collection: it can change at any time.

"""The report of a launch as one HTML file that needs nothing else: no network, no script, no other file. Pure."""

from __future__ import annotations

import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils._causes import CAUSES
from ansible_collections.sparkstack.inference.plugins.module_utils._words import duration, utc
from ansible_collections.sparkstack.inference.plugins.plugin_utils import _html_memory, _html_time, _report, _report_closeup
from ansible_collections.sparkstack.inference.plugins.plugin_utils._html import Markup, fold, number, table, tag
from ansible_collections.sparkstack.inference.plugins.plugin_utils._html_beside import beside
from ansible_collections.sparkstack.inference.plugins.plugin_utils._html_style import POLICY, STYLE
from ansible_collections.sparkstack.inference.plugins.plugin_utils._report_data import Data, mapping, sequence

_KIND = {"ready": "good", "failed": "bad", "stalled": "bad"}
_SIGN = {"good": "✓ ", "bad": "✕ ", "wait": ""}
_EVIDENCE = 24
"""Lines of evidence that stand open; all others can be unfolded."""
_MOST = 2000
"""Lines of any text that the page holds."""


def page(data: Data, now: float | None = None) -> str:
    """The whole file.

    :param data: what :func:`_report_data.launch` put together. :param now: when it is made, in seconds since the epoch, or None to leave that out.
    """
    record, verdict = data["record"], data["verdict"]
    # The log of a worker ends earlier than the head's by design: where the launch serves, so does a rank that runs.
    serves = verdict["verdict"] == "ready"
    nodes = [(name, {**node, "serves": serves and node.get("state") in ("running", None)}) for name, node in data["nodes"]]
    name = str(record.get("deployment") or "Launch")
    parts = [
        _banner(verdict, nodes),
        _stood(nodes, verdict),
        _evidence(verdict["evidence"]),
        _timeline(nodes),
        _part("Memory", _html_memory.section(nodes, data["needs"], _compared(record))),
        _part("Nodes and network", beside(data["beside"])),
        _closer(nodes, verdict),
        _about(record),
    ]
    word = _word(verdict)
    head = [
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("title", f"{word}: {name}"),
        tag("style", Markup(STYLE)),
    ]
    body = [tag("header", tag("h1", f"Launch of {name}" if record else "Launch"), tag("p", _when(record), class_="soft")), tag("main", *parts), _foot(now)]
    return f"<!DOCTYPE html>\n{tag('html', tag('head', *head), tag('body', *body), lang='en')}\n"


def _part(title: str, content: t.Sequence[t.Any]) -> Markup:
    return tag("section", tag("h2", title), *content) if any(content) else Markup()


def _word(verdict: t.Mapping[str, t.Any]) -> str:
    return str(verdict["verdict"]).upper()


def _when(record: t.Mapping[str, t.Any]) -> str:
    """ "20261130T080012Z-1a2b3c, 2026-11-30T08:00:12Z by alice at ctl1: served after 412 s"."""
    if not record:
        return "Of its logs and containers alone: there is no record of who started it."
    who = mapping(record.get("who"))
    words = [str(record.get("launch_id"))]
    began = utc(number(record.get("began")))
    if began:
        words.append(f"{began}" + (f" by {who['user']} at {who.get('host') or '?'}" if who.get("user") else ""))
    ready = number(record.get("seconds_to_ready"))
    begun, ended = number(record.get("began")), number(record.get("ended"))
    if ready is not None:
        words.append(f"served after {duration(ready)}")
    elif begun is not None and ended is not None and ended > begun:
        words.append(f"over after {duration(ended - begun)}")
    return ", ".join(words)


# What happened.


def _banner(verdict: t.Mapping[str, t.Any], nodes: _html_time.Named) -> Markup:
    kind = _KIND.get(str(verdict["verdict"]), "wait")
    rows: list[Markup] = []
    if verdict["verdict"] != "ready":
        culprit = verdict.get("culprit")
        rank = next((node.get("rank") for name, node in nodes if name == culprit), None)
        known = CAUSES.get(str(verdict.get("cause")))
        means = f"{verdict.get('cause')}: the rank {known.what}" if known and verdict.get("cause") != "unknown" else str(verdict.get("cause") or "none known")
        told = [
            ("Culprit", f"{culprit}{f' (rank {rank})' if rank is not None else ''}" if culprit else "no single node"),
            ("Cause", means),
            ("Phase", str(verdict.get("phase") or "none")),
            ("Remedy", verdict.get("remedy") or ""),
        ]
        rows = [Markup(tag("dt", word) + tag("dd", text)) for word, text in told if text]
    word = tag("span", _SIGN[kind] + _word(verdict), class_=f"word {kind}")
    notes = [tag("p", note, class_="soft") for note in verdict["notes"][:_MOST]]
    return tag(
        "section", tag("p", word), tag("p", verdict.get("summary") or "", class_="summary"), tag("dl", *rows) if rows else None, *notes, class_=f"banner {kind}"
    )


def _evidence(found: t.Sequence[str]) -> Markup:
    lines = [line for entry in found for line in entry.split("\n")]
    if not lines:
        return Markup()
    parts: list[t.Any] = [_pre(lines if len(lines) <= _EVIDENCE else [*lines[: _EVIDENCE // 4], "[..]", *lines[-_EVIDENCE * 3 // 4 :]])]
    if len(lines) > _EVIDENCE:
        parts.append(fold(f"All {len(lines)} lines", _pre(lines)))
    return _part("Evidence", [tag("p", "The log lines by which it is known.", class_="soft"), *parts])


def _pre(lines: t.Sequence[str]) -> Markup:
    left_out = [f"[.. {len(lines) - _MOST} lines are left out here ..]"] if len(lines) > _MOST else []
    return tag("pre", "\n".join([*lines[:_MOST], *left_out]), tabindex="0")


# The ranks.


def _stood(nodes: _html_time.Named, verdict: t.Mapping[str, t.Any]) -> Markup:
    cards: list[Markup] = []
    # Of what was refused before anything was started, no rank has stood anywhere.
    seen = [pair for pair in nodes if any(node.get("state") or node.get("timeline") or node["serves"] for _name, node in nodes)]
    for name, node in seen:
        sign, kind = _html_time.place(node)
        culprit = name == verdict.get("culprit") and verdict["verdict"] != "ready"
        state = "serves" if node["serves"] and not node.get("state") else _report.rank({**node, "timeline": []})
        badge = tag("span", "culprit", class_="badge") if culprit else None
        title = tag("h3", tag("span", sign, class_=f"{kind}-word", aria_hidden="true"), f" {name}", tag("span", f" rank {node.get('rank', '?')}"), badge)
        came = str(node.get("phase") or next((phase.get("phase") for phase in reversed(node.get("timeline") or [])), None) or "")
        words = [f"{came}: " if came and came != "ready" else "", state]
        if node["serves"] and came and came != "ready":
            words = [f"serves; the log of a worker ends with {came}"]
        # Of one that runs the line above says so.
        own = node.get("cause") if not _report.failing(node) else None
        extra = tag("p", f"Its own log and container tell: {own}.", class_="soft") if own and not culprit and verdict["verdict"] != "ready" else None
        last = node.get("last_line")
        line = tag("p", "Last line: ", tag("code", str(last)[:160]), class_="soft") if last and verdict["verdict"] != "ready" else None
        cards.append(tag("li", title, _html_time.strip(node), tag("p", *words), extra, line, class_="culprit" if culprit else None))
    return _part("Where each rank stood", [tag("ul", *cards, class_="cards")] if cards else [])


def _timeline(nodes: _html_time.Named) -> Markup:
    if not any(node.get("timeline") for _name, node in nodes):
        return Markup()
    return _part("Timeline", [_html_time.chart(nodes), fold("Every phase as a table", _html_time.numbers(nodes))])


def _compared(record: t.Mapping[str, t.Any]) -> list[t.Mapping[str, t.Any]]:
    return [mapping(row) for row in sequence(mapping(record.get("memory")).get("nodes"))]


def _closer(nodes: _html_time.Named, verdict: t.Mapping[str, t.Any]) -> Markup:
    """What the closer look has seen, in the words that the terminal shows."""
    parts = []
    for name, node in nodes:
        try:
            lines = _report_closeup.lines(node, full=True) if verdict["verdict"] != "ready" else _report_closeup.nccl(node.get("nccl") or {})
        except (AttributeError, KeyError, TypeError, ValueError):
            # A record that somebody has written by hand: the rest of it can still be told.
            lines = ["What it has seen can't be read."]
        if lines:
            parts.append(fold(name, _pre(lines), open_=name == verdict.get("culprit")))
    return _part("Closer look", parts)


# The rest.


def _about(record: t.Mapping[str, t.Any]) -> Markup:
    if not record:
        return Markup()
    recipe, image, model = mapping(record.get("recipe")), mapping(record.get("image")), mapping(record.get("model"))
    answer = mapping(record.get("answer"))
    told: list[tuple[str, t.Any]] = [
        ("Launch", record.get("launch_id")),
        ("Recipe", recipe.get("name")),
        ("Model", mapping(recipe.get("model")).get("id") or model.get("path")),
        ("Folder", model.get("path")),
        ("Engine", recipe.get("engine")),
        ("Image", image.get("name")),
        ("Content", image.get("content")),
        ("Answer", f"{answer.get('tokens')} tokens in {answer.get('seconds')} s" if answer else None),
        ("Going back", "It was started to go back to an earlier launch." if record.get("restored") else None),
    ]
    rows = [Markup(tag("dt", word) + tag("dd", str(text))) for word, text in told if text]
    parts: list[t.Any] = [tag("dl", *rows)]
    for key, title in (("reasons", "Why it was started"), ("differences", "What was changed")):
        lines = [str(line) for line in sequence(record.get(key))]
        if lines:
            parts += [tag("h3", title), tag("ul", *(tag("li", line) for line in lines[:_MOST]))]
    arguments = mapping(mapping(mapping(recipe.get("engines")).get(str(recipe.get("engine")))).get("arguments"))
    if arguments:
        parts.append(fold("The engine's options", table(["option", "value"], [[str(key), str(value)] for key, value in sorted(arguments.items())], "Options")))
    return _part("About this launch", parts)


def _foot(now: float | None) -> Markup:
    made = f"Made {utc(now)} by sparkstack.inference. " if now is not None else "Made by sparkstack.inference. "
    words = "This file needs no network. Keys and tokens that were found are replaced by ***; look through it before you hand it on."
    return tag("footer", tag("p", made + words))
