# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""The containers of routers on a node, known by their label, and what was kept of each in a file."""

from __future__ import annotations

import json
import os
import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils._docker_api import DockerAPI
from ansible_collections.sparkstack.inference.plugins.module_utils._ranks import LABEL

FOLDER = "/etc/sparkstack/router"
"""A folder a deployment, with what its router was started with."""


def name(deployment: str) -> str:
    """The name of a deployment's router's container."""
    return deployment + "-router"


def routers(api: DockerAPI, root: str = "/") -> t.List[t.Dict[str, t.Any]]:
    """Every router, running or not, by name; see M(sparkstack.inference.inference_info) for the keys.

    :raises DockerError: when the daemon doesn't answer.
    """
    listed = api.get("/containers/json", {"all": "true", "filters": json.dumps({"label": [LABEL + "router"]})})
    found = []
    for entry in listed:
        inspection = api.container(entry["Id"])
        if inspection:
            found.append(describe(inspection, root))
    return sorted(found, key=lambda router: str(router["name"]))


def describe(inspection: t.Mapping[str, t.Any], root: str = "/") -> t.Dict[str, t.Any]:
    """One router, out of Docker's inspection and its file."""
    deployment = (inspection["Config"].get("Labels") or {})[LABEL + "router"]
    state, kept = inspection["State"], told(deployment, root)
    return {
        "name": inspection["Name"].lstrip("/"),
        "id": inspection["Id"],
        "deployment": deployment,
        "image": inspection["Config"].get("Image"),
        "running": bool(state.get("Running")) and not state.get("Restarting"),
        "exit_code": state.get("ExitCode"),
        "started_at": state.get("StartedAt"),
        **{key: kept.get(key) for key in ("kind", "listen_address", "port", "upstreams", "model", "digest")},
    }


def told(deployment: str, root: str = "/") -> t.Dict[str, t.Any]:
    """What was kept of a deployment's router; nothing where the file is not there or holds something else, or the name leads elsewhere."""
    # A label can be written by anybody.
    if os.path.basename(deployment) != deployment or deployment in ("", ".", ".."):
        return {}
    try:
        with open(os.path.join(root, FOLDER.lstrip("/"), deployment, "router.json"), encoding="utf-8") as stream:
            found = json.load(stream)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
