# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The controller's half of inference_autostart: it makes the program, and asks nothing of a node where all is as wanted."""

from __future__ import annotations

import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils import _autostart_files as files
from ansible_collections.sparkstack.inference.plugins.module_utils._unit_files import digest
from ansible_collections.sparkstack.inference.plugins.plugin_utils._unit_action import UnitAction
from ansible_collections.sparkstack.inference.plugins.plugin_utils._zipapp import build

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
    # Not for a user: filled in by what this is made of.
    "program": {"type": "str"},
}


class ActionModule(UnitAction):
    """One node's part."""

    MODULE = "sparkstack.inference.inference_autostart"
    UTIL = PROGRAM
    SPECIFICATION = ARGUMENTS
    WANTED = "present"
    KEPT = ("seen",)

    def known(self, given: t.Mapping[str, t.Any], arguments: dict[str, t.Any]) -> dict[str, t.Any] | None:
        """All is as wanted on this node. Else the token that all nodes have stays."""
        if not agreed(given["seen"], given["deployment"]):
            return None
        if satisfied(given):
            return {"changed": False, "unit": files.unit(given["deployment"]), "actions": []}
        arguments.pop("token", None)
        return None


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
        and found["program"] == digest(build(PROGRAM))
        and found["unit"] == digest(files.unit_text().encode())
        and {key: value for key, value in found["settings"].items() if key != "token_hash"} == wanted
    )
