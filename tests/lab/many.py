# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""More lab nodes than two, for tests and benchmarks that then leave two again."""

from __future__ import annotations

import contextlib
import copy
import json
import subprocess
import typing as t

import play
from faultlab.engines import Engine


def names(count: int) -> list[str]:
    """The nodes of a lab of so many."""
    return [f"spark{number}" for number in range(1, count + 1)]


def over(engine: Engine, count: int, **environment: str) -> dict[str, t.Any]:
    """The engine's recipe for so many nodes, with these variables for it beside its own."""
    recipe = copy.deepcopy(engine.data)
    recipe["tensor_parallel_size"] = count
    recipe["engines"][engine.name]["environment"].update(environment)
    return recipe


def ready(*words: str) -> None:
    """The lab's nodes run and have images and models. :param words: of the lab's C(up)."""
    status = subprocess.run([str(play.LAB), "status"], capture_output=True, text=True, check=False)
    if status.returncode:
        play.lab("deps")
    play.lab("up", *words)
    play.install_engine()


@contextlib.contextmanager
def nodes(count: int, memory: str) -> t.Iterator[list[str]]:
    """A lab of so many nodes with nothing on them that runs; of two as before, and with nothing that runs, afterwards.

    :param memory: of each node, as 2G.
    """
    before = f"{json.loads(play.lab('status', '--json', ok=(0, 1)))['nodes'][0]['memory_limit'] >> 30}G"
    play.empty("spark1", "spark2")
    try:
        ready("--nodes", str(count), "--memory", memory)
        yield names(count)
        play.empty(*names(count))
    finally:
        play.lab("up", "--nodes", "2", "--memory", before)
        play.empty("spark1", "spark2")
