# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
import typing as t

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from ansible_collections.sparkstack.inference.plugins.module_utils import _engines
from ansible_collections.sparkstack.inference.plugins.module_utils._engines._types import RankSpec
from ansible_collections.sparkstack.inference.plugins.module_utils._options import Parser
from ansible_collections.sparkstack.inference.plugins.module_utils._secrets import is_secret
from ansible_collections.sparkstack.inference.plugins.module_utils._words import document
from ansible_collections.sparkstack.inference.plugins.plugin_utils import _container

STARTED = ("engine", "image", "model", "rank", "ranks", "head_address")
ARGUMENTS: dict[str, dict[str, t.Any]] = {
    "state": {"type": "str", "choices": ["started", "stopped", "absent"], "default": "started"},
    "deployment": {"type": "str", "required": True},
    "engine": {"type": "str", "choices": sorted(_engines.ENGINES)},
    "image": {"type": "str"},
    "image_identity": {"type": "str"},
    "model": {"type": "str"},
    "model_mount": {"type": "str"},
    "served_name": {"type": "str"},
    "rank": {"type": "int"},
    "ranks": {"type": "int"},
    "tensor_parallel_size": {"type": "int"},
    "pipeline_parallel_size": {"type": "int", "default": 1},
    "expert_parallel": {"type": "bool", "default": False},
    "executor": {"type": "str"},
    "address": {"type": "str"},
    "addresses": {"type": "list", "elements": "str", "default": []},
    "head_address": {"type": "str"},
    "rendezvous_port": {"type": "int"},
    "port": {"type": "int"},
    "listen_address": {"type": "str", "default": "0.0.0.0"},
    "arguments": {"type": "dict", "default": {}},
    "planned": {"type": "list", "elements": "str"},
    "environment": {"type": "dict", "default": {}},
    "api_key": {"type": "str", "no_log": True},
    "gpus": {"type": "bool", "default": True},
    "infiniband": {"type": "bool", "default": False},
    "shm_size": {"type": "str", "default": "8g"},
    "memory": {"type": "str"},
    "cap_add": {"type": "list", "elements": "str", "default": []},
    "cache_dir": {"type": "path", "default": "/var/cache/sparkstack"},
    "launch_id": {"type": "str"},
    "verify_arguments": {"type": "bool", "default": True},
    "stop_timeout": {"type": "int", "default": 10},
}


def request_of(args: dict[str, t.Any]) -> _container.Request:
    """The options as a request for a container; :raises ValueError: for a rank that can't be."""
    rank, ranks = args["rank"], args["ranks"]
    if not 0 <= rank < ranks:
        raise ValueError(f"rank {rank} is not one of the {ranks} ranks: it goes from 0 to {ranks - 1}.")
    address = args["address"] or (args["head_address"] if rank == 0 else None)
    if not address:
        raise ValueError(f"rank {rank} needs its own address on the fabric: set address.")
    engine = _engines.get(args["engine"])
    executor = args["executor"] or engine.launch.executors[0]
    if executor not in engine.launch.executors:
        raise ValueError(f"{engine.title} has no executor '{executor}': take {' or '.join(engine.launch.executors)}.")
    if executor in engine.launch.joined_by and len(args["addresses"]) != ranks:
        raise ValueError(f"executor {executor} needs the addresses of all {ranks} ranks: set addresses.")
    return _container.Request(
        deployment=args["deployment"],
        engine=engine,
        image=args["image"],
        rank=RankSpec(
            model_path=args["model"],
            served_name=args["served_name"] or os.path.basename(args["model"].rstrip("/")),
            rank=rank,
            ranks=ranks,
            tensor_parallel_size=args["tensor_parallel_size"] or ranks // max(args["pipeline_parallel_size"], 1),
            pipeline_parallel_size=args["pipeline_parallel_size"],
            expert_parallel=args["expert_parallel"],
            executor=executor,
            addresses=tuple(args["addresses"]),
            address=address,
            head_address=args["head_address"],
            rendezvous_port=args["rendezvous_port"] or engine.launch.rendezvous_port,
            port=args["port"] or engine.launch.port,
            listen_address=args["listen_address"],
            arguments=args["arguments"],
            with_api_key=bool(args["api_key"]),
        ),
        model_mount=args["model_mount"] or args["model"],
        environment={key: str(value) for key, value in args["environment"].items()},
        image_identity=args["image_identity"],
        gpus=args["gpus"],
        infiniband=args["infiniband"],
        shm_size=args["shm_size"],
        memory=args["memory"],
        cap_add=tuple(args["cap_add"]),
        cache_dir=args["cache_dir"],
        api_key_fingerprint=_container.fingerprint(args["api_key"], args["deployment"]),
        planned=None if args["planned"] is None else tuple(args["planned"]),
    )


class ActionModule(ActionBase):
    """A rank's container: decided here, carried out by community.docker on the node."""

    TRANSFERS_FILES = False
    _supports_check_mode = True
    _supports_async = False

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        result: dict[str, t.Any] = super().run(tmp, task_vars)
        self._vars = task_vars or {}
        _validation, args = self.validate_argument_spec(argument_spec=ARGUMENTS, required_if=[("state", "started", STARTED)])
        result.update(changed=False, actions=[], container={})
        started = args["state"] == "started"
        # The specification takes an option that is null for one that is there.
        missing = [option for option in STARTED if started and args[option] is None]
        if missing:
            raise AnsibleActionFail(f"state is started but all of the following are missing: {', '.join(missing)}")
        present = self._module(
            "sparkstack.inference.inference_info",
            deployment=args["deployment"],
            image=args["image"],
            container=_container.name(args["deployment"], args["rank"]) if started else None,
        )
        if not present["docker"]["reachable"]:
            raise AnsibleActionFail(present["docker"]["error"])
        if started:
            self._start(result, args, present)
        else:
            self._end(result, args, present)
        return result

    def _module(self, module: str, /, **args: t.Any) -> dict[str, t.Any]:
        """Run a module on the node; its failure is this task's."""
        outcome: dict[str, t.Any] = self._execute_module(module_name=module, module_args=args, task_vars=self._vars)
        if outcome.get("failed"):
            raise AnsibleActionFail(f"{module}: {outcome.get('msg', 'failed')}", result={"stderr": outcome.get("module_stderr", "")})
        return outcome

    def _end(self, result: dict[str, t.Any], args: dict[str, t.Any], seen: dict[str, t.Any]) -> None:
        """Stop or remove the deployment's containers on this node."""
        state, present = args["state"], seen["containers"]
        left = seen["unused_secrets"] if state == "absent" else []
        touched = [container for container in present if state == "absent" or container["running"]]
        for container in touched:
            result["actions"].append(f"{'remove' if state == 'absent' else 'stop'} {container['name']}")
            if not self._task.check_mode:
                self._docker_container(name=container["name"], state=state, stop_timeout=args["stop_timeout"])
                self._forget_secrets(container["spec"].get("secrets") or "", state)
        for path in left:
            # Of a container that somebody else has removed: a secret does not stay behind.
            result["actions"].append(f"delete {path}")
            if not self._task.check_mode:
                self._forget_secrets(path, state)
        result["changed"] = bool(touched or left)
        result["diff"] = {
            "before": document({**{one["name"]: "running" if one["running"] else "ended" for one in present}, **dict.fromkeys(left, "secret variables")}),
            "after": document({container["name"]: "ended" for container in present} if state == "stopped" else {}),
        }

    def _forget_secrets(self, path: str, state: str) -> None:
        """Remove the file of secret variables together with its container."""
        # A label can be written by anybody: nothing outside the folder is removed.
        if state == "absent" and os.path.dirname(path) == _container.SECRETS:
            self._module("ansible.builtin.file", path=path, state="absent")

    def _keep_secrets(self, request: _container.Request, api_key: str | None) -> None:
        """Write the rank's secret variables to a file that only root reads, in one step, and without a word in any log."""
        found = _container.secrets(request, api_key)
        if not found:
            return
        self._make_tmp_path()
        temporary = self._connection._shell.join_path(self._connection._shell.tmpdir, "variables")
        self._transfer_data(temporary, _container.secrets_text(found))
        self._module("ansible.builtin.file", path=_container.SECRETS, state="directory", owner="root", group="root", mode="0700")
        target = _container.secrets_file(request)
        self._module("ansible.builtin.copy", src=temporary, dest=target, remote_src=True, owner="root", group="root", mode="0400")

    def _docker_container(self, **args: t.Any) -> dict[str, t.Any]:
        """Run docker_container unlogged: its option env is no secret to it, and each module writes its options to the node's journal."""
        logged = self._task.no_log
        self._task.no_log = True
        try:
            return self._module("community.docker.docker_container", **args)
        finally:
            self._task.no_log = logged

    def _start(self, result: dict[str, t.Any], args: dict[str, t.Any], present: dict[str, t.Any]) -> None:
        try:
            request = request_of(args)
            shown = _container.public(request)
        except ValueError as error:
            raise AnsibleActionFail(str(error)) from error
        name = _container.name(request.deployment, request.rank.rank)
        digest = _container.spec_hash(shown)
        result.update(
            command=shown["command"],
            environment=shown["env"],
            endpoint=f"http://{request.rank.head_address}:{request.rank.port}/v1",
            spec_hash=digest,
        )
        mine = next((container for container in present["containers"] if container["name"] == name), None)
        others = [container["name"] for container in present["containers"] if container["name"] != name]
        same = bool(mine and mine["running"] and mine["spec_hash"] == digest and args["launch_id"] in (None, "", mine["launch_id"]))
        before = {**mine["spec"], "running": mine["running"], "launch_id": mine["launch_id"]} if mine else {}
        launch_id = args["launch_id"] or (mine["launch_id"] if same and mine else f"{digest}-alone")
        result["diff"] = {"before": document(before), "after": document({**shown, "running": True, "launch_id": launch_id})}
        if same and not others:
            result["diff"]["after"] = result["diff"]["before"]
            if not self._task.check_mode:
                found = self._module("community.docker.docker_container_info", name=name)
                result["container"] = _without_secrets(found["container"], shown)
            return
        if present.get("foreign"):
            raise AnsibleActionFail(_container.taken(name, present["foreign"], ""))
        if present["image"] is None and not self._task.check_mode:
            raise AnsibleActionFail(f"The image {request.image} is not on this node: bring it there first (role image_sync).")
        if args["verify_arguments"] and present["image"] is not None:
            self._verify(request)
        result["changed"] = True
        result["actions"] = [f"remove {other}" for other in others]
        if not same:
            result["actions"].append(f"start {name}")
        if self._task.check_mode:
            return
        for other in others:
            self._docker_container(name=other, state="absent", stop_timeout=args["stop_timeout"])
        if not same:
            result["container"] = self._create(request, name, launch_id, args, shown)

    def _create(self, request: _container.Request, name: str, launch_id: str, args: dict[str, t.Any], shown: dict[str, t.Any]) -> dict[str, t.Any]:
        self._keep_secrets(request, args["api_key"])
        made = self._docker_container(
            name=name,
            state="started",
            recreate=True,
            pull="never",
            labels=_container.labels(request, launch_id),
            command_handling="correct",
            stop_timeout=args["stop_timeout"],
            **_container.options(request),
        )
        return _without_secrets(made["container"], shown)

    def _verify(self, request: _container.Request) -> None:
        """Refuse arguments that the image's parser would refuse."""
        answer = self._module("sparkstack.inference.engine_options_info", image=request.image, engine=request.engine.name, gpus=request.gpus)
        if answer["parser"] is None:
            raise AnsibleActionFail(f"The arguments can't be checked: {answer['problem']}")
        problems = Parser(request.engine, answer["parser"]).problems(request.rank.arguments)
        if problems:
            raise AnsibleActionFail("\n".join(problems))


def _without_secrets(container: dict[str, t.Any], shown: dict[str, t.Any]) -> dict[str, t.Any]:
    """Docker's inspection with the environment's values as they may be shown."""
    config = dict(container.get("Config") or {})
    env = shown["env"]
    config["Env"] = [
        f"{key}={env[key]}" if key in env else f"{key}=***" if is_secret(key) else entry
        for entry in config.get("Env") or []
        for key in [entry.partition("=")[0]]
    ]
    return {**container, "Config": config}
