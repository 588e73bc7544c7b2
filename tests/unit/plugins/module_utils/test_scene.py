# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The scene around a container: what of it is read when, from files, sockets and the kernel's log."""

from __future__ import annotations

import os
import time
import typing as t

import pytest

from ansible_collections.sparkstack.inference.plugins.module_utils import _kernel, _reach
from ansible_collections.sparkstack.inference.plugins.module_utils._scene import docker_started, resolve, scene, started
from ansible_collections.sparkstack.inference.tests.unit.plugins.module_utils.test_kernel import INVOKED, OTHER, OWN, chosen, killed, kmsg
from ansible_collections.sparkstack.inference.tests.unit.plugins.module_utils.test_sockets import TCP

READING = {"claims": {"rendezvous": "192.168.200.11:29501"}}
GROUP = f"system.slice/docker-{OWN}.scope"


def container(pid: int = 42, network: str = "host", **environment: str) -> dict[str, t.Any]:
    return {
        "Id": OWN,
        "State": {"Running": bool(pid), "Pid": pid},
        "Config": {"Env": ["PATH=/bin", "EMPTY", *(f"{name}={value}" for name, value in environment.items())]},
        "HostConfig": {"NetworkMode": network},
    }


def node(kills: int, *messages: str) -> dict[str, str]:
    return {
        "proc/42/cgroup": f"0::/{GROUP}\n",
        "proc/42/comm": "python3\n",
        f"sys/fs/cgroup/{GROUP}/cpu.stat": "usage_usec 1\n",
        f"sys/fs/cgroup/{GROUP}/memory.events": f"oom 1\noom_kill {kills}\n",
        f"sys/fs/cgroup/{GROUP}/cgroup.procs": "42\n",
        "dev/kmsg": kmsg(*messages),
    }


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kernel's logs that were read."""
    seen: list[str] = []
    real = _kernel.read
    monkeypatch.setattr(_kernel, "read", lambda path: (seen.append(path), real(path))[1])
    monkeypatch.setattr(_kernel, "clock_start", lambda: 1000.0)
    return seen


def test_the_kernels_log_is_read_when_a_kill_is_counted_and_at_the_end(folder_of: t.Callable[[dict[str, str]], str], reads: list[str]) -> None:
    root = folder_of(node(0))
    found, state = scene(container(), None, 1050.0, {}, root=root)
    assert (found["oom_kills"], found["kernel"], reads) == (0, [], [])

    folder_of(node(1, INVOKED, chosen("/" + GROUP, 77), killed(77), INVOKED, chosen(f"/docker/{OTHER}", 78), killed(78)))
    for _look in range(2):
        found, state = scene(container(), None, 1050.0, state, root=root)
        assert (found["oom_kills"], [(m["pid"], m["cause"], m["time"]) for m in found["kernel"]]) == (1, [(77, "oom", 1101.0)])
    assert len(reads) == 1

    # It has ended: the control group is gone, and the log has one more that nobody had counted.
    folder_of({"dev/kmsg": kmsg(INVOKED, chosen("/" + GROUP, 77), killed(77), INVOKED, chosen("/" + GROUP, 42, "python3"), killed(42, "python3"))})
    for _look in range(2):
        found, state = scene(container(0), None, 1050.0, state, root=root)
        assert (found["oom_kills"], [m["pid"] for m in found["kernel"]]) == (2, [77, 42])
    assert len(reads) == 2


def test_a_container_that_had_ended_before(folder_of: t.Callable[[dict[str, str]], str], reads: list[str]) -> None:
    root = folder_of({"dev/kmsg": kmsg(INVOKED, chosen("/" + GROUP, 42), killed(42))})
    assert scene(container(0), None, 1050.0, {}, root=root)[0]["oom_kills"] == 1
    # The kill was that of an earlier start.
    assert scene(container(0), None, 1200.0, {}, root=root)[0]["oom_kills"] == 0
    os.unlink(f"{root}/dev/kmsg")
    found, state = scene(container(0), None, 1050.0, {}, root=root)
    assert (found["oom_kills"], found["kernel"]) == (None, [])
    # The count of the last look before it ended stands.
    assert scene(container(0), None, 1050.0, dict(state, kills=1, running=True), root=root)[0]["oom_kills"] == 1
    # One that was never started has nothing in the kernel's log.
    before = len(reads)
    assert scene(container(0), None, None, {}, root=root)[0]["kernel"] == []
    assert len(reads) == before


def listener(folder_of: t.Callable[[dict[str, str]], str], pid: int, identity: str, name: str) -> str:
    root = folder_of({f"proc/{pid}/comm": f"{name}\n", f"proc/{pid}/cgroup": f"0::/system.slice/docker-{identity}.scope\n"})
    os.makedirs(f"{root}/proc/{pid}/fd", exist_ok=True)
    os.symlink("socket:[41235]", f"{root}/proc/{pid}/fd/9")
    return root


def test_the_sockets_at_the_rendezvous(folder_of: t.Callable[[dict[str, str]], str], monkeypatch: pytest.MonkeyPatch) -> None:
    root = folder_of({**node(0), "proc/42/net/tcp": TCP})
    listener(folder_of, 42, OWN, "python3")
    found, state = scene(container(), READING, 1050.0, {}, root=root)
    assert found["sockets"] == {
        "port": 29501,
        "listening": True,
        "owner": {"pid": 42, "process": "python3", "container": OWN, "own": True},
        "connected": ["192.168.200.12"],
        "dialing": ["192.168.200.11"],
    }
    # Who owns the listener is not looked up again.
    os.unlink(f"{root}/proc/42/fd/9")
    assert scene(container(), READING, 1050.0, state, root=root)[0]["sockets"] == found["sockets"]
    assert scene(container(), READING, 1050.0, {}, root=root)[0]["sockets"]["owner"] is None
    for reading in (None, {}, {"claims": {}}, {"claims": {"rendezvous": "env://"}}):
        assert scene(container(), reading, 1050.0, state, root=root)[0]["sockets"] is None


def test_somebody_else_has_the_port_of_a_container_that_has_ended(folder_of: t.Callable[[dict[str, str]], str]) -> None:
    root = folder_of({"proc/self/net/tcp": TCP, "dev/kmsg": ""})
    listener(folder_of, 99, OTHER, "sglang::schedul")
    # Of a process that is hidden from this user, nobody is said not to listen.
    assert scene(container(77), READING, 1050.0, {}, root=root)[0]["sockets"] is None
    sockets = scene(container(0), READING, 1050.0, {}, root=root)[0]["sockets"]
    assert sockets["owner"] == {"pid": 99, "process": "sglang::schedul", "container": OTHER, "own": False}
    assert scene(container(0, "bridge"), READING, 1050.0, {}, root=root)[0]["sockets"] is None


@pytest.mark.parametrize(
    ("rendezvous", "environment", "interface"),
    [
        ("192.168.200.12:29501", {}, "enp1s0f0np0"),
        ("spark1:25000", {}, "enp1s0f0np0"),
        ("spark9:25000", {"HOST_IP": "10.77.0.11"}, "enP7s7"),
        ("", {"VLLM_HOST_IP": "192.168.200.11", "HOST_IP": "10.77.0.11"}, "enp1s0f0np0"),
        ("", {"SGLANG_HOST_IP": "192.168.200.11"}, "enp1s0f0np0"),
        ("", {}, None),
    ],
)
def test_the_fabric(folder_of: t.Any, monkeypatch: pytest.MonkeyPatch, rendezvous: str, environment: dict[str, str], interface: str | None) -> None:
    own = [_reach.Address("enP7s7", "10.77.0.11", 24), _reach.Address("enp1s0f0np0", "192.168.200.11", 24)]
    monkeypatch.setattr(_reach, "addresses", lambda: own)
    root = folder_of({"etc/hosts": "127.0.1.1 spark1\n192.168.200.11 spark1.lan spark1 # the head\n"})
    found = scene(container(**environment), {"claims": {"rendezvous": rendezvous}}, 1.0, {}, root=root)[0]
    assert (found["fabric"] or {}).get("interface") == interface
    assert found["reach"] == {}


def test_the_peers_are_asked_from_the_fabrics_address(folder_of: t.Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_reach, "addresses", lambda: [_reach.Address("enp1s0f0np0", "192.168.200.11", 24)])
    asked: list[t.Any] = []
    monkeypatch.setattr(_reach, "reach", lambda *words: asked.append(words) or {"192.168.200.12": {"small": 0.1, "large": None}})
    root = folder_of({"sys/class/net/enp1s0f0np0/mtu": "9000\n"})
    # Also without a container: the peers' own subnet tells the fabric then.
    found, state = scene(None, None, None, {}, ["192.168.200.12"], root)
    assert asked == [(["192.168.200.12"], "192.168.200.11", 9000)]
    assert (found["reach"], found["oom_kills"]) == ({"192.168.200.12": {"small": 0.1, "large": None, "neighbour": None}}, None)
    assert found["fabric"]["interface"] == "enp1s0f0np0"


@pytest.mark.parametrize(
    ("host", "address"),
    [("192.168.200.11", "192.168.200.11"), ("fd00::1", "fd00::1"), ("spark1", "192.168.200.11"), ("spark9", None), ("six", None), ("", None)],
)
def test_a_hosts_address(folder_of: t.Any, host: str, address: str | None) -> None:
    root = folder_of({"etc/hosts": "127.0.1.1 spark1\nfd00::6 six\n\n192.168.200.11\tspark1.lan spark1\n# 10.0.0.9 spark9\n"})
    assert resolve(host, root) == address


def test_the_start_of_the_node_and_of_docker(folder_of: t.Callable[[dict[str, str]], str]) -> None:
    ticks = os.sysconf("SC_CLK_TCK")
    stat = "{} ({}) S 1 1 1 0 -1 4194560 1 1 1 1 1 1 1 1 20 0 30 0 {} 1 1 1\n"
    root = folder_of(
        {
            "proc/1/stat": stat.format(1, "systemd", 0),
            "proc/77/stat": stat.format(77, "odd) name", 40 * ticks),
            "proc/77/comm": "dockerd\n",
            "proc/uptime": "100.00 1.0\n",
            "run/docker.pid": "77",
        }
    )
    assert started(1, root) == pytest.approx(time.time() - 100, abs=0.5)
    assert docker_started(root) == pytest.approx(time.time() - 60, abs=0.5)
    # The file has outlived its daemon, and another process has the number.
    folder_of({"proc/77/comm": "sshd\n"})
    assert docker_started(root) is None
    assert started(5, root) is None
    assert abs((started(os.getpid()) or 0) - time.time()) < 3600
