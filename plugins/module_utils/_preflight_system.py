# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""What a node is made of, as far as a launch over several nodes hangs on it: kernel, drivers, firmware, names. Pure over a root folder."""

from __future__ import annotations

import os
import re
import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils._files import text
from ansible_collections.sparkstack.inference.plugins.module_utils._memory import parse_meminfo
from ansible_collections.sparkstack.inference.plugins.module_utils._memory_problems import loaded_version

Fact = t.Dict[str, t.Any]
_LIBRARY = re.compile(r"^libnccl\.so\.([0-9]+\.[0-9]+\.[0-9]+)$")
_LIBRARIES = ("usr/lib/aarch64-linux-gnu", "usr/lib/x86_64-linux-gnu", "usr/lib64", "usr/local/lib")
_LIMIT = re.compile(r"^Max locked memory\s+(unlimited|[0-9]+)\s+(unlimited|[0-9]+)\s", re.MULTILINE)


def kernel(root: str) -> Fact:
    """C(release), C(kho_off) (whether its command line has C(kho=off)), and C(cma_overcounted).

    A kernel that says that more of its contiguous area is free than there is has the fault by which RDMA can't register memory.
    Sources: /proc/sys/kernel/osrelease, /proc/cmdline, /proc/meminfo (C(CmaTotal), C(CmaFree)).
    """
    memory = parse_meminfo(_read(root, "proc/meminfo"))
    return {
        "release": _read(root, "proc/sys/kernel/osrelease").strip() or None,
        "kho_off": "kho=off" in _read(root, "proc/cmdline").split(),
        "cma_overcounted": memory.get("CmaFree", 0) > memory.get("CmaTotal", 0),
    }


def system(root: str) -> t.Optional[str]:
    """The distribution's name, 'Ubuntu 24.04.3 LTS'. Source: C(PRETTY_NAME) of os-release(5)."""
    for name in ("etc/os-release", "usr/lib/os-release"):
        found = re.search(r"^PRETTY_NAME=(.*)$", _read(root, name), re.MULTILINE)
        if found:
            return found.group(1).strip().strip("\"'") or None
    return None


def driver(root: str) -> t.Optional[str]:
    """The version of the NVIDIA driver that the kernel has loaded, or None. Source: /proc/driver/nvidia/version."""
    return loaded_version(_read(root, "proc/driver/nvidia/version"))


def rdma(root: str) -> t.List[Fact]:
    """The RDMA devices: C(hca), C(driver), C(driver_version) (None for one that is part of the kernel), C(firmware), C(board) (its PSID).

    Sources: /sys/class/infiniband/HCA/fw_ver and board_id, the link device/driver, and /sys/module/DRIVER/version.
    """
    found = []
    folder = os.path.join(root, "sys/class/infiniband")
    for name in _names(folder):
        place = os.path.join(folder, name)
        link = os.path.join(place, "device", "driver")
        module = os.path.basename(os.path.realpath(link)) if os.path.exists(link) else None
        found.append(
            {
                "hca": name,
                "driver": module,
                "driver_version": (_read(root, f"sys/module/{module}/version").strip() or None) if module else None,
                "firmware": text(os.path.join(place, "fw_ver")).strip() or None,
                "board": text(os.path.join(place, "board_id")).strip() or None,
            }
        )
    return found


def infiniband(root: str) -> t.List[str]:
    """The names in /dev/infiniband, which a container needs for RDMA: 'rdma_cm', 'uverbs0'."""
    return _names(os.path.join(root, "dev/infiniband"))


def hosts(root: str, names: t.Collection[str]) -> t.Dict[str, t.List[str]]:
    """What /etc/hosts says that these names are, in its order; a name that does not stand there is left out.

    The names are looked for in this file only: it comes before any name server (nsswitch.conf has C(files) first), and it is what is
    written by hand, or by Debian's and Ubuntu's installer (C(127.0.1.1 spark1)).
    """
    found: t.Dict[str, t.List[str]] = {}
    wanted = {name.lower(): name for name in names}
    for line in _read(root, "etc/hosts").splitlines():
        words = line.partition("#")[0].split()
        for word in words[1:]:
            name = wanted.get(word.lower())
            if name and words[0] not in found.setdefault(name, []):
                found[name].append(words[0])
    return found


def processes(root: str, names: t.Collection[str]) -> t.Dict[str, int]:
    """The lowest process id of each of these programs that runs. Source: /proc/PID/comm, which the kernel cuts to 15 characters."""
    found: t.Dict[str, int] = {}
    for pid in sorted((name for name in _names(os.path.join(root, "proc")) if name.isdigit()), key=int):
        name = _read(root, f"proc/{pid}/comm").strip()
        if name in names and name not in found:
            found[name] = int(pid)
    return found


def memlock(root: str, pid: t.Optional[int]) -> t.Optional[int]:
    """The bytes that a process may lock at most, or -1 for no limit; None where that is not known.

    :param pid: of the Docker daemon: what it starts gets no more than it may have, unless it may raise limits, as root's daemon may.
    """
    found = _LIMIT.search(_read(root, f"proc/{pid}/limits")) if pid else None
    if not found:
        return None
    return -1 if found.group(2) == "unlimited" else int(found.group(2))


def nccl(root: str) -> t.Optional[str]:
    """The version of the NCCL library of the node itself, which a container does not use, or None. Source: the name libnccl.so.2.28.9."""
    found = [match.group(1) for folder in _LIBRARIES for match in map(_LIBRARY.match, _names(os.path.join(root, folder))) if match]
    return max(found, key=lambda version: [int(part) for part in version.split(".")], default=None)


def _read(root: str, name: str) -> str:
    return text(os.path.join(root, name))


def _names(folder: str) -> t.List[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []
