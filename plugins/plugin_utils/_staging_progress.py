# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is private to the collection: it can change at any time.

"""How far a copy is, in a line for the user: "45.2 of 127.0 GB, 2.31 GB/s, 35 s left"."""

from __future__ import annotations

import collections
import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils._words import duration
from ansible_collections.sparkstack.inference.plugins.plugin_utils._image_sync import amount

_WINDOW = 15.0
"""Seconds over which the speed is taken."""
_LEAST = 10_000
"""Bytes a second below which no speed is told."""


class Meter:
    """One node's progress."""

    def __init__(self) -> None:
        self._seen: collections.deque[tuple[float, int]] = collections.deque()

    def line(self, status: t.Mapping[str, t.Any]) -> str:
        """The line for a status. :param status: C(now) in seconds of the node's own clock, C(there) and C(total) in bytes."""
        now, there, total = float(status["now"]), int(status["there"]), int(status["total"])
        self._seen.append((now, there))
        while len(self._seen) > 2 and now - self._seen[0][0] > _WINDOW:
            self._seen.popleft()
        begun, before = self._seen[0]
        speed = (there - before) / (now - begun) if now > begun else 0.0
        words = [of(there, total)]
        # Of what has hardly begun no end can be told.
        if speed >= _LEAST:
            words.append(f"{amount(speed)}/s")
            if there < total:
                words.append(f"{duration((total - there) / speed)} left")
        return ", ".join(words)


def of(there: int, total: int) -> str:
    """A part of a size: "45.2 of 127.0 GB"."""
    whole, unit = amount(total).split()
    scale = {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9}[unit]
    return f"{there / scale:.0f} of {whole} {unit}" if unit == "B" else f"{there / scale:.1f} of {whole} {unit}"
