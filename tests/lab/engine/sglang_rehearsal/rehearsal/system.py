# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a process does to itself: its title, its end with its parent's, its knobs from the environment."""

import ctypes
import os
import signal
import time

_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15


def knob(name: str, default: float) -> float:
    """The number in the environment variable REHEARSAL_name, or the default."""
    return float(os.environ.get("REHEARSAL_" + name) or default)


def compute(seconds: float) -> None:
    """Stand for computing that takes this long at pace 1: with 0.4 of a core, for a process without any stands still."""
    end = time.monotonic() + seconds * knob("PACE", 1)
    while time.monotonic() < end:
        worked = time.thread_time() + 0.04
        while time.thread_time() < worked and time.monotonic() < end:
            pass
        time.sleep(max(0, min(0.06, end - time.monotonic())))


def end_with_parent() -> None:
    """Have the kernel kill this process when the launcher is gone, however that went."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def set_title(title: str) -> None:
    """Show the title in ps (/proc/PID/cmdline) and its first 15 characters in /proc/PID/comm, as setproctitle does."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, title.encode()[:15])
    with open("/proc/self/stat", encoding="utf-8") as file:
        # Behind the name in parentheses come the fields from the third on; arg_start and arg_end are the 48th and 49th.
        fields = file.read().rpartition(")")[2].split()
    begin, end = int(fields[45]), int(fields[46])
    ctypes.memset(begin, 0, end - begin)
    ctypes.memmove(begin, title.encode()[: end - begin - 1], min(len(title), end - begin - 1))
