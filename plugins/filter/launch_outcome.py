# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: launch_outcome
short_description: What a launch hands over to the next job and to a notification
version_added: 1.0.0
author: The sparkstack.inference developers (@sparkstack)
description:
  - Puts the verdict, the endpoint, the launch and the plan into the variables that M(ansible.builtin.set_stats) makes artifacts of. All of them are always
    there. They hold no secrets, no environment and no log.
positional: verdict, failure, stage, deployment, check_mode
options:
  _input:
    description: The RV(sparkstack.inference.inference_plan#module:plan), or nothing where none was made.
    type: dict
    required: true
  verdict:
    description: What M(sparkstack.inference.init_phase_wait) returned, or nothing.
    type: dict
    default: {}
  failure:
    description: The sentence that the job ends with. Empty where it went well.
    type: str
    default: ""
  stage:
    description: The name of the job's part.
    type: str
    default: deploy
  deployment:
    description: The deployment's name, where there is no plan that has it.
    type: str
    default: ""
  check_mode:
    description: Whether nothing was done.
    type: bool
    default: false
seealso:
  - plugin: sparkstack.inference.deployment_health
    plugin_type: filter
"""

EXAMPLES = r"""
---
- name: Hand over what came of it
  ansible.builtin.set_stats:
    data: "{{ tp_launch_plan | sparkstack.inference.launch_outcome(launch, stage='deploy') }}"
    aggregate: false
  run_once: true
"""

RETURN = r"""
_value:
  description: The variables by their names, as C(docs/awx.md) of the collection describes them.
  type: dict
  sample:
    sparkstack_stage: deploy
    sparkstack_verdict: ready
    sparkstack_summary: qwen serves at http://spark1:8000/v1.
    sparkstack_endpoint: http://spark1:8000/v1
"""

import typing as t

from ansible.errors import AnsibleFilterError

from ansible_collections.sparkstack.inference.plugins.plugin_utils import _outcome


def launch_outcome(
    plan: t.Any, verdict: t.Any = None, failure: str = "", stage: str = "deploy", deployment: str = "", check_mode: bool = False
) -> dict[str, t.Any]:
    """The variables, see the documentation above."""
    for name, given in (("plan", plan), ("verdict", verdict)):
        if given and not isinstance(given, t.Mapping):
            raise AnsibleFilterError(f"launch_outcome: the {name} must be a mapping.")
    return _outcome.launch(str(stage), plan or {}, verdict or {}, str(failure), str(deployment), bool(check_mode))


class FilterModule:
    """The filters of this file."""

    def filters(self) -> dict[str, t.Callable[..., dict[str, t.Any]]]:
        """Their names."""
        return {"launch_outcome": launch_outcome}
