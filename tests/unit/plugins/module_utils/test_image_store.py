# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An image's parts out of both stores, and the archive that is made of them."""

from __future__ import annotations

import gzip
import io
import json
import os
import pathlib
import tarfile
import typing as t

import pytest
import stored as made

from ansible_collections.sparkstack.inference.plugins.module_utils import _image_composed as composed
from ansible_collections.sparkstack.inference.plugins.module_utils import _image_store as subject

LAYERS = [made.layer({"usr/a": os.urandom(3000)}), made.layer({"opt/b": b"b"}), made.layer({})]
IDS = [made.digest(layer) for layer in LAYERS]
Store = tuple[dict[str, t.Any], dict[str, t.Any]]
STORES: dict[str, t.Callable[[pathlib.Path], Store]] = {
    "overlay2": lambda path: made.overlay2(path, LAYERS),
    "containerd": lambda path: made.containerd(path, LAYERS, packed=False),
    "containerd, packed": lambda path: made.containerd(path, LAYERS, packed=True),
    "containerd, index": lambda path: made.containerd(path, LAYERS, packed=True, index=True),
}


def members(size: int, pieces: t.Iterator[bytes]) -> dict[str, bytes]:
    data = b"".join(pieces)
    assert len(data) == size
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return {member.name: t.cast(t.IO[bytes], tar.extractfile(member)).read() for member in tar}


def blob(digest: str) -> str:
    return "blobs/" + digest.replace(":", "/")


def taken_by_driver(archive: dict[str, bytes], has: t.Collection[str]) -> str:
    """What a graph driver does with it: every layer that it lacks must come out with the configuration's diff id. :returns: the name."""
    (listing,) = json.loads(archive["manifest.json"])
    document = json.loads(archive[listing["Config"]])
    assert "/" + made.digest(archive[listing["Config"]])[7:] in listing["Config"]
    assert len(listing["Layers"]) == len(document["rootfs"]["diff_ids"])
    for path, diff_id in zip(listing["Layers"], document["rootfs"]["diff_ids"], strict=True):
        if diff_id not in has:
            data = archive[path]
            assert made.digest(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data) == diff_id
    assert listing["RepoTags"] == ["lab/x:1"]
    return str(listing["Config"])


def taken_by_containerd(archive: dict[str, bytes], has: t.Mapping[str, bytes]) -> str:
    """What containerd's store does: by the index to the manifest to the layers, each by its digest. :returns: the manifest's digest."""
    assert json.loads(archive["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}
    (entry,) = json.loads(archive["index.json"])["manifests"]
    assert entry["annotations"] == {"io.containerd.image.name": "docker.io/lab/x:1", "org.opencontainers.image.ref.name": "1"}
    blobs = {**has, **{made.digest(data): data for name, data in archive.items() if name.startswith("blobs/")}}
    assert len(blobs[entry["digest"]]) == entry["size"]
    manifest = json.loads(blobs[entry["digest"]])
    document = json.loads(blobs[manifest["config"]["digest"]])
    for layer, diff_id in zip(manifest["layers"], document["rootfs"]["diff_ids"], strict=True):
        data = blobs[layer["digest"]]
        assert len(data) == layer["size"]
        assert made.digest(gzip.decompress(data) if layer["mediaType"].endswith("gzip") else data) == diff_id
    return str(entry["digest"])


@pytest.mark.parametrize("kind", STORES)
def test_all_of_it(tmp_path: pathlib.Path, kind: str) -> None:
    info, image = STORES[kind](tmp_path)
    parts = subject.stored(info, image)
    assert [layer.diff_id for layer in parts.layers] == IDS
    taken_by_driver(members(*composed.compose(parts, "lab/x:1", (), None)), ())
    manifest = taken_by_containerd(members(*composed.compose(parts, "lab/x:1", (), {})), {})
    # The store's own manifest stays as it is, so that the image has the same Id there.
    assert (manifest == image["Id"]) == (kind in ("containerd", "containerd, packed"))


@pytest.mark.parametrize("kind", STORES)
def test_what_a_graph_driver_has_is_neither_read_nor_sent(tmp_path: pathlib.Path, kind: str) -> None:
    info, image = STORES[kind](tmp_path)
    parts = subject.stored(info, image)

    def never() -> t.NoReturn:
        raise AssertionError("a layer was read that is not sent")

    layers = [layer if number == 1 else layer._replace(read=never, size=never) for number, layer in enumerate(parts.layers)]
    archive = members(*composed.compose(parts._replace(layers=layers), "lab/x:1", {IDS[0], IDS[2]}, None))
    taken_by_driver(archive, {IDS[0], IDS[2]})
    assert set(archive) == {blob(layers[1].digest), blob(made.digest(parts.config)), "manifest.json"}


@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize("packed", [False, True])
def test_what_containerd_has_is_named_as_it_has_it(tmp_path: pathlib.Path, kind: str, packed: bool) -> None:
    """The receiver has two layers, as they were built or packed in another way than the source's."""
    info, image = STORES[kind](tmp_path / "source")
    other, theirs = made.containerd(tmp_path / "receiver", LAYERS[:2], packed=packed)
    store = subject.Content(other)
    have = store.held(theirs)
    assert list(have) == IDS[:2]
    there = {entry["digest"]: pathlib.Path(store.path(entry["digest"])).read_bytes() for entry in have.values()}
    archive = members(*composed.compose(subject.stored(info, image), "lab/x:1", (), have))
    taken_by_containerd(archive, there)
    assert not set(map(blob, there)) & set(archive)
    assert sum(map(len, archive.values())) < sum(map(len, LAYERS[:2]))


def test_a_layer_that_occurs_twice_is_sent_once(tmp_path: pathlib.Path) -> None:
    layers = [LAYERS[0], LAYERS[2], LAYERS[1], LAYERS[2]]
    archive = members(*composed.compose(subject.stored(*made.overlay2(tmp_path, layers)), "lab/x:1", (), None))
    taken_by_driver(archive, ())
    assert len(archive) == 5


def test_a_layer_that_containerd_has_lost_is_not_held(tmp_path: pathlib.Path) -> None:
    info, image = made.containerd(tmp_path, LAYERS, packed=True)
    store = subject.Content(info)
    os.unlink(store.path(subject.stored(info, image).layers[1].digest))
    assert list(store.held(image)) == [IDS[0], IDS[2]]
    with pytest.raises(subject.Elsewhere, match="is not in containerd's store, or this user can't look there"):
        subject.stored(info, image)


def spoil(tmp_path: pathlib.Path, pattern: str, data: bytes | None) -> None:
    (path, *_more) = tmp_path.glob(pattern)
    if data is None:
        path.unlink()
    else:
        path.write_bytes(data)


@pytest.mark.parametrize(
    ("pattern", "data", "message"),
    [
        pytest.param("image/overlay2/imagedb/content/sha256/*", b"{}", "has not the digest that is its name", id="another configuration"),
        pytest.param("image/overlay2/layerdb/sha256/*/cache-id", b"../../../etc", "is not of the layer", id="a cache that leads out"),
        pytest.param("image/overlay2/layerdb/sha256/*/diff", b"sha256:" + b"0" * 64, "is not of the layer", id="another layer"),
        pytest.param("image/overlay2/layerdb/sha256/*/tar-split.json.gz", None, "is not there", id="nothing kept between the files"),
    ],
)
def test_another_layout_is_not_believed(tmp_path: pathlib.Path, pattern: str, data: bytes | None, message: str) -> None:
    info, image = made.overlay2(tmp_path, LAYERS)
    spoil(tmp_path, pattern, data)
    with pytest.raises(subject.Elsewhere, match=message):
        subject.stored(info, image)


def test_other_drivers_are_left_to_docker(tmp_path: pathlib.Path) -> None:
    info, image = made.overlay2(tmp_path, LAYERS)
    with pytest.raises(subject.Elsewhere, match="the storage driver is zfs"):
        subject.stored({**info, "Driver": "zfs"}, image)
    with pytest.raises(subject.Elsewhere, match="tells of other layers"):
        subject.stored(info, {**image, "RootFS": {"Layers": IDS[:2]}})


@pytest.mark.parametrize(
    ("repository", "full"),
    [
        ("x", "docker.io/library/x"),
        ("lab/x", "docker.io/lab/x"),
        ("ghcr.io/lab/x", "ghcr.io/lab/x"),
        ("localhost/x", "localhost/x"),
        ("registry:5000/x", "registry:5000/x"),
        ("index.docker.io/lab/x", "docker.io/lab/x"),
    ],
)
def test_full_names(repository: str, full: str) -> None:
    assert composed.full_name(repository) == full
