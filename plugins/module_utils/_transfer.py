# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""Bytes from one node to others over the fabric, with nothing between them but a socket.

The source listens on its fabric address only, for the time of one task, and speaks only to the addresses that it was
told of. Both ends prove that they hold the task's one-time token, which itself never crosses the network::

    source    nonce (32)                            receiver
              <- nonce (32), HMAC(token, "receiver" + both nonces) (32)
              HMAC(token, "source" + both nonces) (32) ->
              <- request, a JSON message
              frames: data, "still at it", then end or failure ->
              <- {"done": true} or {"failed": "..."}

A message is a length of 4 bytes and JSON; a frame is a letter, a length of 4 bytes and the payload.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import json
import os
import queue
import socket
import struct
import threading
import time
import typing as t

NONCE = 32
DIGEST = 32
HELLO_SECONDS = 5.0
# A source whose Docker first writes the archive to a file has no data for minutes: it says that it lives.
HEARTBEAT_SECONDS = 2.0
# A receiver whose daemon refused a partial archive comes back at once for a whole one.
RETURN_SECONDS = 5.0
QUEUE_PIECES = 16
LIMIT_MESSAGE = 1 << 20
LIMIT_FRAME = 1 << 26

DATA, ALIVE, END, FAILURE = b"D", b"A", b"E", b"F"

Request = t.Dict[str, t.Any]


class TransferError(Exception):
    """The transfer failed; the text is a sentence for the user."""


class _SourceFailed(TransferError):
    """What was to be sent can't be read; the receiver has been told."""


class Limits(t.NamedTuple):
    """Seconds: until a connection stands, without a sign of the other end, and for everything."""

    connect: float
    stall: float
    total: float


class Served(t.NamedTuple):
    """How it went with one receiver; C(error) is None when it confirmed the end."""

    address: str
    bytes_sent: int
    seconds: float
    error: t.Optional[str]


def free_port(address: str) -> int:
    """A TCP port that is free on that address now; raises OSError when the node doesn't have the address."""
    with socket.socket(family(address), socket.SOCK_STREAM) as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


def serve(
    address: str,
    port: int,
    token: str,
    peers: t.Iterable[str],
    produce: t.Callable[[Request], t.Iterator[bytes]],
    limits: Limits,
) -> t.List[Served]:
    """Serve all peers, each once, and return how it went with each; nothing listens afterwards.

    :param peers: the addresses that may connect.
    :param produce: makes the stream that a request asks for; what it raises reaches the receiver as a sentence.
    :raises TransferError: when the port can't be taken.
    """
    return _Server(token, peers, produce, limits).run(address, port)


class _Server:
    def __init__(self, token: str, peers: t.Iterable[str], produce: t.Callable[[Request], t.Iterator[bytes]], limits: Limits) -> None:
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
            sent = _send_stream(talk, self.produce(request), self.started + self.limits.total)
            # What comes now takes as long as the receiver's daemon needs; keep-alive notices a receiver that vanished.
            talk.settimeout(max(1.0, self.started + self.limits.total - time.monotonic()))
            answer = take_message(talk)
            final = True
            error = None if answer.get("done") else str(answer.get("failed") or "it did not confirm the end")
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


def receive(
    source: str,
    port: int,
    address: str,
    token: str,
    request: Request,
    consume: t.Callable[[t.Iterator[bytes]], None],
    limits: Limits,
) -> int:
    """Fetch one stream and return its bytes.

    :param address: the own address from which to connect.
    :param consume: takes the pieces; what it raises ends the transfer, and the source is told.
    :raises TransferError: when the source isn't reached, isn't the right one, fails or vanishes.
    """
    deadline = time.monotonic() + limits.total
    with connect(source, port, address, min(limits.connect, limits.total)) as talk:
        try:
            talk.settimeout(HELLO_SECONDS)
            introduce(talk, token.encode("ascii"))
            keep_alive(talk)
            talk.settimeout(limits.stall)
            send_message(talk, request)
        except (OSError, TransferError) as error:
            raise TransferError(f"{source}:{port} is not this task's source: {error}.") from error
        stream = _Frames(talk, source, deadline, limits.stall)
        try:
            consume(iter(stream))
        except Exception as error:
            if stream.ended:
                _tell(talk, {"failed": str(error)})
            raise
        for _piece in stream:
            pass
        _tell(talk, {"done": True})
        return stream.received


class _Frames:
    """The pieces of a stream as they come in."""

    def __init__(self, talk: socket.socket, source: str, deadline: float, stall: float) -> None:
        self.talk, self.source, self.deadline, self.stall = talk, source, deadline, stall
        self.received = 0
        self.ended = False

    def __iter__(self) -> t.Iterator[bytes]:
        while not self.ended:
            if time.monotonic() > self.deadline:
                raise TransferError(f"The transfer from {self.source} is not done within its time.")
            try:
                kind, size = struct.unpack("!cI", take(self.talk, 5))
                if size > LIMIT_FRAME:
                    raise TransferError(f"a frame of {size} bytes")
                payload = take(self.talk, size)
            except socket.timeout as error:
                message = "{0} sent nothing for {1:.0f} s: run this again, what has arrived whole is not sent twice."
                raise TransferError(message.format(self.source, self.stall)) from error
            except (OSError, TransferError) as error:
                message = "{0} went away in the middle of the transfer ({1}): run this again."
                raise TransferError(message.format(self.source, error)) from error
            if kind == DATA:
                self.received += size
                yield payload
            elif kind == FAILURE:
                raise TransferError("{} could not send: {}".format(self.source, payload.decode("utf-8", "replace")))
            elif kind == END:
                self.ended = True


def _send_stream(talk: socket.socket, pieces: t.Iterator[bytes], deadline: float) -> int:
    """Send all pieces in frames and return their bytes. A thread reads ahead, so that reading and sending overlap."""
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
            for piece in pieces:
                if not put(DATA, piece):
                    return
            put(END, b"")
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
            elif kind == END:
                return sent
    finally:
        stopped.set()


def connect(source: str, port: int, address: str, seconds: float) -> socket.socket:
    """Connect from the own address; the source may still be starting, so a refusal counts only in the end."""
    deadline = time.monotonic() + seconds
    reason: t.Union[OSError, str] = "no answer"
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            message = (
                "Cannot reach {0}:{1} from {2} within {3:.0f} s ({4}): check the link with `ping -I {2} {0}`, and that"
                " no firewall on either node blocks this port (the option `port` sets a fixed one)."
            )
            raise TransferError(message.format(source, port, address, seconds, reason))
        talk = socket.socket(family(source), socket.SOCK_STREAM)
        talk.settimeout(min(left, 5.0))
        try:
            talk.bind((address, 0))
        except OSError as error:
            talk.close()
            raise TransferError(bind_sentence(address, 0, error)) from error
        try:
            talk.connect((source, port))
            return talk
        except OSError as error:
            talk.close()
            reason = error
            time.sleep(min(0.2, max(0.0, deadline - time.monotonic())))


def admit(talk: socket.socket, key: bytes) -> None:
    """The source's half of the hello; raises TransferError for a caller without the token."""
    mine = os.urandom(NONCE)
    talk.sendall(mine)
    hello = take(talk, NONCE + DIGEST)
    theirs, proof = hello[:NONCE], hello[NONCE:]
    if not hmac.compare_digest(proof, hmac.new(key, b"receiver" + mine + theirs, "sha256").digest()):
        raise TransferError("the caller does not have the token")
    talk.sendall(hmac.new(key, b"source" + mine + theirs, "sha256").digest())


def introduce(talk: socket.socket, key: bytes) -> None:
    """The receiver's half of the hello; raises TransferError when the other end does not have the token."""
    mine = os.urandom(NONCE)
    theirs = take(talk, NONCE)
    talk.sendall(mine + hmac.new(key, b"receiver" + theirs + mine, "sha256").digest())
    if not hmac.compare_digest(take(talk, DIGEST), hmac.new(key, b"source" + theirs + mine, "sha256").digest()):
        raise TransferError("the other end does not have the token")


def take(talk: socket.socket, size: int) -> bytes:
    """Exactly that many bytes; raises TransferError when the other end closes before."""
    buffer = bytearray(size)
    view = memoryview(buffer)
    while view:
        count = talk.recv_into(view)
        if not count:
            raise TransferError("the other end closed the connection")
        view = view[count:]
    return bytes(buffer)


def take_message(talk: socket.socket) -> Request:
    size = struct.unpack("!I", take(talk, 4))[0]
    if size > LIMIT_MESSAGE:
        raise TransferError(f"a message of {size} bytes")
    message = json.loads(take(talk, size).decode("utf-8"))
    if not isinstance(message, dict):
        raise TransferError("a message that is no mapping")
    return message


def send_message(talk: socket.socket, message: Request) -> None:
    body = json.dumps(message).encode("utf-8")
    talk.sendall(struct.pack("!I", len(body)) + body)


def _tell(talk: socket.socket, message: Request) -> None:
    """Say the last word; a source that is gone by now needs none."""
    with contextlib.suppress(OSError):
        send_message(talk, message)


def keep_alive(talk: socket.socket) -> None:
    """Have the kernel notice within half a minute that the other node is gone (power cut, link down)."""
    talk.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    talk.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10)
    talk.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
    talk.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)


def shut(talk: socket.socket) -> None:
    with contextlib.suppress(OSError):
        talk.shutdown(socket.SHUT_RDWR)


def family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def bind_sentence(address: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{address} is not an address of this node: give the node's own address on the fabric."
    if error.errno == errno.EADDRINUSE:
        return f"Port {port} of {address} is taken: run this again, or set another one with the option `port`."
    return f"Cannot use {address}:{port}: {error}."
