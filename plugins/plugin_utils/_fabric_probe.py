# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is private to the collection: it can change at any time.

"""Which pairs of interfaces a group's probe asks, in which rounds their bandwidth is tested, and what both ends' counts say together.

All of it is pure: each host of the task works it out by itself, and comes to the same plan as the others.
"""

from __future__ import annotations

import collections
import functools
import ipaddress
import typing as t

Word = t.Mapping[str, t.Any]
"""What a node said when it began to listen: C(rails), C(ports), C(token); or C(gone), why it takes no part."""
Row = dict[str, t.Any]

_ANSWERED = 0.8
"""The share of packets that must be answered: where more get lost, TCP crawls, and the loss is what has to be told."""
PARTNERS = 3
"""Others that an interface's bandwidth is tested with, at least, where it has so many. Each is a cable and a port of a switch, which three partners know as
well as thirty do; and the pairs take turns, so that the whole group waits for as many rounds. An interface with one partner alone is tested with that."""


def lonely(hosts: t.Sequence[str], peers: t.Mapping[str, t.Sequence[Word]], words: t.Mapping[str, Word]) -> dict[str, list[Row]]:
    """The rails of each host that have no partner in their subnet, at any other host."""
    return {name: [rail for rail in _told(name, peers, words) if not _has_partner(rail, name, hosts, peers, words)] for name in hosts}


def rows(
    host: str,
    hosts: t.Sequence[str],
    peers: t.Mapping[str, t.Sequence[Word]],
    words: t.Mapping[str, Word],
    alone: t.Mapping[str, t.Sequence[Row]] | None = None,
) -> list[Row]:
    """The pairs of an interface of this host and one of each other host, numbered; C(error) where one can't be probed, and why.

    :param peers: the rails of each host as the user gave them, with the address at least. :param words: by host. :param alone: what :func:`lonely`
        makes of the same, where it is known: it looks at all pairs of all hosts.
    """
    found: list[Row] = []
    own = _told(host, peers, words)
    alone = lonely(hosts, peers, words) if alone is None else alone
    for peer in hosts:
        if peer == host:
            continue
        theirs = _told(peer, peers, words)
        met = [(one, other) for one in own for other in theirs if _one_subnet(one, other)]
        # What has no counterpart anywhere is set against what the peer has left over, in the order that both have them in.
        met += zip(alone[host], alone[peer], strict=False)
        if not met and own and theirs:
            met = [(own[0], theirs[0])]
        found += [_row(peer, one, other, _obstacle(host, peer, one, other, words)) for one, other in met]
        if not met:
            found.append(_row(peer, own[0] if own else {}, theirs[0] if theirs else {}, _empty(peer if own else host)))
    return [dict(row, row=number) for number, row in enumerate(found)]


def _told(host: str, peers: t.Mapping[str, t.Sequence[Word]], words: t.Mapping[str, Word]) -> list[Row]:
    """A host's rails as it told them, else as the user gave them."""
    said = (words.get(host) or {}).get("rails")
    return [dict(rail) for rail in (said if said is not None else peers[host]) if rail.get("address")]


def _one_subnet(one: Word, other: Word) -> bool:
    prefix = one.get("prefix") or other.get("prefix")
    if not prefix or one["address"] == other["address"]:
        return False
    return _address(other["address"]) in _network(one["address"], prefix)


# Each address is set against each other one's, by each host.
@functools.lru_cache(maxsize=1024)
def _address(text: str) -> ipaddress.IPv4Address:
    return ipaddress.IPv4Address(text)


@functools.lru_cache(maxsize=1024)
def _network(text: str, prefix: int) -> ipaddress.IPv4Network:
    return ipaddress.IPv4Interface(f"{text}/{prefix}").network


def _has_partner(rail: Word, host: str, hosts: t.Sequence[str], peers: t.Mapping[str, t.Sequence[Word]], words: t.Mapping[str, Word]) -> bool:
    return any(_one_subnet(rail, other) for peer in hosts if peer != host for other in _told(peer, peers, words))


def _row(peer: str, one: Word, other: Word, error: str | None) -> Row:
    return {
        "peer": peer,
        "netdev": one.get("netdev"),
        "address": one.get("address"),
        "peer_netdev": other.get("netdev"),
        "peer_address": other.get("address"),
        "error": error,
    }


def _empty(host: str) -> str:
    return f"{host} has no address on the fabric: give it one, or look at its rails with fabric_facts."


def _obstacle(host: str, peer: str, one: Word, other: Word, words: t.Mapping[str, Word]) -> str | None:
    for name, rail in ((host, one), (peer, other)):
        word = words.get(name) or {"gone": "its task has not run"}
        if "gone" in word:
            return f"{name} takes no part in the probe: {word['gone']}"
        if rail.get("error"):
            return f"{name} can't use {rail['netdev']}: {rail['error']}"
    if one["address"] == other["address"]:
        return f"{host} and {peer} have the same address {one['address']}: give each its own."
    if not _one_subnet(one, other):
        return f"{one['address']}/{one['prefix']} on {host} and {other['address']}/{other['prefix']} on {peer} are not in one subnet."
    return None


def targets(own: t.Sequence[Row], words: t.Mapping[str, Word], host: str) -> list[Row]:
    """What the node has to be told to ask these pairs."""
    found = []
    for row in own:
        if row["error"] is None:
            rail, other = _rail(words[host], row["netdev"], row["address"]), _rail(words[row["peer"]], row["peer_netdev"], row["peer_address"])
            found.append(
                {
                    **{name: row[name] for name in ("row", "netdev", "address", "peer_address")},
                    **{name: other[name] for name in ("udp", "control")},
                    "token": words[row["peer"]]["token"],
                    "ports": words[row["peer"]]["ports"]["bound"],
                    "mtu": rail["mtu"] or 1500,
                }
            )
    return found


def _rail(word: Word, netdev: str, address: str) -> Word:
    return next(rail for rail in word["rails"] if (rail["netdev"], rail["address"]) == (netdev, address))


def rounds(hosts: t.Sequence[str]) -> list[list[tuple[str, str]]]:
    """A tournament in which each meets each once, and nobody meets two in one round: the circle method."""
    around: list[str | None] = [*hosts, None] if len(hosts) % 2 else list(hosts)
    found = []
    for _turn in range(len(around) - 1):
        pairs = zip(around[: len(around) // 2], reversed(around[len(around) // 2 :]), strict=True)
        found.append([(one, other) for one, other in pairs if one is not None and other is not None])
        around = [around[0], around[-1], *around[1:-1]]
    return found


def steps(
    host: str,
    hosts: t.Sequence[str],
    all_rows: t.Mapping[str, t.Sequence[Row]],
    probed: t.Mapping[str, t.Mapping[int, Row]],
    words: t.Mapping[str, Word],
    seconds: float,
) -> list[Row]:
    """This host's part of the bandwidth tests, each with its number in the plan of all; only of pairs that answer well both ways, and of an interface
    that has many of them only with some.

    :param all_rows: of each host what :func:`rows` makes. :param probed: of each host what its node found, by row.
    """
    found: list[Row] = []
    number = 0
    tested: collections.Counter[tuple[str, str]] = collections.Counter()
    towards: dict[str, dict[str, list[Row]]] = {}
    for name, own in all_rows.items():
        for row in own:
            towards.setdefault(name, {}).setdefault(row["peer"], []).append(row)
    for pairs in rounds(hosts):
        for one, other in pairs:
            for there, back in _both(one, other, {name: towards.get(name, {}).get(peer, []) for name, peer in ((one, other), (other, one))}):
                fit = all(_fit(probed.get(name, {}).get(row["row"])) for name, row in ((one, there), (other, back)))
                ends = [(one, there["address"]), (other, back["address"])]
                fit = fit and min(tested[end] for end in ends) < PARTNERS
                tested.update(ends if fit else ())
                for name, row in ((one, there), (other, back)):
                    number += 1
                    if fit and host in (one, other):
                        found.append(_step(number, host, name, row, words, seconds))
    return found


def _both(one: str, other: str, all_rows: t.Mapping[str, t.Sequence[Row]]) -> t.Iterator[tuple[Row, Row]]:
    for there in all_rows.get(one, []):
        for back in all_rows.get(other, []):
            met = (there["peer"], back["peer"]) == (other, one) and there["error"] is None and back["error"] is None
            if met and (there["address"], there["peer_address"]) == (back["peer_address"], back["address"]):
                yield there, back


def _fit(found: Row | None) -> bool:
    return bool(found and found["control"] == "ok" and found["answered"] >= _ANSWERED * found["sent"])


def _step(number: int, host: str, sender: str, row: Row, words: t.Mapping[str, Word], seconds: float) -> Row:
    """One test as this host's node has to know it. :param row: the sender's."""
    mine = sender == host
    here, there = (row["netdev"], row["address"]), (row["peer_netdev"], row["peer_address"])
    own, other = (here, there) if mine else (there, here)
    peer = row["peer"] if mine else sender
    rail, theirs = _rail(words[host], *own), _rail(words[peer], *other)
    return {
        "step": number,
        "kind": "send" if mine else "receive",
        "row": row["row"],
        "peer": peer,
        "netdev": own[0],
        "address": own[1],
        "peer_address": other[1],
        "control": theirs["control"],
        "token": words[peer]["token"],
        "seconds": seconds,
        "speed_mbps": rail["speed_mbps"],
        "rdma": rail["rdma"],
        "peer_rdma": theirs["rdma"],
    }


def result(
    host: str,
    hosts: t.Sequence[str],
    peers: t.Mapping[str, t.Sequence[Word]],
    words: t.Mapping[str, Word],
    all_rows: t.Mapping[str, t.Sequence[Row]],
    probed: t.Mapping[str, t.Mapping[int, Row]],
    ended: t.Mapping[str, Word],
) -> list[Row]:
    """This host's pairs as RV(pairs) of M(sparkstack.inference.fabric_probe) has them.

    :param probed: of each host what its node found, by row. :param ended: what each host's listener counted, and how fast its node could send.
    """
    number = hosts.index(host)
    rates = {rate["row"]: rate for rate in (ended.get(host) or {}).get("rates") or []}
    found = []
    for row in all_rows[host]:
        count = _count(ended.get(row["peer"]), number, row)
        mine = probed.get(host, {}).get(row["row"])
        measured = _measured(row, mine, count, words, peers)
        if row["error"] is None:
            back = next((back for there, back in _both(host, row["peer"], all_rows) if there["row"] == row["row"]), None)
            theirs = probed.get(row["peer"], {}).get(back["row"]) if back else None
            came = (_count(ended.get(host), hosts.index(row["peer"]), back) or {}).get("received") if back else None
            measured["error"] = _trouble(host, measured, bool(came or (mine or {}).get("asks")), bool((theirs or {}).get("asks")))
        rate = rates.get(row["row"], {})
        measured.update(mb_s=rate.get("mb_s"), by=rate.get("by"), busy=rate.get("busy"), rdma_error=rate.get("rdma_error"))
        measured["error"] = measured["error"] or rate.get("error")
        found.append(measured)
    return found


def _count(word: Word | None, source: int, row: Row) -> Row | None:
    """What a listener counted of a pair: nothing known where it is gone, and zeros where it never heard of it."""
    if not word or word.get("counts") is None:
        return None
    for count in word["counts"]:
        if (count["source"], count["row"]) == (source, row["row"]):
            return {**count, "overrun": (word.get("overrun") or {}).get(row["peer_address"], 0)}
    return {"received": 0, "largest": 0, "interfaces": {}, "overrun": 0}


def _measured(row: Row, probed: Row | None, count: Row | None, words: t.Mapping[str, Word], peers: t.Mapping[str, t.Sequence[Word]]) -> Row:
    told = next((rail for rail in _told(row["peer"], peers, words) if rail["address"] == row["peer_address"]), {})
    given = next((rail for rail in peers[row["peer"]] if rail.get("address") == row["peer_address"]), {})
    own = {key: value for key, value in row.items() if key != "row"}
    mac = str(given.get("mac") or told.get("mac") or "").lower() or None
    blank: Row = {"sent": 0, "answered": 0, "rtt_ms": None, "arp": "none", "macs": [], "control": None, "echo_ms": None, "refused": None}
    seen = {**blank, "clock_offset_s": None, "clock_error_s": None, "answered_size": 0, "mac": None, "tcp": {}, **(probed or {})}
    received = count["received"] if count and probed else None
    lost = max(0, seen["sent"] - received - count["overrun"]) if count and received is not None else None
    foreign = [found for found in seen["macs"] if mac and found != mac]
    taken = {str(entry["port"]): "in_use" for entry in ((words.get(row["peer"]) or {}).get("ports") or {}).get("in_use", [])}
    return {
        **own,
        **{name: seen[name] for name in ("sent", "answered", "rtt_ms", "clock_offset_s", "clock_error_s", "arp", "macs", "control", "echo_ms")},
        "received": received,
        "overrun": count["overrun"] if count else 0,
        "loss_share": round(lost / seen["sent"], 4) if lost is not None and seen["sent"] else None,
        "path_mtu": max(count["largest"] if count else 0, seen["answered_size"]) or None,
        "mac_seen": foreign[0] if foreign else seen["mac"] or next(iter(seen["macs"]), None),
        "mac_told": mac,
        "arrives_by": sorted(name for name in (count or {}).get("interfaces", {}) if name != row["peer_netdev"]),
        "tcp": {**{str(port): how for port, how in seen["tcp"].items()}, **(taken if probed else {})},
        "send_error": seen["refused"],
    }


def _trouble(host: str, row: Row, hears: bool, heard: bool) -> str | None:
    """One sentence where nothing of what this host sends over a pair arrives.

    :param hears: something of the peer arrives here, if only its questions for hardware addresses. :param heard: the same there.
    """
    peer, way = row["peer"], f"from {row['netdev']} ({row['address']}) to {row['peer_netdev']} ({row['peer_address']})"
    if row["received"] or row["answered"]:
        return None
    if row["send_error"] and not row["received"]:
        return f"{host} can't send {way}: {row['send_error']}."
    if row["received"] is None:
        return f"Nothing comes back {way}, and {peer} could not be asked what has arrived there."
    if hears and not heard:
        return f"No packet {way} arrives at {peer}, but what {peer} sends arrives: the link or a firewall is closed in this direction."
    if heard and not hears:
        return f"{peer} hears {host} on {row['peer_netdev']}, but nothing that it sends arrives at {host}: the link or a firewall is closed that way."
    if row["arp"] != "complete" and not row["macs"]:
        return f"{row['peer_address']} does not answer on {row['netdev']}, not even with its hardware address: look at the cable, the port and the address."
    others = [f"TCP port {port}" for port, how in row["tcp"].items() if how == "ok"] + (["an ICMP echo"] if row["echo_ms"] is not None else [])
    if others or row["control"] == "ok":
        return f"No UDP packet {way} arrives, but {(others or ['TCP'])[0]} does: a firewall drops the rest."
    return f"No packet {way} arrives, though the hardware address answers: a firewall drops them all, or {peer} hangs."
