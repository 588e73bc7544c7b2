# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a node tells of its network: links, the way it is managed, its netplan files, and whom it hears on which cable."""

from __future__ import annotations

import json
import pathlib
import socket
import typing as t

import pytest
import yaml

from ansible_collections.sparkstack.inference.plugins.module_utils import _fabric_cable, _fabric_network, _netplan
from ansible_collections.sparkstack.inference.plugins.module_utils._fabric_read import FabricError

# As iproute2 6.15 writes it, shortened; the first entry is what an older one writes for a link that a filter left out.
IP_JSON = json.dumps(
    [
        {},
        {"ifname": "lo", "flags": ["LOOPBACK", "UP", "LOWER_UP"], "mtu": 65536, "addr_info": [{"family": "inet", "local": "127.0.0.1", "prefixlen": 8}]},
        {
            "ifname": "enP7s7", "flags": ["BROADCAST", "MULTICAST", "UP", "LOWER_UP"], "mtu": 1500, "operstate": "UP", "address": "02:53:50:4b:00:01",
            "addr_info": [
                {"family": "inet", "local": "10.77.0.11", "prefixlen": 24, "broadcast": "10.77.0.255", "scope": "global", "dynamic": True},
                {"family": "inet6", "local": "fd00::11", "prefixlen": 64, "scope": "global"},
            ],
        },
        {
            "ifname": "enp1s0f0np0", "flags": ["NO-CARRIER", "BROADCAST", "MULTICAST", "UP"], "mtu": 9000, "master": "bond0", "address": "02:53:50:4b:01:01",
            "addr_info": [{"family": "inet", "local": "192.168.200.11", "prefixlen": 24, "scope": "global"}],
        },
    ]
)  # fmt: skip


def test_links() -> None:
    assert _fabric_network.links(IP_JSON) == {
        "enP7s7": {
            "mtu": 1500, "up": True, "carrier": True, "mac": "02:53:50:4b:00:01", "master": None,
            "addresses": [{"address": "10.77.0.11/24", "dynamic": True, "broadcast": "10.77.0.255"}],
        },
        "enp1s0f0np0": {
            "mtu": 9000, "up": True, "carrier": False, "mac": "02:53:50:4b:01:01", "master": "bond0",
            "addresses": [{"address": "192.168.200.11/24", "dynamic": False, "broadcast": None}],
        },
    }  # fmt: skip


@pytest.mark.parametrize("text", ["", "[]"])
def test_no_links(text: str) -> None:
    assert _fabric_network.links(text) == {}


def test_what_is_no_json_is_told() -> None:
    with pytest.raises(FabricError, match="install iproute2 4.13 or newer"):
        _fabric_network.links("1: lo: <LOOPBACK>")


@pytest.mark.parametrize(
    ("texts", "netdevs"),
    [
        (['[{"dst":"default","gateway":"10.77.0.254","dev":"enP7s7","flags":[]}]', "[]"], ["enP7s7"]),
        (['[{"dst":"default","nexthops":[{"dev":"wlP9s9"},{"dev":"enP7s7"}]}]', '[{"dst":"default","dev":"enP7s7"}]'], ["enP7s7", "wlP9s9"]),
        (["", "nonsense"], []),
    ],
)
def test_default_routes(texts: list[str], netdevs: list[str]) -> None:
    assert _fabric_network.routed(*texts) == netdevs


def test_what_networkmanager_leaves_alone() -> None:
    told = "enP7s7:connected\nenp1s0f0np0:connected (externally)\nlo:connected (externally)\nenP2p1s0f0np0:disconnected\n"
    assert _fabric_network.external(told) == ["enp1s0f0np0", "lo"]
    assert _fabric_network.external("") == []


def test_the_ssh_connection_is_found_above_sudo(folder_of: t.Callable[[dict[str, str]], str]) -> None:
    root = folder_of(
        {
            "proc/90/environ": "LANG=C\0SUDO_USER=nvidia\0",
            "proc/90/stat": "90 (python3 (x) y) S 80 90 80 0",
            "proc/80/environ": "SUDO_COMMAND=/bin/sh\0",
            "proc/80/stat": "80 (sudo) S 70 80",
            "proc/70/environ": "USER=nvidia\0SSH_CONNECTION=10.77.0.1 51922 10.77.0.11 22\0",
            "proc/70/stat": "70 (sh) S 1 70",
        }
    )
    address = _fabric_network.ssh_address(root, 90)
    assert address == "10.77.0.11" and _fabric_network.holder(IP_JSON, address) == "enP7s7"
    assert _fabric_network.holder(IP_JSON, "::ffff:10.77.0.11") == "enP7s7"
    assert _fabric_network.holder(IP_JSON, "fd00::11") == "enP7s7"
    assert _fabric_network.ssh_address(root, 1) is None and _fabric_network.ssh_address(root, 55) is None
    assert _fabric_network.holder(IP_JSON, None) is None
    assert _fabric_network.holder('[{}, {"ifname": "lo", "addr_info": [{}, {"local": "fd00::11"}]}]', "fd00::11") == "lo"


def test_candidates_tell_which_interfaces_are_one_port(tmp_path: pathlib.Path) -> None:
    def write(path: str, text: str) -> None:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text + "\n")

    for name, pci, hca in (("enP2p1s0f0np0", "0002:01:00.0", "roceP2p1s0f0"), ("enp1s0f0np0", "0000:01:00.0", "rocep1s0f0"), ("enP7s7", "0007:01:00.0", "")):
        write(f"sys/devices/{pci}/net/{name}/mtu", "1500")
        (tmp_path / "sys/class/net").mkdir(parents=True, exist_ok=True)
        (tmp_path / "sys/class/net" / name).symlink_to(tmp_path / f"sys/devices/{pci}/net/{name}")
        (tmp_path / f"sys/devices/{pci}/net/{name}/device").symlink_to(tmp_path / f"sys/devices/{pci}")
        if hca:
            write(f"sys/class/infiniband/{hca}/sys_image_guid", "fc4c:ea03:00f9:4230")
            write(f"sys/class/infiniband/{hca}/ports/1/state", "4: ACTIVE")
            write(f"sys/class/infiniband/{hca}/ports/1/link_layer", "Ethernet")
            (tmp_path / f"sys/class/infiniband/{hca}/device").symlink_to(tmp_path / f"sys/devices/{pci}")
    assert _fabric_network.candidates(str(tmp_path)) == [
        {"netdev": "enp1s0f0np0", "port": "01:00.0 fc4c:ea03:00f9:4230", "lane": "0000"},
        {"netdev": "enP2p1s0f0np0", "port": "01:00.0 fc4c:ea03:00f9:4230", "lane": "0002"},
    ]


# ---- netplan's files -------------------------------------------------------------------------------------------------

INTERFACES = [
    _netplan.Interface("enp1s0f0np0", "02:53:50:4b:01:01", "mlx5_core"),
    _netplan.Interface("enP2p1s0f0np0", "02:53:50:4b:02:01", "mlx5_core"),
]


def read(folder_of: t.Callable[[dict[str, str]], str], files: dict[str, str]) -> list[tuple[str, str, list[str], bool]]:
    root = folder_of(files)
    return [(e["file"], e["id"], e["netdevs"], e["pattern"]) for e in _netplan.definitions(root, INTERFACES, yaml.safe_load)]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("network: {version: 2, renderer: NetworkManager}", []),
        ("", []),
        ("network: {ethernets: {enP7s7: {dhcp4: true}}}", []),
        ("network: {ethernets: {enp1s0f0np0: {addresses: [192.168.100.10/24]}}}", [("enp1s0f0np0", ["enp1s0f0np0"], False)]),
        # What NetworkManager writes on Ubuntu 24.04 for a profile of its own.
        (
            "network: {ethernets: {NM-0f7a: {renderer: NetworkManager, match: {name: enp1s0f0np0}, dhcp4: true}}}",
            [("NM-0f7a", ["enp1s0f0np0"], False)],
        ),
        ("network: {ethernets: {all: {match: {name: 'en*'}, dhcp4: true}}}", [("all", ["enp1s0f0np0", "enP2p1s0f0np0"], True)]),
        ("network: {ethernets: {cx7: {match: {macaddress: '02:53:50:4B:02:01'}, dhcp4: true}}}", [("cx7", ["enP2p1s0f0np0"], True)]),
        ("network: {ethernets: {cx7: {match: {driver: [mlx4_core, mlx5_core], name: enp1*}}}}", [("cx7", ["enp1s0f0np0"], True)]),
        ("network: {ethernets: {cx7: {match: {driver: r8127}}}}", []),
        ("network: {bonds: {bond0: {interfaces: [enp1s0f0np0, enp1s0f1np1]}}}", [("bond0", ["enp1s0f0np0"], False)]),
    ],
)
def test_which_definition_is_of_which_interface(folder_of: t.Callable[[dict[str, str]], str], text: str, found: list[t.Any]) -> None:
    assert read(folder_of, {"etc/netplan/40-cx7.yaml": text}) == [("/etc/netplan/40-cx7.yaml", *entry) for entry in found]


def test_a_file_in_run_hides_that_in_etc(folder_of: t.Callable[[dict[str, str]], str]) -> None:
    text = "network: {ethernets: {enp1s0f0np0: {}}}"
    files = {"etc/netplan/b.yaml": text, "run/netplan/b.yaml": "network: {}", "lib/netplan/a.yaml": text, "etc/netplan/c.yaml.new": text}
    assert read(folder_of, files) == [("/lib/netplan/a.yaml", "enp1s0f0np0", ["enp1s0f0np0"], False)]


def test_no_key_leaves_the_node(folder_of: t.Callable[[dict[str, str]], str]) -> None:
    text = "network: {ethernets: {enp1s0f0np0: {mtu: 9000, auth: {password: s3cret}}}, wifis: {wlP9s9: {access-points: {home: {password: s3cret}}}}}"
    root = folder_of({"etc/netplan/50-all.yaml": text})
    found = _netplan.definitions(root, INTERFACES, yaml.safe_load)
    assert [entry["settings"] for entry in found] == [{"mtu": 9000}] and "s3cret" not in json.dumps(found)
    assert _netplan.others(root, "etc/netplan/50-all.yaml", ["enp1s0f0np0"], INTERFACES, yaml.safe_load) == ["wlP9s9"]


def test_a_file_that_is_no_yaml_is_named(folder_of: t.Callable[[dict[str, str]], str]) -> None:
    with pytest.raises(_netplan.NetplanError, match=r"^/etc/netplan/x\.yaml is no YAML: .* Correct it, 'netplan generate' says more\.$"):
        read(folder_of, {"etc/netplan/x.yaml": "network: {"})


# ---- who is heard ----------------------------------------------------------------------------------------------------


def test_a_call_comes_back_as_it_went() -> None:
    data = _fabric_cable.frame(b"\x02SPK\x01\x01", "run", "spark1", "enp1s0f0np0")
    assert len(data) >= 60 and data[:6] == b"\xff" * 6 and data[12:14] == b"\x88\xb5"
    assert _fabric_cable.parse(data, "run") == ("spark1", "enp1s0f0np0")
    assert _fabric_cable.parse(data, "another run") is None


@pytest.mark.parametrize("body", [b"", b"hello", b"sparkstack fabric 1 [1", b'sparkstack fabric 1 ["run", 1, "x"]', b'sparkstack fabric 1 {"run": 1}'])
def test_what_is_no_call(body: bytes) -> None:
    assert _fabric_cable.parse(b"\xff" * 12 + b"\x88\xb5" + body, "run") is None
    assert _fabric_cable.parse(b"\xff" * 12 + b"\x08\x00sparkstack fabric 1 ", "run") is None


class Script(_fabric_cable.Wire):
    """A wire on which calls come in at certain times."""

    def __init__(self, calls: list[tuple[float, str, tuple[str, str]]], netdevs: list[str]) -> None:
        self.calls, self.now, self.called = calls, 0.0, 0
        self.sockets = dict.fromkeys(netdevs, t.cast("socket.socket", None))

    def call(self, run: str, host: str) -> None:
        self.called += 1

    def hear(self, run: str, seconds: float) -> list[tuple[str, tuple[str, str]]]:
        self.now += seconds
        come = [entry for entry in self.calls if entry[0] <= self.now]
        self.calls = [entry for entry in self.calls if entry[0] > self.now]
        return [(netdev, caller) for _at, netdev, caller in come]


@pytest.mark.parametrize(
    ("calls", "hosts", "heard", "ends"),
    [
        # All that there are to hear: it goes on for a second, for the sake of those that began later.
        ([(1.0, "p0", ("spark2", "q0"))], ["spark2"], {"p0": [("spark2", "q0")]}, 2.1),
        # A twin is heard later.
        (
            [(1.0, "p0", ("spark2", "q0")), (1.8, "p0", ("spark2", "q1"))],
            ["spark2"],
            {"p0": [("spark2", "q0"), ("spark2", "q1")]},
            2.9,
        ),
        # One host is missing, or a stranger calls: until the end.
        ([(1.0, "p0", ("spark2", "q0"))], ["spark2", "spark3"], {"p0": [("spark2", "q0")]}, 8.0),
        ([(1.0, "p0", ("nas", "q0"))], ["spark2"], {"p0": []}, 8.0),
        # Its own other port, by a switch.
        ([(1.0, "p0", ("spark1", "p1"))], ["spark2"], {"p0": [("spark1", "p1")]}, 8.0),
    ],
)
def test_it_listens_until_enough_was_heard(calls: list[t.Any], hosts: list[str], heard: dict[str, t.Any], ends: float) -> None:
    wire = Script(calls, ["p0"])
    assert _fabric_cable.listen(wire, "run", "spark1", ["spark1", *hosts], 8.0, clock=lambda: wire.now) == heard
    assert wire.now == pytest.approx(ends, abs=0.15) and wire.called >= 10


def test_without_an_interface_or_a_peer_nobody_is_waited_for() -> None:
    for netdevs, hosts in (([], ["spark1", "spark2"]), (["p0"], ["spark1"])):
        wire = Script([], netdevs)
        assert _fabric_cable.listen(wire, "run", "spark1", hosts, 8.0, clock=lambda wire=wire: wire.now) == {name: [] for name in netdevs}
        assert wire.now == 0
