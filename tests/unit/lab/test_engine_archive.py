# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The image archives that the lab builds without a Docker daemon: their bytes, their tables, their cache."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import pathlib
import socket
import sys
import tarfile
import typing as t

import pytest

ENGINE = pathlib.Path(__file__).resolve().parents[2] / "lab" / "engine"
sys.path.insert(0, str(ENGINE))
from sparkengine import archive, products, rehearsal, rootfs, store  # noqa: E402  (the path above must come first)


def tree(folder: pathlib.Path, mtime: int) -> pathlib.Path:
    """Lay a root file system with a file, a hard link, links to a file and to a folder, a socket and an odd mode."""
    root = folder / "root"
    (root / "usr/bin").mkdir(parents=True)
    (root / "opt/engine/lib").mkdir(parents=True)
    (root / "usr/bin/tool").write_text("#!/bin/sh\n")
    (root / "usr/bin/tool").chmod(0o755)
    os.link(root / "usr/bin/tool", root / "usr/bin/utility")
    (root / "usr/bin/short").symlink_to("tool")
    (root / "bin").symlink_to("usr/bin")
    (root / "opt/engine/lib/a.py").write_text("A = 1\n")
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(root / "usr/bin/socket"))
    server.close()
    for path in [root, *root.rglob("*")]:
        os.utime(path, (mtime, mtime), follow_symlinks=False)
    return root


def two_layers(folder: pathlib.Path, mtime: int) -> list[archive.Layer]:
    """Return the tree as a base layer and a layer of its own for opt/engine/lib."""
    root = tree(folder, mtime)
    return [
        archive.write_layer(folder / "base.tar", root, ["bin", "opt", "usr"], "base", ["opt/engine*"]),
        archive.write_layer(folder / "lib.tar", root, ["opt/engine/lib"], "lib"),
    ]


def written(folder: pathlib.Path, mtime: int = archive.EPOCH + 5) -> tuple[pathlib.Path, str, list[archive.Layer]]:
    """Return an archive of two layers, its image's id and the layers."""
    folder.mkdir()
    layers = two_layers(folder, mtime)
    config = archive.image_config(layers, "amd64", {"PATH": "/bin", "A": "1"}, {"title": "x"}, ["tool", "--help"])
    path = folder / "image.tar"
    return path, archive.write_archive(path, "sparkstack/x:1", config, layers), layers


def member(path: pathlib.Path, name: str) -> bytes:
    """Return the content of one member of a tar file."""
    with tarfile.open(path) as tar:
        file = tar.extractfile(name)
        assert file is not None
        return file.read()


def test_a_layer_holds_the_tree_and_nothing_else(tmp_path: pathlib.Path) -> None:
    base, lib = two_layers(tmp_path, 1000)
    with tarfile.open(base.path) as tar:
        assert tar.getnames() == [
            "bin", "opt", "usr", "usr/bin", "usr/bin/short", "usr/bin/tool", "usr/bin/utility"
        ]  # fmt: skip
        assert tar.getmember("bin").linkname == "usr/bin"
        assert tar.getmember("usr/bin/tool").mode == 0o755
        assert tar.getmember("usr/bin/tool").mtime == 1000
        assert tar.getmember("usr/bin/utility").islnk()
        assert tar.getmember("usr/bin/utility").linkname == "usr/bin/tool"
        assert {info.uname for info in tar} == {""}
    with tarfile.open(lib.path) as tar:
        assert tar.getnames() == ["opt", "opt/engine", "opt/engine/lib", "opt/engine/lib/a.py"]


def test_a_diff_id_is_the_digest_of_the_plain_tar_and_the_name_of_its_blob(tmp_path: pathlib.Path) -> None:
    path, _image, layers = written(tmp_path / "a")
    manifest = json.loads(member(path, "manifest.json"))
    config = json.loads(member(path, manifest[0]["Config"]))
    assert manifest[0]["RepoTags"] == ["sparkstack/x:1"]
    assert len(manifest[0]["Layers"]) == 2
    for name, diff_id, layer in zip(manifest[0]["Layers"], config["rootfs"]["diff_ids"], layers, strict=True):
        data = member(path, name)
        assert "sha256:" + hashlib.sha256(data).hexdigest() == diff_id == layer.digest
        assert name == "blobs/sha256/" + diff_id.removeprefix("sha256:")
        assert len(data) == layer.size
    assert config["config"]["Env"] == ["PATH=/bin", "A=1"]
    assert config["config"]["Cmd"] == ["tool", "--help"]
    assert "Entrypoint" not in config["config"]
    assert len(config["history"]) == 2


def test_the_two_tables_of_contents_name_the_same_image(tmp_path: pathlib.Path) -> None:
    path, image, layers = written(tmp_path / "a")
    (entry,) = json.loads(member(path, "index.json"))["manifests"]
    data = member(path, "blobs/sha256/" + entry["digest"].removeprefix("sha256:"))
    manifest = json.loads(data)
    assert hashlib.sha256(data).hexdigest() == entry["digest"].removeprefix("sha256:")
    assert entry["size"] == len(data)
    assert entry["annotations"]["io.containerd.image.name"] == "docker.io/sparkstack/x:1"
    assert manifest["config"]["digest"] == image
    assert [item["digest"] for item in manifest["layers"]] == [layer.digest for layer in layers]
    described = archive.describe(path)
    assert described == archive.Described("sparkstack/x:1", image, entry["digest"], tuple(x.digest for x in layers))


def test_the_same_tree_gives_the_same_bytes_whenever_it_was_laid(tmp_path: pathlib.Path) -> None:
    first, image, _ = written(tmp_path / "a", archive.EPOCH + 5)
    second, other, _ = written(tmp_path / "b", archive.EPOCH + 100_000)
    assert image == other
    assert first.read_bytes() == second.read_bytes()


def test_another_content_gives_another_image_and_leaves_the_base_layer_alone(tmp_path: pathlib.Path) -> None:
    path, image, layers = written(tmp_path / "a")
    root = tmp_path / "a" / "root"
    (root / "opt/engine/lib/a.py").write_text("A = 2\n")
    lib = archive.write_layer(tmp_path / "lib.tar", root, ["opt/engine/lib"], "lib")
    base = archive.take_layer(path, 0, tmp_path / "base.tar", "base")
    assert base.path.read_bytes() == layers[0].path.read_bytes()
    config = archive.image_config([base, lib], "amd64", {}, {}, ["tool"])
    assert archive.write_archive(tmp_path / "new.tar", "sparkstack/x:2", config, [base, lib]) != image
    assert archive.describe(tmp_path / "new.tar").diff_ids[0] == layers[0].digest


def test_unpack_lays_the_layers_over_each_other(tmp_path: pathlib.Path) -> None:
    path, _, _ = written(tmp_path / "a")
    root = tmp_path / "root"
    root.mkdir()
    archive.unpack(path, root)
    assert (root / "opt/engine/lib/a.py").read_text() == "A = 1\n"
    assert (root / "bin/short").resolve() == root / "usr/bin/tool"
    assert (root / "usr/bin/tool").stat().st_ino == (root / "usr/bin/utility").stat().st_ino


def test_a_layer_of_what_is_not_there_is_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(FileNotFoundError, match="no layer can be made of it"):
        archive.write_layer(tmp_path / "x.tar", tree(tmp_path, 1), ["srv"], "x")


@pytest.mark.parametrize("change", ["content", "mode", "word"])
def test_a_key_changes_with_every_input(tmp_path: pathlib.Path, change: str) -> None:
    file = tmp_path / "vllm"
    file.write_text("a")
    words = ["bookworm"]
    before = store.key_of([file], words)
    assert store.key_of([file], words) == before
    if change == "content":
        file.write_text("b")
    elif change == "mode":
        file.chmod(0o755)
    else:
        words.append("x86_64")
    assert store.key_of([file], words) != before


def test_an_interrupted_build_leaves_nothing_and_the_next_one_makes_the_product_once(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARKSTACK_LAB", str(tmp_path))
    monkeypatch.setattr(rootfs, "install_tools", lambda: None)
    calls: list[str] = []

    def make(_work: pathlib.Path, out: pathlib.Path) -> None:
        calls.append("made")
        (out / "image.tar").write_text("half")
        if len(calls) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(products, "products", lambda: [products.Product("vllm-cpu", "k1", "image.tar", make)])
    with pytest.raises(KeyboardInterrupt):
        products.build()
    assert [path.name for path in (tmp_path / "engine").iterdir()] == [".lock"]
    (tmp_path / "engine" / ".build-killed" / "root").mkdir(parents=True)
    assert products.build() == {"vllm-cpu": tmp_path / "engine" / "vllm-cpu-k1" / "image.tar"}
    assert products.build() == {"vllm-cpu": tmp_path / "engine" / "vllm-cpu-k1" / "image.tar"}
    assert len(calls) == 2
    assert sorted(path.name for path in (tmp_path / "engine").iterdir()) == [".lock", "vllm-cpu-k1"]


def test_what_is_made_on_demand_is_made_where_it_is_named(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARKSTACK_LAB", str(tmp_path))
    monkeypatch.setattr(rootfs, "install_tools", lambda: None)

    def make(_work: pathlib.Path, out: pathlib.Path) -> None:
        (out / "image.tar").write_text("made")

    monkeypatch.setattr(products, "products", lambda: [products.Product(name, "k1", "image.tar", make) for name in ("vllm-cpu", "vllm-ray")])
    assert set(products.ON_DEMAND) == {"vllm-ray", "nginx", "routers"}
    assert list(products.build()) == ["vllm-cpu"]
    assert [path.name for path in (tmp_path / "engine").glob("vllm-*")] == ["vllm-cpu-k1"]
    # It stands on the first image, which is made for it and not asked for.
    assert list(products.build(["vllm-ray"])) == ["vllm-ray"]
    assert sorted(path.name for path in (tmp_path / "engine").glob("vllm-*")) == ["vllm-cpu-k1", "vllm-ray-k1"]


def test_every_product_has_a_key_of_its_own() -> None:
    made = {product.name: product.key for product in products.products()}
    assert len(set(made.values())) == len(made)
    assert not set(products.ON_DEMAND) & {*products.IMAGES, *products.MODELS}


def test_the_cache_keeps_the_two_newest(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARKSTACK_LAB", str(tmp_path))
    for age, key in ((30, "old"), (20, "middle")):
        folder = tmp_path / "engine" / f"vllm-cpu-{key}"
        folder.mkdir(parents=True)
        os.utime(folder, (archive.EPOCH - age, archive.EPOCH - age))
    made = tmp_path / "engine" / ".build-x"
    made.mkdir()
    store.keep("vllm-cpu", "new", made)
    assert sorted(path.name for path in (tmp_path / "engine").iterdir()) == ["vllm-cpu-middle", "vllm-cpu-new"]


@pytest.fixture(name="options", scope="module")
def _options(tmp_path_factory: pytest.TempPathFactory) -> t.Any:
    """The module of the rehearsal that reads SGLang's options, from the package as the image has it."""
    folder = tmp_path_factory.mktemp("package") / "sglang"
    rehearsal.copy_package(folder)
    spec = importlib.util.spec_from_file_location("rehearsal_options", folder / "rehearsal" / "options.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("line", "dest", "value"),
    [
        (["--tp", "2"], "tp_size", 2),  # no alias: the only option that begins so
        (["--tensor-parallel-size", "2"], "tp_size", 2),
        (["--mem-fraction-static", "0.5"], "mem_fraction_static", 0.5),
        (["--disable-cuda-graph"], "disable_cuda_graph", True),
        (["--nccl-init-addr", "a:1"], "dist_init_addr", "a:1"),
        (["--cuda-graph-bs", "1", "2"], "cuda_graph_bs_decode", [1, 2]),
        (["--no-dcp-replicate-q-proj"], "dcp_replicate_q_proj", False),
        ([], "dist_timeout", None),
        ([], "port", 30000),
        ([], "served_model_name", None),
    ],
)
def test_the_rehearsal_reads_options_as_sglang_does(options: t.Any, line: list[str], dest: str, value: t.Any) -> None:
    parsed = options.parser().parse_args(["--model", "/m", *line])
    assert parsed.model_path == "/m"
    assert getattr(parsed, dest) == value


def test_the_rehearsal_shows_the_usage_that_was_recorded(options: t.Any) -> None:
    recorded = (rehearsal.LOGS / "flag-of-other-engine" / "head.log").read_text(encoding="utf-8")
    usage = recorded[recorded.index("usage:") : recorded.index("sglang serve: error")]
    assert options.parser().format_usage().split() == usage.split()
    assert len(options.parser()._option_string_actions) > 470


def test_the_rehearsal_lacks_the_option_that_its_version_lacks(options: t.Any) -> None:
    _, unknown = options.parser().parse_known_args(["--model", "/m", "--language-model-only"])
    assert unknown == ["--language-model-only"]


def test_the_line_of_all_options_differs_from_the_recorded_one_in_what_was_given(options: t.Any) -> None:
    given = options.parser().parse_args(["--model", "/m", "--node-rank", "1", "--served-model-name", "a, 'b' (c)"])
    shown = dict(part.split("=", 1) for part in options.split_top(options.server_args(given)[len("server_args=ServerArgs(") : -1]))
    assert shown.keys() == options.recorded_values().keys()
    assert (shown["model_path"], shown["node_rank"], shown["served_model_name"]) == ("'/m'", "1", repr("a, 'b' (c)"))
    assert shown["watchdog_timeout"] == "300"


def test_the_rehearsals_model_is_made_of_whole_shards(tmp_path: pathlib.Path) -> None:
    rehearsal.write_model(tmp_path / "m", shards=3, size=64)
    index = json.loads((tmp_path / "m" / "model.safetensors.index.json").read_text())
    assert sorted(index["weight_map"].values()) == [f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)]
    for name in index["weight_map"].values():
        data = (tmp_path / "m" / name).read_bytes()
        length = int.from_bytes(data[:8], "little")
        (tensor,) = (value for key, value in json.loads(data[8 : 8 + length]).items() if key != "__metadata__")
        assert 8 + length + tensor["data_offsets"][1] == len(data)
    rehearsal.write_model(tmp_path / "again", shards=3, size=64)
    assert all(file.read_bytes() == (tmp_path / "again" / file.name).read_bytes() for file in (tmp_path / "m").iterdir())
