# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""What is wrong with a node's memory or its GPU's driver, each with a code, one sentence and a remedy. Pure: no I/O."""

from __future__ import annotations

import re
import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils._memory import Gpu

Problem = t.Dict[str, str]
Rows = t.Sequence[t.Tuple[str, t.Pattern[str], str]]

# Bytes below which these explain no lack of memory.
_HUGE_PAGES = 512 << 20
_SWAP = 1 << 30
# Of a node that has less free nothing is to be said about the pieces: they are what the kernel is about to reclaim.
_FREE = 8 << 30
# The share of free memory that must stand in large pieces, and the share of all memory from which page cache is worth a word.
_IN_LARGE = 0.05
_CACHE = 0.10

# What nvidia-smi says instead of an answer. In the remedy, {version} is the version of the driver in the kernel.
_DRIVER: Rows = (
    # 'Failed to initialize NVML: Driver/library version mismatch' (exit code 18), after an upgrade of the packages.
    (
        "driver_mismatch",
        re.compile(r"Driver/library version mismatch"),
        "Reboot the node: its driver was upgraded while the old one{version} stayed loaded. Hold the driver's packages back if upgrades come unasked.",
    ),
    # "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver." (exit code 9), after an upgrade of the kernel.
    (
        "driver_not_loaded",
        re.compile(r"couldn't communicate with the NVIDIA driver|Driver Not Loaded"),
        "Install the driver's modules for the running kernel ('uname -r') and load them with 'modprobe nvidia', or boot the kernel that has them.",
    ),
    # "NVIDIA-SMI couldn't find libnvidia-ml.so library in your system." (exit code 12)
    (
        "driver_incomplete",
        re.compile(r"couldn't find libnvidia-ml"),
        "Install the driver's package libnvidia-compute in the version of the loaded driver{version}.",
    ),
    # 'Unable to determine the device handle for GPU 0000:02:00.0: GPU is lost.  Reboot the system to recover this GPU'
    (
        "gpu_lost",
        re.compile(r"Unable to determine the device handle|GPU is lost|fallen off the bus"),
        "Reboot the node; if the GPU is lost again, take its power off for a minute and look for 'Xid' in its kernel's log.",
    ),
    (
        "driver_hangs",
        re.compile(r"did not answer within"),
        "Look for 'NVRM' and 'Xid' in the kernel's log, then reboot the node; if it does not come down, take its power off.",
    ),
    ("permission", re.compile(r"Insufficient Permissions|Permission denied"), "Gather these facts with become: true."),
)
_OTHER = "Run nvidia-smi on the node, and look for 'NVRM' in its kernel's log."


def of_driver(said: str, loaded: t.Optional[str] = None) -> Problem:
    """The problem that a sentence of M(_smi) or a line of nvidia-smi tells; one that is not known has the code V(driver).

    :param loaded: the version of the driver that the kernel has loaded, see M(loaded_version).
    """
    for code, pattern, remedy in _DRIVER:
        if pattern.search(said):
            return _problem(code, said, remedy.format(version=f" ({loaded})" if loaded else ""))
    return _problem("driver", said, _OTHER)


def is_known(line: str) -> bool:
    """Whether a line that nvidia-smi wrote tells a problem."""
    return any(pattern.search(line) for _code, pattern, _remedy in _DRIVER)


def loaded_version(text: str) -> t.Optional[str]:
    """The version in /proc/driver/nvidia/version: 'NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.95.05  Release Build ..'."""
    found = re.search(r"^NVRM version:.*?\s([0-9]+\.[0-9.]+)\s", text, re.MULTILINE)
    return found.group(1) if found else None


def of_no_gpu(on_bus: int, smi: bool) -> t.List[Problem]:
    """The problem of a node that no GPU is seen on although its PCI bus has one.

    :param on_bus: how many NVIDIA GPUs are on the bus. :param smi: whether the node has nvidia-smi.
    """
    if not on_bus:
        return []
    what = f"{on_bus} NVIDIA GPU{'s are' if on_bus > 1 else ' is'} on the PCI bus"
    if not smi:
        return [_problem("driver_missing", f"{what}, and the node has no nvidia-smi.", "Install NVIDIA's driver on the node.")]
    remedy = "Look for 'NVRM' in the kernel's log; a driver that is older than the GPU says so there."
    return [_problem("gpu_not_found", f"{what}, and the driver finds none.", remedy)]


def of_gpus(gpus: t.Sequence[Gpu], answer: str) -> t.List[Problem]:
    """What is wrong with single GPUs.

    :param answer: the answer that they were read from: some of its cells say what is wrong and become None in a Gpu.
    """
    found = []
    for gpu in gpus:
        what = f"GPU {gpu.index} ({gpu.name})"
        line = next((line for line in answer.splitlines() if gpu.uuid in line), "").lower()
        if "[gpu requires reset]" in line or gpu.recovery:
            remedy = f"Stop what runs on it, then 'nvidia-smi --gpu-reset -i {gpu.index}', or reboot the node."
            found.append(_problem("gpu_requires_reset", f"{what} works no more until it is reset.", remedy))
        elif gpu.mig and gpu.mig_devices is None:
            message = f"{what} is split into instances (MIG) that nvidia-smi did not list: the numbers are those of the whole card."
            found.append(_problem("mig_unknown", message, "Gather these facts with become: true, or look at 'nvidia-smi -L'."))
        elif gpu.mig and not gpu.mig_devices:
            message = f"{what} is in MIG mode and has no instance, so no program can use it."
            remedy = f"Make one with 'nvidia-smi mig -i {gpu.index} -cgi PROFILE -C', or leave the mode with 'nvidia-smi -i {gpu.index} -mig 0'."
            found.append(_problem("mig_empty", message, remedy))
        elif "[insufficient permissions]" in line and gpu.total_bytes is None:
            found.append(_problem("permission", f"{what} does not tell this user how much memory it has.", "Gather these facts with become: true."))
        elif gpu.total_bytes is None and not gpu.integrated:
            message = f"{what} does not say how much memory it has, so it counts as none."
            found.append(_problem("gpu_memory_unknown", message, "Look at nvidia-smi on the node, and reboot it if the GPU is in error."))
    own = [gpu for gpu in gpus if not gpu.integrated]
    if own and len(own) < len(gpus):
        message = f"One GPU uses the node's memory, and {len(own)} beside it ({own[0].name}) the GPU's own, which is in no sum here."
        found.append(_problem("mixed_memory", message, "Plan for the GPU that serves: the memory of each is in the list of GPUs."))
    return found


def of_node(picture: t.Mapping[str, t.Any], shared: bool, kernel: t.Mapping[str, str], large: t.Optional[t.Tuple[int, int]]) -> t.List[Problem]:
    """What is wrong with the node's own memory.

    :param picture: bytes, from M(_memory.memory_picture) and M(_memory_pages.pages). :param shared: a GPU uses the node's memory.
    :param kernel: C(release), C(cmdline) and C(overcommit) (of vm.overcommit_memory) as the kernel writes them, empty where it does not.
    :param large: see M(_memory_pages.large_free_bytes).
    """
    found = []
    total, free, cache = picture["total_bytes"], picture["free_bytes"], picture["page_cache_bytes"]
    cma, cma_free = picture.get("cma_total_bytes"), picture.get("cma_free_bytes")
    if cma is not None and cma_free is not None and cma_free > cma:
        message = (
            f"The kernel {kernel['release']} says that {gib(cma_free)} of {gib(cma)} CMA are free: it lends out what it keeps for a restart by kexec"
            " (KHO), and when memory is short RDMA can't register any (ibv_reg_mr fails with ENOMEM)."
        )
        remedy = "Add kho=off to the kernel's command line and reboot, or boot a kernel before 7.0."
        if "kho=off" in kernel["cmdline"].split():
            remedy = "Boot another kernel: kho=off is on the command line of this one and does not help."
        found.append(_problem("cma_overcounted", message, remedy))
    if shared and picture["huge_page_bytes"] >= _HUGE_PAGES:
        message = f"{gib(picture['huge_page_bytes'])} are set aside for huge pages, which neither CUDA nor the page cache gets."
        remedy = "Give them back with 'sysctl vm.nr_hugepages=0', and take that setting out of /etc/sysctl.d, unless a program needs them."
        found.append(_problem("huge_pages", message, remedy))
    if shared and cache > _CACHE * total and picture["available_bytes"] - free > _CACHE * total:
        message = f"CUDA calls {gib(free)} free where {gib(picture['available_bytes'])} can be had: {gib(cache)} of page cache count as used for it."
        found.append(_problem("page_cache", message, "Before a launch, give it back: 'sync', then 'sysctl vm.drop_caches=3'."))
    if shared and large and free >= _FREE and large[0] < _IN_LARGE * free:
        message = (
            f"Of {gib(free)} of free memory {gib(large[0])} are in pieces of {large[1] >> 20} MiB: large buffers of the driver are slow to get or refused."
        )
        remedy = "Put it together with 'sysctl vm.drop_caches=3 vm.compact_memory=1'; if that does not help, reboot the node."
        found.append(_problem("fragmented", message, remedy))
    swapped = picture["swap_total_bytes"] - picture["swap_free_bytes"]
    if swapped >= _SWAP:
        message = f"{gib(swapped)} of the node's memory are swapped out."
        remedy = "Stop what holds the memory, or give the model less: an engine that is swapped out stands still."
        found.append(_problem("swap_in_use", message, remedy))
    if kernel["overcommit"].strip() == "2":
        message = "The kernel promises no more memory than it has (vm.overcommit_memory is 2): CUDA, which asks for many addresses, fails while memory is free."
        found.append(_problem("overcommit_strict", message, "Set it with 'sysctl vm.overcommit_memory=0', and in /etc/sysctl.d."))
    return found


def gib(size: int) -> str:
    """Bytes for people."""
    return f"{size / (1 << 30):.1f} GiB"


def _problem(code: str, message: str, remedy: str) -> Problem:
    return {"code": code, "message": message, "remedy": remedy}
