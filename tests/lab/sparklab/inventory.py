# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Keys, checked host keys and the inventory by which Ansible reaches the nodes."""

from __future__ import annotations

from pathlib import Path

from .state import State, management_address
from .system import run, write

USER = "nvidia"


def inventory_text(names: list[str], key: Path, known_hosts: Path, recipe: Path) -> str:
    """An inventory in the shape of a real sparks.ini: the first node is the head, the others are workers."""
    lines = ["# Written by tests/lab/lab; a change here is lost at the next 'lab up'.", "[head]"]
    lines += [f"{name} ansible_host={management_address(name)}" for name in names[:1]]
    lines += ["", "[workers]"]
    lines += [f"{name} ansible_host={management_address(name)}" for name in names[1:]]
    lines += [
        "",
        "[sparks:children]",
        "head",
        "workers",
        "",
        "[sparks:vars]",
        f"ansible_user={USER}",
        f"ansible_ssh_private_key_file={key}",
        f"ansible_ssh_common_args=-o UserKnownHostsFile={known_hosts} -o StrictHostKeyChecking=yes",
        f"tp_launch_recipe={recipe}",
    ]
    return "\n".join(lines) + "\n"


def ensure_key(path: Path, comment: str) -> str:
    """Make an ed25519 key pair unless it is there; returns the public half."""
    if not path.exists() or not path.with_name(path.name + ".pub").exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(path))
    return path.with_name(path.name + ".pub").read_text().strip()


def host_key(state: State, name: str) -> Path:
    """A node's host key; it outlives a reset, as known_hosts would warn otherwise."""
    return state.folder / "host_keys" / name


def write_access(state: State, recipe: Path) -> None:
    """Make all keys, then write known_hosts and the inventory."""
    ensure_key(state.key, "sparkstack-lab")
    lines = []
    for name in state.names():
        kind, blob = ensure_key(host_key(state, name), name).split()[:2]
        lines.append(f"{management_address(name)},{name} {kind} {blob}")
    write(state.known_hosts, "\n".join(lines) + "\n")
    write(state.inventory, inventory_text(state.names(), state.key, state.known_hosts, recipe))


def ssh_argv(state: State, name: str, *command: str) -> list[str]:
    """The ssh command into a node, as the user whom the inventory names, with its host key checked."""
    return [
        "ssh",
        "-F",
        "/dev/null",
        "-i",
        str(state.key),
        "-o",
        "BatchMode=yes",
        "-o",
        "ConnectTimeout=5",
        "-o",
        f"UserKnownHostsFile={state.known_hosts}",
        "-o",
        "StrictHostKeyChecking=yes",
        f"{USER}@{management_address(name)}",
        *command,
    ]
