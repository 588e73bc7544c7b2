# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""When a load must be stopped for want of memory on its node: the floor, the readings, and what they say. Pure.

A reading is a pair: seconds by a clock that nobody sets, and the bytes that are available then.
"""

from __future__ import annotations

import re
import typing as t

FAR, NEAR = 0.1, 0.05
"""Seconds from reading to reading; when less than :data:`_NEAR` floors are left."""
_NEAR = 2
_GIB = 1 << 30
_LEAST, _SHARE, _MOST = 2 * _GIB, 0.02, 1 / 16
"""The floor by itself: bytes, or a share of the node's memory if that is more; and the greatest share, for small nodes."""
_HALF = 0.5
_FINE = 2.0
"""Seconds of readings that are kept at full rate."""
_POINTS = 300
"""Points of the curve before that."""
_AHEAD = 3
"""Readings over which a fall is seen, and for which it is thought to go on."""
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(%|[kmgt]?)(?:i?b)?", re.IGNORECASE)
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": _GIB, "t": 1 << 40}

Reading = t.Tuple[float, int]


def floor_bytes(wanted: str, total: int) -> int:
    """The bytes below which a load is stopped.

    :param wanted: C(auto), bytes, a size such as C(3g) (of 1024 times 1024 times 1024 bytes) or a share such as C(2%).
    :param total: the node's memory in bytes.
    :raises ValueError: for what is none of that, and for a floor that leaves a load less than half of the memory.

    By itself it is 2 GiB or 2 %: what the kernel, sshd and Docker need to go on with. Of less than 32 GiB it is a sixteenth.
    """
    if wanted.strip().lower() == "auto":
        return int(min(max(_LEAST, total * _SHARE), total * _MOST))
    match = _SIZE.fullmatch(wanted.strip())
    if not match or not float(match.group(1)):
        raise ValueError("'{0}' is no floor: give auto, bytes, a size such as 3g or a share such as 2%.".format(wanted))
    number, unit = float(match.group(1)), match.group(2).lower()
    floor = int(total * number / 100 if unit == "%" else number * _UNITS[unit])
    if floor > total * _HALF:
        text = "A floor of '{0}' is more than half of this node's {1:.1f} GiB and would stop any load: give less."
        raise ValueError(text.format(wanted, total / _GIB))
    return floor


def pause(available: int, floor: int) -> float:
    """Seconds until the next reading."""
    return NEAR if available < _NEAR * floor else FAR


def verdict(readings: t.Sequence[Reading], floor: int) -> str:
    """Why the load must be stopped: C(floor) or C(fall); or nothing.

    :param readings: the last ones, the oldest first.

    C(floor): the last two are below it; a single one is no reason. C(fall): less than two floors are left, each of the last three
    readings was lower than the one before, and as much again would end below the floor. Farther up a fall tells nothing: an engine takes
    all of its KV cache at once, 60 GiB in a second or two, and stops where it was told to.
    """
    values = [available for _at, available in readings[-_AHEAD - 1 :]]
    if len(values) >= 2 and max(values[-2:]) < floor:
        return "floor"
    steps = [values[at - 1] - values[at] for at in range(1, len(values))]
    if len(steps) == _AHEAD and min(steps) > 0 and values[-1] < _NEAR * floor and values[-1] - sum(steps) < floor:
        return "fall"
    return ""


def rate(readings: t.Sequence[Reading], over: float = 1.0) -> float:
    """Bytes per second by which it fell over the last second, 0 when it did not."""
    last = [reading for reading in readings if reading[0] >= readings[-1][0] - over]
    seconds = last[-1][0] - last[0][0] if last else 0
    return max(0.0, (last[0][1] - last[-1][1]) / seconds) if seconds > 0 else 0.0


class Curve:
    """The readings of a whole load in a bounded room: the last two seconds as they are, what came before thinned to a few hundred points."""

    def __init__(self) -> None:
        self.fine: t.List[Reading] = []
        self._coarse: t.List[Reading] = []
        self._step = 1.0

    def add(self, reading: Reading) -> None:
        """Note one."""
        if not self._coarse or reading[0] - self._coarse[-1][0] >= self._step:
            self._coarse.append(reading)
        if len(self._coarse) > _POINTS:
            # A load of half an hour keeps its beginning, with a point every eight seconds.
            del self._coarse[1::2]
            self._step *= 2
        self.fine.append(reading)
        # On a node that hardly moves any more seconds lie between two readings, and just then they must not be forgotten.
        while len(self.fine) > _AHEAD + 1 and self.fine[0][0] < reading[0] - _FINE:
            del self.fine[0]

    def points(self) -> t.List[Reading]:
        """All that is kept, the oldest first."""
        return [reading for reading in self._coarse if reading[0] < self.fine[0][0]] + self.fine if self.fine else []
