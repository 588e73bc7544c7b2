# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The role over several nodes, played by Ansible: each node's facts come of a tree of sysfs, and the group's comparison is the real one."""

from __future__ import annotations

import json
import os
import pathlib
import re
import subprocess
import sys
import typing as t

import pytest
import yaml
from fabric_trees import P0, P1, RING, RING_CIDR, T0, T1, build, pair

ROOT = pathlib.Path(__file__).resolve().parents[3]
GATHER = """
import json, os
from ansible.plugins.action import ActionBase
from ansible_collections.sparkstack.inference.plugins.module_utils._fabric_env import fabric_picture


class ActionModule(ActionBase):
    def run(self, tmp=None, task_vars=None):
        host, args = task_vars["inventory_hostname"], self._task.args
        root = os.path.join(os.environ["TREES"], host)
        with open(root + ".json") as stream, open(root + ".calls", "a") as log:
            log.write(json.dumps(args, default=str) + "\\n")
            more = (args["control_address"], bool(args.get("subnet_aware")), args.get("without") or [])
            fabric = fabric_picture(root, stream.read(), args["fabric_cidr"], args["fabric_address"], 0, *more)
        return {"changed": False, "ansible_facts": {"fabric": fabric}}
"""
COMPARE = """
import json, os
from ansible.plugins.action import ActionBase


class ActionModule(ActionBase):
    def run(self, tmp=None, task_vars=None):
        with open(os.path.join(os.environ["TREES"], "compared.json")) as stream:
            return {"changed": False, **json.load(stream)}
"""

KEEP = """
import json, os
from ansible.plugins.action import ActionBase


class ActionModule(ActionBase):
    def run(self, tmp=None, task_vars=None):
        with open(os.path.join(os.environ["TREES"], task_vars["inventory_hostname"] + ".env"), "w") as stream:
            json.dump(self._task.args["environment"], stream)
        return {"changed": False}
"""


class Role:
    """The real role in a collection of its own, whose two modules answer from a folder."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        here = folder / "ansible_collections" / "sparkstack" / "inference"
        (here / "plugins" / "action").mkdir(parents=True)
        (here / "roles").mkdir()
        for name in ("plugin_utils", "module_utils", "filter", "lookup"):
            (here / "plugins" / name).symlink_to(ROOT / "plugins" / name)
        (here / "roles" / "nccl_env").symlink_to(ROOT / "roles" / "nccl_env")
        (here / "plugins" / "action" / "fabric_facts.py").write_text(GATHER)
        (here / "plugins" / "action" / "fabric_environment_info.py").write_text(COMPARE)
        (here / "plugins" / "action" / "keep.py").write_text(KEEP)

    def play(self, nodes: t.Mapping[str, t.Any], *options: str, **variables: t.Any) -> tuple[int, str]:
        """How a run of the role ended, and what it wrote."""
        trees = self.folder / "trees"
        trees.mkdir()
        for host, nics in nodes.items():
            (trees / f"{host}.json").write_text(build(trees / host, nics))
        (trees / "compared.json").write_text(json.dumps(variables.pop("compared", {})))
        (self.folder / "hosts.yml").write_text(yaml.safe_dump({"all": {"hosts": dict.fromkeys(nodes), "vars": {"ansible_become": False}}}))
        tasks = [
            {"ansible.builtin.include_role": {"name": "sparkstack.inference.nccl_env"}},
            {"sparkstack.inference.keep": {"environment": "{{ nccl_env_environment }}"}},
        ]
        (self.folder / "play.yml").write_text(yaml.safe_dump([{"hosts": "all", "gather_facts": False, "vars": variables, "tasks": tasks}]))
        words = [sys.executable, "-m", "ansible", "playbook", "-i", "hosts.yml", "-c", "local", "play.yml", *options]
        environment = {**os.environ, "TREES": str(trees), "ANSIBLE_COLLECTIONS_PATH": str(self.folder), "ANSIBLE_LOCALHOST_WARNING": "false"}
        done = subprocess.run(words, cwd=self.folder, env=environment, text=True, capture_output=True, check=False)
        return done.returncode, done.stdout + done.stderr

    def environment(self, host: str) -> dict[str, str]:
        """What the role has set for a node."""
        return t.cast("dict[str, str]", json.loads((self.folder / "trees" / f"{host}.env").read_text()))

    def calls(self, host: str) -> int:
        """How often a node's facts were gathered."""
        return len((self.folder / "trees" / f"{host}.calls").read_text().splitlines())


@pytest.fixture
def role(tmp_path: pathlib.Path) -> Role:
    return Role(tmp_path)


def test_a_ring_is_gathered_again_with_the_network_that_holds_all(role: Role) -> None:
    code, told = role.play(RING, nccl_env_fabric_cidr=RING_CIDR)
    assert code == 0, told
    assert [role.calls(host) for host in RING] == [2, 2, 2]
    assert [role.environment(host)["VLLM_HOST_IP"] for host in RING] == ["10.0.0.11", "10.0.0.12", "10.0.0.13"]
    assert {role.environment(host)["NCCL_IB_SUBNET_AWARE_ROUTING"] for host in RING} == {"1"}
    assert told.count("NCCL joins the nodes' RDMA devices in the order of their PCI addresses") == 1


def test_a_pair_is_gathered_once_and_only_shown_what_would_change(role: Role) -> None:
    differences = [
        {"where": "tiny-rank0", "kind": "container", "name": "NCCL_IB_HCA", "was": "rocep1s0f1", "wanted": "rocep1s0f0"},
        {"where": "tiny-rank0", "kind": "container", "name": "NCCL_CROSS_NIC", "was": None, "wanted": "0"},
    ]
    compared = {"differences": differences, "findings": [], "notes": ["the image's own NCCL_DEBUG=WARN counts"], "problem": None}
    nodes = {"a": pair([P0, T0], 11), "b": pair([P1, T1], 12)}
    code, told = role.play(nodes, "--diff", nccl_env_extra={"NCCL_DEBUG": "INFO", "NCCL_NET": None}, compared=compared)
    assert code == 0, told
    assert [role.calls(host) for host in nodes] == [1, 1]
    assert [role.environment(host)["GLOO_SOCKET_IFNAME"] for host in nodes] == ["enp1s0f0np0", "enp1s0f1np1"]
    assert [role.environment("a").get(name) for name in ("NCCL_DEBUG", "NCCL_NET", "NCCL_CROSS_NIC")] == ["INFO", None, "0"]
    assert re.search(r'"tiny-rank0:",\s+"- NCCL_IB_HCA=rocep1s0f1",\s+"\+ NCCL_IB_HCA=rocep1s0f0",\s+"\+ NCCL_CROSS_NIC=0"', told)
    assert "the image's own NCCL_DEBUG=WARN counts" in told


def test_an_address_for_all_that_a_node_lacks_stops_the_role(role: Role) -> None:
    code, told = role.play({"a": pair([P0, T0], 11)}, nccl_env_control_address="10.0.0.99")
    assert (code, "a: No interface of this node has the address 10.0.0.99, by which all nodes should reach it." in told) == (2, True)
