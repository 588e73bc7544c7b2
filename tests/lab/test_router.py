# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A router in front of two replicas: it goes on when one is killed. The tests build on each other: what one leaves is the next one's beginning."""

from __future__ import annotations

import http.client
import json
import subprocess
import threading
import time
import typing as t

import play
import pytest

pytestmark = [pytest.mark.lab, pytest.mark.engine]

DEPLOYMENT, KEY, PORT = "pair", "s3cret-value", 8080
IMAGE, OTHERS = "sparkstack/nginx:lab", "sparkstack/routers:lab"
REPLICAS = {"spark1": f"{DEPLOYMENT}-r0", "spark2": f"{DEPLOYMENT}-r1"}
ADDRESSES = {"spark1": "10.77.0.11", "spark2": "10.77.0.12"}
ASKED = {"deployment": DEPLOYMENT, "router_image": IMAGE, "tp_launch_api_key": KEY}
RANK = {
    "engine": "sglang", "image": "sparkstack/sglang-rehearsal:0.5.17", "model": "/srv/models/tiny-sglang-rehearsal", "served_name": "tiny", "rank": 0,
    "ranks": 1, "port": 30000, "rendezvous_port": 25000, "gpus": False, "memory": "2g", "shm_size": "1g", "api_key": KEY, "verify_arguments": False,
    "environment": {"REHEARSAL_PACE": "0.2", "GLOO_SOCKET_IFNAME": "enp1s0f0np0", "NCCL_SOCKET_IFNAME": "enp1s0f0np0"},
}  # fmt: skip


def module(node: str, name: str, **arguments: t.Any) -> None:
    """Run a module of the collection on a node as root."""
    words = [str(play.BIN / "ansible"), node, "-i", play.inventory(), "-b", "-m", f"sparkstack.inference.{name}", "-a", json.dumps(arguments)]
    done = subprocess.run(words, env=play.environment(), cwd=play.ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def ask(host: str = "10.77.0.11", port: int = PORT, key: str = KEY, **body: t.Any) -> tuple[int, bytes, list[float]]:
    """Status and body of a completion, and when each piece of it came, in seconds since it was asked for."""
    connection = http.client.HTTPConnection(host, port, timeout=30)
    begun, times, data = time.monotonic(), [], b""
    try:
        content = json.dumps({"model": "tiny", "prompt": "The capital of France is", "max_tokens": 4, **body})
        connection.request("POST", "/v1/completions", content, {"Content-Type": "application/json", "Authorization": f"Bearer {key}"})
        answer = connection.getresponse()
        while piece := answer.read1(65536):
            data += piece
            times.append(time.monotonic() - begun)
        return answer.status, data, times
    finally:
        connection.close()


def answered(node: str) -> int:
    """How many completions the replica on a node has answered."""
    log = play.node(node, f"docker logs {REPLICAS[node]}-rank0 2>&1")
    return log.count('"POST /v1/completions HTTP/1.1" 200')


def wait_for(condition: t.Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.3)


def serves(node: str) -> bool:
    try:
        return ask(ADDRESSES[node], 30000)[0] == 200
    except OSError:
        return False


def put_image(product: str) -> None:
    """Have one of the images for these tests on the head."""
    built = subprocess.run([str(play.ROOT / "tests/lab/engine/build"), product], capture_output=True, text=True, timeout=300, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    play.lab("put-image", "spark1", built.stdout.split()[-1])


@pytest.fixture(scope="module", autouse=True)
def replicas() -> t.Iterator[None]:
    """Two replicas of one rank each, and nginx's image on the head."""
    play.lab("up")
    play.install_engine("--images", "spark1,spark2")
    play.empty(*REPLICAS)
    put_image("nginx")
    for node, replica in REPLICAS.items():
        address = ADDRESSES[node].replace("10.77.0", "192.168.200")
        module(node, "inference_launch", state="started", deployment=replica, address=address, head_address=address, **RANK)
    for node in REPLICAS:
        wait_for(lambda node=node: serves(node))  # type: ignore[misc]
    yield
    play.empty(*REPLICAS)
    for node in REPLICAS:
        play.node(node, f"rm -rf /etc/sparkstack/router; docker image rm {IMAGE} {OTHERS} >/dev/null 2>&1; true")


def router(*arguments: str, code: int = 0, **extra: t.Any) -> play.Play:
    run = play.playbook("playbooks/router.yml", *arguments, extra={**ASKED, **extra})
    assert run.code == code, run.output
    return run


def container() -> dict[str, t.Any]:
    return play.containers("spark1")[f"{DEPLOYMENT}-router"]


def test_it_is_put_in_front_and_a_second_run_changes_nothing() -> None:
    predicted = router("--check", "--diff")
    assert predicted.changed["spark1"] > 0 and predicted.changed["spark2"] == 0 and "server 10.77.0.12:30000 max_fails=1" in predicted.output
    assert f"{DEPLOYMENT}-router" not in play.containers("spark1")
    run = router()
    assert f"{DEPLOYMENT} is at http://10.77.0.11:8080/v1, by nginx on spark1 in front of 10.77.0.11:30000 and 10.77.0.12:30000, and has answered" in run.text
    first = container()
    for arguments in (("--check",), ()):
        assert set(router(*arguments).changed.values()) == {0}
    assert container()["id"] == first["id"]
    host, config = first["host"], first["config"]
    assert (host["ReadonlyRootfs"], host["CapDrop"], host["CapAdd"], config["User"]) == (True, ["ALL"], None, "65534:65534")
    assert host["SecurityOpt"] == ["no-new-privileges"] and host["Memory"] == 1 << 30 and not host["Privileged"]
    assert [mount for mount in host["Mounts"] if not mount.get("ReadOnly")] == []


def test_both_replicas_get_requests_with_the_clients_own_key() -> None:
    before = {node: answered(node) for node in REPLICAS}
    assert [ask()[0] for _turn in range(6)] == [200] * 6
    assert all(answered(node) > before[node] for node in REPLICAS)
    assert ask(key="wrong")[0] == 401
    assert KEY not in play.node("spark1", f"docker inspect {DEPLOYMENT}-router; docker logs {DEPLOYMENT}-router 2>&1; cat /etc/sparkstack/router/*/*")


def test_status_shows_it() -> None:
    run = play.playbook("playbooks/status.yml", extra={"tp_launch_api_key": KEY})
    assert run.code == 0 and set(run.changed.values()) == {0}, run.output
    assert f"{DEPLOYMENT} router: nginx at http://10.77.0.11:8080/v1 in front of 10.77.0.11:30000 and 10.77.0.12:30000" in run.text
    assert f"{DEPLOYMENT} router at port 8080 of spark1: answered in" in run.text


def test_a_streamed_answer_comes_as_it_is_made() -> None:
    status, data, times = ask(stream=True, max_tokens=8)
    assert status == 200 and data.count(b"data: ") == 9 and data.endswith(b"data: [DONE]\n\n")
    assert len(times) >= 8 and times[0] < times[-1] / 3


def lose_one_and_have_it_back() -> list[int]:
    """What four clients get all the while in which a replica is killed, started again, and asked again."""
    codes: list[int] = []
    end = threading.Event()

    def clients() -> None:
        while not end.is_set():
            codes.append(ask()[0])

    threads = [threading.Thread(target=clients) for _number in range(4)]
    for thread in threads:
        thread.start()
    try:
        wait_for(lambda: len(codes) > 20)
        play.node("spark2", f"docker kill {REPLICAS['spark2']}-rank0")
        killed, before = len(codes), answered("spark1")
        wait_for(lambda: len(codes) > killed + 40)
        assert answered("spark1") > before
        play.node("spark2", f"docker start {REPLICAS['spark2']}-rank0")
        wait_for(lambda: serves("spark2"))
        back = answered("spark2")
        # It is left out for ten seconds after the last try.
        wait_for(lambda: answered("spark2") > back + 2)
    finally:
        end.set()
        for thread in threads:
            thread.join()
    return codes


def test_requests_go_on_when_a_replica_is_killed_and_it_gets_some_again() -> None:
    assert set(lose_one_and_have_it_back()) == {200}


@pytest.mark.long
def test_another_list_of_replicas_cuts_no_answer() -> None:
    first = container()["id"]
    result: list[tuple[int, bytes, list[float]]] = []
    stream = threading.Thread(target=lambda: result.append(ask(stream=True, max_tokens=350)))
    # It lasts longer than the run does on a busy machine.
    stream.start()
    run = router(router_upstreams=["10.77.0.11:30000"], router_model="tiny")
    assert run.changed["spark1"] > 0 and container()["id"] == first
    before = answered("spark2")
    assert [ask()[0] for _turn in range(4)] == [200] * 4 and stream.is_alive()
    assert answered("spark2") == before
    stream.join()
    assert result[0][0] == 200 and result[0][1].endswith(b"data: [DONE]\n\n")
    assert "10.77.0.12:30000" in router().text and container()["id"] == first


@pytest.mark.long
@pytest.mark.parametrize("kind", ["sglang-router", "vllm-router"])
def test_the_other_routers_do_the_same(kind: str) -> None:
    put_image("routers")
    other = {"router_kind": kind, "router_image": OTHERS}
    assert f"by {kind} on spark1 in front of 10.77.0.11:30000 and 10.77.0.12:30000, and has answered" in router(**other).text
    first = container()
    assert set(router(**other).changed.values()) == {0} and container()["id"] == first["id"]
    assert (first["host"]["ReadonlyRootfs"], first["host"]["CapDrop"], first["config"]["User"]) == (True, ["ALL"], "65534:65534")
    assert (ask()[0], ask(key="wrong")[0]) == (200, 401)
    status, data, times = ask(stream=True, max_tokens=8)
    assert status == 200 and data.endswith(b"data: [DONE]\n\n") and times[0] < times[-1] / 3
    # Keys that are wrong shut nobody out.
    assert [ask(key="wrong")[0] for _turn in range(8)] == [401] * 8
    assert set(lose_one_and_have_it_back()) == {200}
    assert "pair is at http://10.77.0.11:8080/v1, by nginx" in router().text


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (
            {"router_upstreams": ["no-such-host.invalid:30000"]},
            'nginx does not take the configuration: host not found in upstream "no-such-host.invalid:30000"',
        ),
        ({"router_port": 30000}, "Port 30000 of spark1 is a replica's: set router_port to another one."),
        ({"router_port": 25000, "router_upstreams": ["10.77.0.12:30000"]}, "Port 25000 of spark1 is taken by container pair-r0-rank0: set router_port to one"),
    ],
)
def test_what_can_not_be_is_refused_and_what_runs_goes_on(wrong: dict[str, t.Any], told: str) -> None:
    before = container()
    run = router(code=2, **wrong)
    assert told in run.text and set(run.changed.values()) == {0}, run.output
    assert container() == before and ask()[0] == 200


def test_it_goes_with_the_deployment() -> None:
    run = play.playbook("playbooks/stop.yml", extra={"deployment": DEPLOYMENT})
    assert run.code == 0, run.output
    assert f"{DEPLOYMENT}-router" not in play.containers("spark1") and play.node("spark1", "ls /etc/sparkstack/router") == ""
    again = router(router_state="absent")
    assert set(again.changed.values()) == {0}
