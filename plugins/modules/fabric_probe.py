#!/usr/bin/python
# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: fabric_probe
short_description: Measure every pair of nodes on every rail of the fabric, in both directions
version_added: 1.0.0
description:
  - Every node of the play sends to every other one, from each of its interfaces on the fabric, and each counts what arrives. So it is known
    which direction of a link loses packets, and not only that an answer is missing.
  - Measures for each pair loss, round trip, path MTU, the hardware addresses that answer for an address, the difference of the clocks, whether
    the launch's TCP ports can be reached, and the bandwidth.
  - On each node a small process listens meanwhile, on the fabric's addresses only. It answers only who has its one-time token, and it ends with
    the task, or by itself within a minute or two when the controller is gone.
  - All pairs are probed at once, in about a second. Bandwidth is tested pair by pair in rounds in which each node meets one other, so that no
    two tests share a link. A pair that does not answer well is not tested.
  - All nodes must run the task at the same time. It needs as many C(forks) as there are nodes. It can't be retried with C(until), or be looped.
author: The sparkstack.inference developers (@sparkstack)
extends_documentation_fragment:
  - sparkstack.inference.attributes
  - sparkstack.inference.attributes.actiongroup_spark
attributes:
  check_mode:
    support: full
    details:
      - Nothing remains on the nodes, so that check mode makes no difference.
  diff_mode:
    support: N/A
    details:
      - It changes nothing.
  idempotent:
    support: full
  platform:
    description: The nodes run Linux with Python 3.8 or later.
    support: full
    platforms: linux
options:
  peers:
    description:
      - The nodes of the group with their interfaces on the fabric, this node included, the same list on all of them.
      - A node that does not run the task is told as one that takes no part.
    type: list
    elements: dict
    required: true
    suboptions:
      host:
        description:
          - The node's name in the inventory.
        type: str
        required: true
      rails:
        description:
          - Its interfaces, as C(rails) of M(sparkstack.inference.fabric_facts) has them.
          - Of each C(netdev) and C(address) (IPv4) are needed. One without an address is left out.
          - C(prefix) (of its subnet) and C(mac) are asked of the node where they are not given. All else is not looked at.
        type: list
        elements: dict
        required: true
  ports:
    description:
      - The TCP ports that the launch will need, such as those of the rendezvous, the API and NCCL.
      - Each node listens on those that are free there, and the others try to connect. A port on which another program listens already is told
        with who it is, and is never connected to.
    type: list
    elements: int
    default: []
  seconds:
    description:
      - How long to send for the bandwidth of each pair of interfaces and direction. V(0) leaves these tests out.
      - C(ib_write_bw) sends for a second at least.
    type: float
    default: 0.5
  members:
    description:
      - The hosts that run this task together.
      - When it is not given, the hosts of the play.
    type: list
    elements: str
  join_timeout:
    description:
      - Seconds until every node must have begun.
    type: float
    default: 20
requirements:
  - Root's rights (C(become)) let it ask the link itself who has an address, which finds two machines with the same one, and tell who listens on
    a port. All else works without.
  - C(ib_write_bw) of perftest on both ends for the bandwidth of RDMA. TCP is measured where it is missing.
seealso:
  - module: sparkstack.inference.fabric_facts
  - module: sparkstack.inference.fabric_probe_node
"""

EXAMPLES = r"""
---
- name: Probe the fabric
  hosts: sparks
  gather_facts: false
  tasks:
    - name: Gather the rails
      sparkstack.inference.fabric_facts:

    # Each node is given the same list of all nodes.
    - name: Probe every pair
      sparkstack.inference.fabric_probe:
        peers: "{{ peers }}"
        ports: [29501, 8000]
      vars:
        rails: "{{ ansible_play_hosts | map('extract', hostvars, ['ansible_facts', 'fabric', 'rails']) }}"
        peers: "{{ dict(ansible_play_hosts | zip(rails)) | ansible.builtin.dict2items(key_name='host', value_name='rails') }}"
      become: true
      register: probe
"""

RETURN = r"""
listening:
  description: What this node could offer to the others' probes.
  returned: success
  type: dict
  contains:
    rails:
      description: The own interfaces, with an C(error) where one could not be used.
      type: list
      elements: dict
      sample:
        - netdev: enp1s0f0np0
          address: 192.168.200.11
          prefix: 24
          mtu: 9000
          speed_mbps: 200000
          mac: 4c:bb:47:00:00:11
          udp: 40211
          rdma: {hca: rocep1s0f0, port: 1, gid_index: 3}
          error:
    bound:
      description: Those of O(ports) that were free.
      type: list
      elements: int
      sample: [29501]
    in_use:
      description: Those on which another program listens, with C(pid), C(process) and C(container) (its id) where they can be seen.
      type: list
      elements: dict
      sample: [{port: 8000, pid: 4242, process: python3, container: null}]
    unbound:
      description: Those that could not be listened on for another reason, each with its C(error).
      type: list
      elements: dict
      sample: []
pairs:
  description: What was measured from this node to each other one.
  returned: success
  type: list
  elements: dict
  contains:
    peer: {description: The other node., type: str, sample: spark2}
    netdev: {description: The own interface., type: str, sample: enp1s0f0np0}
    address: {description: Its address., type: str, sample: 192.168.200.11}
    peer_netdev: {description: The other node's interface., type: str, sample: enp1s0f0np0}
    peer_address: {description: Its address., type: str, sample: 192.168.200.12}
    error: {description: 'One sentence where the pair could not be probed, or nothing arrives; else null.', type: str}
    sent: {description: Packets that this node has sent., type: int, sample: 200}
    received: {description: 'How many of them the other node has counted, or null where it could not be asked.', type: int, sample: 200}
    answered: {description: How many answers have come back., type: int, sample: 200}
    overrun: {description: Packets that have arrived there and found no room. They do not count as lost., type: int, sample: 0}
    loss_share: {description: 'The share of this direction that was lost, from 0 to 1, or null where it is not known.', type: float, sample: 0.0}
    rtt_ms: {description: 'The quickest round trip in milliseconds, or null.', type: float, sample: 0.061}
    echo_ms: {description: 'The round trip of an ICMP echo, asked for only where no answer came back; or null.', type: float}
    path_mtu: {description: 'The largest IPv4 packet in bytes that arrives there, up to the own MTU, or null.', type: int, sample: 9000}
    mac_seen: {description: 'The hardware address that answers for the other address, a foreign one first; or null.', type: str, sample: 4c:bb:47:00:00:12}
    mac_told: {description: The one that the other node's interface has., type: str, sample: 4c:bb:47:00:00:12}
    macs: {description: All that answered for it. Empty without root's rights., type: list, elements: str, sample: [4c:bb:47:00:00:12]}
    arp: {description: 'The neighbour table: V(complete), V(incomplete) or V(none).', type: str, sample: complete}
    arrives_by: {description: Other interfaces of the other node than this one by which packets came in there., type: list, elements: str, sample: []}
    control: {description: How it went with a TCP port that the kernel of the other node chose., type: str, sample: ok}
    tcp:
      description:
        - By port V(ok), V(refused) (though the other node listens), V(timeout) (no answer at all), V(in_use) (not tried, as another program
          listens there), or what the kernel says, such as V(No route to host) where a firewall says no.
      type: dict
      sample: {"29501": ok, "8000": in_use}
    clock_offset_s: {description: 'How far the other clock is ahead in seconds, or null.', type: float, sample: 0.000041}
    clock_error_s: {description: How much that may be wrong., type: float, sample: 0.000031}
    send_error: {description: 'What the own kernel said where it did not send; or null.', type: str}
    mb_s: {description: 'Megabytes (1000000 bytes) a second that this node can send there, or null where that was not tested.', type: float, sample: 11576.3}
    by: {description: 'V(tcp) or V(ib_write_bw), or null.', type: str, sample: ib_write_bw}
    busy:
      description:
        - With TCP, the share of the time from 0 to 1 in which the threads of the busier end ran or waited for a CPU; or null.
        - Near 1, the machine was the limit and not the link. Threads that wait for a slow link have little to do.
      type: float
      sample: 0.31
    rdma_error: {description: 'Why C(ib_write_bw) failed, where it did and TCP was measured instead; or null.', type: str}
seconds:
  description: How long it took.
  returned: success
  type: float
  sample: 3.1
"""
