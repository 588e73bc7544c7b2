# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# ruff: noqa: E501 - a real line is as long as it is.
"""What NCCL's own lines tell, as versions print them."""

from __future__ import annotations

import json
import typing as t

import pytest
import real_logs

from ansible_collections.sparkstack.inference.plugins.module_utils._timeline import Timeline

RDMA = """\
spark1:51:51 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to enp1s0f1np1
spark1:51:51 [0] NCCL INFO Bootstrap : Using enp1s0f1np1:169.254.10.1<0>
spark1:51:51 [0] NCCL INFO NCCL version 2.27.3+cuda13.0
spark1:51:51 [0] NCCL INFO NET/Plugin: Could not find: libnccl-net.so.
spark1:51:51 [0] NCCL INFO NET/IB : Using [0]rocep1s0f1:1/RoCE [1]roceP2p1s0f1:1/RoCE [RO]; OOB enp1s0f1np1:169.254.10.1<0>
spark1:51:51 [0] NCCL INFO Using network IB
spark1:51:51 [0] NCCL INFO ncclCommInitRankConfig comm 0x1a rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 1000 commId 0x70 - Init START
"""
RINGS = """\
spark1:51:88 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/IB/0/GDRDMA
spark1:51:88 [0] NCCL INFO Channel 01/0 : 1[0] -> 0[0] [receive] via NET/IB/1
spark1:51:88 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0/GDRDMA
spark1:51:88 [0] NCCL INFO Channel 02 : 0[0] -> 1[1] via P2P/IPC
spark1:51:88 [0] NCCL INFO Channel 03 : 0[0] -> 1[1] via SHM/direct/direct
spark1:51:88 [0] NCCL INFO Connected all rings
spark1:51:51 [0] NCCL INFO ncclCommInitRankConfig comm 0x1a rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 1000 commId 0x70 - Init COMPLETE
"""
START = "[2026-11-29 22:42:42] server_args=ServerArgs(model_path='/m', tp_size=2, nnodes=2, node_rank=0, dist_init_addr='10.0.0.1:5000')\n"


def facts(text: str) -> dict[str, t.Any]:
    timeline = Timeline("sglang", 2026)
    timeline.feed(text)
    return t.cast("dict[str, t.Any]", timeline.reading()["nccl"])


def test_over_rdma() -> None:
    assert facts(RDMA + RINGS) == {
        "version": "2.27.3",
        "bootstrap": "enp1s0f1np1:169.254.10.1",
        "network": "IB",
        "devices": ["rocep1s0f1:1/RoCE", "roceP2p1s0f1:1/RoCE"],
        "ranks": 2,
        "started": 1,
        "complete": 1,
        "channels": {"NET/IB/0": 2, "NET/IB/1": 1, "P2P": 1, "SHM": 1},
        "connected": 1,
        "gdr": True,
    }


def test_real_lines_over_sockets() -> None:
    told = real_logs.read(real_logs.LOGS / "sglang-gpu/ready-nccl-info/head.log")["nccl"]
    assert told == {
        "version": "2.28.9",
        "bootstrap": "eth0:10.77.1.1",
        "network": "Socket",
        "devices": ["eth0:10.77.1.1"],
        "ranks": 2,
        "started": 1,
        "complete": 1,
        "channels": {"NET/Socket/0": 4},
        "connected": 2,
        "gdr": False,
    }


def test_begun_and_not_complete() -> None:
    told = facts(RDMA)
    assert (told["started"], told["complete"]) == (1, 0)
    assert "channels" not in told


def test_only_the_largest_communicators_count() -> None:
    small = "spark1:51:51 [0] NCCL INFO ncclCommInitRank comm 0x2b rank 0 nranks 1 cudaDev 0 nvmlDev 0 busId 1000 commId 0x71 - Init START\n"
    told = facts(small * 3 + RDMA)
    assert (told["ranks"], told["started"], told["complete"]) == (2, 1, 0)


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("spark1:51:51 [0] NCCL INFO Bootstrap: Using eth0:10.77.1.1<0>", "bootstrap", "eth0:10.77.1.1"),
        ("spark1:51:51 [0] NCCL INFO Bootstrap: Using eth0:fe80::1<0>", "bootstrap", "eth0:fe80::1"),
        ("spark1:51:51 [0] NCCL INFO NET/IB : No device found.", "no_device", "NET/IB"),
        ("spark1:51:51 [0] NCCL INFO Using network IBext_v8", "network", "IBext_v8"),
        ("spark1:51:51 [0] NCCL INFO Connected all rings, use ring PXN 0 GDR 1", "gdr", True),
        ("spark1:1:2 [0] transport/net_ib.cc:90 NCCL WARN Call to ibv_modify_qp failed with 110", "warning", "Call to ibv_modify_qp failed with 110"),
        # A line that was cut in the middle, and another one glued on.
        ("[0][2026-11-29 22:43:39 TP0] spark1:51:51 [0] NCCL INFO Using network Sock[2026-11-29 22:43:39 TP0] Load weight begin.", "network", "Sock"),
    ],
)
def test_one_line(line: str, name: str, value: t.Any) -> None:
    assert facts(line + "\n")[name] == value


def test_a_new_run_begins_anew() -> None:
    lines = START + RDMA + "[2026-11-29 22:42:43 TP0] Init torch distributed begin.\n"
    timeline = Timeline("sglang", 2026)
    for text in (lines + RINGS, lines):
        timeline.feed(text)
        timeline = Timeline.from_state(json.loads(json.dumps(timeline.state())))
    told = timeline.reading()["nccl"]
    assert (told["started"], told["complete"]) == (1, 0)
    assert facts(lines + RINGS + lines) == told


def test_nothing_is_told_without_such_lines() -> None:
    assert facts(START) == {}


# Two H200, torch 2.11.0, NCCL_DEBUG_FILE=/dev/stderr, the other rank 25 s late: so far the lines had come by then.
WAITING = """\
vm:760:760 [0] NCCL INFO Bootstrap: Using eth0:192.0.2.2<0>
NCCL version 2.28.9+cuda13.0
vm:760:760 [0] NCCL INFO Failed to initialize NET plugin IB
vm:760:760 [0] NCCL INFO Initialized NET plugin Socket
vm:760:760 [0] NCCL INFO Assigned NET plugin Socket to comm
vm:760:760 [0] NCCL INFO Using network Socket
vm:760:760 [0] NCCL INFO ncclCommInitRankConfig comm 0x12a8a0e0 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 60 commId 0xa6d7648a8f8ce374 - Init START
"""
MET = """\
vm:760:760 [0] NCCL INFO ncclCommInitRankConfig comm 0x12a8a0e0 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 60 commId 0xa6d7648a8f8ce374 - Init COMPLETE
vm:760:760 [0] NCCL INFO Channel 00/0 : 1[1] -> 0[0] [receive] via NET/Socket/0
vm:760:760 [0] NCCL INFO Connected all rings, use ring PXN 0 GDR 0
"""


def test_a_rank_that_waits_and_one_that_has_met_the_other() -> None:
    waiting, met = facts(WAITING), facts(WAITING + MET)
    assert (waiting["network"], waiting["started"], waiting["complete"], waiting.get("connected")) == ("Socket", 1, 0, None)
    assert (met["started"], met["complete"], met["connected"], met["channels"], met["gdr"]) == (1, 1, 1, {"NET/Socket/0": 1}, False)
