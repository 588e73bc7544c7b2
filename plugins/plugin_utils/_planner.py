# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is private to the collection: it can change at any time.

"""The plan: one recipe and what is known of every node become one container a rank, and the smallest true action.

Pure: data in, data out. What was not measured is told as assumed.
"""

from __future__ import annotations

import typing as t
from dataclasses import replace

from ansible_collections.sparkstack.inference.plugins.module_utils._engines._types import RankSpec
from ansible_collections.sparkstack.inference.plugins.module_utils._options import Parser
from ansible_collections.sparkstack.inference.plugins.module_utils._secrets import is_secret
from ansible_collections.sparkstack.inference.plugins.module_utils._sockets import ANY, probing
from ansible_collections.sparkstack.inference.plugins.plugin_utils import (
    _actual,
    _collective,
    _container,
    _joining,
    _plan_environment,
    _plan_memory,
    _plan_setting,
    _shape,
)
from ansible_collections.sparkstack.inference.plugins.plugin_utils._plan import Node, Plan, Settings
from ansible_collections.sparkstack.inference.plugins.plugin_utils._recipe import Recipe


def make(recipe: Recipe, nodes: t.Sequence[Node], settings: Settings) -> Plan:
    """The whole plan. Its C(problems) are sentences; with one of them nothing may be done."""
    # All replicas start from the image that the first node of all has, and has given to the others.
    image = nodes[0].info.get("image") if settings.source is None else settings.image
    plan = Plan(recipe, list(nodes), [], image or {}, settings.source)
    _check_nodes(plan, settings)
    if plan.problems:
        return plan
    plan.planned = _plan_setting.planned(plan, settings)
    plan.requests = [_request(plan, settings, rank) for rank in range(len(plan.nodes))]
    _check_arguments(plan, settings)
    _joining.check(plan, settings.parser)
    _decide(plan, settings)
    if plan.planned is not None and plan.action in ("start", "restart"):
        _plan_anew(plan, settings)
    _plan_memory.check(plan, settings, *_plan_setting.terms(plan, settings))
    _check_ports(plan)
    if plan.action == "none":
        plan.unrecorded = any(not _actual.recorded(node.info, recipe.name, _launch_id(plan)) for node in plan.nodes)
    contents = {plan.image.get("identity"), *((node.info.get("image") or {}).get("identity") for node in plan.nodes)}
    plan.staged = len(contents) == 1 and None not in contents
    if plan.action in ("start", "restart"):
        plan.away = _actual.seconds_to_ready([node.info for node in plan.nodes], recipe.name)
    plan.launch_id = settings.new_launch_id if plan.action in ("start", "restart") else _launch_id(plan)
    plan.endpoint = f"http://{settings.endpoint_host or plan.nodes[0].name}:{recipe.port}/v1"
    plan.notes += _plan_environment.notes(plan)
    if settings.listen_address in ANY and not settings.api_key:
        plan.notes.append("the API is open to everybody who reaches the head: tp_launch_api_key or tp_launch_listen_address closes it")
    return plan


def _check_nodes(plan: Plan, settings: Settings) -> None:
    recipe = plan.recipe
    if not settings.cache_dir.startswith("/") or ":" in settings.cache_dir:
        plan.problems.append(f"tp_launch_cache_dir is '{settings.cache_dir}', which Docker can't mount: give an absolute path without ':'.")
    for rank, node in enumerate(plan.nodes):
        docker = node.info.get("docker") or {}
        if not docker.get("reachable"):
            plan.problems.append(
                f"{node.name}: {docker.get('error') or 'Docker was not asked.'} Start it there (sudo systemctl start docker) and run this again."
            )
        if not node.fabric.get("address"):
            plan.problems.append(f"{node.name} has no address on the fabric: give its interface one in fabric_cidr, or set fabric_address.")
        shown = sorted(key for key in node.environment if is_secret(key))
        if shown:
            # What a role has told of a node stands in results that are shown and stored.
            plan.problems.append(f"{node.name}: the secret '{shown[0]}' can't stand in nccl_env_extra: set it in tp_launch_environment, out of a vault.")
        if node.info.get("foreign"):
            plan.problems.append(_container.taken(_container.name(recipe.name, rank), node.info["foreign"], f" on {node.name}"))
        image = node.info.get("image")
        if image and image["architecture"] != node.info.get("architecture"):
            plan.problems.append(
                f"{node.name}: the image {recipe.image} is for {image['architecture']}, the node is {node.info['architecture']}: "
                "build or pull it for the node's architecture."
            )
    if plan.nodes[0].info.get("listen_possible") is False:
        plan.problems.append(
            f"{plan.nodes[0].name} has no address {settings.listen_address} to serve the API on: set tp_launch_listen_address to one of its "
            "own, or to 0.0.0.0 for all of them."
        )
    counts = [len(node.memory.get("gpus") or []) for node in plan.nodes]
    problem = _shape.problem(replace(_shape.of_recipe(recipe), replicas=1), len(plan.nodes), min(counts) or None, plan.nodes[0].model.get("config"))
    if problem:
        plan.problems.append(problem)
    elif not min(counts) and settings.gpus != "none":
        plan.assumed.append("one GPU a node: none was seen" if not max(counts) else "one GPU a node: not all nodes show theirs")
    if not plan.image:
        plan.assumed.append(f"the image {recipe.image} is not on {plan.source or plan.nodes[0].name} yet: its content and options are unknown")


def _request(plan: Plan, settings: Settings, rank: int) -> _container.Request:
    recipe, node, head = plan.recipe, plan.nodes[rank], plan.nodes[0]
    return _container.Request(
        deployment=recipe.name,
        engine=recipe.engine,
        image=recipe.image,
        rank=RankSpec(
            model_path=node.model.get("path") or recipe.model_path,
            served_name=recipe.served_name,
            rank=rank,
            ranks=len(plan.nodes),
            tensor_parallel_size=recipe.tensor_parallel_size,
            address=node.fabric["address"],
            head_address=head.fabric["address"],
            rendezvous_port=recipe.rendezvous_port,
            port=recipe.port,
            listen_address=settings.listen_address,
            arguments={**recipe.arguments, **(plan.planned or {})},
            with_api_key=bool(settings.api_key),
            pipeline_parallel_size=recipe.pipeline_parallel_size,
            expert_parallel=recipe.expert_parallel,
            executor=recipe.executor,
            addresses=tuple(each.fabric["address"] for each in plan.nodes),
        ),
        model_mount=node.model.get("mount") or recipe.model_path,
        environment={**node.environment, **recipe.environment},
        image_identity=plan.image.get("identity"),
        gpus=settings.gpus == "all" or (settings.gpus == "auto" and (bool(node.memory.get("gpus")) or _hidden(plan, node))),
        infiniband=bool(node.info.get("infiniband")),
        shm_size=recipe.shm_size,
        memory=recipe.memory,
        cap_add=recipe.cap_add,
        cache_dir=settings.cache_dir,
        api_key_fingerprint=_container.fingerprint(settings.api_key, recipe.name),
        planned=None if plan.planned is None else tuple(plan.planned),
    )


def _hidden(plan: Plan, node: Node) -> bool:
    """A node whose rank runs with its GPUs has them, though its driver does not answer now: it may do so again in a minute."""
    return any(container["running"] and (container.get("spec") or {}).get("device_requests") for container in _actual.owned(node.info, plan.recipe.name))


def _check_arguments(plan: Plan, settings: Settings) -> None:
    try:
        for request in plan.requests:
            _container.options(request)
    except ValueError as error:
        plan.problems.append(str(error))
        return
    if settings.parser:
        parser = Parser(plan.recipe.engine, settings.parser)
        plan.problems += parser.problems(plan.recipe.arguments)
        plan.arguments_checked = f"{parser.engine.title} {parser.version}"
    elif settings.parser_problem and settings.verify_arguments:
        plan.problems.append(
            f"The arguments can't be checked: {settings.parser_problem.rstrip('.')}. Set tp_launch_verify_arguments to false to start unchecked."
        )
    else:
        plan.assumed.append(f"the arguments are valid: {settings.parser_problem or 'no image could be asked'}")


def _launch_id(plan: Plan) -> str:
    return next((container["launch_id"] or "" for container in _actual.owned(plan.nodes[0].info, plan.recipe.name)), "")


def _decide(plan: Plan, settings: Settings) -> None:
    """A deployment is healthy only if every rank runs, of one launch and as wanted, and the head answers a request."""
    head = plan.nodes[0]
    if not any(_actual.owned(node.info, plan.recipe.name) for node in plan.nodes):
        plan.action, plan.reasons = "start", ["it runs on no node"]
        return
    plan.reasons, plan.differences = _compared(plan)
    if settings.restart:
        plan.reasons.append("a restart was asked for")
    if not plan.reasons and not head.proof.get("answered"):
        if head.verdict == "starting":
            plan.action, plan.reasons = "watch", ["all ranks run, and are still starting"]
            return
        plan.reasons.append(f"all ranks run, but {head.proof.get('problem') or 'the head was not asked'}")
    plan.action = "restart" if plan.reasons else "none"
    if not plan.reasons:
        plan.reasons = ["all ranks run as wanted and the head answered a request"]


def _compared(plan: Plan) -> tuple[list[str], list[str]]:
    name = plan.recipe.name
    wanted = [(node.name, node.info, _container.name(name, rank), _container.public(plan.requests[rank])) for rank, node in enumerate(plan.nodes)]
    return _actual.compare(wanted, name, bool(plan.nodes[0].proof.get("answered")))


def _plan_anew(plan: Plan, settings: Settings) -> None:
    """Since the ranks start in any case, what the last start had from a plan is looked at again. It is no reason for the start, but a change."""
    found = _plan_setting.compute(plan, settings)
    if found != plan.planned:
        plan.planned = found
        plan.requests = [_request(plan, settings, rank) for rank in range(len(plan.nodes))]
        if plan.action == "restart":
            plan.differences = _compared(plan)[1]


def _check_ports(plan: Plan) -> None:
    """A port that somebody else holds fails a launch only after its load; the node can be asked before."""
    if plan.action not in ("start", "restart"):
        return
    for rank, node in enumerate(plan.nodes):
        own = {container["name"] for container in _actual.owned(node.info, plan.recipe.name)}
        listeners = node.info.get("listeners") or []
        for listener in listeners:
            if (listener["container"] in own and listener["container"]) or _collective.leftover(listener["container"], plan.recipe.name):
                continue
            if probing(listener):
                # Of a run that works here now, whom the lock tells of, or of one that was cut off: then it ends by itself, and the preflight waits for that.
                continue
            what = _joining.taken(plan.recipe, rank, listener["port"])
            if not what:
                continue
            who = f"container {listener['container']}" if listener["container"] else f"process {listener['pid']} ({listener['process']})"
            plan.problems.append(
                f"Port {listener['port']} on {node.name} is taken by {who if listener['pid'] else 'another program'}: stop it, or set another {what}."
            )
