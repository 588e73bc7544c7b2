# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is private to the collection: it can change at any time.

"""What a user has typed that can't be meant: a variable that nobody reads, a file that can't be written."""

from __future__ import annotations

import difflib
import os
import tempfile
import typing as t

import yaml

_SPECS = os.path.join("meta", "argument_specs.yml")
_NEAR = 0.75
"""How alike two names must be for the one to be a slip of the other: C(log) and C(logs) are 0.86, C(loga) 0.75, C(jobs) 0.5."""


class ChoiceError(Exception):
    """It can't be told what is wanted; the text is a sentence that says what to do."""


def misspelt(given: t.Iterable[str], known: t.Sequence[str]) -> str:
    """A sentence on the first variable of the command line that is nearly one of those that are read; or nothing.

    :param given: the names of all of them; many can be for others, such as AWX's own. :param known: those that are read.
    """
    plain = {_plain(name): name for name in known}
    for name in sorted(set(given) - set(known)):
        close = difflib.get_close_matches(_plain(name), plain, n=1, cutoff=_NEAR)
        if close:
            return f"There is no variable {name}: do you mean {plain[close[0]]}?"
    return ""


def unread(given: t.Iterable[str], roles: str) -> str:
    """A sentence on the first variable of the command line that has the name of a role's before it and is none of the role's; or nothing.

    C(-e tp_launch_listen_adress=127.0.0.1) would leave the API open to everybody.

    :param given: the names of all of them. :param roles: the folder of the collection's roles, whose argument specifications tell theirs.
    """
    folders = [name for name in sorted(os.listdir(roles)) if os.path.isfile(os.path.join(roles, name, _SPECS))]
    suspects = sorted(name for name in given if any(name.startswith(f"{folder}_") for folder in folders))
    if not suspects:
        return ""
    known: set[str] = set()
    for folder in folders:
        with open(os.path.join(roles, folder, _SPECS), encoding="utf-8") as stream:
            for entry in yaml.safe_load(stream)["argument_specs"].values():
                known.update(entry.get("options") or {})
    for name in suspects:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1, cutoff=_NEAR)
            return f"There is no variable {name}: " + (f"do you mean {close[0]}?" if close else "see the README of the role whose name it begins with.")
    return ""


def _plain(name: str) -> str:
    return name.lower().replace("-", "_")


def absolute(path: str, folder: str) -> str:
    """A path as the user means it. :param folder: what a relative one starts from."""
    return os.path.normpath(os.path.join(folder, os.path.expanduser(path)))


def new_file(path: str, folder: str, force: bool) -> str:
    """The absolute path of a file that is to be written.

    :raises ChoiceError: when no file can be made in its folder, or it is there and C(force) is not given.
    """
    whole = absolute(path, folder)
    parent, name = os.path.split(whole)
    if not os.path.isdir(parent):
        raise ChoiceError(f"There is no folder {parent} for {name} on this machine: make it first, or name another one.")
    if os.path.isdir(whole):
        raise ChoiceError(f"{whole} is a folder: name a file in it.")
    if os.path.exists(whole) and not os.path.isfile(whole):
        # What is written replaces it: -e json=/dev/stdout.
        raise ChoiceError(f"{whole} is no plain file: name one.")
    if os.path.exists(whole) and not force:
        raise ChoiceError(f"{whole} is there already: name another file, or replace it with -e force=true.")
    try:
        # Only this tells: root has every permission, and still can't make a file in /proc or on a file system that is mounted read-only.
        handle, probe = tempfile.mkstemp(prefix=f".{name}.", dir=parent)
    except OSError as error:
        raise ChoiceError(f"No file {name} can be made in {parent} ({error.strerror}): name a file in another folder.") from None
    os.close(handle)
    os.unlink(probe)
    return whole


def apart(files: t.Mapping[str, str], logs: t.Sequence[t.Mapping[str, t.Any]] = ()) -> None:
    """Refuse a file that would be written twice, or written over what is read.

    :param files: absolute paths by what they are for, nothing where none is wanted. :param logs: the entries of C(logs).
    :raises ChoiceError: when there is one.
    """
    taken: dict[str, str] = {os.path.realpath(entry["path"]): f"the log of {entry['node']}" for entry in logs if entry.get("path")}
    for use, path in files.items():
        if not path:
            continue
        real = os.path.realpath(path)
        if real in taken:
            raise ChoiceError(f"{path} would be {use} and {taken[real]}: give each a file of its own.")
        taken[real] = use
