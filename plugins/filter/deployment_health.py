# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: deployment_health
short_description: Whether what should serve does
version_added: 1.0.0
author: The sparkstack.inference developers (@sparkstack)
description:
  - Makes of the status of all deployments the one verdict that a health check ends with, in the same variables as
    P(sparkstack.inference.launch_outcome#filter). Where several are not well, the first is told and the others are named.
positional: deployment, stage, serving
options:
  _input:
    description: What P(sparkstack.inference.deployment_status#filter) returned.
    type: dict
    required: true
  deployment:
    description: The only deployment that is asked for. Empty, all are.
    type: str
    default: ""
  stage:
    description: The name of the job's part.
    type: str
    default: health
  serving:
    description: Whether one that still starts is not well.
    type: bool
    default: false
seealso:
  - plugin: sparkstack.inference.launch_outcome
    plugin_type: filter
"""

EXAMPLES = r"""
---
- name: Judge what runs
  ansible.builtin.set_fact:
    health: "{{ tp_launch_status | sparkstack.inference.deployment_health }}"

- name: End with the verdict
  ansible.builtin.fail:
    msg: "{{ health.failure }}"
  when: health.failure | length > 0
"""

RETURN = r"""
_value:
  description:
    - C(outcome) holds the variables by their names, as C(docs/awx.md) of the collection describes them.
    - C(failure) is the sentence that a health check ends with, or empty.
  type: dict
  sample:
    failure: ""
    outcome:
      sparkstack_stage: health
      sparkstack_verdict: ready
      sparkstack_deployment: qwen
"""

import typing as t

from ansible.errors import AnsibleFilterError

from ansible_collections.sparkstack.inference.plugins.plugin_utils import _outcome


def deployment_health(status: t.Any, deployment: str = "", stage: str = "health", serving: bool = False) -> dict[str, t.Any]:
    """The verdict, see the documentation above."""
    if not isinstance(status, t.Mapping) or "deployments" not in status:
        raise AnsibleFilterError("deployment_health: give what the filter deployment_status returned.")
    outcome = _outcome.health(status, str(deployment), str(stage), bool(serving))
    return {"outcome": outcome, "failure": _outcome.unwell(outcome, bool(serving))}


class FilterModule:
    """The filters of this file."""

    def filters(self) -> dict[str, t.Callable[..., dict[str, t.Any]]]:
        """Their names."""
        return {"deployment_health": deployment_health}
