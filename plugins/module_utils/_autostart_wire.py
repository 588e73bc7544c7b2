# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""How the agents talk: lines of JSON over TCP, each signed with a key that both sides make of the token and of both sides' nonces.

The token never goes over the wire. A key is good for one connection and one direction, and a line's number is signed with it: nothing that was
overheard is good for a second time, whatever the nodes' clocks say. The lines can be read by who listens on the fabric; they hold no secret.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import secrets
import socket
import threading
import time
import typing as t

Message = t.Dict[str, t.Any]

MOST_BYTES = 1 << 20
"""Of one line."""
GREETING_TIMEOUT, SILENCE = 5.0, 30.0
"""Seconds for a greeting, and for any later line: a worker that stops its rank is silent for as long as that takes."""
_FREEBIND = 15
"""IP_FREEBIND of linux/in.h: at boot the agent may be up before the fabric's address is."""
_MOST_PEERS = 64
_AGAIN = 0.2
"""Seconds until the next call is taken after one that could not be."""


class WireError(Exception):
    """The other side says nothing, or nothing that could be believed; the text is a sentence without its full stop."""


class Channel:
    """One connection, from the greeting on."""

    def __init__(self, connection: socket.socket, token: str, serving: bool, me: t.Optional[Message] = None) -> None:
        """Greet.

        :param serving: this is the side that was called. :param me: what the caller says of itself, C(rank) and C(deployment).
        :raises WireError: when the other side does not greet.
        """
        self._connection = connection
        connection.settimeout(GREETING_TIMEOUT)
        self._lines = connection.makefile("rb")
        own = secrets.token_hex(16)
        self.peer: Message = {}
        """What the caller has said of itself; true once its first line was received."""
        if serving:
            self._put({"nonce": own})
            self.peer = self._greeting()
            nonces = own + str(self.peer["nonce"])
            told = self.peer
        else:
            nonces = str(self._greeting()["nonce"]) + own
            told = dict(me or {}, nonce=own)
            self._put(told)
        about = nonces + json.dumps({key: told.get(key) for key in ("deployment", "rank")}, sort_keys=True)
        keys = [_mac(token.encode(), (side + about).encode()).encode() for side in ("caller", "called")]
        self._out, self._in = (keys[1], keys[0]) if serving else (keys[0], keys[1])
        self._sent = self._received = 0
        connection.settimeout(SILENCE)

    def send(self, message: t.Mapping[str, t.Any]) -> None:
        """Send a message; :raises WireError: when the other side is gone."""
        body = json.dumps(message, separators=(",", ":")).encode()
        self._sent += 1
        self._put_bytes(_mac(self._out, b"%d %s" % (self._sent, body)).encode() + b" " + body + b"\n")

    def receive(self) -> Message:
        """The next message; :raises WireError: for silence, an end, or a line that was not signed with this connection's key."""
        given, _space, body = self._line().partition(b" ")
        self._received += 1
        if not hmac.compare_digest(given, _mac(self._in, b"%d %s" % (self._received, body)).encode()):
            raise WireError("it has another token")
        return _mapping(body)

    def _greeting(self) -> Message:
        message = _mapping(self._line())
        if not isinstance(message.get("nonce"), str) or len(message["nonce"]) != 32:
            raise WireError("it greets in another way than an agent")
        return message

    def _line(self) -> bytes:
        try:
            line = self._lines.readline(MOST_BYTES)
        except OSError as error:
            raise WireError("it is silent: {0}".format(error)) from error
        if not line.endswith(b"\n"):
            raise WireError("it has ended the connection")
        return line[:-1]

    def _put(self, message: Message) -> None:
        self._put_bytes(json.dumps(message).encode() + b"\n")

    def _put_bytes(self, data: bytes) -> None:
        try:
            self._connection.sendall(data)
        except OSError as error:
            raise WireError("it has ended the connection: {0}".format(error)) from error

    def close(self) -> None:
        """End it."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._lines.close()
        self._connection.close()


def call(own: str, head: str, port: int, token: str, me: Message) -> Channel:
    """A worker's connection to the head's agent, from its own address on the fabric; :raises WireError: with why there is none."""
    try:
        connection = socket.create_connection((head, port), GREETING_TIMEOUT, (own, 0))
    except OSError as error:
        raise WireError("{0}".format(error.strerror or error)) from error
    try:
        return Channel(connection, token, False, me)
    except BaseException:
        connection.close()
        raise


def listen(address: str, port: int) -> socket.socket:
    """The head's listening socket, on its address on the fabric and no other; :raises OSError: when the port is taken."""
    server = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.setsockopt(socket.SOL_IP, _FREEBIND, 1)
        server.bind((address, port))
        server.listen(_MOST_PEERS)
    except BaseException:
        server.close()
        raise
    return server


def serve(
    server: socket.socket,
    addresses: t.Sequence[str],
    greet: t.Callable[[socket.socket], Channel],
    talk: t.Callable[[Channel], None],
    problem: t.Callable[[str, str], None],
) -> None:
    """Take calls, each in a thread of its own, as long as the socket is open.

    :param addresses: who may call; others are hung up on. :param talk: called with each greeted channel.
    :param problem: called with an address and why its call ended.
    """
    room = threading.BoundedSemaphore(_MOST_PEERS)

    def take(connection: socket.socket, address: str) -> None:
        try:
            channel = greet(connection)
            try:
                talk(channel)
            finally:
                channel.close()
        except WireError as error:
            problem(address, str(error))
        finally:
            connection.close()
            room.release()

    while True:
        try:
            connection, (address, _port) = server.accept()
        except OSError:
            if server.fileno() < 0:
                return
            # accept(2) hands on errors of the network, of a link that was cut say, and tells of too many open files: neither is the end of it.
            time.sleep(_AGAIN)
            continue
        if address not in addresses or not room.acquire(blocking=False):
            connection.close()
            continue
        threading.Thread(target=take, args=(connection, address), daemon=True).start()


def _mac(key: bytes, data: bytes) -> str:
    return hmac.new(key, data, hashlib.sha256).hexdigest()


def _mapping(line: bytes) -> Message:
    try:
        message = json.loads(line.decode())
    except ValueError:
        message = None
    if not isinstance(message, dict):
        raise WireError("it says what no agent says")
    return message
