# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""The source's end of a stream as _image_wire has it: it serves each of the nodes that it was told of once, and then nothing listens any more."""

from __future__ import annotations

import queue
import socket
import struct
import threading
import time
import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils._image_wire import ALIVE, DATA, END, FAILURE, OTHERWISE, SIZE, Otherwise, Outgoing
from ansible_collections.sparkstack.inference.plugins.module_utils._transfer import (
    HELLO_SECONDS,
    Limits,
    Request,
    TransferError,
    admit,
    bind_sentence,
    family,
    keep_alive,
    shut,
    take_message,
)

# A source whose Docker first writes the archive to a file has no data for minutes: it says that it lives.
HEARTBEAT_SECONDS = 2.0
# A receiver whose daemon refused a partial archive comes back at once for a whole one.
RETURN_SECONDS = 5.0
QUEUE_PIECES = 16


class _SourceFailed(TransferError):
    """What was to be sent can't be read; the receiver has been told, and has no other way."""


class Served(t.NamedTuple):
    """How it went with one receiver; C(error) is None when it confirmed the end."""

    address: str
    bytes_sent: int
    seconds: float
    error: t.Optional[str]


def serve(
    address: str,
    port: int,
    token: str,
    peers: t.Iterable[str],
    produce: t.Callable[[Request], Outgoing],
    limits: Limits,
) -> t.List[Served]:
    """Serve all peers, each once, and return how it went with each; nothing listens afterwards.

    :param peers: the addresses that may connect.
    :param produce: makes the stream that a request asks for; what it raises reaches the receiver as a sentence.
    :raises TransferError: when the port can't be taken.
    """
    return _Server(token, peers, produce, limits).run(address, port)


class _Server:
    def __init__(self, token: str, peers: t.Iterable[str], produce: t.Callable[[Request], Outgoing], limits: Limits) -> None:
        self.key = token.encode("ascii")
        self.produce = produce
        self.limits = limits
        self.started = time.monotonic()
        self.lock = threading.Lock()
        self.done: t.Dict[str, Served] = {}
        self.broken: t.Dict[str, Served] = {}
        self.patience = dict.fromkeys(peers, self.started + limits.connect)
        self.talks: t.Dict[socket.socket, threading.Thread] = {}

    def run(self, address: str, port: int) -> t.List[Served]:
        with socket.socket(family(address), socket.SOCK_STREAM) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind((address, port))
            except OSError as error:
                raise TransferError(bind_sentence(address, port, error)) from error
            listener.listen(len(self.patience) + 4)
            listener.settimeout(0.2)
            while self._waiting():
                try:
                    talk, peer = listener.accept()
                except socket.timeout:
                    continue
                if peer[0] not in self.patience:
                    talk.close()
                    continue
                thread = threading.Thread(target=self._converse, args=(talk, peer[0]), daemon=True)
                with self.lock:
                    self.talks[talk] = thread
                thread.start()
        with self.lock:
            left = dict(self.talks)
        for talk, thread in left.items():
            # Only what ran over the time is left here; a closed socket ends its thread.
            shut(talk)
            thread.join(1)
        never = f"it did not connect within {self.limits.connect:.0f} s"
        return [self.done.get(peer) or self.broken.get(peer) or Served(peer, 0, 0.0, never) for peer in sorted(self.patience)]

    def _waiting(self) -> bool:
        now = time.monotonic()
        with self.lock:
            rest = [until for peer, until in self.patience.items() if peer not in self.done]
            if not rest or now > self.started + self.limits.total:
                return False
            return bool(self.talks) or now <= max(rest)

    def _converse(self, talk: socket.socket, peer: str) -> None:
        sent, known, error, final = 0, False, None, False
        started = time.monotonic()
        try:
            talk.settimeout(HELLO_SECONDS)
            admit(talk, self.key)
            known = True
            keep_alive(talk)
            talk.settimeout(self.limits.stall)
            request = take_message(talk)
            sent = _send_stream(talk, lambda: self.produce(request), self.started + self.limits.total)
            # What comes now takes as long as the receiver's daemon needs; keep-alive notices a receiver that vanished.
            talk.settimeout(max(1.0, self.started + self.limits.total - time.monotonic()))
            answer = take_message(talk)
            final = "again" not in answer
            error = None if answer.get("done") else str(answer.get("failed") or answer.get("again") or "it did not confirm the end")
        except (OSError, ValueError, TransferError) as problem:
            final = isinstance(problem, _SourceFailed)
            error = str(problem) if final else f"the connection broke: {problem or type(problem).__name__}"
        finally:
            talk.close()
            with self.lock:
                self.talks.pop(talk, None)
                # A caller without the token changes nothing for the receiver whose address it bears.
                if known:
                    result = Served(peer, sent, time.monotonic() - started, error)
                    (self.done if final else self.broken)[peer] = result
                    self.patience[peer] = time.monotonic() + RETURN_SECONDS


def _send_stream(talk: socket.socket, make: t.Callable[[], Outgoing], deadline: float) -> int:
    """Send all pieces in frames and return their bytes. A thread makes them and reads ahead, so that reading and sending overlap."""
    waiting: queue.Queue[t.Tuple[bytes, bytes]] = queue.Queue(QUEUE_PIECES)
    stopped = threading.Event()

    def put(kind: bytes, payload: bytes) -> bool:
        while not stopped.is_set():
            try:
                waiting.put((kind, payload), timeout=1)
                return True
            except queue.Full:
                continue
        return False

    def read_ahead() -> None:
        try:
            outgoing = make()
            if outgoing.size is not None:
                put(SIZE, outgoing.size.to_bytes(8, "big"))
            for piece in outgoing.pieces:
                if not put(DATA, piece):
                    return
            put(END, b"")
        except Otherwise as error:
            put(OTHERWISE, str(error).encode("utf-8", "replace"))
        except Exception as error:  # Whatever stops the source is for the receiver to know.
            put(FAILURE, (str(error) or type(error).__name__).encode("utf-8", "replace"))

    threading.Thread(target=read_ahead, daemon=True).start()
    sent = 0
    try:
        while True:
            if time.monotonic() > deadline:
                raise TransferError("the time for the transfer is over")
            try:
                kind, payload = waiting.get(timeout=HEARTBEAT_SECONDS)
            except queue.Empty:
                kind, payload = ALIVE, b""
            talk.sendall(struct.pack("!cI", kind, len(payload)))
            if payload:
                talk.sendall(payload)
            if kind == DATA:
                sent += len(payload)
            elif kind == FAILURE:
                raise _SourceFailed(bytes(payload).decode("utf-8", "replace"))
            elif kind == OTHERWISE:
                raise TransferError(bytes(payload).decode("utf-8", "replace"))
            elif kind == END:
                return sent
    finally:
        stopped.set()
