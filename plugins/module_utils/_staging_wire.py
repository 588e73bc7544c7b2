# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""How two nodes talk of a model's chunks: one connection, after the handshake of M(_transfer), asked by who receives.

    ask        a letter (data or digest), the file's number, the chunk's number
    answer     data:     D, length, that many bytes, then the digest
               digest:   S, length, the digest
               waiting:  A, 0, as often as needed: the chunk is still on its way there
               or        N, length, why: not from this node;   F, length, a sentence: not at all

With a certificate made for this one task all of it goes through TLS; its SHA-256 came by way of the controller, so nobody needs to be asked for it.
"""

from __future__ import annotations

import hashlib
import os
import socket
import struct
import typing as t

try:
    import ssl
except ImportError:  # A Python that was built without it.
    ssl = None  # type: ignore[assignment]

from ansible_collections.sparkstack.inference.plugins.module_utils import _transfer
from ansible_collections.sparkstack.inference.plugins.module_utils._staging_disk import Buffer
from ansible_collections.sparkstack.inference.plugins.module_utils._staging_sum import PIECE, SUMS

ASK = struct.Struct("!cII")
ANSWER = struct.Struct("!cI")
GET, SUM = b"G", b"S"
DATA, DIGEST, ALIVE, NOT_HERE, REFUSED = b"D", b"S", b"A", b"N", b"F"
_MOST_WORDS = 1 << 16


class Lost(Exception):
    """The other end is gone or silent; the text is a part of a sentence. Another try, or another node, may help."""


class NotHere(Exception):
    """The other end does not give this chunk; another node may."""


class Refused(Exception):
    """The other end can't give this chunk, and nobody else can; the text is a sentence."""


class Lane(t.NamedTuple):
    """A way to a node: from an own address to one of its."""

    own: str
    address: str
    port: int


class Peer(t.NamedTuple):
    """A node that gives chunks. C(pin): the SHA-256 of its certificate in hexadecimal, or nothing without TLS."""

    host: str
    lanes: t.Sequence[Lane]
    pin: str = ""


def serving_context(certificate: str, key: str) -> ssl.SSLContext:
    """TLS for the side that is called. :param certificate: in PEM, as the key. The key is never in a file that has a name."""
    if ssl is None:
        raise Refused("This node's Python has no TLS: install its module ssl, or run this without `tls`.")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    number = os.memfd_create("model-sync")
    try:
        os.write(number, (key.rstrip("\n") + "\n" + certificate).encode("ascii"))
        context.load_cert_chain(f"/proc/self/fd/{number}")
    finally:
        os.close(number)
    return context


def _pinned(talk: socket.socket, pin: str) -> socket.socket:
    """TLS for the side that calls; :raises Lost: when the other end shows another certificate."""
    if ssl is None:
        raise Refused("This node's Python has no TLS: install its module ssl, or run this without `tls`.")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # No authority knows it, and no name stands in it: it is compared by itself.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    secure = context.wrap_socket(talk)
    if hashlib.sha256(secure.getpeercert(True) or b"").hexdigest() != pin:
        secure.close()
        raise Refused("has another certificate than the one that was made for this task: something stands between the two nodes, or another copy runs there")
    return secure


class Call:
    """The receiving side of one connection."""

    def __init__(self, peer: Peer, lane: Lane, token: str, limits: _transfer.Limits) -> None:
        """:raises Lost: when the node is not reached or goes away. :raises Refused: when it is not who it should be."""
        self.peer, self.lane = peer, lane
        self._stall = limits.stall
        try:
            self._talk = _transfer.connect(lane.address, lane.port, lane.own, limits.connect)
        except _transfer.TransferError as error:
            raise Lost(str(error).rstrip(".")) from error
        where = f"{peer.host} ({lane.address}:{lane.port})"
        try:
            self._talk.settimeout(_transfer.HELLO_SECONDS)
            if peer.pin:
                self._talk = _pinned(self._talk, peer.pin)
            _transfer.introduce(self._talk, token.encode("ascii"))
            _transfer.keep_alive(self._talk)
            # Of what is encrypted, the library reads as much as it has.
            self._whole = 0 if peer.pin else socket.MSG_WAITALL
            if peer.pin:
                self._talk.settimeout(limits.stall)
            else:
                _transfer.patient(self._talk, limits.stall, limits.stall)
        except Refused as error:
            self._talk.close()
            raise Refused(f"{where} {error}.") from error
        except _transfer.TransferError as error:
            self._talk.close()
            if "token" in str(error):
                raise Refused(f"{where} is not this task's source: {error}.") from error
            raise Lost(f"{where} hung up at the greeting, as who is called by a stranger does: {error}") from error
        except OSError as error:
            self._talk.close()
            raise Lost(f"{where} did not greet: {error}") from error

    def digest(self, file: int, chunk: int) -> bytes:
        """The digest of a chunk. :raises Lost: :raises NotHere: :raises Refused:"""
        try:
            self._talk.sendall(ASK.pack(SUM, file, chunk))
            return self._digest()
        except (OSError, _transfer.TransferError) as error:
            raise self._lost(error) from error

    def data(self, file: int, chunk: int, length: int, buffer: Buffer, sum_name: str) -> t.Tuple[bytes, bytes]:
        """Fetch a chunk into a buffer; :returns: the digest of what came, and the one that the other end tells.

        :raises Lost: :raises NotHere: :raises Refused:
        """
        try:
            self._talk.sendall(ASK.pack(GET, file, chunk))
            kind, size = self._answer()
            if kind != DATA or size != length:
                raise Lost(f"{self.peer.host} gave {size} bytes where {length} were asked for")
            made = SUMS[sum_name]()
            done = hashed = 0
            while done < length:
                end = min(length, hashed + PIECE)
                count = self._talk.recv_into(buffer.view[done:end], end - done, self._whole)
                if not count:
                    raise _transfer.TransferError("the other end closed the connection")
                done += count
                if done == length or done - hashed >= PIECE:
                    made.update(buffer.address + hashed, buffer.view[hashed:done])
                    hashed = done
            return made.digest(), self._digest()
        except (OSError, _transfer.TransferError) as error:
            raise self._lost(error) from error

    def _digest(self) -> bytes:
        kind, size = self._answer()
        if kind != DIGEST or size > 64:
            raise Lost(f"{self.peer.host} gave no digest")
        return _transfer.take(self._talk, size)

    def _answer(self) -> t.Tuple[bytes, int]:
        while True:
            kind, size = ANSWER.unpack(_transfer.take(self._talk, ANSWER.size))
            if kind == ALIVE:
                continue
            if kind in (NOT_HERE, REFUSED):
                said = _transfer.take(self._talk, min(size, _MOST_WORDS)).decode("utf-8", "replace")
                raise (NotHere if kind == NOT_HERE else Refused)(said)
            return kind, size

    def _lost(self, error: Exception) -> Lost:
        if isinstance(error, (socket.timeout, BlockingIOError)):
            return Lost(f"{self.peer.host} gave no sign of life for {self._stall:.0f} s")
        return Lost(f"{self.peer.host} went away: {error}")

    def shut(self) -> None:
        """Have a thread that waits here notice that it is over."""
        _transfer.shut(self._talk)

    def close(self) -> None:
        """Hang up."""
        self._talk.close()
