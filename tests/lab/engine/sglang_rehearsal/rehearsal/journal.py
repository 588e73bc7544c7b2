# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The log: lines with the engine's prefix, plain lines, and the two kinds of progress bars."""

import os
import time

_BLOCKS = " ▏▎▍▌▋▊▉█"


def write(text: str) -> None:
    """Write to standard error at once, so that lines of several processes do not cut each other."""
    data = text.encode()
    while data:
        data = data[os.write(2, data) :]


class Journal:
    """Writes log lines: "[2026-11-29 22:42:44 TP0] text"; the launcher's have no rank."""

    def __init__(self, rank: str = "") -> None:
        self._rank = f" {rank}" if rank else ""

    def say(self, text: str) -> None:
        """Write one line, or a text whose further lines have no prefix, as a traceback's."""
        write(f"[{time.strftime('%Y-%m-%d %H:%M:%S')}{self._rank}] {text}\n")


def c10d(level: str, place: str, text: str) -> None:
    """Write a line of torch's C++ side: "[W1129 22:53:27.636174016 socket.cpp:764] [c10d] text"."""
    now = time.time_ns()
    stamp = time.strftime("%m%d %H:%M:%S", time.localtime(now // 10**9))
    write(f"[{level}{stamp}.{now % 10**9:09d} {place}] [c10d] {text}\n")


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60:02d}:{int(seconds) % 60:02d}"


class Bar:
    """A progress bar: one line that grows behind carriage returns until it is closed.

    blocks: with the picture of a bar (graph capture), else "% Completed" (shards).
    """

    def __init__(self, title: str, total: int, blocks: bool) -> None:
        self.title, self.total, self.blocks, self.done = title, total, blocks, 0
        self._begin = time.monotonic()
        self.show()

    def show(self) -> None:
        """Write the bar as it stands."""
        elapsed = time.monotonic() - self._begin
        share = self.done / self.total
        left, rate = "?", "?it/s"
        if self.done:
            each = elapsed / self.done or 1e-6
            left = _clock(each * (self.total - self.done))
            rate = f"{1 / each:5.2f}it/s" if each < 1 else f"{each:5.2f}s/it"
        if self.blocks:
            eighths = int(share * 80)
            picture = ("█" * (eighths // 8) + (_BLOCKS[eighths % 8] if eighths % 8 else "")).ljust(10)
            middle = f"{share:4.0%}|{picture}| {self.done}/{self.total}"
        else:
            middle = f"{share:4.0%} Completed | {self.done}/{self.total}"
        title = f"{self.title}:" if self.title else ""
        write(f"\r{title}{' ' if title else ''}{middle} [{_clock(elapsed)}<{left}, {rate}]")

    def step(self) -> None:
        """Count one more and write the bar."""
        self.done += 1
        self.show()

    def close(self) -> None:
        """End the line."""
        write("\n")
