#!/usr/bin/python

# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: inference_launch
short_description: One rank of a launch as a container on this node
version_added: 1.0.0
author:
  - The sparkstack.inference developers (@sparkstack)
description:
  - Starts, stops or removes one rank of a deployment on a node, as a container by way of M(community.docker.docker_container).
  - The rank gets the host's network, no restart policy, no capability that it was not given, and memory that may be pinned.
  - The arguments are checked by the option parser of the very image before anything running is touched.
  - A container that runs already, of the same launch and with the same content, is left alone.
  - A single rank is of no use. The role P(sparkstack.inference.tp_launch#role) starts all of them, workers first.
extends_documentation_fragment:
  - sparkstack.inference.attributes
  - sparkstack.inference.attributes.actiongroup_spark
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
  idempotent:
    support: full
options:
  state:
    description:
      - With V(started) the rank runs as described, and other containers of the deployment on this node are removed.
      - With V(stopped) all containers of the deployment on this node are stopped, and kept with their logs.
      - With V(absent) they are removed.
    type: str
    choices: [started, stopped, absent]
    default: started
  deployment:
    description:
      - The deployment's name. The container is called after it and the rank.
    type: str
    required: true
  engine:
    description:
      - The engine. Required with O(state=started), as are O(image), O(model), O(rank), O(ranks) and O(head_address).
    type: str
    choices: [sglang, vllm]
  image:
    description:
      - The image by name and tag. It must be on the node.
    type: str
  image_identity:
    description:
      - The image's content, as M(sparkstack.inference.inference_info) tells it. The rank is started anew when it changes.
    type: str
  model:
    description:
      - The model's folder on the node.
    type: str
  model_mount:
    description:
      - The folder that is mounted, read-only and at the same path, when it is not O(model) itself but one above it.
    type: str
  served_name:
    description:
      - The name under which the model is served. By default the name of the model's folder.
    type: str
  rank:
    description:
      - The rank, V(0) for the head.
    type: int
  ranks:
    description:
      - The number of ranks.
    type: int
  tensor_parallel_size:
    description:
      - The number of GPUs over which each layer is split. By default O(ranks), divided by O(pipeline_parallel_size).
    type: int
  pipeline_parallel_size:
    description:
      - The number of stages into which the layers are split, each of O(tensor_parallel_size) GPUs.
    type: int
    default: 1
  expert_parallel:
    description:
      - Spread whole experts over the GPUs of a stage, in place of a part of each expert.
    type: bool
    default: false
  executor:
    description:
      - Who brings the ranks' processes together. By default the engine's own way.
      - For V(ray) the image must have Ray, and O(addresses) is needed.
    type: str
  address:
    description:
      - This node's address on the fabric. By default O(head_address) at rank 0.
    type: str
  addresses:
    description:
      - The addresses of all ranks on the fabric, in rank order, for an O(executor) that asks whether all have come.
    type: list
    elements: str
    default: []
  head_address:
    description:
      - The head's address on the fabric.
    type: str
  rendezvous_port:
    description:
      - The port at the head on which the ranks find each other. The default depends on the engine.
    type: int
  port:
    description:
      - The port of the API at the head. The default depends on the engine.
    type: int
  listen_address:
    description:
      - The address on which the head serves the API.
    type: str
    default: 0.0.0.0
  arguments:
    description:
      - The engine's options without their dashes. V(true) gives the bare option, V(null) leaves it out.
    type: dict
    default: {}
  planned:
    description:
      - Which of O(arguments) a plan has computed, and no recipe gives. The container's labels keep it for the next plan.
      - A container is not started anew because this differs.
    type: list
    elements: str
  environment:
    description:
      - The container's environment. Values of variables that look like secrets are not shown.
    type: dict
    default: {}
  api_key:
    description:
      - The key that clients of the API must send. It reaches the engine by its environment only.
    type: str
  gpus:
    description:
      - Give all GPUs of the node to the container.
    type: bool
    default: true
  infiniband:
    description:
      - Give C(/dev/infiniband) to the container.
    type: bool
    default: false
  shm_size:
    description:
      - The limit of C(/dev/shm), which counts against memory that CPU and GPU share.
    type: str
    default: 8g
  memory:
    description:
      - The container's memory limit. By default there is none.
    type: str
  cap_add:
    description:
      - Capabilities to give. The container starts with none.
    type: list
    elements: str
    default: []
  cache_dir:
    description:
      - The folder on the node that keeps compiled kernels between containers.
    type: path
    default: /var/cache/sparkstack
  launch_id:
    description:
      - The launch that the rank is part of. A rank of another launch is started anew. By default any launch will do.
    type: str
  verify_arguments:
    description:
      - Check O(arguments) by the image's own option parser.
    type: bool
    default: true
  stop_timeout:
    description:
      - Seconds that a rank gets to end by itself before it is killed.
    type: int
    default: 10
requirements:
  - The requirements of M(community.docker.docker_container) on the node.
seealso:
  - module: community.docker.docker_container
  - module: sparkstack.inference.init_phase_wait
"""

EXAMPLES = r"""
---
- name: Start the worker
  sparkstack.inference.inference_launch:
    deployment: qwen
    engine: vllm
    image: vllm/vllm-openai:v0.32.0
    model: /srv/models/qwen
    rank: 1
    ranks: 2
    address: 192.168.200.12
    head_address: 192.168.200.11
    arguments:
      max-model-len: 65536
      gpu-memory-utilization: 0.8

- name: Remove the deployment's containers from this node
  sparkstack.inference.inference_launch:
    deployment: qwen
    state: absent
"""

RETURN = r"""
container:
  description: The container as Docker reports it, without the values of secret variables. Empty in check mode and when absent.
  returned: always
  type: dict
command:
  description: The rank's whole command line.
  returned: when O(state=started)
  type: list
  elements: str
environment:
  description: The container's environment, secrets as hashes.
  returned: when O(state=started)
  type: dict
endpoint:
  description: The address of the API.
  returned: when O(state=started)
  type: str
spec_hash:
  description: The hash over all that the rank is started with.
  returned: when O(state=started)
  type: str
actions:
  description: What was done, or would be.
  returned: always
  type: list
  elements: str
"""
