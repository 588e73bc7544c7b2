# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""Gives page cache back: of certain files, which anybody may who can read them, or all of it, which takes root."""

from __future__ import annotations

import os
import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils._files import text
from ansible_collections.sparkstack.inference.plugins.module_utils._memory import page_cache_bytes, parse_meminfo

LEAST = 64 << 20
"""Bytes of page cache below which there is nothing to be gained: the programs that run have their code there."""


class Memory(t.NamedTuple):
    """What the kernel says, in bytes."""

    free: int
    """Used by nobody, nor by the page cache: what CUDA calls free on a GB10."""
    cache: int


def memory(root: str = "/") -> Memory:
    """The node's memory now. :param root: where C(/proc) hangs."""
    told = parse_meminfo(text(os.path.join(root, "proc", "meminfo")))
    return Memory(told.get("MemFree", 0), page_cache_bytes(told))


def needed(now: Memory, wanted: int) -> bool:
    """Page cache stands between what is free and what is wanted. :param wanted: bytes; 0: as much as there is."""
    return now.cache >= LEAST and (not wanted or now.free < wanted)


def files(paths: t.Iterable[str]) -> t.List[str]:
    """All regular files that are or lie below the paths, links followed (a hub's cache is made of them), each once."""
    found: t.Dict[str, None] = {}
    for path in paths:
        if os.path.isfile(path):
            found[os.path.realpath(path)] = None
        for folder, _folders, names in os.walk(path, followlinks=True):
            for name in names:
                real = os.path.realpath(os.path.join(folder, name))
                if os.path.isfile(real):
                    found[real] = None
    return list(found)


def drop_files(paths: t.Iterable[str]) -> int:
    """Have the kernel give up the pages of files; those that are mapped by a process, or not written yet, stay.

    :returns: how many files that was; one that can't be opened is left out. Source: posix_fadvise(2).
    """
    done = 0
    for path in paths:
        try:
            handle = os.open(path, os.O_RDONLY)
        except OSError:
            continue
        try:
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            done += 1
        finally:
            os.close(handle)
    return done


def drop_all(root: str = "/") -> None:
    """Have the kernel give up all clean pages, after those that are not written yet were written.

    :raises OSError: without root, and in a container that may not. Source: the kernel's Documentation/admin-guide/sysctl/vm.rst.
    """
    os.sync()
    with open(os.path.join(root, "proc", "sys", "vm", "drop_caches"), "w", encoding="ascii") as stream:
        stream.write("1\n")
