# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Makes ``ansible_collections.sparkstack.inference`` importable from the checkout, wherever that lies."""

from __future__ import annotations

import importlib
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SOURCES = ROOT / "build" / "src" / "ansible_collections"


def _link_checkout() -> None:
    """Lay build/src/ansible_collections/sparkstack/inference as a link to the checkout."""
    link = SOURCES / "sparkstack" / "inference"
    link.parent.mkdir(parents=True, exist_ok=True)
    if not link.is_symlink():
        link.symlink_to(ROOT, target_is_directory=True)


_link_checkout()
sys.path.insert(0, str(SOURCES.parent))
# Where the `ansible` package has a regular package of that name, it hides ours: add our folder to its search path.
_package = importlib.import_module("ansible_collections")
if str(SOURCES) not in _package.__path__:
    _package.__path__.append(str(SOURCES))
