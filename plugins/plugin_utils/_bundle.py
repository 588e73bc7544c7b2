# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is private to the collection: it can change at any time.

"""A support bundle: everything that is known of a launch in one archive, without secrets, written in one step."""

from __future__ import annotations

import io
import json
import os
import platform
import re
import tarfile
import tempfile
import time
import typing as t

from ansible.release import __version__ as ansible_version

from ansible_collections.sparkstack.inference.plugins.module_utils._secrets import Scrubber, variables
from ansible_collections.sparkstack.inference.plugins.module_utils._support_part import FIRST, LAST

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def version(root: str = _ROOT) -> str:
    """The collection's version: an installed one has MANIFEST.json, a checkout galaxy.yml."""
    try:
        with open(os.path.join(root, "MANIFEST.json"), encoding="utf-8") as stream:
            return str(json.load(stream)["collection_info"]["version"])
    except OSError:
        with open(os.path.join(root, "galaxy.yml"), encoding="utf-8") as stream:
            told = re.search(r"^version: *(\S+)", stream.read(), re.MULTILINE)
            return told.group(1) if told else "unknown"


def about() -> dict[str, str]:
    """What made the bundle."""
    return {
        "collection": f"sparkstack.inference {version()}",
        "ansible": ansible_version,
        "python": platform.python_version(),
        "written": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
    }


def common(verdict: t.Mapping[str, t.Any], report: t.Sequence[str], used: t.Mapping[str, t.Any]) -> dict[str, bytes]:
    """The files that are of no node: the report, the verdict, what made them, and the playbook's variables.

    :param used: the variables, of which those whose names look secret are shown without their values.
    """
    found = {
        "report.txt": "".join(f"{line}\n" for line in report).encode("utf-8", "surrogateescape"),
        "verdict.json": _json(verdict),
        "about.json": _json(about()),
        "variables.json": _json(variables(used)),
    }
    for name, node in (verdict.get("nodes") or {}).items():
        if node.get("closeup"):
            found[f"{folder(str(name))}/closeup.json"] = _json(node["closeup"])
    return found


def _json(data: t.Any) -> bytes:
    return (json.dumps(data, indent=2, sort_keys=True, default=str) + "\n").encode()


def folder(node: str) -> str:
    """The name of a node's folder in the archive."""
    return re.sub(r"[^\w.-]", "_", node).lstrip(".") or "node"


def part_of_log(path: str, first: int = FIRST, last: int = LAST) -> bytes:
    """A log file; of a long one, the beginning and the end. :raises OSError: when it can't be read."""
    with open(path, "rb") as stream:
        head = stream.read(first)
        size = os.fstat(stream.fileno()).st_size
        if size <= first + last:
            return head + stream.read()
        stream.seek(size - last)
        return head + f"\n[.. {size - first - last} bytes are left out here ..]\n".encode() + stream.read()


def write(path: str, files: t.Mapping[str, bytes], secrets: t.Iterable[str], replace: bool) -> int:
    """Write the archive, readable by its owner only, in one step.

    :param files: contents by name. :param secrets: values to replace in all of them.
    :param replace: whether a file of that name may be replaced.
    :returns: its size in bytes.
    :raises FileExistsError: when it may not; :raises OSError: when it can't be written.
    """
    scrubber = Scrubber(secrets)
    root = re.sub(r"\.(tar\.gz|tgz)$", "", os.path.basename(path)) or "bundle"
    now = time.time()
    # mkstemp makes it for its owner only.
    handle, temporary = tempfile.mkstemp(prefix=f".{os.path.basename(path)}.", dir=os.path.dirname(path))
    try:
        with open(handle, "wb") as stream:
            with tarfile.open(fileobj=stream, mode="w:gz") as archive:
                for name in sorted(files):
                    data = scrubber.data(files[name])
                    entry = tarfile.TarInfo(f"{root}/{scrubber.text(name)}")
                    entry.size, entry.mode, entry.mtime = len(data), 0o600, int(now)
                    archive.addfile(entry, io.BytesIO(data))
            stream.flush()
            os.fsync(stream.fileno())
        if replace:
            os.replace(temporary, path)
        else:
            # Unlike a rename, a link fails where somebody else was faster.
            os.link(temporary, path)
            os.unlink(temporary)
    except BaseException:
        os.unlink(temporary)
        raise
    return os.path.getsize(path)
