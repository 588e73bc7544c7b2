#!/usr/bin/python
# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: inference_autostart
short_description: Have a deployment's ranks started again after a reboot, without the controller
version_added: 1.0.0
description:
  - Installs, for one deployment, a systemd unit on a node of it. The units of all its nodes start the same containers again, workers before the head,
    after a node was rebooted or its Docker was restarted while its rank ran. The launch stays the same one, and the next run of a playbook finds nothing to do.
  - A rank that crashed or was stopped by hand is never started by it. Starts are bounded, and the journal tells what is done and why.
  - The program is one file, made on the controller of this collection's own utils. It needs the node's C(/usr/bin/python3) and nothing else.
author: The sparkstack.inference developers (@sparkstack)
extends_documentation_fragment:
  - sparkstack.inference.attributes
  - sparkstack.inference.attributes.actiongroup_spark
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
    details:
      - The program is shown by its digest, the token by a hash.
  idempotent:
    support: full
  platform:
    description: The node runs Linux with systemd and Python 3.8 or later as C(/usr/bin/python3).
    support: full
    platforms: linux
options:
  deployment:
    description:
      - The deployment's name.
    type: str
    required: true
  state:
    description:
      - V(present) has the unit installed, enabled and running.
      - V(absent) stops and removes it, and with the last deployment's unit the program. Containers are left as they are.
    type: str
    choices: [present, absent]
    default: present
  rank:
    description:
      - This node's rank. Required when O(state=present).
    type: int
  nodes:
    description:
      - The nodes' names in rank order, as the journal is to call them. Required when O(state=present).
    type: list
    elements: str
  addresses:
    description:
      - The nodes' IPv4 addresses on the fabric, in rank order. The agents talk over these. Required when O(state=present).
    type: list
    elements: str
  container:
    description:
      - The name of this node's rank's container. Required when O(state=present).
    type: str
  engine:
    description:
      - The engine that runs in it. Required when O(state=present).
    type: str
    choices: [sglang, vllm]
  model:
    description:
      - The name under which the model is served. Required when O(state=present).
    type: str
  api:
    description:
      - The URL at which the head itself reaches its API, without a path. Required when O(state=present).
    type: str
  port:
    description:
      - The TCP port at the head on which its agent takes the others' reports, on its address on the fabric only.
      - Each deployment with the same head needs one of its own.
    type: int
    default: 25050
  ready_timeout:
    description:
      - Seconds from the head's start in which the launch must serve, else the start counts as failed.
    type: int
    default: 1800
  stop_timeout:
    description:
      - Seconds that a rank gets to end by itself before it is killed.
    type: int
    default: 10
  stall_timeouts:
    description:
      - As for M(sparkstack.inference.init_phase_wait).
    type: dict
    default: {}
  docker_socket:
    description:
      - Path of the Docker daemon's socket.
      - The form V(unix:///path) will do too.
    type: path
    aliases: [docker_host]
    default: /var/run/docker.sock
  token:
    description:
      - A random text, the same on all nodes of the deployment, with which the agents sign what they say. It stays in a file that only root can read.
      - By default the one that the node has is kept.
    type: str
  seen:
    description:
      - What M(sparkstack.inference.inference_info) has told as RV(sparkstack.inference.inference_info#module:autostart) on each node, in rank order.
      - With it, the controller sees where nothing is to be done and does not ask the node again. O(token) is then only used where the nodes' tokens differ.
    type: list
    elements: dict
    default: []
  program:
    description:
      - The program, compressed by zlib and then in base64. The controller fills this in.
    type: str
seealso:
  - module: sparkstack.inference.inference_launch
"""

EXAMPLES = r"""
---
- name: Make a token
  ansible.builtin.set_fact:
    token: "{{ lookup('ansible.builtin.password', '/dev/null', length=64, chars=['hexdigits']) }}"
  run_once: true
  no_log: true

- name: Have the ranks started again after a reboot
  sparkstack.inference.inference_autostart:
    deployment: qwen
    rank: "{{ groups['sparks'].index(inventory_hostname) }}"
    nodes: [spark1, spark2]
    addresses: [192.168.200.11, 192.168.200.12]
    container: "qwen-rank{{ groups['sparks'].index(inventory_hostname) }}"
    engine: vllm
    model: qwen
    api: http://127.0.0.1:8000
    token: "{{ token }}"
  become: true

- name: Leave them alone after a reboot
  sparkstack.inference.inference_autostart:
    deployment: qwen
    state: absent
  become: true
"""

RETURN = r"""
unit:
  description: The systemd unit's name.
  returned: success
  type: str
actions:
  description: What was done, or would be.
  returned: success
  type: list
  elements: str
"""

import os

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.sparkstack.inference.plugins.module_utils import _autostart_files as files
from ansible_collections.sparkstack.inference.plugins.module_utils import _unit, _unit_files
from ansible_collections.sparkstack.inference.plugins.module_utils._unit_files import HALF

SETTINGS = "deployment rank nodes addresses container engine model api port ready_timeout stop_timeout stall_timeouts docker_socket".split()


class Unit(_unit.Unit):
    """One deployment's unit on this node."""

    def __init__(self, module: AnsibleModule, root: str = "/") -> None:
        super().__init__(module, files.KIND, files.unit(module.params["deployment"]), root)
        self.before = files.installed(root).get(self.deployment, {})

    def hint(self, word: str) -> str:
        """The unit's last words, where it did not start."""
        path = self.module.get_bin_path("journalctl")
        if not path or "start" not in word:
            return ""
        _rc, stdout, _stderr = self.module.run_command([path, "--unit", self.name, "--lines", "5", "--output", "cat", "--no-pager"])
        return " Its journal: " + " ".join(stdout.split())

    def install(self) -> None:
        """Have it there, enabled and running."""
        self.need_python()
        params, below = self.module.params, files.settings(self.deployment)
        program = self.program()
        token = params["token"] or (_unit_files.read(self.path(below)) or {}).get("token")
        if not token:
            raise _unit.Refused("token is missing, and this node has none that could be kept: give all nodes the same random text.")
        settings = dict({key: params[key] for key in SETTINGS}, token=token)
        entry = _unit.Entry("settings", below, _unit_files.text(settings), files.plain(settings), 0o600)
        self.want(program, files.unit_text(), entry, enabled=True, runs=True)
        if not self.before.get("enabled"):
            self.actions.append("enable {0}".format(self.name))
        if self.changed or not self.before.get("runs"):
            self.actions.append("start {0}".format(self.name))
        if self.module.check_mode or not self.actions:
            return
        self.write()
        # Names of deployments are nobody's secret, but nobody else has business here.
        os.chmod(self.path(files.SETTINGS), 0o700)
        if self.is_new("unit"):
            self.systemctl("daemon-reload")
        self.systemctl("enable", "--quiet", self.name)
        others = [files.unit(name) for name in files.installed(self.root) if name != self.deployment]
        if self.is_new("program") and others:
            self.systemctl("try-restart", *others)
        self.systemctl("restart" if self.changed else "start", self.name)

    def remove(self) -> None:
        """Have it gone, and the program with the last one."""
        own = [files.settings(self.deployment), files.memory(self.deployment)]
        # Also what a writer that was killed has left, with the token in it.
        own += [below + HALF for below in own] + [files.held(self.deployment), files.link(self.deployment)]
        last = not [name for name in files.installed(self.root) if name != self.deployment]
        shared = [files.PROGRAM, files.PROGRAM + HALF, files.KIND.unit_file] if last else []
        folders = [files.SETTINGS, files.MEMORY, os.path.dirname(files.PROGRAM)]
        self.take_away(own, shared, ("stop and disable", ["disable", "--quiet", "--now"]), folders if last else None)


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "deployment": {"type": "str", "required": True},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "rank": {"type": "int"},
            "nodes": {"type": "list", "elements": "str"},
            "addresses": {"type": "list", "elements": "str"},
            "container": {"type": "str"},
            "engine": {"type": "str", "choices": ["sglang", "vllm"]},
            "model": {"type": "str"},
            "api": {"type": "str"},
            "port": {"type": "int", "default": 25050},
            "ready_timeout": {"type": "int", "default": 1800},
            "stop_timeout": {"type": "int", "default": 10},
            "stall_timeouts": {"type": "dict", "default": {}},
            "docker_socket": {"type": "path", "aliases": ["docker_host"], "default": "/var/run/docker.sock"},
            "token": {"type": "str", "no_log": True},
            "seen": {"type": "list", "elements": "dict", "default": [], "no_log": False},
            "program": {"type": "str", "no_log": False},
        },
        required_if=[("state", "present", ["rank", "nodes", "addresses", "container", "engine", "model", "api"])],
        supports_check_mode=True,
        # The program's 130 kB have no business in the node's syslog.
        no_log=True,
    )
    with _unit.failing(module):
        unit = Unit(module)
        if module.params["state"] == "present":
            unit.install()
        else:
            unit.remove()
    module.exit_json(changed=bool(unit.actions), unit=unit.name, actions=unit.actions, diff={"before": unit.before, "after": unit.after})


if __name__ == "__main__":
    main()
