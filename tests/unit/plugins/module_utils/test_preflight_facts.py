# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a node is, read from files and answers as real nodes have them."""

from __future__ import annotations

import pathlib
import typing as t

import pytest

from ansible_collections.sparkstack.inference.plugins.module_utils import _preflight_docker as docker
from ansible_collections.sparkstack.inference.plugins.module_utils import _preflight_services as services
from ansible_collections.sparkstack.inference.plugins.module_utils import _preflight_system as system

FolderOf = t.Callable[[dict[str, str]], str]

# The system.


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (
            {
                "proc/sys/kernel/osrelease": "6.17.0-1032-nvidia\n",
                "proc/cmdline": "BOOT_IMAGE=/vmlinuz root=UUID=1 ro quiet\n",
                "proc/meminfo": "MemTotal: 127600748 kB\nCmaTotal: 131072 kB\nCmaFree: 127000 kB\n",
            },
            {"release": "6.17.0-1032-nvidia", "kho_off": False, "cma_overcounted": False},
        ),
        (
            {
                "proc/sys/kernel/osrelease": "7.0.0-1019-nvidia\n",
                "proc/cmdline": "root=/dev/nvme0n1p2 kho=off\n",
                "proc/meminfo": "CmaTotal: 131072 kB\nCmaFree: 4194304 kB\n",
            },
            {"release": "7.0.0-1019-nvidia", "kho_off": True, "cma_overcounted": True},
        ),
        ({}, {"release": None, "kho_off": False, "cma_overcounted": False}),
    ],
)
def test_kernel(folder_of: FolderOf, files: dict[str, str], expected: dict[str, t.Any], tmp_path: pathlib.Path) -> None:
    assert system.kernel(folder_of(files) if files else str(tmp_path)) == expected


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"etc/os-release": 'NAME="Ubuntu"\nPRETTY_NAME="Ubuntu 24.04.3 LTS"\n'}, "Ubuntu 24.04.3 LTS"),
        ({"usr/lib/os-release": "PRETTY_NAME='Debian GNU/Linux 13 (trixie)'\n"}, "Debian GNU/Linux 13 (trixie)"),
        ({"etc/os-release": "NAME=Arch\n"}, None),
    ],
)
def test_system(folder_of: FolderOf, files: dict[str, str], expected: str | None) -> None:
    assert system.system(folder_of(files)) == expected


def test_driver(folder_of: FolderOf) -> None:
    text = "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.95.05  Release Build  (dvs-builder@U22)\nGCC version: 13.3.0\n"
    assert system.driver(folder_of({"proc/driver/nvidia/version": text})) == "580.95.05"


def test_rdma_devices(folder_of: FolderOf, tmp_path: pathlib.Path) -> None:
    root = folder_of(
        {
            "sys/class/infiniband/rocep1s0f0/fw_ver": "28.45.4028\n",
            "sys/class/infiniband/rocep1s0f0/board_id": "NVD0000000087\n",
            "sys/class/infiniband/mlx5_0/fw_ver": "20.43.1014\n",
            "sys/module/mlx5_core/version": "24.10-0.7.0\n",
            "sys/bus/pci/drivers/mlx5_core/bind": "",
        }
    )
    device = tmp_path / "sys/class/infiniband/mlx5_0/device"
    device.mkdir()
    (device / "driver").symlink_to(tmp_path / "sys/bus/pci/drivers/mlx5_core")
    assert system.rdma(root) == [
        {"hca": "mlx5_0", "driver": "mlx5_core", "driver_version": "24.10-0.7.0", "firmware": "20.43.1014", "board": None},
        {"hca": "rocep1s0f0", "driver": None, "driver_version": None, "firmware": "28.45.4028", "board": "NVD0000000087"},
    ]


def test_devices_for_containers(folder_of: FolderOf) -> None:
    assert system.infiniband(folder_of({"dev/infiniband/uverbs0": "", "dev/infiniband/rdma_cm": ""})) == ["rdma_cm", "uverbs0"]
    assert system.infiniband("/nowhere") == []


HOSTS = """127.0.0.1 localhost
127.0.1.1 spark1.lan Spark1  # by the installer
192.168.200.12 spark2
#10.0.0.9 spark2
::1 ip6-localhost spark1
"""


def test_names_of_the_hosts_file(folder_of: FolderOf) -> None:
    root = folder_of({"etc/hosts": HOSTS})
    assert system.hosts(root, ["spark1", "spark2", "spark3"]) == {"spark1": ["127.0.1.1", "::1"], "spark2": ["192.168.200.12"]}
    assert system.hosts("/nowhere", ["spark1"]) == {}


LIMITS = """Limit                     Soft Limit           Hard Limit           Units
Max cpu time              unlimited            unlimited            seconds
Max locked memory         8388608              {hard:<20} bytes
"""


@pytest.mark.parametrize(("hard", "expected"), [("8388608", 8388608), ("unlimited", -1)])
def test_locked_memory(folder_of: FolderOf, hard: str, expected: int) -> None:
    root = folder_of({"proc/71/comm": "dockerd\n", "proc/71/limits": LIMITS.format(hard=hard), "proc/8/comm": "chronyd\n", "proc/93/comm": "dockerd\n"})
    assert system.processes(root, {"dockerd", "chronyd"}) == {"chronyd": 8, "dockerd": 71}
    assert system.memlock(root, 71) == expected
    assert system.memlock(root, None) is None and system.memlock(root, 93) is None


def test_nccl_of_the_node(folder_of: FolderOf) -> None:
    folder = "usr/lib/aarch64-linux-gnu"
    files = dict.fromkeys([f"{folder}/libnccl.so.2", f"{folder}/libnccl.so.2.28.9", f"{folder}/libnccl.so.2.3.5"], "")
    assert system.nccl(folder_of(files)) == "2.28.9" and system.nccl("/nowhere") is None


# Firewall and clock.

DOCKER_RULES = """table ip filter {
	chain DOCKER {
		iifname != "docker0" oifname "docker0" counter drop
	}

	chain FORWARD {
		type filter hook forward priority filter; policy drop;
		counter jump DOCKER-USER
	}

	chain INPUT {
		type filter hook input priority filter; policy accept;
	}
}
"""
OWN_RULES = """table inet filter {
	chain input {
		type filter hook input priority filter; policy accept;
		tcp dport 29501 drop
	}
}
"""
IPTABLES_NFT = """table ip filter {
	chain INPUT {
		type filter hook input priority filter; policy drop;
		iifname "lo" accept
	}
}
"""


@pytest.mark.parametrize(
    ("files", "running", "nft", "iptables", "expected"),
    [
        ({}, (), "", "", (None, False, None)),
        ({}, (), DOCKER_RULES, "", (None, False, None)),
        ({}, (), DOCKER_RULES + OWN_RULES, "", ("nftables", True, "accept")),
        ({}, (), IPTABLES_NFT, "", ("iptables", True, "drop")),
        ({}, (), "", "-P INPUT ACCEPT\n", (None, False, None)),
        ({}, (), "", "-P INPUT ACCEPT\n-A INPUT -p tcp --dport 29501 -j DROP\n", ("iptables", True, "accept")),
        ({}, (), "", "-P INPUT DROP\n", ("iptables", True, "drop")),
        ({}, ("firewalld",), OWN_RULES, "", ("firewalld", True, "reject")),
        ({"etc/ufw/ufw.conf": "# ufw\nENABLED=yes\nLOGLEVEL=low\n", "etc/default/ufw": 'DEFAULT_INPUT_POLICY="DROP"\n'}, (), "", "", ("ufw", True, "drop")),
        ({"etc/ufw/ufw.conf": "ENABLED=no\n", "etc/default/ufw": 'DEFAULT_INPUT_POLICY="DROP"\n'}, (), "", "", (None, False, None)),
    ],
)
def test_firewall(folder_of: FolderOf, files: dict[str, str], running: tuple[str, ...], nft: str, iptables: str, expected: tuple[t.Any, ...]) -> None:
    found = services.firewall(folder_of(files or {"etc/hosts": ""}), running, nft, iptables)
    assert (found["tool"], found["active"], found["policy"]) == expected


SHOW = "Timezone=Etc/UTC\nLocalRTC=no\nCanNTP=yes\nNTP=yes\nNTPSynchronized=yes\nTimeUSec=Mon 2026-11-30 08:02:11 UTC\n"


@pytest.mark.parametrize(
    ("running", "told", "expected"),
    [
        ({"chronyd": 8}, SHOW, {"synchronised": True, "by": "chrony"}),
        # The kernel cuts the name of systemd-timesyncd to 15 characters.
        ({"systemd-timesyn": 8}, SHOW.replace("NTPSynchronized=yes", "NTPSynchronized=no"), {"synchronised": False, "by": "systemd-timesyncd"}),
        ({}, "", {"synchronised": None, "by": None}),
    ],
)
def test_clock(running: dict[str, int], told: str, expected: dict[str, t.Any]) -> None:
    assert services.clock(running, told) == expected


# Docker.

CLASSIC = {
    "ServerVersion": "26.1.5", "Driver": "overlay2", "DriverStatus": [["Backing Filesystem", "extfs"]], "DockerRootDir": "/var/lib/docker",
    "LiveRestoreEnabled": False, "Runtimes": {"runc": {}, "nvidia": {}}, "CgroupDriver": "cgroupfs", "SecurityOptions": ["name=seccomp,profile=builtin"],
}  # fmt: skip
CONTAINERD = {**CLASSIC, "Driver": "overlayfs", "DriverStatus": [["driver-type", "io.containerd.snapshotter.v1"]], "SecurityOptions": ["name=rootless"]}


def test_a_daemon_in_either_store() -> None:
    found = docker.daemon(CLASSIC)
    assert (found["storage"], found["containerd"], found["runtimes"], found["rootless"]) == ("overlay2", False, ["nvidia", "runc"], False)
    found = docker.daemon(CONTAINERD)
    assert (found["storage"], found["containerd"], found["rootless"]) == ("overlayfs", True, True)
    assert docker.absent("It is away.").keys() == found.keys()


def test_an_image_has_one_identity_in_both_stores() -> None:
    shared = {"Architecture": "arm64", "Os": "linux", "Size": 7, "RootFS": {"Layers": ["sha256:1", "sha256:2"]}}
    config = {"Env": ["PATH=/bin", "NCCL_VERSION=2.28.9-1"], "Cmd": ["vllm"]}
    one = docker.image("vllm:1", {**shared, "Id": "sha256:0ef645", "Config": config})
    other = docker.image("vllm:1", {**shared, "Id": "sha256:eee762", "Config": {**config, "WorkingDir": "/"}})
    assert one and other and one["identity"] == other["identity"] and one["id"] != other["id"]
    assert (one["architecture"], one["layers"], one["nccl"], one["tag"]) == ("arm64", 2, "2.28.9", "vllm:1")
    assert docker.image("vllm:1", None) is None


def test_a_disk_is_that_of_the_nearest_folder(tmp_path: pathlib.Path) -> None:
    there = docker.disk(str(tmp_path))
    absent = docker.disk(str(tmp_path / "models" / "m"))
    assert there and absent and there["exists"] and not absent["exists"]
    assert absent["path"] == str(tmp_path / "models" / "m") and absent["total_bytes"] == there["total_bytes"] > 0
    assert docker.disk(None) is None
