# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Stacks by py-spy 0.4.3, as it wrote them of a real vLLM rank: whose they are, without arguments, and what is said where there are none."""

from __future__ import annotations

import pathlib
import subprocess
import sys
import time
import typing as t

import pytest

from ansible_collections.sparkstack.inference.plugins.module_utils import _stacks
from ansible_collections.sparkstack.inference.plugins.module_utils._docker_api import DockerError, DockerTimeout, Executed
from ansible_collections.sparkstack.inference.plugins.module_utils._processes import Process

WORKER = """\
Process 25: VLLM::Worker
Python v3.11.2 (/usr/bin/python3.11)

Thread 25 (idle): "MainThread"
    _create_c10d_store (torch/distributed/rendezvous.py:199)
    _tcp_rendezvous_handler (torch/distributed/rendezvous.py:232)
    init_process_group (torch/distributed/distributed_c10d.py:1892)
"""
SERVE = """\
Process 1: /usr/bin/python3 /opt/engine/bin/vllm serve /srv/models/tiny --api-key topsecretkey12345
Python v3.11.2 (/usr/bin/python3.11)

Thread 1 (idle): "MainThread"
    Poller.poll (zmq/sugar/poll.py:106)
"""
GONE = "Error: Failed to get process executable name. Check that the process is running.\n\nCaused by:\n    0: No such file or directory (os error 2)\n"
MISSING = 'OCI runtime exec failed: exec failed: unable to start container process: exec: "py-spy": executable file not found in $PATH: unknown\r\n'


def process(pid: int, inner: int, name: str, python: bool = True, state: str = "S") -> Process:
    return Process(pid, inner, name, state, 0, 1, None, python)


RANK = [process(672, 1, "vllm"), process(695, 17, "multiprocessing.resource_tracker"), process(703, 25, "VLLM::Worker")]


class Docker:
    """Answers exec by the pid that py-spy is to look at."""

    def __init__(self, *answers: Executed | Exception) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[list[str], str, bool]] = []

    def execute(self, container: str, command: list[str], timeout: float, user: str, privileged: bool) -> Executed:
        assert container == "c1" and 0 < timeout <= 4
        self.asked.append((command, user, privileged))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


class Module:
    def __init__(self, programs: t.Container[str] = (), answer: tuple[int, str, str] = (0, WORKER, "")) -> None:
        self.programs, self.answer = programs, answer
        self.commands: list[list[str]] = []

    def get_bin_path(self, name: str) -> str | None:
        return f"/usr/bin/{name}" if name in self.programs else None

    def run_command(self, command: list[str], **_options: t.Any) -> tuple[int, str, str]:
        self.commands.append(command)
        return self.answer


def take(
    docker: Docker, module: Module | None = None, processes: t.Sequence[Process] = RANK, room: int | None = None, seconds: float = 5, root: str = "/"
) -> t.Any:
    return _stacks.take(t.cast("t.Any", docker), "c1", processes, room, seconds, module or Module(), root)


def test_in_the_container() -> None:
    docker = Docker(Executed(0, WORKER, ""), Executed(0, SERVE, ""))
    stacks, problem = take(docker)
    # Those with a title first; multiprocessing's housekeeper is of no interest.
    assert [(stack["pid"], stack["name"]) for stack in stacks] == [(703, "VLLM::Worker"), (672, "vllm")]
    assert docker.asked == [(["py-spy", "dump", "--nonblocking", "--pid", pid], "0", True) for pid in ("25", "1")]
    assert stacks[0]["text"].startswith("Process 703 (25 in the container): VLLM::Worker\nPython v3.11.2")
    assert "init_process_group (torch/distributed/distributed_c10d.py:1892)\n" in stacks[0]["text"]
    assert stacks[1]["text"].startswith("Process 672 (1 in the container): vllm\nPython v3.11.2") and "topsecret" not in str(stacks)
    assert problem is None


@pytest.mark.parametrize(
    "missing",
    [
        Executed(126, MISSING, ""),
        Executed(127, "", MISSING),
        DockerError(MISSING, 400),
        Executed(127, "", 'exec: "py-spy": stat py-spy: no such file or directory'),
    ],
)
def test_no_py_spy_in_the_image(missing: t.Any) -> None:
    docker = Docker(missing)
    assert take(docker) == (
        [],
        'The image has no py-spy to tell where the processes stand: add "pip install py-spy" to the image, or install py-spy on the node.',
    )
    assert len(docker.asked) == 1
    # One on the node takes its place, for the pids of the node.
    docker, module = Docker(missing), Module({"py-spy", "timeout"})
    stacks, problem = take(docker, module)
    assert [stack["pid"] for stack in stacks] == [703, 672] and problem is None and len(docker.asked) == 1
    assert module.commands[0] == ["/usr/bin/timeout", "--signal=KILL", "4.0", "/usr/bin/py-spy", "dump", "--nonblocking", "--pid", "703"]


def test_a_stack_that_changes_is_tried_again() -> None:
    docker = Docker(Executed(1, "", "Error: Failed to copy PyFrameObject\n"), Executed(1, "", "Error: x\n"), Executed(0, WORKER, ""))
    stacks, problem = take(docker, processes=RANK[2:])
    assert len(stacks) == 1 and problem is None and len(docker.asked) == 3


def test_a_process_that_cannot_be_looked_at_leaves_the_others() -> None:
    docker = Docker(Executed(1, "", GONE), Executed(1, "", GONE), Executed(1, "", GONE), Executed(0, SERVE, ""))
    stacks, problem = take(docker)
    assert [stack["name"] for stack in stacks] == ["vllm"]
    assert problem == "py-spy could not tell where VLLM::Worker (pid 703) stands: Failed to get process executable name. Check that the process is running."


def test_docker_refuses() -> None:
    stacks, problem = take(Docker(DockerError("privileged mode is incompatible with user namespaces", 500)), processes=RANK[2:])
    assert (stacks, problem) == ([], "py-spy could not tell where VLLM::Worker (pid 703) stands: privileged mode is incompatible with user namespaces")


def test_nothing_is_started_in_a_container_without_room() -> None:
    docker = Docker(Executed(0, WORKER, ""))
    stacks, problem = take(docker, room=100 << 20)
    assert stacks == [] and not docker.asked
    assert problem == "The container has only 100 MiB left below its memory limit, too little to run py-spy in it: install py-spy on the node."
    stacks, problem = take(docker, Module({"py-spy"}), room=100 << 20)
    assert len(stacks) == 2 and problem is None and not docker.asked
    assert len(take(docker, room=200 << 20)[0]) == 2


def test_no_python() -> None:
    shell = [process(5, 1, "sh", python=False), process(6, 2, "python3", state="Z")]
    assert take(Docker(Executed(0, WORKER, "")), processes=shell) == ([], "No process of the container runs Python, so there are no stacks to take.")


def test_more_processes_than_are_looked_at() -> None:
    docker = Docker(Executed(0, WORKER, ""))
    stacks, problem = take(docker, processes=[process(100 + n, 10 + n, "python3") for n in range(20)] + RANK)
    assert len(stacks) == 8 and stacks[0]["name"] == "VLLM::Worker"
    assert problem == "Of 22 Python processes, only 8 were looked at."


def test_no_time_left() -> None:
    assert take(Docker(Executed(0, WORKER, "")), seconds=0.2) == ([], "The time was over before all stacks were taken.")


def test_a_long_stack_is_cut_in_the_middle() -> None:
    text = WORKER + "".join(f"    frame{n} (a.py:{n})\n" for n in range(9000)) + "    <module> (<string>:1)\n"
    found = _stacks.clean(text, RANK[2])
    assert len(found) < 50000 and found.startswith("Process 703") and found.endswith("<module> (<string>:1)\n") and "\n[...]\n" in found


@pytest.mark.parametrize(("comm", "killed"), [("py-spy", True), ("bash", False)])
def test_what_does_not_end_is_not_left_behind(tmp_path: pathlib.Path, comm: str, killed: bool) -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as child:
        folder = tmp_path / "proc" / str(child.pid)
        folder.mkdir(parents=True)
        (folder / "comm").write_text(comm + "\n")
        stacks, problem = take(
            Docker(DockerTimeout("py-spy in the container was not done within 4.0 seconds.", child.pid)), processes=RANK[2:], root=str(tmp_path)
        )
        try:
            end = time.monotonic() + 5
            while killed and child.poll() is None and time.monotonic() < end:
                time.sleep(0.01)
            assert child.poll() == (-9 if killed else None)
        finally:
            child.kill()
    assert stacks == [] and "was not done within 4.0 seconds" in problem
