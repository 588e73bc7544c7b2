# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is private to the collection: it can change at any time.

"""The words of a preflight: an item, what is known of the nodes, what is wanted of them. Pure."""

from __future__ import annotations

import ipaddress
import typing as t
from dataclasses import dataclass, field

from ansible_collections.sparkstack.inference.plugins.module_utils._words import listed

Data = dict[str, t.Any]
READY, SLOW, BLOCKED = RESULTS = ("ready", "slow", "blocked")
"""What an item can be, better first. An item that is ready may have a message, too: a note, or what was measured."""
ITEMS = (
    *("address", "link", "subnet", "duplicate_address", "twins", "arp", "reach", "loss", "path_mtu", "firewall", "clock", "hosts_file", "ports"),
    *("memlock", "infiniband", "kernel", "driver", "firmware", "docker", "store", "image", "nccl", "disk", "speed", "bandwidth", "rdma", "collective"),
)
"""All items, in the order in which they are shown: what comes first explains what comes after it."""


class WantedError(Exception):
    """What is wanted makes no sense; the text is a sentence that says what to do."""


@dataclass(frozen=True)
class Item:
    """What was found of one item, on one node or between two."""

    item: str
    result: str
    text: str
    """A part of a sentence without its subject, which node, peer and rail are; ends without a dot."""
    remedy: str = ""
    node: str | None = None
    peer: str | None = None
    rail: str | None = None

    @property
    def place(self) -> str:
        """Where it was found: "spark1", "spark1, enp1s0f0np0", "spark1 to spark2, enp1s0f0np0"; nothing for what is well on all nodes."""
        where = f"{self.node} to {self.peer}" if self.peer else self.node or ("all nodes" if self.result != READY else "")
        return f"{where}, {self.rail}" if self.rail and where else where

    @property
    def message(self) -> str:
        """One sentence, or the bare words of what is well everywhere."""
        return f"{self.place}: {self.text}." if self.place else self.text

    def data(self) -> Data:
        """As it is returned."""
        keys = ("item", "node", "peer", "rail", "result", "message", "remedy")
        return {key: getattr(self, key) for key in keys}


@dataclass
class Checked:
    """What came of one item over all nodes: findings, and what is said of it where there is none. Nothing of both: it was not checked."""

    findings: list[Item] = field(default_factory=list)
    detail: str | None = None


@dataclass(frozen=True)
class Port:
    """A TCP port that ranks or clients will use, and where; C(host) is None for all nodes."""

    port: int
    use: str
    host: str | None = None


@dataclass(frozen=True)
class Wanted:
    """What the nodes are checked for. Speeds in Mbit/s, shares of 1."""

    head: str = ""
    deployment: str = ""
    image: str = ""
    brings_image: bool = False
    """The run that this is a part of brings the head's image to every node afterwards."""
    model_bytes: int = 0
    ports: tuple[Port, ...] = ()
    transport: str = "auto"
    gpus: bool | None = None
    """Whether ranks get GPUs; None: where there are any."""
    expected_speed_mbps: int = 0
    min_share: float = 0.4
    block_share: float = 0.25
    clock_seconds: float = 2.0
    environment: t.Mapping[str, t.Any] = field(default_factory=dict)
    """Variables of the recipe, which all ranks get."""

    @property
    def uses_rdma(self) -> bool:
        """Whether ranks go over RDMA where there is any: without GPUs they meet over gloo, which knows TCP only."""
        return self.transport == "rdma" or (self.transport == "auto" and self.gpus is not False)

    @classmethod
    def of(cls, data: t.Mapping[str, t.Any]) -> Wanted:
        """Out of the option C(wanted); :raises WantedError: for one that makes no sense."""
        given = {key: value for key, value in data.items() if value not in (None, "")}
        given["gpus"] = {"all": True, "none": False}.get(str(given.get("gpus")))
        more = [{"port": port} for port in given.pop("more_ports", [])]
        given["ports"] = tuple(
            Port(int(entry["port"]), entry.get("use") or "other", entry.get("host") or None) for entry in [*(data.get("ports") or []), *more]
        )
        found = cls(**given)
        if not 0 <= found.block_share <= found.min_share <= 1:
            raise WantedError(
                f"min_share is {found.min_share:g} and block_share {found.block_share:g}: give shares of the link's speed from 0 to 1, block_share the smaller."
            )
        if found.clock_seconds <= 0:
            raise WantedError(f"clock_seconds is {found.clock_seconds:g}: give the seconds by which clocks may differ.")
        return found


@dataclass(frozen=True)
class Node:
    """What the modules told of one node; empty where it could not be read."""

    name: str
    fabric: t.Mapping[str, t.Any] = field(default_factory=dict)
    preflight: t.Mapping[str, t.Any] = field(default_factory=dict)
    gpu_memory: t.Mapping[str, t.Any] = field(default_factory=dict)
    probe: t.Mapping[str, t.Any] = field(default_factory=dict)
    collective: t.Mapping[str, t.Any] = field(default_factory=dict)

    @property
    def read(self) -> bool:
        """Whether it was reached."""
        return bool(self.preflight)

    @property
    def codes(self) -> list[t.Mapping[str, str]]:
        """What fabric_facts found wrong."""
        return list(self.fabric.get("problems") or [])

    @property
    def rails(self) -> list[t.Mapping[str, t.Any]]:
        """The rails that traffic goes over. The one that gives the node its address comes first."""
        found = [rail for rail in self.fabric.get("rails") or [] if rail.get("address") and rail.get("used", rail.get("state") != "down")]
        return sorted(found, key=lambda rail: rail.get("netdev") != self.fabric.get("netdev"))

    @property
    def addresses(self) -> set[str]:
        """All its IPv4 addresses."""
        found = [address for interface in self.fabric.get("interfaces") or [] for address in interface.get("addresses") or []]
        return {str(address).partition("/")[0] for address in found} | {rail["address"] for rail in self.fabric.get("rails") or [] if rail.get("address")}

    @property
    def gpus(self) -> list[t.Mapping[str, t.Any]]:
        """Its GPUs."""
        return list(self.gpu_memory.get("gpus") or [])

    @property
    def docker(self) -> t.Mapping[str, t.Any]:
        """What its Docker daemon is."""
        return self.preflight.get("docker") or {}

    @property
    def image(self) -> t.Mapping[str, t.Any]:
        """The image that is wanted, as this node has it, or nothing."""
        return self.preflight.get("image") or {}


def network(rail: t.Mapping[str, t.Any]) -> ipaddress.IPv4Network:
    """The subnet of a rail with an address."""
    return ipaddress.IPv4Network(f"{rail['address']}/{rail.get('prefix') or 32}", strict=False)


def on(names: t.Sequence[str], count: int) -> str:
    """ "on all nodes", or which ones."""
    return "on all nodes" if len(names) == count else f"on {listed(names)}"


def gbit(mbps: float) -> str:
    """A speed for people, from Mbit/s."""
    return f"{mbps / 1000:.3g} Gb/s" if mbps >= 100 else f"{mbps:.3g} Mb/s"


def worst(results: t.Iterable[str]) -> str:
    """The worst of these; ready when there is none."""
    return max(results, key=RESULTS.index, default=READY)
