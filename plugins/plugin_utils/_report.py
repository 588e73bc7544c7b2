# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is private to the collection: it can change at any time.

"""A verdict as lines that people read: what happened, what to do, by which lines it is known, and then each rank. Pure."""

from __future__ import annotations

import textwrap
import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils._words import clock, duration
from ansible_collections.sparkstack.inference.plugins.plugin_utils import _report_closeup
from ansible_collections.sparkstack.inference.plugins.plugin_utils._progress import times

DETAILS = ("short", "normal", "full")
_EVIDENCE = {"short": 3, "normal": 24, "full": 10**6}
"""How many lines of evidence are shown."""

_WHOLE = (" ", "stack of ", "kernel: ")
"""What begins a line of the closer look that is somebody else's and stays whole."""

_NARROW = 16
"""Characters that there must be beside a head for a text to stand beside it."""
_BELOW = "    "

Node = t.Mapping[str, t.Any]


def report(verdict: t.Mapping[str, t.Any], width: int = 120, detail: str = "normal") -> list[str]:
    """The lines of a report.

    :param verdict: what M(sparkstack.inference.init_phase_wait) returned.
    :param width: characters in a line of prose; log lines stay whole, so that they can be searched for.
    :param detail: C(short) leaves the closer look out and all but three lines of evidence, C(full) leaves nothing out.
    :raises ValueError: when that is no verdict, or no width.
    """
    if width < 1:
        raise ValueError(f"width must be the number of characters in a line, not {width}.")
    if not isinstance(verdict, t.Mapping) or not verdict.get("verdict"):
        raise ValueError("This is no verdict: give what init_phase_wait returned.")
    nodes: list[tuple[str, Node]] = sorted((verdict.get("nodes") or {}).items(), key=lambda pair: pair[1].get("rank") or 0)
    lines = _prose(f"{str(verdict['verdict']).upper()}: ", verdict.get("summary") or "", width, indent=2)
    if verdict["verdict"] != "ready":
        lines += _prose("  remedy    ", verdict.get("remedy") or "", width)
        lines += _prose("  cause     ", cause(verdict), width)
    lines += evidence(verdict.get("evidence") or [], _EVIDENCE[detail])
    lines += [""]
    column = max((len(name) for name, _node in nodes), default=0)
    for name, node in nodes:
        lines += _prose(f"  rank {node.get('rank')}  {name:<{column}}  ", rank(node), width)
    notes = [str(note) for note in verdict.get("notes") or []]
    notes += [
        f"The log of {name} is empty. If its engine was started by docker exec, what it prints stands elsewhere: give that file in logs."
        for name, node in nodes
        if node.get("state") == "running" and not node.get("last_line") and "docker exec" not in (verdict.get("remedy") or "")
    ]
    if notes:
        lines += [""]
    for note in notes:
        lines += _prose("  note      ", note, width)
    if detail != "short":
        for name, node in nodes:
            if verdict["verdict"] == "ready" and detail != "full":
                # Of what serves, only how its ranks are connected matters.
                shown = _report_closeup.nccl(node.get("nccl") or {})
            else:
                shown = _report_closeup.lines(node, detail == "full", detail == "full" or verdict["verdict"] != "failed")
            if shown:
                lines += ["", f"  closer look at {name}"]
                for line in shown:
                    lines += [f"    {line}"] if line.startswith(_WHOLE) else _prose("    ", line, width, indent=6)
    return lines


def _prose(head: str, text: str, width: int, indent: int | None = None) -> list[str]:
    """A paragraph behind its head, the lines after the first one indented as the text is."""
    hang = " " * (len(head) if indent is None else indent)
    first: list[str] = []
    if head.strip() and width - len(head) < _NARROW:
        # The head has a line of its own, and what it is about stands below it.
        first, head, hang = [head.rstrip()], _BELOW, _BELOW
    told = textwrap.wrap(text, width, initial_indent=head, subsequent_indent=hang, break_long_words=False, break_on_hyphens=False)
    return [*first, *told] or [head.rstrip()]


def cause(verdict: t.Mapping[str, t.Any]) -> str:
    """The cause, the culprit and the phase in a line."""
    words = [str(verdict.get("cause") or "none known")]
    words.append(f"culprit {verdict['culprit']}" if verdict.get("culprit") else "no single culprit")
    return ", ".join([*words, f"in phase {verdict.get('phase')}"])


def evidence(found: t.Sequence[str], most: int) -> list[str]:
    """The lines that decide; of too many, the beginning and, since a traceback says what it is about at its end, more of the end."""
    shown = [line for entry in found for line in str(entry).splitlines() or [""]]
    if len(shown) > most:
        # At least one: the first line is the one that was put there for people, such as the curve of the memory.
        first = max(1, most // 4)
        gap = f"[.. {len(shown) - most} lines are left out here; diagnose -e json=FILE has all ..]"
        shown = [*shown[:first], gap, *shown[len(shown) - (most - first) :]]
    return [f"  {'evidence' if not index else '':<8}  {line}".rstrip() for index, line in enumerate(shown)]


# Ranks.


def rank(node: Node) -> str:
    """One rank in a line: its state and the phases that it came to, each with the seconds that it took."""
    state = node.get("state")
    if state == "absent":
        return "has no container"
    if state == "unreachable":
        return "could not be looked at"
    if state is None:
        return "how it ended is not recorded" + _phases(node)
    words = [_state(node)]
    if node.get("restarts"):
        words.append(f"restarted by Docker {times(node['restarts'])}")
    progress = node.get("progress")
    if progress:
        words.append(f"{progress.get('percent')}% ({progress.get('done')}/{progress.get('total')})")
    told = ", ".join(words)
    told += _phases(node)
    earlier = node.get("earlier_runs") or []
    if earlier:
        ends = ", ".join(f"{run.get('phase')} ({run.get('cause') or 'no cause known'})" for run in earlier)
        told += f"; its log holds {len(earlier)} earlier run{'s' if len(earlier) > 1 else ''}, which came to {ends}"
    return told


def _phases(node: Node) -> str:
    phases = node.get("timeline") or []
    told = [_phase(phase, index + 1 == len(phases), node) for index, phase in enumerate(phases)]
    return ": " + " > ".join(told) if told else ""


def failing(node: Node) -> str:
    """The cause that a rank's own log and container tell while it runs, or nothing: a process that has failed can leave its container running."""
    cause = node.get("cause")
    return str(cause) if cause and cause != "unknown" and node.get("state") == "running" else ""


def _state(node: Node) -> str:
    if node.get("state") == "exited":
        code = node.get("exit_code")
        told = "ended" if code is None else f"ended with exit code {code}"
        told += ", by the memory guard" if node.get("guarded") else ""
        return told + (", out of memory" if node.get("oom_killed") else "")
    quiet = node.get("quiet_seconds")
    if node.get("state") == "ready":
        return "ready"
    if node.get("state") == "paused":
        return "is paused"
    cause = failing(node)
    told = "runs" if quiet is None or quiet < 10 else f"runs, quiet for {duration(quiet)}"
    return f"{told}, but its log and container tell {cause}" if cause else told


def _phase(phase: t.Mapping[str, t.Any], last: bool, node: Node) -> str:
    took = phase.get("seconds")
    if took is not None:
        return f"{phase.get('phase')} {duration(took)}"
    if not last or phase.get("phase") == "ready":
        at = f" at {clock(phase['time'])[:-1]}" if last and phase.get("time") else ""
        return f"{phase.get('phase')}{at}"
    here = node.get("seconds_in_phase")
    return f"{phase.get('phase')} {'for ' + duration(here) if here is not None else ''}".rstrip()
