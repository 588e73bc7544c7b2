# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""A container's control group, of version 1 or 2: what its processes have used, who they are, and how many were killed."""

from __future__ import annotations

import os
import re
import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils._files import integer, text

_CONTAINER = re.compile(r"(?<![0-9a-f])([0-9a-f]{64})(?![0-9a-f])")
_OOM_KILL = re.compile(r"^oom_kill (\d+)", re.M)


def container_in(path: str) -> t.Optional[str]:
    """The id of the container that a control group's name holds, or None.

    Sources: Docker with the cgroupfs driver C(/docker/<id>), with the systemd driver C(/system.slice/docker-<id>.scope).
    """
    found = _CONTAINER.findall(path)
    # "/docker/<id of a node that is a container>/docker/<id>": the last one is the process's own.
    return found[-1] if found else None


def folder(pid: int, controller: str, root: str = "/") -> str:
    """The folder of the control group that a process is in; one that may not be there.

    :param controller: for version 1, C(memory) for example; with version 2 all are in one folder.
    :param root: where C(/proc) and C(/sys) hang.
    """
    groups: t.Dict[str, str] = {}
    # "4:memory:/docker/<id>" (version 1, controllers by comma), "0::/system.slice/docker-<id>.scope" (version 2).
    for line in text(os.path.join(root, "proc", str(pid), "cgroup")).splitlines():
        _number, controllers, path = line.split(":", 2)
        for name in controllers.split(","):
            groups[name] = path.lstrip("/")
    base = os.path.join(root, "sys", "fs", "cgroup")
    # Only where version 2 has all controllers is its group at this place: beside version 1 it hangs at "unified".
    if "" in groups and os.path.exists(os.path.join(base, groups[""], "cpu.stat")):
        return os.path.join(base, groups[""])
    return os.path.join(base, controller, groups.get(controller, ""))


def activity(pid: int, root: str = "/") -> t.Dict[str, t.Optional[float]]:
    """What the container's processes have used so far.

    :param pid: of the container's first process; 0 when it has none.
    :returns: C(cpu_seconds), C(memory_bytes) (with the page cache that it filled) and C(read_bytes) (from disks and file servers); None each
        where the kernel doesn't tell.
    """
    found: t.Dict[str, t.Optional[float]] = {"cpu_seconds": None, "memory_bytes": None, "read_bytes": None}
    if not pid:
        return found
    group = folder(pid, "cpuacct", root)
    if os.path.exists(os.path.join(group, "cpu.stat")):
        usage = re.search(r"^usage_usec (\d+)", text(os.path.join(group, "cpu.stat")), re.M)
        found["cpu_seconds"] = int(usage.group(1)) / 1e6 if usage else None
        found["memory_bytes"] = integer(os.path.join(group, "memory.current"))
        reads = re.findall(r"\brbytes=(\d+)", text(os.path.join(group, "io.stat")))
    else:
        nanoseconds = integer(os.path.join(group, "cpuacct.usage"))
        found["cpu_seconds"] = nanoseconds / 1e9 if nanoseconds is not None else None
        found["memory_bytes"] = integer(os.path.join(folder(pid, "memory", root), "memory.usage_in_bytes"))
        blkio = os.path.join(folder(pid, "blkio", root), "blkio.throttle.io_service_bytes")
        reads = re.findall(r"^\S+ Read (\d+)", text(blkio), re.M)
    # A control group counts its reads from block devices, a process those from a network's file system as well.
    counted = [re.search(r"^read_bytes: (\d+)", text(os.path.join(root, "proc", str(member), "io")), re.M) for member in processes(pid, root)]
    sums = [sum(int(read) for read in reads)] if reads else []
    sums += [sum(int(match.group(1)) for match in counted if match)] if any(counted) else []
    found["read_bytes"] = max(sums) if sums else None
    return found


def oom_kills(pid: int, root: str = "/") -> t.Optional[int]:
    """How many processes of the container the kernel has killed for lack of memory, or None where it doesn't tell.

    Sources: the line C(oom_kill N) of C(memory.events) (version 2) and of C(memory.oom_control) (version 1).
    """
    if not pid:
        return None
    group = folder(pid, "memory", root)
    match = _OOM_KILL.search(text(os.path.join(group, "memory.events")) or text(os.path.join(group, "memory.oom_control")))
    return int(match.group(1)) if match else None


def processes(pid: int, root: str = "/") -> t.List[int]:
    """The ids of the container's processes, the given first one among them."""
    return [int(word) for word in text(os.path.join(folder(pid, "memory", root), "cgroup.procs")).split()] if pid else []
