# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Names as Qwen3.5, Llama and gpt-oss write them."""

from __future__ import annotations

import pytest

from ansible_collections.sparkstack.inference.plugins.module_utils import _tensors as subject
from ansible_collections.sparkstack.inference.plugins.module_utils._tensors import Tensor


@pytest.mark.parametrize(
    ("dtype", "shape", "size"),
    [
        ("BF16", (3072, 2), 12288),
        ("F8_E4M3", (1024, 3072), 3145728),
        ("F32", (), 4),
        ("F4", (3,), 2),
        ("U8", (128, 5760, 90, 16), 1061683200),
        ("Q9", (2,), None),
    ],
)
def test_a_tensor_has_the_bytes_that_its_shape_tells(dtype: str, shape: tuple[int, ...], size: int | None) -> None:
    assert subject.size_of(dtype, shape) == size


def test_tensors_that_differ_in_numbers_only_make_one_row() -> None:
    tensors = [Tensor(f"model.layers.{layer}.mlp.experts.{expert}.up_proj.weight", "F8_E4M3", (8, 4)) for layer in (1, 2, 4) for expert in range(3)]
    tensors += [Tensor("model.layers.0.mlp.up_proj.weight", "F8_E4M3", (64, 4)), Tensor("lm_head.weight", "BF16", (16, 4))]
    assert subject.groups(tensors) == [
        {"name": "lm_head.weight", "dtype": "BF16", "shape": [16, 4], "count": 1, "layers": []},
        {"name": "model.layers.{}.mlp.experts.{}.up_proj.weight", "dtype": "F8_E4M3", "shape": [8, 4], "count": 9, "layers": [[1, 2], [4, 4]]},
        {"name": "model.layers.{}.mlp.up_proj.weight", "dtype": "F8_E4M3", "shape": [64, 4], "count": 1, "layers": [[0, 0]]},
    ]


def test_another_dtype_or_shape_is_another_row() -> None:
    names = [Tensor("h.0.w", "BF16", (2,)), Tensor("h.1.w", "F32", (2,)), Tensor("h.2.w", "BF16", (3,)), Tensor("h.3.w", "BF16", (2,))]
    rows = [(row["dtype"], row["shape"], row["count"], row["layers"]) for row in subject.groups(names)]
    assert rows == [("BF16", [2], 2, [[0, 0], [3, 3]]), ("BF16", [3], 1, [[2, 2]]), ("F32", [2], 1, [[1, 1]])]


def test_a_number_within_a_word_is_no_number_of_a_layer() -> None:
    tensors = [Tensor("model.layers.3.block_sparse_moe.experts.7.w1.weight", "BF16", (2, 2))]
    assert subject.groups(tensors)[0]["name"] == "model.layers.{}.block_sparse_moe.experts.{}.w1.weight"


def test_a_header_is_read_without_its_metadata() -> None:
    header = {"__metadata__": {"format": "pt"}, "a": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}}
    assert subject.read_header(header) == [Tensor("a", "BF16", (2, 3))]
