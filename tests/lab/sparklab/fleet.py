# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""All nodes of one lab together: what up, down, status, set and the rest of the words do."""

from __future__ import annotations

import os
import shutil
import time
import typing as t
from pathlib import Path

from . import base, checks, hinder, network, standins
from .cgroups import Cgroups
from .inventory import write_access
from .node import Node, set_carriers
from .state import OWNER, RECIPE, Settings, State, fabric_address, management_address, number, owner
from .system import LabError, locked, mounts_below, parse_size, write

MEMORY = "6G"


def say(text: str) -> None:
    """One line for the user, at once."""
    print(text, flush=True)


class Lab:
    """All nodes of one state folder."""

    def __init__(self, state: State, cgroups: Cgroups) -> None:
        self.state, self.cgroups = state, cgroups

    def nodes(self) -> list[Node]:
        """The nodes that the lab should have."""
        return [Node(self.state, name, self.cgroups) for name in self.state.names()]

    def node(self, name: str) -> Node:
        """One of them."""
        number(name)
        if name not in self.state.names():
            raise LabError(f"There is no {name}; the lab has {self.state.count} nodes (more with 'lab up --nodes N').")
        return Node(self.state, name, self.cgroups)

    def mine(self) -> None:
        """Only one lab can be up on a machine: names and addresses are the same for all."""
        other = owner()
        if other and other != self.state.folder and other.is_dir():
            raise LabError(f"The lab of {other} is up on this machine; take it down first: SPARKSTACK_LAB={other} lab down.")

    def build(self) -> Path:
        """Install what is missing and make base and layer."""
        checks.require_root()
        if packages := checks.install_packages():
            say(f"Installed {', '.join(packages)}.")
        plan = base.this_recipe(os.environ.get("SPARKSTACK_LAB_MIRROR", ""))
        target = base.base_folder(self.state, plan)
        checks.require_machine(self.state, target.exists())
        with locked(self.state.folder / "build"):
            base.build_base(self.state, plan, say)
            layer = base.build_layer(self.state)
            if all(node.power() == "off" for node in self.nodes()):
                base.prune(self.state, (target, layer))
        return target

    def up(self, count: int | None, memory: str | None) -> None:
        """Make all nodes run and answer."""
        started = time.monotonic()
        checks.require_root()
        self.mine()
        limits = {f"spark{i}": self.limit(f"spark{i}", memory) for i in range(1, (count or self.state.count) + 1)}
        checks.require_memory({name: parse_size(size) for name, size in limits.items()})
        target = self.build()
        if count:
            for extra in self.leftovers(count):
                extra.stop()
            self.state.count = count
        nodes = self.nodes()
        for node in nodes:
            self.prepare(node, target, limits[node.name])
        write_access(self.state, RECIPE)
        write(OWNER, f"{self.state.folder}\n")
        network.ensure_panel()
        for node in nodes:
            if node.power() == "frozen" and node.keeper():
                self.cgroups.freeze(node.name, False)
                say(f"{node.name} was frozen and is thawed.")
            node.start()
        for node in nodes:
            network.set_management(node.name, True)
            node.wait()
            faults = describe(node.settings)
            say(f"{node.name} is up at {management_address(node.name)}{', ' + faults if faults else ''}")
        say(f"Lab of {len(nodes)} nodes ready in {time.monotonic() - started:.1f} s; inventory: {self.state.inventory}")

    def start(self, node: Node) -> None:
        """Switch one node on and wait for it."""
        if not node.settings.base:
            raise LabError("The lab was never up; begin with 'lab up'.")
        write(OWNER, f"{self.state.folder}\n")
        network.ensure_panel()
        node.start()
        node.wait()

    def limit(self, name: str, wanted: str | None) -> str:
        """The memory limit for a node: as asked for, as before, by the environment, or 6G."""
        return wanted or self.state.settings(name).memory or os.environ.get("SPARKSTACK_LAB_MEMORY") or MEMORY

    def prepare(self, node: Node, target: Path, memory: str) -> None:
        """Settings of a node before it is switched on; a disk made on another base is of no use any more."""
        settings = node.settings
        if settings.base not in ("", target.name) and node.power() == "off":
            say(f"{node.name} is made factory-new, because the base system has changed.")
            node.erase()
            settings = Settings()
        if settings.memory not in ("", memory) and node.power() != "off":
            self.cgroups.set_memory(node.name, parse_size(memory))
        settings.base, settings.memory = settings.base or target.name, memory
        self.state.save(node.name, settings)

    def leftovers(self, count: int) -> list[Node]:
        """Nodes beyond the first 'count' of which anything is there, by control group, namespace or folder."""
        seen = set(self.cgroups.names()) | network.plugged() | {p.name for p in (self.state.folder / "nodes").glob("*")}
        return [Node(self.state, name, self.cgroups) for name in sorted(seen) if name.startswith("spark") and number(name) > count]

    def down(self) -> None:
        """Switch everything off and leave nothing but the state folder; also after a crash."""
        checks.require_root()
        self.mine()
        ends = [(node, node.ask_to_stop()) for node in self.leftovers(0)]  # all at once
        for node, end in ends:
            node.stop(end)
        self.cgroups.kill("keepers")
        self.cgroups.remove("keepers")
        network.remove_panel()
        self.cgroups.remove("")
        OWNER.unlink(missing_ok=True)

    def reset(self, name: str | None) -> None:
        """Make one node or all factory-new; those that were on come back."""
        target = self.build()
        for node in [self.node(name)] if name else self.nodes():
            was_on, memory = node.power() != "off", node.settings.memory
            node.erase()
            self.state.save(node.name, Settings(memory=memory or MEMORY, base=target.name))
            if was_on:
                node.start()
                node.wait()
        set_carriers(self.nodes())

    def purge(self) -> None:
        """Remove the lab from this machine: nodes, base, keys. Files of others in the state folder stay."""
        self.down()
        for path in ("base", "layer", "nodes", "host_keys"):
            if left := mounts_below(self.state.folder / path):
                raise LabError(f"{left[0]} is still mounted; unmount it, then purge again.")
            shutil.rmtree(self.state.folder / path, ignore_errors=True)
        for path in ("key", "key.pub", "known_hosts", "inventory.ini", "lab.json", "cables", "build", "lock"):
            (self.state.folder / path).unlink(missing_ok=True)
        if self.state.folder.is_dir() and not any(self.state.folder.iterdir()):
            self.state.folder.rmdir()

    def status(self) -> list[dict[str, t.Any]]:
        """What is there now."""
        rows = []
        for node in self.nodes():
            power, settings = node.power(), node.settings
            try:
                limit, used, kills = self.cgroups.memory(node.name)
            except FileNotFoundError:  # off, or not yet on
                limit, used, kills = 0, 0, 0
            rows.append(
                {
                    "name": node.name,
                    "power": power,
                    "ready": power == "on" and node.answers(),
                    "boot_id": node.boot_id(),
                    "address": management_address(node.name),
                    "fabric_address": fabric_address(node.name),
                    "memory_limit": limit or parse_size(settings.memory or MEMORY),
                    "memory_used": used,
                    "oom_kills": kills,
                    "cut": settings.cut,
                    "loss": settings.loss,
                    "rate": settings.rate,
                    "clock": settings.clock,
                    "disk": settings.disk,
                    "values": settings.values,
                }
            )
        return rows

    def change(self, name: str, **changes: t.Any) -> Node:
        """Keep new settings of a node."""
        node = self.node(name)
        settings = node.settings
        for key, value in changes.items():
            setattr(settings, key, value)
        self.state.save(name, settings)
        return node

    def cable(self, name: str, **changes: t.Any) -> None:
        """Change a node's fabric cable, now and for its next boots."""
        node = self.change(name, **changes)
        if name in network.plugged():
            set_carriers(self.nodes())
            network.shape(name, node.settings)

    def hinder(self, name: str, **changes: t.Any) -> None:
        """Change a node's clock or disk, now and for its next boots."""
        if "disk" in changes:
            hinder.disk_of(self.state.folder)  # where that can't be, it is told before it is kept
        node = self.change(name, **changes)
        if node.power() == "on":
            hinder.lay(node.root, node.lab, node.settings)
            if "disk" in changes:
                self.cgroups.set_read_speed(name, hinder.disk_of(node.lab), hinder.bytes_per_second(node.settings.disk))

    def set_values(self, name: str, pairs: list[str]) -> None:
        """Change stand-in values, now and for the node's next boots."""
        node = self.node(name)
        merged = node.settings.values | standins.parse_pairs(pairs)
        values = {key: value for key, value in merged.items() if value}
        standins.bound_files(values, False, node.lab / "files")  # a bad value is told before it is kept
        self.change(name, values=values)
        if name in network.plugged():
            set_carriers(self.nodes())
            if node.power() == "on":
                node.inside("/usr/local/sbin/lab-apply")


def describe(settings: Settings) -> str:
    """The faults that are set, in words."""
    faults = ["fabric cut"] * settings.cut
    faults += [f"{settings.loss} % loss"] * bool(settings.loss) + [f"rate {settings.rate}"] * bool(settings.rate)
    faults += [f"clock {settings.clock:+d} s"] * bool(settings.clock) + [f"disk {settings.disk}/s"] * bool(settings.disk)
    return ", ".join(faults)
