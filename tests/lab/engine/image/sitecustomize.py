# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Asks the kernel for the AMX registers at the start of every Python process.

Linux hands them out on request only. vLLM's CPU attention picks its AMX kernel wherever torch reports AMX, but does not
ask: on such a processor the worker dies of SIGILL ("Illegal instruction") at the first completion. Where there is no AMX,
the call returns an error, which is right too: the engine takes another kernel there.
"""

import ctypes
import platform

if platform.machine() == "x86_64":
    _ARCH_PRCTL = 158  # the number of the system call on x86-64
    _ARCH_REQ_XCOMP_PERM = 0x1023  # Linux, Documentation/arch/x86/xstate.rst
    _XTILE_DATA = 18  # the AMX tile registers, same source
    ctypes.CDLL(None).syscall(_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XTILE_DATA)
