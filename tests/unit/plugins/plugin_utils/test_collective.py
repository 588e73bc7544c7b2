# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The proof's container is the rank's own less its model and its life; and a proof's key sees what a proof depends on."""

from __future__ import annotations

import dataclasses
import json
import typing as t

import pytest

from ansible_collections.sparkstack.inference.plugins.module_utils import _engines
from ansible_collections.sparkstack.inference.plugins.module_utils._engines._types import RankSpec
from ansible_collections.sparkstack.inference.plugins.plugin_utils import _collective as subject
from ansible_collections.sparkstack.inference.plugins.plugin_utils import _container

RANK = RankSpec("/srv/models/m", "m", 1, 2, 2, "192.168.200.12", "192.168.200.11", 29501, 8000, "0.0.0.0", {"max-model-len": 512}, True)
REQUEST = _container.Request(
    deployment="d",
    engine=_engines.get("vllm"),
    image="vllm:1",
    rank=RANK,
    model_mount="/srv/models/m",
    environment={
        "NCCL_IB_HCA": "rocep1s0f0,roceP2p1s0f0",
        "NCCL_SOCKET_IFNAME": "=enp1s0f0np0",
        "GLOO_SOCKET_IFNAME": "enp1s0f0np0",
        "HF_TOKEN": "hf_verysecret",
    },
    gpus=True,
    infiniband=True,
    memory="110g",
    cap_add=("IPC_LOCK",),
    api_key_fingerprint="0123",
)


def change(**fields: t.Any) -> _container.Request:
    of_rank = {name: fields.pop(name) for name in list(fields) if name in RankSpec.__dataclass_fields__}
    return dataclasses.replace(REQUEST, rank=dataclasses.replace(RANK, **of_rank), **fields)


def test_it_has_what_the_rank_has_and_no_more() -> None:
    made = subject.body(REQUEST)
    host = made["HostConfig"]
    assert made["Image"] == "vllm:1" and made["WorkingDir"] == "/" and made["Labels"] == {"sparkstack.collective": "d", "sparkstack.rank": "1"}
    wanted = _container.options(REQUEST)["env"]
    assert made["Env"] == [f"{name}={wanted[name]}" for name in sorted(wanted)] and "NCCL_SOCKET_IFNAME==enp1s0f0np0" in made["Env"]
    assert (host["NetworkMode"], host["IpcMode"], host["ShmSize"], host["Memory"], host["MemorySwap"]) == ("host", "private", 8 << 30, 110 << 30, 110 << 30)
    assert (host["CapDrop"], host["CapAdd"], host["SecurityOpt"], host["Init"]) == (["ALL"], ["IPC_LOCK"], ["no-new-privileges"], True)
    assert host["Ulimits"] == [{"Name": "memlock", "Soft": -1, "Hard": -1}, {"Name": "stack", "Soft": 67108864, "Hard": 67108864}]
    assert host["DeviceRequests"] == [{"Count": -1, "Capabilities": [["gpu"]]}]
    assert host["Devices"] == [{"PathOnHost": "/dev/infiniband", "PathInContainer": "/dev/infiniband", "CgroupPermissions": "rwm"}]
    # It goes by itself, and there is nothing of the model's or of the rank's in it.
    assert host["AutoRemove"] and "RestartPolicy" not in host and "Binds" not in host and "/srv/models" not in json.dumps(host)
    assert "hf_verysecret" not in json.dumps(made)
    assert "User" not in made and "User" not in _container.options(REQUEST)


def test_an_option_that_only_ranks_have_is_no_silent_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    options = _container.options
    monkeypatch.setattr(_container, "options", lambda request: {**options(request), "privileged": True})
    with pytest.raises(ValueError, match="a rank's container has the option privileged, which the collective proof does not know"):
        subject.body(REQUEST)


@pytest.mark.parametrize(
    "request_, local, gpus",
    [(REQUEST, 1, True), (change(tensor_parallel_size=16), 8, True), (change(tensor_parallel_size=16, gpus=False), 1, False), (change(ranks=4), 1, True)],
)
def test_one_process_a_gpu(request_: _container.Request, local: int, gpus: bool) -> None:
    found = subject.parameters(request_, "w", 90, 30)
    assert (found["local"], found["gpus"], found["nodes"], found["rank"]) == (local, gpus, request_.rank.ranks, 1)
    assert (found["head"], found["port"], found["word"], found["timeout"], found["join"]) == ("192.168.200.11", 29501, "w", 90, 30)


@pytest.mark.parametrize(
    "environment, fields, transport, expected",
    [
        ({}, {}, "auto", {"rdma": True, "hcas": ["rocep1s0f0", "roceP2p1s0f0"], "interfaces": ["enp1s0f0np0"]}),
        ({"NCCL_IB_HCA": "=mlx5_0:1,mlx5_1:1"}, {}, "auto", {"rdma": True, "hcas": ["mlx5_0", "mlx5_1"], "interfaces": ["enp1s0f0np0"]}),
        ({"NCCL_IB_HCA": "^mlx5_2"}, {}, "auto", {"rdma": True, "hcas": [], "interfaces": ["enp1s0f0np0"]}),
        ({"NCCL_IB_DISABLE": "1"}, {}, "auto", {"rdma": False, "hcas": [], "interfaces": ["enp1s0f0np0"]}),
        ({"NCCL_NET": "Socket"}, {}, "auto", {"rdma": False, "hcas": [], "interfaces": ["enp1s0f0np0"]}),
        ({}, {"infiniband": False}, "auto", {"rdma": False, "hcas": [], "interfaces": ["enp1s0f0np0"]}),
        ({}, {"infiniband": False}, "rdma", {"rdma": True, "hcas": ["rocep1s0f0", "roceP2p1s0f0"], "interfaces": ["enp1s0f0np0"]}),
        ({}, {}, "socket", {"rdma": False, "hcas": [], "interfaces": ["enp1s0f0np0"]}),
        ({"NCCL_SOCKET_IFNAME": "^docker0"}, {}, "any", {"rdma": False, "hcas": [], "interfaces": []}),
        ({"GLOO_SOCKET_IFNAME": "eth0"}, {"gpus": False}, "auto", {"rdma": False, "hcas": [], "interfaces": ["eth0"]}),
    ],
)
def test_what_the_environment_promises(environment: dict[str, str], fields: dict[str, t.Any], transport: str, expected: dict[str, t.Any]) -> None:
    told = subject.expectations(change(environment={**REQUEST.environment, **environment}, **fields), transport)
    assert told == {**expected, "named": expected["rdma"]}


@pytest.mark.parametrize(
    "environment, transport, named",
    [({}, "auto", False), ({"NCCL_IB_HCA": "mlx5"}, "auto", True), ({"NCCL_NET": "IB"}, "auto", True), ({}, "rdma", True), ({}, "any", False)],
)
def test_devices_alone_promise_nothing(environment: dict[str, str], transport: str, named: bool) -> None:
    # Every Spark has /dev/infiniband, also those that are joined by their 10 Gb/s ports only.
    assert subject.expectations(change(environment=environment), transport)["named"] is named


def test_the_interfaces_whose_links_count() -> None:
    assert subject.netdevs(change(environment={"NCCL_SOCKET_IFNAME": "=eth1,eth2", "GLOO_SOCKET_IFNAME": "eth1"})) == ["eth1", "eth2"]
    hcas = "=rocep1s0f0:1,roceP2p1s0f0:1"
    assert subject.netdevs(change(environment={"NCCL_SOCKET_IFNAME": "eth1", "NCCL_IB_HCA": hcas})) == ["eth1", "roceP2p1s0f0", "rocep1s0f0"]
    assert subject.netdevs(change(environment={})) == []


def members(request_: _container.Request = REQUEST, **parts: t.Any) -> list[dict[str, t.Any]]:
    told = {"identity": "sha256:aa", "boot": "b", "links": {"enp1s0f0np0": {"mtu": 9000}}, "program": "p", **parts}
    return [{**subject.content(change(rank=0)), **told, "boot": "a"}, {**subject.content(request_), **told}]


@pytest.mark.parametrize(
    "other",
    [
        members(change(environment={**REQUEST.environment, "NCCL_IB_HCA": "rocep1s0f0"})),
        members(change(address="192.168.200.13")),
        members(change(rendezvous_port=29502)),
        members(change(memory="100g")),
        members(change(infiniband=False)),
        members(identity="sha256:bb"),
        members(boot="c"),
        members(links={"enp1s0f0np0": {"mtu": 1500}}),
        members(program="q"),
        list(reversed(members())),
    ],
)
def test_what_a_proof_depends_on_changes_its_key(other: list[dict[str, t.Any]]) -> None:
    assert subject.key(members()) != subject.key(other)


@pytest.mark.parametrize("same", [change(arguments={"max-model-len": 1024}), change(model_path="/srv/models/n"), change(api_key_fingerprint="9")])
def test_what_it_does_not_depend_on_leaves_it(same: _container.Request) -> None:
    assert subject.key(members()) == subject.key(members(same))
