# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Putting a layer's archive together from its files and what Docker keeps between them."""

from __future__ import annotations

import base64
import gzip
import json
import os
import pathlib
import tarfile

import pytest
from stored import Files, layer, split

from ansible_collections.sparkstack.inference.plugins.module_utils import _tar_split as subject

FILES: Files = {
    "opt/a": b"a" * 700,
    "opt/engine/large": os.urandom(5_000_001),
    "opt/engine/none": b"",
    "opt/b": b"b",
    "usr/lib/python3/" + "x" * 150: b"long",
}


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_the_very_same_archive_comes_of_it(tmp_path: pathlib.Path, form: int) -> None:
    whole = layer(FILES, form)
    split(whole, tmp_path / "split", tmp_path / "diff")
    pieces = list(subject.assemble(str(tmp_path / "split"), str(tmp_path / "diff")))
    assert b"".join(pieces) == whole
    assert subject.size(str(tmp_path / "split")) == len(whole)
    # Not a piece a file, and no piece of all.
    assert len(pieces) < 12 and max(map(len, pieces)) < 3 << 20


def test_a_name_that_is_no_utf_8(tmp_path: pathlib.Path) -> None:
    os.mkdir(tmp_path / "diff")
    (tmp_path / "diff" / os.fsdecode(b"caf\xe9")).write_bytes(b"latin")
    raw = base64.b64encode(b"caf\xe9").decode()
    (tmp_path / "split").write_bytes(gzip.compress(json.dumps({"type": 1, "name": "", "name_raw": raw, "size": 5}).encode()))
    assert b"".join(subject.assemble(str(tmp_path / "split"), str(tmp_path / "diff"))) == b"latin"


def spoil(path: pathlib.Path, name: str, size: int = 7) -> None:
    path.write_bytes(gzip.compress(json.dumps({"type": 1, "name": name, "size": size}).encode()))


@pytest.mark.parametrize(
    ("name", "size", "message"),
    [
        pytest.param("out/secret", 7, "out/secret can't be read: Not a directory|Too many levels", id="through a link that leads out"),
        pytest.param("outer", 7, "Too many levels of symbolic links", id="a link that leads out"),
        pytest.param("../secret", 7, "no name of a file", id="upwards"),
        pytest.param("/", 7, "no name of a file", id="no name"),
        pytest.param("gone", 7, "gone can't be read: No such file", id="missing"),
        pytest.param("here", 7, "it has 4 bytes instead of 7", id="of another size"),
    ],
)
def test_nothing_but_a_file_of_the_folder_is_read(tmp_path: pathlib.Path, name: str, size: int, message: str) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/secret").write_text("private")
    (tmp_path / "secret").write_text("private")
    (tmp_path / "diff").mkdir()
    (tmp_path / "diff/out").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "diff/outer").symlink_to(tmp_path / "secret")
    (tmp_path / "diff/here").write_text("four")
    spoil(tmp_path / "split", name, size)
    with pytest.raises(subject.SplitError, match=message):
        list(subject.assemble(str(tmp_path / "split"), str(tmp_path / "diff")))


@pytest.mark.parametrize(
    "data",
    [b"no gzip", gzip.compress(b"no json\n"), gzip.compress(b'{"type":1,"size":3}\n'), gzip.compress(b'{"type":2}\n' * 99)[:-9]],
    # Of their own: the bytes hold the second in which they were made, and several processes that collect the tests must find the same ones.
    ids=["no gzip", "no JSON", "no name", "cut off"],
)
def test_what_is_no_such_file_is_an_error(tmp_path: pathlib.Path, data: bytes) -> None:
    (tmp_path / "split").write_bytes(data)
    with pytest.raises(subject.SplitError, match="can't be read"):
        subject.size(str(tmp_path / "split"))


def test_open_files_are_closed(tmp_path: pathlib.Path) -> None:
    split(layer(FILES), tmp_path / "split", tmp_path / "diff")
    before = len(os.listdir("/proc/self/fd"))
    stream = subject.assemble(str(tmp_path / "split"), str(tmp_path / "diff"))
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    list(subject.assemble(str(tmp_path / "split"), str(tmp_path / "diff")))
    assert len(os.listdir("/proc/self/fd")) == before
