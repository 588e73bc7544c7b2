#!/usr/bin/python
# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: preflight_facts
short_description: Gathers what a node must have in common with the others before ranks are started on them
version_added: 1.0.0
description:
  - Reads kernel, drivers, firmware, Docker, an image, disks, names, ports, firewall and clock of a node. It writes nothing.
  - What is wrong with them shows when the nodes are compared, which is what M(sparkstack.inference.preflight_report) does.
  - The node's memory and its place on the fabric are facts of M(sparkstack.inference.gpu_memory_facts) and
    M(sparkstack.inference.fabric_facts).
  - Take it with C(become=true). Without root's rights Docker, the firewall and the owners of ports stay unknown.
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
  image:
    description: The image, by name and tag, that the ranks are to be started from.
    type: str
  model_path:
    description: The model's folder on the node, to see what its disk has free.
    type: path
  ports:
    description: TCP ports of which it is to be told who listens on them.
    type: list
    elements: int
    default: []
  names:
    description: Names that are looked for in the node's C(/etc/hosts), besides its own.
    type: list
    elements: str
    default: []
  docker_socket:
    description:
      - Path of the Docker daemon's socket.
      - The form V(unix:///path) will do too.
    type: path
    aliases: [docker_host]
    default: /var/run/docker.sock
seealso:
  - module: sparkstack.inference.fabric_facts
  - module: sparkstack.inference.preflight_report
author:
  - The sparkstack.inference developers (@sparkstack)
"""

EXAMPLES = r"""
---
- name: Gather what the nodes must have in common
  sparkstack.inference.preflight_facts:
    image: vllm/vllm-openai:v0.33.0
    ports: [8000, 29501]
  become: true

- name: Show the kernel of each node
  ansible.builtin.debug:
    msg: "{{ ansible_facts['preflight']['kernel']['release'] }}"
"""

RETURN = r"""
ansible_facts:
  description: The facts that are added to the host.
  returned: always
  type: dict
  contains:
    preflight:
      description: What the node must have in common with the others.
      returned: always
      type: dict
      contains:
        kernel:
          description:
            - C(release), C(kho_off) (whether its command line has C(kho=off)), and C(cma_overcounted), whether it says that more of its
              contiguous memory is free than there is.
          type: dict
          returned: always
          sample: {release: 6.17.0-1032-nvidia, kho_off: false, cma_overcounted: false}
        os:
          description: The distribution's name, or V(none).
          type: str
          returned: always
          sample: Ubuntu 24.04.3 LTS
        arch:
          description: The machine's architecture, as Docker calls it.
          type: str
          returned: always
          sample: arm64
        driver:
          description: The version of the NVIDIA driver that is loaded, or V(none).
          type: str
          returned: always
          sample: 580.159.04
        rdma:
          description: The RDMA devices.
          type: list
          elements: dict
          returned: always
          sample: [{hca: rocep1s0f0, driver: mlx5_core, driver_version: null, firmware: 28.45.4028, board: NVD0000000087}]
        infiniband:
          description: The names in C(/dev/infiniband).
          type: list
          elements: str
          returned: always
          sample: [rdma_cm, uverbs0]
        memlock:
          description: The bytes that the Docker daemon may lock at most, V(-1) for no limit, V(none) where that is not known.
          type: int
          returned: always
          sample: -1
        docker:
          description:
            - C(reachable), C(error), C(version), C(storage) (the storage driver), C(containerd) (whether images are in the containerd store),
              C(root) (the data root), C(live_restore), C(runtimes), C(cgroup_driver), C(rootless).
          type: dict
          returned: always
          sample: {reachable: true, error: null, version: 28.5.1, storage: overlay2, containerd: false, root: /var/lib/docker,
            live_restore: false, runtimes: [nvidia, runc], cgroup_driver: systemd, rootless: false}
        image:
          description:
            - O(image), or V(none) where the node does not have it or none is given.
            - C(identity) is a hash over its layers and configuration that is the same in every store; C(nccl) is the version that the image
              names in its variable C(NCCL_VERSION).
          type: dict
          returned: always
          sample: {tag: "vllm/vllm-openai:v0.33.0", id: "sha256:0ef645...", identity: "sha256:77ab01...", architecture: arm64,
            size_bytes: 22548578304, layers: 31, nccl: 2.28.9}
        nccl:
          description: The version of the node's own NCCL library, which containers do not use, or V(none).
          type: str
          returned: always
          sample: 2.28.9
        disk:
          description: For V(model) and V(docker) the C(path), whether it C(exists), C(free_bytes) and C(total_bytes); null where not known.
          type: dict
          returned: always
          sample: {model: {path: /srv/models/m, exists: true, free_bytes: 1073741824000, total_bytes: 3840000000000}, docker: null}
        hostname:
          description: The node's own name.
          type: str
          returned: always
          sample: spark-3f2a
        hosts:
          description: Addresses in C(/etc/hosts), for the node's own name and those of O(names) that stand there.
          type: dict
          returned: always
          sample: {spark-3f2a: [127.0.1.1]}
        listeners:
          description:
            - Who listens on O(ports).
            - C(container) is the container's name, and C(deployment) that of the deployment that it is a rank of; V(none) where there is none.
          type: list
          elements: dict
          returned: always
          sample: [{port: 8000, pid: 4711, process: python3, container: qwen-rank0, deployment: qwen}]
        firewall:
          description: C(tool) (V(ufw), V(firewalld), V(nftables), V(iptables) or V(none)), C(active), and C(policy) for what comes in.
          type: dict
          returned: always
          sample: {tool: ufw, active: true, policy: drop}
        clock:
          description: C(synchronised), V(none) where that is not known, and C(by), the program that sets the clock.
          type: dict
          returned: always
          sample: {synchronised: true, by: chrony}
"""

import platform
import socket
import typing as t

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.sparkstack.inference.plugins.module_utils import _preflight_docker, _preflight_services, _preflight_system
from ansible_collections.sparkstack.inference.plugins.module_utils._docker_api import DockerAPI, DockerError
from ansible_collections.sparkstack.inference.plugins.module_utils._image_identity import ARCHITECTURES
from ansible_collections.sparkstack.inference.plugins.module_utils._ranks import LABEL
from ansible_collections.sparkstack.inference.plugins.module_utils._sockets import settled

_DAEMON = "dockerd"


def said(module: AnsibleModule, program: str, *arguments: str) -> str:
    """What a program of the node answers; nothing where there is none, or where it fails."""
    path = module.get_bin_path(program, opt_dirs=["/sbin", "/usr/sbin"])
    if not path:
        return ""
    rc, stdout, _stderr = module.run_command([path, *arguments], errors="surrogate_then_replace")
    return str(stdout) if rc == 0 else ""


def owned(api: DockerAPI, found: t.List[t.Dict[str, t.Any]]) -> t.List[t.Dict[str, t.Any]]:
    """Listeners with the name of a container where its id stands, and with the deployment that it is a rank of."""
    for entry in found:
        inspection = api.container(entry["container"]) if entry["container"] else None
        entry["container"] = inspection["Name"].lstrip("/") if inspection else None
        labels = (inspection["Config"].get("Labels") or {}) if inspection else {}
        # A proof's container that a run has left holds the rendezvous port for its deployment, and makes room for the next proof.
        entry["deployment"] = labels.get(LABEL + "deployment") or labels.get(LABEL + "collective") or None
    return found


def facts(module: AnsibleModule, root: str = "/") -> t.Dict[str, t.Any]:
    """RV(ansible_facts.preflight). :param root: where the node's files hang; another one is for tests."""
    params = module.params
    running = _preflight_system.processes(root, {_DAEMON, _preflight_services.FIREWALLD, *_preflight_services.CLOCKS})
    api = DockerAPI(params["docker_socket"])
    holders = settled(params["ports"])
    image = None
    try:
        docker = _preflight_docker.daemon(api.get("/info"))
        image = _preflight_docker.image(params["image"], api.image(params["image"])) if params["image"] else None
        owned(api, holders)
    except DockerError as error:
        docker = _preflight_docker.absent(str(error))
        holders = [dict(entry, container=None, deployment=None) for entry in holders]
    nft = said(module, "nft", "--stateless", "list", "ruleset")
    # To ask the old iptables makes the kernel load its tables; where nft is, it tells what iptables-nft has written, too.
    iptables = said(module, "iptables", "--list-rules", "INPUT") if not module.get_bin_path("nft", opt_dirs=["/sbin", "/usr/sbin"]) else ""
    name, machine = socket.gethostname(), platform.machine()
    return {
        "kernel": _preflight_system.kernel(root),
        "os": _preflight_system.system(root),
        "arch": ARCHITECTURES.get(machine, machine),
        "driver": _preflight_system.driver(root),
        "rdma": _preflight_system.rdma(root),
        "infiniband": _preflight_system.infiniband(root),
        "memlock": _preflight_system.memlock(root, running.get(_DAEMON)),
        "docker": docker,
        "image": image,
        "nccl": _preflight_system.nccl(root),
        "disk": {
            "model": _preflight_docker.disk(params["model_path"], root),
            "docker": _preflight_docker.disk(docker["root"], root),
        },
        "hostname": name,
        "hosts": _preflight_system.hosts(root, {name, *params["names"]}),
        "listeners": holders,
        "firewall": _preflight_services.firewall(root, running, nft, iptables),
        "clock": _preflight_services.clock(running, said(module, "timedatectl", "show")),
    }


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "image": {"type": "str"},
            "model_path": {"type": "path"},
            "ports": {"type": "list", "elements": "int", "default": []},
            "names": {"type": "list", "elements": "str", "default": []},
            "docker_socket": {"type": "path", "aliases": ["docker_host"], "default": "/var/run/docker.sock"},
        },
        supports_check_mode=True,
    )
    module.run_command_environ_update = {"LANG": "C", "LC_ALL": "C"}
    module.exit_json(ansible_facts={"preflight": facts(module)})


if __name__ == "__main__":
    main()
