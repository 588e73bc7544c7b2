# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The rails, the environment and the problems of nodes as they are cabled: each a tree of sysfs made here."""

from __future__ import annotations

import dataclasses
import ipaddress
import pathlib

import pytest
from fabric_trees import LAN, P0, P1, RING, RING_CIDR, T0, T1, Nic, at, build, down, mac, unplugged, write

from ansible_collections.sparkstack.inference.plugins.module_utils._fabric import active_mtu
from ansible_collections.sparkstack.inference.plugins.module_utils._fabric_env import NAMES, fabric_picture
from ansible_collections.sparkstack.inference.plugins.module_utils._fabric_read import FabricError, parse_addresses


@dataclasses.dataclass
class Case:
    """A tree and what must come of it; C(environment) is compared for the names it has (None: must be absent)."""

    nics: list[Nic]
    address: str | None
    netdev: str | None
    environment: dict[str, str | None]
    problems: list[str]
    cidr: str = "192.168.200.0/24"
    forced: str | None = None
    speed: int = 0


ONE_CABLE = [LAN, at(P0, "192.168.200.11/24"), down(P1), at(T0, "192.168.201.11/24"), down(T1)]
BOTH_CABLES = [
    LAN,
    at(P0, "192.168.200.11/24"),
    at(P1, "192.168.202.11/24"),
    at(T0, "192.168.201.11/24"),
    at(T1, "192.168.203.11/24"),
]

CASES = {
    "a pair on one cable": Case(
        ONE_CABLE,
        "192.168.200.11",
        "enp1s0f0np0",
        {
            "NCCL_IB_HCA": "rocep1s0f0,roceP2p1s0f0",
            "NCCL_IB_GID_INDEX": "3",
            "NCCL_NET": "IB",
            "NCCL_IB_DISABLE": "0",
            "NCCL_SOCKET_IFNAME": "enp1s0f0np0",
            "GLOO_SOCKET_IFNAME": "enp1s0f0np0",
            "TP_SOCKET_IFNAME": "enp1s0f0np0",
            "MN_IF_NAME": "enp1s0f0np0",
            "OMPI_MCA_btl_tcp_if_include": "enp1s0f0np0",
            "UCX_NET_DEVICES": "rocep1s0f0:1,roceP2p1s0f0:1",
            "VLLM_HOST_IP": "192.168.200.11",
            "SGLANG_HOST_IP": "192.168.200.11",
            "RAY_NODE_IP_ADDRESS": "192.168.200.11",
            "NCCL_IGNORE_CPU_AFFINITY": "1",
            "NCCL_CROSS_NIC": "0",
            "NCCL_IB_MERGE_NICS": None,
            "NCCL_IB_SUBNET_AWARE_ROUTING": None,
        },
        [],
    ),
    "the same pair, crossed: this node's cable is in the other port": Case(
        [LAN, down(P0), at(P1, "192.168.200.12/24"), down(T0), at(T1, "192.168.201.12/24")],
        "192.168.200.12",
        "enp1s0f1np1",
        {"NCCL_IB_HCA": "rocep1s0f1,roceP2p1s0f1", "GLOO_SOCKET_IFNAME": "enp1s0f1np1"},
        [],
    ),
    # Up is not 'to my peer': the second port is used only when the network says so.
    "both cables, a network for one": Case(BOTH_CABLES, "192.168.200.11", "enp1s0f0np0", {"NCCL_IB_HCA": "rocep1s0f0,roceP2p1s0f0"}, []),
    "both cables, a network for all": Case(
        BOTH_CABLES,
        "192.168.200.11",
        "enp1s0f0np0",
        {"NCCL_IB_HCA": "rocep1s0f0,roceP2p1s0f0,rocep1s0f1,roceP2p1s0f1", "NCCL_IB_GID_INDEX": "3"},
        [],
        cidr="192.168.200.0/22",
    ),
    "both cables, the first one out": Case(
        [LAN, down(at(P0, "192.168.200.11/24")), *BOTH_CABLES[2:3], down(at(T0, "192.168.201.11/24")), BOTH_CABLES[4]],
        "192.168.202.11",
        "enp1s0f1np1",
        {"NCCL_IB_HCA": "rocep1s0f1,roceP2p1s0f1"},
        ["rail_down", "rail_down"],
        cidr="192.168.200.0/22",
    ),
    "four on a switch": Case(
        [LAN, at(P0, "10.10.0.14/24"), down(P1), at(T0, "10.10.1.14/24"), down(T1)],
        "10.10.0.14",
        "enp1s0f0np0",
        {"NCCL_IB_HCA": "rocep1s0f0,roceP2p1s0f0", "VLLM_HOST_IP": "10.10.0.14"},
        [],
        cidr="10.10.0.0/24",
    ),
    "twins in one subnet": Case(
        [LAN, at(P0, "192.168.200.11/24"), at(T0, "192.168.200.111/24")],
        "192.168.200.11",
        "enp1s0f0np0",
        {"NCCL_IB_HCA": "rocep1s0f0", "NCCL_CROSS_NIC": None},
        ["twins_one_subnet"],
    ),
    "the twin without an address": Case(
        [LAN, at(P0, "192.168.200.11/24"), T0], "192.168.200.11", "enp1s0f0np0", {"NCCL_IB_HCA": "rocep1s0f0"}, ["twin_unused"]
    ),
    "the twin down": Case(
        [at(P0, "192.168.200.11/24"), down(at(T0, "192.168.201.11/24"))],
        "192.168.200.11",
        "enp1s0f0np0",
        {"NCCL_IB_HCA": "rocep1s0f0"},
        ["twin_unused"],
    ),
    "the GID index differs": Case(
        [at(P0, "192.168.200.11/24"), at(T0, "192.168.201.11/24", first_gid=2)],
        "192.168.200.11",
        "enp1s0f0np0",
        # -1 stands there because an image may bring a number of its own.
        {"NCCL_IB_GID_INDEX": "-1", "NCCL_IB_ROCE_VERSION_NUM": "2", "NCCL_IB_ADDR_FAMILY": "AF_INET"},
        [],
    ),
    "no RDMA": Case(
        [LAN, at(Nic("enp1s0f0np0", speed=10000), "192.168.200.11/24")],
        "192.168.200.11",
        "enp1s0f0np0",
        {
            "NCCL_IB_DISABLE": "1",
            "NCCL_NET": "Socket",
            "NCCL_IB_HCA": None,
            "NCCL_IB_GID_INDEX": None,
            "UCX_NET_DEVICES": "enp1s0f0np0",
            "GLOO_SOCKET_IFNAME": "enp1s0f0np0",
        },
        ["no_rdma"],
    ),
    "the fabric address on the wrong interface": Case(
        [at(LAN, "192.168.200.11/24"), P0],
        "192.168.200.11",
        "enP7s7",
        {"NCCL_NET": None, "NCCL_IB_DISABLE": None, "NCCL_IB_HCA": None},
        ["rdma_elsewhere"],
    ),
    "no address": Case([LAN, P0, T0], None, None, {"VLLM_HOST_IP": None}, ["no_address"]),
    "another subnet": Case([at(P0, "192.168.100.11/24")], None, None, {}, ["no_address"]),
    "IPv6 only": Case([LAN, at(P0, ipv6=("fd00::11/64",))], None, None, {}, ["ipv6_only"]),
    "link down": Case(
        [down(at(P0, "192.168.200.11/24"))],
        "192.168.200.11",
        "enp1s0f0np0",
        {"NCCL_IB_HCA": None, "NCCL_IB_DISABLE": None, "GLOO_SOCKET_IFNAME": "enp1s0f0np0"},
        ["link_down"],
    ),
    "the RDMA port not active": Case([at(P0, "192.168.200.11/24", state="2: INIT")], "192.168.200.11", "enp1s0f0np0", {"NCCL_NET": None}, ["rdma_down"]),
    "no RoCE v2 GID": Case(
        [at(P0, "192.168.200.11/24", gids=False)],
        "192.168.200.11",
        "enp1s0f0np0",
        {"NCCL_IB_HCA": None, "NCCL_IB_DISABLE": None},
        ["no_roce_v2_gid"],
    ),
    "MTU 1500 on both twins": Case(
        [at(P0, "192.168.200.11/24", mtu=1500), at(T0, "192.168.201.11/24", mtu=1500)],
        "192.168.200.11",
        "enp1s0f0np0",
        {"NCCL_IB_HCA": "rocep1s0f0,roceP2p1s0f0"},
        ["mtu_small", "mtu_small"],
    ),
    "one rail slower than the other": Case(
        [at(P0, "192.168.200.11/24"), at(T0, "192.168.201.11/24", speed=100000)],
        "192.168.200.11",
        "enp1s0f0np0",
        {},
        ["speed_degraded"],
    ),
    "slower than it should be": Case([at(P0, "192.168.200.11/24", speed=25000)], "192.168.200.11", "enp1s0f0np0", {}, ["speed_degraded"], speed=200000),
    "two interfaces in the fabric": Case(
        [at(P0, "192.168.200.11/24"), at(P1, "192.168.200.21/24")],
        "192.168.200.11",
        "enp1s0f0np0",
        {"NCCL_IB_HCA": "rocep1s0f0"},
        ["several_addresses"],
    ),
    "two addresses on one interface": Case(
        [at(P0, "192.168.200.31/24", "192.168.200.11/24")],
        "192.168.200.31",
        "enp1s0f0np0",
        {"NCCL_IB_GID_INDEX": "3"},
        ["several_addresses"],
    ),
    "the second of two addresses forced": Case(
        [at(P0, "192.168.200.31/24", "192.168.200.11/24")],
        "192.168.200.11",
        "enp1s0f0np0",
        {"NCCL_IB_GID_INDEX": "5", "SGLANG_HOST_IP": "192.168.200.11"},
        [],
        forced="192.168.200.11",
    ),
    "an address outside the network forced": Case(
        ONE_CABLE, "10.0.0.11", "enP7s7", {"GLOO_SOCKET_IFNAME": "enP7s7", "NCCL_IB_HCA": None}, ["rdma_elsewhere"], forced="10.0.0.11"
    ),
    "an address forced that is not there": Case(ONE_CABLE, None, None, {}, ["fabric_address_absent"], forced="192.168.200.99"),
    "a server with mlx5 names, of which one begins another": Case(
        [
            at(Nic("ens1", "0000:41:00.0", "mlx5_1", guid="a:0", speed=100000), "192.168.200.11/24"),
            at(Nic("ens1.100"), "172.16.0.1/24"),
            Nic("ens10", "0000:42:00.0", "mlx5_10", guid="b:0"),
        ],
        "192.168.200.11",
        "ens1",
        {
            "NCCL_IB_HCA": "=mlx5_1",
            "NCCL_SOCKET_IFNAME": "=ens1",
            "GLOO_SOCKET_IFNAME": "ens1",
            "UCX_NET_DEVICES": "mlx5_1:1",
        },
        [],
    ),
    "InfiniBand without addresses beside the sockets' network, and RoCE for something else": Case(
        [
            at(Nic("eno1", "0000:02:00.0", speed=10000, mtu=1500), "192.168.200.11/24"),
            Nic("ibp65s0", "0000:41:00.0", "mlx5_0", link_layer="InfiniBand", gids=False, guid="a:0"),
            Nic("ibp66s0", "0000:42:00.0", "mlx5_1", link_layer="InfiniBand", gids=False, guid="b:0"),
            Nic("ibp67s0", "0000:43:00.0", "mlx5_10", link_layer="InfiniBand", gids=False, guid="c:0", up=False, state="2: INIT", carrier=""),
            at(Nic("ens9", "0000:81:00.0", "mlx5_2", guid="d:0"), "172.16.0.1/24"),
        ],
        "192.168.200.11",
        "eno1",
        {
            "NCCL_IB_HCA": "=mlx5_0,mlx5_1",
            "NCCL_NET": "IB",
            "NCCL_IB_GID_INDEX": None,
            "NCCL_CROSS_NIC": None,
            "NCCL_SOCKET_IFNAME": "eno1",
            "UCX_NET_DEVICES": "mlx5_0:1,mlx5_1:1",
        },
        [],
    ),
    "a bond of a port's two halves": Case(
        [
            at(Nic("bond0", devtype="bond", members=("enP2p1s0f0np0", "enp1s0f0np0"), mode="802.3ad 4", speed=400000), "192.168.200.11/24"),
            dataclasses.replace(P0, gid_netdev="bond0"),
            dataclasses.replace(T0, gid_netdev="bond0"),
        ],
        "192.168.200.11",
        "bond0",
        {"NCCL_IB_HCA": "roceP2p1s0f0", "NCCL_SOCKET_IFNAME": "bond0", "GLOO_SOCKET_IFNAME": "bond0", "NCCL_IB_GID_INDEX": "3"},
        ["bond"],
    ),
    "a VLAN on an RDMA device": Case(
        [
            Nic("ens1", "0000:41:00.0", "mlx5_1", speed=100000, gid_netdev="ens1.100"),
            at(Nic("ens1.100", devtype="vlan", members=("ens1",), speed=100000), "192.168.200.11/24"),
        ],
        "192.168.200.11",
        "ens1.100",
        {"NCCL_IB_HCA": "mlx5_1", "NCCL_IB_GID_INDEX": "3", "NCCL_SOCKET_IFNAME": "ens1.100", "GLOO_SOCKET_IFNAME": "ens1.100"},
        [],
    ),
    "the fabric address on the wireless interface": Case(
        [at(Nic("wlP9s9", "0009:01:00.0", devtype="wlan", mtu=1500, speed=-1), "192.168.200.11/24")],
        "192.168.200.11",
        "wlP9s9",
        {"GLOO_SOCKET_IFNAME": "wlP9s9"},
        ["wireless", "no_rdma"],
    ),
    "no signal": Case(
        [unplugged(at(P0, "192.168.200.11/24"))],
        "192.168.200.11",
        "enp1s0f0np0",
        {"NCCL_IB_HCA": None},
        ["link_down"],
    ),
    "two cards at the same place of two PCI domains are no twins": Case(
        [
            at(Nic("ens1", "0000:01:00.0", "mlx5_0", guid="0001:0000:0000:0000"), "192.168.200.11/24"),
            at(Nic("ens2", "0001:01:00.0", "mlx5_1", guid="0002:0000:0000:0000"), "172.16.0.1/24"),
        ],
        "192.168.200.11",
        "ens1",
        {"NCCL_IB_HCA": "mlx5_0"},
        [],
    ),
    "InfiniBand has no GID to choose": Case(
        [at(Nic("ibp1s0", "0000:01:00.0", "mlx5_0", link_layer="InfiniBand", gids=False, mtu=2044), "192.168.200.11/24")],
        "192.168.200.11",
        "ibp1s0",
        {"NCCL_IB_HCA": "mlx5_0", "NCCL_IB_GID_INDEX": None, "NCCL_NET": "IB"},
        [],
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_trees(tmp_path: pathlib.Path, case: Case) -> None:
    fabric = fabric_picture(str(tmp_path), build(tmp_path, case.nics), case.cidr, case.forced, case.speed)
    assert (fabric["address"], fabric["netdev"]) == (case.address, case.netdev)
    assert {name: fabric["environment"].get(name) for name in case.environment} == case.environment
    assert [problem["code"] for problem in fabric["problems"]] == case.problems
    assert fabric["environment"].keys() == fabric["environment_reasons"].keys()
    for problem in fabric["problems"]:
        assert problem.keys() == {"code", "message", "remedy"}
        assert problem["message"].endswith(".") and problem["remedy"].endswith(".")


def test_rails_of_a_spark(tmp_path: pathlib.Path) -> None:
    fabric = fabric_picture(str(tmp_path), build(tmp_path, ONE_CABLE), "192.168.200.0/24")
    rails = {rail["netdev"]: rail for rail in fabric["rails"]}
    assert list(rails) == ["enP2p1s0f0np0", "enP2p1s0f1np1", "enp1s0f0np0", "enp1s0f1np1"]
    assert rails["enp1s0f0np0"] == {
        "netdev": "enp1s0f0np0",
        "kind": "ethernet",
        "members": [],
        "hca": "rocep1s0f0",
        "port": 1,
        "link_layer": "ethernet",
        "address": "192.168.200.11",
        "prefix": 24,
        "mac": mac("enp1s0f0np0"),
        "mtu": 9000,
        "active_mtu": 4096,
        "speed_mbps": 200000,
        "carrier": True,
        "state": "up",
        "gid_index": 3,
        "pci": "0000:01:00.0",
        "twin": "enP2p1s0f0np0",
        "driver": "mlx5_core",
        "driver_version": None,
        "firmware": "28.45.4028",
        "board": "NVD0000000087",
        "used": True,
    }
    assert [rail["used"] for rail in rails.values()] == [True, False, True, False]
    assert rails["enP2p1s0f0np0"]["address"] == "192.168.201.11"
    idle = rails["enp1s0f1np1"]
    assert [idle[key] for key in ("state", "address", "speed_mbps", "gid_index", "carrier")] == ["down", None, None, None, None]
    assert fabric["candidates"] == [{"netdev": "enp1s0f0np0", "address": "192.168.200.11"}]
    assert [(interface["netdev"], interface["addresses"], interface["speed_mbps"]) for interface in fabric["interfaces"]] == [
        ("enP2p1s0f0np0", ["192.168.201.11/24"], 200000),
        ("enP7s7", ["10.0.0.11/24"], 10000),
        ("enp1s0f0np0", ["192.168.200.11/24"], 200000),
    ]


def test_a_driver_from_outside_of_the_kernel_has_a_version(tmp_path: pathlib.Path) -> None:
    nic = at(Nic("ens1", "0000:41:00.0", "mlx5_0", driver_version="24.10-0.7.0", firmware="22.43.2566", board="MT_0000000359"), "192.168.200.11/24")
    (rail,) = fabric_picture(str(tmp_path), build(tmp_path, [nic]), "192.168.200.0/24")["rails"]
    assert [rail[key] for key in ("driver", "driver_version", "firmware", "board")] == ["mlx5_core", "24.10-0.7.0", "22.43.2566", "MT_0000000359"]


def test_a_software_device_has_no_driver_and_no_firmware(tmp_path: pathlib.Path) -> None:
    ip_json = build(tmp_path, [at(Nic("eth1"), "192.168.200.11/24")])
    hca = tmp_path / "sys/class/infiniband/rxe0"
    write(hca / "fw_ver", "")
    for name, text in {"state": "4: ACTIVE", "link_layer": "Ethernet", "gids/1": "::ffff:192.168.200.11", "gid_attrs/types/1": "RoCE v2"}.items():
        write(hca / "ports/1" / name, text)
    write(hca / "ports/1/gid_attrs/ndevs/1", "eth1")
    fabric = fabric_picture(str(tmp_path), ip_json, "192.168.200.0/24")
    (rail,) = fabric["rails"]
    assert [rail[key] for key in ("hca", "driver", "driver_version", "firmware", "board", "pci")] == ["rxe0", None, None, None, None, None]
    assert (rail["kind"], fabric["environment"]["NCCL_IB_HCA"]) == ("virtual", "rxe0")


def test_a_bond_and_what_stands_under_it(tmp_path: pathlib.Path) -> None:
    case = CASES["a bond of a port's two halves"]
    fabric = fabric_picture(str(tmp_path), build(tmp_path, case.nics), case.cidr)
    assert [(rail["netdev"], rail["kind"], rail["members"], rail["hca"], rail["used"]) for rail in fabric["rails"]] == [
        ("bond0", "bond", ["enP2p1s0f0np0", "enp1s0f0np0"], "roceP2p1s0f0", True),
        ("bond0", "bond", ["enP2p1s0f0np0", "enp1s0f0np0"], "rocep1s0f0", False),
    ]
    assert fabric["problems"][0]["message"] == (
        "bond0 bonds enP2p1s0f0np0 and enp1s0f0np0 (802.3ad), so NCCL sees one RDMA device where each of them could be one."
    )


def test_no_signal_is_told_from_set_down(tmp_path: pathlib.Path) -> None:
    told = []
    for name, nic in (("down", down(at(P0, "192.168.200.11/24"))), ("unplugged", unplugged(at(P0, "192.168.200.11/24")))):
        fabric = fabric_picture(str(tmp_path / name), build(tmp_path / name, [nic]), "192.168.200.0/24")
        told.append((fabric["rails"][0]["carrier"], fabric["problems"][0]["message"]))
    assert told == [(None, "The fabric link enp1s0f0np0 is down."), (False, "The fabric link enp1s0f0np0 has no signal.")]


def test_more_than_one_candidate(tmp_path: pathlib.Path) -> None:
    nics = [down(at(T0, "192.168.200.9/24")), at(P1, "192.168.200.21/24"), at(P0, "192.168.200.11/24")]
    fabric = fabric_picture(str(tmp_path), build(tmp_path, nics), "192.168.200.0/24")
    assert [candidate["address"] for candidate in fabric["candidates"]] == ["192.168.200.11", "192.168.200.21", "192.168.200.9"]


@pytest.mark.parametrize(
    ("node", "hcas"),
    [(node, "rocep1s0f0,roceP2p1s0f0,rocep1s0f1,roceP2p1s0f1" if node != "two" else "rocep1s0f1,roceP2p1s0f1,rocep1s0f0,roceP2p1s0f0") for node in RING],
)
def test_three_in_a_ring(tmp_path: pathlib.Path, node: str, hcas: str) -> None:
    """Sockets go over the network that holds all three, RDMA over the four rails."""
    lan = RING[node][0].addresses[0].split("/")[0]
    fabric = fabric_picture(str(tmp_path), build(tmp_path, RING[node]), RING_CIDR, control_address=lan, subnet_aware=True)
    assert (fabric["address"], fabric["netdev"], fabric["problems"]) == (lan, "enP7s7", [])
    assert [rail["netdev"] for rail in fabric["rails"] if rail["used"]] == ["enP2p1s0f0np0", "enP2p1s0f1np1", "enp1s0f0np0", "enp1s0f1np1"]
    wanted = {
        "NCCL_IB_HCA": hcas,
        "NCCL_NET": "IB",
        "NCCL_IB_GID_INDEX": "3",
        "NCCL_IB_SUBNET_AWARE_ROUTING": "1",
        "NCCL_IB_MERGE_NICS": "0",
        "NCCL_NET_PLUGIN": "none",
        "NCCL_IB_SUBNET_PREFIX_LEN": None,
        "NCCL_CROSS_NIC": None,
        "NCCL_SOCKET_IFNAME": "enP7s7",
        "GLOO_SOCKET_IFNAME": "enP7s7",
        "VLLM_HOST_IP": lan,
        "SGLANG_HOST_IP": lan,
        "RAY_NODE_IP_ADDRESS": lan,
    }
    assert {name: fabric["environment"].get(name) for name in wanted} == wanted


def test_subnets_of_another_length_are_told_to_nccl(tmp_path: pathlib.Path) -> None:
    nics = [at(P0, "192.168.0.1/30"), at(P1, "192.168.0.5/30")]
    fabric = fabric_picture(str(tmp_path), build(tmp_path, nics), "192.168.0.0/24", subnet_aware=True)
    assert fabric["environment"]["NCCL_IB_SUBNET_PREFIX_LEN"] == "30"


def test_a_control_address_on_a_rail_keeps_the_rail(tmp_path: pathlib.Path) -> None:
    fabric = fabric_picture(str(tmp_path), build(tmp_path, BOTH_CABLES), "192.168.200.0/22", control_address="192.168.202.11", without=["enP2p1s0f0np0"])
    assert (fabric["address"], fabric["netdev"]) == ("192.168.202.11", "enp1s0f1np1")
    assert fabric["environment"]["NCCL_IB_HCA"] == "rocep1s0f1,rocep1s0f0,roceP2p1s0f1"
    assert fabric["problems"] == []


def test_a_control_address_that_is_not_there(tmp_path: pathlib.Path) -> None:
    fabric = fabric_picture(str(tmp_path), build(tmp_path, ONE_CABLE), "192.168.200.0/24", control_address="10.0.0.99")
    assert (fabric["address"], fabric["environment"], [problem["code"] for problem in fabric["problems"]]) == (None, {}, ["control_address_absent"])


def test_a_control_link_that_is_down(tmp_path: pathlib.Path) -> None:
    nics = [down(RING["one"][0]), *RING["one"][1:]]
    fabric = fabric_picture(str(tmp_path), build(tmp_path, nics), RING_CIDR, control_address="10.0.0.11", subnet_aware=True)
    assert [problem["message"] for problem in fabric["problems"]] == ["The link enP7s7 with the address 10.0.0.11 is down."]


def test_a_rail_without_rdma(tmp_path: pathlib.Path) -> None:
    nic = at(Nic("eth1", mtu=1500, speed=-1), "192.168.200.11/24")
    fabric = fabric_picture(str(tmp_path), build(tmp_path, [nic]), "192.168.200.0/24")
    (rail,) = fabric["rails"]
    assert [rail[key] for key in ("hca", "port", "active_mtu", "gid_index", "speed_mbps")] == [None] * 5
    assert (rail["netdev"], rail["state"], rail["mtu"]) == ("eth1", "up", 1500)


def test_no_address_names_what_there_is(tmp_path: pathlib.Path) -> None:
    fabric = fabric_picture(str(tmp_path), build(tmp_path, [LAN, P0, down(P1)]), "192.168.200.0/24")
    assert fabric["environment"] == {}
    assert fabric["problems"][0]["message"] == (
        "No interface of this node has an address inside the fabric 192.168.200.0/24; with an RDMA device there is"
        " enp1s0f0np0 (up, no address), enp1s0f1np1 (down, no address)."
    )


def test_reasons_name_what_they_rest_on(tmp_path: pathlib.Path) -> None:
    reasons = fabric_picture(str(tmp_path), build(tmp_path, ONE_CABLE), "192.168.200.0/24")["environment_reasons"]
    assert reasons["NCCL_IB_HCA"] == ("ACTIVE on the fabric: rocep1s0f0 on enp1s0f0np0, roceP2p1s0f0 on enP2p1s0f0np0.")
    assert "192.168.200.11" in reasons["GLOO_SOCKET_IFNAME"]


def test_a_device_with_two_ports(tmp_path: pathlib.Path) -> None:
    ip_json = build(tmp_path, [at(Nic("p0"), "192.168.200.11/24"), Nic("p1")])
    hca = tmp_path / "sys/class/infiniband/mlx4_0"
    for number, name in ((1, "p0"), (2, "p1")):
        write(hca / f"ports/{number}/state", "4: ACTIVE")
        write(hca / f"ports/{number}/link_layer", "Ethernet")
        write(hca / f"device/net/{name}/dev_port", str(number - 1))
    write(hca / "ports/1/gids/4", "0000:0000:0000:0000:0000:ffff:c0a8:c80b")
    write(hca / "ports/1/gid_attrs/types/4", "RoCE v2")
    fabric = fabric_picture(str(tmp_path), ip_json, "192.168.200.0/24")
    assert [(rail["netdev"], rail["port"]) for rail in fabric["rails"]] == [("p0", 1), ("p1", 2)]
    assert (fabric["environment"]["NCCL_IB_HCA"], fabric["environment"]["NCCL_IB_GID_INDEX"]) == ("mlx4_0:1", "4")


@pytest.mark.parametrize(("mtu", "expected"), [(9000, 4096), (4192, 4096), (4191, 2048), (1500, 1024), (576, 256), (68, 0)])
def test_active_mtu(mtu: int, expected: int) -> None:
    assert active_mtu(mtu) == expected


def test_addresses() -> None:
    found = parse_addresses('[{},{"ifname":"a","addr_info":[{"family":"inet","local":"10.0.0.1","prefixlen":8},{"family":"inet6"}]}]')
    assert found == {"a": [ipaddress.IPv4Interface("10.0.0.1/8")]}
    assert parse_addresses("") == {}


@pytest.mark.parametrize(
    ("ip_json", "cidr", "forced", "message"),
    [
        ("1: lo: <LOOPBACK>", "10.0.0.0/8", None, "'ip -json addr' gave no JSON list: install iproute2 4.13 or newer on the node."),
        ("{}", "10.0.0.0/8", None, "'ip -json addr' gave no JSON list: install iproute2 4.13 or newer on the node."),
        ("[]", "fabric", None, "fabric_cidr 'fabric' is no IPv4 network: write it like 192.168.200.0/24."),
        ("[]", "fd00::/64", None, "fabric_cidr 'fd00::/64' is no IPv4 network: write it like 192.168.200.0/24."),
        ("[]", "10.0.0.0/8", "10.0.0", "fabric_address '10.0.0' is no IPv4 address: write it like 192.168.200.11."),
    ],
)
def test_what_cannot_be_read_is_said_in_one_sentence(tmp_path: pathlib.Path, ip_json: str, cidr: str, forced: str | None, message: str) -> None:
    with pytest.raises(FabricError) as caught:
        fabric_picture(str(tmp_path), ip_json, cidr, forced)
    assert str(caught.value) == message


def test_an_empty_root(tmp_path: pathlib.Path) -> None:
    fabric = fabric_picture(str(tmp_path), "[]", "192.168.200.5/24")
    assert (fabric["rails"], [problem["code"] for problem in fabric["problems"]]) == ([], ["no_address"])


def test_every_variable_that_a_node_may_be_given_is_known(tmp_path: pathlib.Path) -> None:
    given: set[str] = set()
    for number, (case, options) in enumerate([(case, {}) for case in CASES.values()] + [(CASES["a pair on one cable"], {"subnet_aware": True})]):
        root = tmp_path / str(number)
        given |= set(fabric_picture(str(root), build(root, case.nics), case.cidr, case.forced, **options)["environment"])
    nics = [at(P0, "192.168.0.1/30"), at(P1, "192.168.0.5/30")]
    given |= set(fabric_picture(str(tmp_path / "x"), build(tmp_path / "x", nics), "192.168.0.0/24", subnet_aware=True)["environment"])
    assert given == NAMES
