# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The plan of ranks that Ray brings together."""

from __future__ import annotations

import typing as t

import pytest
from test_planner import GIB, PARSER, RECIPE, node, running

from ansible_collections.sparkstack.inference.plugins.plugin_utils import _container, _joining, _plan_memory, _planner, _recipe, _screen

WITH_RAY = {**PARSER, "packages": ["ray"]}
SETTINGS = _planner.Settings(new_launch_id="L2", parser=WITH_RAY, endpoint_host="10.1.230.11", api_key="k")
PORTS = list(range(29501, 29508))


def recipe(overrides: t.Mapping[str, t.Any] | None = None, **changes: t.Any) -> _recipe.Recipe:
    return _recipe.parse({**RECIPE, "executor": "ray", **changes}, overrides or {})


def make(nodes: list[_planner.Node] | None = None, settings: _planner.Settings = SETTINGS, **changes: t.Any) -> _planner.Plan:
    return _planner.make(recipe(**changes), nodes or [node(1), node(2)], settings)


def listener(port: int, container: str | None = None) -> dict[str, t.Any]:
    return {"port": port, "address": "0.0.0.0", "pid": 7, "process": "nc", "container": container, "command": "nc"}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"engine": "sglang"}, "SGLang has no executor 'ray': take mp, or leave it out."),
        ({"executor": "dask"}, "vLLM has no executor 'dask': take mp or ray, or leave it out."),
        ({"rendezvous_port": 65530}, "Ray takes the ports 65530 to 65536, and 65535 is the last: give a lower rendezvous_port."),
        ({"port": 29504}, "port 29504 is one of those that Ray takes, 29501 to 29507: give another port or rendezvous_port."),
        ({"container": {"shm_size": "512m"}}, "shm_size is 512m, but Ray needs 768m of shared memory: raise it."),
        ({"container": {"shm_size": "536870912"}}, "shm_size is 536870912, but Ray needs 768m of shared memory: raise it."),
    ],
)
def test_what_can_not_be_is_refused_before_any_node_is_reached(changes: dict[str, t.Any], sentence: str) -> None:
    with pytest.raises(_recipe.RecipeError) as caught:
        recipe(**changes)
    assert caught.value.problems == [f"The recipe: {sentence}"]


def test_without_ray_there_are_no_such_limits() -> None:
    own = recipe(executor="mp", rendezvous_port=65530, container={"shm_size": "64m"})
    assert _joining.executor(own) is None and _joining.listening(own, 0) == [8000, 65530] and _joining.listening(own, 1) == []
    assert not _joining.head_first(own) and _joining.title(own) == "" and _joining.memory(own, 0) == {}


def test_the_ports_of_every_rank_are_known_before() -> None:
    assert _joining.listening(recipe(), 0) == [8000, *PORTS] and _joining.listening(recipe(), 1) == PORTS[1:]


def test_a_rank_knows_all_addresses_and_the_head_is_first() -> None:
    plan = make()
    assert not plan.problems
    assert [request.rank.addresses for request in plan.requests] == [("192.168.200.11", "192.168.200.12")] * 2
    lines = _screen.screen(plan)
    assert "  action     start all ranks, head first" in lines
    assert lines[0] == "Plan for tiny: org/tiny by vLLM, tensor parallel size 2, joined by Ray over 2 nodes"
    assert any("Ray on the ports 29501 to 29507 of each node: an object store of 256 MiB a node, its memory monitor" in line for line in lines)


@pytest.mark.parametrize("port", PORTS[1:])
def test_a_port_that_somebody_has_on_a_worker_is_refused(port: int) -> None:
    plan = make([node(1), node(2, info__listeners=[listener(port)])])
    assert plan.problems == [f"Port {port} on spark2 is taken by process 7 (nc): stop it, or set another rendezvous_port."]


def test_what_a_worker_has_no_use_for_may_be_taken() -> None:
    assert not make([node(1), node(2, info__listeners=[listener(29501), listener(8000)])]).problems


def test_an_image_without_ray_is_refused_and_one_that_is_not_there_is_assumed_to_have_it() -> None:
    plan = make(settings=_planner.Settings(new_launch_id="L2", parser={**PARSER, "packages": []}))
    assert plan.problems == ["The image vllm:1 has no Ray (Python's package ray): take one that has it, or leave executor out."]
    assert "the image has Ray: it could not be asked" in make(settings=_planner.Settings(new_launch_id="L2")).assumed


def test_who_may_command_ray_is_told_unless_it_asks_for_a_token() -> None:
    told = "whoever reaches those ports can run programs in the containers: a secret of your own as RAY_AUTH_TOKEN in tp_launch_environment prevents that"
    assert told in make().notes
    plan = make(overrides={"environment": {"RAY_AUTH_TOKEN": "x" * 32}})
    assert told not in plan.notes
    shown = [_container.options(request) for request in plan.requests]
    assert "x" * 32 not in str(shown) and all("RAY_AUTH_TOKEN" in _container.secrets(request) for request in plan.requests)


def test_what_ray_takes_of_the_memory_is_in_the_plan() -> None:
    over, own = (plan.memory["nodes"] for plan in (make(), make(executor="mp")))
    rays = [need["bytes"] for need in over[1]["needs"] if need["what"] == "executor"]
    assert rays == [576 << 20] and not [need for need in own[1]["needs"] if need["what"] == "executor"]
    # A part of what is left to the system shrinks with nothing: the whole need grows by as much.
    assert over[1]["total_bytes"] - own[1]["total_bytes"] == rays[0] < GIB
    assert any(line.startswith("executor") for line in _plan_memory.lines(make()))


def test_another_executor_is_another_content() -> None:
    over, own = (_container.public(make(executor=name).requests[1]) for name in ("ray", "mp"))
    assert _container.spec_hash(over) != _container.spec_hash(own)
    # The API's port and Ray's own stand in one command, and a change of either is seen.
    moved = _container.public(make(rendezvous_port=29600).requests[0])
    assert _container.spec_hash(moved) != _container.spec_hash(_container.public(make().requests[0]))


def test_what_runs_over_ray_as_wanted_is_left_alone_and_a_lost_worker_restarts_all() -> None:
    plan = make()
    nodes = [node(1, info__containers=[running(plan, 0)], proof={"answered": True}), node(2, info__containers=[running(plan, 1)])]
    again = make(nodes)
    assert (again.action, again.differences) == ("none", [])
    nodes[1] = node(2, info__containers=[running(plan, 1, running=False, exit_code=137)])
    lost = make(nodes)
    assert lost.action == "restart" and lost.reasons == ["rank 1 on spark2 has ended (exit code 137)"]
    assert "  action     stop all ranks, then start all ranks, head first" in _screen.screen(lost)


def test_going_over_to_ray_is_told_option_by_option() -> None:
    plan = make(executor="mp")
    nodes = [node(1, info__containers=[running(plan, 0)], proof={"answered": True}), node(2, info__containers=[running(plan, 1)])]
    told = make(nodes)
    assert told.action == "restart"
    assert any("--distributed-executor-backend: mp -> ray" in line for line in told.differences), told.differences
    assert any("--nnodes: 2 -> none" in line for line in told.differences)
