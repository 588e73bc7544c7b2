# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is private to the collection: it can change at any time.

"""Which nodes a deployment takes: the hosts that may be, in rank order, and where a shape needs fewer, those with most memory. Pure."""

from __future__ import annotations

import difflib
import re
import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils._words import listed
from ansible_collections.sparkstack.inference.plugins.plugin_utils import _shape
from ansible_collections.sparkstack.inference.plugins.plugin_utils._recipe import Recipe, of_replica

_GIB = 1 << 30


def ranks(head: t.Sequence[str], workers: t.Sequence[str], in_play: t.Collection[str], named: t.Sequence[str] = ()) -> list[str]:
    """The hosts that may be used, in rank order.

    :param in_play: the hosts that this run reaches, after C(--limit). :param named: those that were named; none: all of them.
    :raises ValueError: with one sentence when the inventory's groups won't do.
    """
    if len(head) != 1:
        raise ValueError(f"The inventory's group 'head' has {len(head)} hosts{_listed(head)}: put exactly one there, it becomes rank 0.")
    workers = [host for host in workers if host not in head]
    if not workers:
        raise ValueError("The inventory's group 'workers' has no host: put every node but the head there.")
    hosts = [head[0], *workers]
    unknown = [host for host in named if host not in hosts]
    if unknown:
        close = difflib.get_close_matches(unknown[0], hosts, n=1)
        raise ValueError(
            f"The node '{unknown[0]}' is neither in the inventory's group 'head' nor in 'workers': "
            + (f"do you mean '{close[0]}'?" if close else f"choose from {', '.join(hosts)}.")
        )
    without = [host for host in in_play if host not in hosts]
    # The order of the inventory, whatever that of the names is: rank 0 stays the same node.
    hosts = [host for host in hosts if not named or host in named]
    missing = [host for host in hosts if host not in in_play]
    if missing:
        raise ValueError(
            f"{listed(missing)} {'is' if len(missing) == 1 else 'are'} left out of this run, but a launch needs all its "
            f"ranks ({', '.join(hosts)}): run it without --limit, or with a target that holds them all."
        )
    if without:
        raise ValueError(
            f"{listed(without)} {'takes' if len(without) == 1 else 'take'} part in this run, but {'is' if len(without) == 1 else 'are'} neither "
            "in the inventory's group 'head' nor in 'workers': put every node into one of them, or leave it out of 'sparks'."
        )
    return hosts


def _listed(names: t.Sequence[str]) -> str:
    return f" ({', '.join(names)})" if names else ""


def needed(recipe: Recipe, hosts: t.Sequence[str]) -> int:
    """How many of the hosts the recipe takes in all; :raises ValueError: with one sentence when its shape can't be had of them."""
    shape = _shape.of_recipe(recipe)
    problem = _shape.problem(shape, len(hosts))
    if problem:
        raise ValueError(problem)
    return (_shape.nodes_each(shape, len(hosts)) or 0) * recipe.replicas


def groups(
    recipe: Recipe,
    hosts: t.Sequence[str],
    seen: t.Mapping[str, t.Mapping[str, t.Any]] | None = None,
    placed: t.Sequence[str] | None = None,
    replica: int | None = None,
) -> list[_shape.Group] | None:
    """The replicas with their nodes; None where nodes are to be chosen and none was looked at.

    :param hosts: those that may be used. :param seen: see :func:`choose`. :param placed: the nodes that were chosen before, by rank.
    :param replica: the only one that is asked for, on C(placed).
    :raises ValueError: with one sentence where it can't be.
    """
    count = needed(recipe, hosts)
    choosing = count < len(hosts)
    if placed and (choosing or replica is not None):
        lost = [host for host in placed if host not in hosts]
        if lost or len(placed) != count // recipe.replicas or (replica or 0) >= recipe.replicas:
            raise ValueError(
                f"{_of(recipe, replica)} is of {listed(list(placed))}, which is not what its recipe takes of these nodes now ({', '.join(hosts)}): "
                "deploy it anew with its recipe."
            )
        return [_shape.Group(_of(recipe, replica), tuple(placed), replica)]
    if choosing and seen is None:
        return None
    return _shape.groups(recipe, choose(recipe, hosts, seen or {}) if choosing else hosts)


def _of(recipe: Recipe, replica: int | None) -> str:
    return of_replica(recipe, replica).name


def choose(recipe: Recipe, hosts: t.Sequence[str], seen: t.Mapping[str, t.Mapping[str, t.Any]]) -> list[str]:
    """The hosts of all replicas, replica by replica and by rank.

    Where the deployment runs, it stays. Beside that, those with most memory are taken, in GiB, so that two that are alike follow the inventory.

    :param hosts: those that may be used, more than are needed. :param seen: by host C(available_bytes) (of memory; None where it was not measured)
        and C(ranks), the deployment's containers there as (its name with the replica's number, the rank).
    """
    each = needed(recipe, hosts) // recipe.replicas
    names = [group.deployment for group in _shape.groups(recipe, hosts)]
    order = {host: at for at, host in enumerate(hosts)}
    kept: dict[str, list[str]] = {}
    taken: set[str] = set()
    for name in names:
        there = {host: rank for host in hosts if host not in taken for owner, rank in seen.get(host, {}).get("ranks") or [] if owner == name}
        kept[name] = sorted(there, key=lambda host: (there[host], order[host]))[:each]
        taken |= set(kept[name])
    free = sorted((host for host in hosts if host not in taken), key=lambda host: (-_memory(seen.get(host, {})), order[host]))
    lacking = each * len(names) - len(taken)
    # In the inventory's order, so that the first replica gets the first of them.
    fresh = iter(sorted(free[:lacking], key=lambda host: order[host]))
    return [host for name in names for host in _filled(kept[name], each, fresh, order)]


def _filled(kept: list[str], each: int, fresh: t.Iterator[str], order: t.Mapping[str, int]) -> list[str]:
    if len(kept) == each:
        return kept
    return sorted([*kept, *(next(fresh) for _place in range(each - len(kept)))], key=lambda host: order[host])


def _memory(seen: t.Mapping[str, t.Any]) -> int:
    available = seen.get("available_bytes")
    return -1 if available is None else int(available) // _GIB


def owned(name: str, containers: t.Iterable[t.Mapping[str, t.Any]]) -> list[tuple[str, int]]:
    """Of a node's containers those of a deployment or of one of its replicas, as (that one's name, rank)."""
    mine = re.compile(re.escape(name) + r"(-r[0-9]+)?")
    return [(container["deployment"], container["rank"]) for container in containers if mine.fullmatch(str(container["deployment"]))]
