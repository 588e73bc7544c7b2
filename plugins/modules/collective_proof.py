#!/usr/bin/python
# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: collective_proof
short_description: Prove a launch's fabric by a small all-reduce over all its ranks
version_added: 1.0.0
author:
  - The sparkstack.inference developers (@sparkstack)
description:
  - Starts a container beside where each rank will run, of the same image, with the same environment, devices, network, limits and rights, but without
    the model. In them all ranks meet at the launch's rendezvous and reduce a few buffers of up to 32 MiB, over NCCL, or over gloo on nodes without GPUs.
  - So a wrong interface, address, HCA or GID index, a closed port or a cut link shows in seconds, and not after a load of minutes.
  - It tells which way the data really went, by NCCL's own lines, and does not let a launch go over sockets that was to go over RDMA.
  - Every sum is checked on every rank.
  - A good proof is kept on the nodes. As long as image, environment, ranks, addresses, links and boots are the same, the next one answers from it.
  - The containers are removed in any case, and end by themselves when nobody waits for them any more.
  - Run it on all hosts of the launch at the same time, while no rank of it runs.
extends_documentation_fragment:
  - sparkstack.inference.attributes
  - sparkstack.inference.attributes.actiongroup_spark
attributes:
  action:
    description: Indicates this has a corresponding action plugin so some parts of the options can be executed on the controller.
    support: full
  check_mode:
    support: full
    details:
      - It looks at what is remembered, and says whether a proof would run.
  diff_mode:
    support: none
  idempotent:
    support: partial
    details:
      - A proof that is remembered changes nothing. With O(again=true), or when the last one was not good, it runs each time.
  platform:
    description: The nodes run Linux with Docker.
    support: full
    platforms: linux
options:
  launch:
    description:
      - This host's part of the plan, C(plan.ranks[].launch) of M(sparkstack.inference.inference_plan), or options of
        M(sparkstack.inference.inference_launch) as a mapping.
    type: dict
    required: true
  members:
    description:
      - All hosts that take part. By default those of the play.
    type: list
    elements: str
  transport:
    description:
      - V(rdma) blocks a launch that goes over sockets.
      - V(auto) does so where the rank gets GPUs and C(/dev/infiniband), and its environment names a device (C(NCCL_IB_HCA)) or asks for
        C(NCCL_NET=IB). Where it names none and does not switch RDMA off either, sockets are RV(verdict=slow).
      - V(socket) and V(any) take what comes.
    type: str
    choices: [auto, rdma, socket, any]
    default: auto
  link_mbps:
    description:
      - What the links of one node promise together, in Mbit/s. With V(0) the bandwidth is told, but not judged.
    type: float
    default: 0
  min_share:
    description:
      - The share of O(link_mbps) that the bus bandwidth must reach. Below, the verdict is V(slow).
    type: float
    default: 0.5
  again:
    description:
      - Run the proof though a good one is remembered.
    type: bool
    default: false
  max_age:
    description:
      - Seconds for which a good proof is remembered.
    type: float
    default: 86400
  required:
    description:
      - Fail when the verdict is V(blocked).
    type: bool
    default: true
  timeout:
    description:
      - Seconds for the whole proof. From the rendezvous on it has at most 30, or O(join_timeout) if that is more.
    type: float
    default: 90
  join_timeout:
    description:
      - Seconds in which all ranks must come to the rendezvous, from when torch is imported.
    type: float
    default: 30
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
- name: Prove the fabric by a small all-reduce
  sparkstack.inference.collective_proof:
    launch: "{{ tp_launch_plan.ranks[groups['all'].index(inventory_hostname)].launch }}"
    link_mbps: 200000
  become: true
  register: proof

- name: Show what was proved
  ansible.builtin.debug:
    msg: "{{ proof.message }}"
"""

RETURN = r"""
verdict:
  description:
    - V(ready), V(slow) or V(blocked), the same on all hosts. V(none) in check mode, when a proof would run,
      and for an image whose C(python3) has no torch.
  returned: always
  type: str
cause:
  description: Why it is not ready, in the words of M(sparkstack.inference.init_phase_wait), or V(none).
  returned: always
  type: str
  sample: ib_error
culprit:
  description: The host that it is due to, or V(none).
  returned: always
  type: str
  sample: spark2
message:
  description: What was seen, in a sentence.
  returned: always
  type: str
  sample: "spark2 (rank 1) talks over sockets (enp1s0f0np0), though RDMA was expected: NCCL says NET/IB: No device found."
remedy:
  description: What to do.
  returned: always
  type: str
evidence:
  description: Lines of the ranks that say so.
  returned: always
  type: list
  elements: str
remembered:
  description: Whether the answer is that of an earlier proof.
  returned: always
  type: bool
group:
  description: What was measured. Empty where no proof ran.
  returned: always
  type: dict
  contains:
    ranks:
      description: The number of nodes.
      type: int
    world_size:
      description: The number of processes.
      type: int
    backend:
      description: V(nccl) or V(gloo).
      type: str
    seconds:
      description: From the start of the program to its result, the slowest rank's. Most of it is the import of torch.
      type: float
    sizes:
      description: For each size its C(bytes), C(seconds), C(bus_bytes_s) and whether the sum was C(correct).
      type: list
      elements: dict
    bus_gb_s:
      description: The best bus bandwidth in GB/s, 2(n-1)/n times the bytes by the time for n processes.
      type: float
    correct:
      description: Whether all sums were right on all ranks.
      type: bool
    transport:
      description: V(rdma), V(socket), V(p2p), V(shm), or V(tcp) for gloo. V(socket) if any rank uses sockets.
      type: str
    devices:
      description: The HCAs, or the interfaces, that the data went over.
      type: list
      elements: str
    gdr:
      description: Whether GPU Direct RDMA was used.
      type: bool
    nccl:
      description: The version of NCCL.
      type: str
    torch:
      description: The version of torch.
      type: str
    port:
      description: The rendezvous port.
      type: int
  sample:
    ranks: 2
    world_size: 2
    backend: nccl
    seconds: 4.6
    bus_gb_s: 21.9
    correct: true
    transport: rdma
    devices: [roceP2p1s0f0, rocep1s0f0]
    gdr: false
    nccl: 2.28.9
    torch: 2.9.1+cu130
    port: 29501
nodes:
  description:
    - What each host's rank told, by host. C(gpu_bytes) is what it took of the GPU beside the CUDA context, C(nccl_bytes) how much of it NCCL did.
  returned: always
  type: dict
msg:
  description: The message, and the remedy where there is one.
  returned: always
  type: str
"""
