# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Archives as both forms of `docker save` write them, and files that are none."""

from __future__ import annotations

import io
import json
import pathlib
import tarfile
import typing as t

import pytest

from ansible_collections.sparkstack.inference.plugins.module_utils._image_archive import ArchiveError, images
from ansible_collections.sparkstack.inference.plugins.module_utils._image_identity import identity

LAYERS = ["sha256:" + "1" * 64, "sha256:" + "2" * 64]
CONFIG: dict[str, t.Any] = {
    "architecture": "arm64",
    "os": "linux",
    "config": {"Env": ["PATH=/usr/bin"], "Cmd": ["python3"], "WorkingDir": "/"},
    "rootfs": {"type": "layers", "diff_ids": LAYERS},
    "history": [{"created_by": "RUN x"}],
}
# As a daemon tells the same image.
INSPECTION = {"Architecture": "arm64", "Os": "linux", "Config": {"Env": ["PATH=/usr/bin"], "Cmd": ["python3"]}, "RootFS": {"Layers": LAYERS}}


def save(path: pathlib.Path, mode: str = "w", names: list[str] | None = None, without: str = "", layer: int = 100) -> pathlib.Path:
    """The names of the members as Docker 26 writes them, layers before the manifest."""
    entry = {"Config": "blobs/sha256/0ef6", "RepoTags": names, "Layers": ["blobs/sha256/1111", "blobs/sha256/2222"]}
    members = {
        "blobs/sha256/1111": bytes(layer),
        "blobs/sha256/2222": b"",
        "blobs/sha256/0ef6": json.dumps(CONFIG).encode(),
        "index.json": b"{}",
        "manifest.json": json.dumps([entry]).encode(),
    }
    with tarfile.open(path, mode) as archive:
        for name, data in members.items():
            if name != without:
                info = tarfile.TarInfo(name)
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
    return path


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_an_archives_image_is_the_one_that_a_daemon_would_have(tmp_path: pathlib.Path, mode: str) -> None:
    (found,) = images(str(save(tmp_path / "x.tar", mode, ["lab/engine:1"])))
    assert found == {"names": ["lab/engine:1"], "architecture": "arm64", "os": "linux", "layers": LAYERS, "digest": identity(INSPECTION)["digest"]}


def test_an_image_that_was_saved_by_its_id_has_no_name(tmp_path: pathlib.Path) -> None:
    assert images(str(save(tmp_path / "x.tar")))[0]["names"] == []


def test_what_is_no_whole_archive_is_refused_in_a_sentence(tmp_path: pathlib.Path) -> None:
    whole = save(tmp_path / "whole.tar", layer=200_000).read_bytes()
    bad = {"text": b"hello", "empty": b"", "cut": whole[:100_000], "zstd": b"\x28\xb5\x2f\xfd" + bytes(100)}
    for name, data in bad.items():
        (tmp_path / name).write_bytes(data)
    for name in ("manifest.json", "blobs/sha256/0ef6", "blobs/sha256/2222"):
        bad[save(tmp_path / f"less-{name.replace('/', '-')}", without=name).name] = b""
    for name in bad:
        with pytest.raises(ArchiveError, match=f"{name} is no archive of `docker save`, or not a whole one: make it anew"):
            images(str(tmp_path / name))
    with pytest.raises(FileNotFoundError):
        images(str(tmp_path / "nowhere"))


def test_a_damaged_archive_is_refused_in_a_sentence_wherever_the_damage_is(tmp_path: pathlib.Path) -> None:
    packed = save(tmp_path / "packed.tar", "w:gz", layer=200_000).read_bytes()
    refused = []
    for place in range(20, len(packed) - 8, 5):
        (tmp_path / "damaged").write_bytes(packed[:place] + bytes([packed[place] ^ 0xFF]) + packed[place + 1 :])
        try:
            images(str(tmp_path / "damaged"))
        except ArchiveError as error:
            refused.append(str(error))
    assert len(refused) > 5 and set(refused) == {
        f"{tmp_path}/damaged is no archive of `docker save`, or not a whole one: make it anew, uncompressed or with gzip."
    }
