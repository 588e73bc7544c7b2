# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The products: the engine's image and model, the rehearsal's image and model, and on demand the engine's image with Ray and routers.

Each is built when what goes into it changes.
"""

from __future__ import annotations

import dataclasses
import pathlib
import platform
import shutil
import tarfile
import typing as t

from . import archive, ray, rehearsal, rootfs, routers, store
from .ray import VLLM_RAY
from .vllm import HERE, PATH, VLLM, architecture, labels, make_vllm

MODEL = "tiny-qwen3-moe"
SGLANG, SGLANG_MODEL = "sglang-rehearsal", "tiny-sglang-rehearsal"
SGLANG_VERSION = "0.5.17"
IMAGES, MODELS = (VLLM, SGLANG), (MODEL, SGLANG_MODEL)
# Built where they are named: most tests have no use for them.
ON_DEMAND = (VLLM_RAY, routers.NGINX, routers.ROUTERS)
PY_SPY = f"{rootfs.BIN}/py-spy"


@dataclasses.dataclass(frozen=True)
class Product:
    """A thing to build: its name, the key of all that goes into it, where its result lies in its folder."""

    name: str
    key: str
    result: str
    make: t.Callable[[pathlib.Path, pathlib.Path], None]


def products() -> list[Product]:
    """Return the products in the order in which they are built: the first image is the others' ground."""
    release = rootfs.system()
    words = [release.get("ID", ""), release.get("VERSION_CODENAME", ""), platform.machine(), str(rootfs.python_minor())]
    # What the image with the engine is made of, and nothing else: it takes minutes, the others seconds.
    makers = [HERE / "sparkengine" / f"{name}.py" for name in ("archive", "rootfs", "vllm")]
    pins = [HERE / "requirements.txt", HERE / "requirements-vllm.txt"]
    vllm = store.key_of([*makers, *pins, *store.files_below(HERE / "image")], words)
    router = {name: store.key_of([HERE / "sparkengine" / "routers.py", routers.PINS], [vllm, name]) for name in (routers.NGINX, routers.ROUTERS)}
    own = HERE / "sparkengine" / "rehearsal.py"
    package = [*store.files_below(rehearsal.SOURCE), *rehearsal.RECORDED, own, pathlib.Path(__file__)]
    over_ray = [HERE / "sparkengine" / "ray.py", ray.REQUIREMENTS, *store.files_below(HERE / "image_ray")]
    return [
        Product(VLLM, vllm, "image.tar", make_vllm),
        Product(SGLANG, store.key_of(package, [vllm]), "image.tar", make_sglang),
        Product(MODEL, store.key_of([HERE / "make_model.py"], [vllm]), MODEL, make_model),
        Product(SGLANG_MODEL, store.key_of([own], []), SGLANG_MODEL, make_sglang_model),
        Product(VLLM_RAY, store.key_of(over_ray, [vllm]), "image.tar", make_ray),
        Product(routers.NGINX, router[routers.NGINX], "image.tar", lambda work, out: routers.make_nginx(_base_layer(work), work, out / "image.tar")),
        Product(routers.ROUTERS, router[routers.ROUTERS], "image.tar", lambda work, out: routers.make_routers(_base_layer(work), work, out / "image.tar")),
    ]


def build(wanted: t.Sequence[str] = ()) -> dict[str, pathlib.Path]:
    """Build what is not built yet; return the path of each product's result (wanted empty: of all but those on demand)."""
    results = {}
    for product in products():
        folder = store.found(product.name, product.key)
        asked = product.name in wanted or (not wanted and product.name not in ON_DEMAND)
        needed = asked or product.name == VLLM
        if folder is None and needed:
            rootfs.install_tools()
            with store.lock():
                folder = store.found(product.name, product.key) or _make(product)
        if folder is not None and asked:
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


def make_sglang(work: pathlib.Path, out: pathlib.Path) -> None:
    """Write image.tar: the engine image's base layer, and over it the rehearsal and py-spy, which SGLang's images have too."""
    base = _built_image()
    site = work / "root" / "opt/engine/sglang"
    rehearsal.copy_package(site)
    _take_py_spy(base, work / "root")
    layers = [
        _base_layer(work),
        archive.write_layer(work / "rehearsal.tar", work / "root", ["opt/engine/sglang", PY_SPY], "copy of sglang_rehearsal"),
    ]
    environment = {"PATH": PATH, "PYTHONPATH": "/opt/engine/sglang", "LANG": "C.UTF-8"}
    said = labels("Rehearsal of SGLang, not SGLang", f"{SGLANG_VERSION}+rehearsal")
    command = ["python3", "-m", "sglang.launch_server", "--help"]
    config = archive.image_config(layers, architecture(), environment, said, command)
    archive.write_archive(out / "image.tar", f"sparkstack/{SGLANG}:{SGLANG_VERSION}", config, layers)


def make_ray(work: pathlib.Path, out: pathlib.Path) -> None:
    """Write image.tar: the engine image and Ray."""
    ray.make_ray(_built_image(), work, out)


def _take_py_spy(image: pathlib.Path, root: pathlib.Path) -> None:
    """Copy py-spy out of the engine image's top layer."""
    digest = archive.describe(image).diff_ids[-1].removeprefix("sha256:")
    with tarfile.open(image) as outer, tarfile.open(fileobj=outer.extractfile(f"blobs/sha256/{digest}"), mode="r|") as layer:
        for member in layer:
            source = layer.extractfile(member) if member.name == PY_SPY else None
            if source is not None:
                (root / PY_SPY).parent.mkdir(parents=True)
                (root / PY_SPY).write_bytes(source.read())
                (root / PY_SPY).chmod(0o755)
                return
    raise rootfs.BuildError(f"{image} has no {PY_SPY}.")


def _base_layer(work: pathlib.Path) -> archive.Layer:
    """The engine image's lowest layer."""
    return archive.take_layer(_built_image(), 0, work / "base.tar", "mmdebstrap --variant=minbase")


def make_sglang_model(work: pathlib.Path, out: pathlib.Path) -> None:
    """Write the rehearsal's model."""
    rehearsal.write_model(out / SGLANG_MODEL)


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
