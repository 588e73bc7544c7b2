# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import dataclasses
import os
import typing as t

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.vars import load_extra_vars

from ansible_collections.sparkstack.inference.plugins.plugin_utils import _command_line, _diagnosis_plan
from ansible_collections.sparkstack.inference.plugins.plugin_utils._command_line import ChoiceError

ARGUMENTS: dict[str, dict[str, t.Any]] = {
    "variables": {"type": "list", "elements": "str", "default": []},
    "hosts": {"type": "list", "elements": "str", "default": []},
    "nodes": {"type": "dict", "default": {}},
    "containers": {"type": "dict", "default": {}},
    "deployment": {"type": "str"},
    "head": {"type": "list", "elements": "str", "default": []},
    "workers": {"type": "list", "elements": "str", "default": []},
    "claims": {"type": "dict"},
    "logs": {"type": "raw"},
    "bundle": {"type": "str"},
    "json": {"type": "str"},
    "force": {"type": "bool", "default": False},
}


class ActionModule(ActionBase):
    """What is to be judged, found out on the controller."""

    TRANSFERS_FILES = False
    _supports_check_mode = True
    _supports_async = False
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        result: dict[str, t.Any] = super().run(tmp, task_vars)
        _validation, args = self.validate_argument_spec(argument_spec=ARGUMENTS)
        folder = os.getcwd()
        try:
            self._check(args["variables"])
            plan: dict[str, t.Any] = {
                key: _command_line.new_file(args[key], folder, key == "json" or args["force"]) if args[key] else "" for key in ("bundle", "json")
            }
            if args["logs"] is not None:
                plan.update(logs=_diagnosis_plan.logs(args["logs"], folder), ranks=[], ordered=True, deployment="", notes=[])
            elif args["hosts"]:
                plan.update(self._choice(args), logs=[])
            _command_line.apart({"the bundle": plan["bundle"], "the verdict as JSON": plan["json"]}, plan.get("logs", []))
        except ChoiceError as error:
            raise AnsibleActionFail(str(error)) from None
        result.update(changed=False, plan=plan)
        return result

    def _check(self, known: list[str]) -> None:
        """Refuse a variable of the command line that is nearly one of those that are read: C(-e log=head.log) would look at the nodes."""
        problem = _command_line.misspelt(load_extra_vars(self._loader), known) if known else ""
        if problem:
            raise ChoiceError(problem)

    @staticmethod
    def _choice(args: dict[str, t.Any]) -> dict[str, t.Any]:
        groups = [*args["head"], *args["workers"]] if len(args["head"]) == 1 else []
        choice = _diagnosis_plan.choose(args["hosts"], args["nodes"], args["containers"], args["deployment"] or "", groups)
        if args["claims"] is not None and not choice.ordered:
            choice = _diagnosis_plan.by_claims(choice, args["claims"])
        return {key: value for key, value in dataclasses.asdict(choice).items() if key in ("ranks", "ordered", "deployment", "notes")}
