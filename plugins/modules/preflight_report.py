#!/usr/bin/python
# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: preflight_report
short_description: Judge whether ranks on several nodes could work together, before anything is loaded
version_added: 1.0.0
description:
  - Makes one verdict of what other modules have told of every node. Each item is V(ready), V(slow) or V(blocked), with the node, the peer and the
    interface that it was found at, one sentence, and what to do.
  - What one cause explains is told once. Of a cable that is out, neither the ports nor the bandwidth behind it are told as well.
  - Versions that differ between the nodes are a note unless the difference is known to do harm. All of them stand in one table.
  - It shows the verdict on the screen, see O(show). It runs on the controller and changes nothing.
  - Without O(nodes) it only checks its other options, so that a mistake is told before a node is looked at.
author: The sparkstack.inference developers (@sparkstack)
extends_documentation_fragment:
  - sparkstack.inference.attributes
  - sparkstack.inference.attributes.actiongroup_spark
  - sparkstack.inference.attributes.info_module
attributes:
  action:
    description: Indicates this has a corresponding action plugin so some parts of the options can be executed on the controller.
    support: full
options:
  nodes:
    description:
      - What is known of each node, by host, the head first. Of a host that could not be looked at give an empty mapping.
      - C(fabric), C(preflight) and C(gpu_memory) are the facts of M(sparkstack.inference.fabric_facts), M(sparkstack.inference.preflight_facts) and
        M(sparkstack.inference.gpu_memory_facts), C(probe) is the result of C(sparkstack.inference.fabric_probe), C(collective) that of
        C(sparkstack.inference.collective_proof). What is left out is not checked.
    type: dict
  wanted:
    description:
      - What the nodes are wanted for.
    type: dict
    suboptions:
      head:
        description: The host of rank 0. By default the first one of O(nodes).
        type: str
      deployment:
        description: The deployment that is to be launched. Ports that its ranks hold now are free for it.
        type: str
      image:
        description: The image, by name and tag.
        type: str
      brings_image:
        description: Whether the same run brings the head's image to the other nodes afterwards. A difference is then a note.
        type: bool
        default: false
      model_bytes:
        description: The bytes that the model takes on a node's disk.
        type: int
      ports:
        description:
          - The TCP ports that are used.
        type: list
        elements: dict
        default: []
        suboptions:
          port:
            description: Its number.
            type: int
            required: true
          use:
            description: What for. A firewall before V(api) makes a launch slow to reach, and no more.
            type: str
            choices: [rendezvous, api, nccl, other]
            default: other
          host:
            description: The host on which it is listened on; by default on any of them.
            type: str
      more_ports:
        description: More TCP ports that all nodes must let in.
        type: list
        elements: int
        default: []
      transport:
        description:
          - V(rdma) when nothing else will do, V(tcp) when RDMA is not wanted.
          - With V(auto) RDMA is expected of all nodes as soon as one of them has it.
        type: str
        choices: [auto, rdma, tcp]
        default: auto
      gpus:
        description: Whether the ranks get GPUs. With V(auto) they do where there are any.
        type: str
        choices: [auto, all, none]
        default: auto
      expected_speed_mbps:
        description: The speed in Mbit/s that each link should have. With V(0) the nodes' links are compared with each other.
        type: int
        default: 0
      min_share:
        description:
          - The share of a link's speed under which its bandwidth is V(slow).
          - One half of a Spark's port gives half of what it says (PCIe), so more than V(0.46) would be too much for it.
        type: float
        default: 0.4
      block_share:
        description: The share of a link's speed under which it is V(blocked).
        type: float
        default: 0.25
      clock_seconds:
        description: The seconds by which clocks may differ.
        type: float
        default: 2
      environment:
        description: Variables that all ranks get.
        type: dict
        default: {}
  skip:
    description:
      - Items that are not to be told.
      - The names are V(address), V(link), V(subnet), V(duplicate_address), V(twins), V(arp), V(reach), V(loss), V(path_mtu), V(firewall), V(clock),
        V(hosts_file), V(ports), V(memlock), V(infiniband), V(kernel), V(driver), V(firmware), V(docker), V(store), V(image), V(nccl), V(disk),
        V(speed), V(bandwidth), V(rdma) and V(collective).
    type: list
    elements: str
    default: []
  show:
    description: What to show on the screen. V(problems) shows one line when all is ready, and else what is not.
    type: str
    choices: [all, problems, none]
    default: all
  json:
    description: A file on the controller for the report. It is not written here, but checked, and RV(json) has its absolute path.
    type: str
seealso:
  - module: sparkstack.inference.fabric_facts
  - module: sparkstack.inference.preflight_facts
"""

EXAMPLES = r"""
---
- name: Gather the fabric
  sparkstack.inference.fabric_facts:

- name: Gather what the nodes must have in common
  sparkstack.inference.preflight_facts:
  become: true

- name: Judge what was gathered
  sparkstack.inference.preflight_report:
    nodes: "{{ dict(ansible_play_hosts | zip(ansible_play_hosts | map('extract', hostvars, 'ansible_facts'))) }}"
    skip: [clock]
  run_once: true
  register: preflight

- name: Stop where ranks could not work together
  ansible.builtin.assert:
    that: preflight.report.result != 'blocked'
    fail_msg: "{{ preflight.sentence }}"
  run_once: true
"""

RETURN = r"""
report:
  description: The verdict. C(docs/preflight.md) of the collection describes each item.
  type: dict
  returned: when O(nodes) is given
  contains:
    format:
      description: V(1). It is raised when a key changes its meaning or goes.
      type: int
    taken_at:
      description: When it was judged, in UTC as ISO 8601.
      type: str
    result:
      description: The worst of all items.
      type: str
    nodes:
      description: The names of the nodes.
      type: list
      elements: str
    checks:
      description:
        - What was found, in the order of the items, with C(item), C(result), C(node), C(peer), C(rail), C(message) and C(remedy).
        - An item that is V(ready) may have a message, too, with what was measured or what is worth a note. C(node), C(peer) and C(rail) are V(none)
          for what is true of all.
      type: list
      elements: dict
      sample:
        - item: path_mtu
          result: slow
          node: spark2
          peer:
          rail: enp1s0f0np0
          message: "spark2, enp1s0f0np0: its MTU is 1500, where spark1 has 9000, so larger packets to it are lost and RDMA sends smaller pieces."
          remedy: Set it with 'ip link set enp1s0f0np0 mtu 9000', and in the node's netplan so that it stays.
    skipped:
      description: Items that were left out by O(skip).
      type: list
      elements: str
    not_checked:
      description: Items of which nothing was known.
      type: list
      elements: str
    parity:
      description: The nodes side by side, a row for each version, with C(what), C(nodes) (its value by node) and C(equal).
      type: list
      elements: dict
sentence:
  description: Why it is blocked, each cause with its remedy. Empty where it is not.
  type: str
  returned: when O(nodes) is given
table:
  description: The whole report as lines, whatever O(show) is.
  type: list
  elements: str
  returned: when O(nodes) is given
json:
  description: O(json) as an absolute path, or nothing.
  type: str
  returned: success
"""
