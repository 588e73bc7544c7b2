# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is private to the collection: it can change at any time.

"""What the plan has to see to where the ranks are not brought together by the engine itself, but by Ray, say. Pure."""

from __future__ import annotations

import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils._engines._types import Executor
from ansible_collections.sparkstack.inference.plugins.module_utils._options import Parser

if t.TYPE_CHECKING:
    from ansible_collections.sparkstack.inference.plugins.plugin_utils._plan import Plan
    from ansible_collections.sparkstack.inference.plugins.plugin_utils._recipe import Recipe

_UNITS = {"b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def executor(recipe: Recipe) -> Executor | None:
    """What brings a recipe's ranks together, or None where the engine does."""
    return recipe.engine.launch.joined_by.get(recipe.executor)


def ports(recipe: Recipe, rank: int) -> list[int]:
    """The ports on which a rank's node must have no other listener, the API's aside: those of the rendezvous, or of what stands for it."""
    joined = executor(recipe)
    if joined is None:
        return [recipe.rendezvous_port] if rank == 0 else []
    return list(joined.ports(rank, recipe.rendezvous_port))


def listening(recipe: Recipe, rank: int) -> list[int]:
    """The same with the API's port, where the rank listens on it."""
    return ([recipe.port] if rank == 0 or recipe.engine.launch.worker_ports else []) + ports(recipe, rank)


def head_first(recipe: Recipe) -> bool:
    """Whether the head is started before the others."""
    joined = executor(recipe)
    return joined is not None and joined.head_first


def order(recipe: Recipe) -> str:
    """The same in words."""
    return "head first" if head_first(recipe) else "workers first"


def title(recipe: Recipe) -> str:
    """The executor's name; nothing where it is the engine itself."""
    joined = executor(recipe)
    return joined.title if joined else ""


def recipe_problems(recipe: Recipe) -> list[str]:
    """Sentences, without the recipe's name before them, on what can't be though nothing is known of the nodes."""
    joined = executor(recipe)
    if joined is None:
        return []
    found, wanted = [], ports(recipe, 0)
    if wanted[-1] > 65535:
        found.append(f"{joined.title} takes the ports {wanted[0]} to {wanted[-1]}, and 65535 is the last: give a lower rendezvous_port.")
    if recipe.port in wanted[1:]:
        found.append(f"port {recipe.port} is one of those that {joined.title} takes, {wanted[0]} to {wanted[-1]}: give another port or rendezvous_port.")
    if _bytes(recipe.shm_size) < joined.least_shm:
        found.append(f"shm_size is {recipe.shm_size}, but {joined.title} needs {joined.least_shm >> 20}m of shared memory: raise it.")
    return found


def check(plan: Plan, parser: t.Mapping[str, t.Any] | None) -> None:
    """Add to a plan's problems, notes and assumptions what is to be said of its executor.

    :param parser: what the image told of itself (RV(parser) of M(sparkstack.inference.engine_options_info)); None where it could not be asked.
    """
    joined = executor(plan.recipe)
    if joined is None:
        return
    packages = Parser(plan.recipe.engine, parser).packages if parser else None
    if packages is None:
        plan.assumed.append(f"the image has {joined.title}: it could not be asked")
    elif joined.package not in packages:
        plan.problems.append(
            f"The image {plan.recipe.image} has no {joined.title} (Python's package {joined.package}): take one that has it, or leave executor out."
        )
    wanted = ports(plan.recipe, 0)
    plan.notes.append(f"{joined.title} on the ports {wanted[0]} to {wanted[-1]} of each node: {joined.told}")
    if joined.token and not plan.recipe.environment.get(joined.token):
        plan.notes.append(
            f"whoever reaches those ports can run programs in the containers: a secret of your own as {joined.token} in tp_launch_environment prevents that"
        )


def taken(recipe: Recipe, rank: int, port: int) -> str:
    """Which of the recipe's keys moves a port that is taken; nothing where the rank has no use for it."""
    if port == recipe.port and (rank == 0 or recipe.engine.launch.worker_ports):
        return "port"
    return "rendezvous_port" if port in ports(recipe, rank) else ""


def memory(recipe: Recipe, rank: int) -> dict[str, int]:
    """What is to be laid over a node's facts for the plan of its memory."""
    joined = executor(recipe)
    return {} if joined is None else {"joining_bytes": joined.node_bytes(rank)}


def _bytes(words: str) -> int:
    """A size in Docker's notation."""
    unit = words[-1].lower()
    return int(words[:-1]) * _UNITS[unit] if unit in _UNITS else int(words)
