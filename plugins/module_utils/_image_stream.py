# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""An image's archive as a stream: taken from a daemon, thinned out on the way, given to another daemon.

C(docker load) accepts an archive that lacks layers which the daemon has already (tried with Docker 26.1, both stores).
"""

from __future__ import annotations

import json
import typing as t
from urllib.parse import quote

from ansible_collections.sparkstack.inference.plugins.module_utils._docker_api import DockerAPI, DockerError, unbroken

BLOCK = 512
PIECE = 1 << 20  # bytes read at once
# Headers of extended attributes are a few hundred bytes; more is no archive that Docker wrote.
LIMIT_EXTENDED = 1 << 20


class ArchiveError(Exception):
    """The stream is no tar archive."""


def read_image(docker: DockerAPI, image: str) -> t.Iterator[bytes]:
    """The archive that C(docker save) would write, piece by piece; raises DockerError."""
    with docker.request("GET", "/images/{}/get".format(quote(image, safe="/:"))) as response:
        while True:
            piece = response.read1(PIECE)
            if not piece:
                return
            yield piece


def load_image(docker: DockerAPI, archive: t.Iterable[bytes], loaded: t.Callable[[int, int], None] = lambda _done, _total: None) -> None:
    """Give an archive to the daemon.

    :param loaded: hears how many bytes of how many the daemon has unpacked; one with containerd's store doesn't say.
    :raises DockerError: with the daemon's own message. It answers 200 before it reads, so that a failure stands in the
        stream: C({"errorDetail":{"message":"..."},"error":"..."}). That a layer can't be unpacked containerd's store only mentions (Docker 26.1):
        C({"stream":"Error unpacking image lab/x:1: ..."}).
    """
    layers: t.Dict[str, t.Tuple[int, int]] = {}
    with unbroken(), docker.request("POST", "/images/load", {"quiet": "0"}, archive, "application/x-tar") as response:
        for line in response:
            try:
                entry = json.loads(line.decode("utf-8", "replace"))
            except ValueError:
                continue
            if not isinstance(entry, dict):
                continue
            told = str(entry.get("stream") or "")
            if entry.get("error") or told.startswith("Error unpacking image"):
                raise DockerError(str(entry.get("error") or told).strip())
            detail = entry.get("progressDetail") or {}
            if detail.get("total"):
                layers[entry.get("id") or ""] = (int(detail.get("current") or 0), int(detail["total"]))
                loaded(sum(done for done, _total in layers.values()), sum(total for _done, total in layers.values()))


def blob_filter(leave_out: t.Iterable[str]) -> t.Callable[[str], bool]:
    """The members to keep of an archive, when the layers with these diff ids are to be left out.

    Docker 25 and later writes every layer as C(blobs/sha256/DIGEST), and the digest is the diff id when the layer isn't
    compressed. The layout before that, C(ID/layer.tar), doesn't say in the name what a layer holds, and its manifest
    comes after the layers: such an archive goes whole, and so does a compressed layer.
    """
    names = {"blobs/" + digest.replace(":", "/") for digest in leave_out}
    return lambda name: name not in names


def thin_out(archive: t.Iterable[bytes], keep: t.Callable[[str], bool]) -> t.Iterator[bytes]:
    """Leave members out of a tar archive while it flows by.

    :param keep: is asked for every member by its name.
    :returns: the pieces of an archive that has all the other members, byte for byte and in order.
    :raises ArchiveError: when the stream isn't a tar archive or is cut short.
    """
    source = _Source(archive)
    extended: t.List[bytes] = []
    fields: t.Dict[str, str] = {}
    while True:
        header = source.take(BLOCK)
        if not header:
            return
        if len(header) < BLOCK:
            raise ArchiveError("the archive is cut short")
        if not header.strip(b"\0"):
            yield header
            yield from source.rest()
            return
        if header[257:262] != b"ustar":
            raise ArchiveError("the stream is not a tar archive")
        kind = header[156:157]
        size = _number(header[124:136])
        if kind in (b"x", b"L", b"K"):
            # These describe the member that follows, so they are kept or left out with it.
            if size > LIMIT_EXTENDED:
                raise ArchiveError(f"the archive has a header of {size} bytes")
            body = source.take(_padded(size))
            if kind == b"x":
                fields.update(_records(body[:size]))
            elif kind == b"L":
                fields["path"] = body[:size].rstrip(b"\0").decode("utf-8", "surrogateescape")
            extended += [header, body]
            continue
        size = int(fields.get("size", size))
        kept = keep(fields.get("path", _name(header)))
        if kept:
            yield from extended
            yield header
        extended, fields = [], {}
        # Links, devices and folders (1 to 6) have no bytes, whatever stands as their size.
        if kind not in (b"1", b"2", b"3", b"4", b"5", b"6"):
            for piece in source.pieces(_padded(size)):
                if kept:
                    yield piece


class _Source:
    """The pieces of a stream, taken by number of bytes."""

    def __init__(self, pieces: t.Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._left = memoryview(b"")

    def pieces(self, size: int) -> t.Iterator[bytes]:
        """Yield exactly that many bytes in pieces as they come; raises ArchiveError when the stream ends first."""
        while size > 0:
            if not self._left:
                self._left = memoryview(next(self._pieces, b""))
                if not self._left:
                    raise ArchiveError("the archive is cut short")
            piece = self._left[:size]
            self._left = self._left[len(piece) :]
            size -= len(piece)
            yield t.cast(bytes, piece)

    def take(self, size: int) -> bytes:
        """Return that many bytes, or b"" when the stream is at its end."""
        if not self._left:
            self._left = memoryview(next(self._pieces, b""))
            if not self._left:
                return b""
        return b"".join(self.pieces(size))

    def rest(self) -> t.Iterator[bytes]:
        if self._left:
            yield t.cast(bytes, self._left)
        yield from self._pieces


def _padded(size: int) -> int:
    return (size + BLOCK - 1) // BLOCK * BLOCK


def _number(field: bytes) -> int:
    """A number field: octal digits, or base 256 with the highest bit set where a file is larger than 8 GiB."""
    if field[0] & 0x80:
        return int.from_bytes(bytes([field[0] & 0x7F]) + field[1:], "big")
    text = field.strip(b"\0 ")
    try:
        return int(text, 8) if text else 0
    except ValueError as error:
        raise ArchiveError("the stream is not a tar archive") from error


def _name(header: bytes) -> str:
    name = header[:100].split(b"\0", 1)[0]
    # "ustar\0" has a prefix for long names; GNU's "ustar " keeps other things in that place.
    prefix = header[345:500].split(b"\0", 1)[0] if header[257:263] == b"ustar\0" else b""
    return (prefix + b"/" + name if prefix else name).decode("utf-8", "surrogateescape")


def _records(body: bytes) -> t.Dict[str, str]:
    """The records of a pax header: C(30 mtime=1764460800.123456789\\n)."""
    found: t.Dict[str, str] = {}
    while body:
        length, _blank, _rest = body.partition(b" ")
        if not length.isdigit() or int(length) <= len(length) + 1 or int(length) > len(body):
            raise ArchiveError("the archive has a broken header")
        record = body[len(length) + 1 : int(length)].rstrip(b"\n")
        key, _equals, value = record.partition(b"=")
        found[key.decode("utf-8", "replace")] = value.decode("utf-8", "surrogateescape")
        body = body[int(length) :]
    return found
