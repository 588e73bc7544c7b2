# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The controller's half of support_bundle: each host reads its own part, the first of them writes the archive."""

from __future__ import annotations

import base64
import contextlib
import gzip
import json
import os
import typing as t

from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure, AnsibleError
from ansible.plugins.action import ActionBase

from ansible_collections.sparkstack.inference.plugins.module_utils._secrets import is_secret, of_variables
from ansible_collections.sparkstack.inference.plugins.plugin_utils import _bundle
from ansible_collections.sparkstack.inference.plugins.plugin_utils._board import Board, forks
from ansible_collections.sparkstack.inference.plugins.plugin_utils._command_line import ChoiceError, new_file

PART = "sparkstack.inference.support_bundle_part"
FACTS = {"fabric.json": "sparkstack.inference.fabric_facts", "memory.json": "sparkstack.inference.gpu_memory_facts"}
ARGUMENTS: dict[str, dict[str, t.Any]] = {
    "path": {"type": "path", "required": True},
    "verdict": {"type": "dict", "required": True},
    "report": {"type": "list", "elements": "str", "default": []},
    "container": {"type": "str"},
    "logs": {"type": "list", "elements": "dict"},
    "members": {"type": "list", "elements": "str"},
    "force": {"type": "bool", "default": False},
    "timeout": {"type": "float", "default": 300},
}
# The variables that say what was wanted; everything else is found on the nodes.
_OURS = ("tp_launch_", "nccl_env_", "image_sync_", "model_staging_", "node_prep_")
_WORDS = ("deployment", "container", "logs", "target", "relaunch", "strict", "fabric_address", "fabric_cidr")
# What the playbooks work out is long, and stands in the plan.
_DERIVED = (
    *("tp_launch_plan", "tp_launch_node", "tp_launch_parser", "tp_launch_inputs", "tp_launch_chosen", "tp_launch_judged"),
    *("tp_launch_verdict", "model_staging_manifest"),
)


class ActionModule(ActionBase):
    """A support bundle over all hosts of the task."""

    TRANSFERS_FILES = False
    _supports_check_mode = True
    _supports_async = False
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        result: dict[str, t.Any] = super().run(tmp, task_vars)
        self._vars = task_vars or {}
        _validation, args = self.validate_argument_spec(argument_spec=ARGUMENTS)
        host: str = self._vars["inventory_hostname"]
        members = [host] if args["logs"] is not None else list(args["members"] or self._vars["ansible_play_batch"])
        if host not in members:
            raise AnsibleActionFail(f"{host} is not among the members of the bundle: {', '.join(members)}.")
        if forks() < len(members):
            raise AnsibleActionFail(f"All {len(members)} nodes must be read at the same time: set forks to {len(members)} or more (it is {forks()}).")
        try:
            path = new_file(args["path"], os.getcwd(), args["force"])
        except ChoiceError as error:
            raise AnsibleActionFail(str(error)) from None
        result.update(changed=True, path=path)
        if self._task.check_mode:
            return result
        used, secrets = self._variables()
        part = _logs(args["logs"]) if args["logs"] is not None else self._part(host, args["container"] or "")
        board = Board.of_task(self._task._uuid, host, members)
        board.write("part", {**part, "secrets": [*part["secrets"], *secrets]})
        if host != members[0]:
            return {**result, "changed": False}
        files, known = self._gather(board, args["timeout"])
        files.update(_bundle.common(args["verdict"], args["report"], used))
        try:
            result["size_bytes"] = _bundle.write(path, files, known, args["force"])
        except FileExistsError:
            raise AnsibleActionFail(f"{path} is there already: name another file, or replace it with force.") from None
        except OSError as error:
            raise AnsibleActionFail(f"The support bundle cannot be written: {error}.") from None
        return {**result, "files": sorted(files)}

    def _part(self, host: str, container: str) -> dict[str, t.Any]:
        """What the node tells; of one that can't be reached, that it can't. Nothing of it is shown, in no degree of verbosity."""
        # With -vvv the connection shows what a module prints. It looks into a context of its own, a copy of the action's.
        contexts = [self._play_context, self._connection._play_context]
        shown = [context.no_log for context in contexts]
        for context in contexts:
            context.no_log = True
        try:
            found = self._execute_module(module_name=PART, module_args={"container": container or None}, task_vars=self._vars)
            if found.get("failed"):
                return _problem(host, f"The node's part could not be read: {found.get('msg')}")
            files = {_name(host, name): packed for name, packed in found["files"].items()}
            for name, module in FACTS.items():
                told = self._execute_module(module_name=module, module_args={}, task_vars=self._vars)
                facts = told.get("ansible_facts") or {"problem": told.get("msg")}
                files[_name(host, name)] = _pack(json.dumps(facts, indent=2, sort_keys=True).encode())
            return {"files": files, "secrets": found["secrets"]}
        except AnsibleConnectionFailure as error:
            return _problem(host, f"The node could not be reached: {error}")
        finally:
            for context, before in zip(contexts, shown, strict=True):
                context.no_log = before

    @staticmethod
    def _gather(board: Board, timeout: float) -> tuple[dict[str, bytes], list[str]]:
        """All nodes' files and secrets; they do not stay on the board."""
        try:
            parts = board.wait("part", board.members, timeout)
        except TimeoutError as error:
            parts = {member: _problem(member, str(error)) for member in board.members} | board.read("part")
        finally:
            for name in os.listdir(board.directory):
                # A host that is late gives its file its name in this very moment.
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(os.path.join(board.directory, name))
        files = {name: gzip.decompress(base64.b64decode(packed)) for part in parts.values() for name, packed in part["files"].items()}
        return files, [secret for part in parts.values() for secret in part["secrets"]]

    def _variables(self) -> tuple[dict[str, t.Any], list[str]]:
        """The variables that say what was wanted, and the values of all that look secret."""
        used: dict[str, t.Any] = {}
        secrets: list[str] = []
        for name, value in self._vars.items():
            wanted = (name.startswith(_OURS) or name in _WORDS) and name not in _DERIVED
            if not wanted and not (is_secret(name) and not name.startswith("_")):
                continue
            try:
                value = self._templar.template(value)
                plain = json.loads(json.dumps(value, default=str))
            except (AnsibleError, TypeError, ValueError):
                # A variable that hangs on one that nobody has set is none that was used.
                continue
            secrets += of_variables({name: plain})
            if wanted:
                used[name] = plain
        return used, secrets


def _logs(logs: t.Sequence[t.Mapping[str, t.Any]]) -> dict[str, t.Any]:
    """The part that log files on the controller make."""
    files = {}
    for entry in logs:
        if entry.get("path"):
            try:
                files[_name(entry["node"], "container.log")] = _pack(_bundle.part_of_log(entry["path"]))
            except OSError as error:
                raise AnsibleActionFail(f"The log of {entry['node']} cannot be read: {error}.") from None
    return {"files": files, "secrets": []}


def _name(node: str, name: str) -> str:
    return f"{_bundle.folder(str(node))}/{name}"


def _pack(data: bytes) -> str:
    return base64.b64encode(gzip.compress(data)).decode()


def _problem(node: str, sentence: str) -> dict[str, t.Any]:
    return {"files": {_name(node, "problems.txt"): _pack(f"{sentence}\n".encode())}, "secrets": []}
