# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The controller's half of init_phase_wait: on each host a watch of its own rank, together one verdict."""

from __future__ import annotations

import os
import time
import typing as t

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.action import ActionBase

from ansible_collections.sparkstack.inference.plugins.module_utils._diagnosis import STALL_TIMEOUTS, judge
from ansible_collections.sparkstack.inference.plugins.module_utils._engines import ENGINES
from ansible_collections.sparkstack.inference.plugins.module_utils._engines._types import PHASES
from ansible_collections.sparkstack.inference.plugins.module_utils._timeline import Timeline
from ansible_collections.sparkstack.inference.plugins.plugin_utils import _log_files
from ansible_collections.sparkstack.inference.plugins.plugin_utils._board import Board, forks
from ansible_collections.sparkstack.inference.plugins.plugin_utils._diagnosis_plan import NOWHERE
from ansible_collections.sparkstack.inference.plugins.plugin_utils._watch import Options, Unreachable, Watch

PROBE = "sparkstack.inference.init_phase_probe"
CLOSEUP = "sparkstack.inference.init_phase_closeup"
ARGUMENTS: dict[str, dict[str, t.Any]] = {
    "container": {"type": "str"},
    "logs": {
        "type": "list",
        "elements": "dict",
        "options": {
            "node": {"type": "str", "required": True},
            "rank": {"type": "int", "required": True},
            "path": {"type": "path"},
            "started": {"type": "bool", "default": True},
            "running": {"type": "bool"},
            "exit_code": {"type": "int"},
            "oom_killed": {"type": "bool"},
            "quiet_seconds": {"type": "float"},
        },
    },
    "engine": {"type": "str", "choices": ["auto", *sorted(ENGINES)], "default": "auto"},
    "until": {"type": "str", "choices": list(PHASES), "default": "ready"},
    "timeout": {"type": "float", "default": 1800},
    "stall_timeouts": {"type": "dict", "default": {}},
    "health_url": {"type": "str"},
    "closer_look": {"type": "str", "choices": ["when_needed", "always", "never"], "default": "when_needed"},
    "rank": {"type": "int"},
    "members": {"type": "list", "elements": "str"},
    "join_timeout": {"type": "float", "default": 30},
    "docker_host": {"type": "str", "aliases": ["docker_socket"], "default": "unix:///var/run/docker.sock"},
}
KEYS = ("verdict", "phase", "cause", "culprit", "summary", "remedy", "evidence", "notes", "nodes")
_PIECE = 1 << 22


class ActionModule(ActionBase):
    """One host's part of the watch, in its own process beside those of the others; or the judge of logs on the controller."""

    _supports_check_mode = True
    _supports_async = False
    _requires_connection = False

    # Fakes of these stand in for time in the tests.
    clock = staticmethod(time.time)
    pause = staticmethod(time.sleep)

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        super().run(tmp, task_vars)
        self.task_vars = task_vars or {}
        _validated, self.args = self.validate_argument_spec(argument_spec=ARGUMENTS)
        if bool(self.args["container"]) == bool(self.args["logs"]):
            return _refuse("Give either container (to watch a running rank) or logs (to judge files), and not both.")
        try:
            limits = {phase: float(seconds) for phase, seconds in self.args["stall_timeouts"].items()}
        except (TypeError, ValueError):
            return _refuse("Each of stall_timeouts must be a number of seconds.")
        unknown = sorted(set(limits) - set(STALL_TIMEOUTS))
        if unknown:
            return _refuse(f"stall_timeouts has no phase {unknown[0]}: choose from {', '.join(STALL_TIMEOUTS)}.")
        return self._offline(limits) if self.args["logs"] else self._live(limits)

    # Logs on the controller.

    def _offline(self, limits: dict[str, float]) -> dict[str, t.Any]:
        records = []
        for entry in self.args["logs"]:
            record = dict(entry)
            if entry["running"] is None:
                record["running"] = entry["started"] and entry["exit_code"] is None
            if entry["started"]:
                if not entry["path"]:
                    return _refuse(f"The log of {entry['node']} has no path; say started: false where the rank never ran.")
                try:
                    record["reading"], age = self._read(entry["node"], entry["path"])
                except OSError as error:
                    return _refuse(_log_files.refused(entry["node"], entry["path"], error))
                except ValueError as error:
                    return _refuse(str(error))
                record["quiet_seconds"] = age if entry["quiet_seconds"] is None else entry["quiet_seconds"]
            records.append(record)
        if len({record["rank"] for record in records}) < len(records):
            return _refuse("Two of the logs have the same rank.")
        return self._result(dict(judge(records, limits), over=False))

    def _read(self, node: str, path: str) -> tuple[dict[str, t.Any], float]:
        """What a log tells, and the seconds since it was written to; :raises ValueError: where it is no text."""
        with open(self._loader.path_dwim(path), "rb") as stream:
            written = os.fstat(stream.fileno()).st_mtime
            timeline = Timeline(self.args["engine"], time.gmtime(written).tm_year)
            piece = stream.read(_PIECE)
            problem = _log_files.unreadable(node, path, piece)
            if problem:
                raise ValueError(problem)
            while piece:
                timeline.feed(piece)
                piece = stream.read(_PIECE)
        return timeline.reading(), max(0.0, self.clock() - written)

    # Live ranks.

    def _live(self, limits: dict[str, float]) -> dict[str, t.Any]:
        host: str = self.task_vars["inventory_hostname"]
        members = list(self.args["members"] or self.task_vars["ansible_play_batch"])
        problem = self._problem(host, members)
        if problem:
            return _refuse(problem)
        timeout = self.args["timeout"]
        if self._task.check_mode:
            try:
                found = self._probe({}, [])
            except Unreachable as error:
                return _refuse(str(error))
            if not found["exists"]:
                why = f"There is no container {self.args['container']} yet: in a real run it would be watched here."
                return {"changed": False, "skipped": True, "skip_reason": why, "msg": why, **dict.fromkeys(KEYS)}
            timeout = 0
        rank = self.args["rank"] if self.args["rank"] is not None else members.index(host)
        options = Options(rank, self.args["until"], timeout, self.args["join_timeout"], limits, self.args["closer_look"])
        board = Board.of_task(self._task._uuid, host, members)
        watch = Watch(board, options, self._probe, self._closer, self._display.display, self.clock, self.pause)
        verdict = watch.run()
        ranks = [word["rank"] for word in board.read("rank").values()]
        if len(set(ranks)) < len(ranks):
            return _refuse("Two hosts of this task have the same rank: give each host its own.")
        return self._result(verdict, judge_only=timeout == 0)

    def _problem(self, host: str, members: list[str]) -> str:
        if host not in members:
            return f"{host} is not among the members of the watch: {', '.join(members)}."
        if len(members) > 1 and (self._task.run_once or 0 < int(self._task.throttle or 0) < len(members)):
            return "All ranks must be watched at the same time: remove run_once and throttle from this task."
        if forks() < len(members):
            return f"All {len(members)} ranks must be watched at the same time: set forks to {len(members)} or more (it is {forks()})."
        return ""

    def _probe(self, state: dict[str, t.Any], peers: list[str]) -> dict[str, t.Any]:
        arguments = {key: self.args[key] for key in ("container", "docker_host", "engine", "health_url")}
        found = self._module(PROBE, {**arguments, "state": state, "peers": peers}, "the look at the container failed")
        if not found["exists"]:
            # The name is what the user can correct; the playbook diagnose gives one that no container can have where it knows none.
            name = "" if self.args["container"] == NOWHERE else self.args["container"]
            found["scene"] = {**(found.get("scene") or {}), "absent": name}
        return found

    def _closer(self, arguments: dict[str, t.Any]) -> dict[str, t.Any]:
        known = {key: self.args[key] for key in ("container", "docker_host")}
        return t.cast("dict[str, t.Any]", self._module(CLOSEUP, {**known, **arguments}, "the close look failed")["closeup"])

    def _module(self, name: str, arguments: dict[str, t.Any], otherwise: str) -> dict[str, t.Any]:
        try:
            found: dict[str, t.Any] = self._execute_module(module_name=name, module_args=arguments, task_vars=self.task_vars)
        except AnsibleConnectionFailure as error:
            raise Unreachable(f"the node cannot be reached: {error}") from error
        if found.get("failed"):
            raise Unreachable(str(found.get("msg") or otherwise))
        return found

    # The answer.

    def _result(self, verdict: dict[str, t.Any], judge_only: bool | None = None) -> dict[str, t.Any]:
        judge_only = self.args["timeout"] == 0 if judge_only is None else judge_only
        result: dict[str, t.Any] = {"changed": False, **{key: verdict[key] for key in KEYS}}
        if judge_only:
            return result
        if verdict["verdict"] in ("failed", "stalled"):
            evidence = "\n".join(verdict["evidence"])
            result.update(failed=True, msg=f"{verdict['summary']}\n{verdict['remedy']}" + (f"\n{evidence}" if evidence else ""))
        elif verdict.get("over"):
            summary = f"Not {self.args['until']} after {self.args['timeout']:.0f} s. {verdict['summary']}"
            remedy = "Run this again to go on watching, or give it a longer timeout: ranks that make progress are not stopped."
            result.update(failed=True, summary=summary, remedy=remedy, msg=f"{summary}\n{remedy}")
        return result


def _refuse(sentence: str) -> dict[str, t.Any]:
    return {"failed": True, "changed": False, "msg": sentence, **dict.fromkeys(KEYS)}
