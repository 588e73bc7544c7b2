# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The controller's half of collective_proof: each host runs its own rank's part, and all come to one verdict by what the board shows."""

from __future__ import annotations

import time
import typing as t

from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible.plugins.action import ActionBase

from ansible_collections.sparkstack.inference.plugins.action.inference_launch import ARGUMENTS as LAUNCH
from ansible_collections.sparkstack.inference.plugins.action.inference_launch import request_of
from ansible_collections.sparkstack.inference.plugins.module_utils._causes import CAUSES
from ansible_collections.sparkstack.inference.plugins.module_utils._words import duration
from ansible_collections.sparkstack.inference.plugins.plugin_utils import _collective, _collective_judge, _container
from ansible_collections.sparkstack.inference.plugins.plugin_utils._board import Board, forks

MODULE = "sparkstack.inference.collective_rank"
ARGUMENTS: dict[str, dict[str, t.Any]] = {
    "launch": {"type": "dict", "required": True},
    "members": {"type": "list", "elements": "str"},
    "transport": {"type": "str", "choices": ["auto", "rdma", "socket", "any"], "default": "auto"},
    "link_mbps": {"type": "float", "default": 0},
    "min_share": {"type": "float", "default": 0.5},
    "again": {"type": "bool", "default": False},
    "max_age": {"type": "float", "default": 86400},
    "required": {"type": "bool", "default": True},
    "timeout": {"type": "float", "default": 90},
    "join_timeout": {"type": "float", "default": 30},
    "docker_socket": {"type": "path", "aliases": ["docker_host"], "default": "/var/run/docker.sock"},
}
TOLD = ("verdict", "cause", "culprit", "message", "remedy", "evidence")
_MARGIN = 60.0
"""Seconds over a proof's own time in which the other hosts' words must be there: their connections need some as well."""


class ActionModule(ActionBase):
    """One host's part, in its own process beside those of the others."""

    TRANSFERS_FILES = False
    _supports_check_mode = True
    _supports_async = False

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        super().run(tmp, task_vars)
        self._vars = task_vars or {}
        _validated, self._args = self.validate_argument_spec(argument_spec=ARGUMENTS)
        request = self._request()
        host = str(self._vars.get("inventory_hostname"))
        members = list(self._args["members"] or self._vars.get("ansible_play_batch") or [])
        self._check(host, members, request)
        board = Board.of_task(self._task._uuid, host, members)
        try:
            return self._prove(board, request)
        except BaseException as error:
            # The others must not wait for a host that does no more.
            board.write("gone", str(error) or type(error).__name__)
            raise

    # What is asked for.

    def _request(self) -> _container.Request:
        """The rank's own container, by the very code that starts it."""
        given = {name: value for name, value in self._args["launch"].items() if name in LAUNCH}
        checked = ArgumentSpecValidator(LAUNCH, required_if=[["state", "started", ["engine", "image", "model", "rank", "ranks", "head_address"]]]).validate(
            given
        )
        if checked.error_messages:
            raise AnsibleActionFail(f"launch is no rank's part of a plan: {checked.error_messages[0]}.")
        try:
            request = request_of(checked.validated_parameters)
            _collective.body(request)
        except ValueError as error:
            raise AnsibleActionFail(str(error)) from error
        return request

    def _check(self, host: str, members: list[str], request: _container.Request) -> None:
        if host not in members:
            raise AnsibleActionFail(f"{host} is not among the members of the proof: {', '.join(members)}.")
        if len(members) != request.rank.ranks:
            raise AnsibleActionFail(
                f"The launch has {request.rank.ranks} ranks, but {len(members)} hosts take part ({', '.join(members)}): name them in members."
            )
        if len(members) > 1 and (self._task.run_once or 0 < int(self._task.throttle or 0) < len(members)):
            raise AnsibleActionFail("All ranks must be proved at the same time: remove run_once and throttle from this task.")
        if forks() < len(members):
            raise AnsibleActionFail(f"All {len(members)} ranks must be proved at the same time: set forks to {len(members)} or more (it is {forks()}).")

    # What is done.

    def _prove(self, board: Board, request: _container.Request) -> dict[str, t.Any]:
        own, rank = board.member, request.rank
        seen = self._module(
            state="looked",
            container=_collective.name(request.deployment, rank.rank),
            image=request.image,
            port=rank.rendezvous_port if rank.rank == 0 else None,
            netdevs=_collective.netdevs(request),
        )
        look = seen["look"]
        parts = {name: look[name] for name in ("identity", "boot", "links", "program")}
        word = {"rank": rank.rank, "content": {**_collective.content(request), **parts}, "problem": _problem(own, request, look)}
        age = seen["now"] - seen["kept"]["at"] if seen["kept"] else None
        word["kept"] = seen["kept"]["key"] if age is not None and 0 <= age <= self._args["max_age"] else None
        board.write("look", word)
        looks = self._wait(board, "look", self._args["timeout"] + _MARGIN)
        ranks = sorted(looks, key=lambda member: looks[member]["rank"])
        if [looks[member]["rank"] for member in ranks] != list(range(len(ranks))):
            raise AnsibleActionFail("Two hosts of this task have the same rank: give each host its own part of the plan.")
        key = _collective.key([looks[member]["content"] for member in ranks])
        remembered = all(looks[member]["kept"] == key for member in ranks) and not self._args["again"]
        if remembered:
            told = seen["kept"]["result"]
            msg = f"{told['message']} This was proved {duration(age or 0)} ago, and nothing has changed since."
            return {"changed": False, "remembered": True, **told, "message": msg, "msg": msg}
        if self._task.check_mode:
            msg = f"{len(ranks)} ranks would prove themselves by a small all-reduce in {request.image}, over port {rank.rendezvous_port}."
            return {"changed": True, "remembered": False, **dict.fromkeys(TOLD), "group": {}, "nodes": {}, "msg": msg}
        blocked = next(({**looks[member]["problem"], "culprit": member} for member in ranks if looks[member]["problem"]), None)
        if blocked:
            return self._result({"verdict": "blocked", "evidence": [], **blocked}, {}, {})
        return self._run_all(board, request, ranks, {"key": key, "at": seen["now"]})

    def _run_all(self, board: Board, request: _container.Request, ranks: list[str], proof: dict[str, t.Any]) -> dict[str, t.Any]:
        """The proof itself: all hosts at the same time. :param proof: its key, and the time by this host's own clock."""
        parameters = _collective.parameters(request, f"{proof['key']}-{self._task._uuid}", self._args["timeout"], self._args["join_timeout"])
        done = self._module(
            state="run", container=_collective.name(request.deployment, request.rank.rank), body=_collective.body(request), parameters=parameters
        )
        expected = _collective.expectations(request, self._args["transport"])
        word = {"node": board.member, "rank": request.rank.rank, "address": request.rank.address, "expected": expected}
        board.write("done", {**word, **{name: done[name] for name in ("output", "problem", "seconds")}})
        words = self._wait(board, "done", self._args["timeout"] + _MARGIN)
        nodes = _collective_judge.read([words[member] for member in ranks])
        port = request.rank.rendezvous_port
        verdict = _collective_judge.judge(nodes, request.engine.name, port, self._args["link_mbps"], self._args["min_share"])
        group = _collective_judge.group(nodes, port)
        result = self._result(verdict, group, {node["node"]: _shown(node) for node in nodes})
        # Only what was good is remembered: after a correction nobody should have to ask for another look.
        good = {name: result[name] for name in (*TOLD, "group", "nodes")} if verdict["verdict"] == "ready" else None
        try:
            self._module(state="kept", proof={**proof, "result": good} if good else {})
        except AnsibleActionFail as error:
            # A full disk, say: what was proved is proved.
            result["warnings"] = [str(error)]
        return result

    def _result(self, verdict: dict[str, t.Any], group: dict[str, t.Any], nodes: dict[str, t.Any]) -> dict[str, t.Any]:
        blocked = verdict["verdict"] == "blocked"
        msg = verdict["message"] if verdict["verdict"] in ("ready", None) else "\n".join([verdict["message"], verdict["remedy"], *verdict["evidence"]])
        result = {"changed": bool(nodes), "remembered": False, **{name: verdict[name] for name in TOLD}, "group": group, "nodes": nodes, "msg": msg}
        if blocked and self._args["required"]:
            result["failed"] = True
        return result

    def _wait(self, board: Board, topic: str, timeout: float) -> dict[str, t.Any]:
        """The words of all hosts; ends as soon as one of them has given up."""
        deadline = time.monotonic() + timeout
        while True:
            try:
                return board.wait(topic, board.members, min(1.0, max(0.0, deadline - time.monotonic())))
            except TimeoutError as error:
                for member, why in board.read("gone").items():
                    raise AnsibleActionFail(f"The proof needs all ranks, and {member} has given up: {why}") from error
                if time.monotonic() >= deadline:
                    raise AnsibleActionFail(f"The proof needs all ranks: {error}.") from error

    def _module(self, **arguments: t.Any) -> dict[str, t.Any]:
        given = {"deployment": self._args["launch"]["deployment"], "docker_socket": self._args["docker_socket"], **arguments}
        try:
            found: dict[str, t.Any] = self._execute_module(module_name=MODULE, module_args=given, task_vars=self._vars)
        except AnsibleConnectionFailure as error:
            raise AnsibleActionFail(f"the node cannot be reached: {error}") from error
        if found.get("failed"):
            said = found.get("msg") or found.get("module_stderr") or found.get("exception") or "the module gave no reason"
            raise AnsibleActionFail(str(said))
        return found


def _problem(host: str, request: _container.Request, look: t.Mapping[str, t.Any]) -> dict[str, t.Any] | None:
    """What is known before anything is started to be in the way."""
    name = _collective.name(request.deployment, request.rank.rank)
    if look["foreign"]:
        return {"cause": None, "message": _container.taken(name, look["foreign"], f" on {host}"), "remedy": "Remove or rename it."}
    if look["identity"] is None:
        message = f"The image {request.image} is not on {host}."
        return {"cause": "bad_image", "message": message, "remedy": "Bring it there first (role image_sync)."}
    listener = look["listener"]
    if listener:
        container, process = listener.get("name") or listener["container"], f"process {listener['pid']} ({listener['process']})"
        who = f"container {container}" if container else process if listener["pid"] else "another program"
        message = f"The rendezvous port {listener['port']} on {host} is taken by {who}."
        return {"cause": "port_in_use", "message": message, "remedy": CAUSES["port_in_use"].remedy.format(node=host, peer=host)}
    return None


def _shown(node: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """What is told of one node."""
    told = node["told"]
    shown = {name: told[name] for name in ("stage", "backend", "torch", "nccl", "correct", "gpu_bytes", "nccl_bytes", "memory_bytes", "transport")}
    return {"rank": node["rank"], "seconds": told["seconds"], "container_seconds": node["seconds"], **shown}
