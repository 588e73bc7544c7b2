# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
import typing as t

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.vars import load_extra_vars

from ansible_collections.sparkstack.inference.plugins.plugin_utils import _command_line, _preflight, _preflight_screen
from ansible_collections.sparkstack.inference.plugins.plugin_utils._command_line import ChoiceError
from ansible_collections.sparkstack.inference.plugins.plugin_utils._preflight_words import Wanted, WantedError

ROLES = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "roles")

ARGUMENTS: dict[str, dict[str, t.Any]] = {
    "nodes": {"type": "dict"},
    "wanted": {
        "type": "dict",
        "options": {
            "head": {"type": "str"},
            "deployment": {"type": "str"},
            "image": {"type": "str"},
            "brings_image": {"type": "bool", "default": False},
            "model_bytes": {"type": "int"},
            "ports": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "port": {"type": "int", "required": True},
                    "use": {"type": "str", "choices": ["rendezvous", "api", "nccl", "other"], "default": "other"},
                    "host": {"type": "str"},
                },
            },
            "more_ports": {"type": "list", "elements": "int", "default": []},
            "transport": {"type": "str", "choices": ["auto", "rdma", "tcp"], "default": "auto"},
            "gpus": {"type": "str", "choices": ["auto", "all", "none"], "default": "auto"},
            "expected_speed_mbps": {"type": "int", "default": 0},
            "min_share": {"type": "float", "default": 0.4},
            "block_share": {"type": "float", "default": 0.25},
            "clock_seconds": {"type": "float", "default": 2},
            "environment": {"type": "dict", "default": {}},
        },
    },
    "skip": {"type": "list", "elements": "str", "default": []},
    "show": {"type": "str", "choices": ["all", "problems", "none"], "default": "all"},
    "json": {"type": "str"},
}


class ActionModule(ActionBase):
    """The preflight's verdict, made on the controller out of what the modules told of the nodes."""

    TRANSFERS_FILES = False
    _supports_check_mode = True
    _supports_async = False
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        result: dict[str, t.Any] = super().run(tmp, task_vars)
        _validation, args = self.validate_argument_spec(argument_spec=ARGUMENTS)
        unread = _command_line.unread(load_extra_vars(self._loader), ROLES)
        if unread:
            raise AnsibleActionFail(unread)
        nodes, asked = args["nodes"], args["wanted"] or {}
        try:
            wanted = Wanted.of({**asked, "head": asked.get("head") or next(iter(nodes or {}), "")})
            _preflight.check_skip(args["skip"])
            result.update(changed=False, json=_command_line.new_file(args["json"], os.getcwd(), True) if args["json"] else "")
        except (ChoiceError, WantedError) as error:
            raise AnsibleActionFail(str(error)) from None
        if nodes is None:
            return result
        report = _preflight.judge(nodes, wanted, args["skip"])
        table = _preflight_screen.lines(report)
        if args["show"] != "none":
            shown = table if args["show"] == "all" else _preflight_screen.lines(report, whole=False)
            self._display.display("\n" + "\n".join(shown) + "\n")
        result.update(report=report, sentence=_preflight.sentence(report), table=table)
        return result
