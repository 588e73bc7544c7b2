# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Nodes as the modules tell of them, for the preflight's tests: the fabric of real trees, and all that is well until a test changes it."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import pathlib
import tempfile
import typing as t

from fabric_trees import LAN, P0, T0, Nic, at, build

from ansible_collections.sparkstack.inference.plugins.module_utils._fabric_env import fabric_picture
from ansible_collections.sparkstack.inference.plugins.plugin_utils import _preflight
from ansible_collections.sparkstack.inference.plugins.plugin_utils._preflight_words import Wanted

Data = dict[str, t.Any]
RAIL, TWIN = P0.name, T0.name
LAUNCH: Data = {
    "head": "spark1",
    "deployment": "qwen",
    "image": "vllm:1",
    "model_bytes": 119 << 30,
    "ports": [
        {"port": 29501, "use": "rendezvous", "host": "spark1"},
        {"port": 8000, "use": "api", "host": "spark1"},
        {"port": 47653, "use": "nccl"},
    ],
}


def spark(number: int, *ports: Nic) -> list[Nic]:
    """The interfaces of a node: port 0 and its twin, in two subnets, unless others are given."""
    nics = ports or (at(P0, f"192.168.200.{10 + number}/24"), at(T0, f"192.168.201.{10 + number}/24"))
    return [at(LAN, f"10.0.0.{10 + number}/24"), *(dataclasses.replace(nic, mac=f"4c:bb:47:00:{index:02x}:{number:02x}") for index, nic in enumerate(nics))]


_FABRICS: dict[str, Data] = {}


def fabric(nics: t.Sequence[Nic], cidr: str = "192.168.200.0/24", **more: t.Any) -> Data:
    """What fabric_facts tells of a node with these interfaces. The trees are read once each."""
    key = repr((nics, cidr, more))
    if key not in _FABRICS:
        with tempfile.TemporaryDirectory() as folder:
            _FABRICS[key] = fabric_picture(folder, build(pathlib.Path(folder), nics), cidr, **more)
    return copy.deepcopy(_FABRICS[key])


def preflight(number: int) -> Data:
    """What preflight_facts tells of a good Spark."""
    return {
        "kernel": {"release": "6.17.0-1032-nvidia", "kho_off": False, "cma_overcounted": False},
        "os": "Ubuntu 24.04.3 LTS",
        "arch": "arm64",
        "driver": "580.159.04",
        "rdma": [{"hca": "rocep1s0f0", "driver": "mlx5_core", "driver_version": None, "firmware": "28.45.4028", "board": "NVD0000000087"}],
        "infiniband": ["rdma_cm", "uverbs0", "uverbs1"],
        "memlock": -1,
        "docker": {
            "reachable": True, "error": None, "version": "28.5.1", "storage": "overlay2", "containerd": False, "root": "/var/lib/docker",
            "live_restore": False, "runtimes": ["nvidia", "runc"], "cgroup_driver": "systemd", "rootless": False,
        },
        "image": {
            "tag": "vllm:1", "id": "sha256:1", "identity": "sha256:77ab01c2d3e4f5", "architecture": "arm64",
            "size_bytes": 21 << 30, "layers": 31, "nccl": "2.29.3"},
        "nccl": None,
        "disk": {
            "model": {"path": "/srv/models/m", "exists": True, "free_bytes": 500 << 30, "total_bytes": 4 << 40},
            "docker": {"path": "/var/lib/docker", "exists": True, "free_bytes": 400 << 30, "total_bytes": 4 << 40},
        },
        "hostname": f"spark{number}",
        "hosts": {},
        "listeners": [],
        "firewall": {"tool": None, "active": False, "policy": None},
        "clock": {"synchronised": True, "by": "systemd-timesyncd"},
    }  # fmt: skip


class Scene:
    """All nodes; a test changes what it wants to see told."""

    def __init__(self, count: int = 2) -> None:
        self.nodes: dict[str, Data] = {
            f"spark{number}": {
                "fabric": fabric(spark(number)),
                "preflight": preflight(number),
                "gpu_memory": {"gpus": [{"name": "NVIDIA GB10", "driver_version": "580.159.04"}], "problems": []},
            }
            for number in range(1, count + 1)
        }
        self.probe()

    def probe(self) -> None:
        """Measure as if all were well: each rail against the others' in its subnet."""
        for name, node in self.nodes.items():
            pairs = [
                record(one, other, peer)
                for peer, theirs in self.nodes.items()
                if peer != name
                for one, other in itertools.product(_rails(node), _rails(theirs))
                if one["netdev"] == other["netdev"]
            ]
            node["probe"] = {"listening": {"bound": [29501, 8000, 47653], "in_use": [], "unbound": []}, "pairs": pairs}

    def replace(self, node: str, *ports: Nic, **more: t.Any) -> None:
        """Give a node other interfaces, and measure again."""
        self.nodes[node]["fabric"] = fabric(spark(int(node[-1]), *ports), **more)
        self.probe()

    def rail(self, node: str, netdev: str = RAIL) -> Data:
        """A rail of a node's fabric."""
        return t.cast("Data", next(rail for rail in self.nodes[node]["fabric"]["rails"] if rail["netdev"] == netdev))

    def told(self, src: str, dst: str, netdev: str | None = None) -> list[Data]:
        """What one node measured of another, on all rails or one."""
        return [pair for pair in self.nodes[src]["probe"]["pairs"] if pair["peer"] == dst and netdev in (None, pair["netdev"])]

    def lose(self, src: str, dst: str, share: float = 1.0, netdev: str | None = None) -> None:
        """This share of what one sends to the other is lost; of a whole loss nothing else is known either."""
        for pair in self.told(src, dst, netdev):
            pair.update(received=round(pair["sent"] * (1 - share)), loss_share=share)
            if share == 1:
                pair.update(answered=0, rtt_ms=None, path_mtu=None, clock_offset_s=None)
        # TCP and ARP take both directions.
        for pair in [*self.told(src, dst, netdev), *self.told(dst, src, netdev)] if share == 1 else []:
            pair.update(control="timeout", tcp=dict.fromkeys(pair["tcp"], "timeout"), mb_s=None, macs=[], mac_seen=None)

    def judge(self, *skip: str, **wanted: t.Any) -> Data:
        """The report."""
        return _preflight.judge(self.nodes, Wanted.of({**LAUNCH, **wanted}), skip, now=1795910400)


def _rails(node: Data) -> list[Data]:
    return [rail for rail in node["fabric"]["rails"] if rail["used"] and rail["address"]]


def record(one: Data, other: Data, peer: str) -> Data:
    """What fabric_probe tells of a good pair."""
    return {
        "peer": peer, "netdev": one["netdev"], "address": one["address"], "peer_netdev": other["netdev"], "peer_address": other["address"], "error": None,
        "sent": 200, "received": 200, "answered": 200, "overrun": 0, "loss_share": 0.0, "rtt_ms": 0.061, "echo_ms": None, "path_mtu": 9000,
        "mac_seen": other["mac"], "mac_told": other["mac"], "macs": [other["mac"]], "arp": "complete", "arrives_by": [], "control": "ok",
        "tcp": {"29501": "ok", "8000": "ok", "47653": "ok"}, "clock_offset_s": 0.00004, "clock_error_s": 0.00003, "send_error": None,
        "mb_s": 11576.3, "by": "ib_write_bw", "rdma_error": None,
    }  # fmt: skip


def found(report: Data, *results: str) -> list[tuple[str, str, str | None, str | None, str | None]]:
    """What was found with these results, else with any but ready: item, result, node, peer, rail."""
    wanted = results or ("slow", "blocked")
    return [(one["item"], one["result"], one["node"], one["peer"], one["rail"]) for one in report["checks"] if one["result"] in wanted]


def words(report: Data, item: str) -> str:
    """All that is said of an item."""
    return " ".join(f"{one['message']} {one['remedy']}".strip() for one in report["checks"] if one["item"] == item)
