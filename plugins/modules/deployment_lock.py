#!/usr/bin/python

# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: deployment_lock
short_description: Who works on a deployment now
version_added: 1.0.0
author:
  - The sparkstack.inference developers (@sparkstack)
description:
  - Takes a lock before a run changes a deployment, and gives it back afterwards, so that two runs never change it at once.
  - The lock lies at the deployment's head and tells who holds it, from where and since when. A run that meets another's lock is refused with one sentence.
  - A run that was killed leaves its lock. The next run takes it over at once when it comes from the same controller, whose processes it can see, and
    otherwise when the time of the lock is over, or when it is told to with O(force).
  - A run decides by what it has seen, and takes the lock later. With O(seen) it is refused when another run has held the lock in between.
extends_documentation_fragment:
  - sparkstack.inference.attributes
  - sparkstack.inference.attributes.actiongroup_spark
attributes:
  check_mode:
    support: full
    details:
      - It says whether the lock could be had, and is refused as it would be outside of check mode.
  diff_mode:
    support: full
  idempotent:
    support: full
    details:
      - A run that has the lock can take it again, which only prolongs it.
options:
  deployment:
    description:
      - The deployment's name.
    type: str
    required: true
  state:
    description:
      - With V(held) this run has the lock.
      - With V(free) it has given it back. The lock of another run stays, unless O(force) is given.
    type: str
    choices: [held, free]
    default: held
  timeout:
    description:
      - Seconds from now after which any run may take the lock over. Taking it again prolongs it.
    type: int
    default: 3600
  seen:
    description:
      - When the caller has looked at the deployment, as RV(sparkstack.inference.inference_info#module:now) of the same node tells it.
      - Without it nothing is asked.
    type: float
  force:
    description:
      - Take or free the lock whoever holds it.
    type: bool
    default: false
  run:
    description:
      - What this run is called. By default the controller's name, boot, process and that process's start, which no other run has.
    type: str
  owner:
    description:
      - Who this run is, for people. By default the plugin on the controller finds it out.
    type: dict
    suboptions:
      user:
        description: The user.
        type: str
      host:
        description: The controller.
        type: str
      pid:
        description: The controller's process.
        type: int
      job:
        description: The number of the job in AWX.
        type: str
  replace:
    description:
      - A run that is known to have ended, whose lock is taken over. By default the plugin on the controller finds it out.
    type: str
seealso:
  - module: sparkstack.inference.inference_info
  - module: sparkstack.inference.launch_record
"""

EXAMPLES = r"""
---
- name: Let no other run change the deployment meanwhile
  sparkstack.inference.deployment_lock:
    deployment: qwen3.5-122b-a10b-fp8
    seen: "{{ node.now }}"
  become: true
  run_once: true
  delegate_to: "{{ groups['head'][0] }}"

- name: Let others work on it
  sparkstack.inference.deployment_lock:
    deployment: qwen3.5-122b-a10b-fp8
    state: free
  become: true
  run_once: true
  delegate_to: "{{ groups['head'][0] }}"
"""

RETURN = r"""
lock:
  description: Who holds the lock afterwards, or V(none). When the task is refused because of another run, that one.
  returned: always
  type: dict
  contains:
    run:
      description: The run.
      type: str
    user:
      description: The user.
      type: str
    host:
      description: The controller.
      type: str
    pid:
      description: The controller's process.
      type: int
    job:
      description: The number of the job in AWX, or V(none).
      type: str
    since:
      description: When the run took it, in seconds since the epoch by the node's clock.
      type: float
    until:
      description: When others may take it over, likewise.
      type: float
took_over:
  description: The lock of another run that did not give it back and that this run has taken over, with the same keys, or V(none).
  returned: success
  type: dict
msg:
  description: What became of another run's lock, in a sentence, or why the lock was refused.
  returned: when another run had the lock
  type: str
  sample: The lock that alice at ctl1 (pid 123) held since 07:02:11Z was taken over, because that run is gone.
"""

import time
import typing as t

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.sparkstack.inference.plugins.module_utils._ledger import ANYBODY, HeldError, Ledger, LedgerError, who
from ansible_collections.sparkstack.inference.plugins.module_utils._words import clock, document


def hold(module: AnsibleModule, ledger: Ledger) -> t.Dict[str, t.Any]:
    """Take the lock; the module's result."""
    params = module.params
    now = time.time()
    owner = {**(params["owner"] or {}), "run": params["run"]}
    taken = ledger.acquire(
        owner, now + params["timeout"], seen=params["seen"], replace=ANYBODY if params["force"] else params["replace"] or "", now=now, dry=module.check_mode
    )
    result = {
        "changed": taken.changed,
        "lock": taken.lock,
        "took_over": taken.took_over,
        # How long it is prolonged by is no change that anybody wants to see.
        "diff": {"before": document(taken.took_over if taken.changed else taken.lock), "after": document(taken.lock)},
    }
    if taken.took_over:
        result["msg"] = "The lock that {} held since {} was taken over, because {}.".format(
            who(taken.took_over), clock(taken.took_over.get("since"), now), taken.why
        )
    return result


def free(module: AnsibleModule, ledger: Ledger) -> t.Dict[str, t.Any]:
    """Give the lock back; the module's result."""
    gone = ledger.release(ANYBODY if module.params["force"] else module.params["run"], dry=module.check_mode)
    left = None if gone else ledger.read()["lock"]
    return {"changed": bool(gone), "lock": left, "took_over": None, "diff": {"before": document(gone or left), "after": document(left)}}


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "deployment": {"type": "str", "required": True},
            "state": {"type": "str", "choices": ["held", "free"], "default": "held"},
            "timeout": {"type": "int", "default": 3600},
            "seen": {"type": "float"},
            "force": {"type": "bool", "default": False},
            "run": {"type": "str"},
            "owner": {
                "type": "dict",
                "options": {"user": {"type": "str"}, "host": {"type": "str"}, "pid": {"type": "int"}, "job": {"type": "str"}},
            },
            "replace": {"type": "str"},
        },
        supports_check_mode=True,
    )
    if not module.params["run"]:
        module.fail_json(msg="run is missing: name this run, or let the plugin of this module on the controller do it.", lock=None)
    if module.params["timeout"] < 1:
        module.fail_json(msg=f"timeout is {module.params['timeout']}: give the seconds that the lock may be held.", lock=None)
    try:
        ledger = Ledger(module.params["deployment"])
        result = hold(module, ledger) if module.params["state"] == "held" else free(module, ledger)
    except HeldError as error:
        module.fail_json(msg=str(error), lock=error.holder)
    except LedgerError as error:
        module.fail_json(msg=str(error), lock=None)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
