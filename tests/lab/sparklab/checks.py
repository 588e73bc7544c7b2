# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the machine must have, each with the one sentence that says what is missing."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from . import cgroups
from .state import State
from .system import LabError, run

# program: Debian and Ubuntu package
PROGRAMS = {
    "systemd-nspawn": "systemd-container",
    "mmdebstrap": "mmdebstrap",
    "ip": "iproute2",
    "tc": "iproute2",
    "nft": "nftables",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "rsync": "rsync",
    "nsenter": "util-linux",
    "sysctl": "procps",
    "gcc": "gcc",
}
BASE_BYTES = 4 << 30
RUN_BYTES = 1 << 30
SPARE_BYTES = 1 << 30


def missing_packages() -> list[str]:
    """Packages that have to be installed before the lab can be used."""
    return sorted({package for program, package in PROGRAMS.items() if not shutil.which(program)})


def install_packages() -> list[str]:
    """Install what is missing; returns what that was."""
    packages = missing_packages()
    if packages:
        require_root()
        if not shutil.which("apt-get"):
            raise LabError(
                f"These programs are missing and there is no apt-get to install them: {', '.join(packages)}; use a Debian 12 or Ubuntu 24.04 machine."
            )
        apt = ["apt-get", "-o", "DPkg::Lock::Timeout=300"]
        command = ["env", "DEBIAN_FRONTEND=noninteractive", *apt, "install", "-y", "--no-install-recommends", *packages]
        try:
            run(*command)
        except LabError:  # a fresh image has no package lists yet
            run(*apt, "update")
            run(*command)
    return packages


def require_root() -> None:
    """Namespaces, mounts and control groups need root."""
    if os.geteuid() != 0:
        raise LabError("The lab needs root (namespaces, mounts, control groups): run it with sudo.")


def require_machine(state: State, have_base: bool) -> None:
    """Everything but memory: programs, control groups, namespaces, overlayfs, disk."""
    require_root()
    if packages := missing_packages():
        raise LabError(f"Packages are missing: {', '.join(packages)}; install them with 'lab deps'.")
    cgroups.detect()
    for kind in ("net", "pid", "mnt", "uts", "ipc"):
        if not Path(f"/proc/self/ns/{kind}").exists():
            raise LabError(f"This kernel has no {kind} namespaces; use a machine with a distribution's own kernel.")
    require_overlay(state.folder)
    need = RUN_BYTES if have_base else BASE_BYTES
    free = shutil.disk_usage(state.folder).free
    if free < need:
        raise LabError(f"{state.folder} has {free >> 20} MiB free and the lab needs {need >> 20} MiB; free some or set SPARKSTACK_LAB to another disk.")


def require_overlay(folder: Path) -> None:
    """Mount a small overlay in the folder: says more than /proc/filesystems, which lacks modules not yet loaded."""
    with tempfile.TemporaryDirectory(dir=folder, prefix=".overlay-") as text:
        temp = Path(text)
        for name in ("lower", "upper", "work", "root"):
            (temp / name).mkdir()
        try:
            run("mount", "-t", "overlay", "overlay", "-o", f"lowerdir={temp}/lower,upperdir={temp}/upper,workdir={temp}/work", f"{temp}/root")
        except LabError as error:
            raise LabError(
                f"overlayfs does not work in {folder} ({str(error).rsplit(': ', 1)[-1]}); set SPARKSTACK_LAB to a folder on a local ext4 or xfs disk."
            ) from None
        run("umount", f"{temp}/root")


def require_memory(limits: dict[str, int], meminfo: str | None = None) -> None:
    """The nodes' limits together, and something for the machine itself, must fit into its memory."""
    text = meminfo if meminfo is not None else Path("/proc/meminfo").read_text()
    total = next(int(line.split()[1]) << 10 for line in text.splitlines() if line.startswith("MemTotal:"))
    need = sum(limits.values()) + SPARE_BYTES
    if need > total:
        share = max(1, ((total - SPARE_BYTES) // len(limits)) >> 30)
        raise LabError(
            f"{len(limits)} nodes with {sum(limits.values()) >> 30} GiB together do not fit into this machine's "
            f"{total >> 30} GiB; give each less with '--memory {share}G'."
        )
