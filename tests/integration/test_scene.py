# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What init_phase_probe tells of the scene, with real containers, kills, cables and sockets on the lab's nodes."""

from __future__ import annotations

import json
import pathlib
import re
import shlex
import subprocess
import sys
import time
import typing as t

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lab"))

import play  # noqa: E402  (the path above must come first)

pytestmark = pytest.mark.lab

HEAD, WORKER = "192.168.200.11", "192.168.200.12"
BOTH = ("spark1", "spark2")
PORT = 29555
IMAGE = "scene-test:1"
# The line in which vLLM tells the rendezvous, and a rank that waits there as its store does.
SAY = "import os, signal, socket, time\nsignal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])\n"
SAY += "print('INFO 11-29 22:32:30 [parallel_state.py:1906] world_size=2 rank={rank} local_rank=0"
SAY += f" distributed_init_method=tcp://{HEAD}:{PORT} backend=gloo', flush=True)\n"
LISTEN = f"server = socket.create_server(('::', {PORT}), family=socket.AF_INET6, dualstack_ipv6=True)\nkept = []\nwhile True: kept.append(server.accept())\n"
DIAL = f"""\
while True:
    try:
        kept = socket.create_connection(('{HEAD}', {PORT}), 30)
        break
    except OSError:
        time.sleep(0.05)
time.sleep(600)
"""
# On a signal, a worker of this program takes more than the container may have, and is killed; the program goes on for a while.
GROW = """\
signal.sigwait([signal.SIGUSR1])
if not os.fork():
    open('/proc/self/comm', 'w').write('VLLM::Worker')
    held = bytearray(b'1') * (256 << 20)
os.wait()
time.sleep({stay})
"""


def start(node: str, name: str, program: str, *options: str) -> str:
    """Start a container that runs a Python program with the node's own Python, in place of the last one of the name; its id."""
    words = ["docker", "run", "-d", "--name", name, "--network", "host", "-v", "/usr:/usr:ro", *options, IMAGE, "/usr/bin/python3", "-c", program]
    return play.node(node, f"docker rm -f {name} >/dev/null 2>&1; {shlex.join(words)}").strip()


def look(*nodes: str, container: str = "scene", peers: bool = False, states: dict[str, t.Any] | None = None) -> dict[str, dict[str, t.Any]]:
    """What the module returns of these nodes' containers, by node."""
    arguments = {"container": container, "engine": "vllm"}
    asked = f"{{{{ [{{'spark1': '{WORKER}', 'spark2': '{HEAD}'}}[inventory_hostname]] }}}}" if peers else []
    known = f"{{{{ {states!r}[inventory_hostname] }}}}" if states else {}
    command = [str(play.BIN / "ansible"), ",".join(nodes), "-i", play.inventory(), "-b", "-m", "sparkstack.inference.init_phase_probe"]
    done = subprocess.run(
        [*command, "-a", json.dumps({**arguments, "peers": asked, "state": known})],
        env={**play.environment(), "ANSIBLE_STDOUT_CALLBACK": "ansible.posix.json", "ANSIBLE_LOAD_CALLBACK_PLUGINS": "1"},
        cwd=play.ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    hosts = json.loads(done.stdout[done.stdout.index("{") :])["plays"][0]["tasks"][0]["hosts"]
    return t.cast("dict[str, dict[str, t.Any]]", hosts)


def wait(node: str, command: str) -> None:
    """Until a shell's command succeeds on a node."""
    play.node(node, f"for _turn in $(seq 100); do if {command}; then exit 0; fi; sleep 0.1; done; exit 1")


@pytest.fixture(scope="module", autouse=True)
def image() -> t.Iterator[None]:
    play.lab("up", "--nodes", "2")
    play.empty(*BOTH)
    for node in BOTH:
        play.node(node, f"tar -c -C / bin lib lib64 | docker import - {IMAGE}")
    yield
    for node in BOTH:
        play.node(node, f"docker rm -f scene other >/dev/null 2>&1; docker rmi {IMAGE}")


def test_ranks_that_have_met() -> None:
    own = {"spark1": start("spark1", "scene", SAY.format(rank=0) + LISTEN), "spark2": start("spark2", "scene", SAY.format(rank=1) + DIAL)}
    wait("spark2", f"grep -qi ' 0BC8A8C0:{PORT:04X} 01 ' /proc/net/tcp")
    found = look(*BOTH, peers=True)
    for node, address, peer in (("spark1", HEAD, WORKER), ("spark2", WORKER, HEAD)):
        scene = found[node]["scene"]
        assert scene["fabric"] == {"interface": "enp1s0f0np0", "address": address, "prefix": 24, "mtu": 9000, "carrier": True, "speed_mbps": 200000}
        assert (scene["oom_kills"], scene["kernel"]) == (0, [])
        echo = scene["reach"][peer]
        assert list(scene["reach"]) == [peer] and 0 < echo["small"] < 0.5 and 0 < echo["large"] < 0.5
        # For such a ping the kernel has asked the peer for its hardware address.
        assert set(echo) == {"small", "large", "neighbour"} and echo["neighbour"] is True
        said = play.node(node, "for what in UserspaceTimestamp 'ExecMainStartTimestamp docker'; do date +%s -d \"$(systemctl show --value -p $what)\"; done")
        booted, docker = (int(line) for line in said.split())
        assert abs(scene["booted"] - booted) < 3 and abs(scene["docker_started"] - docker) < 2
    owner = found["spark1"]["scene"]["sockets"].pop("owner")
    assert found["spark1"]["scene"]["sockets"] == {"port": PORT, "listening": True, "connected": [WORKER], "dialing": []}
    assert owner == {"pid": owner["pid"], "process": "python3", "container": own["spark1"], "own": True}
    assert play.node("spark1", "docker inspect -f '{{.State.Pid}}' scene").strip() == str(owner["pid"])
    assert found["spark2"]["scene"]["sockets"] == {"port": PORT, "listening": False, "owner": None, "connected": [HEAD], "dialing": []}


def test_a_small_mtu_and_a_cut_cable() -> None:
    play.node("spark2", "ip link set enp1s0f0np0 mtu 1500")
    try:
        scene = look("spark1", container="none", peers=True)["spark1"]["scene"]
        assert scene["reach"][WORKER]["small"] > 0 and scene["reach"][WORKER]["large"] is None
        # There is no such container: the peer tells which interface it is.
        assert (scene["fabric"]["interface"], scene["sockets"]) == ("enp1s0f0np0", None)
        play.lab("cut", "spark2")
        start("spark2", "scene", SAY.format(rank=1) + DIAL)
        wait("spark2", f"grep -qi ' 0BC8A8C0:{PORT:04X} 02 ' /proc/net/tcp")
        found = look("spark2", peers=True)["spark2"]["scene"]
        assert found["reach"] == {HEAD: {"small": None, "large": None, "neighbour": False}}
        assert (found["fabric"]["carrier"], found["fabric"]["mtu"]) == (False, 1500)
        assert (found["sockets"]["connected"], found["sockets"]["dialing"]) == ([], [HEAD])
    finally:
        play.lab("heal", "spark2")
        play.node("spark2", "ip link set enp1s0f0np0 mtu 9000")


def test_kills_for_lack_of_memory() -> None:
    """Both nodes share one kernel and its log here: each container must be told its own kills only."""
    limit = ("--memory", "96m", "--memory-swap", "96m")
    stays = {"spark1": 600, "spark2": 0}
    own = {node: start(node, "scene", SAY.format(rank=0) + GROW.format(stay=stay), *limit) for node, stay in stays.items()}
    before = look(*BOTH)
    assert [(result["running"], result["scene"]["oom_kills"]) for result in before.values()] == [(True, 0), (True, 0)]
    for node in stays:
        play.node(node, "docker kill --signal USR1 scene")
    wait("spark1", f"grep -q 'oom_kill 1' /sys/fs/cgroup/memory/docker/{own['spark1']}/memory.oom_control")
    wait("spark2", "test $(docker inspect -f '{{.State.Running}}' scene) = false")
    found = look(*BOTH, states={node: result["state"] for node, result in before.items()})
    for node in BOTH:
        scene = found[node]["scene"]
        assert (found[node]["running"], scene["oom_kills"]) == (node == "spark1", 1)
        (message,) = scene["kernel"]
        assert (message["cause"], message["kind"], message["process"]) == ("oom", "oom", "VLLM::Worker")
        assert (message["container"], message["limit"]) == (own[node], "container")
        assert re.match(r"Memory cgroup out of memory: Killed process \d+ \(VLLM::Worker\) total-vm:", message["text"])
        assert found[node]["started_at"] - 1 < message["time"] < time.time() + 1
    assert found["spark1"]["scene"]["kernel"][0]["pid"] != found["spark2"]["scene"]["kernel"][0]["pid"]


def test_another_container_has_the_port() -> None:
    other = start("spark1", "other", SAY.format(rank=0) + LISTEN)
    wait("spark1", f"grep -qi ':{PORT:04X} 0*:0000 0A' /proc/net/tcp6")
    start("spark1", "scene", SAY.format(rank=0) + LISTEN)
    wait("spark1", "test $(docker inspect -f '{{.State.Running}}' scene) = false")
    found = look("spark1")["spark1"]
    owner = found["scene"]["sockets"]["owner"]
    assert (found["running"], found["scene"]["sockets"]["listening"]) == (False, True)
    assert (owner["container"], owner["own"], owner["process"]) == (other, False, "python3")
