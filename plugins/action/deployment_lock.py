# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
import typing as t

from ansible.plugins.action import ActionBase

from ansible_collections.sparkstack.inference.plugins.plugin_utils import _run

ARGUMENTS: dict[str, dict[str, t.Any]] = {
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
}


class ActionModule(ActionBase):
    """Says to the node who this run is, and which run is gone: only the controller can see its processes."""

    TRANSFERS_FILES = False
    _supports_check_mode = True
    _supports_async = False

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        result: dict[str, t.Any] = super().run(tmp, task_vars)
        task_vars = task_vars or {}
        _validation, args = self.validate_argument_spec(argument_spec=ARGUMENTS)
        # This is a fork that Ansible made for the task and the host; its parent is the run.
        me = _run.owner(task_vars, os.getppid())
        name = args["run"] or me.pop("run")
        args.update(run=name, owner=args["owner"] or {key: value for key, value in me.items() if key != "run"})
        outcome = self._ask(args, task_vars)
        holder = (outcome.get("lock") or {}).get("run") or ""
        if outcome.get("failed") and holder not in ("", name) and _run.gone(holder):
            # Taken over only from that run: meanwhile another one may have.
            outcome = self._ask({**args, "replace": holder}, task_vars)
        result.update(outcome)
        return result

    def _ask(self, args: dict[str, t.Any], task_vars: dict[str, t.Any]) -> dict[str, t.Any]:
        outcome: dict[str, t.Any] = self._execute_module(
            module_name="sparkstack.inference.deployment_lock",
            module_args={key: value for key, value in args.items() if value is not None},
            task_vars=task_vars,
        )
        return outcome
