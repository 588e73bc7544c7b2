# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""A model's tensors out of its safetensors headers, in a table small enough to travel: 90 000 tensors become 80 rows. Pure."""

from __future__ import annotations

import re
import typing as t

# Bits of an element. Source: the safetensors README, "Format", and its enum Dtype (0.6). F4 and its kin fill less than a byte.
BITS: t.Dict[str, int] = {
    "F64": 64, "I64": 64, "U64": 64, "C64": 64,
    "F32": 32, "I32": 32, "U32": 32,
    "F16": 16, "BF16": 16, "I16": 16, "U16": 16,
    "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E5M2FNUZ": 8, "F8_E4M3FNUZ": 8, "I8": 8, "U8": 8, "BOOL": 8,
    "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4,
}  # fmt: skip

# The number that stands between two dots, or at an end: "model.layers.11.mlp.experts.7.up_proj.weight".
_NUMBER = re.compile(r"(?:(?<=\.)|^)\d+(?=\.|$)")


class Tensor(t.NamedTuple):
    """One tensor as a header tells it: its name, dtype (safetensors' spelling) and shape."""

    name: str
    dtype: str
    shape: t.Tuple[int, ...]


def read_header(header: t.Mapping[str, t.Any]) -> t.List[Tensor]:
    """The tensors of a decoded safetensors header; :raises ValueError, TypeError, KeyError: when it is none."""
    return [Tensor(str(name), str(value["dtype"]), tuple(int(size) for size in value["shape"])) for name, value in header.items() if name != "__metadata__"]


def size_of(dtype: str, shape: t.Sequence[int]) -> t.Optional[int]:
    """Bytes of one tensor; None for a dtype that isn't known."""
    bits = BITS.get(dtype)
    if bits is None:
        return None
    elements = 1
    for size in shape:
        elements *= size
    return -(-elements * bits // 8)


def groups(tensors: t.Iterable[Tensor]) -> t.List[t.Dict[str, t.Any]]:
    """Put tensors together that differ in the numbers of their names only.

    :returns: a list, sorted by name, of mappings with C(name) (numbers written as C({})), C(dtype), C(shape), C(count), and
        C(layers): the values of the name's first number as runs C([first, last]), empty where the name has none. With it, a
        plan can tell the layers of each pipeline stage, and those behind the last one that a model predicts further tokens with.
    """
    found: t.Dict[t.Tuple[str, str, t.Tuple[int, ...]], t.List[t.Any]] = {}
    for tensor in tensors:
        first = _NUMBER.search(tensor.name)
        key = (_NUMBER.sub("{}", tensor.name), tensor.dtype, tensor.shape)
        entry = found.setdefault(key, [0, set()])
        entry[0] += 1
        if first:
            entry[1].add(int(first.group()))
    return [
        {"name": name, "dtype": dtype, "shape": list(shape), "count": count, "layers": _runs(numbers)}
        for (name, dtype, shape), (count, numbers) in sorted(found.items())
    ]


def _runs(numbers: t.Iterable[int]) -> t.List[t.List[int]]:
    runs: t.List[t.List[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return runs
