# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The stand-in for nvidia-smi against outputs of the real program (580.159.04, two H200; identifiers replaced, supported clocks left out)."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import subprocess
import sys
import types
from pathlib import Path
from xml.etree import ElementTree

import pytest

from ansible_collections.sparkstack.inference.plugins.module_utils import _smi_xml

PROGRAM = Path(__file__).resolve().parents[2] / "lab" / "files" / "nvidia-smi"
DATA = Path(__file__).parent / "data"
H200 = {
    "count": "2",
    "name": "NVIDIA H200",
    "driver_version": "580.159.04",
    "memory.used": "133428",
    "memory.total": "143771",
    "memory.free": "9728",
    "memory.reserved": "616",
    "utilization.gpu": "0",
    "mig.mode.current": "Disabled",
    "0.pci.bus_id": "00000000:00:06.0",
    "1.pci.bus_id": "00000000:00:07.0",
    "ecc.mode.current": "0",
    "pstate": "P0",
    "power.limit": "700",
    "0.power.draw": "119.2",
    "1.power.draw": "117.9",
    "0.temperature.gpu": "34",
    "1.temperature.gpu": "32",
    "apps": "0/1235:518:sglang::scheduler_TP0;0/1832:132894:sglang::scheduler_TP0;1/1233:518:sglang::scheduler_TP1;1/1728:132894:sglang::scheduler_TP1",
}


def load() -> types.ModuleType:
    loader = importlib.machinery.SourceFileLoader("lab_nvidia_smi", str(PROGRAM))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("lab_nvidia_smi", loader))
    loader.exec_module(module)
    return module


def call(values: dict[str, str], tmp_path: Path, *arguments: str) -> tuple[str, int]:
    """The program as a process, its values in a file; standard error must stay empty."""
    file = tmp_path / "gpu.json"
    file.write_text(json.dumps(values))
    done = subprocess.run([sys.executable, str(PROGRAM), *arguments], env={"LAB_GPU": str(file)}, capture_output=True, text=True)
    assert done.stderr == ""
    return done.stdout, done.returncode


@pytest.mark.parametrize(
    ("file", "code", "arguments"),
    [
        ("L.txt", 0, ["-L"]),
        (
            "query-gpu.csv",
            0,
            [
                "--query-gpu=index,uuid,name,memory.used,memory.total,memory.free,memory.reserved,utilization.gpu,"
                "driver_version,compute_mode,persistence_mode,mig.mode.current",
                "--format=csv",
            ],
        ),
        ("query-apps-uuid.csv", 0, ["--query-compute-apps=gpu_uuid,gpu_bus_id,pid,process_name,used_memory", "--format=csv,noheader,nounits"]),
        ("bad-field.txt", 2, ["--query-gpu=memory.nosuch", "--format=csv"]),
        ("bad-app-field.txt", 2, ["--query-compute-apps=nosuch", "--format=csv"]),
        ("bad-index.txt", 6, ["-i", "7", "--query-gpu=name", "--format=csv"]),
        ("bad-option.txt", 255, ["--nosuch"]),
    ],
)
def test_answers_like_the_real_program(file: str, code: int, arguments: list[str], tmp_path: Path) -> None:
    text, returned = call(H200, tmp_path, *arguments)
    assert text.strip() == (DATA / file).read_text().strip()
    assert returned == code


def test_apps_with_header_and_units(tmp_path: Path) -> None:
    text, _code = call(H200, tmp_path, "--query-compute-apps=pid,used_gpu_memory,process_name", "--format=csv")
    assert text == (DATA / "query-apps.csv").read_text()


def test_plain_table_has_the_real_ones_lines(tmp_path: Path) -> None:
    text, code = call(H200, tmp_path)
    real = (DATA / "plain.txt").read_text().splitlines()
    mine = text.splitlines()
    assert code == 0
    assert mine[1:] == real[1:]  # the first line is the date


def leaves(text: str) -> list[list[tuple[str, str]]]:
    """Of each card, the path and the text of every element that holds no other, as they follow each other."""

    def walk(node: ElementTree.Element, path: str) -> list[tuple[str, str]]:
        below = [pair for child in node for pair in walk(child, f"{path}/{child.tag}")]
        return below or [(path, (node.text or "").strip())]

    return [walk(gpu, "gpu") for gpu in ElementTree.fromstring(text).findall("gpu")]


def test_the_long_answer_is_a_part_of_the_real_ones(tmp_path: Path) -> None:
    more = {"addressing_mode": "None", "serial": "1650000000000", "clocks.gr": "1980", "clocks.sm": "1980", "clocks.mem": "3201", "persistence_mode": "Enabled"}
    text, code = call({**H200, **more, "gpu_recovery_action": "None"}, tmp_path, "-q", "-x")
    real = (DATA / "full.xml").read_text()
    assert code == 0 and text.splitlines()[:3] == real.splitlines()[:3]
    for mine, theirs in zip(leaves(text), leaves(real), strict=True):
        # In the same order, with the same content.
        rest = iter(theirs)
        assert [leaf for leaf in mine if leaf not in rest] == []
        assert len(mine) > 25
    assert _smi_xml.parse_details(text) == _smi_xml.parse_details(real)
    assert ElementTree.fromstring(text).findtext("attached_gpus") == ElementTree.fromstring(real).findtext("attached_gpus") == "2"


def test_the_long_answer_of_a_gb10(tmp_path: Path) -> None:
    text, code = call({"apps": "77:14155776:python3 -m <x>"}, tmp_path, "--query", "--xml-format")
    (gpu,) = _smi_xml.parse_details(text).values()
    assert (code, gpu.addressing, gpu.mig, gpu.recovery, gpu.whole) == (0, "ATS", False, None, True)
    assert [(process.pid, process.kind, process.name) for process in gpu.processes] == [(77, "C", "python3 -m <x>")]
    assert dict(leaves(text)[0])["gpu/fb_memory_usage/total"] == "N/A"


def test_half_of_the_long_question_is_not_known(tmp_path: Path) -> None:
    assert call({}, tmp_path, "-q") == ("The lab's nvidia-smi knows -q and -x only together.\n", 255)


def test_a_gb10_has_no_memory_numbers(tmp_path: Path) -> None:
    text, code = call({}, tmp_path, "--query-gpu=name,memory.total,memory.used,power.draw", "--format=csv,noheader,nounits")
    assert (text, code) == ("NVIDIA GB10, [N/A], [N/A], 4.70\n", 0)
    assert "Not Supported" in call({}, tmp_path)[0]
    text, _code = call({}, tmp_path, "--query-gpu=memory.total", "--format=csv")
    assert text == "memory.total [MiB]\n[N/A]\n"


def test_driver_trouble_and_no_card(tmp_path: Path) -> None:
    trouble = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
    assert call({"error": trouble}, tmp_path, "-L") == (trouble + "\n", 9)
    assert call({"count": "0"}, tmp_path, "-L") == ("No devices were found", 6)


def test_values_of_one_card_come_before_those_of_all() -> None:
    value = load().value
    values = {"name": "A", "1.name": "B"}
    assert [value(values, gpu, "gpu_name") for gpu in (0, 1)] == ["A", "B"]
