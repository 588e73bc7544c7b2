# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Messages over a socket, and the addresses of interfaces."""

import array
import fcntl
import json
import socket
import struct
import time
import typing as t

_SIOCGIFADDR = 0x8915


class Gone(Exception):
    """The other side is gone; reset: its kernel said so with a reset, not with an orderly end."""

    def __init__(self, reset: bool) -> None:
        super().__init__("reset by peer" if reset else "closed by peer")
        self.reset = reset


class Wire:
    """A connection that carries JSON values, one a line. Without a deadline it waits for ever, as a collective does."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = connection
        self.peer: tuple[str, int] = connection.getpeername()[:2]
        self._rest = b""

    def fileno(self) -> int:
        """For select."""
        return self.socket.fileno()

    def send(self, value: t.Any) -> None:
        """Send a value; raises Gone."""
        try:
            self.socket.sendall(json.dumps(value).encode() + b"\n")
        except OSError as error:
            raise Gone(isinstance(error, ConnectionResetError)) from error

    def receive(self, seconds: float | None = None) -> t.Any:
        """The next value; raises Gone, or TimeoutError after so many seconds."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while b"\n" not in self._rest:
            try:
                self.socket.settimeout(None if deadline is None else max(0.01, deadline - time.monotonic()))
                piece = self.socket.recv(1 << 16)
            except TimeoutError:
                raise
            except OSError as error:
                raise Gone(isinstance(error, ConnectionResetError)) from error
            if not piece:
                raise Gone(False)
            self._rest += piece
        line, _, self._rest = self._rest.partition(b"\n")
        return json.loads(line)

    def close(self) -> None:
        """End the connection."""
        self.socket.close()


def address_of(interface: str) -> str | None:
    """The IPv4 address of an interface, or None when there is no such interface or it has none."""
    request = array.array("B", struct.pack("256s", interface.encode()[:15]))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe, _SIOCGIFADDR, request.tobytes())
        except OSError:
            return None
    return socket.inet_ntoa(answer[20:24])


def listen(address: str, port: int) -> socket.socket:
    """A listening socket on an IPv4 address; port 0: any. Raises OSError."""
    server = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        server.bind((address, port))
        server.listen(128)
    except OSError:
        server.close()
        raise
    return server
