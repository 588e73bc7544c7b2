#!/usr/bin/python
# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: support_bundle_part
short_description: Read one node's part of a support bundle
version_added: 1.0.0
description:
  - Reads a container's log and inspection, what its deployment's M(sparkstack.inference.memory_guard) told, and what the system says of itself, and
    returns them packed. M(sparkstack.inference.support_bundle) calls it on every node and writes the bundle on the controller. By itself it is of little use.
  - The values of secrets that the container was given are replaced in all files. They are returned as well, for other nodes' files may hold them. Call it
    with C(no_log).
  - It only reads, and leaves nothing on the node.
author: The sparkstack.inference developers (@sparkstack)
extends_documentation_fragment:
  - sparkstack.inference.attributes
  - sparkstack.inference.attributes.actiongroup_spark
  - sparkstack.inference.attributes.info_module
attributes:
  platform:
    description: The node runs Linux.
    support: full
    platforms: linux
options:
  container:
    description:
      - The name or the id of the container.
      - Without it, only what the system says is read.
    type: str
  docker_socket:
    description:
      - Path of the Docker daemon's socket.
      - The form V(unix:///path) will do too.
    type: path
    aliases: [docker_host]
    default: /var/run/docker.sock
seealso:
  - module: sparkstack.inference.support_bundle
"""

EXAMPLES = r"""
---
- name: Read a node's part
  sparkstack.inference.support_bundle_part:
    container: qwen-rank0
  become: true
  no_log: true
  register: part
"""

RETURN = r"""
files:
  description: The files by name, each compressed by gzip and then in base64. Of a long log they hold the first 4 MiB and the last 16 MiB.
  type: dict
  returned: success
secrets:
  description: The values that were replaced.
  type: list
  elements: str
  returned: success
"""

import base64
import gzip
import typing as t

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.sparkstack.inference.plugins.module_utils._docker_api import DockerAPI
from ansible_collections.sparkstack.inference.plugins.module_utils._support_part import collect

_PATIENCE = 20
"""Seconds for one command, where the node has coreutils' timeout: nvidia-smi hangs when the driver does, df when a file server does."""


def runner(module: AnsibleModule) -> t.Callable[[t.List[str]], str]:
    """What runs a command and returns its output; of one that is not there, nothing, and of one that fails, what it said."""
    guard = module.get_bin_path("timeout")
    within = [guard, "--kill-after=2", str(_PATIENCE)] if guard else []

    def run(command: t.List[str]) -> str:
        path = module.get_bin_path(command[0], opt_dirs=["/sbin", "/usr/sbin"])
        if not path:
            return ""
        rc, stdout, stderr = module.run_command(within + [path] + command[1:], errors="surrogate_then_replace")
        if rc == 124 and guard:
            return "{0}: It did not answer within {1} seconds.\n".format(" ".join(command), _PATIENCE)
        return str(stdout) if rc == 0 else "{0}: {1}\n".format(" ".join(command), (stderr or stdout).strip())

    return run


def main() -> None:
    module = AnsibleModule(
        argument_spec={"container": {"type": "str"}, "docker_socket": {"type": "path", "aliases": ["docker_host"], "default": "/var/run/docker.sock"}},
        supports_check_mode=True,
    )
    module.run_command_environ_update = {"LANG": "C", "LC_ALL": "C"}
    files, secrets = collect(DockerAPI(module.params["docker_socket"]), module.params["container"] or "", runner(module))
    packed = {name: base64.b64encode(gzip.compress(data, 6)).decode() for name, data in files.items()}
    module.exit_json(changed=False, files=packed, secrets=secrets)


if __name__ == "__main__":
    main()
