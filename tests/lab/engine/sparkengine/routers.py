# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Makes the images for the tests of the router: one with the distribution's nginx, one with sglang-router and vllm-router."""

from __future__ import annotations

import os
import pathlib
import re

from . import archive, rootfs
from .vllm import HERE, PATH, architecture, labels

NGINX, ROUTERS = "nginx", "routers"
PINS = HERE / "requirements-routers.txt"
PROGRAM = "usr/sbin/nginx"
SITE = "opt/engine/routers"
# As the package's own command, whose first line names the Python that has installed it.
_COMMAND = "#!/usr/bin/python3\nimport sys\n\nfrom vllm_router.launch_router import main\n\nsys.exit(main())\n"


def make_nginx(base: archive.Layer, work: pathlib.Path, path: pathlib.Path) -> None:
    """Write the archive. Of nginx its program only: what it links is in the base layer already. Raises BuildError where the package can't be had."""
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
    said = labels("nginx of the distribution", deb.name.split("_")[1].partition("-")[0])
    archive.write_archive(path, f"sparkstack/{NGINX}:lab", archive.image_config(layers, architecture(), {"PATH": PATH}, said, ["nginx", "-v"]), layers)


def make_routers(base: archive.Layer, work: pathlib.Path, path: pathlib.Path) -> None:
    """Write the archive, with both routers in one image."""
    root = work / "root"
    rootfs.call([rootfs.PYTHON, "-m", "venv", str(work / "venv")], "python3 -m venv")
    install = [str(work / "venv" / "bin" / "pip"), "install", "-q", "--no-deps", "--no-compile", "--target", str(root / SITE), "-r", str(PINS)]
    rootfs.call(install, "pip install of the routers")
    command = root / rootfs.BIN / "vllm-router"
    command.parent.mkdir(parents=True)
    command.write_text(_COMMAND, encoding="utf-8")
    command.chmod(0o755)
    for record in (root / SITE).glob("*.dist-info/RECORD"):
        record.unlink()
    # The commands' first lines name a Python that is not in the image.
    layers = [base, archive.write_layer(work / "routers.tar", root, [SITE, rootfs.BIN], "pip install of the routers", (f"{SITE}/bin*",))]
    environment = {"PATH": PATH, "PYTHONPATH": f"/{SITE}", "LANG": "C.UTF-8"}
    versions = "-".join(re.findall(r"^(?:sglang|vllm)-router==(\S+)$", PINS.read_text(encoding="utf-8"), re.M))
    said = labels("sglang-router and vllm-router", versions)
    archive.write_archive(path, f"sparkstack/{ROUTERS}:lab", archive.image_config(layers, architecture(), environment, said, ["vllm-router", "--help"]), layers)
