# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is private to the collection: it can change at any time.

"""What the image brings of the network's variables, against what each rank is given. Pure, see :mod:`_image_environment`."""

from __future__ import annotations

import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils import _image_environment
from ansible_collections.sparkstack.inference.plugins.plugin_utils._plan import Plan


def findings(plan: Plan, rank: int) -> list[dict[str, t.Any]]:
    """What becomes of the image's own variables at a rank. Empty where the image brings none, or was not read."""
    request = plan.requests[rank]
    given = {**request.engine.launch.environment(request.rank), **request.environment}
    return _image_environment.judge(plan.nodes[0].baked, given)


def notes(plan: Plan) -> list[str]:
    """Sentences for the plan's screen, where something starts. What one rank overrides and another has by chance is overridden."""
    if plan.action not in ("start", "restart") or not plan.nodes[0].baked:
        return []
    ranks = [findings(plan, rank) for rank in range(len(plan.requests))]
    together = [next((finding for finding in same if finding["status"] != "same"), same[0]) for same in zip(*ranks, strict=True)]
    return _image_environment.notes(together)
