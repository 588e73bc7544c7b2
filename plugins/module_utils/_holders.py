# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""Who holds a node's memory: its containers, the processes outside of them, and the page cache."""

from __future__ import annotations

import os
import re
import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils import _processes
from ansible_collections.sparkstack.inference.plugins.module_utils._files import integer, text
from ansible_collections.sparkstack.inference.plugins.module_utils._memory import container_ids, page_cache_bytes

MOST = 12
# What is smaller explains no lack of memory.
_LEAST = 64 << 20
# 'gdm.service' of '/system.slice/gdm.service', 'getty@tty1.service' of '/system.slice/system-getty.slice/getty@tty1.service'.
_SERVICE = re.compile(r"/system\.slice/(?:[^/]+\.slice/)*([\w.@:-]+\.service)(?:/|$)")
# Without these a node can't be reached, or all its containers end; and systemd starts the others anew.
_NEEDED = re.compile(r"(?:ssh|sshd|dockerd?|containerd|dbus|dbus-broker|NetworkManager|polkit|cron|kubelet|snapd|systemd-\w+|user@\d+|nvidia-\w+)\.service")
_STAT = re.compile(r"^(total_rss|total_shmem|anon|shmem) (\d+)$", re.MULTILINE)
# What version 1 says for "none": the largest multiple of a page below 2 to the 63rd.
_NO_LIMIT = 1 << 62


class Group(t.NamedTuple):
    """The memory of a container's control group, in bytes; None each where the kernel doesn't tell."""

    held: t.Optional[int]
    """Without the page cache that its processes filled."""
    limit: t.Optional[int]
    """None also where there is no limit."""


def control_group(container: str, cgroup: str, root: str = "/") -> Group:
    """The memory of a container's control group, version 1 or 2, with all groups below it.

    :param container: its id as it stands in the path. :param cgroup: the text of /proc/PID/cgroup of one of its processes.

    Version 1 counts anonymous memory as C(total_rss) and shared memory, an engine's /dev/shm, as C(total_shmem) of memory.stat;
    version 2 as C(anon) and C(shmem). Source: Linux, admin-guide/cgroup-v1/memory and admin-guide/cgroup-v2.
    """
    for line in cgroup.splitlines():
        controllers, _colon, path = line.partition(":")[2].partition(":")
        if controllers and "memory" not in controllers.split(",") or container not in path:
            continue
        # "/docker/<id>/init": the container may have groups of its own below.
        path = path[: path.index(container) + len(container)] + (".scope" if f"{container}.scope" in path else "")
        folder = os.path.join(root, "sys", "fs", "cgroup", "memory" if controllers else "", path.lstrip("/"))
        told = {key: int(value) for key, value in _STAT.findall(text(os.path.join(folder, "memory.stat")))}
        parts = [told[key] for key in (("total_rss", "total_shmem") if controllers else ("anon", "shmem")) if key in told]
        if parts:
            limit = integer(os.path.join(folder, "memory.limit_in_bytes" if controllers else "memory.max"))
            return Group(sum(parts), limit if limit is not None and limit < _NO_LIMIT else None)
    return Group(None, None)


def holders(
    own: str,
    of: t.Mapping[int, str],
    named: t.Mapping[str, t.Tuple[str, str]],
    gpu: t.Mapping[int, t.Tuple[int, str]],
    meminfo: t.Mapping[str, int],
    root: str = "/",
) -> t.List[t.Dict[str, t.Any]]:
    """What holds the node's memory, largest first, at most C(MOST) entries, without what is below 64 MiB.

    :param own: the id of the container that was asked for, which is listed in any case while it has processes.
    :param of: see M(_processes.groups). :param named: name and image of each running container by its id, as Docker tells them.
    :param gpu: bytes of GPU memory and name by pid, as nvidia-smi tells them. :param meminfo: see M(_memory.parse_meminfo).
    :returns: C(kind) (container, process or page_cache), C(name), C(image) (None but for a container that Docker knows), C(pid) (of a
        process), C(bytes), C(gpu_bytes) (which of them nvidia-smi counted: on a GB10 they are the machine's memory, and in no control
        group) and C(own). Pages that processes outside of containers share are split among them, for who may look at that (root).
    """
    found = []
    inside: t.Set[int] = set()
    for identity, pids in containers(of, named).items():
        inside.update(pids)
        name, image = named.get(identity, (identity[:12], None))
        on_gpu = sum(gpu[pid][0] for pid in pids if pid in gpu)
        held = control_group(identity, of[pids[0]], root).held
        found.append(_entry("container", name, image, None, (_sum(pids, root) if held is None else held) + on_gpu, on_gpu, identity == own))
    for pid, held in _apart(sorted(set(of) - inside | set(gpu) - inside), gpu, root).items():
        on_gpu, name = gpu.get(pid, (0, ""))
        if held + on_gpu >= _LEAST:
            found.append(_entry("process", _whole(_name(pid, root), name) or None, None, pid, held + on_gpu, on_gpu, False))
    found.append(_entry("page_cache", None, None, None, page_cache_bytes(meminfo), 0, False))
    found = sorted((entry for entry in found if entry["own"] or entry["bytes"] >= _LEAST), key=lambda entry: -entry["bytes"])
    late = [entry for entry in found[MOST:] if entry["own"]]
    return found[: MOST - len(late)] + late


def swapped(of: t.Mapping[int, str], named: t.Mapping[str, t.Tuple[str, str]], root: str = "/") -> t.List[t.Dict[str, t.Any]]:
    """Whose memory is swapped out, largest first, at most C(MOST) entries, without what is below 64 MiB.

    :param of: see M(_processes.groups). :param named: see M(holders).
    :returns: C(kind) (container or process), C(name), C(image), C(pid) and C(bytes).
    """
    found: t.List[t.Dict[str, t.Any]] = []
    size = {pid: _processes.swapped_bytes(_processes.fields(root, pid)) for pid in of}
    inside: t.Set[int] = set()
    for identity, pids in containers(of, named).items():
        inside.update(pids)
        name, image = named.get(identity, (identity[:12], None))
        found.append({"kind": "container", "name": name, "image": image, "pid": None, "bytes": sum(size[pid] for pid in pids)})
    for pid in sorted(set(of) - inside):
        if size[pid] >= _LEAST:
            found.append({"kind": "process", "name": _name(pid, root) or None, "image": None, "pid": pid, "bytes": size[pid]})
    return sorted((entry for entry in found if entry["bytes"] >= _LEAST), key=lambda entry: -entry["bytes"])[:MOST]


def stop_with(entry: t.Mapping[str, t.Any], cgroup: str = "", draws: bool = False) -> t.Optional[str]:
    """The command that ends a holder on its node, or None where there is none that does no other harm.

    :param entry: of M(holders). :param cgroup: the text of /proc/PID/cgroup of a process. :param draws: it is part of the desktop.
    """
    if entry["kind"] == "container":
        # Without an image it is none of Docker's: Kubernetes or podman would only start it anew.
        return f"docker stop {entry['name']}" if entry["image"] else None
    if draws:
        return "systemctl isolate multi-user.target"
    service = _SERVICE.search(cgroup)
    if _NEEDED.fullmatch(service.group(1) if service else f"{entry['name']}.service"):
        return None
    if service:
        return f"systemctl stop {service.group(1)}"
    # Without a group it has ended, or is in a place that this node does not see; 'init.scope' is the first process.
    return None if not cgroup or entry["pid"] == 1 or "init.scope" in cgroup else f"kill {entry['pid']}"


def containers(of: t.Mapping[int, str], known: t.Container[str] = ()) -> t.Dict[str, t.List[int]]:
    """The pids of each container by its id; of containers in containers the outermost that Docker knows, else the outermost."""
    found: t.Dict[str, t.List[int]] = {}
    for pid in sorted(of):
        ids = container_ids(of[pid])
        if ids:
            found.setdefault(next((identity for identity in ids if identity in known), ids[0]), []).append(pid)
    return found


def _entry(kind: str, name: t.Optional[str], image: t.Optional[str], pid: t.Optional[int], size: int, gpu: int, own: bool) -> t.Dict[str, t.Any]:
    return {"kind": kind, "name": name, "image": image, "pid": pid, "bytes": size, "gpu_bytes": gpu, "own": own}


def _whole(comm: str, title: str) -> str:
    """The process's name, which the kernel cuts to 15 characters; nvidia-smi tells its title: "sglang::schedul", "sglang::scheduler_TP0"."""
    return title if not comm or (len(comm) == 15 and title.startswith(comm)) else comm


def _name(pid: int, root: str) -> str:
    return _processes.name(_processes.read(root, pid, "comm").strip(), _processes.read(root, pid, "cmdline"))


def _sum(pids: t.Sequence[int], root: str) -> int:
    """What processes hold together: what they may share counts once, at its largest, where nobody tells how it is split among them."""
    total = most = 0
    for pid in pids:
        told = _processes.fields(root, pid)
        own, shared = _processes.own_bytes(told)
        fair = _processes.fair_bytes(root, pid, told) if own + shared >= _LEAST else None
        total += own if fair is None else fair
        most = max(most, shared if fair is None else 0)
    return total + most


def _apart(pids: t.Sequence[int], gpu: t.Container[int], root: str) -> t.Dict[int, int]:
    """What each process holds, without GPUs' memory. What forked ones share is split among them.

    A hundred that share 4 GiB have a part each that is too small to be named: it counts for the one that they come from, which is the one to stop.
    Only what is large enough to be named is looked into, so that a node of a thousand processes costs no more than its few large ones.
    """
    told = {pid: _processes.fields(root, pid) for pid in pids}
    held = {pid: sum(_processes.own_bytes(fields)) for pid, fields in told.items()}
    large = {pid for pid in pids if held[pid] >= _LEAST}
    for pid in large:
        fair = _processes.fair_bytes(root, pid, told[pid])
        held[pid] = held[pid] if fair is None else fair
    for pid in sorted(pid for pid in large if held[pid] < _LEAST and pid not in gpu):
        first = _origin(pid, told, large)
        if first != pid:
            held[first] = held.get(first, 0) + held.pop(pid)
    return held


def _origin(pid: int, told: t.Mapping[int, t.Mapping[str, str]], among: t.Container[int]) -> int:
    """The first process that a process comes from, as far as they are among these."""
    seen = {pid}
    while True:
        parent = int(told[pid].get("PPid") or 0)
        # Read one after the other, two that have each other's number since can make a ring.
        if parent not in among or parent in seen:
            return pid
        seen.add(parent)
        pid = parent
