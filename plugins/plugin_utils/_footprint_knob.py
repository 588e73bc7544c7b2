# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is private to the collection: it can change at any time.

"""How an engine is told how much memory to take: by the recipe, by what the last start was told, by the plan, or not at all. Pure."""

from __future__ import annotations

import typing as t
from dataclasses import dataclass

from ansible_collections.sparkstack.inference.plugins.module_utils._engines._memory import Room
from ansible_collections.sparkstack.inference.plugins.module_utils._words import size

if t.TYPE_CHECKING:
    from ansible_collections.sparkstack.inference.plugins.plugin_utils._footprint import Footprint


@dataclass(frozen=True)
class Choice:
    """What the engine is told, and what would be best."""

    by: str
    """C(recipe), C(kept) (as the last start had it from a plan), C(plan), or C(engine) (its own default)."""
    option: str
    value: float
    why: str
    node: str
    """The one that decides what is recommended: it has the least to spare."""
    pools: list[int]
    """Bytes of every measured rank's cache with that value; may be negative."""
    recommended_option: str
    recommended: float
    recommended_why: str
    recommended_pools: list[int]
    settable: bool
    """The engine surely starts with what is recommended."""
    concurrency: int | None
    """Requests of the longest length that fit at once with that value; None where the cache's shape is not known."""
    recommended_concurrency: int | None
    before: float | None

    def told(self) -> dict[str, t.Any]:
        """Plain data: C(by), C(given) (by the recipe), C(option), C(value), C(why), C(node) that decides, C(recommended_option), C(recommended),
        C(recommended_why), C(settable) (the engine starts with that), C(before), C(pool_bytes) and C(recommended_pool_bytes) of the rank that has
        least, C(concurrency) and C(recommended_concurrency)."""
        return {
            "by": self.by,
            "given": self.by == "recipe",
            "option": self.option,
            "value": self.value,
            "why": self.why,
            "node": self.node,
            "recommended_option": self.recommended_option,
            "recommended": self.recommended,
            "recommended_why": self.recommended_why,
            "settable": self.settable,
            "before": self.before,
            "pool_bytes": max(min(self.pools), 0),
            "recommended_pool_bytes": max(min(self.recommended_pools), 0),
            "concurrency": self.concurrency,
            "recommended_concurrency": self.recommended_concurrency,
        }


def choose(footprint: Footprint, measured: t.Sequence[int], rooms: t.Sequence[Room], before: float | None, own: bool) -> Choice:
    """Choose the value of the engine's setting.

    :param measured: the places of the nodes that were measured; rooms go by them, and there is at least one.
    :param before: what a plan has set for the last start. :param own: where the recipe leaves it open, the engine decides.
    """
    memory = footprint.memory
    option = memory.knobs[-1]
    ways = _ways(footprint, measured)
    values = [memory.value(rooms, leave) for leave, _what in ways]
    pools = [memory.pool(option, value, rooms) for value in values]
    # Where none leaves a request its cache, what the system needs counts more.
    best = next((at for at, found in enumerate(pools) if _holds(footprint, measured, found)), 1)
    recommended, recommended_pools = values[best], pools[best]
    reason = f"leaves {size(max(ways[best][0]))} beside weights and cache: {ways[best][1]}"
    decides = min(range(len(rooms)), key=lambda index: (rooms[index].free - rooms[index].weights, rooms[index].free))
    by, value, why, found = "plan", recommended, reason, recommended_pools
    settable = _settable(footprint, measured, recommended, recommended_pools)
    if footprint.given:
        by, (option, value), why = "recipe", footprint.given, "the recipe says so"
        found = memory.pool(option, value, rooms)
    elif not own and not settable and before is not None and not _told(footprint, measured):
        by, value, why = "kept", before, "as at its last start, since what can be had is not known now"
        found = memory.pool(option, before, rooms)
    elif own or not settable:
        by = "engine"
        if all(footprint.nodes[at].gpus for at in measured):
            value, why = memory.default_value(footprint.wish, footprint.shape), "the engine's own default"
            found = memory.pool(option, value, rooms)
    elif before is not None and 0 < before <= values[-1] and _holds(footprint, measured, kept := memory.pool(option, before, rooms)):
        by, value, found, why = "kept", before, kept, "as at its last start, and it still fits"
    return Choice(
        by=by,
        option=option,
        value=value,
        why=why,
        node=footprint.nodes[measured[decides]].name,
        pools=found,
        recommended_option=memory.knobs[-1],
        recommended=recommended,
        recommended_why=reason,
        recommended_pools=recommended_pools,
        settable=settable,
        concurrency=_concurrency(footprint, measured, found),
        recommended_concurrency=_concurrency(footprint, measured, recommended_pools),
        before=before,
    )


def _ways(footprint: Footprint, measured: t.Sequence[int]) -> list[tuple[list[int], str]]:
    """What may be left beside weights and cache, the most welcome first: bytes of each rank, and for what.

    The last is also what a value that was computed before must leave: what is measured moves a little from run to run.
    """
    own, system = [footprint.beside(at) for at in measured], [footprint.system(at) for at in measured]
    usual = footprint.memory.set_aside(footprint.wish, footprint.shape)
    pairs = list(zip(own, system, strict=True))
    return [
        ([max(each, usual) + rest for each, rest in pairs], "graphs, activations, the system"),
        ([each + rest for each, rest in pairs], "the least that is estimated to do"),
        ([each + rest // 2 for each, rest in pairs], "the least that is estimated to do, and half of what the system is best left"),
    ]


def _holds(footprint: Footprint, measured: t.Sequence[int], pools: t.Sequence[int]) -> bool:
    """Whether each rank's cache holds the request that must fit; where the cache's shape is not known, whether there is any."""
    if min(pools) <= 0 or not footprint.caches.known:
        return min(pools) > 0
    return all(footprint.capacity(at, pool).context >= footprint.least for at, pool in zip(measured, pools, strict=True))


def _settable(footprint: Footprint, measured: t.Sequence[int], value: float, pools: t.Sequence[int]) -> bool:
    """Whether the engine starts with that value: all nodes were measured, and have a GPU that it is about."""
    starts = _holds(footprint, measured, pools) if footprint.memory.whole_context else min(pools) > 0
    return _known(footprint, measured) and 0 < value < 1 and starts


def _known(footprint: Footprint, measured: t.Sequence[int]) -> bool:
    return len(measured) == len(footprint.nodes) and all(node.gpus for node in footprint.nodes)


def _told(footprint: Footprint, measured: t.Sequence[int]) -> bool:
    """Whether what lacks now says anything: not where the driver tells of no GPU, or not what ranks hold that still run."""
    if not _known(footprint, measured):
        return False
    return all((footprint.nodes[at].most or 0) - (footprint.nodes[at].available or 0) < footprint.rank_weights(at) // 2 for at in measured)


def _concurrency(footprint: Footprint, measured: t.Sequence[int], pools: t.Sequence[int]) -> int | None:
    if not footprint.caches.known:
        return None
    return int(min(footprint.capacity(at, max(pool, 0)).concurrency for at, pool in zip(measured, pools, strict=True)))
