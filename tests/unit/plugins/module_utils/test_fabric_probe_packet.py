# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The probe's packets and questions, without a network."""

from __future__ import annotations

import socket

import pytest

from ansible_collections.sparkstack.inference.plugins.module_utils import _fabric_probe_arp as arp
from ansible_collections.sparkstack.inference.plugins.module_utils import _fabric_probe_packet as packet
from ansible_collections.sparkstack.inference.plugins.module_utils._fabric_probe_rail import hardware
from ansible_collections.sparkstack.inference.plugins.module_utils._fabric_probe_rate import rate, share
from ansible_collections.sparkstack.inference.plugins.module_utils._fabric_probe_steps import bandwidth

KEY = b"k" * 32
PROBE = packet.Probe(packet.SIZE, 3, 7, 42, 9000, 1795910400.25)


def test_a_probe_comes_as_it_was_sent_and_is_as_large_as_it_says() -> None:
    data = packet.probe(KEY, PROBE)
    assert len(data) == 9000 - 28
    assert packet.read_probe(KEY, data) == PROBE


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"GET / HTTP/1.1\r\n\r\n",
        packet.probe(b"another", PROBE),
        packet.probe(KEY, PROBE)[:1472],
        packet.probe(KEY, PROBE).replace(b"SkP1", b"SkP2"),
        packet.echo(KEY, PROBE, 1.0, 2.0),
    ],
    ids=["empty", "foreign", "another token", "cut short", "another program", "an answer"],
)
def test_what_is_no_probe_of_this_group_is_not_read(data: bytes) -> None:
    assert packet.read_probe(KEY, data) is None


def test_an_answer_tells_what_was_asked_and_the_other_clock() -> None:
    data = packet.echo(KEY, PROBE, 100.5, 100.75)
    assert packet.read_echo({7: KEY}, 3, data) == packet.Echo(packet.SIZE, 7, 42, 9000, 1795910400.25, 100.5, 100.75)
    # Small, whatever was asked: it tells of one direction only.
    assert len(data) < 100


@pytest.mark.parametrize(
    ("keys", "source", "data"),
    [
        ({7: b"another"}, 3, packet.echo(KEY, PROBE, 1.0, 2.0)),
        ({8: KEY}, 3, packet.echo(KEY, PROBE, 1.0, 2.0)),
        ({7: KEY}, 4, packet.echo(KEY, PROBE, 1.0, 2.0)),
        ({7: KEY}, 3, packet.echo(KEY, PROBE, 1.0, 2.0) + b"\0"),
        ({7: KEY}, 3, packet.probe(KEY, PROBE._replace(size=92))),
    ],
    ids=["another token", "another row", "another node's", "too long", "a probe"],
)
def test_what_is_no_answer_of_this_pair_is_not_read(keys: dict[int, bytes], source: int, data: bytes) -> None:
    assert packet.read_echo(keys, source, data) is None


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ((10.0, 10.0, 10.0, 10.0), (0.0, 0.0)),
        # The other clock is 5 s ahead; each way takes 0.1 s, the answer 0.3 s.
        ((100.0, 105.1, 105.4, 100.5), (5.0, 0.1)),
        # It is 3 s behind.
        ((100.0, 97.2, 97.2, 100.4), (-3.0, 0.2)),
        # One way takes all the time: the offset is wrong by as much as is said.
        ((100.0, 100.2, 100.2, 100.2), (0.1, 0.1)),
    ],
)
def test_the_clock_by_the_four_times_of_ntp(times: tuple[float, float, float, float], expected: tuple[float, float]) -> None:
    assert packet.clock(*times) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("mtu", "first", "last"),
    [(9000, [9000, 8000, 4200], 576), (1500, [1500, 1496, 1450], 576), (9216, [9216, 9000], 576), (65536, [65535, 9000], 576), (560, [560], 560)],
)
def test_the_sizes_to_try(mtu: int, first: list[int], last: int) -> None:
    found = packet.sizes(mtu)
    assert found[: len(first)] == first and found[-1] == last
    assert found == sorted(set(found), reverse=True)


@pytest.mark.parametrize(("rows", "expected"), [(0, 200), (1, 200), (8, 200), (14, 114), (28, 60), (62, 60)])
def test_how_much_is_sent(rows: int, expected: int) -> None:
    assert packet.amount(rows) == expected


# What a real link carried: a question of 192.168.200.11 for .12, and the answer.
QUESTION = bytes.fromhex("ffffffffffff4cbb47000011080600010800060400014cbb47000011c0a8c80b000000000000c0a8c80c")
ANSWER = bytes.fromhex("4cbb470000114cbb47000012080600010800060400024cbb47000012c0a8c80c4cbb47000011c0a8c80b") + bytes(18)


def test_arp_as_it_is_on_the_link() -> None:
    assert arp.request(bytes.fromhex("4cbb47000011"), "192.168.200.11", "192.168.200.12") == QUESTION
    assert arp.read(QUESTION) == (False, "192.168.200.11", "4c:bb:47:00:00:11")
    assert arp.read(ANSWER) == (True, "192.168.200.12", "4c:bb:47:00:00:12")


@pytest.mark.parametrize(
    "frame", [b"", ANSWER[:40], ANSWER[:15] + b"\7" + ANSWER[16:], ANSWER[:21] + b"\3" + ANSWER[22:]], ids=["empty", "short", "no Ethernet", "RARP"]
)
def test_what_is_no_arp(frame: bytes) -> None:
    assert arp.read(frame) is None


def test_who_answers_is_noted_by_address_and_link() -> None:
    found = {("a", "192.168.200.12"): arp.Heard(), ("b", "192.168.200.12"): arp.Heard()}
    for told in (arp.read(ANSWER), arp.read(ANSWER), (True, "192.168.200.12", "02:00:00:00:00:99"), (False, "192.168.200.11", "x"), None):
        arp._note(found, "a", told)
    arp._note(found, "b", (False, "192.168.200.12", "4c:bb:47:00:00:12"))
    assert found["a", "192.168.200.12"].macs == ["4c:bb:47:00:00:12", "02:00:00:00:00:99"]
    assert (found["a", "192.168.200.12"].asked, found["b", "192.168.200.12"].asked, found["b", "192.168.200.12"].macs) == (False, True, [])


def test_the_loopback_is_not_asked() -> None:
    assert socket.if_nametoindex("lo") and arp.ask({"lo": ("127.0.0.1", ["127.0.0.2"]), "none0": ("127.0.0.1", ["127.0.0.2"])}) == {}


TABLE = """\
IP address       HW type     Flags       HW address            Mask     Device
192.168.200.12   0x1         0x2         4c:bb:47:00:00:12     *        enp1s0f0np0
192.168.200.12   0x1         0x0         00:00:00:00:00:00     *        enP2p1s0f0np0
192.168.200.13   0x1         0x0         00:00:00:00:00:00     *        enp1s0f0np0
10.10.0.12       0x20        0x2         80:00:02:08:fe:80:00:00:00     *        ibs1
"""


@pytest.mark.parametrize(
    ("netdev", "address", "expected"),
    [
        ("enp1s0f0np0", "192.168.200.12", ("4c:bb:47:00:00:12", "complete")),
        ("enP2p1s0f0np0", "192.168.200.12", (None, "incomplete")),
        ("enp1s0f0np0", "192.168.200.13", (None, "incomplete")),
        ("enp1s0f0np0", "192.168.200.1", (None, "none")),
        # Nine bytes of twenty would pass for another machine's.
        ("ibs1", "10.10.0.12", (None, "complete")),
    ],
)
def test_the_neighbour_table(netdev: str, address: str, expected: tuple[str | None, str]) -> None:
    assert hardware(netdev, address, TABLE) == expected


@pytest.mark.parametrize(
    ("looks", "since", "expected"),
    [
        # A burst of 50 MB at first, then 125 MB/s.
        ([(0.0, 0), (0.1, 50_000_000), (0.2, 62_500_000), (0.3, 75_000_000)], 0.1, 125.0),
        ([(0.0, 0), (0.5, 1_000_000)], 0.9, 2.0),
        ([(0.0, 0)], 0.0, 0.0),
    ],
)
def test_the_rate(looks: list[tuple[float, int]], since: float, expected: float) -> None:
    assert rate(looks, since) == expected


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({1: 0.1, 2: 0.2}, {1: 0.6, 2: 0.3}, 0.6),
        ({}, {1: 0.5, 2: 0.5}, 1.0),
        ({1: 0.1}, {1: 0.9}, 1.0),
        ({}, {}, 0.0),
    ],
    ids=["half", "all", "more than all", "not counted"],
)
def test_how_busy_the_threads_were(before: dict[int, float], after: dict[int, float], expected: float) -> None:
    assert share(before, after, 0.5) == expected


HEAD = """\
---------------------------------------------------------------------------------------
                    RDMA_Write BW Test
 Dual-port       : OFF		Device         : rocep1s0f0
 Number of qps   : 4		Transport type : IB
 Connection type : RC		Using SRQ      : OFF
 PCIe relax order: ON
 ibv_wr* API     : ON
 TX depth        : 128
 CQ Moderation   : 1
 Mtu             : 4096[B]
 Link type       : Ethernet
 GID index       : 3
 Max inline data : 0[B]
 rdma_cm QPs	 : OFF
 Data ex. method : Ethernet
---------------------------------------------------------------------------------------
 local address: LID 0000 QPN 0x0e3d PSN 0x264ade RKey 0x053e00 VAddr 0x00ee75e9060000
 GID: 00:00:00:00:00:00:00:00:00:00:255:255:192:168:200:11
---------------------------------------------------------------------------------------
"""
LINE = "---------------------------------------------------------------------------------------\n"
GBITS = " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n"


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        (GBITS + " 1048576    5000             92.62              92.61\t\t     0.011041\n" + LINE, 11576.2),
        # By time (-D) there is no peak, and a warning can stand within the table.
        (
            GBITS
            + "Conflicting CPU frequency values detected: 1500.000000 != 3300.016000. CPU Frequency is not max.\n"
            + " 1048576    6200           0.00               13.02                0.001552\n"
            + LINE,
            1627.5,
        ),
        (GBITS.replace("Gb", "MB") + " 65536      5000             11728.55            11728.47\t\t   0.187656\n", 12298.2),
        (GBITS.replace("Gb", "MiB") + " 65536      5000             100.00             100.00\t\t     0.001600\n", 104.9),
        (GBITS, None),
        ("", None),
    ],
    ids=["iterations", "time", "old megabytes", "new megabytes", "no figures", "nothing"],
)
def test_what_ib_write_bw_tells(table: str, expected: float | None) -> None:
    assert bandwidth(HEAD + table if table else table) == expected
