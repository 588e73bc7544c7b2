# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""The containers on a node that look like an inference engine, whoever has started them."""

from __future__ import annotations

import re
import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils._docker_api import DockerAPI
from ansible_collections.sparkstack.inference.plugins.module_utils._ranks import LABEL
from ansible_collections.sparkstack.inference.plugins.module_utils._secrets import Scrubber, of_command, split

# "vllm serve /models/x", "python3 -m sglang.launch_server", "python3 -m vllm.entrypoints.openai.api_server",
# "bash -c 'ray start --head && vllm serve ..'".
_COMMAND = re.compile(r"\bvllm serve\b|\bsglang\.launch_server\b|\bsglang serve\b|\bapi_server\b|\bray start\b|\bvllm\.entrypoints\b")
# "vllm/vllm-openai:v0.33.0", "lmsysorg/sglang:spark", "registry:5000/team/my-vllm@sha256:..".
_IMAGE = re.compile(r"(?:vllm|sglang)[^/]*$", re.IGNORECASE)


def looks_like(image: str, command: str) -> str:
    """By what a container looks like an engine: C(command), C(image), or nothing."""
    if _COMMAND.search(command):
        return "command"
    return "image" if _IMAGE.search(image) else ""


def search(api: DockerAPI, names: t.Sequence[str]) -> t.List[t.Dict[str, t.Any]]:
    """The containers of the given names, and those that look like an engine, running or not, newest first.

    :returns: see RV(found) of M(sparkstack.inference.inference_info).
    :raises DockerError: when the daemon doesn't answer.
    """
    found = []
    for entry in api.get("/containers/json", {"all": "true"}):
        own = [name.lstrip("/") for name in entry.get("Names") or []]
        by = "name" if set(own) & set(names) or entry["Id"] in names else looks_like(entry.get("Image") or "", entry.get("Command") or "")
        # An id in short, as docker ps shows it.
        if not by and any(len(name) >= 12 and entry["Id"].startswith(name) for name in names):
            by = "name"
        if by:
            command = " ".join(str(entry.get("Command") or "").split())
            command = Scrubber(of_command(split(command))).text(command)
            found.append(
                {
                    # A link gives a container a second name, with a slash in it.
                    "name": min(own, key=lambda name: name.count("/")) if own else entry["Id"],
                    "id": entry["Id"],
                    "image": entry.get("Image") or "",
                    "command": command if len(command) <= 200 else command[:200] + " ..",
                    "deployment": (entry.get("Labels") or {}).get(LABEL + "deployment"),
                    "running": entry.get("State") == "running",
                    "created": entry.get("Created") or 0,
                    "by": by,
                }
            )
    return sorted(found, key=lambda container: (-container["created"], container["name"]))
