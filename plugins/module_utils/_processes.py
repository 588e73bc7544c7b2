# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""What /proc tells of a node's processes: whose they are, what they do, and what they wait in."""

from __future__ import annotations

import os
import re
import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils import _logline
from ansible_collections.sparkstack.inference.plugins.module_utils._files import text
from ansible_collections.sparkstack.inference.plugins.module_utils._memory import container_ids

# What setproctitle writes: "VLLM::Worker_TP1", "sglang::scheduler_TP1", "ray::RayWorkerWrapper.execute_method".
_TITLE = re.compile(r"[A-Za-z]\w*::[\w./:-]+")
_MODULE = re.compile(r"[A-Za-z_][\w.]*")
_SCRIPT = re.compile(r"[\w.-]+\.py")
# "python3 -c from multiprocessing.resource_tracker import main;main(46)"
_MULTIPROCESSING = re.compile(r"from (multiprocessing\.\w+) import ")
# "Pss_Anon:            116 kB". Kernels before 5.3 tell the sum only.
_PARTS = re.compile(r"^(Pss|Pss_Anon|Pss_Shmem):\s+(.+)$", re.MULTILINE)
_FIELDS = re.compile(r"^(PPid|Threads|NSpid|RssAnon|RssShmem|VmSwap|Uid):\s+(.+)$", re.MULTILINE)

# Where wchan says nothing ("0": the kernel has no symbols, or a sandbox hides them), the system call's name has to do. Those that
# an engine waits in, by machine. Source: Linux, arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h.
_CALLS = {
    "read": (0, 63), "write": (1, 64), "poll": (7, None), "ppoll": (271, 73), "select": (23, None), "pselect6": (270, 72),
    "epoll_wait": (232, None), "epoll_pwait": (281, 22), "futex": (202, 98), "wait4": (61, 260), "waitid": (247, 95), "nanosleep": (35, 101),
    "clock_nanosleep": (230, 115), "accept": (43, 202), "accept4": (288, 242), "connect": (42, 203), "recvfrom": (45, 207), "recvmsg": (47, 212),
    "sendto": (44, 206), "sendmsg": (46, 211), "ioctl": (16, 29), "flock": (73, 32), "fsync": (74, 82), "openat": (257, 56), "pread64": (17, 67),
    "mmap": (9, 222), "munmap": (11, 215), "madvise": (28, 233), "rt_sigtimedwait": (128, 137),
}  # fmt: skip
_NUMBERS = {machine: {numbers[at]: name for name, numbers in _CALLS.items() if numbers[at] is not None} for at, machine in enumerate(("x86_64", "aarch64"))}


class Process(t.NamedTuple):
    """A process at one moment."""

    pid: int
    """As the node counts."""
    container_pid: int
    """As the innermost PID namespace that it is in counts."""
    name: str
    state: str
    """The kernel's letter: R runs, S sleeps, D waits for a device, T is stopped, t by a debugger, Z has ended; proc_pid_stat(5)."""
    ticks: int
    """CPU time so far of all its threads, in clock ticks."""
    threads: int
    waits_in: t.Optional[str]
    """The kernel's function or the system call that its first thread waits in; None where it runs, or where that is hidden."""
    python: bool
    """It runs Python."""


def groups(root: str = "/") -> t.Dict[int, str]:
    """The text of /proc/PID/cgroup of every process of the node, kernel threads too, by its pid."""
    found = {}
    for entry in os.listdir(os.path.join(root, "proc")):
        if entry.isdigit():
            told = read(root, entry, "cgroup")
            if told:
                found[int(entry)] = told
    return found


def members(container: str, init: int, of: t.Mapping[int, str], root: str = "/") -> t.List[int]:
    """The pids of a container: those in its control groups, or where these don't name it, its first process and that one's descendants.

    :param container: its full id. :param init: the pid of its first process, 0 when it has none. :param of: see M(groups).
    """
    found = [pid for pid, told in of.items() if container in container_ids(told)]
    if found or init not in of:
        return sorted(found)
    parents = {pid: int(fields(root, pid).get("PPid") or 0) for pid in of}
    family, size = {init}, 0
    while len(family) > size:
        size = len(family)
        family |= {pid for pid, parent in parents.items() if parent in family}
    return sorted(family)


def look(pid: int, root: str = "/", machine: t.Optional[str] = None) -> t.Optional[Process]:
    """A process as it is now, or None when it has ended."""
    stat = read(root, pid, "stat")
    # "1832 (sglang::schedul) S 1701 ...": the name can hold blanks and brackets.
    rest = stat.rpartition(")")[2].split()
    status = read(root, pid, "status")
    if len(rest) < 18:
        return None
    told = _fields(status)
    cmdline = read(root, pid, "cmdline")
    return Process(
        pid=pid,
        container_pid=int((told.get("NSpid") or str(pid)).split()[-1]),
        name=name(stat.partition("(")[2].rpartition(")")[0], cmdline),
        state=rest[0],
        # utime and stime, the 14th and 15th field of the line; proc_pid_stat(5).
        ticks=int(rest[11]) + int(rest[12]),
        threads=int(rest[17]),
        waits_in=None if rest[0] in "RZX" else waits_in(read(root, pid, "wchan"), read(root, pid, "syscall"), machine or os.uname().machine),
        python=is_python(root, pid, cmdline),
    )


def name(comm: str, cmdline: str) -> str:
    """What to call a process without telling its arguments, among which are API keys.

    :param comm: the kernel's name of it, 15 characters at most: "VLLM::Worker_TP", "python3".
    :param cmdline: its arguments with a NUL after each; a title that was set stands there whole, followed by NULs or blanks.
    :returns: the first word of a title; else "python3 -m sglang.launch_server", "python3 serve.py" or "multiprocessing.spawn"; else the comm.
    """
    words = cmdline.split("\0")
    title = _TITLE.match(cmdline)
    if title:
        return _logline.mask(title.group(0))
    if comm.startswith("python") and len(words) > 1:
        flags = [word for word in words[1:5] if word]
        for at, word in enumerate(flags):
            if word == "-m" and _MODULE.fullmatch("".join(flags[at + 1 : at + 2])):
                return f"{comm} -m {flags[at + 1]}"
            told = _MULTIPROCESSING.match(word)
            if told:
                return told.group(1)
            if not word.startswith("-"):
                script = word.rpartition("/")[2]
                return f"{comm} {script}" if _SCRIPT.fullmatch(script) else comm
    return _logline.mask(comm)


def is_python(root: str, pid: int, cmdline: str) -> bool:
    """Whether a process runs Python, whatever title it has given itself."""
    try:
        program = os.readlink(os.path.join(root, "proc", str(pid), "exe"))
    except OSError:
        program = cmdline.split("\0")[0]
    # "/usr/bin/python3.12", and "/usr/bin/python3.12 (deleted)" after an update.
    return os.path.basename(program).startswith("python")


def waits_in(wchan: str, syscall: str, machine: str) -> t.Optional[str]:
    """The kernel's function that a thread sleeps in ("futex_do_wait"), else its system call's name, else None.

    :param wchan: of /proc/PID/wchan, "0" where it is hidden. :param syscall: of /proc/PID/syscall: "202 0x7f.. ..", "running", or empty.
    """
    # "poll_schedule_timeout.constprop.0": what the compiler made of it is of no use.
    function = wchan.strip().partition(".")[0]
    if function and function != "0":
        return function
    number = syscall.partition(" ")[0].strip()
    if not number.isdigit():
        return None
    return _NUMBERS.get(machine, {}).get(int(number), f"system call {number}")


def cpu_percent(before: int, after: int, seconds: float, hertz: t.Optional[int] = None) -> float:
    """The share of one CPU that was used between two readings of C(ticks): 100 is one CPU busy all the time."""
    return round(100.0 * max(0, after - before) / (hertz or os.sysconf("SC_CLK_TCK")) / seconds, 1) if seconds > 0 else 0.0


def fields(root: str, pid: int) -> t.Dict[str, str]:
    """PPid, Threads, NSpid, RssAnon, RssShmem, VmSwap and Uid out of /proc/PID/status; empty when it has ended. A kernel thread has no Rss."""
    return _fields(read(root, pid, "status"))


def own_bytes(told: t.Mapping[str, str]) -> t.Tuple[int, int]:
    """Bytes of a process that no dropping of caches gives back: its own, and those that it may share ("RssAnon:  13600 kB").

    :param told: see M(fields).
    """
    return _bytes(told, "RssAnon"), _bytes(told, "RssShmem")


def fair_bytes(root: str, pid: int, told: t.Mapping[str, str]) -> t.Optional[int]:
    """As the sum of M(own_bytes), with each page that several processes have mapped split among them; None where that is not for us.

    The kernel goes through all of the process's pages for it, which takes some 10 ms a GiB: ask it of large ones only.

    :param told: see M(fields). Source: Linux, filesystems/proc, smaps_rollup.
    """
    parts = dict(_PARTS.findall(read(root, pid, "smaps_rollup")))
    if "Pss" not in parts:
        return None
    if "Pss_Anon" in parts:
        return _bytes(parts, "Pss_Anon") + _bytes(parts, "Pss_Shmem")
    # With the files' pages in it, it can only be too much.
    return min(_bytes(parts, "Pss"), sum(own_bytes(told)))


def swapped_bytes(told: t.Mapping[str, str]) -> int:
    """Bytes of a process that are swapped out ("VmSwap:  20480 kB"), without shared memory. :param told: see M(fields)."""
    return _bytes(told, "VmSwap")


def user_id(told: t.Mapping[str, str]) -> t.Optional[int]:
    """The real user id of a process ("Uid:\\t1000\\t1000\\t1000\\t1000") as the node counts. :param told: see M(fields)."""
    first = told.get("Uid", "").split()[:1]
    return int(first[0]) if first and first[0].isdigit() else None


def _bytes(told: t.Mapping[str, str], key: str) -> int:
    part = told.get(key, "").split()[:1]
    return int(part[0]) * 1024 if part and part[0].isdigit() else 0


def _fields(status: str) -> t.Dict[str, str]:
    return dict(_FIELDS.findall(status))


def read(root: str, pid: t.Union[int, str], name: str) -> str:
    """The text of a file of a process; empty when that has ended, or is not for us."""
    return text(os.path.join(root, "proc", str(pid), name))
