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
import hashlib
import json
import os
import resource
import socket
import struct
import threading
import time
import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils import _detached
from ansible_collections.sparkstack.inference.plugins.module_utils import _staging_wire as wire
from ansible_collections.sparkstack.inference.plugins.module_utils._staging_counter import Counter
from ansible_collections.sparkstack.inference.plugins.module_utils._staging_disk import CHUNK
from ansible_collections.sparkstack.inference.plugins.module_utils._staging_fetch import Fetch
from ansible_collections.sparkstack.inference.plugins.module_utils._staging_line import Broken
from ansible_collections.sparkstack.inference.plugins.module_utils._staging_serve import Store
from ansible_collections.sparkstack.inference.plugins.module_utils._staging_state import CACHE, Memory, Wanted
from ansible_collections.sparkstack.inference.plugins.module_utils._transfer import Limits, TransferError, take

LEASE = 30.0
"""Seconds that it lives on after the last look at it."""
_TURN = 0.1
YOUNG = 15.0
"""Seconds for which a source that nobody has called yet may still be called: the nodes of a copy do not start in the same moment."""
_CLOSE = 5.0
"""Seconds that it waits at its end for the threads that answer other nodes."""
_CALL = 30.0
"""Seconds within which it answers, beyond those that it was asked to wait."""
_MOST = 1 << 28
"""Bytes of what is said on the node itself: the names of all files, at the most."""
WAITING, RUNNING, SERVING, DONE, FAILED = "waiting", "running", "serving", "done", "failed"

Message = t.Dict[str, t.Any]


class Agent:
    """One node's part of a copy, as the source or as a receiver."""

    def __init__(self, given: Message, cache: str = CACHE, lease: float = LEASE) -> None:
        """
        :param given: C(path), C(source) (whether this is it), C(files) (each C(name), C(size), C(mtime_ns), C(compare)), C(sum), C(token), C(callers),
            C(streams), C(connect), C(stall), C(dry), C(reread), C(certificate), C(key), and C(chunk) for tests.
        :raises OSError: with EADDRINUSE when there is one for this path already.
        """
        self.given = given
        self.state = SERVING if given["source"] else WAITING
        self.problem: t.Optional[str] = None
        self._lease, self._until = lease, time.monotonic() + lease
        self._began = time.time()
        self._started = self._ended = time.monotonic()
        self._changed = threading.Condition()
        self._over = threading.Event()
        self._home = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._home.bind(home(given["path"]))
            self._home.listen(16)
            self.counter = Counter(given["token"], given["callers"], given["stall"], given.get("certificate") or "", given.get("key") or "")
        except BaseException:
            self._home.close()
            raise
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._cache = cache
        self._fetch: t.Optional[Fetch] = None
        self._store: t.Optional[Store] = None

    def numbers(self) -> t.Set[int]:
        """Its open files."""
        return {self._home.fileno()} | self.counter.files()

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
        self._listener.start()
        while not self._over.wait(_TURN):
            if time.monotonic() > self._until:
                break
        self.close()

    def close(self) -> None:
        """Give the ports back, hang up, keep what is there."""
        self._over.set()
        self._leave()
        if self._fetch is not None:
            self._fetch.stop("The copy was ended before it was done: run this again, what has arrived is not sent twice.")
        # A thread that is still at a file must not find another one under its number.
        idle = self.counter.idle(_CLOSE)
        if self._fetch is not None:
            self._fetch.close(idle)
        if self._store is not None:
            self._store.close(idle)

    def _leave(self) -> None:
        """Give ports and name back. The kernel keeps both as long as a thread waits for callers there."""
        self.counter.close()
        with contextlib.suppress(OSError):
            self._home.shutdown(socket.SHUT_RDWR)
        if self._listener.is_alive() and threading.current_thread() is not self._listener:
            self._listener.join(_CLOSE)
        self._home.close()

    def _go(self, providers: t.Sequence[Message]) -> None:
        peers = [wire.Peer(entry["host"], [wire.Lane(*lane) for lane in entry["lanes"]], entry.get("pin") or "") for entry in providers]
        if self._fetch is None:
            raise AssertionError("Chunks are asked for before the files are known.")
        self._started = time.monotonic()
        self._turn(RUNNING)
        try:
            self._fetch.run(peers)
        except Broken as error:
            self._turn(FAILED, str(error))
        except Exception as error:  # A mistake of ours must not look like a copy that still runs.
            said = f"The copy to {self.given['path']} failed: {type(error).__name__}: {error}."
            self._fetch.stop(said)
            self._turn(FAILED, said)
        else:
            self._turn(DONE)

    def _turn(self, state: str, problem: t.Optional[str] = None) -> None:
        with self._changed:
            self.state, self.problem = state, problem
            self._ended = time.monotonic()
            self._changed.notify_all()

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

    def _listen(self) -> None:
        while not self._over.is_set():
            try:
                talk, _address = self._home.accept()
            except OSError:
                return
            try:
                threading.Thread(target=self._talk, args=(talk,), daemon=True).start()
            except RuntimeError:
                # A node that has no thread left for it answers all the same, one after the other.
                self._talk(talk)

    def _talk(self, talk: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError, KeyError, TransferError), talk:
            talk.settimeout(_CALL)
            if _caller(talk) not in (0, os.geteuid()):
                return
            message = _hear(talk)
            self._until = time.monotonic() + self._lease
            if message["do"] == "go":
                with self._changed:
                    first = self.state == WAITING
                    self.state = RUNNING if first else self.state
                if first:
                    try:
                        threading.Thread(target=self._go, args=(message["providers"],), daemon=True).start()
                    except RuntimeError as error:
                        self._turn(FAILED, f"The copy to {self.given['path']} could not begin ({error}): raise the limit of processes (`ulimit -u`).")
            elif message["do"] == "watch":
                self._watch(message)
            answer = self.status()
            if message["do"] == "end":
                answer["ended"] = bool(message.get("force") or not self._in_use(answer))
                if answer["ended"]:
                    # Who is told that it has ended finds its ports free.
                    self._leave()
            _say(talk, answer)
            if answer.get("ended"):
                self._over.set()

    def _in_use(self, status: Message) -> bool:
        """Whether it has work, so that another run must not end it."""
        if self.state == SERVING and not status["sent"] and status["now"] - self._started < YOUNG:
            return True
        return bool(status["busy"]) or self.state in (WAITING, RUNNING)

    def _watch(self, message: Message) -> None:
        """Wait as long as asked, unless the state changes."""
        until = time.monotonic() + min(float(message["seconds"]), self._lease / 2)
        with self._changed:
            while self.state == message.get("known") and time.monotonic() < until:
                self._changed.wait(until - time.monotonic())
        self._until = time.monotonic() + self._lease


def _caller(talk: socket.socket) -> int:
    """The user on the other end of a local socket. Source: unix(7), SO_PEERCRED."""
    credentials = talk.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[1])


def _say(talk: socket.socket, message: Message) -> None:
    body = json.dumps(message).encode("utf-8")
    talk.sendall(struct.pack("!Q", len(body)) + body)


def _hear(talk: socket.socket) -> Message:
    """What the other end of a local socket says: megabytes where a model has very many files."""
    size = struct.unpack("!Q", take(talk, 8))[0]
    if size > _MOST:
        raise TransferError(f"a message of {size} bytes")
    message: Message = json.loads(take(talk, size).decode("utf-8"))
    return message


def _raise_limit() -> None:
    """A model can have more files than a login may open at once."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def home(path: str) -> str:
    """Where this node's own modules find the agent of a path: a socket in the abstract namespace (unix(7))."""
    return "\0model-sync-" + hashlib.sha256(os.path.realpath(path).encode("utf-8", "surrogateescape")).hexdigest()[:32]


def ask(path: str, message: Message, seconds: float = 0) -> t.Optional[Message]:
    """Ask the agent of a path; None when there is none. :param seconds: that it may wait before it answers."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as talk:
        talk.settimeout(_CALL + seconds)
        try:
            talk.connect(home(path))
            _say(talk, message)
            return _hear(talk)
        except socket.timeout as error:
            raise OSError(f"the copy to {path} that runs on this node does not answer") from error
        except (OSError, TransferError):
            return None


def start(agent: Agent) -> None:
    """Have the agent run in a process of its own."""
    _detached.run("model-sync", agent.numbers, agent.run)
