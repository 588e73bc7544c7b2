# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is private to the collection: it can change at any time.

"""What can be wrong with the log files that a user gives before a line of them is read: none there, none that is text."""

from __future__ import annotations

_COMPRESSED = {b"\x1f\x8b": "gunzip", b"\xfd7zXZ\x00": "unxz", b"\x28\xb5\x2f\xfd": "unzstd", b"BZh": "bunzip2", b"PK\x03\x04": "unzip"}
"""What a compressed file begins with, and what unpacks it."""


def refused(node: str, path: str, error: OSError) -> str:
    """A sentence for a log that can't be opened or read."""
    if isinstance(error, FileNotFoundError):
        return f"There is no log {path} for {node}: correct its path."
    if isinstance(error, IsADirectoryError):
        return f"The log of {node}, {path}, is a folder: name the file in it."
    return f"The log of {node} cannot be read: {error}."


def unreadable(node: str, path: str, start: bytes) -> str:
    """A sentence for a file that is no text, else nothing.

    :param start: the file's first bytes.
    """
    tool = next((tool for magic, tool in _COMPRESSED.items() if start.startswith(magic)), "")
    if tool:
        return f"The log of {node}, {path}, is compressed: unpack it first ({tool})."
    if start.startswith((b"\xff\xfe", b"\xfe\xff")):
        # PowerShell's "docker logs NAME > head.log".
        return f"The log of {node}, {path}, is UTF-16: write it anew as UTF-8 (iconv -f UTF-16 -t UTF-8)."
    # Something torn off by a power cut has a run of zeros, but not at its start.
    if b"\0" in start[:512]:
        return f"The log of {node}, {path}, is no text: name the file that docker logs gave."
    return ""
