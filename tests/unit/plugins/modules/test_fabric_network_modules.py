# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The modules around the trial and the look: what they predict, what they show, and their one sentence when something fails."""

from __future__ import annotations

import json
import typing as t

import pytest
from ansible.module_utils import basic
from ansible.module_utils.basic import AnsibleModule

from ansible_collections.sparkstack.inference.plugins.modules import fabric_network, fabric_network_info

P0 = "enp1s0f0np0"
OURS = "/etc/netplan/60-sparkstack-fabric.yaml"
PEER = {"host": "spark2", "netdev": P0, "address": "192.168.200.12", "mtu": 9000}
WANTED = [{"netdev": P0, "address": "192.168.200.11/24", "mtu": 9000}]


class FakeTrial:
    """Remembers what it was asked to do."""

    def __init__(self, files: dict[str, str], missing: list[str], pending: dict[str, t.Any] | None, pings: list[int]) -> None:
        self.files, self.lacks, self.waiting, self.pings = files, missing, pending, pings
        self.done: list[str] = []
        self.commands: list[list[str]] = []

    def __getattr__(self, name: str) -> t.Callable[..., t.Any]:
        def call(*arguments: t.Any) -> t.Any:
            self.done.append(name)
            return name in ("keep", "undo", "restore")

        return call

    def text(self, path: str) -> str | None:
        return self.files.get("/" + path.lstrip("/"))

    def missing(self, _interfaces: t.Any) -> list[str]:
        return self.lacks

    def pending(self) -> dict[str, t.Any] | None:
        return self.waiting

    def before(self) -> dict[str, t.Any] | None:
        return {"files": {OURS: None, "/etc/netplan/40-cx7.yaml": {"content": "b2xkCg=="}}} if OURS in self.files else None

    def links(self) -> dict[str, t.Any]:
        return {P0: {"mtu": 1500, "addresses": []}}

    def run(self, command: list[str]) -> tuple[int, str, str]:
        self.commands.append(command)
        return self.pings.pop(0) if self.pings else 0, "", ""

    def pause(self, _seconds: float) -> None:
        self.done.append("pause")


Call = t.Callable[..., tuple[dict[str, t.Any], FakeTrial]]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    def run_module(
        state: str, files: dict[str, str] | None = None, missing: t.Sequence[str] = (), pending: dict[str, t.Any] | None = None,
        pings: t.Sequence[int] = (), check: bool = False, program: str | None = "/sbin/x", **arguments: t.Any,
    ) -> tuple[dict[str, t.Any], FakeTrial]:  # fmt: skip
        trial = FakeTrial(files or {}, list(missing), pending, list(pings))
        monkeypatch.setattr(fabric_network, "Trial", lambda _run, _root: trial)
        monkeypatch.setattr(AnsibleModule, "get_bin_path", lambda _self, _name, **_options: program)
        whole = {"state": state, **arguments, "_ansible_check_mode": check}
        monkeypatch.setattr(basic, "_ANSIBLE_ARGS", json.dumps({"ANSIBLE_MODULE_ARGS": whole}).encode())
        monkeypatch.setattr(basic, "_ANSIBLE_PROFILE", "legacy", raising=False)
        with pytest.raises(SystemExit):
            fabric_network.main()
        return t.cast("dict[str, t.Any]", json.loads(capsys.readouterr().out)), trial

    return run_module


def test_a_new_network_is_checked_armed_put_and_applied_in_this_order(call: Call) -> None:
    files = {"/etc/netplan/40-cx7.yaml": "old\n"}
    result, trial = call("tried", files, ["x"], content="new\n", interfaces=WANTED, replace=["/etc/netplan/40-cx7.yaml", "/etc/netplan/no.yaml"])
    assert trial.done == ["finish", "check", "arm", "put", "apply"] and result["changed"] is True
    assert [(entry["before"], entry["after"]) for entry in result["diff"]] == [
        ("", "new\n"),
        ("old\n", ""),
        (f"{P0}: no address, MTU 1500\n", f"{P0}: 192.168.200.11/24, MTU 9000\n"),
    ]


def test_check_mode_does_none_of_it(call: Call) -> None:
    result, trial = call("tried", {}, ["x"], check=True, content="new\n", interfaces=WANTED)
    assert trial.done == [] and result["changed"] is True and len(result["diff"]) == 2


@pytest.mark.parametrize(
    ("files", "missing", "content", "changed"),
    [
        ({OURS: "new\n"}, [], "new\n", False),
        # The file is right, the kernel is not: somebody has taken the address off by hand.
        ({OURS: "new\n"}, ["no address"], "new\n", True),
        ({OURS: "new\n"}, [], "", True),
        ({}, [], "", False),
    ],
)
def test_what_is_as_wanted_is_left(call: Call, files: dict[str, str], missing: list[str], content: str, changed: bool) -> None:
    result, trial = call("tried", files, missing, content=content, interfaces=WANTED)
    assert result["changed"] is changed and ("arm" in trial.done) is changed and ("forget" in trial.done) is not changed


def test_another_runs_trial_is_in_the_way(call: Call) -> None:
    result, trial = call("tried", pending={"active": True, "run": "other"}, content="new\n")
    assert result["msg"].startswith("Another run has a network on trial here: let it end,") and trial.done == ["finish"]


def test_what_a_killed_run_has_left_without_a_timer_is_taken_back_first(call: Call) -> None:
    _result, trial = call("tried", pending={"active": False, "run": "other"}, missing=["x"], content="new\n", interfaces=WANTED)
    assert trial.done == ["finish", "undo", "check", "arm", "put", "apply"]


@pytest.mark.parametrize(("run", "undone"), [("mine", True), ("other", False)])
def test_only_the_own_trial_is_undone(call: Call, run: str, undone: bool) -> None:
    result, trial = call("undone", pending={"active": True, "run": "mine"}, run=run)
    assert result["changed"] is undone and ("undo" in trial.done) is undone


def test_restore_shows_what_comes_back(call: Call) -> None:
    result, trial = call("restored", {OURS: "new\n"}, check=True)
    assert trial.done == [] and result["changed"] is True
    assert [(entry["after_header"], entry["before"], entry["after"]) for entry in result["diff"]] == [
        ("/etc/netplan/40-cx7.yaml", "", "old\n"),
        (OURS, "new\n", ""),
    ]
    assert call("restored", {OURS: "new\n"})[1].done == ["finish", "restore"]


def test_peers_are_asked_until_they_answer_by_packets_of_full_size(call: Call) -> None:
    result, trial = call("proven", pings=[1, 2, 0], peers=[PEER])
    assert result["changed"] is False and trial.done == ["pause", "pause"]
    assert trial.commands[0] == ["ping", "-n", "-q", "-c", "1", "-W", "1", "-M", "do", "-s", "8972", "-I", P0, "192.168.200.12"]


@pytest.mark.parametrize(
    ("pings", "why"),
    [
        ([1, 1], "check the cable and the firewall."),
        ([1, 0], "a small packet goes through, one of 9000 bytes does not: set the MTU on the switch."),
    ],
)
def test_peers_that_do_not_answer_are_told(call: Call, pings: list[int], why: str) -> None:
    result, _trial = call("proven", pings=pings, peers=[PEER], timeout=0)
    assert (result["failed"], result["msg"]) == (True, f"There is no answer from 192.168.200.12 of spark2 by {P0}: {why}")


def test_a_node_without_netplan_is_told(call: Call) -> None:
    result, _trial = call("kept", program=None)
    assert result["msg"] == "This node has no netplan, by which the fabric's network is made: install it, or give the addresses by hand."


# ---- the look --------------------------------------------------------------------------------------------------------

IP = [{"ifname": P0, "flags": ["UP", "LOWER_UP"], "mtu": 1500, "address": "02:00:00:00:00:01", "addr_info": []}]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"interfaces": ["enp9"]}, f"This node has no interface enp9: it has {P0}."),
        ({"interfaces": [P0], "listen": 0}, None),
    ],
)
def test_the_look(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: t.Any, arguments: dict[str, t.Any], told: str | None) -> None:
    def run_command(_self: t.Any, command: list[str], **_options: t.Any) -> tuple[int, str, str]:
        if command[1:] == ["-json", "addr"]:
            return 0, json.dumps(IP), ""
        return 0, '[{"dst": "default", "dev": "enP7s7"}]' if "route" in command else "", ""

    monkeypatch.setattr(fabric_network_info, "ROOT", str(tmp_path))
    monkeypatch.setattr(AnsibleModule, "get_bin_path", lambda _self, name, **_options: f"/sbin/{name}")
    monkeypatch.setattr(AnsibleModule, "run_command", run_command)
    whole = {"host": "spark1", "hosts": ["spark1", "spark2"], **arguments}
    monkeypatch.setattr(basic, "_ANSIBLE_ARGS", json.dumps({"ANSIBLE_MODULE_ARGS": whole}).encode())
    monkeypatch.setattr(basic, "_ANSIBLE_PROFILE", "legacy", raising=False)
    with pytest.raises(SystemExit):
        fabric_network_info.main()
    result = json.loads(capsys.readouterr().out)
    if told:
        assert result["msg"] == told
        return
    network = result["network"]
    assert network["candidates"] == [{"netdev": P0, "port": P0, "lane": "0000"}] and network["heard"] == {P0: []}
    assert network["managed_by"] == {"enP7s7": "it has the default route"} and network["named"] is True
    assert (network["definitions"], network["others"], network["pending"], network["told"], network["changed_before"]) == ([], {}, None, None, False)
