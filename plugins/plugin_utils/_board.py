# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is private to the collection: it can change at any time.

"""The board: how the hosts of one task see each other, through the controller.

An action plugin runs once a host, each in a process of its own. The board is a folder on the controller in which every
host writes what it saw and reads what the others wrote. The network under test has no part in it.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
import typing as t

from ansible import constants as C
from ansible import context


def forks() -> int:
    """How many hosts this run of Ansible can serve at the same time."""
    return int(context.CLIARGS.get("forks") or C.DEFAULT_FORKS)


class Board:
    """A folder with one file a host and topic; a write replaces the file in one step, so no reader sees half of it."""

    def __init__(self, directory: str, member: str, members: t.Sequence[str]) -> None:
        """
        :param member: the host that writes here.
        :param members: all hosts that take part, in rank order.
        """
        self.directory = directory
        self.member = member
        self.members = list(members)
        os.makedirs(directory, mode=0o700, exist_ok=True)

    @classmethod
    def of_task(cls, task_id: str, member: str, members: t.Sequence[str]) -> Board:
        """The board of one task: every fork of a run finds the same folder, and it goes when the run ends.

        :param task_id: the task's id, the same for all its hosts.
        """
        # Replicas do the same task at the same time, each group with a board of its own.
        group = hashlib.sha256("\0".join(members).encode()).hexdigest()[:16]
        return cls(os.path.join(C.DEFAULT_LOCAL_TMP, f"board-{task_id}-{group}"), member, members)

    def _path(self, topic: str, member: str) -> str:
        return os.path.join(self.directory, f"{self.members.index(member)}.{topic}.json")

    def write(self, topic: str, data: t.Any) -> None:
        """Put this host's word on a topic; it replaces the earlier one."""
        path = self._path(topic, self.member)
        temporary = f"{path}.{os.getpid()}"
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as stream:
            json.dump(data, stream)
        os.replace(temporary, path)

    def read(self, topic: str) -> dict[str, t.Any]:
        """What the hosts have written on a topic so far, by host."""
        found: dict[str, t.Any] = {}
        for member in self.members:
            try:
                with open(self._path(topic, member), encoding="utf-8") as stream:
                    found[member] = json.load(stream)
            except FileNotFoundError:
                continue
        return found

    def wait(
        self,
        topic: str,
        members: t.Iterable[str],
        timeout: float,
        clock: t.Callable[[], float] = time.monotonic,
        pause: t.Callable[[float], None] = time.sleep,
    ) -> dict[str, t.Any]:
        """Wait until all of the given hosts have written on a topic.

        :param timeout: seconds; :raises TimeoutError: naming the hosts that are missing when they are over.
        """
        wanted = list(members)
        deadline = clock() + timeout
        while True:
            found = self.read(topic)
            missing = [member for member in wanted if member not in found]
            if not missing:
                return found
            if clock() >= deadline:
                raise TimeoutError(f"no word from {', '.join(missing)} after {timeout:.0f} s")
            pause(0.05)
