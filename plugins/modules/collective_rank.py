#!/usr/bin/python
# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: collective_rank
short_description: A node's part of a collective proof
version_added: 1.0.0
author:
  - The sparkstack.inference developers (@sparkstack)
description:
  - M(sparkstack.inference.collective_proof) runs this on every node. You need not run it yourself.
  - It looks at what a node has, runs the rank's program in a container that is removed afterwards, or keeps what was proved.
extends_documentation_fragment:
  - sparkstack.inference.attributes
  - sparkstack.inference.attributes.actiongroup_spark
attributes:
  check_mode:
    support: full
    details:
      - In check mode only O(state=looked) does anything, as it changes nothing.
  diff_mode:
    support: none
  idempotent:
    support: none
    details:
      - With O(state=run) a container is started each time.
  platform:
    description: The node runs Linux with Docker.
    support: full
    platforms: linux
options:
  state:
    description:
      - V(looked) tells what the node has and remembers, V(run) runs the rank's program once, V(kept) keeps O(proof).
    type: str
    choices: [looked, run, kept]
    default: looked
  deployment:
    description:
      - The deployment's name.
    type: str
    required: true
  container:
    description:
      - The name of the proof's container. Required with O(state=looked) and O(state=run).
    type: str
  image:
    description:
      - The image by name and tag. Required with O(state=looked).
    type: str
  port:
    description:
      - The rendezvous port, on the head only.
    type: int
  netdevs:
    description:
      - Interfaces whose link state belongs to the proof, and RDMA devices, which stand for their interfaces.
    type: list
    elements: str
    default: []
  body:
    description:
      - The request for the container in the words of Docker's API, less its command. Required with O(state=run).
    type: dict
  parameters:
    description:
      - What the program is given. Required with O(state=run).
    type: dict
  proof:
    description:
      - What is kept. An empty one forgets the last.
    type: dict
  docker_socket:
    description:
      - Path of the Docker daemon's socket.
      - The form V(unix:///path) will do too.
    type: path
    aliases: [docker_host]
    default: /var/run/docker.sock
seealso:
  - module: sparkstack.inference.collective_proof
"""

EXAMPLES = r"""
---
- name: See what a node remembers of its last proof
  sparkstack.inference.collective_rank:
    deployment: qwen3.5-122b-a10b-fp8
    container: qwen3.5-122b-a10b-fp8-collective0
    image: vllm/vllm-openai:v0.32.0
  become: true
"""

RETURN = r"""
look:
  description:
    - What the node has, C(identity) of the image's content, C(boot), C(links), C(program), C(listener) at the rendezvous port and C(foreign).
  returned: when O(state=looked)
  type: dict
kept:
  description: The last proof that was kept, or null.
  returned: when O(state=looked)
  type: dict
now:
  description: Seconds since the epoch by the node's clock.
  returned: when O(state=looked)
  type: float
output:
  description: What the program and NCCL said.
  returned: when O(state=run)
  type: str
problem:
  description: Why Docker did not run it, or an empty text.
  returned: when O(state=run)
  type: str
seconds:
  description: How long the container took in all.
  returned: when O(state=run)
  type: float
"""

import re
import time

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.sparkstack.inference.plugins.module_utils import _collective_node
from ansible_collections.sparkstack.inference.plugins.module_utils._docker_api import DockerAPI, DockerError


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["looked", "run", "kept"], "default": "looked"},
            "deployment": {"type": "str", "required": True},
            "container": {"type": "str"},
            "image": {"type": "str"},
            "port": {"type": "int"},
            "netdevs": {"type": "list", "elements": "str", "default": []},
            "body": {"type": "dict"},
            "parameters": {"type": "dict"},
            "proof": {"type": "dict"},
            "docker_socket": {"type": "path", "aliases": ["docker_host"], "default": "/var/run/docker.sock"},
        },
        required_if=[("state", "looked", ("container", "image")), ("state", "run", ("container", "body", "parameters"))],
        supports_check_mode=True,
    )
    given = module.params
    # It becomes a file's name.
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", given["deployment"]):
        module.fail_json(msg="'{deployment}' can't be a deployment's name: give one of letters, digits, '.', '_' and '-'.".format(**given))
    api = DockerAPI(given["docker_socket"])
    try:
        if given["state"] == "looked":
            found = _collective_node.look(api, given["image"], given["container"], given["port"], given["netdevs"])
            module.exit_json(changed=False, look=found, kept=_collective_node.kept(given["deployment"]), now=time.time())
        if module.check_mode:
            module.exit_json(changed=True, output="", problem="", seconds=0.0)
        if given["state"] == "run":
            module.exit_json(changed=True, **_collective_node.run(api, given["body"], given["container"], given["parameters"]))
        _collective_node.keep(given["deployment"], given["proof"] or {})
    except DockerError as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg="The proof could not be kept: {}.".format(error))
    module.exit_json(changed=True)


if __name__ == "__main__":
    main()
