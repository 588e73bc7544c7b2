# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is private to the collection: it can change at any time.

"""The watch over a group of ranks: each host of the task looks at its own rank, and judges all by what the board shows."""

from __future__ import annotations

import time
import typing as t
from dataclasses import dataclass, field

from ansible_collections.sparkstack.inference.plugins.module_utils._causes import CAUSES
from ansible_collections.sparkstack.inference.plugins.module_utils._diagnosis import judge, lost
from ansible_collections.sparkstack.inference.plugins.module_utils._engines._types import PHASES
from ansible_collections.sparkstack.inference.plugins.module_utils._guard import Curve
from ansible_collections.sparkstack.inference.plugins.plugin_utils._board import Board
from ansible_collections.sparkstack.inference.plugins.plugin_utils._progress import Progress, line, passed

POLL = 1.0
"""Seconds from look to look."""
HEARTBEAT = 30.0
"""Seconds after which the head's host says that all is as it was."""
_SETTLE = {True: 0.5, False: 3.0}
"""Seconds for which a failure must have stood: a traceback may be half written, and after a victim's word (not sure) the
true reason can follow: a head has failed 1.4 s before the worker that was to blame."""
_ALIKE = 2.0
"""Seconds for which a failure must have stood that the ranks which run on may be about to meet as well."""
_OBSERVE = 10.0
"""Seconds of looking before a rank counts as stalled: the first look sees the log only, not what the processes do."""
_SILENT = 45.0
"""Seconds after which the host of another rank, which writes each second, counts as gone."""
_UNHEARD = 5
"""Looks in a row in which that host has written nothing: after a controller's sleep, its first look finds all the others' words old."""
_ANXIOUS = 10.0
"""Seconds without progress after which each look asks the other nodes' fabric addresses for an echo as well."""
_CLOSER = {"stalled": 15.0, "failed": 3.0, "": 15.0}
"""Seconds that a close look may take: after a failure the user waits for the verdict, and little can change it."""
_EARLY = ("container", "parse_args")
"""Phases in which the ranks do not know of each other yet."""
_AT_ONCE = "wrong_image_arch"
"""The cause that ends a container before its first line: no more can follow."""
_BEAT = 0.2
"""Seconds from one reading of the board to the next: between two looks, and while only the others' close looks are waited for."""
_TRIES = 3
"""Looks that ask an address for its first echo: one that never answers may stand behind a firewall."""
_SHOW = 10.0
"""Seconds between two lines that only tell of progress within a phase."""


class Unreachable(Exception):
    """The node, or its Docker, doesn't answer; the text is a sentence."""


@dataclass
class Options:
    """What the user wants; seconds where it is time."""

    rank: int
    until: str = "ready"
    timeout: float = 1800
    join_timeout: float = 30
    stall_timeouts: t.Mapping[str, float] = field(default_factory=dict)
    closer_look: str = "when_needed"
    """C(when_needed), C(always) or C(never)."""


class Watch:
    """One host's part of the watch."""

    def __init__(
        self,
        board: Board,
        options: Options,
        probe: t.Callable[[dict[str, t.Any], list[str]], dict[str, t.Any]],
        closer: t.Callable[[dict[str, t.Any]], dict[str, t.Any]],
        say: t.Callable[[str], None],
        clock: t.Callable[[], float] = time.time,
        pause: t.Callable[[float], None] = time.sleep,
    ) -> None:
        """
        :param probe: called with the last look's state and the addresses to ask for an echo, returns what
            M(sparkstack.inference.init_phase_probe) does; raises :class:`Unreachable`.
        :param closer: called with C(peers), C(rendezvous), C(since) and C(timeout), returns what
            M(sparkstack.inference.init_phase_closeup) does; raises :class:`Unreachable`.
        :param say: prints a line for the user at once.
        """
        self.board, self.options, self.probe, self.closer, self.say = board, options, probe, closer, say
        self.clock, self.pause = clock, pause
        self._state: dict[str, t.Any] = {}
        self._progress = Progress()
        self._memory = Curve()
        """What was available on the node at each look, for the report."""
        self._said: t.Any = None
        self._moved = ""
        self._said_at = 0.0
        self._unreachable_since: float | None = None
        self._failing_since: float | None = None
        self._quiet = 0.0
        self._seen: dict[str, t.Any] = {}
        """The last record in which the container was there."""
        self._clock: tuple[float, float] | None = None
        """What the surest look told of the node's clock: how far off it may be, and how much that clock is ahead, in seconds."""
        self._answered: set[str] = set()
        self._asked: dict[str, int] = {}
        self._closeup: dict[str, t.Any] | None = None
        self._looked_at = 0.0
        self._last: dict[str, t.Any] | None = None
        self._held: dict[str, t.Any] | None = None
        """The own record while a sure failure waits for the others' close looks: no further look can change it."""
        self._heard: dict[str, tuple[float, int]] = {}

    def run(self) -> dict[str, t.Any]:
        """Watch until there is a verdict for the group, or the time is over; returns the verdict and C(over) (its time was)."""
        try:
            return self._run()
        except BaseException as error:
            # The others must not wait for a host that looks no more.
            self.gone(f"its watch ended: {error or type(error).__name__}")
            raise

    def gone(self, why: str) -> None:
        """Tell the others that this host looks no more."""
        word = {"node": self.board.member, "rank": self.options.rank, "running": None, "unreachable": why, "gone": True, "written": self.clock()}
        self.board.write("rank", dict(self._seen, **word))

    def _run(self) -> dict[str, t.Any]:
        start = self.clock()
        while True:
            began = self.clock()
            verdict = self.turn(start)
            if verdict is not None:
                return verdict
            # A failure only has to stand: what confirms it need not wait for a whole round.
            step = POLL if self._failing_since is None else _SETTLE[True]
            self._rest(self.clock() + _BEAT if self._held else max(self.clock() + 0.05, began + step))

    def _rest(self, until: float) -> None:
        """Pause before the next look, at most until a host has come to a verdict."""
        while self._settled() is None and self.clock() < until:
            self.pause(min(_BEAT, until - self.clock()))

    def turn(self, start: float) -> dict[str, t.Any] | None:
        """Look, tell the others, judge: the final verdict, or None while there is none.

        :param start: when the watch began.
        """
        # Another host has come to a verdict between two looks: where something is wrong, the user waits for the last of the hosts.
        settled = self._settled()
        told = self._last if settled and settled["verdict"] != "ready" else None
        self._last = record = self._held or told or self._look(self.clock())
        self.board.write("rank", dict(record, written=self.clock()))
        self._held = None
        records = self._records(start)
        settled = settled or self._settled()
        verdict = settled or judge(records, self.options.stall_timeouts, once=not self.options.timeout)
        self._tell(record, records, verdict)
        if settled:
            return settled
        now = self.clock()
        final = self._final(verdict, records, start, now)
        # No rank is judged by a silence that a close look has not confirmed, nor named without what the look can add. After a
        # failure it is taken while the verdict settles.
        looking = (final or verdict["verdict"] == "failed") and self._looks_closer(verdict, records, now)
        if final and not looking:
            verdict["over"] = False
            self.board.write("verdict", verdict)
            return self._settled() or verdict
        if not looking and self._asked_for():
            self._look_closer(verdict, records)
        if verdict["verdict"] == "failed" and verdict["sure"] and self._closeup is not None:
            self._held = dict(record, closeup=self._closeup)
        if self.options.timeout and now - start >= self.options.timeout:
            return dict(verdict, over=True)
        return None

    # The close look.

    def _asked_for(self) -> bool:
        """Another host of the group has begun a close look, and this one has had none since."""
        return self.options.closer_look != "never" and any(at > self._looked_at for at in self.board.read("closer").values())

    def _looks_closer(self, verdict: dict[str, t.Any], records: list[dict[str, t.Any]], now: float) -> bool:
        """A close look is needed before the verdict can stand: take this host's part of it, or wait for the others'."""
        mode, cause = self.options.closer_look, verdict["cause"]
        bad = verdict["verdict"] == "stalled" or (verdict["verdict"] == "failed" and cause is not None and CAUSES[cause].closer)
        if mode == "never" or not (mode == "always" or bad):
            return False
        if self._closeup is None:
            self.board.write("closer", now)
            self._look_closer(verdict, records)
            return True
        waiting = [r for r in records if not r.get("unreachable") and r.get("closeup") is None]
        return bool(waiting) and now - self._looked_at < _CLOSER[""] + 5

    def _look_closer(self, verdict: dict[str, t.Any], records: list[dict[str, t.Any]]) -> None:
        own = next(record for record in records if record["node"] == self.board.member)
        claims = [(record.get("reading") or {}).get("claims", {}).get("rendezvous") for record in [own, *records]]
        arguments = {
            "peers": self._peers(),
            "rendezvous": next((claim for claim in claims if claim), ""),
            "since": own.get("began") or 0,
            "timeout": _CLOSER.get(verdict["verdict"], _CLOSER[""]),
        }
        try:
            self._closeup = self._judged(self.closer(arguments))
        except Unreachable as error:
            self._closeup = {"problem": str(error)}
        self._looked_at = self.clock()
        self.board.write("rank", dict(own, closeup=self._closeup, written=self.clock()))

    def _peers(self) -> list[str]:
        """The other nodes' addresses on the fabric."""
        scenes = [word.get("scene") or {} for member, word in self.board.read("rank").items() if member != self.board.member]
        return [scene["fabric"]["address"] for scene in scenes if (scene.get("fabric") or {}).get("address")]

    def _judged(self, scene: dict[str, t.Any]) -> dict[str, t.Any]:
        """Mark each echo with whether that address has answered before: a firewall may drop them from the first on."""
        for address, echo in (scene.get("reach") or {}).items():
            if echo.get("small") is not None:
                self._answered.add(address)
            echo["answered"] = address in self._answered
        return scene

    def _look(self, now: float) -> dict[str, t.Any]:
        """Probe the own rank and make a record of it, see M(_diagnosis)."""
        base = {"node": self.board.member, "rank": self.options.rank}
        peers = [a for a in self._peers() if self._quiet >= _ANXIOUS or (a not in self._answered and self._asked.get(a, 0) < _TRIES)]
        self._asked.update({address: self._asked.get(address, 0) + 1 for address in peers})
        try:
            found = self.probe(self._state, peers)
        except Unreachable as error:
            self._unreachable_since = self._unreachable_since if self._unreachable_since is not None else now
            if self._seen.get("started") and not self._seen["running"]:
                # It has been seen to end: that its node says no more takes nothing of that back.
                return dict(self._seen, written=self.clock())
            gone = now - self._unreachable_since >= self.options.join_timeout
            return dict(self._seen, **base, running=None, unreachable=str(error), lost=gone, written=self.clock())
        self._unreachable_since = None
        self._state = found.pop("state", {})
        after = self.clock()
        if not found["exists"] and self._seen:
            end = {"running": False, "removed": True, "finished": found["now"]} if self._seen["running"] else {}
            return dict(self._seen, **end, closeup=self._closeup, written=after)
        quiet = self._quiet = self._progress.quiet(found, after)
        goes_on = self.options.timeout and self._failing_since is None
        if self._closeup is not None and goes_on and quiet < after - self._looked_at:
            # It has moved since: what the close look told is over. A verdict that stands whatever moves keeps its one look.
            self._closeup = None
        phases = (found["reading"] or {}).get("phases") or []
        since = phases[-1]["time"] if phases else found.get("started_at")
        end = found.get("finished_at") or found["now"]
        memory = found.get("memory") or {}
        if memory.get("total") and found.get("running"):
            self._memory.add((round(found["now"], 1), memory["available"]))
        record = dict(
            base,
            **{key: found.get(key) for key in ("started", "running", "paused", "exit_code", "oom_killed", "error", "restarts", "reading", "activity")},
            healthy=found.get("healthy"),
            addresses=found.get("addresses") or [],
            quiet_seconds=round(quiet, 1),
            busy=self._progress.busy,
            rate=self._progress.rate,
            memory={"total": memory["total"], "curve": self._memory.points()} if memory.get("total") else None,
            scene=self._judged(found.get("scene") or {}),
            closeup=self._closeup,
            began=found.get("started_at"),
            finished=found.get("finished_at"),
            clock_offset=self._offset(found["now"], now, after),
            seconds_in_phase=max(0.0, end - since) if since is not None else None,
            seconds=max(0.0, end - found["started_at"]) if found.get("started_at") else None,
            written=after,
        )
        self._seen = record if found["exists"] else {}
        return record

    def _offset(self, there: float, before: float, after: float) -> float:
        """Seconds by which the node's clock is ahead, 0 where it may be right.

        :param there: what the node's clock said at some moment of a look. :param before: the controller's clock when the look began.
        :param after: when it was over.

        A look can take seconds, for 200 MB of new log say, and nobody knows at which moment of it the node's clock was read.
        """
        half, offset = (after - before) / 2, there - (before + after) / 2
        known = self._clock
        if known is None or half <= known[0] or abs(offset - known[1]) > half + known[0]:
            # Surer than what was known; or that can't be true any more: the clock was set.
            self._clock = known = (half, offset)
        return round(known[1], 3) if abs(known[1]) > known[0] else 0.0

    def _records(self, start: float) -> list[dict[str, t.Any]]:
        """All ranks' records; of a host that is silent, that it is."""
        now = self.clock()
        words = self.board.read("rank")
        records = []
        for index, member in enumerate(self.board.members):
            record = words.get(member)
            if record is None:
                why = f"its task has not begun after {now - start:.0f} s"
                record = {"unreachable": why, "lost": now - start >= self.options.join_timeout, "pending": True, "rank": index}
            elif "gone" in record:
                record = dict(record, lost=True)
            elif self._unheard(record) >= _UNHEARD and now - record["written"] > _SILENT and not self.board.read("verdict"):
                record = dict(record, running=None, unreachable=f"no word from it for {now - record['written']:.0f} s", lost=True)
            records.append(dict(record, node=member))
        return records

    def _unheard(self, record: t.Mapping[str, t.Any]) -> int:
        """How many of this host's own looks another host has let pass since it wrote."""
        written, count = self._heard.get(record["node"], (0.0, 0))
        count = count + 1 if written == record["written"] else 0
        self._heard[record["node"]] = (record["written"], count)
        return count

    def _settled(self) -> dict[str, t.Any] | None:
        """The verdict that a host has come to; the first host's, should two have come to one in the same moment."""
        words = self.board.read("verdict")
        return next(iter(words.values()), None)

    def _final(self, verdict: dict[str, t.Any], records: list[dict[str, t.Any]], start: float, now: float) -> bool:
        """The watch ends with this verdict; a node that is lost is a failure of its own."""
        gone = [record for record in records if record.get("lost") or (not self.options.timeout and record.get("unreachable") and not record.get("pending"))]
        if any(record.get("pending") for record in records) and not gone:
            return False
        if verdict["verdict"] == "failed":
            self._failing_since = self._failing_since if self._failing_since is not None else now
            told_all = bool(verdict["sure"]) or all(record.get("started") and not record.get("running") for record in records)
            early = any(record.get("running") and (record.get("reading") or {}).get("phase") in _EARLY for record in records)
            stands = _SETTLE[told_all]
            if told_all and early and CAUSES.get(verdict["cause"] or "", CAUSES["unknown"]).alike:
                # The others may be about to end of the same.
                stands = _ALIKE
            elif verdict["cause"] == _AT_ONCE:
                stands = 0.0
            return bool(not self.options.timeout or now - self._failing_since >= stands or gone)
        self._failing_since = None
        if gone:
            verdict.update(lost(gone[0]))
            return True
        if verdict["verdict"] == "stalled":
            return now - start >= (_OBSERVE if self.options.timeout else 3 * POLL)
        reached = PHASES.index(verdict["phase"]) >= PHASES.index(self.options.until) and all(record.get("started", True) for record in records)
        return verdict["verdict"] == "ready" or (reached and self.options.until != "ready") or not self.options.timeout

    # What the user sees.

    def _tell(self, record: dict[str, t.Any], records: list[dict[str, t.Any]], verdict: dict[str, t.Any]) -> None:
        """A line when something has changed, and now and then one that says that nothing has."""
        if not self.options.timeout:
            return
        now = self.clock()
        reading = record.get("reading") or {}
        change = (reading.get("phase"), record.get("running"), record.get("started"), record.get("paused"), bool(record.get("unreachable")))
        moved = str(reading.get("progress"))
        if change != self._said or (moved != self._moved and now - self._said_at >= _SHOW):
            for text in passed(record, self._said[0] if self._said else None):
                self.say(text)
            self.say(line(record))
            self._said, self._said_at, self._moved = change, now, moved
        elif now - self._said_at >= HEARTBEAT and self.board.member == self.board.members[0] and verdict["verdict"] != "ready":
            self.say("; ".join(line(other) for other in records))
            self._said_at = now
