# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the kernel says, in each form that its log comes in; the lines are a real kernel's, the ids made up."""

from __future__ import annotations

import pathlib
import typing as t

import pytest

from ansible_collections.sparkstack.inference.plugins.module_utils import _kernel

OWN, OTHER = "ab" * 32, "cd" * 32
NUMBERS = "total-vm:628880kB, anon-rss:354304kB, file-rss:5540kB, shmem-rss:0kB, UID:0 pgtables:760kB oom_score_adj:0"
INVOKED = "python3 invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0"


def chosen(group: str, pid: int, process: str = "VLLM::Worker", limit: str | None = "") -> str:
    memory = "global_oom" if limit is None else f"oom_memcg={limit or group}"
    constraint = "NONE" if limit is None else "MEMCG"
    return f"oom-kill:constraint=CONSTRAINT_{constraint},nodemask=(null),cpuset=x,mems_allowed=0,{memory},task_memcg={group},task={process},pid={pid},uid=0"


def killed(pid: int, process: str = "VLLM::Worker", where: str = "Memory cgroup out of memory") -> str:
    return f"{where}: Killed process {pid} ({process}) {NUMBERS}"


V1, V2 = f"/sparklab/spark2/docker/{OWN}", f"/system.slice/docker-{OWN}.scope"


def kmsg(*texts: str, start: int = 100) -> str:
    """The records of /dev/kmsg, one each second."""
    return "".join(f"6,{1200 + i},{(start + i) * 1000000},-;{text}\n SUBSYSTEM=x\n DEVICE=oom-kill:constraint=\n" for i, text in enumerate(texts))


@pytest.mark.parametrize("group", [V1, V2, f"/docker/{OWN}"])
def test_one_kill_is_one_message(group: str) -> None:
    log = kmsg(INVOKED, chosen(group, 123), killed(123))
    assert _kernel.messages(log, boot=1000.0) == [
        {
            "time": 1101.0,
            "text": killed(123),
            "cause": "oom",
            "kind": "oom",
            "process": "VLLM::Worker",
            "pid": 123,
            "container": OWN,
            "limit": "container",
            "interface": None,
        }
    ]


@pytest.mark.parametrize(
    ("lines", "container", "limit"),
    [
        # The node's memory was full, as a whole or as that of a group above the container.
        ((chosen(V2, 5, limit=None), killed(5, where="Out of memory")), OWN, "node"),
        ((chosen(V1, 5, limit="/sparklab/spark2"), killed(5)), OWN, "node"),
        # Its second line has been overwritten; or its first one.
        ((chosen(V2, 5),), OWN, "container"),
        ((killed(5),), None, "node"),
        # An older number of the same value belongs to an older choice.
        ((chosen(V2, 5), INVOKED, killed(5)), OWN, "container"),
        # No container's.
        ((chosen("/user.slice/session-1.scope", 5, "a, b) c", None), killed(5, "a, b) c", "Out of memory")), None, "node"),
    ],
)
def test_whose_kill(lines: tuple[str, ...], container: str | None, limit: str) -> None:
    first = _kernel.messages(kmsg(INVOKED, *lines))[0]
    assert (first["container"], first["limit"], first["cause"], first["time"]) == (container, limit, "oom", None)


def test_a_group_that_dies_as_a_whole() -> None:
    log = kmsg(
        INVOKED,
        chosen(V2, 5),
        killed(5),
        f"Tasks in {V2} are going to be killed due to memory.oom.group set",
        killed(5),
        killed(6, "python3"),
        INVOKED,
        chosen(f"/docker/{OTHER}", 9),
        killed(9),
        killed(10),
    )
    assert [(m["pid"], m["container"]) for m in _kernel.messages(log) if m["container"]] == [(5, OWN), (5, OWN), (6, OWN), (9, OTHER)]


def test_another_containers_kill_and_another_starts_are_not_its_own() -> None:
    log = kmsg(
        *(INVOKED, chosen(V2, 5), killed(5)),
        *(INVOKED, chosen(f"/docker/{OTHER}", 6), killed(6)),
        "NVRM: Xid (PCI:000f:01:00): 79, pid=7, name=python3, GPU has fallen off the bus.",
        *(INVOKED, chosen(V2, 8), killed(8)),
    )
    found = _kernel.messages(log, boot=1000.0)
    assert [m["pid"] for m in _kernel.concerning(found, OWN, None)] == [5, 8]
    assert [m["pid"] for m in _kernel.concerning(found, OWN, 1107.0)] == [8]
    assert _kernel.concerning(found, "ef" * 32, None) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("NVRM: Xid (PCI:000f:01:00): 79, pid=1234, name=python3, GPU has fallen off the bus.", ("gpu", "python3", 1234, None)),
        ("NVRM: Xid (PCI:000f:01:00): 119, pid='<unknown>', name=<unknown>, Timeout waiting for RPC", ("gpu", None, None, None)),
        ("NVRM: Xid (PCI:0000:41:00): 154, GPU recovery action changed from 0x0 to 0x1", ("gpu", None, None, None)),
        ("NVRM: nvCheckOkFailedNoLog: Check failed: Out of memory [NV_ERR_NO_MEMORY] (0x00000051) returned from x", ("gpu_memory", None, None, None)),
        ("mlx5_core 0000:01:00.0 enp1s0f0np0: Link down", ("link", None, None, "enp1s0f0np0")),
        ("mlx5_core 0000:01:00.0: Port module event: module 0, Cable unplugged", ("link", None, None, None)),
        ("r8169 0007:01:00.0 enP7s7: Link is Down", ("link", None, None, "enP7s7")),
        ("IPv6: ADDRCONF(NETDEV_UP): enp1s0f0np0: link is not ready", ("link", None, None, "enp1s0f0np0")),
        ("python3[77]: segfault at 10 ip 00007f0 sp 00007f1 error 4 in libnccl.so.2[7f00+1000]", ("segfault", "python3", 77, None)),
    ],
)
def test_the_table(text: str, expected: tuple[t.Any, ...]) -> None:
    (found,) = _kernel.messages(kmsg(text))
    assert (found["kind"], found["process"], found["pid"], found["interface"]) == expected
    assert (found["text"], found["cause"], found["container"], found["limit"]) == (text, "", None, "")


@pytest.mark.parametrize(
    "text",
    [
        "mlx5_core 0000:01:00.0 enp1s0f0np0: Link up",
        "fabric: port 2(f2) entered disabled state",
        "[  20118]     0 20118   157220    89961    88576     1385         0   778240        0             0 python3",
        "Memory cgroup stats for /docker/x:",
        "",
    ],
)
def test_what_does_not_matter(text: str) -> None:
    assert _kernel.messages(kmsg(text)) == []


@pytest.mark.parametrize(
    ("prefix", "when"),
    [
        ("6,1234,98765432,-;", 1098.765),
        ("6,1234,98765432,-,caller=T77;", 1098.765),
        ("<6>[   98.765432] ", 1098.765),
        ("[   98.765432] ", 1098.765),
        ("[   98.765432][  T77] ", 1098.765),
        ("[Sun Nov 29 22:42:04 2026] ", 1795992124.0),
        ("Nov 29 22:42:04 spark1 kernel: ", 1795992124.0),
        ("2026-11-29T22:42:04+0000 spark1 kernel: ", 1795992124.0),
        ("2026-11-29T23:42:04.500000+01:00 spark1 kernel: ", 1795992124.5),
        ("2026-11-29T22:42:04,500000+00:00 ", 1795992124.5),
        ("", None),
    ],
)
def test_each_form_of_the_log(prefix: str, when: float | None) -> None:
    text = "NVRM: Xid (PCI:000f:01:00): 79, GPU has fallen off the bus."
    (found,) = _kernel.messages(f"{prefix}systemd[1]: Started x.\r\n{prefix}{text}\r\n", boot=1000.0, year=2026)
    assert (found["time"], found["text"]) == (when, text)


def test_reading_a_log(tmp_path: pathlib.Path) -> None:
    assert _kernel.read(str(tmp_path / "none")) is None
    path = tmp_path / "kmsg"
    path.write_text(kmsg(killed(5)))
    assert _kernel.read(str(path)) == path.read_text()


def test_reading_ends_though_the_writer_does_not() -> None:
    assert (_kernel.read("/dev/zero", patience=0.002) or "").startswith("\0")
    assert _kernel.read("/dev/null") == ""


def test_the_real_log_is_read_with_its_stamps() -> None:
    log = _kernel.read()
    assert log, "this needs root"
    assert _kernel._KMSG.match(log) or _kernel._STAMP.match(log)
