# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""What a progress bar of tqdm tells."""

from __future__ import annotations

import re
import typing as t

# " 17% Completed | 2/12 [00:00<00:01,  6.78it/s]" and "  2%|#         | 1/58 [00:57<54:23, 57.2s/it]"; "<?" before the first step.
_BAR = re.compile(
    r"(?P<percent>\d+)%(?: Completed \||\|[^|\r\n]*\|) *(?P<done>\d+)/(?P<total>\d+) "
    r"\[(?:(?P<elapsed>\d+(?::\d\d)+)<(?P<remaining>\d+(?::\d\d)+|\?))?"
)


def read(text: str) -> t.Optional[t.Dict[str, t.Any]]:
    """The bar's C(percent), C(done) and C(total), and C(elapsed_seconds) and C(remaining_seconds) where it tells them.

    :returns: None for a text without a bar.
    """
    match = _BAR.search(text)
    if match is None:
        return None
    told: t.Dict[str, t.Any] = {name: int(match.group(name)) for name in ("percent", "done", "total")}
    for name in ("elapsed", "remaining"):
        if match.group(name) and match.group(name) != "?":
            told[name + "_seconds"] = _seconds(match.group(name))
    return told


def _seconds(clock: str) -> int:
    """A bar's time, "54:23" or "1:02:03", in seconds."""
    return sum(int(part) * 60**power for power, part in enumerate(reversed(clock.split(":"))))
