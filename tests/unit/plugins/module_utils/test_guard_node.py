# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What is available on a node, out of files as both versions of control groups have them."""

from __future__ import annotations

import pathlib
import signal
import subprocess
import sys
import typing as t

import pytest

from ansible_collections.sparkstack.inference.plugins.module_utils import _guard_node as subject

ID = "34aa5170b20e1a553373055b0ff649cdac0695ae3fc98ffe3d407840212a8bbb"
OUTER = "4f1c2d0e5b8a7963" * 4
GIB = 1 << 30
MEMINFO = (
    "MemTotal:       127600748 kB\nMemFree:         2600748 kB\nMemAvailable:   104857600 kB\nBuffers:          648272 kB\nCached:         99381824 kB\n"
    "SwapCached:            0 kB\nSwapTotal:      16777216 kB\nSwapFree:       16252928 kB\nHugePages_Total:       0\n"
)
AVAILABLE, TOTAL, SWAP, SWAPPED = 104857600 << 10, 127600748 << 10, 16 * GIB, 512 << 20
NO_LIMIT = "9223372036854771712\n"
# A node of the lab: what its own group tells is little, with "total_" it is that of all groups below.
STAT_1 = (
    "cache 22417408\nrss 78569472\nshmem 344064\ninactive_anon 78659584\nactive_anon 217088\ninactive_file 8114176\nactive_file 13996032\n"
    "hierarchical_memory_limit 6442450944\ntotal_cache 2147483648\ntotal_rss 1073741824\ntotal_shmem 344064\ntotal_inactive_anon 682364928\n"
    "total_active_anon 233472\ntotal_inactive_file 1073741824\ntotal_active_file 536870912\ntotal_unevictable 0\n"
)
STAT_2 = (
    "anon 1073741824\nfile 2147483648\nkernel 9641984\nshmem 8192\ninactive_anon 1190916096\nactive_anon 4096\ninactive_file 1073741824\n"
    "active_file 536870912\nunevictable 0\nslab_reclaimable 268435456\nslab_unreclaimable 1048576\nworkingset_refault_file 4396\n"
)


def v1(path: str, **groups: tuple[str, str]) -> dict[str, str]:
    """The files of a rank in C(path); C(groups): by folder, with C(__) for the slash, limit and use."""
    files = {"proc/42/cgroup": f"9:pids:{path}\n4:memory:{path}\n0::{path}\n", "proc/meminfo": MEMINFO}
    base = "sys/fs/cgroup/memory"
    files[f"{base}/memory.usage_in_bytes"], files[f"{base}/memory.limit_in_bytes"] = "3221225472\n", NO_LIMIT
    files[f"{base}{path}/cgroup.procs"] = "42\n57\n"
    for name, (limit, used) in groups.items():
        folder = f"{base}/{name.replace('__', '/')}".rstrip("/")
        files.update({f"{folder}/memory.limit_in_bytes": limit, f"{folder}/memory.usage_in_bytes": used, f"{folder}/memory.stat": STAT_1})
    return files


def v2(path: str, **groups: tuple[str, str]) -> dict[str, str]:
    files = {"proc/42/cgroup": f"0::{path}\n", "proc/meminfo": MEMINFO}
    base = "sys/fs/cgroup"
    files[f"{base}{path}/cpu.stat"], files[f"{base}{path}/cgroup.procs"] = "usage_usec 1\n", "42\n57\n"
    for name, (limit, used) in groups.items():
        folder = f"{base}/{name.replace('__', '/')}".rstrip("/")
        files.update({f"{folder}/memory.max": limit, f"{folder}/memory.current": used, f"{folder}/memory.stat": STAT_2})
    return files


SCOPE = f"/system.slice/docker-{ID}.scope"
SIX, FOUR = f"{6 * GIB}\n", f"{4 * GIB}\n"
CASES: dict[str, tuple[dict[str, str], int, int, str]] = {
    "v1 without a limit": (v1(f"/docker/{ID}", docker=(NO_LIMIT, FOUR)), AVAILABLE, TOTAL, ""),
    # A node that is a container sees its own group as the topmost one. 6 - (4 - 1.5) GiB.
    "v1, the node's own limit": (v1(f"/docker/{ID}", **{"": (SIX, FOUR), "docker": (NO_LIMIT, FOUR)}), 7 * GIB // 2, 6 * GIB, "/"),
    "v1, a limit of all containers": (v1(f"/docker/{ID}", docker=(SIX, FOUR)), 7 * GIB // 2, 6 * GIB, "/docker"),
    "v1, the nearer of two": (v1(f"/docker/{ID}", **{"": (f"{8 * GIB}\n", FOUR), "docker": (SIX, FOUR)}), 7 * GIB // 2, 6 * GIB, "/docker"),
    "v1, the container's own limit": (v1(f"/docker/{ID}", **{f"docker__{ID}": (FOUR, FOUR)}), AVAILABLE, TOTAL, ""),
    "v1, a container in a container": (v1(f"/docker/{OUTER}/docker/{ID}", **{f"docker__{OUTER}": (SIX, FOUR)}), 7 * GIB // 2, 6 * GIB, f"/docker/{OUTER}"),
    "v1, more than the limit is cache": (v1(f"/docker/{ID}", docker=(SIX, f"{GIB}\n")), 6 * GIB, 6 * GIB, "/docker"),
    "v1, full": (v1(f"/docker/{ID}", docker=(FOUR, f"{6 * GIB}\n")), 0, 4 * GIB, "/docker"),
    "v2 without a limit": (v2(SCOPE, **{"system.slice": ("max\n", FOUR)}), AVAILABLE, TOTAL, ""),
    # 6 - (4 - 1.75) GiB: version 2 tells what the kernel's own caches can give back too.
    "v2, a slice": (v2(SCOPE, **{"system.slice": (SIX, FOUR)}), 15 * GIB // 4, 6 * GIB, "/system.slice"),
    "v2, the node's own limit": (v2(SCOPE, **{"": (SIX, FOUR)}), 15 * GIB // 4, 6 * GIB, "/"),
    "v2, the container's own limit": (v2(SCOPE, **{SCOPE[1:].replace("/", "__"): (FOUR, FOUR)}), AVAILABLE, TOTAL, ""),
    "v2, groups within the container": (v2(f"/docker/{ID}/init", docker=(SIX, FOUR), **{f"docker__{ID}": (FOUR, FOUR)}), 15 * GIB // 4, 6 * GIB, "/docker"),
}


@pytest.mark.parametrize(("files", "available", "total", "limit"), CASES.values(), ids=CASES)
def test_what_is_available(folder_of: t.Callable[[dict[str, str]], str], files: dict[str, str], available: int, total: int, limit: str) -> None:
    rank = subject.Rank(ID, 42, folder_of(files))
    for _reading in range(2):
        assert rank.memory() == subject.Memory(available, total, limit, SWAP, SWAPPED)
    assert rank.processes() == [42, 57] and not rank.gone()


def test_each_reading_is_a_new_one_and_a_limit_is_seen_at_the_next_look(folder_of: t.Callable[[dict[str, str]], str]) -> None:
    files = v1(f"/docker/{ID}", docker=(NO_LIMIT, FOUR))
    rank = subject.Rank(ID, 42, folder_of(files))
    folder_of({"proc/meminfo": MEMINFO.replace("104857600", "5242880")})
    assert rank.memory().available == 5 * GIB
    folder_of({"sys/fs/cgroup/memory/docker/memory.limit_in_bytes": SIX})
    assert rank.memory().available == 5 * GIB
    rank.refresh()
    assert (rank.memory().available, rank.memory().limit) == (7 * GIB // 2, "/docker")


def test_the_page_cache_alone_takes_nothing(folder_of: t.Callable[[dict[str, str]], str]) -> None:
    before = subject.Rank(ID, 42, folder_of(v1(f"/docker/{ID}", docker=(SIX, FOUR)))).memory().available
    copied = STAT_1.replace("total_inactive_file 1073741824", f"total_inactive_file {2 * GIB}")
    root = folder_of({"sys/fs/cgroup/memory/docker/memory.usage_in_bytes": f"{5 * GIB}\n", "sys/fs/cgroup/memory/docker/memory.stat": copied})
    assert subject.Rank(ID, 42, root).memory().available == before


def test_an_old_kernel_and_an_unreadable_one(folder_of: t.Callable[[dict[str, str]], str]) -> None:
    root = folder_of({"proc/meminfo": "MemTotal:       1024 kB\nMemFree:         512 kB\n"})
    assert subject.Rank(ID, 42, root).memory() == subject.Memory(512 << 10, 1 << 20, "", 0, 0)


@pytest.mark.parametrize("files", [{}, {"proc/42/cgroup": ""}, {"proc/42/cgroup": f"0::/system.slice/docker-{OUTER}.scope\n"}], ids=["no", "zombie", "reused"])
def test_a_rank_that_has_ended_or_whose_pid_another_has_is_gone(folder_of: t.Callable[[dict[str, str]], str], files: dict[str, str]) -> None:
    rank = subject.Rank(ID, 42, folder_of({"proc/meminfo": MEMINFO, **files}))
    assert rank.gone() and rank.processes() == [] and rank.kill() == 0


def test_all_its_processes_are_killed_and_no_other(folder_of: t.Callable[[dict[str, str]], str], tmp_path: pathlib.Path) -> None:
    sleepers = [subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) for _number in range(3)]
    try:
        root = folder_of(v2(SCOPE))
        group = tmp_path / f"sys/fs/cgroup{SCOPE}"
        # Of a process in a namespace that can't be seen the kernel tells 0; to kill that would be to kill the guard's own group.
        (group / "cgroup.procs").write_text(f"0\n{sleepers[0].pid}\n")
        (group / "workers").mkdir()
        (group / "workers/cgroup.procs").write_text(f"{sleepers[1].pid}\n")
        assert subject.Rank(ID, 42, root).kill() == 2
        assert [sleeper.wait(10) for sleeper in sleepers[:2]] == [-signal.SIGKILL] * 2
        assert sleepers[2].poll() is None
        # Killed once more, for that they are gone is no trouble.
        assert subject.Rank(ID, 42, root).kill() == 2
    finally:
        for sleeper in sleepers:
            sleeper.kill()
            sleeper.wait()
