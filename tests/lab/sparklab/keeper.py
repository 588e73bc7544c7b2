# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A node's power supply: a process that boots it, and boots it again when it asks for that, until it is off."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
import types

from . import base, network
from .cgroups import Cgroups
from .node import Node, set_carriers
from .state import State
from .system import LabError, parse_size

REBOOT = 133  # with --keep-unit, nspawn ends with this code when the node wants to reboot


def nspawn_argv(node: Node) -> list[str]:
    """The command that boots a node. Why each option is there: tests/lab/README.md, 'Traps'."""
    folder = node.folder
    return [
        "systemd-nspawn",
        "--quiet",
        "--boot",
        f"--directory={node.root}",
        f"--machine={node.name}",
        f"--hostname={node.name}",
        f"--network-namespace-path={network.NETNS / node.name}",
        "--register=no",
        "--keep-unit",
        "--capability=all",
        "--private-users=no",
        "--console=pipe",
        "--resolv-conf=off",
        "--timezone=off",
        "--link-journal=no",
        "--bind=/dev/fuse",
        f"--bind={folder}/docker:/var/lib/docker",
        f"--bind={folder}/containerd:/var/lib/containerd",
        f"--bind={folder}/lab:/lab",
        "--setenv=SYSTEMD_CGROUP_ENABLE_LEGACY_FORCE=1",
    ]


def keep(state: State, name: str, cgroups: Cgroups) -> int:
    """Be the node's power supply; returns when the node is off."""
    node = Node(state, name, cgroups)
    node.folder.mkdir(parents=True, exist_ok=True)
    with open(node.folder / "keeper", "a+") as lock:  # held for life: it tells that the supply is there
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        return boot_until_off(node, cgroups)


def boot_until_off(node: Node, cgroups: Cgroups) -> int:
    """Boot, wait, and boot again as long as the node ends with the code for that."""
    state, name = node.state, node.name
    # out of the caller's control group: its end must not be ours
    cgroups.create("keepers")
    cgroups.enter("keepers")
    child: subprocess.Popen[bytes] | None = None
    stopping = False

    def stop(_signal: int, _frame: types.FrameType | None) -> None:
        nonlocal stopping
        stopping = True
        if child:
            child.send_signal(signal.SIGTERM)  # nspawn passes an orderly shutdown on to the node's PID 1

    signal.signal(signal.SIGTERM, stop)
    environment = {**os.environ, "SYSTEMD_SECCOMP": "0", "SYSTEMD_NSPAWN_API_VFS_WRITABLE": "network"}
    nodes = [Node(state, other, cgroups) for other in state.names()]
    try:
        node.mount(state.folder / "base" / node.settings.base, base.build_layer(state))
        while not stopping:
            cgroups.create(name, parse_size(node.settings.memory))
            network.plug(name)
            set_carriers(nodes, booting=name)
            network.shape(name, node.settings)
            child = subprocess.Popen(nspawn_argv(node), env=environment, stdin=subprocess.DEVNULL, preexec_fn=lambda: cgroups.enter(name))
            if stopping:
                child.send_signal(signal.SIGTERM)
            code = child.wait()
            cgroups.kill(name)
            network.unplug(name)
            print(f"{time.strftime('%T')} {name} stopped, code {code}", flush=True)
            if code != REBOOT:
                break
        set_carriers(nodes)
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr, flush=True)
        return 1
    finally:
        cgroups.kill(name)
        network.unplug(name)
        node.release()
    return 0
