# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The controller's half of inference_autostart: it makes the program, and asks nothing of a node where all is as wanted."""

from __future__ import annotations

import base64
import typing as t
import zlib

from ansible.plugins.action import ActionBase

from ansible_collections.sparkstack.inference.plugins.module_utils import _autostart_files as files
from ansible_collections.sparkstack.inference.plugins.plugin_utils._zipapp import build

MODULE = "sparkstack.inference.inference_autostart"
PROGRAM = "_autostart_agent"
SETTINGS: dict[str, dict[str, t.Any]] = {
    "deployment": {"type": "str", "required": True},
    "rank": {"type": "int"},
    "nodes": {"type": "list", "elements": "str"},
    "addresses": {"type": "list", "elements": "str"},
    "container": {"type": "str"},
    "engine": {"type": "str", "choices": ["sglang", "vllm"]},
    "model": {"type": "str"},
    "api": {"type": "str"},
    "port": {"type": "int", "default": 25050},
    "ready_timeout": {"type": "int", "default": 1800},
    "stop_timeout": {"type": "int", "default": 10},
    "stall_timeouts": {"type": "dict", "default": {}},
    "docker_socket": {"type": "path", "aliases": ["docker_host"], "default": "/var/run/docker.sock"},
}
ARGUMENTS: dict[str, dict[str, t.Any]] = {
    **SETTINGS,
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
    "token": {"type": "str", "no_log": True},
    "seen": {"type": "list", "elements": "dict", "default": []},
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
        arguments = {key: given[key] for key in ARGUMENTS if given[key] is not None and key != "seen"}
        if given["state"] != "present":
            return t.cast("dict[str, t.Any]", self._execute_module(module_name=MODULE, module_args=arguments, task_vars=task_vars))
        if agreed(given["seen"], given["deployment"]):
            if satisfied(given):
                return {"changed": False, "unit": files.unit(given["deployment"]), "actions": []}
            arguments.pop("token", None)
        arguments["program"] = base64.b64encode(zlib.compress(build(PROGRAM), 9)).decode()
        found: dict[str, t.Any] = self._execute_module(module_name=MODULE, module_args=arguments, task_vars=task_vars)
        # 130 kB that say nothing to a reader.
        found.get("invocation", {}).get("module_args", {}).pop("program", None)
        return found


def agreed(seen: t.Sequence[t.Mapping[str, t.Any]], deployment: str) -> bool:
    """All nodes have one token, so that it can stay.

    :param seen: what M(sparkstack.inference.inference_info) tells as C(autostart) of each node.
    """
    hashes = {((node.get(deployment) or {}).get("settings") or {}).get("token_hash") for node in seen}
    return len(hashes) == 1 and None not in hashes


def satisfied(given: t.Mapping[str, t.Any]) -> bool:
    """This node has all of it, as it was seen."""
    try:
        found = given["seen"][given["rank"]][given["deployment"]]
    except (IndexError, KeyError, TypeError):
        return False
    wanted = {key: given[key] for key in SETTINGS}
    return bool(
        found["enabled"]
        and found["runs"]
        and found["program"] == files.digest(build(PROGRAM))
        and found["unit"] == files.digest(files.unit_text().encode())
        and {key: value for key, value in found["settings"].items() if key != "token_hash"} == wanted
    )
