# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The probe of the fabric over SSH on the lab's nodes, with real faults between them."""

from __future__ import annotations

import contextlib
import json
import pathlib
import subprocess
import sys
import time
import typing as t

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lab"))

import play  # noqa: E402  (the path above must come first)

pytestmark = pytest.mark.lab

CARD = "enp1s0f0np0"
ADDRESS = {"spark1": "192.168.200.11", "spark2": "192.168.200.12"}
PEERS = [{"host": host, "rails": [{"netdev": CARD, "address": address}]} for host, address in ADDRESS.items()]
PORT, API = 29555, 8077
# What a clean probe may take, and one of a peer that does not answer: two cores serve the controller, both nodes and whatever else runs here.
CLEAN, DEAD = 15.0, 20.0


def probe(become: bool = True, **arguments: t.Any) -> dict[str, dict[str, t.Any]]:
    """What the module returns on both nodes."""
    command = [str(play.BIN / "ansible"), ",".join(ADDRESS), "-i", play.inventory(), "-m", "sparkstack.inference.fabric_probe"]
    done = subprocess.run(
        [*command, *(["-b"] if become else []), "-a", json.dumps({"peers": PEERS, "ports": [PORT, API], "seconds": 0.3, **arguments})],
        env={**play.environment(), "ANSIBLE_STDOUT_CALLBACK": "ansible.posix.json", "ANSIBLE_LOAD_CALLBACK_PLUGINS": "1"},
        cwd=play.ROOT,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout[done.stdout.index("{") :])["plays"][0]["tasks"][0]["hosts"]
    for node in ADDRESS:
        # Whatever comes out: nothing is left on the nodes.
        assert play.node(node, "for _turn in $(seq 50); do pgrep -x fabric-probe || exit 0; sleep 0.1; done") == ""
    return t.cast("dict[str, dict[str, t.Any]]", found)


def pairs(found: dict[str, dict[str, t.Any]]) -> tuple[dict[str, t.Any], dict[str, t.Any]]:
    """From spark1 to spark2, and back."""
    (there,), (back,) = (found[node]["pairs"] for node in ADDRESS)
    return there, back


@contextlib.contextmanager
def changed(node: str, command: str, undo: str) -> t.Iterator[None]:
    play.node(node, command)
    try:
        yield
    finally:
        play.node(node, undo)


@contextlib.contextmanager
def fault(*words: str, end: t.Sequence[str]) -> t.Iterator[None]:
    play.lab(*words)
    try:
        yield
    finally:
        play.lab(*end)


def rule(text: str) -> tuple[str, str]:
    """A rule on what comes in, and how it goes again."""
    return f"nft 'table ip probetest {{ chain input {{ type filter hook input priority 0; {text}; }}; }}'", "nft delete table ip probetest"


@pytest.fixture(scope="module", autouse=True)
def nodes() -> None:
    play.lab("up", "--nodes", "2")
    play.empty(*ADDRESS)
    subprocess.run(["make", "-s", "-C", str(play.ROOT), "collection"], check=True, timeout=300)


def test_a_good_fabric() -> None:
    found = probe()
    macs = {node: play.node(node, f"cat /sys/class/net/{CARD}/address").strip() for node in ADDRESS}
    for pair, node, peer in zip(pairs(found), ADDRESS, reversed(ADDRESS), strict=True):
        assert (pair["peer"], pair["netdev"], pair["address"], pair["peer_netdev"], pair["peer_address"]) == (peer, CARD, ADDRESS[node], CARD, ADDRESS[peer])
        assert (pair["error"], pair["loss_share"], pair["path_mtu"], pair["arp"], pair["control"]) == (None, 0.0, 9000, "complete", "ok")
        assert (pair["mac_seen"], pair["mac_told"], pair["macs"]) == (macs[peer], macs[peer], [macs[peer]])
        assert pair["tcp"] == {str(PORT): "ok", str(API): "ok"}
        assert abs(pair["clock_offset_s"]) < pair["clock_error_s"] + 0.01
        assert (pair["by"], pair["rdma_error"]) == ("tcp", None) and pair["mb_s"] > 100
        assert found[node]["listening"]["bound"] == [PORT, API] and found[node]["changed"] is False
        assert found[node]["seconds"] < CLEAN


@pytest.mark.long
def test_without_roots_rights() -> None:
    there, back = pairs(probe(become=False))
    for pair in (there, back):
        assert (pair["error"], pair["loss_share"], pair["path_mtu"], pair["macs"]) == (None, 0.0, 9000, [])
        assert pair["mac_seen"] == pair["mac_told"]


@pytest.mark.long
def test_half_of_the_frames_to_one_node_are_lost() -> None:
    with fault("loss", "spark2", "50", end=("loss", "spark2", "0")):
        there, back = pairs(probe())
    assert 0.35 < there["loss_share"] < 0.65 and back["loss_share"] < 0.1
    # In such a state nothing else is worth measuring.
    assert (there["mb_s"], back["mb_s"]) == (None, None)


@pytest.mark.long
def test_one_direction_is_cut() -> None:
    with changed("spark2", *rule(f"ip saddr {ADDRESS['spark1']} drop")):
        found = probe()
    there, back = pairs(found)
    assert (there["received"], there["loss_share"]) == (0, 1.0)
    # The rule is one for IP: spark2's card still says its hardware address.
    assert "arrives, though the hardware address answers: a firewall drops them all" in there["error"]
    assert (back["loss_share"], back["answered"], back["error"]) == (0.0, 0, None)
    assert found["spark1"]["seconds"] < DEAD


@pytest.mark.long
def test_a_cable_without_carrier() -> None:
    with fault("cut", "spark2", end=("heal", "spark2")):
        found = probe()
    for pair, node in zip(pairs(found), ADDRESS, strict=True):
        assert (pair["received"], pair["loss_share"]) == (0, 1.0) and pair["error"]
        assert found[node]["seconds"] < DEAD


@pytest.mark.long
def test_a_small_mtu_on_one_node() -> None:
    with changed("spark2", f"ip link set {CARD} mtu 1500", f"ip link set {CARD} mtu 9000"):
        there, back = pairs(probe())
    assert (there["path_mtu"], back["path_mtu"], there["loss_share"], back["loss_share"]) == (1500, 1500, 0.0, 0.0)


@pytest.mark.long
def test_a_slow_link() -> None:
    with fault("rate", "spark2", "1gbit", end=("rate", "spark2", "off")):
        there, back = pairs(probe())
    for pair in (there, back):
        # A gigabit is 125 MB/s, some of them headers.
        assert 60 < pair["mb_s"] < 135 and pair["loss_share"] == 0.0


@pytest.mark.long
@pytest.mark.parametrize(
    ("verdict", "answer"), [("drop", "timeout"), ("reject with tcp reset", "refused"), ("reject with icmp type admin-prohibited", "No route to host")]
)
def test_a_firewall_on_a_launchs_port(verdict: str, answer: str) -> None:
    with changed("spark2", *rule(f"tcp dport {PORT} {verdict}")):
        there, back = pairs(probe(seconds=0))
    assert there["tcp"] == {str(PORT): answer, str(API): "ok"} and back["tcp"] == {str(PORT): "ok", str(API): "ok"}
    assert there["error"] is None


@pytest.mark.long
def test_a_port_that_is_taken() -> None:
    start = f"systemd-run --quiet --unit probetest python3 -m http.server -b 0.0.0.0 {API}"
    with changed("spark2", start, "systemctl stop probetest"):
        play.node("spark2", f"for _turn in $(seq 100); do ss -Hltn 'sport = :{API}' | grep -q . && exit 0; sleep 0.1; done; exit 1")
        found = probe(seconds=0)
        # It was never connected to: a request would stand in its log.
        log = play.node("spark2", "journalctl --quiet --unit probetest")
    there, back = pairs(found)
    assert there["tcp"] == {str(PORT): "ok", str(API): "in_use"} and back["tcp"][str(API)] == "ok"
    (entry,) = found["spark2"]["listening"]["in_use"]
    assert (entry["port"], entry["process"], entry["container"]) == (API, "python3", None)
    assert "code 400" not in log


@pytest.mark.long
def test_a_wrong_subnet() -> None:
    peers = [PEERS[0], {"host": "spark2", "rails": [{"netdev": CARD, "address": "192.168.203.12"}]}]
    with changed("spark2", f"ip addr add 192.168.203.12/24 dev {CARD}", f"ip addr del 192.168.203.12/24 dev {CARD}"):
        there, back = pairs(probe(peers=peers, seconds=0))
    assert there["error"] == "192.168.200.11/24 on spark1 and 192.168.203.12/24 on spark2 are not in one subnet."
    assert back["error"] == "192.168.203.12/24 on spark2 and 192.168.200.11/24 on spark1 are not in one subnet."


@pytest.mark.long
def test_two_machines_with_one_address() -> None:
    """A third machine, behind spark1's card, answers for spark1's address as well."""
    start = f"""set -e
    ip netns add probetest
    ip link add probetest link {CARD} type macvlan mode bridge
    ip link set probetest netns probetest
    ip -n probetest addr add {ADDRESS["spark1"]}/24 dev probetest
    ip -n probetest link set probetest up"""
    with changed("spark1", start, "ip netns del probetest"):
        foreign = play.node("spark1", "ip netns exec probetest cat /sys/class/net/probetest/address").strip()
        own = play.node("spark1", f"cat /sys/class/net/{CARD}/address").strip()
        _there, back = pairs(probe(seconds=0))
    assert (sorted(back["macs"]), back["mac_seen"], back["mac_told"]) == (sorted([own, foreign]), foreign, own)


@pytest.mark.long
def test_a_clock_that_is_off() -> None:
    with fault("clock", "spark2", "300", end=("clock", "spark2", "0")):
        there, back = pairs(probe(seconds=0))
    assert abs(there["clock_offset_s"] - 300) < 1 and abs(back["clock_offset_s"] + 300) < 1


@pytest.mark.long
def test_a_controller_that_vanishes_leaves_nothing() -> None:
    command = [str(play.BIN / "ansible"), "spark1", "-i", play.inventory(), "-b", "-m", "sparkstack.inference.fabric_probe_node", "-a"]
    arguments = {"state": "listening", "token": "t" * 64, "rails": PEERS[0]["rails"], "ports": [PORT], "lifetime": 3}
    done = subprocess.run([*command, json.dumps(arguments)], env=play.environment(), cwd=play.ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    deadline = time.monotonic() + 15
    while play.node("spark1", f"ss -Hltn 'sport = :{PORT}'").strip():
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert play.node("spark1", "pgrep -x fabric-probe || true") == ""
