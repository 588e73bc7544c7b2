# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Makes the image with the distribution's nginx, for the tests of the router. Its own program only: what it links is in the base layer already."""

from __future__ import annotations

import os
import pathlib

from . import archive, rootfs
from .vllm import PATH, architecture, labels

NGINX = "nginx"
TAG = "sparkstack/nginx:lab"
PROGRAM = "usr/sbin/nginx"


def make(base: archive.Layer, work: pathlib.Path, path: pathlib.Path) -> None:
    """Write the archive. Raises BuildError where the package can't be had."""
    debs, root = work / "debs", work / "root"
    for folder in (debs, root):
        folder.mkdir()
        folder.chmod(0o777)  # apt loads as a user of its own
    # It loads into the folder that it is called in.
    download = ["sh", "-c", 'cd "$0" && exec apt-get download -qq nginx', str(debs)]
    try:
        rootfs.call(download, "apt-get download of nginx")
    except rootfs.BuildError:
        rootfs.call(["apt-get", "update", "-qq"], "apt-get update")
        rootfs.call(download, "apt-get download of nginx")
    (deb,) = debs.glob("nginx_*.deb")
    rootfs.call(["dpkg-deb", "--extract", str(deb), str(root)], "dpkg-deb --extract")
    if not os.access(root / PROGRAM, os.X_OK):
        raise rootfs.BuildError(f"The package {deb.name} has no /{PROGRAM}: the lab's nginx can't be made of it.")
    layers = [base, archive.write_layer(work / "nginx.tar", root, [PROGRAM], "apt-get download nginx")]
    version = deb.name.split("_")[1].partition("-")[0]
    config = archive.image_config(layers, architecture(), {"PATH": PATH}, labels("nginx of the distribution", version), ["nginx", "-v"])
    archive.write_archive(path, TAG, config, layers)
