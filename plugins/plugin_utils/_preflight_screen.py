# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is private to the collection: it can change at any time.

"""The preflight on one screen: a line for each item, and more of those that are not ready. Pure."""

from __future__ import annotations

import typing as t

from ansible_collections.sparkstack.inference.plugins.plugin_utils._preflight_words import ITEMS, READY

_WIDTH = max(len(name) for name in ITEMS)
_INDENT = " " * (11 + _WIDTH + 2)


def lines(report: t.Mapping[str, t.Any], whole: bool = True) -> list[str]:
    """The lines of a report of :func:`_preflight.judge`. :param whole: also what is ready, and the table of versions."""
    nodes = report["nodes"]
    bad = [item for item in report["checks"] if item["result"] != READY]
    blocked = sum(item["result"] == "blocked" for item in bad)
    count = ", ".join(f"{number} {word}" for number, word in ((blocked, "blocked"), (len(bad) - blocked, "slow")) if number)
    told = [f"Preflight of {len(nodes)} nodes ({', '.join(nodes)}): {report['result']}" + (f" ({count})" if count else "")]
    if whole:
        told.append("")
    for name in ITEMS:
        mine = [item for item in report["checks"] if item["item"] == name]
        told += [line for item in mine if item["result"] != READY for line in _told(item)]
        if whole:
            told += [line for item in mine if item["result"] == READY for line in _told(item)]
    if whole:
        told += [f"  {word:<{9 + _WIDTH}}  {', '.join(report[key])}" for key, word in (("not_checked", "unchecked"), ("skipped", "skipped")) if report[key]]
        told += _parity(report)
    return told


def _told(item: t.Mapping[str, t.Any]) -> list[str]:
    told = [f"  {item['result']:<9}{item['item']:<{_WIDTH}}  {item['message']}"]
    return told + ([f"{_INDENT}{item['remedy']}"] if item["remedy"] else [])


def _parity(report: t.Mapping[str, t.Any]) -> list[str]:
    """What is the same on all nodes takes one cell, so that the table is narrow for many nodes, too."""
    rows = report["parity"]
    if not rows:
        return []
    width = max(len(row["what"]) for row in rows)
    told = ["", "  The nodes side by side:"]
    for row in rows:
        if row["equal"]:
            told.append(f"  {row['what']:<{width}}  {next(iter(row['nodes'].values()))}")
        else:
            told.append(f"  {row['what']:<{width}}  " + ", ".join(f"{node}: {value or 'none'}" for node, value in row["nodes"].items()) + "  <- differs")
    return told
