# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is private to the collection: it can change at any time.

"""How a rank gets on: for how long it has made no progress, how fast it reads, and its state in one line for the user."""

from __future__ import annotations

import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils._engines._types import PHASES

_WINDOW = 10.0
"""Seconds over which the rate of reading is taken."""
_GAP = 60.0
"""Seconds between two looks from which on they are no silence of the rank: the controller slept, its clock was set, or the node did not answer."""


class Progress:
    """For how long a rank has made no progress of any kind."""

    def __init__(self) -> None:
        self._marks: dict[str, t.Any] = {}
        self._cpu: tuple[float, float] | None = None
        self._moved: float | None = None
        self._seen = 0.0
        self._reads: list[tuple[float, float]] = []
        self.busy = False
        self.rate: float | None = None
        """Bytes a second that it has read from disks over the last looks, or None where the kernel doesn't tell."""

    def quiet(self, record: t.Mapping[str, t.Any], now: float) -> float:
        """Seconds since the last progress, and keep the new record's figures.

        :param record: what the probe returned. :param now: the controller's clock.
        """
        reading, activity = record.get("reading") or {}, record.get("activity") or {}
        figures = {
            "phase": reading.get("phase"),
            "progress": str(reading.get("progress")),
            "useful": reading.get("useful"),
            # A few pages come and go in any process; a load moves more.
            "read": int(activity.get("read_bytes") or 0) >> 20,
            "memory": int(activity.get("memory_bytes") or 0) >> 25,
        }
        if self._moved is None:
            ages = [record["now"] - at for at in (reading.get("last_time"), record.get("started_at")) if at is not None]
            self._moved = now - max(0.0, min(ages, default=0.0))
        elif figures != self._marks:
            self._moved = now
        elif not 0 <= now - self._seen <= _GAP:
            self._moved += now - self._seen
        self._marks, self._seen = figures, now
        cpu = activity.get("cpu_seconds")
        if cpu is not None:
            if self._cpu is not None and now > self._cpu[0]:
                self.busy = (cpu - self._cpu[1]) / (now - self._cpu[0]) > 0.3
            self._cpu = (now, cpu)
        self._measure(activity.get("read_bytes"), now)
        return now - self._moved

    def _measure(self, read: float | None, now: float) -> None:
        if read is None:
            return
        self._reads = [mark for mark in self._reads if now - mark[0] <= _WINDOW][-20:] + [(now, read)]
        spent, before = now - self._reads[0][0], self._reads[0][1]
        self.rate = max(0.0, read - before) / spent if spent > 0 else None


def line(record: t.Mapping[str, t.Any]) -> str:
    """One rank's state in a line; the seconds are since its container's start.

    "[spark1] 4/9 load_weights 71% (5/7), 42.1 GB read at 1.2 GB/s, 88 s, about 35 s left in this phase".
    """
    name = f"[{record['node']}]"
    if record.get("unreachable"):
        return f"{name} {record['unreachable']}"
    if record.get("removed"):
        return f"{name} its container was removed"
    if not record.get("started"):
        return f"{name} no container yet"
    reading = record.get("reading") or {}
    phase = reading.get("phase") or "container"
    parts = [f"{name} {PHASES.index(phase)}/{len(PHASES) - 1} {phase}"]
    progress = reading.get("progress")
    if progress:
        parts[0] += f" {progress['percent']}% ({progress['done']}/{progress['total']})"
    if record.get("paused"):
        parts[0] += " paused"
    if record.get("restarts"):
        parts.append(f"restarted by Docker {times(record['restarts'])}")
    if not record.get("running"):
        parts.append(f"ended with exit code {record.get('exit_code')}")
    elif phase == "load_weights":
        parts += _volume(record)
    if record.get("seconds") is not None:
        parts.append(("" if record.get("running") else "after ") + f"{record['seconds']:.0f} s")
    left = _left(record)
    if left is not None:
        parts.append(f"about {left:.0f} s left in this phase")
    return ", ".join(parts)


def times(count: int) -> str:
    """How often: "once", "7 times"."""
    return "once" if count == 1 else f"{count} times"


def passed(record: t.Mapping[str, t.Any], last: str | None) -> list[str]:
    """The phases that a rank went through between two looks, a line each: "[spark1] 4/9 load_weights, took 2.0 s".

    :param last: the phase that was told last, or None where nothing was told yet.
    """
    phases = ((record.get("reading") or {}).get("phases") or [])[:-1]
    told = PHASES.index(last) if last in PHASES else len(PHASES)
    return [
        f"[{record['node']}] {PHASES.index(phase['phase'])}/{len(PHASES) - 1} {phase['phase']}, took {phase['seconds']:.1f} s"
        for phase in phases
        if PHASES.index(phase["phase"]) > told and phase.get("seconds") is not None
    ]


def _volume(record: t.Mapping[str, t.Any]) -> list[str]:
    """What a loading rank has read and how fast, or, where the page cache gives it all, what it holds."""
    activity, rate = record.get("activity") or {}, record.get("rate")
    if rate is not None and rate >= 1e6:
        return [f"{activity['read_bytes'] / 1e9:.1f} GB read at {rate / 1e9:.2f} GB/s"]
    if activity.get("memory_bytes"):
        return [f"{activity['memory_bytes'] / 1e9:.1f} GB in memory"]
    return []


def _left(record: t.Mapping[str, t.Any]) -> float | None:
    """Seconds that the phase will still take, by its progress bar: by the bar's own word, else by its share of the time so far."""
    progress, since = (record.get("reading") or {}).get("progress"), record.get("seconds_in_phase")
    if not progress or not record.get("running") or not 0 < progress["done"] < progress["total"]:
        return None
    if progress.get("remaining_seconds") is not None:
        return float(progress["remaining_seconds"])
    return float(since) * (progress["total"] - progress["done"]) / progress["done"] if since else None
