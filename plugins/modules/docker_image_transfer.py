#!/usr/bin/python
# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: docker_image_transfer
short_description: One node's part in bringing a Docker image to all nodes
version_added: 1.0.0
description:
  - Looks at an image, serves it to other nodes, or fetches it from another node.
  - M(sparkstack.inference.docker_image_sync) calls this module on every node, and it is of little use without.
  - The image goes from daemon to daemon without a file in between, without the layers which the fetching daemon has. Serving and fetching go on
    in a process of their own, which this module looks at.
author: The sparkstack.inference developers (@sparkstack)
extends_documentation_fragment:
  - sparkstack.inference.attributes
  - sparkstack.inference.attributes.actiongroup_spark
attributes:
  check_mode:
    support: partial
    details:
      - Only O(operation=inspect) and O(operation=tag) can run in check mode.
  diff_mode:
    support: none
    details:
      - M(sparkstack.inference.docker_image_sync) tells the difference.
  idempotent:
    support: partial
    details:
      - O(operation=fetch) fetches what it is told to. What is needed is for the caller to decide.
options:
  operation:
    description:
      - V(inspect) looks at the image and at the daemon.
      - V(serve) begins to serve the image, once to each of O(peers).
      - V(fetch) begins to fetch the image from O(source_address) and to load it.
      - V(watch) looks how far that is.
      - V(tag) gives the image O(known_id) the name O(image).
    type: str
    required: true
    choices: [inspect, serve, fetch, watch, tag]
  image:
    description:
      - The image's name and tag.
    type: str
    required: true
  docker_host:
    description:
      - The unix socket of the Docker daemon.
      - Its path alone will do too.
    type: str
    aliases: [docker_socket]
    default: unix:///var/run/docker.sock
  address:
    description:
      - This node's address on the fabric. Nothing listens on and nothing connects from another one.
    type: str
    required: true
  source_address:
    description:
      - The source's address on the fabric.
    type: str
  port:
    description:
      - The port on which the source listens.
    type: int
  token:
    description:
      - The one-time token which both ends must hold. It never crosses the fabric itself.
    type: str
  peers:
    description:
      - The addresses to serve.
    type: list
    elements: str
    default: []
  layers:
    description:
      - The diff ids of the layers that make up the source's image, base first.
    type: list
    elements: str
    default: []
  common:
    description:
      - How many of O(layers), from the base upwards, this node's daemon has already.
    type: int
    default: 0
  known_id:
    description:
      - The id of an image of this node.
    type: str
  seconds:
    description:
      - How long to wait for another state of what runs than O(known), in seconds.
    type: float
    default: 0
  known:
    description:
      - The state that is known already.
    type: str
    default: running
  connect_timeout:
    description:
      - Seconds until the connection must stand.
    type: int
    default: 30
  stall_timeout:
    description:
      - Seconds without a sign of the other node after which it counts as gone.
    type: int
    default: 60
  timeout:
    description:
      - Seconds after which all ends.
    type: int
    default: 3600
seealso:
  - module: sparkstack.inference.docker_image_sync
"""

EXAMPLES = r"""
---
- name: See whether an image is there, and what it is made of
  sparkstack.inference.docker_image_transfer:
    operation: inspect
    image: lab/engine:1
    address: 192.168.200.11
  register: image
"""

RETURN = r"""
present:
  description: Whether the image is there.
  returned: O(operation=inspect) and O(operation=tag)
  type: bool
identity:
  description:
    - What makes the image the same in every store, with the keys C(architecture), C(os), C(layers), C(config) and
      C(digest).
  returned: when the image is there
  type: dict
id:
  description: The image's id, as this daemon has it.
  returned: when the image is there
  type: str
size:
  description: The image's size in bytes, as this daemon has it.
  returned: when the image is there
  type: int
history:
  description: The sizes of the image's build steps in bytes, newest first.
  returned: when the image is there
  type: list
  elements: int
daemon:
  description: The daemon's C(architecture), C(os) and C(version).
  returned: O(operation=inspect)
  type: dict
known:
  description: The id of each image of this node by the digest of its identity.
  returned: O(operation=inspect)
  type: dict
chains:
  description: The chain ids of all layers of this node's images on which another image can be built.
  returned: O(operation=inspect)
  type: list
  elements: str
free_port:
  description: A port that is free on O(address), or V(0) when the node does not have this address.
  returned: O(operation=inspect)
  type: int
running:
  description: How far a copy of this image is that runs on this node, as RV(status).
  returned: O(operation=inspect)
  type: dict
status:
  description:
    - How far the copy is, with the keys C(state), C(problem), C(source), C(there), C(total), C(began), C(now), C(seconds) and C(result).
    - V(null) when none runs.
  returned: O(operation=serve), O(operation=fetch) and O(operation=watch)
  type: dict
"""

import typing as t

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.sparkstack.inference.plugins.module_utils._docker_api import DockerError
from ansible_collections.sparkstack.inference.plugins.module_utils._image_agent import sentence
from ansible_collections.sparkstack.inference.plugins.module_utils._image_node import ImageNode
from ansible_collections.sparkstack.inference.plugins.module_utils._transfer import TransferError

ARGUMENTS: t.Dict[str, t.Any] = {
    "operation": {"type": "str", "required": True, "choices": ["inspect", "serve", "fetch", "watch", "tag"]},
    "image": {"type": "str", "required": True},
    "docker_host": {"type": "str", "aliases": ["docker_socket"], "default": "unix:///var/run/docker.sock"},
    "address": {"type": "str", "required": True},
    "source_address": {"type": "str"},
    "port": {"type": "int"},
    "token": {"type": "str", "no_log": True},
    "peers": {"type": "list", "elements": "str", "default": []},
    "layers": {"type": "list", "elements": "str", "default": []},
    "common": {"type": "int", "default": 0},
    "known_id": {"type": "str"},
    "seconds": {"type": "float", "default": 0},
    "known": {"type": "str", "default": "running"},
    "connect_timeout": {"type": "int", "default": 30},
    "stall_timeout": {"type": "int", "default": 60},
    "timeout": {"type": "int", "default": 3600},
}


def main() -> None:
    module = AnsibleModule(
        argument_spec=ARGUMENTS,
        required_if=[
            ("operation", "serve", ("port", "token", "peers")),
            ("operation", "fetch", ("port", "token", "source_address", "layers")),
            ("operation", "tag", ("known_id",)),
        ],
        supports_check_mode=True,
    )
    operation: str = module.params["operation"]
    if module.check_mode and operation != "inspect":
        module.exit_json(changed=operation in ("fetch", "tag"))
    try:
        result = getattr(ImageNode(module.params), operation)()
    except (DockerError, TransferError, OSError) as error:
        module.fail_json(msg=sentence(error))
    module.exit_json(changed=operation in ("fetch", "tag"), **result)


if __name__ == "__main__":
    main()
