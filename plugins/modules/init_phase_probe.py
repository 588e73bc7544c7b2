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
  - Reads the state of a container, the new part of its log, and what its processes have used, and returns at once.
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
    type: str
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
seealso:
  - module: sparkstack.inference.init_phase_wait
"""

EXAMPLES = r"""
---
- name: Look at a rank
  sparkstack.inference.init_phase_probe:
    container: qwen-rank0
  register: rank
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
    - The keys are C(engine), C(phase), C(phases), C(progress), C(candidates), C(claims), C(elsewhere), C(stopping), C(earlier), C(last_line),
      C(first_time), C(last_time) and C(useful).
  type: dict
  returned: success
activity:
  description: What its processes have used, as C(cpu_seconds), C(memory_bytes) and C(read_bytes); none each where the kernel doesn't tell.
  type: dict
  returned: when it exists
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

import fcntl
import socket
import struct
import typing as t

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.urls import open_url

from ansible_collections.sparkstack.inference.plugins.module_utils._docker_api import DockerAPI, DockerError
from ansible_collections.sparkstack.inference.plugins.module_utils._engines import ENGINES
from ansible_collections.sparkstack.inference.plugins.module_utils._probe import look

_SIOCGIFADDR = 0x8915


def healthy(url: str) -> bool:
    """A GET answers with 200 within seconds, without a proxy between."""
    try:
        return bool(open_url(url, timeout=5, use_proxy=False).getcode() == 200)
    except Exception:  # Whatever comes instead of an answer, it is none.
        return False


def addresses() -> t.List[str]:
    """The IPv4 address of each interface but the loopback (netdevice(7), SIOCGIFADDR)."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _index, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue
            address = socket.inet_ntoa(answer[20:24])
            if not address.startswith("127."):
                found.append(address)
    return found


def main() -> None:
    # The state holds lines of the log, which have no business in the node's syslog.
    module = AnsibleModule(
        argument_spec={
            "container": {"type": "str", "required": True},
            "docker_host": {"type": "str", "default": "unix:///var/run/docker.sock"},
            "engine": {"type": "str", "choices": ["auto", *sorted(ENGINES)], "default": "auto"},
            "state": {"type": "dict", "default": {}},
            "health_url": {"type": "str"},
        },
        supports_check_mode=True,
        no_log=True,
    )
    try:
        found = look(DockerAPI(module.params["docker_host"]), module.params["container"], module.params["engine"], module.params["state"])
    except DockerError as error:
        module.fail_json(msg=str(error))
    url = module.params["health_url"]
    asked = url and found["running"] and found["reading"] and found["reading"]["phase"] == "ready"
    module.exit_json(changed=False, healthy=healthy(url) if asked else None, addresses=addresses(), **found)


if __name__ == "__main__":
    main()
