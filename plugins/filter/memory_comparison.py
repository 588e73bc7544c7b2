# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: memory_comparison
short_description: The planned memory of a launch beside what the engine reports of itself
version_added: 1.0.0
author: The sparkstack.inference developers (@sparkstack)
description:
  - Turns the memory that was planned for a launch, and the timelines of its ranks, into a small table. For each rank stand its weights, its cache and the
    tokens that the cache holds, each as planned, as the engine's own log says, and by how much the plan was off.
  - What the engine does not say has no line. Where it says nothing, as on a CPU, there is no line at all.
positional: nodes
options:
  _input:
    description: The C(memory) of the RV(sparkstack.inference.inference_plan#module:plan).
    type: dict
    required: true
  nodes:
    description: The RV(sparkstack.inference.init_phase_wait#module:nodes) of the launch that was watched.
    type: dict
    required: true
seealso:
  - module: sparkstack.inference.inference_plan
  - module: sparkstack.inference.init_phase_wait
"""

EXAMPLES = r"""
---
- name: Show what became of the plan
  ansible.builtin.debug:
    msg: "{{ plan.memory | sparkstack.inference.memory_comparison(launch.nodes) }}"
"""

RETURN = r"""
_value:
  description: The lines of the table.
  type: list
  elements: str
  sample:
    - "memory             planned     engine says  plan is off by"
    - "spark1  weights    58.1 GiB    58.3 GiB     -0.3 %"
"""

import typing as t

from ansible.errors import AnsibleFilterError

from ansible_collections.sparkstack.inference.plugins.plugin_utils import _footprint_compare


def memory_comparison(memory: t.Any, nodes: t.Any) -> list[str]:
    """The lines, see the documentation above."""
    if not isinstance(memory, t.Mapping) or not isinstance(nodes, t.Mapping):
        raise AnsibleFilterError("memory_comparison: give the memory of a plan, and the nodes of what init_phase_wait returned.")
    return _footprint_compare.table(_footprint_compare.compare(memory, _footprint_compare.timelines(nodes)))


class FilterModule:
    """The filters of this file."""

    def filters(self) -> dict[str, t.Callable[..., list[str]]]:
        """Their names."""
        return {"memory_comparison": memory_comparison}
