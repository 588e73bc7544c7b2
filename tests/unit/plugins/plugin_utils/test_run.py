# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs are told apart, and one that ended is known to have: with real processes, and with folders in place of /proc."""

from __future__ import annotations

import getpass
import os
import pathlib
import signal
import socket
import subprocess
import sys
import typing as t

import pytest

from ansible_collections.sparkstack.inference.plugins.plugin_utils import _run


@pytest.fixture(autouse=True)
def no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWX_JOB_ID", raising=False)
    monkeypatch.delenv("TOWER_JOB_ID", raising=False)


def test_who_this_run_is() -> None:
    me = _run.owner({}, os.getpid())
    assert me == _run.owner({}, os.getpid())
    host, machine, pid, start = me["run"].split("/")
    assert (host, pid, me["host"], me["pid"], me["job"]) == (socket.gethostname(), str(os.getpid()), host, os.getpid(), None)
    assert start == pathlib.Path(f"/proc/{os.getpid()}/stat").read_text().rpartition(")")[2].split()[19]
    assert machine.startswith(pathlib.Path("/proc/sys/kernel/random/boot_id").read_text()[:8] + ".")
    assert me["user"] == getpass.getuser()


def test_a_job_says_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    job = _run.owner({"awx_job_id": 17, "awx_user_name": "alice"}, 1)
    assert (job["job"], job["user"]) == ("17", "alice")
    monkeypatch.setenv("TOWER_JOB_ID", "18")
    assert _run.owner({}, 1)["job"] == "18"


def test_a_run_is_gone_when_its_process_is() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        run = _run.owner({}, process.pid)["run"]
        assert not _run.gone(run)
        process.send_signal(signal.SIGKILL)
        # Nobody has asked yet how it ended: a zombie works no more.
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert _run.gone(run)
    assert _run.gone(run)


@pytest.mark.parametrize(
    "change, gone",
    [
        ({}, False),
        ({3: "1"}, True),  # The number is another process's by now.
        ({0: "elsewhere"}, False),
        ({1: "00000000.1"}, False),
        ({2: "x"}, False),
    ],
)
def test_of_another_machines_run_nothing_is_certain(change: dict[int, str], gone: bool) -> None:
    parts = _run.owner({}, os.getpid())["run"].split("/")
    for place, value in change.items():
        parts[place] = value
    assert _run.gone("/".join(parts)) is gone


@pytest.mark.parametrize("run", ["", "me", "a/b/c", "a/b/1/2/3"])
def test_a_name_that_somebody_gave_tells_nothing(run: str) -> None:
    assert _run.gone(run) is False


def test_without_a_proc(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """macOS has none: the machine is known by its network card, and a process by its number alone."""
    monkeypatch.setattr(_run.uuid, "getnode", lambda: 0xA1B2)
    me = _run.owner({}, os.getpid(), str(tmp_path))
    assert me["run"] == f"{socket.gethostname()}/a1b2/{os.getpid()}/0"
    assert _run.gone(me["run"], str(tmp_path)) is False
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    ended = f"{socket.gethostname()}/a1b2/{process.pid}/0"
    assert _run.gone(ended, str(tmp_path)) is True

    def closed(_pid: int, _signal: int) -> t.NoReturn:
        raise PermissionError

    monkeypatch.setattr(_run.os, "kill", closed)
    assert _run.gone(ended, str(tmp_path)) is False
