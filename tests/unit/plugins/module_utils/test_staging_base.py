# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a copy stands on: digests, the disk past the page cache, the journal and the memory, and a model's folder."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import pathlib
import typing as t

import pytest
from copying import lay
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from ansible_collections.sparkstack.inference.plugins.module_utils import _staging_disk as disk
from ansible_collections.sparkstack.inference.plugins.module_utils import _staging_state as state
from ansible_collections.sparkstack.inference.plugins.module_utils import _staging_sum as sums
from ansible_collections.sparkstack.inference.plugins.module_utils import _staging_tree as tree
from ansible_collections.sparkstack.inference.plugins.module_utils._page_cache import held


@pytest.mark.parametrize("data", [b"", b"x", b"sparkstack", bytes(range(256)) * 5000])
def test_the_quick_digest_is_that_of_another_implementation(data: bytes) -> None:
    assert sums.of(data, "gmac") == AESGCM(b"sparkstack-model").encrypt(bytes(12), b"", data)
    assert sums.of(data, "sha256") == hashlib.sha256(data).digest()


def test_a_digest_in_pieces_is_that_of_the_whole() -> None:
    buffer = disk.Buffer(3 * sums.PIECE)
    buffer.view[: 3 * sums.PIECE] = os.urandom(3 * sums.PIECE)
    for name in sums.SUMS:
        for length in (1, sums.PIECE, 2 * sums.PIECE + 5):
            assert buffer.digest(length, name) == sums.of(bytes(buffer.view[:length]), name)


@pytest.mark.parametrize("maps", ["", "7f1c2a400000-7f1c2a4c4000 r--p 00000000 fe:00 1053 /usr/lib/libc.so.6\n"])
def test_a_python_without_libcrypto_has_the_other_digest(monkeypatch: pytest.MonkeyPatch, maps: str) -> None:
    monkeypatch.setattr(sums, "text", lambda path: maps)
    for kept in (sums.library, sums.available):
        kept.cache_clear()
    try:
        assert sums.available() == ("sha256",)
        with pytest.raises(OSError, match="this node's Python has no libcrypto"):
            sums.Gmac()
    finally:
        monkeypatch.undo()
        for kept in (sums.library, sums.available):
            kept.cache_clear()
    assert sums.available() == ("gmac", "sha256")


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("size", [0, 1, 4096, 5 * 4096 + 17])
def test_what_is_written_is_read(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, direct: bool, size: int) -> None:
    if not direct:
        monkeypatch.setattr(disk.os, "O_DIRECT", 0)
    chunk, path, data = 4 * 4096, tmp_path / "file", os.urandom(size)
    plain = disk.Plain(str(path), os.O_RDWR | os.O_CREAT)
    plain.direct = plain.direct and direct
    plain.reserve(size)
    assert path.stat().st_size == size
    buffer = disk.Buffer(chunk)
    for index in reversed(range(disk.chunks(size, chunk))):
        length = disk.length(size, index, chunk)
        buffer.view[:length] = data[index * chunk : index * chunk + length]
        plain.write(buffer, index * chunk, length)
    plain.finish(size)
    assert path.read_bytes() == data
    for index in range(disk.chunks(size, chunk)):
        length = disk.length(size, index, chunk)
        buffer.view[:length] = bytes(length)
        plain.read(buffer, index * chunk, length)
        assert buffer.view[:length] == data[index * chunk : index * chunk + length]
    plain.close()


def test_the_page_cache_stays_as_it_was(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size, chunk = 4 << 20, 1 << 20
    for flag in (os.O_DIRECT, 0):
        monkeypatch.setattr(disk.os, "O_DIRECT", flag)
        path = tmp_path / f"file-{flag}"
        plain = disk.Plain(str(path), os.O_RDWR | os.O_CREAT)
        plain.direct = bool(flag)
        plain.reserve(size)
        buffer = disk.Buffer(chunk)
        for offset in range(0, size, chunk):
            plain.write(buffer, offset, chunk)
        plain.finish(size)
        for offset in range(0, size, chunk):
            plain.read(buffer, offset, chunk)
        assert held([str(path)]) <= size // 100
        plain.close()


def test_a_file_system_that_refuses_direct_io_late_is_gone_on_with(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = disk.Plain(str(tmp_path / "file"), os.O_RDWR | os.O_CREAT)
    assert plain.direct
    real, refused = os.pwritev, []

    def refuse(number: int, views: t.Any, offset: int) -> int:
        if plain.direct:
            refused.append(offset)
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(number, views, offset)

    monkeypatch.setattr(disk.os, "pwritev", refuse)
    buffer = disk.Buffer(8192)
    buffer.view[:5000] = b"x" * 5000
    plain.write(buffer, 0, 5000)
    assert refused == [0] and plain.direct is False
    plain.finish(5000)
    assert (tmp_path / "file").read_bytes() == b"x" * 5000


def test_a_file_that_has_become_shorter_is_an_error(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_bytes(bytes(5000))
    plain = disk.Plain(str(tmp_path / "file"))
    with pytest.raises(OSError, match="has become shorter"):
        plain.read(disk.Buffer(16384), 0, 10000)


WANTED = state.Wanted("sub/model.bin", 100, 5, "sha256", 16)


@pytest.fixture
def root(tmp_path: pathlib.Path) -> str:
    (tmp_path / state.FOLDER).mkdir()
    return str(tmp_path)


def test_a_journal_tells_what_is_there(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first = state.Journal(root, WANTED)
    assert first.read() == ({}, False)
    first.begin({3: b"\x03"})
    first.add(0, b"\xaa\xbb")
    first.close()
    assert state.Journal(root, WANTED).read() == ({3: b"\x03", 0: b"\xaa\xbb"}, True)
    monkeypatch.setattr(state, "boot", lambda: "another")
    assert state.Journal(root, WANTED).read() == ({3: b"\x03", 0: b"\xaa\xbb"}, False)


@pytest.mark.parametrize("change", [{"size": 101}, {"mtime_ns": 6}, {"sum": "gmac"}, {"chunk": 32}])
def test_a_journal_of_another_file_tells_nothing(root: str, change: dict[str, t.Any]) -> None:
    state.Journal(root, WANTED).begin({1: b"\x01"})
    assert state.Journal(root, WANTED._replace(**change)).read() == ({}, False)


@pytest.mark.parametrize(
    ("tail", "there"),
    [("1 ab", {0: b"\xcc"}), ("1 ab\nxyz\n2 0\n", {0: b"\xcc", 1: b"\xab"}), ("", {0: b"\xcc"}), ("\0\0\0\0\n", {0: b"\xcc"})],
)
def test_a_journal_that_was_cut_short_tells_what_is_whole(root: str, tail: str, there: dict[int, bytes]) -> None:
    one = state.Journal(root, WANTED)
    one.begin({0: b"\xcc"})
    one.close()
    with open(state.journal(root, WANTED.name), "a", encoding="utf-8") as stream:
        stream.write(tail)
    assert state.Journal(root, WANTED).read()[0] == there


@pytest.mark.parametrize("text", ["", "[]\n", "{\n", '{"name": "other"}\n'])
def test_a_journal_that_is_none_tells_nothing(root: str, text: str) -> None:
    pathlib.Path(state.journal(root, WANTED.name)).write_text(text)
    assert state.Journal(root, WANTED).read() == ({}, False)


def test_digests_are_remembered_as_long_as_a_file_is_untouched(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(b"1")
    cache = str(tmp_path / "cache")
    memory = state.Memory(str(tmp_path), "sha256", 16, cache)
    memory.learn("model.bin", path.stat(), {0: b"\x01"})
    memory.learn("model.bin", path.stat(), {2: b"\x02"})
    memory.save()
    assert state.Memory(str(tmp_path), "sha256", 16, cache).recall("model.bin", path.stat()) == {0: b"\x01", 2: b"\x02"}
    assert state.Memory(str(tmp_path), "gmac", 16, cache).recall("model.bin", path.stat()) == {}
    before = path.stat()
    path.write_bytes(b"2")
    # Whoever writes can put the time back, but not the change time.
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert state.Memory(str(tmp_path), "sha256", 16, cache).recall("model.bin", path.stat()) == {}


def test_a_memory_that_can_not_be_kept_is_no_failure(tmp_path: pathlib.Path) -> None:
    (tmp_path / "cache").write_text("no folder")
    (tmp_path / "model.bin").write_bytes(b"1")
    memory = state.Memory(str(tmp_path), "sha256", 16, str(tmp_path / "cache"))
    memory.learn("model.bin", (tmp_path / "model.bin").stat(), {0: b"\x01"})
    memory.save()
    assert memory.recall("model.bin", (tmp_path / "model.bin").stat()) == {0: b"\x01"}


def safetensors(path: pathlib.Path, size: int = 8, cut: int = 0) -> None:
    header = json.dumps({"t": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes((len(header).to_bytes(8, "little") + header + bytes(size))[: -cut or None])


def test_a_folder_is_seen_by_name_size_time_and_mark(tmp_path: pathlib.Path) -> None:
    model = tmp_path / "model"
    safetensors(model / "model.safetensors")
    lay(model, {"config.json": 30, "sub/extra.bin": 5, ".gitattributes": 3, ".cache/x": 1, f"{state.FOLDER}/a.part": 8192})
    view = tree.look(str(model), source=True)
    assert sorted(view["files"]) == ["config.json", "model.safetensors", "sub/extra.bin"]
    size, mtime, mark = view["files"]["config.json"]
    assert (size, mtime, mark) == (30, 1_795_910_400_123_456_789, hashlib.sha256((model / "config.json").read_bytes()).hexdigest())
    assert len(view["files"]["model.safetensors"][2]) == 64 and view["files"]["sub/extra.bin"][2] == ""
    assert (view["exists"], view["scope"], view["writable"]) == (True, "", True) and view["free"] > 0
    assert view["held"] == {"a.part": 8192}
    assert json.loads(json.dumps(view)) == view


def test_a_folder_that_is_not_there_has_the_room_of_the_one_above(tmp_path: pathlib.Path) -> None:
    view = tree.look(str(tmp_path / "a" / "b"), source=False)
    assert (view["exists"], view["files"], view["held"], view["parent"]) == (False, {}, {}, str(tmp_path))


def hub(path: pathlib.Path, reference: str = "abc\n") -> pathlib.Path:
    """A hub cache: the snapshot's files are links into blobs, outside of it."""
    cache = path / "models--Qwen--X"
    safetensors(cache / "blobs" / "11")
    (cache / "blobs" / "22").write_text('{"model_type": "qwen3"}')
    snapshot = cache / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "model.safetensors").symlink_to("../../blobs/11")
    (snapshot / "config.json").symlink_to("../../blobs/22")
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text(reference)
    return cache


@pytest.mark.parametrize("reference", ["abc", "abc\n"])
def test_of_a_hub_cache_the_snapshot_is_copied_as_files(tmp_path: pathlib.Path, reference: str) -> None:
    cache = hub(tmp_path, reference)
    view = tree.look(str(cache), source=True)
    assert view["scope"] == "snapshots/abc"
    assert sorted(view["files"]) == ["refs/main", "snapshots/abc/config.json", "snapshots/abc/model.safetensors"]
    assert view["files"]["snapshots/abc/config.json"][0] == 23
    # The snapshot alone is a folder like any other.
    assert sorted(tree.look(str(cache / "snapshots" / "abc"), source=True)["files"]) == ["config.json", "model.safetensors"]


def test_links_to_folders_are_followed_and_do_not_lead_in_a_circle(tmp_path: pathlib.Path) -> None:
    model = lay(tmp_path / "model", {"a.bin": 1})
    lay(tmp_path / "other", {"b.bin": 2})
    (model / "more").symlink_to(tmp_path / "other")
    (tmp_path / "other" / "back").symlink_to(model)
    assert sorted(tree.look(str(model), source=True)["files"]) == ["a.bin", "more/b.bin"]


def test_what_is_there_by_a_link_to_a_folder_is_known(tmp_path: pathlib.Path) -> None:
    (tmp_path / "model" / "sub").mkdir(parents=True)
    (tmp_path / "other").mkdir()
    for name in ("model/a.bin", "model/sub/b.bin", "other/c.bin"):
        (tmp_path / name).write_text("x")
    for name, target in (("in", "sub"), ("out", "../other"), ("file.bin", "a.bin")):
        (tmp_path / "model" / name).symlink_to(target)
    (tmp_path / "way").symlink_to("model")
    # A link on the way to the model is nothing to it, and one that is a file itself can go.
    for path in ("model", "way"):
        view = tree.look(str(tmp_path / path), False)
        assert sorted(view["files"]) == ["a.bin", "file.bin", "in/b.bin", "out/c.bin", "sub/b.bin"] and view["linked"] == ["in/b.bin", "out/c.bin"]


def test_two_links_to_one_folder_are_two_folders(tmp_path: pathlib.Path) -> None:
    """The second one was left out, without a word."""
    model = lay(tmp_path / "model", {"a/b.bin": 2})
    (model / "again").symlink_to("a")
    (model / "outside").symlink_to(lay(tmp_path / "other", {"c.bin": 3}))
    (model / "outside-too").symlink_to(tmp_path / "other")
    assert sorted(tree.look(str(model), source=True)["files"]) == ["a/b.bin", "again/b.bin", "outside-too/c.bin", "outside/c.bin"]


def broken(model: pathlib.Path, how: str) -> None:
    safetensors(model / "model.safetensors", cut=1 if how == "cut" else 0)
    if how == "dangling":
        (model / "more.bin").symlink_to("nowhere")
    elif how == "circle":
        (model / "more.bin").symlink_to("more.bin")
    elif how == "pipe":
        os.mkfifo(model / "pipe")


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("cut", "{0}/model.safetensors is not whole by what its header says: download it again."),
        ("dangling", "more.bin in {0} leads nowhere: copy there what the link points to, or download the model again."),
        ("circle", "more.bin in {0} leads nowhere: copy there what the link points to, or download the model again."),
        ("pipe", "pipe in {0} is neither a file nor a folder: remove it."),
    ],
)
def test_a_source_that_can_not_be_copied_is_told_and_a_target_is_seen_all_the_same(tmp_path: pathlib.Path, how: str, told: str) -> None:
    model = tmp_path / "model"
    broken(model, how)
    with pytest.raises(tree.TreeError) as error:
        tree.look(str(model), source=True)
    assert str(error.value) == told.format(model)
    assert sorted(tree.look(str(model), source=False)["files"]) == ["model.safetensors"]


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda path: path.mkdir(), "The model's folder {0} is empty."),
        (lambda path: None, "The model's folder {0} is not there."),
        (lambda path: path.write_text("x"), "{0} is not a folder: give the model's folder."),
        (lambda path: hub(path.parent, "def").rename(path), "{0} has no snapshot def, which refs/main names: download the model again."),
    ],
)
def test_a_source_that_is_no_model_is_told(tmp_path: pathlib.Path, make: t.Callable[[pathlib.Path], t.Any], told: str) -> None:
    model = tmp_path / "model"
    make(model)
    with pytest.raises(tree.TreeError) as error:
        tree.look(str(model), source=True)
    assert str(error.value) == told.format(model)


@pytest.mark.parametrize(
    ("name", "good"),
    [
        ("model.bin", True),
        ("a/b.bin", True),
        ("../b", False),
        ("a/../../b", False),
        ("/etc/passwd", False),
        ("", False),
        ("a//b", False),
        (f"{state.FOLDER}/x", False),
    ],
)
def test_a_name_that_leads_out_of_the_folder_is_refused(name: str, good: bool) -> None:
    assert (tree.problem_of(name) == "") is good
