# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""A close look at a rank that is stuck or has ended, and at the node around it. Nothing is changed, and no part that fails stops another."""

from __future__ import annotations

import os
import re
import time
import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils import _holders, _kernel, _logline, _processes, _scene, _smi, _sockets, _stacks
from ansible_collections.sparkstack.inference.plugins.module_utils._docker_api import DockerAPI
from ansible_collections.sparkstack.inference.plugins.module_utils._files import text
from ansible_collections.sparkstack.inference.plugins.module_utils._memory import PROCESS_FIELDS, parse_gpus, parse_meminfo, parse_processes

# The CPU use of the processes is measured over at least this, in seconds.
_SAMPLE = 1.0
_GPU_FIELDS = ("index", "uuid", "memory.total", "memory.used", "utilization.gpu", "power.draw", "power.limit", "name")
_MOST_PROCESSES = 64
_MOST_MESSAGES = 40
_HOUR = 3600.0
# The ports that an engine's options give it to listen on: "--port 8000", "--master-port=29501", "--dist-init-addr 192.168.200.11:25000".
_PORT = re.compile(r"--(?:port|master-port|nccl-port|dist-init-addr)[ =](?:\S*:)?(\d{1,5})(?!\S)")
_MEET = re.compile(r"--(?:master-port|dist-init-addr)[ =](?:\S*:)?(\d{1,5})(?!\S)")
# What the scene of a probe has too; the kernel's messages are wanted of more than the one container here.
_NODE: t.Dict[str, t.Any] = {"oom_kills": None, "booted": None, "docker_started": None, "fabric": None, "sockets": None, "reach": None}

Part = t.Tuple[t.Mapping[str, t.Any], t.Optional[str]]


class Look:
    """One close look at a container."""

    def __init__(self, api: DockerAPI, module: _smi.Module, name: str, timeout: float, root: str = "/") -> None:
        """
        :param name: the container's name or id. :param timeout: seconds in all. :param root: where C(/proc) and C(/sys) hang.
        :raises DockerError: when the daemon doesn't answer.
        """
        self.api = api
        self.module = module
        self.root = root
        self.deadline = time.monotonic() + timeout
        self.inspection: t.Dict[str, t.Any] = api.container(name) or {}
        told = self.inspection.get("State") or {}
        self.identity = str(self.inspection.get("Id") or "")
        self.running = bool(told.get("Running")) and not told.get("Restarting")
        self.paused = bool(told.get("Paused"))
        self.init = int(told.get("Pid") or 0) if self.running else 0
        self.started = _logline.moment(told.get("StartedAt"))
        # Filled by the parts that come first; one that can't be had leaves them empty for the next.
        self.on_gpu: t.Dict[int, t.Tuple[int, str]] = {}
        self.meminfo: t.Dict[str, int] = {}
        self.named: t.Dict[str, t.Tuple[str, str]] = {}
        self.published: t.Dict[int, str] = {}
        self.found: t.Dict[str, t.Any] = {"exists": bool(self.inspection), "running": self.running, "paused": self.paused, "now": time.time()}

    def left(self) -> float:
        """Seconds until the time is over."""
        return self.deadline - time.monotonic()

    def part(self, name: str, empty: t.Mapping[str, t.Any], look: t.Callable[[], t.Tuple[t.Mapping[str, t.Any], t.Optional[str]]]) -> None:
        """Have one part, and in its C(_problem) the sentence on what could not be had, or None.

        :param empty: what stands for it where it can't be had. :param look: returns what there is of it, and the sentence.
        """
        values: t.Mapping[str, t.Any] = {}
        try:
            if self.left() <= 0:
                raise TimeoutError("the time was over before")
            values, problem = look()
        except Exception as error:  # Whatever a part comes to, the others are wanted all the same.
            problem = f"This could not be had: {str(error).rstrip('.') or type(error).__name__}."
        self.found.update({**empty, **values})
        self.found[f"{name}_problem"] = _logline.mask(problem) if problem else None

    def take(self, peers: t.Sequence[str] = (), rendezvous: str = "", since: t.Optional[float] = None) -> t.Dict[str, t.Any]:
        """What RV(sparkstack.inference.init_phase_closeup#module:closeup) documents.

        :param peers: fabric addresses of the other ranks. :param rendezvous: "host:port", or nothing. :param since: from when on
            the kernel's messages count, in seconds since the epoch; without it from the container's last start on, or for an hour.
        """
        began = time.monotonic()
        self.of = _processes.groups(self.root)
        self.pids = _processes.members(self.identity, self.init, self.of, self.root) if self.init else []
        before = [process for process in (_processes.look(pid, self.root) for pid in self.pids) if process]
        sampled = time.monotonic()
        self.part("containers", {}, self.containers)
        self.part("stacks", {"stacks": []}, lambda: self.stacks(before))
        self.part("listeners", {"listeners": []}, lambda: self.listeners(rendezvous))
        self.part("node", _NODE, lambda: self.node(peers, rendezvous))
        self.part("kernel", {"kernel": []}, lambda: self.kernel(since or self.started or self.found["now"] - _HOUR))
        self.part("gpus", {"gpus": []}, self.gpus)
        self.part("memory", {"memory": None}, self.memory)
        self.part("holders", {"holders": []}, self.holders)
        self.part("processes", {"processes": []}, lambda: self.processes(before, sampled))
        self.found["seconds"] = round(time.monotonic() - began, 3)
        return self.found

    def node(self, peers: t.Sequence[str], rendezvous: str) -> Part:
        """The network, the kills, and when the node and its Docker were started."""
        inspection = self.inspection or None
        found, _state = _scene.scene(inspection, {"claims": {"rendezvous": rendezvous}}, self.started, {}, peers, self.root)
        return {key: found[key] for key in _NODE if key in found}, None

    def listeners(self, rendezvous: str) -> Part:
        """Who listens on the ports that the rank wants on this node."""
        settings = self.inspection.get("HostConfig") or {}
        ports = {int(bound["HostPort"]) for bounds in (settings.get("PortBindings") or {}).values() for bound in bounds or [] if bound.get("HostPort")}
        if settings.get("NetworkMode") == "host":
            arguments = [str(self.inspection.get("Path") or ""), *map(str, self.inspection.get("Args") or [])]
            ports.update(int(port) for port in _PORT.findall(" ".join(arguments)))
            host, port = _sockets.split(rendezvous)
            meet = {int(found) for found in _MEET.findall(" ".join(arguments))} | ({port} if port else set())
            # Where the ranks meet, only the head listens.
            if not host or not _sockets.is_own(host):
                ports -= meet
            elif port:
                ports.add(port)
        found = _sockets.listeners(sorted(ports), os.path.join(self.root, "proc"))
        for entry in found:
            container = entry["container"] or (self.published.get(entry["port"]) if entry["process"] == "docker-proxy" else None)
            entry.update(container=container, container_name=self.named[container][0] if container in self.named else None, own=container == self.identity)
        return {"listeners": found}, None

    def containers(self) -> Part:
        """The node's running containers, for the other parts."""
        for entry in self.api.get("/containers/json"):
            identity = str(entry["Id"])
            self.named[identity] = (str((entry.get("Names") or [identity[:12]])[0]).lstrip("/"), str(entry.get("Image")))
            self.published.update({int(port["PublicPort"]): identity for port in entry.get("Ports") or [] if port.get("PublicPort")})
        return {}, None

    def kernel(self, since: float) -> Part:
        """What the kernel said that matters, whomever it is about; of links only the fabric's, where that is known."""
        log = _kernel.read(os.path.join(self.root, "dev", "kmsg"))
        if log is None:
            return {}, "The kernel's messages can't be read: run this as root."
        fabric = (self.found.get("fabric") or {}).get("interface")
        found = []
        for message in _kernel.messages(log, _kernel.clock_start()):
            if message["time"] is not None and message["time"] < since - _kernel.SLACK:
                continue
            if message["kind"] == "link" and fabric and message["interface"] not in (None, fabric):
                continue
            found.append({**message, "text": _logline.mask(message["text"])})
        return {"kernel": found[-_MOST_MESSAGES:]}, None

    def processes(self, before: t.Sequence[_processes.Process], sampled: float) -> Part:
        """The container's processes, busiest first."""
        if not before:
            return {}, "No process of the container can be seen here: run this as root on its node." if self.running else None
        time.sleep(max(0.0, min(_SAMPLE - (time.monotonic() - sampled), self.left())))
        seconds = time.monotonic() - sampled
        found = []
        for process in before:
            now = _processes.look(process.pid, self.root)
            if now:
                told = now._asdict()
                del told["ticks"], told["python"]
                found.append({**told, "cpu_percent": _processes.cpu_percent(process.ticks, now.ticks, seconds)})
        found.sort(key=lambda entry: (-entry["cpu_percent"], entry["pid"]))
        problem = f"It has {len(found)} processes; the busiest {_MOST_PROCESSES} are listed." if len(found) > _MOST_PROCESSES else None
        return {"processes": found[:_MOST_PROCESSES]}, problem

    def stacks(self, processes: t.Sequence[_processes.Process]) -> Part:
        """Where its Python processes stand."""
        if not self.running:
            return {}, None
        if self.paused:
            return {}, "The container is paused, so no stacks were taken: docker unpause goes on with it."
        if not processes:
            return {}, "No process of the container can be seen here, so no stacks were taken."
        group = _holders.control_group(self.identity, self.of.get(processes[0].pid, ""), self.root)
        room = None if group.limit is None or group.held is None else max(0, group.limit - group.held)
        stacks, problem = _stacks.take(self.api, self.identity, processes, room, max(0.5, self.left() / 2), self.module, self.root)
        return {"stacks": stacks}, problem

    def gpus(self) -> Part:
        """The GPUs, with their use and power; what runs on them is kept for the holders."""
        fields, answer, problem = _smi.query(self.module, "--query-gpu", _GPU_FIELDS, self.patience())
        gpus, _rest = parse_gpus(answer, fields)
        if gpus:
            fields, answer, problem = _smi.query(self.module, "--query-compute-apps", PROCESS_FIELDS, self.patience())
            for process in parse_processes(answer, fields)[0]:
                # The title that it has set, or its program's path. One with contexts on two GPUs stands there twice.
                title = process.name or ""
                name = _processes.name(title.split(" ")[0].rpartition("/")[2], title)
                self.on_gpu[process.pid] = (self.on_gpu.get(process.pid, (0, ""))[0] + (process.used_bytes or 0), name)
        keys = ("index", "name", "utilization_percent", "power_watts", "power_limit_watts", "total_bytes", "used_bytes")
        return {"gpus": [{key: getattr(gpu, key) for key in keys} for gpu in gpus]}, problem

    def patience(self) -> int:
        """Seconds for one call of nvidia-smi."""
        return max(1, min(5, int(self.left() - 1)))

    def memory(self) -> Part:
        """The node's memory, and the container's part of it."""
        self.meminfo = parse_meminfo(text(os.path.join(self.root, "proc", "meminfo")))
        group = _holders.control_group(self.identity, self.of[self.pids[0]], self.root) if self.pids else _holders.Group(None, None)
        told = {
            "total_bytes": self.meminfo["MemTotal"],
            "available_bytes": self.meminfo.get("MemAvailable"),
            "container_bytes": group.held,
            # 0 says that there is none; of a container that has ended, Docker knows it still.
            "container_limit_bytes": group.limit or (self.inspection.get("HostConfig") or {}).get("Memory") or None,
        }
        return {"memory": told}, None

    def holders(self) -> Part:
        """Who holds the memory."""
        return {"holders": _holders.holders(self.identity, self.of, self.named, self.on_gpu, self.meminfo, self.root)}, None
