# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes and reads image archives of the kind that `docker save` writes and `docker load` takes.

An archive is a tar of blobs named by their sha256 (layers, the image's configuration, the OCI manifest) and of two tables
of contents: manifest.json (Docker) and index.json (OCI image layout 1.0, which the containerd store wants). Layers are
plain tar files, not compressed: then a layer's blob name is its diff id, and a later transfer can leave out the layers
that the other side already has. The same tree gives the same bytes: names sorted, times clamped, no user names.
"""

from __future__ import annotations

import dataclasses
import datetime
import fnmatch
import hashlib
import io
import json
import os
import pathlib
import shutil
import stat
import subprocess
import tarfile
import typing as t

# Files newer than this get this time (2026-01-01 00:00 UTC), as SOURCE_DATE_EPOCH asks for.
EPOCH = 1767225600

MEDIA_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
MEDIA_CONFIG = "application/vnd.oci.image.config.v1+json"
MEDIA_LAYER = "application/vnd.oci.image.layer.v1.tar"


@dataclasses.dataclass(frozen=True)
class Layer:
    """One layer: its tar file, its digest ("sha256:" + hex; also its diff id), its size in bytes and what made it."""

    path: pathlib.Path
    digest: str
    size: int
    created_by: str


class _HashingFile(io.RawIOBase):
    """A file that is only written, and hashed while it is."""

    def __init__(self, path: pathlib.Path) -> None:
        super().__init__()
        self._file = path.open("wb")
        self._hash = hashlib.sha256()
        self.size = 0

    def writable(self) -> bool:
        return True

    def write(self, data: t.Any) -> int:
        self._hash.update(data)
        self.size += len(data)
        return self._file.write(data)

    def close(self) -> None:
        self._file.close()
        super().close()

    def digest(self) -> str:
        return "sha256:" + self._hash.hexdigest()


def _members(root: pathlib.Path, names: t.Sequence[str], exclude: t.Sequence[str]) -> t.Iterator[str]:
    """Yield the paths (relative to root) of everything below names and of the folders above them, sorted, each once."""
    found: set[str] = set()
    for name in names:
        start = root / name
        found.update(str(parent) for parent in pathlib.PurePath(name).parents if str(parent) != ".")
        found.add(name)
        # os.walk would follow a link that it starts at, such as Debian's /bin -> usr/bin.
        for folder, folders, files in () if start.is_symlink() else os.walk(start):
            for entry in folders + files:
                found.add(os.path.relpath(os.path.join(folder, entry), root))
    found.discard(".")
    for name in sorted(found):
        if not any(fnmatch.fnmatchcase(name, pattern) for pattern in exclude):
            yield name


def write_layer(path: pathlib.Path, root: pathlib.Path, names: t.Sequence[str], created_by: str, exclude: t.Sequence[str] = ()) -> Layer:
    """Write the parts of a root file system that names lists (paths relative to root) as a layer.

    exclude holds shell patterns of relative paths ("*" matches "/" too). Devices, sockets and pipes are left out:
    the container engine makes its own. Owners stay as numbers, hard links stay links. Raises OSError when a file cannot
    be read, FileNotFoundError when a name is not there.
    """
    for name in names:
        if not (root / name).exists():
            raise FileNotFoundError(f"{root / name} is not there, no layer can be made of it.")
    out = _HashingFile(path)
    with out, tarfile.open(fileobj=t.cast("t.Any", out), mode="w|", format=tarfile.GNU_FORMAT, bufsize=1 << 20) as tar:
        for name in _members(root, names, exclude):
            mode = os.lstat(root / name).st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)):
                continue
            info = tar.gettarinfo(str(root / name), arcname=name)
            info.uname = info.gname = ""
            info.mtime = min(int(info.mtime), EPOCH)
            if info.isreg():
                with (root / name).open("rb") as file:
                    tar.addfile(info, file)
            else:
                tar.addfile(info)
    return Layer(path, out.digest(), path.stat().st_size, created_by)


def _dump(value: t.Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _digest(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def _blob_name(digest: str) -> str:
    return "blobs/sha256/" + digest.removeprefix("sha256:")


def image_config(
    layers: t.Sequence[Layer],
    architecture: str,
    environment: t.Mapping[str, str],
    labels: t.Mapping[str, str],
    command: t.Sequence[str],
) -> bytes:
    """Return the image's configuration as JSON; its sha256 is the image's id on Docker's own store.

    architecture is Go's name of it (amd64, arm64). The command runs when none is given; there is no entrypoint.
    """
    created = datetime.datetime.fromtimestamp(EPOCH, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return _dump(
        {
            "architecture": architecture,
            "os": "linux",
            "created": created,
            "config": {
                "Env": [f"{name}={value}" for name, value in environment.items()],
                "Cmd": list(command),
                "Labels": dict(labels),
                "WorkingDir": "/",
            },
            "rootfs": {"type": "layers", "diff_ids": [layer.digest for layer in layers]},
            "history": [{"created": created, "created_by": layer.created_by} for layer in layers],
        }
    )


def write_archive(path: pathlib.Path, tag: str, config: bytes, layers: t.Sequence[Layer]) -> str:
    """Write the image archive and return the image's id ("sha256:" + hex).

    tag is the image's name with its version, such as sparkstack/vllm-cpu:0.32.0; config is what image_config returned for
    these very layers. The file is written where it is asked for: give a temporary path and rename it.
    """
    manifest = _dump(
        {
            "schemaVersion": 2,
            "mediaType": MEDIA_MANIFEST,
            "config": {"mediaType": MEDIA_CONFIG, "digest": _digest(config), "size": len(config)},
            "layers": [{"mediaType": MEDIA_LAYER, "digest": layer.digest, "size": layer.size} for layer in layers],
        }
    )
    # Both names, since containerd reads the first and Docker's containerd store the second.
    annotations = {
        "io.containerd.image.name": f"docker.io/{tag}",
        "org.opencontainers.image.ref.name": tag.rpartition(":")[2],
    }
    index = {
        "schemaVersion": 2,
        "manifests": [
            {
                "mediaType": MEDIA_MANIFEST,
                "digest": _digest(manifest),
                "size": len(manifest),
                "annotations": annotations,
            }
        ],
    }
    docker = [
        {
            "Config": _blob_name(_digest(config)),
            "RepoTags": [tag],
            "Layers": [_blob_name(layer.digest) for layer in layers],
        }
    ]
    with tarfile.open(path, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for layer in layers:
            with layer.path.open("rb") as file:
                tar.addfile(_entry(_blob_name(layer.digest), layer.size), file)
        for name, data in (
            (_blob_name(_digest(config)), config),
            (_blob_name(_digest(manifest)), manifest),
            ("oci-layout", _dump({"imageLayoutVersion": "1.0.0"})),
            ("index.json", _dump(index)),
            ("manifest.json", _dump(docker)),
        ):
            tar.addfile(_entry(name, len(data)), io.BytesIO(data))
    return _digest(config)


def _entry(name: str, size: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.mtime, info.mode = size, EPOCH, 0o644
    return info


@dataclasses.dataclass(frozen=True)
class Described:
    """What an archive holds: its tag, the image's ids and its diff ids, lowest layer first.

    image_id is the configuration's digest, which Docker's own store calls the image by; manifest_id is the manifest's
    digest, which the containerd store calls it by.
    """

    tag: str
    image_id: str
    manifest_id: str
    diff_ids: tuple[str, ...]


def describe(path: pathlib.Path) -> Described:
    """Read an archive's tables of contents; raises tarfile.TarError, KeyError or OSError when it is no image archive."""
    with tarfile.open(path) as tar:
        manifest = json.loads(_read(tar, "manifest.json"))[0]
        config = _read(tar, manifest["Config"])
        index = json.loads(_read(tar, "index.json"))["manifests"][0]
    diff_ids = tuple(json.loads(config)["rootfs"]["diff_ids"])
    return Described(manifest["RepoTags"][0], _digest(config), index["digest"], diff_ids)


def _read(tar: tarfile.TarFile, name: str) -> bytes:
    file = tar.extractfile(name)
    if file is None:
        raise KeyError(f"{name} is no file in the archive.")
    return file.read()


def take_layer(archive: pathlib.Path, index: int, path: pathlib.Path, created_by: str) -> Layer:
    """Copy one layer (0 is the lowest) of an archive to path, so that another image can stand on it."""
    digest = describe(archive).diff_ids[index]
    with tarfile.open(archive) as tar, path.open("wb") as out:
        source = tar.extractfile(_blob_name(digest))
        if source is None:
            raise KeyError(f"{_blob_name(digest)} is no file in the archive.")
        shutil.copyfileobj(source, out, 1 << 20)
    return Layer(path, digest, path.stat().st_size, created_by)


def unpack(archive: pathlib.Path, root: pathlib.Path) -> None:
    """Lay all layers of an archive of this module (no whiteouts) over each other into root; needs root and GNU tar."""
    command = ["tar", "--extract", "--same-permissions", "--numeric-owner", "--directory", str(root)]
    for digest in describe(archive).diff_ids:
        with tarfile.open(archive) as tar, subprocess.Popen(command, stdin=subprocess.PIPE) as process:
            source = tar.extractfile(_blob_name(digest))
            if source is None or process.stdin is None:
                raise KeyError(f"{_blob_name(digest)} is no file in the archive.")
            shutil.copyfileobj(source, process.stdin, 1 << 20)
            process.stdin.close()
        if process.returncode:
            raise OSError(f"tar could not unpack {digest} of {archive}, exit code {process.returncode}.")
