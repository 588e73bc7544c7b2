# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""The files of a program that systemd runs on a node, one unit a deployment: their names, and how they are read and written."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import typing as t

Data = t.Dict[str, t.Any]

PYTHON = "/usr/bin/python3"
"""The system's own: the one that Ansible uses may go with the user's folder."""
HALF = ".new"
"""Ends the name of a file that is being written."""
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")


class Kind(t.NamedTuple):
    """A kind of program. Paths are under the root."""

    what: str
    """What it is called within a sentence."""
    variable: str
    """The variable that turns it off."""
    program: str
    units: str
    """The folder of units that it goes into."""
    template: str
    """The unit's name, with nothing behind the C(@)."""

    @property
    def unit_file(self) -> str:
        """The path of the unit, which all deployments share."""
        return self.units + "/" + self.template

    def unit(self, deployment: str) -> str:
        """A deployment's unit's name; :raises ValueError: for a deployment whose name can't be one of a file."""
        if not valid(deployment):
            raise refused(deployment)
        return self.template.replace("@", "@" + deployment)


def valid(deployment: str) -> bool:
    """It can be a deployment's name, and that of a file."""
    return bool(_NAME.fullmatch(deployment))


def refused(deployment: str) -> ValueError:
    """What is said of a name that is not valid."""
    text_of = "'{0}' can't be a deployment's name: give one of small letters, digits, '.', '_' and '-', as the recipe has it."
    return ValueError(text_of.format(deployment))


def digest(data: bytes) -> str:
    """What a file's content is known again by."""
    return hashlib.sha256(data).hexdigest()


def digest_of(path: str) -> t.Optional[str]:
    """The digest of what a file holds, or None where it can't be read."""
    try:
        with open(path, "rb") as stream:
            return digest(stream.read())
    except OSError:
        return None


def text(config: t.Mapping[str, t.Any]) -> str:
    """Settings as the file has them."""
    return json.dumps(config, indent=1, sort_keys=True) + "\n"


def read(path: str) -> t.Optional[Data]:
    """A mapping that a file holds, or None where there is none that can be read."""
    try:
        with open(path, encoding="utf-8") as stream:
            data = json.load(stream)
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) else None


def write(path: str, content: t.Union[str, bytes], mode: int) -> None:
    """Write a file in one step; :raises OSError: when the disk does not take it."""
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    temporary = path + HALF
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary)
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as stream:
            os.fchmod(stream.fileno(), mode)
            stream.write(content.encode() if isinstance(content, str) else content)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except OSError:
        # A full disk: half a file, with a token in it perhaps, must not stay where nothing would ever take it away.
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
