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
  - Lists the processes that hold GPU memory, each with the container that it runs in.
  - Where there is no C(nvidia-smi), or where it finds no GPU, the node's own memory is returned and no process.
  - An odd answer of C(nvidia-smi) becomes a warning. It never fails the task.
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
    type: path
    default: /var/run/docker.sock
  timeout:
    description:
      - Seconds after which a call of C(nvidia-smi) is given up. It hangs when the driver does.
    type: int
    default: 30
  holders:
    description:
      - Tell also who holds the node's memory, containers and processes outside of them, whether it is a GPU's or the node's own.
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
            - Else the sum over all GPUs.
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
        gpus:
          description: The GPUs, in the driver's order.
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
              utilization_percent: 0
              power_watts: 4.5
        processes:
          description:
            - The processes that hold GPU memory, largest first. A process on two GPUs stands there twice.
            - C(container) is null for a process outside any container.
              Its C(name) and C(image) are null when Docker does not know the id or does not answer.
          type: list
          elements: dict
          returned: always
          sample:
            - pid: 1832
              name: sglang::scheduler_TP0
              user: root
              gpu_uuid: GPU-00000000-0000-4000-8000-000000000000
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
              description: What it holds.
              type: int
            gpu_bytes:
              description: How much of that the driver counts as GPU memory.
              type: int
        gathered_at:
          description: Time of the measurement in UTC, in the format of ISO 8601. Free memory grows stale.
          type: str
          returned: always
          sample: "2026-11-29T22:44:20Z"
"""

import os
import pwd
import time
import typing as t

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.sparkstack.inference.plugins.module_utils import _holders, _processes, _smi
from ansible_collections.sparkstack.inference.plugins.module_utils._docker_api import DockerAPI, DockerError
from ansible_collections.sparkstack.inference.plugins.module_utils._memory import (
    GPU_FIELDS,
    PROCESS_FIELDS,
    Gpu,
    GpuProcess,
    container_fact,
    container_ids,
    memory_picture,
    parse_gpus,
    parse_meminfo,
    parse_processes,
    real_uid,
)


class GpuMemory:
    """Fetches what the pure functions of _memory turn into the facts."""

    def __init__(self, module: AnsibleModule, proc: str = "/proc") -> None:
        self.module = module
        self.proc = proc
        self.timeout: int = module.params["timeout"]
        self.docker: t.Optional[DockerAPI] = DockerAPI(module.params["docker_socket"], timeout=10)
        self.containers: t.Dict[str, t.Dict[str, t.Any]] = {}

    def facts(self) -> t.Dict[str, t.Any]:
        """The dictionary C(gpu_memory)."""
        gathered_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        meminfo = parse_meminfo(self.read("meminfo"))
        if "MemTotal" not in meminfo:
            self.module.fail_json(msg="There is no MemTotal in /proc/meminfo: run this on a Linux node with /proc mounted.")
        gpus = self.gpus()
        processes = [self.process(process) for process in self.processes()] if gpus else []
        result = memory_picture(meminfo, gpus)
        result.update(gpus=[gpu.fact() for gpu in gpus], processes=processes, gathered_at=gathered_at)
        if self.module.params.get("holders"):
            result["holders"] = self.holders(processes, meminfo)
        return result

    def holders(self, processes: t.Sequence[t.Mapping[str, t.Any]], meminfo: t.Mapping[str, int]) -> t.List[t.Dict[str, t.Any]]:
        """Who holds memory. :param processes: those on the GPUs."""
        on_gpu: t.Dict[int, t.Tuple[int, str]] = {}
        for process in processes:
            # One with contexts on two GPUs stands there twice.
            on_gpu[process["pid"]] = (on_gpu.get(process["pid"], (0, ""))[0] + (process["used_bytes"] or 0), process["name"] or "")
        named = {}
        try:
            for entry in self.docker.get("/containers/json") if self.docker else []:
                named[str(entry["Id"])] = (str((entry.get("Names") or [entry["Id"][:12]])[0]).lstrip("/"), str(entry.get("Image")))
        except DockerError as error:
            self.module.warn(f"Containers are returned without name and image: {error}")
        root = os.path.dirname(self.proc)
        found = _holders.holders("", _processes.groups(root), named, on_gpu, meminfo, root)
        return [{key: entry[key] for key in ("kind", "name", "image", "pid", "bytes", "gpu_bytes")} for entry in found if entry["kind"] != "page_cache"]

    def gpus(self) -> t.List[Gpu]:
        """The node's GPUs; none where there is no nvidia-smi."""
        fields, stdout = self.query("--query-gpu", GPU_FIELDS)
        gpus, rest = parse_gpus(stdout, fields)
        if rest and gpus:
            self.module.warn(f"nvidia-smi wrote a line that is no GPU and was left out: {rest[0]}")
        for gpu in gpus:
            if gpu.mig:
                self.module.warn(f"GPU {gpu.index} is split into instances (MIG): the numbers are those of the whole card.")
            elif gpu.total_bytes is None and not gpu.integrated:
                self.module.warn(f"GPU {gpu.index} ({gpu.name}) does not say how much memory it has, so it counts as none: look at nvidia-smi on the node.")
        return gpus

    def processes(self) -> t.List[GpuProcess]:
        """The processes that hold GPU memory."""
        fields, stdout = self.query("--query-compute-apps", PROCESS_FIELDS)
        processes, rest = parse_processes(stdout, fields)
        if rest and processes:
            self.module.warn(f"nvidia-smi wrote a line that is no process and was left out: {rest[0]}")
        return processes

    def query(self, option: str, fields: t.Sequence[str]) -> t.Tuple[t.List[str], str]:
        """Ask nvidia-smi for fields, leaving out those that its version does not know; an error is a warning."""
        wanted, stdout, problem = _smi.query(self.module, option, fields, self.timeout)
        if problem:
            self.module.warn(problem)
        return wanted, stdout

    def process(self, process: GpuProcess) -> t.Dict[str, t.Any]:
        """A process with its user and its container; both None when it has ended meanwhile."""
        name = process.name or self.read(f"{process.pid}/comm").strip() or None
        uid = real_uid(self.read(f"{process.pid}/status"))
        ids = container_ids(self.read(f"{process.pid}/cgroup"))
        return {
            "pid": process.pid,
            "name": name,
            "user": None if uid is None else user_name(uid),
            "gpu_uuid": process.gpu_uuid,
            "used_bytes": process.used_bytes,
            "container": self.container(ids) if ids else None,
        }

    def container(self, ids: t.Sequence[str]) -> t.Dict[str, t.Any]:
        """The first of the nested containers that Docker knows, else the outermost with its id only."""
        for container_id in ids:
            if container_id in self.containers:
                return self.containers[container_id]
            inspection = self.inspect(container_id)
            if inspection:
                self.containers[container_id] = container_fact(container_id, inspection)
                return self.containers[container_id]
        return container_fact(ids[0], None)

    def inspect(self, container_id: str) -> t.Optional[t.Dict[str, t.Any]]:
        """Docker's inspection, or None; a daemon that does not answer is asked once."""
        if self.docker is None:
            return None
        try:
            return self.docker.container(container_id)
        except (DockerError, ValueError) as error:
            self.docker = None
            self.module.warn(f"Containers are returned without name and image: {error}")
            return None

    def read(self, path: str) -> str:
        """The text of a file below /proc, empty when it is not there (any more) or not for us."""
        try:
            with open(self.proc + "/" + path, encoding="utf-8", errors="replace") as handle:
                return handle.read()
        except OSError:
            return ""


def user_name(uid: int) -> str:
    """The user's name on this node, or the number: a container's users are not in its /etc/passwd."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "docker_socket": {"type": "path", "default": "/var/run/docker.sock"},
            "timeout": {"type": "int", "default": 30},
            "holders": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    module.run_command_environ_update = {"LANG": "C", "LC_ALL": "C"}
    module.exit_json(ansible_facts={"gpu_memory": GpuMemory(module).facts()})


if __name__ == "__main__":
    main()
