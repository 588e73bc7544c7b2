#!/usr/bin/python
# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: support_bundle
short_description: Write all that is known of a launch into one archive, without secrets
version_added: 1.0.0
description:
  - Collects, on all nodes at once, the log and the inspection of the rank's container, what its memory guard told, and what the system, Docker, the GPU
    driver, the kernel and the fabric say, and writes them with the verdict into one archive on the controller.
  - One task over all ranks makes one archive. The first member writes it.
  - Secrets are replaced by asterisks in every file. These are the values that each container was given in secret-looking variables, in options such as
    C(--api-key), and in the file that the collection keeps for it, and the values of the playbook's own secret-looking variables, also where they stand in
    JSON, in URLs, in base64 or in hexadecimal. What looks like a key or a token by its surroundings is replaced as well.
  - A value of fewer than four characters can't be told from other text, and is replaced only where its name stands beside it.
  - The archive appears in one step and can be read by its owner only. Nothing is left on the nodes.
  - A node that can't be reached is left out, and a file says so.
author: The sparkstack.inference developers (@sparkstack)
extends_documentation_fragment:
  - sparkstack.inference.attributes
  - sparkstack.inference.attributes.actiongroup_spark
attributes:
  action:
    description: Indicates this has a corresponding action plugin so some parts of the options can be executed on the controller.
    support: full
  check_mode:
    support: full
  diff_mode:
    support: none
    details:
      - The archive holds megabytes of logs.
  idempotent:
    support: none
    details:
      - An archive that is there is refused, or replaced with O(force).
  platform:
    description: The nodes run Linux. With O(logs) nothing is needed on them.
    support: full
    platforms: linux
options:
  path:
    description:
      - The archive on the controller, a C(.tar.gz). Its folder must be there.
      - A relative path starts from the folder in which Ansible was started.
    type: path
    required: true
  verdict:
    description:
      - What M(sparkstack.inference.init_phase_wait) returned.
    type: dict
    required: true
  report:
    description:
      - The verdict as lines, see P(sparkstack.inference.launch_report#filter).
    type: list
    elements: str
    default: []
  container:
    description:
      - The container of this host's rank.
      - Without it, only what the system says is read here.
    type: str
  logs:
    description:
      - Log files on the controller instead of containers, each with C(node) and C(path). No node is looked at then.
    type: list
    elements: dict
  members:
    description:
      - The hosts that take part, the one first that writes.
      - When it is not given, the hosts of the play.
    type: list
    elements: str
  force:
    description:
      - Whether a file of that name is replaced.
    type: bool
    default: false
  timeout:
    description:
      - Seconds until every node must have given its part.
    type: float
    default: 300
seealso:
  - module: sparkstack.inference.init_phase_wait
  - plugin: sparkstack.inference.launch_report
    plugin_type: filter
"""

EXAMPLES = r"""
---
- name: Judge what there is now
  sparkstack.inference.init_phase_wait:
    container: qwen-rank{{ rank }}
    timeout: 0
  become: true
  register: launch

- name: Write it all down
  sparkstack.inference.support_bundle:
    path: support.tar.gz
    verdict: "{{ launch }}"
    report: "{{ launch | sparkstack.inference.launch_report }}"
    container: qwen-rank{{ rank }}
  become: true
"""

RETURN = r"""
path:
  description: The archive as an absolute path.
  type: str
  returned: success
size_bytes:
  description: Its size in bytes.
  type: int
  returned: by the host that wrote it
files:
  description: The files in it.
  type: list
  elements: str
  returned: by the host that wrote it
  sample: [about.json, report.txt, spark1/container.json, spark1/container.log, verdict.json]
"""
