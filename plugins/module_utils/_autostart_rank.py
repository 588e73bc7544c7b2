# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""What an agent remembers of its own rank, and what that says of the rank's end: a reboot's, Docker's, or its own. Pure.

A look is a mapping: C(docker) (the daemon answers), C(here) (there is such a container), and of one that is here C(id), C(launch), C(running),
C(began) (Docker's text), C(started) and C(finished) (seconds since the epoch, or None), C(boot) (the node's boot id), C(daemon) (which daemon
it is, or None), C(booted) and C(docker_started) (seconds since the epoch, or None).

A memory is a mapping, and plain data: C(id), C(began), C(boot), C(daemon) of the container when it was last seen to run, C(at) (when that was),
C(falling) (since when it is seen not to run), C(lost) and C(ended); and C(done) and C(error): the last order to start that was carried out, and
what Docker said to it. All times are of the node's own clock.
"""

from __future__ import annotations

import typing as t

Data = t.Dict[str, t.Any]

REBOOT, DOCKER, ITSELF, UNSURE = "reboot", "docker", "itself", "unsure"
"""How a rank came to an end."""
SWEPT = (REBOOT, DOCKER)
"""The ends after which a rank may be started again."""
_SETTLE = 15.0
"""Seconds for which a rank must be gone before its end counts as its own: a daemon that is being stopped ends containers while it still answers."""
_SHUTDOWN = 120.0
"""Seconds before a boot in which a container's end belongs to the shutdown."""
_SAME_TIME = 60.0
"""Seconds between a container's end and its daemon's start within which the one explains the other."""


def remember(memory: t.Mapping[str, t.Any], look: t.Mapping[str, t.Any], now: float) -> Data:
    """The memory after a look. :param now: seconds since the epoch by the node's clock."""
    if not look["docker"]:
        return dict(memory)
    kept = {key: memory[key] for key in ("done", "error") if key in memory}
    if not look["here"]:
        return {}
    seen = {key: look[key] for key in ("id", "began", "boot", "daemon")}
    if look["running"]:
        return dict(kept, at=now, **seen)
    same = memory.get("id") == look["id"] and memory.get("began") == look["began"]
    if same and memory.get("lost"):
        return dict(memory)
    lost, ended = _end(memory, look, now) if same else _by_the_clock(look, now)
    if lost == UNSURE:
        return dict(memory, falling=memory.get("falling", now))
    before = memory if same else dict(kept, **seen)
    return dict({key: value for key, value in before.items() if key != "falling"}, lost=lost, ended=ended)


def report(memory: t.Mapping[str, t.Any], look: t.Mapping[str, t.Any], now: float) -> Data:
    """What the agent tells the head's of its rank; C(ago): seconds since it was last known to run, None while it runs."""
    here, running = bool(look["docker"] and look["here"]), bool(look.get("running"))
    lost = memory.get("lost", UNSURE) if here and not running else None
    ended = memory.get("ended", memory.get("falling", now))
    return {
        "docker": bool(look["docker"]),
        "here": here,
        "launch": look.get("launch") if here else None,
        "boot": look["boot"],
        "running": running,
        "lost": lost,
        "ago": round(max(0.0, now - ended), 1) if lost else None,
        "done": memory.get("done"),
        "error": memory.get("error"),
    }


def _end(memory: t.Mapping[str, t.Any], look: t.Mapping[str, t.Any], now: float) -> t.Tuple[str, float]:
    """Of a rank that was seen to run: how it ended, and when it was last known to run."""
    at, finished, booted = float(memory["at"]), look["finished"], look["booted"]
    if look["boot"] != memory["boot"]:
        # Where nobody watched when it ended, and that was well before the shutdown, no reboot ended it.
        unwatched = finished is not None and finished > at + _SAME_TIME
        if unwatched and booted is not None and finished < booted - _SHUTDOWN:
            return ITSELF, finished
        return REBOOT, at
    if None not in (look["daemon"], memory["daemon"]) and look["daemon"] != memory["daemon"]:
        return DOCKER, at
    falling = memory.get("falling")
    if falling is None or now - falling < _SETTLE:
        return (UNSURE, at)
    return ITSELF, falling


def _by_the_clock(look: t.Mapping[str, t.Any], now: float) -> t.Tuple[str, float]:
    """The same of a rank that this agent never saw run."""
    began, finished, booted, daemon = look["started"], look["finished"], look["booted"], look["docker_started"]
    ended = finished if finished is not None else now
    if began is not None and booted is not None and booted > began and ended >= booted - _SHUTDOWN:
        return REBOOT, min(ended, booted)
    if began is not None and daemon is not None and daemon > began and abs(ended - daemon) < _SAME_TIME:
        return DOCKER, ended
    return ITSELF, ended
