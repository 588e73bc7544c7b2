# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""Pages of a node that are set aside, shared or in pieces, out of /proc/meminfo and /proc/buddyinfo. Pure: no I/O."""

from __future__ import annotations

import re
import typing as t

LARGE = 16 << 20
"""Bytes of a piece of memory that counts as large, where the kernel keeps such pieces; else the largest that it keeps."""
# 'Node 0, zone   Normal    123     45 ...      7': free pieces of one page, of two, of four ...
_ZONE = re.compile(r"^Node\s+[0-9]+,\s+zone\s+(\w+)((?:\s+[0-9]{1,18})+)\s*$", re.MULTILINE)


def pages(meminfo: t.Mapping[str, int]) -> t.Dict[str, t.Optional[int]]:
    """What of a node's memory is set aside or shared, in bytes.

    :param meminfo: see M(_memory.parse_meminfo).
    :returns: C(shared_memory_bytes) (files in /dev/shm and the like, which only their removal frees), C(huge_page_bytes) (the pool
        of huge pages of every size, used or not, which neither CUDA nor the page cache gets), C(huge_page_free_bytes) (what of the
        default size is neither used nor promised), C(cma_total_bytes) and C(cma_free_bytes) (None where the kernel has no such area).

    Source: Linux, filesystems/proc and admin-guide/mm/hugetlbpage.
    """
    size = meminfo.get("Hugepagesize", 0)
    pool = meminfo.get("HugePages_Total", 0) * size
    return {
        "shared_memory_bytes": meminfo.get("Shmem", 0),
        # Kernels before 4.18 have no Hugetlb, and count the default size only.
        "huge_page_bytes": max(meminfo.get("Hugetlb", 0), pool),
        "huge_page_free_bytes": max(0, meminfo.get("HugePages_Free", 0) - meminfo.get("HugePages_Rsvd", 0)) * size,
        "cma_total_bytes": meminfo.get("CmaTotal"),
        "cma_free_bytes": meminfo.get("CmaFree"),
    }


def large_free_bytes(buddyinfo: str, page_size: int) -> t.Optional[t.Tuple[int, int]]:
    """How much memory is free in large pieces, and how large these are at least, in bytes; None where the kernel doesn't tell.

    A node that has served for days can have a hundred GiB free, and hardly a piece of 16 MiB among them: the driver's pinned buffers
    then wait for the kernel to move pages, or fail with NV_ERR_NO_MEMORY.

    :param buddyinfo: the text of /proc/buddyinfo. :param page_size: bytes of a page.
    """
    zones = [[int(count) for count in match.group(2).split()] for match in _ZONE.finditer(buddyinfo)]
    orders = max((len(zone) for zone in zones), default=0)
    if not orders:
        return None
    least = next((order for order in range(orders) if page_size << order >= LARGE), orders - 1)
    free = sum(count * (page_size << order) for zone in zones for order, count in enumerate(zone) if order >= least)
    return free, page_size << least
