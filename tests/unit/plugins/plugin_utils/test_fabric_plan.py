# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The fabric's plan: for each wiring its addresses, what is kept, and each refusal."""

from __future__ import annotations

import copy
import ipaddress
import typing as t

import pytest
import yaml

from ansible_collections.sparkstack.inference.plugins.plugin_utils import _fabric_plan, _fabric_segments
from ansible_collections.sparkstack.inference.plugins.plugin_utils._fabric_plan import Settings
from ansible_collections.sparkstack.inference.plugins.plugin_utils._fabric_segments import Node

P0, T0, P1, T1 = "enp1s0f0np0", "enP2p1s0f0np0", "enp1s0f1np1", "enP2p1s0f1np1"
"""A Spark's four interfaces: port 0 and its twin, port 1 and its twin."""
LAN = "enP7s7"
# As sysfs gives them: the place on the bus and the card's sys_image_guid, and the PCI domain.
CANDIDATES = [
    {"netdev": P0, "port": "01:00.0 fc4c:ea03:00f9:4230", "lane": "0000"},
    {"netdev": T0, "port": "01:00.0 fc4c:ea03:00f9:4230", "lane": "0002"},
    {"netdev": P1, "port": "01:00.1 fc4c:ea03:00f9:4230", "lane": "0000"},
    {"netdev": T1, "port": "01:00.1 fc4c:ea03:00f9:4230", "lane": "0002"},
]
TWINS = {P0: (P0, T0), P1: (P1, T1)}

Cable = tuple[tuple[str, str], ...]


def link(*addresses: str, **changes: t.Any) -> dict[str, t.Any]:
    found = [{"address": address.lstrip("~"), "dynamic": address.startswith("~"), "broadcast": None} for address in addresses]
    return {"mtu": 1500, "up": True, "carrier": True, "mac": "02:00:00:00:00:01", "master": None, "addresses": found, **changes}


def nodes(count: int, *cables: Cable) -> list[Node]:
    """Sparks that are joined by cables, each the ports that it joins; what no cable is in has no carrier."""
    found = []
    for number in range(1, count + 1):
        links = {LAN: link(f"10.0.0.{number}/24", mtu=1500), "docker0": link("172.17.0.1/16", carrier=False)}
        links.update({entry["netdev"]: link(carrier=False) for entry in CANDIDATES})
        network = {
            "links": links, "candidates": copy.deepcopy(CANDIDATES), "named": False, "managed_by": {LAN: "it has the default route"},
            "heard": {}, "netplan": True, "definitions": [], "others": {}, "pending": None, "told": None, "now": 1000.0,
        }  # fmt: skip
        found.append(Node(f"spark{number}", network))
    known = {node.host: node for node in found}
    for cable in cables:
        # A call goes to both functions of every other port, and comes back from none.
        for host, port in cable:
            for netdev in TWINS[port]:
                known[host].links[netdev]["carrier"] = True
                known[host].network["heard"][netdev] = [[other, name] for other, far in cable if (other, far) != (host, port) for name in TWINS[far]]
    return found


def own(node: Node, **addresses: str) -> None:
    """Addresses of a node, by interface; a tilde before one from DHCP."""
    for netdev, address in addresses.items():
        node.links[netdev].update(link(address, carrier=node.links[netdev]["carrier"]))


ONE = ((("spark1", P0), ("spark2", P0)),)
CROSSED = ((("spark1", P0), ("spark2", P1)),)
BOTH = ((("spark1", P0), ("spark2", P0)), (("spark1", P1), ("spark2", P1)))
BOTH_CROSSED = ((("spark1", P0), ("spark2", P1)), (("spark1", P1), ("spark2", P0)))
RING = ((("spark1", P0), ("spark2", P1)), (("spark2", P0), ("spark3", P1)), (("spark3", P0), ("spark1", P1)))
SWITCH = (tuple((f"spark{number}", P0) for number in range(1, 5)),)
SWITCH_BOTH = (tuple((f"spark{number}", port) for number in range(1, 3) for port in (P0, P1)),)


def settings(cidr: str = "192.168.200.0/24", **changes: t.Any) -> Settings:
    return Settings(ipaddress.IPv4Network(cidr), **changes)


def plan(found: list[Node], wanted: Settings | None = None) -> dict[str, dict[str, str]]:
    """The addresses by host and interface; the plan has no problem."""
    made = _fabric_plan.make(found, wanted or settings())
    assert made.problems == []
    return {host: {entry["netdev"]: entry["address"] for entry in node["interfaces"]} for host, node in made.nodes.items()}


@pytest.mark.parametrize(
    ("count", "cables", "cidr", "wanted"),
    [
        (2, ONE, "192.168.200.0/24", {"spark1": {P0: "200.11", T0: "201.11"}, "spark2": {P0: "200.12", T0: "201.12"}}),
        (2, CROSSED, "192.168.200.0/24", {"spark1": {P0: "200.11", T0: "201.11"}, "spark2": {P1: "200.12", T1: "201.12"}}),
        (
            2,
            BOTH,
            "192.168.200.0/22",
            {
                "spark1": {P0: "200.11", T0: "201.11", P1: "202.11", T1: "203.11"},
                "spark2": {P0: "200.12", T0: "201.12", P1: "202.12", T1: "203.12"},
            },
        ),
        (
            2,
            BOTH_CROSSED,
            "192.168.200.0/22",
            {
                "spark1": {P0: "200.11", T0: "201.11", P1: "202.11", T1: "203.11"},
                "spark2": {P1: "200.12", T1: "201.12", P0: "202.12", T0: "203.12"},
            },
        ),
        (
            3,
            RING,
            "192.168.200.0/21",
            {
                "spark1": {P0: "200.11", T0: "201.11", P1: "202.11", T1: "203.11"},
                "spark2": {P1: "200.12", T1: "201.12", P0: "204.12", T0: "205.12"},
                "spark3": {P0: "202.13", T0: "203.13", P1: "204.13", T1: "205.13"},
            },
        ),
        (4, SWITCH, "192.168.200.0/24", {f"spark{n}": {P0: f"200.{10 + n}", T0: f"201.{10 + n}"} for n in range(1, 5)}),
        # Both ports in one switch: they all hear each other, and get four subnets all the same.
        (
            2,
            SWITCH_BOTH,
            "192.168.200.0/24",
            {f"spark{n}": {P0: f"200.{10 + n}", T0: f"201.{10 + n}", P1: f"202.{10 + n}", T1: f"203.{10 + n}"} for n in (1, 2)},
        ),
    ],
    ids=["one cable", "crossed", "both cables", "both crossed", "ring of three", "four on a switch", "both ports on a switch"],
)  # fmt: skip
def test_a_wiring_gets_its_addresses(count: int, cables: t.Any, cidr: str, wanted: dict[str, dict[str, str]]) -> None:
    found = nodes(count, *cables)
    given = plan(found, settings(cidr))
    assert given == {host: {netdev: f"192.168.{address}/24" for netdev, address in sorted(entry.items())} for host, entry in wanted.items()}
    # Once they are there, the next plan is the same.
    for node in found:
        own(node, **given[node.host])
    assert plan(found, settings(cidr)) == given
    # The twins of a port, and all interfaces of a node, are in different subnets.
    for entry in given.values():
        assert len({ipaddress.IPv4Interface(address).network for address in entry.values()}) == len(entry)


def test_one_call_in_one_direction_joins_two_ports() -> None:
    found = nodes(2, *ONE)
    found[0].network["heard"] = {}
    found[1].network["heard"] = {T0: [["spark1", P0]]}
    assert _fabric_segments.find(found)[0].lanes == [[("spark1", P0), ("spark2", P0)], [("spark1", T0), ("spark2", T0)]]


def test_a_port_that_hears_nobody_is_left_alone() -> None:
    # eugr#40: the second port is up, and leads to a PC.
    found = nodes(2, *ONE)
    for netdev in (P1, T1):
        found[0].links[netdev]["carrier"] = True
        found[0].network["heard"][netdev] = []
    assert plan(found)["spark1"].keys() == {P0, T0}
    assert f"  spark1: {P1}, {T1} left alone, as no other node is heard there" in _fabric_plan.make(found, settings()).lines


def test_what_is_there_and_right_is_kept() -> None:
    # As NVIDIA's guide for two Sparks has it, with the network in the inventory.
    found = nodes(2, *ONE)
    own(found[0], **{P0: "192.168.100.10/24", T0: "192.168.101.10/24"})
    own(found[1], **{P0: "192.168.100.11/24", T0: "192.168.101.11/24"})
    wanted = {"spark1": {T0: "192.168.101.10/24", P0: "192.168.100.10/24"}, "spark2": {T0: "192.168.101.11/24", P0: "192.168.100.11/24"}}
    assert plan(found, settings("192.168.100.0/24")) == wanted


@pytest.mark.parametrize(
    ("first", "second", "wanted"),
    [
        # The other node gets one in the same subnet, and both the same number in the twins'.
        ({P0: "192.168.200.77/24"}, {}, ({P0: "200.77", T0: "201.77"}, {P0: "200.12", T0: "201.12"})),
        # The number that comes next is taken.
        ({P0: "192.168.200.12/24"}, {}, ({P0: "200.12", T0: "201.12"}, {P0: "200.13", T0: "201.13"})),
        # Twins in one subnet, a known fault: the second one moves.
        (
            {P0: "192.168.200.11/24", T0: "192.168.200.111/24"},
            {P0: "192.168.200.12/24", T0: "192.168.200.112/24"},
            ({P0: "200.11", T0: "201.11"}, {P0: "200.12", T0: "201.12"}),
        ),
        # Two subnets on one cable: that of the first node, the lower one, stays.
        ({P0: "192.168.200.5/25"}, {P0: "192.168.200.129/25"}, ({P0: "200.5/25", T0: "201.5"}, {P0: "200.12/25", T0: "201.12"})),
        # One address twice: the second node gets another one.
        ({P0: "192.168.200.5/24"}, {P0: "192.168.200.5/24"}, ({P0: "200.5", T0: "201.5"}, {P0: "200.6", T0: "201.6"})),
        # Another network than the fabric: all of the cable moves.
        (
            {P0: "192.168.100.10/24", T0: "192.168.101.10/24"},
            {P0: "192.168.100.11/24", T0: "192.168.101.11/24"},
            ({P0: "200.11", T0: "201.11"}, {P0: "200.12", T0: "201.12"}),
        ),
        # From DHCP, and link-local: neither is anybody's to keep.
        ({P0: "~192.168.200.90/24"}, {P0: "169.254.3.4/16"}, ({P0: "200.11", T0: "201.11"}, {P0: "200.12", T0: "201.12"})),
    ],
)
def test_what_is_there_in_part(first: dict[str, str], second: dict[str, str], wanted: tuple[dict[str, str], dict[str, str]]) -> None:
    found = nodes(2, *ONE)
    own(found[0], **first)
    own(found[1], **second)
    whole = [{netdev: "192.168." + address + ("" if "/" in address else "/24") for netdev, address in entry.items()} for entry in wanted]
    assert plan(found) == {"spark1": whole[0], "spark2": whole[1]}


def test_the_inventorys_addresses_come_first() -> None:
    found = nodes(2, *ONE)
    own(found[1], **{P0: "192.168.200.31/24"})
    found[0].address, found[1].address = "192.168.200.21", "192.168.200.22"
    assert plan(found) == {"spark1": {P0: "192.168.200.21/24", T0: "192.168.201.21/24"}, "spark2": {P0: "192.168.200.22/24", T0: "192.168.201.22/24"}}


def test_the_inventorys_addresses_choose_the_subnet() -> None:
    found = nodes(2, *ONE)
    found[0].address = "10.55.7.3"
    assert plan(found, settings("10.55.0.0/16"))["spark2"] == {P0: "10.55.7.12/24", T0: "10.55.0.12/24"}


TEXT = """\
# Written by sparkstack.inference (role fabric_configure). Bring back what was before with the playbook fabric_restore.
network:
  version: 2
  ethernets:
    enP2p1s0f0np0:
      dhcp4: false
      dhcp6: false
      accept-ra: false
      link-local: []
      optional: true
      mtu: 9000
      addresses:
        - 192.168.201.11/24
    enp1s0f0np0:
      dhcp4: false
      dhcp6: false
      accept-ra: false
      link-local: []
      optional: true
      mtu: 9000
      addresses:
        - 192.168.200.11/24
"""


def test_the_file() -> None:
    made = _fabric_plan.make(nodes(2, *ONE), settings())
    assert made.nodes["spark1"]["content"] == TEXT
    assert yaml.safe_load(TEXT)["network"]["ethernets"][P0]["addresses"] == ["192.168.200.11/24"]
    named = _fabric_plan.make(nodes(2, *ONE), settings(renderer="networkd", mtu=4200)).nodes["spark1"]["content"]
    assert [(entry["renderer"], entry["mtu"]) for entry in yaml.safe_load(named)["network"]["ethernets"].values()] == [("networkd", 4200)] * 2


def test_each_peer_is_asked_by_the_interface_that_shares_its_subnet() -> None:
    made = _fabric_plan.make(nodes(3, *RING), settings("192.168.200.0/21"))
    assert [(peer["host"], peer["netdev"], peer["address"], peer["mtu"]) for peer in made.nodes["spark3"]["peers"]] == [
        ("spark1", P0, "192.168.202.11", 9000),
        ("spark1", T0, "192.168.203.11", 9000),
        ("spark2", P1, "192.168.204.12", 9000),
        ("spark2", T1, "192.168.205.12", 9000),
    ]


def test_the_screen() -> None:
    found = nodes(2, *ONE)
    own(found[0], **{P0: "192.168.200.11/24"})
    found[0].links[P0]["mtu"] = 9000
    assert _fabric_plan.make(found, settings()).lines == [
        "Fabric 192.168.200.0/24, MTU 9000",
        "  cable 1: spark1 - spark2",
        "    spark1  enp1s0f0np0    192.168.200.11/24  as it is",
        "    spark2  enp1s0f0np0    192.168.200.12/24  now no address, MTU 1500",
        "    spark1  enP2p1s0f0np0  192.168.201.11/24  now no address, MTU 1500",
        "    spark2  enP2p1s0f0np0  192.168.201.12/24  now no address, MTU 1500",
        f"  spark1: {P1}, {T1} left alone, as no other node is heard there",
        f"  spark2: {P1}, {T1} left alone, as no other node is heard there",
    ]


# ---- what speaks against it ------------------------------------------------------------------------------------------

Change = t.Callable[[list[Node]], None]


def managed(found: list[Node]) -> None:
    found[0].network["managed_by"][P0] = "the SSH connection comes in by its address 10.1.0.1"


def definition(file: str, **more: t.Any) -> dict[str, t.Any]:
    return {"file": file, "section": "ethernets", "id": P0, "netdevs": [P0], "pattern": False, "settings": {}, **more}


def defined(**more: t.Any) -> Change:
    def change(found: list[Node]) -> None:
        found[0].network["definitions"] = [definition("/etc/netplan/40-cx7.yaml", **more)]

    return change


def bonded(found: list[Node]) -> None:
    found[1].links[P0]["master"] = "bond0"


def elsewhere(found: list[Node]) -> None:
    own(found[1], **{LAN: "192.168.200.11/32"})


def overlapping(found: list[Node]) -> None:
    found[0].links["wlP9s9"] = link("192.168.201.7/16")


def no_cable(found: list[Node]) -> None:
    for entry in CANDIDATES:
        found[1].links[entry["netdev"]].update(carrier=False, up=False)
    for node in found:
        node.network["heard"] = {}


def deaf(found: list[Node]) -> None:
    for node in found:
        node.network["heard"] = {P0: [], T0: []}


def nothing(found: list[Node]) -> None:
    found[0].network["candidates"] = []


def bare(found: list[Node]) -> None:
    found[0].network["netplan"] = False


def on_trial(found: list[Node]) -> None:
    found[1].network["pending"] = {"active": True, "run": "x", "began": 980.0, "seconds": 120}


def address(text: str, number: int = 0) -> Change:
    def change(found: list[Node]) -> None:
        found[number].address = text

    return change


def same(found: list[Node]) -> None:
    found[0].address = found[1].address = "192.168.200.21"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            managed,
            "spark1 is managed by enp1s0f0np0, for the SSH connection comes in by its address 10.1.0.1: it can't be changed from here, "
            "so name another one with fabric_configure_interfaces.",
        ),
        (bonded, "enp1s0f0np0 of spark2 is part of bond0, over which RDMA does not go: take it out of there first."),
        (
            elsewhere,
            "192.168.200.11, meant for enp1s0f0np0 of spark1, is used by enP7s7 of spark2: set fabric_cidr to another network.",
        ),
        (
            overlapping,
            "192.168.200.0/24, meant for enp1s0f0np0 of spark1, overlaps 192.168.0.0/16 on its wlP9s9: set fabric_cidr to another network, "
            "or take the address off wlP9s9.",
        ),
        (
            defined(settings={"addresses": ["192.168.200.11/24"], "dhcp4": False}),
            "/etc/netplan/40-cx7.yaml of spark1 configures enp1s0f0np0 already, and otherwise than wanted (MTU not set, wanted 9000): take it out of "
            'there, or have the file replaced with -e \'{"fabric_configure_replace": ["/etc/netplan/40-cx7.yaml"]}\'.',
        ),
        (
            defined(settings={"addresses": [{"192.168.1.10/24": {"label": "x"}}], "dhcp4": True, "mtu": 9000}),
            "/etc/netplan/40-cx7.yaml of spark1 configures enp1s0f0np0 already, and otherwise than wanted (addresses 192.168.1.10/24, wanted "
            "192.168.200.11/24, dhcp4 on): take it out of there, or have the file replaced with -e "
            '\'{"fabric_configure_replace": ["/etc/netplan/40-cx7.yaml"]}\'.',
        ),
        (
            defined(section="bonds", id="bond0"),
            "/etc/netplan/40-cx7.yaml of spark1 configures enp1s0f0np0 already, and otherwise than wanted (as part of bond0 of its bonds): take it out "
            'of there, or have the file replaced with -e \'{"fabric_configure_replace": ["/etc/netplan/40-cx7.yaml"]}\'.',
        ),
        (no_cable, f"spark1 hears no other node on {P0}, {T0}: check that the cable leads to one of spark2."),
        (deaf, f"spark1 hears no other node on {P0}, {T0}: check that the cable leads to one of spark2."),
        (
            nothing,
            "spark1 has no Ethernet interface with an RDMA device but for those by which it is managed, enP7s7 (it has the default route): "
            "name the fabric's own with fabric_configure_interfaces.",
        ),
        (bare, "spark1 has no netplan: install netplan.io, or give the fabric its addresses by hand."),
        (
            on_trial,
            "spark2 has a network on trial that another run has not kept yet: it takes it back by itself within 100 s, so run this again then, "
            "or take it back now with the playbook sparkstack.inference.fabric_restore.",
        ),
        (
            address("192.168.210.5"),
            "fabric_address of spark1 is 192.168.210.5, in none of the fabric's subnets (192.168.200.0/24): correct it, or leave it out.",
        ),
        (
            address("192.168.200.255"),
            "fabric_address of spark1 is 192.168.200.255, which is no node's address in 192.168.200.0/24: correct it, or leave it out.",
        ),
        (same, "fabric_address 192.168.200.21 stands in the inventory for two hosts: give each one of its own."),
    ],
)
def test_refusals(change: Change, told: str) -> None:
    found = nodes(2, *ONE)
    change(found)
    assert told in _fabric_plan.make(found, settings()).problems


@pytest.mark.parametrize(
    ("found", "cidr", "told"),
    [
        (
            nodes(2, *BOTH),
            "192.168.200.0/24",
            "The fabric 192.168.200.0/24 is too small for the 4 subnets of 2 cables: set fabric_cidr to 192.168.200.0/22, which has room for all of them.",
        ),
        (
            nodes(3, *RING),
            "192.168.200.0/24",
            "The fabric 192.168.200.0/24 is too small for the 6 subnets of 3 cables: set fabric_cidr to 192.168.200.0/21, which has room for all of them.",
        ),
        (nodes(3, *ONE), "192.168.200.0/24", "spark3 has no cable in enp1s0f0np0, enP2p1s0f0np0, enp1s0f1np1, enP2p1s0f1np1: plug one in."),
        (
            nodes(3, *RING[:2]),
            "192.168.200.0/22",
            "spark1 and spark3 have no cable or switch in common: connect them, or leave one of them out with --limit.",
        ),
        (nodes(4, *SWITCH), "192.168.200.0/30", "192.168.200.0/30 has no address left for spark3: set fabric_cidr to a larger network."),
        (nodes(2, *ONE), "255.255.255.0/24", "There are no subnets behind 255.255.255.0/24: set fabric_cidr to another network, such as 192.168.200.0/22."),
    ],
)
def test_wirings_without_a_fabric(found: list[Node], cidr: str, told: str) -> None:
    assert _fabric_plan.make(found, settings(cidr)).problems == [told]


def test_what_another_file_configures_just_as_wanted_is_left_to_it() -> None:
    found = nodes(2, *ONE)
    own(found[0], **{P0: "192.168.200.11/24"})
    defined(settings={"addresses": ["192.168.200.11/24"], "mtu": 9000, "dhcp4": False})(found)
    made = _fabric_plan.make(found, settings())
    assert made.problems == [] and made.nodes["spark1"]["by_others"] == {P0: "/etc/netplan/40-cx7.yaml"}
    assert [entry["netdev"] for entry in made.nodes["spark1"]["interfaces"]] == [T0]
    # It is proven all the same.
    assert [peer["netdev"] for peer in made.nodes["spark1"]["peers"]] == [P0, T0]


def test_our_own_file_is_nobody_elses() -> None:
    found = nodes(2, *ONE)
    found[0].network["definitions"] = [definition(_fabric_plan.FILE, settings={"mtu": 1500})]
    assert _fabric_plan.make(found, settings()).problems == []


@pytest.mark.parametrize(
    ("others", "pattern", "replaced", "problems"),
    [
        ([], False, ["/etc/netplan/40-cx7.yaml"], []),
        (
            [LAN],
            False,
            [],
            ["/etc/netplan/40-cx7.yaml of spark1 can't be replaced, for it also configures enP7s7: take enp1s0f0np0 out of it by hand."],
        ),
        (
            [],
            True,
            [],
            ["/etc/netplan/40-cx7.yaml of spark1 can't be replaced, for it also configures whatever its pattern matches: take enp1s0f0np0 out of it by hand."],
        ),
    ],
)
def test_a_file_is_replaced_only_where_the_user_says_so_and_it_has_nothing_else(
    others: list[str], pattern: bool, replaced: list[str], problems: list[str]
) -> None:
    found = nodes(2, *ONE)
    defined(pattern=pattern)(found)
    found[0].network["others"] = {"/etc/netplan/40-cx7.yaml": others}
    made = _fabric_plan.make(found, settings(replace=["/etc/netplan/40-cx7.yaml", "/etc/netplan/none.yaml"]))
    assert made.problems == problems
    assert (made.nodes["spark1"]["replace"] if made.nodes else []) == replaced
