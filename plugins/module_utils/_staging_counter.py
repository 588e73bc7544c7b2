# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""Where a copy's nodes call: it listens on the fabric's addresses for the nodes that were named, and answers from a shelf (M(_staging_serve))."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import socket
import threading
import time
import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils import _staging_wire as wire
from ansible_collections.sparkstack.inference.plugins.module_utils import _transfer
from ansible_collections.sparkstack.inference.plugins.module_utils._staging_serve import Shelf

_AGAIN = 0.2
_LAST = 5.0
"""Seconds within which a thread that waits for callers notices that it is over."""
_STRANGERS = 32
"""Calls from one address at the same time that have not shown the token yet. More than the streams of a node, which call all at once."""


def canonical(address: str) -> str:
    """An address as the kernel writes it: C(FD00:0::1) is C(fd00::1). What is none stays as it is, and is nobody's."""
    try:
        return str(ipaddress.ip_address(address))
    except ValueError:
        return address


class Counter:
    """The listening side."""

    def __init__(self, token: str, callers: t.Collection[str], stall: float, certificate: str = "", key: str = "") -> None:
        """
        :param callers: the addresses that may call. :param stall: seconds after which a caller that takes nothing counts as gone.
        :param certificate: with its key, for TLS.
        """
        self._key, self._callers, self._stall = token.encode("ascii"), frozenset(map(canonical, callers)), stall
        self._context = wire.serving_context(certificate, key) if certificate else None
        self._servers: t.List[socket.socket] = []
        self._talks: t.Set[socket.socket] = set()
        self._strangers: t.Dict[socket.socket, str] = {}
        self._lock = threading.Lock()
        self._ended = threading.Condition(self._lock)
        self._threads: t.List[threading.Thread] = []
        self._over = False
        self.trouble: t.Optional[str] = None
        """Why it could not take a call, in a sentence."""
        self.sent = 0
        """Bytes of chunks."""

    def open(self, address: str, port: int) -> int:
        """Listen on an own address; :returns: the port. :raises _transfer.TransferError: a sentence."""
        server = socket.socket(_transfer.family(address), socket.SOCK_STREAM)
        try:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind((address, port))
            server.listen(64)
        except OSError as error:
            server.close()
            raise _transfer.TransferError(_transfer.bind_sentence(address, port, error)) from error
        self._servers.append(server)
        return int(server.getsockname()[1])

    def files(self) -> t.Set[int]:
        """The numbers of its open files."""
        return {server.fileno() for server in self._servers}

    @property
    def busy(self) -> int:
        """How many connections there are."""
        with self._lock:
            return len(self._talks)

    def serve(self, shelf: Shelf) -> None:
        """Begin to take calls."""
        for server in self._servers:
            thread = threading.Thread(target=self._accept, args=(server, shelf), daemon=True)
            thread.start()
            self._threads.append(thread)

    def close(self) -> None:
        """Give the ports back, and hang up on all. :meth:`idle` tells when they have noticed."""
        self._over = True
        for server in self._servers:
            # As long as a thread waits in accept(2), the kernel keeps a socket that was only closed.
            _transfer.shut(server)
        for thread in self._threads:
            thread.join(_LAST)
        for server in self._servers:
            server.close()
        with self._lock:
            talks = [*self._talks, *self._strangers]
        for talk in talks:
            _transfer.shut(talk)

    def idle(self, seconds: float) -> bool:
        """Wait until no call is answered any more; whether that came true in that time."""
        until = time.monotonic() + seconds
        with self._ended:
            while self._talks or self._strangers:
                if not self._ended.wait(max(0.0, until - time.monotonic())) and time.monotonic() >= until:
                    return False
        return True

    def _accept(self, server: socket.socket, shelf: Shelf) -> None:
        while not self._over:
            try:
                talk, peer = server.accept()
            except OSError as error:
                if self._over or error.errno in (errno.EBADF, errno.EINVAL):
                    return
                # accept(2) hands on errors of the network, and tells of too many open files: neither is the end of it.
                time.sleep(_AGAIN)
                continue
            address = canonical(peer[0])
            with self._lock:
                # Whoever has no token can hold a few threads, for some seconds.
                welcome = address in self._callers and list(self._strangers.values()).count(address) < _STRANGERS
                if welcome:
                    self._strangers[talk] = address
            if not welcome:
                talk.close()
                continue
            try:
                threading.Thread(target=self._converse, args=(talk, shelf), daemon=True).start()
            except RuntimeError as error:
                # It calls again, as often as it has time for. That it was not heard must not be a secret.
                self.trouble = f"A call from {address} could not be taken ({error}): raise the limit of processes of this user (`ulimit -u`)."
                with self._ended:
                    del self._strangers[talk]
                    self._ended.notify_all()
                talk.close()
                time.sleep(_AGAIN)

    def _converse(self, talk: socket.socket, shelf: Shelf) -> None:
        plain = talk
        try:
            talk.settimeout(_transfer.HELLO_SECONDS)
            if self._context is not None:
                talk = self._context.wrap_socket(talk, server_side=True)
            _transfer.admit(talk, self._key)
            _transfer.keep_alive(talk)
            with self._lock:
                del self._strangers[plain]
                self._talks.add(talk)
            if self._context is None:
                _transfer.patient(talk, 0, self._stall)
            while not self._over:
                # It asks again when it has room and time; keep-alive notices one that vanished.
                if self._context is not None:
                    talk.settimeout(None)
                kind, file, chunk = wire.ASK.unpack(_transfer.take(talk, wire.ASK.size))
                if self._context is not None:
                    talk.settimeout(self._stall)
                self._answer(talk, shelf, kind, file, chunk)
        except (OSError, ValueError, LookupError, _transfer.TransferError):
            # The caller's end of the connection knows best what became of it.
            pass
        finally:
            talk.close()
            plain.close()
            with self._ended:
                self._strangers.pop(plain, None)
                self._talks.discard(talk)
                self._ended.notify_all()

    def _answer(self, talk: socket.socket, shelf: Shelf, kind: bytes, file: int, chunk: int) -> None:
        begun: t.List[int] = []

        def begin(size: int) -> None:
            begun.append(size)
            talk.sendall(wire.ANSWER.pack(wire.DATA, size))

        def alive() -> None:
            talk.sendall(wire.ANSWER.pack(wire.ALIVE, 0))

        try:
            if kind == wire.GET:
                digest = shelf.send(file, chunk, alive, begin, talk.sendall)
                with self._lock:
                    self.sent += begun[0]
            else:
                digest = shelf.digest(file, chunk, alive)
            talk.sendall(wire.ANSWER.pack(wire.DIGEST, len(digest)) + digest)
        except (wire.NotHere, wire.Refused) as error:
            said = str(error).encode("utf-8", "replace")
            with contextlib.suppress(OSError):
                talk.sendall(wire.ANSWER.pack(wire.NOT_HERE if isinstance(error, wire.NotHere) else wire.REFUSED, len(said)) + said)
