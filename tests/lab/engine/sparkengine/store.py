# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The cache of built things: a folder each, named by the sha256 of everything that went into it."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import pathlib
import shutil
import tempfile
import typing as t

from .rootfs import unmount_below

# Of each product the newest folders that stay; a checkout of another branch may need the one before.
KEEP = 2


def cache_root() -> pathlib.Path:
    """Return the engine's part of the lab's folder ($SPARKSTACK_LAB, else ~/.cache/sparkstack-lab)."""
    lab = os.environ.get("SPARKSTACK_LAB") or "~/.cache/sparkstack-lab"
    return pathlib.Path(lab).expanduser().resolve() / "engine"


def key_of(files: t.Iterable[pathlib.Path], words: t.Iterable[str]) -> str:
    """Return the sha256 (hex) over the files' names, modes and contents and over the words."""
    total = hashlib.sha256()
    for word in words:
        total.update(f"word {word}\n".encode())
    for file in sorted(files):
        total.update(f"file {file.name} {file.stat().st_mode & 0o111:o} {file.stat().st_size}\n".encode())
        total.update(file.read_bytes())
    return total.hexdigest()


def files_below(folder: pathlib.Path) -> list[pathlib.Path]:
    """Return the files below a folder, byte code aside, which comes and goes."""
    return [path for path in sorted(folder.rglob("*")) if path.is_file() and "__pycache__" not in path.parts]


def found(product: str, key: str) -> pathlib.Path | None:
    """Return the folder of a product that is built already, and note its use; None when it is not."""
    folder = cache_root() / f"{product}-{key}"
    if not folder.is_dir():
        return None
    os.utime(folder)
    return folder


@contextlib.contextmanager
def lock() -> t.Iterator[None]:
    """Hold the cache's lock: one build at a time, the others wait and then find its result."""
    root = cache_root()
    root.mkdir(parents=True, exist_ok=True)
    with (root / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        for stale in root.glob(".build-*"):
            _remove(stale)
        yield


@contextlib.contextmanager
def workshop() -> t.Iterator[pathlib.Path]:
    """Give a folder to build in, on the cache's own file system; it is gone afterwards, whatever happened."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix=".build-", dir=cache_root()))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        _remove(folder)


def _remove(folder: pathlib.Path) -> None:
    unmount_below(folder)
    shutil.rmtree(folder)


def keep(product: str, key: str, made: pathlib.Path) -> pathlib.Path:
    """Move a finished folder to its final name, in one step, and remove the product's oldest; return its path."""
    final = cache_root() / f"{product}-{key}"
    made.rename(final)
    os.utime(final)
    older = sorted(cache_root().glob(f"{product}-*"), key=lambda path: path.stat().st_mtime, reverse=True)
    for folder in older[KEEP:]:
        _remove(folder)
    return final
