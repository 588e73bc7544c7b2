# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The fabric's interface, and ICMP echoes: packets of our own, and real ones over the loopback."""

from __future__ import annotations

import socket
import time
import typing as t

import pytest

from ansible_collections.sparkstack.inference.plugins.module_utils import _reach
from ansible_collections.sparkstack.inference.plugins.module_utils._reach import Address

OWN = [
    Address("enP7s7", "10.77.0.11", 24),
    Address("enp1s0f0np0", "192.168.200.11", 24),
    Address("enP2p1s0f0np0", "192.168.201.11", 24),
    Address("docker0", "172.17.0.1", 16),
    Address("wide", "192.168.0.5", 16),
]


@pytest.mark.parametrize(
    ("wanted", "interface", "address"),
    [
        (["192.168.200.12"], "enp1s0f0np0", "192.168.200.11"),
        (["192.168.200.11"], "enp1s0f0np0", "192.168.200.11"),
        (["192.168.7.7"], "wide", "192.168.0.5"),
        # The rendezvous is on no subnet of the node, or a name: the container's environment tells.
        (["10.1.1.1", "", "192.168.201.11"], "enP2p1s0f0np0", "192.168.201.11"),
        (["spark1", "fd00::1", "192.168.201.12"], "enP2p1s0f0np0", "192.168.201.11"),
        (["10.1.1.1"], None, None),
        ([], None, None),
    ],
)
def test_the_interface_of_an_address(folder_of: t.Any, wanted: list[str], interface: str | None, address: str | None) -> None:
    found = _reach.fabric(OWN, wanted, folder_of({}))
    assert (found and (found["interface"], found["address"])) == (interface and (interface, address))


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({"mtu": "9000\n", "carrier": "1\n", "speed": "200000\n"}, (9000, True, 200000)),
        ({"mtu": "1500\n", "carrier": "0\n", "speed": "-1\n"}, (1500, False, None)),
        # An interface that is down: reading its carrier gives EINVAL.
        ({"mtu": "9000\n"}, (9000, False, None)),
    ],
)
def test_what_the_interface_is_like(folder_of: t.Any, files: dict[str, str], told: tuple[int, bool, int | None]) -> None:
    root = folder_of({f"sys/class/net/enp1s0f0np0/{name}": content for name, content in files.items()})
    found = _reach.fabric(OWN, ["192.168.200.12"], root)
    assert found and (found["prefix"], found["mtu"], found["carrier"], found["speed_mbps"]) == (24, *told)


def test_the_own_addresses() -> None:
    assert all(1 <= own.prefix <= 32 and socket.if_nametoindex(own.interface) and not own.address.startswith("127.") for own in _reach.addresses())


def test_the_packets() -> None:
    # RFC 1071's own example, whose sum is ddf2.
    assert _reach.checksum(bytes.fromhex("0001f203f4f5f6f7")) == 0xFFFF - 0xDDF2
    assert _reach.checksum(b"\x01") == 0xFEFF
    token = b"12345678"
    packet = _reach.echo(7, 3, _reach.payload(token, 1, 2, True, 8972))
    assert (len(packet), packet[0], packet[4:8], _reach.checksum(packet)) == (8980, 8, b"\0\7\0\3", 0)
    reply = b"\0" + packet[1:]
    header = bytes([0x46]) + bytes(23)
    assert _reach.answered(reply, token, raw=False) == (1, 2, True)
    assert _reach.answered(header + reply, token, raw=True) == (1, 2, True)
    # Our own question (a ping to oneself shows both), somebody else's answer, a part of one, and nothing at all.
    for other in (packet, b"\0" + packet[1:8] + b"87654321" + packet[16:], reply[:15], b""):
        assert _reach.answered(other, token, raw=False) is None


def test_real_echoes() -> None:
    """127.0.0.1 answers both at once; 203.0.113.1 is in nobody's net (RFC 5737); no packet can be larger than 65535 bytes."""
    begun = time.monotonic()
    found = _reach.reach(["127.0.0.1", "127.0.0.2", "127.0.0.1"], "127.0.0.1", 9000)
    assert time.monotonic() - begun < 0.5
    assert sorted(found) == ["127.0.0.1", "127.0.0.2"]
    assert all(0 < (seconds or 0) < 0.5 for answer in found.values() for seconds in answer.values())
    found = _reach.reach(["127.0.0.1", "203.0.113.1"], "127.0.0.1", 66000, patience=0.3)
    assert found["203.0.113.1"] == {"small": None, "large": None}
    assert found["127.0.0.1"]["small"] and found["127.0.0.1"]["large"] is None
    assert 0.3 <= time.monotonic() - begun < 1.5


def test_no_echo_from_an_address_that_is_not_ones_own() -> None:
    assert _reach.reach(["127.0.0.1"], "203.0.113.1") == {}
    assert _reach.reach([]) == {}


def test_neighbours() -> None:
    table = (
        "IP address       HW type     Flags       HW address            Mask     Device\n"
        "192.168.200.12   0x1         0x2         4a:1f:5c:00:00:01     *        enp1s0f0np0\n"
        "192.168.200.13   0x1         0x0         00:00:00:00:00:00     *        enp1s0f0np0\n"
        "192.168.200.14   0x1         0x6         4a:1f:5c:00:00:03     *        enp1s0f0np0\n"
    )
    assert _reach.neighbours(table) == {"192.168.200.12": True, "192.168.200.13": False, "192.168.200.14": True}
    assert _reach.neighbours("") == {}
