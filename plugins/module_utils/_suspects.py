# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""All that may have ended one rank, by its log, its container and its node, and what each is worth over all ranks. Pure."""

from __future__ import annotations

import re
import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils import _guard_told
from ansible_collections.sparkstack.inference.plugins.module_utils._engines._common import SIGNATURES
from ansible_collections.sparkstack.inference.plugins.module_utils._records import (
    Candidate,
    Record,
    candidates,
    exited,
    guarded,
    killed_by_kernel,
    looping,
    reading,
    scene,
    swept_by,
)

# What a candidate is worth, over all ranks: the greatest decides, then the earliest.
WORTH = {"cause": 6.0, "killed": 5.0, "unknown": 4.5, "death": 4.0, "relay": 3.0, "stopped": 2.5, "ended": 2.2, "peer": 2.0, "wrapper": 1.0}
# These are often only the echo of another rank's end.
_ECHOES = {"nccl_error": 4.4, "ib_error": 4.4, "capture_failed": 4.4}
_SIGNALS = {132: "SIGILL", 134: "SIGABRT", 135: "SIGBUS", 136: "SIGFPE", 139: "SIGSEGV"}
# "terminated with -11", "(exit code: -7)", "Fatal Python error: Segmentation fault".
_CRASHED = re.compile(r"-(?:4|7|8|11)\b|Segmentation|Bus error|Illegal|Floating")
_NOT_FOUND = 127
"""A shell's and Docker's exit code for a command that isn't there."""
_SWEPT = {"": "", "node": "Its node was restarted while it ran.", "docker": "Docker was restarted while it ran."}


class Suspect(t.NamedTuple):
    """One reason for the end of one rank."""

    worth: float
    time: float
    """On the controller's clock; minus infinity where the log tells none, for what comes before the logger is early."""
    record: Record
    candidate: Candidate


def suspects(record: Record, failing: bool = False) -> t.List[Suspect]:
    """All that may have ended a rank, each with its worth and time; of one that runs, what it will not recover from.

    :param failing: another rank has ended, so a process of this one that the kernel has killed was none that can be missed.
    """
    found = list(candidates(record))
    if record.get("running"):
        found = [c for c in found if c["fatal"]]
    found = [c for c in found if c["kind"] in WORTH]
    fallen = min((c["order"] for c in found if c["kind"] in ("peer", "relay")), default=None)
    ended = any(c["fatal"] and _worth(c) == WORTH["cause"] for c in found)
    found += _outside(record, found, failing)
    listed = []
    for candidate in found:
        worth = _worth(candidate)
        if ended and worth == WORTH["cause"] and not candidate.get("fatal", True):
            worth = 5.5  # It went on after this, and met what ended it: torch only tried a kernel that doesn't fit the GPU.
        if fallen is not None and candidate.get("order", 0) > fallen and (candidate["kind"] == "unknown" or _aborted(candidate)):
            worth = 1.5  # After a peer's end much else fails.
        when = candidate["time"]
        time = when - float(record.get("clock_offset") or 0) if when is not None else float("-inf")
        listed.append(Suspect(worth, time, record, candidate))
    return listed


def _worth(candidate: Candidate) -> float:
    return _ECHOES.get(candidate["cause"], WORTH[candidate["kind"]])


def _aborted(candidate: Candidate) -> bool:
    """A process is told to be gone, and not by a crash of its own: torch's watchdog and the engines end those that have lost their peers."""
    return candidate["kind"] == "death" and not _CRASHED.search(candidate["message"])


def from_text(text: str) -> t.Optional[Candidate]:
    """What a text from outside the log tells: Docker's word on a container, a line of the kernel's log."""
    for signature in SIGNATURES:
        if signature.text in text and signature.kind == "cause" and (not signature.pattern or re.search(signature.pattern, text)):
            return candidate_of(signature.cause, [text], text, "cause")
    return None


def candidate_of(cause: t.Optional[str], lines: t.List[str], message: str, kind: str, when: t.Optional[float] = None) -> Candidate:
    """A candidate that no log line gave."""
    return {"cause": cause, "kind": kind, "message": message, "lines": lines, "values": {}, "remedy": "", "time": when, "order": 0}


def _outside(record: Record, found: t.Sequence[Candidate], failing: bool) -> t.List[Candidate]:
    """What the container's state and the node tell, where the log alone does not."""
    told, guard = killed_by_kernel(record), guarded(record)
    last = [line for line in [reading(record).get("last_line")] if line]
    if guard is not None:
        lines = _guard_told.lines(guard, str(record["node"])) + [entry["text"] for entry in told] + last
        stopped = candidate_of("oom", lines, _guard_told.message(guard), "cause", guard["at"])
        return [dict(stopped, what=_guard_told.WHAT, remedy=_guard_told.remedy(guard))]
    if told and (exited(record) or found or failing):
        # An engine whose worker process was killed can go on, or end with exit code 0: only the kernel tells.
        return [candidate_of("oom", [entry["text"] for entry in told] + last, told[-1]["text"], "cause", told[0].get("time"))]
    if record.get("oom_killed") and (exited(record) or any(c["kind"] == "death" for c in found)):
        # Docker has seen it, and that is surer than any exit code.
        note = "The container's state says OOMKilled: true (exit code {}).".format(record.get("exit_code"))
        return [candidate_of("oom", [note] + last, note, "cause", record.get("finished"))]
    if scene(record, "oom_kills") and any(c["kind"] in ("death", "unknown") for c in found):
        note = "The kernel has killed {} of the container's processes for lack of memory.".format(scene(record, "oom_kills"))
        return [candidate_of("oom", [note] + last, note, "cause", None)]
    run = looping(record)
    if run is not None:
        note = "Docker has started the container again {} times, and its last run ended in phase {}.".format(record["restarts"], run["phase"])
        return [candidate_of(run["cause"], [note] + last, note, "cause")]
    if not exited(record) and not record.get("error"):
        return []
    swept = _swept_away(record)
    if swept:
        told_by = candidate_of("killed", [swept] + last, swept, "killed", record.get("finished"))
        return [dict(told_by, remedy="Start all ranks again: none of them heals alone.")]
    if any(c["kind"] in ("cause", "unknown") for c in found):
        return []
    return _exit(record, found)


def _swept_away(record: Record) -> str:
    """A container that was taken away, or ended with its node or its Docker daemon, in a sentence; or nothing."""
    if record.get("removed"):
        return "Its container was removed while it ran."
    return _SWEPT[swept_by(record.get("began"), record.get("finished"), scene(record, "booted"), scene(record, "docker_started"))]


def _exit(record: Record, found: t.Sequence[Candidate]) -> t.List[Candidate]:
    """What the container's end tells where the log tells no cause."""
    code, last = record.get("exit_code"), reading(record).get("last_line") or ""
    # Python tells a signal as a negative number, a shell and Docker as 128 and more.
    code = 128 - code if code is not None and code < 0 else code
    when = record.get("finished")
    if record.get("error"):
        text = str(record["error"])
        return [from_text(text) or candidate_of("unknown", [text], text, "unknown", when)]
    note = f"The container ended with exit code {code}." if code is not None else "The container ended."
    lines = [note, "Its last line: " + last] if last else [note]
    if reading(record).get("stopping") or code == 143:
        return [candidate_of(None, lines, note, "stopped", when)]
    if any(c["kind"] in ("peer", "relay", "death") for c in found):
        return []
    if code == 137:
        # SGLang ends itself so: only a log that breaks off proves that somebody else did.
        return [candidate_of("killed", lines, note, "killed" if reading(record) else "ended", when)]
    if code == _NOT_FOUND:
        return [candidate_of("bad_image", lines, f"{note[:-1]}: a command was not found.", "death", when)]
    if code in _SIGNALS:
        note = f"The container ended with exit code {code}, {_SIGNALS[t.cast(int, code)]}."
        return [candidate_of("worker_died", [note] + lines[1:], note, "death", when)]
    # Where not even the exit code or the log is known, what another rank tells of its end weighs more.
    return [candidate_of("unknown", lines, note, "death" if code is not None and reading(record) else "ended", when)]
