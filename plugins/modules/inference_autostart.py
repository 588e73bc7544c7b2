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

import base64
import contextlib
import os
import typing as t
import zlib

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.sparkstack.inference.plugins.module_utils import _autostart_files as files

SETTINGS = "deployment rank nodes addresses container engine model api port ready_timeout stop_timeout stall_timeouts docker_socket".split()


class Refused(Exception):
    """The text is a sentence for the user."""


class Unit:
    """One deployment's unit on this node."""

    def __init__(self, module: AnsibleModule, root: str = "/") -> None:
        self.module, self.root = module, root
        self.deployment: str = module.params["deployment"]
        self.name = files.unit(self.deployment)
        self.actions: t.List[str] = []
        self.before: t.Dict[str, t.Any] = files.installed(root).get(self.deployment, {})
        self.after: t.Dict[str, t.Any] = {}

    def _path(self, below: str) -> str:
        return os.path.join(self.root, below)

    def _systemctl(self, *words: str) -> None:
        path = self.module.get_bin_path("systemctl")
        if not path:
            raise Refused("This node has no systemd, which autostart needs: set tp_launch_autostart to false.")
        rc, stdout, stderr = self.module.run_command([path, *words])
        if rc != 0:
            told = " ".join((stderr or stdout).split())
            raise Refused("systemctl {0} failed: {1}{2}".format(" ".join(words), told, self._journal() if "start" in words[0] else ""))

    def _journal(self) -> str:
        """The unit's last words."""
        path = self.module.get_bin_path("journalctl")
        if not path:
            return ""
        _rc, stdout, _stderr = self.module.run_command([path, "--unit", self.name, "--lines", "5", "--output", "cat", "--no-pager"])
        return " Its journal: " + " ".join(stdout.split())

    def install(self) -> None:
        """Have it there, enabled and running."""
        if not os.path.exists(self._path(files.PYTHON.lstrip("/"))):
            raise Refused(f"This node has no {files.PYTHON}, which autostart needs: install python3.")
        params = self.module.params
        if not params["program"]:
            raise Refused("The program is missing: run the module as a task, whose controller brings it.")
        program = zlib.decompress(base64.b64decode(params["program"]))
        path = self._path(files.settings(self.deployment))
        token = params["token"] or (files.read(path) or {}).get("token")
        if not token:
            raise Refused("token is missing, and this node has none that could be kept: give all nodes the same random text.")
        settings = dict({key: params[key] for key in SETTINGS}, token=token)
        wanted: t.List[t.Tuple[str, str, t.Union[str, bytes], t.Any, int]] = [
            ("program", files.PROGRAM, program, files.digest(program), 0o644),
            ("unit", files.UNITS + "/" + files.TEMPLATE, files.unit_text(), files.digest(files.unit_text().encode()), 0o644),
            ("settings", files.settings(self.deployment), files.text(settings), files.plain(settings), 0o600),
        ]
        self.after = dict({key: known for key, _path, _content, known, _mode in wanted}, enabled=True, runs=True)
        changed = [entry for entry in wanted if self.before.get(entry[0]) != entry[3]]
        self.actions += ["write /{0}".format(entry[1]) for entry in changed]
        if not self.before.get("enabled"):
            self.actions.append("enable {0}".format(self.name))
        if changed or not self.before.get("runs"):
            self.actions.append("start {0}".format(self.name))
        if self.module.check_mode or not self.actions:
            return
        for _key, below, content, _known, mode in changed:
            files.write(self._path(below), content, mode)
        # Names of deployments are nobody's secret, but nobody else has business here.
        os.chmod(self._path(files.SETTINGS), 0o700)
        keys = [entry[0] for entry in changed]
        if "unit" in keys or not self.before:
            self._systemctl("daemon-reload")
        self._systemctl("enable", "--quiet", self.name)
        others = [files.unit(name) for name in files.installed(self.root) if name != self.deployment]
        if "program" in keys and others:
            self._systemctl("try-restart", *others)
        self._systemctl("restart" if changed else "start", self.name)

    def remove(self) -> None:
        """Have it gone, and the program with the last one."""
        leftover = [files.settings(self.deployment), files.memory(self.deployment)]
        # Also what a writer that was killed has left, with the token in it.
        leftover += [below + files.HALF for below in leftover] + [files.held(self.deployment), files.link(self.deployment)]
        leftover = [below for below in leftover if os.path.lexists(self._path(below))]
        if leftover:
            self.actions += ["stop and disable {0}".format(self.name)]
        shared = [files.PROGRAM, files.PROGRAM + files.HALF, files.UNITS + "/" + files.TEMPLATE]
        last = not [name for name in files.installed(self.root) if name != self.deployment]
        leftover += [below for below in shared if last and os.path.lexists(self._path(below))]
        self.actions += ["remove /{0}".format(below) for below in leftover]
        if self.module.check_mode or not leftover:
            return
        if os.path.exists(self._path(files.UNITS + "/" + files.TEMPLATE)):
            self._systemctl("disable", "--quiet", "--now", self.name)
        for below in leftover:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path(below))
        if last:
            for folder in (files.SETTINGS, files.MEMORY, os.path.dirname(files.PROGRAM)):
                with contextlib.suppress(OSError):
                    os.rmdir(self._path(folder))
            self._systemctl("daemon-reload")


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
    try:
        unit = Unit(module)
        if module.params["state"] == "present":
            unit.install()
        else:
            unit.remove()
    except (Refused, ValueError) as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg="{0} can't be written: {1}. Run this as root (become).".format(error.filename, error.strerror))
    module.exit_json(changed=bool(unit.actions), unit=unit.name, actions=unit.actions, diff={"before": unit.before, "after": unit.after})


if __name__ == "__main__":
    main()
