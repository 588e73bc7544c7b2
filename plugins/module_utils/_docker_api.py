# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""The few calls of the Docker Engine API that stream or that must be cheap.

Everything that community.docker offers is done with its modules. What it has no module for is done here: reading a
log from a point in time on, moving an image from daemon to daemon without a file in between, and running a command in a
container within a time, with both of its streams.
Source: the Docker Engine API reference, version 1.41 and later.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import time
import typing as t
from urllib.parse import quote, urlencode

DEFAULT_SOCKET = "/var/run/docker.sock"
# More than any command says that is run here; a stream without an end must not fill the node's memory.
_MOST_OUTPUT = 4 << 20


class DockerError(Exception):
    """The daemon answered with an error; C(status) is the HTTP status code."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class DockerUnreachable(DockerError):
    """Nothing answers behind the socket."""


class DockerTimeout(DockerError):
    """A command in a container was not done in time; C(pid) is its process on the node while it still runs, else None."""

    def __init__(self, message: str, pid: t.Optional[int]) -> None:
        super().__init__(message)
        self.pid = pid


class Executed(t.NamedTuple):
    """How a command in a container went."""

    code: t.Optional[int]
    """Its exit code; 126 and 127 also stand for a command that could not be started. None where Docker doesn't know it."""
    stdout: str
    stderr: str


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class DockerAPI:
    """A client of the daemon behind a unix socket.

    One connection a call, so that an object can be used from several threads.
    """

    def __init__(self, socket_path: str = DEFAULT_SOCKET, timeout: float = 60) -> None:
        """
        :param socket_path: path of the daemon's unix socket, also in the form C(unix:///path).
        :param timeout: seconds without a byte after which a call is given up.
        """
        self.socket_path = socket_path[len("unix://") :] if socket_path.startswith("unix://") else socket_path
        self.timeout = timeout

    def request(
        self,
        method: str,
        path: str,
        query: t.Optional[t.Mapping[str, str]] = None,
        body: t.Union[None, t.Mapping[str, t.Any], t.Iterable[bytes]] = None,
        content_type: str = "application/json",
    ) -> http.client.HTTPResponse:
        """Send one request and return the open response.

        :param body: a mapping is sent as JSON, an iterable of bytes as a chunked stream.
        :raises DockerUnreachable: when nothing answers; :raises DockerError: for a status of 400 and above.
        """
        connection = _UnixConnection(self.socket_path, self.timeout)
        url = path + ("?" + urlencode(query) if query else "")
        try:
            if body is None:
                connection.request(method, url)
            elif isinstance(body, t.Mapping):
                connection.request(method, url, json.dumps(body).encode(), {"Content-Type": content_type})
            else:
                try:
                    connection.request(method, url, body, {"Content-Type": content_type}, encode_chunked=True)
                except (BrokenPipeError, ConnectionResetError):
                    # The daemon stopped reading, for a full disk say: its answer tells why.
                    pass
                except BaseException:
                    # The body came to no end: cut it off, so that the daemon doesn't wait for the rest.
                    connection.close()
                    raise
            response = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            reason = str(error) or type(error).__name__
            raise DockerUnreachable(f"Docker does not answer on {self.socket_path}: {reason}.") from error
        if response.status >= 400:
            text = response.read().decode("utf-8", "replace")
            connection.close()
            with contextlib.suppress(ValueError, KeyError, TypeError):
                text = json.loads(text)["message"]
            raise DockerError(text.strip() or response.reason, response.status)
        return response

    def get(self, path: str, query: t.Optional[t.Mapping[str, str]] = None) -> t.Any:
        """Return the decoded JSON answer of a GET; raises as M(request) does."""
        with unbroken(), self.request("GET", path, query) as response:
            return json.loads(response.read().decode("utf-8"))

    def find(self, path: str) -> t.Any:
        """Like :meth:`get`, but None where the daemon knows no such thing (404)."""
        try:
            return self.get(path)
        except DockerError as error:
            if error.status == 404:
                return None
            raise

    def container(self, name: str) -> t.Optional[t.Dict[str, t.Any]]:
        """The inspection of a container, or None."""
        return t.cast("t.Optional[t.Dict[str, t.Any]]", self.find("/containers/{}/json".format(quote(name, safe=""))))

    def image(self, name: str) -> t.Optional[t.Dict[str, t.Any]]:
        """The inspection of an image, or None."""
        return t.cast("t.Optional[t.Dict[str, t.Any]]", self.find("/images/{}/json".format(quote(name, safe="/:@"))))

    def execute(self, container: str, command: t.Sequence[str], timeout: float, user: str = "", privileged: bool = False) -> Executed:
        """Run a command in a running container, without a terminal or an input.

        :param timeout: seconds in all. The command is not ended after them: the daemon has no call for it.
        :param user: a name or number in the container; empty for the user that its own command has.
        :param privileged: with all capabilities, whatever the container itself has.
        :raises DockerTimeout: when it isn't done by then; :raises DockerError: when Docker refuses: the container doesn't run
            (409), or, by the daemon's version, when there is no such command.
        Source: Docker Engine API, ExecCreate, ExecStart and ExecInspect.
        """
        deadline = time.monotonic() + timeout
        api = DockerAPI(self.socket_path, timeout)
        body = {"AttachStdout": True, "AttachStderr": True, "Cmd": list(command), "User": user, "Privileged": privileged}
        with api.request("POST", "/containers/{}/exec".format(quote(container, safe="")), body=body) as response:
            path = "/exec/{}".format(quote(json.loads(response.read().decode("utf-8"))["Id"], safe=""))
        output: t.Dict[int, t.List[bytes]] = {1: [], 2: []}
        size = 0
        try:
            with api.request("POST", path + "/start", body={"Detach": False, "Tty": False}) as response:
                for stream, payload in demultiplex(response.read):
                    size += len(payload)
                    if size <= _MOST_OUTPUT:
                        output.setdefault(stream, []).append(payload)
                    if time.monotonic() > deadline:
                        raise socket.timeout()
        except (OSError, http.client.HTTPException, DockerUnreachable) as error:
            if time.monotonic() < deadline:
                raise error if isinstance(error, DockerError) else DockerUnreachable(f"Docker cut off the output of {command[0]}: {error}.") from error
            found = self.find(path + "/json") or {}
            pid = found.get("Pid") if found.get("Running") else None
            raise DockerTimeout(f"{command[0]} in the container was not done within {timeout:.1f} seconds.", pid) from error
        found = self.find(path + "/json") or {}
        stdout, stderr = (b"".join(output[stream]).decode("utf-8", "replace") for stream in (1, 2))
        return Executed(found.get("ExitCode"), stdout, stderr)


@contextlib.contextmanager
def unbroken() -> t.Iterator[None]:
    """Around the reading of an answer: one that breaks off or stands still, as when the daemon is restarted, raises DockerUnreachable."""
    try:
        yield
    except (OSError, http.client.HTTPException) as error:
        raise DockerUnreachable(f"Docker has broken off an answer: {str(error) or type(error).__name__}.") from error


def demultiplex(read: t.Callable[[int], bytes]) -> t.Iterator[t.Tuple[int, bytes]]:
    """Split the stream of a container without a terminal into C((stream, payload)) pairs.

    :param read: reads at most that many bytes, b"" at the end.

    Each frame has a header of 8 bytes: the stream (1 stdout, 2 stderr), three zeros, and the payload's length as a
    big-endian 32-bit number (Docker Engine API, "ContainerAttach", stream format). A frame cut short ends it.
    """
    while True:
        header = _read_exactly(read, 8)
        if len(header) < 8:
            return
        payload = _read_exactly(read, int.from_bytes(header[4:8], "big"))
        if payload:
            yield header[0], payload


def _read_exactly(read: t.Callable[[int], bytes], size: int) -> bytes:
    parts: t.List[bytes] = []
    while size > 0:
        part = read(size)
        if not part:
            break
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
