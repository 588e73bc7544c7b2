# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The model's folder: its configuration, its shards, and their bytes."""

import glob
import json
import os
import typing as t

from . import faults

_CHUNK = 1 << 20


def config(folder: str) -> dict[str, t.Any]:
    """The model's config.json. Raises OSError, in the words of the library that looks for a folder that is not there."""
    if not os.path.isdir(folder):
        raise OSError(f"Repo id must be in the form 'repo_name' or 'namespace/repo_name': {folder!r}. Use `repo_type` argument if needed.")
    path = os.path.join(folder, "config.json")
    if not os.path.isfile(path):
        raise OSError(f"{folder} does not appear to have a file named config.json.")
    with open(path, encoding="utf-8") as file:
        return t.cast("dict[str, t.Any]", json.load(file))


def shards(folder: str) -> list[str]:
    """The paths of the shards: those that the index names, else all that lie there. Raises RuntimeError when there is none."""
    index = os.path.join(folder, "model.safetensors.index.json")
    if os.path.isfile(index):
        with open(index, encoding="utf-8") as file:
            names = sorted(set(json.load(file)["weight_map"].values()))
        return [os.path.join(folder, name) for name in names]
    found = sorted(glob.glob(os.path.join(folder, "*.safetensors")))
    if not found:
        raise RuntimeError(f"Cannot find any model weights with `{folder}`")
    return found


def check(path: str) -> None:
    """Check that a file is as long as its header says: 8 bytes of length, a JSON header, the tensors one after the other.

    Raises SafetensorError, which never names the file, or FileNotFoundError.
    """
    if not os.path.exists(path):
        raise FileNotFoundError(f"No such file or directory: {path}")
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or 8 + length > size:
            raise faults.SafetensorError(
                "Error while deserializing header: header too large" if size >= 8 else "Error while deserializing header: header too small"
            )
        try:
            header = json.loads(file.read(length))
            end = max((tensor["data_offsets"][1] for name, tensor in header.items() if name != "__metadata__"), default=0)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise faults.SafetensorError("Error while deserializing header: invalid JSON in header") from error
    if 8 + length + end != size:
        raise faults.SafetensorError("Error while deserializing header: incomplete metadata, file not fully covered")


def read(path: str) -> t.Iterator[bytes]:
    """All bytes of a shard, in pieces."""
    with open(path, "rb", buffering=0) as file:
        while piece := file.read(_CHUNK):
            yield piece
