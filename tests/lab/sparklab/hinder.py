# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A node's wrong clock and slow disk.

The kernel has no namespace for the time of day (time namespaces know the monotonic and the boot clock only), so a wrong
clock is a small library that answers in libc's place (files/clock.c). It reaches what is loaded with it: what sudo starts
(the modules that Ansible runs as root), what a login starts, and every container that is created afterwards. It does not
reach dockerd, which is written in Go and asks the kernel itself: the times that Docker reports stay right.

Debian's libfaketime 0.9.10 would not do: Python sleeps until a moment of the monotonic clock and waits with sem_clockwait().
With a shifted monotonic clock such a wait lasts minutes, with an unshifted one sleep() fails with 'Invalid argument'.
"""

from __future__ import annotations

import hashlib
import json
import os
import typing as t
from pathlib import Path

from .state import HERE, Settings
from .system import LabError, parse_amount, rewrite, run, write

SOURCE = HERE / "files" / "clock.c"
# Named by what it is made of: what runs has it mapped, and it is never written again.
LIBRARY = f"clock-{hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:12]}.so"
INSIDE = f"/lab/{LIBRARY}"


def clock_environment(seconds: int) -> dict[str, str]:
    """The variables that shift the time of day of a program."""
    return {"LD_PRELOAD": INSIDE, "LAB_CLOCK": f"{seconds:+d}"} if seconds else {}


def build_library(target: Path) -> None:
    """Compile it, unless it is there."""
    if not target.exists():
        temp = target.with_suffix(".part")
        run("gcc", "-O2", "-fPIC", "-shared", "-nostdlib", "-fno-builtin", "-o", str(temp), str(SOURCE))
        temp.rename(target)


def disk_of(folder: Path, sys: Path = Path("/sys")) -> str:
    """'254:0', the disk that a folder lies on: a partition has no queue that could be slowed."""
    device = os.stat(folder).st_dev
    entry = sys / "dev" / "block" / f"{os.major(device)}:{os.minor(device)}"
    if not entry.exists():
        raise LabError(f"{folder} lies on no disk of its own, whose speed could be limited; set SPARKSTACK_LAB to a folder on one.")
    real = entry.resolve()
    return ((real.parent if (real / "partition").exists() else real) / "dev").read_text().strip()


def bytes_per_second(text: str) -> int:
    """Of '2M' or '500K'; 0 for none ('off')."""
    return 0 if text in ("", "0", "off", "none") else parse_amount(text)


def container_changes(settings: Settings, disk: str) -> dict[str, t.Any]:
    """What the nodes' runtime adds to each new container; see files/runc-lab."""
    changes: dict[str, t.Any] = {}
    if settings.clock:
        changes.update(environment=clock_environment(settings.clock), mounts=[INSIDE])
    if settings.disk:
        changes["read_bps"] = [*(int(part) for part in disk.split(":")), bytes_per_second(settings.disk)]
    return changes


def lay(root: Path, lab: Path, settings: Settings) -> None:
    """Write what makes the clock wrong in a node whose disk is mounted at root, and what its runtime reads in /lab."""
    environment = clock_environment(settings.clock)
    if environment:
        build_library(lab / LIBRARY)
    text = "".join(f"{key}={value}\n" for key, value in environment.items())
    sudoers = root / "etc/sudoers.d/lab-clock"
    if environment:
        # sudo clears LD_PRELOAD, whatever env_keep says; what stands in its own file it takes as policy
        write(root / "etc/lab-clock", text)
        write(sudoers, "Defaults env_file=/etc/lab-clock\n", 0o440)
    else:
        sudoers.unlink(missing_ok=True)
    write(root / "etc/environment", text)  # for logins, by pam_env
    disk = disk_of(lab) if settings.disk else ""
    rewrite(lab / "container.json", json.dumps(container_changes(settings, disk)) + "\n")
