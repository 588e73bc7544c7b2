# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The whole probe on one machine: both hosts' actions on one board, and the nodes' real module functions on the loopback."""

from __future__ import annotations

import socket
import threading
import types
import typing as t

import pytest
from ansible import constants as C
from ansible import context
from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure
from ansible.utils.context_objects import CLIArgs

from ansible_collections.sparkstack.inference.plugins.action import fabric_probe as subject
from ansible_collections.sparkstack.inference.plugins.module_utils._fabric_probe_ask import Target, probe
from ansible_collections.sparkstack.inference.plugins.module_utils._fabric_probe_listen import Listener
from ansible_collections.sparkstack.inference.plugins.module_utils._fabric_probe_steps import Steps
from ansible_collections.sparkstack.inference.plugins.modules import fabric_probe_node as node

ADDRESS = {"spark1": "127.0.0.41", "spark2": "127.0.0.42", "spark3": "127.0.0.43"}


class Play:
    """The hosts run the task at the same time, as forks do."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tmp_path: t.Any) -> None:
        monkeypatch.setattr(C, "DEFAULT_LOCAL_TMP", str(tmp_path))
        monkeypatch.setattr(context, "CLIARGS", CLIArgs({"forks": 3}))
        monkeypatch.setattr(node, "start", self.start)
        monkeypatch.setattr(subject, "_NEXT", 4.0)
        self.calls: dict[str, list[dict[str, t.Any]]] = {}
        self.listeners: list[threading.Thread] = []
        self.broken: dict[tuple[str, str], Exception | dict[str, t.Any]] = {}

    def start(self, listener: Listener) -> None:
        self.listeners.append(threading.Thread(target=listener.run, daemon=True))
        self.listeners[-1].start()

    def module(self, host: str, module_name: str, module_args: dict[str, t.Any]) -> dict[str, t.Any]:
        assert module_name == "sparkstack.inference.fabric_probe_node"
        self.calls.setdefault(host, []).append(module_args)
        state = module_args["state"]
        broken = self.broken.get((host, state))
        if isinstance(broken, Exception):
            raise broken
        if broken is not None:
            return broken
        if state == "listening":
            return node.listening(module_args, rdma=False)
        node.stay(module_args["token"], module_args["lifetime"])
        if state == "probing":
            return {"rows": probe([Target(**target) for target in module_args["targets"]], module_args["number"])}
        return node.ending(Steps(module_args["token"], lambda _command: (1, "", ""), {}), module_args)

    def run(self, hosts: t.Sequence[str], batch: t.Sequence[str] | None = None, **arguments: t.Any) -> dict[str, t.Any]:
        """Run the task on these hosts, and tell each one's result or what it raised."""
        found: dict[str, t.Any] = {}
        peers = [{"host": host, "rails": [{"netdev": "lo", "address": ADDRESS[host], "prefix": 8, "hca": None}]} for host in ADDRESS if host in hosts]

        def one(host: str) -> None:
            task = types.SimpleNamespace(_uuid="task-1", args={}, throttle=0, run_once=False, check_mode=False, async_val=0, diff=False)
            action = subject.ActionModule.__new__(subject.ActionModule)
            action._task = task
            action._execute_module = lambda module_name, module_args, task_vars: self.module(host, module_name, module_args)
            task.args = {"peers": peers, "seconds": 0.2, **arguments}
            action.validate_argument_spec = lambda argument_spec: (
                None,
                {**{name: option.get("default") for name, option in argument_spec.items()}, **task.args},
            )
            try:
                found[host] = action._run({"inventory_hostname": host, "ansible_play_batch": batch or hosts})
            except Exception as error:
                found[host] = error

        threads = [threading.Thread(target=one, args=(host,)) for host in batch or hosts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        return found


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch, tmp_path: t.Any) -> t.Iterator[Play]:
    made = Play(monkeypatch, tmp_path)
    yield made
    for listener in made.listeners:
        listener.join(20)
        assert not listener.is_alive()


def free(address: str) -> int:
    with socket.socket() as found:
        found.bind((address, 0))
        return int(found.getsockname()[1])


def test_two_good_nodes(play: Play) -> None:
    port = free(ADDRESS["spark2"])
    found = play.run(["spark1", "spark2"], ports=[port])
    for host, peer in (("spark1", "spark2"), ("spark2", "spark1")):
        result = found[host]
        assert (result["changed"], result["listening"]["bound"], result["listening"]["in_use"]) == (False, [port], [])
        (rail,) = result["listening"]["rails"]
        # The listener's token is of no use any more, and told to nobody.
        assert (rail["netdev"], rail["address"], rail["prefix"], rail["error"]) == ("lo", ADDRESS[host], 8, None) and "token" not in rail
        (pair,) = result["pairs"]
        assert (pair["peer"], pair["netdev"], pair["address"], pair["peer_address"]) == (peer, "lo", ADDRESS[host], ADDRESS[peer])
        assert (pair["error"], pair["sent"], pair["received"], pair["loss_share"]) == (None, 200, 200, 0.0)
        assert (pair["path_mtu"], pair["tcp"], pair["by"], pair["control"]) == (65535, {str(port): "ok"}, "tcp", "ok")
        assert pair["mb_s"] > 0 and abs(pair["clock_offset_s"]) <= pair["clock_error_s"] + 0.001
        assert [call["state"] for call in play.calls[host]] == ["listening", "probing", "ending"]
    tokens = {call["token"] for calls in play.calls.values() for call in calls}
    assert len(tokens) == 2 and all(len(token) == 64 for token in tokens)


def test_three_nodes_meet_each_other(play: Play) -> None:
    found = play.run(list(ADDRESS))
    for host in ADDRESS:
        assert sorted(pair["peer"] for pair in found[host]["pairs"]) == sorted(set(ADDRESS) - {host})
        assert all(pair["error"] is None and pair["mb_s"] is not None for pair in found[host]["pairs"])


def test_without_bandwidth(play: Play) -> None:
    found = play.run(["spark1", "spark2"], seconds=0.0)
    assert [(pair["received"], pair["mb_s"], pair["by"]) for pair in found["spark1"]["pairs"]] == [(200, None, None)]


def test_a_port_that_another_program_has(play: Play) -> None:
    with socket.socket() as taken:
        taken.bind((ADDRESS["spark2"], 0))
        taken.listen(1)
        port = taken.getsockname()[1]
        found = play.run(["spark1", "spark2"], ports=[port], seconds=0.0)
        taken.settimeout(0.01)
        with pytest.raises(TimeoutError):
            taken.accept()
    assert [pair["tcp"] for pair in found["spark1"]["pairs"]] == [{str(port): "in_use"}]
    assert [entry["port"] for entry in found["spark2"]["listening"]["in_use"]] == [port]
    assert [pair["tcp"] for pair in found["spark2"]["pairs"]] == [{str(port): "ok"}]


def test_a_node_that_runs_no_task(play: Play) -> None:
    found = play.run(["spark1", "spark2", "spark3"], batch=["spark1", "spark2"], seconds=0.0)
    assert {pair["peer"]: pair["error"] for pair in found["spark1"]["pairs"]} == {
        "spark2": None,
        "spark3": "spark3 takes no part in the probe: its task has not run",
    }


def test_a_node_that_cannot_be_reached_keeps_nobody_waiting(play: Play) -> None:
    play.broken["spark2", "listening"] = AnsibleConnectionFailure("ssh: connect to host spark2 port 22: No route to host")
    found = play.run(["spark1", "spark2"])
    assert isinstance(found["spark2"], AnsibleConnectionFailure)
    (pair,) = found["spark1"]["pairs"]
    assert pair["error"] == "spark2 takes no part in the probe: ssh: connect to host spark2 port 22: No route to host"
    assert found["spark1"]["seconds"] < 15


def test_a_node_that_fails_later_leaves_the_others_what_they_know(play: Play) -> None:
    play.broken["spark2", "probing"] = {"failed": True, "msg": "no Python"}
    play.broken["spark2", "ending"] = {"failed": True, "msg": "no Python"}
    found = play.run(["spark1", "spark2"], join_timeout=1)
    assert isinstance(found["spark2"], AnsibleActionFail) and str(found["spark2"]) == "The probe of the fabric failed on spark2: no Python"
    (pair,) = found["spark1"]["pairs"]
    assert (pair["received"], pair["loss_share"], pair["mb_s"], pair["error"]) == (None, None, None, None) and pair["answered"] > 150


def test_a_failure_leaves_no_listener_on_the_launchs_ports(play: Play) -> None:
    play.broken["spark2", "probing"] = {"failed": True, "msg": "no room for the module"}
    port = free(ADDRESS["spark2"])
    found = play.run(["spark1", "spark2"], ports=[port], seconds=0.0)
    assert str(found["spark2"]) == "The probe of the fabric failed on spark2: no room for the module"
    assert [call["state"] for call in play.calls["spark2"]] == ["listening", "probing", "ending"]
    with socket.socket() as taken:
        taken.bind((ADDRESS["spark2"], port))


def test_an_address_that_the_node_does_not_have(play: Play) -> None:
    rails = {host: [{"netdev": "lo", "address": ADDRESS[host], "prefix": 8}] for host in ("spark1", "spark2")}
    rails["spark2"] = [{"netdev": "lo", "address": "192.0.2.7", "prefix": None}]
    found = play.run(["spark1", "spark2"], peers=[{"host": host, "rails": own} for host, own in rails.items()])
    text = "spark2 can't use lo: the node has no address 192.0.2.7 on lo"
    assert [pair["error"] for host in ("spark1", "spark2") for pair in found[host]["pairs"]] == [text, text]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"peers": [{"host": "spark1", "rails": []}]}, "spark2 is not among the peers of the probe that take part: spark1."),
        ({"members": ["spark1"]}, "spark2 is not among the peers of the probe that take part: spark1."),
        (
            {"peers": [{"host": "spark1", "rails": []}, {"host": "spark1", "rails": []}, {"host": "spark2", "rails": []}]},
            "Two of the peers have the same host: give each host once.",
        ),
        (
            {"peers": [{"host": "spark1", "rails": [{"netdev": "p0", "address": "fd00::1"}]}, {"host": "spark2", "rails": []}]},
            "peers: fd00::1 is no IPv4 address: give the nodes' addresses on the fabric.",
        ),
        (
            {"peers": [{"host": "spark1", "rails": [{"address": "10.0.0.1"}]}, {"host": "spark2", "rails": []}]},
            "peers: the rail 10.0.0.1 has no netdev: give each rail its interface and its address.",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(play: Play, arguments: dict[str, t.Any], sentence: str) -> None:
    assert play.run(["spark1", "spark2"], **arguments)["spark2"] == {"failed": True, "changed": False, "msg": sentence}
    assert play.calls.get("spark2") is None


def test_too_few_forks(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "CLIARGS", CLIArgs({"forks": 1}))
    assert play.run(["spark1", "spark2"])["spark1"]["msg"] == "All 2 nodes must probe at the same time: set forks to 2 or more (it is 1)."
