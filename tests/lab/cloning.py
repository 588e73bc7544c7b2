# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A user's clone of the repository, in which commands are typed as the documents have them."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess

import play


class Clone:
    """A fresh copy of what git tracks, the nodes of its sparks.ini being the lab's, and a user with an empty home."""

    def __init__(self, folder: pathlib.Path, home: pathlib.Path) -> None:
        self.folder = folder
        files = subprocess.run(["git", "ls-files", "-z"], cwd=play.ROOT, capture_output=True, check=True).stdout.decode().split("\0")
        for name in filter(None, files):
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if (play.ROOT / name).exists():
                shutil.copy2(play.ROOT / name, target, follow_symlinks=False)
        self.inventory = folder / "inventories" / "sparks.ini"
        self.inventory.write_text(pathlib.Path(play.inventory()).read_text())
        self.environment = {key: value for key, value in os.environ.items() if not key.startswith("ANSIBLE_")}
        self.environment.update(HOME=str(home), PATH=f"{play.BIN}:{self.environment['PATH']}", ANSIBLE_NOCOLOR="1", LC_ALL="C.UTF-8")

    def type(self, command: str) -> subprocess.CompletedProcess[str]:
        """Run a command line in the clone; its output is text."""
        return subprocess.run(["bash", "-c", command], cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=900, check=False)
