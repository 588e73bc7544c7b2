#!/usr/bin/env python3
# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Builds the collection's artifact so that the same files give the same bytes, wherever and whenever, by the same zlib: tests/artifact.py FOLDER [CHECKOUT].

ansible-galaxy writes the files' own times and the time of the build, and lists files in the order in which the disk has them. Here all of them get
one time, that of C(SOURCE_DATE_EPOCH) or of the last commit, and the order of their names. Prints the artifact's path.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import pathlib
import subprocess
import sys
import tarfile
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
FILES, MANIFEST = "FILES.json", "MANIFEST.json"


def encoded(data: object) -> bytes:
    return json.dumps(data, indent=True, sort_keys=True).encode()


def moment(checkout: pathlib.Path) -> int:
    """The time that all files get, in seconds since 1970."""
    told = os.environ.get("SOURCE_DATE_EPOCH")
    return int(told or subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=checkout, capture_output=True, text=True, check=True).stdout)


def ordered(members: dict[str, tuple[tarfile.TarInfo, bytes]]) -> None:
    """Put the list of files in order; its own hash stands in the manifest."""
    info, data = members[FILES]
    listed = json.loads(data)
    listed["files"].sort(key=lambda entry: entry["name"])
    members[FILES] = info, encoded(listed)
    info, data = members[MANIFEST]
    manifest = json.loads(data)
    manifest["file_manifest_file"]["chksum_sha256"] = hashlib.sha256(members[FILES][1]).hexdigest()
    members[MANIFEST] = info, encoded(manifest)


def packed(members: dict[str, tuple[tarfile.TarInfo, bytes]], when: int) -> bytes:
    """The archive: what an importer reads first stands first."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name in sorted(members, key=lambda name: (name not in (MANIFEST, FILES), name)):
            info, data = members[name]
            info.mtime, info.uid, info.gid, info.uname, info.gname, info.size = when, 0, 0, "", "", len(data)
            archive.addfile(info, io.BytesIO(data))
    return gzip.compress(plain.getvalue(), mtime=0)


def build(folder: pathlib.Path, checkout: pathlib.Path) -> pathlib.Path:
    """The artifact of a checkout, in that folder."""
    galaxy = pathlib.Path(sys.executable).with_name("ansible-galaxy")
    with tempfile.TemporaryDirectory() as place:
        command = [str(galaxy), "collection", "build", "--output-path", place]
        subprocess.run(command, cwd=checkout, check=True, stdout=subprocess.DEVNULL)
        made = next(pathlib.Path(place).glob("*.tar.gz"))
        members: dict[str, tuple[tarfile.TarInfo, bytes]] = {}
        with tarfile.open(made) as archive:
            for info in archive:
                source = archive.extractfile(info)
                members[info.name] = info, source.read() if source else b""
    ordered(members)
    folder.mkdir(parents=True, exist_ok=True)
    half = folder / f".{made.name}.new"
    half.write_bytes(packed(members, moment(checkout)))
    return half.replace(folder / made.name)


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit("Say where to: tests/artifact.py FOLDER [CHECKOUT]")
    print(build(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]) if len(sys.argv) == 3 else ROOT))
