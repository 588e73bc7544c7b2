# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: deployment_status_report
short_description: The deployments on the nodes as lines that people read
version_added: 1.0.0
author: The sparkstack.inference developers (@sparkstack)
description:
  - Turns what the filter P(sparkstack.inference.deployment_status#filter) returned into lines.
positional: deployment
options:
  _input:
    description: What P(sparkstack.inference.deployment_status#filter) returned.
    type: dict
    required: true
  deployment:
    description: The only deployment that was asked for, if it was only one.
    type: str
    default: ""
seealso:
  - plugin: sparkstack.inference.deployment_status
    plugin_type: filter
"""

EXAMPLES = r"""
---
- name: Show what runs
  ansible.builtin.debug:
    msg: "{{ status | sparkstack.inference.deployment_status_report }}"
"""

RETURN = r"""
_value:
  description: The lines.
  type: list
  elements: str
  sample:
    - "qwen: serving, qwen3.5 at http://spark1:30000/v1 by sglang from lmsysorg/sglang:spark"
"""

import typing as t

from ansible.errors import AnsibleFilterError

from ansible_collections.sparkstack.inference.plugins.plugin_utils import _status


def deployment_status_report(status: t.Any, deployment: str = "") -> list[str]:
    """The lines, see the documentation above."""
    if not isinstance(status, t.Mapping) or status.get("format") != _status.FORMAT:
        raise AnsibleFilterError("deployment_status_report: this is no status: give what the filter deployment_status returned.")
    return _status.lines(status, deployment)


class FilterModule:
    """The filters of this file."""

    def filters(self) -> dict[str, t.Callable[..., list[str]]]:
        """Their names."""
        return {"deployment_status_report": deployment_status_report}
