#!/usr/bin/python
# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: init_phase_closeup
short_description: Look once, closely, at a rank that is stuck or has ended
version_added: 1.0.0
description:
  - Tells what a rank's processes do and where their Python code stands, what the GPUs do, who holds the node's memory, and what the
    kernel, the rendezvous port and the fabric say. It takes seconds, where M(sparkstack.inference.init_phase_probe) takes a moment.
  - M(sparkstack.inference.init_phase_wait) calls it once on every node when a start is stuck or has failed.
  - A part that cannot be had never fails the task. It is empty, and a sentence beside it tells why.
  - Nothing on the node is changed, no process is stopped or paused, and no connection is made to a port of an engine.
  - Stacks are taken by C(py-spy dump --nonblocking) in the container, by Docker's exec with all capabilities, as the container has too few to
    read the memory of a process. Without C(--nonblocking), C(py-spy) would stop each process for some milliseconds, which breaks off system calls
    of an engine that may be healthy. A stack that changes while it is read is tried again, three times in all.
  - Where the image has no C(py-spy), one on the node is used. Where the container has less than 128 MiB left below its memory limit,
    nothing is started in it.
  - Arguments of processes are never returned, and API keys and tokens are replaced by asterisks.
author: The sparkstack.inference developers (@sparkstack)
extends_documentation_fragment:
  - sparkstack.inference.attributes
  - sparkstack.inference.attributes.actiongroup_spark
  - sparkstack.inference.attributes.info_module
attributes:
  platform:
    description: The node runs Linux with Docker Engine 20.10 or later. Root's rights are needed to see into processes.
    support: full
    platforms: linux
options:
  container:
    description:
      - The name or the id of the container.
    type: str
    required: true
  docker_host:
    description:
      - The unix socket of the node's Docker daemon.
      - Its path alone will do too.
    type: str
    aliases: [docker_socket]
    default: unix:///var/run/docker.sock
  peers:
    description:
      - The IPv4 addresses of the other ranks' nodes on the fabric, to which the way is tried by ICMP echo.
    type: list
    elements: str
    default: []
  rendezvous:
    description:
      - Where the ranks meet, as C(host:port), or nothing where that is not known.
    type: str
    default: ""
  since:
    description:
      - Messages of the kernel are returned from this time on, in seconds since the epoch by the node's clock.
      - Without it, or with 0, from the container's last start on, or of the last hour where it was never started.
    type: float
  timeout:
    description:
      - Seconds for all of it. What is not done by then is left out.
    type: int
    default: 15
requirements:
  - C(py-spy) in the container's image, or on the node, for the stacks.
seealso:
  - module: sparkstack.inference.init_phase_wait
  - module: sparkstack.inference.init_phase_probe
"""

EXAMPLES = r"""
---
- name: Look closely at a rank that does not come up
  sparkstack.inference.init_phase_closeup:
    container: qwen-rank1
    rendezvous: 192.168.200.11:29501
    peers:
      - 192.168.200.11
  become: true
  register: rank

- name: Show where its processes stand
  ansible.builtin.debug:
    msg: "{{ rank.closeup.stacks | map(attribute='text') | join('\n') or rank.closeup.stacks_problem }}"
"""

RETURN = r"""
closeup:
  description: What was seen.
  type: dict
  returned: success
  contains:
    exists:
      description: There is such a container.
      type: bool
      returned: success
    running:
      description: It runs, and is not between two restarts.
      type: bool
      returned: success
    paused:
      description: It is paused.
      type: bool
      returned: success
    now:
      description: The node's clock, in seconds since the epoch.
      type: float
      returned: success
    processes:
      description:
        - The container's processes, busiest first, at most 64. None of a container that has ended.
        - C(pid) as the node counts, C(container_pid) as the container does, C(name), C(state) as the kernel's letter (V(R) runs, V(S) sleeps, V(D)
          waits for a device, V(T) is stopped), C(cpu_percent) over about
          a second (100 is one CPU), C(threads), and C(waits_in), the kernel's function or the system call that its first thread waits in.
        - C(name) is the title that the process has given itself, or its program with the module or script that Python runs.
      type: list
      elements: dict
      returned: success
      sample:
        - pid: 25763
          container_pid: 102
          name: VLLM::Worker_TP1
          state: S
          cpu_percent: 0.0
          threads: 61
          waits_in: poll_schedule_timeout
    processes_problem:
      description:
        - Why processes are missing, or null.
      type: str
      returned: success
    stacks:
      description: The Python stacks of all threads of at most 8 processes, as C(pid), C(name) and C(text); those first that an engine gave a title.
      type: list
      elements: dict
      returned: success
    stacks_problem:
      description:
        - Why stacks are missing, and what would help, or null.
      type: str
      returned: success
    gpus:
      description:
        - The GPUs, as C(index), C(name), C(utilization_percent), C(power_watts), C(power_limit_watts), C(total_bytes) and C(used_bytes).
          What the driver does not tell is null, as the memory of a GB10.
      type: list
      elements: dict
      returned: success
    gpus_problem:
      description:
        - What C(nvidia-smi) said in place of an answer, or null. That it did not answer at all is a sign of a driver that hangs.
      type: str
      returned: success
    memory:
      description:
        - The machine's memory as C(total_bytes) and C(available_bytes), and that of the container's control group as C(container_bytes)
          (without the page cache that its processes filled) and C(container_limit_bytes) (null without a limit).
      type: dict
      returned: success
    memory_problem:
      description:
        - Why the memory is missing, or null.
      type: str
      returned: success
    holders:
      description:
        - Who holds 64 MiB of memory or more, largest first, at most 12. C(kind) is V(container), V(process) (outside of containers) or V(page_cache).
        - C(bytes) is what no dropping of caches would give back, with what the process or the container holds on GPUs; C(gpu_bytes) is that
          part of it. On a GB10 both are the machine's memory.
        - C(name), C(image) and C(pid) are null where they do not apply. C(own) marks the container that was asked for.
      type: list
      elements: dict
      returned: success
      sample:
        - kind: container
          name: old-model
          image: vllm/vllm-openai:v0.11.0
          pid:
          bytes: 64424509440
          gpu_bytes: 60129542144
          own: false
    holders_problem:
      description:
        - Why holders are missing, or null.
      type: str
      returned: success
    kernel:
      description:
        - What the kernel has said since O(since) that matters, whomever it is about, at most the newest 40 messages. Of links only the fabric's.
        - C(time) in seconds since the epoch, C(text), C(cause) (V(oom) or nothing), C(kind) (V(oom), V(gpu), V(gpu_memory), V(link) or V(segfault)),
          C(process), C(pid), C(container) (the id), C(limit) (whose memory was full, V(container), V(node) or nothing) and C(interface).
      type: list
      elements: dict
      returned: success
    kernel_problem:
      description:
        - Why messages of the kernel are missing, or null.
      type: str
      returned: success
    listeners:
      description:
        - Who listens on the ports that the rank wants on this node, by its command's options, its published ports and O(rendezvous), as C(port),
          C(pid), C(process), C(container) (the id), C(container_name) and C(own). A port that nobody listens on is not listed.
      type: list
      elements: dict
      returned: success
    listeners_problem:
      description:
        - Why listeners are missing, or null.
      type: str
      returned: success
    containers_problem:
      description:
        - Why containers are told by their ids only, or null.
      type: str
      returned: success
    oom_kills:
      description:
        - How many processes of the container the kernel has killed for lack of memory, or null where it does not tell.
      type: int
      returned: success
    booted:
      description:
        - When the node was started, in seconds since the epoch by its clock.
      type: float
      returned: success
    docker_started:
      description:
        - When its Docker daemon was started, in seconds since the epoch by the node's clock.
      type: float
      returned: success
    fabric:
      description:
        - The node's interface on the subnet of the rendezvous, as C(interface), C(address), C(prefix), C(mtu), C(carrier) and C(speed_mbps), or null.
      type: dict
      returned: success
    sockets:
      description:
        - Who has to do with the rendezvous port in the container's network, as C(port), C(listening), C(owner) (C(pid), C(process), C(container),
          C(own)), and the addresses C(connected) and C(dialing). Null where O(rendezvous) is not given, and where the container's processes
          are hidden from this user.
      type: dict
      returned: success
    reach:
      description:
        - How long each of O(peers) took to answer, by address, as C(small) and C(large) (of the fabric's MTU, not to be taken apart), in seconds;
          null where none came, and as C(neighbour) whether the kernel has that node's hardware address, null where it was not asked for.
          Empty where O(peers) is, and where the module may send no echoes.
      type: dict
      returned: success
    node_problem:
      description:
        - Why something from C(oom_kills) to C(reach) is missing, or null.
      type: str
      returned: success
    seconds:
      description: How long the look took.
      type: float
      returned: success
"""

import signal
import typing as t

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.sparkstack.inference.plugins.module_utils._closeup import Look
from ansible_collections.sparkstack.inference.plugins.module_utils._docker_api import DockerAPI, DockerError
from ansible_collections.sparkstack.inference.plugins.module_utils._reach import check
from ansible_collections.sparkstack.inference.plugins.module_utils._smi import Module

_GRACE = 15
"""Seconds beyond the time that the look may take, after which the module is ended."""


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "container": {"type": "str", "required": True},
            "docker_host": {"type": "str", "aliases": ["docker_socket"], "default": "unix:///var/run/docker.sock"},
            "peers": {"type": "list", "elements": "str", "default": []},
            "rendezvous": {"type": "str", "default": ""},
            "since": {"type": "float"},
            "timeout": {"type": "int", "default": 15},
        },
        supports_check_mode=True,
    )
    module.run_command_environ_update = {"LANG": "C", "LC_ALL": "C"}
    timeout = module.params["timeout"]
    if timeout < 1:
        module.fail_json(msg=f"timeout is {timeout}: give the seconds that the look may take, 1 or more.")
    # A file of /proc can keep its reader waiting for good, where a driver holds the process's memory map: only a signal that
    # ends the reader gets it out of there, no handler would.
    signal.alarm(timeout + _GRACE)
    try:
        check(module.params["peers"])
        look = Look(DockerAPI(module.params["docker_host"], timeout), t.cast(Module, module), module.params["container"], timeout)
    except (DockerError, ValueError) as error:
        module.fail_json(msg=str(error))
    closeup = look.take(module.params["peers"], module.params["rendezvous"], module.params["since"])
    signal.alarm(0)
    module.exit_json(changed=False, closeup=closeup)


if __name__ == "__main__":
    main()
