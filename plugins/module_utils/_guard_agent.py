# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""The memory guard: a program of its own beside a rank that loads. It stops the rank before the node can do nothing any more.

A look over ssh each second is too slow for that, and on unified memory too late means a walk to the power switch. It is made of the
collection's own utils, runs out of one zip file, and needs nothing but the node's Python.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import sys
import time
import typing as t
from urllib.parse import quote

from ansible_collections.sparkstack.inference.plugins.module_utils import _guard, _guard_files, _guard_told, _systemd, _unit_files
from ansible_collections.sparkstack.inference.plugins.module_utils._docker_api import DockerAPI, DockerError
from ansible_collections.sparkstack.inference.plugins.module_utils._guard_node import Memory, Rank
from ansible_collections.sparkstack.inference.plugins.module_utils._words import size

_REFRESH = 1.0
"""Seconds after which it looks whether its rank still runs, and which limits there are."""
_ANSWER = 1.0
"""Seconds that Docker gets."""
_WAIT = 0.2
"""Seconds after which it asks Docker as well to kill what is still there."""
_ENDING = 30.0
"""Seconds for which it looks after processes that were killed: to give 100 GiB back takes the kernel a while."""
_ALL = 3
"""MCL_CURRENT and MCL_FUTURE of mlockall(2)."""

CRITICAL, NOTICE, INFO = 2, 5, 6
"""Priorities of the journal, see sd-daemon(3)."""


class Guard:
    """The guard of one rank."""

    def __init__(
        self,
        settings: t.Mapping[str, t.Any],
        say: t.Callable[[int, str], None],
        root: str = "/",
        clock: t.Callable[[], float] = time.monotonic,
        rank: t.Optional[Rank] = None,
    ) -> None:
        """:param settings: see M(sparkstack.inference.memory_guard), with C(container) (its id), C(pid) and C(floor_bytes)."""
        self.settings, self.say, self.root, self.clock = settings, say, root, clock
        self.floor: int = settings["floor_bytes"]
        self.rank = rank or Rank(settings["container"], settings["pid"], root)
        self.curve = _guard.Curve()
        self.began = self._refreshed = clock()
        self.first = self.rank.memory()

    def turn(self) -> t.Optional[float]:
        """Read, and stop the rank if it must be; returns the seconds until the next reading, or None when there is nothing more to guard."""
        now = self.clock()
        if now - self._refreshed >= _REFRESH:
            self._refreshed = now
            if self.rank.gone():
                self.say(INFO, "The rank's container has ended.")
                return None
            if now - self.began >= self.settings["until"]:
                self.say(INFO, "Its time of {0} s is over.".format(self.settings["until"]))
                return None
            self.rank.refresh()
        memory = self.rank.memory()
        if not memory.total:
            # A file that could not be read, for want of memory even, says nothing of how much there is.
            return _guard.NEAR
        self.curve.add((now, memory.available))
        why = _guard.verdict(self.curve.fine, self.floor)
        if not why:
            return _guard.pause(memory.available, self.floor)
        self.stop(why, memory, now)
        return None

    def stop(self, why: str, memory: Memory, now: float) -> None:
        """Tell why, then kill the rank, then see it gone.

        The word comes first: after the kill nobody could say why, and a node that is about to stand still may let no second step be done.
        The processes are killed by their control group and not by way of Docker, which may itself be waiting for memory; it is asked
        to do the same for what no group shows.
        """
        wall = time.time() - now
        record = {
            "container": self.settings["container"],
            "name": self.settings["name"],
            "deployment": self.settings["deployment"],
            "at": round(now + wall, 3),
            "why": why,
            "available": memory.available,
            "total": memory.total,
            "limit": memory.limit,
            "floor": self.floor,
            "rate": round(_guard.rate(self.curve.fine)),
            "swap_total": memory.swap_total,
            "swap_used": memory.swap_used,
            "swap_before": self.first.swap_used,
            "curve": [[round(at + wall, 2), available] for at, available in self.curve.points()],
            "gone_s": None,
        }
        self._tell(record)
        self.rank.kill()
        self.say(CRITICAL, "{0} {1}: {2}.".format(self.settings["name"], _guard_told.WHAT, _guard_told.message(record)))
        asked = False
        while self.rank.kill() and self.clock() - now < _ENDING:
            if self.clock() - now > _WAIT and not asked:
                asked = True
                self._ask_docker()
            time.sleep(_guard.NEAR)
        if not self.rank.processes():
            record["gone_s"] = round(self.clock() - now, 2)
            self._tell(record)

    def _tell(self, record: t.Mapping[str, t.Any]) -> None:
        # A full /run, or whatever else goes wrong with the word, must not keep it from the deed.
        with contextlib.suppress(Exception):
            path = os.path.join(self.root, _guard_files.told(self.settings["deployment"]))
            _unit_files.write(path, json.dumps(record), 0o644)

    def _ask_docker(self) -> None:
        api = DockerAPI(self.settings["docker_socket"], _ANSWER)
        with contextlib.suppress(DockerError, OSError):
            api.request("POST", "/containers/{0}/kill".format(quote(self.settings["container"], safe="")), {"signal": "KILL"}).close()


def main(arguments: t.Sequence[str]) -> int:
    """Guard until there is nothing more to guard; returns an exit code.

    :param arguments: the path of the settings.
    """
    settings = _unit_files.read(arguments[0]) if len(arguments) == 1 else None
    if settings is None:
        sys.stderr.write("<3>There are no settings to be read: give the path of /run/sparkstack/guard/DEPLOYMENT.json.\n")
        return 2

    def say(priority: int, what: str) -> None:
        sys.stderr.write("<{0}>{1}: {2}\n".format(priority, settings["deployment"], what))
        sys.stderr.flush()

    # Its pages stay in memory, whatever the kernel looks for. Where that is not allowed it guards all the same.
    ctypes.CDLL(None).mlockall(_ALL)
    guard = Guard(settings, say)
    text = "Stops {0} when less than {1} of {2} are available; {3} are."
    say(INFO, text.format(settings["name"], *(size(count) for count in (guard.floor, guard.first.total, guard.first.available))))
    _systemd.notify("READY=1")
    wait: t.Optional[float] = 0.0
    while wait is not None:
        time.sleep(wait)
        wait = guard.turn()
    return 0
