# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import time
import typing as t

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from ansible_collections.sparkstack.inference.plugins.module_utils._words import size
from ansible_collections.sparkstack.inference.plugins.plugin_utils import _memory_return

ARGUMENTS: dict[str, dict[str, t.Any]] = {
    "before": {"type": "dict", "required": True},
    "containers": {"type": "list", "elements": "str", "required": True},
    "guard": {"type": "dict"},
    "timeout": {"type": "int", "default": 60},
}
_PAUSE = 1.0
"""Seconds between two looks."""


class ActionModule(ActionBase):
    """Looks at the node's memory until what the ranks held is available again."""

    TRANSFERS_FILES = False
    _supports_check_mode = True
    _supports_async = False

    # Fakes of these stand in for time in the tests.
    clock = staticmethod(time.monotonic)
    pause = staticmethod(time.sleep)

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        result: dict[str, t.Any] = super().run(tmp, task_vars)
        task_vars = task_vars or {}
        _validation, args = self.validate_argument_spec(argument_spec=ARGUMENTS)
        before, names = args["before"], args["containers"]
        if "holders" not in before:
            raise AnsibleActionFail("before has no holders: give the fact gpu_memory that gpu_memory_facts returned with holders: true.")
        node = str(task_vars.get("inventory_hostname"))
        if args["guard"]:
            before = _memory_return.before_stop(before, args["guard"], names)
        if self._task.check_mode:
            there, free, total = _memory_return.held(before, names), before["available_bytes"], before["total_bytes"]
            result.update(changed=False, returned=True, held_bytes=there, returned_bytes=0, available_bytes=free, total_bytes=total, holder=None)
            would = f"{size(there)} would come back" if there else "the ranks hold nothing"
            result["msg"] = f"{node}: {would}, {_memory_return.available(free, total)}"
            return result
        deadline = self.clock() + args["timeout"]
        while True:
            found = _memory_return.compare(before, self._look(task_vars), names)
            if found.done or self.clock() >= deadline:
                break
            self.pause(_PAUSE)
        keys = ("held_bytes", "returned_bytes", "available_bytes", "total_bytes", "holder")
        result.update(
            changed=False, failed=not found.done, returned=found.done, msg=found.sentence(node, args["timeout"]), **{key: getattr(found, key) for key in keys}
        )
        return result

    def _look(self, task_vars: dict[str, t.Any]) -> dict[str, t.Any]:
        outcome = self._execute_module(module_name="sparkstack.inference.gpu_memory_facts", module_args={"holders": True}, task_vars=task_vars)
        if outcome.get("failed"):
            raise AnsibleActionFail(f"The memory could not be measured: {outcome.get('msg', 'failed')}")
        return t.cast("dict[str, t.Any]", outcome["ansible_facts"]["gpu_memory"])
