# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The memory picture against what nvidia-smi and the kernel really write."""

from __future__ import annotations

import dataclasses

import pytest

from ansible_collections.sparkstack.inference.plugins.module_utils._memory import (
    GPU_FIELDS,
    MIB,
    Gpu,
    MigDevice,
    container_ids,
    invalid_field,
    memory_picture,
    no_gpu,
    page_cache_bytes,
    parse_gpus,
    parse_meminfo,
    parse_processes,
)

ID = "4f1c2d0e5b8a7963" * 4
INNER = "0a9b8c7d6e5f4031" * 4
UUID = "GPU-00000000-0000-4000-8000-00000000000{}"

# nvidia-smi 580.159.04 on two H200s with an engine on both, in the columns of GPU_FIELDS.
H200 = (
    "0, GPU-00000000-0000-4000-8000-000000000000, 580.159.04, 143771, 133428, 9728, 0, 118.53, Disabled, NVIDIA H200\n"
    "1, GPU-00000000-0000-4000-8000-000000000001, 580.159.04, 143771, 133428, 9728, 0, 117.91, Disabled, NVIDIA H200\n"
)
GB10 = "0, GPU-00000000-0000-4000-8000-000000000000, 580.95.05, [N/A], [N/A], [N/A], 96, 20.11, [N/A], NVIDIA GB10\n"
# A GH200 states its own memory, and the kernel counts it in MemTotal as well.
GH200 = "0, GPU-00000000-0000-4000-8000-000000000000, 570.86.15, 97871, 1, 97280, 0, 79.02, Disabled, NVIDIA GH200 480GB\n"

# A DGX Spark (MemTotal as peers report it) after 60 GB of files were copied to it.
SPARK_MEMINFO = """\
MemTotal:       127600748 kB
MemFree:        43515904 kB
MemAvailable:   121634816 kB
Buffers:          204800 kB
Cached:         78643200 kB
SwapCached:            0 kB
Shmem:            102400 kB
SwapTotal:      16777212 kB
SwapFree:       16777212 kB
HugePages_Total:       3
Active(anon):      11132 kB
CmaTotal:         131072 kB
"""


def test_discrete_gpus() -> None:
    gpus, rest = parse_gpus(H200)
    assert rest == []
    assert [gpu.fact() for gpu in gpus][1] == {
        "index": 1,
        "uuid": UUID.format(1),
        "name": "NVIDIA H200",
        "driver_version": "580.159.04",
        "total_bytes": 143771 * MIB,
        "used_bytes": 133428 * MIB,
        "free_bytes": 9728 * MIB,
        "utilization_percent": 0,
        "power_watts": 117.91,
        "memory": "own",
        "mig_devices": None,
    }
    picture = memory_picture(parse_meminfo(SPARK_MEMINFO), gpus)
    assert picture["unified"] is False
    assert picture["total_bytes"] == 2 * 143771 * MIB
    # memory.free, not total - used: the driver reserves 615 MiB on each card.
    assert picture["free_bytes"] == picture["available_bytes"] == 2 * 9728 * MIB
    assert picture["page_cache_bytes"] == (78643200 + 204800 - 102400) * 1024


def test_gb10_takes_the_machines_memory() -> None:
    gpus, rest = parse_gpus(GB10)
    assert rest == []
    assert gpus[0].fact()["total_bytes"] is None
    assert gpus[0].fact()["used_bytes"] is None
    assert gpus[0].fact()["memory"] == "shared"
    assert gpus[0].utilization_percent == 96
    assert memory_picture(parse_meminfo(SPARK_MEMINFO), gpus) == {
        "unified": True,
        "total_bytes": 127600748 * 1024,
        "free_bytes": 43515904 * 1024,
        "available_bytes": 121634816 * 1024,
        "page_cache_bytes": 78745600 * 1024,
        "swap_total_bytes": 16777212 * 1024,
        "swap_free_bytes": 16777212 * 1024,
    }


@pytest.mark.parametrize(
    ("line", "integrated"),
    [
        (GB10, True),
        (GB10.replace("[N/A]", "[Not Supported]"), True),
        (GB10.replace("[N/A]", "Not Supported"), True),
        (GB10.replace("GB10", "Something New"), True),
        (GB10.replace("[N/A]", "122880"), True),
        (GB10.replace("GB10", "H200").replace("[N/A]", "[Unknown Error]"), False),
        (GB10.replace("GB10", "H200").replace("[N/A]", "[Insufficient Permissions]"), False),
        (GB10.replace("GB10", "H200").replace("[N/A]", "[GPU requires reset]"), False),
        (GH200, False),
        # NVIDIA's boards of the Jetson family answer for hardly any field.
        (GB10.replace("NVIDIA GB10", "NVIDIA Thor"), True),
        (GB10.replace("NVIDIA GB10", "Orin (nvgpu)").replace("96, 20.11", "[N/A], [N/A]"), True),
        # What an N1X states is what its firmware set aside.
        (GB10.replace("NVIDIA GB10", "NVIDIA RTX Spark N1X").replace("[N/A], [N/A], [N/A]", "8128, 199, 7929"), True),
    ],
    ids=["N/A", "bracketed", "bare", "unknown name", "states a number", "error", "permissions", "reset", "GH200", "Thor", "Orin", "N1X"],
)
def test_whose_memory(line: str, integrated: bool) -> None:
    gpus, rest = parse_gpus(line)
    assert (rest, gpus[0].integrated) == ([], integrated)
    picture = memory_picture(parse_meminfo(SPARK_MEMINFO), gpus)
    assert (picture["total_bytes"] == 127600748 * 1024) is integrated


def test_gh200_is_unified_with_memory_of_its_own() -> None:
    gpus = parse_gpus(GH200)[0]
    assert gpus[0].fact()["memory"] == "coherent"
    picture = memory_picture(parse_meminfo(SPARK_MEMINFO), gpus)
    assert (picture["unified"], picture["total_bytes"], picture["free_bytes"]) == (True, 97871 * MIB, 97280 * MIB)


def test_a_card_that_needs_a_reset_adds_nothing() -> None:
    broken = "1, GPU-b, 580.159.04, [Unknown Error], [Unknown Error], [Unknown Error], ERR!, [Unknown Error], [N/A], NVIDIA H200"
    gpus, rest = parse_gpus(H200.splitlines()[0] + "\n" + broken)
    assert rest == []
    assert (gpus[1].utilization_percent, gpus[1].power_watts) == (None, None)
    picture = memory_picture({"MemTotal": 1}, gpus)
    assert (picture["total_bytes"], picture["free_bytes"]) == (143771 * MIB, 9728 * MIB)


def test_one_of_two_cards_answers_nothing() -> None:
    """Its neighbour shows that '[N/A]' does not mean the machine's memory here."""
    mute = "1, GPU-b, 580.159.04, [N/A], [N/A], [N/A], 0, 118.53, Disabled, NVIDIA H200"
    gpus, rest = parse_gpus(H200.splitlines()[0] + "\n" + mute)
    assert (rest, [gpu.integrated for gpu in gpus]) == ([], [False, False])
    picture = memory_picture(parse_meminfo(SPARK_MEMINFO), gpus)
    assert (picture["unified"], picture["total_bytes"], picture["free_bytes"]) == (False, 143771 * MIB, 9728 * MIB)


def test_a_card_beside_a_gb10() -> None:
    gpus, _rest = parse_gpus(GB10 + "1, GPU-b, 580.95.05, 97887, 4, 97200, 0, 12.0, Disabled, NVIDIA RTX PRO 6000 Blackwell\n")
    assert [gpu.fact()["memory"] for gpu in gpus] == ["shared", "own"]
    picture = memory_picture(parse_meminfo(SPARK_MEMINFO), gpus)
    assert (picture["unified"], picture["total_bytes"]) == (True, 127600748 * 1024)


def mig(index: int, gpu_instance: int | None, total: int | None, used: int | None, free: int | None) -> MigDevice:
    total, used, free = (None if size is None else size * MIB for size in (total, used, free))
    return MigDevice(index, gpu_instance, 0, total, used, free)


@pytest.mark.parametrize(
    ("devices", "total", "free"),
    [
        (None, 143771, 143100),
        ((), 0, 0),
        # A real H200: the first two are of one instance and share its 71424 MiB.
        ((mig(0, 2, 71424, 22, 71403), mig(1, 2, 71424, 22, 71403), mig(2, 3, 33280, 17, 33264)), 71424 + 33280, 71403 + 33264),
        ((mig(0, None, 19968, 12, None), mig(1, None, 19968, 12, None)), 2 * 19968, 2 * 19956),
        ((mig(0, 2, None, None, None),), 0, 0),
    ],
    ids=["not listed", "no instance", "one shared", "nothing but sizes", "no answer"],
)
def test_the_memory_of_slices(devices: tuple[MigDevice, ...] | None, total: int, free: int) -> None:
    gpu = Gpu(0, "GPU-a", "NVIDIA H200", "590.48.01", 143771 * MIB, 55 * MIB, 143100 * MIB, None, 78.0, False, False, True, mig_devices=devices)
    picture = memory_picture({"MemTotal": 1}, [gpu])
    assert (picture["total_bytes"], picture["free_bytes"], picture["available_bytes"]) == (total * MIB, free * MIB, free * MIB)
    assert gpu.fact()["mig_devices"] == (None if devices is None else [dataclasses.asdict(device) for device in devices])


def test_mig_and_a_name_with_a_comma() -> None:
    line = "0, GPU-a, 550.54.15, 81559, 0, [N/A], [N/A], 67.2, Enabled, NVIDIA A100, 80GB"
    gpus, rest = parse_gpus(line + "\n  MIG 1g.10gb     Device  0: (UUID: MIG-0000)\n")
    assert rest == ["MIG 1g.10gb     Device  0: (UUID: MIG-0000)"]
    assert (gpus[0].mig, gpus[0].name, gpus[0].utilization_percent) == (True, "NVIDIA A100, 80GB", None)
    # memory.free is missing: what remains of the total
    assert memory_picture({}, gpus)["free_bytes"] == 81559 * MIB


@pytest.mark.parametrize(
    "text",
    [
        'Field "memory.nosuch" is not a valid field to query.\n\n',
        "ERROR: Option --nosuch is not recognized. Please run 'nvidia-smi -h'.\n\n",
        "No devices were found",
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA driver is installed and running.\n",
        "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.159\n",
        "index, uuid, driver_version, memory.total [MiB], memory.used [MiB], a, b, c, d, name\n",
        "",
        "\x00\x1b[31m,,,,,,,,,\n",
        "\u00b2, GPU-a, 580, 1, 1, 1, 1, 1, Disabled, NVIDIA H200\n",
        "0, GPU-00000000-0000-4000-8000-000000000000, 580.159.04, 1437",
    ],
)
def test_messages_are_no_gpus(text: str) -> None:
    gpus, rest = parse_gpus(text)
    assert gpus == []
    assert rest == [line.strip() for line in text.splitlines() if line.strip()]


def test_a_column_that_an_old_driver_lacks() -> None:
    fields = [field for field in GPU_FIELDS if field not in ("power.draw", "mig.mode.current")]
    gpus, rest = parse_gpus("0, GPU-a, 450.80, 16160, 10, 16150, 3, Tesla V100", fields)
    assert rest == []
    assert (gpus[0].power_watts, gpus[0].mig, gpus[0].total_bytes, gpus[0].name) == (None, False, 16160 * MIB, "Tesla V100")


def test_what_nvidia_smi_complains_about() -> None:
    assert invalid_field('Field "memory.nosuch" is not a valid field to query.\n\n') == "memory.nosuch"
    assert invalid_field(H200) is None
    assert no_gpu("No devices were found") is True
    assert no_gpu(H200) is False


def test_processes_largest_first_unknown_last() -> None:
    # The columns gpu_uuid, pid, used_gpu_memory, process_name of the H200s' real list, and two odd lines.
    text = (
        f"{UUID.format(0)}, 1235, 518, sglang::scheduler_TP0\n"
        f"{UUID.format(0)}, 1832, 132894, sglang::scheduler_TP0\n"
        f"{UUID.format(1)}, 77, [N/A], [Not Found]\n"
        f"{UUID.format(1)}, 1728, 132894 MiB, /usr/bin/python3, -m, app\n"
    )
    processes, rest = parse_processes(text)
    assert rest == []
    assert [(p.pid, p.used_bytes, p.name) for p in processes] == [
        (1728, 132894 * MIB, "/usr/bin/python3, -m, app"),
        (1832, 132894 * MIB, "sglang::scheduler_TP0"),
        (1235, 518 * MIB, "sglang::scheduler_TP0"),
        (77, None, None),
    ]
    assert processes[0].gpu_uuid == UUID.format(1)
    assert parse_processes("Insufficient Permissions\n") == ([], ["Insufficient Permissions"])


def test_meminfo() -> None:
    meminfo = parse_meminfo(SPARK_MEMINFO)
    assert meminfo["MemTotal"] == 130663165952
    assert meminfo["HugePages_Total"] == 3
    assert meminfo["Active(anon)"] == 11132 * 1024
    assert parse_meminfo("garbage") == {}
    # Everything cached is shared memory (a 32 GB /dev/shm): nothing can be dropped.
    assert page_cache_bytes({"Cached": 100, "Buffers": 0, "Shmem": 120}) == 0


def test_no_gpu_and_no_memavailable() -> None:
    picture = memory_picture({"MemTotal": 1000, "MemFree": 100, "Cached": 300, "Buffers": 50, "Shmem": 20}, [])
    assert picture["unified"] is False
    assert (picture["total_bytes"], picture["free_bytes"], picture["available_bytes"]) == (1000, 100, 430)
    assert picture["swap_total_bytes"] == 0


@pytest.mark.parametrize(
    ("cgroup", "expected"),
    [
        (f"12:pids:/docker/{ID}\n4:memory:/docker/{ID}\n1:name=systemd:/docker/{ID}\n0::/docker/{ID}\n", [ID]),
        (f"4:memory:/system.slice/docker-{ID}.scope\n", [ID]),
        (f"0::/system.slice/docker-{ID}.scope\n", [ID]),
        (f"0::/system.slice/docker-{ID}.scope/init\n", [ID]),
        (f"0::/docker/{ID}\n", [ID]),
        (f"0::/../docker-{ID}.scope\n", [ID]),
        (f"4:memory:/lab/spark1/payload/docker/{ID}\n", [ID]),
        (f"9:memory:/docker/{ID}/docker/{INNER}\n", [ID, INNER]),
        (f"0::/mygroup.slice/docker-{ID}.scope\n", [ID]),
        (f"0::/machine.slice/libpod-{ID}.scope/container\n", [ID]),
        (f"0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-{ID}.scope\n", [ID]),
        ("0::/user.slice/user-1000.slice/session-3.scope\n", []),
        ("0::/system.slice/docker.service\n", []),
        (f"0::/docker/{ID[:40]}\n", []),
        ("", []),
    ],
)
def test_container_ids(cgroup: str, expected: list[str]) -> None:
    assert container_ids(cgroup) == expected
