# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The collective proof in the real engine's image over gloo on two lab nodes: good, with the fabric cut, and with its controller killed."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import typing as t

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lab"))

import play  # noqa: E402  (the path above must come first)
from proving import ADDRESS, CARD, LAUNCH, PORT, PROOF, command, environment, prove, same  # noqa: E402

pytestmark = [pytest.mark.lab, pytest.mark.engine]

# From the rendezvous on nothing is slow; what goes before it is torch's import, which a cut fabric makes no longer.
CUT_SECONDS = 180.0


def port_is_free() -> bool:
    """The launch that comes next can take the port, without asking for an address that is still in use."""
    return play.node("spark1", f"python3 -c 'import socket; socket.socket().bind((\"0.0.0.0\", {PORT})); print(1)'").strip() == "1"


@contextlib.contextmanager
def fault(*words: str, end: t.Sequence[str]) -> t.Iterator[None]:
    play.lab(*words)
    try:
        yield
    finally:
        play.lab(*end)


@pytest.fixture(scope="module", autouse=True)
def nodes() -> t.Iterator[None]:
    play.lab("up", "--nodes", "2")
    play.install_engine("--images", ",".join(ADDRESS))
    play.empty(*ADDRESS)
    subprocess.run(["make", "-s", "-C", str(play.ROOT), "collection"], check=True, timeout=300)
    for node in ADDRESS:
        play.node(node, f"rm -f {PROOF}")
    yield
    play.empty(*ADDRESS)


def test_it_is_proved_once() -> None:
    check = same(prove("--check")[0])
    assert check["changed"] and check["verdict"] is None and "2 ranks would prove themselves" in check["msg"]
    found, _seconds = prove()
    proof = same(found)
    assert (proof["verdict"], proof["cause"], proof["changed"], proof["remembered"]) == ("ready", None, True, False), proof["msg"]
    group = proof["group"]
    assert (group["ranks"], group["world_size"], group["backend"], group["transport"], group["devices"]) == (2, 2, "gloo", "tcp", [CARD])
    assert group["correct"] and [size["correct"] for size in group["sizes"]] == [True] * len(group["sizes"]) and group["bus_gb_s"] > 0.01
    assert all(proof["nodes"][node]["memory_bytes"] < 1 << 30 and proof["nodes"][node]["transport"]["addresses"] == [ADDRESS[node]] for node in ADDRESS)
    assert port_is_free()
    for node in ADDRESS:
        assert play.node(node, f"stat -c '%a %U' {PROOF}").strip() == "600 root"
    again, _seconds = prove()
    assert same(again)["remembered"] and not same(again)["changed"] and same(again)["group"] == group
    check_again = same(prove("--check")[0])
    assert not check_again["changed"] and check_again["remembered"]
    forced = same(prove(again=True)[0])
    assert forced["verdict"] == "ready" and not forced["remembered"]


@pytest.mark.long
def test_another_environment_is_proved_anew() -> None:
    worker = LAUNCH["spark2"]
    wrong = {**worker, "environment": {**worker["environment"], "GLOO_SOCKET_IFNAME": "nosuch0"}}
    proof = same(prove(launch={**LAUNCH, "spark2": wrong})[0])
    assert (proof["verdict"], proof["cause"], proof["culprit"]) == ("blocked", "gloo_wrong_iface", "spark2"), proof["msg"]
    assert "nosuch0" in proof["message"] and port_is_free()


@pytest.mark.long
@pytest.mark.parametrize(
    "name, words, end",
    [
        ("cable", ("cut", "spark2"), ("heal", "spark2")),
        ("firewall", ("fault", "spark1", "drop", str(PORT)), ("mend", "spark1")),
        ("one_way", ("fault", "spark1", "deaf"), ("mend", "spark1")),
    ],
)
def test_the_fabric_is_cut(name: str, words: t.Sequence[str], end: t.Sequence[str]) -> None:
    with fault(*words, end=end):
        found, seconds = prove(again=True, join_timeout=20)
    proof = same(found)
    assert all(found[node].get("failed") for node in ADDRESS)
    assert (proof["verdict"], proof["cause"], proof["culprit"]) == ("blocked", "net_unreachable", "spark2"), proof["msg"]
    assert f"did not reach the head at {ADDRESS['spark1']}:{PORT}" in proof["message"] and seconds < CUT_SECONDS
    # What was good before is not believed any more.
    assert all(play.node(node, f"test -e {PROOF} || echo gone").strip() == "gone" for node in ADDRESS)
    print(f"figure collective_cut_{name}_s {seconds:.1f} s")


@pytest.mark.long
def test_a_port_that_is_taken_is_told_before_anything_starts() -> None:
    play.node("spark1", f"setsid -f python3 -c 'import socket, time; kept = socket.create_server((\"\", {PORT})); time.sleep(120)' </dev/null >/dev/null 2>&1")
    try:
        play.node("spark1", f"for _turn in $(seq 100); do ss -Hltn 'sport = :{PORT}' | grep -q . && exit 0; sleep 0.1; done; exit 1")
        found, seconds = prove(again=True)
    finally:
        play.node("spark1", "pkill -f '[k]ept = socket.create_server' || :")
    proof = same(found)
    assert (proof["verdict"], proof["cause"], proof["culprit"]) == ("blocked", "port_in_use", "spark1") and "(python3)" in proof["message"]
    assert not proof["nodes"] and seconds < 60


@pytest.mark.long
def test_a_killed_controller_leaves_nothing_for_long() -> None:
    running = "docker ps -q --filter label=sparkstack.collective=proved"
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command(LAUNCH, again=True), env=environment(), cwd=play.ROOT, start_new_session=True, **silent) as run:
        play.node("spark1", f"for _turn in $(seq 600); do {running} | grep -q . && exit 0; sleep 0.1; done; exit 1")
        os.killpg(run.pid, signal.SIGKILL)
    # Nobody takes it for a rank.
    words = [str(play.BIN / "ansible"), "spark1", "-i", play.inventory(), "-b", "-m", "sparkstack.inference.inference_info", "-a", "deployment=proved"]
    done = subprocess.run(words, env=environment(), cwd=play.ROOT, capture_output=True, text=True, timeout=120, check=True)
    info = json.loads(done.stdout[done.stdout.index("{") :])["plays"][0]["tasks"][0]["hosts"]["spark1"]
    assert info["containers"] == []
    for node in ADDRESS:
        # It ends by itself, at the latest when its time is over.
        play.node(node, "for _turn in $(seq 220); do docker ps -aq --filter label=sparkstack.collective | grep -q . || exit 0; sleep 1; done; exit 1")
    assert port_is_free()
    assert same(prove(again=True)[0])["verdict"] == "ready"
