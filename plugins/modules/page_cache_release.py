#!/usr/bin/python
# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: page_cache_release
short_description: Gives page cache back, so that CUDA finds the memory free
version_added: 1.0.0
author:
  - The sparkstack.inference developers (@sparkstack)
description:
  - On a GB10 the page cache counts as used for CUDA. A node that has just copied a model or an image can have nearly all its memory there.
  - The pages of certain files are given back first, and all page cache only where that is allowed and still needed.
  - Nothing is lost, since the kernel reads such pages from the disk again. What is not on the disk yet is written first.
extends_documentation_fragment:
  - sparkstack.inference.attributes
  - sparkstack.inference.attributes.actiongroup_spark
attributes:
  check_mode:
    support: full
    details:
      - It says that pages would be given back. How many, only the kernel can tell.
  diff_mode:
    support: N/A
    details:
      - Memory has no content to compare.
  idempotent:
    support: full
options:
  wanted:
    description:
      - Bytes that are to be free. Nothing is done where they are.
      - With V(0) as much is given back as there is.
    type: int
    default: 0
  paths:
    description:
      - Files and folders whose pages are given back first, such as the model's folder.
      - A path that is not there is passed over.
    type: list
    elements: path
    default: []
  all:
    description:
      - Whether all page cache of the node may be given back when that of O(paths) was not enough. Takes root, and for some seconds slows down
        whatever reads from the disk.
    type: bool
    default: false
seealso:
  - module: sparkstack.inference.gpu_memory_facts
"""

EXAMPLES = r"""
---
- name: Have 100 GB free before a launch
  sparkstack.inference.page_cache_release:
    wanted: 100000000000
    paths: [/srv/models]
    all: true
  become: true
"""

RETURN = r"""
free_before_bytes:
  description: What was free before.
  returned: always
  type: int
free_bytes:
  description: What is free now. In check mode the same as before.
  returned: always
  type: int
page_cache_bytes:
  description: What is in the page cache now.
  returned: always
  type: int
actions:
  description: What was done, V(files) and V(all), in this order.
  returned: always
  type: list
  elements: str
  sample: [files]
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.sparkstack.inference.plugins.module_utils import _page_cache as pages


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "wanted": {"type": "int", "default": 0},
            "paths": {"type": "list", "elements": "path", "default": []},
            "all": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    params = module.params
    if params["wanted"] < 0:
        module.fail_json(msg="wanted is {0}: give the bytes that are to be free, or 0 for as many as there are.".format(params["wanted"]))
    before = now = pages.memory()
    actions = []
    found = pages.files(params["paths"]) if pages.needed(now, params["wanted"]) else []
    held = pages.held(found)
    gained = 0
    # Files that nobody has read, or that were given back before, have nothing to give.
    if held >= pages.LEAST:
        actions.append("files")
        if not module.check_mode:
            pages.drop_files(found)
            # What is mapped by a process, or not written yet, is kept.
            gained = held - pages.held(found)
            now = pages.memory()
    if params["all"] and pages.needed(now, params["wanted"]):
        actions.append("all")
        if not module.check_mode:
            try:
                pages.drop_all()
            except OSError as error:
                module.fail_json(msg="The page cache can't be given back ({0}): run this with become, or set all to false.".format(error.strerror or error))
            now = pages.memory()
    # The node's own figure moves by what others read and write meanwhile, so the files are asked for theirs.
    changed = bool(actions) and (module.check_mode or max(gained, before.cache - now.cache) >= pages.LEAST)
    module.exit_json(changed=changed, free_before_bytes=before.free, free_bytes=now.free, page_cache_bytes=now.cache, actions=actions)


if __name__ == "__main__":
    main()
