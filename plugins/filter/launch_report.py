# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: launch_report
short_description: The verdict over a launch as lines that people read
version_added: 1.0.0
author: The sparkstack.inference developers (@sparkstack)
description:
  - Turns what M(sparkstack.inference.init_phase_wait) returned into lines. First stand the verdict, the remedy, the cause and the log lines that decide,
    then one entry for each rank with its phases and the seconds that each took, then notes, and what the closer look has seen.
  - Lines of prose are broken at O(width). Log lines stay whole, so that they can be searched for.
positional: width, detail
options:
  _input:
    description: What M(sparkstack.inference.init_phase_wait) returned, or the record of a launch as M(sparkstack.inference.launch_record) keeps it.
    type: dict
    required: true
  width:
    description: The characters in a line of prose, at least one. A word that is longer stays whole.
    type: int
    default: 120
  detail:
    description:
      - How much is told.
      - V(short) leaves out the closer look and all but three lines of evidence.
      - V(normal) shortens long tracebacks and stacks.
      - V(full) leaves nothing out.
    type: str
    choices: [short, normal, full]
    default: normal
seealso:
  - module: sparkstack.inference.init_phase_wait
"""

EXAMPLES = r"""
---
- name: Show what became of a launch
  ansible.builtin.debug:
    msg: "{{ launch | sparkstack.inference.launch_report }}"

- name: Put a short report into a mail
  ansible.builtin.set_fact:
    mail_text: "{{ launch | sparkstack.inference.launch_report(width=72, detail='short') | join('\n') }}"
"""

RETURN = r"""
_value:
  description: The lines of the report.
  type: list
  elements: str
  sample:
    - "FAILED: spark2 (rank 1) ran out of memory in phase load_weights: torch.OutOfMemoryError: CUDA out of memory."
"""

import typing as t

from ansible.errors import AnsibleFilterError

from ansible_collections.sparkstack.inference.plugins.plugin_utils import _report, _report_data


def launch_report(verdict: t.Any, width: int = 120, detail: str = "normal") -> list[str]:
    """The lines of the report, see the documentation above."""
    if detail not in _report.DETAILS:
        raise AnsibleFilterError(f"launch_report knows no detail '{detail}': choose from {', '.join(_report.DETAILS)}.")
    try:
        if isinstance(verdict, t.Mapping) and verdict.get("launch_id"):
            data = _report_data.launch(verdict)
            verdict = {**data["verdict"], "nodes": dict(data["nodes"])}
        return _report.report(verdict, int(width), detail)
    except ValueError as error:
        raise AnsibleFilterError(f"launch_report: {error}") from error


class FilterModule:
    """The filters of this file."""

    def filters(self) -> dict[str, t.Callable[..., list[str]]]:
        """Their names."""
        return {"launch_report": launch_report}
