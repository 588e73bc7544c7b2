# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Shapes: how many nodes they take, who is which rank, what a model refuses, and which nodes are chosen."""

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.sparkstack.inference.plugins.plugin_utils import _placement, _recipe, _shape
from ansible_collections.sparkstack.inference.plugins.plugin_utils._shape import Shape

GIB = 1 << 30
# Of Qwen3.5-122B-A10B's own configuration what a shape depends on.
MODEL = {
    "text_config": {
        "num_attention_heads": 32,
        "num_key_value_heads": 2,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 64,
        "num_hidden_layers": 48,
        "num_experts": 256,
        "moe_intermediate_size": 1024,
    }
}
DENSE = {"num_attention_heads": 12, "num_key_value_heads": 4, "num_hidden_layers": 6, "intermediate_size": 1536}


def recipe(**changes: t.Any) -> _recipe.Recipe:
    data = {"name": "big", "model": {"path": "/m"}, "engine": "vllm", "tensor_parallel_size": 2, "engines": {"vllm": {"image": "v:1"}}, **changes}
    return _recipe.parse(data, {})


@pytest.mark.parametrize(
    "shape, count, each",
    [
        (Shape(2), 2, 2),
        (Shape(4), 2, 2),  # two GPUs each
        (Shape(2), 4, 2),  # two of the four
        (Shape(1), 2, 1),
        (Shape(3), 2, None),
        (Shape(4), 3, None),
        (Shape(2, 2), 4, 4),
        (Shape(2, 2), 2, 2),
        (Shape(2, replicas=2), 4, 2),
        (Shape(2, replicas=2), 5, 2),
        (Shape(2, replicas=3), 4, None),
        (Shape(1, replicas=3), 2, None),
        (Shape(4, replicas=2), 5, None),
        (Shape(8, 4), 32, 32),
    ],
)
def test_how_many_nodes_a_replica_takes(shape: Shape, count: int, each: int | None) -> None:
    assert _shape.nodes_each(shape, count) == each
    assert (_shape.problem(shape, count) is None) == (each is not None)


@pytest.mark.parametrize(
    "size, nodes, gpus, right", [(2, 2, 1, True), (2, 2, None, True), (4, 2, 2, True), (8, 2, 4, True), (4, 2, 1, False), (3, 2, 2, False)]
)
def test_gpus_are_counted_where_they_were_seen(size: int, nodes: int, gpus: int | None, right: bool) -> None:
    problem = _shape.problem(Shape(size), nodes, gpus)
    assert (problem is None) == right
    assert right or f"tensor_parallel_size is {size}" in str(problem)


@pytest.mark.parametrize(
    "shape, config, sentence",
    [
        (
            Shape(3, replicas=1),
            MODEL,
            "tensor_parallel_size is 3, but there are 2 nodes with 1 GPU each: possible for this model are "
            "tensor_parallel_size 2, tensor_parallel_size 1 with pipeline_parallel_size 2 and tensor_parallel_size 1 and replicas 2, "
            "or change the inventory's workers.",
        ),
        (Shape(5), DENSE, "tensor_parallel_size 5 does not divide the model's 12 attention heads"),
        (Shape(6), DENSE, "tensor_parallel_size 6 and the model's 4 key-value heads don't divide one another"),
        (Shape(64), MODEL, "tensor_parallel_size 64 does not divide the model's 32 attention heads"),
        (Shape(32), MODEL, "tensor_parallel_size 32 does not divide the model's 16 linear attention's key heads"),
        (Shape(1, 7), DENSE, "pipeline_parallel_size 7 is more than the model's 6 layers"),
        (Shape(2, expert=True), DENSE, "expert_parallel is set, but the model has no experts"),
        (Shape(4, expert=True), {"num_local_experts": 2}, "expert_parallel spreads the model's 2 experts over 4 GPUs, which is more"),
        (Shape(4, expert=True, even_experts=True), {"num_experts": 6}, "expert_parallel with tensor_parallel_size 4 does not divide the model's 6 experts"),
        (Shape(4, expert=True), {"num_experts": 6}, ""),
        (Shape(4), {"num_experts": 8, "moe_intermediate_size": 90}, "tensor_parallel_size 4 does not divide the width of the model's experts, 90"),
        (Shape(4, expert=True), {"num_experts": 8, "moe_intermediate_size": 90}, ""),
        (Shape(16), {}, ""),
        (Shape(16, 3), MODEL, ""),
    ],
)
def test_what_can_not_be_is_told_with_what_can(shape: Shape, config: dict[str, t.Any], sentence: str) -> None:
    nodes = 2 if shape.world == 3 else shape.world
    problem = _shape.problem(shape, nodes, 1, config)
    assert (problem or "").startswith(sentence) and bool(problem) == bool(sentence)
    for told in _shape.possible(shape, nodes, 1, config) if problem else []:
        assert _shape.problem(told, nodes, 1, config) is None


def test_where_no_shape_takes_all_nodes_those_are_told_that_take_most() -> None:
    found = _shape.possible(Shape(5), 5, 1, {**DENSE, "num_hidden_layers": 1, "intermediate_size": 1024})
    # Five replicas of one node each are one of them always.
    assert [each.told() for each in found] == ["tensor_parallel_size 1 and replicas 5"]


def test_replicas_are_launches_of_their_own_in_the_inventorys_order() -> None:
    groups = _shape.groups(recipe(replicas=2), ["a", "b", "c", "d"])
    assert groups == [_shape.Group("big-r0", ("a", "b"), 0), _shape.Group("big-r1", ("c", "d"), 1)]
    assert _shape.groups(recipe(), ["a", "b"]) == [_shape.Group("big", ("a", "b"))]


@pytest.mark.parametrize("shape, nodes, stages", [(Shape(2, 2), 4, [[0], [0], [1], [1]]), (Shape(2, 2), 2, [[0], [1]]), (Shape(1, 4), 2, [[0, 1], [2, 3]])])
def test_ranks_are_numbered_stage_by_stage(shape: Shape, nodes: int, stages: list[list[int]]) -> None:
    assert [list(_shape.stage(shape, nodes, rank)) for rank in range(nodes)] == stages


def test_thirty_two_nodes() -> None:
    hosts = [f"spark{number}" for number in range(1, 33)]
    made = recipe(tensor_parallel_size=4, pipeline_parallel_size=2, replicas=4)
    groups = _placement.groups(made, hosts)
    assert groups is not None and [group.deployment for group in groups] == ["big-r0", "big-r1", "big-r2", "big-r3"]
    assert [host for group in groups for host in group.hosts] == hosts and {len(group.hosts) for group in groups} == {8}
    assert [list(_shape.stage(_shape.of_recipe(made), 8, rank)) for rank in (0, 3, 4, 7)] == [[0], [0], [1], [1]]
    assert _shape.problem(_shape.of_recipe(made), 32, 1, MODEL) is None
    assert [each.told() for each in _shape.possible(Shape(), 32, 1, MODEL)][:3] == [
        "tensor_parallel_size 16 with pipeline_parallel_size 2",
        "tensor_parallel_size 8 with pipeline_parallel_size 4",
        "tensor_parallel_size 4 with pipeline_parallel_size 8",
    ]


# Which nodes.


@pytest.mark.parametrize(
    "head, workers, in_play, named, sentence",
    [
        (["a", "b"], ["c"], "abc", (), "The inventory's group 'head' has 2 hosts (a, b): put exactly one there, it becomes rank 0."),
        ([], ["c"], "c", (), "The inventory's group 'head' has 0 hosts: put exactly one there, it becomes rank 0."),
        (["a"], [], "a", (), "The inventory's group 'workers' has no host: put every node but the head there."),
        (["a"], ["a"], "a", (), "The inventory's group 'workers' has no host: put every node but the head there."),
        (
            ["a"],
            ["b", "c"],
            "a",
            (),
            "b and c are left out of this run, but a launch needs all its ranks (a, b, c): run it without --limit, or with a target that holds them all.",
        ),
        (
            ["a"],
            ["b"],
            "abc",
            (),
            "c takes part in this run, but is neither in the inventory's group 'head' nor in 'workers': "
            "put every node into one of them, or leave it out of 'sparks'.",
        ),
        (["spark1"], ["spark2"], ["spark1", "spark2"], ["sprak2"], "The node 'sprak2' is neither in the inventory's group 'head' nor in 'workers': "
                                                                   "do you mean 'spark2'?"),
        (["a"], ["b"], "ab", ["xyz"], "The node 'xyz' is neither in the inventory's group 'head' nor in 'workers': choose from a, b."),
        (["a"], ["b", "c"], "ac", ["b", "c"], "b is left out of this run, but a launch needs all its ranks (b, c): run it without --limit, or with a target "
                                              "that holds them all."),
    ],
)  # fmt: skip
def test_groups_that_will_not_do(head: list[str], workers: list[str], in_play: t.Collection[str], named: t.Sequence[str], sentence: str) -> None:
    with pytest.raises(ValueError) as caught:
        _placement.ranks(head, workers, in_play, named)
    assert str(caught.value) == sentence


def test_ranks_are_the_head_and_then_the_workers_in_order() -> None:
    assert _placement.ranks(["b"], ["c", "a"], "abc") == ["b", "c", "a"]
    # Also of those that are named.
    assert _placement.ranks(["b"], ["c", "a"], "abc", ["a", "c"]) == ["c", "a"]
    assert _placement.ranks(["b"], ["c", "a"], "ac", ["a", "c"]) == ["c", "a"]


def seen(**memory: int | None) -> dict[str, dict[str, t.Any]]:
    return {host: {"available_bytes": None if gib is None else gib * GIB, "ranks": []} for host, gib in memory.items()}


HOSTS = ["a", "b", "c", "d"]


def test_all_nodes_are_taken_without_a_look_where_the_shape_takes_all() -> None:
    groups = _placement.groups(recipe(replicas=2), HOSTS)
    assert groups is not None and [group.hosts for group in groups] == [("a", "b"), ("c", "d")]
    assert _placement.groups(recipe(), HOSTS) is None


@pytest.mark.parametrize(
    "memory, chosen",
    [
        ({"a": 10, "b": 100, "c": 20, "d": 110}, ["b", "d"]),
        ({"a": 100, "b": 100, "c": 100, "d": 100}, ["a", "b"]),
        # What was not measured comes last.
        ({"a": None, "b": 1, "c": 2, "d": None}, ["b", "c"]),
        ({}, ["a", "b"]),
    ],
)
def test_fewer_nodes_are_those_with_most_memory(memory: dict[str, int | None], chosen: list[str]) -> None:
    assert _placement.choose(recipe(), HOSTS, seen(**memory)) == chosen


def test_a_difference_below_a_gib_is_none() -> None:
    about = {host: {"available_bytes": 100 * GIB + at * 1000} for at, host in enumerate(HOSTS)}
    assert _placement.choose(recipe(), HOSTS, about) == ["a", "b"]


def test_where_it_runs_it_stays() -> None:
    about = seen(a=100, b=100, c=1, d=1)
    about["c"]["ranks"], about["d"]["ranks"] = [("big", 1)], [("big", 0)]
    assert _placement.choose(recipe(), HOSTS, about) == ["d", "c"]
    # One that has lost a node gets the best of the others.
    about["d"]["ranks"] = []
    assert _placement.choose(recipe(), HOSTS, about) == ["a", "c"]


def test_a_replica_that_is_gone_is_placed_beside_the_one_that_runs() -> None:
    about = seen(a=100, b=90, c=80, d=70, e=60)
    about["a"]["ranks"], about["c"]["ranks"] = [("big-r1", 0)], [("big-r1", 1)]
    assert _placement.choose(recipe(replicas=2), [*HOSTS, "e"], about) == ["b", "d", "a", "c"]


def test_the_containers_of_its_replicas_are_known_from_others() -> None:
    names = ["big", "big-r0", "big-r12", "big-rx", "bigger", "big-r0-rank", None]
    found = _placement.owned("big", [{"deployment": name, "rank": 0} for name in names])
    assert found == [("big", 0), ("big-r0", 0), ("big-r12", 0)]


def test_nodes_that_were_chosen_are_kept() -> None:
    [group] = _placement.groups(recipe(replicas=2), HOSTS, placed=["c", "d"], replica=1) or []
    assert group == _shape.Group("big-r1", ("c", "d"), 1)
    [group] = _placement.groups(recipe(), HOSTS, placed=["d", "b"]) or []
    assert group.hosts == ("d", "b")
    # Where the shape takes all nodes, the inventory says which is which.
    [group] = _placement.groups(recipe(), HOSTS[:2], placed=["b", "a"]) or []
    assert group.hosts == ("a", "b")
    with pytest.raises(ValueError, match="big-r1 is of c and x, which is not what its recipe takes of these nodes now"):
        _placement.groups(recipe(replicas=2), HOSTS, placed=["c", "x"], replica=1)
    with pytest.raises(ValueError, match="deploy it anew"):
        _placement.groups(recipe(replicas=2), HOSTS, placed=["c"], replica=1)
