# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lab's folder on disk and what it remembers: how many nodes, and each node's settings."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import typing as t
from pathlib import Path

from .system import LabError, write

OWNER = Path("/run/sparkstack-lab")  # which state folder's lab is up; gone after a reboot, like the lab
HERE = Path(__file__).resolve().parent.parent
RECIPE = HERE / "recipes" / "tiny-qwen3-moe.yml"
MAX_NODES = 99


@dataclasses.dataclass
class Settings:
    """What a test has set for one node; kept over reboots, forgotten by a reset."""

    memory: str = ""
    values: dict[str, str] = dataclasses.field(default_factory=dict)
    cut: bool = False
    loss: int = 0
    rate: str = ""
    clock: int = 0
    disk: str = ""
    base: str = ""


class State:
    """The state folder and the files in it."""

    def __init__(self, folder: Path) -> None:
        if re.search(r"\s", str(folder)):
            raise LabError(f"The state folder '{folder}' has a blank in its name, which ssh options cannot carry; set SPARKSTACK_LAB to another one.")
        self.folder = folder
        self.key = folder / "key"
        self.known_hosts = folder / "known_hosts"
        self.inventory = folder / "inventory.ini"
        self.lock = folder / "lock"

    @classmethod
    def from_environment(cls) -> State:
        """The folder of SPARKSTACK_LAB, or ~/.cache/sparkstack-lab."""
        return cls(Path(os.environ.get("SPARKSTACK_LAB") or Path.home() / ".cache" / "sparkstack-lab").absolute())

    def make(self) -> None:
        """Make the folder."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise LabError(f"The state folder {self.folder} cannot be made ({error.strerror}); set SPARKSTACK_LAB to another one.") from None

    def _read(self, path: Path) -> dict[str, t.Any]:
        try:
            data = json.loads(path.read_text())
        except FileNotFoundError:
            return {}
        except ValueError:
            raise LabError(f"{path} is damaged; remove it (its settings go back to their defaults).") from None
        return data if isinstance(data, dict) else {}

    @property
    def count(self) -> int:
        """How many nodes the lab has (default 2)."""
        return int(self._read(self.folder / "lab.json").get("nodes", 2))

    @count.setter
    def count(self, nodes: int) -> None:
        write(self.folder / "lab.json", json.dumps({"nodes": nodes}) + "\n")

    def names(self) -> list[str]:
        """spark1 to sparkN."""
        return [f"spark{number}" for number in range(1, self.count + 1)]

    def node_folder(self, name: str) -> Path:
        """Where a node's disk, log and settings are."""
        return self.folder / "nodes" / name

    def settings(self, name: str) -> Settings:
        """A node's settings; keys that an older version wrote and nobody knows any more are dropped."""
        known = {field.name for field in dataclasses.fields(Settings)}
        data = self._read(self.node_folder(name) / "settings.json")
        return Settings(**{key: value for key, value in data.items() if key in known})

    def save(self, name: str, settings: Settings) -> None:
        """Keep a node's settings."""
        write(self.node_folder(name) / "settings.json", json.dumps(dataclasses.asdict(settings), indent=1) + "\n")


def number(name: str) -> int:
    """3 of 'spark3'."""
    match = re.fullmatch(r"spark([1-9][0-9]?)", name)
    if not match:
        raise LabError(f"'{name}' is no node of the lab; nodes are called spark1, spark2, ...")
    return int(match.group(1))


def management_address(name: str) -> str:
    """10.77.0.11 of spark1."""
    return f"10.77.0.{10 + number(name)}"


def fabric_address(name: str) -> str:
    """192.168.200.11 of spark1."""
    return f"192.168.200.{10 + number(name)}"


def owner() -> Path | None:
    """The state folder whose lab is up on this machine, or None."""
    try:
        return Path(OWNER.read_text().strip())
    except FileNotFoundError:
        return None
