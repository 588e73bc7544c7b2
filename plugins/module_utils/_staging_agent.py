# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""The process that copies on a node: it outlives the module that starts it, tells how far it is, and ends with the controller.

Whoever looks at it keeps it alive for half a minute more. So it is gone soon after the last controller is, and a second run of Ansible that finds it
sees the copy to its end. Only the same user's modules and root's reach it, over a local socket that no network has.
"""

from __future__ import annotations

import contextlib
import os
import resource
import threading
import time
import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils import _detached, _leased
from ansible_collections.sparkstack.inference.plugins.module_utils import _staging_wire as wire
from ansible_collections.sparkstack.inference.plugins.module_utils._leased import LEASE, Leased, Message
from ansible_collections.sparkstack.inference.plugins.module_utils._staging_counter import Counter
from ansible_collections.sparkstack.inference.plugins.module_utils._staging_disk import CHUNK
from ansible_collections.sparkstack.inference.plugins.module_utils._staging_fetch import Fetch
from ansible_collections.sparkstack.inference.plugins.module_utils._staging_line import Broken
from ansible_collections.sparkstack.inference.plugins.module_utils._staging_serve import Store
from ansible_collections.sparkstack.inference.plugins.module_utils._staging_state import CACHE, Memory, Wanted
from ansible_collections.sparkstack.inference.plugins.module_utils._transfer import Limits

_CLOSE = 5.0
"""Seconds that it waits at its end for the threads that answer other nodes."""
YOUNG = 15.0
"""Seconds for which a source that nobody has called yet may still be called: the nodes of a copy do not start in the same moment."""
WAITING, RUNNING, SERVING, DONE, FAILED = "waiting", "running", "serving", "done", "failed"


class Agent(Leased):
    """One node's part of a copy, as the source or as a receiver."""

    def __init__(self, given: Message, cache: str = CACHE, lease: float = LEASE) -> None:
        """
        :param given: C(path), C(source) (whether this is it), C(files) (each C(name), C(size), C(mtime_ns), C(compare)), C(sum), C(token), C(callers),
            C(streams), C(connect), C(stall), C(dry), C(reread), C(certificate), C(key), and C(chunk) for tests.
        :raises OSError: with EADDRINUSE when there is one for this path already.
        """
        super().__init__(home(given["path"]), SERVING if given["source"] else WAITING, lease)
        self.given = given
        try:
            self.counter = Counter(given["token"], given["callers"], given["stall"], given.get("certificate") or "", given.get("key") or "")
        except BaseException:
            self.leave()
            raise
        self._cache = cache
        self._fetch: t.Optional[Fetch] = None
        self._store: t.Optional[Store] = None

    def numbers(self) -> t.Set[int]:
        """Its open files."""
        return super().numbers() | self.counter.files()

    def run(self) -> None:
        """Do its part, until it is told to end or nobody looks any more."""
        _raise_limit()
        chunk = self.given.get("chunk") or CHUNK
        files = [Wanted(entry["name"], entry["size"], entry["mtime_ns"], self.given["sum"], chunk) for entry in self.given["files"]]
        memory = Memory(self.given["path"], self.given["sum"], chunk, self._cache)
        if self.given["source"]:
            self._store = Store(self.given["path"], files, memory, self.given["reread"])
            self.counter.serve(self._store)
        else:
            mine = [wanted if self.given["files"][number]["mine"] else wanted._replace(name="") for number, wanted in enumerate(files)]
            compare = [number for number, entry in enumerate(self.given["files"]) if entry["compare"]]
            self._fetch = Fetch(
                self.given["path"],
                mine,
                compare,
                memory,
                Limits(self.given["connect"], self.given["stall"], 0),
                self.given["streams"],
                self.given["token"],
                dry=self.given["dry"],
                reread=self.given["reread"],
                passing_on=bool(self.given["callers"]),
            )
            self.counter.serve(self._fetch.shelf)
        self.stay()
        self.close()

    def close(self) -> None:
        """Give the ports back, hang up, keep what is there."""
        self.counter.close()
        self.leave()
        if self._fetch is not None:
            self._fetch.stop("The copy was ended before it was done: run this again, what has arrived is not sent twice.")
        # A thread that is still at a file must not find another one under its number.
        idle = self.counter.idle(_CLOSE)
        if self._fetch is not None:
            self._fetch.close(idle)
        if self._store is not None:
            self._store.close(idle)

    def _go(self, providers: t.Sequence[Message]) -> None:
        peers = [wire.Peer(entry["host"], [wire.Lane(*lane) for lane in entry["lanes"]], entry.get("pin") or "") for entry in providers]
        if self._fetch is None:
            raise AssertionError("Chunks are asked for before the files are known.")
        self._started = time.monotonic()
        self.turn(RUNNING)
        try:
            self._fetch.run(peers)
        except Broken as error:
            self.turn(FAILED, str(error))
        except Exception as error:  # A mistake of ours must not look like a copy that still runs.
            said = f"The copy to {self.given['path']} failed: {type(error).__name__}: {error}."
            self._fetch.stop(said)
            self.turn(FAILED, said)
        else:
            self.turn(DONE)

    def status(self) -> Message:
        """How far it is. Times in seconds, sizes in bytes; C(began) since the epoch."""
        now = time.monotonic()
        sizes = [entry["size"] for entry in self.given["files"] if entry["mine"]]
        used = resource.getrusage(resource.RUSAGE_SELF)
        told: Message = {
            "state": self.state,
            "problem": self.problem,
            "trouble": self.counter.trouble,
            "source": self.given["source"],
            "total": sum(sizes),
            "there": sum(sizes),
            "received": 0,
            "sent": self.counter.sent,
            "busy": self.counter.busy,
            "began": self._began,
            "now": now,
            "seconds": (self._ended if self.state in (DONE, FAILED) else now) - self._started,
            "cpu_seconds": used.ru_utime + used.ru_stime,
            "moved": [],
            "touched": [],
            "different": 0,
        }
        if self._fetch is not None:
            arrivals = list(self._fetch.files.values())
            told["there"] = self._fetch.there
            told["received"] = self._fetch.received
            if self.state in (DONE, FAILED):
                # Of a model of ten thousands of files the names are a megabyte, and nobody asks for them every few seconds.
                told["moved"] = [one.wanted.name for one in arrivals if one.final and one.moved]
                told["touched"] = [one.wanted.name for one in arrivals if one.touched]
            told["different"] = sum(one.different for one in arrivals)
        return told

    def heed(self, message: Message) -> None:
        """Begin, when it is told who gives."""
        if message["do"] != "go":
            return
        with self._changed:
            first = self.state == WAITING
            self.state = RUNNING if first else self.state
        if first:
            try:
                threading.Thread(target=self._go, args=(message["providers"],), daemon=True).start()
            except RuntimeError as error:
                self.turn(FAILED, f"The copy to {self.given['path']} could not begin ({error}): raise the limit of processes (`ulimit -u`).")

    def hang_up(self) -> None:
        """Who is told that it has ended finds its ports free."""
        self.counter.close()

    def in_use(self, status: Message) -> bool:
        """Whether it has work, so that another run must not end it."""
        if self.state == SERVING and not status["sent"] and status["now"] - self._started < YOUNG:
            return True
        return bool(status["busy"]) or self.state in (WAITING, RUNNING)


def _raise_limit() -> None:
    """A model can have more files than a login may open at once."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def home(path: str) -> str:
    """Where this node's own modules find the agent of a path."""
    return _leased.home("model-sync", os.path.realpath(path))


def ask(path: str, message: Message, seconds: float = 0) -> t.Optional[Message]:
    """Ask the agent of a path; None when there is none. :param seconds: that it may wait before it answers."""
    try:
        return _leased.ask(home(path), message, seconds)
    except OSError as error:
        raise OSError(f"the copy to {path} that runs on this node does not answer") from error


def start(agent: Agent) -> None:
    """Have the agent run in a process of its own."""
    _detached.run("model-sync", agent.numbers, agent.run)
