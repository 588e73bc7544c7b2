#!/usr/bin/python
# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: init_phase_probe
short_description: Look once at the container of a rank, and at what its log has grown by
version_added: 1.0.0
description:
  - Reads the state of a container, the new part of its log, what its processes have used, and what the node knows about it beside that,
    and returns at once.
  - M(sparkstack.inference.init_phase_wait) calls it again and again. By itself it serves to look at one rank without judging it.
  - Only what the log has grown by since RV(state) was returned is read and looked through.
  - API keys and tokens in log lines are replaced by asterisks.
author: The sparkstack.inference developers (@sparkstack)
extends_documentation_fragment:
  - sparkstack.inference.attributes
  - sparkstack.inference.attributes.actiongroup_spark
  - sparkstack.inference.attributes.info_module
attributes:
  platform:
    description: The node runs Linux with Docker Engine 20.10 or later, and a log driver that C(docker logs) can read.
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
  engine:
    description:
      - The engine that runs in it. With V(auto), its log tells.
    type: str
    choices: [auto, sglang, vllm]
    default: auto
  state:
    description:
      - The RV(state) that the last look at this container returned.
    type: dict
    default: {}
  health_url:
    description:
      - The URL to ask once the log says that the rank is ready, from this node.
    type: str
  peers:
    description:
      - The IPv4 addresses of the other nodes on the fabric.
      - With any given, they are sent ICMP echoes, all at once, and RV(scene.reach) says which have answered within 0.8 seconds.
    type: list
    elements: str
    default: []
seealso:
  - module: sparkstack.inference.init_phase_wait
"""

EXAMPLES = r"""
---
- name: Look at a rank
  sparkstack.inference.init_phase_probe:
    container: qwen-rank0
  register: rank

- name: Look at a rank, and whether the other node answers over the fabric
  sparkstack.inference.init_phase_probe:
    container: qwen-rank0
    peers:
      - 192.168.200.12
"""

RETURN = r"""
exists:
  description: There is such a container.
  type: bool
  returned: success
started:
  description: It has been started, or Docker failed to start it.
  type: bool
  returned: success
running:
  description: It runs, and is not between two restarts.
  type: bool
  returned: success
paused:
  description: It is paused.
  type: bool
  returned: when it exists
exit_code:
  description: Its exit code, or none while it runs.
  type: int
  returned: when it exists
oom_killed:
  description: Docker has seen the kernel kill a process of it for lack of memory.
  type: bool
  returned: when it exists
error:
  description: Why Docker could not start it, or nothing.
  type: str
  returned: when it exists
restarts:
  description: How often Docker has restarted it.
  type: int
  returned: when it exists
started_at:
  description: When it was last started, in seconds since the epoch by the node's clock.
  type: float
  returned: when it exists
finished_at:
  description: When it ended, in seconds since the epoch by the node's clock, or none while it runs.
  type: float
  returned: when it exists
now:
  description: The node's clock, in seconds since the epoch.
  type: float
  returned: success
reading:
  description:
    - What its log tells since that start, or none without a container.
    - The keys are C(engine), C(phase), C(phases), C(progress), C(candidates), C(claims), C(elsewhere), C(stopping), C(earlier), C(nccl),
      C(last_line), C(first_time), C(last_time) and C(useful).
  type: dict
  returned: success
activity:
  description: What its processes have used, as C(cpu_seconds), C(memory_bytes) and C(read_bytes); none each where the kernel doesn't tell.
  type: dict
  returned: when it exists
memory:
  description:
    - The node's memory in bytes, as its M(sparkstack.inference.memory_guard) would see it. C(available), C(total), C(swap_total) and C(swap_used), and
      C(limit), the control group whose limit was the nearest, or nothing where it was the machine's memory.
  type: dict
  returned: when it exists
scene:
  description: What the node knows beside the log.
  type: dict
  returned: success
  contains:
    oom_kills:
      description: How many of its processes the kernel has killed for lack of memory since it was started, or none where nobody tells.
      type: int
    kernel:
      description:
        - The kernel's messages about processes of this container since it was started, at most twenty.
        - They are read when RV(scene.oom_kills) has grown, and when the container has ended.
      type: list
      elements: dict
      contains:
        time:
          description: When, in seconds since the epoch by the node's clock.
          type: float
        text:
          description: The message.
          type: str
        cause:
          description: The cause that it tells, such as V(oom), or nothing.
          type: str
        kind:
          description: What it is about.
          type: str
        process:
          description: The name of the process, which the kernel cuts after 15 characters.
          type: str
        pid:
          description: The id of the process, as the kernel knows it.
          type: int
        container:
          description: The id of the container.
          type: str
        limit:
          description: Whose memory was full, V(container) for the container's own limit or V(node), or nothing.
          type: str
        interface:
          description: The network interface that it is about, or none.
          type: str
    guard:
      description:
        - What this node's M(sparkstack.inference.memory_guard) told when it stopped the container since it was started, or none where it did not.
      type: dict
      contains:
        container:
          description: The id of the container.
          type: str
        at:
          description: When, in seconds since the epoch by the node's clock.
          type: float
        why:
          description: Less than the floor was left (V(floor)), or it fell so fast that it was about to (V(fall)).
          type: str
        available:
          description: The bytes that were available.
          type: int
        total:
          description: The bytes that the node, or the group that has the limit, has.
          type: int
        limit:
          description: The control group whose limit was the nearest, or nothing where it was the machine's memory.
          type: str
        floor:
          description: The floor in bytes.
          type: int
        rate:
          description: Bytes a second by which it fell over the last second.
          type: int
        swap_total:
          description: The bytes of swap.
          type: int
        swap_used:
          description: The bytes of swap in use.
          type: int
        swap_before:
          description: The bytes of swap that were in use when the guard was started.
          type: int
        curve:
          description: What was available when, as pairs of seconds since the epoch and bytes; the last two seconds as read, what was before in points.
          type: list
          elements: list
        gone_s:
          description: Seconds until the last process of the container was gone, or none while one is left.
          type: float
    booted:
      description: When the node was started, in seconds since the epoch by its clock now.
      type: float
    docker_started:
      description: When its Docker daemon was started, or none where it has no C(docker.pid) in C(/run).
      type: float
    fabric:
      description:
        - The interface on the subnet of the rendezvous address that the log tells, else of what the container's environment has as
          C(VLLM_HOST_IP), C(SGLANG_HOST_IP) or C(HOST_IP), else of the first of O(peers) that fits; none where there is no such interface.
      type: dict
      contains:
        interface:
          description: Its name.
          type: str
        address:
          description: The node's IPv4 address on it.
          type: str
        prefix:
          description: The length of the subnet's prefix in bits.
          type: int
        mtu:
          description: Its MTU in bytes.
          type: int
        carrier:
          description: It is up, and its cable has a signal.
          type: bool
        speed_mbps:
          description: Its speed in Mbit/s, or none where the kernel doesn't tell.
          type: int
    sockets:
      description:
        - Who has to do with the rendezvous port, in the container's own network namespace; none before the log tells the port, and where
          the container's processes are hidden from this user.
        - Of a container that has ended, only with the node's network can this be seen.
      type: dict
      contains:
        port:
          description: The rendezvous port.
          type: int
        listening:
          description: Somebody listens on it.
          type: bool
        owner:
          description:
            - The process that listens, as C(pid), C(process) (its name), C(container) (the id of its container, or none) and C(own)
              (that is this container); none where it can't be seen.
          type: dict
        connected:
          description: The addresses of the peers that have a connection to the port, or that the container has one to at the port.
          type: list
          elements: str
        dialing:
          description: The addresses at which a connection to the port is being tried, without an answer yet.
          type: list
          elements: str
    reach:
      description:
        - By address of O(peers), the seconds until an ICMP echo of 84 bytes (C(small)) and one as large as the interface's MTU, not to be
          taken apart (C(large)) were answered from RV(scene.fabric.address); none each where no answer came. C(neighbour) says whether the kernel has that
          node's hardware address; none where it was not asked for.
        - It is empty without O(peers), and where the module may not send echoes.
      type: dict
healthy:
  description: O(health_url) has answered with status 200, or none where it was not asked.
  type: bool
  returned: success
addresses:
  description: The node's IPv4 addresses.
  type: list
  elements: str
  returned: success
state:
  description: What the next look needs to go on from here.
  type: dict
  returned: success
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.urls import open_url

from ansible_collections.sparkstack.inference.plugins.module_utils._docker_api import DockerAPI, DockerError
from ansible_collections.sparkstack.inference.plugins.module_utils._engines import ENGINES
from ansible_collections.sparkstack.inference.plugins.module_utils._probe import look
from ansible_collections.sparkstack.inference.plugins.module_utils._reach import addresses, check


def healthy(url: str) -> bool:
    """A GET answers with 200 within seconds, without a proxy between."""
    try:
        return bool(open_url(url, timeout=5, use_proxy=False).getcode() == 200)
    except Exception:  # Whatever comes instead of an answer, it is none.
        return False


def main() -> None:
    # The state holds lines of the log, which have no business in the node's syslog.
    module = AnsibleModule(
        argument_spec={
            "container": {"type": "str", "required": True},
            "docker_host": {"type": "str", "aliases": ["docker_socket"], "default": "unix:///var/run/docker.sock"},
            "engine": {"type": "str", "choices": ["auto", *sorted(ENGINES)], "default": "auto"},
            "state": {"type": "dict", "default": {}},
            "health_url": {"type": "str"},
            "peers": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
        no_log=True,
    )
    params = module.params
    try:
        check(params["peers"])
        found = look(DockerAPI(params["docker_host"]), params["container"], params["engine"], params["state"], params["peers"])
    except (DockerError, ValueError) as error:
        module.fail_json(msg=str(error))
    url = params["health_url"]
    asked = url and found["running"] and found["reading"] and found["reading"]["phase"] == "ready"
    module.exit_json(changed=False, healthy=healthy(url) if asked else None, addresses=[own.address for own in addresses()], **found)


if __name__ == "__main__":
    main()
