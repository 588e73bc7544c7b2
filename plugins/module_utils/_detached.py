# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""A part of a module that outlives it: a process of its own on the node, for minutes, without a file, a terminal or a parent of the module's."""

from __future__ import annotations

import contextlib
import os
import typing as t


def run(name: str, keep: t.Callable[[], t.Collection[int]], work: t.Callable[[], None]) -> None:
    """Have work done in a process of its own, and go on.

    All that the work imports must be imported before: the module's package is gone when the module is.

    :param name: what the process is called, of 15 characters at most. :param keep: the numbers of the open files that it needs.
    """
    first = os.fork()
    if first:
        os.waitpid(first, 0)
        return
    try:
        os.setsid()
        if os.fork() == 0:
            _let_go(name, keep())
            work()
    finally:
        # The module's own end, with its answer, belongs to the first process alone.
        os._exit(0)


def _let_go(name: str, keep: t.Collection[int]) -> None:
    """Let go of all that the module was started with: whoever waits for its end waits for these files to be closed."""
    os.chdir("/")
    with contextlib.suppress(OSError), open("/proc/self/comm", "w", encoding="ascii") as comm:
        comm.write(name)
    for entry in os.listdir("/proc/self/fd"):
        if int(entry) > 2 and int(entry) not in keep:
            with contextlib.suppress(OSError):
                os.close(int(entry))
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nothing, number)
