#!/usr/bin/python
# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: fabric_plan
short_description: Plan the addresses of a fabric
version_added: 1.0.0
description:
  - Decides which interface gets which address, and makes each node's netplan file, out of what M(sparkstack.inference.fabric_network_info) told of all
    nodes. The same nodes in the same order always get the same.
  - What a cable or a switch joins is one segment. Each of its lanes, which are the two PCI functions (twins) of a Spark's port, gets a subnet of its own.
    So a pair on one cable has two subnets, a pair on both cables four, a ring of three six, and four nodes on a switch two.
  - Addresses that are there and right are kept. Right are those of one lane that are all in one subnet, which no other lane has, and for the first lane of
    a segment inside O(fabric_cidr).
  - It fails, with a sentence for each reason, where an address is used elsewhere, a subnet overlaps another one of a node, an interface manages the node
    (default route or SSH connection), is part of a bond, or is configured otherwise by another netplan file, and where the wiring makes no fabric.
  - It runs on the controller and changes nothing.
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
  hosts:
    description:
      - The hosts of the fabric, in the inventory's order, by which they are numbered.
    type: list
    elements: str
    required: true
  nodes:
    description:
      - What M(sparkstack.inference.fabric_network_info) returned as C(network), by host.
      - Without it, only the options are checked.
    type: dict
  fabric_cidr:
    description:
      - The fabric's network. The subnets begin at its beginning. A larger one than C(/24) is divided into such.
      - The first subnet of each segment must be inside. The others may lie behind it.
    type: str
    default: 192.168.200.0/24
  fabric_addresses:
    description:
      - The addresses that certain hosts are to have, by host, each in the first lane of a segment.
    type: dict
    default: {}
  mtu:
    description:
      - The MTU in bytes.
    type: int
    default: 9000
  first:
    description:
      - The number of the first host in each subnet. The others follow.
    type: int
    default: 11
  renderer:
    description:
      - Which daemon makes the network. Empty leaves that to the node's other netplan files.
    type: str
    choices: ["", networkd, NetworkManager]
    default: ""
  replace:
    description:
      - Netplan files of somebody else that the new one replaces, where they are there and configure nothing but the fabric.
    type: list
    elements: path
    default: []
  show:
    description:
      - Whether to write the plan to the screen.
    type: bool
    default: true
seealso:
  - module: sparkstack.inference.fabric_network_info
  - module: sparkstack.inference.fabric_network
"""

EXAMPLES = r"""
---
- name: Plan the fabric's addresses
  sparkstack.inference.fabric_plan:
    hosts: "{{ ansible_play_hosts }}"
    nodes: "{{ dict(ansible_play_hosts | zip(ansible_play_hosts | map('extract', hostvars, 'network') | map(attribute='network'))) }}"
    fabric_cidr: 192.168.200.0/22
  run_once: true
  register: plan
"""

RETURN = r"""
nodes:
  description: What is to be done, by host.
  type: dict
  returned: success
  contains:
    content:
      description: The netplan file, or nothing where none is needed.
      type: str
    interfaces:
      description: The interfaces in it, each with C(netdev), C(address) and C(mtu).
      type: list
      elements: dict
    by_others:
      description: The interfaces that another file configures just as wanted, with that file.
      type: dict
    replace:
      description: The files that are replaced.
      type: list
      elements: str
    peers:
      description: The addresses that must answer, each with C(host), C(netdev) (this node's), C(address) and C(mtu).
      type: list
      elements: dict
run:
  description: A word of this plan's own, by which M(sparkstack.inference.fabric_network) knows its trial from another run's.
  type: str
  returned: success
lines:
  description: The plan as it is shown.
  type: list
  elements: str
  returned: success
"""
