# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The controller's half, with two hosts in two threads on one board and scripted nodes."""

from __future__ import annotations

import pathlib
import threading
import types
import typing as t

import pytest
from ansible import constants as C
from ansible import context
from ansible.errors import AnsibleConnectionFailure
from ansible.utils.context_objects import CLIArgs

from ansible_collections.sparkstack.inference.plugins.action import collective_proof as subject

RUNS = pathlib.Path(__file__).resolve().parents[3] / "fixtures" / "collective"
HOSTS = ("spark1", "spark2")
NAMES = {"spark1": "head", "spark2": "worker"}
LAUNCH = {
    "deployment": "q",
    "engine": "sglang",
    "image": "sglang:1",
    "image_identity": "sha256:aa",
    "model": "/srv/models/q",
    "ranks": 2,
    "head_address": "10.77.1.10",
    "rendezvous_port": 29501,
    "arguments": {},
    "environment": {"NCCL_SOCKET_IFNAME": "eth0", "HF_TOKEN": "hf_verysecret"},
    "launch_id": "x-1",
    "somebody_elses": 1,
}


class Play:
    """Both hosts run the task at the same time, as forks do; what the nodes keep stays from task to task."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
        monkeypatch.setattr(C, "DEFAULT_LOCAL_TMP", str(tmp_path))
        monkeypatch.setattr(context, "CLIARGS", CLIArgs({"forks": 5}))
        monkeypatch.setattr(subject.ActionBase, "run", lambda self, tmp=None, task_vars=None: {})
        monkeypatch.setattr(subject, "_MARGIN", 5.0)
        self.looks: dict[str, dict[str, t.Any]] = {
            host: {"identity": "sha256:aa", "boot": f"boot of {host}", "links": {"eth0": {"mtu": 9000}}, "program": "p", "listener": None, "foreign": None}
            for host in HOSTS
        }
        self.kept: dict[str, dict[str, t.Any] | None] = dict.fromkeys(HOSTS)
        self.now = 1795992120.0
        self.fails: dict[str, t.Any] = {}
        self.calls: dict[str, list[dict[str, t.Any]]] = {}
        self.task: dict[str, t.Any] = {}
        self.number = 0

    def run(self, case: str = "sockets", check_mode: bool = False, launch: dict[str, t.Any] | None = None, **arguments: t.Any) -> dict[str, dict[str, t.Any]]:
        self.number += 1
        self.calls = {host: [] for host in HOSTS}
        results: dict[str, dict[str, t.Any]] = {}

        def one(rank: int, host: str) -> None:
            action = subject.ActionModule.__new__(subject.ActionModule)
            action._task = types.SimpleNamespace(**{"_uuid": f"task-{self.number}", "throttle": 0, "run_once": False, "check_mode": check_mode, **self.task})
            own = {**LAUNCH, "rank": rank, "address": f"10.77.1.1{rank}", **(launch or {})}
            given = {name: option.get("default") for name, option in subject.ARGUMENTS.items()} | {"launch": own, "timeout": 0.1, **arguments}
            action.validate_argument_spec = lambda argument_spec: (None, given)
            action._execute_module = lambda module_name, module_args, task_vars: self._module(host, module_name, module_args, case)
            try:
                results[host] = action.run(None, {"inventory_hostname": host, "ansible_play_batch": list(HOSTS)})
            except Exception as error:
                results[host] = {"raised": True, "msg": str(error)}

        threads = [threading.Thread(target=one, args=pair) for pair in enumerate(HOSTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()
        assert "hf_verysecret" not in str(results) + str(self.calls)
        return results

    def _module(self, host: str, name: str, arguments: dict[str, t.Any], case: str) -> dict[str, t.Any]:
        assert name == "sparkstack.inference.collective_rank" and arguments["deployment"] == "q"
        self.calls[host].append(arguments)
        failure = self.fails.get(f"{arguments['state']} {host}")
        if isinstance(failure, Exception):
            raise failure
        if failure:
            return {"failed": True, "msg": failure}
        if arguments["state"] == "looked":
            return {"look": self.looks[host], "kept": self.kept[host], "now": self.now}
        if arguments["state"] == "kept":
            self.kept[host] = arguments["proof"] or None
            return {}
        return {"output": (RUNS / case / f"{NAMES[host]}.log").read_text(), "problem": "", "seconds": 6.5}

    def states(self, host: str = "spark1") -> list[str]:
        return [call["state"] for call in self.calls[host]]


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> Play:
    return Play(monkeypatch, tmp_path)


def test_both_ranks_prove_it_and_remember(play: Play) -> None:
    results = play.run()
    for rank, host in enumerate(HOSTS):
        found = results[host]
        assert found["changed"] and not found["remembered"] and "failed" not in found and found["verdict"] == "ready"
        assert found["message"] == found["msg"] == "2 ranks reduce over sockets (eth0): 3.26 GB/s on the bus, NCCL 2.28.9, 3.9 s."
        assert found["group"]["bus_gb_s"] == 3.258 and found["group"]["transport"] == "socket" and found["nodes"]["spark2"]["nccl_bytes"] == 390070272
        look, run, _keep = play.calls[host]
        assert look["container"] == run["container"] == f"q-collective{rank}" and look["image"] == "sglang:1" and look["netdevs"] == ["eth0"]
        assert look["port"] == (29501 if rank == 0 else None)
        assert run["parameters"]["rank"] == rank and run["parameters"]["word"] == play.calls["spark1"][1]["parameters"]["word"]
    assert results["spark1"]["group"] == results["spark2"]["group"]
    play.now += 7200
    again = play.run()
    for host in HOSTS:
        assert not again[host]["changed"] and again[host]["remembered"] and play.states(host) == ["looked"]
        assert again[host]["group"] == results[host]["group"]
        assert again[host]["msg"].endswith("3.9 s. This was proved 2.0 h ago, and nothing has changed since.")


def reboot(play: Play) -> None:
    play.looks["spark2"]["boot"] = "another"


def forget(play: Play) -> None:
    play.kept["spark2"] = None


def age(play: Play) -> None:
    play.now += 86401


def set_back(play: Play) -> None:
    play.now -= 10


def draw_the_cable(play: Play) -> None:
    play.looks["spark1"]["links"] = {"eth0": {"mtu": 9000, "carrier_changes": 4}}


@pytest.mark.parametrize("change", [reboot, forget, age, set_back, draw_the_cable])
def test_what_makes_it_prove_again(play: Play, change: t.Callable[[Play], None]) -> None:
    play.run()
    change(play)
    assert not play.run()["spark1"]["remembered"] and all(play.states(host) == ["looked", "run", "kept"] for host in HOSTS)
    assert play.run()["spark1"]["remembered"]


def test_it_is_asked_for_again(play: Play) -> None:
    play.run()
    assert play.run(again=True)["spark1"]["changed"] and play.run(launch={"environment": {}})["spark1"]["changed"]


def test_what_is_blocked_fails_and_is_forgotten(play: Play) -> None:
    play.run()
    results = play.run("cut-before-they-meet", again=True)
    for host in HOSTS:
        found = results[host]
        assert found["failed"] and (found["verdict"], found["cause"], found["culprit"]) == ("blocked", "net_unreachable", "spark2")
        assert found["msg"].splitlines()[:2] == [found["message"], found["remedy"]] and "10.77.1.10:29501" in found["message"]
        assert play.kept[host] is None
    play.task = {}
    assert "failed" not in play.run("cut-before-they-meet", required=False)["spark1"]


def test_what_is_slow_does_not_fail_and_is_not_remembered(play: Play) -> None:
    found = play.run(link_mbps=200000.0)["spark1"]
    assert found["verdict"] == "slow" and "failed" not in found and "13% of what the links promise" in found["message"] and play.kept["spark1"] is None


def test_sockets_where_rdma_was_expected(play: Play) -> None:
    named = {"infiniband": True, "environment": {"NCCL_IB_HCA": "mlx5_0"}}
    found = play.run(launch=named)["spark2"]
    assert found["failed"] and found["cause"] == "ib_error" and found["evidence"] == []
    assert "failed" not in play.run(launch=named, transport="any")["spark2"]


def test_sockets_where_there_are_devices_that_nobody_named(play: Play) -> None:
    found = play.run(launch={"infiniband": True})["spark2"]
    assert (found["verdict"], found["cause"]) == ("slow", "ib_error") and "failed" not in found and play.kept["spark2"] is None
    assert play.run(launch={"infiniband": True}, transport="rdma")["spark2"]["failed"]
    # Where sockets are meant, it is well, and remembered.
    assert play.run(launch={"infiniband": True}, transport="socket")["spark2"]["verdict"] == "ready" and play.kept["spark2"] is not None


def test_check_mode_looks_and_tells(play: Play) -> None:
    found = play.run(check_mode=True)["spark1"]
    assert found["changed"] and found["verdict"] is None and play.states() == ["looked"]
    assert found["msg"] == "2 ranks would prove themselves by a small all-reduce in sglang:1, over port 29501."
    play.run()
    found = play.run(check_mode=True)["spark1"]
    assert not found["changed"] and found["remembered"] and found["verdict"] == "ready"


@pytest.mark.parametrize(
    "host, look, cause, message",
    [
        (
            "spark1",
            {"listener": {"port": 29501, "pid": 4711, "process": "python3", "container": None}},
            "port_in_use",
            "The rendezvous port 29501 on spark1 is taken by process 4711 (python3).",
        ),
        (
            "spark1",
            {"listener": {"port": 29501, "pid": 4711, "process": "python3", "container": "a" * 64, "name": "q-rank0"}},
            "port_in_use",
            "The rendezvous port 29501 on spark1 is taken by container q-rank0.",
        ),
        (
            "spark1",
            {"listener": {"port": 29501, "pid": None, "process": None, "container": None}},
            "port_in_use",
            "The rendezvous port 29501 on spark1 is taken by another program.",
        ),
        ("spark2", {"identity": None}, "bad_image", "The image sglang:1 is not on spark2."),
        ("spark2", {"foreign": "postgres:17"}, None, "The name q-collective1 on spark2 belongs to a container of postgres:17"),
    ],
)
def test_what_is_known_to_be_in_the_way_starts_nothing(play: Play, host: str, look: dict[str, t.Any], cause: str | None, message: str) -> None:
    play.looks[host].update(look)
    results = play.run()
    for found in results.values():
        assert found["failed"] and not found["changed"] and (found["verdict"], found["cause"], found["culprit"]) == ("blocked", cause, host)
        assert message in found["msg"] and found["remedy"]
    assert play.states() == ["looked"]


def test_a_host_that_gives_up_ends_it_for_all(play: Play) -> None:
    play.fails = {"looked spark2": "Docker does not answer on /var/run/docker.sock: No such file or directory."}
    results = play.run()
    assert results["spark2"]["msg"].startswith("Docker does not answer")
    assert results["spark1"]["msg"].startswith("The proof needs all ranks, and spark2 has given up: Docker does not answer")
    play.fails = {"run spark1": AnsibleConnectionFailure("no route")}
    results = play.run()
    assert "the node cannot be reached: no route" in results["spark1"]["msg"] and "spark1 has given up" in results["spark2"]["msg"]


def test_a_full_disk_costs_no_proof(play: Play) -> None:
    play.fails = {"kept spark1": "The proof could not be kept: No space left on device."}
    results = play.run()
    assert results["spark1"]["verdict"] == "ready" and results["spark1"]["warnings"] == ["The proof could not be kept: No space left on device."]
    assert not play.run()["spark2"]["remembered"]


@pytest.mark.parametrize(
    "launch, task, forks, sentence",
    [
        ({"engine": None}, {}, 5, "launch is no rank's part of a plan: "),
        ({"engine": "tgi"}, {}, 5, "launch is no rank's part of a plan: "),
        ({"rank": 2}, {}, 5, "rank 2 is not one of the 2 ranks"),
        ({"ranks": 3}, {}, 5, "The launch has 3 ranks, but 2 hosts take part (spark1, spark2): name them in members."),
        ({"rank": 0}, {}, 5, "Two hosts of this task have the same rank: give each host its own part of the plan."),
        ({}, {"run_once": True}, 5, "All ranks must be proved at the same time: remove run_once and throttle from this task."),
        ({}, {"throttle": 1}, 5, "All ranks must be proved at the same time"),
        ({}, {}, 1, "All 2 ranks must be proved at the same time: set forks to 2 or more (it is 1)."),
    ],
)
def test_what_it_refuses(play: Play, monkeypatch: pytest.MonkeyPatch, launch: dict[str, t.Any], task: dict[str, t.Any], forks: int, sentence: str) -> None:
    monkeypatch.setattr(subject, "forks", lambda: forks)
    play.task = task
    results = play.run(launch=launch)
    assert all(found["raised"] for found in results.values()) and any(sentence in found["msg"] for found in results.values()), results


def test_a_host_that_is_no_member(play: Play) -> None:
    results = play.run(members=["spark1"], launch={"ranks": 1, "rank": 0, "tensor_parallel_size": 1})
    assert results["spark2"]["msg"] == "spark2 is not among the members of the proof: spark1." and results["spark1"]["verdict"] == "ready"
