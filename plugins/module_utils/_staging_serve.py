# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""The giving side of a copy: it listens on the fabric's addresses for the nodes that were named, and gives chunks of files, as they are asked for."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import threading
import time
import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils import _staging_wire as wire
from ansible_collections.sparkstack.inference.plugins.module_utils import _transfer
from ansible_collections.sparkstack.inference.plugins.module_utils._staging_disk import Buffer, Plain, Pool, chunks, length
from ansible_collections.sparkstack.inference.plugins.module_utils._staging_state import Digests, Memory, Wanted
from ansible_collections.sparkstack.inference.plugins.module_utils._staging_sum import PIECE, SUMS

BEAT = 1.0
"""Seconds from one sign of life to the next while a caller waits."""
_AGAIN = 0.2

Alive = t.Callable[[], None]
Put = t.Callable[[memoryview], None]


class Shelf(t.Protocol):
    """Where chunks come from. All methods are called from many threads."""

    def digest(self, file: int, chunk: int, alive: Alive) -> bytes:
        """A chunk's digest. :raises wire.NotHere: :raises wire.Refused: :raises OSError:"""

    def send(self, file: int, chunk: int, alive: Alive, begin: t.Callable[[int], None], put: Put) -> bytes:
        """Give a chunk: its length to C(begin), then its bytes to C(put); :returns: its digest. The same errors, before C(begin) only."""


class Store:
    """The source's shelf: files that are there, whole and untouched."""

    def __init__(self, root: str, files: t.Sequence[Wanted], memory: Memory, pool: Pool) -> None:
        self._root, self._files, self._memory, self._pool = root, files, memory, pool
        self._lock = threading.Lock()
        self._open: t.Dict[int, Plain] = {}
        self._known: t.Dict[int, Digests] = {}

    def digest(self, file: int, chunk: int, alive: Alive) -> bytes:
        """See :class:`Shelf`."""
        known = self._digests(file).get(chunk)
        if known is not None:
            return known
        buffer = self._pool.take()
        try:
            return self._learn(file, chunk, buffer.digest(self._read(file, chunk, buffer), self._files[file].sum))
        finally:
            self._pool.give(buffer)

    def send(self, file: int, chunk: int, alive: Alive, begin: t.Callable[[int], None], put: Put) -> bytes:
        """See :class:`Shelf`."""
        known = self._digests(file).get(chunk)
        buffer = self._pool.take()
        try:
            size = self._read(file, chunk, buffer)
            begin(size)
            if known is not None:
                send_all(buffer, size, put)
                return known
            return self._learn(file, chunk, sum_and_send(buffer, size, self._files[file].sum, put))
        finally:
            self._pool.give(buffer)

    def _digests(self, file: int) -> Digests:
        self._plain(file)
        return self._known[file]

    def _plain(self, file: int) -> Plain:
        wanted = self._files[file]
        with self._lock:
            if file not in self._open:
                try:
                    plain = Plain(os.path.join(self._root, wanted.name))
                except OSError as error:
                    raise wire.Refused(f"{wanted.name} can't be read at the source: {error.strerror or error}.") from error
                self._open[file] = plain
                self._known[file] = self._memory.recall(wanted.name, plain.status())
            plain = self._open[file]
        status = plain.status()
        if (status.st_size, status.st_mtime_ns) != (wanted.size, wanted.mtime_ns):
            raise wire.Refused(f"{wanted.name} changed at the source while it was copied: run this again when nothing writes there any more.")
        return plain

    def _read(self, file: int, chunk: int, buffer: Buffer) -> int:
        wanted = self._files[file]
        size = length(wanted.size, chunk, wanted.chunk)
        if size <= 0:
            raise wire.Refused(f"{wanted.name} has no chunk {chunk}.")
        try:
            self._plain(file).read(buffer, chunk * wanted.chunk, size)
        except OSError as error:
            self._plain(file)
            raise wire.Refused(f"{wanted.name} can't be read at the source: {error.strerror or error}.") from error
        # What was written while it was read shows in the time.
        self._plain(file)
        return size

    def _learn(self, file: int, chunk: int, digest: bytes) -> bytes:
        with self._lock:
            known = self._known[file]
            known[chunk] = digest
            whole = len(known) == chunks(self._files[file].size, self._files[file].chunk)
        if whole:
            self.keep(file)
        return digest

    def keep(self, file: int) -> None:
        """Have the digests of a file remembered."""
        with self._lock:
            known, plain = dict(self._known[file]), self._open[file]
        self._memory.learn(self._files[file].name, plain.status(), known)

    def close(self) -> None:
        """Remember what was learnt, and close all."""
        for file in list(self._open):
            self.keep(file)
            self._open[file].close()
        self._memory.save()


def send_all(buffer: Buffer, size: int, put: Put) -> None:
    """Send a chunk whose digest is known."""
    for start in range(0, size, PIECE):
        put(buffer.view[start : min(start + PIECE, size)])


def sum_and_send(buffer: Buffer, size: int, sum_name: str, put: Put) -> bytes:
    """Send a chunk, and make its digest while the processor's cache still has it."""
    made = SUMS[sum_name]()
    for start in range(0, size, PIECE):
        piece = buffer.view[start : min(start + PIECE, size)]
        made.update(buffer.address + start, piece)
        put(piece)
    return made.digest()


class Counter:
    """The listening side."""

    def __init__(self, token: str, callers: t.Collection[str], stall: float, certificate: str = "", key: str = "") -> None:
        """
        :param callers: the addresses that may call. :param stall: seconds after which a caller that takes nothing counts as gone.
        :param certificate: with its key, for TLS.
        """
        self._key, self._callers, self._stall = token.encode("ascii"), frozenset(callers), stall
        self._context = wire.serving_context(certificate, key) if certificate else None
        self._servers: t.List[socket.socket] = []
        self._talks: t.Set[socket.socket] = set()
        self._lock = threading.Lock()
        self._over = False
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
            threading.Thread(target=self._accept, args=(server, shelf), daemon=True).start()

    def close(self) -> None:
        """Give the ports back, and hang up on all."""
        self._over = True
        for server in self._servers:
            # As long as a thread waits in accept(2), the kernel keeps a socket that was only closed.
            _transfer.shut(server)
            server.close()
        with self._lock:
            talks = list(self._talks)
        for talk in talks:
            _transfer.shut(talk)

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
            if peer[0] not in self._callers:
                talk.close()
                continue
            threading.Thread(target=self._converse, args=(talk, shelf), daemon=True).start()

    def _converse(self, talk: socket.socket, shelf: Shelf) -> None:
        plain = talk
        try:
            talk.settimeout(_transfer.HELLO_SECONDS)
            if self._context is not None:
                talk = self._context.wrap_socket(talk, server_side=True)
            _transfer.admit(talk, self._key)
            _transfer.keep_alive(talk)
            with self._lock:
                self._talks.add(talk)
            while not self._over:
                # It asks again when it has room and time; keep-alive notices one that vanished.
                talk.settimeout(None)
                kind, file, chunk = wire.ASK.unpack(_transfer.take(talk, wire.ASK.size))
                talk.settimeout(self._stall)
                self._answer(talk, shelf, kind, file, chunk)
        except (OSError, ValueError, LookupError, _transfer.TransferError):
            # The caller's end of the connection knows best what became of it.
            pass
        finally:
            with self._lock:
                self._talks.discard(talk)
            talk.close()
            plain.close()

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
