# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The controller's half of memory_guard: it makes the program."""

from __future__ import annotations

import typing as t

from ansible_collections.sparkstack.inference.plugins.plugin_utils._unit_action import UnitAction

ARGUMENTS: dict[str, dict[str, t.Any]] = {
    "deployment": {"type": "str", "required": True},
    "state": {"type": "str", "choices": ["started", "stopped"], "default": "started"},
    "container": {"type": "str"},
    "floor": {"type": "str", "default": "auto"},
    "until": {"type": "int", "default": 3600},
    "docker_socket": {"type": "path", "aliases": ["docker_host"], "default": "/var/run/docker.sock"},
    # Not for a user: filled in by what this is made of.
    "program": {"type": "str"},
}


class ActionModule(UnitAction):
    """One node's part."""

    MODULE = "sparkstack.inference.memory_guard"
    UTIL = "_guard_agent"
    SPECIFICATION = ARGUMENTS
    WANTED = "started"
