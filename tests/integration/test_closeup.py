# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What init_phase_closeup sees of real containers on a lab node: a real vLLM that waits for its peer, and small programs in its image."""

from __future__ import annotations

import json
import pathlib
import shlex
import subprocess
import sys
import time
import typing as t

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lab"))

import play  # noqa: E402  (the path above must come first)

pytestmark = pytest.mark.lab

NODE, HEAD, WORKER = "spark1", "192.168.200.11", "192.168.200.12"
IMAGE = "sparkstack/vllm-cpu:0.32.0"
SECRET = "topsecretkey12345"
MIB = 1 << 20
# It waits as a rank's store does, with a secret among its arguments and another one in a thread's name.
WAIT = """\
import socket, threading, time
def heart():
    time.sleep(600)
def wait_for_peer():
    server = socket.create_server(('', 29556))
    server.accept()
threading.Thread(target=heart, name='Bearer abcdef123456', daemon=True).start()
wait_for_peer()
"""
SPIN = "def spin():\n    while True: pass\nspin()\n"
HOLD = "import time\nheld = bytearray(b'1') * ({} << 20)\nprint('held', flush=True)\ntime.sleep(600)\n"
# What stands in for a py-spy that never comes to an end.
ENDLESS = "#!/usr/bin/python3\nimport time\ntime.sleep(600)\n"


def start(name: str, program: str, *options: str, after: str = "") -> str:
    """Run a Python program in a container until a shell's command succeeds on the node; the container's id."""
    words = ["docker", "run", "-d", "--name", name, *options, IMAGE, "python3", "-c", program, "--api-key", SECRET]
    identity = play.node(NODE, shlex.join(words)).strip()
    if after:
        play.node(NODE, f"for _turn in $(seq 200); do if {after}; then exit 0; fi; sleep 0.1; done; docker logs {name}; exit 1")
    return identity


def look(container: str = "closeup", **options: t.Any) -> dict[str, t.Any]:
    """What the module returns."""
    command = [str(play.BIN / "ansible"), NODE, "-i", play.inventory(), "-b", "-m", "sparkstack.inference.init_phase_closeup"]
    done = subprocess.run(
        [*command, "-a", json.dumps({"container": container, **options})],
        env={**play.environment(), "ANSIBLE_STDOUT_CALLBACK": "ansible.posix.json", "ANSIBLE_LOAD_CALLBACK_PLUGINS": "1"},
        cwd=play.ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert SECRET not in done.stdout
    result = json.loads(done.stdout[done.stdout.index("{") :])["plays"][0]["tasks"][0]["hosts"][NODE]
    assert result["changed"] is False
    return t.cast("dict[str, t.Any]", result["closeup"])


def problems(found: dict[str, t.Any]) -> dict[str, str]:
    return {key: value for key, value in found.items() if key.endswith("_problem") and value}


@pytest.fixture(scope="module", autouse=True)
def image() -> None:
    play.lab("up", "--nodes", "2")
    play.install_engine()
    play.empty(NODE, "spark2")


@pytest.fixture(autouse=True)
def clean() -> t.Iterator[None]:
    remove = "docker rm -f closeup other >/dev/null 2>&1; rm -rf /srv/closeup /usr/local/bin/py-spy"
    play.node(NODE, remove)
    yield
    play.node(NODE, remove)


def test_a_real_engine_that_waits_for_its_peer() -> None:
    environment = {"VLLM_HOST_IP": HEAD, "GLOO_SOCKET_IFNAME": "enp1s0f0np0", "VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1"}
    environment.update(VLLM_CPU_OMP_THREADS_BIND="nobind", HF_HUB_OFFLINE="1", VLLM_API_KEY=SECRET)
    options = "--dtype bfloat16 --max-model-len 512 --enforce-eager -tp 2 --nnodes 2 --node-rank 0 --master-port 29501".split()
    words = ["docker", "run", "-d", "--name", "closeup", "--network", "host", "--memory", "4g", "--shm-size", "1g", "-v", "/srv/models:/srv/models:ro"]
    words += [word for key, value in environment.items() for word in ("-e", f"{key}={value}")]
    words += [IMAGE, "vllm", "serve", "/srv/models/tiny-qwen3-moe", *options, "--master-addr", HEAD, "--port", "8000", "--api-key", SECRET]
    play.node(NODE, shlex.join(words))
    play.node(NODE, "for _turn in $(seq 1200); do if grep -q ':733D .* 0A ' /proc/net/tcp /proc/net/tcp6; then exit 0; fi; sleep 0.1; done; exit 1")
    found = look(rendezvous=f"{HEAD}:29501", peers=[WORKER])
    assert problems(found) == {} and found["seconds"] < 4
    processes = {process["name"]: process for process in found["processes"]}
    assert {"vllm", "VLLM::EngineCore", "VLLM::Worker"} <= set(processes)
    assert processes["vllm"]["container_pid"] == 1 and processes["vllm"]["waits_in"]
    stacks = {stack["name"]: stack["text"] for stack in found["stacks"]}
    assert "init_process_group (torch/distributed/distributed_c10d.py" in stacks["VLLM::Worker"]
    assert "_create_c10d_store" in stacks["VLLM::Worker"]
    assert "wait_for_ready (vllm/v1/executor/multiproc_executor.py" in stacks["VLLM::EngineCore"]
    assert "wait_for_engine_startup" in stacks["vllm"]
    assert found["sockets"]["owner"]["process"] == "VLLM::Worker" and found["sockets"]["owner"]["own"] and found["sockets"]["connected"] == []
    assert [(entry["port"], entry["container_name"], entry["own"]) for entry in found["listeners"]] == [(29501, "closeup", True)]
    assert found["reach"][WORKER]["large"] > 0 and found["fabric"]["interface"] == "enp1s0f0np0"
    own = next(holder for holder in found["holders"] if holder["own"])
    assert (own["kind"], own["name"], own["image"]) == ("container", "closeup", IMAGE)
    assert own["bytes"] == found["memory"]["container_bytes"] > 500 * MIB and found["memory"]["container_limit_bytes"] == 4096 * MIB
    # Looking has not disturbed it.
    assert play.node(NODE, "docker inspect -f '{{.State.Running}}' closeup").strip() == "true"
    assert "py-spy" not in play.node(NODE, "docker top closeup -o pid,comm")


def test_a_program_that_waits() -> None:
    start("closeup", WAIT, "--network", "host", after="grep -q ':7374 .* 0A ' /proc/net/tcp")
    found = look()
    assert problems(found) == {}
    (process,) = found["processes"]
    assert process == {
        "pid": int(play.node(NODE, "docker inspect -f '{{.State.Pid}}' closeup")), "container_pid": 1, "name": "python3", "state": "S",
        "cpu_percent": process["cpu_percent"], "threads": 2, "waits_in": "inet_csk_accept",
    }  # fmt: skip
    assert process["cpu_percent"] < 20
    text = found["stacks"][0]["text"]
    assert "wait_for_peer (<string>:6)" in text and "heart (<string>:3)" in text and "abcdef123456" not in text


def test_a_program_that_spins_and_one_that_is_stopped() -> None:
    start("closeup", SPIN)
    found = look()
    assert found["processes"][0]["state"] == "R" and found["processes"][0]["cpu_percent"] > 30 and found["processes"][0]["waits_in"] is None
    assert "spin (<string>:2)" in found["stacks"][0]["text"]
    play.node(NODE, "kill -STOP $(docker inspect -f '{{.State.Pid}}' closeup)")
    found = look()
    assert (found["processes"][0]["state"], found["processes"][0]["cpu_percent"]) == ("T", 0.0)
    assert "spin (<string>:2)" in found["stacks"][0]["text"] and problems(found) == {}


def test_a_paused_one_one_that_has_ended_and_none() -> None:
    start("closeup", WAIT)
    play.node(NODE, "docker pause closeup")
    found = look()
    assert (found["running"], found["paused"], len(found["processes"]), found["stacks"]) == (True, True, 1, [])
    assert "is paused" in problems(found)["stacks_problem"]
    play.node(NODE, "docker kill closeup")
    found = look()
    assert (found["exists"], found["running"], found["processes"], found["stacks"]) == (True, False, [], []) and problems(found) == {}
    assert found["memory"]["total_bytes"] > 0 and found["holders"] and found["gpus"] and found["booted"] and found["docker_started"]
    found = look("nothing-of-that-name")
    assert (found["exists"], found["processes"]) == (False, []) and problems(found) == {}


def test_an_image_without_py_spy() -> None:
    start("closeup", WAIT, "-e", "PATH=/usr/bin:/bin")
    found = look()
    assert found["stacks"] == [] and len(found["processes"]) == 1
    assert problems(found) == {
        "stacks_problem": 'The image has no py-spy to tell where the processes stand: add "pip install py-spy" to the image, or install py-spy on the node.'
    }
    # The node's own is as good.
    play.node(NODE, "docker cp closeup:/opt/engine/bin/py-spy /usr/local/bin/py-spy")
    found = look()
    assert "wait_for_peer (<string>:6)" in found["stacks"][0]["text"] and problems(found) == {}


def test_a_py_spy_that_does_not_end() -> None:
    play.node(NODE, f"mkdir -p /srv/closeup; printf %s {shlex.quote(ENDLESS)} > /srv/closeup/py-spy; chmod 755 /srv/closeup/py-spy")
    start("closeup", WAIT, "-v", "/srv/closeup/py-spy:/opt/engine/bin/py-spy:ro")
    begin = time.monotonic()
    found = look(timeout=6)
    assert time.monotonic() - begin < 10 and found["seconds"] < 6
    assert "py-spy in the container was not done within" in problems(found)["stacks_problem"]
    assert len(found["processes"]) == 1 and found["gpus"] and found["holders"]
    assert "py-spy" not in play.node(NODE, "docker top closeup -o pid,comm")


def test_nothing_is_started_where_memory_is_short() -> None:
    start("closeup", HOLD.format(120), "--memory", "200m", after="docker logs closeup | grep -q held")
    found = look()
    assert "left below its memory limit, too little to run py-spy in it" in problems(found)["stacks_problem"]
    assert 120 * MIB < found["memory"]["container_bytes"] < 200 * MIB == found["memory"]["container_limit_bytes"]


def test_who_holds_the_memory(stand_in: t.Callable[..., None]) -> None:
    start("closeup", WAIT, "--network", "host", after="grep -q ':7374 .* 0A ' /proc/net/tcp")
    start("other", HOLD.format(300), after="docker logs other | grep -q held")
    pid = play.node(NODE, "docker inspect -f '{{.State.Pid}}' other").strip()
    program = HOLD.format(200).replace("print('held', flush=True)", "import os; open('/run/closeup-pid', 'w').write(str(os.getpid()))")
    outside = f"setsid python3 -c {shlex.quote(program)} --key={SECRET} </dev/null >/dev/null 2>&1 &"
    play.node(NODE, f"{outside} while [ ! -s /run/closeup-pid ]; do sleep 0.1; done")
    try:
        stand_in(**{"gpu.apps": f"{pid}:1000:python3", "gpu.power.limit": "140.00", "gpu.utilization.gpu": "96"})
        found = look()
    finally:
        play.node(NODE, "kill $(cat /run/closeup-pid); rm /run/closeup-pid")
    assert problems(found) == {}
    assert found["gpus"][0]["power_limit_watts"] == 140.0 and found["gpus"][0]["utilization_percent"] == 96
    held = [holder for holder in found["holders"] if holder["kind"] != "page_cache"]
    assert [(holder["kind"], holder["own"]) for holder in held] == [("container", False), ("process", False), ("container", True)]
    assert (held[0]["name"], held[0]["image"], held[0]["gpu_bytes"]) == ("other", IMAGE, 1000 * MIB) and 1300 * MIB < held[0]["bytes"] < 1330 * MIB
    assert held[1]["name"].startswith("python3") and 200 * MIB < held[1]["bytes"] < 220 * MIB
    assert held[2]["name"] == "closeup" and held[2]["bytes"] < 64 * MIB
    stand_in(**{"gpu.error": "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."})
    found = look()
    assert found["gpus"] == [] and "couldn't communicate with the NVIDIA driver" in problems(found)["gpus_problem"]


def test_who_has_the_port_that_it_wants() -> None:
    other = start("other", WAIT, "--network", "host", after="grep -q ':7374 .* 0A ' /proc/net/tcp")
    start("closeup", "raise OSError(98)", "--network", "host", "-e", "X=1")
    (entry,) = look(rendezvous=f"{HEAD}:29556")["listeners"]
    assert (entry["port"], entry["process"], entry["container"], entry["container_name"], entry["own"]) == (29556, "python3", other, "other", False)
    # Where the ranks meet, only the head listens.
    assert look(rendezvous=f"{WORKER}:29556")["listeners"] == []


def test_what_the_kernel_said_of_others() -> None:
    start("closeup", WAIT)
    other = start("other", HOLD.format(300), "--memory", "100m", "--memory-swap", "100m", after="[ $(docker inspect -f '{{.State.Running}}' other) = false ]")
    found = look()
    told = [message for message in found["kernel"] if message["container"] == other]
    assert [(message["kind"], message["cause"], message["process"], message["limit"]) for message in told] == [("oom", "oom", "python3", "container")]
    assert found["oom_kills"] == 0


@pytest.fixture
def stand_in() -> t.Iterator[t.Callable[..., None]]:
    """Sets stand-ins of the node and takes them back."""
    done: list[str] = []

    def apply(**values: str) -> None:
        done.extend(values)
        play.lab("set", NODE, *(f"{key}={value}" for key, value in values.items()))

    yield apply
    play.lab("set", NODE, *(f"{key}=" for key in done))
