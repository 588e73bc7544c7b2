# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Inventory, apt sources, stand-in files, port states, sizes, and the sentences for a machine that lacks something."""

from __future__ import annotations

import configparser
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sparklab import base, checks, hinder, inventory, network, standins, state
from sparklab.system import LabError, mounts_below, parse_size, rewrite, write


def test_inventory_has_the_shape_of_a_real_one() -> None:
    text = inventory.inventory_text(["spark1", "spark2", "spark3"], Path("/s/key"), Path("/s/known_hosts"), Path("/r/tiny.yml"))
    parsed = configparser.ConfigParser(allow_no_value=True, delimiters=("=",))
    parsed.read_string(text)
    assert list(parsed["head"].items()) == [("spark1 ansible_host", "10.77.0.11")]
    assert [value for _name, value in parsed["workers"].items()] == ["10.77.0.12", "10.77.0.13"]
    assert list(parsed["sparks:children"]) == ["head", "workers"]
    assert dict(parsed["sparks:vars"]) == {
        "ansible_user": "nvidia",
        "ansible_ssh_private_key_file": "/s/key",
        "tp_launch_recipe": "/r/tiny.yml",
        "ansible_ssh_common_args": "-o UserKnownHostsFile=/s/known_hosts -o StrictHostKeyChecking=yes",
    }


DEB822 = """Types: deb
# a comment
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb-src
URIs: http://mirror.example/src
Suites: bookworm
Components: main
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (DEB822, [("http://mirror.example/debian", ["bookworm", "bookworm-updates"], ["main"])]),
        (
            "deb [arch=amd64 signed-by=/k] http://mirror.example/ubuntu/ noble main universe\n# deb http://no x y\n",
            [("http://mirror.example/ubuntu", ["noble"], ["main", "universe"])],
        ),
        ("Enabled: no\n" + DEB822.split("\n\n")[0], []),
    ],
)
def test_apt_sources(text: str, expected: list[base.Source]) -> None:
    assert base.apt_sources(text) == expected


def test_debian_gets_trixie_and_ubuntu_itself() -> None:
    sources = [
        ("http://tool.example/x", ["stable"], ["main"]),
        ("http://m.example/debian", ["bookworm"], ["main"]),
        ("http://m.example/ubuntu", ["noble", "noble-updates"], ["main"]),
    ]
    debian = base.recipe({"ID": "debian"}, sources)
    assert (debian["suite"], debian["mirror"]) == ("trixie", "http://m.example/debian")
    assert "docker-cli" in debian["packages"]
    ubuntu = base.recipe(base.os_release('ID=ubuntu\nVERSION_CODENAME=noble\nNAME="Ubuntu"\n'), sources)
    assert (ubuntu["suite"], ubuntu["mirror"], ubuntu["components"]) == ("noble", "http://m.example/ubuntu", ["main", "universe"])
    assert "docker-cli" not in ubuntu["packages"]


def test_no_mirror_and_strange_distribution_are_one_sentence() -> None:
    with pytest.raises(LabError, match="SPARKSTACK_LAB_MIRROR"):
        base.recipe({"ID": "debian"}, [])
    assert base.recipe({"ID": "debian"}, [], "file:///m")["mirror"] == "file:///m"
    with pytest.raises(LabError, match="this is 'fedora'. Use a Debian 12 or Ubuntu 24.04 machine"):
        base.recipe({"ID": "fedora"}, [])


def test_base_is_named_by_its_inputs_but_not_by_the_mirror(tmp_path: Path) -> None:
    where = state.State(tmp_path)
    plan = base.recipe({"ID": "debian"}, [], "a:")
    assert base.base_folder(where, plan) == base.base_folder(where, plan | {"mirror": "b:"})
    assert base.base_folder(where, plan) != base.base_folder(where, plan | {"packages": ["jq"]})


@pytest.mark.parametrize(
    ("count", "powered", "cut", "expected"),
    [
        (2, {"spark1", "spark2"}, set(), {"spark1": True, "spark2": True}),
        (2, {"spark1", "spark2"}, {"spark2"}, {"spark1": False, "spark2": False}),
        (2, {"spark1"}, set(), {"spark1": False}),
        (3, {"spark1", "spark2", "spark3"}, {"spark2"}, {"spark1": True, "spark2": False, "spark3": True}),
        (3, {"spark1"}, set(), {"spark1": True}),
        (1, {"spark1"}, set(), {"spark1": True}),
    ],
)
def test_who_has_a_carrier(count: int, powered: set[str], cut: set[str], expected: dict[str, bool]) -> None:
    assert network.port_states(count, powered, cut) == expected


def test_addresses_and_gids() -> None:
    assert state.management_address("spark12") == "10.77.0.22"
    # as the kernel shows them: 'fe80::53:50ff:fe4b:101' for 02:53:50:4b:01:01
    assert standins.gid_of(standins.link_local("02:53:50:4b:01:01")) == "fe80:0000:0000:0000:0053:50ff:fe4b:0101"
    assert standins.gid_of("192.168.200.11") == "0000:0000:0000:0000:0000:ffff:c0a8:c80b"


def test_rdma_tree_has_what_sysfs_has() -> None:
    files = standins.rdma_files("spark1", {"rdma.ports/1/rate": "100 Gb/sec (4X EDR)"}, carrier=False)
    port = "rocep1s0f0/ports/1/"
    assert files[port + "gids/3"] == "0000:0000:0000:0000:0000:ffff:c0a8:c80b\n"
    assert files[port + "gid_attrs/types/3"] == "RoCE v2\n"
    assert files[port + "gid_attrs/ndevs/3"] == "enp1s0f0np0\n"
    assert (files[port + "state"], files[port + "phys_state"]) == ("1: DOWN\n", "3: Disabled\n")
    assert files[port + "rate"] == "100 Gb/sec (4X EDR)\n"
    assert not any("active_mtu" in path for path in files)
    assert standins.rdma_files("spark1", {}, carrier=True)[port + "state"] == "4: ACTIVE\n"


def test_meminfo_lines_are_replaced_or_added() -> None:
    real = "MemTotal:       24684084 kB\nMemFree:        20000000 kB\nHugePages_Total:       0\n"
    text = standins.meminfo_text(real, {"MemTotal": "127600748", "MemFree": "2G", "CmaTotal": "65536 kB"})
    assert text == ("MemTotal:       127600748 kB\nMemFree:         2097152 kB\nHugePages_Total:       0\nCmaTotal:          65536 kB\n")
    with pytest.raises(LabError, match="'lots' is no amount of memory"):
        standins.meminfo_text(real, {"MemFree": "lots"})


def test_clock_and_disk_as_the_runtime_reads_them() -> None:
    assert hinder.container_changes(state.Settings(), "") == {}
    assert hinder.container_changes(state.Settings(clock=-300, disk="2M"), "254:0") == {
        "environment": {"LD_PRELOAD": hinder.INSIDE, "LAB_CLOCK": "-300"},
        "mounts": [hinder.INSIDE],
        "read_bps": [254, 0, 2 << 20],
    }
    assert hinder.bytes_per_second("off") == 0
    with pytest.raises(LabError, match="'fast' is no size"):
        hinder.bytes_per_second("fast")


@pytest.mark.parametrize("seconds", [-300, 300])
def test_the_clock_is_shifted_and_waiting_is_not(tmp_path: Path, seconds: int) -> None:
    hinder.build_library(tmp_path / hinder.LIBRARY)
    program = (
        "import threading, time; begin = time.monotonic(); threading.Event().wait(0.2); time.sleep(0.2); "
        "print(round(time.time()), round(time.monotonic() - begin, 1))"
    )
    environment = {**hinder.clock_environment(seconds), "LD_PRELOAD": str(tmp_path / hinder.LIBRARY)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True, timeout=60)
    now, waited = done.stdout.split()
    assert abs(int(now) - seconds - time.time()) < 30
    assert 0.4 <= float(waited) < 30


@pytest.mark.parametrize(("entry", "expected"), [("vda", "254:0"), ("vda/vda1", "254:0")])
def test_a_partition_is_slowed_as_its_disk(tmp_path: Path, entry: str, expected: str) -> None:
    device = tmp_path.stat().st_dev
    write(tmp_path / "devices/vda/dev", "254:0\n")
    write(tmp_path / "devices" / entry / "x", "")
    if entry != "vda":
        write(tmp_path / "devices" / entry / "partition", "1\n")
    (tmp_path / "dev/block").mkdir(parents=True)
    (tmp_path / "dev/block" / f"{os.major(device)}:{os.minor(device)}").symlink_to(tmp_path / "devices" / entry)
    assert hinder.disk_of(tmp_path, tmp_path) == expected


def test_a_folder_on_no_disk_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="lies on no disk of its own"):
        hinder.disk_of(tmp_path, tmp_path / "nowhere")


def test_what_a_node_wrote_is_kept_until_it_boots(tmp_path: Path) -> None:
    proc, have = tmp_path / "proc", tmp_path / "have"
    write(proc / "sys/vm/swappiness", "60\n")
    assert standins.bound_files({}, True, have, proc)["proc/sys/vm/swappiness"] == "60\n"
    write(have / "proc/sys/vm/swappiness", "5\n")
    assert standins.bound_files({}, False, have, proc)["proc/sys/vm/swappiness"] == "5\n"
    assert standins.bound_files({}, True, have, proc)["proc/sys/vm/swappiness"] == "60\n"
    assert standins.bound_files({"sysctl.vm.swappiness": "1"}, False, have, proc)["proc/sys/vm/swappiness"] == "1\n"


def test_write_tree_keeps_inodes_and_removes_the_rest(tmp_path: Path) -> None:
    standins.write_tree(tmp_path / "t", {"a/b": "1\n", "old/c": "2\n"})
    inode = (tmp_path / "t/a/b").stat().st_ino
    standins.write_tree(tmp_path / "t", {"a/b": "333\n"})
    assert (tmp_path / "t/a/b").stat().st_ino == inode
    assert [path.name for path in (tmp_path / "t").rglob("*")] == ["a", "b"]
    rewrite(tmp_path / "t/a/b", "4")
    assert (tmp_path / "t/a/b").read_text() == "4"


@pytest.mark.parametrize("pair", ["foo=1", "gpu.driver", "sysctl.kernel.panic=1", "rdma.../x=1", "meminfo.=1"])
def test_unknown_stand_ins_are_refused(pair: str) -> None:
    with pytest.raises(LabError, match="is no (stand-in|KEY=VALUE)"):
        standins.parse_pairs([pair])


def test_known_stand_ins() -> None:
    assert standins.parse_pairs(["gpu.driver=580.142", "gpu.1.name=x=y", "rdma=false", "infiniband_dev=true"]) == {
        "gpu.driver_version": "580.142",
        "gpu.1.name": "x=y",
        "rdma": "false",
        "infiniband_dev": "true",
    }


@pytest.mark.parametrize(("text", "size"), [("6G", 6 << 30), ("1500M", 1500 << 20), ("1.5g", 3 << 29), ("134217728", 1 << 27)])
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "six", "6Q", "1K"])
def test_bad_sizes(text: str) -> None:
    with pytest.raises(LabError, match="is no size|too little"):
        parse_size(text)


@pytest.mark.parametrize(("rate", "kept"), [("200mbit", "200mbit"), ("10gbit", "10gbit"), ("off", ""), ("0", "")])
def test_rates(rate: str, kept: str) -> None:
    assert network.check_rate(rate) == kept


def test_bad_rate_and_node_name() -> None:
    with pytest.raises(LabError, match="write it like 200mbit"):
        network.check_rate("fast")
    for name in ("spark0", "spark100", "worker", "spark1;x"):
        with pytest.raises(LabError, match="no node of the lab"):
            state.number(name)


def test_too_little_memory_says_what_fits() -> None:
    meminfo = "MemTotal:       16384000 kB\n"
    checks.require_memory({"spark1": 6 << 30, "spark2": 6 << 30}, meminfo)
    with pytest.raises(LabError, match=r"3 nodes with 18 GiB together do not fit into this machine's 15 GiB.*'--memory 4G'"):
        checks.require_memory(dict.fromkeys(("spark1", "spark2", "spark3"), 6 << 30), meminfo)


def test_missing_programs_are_named_by_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert {"systemd-container", "mmdebstrap", "iproute2"} <= set(checks.missing_packages())


def test_not_root_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(LabError, match="needs root .*sudo"):
        checks.require_root()


def test_settings_survive_and_damage_is_told(tmp_path: Path) -> None:
    where = state.State(tmp_path / "lab")
    assert where.names() == ["spark1", "spark2"]
    where.count = 3
    where.save("spark3", state.Settings(memory="2G", values={"gpu.count": "0"}, cut=True))
    again = state.State(tmp_path / "lab")
    assert again.names()[-1] == "spark3"
    assert again.settings("spark3") == state.Settings(memory="2G", values={"gpu.count": "0"}, cut=True)
    (again.node_folder("spark3") / "settings.json").write_text("{")
    with pytest.raises(LabError, match="settings.json is damaged; remove it"):
        again.settings("spark3")


def test_state_folder_with_a_blank_is_refused() -> None:
    with pytest.raises(LabError, match="set SPARKSTACK_LAB to another one"):
        state.State(Path("/home/a b/lab"))


def test_mounts_below() -> None:
    assert mounts_below(Path("/proc"))[-1] == "/proc"
    assert mounts_below(Path("/nonexistent")) == []
