# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: launch_record
short_description: The record of a launch, as the nodes and the controller keep it
version_added: 1.0.0
author: The sparkstack.inference developers (@sparkstack)
description:
  - Puts together, out of a plan and of what became of it, what M(sparkstack.inference.launch_record) keeps. It tells who started what and why,
    the phases of each rank, the verdict, how long it took to serve, and the memory that was planned beside what the engine reports of itself.
  - Under C(told) stands what P(sparkstack.inference.launch_report_html#filter) needs beyond that, such as each rank's end, some evidence
    and the memory's curve.
  - No secret is in it.
positional: verdict, answer
options:
  _input:
    description: The RV(sparkstack.inference.inference_plan#module:plan) of the launch, made with all nodes.
    type: dict
    required: true
  verdict:
    description: What M(sparkstack.inference.init_phase_wait) returned, or empty where the ranks were not watched.
    type: dict
    default: {}
  answer:
    description: What M(sparkstack.inference.inference_proof) returned, or empty where the head was not asked.
    type: dict
    default: {}
  began:
    description: When its ranks were first touched, in seconds since the epoch.
    type: float
    required: true
  failure:
    description: Why the launch came to nothing, in a sentence.
    type: str
    default: ""
  who:
    description:
      - Who launches it, with C(user), C(host) and C(job), as RV(sparkstack.inference.deployment_lock#module:lock) has it.
      - By default who runs this on the controller.
    type: dict
  restored:
    description: It was started to go back to an earlier launch.
    type: bool
    default: false
  beside:
    description:
      - What else is known of the launch. C(transfers) has for each node C(bytes_sent), C(seconds) and C(throughput_mb_s), as
        M(sparkstack.inference.docker_image_sync) returns them, and C(what) it is, or a list of such. C(preflight) is the
        RV(sparkstack.inference.preflight_report#module:report), and C(collective) what M(sparkstack.inference.collective_proof) returned. Each may be missing.
    type: dict
    default: {}
seealso:
  - module: sparkstack.inference.launch_record
"""

EXAMPLES = r"""
---
- name: Keep what became of a launch
  sparkstack.inference.launch_record:
    deployment: "{{ plan.deployment }}"
    record: "{{ plan | sparkstack.inference.launch_record(verdict, answer, began=1796029200.0) }}"
"""

RETURN = r"""
_value:
  description: The record.
  type: dict
  sample:
    launch_id: 20261130T080012Z-1a2b3c
    deployment: qwen3.5-122b-a10b-fp8
    answered: true
    seconds_to_ready: 412.0
"""

import os
import time
import typing as t

from ansible.errors import AnsibleFilterError
from ansible.utils.unsafe_proxy import wrap_var

from ansible_collections.sparkstack.inference.plugins.plugin_utils import _history, _run


def launch_record(
    plan: t.Any,
    verdict: t.Any = None,
    answer: t.Any = None,
    began: float | None = None,
    failure: str = "",
    who: t.Any = None,
    restored: bool = False,
    beside: t.Any = None,
) -> dict[str, t.Any]:
    """The record, see the documentation above."""
    if not isinstance(plan, t.Mapping) or not plan.get("launch_id") or "ranks" not in plan:
        raise AnsibleFilterError("launch_record: this is no plan of a launch: give what inference_plan returned with nodes.")
    now = time.time()
    person = who or _run.owner({}, os.getpid())
    known = {key: person.get(key) for key in ("user", "host", "job")}
    times = (float(began if began is not None else now), now)
    # What a log says is in it, and may look like a template.
    record = _history.record(plan, verdict or {}, answer or {}, times, known, str(failure), bool(restored), beside or {})
    return t.cast("dict[str, t.Any]", wrap_var(_bare(record)))


def _bare(value: t.Any) -> t.Any:
    """The same in plain lists and mappings: since ansible-core 2.19 a filter is given others, and C(wrap_var) can't make a list of their kind."""
    if isinstance(value, t.Mapping):
        return {key: _bare(inner) for key, inner in value.items()}
    return [_bare(inner) for inner in value] if isinstance(value, (list, tuple)) else value


class FilterModule:
    """The filters of this file."""

    def filters(self) -> dict[str, t.Callable[..., dict[str, t.Any]]]:
        """Their names."""
        return {"launch_record": launch_record}
