#!/usr/bin/python

# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: inference_info
short_description: What a node runs of the deployments, and what it is asked about
version_added: 1.0.0
author:
  - The sparkstack.inference developers (@sparkstack)
description:
  - Reads, in one call, what a launch is planned from on a node. It asks whether Docker answers and which containers of which
    deployment, rank and launch stand on the node, and it looks up what an image holds and who listens on which port.
  - It reads what was recorded of the deployments on the node, too, which takes root.
  - It connects to no port and starts nothing.
extends_documentation_fragment:
  - sparkstack.inference.attributes
  - sparkstack.inference.attributes.actiongroup_spark
  - sparkstack.inference.attributes.info_module
options:
  deployment:
    description:
      - Report the containers of this deployment only.
      - Without it those of all deployments are reported.
    type: str
  container:
    description:
      - The name that a container of O(deployment) is to get, to be told when another container has it.
    type: str
  router:
    description:
      - A deployment whose router is to get its container, to be told in RV(foreign) when another container has its name.
    type: str
  image:
    description:
      - An image by name and tag, whose content is to be reported.
    type: str
  ports:
    description:
      - Ports of which is told who listens on them.
    type: list
    elements: int
    default: []
  listen_address:
    description:
      - An address of which is told whether a program on the node can listen on it.
    type: str
  search:
    description:
      - Report in RV(found) the containers that look like an inference engine by their command or image, whoever started them.
    type: bool
    default: false
  names:
    description:
      - Names or ids of containers that are reported in RV(found) as well, whatever they look like.
    type: list
    elements: str
    default: []
  docker_socket:
    description:
      - Path of the Docker daemon's socket.
      - The form V(unix:///path) will do too.
    type: path
    aliases: [docker_host]
    default: /var/run/docker.sock
seealso:
  - module: sparkstack.inference.inference_plan
  - module: sparkstack.inference.inference_launch
"""

EXAMPLES = r"""
---
- name: Look at the ranks of all deployments on this node
  sparkstack.inference.inference_info:
  register: node

- name: Find whatever looks like an inference engine
  sparkstack.inference.inference_info:
    search: true
  register: node

- name: Look at one deployment, its image and its ports
  sparkstack.inference.inference_info:
    deployment: qwen3.5-122b-a10b-fp8
    image: lmsysorg/sglang:spark
    ports: [30000, 25000]
  register: node
"""

RETURN = r"""
docker:
  description: The Docker daemon of the node.
  returned: always
  type: dict
  contains:
    reachable:
      description: Whether the daemon answers.
      type: bool
    error:
      description: Why it does not, or V(none).
      type: str
    version:
      description: The daemon's version.
      type: str
    storage_driver:
      description: Where the daemon keeps its images.
      type: str
foreign:
  description: The image of a container that has the name O(container) and is none of O(deployment), or that of O(router) and is none, or V(none).
  returned: always
  type: str
containers:
  description: The ranks' containers on the node, also those that have ended.
  returned: always
  type: list
  elements: dict
  contains:
    name:
      description: The container's name.
      type: str
    id:
      description: The container's ID.
      type: str
    deployment:
      description: The deployment that it belongs to.
      type: str
    engine:
      description: The engine.
      type: str
    model:
      description: The name under which the model is served.
      type: str
    rank:
      description: The rank.
      type: int
    ranks:
      description: The number of ranks of its launch.
      type: int
    port:
      description: The port of the API at the head.
      type: int
    listen_address:
      description: The address on which the head serves the API.
      type: str
    launch_id:
      description: The launch that started it.
      type: str
    spec_hash:
      description: The hash over what it was started with.
      type: str
    spec:
      description: What it was started with; secrets stand as hashes.
      type: dict
    planned:
      description:
        - Which of its engine's arguments a plan had computed, with their values; empty where it found none that is sure, or V(none) where it was not asked to.
      type: dict
    image:
      description: The image by the name it was started with.
      type: str
    running:
      description: Whether it runs.
      type: bool
    exit_code:
      description: The exit code of a container that has ended. V(0) does not prove a clean end.
      type: int
    oom_killed:
      description: Whether the kernel killed it for memory.
      type: bool
    created_at:
      description: When it was made, by the node's clock, in ISO 8601.
      type: str
    started_at:
      description: When it was started last, likewise.
      type: str
    finished_at:
      description: When it ended, likewise.
      type: str
    restart_count:
      description: How often Docker started it again.
      type: int
routers:
  description: The routers on the node that the role P(sparkstack.inference.router#role) has started, of any deployment, running or not.
  returned: always
  type: list
  elements: dict
  contains:
    name:
      description: The container's name.
      type: str
    id:
      description: The container's ID.
      type: str
    deployment:
      description: The deployment that it stands in front of.
      type: str
    image:
      description: The image by the name it was started with.
      type: str
    running:
      description: Whether it runs.
      type: bool
    exit_code:
      description: The exit code of a container that has ended.
      type: int
    started_at:
      description: When it was started last, by the node's clock, in ISO 8601.
      type: str
    kind:
      description: Which router it is, or V(none), as all of the following, where the file that tells of it can't be read.
      type: str
    listen_address:
      description: The address on which it listens.
      type: str
    port:
      description: The port on which it listens.
      type: int
    upstreams:
      description: What it stands in front of, address and port each.
      type: list
      elements: str
    model:
      description: The name under which the model is served, or empty where that is not known.
      type: str
    digest:
      description: A hash over what it was started with.
      type: str
found:
  description: With O(search), the containers of any origin that look like an inference engine or have one of O(names), newest first.
  returned: always
  type: list
  elements: dict
  contains:
    name:
      description: The container's name.
      type: str
    id:
      description: The container's ID.
      type: str
    image:
      description: The image by the name it was started with.
      type: str
    command:
      description: The beginning of its command line, with keys and tokens replaced by asterisks.
      type: str
    deployment:
      description: The deployment that it belongs to, or V(none) when somebody else has started it.
      type: str
    running:
      description: Whether it runs.
      type: bool
    created:
      description: When it was made, in seconds since the epoch by the node's clock.
      type: int
    by:
      description: What told it, V(name), V(command) or V(image).
      type: str
image:
  description: The image, or V(none) when the node does not have it or was not asked about one.
  returned: always
  type: dict
  contains:
    identity:
      description: A hash over the image's layers and configuration, the same on every Docker that has the same content.
      type: str
    architecture:
      description: The architecture in Docker's words.
      type: str
    size_bytes:
      description: The size as this Docker counts it, in bytes.
      type: int
unused_secrets:
  description:
    - The files of secret variables, of O(deployment) or of all, that no container has any more, because it was removed by hand, say.
    - Only root sees any.
  returned: always
  type: list
  elements: str
listeners:
  description: Who listens on O(ports).
  returned: always
  type: list
  elements: dict
  contains:
    port:
      description: The port.
      type: int
    pid:
      description: The process, or V(none) when it could not be seen.
      type: int
    process:
      description: The process's name.
      type: str
    container:
      description: The name of the container it runs in, if any.
      type: str
listen_possible:
  description: Whether O(listen_address) is one of the node's own, or V(none) when it was not asked.
  returned: always
  type: bool
architecture:
  description: The node's architecture in Docker's words.
  returned: always
  type: str
autostart:
  description: What M(sparkstack.inference.inference_autostart) has installed on the node, by deployment.
  returned: always
  type: dict
  contains:
    settings:
      description: The unit's settings. In place of the token stands C(token_hash).
      type: dict
    program:
      description: The SHA-256 of the program, or V(none) where it is missing.
      type: str
    unit:
      description: The SHA-256 of the unit's file, or V(none) where it is missing.
      type: str
    enabled:
      description: Whether it is started at boot.
      type: bool
    runs:
      description: Whether it runs.
      type: bool
boot_id:
  description: Changes with each boot of the node.
  returned: always
  type: str
booted_at:
  description: When the node was booted, in seconds since the epoch by the node's clock now. It moves by tenths of a second from call to call.
  returned: always
  type: float
docker_started_at:
  description: When the Docker daemon was started, likewise, or V(none) when it could not be told.
  returned: always
  type: float
now:
  description: The node's clock when the look began, in seconds since the epoch.
  returned: always
  type: float
ledger:
  description:
    - What was recorded on the node of each deployment, by its name; with O(deployment) of that one only.
    - A deployment of which nothing was recorded is not in it.
  returned: always
  type: dict
  contains:
    lock:
      description:
        - Who works on the deployment now, as RV(sparkstack.inference.deployment_lock#module:lock), or V(none). It lies at the head only.
      type: dict
    last:
      description:
        - The last launch in short, or V(none). The keys are C(launch_id), C(action), C(who), C(began), C(ended), C(seconds_to_ready), C(answer),
          C(answered), C(restored), C(verdict), C(recipe), C(image), C(model) and C(planned), as they were given to
          M(sparkstack.inference.launch_record), or V(none).
      type: dict
    good:
      description: The last launch that answered a real request, or V(none), likewise.
      type: dict
    previous:
      description: The last launch before RV(ledger.good) that answered a real request and was something else, or V(none), likewise.
      type: dict
    launches:
      description: The ids of the launches that are recorded, newest first.
      type: list
      elements: str
    nodes:
      description: The names of all nodes that had a rank in one of these launches, as the inventory had them.
      type: list
      elements: str
    changed_at:
      description: When a run last gave the lock back, in seconds since the epoch by the node's clock, or V(none).
      type: float
    problems:
      description: One sentence for each file that is damaged or can't be read.
      type: list
      elements: str
infiniband:
  description: Whether the node has C(/dev/infiniband), which RDMA needs in the container.
  returned: always
  type: bool
"""

import os
import platform
import time
import typing as t

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.sparkstack.inference.plugins.module_utils import _autostart_files, _ranks, _routers
from ansible_collections.sparkstack.inference.plugins.module_utils._docker_api import DockerAPI, DockerError
from ansible_collections.sparkstack.inference.plugins.module_utils._engine_search import search
from ansible_collections.sparkstack.inference.plugins.module_utils._image_identity import ARCHITECTURES, identity
from ansible_collections.sparkstack.inference.plugins.module_utils._ledger import Ledger, LedgerError, brief, deployments
from ansible_collections.sparkstack.inference.plugins.module_utils._scene import docker_started, started
from ansible_collections.sparkstack.inference.plugins.module_utils._sockets import is_own, listeners


def look_at_docker(api: DockerAPI, params: t.Mapping[str, t.Any]) -> t.Dict[str, t.Any]:
    """Everything that the daemon is asked; raises DockerError."""
    info = api.get("/info")
    inspection = api.image(params["image"]) if params["image"] else None
    image = None
    if inspection:
        found = identity(inspection)
        image = {
            "identity": found["digest"],
            "architecture": found["architecture"],
            "size_bytes": inspection.get("Size"),
        }
    ranks = _ranks.containers(api, params["deployment"])
    return {
        "docker": {
            "reachable": True,
            "error": None,
            "version": info.get("ServerVersion"),
            "storage_driver": info.get("Driver"),
        },
        "containers": ranks,
        "routers": _routers.routers(api),
        "unused_secrets": _ranks.unused_secrets(ranks, params["deployment"]),
        "found": search(api, params["names"]) if params["search"] else [],
        "foreign": foreign(api, params),
        "image": image,
    }


def foreign(api: DockerAPI, params: t.Mapping[str, t.Any]) -> t.Optional[str]:
    """RV(foreign); raises DockerError."""
    if params["container"]:
        return _ranks.foreign(api, params["container"], params["deployment"])
    return _ranks.foreign(api, _routers.name(params["router"]), params["router"]) if params["router"] else None


def name_containers(api: DockerAPI, found: t.List[t.Dict[str, t.Any]]) -> None:
    """Put a container's name where its ID stands."""
    for entry in found:
        if entry["container"]:
            inspection = api.container(entry["container"])
            entry["container"] = inspection["Name"].lstrip("/") if inspection else None


def recorded(deployment: t.Optional[str], root: str = "/") -> t.Dict[str, t.Any]:
    """RV(ledger): what the node has recorded of one deployment, or of all."""
    try:
        names = [name for name in deployments(root) if deployment in (None, "", name)]
    except LedgerError as error:
        nothing: t.Dict[str, t.Any] = {"lock": None, "last": None, "good": None, "previous": None, "launches": [], "nodes": [], "changed_at": None}
        return {deployment: dict(nothing, problems=[str(error)])} if deployment else {}
    return {name: brief(Ledger(name, root).read()) for name in names}


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "deployment": {"type": "str"},
            "container": {"type": "str"},
            "router": {"type": "str"},
            "image": {"type": "str"},
            "ports": {"type": "list", "elements": "int", "default": []},
            "listen_address": {"type": "str"},
            "search": {"type": "bool", "default": False},
            "names": {"type": "list", "elements": "str", "default": []},
            "docker_socket": {"type": "path", "aliases": ["docker_host"], "default": "/var/run/docker.sock"},
        },
        supports_check_mode=True,
    )
    api = DockerAPI(module.params["docker_socket"])
    machine = platform.machine()
    now = time.time()
    result: t.Dict[str, t.Any] = {
        "listeners": listeners(module.params["ports"]),
        "listen_possible": is_own(module.params["listen_address"]) if module.params["listen_address"] else None,
        "architecture": ARCHITECTURES.get(machine, machine),
        "infiniband": os.path.isdir("/dev/infiniband"),
        "booted_at": started(1),
        "docker_started_at": docker_started(),
        "now": now,
        "ledger": recorded(module.params["deployment"]),
        "autostart": {name: unit for name, unit in _autostart_files.installed().items() if module.params["deployment"] in (None, "", name)},
    }
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as stream:
        result["boot_id"] = stream.read().strip()
    try:
        result.update(look_at_docker(api, module.params))
        name_containers(api, result["listeners"])
    except DockerError as error:
        result["docker"] = {"reachable": False, "error": str(error), "version": None, "storage_driver": None}
        result.update(containers=[], routers=[], unused_secrets=[], found=[], foreign=None, image=None)
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
