# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
import secrets
import time
import typing as t

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.vars import load_extra_vars

from ansible_collections.sparkstack.inference.plugins.module_utils._secrets import is_secret
from ansible_collections.sparkstack.inference.plugins.plugin_utils import (
    _command_line,
    _container,
    _joining,
    _placement,
    _plan_environment,
    _plan_memory,
    _planner,
    _recipe,
    _screen,
    _shape,
)
from ansible_collections.sparkstack.inference.plugins.plugin_utils._board import forks

_COLLECTION = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
RECIPES = os.path.join(_COLLECTION, "playbooks", "recipes")
ROLES = os.path.join(_COLLECTION, "roles")

ARGUMENTS: dict[str, dict[str, t.Any]] = {
    "recipe": {"type": "raw", "required": True},
    "overrides": {
        "type": "dict",
        "options": {
            "engine": {"type": "str"},
            "image": {"type": "str"},
            "model_path": {"type": "str"},
            "served_name": {"type": "str"},
            "port": {"type": "int"},
            "rendezvous_port": {"type": "int"},
            "ready_timeout": {"type": "int"},
            "arguments": {"type": "dict"},
            "environment": {"type": "dict"},
        },
    },
    "head": {"type": "list", "elements": "str", "required": True},
    "workers": {"type": "list", "elements": "str", "required": True},
    "use": {"type": "list", "elements": "str", "default": []},
    "seen": {
        "type": "list",
        "elements": "dict",
        "options": {
            "name": {"type": "str", "required": True},
            "memory": {"type": "dict"},
            "containers": {"type": "list", "elements": "dict"},
        },
    },
    "placed": {"type": "list", "elements": "str"},
    "replica": {"type": "int"},
    "source": {"type": "str"},
    "source_image": {"type": "dict"},
    "nodes": {
        "type": "list",
        "elements": "dict",
        "options": {
            "name": {"type": "str", "required": True},
            "fabric": {"type": "dict"},
            "environment": {"type": "dict"},
            "memory": {"type": "dict"},
            "info": {"type": "dict"},
            "model": {"type": "dict"},
            "baked": {"type": "dict"},
            "proof": {"type": "dict"},
            "verdict": {"type": "str"},
        },
    },
    "parser": {"type": "dict"},
    "parser_problem": {"type": "str"},
    "verify_arguments": {"type": "bool", "default": True},
    "listen_address": {"type": "str", "default": "0.0.0.0"},
    "endpoint_host": {"type": "str"},
    "cache_dir": {"type": "path", "default": "/var/cache/sparkstack"},
    "gpus": {"type": "str", "choices": ["auto", "all", "none"], "default": "auto"},
    "api_key": {"type": "str", "no_log": True},
    "restart": {"type": "bool", "default": False},
    "evict": {"type": "list", "elements": "str", "default": []},
    "memory_setting": {"type": "str", "choices": ["auto", "engine"], "default": "auto"},
    "memory_check": {"type": "str", "choices": ["refuse", "warn"], "default": "refuse"},
    "restore": {"type": "bool", "default": False},
    "planned": {"type": "dict"},
    "show": {"type": "bool", "default": True},
}


def launch_options(request: _container.Request, launch_id: str, secret: t.Collection[str]) -> dict[str, t.Any]:
    """A request as the options of M(sparkstack.inference.inference_launch).

    A plan is a result, which C(-v) shows and callbacks store: without the API key, and without the variables of these names.
    """
    rank = request.rank
    return {
        "deployment": request.deployment,
        "engine": request.engine.name,
        "image": request.image,
        "image_identity": request.image_identity,
        "model": rank.model_path,
        "model_mount": request.model_mount,
        "served_name": rank.served_name,
        "rank": rank.rank,
        "ranks": rank.ranks,
        "tensor_parallel_size": rank.tensor_parallel_size,
        "pipeline_parallel_size": rank.pipeline_parallel_size,
        "expert_parallel": rank.expert_parallel,
        "executor": rank.executor,
        "address": rank.address,
        "addresses": list(rank.addresses),
        "head_address": rank.head_address,
        "rendezvous_port": rank.rendezvous_port,
        "port": rank.port,
        "listen_address": rank.listen_address,
        "arguments": dict(rank.arguments),
        "planned": None if request.planned is None else list(request.planned),
        "environment": {key: value for key, value in request.environment.items() if key not in secret},
        "gpus": request.gpus,
        "infiniband": request.infiniband,
        "shm_size": request.shm_size,
        "memory": request.memory,
        "cap_add": list(request.cap_add),
        "cache_dir": request.cache_dir,
        "launch_id": launch_id,
    }


class ActionModule(ActionBase):
    """The plan, made on the controller out of what the modules told of the nodes."""

    TRANSFERS_FILES = False
    _supports_check_mode = True
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        result: dict[str, t.Any] = super().run(tmp, task_vars)
        task_vars = task_vars or {}
        _validation, args = self.validate_argument_spec(argument_spec=ARGUMENTS)
        unread = _command_line.unread(load_extra_vars(self._loader), ROLES)
        if unread:
            raise AnsibleActionFail(unread)
        args["overrides"] = args["overrides"] or {}
        if isinstance((self._task.args.get("overrides") or {}).get("environment"), str):
            # -e 'tp_launch_environment={"A": "b"}' gives a text, of which the start could not take the secrets.
            raise AnsibleActionFail(
                'tp_launch_environment must be a mapping: put the whole into JSON, as in -e \'{"tp_launch_environment": {"NAME": "value"}}\'.'
            )
        if args["restore"]:
            # A recipe out of a launch's record says all but the secrets, which are kept nowhere.
            kept = {key: value for key, value in (args["overrides"].get("environment") or {}).items() if is_secret(key)}
            args["overrides"] = {"environment": kept}
        try:
            recipe = self._read(args, task_vars)
            hosts = _placement.ranks(args["head"], args["workers"], task_vars.get("ansible_play_hosts_all", []), args["use"] or recipe.nodes)
            plan, recipe = self._placed(recipe, hosts, args)
        except (ValueError, _recipe.RecipeError) as error:
            raise AnsibleActionFail(str(error)) from error
        if args["nodes"] is not None:
            plan.update(self._whole(recipe, args))
        result.update(changed=False, plan=plan)
        return result

    def _read(self, args: dict[str, t.Any], task_vars: dict[str, t.Any]) -> _recipe.Recipe:
        if not isinstance(args["recipe"], str):
            return _recipe.parse(args["recipe"], args["overrides"])
        beside = [os.getcwd(), task_vars.get("inventory_dir"), task_vars.get("playbook_dir")]
        folders = [folder for folder in beside if folder]
        folders += [os.path.join(folder, "recipes") for folder in folders]
        path = _recipe.find(args["recipe"], [*folders, RECIPES])
        return _recipe.parse(_recipe.load(path), args["overrides"], f"The recipe {os.path.basename(path)}")

    def _placed(self, recipe: _recipe.Recipe, hosts: list[str], args: dict[str, t.Any]) -> tuple[dict[str, t.Any], _recipe.Recipe]:
        """What needs no node, of all replicas or of the one that is asked for; and the recipe as that one is launched by.

        :raises ValueError: with one sentence for a shape that can't be.
        """
        seen = None if args["seen"] is None else self._seen(recipe, args["seen"])
        groups = _placement.groups(recipe, hosts, seen, args["placed"], args["replica"])
        # Which nodes it is to be is known only when they have been looked at.
        first = groups[0] if groups else _shape.groups(recipe, hosts)[0]
        one = _recipe.of_replica(recipe, first.replica)
        told = self._static(one, list(first.hosts if groups else hosts))
        told.update(
            name=recipe.name,
            replica=first.replica,
            replicas=[{"deployment": each.deployment, "replica": each.replica, "hosts": list(each.hosts)} for each in groups or []],
            members=[host for each in groups for host in each.hosts] if groups else hosts,
            candidates=hosts,
            placing=groups is None,
        )
        return told, one

    @staticmethod
    def _seen(recipe: _recipe.Recipe, seen: list[dict[str, t.Any]]) -> dict[str, dict[str, t.Any]]:
        return {
            one["name"]: {
                "available_bytes": (one["memory"] or {}).get("available_bytes"),
                "ranks": _placement.owned(recipe.name, one["containers"] or []),
            }
            for one in seen
        }

    @staticmethod
    def _static(recipe: _recipe.Recipe, hosts: list[str]) -> dict[str, t.Any]:
        return {
            "deployment": recipe.name,
            "engine": recipe.engine.name,
            "image": recipe.image,
            "model_path": recipe.model_path,
            "served_name": recipe.served_name,
            "port": recipe.port,
            "rendezvous_port": recipe.rendezvous_port,
            "ports": [_joining.listening(recipe, rank) for rank in range(len(hosts))],
            "head_first": _joining.head_first(recipe),
            "ready_timeout": recipe.ready_timeout,
            "router": recipe.router,
            "proof": {"prompt": recipe.prompt, "max_tokens": recipe.max_tokens, "timeout": recipe.proof_timeout},
            "hosts": hosts,
            "recipe": _recipe.resolved(recipe),
        }

    def _whole(self, recipe: _recipe.Recipe, args: dict[str, t.Any]) -> dict[str, t.Any]:
        # Of all replicas: they are watched in the same task.
        count = len(args["nodes"]) * recipe.replicas
        if forks() < count:
            raise AnsibleActionFail(f"All {count} ranks must be watched at the same time: set forks to {count} or more (it is {forks()}).")
        nodes = [_planner.Node(**{key: value for key, value in node.items() if value}) for node in args["nodes"]]
        settings = _planner.Settings(
            listen_address=args["listen_address"],
            endpoint_host=args["endpoint_host"],
            cache_dir=args["cache_dir"],
            gpus=args["gpus"],
            api_key=args["api_key"],
            new_launch_id=time.strftime("%Y%m%dT%H%M%SZ-", time.gmtime()) + secrets.token_hex(3),
            restart=args["restart"],
            evict=args["evict"],
            parser=args["parser"],
            parser_problem=args["parser_problem"],
            verify_arguments=args["verify_arguments"],
            memory_setting=args["memory_setting"],
            memory_check=args["memory_check"],
            source=args["source"],
            image=args["source_image"],
            restore=args["restore"],
            planned=args["planned"],
        )
        plan = _planner.make(recipe, nodes, settings)
        if plan.problems:
            raise AnsibleActionFail("\n".join(plan.problems))
        secret = sorted(key for key in args["overrides"].get("environment") or {} if is_secret(key))
        lines = _screen.screen(plan)
        if args["show"]:
            self._display.display("\n" + "\n".join(lines) + "\n")
        return {
            "action": plan.action,
            "reasons": plan.reasons,
            "differences": plan.differences,
            "assumed": plan.assumed,
            "away": plan.away,
            "staged": plan.staged,
            "unrecorded": plan.unrecorded,
            # Anything at all is to be done on the nodes.
            "idle": plan.action == "none" and plan.staged and not plan.unrecorded,
            "image_content": plan.image.get("identity"),
            "model_digest": plan.nodes[0].model.get("digest"),
            "endpoint": plan.endpoint,
            "launch_id": plan.launch_id,
            "memory": plan.memory,
            "planned": plan.planned,
            "ranks": [
                {
                    "node": node.name,
                    "evict": evict,
                    "baked": _plan_environment.findings(plan, rank),
                    "wanted_free": _plan_memory.wanted_free(plan, rank),
                    "spec_hash": _container.spec_hash(_container.public(request)),
                    "launch": launch_options(request, plan.launch_id, secret),
                }
                for rank, (node, request, evict) in enumerate(zip(plan.nodes, plan.requests, plan.evict, strict=True))
            ],
            "secret": secret,
            "screen": lines,
        }
