# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: launch_target
short_description: The launch that can be gone back to
version_added: 1.0.0
author: The sparkstack.inference developers (@sparkstack)
description:
  - Chooses, among the launches that answered a real request and that the nodes have kept, the last one that is something else than what is there now.
    Two launches are the same when recipe, image content and model are.
positional: present
options:
  _input:
    description: What the nodes keep of the deployment, by rank, each an entry of RV(sparkstack.inference.inference_info#module:ledger).
    type: list
    elements: dict
    required: true
  present:
    description: The record of what is there and is not wanted any more. Without it the last launch that answered is taken.
    type: dict
seealso:
  - module: sparkstack.inference.launch_record
"""

EXAMPLES = r"""
---
- name: Find what can be gone back to
  ansible.builtin.set_fact:
    target: "{{ [node.ledger['qwen3.5-122b-a10b-fp8']] | sparkstack.inference.launch_target }}"
"""

RETURN = r"""
_value:
  description: The launch's record, or an empty one where there is none.
  type: dict
  sample:
    launch_id: 20261130T080012Z-1a2b3c
"""

import typing as t

from ansible.errors import AnsibleFilterError

from ansible_collections.sparkstack.inference.plugins.plugin_utils import _history


def launch_target(ledgers: t.Any, present: t.Any = None) -> dict[str, t.Any]:
    """The record, see the documentation above."""
    if isinstance(ledgers, (str, t.Mapping)) or not isinstance(ledgers, t.Iterable):
        raise AnsibleFilterError("launch_target: give a list of what the nodes keep of the deployment.")
    return _history.target([kept for kept in ledgers if isinstance(kept, t.Mapping)], present or None) or {}


class FilterModule:
    """The filters of this file."""

    def filters(self) -> dict[str, t.Callable[..., dict[str, t.Any]]]:
        """Their names."""
        return {"launch_target": launch_target}
