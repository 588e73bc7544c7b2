# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Models of a few hundred bytes, laid out as the hub's clients lay them out."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import typing as t

import pytest

from ansible_collections.sparkstack.inference.plugins.module_utils import _model as subject

CONFIG = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "torch_dtype": "bfloat16",
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 16,
    "hidden_size": 128,
    "vocab_size": 512,
    "num_experts": 8,
    "max_position_embeddings": 4096,
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    "rope_theta": 1000000.0,
}


def shard(name: str, size: int = 64, metadata: bool = True) -> bytes:
    """A safetensors file with one tensor of that many bytes."""
    header: dict[str, t.Any] = {"__metadata__": {"format": "pt"}} if metadata else {}
    header[name] = {"dtype": "BF16", "shape": [size // 2], "data_offsets": [0, size]}
    raw = json.dumps(header).encode()
    return len(raw).to_bytes(8, "little") + raw + bytes(size)


def files(shards: int = 3) -> dict[str, bytes]:
    names = [f"model-{number:05d}-of-{shards:05d}.safetensors" for number in range(1, shards + 1)]
    index = {"metadata": {"total_size": 64 * shards}, "weight_map": {f"t.{name}": name for name in names}}
    return {
        "config.json": json.dumps(CONFIG).encode(),
        "tokenizer_config.json": b"{}",
        "model.safetensors.index.json": json.dumps(index).encode(),
        **{name: shard(name) for name in names},
    }


def lay(folder: pathlib.Path, content: dict[str, bytes]) -> pathlib.Path:
    for name, data in content.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        path.chmod(0o644)
    return folder


def lay_cache(folder: pathlib.Path, content: dict[str, bytes], ref: str | None = "abc123") -> pathlib.Path:
    """A hub cache: the files are links from the snapshot to blobs."""
    root = folder / "models--Qwen--Tiny"
    snapshot = root / "snapshots" / "abc123"
    snapshot.mkdir(parents=True)
    (root / "blobs").mkdir()
    for number, (name, data) in enumerate(content.items()):
        (root / "blobs" / f"blob{number}").write_bytes(data)
        (snapshot / name).symlink_to(f"../../blobs/blob{number}")
    if ref is not None:
        (root / "refs").mkdir()
        (root / "refs" / "main").write_text(ref)
    return root


@pytest.fixture
def model(tmp_path: pathlib.Path) -> pathlib.Path:
    return lay(tmp_path / "model", files())


def test_a_whole_model(model: pathlib.Path) -> None:
    found = subject.manifest(str(model))
    assert found["exists"] and found["complete"] and found["problem"] is None
    assert (found["path"], found["mount"]) == (str(model), str(model))
    assert found["files"] == 6
    assert found["bytes_total"] == sum(len(data) for data in files().values())
    assert found["weight_bytes"] == sum(len(data) for name, data in files().items() if name.endswith("safetensors"))
    assert (found["missing"], found["truncated"], found["dangling"], found["unreadable"]) == ([], [], [], 0)


def test_the_configuration(model: pathlib.Path) -> None:
    config = subject.manifest(str(model))["config"]
    assert config == {
        **{key: value for key, value in CONFIG.items() if key not in ("torch_dtype", "rope_theta")},
        "dtype": "bfloat16",
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    }


def test_the_configuration_of_a_multimodal_model() -> None:
    config = {
        "model_type": "qwen3_5_moe",
        "dtype": "bfloat16",
        "text_config": {"num_local_experts": 256, "head_dim": 128, "mtp_num_hidden_layers": 1, "layer_types": ["linear_attention"]},
        "rope_parameters": {"rope_theta": 10000000, "partial_rotary_factor": 0.25},
        "vision_config": {"hidden_size": 1152, "depth": 27},
        "quantization_config": {"quant_method": "fp8", "modules_to_not_convert": ["lm_head"]},
    }
    assert subject.config_summary(config) == {
        "model_type": "qwen3_5_moe",
        "dtype": "bfloat16",
        "text_config": {"num_experts": 256, "head_dim": 128, "mtp_layers": 1, "layer_types": ["linear_attention"]},
        "partial_rotary_factor": 0.25,
        "vision_config": {"hidden_size": 1152},
        "quantization_config": {"quant_method": "fp8"},
    }


def test_the_tensors_are_those_of_the_weights_and_told_on_demand(model: pathlib.Path) -> None:
    """A file that the index does not name ("consolidated.safetensors" beside the hub's own shards) is never loaded."""
    (model / "consolidated.safetensors").write_bytes(shard("layers.0.attention.wq.weight"))
    name = "model-{:05d}-of-00003.safetensors"
    rows = [{"name": name.format(number), "dtype": "BF16", "shape": [32], "count": 1, "layers": []} for number in (1, 2, 3)]
    assert subject.manifest(str(model), tensors=True)["tensors"] == rows
    assert "tensors" not in subject.manifest(str(model))


def test_a_header_without_a_shape_is_no_header(tmp_path: pathlib.Path) -> None:
    raw = json.dumps({"t": {"dtype": "BF16", "data_offsets": [0, 2]}}).encode()
    path = tmp_path / "model.safetensors"
    path.write_bytes(len(raw).to_bytes(8, "little") + raw + bytes(2))
    assert subject.safetensors_header(str(path)) is None


def broken(name: str, data: bytes | None) -> dict[str, bytes]:
    content = files()
    if data is None:
        del content[name]
    else:
        content[name] = data
    return content


SECOND = "model-00002-of-00003.safetensors"


@pytest.mark.parametrize(
    ("content", "key", "names", "sentence"),
    [
        pytest.param(broken(SECOND, None), "missing", [SECOND], f"{SECOND} of the model in ", id="missing shard"),
        pytest.param(broken(SECOND, shard(SECOND)[:-1]), "truncated", [SECOND], "by what its header says", id="cut short"),
        pytest.param(broken(SECOND, shard(SECOND) + b"x"), "truncated", [SECOND], "by what its header says", id="too long"),
        pytest.param(broken(SECOND, shard(SECOND)[:20]), "truncated", [SECOND], "by what its header says", id="header cut"),
        pytest.param(broken(SECOND, b""), "truncated", [SECOND], "by what its header says", id="empty file"),
        pytest.param(broken(SECOND, b"\xff" * 500), "truncated", [SECOND], "by what its header says", id="no safetensors"),
        pytest.param(broken("config.json", None), "missing", [], "has no config.json", id="no configuration"),
        pytest.param(broken("config.json", b"{"), "missing", [], "has no config.json", id="broken configuration"),
        pytest.param({"config.json": files()["config.json"]}, "missing", [], "has no weights", id="no weights"),
        pytest.param(
            {name: data for name, data in files().items() if "0000" not in name},
            "missing",
            [f"model-{number:05d}-of-00003.safetensors" for number in (1, 2, 3)],
            "3 files (such as model-00001-of-00003.safetensors) of the model in ",
            id="index only",
        ),
        pytest.param(
            {name: data for name, data in files().items() if "index" not in name and name != SECOND},
            "missing",
            [SECOND],
            f"{SECOND} of the model in ",
            id="no index, but the names say how many",
        ),
    ],
)
def test_a_broken_model(tmp_path: pathlib.Path, content: dict[str, bytes], key: str, names: list[str], sentence: str) -> None:
    found = subject.manifest(str(lay(tmp_path / "model", content)))
    assert found["exists"] and not found["complete"]
    assert found[key] == names
    assert sentence in found["problem"] and found["problem"].endswith(".")


def test_one_file_without_an_index(tmp_path: pathlib.Path) -> None:
    content = {"config.json": files()["config.json"], "model.safetensors": shard("model", metadata=False)}
    found = subject.manifest(str(lay(tmp_path / "model", content)))
    assert found["complete"] and found["weight_bytes"] == len(content["model.safetensors"])


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("/nonexistent/model", "The model's folder /nonexistent/model is not there."),
        ("Qwen/Tiny", "The model's path 'Qwen/Tiny' is not absolute: give the folder's full path on the nodes."),
        ("/proc/version", "/proc/version is not a folder: give the model's folder."),
    ],
)
def test_a_path_without_a_model(path: str, sentence: str) -> None:
    found = subject.manifest(path)
    assert (found["exists"], found["complete"], found["problem"], found["digest"]) == (False, False, sentence, None)


def test_an_empty_folder(tmp_path: pathlib.Path) -> None:
    assert subject.manifest(str(tmp_path))["problem"] == f"The model's folder {tmp_path} is empty."


@pytest.mark.parametrize("ref", ["abc123", "abc123\n", " abc123 \n", None], ids=["ref", "newline", "blanks", "no ref"])
def test_a_hub_cache(tmp_path: pathlib.Path, ref: str | None) -> None:
    root = lay_cache(tmp_path, files(), ref)
    found = subject.manifest(str(root))
    assert found["complete"], found["problem"]
    assert found["path"] == str(root / "snapshots" / "abc123")
    assert found["mount"] == str(root)
    assert found["digest"] == subject.manifest(str(lay(tmp_path / "plain", files())))["digest"]


def test_a_snapshot_given_by_itself_must_be_seen_with_its_blobs(tmp_path: pathlib.Path) -> None:
    root = lay_cache(tmp_path, files())
    found = subject.manifest(str(root / "snapshots" / "abc123"))
    assert found["complete"] and found["mount"] == str(root)


@pytest.mark.parametrize(
    ("ref", "more", "sentence"),
    [("ffff", [], "has no snapshot ffff, which refs/main names"), (None, ["def456"], "has 2 snapshots and no refs/main")],
)
def test_a_hub_cache_without_the_snapshot(tmp_path: pathlib.Path, ref: str | None, more: list[str], sentence: str) -> None:
    root = lay_cache(tmp_path, files(), ref)
    for name in more:
        (root / "snapshots" / name).mkdir()
    found = subject.manifest(str(root))
    assert not found["complete"] and sentence in found["problem"]


def test_a_link_to_a_folder_of_links_is_followed_to_what_a_container_sees(tmp_path: pathlib.Path) -> None:
    root = lay_cache(tmp_path / "disk", files())
    snapshot = root / "snapshots" / "abc123"
    short = tmp_path / "model"
    short.symlink_to(snapshot)
    found = subject.manifest(str(short))
    assert (found["complete"], found["problem"]) == (True, None)
    assert (found["path"], found["mount"]) == (str(snapshot), str(root))


def test_links_for_which_all_would_have_to_be_mounted(model: pathlib.Path) -> None:
    (model / "extra.json").symlink_to("/proc/version")
    found = subject.manifest(str(model))
    assert found["problem"].startswith(f"Links in {model} lead so far away that a container would have to see the whole root file system")


def test_links_that_lead_nowhere(tmp_path: pathlib.Path) -> None:
    # "13 MB copied, 98 broken links, success": the blobs lay outside the tree that was copied.
    root = lay_cache(tmp_path, files())
    shutil.rmtree(root / "blobs")
    found = subject.manifest(str(root))
    assert len(found["dangling"]) == 6 and not found["complete"]
    assert found["problem"].startswith("6 files (such as config.json) in ") and "lead nowhere" in found["problem"]


def test_a_download_under_way_is_told(tmp_path: pathlib.Path) -> None:
    root = lay_cache(tmp_path, broken(SECOND, None))
    (root / "blobs" / "0123.incomplete").write_bytes(b"")
    assert subject.manifest(str(root))["problem"].endswith("is missing (its download is not finished).")


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({SECOND: shard("other")}, id="another tensor in a shard of the same size"),
        pytest.param({"tokenizer_config.json": b"[]"}, id="small file of the same size"),
        pytest.param({"chat_template.jinja": b"x"}, id="one more file"),
    ],
)
def test_the_digest_tells_models_apart(tmp_path: pathlib.Path, change: dict[str, bytes]) -> None:
    one = subject.manifest(str(lay(tmp_path / "one", files())))["digest"]
    same = subject.manifest(str(lay(tmp_path / "same", files())))["digest"]
    other = subject.manifest(str(lay(tmp_path / "other", {**files(), **change})))["digest"]
    assert one == same != other


def test_hidden_files_do_not_count(model: pathlib.Path) -> None:
    before = subject.manifest(str(model))
    lay(model, {".gitattributes": b"x", ".cache/huggingface/download/config.json.metadata": b"x"})
    assert subject.manifest(str(model)) == before


def test_files_that_a_container_can_not_read(model: pathlib.Path) -> None:
    for name in ("config.json", SECOND):
        os.chown(model / name, 1000, 1000)
        (model / name).chmod(0o600)
    os.chown(model / "tokenizer_config.json", 1000, 1000)
    found = subject.manifest(str(model))
    assert found["unreadable"] == 2 and found["complete"]
    assert found["problem"].endswith(f"run `chmod -R a+rX {model}`.")


def test_root_s_own_files_are_readable_for_root(model: pathlib.Path) -> None:
    (model / SECOND).chmod(0o600)
    os.chown(model / SECOND, 0, 0)
    assert subject.manifest(str(model))["unreadable"] == 0
