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

import base64
import contextlib
import os
import typing as t
import zlib

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.sparkstack.inference.plugins.module_utils import _autostart_files, _guard, _guard_files
from ansible_collections.sparkstack.inference.plugins.module_utils._docker_api import DockerAPI, DockerError
from ansible_collections.sparkstack.inference.plugins.module_utils._guard_node import Rank

Data = t.Dict[str, t.Any]


class Refused(Exception):
    """The text is a sentence for the user."""


class Unit:
    """One deployment's guard on this node."""

    def __init__(self, module: AnsibleModule, root: str = "/") -> None:
        self.module, self.root = module, root
        self.deployment: str = module.params["deployment"]
        self.name = _guard_files.unit(self.deployment)
        self.actions: t.List[str] = []
        self.found: Data = {"guarded": False, "msg": ""}
        self.before: Data = self._installed()
        self.after: Data = {}

    def _path(self, below: str) -> str:
        return os.path.join(self.root, below)

    def _installed(self) -> Data:
        settings = _autostart_files.read(self._path(_guard_files.settings(self.deployment)))
        if settings is None:
            return {}
        unit_text = _digest(self._path(_guard_files.UNITS + "/" + _guard_files.TEMPLATE))
        return {"settings": settings, "program": _digest(self._path(_guard_files.PROGRAM)), "unit": unit_text, "runs": self._runs()}

    def _runs(self) -> bool:
        path = self.module.get_bin_path("systemctl")
        return bool(path) and self.module.run_command([path, "is-active", "--quiet", self.name])[0] == 0

    def _systemctl(self, *words: str) -> None:
        rc, stdout, stderr = self.module.run_command([self.module.get_bin_path("systemctl"), *words])
        if rc != 0:
            told = " ".join((stderr or stdout).split())
            raise Refused("systemctl {0} failed: {1} See 'journalctl -u {2}', or set tp_launch_memory_guard to false.".format(" ".join(words), told, self.name))

    def start(self) -> None:
        """Have it running beside the container of now."""
        params = self.module.params
        # systemctl may be there where another init runs; this folder is systemd's own word, see sd_booted(3).
        if not self.module.get_bin_path("systemctl") or not os.path.isdir(self._path(_guard_files.UNITS)):
            raise Refused("This node has no systemd, which the memory guard needs: set tp_launch_memory_guard to false.")
        if not os.path.exists(self._path(_guard_files.PYTHON.lstrip("/"))):
            raise Refused(f"This node has no {_guard_files.PYTHON}, which the memory guard needs: install python3.")
        settings = self._settings()
        if settings is None:
            return
        if not params["program"]:
            raise Refused("The program is missing: run the module as a task, whose controller brings it.")
        program = zlib.decompress(base64.b64decode(params["program"]))
        text = _guard_files.unit_text()
        wanted: t.List[t.Tuple[str, str, t.Union[str, bytes], t.Any, int]] = [
            ("program", _guard_files.PROGRAM, program, _autostart_files.digest(program), 0o644),
            ("unit", _guard_files.UNITS + "/" + _guard_files.TEMPLATE, text, _autostart_files.digest(text.encode()), 0o644),
            ("settings", _guard_files.settings(self.deployment), _autostart_files.text(settings), settings, 0o644),
        ]
        self.after = dict({key: known for key, _path, _content, known, _mode in wanted}, runs=True)
        self.found["guarded"] = True
        if self.before == self.after:
            return
        changed = [entry for entry in wanted if self.before.get(entry[0]) != entry[3]]
        self.actions = ["write /{0}".format(entry[1]) for entry in changed] + ["start {0}".format(self.name)]
        if self.module.check_mode:
            return
        # What an earlier guard has told is of an earlier load.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path(_guard_files.told(self.deployment)))
        for _key, below, content, _known, mode in changed:
            _autostart_files.write(self._path(below), content, mode)
        if "unit" in [entry[0] for entry in changed]:
            self._systemctl("daemon-reload")
        self._systemctl("restart", self.name)

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
        unit = _guard_files.UNITS + "/" + _guard_files.TEMPLATE
        mine = _guard_files.settings(self.deployment)
        leftover = [below for below in [mine] if os.path.lexists(self._path(below))]
        last = not [name for name in self._others() if name != os.path.basename(mine)]
        leftover += [below for below in (_guard_files.PROGRAM, unit) if last and os.path.lexists(self._path(below))]
        if not leftover:
            return
        self.actions = ["stop {0}".format(self.name)] + ["remove /{0}".format(below) for below in leftover]
        if self.module.check_mode:
            return
        if os.path.exists(self._path(unit)):
            self._systemctl("stop", self.name)
        for below in leftover:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path(below))
        if last:
            with contextlib.suppress(OSError):
                os.rmdir(self._path(_guard_files.FOLDER))
            self._systemctl("daemon-reload")

    def _others(self) -> t.List[str]:
        """The names of all guards' settings."""
        try:
            names = os.listdir(self._path(_guard_files.FOLDER))
        except OSError:
            return []
        return [name for name in names if name.endswith(".json") and not name.endswith(".told.json")]

    def told(self) -> t.Optional[Data]:
        """What the last guard of the deployment has told."""
        return _autostart_files.read(self._path(_guard_files.told(self.deployment)))


def _digest(path: str) -> t.Optional[str]:
    try:
        with open(path, "rb") as stream:
            return _autostart_files.digest(stream.read())
    except OSError:
        return None


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
    try:
        unit = Unit(module)
        if module.params["state"] == "started":
            unit.start()
        else:
            unit.stop()
    except (Refused, DockerError, ValueError) as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg="{0} can't be written: {1}. Run this as root (become).".format(error.filename, error.strerror))
    diff = {"before": unit.before, "after": unit.after}
    module.exit_json(changed=bool(unit.actions), unit=unit.name, actions=unit.actions, told=unit.told(), diff=diff, **unit.found)


if __name__ == "__main__":
    main()
