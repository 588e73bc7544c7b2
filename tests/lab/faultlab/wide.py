# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A wide model: the recipe's tiny one with many more experts in several shards, as large as a test needs.

It needs neither torch nor an engine: the file format is a length, a header in JSON, and the tensors' bytes.
"""

from __future__ import annotations

import json
import pathlib
import re
import shutil
import struct
import typing as t

EXPERT = re.compile(r"(.*\.experts\.)(\d+)(\..*)")
# transformers 5 writes the second, engines read the first or either
EXPERTS = ("num_experts", "num_local_experts")
Tensor = tuple[str, list[int], bytes]


def read(path: pathlib.Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file by name: type, shape, bytes."""
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + size])
    body = data[8 + size :]
    return {name: (entry["dtype"], entry["shape"], body[slice(*entry["data_offsets"])]) for name, entry in header.items() if name != "__metadata__"}


def write(path: pathlib.Path, tensors: t.Mapping[str, Tensor]) -> None:
    """Write a safetensors file."""
    header: dict[str, t.Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, (kind, shape, data) in tensors.items():
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data for _kind, _shape, data in tensors.values()))


def widen(tensors: t.Mapping[str, Tensor], experts: int) -> tuple[dict[str, Tensor], int]:
    """The same model with so many times the experts, each a copy of one that is there; and how many it has then."""
    had = 1 + max(int(match[2]) for match in map(EXPERT.fullmatch, tensors) if match)
    wide: dict[str, Tensor] = {}
    for name, (kind, shape, data) in tensors.items():
        match = EXPERT.fullmatch(name)
        if match:
            for turn in range(experts):
                wide[f"{match[1]}{int(match[2]) + turn * had}{match[3]}"] = (kind, shape, data)
        elif name.endswith(".mlp.gate.weight"):
            wide[name] = (kind, [shape[0] * experts, *shape[1:]], data * experts)
        else:
            wide[name] = (kind, shape, data)
    return wide, had * experts


def make(source: pathlib.Path, target: pathlib.Path, factor: int = 32, shards: int = 5) -> None:
    """Make the wide model of a tiny one in a folder, unless it is there: about 0.8 MB for each of the factor."""
    if (target / "config.json").exists():
        return
    temp = target.with_name(target.name + ".part")
    shutil.rmtree(temp, ignore_errors=True)
    temp.mkdir(parents=True)
    tensors: dict[str, Tensor] = {}
    for path in sorted(source.iterdir()):
        if path.suffix == ".safetensors":
            tensors.update(read(path))
        elif path.suffix != ".index.json":
            shutil.copy(path, temp)
    wide, experts = widen(tensors, factor)
    names = sorted(wide)
    index: dict[str, str] = {}
    for number in range(shards):
        file = f"model-{number + 1:05d}-of-{shards:05d}.safetensors"
        part = names[number::shards]
        write(temp / file, {name: wide[name] for name in part})
        index.update(dict.fromkeys(part, file))
    total = sum(len(data) for _kind, _shape, data in wide.values())
    (temp / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": index}))
    config = json.loads((source / "config.json").read_text())
    (temp / "config.json").write_text(json.dumps({**config, **dict.fromkeys(EXPERTS, experts)}, indent=1))
    temp.rename(target)
