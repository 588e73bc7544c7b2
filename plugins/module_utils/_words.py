# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""How sizes, times and several names stand in a sentence. Pure."""

from __future__ import annotations

import json
import time
import typing as t

GIB = float(1 << 30)


def size(count: t.Optional[float]) -> str:
    """Bytes for people: GiB, or MiB where it is less than one; a question mark where they are not known."""
    if count is None:
        return "?"
    return "{:.1f} GiB".format(count / GIB) if count >= GIB else "{:.0f} MiB".format(count / (1 << 20))


def duration(seconds: float) -> str:
    """Seconds in words: "0.4 s", "88 s", "12 min", "3.1 h"."""
    if seconds < 10:
        return "{:.1f} s".format(seconds)
    if seconds < 600:
        return "{:.0f} s".format(seconds)
    return "{:.0f} min".format(seconds / 60) if seconds < 7200 else "{:.1f} h".format(seconds / 3600)


def utc(moment: t.Any) -> t.Optional[str]:
    """Seconds since the epoch in ISO 8601, "2026-11-30T08:02:11Z"; None for what is no number."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(moment)) if isinstance(moment, (int, float)) else None


def clock(moment: t.Any, now: t.Optional[float] = None) -> str:
    """The same for people: the time of the day, and with C(now) also the date where that is another day's."""
    told = utc(moment)
    if told is None:
        return "an unknown time"
    return told if now is not None and told[:10] != str(utc(now))[:10] else told[11:]


def listed(names: t.Sequence[str]) -> str:
    """Names in a sentence: "a, b and c"."""
    return names[0] if len(names) == 1 else "{} and {}".format(", ".join(names[:-1]), names[-1])


def document(data: t.Optional[t.Mapping[str, t.Any]]) -> str:
    """A mapping as a diff shows it; nothing for an empty one."""
    return json.dumps(data, indent=2, sort_keys=True) + "\n" if data else ""
