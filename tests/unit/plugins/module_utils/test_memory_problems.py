# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Pages that are set aside or in pieces, and what is wrong with a node's memory, by the numbers that users report."""

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.sparkstack.inference.plugins.module_utils import _memory_pages, _memory_problems
from ansible_collections.sparkstack.inference.plugins.module_utils._memory import Gpu, memory_picture, parse_gpus, parse_meminfo

GIB = 1 << 30
GB10 = parse_gpus("0, GPU-a, 580.95.05, [N/A], [N/A], [N/A], 0, 4.70, [N/A], NVIDIA GB10\n")[0]
H200 = parse_gpus("0, GPU-a, 580.159.04, 143771, 133428, 9728, 0, 118.53, Disabled, NVIDIA H200\n")[0]
# A DGX Spark that is idle.
IDLE = {"MemTotal": 127600748, "MemFree": 120000000, "MemAvailable": 121634816, "Buffers": 204800, "Cached": 2643200, "Shmem": 102400}
KERNEL = {"release": "6.17.0-1032-nvidia", "cmdline": "root=UUID=1 ro", "overcommit": "0\n"}


def codes(gpus: t.Sequence[Gpu] = GB10, large: tuple[int, int] | None = None, kernel: dict[str, str] | None = None, **kilobytes: int) -> list[str]:
    meminfo = parse_meminfo("".join(f"{key}: {value}{'' if key.startswith('HugePages_') else ' kB'}\n" for key, value in {**IDLE, **kilobytes}.items()))
    picture = {**memory_picture(meminfo, gpus), **_memory_pages.pages(meminfo)}
    shared = any(gpu.integrated for gpu in gpus)
    return [problem["code"] for problem in _memory_problems.of_node(picture, shared, {**KERNEL, **(kernel or {})}, large)]


@pytest.mark.parametrize(
    ("kilobytes", "gpus", "expected"),
    [
        ({}, GB10, []),
        # After a copy of 119 GB: cudaMemGetInfo says 41.5 GiB where MemAvailable has not changed.
        ({"MemFree": 43515904, "Cached": 78643200}, GB10, ["page_cache"]),
        ({"MemFree": 43515904, "Cached": 78643200}, H200, []),
        ({"MemFree": 43515904, "Cached": 78643200}, [], []),
        # Shared memory stands in Cached too, and no dropping gives it back.
        ({"MemFree": 43515904, "MemAvailable": 44000000, "Cached": 78643200, "Shmem": 78000000}, GB10, []),
        ({"HugePages_Total": 8192, "HugePages_Free": 8192, "Hugepagesize": 2048, "Hugetlb": 16777216}, GB10, ["huge_pages"]),
        ({"HugePages_Total": 8192, "HugePages_Free": 8192, "Hugepagesize": 2048}, GB10, ["huge_pages"]),
        ({"HugePages_Total": 100, "HugePages_Free": 100, "Hugepagesize": 2048}, GB10, []),
        ({"HugePages_Total": 8192, "HugePages_Free": 8192, "Hugepagesize": 2048}, H200, []),
        # Two GB10 under Linux 7.0.0: CmaTotal is what cma= says, CmaFree counts what KHO lends out.
        ({"CmaTotal": 32768, "CmaFree": 9751756}, GB10, ["cma_overcounted"]),
        ({"CmaTotal": 0, "CmaFree": 10171187}, H200, ["cma_overcounted"]),
        ({"CmaTotal": 131072, "CmaFree": 131072}, GB10, []),
        ({"CmaTotal": 0, "CmaFree": 0}, GB10, []),
        ({"SwapTotal": 16777212, "SwapFree": 16000000}, GB10, []),
        ({"SwapTotal": 16777212, "SwapFree": 3000000}, GB10, ["swap_in_use"]),
    ],
)
def test_memory(kilobytes: dict[str, int], gpus: t.Sequence[Gpu], expected: list[str]) -> None:
    assert codes(gpus, None, None, **kilobytes) == expected


@pytest.mark.parametrize(
    ("large", "free", "gpus", "expected"),
    [
        # Seven days of serving: 118 GiB to be had, 27 pieces of 16 MiB and none of 32.
        ((27 << 24, 1 << 24), 120000000, GB10, ["fragmented"]),
        # The same after a reboot: 1417 and 782.
        (((1417 << 24) + (782 << 25), 1 << 24), 120000000, GB10, []),
        ((0, 1 << 24), 138000, GB10, []),
        ((27 << 24, 1 << 24), 120000000, H200, []),
        (None, 120000000, GB10, []),
    ],
    ids=["served for days", "rebooted", "full", "a GPU with its own", "not told"],
)
def test_memory_in_pieces(large: tuple[int, int] | None, free: int, gpus: t.Sequence[Gpu], expected: list[str]) -> None:
    assert codes(gpus, large, MemFree=free, MemAvailable=free, Cached=0, Buffers=0, Shmem=0) == expected


def test_what_a_kernel_with_an_error_is_told_about() -> None:
    picture: dict[str, t.Any] = {**memory_picture({}, GB10), **_memory_pages.pages({"CmaTotal": 32 << 20, "CmaFree": 9523 << 20})}
    (problem,) = _memory_problems.of_node(picture, True, KERNEL, None)
    assert "kernel 6.17.0-1032-nvidia says that 9.3 GiB of 0.0 GiB CMA are free" in problem["message"]
    assert problem["remedy"].startswith("Add kho=off to the kernel's command line")
    (problem,) = _memory_problems.of_node(picture, True, {**KERNEL, "cmdline": "root=UUID=1 kho=off ro"}, None)
    assert problem["remedy"].startswith("Boot another kernel: kho=off is on the command line")


@pytest.mark.parametrize(("setting", "expected"), [("2\n", ["overcommit_strict"]), ("1\n", []), ("0\n", []), ("", [])])
def test_overcommit(setting: str, expected: list[str]) -> None:
    assert codes(kernel={"overcommit": setting}) == expected


def test_pages() -> None:
    text = "Shmem: 9096 kB\nHugePages_Total: 512\nHugePages_Free: 300\nHugePages_Rsvd: 100\nHugepagesize: 2048 kB\nHugetlb: 3145728 kB\nCmaTotal: 65536 kB\n"
    assert _memory_pages.pages(parse_meminfo(text)) == {
        "shared_memory_bytes": 9096 << 10,
        # 1 GiB in pages of 2 MiB, and two of 1 GiB.
        "huge_page_bytes": 3 * GIB,
        "huge_page_free_bytes": 200 << 21,
        "cma_total_bytes": 64 << 20,
        "cma_free_bytes": None,
    }
    assert set(_memory_pages.pages({}).values()) == {0, None}


# /proc/buddyinfo of a GB10 has 14 columns for pages of 4 KiB: the last two are pieces of 16 and 32 MiB.
SPARK = (
    "Node 0, zone      DMA      1      0      0      0      0      0      0      0      1      1      1      0      0      2 \n"
    "Node 0, zone   Normal  90000  40000   9000   3000   1000    500    200    100     80     49     30     30     27      0 \n"
)
SMALL = "Node 0, zone      DMA      0      0      0      0      0      0      0      0      0      1      3 \nNode 1, zone   Normal 3 2 1 0 0 0 0 0 0 0 7\n"


@pytest.mark.parametrize(
    ("text", "page", "expected"),
    [
        (SPARK, 4096, ((2 << 25) + (27 << 24), 1 << 24)),
        # Kernels whose largest piece is 4 MiB.
        (SMALL, 4096, (10 << 22, 4 << 20)),
        (SMALL, 65536, (10 * (64 << 20) + (1 << 25), 1 << 24)),
        ("", 4096, None),
        ("Node 0, zone   Normal\n", 4096, None),
        ("Node 0, zone   Normal 1 x 3\n", 4096, None),
    ],
)
def test_large_pieces(text: str, page: int, expected: tuple[int, int] | None) -> None:
    assert _memory_pages.large_free_bytes(text, page) == expected


@pytest.mark.parametrize(
    ("text", "version"),
    [
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.95.05  Release Build  (dvs-builder@U22)  Tue Sep 23\nGCC version: gcc 13\n",
            "580.95.05",
        ),
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.90.07  Fri May 31 09:35:42 UTC 2024\n", "550.90.07"),
        ("", None),
    ],
)
def test_the_loaded_driver(text: str, version: str | None) -> None:
    assert _memory_problems.loaded_version(text) == version


def test_a_mismatch_names_the_loaded_driver() -> None:
    said = "/usr/bin/nvidia-smi --query-gpu failed with exit code 18: Failed to initialize NVML: Driver/library version mismatch"
    problem = _memory_problems.of_driver(said, "550.90.07")
    assert (problem["code"], problem["message"]) == ("driver_mismatch", said)
    assert "while the old one (550.90.07) stayed loaded" in problem["remedy"]
    assert "while the old one stayed loaded" in _memory_problems.of_driver(said)["remedy"]


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("0, GPU-a, 580.1, [GPU requires reset], [GPU requires reset], 1, 0, 1, Disabled, NVIDIA H200", ["gpu_requires_reset"]),
        ("0, GPU-a, 580.1, [Unknown Error], [Unknown Error], [Unknown Error], 0, 1, Disabled, NVIDIA H200", ["gpu_memory_unknown"]),
        ("0, GPU-a, 580.1, [Insufficient Permissions], 1, 1, 0, 1, Disabled, NVIDIA H200", ["permission"]),
        ("0, GPU-a, 580.1, 143771, 55, 143100, [N/A], 78, Enabled, NVIDIA H200", ["mig_unknown"]),
        ("0, GPU-a, 580.1, 143771, 55, 143100, 0, 78, Disabled, NVIDIA H200", []),
        ("0, GPU-a, 580.1, [N/A], [N/A], [N/A], 0, 78, [N/A], NVIDIA GB10", []),
        ("0, GPU-a, 580.1, [N/A], 1, 1, 0, 1, [N/A], NVIDIA GB10\n1, GPU-b, 580.1, 97887, 4, 97200, 0, 12, Disabled, NVIDIA RTX PRO 6000", ["mixed_memory"]),
    ],
)
def test_single_gpus(line: str, code: list[str]) -> None:
    gpus, rest = parse_gpus(line)
    assert rest == []
    assert [problem["code"] for problem in _memory_problems.of_gpus(gpus, line)] == code


def test_mig_mode_without_a_slice() -> None:
    gpu = Gpu(1, "GPU-a", "NVIDIA H200", None, GIB, 0, GIB, None, None, False, False, True, mig_devices=())
    (problem,) = _memory_problems.of_gpus([gpu], "")
    assert (problem["code"], "nvidia-smi mig -i 1 -cgi PROFILE -C" in problem["remedy"]) == ("mig_empty", True)


def test_no_gpu() -> None:
    assert _memory_problems.of_no_gpu(0, False) == []
    assert [problem["code"] for problem in _memory_problems.of_no_gpu(1, False)] == ["driver_missing"]
    assert _memory_problems.of_no_gpu(2, True)[0]["message"] == "2 NVIDIA GPUs are on the PCI bus, and the driver finds none."
