# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""What the output of the program in C(_collective_program) tells: how far each rank came, what was measured, and which way NCCL went. Pure."""

from __future__ import annotations

import json
import re
import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils._collective_program import MARK
from ansible_collections.sparkstack.inference.plugins.module_utils._nccl import NCCLFacts

STAGES = ("", "imported", "device", "met", "joined", "group", "connected", "result")
"""How far a rank can come, in order."""
WORDS = {"rdma": "RDMA", "socket": "sockets", "tcp": "TCP (gloo)", "p2p": "the GPUs' own links", "shm": "shared memory"}
"""The kinds of transport, in words."""
# "NET/IB : Using [0]rocep1s0f0:1/RoCE [1]roceP2p1s0f0:1/RoCE [RO]; OOB enp1s0f0np0:192.168.200.11<0>", before 2.24 with merged devices
# "NET/IB : Using [0]={[0] mlx5_2:1/RoCE, [1] mlx5_3:1/RoCE} [RO]; ..", "NET/Socket : Using [0]eth0:10.77.1.1<0> [1]eth1:10.77.2.1<0>".
_USING = re.compile(r"NET/(\w+) : Using ([^\r\n;]+)")
_ENTRY = re.compile(r"\[(\d+)\](=\{[^}]*\}|[^\s\]]+)")
_NAME = re.compile(r"([\w.-]+):\d+/(?:RoCE|IB)|^([\w.-]+):")
# "NET/IB : Made virtual device [2] name=rocep1s0f0+roceP2p1s0f0 speed=400000 ndevs=2"; one of each device alone stands there as well.
_VIRTUAL = re.compile(r"Made virtual device \[(\d+)\] name=([\w.+-]+)")
# "NET/IB/0", "NET/Socket/1", "NET/IB/0(1)", "P2P".
_VIA = re.compile(r"NET/(\w+?)(?:/(\d+))?(?:\(\d+\))?$")


def read(output: str) -> t.Dict[str, t.Any]:
    """What one node's output tells.

    C(stage) of its least advanced rank; C(ranks) (what each rank said last of each key, by its number, and C(times): when it said what);
    C(missing) (ranks that did not come to the rendezvous); C(world), C(backend), C(torch), C(nccl) (versions); C(sizes) and C(correct), or
    None; C(seconds) to the last that a rank said; C(gpu_bytes), C(nccl_bytes), C(memory_bytes) (the most of a rank); C(transport) (see
    :func:`transport`); C(ended) (the program said its last word), C(late) (it was cut off for its time), C(codes) (of its processes); C(text)
    (what NCCL and torch said).
    """
    events, text = split(output)
    ranks: t.Dict[int, t.Dict[str, t.Any]] = {}
    told: t.Dict[str, t.Any] = {"missing": [], "ended": False, "late": False, "codes": []}
    for event in events:
        if event["event"] == "end":
            told.update(ended=True, late=bool(event.get("late")), codes=list(event.get("codes") or []))
        elif isinstance(event.get("rank"), int):
            told["missing"] = event.get("ranks") or told["missing"]
            known = ranks.setdefault(event["rank"], {"stage": "", "connections": [], "times": {}})
            known.update(event, stage=event["event"] if event["event"] in STAGES else known["stage"])
            known["times"][event["event"]] = event.get("seconds") or 0.0
    every = list(ranks.values())
    first: t.Dict[str, t.Any] = every[0] if every else {}
    done = bool(every) and all(rank["stage"] == "result" for rank in every)
    facts = NCCLFacts()
    raw = text.encode()
    facts.gather(raw, lambda wanted: wanted in raw)
    nccl = facts.reading()
    told.update(
        stage=min((rank["stage"] for rank in every), key=STAGES.index, default=""),
        ranks=ranks,
        world=first.get("world"),
        backend=first.get("backend"),
        torch=first.get("torch"),
        nccl=nccl.get("version") or first.get("nccl"),
        seconds=max((float(rank.get("seconds") or 0) for rank in every), default=0.0),
        sizes=first.get("sizes") if done else None,
        correct=all(rank.get("correct") for rank in every) if done else None,
        gpu_bytes=_most(every, "gpu_bytes"),
        nccl_bytes=_most(every, "nccl_bytes"),
        memory_bytes=_most(every, "memory_bytes"),
        transport=transport(text, nccl, first.get("backend"), [c for rank in every for c in rank["connections"]]),
        text=text,
    )
    return told


def split(output: str) -> t.Tuple[t.List[t.Dict[str, t.Any]], str]:
    """The program's own lines, and the text of all others."""
    events, others = [], []
    for line in output.splitlines():
        before, mark, rest = line.partition(MARK)
        if mark:
            try:
                event = json.loads(rest)
            except ValueError:
                event = None
            if isinstance(event, dict) and "event" in event:
                events.append(event)
                line = before
        if line.strip():
            others.append(line)
    return events, "\n".join(others)


def transport(text: str, nccl: t.Mapping[str, t.Any], backend: t.Optional[str], connections: t.Sequence[t.Sequence[str]]) -> t.Dict[str, t.Any]:
    """Which way the ranks' data really goes.

    :param nccl: the reading of C(_nccl). :param connections: as the program tells them: own interface, own address, peer's address.
    :returns: C(kind) (V(rdma), V(socket), V(p2p), V(shm), V(tcp) for gloo, or a plugin's name in lower case; None where no channel is told),
        C(devices) (names of HCAs or interfaces that channels go over, sorted), C(channels) (as NCCL names them, to their number), C(gdr) (GPU Direct RDMA),
        C(no_device) (NCCL's word for a network without a device), C(addresses) (own ones that data or its set-up uses).
    """
    channels: t.Dict[str, int] = dict(nccl.get("channels") or {})
    outward = [c for c in connections if not c[2].startswith("127.")] or list(connections)
    found: t.Dict[str, t.Any] = {
        "kind": None,
        "devices": [],
        "channels": channels,
        "gdr": False,
        "no_device": nccl.get("no_device"),
        "addresses": sorted({c[1] for c in outward}),
    }
    if backend == "gloo":
        interfaces = sorted({c[0] for c in outward if c[0]})
        found.update(kind="tcp" if outward else None, devices=interfaces)
        return found
    known = _known(text)
    networks = set()
    devices = set()
    for channel in channels:
        match = _VIA.match(channel)
        if not match:
            continue
        network, index = match.group(1), match.group(2)
        networks.add(network)
        # Of the plugin "IBext_v8" the devices are told as "NET/IB : Using [0]..".
        devices.update(known.get("IB" if _kind(network) == "rdma" else network, {}).get(index or "0", []))
    if networks:
        kinds = {_kind(network) for network in networks}
        # A group that goes over sockets anywhere goes over sockets.
        found.update(kind="socket" if "socket" in kinds else sorted(kinds)[0], devices=sorted(devices), gdr=bool(nccl.get("gdr")))
    elif channels:
        found["kind"] = "p2p" if any(channel in ("P2P", "NVLS") for channel in channels) else "shm"
    return found


def _kind(network: str) -> str:
    if network == "Socket":
        return "socket"
    # "IBext_v8" is the plugin of HPC-X, over the same devices.
    return "rdma" if network.startswith("IB") else network.lower()


def _known(text: str) -> t.Dict[str, t.Dict[str, t.List[str]]]:
    """The devices that NCCL has told, by its network and the index that channels name."""
    found: t.Dict[str, t.Dict[str, t.List[str]]] = {}
    for network, entries in _USING.findall(text):
        network = "IB" if _kind(network) == "rdma" else network
        for index, entry in _ENTRY.findall(entries):
            names = [hca or interface for hca, interface in _NAME.findall(entry)]
            if names:
                found.setdefault(network, {}).setdefault(index, names)
    for index, name in _VIRTUAL.findall(text):
        found.setdefault("IB", {})[index] = name.split("+")
    return found


def _most(ranks: t.Sequence[t.Mapping[str, t.Any]], key: str) -> t.Optional[int]:
    numbers = [int(rank[key]) for rank in ranks if rank.get(key) is not None]
    return max(numbers) if numbers else None
