# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The preflight on the lab's nodes: each fault is made for real, and named with its node, its rail and its remedy; what is well gives no alarm."""

from __future__ import annotations

import contextlib
import json
import pathlib
import sys
import typing as t
from dataclasses import dataclass

import play
import pytest

pytestmark = [pytest.mark.lab, pytest.mark.engine]

PREFLIGHT = "playbooks/preflight.yml"
RAIL = "enp1s0f0np0"
HEAD, WORKER = "spark1", "spark2"
IMAGE = "sparkstack/vllm-cpu:0.32.0"
KEPT = "sparklab/vllm-cpu:before"
HOLDER = "preflight-holder"


@pytest.fixture(scope="module", autouse=True)
def nodes() -> t.Iterator[None]:
    """Two nodes with the image on both, RDMA devices for containers, and nothing that runs."""
    play.lab("up")
    play.install_engine("--images", f"{HEAD},{WORKER}")
    play.empty(HEAD, WORKER)
    for name in (HEAD, WORKER):
        play.lab("set", name, "infiniband_dev=true")
    yield
    for name in (HEAD, WORKER):
        play.lab("set", name, "infiniband_dev=")


def preflight(folder: pathlib.Path, *arguments: str, **extra: t.Any) -> tuple[dict[str, t.Any], play.Play]:
    """The report, and its run."""
    path = folder / "preflight.json"
    run = play.playbook(PREFLIGHT, *arguments, extra={"json": str(path), **extra})
    assert path.exists() and set(run.changed.values()) == {0}, run.output
    return json.loads(path.read_text()), run


def found(report: dict[str, t.Any]) -> list[tuple[str, str, str | None, str | None]]:
    """What is not ready: item, result, node, rail."""
    return [(one["item"], one["result"], one["node"], one["rail"]) for one in report["checks"] if one["result"] != "ready"]


def test_a_clean_preflight_is_ready(tmp_path: pathlib.Path) -> None:
    report, run = preflight(tmp_path)
    assert run.code == 0 and found(report) == [], run.output
    # The engine of a machine without a GPU has no NCCL, and nobody has asked for the all-reduce.
    assert "Preflight of 2 nodes (spark1, spark2): ready" in run.text and report["not_checked"] == ["nccl", "collective"]
    detail = {one["item"]: one["message"] for one in report["checks"]}
    assert detail["reach"] == "2 of 2 directions" and detail["path_mtu"] == "9000 bytes pass" and " by tcp" in detail["bandwidth"]
    assert {row["what"]: row["equal"] for row in report["parity"]}["image content"] is True
    # Nothing that listened is left.
    for name in (HEAD, WORKER):
        assert play.node(name, "pgrep -x fabric-probe || true") == ""


def test_check_mode_sees_the_same(tmp_path: pathlib.Path) -> None:
    run = play.playbook(PREFLIGHT, "--check")
    assert run.code == 0 and set(run.changed.values()) == {0} and "Preflight of 2 nodes (spark1, spark2): ready" in run.text, run.output


def lab(*words: str) -> t.Callable[[], None]:
    return lambda: void(play.lab(*words))


def node(name: str, command: str) -> t.Callable[[], None]:
    return lambda: void(play.node(name, command))


def void(_output: object) -> None:
    """Nothing."""


def store(value: bool) -> t.Callable[[], None]:
    """Have the worker's Docker use the containerd image store, or no more."""
    program = (
        f"import json; p = '/etc/docker/daemon.json'; d = json.load(open(p)); d['features'] = {{'containerd-snapshotter': {value}}}; json.dump(d, open(p, 'w'))"
    )
    return node(WORKER, f'python3 -c "{program}"; systemctl reset-failed docker; systemctl restart docker')


def other_image() -> None:
    """The worker has another image under the tag."""
    made = f"printf 'FROM {KEPT}\\nLABEL preflight=other\\n' > Dockerfile; docker build -q -t {IMAGE} ."
    play.node(WORKER, f"set -e; docker tag {IMAGE} {KEPT}; d=$(mktemp -d); cd $d; {made}; rm -rf $d")


def image_back() -> None:
    play.node(WORKER, f"docker tag {KEPT} {IMAGE}; docker rmi {KEPT}; docker image prune -f >/dev/null")


def take(port: int) -> t.Callable[[], None]:
    """Somebody else's server listens at a port of the head."""
    wait = f"until ss -Hltn 'sport = :{port}' | grep -q .; do sleep 0.1; done"
    return node(HEAD, f"systemd-run --quiet --unit {HOLDER} python3 -m http.server {port}; {wait}")


@dataclass
class Fault:
    """How a fault is made and taken away, what must be found, and what must be said of it."""

    name: str
    make: t.Callable[[], None]
    mend: t.Callable[[], None]
    found: list[tuple[str, str, str | None, str | None]]
    said: tuple[str, ...]


FAULTS = [
    Fault("cut", lab("cut", WORKER), lab("heal", WORKER), [("link", "blocked", HEAD, RAIL)], ("is down at both ends", "Check the cable between them")),
    Fault(
        "one_way",
        lab("fault", WORKER, "deaf"),
        lab("mend", WORKER),
        [("reach", "blocked", HEAD, RAIL)],
        ("nothing that spark1 sends arrives at spark2, though what spark2 sends arrives at spark1", "so the cable is good: look for what drops IP"),
    ),
    Fault("dead", lab("loss", WORKER, "100"), lab("loss", WORKER, "0"), [("reach", "blocked", HEAD, RAIL)], ("spark1 to spark2, enp1s0f0np0: nothing that",)),
    Fault("mtu", lab("fault", WORKER, "mtu", "1500"), lab("mend", WORKER), [("path_mtu", "slow", WORKER, RAIL)], ("its MTU is 1500", "mtu 9000")),
    Fault(
        "loss", lab("loss", WORKER, "50"), lab("loss", WORKER, "0"), [("loss", "blocked", HEAD, RAIL)], ("of the packets that spark1 sends to spark2 are lost",)
    ),
    Fault(
        "slow_link",
        lab("rate", WORKER, "1gbit"),
        lab("rate", WORKER, "off"),
        [("bandwidth", "blocked", HEAD, RAIL)],
        ("by tcp, where 200 Gb/s of link give 2 Gb/s", "tc qdisc show dev enp1s0f0np0"),
    ),
    Fault(
        "wrong_subnet",
        lab("fault", WORKER, "address", "192.168.210.12/24"),
        lab("mend", WORKER),
        [("subnet", "blocked", WORKER, RAIL)],
        ("its address 192.168.210.12/24 is outside the fabric, in another subnet than spark1's 192.168.200.11/24", "an address in 192.168.200.0/24"),
    ),
    Fault(
        "duplicate_address",
        lab("fault", WORKER, "also-address", "192.168.200.11/24"),
        lab("mend", WORKER),
        [("duplicate_address", "blocked", HEAD, RAIL)],
        ("its address 192.168.200.11 is an address of spark2, too", "ip addr del 192.168.200.11/24"),
    ),
    Fault(
        "firewall_drops",
        lab("fault", HEAD, "drop", "29501"),
        lab("mend", HEAD),
        [("firewall", "blocked", HEAD, RAIL)],
        ("what spark2 sends to its TCP port 29501 (rendezvous) is dropped by a firewall (nftables)", "ip saddr 192.168.200.0/24 accept"),
    ),
    Fault(
        "firewall_refuses", lab("fault", WORKER, "reject", "47653"), lab("mend", WORKER), [("firewall", "blocked", WORKER, RAIL)], ("47653 (nccl) is refused",)
    ),
    Fault("clock", lab("clock", WORKER, "300"), lab("clock", WORKER, "0"), [("clock", "slow", WORKER, None)], ("its clock is 300 s ahead of spark1's", "NTP")),
    Fault(
        "hosts_file",
        lab("fault", WORKER, "hosts", "127.0.1.1=spark1"),
        lab("mend", WORKER),
        [("hosts_file", "slow", WORKER, None)],
        ("its /etc/hosts says that spark1 is 127.0.1.1, which spark1 is not", "instead of the line with 127.0.1.1"),
    ),
    Fault("image", other_image, image_back, [("image", "slow", WORKER, None)], (f"{IMAGE} is another image there", "A deploy brings the image of spark1")),
    Fault(
        "port",
        take(29501),
        node(HEAD, f"systemctl stop {HOLDER}"),
        [("ports", "blocked", HEAD, None)],
        ("port 29501 (rendezvous) is taken by process", "Stop it"),
    ),
    Fault(
        "docker",
        node(WORKER, "systemctl stop docker.socket docker"),
        node(WORKER, "systemctl start docker"),
        [("docker", "blocked", WORKER, None)],
        ("Docker does not answer", "systemctl start docker"),
    ),
    Fault("no_rdma", lab("set", WORKER, "rdma=false"), lab("set", WORKER, "rdma="), [("rdma", "blocked", WORKER, RAIL)], ("while spark1 has RDMA",)),
]


@contextlib.contextmanager
def made(fault: Fault) -> t.Iterator[None]:
    """A fault, for a while."""
    try:
        fault.make()
        yield
    finally:
        fault.mend()


# One that a firewall makes, and one that nobody's counters show; the others are of the same kinds.
SHORT = ("one_way", "firewall_drops")


@pytest.mark.parametrize("fault", [pytest.param(fault, id=fault.name, marks=[] if fault.name in SHORT else pytest.mark.long) for fault in FAULTS])
def test_a_fault_is_named_with_its_place_and_its_remedy(tmp_path: pathlib.Path, fault: Fault) -> None:
    with made(fault):
        report, run = preflight(tmp_path)
    sys.stdout.write(f"{fault.name}: {run.seconds:.1f} s\n")
    blocked = any(entry[1] == "blocked" for entry in fault.found)
    assert found(report) == fault.found, run.output
    assert run.code == (2 if blocked else 0), run.output
    told = " ".join(f"{one['message']} {one['remedy']}" for one in report["checks"] if one["item"] == fault.found[0][0])
    for text in fault.said:
        assert text in told and " ".join(text.split()) in run.text, run.output


@pytest.mark.long
def test_another_store_is_a_note(tmp_path: pathlib.Path) -> None:
    """And the image, which that store does not have, is told as missing."""
    try:
        store(True)()
        report, run = preflight(tmp_path, preflight_skip=["image"])
    finally:
        store(False)()
    assert run.code == 0 and found(report) == [], run.output
    assert "spark1 has overlay2, spark2 has overlayfs (containerd); an image's id differs between them" in run.text
    assert {row["what"]: row["equal"] for row in report["parity"]}["Docker's storage"] is False


def test_what_is_skipped_by_name_is_not_in_the_way(tmp_path: pathlib.Path) -> None:
    with made(next(fault for fault in FAULTS if fault.name == "firewall_drops")):
        report, run = preflight(tmp_path, preflight_skip=["firewall"])
    assert run.code == 0 and report["skipped"] == ["firewall"] and report["result"] == "ready", run.output


def test_afterwards_all_is_well_again(tmp_path: pathlib.Path) -> None:
    report, run = preflight(tmp_path)
    assert run.code == 0 and found(report) == [], run.output
