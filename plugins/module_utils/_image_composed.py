# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""An archive as C(docker save) writes it, made of an image's parts for one receiver: without the layers that its daemon has. Pure but for reading these.

A receiver with a graph driver looks up layers by their chain of diff ids, and the archive only has to count them. One with containerd's store looks up
the digests that the manifest names: where it has a layer compressed, or as it was built, and the source the other way, it gets a manifest that names
what it has. The configuration, and with it what the image is, stays the same.
Source: the OCI image specification, "Image Layout"; the archive of Docker 26.1 (C(index.json), C(manifest.json), C(oci-layout), C(blobs/sha256)).
"""

from __future__ import annotations

import hashlib
import json
import tarfile
import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils._image_identity import with_tag
from ansible_collections.sparkstack.inference.plugins.module_utils._image_store import Data, Stored

BLOCK = 512
OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OCI_CONFIG = "application/vnd.oci.image.config.v1+json"


class _Member(t.NamedTuple):
    name: str
    size: int
    read: t.Callable[[], t.Iterable[bytes]]


def compose(image: Stored, name: str, leave_out: t.Container[str], have: t.Optional[t.Mapping[str, Data]]) -> t.Tuple[int, t.Iterator[bytes]]:
    """The archive's size in bytes, and its pieces.

    :param name: the image's name and tag. :param leave_out: the diff ids of the layers that a graph driver has.
    :param have: what a receiver with containerd's store has, by diff id: C(mediaType), C(digest), C(size); None for another receiver.
    :raises SplitError: when a layer's size can't be told; the pieces raise it too.
    """
    known: t.Mapping[str, Data] = have or {}
    config = _path(digest_of(image.config))
    sent = {layer.digest: layer for layer in image.layers if layer.diff_id not in known and (have is not None or layer.diff_id not in leave_out)}
    sizes = {digest: layer.size() for digest, layer in sent.items()}
    digests = [known[layer.diff_id]["digest"] if layer.diff_id in known else layer.digest for layer in image.layers]
    repository, tag = with_tag(name)
    listing = {"Config": config, "RepoTags": [f"{repository}:{tag}"], "Layers": [_path(digest) for digest in digests]}
    members = [_Member(_path(layer.digest), sizes[layer.digest], layer.read) for layer in sent.values()]
    members += [_small(config, image.config), _small("manifest.json", _json([listing]))]
    if have is not None:
        members += _layout(image, name, digests, known, sizes)
    return sum(BLOCK + _padded(member.size) for member in members) + 2 * BLOCK, _archive(members)


def _layout(image: Stored, name: str, digests: t.Sequence[str], known: t.Mapping[str, Data], sizes: t.Mapping[str, int]) -> t.List[_Member]:
    """What only containerd reads: the store's own manifest, or one that names what the receiver has."""
    manifest, kind = image.manifest, image.manifest_type
    if manifest is None or list(digests) != [layer.digest for layer in image.layers]:
        kind = OCI_MANIFEST
        layers = [
            {key: known[layer.diff_id][key] for key in ("mediaType", "digest", "size")}
            if layer.diff_id in known
            else {"mediaType": layer.media_type, "digest": layer.digest, "size": sizes[layer.digest]}
            for layer in image.layers
        ]
        config = {"mediaType": OCI_CONFIG, "digest": digest_of(image.config), "size": len(image.config)}
        manifest = _json({"schemaVersion": 2, "mediaType": kind, "config": config, "layers": layers})
    repository, tag = with_tag(name)
    named = {"io.containerd.image.name": f"{full_name(repository)}:{tag}", "org.opencontainers.image.ref.name": tag}
    described = {"mediaType": kind, "digest": digest_of(manifest), "size": len(manifest), "annotations": named}
    index = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [described]}
    layout = {"imageLayoutVersion": "1.0.0"}
    return [_small(_path(digest_of(manifest)), manifest), _small("index.json", _json(index)), _small("oci-layout", _json(layout))]


def full_name(repository: str) -> str:
    """A repository's name with its registry, as containerd has it: C(lab/x) is C(docker.io/lab/x), C(x) is C(docker.io/library/x).

    What stands before the first slash is a registry when it has a dot or a colon or is C(localhost). Source: distribution/reference, "normalize".
    """
    first, slash, rest = repository.partition("/")
    if not slash:
        return f"docker.io/library/{repository}"
    if "." in first or ":" in first or first == "localhost" or first != first.lower():
        return f"docker.io/{rest}" if first == "index.docker.io" else repository
    return f"docker.io/{repository}"


def digest_of(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def _archive(members: t.Iterable[_Member]) -> t.Iterator[bytes]:
    for member in members:
        header = tarfile.TarInfo(member.name)
        header.size, header.mode = member.size, 0o644
        yield header.tobuf(tarfile.GNU_FORMAT)
        yield from member.read()
        rest = _padded(member.size) - member.size
        if rest:
            yield bytes(rest)
    yield bytes(2 * BLOCK)


def _small(name: str, data: bytes) -> _Member:
    return _Member(name, len(data), lambda: iter([data]))


def _path(digest: str) -> str:
    return "blobs/" + digest.replace(":", "/")


def _padded(size: int) -> int:
    return (size + BLOCK - 1) // BLOCK * BLOCK


def _json(document: object) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode("utf-8")
