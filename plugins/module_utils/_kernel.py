# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""What the kernel has said that matters to a rank: whom it killed for lack of memory, GPU errors, lost links.

A kind of message is one row of the table. The kernel's log is one for the whole machine, whatever runs on it: a message
belongs to a container only where the kernel names that container's control group.
"""

from __future__ import annotations

import ctypes
import os
import re
import time
import typing as t
from datetime import datetime, timezone

from ansible_collections.sparkstack.inference.plugins.module_utils._cgroup import container_in
from ansible_collections.sparkstack.inference.plugins.module_utils._logline import seconds

SLACK = 5.0
"""Seconds by which a message's time can be wrong: the kernel's stamps and the wall clock run apart, some parts in a million."""


class Row(t.NamedTuple):
    """A kind of message: its cause in the knowledge base or nothing, a text that each one holds, and its parts.

    The pattern names the parts C(pid), C(process), C(interface), C(group) (the control group of the killed process) and C(limit) (the one
    whose memory was full).
    """

    kind: str
    cause: str
    holds: str
    pattern: t.Pattern[str]


def _row(kind: str, cause: str, holds: str, pattern: str) -> Row:
    return Row(kind, cause, holds, re.compile(pattern))


_KILLED = r"Kill(?:ed)? process (?P<pid>\d+) \((?P<process>.*?)\)(?=,? |$)"
_CHOSEN = r"oom-kill:constraint=.*?(?:,oom_memcg=(?P<limit>[^,]*))?,task_memcg=(?P<group>[^,]*),task=(?P<process>.*),pid=(?P<pid>\d+)"
_DOWN = r"(?:(?P<interface>[\w.-]+): )?(?:NIC )?[Ll]ink (?:is |becomes )?(?:[Dd]own|not ready)"
# fmt: off
TABLE = (
    # "python3 invoked oom-killer: gfp_mask=..": a new choice begins.
    _row("begin", "", "invoked oom-killer", r"invoked oom-killer"),
    # "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=..,oom_memcg=/docker/<id>,task_memcg=/docker/<id>,task=python,pid=1,uid=0";
    # for want of memory on the whole node: "oom-kill:constraint=CONSTRAINT_NONE,..,global_oom,task_memcg=/docker/<id>,..".
    _row("chosen", "oom", "oom-kill:constraint=", _CHOSEN),
    # "Tasks in /docker/<id> are going to be killed due to memory.oom.group set": the others of the group follow the chosen one.
    _row("all", "", "killed due to memory.oom.group set", r"Tasks in (?P<group>\S+) are"),
    # "Memory cgroup out of memory: Killed process 123 (VLLM::Worker) total-vm:628880kB, anon-rss:354304kB, ..".
    _row("oom", "oom", "Memory cgroup out of memory: Kill", _KILLED),
    _row("oom", "oom", "Out of memory: Kill", _KILLED),
    # "NVRM: Xid (PCI:000f:01:00): 79, pid=1234, name=python3, GPU has fallen off the bus."
    _row("gpu", "", "NVRM: Xid", r"NVRM: Xid \((?:PCI:)?[^)]*\): \d+(?:, pid='?(?P<pid>\d+)'?, name=(?P<process>[^,]+))?"),
    # "NVRM: nvCheckOkFailedNoLog: Check failed: Out of memory [NV_ERR_NO_MEMORY] (0x00000051) returned from ..".
    _row("gpu_memory", "", "NV_ERR_NO_MEMORY", r""),
    # "mlx5_core 0000:01:00.0 enp1s0f0np0: Link down", "r8169 0007:01:00.0 enP7s7: Link is Down".
    _row("link", "", "Link down", _DOWN),
    _row("link", "", "ink is Down", _DOWN),
    _row("link", "", "link is not ready", _DOWN),
    # "mlx5_core 0000:01:00.0: Port module event: module 0, Cable unplugged".
    _row("link", "", "Cable unplugged", r""),
    # "python3[1234]: segfault at 10 ip 00007f.. sp 00007f.. error 4 in libnccl.so.2[7f..]".
    _row("segfault", "", "segfault at", r"(?:^|[ \t])(?P<process>\S+)\[(?P<pid>\d+)\]: segfault at"),
)
# fmt: on
_ANY = re.compile("|".join(re.escape(row.holds) for row in TABLE))

# "6,1234,98765432,-;text": priority, number, microseconds, flags (Documentation/ABI/testing/dev-kmsg); "<6>[12914.471989] text"
# of syslog(2), "[12914.471989] text" of dmesg, "[Mon Nov 30 03:26:01 2026] text" of dmesg -T; what the journal puts before a
# message: "Nov 30 03:26:01 spark1 kernel: ", "2026-11-30T03:26:01+0000 spark1 kernel: ", and dmesg --time-format iso.
_KMSG = re.compile(r"\d+,\d+,(\d+),[^;]*;")
_STAMP = re.compile(r"(?:<\d+>)?\[ *(\d+\.\d+)\](?:\[ *[TC]\d+\])? ")
_DATE = re.compile(r"\[(?:[A-Z][a-z]{2} )([A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4})\] ")
_SYSLOG = re.compile(r"([A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d)(?:\.\d+)? \S+ kernel: ")
_ISO = re.compile(r"(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?) (?:\S+ kernel: )?")


def messages(log: str, boot: t.Optional[float] = None, year: int = 1970) -> t.List[t.Dict[str, t.Any]]:
    """The messages that matter, in the log's order.

    :param log: records of C(/dev/kmsg), or the text of C(dmesg) or of the journal.
    :param boot: when the kernel's clock began, in seconds since the epoch; without it a stamp tells no time.
    :param year: of journal lines, which tell none; their times are taken for UTC.
    :returns: each with C(time) (seconds since the epoch, or None), C(text), C(cause) ("oom" or nothing), C(kind) (oom, gpu,
        gpu_memory, link or segfault), C(process) and C(pid) as the kernel tells them, C(container) (id of the killed process's),
        C(limit) (whose memory was full: "container", "node", or nothing), and C(interface). A killed process is one message, though the
        kernel has a line for the choice and one for the kill.
    """
    found: t.List[t.Dict[str, t.Any]] = []
    chosen: t.Dict[str, t.Dict[str, t.Any]] = {}
    group: t.Optional[str] = None
    for line in log.split("\n"):
        # A line that begins with a space goes on about the one before (" SUBSYSTEM=net"): it holds keys, no message.
        if not _ANY.search(line) or line[:1] == " ":
            continue
        when, text = _split(line.rstrip("\r"), boot, year)
        row = next(row for row in TABLE if row.holds in text)
        match = row.pattern.search(text)
        parts = match.groupdict() if match else {}
        if row.kind == "begin":
            chosen, group = {}, None
        elif row.kind == "all":
            group = container_in(parts.get("group") or "")
        elif row.kind == "oom" and parts.get("pid") in chosen:
            chosen.pop(str(parts["pid"])).update(text=text, process=parts["process"])
        else:
            message = {
                "time": when,
                "text": text,
                "cause": row.cause,
                "kind": "oom" if row.kind == "chosen" else row.kind,
                "process": parts.get("process"),
                "pid": int(parts["pid"]) if parts.get("pid") else None,
                "container": container_in(parts.get("group") or "") if row.kind == "chosen" else group if row.kind == "oom" else None,
                "limit": "",
                "interface": parts.get("interface"),
            }
            if message["kind"] == "oom":
                limit = container_in(parts.get("limit") or "") if row.kind == "chosen" else group
                message["limit"] = "container" if limit is not None and limit == message["container"] else "node"
            if row.kind == "chosen" and parts.get("pid"):
                chosen[parts["pid"]] = message
            found.append(message)
    return found


def _split(line: str, boot: t.Optional[float], year: int) -> t.Tuple[t.Optional[float], str]:
    """A line's time and message."""
    for pattern, unit in ((_KMSG, 1e-6), (_STAMP, 1.0)):
        match = pattern.match(line)
        if match:
            return (None if boot is None else round(boot + float(match.group(1)) * unit, 3)), line[match.end() :]
    match = _ISO.match(line)
    if match:
        return seconds(match.group(1), year), line[match.end() :]
    for pattern, prefix in ((_DATE, ""), (_SYSLOG, " {0}".format(year))):
        match = pattern.match(line)
        if match:
            try:
                moment = datetime.strptime(match.group(1) + prefix, "%b %d %H:%M:%S %Y").replace(tzinfo=timezone.utc)
            except ValueError:
                return None, line[match.end() :]
            return moment.timestamp(), line[match.end() :]
    return None, line


def concerning(found: t.Iterable[t.Mapping[str, t.Any]], container: str, since: t.Optional[float]) -> t.List[t.Dict[str, t.Any]]:
    """The messages about processes of this container since a time (its last start), the newest twenty.

    :param container: its id, 64 hexadecimal digits.
    """
    own = (message for message in found if message["container"] == container)
    return [dict(m) for m in own if since is None or m["time"] is None or m["time"] >= since - SLACK][-20:]


def clock_start() -> float:
    """When the kernel's clock of this node began, in seconds since the epoch.

    The stamps come from a clock that nobody corrects. Reckoned from C(btime), which a time server's corrections leave alone,
    they are wrong by minutes after months.
    """
    return time.time() - time.clock_gettime(time.CLOCK_MONOTONIC_RAW)


def read(path: str = "/dev/kmsg", patience: float = 0.5) -> t.Optional[str]:
    """The kernel's log as far as it is kept, or None where it can't be read (without root's rights, say).

    :param path: another one is for tests. :param patience: seconds after which it is enough: somebody may write without end.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        # A node that is itself a system container has no /dev/kmsg.
        return _syslog() if path == "/dev/kmsg" else None
    records: t.List[bytes] = []
    end = time.monotonic() + patience
    try:
        while time.monotonic() < end:
            try:
                # A read gives one record, and fails where that doesn't fit; the kernel makes none of more than 8 KiB.
                record = os.read(handle, 16384)
            except BlockingIOError:
                break
            except BrokenPipeError:
                # The record was overwritten meanwhile: the next read goes on with the oldest there is.
                continue
            except OSError:
                return None
            if not record:
                break
            records.append(record)
    finally:
        os.close(handle)
    return b"".join(records).decode("utf-8", "replace")


def _syslog() -> t.Optional[str]:
    """The same by syslog(2): SYSLOG_ACTION_SIZE_BUFFER (10), SYSLOG_ACTION_READ_ALL (3)."""
    library = ctypes.CDLL(None)
    if not hasattr(library, "klogctl"):
        return None
    size = library.klogctl(10, None, 0)
    if size <= 0:
        return None
    buffer = ctypes.create_string_buffer(size)
    length = library.klogctl(3, buffer, size)
    return buffer.raw[:length].decode("utf-8", "replace") if length >= 0 else None
