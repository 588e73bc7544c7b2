# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which pairs are probed, in which rounds, and what both ends' counts say together."""

from __future__ import annotations

import itertools
import typing as t

import pytest

from ansible_collections.sparkstack.inference.plugins.plugin_utils import _fabric_probe as plan

Rail = dict[str, t.Any]


def rail(netdev: str, address: str, prefix: int | None = 24, **more: t.Any) -> Rail:
    """A rail as a node tells it."""
    return {
        "netdev": netdev,
        "address": address,
        "prefix": prefix,
        "mtu": 9000,
        "speed_mbps": 200000,
        "mac": f"4c:bb:47:00:00:{address.rpartition('.')[2].zfill(2)}",
        "udp": 40000,
        "control": 40001,
        "rdma": None,
        "error": None,
        **more,
    }


def word(*rails: Rail, **ports: t.Any) -> dict[str, t.Any]:
    return {"rails": list(rails), "token": "t" * 64, "ports": {"bound": [29501], "in_use": [], "unbound": [], **ports}}


def pairs(words: dict[str, t.Any], host: str, given: dict[str, t.Any] | None = None) -> list[tuple[t.Any, ...]]:
    found = plan.rows(host, list(given or words), given or {name: told["rails"] for name, told in words.items()}, words)
    assert [row["row"] for row in found] == list(range(len(found)))
    return [(row["peer"], row["netdev"], row["peer_address"], row["error"]) for row in found]


PAIR = {"a": word(rail("p0", "192.168.200.11")), "b": word(rail("q0", "192.168.200.12"))}


def test_a_pair_on_one_cable() -> None:
    assert pairs(PAIR, "a") == [("b", "p0", "192.168.200.12", None)]
    assert pairs(PAIR, "b") == [("a", "q0", "192.168.200.11", None)]


def test_both_twins_meet_their_counterparts_only() -> None:
    words = {
        "a": word(rail("p0", "192.168.200.11"), rail("t0", "192.168.201.11")),
        "b": word(rail("p0", "192.168.200.12"), rail("t0", "192.168.201.12")),
    }
    assert pairs(words, "a") == [("b", "p0", "192.168.200.12", None), ("b", "t0", "192.168.201.12", None)]


def test_twins_in_one_subnet_are_all_tried() -> None:
    words = {"a": word(rail("p0", "10.0.0.1"), rail("t0", "10.0.0.2")), "b": word(rail("p0", "10.0.0.3"), rail("t0", "10.0.0.4"))}
    assert [pair[1:3] for pair in pairs(words, "a")] == [("p0", "10.0.0.3"), ("p0", "10.0.0.4"), ("t0", "10.0.0.3"), ("t0", "10.0.0.4")]


def test_in_a_ring_each_pair_has_its_own_cable() -> None:
    words = {
        "a": word(rail("p0", "10.0.1.1"), rail("p1", "10.0.3.1")),
        "b": word(rail("p0", "10.0.1.2"), rail("p1", "10.0.2.2")),
        "c": word(rail("p0", "10.0.2.3"), rail("p1", "10.0.3.3")),
    }
    assert pairs(words, "a") == [("b", "p0", "10.0.1.2", None), ("c", "p1", "10.0.3.3", None)]
    assert pairs(words, "c") == [("a", "p1", "10.0.3.1", None), ("b", "p0", "10.0.2.2", None)]


def test_a_wrong_subnet_is_told_on_both_ends() -> None:
    words = {
        "a": word(rail("p0", "192.168.200.11"), rail("t0", "192.168.201.11")),
        "b": word(rail("p0", "192.168.200.12"), rail("t0", "192.168.202.12")),
    }
    assert pairs(words, "a") == [
        ("b", "p0", "192.168.200.12", None),
        ("b", "t0", "192.168.202.12", "192.168.201.11/24 on a and 192.168.202.12/24 on b are not in one subnet."),
    ]
    assert pairs(words, "b")[1][3] == "192.168.202.12/24 on b and 192.168.201.11/24 on a are not in one subnet."


def test_the_same_address_twice() -> None:
    words = {"a": word(rail("p0", "192.168.200.11")), "b": word(rail("p0", "192.168.200.11"))}
    assert pairs(words, "a") == [("b", "p0", "192.168.200.11", "a and b have the same address 192.168.200.11: give each its own.")]


@pytest.mark.parametrize(
    ("told", "error"),
    [
        (None, "b takes no part in the probe: its task has not run"),
        ({"gone": "the node cannot be reached"}, "b takes no part in the probe: the node cannot be reached"),
        (word(rail("p0", "192.168.200.12", error="Cannot assign requested address")), "b can't use p0: Cannot assign requested address"),
    ],
)
def test_a_peer_that_takes_no_part(told: dict[str, t.Any] | None, error: str) -> None:
    words = {"a": PAIR["a"]} if told is None else {"a": PAIR["a"], "b": told}
    given = {"a": [{"netdev": "p0", "address": "192.168.200.11"}], "b": [{"netdev": "p0", "address": "192.168.200.12"}]}
    assert pairs(words, "a", given) == [("b", "p0", "192.168.200.12", error)]


def test_a_node_without_an_address() -> None:
    words = {"a": PAIR["a"], "b": word()}
    given = {"a": PAIR["a"]["rails"], "b": [{"netdev": "p0", "address": None}]}
    text = "b has no address on the fabric: give it one, or look at its rails with fabric_facts."
    assert pairs(words, "a", given) == [("b", "p0", None, text)]
    assert pairs(words, "b", given) == [("a", None, "192.168.200.11", text)]


def test_the_targets() -> None:
    words = {**PAIR, "b": word(rail("q0", "192.168.200.12", udp=50000, control=50001), bound=[29501, 8000])}
    rows = plan.rows("a", ["a", "b"], {"a": PAIR["a"]["rails"], "b": words["b"]["rails"]}, words)
    assert plan.targets(rows, words, "a") == [
        {
            "row": 0,
            "netdev": "p0",
            "address": "192.168.200.11",
            "peer_address": "192.168.200.12",
            "udp": 50000,
            "control": 50001,
            "token": "t" * 64,
            "ports": [29501, 8000],
            "mtu": 9000,
        }
    ]


@pytest.mark.parametrize("count", range(2, 10))
def test_in_a_tournament_each_meets_each_once_and_one_at_a_time(count: int) -> None:
    hosts = [f"n{number}" for number in range(count)]
    found = plan.rounds(hosts)
    # No more rounds than needed: one less than there are nodes, or as many where the number is odd.
    assert len(found) == (count - 1 if count % 2 == 0 else count)
    for pairs_of_round in found:
        met = [host for pair in pairs_of_round for host in pair]
        assert len(met) == len(set(met))
    assert sorted(tuple(sorted(pair)) for pairs_of_round in found for pair in pairs_of_round) == sorted(itertools.combinations(hosts, 2))


def group(count: int, rails: int = 1) -> tuple[list[str], dict[str, t.Any], dict[str, list[t.Any]]]:
    hosts = [f"n{number}" for number in range(count)]
    words = {host: word(*(rail(f"p{at}", f"10.0.{at}.{number + 1}") for at in range(rails))) for number, host in enumerate(hosts)}
    given = {host: words[host]["rails"] for host in hosts}
    return hosts, words, {host: plan.rows(host, hosts, given, words) for host in hosts}


def good(**more: t.Any) -> dict[str, t.Any]:
    return {
        "sent": 200,
        "answered": 200,
        "rtt_ms": 0.06,
        "answered_size": 9000,
        "clock_offset_s": 0.00001,
        "clock_error_s": 0.00003,
        "mac": None,
        "arp": "complete",
        "macs": [],
        "asks": False,
        "refused": None,
        "control": "ok",
        "tcp": {29501: "ok"},
        "echo_ms": None,
        **more,
    }


def all_good(rows: dict[str, list[t.Any]]) -> dict[str, dict[int, t.Any]]:
    return {host: {row["row"]: good() for row in own} for host, own in rows.items()}


@pytest.mark.parametrize(("count", "rails"), [(2, 1), (2, 2), (3, 1), (4, 2), (7, 1), (8, 1), (32, 2)])
def test_the_steps_of_all_nodes_fit_together(count: int, rails: int) -> None:
    hosts, words, rows = group(count, rails)
    steps = {host: plan.steps(host, hosts, rows, all_good(rows), words, 0.5) for host in hosts}
    ends: dict[int, list[tuple[str, str, str, str]]] = {}
    for host, own in steps.items():
        assert [step["step"] for step in own] == sorted(step["step"] for step in own)
        # Of an odd number one has a rest in each round, and finds its third partner in a later one, that has three by then.
        assert 2 * rails * min(count - 1, plan.PARTNERS) <= len(own) <= 2 * rails * min(count - 1, plan.PARTNERS + count % 2)
        for step in own:
            ends.setdefault(step["step"], []).append((step["kind"], host, step["peer"], step["peer_address"]))
    for both in ends.values():
        (receives, here, sender, _address), (sends, there, receiver, _other) = sorted(both)
        assert (receives, sends, here, there) == ("receive", "send", receiver, sender)
    # No row of a node is sent over twice, and with few partners each is.
    sent = [(host, step["row"]) for host, own in steps.items() for step in own if step["kind"] == "send"]
    assert len(set(sent)) == len(sent)
    if count <= plan.PARTNERS + 1:
        assert sorted(sent) == sorted((host, row["row"]) for host in hosts for row in rows[host])


def test_in_a_ring_of_many_each_cable_is_tested() -> None:
    count = 9
    hosts = [f"n{number}" for number in range(count)]
    links = {host: [rail("p0", f"10.0.{number}.1"), rail("p1", f"10.0.{(number - 1) % count}.2")] for number, host in enumerate(hosts)}
    words = {host: word(*rails) for host, rails in links.items()}
    rows = {host: plan.rows(host, hosts, links, words) for host in hosts}
    for number, host in enumerate(hosts):
        steps = plan.steps(host, hosts, rows, all_good(rows), words, 0.5)
        assert sorted(step["peer"] for step in steps if step["kind"] == "send") == sorted([hosts[(number + 1) % count], hosts[(number - 1) % count]])


@pytest.mark.parametrize("bad", [{"control": "timeout"}, {"answered": 120}])
@pytest.mark.parametrize("where", ["n0", "n1"])
def test_no_bandwidth_is_tested_where_one_direction_is_bad(bad: dict[str, t.Any], where: str) -> None:
    hosts, words, rows = group(3)
    probed = all_good(rows)
    number = next(row["row"] for row in rows[where] if row["peer"] == {"n0": "n1", "n1": "n0"}[where])
    probed[where][number] = good(**bad)
    assert {step["peer"] for step in plan.steps("n0", hosts, rows, probed, words, 0.5)} == {"n2"}
    assert {step["peer"] for step in plan.steps("n1", hosts, rows, probed, words, 0.5)} == {"n2"}


def counted(received: int, largest: int = 9000, source: int = 0, **more: t.Any) -> dict[str, t.Any]:
    return {"counts": [{"source": source, "row": 0, "received": received, "largest": largest, "interfaces": {"p0": received}, **more}], "overrun": {}}


def result(own: dict[str, t.Any], there: dict[str, t.Any] | None, here: dict[str, t.Any] | None, theirs: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
    """The one pair of n0, of which its node found C(own), and both listeners counted this."""
    hosts, words, rows = group(2)
    ended = {host: told for host, told in (("n0", here), ("n1", there)) if told is not None}
    given = {host: words[host]["rails"] for host in hosts}
    (found,) = plan.result("n0", hosts, given, words, rows, {"n0": {0: own}, "n1": {0: theirs or good()}}, ended)
    return found


def test_a_good_pair() -> None:
    there = counted(200)
    rates = [{"row": 0, "mb_s": 11500.0, "by": "ib_write_bw", "error": None, "rdma_error": None}]
    found = result(good(mac="4c:bb:47:00:00:02", macs=["4c:bb:47:00:00:02"]), there, {**counted(200, source=1), "rates": rates})
    assert found == {
        "peer": "n1",
        "netdev": "p0",
        "address": "10.0.0.1",
        "peer_netdev": "p0",
        "peer_address": "10.0.0.2",
        "error": None,
        "sent": 200,
        "received": 200,
        "answered": 200,
        "overrun": 0,
        "loss_share": 0.0,
        "rtt_ms": 0.06,
        "echo_ms": None,
        "path_mtu": 9000,
        "mac_seen": "4c:bb:47:00:00:02",
        "mac_told": "4c:bb:47:00:00:02",
        "macs": ["4c:bb:47:00:00:02"],
        "arp": "complete",
        "arrives_by": [],
        "control": "ok",
        "tcp": {"29501": "ok"},
        "clock_offset_s": 0.00001,
        "clock_error_s": 0.00003,
        "send_error": None,
        "mb_s": 11500.0,
        "by": "ib_write_bw",
        "busy": None,
        "rdma_error": None,
    }


@pytest.mark.parametrize(
    ("there", "answered", "expected"),
    [
        # What is lost on the way back is none of this direction's.
        (counted(200), 101, (200, 0.0, 9000)),
        (counted(100), 99, (100, 0.5, 9000)),
        # The size that arrived counts, also where its answer is lost.
        (counted(200, largest=1500), 200, (200, 0.0, 9000)),
        (None, 150, (None, None, 9000)),
        ({**counted(150), "overrun": {"10.0.0.2": 50}}, 150, (150, 0.0, 9000)),
    ],
    ids=["back", "there", "size", "no count", "no room"],
)
def test_loss_is_told_by_direction(there: dict[str, t.Any] | None, answered: int, expected: tuple[t.Any, ...]) -> None:
    found = result(good(answered=answered), there, counted(200, source=1))
    assert (found["received"], found["loss_share"], found["path_mtu"]) == expected
    assert found["error"] is None


def test_the_largest_that_arrives_is_the_paths_mtu() -> None:
    assert result(good(answered_size=1500), counted(200, largest=1500), counted(200, source=1))["path_mtu"] == 1500
    assert result(good(answered_size=0), counted(200, largest=0), counted(200, source=1))["path_mtu"] is None


def test_packets_that_come_in_by_another_interface() -> None:
    there = counted(200, interfaces={"p0": 120, "t0": 80})
    assert result(good(), there, counted(200, source=1))["arrives_by"] == ["t0"]


SILENT = {"answered": 0, "rtt_ms": None, "answered_size": 0, "clock_offset_s": None, "clock_error_s": None, "control": "timeout", "tcp": {29501: "timeout"}}
WAY = "from p0 (10.0.0.1) to p0 (10.0.0.2)"
CLOSED = f"No packet {WAY} arrives at n1, but what n1 sends arrives: the link or a firewall is closed in this direction."
DEAF = "n1 hears n0 on p0, but nothing that it sends arrives at n0: the link or a firewall is closed that way."
NOBODY = "10.0.0.2 does not answer on p0, not even with its hardware address: look at the cable, the port and the address."
DROPS = f"No packet {WAY} arrives, though the hardware address answers: a firewall drops them all, or n1 hangs."


@pytest.mark.parametrize(
    ("own", "there", "here", "theirs", "error"),
    [
        ({}, counted(0), counted(200, source=1), {}, CLOSED),
        # A listener that has never heard of a pair has no line for it.
        ({}, {"counts": [], "overrun": {}}, counted(200, source=1), {}, CLOSED),
        # Without hardware addresses no packet can be sent, but the questions for them are heard.
        ({"arp": "incomplete", "asks": True}, counted(0), counted(0, source=1), {"arp": "incomplete"}, CLOSED),
        ({"arp": "incomplete"}, counted(0), counted(0, source=1), {"arp": "incomplete", "asks": True}, DEAF),
        ({"arp": "incomplete"}, counted(0), counted(0, source=1), {"arp": "incomplete"}, NOBODY),
        ({"arp": "complete"}, counted(0), counted(0, source=1), {}, DROPS),
        ({"tcp": {29501: "ok"}}, counted(0), counted(0, source=1), {}, f"No UDP packet {WAY} arrives, but TCP port 29501 does: a firewall drops the rest."),
        ({"control": "ok"}, counted(0), counted(0, source=1), {}, f"No UDP packet {WAY} arrives, but TCP does: a firewall drops the rest."),
        ({"echo_ms": 0.1}, counted(0), counted(0, source=1), {}, f"No UDP packet {WAY} arrives, but an ICMP echo does: a firewall drops the rest."),
        ({"refused": "Operation not permitted"}, counted(0), counted(200, source=1), {}, f"n0 can't send {WAY}: Operation not permitted."),
        ({}, None, counted(0, source=1), {}, f"Nothing comes back {WAY}, and n1 could not be asked what has arrived there."),
        # The other direction is n1's to tell.
        ({}, counted(200), counted(0, source=1), {}, None),
    ],
)
def test_what_does_not_arrive_is_told_in_a_sentence(
    own: dict[str, t.Any], there: dict[str, t.Any] | None, here: dict[str, t.Any], theirs: dict[str, t.Any], error: str | None
) -> None:
    assert result(good(**{**SILENT, **own}), there, here, good(**{**SILENT, **theirs}))["error"] == error


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        ({"mac": "4c:bb:47:00:00:02"}, "4c:bb:47:00:00:02"),
        ({"mac": "02:00:00:00:00:99"}, "02:00:00:00:00:99"),
        # Two answer: the foreign one is what has to be told, whichever the kernel took.
        ({"mac": "4c:bb:47:00:00:02", "macs": ["4c:bb:47:00:00:02", "02:00:00:00:00:99"]}, "02:00:00:00:00:99"),
        ({"mac": None}, None),
    ],
)
def test_who_answers_for_the_address(seen: dict[str, t.Any], expected: str | None) -> None:
    found = result(good(**seen), counted(200), counted(200, source=1))
    assert (found["mac_seen"], found["mac_told"]) == (expected, "4c:bb:47:00:00:02")


def test_a_port_that_is_taken_is_told_and_not_tried() -> None:
    hosts, words, rows = group(2)
    words["n1"]["ports"]["in_use"] = [{"port": 8000, "pid": 1, "process": "python3", "container": None}]
    given = {host: words[host]["rails"] for host in hosts}
    (found,) = plan.result("n0", hosts, given, words, rows, {"n0": {0: good()}}, {"n1": counted(200)})
    assert found["tcp"] == {"29501": "ok", "8000": "in_use"}


def test_a_pair_that_could_not_be_probed_has_no_figures() -> None:
    hosts, words, _rows = group(2)
    words["n1"] = {"gone": "its task has not run"}
    given = {"n0": words["n0"]["rails"], "n1": [{"netdev": "p0", "address": "10.0.0.2", "mac": "4C:BB:47:00:00:02"}]}
    rows = {"n0": plan.rows("n0", hosts, given, words)}
    (found,) = plan.result("n0", hosts, given, words, rows, {}, {"n0": {"counts": [], "overrun": {}, "rates": []}})
    assert found["error"] == "n1 takes no part in the probe: its task has not run"
    assert (found["sent"], found["received"], found["loss_share"], found["path_mtu"], found["tcp"], found["mb_s"]) == (0, None, None, None, {}, None)
    assert found["mac_told"] == "4c:bb:47:00:00:02"
