# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who holds the memory, out of control groups of both versions, /proc and nvidia-smi."""

from __future__ import annotations

import pathlib
import typing as t

import pytest

from ansible_collections.sparkstack.inference.plugins.module_utils import _holders, _processes

ID = "34aa5170b20e1a553373055b0ff649cdac0695ae3fc98ffe3d407840212a8bbb"
OTHER = "4f1c2d0e5b8a7963" * 4
GIB = 1 << 30
# memory.stat of a real vLLM rank that waited for its peer, shortened.
STAT_1 = (
    "cache 264658944\nrss 1192857600\nrss_huge 0\nshmem 8192\nhierarchical_memory_limit 4294967296\n"
    "total_cache 264658944\ntotal_rss 1192857600\ntotal_rss_huge 0\ntotal_shmem 8192\n"
)
STAT_2 = "anon 1192857600\nfile 264658944\nkernel 9641984\nshmem 8192\nanon_thp 0\ninactive_anon 1190916096\n"
MEMINFO = {"MemTotal": 128 * GIB, "Cached": 5 * GIB, "Buffers": 0, "Shmem": GIB}


def group(root: pathlib.Path, path: str, **files: str) -> None:
    folder = root / "sys/fs/cgroup" / path
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(content)


# Of a Python that has forked four times and shares a GiB with them, by a kernel 6.18; the sizes are put in.
ROLLUP = """\
55d40e965000-7ffe20764000 ---p 00000000 00:00 0                          [rollup]
Rss:             1063064 kB
Pss:             {all:7d} kB
Pss_Dirty:        211767 kB
{parts}Shared_Clean:       1544 kB
Private_Dirty:       116 kB
AnonHugePages:         0 kB
SwapPss:               0 kB
"""
PARTS = "Pss_Anon:        {anonymous:7d} kB\nPss_File:            766 kB\nPss_Shmem:       {shared:7d} kB\n"


def process(root: pathlib.Path, pid: int, cgroup: str, anonymous: int = 0, shared: int = 0, comm: str = "python3", cmdline: str = "", parent: int = 1) -> None:
    folder = root / "proc" / str(pid)
    folder.mkdir(parents=True)
    (folder / "cgroup").write_text(cgroup)
    (folder / "status").write_text(f"PPid:\t{parent}\nRssAnon:\t{anonymous >> 10} kB\nRssFile:\t99999999 kB\nRssShmem:\t{shared >> 10} kB\n")
    (folder / "comm").write_text(comm + "\n")
    (folder / "cmdline").write_text(cmdline)


@pytest.mark.parametrize(
    ("cgroup", "path", "files", "limit"),
    [
        (
            f"9:pids:/docker/{ID}\n4:memory:/docker/{ID}\n0::/docker/{ID}\n",
            f"memory/docker/{ID}",
            {"memory__stat": STAT_1, "memory__limit_in_bytes": "4294967296\n"},
            4294967296,
        ),
        (f"4:memory:/docker/{ID}\n", f"memory/docker/{ID}", {"memory__stat": STAT_1, "memory__limit_in_bytes": "9223372036854771712\n"}, None),
        (f"0::/system.slice/docker-{ID}.scope\n", f"system.slice/docker-{ID}.scope", {"memory__stat": STAT_2, "memory__max": "max\n"}, None),
        (f"0::/docker/{ID}/workers\n", f"docker/{ID}", {"memory__stat": STAT_2, "memory__max": "4294967296\n"}, 4294967296),
    ],
)
def test_a_control_group(tmp_path: pathlib.Path, cgroup: str, path: str, files: dict[str, str], limit: int | None) -> None:
    group(tmp_path, path, **files)
    assert _holders.control_group(ID, cgroup, str(tmp_path)) == _holders.Group(1192865792, limit)


def test_no_control_group(tmp_path: pathlib.Path) -> None:
    assert _holders.control_group(ID, f"0::/docker/{ID}\n", str(tmp_path)) == _holders.Group(None, None)
    assert _holders.control_group("", "", str(tmp_path)) == _holders.Group(None, None)


def held(root: pathlib.Path, own: str = ID, gpu: t.Mapping[int, tuple[int, str]] | None = None, **named: tuple[str, str]) -> list[dict[str, t.Any]]:
    names = {OTHER: ("old-model", "vllm/vllm-openai:v0.11.0"), **named}
    return _holders.holders(own, _processes.groups(str(root)), names, gpu or {}, MEMINFO, str(root))


def test_holders(tmp_path: pathlib.Path) -> None:
    group(tmp_path, f"system.slice/docker-{ID}.scope", memory__stat=STAT_2)
    process(tmp_path, 703, f"0::/system.slice/docker-{ID}.scope\n", 9 * GIB)
    # Docker's daemon restarted meanwhile, say: this one's control group can't be read, so its processes are added up.
    process(tmp_path, 801, f"0::/docker/{OTHER}\n", 3 * GIB, 2 * GIB, "sglang::schedul", "sglang::scheduler_TP0\0")
    process(tmp_path, 802, f"0::/docker/{OTHER}\n", GIB, 2 * GIB)
    process(tmp_path, 900, "0::/user.slice/session-1.scope\n", 20 * GIB, 0, "python3", "python3\0-m\0http.server\0--password=abc\0")
    process(tmp_path, 901, "0::/system.slice/ssh.service\n", 1 << 20, 0, "sshd")
    found = held(tmp_path, gpu={801: (60 * GIB, "sglang::scheduler_TP0"), 77: (GIB // 2, "gone-from-proc"), 900: (GIB, "python3")})
    assert found == [
        {"kind": "container", "name": "old-model", "image": "vllm/vllm-openai:v0.11.0", "pid": None, "bytes": 66 * GIB, "gpu_bytes": 60 * GIB, "own": False},
        {"kind": "process", "name": "python3 -m http.server", "image": None, "pid": 900, "bytes": 21 * GIB, "gpu_bytes": GIB, "own": False},
        {"kind": "page_cache", "name": None, "image": None, "pid": None, "bytes": 4 * GIB, "gpu_bytes": 0, "own": False},
        {"kind": "container", "name": ID[:12], "image": None, "pid": None, "bytes": 1192865792, "gpu_bytes": 0, "own": True},
        {"kind": "process", "name": "gone-from-proc", "image": None, "pid": 77, "bytes": GIB // 2, "gpu_bytes": GIB // 2, "own": False},
    ]


def test_a_name_that_the_kernel_has_cut_is_told_whole(tmp_path: pathlib.Path) -> None:
    process(tmp_path, 910, "0::/user.slice/session-1.scope\n", GIB, 0, "torch-holder-12", "torch-holder-12GiB\0")
    process(tmp_path, 911, "0::/user.slice/session-1.scope\n", GIB, 0, "Xorg", "/usr/lib/xorg/Xorg\0")
    found = held(tmp_path, gpu={910: (GIB, "torch-holder-12GiB"), 911: (GIB, "/usr/lib/xorg/Xorg")})
    assert [holder["name"] for holder in found if holder["kind"] == "process"] == ["torch-holder-12GiB", "Xorg"]


def test_own_container_is_listed_however_small(tmp_path: pathlib.Path) -> None:
    for pid in range(100, 120):
        process(tmp_path, pid, "0::/user.slice\n", GIB + pid * 4096)
    process(tmp_path, 703, f"0::/docker/{ID}\n", 4096)
    found = held(tmp_path)
    assert [entry["pid"] for entry in found if entry["kind"] == "process"] == list(range(119, 109, -1))
    assert len(found) == _holders.MOST and found[0]["kind"] == "page_cache"
    assert (found[-1]["own"], found[-1]["bytes"]) == (True, 4096)


def test_a_container_in_a_container_is_its_hosts_unless_docker_knows_it(tmp_path: pathlib.Path) -> None:
    process(tmp_path, 50, f"0::/docker/{ID}/docker/{OTHER}\n", GIB)
    of = _processes.groups(str(tmp_path))
    assert _holders.containers(of) == {ID: [50]}
    assert _holders.containers(of, {OTHER: ("x", "y")}) == {OTHER: [50]}


def rollup(root: pathlib.Path, pid: int, anonymous: int, shared: int = 0, parts: bool = True) -> None:
    """What only root reads: the process's fair part of what it has mapped."""
    sizes = {"anonymous": anonymous >> 10, "shared": shared >> 10}
    told = ROLLUP.format(all=sizes["anonymous"] + sizes["shared"] + 766, parts=PARTS.format(**sizes) if parts else "")
    (root / "proc" / str(pid) / "smaps_rollup").write_text(told)


def sizes(found: list[dict[str, t.Any]]) -> dict[int, int]:
    """MiB of each process by its pid."""
    return {entry["pid"]: entry["bytes"] >> 20 for entry in found if entry["kind"] == "process"}


SHELL = "0::/user.slice/session-1.scope\n"


def test_what_forked_processes_share_is_split_among_them(tmp_path: pathlib.Path) -> None:
    for pid in range(500, 505):
        process(tmp_path, pid, SHELL, GIB + (pid << 20), 5 << 20, parent=500 if pid > 500 else 1)
        rollup(tmp_path, pid, GIB // 5 + (pid << 20), 1 << 20)
    # A process of another user's, say, which is not for us.
    process(tmp_path, 600, SHELL, GIB, GIB)
    assert sizes(held(tmp_path)) == {**{pid: 1024 // 5 + pid + 1 for pid in range(500, 505)}, 600: 2048}


def test_parts_that_are_too_small_to_be_named_count_for_the_first(tmp_path: pathlib.Path) -> None:
    """A database and a hundred of its connections, which have 4 GiB in common."""
    process(tmp_path, 700, SHELL, 20 << 20, 4 * GIB, "postgres")
    rollup(tmp_path, 700, 20 << 20, 40 << 20)
    for pid in range(701, 801):
        process(tmp_path, pid, SHELL, 20 << 20, 4 * GIB, "postgres", parent=700)
        rollup(tmp_path, pid, 2 << 20, 40 << 20)
    assert sizes(held(tmp_path)) == {700: 60 + 100 * 42}


def test_one_on_the_gpu_is_told_by_itself(tmp_path: pathlib.Path) -> None:
    process(tmp_path, 700, SHELL, GIB)
    process(tmp_path, 701, SHELL, GIB, parent=700)
    rollup(tmp_path, 700, GIB)
    rollup(tmp_path, 701, 10 << 20)
    assert sizes(held(tmp_path, gpu={701: (2 * GIB, "python3")})) == {700: 1024, 701: 2048 + 10}


def test_processes_that_seem_to_come_from_each_other_end_nothing(tmp_path: pathlib.Path) -> None:
    for pid, parent in ((700, 701), (701, 700)):
        process(tmp_path, pid, SHELL, GIB, parent=parent)
        rollup(tmp_path, pid, 40 << 20)
    assert sum(sizes(held(tmp_path)).values()) == 80


def test_a_kernel_that_tells_the_sum_only(tmp_path: pathlib.Path) -> None:
    process(tmp_path, 700, SHELL, GIB)
    rollup(tmp_path, 700, GIB // 2, parts=False)
    process(tmp_path, 701, SHELL, GIB)
    # All but a GiB of it is of files that it has mapped.
    rollup(tmp_path, 701, 3 * GIB, parts=False)
    assert sizes(held(tmp_path)) == {700: 512, 701: 1024}


def test_a_container_without_a_group_counts_what_its_processes_share_once(tmp_path: pathlib.Path) -> None:
    for pid in (801, 802):
        process(tmp_path, pid, f"0::/docker/{OTHER}\n", 3 * GIB, 2 * GIB)
        rollup(tmp_path, pid, 2 * GIB, GIB)
    process(tmp_path, 803, f"0::/docker/{OTHER}\n", 10 << 20, 30 << 20)
    found = held(tmp_path)
    assert [entry["bytes"] >> 20 for entry in found if entry["name"] == "old-model"] == [6 * 1024 + 40]


def test_of_a_thousand_processes_only_the_large_ones_are_looked_into(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for pid in range(2000, 3000):
        process(tmp_path, pid, SHELL, GIB if pid % 100 == 0 else 60 << 20)
        rollup(tmp_path, pid, 60 << 20)
    group(tmp_path, f"system.slice/docker-{OTHER}.scope", memory__stat=STAT_2)
    process(tmp_path, 801, f"0::/system.slice/docker-{OTHER}.scope\n", 9 * GIB)
    looked = []
    real = _processes.read

    def read(root: str, pid: int, name: str) -> str:
        looked.append((pid, name))
        return real(root, pid, name)

    monkeypatch.setattr(_processes, "read", read)
    held(tmp_path)
    # The kernel's own count of a container is right already.
    assert sorted(pid for pid, name in looked if name == "smaps_rollup") == list(range(2000, 3000, 100))


@pytest.mark.parametrize(
    ("name", "image", "pid", "cgroup", "draws", "expected"),
    [
        ("old-model", "vllm/vllm-openai:v0.11.0", None, "", False, "docker stop old-model"),
        # Of Kubernetes, say: it would start it anew.
        ("4f1c2d0e5b8a", None, None, "", False, None),
        ("ollama", None, 900, "0::/system.slice/ollama.service\n", False, "systemctl stop ollama.service"),
        ("python3", None, 900, "9:memory:/system.slice/system-vllm.slice/vllm@a.service/sub\n0::/system.slice\n", False, "systemctl stop vllm@a.service"),
        ("python3 serve.py", None, 900, "0::/user.slice/user-1000.slice/session-3.scope\n", False, "kill 900"),
        ("llama-server", None, 900, "0::/user.slice/user-1000.slice/user@1000.service/app.slice/run-u1.scope\n", False, "kill 900"),
        ("Xorg", None, 901, "0::/user.slice/user-1000.slice/session-2.scope\n", True, "systemctl isolate multi-user.target"),
        ("dockerd", None, 902, "0::/system.slice/docker.service\n", False, None),
        ("sshd", None, 903, "0::/system.slice/ssh.service\n", False, None),
        ("systemd-journal", None, 904, "0::/system.slice/systemd-journald.service\n", False, None),
        ("systemd", None, 1, "0::/init.scope\n", False, None),
        # A node without systemd.
        ("python3 serve.py", None, 905, "0::/\n", False, "kill 905"),
        ("dockerd", None, 906, "0::/\n", False, None),
        ("init", None, 1, "0::/\n", False, None),
        ("gone", None, 907, "", False, None),
    ],
)
def test_how_to_end_it(name: str, image: str | None, pid: int | None, cgroup: str, draws: bool, expected: str | None) -> None:
    entry = {"kind": "process" if pid else "container", "name": name, "image": image, "pid": pid}
    assert _holders.stop_with(entry, cgroup, draws) == expected


def test_whose_memory_is_swapped_out(tmp_path: pathlib.Path) -> None:
    of = {703: (f"/system.slice/docker-{OTHER}.scope", 3 << 20), 704: (f"/docker/{OTHER}", 1 << 20), 900: ("/", 2 << 20), 901: ("/", 9000)}
    for pid, (cgroup, swapped) in of.items():
        process(tmp_path, pid, f"0::{cgroup}\n")
        with (tmp_path / "proc" / str(pid) / "status").open("a") as status:
            status.write(f"VmSwap:\t{swapped} kB\n")
    named = {OTHER: ("old-model", "vllm/vllm-openai:v0.11.0")}
    assert _holders.swapped(_processes.groups(str(tmp_path)), named, str(tmp_path)) == [
        {"kind": "container", "name": "old-model", "image": "vllm/vllm-openai:v0.11.0", "pid": None, "bytes": 4 * GIB},
        {"kind": "process", "name": "python3", "image": None, "pid": 900, "bytes": 2 * GIB},
    ]
