# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""A stream of bytes from one node to others over the fabric, with nothing between them but a socket.

The source listens on its fabric address only, for the time of one task, and speaks only to the addresses that it was told of, after the hello of
_transfer::

    source    <- request, a JSON message            receiver
              frames: size, data, "still at it", then end, failure, or "another way" ->
              <- {"done": true}, {"failed": "..."} or {"again": "..."}

A frame is a letter, a length of 4 bytes and the payload. After "another way" and "again" the receiver comes back with another request.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import time
import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils._transfer import (
    HELLO_SECONDS,
    Limits,
    Request,
    TransferError,
    connect,
    introduce,
    keep_alive,
    send_message,
    take,
)

LIMIT_FRAME = 1 << 26

SIZE, DATA, ALIVE, END, FAILURE, OTHERWISE = b"S", b"D", b"A", b"E", b"F", b"O"


class Otherwise(Exception):
    """What was asked for can't be sent this way, but it may in another; the text says why."""


class Outgoing(t.NamedTuple):
    """What answers a request: the pieces, and how many bytes they are where that is known."""

    pieces: t.Iterator[bytes]
    size: t.Optional[int] = None


class Count:
    """How much has come, for whoever looks: C(received) in all, C(there) of C(total) bytes by the present request; C(total) is None while unknown."""

    def __init__(self) -> None:
        self.received = 0
        self.again(0)

    def again(self, total: t.Optional[int]) -> None:
        self.there, self.total = 0, total or None


def receive(
    source: str,
    port: int,
    address: str,
    token: str,
    request: Request,
    consume: t.Callable[[t.Iterator[bytes]], None],
    limits: Limits,
    count: t.Optional[Count] = None,
    returns: t.Callable[[Exception], bool] = lambda _error: False,
) -> int:
    """Fetch one stream and return its bytes.

    :param address: the own address from which to connect.
    :param consume: takes the pieces; what it raises ends the transfer, and the source is told.
    :param count: is kept up to date. :param returns: whether the caller comes back after such an error, and the source shall wait for that.
    :raises TransferError: when the source isn't reached, isn't the right one, fails or vanishes. :raises Otherwise: when it asks for another request.
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
        stream = _Frames(talk, source, deadline, limits.stall, count or Count())
        try:
            consume(iter(stream))
        except Exception as error:
            if stream.ended:
                _tell(talk, {"again" if returns(error) else "failed": str(error)})
            raise
        for _piece in stream:
            pass
        _tell(talk, {"done": True})
        return stream.received


class _Frames:
    """The pieces of a stream as they come in."""

    def __init__(self, talk: socket.socket, source: str, deadline: float, stall: float, count: Count) -> None:
        self.talk, self.source, self.deadline, self.stall, self.count = talk, source, deadline, stall, count
        self.received = 0
        count.again(None)
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
                self.count.received += size
                self.count.there += size
                yield payload
            elif kind == SIZE:
                self.count.again(int.from_bytes(payload, "big"))
            elif kind == OTHERWISE:
                raise Otherwise("{} could not send: {}".format(self.source, payload.decode("utf-8", "replace")))
            elif kind == FAILURE:
                raise TransferError("{} could not send: {}".format(self.source, payload.decode("utf-8", "replace")))
            elif kind == END:
                self.ended = True


def _tell(talk: socket.socket, message: Request) -> None:
    """Say the last word; a source that is gone by now needs none."""
    with contextlib.suppress(OSError):
        send_message(talk, message)
