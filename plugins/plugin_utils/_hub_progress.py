# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is private to the collection: it can change at any time.

"""How far a download from a hub is, in one line for the user. Pure."""

from __future__ import annotations

import json
import shlex
import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils._words import duration


def command(path: str) -> str:
    """What a node's shell says how far the download to a folder is with; the folder's name may be a link, which only the node can follow."""
    found = f"p=$(realpath -m -- {shlex.quote(path)})"
    return f'{found} && cat -- "$(dirname -- "$p")/.$(basename -- "$p").download/progress.json"'


def read(text: str) -> dict[str, t.Any] | None:
    """What the node's program has written last, or None where it has written nothing yet."""
    try:
        told = json.loads(text)
    except ValueError:
        return None
    return told if isinstance(told, dict) and {"bytes", "bytes_total", "files_left", "files_total", "rate", "at"} <= set(told) else None


def line(host: str, repo: str, told: t.Mapping[str, t.Any]) -> str:
    """ "[spark1] Qwen/Qwen3.5-122B-A10B-FP8: 42.1 of 127.3 GB (33 %), 26 of 39 files left, 0.41 GB/s, about 208 s left"."""
    here, total, rate = told["bytes"], told["bytes_total"], told["rate"]
    percent = 100 * here // total if total else 100
    said = f"[{host}] {repo}: {here / 1e9:.1f} of {total / 1e9:.1f} GB ({percent} %), {told['files_left']} of {told['files_total']} files left"
    if rate < 1e4:
        return said
    return f"{said}, {rate / 1e9:.2f} GB/s, about {duration((total - here) / rate)} left"
