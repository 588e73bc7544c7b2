# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What differs between the engines, and how a launch of one is described to plays/start.yml."""

from __future__ import annotations

import typing as t
from dataclasses import dataclass

import play
import yaml
from sparklab.network import FABRIC_CARD
from sparklab.state import fabric_address

RECIPES = play.ROOT / "tests" / "lab" / "recipes"
HEAD, WORKER = NODES = ("spark1", "spark2")
DEPLOYMENT = "fault"
CONTAINERS = {node: f"{DEPLOYMENT}-rank{rank}" for rank, node in enumerate(NODES)}
WIDE = "/srv/faults/wide"
"""The tiny Qwen3 MoE made larger: with a slow disk a load of some 25 MB takes long enough to be disturbed."""
COPY = "/srv/faults/copy"
"""A copy of the recipe's model on each node, to be damaged."""


@dataclass(frozen=True)
class Engine:
    """An engine as the faults see it. Sizes in Docker's notation."""

    name: str
    recipe: str
    wrong_interface: t.Mapping[str, str]
    """What names an interface that the node doesn't have."""
    unknown_flag: t.Mapping[str, t.Any]
    little_memory: str
    """A container's limit in which the engine starts and ends early."""
    squeezed: t.Callable[[int], dict[str, t.Any]]
    """The options of a rank that wants a GiB more than there is, from the bytes that its node has left."""
    large_model: str = ""
    """A model of some 25 MB on the nodes, where the recipe's is smaller."""

    @property
    def data(self) -> dict[str, t.Any]:
        """The recipe."""
        return dict(yaml.safe_load((RECIPES / self.recipe).read_text()))

    @property
    def image(self) -> str:
        """Its image."""
        return str(self.data["engines"][self.name]["image"])

    @property
    def model(self) -> str:
        """The recipe's model on the nodes."""
        return str(self.data["model"]["path"])

    @property
    def wide(self) -> str:
        """The model whose load takes a while from a slow disk."""
        return self.large_model or self.model


def _large_cache(left: int) -> dict[str, t.Any]:
    # It compares with what the machine has left, and with a container's limit where there is one. Both ranks take about
    # 3 GiB more until it does, so a cache of what is left now, in whole GiB, lacks at least two.
    return {"memory": None, "environment": {"VLLM_CPU_KVCACHE_SPACE": str(left >> 30)}}


def _large_weights(left: int) -> dict[str, t.Any]:
    # The rehearsal's model has 25 MB, half of it for each rank.
    return {"environment": {"REHEARSAL_WEIGHT_FACTOR": str((left + (1 << 30)) // (12 << 20))}}


VLLM = Engine(
    name="vllm",
    recipe="tiny-qwen3-moe.yml",
    wrong_interface={"GLOO_SOCKET_IFNAME": "enp99s0"},
    unknown_flag={"max-num-seqz": 8},
    little_memory="700m",
    squeezed=_large_cache,
    large_model=WIDE,
)
SGLANG = Engine(
    name="sglang",
    recipe="tiny-sglang-rehearsal.yml",
    wrong_interface={"NCCL_SOCKET_IFNAME": "enp99s0"},
    unknown_flag={"max-runing-requests": 8},
    little_memory="96m",
    squeezed=_large_weights,
)
ENGINES = {engine.name: engine for engine in (VLLM, SGLANG)}


def start_of(engine: Engine, verdict: str, changes: t.Mapping[str, t.Mapping[str, t.Any]], watch: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """The variable 'start' of plays/start.yml.

    :param changes: by node, over the options that the recipe gives: 'arguments' and 'environment' are merged, the others
        replaced; 'absent' leaves the rank out. :param watch: over the usual options of the watch.
    """
    recipe = engine.data
    part = recipe["engines"][engine.name]
    port = recipe["port"]
    launch = {}
    for rank, node in enumerate(NODES):
        wanted = changes.get(node, {})
        cards = {"GLOO_SOCKET_IFNAME": FABRIC_CARD, "NCCL_SOCKET_IFNAME": FABRIC_CARD}
        options = {
            "image": engine.image,
            "model": engine.model,
            "served_name": recipe["model"]["served_name"],
            "rank": rank,
            "address": fabric_address(node),
            "head_address": fabric_address(HEAD),
            "rendezvous_port": recipe["rendezvous_port"],
            "port": port,
            "shm_size": recipe["container"]["shm_size"],
            "memory": recipe["container"].get("memory"),
            **{key: value for key, value in wanted.items() if key not in ("arguments", "environment", "absent")},
            "arguments": {**part.get("arguments", {}), **wanted.get("arguments", {})},
            "environment": {**cards, **part.get("environment", {}), **wanted.get("environment", {})},
        }
        launch[node] = options
    return {
        "deployment": DEPLOYMENT,
        "engine": engine.name,
        "launch": launch,
        "absent": [node for node in NODES if changes.get(node, {}).get("absent")],
        "health_url": f"http://127.0.0.1:{port}/health",
        "watch": {"timeout": 240, "join_timeout": 30, "stall_timeouts": {}, **watch},
        "verdict": verdict,
        "again": "",
        "guard": False,
    }
