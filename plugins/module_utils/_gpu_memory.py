# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""Fetches what the pure functions of _memory and its neighbours turn into the fact gpu_memory."""

from __future__ import annotations

import glob
import os
import pwd
import time
import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils import (
    _command,
    _holders,
    _memory_pages,
    _memory_problems,
    _processes,
    _smi,
    _smi_xml,
)
from ansible_collections.sparkstack.inference.plugins.module_utils._docker_api import DockerAPI, DockerError
from ansible_collections.sparkstack.inference.plugins.module_utils._files import text
from ansible_collections.sparkstack.inference.plugins.module_utils._memory import (
    GPU_FIELDS,
    PROCESS_FIELDS,
    Gpu,
    GpuProcess,
    container_ids,
    memory_picture,
    parse_gpus,
    parse_meminfo,
    parse_processes,
)

Fact = t.Dict[str, t.Any]


class GpuMemory:
    """One look at a node's memory."""

    def __init__(self, module: t.Any, root: str = "/") -> None:
        """
        :param module: an AnsibleModule with the parameters of M(sparkstack.inference.gpu_memory_facts).
        :param root: where /proc and /sys hang.
        """
        self.module = module
        self.root = root
        self.timeout: int = module.params["timeout"]
        self.docker: t.Optional[DockerAPI] = DockerAPI(module.params["docker_socket"], timeout=10)
        self.containers: t.Dict[str, Fact] = {}
        self.problems: t.List[_memory_problems.Problem] = []
        self.details: t.Dict[str, _smi_xml.Details] = {}

    def facts(self) -> Fact:
        """The dictionary C(gpu_memory)."""
        gathered_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        meminfo = parse_meminfo(self.read("proc/meminfo"))
        if "MemTotal" not in meminfo:
            self.module.fail_json(msg="There is no MemTotal in /proc/meminfo: run this on a Linux node with /proc mounted.")
        gpus = self.gpus()
        held = self.processes(gpus) if gpus else []
        processes = [self.process(process, gpus) for process in held]
        result: Fact = {**memory_picture(meminfo, gpus), **_memory_pages.pages(meminfo)}
        kernel = {
            "release": self.read("proc/sys/kernel/osrelease").strip(),
            "cmdline": self.read("proc/cmdline"),
            "overcommit": self.read("proc/sys/vm/overcommit_memory"),
        }
        large = _memory_pages.large_free_bytes(self.read("proc/buddyinfo"), os.sysconf("SC_PAGE_SIZE"))
        self.problems += _memory_problems.of_node(result, any(gpu.integrated for gpu in gpus), kernel, large)
        result.update(gpus=[gpu.fact() for gpu in gpus], processes=processes, problems=self.problems, gathered_at=gathered_at)
        if self.module.params.get("holders"):
            result.update(self.holders(processes, meminfo))
        return result

    def holders(self, processes: t.Sequence[Fact], meminfo: t.Mapping[str, int]) -> Fact:
        """Who holds memory, and whose is swapped out. :param processes: those on the GPUs."""
        on_gpu: t.Dict[int, t.Tuple[int, str]] = {}
        for process in processes:
            # One with contexts on two GPUs stands there twice.
            on_gpu[process["pid"]] = (on_gpu.get(process["pid"], (0, ""))[0] + (process["used_bytes"] or 0), process["name"] or "")
        draw = {process["pid"] for process in processes if process["type"] == "G"}
        named = {}
        try:
            for entry in self.docker.get("/containers/json") if self.docker else []:
                named[str(entry["Id"])] = (str((entry.get("Names") or [entry["Id"][:12]])[0]).lstrip("/"), str(entry.get("Image")))
        except DockerError as error:
            self.module.warn(f"Containers are returned without name and image: {error}")
        of = _processes.groups(self.root)
        found = [entry for entry in _holders.holders("", of, named, on_gpu, meminfo, self.root) if entry["kind"] != "page_cache"]
        holders = []
        for entry in found:
            pid = entry["pid"]
            user, command = (None, None) if pid is None else self.whose(pid)
            stop = _holders.stop_with(entry, of.get(pid, ""), pid in draw)
            told = {key: entry[key] for key in ("kind", "name", "image", "pid", "bytes", "gpu_bytes")}
            holders.append({**told, "user": user, "command": command, "stop": stop})
        return {"holders": holders, "swap_holders": _holders.swapped(of, named, self.root)}

    def gpus(self) -> t.List[Gpu]:
        """The node's GPUs; none where there is no nvidia-smi."""
        fields, answer, said = _smi.query(self.module, "--query-gpu", GPU_FIELDS, self.timeout)
        self.trouble(said)
        gpus, rest = parse_gpus(answer, fields)
        for line in rest if gpus else []:
            if _memory_problems.is_known(line):
                self.trouble(line)
            else:
                self.module.warn(f"nvidia-smi wrote a line that is no GPU and was left out: {line}")
        if gpus:
            gpus = self.refined(gpus)
        elif not said:
            self.problems += _memory_problems.of_no_gpu(self.on_bus(), bool(self.module.get_bin_path("nvidia-smi")))
        found = _memory_problems.of_gpus(gpus, answer)
        for problem in found:
            self.module.warn(problem["message"])
        self.problems += found
        return gpus

    def refined(self, gpus: t.Sequence[Gpu]) -> t.List[Gpu]:
        """The GPUs with what only the long answers tell. What these don't tell is no trouble: the short ones have the rest."""
        self.details = _smi_xml.parse_details(_smi.ask(self.module, ["-q", "-x"], self.timeout)[0])
        split = any(gpu.mig or (gpu.uuid in self.details and self.details[gpu.uuid].mig) for gpu in gpus)
        listed = _smi_xml.parse_list(_smi.ask(self.module, ["-L"], self.timeout)[0]) if split else {}
        return _smi_xml.refine(gpus, self.details, listed)

    def processes(self, gpus: t.Sequence[Gpu]) -> t.List[GpuProcess]:
        """The processes that hold GPU memory."""
        told = [process for details in self.details.values() for process in details.processes]
        if all(gpu.uuid in self.details and self.details[gpu.uuid].whole for gpu in gpus):
            return _smi_xml.merge(told)
        # The long answer is none, or was cut off: this one lacks what draws only.
        fields, answer, said = _smi.query(self.module, "--query-compute-apps", PROCESS_FIELDS, self.timeout)
        self.trouble(said)
        processes, rest = parse_processes(answer, fields)
        if rest and any("[Insufficient Permissions]" in line for line in rest):
            self.trouble(f"nvidia-smi does not tell this user which processes use the GPU: {rest[0]}")
        elif rest and processes:
            self.module.warn(f"nvidia-smi wrote a line that is no process and was left out: {rest[0]}")
        known = {(process.gpu_uuid, process.pid) for process in told}
        return _smi_xml.merge([*told, *(process for process in processes if (process.gpu_uuid, process.pid) not in known)])

    def trouble(self, said: t.Optional[str]) -> None:
        """Warn of what nvidia-smi said, and keep it as a problem, once."""
        if said:
            self.module.warn(said)
            problem = _memory_problems.of_driver(said, _memory_problems.loaded_version(self.read("proc/driver/nvidia/version")))
            if problem["code"] not in [known["code"] for known in self.problems]:
                self.problems.append(problem)

    def on_bus(self) -> int:
        """How many NVIDIA GPUs the PCI bus has, without those that are given to virtual machines."""
        found = 0
        for folder in glob.glob(os.path.join(glob.escape(self.root), "sys/bus/pci/devices/*")):
            # 0x03....: a display controller; a card's sound device has another class.
            ours = text(os.path.join(folder, "vendor")).strip() == "0x10de" and text(os.path.join(folder, "class")).startswith("0x03")
            found += ours and not os.path.realpath(os.path.join(folder, "driver")).endswith("/vfio-pci")
        return found

    def process(self, process: GpuProcess, gpus: t.Sequence[Gpu]) -> Fact:
        """A process with its user, command line and container; all None when it has ended meanwhile."""
        ids = container_ids(self.read(f"proc/{process.pid}/cgroup"))
        user, command = self.whose(process.pid)
        slices = [device for gpu in gpus if gpu.uuid == process.gpu_uuid for device in gpu.mig_devices or ()]
        on = (process.gpu_instance, process.compute_instance)
        return {
            "pid": process.pid,
            "name": _command.name(process.name) or _command.name(self.read(f"proc/{process.pid}/comm").strip()),
            "user": user,
            "command": command,
            "type": process.kind,
            "gpu_uuid": process.gpu_uuid,
            "mig_uuid": next((device.uuid for device in slices if (device.gpu_instance, device.compute_instance) == on), None),
            "used_bytes": process.used_bytes,
            "container": self.container(ids) if ids else None,
        }

    def whose(self, pid: int) -> t.Tuple[t.Optional[str], t.Optional[str]]:
        """The user and the command line of a process."""
        uid = _processes.user_id(_processes.fields(self.root, pid))
        return None if uid is None else user_name(uid), _command.shown(self.read(f"proc/{pid}/cmdline"))

    def container(self, ids: t.Sequence[str]) -> Fact:
        """The first of the nested containers that Docker knows, else the outermost with its id only."""
        for container_id in ids:
            if container_id in self.containers:
                return self.containers[container_id]
            inspection = self.inspect(container_id)
            if inspection:
                self.containers[container_id] = container_fact(container_id, inspection)
                return self.containers[container_id]
        return container_fact(ids[0], None)

    def inspect(self, container_id: str) -> t.Optional[Fact]:
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
        """The text of a file below the root, empty when it is not there (any more) or not for us."""
        return text(os.path.join(self.root, path))


def container_fact(container_id: str, inspection: t.Optional[t.Mapping[str, t.Any]]) -> Fact:
    """The id, name and image of a container; name and image are None where Docker could not be asked or has no such."""
    config = (inspection or {}).get("Config") or {}
    name = str((inspection or {}).get("Name") or "").lstrip("/")
    return {"id": container_id, "name": name or None, "image": config.get("Image") or None}


def user_name(uid: int) -> str:
    """The user's name on this node, or the number: a container's users are not in its /etc/passwd."""
    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return str(uid)
