# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""A socket between two nodes on the fabric, of which both ends prove that they hold the task's one-time token.

The token itself never crosses the network::

    source    nonce (32)                            receiver
              <- nonce (32), HMAC(token, "receiver" + both nonces) (32)
              HMAC(token, "source" + both nonces) (32) ->

A message is a length of 4 bytes and JSON.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import json
import os
import socket
import struct
import time
import typing as t

NONCE = 32
DIGEST = 32
HELLO_SECONDS = 5.0
LIMIT_MESSAGE = 1 << 20

Request = t.Dict[str, t.Any]


class TransferError(Exception):
    """The transfer failed; the text is a sentence for the user."""


class Limits(t.NamedTuple):
    """Seconds: until a connection stands, without a sign of the other end, and for everything."""

    connect: float
    stall: float
    total: float


def free_port(address: str) -> int:
    """A TCP port that is free on that address now; raises OSError when the node doesn't have the address."""
    with socket.socket(family(address), socket.SOCK_STREAM) as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


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


def keep_alive(talk: socket.socket) -> None:
    """Have the kernel notice within half a minute that the other node is gone (power cut, link down)."""
    talk.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    talk.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10)
    talk.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
    talk.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)


def patient(talk: socket.socket, receiving: float, sending: float) -> None:
    """Have the kernel itself wait, at most that many seconds (0: without end), and then raise BlockingIOError.

    With a timeout of Python's each read and write would first ask poll(2), and MSG_WAITALL would wait for nothing. Source: socket(7), SO_RCVTIMEO.
    """
    talk.settimeout(None)
    for option, seconds in ((socket.SO_RCVTIMEO, receiving), (socket.SO_SNDTIMEO, sending)):
        talk.setsockopt(socket.SOL_SOCKET, option, struct.pack("@ll", int(seconds), int(seconds % 1 * 1e6)))


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
