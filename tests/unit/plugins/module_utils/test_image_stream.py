# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Thinning an archive out: both layouts of `docker save`, built here member for member as Docker writes them."""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
import tarfile
import typing as t

import pytest

from ansible_collections.sparkstack.inference.plugins.module_utils import _image_stream as subject
from ansible_collections.sparkstack.inference.plugins.module_utils._docker_api import DockerError

Members = dict[str, bytes]


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


LAYERS = [os.urandom(200_000), os.urandom(1500), b""]
CONFIG = json.dumps({"rootfs": {"diff_ids": ["sha256:" + digest(layer) for layer in LAYERS]}}).encode()


def oci_layout() -> Members:
    """Docker 25 and later: the blobs in the order of their names, and the manifest after them."""
    blobs = {f"blobs/sha256/{digest(data)}": data for data in [*LAYERS, CONFIG]}
    manifest = [{"Config": f"blobs/sha256/{digest(CONFIG)}", "RepoTags": ["lab/x:1"], "Layers": list(blobs)[:3]}]
    return {
        **dict(sorted(blobs.items())),
        "index.json": b'{"schemaVersion":2}',
        "manifest.json": json.dumps(manifest).encode(),
        "oci-layout": b'{"imageLayoutVersion":"1.0.0"}',
        "repositories": b"{}",
    }


def old_layout() -> Members:
    """Docker 24 and earlier: a folder for each layer, whose name says nothing about what the layer holds."""
    members: Members = {}
    for number, layer in enumerate(LAYERS):
        name = digest(f"v1 {number}".encode())
        members.update({f"{name}/VERSION": b"1.0", f"{name}/json": b"{}", f"{name}/layer.tar": layer})
    layers = [name for name in members if name.endswith("layer.tar")]
    manifest = [{"Config": digest(CONFIG) + ".json", "RepoTags": ["lab/x:1"], "Layers": layers}]
    return {**members, digest(CONFIG) + ".json": CONFIG, "manifest.json": json.dumps(manifest).encode()}


def archive(members: Members, form: int = tarfile.PAX_FORMAT, mtime: float = 1764460800.5) -> bytes:
    """A tar archive; a time with a fraction makes pax write an extended header before each member."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(data), mtime if form == tarfile.PAX_FORMAT else int(mtime)
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def pieces(data: bytes, seed: int = 1) -> t.Iterator[bytes]:
    """The archive in pieces as a socket may cut it."""
    source, sizes = io.BytesIO(data), random.Random(seed)
    while piece := source.read(sizes.choice([1, 100, 511, 512, 513, 40_000])):
        yield piece


def read(data: bytes) -> Members:
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return {member.name: t.cast(t.IO[bytes], tar.extractfile(member)).read() for member in tar if member.isfile()}


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_layers_are_left_out(form: int, seed: int) -> None:
    members = oci_layout()
    keep = subject.blob_filter(["sha256:" + digest(LAYERS[0]), "sha256:" + digest(LAYERS[2])])
    thin = b"".join(subject.thin_out(pieces(archive(members, form), seed), keep))
    left_out = {f"blobs/sha256/{digest(LAYERS[0])}", f"blobs/sha256/{digest(LAYERS[2])}"}
    assert read(thin) == {name: data for name, data in members.items() if name not in left_out}
    assert len(thin) < 30_000


@pytest.mark.parametrize("members", [oci_layout(), old_layout()], ids=["oci", "old"])
def test_nothing_left_out_is_byte_for_byte_the_same(members: Members) -> None:
    whole = archive(members)
    assert b"".join(subject.thin_out(pieces(whole), subject.blob_filter([]))) == whole


def test_the_old_layout_goes_whole() -> None:
    whole = archive(old_layout())
    keep = subject.blob_filter(["sha256:" + digest(layer) for layer in LAYERS])
    assert b"".join(subject.thin_out(pieces(whole), keep)) == whole


def test_a_compressed_layer_goes_though_its_diff_id_is_known() -> None:
    members = {f"blobs/sha256/{digest(b'compressed')}": b"compressed"}
    keep = subject.blob_filter(["sha256:" + digest(LAYERS[0])])
    assert read(b"".join(subject.thin_out([archive(members)], keep))) == members


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_long_names_and_folders(form: int) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as tar:
        folder = tarfile.TarInfo("blobs")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
        for name in ("blobs/" + "x" * 200, "blobs/" + "y" * 200):
            info = tarfile.TarInfo(name)
            info.size = 700
            tar.addfile(info, io.BytesIO(b"z" * 700))
        link = tarfile.TarInfo("layer.tar")
        link.type, link.linkname = tarfile.SYMTYPE, "blobs/" + "x" * 150
        tar.addfile(link)
    thin = b"".join(subject.thin_out(pieces(buffer.getvalue()), lambda name: name != "blobs/" + "x" * 200))
    with tarfile.open(fileobj=io.BytesIO(thin)) as tar:
        assert [(member.name, member.linkname) for member in tar] == [
            ("blobs", ""),
            ("blobs/" + "y" * 200, ""),
            ("layer.tar", "blobs/" + "x" * 150),
        ]


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT], ids=["pax size", "base 256"])
def test_a_layer_above_8_gib_is_left_out(form: int) -> None:
    size = 9 << 30
    info = tarfile.TarInfo("blobs/sha256/big")
    info.size = size
    header = info.tobuf(form)
    after = archive({"manifest.json": b"[]"})

    def stream() -> t.Iterator[bytes]:
        yield header
        block = bytes(64 << 20)
        for _number in range(size // len(block)):
            yield block
        yield after

    thin = b"".join(subject.thin_out(stream(), lambda name: name != "blobs/sha256/big"))
    assert thin == after


@pytest.mark.parametrize(
    ("stream", "message"),
    [
        ([b"x" * 2000], "not a tar archive"),
        ([archive(oci_layout())[:100_000]], "cut short"),
        ([archive(oci_layout())[:100]], "cut short"),
    ],
)
def test_what_is_no_whole_archive_is_an_error(stream: list[bytes], message: str) -> None:
    with pytest.raises(subject.ArchiveError, match=message):
        list(subject.thin_out(stream, lambda name: True))


class Daemon:
    """Stands in for DockerAPI: takes the body and answers with the given text."""

    def __init__(self, answer: bytes) -> None:
        self.answer = answer
        self.taken = b""

    def request(self, method: str, path: str, query: object, body: t.Iterable[bytes], content_type: str) -> io.BytesIO:
        assert (method, path, query, content_type) == ("POST", "/images/load", {"quiet": "0"}, "application/x-tar")
        self.taken = b"".join(body)
        return io.BytesIO(self.answer)


def test_load_gives_all_to_the_daemon() -> None:
    daemon = Daemon(b'{"stream":"Loaded image: lab/x:1\\n"}\r\n')
    subject.load_image(daemon, [b"a", b"b"])  # type: ignore[arg-type]
    assert daemon.taken == b"ab"


def test_load_finds_the_error_in_an_answer_with_status_200() -> None:
    # Docker 26.1.5, an archive without a layer that the daemon lacks
    text = "open /var/lib/docker/tmp/docker-import-1/blobs/sha256/55: no such file or directory"
    daemon = Daemon(json.dumps({"errorDetail": {"message": text}, "error": text}).encode() + b"\r\n")
    with pytest.raises(DockerError) as failure:
        subject.load_image(daemon, [])  # type: ignore[arg-type]
    assert str(failure.value) == text


def test_load_tells_what_the_daemon_has_unpacked() -> None:
    # Docker 26.1.5 with overlay2.
    daemon = Daemon(
        b'{"status":"Loading layer","progressDetail":{"current":32768,"total":1000000},"progress":"[>  ]","id":"aa"}\r\n'
        b'{"status":"Loading layer","progressDetail":{"current":1000000,"total":1000000},"progress":"[==>]","id":"aa"}\r\n'
        b'{"status":"Loading layer","progressDetail":{"current":512,"total":2048},"progress":"[>  ]","id":"bb"}\r\n'
        b'{"stream":"Loaded image: lab/x:1\\n"}\r\n'
    )
    told: list[tuple[int, int]] = []
    subject.load_image(daemon, [], lambda done, total: told.append((done, total)))  # type: ignore[arg-type]
    assert told == [(32768, 1_000_000), (1_000_000, 1_000_000), (1_000_512, 1_002_048)]


def test_a_layer_that_containerd_can_not_unpack_is_an_error() -> None:
    # daemon/containerd/image_exporter.go of Docker 26.1: the load itself ends well.
    daemon = Daemon(b'{"stream":"Loaded image: lab/x:1\\n"}\r\n{"stream":"Error unpacking image lab/x:1: wrong diff id\\n"}\r\n')
    with pytest.raises(DockerError, match="^Error unpacking image lab/x:1: wrong diff id$"):
        subject.load_image(daemon, [])  # type: ignore[arg-type]
