# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is private to the collection: it can change at any time.

"""The containers of a collective proof, made of what the ranks' own containers are made of; and the key by which a proof is known again. Pure."""

from __future__ import annotations

import hashlib
import json
import re
import typing as t

from ansible.module_utils.common.text.formatters import human_to_bytes

from ansible_collections.sparkstack.inference.plugins.module_utils._ranks import LABEL
from ansible_collections.sparkstack.inference.plugins.plugin_utils import _container

COLLECTIVE = LABEL + "collective"
"""The label of a proof's container. It has none that a rank's container is known by, so that nobody takes it for one."""
# What a rank has and the proof does not need: its model and its caches, its command, and its life after an end.
_LEFT_OUT = ("entrypoint", "command", "volumes", "restart_policy")
_PLAIN = {
    "network_mode": "NetworkMode",
    "ipc_mode": "IpcMode",
    "cap_drop": "CapDrop",
    "capabilities": "CapAdd",
    "security_opts": "SecurityOpt",
    "init": "Init",
}
_SIZES = {"shm_size": "ShmSize", "memory": "Memory", "memory_swap": "MemorySwap"}


def name(deployment: str, rank: int) -> str:
    """The name of a proof's container."""
    return f"{deployment}-collective{rank}"


def leftover(container: str | None, deployment: str) -> bool:
    """Whether a container is a proof's of this deployment: of a run that was cut off, it ends by itself, and the next proof removes it."""
    return re.fullmatch(re.escape(deployment) + r"-collective[0-9]+", container or "") is not None


def body(request: _container.Request) -> dict[str, t.Any]:
    """What Docker is asked for, less the command: the options of the rank's own container in the words of Docker's API.

    :raises ValueError: for an option that a rank's container has and this does not know: the proof must not run under other conditions.
    Source: Docker Engine API, ContainerCreate.
    """
    options = {key: value for key, value in _container.options(request).items() if key not in _LEFT_OUT}
    host: dict[str, t.Any] = {"AutoRemove": True}
    made: dict[str, t.Any] = {
        "Image": options.pop("image"),
        # Secrets are not among them: no collective needs one.
        "Env": [f"{key}={value}" for key, value in sorted(options.pop("env").items())],
        "WorkingDir": options.pop("working_dir"),
        "Labels": {COLLECTIVE: request.deployment, LABEL + "rank": str(request.rank.rank)},
        "HostConfig": host,
    }
    host["LogConfig"] = {"Type": options.pop("log_driver"), "Config": options.pop("log_options")}
    for key, value in options.items():
        if key in _PLAIN:
            host[_PLAIN[key]] = value
        elif key in _SIZES:
            host[_SIZES[key]] = human_to_bytes(value)
        elif key == "ulimits":
            host["Ulimits"] = [_ulimit(entry) for entry in value]
        elif key == "device_requests":
            host["DeviceRequests"] = [{"Count": entry["count"], "Capabilities": entry["capabilities"]} for entry in value]
        elif key == "devices":
            host["Devices"] = [_device(entry) for entry in value]
        else:
            raise ValueError(f"a rank's container has the option {key}, which the collective proof does not know")
    return made


def _ulimit(entry: str) -> dict[str, t.Any]:
    which, soft, hard = entry.split(":")
    return {"Name": which, "Soft": int(soft), "Hard": int(hard)}


def _device(entry: str) -> dict[str, str]:
    host, inside = entry.split(":")
    return {"PathOnHost": host, "PathInContainer": inside, "CgroupPermissions": "rwm"}


def parameters(request: _container.Request, word: str, timeout: float, join_timeout: float) -> dict[str, t.Any]:
    """What the program is given; see C(_collective_program)."""
    rank = request.rank
    return {
        "rank": rank.rank,
        "nodes": rank.ranks,
        "local": max(1, rank.tensor_parallel_size // rank.ranks) if request.gpus else 1,
        "head": rank.head_address,
        "port": rank.rendezvous_port,
        "gpus": request.gpus,
        "word": word,
        "timeout": timeout,
        "join": join_timeout,
    }


def expectations(request: _container.Request, transport: str) -> dict[str, t.Any]:
    """What a rank's environment promises: C(rdma), C(named) (it says so itself, or the user does: not only are there devices, which every Spark has,
    also one whose fabric is another network), C(hcas) (the names that C(NCCL_IB_HCA) holds, [] where it leaves the choice) and C(interfaces).

    :param transport: C(auto), or what the user says: C(rdma), C(socket), C(any).
    """
    environment = request.environment
    off = environment.get("NCCL_IB_DISABLE") == "1" or environment.get("NCCL_NET") == "Socket"
    listed = environment.get("NCCL_IB_HCA", "")
    # "=rocep1s0f0:1,roceP2p1s0f0:1" are these, "^mlx5_2" all but these.
    hcas = [] if listed.startswith("^") else [entry.partition(":")[0] for entry in listed.lstrip("=").split(",") if entry]
    variable = "NCCL_SOCKET_IFNAME" if request.gpus else "GLOO_SOCKET_IFNAME"
    names = environment.get(variable, "")
    interfaces = [] if names.startswith("^") else [entry for entry in names.lstrip("=").split(",") if entry]
    rdma = transport == "rdma" or (transport == "auto" and request.gpus and request.infiniband and not off)
    named = transport == "rdma" or bool(listed) or environment.get("NCCL_NET") == "IB"
    return {"rdma": rdma, "named": rdma and named, "hcas": hcas if rdma else [], "interfaces": interfaces}


def netdevs(request: _container.Request) -> list[str]:
    """The interfaces and RDMA devices that a rank's environment names: when one of them has lost its link since, the proof is stale."""
    named = [request.environment.get(variable, "") for variable in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "NCCL_IB_HCA")]
    # "=rocep1s0f0:1": the port's number is not a part of the name.
    return sorted({entry.partition(":")[0] for value in named for entry in re.split(r"[,=^]", value) if entry})


def content(request: _container.Request) -> dict[str, t.Any]:
    """What of a rank's plan a proof holds for."""
    rank = request.rank
    where = {"address": rank.address, "head": rank.head_address, "port": rank.rendezvous_port, "ranks": rank.ranks, "size": rank.tensor_parallel_size}
    return {"body": body(request), **where}


def key(members: t.Sequence[t.Mapping[str, t.Any]]) -> str:
    """The key of a proof: other content of the image, another environment, group, address, link or boot of any rank gives another one.

    :param members: of each rank, in order, what it was to run (:func:`content`) and what its node told.
    """
    return hashlib.sha256(json.dumps(list(members), sort_keys=True).encode()).hexdigest()[:32]
