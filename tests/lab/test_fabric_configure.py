# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The fabric's network on two real nodes: given, kept, taken back by the node itself when its controller is gone, and restored."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import typing as t

import play
import pytest

pytestmark = pytest.mark.lab

CONFIGURE, RESTORE = "sparkstack.inference.fabric_configure", "sparkstack.inference.fabric_restore"
NODES = ("spark1", "spark2")
CARD = "enp1s0f0np0"
FILE = "/etc/netplan/60-sparkstack-fabric.yaml"
QUICK = {"fabric_configure_timeout": 5, "fabric_configure_seconds": 45}
PATIENCE = 75
"""Seconds for a node to go back: 45, and what the way back takes on a busy machine."""


def network(node: str) -> dict[str, str]:
    """What a node shows of its network, and what we have on it."""
    return {
        "card": play.node(node, f"ip -br -4 addr show dev {CARD}").split()[2:3][0],
        "mtu": play.node(node, f"cat /sys/class/net/{CARD}/mtu").strip(),
        "managed": play.node(node, "ip -br -4 addr show dev enP7s7"),
        "files": play.node(node, "ls -A /etc/netplan /var/lib/sparkstack/fabric 2>/dev/null || true"),
        "units": play.node(node, "find /etc/systemd/system -name 'sparkstack-fabric*'"),
    }


def wait_for_mtu(node: str, mtu: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while play.node(node, f"cat /sys/class/net/{CARD}/mtu").strip() != str(mtu):
        assert time.monotonic() < deadline, network(node)
        time.sleep(0.5)


@pytest.fixture(scope="module", autouse=True)
def _lab() -> t.Iterator[None]:
    play.lab("up")
    yield
    play.playbook(RESTORE)


@pytest.fixture(name="before")
def _before() -> dict[str, dict[str, str]]:
    """The lab's own network, on which nothing of ours is left."""
    assert play.playbook(RESTORE).code == 0
    return {node: network(node) for node in NODES}


def test_check_mode_shows_and_changes_nothing(before: dict[str, dict[str, str]]) -> None:
    done = play.playbook(CONFIGURE, "--check", "--diff")
    assert done.code == 0 and done.changed == {"spark1": 1, "spark2": 1}
    assert f"spark2 {CARD} 192.168.200.12/24 as it is" in done.text and "+ - 192.168.200.12/24" in done.text
    assert {node: network(node) for node in NODES} == before


def test_given_kept_again_and_restored(before: dict[str, dict[str, str]]) -> None:
    done = play.playbook(CONFIGURE)
    assert done.code == 0 and done.changed == {"spark1": 1, "spark2": 1}, done.output
    for number, node in enumerate(NODES, 11):
        now = network(node)
        assert (now["card"], now["mtu"], now["managed"], now["units"]) == (f"192.168.200.{number}/24", "9000", before[node]["managed"], "")
        assert play.node(node, f"stat -c '%a %U' {FILE}").split() == ["600", "root"]
    again = play.playbook(CONFIGURE)
    assert again.code == 0 and again.changed == {"spark1": 0, "spark2": 0}
    smaller = play.playbook(CONFIGURE, extra={"fabric_configure_mtu": 4200})
    assert smaller.code == 0 and [network(node)["mtu"] for node in NODES] == ["4200", "4200"]
    done = play.playbook(RESTORE)
    assert done.code == 0 and done.changed == {"spark1": 1, "spark2": 1}, done.output
    assert {node: network(node) for node in NODES} == before
    assert play.playbook(RESTORE).changed == {"spark1": 0, "spark2": 0}


@pytest.mark.long
def test_a_boot_finds_the_network_that_was_kept() -> None:
    assert play.playbook(CONFIGURE, extra={"fabric_configure_mtu": 4200}).code == 0
    play.lab("reboot", "spark2")
    wait_for_mtu("spark2", 4200)
    assert network("spark2")["card"] == "192.168.200.12/24"
    assert play.playbook(CONFIGURE, extra={"fabric_configure_mtu": 4200}).changed == {"spark1": 0, "spark2": 0}


@pytest.mark.long
def test_the_node_goes_back_when_its_controller_is_gone(before: dict[str, dict[str, str]]) -> None:
    words = [word for name, value in {**QUICK, "fabric_configure_mtu": 4200}.items() for word in ("-e", f"{name}={value}")]
    with play.playing(CONFIGURE, *words) as run:
        wait_for_mtu("spark1", 4200)
        os.killpg(run.pid, signal.SIGKILL)
    assert "armed" in network("spark1")["files"]
    refused = play.playbook(CONFIGURE)
    assert refused.code == 2 and "spark1 has a network on trial that another run has not kept yet: it takes it back by itself within" in refused.text
    for node in NODES:
        wait_for_mtu(node, 9000)
    deadline = time.monotonic() + PATIENCE
    while "told" not in network("spark1")["files"] and time.monotonic() < deadline:
        time.sleep(0.5)
    found = {node: network(node) for node in NODES}
    told = play.playbook(CONFIGURE, "--check")
    assert "spark1 has gone back to the network before at 20" in told.text
    for node in NODES:
        assert {**found[node], "files": ""} == {**before[node], "files": ""}, node


@pytest.mark.long
def test_a_node_that_is_cut_off_goes_back(before: dict[str, dict[str, str]]) -> None:
    words = [word for name, value in {**QUICK, "fabric_configure_mtu": 4200}.items() for word in ("-e", f"{name}={value}")]
    with play.playing(CONFIGURE, *words, "-T", "5"):
        wait_for_mtu("spark1", 4200)
        play.lab("isolate", "spark1")
        deadline = time.monotonic() + PATIENCE
        # Seen by the lab's own hands, as ssh does not get there.
        while "mtu 9000" not in subprocess.run(["ip", "-n", "spark1", "link", "show", CARD], capture_output=True, text=True, check=True).stdout:
            assert time.monotonic() < deadline
            time.sleep(0.5)
    play.lab("rejoin", "spark1")
    for node in NODES:
        wait_for_mtu(node, 9000)
        assert network(node)["card"] == before[node]["card"]


@pytest.mark.long
def test_peers_that_do_not_answer_take_it_back(before: dict[str, dict[str, str]]) -> None:
    play.node("spark2", f"nft 'add table ip deaf; add chain ip deaf in {{ type filter hook input priority 0; }}; add rule ip deaf in iif {CARD} drop'")
    try:
        done = play.playbook(CONFIGURE, extra={**QUICK, "fabric_configure_mtu": 4200})
    finally:
        play.node("spark2", "nft delete table ip deaf")
    assert done.code == 2 and "check the cable and the firewall. Back at the network before: spark1, spark2." in done.text
    for node in NODES:
        assert {**network(node), "files": ""} == {**before[node], "files": ""}, node


@pytest.mark.long
def test_a_card_that_manages_the_node_is_refused() -> None:
    done = play.playbook(CONFIGURE, extra={"fabric_configure_interfaces": ["enP7s7"]})
    assert done.code == 2 and "spark1 is managed by enP7s7, for the SSH connection comes in by its address 10.77.0.11" in done.text
