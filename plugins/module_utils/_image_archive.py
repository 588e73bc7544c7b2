# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""What an archive of C(docker save) holds, without loading it: an archive that is loaded takes the names of its images away from others at once.

Only the small members are read; the layers of an archive that isn't compressed are skipped. C(manifest.json) is in the archives of all
Docker versions, also in those that are an OCI layout as well (since 25). Source: moby, C(image/spec) v1.2, "Combined Image JSON + Filesystem
Changeset Format".
"""

from __future__ import annotations

import json
import lzma
import tarfile
import typing as t
import zlib

from ansible_collections.sparkstack.inference.plugins.module_utils._image_identity import identity

_SMALL = 8 << 20
"""Bytes of the largest member that is read: a configuration has some kilobytes."""


class ArchiveError(Exception):
    """The file is no archive of images; the text is a sentence."""


def images(path: str) -> t.List[t.Dict[str, t.Any]]:
    """The images of an archive, each with C(names), C(architecture), C(os), and C(digest) and C(layers) as in C(_image_identity.identity).

    :raises ArchiveError: with a sentence. :raises OSError: when the file can't be read.
    """
    try:
        with tarfile.open(path) as archive:
            members = {member.name: member for member in archive}
            return [_image(archive, members, entry) for entry in _json(archive, members, "manifest.json")]
    except (tarfile.TarError, EOFError, ValueError, KeyError, TypeError, AttributeError, RecursionError, zlib.error, lzma.LZMAError, OSError) as error:
        # What is wrong with the disk has a number; what gzip and bz2 say of damage has none.
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise ArchiveError(f"{path} is no archive of `docker save`, or not a whole one: make it anew, uncompressed or with gzip.") from error


def _json(archive: tarfile.TarFile, members: t.Mapping[str, tarfile.TarInfo], name: str) -> t.Any:
    member = members[name]
    stream = archive.extractfile(member) if member.size <= _SMALL else None
    if stream is None:
        raise ValueError(name)
    return json.loads(stream.read().decode("utf-8"))


def _image(archive: tarfile.TarFile, members: t.Mapping[str, tarfile.TarInfo], entry: t.Mapping[str, t.Any]) -> t.Dict[str, t.Any]:
    config = _json(archive, members, entry["Config"])
    for layer in entry["Layers"]:
        # Cut short, an archive can still have its manifest: it stands where the layers' names sort it.
        members[layer]
    found = identity(
        {
            "Architecture": config.get("architecture"),
            "Os": config.get("os"),
            "Config": config.get("config"),
            "RootFS": {"Layers": config["rootfs"]["diff_ids"]},
        }
    )
    return {"names": list(entry.get("RepoTags") or []), **{name: found[name] for name in ("architecture", "os", "digest", "layers")}}
