# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The module with a scripted nvidia-smi, a /proc of its own and a Docker that answers or doesn't."""

from __future__ import annotations

import pathlib
import typing as t

import pytest

from ansible_collections.sparkstack.inference.plugins.module_utils import _gpu_memory
from ansible_collections.sparkstack.inference.plugins.module_utils._docker_api import DockerUnreachable

ID = "4f1c2d0e5b8a7963" * 4
GB10 = "0, GPU-a, 580.95.05, [N/A], [N/A], [N/A], 0, 4.70, [N/A], NVIDIA GB10\n"
APPS = "GPU-a, 1832, 12800, sglang::scheduler_TP0\nGPU-a, 99, 10, gone\n"
DRIVER = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n"
# What every option that it does not know gets, here those of the long answers.
OPTION = (255, "ERROR: Option -q is not recognized. Please run 'nvidia-smi -h'.\n\n", "")
KEYS = {
    "unified", "total_bytes", "free_bytes", "available_bytes", "page_cache_bytes", "swap_total_bytes",
    "swap_free_bytes", "gpus", "processes", "gathered_at", "problems",
    "shared_memory_bytes", "huge_page_bytes", "huge_page_free_bytes", "cma_total_bytes", "cma_free_bytes",
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
        answer = next((answer for word, answer in self.answers.items() if word in " ".join(command)), OPTION)
        if isinstance(answer, OSError):
            raise answer
        return answer

    def warn(self, message: str) -> None:
        self.warnings.append(message)

    def fail_json(self, msg: str) -> t.NoReturn:
        raise Failed(msg)


@pytest.fixture
def root(tmp_path: pathlib.Path) -> pathlib.Path:
    write(tmp_path, "proc/meminfo", "MemTotal: 1000 kB\nMemFree: 400 kB\nMemAvailable: 900 kB\n")
    process(tmp_path, 1832, f"0::/system.slice/docker-{ID}.scope\n", "sglang::schedul", "sglang::scheduler_TP0\0\0\0")
    return tmp_path


def write(root: pathlib.Path, path: str, content: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(content)


def process(root: pathlib.Path, pid: int, cgroup: str, comm: str, cmdline: str, status: str = "") -> None:
    write(root, f"proc/{pid}/cgroup", cgroup)
    write(root, f"proc/{pid}/status", f"Uid:\t0\t0\t0\t0\n{status}")
    write(root, f"proc/{pid}/comm", comm + "\n")
    write(root, f"proc/{pid}/cmdline", cmdline)


def gather(module: FakeModule, root: pathlib.Path, docker: t.Any = None) -> dict[str, t.Any]:
    subject = _gpu_memory.GpuMemory(module, str(root))
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


def test_a_process_with_its_container(root: pathlib.Path) -> None:
    module = FakeModule(both((0, GB10, "")), {"nvidia-smi", "timeout"})
    facts = gather(module, root, Docker({"Name": "/qwen", "Config": {"Image": "lmsysorg/sglang:v0.5.17"}}))
    assert (facts["unified"], facts["total_bytes"], facts["free_bytes"]) == (True, 1000 * 1024, 400 * 1024)
    assert facts["processes"] == [
        {
            "pid": 1832,
            "name": "sglang::scheduler_TP0",
            "user": "root",
            "command": "sglang::scheduler_TP0",
            "type": None,
            "gpu_uuid": "GPU-a",
            "mig_uuid": None,
            "used_bytes": 12800 * 1024 * 1024,
            "container": {"id": ID, "name": "qwen", "image": "lmsysorg/sglang:v0.5.17"},
        },
        # ended between the two looks
        {
            "pid": 99, "name": "gone", "user": None, "command": None, "type": None, "gpu_uuid": "GPU-a", "mig_uuid": None,
            "used_bytes": 10485760, "container": None,
        },
    ]  # fmt: skip
    assert (module.warnings, facts["problems"]) == ([], [])
    assert module.commands[0][:3] == ["/usr/bin/timeout", "--kill-after=2", "7"]


def test_a_container_that_docker_does_not_know(root: pathlib.Path) -> None:
    docker = Docker(None)
    facts = gather(FakeModule(both((0, GB10, "")), {"nvidia-smi"}), root, docker)
    assert facts["processes"][0]["container"] == {"id": ID, "name": None, "image": None}
    assert docker.asked == [ID]


def test_docker_down_is_said_once(root: pathlib.Path) -> None:
    class Down:
        def container(self, _name: str) -> None:
            raise DockerUnreachable("Docker does not answer on /nowhere.sock: No such file.")

    apps = (0, APPS + "GPU-a, 1832, 9, again\n", "")
    module = FakeModule(both((0, GB10, ""), apps), {"nvidia-smi"})
    facts = gather(module, root, Down())
    assert facts["processes"][0]["container"] == {"id": ID, "name": None, "image": None}
    assert module.warnings == ["Containers are returned without name and image: Docker does not answer on /nowhere.sock: No such file."]


def test_without_nvidia_smi(root: pathlib.Path) -> None:
    module = FakeModule({})
    facts = gather(module, root)
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
def test_trouble_is_a_warning(root: pathlib.Path, answer: t.Any, warning: str | None) -> None:
    module = FakeModule(both(answer), {"nvidia-smi", "timeout"})
    facts = gather(module, root)
    assert (facts["gpus"], facts["total_bytes"]) == ([], 1000 * 1024)
    assert [w for w in module.warnings if warning and warning in w] == module.warnings
    assert bool(module.warnings) is bool(warning)


def test_fields_that_the_driver_does_not_know_are_left_out(root: pathlib.Path) -> None:
    module = FakeModule(
        {
            "power.draw": (2, 'Field "power.draw" is not a valid field to query.\n\n', ""),
            "mig.mode.current": (2, 'Field "mig.mode.current" is not a valid field to query.\n\n', ""),
            "--query-gpu": (0, "0, GPU-a, 450.80, 16160, 10, 16150, 3, Tesla V100\n", ""),
            "--query-compute-apps": (0, "", ""),
        },
        {"nvidia-smi"},
    )
    facts = gather(module, root)
    assert (facts["gpus"][0]["name"], facts["gpus"][0]["power_watts"]) == ("Tesla V100", None)
    assert facts["free_bytes"] == 16150 * 1024 * 1024
    assert [command[1].partition("=")[0] for command in module.commands] == ["--query-gpu"] * 3 + ["-q", "--query-compute-apps"]
    assert module.warnings == []


def test_mig_a_mute_card_and_a_stray_line_are_told(root: pathlib.Path) -> None:
    text = (
        "0, GPU-a, 550.1, 81559, 0, 81000, [N/A], 60, Enabled, NVIDIA A100\n"
        "1, GPU-b, 550.1, [Unknown Error], 0, 0, 0, 60, Disabled, NVIDIA A100\n"
        "WARNING: infoROM is corrupted at gpu 0000:01:00.0\n"
    )
    module = FakeModule(both((0, text, ""), (0, "", "")), {"nvidia-smi"})
    facts = gather(module, root)
    told = [
        "GPU 0 (NVIDIA A100) is split into instances (MIG) that nvidia-smi did not list: the numbers are those of the whole card.",
        "GPU 1 (NVIDIA A100) does not say how much memory it has, so it counts as none.",
    ]
    assert module.warnings == ["nvidia-smi wrote a line that is no GPU and was left out: WARNING: infoROM is corrupted at gpu 0000:01:00.0", *told]
    assert [(problem["code"], problem["message"]) for problem in facts["problems"]] == [("mig_unknown", told[0]), ("gpu_memory_unknown", told[1])]
    assert facts["total_bytes"] == 81559 * 1024 * 1024


def test_no_proc_fails_with_one_sentence(tmp_path: pathlib.Path) -> None:
    with pytest.raises(Failed, match=r"^There is no MemTotal in /proc/meminfo: run this on a Linux node"):
        gather(FakeModule({}), tmp_path)


def test_user_name() -> None:
    assert _gpu_memory.user_name(0) == "root"
    assert _gpu_memory.user_name(4_000_000_000) == "4000000000"
    assert _gpu_memory.user_name(1 << 70) == str(1 << 70)


class Listing(Docker):
    def get(self, path: str) -> list[dict[str, t.Any]]:
        assert path == "/containers/json"
        return [{"Id": ID, "Names": ["/qwen-rank0"], "Image": "sglang:1"}]


def test_who_holds_the_memory(root: pathlib.Path) -> None:
    """The container's own memory stands in its control group; who runs outside of containers is named with how to end it."""
    write(root, "proc/meminfo", "MemTotal: 1000 kB\nMemFree: 400 kB\nMemAvailable: 900 kB\nCached: 500000 kB\n")
    write(root, f"sys/fs/cgroup/system.slice/docker-{ID}.scope/memory.stat", f"anon {3 << 30}\nfile 77\nshmem {1 << 30}\n")
    held = f"RssAnon:\t{1 << 20} kB\nVmSwap:\t{1 << 17} kB\n"
    process(root, 900, "0::/system.slice/ollama.service\n", "ollama", "/usr/bin/ollama\0runner\0--api-key\0abcdef\0", held)
    process(root, 901, "0::/user.slice/user-1000.slice/session-2.scope\n", "Xorg", "/usr/lib/xorg/Xorg\0", "RssAnon:\t100000 kB\n")
    process(root, 902, "0::/system.slice/docker.service\n", "dockerd", "/usr/bin/dockerd\0", "RssAnon:\t100000 kB\n")
    module = FakeModule({"-q -x": (0, DESKTOP, ""), **both((0, GB10, ""))}, {"nvidia-smi"})
    module.params["holders"] = True
    subject = _gpu_memory.GpuMemory(module, str(root))
    subject.docker = t.cast("t.Any", Listing(None))
    facts = subject.facts()
    assert facts.keys() == KEYS | {"holders", "swap_holders"}
    container = {"kind": "container", "name": "qwen-rank0", "image": "sglang:1", "pid": None}
    ollama = {"kind": "process", "name": "ollama", "image": None, "pid": 900}
    size = 12800 << 20
    assert facts["holders"] == [
        {**container, "bytes": (4 << 30) + size, "gpu_bytes": size, "user": None, "command": None, "stop": "docker stop qwen-rank0"},
        {
            **ollama, "bytes": 1 << 30, "gpu_bytes": 0, "user": "root", "command": "/usr/bin/ollama runner --api-key ***",
            "stop": "systemctl stop ollama.service",
        },
        {
            "kind": "process", "name": "Xorg", "image": None, "pid": 901, "bytes": 102400000 + (18 << 20), "gpu_bytes": 18 << 20, "user": "root",
            "command": "/usr/lib/xorg/Xorg", "stop": "systemctl isolate multi-user.target",
        },
        {
            "kind": "process", "name": "dockerd", "image": None, "pid": 902, "bytes": 102400000, "gpu_bytes": 0, "user": "root",
            "command": "/usr/bin/dockerd", "stop": None,
        },
    ]  # fmt: skip
    assert facts["swap_holders"] == [{**ollama, "bytes": 128 << 20}]


# The elements that are read of the long answer, with what a GB10 with a desktop and an engine has in them.
DESKTOP = """<?xml version="1.0" ?>
<nvidia_smi_log>
	<gpu id="0000000F:01:00.0">
		<product_name>NVIDIA GB10</product_name>
		<addressing_mode>ATS</addressing_mode>
		<mig_mode>
			<current_mig>N/A</current_mig>
		</mig_mode>
		<uuid>GPU-a</uuid>
		<fb_memory_usage>
			<total>N/A</total>
		</fb_memory_usage>
		<processes>
			<process_info>
				<gpu_instance_id>N/A</gpu_instance_id>
				<compute_instance_id>N/A</compute_instance_id>
				<pid>901</pid>
				<type>G</type>
				<process_name>/usr/lib/xorg/Xorg</process_name>
				<used_memory>18 MiB</used_memory>
			</process_info>
			<process_info>
				<gpu_instance_id>N/A</gpu_instance_id>
				<compute_instance_id>N/A</compute_instance_id>
				<pid>1832</pid>
				<type>C</type>
				<process_name>sglang::scheduler_TP0</process_name>
				<used_memory>12800 MiB</used_memory>
			</process_info>
		</processes>
	</gpu>
</nvidia_smi_log>
"""


@pytest.mark.parametrize(
    ("long", "asked", "found"),
    [
        (DESKTOP, 2, [(1832, "C"), (901, "G")]),
        # Cut off within Xorg's entry: what it held is lost, what computes comes from the short list.
        (DESKTOP[: DESKTOP.index("18 MiB")], 3, [(1832, None), (99, None)]),
        # Cut off after it.
        (DESKTOP[: DESKTOP.index("<pid>1832")], 3, [(1832, None), (901, "G"), (99, None)]),
        ("", 3, [(1832, None), (99, None)]),
    ],
    ids=["whole", "cut within", "cut after", "nothing"],
)
def test_what_draws_is_listed_too(root: pathlib.Path, long: str, asked: int, found: list[tuple[int, str | None]]) -> None:
    module = FakeModule({"-q -x": (0, long, ""), **both((0, GB10, ""))}, {"nvidia-smi"})
    facts = gather(module, root, Docker(None))
    assert [(process["pid"], process["type"]) for process in facts["processes"]] == found
    assert (len(module.commands), module.warnings, facts["unified"], facts["gpus"][0]["memory"]) == (asked, [], True, "shared")


def test_a_token_in_a_title_does_not_come_out(root: pathlib.Path) -> None:
    process(root, 77, "0::/\n", "hf_AbCdEfGhIjKlM", "server --hf-token hf_AbCdEfGhIjKlMnOp --port 8000\0")
    apps = "GPU-a, 77, 10, server --hf-token=hf_AbCdEfGhIjKlMnOp\nGPU-a, 78, 5, server --password abc --api-key abc\n"
    facts = gather(FakeModule(both((0, GB10, ""), (0, apps, "")), {"nvidia-smi"}), root)
    assert [(process["name"], process["command"]) for process in facts["processes"]] == [
        ("server --hf-token=***", "server --hf-token *** --port 8000"),
        ("server --password *** --api-key ***", None),
    ]
    assert "AbCd" not in str(facts)


def test_slices(root: pathlib.Path) -> None:
    """An H100 in MIG mode (driver 590.48.01), shortened to its first two slices and one process."""
    gpu = "0, GPU-1, 590.48.01, 81559, 11125, 69956, [N/A], 433.78, Enabled, NVIDIA H100 80GB HBM3\n"
    listed = (
        "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1)\n"
        "  MIG 3g.40gb     Device  0: (UUID: MIG-00000000-0000-0000-0000-000000000000)\n"
        "  MIG 2g.20gb     Device  1: (UUID: MIG-00000001-0000-0000-0000-000000000001)\n"
    )
    device = (
        "<mig_device><index>{}</index><gpu_instance_id>{}</gpu_instance_id><compute_instance_id>0</compute_instance_id>"
        "<fb_memory_usage><total>{} MiB</total><reserved>0 MiB</reserved><used>{} MiB</used><free>{} MiB</free></fb_memory_usage></mig_device>"
    )
    long = (
        '<nvidia_smi_log><gpu id="00000000:00:09.0"><mig_mode><current_mig>Enabled</current_mig></mig_mode><mig_devices>'
        + device.format(0, 2, 40448, 11078, 29371)
        + device.format(1, 3, 20096, 17, 20080)
        + "</mig_devices><uuid>GPU-1</uuid><fb_memory_usage><total>81559 MiB</total></fb_memory_usage><processes><process_info>"
        "<gpu_instance_id>2</gpu_instance_id><compute_instance_id>0</compute_instance_id><pid>1832</pid><type>C</type>"
        "<process_name>./gpu_burn</process_name><used_memory>7484 MiB</used_memory></process_info></processes></gpu></nvidia_smi_log>"
    )
    module = FakeModule({"-q -x": (0, long, ""), " -L": (0, listed, ""), "--query-gpu": (0, gpu, "")}, {"nvidia-smi"})
    facts = gather(module, root, Docker(None))
    assert (facts["total_bytes"], facts["free_bytes"]) == ((40448 + 20096) << 20, (29371 + 20080) << 20)
    assert [(each["uuid"][:12], each["profile"], each["total_bytes"] >> 20) for each in facts["gpus"][0]["mig_devices"]] == [
        ("MIG-00000000", "3g.40gb", 40448),
        ("MIG-00000001", "2g.20gb", 20096),
    ]
    (only,) = facts["processes"]
    assert (only["pid"], only["used_bytes"] >> 20, only["mig_uuid"]) == (1832, 7484, "MIG-00000000-0000-0000-0000-000000000000")
    assert (facts["problems"], module.warnings) == ([], [])


@pytest.mark.parametrize(
    ("gpus", "code", "remedy"),
    [
        ((18, "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.159\n", ""), "driver_mismatch", "Reboot the node"),
        ((9, DRIVER, ""), "driver_not_loaded", "modprobe nvidia"),
        ((12, "NVIDIA-SMI couldn't find libnvidia-ml.so library in your system.\n", ""), "driver_incomplete", "(580.95.05)"),
        ((15, "Unable to determine the device handle for GPU 0000:02:00.0: GPU is lost.  Reboot the system\n", ""), "gpu_lost", "Reboot"),
        ((124, "", ""), "driver_hangs", "power off"),
        ((4, "Failed to initialize NVML: Insufficient Permissions\n", ""), "permission", "become: true"),
        ((255, "Failed to initialize NVML: Unknown Error\n", ""), "driver", "nvidia-smi on the node"),
        ((6, "No devices were found\n", ""), "gpu_not_found", "NVRM"),
    ],
)
def test_a_driver_that_does_not_answer_is_a_problem(root: pathlib.Path, gpus: t.Any, code: str, remedy: str) -> None:
    write(root, "proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.95.05  Release Build  (dvs)\n")
    write(root, "sys/bus/pci/devices/000f:01:00.0/vendor", "0x10de\n")
    write(root, "sys/bus/pci/devices/000f:01:00.0/class", "0x030000\n")
    module = FakeModule(both(gpus), {"nvidia-smi", "timeout"})
    facts = gather(module, root)
    (problem,) = facts["problems"]
    assert problem["code"] == code
    assert remedy in problem["remedy"]
    assert (facts["gpus"], facts["total_bytes"]) == ([], 1000 * 1024)


def test_a_lost_card_beside_a_good_one(root: pathlib.Path) -> None:
    lost = "Unable to determine the device handle for GPU 0000:BA:00.0: Unknown Error"
    module = FakeModule(both((0, "0, GPU-a, 550.1, 81559, 0, 81000, 0, 60, Disabled, NVIDIA A100\n" + lost + "\n", ""), (0, "", "")), {"nvidia-smi"})
    facts = gather(module, root)
    assert ([problem["code"] for problem in facts["problems"]], len(facts["gpus"]), module.warnings) == (["gpu_lost"], 1, [lost])


def test_gpus_on_the_bus_without_a_driver(root: pathlib.Path) -> None:
    for address, kind in (("0000:01:00.0", "0x030200"), ("0000:01:00.1", "0x040300"), ("0000:02:00.0", "0x030200")):
        write(root, f"sys/bus/pci/devices/{address}/vendor", "0x10de\n")
        write(root, f"sys/bus/pci/devices/{address}/class", kind + "\n")
    (root / "sys/bus/pci/drivers/vfio-pci").mkdir(parents=True)
    (root / "sys/bus/pci/devices/0000:02:00.0/driver").symlink_to(root / "sys/bus/pci/drivers/vfio-pci")
    facts = gather(FakeModule({}), root)
    assert [(problem["code"], problem["message"]) for problem in facts["problems"]] == [
        ("driver_missing", "1 NVIDIA GPU is on the PCI bus, and the node has no nvidia-smi.")
    ]


def test_processes_that_are_not_for_this_user(root: pathlib.Path) -> None:
    row = "GPU-a, [Insufficient Permissions], [Insufficient Permissions], [Insufficient Permissions]"
    facts = gather(FakeModule(both((0, GB10, ""), (0, row + "\n", "")), {"nvidia-smi"}), root)
    assert (facts["processes"], [problem["code"] for problem in facts["problems"]]) == ([], ["permission"])


def test_a_kernel_with_an_error_is_told(root: pathlib.Path) -> None:
    """A GB10 under Linux 7.0.0-1019 as users report it: CmaTotal 0, and 9.7 GiB of that free."""
    write(root, "proc/meminfo", "MemTotal: 1000 kB\nMemFree: 400 kB\nMemAvailable: 900 kB\nCmaTotal: 0 kB\nCmaFree: 10171187 kB\n")
    write(root, "proc/sys/kernel/osrelease", "7.0.0-1019-nvidia\n")
    write(root, "proc/cmdline", "root=UUID=1 ro quiet\n")
    write(root, "proc/sys/vm/overcommit_memory", "2\n")
    facts = gather(FakeModule({}), root)
    assert [problem["code"] for problem in facts["problems"]] == ["cma_overcounted", "overcommit_strict"]
    assert (facts["cma_total_bytes"], facts["cma_free_bytes"]) == (0, 10171187 * 1024)
    assert "7.0.0-1019-nvidia says that 9.7 GiB of 0.0 GiB CMA" in facts["problems"][0]["message"]
