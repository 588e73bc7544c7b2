# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Control groups of both versions over a folder that looks like /sys/fs/cgroup."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from sparklab import cgroups
from sparklab.system import LabError

V1 = ("cpu", "cpuset", "freezer", "memory", "pids", "systemd", "unified")


@pytest.fixture
def v1(tmp_path: Path) -> Path:
    for name in V1:
        (tmp_path / name).mkdir()
        (tmp_path / name / "cgroup.procs").touch()
    (tmp_path / "cpuacct").symlink_to("cpu")
    (tmp_path / "cpuset/cpuset.cpus").write_text("0-1\n")
    (tmp_path / "cpuset/cpuset.mems").write_text("0\n")
    return tmp_path


@pytest.fixture
def v2(tmp_path: Path) -> Path:
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu io memory hugetlb pids rdma misc\n")
    for folder in ("sparklab", "sparklab/spark1"):  # the kernel would put these files there
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
    (tmp_path / "sparklab/spark1/memory.max").write_text("max\n")
    (tmp_path / "sparklab/spark1/memory.swap.max").write_text("max\n")
    return tmp_path


def test_detects_the_version(v1: Path) -> None:
    assert isinstance(cgroups.detect(v1), cgroups.CgroupsV1)


def test_hybrid_is_version_1_and_a_v2_tree_is_version_2(v2: Path) -> None:
    assert isinstance(cgroups.detect(v2), cgroups.CgroupsV2)


def test_none_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(LabError, match=r"No usable control groups at .*; mount them"):
        cgroups.detect(tmp_path)


def test_v1_create_fills_the_cpusets_and_sets_the_limit(v1: Path) -> None:
    groups = cgroups.detect(v1)
    groups.create("spark1", 6 << 30)
    assert (v1 / "cpuset/sparklab/cpuset.cpus").read_text() == "0-1\n"
    assert (v1 / "cpuset/sparklab/spark1/cpuset.mems").read_text() == "0\n"
    assert (v1 / "memory/sparklab/spark1/memory.limit_in_bytes").read_text() == str(6 << 30)
    assert len(groups.folders("spark1")) == len(V1)  # the link cpuacct is not a hierarchy of its own
    assert groups.names() == ["spark1"]


def test_v1_enter_writes_to_every_hierarchy(v1: Path) -> None:
    groups = cgroups.detect(v1)
    groups.create("spark1")
    groups.enter("spark1")
    assert all((v1 / name / "sparklab/spark1/cgroup.procs").read_text() == "0" for name in V1)


def test_v1_freezer_and_memory(v1: Path) -> None:
    groups = cgroups.detect(v1)
    groups.create("spark1", 1 << 30)
    assert not groups.frozen("spark1")
    groups.freeze("spark1", True)
    assert (v1 / "freezer/sparklab/spark1/freezer.state").read_text() == "FROZEN"
    assert groups.frozen("spark1")
    groups.freeze("spark1", False)
    assert not groups.frozen("spark1")
    memory = v1 / "memory/sparklab/spark1"
    (memory / "memory.usage_in_bytes").write_text("4096\n")
    (memory / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    assert groups.memory("spark1") == (1 << 30, 4096, 2)


def test_pids_of_all_groups_below(v1: Path) -> None:
    groups = cgroups.detect(v1)
    groups.create("spark1")
    below = v1 / "pids/sparklab/spark1/payload/docker/abc"
    below.mkdir(parents=True)
    (below / "cgroup.procs").write_text(f"4711\n4712\n0\n{os.getpid()}\n")
    assert groups.pids("spark1") == [4711, 4712]  # 0 is outside our view; the caller itself is never a victim


def test_v2_hands_the_controllers_down_and_keeps_processes_out_of_the_middle(v2: Path) -> None:
    groups = cgroups.detect(v2)
    groups.create("spark1", 2 << 30)
    for folder in ("", "sparklab", "sparklab/spark1"):
        assert (v2 / folder / "cgroup.subtree_control").read_text() == "+pids"  # the last of single writes
    node = v2 / "sparklab/spark1"
    assert (node / "memory.max").read_text() == str(2 << 30)
    assert (node / "memory.swap.max").read_text() == "0"
    groups.enter("spark1")
    assert (node / "unit/cgroup.procs").read_text() == "0"
    assert not (node / "cgroup.procs").exists()


def test_v2_freeze_and_memory(v2: Path) -> None:
    groups = cgroups.detect(v2)
    groups.freeze("spark1", True)
    assert (v2 / "sparklab/spark1/cgroup.freeze").read_text() == "1"
    assert groups.frozen("spark1")
    (v2 / "sparklab/spark1/memory.current").write_text("8192\n")
    (v2 / "sparklab/spark1/memory.events").write_text("low 0\nhigh 0\nmax 7\noom 1\noom_kill 1\noom_group_kill 0\n")
    assert groups.memory("spark1") == (0, 8192, 1)


def test_v2_without_memory_controller_is_one_sentence(v2: Path) -> None:
    (v2 / "sparklab/spark1/memory.max").unlink()
    with pytest.raises(LabError, match="no memory controller; enable it"):
        cgroups.detect(v2).create("spark1", 1 << 30)


def test_remove_takes_nested_groups(v1: Path) -> None:
    groups = cgroups.CgroupsV1(v1)
    for name in V1:
        (v1 / name / "sparklab/spark1/payload/system.slice").mkdir(parents=True)
    groups.remove("spark1")
    assert groups.names() == []
