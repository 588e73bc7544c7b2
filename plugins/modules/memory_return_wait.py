#!/usr/bin/python

# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: memory_return_wait
short_description: Wait until the memory that ranks held is available again
version_added: 1.0.0
author:
  - The sparkstack.inference developers (@sparkstack)
description:
  - After ranks were removed, looks at the node's memory until what they held is available again, and says how much came back.
  - When it does not come back in time the task fails, and names who holds it.
  - It looks by way of M(sparkstack.inference.gpu_memory_facts). It changes nothing.
extends_documentation_fragment:
  - sparkstack.inference.attributes
  - sparkstack.inference.attributes.actiongroup_spark
attributes:
  action:
    description: Indicates this has a corresponding action plugin so some parts of the options can be executed on the controller.
    support: full
  check_mode:
    support: full
    details:
      - It says how much would come back, and waits for nothing.
  diff_mode:
    support: N/A
    details:
      - This action does not modify state.
  idempotent:
    support: full
options:
  before:
    description:
      - The fact C(gpu_memory) that M(sparkstack.inference.gpu_memory_facts) gathered with O(sparkstack.inference.gpu_memory_facts#module:holders=true)
        before the ranks were removed.
    type: dict
    required: true
  containers:
    description:
      - The names of the ranks' containers on this node.
    type: list
    elements: str
    required: true
  guard:
    description:
      - What M(sparkstack.inference.memory_guard) told (RV(sparkstack.inference.memory_guard#module:told)), where it has stopped the rank on this node.
      - The rank is gone by then. O(before) is the fact of before it was started, and what it held is what the guard saw it take.
    type: dict
  timeout:
    description:
      - Seconds within which the memory must be back.
      - A tenth of it, or half a GiB, may be missing, since others on the node use memory too.
    type: int
    default: 60
seealso:
  - module: sparkstack.inference.gpu_memory_facts
  - module: sparkstack.inference.inference_launch
"""

EXAMPLES = r"""
---
- name: Measure the memory
  sparkstack.inference.gpu_memory_facts:
    holders: true
  become: true

- name: Remove the rank
  sparkstack.inference.inference_launch:
    deployment: qwen3.5-122b-a10b-fp8
    state: absent
  become: true

- name: Wait until its memory is back
  sparkstack.inference.memory_return_wait:
    before: "{{ ansible_facts['gpu_memory'] }}"
    containers: [qwen3.5-122b-a10b-fp8-rank0]
  become: true
"""

RETURN = r"""
returned:
  description: It is back, or in check mode would be. Where it is not, the task fails.
  returned: always
  type: bool
held_bytes:
  description: What the ranks held before.
  returned: always
  type: int
returned_bytes:
  description: How much more is available than before.
  returned: always
  type: int
available_bytes:
  description: What is available now.
  returned: always
  type: int
total_bytes:
  description: The memory in all.
  returned: always
  type: int
holder:
  description: Who holds more than before, as an entry of C(holders) of M(sparkstack.inference.gpu_memory_facts), or V(none).
  returned: always
  type: dict
msg:
  description: How it went, in a sentence.
  returned: always
  type: str
  sample: "spark1: 3.2 GiB came back, 18.1 of 23.5 GiB available"
"""
