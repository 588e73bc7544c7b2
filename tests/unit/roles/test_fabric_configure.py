# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The order of the role's steps, and what it does when one fails, played by Ansible; the modules on the nodes only say what a case wants."""

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

ROOT = pathlib.Path(__file__).resolve().parents[3]
STAND_IN = """
import json, os
from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.action import ActionBase


class ActionModule(ActionBase):
    _supports_check_mode = True

    def run(self, tmp=None, task_vars=None):
        host = task_vars["inventory_hostname"]
        key = " ".join([self._task.action.rpartition(".")[2], host, *([self._task.args["state"]] if "state" in self._task.args else [])])
        with open(os.environ["WAYS"] + "/calls", "a") as log:
            log.write(json.dumps([host, dict(self._task.args), self._task.check_mode], default=str) + "\\n")
        with open(os.environ["WAYS"] + "/answers.json") as stream:
            answer = json.load(stream).get(key, {})
        if answer.get("unreachable"):
            raise AnsibleConnectionFailure("Connection timed out")
        return dict({"changed": False}, **answer)
"""
P0, T0 = "enp1s0f0np0", "enP2p1s0f0np0"


def network(number: int, **more: t.Any) -> dict[str, t.Any]:
    """A Spark of a pair on one cable, without addresses."""
    link = {"mtu": 1500, "up": True, "carrier": True, "mac": "", "master": None, "addresses": []}
    found = {
        "links": {P0: link, T0: link}, "candidates": [{"netdev": P0, "port": "a", "lane": "0"}, {"netdev": T0, "port": "a", "lane": "2"}],
        "named": False, "managed_by": {}, "heard": {P0: [[f"spark{3 - number}", P0]], T0: []}, "netplan": True, "definitions": [], "others": {},
        "pending": None, "told": None, "changed_before": False, "now": 0.0, **more,
    }  # fmt: skip
    return {"network": found}


class Ways:
    """A collection of the real role and plan, with stand-ins for what runs on the nodes."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.fatal = True
        here = folder / "ansible_collections" / "sparkstack" / "inference"
        (here / "plugins" / "action").mkdir(parents=True)
        (here / "roles").mkdir()
        for name in ("plugins/plugin_utils", "plugins/module_utils", "plugins/modules", "plugins/action/fabric_plan.py", "roles/fabric_configure"):
            (here / name).symlink_to(ROOT / name)
        for name in ("fabric_network", "fabric_network_info"):
            (here / "plugins" / "action" / f"{name}.py").write_text(STAND_IN)

    def play(self, answers: dict[str, t.Any] | None = None, *options: str, **variables: t.Any) -> str:
        """What a run of the role wrote. :param answers: of the modules, by name, host and state."""
        found = {f"fabric_network_info spark{number}": network(number) for number in (1, 2)}
        found["fabric_network spark1 undone"] = {"changed": True}
        (self.folder / "answers.json").write_text(json.dumps({**found, **(answers or {})}))
        hosts = {"spark1": {"fabric_address": variables.pop("fabric_address", "")}, "spark2": None}
        (self.folder / "hosts.yml").write_text(yaml.safe_dump({"all": {"hosts": hosts, "vars": {"ansible_become": False}}}))
        facts = {"fabric_configure": True, "fabric_configure_timeout": 2, **variables}
        tasks = [{"ansible.builtin.include_role": {"name": "sparkstack.inference.fabric_configure"}}]
        play = {"hosts": "all", "gather_facts": False, "any_errors_fatal": self.fatal, "vars": facts, "tasks": tasks}
        (self.folder / "play.yml").write_text(yaml.safe_dump([play]))
        words = [sys.executable, "-m", "ansible", "playbook", "-i", "hosts.yml", "-c", "local", "play.yml", *options]
        environment = {
            **os.environ, "WAYS": str(self.folder), "ANSIBLE_COLLECTIONS_PATH": str(self.folder), "ANSIBLE_LOCALHOST_WARNING": "false",
            "ANSIBLE_HOME": str(self.folder), "ANSIBLE_PYTHON_INTERPRETER": sys.executable,
        }  # fmt: skip
        done = subprocess.run(words, cwd=self.folder, env=environment, text=True, capture_output=True, check=False)
        return re.sub(r"\s+", " ", (done.stdout + done.stderr).replace('\\"', '"').replace("''", "'"))

    def calls(self) -> list[tuple[str, dict[str, t.Any], bool]]:
        """(host, arguments, check mode) of every call of a module on a node."""
        path = self.folder / "calls"
        return [tuple(json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []

    def states(self, host: str) -> list[str]:
        return [arguments["state"] for name, arguments, _check in self.calls() if name == host and "state" in arguments]


@pytest.fixture
def ways(tmp_path: pathlib.Path) -> Ways:
    return Ways(tmp_path)


def test_it_is_off_unless_asked_for(ways: Ways) -> None:
    assert "failed=0" in ways.play(fabric_configure=False) and ways.calls() == []


def test_it_plans_tries_proves_and_keeps(ways: Ways) -> None:
    told = ways.play()
    assert f"spark2 {P0} 192.168.200.12/24 now no address, MTU 1500" in told and "failed=0" in told
    assert ways.states("spark1") == ways.states("spark2") == ["tried", "proven", "kept"]
    calls = [arguments for host, arguments, _check in ways.calls() if host == "spark2"]
    assert (calls[0]["host"], calls[0]["hosts"], calls[0]["interfaces"]) == ("spark2", ["spark1", "spark2"], [])
    assert calls[1]["interfaces"] == [
        {"netdev": T0, "address": "192.168.201.12/24", "mtu": 9000},
        {"netdev": P0, "address": "192.168.200.12/24", "mtu": 9000},
    ]
    assert "- 192.168.201.12/24" in calls[1]["content"] and calls[1]["replace"] == [] and calls[1]["seconds"] == 120
    assert calls[2]["peers"][0] == {"host": "spark1", "netdev": P0, "address": "192.168.200.11", "mtu": 9000}
    # One run's trial has one name everywhere.
    runs = {arguments["run"] for _host, arguments, _check in ways.calls() if arguments.get("state") in ("tried", "kept")}
    assert len(runs) == 1 and len(runs.pop()) == 16


def test_the_inventorys_words_reach_the_plan(ways: Ways) -> None:
    ways.play(fabric_cidr="10.9.0.0/16", fabric_address="10.9.3.7", fabric_configure_mtu=4200)
    tried = {host: arguments["interfaces"][1] for host, arguments, _check in ways.calls() if arguments.get("state") == "tried"}
    assert tried == {
        "spark1": {"netdev": P0, "address": "10.9.3.7/24", "mtu": 4200},
        "spark2": {"netdev": P0, "address": "10.9.3.12/24", "mtu": 4200},
    }


def test_check_mode_only_predicts(ways: Ways) -> None:
    told = ways.play(None, "--check")
    assert "192.168.200.12/24 now no address" in told and "failed=0" in told
    assert ways.states("spark1") == ["tried"] and all(check for _host, _arguments, check in ways.calls())


@pytest.mark.parametrize(
    ("answers", "states"),
    [
        # One node does not take it, or does not reach its peer: both go back.
        ({"fabric_network spark2 tried": {"failed": True, "msg": "It broke."}}, ["tried", "undone"]),
        ({"fabric_network spark2 proven": {"failed": True, "msg": "It broke."}}, ["tried", "proven", "undone"]),
        # One had gone back before it was kept.
        ({"fabric_network spark2 kept": {"failed": True, "msg": "It broke."}}, ["tried", "proven", "kept", "undone"]),
    ],
)
def test_where_one_fails_all_go_back(ways: Ways, answers: dict[str, t.Any], states: list[str]) -> None:
    told = ways.play(answers)
    assert "It broke. Back at the network before: spark1." in told
    assert ways.states("spark1") == ways.states("spark2") == states
    runs = {arguments["run"] for _host, arguments, _check in ways.calls() if arguments.get("state") in ("tried", "undone")}
    assert len(runs) == 1


def test_a_play_that_does_not_end_for_one_host_leaves_no_half_of_a_fabric(ways: Ways) -> None:
    ways.fatal = False
    told = ways.play({"fabric_network spark2 tried": {"failed": True, "msg": "It broke."}})
    assert "It broke. Back at the network before: spark1." in told
    assert ways.states("spark1") == ways.states("spark2") == ["tried", "undone"]


def test_a_node_that_is_lost_goes_back_by_itself_and_the_other_one_at_once(ways: Ways) -> None:
    told = ways.play({"fabric_network spark2 tried": {"unreachable": True}})
    assert "A node can't be reached any more, as told above: it goes back by itself. Back at the network before: spark1." in told
    assert ways.states("spark1") == ["tried", "undone"]


def test_a_refusal_touches_no_node(ways: Ways) -> None:
    told = ways.play({"fabric_network_info spark2": network(2, managed_by={P0: "it has the default route"})})
    assert f"spark2 is managed by {P0}, for it has the default route" in told and ways.states("spark1") == ways.states("spark2") == []


def test_a_network_that_was_taken_back_is_told(ways: Ways) -> None:
    told = ways.play({"fabric_network_info spark1": network(1, told={"at": "2026-11-30T14:03:22Z", "wrong": "netplan generate"})})
    assert (
        "spark1 has gone back to the network before at 2026-11-30T14:03:22Z, as a run had not kept the new one. Not all is as it was: netplan generate." in told
    )
    assert ways.states("spark1") == ["tried", "proven", "kept"]


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({"fabric_cidr": "192.168.200.0"}, "fabric_cidr '192.168.200.0' is no network for a fabric: give a private one from /8 to /29"),
        ({"fabric_cidr": "8.8.8.0/24"}, "fabric_cidr '8.8.8.0/24' is no network for a fabric"),
        ({"fabric_address": "x"}, "fabric_address 'x' is no IPv4 address: write it like 192.168.200.11."),
        ({"fabric_configure_mtu": 900}, "fabric_configure_mtu is 900: give one from 1280 to 9978, 9000 as a rule."),
        ({"fabric_configure_first": 0}, "fabric_configure_first is 0: give the number of the first node's address, from 1 to 250."),
        ({"fabric_configure_seconds": 30}, "fabric_configure_seconds is 30: give 42 or more"),
        ({"fabric_configure_renderer": "ifupdown"}, "must be one of: , networkd, NetworkManager, got: ifupdown"),
    ],
)
def test_a_slip_is_answered_before_a_node_is_reached(ways: Ways, variables: dict[str, t.Any], told: str) -> None:
    assert told in ways.play(**variables) and ways.calls() == []


def test_one_node_is_no_fabric(ways: Ways) -> None:
    told = ways.play(None, "--limit", "spark1")
    assert "A fabric has two nodes or more, and here is only spark1" in told and ways.calls() == []


def test_too_few_forks_are_refused(ways: Ways) -> None:
    assert "All 2 nodes must call at the same time to find out how they are wired: set forks to 2 or more." in ways.play(None, "--forks", "1")


@pytest.mark.parametrize(("changed", "told"), [(True, "spark1: the fabric is as it was before."), (False, "spark1: nothing was changed here")])
def test_restore(ways: Ways, changed: bool, told: str) -> None:
    assert told in ways.play({"fabric_network spark1 restored": {"changed": changed}}, fabric_configure_restore=True)
    assert ways.states("spark1") == ways.states("spark2") == ["restored"]
