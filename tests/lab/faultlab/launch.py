# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A launch under way: the play that starts and watches it, its live lines, and the verdict with the time it was known."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import threading
import time
import typing as t

import play

PLAY = play.ROOT / "tests" / "lab" / "plays" / "start.yml"
# "[spark2] 4/9 load_weights 71% (5/7) 88 s": what the watch prints of a rank.
PHASE = r"\[{node}\] \d/9 {phase}\b"


class Missed(Exception):
    """What was waited for did not come; the text says what."""


class Launch:
    """A run of plays/start.yml."""

    def __init__(self, start: dict[str, t.Any], folder: pathlib.Path) -> None:
        """
        :param start: its variable; 'verdict' and 'again' are set here. :param folder: an empty one for its files.
        """
        self.folder = folder
        self.start = {**start, "verdict": str(folder / "verdict.json"), "again": str(folder / "again") if start["again"] else ""}
        self.lines: list[tuple[float, str]] = []
        self._news = threading.Condition()
        self._ended = False

    def __enter__(self) -> Launch:
        extra = self.folder / "start.json"
        extra.write_text(json.dumps({"start": self.start}))
        command = [str(play.BIN / "ansible-playbook"), str(PLAY), "-i", play.inventory(), "-e", f"@{extra}"]
        self._run = subprocess.Popen(
            command,
            cwd=play.ROOT,
            env={**play.environment(), "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        return self

    def __exit__(self, *_error: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._run.pid, signal.SIGKILL)
        self._run.wait()
        self._reader.join(timeout=5)
        (self.folder / "play.log").write_text(self.output)

    @property
    def output(self) -> str:
        """All that the play has printed, each line with the seconds since its beginning."""
        begin = self.lines[0][0] if self.lines else 0.0
        return "".join(f"{at - begin:7.2f} {line}\n" for at, line in self.lines)

    def _read(self) -> None:
        assert self._run.stdout is not None
        for line in self._run.stdout:
            with self._news:
                self.lines.append((time.time(), line.rstrip("\n")))
                self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()

    def wait_line(self, pattern: str, seconds: float, since: int = 0) -> float:
        """Wait until the play has printed a line that matches; returns when it came (epoch).

        :raises Missed: when it ended first, or the time is over.
        """
        deadline = time.monotonic() + seconds
        seen = since
        with self._news:
            while True:
                for at, line in self.lines[seen:]:
                    if re.search(pattern, line):
                        return at
                seen = len(self.lines)
                if self._ended:
                    raise Missed(f"the play ended before it printed '{pattern}'")
                if not self._news.wait(timeout=max(0.0, deadline - time.monotonic())):
                    raise Missed(f"no line '{pattern}' within {seconds:.0f} s")

    def phase(self, node: str, phase: str, seconds: float = 180) -> float:
        """Wait until a rank has come to a phase, by the watch's own lines."""
        return self.wait_line(PHASE.format(node=node, phase=phase), seconds)

    def verdict(self, seconds: float = 300) -> tuple[float, dict[str, t.Any]]:
        """Wait for the watch's verdict: when it was known (epoch), and what it is."""
        path = pathlib.Path(self.start["verdict"])
        deadline = time.monotonic() + seconds
        while not path.exists():
            if self._ended and not path.exists():
                raise Missed("the play ended without a verdict")
            if time.monotonic() > deadline:
                raise Missed(f"no verdict within {seconds:.0f} s")
            time.sleep(0.1)
        # Written by rename: it is there as a whole.
        told = json.loads(path.read_text())
        return float(told["known"]), told["result"]

    def again(self) -> None:
        """Have the play watch once more."""
        path = pathlib.Path(self.start["verdict"])
        path.rename(path.with_name("verdict-before.json"))
        pathlib.Path(self.start["again"]).touch()
