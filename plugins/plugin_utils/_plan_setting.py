# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is private to the collection: it can change at any time.

"""The engine's memory setting where the recipe leaves it open: the plan computes it from what was measured. Pure.

What is measured moves from run to run, and a launch that runs must not be restarted for that. So each rank's container tells what the plan has
set for it, and as long as nothing else asks for a restart, that is what is wanted. At a restart it is kept where it still fits.
"""

from __future__ import annotations

import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils._options import Parser
from ansible_collections.sparkstack.inference.plugins.plugin_utils import _actual, _footprint_wish, _plan_memory
from ansible_collections.sparkstack.inference.plugins.plugin_utils._plan import Plan, Settings

Arguments = dict[str, t.Any]
"""Option without dashes to value: one, or none where the plan found none that is sure."""


def planned(plan: Plan, settings: Settings) -> Arguments | None:
    """What the plan adds to the recipe's arguments while nothing else asks for a restart; None where that is not the plan's to decide."""
    if not _open(plan, settings):
        return None
    before = last(plan, settings)
    return compute(plan, settings) if before is None else before


def compute(plan: Plan, settings: Settings) -> Arguments:
    """The same for a launch that is to start: as at its last start where that still fits, else anew."""
    knob = _plan_memory.estimate(plan, settings, *terms(plan, settings)).get("knob")
    return {knob["option"]: knob["value"]} if knob and knob["by"] in ("plan", "kept") else {}


def terms(plan: Plan, settings: Settings) -> tuple[float | None, bool]:
    """What the last start had from a plan, and whether the engine is to decide where the recipe does not."""
    memory = plan.recipe.engine.memory
    if memory is None or not _open(plan, settings) or not _known(plan, settings, memory.knobs[-1]):
        return None, True
    return (last(plan, settings) or {}).get(memory.knobs[-1]), False


def last(plan: Plan, settings: Settings) -> Arguments | None:
    """What a plan has set at the last start, by the containers that are there; of a launch that is gone back to, by its record."""
    if settings.restore:
        return _checked(plan, settings.planned)
    for node in plan.nodes:
        for container in _actual.owned(node.info, plan.recipe.name):
            found = _checked(plan, container.get("planned"))
            if found is not None:
                return found
    return None


def _checked(plan: Plan, found: t.Any) -> Arguments | None:
    """Labels can be written by anybody, and another engine has another option."""
    memory = plan.recipe.engine.memory
    if memory is None or not isinstance(found, t.Mapping):
        return None
    if not found:
        return {}
    value = found.get(memory.knobs[-1])
    return {memory.knobs[-1]: value} if isinstance(value, float) and 0 < value < 1 else None


def _open(plan: Plan, settings: Settings) -> bool:
    """Whether the plan decides: the recipe does not, and the user has not left it to the engine."""
    recipe, memory = plan.recipe, plan.recipe.engine.memory
    if memory is None:
        return False
    given = {str(name).replace("_", "-") for name, value in recipe.arguments.items() if value is not None}
    if given & set(memory.knobs) or _footprint_wish.knob(recipe.arguments, recipe.environment, memory):
        return False
    return settings.planned is not None if settings.restore else settings.memory_setting == "auto"


def _known(plan: Plan, settings: Settings, option: str) -> bool:
    """Whether the image's parser has the option; True where no image could be asked."""
    return not settings.parser or not Parser(plan.recipe.engine, settings.parser).problems({option: 0.5})
