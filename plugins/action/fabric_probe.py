# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The controller's half of fabric_probe: the nodes meet on the board, probe each other, meet again, and tell what has arrived."""

from __future__ import annotations

import contextlib
import ipaddress
import secrets
import time
import typing as t

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from ansible_collections.sparkstack.inference.plugins.module_utils._fabric_probe_steps import TRIES
from ansible_collections.sparkstack.inference.plugins.plugin_utils import _fabric_probe as plan
from ansible_collections.sparkstack.inference.plugins.plugin_utils._board import Board, forks

ARGUMENTS: dict[str, dict[str, t.Any]] = {
    "peers": {
        "type": "list",
        "elements": "dict",
        "required": True,
        "options": {
            "host": {"type": "str", "required": True},
            "rails": {"type": "list", "elements": "dict", "required": True},
        },
    },
    "ports": {"type": "list", "elements": "int", "default": []},
    "seconds": {"type": "float", "default": 0.5},
    "members": {"type": "list", "elements": "str"},
    "join_timeout": {"type": "float", "default": 20},
}
NODE = "sparkstack.inference.fabric_probe_node"
_PROBING = 20.0
"""Seconds within which every node must have probed, once one has."""
_NEXT = 45.0
"""Seconds in which a module must be at work on its node: until then the listener waits for it."""
_TEST = 4.0
"""Seconds that a bandwidth test can take beyond its tries' own, where RDMA is tried first."""


class ActionModule(ActionBase):
    """One host's part, in its own process beside those of the others."""

    _supports_check_mode = True
    _supports_async = False
    _requires_connection = True

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        super().run(tmp, task_vars)
        return self._run(task_vars or {})

    def _run(self, task_vars: dict[str, t.Any]) -> dict[str, t.Any]:
        self.task_vars = task_vars
        _validated, self.args = self.validate_argument_spec(argument_spec=ARGUMENTS)
        self.host: str = task_vars["inventory_hostname"]
        self.peers: dict[str, list[dict[str, t.Any]]] = {peer["host"]: peer["rails"] for peer in self.args["peers"]}
        self.hosts = list(self.peers)
        batch = self.args["members"] or task_vars["ansible_play_batch"]
        self.members = [host for host in self.hosts if host in batch]
        problem = self._problem()
        if problem:
            return {"failed": True, "changed": False, "msg": problem}
        self.token = ""
        self.board = Board.of_task(self._task._uuid, self.host, self.hosts)
        try:
            return self._probe()
        except BaseException as error:
            # The others must not wait for a host that will say nothing more.
            for topic in ("listening", "probed", "ended"):
                if self.host not in self.board.read(topic):
                    self.board.write(topic, {"gone": str(error) or type(error).__name__})
            if isinstance(error, Exception):
                self._end()
            raise

    def _problem(self) -> str:
        if self.host not in self.members:
            return f"{self.host} is not among the peers of the probe that take part: {', '.join(self.members)}."
        if len(self.hosts) < len(self.args["peers"]):
            return "Two of the peers have the same host: give each host once."
        if len(self.members) > 1 and (self._task.run_once or 0 < int(self._task.throttle or 0) < len(self.members)):
            return "All nodes must probe at the same time: remove run_once and throttle from this task."
        if forks() < len(self.members):
            return f"All {len(self.members)} nodes must probe at the same time: set forks to {len(self.members)} or more (it is {forks()})."
        for rail in (rail for rails in self.peers.values() for rail in rails if rail.get("address")):
            if not rail.get("netdev"):
                return f"peers: the rail {rail['address']} has no netdev: give each rail its interface and its address."
            try:
                ipaddress.IPv4Address(rail["address"])
            except ValueError:
                return f"peers: {rail['address']} is no IPv4 address: give the nodes' addresses on the fabric."
        return ""

    def _probe(self) -> dict[str, t.Any]:
        begun = time.monotonic()
        word = self._listen()
        words = {**self._absent(), **self._meet("listening", self.args["join_timeout"])}
        alone = plan.lonely(self.hosts, self.peers, words)
        rows = {host: plan.rows(host, self.hosts, self.peers, words, alone) for host in self.members}
        number = self.hosts.index(self.host)
        targets = plan.targets(rows[self.host], words, self.host)
        lifetime = _PROBING + _NEXT
        found = self._node(state="probing", token=word["token"], number=number, targets=targets, lifetime=lifetime)["rows"]
        self.board.write("probed", {"rows": found})
        probed = {
            host: {row["row"]: row for row in told["rows"]} for host, told in self._meet("probed", _PROBING, self._taking_part(words)).items() if "rows" in told
        }
        steps = plan.steps(self.host, self.hosts, rows, probed, words, self.args["seconds"]) if self.args["seconds"] > 0 else []
        limit = _PROBING + len(steps) * (TRIES * self.args["seconds"] + _TEST)
        ended = self._node(state="ending", token=word["token"], steps=steps, lifetime=limit)
        self.board.write("ended", ended)
        told = self._meet("ended", limit, self._taking_part(words))
        return {
            "changed": False,
            "listening": {"rails": [{key: rail[key] for key in rail if key != "control"} for rail in word["rails"]], **word["ports"]},
            "pairs": plan.result(self.host, self.hosts, self.peers, words, rows, probed, told),
            "seconds": round(time.monotonic() - begun, 2),
        }

    def _listen(self) -> dict[str, t.Any]:
        """Start the own listener, and tell the others where it is."""
        # Made for this task alone. It goes to the nodes among the module's arguments, never in a command line.
        token = secrets.token_hex(32)
        rails = [{key: rail.get(key) for key in ("netdev", "address", "prefix")} for rail in self.peers[self.host] if rail.get("address")]
        callers = list(dict.fromkeys(rail["address"] for rails in self.peers.values() for rail in rails if rail.get("address")))
        lifetime = self.args["join_timeout"] + _NEXT
        self.token = token
        found = self._node(state="listening", token=token, rails=rails, ports=self.args["ports"], callers=callers, lifetime=lifetime)
        word = {"rails": found["rails"], "ports": found["ports"], "token": token}
        self.board.write("listening", word)
        return word

    def _end(self) -> None:
        """End the own listener after a failure: until its time is over it would hold the launch's ports, and a run may go on without the gate."""
        if self.token:
            # Of a node that can't be reached it ends by itself.
            with contextlib.suppress(Exception):
                self._node(state="ending", token=self.token, steps=[], lifetime=1.0)

    def _absent(self) -> dict[str, t.Any]:
        return {host: {"gone": "its task has not run"} for host in self.hosts if host not in self.members}

    @staticmethod
    def _taking_part(words: t.Mapping[str, t.Any]) -> list[str]:
        return [host for host, word in words.items() if "gone" not in word]

    def _meet(self, topic: str, seconds: float, members: t.Sequence[str] | None = None) -> dict[str, t.Any]:
        """What the hosts have said on a topic, as soon as all have; without those that say nothing in time."""
        try:
            return self.board.wait(topic, self.members if members is None else members, seconds)
        except TimeoutError:
            return self.board.read(topic)

    def _node(self, **arguments: t.Any) -> dict[str, t.Any]:
        """Run a part of the probe on the node."""
        found: dict[str, t.Any] = self._execute_module(module_name=NODE, module_args=arguments, task_vars=self.task_vars)
        if found.get("failed") or found.get("unreachable"):
            said = found.get("msg") or found.get("module_stderr") or found.get("exception") or "the module gave no reason"
            raise AnsibleActionFail(f"The probe of the fabric failed on {self.host}: {said}")
        return found
