#!/usr/bin/python

# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: fabric_environment_info
short_description: The network's variables in an image, in running containers and in a file, against those wanted
version_added: 1.0.0
author:
  - The sparkstack.inference developers (@sparkstack)
description:
  - Reads which variables of NCCL, gloo, UCX, MPI and the engines' addresses an image brings of its own, by C(ENV) or by
    C(/etc/nccl.conf) and C(~/.nccl.conf), and tells for each which value counts.
  - Compares the variables of the containers of deployments, and of an environment file on the node, with those wanted.
  - To read an image's files, a container of it is created once for each image, never started, and removed. What was found is kept
    on the node for the image's content.
extends_documentation_fragment:
  - sparkstack.inference.attributes
  - sparkstack.inference.attributes.actiongroup_spark
  - sparkstack.inference.attributes.info_module
attributes:
  check_mode:
    details:
      - In check mode the image is read as well, since nothing else can tell; the answer is not kept.
options:
  environment:
    description:
      - The variables that are wanted on this node, such as RV(sparkstack.inference.fabric_facts#module:ansible_facts.fabric.environment).
    type: dict
    default: {}
  image:
    description:
      - An image by name and tag whose own variables are to be told.
    type: str
  containers:
    description:
      - Compare the containers of deployments on this node.
    type: bool
    default: false
  deployment:
    description:
      - Compare the containers of this deployment only.
      - Without it those of all deployments are compared.
    type: str
  file:
    description:
      - A file on the node, in the form of C(docker run --env-file), that is compared when it is there.
    type: path
  cache_dir:
    description:
      - The folder on the node that keeps what images bring. Empty means that nothing is kept.
    type: path
    default: /var/cache/sparkstack/options
  docker_socket:
    description:
      - Path of the Docker daemon's socket.
      - The form V(unix:///path) will do too.
    type: path
    aliases: [docker_host]
    default: /var/run/docker.sock
seealso:
  - module: sparkstack.inference.fabric_facts
  - module: sparkstack.inference.inference_plan
"""

EXAMPLES = r"""
---
- name: Tell what an image brings of its own
  sparkstack.inference.fabric_environment_info:
    image: lmsysorg/sglang:spark
    environment: "{{ ansible_facts['fabric']['environment'] }}"
  become: true
  register: found

- name: Show it
  ansible.builtin.debug:
    msg: "{{ found.notes }}"
"""

RETURN = r"""
image:
  description: What the image brings, or V(none) when no image was asked about or the node does not have it.
  returned: always
  type: dict
  contains:
    environment:
      description: Its variables by C(ENV) that have to do with the network between the nodes. Secrets are hidden.
      type: dict
    files:
      description: The files that NCCL reads in it, in the order in which they count, each with C(path) and C(values).
      type: list
      elements: dict
findings:
  description: What becomes of each variable that the image brings.
  returned: always
  type: list
  elements: dict
  sample:
    - name: NCCL_SOCKET_IFNAME
      value: eth0
      where: ENV
      status: overridden
      counts: enp1s0f0np0
      why: The container's environment counts before the image's.
      risk: null
  contains:
    name:
      description: The variable.
      type: str
    value:
      description: The image's value.
      type: str
    where:
      description: V(ENV), or the file that it stands in.
      type: str
    status:
      description:
        - V(same) as the value that counts, V(overridden) by O(environment), V(shadowed) by another of the image's own, V(left) as it is,
          or V(void), since nothing reads it.
      type: str
    counts:
      description: The value that the engine gets.
      type: str
    why:
      description: The reason, in one sentence.
      type: str
    risk:
      description: What a value that is left does to a launch, or V(none).
      type: str
notes:
  description: The findings in a few sentences, those that somebody should do something about last.
  returned: always
  type: list
  elements: str
differences:
  description: What would change on this node.
  returned: always
  type: list
  elements: dict
  contains:
    where:
      description: The container's name or the file's path.
      type: str
    kind:
      description: V(container) or V(file).
      type: str
    name:
      description: The variable.
      type: str
    was:
      description: The value there, or V(none).
      type: str
    wanted:
      description: The value of O(environment), or V(none).
      type: str
problem:
  description: Why Docker could not be asked, in one sentence, or V(none). What does not need it is told all the same.
  returned: always
  type: str
"""

import typing as t

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.sparkstack.inference.plugins.module_utils import _image_environment, _ranks
from ansible_collections.sparkstack.inference.plugins.module_utils._docker_api import DockerAPI, DockerError
from ansible_collections.sparkstack.inference.plugins.module_utils._fabric_env import NAMES
from ansible_collections.sparkstack.inference.plugins.module_utils._image_files import brought


def of_image(api: DockerAPI, image: str, folder: str, keep: bool) -> t.Optional[t.Dict[str, t.Any]]:
    """What an image brings, as it was kept or read now; None when the node has no such image. :raises DockerError: when Docker fails."""
    inspection = api.image(image)
    return brought(api, inspection, image, folder, keep) if inspection else None


def of_containers(api: DockerAPI, deployment: t.Optional[str], wanted: t.Mapping[str, str]) -> t.List[t.Dict[str, t.Any]]:
    """The differences of the running containers of one deployment, or of all. :raises DockerError: when Docker fails."""
    found = []
    for rank in _ranks.containers(api, deployment or None):
        inspection = api.container(rank["id"]) if rank["running"] else None
        if inspection:
            theirs = _image_environment.parse_environment(inspection["Config"].get("Env"))
            found += [dict(entry, where=rank["name"], kind="container") for entry in _image_environment.differences(wanted, theirs, NAMES)]
    return found


def of_file(path: str, wanted: t.Mapping[str, str]) -> t.List[t.Dict[str, t.Any]]:
    """The differences of a file; none when it isn't there."""
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            theirs = _image_environment.parse_env_file(stream.read())
    except OSError:
        return []
    return [dict(entry, where=path, kind="file") for entry in _image_environment.differences(wanted, theirs, theirs)]


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "environment": {"type": "dict", "default": {}},
            "image": {"type": "str"},
            "containers": {"type": "bool", "default": False},
            "deployment": {"type": "str"},
            "file": {"type": "path"},
            "cache_dir": {"type": "path", "default": "/var/cache/sparkstack/options"},
            "docker_socket": {"type": "path", "aliases": ["docker_host"], "default": "/var/run/docker.sock"},
        },
        supports_check_mode=True,
    )
    params = module.params
    wanted = {name: str(value) for name, value in params["environment"].items()}
    api = DockerAPI(params["docker_socket"])
    image, problem = None, None
    differences = of_file(params["file"], wanted) if params["file"] else []
    try:
        if params["image"]:
            image = of_image(api, params["image"], params["cache_dir"], not module.check_mode)
        if params["containers"]:
            differences += of_containers(api, params["deployment"], wanted)
    except DockerError as error:
        problem = str(error)
    findings = _image_environment.judge(image or {}, wanted)
    module.exit_json(changed=False, image=image, findings=findings, notes=_image_environment.notes(findings), differences=differences, problem=problem)


if __name__ == "__main__":
    main()
