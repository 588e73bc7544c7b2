# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The preflight's verdict over several nodes: what is well gives no alarm, what many pairs show is told once, and what is asked for counts."""

from __future__ import annotations

import typing as t

import pytest
import test_preflight_causes as causes
from fabric_trees import P0, P1, T0, at
from preflighting import LAUNCH, RAIL, TWIN, Scene, fabric, found, spark, words

from ansible_collections.sparkstack.inference.plugins.plugin_utils import _preflight, _preflight_screen
from ansible_collections.sparkstack.inference.plugins.plugin_utils._preflight_words import ITEMS, Wanted, WantedError


@pytest.mark.parametrize("count", [2, 3, 8])
def test_where_all_is_well_each_item_is_one_line(count: int) -> None:
    report = Scene(count).judge()
    assert report["result"] == "ready" and found(report) == []
    assert [check["item"] for check in report["checks"]] == [item for item in ITEMS if item != "collective"]
    assert report["not_checked"] == ["collective"] and report["skipped"] == []
    assert all(row["equal"] for row in report["parity"])
    lines = _preflight_screen.lines(report)
    assert len(lines) == 1 + 1 + 26 + 1 + 2 + len(report["parity"]) and all(len(line) < 160 for line in lines)
    assert _preflight_screen.lines(report, whole=False) == [f"Preflight of {count} nodes ({', '.join(report['nodes'])}): ready"]
    assert _preflight.sentence(report) == ""


# What is no fault.


def test_what_this_deployment_holds_itself_is_free_for_it() -> None:
    scene = Scene()
    scene.nodes["spark1"]["preflight"]["listeners"] = [{"port": 8000, "pid": 9, "process": "python3", "container": "qwen-rank0", "deployment": "qwen"}]
    for pair in scene.told("spark2", "spark1"):
        pair["tcp"]["8000"] = "in_use"
    assert scene.judge()["result"] == "ready"


def test_nodes_without_rdma_are_ready_where_none_is_expected() -> None:
    scene = Scene()
    for node in scene.nodes:
        scene.replace(node, at(P0, f"192.168.200.1{node[-1]}/24", hca=""))
        scene.nodes[node]["preflight"].update(infiniband=[], rdma=[])
        scene.nodes[node]["gpu_memory"] = {"gpus": [], "problems": []}
    for src, dst in (("spark1", "spark2"), ("spark2", "spark1")):
        for pair in scene.told(src, dst):
            pair.update(by="tcp", mb_s=1400.0)
    report = scene.judge()
    assert found(report) == [] and words(report, "rdma") == "none on any node: NCCL and gloo go over TCP"
    assert found(scene.judge(transport="rdma")) == [("rdma", "blocked", f"spark{number}", None, RAIL) for number in (1, 2)]


@pytest.mark.parametrize("cause", [causes.no_rdma, causes.no_devices, causes.kernel, causes.cma])
def test_rdma_is_in_nobodys_way_who_does_not_use_it(cause: t.Callable[[Scene], None]) -> None:
    scene = Scene()
    cause(scene)
    assert scene.judge()["result"] == "blocked"
    # An engine that is made for processors meets over gloo, which knows TCP only.
    assert scene.judge(gpus="none")["result"] == scene.judge(transport="tcp")["result"] == "ready"
    assert scene.judge(gpus="none", transport="rdma")["result"] == "blocked"


def test_a_mark_of_the_kernel_that_is_worked_around_is_no_alarm() -> None:
    scene = Scene()
    causes.kernel(scene)
    for node in scene.nodes.values():
        node["preflight"]["kernel"]["kho_off"] = True
    assert found(scene.judge()) == []


@pytest.mark.parametrize(
    ("path", "value", "item", "said"),
    [
        (("docker", "storage"), "overlayfs", "store", "spark1 has overlay2, spark2 has overlayfs; an image's id differs between them"),
        (("docker", "version"), "29.0.1", "docker", "spark1 has 28.5.1, spark2 has 29.0.1; ranks run all the same"),
        (("kernel", "release"), "6.17.0-1040-nvidia", "kernel", "spark2 has 6.17.0-1040-nvidia"),
        (("driver",), "580.178.01", "driver", "they are of one branch"),
    ],
)
def test_versions_that_differ_without_harm_are_a_note(path: tuple[str, ...], value: str, item: str, said: str) -> None:
    scene = Scene()
    place = scene.nodes["spark2"]["preflight"]
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    report = scene.judge()
    assert report["result"] == "ready" and said in words(report, item)
    assert [row["what"] for row in report["parity"] if not row["equal"]] != []
    assert any(line.endswith("<- differs") and value in line for line in _preflight_screen.lines(report))


def test_an_image_that_this_very_run_brings_is_a_note() -> None:
    scene = Scene()
    causes.image(scene)
    report = scene.judge(brings_image=True)
    assert report["result"] == "ready" and "it gets that of spark1" in words(report, "image")


def test_a_node_that_takes_its_own_name_for_a_loopback_is_a_note_where_its_address_is_given() -> None:
    scene = Scene()
    for number in (1, 2):
        scene.nodes[f"spark{number}"]["preflight"]["hosts"] = {f"spark{number}": ["127.0.1.1"]}
    report = scene.judge()
    assert report["result"] == "ready" and "spark1 and spark2 take their own name for a loopback address" in words(report, "hosts_file")


def test_tcp_on_a_fast_link_is_not_asked_for_more_than_tcp_can_give() -> None:
    scene = Scene()
    for src, dst in (("spark1", "spark2"), ("spark2", "spark1")):
        for pair in scene.told(src, dst):
            pair.update(by="tcp", mb_s=900.0)
    report = scene.judge()
    assert report["result"] == "ready" and "can't tell a link in its slow state (13 Gb/s)" in words(report, "bandwidth")


@pytest.mark.parametrize(("busy", "expected"), [(0.95, []), (0.3, [("bandwidth", "blocked", "spark1", "spark2", RAIL)])])
def test_a_busy_processor_is_no_slow_link(busy: float, expected: list[t.Any]) -> None:
    scene = Scene()
    for src, dst, rate in (("spark1", "spark2", 75.0), ("spark2", "spark1", 180.0)):
        for pair in scene.told(src, dst, RAIL):
            pair.update(by="tcp", mb_s=rate, busy=busy)
    report = scene.judge()
    assert found(report) == expected
    said = "600 Mb/s" if expected else "0.6 Gb/s by TCP while the processor was the limit"
    assert said.replace("600 Mb/s", "0.6 Gb/s each way by tcp") in words(report, "bandwidth")


def test_rdma_that_fails_is_told_with_its_own_words() -> None:
    scene = Scene()
    for pair in scene.told("spark1", "spark2", RAIL):
        pair.update(by="tcp", mb_s=1400.0, busy=0.6, rdma_error="Couldn't allocate MR {12}")
    report = scene.judge()
    assert found(report) == [("bandwidth", "slow", "spark1", "spark2", RAIL)]
    assert "RDMA failed there, though both ends have it (ib_write_bw: Couldn't allocate MR {12}), so TCP was measured" in words(report, "bandwidth")


def test_one_lost_packet_is_no_loss() -> None:
    scene = Scene()
    scene.lose("spark1", "spark2", 0.005)
    assert scene.judge()["result"] == "ready"


def test_a_second_rail_in_two_subnets_is_left_out_and_blocks_nothing() -> None:
    scene = Scene()
    scene.replace("spark2", at(P0, "192.168.200.12/24"), at(T0, "192.168.202.12/24"))
    error = "192.168.201.11/24 on spark1 and 192.168.202.12/24 on spark2 are not in one subnet."
    for src, dst in (("spark1", "spark2"), ("spark2", "spark1")):
        # As the probe tells of what it does not try.
        for pair in scene.told(src, dst, TWIN):
            pair.update(error=error, sent=0, received=None, answered=0, loss_share=None, path_mtu=None, tcp={}, macs=[], mac_seen=None, mb_s=None)
    report = scene.judge()
    assert found(report) == [("subnet", "slow", "spark1", None, None), ("subnet", "slow", "spark2", None, None)], words(report, "reach")


@pytest.mark.parametrize(("version", "expected"), [("2.29.3", "slow"), ("2.30.3", "ready"), ("2.31.1", "ready"), (None, "slow")])
def test_a_ring_is_well_with_an_nccl_that_goes_by_the_subnets(version: str | None, expected: str) -> None:
    scene = Scene(3)
    ring = {"spark1": ((P0, 200), (P1, 202)), "spark2": ((P0, 200), (P1, 204)), "spark3": ((P0, 202), (P1, 204))}
    for name, ports in ring.items():
        nics = spark(int(name[-1]), *(at(port, f"192.168.{net}.1{name[-1]}/24") for port, net in ports))
        scene.nodes[name]["fabric"] = fabric(nics, cidr="192.168.200.0/21")
        scene.nodes[name]["preflight"]["image"]["nccl"] = version
        scene.nodes[name]["probe"]["pairs"] = []
    (crossed,) = [check for check in scene.judge()["checks"] if check["item"] == "rdma" and "in the order of their PCI addresses" in check["message"]]
    assert crossed["result"] == expected


@pytest.mark.parametrize(("arch", "expected"), [("arm64", ["spark1", "spark2"]), ("amd64", [])])
def test_a_fault_of_one_processor_is_not_told_of_another(arch: str, expected: list[str]) -> None:
    scene = Scene()
    for node in scene.nodes.values():
        node["preflight"].update(arch=arch)
        node["preflight"]["image"].update(nccl="2.28.9", architecture=arch)
    assert [entry[2] for entry in found(scene.judge())] == expected


# Several nodes: a cause that many pairs show is one node's.


def test_of_a_node_that_nobody_reaches_not_each_pair_is_told() -> None:
    scene = Scene(4)
    for other in ("spark1", "spark2", "spark4"):
        scene.lose("spark3", other, netdev=RAIL)
        scene.lose(other, "spark3", netdev=RAIL)
    report = scene.judge()
    assert found(report) == [("reach", "blocked", "spark3", None, RAIL)]
    assert "no packet gets from it to the others, nor from them to it" in words(report, "reach")


def test_loss_towards_one_node_is_one_finding() -> None:
    scene = Scene(4)
    for other in ("spark1", "spark2", "spark4"):
        scene.lose(other, "spark3", 0.3, RAIL)
    report = scene.judge()
    assert found(report) == [("loss", "blocked", "spark3", None, RAIL)] and "up to 30% of the packets that the others send to it are lost" in words(
        report, "loss"
    )


def test_a_switch_that_is_off_is_one_finding() -> None:
    scene = Scene(3)
    for src in scene.nodes:
        for dst in scene.nodes:
            scene.lose(src, dst)
    report = scene.judge()
    assert found(report) == [("reach", "blocked", None, None, None)]
    assert words(report, "reach").startswith("all nodes: no node's packets arrive at any other node.")


def test_of_three_clocks_the_odd_one_is_told() -> None:
    scene = Scene(3)
    for name in ("spark2", "spark3"):
        for pair in scene.told("spark1", name):
            pair["clock_offset_s"] = -40.0
    report = scene.judge()
    assert found(report) == [("clock", "slow", "spark1", None, None)] and "its clock is 40 s ahead of" in words(report, "clock")


def test_a_slow_link_of_one_node_is_one_finding() -> None:
    scene = Scene(3)
    for other in ("spark1", "spark2"):
        for pair in [*scene.told(other, "spark3", RAIL), *scene.told("spark3", other, RAIL)]:
            pair["mb_s"] = 60000 / 8
    report = scene.judge()
    assert found(report) == [("bandwidth", "slow", "spark3", None, RAIL)]


# The collective.

PROOF = {"verdict": "ready", "message": "2 ranks reduce over TCP: 0.81 GB/s on the bus, 3.1 s.", "remedy": "Nothing is to be done.", "culprit": None}
SOCKETS = {
    "verdict": "blocked",
    "message": "spark2 (rank 1) talks over sockets (enP7s7), though RDMA was expected.",
    "remedy": "Give it RDMA.",
    "culprit": "spark2",
}


def test_a_collective_is_told_and_names_its_nccl() -> None:
    scene = Scene()
    for node in scene.nodes.values():
        node["collective"] = {**PROOF, "group": {"nccl": "2.28.9+cuda12.9"}}
    report = scene.judge()
    assert words(report, "collective") == "2 ranks reduce over TCP: 0.81 GB/s on the bus, 3.1 s" and report["not_checked"] == []
    assert found(report) == [("nccl", "slow", f"spark{number}", None, None) for number in (1, 2)]


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (SOCKETS, [("collective", "blocked", "spark2", None, None)]),
        ({**SOCKETS, "verdict": "slow"}, [("collective", "slow", "spark2", None, None)]),
        ({"failed": True, "msg": "The proof needs all ranks, and spark2 has given up."}, [("collective", "blocked", None, None, None)]),
    ],
)
def test_a_collective_that_is_not_well_is_a_finding(told: dict[str, t.Any], expected: list[t.Any]) -> None:
    scene = Scene()
    for node in scene.nodes.values():
        node["collective"] = told
    report = scene.judge()
    assert found(report) == expected
    assert str(told.get("message") or told["msg"]) in words(report, "collective")


def test_a_collective_that_a_cut_explains_is_not_told() -> None:
    scene = Scene()
    causes.both_ways(scene)
    scene.nodes["spark1"]["collective"] = SOCKETS
    assert [entry[0] for entry in found(scene.judge())] == ["reach"]


# What is asked for.


def test_what_is_skipped_is_not_told_and_still_explains() -> None:
    scene = Scene()
    causes.both_ways(scene)
    report = scene.judge("reach", "clock")
    assert found(report) == [] and report["skipped"] == ["reach", "clock"] and report["result"] == "ready"


def test_the_bounds_can_be_moved() -> None:
    scene = Scene()
    assert found(scene.judge(min_share=0.5)) == [("bandwidth", "slow", "spark1", "spark2", TWIN), ("bandwidth", "slow", "spark1", "spark2", RAIL)]
    assert found(scene.judge(expected_speed_mbps=400000))[:1] == [("speed", "slow", "spark1", None, RAIL)]
    causes.clock(scene)
    assert scene.judge(clock_seconds=400)["result"] == "ready"


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ({"min_share": 0.2}, "min_share is 0.2 and block_share 0.25: give shares of the link's speed from 0 to 1, block_share the smaller."),
        ({"min_share": 40}, "min_share is 40 and block_share 0.25"),
        ({"clock_seconds": 0}, "clock_seconds is 0: give the seconds by which clocks may differ."),
    ],
)
def test_a_bound_that_makes_no_sense_is_refused(wanted: dict[str, t.Any], said: str) -> None:
    with pytest.raises(WantedError, match="^" + said.replace("(", r"\(")):
        Wanted.of(wanted)


def test_an_item_that_is_none_is_refused() -> None:
    with pytest.raises(WantedError, match="^There is no item clocks to skip: choose from address, link, "):
        Scene().judge("clocks")


def test_the_gates_sentence_names_each_cause_with_its_remedy() -> None:
    scene = Scene()
    causes.port(scene)
    causes.one_way(scene)
    said = _preflight.sentence(scene.judge())
    assert said.startswith(
        "spark1 to spark2, enp1s0f0np0: nothing that spark1 sends arrives at spark2, though what spark2 sends arrives at spark1. Check the cable"
    )
    assert "spark1: port 29501 (rendezvous) is taken by process 4711 (nc). Stop it, or give the recipe another rendezvous_port." in said
    assert said.endswith("(To go on all the same, put reach and ports into preflight_skip.)")


def test_a_screen_of_problems_shows_these_alone() -> None:
    scene = Scene()
    causes.mtu(scene)
    assert _preflight_screen.lines(scene.judge(), whole=False) == [
        "Preflight of 2 nodes (spark1, spark2): slow (1 slow)",
        "  slow     path_mtu           spark2, enp1s0f0np0: its MTU is 1500, where spark1 has 9000, so larger packets to it are lost "
        "and RDMA sends smaller pieces.",
        "                              Set it with 'ip link set enp1s0f0np0 mtu 9000', and in the node's netplan so that it stays.",
    ]


def test_a_head_that_is_called_localhost_makes_no_hosts_file_wrong() -> None:
    scene = Scene()
    scene.nodes = {"localhost": scene.nodes["spark1"], "spark2": scene.nodes["spark2"]}
    for node in scene.nodes.values():
        node["preflight"]["hosts"] = {"localhost": ["127.0.0.1", "::1"]}
    scene.probe()
    ports = [{**port, "host": "localhost"} if port.get("host") else port for port in LAUNCH["ports"]]
    assert found(scene.judge(head="localhost", ports=ports)) == []
