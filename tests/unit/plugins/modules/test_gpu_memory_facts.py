# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The module with a scripted nvidia-smi, a /proc of its own and a Docker that answers or doesn't."""

from __future__ import annotations

import pathlib
import typing as t

import pytest

from ansible_collections.sparkstack.inference.plugins.module_utils._docker_api import DockerUnreachable
from ansible_collections.sparkstack.inference.plugins.modules import gpu_memory_facts

ID = "4f1c2d0e5b8a7963" * 4
GB10 = "0, GPU-a, 580.95.05, [N/A], [N/A], [N/A], 0, 4.70, [N/A], NVIDIA GB10\n"
APPS = "GPU-a, 1832, 12800, sglang::scheduler_TP0\nGPU-a, 99, 10, gone\n"
DRIVER = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n"
KEYS = {
    "unified", "total_bytes", "free_bytes", "available_bytes", "page_cache_bytes", "swap_total_bytes",
    "swap_free_bytes", "gpus", "processes", "gathered_at",
}  # fmt: skip


class Failed(Exception):
    pass


class FakeModule:
    """Stands in for AnsibleModule: answers commands from a table by a word of theirs."""

    def __init__(self, answers: dict[str, tuple[int, str, str] | OSError], programs: t.Container[str] = ()) -> None:
        self.params = {"timeout": 7, "docker_socket": "/nowhere.sock"}
        self.answers, self.programs = answers, programs
        self.warnings: list[str] = []
        self.commands: list[list[str]] = []

    def get_bin_path(self, name: str) -> str | None:
        return f"/usr/bin/{name}" if name in self.programs else None

    def run_command(self, command: list[str], **_options: t.Any) -> tuple[int, str, str]:
        self.commands.append(command)
        answer = next(answer for word, answer in self.answers.items() if word in " ".join(command))
        if isinstance(answer, OSError):
            raise answer
        return answer

    def warn(self, message: str) -> None:
        self.warnings.append(message)

    def fail_json(self, msg: str) -> t.NoReturn:
        raise Failed(msg)


@pytest.fixture
def proc(tmp_path: pathlib.Path) -> pathlib.Path:
    (tmp_path / "meminfo").write_text("MemTotal: 1000 kB\nMemFree: 400 kB\nMemAvailable: 900 kB\n")
    folder = tmp_path / "1832"
    folder.mkdir()
    (folder / "cgroup").write_text(f"0::/system.slice/docker-{ID}.scope\n")
    (folder / "status").write_text("Uid:\t0\t0\t0\t0\n")
    (folder / "comm").write_text("sglang::schedul\n")
    return tmp_path


def gather(module: FakeModule, proc: pathlib.Path, docker: t.Any = None) -> dict[str, t.Any]:
    subject = gpu_memory_facts.GpuMemory(t.cast("t.Any", module), str(proc))
    if docker is not None:
        subject.docker = docker
    facts = subject.facts()
    assert facts.keys() == KEYS
    return facts


class Docker:
    def __init__(self, found: dict[str, t.Any] | None) -> None:
        self.found = found
        self.asked: list[str] = []

    def container(self, name: str) -> dict[str, t.Any] | None:
        self.asked.append(name)
        return self.found


def both(gpus: tuple[int, str, str], apps: tuple[int, str, str] = (0, APPS, "")) -> dict[str, t.Any]:
    return {"--query-gpu": gpus, "--query-compute-apps": apps}


def test_a_process_with_its_container(proc: pathlib.Path) -> None:
    module = FakeModule(both((0, GB10, "")), {"nvidia-smi", "timeout"})
    facts = gather(module, proc, Docker({"Name": "/qwen", "Config": {"Image": "lmsysorg/sglang:v0.5.17"}}))
    assert (facts["unified"], facts["total_bytes"], facts["free_bytes"]) == (True, 1000 * 1024, 400 * 1024)
    assert facts["processes"] == [
        {
            "pid": 1832,
            "name": "sglang::scheduler_TP0",
            "user": "root",
            "gpu_uuid": "GPU-a",
            "used_bytes": 12800 * 1024 * 1024,
            "container": {"id": ID, "name": "qwen", "image": "lmsysorg/sglang:v0.5.17"},
        },
        # ended between the two looks
        {"pid": 99, "name": "gone", "user": None, "gpu_uuid": "GPU-a", "used_bytes": 10485760, "container": None},
    ]
    assert module.warnings == []
    assert module.commands[0][:3] == ["/usr/bin/timeout", "--kill-after=2", "7"]


def test_a_container_that_docker_does_not_know(proc: pathlib.Path) -> None:
    docker = Docker(None)
    facts = gather(FakeModule(both((0, GB10, "")), {"nvidia-smi"}), proc, docker)
    assert facts["processes"][0]["container"] == {"id": ID, "name": None, "image": None}
    assert docker.asked == [ID]


def test_docker_down_is_said_once(proc: pathlib.Path) -> None:
    class Down:
        def container(self, _name: str) -> None:
            raise DockerUnreachable("Docker does not answer on /nowhere.sock: No such file.")

    apps = (0, APPS + "GPU-a, 1832, 9, again\n", "")
    module = FakeModule(both((0, GB10, ""), apps), {"nvidia-smi"})
    facts = gather(module, proc, Down())
    assert facts["processes"][0]["container"] == {"id": ID, "name": None, "image": None}
    assert module.warnings == ["Containers are returned without name and image: Docker does not answer on /nowhere.sock: No such file."]


def test_without_nvidia_smi(proc: pathlib.Path) -> None:
    module = FakeModule({})
    facts = gather(module, proc)
    assert (facts["gpus"], facts["processes"], facts["unified"]) == ([], [], False)
    assert (facts["total_bytes"], facts["available_bytes"]) == (1000 * 1024, 900 * 1024)
    assert (module.commands, module.warnings) == ([], [])


@pytest.mark.parametrize(
    ("answer", "warning"),
    [
        ((6, "No devices were found", ""), None),
        ((9, DRIVER, ""), "/usr/bin/nvidia-smi --query-gpu failed with exit code 9: " + DRIVER.strip()),
        (
            (255, "ERROR: Option --query-gpu is not recognized. Please run 'nvidia-smi -h'.\n\n", ""),
            "/usr/bin/nvidia-smi --query-gpu failed with exit code 255: ERROR: Option --query-gpu is not recognized. Please run 'nvidia-smi -h'.",
        ),
        ((124, "", ""), "/usr/bin/nvidia-smi --query-gpu failed with exit code 124: It did not answer within 7 seconds."),
        ((18, "", ""), "/usr/bin/nvidia-smi --query-gpu failed with exit code 18: It said nothing."),
        (OSError(8, "Exec format error"), "exit code 126: [Errno 8] Exec format error"),
    ],
)
def test_trouble_is_a_warning(proc: pathlib.Path, answer: t.Any, warning: str | None) -> None:
    module = FakeModule(both(answer), {"nvidia-smi", "timeout"})
    facts = gather(module, proc)
    assert (facts["gpus"], facts["total_bytes"]) == ([], 1000 * 1024)
    assert [w for w in module.warnings if warning and warning in w] == module.warnings
    assert bool(module.warnings) is bool(warning)


def test_fields_that_the_driver_does_not_know_are_left_out(proc: pathlib.Path) -> None:
    module = FakeModule(
        {
            "power.draw": (2, 'Field "power.draw" is not a valid field to query.\n\n', ""),
            "mig.mode.current": (2, 'Field "mig.mode.current" is not a valid field to query.\n\n', ""),
            "--query-gpu": (0, "0, GPU-a, 450.80, 16160, 10, 16150, 3, Tesla V100\n", ""),
            "--query-compute-apps": (0, "", ""),
        },
        {"nvidia-smi"},
    )
    facts = gather(module, proc)
    assert (facts["gpus"][0]["name"], facts["gpus"][0]["power_watts"]) == ("Tesla V100", None)
    assert facts["free_bytes"] == 16150 * 1024 * 1024
    assert len(module.commands) == 4
    assert module.warnings == []


def test_mig_a_mute_card_and_a_stray_line_are_warned_of(proc: pathlib.Path) -> None:
    text = (
        "0, GPU-a, 550.1, 81559, 0, 81000, [N/A], 60, Enabled, NVIDIA A100\n"
        "1, GPU-b, 550.1, [Unknown Error], 0, 0, 0, 60, Disabled, NVIDIA A100\n"
        "WARNING: infoROM is corrupted at gpu 0000:01:00.0\n"
    )
    module = FakeModule(both((0, text, ""), (0, "", "")), {"nvidia-smi"})
    gather(module, proc)
    assert module.warnings == [
        "nvidia-smi wrote a line that is no GPU and was left out: WARNING: infoROM is corrupted at gpu 0000:01:00.0",
        "GPU 0 is split into instances (MIG): the numbers are those of the whole card.",
        "GPU 1 (NVIDIA A100) does not say how much memory it has, so it counts as none: look at nvidia-smi on the node.",
    ]


def test_no_proc_fails_with_one_sentence(tmp_path: pathlib.Path) -> None:
    with pytest.raises(Failed, match=r"^There is no MemTotal in /proc/meminfo: run this on a Linux node"):
        gather(FakeModule({}), tmp_path)


def test_user_name() -> None:
    assert gpu_memory_facts.user_name(0) == "root"
    assert gpu_memory_facts.user_name(4_000_000_000) == "4000000000"


def test_who_holds_the_memory(tmp_path: pathlib.Path, proc: pathlib.Path) -> None:
    """The node's root is where its /proc hangs; the container's own memory stands in its control group."""
    (tmp_path / "root").mkdir()
    proc.joinpath("1832").rename(tmp_path / "root" / "moved")
    here = tmp_path / "root" / "proc"
    here.mkdir()
    (tmp_path / "root" / "moved").rename(here / "1832")
    (here / "meminfo").write_text("MemTotal: 1000 kB\nMemFree: 400 kB\nMemAvailable: 900 kB\nCached: 500000 kB\n")
    group = tmp_path / "root" / "sys" / "fs" / "cgroup" / "system.slice" / f"docker-{ID}.scope"
    group.mkdir(parents=True)
    (group / "memory.stat").write_text(f"anon {3 << 30}\nfile 77\nshmem {1 << 30}\n")

    class Listing(Docker):
        def get(self, path: str) -> list[dict[str, t.Any]]:
            assert path == "/containers/json"
            return [{"Id": ID, "Names": ["/qwen-rank0"], "Image": "sglang:1"}]

    module = FakeModule(both((0, GB10, "")), {"nvidia-smi"})
    module.params["holders"] = True
    subject = gpu_memory_facts.GpuMemory(t.cast("t.Any", module), str(here))
    subject.docker = t.cast("t.Any", Listing(None))
    facts = subject.facts()
    assert facts.keys() == KEYS | {"holders"}
    held = {
        "kind": "container",
        "name": "qwen-rank0",
        "image": "sglang:1",
        "pid": None,
        "bytes": (4 << 30) + 12800 * 1024 * 1024,
        "gpu_bytes": 12800 * 1024 * 1024,
    }
    assert facts["holders"] == [held]
