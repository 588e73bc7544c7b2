# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""Gives page cache back: of certain files, which anybody may who can read them, or all of it, which takes root."""

from __future__ import annotations

import ctypes
import os
import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils._files import text
from ansible_collections.sparkstack.inference.plugins.module_utils._memory import page_cache_bytes, parse_meminfo

LEAST = 64 << 20
"""Bytes of page cache below which there is nothing to be gained: the programs that run have their code there."""

# Of what mincore(2) writes for a page only the lowest bit is defined. A model of 120 GB has 31 million pages.
_LOWEST = bytes(byte & 1 for byte in range(256))


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


def held(paths: t.Iterable[str]) -> int:
    """Bytes of page cache that these files have, in whole pages; a file that can't be opened or looked into counts as none.

    For a file that is neither the caller's nor writable by it the kernel says that all of it is there (since Linux 5.2), so only
    root's answer is exact. Nothing is read by asking. Source: mincore(2).
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    return sum(_held(libc, path) for path in paths)


def _held(libc: ctypes.CDLL, path: str) -> int:
    page = os.sysconf("SC_PAGE_SIZE")
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return 0
    try:
        size = os.fstat(handle).st_size
        # PROT_READ, MAP_SHARED. Nothing of an empty file can be mapped.
        where = libc.mmap(None, size, 1, 1, handle, 0) if size else None
    finally:
        os.close(handle)
    # MAP_FAILED is (void *) -1.
    if where is None or where == ctypes.c_void_p(-1).value:
        return 0
    try:
        there = ctypes.create_string_buffer(-(-size // page))
        if libc.mincore(where, size, there):
            return 0
        return there.raw.translate(_LOWEST).count(1) * page
    finally:
        libc.munmap(where, size)


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
