# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What nvidia-smi said while two real processes held memory on two GPUs, and what the module returned in the same second."""

from __future__ import annotations

import json
import pathlib

import yaml

from ansible_collections.sparkstack.inference.plugins.module_utils._memory import PROCESS_FIELDS, parse_gpus, parse_processes

HELD = pathlib.Path(__file__).parents[3] / "fixtures" / "nvidia-smi" / "held-by-processes"
GPU_COLUMNS = ("index", "uuid", "name", "driver_version", "memory.total", "memory.reserved", "memory.used", "memory.free")
# As they were asked for, which is another order than the module's.
PROCESS_COLUMNS = ("gpu_uuid", "pid", "process_name", "used_gpu_memory")
TRUTH = yaml.safe_load((HELD / "truth.yml").read_text())
RETURNED = json.loads((HELD / "gpu_memory_facts.json").read_text())


def test_the_gpus_are_read_to_the_byte() -> None:
    gpus, rest = parse_gpus((HELD / "query-gpu.csv").read_text(), GPU_COLUMNS)
    found = [{"index": gpu.index, "used_bytes": gpu.used_bytes, "free_bytes": gpu.free_bytes, "total_bytes": gpu.total_bytes} for gpu in gpus]
    assert found == TRUTH["gpus"]
    assert [line.split(",")[0] for line in rest] == ["index"]


def test_a_process_on_two_gpus_stands_there_twice() -> None:
    gpus, _rest = parse_gpus((HELD / "query-gpu.csv").read_text(), GPU_COLUMNS)
    index = {gpu.uuid: gpu.index for gpu in gpus}
    processes, _rest = parse_processes((HELD / "query-compute-apps.csv").read_text(), PROCESS_COLUMNS)
    assert sorted(PROCESS_COLUMNS) == sorted(PROCESS_FIELDS)
    assert [{"name": each.name, "gpu": index[each.gpu_uuid], "used_bytes": each.used_bytes} for each in processes] == TRUTH["processes"]


def test_a_process_holds_more_than_it_asked_for() -> None:
    """Some 500 MiB a GPU for the context of CUDA itself."""
    held: dict[str, list[int]] = {}
    for each in TRUTH["processes"]:
        held.setdefault(each["name"], [0, 0])[each["gpu"]] = each["used_bytes"]
    for name, asked in TRUTH["asked_bytes"].items():
        for got, wanted in zip(held[name], asked, strict=True):
            assert (got == 0) if wanted == 0 else 500 << 20 < got - wanted < 700 << 20


def test_no_process_no_use() -> None:
    gpus, _rest = parse_gpus((HELD / "idle-query-gpu.csv").read_text(), GPU_COLUMNS)
    assert [gpu.used_bytes for gpu in gpus] == [0, 0]
    # What the driver keeps for itself (616 MiB) is neither used nor free.
    assert [gpu.total_bytes - gpu.free_bytes for gpu in gpus] == [615 << 20, 615 << 20]
    assert parse_processes((HELD / "idle-query-compute-apps.csv").read_text(), PROCESS_COLUMNS)[0] == []


def test_what_the_module_returned_is_what_nvidia_smi_said() -> None:
    assert [{key: gpu[key] for key in ("index", "used_bytes", "free_bytes", "total_bytes")} for gpu in RETURNED["gpus"]] == TRUTH["gpus"]
    index = {gpu["uuid"]: gpu["index"] for gpu in RETURNED["gpus"]}
    found = [{"name": each["name"], "gpu": index[each["gpu_uuid"]], "used_bytes": each["used_bytes"]} for each in RETURNED["processes"]]
    assert found == TRUTH["processes"]
    assert RETURNED["free_bytes"] == sum(gpu["free_bytes"] for gpu in TRUTH["gpus"])
    assert {holder["name"]: holder["gpu_bytes"] for holder in RETURNED["holders"]} == {"torch-holder-12": 13524533248, "torch-holder-3g": 4500488192}
