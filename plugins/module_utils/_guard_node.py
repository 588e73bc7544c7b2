# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""The node's memory as the guard sees it, and the rank that it stops: files of /proc and of the control groups, read many times a second."""

from __future__ import annotations

import os
import re
import signal
import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils import _cgroup
from ansible_collections.sparkstack.inference.plugins.module_utils._files import integer, text

# What version 1 says for "none": the largest multiple of a page below 2 to the 63rd.
_NO_LIMIT = 1 << 62
_MEMINFO = re.compile(rb"^(MemTotal|MemFree|MemAvailable|SwapTotal|SwapFree): +(\d+) kB$", re.MULTILINE)
# Version 1 tells the group's own pages first and those of all groups below it with "total_"; version 2 knows these only.
_FILE_1 = re.compile(rb"^total_(?:in)?active_file (\d+)$", re.MULTILINE)
_FILE_2 = re.compile(rb"^(?:(?:in)?active_file|slab_reclaimable) (\d+)$", re.MULTILINE)
_MOST = 16384
"""Bytes that are read of a file; the largest here, memory.stat, has about 2000."""


class _Files:
    """Files that stay open: to read one again costs a tenth, and takes no memory that the node may not have any more."""

    def __init__(self) -> None:
        self._open: t.Dict[str, int] = {}

    def read(self, *way: str) -> bytes:
        """The content of a file, or nothing where it can't be read."""
        path = os.path.join(*way)
        try:
            if path not in self._open:
                self._open[path] = os.open(path, os.O_RDONLY)
            return os.pread(self._open[path], _MOST, 0)
        except OSError:
            # Its group has just gone.
            if path in self._open:
                os.close(self._open.pop(path))
            return b""

    def number(self, *way: str) -> t.Optional[int]:
        """The number that a file holds, or None."""
        content = self.read(*way).strip()
        return int(content) if content.isdigit() else None


class Memory(t.NamedTuple):
    """One reading, in bytes."""

    available: int
    total: int
    limit: str
    """The control group whose limit is the nearest, or nothing where it is the machine's memory."""
    swap_total: int
    swap_used: int


class Rank:
    """A rank's container while it runs, known by its id: one that is made later under the same name is another."""

    def __init__(self, container: str, pid: int, root: str = "/") -> None:
        """:param container: its id. :param pid: of its first process. :param root: where C(/proc) and C(/sys) hang."""
        self.container, self.pid, self.root = container, pid, root
        top = os.path.join(root, "sys", "fs", "cgroup")
        self._first = os.path.exists(os.path.join(top, "memory", "memory.usage_in_bytes"))
        """The control groups are of version 1."""
        self._top = os.path.join(top, "memory") if self._first else top
        path = _cgroup.folder(pid, "memory", root)
        at = path.find(container)
        # "/docker/<id>", "/system.slice/docker-<id>.scope"; below it the container may have groups of its own.
        self.group = path[: at + len(container)] + (".scope" if path.startswith(".scope", at + len(container)) else "") if at >= 0 else ""
        self._above = list(self._parents(os.path.dirname(path[:at])) if at >= 0 else [self._top])
        self._files = _Files()
        self._limits: t.Dict[str, int] = {}
        self.refresh()

    def _parents(self, folder: str) -> t.Iterator[str]:
        while len(folder) > len(self._top):
            yield folder
            folder = os.path.dirname(folder)
        # A node that is itself a container or a slice sees its own limit here.
        yield self._top

    def refresh(self) -> None:
        """See which of the groups above the container have a limit; once a second is enough."""
        limits = {folder: _limit(folder) for folder in self._above}
        self._limits = {folder: limit for folder, limit in limits.items() if limit is not None}

    def gone(self) -> bool:
        """It has ended."""
        return self.container not in text(os.path.join(self.root, "proc", str(self.pid), "cgroup"))

    def memory(self) -> Memory:
        """What is available on this node now.

        That is the least of MemAvailable, which on unified memory is what CUDA can still get since caches are given back for it, and of
        what is left in each group above the container. The container's own limit is not looked at: when that is
        full the kernel kills in it, and the node takes no harm.
        """
        content = self._files.read(self.root, "proc", "meminfo")
        told = {name: int(number) << 10 for name, number in _MEMINFO.findall(content)}
        swap = told.get(b"SwapTotal", 0), told.get(b"SwapTotal", 0) - told.get(b"SwapFree", 0)
        found = Memory(told.get(b"MemAvailable", told.get(b"MemFree", 0)), told.get(b"MemTotal", 0), "", *swap)
        for folder, limit in self._limits.items():
            left = self._left(folder, limit)
            found = found._replace(total=min(found.total, limit))
            if left is not None and left < found.available:
                found = found._replace(available=left, limit=folder[len(self._top) :] or "/")
        return found

    def _left(self, folder: str, limit: int) -> t.Optional[int]:
        """Bytes that a group can still take, its page cache being given back for them; None where the kernel doesn't tell.

        Source: Linux, admin-guide/cgroup-v1/memory and admin-guide/cgroup-v2. Shared memory is in neither of the file lists.
        """
        used = self._files.number(folder, "memory.usage_in_bytes" if self._first else "memory.current")
        if used is None:
            return None
        pattern = _FILE_1 if self._first else _FILE_2
        cache = sum(int(number) for number in pattern.findall(self._files.read(folder, "memory.stat")))
        return max(0, limit - max(0, used - cache))

    def processes(self) -> t.List[int]:
        """The ids of all its processes."""
        found = []
        for folder, _folders, _files in os.walk(self.group) if self.group else ():
            found += [int(word) for word in text(os.path.join(folder, "cgroup.procs")).split()]
        # Version 1 shows a process of another namespace as 0, and to kill that would mean the own group.
        return [pid for pid in found if pid > 1]

    def kill(self) -> int:
        """SIGKILL to all its processes; returns how many there were."""
        pids = self.processes()
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                # It has just ended.
                continue
        return len(pids)


def _limit(folder: str) -> t.Optional[int]:
    """A group's limit in bytes, or None. C(memory.max) is "max" without one, and the topmost group has no such file."""
    limit = integer(os.path.join(folder, "memory.max"))
    limit = integer(os.path.join(folder, "memory.limit_in_bytes")) if limit is None else limit
    return limit if limit is not None and limit < _NO_LIMIT else None
