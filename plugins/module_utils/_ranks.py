# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""The containers of the ranks on a node, known by their labels."""

from __future__ import annotations

import json
import os
import re
import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils._docker_api import DockerAPI
from ansible_collections.sparkstack.inference.plugins.module_utils._secrets import FOLDER

LABEL = "sparkstack."
"""Begins every label that the collection puts on a container."""
_SECRETS = re.compile(r"(.+)-rank\d+\.env")


def containers(api: DockerAPI, deployment: t.Optional[str]) -> t.List[t.Dict[str, t.Any]]:
    """The ranks' containers, running or not, in rank order; see M(sparkstack.inference.inference_info) for the keys.

    :param deployment: only those of this deployment, or None for all.
    :raises DockerError: when the daemon doesn't answer.
    """
    label = LABEL + "deployment" + ("=" + deployment if deployment else "")
    listed = api.get("/containers/json", {"all": "true", "filters": json.dumps({"label": [label]})})
    found = []
    for entry in listed:
        inspection = api.container(entry["Id"])
        if inspection:
            found.append(describe(inspection))
    return sorted(found, key=lambda rank: (rank["deployment"], rank["rank"], rank["name"]))


def foreign(api: DockerAPI, name: str, deployment: t.Optional[str]) -> t.Optional[str]:
    """The image of a container that has a rank's or a router's name and is none of the deployment's, or None.

    :raises DockerError: when the daemon doesn't answer.

    Docker takes a name once only, and M(community.docker.docker_container) would remove who has it.
    """
    inspection = api.container(name)
    labels = ((inspection or {}).get("Config") or {}).get("Labels") or {}
    if not inspection or (deployment or "") in (labels.get(LABEL + "deployment", ""), labels.get(LABEL + "router")):
        return None
    return str(inspection["Config"].get("Image"))


def unused_secrets(ranks: t.Sequence[t.Mapping[str, t.Any]], deployment: t.Optional[str], root: str = "/") -> t.List[str]:
    """The files of secret variables that no container has: it was removed by hand, say. None where the folder is closed to the caller.

    :param ranks: what :func:`containers` returned. :param deployment: only those of this deployment, or None for all.
    """
    used = {rank["spec"].get("secrets") for rank in ranks}
    try:
        names = sorted(os.listdir(os.path.join(root, FOLDER.lstrip("/"))))
    except OSError:
        return []
    mine = [name for name in names if (match := _SECRETS.fullmatch(name)) and deployment in (None, "", match.group(1))]
    return [path for path in (os.path.join(FOLDER, name) for name in mine) if path not in used]


def describe(inspection: t.Mapping[str, t.Any]) -> t.Dict[str, t.Any]:
    """One rank's container, out of Docker's inspection."""
    labels = inspection["Config"].get("Labels") or {}
    state = inspection["State"]
    return {
        "name": inspection["Name"].lstrip("/"),
        "id": inspection["Id"],
        "deployment": labels.get(LABEL + "deployment", ""),
        "engine": labels.get(LABEL + "engine"),
        "model": labels.get(LABEL + "model"),
        "rank": _number(labels.get(LABEL + "rank")),
        "ranks": _number(labels.get(LABEL + "ranks")),
        "port": _number(labels.get(LABEL + "port")),
        "listen_address": labels.get(LABEL + "listen_address") or "0.0.0.0",
        "launch_id": labels.get(LABEL + "launch_id"),
        "spec_hash": labels.get(LABEL + "spec_hash"),
        "spec": _mapping(labels.get(LABEL + "spec")) or {},
        "planned": _mapping(labels.get(LABEL + "planned")),
        "image": inspection["Config"].get("Image"),
        "running": bool(state.get("Running")) and not state.get("Restarting"),
        "exit_code": state.get("ExitCode"),
        "oom_killed": bool(state.get("OOMKilled")),
        "created_at": inspection.get("Created"),
        "started_at": state.get("StartedAt"),
        "finished_at": state.get("FinishedAt"),
        "restart_count": inspection.get("RestartCount", 0),
    }


def _mapping(text: t.Optional[str]) -> t.Optional[t.Dict[str, t.Any]]:
    """A label's mapping; None for a label that isn't there or holds something else, since labels can be written by anybody."""
    try:
        found = json.loads(text or "null")
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _number(text: t.Optional[str]) -> int:
    """A label's number; -1 for a label that isn't one, since labels can be written by anybody."""
    try:
        return int(text or "")
    except ValueError:
        return -1
