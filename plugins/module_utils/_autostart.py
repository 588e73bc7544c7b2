# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""What the head's agent decides: whether the ranks of a launch are to be started again after a reboot, and which step of that comes next.

Pure: the ranks' reports (see C(_autostart_rank)) and what was decided before go in, the next step comes out. One look knows nothing but its view,
so that an agent that is itself restarted in the middle of a start goes on where it was.
"""

from __future__ import annotations

import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils._autostart_rank import ITSELF, REBOOT, SWEPT, UNSURE
from ansible_collections.sparkstack.inference.plugins.module_utils._words import listed

Data = t.Dict[str, t.Any]
Report = t.Mapping[str, t.Any]

MOST_STARTS = 5
"""Starts of one launch within :data:`PERIOD`, none of which helped."""
PERIOD = 3600.0
HELPED = 60.0
"""Seconds for which a start must have served to have helped: who reboots nodes one after the other, for new firmware say, is no storm."""
FIRST_PAUSE, LONGEST_PAUSE = 30.0, 480.0
"""Seconds after the first failed start until the next one; each further pause is twice as long."""
_ORDER = 30.0
"""Seconds by which an end must come before a reboot to be no consequence of it: nodes' clocks and the memory's age leave that much open."""
_STANDS = 10.0
"""Seconds for which a bad verdict must stand."""

ERROR, WARNING, NOTICE, INFO = 3, 4, 5, 6
"""Priorities of the journal, see sd-daemon(3)."""
Line = t.Tuple[int, str]


class View(t.NamedTuple):
    """What is known at one moment."""

    nodes: t.Sequence[str]
    """The nodes' names in rank order."""
    reports: t.Mapping[int, Report]
    """By rank; only of those that were heard lately."""
    now: float
    """Seconds since the epoch by the head's clock."""
    lock: str = ""
    """Who works on the deployment, in a sentence; empty when nobody does."""
    verdict: t.Optional[t.Mapping[str, t.Any]] = None
    """What C(_diagnosis.judge) says of a start that is being watched, with C(answered): the head has answered a completion."""
    ready_timeout: float = 1800
    """Seconds from the head's start in which the launch must serve."""


class Decision(t.NamedTuple):
    """What comes next."""

    state: Data
    """C(effort) (the start that is under way, or None), C(starts) (when starts were begun since the last one that helped), C(of) (which launch), C(served)
    (since when the last one serves, or None) and, where a rank has ended by itself, C(left) (which
    one, of which C(launch), and C(why) nothing is started). To be kept before anything is done."""
    wants: t.Mapping[int, str] = {}
    """By rank C(running) or C(stopped); a start is carried out once for each C(order)."""
    order: str = ""
    lines: t.Sequence[Line] = ()
    """What happened, for the journal."""
    status: t.Optional[Line] = None
    """What goes on, for the journal when it has changed."""


def decide(view: View, state: t.Mapping[str, t.Any]) -> Decision:
    """The next step.

    :param state: of the last decision; an empty one knows nothing.
    """
    kept = {"left": state["left"]} if state.get("left") else {}
    starts = [s for s in state.get("starts") or [] if 0 <= view.now - s < PERIOD]
    state = {"effort": state.get("effort"), "starts": starts, "of": state.get("of"), "served": state.get("served"), **kept}
    here = {rank: report for rank, report in view.reports.items() if report["docker"]}
    away = [node for rank, node in enumerate(view.nodes) if rank not in here]
    if view.lock:
        return Decision(state, status=(INFO, view.lock))
    obstacle = _obstacle(view, here)
    if obstacle:
        return Decision(dict(state, effort=None), status=(WARNING, obstacle))
    launch = next((report["launch"] for report in here.values()), None)
    if launch and state["of"] != launch:
        # Somebody has deployed since: that one has all its starts.
        state.update(of=launch, starts=state["starts"] if state["of"] is None else [], served=None)
    effort = state["effort"]
    if effort and launch and effort["launch"] != launch:
        effort = state["effort"] = None
    if effort is None:
        return _steady(view, state, here, away)
    if effort["stage"] in ("pause", "given_up"):
        return _resting(view, state, here, away)
    return _under_way(view, state, here, away)


def pause(failures: int) -> float:
    """Seconds until the next start after so many failed ones."""
    return float(min(FIRST_PAUSE * 2 ** (failures - 1), LONGEST_PAUSE))


def _obstacle(view: View, here: t.Mapping[int, Report]) -> str:
    """Why the ranks can't be started as they are, whatever has happened; or nothing."""
    gone = [rank for rank, report in here.items() if not report["here"]]
    if gone:
        return "Rank {} has no container on {}: nothing is started here; the next deploy starts all ranks.".format(gone[0], view.nodes[gone[0]])
    launches = {report["launch"] for report in here.values()}
    if len(launches) > 1:
        return "The ranks are of different launches: nothing is started here; the next deploy starts all ranks."
    return ""


def _steady(view: View, state: Data, here: t.Mapping[int, Report], away: t.Sequence[str]) -> Decision:
    """No start is under way: is one due?"""
    down = {rank: report for rank, report in here.items() if not report["running"]}
    swept = {rank: report for rank, report in down.items() if report["lost"] in SWEPT}
    alone = {rank: report for rank, report in down.items() if report["lost"] == ITSELF}
    left = state.get("left")
    if left and left["rank"] in here:
        ended = down.get(left["rank"])
        if ended and ended["launch"] == left["launch"] and ended["lost"] not in SWEPT:
            # It was seen to end by itself: another node's reboot soon afterwards makes no other thing of that.
            return Decision(state, status=(WARNING, left["why"]))
        state = {key: value for key, value in state.items() if key != "left"}
    if not down:
        if state["served"] is not None and not away and not 0 <= view.now - state["served"] < HELPED:
            state = dict(state, starts=[], served=None)
        text = "All ranks run." if not away else "Waiting for word of {}.".format(listed(away))
        return Decision(state, status=(INFO, text))
    if away:
        return Decision(state, status=(NOTICE, "{} Waiting for {}.".format(_losses(view, down), listed(away))))
    if not swept and any(report["lost"] == UNSURE for report in down.values()):
        return Decision(state, status=(INFO, "{} Its end is being looked into.".format(_losses(view, down))))
    # Beside a rank that was swept away, one whose end is not clear yet can only have followed it.
    earliest = max((report["ago"] for report in swept.values()), default=0.0)
    first = next((rank for rank, report in alone.items() if not swept or report["ago"] > earliest + _ORDER), None)
    if first is not None:
        text = "Rank {} on {} ended by itself, before any reboot: nothing is started here. The playbook diagnose tells why, the next deploy starts all ranks."
        why = text.format(first, view.nodes[first])
        return Decision(dict(state, left={"launch": alone[first]["launch"], "rank": first, "why": why}), status=(WARNING, why))
    return _begin(view, state, here, 0, _losses(view, swept))


def _begin(view: View, state: Data, here: t.Mapping[int, Report], failures: int, why: str) -> Decision:
    """Begin a start of all ranks, if there may be one more."""
    launch = here[0]["launch"]
    if len(state["starts"]) >= MOST_STARTS:
        return _give_up(state, {"launch": launch, "failures": failures, "why": why})
    order = "{}/{:.0f}".format(launch, view.now)
    starts = [*state["starts"], view.now]
    effort = {"launch": launch, "order": order, "stage": "stop", "since": view.now, "failures": failures, "why": why, "bad": None}
    text = "{} All {} ranks of launch {} are started again (start {} of at most {} in an hour).".format(why, len(view.nodes), launch, len(starts), MOST_STARTS)
    decided = _under_way(view, {"effort": effort, "starts": starts, "of": launch, "served": None}, here, [])
    return decided._replace(lines=[(NOTICE, text), *decided.lines])


def _give_up(state: Data, effort: Data) -> Decision:
    came = "did not help" if effort["failures"] else "were each lost again soon after"
    text = "{} starts in an hour {}: nothing more is tried. See what the playbook diagnose says, then deploy again.".format(len(state["starts"]), came)
    return Decision(dict(state, effort=dict(effort, stage="given_up")), lines=[(ERROR, text)])


def _under_way(view: View, state: Data, here: t.Mapping[int, Report], away: t.Sequence[str]) -> Decision:
    """The next step of a start: all stop, then the workers start, then the head, then it is watched."""
    effort = dict(state["effort"])
    state = dict(state, effort=effort)
    if away:
        return Decision(state, status=(NOTICE, "In the middle of a start: waiting for {}.".format(listed(away))))
    if effort["stage"] == "stop":
        running = [rank for rank, report in here.items() if report["running"]]
        if running:
            return Decision(state, dict.fromkeys(running, "stopped"), effort["order"], status=(INFO, _ranks("Stopping", running, view)))
        effort.update(stage="workers", since=view.now)
    stage = effort["stage"]
    wanted = [rank for rank in here if rank > 0 or stage != "workers"]
    order = effort["order"]
    refused = next((rank for rank in wanted if here[rank]["done"] == order and here[rank]["error"]), None)
    if refused is not None:
        return _failed(view, state, "Docker on {} does not start rank {}: {}".format(view.nodes[refused], refused, here[refused]["error"]))
    ended = [rank for rank in wanted if here[rank]["done"] == order and not here[rank]["running"]]
    if any(here[rank]["lost"] in SWEPT for rank in ended):
        return _begin(view, state, here, effort["failures"], _losses(view, {rank: here[rank] for rank in ended}))
    if ended and (stage != "watch" or all(here[rank]["lost"] == ITSELF for rank in ended)):
        return _failed(view, state, _told(view, "Rank {} on {} ended again.".format(ended[0], view.nodes[ended[0]])))
    if ended:
        return Decision(state, status=(INFO, "Rank {} on {} has ended.".format(ended[0], view.nodes[ended[0]])))
    waiting = [rank for rank in wanted if here[rank]["done"] != order]
    if stage == "workers" and not waiting:
        stage = effort["stage"] = "head"
        waiting = [0] if here[0]["done"] != order else []
    if waiting:
        return Decision(state, dict.fromkeys(waiting, "running"), order, status=(INFO, _ranks("Starting", waiting, view)))
    if stage != "watch":
        effort.update(stage="watch", since=view.now)
    return _watched(view, state)


def _watched(view: View, state: Data) -> Decision:
    """All ranks have been started: serves it, or has it failed?"""
    effort, verdict = state["effort"], view.verdict
    took = view.now - effort["since"]
    if verdict and verdict["verdict"] == "ready" and verdict.get("answered"):
        text = "Serves again: the head has answered {:.0f} s after its start. The launch is {} as before.".format(took, effort["launch"])
        return Decision(dict(state, effort=None, served=view.now), lines=[(NOTICE, text)])
    bad = verdict is not None and verdict["verdict"] in ("failed", "stalled")
    effort["bad"] = (effort["bad"] or view.now) if bad else None
    if bad and view.now - effort["bad"] >= _STANDS:
        return _failed(view, state, _told(view, ""))
    if took > view.ready_timeout:
        return _failed(view, state, _told(view, "It does not serve after {:.0f} s.".format(took)))
    return Decision(state, status=(INFO, "Loading, in phase {}.".format(verdict["phase"]) if verdict else "Loading."))


def _failed(view: View, state: Data, why: str) -> Decision:
    """A start has failed: pause, or give up."""
    effort = state["effort"]
    failures = effort["failures"] + 1
    line = (ERROR, "Start {} failed. {}".format(failures, why))
    if len(state["starts"]) >= MOST_STARTS:
        decided = _give_up(state, dict(effort, failures=failures))
        return decided._replace(lines=[line, *decided.lines])
    seconds = pause(failures)
    effort = dict(effort, stage="pause", failures=failures, until=view.now + seconds)
    return Decision(dict(state, effort=effort), lines=[line, (WARNING, "The next start follows in {:.0f} s.".format(seconds))])


def _resting(view: View, state: Data, here: t.Mapping[int, Report], away: t.Sequence[str]) -> Decision:
    """Between two starts, or after the last one."""
    effort = state["effort"]
    if effort["stage"] == "given_up":
        if not away and all(report["running"] for report in here.values()):
            return Decision(dict(state, effort=None), lines=[(NOTICE, "All ranks run again.")])
        return Decision(state)
    if not 0 <= effort["until"] - view.now <= LONGEST_PAUSE:
        if away:
            return Decision(state, status=(NOTICE, "Waiting for {} before the next start.".format(listed(away))))
        return _begin(view, state, here, effort["failures"], effort["why"])
    return Decision(state)


def _told(view: View, otherwise: str) -> str:
    """What the verdict says, in one line for the journal."""
    verdict = view.verdict
    if verdict is None or verdict["verdict"] not in ("failed", "stalled"):
        return otherwise
    return "{} {}".format(verdict["summary"], verdict["remedy"]).strip()


def _losses(view: View, down: t.Mapping[int, Report]) -> str:
    """What was lost, in a sentence: "spark1 and spark2 were restarted while their ranks ran."."""
    by: t.Dict[str, t.List[str]] = {}
    for rank, report in sorted(down.items()):
        by.setdefault(report["lost"], []).append(view.nodes[rank])
    sentences = []
    for lost, nodes in by.items():
        several = len(nodes) > 1
        if lost == REBOOT:
            what = "{} restarted while {} ran.".format("were" if several else "was", "their ranks" if several else "its rank")
            sentences.append("{} {}".format(listed(nodes), what))
        elif lost in SWEPT:
            sentences.append("Docker was restarted on {} while {} ran.".format(listed(nodes), "their ranks" if several else "its rank"))
        else:
            sentences.append("The rank{} on {} ended.".format("s" if several else "", listed(nodes)))
    return " ".join(sentences)


def _ranks(what: str, ranks: t.Sequence[int], view: View) -> str:
    return "{} {}.".format(what, listed(["rank {} on {}".format(rank, view.nodes[rank]) for rank in ranks]))
