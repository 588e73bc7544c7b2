# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Giving page cache back: when, of what, and that a file keeps its content; and the module's four ways through it."""

from __future__ import annotations

import os
import pathlib
import typing as t

import pytest

from ansible_collections.sparkstack.inference.plugins.module_utils import _page_cache as pages
from ansible_collections.sparkstack.inference.plugins.modules import page_cache_release

GIB = 1 << 30


def machine(root: pathlib.Path, free: int, cached: int) -> str:
    (root / "proc" / "sys" / "vm").mkdir(parents=True, exist_ok=True)
    (root / "proc" / "meminfo").write_text(f"MemTotal: 127600748 kB\nMemFree: {free} kB\nBuffers: 100 kB\nCached: {cached} kB\nShmem: 200 kB\n")
    return str(root)


def test_what_the_kernel_says(tmp_path: pathlib.Path) -> None:
    assert pages.memory(machine(tmp_path, 1000, 5000)) == (1000 * 1024, 4900 * 1024)


@pytest.mark.parametrize(
    ("free", "cache", "wanted", "needed"),
    [(10 * GIB, 90 * GIB, 0, True), (10 * GIB, 90 * GIB, 50 * GIB, True), (60 * GIB, 40 * GIB, 50 * GIB, False), (10 * GIB, 63 << 20, 50 * GIB, False)],
)
def test_when_it_is_needed(free: int, cache: int, wanted: int, needed: bool) -> None:
    assert pages.needed(pages.Memory(free, cache), wanted) is needed


def test_files_are_found_once_behind_links_and_keep_their_content(tmp_path: pathlib.Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "1"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    (blobs / "a").write_bytes(b"x" * 100000)
    (snapshot / "model.safetensors").symlink_to("../../blobs/a")
    (snapshot / "gone").symlink_to("../../blobs/b")
    found = pages.files([str(tmp_path / "snapshots"), str(blobs), str(tmp_path / "nowhere")])
    assert found == [str(blobs / "a")]
    assert pages.drop_files([*found, str(tmp_path / "nowhere")]) == 1
    assert (blobs / "a").read_bytes() == b"x" * 100000


def test_what_files_hold_is_counted_in_whole_pages(tmp_path: pathlib.Path) -> None:
    read, empty, page = tmp_path / "read", tmp_path / "empty", os.sysconf("SC_PAGE_SIZE")
    read.write_bytes(b"x" * (5 * page + 1))
    empty.touch()
    assert pages.held([str(read), str(empty), str(tmp_path / "nowhere"), str(tmp_path)]) == 6 * page


def test_all_of_it(tmp_path: pathlib.Path) -> None:
    root = machine(tmp_path, 1, 1)
    pages.drop_all(root)
    assert (tmp_path / "proc" / "sys" / "vm" / "drop_caches").read_text() == "1\n"


class Ended(Exception):
    pass


def module(
    monkeypatch: pytest.MonkeyPatch, looks: t.Sequence[tuple[int, int]], files: t.Sequence[int] = (), check: bool = False, **options: t.Any
) -> dict[str, t.Any]:
    """What the module answers when the kernel tells these numbers one after another, in GiB; its C(dropped) is what was given back.

    :param files: GiB that the files hold, as often as they are asked; afterwards nothing.
    """
    told: dict[str, t.Any] = {}
    dropped: list[str] = []

    class Module:
        def __init__(self, **_known: t.Any) -> None:
            self.params = {"wanted": 0, "paths": [], "all": False, **options}
            self.check_mode = check

        def exit_json(self, **result: t.Any) -> t.NoReturn:
            told.update(result)
            raise Ended

        fail_json = exit_json

    numbers, held = iter(looks), iter(files)
    monkeypatch.setattr(page_cache_release, "AnsibleModule", Module)
    monkeypatch.setattr(pages, "memory", lambda: pages.Memory(*(number * GIB for number in next(numbers))))
    monkeypatch.setattr(pages, "files", lambda paths: list(paths))
    monkeypatch.setattr(pages, "held", lambda paths: next(held, 0) * GIB if paths else 0)
    monkeypatch.setattr(pages, "drop_files", lambda paths: dropped.extend(paths))
    monkeypatch.setattr(pages, "drop_all", lambda: dropped.append("all"))
    with pytest.raises(Ended):
        page_cache_release.main()
    return {**told, "dropped": dropped}


@pytest.mark.parametrize(
    ("looks", "files", "options", "dropped", "changed"),
    [
        ([(60, 40)], [60], {"wanted": 50 * GIB, "paths": ["m"], "all": True}, [], False),
        ([(10, 90), (70, 30)], [60], {"wanted": 50 * GIB, "paths": ["m"], "all": True}, ["m"], True),
        ([(10, 90), (20, 80), (98, 2)], [10], {"wanted": 50 * GIB, "paths": ["m"], "all": True}, ["m", "all"], True),
        ([(10, 90)], [0], {"wanted": 50 * GIB, "paths": ["m"]}, [], False),
        ([(10, 90), (10, 90)], [60], {"wanted": 80 * GIB, "paths": ["m"]}, ["m"], True),
        ([(10, 90), (10, 90)], [60, 60], {"wanted": 80 * GIB, "paths": ["m"]}, ["m"], False),
        ([(10, 90)], [], {"wanted": 50 * GIB}, [], False),
        ([(10, 90), (98, 2)], [], {"all": True}, ["all"], True),
    ],
    ids=[
        "enough is free",
        "the files were enough",
        "the files were not",
        "nobody had read them",
        "somebody else took it",
        "a process has them mapped",
        "nothing is allowed",
        "as much as there is",
    ],
)
def test_the_smallest_that_is_enough(
    looks: list[tuple[int, int]], files: list[int], options: dict[str, t.Any], dropped: list[str], changed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = module(monkeypatch, looks, files, **options)
    assert (result["dropped"], result["changed"]) == (dropped, changed)
    assert (result["free_before_bytes"], result["free_bytes"]) == (looks[0][0] * GIB, looks[-1][0] * GIB)


def test_check_mode_gives_nothing_back(monkeypatch: pytest.MonkeyPatch) -> None:
    result = module(monkeypatch, [(10, 90)], [60], check=True, wanted=50 * GIB, paths=["m"], all=True)
    assert (result["changed"], result["actions"], result["dropped"]) == (True, ["files", "all"], [])


def test_what_can_not_be(monkeypatch: pytest.MonkeyPatch) -> None:
    assert module(monkeypatch, [], wanted=-1)["msg"] == "wanted is -1: give the bytes that are to be free, or 0 for as many as there are."
