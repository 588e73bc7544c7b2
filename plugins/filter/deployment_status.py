# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: deployment_status
short_description: Every deployment on the nodes as one mapping
version_added: 1.0.0
author: The sparkstack.inference developers (@sparkstack)
description:
  - Puts together what modules told of each node. For each deployment it tells its state, ranks, endpoint, last answer, lock and last launches, and how it
    differs from a recipe.
  - A node that could not be reached makes a deployment's state unknown where a rank may be on it.
positional: hosts, wanted
options:
  _input:
    description:
      - One mapping a host, with C(name), C(host) (by which clients reach it), C(info) (what M(sparkstack.inference.inference_info) returned), C(memory) (the
        fact C(gpu_memory) with its holders), C(answers) (the results of M(sparkstack.inference.inference_proof) in a loop over the heads' containers),
        C(routed) (the same over the running routers) and C(verdicts) (what M(sparkstack.inference.init_phase_wait) returned, by deployment). What there is
        none of is empty.
    type: list
    elements: dict
    required: true
  hosts:
    description: The names of all hosts. One that has no mapping could not be reached.
    type: list
    elements: str
    required: true
  wanted:
    description: The RV(sparkstack.inference.inference_plan#module:plan) of the recipe that is wanted, or empty.
    type: dict
    default: {}
seealso:
  - plugin: sparkstack.inference.deployment_status_report
    plugin_type: filter
"""

EXAMPLES = r"""
---
- name: Keep what runs
  ansible.builtin.set_fact:
    status: "{{ ansible_play_hosts_all | map('extract', hostvars, 'seen') | sparkstack.inference.deployment_status(ansible_play_hosts_all) }}"
"""

RETURN = r"""
_value:
  description: The mapping, as C(docs/status.md) of the collection describes it.
  type: dict
  sample:
    format: 1
    taken_at: "2026-11-30T08:30:00Z"
    nodes: {}
    deployments: {}
"""

import typing as t

from ansible.errors import AnsibleFilterError

from ansible_collections.sparkstack.inference.plugins.plugin_utils import _run, _status


def deployment_status(nodes: t.Any, hosts: t.Any, wanted: t.Any = None) -> dict[str, t.Any]:
    """The mapping, see the documentation above."""
    nodes = list(nodes)
    if not all(isinstance(node, t.Mapping) and node.get("name") for node in nodes):
        raise AnsibleFilterError("deployment_status: each host needs a mapping with its name.")
    seen = {node["name"]: node for node in nodes}
    return _status.survey([seen.get(host, {"name": host}) for host in hosts], wanted or None, gone=_run.gone)


class FilterModule:
    """The filters of this file."""

    def filters(self) -> dict[str, t.Callable[..., dict[str, t.Any]]]:
        """Their names."""
        return {"deployment_status": deployment_status}
