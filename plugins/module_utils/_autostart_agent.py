# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""The agent of the autostart: one on each node, for one deployment. The workers' agents report to the head's, which decides (see C(_autostart)).

It runs as a program of its own, out of a zip file that the collection makes of its own utils, and needs nothing but the node's Python.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils import _autostart, _autostart_files, _autostart_wire, _ledger, _systemd, _unit_files
from ansible_collections.sparkstack.inference.plugins.module_utils._autostart import INFO, Line
from ansible_collections.sparkstack.inference.plugins.module_utils._autostart_node import Data, Node
from ansible_collections.sparkstack.inference.plugins.module_utils._diagnosis import judge

POLL, HURRY = 2.0, 0.5
"""Seconds from look to look; while ranks are being stopped and started."""
_FRESH = 20.0
"""Seconds for which a report counts."""
_LOCK = 120.0
"""Seconds for which the deployment is kept from others; prolonged with each step."""
_SLIPS = 3
"""Tries to reach the head's agent, one a look, before the journal hears of it: it may only be late."""


class Journal:
    """Lines for systemd's journal, each with its priority; what only goes on is told when it changes."""

    def __init__(self, deployment: str, write: t.Callable[[str], t.Any]) -> None:
        self._deployment, self._write = deployment, write
        self._status = ""

    def say(self, line: Line) -> None:
        """Tell what happened."""
        # A line each: "<3>qwen: Start 1 failed. .."
        self._write("<{0}>{1}: {2}\n".format(line[0], self._deployment, " ".join(line[1].split())))

    def status(self, line: t.Optional[Line]) -> None:
        """Tell what goes on, once."""
        if line is not None and line[1] != self._status:
            self.say(line)
        self._status = line[1] if line is not None else ""


class Head:
    """The agent beside rank 0."""

    def __init__(self, node: Node, journal: Journal) -> None:
        self.node, self.journal = node, journal
        self.config = node.config
        self._lock = threading.Lock()
        self._reports: t.Dict[int, t.Tuple[float, Data]] = {}
        self._decision = _autostart.Decision(node.state)
        self._watching = False
        self._told: t.Dict[str, str] = {}
        """By address, why its last call was ended: a worker calls again every few seconds."""
        self._run = {"run": "autostart/{0}".format(self.config["nodes"][0]), "user": "autostart", "host": self.config["nodes"][0], "pid": os.getpid()}
        self._ledger = _ledger.Ledger(self.config["deployment"], node.root)
        # An agent before this one may have ended while it had the lock.
        self._holding = self._lock_file().get("run") == self._run["run"]

    def serve(self) -> None:
        """Let the workers' agents report; returns at once."""
        server = _autostart_wire.listen(self.config["addresses"][0], self.config["port"])
        arguments = (server, self.config["addresses"][1:], lambda c: _autostart_wire.Channel(c, self.config["token"], True), self._talk, self._problem)
        threading.Thread(target=_autostart_wire.serve, args=arguments, daemon=True).start()

    def _talk(self, channel: _autostart_wire.Channel) -> None:
        rank = channel.peer.get("rank")
        if channel.peer.get("deployment") != self.config["deployment"] or not isinstance(rank, int) or not 0 < rank < len(self.config["nodes"]):
            raise _autostart_wire.WireError("it is of another deployment")
        last = None
        try:
            while True:
                report = channel.receive()
                with self._lock:
                    last = self._reports[rank] = (time.monotonic(), dict(report, received=self.node.clock()))
                    decision, watching = self._decision, self._watching
                channel.send(self._orders(rank, decision, watching))
        finally:
            with self._lock:
                # A worker that was restarted has called again by now: the end of its call before is no silence.
                if self._reports.get(rank) is last:
                    self._reports.pop(rank, None)

    @staticmethod
    def _orders(rank: int, decision: _autostart.Decision, watching: bool) -> Data:
        effort = decision.state.get("effort") or {}
        hurry = effort.get("stage") in ("stop", "workers", "head")
        return {"want": decision.wants.get(rank), "order": decision.order, "watch": watching, "wait": HURRY if hurry else POLL}

    def _problem(self, address: str, why: str) -> None:
        if ("token" in why or "deployment" in why) and self._told.get(address) != why:
            self._told[address] = why
            self.journal.say((_autostart.WARNING, "{0} was hung up on: {1}. A deploy gives all nodes the same settings again.".format(address, why)))

    def turn(self) -> float:
        """Look, decide, carry out; returns the seconds until the next turn."""
        now = self.node.clock()
        with self._lock:
            fresh = {rank: word for rank, (at, word) in self._reports.items() if time.monotonic() - at < _FRESH}
        fresh[0] = self.node.report()
        watched = (self.node.state.get("effort") or {}).get("stage") in ("workers", "head", "watch")
        if watched:
            fresh[0]["record"] = self.node.record()
        view = _autostart.View(
            self.config["nodes"], fresh, now, self._others(now), self._verdict(fresh) if watched else None, float(self.config["ready_timeout"])
        )
        decision = _autostart.decide(view, self.node.state)
        if decision.wants and not self._take(now):
            return POLL
        if decision.state != self.node.state:
            self.node.save(decision.state)
        stage = (decision.state.get("effort") or {}).get("stage")
        with self._lock:
            self._decision, self._watching = decision, stage in ("workers", "head", "watch")
        for line in decision.lines:
            self.journal.say(line)
        self.journal.status(decision.status)
        self.node.carry_out(decision.wants.get(0), decision.order)
        if self._holding and stage not in ("stop", "workers", "head"):
            self._give_back()
        return HURRY if stage in ("stop", "workers", "head") else POLL

    def _verdict(self, reports: t.Mapping[int, Data]) -> t.Optional[Data]:
        """What all ranks' records say together, once all are there."""
        records = []
        for rank in range(len(self.config["nodes"])):
            record = (reports.get(rank) or {}).get("record")
            if record is None:
                return None
            received = reports[rank].get("received")
            ahead = record["now"] - received if received is not None and "now" in record else 0.0
            records.append(dict(record, clock_offset=round(ahead, 3) if abs(ahead) > POLL else 0.0))
        verdict = judge(records, self.config["stall_timeouts"])
        if verdict["verdict"] == "ready":
            verdict["answered"] = self.node.answered()
        return verdict

    # The deployment's lock: no run of the controller and no agent work on it at the same time.

    def _others(self, now: float) -> str:
        """Who else holds the lock, in a sentence."""
        lock = self._lock_file()
        if not lock or lock.get("run") == self._run["run"] or _ledger.lapsed(lock, now):
            return ""
        return "{0} works on the deployment: nothing is started here meanwhile.".format(_ledger.who(lock))

    def _lock_file(self) -> Data:
        return _unit_files.read(os.path.join(self._ledger.folder, "lock.json")) or {}

    def _take(self, now: float) -> bool:
        try:
            self._ledger.acquire(self._run, now + _LOCK)
        except _ledger.LedgerError as error:
            self.journal.status((INFO, str(error)))
            return False
        self._holding = True
        return True

    def _give_back(self) -> None:
        try:
            self._ledger.release(self._run["run"])
        except _ledger.LedgerError as error:
            # A full disk, say: once more at the next turn. Others may take it when its time is over.
            self.journal.status((INFO, str(error)))
            return
        self._holding = False


class Worker:
    """The agent beside any other rank."""

    def __init__(self, node: Node, journal: Journal) -> None:
        self.node, self.journal = node, journal
        self.config = node.config
        self._channel: t.Optional[_autostart_wire.Channel] = None
        self._watch = False
        self._slips = 0
        self._heard = ("", "")
        """The last order that the journal was told of: it is repeated until a report tells that it was carried out."""

    def turn(self) -> float:
        """Look, report, carry out what the head's agent wants; returns the seconds until the next turn."""
        report = self.node.report()
        if self._watch:
            report["record"] = self.node.record()
        try:
            orders = self._exchange(report)
        except _autostart_wire.WireError as error:
            if self._channel:
                self._channel.close()
            self._channel, self._watch = None, False
            self._slips += 1
            if self._slips >= _SLIPS:
                self.journal.status((INFO, "No agent answers at the head: {0}.".format(error)))
            return POLL
        self._slips, self._watch = 0, bool(orders.get("watch"))
        self.journal.status((INFO, "The head's agent takes the reports."))
        heard = (str(orders.get("want")), str(orders.get("order")))
        if orders.get("want") and heard != self._heard:
            self._heard = heard
            self.journal.say((_autostart.NOTICE, "The head's agent wants rank {0} {1}.".format(self.config["rank"], orders["want"])))
        self.node.carry_out(orders.get("want"), str(orders.get("order")))
        return min(max(float(orders.get("wait") or POLL), HURRY), POLL)

    def _exchange(self, report: Data) -> Data:
        addresses, rank = self.config["addresses"], self.config["rank"]
        if self._channel is None:
            me = {"deployment": self.config["deployment"], "rank": rank}
            self._channel = _autostart_wire.call(addresses[rank], addresses[0], self.config["port"], self.config["token"], me)
        self._channel.send(report)
        return self._channel.receive()


def main(arguments: t.Sequence[str]) -> int:
    """Run until systemd ends it; returns an exit code.

    :param arguments: the path of the settings.
    """
    config = _unit_files.read(arguments[0]) if len(arguments) == 1 else None
    if config is None:
        sys.stderr.write("<3>There are no settings to be read: give the path of /etc/sparkstack/autostart/DEPLOYMENT.json.\n")
        return 2
    journal = Journal(config["deployment"], _to_journal)
    held = _autostart_files.hold(config["deployment"])
    if held is None:
        journal.say((_autostart.ERROR, "Its agent runs already."))
        return 1
    node = Node(config)
    agent: t.Union[Head, Worker] = Worker(node, journal)
    if config["rank"] == 0:
        agent = Head(node, journal)
        try:
            agent.serve()
        except OSError as error:
            where = "{0} port {1}".format(config["addresses"][0], config["port"])
            journal.say((_autostart.ERROR, "{0} can't be listened on: {1}. Set tp_launch_autostart_port to a free port.".format(where, error.strerror)))
            return 1
    _systemd.notify("READY=1")
    while True:
        try:
            wait = agent.turn()
        except OSError as error:
            # A full disk, say: what can't be remembered is not begun.
            journal.status((_autostart.ERROR, "This node does not let its agent work: {0}.".format(error)))
            wait = POLL
        time.sleep(wait)


def _to_journal(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()
