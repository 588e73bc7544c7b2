# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""What one rule of a standstill concludes. Pure."""

from __future__ import annotations

import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils._records import Record, reading


class Finding(t.NamedTuple):
    """Why the group stands still, as far as is known."""

    cause: t.Optional[str]
    culprit: t.Optional[Record]
    lines: t.List[str]
    why: str
    """Ends a sentence: "No rank has moved for 60 s in phase init_dist: <why>"."""
    remedy: str = ""
    patience: t.Optional[float] = None
    """Seconds of silence after which it is believed; None: as long as the phase may take."""
    plain: bool = False
    """It is seen, not concluded from a silence: a single look is enough."""


Rule = t.Callable[[t.Sequence[Record], t.Sequence[Record]], t.Optional[Finding]]
"""Gets all ranks, and those of them that are up."""

EVIDENT = 30.0
"""Seconds of silence that suffice where the reason shows itself."""
DIVERGED = 60.0
"""Seconds of silence after which ranks in different steps of one phase count as waiting for each other."""


def last_lines(up: t.Sequence[Record]) -> t.List[str]:
    """Each rank's last line, as evidence."""
    return ["{}: {}".format(r["node"], reading(r).get("last_line")) for r in up if reading(r).get("last_line")]


# Evident.
