# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Both of Docker's stores on disk, laid out as Docker 26.1 does, for layers that are made here."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import pathlib
import tarfile
import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils._image_identity import chain_ids

Files = dict[str, bytes]


def digest(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def layer(files: Files, form: int = tarfile.PAX_FORMAT) -> bytes:
    """A layer's archive: its folders and files, a link, and a file that takes another one away."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as tar:
        for name in sorted({str(parent) + "/" for file in files for parent in list(pathlib.PurePath(file).parents)[:-1]}):
            folder = tarfile.TarInfo(name)
            folder.type = tarfile.DIRTYPE
            tar.addfile(folder)
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(data), 1764460800.5 if form == tarfile.PAX_FORMAT else 1764460800
            tar.addfile(info, io.BytesIO(data))
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc"
        tar.addfile(link)
        tar.addfile(tarfile.TarInfo(".wh.gone"))
    return buffer.getvalue()


def split(archive: bytes, path: pathlib.Path, folder: pathlib.Path) -> None:
    """What Docker keeps of a layer: its files in the folder, the rest in the file, a header and what follows it a line each."""
    lines: list[dict[str, t.Any]] = []
    at = 0
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for member in tar:
            where = folder / member.name
            if member.issym():
                where.symlink_to(member.linkname)
            elif member.isdir():
                where.mkdir(parents=True, exist_ok=True)
            elif not member.name.startswith(".wh."):
                where.parent.mkdir(parents=True, exist_ok=True)
                where.write_bytes(t.cast(t.IO[bytes], tar.extractfile(member)).read())
            lines.append({"type": 2, "payload": base64.b64encode(archive[at : member.offset_data]).decode(), "position": len(lines)})
            at = member.offset_data
            entry: dict[str, t.Any] = {"type": 1, "name": member.name + ("/" if member.isdir() else ""), "payload": None, "position": len(lines)}
            if member.size:
                entry.update(size=member.size, payload="5uZK3Ac0Rzg=")
                at += member.size
            lines.append(entry)
    lines.append({"type": 2, "payload": base64.b64encode(archive[at:]).decode(), "position": len(lines)})
    path.write_bytes(gzip.compress("".join(json.dumps(line) + "\n" for line in lines).encode()))


def config(layers: t.Sequence[bytes], architecture: str = "arm64") -> bytes:
    document = {"architecture": architecture, "os": "linux", "config": {"Cmd": ["/x"]}, "rootfs": {"type": "layers", "diff_ids": [*map(digest, layers)]}}
    return json.dumps(document).encode()


def inspection(identifier: str, layers: t.Sequence[bytes]) -> dict[str, t.Any]:
    return {"Id": identifier, "Architecture": "arm64", "Os": "linux", "RootFS": {"Type": "layers", "Layers": [*map(digest, layers)]}}


def overlay2(root: pathlib.Path, layers: t.Sequence[bytes]) -> tuple[dict[str, t.Any], dict[str, t.Any]]:
    """The graph driver's store. :returns: the daemon's information, and the image's inspection."""
    raw = config(layers)
    content = root / "image/overlay2/imagedb/content/sha256" / digest(raw)[7:]
    content.parent.mkdir(parents=True)
    content.write_bytes(raw)
    for number, chain in enumerate(chain_ids(map(digest, layers))):
        folder = root / "image/overlay2/layerdb/sha256" / chain[7:]
        files = root / "overlay2" / f"{number:064x}" / "diff"
        folder.mkdir(parents=True)
        files.mkdir(parents=True)
        (folder / "diff").write_text(digest(layers[number]))
        (folder / "cache-id").write_text(f"{number:064x}")
        split(layers[number], folder / "tar-split.json.gz", files)
    info = {"Driver": "overlay2", "DockerRootDir": str(root), "DriverStatus": [["Backing Filesystem", "extfs"], ["Using metacopy", "false"]]}
    return info, inspection(digest(raw), layers)


def containerd(root: pathlib.Path, layers: t.Sequence[bytes], packed: bool, index: bool = False) -> tuple[dict[str, t.Any], dict[str, t.Any]]:
    """Containerd's store. :param packed: the layers are compressed. :param index: there are other machines' images too, of which no part is here."""
    blobs = root / "containerd/daemon/io.containerd.content.v1.content/blobs/sha256"
    blobs.mkdir(parents=True, exist_ok=True)

    def put(data: bytes, media_type: str) -> dict[str, t.Any]:
        (blobs / digest(data)[7:]).write_bytes(data)
        return {"mediaType": media_type, "digest": digest(data), "size": len(data)}

    kind = "application/vnd.oci.image.layer.v1.tar" + ("+gzip" if packed else "")
    described = [put(gzip.compress(data, mtime=0) if packed else data, kind) for data in layers]
    own = put(config(layers), "application/vnd.oci.image.config.v1+json")
    top = put(json.dumps({"schemaVersion": 2, "config": own, "layers": described}).encode(), "application/vnd.oci.image.manifest.v1+json")
    if index:
        foreign = {**top, "digest": digest(b"elsewhere"), "platform": {"architecture": "amd64", "os": "linux"}}
        listing = {"schemaVersion": 2, "manifests": [foreign, {**top, "platform": {"architecture": "arm64", "os": "linux"}}]}
        top = put(json.dumps(listing).encode(), "application/vnd.oci.image.index.v1+json")
    info = {"Driver": "overlayfs", "DockerRootDir": str(root), "DriverStatus": [["driver-type", "io.containerd.snapshotter.v1"]]}
    return info, inspection(top["digest"], layers)
