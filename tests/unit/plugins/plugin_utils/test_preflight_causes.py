# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One cause, one finding: with the node, the peer, the rail, what is wrong and what to do."""

from __future__ import annotations

import typing as t

import pytest
from fabric_trees import LAN, P0, T0, at, unplugged
from preflighting import RAIL, TWIN, Scene, found, words

from ansible_collections.sparkstack.inference.plugins.plugin_utils import _preflight_screen

Finding = tuple[str, str, "str | None", "str | None", "str | None"]


# One cause each, made in a scene of two Sparks on one cable, or of three on a switch.


def cut(scene: Scene) -> None:
    for node in scene.nodes:
        scene.replace(node, unplugged(at(P0, f"192.168.200.1{node[-1]}/24")), unplugged(at(T0, f"192.168.201.1{node[-1]}/24")))
    for src, dst in (("spark1", "spark2"), ("spark2", "spark1")):
        scene.lose(src, dst)


def one_way(scene: Scene) -> None:
    scene.lose("spark1", "spark2", netdev=RAIL)


def filtered(scene: Scene) -> None:
    one_way(scene)
    for pair in [*scene.told("spark1", "spark2", RAIL), *scene.told("spark2", "spark1", RAIL)]:
        pair["macs"] = [pair["mac_told"]]


def both_ways(scene: Scene) -> None:
    scene.lose("spark1", "spark2", netdev=RAIL)
    scene.lose("spark2", "spark1", netdev=RAIL)


def half(scene: Scene) -> None:
    scene.lose("spark1", "spark2", 0.5, RAIL)
    for pair in scene.told("spark1", "spark2", RAIL):
        pair.update(tcp=dict.fromkeys(pair["tcp"], "timeout"), path_mtu=1500, mb_s=None)


def some(scene: Scene) -> None:
    scene.lose("spark2", "spark1", 0.03, TWIN)


def mtu(scene: Scene) -> None:
    scene.replace("spark2", at(P0, "192.168.200.12/24", mtu=1500), at(T0, "192.168.201.12/24"))
    for pair in [*scene.told("spark1", "spark2", RAIL), *scene.told("spark2", "spark1", RAIL)]:
        pair["path_mtu"] = 1500


def switch_mtu(scene: Scene) -> None:
    for pair in [*scene.told("spark1", "spark2", RAIL), *scene.told("spark2", "spark1", RAIL)]:
        pair["path_mtu"] = 1500


def subnet(scene: Scene) -> None:
    scene.replace("spark2", at(P0, "192.168.210.12/24"))
    scene.nodes["spark2"]["probe"]["pairs"] = []


def subnet_without_rdma(scene: Scene) -> None:
    for name, address in (("spark1", "192.168.200.11/24"), ("spark2", "192.168.210.12/24")):
        scene.replace(name, at(P0, address, hca=""))
        scene.nodes[name]["preflight"].update(infiniband=[], rdma=[], hosts={name: ["127.0.1.1"]})
    scene.nodes["spark1"]["probe"]["pairs"] = scene.nodes["spark2"]["probe"]["pairs"] = []


def prefix(scene: Scene) -> None:
    scene.replace("spark2", at(P0, "192.168.200.12/30"))
    scene.nodes["spark2"]["probe"]["pairs"] = scene.nodes["spark1"]["probe"]["pairs"] = []


def duplicate(scene: Scene) -> None:
    scene.replace("spark2", at(P0, "192.168.200.11/24"), at(T0, "192.168.201.12/24"))
    for src, dst in (("spark1", "spark2"), ("spark2", "spark1")):
        scene.lose(src, dst, netdev=RAIL)


def second_address(scene: Scene) -> None:
    scene.replace("spark2", at(P0, "192.168.200.12/24", "192.168.200.11/24"), at(T0, "192.168.201.12/24"), fabric_address="192.168.200.12")
    scene.lose("spark2", "spark1", netdev=RAIL)


def stranger(scene: Scene) -> None:
    for pair in scene.told("spark1", "spark2", RAIL):
        pair.update(mac_seen="00:11:22:33:44:55", macs=["00:11:22:33:44:55", pair["mac_told"]], loss_share=0.4, received=120)


def firewall(scene: Scene) -> None:
    scene.nodes["spark1"]["preflight"]["firewall"] = {"tool": "nftables", "active": True, "policy": "accept"}
    for pair in scene.told("spark2", "spark1"):
        pair["tcp"]["29501"] = "timeout"


def firewall_on_a_twin(scene: Scene) -> None:
    # 'ufw allow from 192.168.200.0/24' and no more: what the twins' network is for is RDMA, which no firewall of a node hears of.
    scene.nodes["spark1"]["preflight"]["firewall"] = {"tool": "ufw", "active": True, "policy": "drop"}
    for pair in scene.told("spark2", "spark1", TWIN):
        pair["tcp"]["29501"] = pair["tcp"]["47653"] = "timeout"


def filtered_twin(scene: Scene) -> None:
    macs = {name: scene.rail(name, TWIN)["mac"] for name in scene.nodes}
    for src, dst in (("spark1", "spark2"), ("spark2", "spark1")):
        scene.lose(src, dst, netdev=TWIN)
    for src, dst in (("spark1", "spark2"), ("spark2", "spark1")):
        for pair in scene.told(src, dst, TWIN):
            pair.update(macs=[macs[dst]], mac_seen=macs[dst])


def unplugged_twin(scene: Scene) -> None:
    for src, dst in (("spark1", "spark2"), ("spark2", "spark1")):
        scene.lose(src, dst, netdev=TWIN)


def reject(scene: Scene) -> None:
    scene.nodes["spark2"]["preflight"]["firewall"] = {"tool": "ufw", "active": True, "policy": "reject"}
    for pair in scene.told("spark1", "spark2"):
        pair["tcp"].update({"47653": "No route to host"})


def api(scene: Scene) -> None:
    for pair in scene.told("spark2", "spark1"):
        pair["tcp"]["8000"] = "timeout"


def clock(scene: Scene) -> None:
    scene.nodes["spark2"]["preflight"]["clock"] = {"synchronised": False, "by": None}
    for pair in scene.told("spark1", "spark2"):
        pair["clock_offset_s"] = 300.2
    for pair in scene.told("spark2", "spark1"):
        pair["clock_offset_s"] = -300.2


def hosts(scene: Scene) -> None:
    scene.nodes["spark2"]["preflight"]["hosts"] = {"spark1": ["127.0.1.1"]}


def hosts_unpinned(scene: Scene) -> None:
    scene.nodes["spark2"]["preflight"]["hosts"] = {"spark2": ["127.0.1.1"]}
    scene.nodes["spark2"]["fabric"]["environment"].pop("GLOO_SOCKET_IFNAME")


def image(scene: Scene) -> None:
    scene.nodes["spark2"]["preflight"]["image"]["identity"] = "sha256:0123456789abcdef"


def machine(scene: Scene) -> None:
    scene.nodes["spark2"]["preflight"]["image"]["architecture"] = "amd64"


def port(scene: Scene) -> None:
    scene.nodes["spark1"]["preflight"]["listeners"] = [{"port": 29501, "pid": 4711, "process": "nc", "container": None, "deployment": None}]


def other_preflight(scene: Scene) -> None:
    scene.nodes["spark1"]["preflight"]["listeners"] = [{"port": 29501, "pid": 4711, "process": "fabric-probe", "container": None, "deployment": None}]


def other_rank(scene: Scene) -> None:
    scene.nodes["spark1"]["preflight"]["listeners"] = [{"port": 8000, "pid": 9, "process": "python3", "container": "old-rank0", "deployment": "old"}]


def slow_tcp(scene: Scene) -> None:
    for src, dst in (("spark1", "spark2"), ("spark2", "spark1")):
        for pair in scene.told(src, dst, RAIL):
            pair.update(by="tcp", mb_s=118.0)


def slow_while_it_serves(scene: Scene) -> None:
    degraded(scene)
    scene.nodes["spark1"]["preflight"]["listeners"] = [{"port": 8000, "pid": 9, "process": "vllm", "container": "qwen-rank0", "deployment": "qwen"}]


def degraded(scene: Scene) -> None:
    for pair in scene.told("spark1", "spark2", TWIN):
        pair["mb_s"] = 13000 / 8


def kernel(scene: Scene) -> None:
    for number in (1, 2):
        scene.nodes[f"spark{number}"]["preflight"]["kernel"]["release"] = "7.0.0-1019-nvidia"


def cma(scene: Scene) -> None:
    scene.nodes["spark2"]["preflight"]["kernel"]["cma_overcounted"] = True


def driver_branch(scene: Scene) -> None:
    scene.nodes["spark2"]["preflight"]["driver"] = "570.86.15"


def driver_mismatch(scene: Scene) -> None:
    problem = {"code": "driver_mismatch", "message": "Driver/library version mismatch.", "remedy": "Reboot the node."}
    scene.nodes["spark2"]["gpu_memory"] = {"gpus": [], "problems": [problem]}


def docker(scene: Scene) -> None:
    told = {"reachable": False, "error": "Docker does not answer on /var/run/docker.sock: No such file or directory.", "root": None}
    scene.nodes["spark2"]["preflight"]["docker"].update(told)
    scene.nodes["spark2"]["preflight"]["image"] = None


def nccl(scene: Scene) -> None:
    for number in (1, 2):
        scene.nodes[f"spark{number}"]["preflight"]["image"]["nccl"] = "2.28.9"


def disk(scene: Scene) -> None:
    scene.nodes["spark2"]["preflight"]["disk"]["model"].update(exists=False, free_bytes=50 << 30)


def docker_disk(scene: Scene) -> None:
    scene.nodes["spark2"]["preflight"]["image"] = None
    scene.nodes["spark2"]["preflight"]["disk"]["docker"]["free_bytes"] = 8 << 30


def docker_disk_for_a_part(scene: Scene) -> None:
    scene.nodes["spark2"]["preflight"]["image"]["identity"] = "sha256:0123456789abcdef"
    scene.nodes["spark2"]["preflight"]["disk"]["docker"]["free_bytes"] = 8 << 30


def speed(scene: Scene) -> None:
    scene.replace("spark2", at(P0, "192.168.200.12/24", speed=20000), at(T0, "192.168.201.12/24"))
    for pair in [*scene.told("spark1", "spark2", RAIL), *scene.told("spark2", "spark1", RAIL)]:
        pair["mb_s"] = 19000 / 8


def no_rdma(scene: Scene) -> None:
    scene.replace("spark2", at(P0, "192.168.200.12/24", hca=""), at(T0, "192.168.201.12/24", hca=""), cidr="192.168.200.0/23")


def no_devices(scene: Scene) -> None:
    scene.nodes["spark2"]["preflight"]["infiniband"] = []


def no_devices_at_all(scene: Scene) -> None:
    for number in (1, 2):
        scene.nodes[f"spark{number}"]["preflight"]["infiniband"] = []


def twins(scene: Scene) -> None:
    for number in (1, 2):
        scene.replace(f"spark{number}", at(P0, f"192.168.200.1{number}/24"), at(T0, f"192.168.200.2{number}/24"))


def flux(scene: Scene) -> None:
    for pair in scene.told("spark1", "spark2", RAIL):
        wrong = scene.rail("spark2", TWIN)["mac"]
        pair.update(mac_seen=wrong, macs=[wrong, pair["mac_told"]])


def flux_of_management(scene: Scene) -> None:
    # One switch for both networks: the LAN's interface of spark2 answers, too, and is no machine of anybody else's.
    lan = next(its for its in scene.nodes["spark2"]["fabric"]["interfaces"] if its["netdev"] == LAN.name)
    lan["mac"] = "4C:BB:47:00:AA:02"
    for pair in scene.told("spark1", "spark2", RAIL):
        pair.update(mac_seen="4c:bb:47:00:aa:02", macs=[pair["mac_told"], "4c:bb:47:00:aa:02"])


def unread(scene: Scene) -> None:
    scene.nodes["spark2"] = {}


def unprobed(scene: Scene) -> None:
    scene.nodes["spark2"]["probe"] = {"failed": True, "msg": "The probe of the fabric failed on spark2: No space left on device"}
    for pair in scene.told("spark1", "spark2"):
        pair.update(sent=0, received=None, loss_share=None, error="spark2 takes no part in the probe: it failed", tcp={}, mb_s=None, clock_offset_s=None)


def rootless(scene: Scene) -> None:
    scene.nodes["spark1"]["preflight"].update(memlock=8 << 20)
    scene.nodes["spark1"]["preflight"]["docker"]["rootless"] = True


CASES: list[tuple[t.Callable[[Scene], None], list[Finding], tuple[str, ...]]] = [
    (
        cut,
        [("link", "blocked", "spark1", "spark2", RAIL)],
        ("is down at both ends (enp1s0f0np0 of spark1, enp1s0f0np0 of spark2)", "Check the cable between them"),
    ),
    (one_way, [("reach", "blocked", "spark1", "spark2", RAIL)], ("nothing that spark1 sends arrives at spark2, though what spark2 sends arrives at spark1",)),
    (both_ways, [("reach", "blocked", "spark1", "spark2", RAIL)], ("nothing that either sends arrives at the other",)),
    (half, [("loss", "blocked", "spark1", "spark2", RAIL)], ("50% of the packets that spark1 sends to spark2 are lost", "'ip -s link'")),
    (some, [("loss", "slow", "spark2", "spark1", TWIN)], ("3% of the packets that spark2 sends to spark1 are lost",)),
    (mtu, [("path_mtu", "slow", "spark2", None, RAIL)], ("its MTU is 1500, where spark1 has 9000", "'ip link set enp1s0f0np0 mtu 9000'")),
    (switch_mtu, [("path_mtu", "blocked", "spark1", "spark2", RAIL)], ("packets of more than 1500 bytes are lost on the way", "switch")),
    (filtered, [("reach", "blocked", "spark1", "spark2", RAIL)], ("The other end answers to ARP, so the cable is good: look for what drops IP",)),
    (
        subnet_without_rdma,
        [("subnet", "blocked", "spark2", "spark1", RAIL)],
        ("192.168.210.12/24 is outside the fabric", "Give enp1s0f0np0 an address in 192.168.200.0/24"),
    ),
    (
        subnet,
        [("subnet", "blocked", "spark2", "spark1", RAIL)],
        ("192.168.210.12/24 is outside the fabric, in another subnet than spark1's 192.168.200.11/24",),
    ),
    (
        prefix,
        [("subnet", "blocked", "spark2", "spark1", RAIL)],
        ("192.168.200.12/30 is in another subnet", "Give both the same prefix, that of 192.168.200.0/24."),
    ),
    (
        duplicate,
        [("duplicate_address", "blocked", "spark1", "spark2", RAIL)],
        ("192.168.200.11 is an address of spark2, too", "ip addr del 192.168.200.11/24"),
    ),
    (second_address, [("duplicate_address", "blocked", "spark1", "spark2", RAIL)], ("is an address of spark2, too",)),
    (
        stranger,
        [("duplicate_address", "blocked", "spark2", None, RAIL)],
        ("none of these nodes (00:11:22:33:44:55) answers for its address 192.168.200.12", "arping"),
    ),
    (
        firewall,
        [("firewall", "blocked", "spark1", "spark2", RAIL)],
        ("port 29501 (rendezvous) is dropped by a firewall (nftables)", "ip saddr 192.168.200.0/24 accept"),
    ),
    (
        firewall_on_a_twin,
        [("firewall", "slow", "spark1", "spark2", TWIN)],
        ("29501 (rendezvous), 47653 (nccl) is dropped", "'ufw allow from 192.168.200.0/24' and 'ufw allow from 192.168.201.0/24'."),
    ),
    (filtered_twin, [("reach", "slow", "spark1", "spark2", TWIN)], ("nothing that either sends arrives at the other", "a firewall on either end")),
    (unplugged_twin, [("reach", "blocked", "spark1", "spark2", TWIN)], ("nothing that either sends arrives at the other", "Check the cable")),
    (reject, [("firewall", "blocked", "spark2", "spark1", RAIL)], ("47653 (nccl) is refused (No route to host) by a firewall (ufw)", "ufw allow from")),
    (api, [("firewall", "slow", "spark1", "spark2", RAIL)], ("8000 (api) is dropped",)),
    (clock, [("clock", "slow", "spark2", "spark1", None)], ("its clock is 300 s ahead of spark1's, and it is not synchronised", "timedatectl set-ntp true")),
    (
        hosts,
        [("hosts_file", "slow", "spark2", "spark1", None)],
        ("its /etc/hosts says that spark1 is 127.0.1.1, which spark1 is not", "Write '192.168.200.11 spark1'"),
    ),
    (hosts_unpinned, [("hosts_file", "blocked", "spark2", None, None)], ("says that spark2 is 127.0.1.1",)),
    (image, [("image", "slow", "spark2", "spark1", None)], ("vllm:1 is another image there (0123456789ab) than on spark1 (77ab01c2d3e4)", "A deploy brings")),
    (machine, [("image", "blocked", "spark2", None, None)], ("vllm:1 is for amd64, and the node is arm64",)),
    (port, [("ports", "blocked", "spark1", None, None)], ("port 29501 (rendezvous) is taken by process 4711 (nc)", "another rendezvous_port")),
    (other_preflight, [("ports", "blocked", "spark1", None, None)], ("is taken by process 4711 (fabric-probe)", "should have ended by itself")),
    (other_rank, [("ports", "blocked", "spark1", None, None)], ("port 8000 (api) is taken by container old-rank0", "another port")),
    (
        slow_tcp,
        [("bandwidth", "blocked", "spark1", "spark2", RAIL)],
        ("0.944 Gb/s each way by tcp, where 200 Gb/s of link give 2 Gb/s", "tc qdisc show dev enp1s0f0np0"),
    ),
    (
        degraded,
        [("bandwidth", "blocked", "spark1", "spark2", TWIN)],
        ("13 Gb/s from spark1 to spark2 by ib_write_bw, where 200 Gb/s of link give 80 Gb/s", "power taken off"),
    ),
    (
        slow_while_it_serves,
        [("bandwidth", "slow", "spark1", "spark2", TWIN)],
        ("qwen serves over the same link; measure again when it is stopped. If it is as slow then: look for a limit",),
    ),
    (
        kernel,
        [("kernel", "blocked", f"spark{number}", None, None) for number in (1, 2)],
        ("7.0.0-1019-nvidia: with this kernel RDMA can't register memory", "NV-Kernels", "kho=off"),
    ),
    (cma, [("kernel", "blocked", "spark2", None, None)], ("says that more of its contiguous memory is free than there is",)),
    (driver_branch, [("driver", "slow", None, None, None)], ("all nodes: spark1 has 580.159.04, spark2 has 570.86.15.",)),
    (driver_mismatch, [("driver", "blocked", "spark2", None, None)], ("spark2: Driver/library version mismatch. Reboot the node.",)),
    (docker, [("docker", "blocked", "spark2", None, None)], ("Docker does not answer on /var/run/docker.sock", "systemctl start docker")),
    (nccl, [("nccl", "slow", f"spark{number}", None, None) for number in (1, 2)], ("NCCL 2.28.9 of the image hangs at random on Arm", "2.29.3 or newer")),
    (disk, [("disk", "blocked", "spark2", None, None)], ("its disk has 50.0 GiB free where the model takes 119.0 GiB",)),
    (
        docker_disk,
        [("image", "slow", "spark2", "spark1", None), ("disk", "blocked", "spark2", None, None)],
        ("/var/lib/docker has 8.0 GiB free, and the image takes 21.0 GiB",),
    ),
    (
        docker_disk_for_a_part,
        [("image", "slow", "spark2", "spark1", None), ("disk", "slow", "spark2", None, None)],
        ("/var/lib/docker has 8.0 GiB free, and the image takes 21.0 GiB, less the layers that are there already",),
    ),
    (speed, [("speed", "blocked", "spark2", None, RAIL)], ("the link is at 20 Gb/s, where 200 Gb/s are expected", "power taken off")),
    (no_rdma, [("rdma", "blocked", "spark2", None, RAIL)], ("no RDMA device carries its fabric address, while spark1 has RDMA", "preflight_transport")),
    (
        no_devices,
        [("infiniband", "blocked", "spark2", None, None)],
        ("there is no /dev/infiniband/uverbs*", "while spark1 can use RDMA", "modprobe ib_uverbs"),
    ),
    (no_devices_at_all, [("infiniband", "slow", f"spark{number}", None, None) for number in (1, 2)], ("so NCCL goes over TCP there",)),
    (twins, [("twins", "slow", f"spark{number}", None, RAIL) for number in (1, 2)], ("both in 192.168.200.0/24",)),
    (flux, [("arp", "slow", "spark2", None, RAIL)], ("enP2p1s0f0np0 answers for 192.168.200.12", "wrong half of the port", "arp_ignore=1")),
    (
        flux_of_management,
        [("arp", "slow", "spark2", None, RAIL)],
        (f"{LAN.name} answers for 192.168.200.12", "packets take the wrong interface.", "keep the two networks apart on the switch"),
    ),
    (unread, [("reach", "blocked", "spark2", None, None)], ("spark2: it could not be looked at",)),
    (unprobed, [("reach", "blocked", "spark2", None, None)], ("it could not be measured: The probe of the fabric failed on spark2: No space left on device",)),
    (rootless, [("memlock", "blocked", "spark1", None, None)], ("may lock 8 MiB only",)),
]


@pytest.mark.parametrize(("make", "expected", "said"), CASES, ids=[case[0].__name__ for case in CASES])
def test_a_cause_is_told_once_with_its_place_and_its_remedy(make: t.Callable[[Scene], None], expected: list[Finding], said: tuple[str, ...]) -> None:
    scene = Scene()
    make(scene)
    report = scene.judge()
    assert found(report) == expected, "\n".join(_preflight_screen.lines(report))
    assert report["result"] == ("blocked" if any(entry[1] == "blocked" for entry in expected) else "slow")
    told = " ".join(words(report, item) for item in {entry[0] for entry in expected})
    for text in said:
        assert text in told
    assert all(check["remedy"].endswith(".") for check in report["checks"] if check["result"] != "ready")
