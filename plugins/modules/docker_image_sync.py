#!/usr/bin/python
# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: docker_image_sync
short_description: Bring a Docker image from one node to all others over the fabric
version_added: 1.0.0
description:
  - Compares the image O(image) on all nodes of the play by content, and brings it from the node O(source) to those which
    lack it or have another one. Nothing moves where the content is equal.
  - The content is the diff ids of the layers, the configuration, and the architecture. These are the same in both of
    Docker's image stores, in which the image's C(Id) is not.
  - The image goes from node to node in one connection on the fabric, without a file in between, and without the layers
    which the fetching daemon has already. It is compared once more after it was loaded.
  - On the source only the layers are read which some node lacks. That takes root there, and a store that is laid out as Docker
    with C(overlay2) or with containerd's store does. Elsewhere C(docker save) reads all of them, which is told.
  - What moves an image goes on when Ansible ends. A run which finds that the image comes to a node already sees it to its end.
  - The source listens only on its fabric address, only while the task runs, and serves only callers which come from the
    other nodes' fabric addresses and hold a one-time token. No SSH between the nodes is needed.
  - The task must run on all nodes at the same time, the source among them. It needs as many C(forks) as there are nodes.
    It can't be retried with C(until).
  - The image is not encrypted on its way.
author: The sparkstack.inference developers (@sparkstack)
extends_documentation_fragment:
  - sparkstack.inference.attributes
  - sparkstack.inference.attributes.actiongroup_spark
attributes:
  check_mode:
    support: full
    details:
      - RV(verified) is V(false) for a node which would get the image, and RV(bytes_sent) is V(0).
  diff_mode:
    support: full
  idempotent:
    support: full
  platform:
    description: The nodes run Linux with Docker Engine 20.10 or later. Where C(docker save) reads the image, only missing layers move from version 25 on.
    support: full
    platforms: linux
options:
  image:
    description:
      - The image's name and tag. A digest or an id is refused, as another Docker does not keep it.
    type: str
    required: true
  source:
    description:
      - The node that has the image, by its name in the inventory. It must take part in the task.
    type: str
    required: true
  address:
    description:
      - The own address of each node on the fabric.
    type: str
    required: true
  source_address:
    description:
      - The address on which the source serves the others.
      - The source's own O(address) when it is not given.
    type: str
  port:
    description:
      - The TCP port on which the source serves the others.
      - V(0) takes one that is free. Set another one where a firewall lets only certain ports pass.
    type: int
    default: 0
  docker_host:
    description:
      - The unix socket of each node's Docker daemon.
      - Its path alone will do too.
    type: str
    aliases: [docker_socket]
    default: unix:///var/run/docker.sock
  members:
    description:
      - The hosts that run this task together.
      - When it is not given, the hosts of the play.
    type: list
    elements: str
  progress:
    description:
      - Seconds between two lines that tell how far it is. V(0) tells nothing.
    type: int
    default: 5
  join_timeout:
    description:
      - Seconds until every node must have reported what it has.
    type: int
    default: 60
  connect_timeout:
    description:
      - Seconds until a node must have reached the source on the fabric.
    type: int
    default: 30
  stall_timeout:
    description:
      - Seconds without a sign of the other end after which a node gives up.
    type: int
    default: 60
  timeout:
    description:
      - Seconds after which a node gives up in any case.
    type: int
    default: 3600
requirements:
  - Docker Engine on every node, and a user who may use it (C(become), or the group C(docker)).
seealso:
  - module: community.docker.docker_image_pull
  - module: community.docker.docker_image_load
  - module: sparkstack.inference.docker_image_transfer
notes:
  - A node on which the task fails does not keep the others from getting the image.
  - A transfer that was interrupted leaves no incomplete image. The next run sends what is missing then.
"""

EXAMPLES = r"""
---
- name: Bring an image to all nodes
  hosts: sparks
  gather_facts: false
  tasks:
    # On the head nothing changes; the others fetch what they lack.
    - name: Have the head's engine image on every node
      sparkstack.inference.docker_image_sync:
        image: sglang-qwen35:latest
        source: "{{ groups['head'] | first }}"
        address: "{{ fabric_address }}"
      become: true
      register: image

    - name: Show what moved
      ansible.builtin.debug:
        msg: "{{ image.bytes_sent }} of {{ image.bytes_total }} bytes at {{ image.throughput_mb_s }} MB/s"
"""

RETURN = r"""
actions:
  description: What was done on this node, or would be in check mode. Empty when nothing is needed, and on the source.
  returned: success
  type: list
  elements: str
  sample: ["fetch lab/engine:1 from spark1 (missing here): 3 of 12 layers, about 1.2 GB"]
bytes_total:
  description: The size of the image in bytes, as the source's Docker reports it.
  returned: success
  type: int
bytes_sent:
  description: Bytes of the image that crossed the fabric, to this node; on the source, to all nodes.
  returned: success
  type: int
seconds:
  description: How long it took from the call to the loaded image; on the source, until all nodes had loaded it.
  returned: success
  type: float
throughput_mb_s:
  description: RV(bytes_sent) in megabytes (1000000 bytes) a second of RV(seconds).
  returned: success
  type: float
verified:
  description: Whether this node was seen to have the same content as the source.
  returned: success
  type: bool
image:
  description: The image of the source.
  returned: success
  type: dict
  contains:
    name:
      description: The image's name and tag.
      type: str
    id:
      description: The image's id on this node, or V(null) when it is not there. It can differ between the nodes.
      type: str
    digest:
      description: A hash of the image's content, the same on all nodes.
      type: str
    architecture:
      description: The architecture that the image is made for.
      type: str
      sample: arm64
    os:
      description: The operating system that the image is made for.
      type: str
      sample: linux
    layers:
      description: The diff ids of the image's layers, base first.
      type: list
      elements: str
"""
