# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is private to the collection: it can change at any time.

"""What a collective proof showed, for the group: ready, slow or blocked, whose fault, why, and what to do. Pure.

A node is a mapping: C(node), C(rank), C(address), C(problem) (why it could not be run, a sentence or empty), C(output) (of the program),
and C(expected) (see C(_collective.expectations)).
"""

from __future__ import annotations

import re
import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils import _collective_facts, _diagnosis
from ansible_collections.sparkstack.inference.plugins.module_utils._causes import CAUSES
from ansible_collections.sparkstack.inference.plugins.module_utils._collective_facts import STAGES, WORDS
from ansible_collections.sparkstack.inference.plugins.module_utils._timeline import Timeline
from ansible_collections.sparkstack.inference.plugins.module_utils._words import listed

Node = t.Mapping[str, t.Any]
Verdict = dict[str, t.Any]
_SLOW = {
    "rdma": "Run fabric_probe on each rail: one that is slow alone points at its cable, its MTU or its adapter (switch that node off and on again); "
    "if all are fast, see that NCCL_IB_HCA names all of them.",
    "socket": "Sockets do not come near an RDMA link's speed: give the containers RDMA if the nodes have it. Else run fabric_probe on each rail.",
    "tcp": "Run fabric_probe on each rail, and compare MTU and speed of the link on all nodes.",
}
# What torch says of a connection that does not come about, most telling first.
_NETWORK = ("Network is unreachable", "No route to host", "Connection refused", "Connection timed out", "timed out")
# NCCL 2.27 and newer, and those before it.
_NO_NETWORK = ("Failed to initialize any NET plugin", "Error: network IB not found")
# 'exec: "python3": executable file not found in $PATH' says Docker, and Python "ModuleNotFoundError: No module named 'torch'". On all ranks: an
# engine that does without; on one of them it is another image, and a fault.
_BARE = ('"python3": executable file not found', "executable file `python3` not found", "No module named 'torch'")
_ELSEWHERE = (
    "If it is to be fast, put the fabric address on an interface with an RDMA device. If it is meant to be like this, set tp_launch_collective_transport "
    "to socket."
)
_LONGER = "tp_launch_collective_timeout, or timeout and join_timeout of collective_proof"
_WRONG_SUM = "Do not serve with this: try an image with another NCCL, and see the kernel log of the nodes (dmesg) for errors of GPU, PCIe and adapter."


def read(nodes: t.Sequence[Node]) -> list[dict[str, t.Any]]:
    """The nodes, each with C(told): what its output tells."""
    return [{**node, "told": _collective_facts.read(node["output"])} for node in nodes]


def group(nodes: t.Sequence[Node], port: int) -> dict[str, t.Any]:
    """What is measured of the group, by the head's word; bytes and seconds. :param nodes: as :func:`read` returns them."""
    told = nodes[0]["told"]
    sizes = told["sizes"] or []
    best = max((size["bus_bytes_s"] for size in sizes), default=None)
    ways = [node["told"]["transport"] for node in nodes]
    kinds = sorted({way["kind"] for way in ways if way["kind"]})
    return {
        "ranks": len(nodes),
        "world_size": told["world"],
        "backend": told["backend"],
        "seconds": max((node["told"]["seconds"] for node in nodes), default=0.0),
        "sizes": sizes,
        "bus_gb_s": None if best is None else round(best / 1e9, 3),
        "correct": all(node["told"]["correct"] for node in nodes) if sizes else None,
        "transport": "socket" if "socket" in kinds else kinds[0] if kinds else None,
        "devices": sorted({device for way in ways for device in way["devices"]}),
        "gdr": any(way["gdr"] for way in ways),
        "nccl": told["nccl"],
        "torch": told["torch"],
        "port": port,
    }


def judge(nodes: t.Sequence[Node], engine: str, port: int, link_mbps: float = 0, min_share: float = 0.5) -> Verdict:
    """The verdict over all nodes.

    :param nodes: in rank order, as :func:`read` returns them. :param engine: whose texts a log is read with.
    :param link_mbps: what a node's links promise together, in Mbit/s; 0: it is not judged. :param min_share: how much of it is enough.
    :returns: C(verdict) (V(ready), V(slow), V(blocked), or None where the image can't run the proof),
        C(cause) (of C(_causes), or None), C(culprit) (a node, or None), C(message), C(remedy), C(evidence).
    """
    bare = [node for node in nodes if any(text in node["problem"] or text in node["told"]["text"] for text in _BARE)]
    if len(bare) == len(nodes):
        message = f"Nothing was reduced: {_name(bare[0])} has an image whose python3 has no torch, so the launch itself is the proof."
        return _verdict(None, None, None, message, nodes, "Nothing is to be done.")
    refused = [node for node in nodes if node["problem"]]
    if refused:
        return _refused(refused[0], nodes, engine)
    if any(node["told"]["stage"] != "result" for node in nodes):
        return _broken(nodes, engine, port)
    return _wrong(nodes) or _way(nodes) or _speed(nodes, link_mbps, min_share) or _ready(nodes)


# It did not come to an end.


def _refused(node: Node, nodes: t.Sequence[Node], engine: str) -> Verdict:
    """A container that could not be run; Docker's own word says why."""
    told = _diagnosis.judge([_record(node, engine, node["problem"])])
    cause = told["cause"] if told["cause"] in CAUSES else "unknown"
    remedy = told["remedy"] if cause != "unknown" else "Correct what Docker says on that node, and run this again."
    return _verdict("blocked", cause, node, f"The proof could not be run on {node['node']}: {node['problem'].rstrip('.')}.", nodes, remedy)


def _broken(nodes: t.Sequence[Node], engine: str, port: int) -> Verdict:
    known = _unmet(nodes, port) or _no_rdma(nodes)
    if known:
        return known
    records = [_record(node, engine) for node in nodes]
    failed = [node for node, record in zip(nodes, records, strict=True) if not record["running"]]
    if failed:
        found = _diagnosis.judge(records)
        if found["verdict"] == "failed" and found["cause"]:
            culprit = next((node for node in nodes if node["node"] == found["culprit"]), None)
            # Of an engine's phases the proof has none.
            message = re.sub(r" in phase \w+", "", found["summary"])
            return {**_verdict("blocked", found["cause"], culprit, message, nodes, found["remedy"]), "evidence": found["evidence"]}
        lost = failed[0]
        return _verdict("blocked", "killed", lost, f"The proof on {_name(lost)} ended without a word.", nodes)
    return _standstill(nodes, port)


def _unmet(nodes: t.Sequence[Node], port: int) -> Verdict | None:
    """The head waited, and others ran and did not come to it: their logs hold torch's error over a connection, which is no fault of theirs.

    Or not even the head came to it.
    """
    head = nodes[0]
    where = f"{head['address']}:{port}"
    if _away(head):
        return _alone(nodes, where)
    away = [node for node in nodes[1:] if _away(node)]
    if head["told"]["stage"] != "met" or not away:
        return None
    given_up = _time(head, "missing")
    join = given_up - _time(head, "met")
    # Both have waited for so long: not for each other where one began when the other had ended.
    late = [node for node in away if given_up and _time(node, "imported") > given_up]
    late += [head] if join and _time(head, "imported") > join + max(_time(node, "imported") for node in away) else []
    if late:
        slow = late[0]
        message = f"{_name(slow)} needed {_time(slow, 'imported'):.0f} s to import torch, when the others had given up at the rendezvous."
        remedy = f"See what {slow['node']} does (its disk, its processor), or give it longer ({_LONGER})."
        return _verdict("blocked", "rendezvous_timeout", slow, message, nodes, remedy)
    names = listed([_name(node) for node in away])
    message = f"{names} did not reach the head at {where} ({_said(away)}), which waited there for {join:.0f} s."
    remedy = f"See the link, the address, the route and the firewall between {away[0]['node']} and {head['node']}: packets to {where} do not come through."
    return _verdict("blocked", "net_unreachable", away[0], message, nodes, remedy)


def _alone(nodes: t.Sequence[Node], where: str) -> Verdict:
    """The head listens on all addresses, and goes to its own store as the others do, by the address that it was given.

    "The client socket has timed out after 20000ms while trying to connect to (192.168.200.11, 29556)" of the head itself: a firewall that
    drops its own packets too, or an address that is another node's. The link has no part in it, so it is not the others' fault.
    """
    head = nodes[0]
    too = [node for node in nodes[1:] if _away(node)]
    others = f", and neither did {listed([_name(node) for node in too])}" if too else ""
    message = f"{_name(head)} did not reach the head at {where}, which is itself ({_said([head])}){others}."
    remedy = (
        f"See that {head['address']} is an address of {head['node']} ('ip addr'), and that its firewall drops no packets to {where} "
        "('nft list ruleset'), its own included."
    )
    return _verdict("blocked", "net_unreachable", head, message, nodes, remedy)


def _away(node: Node) -> bool:
    """It came to no rendezvous: torch's error is that of a client, and not the head's, whose server finds its port taken."""
    told = node["told"]
    return told["stage"] in ("imported", "device") and any("DistNetworkError" in line and "server socket" not in line for line in told["text"].splitlines())


def _said(nodes: t.Sequence[Node]) -> str:
    return next((text for node in nodes for text in _NETWORK if text in node["told"]["text"]), "no answer")


def _no_rdma(nodes: t.Sequence[Node]) -> Verdict | None:
    """NCCL found no RDMA device, and must use no other: NCCL_NET is IB."""
    for node in nodes:
        told = node["told"]
        if told["transport"]["no_device"] and any(text in told["text"] for text in _NO_NETWORK):
            said = f"{told['transport']['no_device']}: No device found"
            message = f"NCCL on {_name(node)} found no RDMA device in its container ({said}), and NCCL_NET allows no other way."
            return _verdict("blocked", "ib_error", node, message, nodes)
    return None


def _time(node: Node, event: str) -> float:
    """When the last of a node's ranks said something, in seconds; 0 where none did."""
    return max((rank["times"].get(event, 0.0) for rank in node["told"]["ranks"].values()), default=0.0)


def _hung(node: Node) -> bool:
    """It was cut off for its time."""
    told = node["told"]
    return bool(told["late"]) and not any(code > 0 for code in told["codes"])


def _record(node: Node, engine: str, problem: str = "") -> dict[str, t.Any]:
    """A node as C(_diagnosis) takes it."""
    told = node["told"]
    timeline = Timeline(engine)
    timeline.feed((problem or told["text"]) + "\n")
    code = next((abs(code) if code >= 0 else 128 - code for code in told["codes"] if code), None)
    reading = timeline.reading()
    # One that stood still may have said why: "NCCL WARN socketStartConnect: connect to 10.77.1.10<60663> failed : Network is unreachable".
    why = any(candidate["kind"] == "cause" for candidate in reading.get("candidates") or [])
    hung = not problem and (told["stage"] == "result" or (_hung(node) and not why))
    return {
        "node": node["node"],
        "rank": node["rank"],
        "started": True,
        "running": hung,
        "exit_code": None if hung else 1 if problem else code,
        "addresses": [node["address"]],
        "reading": reading,
    }


def _standstill(nodes: t.Sequence[Node], port: int) -> Verdict:
    """All that are not done were cut off: by how far each came."""
    least = min((node["told"]["stage"] for node in nodes), key=STAGES.index)
    behind = [node for node in nodes if node["told"]["stage"] == least]
    first, head = behind[0], nodes[0]
    names = listed([_name(node) for node in behind])
    if least == "":
        message = f"{names} did not import torch in time."
        remedy = f"See what {first['node']} does (its disk, its processor), or give it longer ({_LONGER})."
        return _verdict("blocked", "unknown", first, message, nodes, remedy)
    if least in ("imported", "device"):
        if least == "imported" and head["told"]["backend"] == "nccl":
            message = f"{names} did not get hold of the GPU in time."
            return _verdict("blocked", "driver", first, message, nodes)
        message = f"{names} found something at {head['address']}:{port} that takes connections and does not answer as the head does."
        return _verdict("blocked", "port_in_use", head, message, nodes)
    if least == "met":
        message = f"{names} waited in vain at the rendezvous {head['address']}:{port}."
        return _verdict("blocked", "rendezvous_timeout", first, message, nodes)
    doing = "while the ranks connect" if least in ("joined", "group") else "in the first all-reduces"
    cause = "nccl_hang" if head["told"]["backend"] == "nccl" else "net_unreachable"
    culprit = first if len(behind) < len(nodes) else None
    return _verdict("blocked", cause, culprit, f"All ranks met, and then stood still {doing}: {names} came no further.", nodes)


# It came to an end.


def _wrong(nodes: t.Sequence[Node]) -> Verdict | None:
    bad = [node for node in nodes if not node["told"]["correct"]]
    if not bad:
        return None
    message = f"{listed([_name(node) for node in bad])} got a wrong sum from an all-reduce over {nodes[0]['told']['world']} ranks."
    return _verdict("blocked", "nccl_error" if bad[0]["told"]["backend"] == "nccl" else "unknown", bad[0], message, nodes, _WRONG_SUM)


def _way(nodes: t.Sequence[Node]) -> Verdict | None:
    """The data went another way than it was to go."""
    for node in nodes:
        way, expected = node["told"]["transport"], node["expected"]
        if expected["rdma"] and way["kind"] == "socket":
            why = f": NCCL says {way['no_device']}: No device found" if way["no_device"] else ""
            message = f"{_name(node)} talks over sockets ({_over(way)}), though RDMA was expected{why}."
            if expected.get("named", True):
                return _verdict("blocked", "ib_error", node, message, nodes)
            message = f"{_name(node)} talks over sockets ({_over(way)}): its node has RDMA devices, and its environment names none of them."
            return _verdict("slow", "ib_error", node, message, nodes, _ELSEWHERE)
    for node in nodes:
        way, expected = node["told"]["transport"], node["expected"]
        idle = [hca for hca in expected["hcas"] if not _busy(hca, expected["hcas"], way["devices"])]
        if way["kind"] == "rdma" and idle:
            message = f"{_name(node)} uses {_over(way)} and leaves {listed(idle)} idle, though NCCL_IB_HCA names {listed(expected['hcas'])}."
            return _verdict("slow", "ib_error", node, message, nodes)
        if way["kind"] == "tcp" and expected["interfaces"] and way["devices"] and not set(way["devices"]) <= set(expected["interfaces"]):
            message = f"{_name(node)} talks over {_over(way)}, not over {listed(expected['interfaces'])}."
            return _verdict("slow", "gloo_wrong_iface", node, message, nodes)
    return None


def _busy(hca: str, hcas: t.Sequence[str], devices: t.Sequence[str]) -> bool:
    """Whether a name of C(NCCL_IB_HCA) is used: NCCL takes it as the beginning of names, so that C(mlx5) means all of them."""
    return hca in devices or any(device.startswith(hca) and device not in hcas for device in devices)


def _speed(nodes: t.Sequence[Node], link_mbps: float, min_share: float) -> Verdict | None:
    told = nodes[0]["told"]
    kind = group(nodes, 0)["transport"]
    best = max(size["bus_bytes_s"] for size in told["sizes"])
    share = best * 8 / 1e6 / link_mbps if link_mbps else 1.0
    # An image made for processors goes over TCP where its nodes have RDMA: the links' promise is for that.
    spared = told["backend"] == "gloo" and nodes[0]["expected"]["rdma"]
    if kind in ("p2p", "shm") or spared or share >= min_share:
        return None
    message = (
        f"The all-reduce over {WORDS.get(kind or '', kind or 'the network')} moves {best / 1e9:.2f} GB/s, {share:.0%} of what the links promise "
        f"({link_mbps / 1000:g} Gb/s); {min_share:.0%} are wanted."
    )
    return _verdict("slow", None, None, message, nodes, _SLOW.get(kind or "", _SLOW["tcp"]))


def _ready(nodes: t.Sequence[Node]) -> Verdict:
    seen = group(nodes, 0)
    over = WORDS.get(seen["transport"] or "", seen["transport"] or "an unknown transport")
    with_devices = f" ({', '.join(seen['devices'])}{'; GDR' if seen['gdr'] else ''})" if seen["devices"] else ""
    version = f"NCCL {seen['nccl']}, " if seen["nccl"] else ""
    message = f"{seen['world_size']} ranks reduce over {over}{with_devices}: {seen['bus_gb_s']:.2f} GB/s on the bus, {version}{seen['seconds']:.1f} s."
    return _verdict("ready", None, None, message, nodes, "Nothing is to be done.")


def _over(way: t.Mapping[str, t.Any]) -> str:
    return ", ".join(way["devices"]) or ", ".join(way["channels"]) or "an unknown device"


def _name(node: Node) -> str:
    return f"{node['node']} (rank {node['rank']})"


def _verdict(verdict: str | None, cause: str | None, culprit: Node | None, message: str, nodes: t.Sequence[Node], remedy: str | None = None) -> Verdict:
    name = culprit["node"] if culprit else nodes[0]["node"]
    peer = next((node["node"] for node in nodes if node["node"] != name), name)
    text = remedy if remedy is not None else CAUSES[cause or "unknown"].remedy.format(node=name, peer=peer)
    warned = [line for node in nodes for line in node["told"]["text"].splitlines() if "NCCL WARN" in line] if verdict in ("slow", "blocked") else []
    return {"verdict": verdict, "cause": cause, "culprit": culprit["node"] if culprit else None, "message": message, "remedy": text, "evidence": warned[:5]}
