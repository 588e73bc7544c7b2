# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""A process on a node that outlives the module that starts it, tells how far it is, and ends some time after the last look at it.

So a second run of Ansible that finds it can see its work to the end. Only the same user's modules and root's reach it, over a local socket that no
network has.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import struct
import threading
import time
import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils._transfer import TransferError, take

LEASE = 30.0
"""Seconds that it lives on after the last look at it."""
_TURN = 0.1
_CALL = 30.0
"""Seconds within which it answers, beyond those that it was asked to wait."""
_MOST = 1 << 28
"""Bytes of what is said on the node itself."""

Message = t.Dict[str, t.Any]


class Leased:
    """What such a process is to those who look at it. What it does is for a class of its own to say."""

    def __init__(self, name: str, state: str, lease: float = LEASE) -> None:
        """
        :param name: of its socket, see :func:`home`. :param state: in which it begins.
        :raises OSError: with EADDRINUSE when there is one by this name already.
        """
        self.state = state
        self.problem: t.Optional[str] = None
        self._lease, self._until = lease, time.monotonic() + lease
        self._began = time.time()
        self._started = self._ended = time.monotonic()
        self._changed = threading.Condition()
        self._over = threading.Event()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._home = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._home.bind(name)
            self._home.listen(16)
        except BaseException:
            self._home.close()
            raise

    def status(self) -> Message:
        """How far it is: C(state), C(problem), C(began) (seconds since the epoch), C(now), C(there), C(total), and what else its users know of."""
        raise NotImplementedError

    def in_use(self, status: Message) -> bool:
        """Whether it has work, so that another run must not end it."""
        raise NotImplementedError

    def heed(self, message: Message) -> None:
        """Do what it is told, where that is more than to be looked at or to end."""

    def hang_up(self) -> None:
        """Give ports back: who is told that it has ended finds them free."""

    def expired(self) -> bool:
        """Whether nobody has looked for too long."""
        return time.monotonic() > self._until

    def numbers(self) -> t.Set[int]:
        """Its open files."""
        return {self._home.fileno()}

    def stay(self) -> None:
        """Answer, until it is told to end or nobody looks any more."""
        self._listener.start()
        while not self._over.wait(_TURN) and not self.expired():
            pass

    def hand_over(self) -> None:
        """Leave it to the process that was made of this one."""
        self._home.close()

    def leave(self) -> None:
        """Answer no more."""
        self._over.set()
        self._let_go()

    def turn(self, state: str, problem: t.Optional[str] = None) -> None:
        """Go into another state, and tell those who wait for one."""
        with self._changed:
            self.state, self.problem = state, problem
            self._ended = time.monotonic()
            self._changed.notify_all()

    def _let_go(self) -> None:
        with contextlib.suppress(OSError):
            self._home.shutdown(socket.SHUT_RDWR)
        if self._listener.is_alive() and self._listener is not threading.current_thread():
            # The name is free only when nobody is in accept(2) any more.
            self._listener.join(_CALL)
        self._home.close()

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
            if message["do"] == "watch":
                self._watch(message)
            else:
                self.heed(message)
            answer = self.status()
            if message["do"] == "end":
                answer["ended"] = bool(message.get("force") or not self.in_use(answer))
                if answer["ended"]:
                    self.hang_up()
                    self._let_go()
            _say(talk, answer)
            if answer.get("ended"):
                self._over.set()

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


def home(kind: str, what: str) -> str:
    """Where this node's own modules find the process that is at something: a socket in the abstract namespace (unix(7))."""
    return "\0{}-{}".format(kind, hashlib.sha256(what.encode("utf-8", "surrogateescape")).hexdigest()[:32])


def ask(name: str, message: Message, seconds: float = 0) -> t.Optional[Message]:
    """Ask the process of that name; None when there is none. :param seconds: that it may wait before it answers. :raises OSError: when it doesn't."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as talk:
        talk.settimeout(_CALL + seconds)
        try:
            talk.connect(name)
            _say(talk, message)
            return _hear(talk)
        except socket.timeout as error:
            raise OSError("what runs on this node does not answer") from error
        except (OSError, ValueError, TransferError):
            return None
