#!/usr/bin/python
# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: memory_guard
short_description: Stop a rank that loads before its node is out of memory
version_added: 1.0.0
description:
  - Starts, on a node, a small program beside a rank's container. It reads ten times a second how much memory is available, and kills the container's processes
    when that falls below a floor, or falls so fast that it is about to.
  - Where CPU and GPU share their memory, as on a GB10, a load that takes too much leaves a node that only its power switch brings back.
  - What is available is what the kernel has left after it has given caches back, and what is left below the limit of each control group that the
    container's is in. The container's own limit is the kernel's to keep.
  - Before it kills, the program writes down why, with the curve. M(sparkstack.inference.init_phase_wait) tells it in its verdict, cause V(oom).
  - It ends by itself when the container has ended, and after O(until). All of it lies in C(/run), so that nothing is left after a reboot.
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
      - The program is shown by its digest.
  idempotent:
    support: full
  platform:
    description: The node runs Linux with systemd, Docker, and Python 3.8 or later as C(/usr/bin/python3).
    support: full
    platforms: linux
options:
  deployment:
    description:
      - The deployment's name. There is one guard for each on a node.
    type: str
    required: true
  state:
    description:
      - V(started) has the guard running beside the container that has the name O(container) now. Where none runs under that name, it is only checked that
        the node could have a guard with this floor, and RV(msg) says so.
      - V(stopped) ends it and takes it away. What it has told stays until the next one is started.
    type: str
    choices: [started, stopped]
    default: started
  container:
    description:
      - The name or the id of the rank's container. Required when O(state=started).
    type: str
  floor:
    description:
      - The memory that must stay available, as bytes, as a size such as V(3g), or as a share of the node's memory such as V(2%).
      - V(auto) stands for 2 GiB or 2 %, whichever is more, and on a node of less than 32 GiB for a sixteenth of its memory.
      - More than half of the node's memory is refused.
    type: str
    default: auto
  until:
    description:
      - Seconds after which it ends by itself.
    type: int
    default: 3600
  docker_socket:
    description:
      - Path of the Docker daemon's socket.
      - The form V(unix:///path) will do too.
    type: path
    aliases: [docker_host]
    default: /var/run/docker.sock
  program:
    description:
      - The program, compressed by zlib and then in base64. The controller fills this in.
    type: str
seealso:
  - module: sparkstack.inference.inference_launch
  - module: sparkstack.inference.init_phase_wait
"""

EXAMPLES = r"""
---
- name: Guard the node while the rank loads
  sparkstack.inference.memory_guard:
    deployment: qwen
    container: "qwen-rank{{ groups['sparks'].index(inventory_hostname) }}"
    until: 2400
  become: true

- name: Guard it with a floor of four gibibytes
  sparkstack.inference.memory_guard:
    deployment: qwen
    container: "qwen-rank{{ groups['sparks'].index(inventory_hostname) }}"
    floor: 4g
  become: true

- name: Take the guard away
  sparkstack.inference.memory_guard:
    deployment: qwen
    state: stopped
  become: true
"""

RETURN = r"""
unit:
  description: The systemd unit's name.
  returned: success
  type: str
guarded:
  description: The guard runs, or in check mode would.
  returned: success
  type: bool
floor_bytes:
  description: The floor in bytes.
  returned: when O(state=started)
  type: int
total_bytes:
  description: The memory that the floor is taken of, which is the node's or the least limit of a control group above the container.
  returned: when O(state=started)
  type: int
told:
  description: What this deployment's last guard told when it stopped its rank, or none where it did not.
  returned: success
  type: dict
actions:
  description: What was done, or would be.
  returned: success
  type: list
  elements: str
msg:
  description: Why nothing is guarded, or nothing.
  returned: success
  type: str
"""

import contextlib
import os
import typing as t

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.sparkstack.inference.plugins.module_utils import _guard, _guard_files, _unit, _unit_files
from ansible_collections.sparkstack.inference.plugins.module_utils._docker_api import DockerAPI
from ansible_collections.sparkstack.inference.plugins.module_utils._guard_files import KIND
from ansible_collections.sparkstack.inference.plugins.module_utils._guard_node import Rank
from ansible_collections.sparkstack.inference.plugins.module_utils._unit_files import Data


class Unit(_unit.Unit):
    """One deployment's guard on this node."""

    def __init__(self, module: AnsibleModule, root: str = "/") -> None:
        super().__init__(module, KIND, _guard_files.unit(module.params["deployment"]), root)
        self.settings = _guard_files.settings(self.deployment)
        self.found: Data = {"guarded": False, "msg": ""}
        self.before = self._installed()

    def _installed(self) -> Data:
        settings = _unit_files.read(self.path(self.settings))
        if settings is None:
            return {}
        program, unit = (_unit_files.digest_of(self.path(below)) for below in (KIND.program, KIND.unit_file))
        return {"settings": settings, "program": program, "unit": unit, "runs": self._runs()}

    def _runs(self) -> bool:
        path = self.module.get_bin_path("systemctl")
        return bool(path) and self.module.run_command([path, "is-active", "--quiet", self.name])[0] == 0

    def hint(self, word: str) -> str:
        """Where its last words are, and how to do without it."""
        return " See 'journalctl -u {0}', or set {1} to false.".format(self.name, KIND.variable)

    def start(self) -> None:
        """Have it running beside the container of now."""
        # systemctl may be there where another init runs; this folder is systemd's own word, see sd_booted(3).
        if not self.module.get_bin_path("systemctl") or not os.path.isdir(self.path(KIND.units)):
            raise self.no_systemd()
        self.need_python()
        settings = self._settings()
        if settings is None:
            return
        self.want(self.program(), _guard_files.unit_text(), _unit.Entry("settings", self.settings, _unit_files.text(settings), settings, 0o644), runs=True)
        self.found["guarded"] = True
        if self.before == self.after:
            return
        self.actions.append("start {0}".format(self.name))
        if self.module.check_mode:
            return
        # What an earlier guard has told is of an earlier load.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path(_guard_files.told(self.deployment)))
        self.write()
        if self.is_new("unit"):
            self.systemctl("daemon-reload")
        self.systemctl("restart", self.name)

    def _settings(self) -> t.Optional[Data]:
        """What the guard is to know; None where there is nothing to guard."""
        params = self.module.params
        inspection = DockerAPI(params["docker_socket"]).container(params["container"])
        state = (inspection or {}).get("State") or {}
        runs = inspection is not None and state.get("Running") and state.get("Pid")
        rank = Rank(inspection["Id"], state["Pid"], self.root) if inspection and runs else Rank("", 0, self.root)
        total = rank.memory().total
        floor = _guard.floor_bytes(params["floor"], total)
        self.found.update(floor_bytes=floor, total_bytes=total)
        if inspection is None or not runs or rank.gone():
            self.found["msg"] = "Nothing is guarded: no container {0} runs.".format(params["container"])
            return None
        return {
            "deployment": self.deployment,
            "container": inspection["Id"],
            "name": inspection["Name"].lstrip("/"),
            "pid": state["Pid"],
            "floor_bytes": floor,
            "until": params["until"],
            "docker_socket": params["docker_socket"],
        }

    def stop(self) -> None:
        """Have it gone, and the program with the last one."""
        last = not [name for name in self._others() if name != os.path.basename(self.settings)]
        own = [self.settings, *([KIND.program, KIND.unit_file] if last else [])]
        self.take_away(own, (), ("stop", ["stop"]), [_guard_files.FOLDER] if last else None)

    def _others(self) -> t.List[str]:
        """The names of all guards' settings."""
        try:
            names = os.listdir(self.path(_guard_files.FOLDER))
        except OSError:
            return []
        return [name for name in names if name.endswith(".json") and not name.endswith(".told.json")]

    def told(self) -> t.Optional[Data]:
        """What the last guard of the deployment has told."""
        return _unit_files.read(self.path(_guard_files.told(self.deployment)))


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "deployment": {"type": "str", "required": True},
            "state": {"type": "str", "choices": ["started", "stopped"], "default": "started"},
            "container": {"type": "str"},
            "floor": {"type": "str", "default": "auto"},
            "until": {"type": "int", "default": 3600},
            "docker_socket": {"type": "path", "aliases": ["docker_host"], "default": "/var/run/docker.sock"},
            "program": {"type": "str"},
        },
        required_if=[("state", "started", ["container"])],
        supports_check_mode=True,
        # The program's kilobytes have no business in the node's syslog.
        no_log=True,
    )
    with _unit.failing(module):
        unit = Unit(module)
        if module.params["state"] == "started":
            unit.start()
        else:
            unit.stop()
    diff = {"before": unit.before, "after": unit.after}
    module.exit_json(changed=bool(unit.actions), unit=unit.name, actions=unit.actions, told=unit.told(), diff=diff, **unit.found)


if __name__ == "__main__":
    main()
