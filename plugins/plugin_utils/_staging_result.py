# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is private to the collection: it can change at any time.

"""What model_sync returns of a node: made of what was decided, and of its process's last status. Pure."""

from __future__ import annotations

import typing as t

from ansible_collections.sparkstack.inference.plugins.plugin_utils import _staging as plan
from ansible_collections.sparkstack.inference.plugins.plugin_utils._image_sync import amount, rate

Result = dict[str, t.Any]


def begin(path: str, wanted: plan.View, view: plan.View, mine: plan.Decision, waited: str | None) -> Result:
    """The result of a node for which nothing has moved yet.

    :param wanted: what the source has. :param view: what this node has. :param waited: what to tell of a copy that ran already, or None.
    """
    return {
        "changed": False,
        "actions": [*([waited] if waited else []), *([mine.text] if mine.text else [])],
        "bytes_total": sum(entry[0] for entry in wanted["files"].values()),
        "bytes_sent": 0,
        "seconds": 0.0,
        "throughput_mb_s": 0.0,
        "cpu_seconds": None,
        "verified": True,
        "moved": [],
        "extra": list(mine.extra),
        "deleted": [],
        "diff": plan.difference(path, wanted, view, mine),
    }


def account(result: Result, status: t.Mapping[str, t.Any], is_source: bool, check_mode: bool) -> None:
    """Put the last status of a node's process into its result."""
    sent = status["sent"] if is_source else status["received"]
    result.update(
        bytes_sent=sent,
        seconds=round(status["seconds"], 3),
        throughput_mb_s=rate(sent, status["seconds"]),
        cpu_seconds=status["cpu_seconds"],
        moved=sorted(status["moved"]),
    )
    result["changed"] = result["changed"] or bool(status["moved"] or status["touched"])
    if status["touched"]:
        result["actions"].append(f"set the time of {plan.some(sorted(status['touched']))}, equal by content")
    if check_mode and status.get("different"):
        result["actions"].append(f"{plan.some(result['moved'])} differ by content, {amount(status['different'])}")


def predict(result: Result, mine: plan.Decision, is_source: bool) -> Result:
    """The result in check mode."""
    if not is_source:
        result["changed"] = result["changed"] or bool(mine.delete)
        result["verified"] = not result["changed"]
        result["deleted"] = list(mine.delete)
    forget(result, mine)
    return result


def forget(result: Result, mine: plan.Decision) -> None:
    """What only had to be compared, and was equal, is no deed."""
    if not result["changed"] and mine.text in result["actions"]:
        result["actions"].remove(mine.text)


def came(result: Result) -> str:
    """What came, in a line: "45 files, 127.8 GB in 55.1 s (2.3 GB/s), verified"."""
    speed = f" in {result['seconds']:.1f} s ({amount(result['throughput_mb_s'] * 1e6)}/s)" if result["bytes_sent"] else ""
    return f"{plan.count(len(result['moved']))}, {amount(result['bytes_sent'])}{speed}, verified"
