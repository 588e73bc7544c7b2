# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is private to the collection: it can change at any time.

"""What a run knows of a launch beside its verdict: the checks before it, the proof between the ranks, and what was brought to the nodes. Pure."""

from __future__ import annotations

import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils._words import duration, size
from ansible_collections.sparkstack.inference.plugins.plugin_utils._html import Markup, fold, number, table, tag
from ansible_collections.sparkstack.inference.plugins.plugin_utils._report_data import mapping, sequence

_KINDS = {"ready": "good", "slow": "wait", "blocked": "bad"}
_SIGNS = {"ready": "✓", "slow": "!", "blocked": "✕"}
Given = t.Mapping[str, t.Any]


def beside(known: Given) -> list[Markup]:
    """The parts of it that are known.

    :param known: C(preflight), C(collective) and C(transfers), as :func:`_report_data.kept` has them; each may be empty.
    """
    return [part for part in (_preflight(known["preflight"]), _collective(known["collective"]), _transfers(known["transfers"])) if part]


def _result(word: t.Any) -> Markup:
    told = str(word)
    return tag("span", f"{_SIGNS.get(told, '')} {told}".strip(), class_=f"{_KINDS[told]}-word" if told in _KINDS else None)


def _preflight(report: Given) -> Markup:
    """What was checked before anything was loaded: what is not ready first, and all of it to be unfolded."""
    if not report.get("result"):
        return Markup()
    checks = [mapping(check) for check in sequence(report.get("checks"))]
    bad = [check for check in checks if check.get("result") != "ready"]
    head = ["result", "what", "what was seen"]
    # The remedy below it: in a column of its own it would be out of sight on a phone.
    rows = [[_result(check.get("result")), str(check.get("item")), Markup(_seen(check))] for check in bad]
    shown = table([*head[:2], "what was seen, and the remedy"], rows, "What is not ready") if rows else None
    good = [[_result(check.get("result")), str(check.get("item")), check.get("message") or ""] for check in checks if check not in bad]
    more = fold(f"What is ready ({len(good)})", table(head, good, "What is ready")) if good else None
    return Markup(tag("h3", "Preflight: ", _result(report["result"])) + (shown or "") + (more or ""))


def _seen(check: Given) -> Markup:
    remedy = tag("p", "Remedy: ", str(check["remedy"]), class_="soft") if check.get("remedy") else ""
    return Markup(tag("span", check.get("message") or "") + remedy)


def _collective(proof: Given) -> Markup:
    """What the ranks reduced together before anything was loaded."""
    if not proof.get("verdict"):
        return Markup()
    group = mapping(proof.get("group"))
    rows = [
        ("bandwidth of the bus", f"{group['bus_gb_s']} GB/s" if number(group.get("bus_gb_s")) is not None else None),
        ("way", group.get("transport")),
        ("over", ", ".join(str(device) for device in sequence(group.get("devices")))),
        ("by", group.get("backend")),
        ("sums", {True: "right on all ranks", False: "wrong"}.get(t.cast(t.Any, group.get("correct")))),
    ]
    told = [Markup(tag("dt", word) + tag("dd", str(text))) for word, text in rows if text]
    words = [tag("p", proof["message"])] if proof.get("message") else []
    words += [tag("p", "Remedy: ", str(proof["remedy"]))] if proof.get("remedy") and proof["verdict"] != "ready" else []
    title = tag("h3", "All ranks together: ", _result(proof["verdict"]), " (as proved before)" if proof.get("remembered") else None)
    return Markup(title + "".join(words) + (tag("dl", *told) if told else ""))


def _transfers(moved: Given) -> Markup:
    """What came to each node, and how fast."""
    rows: list[t.Sequence[t.Any]] = []
    for node, given in sorted(moved.items()):
        for each in map(mapping, sequence(given) or [given]):
            sent, seconds = number(each.get("bytes_sent")), number(each.get("seconds"))
            if sent is None:
                continue
            rate = number(each.get("throughput_mb_s"))
            rate = sent / 1e6 / seconds if rate is None and seconds else rate
            told = size(sent) if sent else "nothing"
            rows.append([node, str(each.get("what") or "image"), told, duration(seconds) if seconds else "", f"{rate:.0f} MB/s" if rate and sent else ""])
    if not rows:
        return Markup()
    return Markup(tag("h3", "What was brought") + table(["node", "what", "bytes", "took", "rate"], rows, "What came to each node", numbers=(2, 3, 4)))
