# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""Where Docker keeps an image's parts, so that only those are read that are wanted: C(docker save) always reads all of them.

How a daemon lays out its folder is its own matter. So nothing is believed: the configuration and the manifest are compared with their digests here, each
layer by the daemon that loads it, and whatever is not as expected raises Elsewhere. Then the caller takes C(docker save).
Source: Docker 26.1 with overlay2 (C(image/overlay2/imagedb) and C(layerdb), C(overlay2)) and with the containerd store (containerd 1.7,
C(io.containerd.content.v1.content/blobs)); the OCI image specification, "Image Manifest" and "Image Index".
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import typing as t
from functools import partial

from ansible_collections.sparkstack.inference.plugins.module_utils import _tar_split
from ansible_collections.sparkstack.inference.plugins.module_utils._image_identity import chain_ids

OCI_LAYER = "application/vnd.oci.image.layer.v1.tar"
_MOST = 16 << 20
"""Bytes of a configuration or manifest; they have some thousand."""
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}\Z")
_CACHE = re.compile(r"[0-9a-z]{8,64}\Z")

Data = t.Dict[str, t.Any]


class Elsewhere(Exception):
    """The image is not there in a way that is known here; the text says what was missed."""


class Layer(t.NamedTuple):
    """A layer as the store has it: as it was built, or compressed.

    C(size) tells the bytes of what C(read) gives, which has the digest. Of an unpacked layer that takes a second for 100,000 files.
    """

    diff_id: str
    digest: str
    media_type: str
    size: t.Callable[[], int]
    read: t.Callable[[], t.Iterator[bytes]]


class Stored(t.NamedTuple):
    """An image's parts; C(manifest) is None in a store that keeps none."""

    manifest: t.Optional[bytes]
    manifest_type: str
    config: bytes
    layers: t.List[Layer]


def is_containerd(info: t.Mapping[str, t.Any]) -> bool:
    """Whether a daemon keeps its images in containerd's store. :param info: the answer of C(GET /info)."""
    return any("containerd.snapshotter" in value for _key, value in info.get("DriverStatus") or [])


def stored(info: t.Mapping[str, t.Any], inspection: t.Mapping[str, t.Any]) -> Stored:
    """An image's parts, of which none is read yet but the small ones.

    :param info: the answer of C(GET /info). :param inspection: the image's. :raises Elsewhere:
    """
    try:
        return Content(info).image(inspection) if is_containerd(info) else _of_driver(info, inspection)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, _tar_split.SplitError) as error:
        raise Elsewhere(str(error)) from error


def _of_driver(info: t.Mapping[str, t.Any], inspection: t.Mapping[str, t.Any]) -> Stored:
    if info.get("Driver") != "overlay2":
        raise Elsewhere("the storage driver is {}".format(info.get("Driver")))
    root = info["DockerRootDir"]
    base = os.path.join(root, "image", "overlay2")
    config = _proven(os.path.join(base, "imagedb", "content", *_parts(inspection["Id"])), inspection["Id"])
    wanted = _diff_ids(config, inspection)
    layers = []
    for number, chain in enumerate(chain_ids(wanted)):
        diff_id = wanted[number]
        folder = os.path.join(base, "layerdb", *_parts(chain))
        cache = _line(os.path.join(folder, "cache-id"))
        if _line(os.path.join(folder, "diff")) != diff_id or not _CACHE.match(cache):
            raise Elsewhere(f"{folder} is not of the layer {diff_id}")
        split, files = os.path.join(folder, "tar-split.json.gz"), os.path.join(root, "overlay2", cache, "diff")
        if not (os.path.isfile(split) and os.path.isdir(files)):
            raise Elsewhere(f"{split} or {files} is not there")
        layers.append(Layer(diff_id, diff_id, OCI_LAYER, partial(_tar_split.size, split), partial(_tar_split.assemble, split, files)))
    return Stored(None, "", config, layers)


class Content:
    """The files of containerd's store, each named by its digest."""

    def __init__(self, info: t.Mapping[str, t.Any]) -> None:
        roots = ("/var/lib/containerd", os.path.join(info.get("DockerRootDir") or "/var/lib/docker", "containerd", "daemon"))
        self._folders = [os.path.join(root, "io.containerd.content.v1.content", "blobs") for root in roots]

    def path(self, digest: str) -> str:
        """Where a digest's bytes lie. :raises Elsewhere:"""
        for folder in self._folders:
            found = os.path.join(folder, *_parts(digest))
            if os.path.isfile(found):
                return found
        raise Elsewhere(f"{digest} is not in containerd's store, or this user can't look there")

    def has(self, digest: str) -> bool:
        """Whether the bytes are there."""
        try:
            return bool(self.path(digest))
        except Elsewhere:
            return False

    def image(self, inspection: t.Mapping[str, t.Any]) -> Stored:
        """An image's parts; of one for several kinds of machine those that the inspection tells of. :raises Elsewhere:"""
        manifest, kind, config, wanted = self._manifest(inspection)
        layers = []
        for number, entry in enumerate(json.loads(manifest)["layers"]):
            path = self.path(entry["digest"])
            if os.path.getsize(path) != entry["size"]:
                raise Elsewhere(f"{path} has not {entry['size']} bytes")
            layers.append(Layer(wanted[number], entry["digest"], entry["mediaType"], partial(int, entry["size"]), partial(_read, path, entry["size"])))
        return Stored(manifest, kind, config, layers)

    def held(self, inspection: t.Mapping[str, t.Any]) -> t.Dict[str, Data]:
        """The layers of an image that are there, by diff id: C(mediaType), C(digest) and C(size), as a manifest has them."""
        try:
            manifest, _kind, _config, wanted = self._manifest(inspection)
            entries = json.loads(manifest)["layers"]
            own = [{key: entry[key] for key in ("mediaType", "digest", "size")} for entry in entries]
            return {wanted[number]: entry for number, entry in enumerate(own) if self.has(entry["digest"])}
        except (Elsewhere, OSError, ValueError, KeyError, TypeError, AttributeError):
            return {}

    def _manifest(self, inspection: t.Mapping[str, t.Any]) -> t.Tuple[bytes, str, bytes, t.List[str]]:
        """The manifest, its type, the configuration, and the diff ids of an image."""
        digest = inspection["Id"]
        top = _proven(self.path(digest), digest)
        document = json.loads(top)
        for entry in document["manifests"] if "manifests" in document else [{"digest": digest, "mediaType": document.get("mediaType")}]:
            # Of the images for other machines the parts are most often not there.
            if not self.has(entry["digest"]):
                continue
            manifest = _proven(self.path(entry["digest"]), entry["digest"])
            found = json.loads(manifest)
            if "layers" not in found or not self.has(found["config"]["digest"]):
                continue
            config = _proven(self.path(found["config"]["digest"]), found["config"]["digest"])
            try:
                wanted = _diff_ids(config, inspection)
            except Elsewhere:
                continue
            if len(found["layers"]) == len(wanted):
                return manifest, entry["mediaType"] or "application/vnd.oci.image.manifest.v1+json", config, wanted
        raise Elsewhere(f"{digest} has no manifest for these layers")


def _read(path: str, size: int) -> t.Iterator[bytes]:
    number = os.open(path, os.O_RDONLY)
    try:
        yield from _tar_split.pieces(number, size)
    finally:
        os.close(number)


def _diff_ids(config: bytes, inspection: t.Mapping[str, t.Any]) -> t.List[str]:
    document = json.loads(config)
    found: t.List[str] = (document.get("rootfs") or {}).get("diff_ids") or []
    told = (list((inspection.get("RootFS") or {}).get("Layers") or []), inspection.get("Architecture"))
    if (found, document.get("architecture")) != told or not all(map(_DIGEST.match, found)):
        raise Elsewhere("the configuration tells of other layers than Docker does")
    return found


def _parts(digest: str) -> t.List[str]:
    if not _DIGEST.match(digest):
        raise Elsewhere(f"{digest} is no digest by sha256")
    return digest.split(":")


def _proven(path: str, digest: str) -> bytes:
    with open(path, "rb") as stream:
        data = stream.read(_MOST)
    if "sha256:" + hashlib.sha256(data).hexdigest() != digest:
        raise Elsewhere(f"{path} has not the digest that is its name")
    return data


def _line(path: str) -> str:
    with open(path, encoding="ascii") as stream:
        return stream.read(200).strip()
