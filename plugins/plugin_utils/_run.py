# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is private to the collection: it can change at any time.

"""Who this run of Ansible is, and whether another run of this controller still lives."""

from __future__ import annotations

import getpass
import os
import socket
import typing as t
import uuid


def owner(task_vars: t.Mapping[str, t.Any], pid: int, proc: str = "/proc") -> dict[str, t.Any]:
    """This run for a lock or a record: C(run), which no other run has, and C(user), C(host), C(pid), C(job) for people.

    :param pid: of the controller's process, the same in all tasks of a run. :param proc: where C(/proc) is, if it is.
    """
    host = socket.gethostname()
    return {
        "run": f"{host}/{_machine(proc)}/{pid}/{(_state(pid, proc) or ['', '0'])[1]}",
        "user": task_vars.get("awx_user_name") or task_vars.get("tower_user_name") or _user(),
        "host": host,
        "pid": pid,
        "job": _job(task_vars),
    }


def gone(run: str, proc: str = "/proc") -> bool:
    """Whether a run is certain to have ended: it was of this very machine, and its process is no more.

    :param run: as :func:`owner` makes it. Of a run of another machine nothing is certain.
    """
    parts = run.split("/")
    if len(parts) != 4 or parts[0] != socket.gethostname() or parts[1] != _machine(proc) or not parts[2].isdigit():
        return False
    pid = int(parts[2])
    if not os.path.exists(os.path.join(proc, "self")):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        except OSError:
            return False
        return False
    found = _state(pid, proc)
    # Z: killed, and its parent has not asked yet how it ended.
    return found is None or found[0] in ("Z", "X") or found[1] != parts[3]


def _machine(proc: str) -> str:
    """This boot of this machine, and where its process ids are known: a job in a container sees others than its neighbour."""
    try:
        with open(os.path.join(proc, "sys", "kernel", "random", "boot_id"), encoding="ascii") as stream:
            boot = stream.read().strip()[:8]
        space = os.readlink(os.path.join(proc, "self", "ns", "pid"))
    except OSError:
        # macOS: the hardware address; where there is none, Python makes up a number, which is no other run's.
        return f"{uuid.getnode():x}"
    return f"{boot}.{''.join(filter(str.isdigit, space))}"


def _state(pid: int, proc: str) -> list[str] | None:
    """A process's state (one letter) and when it was started (ticks since the boot); None when there is no such process or no /proc.

    Source: fields 3 and 22 of C(/proc/PID/stat).
    """
    try:
        with open(os.path.join(proc, str(pid), "stat"), encoding="utf-8", errors="replace") as stream:
            # "1234 (a name) may have) S 1 ...": the name ends at the last parenthesis.
            fields = stream.read().rpartition(")")[2].split()
    except OSError:
        return None
    return [fields[0], fields[19]] if len(fields) > 19 else None


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def _job(task_vars: t.Mapping[str, t.Any]) -> str | None:
    """The number of the job in AWX that this run is, if it is one."""
    for name in ("awx_job_id", "tower_job_id"):
        found = task_vars.get(name) or os.environ.get(name.upper())
        if found:
            return str(found)
    return None
