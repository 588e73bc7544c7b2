# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The close look as a whole: a rank that waits, one that has ended, one that is paused, none at all, and parts that can't be had."""

from __future__ import annotations

import importlib
import pathlib
import time
import typing as t

import pytest
import yaml

from ansible_collections.sparkstack.inference.plugins.module_utils import _closeup
from ansible_collections.sparkstack.inference.plugins.module_utils._docker_api import DockerError, DockerUnreachable, Executed

ID = "34aa5170b20e1a553373055b0ff649cdac0695ae3fc98ffe3d407840212a8bbb"
OTHER = "4f1c2d0e5b8a7963" * 4
GIB = 1 << 30
DUMP = 'Process 25: VLLM::Worker\nPython v3.11.2 (/usr/bin/python3.11)\n\nThread 25 (idle): "MainThread"\n    _create_c10d_store (rendezvous.py:199)\n'
STAT = "{0} ({1}) S 1 {0} {0} 0 -1 0 0 0 0 0 {2} 0 0 0 20 0 2 0 1 2 3\n"
GPU = "0, GPU-a, [N/A], [N/A], 96, 20.11, [N/A], NVIDIA GB10\n"
APPS = "GPU-a, 703, 30720, VLLM::Worker\nGPU-a, 801, 40960, /usr/bin/python3\nGPU-a, 801, 1024, /usr/bin/python3\n"
PARTS = ("containers", "stacks", "listeners", "node", "kernel", "gpus", "memory", "holders", "processes")


class Docker:
    def __init__(self, **state: t.Any) -> None:
        self.state = {"Running": True, "Paused": False, "Pid": 703, "StartedAt": "2026-11-30T03:35:55.5Z", **state}
        self.settings: dict[str, t.Any] = {"NetworkMode": "host", "Memory": 4 * GIB}
        self.arguments = ["serve", "/m", "--port", "65501", "--api-key", "topsecretkey12345"]
        self.exists = True
        self.executed = 0

    def container(self, name: str) -> dict[str, t.Any] | None:
        assert name == "rank"
        return {"Id": ID, "State": self.state, "Config": {}, "HostConfig": self.settings, "Path": "vllm", "Args": self.arguments} if self.exists else None

    def get(self, path: str) -> list[dict[str, t.Any]]:
        assert path == "/containers/json"
        ports = [{"PublicPort": 65502, "PrivatePort": 8000}, {"PrivatePort": 9000}]
        return [
            {"Id": ID, "Names": ["/rank"], "Image": "vllm:1"},
            {"Id": OTHER, "Names": ["/old"], "Image": "sha256:0000", "Ports": ports},
        ]

    def execute(self, *_arguments: t.Any, **_options: t.Any) -> Executed:
        self.executed += 1
        return Executed(0, DUMP, "")


class Module:
    def __init__(self, gpu: tuple[int, str, str] | None = (0, GPU, ""), apps: str = APPS) -> None:
        self.gpu, self.apps = gpu, apps
        self.commands: list[list[str]] = []

    def get_bin_path(self, name: str) -> str | None:
        return "/usr/bin/nvidia-smi" if name == "nvidia-smi" and self.gpu else None

    def run_command(self, command: list[str], **_options: t.Any) -> tuple[int, str, str]:
        assert self.gpu
        self.commands.append(command)
        return (0, self.apps, "") if "compute-apps" in command[1] else self.gpu


@pytest.fixture
def root(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    monkeypatch.setattr(_closeup, "_SAMPLE", 0.1)
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 127600748 kB\nMemAvailable: 1000 kB\nCached: 2097152 kB\nShmem: 0 kB\n")
    group = tmp_path / "sys/fs/cgroup/memory/docker" / ID
    group.mkdir(parents=True)
    (group / "memory.stat").write_text("total_rss 1192857600\ntotal_shmem 8192\n")
    (group / "memory.limit_in_bytes").write_text("4294967296\n")
    for pid, name, inner, identity in ((703, "VLLM::Worker", 25, ID), (704, "tini", 1, ID), (801, "python3", 9, OTHER)):
        folder = tmp_path / "proc" / str(pid)
        folder.mkdir()
        (folder / "cgroup").write_text(f"4:memory:/docker/{identity}\n0::/docker/{identity}\n")
        (folder / "stat").write_text(STAT.format(pid, name, 100))
        (folder / "status").write_text(f"PPid:\t1\nNSpid:\t{pid}\t{inner}\nThreads:\t2\nRssAnon:\t1024 kB\nRssShmem:\t0 kB\n")
        (folder / "wchan").write_text("hrtimer_nanosleep")
        (folder / "cmdline").write_text(f"{name}\0\0")
        (folder / "comm").write_text(f"{name}\n")
        (folder / "exe").symlink_to("/usr/bin/python3.11" if name != "tini" else "/sbin/tini")
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/kmsg").write_text("")
    return tmp_path


def look(root: pathlib.Path, docker: Docker | None = None, module: Module | None = None, timeout: float = 10, **options: t.Any) -> dict[str, t.Any]:
    found = _closeup.Look(t.cast("t.Any", docker or Docker()), module or Module(), "rank", timeout, str(root)).take(**options)
    documented = yaml.safe_load(importlib.import_module("ansible_collections.sparkstack.inference.plugins.modules.init_phase_closeup").RETURN)
    assert set(found) == set(documented["closeup"]["contains"])
    return found


def problems(found: dict[str, t.Any]) -> dict[str, str]:
    return {part: found[f"{part}_problem"] for part in PARTS if found[f"{part}_problem"]}


def test_a_rank_that_waits(root: pathlib.Path) -> None:
    found = look(root)
    assert problems(found) == {}
    assert (found["exists"], found["running"], found["paused"]) == (True, True, False)
    waiting = {"state": "S", "threads": 2, "waits_in": "hrtimer_nanosleep", "cpu_percent": 0.0}
    assert found["processes"] == [
        {"pid": 703, "container_pid": 25, "name": "VLLM::Worker", **waiting},
        {"pid": 704, "container_pid": 1, "name": "tini", **waiting},
    ]
    assert [(stack["pid"], stack["name"]) for stack in found["stacks"]] == [(703, "VLLM::Worker")]
    assert found["gpus"] == [
        {"index": 0, "name": "NVIDIA GB10", "utilization_percent": 96, "power_watts": 20.11, "power_limit_watts": None, "total_bytes": None, "used_bytes": None}
    ]
    assert found["memory"] == {
        "total_bytes": 127600748 << 10,
        "available_bytes": 1000 << 10,
        "container_bytes": 1192865792,
        "container_limit_bytes": 4 * GIB,
    }
    # The processes of the other container are added up, and what they have on the GPU is counted with them.
    assert [(holder["kind"], holder["name"], holder["bytes"], holder["gpu_bytes"], holder["own"]) for holder in found["holders"]] == [
        ("container", "old", 41 * GIB + (1 << 20), 41 * GIB, False),
        ("container", "rank", 30 * GIB + 1192865792, 30 * GIB, True),
        ("page_cache", None, 2 * GIB, 0, False),
    ]
    assert "topsecret" not in str(found)


def test_the_busiest_first(root: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda _seconds: (root / "proc/704/stat").write_text(STAT.format(704, "tini", 150)))
    found = look(root)["processes"]
    assert [entry["pid"] for entry in found] == [704, 703] and found[0]["cpu_percent"] > 100


def test_a_rank_that_has_ended(root: pathlib.Path) -> None:
    docker = Docker(Running=False, Pid=0)
    found = look(root, docker)
    assert (found["running"], found["processes"], found["stacks"], docker.executed) == (False, [], [], 0)
    assert problems(found) == {}
    assert found["memory"]["container_bytes"] is None and found["memory"]["container_limit_bytes"] == 4 * GIB
    assert found["gpus"] and found["holders"][0]["name"] == "old"


def test_a_paused_rank(root: pathlib.Path) -> None:
    docker = Docker(Paused=True)
    found = look(root, docker)
    assert (found["paused"], found["stacks"], docker.executed) == (True, [], 0)
    assert problems(found) == {"stacks": "The container is paused, so no stacks were taken: docker unpause goes on with it."}
    assert len(found["processes"]) == 2


def test_no_container(root: pathlib.Path) -> None:
    docker = Docker()
    docker.exists = False
    found = look(root, docker)
    assert (found["exists"], found["running"], found["processes"], found["sockets"]) == (False, False, [], None)
    assert problems(found) == {} and found["memory"]["container_limit_bytes"] is None


def test_no_gpu(root: pathlib.Path) -> None:
    found = look(root, module=Module(gpu=None))
    assert found["gpus"] == [] and problems(found) == {}


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((9, "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n", ""), "failed with exit code 9: NVIDIA-SMI has failed"),
        ((0, "what, is, this\n\x00\n", ""), None),
        ((6, "No devices were found\n", ""), None),
    ],
)
def test_an_odd_answer_of_nvidia_smi(root: pathlib.Path, answer: tuple[int, str, str], said: str | None) -> None:
    found = look(root, module=Module(answer))
    assert found["gpus"] == []
    assert said in found["gpus_problem"] if said else found["gpus_problem"] is None
    assert found["holders"][0]["kind"] == "page_cache"


def test_processes_that_cannot_be_seen(root: pathlib.Path) -> None:
    for pid in (703, 704):
        (root / f"proc/{pid}/cgroup").unlink()
    found = look(root)
    assert found["processes"] == [] and "run this as root" in found["processes_problem"]
    assert "no stacks were taken" in found["stacks_problem"]


def test_a_part_that_fails_leaves_the_others(root: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_arguments: t.Any) -> t.NoReturn:
        raise RuntimeError("token=hf_abcdefghijklmnop is no number")

    monkeypatch.setattr(_closeup._scene, "scene", broken)
    docker = Docker()
    monkeypatch.setattr(docker, "get", lambda _path: (_ for _ in ()).throw(DockerError("Docker is tired.")))
    (root / "proc/meminfo").write_text("")
    found = look(root, docker)
    told = problems(found)
    assert told.pop("node") == "This could not be had: token=*** is no number."
    assert told.pop("containers") == "This could not be had: Docker is tired."
    assert told.pop("memory") == "This could not be had: 'MemTotal'."
    assert told == {}
    assert found["fabric"] is None and found["reach"] is None and found["memory"] is None
    assert found["holders"][0]["name"] == OTHER[:12] and len(found["processes"]) == 2


def test_the_time_is_over(root: pathlib.Path) -> None:
    found = look(root, timeout=0)
    assert set(problems(found)) == set(PARTS) and found["processes"] == []
    assert found["gpus_problem"] == "This could not be had: the time was over before."


def test_docker_does_not_answer(root: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    docker = Docker()
    monkeypatch.setattr(docker, "container", lambda _name: (_ for _ in ()).throw(DockerUnreachable("Docker does not answer.")))
    with pytest.raises(DockerUnreachable):
        look(root, docker)


def test_messages_of_the_kernel(root: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of anybody's lack of memory and of GPUs, and of links only the fabric's."""
    monkeypatch.setattr(_closeup._kernel, "clock_start", lambda: 1000.0)
    monkeypatch.setattr(_closeup._scene, "scene", lambda *_arguments: ({"fabric": {"interface": "enp1s0f0np0"}}, {}))
    log = [
        "4,1,100000000,-;Memory cgroup out of memory: Killed process 9 (long ago) total-vm:1kB",
        f"4,2,200000000,-;oom-kill:constraint=CONSTRAINT_NONE,global_oom,task_memcg=/docker/{OTHER},task=python3,pid=801,uid=0",
        "4,3,200000001,-;Out of memory: Killed process 801 (python3) total-vm:628880kB",
        "4,4,201000000,-;NVRM: Xid (PCI:000f:01:00): 79, pid=801, name=python3, GPU has fallen off the bus.",
        "4,5,202000000,-;mlx5_core 0000:01:00.0 enp1s0f0np0: Link down",
        "4,6,202000000,-;r8169 0007:01:00.0 enP7s7: Link is Down",
        "6,7,203000000,-;docker0: port 1(veth1) entered disabled state",
    ]
    (root / "dev/kmsg").write_text("\n".join(log) + "\n")
    found = look(root, since=1150.0)
    assert [(message["kind"], message["time"], message["pid"], message["interface"]) for message in found["kernel"]] == [
        ("oom", 1200.0, 801, None),
        ("gpu", 1201.0, 801, None),
        ("link", 1202.0, None, "enp1s0f0np0"),
    ]
    assert found["kernel"][0]["container"] == OTHER and found["kernel_problem"] is None


def test_no_messages_of_the_kernel(root: pathlib.Path) -> None:
    (root / "dev/kmsg").unlink()
    assert look(root)["kernel_problem"] == "The kernel's messages can't be read: run this as root."


@pytest.mark.parametrize(
    ("arguments", "settings", "rendezvous", "expected"),
    [
        (["serve", "--port", "8000", "--master-port=29501"], {"NetworkMode": "host"}, "127.0.0.1:29501", [8000, 29501]),
        (["-c", "exec vllm serve /m --port 8000 --master-port 29501"], {"NetworkMode": "host"}, "192.0.2.1:29501", [8000]),
        (["-m", "sglang.launch_server", "--dist-init-addr", "192.0.2.1:25000", "--nccl-port", "26000"], {"NetworkMode": "host"}, "", [26000]),
        (["serve", "--port", "8000"], {"NetworkMode": "host"}, "127.0.0.1:29501", [8000, 29501]),
        (
            ["serve", "--port", "8000"],
            {"NetworkMode": "bridge", "PortBindings": {"8000/tcp": [{"HostPort": "65502"}], "1/tcp": None}},
            "127.0.0.1:29501",
            [65502],
        ),
        (["serve"], {"NetworkMode": "bridge", "PortBindings": None}, "", []),
    ],
)
def test_the_ports_that_it_wants(
    root: pathlib.Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], settings: dict[str, t.Any], rendezvous: str, expected: list[int]
) -> None:
    asked = []

    def listeners(ports: list[int], proc: str) -> list[dict[str, t.Any]]:
        asked.extend(ports)
        return [{"port": port, "pid": 5, "process": "docker-proxy", "container": None} for port in ports if port == 65502]

    monkeypatch.setattr(_closeup._sockets, "listeners", listeners)
    docker = Docker()
    docker.arguments, docker.settings = arguments, settings
    found = look(root, docker, rendezvous=rendezvous)
    assert asked == expected and found["listeners_problem"] is None
    # Docker's proxy belongs to the container whose port it publishes.
    taken = {"port": 65502, "pid": 5, "process": "docker-proxy", "container": OTHER, "container_name": "old", "own": False}
    assert found["listeners"] == ([taken] if 65502 in expected else [])
