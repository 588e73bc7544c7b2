# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The runs of a real SGLang 0.5.17 under tests/fixtures/memory, and the plan that would have been made of each before it.

A folder holds the model's config.json and tensors.json (name to type and shape), the logs of its ranks, and facts.json: the commands, and
what nvidia-smi and the kernel said before and when it was ready. The models are small and their weights random; the engine, its ranks and
the GPUs (H200) are real.
"""

from __future__ import annotations

import json
import pathlib
import typing as t

import real_logs

from ansible_collections.sparkstack.inference.plugins.module_utils._memory import parse_meminfo
from ansible_collections.sparkstack.inference.plugins.module_utils._model import config_summary
from ansible_collections.sparkstack.inference.plugins.module_utils._tensors import Tensor, groups
from ansible_collections.sparkstack.inference.plugins.plugin_utils._footprint import plan_memory
from ansible_collections.sparkstack.inference.plugins.plugin_utils._footprint_compare import compare

RUNS = pathlib.Path(__file__).resolve().parent / "fixtures" / "memory"
CASES = sorted(path.parent for path in RUNS.glob("*/facts.json"))
MIB = 1024**2
# What the plan sets itself, as it does for every launch.
_OWN = ("model-path", "host", "port", "nnodes", "node-rank", "dist-init-addr")


def arguments(command: t.Sequence[str]) -> dict[str, t.Any]:
    """The options of a command line as a recipe has them: name without dashes to value, or to true."""
    found: dict[str, t.Any] = {}
    for word, following in zip(command, [*command[1:], "--"], strict=True):
        if word.startswith("--"):
            found[word[2:]] = True if following.startswith("--") else following
    return {name: value for name, value in found.items() if name not in _OWN}


def facts(listing: str, gpus: t.Sequence[int]) -> dict[str, t.Any]:
    """What gpu_memory_facts tells of some of the GPUs that a listing of nvidia-smi (with header and units) names."""
    header, *rows = [[cell.strip() for cell in line.split(",")] for line in listing.strip().splitlines()]
    named = [{column.split(" ")[0]: cell.split(" ")[0] for column, cell in zip(header, row, strict=True)} for row in rows]
    own = [row for row in named if int(row["index"]) in gpus]
    free = sum(int(row["memory.free"]) for row in own) * MIB
    return {
        "unified": False,
        "total_bytes": sum(int(row["memory.total"]) for row in own) * MIB,
        "free_bytes": free,
        "available_bytes": free,
        "gpus": [{"index": int(row["index"]), "name": "NVIDIA H200", "total_bytes": int(row["memory.total"]) * MIB} for row in own],
        "processes": [],
    }


def plan(folder: pathlib.Path) -> dict[str, t.Any]:
    """The plan that would have been made before a run."""
    known = json.loads((folder / "facts.json").read_text())
    table = json.loads((folder / "tensors.json").read_text())["tensors"]
    model = {
        "config": config_summary(json.loads((folder / "config.json").read_text())),
        "tensors": groups(Tensor(name, dtype, tuple(shape)) for name, (dtype, shape) in table.items()),
    }
    command = arguments(known["commands"][0])
    size, ranks = int(command.pop("tp")), len(known["commands"])
    nodes = [(f"spark{rank + 1}", facts(known["pre"]["gpu"], [rank] if ranks > 1 else range(size))) for rank in range(ranks)]
    return plan_memory(model, "sglang", command, nodes, size, own=True)


def main_memory(folder: pathlib.Path) -> tuple[int, int]:
    """How many ranks there were, and the bytes of main memory that were available no longer once they were ready."""
    known = json.loads((folder / "facts.json").read_text())
    before, after = (parse_meminfo(known[when]["meminfo"])["MemAvailable"] for when in ("pre", "post"))
    return int(known["tensor_parallel"]), before - after


def free_before(folder: pathlib.Path) -> int:
    """Bytes of one GPU that were free before the run."""
    known = json.loads((folder / "facts.json").read_text())
    return int(facts(known["pre"]["gpu"], [0])["free_bytes"])


def reports(folder: pathlib.Path) -> dict[str, t.Any]:
    """What the ranks told of themselves."""
    names = [name for name in ("head.log", "worker.log") if (folder / name).exists()]
    return {f"spark{rank + 1}": real_logs.read(folder / name)["phases"] for rank, name in enumerate(names)}


def compared(folder: pathlib.Path) -> dict[str, t.Any]:
    """The plan of a run beside its report."""
    return compare(plan(folder), reports(folder))
