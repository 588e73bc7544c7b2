# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: fabric_group
short_description: How the nodes' rails fit together
version_added: 1.0.0
author: The sparkstack.inference developers (@sparkstack)
description:
  - Compares what M(sparkstack.inference.fabric_facts) found on all nodes, and tells what no node can know of itself. It tells which topology
    they make, which rails lead to no other node, over which address sockets must go, and whether NCCL must go by the subnets.
options:
  _input:
    description: By node, the fact C(fabric) of M(sparkstack.inference.fabric_facts), gathered without what this filter tells.
    type: dict
    required: true
seealso:
  - module: sparkstack.inference.fabric_facts
"""

EXAMPLES = r"""
---
- name: Show how the nodes fit together
  ansible.builtin.debug:
    msg: >-
      {{ dict(ansible_play_hosts | zip(ansible_play_hosts | map('extract', hostvars, ['ansible_facts', 'fabric'])))
         | sparkstack.inference.fabric_group }}
  run_once: true
"""

RETURN = r"""
_value:
  description:
    - C(topology) is V(single) (fewer than two nodes), V(pair), V(switch) (one subnet holds all), V(ring) (each two nodes share a subnet, and no
      subnet holds all) or V(split).
    - C(nodes) has for each node the options O(sparkstack.inference.fabric_facts#module:control_address),
      O(sparkstack.inference.fabric_facts#module:subnet_aware) and O(sparkstack.inference.fabric_facts#module:without) with which its facts hold for this group,
      and C(again), whether they differ from those that it was gathered with.
    - C(problems) is a list of C(code), C(message), C(remedy) and C(nodes). The codes are V(no_shared_subnet), V(no_control_network),
      V(rail_unmatched) and V(rails_crossed).
  type: dict
  sample:
    topology: pair
    nodes:
      spark1:
        control_address: null
        subnet_aware: false
        without: []
        again: false
    problems: []
"""

import dataclasses
import typing as t

from ansible.errors import AnsibleFilterError

from ansible_collections.sparkstack.inference.plugins.plugin_utils import _fabric_group


def fabric_group(fabrics: t.Any) -> dict[str, t.Any]:
    """The group as plain data, see the documentation above."""
    if not isinstance(fabrics, t.Mapping):
        raise AnsibleFilterError("fabric_group: give a mapping of each node to its fact 'fabric'.")
    return dataclasses.asdict(_fabric_group.group({str(node): fabric for node, fabric in fabrics.items() if isinstance(fabric, t.Mapping)}))


class FilterModule:
    """The filters of this file."""

    def filters(self) -> dict[str, t.Callable[..., dict[str, t.Any]]]:
        """Their names."""
        return {"fabric_group": fabric_group}
