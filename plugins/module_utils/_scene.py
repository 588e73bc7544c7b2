# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""What the node knows about a rank beside its log: kills by the kernel, restarts, the fabric, and who is at the rendezvous."""

from __future__ import annotations

import os
import time
import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils import _cgroup, _guard_told, _kernel, _reach, _sockets
from ansible_collections.sparkstack.inference.plugins.module_utils._files import text
from ansible_collections.sparkstack.inference.plugins.module_utils._ranks import LABEL

_ADDRESS_VARIABLES = ("VLLM_HOST_IP", "SGLANG_HOST_IP", "HOST_IP")


def scene(
    inspection: t.Optional[t.Mapping[str, t.Any]],
    reading: t.Optional[t.Mapping[str, t.Any]],
    since: t.Optional[float],
    state: t.Mapping[str, t.Any],
    peers: t.Sequence[str] = (),
    root: str = "/",
) -> t.Tuple[t.Dict[str, t.Any], t.Dict[str, t.Any]]:
    """Look once, in a few milliseconds: the kernel's log is read only when a process was killed or the container has ended.

    :param inspection: of the container, or None. :param reading: of its log. :param since: when it was last started, in seconds
        since the epoch. :param state: of the last look at this start of this container. :param root: where C(/proc), C(/sys),
        C(/dev), C(/etc) and C(/run) hang.
    :returns: RV(sparkstack.inference.init_phase_probe#module:scene), and the next look's C(state).
    """
    inspection = inspection or {}
    told = inspection.get("State") or {}
    pid: int = told.get("Pid") or 0
    keep: t.Dict[str, t.Any] = {
        "kills": state.get("kills"),
        "kernel": state.get("kernel") or [],
        "running": bool(told.get("Running")),
        "owners": {},
    }
    # Once it has ended, its control group is gone, with the count.
    kills = _cgroup.oom_kills(pid, root)
    ended = since is not None and not keep["running"] and state.get("running", True)
    if ended or (kills or 0) > (keep["kills"] or 0):
        log = _kernel.read(os.path.join(root, "dev", "kmsg"))
        if log is not None:
            keep["kernel"] = _kernel.concerning(_kernel.messages(log, _kernel.clock_start()), str(inspection["Id"]), since)
            kills = max(kills or 0, sum(message["kind"] == "oom" for message in keep["kernel"]))
    if kills is not None:
        keep["kills"] = max(kills, keep["kills"] or 0)
    host, port = _sockets.split(str((reading or {}).get("claims", {}).get("rendezvous") or ""))
    address = resolve(host, root)
    variables = dict(line.split("=", 1) for line in (inspection.get("Config") or {}).get("Env") or [] if "=" in line)
    wanted = [address or "", *(variables.get(name, "") for name in _ADDRESS_VARIABLES), *peers]
    fabric = _reach.fabric(_reach.addresses(), wanted, root)
    deployment = str(((inspection.get("Config") or {}).get("Labels") or {}).get(LABEL + "deployment") or "")
    # Where a container that has ended had the node's own network, the node shows who has its port.
    visible = port is not None and (pid or (inspection.get("HostConfig") or {}).get("NetworkMode") == "host")
    visible = visible and _sockets.readable(str(pid or "self"), os.path.join(root, "proc"))
    found = {
        "oom_kills": keep["kills"],
        "kernel": keep["kernel"],
        "guard": _guard_told.told(deployment, str(inspection.get("Id")), since, root),
        "booted": started(1, root),
        "docker_started": docker_started(root),
        "fabric": fabric,
        "sockets": _talk(address, port or 0, pid, str(inspection["Id"]), root, state.get("owners") or {}, keep["owners"]) if visible else None,
        "reach": _reached(peers, fabric or {}, root) if peers else {},
    }
    return found, keep


def _reached(peers: t.Sequence[str], fabric: t.Mapping[str, t.Any], root: str) -> t.Dict[str, t.Dict[str, t.Any]]:
    """Who answers, and of those who don't whether at least their hardware address is known: a firewall lets that through."""
    found: t.Dict[str, t.Dict[str, t.Any]] = {}
    found.update(_reach.reach(peers, fabric.get("address") or "", fabric.get("mtu") or 1500))
    known = _reach.neighbours(text(os.path.join(root, "proc", "net", "arp")))
    for peer, echo in found.items():
        echo["neighbour"] = known.get(peer)
    return found


def _talk(
    address: t.Optional[str], port: int, pid: int, container: str, root: str, known: t.Mapping[str, t.Any], keep: t.Dict[str, t.Any]
) -> t.Dict[str, t.Any]:
    """The sockets at the rendezvous, in the container's network namespace. Who owns the listener is looked up once.

    :param known: owners that the last look found, by inode. :param keep: takes those of this one.
    """
    proc = os.path.join(root, "proc")
    entries = _sockets.sockets([port], str(pid or "self"), proc)
    listening, connected, dialing = _sockets.around(entries, address, port)
    keep.update({inode: known[inode] for inode in listening if inode in known})
    if listening and not keep:
        keep.update(_sockets.owners(set(listening), proc, _cgroup.processes(pid, root)))
    owner = next(iter(keep.values()), None)
    return {
        "port": port,
        "listening": bool(listening),
        "owner": dict(owner, own=owner["container"] == container) if owner else None,
        "connected": connected,
        "dialing": dialing,
    }


def resolve(host: str, root: str = "/") -> t.Optional[str]:
    """A host's address: itself, or what C(/etc/hosts) has for it. A name server is not asked: that can take half a minute."""
    if not host or ":" in host or host.replace(".", "").isdigit():
        return host or None
    for line in text(os.path.join(root, "etc", "hosts")).splitlines():
        words = line.partition("#")[0].split()
        # Debian's "127.0.1.1 spark1" is no address that another node could come to.
        if host in words[1:] and not words[0].startswith("127.") and ":" not in words[0]:
            return words[0]
    return None


def started(pid: int, root: str = "/") -> t.Optional[float]:
    """When a process was started, in seconds since the epoch by the node's clock now; of process 1: when the node was.

    Sources: the 22nd field of C(/proc/PID/stat), ticks after the boot, and C(/proc/uptime). C(btime) of C(/proc/stat) has whole seconds
    only, and in a system container is the machine's.
    """
    # "1234 (a name) may have) S 1 ...": the name ends at the last parenthesis.
    fields = text(os.path.join(root, "proc", str(pid), "stat")).rpartition(")")[2].split()
    uptime = text(os.path.join(root, "proc", "uptime")).split()
    if len(fields) < 20 or not uptime:
        return None
    return round(time.time() - float(uptime[0]) + int(fields[19]) / os.sysconf("SC_CLK_TCK"), 1)


def docker_started(root: str = "/") -> t.Optional[float]:
    """When the Docker daemon was started, as :func:`started`; None where it keeps no C(docker.pid) at the usual place."""
    for place in ("run", "var/run"):
        pid = text(os.path.join(root, place, "docker.pid")).strip()
        # After a crash the file stays, and the number may be somebody else's.
        if pid.isdigit() and text(os.path.join(root, "proc", pid, "comm")).strip() == "dockerd":
            return started(int(pid), root)
    return None
