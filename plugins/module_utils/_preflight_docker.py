# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""What a node's Docker says of itself and of an image, and the disks that both need. Pure but for :func:`disk`."""

from __future__ import annotations

import os
import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils import _image_identity

Fact = t.Dict[str, t.Any]
CONTAINERD = "io.containerd.snapshotter.v1"
"""What the daemon calls the driver of the containerd image store; in it an image's id is another one than in the classic stores."""


def daemon(info: t.Mapping[str, t.Any]) -> Fact:
    """RV(ansible_facts.preflight.docker) of a daemon that answers. Source: Docker Engine API, SystemInfo."""
    status = {str(pair[0]): pair[1] for pair in info.get("DriverStatus") or [] if len(pair) == 2}
    return {
        "reachable": True,
        "error": None,
        "version": info.get("ServerVersion"),
        "storage": info.get("Driver"),
        "containerd": status.get("driver-type") == CONTAINERD,
        "root": info.get("DockerRootDir"),
        "live_restore": bool(info.get("LiveRestoreEnabled")),
        "runtimes": sorted(info.get("Runtimes") or {}),
        "cgroup_driver": info.get("CgroupDriver"),
        # 'name=rootless': without root's rights the daemon can't give a container more locked memory than it may have itself.
        "rootless": any("name=rootless" in str(option) for option in info.get("SecurityOptions") or []),
    }


def absent(error: str) -> Fact:
    """The same of a daemon that does not answer."""
    unknown = dict.fromkeys(("version", "storage", "root", "cgroup_driver"))
    return {"reachable": False, "error": error, "containerd": False, "live_restore": False, "runtimes": [], "rootless": False, **unknown}


def image(name: str, inspection: t.Optional[t.Mapping[str, t.Any]]) -> t.Optional[Fact]:
    """RV(ansible_facts.preflight.image), or None where the node does not have it. :param inspection: Docker Engine API, ImageInspect."""
    if not inspection:
        return None
    found = _image_identity.identity(inspection)
    variables = dict(entry.partition("=")[::2] for entry in found["config"].get("Env") or [])
    return {
        "tag": name,
        "id": inspection.get("Id"),
        "identity": found["digest"],
        "architecture": found["architecture"],
        "size_bytes": inspection.get("Size"),
        "layers": len(found["layers"]),
        # 'NCCL_VERSION=2.28.9-1': images that are built on NVIDIA's say which NCCL they hold.
        "nccl": (variables.get("NCCL_VERSION") or "").partition("-")[0] or None,
    }


def disk(path: t.Optional[str], root: str = "/") -> t.Optional[Fact]:
    """C(path), C(exists), and C(free_bytes) and C(total_bytes) of the file system that it is on, or will be on: its nearest folder's that is there.

    :returns: None for no path, or where the file system does not answer. C(free_bytes) is what is free for others than root.
    """
    if not path:
        return None
    place = os.path.join(root, path.lstrip("/"))
    exists = os.path.exists(place)
    while not os.path.exists(place) and os.path.dirname(place) != place:
        place = os.path.dirname(place)
    try:
        found = os.statvfs(place)
    except OSError:
        return None
    return {"path": path, "exists": exists, "free_bytes": found.f_bavail * found.f_frsize, "total_bytes": found.f_blocks * found.f_frsize}
