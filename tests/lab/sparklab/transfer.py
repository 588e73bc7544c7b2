# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files and images into a node without a network."""

from __future__ import annotations

import subprocess
from pathlib import Path

from .cgroups import enter_argv
from .node import Node
from .system import LabError, run


def put_image(node: Node, archive: Path) -> str:
    """Load a 'docker save' archive: the node's docker reads the very file, handed to it as its standard input."""
    if not archive.is_file():
        raise LabError(f"There is no image archive {archive}.")
    pid = node.leader()
    if not pid:
        raise LabError(f"{node.name} is off; switch it on with 'lab start {node.name}'.")
    with open(archive, "rb") as stream:
        done = subprocess.run(enter_argv(pid, "docker", "load", "--quiet"), stdin=stream, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        raise LabError(f"{node.name} did not load {archive}: {done.stdout.strip() or 'no message'}")
    return done.stdout.strip()


def put_dir(node: Node, source: Path, destination: str) -> None:
    """Make a folder in the node equal to one of this machine; nothing is copied that is there already."""
    if not source.is_dir():
        raise LabError(f"There is no folder {source}.")
    if not destination.startswith("/"):
        raise LabError(f"'{destination}' must be an absolute path in the node.")
    node.inside("mkdir", "-p", destination)
    if node.inside("realpath", destination).strip() == "/":
        raise LabError("The node's root folder cannot be replaced; name a folder below it.")
    # rsync starts its other half with this in place of ssh; the first word that it adds is the host's name
    shell = f"sh -c 'shift; exec {' '.join(enter_argv(node.leader() or 0))} \"$@\"' lab"
    run("rsync", "-aW", "--delete", f"--rsh={shell}", f"{source.absolute()}/", f"{node.name}:{destination}/")
