# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Control groups of the nodes, version 1 (also hybrid) and version 2 behind one small class.

Every process of a node, and nothing else, is in the group sparklab/<node>; that is how a crashed lab is found and
ended without any pid file. The keepers (one small process per node) are in sparklab/keepers.
"""

from __future__ import annotations

import os
import signal
import time
import typing as t
from pathlib import Path

from .system import LabError, run

TOP = "sparklab"
ROOT = Path("/sys/fs/cgroup")


class Cgroups:
    """What both versions have in common; sizes are in bytes."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def folders(self, name: str) -> list[Path]:
        """The group's folder in every hierarchy."""
        raise NotImplementedError

    def create(self, name: str, memory: int | None = None) -> None:
        """Make the group (again); with memory it gets that limit."""
        raise NotImplementedError

    def enter_folders(self, name: str) -> list[Path]:
        """Where a process must be written to become a member."""
        return self.folders(name)

    def set_memory(self, name: str, size: int) -> None:
        """Change the memory limit; LabError when more than that is in use."""
        raise NotImplementedError

    def memory(self, name: str) -> tuple[int, int, int]:
        """Limit, use (page cache included), and how many processes the limit has killed."""
        raise NotImplementedError

    def freeze(self, name: str, frozen: bool) -> None:
        """Stop all processes where they are, or let them go on."""
        raise NotImplementedError

    def frozen(self, name: str) -> bool:
        """Whether the group was told to freeze."""
        raise NotImplementedError

    def set_read_speed(self, name: str, disk: str, speed: int) -> None:
        """Bytes a second that each container may read from the disk ('254:0'), 0 for no limit."""
        raise NotImplementedError

    def enter(self, name: str) -> None:
        """Move the calling process into the group (written 0 means the writer)."""
        for folder in self.enter_folders(name):
            (folder / "cgroup.procs").write_text("0")

    def names(self) -> list[str]:
        """The groups that exist below ours."""
        found = {path.name for top in self.folders("") if top.is_dir() for path in top.iterdir() if path.is_dir()}
        return sorted(found)

    def pids(self, name: str) -> list[int]:
        """All processes in the group and below it, in the pids of this machine."""
        found: set[int] = set()
        for folder in self.folders(name):
            for base, _dirs, files in os.walk(folder):
                if "cgroup.procs" in files:
                    try:
                        found.update(int(line) for line in Path(base, "cgroup.procs").read_text().split())
                    except OSError:  # the group went away, or is one of the kind 'threaded'
                        continue
        return sorted(found - {0, os.getpid()})

    def kill(self, name: str, deadline: float = 15) -> None:
        """SIGKILL to every process of the group until none is left."""
        end = time.monotonic() + deadline
        while pids := self.pids(name):
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            if self.frozen(name):  # in version 1 a frozen process does not die before it is thawed
                self.freeze(name, False)
            if time.monotonic() > end:
                raise LabError(f"Processes of {name} cannot be ended: {pids}; they may hang in the kernel.")
            time.sleep(0.02)

    def remove(self, name: str) -> None:
        """Remove the group's folders; LabError when the kernel keeps one of them."""
        end = time.monotonic() + 5
        while left := [folder for folder in self.folders(name) if folder.is_dir()]:
            for folder in left:
                for base, _dirs, _files in os.walk(folder, topdown=False):
                    try:
                        os.rmdir(base)
                    except OSError:  # EBUSY: a process that was just killed is not quite gone
                        continue
            if time.monotonic() > end:
                raise LabError(f"The control group {left[0]} cannot be removed; is one of its processes alive?")
            time.sleep(0.02)


class CgroupsV1(Cgroups):
    """Separate hierarchies, with or without a version 2 tree beside them (hybrid)."""

    def hierarchies(self) -> list[Path]:
        """Every mounted hierarchy; 'cpu,cpuacct' has symbolic links 'cpu' and 'cpuacct', which are left out."""
        return [path for path in sorted(self.root.iterdir()) if not path.is_symlink() and (path / "cgroup.procs").exists()]

    def folders(self, name: str) -> list[Path]:
        return [path / TOP / name for path in self.hierarchies()]

    def create(self, name: str, memory: int | None = None) -> None:
        for hierarchy in self.hierarchies():
            for folder in (hierarchy / TOP, hierarchy / TOP / name):
                folder.mkdir(exist_ok=True)
                if "cpuset" in hierarchy.name.split(","):  # a new cpuset is empty and takes no process before it is filled
                    for file in ("cpuset.cpus", "cpuset.mems"):
                        (folder / file).write_text((hierarchy / file).read_text())
        if memory is not None:
            self.set_memory(name, memory)

    def set_memory(self, name: str, size: int) -> None:
        try:
            (self.root / "memory" / TOP / name / "memory.limit_in_bytes").write_text(str(size))
        except OSError as error:
            raise LabError(f"{name} cannot be limited to {size >> 20} MiB: {error.strerror}; more may be in use, stop something first.") from None

    def memory(self, name: str) -> tuple[int, int, int]:
        folder = self.root / "memory" / TOP / name
        kills = 0
        for line in (folder / "memory.oom_control").read_text().splitlines():
            key, value = line.split()
            kills = int(value) if key == "oom_kill" else kills
        return (int((folder / "memory.limit_in_bytes").read_text()), int((folder / "memory.usage_in_bytes").read_text()), kills)

    def freeze(self, name: str, frozen: bool) -> None:
        (self.root / "freezer" / TOP / name / "freezer.state").write_text("FROZEN" if frozen else "THAWED")

    def frozen(self, name: str) -> bool:
        file = self.root / "freezer" / TOP / name / "freezer.state"
        # 'FREEZING' while a process is still on its way
        return file.exists() and file.read_text().strip() != "THAWED"

    def set_read_speed(self, name: str, disk: str, speed: int) -> None:
        # Version 1 throttles each group by itself: a limit above holds for none of those below. New groups get it by runc.
        for base, _dirs, files in os.walk(self.root / "blkio" / TOP / name):
            if "docker" in base.split(os.sep) and "blkio.throttle.read_bps_device" in files:
                Path(base, "blkio.throttle.read_bps_device").write_text(f"{disk} {speed}")


class CgroupsV2(Cgroups):
    """One tree. systemd-nspawn makes 'payload' and 'supervisor' in the group that it was started in, and a group with
    processes of its own may not hand controllers down: so nspawn starts in sparklab/<node>/unit, the limit is above."""

    CONTROLLERS = ("cpuset", "cpu", "io", "memory", "pids")

    def folders(self, name: str) -> list[Path]:
        return [self.root / TOP / name]

    def enter_folders(self, name: str) -> list[Path]:
        return [self.root / TOP / name / "unit"]

    def create(self, name: str, memory: int | None = None) -> None:
        top = self.root / TOP
        node = top / name
        (node / "unit").mkdir(parents=True, exist_ok=True)
        for folder in (self.root, top, node):
            has = (folder / "cgroup.controllers").read_text().split()
            for controller in self.CONTROLLERS:
                if controller in has:  # one by one: a refused controller must not take the others with it
                    try:
                        (folder / "cgroup.subtree_control").write_text(f"+{controller}")
                    except OSError as error:
                        if controller == "memory":
                            raise LabError(f"The memory controller cannot be handed to {folder}: {error.strerror}.") from None
        if memory is not None:
            if not (node / "memory.max").exists():
                raise LabError("This machine's kernel offers no memory controller; enable it (cgroup_enable=memory).")
            self.set_memory(name, memory)

    def set_memory(self, name: str, size: int) -> None:
        (self.root / TOP / name / "memory.max").write_text(str(size))
        swap = self.root / TOP / name / "memory.swap.max"
        if swap.exists():  # without this a node over its limit would swap instead of being killed
            swap.write_text("0")

    def memory(self, name: str) -> tuple[int, int, int]:
        folder = self.root / TOP / name
        events = dict(line.split() for line in (folder / "memory.events").read_text().splitlines())
        limit = (folder / "memory.max").read_text().strip()
        return (0 if limit == "max" else int(limit), int((folder / "memory.current").read_text()), int(events.get("oom_kill", "0")))

    def freeze(self, name: str, frozen: bool) -> None:
        (self.root / TOP / name / "cgroup.freeze").write_text("1" if frozen else "0")

    def frozen(self, name: str) -> bool:
        file = self.root / TOP / name / "cgroup.freeze"
        return file.exists() and file.read_text().strip() == "1"

    def set_read_speed(self, name: str, disk: str, speed: int) -> None:
        file = self.root / TOP / name / "io.max"
        if not file.exists():
            raise LabError("This machine's kernel offers no io controller, by which a disk is made slow.")
        file.write_text(f"{disk} rbps={speed or 'max'}")


def detect(root: Path = ROOT) -> Cgroups:
    """The version that this machine runs; LabError when it has no control groups."""
    if (root / "cgroup.controllers").exists():
        return CgroupsV2(root)
    if (root / "memory" / "cgroup.procs").exists() and (root / "freezer" / "cgroup.procs").exists():
        return CgroupsV1(root)
    raise LabError(f"No usable control groups at {root}; mount them (a container may hide them), or use a machine with systemd.")


def leader(cgroups: Cgroups, name: str) -> int | None:
    """The pid (of this machine) of the node's own PID 1, or None when the node does not run."""
    for pid in cgroups.pids(name):
        try:
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            continue
        # 'NSpid:\t4711\t1': PID 1 one namespace below ours; a container's PID 1 has three numbers
        numbers: t.Sequence[str] = next((line.split()[1:] for line in status.splitlines() if line.startswith("NSpid:")), ())
        if len(numbers) == 2 and numbers[1] == "1":
            return pid
    return None


def enter_argv(pid: int, *argv: str) -> list[str]:
    """The command that runs argv inside a node, as its root, without ssh."""
    return ["nsenter", "--target", str(pid), "--mount", "--uts", "--ipc", "--net", "--pid", "--root", "--wdns=/", "--", *argv]


def run_inside(pid: int, *argv: str, check: bool = True) -> str:
    """Run a program inside a node and return its output."""
    return run(*enter_argv(pid, *argv), check=check)
