# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""What a guard leaves behind when it has stopped a rank, and the words for it."""

from __future__ import annotations

import json
import os
import time
import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils import _guard_files
from ansible_collections.sparkstack.inference.plugins.module_utils._files import text
from ansible_collections.sparkstack.inference.plugins.module_utils._words import size

Told = t.Dict[str, t.Any]

WHAT = "was stopped by the memory guard"
_REMEDY = (
    "Let the engine take less on {{node}} (memory fraction, context length, concurrency), free what else holds memory there, or spread the model over more "
    "nodes; a load is stopped when less than {floor} are left (tp_launch_memory_floor)."
)
_STEPS = 5
"""Parts into which the fall is cut for people."""
_SWAPPED = 256 << 20


def told(deployment: str, container: str, began: t.Optional[float], root: str = "/") -> t.Optional[Told]:
    """What the guard on this node has told of this start of this container, or None.

    :param deployment: as the container's label has it, which anybody can write. :param container: its id.
    :param began: when it was last started, in seconds since the epoch.
    :returns: C(container) (its id), C(at) (seconds since the epoch by the node's clock), C(why) (C(floor) or C(fall)), C(available), C(total),
        C(floor) (bytes), C(limit) (the control group that has the limit, or nothing), C(rate) (bytes per second), C(swap_total), C(swap_used),
        C(swap_before), C(curve) (pairs of a time and bytes) and C(gone_s) (seconds until its last process was gone; None while one is left).
    """
    if not _guard_files.valid(deployment):
        return None
    try:
        found = json.loads(text(os.path.join(root, _guard_files.told(deployment))))
        same = found["container"] == container and (began is None or found["at"] >= began)
    except (ValueError, KeyError, TypeError):
        return None
    return t.cast(Told, found) if same else None


def message(found: t.Mapping[str, t.Any]) -> str:
    """How much was left, for the end of a sentence."""
    left = "{0} of {1} were left".format(size(found["available"]), size(found["total"]))
    if found["rate"] >= 1 << 20:
        left += ", falling by {0}/s".format(size(found["rate"]))
    return left + (" towards the floor of {0}".format(size(found["floor"])) if found["available"] >= found["floor"] else "")


def remedy(found: t.Mapping[str, t.Any]) -> str:
    """What to do; C({node}) in it stands for the node's name."""
    return _REMEDY.format(floor=size(found["floor"]))


def lines(found: t.Mapping[str, t.Any], node: str) -> t.List[str]:
    """The curve and what belongs to it, as evidence."""
    points = ", ".join("{0} at {1}".format(size(available), _clock(at)) for at, available in turns(found["curve"]))
    told_of = ["{0}: available: {1} UTC (floor {2}).".format(node, points, size(found["floor"]))] if points else []
    if found["limit"]:
        told_of.append("{0}: what counts is the limit of {1} of its control group {2}.".format(node, size(found["total"]), found["limit"]))
    if found["swap_used"] - found["swap_before"] >= _SWAPPED:
        text_of = "{0}: swap in use went from {1} to {2} of {3} meanwhile: the node was about to stand still."
        told_of.append(text_of.format(node, size(found["swap_before"]), size(found["swap_used"]), size(found["swap_total"])))
    if found.get("gone_s") is not None:
        told_of.append("{0}: its last process was gone {1:.1f} s later.".format(node, found["gone_s"]))
    return told_of


def page(found: t.Mapping[str, t.Any]) -> str:
    """All of it with every point of the curve, for somebody who was not there.

    :raises KeyError, TypeError, ValueError: for what no guard has written.
    """
    at = time.strftime("%Y-%m-%d ", time.gmtime(found["at"])) + _clock(found["at"])
    told_of = ["{0} {1} at {2} UTC: {3} (floor {4}).".format(found["name"], WHAT, at, message(found), size(found["floor"]))]
    told_of += lines(dict(found, curve=[]), found["name"]) + ["", "Available, by the node's clock in UTC:"]
    return "\n".join(told_of + ["  {0}  {1}".format(_clock(when), size(available)) for when, available in found["curve"]]) + "\n"


def turns(curve: t.Sequence[t.Sequence[float]]) -> t.List[t.Sequence[float]]:
    """The few points that tell a curve: its highest, where it had come down by each further part, and its end."""
    if not curve:
        return []
    top = max(range(len(curve)), key=lambda place: curve[place][1])
    fall = curve[top][1] - curve[-1][1]
    found = [curve[top]]
    for part in range(1, _STEPS):
        level = curve[top][1] - fall * part / _STEPS
        point = next(point for point in curve[top:] if point[1] <= level)
        found += [point] if point is not found[-1] else []
    return found + ([curve[-1]] if curve[-1] is not found[-1] else [])


def _clock(at: float) -> str:
    return time.strftime("%H:%M:%S", time.gmtime(at)) + "{0:.1f}".format(at % 1)[1:] if at % 1 < 0.95 else time.strftime("%H:%M:%S.0", time.gmtime(at + 0.05))
