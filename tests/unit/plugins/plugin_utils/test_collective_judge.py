# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The verdict over real runs, and over what these did not show."""

from __future__ import annotations

import json
import pathlib
import typing as t

import pytest

from ansible_collections.sparkstack.inference.plugins.module_utils._causes import CAUSES
from ansible_collections.sparkstack.inference.plugins.module_utils._collective_program import MARK
from ansible_collections.sparkstack.inference.plugins.plugin_utils import _collective_judge as subject

RUNS = pathlib.Path(__file__).resolve().parents[3] / "fixtures" / "collective"
PORT = 29612


def node(rank: int, output: str, problem: str = "", **expected: t.Any) -> dict[str, t.Any]:
    wanted = {"rdma": False, "hcas": [], "interfaces": [], **expected}
    return {"node": f"spark{rank + 1}", "rank": rank, "address": f"10.77.1.1{rank}", "problem": problem, "output": output, "expected": wanted, "seconds": 9.0}


def judge(*nodes: dict[str, t.Any], **arguments: t.Any) -> dict[str, t.Any]:
    verdict = subject.judge(subject.read(nodes), "sglang", PORT, **arguments)
    assert verdict["cause"] is None or verdict["cause"] in CAUSES
    assert verdict["message"].endswith(".") and verdict["remedy"].endswith(".") and "{" not in verdict["remedy"]
    return verdict


def real(case: str, **expected: t.Any) -> list[dict[str, t.Any]]:
    return [node(rank, (RUNS / case / f"{name}.log").read_text(), **expected) for rank, name in enumerate(("head", "worker"))]


def output(rank: int, *events: str, text: str = "", codes: tuple[int, ...] | None = (0,), late: bool = False, backend: str = "nccl", **last: t.Any) -> str:
    """The output of a rank that has come as far as the last of the events, one a second."""
    facts = {"world": 2, "backend": backend, "torch": "2.9.1"}
    said = [{"event": event, "rank": rank, "seconds": float(second + 1), **(facts if event == "imported" else {})} for second, event in enumerate(events)]
    if said:
        said[-1].update(last)
    if codes is not None:
        said.append({"event": "end", "codes": list(codes), "late": late})
    lines = [f"{MARK}{json.dumps(line)}" for line in said]
    return "\n".join([*lines[:-1], text, *lines[-1:]])


ALL = ("imported", "device", "met", "joined", "group", "connected", "result")
SIZES = [{"bytes": 4096, "seconds": 1e-4, "bus_bytes_s": 4.1e7, "correct": True}, {"bytes": 1 << 25, "seconds": 0.0016, "bus_bytes_s": 2.1e10, "correct": True}]
RDMA = """\
spark1:51:51 [0] NCCL INFO NCCL version 2.28.9+cuda13.0
spark1:51:51 [0] NCCL INFO NET/IB : Using [0]rocep1s0f0:1/RoCE [1]roceP2p1s0f0:1/RoCE [RO]; OOB enp1s0f0np0:192.168.200.11<0>
spark1:51:88 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0
"""
BOTH = RDMA + "spark1:51:88 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[0] [send] via NET/IB/1\n"
HCAS = ["rocep1s0f0", "roceP2p1s0f0"]


def done(text: str, sizes: t.Any = SIZES, correct: bool = True, **expected: t.Any) -> list[dict[str, t.Any]]:
    return [node(rank, output(rank, *ALL, text=text, sizes=sizes, correct=correct), **expected) for rank in (0, 1)]


@pytest.mark.parametrize(
    "case, expected, verdict, cause, culprit, message, remedy",
    [
        ("p2p", {"rdma": True}, "ready", None, None, "2 ranks reduce over the GPUs' own links: 242.71 GB/s on the bus, NCCL 2.28.9, 4.6 s.", "Nothing"),
        ("sockets", {}, "ready", None, None, "2 ranks reduce over sockets (eth0): 3.26 GB/s on the bus, NCCL 2.28.9, 3.9 s.", "Nothing"),
        ("gloo", {}, "ready", None, None, "2 ranks reduce over TCP (gloo) (lo): ", "Nothing"),
        (
            "sockets",
            {"rdma": True},
            "blocked",
            "ib_error",
            "spark1",
            "spark1 (rank 0) talks over sockets (eth0), though RDMA was expected: NCCL says NET/IB: No device found.",
            "/dev/infiniband of spark1's container",
        ),
        (
            "sockets",
            {"rdma": True, "named": False},
            "slow",
            "ib_error",
            "spark1",
            "spark1 (rank 0) talks over sockets (eth0): its node has RDMA devices, and its environment names none of them.",
            "set tp_launch_collective_transport to socket",
        ),
        (
            "no-rdma-device",
            {"rdma": True},
            "blocked",
            "ib_error",
            "spark1",
            "found no RDMA device in its container (NET/IB: No device found), and NCCL_NET allows no other way.",
            "NCCL_IB_HCA",
        ),
        ("interface-missing", {}, "blocked", "net_unreachable", "spark1", "no socket interface found", "Set NCCL_SOCKET_IFNAME on spark1"),
        (
            "cut-before-they-meet",
            {},
            "blocked",
            "net_unreachable",
            "spark2",
            "spark2 (rank 1) did not reach the head at 10.77.1.10:29612 (Network is unreachable), which waited there for 20 s.",
            "the firewall between spark2 and spark1",
        ),
        ("cut-while-they-work", {}, "blocked", "net_unreachable", "spark2", "socketStartConnect: connect to 10.77.1.10", "spark2"),
        ("gloo", {"interfaces": ["enp1s0f0np0"]}, "slow", "gloo_wrong_iface", "spark1", "talks over lo, not over enp1s0f0np0.", "GLOO_SOCKET_IFNAME"),
    ],
)
def test_real_runs(case: str, expected: dict[str, t.Any], verdict: str, cause: str | None, culprit: str | None, message: str, remedy: str) -> None:
    found = judge(*real(case, **expected))
    assert (found["verdict"], found["cause"], found["culprit"]) == (verdict, cause, culprit)
    assert message in found["message"] and " in phase " not in found["message"] and remedy in found["remedy"]


@pytest.mark.parametrize(
    "nodes, arguments, verdict, cause, message",
    [
        (done(BOTH, rdma=True, hcas=HCAS), {"link_mbps": 200000}, "ready", None, "over RDMA (roceP2p1s0f0, rocep1s0f0): 21.00 GB/s on the bus, NCCL 2.28.9"),
        (done(RDMA, rdma=True, hcas=HCAS), {}, "slow", "ib_error", "uses rocep1s0f0 and leaves roceP2p1s0f0 idle"),
        (done(BOTH, rdma=True, hcas=["roce"]), {}, "ready", None, "over RDMA (roceP2p1s0f0, rocep1s0f0)"),
        (done(RDMA.replace("f0:1", "f10:1"), rdma=True, hcas=["rocep1s0f1", "rocep1s0f10"]), {}, "slow", "ib_error", "leaves rocep1s0f1 idle"),
        (
            done(BOTH, rdma=True, hcas=HCAS),
            {"link_mbps": 400000},
            "slow",
            None,
            "The all-reduce over RDMA moves 21.00 GB/s, 42% of what the links promise (400 Gb/s); 50% are wanted.",
        ),
        (done(BOTH, rdma=True), {"link_mbps": 400000, "min_share": 0.4}, "ready", None, "21.00 GB/s"),
        (done(BOTH, correct=False), {}, "blocked", "nccl_error", "spark1 (rank 0) and spark2 (rank 1) got a wrong sum from an all-reduce over 2 ranks."),
    ],
)
def test_what_came_to_an_end(nodes: list[dict[str, t.Any]], arguments: dict[str, t.Any], verdict: str, cause: str | None, message: str) -> None:
    found = judge(*nodes, **arguments)
    assert (found["verdict"], found["cause"]) == (verdict, cause) and message in found["message"]


TIMED = "torch.distributed.DistNetworkError: The client socket has timed out after 30000ms while trying to connect to (10.77.1.10, 29612)."
SHUT = "torch.distributed.DistNetworkError: The client socket has timed out after 20000ms while trying to connect to (192.168.200.11, 29556)."
TAKEN = (
    "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. "
    "port: 29612, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use"
)
MISSED = "torch.distributed.DistStoreError: Timed out after 30 seconds waiting for clients. 1/2 clients joined."
TRACE = 'Traceback (most recent call last):\n  File "<string>", line 97, in _start\n'
MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 32.00 MiB."
NO_GPU = "RuntimeError: No CUDA GPUs are available"


@pytest.mark.parametrize(
    "head, worker, cause, culprit, message",
    [
        # Packets that a firewall drops.
        (
            output(0, "imported", "met", "missing", text=TRACE + MISSED, codes=(1,), ranks=[1], seconds=32.0),
            output(1, "imported", text=TRACE + TIMED, codes=(1,)),
            "net_unreachable",
            "spark2",
            "spark2 (rank 1) did not reach the head at 10.77.1.10:29612 (timed out), which waited there for 30 s.",
        ),
        # A firewall of the head that drops its own packets, too: the head itself is not reached, so nothing is the worker's or the link's fault.
        (
            output(0, "imported", text=TRACE + SHUT, codes=(1,), seconds=31.0),
            output(1, "imported", text=TRACE + SHUT, codes=(1,), seconds=32.0),
            "net_unreachable",
            "spark1",
            "spark1 (rank 0) did not reach the head at 10.77.1.10:29612, which is itself (timed out), and neither did spark2 (rank 1).",
        ),
        # The head's port was taken after it had been looked at: that is torch's error of a connection, too, and not of a client's.
        (
            output(0, "imported", text=TRACE + TAKEN, codes=(1,)),
            output(1, "imported", text=TRACE + TIMED, codes=(1,)),
            "port_in_use",
            "spark1",
            "EADDRINUSE",
        ),
        # The worker's disk was slow: the head was gone when it came.
        (
            output(0, "imported", "met", "missing", text=TRACE + MISSED, codes=(1,), ranks=[1], seconds=32.0),
            output(1, "imported", text=TRACE + TIMED, codes=(1,), seconds=50.0),
            "rendezvous_timeout",
            "spark2",
            "spark2 (rank 1) needed 50 s to import torch, when the others had given up at the rendezvous.",
        ),
        # What the worker failed of counts more than that the head missed it.
        (
            output(0, "imported", "device", "met", "missing", text=TRACE + MISSED, codes=(1,), ranks=[1]),
            output(1, "imported", text=TRACE + NO_GPU, codes=(1,)),
            "driver",
            "spark2",
            "No CUDA GPUs are available",
        ),
        (output(0, *ALL[:5], codes=(-9,), late=True), output(1, *ALL[:5], text=TRACE + MEMORY, codes=(1,)), "oom", "spark2", "CUDA out of memory"),
        # Nothing is raised: by how far they came.
        (
            output(0, codes=(-9,), late=True),
            output(1, "imported", codes=(-9,), late=True),
            "unknown",
            "spark1",
            "spark1 (rank 0) did not import torch in time.",
        ),
        (
            output(0, *ALL[:3], codes=(-9,), late=True),
            output(1, *ALL[:2], codes=(-9,), late=True),
            "port_in_use",
            "spark1",
            "spark2 (rank 1) found something at 10.77.1.10:29612 that takes connections and does not answer as the head does.",
        ),
        (output(0, *ALL[:5], codes=(-9,), late=True), output(1, *ALL[:5], codes=(-9,), late=True), "nccl_hang", None, "stood still while the ranks connect"),
        (output(0, *ALL[:6], codes=(-9,), late=True), output(1, *ALL[:5], codes=(-9,), late=True), "nccl_hang", "spark2", "spark2 (rank 1) came no further"),
        (
            output(0, *ALL[:4], backend="gloo", codes=(-9,), late=True),
            output(1, *ALL[:4], backend="gloo", codes=(-9,), late=True),
            "net_unreachable",
            None,
            "All ranks met, and then stood still",
        ),
    ],
)
def test_what_did_not(head: str, worker: str, cause: str, culprit: str | None, message: str) -> None:
    found = judge(node(0, head), node(1, worker))
    assert (found["verdict"], found["cause"], found["culprit"]) == ("blocked", cause, culprit) and message in found["message"]
    # What can be given more time by a variable is told with its name.
    assert ("tp_launch_collective_timeout" in found["remedy"]) is ("import torch" in message)


@pytest.mark.parametrize("code, said", [(-9, 137), (-11, 139), (3, 3)])
def test_a_rank_that_ends_by_a_signal_has_the_exit_code_that_a_container_would_have(code: int, said: int) -> None:
    found = judge(node(0, output(0, *ALL[:5], codes=(-9,), late=True)), node(1, output(1, *ALL[:5], codes=(code,))))
    assert (found["verdict"], found["culprit"]) == ("blocked", "spark2") and f"exit code {said}" in found["message"]


@pytest.mark.parametrize(
    "problem, cause, remedy",
    [
        ('could not select device driver "" with capabilities: [[gpu]]', "driver", "Update the driver of spark2"),
        ("Conflict. Nobody knows why.", "unknown", "Correct what Docker says on that node"),
        ("Docker does not answer on /var/run/docker.sock: No such file or directory.", "unknown", "Correct what Docker says on that node"),
    ],
)
def test_what_docker_refused(problem: str, cause: str, remedy: str) -> None:
    waited = output(0, "imported", "met", "missing", text=TRACE + MISSED, codes=(1,), ranks=[1])
    found = judge(node(0, waited), node(1, "", problem=problem))
    assert (found["verdict"], found["cause"], found["culprit"]) == ("blocked", cause, "spark2")
    assert problem.rstrip(".") in found["message"] and remedy in found["remedy"]


def test_a_container_that_was_killed_has_no_last_word() -> None:
    found = judge(node(0, output(0, *ALL[:5], codes=(-9,), late=True)), node(1, output(1, *ALL[:4], codes=None)))
    assert found["verdict"] == "blocked" and found["culprit"] == "spark2"


def test_the_group() -> None:
    nodes = subject.read(done(BOTH, rdma=True))
    nodes[1]["told"]["transport"]["kind"] = "socket"
    found = subject.group(nodes, PORT)
    assert (found["ranks"], found["world_size"], found["backend"], found["bus_gb_s"], found["transport"]) == (2, 2, "nccl", 21.0, "socket")
    assert (found["devices"], found["gdr"], found["nccl"], found["correct"], found["port"]) == (sorted(HCAS), False, "2.28.9", True, PORT)


BARE = 'Error response from daemon: failed to create shim task: OCI runtime create failed: exec: "python3": executable file not found in $PATH: unknown'
CRUN = "Error response from daemon: crun: executable file `python3` not found in $PATH: No such file or directory: OCI runtime attempted to invoke a command"
NO_TORCH = "Traceback (most recent call last):\n  File \"<string>\", line 1, in <module>\nModuleNotFoundError: No module named 'torch'"


def test_links_promise_nothing_to_an_image_made_for_processors() -> None:
    slow = [{**size, "bus_bytes_s": 6e8} for size in SIZES]
    over = {"connections": [], "sizes": slow, "correct": True}
    nodes = [node(rank, output(rank, *(name for name in ALL if name != "device"), backend="gloo", **over), rdma=True, hcas=HCAS) for rank in (0, 1)]
    assert judge(*nodes, link_mbps=200000)["verdict"] == "ready"
    assert judge(*done(RDMA, sizes=slow, rdma=True), link_mbps=200000)["verdict"] == "slow"


@pytest.mark.parametrize(
    "bare", [lambda rank: node(rank, "", BARE), lambda rank: node(rank, "", CRUN), lambda rank: node(rank, output(rank, text=NO_TORCH, codes=(1,)))]
)
def test_an_image_that_cannot_run_it_is_no_reason_to_stop(bare: t.Callable[[int], dict[str, t.Any]]) -> None:
    verdict = judge(bare(0), bare(1))
    assert (verdict["verdict"], verdict["culprit"], verdict["evidence"]) == (None, None, [])
    assert verdict["message"] == "Nothing was reduced: spark1 (rank 0) has an image whose python3 has no torch, so the launch itself is the proof."
    # On one of them it is another image.
    assert judge(node(0, output(0, "imported", codes=None)), bare(1))["verdict"] == "blocked"


def test_older_nccl_says_otherwise_that_it_has_no_network() -> None:
    text = "vm:9:9 [0] NCCL INFO NET/IB : No device found.\nvm:9:9 [0] net.cc:379 NCCL WARN Error: network IB not found.\n"
    ranks = [node(rank, output(rank, "imported", "device", "met", "joined", "group", text=text, codes=(1,)), rdma=True) for rank in (0, 1)]
    found = judge(*ranks)
    assert (found["verdict"], found["cause"], found["culprit"]) == ("blocked", "ib_error", "spark1")
    assert "found no RDMA device in its container (NET/IB: No device found), and NCCL_NET allows no other way." in found["message"]
