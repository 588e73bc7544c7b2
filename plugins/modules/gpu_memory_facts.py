#!/usr/bin/python
# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_memory_facts
short_description: Gathers the memory that a model can use on a node, and what holds it
version_added: 1.0.0
description:
  - Reads the memory of the node's GPUs, and of the node itself where CPU and GPU share one memory (GB10).
  - Lists the processes that hold GPU memory, those that only draw too, each with its user, its command line without secrets, and its container.
  - Names what is wrong with the memory, the kernel or the driver, each with a remedy.
  - Where there is no C(nvidia-smi), or where it finds no GPU, the node's own memory is returned and no process.
  - An odd answer of C(nvidia-smi) becomes a warning and a problem. It never fails the task.
extends_documentation_fragment:
  - sparkstack.inference.attributes
  - sparkstack.inference.attributes.actiongroup_spark
  - sparkstack.inference.attributes.facts_module
attributes:
  platform:
    description: Target OS/families that can be operated against.
    support: full
    platforms: linux
options:
  docker_socket:
    description:
      - Path of the socket on which the Docker daemon is asked for the name and the image of a container.
      - When nothing answers there, a container is returned with its id only.
      - The form V(unix:///path) will do too.
    type: path
    aliases: [docker_host]
    default: /var/run/docker.sock
  timeout:
    description:
      - Seconds after which a call of C(nvidia-smi) is given up. It hangs when the driver does.
    type: int
    default: 30
  holders:
    description:
      - Tell also who holds the node's memory, containers and processes outside of them, whether it is a GPU's or the node's own,
        and whose memory is swapped out.
      - Takes root, and some tens of milliseconds.
    type: bool
    default: false
requirements:
  - C(nvidia-smi), which comes with the driver, on a node with a GPU.
seealso:
  - module: sparkstack.inference.fabric_facts
author:
  - The sparkstack.inference developers (@sparkstack)
"""

EXAMPLES = r"""
---
- name: Gather the node's memory
  sparkstack.inference.gpu_memory_facts:

- name: Say what holds the most GPU memory
  ansible.builtin.debug:
    msg: "{{ ansible_facts['gpu_memory']['processes'] | first }}"
  when: ansible_facts['gpu_memory']['processes'] | length > 0

- name: Gather who holds memory on the node
  sparkstack.inference.gpu_memory_facts:
    holders: true
  become: true

- name: Say how to have it back
  ansible.builtin.debug:
    msg: "{{ item.name }} holds {{ item.bytes | human_readable }}: {{ item.stop }}"
  loop: "{{ ansible_facts['gpu_memory']['holders'] | selectattr('stop') }}"

- name: Say what is wrong
  ansible.builtin.debug:
    msg: "{{ item.message }} {{ item.remedy }}"
  loop: "{{ ansible_facts['gpu_memory']['problems'] }}"
"""

RETURN = r"""
ansible_facts:
  description: The facts that are added to the host.
  returned: always
  type: dict
  contains:
    gpu_memory:
      description: The memory that a model can use on this node.
      returned: always
      type: dict
      contains:
        unified:
          description:
            - Whether CPU and GPU can use the same memory (GB10, GH200).
            - It is V(false) on a node without a GPU.
          type: bool
          returned: always
          sample: true
        total_bytes:
          description:
            - The node's memory where the GPU has none of its own, or where there is no GPU.
            - Else the sum over all GPUs, with the instances' memory of a GPU in MIG mode.
          type: int
          returned: always
          sample: 130663165952
        free_bytes:
          description:
            - What CUDA calls free now. On a GB10 the page cache does not count as free.
          type: int
          returned: always
          sample: 44560285696
        available_bytes:
          description: What can be had after the kernel reclaims caches.
          type: int
          returned: always
          sample: 124554051584
        page_cache_bytes:
          description: File pages in the node's memory, without shared memory.
          type: int
          returned: always
          sample: 80530636800
        swap_total_bytes:
          description: Size of the node's swap.
          type: int
          returned: always
          sample: 17179865088
        swap_free_bytes:
          description: Free part of the node's swap.
          type: int
          returned: always
          sample: 17179865088
        shared_memory_bytes:
          description: Files in C(/dev/shm) and other shared memory, which is freed by no dropping of caches.
          type: int
          returned: always
          sample: 104857600
        huge_page_bytes:
          description: The pool of huge pages, used or not. Neither CUDA nor the page cache gets any of it.
          type: int
          returned: always
          sample: 0
        huge_page_free_bytes:
          description: What of that pool, in pages of the default size, is neither used nor promised.
          type: int
          returned: always
          sample: 0
        cma_total_bytes:
          description: The kernel's area for contiguous memory, or V(none) where it has no such area.
          type: int
          returned: always
          sample: 134217728
        cma_free_bytes:
          description: The free part of that area. A kernel that says that more than the area is free has an error, see V(cma_overcounted).
          type: int
          returned: always
          sample: 130023424
        problems:
          description:
            - What is wrong, or worth a note.
            - Of the driver, V(driver_missing), V(driver_mismatch), V(driver_not_loaded), V(driver_incomplete), V(driver_hangs), V(permission),
              V(gpu_lost), V(gpu_not_found) and V(driver) (anything else that C(nvidia-smi) says instead of an answer).
            - Of a GPU, V(gpu_requires_reset), V(gpu_memory_unknown), V(mig_unknown), V(mig_empty) and V(mixed_memory).
            - Of the node's memory, V(cma_overcounted), V(huge_pages), V(page_cache), V(fragmented), V(swap_in_use) and V(overcommit_strict).
          type: list
          elements: dict
          returned: always
          sample:
            - code: page_cache
              message: "CUDA calls 41.5 GiB free where 116.0 GiB can be had: 75.1 GiB of page cache count as used for it."
              remedy: "Before a launch, give it back: 'sync', then 'sysctl vm.drop_caches=3'."
        gpus:
          description:
            - The GPUs, in the driver's order.
            - C(memory) is V(shared) where the GPU uses the node's memory, V(coherent) where it has its own and CPU and GPU can use each
              other's, else V(own). With V(shared), the driver states no bytes.
            - C(mig_devices) is null for a GPU that is not in MIG mode. Devices with the same C(gpu_instance) share that one's memory.
          type: list
          elements: dict
          returned: always
          sample:
            - index: 0
              uuid: GPU-00000000-0000-4000-8000-000000000000
              name: NVIDIA GB10
              driver_version: "580.159.04"
              total_bytes:
              used_bytes:
              free_bytes:
              utilization_percent: 0
              power_watts: 4.5
              memory: shared
              mig_devices:
        processes:
          description:
            - The processes that hold GPU memory, largest first. A process on two GPUs stands there twice.
            - C(type) is V(C) for one that computes, V(G) for one that draws, V(C+G) for both, or null where C(nvidia-smi) did not tell.
            - C(command) is its command line with C(***) for what is a secret, 400 characters at most.
            - C(mig_uuid) is the UUID of the slice that it is on, with MIG.
            - C(container) is null for a process outside any container.
              Its C(name) and C(image) are null when Docker does not know the id or does not answer.
          type: list
          elements: dict
          returned: always
          sample:
            - pid: 1832
              name: sglang::scheduler_TP0
              user: root
              command: sglang::scheduler_TP0
              type: C
              gpu_uuid: GPU-00000000-0000-4000-8000-000000000000
              mig_uuid:
              used_bytes: 139349458944
              container:
                id: 4f1c2d0e5b8a79634f1c2d0e5b8a79634f1c2d0e5b8a79634f1c2d0e5b8a7963
                name: qwen-rank0
                image: lmsysorg/sglang:v0.5.17
        holders:
          description:
            - What holds the node's memory and its GPUs', largest first, without what holds less than 64 MiB. Page cache counts for nobody.
          type: list
          elements: dict
          returned: with O(holders)
          contains:
            kind:
              description: V(container), or V(process) outside of any container.
              type: str
            name:
              description: The container's or the process's name.
              type: str
            image:
              description: The container's image by name, or V(none).
              type: str
            pid:
              description: The process, or V(none) of a container.
              type: int
            bytes:
              description:
                - What it holds. Pages that several processes share are split among them, as root sees it; without root each counts them all.
                - Processes that are each below 64 MiB for that reason count for the one that they were forked from.
              type: int
            gpu_bytes:
              description: How much of that the driver counts as GPU memory.
              type: int
            user:
              description: The process's user, or V(none) of a container.
              type: str
            command:
              description: The process's command line without secrets, or V(none) of a container.
              type: str
            stop:
              description: The command that ends it on the node, or V(none) where there is none that does no other harm.
              type: str
              sample: docker stop old-model
        swap_holders:
          description: Whose memory is swapped out, largest first, without what is below 64 MiB, with C(kind), C(name), C(image), C(pid) and C(bytes).
          type: list
          elements: dict
          returned: with O(holders)
        gathered_at:
          description: Time of the measurement in UTC, in the format of ISO 8601. Free memory grows stale.
          type: str
          returned: always
          sample: "2026-11-29T22:44:20Z"
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.sparkstack.inference.plugins.module_utils._gpu_memory import GpuMemory


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "docker_socket": {"type": "path", "aliases": ["docker_host"], "default": "/var/run/docker.sock"},
            "timeout": {"type": "int", "default": 30},
            "holders": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    module.run_command_environ_update = {"LANG": "C", "LC_ALL": "C"}
    module.exit_json(ansible_facts={"gpu_memory": GpuMemory(module).facts()})


if __name__ == "__main__":
    main()
