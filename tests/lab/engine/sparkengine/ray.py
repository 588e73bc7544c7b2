# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Makes the image with Ray: one more layer on the image of vLLM's CPU build. Built only where it is asked for."""

from __future__ import annotations

import pathlib
import shutil

from . import archive, rootfs
from .vllm import HERE, PATH, architecture, labels

VLLM_RAY = "vllm-ray"
RAY = "opt/engine/ray"
REQUIREMENTS = HERE / "requirements-ray.txt"
# Ray's libraries for training and serving, its Java and C++ sides and the dashboard's pages: 60 MB that vLLM has no use for.
UNUSED = ("jars", "rllib", "tune", "train", "serve", "data", "llm", "cpp", "dashboard/client")
ENTRY_POINTS = """\
[vllm.platform_plugins]
ray_cpu = engine_ray_cpu:platform

[vllm.general_plugins]
ray_cpu_shm = engine_ray_cpu:general
"""


def make_ray(base: pathlib.Path, work: pathlib.Path, out: pathlib.Path) -> None:
    """Write image.tar: all layers of the engine's image (base), and Ray with the plugin that lets the CPU build use it."""
    root = work / "root"
    pip = work / "venv" / "bin" / "pip"
    rootfs.call([rootfs.PYTHON, "-m", "venv", str(work / "venv")], "python3 -m venv")
    rootfs.say("ray")
    install = [str(pip), "install", "-q", "--no-deps", "--no-compile", "--target", str(root / RAY), "-r", str(REQUIREMENTS)]
    rootfs.call(install, "pip install of ray")
    _trim(root)
    _add_plugin(root)
    # Byte code that holds whatever the files' times are, as in the image below.
    command = [rootfs.PYTHON, "-m", "compileall", "-q", "-q", "-f", "-j", "0", "--invalidation-mode", "unchecked-hash", "-s", str(root)]
    rootfs.call([*command, str(root / RAY)], "compileall of ray", ok=(0, 1))
    rootfs.say("image archive")
    below = archive.describe(base)
    layers = [archive.take_layer(base, index, work / f"{index}.tar", f"layer {index} of {below.tag}") for index in range(len(below.diff_ids))]
    layers.append(archive.write_layer(work / "ray.tar", root, [RAY, rootfs.BIN], "pip install ray"))
    environment = {
        "PATH": PATH,
        "PYTHONPATH": f"/{rootfs.ENGINE}:/{rootfs.LIB}:/{RAY}",
        "LANG": "C.UTF-8",
        "TORCHDYNAMO_DISABLE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    version = below.tag.rpartition(":")[2]
    config = archive.image_config(layers, architecture(), environment, labels("vLLM for CPUs, with Ray", version), ["vllm", "--help"])
    archive.write_archive(out / "image.tar", f"sparkstack/{VLLM_RAY}:{version}", config, layers)


def _trim(root: pathlib.Path) -> None:
    """Take away what never runs, and what differs from one installation to the next."""
    lib = root / RAY
    for path in [lib / "bin", *(lib / "ray" / name for name in UNUSED)]:
        shutil.rmtree(path, ignore_errors=True)
    for record in lib.glob("*.dist-info/RECORD"):
        record.unlink()


def _add_plugin(root: pathlib.Path) -> None:
    """Add the ray command and the plugin, which vLLM finds by its entry points."""
    (root / rootfs.BIN).mkdir(parents=True)
    shutil.copy(HERE / "image_ray" / "ray", root / rootfs.BIN / "ray")
    shutil.copytree(HERE / "image_ray" / "engine_ray_cpu", root / RAY / "engine_ray_cpu", ignore=shutil.ignore_patterns("__pycache__"))
    info = root / RAY / "engine_ray_cpu-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: engine_ray_cpu\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(ENTRY_POINTS, encoding="utf-8")
