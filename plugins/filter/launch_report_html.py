# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: launch_report_html
short_description: The report of a launch as one HTML file
version_added: 1.0.0
author: The sparkstack.inference developers (@sparkstack)
description:
  - Turns a launch's record, or a verdict alone, into one HTML file that needs no network, no script and no other file. It tells the verdict with its
    evidence, where each rank stood, the phases of all ranks side by side, each node's memory beside the plan, and what was checked and brought before.
  - It can be read on a phone, in light and dark, by a screen reader, and on paper.
  - Everything in it is escaped, since anybody can write into a log. Keys and tokens that are found in it are replaced by asterisks.
positional: verdict
options:
  _input:
    description:
      - A launch's record, as P(sparkstack.inference.launch_record#filter) makes it and as M(sparkstack.inference.launch_record) keeps it.
      - Or what M(sparkstack.inference.init_phase_wait) returned.
    type: dict
    required: true
  verdict:
    description:
      - With a record, what M(sparkstack.inference.init_phase_wait) returned of that launch. A record keeps less of it, neither all of the evidence nor the
        closer look.
    type: dict
    default: {}
  beside:
    description:
      - What else is known and not in the record, as the option of the same name of P(sparkstack.inference.launch_record#filter).
    type: dict
    default: {}
  note:
    description: A sentence to be told as well.
    type: str
    default: ""
  hide:
    description: Secrets, which are replaced wherever and however they stand.
    type: list
    elements: str
    default: []
seealso:
  - plugin: sparkstack.inference.launch_record
    plugin_type: filter
  - plugin: sparkstack.inference.launch_report
    plugin_type: filter
"""

EXAMPLES = r"""
---
- name: Leave a report of a launch
  ansible.builtin.copy:
    content: "{{ tp_launch_record | sparkstack.inference.launch_report_html }}"
    dest: launch.html
    mode: "0600"
  delegate_to: localhost
"""

RETURN = r"""
_value:
  description: The whole file.
  type: str
"""

import time
import typing as t

from ansible.errors import AnsibleFilterError
from ansible.utils.unsafe_proxy import wrap_var

from ansible_collections.sparkstack.inference.plugins.plugin_utils import _html_page, _report_data


def launch_report_html(given: t.Any, verdict: t.Any = None, beside: t.Any = None, note: str = "", hide: t.Any = ()) -> str:
    """The file, see the documentation above."""
    try:
        data = _report_data.launch(given, verdict or {}, beside or {}, str(note or ""), [str(text) for text in hide or [] if text])
    except ValueError as error:
        raise AnsibleFilterError(f"launch_report_html: {error}") from error
    # What a log says is in it, and may look like a template.
    return t.cast("str", wrap_var(_html_page.page(data, time.time())))


class FilterModule:
    """The filters of this file."""

    def filters(self) -> dict[str, t.Callable[..., str]]:
        """Their names."""
        return {"launch_report_html": launch_report_html}
