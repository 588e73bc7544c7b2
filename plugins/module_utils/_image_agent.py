# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""The process that moves an image on a node, as its source or as its receiver: it outlives the module that starts it, and tells how far it is.

Unlike a model's copy it goes on without a controller: half an image is of no use to anybody. It ends within the time that it was given in any case.
"""

from __future__ import annotations

import os
import threading
import time
import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils import _detached, _leased
from ansible_collections.sparkstack.inference.plugins.module_utils._docker_api import DockerError, DockerUnreachable
from ansible_collections.sparkstack.inference.plugins.module_utils._image_identity import with_tag
from ansible_collections.sparkstack.inference.plugins.module_utils._image_wire import Count
from ansible_collections.sparkstack.inference.plugins.module_utils._leased import LEASE, Leased, Message
from ansible_collections.sparkstack.inference.plugins.module_utils._transfer import TransferError

RUNNING, LOADING, DONE, FAILED = "running", "loading", "done", "failed"
FINAL = (DONE, FAILED)


class ImageAgent(Leased):
    """One node's part."""

    def __init__(self, docker_host: str, image: str, source: bool, work: t.Callable[[ImageAgent], Message], lease: float = LEASE) -> None:
        """
        :param source: whether this node gives the image. :param work: does it all, and returns what came of it; what it raises is what went wrong.
        :raises OSError: with EADDRINUSE when there is one for this image already.
        """
        super().__init__(home(docker_host, image), RUNNING, lease)
        self.source, self.count = source, Count()
        self._work = work
        self._result: Message = {}
        self._loaded = (0, 0)

    def run(self) -> None:
        """Do its part, and then wait for somebody who asks what came of it."""
        threading.Thread(target=self._do, daemon=True).start()
        self.stay()
        self.leave()

    def _do(self) -> None:
        try:
            self._result = self._work(self)
        except Exception as error:  # A mistake of ours must not look like work that goes on.
            self.turn(FAILED, sentence(error))
        else:
            self.turn(DONE)

    def loading(self, done: int = 0, total: int = 0) -> None:
        """All has come, and the daemon unpacks it. :param done: bytes of C(total) that it has unpacked."""
        self._loaded = (done, total)
        if self.state == RUNNING:
            self.turn(LOADING)

    def arriving(self) -> None:
        """It comes once more."""
        self.turn(RUNNING)

    def expired(self) -> bool:
        """Only what came of it is not kept without end."""
        return self.state in FINAL and super().expired()

    def in_use(self, status: Message) -> bool:
        """Whether it is at work."""
        return self.state not in FINAL

    def status(self) -> Message:
        """How far it is: C(there) of C(total) bytes (0: not known) have come, or, while it loads, are unpacked; times in seconds."""
        now = time.monotonic()
        there, total = self._loaded if self.state == LOADING else (self.count.there, self.count.total or 0)
        return {
            "state": self.state,
            "problem": self.problem,
            "source": self.source,
            "there": there,
            "total": total,
            "began": self._began,
            "now": now,
            "seconds": round((self._ended if self.state in FINAL else now) - self._started, 3),
            "result": self._result,
        }


def sentence(error: Exception) -> str:
    """What went wrong, for the user."""
    if isinstance(error, DockerUnreachable):
        return f"{error} Look whether Docker runs: start it with `systemctl start docker`, or let this task run with `become`."
    if isinstance(error, DockerError):
        return f"Docker says: {error}"
    if isinstance(error, (TransferError, OSError)):
        return str(error)
    return f"{type(error).__name__}: {error}"


def home(docker_host: str, image: str) -> str:
    """Where this node's own modules find the agent of an image."""
    # Of each user its own: what root has left to be looked at for half a minute would be in another user's way, who can't end it.
    return _leased.home("image-sync", "{} {} {}:{}".format(os.geteuid(), docker_host.replace("unix://", ""), *with_tag(image)))


def start(agent: ImageAgent) -> None:
    """Have the agent run in a process of its own."""
    _detached.run("image-sync", agent.numbers, agent.run)
