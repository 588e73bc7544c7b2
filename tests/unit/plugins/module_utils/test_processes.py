# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Processes as /proc showed those of a real vLLM rank that waited for its peer (Linux 6.18, control groups of version 1)."""

from __future__ import annotations

import pathlib

import pytest

from ansible_collections.sparkstack.inference.plugins.module_utils import _processes

ID = "34aa5170b20e1a553373055b0ff649cdac0695ae3fc98ffe3d407840212a8bbb"
OTHER = "4f1c2d0e5b8a7963" * 4
CGROUP = f"9:name=systemd:/docker/{ID}\n4:memory:/docker/{ID}\n2:cpuacct:/docker/{ID}\n1:cpu:/docker/{ID}\n0::/docker/{ID}\n"
STAT = (
    "703 (VLLM::Worker) S 696 672 672 0 -1 4194560 124846 300 6 2 680 133 0 0 20 0 2 0 1349392 1048199168 126340 18446744073709551615 "
    "4321280 7154137 140720470763760 0 0 0 0 16781312 17410 0 0 0 17 1 0 0 0 0 0 9727432 11029816 713039872\n"
)
STATUS = (
    "Name:\tVLLM::Worker\nUmask:\t0022\nState:\tS (sleeping)\nTgid:\t703\nPid:\t703\nPPid:\t696\nNStgid:\t703\t25\nNSpid:\t703\t25\n"
    "VmRSS:\t  505404 kB\nRssAnon:\t  395848 kB\nRssFile:\t  109556 kB\nRssShmem:\t       4 kB\nThreads:\t2\n"
)
SERVE = "/usr/bin/python3\0/opt/engine/bin/vllm\0serve\0/srv/models/tiny-qwen3-moe\0--api-key\0topsecretkey12345\0"
TRACKER = "/usr/bin/python3\0-c\0from multiprocessing.resource_tracker import main;main(30)\0"


def process(root: pathlib.Path, pid: int, **files: str) -> None:
    folder = root / "proc" / str(pid)
    folder.mkdir(parents=True)
    program = files.pop("exe", "/usr/bin/python3.11")
    (folder / "exe").symlink_to(program)
    for name, content in files.items():
        (folder / name).write_text(content)


@pytest.mark.parametrize(
    ("comm", "cmdline", "expected"),
    [
        ("vllm", SERVE, "vllm"),
        ("VLLM::EngineCor", "VLLM::EngineCore" + "\0" * 100, "VLLM::EngineCore"),
        ("VLLM::Worker_TP", "VLLM::Worker_TP1\0\0\0", "VLLM::Worker_TP1"),
        ("sglang::schedul", "sglang::scheduler_TP1" + " " * 200, "sglang::scheduler_TP1"),
        ("ray::RayWorkerW", "ray::RayWorkerWrapper.execute_method --key abc", "ray::RayWorkerWrapper.execute_method"),
        ("python3", "python3\0-m\0sglang.launch_server\0--api-key\0abc\0", "python3 -m sglang.launch_server"),
        ("python3", "python3\0-u\0/srv/serve.py\0--token=abc\0", "python3 serve.py"),
        ("python3", TRACKER, "multiprocessing.resource_tracker"),
        ("python3", "python3\0-c\0key = 'abc'; run(key)\0", "python3"),
        ("python3", "python3\0-m\0--api-key=abc\0", "python3"),
        ("python3", "python3\0", "python3"),
        ("nginx", "nginx: worker process --password=abc\0", "nginx"),
        ("kworker/0:1-ev", "", "kworker/0:1-ev"),
        ("hf_AbCdEfGhIjKlM", "", "hf_***"),
    ],
)
def test_a_name_tells_no_argument(comm: str, cmdline: str, expected: str) -> None:
    assert _processes.name(comm, cmdline) == expected


@pytest.mark.parametrize(
    ("wchan", "syscall", "machine", "expected"),
    [
        ("hrtimer_nanosleep", "230 0x0 0x0", "x86_64", "hrtimer_nanosleep"),
        ("poll_schedule_timeout.constprop.0", "7 0x7ffdd3ea1cb0 0x2", "x86_64", "poll_schedule_timeout"),
        ("0", "202 0x7f 0x189 0x0", "x86_64", "futex"),
        ("0", "98 0x7f 0x189 0x0", "aarch64", "futex"),
        ("", "22 0x5 0x7f", "aarch64", "epoll_pwait"),
        ("0", "449 0x5", "aarch64", "system call 449"),
        ("0", "98 0x7f", "riscv64", "system call 98"),
        ("0", "running\n", "x86_64", None),
        ("0", "-1 0x7ffc 0x7f", "x86_64", None),
        ("", "", "x86_64", None),
    ],
)
def test_what_a_thread_waits_in(wchan: str, syscall: str, machine: str, expected: str | None) -> None:
    assert _processes.waits_in(wchan, syscall, machine) == expected


def test_a_process(tmp_path: pathlib.Path) -> None:
    process(tmp_path, 703, stat=STAT, status=STATUS, wchan="hrtimer_nanosleep", syscall="230 0x0", cmdline="VLLM::Worker\0\0\0")
    assert _processes.look(703, str(tmp_path), "x86_64") == _processes.Process(
        pid=703, container_pid=25, name="VLLM::Worker", state="S", ticks=813, threads=2, waits_in="hrtimer_nanosleep", python=True
    )
    assert _processes.own_bytes(_processes.fields(str(tmp_path), 703)) == (395848 * 1024, 4096)


def test_a_running_process_with_brackets_in_its_name(tmp_path: pathlib.Path) -> None:
    stat = "9 (a) R (b c) R 1 9 9 0 -1 0 0 0 0 0 70 30 0 0 20 0 61 0 1 2 3\n"
    # A kernel before 4.1 has no NSpid; an update has put another program in this one's place.
    process(tmp_path, 9, stat=stat, status="State:\tR (running)\n", wchan="0", syscall="running", cmdline="spin\0", exe="/usr/bin/python3.12 (deleted)")
    found = _processes.look(9, str(tmp_path), "x86_64")
    assert found == _processes.Process(9, 9, "a) R (b c", "R", 100, 61, None, True)


def test_a_process_that_has_ended_meanwhile(tmp_path: pathlib.Path) -> None:
    assert _processes.look(703, str(tmp_path)) is None
    process(tmp_path, 5, stat="5 (sh", status="")
    assert _processes.look(5, str(tmp_path)) is None


def test_no_python(tmp_path: pathlib.Path) -> None:
    process(tmp_path, 7, stat=STAT.replace("703", "7"), status=STATUS, cmdline="/sbin/docker-init\0", exe="/sbin/docker-init")
    found = _processes.look(7, str(tmp_path))
    assert found is not None and not found.python
    # Without the right to read the link, the first argument has to do.
    (tmp_path / "proc" / "8").mkdir()
    assert _processes.is_python(str(tmp_path), 8, "/usr/bin/python3\0x")


@pytest.mark.parametrize("cgroup", [CGROUP, f"0::/system.slice/docker-{ID}.scope\n", f"0::/docker/{ID}/workers\n", f"4:memory:/docker/{ID}/docker/{OTHER}\n"])
def test_the_members_of_a_container(tmp_path: pathlib.Path, cgroup: str) -> None:
    process(tmp_path, 703, cgroup=cgroup)
    process(tmp_path, 704, cgroup=f"4:memory:/docker/{OTHER}\n")
    process(tmp_path, 1, cgroup="0::/init.scope\n")
    (tmp_path / "proc" / "self").mkdir()
    of = _processes.groups(str(tmp_path))
    assert sorted(of) == [1, 703, 704]
    assert _processes.members(ID, 703, of, str(tmp_path)) == [703]


def test_the_family_where_the_control_group_names_no_container(tmp_path: pathlib.Path) -> None:
    """As with --cgroupns of a runtime that hides the path."""
    for pid, parent in ((1, 0), (10, 1), (11, 10), (12, 11), (13, 1)):
        process(tmp_path, pid, cgroup="0::/\n", status=f"PPid:\t{parent}\n")
    of = _processes.groups(str(tmp_path))
    assert _processes.members(ID, 10, of, str(tmp_path)) == [10, 11, 12]
    assert _processes.members(ID, 0, of, str(tmp_path)) == []


@pytest.mark.parametrize(
    ("before", "after", "seconds", "expected"), [(100, 200, 1.0, 100.0), (100, 130, 1.2, 25.0), (0, 450, 1.5, 300.0), (9, 8, 1.0, 0.0), (0, 9, 0.0, 0.0)]
)
def test_cpu(before: int, after: int, seconds: float, expected: float) -> None:
    assert _processes.cpu_percent(before, after, seconds, hertz=100) == expected
