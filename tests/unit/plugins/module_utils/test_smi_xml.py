# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The long answers of nvidia-smi, as real drivers give them, whole, cut off and garbled."""

from __future__ import annotations

import random
import typing as t

import pytest

from ansible_collections.sparkstack.inference.plugins.module_utils import _smi_xml
from ansible_collections.sparkstack.inference.plugins.module_utils._memory import (
    GPU_FIELDS,
    MIB,
    PROCESS_FIELDS,
    Gpu,
    GpuProcess,
    MigDevice,
    memory_picture,
    parse_gpus,
    parse_meminfo,
    parse_processes,
)
from ansible_collections.sparkstack.inference.plugins.module_utils._memory_problems import of_gpus

GPU = "GPU-00000000-0000-4000-8000-00000000000{}"

# nvidia-smi 580.159.04 -q -x on an H200 with three processes, by what is read of it: titles as the programs had set them.
H200 = """<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v13.dtd">
<nvidia_smi_log>
	<driver_version>580.159.04</driver_version>
	<attached_gpus>1</attached_gpus>
	<gpu id="00000000:00:06.0">
		<product_name>NVIDIA H200</product_name>
		<addressing_mode>None</addressing_mode>
		<mig_mode>
			<current_mig>Disabled</current_mig>
			<pending_mig>Disabled</pending_mig>
		</mig_mode>
		<mig_devices>
			None
		</mig_devices>
		<uuid>GPU-00000000-0000-4000-8000-000000000000</uuid>
		<gpu_recovery_action>None</gpu_recovery_action>
		<fb_memory_usage>
			<total>143771 MiB</total>
			<reserved>616 MiB</reserved>
			<used>26150 MiB</used>
			<free>117006 MiB</free>
		</fb_memory_usage>
		<processes>
			<process_info>
				<gpu_instance_id>N/A</gpu_instance_id>
				<compute_instance_id>N/A</compute_instance_id>
				<pid>432</pid>
				<type>C</type>
				<process_name>a&lt;b&amp;c, d&quot;e</process_name>
				<used_memory>3590 MiB</used_memory>
			</process_info>
			<process_info>
				<gpu_instance_id>N/A</gpu_instance_id>
				<compute_instance_id>N/A</compute_instance_id>
				<pid>431</pid>
				<type>C</type>
				<process_name>python3</process_name>
				<used_memory>20998 MiB</used_memory>
			</process_info>
		</processes>
		<accounted_processes>
		</accounted_processes>
	</gpu>

</nvidia_smi_log>
"""

# Driver 535.54.03: an A100 in MIG mode without a process. Here the GPU's own numbers come after its slices'.
A100 = """<nvidia_smi_log>
    <gpu id="00000000:01:00.0">
        <product_name>NVIDIA A100-SXM4-80GB</product_name>
        <addressing_mode>None</addressing_mode>
        <mig_mode>
            <current_mig>Enabled</current_mig>
            <pending_mig>Enabled</pending_mig>
        </mig_mode>
        <mig_devices>
            <mig_device>
                <index>0</index>
                <gpu_instance_id>3</gpu_instance_id>
                <compute_instance_id>0</compute_instance_id>
                <device_attributes>
                    <shared>
                        <multiprocessor_count>14</multiprocessor_count>
                    </shared>
                </device_attributes>
                <fb_memory_usage>
                    <total>19968 MiB</total>
                    <reserved>0 MiB</reserved>
                    <used>12 MiB</used>
                    <free>19955 MiB</free>
                </fb_memory_usage>
                <bar1_memory_usage>
                    <total>32767 MiB</total>
                    <used>0 MiB</used>
                    <free>32767 MiB</free>
                </bar1_memory_usage>
            </mig_device>
            <mig_device>
                <index>1</index>
                <gpu_instance_id>4</gpu_instance_id>
                <compute_instance_id>0</compute_instance_id>
                <fb_memory_usage>
                    <total>19968 MiB</total>
                    <reserved>0 MiB</reserved>
                    <used>12 MiB</used>
                    <free>19955 MiB</free>
                </fb_memory_usage>
            </mig_device>
        </mig_devices>
        <uuid>GPU-00000000-0000-4000-8000-000000000001</uuid>
        <gpu_reset_status>
            <reset_required>No</reset_required>
            <drain_and_reset_recommended>No</drain_and_reset_recommended>
        </gpu_reset_status>
        <fb_memory_usage>
            <total>81920 MiB</total>
            <reserved>869 MiB</reserved>
            <used>50 MiB</used>
            <free>80999 MiB</free>
        </fb_memory_usage>
        <processes />
        <accounted_processes />
    </gpu>
</nvidia_smi_log>
"""
LIST = (
    "GPU 0: NVIDIA H200 (UUID: GPU-00000000-0000-4000-8000-000000000000)\n"
    "GPU 1: NVIDIA A100-SXM4-80GB (UUID: GPU-00000000-0000-4000-8000-000000000001)\n"
    "  MIG 2g.20gb     Device  0: (UUID: MIG-00000000-0000-0000-0000-000000000000)\n"
    "  MIG 1c.2g.20gb  Device  1: (UUID: MIG-GPU-00000000-0000-4000-8000-000000000001/4/0)\n"
)
CSV = "0, GPU-00000000-0000-4000-8000-000000000001, 535.54.03, 81920, 50, 80999, [N/A], 67.03, Enabled, NVIDIA A100-SXM4-80GB\n"


def slice_(index: int, gpu_instance: int) -> MigDevice:
    return MigDevice(index, gpu_instance, 0, 19968 * MIB, 12 * MIB, 19955 * MIB)


def test_processes_of_an_h200() -> None:
    details = _smi_xml.parse_details(H200)
    assert details == {
        GPU.format(0): _smi_xml.Details(
            addressing="None",
            mig=False,
            mig_devices=(),
            processes=(
                GpuProcess(GPU.format(0), 431, 20998 * MIB, "python3", "C"),
                # A comma is kept here; the short answer writes '?' for it.
                GpuProcess(GPU.format(0), 432, 3590 * MIB, 'a<b&c, d"e', "C"),
            ),
            recovery=None,
            whole=True,
        )
    }


def test_slices_of_an_a100_and_their_names() -> None:
    details = _smi_xml.parse_details(A100)
    found = details[GPU.format(1)]
    assert (found.mig, found.mig_devices, found.processes, found.whole) == (True, (slice_(0, 3), slice_(1, 4)), (), True)
    (gpu,) = _smi_xml.refine(parse_gpus(CSV)[0], details, _smi_xml.parse_list(LIST))
    assert gpu.mig_devices is not None
    assert [(device.profile, device.uuid) for device in gpu.mig_devices] == [
        ("2g.20gb", "MIG-00000000-0000-0000-0000-000000000000"),
        ("1c.2g.20gb", "MIG-GPU-00000000-0000-4000-8000-000000000001/4/0"),
    ]
    picture = memory_picture({}, [gpu])
    assert (picture["total_bytes"], picture["free_bytes"]) == (2 * 19968 * MIB, 2 * 19955 * MIB)


def test_two_gpus_in_one_answer() -> None:
    both = H200.replace("</nvidia_smi_log>\n", A100.split("\n", 1)[1])
    assert _smi_xml.parse_details(both) == {**_smi_xml.parse_details(H200), **_smi_xml.parse_details(A100)}


@pytest.mark.parametrize(
    ("cut", "pids", "whole"),
    [("</gpu>", [431, 432], False), ("<pid>431", [432], False), ("<process_name>a", [], False), ("<uuid>", None, None), ("<gpu id", None, None)],
)
def test_an_answer_that_was_cut_off(cut: str, pids: list[int] | None, whole: bool | None) -> None:
    found = _smi_xml.parse_details(H200[: H200.index(cut)]).get(GPU.format(0))
    assert (found and [process.pid for process in found.processes], found and found.whole) == (pids, whole)


def test_slices_of_a_cut_answer_are_not_taken_for_all() -> None:
    details = _smi_xml.parse_details(A100[: A100.index("<processes />")])
    (gpu,) = _smi_xml.refine(parse_gpus(CSV)[0], details, {})
    assert gpu.mig_devices is None
    assert [problem["code"] for problem in of_gpus([gpu], CSV)] == ["mig_unknown"]


@pytest.mark.parametrize(
    ("kinds", "sizes", "expected"),
    [
        (["C"], [5], ("C", 5)),
        (["C", "G"], [20434, 20434], ("C+G", 20434)),
        (["G", "C"], [None, 7], ("C+G", 7)),
        (["C+G", "C"], [25, 25], ("C+G", 25)),
        ([None, "C"], [3, None], ("C", 3)),
        ([None, None], [None, None], (None, None)),
    ],
)
def test_one_process_that_stands_there_twice(kinds: list[str | None], sizes: list[int | None], expected: tuple[str | None, int | None]) -> None:
    (only,) = _smi_xml.merge(GpuProcess("GPU-a", 100, size, "python", kind) for kind, size in zip(kinds, sizes, strict=True))
    assert (only.kind, only.used_bytes) == expected


def test_a_process_on_two_slices_stands_there_twice() -> None:
    entry = (
        "<process_info><gpu_instance_id>{}</gpu_instance_id><compute_instance_id>0</compute_instance_id><pid>21180</pid><type>C</type>"
        "<process_name>/root/tools/memhog</process_name><used_memory>{} MiB</used_memory></process_info>"
    )
    text = A100.replace("<processes />", f"<processes>{entry.format(3, 2296)}{entry.format(4, 1272)}</processes>")
    processes = _smi_xml.parse_details(text)[GPU.format(1)].processes
    assert [(process.gpu_instance, (process.used_bytes or 0) // MIB) for process in processes] == [(3, 2296), (4, 1272)]


@pytest.mark.parametrize(
    ("name", "addressing", "memory", "unified"),
    [
        ("NVIDIA GB10", "ATS", "shared", True),
        ("NVIDIA GH200 480GB", "ATS", "coherent", True),
        ("NVIDIA GB200", "None", "coherent", True),
        # Of a chip that is not known by name, this tells.
        ("NVIDIA XY400", "ATS", "coherent", True),
        ("NVIDIA RTX PRO 6000", "HMM", "own", False),
        ("NVIDIA H200", "N/A", "own", False),
    ],
)
def test_whether_cpu_and_gpu_share_addresses(name: str, addressing: str, memory: str, unified: bool) -> None:
    total = "[N/A]" if "GB10" in name else "97871"
    gpus, _rest = parse_gpus(f"0, {GPU.format(0)}, 580.1, {total}, [N/A], 97280, 0, 79.02, Disabled, {name}\n")
    details = _smi_xml.parse_details(H200.replace("<addressing_mode>None", f"<addressing_mode>{addressing}"))
    (gpu,) = _smi_xml.refine(gpus, details, {})
    assert (gpu.fact()["memory"], memory_picture({"MemTotal": 1}, [gpu])["unified"]) == (memory, unified)


@pytest.mark.parametrize(
    ("element", "recovery"),
    [
        ("<gpu_recovery_action>None</gpu_recovery_action>", None),
        ("<gpu_recovery_action>Reset</gpu_recovery_action>", "Reset"),
        ("<gpu_recovery_action>Reboot</gpu_recovery_action>", "Reboot"),
        ("<gpu_recovery_action>Drain P2P</gpu_recovery_action>", None),
        ("<reset_required>Yes</reset_required>", "Reset"),
        ("<reset_required>No</reset_required>", None),
        ("<reset_required>Requested functionality has been deprecated</reset_required>", None),
        ("", None),
    ],
)
def test_a_gpu_that_needs_a_reset(element: str, recovery: str | None) -> None:
    details = _smi_xml.parse_details(H200.replace("<gpu_recovery_action>None</gpu_recovery_action>", element))
    (gpu,) = _smi_xml.refine([Gpu(0, GPU.format(0), "NVIDIA H200", None, 1, 1, 1, None, None, False, False, False)], details, {})
    assert gpu.recovery == recovery
    assert [problem["code"] for problem in of_gpus([gpu], "")] == (["gpu_requires_reset"] if recovery else [])


@pytest.mark.parametrize("text", ["", "GPU 0: ", "  MIG 1g.10gb     Device  0: (UUID: MIG-1)\n", "Failed to initialize NVML: Unknown Error\n"])
def test_a_list_of_nothing(text: str) -> None:
    assert _smi_xml.parse_list(text) == {}


def spoil(text: str, chance: random.Random) -> str:
    """A text with a piece cut out, doubled, replaced or moved, some times over."""
    noise = ["\x00", "\n", ",", "[N/A]", "²", "9" * 400, "<", "</gpu>", "<gpu id=", "&#xFFFFFFFF;", "\ud800", "-1", "nan", "1e999", "é", "<uuid>", "0x10"]
    for _round in range(chance.randint(1, 6)):
        start = chance.randrange(len(text) + 1)
        end = min(len(text), start + chance.choice([0, 1, 5, 40, 4000]))
        middle = chance.choice(["", text[start:end] * 2, chance.choice(noise), text[end : end + 30]])
        text = text[:start] + middle + text[end:]
    return text


MEMINFO = "MemTotal:       127600748 kB\nMemFree:        43515904 kB\nHugePages_Total:       3\nHugepagesize:       2048 kB\n"
APPS = f"{GPU.format(0)}, 1832, 132894, sglang::scheduler_TP0\n{GPU.format(1)}, 77, [N/A], [Not Found]\n"


@pytest.mark.parametrize("seed", range(20))
def test_garbled_answers_never_raise(seed: int) -> None:
    """Whatever arrives, every answer is read to something that makes sense: sizes that are none or some bytes, and process ids."""
    chance = random.Random(seed)
    for _round in range(20):
        gpus, rest = parse_gpus(spoil(CSV * 2, chance), chance.choice([GPU_FIELDS, GPU_FIELDS[:4]]))
        details = _smi_xml.parse_details(spoil(H200 + A100, chance))
        refined = _smi_xml.refine(gpus, details, _smi_xml.parse_list(spoil(LIST, chance)))
        processes, _rest = parse_processes(spoil(APPS, chance), PROCESS_FIELDS)
        merged = _smi_xml.merge([process for one in details.values() for process in one.processes] + processes)
        picture = memory_picture(parse_meminfo(spoil(MEMINFO, chance)), refined)
        sizes: list[t.Any] = [value for key, value in picture.items() if key != "unified"] + [process.used_bytes for process in merged]
        assert all(size is None or (isinstance(size, int) and size >= 0) for size in sizes)
        assert all(0 <= process.pid < 10**10 for process in merged)
        assert len(refined) == len(gpus) and all(isinstance(problem["remedy"], str) for problem in of_gpus(refined, "\n".join(rest)))
