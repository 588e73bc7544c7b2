#!/usr/bin/env python3
# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The browser in which the report is looked at: prints its path, or ends with 1 where there is none. C(make browser) installs one.

Debian has the package chromium-headless-shell. Ubuntu 24.04 has none: its packages chromium-browser and chromium bring a snap, which runs in a view of the
disk of its own and opens no file below /tmp. There Playwright's own build of the same program does, which C(playwright install) gets from its makers' server.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import sys

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
STUB = 100_000
"""Bytes that are looked at. What Ubuntu's packages put in a browser's place is a script of a few lines that starts the snap."""


def usable(path: str) -> bool:
    """Whether a program is a browser itself, and no snap's or the script that would start one."""
    real = pathlib.Path(path).resolve()
    if "snap" in real.parts:
        return False
    start = real.read_bytes()[:STUB]
    return not (start.startswith(b"#!") and b"snap" in start)


def installed() -> str:
    """The path of a browser that this machine has installed, or nothing."""
    return next((found for name in NAMES if (found := shutil.which(name)) and usable(found)), "")


def playwrights() -> str:
    """The path of the newest headless build that Playwright has installed for this user, or nothing."""
    folder = pathlib.Path(os.environ.get("PLAYWRIGHT_BROWSERS_PATH") or pathlib.Path.home() / ".cache" / "ms-playwright")
    # chromium_headless_shell-1255/chrome-headless-shell-linux64/chrome-headless-shell; of older ones it is called headless_shell.
    found = [path for name in ("chrome-headless-shell", "headless_shell") for path in folder.glob(f"chromium_headless_shell-*/*/{name}")]
    found = [path for path in found if os.access(path, os.X_OK)]
    return str(max(found, key=lambda path: int(path.parts[-3].rpartition("-")[2]), default=""))


def program() -> str:
    """The path of one of these, or nothing."""
    return installed() or playwrights()


if __name__ == "__main__":
    print(program() or "There is no browser: 'make browser' installs one.")
    sys.exit(0 if program() else 1)
