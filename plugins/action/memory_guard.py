# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The controller's half of memory_guard: it makes the program."""

from __future__ import annotations

import base64
import typing as t
import zlib

from ansible.plugins.action import ActionBase

from ansible_collections.sparkstack.inference.plugins.plugin_utils._zipapp import build

MODULE = "sparkstack.inference.memory_guard"
PROGRAM = "_guard_agent"
ARGUMENTS: dict[str, dict[str, t.Any]] = {
    "deployment": {"type": "str", "required": True},
    "state": {"type": "str", "choices": ["started", "stopped"], "default": "started"},
    "container": {"type": "str"},
    "floor": {"type": "str", "default": "auto"},
    "until": {"type": "int", "default": 3600},
    "docker_socket": {"type": "path", "aliases": ["docker_host"], "default": "/var/run/docker.sock"},
    # Not for a user: filled in below.
    "program": {"type": "str"},
}


class ActionModule(ActionBase):
    """One node's part."""

    _supports_check_mode = True
    _supports_async = False

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        super().run(tmp, task_vars)
        _validated, given = self.validate_argument_spec(argument_spec=ARGUMENTS)
        # Not what only is an option's other name.
        arguments = {key: given[key] for key in ARGUMENTS if given[key] is not None}
        if given["state"] == "started":
            arguments["program"] = base64.b64encode(zlib.compress(build(PROGRAM), 9)).decode()
        found: dict[str, t.Any] = self._execute_module(module_name=MODULE, module_args=arguments, task_vars=task_vars)
        # The program says nothing to a reader.
        found.get("invocation", {}).get("module_args", {}).pop("program", None)
        return found
