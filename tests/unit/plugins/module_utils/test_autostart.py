# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the head's agent decides, in tables and in a small world of nodes that boot, lose their ranks and carry out orders."""

from __future__ import annotations

import json
import typing as t

import pytest

from ansible_collections.sparkstack.inference.plugins.module_utils._autostart import (
    ERROR,
    MOST_STARTS,
    NOTICE,
    WARNING,
    Decision,
    View,
    decide,
    pause,
)
from ansible_collections.sparkstack.inference.plugins.module_utils._autostart_rank import remember, report

NODES = ("spark1", "spark2")
NOW = 1_000_000.0
LAUNCH = "20261130T080012Z-1a2b3c"


def said(**changes: t.Any) -> dict[str, t.Any]:
    """A rank's report; it runs unless the changes say more."""
    told = {"docker": True, "here": True, "launch": LAUNCH, "boot": "b1", "running": True, "lost": None, "ago": None, "done": None, "error": None}
    return {**told, **changes}


def down(lost: str, ago: float = 40.0, **changes: t.Any) -> dict[str, t.Any]:
    """The report of a rank that has come to an end."""
    return said(running=False, lost=lost, ago=ago, **changes)


STEADY = {
    "all run": ({0: said(), 1: said()}, {}, "All ranks run."),
    "both nodes booted": ({0: down("reboot"), 1: down("reboot")}, {1: "running"}, "spark1 and spark2 were restarted while their ranks ran."),
    "worker's node booted, head runs on": ({0: said(), 1: down("reboot")}, {0: "stopped"}, "spark2 was restarted while its rank ran."),
    "head's node booted, worker ended after it": ({0: down("reboot", 40), 1: down("itself", 30)}, {1: "running"}, "spark1 was restarted while its rank ran."),
    "docker restarted at the worker": ({0: down("itself", 5), 1: down("docker", 8)}, {1: "running"}, "Docker was restarted on spark2 while its rank ran."),
    "worker is still booting": ({0: down("reboot")}, {}, "Waiting for spark2."),
    "head runs, nothing is heard of the worker": ({0: said()}, {}, "Waiting for word of spark2."),
    "docker does not answer at the worker": ({0: down("reboot"), 1: said(docker=False)}, {}, "Waiting for spark2."),
    "one crash": ({0: said(), 1: down("itself")}, {}, "ended by itself"),
    "both crashed": ({0: down("itself"), 1: down("itself")}, {}, "ended by itself"),
    "crashed long before the other node's reboot": ({0: down("itself", 4000), 1: down("reboot", 60)}, {}, "before any reboot"),
    "its end is not clear yet": ({0: said(), 1: down("unsure")}, {}, "is being looked into"),
    "head's end is not clear yet, but the worker's node booted": ({0: down("unsure", 3), 1: down("reboot")}, {1: "running"}, "spark2 was restarted"),
    "container removed": ({0: down("reboot"), 1: said(here=False, launch=None, running=False)}, {}, "has no container on spark2"),
    "another launch": ({0: down("reboot"), 1: down("reboot", launch="other")}, {}, "different launches"),
}


@pytest.mark.parametrize("reports, wants, text", STEADY.values(), ids=STEADY)
def test_what_is_done_about_what_is_seen(reports: dict[int, dict[str, t.Any]], wants: dict[int, str], text: str) -> None:
    decided = decide(View(NODES, reports, NOW), {})
    assert dict(decided.wants) == wants
    assert any(text in line for _priority, line in [*decided.lines, *([decided.status] if decided.status else [])])
    assert bool(decided.state["effort"]) == bool(wants)


def test_a_rank_that_was_seen_to_end_by_itself_is_not_lost_by_a_reboot_soon_afterwards() -> None:
    crashed = decide(View(NODES, {0: said(), 1: down("itself", 5)}, NOW), {})
    assert crashed.state["left"]["rank"] == 1
    # The head was stopped, and its node booted 12 s after the crash.
    reports = {0: down("reboot", 20), 1: down("itself", 32)}
    # The head's agent is back before it has heard of the worker.
    waiting = decide(View(NODES, {0: reports[0]}, NOW + 25), crashed.state)
    after = decide(View(NODES, reports, NOW + 27), waiting.state)
    assert (after.wants, after.state["left"]) == ({}, crashed.state["left"])
    assert after.status is not None and "Rank 1 on spark2 ended by itself" in after.status[1]
    # Docker was only slow to stop: its restart explains that rank's end after all.
    assert decide(View(NODES, {0: said(), 1: down("docker", 32)}, NOW + 27), crashed.state).wants == {0: "stopped"}
    # All run again, or another launch does: nothing is kept of it.
    for again in ({0: said(), 1: said()}, {0: down("reboot", launch="new"), 1: down("reboot", launch="new")}):
        assert "left" not in decide(View(NODES, again, NOW + 90), crashed.state).state


def test_nothing_is_touched_while_a_run_holds_the_lock() -> None:
    held = "alice at ctl1 (pid 123) works on the deployment."
    both = {0: down("reboot"), 1: down("reboot")}
    decided = decide(View(NODES, both, NOW, lock=held), {})
    assert (dict(decided.wants), decided.status) == ({}, (6, held))
    # It begins as soon as the lock is given back, if the launch is still the same.
    assert decide(View(NODES, both, NOW + 2), decided.state).wants == {1: "running"}


def test_a_start_that_is_under_way_waits_while_a_run_holds_the_lock() -> None:
    begun = decide(View(NODES, {0: down("reboot"), 1: down("reboot")}, NOW), {})
    held = decide(View(NODES, {0: down("reboot"), 1: said(done=begun.order)}, NOW + 2, lock="alice works."), begun.state)
    assert held.wants == {} and held.state["effort"] == begun.state["effort"]


def test_a_start_ends_when_another_launch_has_taken_its_place() -> None:
    begun = decide(View(NODES, {0: down("reboot"), 1: down("reboot")}, NOW), {})
    after = decide(View(NODES, {0: said(launch="new"), 1: said(launch="new")}, NOW + 60), begun.state)
    assert after.state["effort"] is None and after.wants == {}


@pytest.mark.parametrize("failures, seconds", [(1, 30), (2, 60), (3, 120), (4, 240), (5, 480), (9, 480)])
def test_pauses_grow(failures: int, seconds: float) -> None:
    assert pause(failures) == seconds


class World:
    """Nodes with one rank each, whose agents report all seconds; the head's decides by what it kept."""

    def __init__(self, nodes: t.Sequence[str] = NODES, load: float = 20.0) -> None:
        self.nodes, self.load = nodes, load
        self.now = NOW
        self.state: dict[str, t.Any] = {}
        self.up = dict.fromkeys(range(len(nodes)), True)
        self.boot = dict.fromkeys(range(len(nodes)), 1)
        self.run: dict[int, int] = dict.fromkeys(self.up, 1)
        """Which start of its container runs, 0 for none."""
        self.starts = dict.fromkeys(self.up, 1)
        self.finished: dict[int, float | None] = dict.fromkeys(self.up)
        self.booted = dict.fromkeys(self.up, NOW - 9999.0)
        self.memory: dict[int, dict[str, t.Any]] = {rank: {} for rank in self.up}
        self.since = NOW
        self.log: list[tuple[float, str]] = []
        self.lines: list[tuple[int, str]] = []
        self.dies = False
        """The head's agent is killed after it kept what it decided, before it carries it out."""
        self.breaks = False
        """Each start fails while it loads."""
        self.seconds(3)

    def look(self, rank: int) -> dict[str, t.Any]:
        began = str(self.starts[rank])
        return {
            "docker": True,
            "here": True,
            "id": "c",
            "launch": LAUNCH,
            "running": bool(self.run[rank]),
            "boot": str(self.boot[rank]),
            "began": began,
            "started": self.now - 50,
            "finished": self.finished[rank],
            "daemon": "1/1",
            "booted": self.booted[rank],
            "docker_started": self.booted[rank],
        }

    def end(self, rank: int) -> None:
        self.run[rank], self.finished[rank] = 0, self.now

    def power_off(self, *ranks: int) -> None:
        for rank in ranks:
            self.end(rank)
            self.up[rank] = False

    def power_on(self, *ranks: int) -> None:
        for rank in ranks:
            self.up[rank], self.booted[rank] = True, self.now
            self.boot[rank] += 1

    def order(self, rank: int, want: str, order: str) -> None:
        if want == "stopped":
            self.end(rank)
        elif self.memory[rank].get("done") != order:
            self.memory[rank].update(done=order, error=None)
            self.starts[rank] += 1
            self.run[rank], self.since = self.starts[rank], self.now
        self.log.append((self.now, f"{want} {rank}"))

    def verdict(self) -> dict[str, t.Any]:
        if self.breaks and self.now - self.since > self.load / 2:
            return {"verdict": "failed", "phase": "load_weights", "summary": "Rank 1 on spark2 ran out of memory.", "remedy": "Free some."}
        ready = all(self.run.values()) and self.now - self.since > self.load
        return {"verdict": "ready" if ready else "starting", "phase": "load_weights", "summary": "", "remedy": "", "answered": ready}

    def second(self) -> None:
        """All agents look, the head's decides, all carry out."""
        self.now += 1
        reports = {}
        for rank, up in self.up.items():
            if up:
                look = self.look(rank)
                self.memory[rank] = json.loads(json.dumps(remember(self.memory[rank], look, self.now)))
                reports[rank] = report(self.memory[rank], look, self.now)
        if not self.up[0]:
            return
        decided: Decision = decide(View(self.nodes, reports, self.now, verdict=self.verdict()), self.state)
        self.state = json.loads(json.dumps(decided.state))
        if self.dies:
            return
        self.lines += decided.lines
        for rank, want in decided.wants.items():
            self.order(rank, want, decided.order)

    def seconds(self, count: int) -> None:
        for _second in range(count):
            self.second()

    @property
    def did(self) -> list[str]:
        return [what for _at, what in self.log]

    def serves(self) -> bool:
        return all(self.run.values()) and self.state["effort"] is None and "Serves again" in self.lines[-1][1]


def test_both_nodes_boot_together() -> None:
    world = World()
    world.power_off(0, 1)
    world.seconds(10)
    world.power_on(0, 1)
    world.seconds(40)
    assert world.did == ["running 1", "running 0"] and world.serves()


@pytest.mark.parametrize("first", [0, 1])
def test_the_nodes_boot_sixty_seconds_apart(first: int) -> None:
    world = World()
    world.power_off(0, 1)
    world.power_on(first)
    world.seconds(60)
    assert world.did == []
    world.power_on(1 - first)
    world.seconds(40)
    # Workers first, whoever has booted first.
    assert world.did == ["running 1", "running 0"] and world.serves()


def test_a_node_that_boots_an_hour_later_is_waited_for() -> None:
    world = World()
    world.power_off(0, 1)
    world.power_on(0)
    world.seconds(4000)
    world.power_on(1)
    world.seconds(40)
    assert world.serves()


@pytest.mark.parametrize("lost, survivor", [(0, 1), (1, 0)])
def test_one_node_boots_and_the_survivor_is_restarted_too(lost: int, survivor: int) -> None:
    world = World()
    world.power_off(lost)
    world.seconds(20)
    world.power_on(lost)
    world.seconds(40)
    assert world.did == [f"stopped {survivor}", "running 1", "running 0"] and world.serves()


def test_one_node_boots_and_the_survivor_has_ended_meanwhile() -> None:
    world = World()
    world.power_off(1)
    world.seconds(5)
    world.end(0)
    world.seconds(60)
    world.power_on(1)
    world.seconds(60)
    assert world.did == ["running 1", "running 0"] and world.serves()


def test_four_nodes_of_which_two_boot() -> None:
    world = World(("spark1", "spark2", "spark3", "spark4"))
    world.power_off(1, 3)
    world.seconds(5)
    world.power_on(1, 3)
    world.seconds(60)
    assert world.did == ["stopped 0", "stopped 2", "running 1", "running 2", "running 3", "running 0"] and world.serves()


def test_a_crash_is_left_alone_even_when_a_node_boots_later() -> None:
    world = World()
    world.end(1)
    world.seconds(200)
    assert world.did == []
    world.power_off(0)
    world.power_on(0)
    world.seconds(100)
    assert world.did == []


def test_what_was_stopped_before_both_nodes_boot_stays_stopped() -> None:
    world = World()
    world.end(0)
    world.end(1)
    world.seconds(60)
    world.power_off(0, 1)
    world.power_on(0, 1)
    world.seconds(100)
    assert world.did == []


def test_the_heads_agent_is_restarted_at_every_moment_of_a_start() -> None:
    """What it decided is kept before it is carried out: no step is lost, and nothing is started twice."""
    for moment in range(1, 30):
        world = World()
        world.power_off(0, 1)
        world.power_on(0, 1)
        world.seconds(moment)
        world.dies = True
        world.seconds(1)
        world.dies = False
        world.now += 5
        world.seconds(60)
        assert world.did == ["running 1", "running 0"] and all(world.run.values()) and world.state["effort"] is None, moment


def test_a_node_that_boots_again_in_the_middle_of_a_start() -> None:
    world = World()
    world.power_off(1)
    world.power_on(1)
    world.seconds(8)
    world.power_off(1)
    world.seconds(10)
    world.power_on(1)
    world.seconds(60)
    assert world.did == ["stopped 0", "running 1", "running 0"] * 2 and world.serves()
    assert not [line for line in world.lines if line[0] == ERROR]


def test_failing_starts_pause_longer_each_time_are_told_and_come_to_an_end() -> None:
    world = World()
    world.breaks = True
    world.power_off(0, 1)
    world.power_on(0, 1)
    world.seconds(3000)
    starts = [at for at, what in world.log if what == "running 0"]
    assert len(starts) == MOST_STARTS
    gaps = [after - before for before, after in zip(starts, starts[1:], strict=False)]
    # 10 s to the failure, 10 s for which it must stand, the pause, and some seconds to stop and start.
    assert [round((gap - 22) / 30) for gap in gaps] == [1, 2, 4, 8]
    told = [line for line in world.lines if line[0] == ERROR]
    assert [line.startswith(f"Start {number} failed. Rank 1 on spark2 ran out of memory. Free some.") for number, (_p, line) in enumerate(told[:-1], 1)] == [
        True
    ] * MOST_STARTS
    assert "nothing more is tried" in told[-1][1] and "diagnose" in told[-1][1]
    # It stays quiet, also when the hour is over.
    count = len(world.lines)
    world.seconds(5000)
    assert len(world.lines) == count and len([what for what in world.did if what == "running 0"]) == MOST_STARTS


def test_a_node_that_boots_over_and_over_does_not_start_the_ranks_over_and_over() -> None:
    world = World()
    for _boot in range(20):
        world.power_off(1)
        world.power_on(1)
        world.seconds(30)
    assert world.did.count("running 0") == MOST_STARTS

    # What was lost each time, though it served, is not called a start that failed.
    told = [line for line in world.lines if line[0] == ERROR]
    assert len(told) == 1 and "were each lost again soon after: nothing more is tried" in told[0][1]


def test_reboots_that_it_serves_between_are_no_storm() -> None:
    world = World()
    for _boot in range(2 * MOST_STARTS):
        world.power_off(1)
        world.power_on(1)
        world.seconds(150)
        assert world.serves() and world.state["starts"] == []
    assert world.did.count("running 0") == 2 * MOST_STARTS


def test_a_start_that_helped_ends_the_count_of_those_that_failed_before_it() -> None:
    world = World()
    world.breaks = True
    world.power_off(0, 1)
    world.power_on(0, 1)
    world.seconds(60)
    assert len(world.state["starts"]) == 2
    world.breaks = False
    world.seconds(60)
    assert world.serves() and len(world.state["starts"]) == 2
    world.seconds(90)
    assert world.serves() and world.state["starts"] == []


def test_another_launch_has_all_its_starts() -> None:
    lost = {0: down("reboot"), 1: down("reboot")}
    state = {"effort": None, "starts": [NOW - 10] * MOST_STARTS, "of": "an earlier one", "served": None}
    assert decide(View(NODES, lost, NOW), state).wants
    # As it was before that was kept: nobody knows of which launch they were.
    assert not decide(View(NODES, lost, NOW), {key: state[key] for key in ("effort", "starts")}).wants
    assert not decide(View(NODES, lost, NOW), {**state, "of": LAUNCH}).wants


def test_after_it_gave_up_ranks_that_somebody_started_are_seen() -> None:
    state = {"effort": {"stage": "given_up", "launch": LAUNCH, "failures": 5, "why": ""}, "starts": [NOW - 10] * 5}
    decided = decide(View(NODES, {0: said(), 1: said()}, NOW), state)
    assert decided.state["effort"] is None and decided.lines == [(NOTICE, "All ranks run again.")]


def test_what_docker_refuses_is_a_failed_start() -> None:
    begun = decide(View(NODES, {0: down("reboot"), 1: down("reboot")}, NOW), {})
    refused = down("reboot", done=begun.order, error="could not select device driver")
    decided = decide(View(NODES, {0: down("reboot"), 1: refused}, NOW + 1), begun.state)
    assert decided.lines == [
        (ERROR, "Start 1 failed. Docker on spark2 does not start rank 1: could not select device driver"),
        (WARNING, "The next start follows in 30 s."),
    ]


def test_a_launch_that_does_not_serve_in_time_has_failed() -> None:
    effort = {"launch": LAUNCH, "order": "o", "stage": "watch", "since": NOW - 1801, "failures": 0, "why": "", "bad": None}
    reports = {0: said(done="o"), 1: said(done="o")}
    starting = {"verdict": "starting", "phase": "load_weights", "summary": "Still starting.", "remedy": "Wait."}
    decided = decide(View(NODES, reports, NOW, verdict=starting), {"effort": effort, "starts": [NOW - 1801]})
    assert decided.lines[0] == (ERROR, "Start 1 failed. It does not serve after 1801 s.")


def test_a_head_whose_page_is_healthy_but_that_answers_nothing_is_not_serving() -> None:
    effort = {"launch": LAUNCH, "order": "o", "stage": "watch", "since": NOW - 60, "failures": 0, "why": "", "bad": None}
    reports = {0: said(done="o"), 1: said(done="o")}
    mute = {"verdict": "ready", "phase": "ready", "summary": "", "remedy": "", "answered": False}
    assert decide(View(NODES, reports, NOW, verdict=mute), {"effort": effort, "starts": []}).state["effort"]["stage"] == "watch"


# One rank's memory.

LOOK = {
    "docker": True,
    "here": True,
    "id": "c",
    "launch": LAUNCH,
    "running": False,
    "boot": "b1",
    "daemon": "d1",
    "began": "2026-11-30T08:00:12.5Z",
    "started": NOW - 5000,
    "finished": NOW - 1,
    "booted": NOW - 9000,
    "docker_started": NOW - 8990,
}
SEEN = {"id": "c", "began": "2026-11-30T08:00:12.5Z", "boot": "b1", "daemon": "d1", "at": NOW - 3}
ENDS: dict[str, tuple[dict[str, t.Any], dict[str, t.Any], str]] = {
    "just gone": (SEEN, {}, "unsure"),
    "gone for a while": ({**SEEN, "falling": NOW - 16}, {}, "itself"),
    "another boot": (SEEN, {"boot": "b2", "booted": NOW - 20}, "reboot"),
    "another boot, ended in the shutdown": (SEEN, {"boot": "b2", "booted": NOW - 20, "finished": NOW - 35}, "reboot"),
    "another boot, the clock is five minutes ahead for this agent only": ({**SEEN, "at": NOW - 40}, {"boot": "b2", "finished": NOW - 340}, "reboot"),
    "another boot, ended by itself while nobody watched": (
        {**SEEN, "at": NOW - 9000},
        {"boot": "b2", "booted": NOW - 20, "finished": NOW - 2000},
        "itself",
    ),
    "another daemon": (SEEN, {"daemon": "d2"}, "docker"),
    "nobody knows which daemon": ({**SEEN, "falling": NOW - 16}, {"daemon": None}, "itself"),
    "never seen, booted since": ({}, {"booted": NOW - 20, "finished": NOW - 10}, "reboot"),
    "never seen, ended in the shutdown": ({}, {"booted": NOW - 20, "finished": NOW - 40}, "reboot"),
    "never seen, ended long before the boot": ({}, {"booted": NOW - 20, "finished": NOW - 3000}, "itself"),
    "never seen, docker restarted": ({}, {"docker_started": NOW - 5, "finished": NOW - 4}, "docker"),
    "never seen, crashed": ({}, {}, "itself"),
    "known to have crashed, then booted": ({**SEEN, "lost": "itself", "ended": NOW - 500}, {"boot": "b2", "booted": NOW - 20}, "itself"),
}


@pytest.mark.parametrize("memory, changes, lost", ENDS.values(), ids=ENDS)
def test_how_a_rank_ended(memory: dict[str, t.Any], changes: dict[str, t.Any], lost: str) -> None:
    look = {**LOOK, **changes}
    kept = remember(memory, look, NOW)
    told = report(kept, look, NOW)
    assert told["lost"] == lost and told["ago"] >= 0 and not told["running"]


def test_a_rank_that_runs_again_is_a_new_story_but_the_last_order_is_known() -> None:
    memory = {**SEEN, "lost": "reboot", "ended": NOW - 500, "done": "o1", "error": None}
    kept = remember(memory, {**LOOK, "running": True, "began": "later", "finished": None}, NOW)
    assert kept == {"id": "c", "began": "later", "boot": "b1", "daemon": "d1", "at": NOW, "done": "o1", "error": None}


def test_docker_that_does_not_answer_changes_nothing_that_is_remembered() -> None:
    look = {"docker": False, "here": False, "boot": "b1"}
    assert remember(SEEN, look, NOW) == SEEN
    told = report(SEEN, look, NOW)
    assert (told["docker"], told["here"], told["lost"]) == (False, False, None)


def test_a_container_that_is_gone_is_forgotten() -> None:
    assert remember(SEEN, {"docker": True, "here": False, "boot": "b1"}, NOW) == {}
