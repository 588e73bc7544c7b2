# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""Whether a model's folder holds a whole model, and what kind of model; in milliseconds, so without reading the weights.

Understands a plain folder and the hub's cache (C(models--ORG--NAME) with C(blobs), C(refs) and C(snapshots), whose files
are links). Only reads. Source for the format of the weights: the safetensors README, "Format".
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils._tensors import Tensor, groups, read_header

SMALL = 1 << 20  # bytes up to which a text file is hashed whole
SMALL_SUFFIXES = (".json", ".txt", ".jinja", ".py")
LIMIT_HEADER = 100 * 1000 * 1000  # the format's own limit
WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
INDEX_SUFFIXES = (".safetensors.index.json", ".bin.index.json")
# "model-00001-of-00039.safetensors", which says how many there must be even without an index
SHARD = re.compile(r"^(.+)-(\d{5})-of-(\d{5})(\.[a-z]+)$")

CONFIG_FIELDS = (
    "architectures",
    "model_type",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "hidden_size",
    "vocab_size",
    "max_position_embeddings",
    "tie_word_embeddings",
    "intermediate_size",
    "moe_intermediate_size",
    "num_experts_per_tok",
    # Attention over a window, with latent vectors (MLA), with an index of its own, and linear attention.
    "layer_types",
    "sliding_window",
    "full_attention_interval",
    "v_head_dim",
    "kv_lora_rank",
    "qk_rope_head_dim",
    "index_head_dim",
    "linear_conv_kernel_dim",
    "linear_key_head_dim",
    "linear_value_head_dim",
    "linear_num_key_heads",
    "linear_num_value_heads",
    "mamba_ssm_dtype",
    "partial_rotary_factor",
)
# The same thing has had several names; the first that is there counts.
CONFIG_ALIASES = {
    "dtype": ("dtype", "torch_dtype"),
    "num_experts": ("num_experts", "num_local_experts", "n_routed_experts"),
    "mtp_layers": ("mtp_num_hidden_layers", "num_nextn_predict_layers", "num_mtp_layers"),
}
# How it is quantised, as far as it decides on sizes: llm-compressor's "kv_cache_scheme", ModelOpt's "kv_cache_quant_algo".
QUANTIZATION_FIELDS = ("quant_method", "weight_block_size", "kv_cache_scheme", "kv_cache_quant_algo")


class Header(t.NamedTuple):
    """A safetensors file's header: its SHA-256, how many bytes the whole file must have, and its tensors."""

    digest: str
    file_size: int
    tensors: t.Sequence[Tensor] = ()


def safetensors_header(path: str) -> t.Optional[Header]:
    """Read a file's header; None when the header itself is cut short or no JSON.

    The file begins with the header's length (8 bytes, little endian); the header says for each tensor where its bytes
    begin and end behind the header. :raises OSError: when the file can't be read.
    """
    with open(path, "rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if not 2 <= length <= LIMIT_HEADER:
            return None
        raw = stream.read(length)
    if len(raw) < length:
        return None
    try:
        header = json.loads(raw.decode("utf-8"))
        ends = [int(value["data_offsets"][1]) for name, value in header.items() if name != "__metadata__"]
        tensors = read_header(header)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError):
        return None
    return Header(hashlib.sha256(raw).hexdigest(), 8 + length + max(ends, default=0), tensors)


def resolve(path: str) -> t.Tuple[str, t.Optional[str]]:
    """Find the folder with the model's files: the path itself, or the snapshot of a hub cache that C(main) names.

    :returns: the folder and None, or the path and one sentence.
    """
    snapshots = os.path.join(path, "snapshots")
    if not os.path.isdir(snapshots):
        return path, None
    names = sorted(os.listdir(snapshots))
    try:
        with open(os.path.join(path, "refs", "main"), encoding="utf-8") as stream:
            # Some tools leave a newline at the end, which is no part of the name.
            revision = stream.read().strip()
    except FileNotFoundError:
        revision = names[0] if len(names) == 1 else ""
    if not revision:
        return path, f"{path} has {len(names)} snapshots and no refs/main: give the path of one of them."
    if revision not in names:
        return path, f"{path} has no snapshot {revision}, which refs/main names: download the model again."
    return os.path.join(snapshots, revision), None


def manifest(path: str, tensors: bool = False) -> t.Dict[str, t.Any]:
    """Describe the model below a path; the keys are those that M(sparkstack.inference.model_manifest_info) returns.

    :param tensors: tell the tensors of its weights as well.
    :raises OSError: when a file can't be read by this user.
    """
    result = _Manifest(path)
    if not os.path.isabs(path):
        result.problem = f"The model's path {path!r} is not absolute: give the folder's full path on the nodes."
    elif not os.path.lexists(path):
        result.problem = f"The model's folder {path} is not there."
    elif not os.path.isdir(path):
        result.problem = f"{path} is not a folder: give the model's folder."
    else:
        result.exists = True
        result.path, result.problem = resolve(path)
        if result.problem is None:
            result.read()
    return result.as_dict(tensors)


class _Manifest:
    def __init__(self, path: str) -> None:
        self.path = path
        self.given = path
        self.exists = False
        self.problem: t.Optional[str] = None
        self.sizes: t.Dict[str, int] = {}
        self.missing: t.List[str] = []
        self.truncated: t.List[str] = []
        self.dangling: t.List[str] = []
        self.weights: t.List[str] = []
        self.tensors: t.Dict[str, t.Sequence[Tensor]] = {}
        self.unreadable = 0
        self.mount = path
        self.digest: t.Optional[str] = None
        self.config: t.Dict[str, t.Any] = {}
        self.complete = False

    def read(self) -> None:
        marks = hashlib.sha256()
        for name in self._walk():
            full = os.path.join(self.path, name)
            size = self.sizes[name]
            mark = ""
            if name.endswith(".safetensors"):
                header = safetensors_header(full)
                mark = header.digest if header else ""
                self.tensors[name] = header.tensors if header else ()
                if header is None or header.file_size != size:
                    self.truncated.append(name)
            elif name.endswith(SMALL_SUFFIXES) and size < SMALL:
                with open(full, "rb") as stream:
                    mark = hashlib.sha256(stream.read()).hexdigest()
            marks.update(json.dumps([name, size, mark]).encode("utf-8"))
        self.digest = "sha256:" + marks.hexdigest()
        self.config = config_summary(self._json("config.json"))
        self._find_missing()
        self.problem = self._judge()
        self.complete = bool(self.weights) and not (self.missing or self.truncated or self.dangling or not self.config)

    def _walk(self) -> t.List[str]:
        """All files by their relative names, sorted; hidden ones (C(.cache), C(.gitattributes)) are not the model's."""
        leads = [os.path.realpath(self.path)]
        for folder, folders, files in os.walk(self.path):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            self._note_rights(os.stat(folder), stat.S_IROTH | stat.S_IXOTH)
            for file in files:
                if file.startswith("."):
                    continue
                full = os.path.join(folder, file)
                name = os.path.relpath(full, self.path)
                try:
                    status = os.stat(full)
                except FileNotFoundError:
                    self.dangling.append(name)
                    continue
                self.sizes[name] = status.st_size
                self._note_rights(status, stat.S_IROTH)
                leads.append(os.path.realpath(full))
        self.dangling.sort()
        # What a container must see so that all links lead somewhere: of a hub cache the folder above the snapshots.
        common = os.path.commonpath(leads)
        if common == leads[0]:
            self.mount = self.path
        elif _within(leads, self.given):
            self.mount = self.given
        else:
            # The path given may itself be a link from elsewhere, where the container sees nothing.
            self.path, self.mount = leads[0], common
        return sorted(self.sizes)

    def _note_rights(self, status: os.stat_result, wanted: int) -> None:
        # root in a container that has dropped DAC_OVERRIDE reads as anybody does, unless the file is its own.
        if status.st_uid != 0 and status.st_mode & wanted != wanted:
            self.unreadable += 1

    def _json(self, name: str) -> t.Dict[str, t.Any]:
        try:
            with open(os.path.join(self.path, name), encoding="utf-8") as stream:
                data = json.load(stream)
        except (FileNotFoundError, ValueError):
            return {}
        return data if isinstance(data, dict) else {}

    def _find_missing(self) -> None:
        wanted: t.Set[str] = set()
        top = [name for name in self.sizes if os.sep not in name]
        for name in top:
            if name.endswith(INDEX_SUFFIXES):
                wanted.update(str(shard) for shard in (self._json(name).get("weight_map") or {}).values())
        if not wanted:
            weights = [name for name in top if name.endswith(WEIGHT_SUFFIXES)]
            safetensors = [name for name in weights if name.endswith(".safetensors")]
            for name in safetensors or weights:
                wanted.add(name)
                parts = SHARD.match(name)
                if parts:
                    stem, _number, count, suffix = parts.groups()
                    wanted.update(f"{stem}-{number:05d}-of-{count}{suffix}" for number in range(1, int(count) + 1))
        self.weights = sorted(wanted & set(self.sizes))
        self.missing = sorted(wanted - set(self.sizes))

    def _judge(self) -> t.Optional[str]:
        """One sentence about the worst that is wrong, or None."""
        if not self.sizes and not self.dangling:
            return f"The model's folder {self.path} is empty."
        if self.dangling:
            return f"{_some(self.dangling)} in {self.path} {_lead(self.dangling)} nowhere: copy what the links point to."
        if self.mount == os.sep:
            return f"Links in {self.path} lead so far away that a container would have to see the whole root file system: put the files themselves there."
        if self.missing:
            return f"{_some(self.missing)} of the model in {self.path} {_are(self.missing)} missing{self._under_way()}."
        if self.truncated:
            whole = "not whole by what its header says" if len(self.truncated) == 1 else "not whole by what their headers say"
            return f"{_some(self.truncated)} in {self.path} {_are(self.truncated)} {whole}{self._under_way()}."
        if not self.config:
            return f"{self.path} has no config.json with a model's configuration: give the model's own folder."
        if not self.weights:
            return f"{self.path} has no weights ({', '.join(WEIGHT_SUFFIXES)}){self._under_way()}."
        if self.unreadable:
            return f"{self.unreadable} files or folders in {self.path} are not readable for all, so not in a container: run `chmod -R a+rX {self.given}`."
        return None

    def _under_way(self) -> str:
        """Tell whether the hub's client has left unfinished files: it may be at work still."""
        for folder in (os.path.join(self.given, "blobs"), os.path.join(self.path, ".cache", "huggingface", "download")):
            if os.path.isdir(folder) and any(name.endswith(".incomplete") for name in os.listdir(folder)):
                return " (its download is not finished)"
        return ""

    def as_dict(self, tensors: bool) -> t.Dict[str, t.Any]:
        told = {"tensors": groups(tensor for name in self.weights for tensor in self.tensors.get(name, ()))} if tensors else {}
        return {
            **told,
            "path": self.path,
            "mount": self.mount,
            "exists": self.exists,
            "complete": self.complete,
            "problem": self.problem,
            "files": len(self.sizes),
            "bytes_total": sum(self.sizes.values()),
            "weight_bytes": sum(self.sizes[name] for name in self.weights),
            "missing": self.missing,
            "truncated": self.truncated,
            "dangling": self.dangling,
            "unreadable": self.unreadable,
            "digest": self.digest,
            "config": self.config,
        }


def config_summary(config: t.Mapping[str, t.Any]) -> t.Dict[str, t.Any]:
    """The fields of a model's C(config.json) that a plan needs; of a multimodal model also those of its parts."""
    summary: t.Dict[str, t.Any] = {field: config[field] for field in CONFIG_FIELDS if config.get(field) is not None}
    for field, names in CONFIG_ALIASES.items():
        found = [config[name] for name in names if config.get(name) is not None]
        if found:
            summary[field] = found[0]
    rope = config.get("rope_parameters")
    if isinstance(rope, dict) and rope.get("partial_rotary_factor") is not None:
        summary.setdefault("partial_rotary_factor", rope["partial_rotary_factor"])
    quantization = config.get("quantization_config")
    if isinstance(quantization, dict):
        summary["quantization_config"] = {field: quantization[field] for field in QUANTIZATION_FIELDS if quantization.get(field) is not None}
    for part in ("text_config", "vision_config"):
        if isinstance(config.get(part), dict):
            summary[part] = config_summary(config[part])
    return summary


def _within(paths: t.Iterable[str], folder: str) -> bool:
    real = os.path.realpath(folder)
    return all(os.path.commonpath([real, path]) == real for path in paths)


def _some(names: t.Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{len(names)} files (such as {names[0]})"


def _are(names: t.Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"


def _lead(names: t.Sequence[str]) -> str:
    return "leads" if len(names) == 1 else "lead"
