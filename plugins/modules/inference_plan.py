#!/usr/bin/python

# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: inference_plan
short_description: One plan out of the inventory, a recipe and the facts of every node
version_added: 1.0.0
author:
  - The sparkstack.inference developers (@sparkstack)
description:
  - Checks the inventory's groups and the recipe, and decides what each rank is to run and what is to be done about it.
  - Without O(nodes) only what can be told without the nodes is checked. Use it as the first task, so that a mistake is answered
    before anything is reached.
  - With O(nodes) the whole plan is made and shown on one screen.
  - The plugin runs on the controller and touches no node. Use it with C(run_once).
extends_documentation_fragment:
  - sparkstack.inference.attributes
  - sparkstack.inference.attributes.actiongroup_spark
  - sparkstack.inference.attributes.info_module
options:
  recipe:
    description:
      - The recipe's name, or the path of its file.
      - A name is looked for in the current folder, beside the inventory, and in C(recipes) beside the playbook and in this collection.
      - A mapping is taken as the recipe itself.
    type: raw
    required: true
  overrides:
    description:
      - What the user wants otherwise than the recipe. Empty values are passed over.
    type: dict
    suboptions:
      engine:
        description: The engine.
        type: str
      image:
        description: The image.
        type: str
      model_path:
        description: The model's folder on every node.
        type: str
      served_name:
        description: The name under which the model is served.
        type: str
      port:
        description: The port of the API.
        type: int
      rendezvous_port:
        description: The port on which the ranks find each other.
        type: int
      ready_timeout:
        description: Seconds that a launch may take to be ready.
        type: int
      arguments:
        description: Laid over the recipe's arguments.
        type: dict
      environment:
        description: Laid over the recipe's environment.
        type: dict
  head:
    description:
      - The hosts of the inventory's group C(head).
    type: list
    elements: str
    required: true
  workers:
    description:
      - The hosts of the inventory's group C(workers), in rank order.
    type: list
    elements: str
    required: true
  use:
    description:
      - Hosts out of O(head) and O(workers) that may be used. By default those of the recipe's C(nodes), and all where it names none.
    type: list
    elements: str
    default: []
  seen:
    description:
      - What is known of the hosts that may be used, where the recipe's shape takes fewer of them. Those on which the deployment runs are kept, and beside
        that those with most memory available are taken. Without it RV(plan.placing) says that nodes are still to be chosen.
    type: list
    elements: dict
    suboptions:
      name:
        description: The host's name in the inventory.
        type: str
        required: true
      memory:
        description: The fact of M(sparkstack.inference.gpu_memory_facts).
        type: dict
      containers:
        description: The RV(sparkstack.inference.inference_info#module:containers) of the host.
        type: list
        elements: dict
  placed:
    description:
      - The hosts in rank order that were chosen before; with O(replica) those of this one.
    type: list
    elements: str
  replica:
    description:
      - The number of the replica that is planned, where the recipe has several. Its deployment is called after it, as C(NAME-r0).
    type: int
  source:
    description:
      - The host that gives the image to all replicas, if that is not the head.
    type: str
  source_image:
    description:
      - With O(source), the RV(sparkstack.inference.inference_info#module:image) there.
    type: dict
  nodes:
    description:
      - What is known of the nodes, in rank order, head first.
    type: list
    elements: dict
    suboptions:
      name:
        description: The host's name in the inventory.
        type: str
        required: true
      fabric:
        description: The fact of M(sparkstack.inference.fabric_facts).
        type: dict
      environment:
        description: The node's NCCL and Gloo variables.
        type: dict
      memory:
        description: The fact of M(sparkstack.inference.gpu_memory_facts).
        type: dict
      info:
        description: The answer of M(sparkstack.inference.inference_info).
        type: dict
      model:
        description: The answer of M(sparkstack.inference.model_manifest_info).
        type: dict
      baked:
        description: At the head, the RV(sparkstack.inference.fabric_environment_info#module:image), what the image brings of its own.
        type: dict
      proof:
        description: The answer of M(sparkstack.inference.inference_proof), at the head.
        type: dict
      verdict:
        description: The verdict of M(sparkstack.inference.init_phase_wait).
        type: str
  parser:
    description:
      - The RV(sparkstack.inference.engine_options_info#module:parser) of the image.
    type: dict
  parser_problem:
    description:
      - Why there is no O(parser).
    type: str
  verify_arguments:
    description:
      - Refuse a plan whose arguments the image could not be asked about.
    type: bool
    default: true
  listen_address:
    description:
      - The address on which the head serves the API.
    type: str
    default: 0.0.0.0
  endpoint_host:
    description:
      - The name or address by which clients reach the head.
    type: str
  cache_dir:
    description:
      - The folder on the nodes that keeps compiled kernels between containers.
    type: path
    default: /var/cache/sparkstack
  gpus:
    description:
      - Whether the containers get the node's GPUs. V(auto) gives them where the node shows one, or its rank runs with them.
    type: str
    choices: [auto, all, none]
    default: auto
  api_key:
    description:
      - The API's key. Only a fingerprint of it is kept.
    type: str
  evict:
    description:
      - Names of containers that may be stopped to make room on the nodes. Their memory counts as available.
    type: list
    elements: str
    default: []
  memory_setting:
    description:
      - How the engine is told how much memory to take where the recipe leaves that open.
      - With V(auto) the plan adds the value that it recommends to the arguments of every rank. While nothing asks for a restart, that is the one that the ranks
        were started with; at a restart it is kept where it still fits what is measured.
      - With V(engine) the engine's own default holds.
    type: str
    choices: [auto, engine]
    default: auto
  memory_check:
    description:
      - Whether a launch whose memory lacks beyond doubt is refused, or only told of.
    type: str
    choices: [refuse, warn]
    default: refuse
  restart:
    description:
      - Plan a restart though nothing asks for one.
    type: bool
    default: false
  restore:
    description:
      - O(recipe) is that of an earlier launch. Of O(overrides) only the secret variables are taken, which no record holds.
    type: bool
    default: false
  planned:
    description:
      - With O(restore), the RV(plan.planned) of that launch; without, where the recipe leaves the engine's memory open it is left to the engine.
    type: dict
  show:
    description:
      - Show the plan on the screen.
    type: bool
    default: true
seealso:
  - module: sparkstack.inference.inference_launch
  - module: sparkstack.inference.inference_info
"""

EXAMPLES = r"""
---
- name: Check the inventory and the recipe before any node is reached
  sparkstack.inference.inference_plan:
    recipe: qwen3.5-122b-a10b-fp8
    head: "{{ groups['head'] }}"
    workers: "{{ groups['workers'] }}"
  run_once: true
"""

RETURN = r"""
plan:
  description: The plan.
  returned: always
  type: dict
  contains:
    deployment:
      description: The deployment's name.
      type: str
    engine:
      description: The engine.
      type: str
    image:
      description: The image.
      type: str
    model_path:
      description: The model's folder.
      type: str
    served_name:
      description: The name under which the model is served.
      type: str
    port:
      description: The port of the API.
      type: int
    rendezvous_port:
      description: The port of the rendezvous.
      type: int
    ports:
      description: By rank, the ports on which its node must have no other listener.
      type: list
      elements: list
    head_first:
      description: The head is started before the others.
      type: bool
    ready_timeout:
      description: Seconds that a launch may take to be ready.
      type: int
    proof:
      description: The completion that proves it, C(prompt), C(max_tokens) and C(timeout).
      type: dict
    hosts:
      description: The hosts in rank order, of RV(plan.replica) where there are several.
      type: list
      elements: str
    name:
      description: The recipe's name, which is RV(plan.deployment) where there is one replica.
      type: str
    replica:
      description: The number of the replica whose RV(plan.deployment) and RV(plan.hosts) these are; none where there is one.
      type: int
    replicas:
      description: All of them, each with C(deployment), C(replica) and C(hosts). Empty while RV(plan.placing).
      type: list
      elements: dict
    members:
      description: The hosts of all replicas.
      type: list
      elements: str
    candidates:
      description: The hosts that may be used.
      type: list
      elements: str
    placing:
      description: The recipe takes fewer nodes than may be used, and O(seen) is needed to choose them.
      type: bool
    recipe:
      description: The recipe with all that was laid over it, as O(recipe) takes it again; without secret variables.
      type: dict
    action:
      description: What is to be done, V(none), V(watch), V(start) or V(restart). Only with O(nodes).
      type: str
    reasons:
      description: Why, in sentences. Only with O(nodes).
      type: list
      elements: str
    differences:
      description: What a running launch was started with and is to be started with. Only with O(nodes).
      type: list
      elements: str
    assumed:
      description: What was not measured. Only with O(nodes).
      type: list
      elements: str
    away:
      description: Seconds until the model is served (again), as long as the last start took; none where nothing starts or none is known. Only with O(nodes).
      type: float
    staged:
      description: The image is the same on all nodes, so nothing needs to be brought anywhere. Only with O(nodes).
      type: bool
    unrecorded:
      description: It serves, and the nodes have not kept a record of that. Only with O(nodes).
      type: bool
    idle:
      description: Nothing at all is to be done on the nodes. Only with O(nodes).
      type: bool
    image_content:
      description: The image's content at the head, or none where it is not there yet. Only with O(nodes).
      type: str
    model_digest:
      description: A hash over the model's files, or none. Only with O(nodes).
      type: str
    endpoint:
      description: The address of the API. Only with O(nodes).
      type: str
    launch_id:
      description: The launch, a new one where one is to be started. Only with O(nodes).
      type: str
    memory:
      description:
        - What a launch that is to start needs of each node's memory, what of the cache fits beside it, and how the engine is best told, all by
          estimate. It is empty where nothing is to start. Only with O(nodes).
      type: dict
    planned:
      description:
        - What is added to the recipe's arguments, by what was measured; empty where no value is sure, V(none) where the recipe or the user has decided.
          Only with O(nodes).
      type: dict
    ranks:
      description:
        - For each rank C(node), C(spec_hash), C(baked), the RV(sparkstack.inference.fabric_environment_info#module:findings) of the image's own variables
          there, and C(launch), the options of M(sparkstack.inference.inference_launch); C(evict), the containers of
          O(evict) that run there, and C(wanted_free), bytes for which page cache must be given back first, or V(0). Only with O(nodes).
      type: list
      elements: dict
    secret:
      description:
        - Variables of O(overrides.environment) that look like secrets. They are left out of RV(plan.ranks), so that no result shows their
          values; whoever starts the ranks adds them. Only with O(nodes).
      type: list
      elements: str
    screen:
      description: The lines of the plan's screen. Only with O(nodes).
      type: list
      elements: str
"""
