# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One node: its disk, its power supply, and whether it is there."""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import typing as t
from pathlib import Path

from . import hinder, network, standins
from .cgroups import Cgroups, leader, run_inside
from .inventory import USER, host_key, ssh_argv
from .state import HERE, Settings, State, management_address
from .system import LabError, locked, mounts_below, run, write


class Node:
    """A node by its name; all that it is stands in the state folder and in its control group."""

    def __init__(self, state: State, name: str, cgroups: Cgroups) -> None:
        self.state, self.name, self.cgroups = state, name, cgroups
        self.folder = state.node_folder(name)
        self.log = self.folder / "log"
        self.root = self.folder / "root"
        self.lab = self.folder / "lab"

    @property
    def settings(self) -> Settings:
        """What was set for this node."""
        return self.state.settings(self.name)

    # ---- power ------------------------------------------------------------------------------------------------------

    def keeper(self) -> int | None:
        """The pid of the node's power supply, or None: it holds a lock, which the kernel frees when it dies."""
        try:
            with open(self.folder / "keeper") as stream:
                try:
                    fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    return int(stream.read() or 0) or None
        except FileNotFoundError:
            return None
        return None

    def leader(self) -> int | None:
        """The pid of the node's PID 1, seen from this machine."""
        return leader(self.cgroups, self.name)

    def power(self) -> str:
        """'on', 'off', 'frozen', or 'broken' when parts of it live without the others."""
        keeper, pid = self.keeper(), self.leader()
        if self.cgroups.frozen(self.name):
            return "frozen"
        if keeper and pid:
            return "on"
        return "broken" if pid or (self.cgroups.pids(self.name) and not keeper) else "starting" if keeper else "off"

    def start(self) -> None:
        """Switch the node on unless it is; what a crash has left of it is swept first."""
        if self.power() in ("on", "starting"):
            return
        self.sweep()
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.log, "w") as log:
            subprocess.Popen(
                [sys.executable, str(HERE / "lab"), "keeper", self.name],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd="/",
                env={**os.environ, "SPARKSTACK_LAB": str(self.state.folder)},
            )
        end = time.monotonic() + 10
        while not self.keeper():
            if time.monotonic() > end or "lab: " in self.log.read_text():
                raise LabError(f"{self.name} was not switched on: {self.last_words()}")
            time.sleep(0.02)

    def ask_to_stop(self) -> float:
        """Begin an orderly shutdown; returns until when (monotonic) it may take.

        A node that is still booting does not hear it: it gets less time than one whose containers may have to end.
        """
        patience = 15 if self.answers() else 3
        if keeper := self.keeper():
            if self.cgroups.frozen(self.name):
                self.cgroups.freeze(self.name, False)
            with contextlib.suppress(ProcessLookupError):
                os.kill(keeper, signal.SIGTERM)
        return time.monotonic() + patience

    def stop(self, end: float | None = None) -> None:
        """Orderly shutdown; what is not down in time loses its power."""
        end = end or self.ask_to_stop()
        while self.keeper() and time.monotonic() < end:
            time.sleep(0.03)
        self.sweep()

    def power_cut(self) -> None:
        """The plug is pulled: its PID 1 is killed, and with it, by the kernel, everything in the node."""
        pid = self.leader()
        if not pid:
            raise LabError(f"{self.name} is off already.")
        os.kill(pid, signal.SIGKILL)
        if self.cgroups.frozen(self.name):
            self.cgroups.freeze(self.name, False)
        end = time.monotonic() + 10
        while self.keeper() and time.monotonic() < end:
            time.sleep(0.02)
        self.sweep()

    def sweep(self) -> None:
        """End and take away whatever there is of a node: keeper, processes, cards, mounts, control group."""
        keeper = self.keeper()
        if keeper:
            with contextlib.suppress(ProcessLookupError):
                os.kill(keeper, signal.SIGKILL)
        self.cgroups.kill(self.name)
        network.unplug(self.name)
        self.release()

    def release(self) -> None:
        """Unmount the node's disk and remove what nspawn and the kernel keep for it."""
        for point in mounts_below(self.folder):
            run("umount", "-l", point, check=False)
        for path in Path("/run/systemd/nspawn").glob(f"*/{self.name}"):
            run("umount", "-l", str(path), check=False)
            shutil.rmtree(path, ignore_errors=True)
        self.cgroups.remove(self.name)

    # ---- disk -------------------------------------------------------------------------------------------------------

    def mount(self, base: Path, layer: Path) -> None:
        """Mount the node's disk (base, layer and what the node wrote) and put its identity on it."""
        for name in ("upper", "work", "root", "docker", "containerd", "lab"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        run("mount", "-t", "overlay", "overlay", "-o", f"lowerdir={layer}:{base},upperdir={self.folder}/upper,workdir={self.folder}/work", str(self.root))
        write(self.root / "etc/hostname", self.name + "\n")
        hosts = "".join(f"{management_address(name)} {name}\n" for name in self.state.names())
        write(self.root / "etc/hosts", f"127.0.0.1 localhost\n127.0.1.1 {self.name}\n{hosts}")
        key = host_key(self.state, self.name)
        write(self.root / "etc/ssh/ssh_host_ed25519_key", key.read_text(), 0o600)
        write(self.root / "etc/ssh/ssh_host_ed25519_key.pub", key.with_name(key.name + ".pub").read_text())

    def erase(self) -> None:
        """Factory-new: disk, images, containers and settings go; the host key stays."""
        self.sweep()
        shutil.rmtree(self.folder, ignore_errors=True)

    # ---- what it answers --------------------------------------------------------------------------------------------

    def inside(self, *argv: str, check: bool = True) -> str:
        """Run a program in the node as root, without ssh."""
        pid = self.leader()
        if not pid:
            raise LabError(f"{self.name} is off; switch it on with 'lab start {self.name}'.")
        return run_inside(pid, *argv, check=check)

    def boot_id(self) -> str | None:
        """The kernel's id of this boot, as the node sees it."""
        pid = self.leader()
        try:
            return Path(f"/proc/{pid}/root/proc/sys/kernel/random/boot_id").read_text().strip() if pid else None
        except OSError:
            return None

    def answers(self) -> bool:
        """Whether sshd and dockerd are there and a user may log in; asks without a login."""
        pid = self.leader()
        if not pid or Path(f"/proc/{pid}/root/run/nologin").exists():  # 'System is booting up.'
            return False
        try:
            socket.create_connection((management_address(self.name), 22), timeout=0.3).close()
            return docker_answers(Path(f"/proc/{pid}/root/run/docker.sock"))
        except OSError:
            return False

    def wait(self, deadline: float = 90) -> None:
        """Until ssh and Docker answer; ends at once when the node dies."""
        end = time.monotonic() + deadline
        while not self.answers():
            if not self.keeper():
                raise LabError(f"{self.name} went off while it booted: {self.last_words()} (log: {self.log})")
            if time.monotonic() > end:
                raise LabError(f"{self.name} does not answer after {deadline:.0f} s; look into {self.log} and 'lab shell {self.name}'.")
            time.sleep(0.1)
        done = subprocess.run(ssh_argv(self.state, self.name, "true"), stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode != 0:
            raise LabError(f"{self.name} runs but ssh as {USER} fails: {done.stderr.strip() or 'no message'}; 'lab reset {self.name}' makes it new.")

    def reboot(self) -> None:
        """Ask the node to reboot and wait until it answers with a new boot id."""
        before = self.boot_id()
        self.inside("systemctl", "reboot")
        end = time.monotonic() + 60
        while self.boot_id() in (before, None):
            if not self.keeper():
                raise LabError(f"{self.name} went off instead of rebooting: {self.last_words()}")
            if time.monotonic() > end:
                raise LabError(f"{self.name} did not reboot within 60 s; something in it does not end.")
            time.sleep(0.05)
        self.wait()

    def last_words(self) -> str:
        """The last line of the node's console."""
        lines = [line.strip() for line in self.log.read_text(errors="replace").splitlines() if line.strip()] if self.log.exists() else []
        return lines[-1] if lines else "it left no message"

    # ---- stand-ins and cables ---------------------------------------------------------------------------------------

    def lay_standins(self, carrier: bool, boot: bool = False) -> None:
        """Write the node's /lab; what it has bound from there changes at once."""
        standins.lay(self.lab, self.name, self.settings, carrier, boot)
        hinder.lay(self.root, self.lab, self.settings)


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=1)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self.path))


def docker_answers(path: Path) -> bool:
    """Whether a Docker daemon answers at this socket; OSError when nobody listens."""
    connection = _UnixConnection(path)
    try:
        connection.request("GET", "/_ping")
        return connection.getresponse().status == 200
    except http.client.HTTPException:
        return False
    finally:
        connection.close()


def set_carriers(nodes: t.Sequence[Node], booting: str | None = None) -> None:
    """Make every fabric port and every RDMA port what power and cables say. 'booting' names a node just plugged in."""
    with locked(nodes[0].state.folder / "cables"):
        powered = network.plugged()
        cut = {node.name for node in nodes if node.settings.cut}
        states = network.port_states(len(nodes), powered & {node.name for node in nodes}, cut)
        network.set_ports(states)
        for node in nodes:
            if node.name in states:
                node.lay_standins(states[node.name], boot=node.name == booting)
