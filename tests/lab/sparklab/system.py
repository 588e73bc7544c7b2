# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The few calls into the system that every other part uses, and the one error that a user sees."""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import textwrap
import typing as t
from pathlib import Path


class LabError(Exception):
    """One sentence for the user that says what is wrong and what to do."""


def run(*argv: str, input: str | None = None, check: bool = True) -> str:
    """Run a program and return its output (stdout and stderr together).

    Raises LabError with the program's last line when it fails and check is set.
    """
    try:
        done = subprocess.run(
            argv,
            input=input,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            stdin=None if input is not None else subprocess.DEVNULL,
        )
    except FileNotFoundError:
        raise LabError(f"The program {argv[0]} is missing; install the lab's programs with 'lab deps'.") from None
    if check and done.returncode != 0:
        last = (done.stdout.strip().splitlines() or ["(no output)"])[-1]
        raise LabError(f"'{textwrap.shorten(' '.join(argv), 120)}' failed with code {done.returncode}: {last}")
    return done.stdout


def write(path: Path, text: str, mode: int = 0o644) -> None:
    """Write a file as a whole: readers see the old text or the new, never half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temp = path.with_name(f".{path.name}.{os.getpid()}")
    temp.write_text(text)
    temp.chmod(mode)
    temp.rename(path)


def rewrite(path: Path, text: str) -> None:
    """Write into the same inode, for files that are bound into a running node."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "r+" if path.exists() else "w") as stream:
        stream.write(text)
        stream.truncate()


@contextlib.contextmanager
def locked(path: Path) -> t.Iterator[None]:
    """Hold an exclusive lock on a file; it is freed by the kernel when its holder dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def mounts_below(folder: Path) -> list[str]:
    """Mount points at or below a folder, innermost first."""
    points = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        # '36 35 98:0 /mnt1 /mnt2 rw,noatime ...': the fifth field, with blanks as \\040
        point = line.split()[4].replace("\\040", " ")
        if point == str(folder) or point.startswith(f"{folder}/"):
            points.append(point)
    return points[::-1]


def parse_amount(text: str) -> int:
    """Bytes of '6G', '1500M', '512K' or a plain number (powers of 1024)."""
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
    number, factor = (text[:-1], units[text[-1].upper()]) if text[-1:].upper() in units else (text, 1)
    try:
        return int(float(number) * factor)
    except ValueError:
        raise LabError(f"'{text}' is no size; write it like 6G or 1500M.") from None


def parse_size(text: str) -> int:
    """Bytes of a node's memory, as :func:`parse_amount` reads them."""
    size = parse_amount(text)
    if size < 64 << 20:
        raise LabError(f"{text} is too little for a node; give it 64M or more.")
    return size
