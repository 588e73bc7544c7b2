# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Runs of the deploy playbook: what they say of their plan, and runs in the background that can be killed at a point."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import time
import types
import typing as t

import play

from .launch import Missed

DEPLOY = "deploy_qwen.yml"
FOLDER = play.ROOT / "build" / "faults" / "converge"
HISTORY = FOLDER / "history"
"""The controller's history of launches; the user's own stays as it is."""

_SHORT = {
    "nothing": "nothing",
    "watch it until it is ready": "watched",
    "start all ranks, workers first": "all ranks started",
    "stop all ranks, then start all ranks, workers first": "all ranks restarted",
}


def variables(recipe: pathlib.Path, extra: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """The extra variables of each run."""
    return {"tp_launch_recipe": str(recipe), "tp_launch_history_dir": str(HISTORY), **extra}


def action(run: play.Play) -> str:
    """What the plan was, in few words; "refused" where there is none."""
    found = re.findall(r"^  action +(.+)$", run.output, re.MULTILINE)
    return _SHORT.get(found[0], found[0]) if found else "refused"


def reasons(run: play.Play) -> list[str]:
    """Why, as the plan says it; of a run that failed its own words."""
    block = re.search(r"^  because +(.+(?:\n {13}\S.*)*)", run.output, re.MULTILINE)
    found = [line.strip() for line in block.group(1).splitlines()] if block else []
    if run.code:
        # "fatal: [spark1]: FAILED! =>\n    changed: false\n    msg: 'a sentence'", of several lines where it is long.
        told = re.search(r"^fatal: .*\n(?: .*\n)*?( +)msg: (?:\|-|>-)?(.*(?:\n\1 +\S.*)*)", run.output, re.MULTILINE)
        found.append(" ".join(told.group(2).split()).strip("'\"") if told else "it failed")
    return found


def seen(run: play.Play, name: str) -> str:
    """What a run says of itself, and the file in which the whole is kept, for a sentence."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    path = FOLDER / f"{name}.txt"
    path.write_text(run.output)
    return f"code {run.code}, {action(run)}, {' '.join(reasons(run))} (see {path})"


class Background:
    """A run whose output goes to a file, and which names each task when it begins."""

    def __init__(self, values: t.Mapping[str, t.Any], name: str) -> None:
        FOLDER.mkdir(parents=True, exist_ok=True)
        self._log = FOLDER / f"{re.sub(r'[^a-z0-9]+', '-', name.lower())}.log"
        self._values = values

    def __enter__(self) -> Background:
        command = [str(play.BIN / "ansible-playbook"), DEPLOY, "-i", play.inventory(), "-e", json.dumps(self._values)]
        environment = {**play.environment(), "PYTHONUNBUFFERED": "1", "ANSIBLE_DISPLAY_SKIPPED_HOSTS": "1"}
        self._begin = time.monotonic()
        with self._log.open("wb") as log:
            self._run = subprocess.Popen(command, cwd=play.ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: types.TracebackType | None) -> None:
        if self._run.poll() is None:
            self.kill()

    @property
    def output(self) -> str:
        """What it has said so far."""
        return self._log.read_text(errors="replace")

    def wait(self, pattern: str, seconds: float) -> None:
        """Until its output matches."""
        deadline = time.monotonic() + seconds
        while not re.search(pattern, self.output, re.MULTILINE):
            if self._run.poll() is not None or time.monotonic() > deadline:
                raise Missed(f"the run never came to '{pattern}' (see {self._log})")
            time.sleep(0.02)

    def kill(self) -> None:
        """SIGKILL to the controller and all its forks, as a crash or the kernel would."""
        os.killpg(self._run.pid, signal.SIGKILL)
        self._run.wait(10)
        deadline = time.monotonic() + 10
        with contextlib.suppress(ProcessLookupError):
            while time.monotonic() < deadline:
                os.killpg(self._run.pid, 0)
                time.sleep(0.02)
            raise Missed("processes of the killed run are still there")

    def end(self, seconds: float) -> play.Play:
        """How it went, at its own end."""
        code = self._run.wait(seconds)
        return play.read(code, self.output, time.monotonic() - self._begin)
