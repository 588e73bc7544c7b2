#!/usr/bin/python
# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: diagnosis_plan
short_description: Find out which containers or logs are to be judged as which ranks
version_added: 1.0.0
description:
  - Decides what the playbook C(sparkstack.inference.diagnose) judges, out of what M(sparkstack.inference.inference_info) said of every node and of
    what the user named. A mistake is answered in one sentence.
  - The order of the ranks is that of the deployment's labels, else that of several named containers, else that of the inventory's groups C(head) and
    C(workers), else what the ranks' logs claim, else that of the play.
  - It also refuses at once files that could not be written at the end. To know that, it makes an empty file in their folders and removes it again.
  - It runs on the controller and changes nothing.
author: The sparkstack.inference developers (@sparkstack)
extends_documentation_fragment:
  - sparkstack.inference.attributes
  - sparkstack.inference.attributes.actiongroup_spark
  - sparkstack.inference.attributes.info_module
attributes:
  action:
    description: Indicates this has a corresponding action plugin so some parts of the options can be executed on the controller.
    support: full
options:
  variables:
    description:
      - The variables that the playbook reads. One of the command line (C(-e)) that is nearly one of them, such as C(log) for C(logs), is refused.
    type: list
    elements: str
    default: []
  hosts:
    description:
      - The hosts of the play, in its order.
    type: list
    elements: str
    default: []
  nodes:
    description:
      - What M(sparkstack.inference.inference_info) with C(search) returned, by host. A host that could not be reached is left out.
    type: dict
    default: {}
  containers:
    description:
      - The containers that the user named, by host. Each is a name, several names with commas between or in a list (the head's first), or a mapping from
        hosts to names.
      - Without any, the ranks of O(deployment) are taken, or of the only deployment there is, or else, on each node, the newest container that looks like an
        inference engine.
      - Of a node that has no container of the given names, the only one that looks like an engine is taken, and that is told.
    type: dict
    default: {}
  deployment:
    description:
      - The deployment, where there are several.
    type: str
  head:
    description:
      - The hosts of the inventory's group C(head).
    type: list
    elements: str
    default: []
  workers:
    description:
      - The hosts of the inventory's group C(workers).
    type: list
    elements: str
    default: []
  claims:
    description:
      - What the ranks' logs claim, by host, as C(reading.claims) of M(sparkstack.inference.init_phase_probe) tells.
      - They tell the order where nothing else does, and whether a node that has no container of the given name takes part at all.
    type: dict
  logs:
    description:
      - Logs on the controller instead of containers. A list of paths, of mappings as M(sparkstack.inference.init_phase_wait) takes them, or paths with commas
        between.
      - Relative paths start from the folder in which Ansible was started.
      - Of a plain path, the file's name is the node and its place in the list the rank.
    type: raw
  bundle:
    description:
      - The support bundle that is to be written. Its folder must be there, and the file may not be O(json) nor one of O(logs).
    type: str
  json:
    description:
      - The file for the verdict as JSON. Its folder must be there, and the file may not be O(bundle) nor one of O(logs).
    type: str
  force:
    description:
      - Whether O(bundle) may replace a file.
    type: bool
    default: false
seealso:
  - module: sparkstack.inference.inference_info
  - module: sparkstack.inference.init_phase_wait
"""

EXAMPLES = r"""
---
- name: Look at the containers of every node
  sparkstack.inference.inference_info:
    search: true
  become: true
  register: node

- name: Choose those to judge
  sparkstack.inference.diagnosis_plan:
    hosts: "{{ ansible_play_hosts }}"
    nodes: "{{ dict(ansible_play_hosts | zip(ansible_play_hosts | map('extract', hostvars, 'node'))) }}"
  run_once: true
  register: chosen
"""

RETURN = r"""
plan:
  description: What is to be judged.
  type: dict
  returned: success
  contains:
    ranks:
      description: The containers, each with C(node), C(rank) and C(container), the head first.
      type: list
      elements: dict
    ordered:
      description:
        - Whether it is known which nodes take part, and in which order. Where it is not, the module is called again with O(claims).
      type: bool
    deployment:
      description: The deployment, or nothing for containers that somebody else has started.
      type: str
    notes:
      description: Sentences on what was taken and what was left aside.
      type: list
      elements: str
    logs:
      description: The logs as M(sparkstack.inference.init_phase_wait) takes them.
      type: list
      elements: dict
    bundle:
      description: O(bundle) as an absolute path, or nothing.
      type: str
    json:
      description: O(json) as an absolute path, or nothing.
      type: str
"""
