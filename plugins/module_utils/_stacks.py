# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""Where the Python code of a container's processes stands, by py-spy, without pausing them."""

from __future__ import annotations

import os
import re
import signal
import time
import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils import _logline, _processes
from ansible_collections.sparkstack.inference.plugins.module_utils._docker_api import DockerAPI, DockerError, DockerTimeout
from ansible_collections.sparkstack.inference.plugins.module_utils._smi import Module

MOST = 8
_TRIES = 3
_PER_PROCESS = 4.0
_MOST_TEXT = 48 << 10
# What py-spy and what runs it need in the container's control group; a container nearer to its limit than this is left alone.
ROOM = 128 << 20
# 'Process 1: /usr/bin/python3 /usr/bin/vllm serve /model --api-key ...': the whole argv stands there.
_HEADER = re.compile(r"\AProcess \d+: .*\n")
# 'OCI runtime exec failed: exec failed: unable to start container process: exec: "py-spy": executable file not found in $PATH: unknown'
_MISSING = re.compile(r"executable file not found|no such file or directory", re.IGNORECASE)

Stacks = t.Tuple[t.List[t.Dict[str, t.Any]], t.Optional[str]]


class _NotThere(Exception):
    """There is no py-spy where it was looked for."""


def ordered(processes: t.Sequence[_processes.Process]) -> t.List[_processes.Process]:
    """The Python processes, those first that an engine gave a title; multiprocessing's housekeeper always waits and tells nothing."""
    wanted = [process for process in processes if process.python and process.state != "Z" and process.name != "multiprocessing.resource_tracker"]
    return sorted(wanted, key=lambda process: ("::" not in process.name, process.pid))


def take(api: DockerAPI, container: str, processes: t.Sequence[_processes.Process], room: t.Optional[int], seconds: float, module: Module, root: str) -> Stacks:
    """The stacks of a running container's Python processes.

    :param container: its id. :param processes: its processes.
    :param room: bytes of memory that its control group has left; None where there is no limit.
    :param seconds: what all of it may take.
    :returns: C(pid), C(name) and C(text) of each process, all threads in it, and a sentence on what is missing or None.

    py-spy reads the memory of a process with process_vm_readv, for which the container's few capabilities don't suffice: it is run in
    the container as root and with all of them, by Docker's exec. With C(--nonblocking) the process isn't stopped: a stop would break off
    its system calls (an epoll_wait returns EINTR). The price is that a stack that changes meanwhile can't be read: then it is tried again.
    """
    deadline = time.monotonic() + seconds
    wanted = ordered(processes)
    if not wanted:
        return [], "No process of the container runs Python, so there are no stacks to take."
    own = module.get_bin_path("py-spy")
    inside = room is None or room >= ROOM
    stacks: t.List[t.Dict[str, t.Any]] = []
    problems: t.List[str] = []
    for process in wanted[:MOST]:
        left = min(_PER_PROCESS, deadline - time.monotonic())
        if left < 0.5:
            problems.append("The time was over before all stacks were taken.")
            break
        try:
            if inside:
                try:
                    text = _again(lambda process=process, left=left: _inside(api, container, process, left, root))  # type: ignore[misc]
                except _NotThere:
                    inside = False
            if not inside:
                if not own:
                    raise _NotThere
                text = _again(lambda process=process, left=left: _outside(module, str(own), process, left))  # type: ignore[misc]
        except _NotThere:
            if room is not None and room < ROOM:
                return [], f"The container has only {room >> 20} MiB left below its memory limit, too little to run py-spy in it: install py-spy on the node."
            return [], 'The image has no py-spy to tell where the processes stand: add "pip install py-spy" to the image, or install py-spy on the node.'
        except (DockerError, ValueError) as error:
            problems.append(f"py-spy could not tell where {process.name} (pid {process.pid}) stands: {_logline.mask(str(error))}")
            continue
        stacks.append({"pid": process.pid, "name": process.name, "text": clean(text, process)})
    if len(wanted) > MOST:
        problems.append(f"Of {len(wanted)} Python processes, only {MOST} were looked at.")
    return stacks, " ".join(problems) or None


def clean(text: str, process: _processes.Process) -> str:
    """What py-spy wrote, with the process's name in place of its arguments, and without secrets; cut in the middle when it is very long."""
    text = _logline.mask(_HEADER.sub(f"Process {process.pid} ({process.container_pid} in the container): {process.name}\n", text)).rstrip() + "\n"
    if len(text) > _MOST_TEXT:
        text = text[: _MOST_TEXT // 2] + "\n[...]\n" + text[-_MOST_TEXT // 2 :]
    return text


def _again(dump: t.Callable[[], str]) -> str:
    """Try until a stack that changes could be read."""
    for left in reversed(range(_TRIES)):
        try:
            return dump()
        except ValueError:
            if not left:
                raise
    raise AssertionError


def _inside(api: DockerAPI, container: str, process: _processes.Process, seconds: float, root: str) -> str:
    command = ["py-spy", "dump", "--nonblocking", "--pid", str(process.container_pid)]
    try:
        done = api.execute(container, command, seconds, user="0", privileged=True)
    except DockerTimeout as error:
        # Nothing that was started here is left behind; by its name, lest the pid be another's meanwhile.
        if error.pid and _processes.read(root, error.pid, "comm").strip() == "py-spy":
            os.kill(error.pid, signal.SIGKILL)
        raise
    except DockerError as error:
        if _MISSING.search(str(error)):
            raise _NotThere from error
        raise
    if done.code in (126, 127) and _MISSING.search(done.stdout + done.stderr):
        raise _NotThere
    return _said(done.code, done.stdout, done.stderr)


def _outside(module: Module, program: str, process: _processes.Process, seconds: float) -> str:
    command = [program, "dump", "--nonblocking", "--pid", str(process.pid)]
    guard = module.get_bin_path("timeout")
    if guard:
        command = [guard, "--signal=KILL", f"{seconds:.1f}"] + command
    code, stdout, stderr = module.run_command(command, errors="surrogate_then_replace")
    return _said(code, stdout, stderr)


def _said(code: t.Optional[int], stdout: str, stderr: str) -> str:
    """py-spy's answer. :raises ValueError: with the first line of its complaint ("Error: Failed to get process executable name...")."""
    if code == 0 and "Thread " in stdout:
        return stdout
    told = next((line for line in stderr.splitlines() + stdout.splitlines() if line.strip()), f"it ended with {code}.")
    raise ValueError(told.replace("Error: ", "", 1))
