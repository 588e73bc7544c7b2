# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Reboots without the controller, on the lab's nodes: the agents bring the same launch back, or leave it alone, as they should.

The tests build on each other: what one leaves serving is the next one's beginning.
"""

from __future__ import annotations

import json
import os
import re
import time
import typing as t
from concurrent.futures import ThreadPoolExecutor

import play
import pytest

pytestmark = [pytest.mark.lab, pytest.mark.engine]

DEPLOY = "deploy_qwen.yml"
WANTED = {"tp_launch_autostart": True}
UNIT = f"sparkstack-autostart@{play.DEPLOYMENT}.service"
APART = float(os.environ.get("SPARKSTACK_LAB_APART", "60"))
"""Seconds between the boots of the two nodes, where they are not to boot together."""
ASK = (
    "curl --silent --fail --max-time 10 http://127.0.0.1:8000/v1/completions --header 'Content-Type: application/json' "
    '--data \'{"model": "tiny", "prompt": "The capital of France is", "max_tokens": 4}\' || true'
)


def journal(name: str, since: int = 0) -> list[str]:
    """What an agent has said, from a line on."""
    return play.node(name, f"journalctl --unit {UNIT} --identifier sparkstack-autostart --output cat --no-pager || true").splitlines()[since:]


def places() -> dict[str, int]:
    """How many lines the journals have now."""
    return {name: len(journal(name)) for name in play.RANKS}


def served(since: int, seconds: float = 150) -> float:
    """Wait until the head's agent says that it serves, and it does; returns how long that took."""
    begin = time.monotonic()
    while time.monotonic() - begin < seconds:
        said = journal("spark1", since)
        if any("Serves again" in line for line in said):
            assert json.loads(play.node("spark1", ASK))["usage"]["completion_tokens"] == 4
            return time.monotonic() - begin
        time.sleep(1)
    raise AssertionError("\n".join([*journal("spark1", since), "--", *journal("spark2")]))


def helped() -> None:
    """Wait until the head's agent counts no start any more: one that has served for a minute is none of a storm."""
    deadline = time.monotonic() + 120
    while json.loads(play.node("spark1", f"cat /var/lib/sparkstack/autostart/{play.DEPLOYMENT}.json"))["state"]["starts"]:
        assert time.monotonic() < deadline, journal("spark1")
        time.sleep(2)


def settled() -> dict[str, t.Any]:
    """What must be the same after a reboot as before: the containers and their launch."""
    return {name: (rank["id"], rank["labels"]["sparkstack.launch_id"], rank["labels"]["sparkstack.spec_hash"]) for name, rank in play.ranks().items()}


def long(*names: str) -> t.Any:
    """A row that only `make faults` plays."""
    return pytest.param(names, id="-".join(names), marks=pytest.mark.long)


@pytest.fixture(scope="module", autouse=True)
def _serving(rehearsed: None) -> t.Iterator[None]:
    """A launch that is to come back; afterwards nothing of it is left."""
    play.lab("up")
    play.install_engine()
    for name in play.RANKS:
        # Another test's run may have left it.
        play.node(name, "rm -f /var/lib/sparkstack/deployments/*/lock.json")
    run = play.playbook(DEPLOY, extra=WANTED)
    assert run.code == 0, run.output
    yield
    for name in play.RANKS:
        play.lab("start", name, ok=(0, 1))
    stopped = play.playbook("playbooks/stop.yml")
    assert stopped.code == 0, stopped.output


@pytest.fixture(name="same")
def _same(request: pytest.FixtureRequest) -> t.Iterator[None]:
    """After the test the same launch serves in the same containers, nobody holds its lock, and the next run of the controller finds nothing to do."""
    before = settled()
    yield
    assert settled() == before
    if request.node.get_closest_marker("long"):
        helped()
    assert play.node("spark1", f"ls /var/lib/sparkstack/deployments/{play.DEPLOYMENT}").split().count("lock.json") == 0
    run = play.playbook(DEPLOY, extra=WANTED)
    assert run.code == 0, run.output
    assert run.changed == {"spark1": 0, "spark2": 0}, run.output
    assert settled() == before


def test_the_units_run_and_their_files_are_roots_only() -> None:
    for name in play.RANKS:
        assert play.node(name, f"systemctl is-active {UNIT}; systemctl is-enabled {UNIT}").split() == ["active", "enabled"]
        assert play.node(name, f"stat -c %a /etc/sparkstack/autostart /etc/sparkstack/autostart/{play.DEPLOYMENT}.json").split() == ["700", "600"]
        assert play.containers(name)[play.RANKS[name]]["host"]["RestartPolicy"]["Name"] == "no"
    # On the fabric only.
    listening = play.node("spark1", "ss --listening --tcp --numeric --no-header 'sport = :25050'")
    assert "192.168.200.11:25050" in listening and len(listening.splitlines()) == 1


def test_a_second_run_changes_nothing_and_asks_no_node_about_it(same: None) -> None:
    run = play.playbook(DEPLOY, "-vv", extra=WANTED)
    assert run.changed == {"spark1": 0, "spark2": 0}, run.output
    token = json.loads(play.node("spark1", f"cat /etc/sparkstack/autostart/{play.DEPLOYMENT}.json"))["token"]
    assert len(token) == 64 and token not in run.output


@pytest.mark.parametrize("names", [long("spark2"), long("spark1"), pytest.param(("spark1", "spark2"), id="spark1-spark2")])
def test_a_reboot(names: tuple[str, ...], same: None) -> None:
    before, started = places(), {name: rank["started"] for name, rank in play.ranks().items()}
    begin = time.monotonic()
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda name: play.lab("reboot", name), names))
    booted = time.monotonic() - begin
    took = served(before["spark1"])
    print(f"reboot of {' and '.join(names)}: {booted:.0f} s to boot, serves {took:.0f} s later")
    said = " ".join(journal("spark1", before["spark1"]))
    for name in names:
        assert re.search(rf"{name}( and spark\d)? w(as|ere) restarted while", said), said
    assert "All 2 ranks of launch" in said and "are started again (start " in said
    assert said.index("Starting rank 1 on spark2") < said.index("Starting rank 0 on spark1")
    # The survivor did not go on waiting for a peer that never comes: it was started again too.
    assert all(rank["started"] != started[name] for name, rank in play.ranks().items())


@pytest.mark.long
@pytest.mark.parametrize("first, second", [("spark1", "spark2"), ("spark2", "spark1")])
def test_a_power_cut_and_boots_that_are_apart(first: str, second: str, same: None) -> None:
    before = places()
    play.lab("power-cut", "spark1")
    play.lab("power-cut", "spark2")
    play.lab("start", first)
    time.sleep(APART)
    assert not play.containers(first)[play.RANKS[first]]["running"]
    if first == "spark1":
        assert "Waiting for spark2." in " ".join(journal("spark1", before["spark1"]))
    play.lab("start", second)
    print(f"power cut, {second} {APART:.0f} s after {first}: serves {served(before['spark1']):.0f} s after the last boot")
    said = " ".join(journal("spark1", before["spark1"]))
    assert said.index("Starting rank 1 on spark2") < said.index("Starting rank 0 on spark1")


@pytest.mark.long
def test_docker_restarted_at_the_worker(same: None) -> None:
    before = places()
    play.node("spark2", "systemctl restart docker")
    print(f"Docker restarted on spark2: serves {served(before['spark1']):.0f} s later")
    assert "Docker was restarted on spark2 while its rank ran." in " ".join(journal("spark1", before["spark1"]))


@pytest.mark.long
def test_a_start_that_fails_is_diagnosed_in_the_journal_and_tried_again(same: None) -> None:
    before = places()
    play.node("spark2", "mv /srv/models/tiny-qwen3-moe/config.json /srv/models/tiny-qwen3-moe/config.away")
    try:
        play.lab("reboot", "spark2")
        deadline = time.monotonic() + 120
        while not any("failed" in line for line in journal("spark1", before["spark1"])):
            assert time.monotonic() < deadline, journal("spark1", before["spark1"])
            time.sleep(1)
    finally:
        play.node("spark2", "mv /srv/models/tiny-qwen3-moe/config.away /srv/models/tiny-qwen3-moe/config.json")
    errors = play.node("spark1", f"journalctl --unit {UNIT} --priority err --output cat --no-pager").splitlines()
    assert re.search(r"Start 1 failed\. .*spark2", errors[-1]), errors
    assert "The next start follows in 30 s." in " ".join(journal("spark1", before["spark1"]))
    served(before["spark1"], 200)


@pytest.mark.long
def test_a_crashed_rank_is_left_alone_and_so_is_one_that_was_stopped() -> None:
    before = places()
    play.node("spark2", f"docker kill --signal KILL {play.RANKS['spark2']}")
    deadline = time.monotonic() + 60
    while not any("ended by itself" in line for line in journal("spark1", before["spark1"])):
        assert time.monotonic() < deadline, journal("spark1", before["spark1"])
        time.sleep(1)
    play.node("spark1", f"docker stop --time 1 {play.RANKS['spark1']}")
    play.lab("reboot", "spark1")
    time.sleep(20)
    found = play.ranks()
    assert not any(rank["running"] for rank in found.values())
    assert not any("started again" in line for line in journal("spark1", before["spark1"]))


def test_stop_takes_it_away_and_no_reboot_brings_it_back() -> None:
    run = play.playbook("playbooks/stop.yml")
    assert run.code == 0, run.output
    for name in play.RANKS:
        left = play.node(
            name, "ls -d /etc/sparkstack/autostart /usr/local/lib/sparkstack /etc/systemd/system/*sparkstack* /var/lib/sparkstack/autostart 2>&1 || true"
        )
        assert all("No such file" in line for line in left.splitlines()), left
        assert "sparkstack" not in play.node(name, "systemctl list-units --all --no-legend --plain 'sparkstack*'")
    again = play.playbook("playbooks/stop.yml")
    assert again.changed == {"spark1": 0, "spark2": 0}, again.output
    play.lab("reboot", "spark2")
    assert play.containers("spark2") == {}
