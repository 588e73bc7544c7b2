# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A container's control group, of both versions, as files."""

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.sparkstack.inference.plugins.module_utils._cgroup import activity, container_in, oom_kills, processes

V2 = {
    "proc/42/cgroup": "0::/system.slice/docker-a.scope\n",
    "sys/fs/cgroup/system.slice/docker-a.scope/cpu.stat": "usage_usec 12500000\nuser_usec 1\n",
    "sys/fs/cgroup/system.slice/docker-a.scope/memory.current": "436207616\n",
    "sys/fs/cgroup/system.slice/docker-a.scope/io.stat": "259:0 rbytes=1048576 wbytes=5 rios=1\n253:0 rbytes=4096 wbytes=0\n",
    "sys/fs/cgroup/system.slice/docker-a.scope/memory.events": "low 0\nhigh 0\nmax 120\noom 3\noom_kill 2\noom_group_kill 0\n",
    "sys/fs/cgroup/system.slice/docker-a.scope/cgroup.procs": "42\n57\n",
}
V1 = {
    # Beside version 1, version 2 hangs at "unified" and has no controllers.
    "proc/42/cgroup": "5:blkio:/docker/a\n4:memory:/docker/a\n3:cpu,cpuacct:/docker/a\n0::/docker/a\n",
    "sys/fs/cgroup/cpuacct/docker/a/cpuacct.usage": "12500000000\n",
    "sys/fs/cgroup/memory/docker/a/memory.usage_in_bytes": "436207616\n",
    "sys/fs/cgroup/blkio/docker/a/blkio.throttle.io_service_bytes": "259:0 Read 1048576\n259:0 Write 5\nTotal 1048581\n",
    "sys/fs/cgroup/memory/docker/a/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
    "sys/fs/cgroup/memory/docker/a/cgroup.procs": "42\n57\n",
}


@pytest.mark.parametrize(("files", "read"), [(V2, 1052672), (V1, 1048576)])
def test_what_it_tells(folder_of: t.Callable[[dict[str, str]], str], files: dict[str, str], read: int) -> None:
    root = folder_of(files)
    assert activity(42, root) == {"cpu_seconds": 12.5, "memory_bytes": 436207616, "read_bytes": read}
    assert oom_kills(42, root) == 2
    assert processes(42, root) == [42, 57]


def test_reads_from_a_file_server(folder_of: t.Callable[[dict[str, str]], str]) -> None:
    # No block device has seen what came over NFS.
    io = {f"proc/{pid}/io": "rchar: 9000000\nread_bytes: 4000000\nwrite_bytes: 0\n" for pid in (42, 57)}
    assert activity(42, folder_of({**V2, **io}))["read_bytes"] == 8000000


@pytest.mark.parametrize("pid", [0, 42])
def test_nobody_tells(folder_of: t.Callable[[dict[str, str]], str], pid: int) -> None:
    root = folder_of({})
    assert activity(pid, root) == {"cpu_seconds": None, "memory_bytes": None, "read_bytes": None}
    assert oom_kills(pid, root) is None
    assert processes(pid, root) == []


@pytest.mark.parametrize(
    ("path", "container"),
    [
        ("/docker/" + "ab" * 32, "ab" * 32),
        ("0::/system.slice/docker-" + "ab" * 32 + ".scope\n", "ab" * 32),
        # A node that is a container itself.
        ("/docker/" + "cd" * 32 + "/docker/" + "ab" * 32, "ab" * 32),
        ("/user.slice/user-1000.slice", None),
        ("/docker/" + "ab" * 31, None),
        ("/docker/" + "ab" * 33, None),
    ],
)
def test_a_container_in_a_groups_name(path: str, container: str | None) -> None:
    assert container_in(path) == container
