# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is private to the collection: it can change at any time.

"""What a plan is made of, and what it comes to: plain data, see :mod:`_planner`."""

from __future__ import annotations

import typing as t
from dataclasses import dataclass, field

from ansible_collections.sparkstack.inference.plugins.plugin_utils import _container
from ansible_collections.sparkstack.inference.plugins.plugin_utils._recipe import Recipe


@dataclass(frozen=True)
class Node:
    """What is known of one node; None stands for "not looked at yet"."""

    name: str
    fabric: t.Mapping[str, t.Any] = field(default_factory=dict)
    """The fact C(fabric) of M(sparkstack.inference.fabric_facts)."""
    environment: t.Mapping[str, str] = field(default_factory=dict)
    """The node's NCCL and Gloo variables."""
    memory: t.Mapping[str, t.Any] = field(default_factory=dict)
    """The fact C(gpu_memory) of M(sparkstack.inference.gpu_memory_facts)."""
    info: t.Mapping[str, t.Any] = field(default_factory=dict)
    """The answer of M(sparkstack.inference.inference_info)."""
    model: t.Mapping[str, t.Any] = field(default_factory=dict)
    """The answer of M(sparkstack.inference.model_manifest_info)."""
    baked: t.Mapping[str, t.Any] = field(default_factory=dict)
    """The image's own network variables: RV(image) of M(sparkstack.inference.fabric_environment_info), at the head."""
    proof: t.Mapping[str, t.Any] = field(default_factory=dict)
    """The answer of M(sparkstack.inference.inference_proof), at the head."""
    verdict: str | None = None
    """What M(sparkstack.inference.init_phase_wait) says of a launch that does not answer (yet)."""


@dataclass(frozen=True)
class Settings:
    """What the user decides beside the recipe."""

    listen_address: str = "0.0.0.0"
    endpoint_host: str | None = None
    cache_dir: str = "/var/cache/sparkstack"
    gpus: str = "auto"
    api_key: str | None = None
    new_launch_id: str = ""
    restart: bool = False
    evict: t.Sequence[str] = ()
    """Containers that may be stopped for the launch."""
    parser: t.Mapping[str, t.Any] | None = None
    parser_problem: str | None = None
    verify_arguments: bool = True
    memory_setting: str = "auto"
    """Where the recipe leaves the engine's memory open: C(auto) (the plan sets it), or C(engine)."""
    memory_check: str = "refuse"
    """What lacks memory beyond doubt: C(refuse), or C(warn)."""
    image: t.Mapping[str, t.Any] | None = None
    """With C(source), the image there, as RV(image) of M(sparkstack.inference.inference_info)."""
    source: str | None = None
    """The node that gives the image to all replicas; None: the head."""
    restore: bool = False
    """The recipe is that of an earlier launch."""
    planned: t.Mapping[str, t.Any] | None = None
    """What the plan had set for that launch; None where the engine's memory was not the plan's to set."""


@dataclass
class Plan:
    """What is to run, what is to be done about it, and why."""

    recipe: Recipe
    nodes: list[Node]
    requests: list[_container.Request]
    image: t.Mapping[str, t.Any] = field(default_factory=dict)
    """The image that the ranks start from, where it lies before it goes to all nodes; empty where it is not there yet."""
    source: str | None = None
    """The node where that is; None: the head."""
    launch_id: str = ""
    action: str = "none"
    reasons: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    assumed: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)
    away: float | None = None
    """Seconds until it serves (again), as its last start took; None where nothing starts or none is known."""
    unrecorded: bool = False
    """It serves, and the nodes have not kept that: the run that began it was killed before."""
    staged: bool = False
    """The image is the same on all nodes."""
    endpoint: str = ""
    arguments_checked: str | None = None
    planned: dict[str, t.Any] | None = None
    """What is added to the recipe's arguments (:func:`_plan_setting.planned`)."""
    memory: dict[str, t.Any] = field(default_factory=dict)
    """What :func:`_footprint.plan_memory` makes of a launch that is to start."""
    evict: list[list[str]] = field(default_factory=list)
    """By rank, the containers that are stopped for it."""
