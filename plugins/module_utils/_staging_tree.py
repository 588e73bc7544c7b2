# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""A model's folder as a copy sees it: its files by name, what can be told of each in milliseconds, and the room there is."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils._model import SMALL, SMALL_SUFFIXES, resolve, safetensors_header
from ansible_collections.sparkstack.inference.plugins.module_utils._staging_state import FOLDER, partial

View = t.Dict[str, t.Any]


class TreeError(Exception):
    """The folder can't be copied as it is; the text is a sentence."""


def look(path: str, source: bool) -> View:
    """Look at a model's folder; nothing is changed, and no weights are read.

    :param source: the folder is to be copied from, so that what can't be copied is an error.
    :returns: C(exists), C(files) (each C([size, mtime_ns, mark])), C(scope) (folder below C(path) that is copied, of a hub cache), C(free) (bytes),
        C(held) (bytes of unfinished files by name), C(linked) (files behind a link to a folder, of a target), C(writable), C(parent) (the nearest folder
        that is there).
    :raises TreeError: with what is wrong.
    """
    if not os.path.isabs(path):
        raise TreeError(f"The model's path {path!r} is not absolute: give the folder's full path.")
    if os.path.lexists(path) and not os.path.isdir(path):
        raise TreeError(f"{path} is not a folder: give the model's folder.")
    exists = os.path.isdir(path)
    view: View = {"exists": exists, "files": {}, "scope": "", "held": {}, "linked": [], **_room(path)}
    try:
        if source:
            view["scope"] = _scope(path, exists)
        if exists:
            view["files"] = dict(_files(path, view["scope"], source))
            view["held"] = dict(_held(path))
            view["linked"] = [] if source else [name for name in view["files"] if behind_link(path, name)]
    except PermissionError as error:
        raise TreeError(f"{error.filename} can't be read by this user: let this task run with `become`.") from error
    if source and not view["files"]:
        raise TreeError(f"The model's folder {path} is empty.")
    return view


def _scope(path: str, exists: bool) -> str:
    """Of a hub cache the snapshot, else nothing. Whatever its files link to, they are copied as files."""
    if not exists:
        raise TreeError(f"The model's folder {path} is not there.")
    folder, problem = resolve(path)
    if problem:
        raise TreeError(problem)
    return "" if folder == path else os.path.relpath(folder, path)


def _files(path: str, scope: str, source: bool) -> t.Iterator[t.Tuple[str, t.List[t.Any]]]:
    yield from _walk(path, os.path.join(path, scope) if scope else path, source, frozenset())
    reference = os.path.join("refs", "main")
    if scope and os.path.isfile(os.path.join(path, reference)):
        yield reference, _told(os.path.join(path, reference), os.stat(os.path.join(path, reference)), source)


def _walk(root: str, folder: str, source: bool, above: t.FrozenSet[str]) -> t.Iterator[t.Tuple[str, t.List[t.Any]]]:
    """All files that are not hidden, links followed; hidden ones (C(.cache), C(.gitattributes)) are not the model's.

    :param above: the folders that this one lies in, so that a link to one of them is not followed for ever. Two links to one folder are two folders.
    """
    real = os.path.realpath(folder)
    if real in above:
        return
    for name in sorted(os.listdir(folder)):
        if name.startswith("."):
            continue
        full = os.path.join(folder, name)
        short = os.path.relpath(full, root)
        try:
            status = os.stat(full)
        except OSError as error:
            if not source or error.errno not in (errno.ENOENT, errno.ELOOP):
                if isinstance(error, PermissionError):
                    raise
                continue
            raise TreeError(f"{short} in {root} leads nowhere: copy there what the link points to, or download the model again.") from error
        if stat.S_ISDIR(status.st_mode):
            yield from _walk(root, full, source, above | {real})
        elif stat.S_ISREG(status.st_mode):
            yield short, _told(full, status, source)
        elif source:
            raise TreeError(f"{short} in {root} is neither a file nor a folder: remove it.")


def _told(full: str, status: os.stat_result, source: bool) -> t.List[t.Any]:
    """Size, time, and what tells two files of one size apart without reading them: a header, or a small file's content."""
    mark = ""
    if full.endswith(".safetensors"):
        header = safetensors_header(full)
        if source and (header is None or header.file_size != status.st_size):
            raise TreeError(f"{full} is not whole by what its header says: download it again.")
        mark = header.digest if header else ""
    elif full.endswith(SMALL_SUFFIXES) and status.st_size < SMALL:
        with open(full, "rb") as stream:
            mark = hashlib.sha256(stream.read()).hexdigest()
    return [status.st_size, status.st_mtime_ns, mark]


def _room(path: str) -> t.Dict[str, t.Any]:
    """The room where the folder lies or would lie, and whether this user may write there."""
    there = existing(path)
    found = os.statvfs(there)
    return {
        "free": found.f_bavail * found.f_frsize,
        "writable": not found.f_flag & os.ST_RDONLY and os.access(there, os.W_OK | os.X_OK) and os.path.isdir(there),
        "parent": there,
    }


def existing(path: str) -> str:
    """The folder itself, or the nearest one above it that is there."""
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    return path


def _held(path: str) -> t.Iterator[t.Tuple[str, int]]:
    """The bytes on disk of each unfinished file, by the name that it has in the hidden folder."""
    folder = os.path.join(path, FOLDER)
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
        if name.endswith(".part"):
            yield name, os.lstat(os.path.join(folder, name)).st_blocks * 512


def held_by(view: t.Mapping[str, t.Any], name: str) -> int:
    """The bytes on disk that an unfinished file has already. :param name: the file's own. :param view: what :func:`look` returned."""
    return int(view["held"].get(os.path.basename(partial("", name)), 0))


def behind_link(path: str, name: str) -> bool:
    """Whether a file is there only by a link to a folder: it is another folder's, which may lie elsewhere, or be the model's under its own name."""
    folder = os.path.dirname(name)
    return bool(folder) and os.path.realpath(os.path.join(path, folder)) != os.path.join(os.path.realpath(path), folder)


def problem_there(path: str, name: str) -> str:
    """One sentence about what stands where a file is to lie, or nothing. :param name: one without a problem of its own."""
    hidden = os.path.join(path, FOLDER)
    # Whoever owns the model's folder could have what lies elsewhere written to, or cleared, by a link of that name.
    if os.path.islink(hidden) or os.path.lexists(hidden) and not os.path.isdir(hidden):
        return f"{hidden} is not the folder that a copy makes there for itself: remove it."
    folder = os.path.dirname(os.path.join(path, name))
    root = os.path.realpath(path)
    if os.path.commonpath([root, os.path.realpath(folder)]) != root:
        return f"{name} would lie behind a link that leads out of {path}: remove the link."
    if os.path.isdir(os.path.join(path, name)):
        return f"{name} is a folder in {path}, and a file at the source: remove the folder."
    if not os.path.isdir(existing(folder)):
        return f"{existing(folder)} is a file here, and a folder at the source: remove the file."
    return ""


def problem_of(name: str) -> str:
    """One sentence about a file's name that would lead out of the folder, or nothing. What another node says is not believed."""
    parts = name.split(os.sep)
    if not name or os.path.isabs(name) or any(part in ("", ".", "..") for part in parts) or parts[0] == FOLDER or "\0" in name:
        return f"{name!r} is no name of a file in a model's folder."
    return ""
