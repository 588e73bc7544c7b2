# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""What a rank that has no container, or never ran, can be blamed for: that it is not there, and nothing else. Pure."""

from __future__ import annotations

import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils._causes import CAUSES
from ansible_collections.sparkstack.inference.plugins.module_utils._records import Candidate, Record, message, name, scene

REMEDY = "If rank {rank} runs under another name, name its container, or give its log; otherwise start all ranks again: none of them heals alone."


def absent(record: Record) -> str:
    """That a rank is not there, without the dot that ends a sentence."""
    container = scene(record, "absent")
    if container is None:
        return f"{name(record)} was given as never started"
    return f"There is no container {container} on {record['node']}" if container else f"There is no container of an engine on {record['node']}"


def needed(record: Record) -> str:
    """A rank that is not there, though the head says that all came up."""
    return f"{absent(record)}; the head, which says that it is ready, needs rank {record['rank']}."


def blamed(cause: str, record: Record, candidate: Candidate, teller: Record) -> t.Tuple[str, t.Optional[Record], str]:
    """What is left of the blame that another rank's log puts on one that is not there.

    :returns: the cause, whose fault it is, and a sentence, or nothing for the usual one.
    """
    what, tells = CAUSES[cause].what, f", as {name(teller)} tells{message(candidate)}."
    if cause in ("rendezvous_timeout", "net_unreachable"):
        # Whether there is a route to where it should be can be seen from outside.
        return cause, record, ""
    if candidate["kind"] == "peer":
        return cause, record, f"{absent(record)}, and {name(teller)} tells that its peer left{message(candidate)}."
    if candidate.get("address") or "rank" in candidate["values"]:
        # "(RayWorkerProc pid=17722, ip=192.168.200.12)": it did run, whatever is there of it now.
        return cause, record, f"{name(record)} {what}{tells}"
    return cause, None, somebody(cause, candidate, teller)


def somebody(cause: str, candidate: Candidate, teller: Record) -> str:
    """What a rank's log tells of another one that it does not name."""
    return f"A rank {CAUSES[cause].what}, as {name(teller)} tells{message(candidate)}."
