#!/usr/bin/python

# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: launch_record
short_description: A launch's record on its nodes
version_added: 1.0.0
author:
  - The sparkstack.inference developers (@sparkstack)
description:
  - Keeps on a node what was launched, by whom, why, and what became of it, so that the next run and the next person can know.
  - The newest launches of each deployment are kept, and apart from them the last one that answered a real request and the last one before it that
    was something else.
  - The records lie below O(folder), which only its owner can read, root on a node. M(sparkstack.inference.inference_info) returns them.
extends_documentation_fragment:
  - sparkstack.inference.attributes
  - sparkstack.inference.attributes.actiongroup_spark
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
  idempotent:
    support: full
options:
  deployment:
    description:
      - The deployment's name.
    type: str
    required: true
  record:
    description:
      - What is known of the launch. C(launch_id) is required. Keep secrets out of it.
      - These keys are read again. C(action), C(who), C(began), C(ended), C(seconds_to_ready), C(answer), C(answered), C(restored), C(verdict), C(recipe),
        C(image) and C(model); C(began) and C(ended) are seconds since the epoch. All others are kept as they are.
      - Keys that a later call for the same launch leaves out keep their values.
      - Required with O(state=present).
    type: dict
  good:
    description:
      - The launch has answered a real request. From now on it is the one that a rollback goes back to.
    type: bool
    default: false
  keep:
    description:
      - How many launches of the deployment are kept, at least V(1). Older ones are removed.
    type: int
    default: 20
  folder:
    description:
      - Where the records of all deployments lie, by default C(/var/lib/sparkstack/deployments).
    type: path
  state:
    description:
      - With V(present) the record is kept.
      - With V(absent) all that this node has recorded of the deployment is removed, with its lock.
    type: str
    choices: [present, absent]
    default: present
seealso:
  - module: sparkstack.inference.deployment_lock
  - module: sparkstack.inference.inference_info
"""

EXAMPLES = r"""
---
- name: Keep what became of the launch
  sparkstack.inference.launch_record:
    deployment: qwen3.5-122b-a10b-fp8
    record:
      launch_id: 20261130T080012Z-1a2b3c
      began: 1796025612.5
      ended: 1796025801.0
      answered: true
    good: true
  become: true

- name: Forget a deployment for good
  sparkstack.inference.launch_record:
    deployment: qwen3.5-122b-a10b-fp8
    state: absent
  become: true
"""

RETURN = r"""
path:
  description: The file with the record, or with O(state=absent) the folder that is removed.
  returned: success
  type: str
  sample: /var/lib/sparkstack/deployments/qwen3.5-122b-a10b-fp8/launches/20261130T080012Z-1a2b3c.json
"""

import os
import typing as t

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.sparkstack.inference.plugins.module_utils._ledger import Ledger, LedgerError
from ansible_collections.sparkstack.inference.plugins.module_utils._words import document


def keep(module: AnsibleModule, ledger: Ledger) -> t.Dict[str, t.Any]:
    """Write the record; the module's result."""
    params = module.params
    good_before = (ledger.read()["good"] or {}).get("launch_id")
    before, after = ledger.write(params["record"] or {}, good=params["good"], keep=params["keep"], dry=module.check_mode)
    good_after = after["launch_id"] if params["good"] else good_before
    return {
        "changed": before != after or good_before != good_after,
        "path": ledger.path(after["launch_id"]),
        "diff": {
            "before": document({"record": before, "good": good_before} if before else {}),
            "after": document({"record": after, "good": good_after}),
        },
    }


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "deployment": {"type": "str", "required": True},
            "record": {"type": "dict"},
            "good": {"type": "bool", "default": False},
            "keep": {"type": "int", "default": 20},
            "folder": {"type": "path"},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
        },
        required_if=[("state", "present", ["record"])],
        supports_check_mode=True,
    )
    if module.params["keep"] < 1:
        module.fail_json(msg=f"keep is {module.params['keep']}: keep one launch or more.")
    try:
        ledger = Ledger(module.params["deployment"], folder=module.params["folder"])
        if module.params["state"] == "present":
            module.exit_json(**keep(module, ledger))
        known = ["launches " + ", ".join(ledger.read()["launches"])] if os.path.isdir(ledger.folder) else []
        changed = ledger.forget(dry=module.check_mode)
    except LedgerError as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=changed, path=ledger.folder, diff={"before": "".join(line + "\n" for line in known), "after": ""})


if __name__ == "__main__":
    main()
