# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""Small files of /proc and /sys, which can be gone the moment they are looked at."""

from __future__ import annotations

import typing as t


def text(path: str) -> str:
    """The content of a file, or nothing where it can't be read: a process may end while it is looked at."""
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read()
    except (OSError, ValueError):
        return ""


def integer(path: str) -> t.Optional[int]:
    """The number that a file holds, or None: also for C(max), and for the C(-1) of a link whose speed nobody knows."""
    content = text(path).strip()
    return int(content) if content.isdigit() else None
