# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# ruff: noqa: E501 - a real line is as long as it is.
"""What the program's and NCCL's lines tell, from real runs, and for ways that these did not go from lines as NCCL prints them."""

from __future__ import annotations

import pathlib
import typing as t

import pytest

from ansible_collections.sparkstack.inference.plugins.module_utils import _collective_facts as subject
from ansible_collections.sparkstack.inference.plugins.module_utils._nccl import NCCLFacts

RUNS = pathlib.Path(__file__).resolve().parents[3] / "fixtures" / "collective"


def told(case: str, rank: str = "head") -> dict[str, t.Any]:
    return subject.read((RUNS / case / f"{rank}.log").read_text())


@pytest.mark.parametrize(
    "case, stage, kind, devices, channels, addresses",
    [
        ("p2p", "result", "p2p", [], {"P2P": 24}, ["192.0.2.2"]),
        ("shm", "result", "shm", [], {"SHM": 4}, ["192.0.2.2"]),
        ("sockets", "result", "socket", ["eth0"], {"NET/Socket/0": 4}, ["10.77.1.10"]),
        ("gloo", "result", "tcp", ["lo"], {}, ["127.0.0.1"]),
        ("cut-while-they-work", "connected", "socket", ["eth0"], {"NET/Socket/0": 4}, ["10.77.1.10"]),
        ("no-rdma-device", "group", None, [], {}, []),
        ("cut-before-they-meet", "met", None, [], {}, []),
    ],
)
def test_real_runs(case: str, stage: str, kind: str | None, devices: list[str], channels: dict[str, int], addresses: list[str]) -> None:
    found = told(case)
    way = found["transport"]
    assert (found["stage"], way["kind"], way["devices"], way["channels"], way["addresses"]) == (stage, kind, devices, channels, addresses)
    assert found["ended"] and found["world"] == 2 and not way["gdr"]


def test_what_was_measured() -> None:
    found = told("sockets")
    assert (found["backend"], found["nccl"], found["torch"], found["correct"]) == ("nccl", "2.28.9", "2.11.0+cu130", True)
    assert [size["bytes"] for size in found["sizes"]] == [4096, 1 << 20, 8 << 20, 32 << 20]
    assert 3e9 < max(size["bus_bytes_s"] for size in found["sizes"]) < 4e9
    # 372 MiB are NCCL's, as in the engine; 132 MiB are the proof's own.
    assert (found["nccl_bytes"], found["gpu_bytes"] - found["nccl_bytes"]) == (390070272, 138412032)
    assert found["codes"] == [0] and not found["late"] and found["seconds"] == 3.906


def test_how_it_ended() -> None:
    hung = told("cut-while-they-work", "worker")
    assert hung["late"] and hung["codes"] == [-9] and hung["correct"] is None and hung["sizes"] is None
    assert told("cut-before-they-meet")["missing"] == [1]
    assert told("no-rdma-device")["transport"]["no_device"] == "NET/IB"


USING = "spark1:51:51 [0] NCCL INFO NET/IB : Using [0]rocep1s0f0:1/RoCE [1]roceP2p1s0f0:1/RoCE [RO]; OOB enp1s0f0np0:192.168.200.11<0>\n"
MADE = """\
spark1:51:51 [0] NCCL INFO NET/IB : Made virtual device [0] name=rocep1s0f0 speed=200000 ndevs=1
spark1:51:51 [0] NCCL INFO NET/IB : Made virtual device [1] name=roceP2p1s0f0 speed=200000 ndevs=1
spark1:51:51 [0] NCCL INFO NET/IB : Made virtual device [2] name=rocep1s0f0+roceP2p1s0f0 speed=400000 ndevs=2
"""
GROUPED = "node1:1884:2298 [0] NCCL INFO NET/IB : Using [0]={[0] mlx5_2:1/RoCE, [1] mlx5_3:1/RoCE} [1]={[2] mlx5_0:1/RoCE, [3] mlx5_1:1/RoCE} [RO]; OOB bond0.526:192.0.2.9<0>\n"
SOCKET = "spark1:51:51 [0] NCCL INFO NET/Socket : Using [0]enp1s0f0np0:192.168.200.11<0> [1]enP2p1s0f0np0:192.168.201.11<0>\n"


def via(*ways: str) -> str:
    return "".join(f"spark1:51:88 [0] NCCL INFO Channel 0{index}/0 : 0[0] -> 1[0] [send] via {way}\n" for index, way in enumerate(ways))


@pytest.mark.parametrize(
    "text, kind, devices, gdr",
    [
        (USING + via("NET/IB/0", "NET/IB/1"), "rdma", ["roceP2p1s0f0", "rocep1s0f0"], False),
        (USING + via("NET/IB/0/GDRDMA"), "rdma", ["rocep1s0f0"], True),
        (USING + MADE + via("NET/IB/2"), "rdma", ["roceP2p1s0f0", "rocep1s0f0"], False),
        (USING + MADE + via("NET/IB/1"), "rdma", ["roceP2p1s0f0"], False),
        (GROUPED + via("NET/IBext_v8/1"), "rdma", ["mlx5_0", "mlx5_1"], False),
        (USING + via("NET/IB/0(1)/GDRDMA"), "rdma", ["rocep1s0f0"], True),
        (SOCKET + via("NET/Socket/1"), "socket", ["enP2p1s0f0np0"], False),
        # One channel over sockets is as slow as all.
        (USING + SOCKET + via("NET/IB/0", "NET/Socket/0"), "socket", ["enp1s0f0np0", "rocep1s0f0"], False),
        (via("NET/OFI/0"), "ofi", [], False),
        (USING + via("P2P/CUMEM", "NET/IB/0"), "rdma", ["rocep1s0f0"], False),
        (via("SHM/direct/direct", "P2P/IPC"), "p2p", [], False),
        (USING, None, [], False),
    ],
)
def test_ways(text: str, kind: str | None, devices: list[str], gdr: bool) -> None:
    facts = NCCLFacts()
    facts.gather(text.encode(), lambda wanted: wanted in text.encode())
    found = subject.transport(text, facts.reading(), "nccl", [])
    assert (found["kind"], found["devices"], found["gdr"]) == (kind, devices, gdr)


def test_lines_that_run_into_each_other() -> None:
    events, text = subject.split(
        'vm:1:2 [0] NCCL INFO cut off@@sparkstack-collective {"event": "met", "rank": 0}\n'
        '@@sparkstack-collective {"event": "jo\n@@sparkstack-collective 7\n\nplain\n'
    )
    assert events == [{"event": "met", "rank": 0}]
    assert text.splitlines()[0] == "vm:1:2 [0] NCCL INFO cut off" and text.endswith("plain")
    assert subject.read("")["stage"] == "" and not subject.read("")["ended"]
