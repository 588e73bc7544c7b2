# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How the nodes fit together, from the trees of all of them to what each is gathered with again."""

from __future__ import annotations

import dataclasses
import pathlib
import typing as t

import pytest
from ansible.errors import AnsibleFilterError
from fabric_trees import LAN, P0, P1, RING, RING_CIDR, T0, T1, Nic, at, build, down, pair

from ansible_collections.sparkstack.inference.plugins.filter.fabric_group import FilterModule
from ansible_collections.sparkstack.inference.plugins.module_utils._fabric_env import fabric_picture
from ansible_collections.sparkstack.inference.plugins.plugin_utils._fabric_group import Group, group

DOCKER = at(Nic("docker0", devtype="bridge", mtu=1500, speed=10000), "172.17.0.1/16")
WIFI = Nic("wlP9s9", "0009:01:00.0", devtype="wlan", mtu=1500, speed=100000)


def gather(root: pathlib.Path, nodes: t.Mapping[str, t.Sequence[Nic]], cidr: str, **more: t.Any) -> dict[str, dict[str, t.Any]]:
    folders = {node: root / f"{len(list(root.iterdir()))}-{node}" for node in nodes}
    return {node: fabric_picture(str(folders[node]), build(folders[node], nics), cidr, **more) for node, nics in nodes.items()}


def both(host: int, crossed: bool = False) -> list[Nic]:
    """Both cables of a Spark; :param crossed: the first cable is in the second port."""
    ports = [P1, T1, P0, T0] if crossed else [P0, T0, P1, T1]
    return [at(LAN, f"10.0.0.{host}/24"), *(at(port, f"192.168.{200 + index}.{host}/24") for index, port in enumerate(ports))]


@dataclasses.dataclass
class Case:
    """Trees of all nodes, and what must come of them."""

    nodes: dict[str, list[Nic]]
    topology: str
    problems: list[str] = dataclasses.field(default_factory=list)
    aware: bool = False
    control: list[str | None] | None = None
    without: list[list[str]] | None = None
    cidr: str = "192.168.200.0/24"


CASES = {
    "one node": Case({"a": pair([P0, T0], 11)}, "single"),
    "a pair on one cable": Case({"a": pair([P0, T0], 11), "b": pair([P0, T0], 12)}, "pair"),
    "a pair on one cable, in different ports": Case({"a": pair([P0, T0], 11), "b": pair([P1, T1], 12)}, "pair"),
    "a pair on both cables": Case({"a": both(11), "b": both(12)}, "pair", cidr="192.168.200.0/22"),
    "a pair on both cables, crossed": Case({"a": both(11), "b": both(12, crossed=True)}, "pair", ["rails_crossed"], True, cidr="192.168.200.0/22"),
    "the halves' subnets swapped on one node": Case({"a": pair([P0, T0], 11), "b": pair([T0, P0], 12)}, "pair", ["rails_crossed"], True),
    "four on a switch": Case({name: pair([P0, T0], 11 + index) for index, name in enumerate("abcd")}, "switch"),
    # The LAN is faster on paper than the wireless network, and Docker's bridge is the same on all.
    "three in a ring": Case(
        {node: [*nics, DOCKER, at(WIFI, f"10.9.9.{index}/24")] for index, (node, nics) in enumerate(RING.items(), 1)},
        "ring",
        ["rails_crossed"],
        True,
        ["10.0.0.11", "10.0.0.12", "10.0.0.13"],
        cidr=RING_CIDR,
    ),
    "three in a ring that nothing else joins": Case(
        {node: [*nics[1:], DOCKER] for node, nics in RING.items()}, "ring", ["no_control_network", "rails_crossed"], True, cidr=RING_CIDR
    ),
    "a twin without a counterpart": Case(
        {"a": pair([P0, T0], 11), "b": [at(P0, "192.168.200.12/24"), down(T0)]}, "pair", ["rail_unmatched"], without=[["enP2p1s0f0np0"], []]
    ),
    "a second cable that leads elsewhere": Case(
        {"a": [*pair([P0, T0], 11)[:3], at(P1, "192.168.203.1/24")], "b": pair([P0, T0], 12)},
        "pair",
        ["rail_unmatched"],
        without=[["enp1s0f1np1"], []],
        cidr="192.168.200.0/22",
    ),
    "the first rail is down on one node": Case(
        {"a": both(11), "b": [nic if nic.name not in (P0.name, T0.name) else down(nic) for nic in both(12)]},
        "pair",
        ["rail_unmatched", "rail_unmatched"],
        control=["192.168.202.11", None],
        without=[["enp1s0f0np0", "enP2p1s0f0np0"], []],
        cidr="192.168.200.0/22",
    ),
    "different subnets": Case(
        {"a": pair([P0, T0], 11), "b": [at(P0, "192.168.210.12/24"), at(T0, "192.168.211.12/24")]}, "split", ["no_shared_subnet"], cidr="192.168.0.0/16"
    ),
    "four in a ring, of which opposite ones share nothing": Case(
        {name: [at(P0, f"192.168.{index}.1/24"), at(P1, f"192.168.{(index + 1) % 4}.2/24")] for index, name in enumerate("abcd")},
        "split",
        ["no_shared_subnet"],
        cidr=RING_CIDR,
    ),
    "a pair without RDMA": Case({name: [at(Nic("eth1"), f"192.168.200.{host}/24")] for name, host in (("a", 11), ("b", 12))}, "pair"),
    "InfiniBand without addresses": Case(
        {
            name: [at(Nic("eno1"), f"192.168.200.{host}/24"), Nic("ibp1", "0000:41:00.0", "mlx5_0", link_layer="InfiniBand", gids=False)]
            for name, host in (("a", 11), ("b", 12))
        },
        "pair",
    ),
    "a node without an address has no part": Case({"a": pair([P0, T0], 11), "b": [LAN]}, "single"),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_groups(tmp_path: pathlib.Path, case: Case) -> None:
    found = group(gather(tmp_path, case.nodes, case.cidr))
    assert (found.topology, [problem["code"] for problem in found.problems]) == (case.topology, case.problems)
    told = list(found.nodes.values())
    assert [node["subnet_aware"] for node in told] == [case.aware] * len(told)
    assert [node["control_address"] for node in told] == (case.control or [None] * len(told))
    assert [node["without"] for node in told] == (case.without or [[]] * len(told))
    assert [node["again"] for node in told] == [bool(node["subnet_aware"] or node["control_address"] or node["without"]) for node in told]
    for problem in found.problems:
        assert problem["message"].endswith(".") and problem["remedy"].endswith(".") and set(problem["nodes"]) <= set(case.nodes)


def again(root: pathlib.Path, nodes: t.Mapping[str, t.Sequence[Nic]], cidr: str, found: Group) -> dict[str, dict[str, t.Any]]:
    """The facts of all nodes, gathered with what the group's comparison told."""
    facts = {}
    for node, told in found.nodes.items():
        options = {key: told[key] for key in ("control_address", "subnet_aware", "without")}
        facts.update(gather(root, {node: nodes[node]}, cidr, **options))
    return facts


def test_a_ring_is_whole_after_the_second_look(tmp_path: pathlib.Path) -> None:
    found = group(gather(tmp_path, RING, RING_CIDR))
    facts = again(tmp_path, RING, RING_CIDR, found)
    assert [fabric["address"] for fabric in facts.values()] == ["10.0.0.11", "10.0.0.12", "10.0.0.13"]
    assert {fabric["environment"]["NCCL_IB_SUBNET_AWARE_ROUTING"] for fabric in facts.values()} == {"1"}
    assert {len(fabric["environment"]["NCCL_IB_HCA"].split(",")) for fabric in facts.values()} == {4}
    # Looked at once more, nothing is left to be said but that they are crossed.
    assert [problem["code"] for problem in group(facts).problems] == ["rails_crossed"]
    assert {node["control_address"] for node in group(facts).nodes.values()} == {None}


def test_sockets_move_to_the_rail_that_all_have(tmp_path: pathlib.Path) -> None:
    case = CASES["the first rail is down on one node"]
    facts = again(tmp_path, case.nodes, case.cidr, group(gather(tmp_path, case.nodes, case.cidr)))
    assert [(fabric["address"], fabric["netdev"]) for fabric in facts.values()] == [
        ("192.168.202.11", "enp1s0f1np1"),
        ("192.168.202.12", "enp1s0f1np1"),
    ]
    assert {fabric["environment"]["NCCL_IB_HCA"] for fabric in facts.values()} == {"rocep1s0f1,roceP2p1s0f1"}


def test_the_sentences(tmp_path: pathlib.Path) -> None:
    case = CASES["different subnets"]
    (problem,) = group(gather(tmp_path, case.nodes, case.cidr)).problems
    assert problem["message"] == (
        "These nodes share no subnet on the fabric: a (192.168.200.0/24, 192.168.201.0/24) and b (192.168.210.0/24, 192.168.211.0/24)."
    )
    case = CASES["the halves' subnets swapped on one node"]
    (problem,) = group(gather(tmp_path, case.nodes, case.cidr)).problems
    assert problem["message"] == (
        "NCCL joins the nodes' RDMA devices in the order of their PCI addresses, and so they are in different subnets: "
        "a 192.168.200.0/24, 192.168.201.0/24; b 192.168.201.0/24, 192.168.200.0/24."
    )


def test_the_filter_gives_plain_data(tmp_path: pathlib.Path) -> None:
    told = FilterModule().filters()["fabric_group"]({**gather(tmp_path, CASES["a pair on one cable"].nodes, "192.168.200.0/24"), "c": {}})
    assert told == {
        "topology": "pair",
        "nodes": {node: {"control_address": None, "subnet_aware": False, "without": [], "again": False} for node in ("a", "b")},
        "problems": [],
    }


def test_the_filter_says_what_it_wants() -> None:
    with pytest.raises(AnsibleFilterError, match="give a mapping of each node"):
        FilterModule().filters()["fabric_group"](["a"])
