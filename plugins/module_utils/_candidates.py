# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""What may have gone wrong in one run, as its log tells it: each trouble once, with its lines, and the strongest of many. Pure."""

from __future__ import annotations

import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils import _logline
from ansible_collections.sparkstack.inference.plugins.module_utils._engines._types import Signature
from ansible_collections.sparkstack.inference.plugins.module_utils._logline import Line
from ansible_collections.sparkstack.inference.plugins.module_utils._marks import values

STRENGTH = {"cause": 5, "unknown": 4, "death": 3, "relay": 3, "peer": 2, "soft": 1, "wrapper": 0}
"""What a kind of candidate is worth against another one of the same log."""
KEPT_LINES = 200
"""Lines of one traceback."""
_KEPT = 12
"""Candidates of one run."""
_LONGEST = 8192
"""Characters of a line of evidence: an exception can hold a whole configuration."""

Candidate = t.Dict[str, t.Any]


class Candidates:
    """The candidates of one run; C(order) and C(listed) are plain data."""

    def __init__(self, order: int = 0, listed: t.Optional[t.List[Candidate]] = None) -> None:
        self.order = order
        """The number of the last one."""
        self.listed: t.List[Candidate] = listed or []

    def numbered(self, number: t.Optional[int]) -> t.Optional[Candidate]:
        """The one of this number, if it is kept."""
        return next((c for c in self.listed if c["order"] == number), None)

    def add(
        self,
        cause: str,
        kind: str,
        line: Line,
        fatal: bool,
        when: t.Optional[float],
        phase: str,
        signature: t.Optional[Signature] = None,
        lines: t.Optional[t.List[str]] = None,
    ) -> int:
        """Note one; :returns: its number, or that of the one which it repeats.

        :param fatal: the process ends with it. :param when: seconds since the epoch. :param lines: those of its traceback.
        """
        self.order += 1
        fresh = told(cause, kind, line.body, line.text, signature) if kind != "soft" else {}
        for known in self.listed:
            if known["cause"] == cause and known["kind"] == kind and (kind == "soft" or known["message"] == fresh["message"]):
                known["count"] += 1
                known["last_time"] = when
                known["fatal"] = known["fatal"] or (fatal and kind != "soft")
                return t.cast(int, known["order"])
        candidate = dict(
            fresh or told(cause, kind, line.body, line.text, signature),
            fatal=fatal and kind != "soft",
            time=when,
            last_time=when,
            count=1,
            order=self.order,
            phase=phase,
            # Ray's name for a worker on another node, in the head's log: "(RayWorkerProc pid=17722, ip=192.168.200.12) ".
            address=_logline.address(line.process),
            lines=lines if lines is not None else [],
        )
        if not candidate["address"]:
            # The raylet of any node tells of a worker that died: ".. Worker IP address: 172.20.96.130 Worker port: ..".
            candidate["address"] = candidate["values"].get("address")
        if lines is None:
            keep(candidate["lines"], _logline.mask(line.text))
        if len(self.listed) >= _KEPT:
            weakest = min(self.listed, key=lambda c: (STRENGTH[c["kind"]], -c["order"]))
            if STRENGTH[weakest["kind"]] >= STRENGTH[kind]:
                return self.order
            self.listed.remove(weakest)
        self.listed.append(candidate)
        return self.order


def told(cause: str, kind: str, message: str, text: str, signature: t.Optional[Signature]) -> Candidate:
    """What a line tells of a trouble."""
    return {
        "cause": cause,
        "kind": kind,
        "message": _logline.mask(message)[:2000],
        "values": values(signature.pattern, text) if signature and signature.pattern else {},
        "remedy": signature.remedy if signature else "",
    }


def keep(lines: t.List[str], text: str) -> None:
    """Keep a line of a traceback; of one longer than any seen, the beginning and the end."""
    lines.append(text if len(text) <= _LONGEST else text[:_LONGEST] + " ..")
    if len(lines) > KEPT_LINES:
        half = KEPT_LINES // 2
        del lines[half]
        lines[half] = "  [... lines of a very long traceback are left out here ...]"
