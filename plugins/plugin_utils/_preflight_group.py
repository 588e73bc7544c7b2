# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is private to the collection: it can change at any time.

"""Judges what the nodes should have in common: kernel, drivers, Docker, the image; and the table of it. Pure."""

from __future__ import annotations

import re
import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils._words import listed, size
from ansible_collections.sparkstack.inference.plugins.plugin_utils._preflight_words import BLOCKED, READY, SLOW, Checked, Data, Item, Node, Wanted

# Kernels with a known fault, each with its source.
_KERNELS = (
    (
        re.compile(r"^7\.0\.0-1019\b"),
        "with this kernel RDMA can't register memory (ibv_reg_mr: ENOMEM) once its contiguous memory is miscounted "
        "(spark-vllm-docker issues 389 and 392, NV-Kernels pulls 590 and 591)",
    ),
)
_KHO = "Add kho=off to the kernel's command line and reboot, or boot a kernel before 7.0."
# NCCL versions with a known fault: the processor that it is met on (None: any), what it is, with its source, the variables that help, and the remedy.
_NCCL: tuple[tuple[re.Pattern[str], str | None, str, dict[str, str], str], ...] = (
    (
        re.compile(r"^2\.28\.9$"),
        "arm64",
        "hangs at random on Arm (marin issue 7344, sglang issue 33289)",
        {},
        "Take an image with NCCL 2.29.3 or newer.",
    ),
    (
        re.compile(r"^2\.30\.4$"),
        None,
        "hangs while mixtures of experts load, unless NVLS is off (nccl issue 2167)",
        {"NCCL_NVLS_ENABLE": "0"},
        "Set NCCL_NVLS_ENABLE to 0 in the recipe's environment, or take an image with another version.",
    ),
)


def same(nodes: t.Sequence[Node], value: t.Callable[[Node], t.Any]) -> tuple[dict[str, str], bool]:
    """A value of each node that tells one, as text, and whether all have the same."""
    found = {node.name: str(value(node)) for node in nodes if value(node) not in (None, "", [])}
    return found, len(set(found.values())) <= 1 and len(found) in (0, len(nodes))


def parity(nodes: t.Sequence[Node]) -> list[Data]:
    """The table of all nodes: C(what), C(nodes) (its value by node, None where there is none), C(equal)."""
    table = []
    for what, value in ROWS:
        found, equal = same(nodes, value)
        if found:
            table.append({"what": what, "nodes": {node.name: found.get(node.name) for node in nodes}, "equal": equal})
    return table


def _driver(node: Node) -> str | None:
    """The driver that is loaded; where the kernel does not tell, that which nvidia-smi names."""
    named = next((gpu.get("driver_version") for gpu in node.gpus if gpu.get("driver_version")), None)
    return node.preflight.get("driver") or named


def _firmware(node: Node) -> str | None:
    return ", ".join(sorted({str(device["firmware"]) for device in node.preflight.get("rdma") or [] if device.get("firmware")})) or None


def _rdma_driver(node: Node) -> str | None:
    devices = node.preflight.get("rdma") or []
    return (
        ", ".join(sorted({" ".join(filter(None, [device.get("driver"), device.get("driver_version")])) for device in devices if device.get("driver")})) or None
    )


def _store(node: Node) -> str | None:
    store = node.docker.get("storage")
    return f"{store} (containerd)" if store and node.docker.get("containerd") else store


def _content(node: Node) -> str | None:
    return (node.image.get("identity") or "").partition(":")[2][:12] or None


def nccl_of(node: Node) -> str | None:
    """What NCCL itself said in the collective, else what the image names."""
    said = (node.collective.get("group") or {}).get("nccl")
    # '2.28.9+cuda12.9'
    return str(said).partition("+")[0] if said else node.image.get("nccl")


ROWS: tuple[tuple[str, t.Callable[[Node], t.Any]], ...] = (
    ("system", lambda node: node.preflight.get("os")),
    ("architecture", lambda node: node.preflight.get("arch")),
    ("kernel", lambda node: (node.preflight.get("kernel") or {}).get("release")),
    ("NVIDIA driver", _driver),
    ("RDMA driver", _rdma_driver),
    ("RDMA firmware", _firmware),
    ("Docker", lambda node: node.docker.get("version")),
    ("Docker's storage", _store),
    ("image content", _content),
    ("NCCL in the image", nccl_of),
    ("NCCL of the node", lambda node: node.preflight.get("nccl")),
)


def _compared(nodes: t.Sequence[Node], item: str, value: t.Callable[[Node], t.Any], note: str) -> Checked:
    """A value that may differ: then that is a note. :param note: why it does no harm."""
    found, equal = same(nodes, value)
    if not found:
        return Checked()
    if equal:
        return Checked([], "the same on all nodes")
    return Checked([Item(item, READY, _each(nodes, found) + f"; {note}")], "")


def _each(nodes: t.Sequence[Node], found: t.Mapping[str, str]) -> str:
    return ", ".join(f"{node.name} has {found.get(node.name, 'none')}" for node in nodes)


def _uses_rdma(node: Node, wanted: Wanted) -> bool:
    return wanted.uses_rdma and any(rail.get("hca") for rail in node.rails)


def kernel(nodes: t.Sequence[Node], wanted: Wanted) -> Checked:
    """No kernel is known to be bad for what it is to do."""
    found = _compared(nodes, "kernel", lambda node: (node.preflight.get("kernel") or {}).get("release"), "ranks run on different kernels")
    known = []
    for node in nodes:
        its = node.preflight.get("kernel") or {}
        bad = next((what for pattern, what in _KERNELS if pattern.match(its.get("release") or "")), None)
        if its.get("cma_overcounted"):
            bad = f"the kernel {its.get('release')} says that more of its contiguous memory is free than there is, the mark of a fault by which RDMA fails"
            remedy = "Boot another kernel: kho=off is on the command line of this one and does not help." if its.get("kho_off") else _KHO
        elif bad and not its.get("kho_off"):
            bad, remedy = f"{its['release']}: {bad}", _KHO
        else:
            continue
        known.append(Item("kernel", BLOCKED if _uses_rdma(node, wanted) else READY, bad, remedy, node.name))
    return Checked(known + found.findings, found.detail)


def driver(nodes: t.Sequence[Node], wanted: Wanted) -> Checked:
    """The GPUs' driver works on all nodes, or there is none."""
    found = []
    with_gpu = [node.name for node in nodes if node.gpus]
    for node in nodes:
        for problem in node.gpu_memory.get("problems") or []:
            if problem["code"].startswith(("driver", "gpu_lost", "gpu_not_found", "gpu_requires_reset")) and wanted.gpus is not False:
                found.append(Item("driver", BLOCKED, problem["message"].rstrip("."), problem["remedy"], node.name))
        if with_gpu and node.gpu_memory and not node.gpus and wanted.gpus is not False and not any(item.node == node.name for item in found):
            remedy = "Look at 'nvidia-smi' and 'lspci' on the node."
            found.append(Item("driver", BLOCKED, f"no GPU is seen there, while {listed(with_gpu)} has one", remedy, node.name))
    versions, equal = same(nodes, _driver)
    if found or not versions:
        return Checked(found, "no GPU on any node" if any(node.gpu_memory for node in nodes) else None)
    if equal:
        return Checked([], "the same on all nodes")
    branches = {version.partition(".")[0] for version in versions.values()}
    if len(branches) > 1:
        remedy = "Install the same driver on all nodes: engines are built and tested with one CUDA for all ranks."
        return Checked([Item("driver", SLOW, _each(nodes, versions), remedy)])
    return Checked([Item("driver", READY, _each(nodes, versions) + "; they are of one branch")], "")


def firmware(nodes: t.Sequence[Node], wanted: Wanted) -> Checked:
    """The network cards' firmware, which may differ."""
    return _compared(nodes, "firmware", _firmware, "ranks run all the same; a Spark updates it with DGX OS, at boot (nvidia-spark-mlnx-firmware-manager)")


def docker(nodes: t.Sequence[Node], wanted: Wanted) -> Checked:
    """Docker answers on every node."""
    found = [
        Item("docker", BLOCKED, str(node.docker.get("error") or "Docker does not answer").rstrip("."), "Start it with 'systemctl start docker'.", node.name)
        for node in nodes
        if node.read and not node.docker.get("reachable")
    ]
    if found:
        return Checked(found)
    return _compared(nodes, "docker", lambda node: node.docker.get("version"), "ranks run all the same")


def store(nodes: t.Sequence[Node], wanted: Wanted) -> Checked:
    """Docker's storage, which may differ: then an image has another id on each node, and only its content can be compared."""
    return _compared(nodes, "store", _store, "an image's id differs between them, so it is compared by its content")


def image(nodes: t.Sequence[Node], wanted: Wanted) -> Checked:
    """All nodes have the same content under the image's tag."""
    if not wanted.image or not any(node.docker.get("reachable") for node in nodes):
        return Checked()
    found = []
    for node in nodes:
        made, machine = node.image.get("architecture"), node.preflight.get("arch")
        if made and machine and made != machine:
            remedy = f"Pull or build {wanted.image} for {machine} on the head."
            found.append(Item("image", BLOCKED, f"{wanted.image} is for {made}, and the node is {machine}", remedy, node.name))
    head = next((node for node in nodes if node.name == wanted.head), nodes[0])
    if not head.image:
        return Checked([*found, Item("image", READY, f"{wanted.image} is not there yet: a deploy pulls it", "", head.name)], "")
    for node in nodes:
        if node is head or node.image.get("identity") == head.image.get("identity") or not node.docker.get("reachable"):
            continue
        if node.image:
            text = f"{wanted.image} is another image there ({_content(node)}) than on {head.name} ({_content(head)})"
        else:
            text = f"{wanted.image} is not there"
        if wanted.brings_image:
            found.append(Item("image", READY, f"{text}: it gets that of {head.name}", "", node.name, head.name))
        else:
            remedy = f"A deploy brings the image of {head.name} to it; 'docker pull {wanted.image}' on both does, too, where it is in a registry."
            found.append(Item("image", SLOW, text, remedy, node.name, head.name))
    return Checked(found, f"{_content(head)}, {size(head.image.get('size_bytes'))}, the same on all nodes")


def nccl(nodes: t.Sequence[Node], wanted: Wanted) -> Checked:
    """The image's NCCL is not known to hang."""
    versions, _equal = same(nodes, nccl_of)
    found = []
    for node in nodes:
        its = versions.get(node.name, "")
        for pattern, machine, what, variables, remedy in _NCCL:
            environment = {**(node.fabric.get("environment") or {}), **wanted.environment}
            helped = variables and all(str(environment.get(key)) == value for key, value in variables.items())
            there = machine in (None, node.preflight.get("arch"))
            if pattern.match(its) and there and not helped and (wanted.gpus or (wanted.gpus is None and node.gpus)):
                found.append(Item("nccl", SLOW, f"NCCL {its} of the image {what}", remedy, node.name))
    return Checked(found, f"{listed(sorted(set(versions.values())))}" if versions else None)
