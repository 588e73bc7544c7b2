# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# ruff: noqa: F811  (the fixtures are those of the other tests of a copy)
"""A copy in whose way something was laid."""

from __future__ import annotations

import os
import pathlib
import typing as t

import pytest
from copying import CHUNK, MODEL, Node, Process, content, listing, provider
from test_staging_copy import BIG, Pair, ending, folder, half  # noqa: F401  (fixtures)

from ansible_collections.sparkstack.inference.plugins.module_utils import _staging_state as state


@pytest.mark.parametrize("how", ["cut", "linked"])
def test_an_unfinished_file_that_somebody_has_cut_or_laid_is_not_taken(folder: pathlib.Path, ending: list[t.Any], how: str) -> None:
    """Its journal of the same boot had all be believed of it."""
    files = listing(folder / "source")
    target = Process("spark2", folder / "target", False, files)
    source = Node("spark1", folder / "source", True, files, ["spark2"])
    target.go(provider(source, "spark2"))
    half(target)
    target.kill()
    source.close()
    missing = [name for name in MODEL if name not in content(folder / "target")]
    part = pathlib.Path(state.partial(str(folder / "target"), BIG))
    other = folder / "other"
    other.write_bytes(b"mine" * (MODEL[BIG] // 4 + 1))
    before = other.read_bytes()
    if how == "cut":
        os.truncate(part, CHUNK)
    else:
        part.unlink()
        part.symlink_to(other)
    done = Pair(folder, ending, mine=missing).copy()
    assert done["state"] == "done" and content(folder / "target") == content(folder / "source")
    assert other.read_bytes() == before and not (folder / "target" / BIG).is_symlink()
