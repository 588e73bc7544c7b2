# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The engine's memory setting that the plan computes, keeps and explains; and what is refused by the whole estimate."""

from __future__ import annotations

import copy
import dataclasses
import functools
import typing as t

import model_shapes
import pytest

from ansible_collections.sparkstack.inference.plugins.module_utils import _ranks
from ansible_collections.sparkstack.inference.plugins.module_utils._model import config_summary
from ansible_collections.sparkstack.inference.plugins.module_utils._tensors import groups
from ansible_collections.sparkstack.inference.plugins.plugin_utils import _container, _plan_memory, _planner, _recipe, _screen

GIB = 1024**3
TOTAL = 128524206080  # "MemTotal: 125511920 kB"
OPTION = "mem-fraction-static"
PARSER = {
    "version": "0.5.17",
    "options": [
        {"flags": [f"--{name}"], "nargs": None, "type": kind, "choices": None}
        for name, kind in ((OPTION, "float"), ("context-length", "int"), ("kv-cache-dtype", "str"), ("cuda-graph-max-bs-decode", "int"))
    ],
}
SETTINGS = _planner.Settings(new_launch_id="L2", parser=PARSER, endpoint_host="spark1", api_key="k")


@functools.cache
def model(name: str = "Qwen3.5-122B-A10B-FP8") -> dict[str, t.Any]:
    tensors = groups(model_shapes.tensors(name))
    return {"path": "/srv/models/m", "weight_bytes": 127775000000, "config": config_summary(model_shapes.MODELS[name][0]), "tensors": tensors}


def recipe(engine: str = "sglang", **arguments: t.Any) -> _recipe.Recipe:
    data = {
        "name": "qwen",
        "model": {"path": "/srv/models/m"},
        "engine": engine,
        "tensor_parallel_size": 2,
        "engines": {
            "sglang": {"image": "sglang:1", "arguments": {"context-length": 262144, "kv-cache-dtype": "fp8_e4m3", "cuda-graph-max-bs-decode": 8}},
            "vllm": {"image": "vllm:1", "arguments": {"max-model-len": 65536, "max-num-seqs": 4, "kv-cache-dtype": "fp8"}},
        },
    }
    return _recipe.parse(data, {"arguments": {name.replace("_", "-"): value for name, value in arguments.items()}})


def node(number: int, available: float = 110, containers: t.Sequence[t.Any] = (), **memory: t.Any) -> _planner.Node:
    """A GB10 with so many GiB available."""
    return _planner.Node(
        name=f"spark{number}",
        fabric={"address": f"192.168.200.1{number}", "netdev": "enp1s0f0np0"},
        memory={
            "unified": True,
            "total_bytes": TOTAL,
            "available_bytes": int(available * GIB),
            "free_bytes": int(available * GIB),
            "gpus": [{"index": 0, "name": "NVIDIA GB10", "total_bytes": None}],
            "processes": [],
            "holders": [],
            **memory,
        },
        info={
            "docker": {"reachable": True, "error": None},
            "architecture": "arm64",
            "image": {"identity": "sha256:aa", "architecture": "arm64", "size_bytes": GIB},
            "containers": list(containers),
            "listeners": [],
        },
        model=model(),
    )


def make(nodes: t.Sequence[_planner.Node], wanted: _recipe.Recipe | None = None, **settings: t.Any) -> _planner.Plan:
    wanted = wanted or recipe()
    if wanted.engine.name != "sglang":
        settings = {"parser": None, **settings}
    return _planner.make(wanted, nodes, dataclasses.replace(SETTINGS, **settings))


def given(plan: _planner.Plan, option: str = OPTION) -> list[str | None]:
    """The option's value on each rank's command line."""
    commands = [_container.public(request)["command"] for request in plan.requests]
    return [command[command.index(f"--{option}") + 1] if f"--{option}" in command else None for command in commands]


def container(plan: _planner.Plan, rank: int, **changes: t.Any) -> dict[str, t.Any]:
    """A rank that a plan has started, as inference_info tells it out of the container's labels."""
    state = {"Running": True, "ExitCode": 0, "OOMKilled": False, "StartedAt": "2026-11-29T10:00:00.5Z"}
    request = plan.requests[rank]
    labels = _container.labels(request, "L1")
    found = {"Id": "c", "Name": "/" + _container.name("qwen", rank), "Config": {"Labels": labels, "Image": "sglang:1"}, "State": state}
    return {**_ranks.describe(found), **changes}


def deployed(first: _planner.Plan, available: t.Sequence[float] = (46, 45), **worker: t.Any) -> list[_planner.Node]:
    """Two nodes on which a plan's launch serves: what its ranks hold is not available, and is theirs by the driver's word."""
    found = []
    for rank, left in enumerate(available):
        holder = {"kind": "container", "name": f"qwen-rank{rank}", "image": "sglang:1", "pid": None, "bytes": 64 * GIB, "gpu_bytes": 60 * GIB}
        found.append(node(rank + 1, left, [container(first, rank, **(worker if rank else {}))], holders=[holder]))
    return [dataclasses.replace(found[0], proof={"answered": True}), found[1]]


# The setting.


def test_the_computed_value_goes_to_every_rank_by_the_node_that_has_least() -> None:
    plan = make([node(1), node(2, 104)])
    assert (plan.problems, plan.action) == ([], "start")
    value = plan.memory["knob"]["recommended"]
    assert 0.75 < value < 0.88 and given(plan) == [str(value)] * 2 and plan.planned == {OPTION: value}
    assert value < make([node(1), node(2)]).memory["knob"]["recommended"]
    lines = _screen.screen(plan)
    assert any(line.strip().startswith(f"{OPTION} is set to {value} by what spark2 has: leaves ") for line in lines), lines
    assert f"  arguments  3 in the recipe, {OPTION} {value} by the plan, checked by the parser of SGLang 0.5.17" in lines


def test_vllm_is_told_in_its_own_way() -> None:
    plan = make([node(1), node(2)], recipe("vllm"))
    assert given(plan, "gpu-memory-utilization") == [str(plan.memory["knob"]["value"])] * 2
    for option, value in (("gpu_memory_utilization", 0.7), ("kv_cache_memory_bytes", "8G")):
        own = make([node(1), node(2)], recipe("vllm", **{option: value}))
        assert own.planned is None and given(own, option.replace("_", "-")) == [str(value)] * 2


def test_a_value_in_the_recipe_wins_and_the_difference_is_explained() -> None:
    plan = make([node(1), node(2)], recipe(mem_fraction_static=0.60))
    assert (given(plan), plan.planned, plan.problems) == (["0.6", "0.6"], None, [])
    knob, line = plan.memory["knob"], _plan_memory.lines(plan)[-1]
    best, few, many = knob["recommended"], knob["concurrency"], knob["recommended_concurrency"]
    assert line == f"{OPTION} is 0.6, as the recipe says; {best} is recommended: 27.7 GiB of cache for {many} requests, not 4.9 GiB for {few}"
    assert few == plan.memory["concurrency_that_fits"] < many and len(line) <= 124
    near = make([node(1), node(2)], recipe(mem_fraction_static=best))
    assert _plan_memory.lines(near)[-1] == f"{OPTION} is {best}, as the recipe says; {best} is recommended"


def test_bytes_in_the_recipe_stand_beside_the_bytes_that_fit() -> None:
    plan = make([node(1), node(2)], recipe("vllm", kv_cache_memory_bytes="8G"))
    line = _plan_memory.lines(plan)[-1]
    assert line == f"kv-cache-memory-bytes is 8.0 GiB, as the recipe says; {plan.memory['knob']['recommended_pool_bytes'] / GIB:.1f} GiB are estimated to fit"


def test_a_value_that_is_taken_out_of_the_recipe_is_the_plan_s_again() -> None:
    plan = make([node(1), node(2)], recipe(mem_fraction_static=None))
    assert given(plan) == [str(plan.memory["knob"]["recommended"])] * 2


def test_it_is_left_to_the_engine_where_the_user_says_so() -> None:
    plan = make([node(1), node(2)], memory_setting="engine")
    assert (given(plan), plan.planned, plan.memory["knob"]["by"]) == ([None, None], None, "engine")
    assert _plan_memory.lines(plan)[-1].startswith(f"{OPTION} is left to the engine; 0.8")


def test_an_engine_s_own_default_that_asks_for_more_than_there_is_is_refused() -> None:
    """vLLM: "Free memory on device .. on startup is less than desired GPU memory utilization (0.92, ..)"."""
    [problem] = make([node(1), node(2, 104)], recipe("vllm"), memory_setting="engine").problems
    assert problem.startswith("the engine's own gpu-memory-utilization 0.92 asks for 110.1 GiB of spark1, where ")
    assert "set gpu-memory-utilization to 0." in problem
    assert make([node(1), node(2, 104)], recipe("vllm")).problems == []


@pytest.mark.parametrize(
    "second",
    [node(2, gpus=[]), node(2, total_bytes=None), dataclasses.replace(node(2), memory={})],
)
def test_nothing_is_computed_without_a_gpu_or_a_measurement_on_every_node(second: _planner.Node) -> None:
    plan = make([node(1), second])
    assert (given(plan), plan.planned) == ([None, None], {})
    assert _plan_memory.lines(plan)[-1] == f"{OPTION} is left to the engine: no value is sure"


def test_an_image_that_does_not_know_the_option_is_not_given_it() -> None:
    parser = {**PARSER, "options": PARSER["options"][1:]}
    plan = make([node(1), node(2)], parser=parser)
    assert (plan.problems, given(plan), plan.planned) == ([], [None, None], {})


def test_an_unknown_architecture_is_given_a_value_and_never_refused() -> None:
    odd = {"path": "/srv/models/m", "weight_bytes": 127775000000, "config": {"architectures": ["Wondrous"]}, "tensors": []}
    plan = make([dataclasses.replace(node(number), model=odd) for number in (1, 2)])
    assert plan.problems == [] and plan.planned == {OPTION: plan.memory["knob"]["recommended"]}
    tight = make([dataclasses.replace(node(number, 61), model=odd) for number in (1, 2)])
    assert tight.problems == [] and any(note.startswith("by estimate: spark1 lacks ") for note in tight.notes)


# It converges.


@pytest.mark.parametrize("available", [(46, 45), (30, 47), (52, 12), (0.5, 0.5)])
def test_what_runs_keeps_its_value_whatever_is_measured_now(available: tuple[float, float]) -> None:
    first = make([node(1), node(2)])
    plan = make(deployed(first, available))
    assert (plan.action, plan.differences, plan.planned, plan.memory) == ("none", [], first.planned, {})
    assert [_container.spec_hash(_container.public(request)) for request in plan.requests] == [
        _container.spec_hash(_container.public(request)) for request in first.requests
    ]
    assert any(f"{OPTION} {first.planned[OPTION]} by the plan" in line for line in _screen.screen(plan))


@pytest.mark.parametrize("lost", ["gpus", "total_bytes", "holders"])
def test_what_runs_keeps_its_value_where_nothing_can_be_computed_now(lost: str) -> None:
    first = make([node(1), node(2)])
    nodes = deployed(first)
    nodes[1].memory[lost] = [] if lost == "gpus" else None
    plan = make(nodes, gpus="all")
    assert plan.planned == first.planned and not any(OPTION in line for line in plan.differences)


def test_what_serves_is_not_restarted_without_gpus_because_a_driver_does_not_answer_now() -> None:
    nodes = deployed(make([node(1), node(2)]))
    nodes[1].memory["gpus"] = []
    assert (make(nodes).action, make(nodes).differences) == ("none", [])
    # Who decides against them is obeyed.
    assert make(nodes, gpus="none").action == "restart"


def test_what_was_started_without_a_value_stays_without() -> None:
    """The memory could not be measured then."""
    first = make([node(1), node(2, total_bytes=None)])
    assert first.planned == {}
    nodes = deployed(first)
    assert make(nodes).action == "none"
    again = make(nodes, restart=True)
    assert again.action == "restart" and again.planned == {OPTION: again.memory["knob"]["recommended"]}


def test_a_launch_that_is_still_starting_keeps_its_value() -> None:
    first = make([node(1), node(2)])
    nodes = deployed(first, (70, 20))
    nodes[0] = dataclasses.replace(nodes[0], proof={"answered": False, "problem": "refused"}, verdict="starting")
    assert (make(nodes).action, make(nodes).planned) == ("watch", first.planned)


def test_at_a_restart_the_value_is_kept_where_it_still_fits() -> None:
    first = make([node(1), node(2)])
    plan = make(deployed(first, running=False, exit_code=137))
    assert (plan.action, plan.planned, plan.differences) == ("restart", first.planned, [])
    value, now = plan.memory["knob"]["value"], plan.memory["knob"]["recommended"]
    assert now != value
    assert _plan_memory.lines(plan)[-1] == f"{OPTION} stays {value}, which was computed for its last start; now it would be {now}"


@pytest.mark.parametrize("available", [20, 46, 66])
def test_a_restart_keeps_the_value_where_nobody_tells_what_the_old_ranks_hold(available: float) -> None:
    """What is available beside them is too little for the weights, which are among what they hold."""
    nodes = deployed(first := make([node(1), node(2)]), (available, available))
    for each in nodes:
        each.memory["holders"] = []
    plan = make(nodes, restart=True)
    assert (plan.problems, plan.planned, plan.differences) == ([], first.planned, [])
    assert plan.memory["knob"]["by"] == "kept"
    assert _plan_memory.lines(plan)[-1] == f"{OPTION} stays {first.planned[OPTION]}, which was computed for its last start"


def test_a_restart_keeps_the_value_where_a_driver_does_not_answer() -> None:
    first = make([node(1), node(2)])
    nodes = deployed(first)
    nodes[1].memory["gpus"] = []
    assert make(nodes, restart=True).planned == first.planned
    # Who leaves it to the engine is obeyed.
    assert make(nodes, restart=True, memory_setting="engine").planned is None


def test_at_a_restart_a_value_that_fits_no_more_is_computed_anew_and_told() -> None:
    """It is a share of what is free, so of less it must be more for the same weights."""
    first = make([node(1), node(2)])
    nodes = deployed(first, (50, 12), running=False, exit_code=137)
    plan = make(nodes)
    old, new = first.planned[OPTION], plan.planned[OPTION]
    assert (plan.action, plan.problems) == ("restart", []) and new > old and given(plan) == [str(new)] * 2
    # It is no reason, but a change.
    assert plan.reasons == ["rank 1 on spark2 has ended (exit code 137)"]
    assert f"spark1: --{OPTION}: {old} -> {new}" in plan.differences
    assert _plan_memory.lines(plan)[-1].startswith(f"{OPTION} is set to {new} by what spark2 has, since {old} of its last start fits no more: leaves ")


@pytest.mark.parametrize(
    ("before", "now", "settings", "change"),
    [
        # The recipe decided, and decides no more; the user leaves it to the engine; the recipe decides now.
        (recipe(mem_fraction_static=0.6), recipe(), {}, "0.6 -> 0.8"),
        (recipe(), recipe(), {"memory_setting": "engine"}, " -> none"),
        (recipe(), recipe(mem_fraction_static=0.6), {}, " -> 0.6"),
    ],
)
def test_who_decides_otherwise_restarts(before: _recipe.Recipe, now: _recipe.Recipe, settings: dict[str, t.Any], change: str) -> None:
    plan = make(deployed(make([node(1), node(2)], before)), now, **settings)
    assert plan.action == "restart" and plan.problems == []
    assert any(f"--{OPTION}: " in line and change in line for line in plan.differences), plan.differences


def test_a_recipe_that_says_what_runs_anyway_restarts_nothing() -> None:
    first = make([node(1), node(2)])
    nodes = deployed(first)
    said = make(nodes, recipe(mem_fraction_static=first.planned[OPTION]))
    assert (said.action, said.planned) == ("none", None)
    # And taking it out again does not either: the ranks still tell who computed it.
    assert make(nodes).action == "none"


@pytest.mark.parametrize("label", [{OPTION: "0.8; rm"}, {OPTION: 7.0}, {"gpu-memory-utilization": 0.8}, "x", {OPTION: True}])
def test_a_label_that_is_none_of_ours_counts_as_none(label: t.Any) -> None:
    nodes = deployed(make([node(1), node(2)]))
    for each in nodes:
        each.info["containers"][0]["planned"] = label
    plan = make(nodes)
    assert plan.planned == {OPTION: plan.memory["knob"]["recommended"]} if plan.action == "restart" else plan.planned is not None


def test_a_launch_that_is_gone_back_to_has_the_value_of_its_record() -> None:
    failed = deployed(make([node(1), node(2)], recipe(context_length=131072)), running=False, exit_code=1)
    back = make(failed, restore=True, planned={OPTION: 0.77})
    assert (back.planned, back.memory["knob"]["by"]) == ({OPTION: 0.77}, "kept")
    # Of one that the recipe decided, or that is older than this: nothing is added.
    assert make(failed, restore=True).planned is None


# Refusals.


def squatted(held: float, **more: t.Any) -> list[_planner.Node]:
    """The seed's forgotten container on the worker."""
    holder = {"kind": "container", "name": "embeddings", "image": "tei:1", "pid": None, "bytes": int(held * GIB), "gpu_bytes": int(held * GIB)}
    return [node(1), node(2, 110 - held, holders=[holder], **more)]


def test_what_can_not_fit_is_refused_in_one_sentence_with_three_remedies() -> None:
    """The weights alone, 59.5 GiB, would fit."""
    plan = make(squatted(49))
    [problem] = plan.problems
    assert problem.startswith("spark2 lacks ") and problem.endswith("; tp_launch_memory_check=warn starts it all the same.")
    assert "stop container embeddings (tei:1), which holds 49.0 GiB there (tp_launch_evict: embeddings)" in problem
    assert problem.count(". ") == 0 and "spread it over 4 nodes (tensor parallel size 4)" in problem
    assert problem.split("; tp_launch")[0].endswith("spread it over 4 nodes (tensor parallel size 4), or take the model in 4 bits")


def test_a_warning_only_where_that_is_wanted() -> None:
    plan = make(squatted(49), memory_check="warn")
    assert (plan.problems, plan.action) == ([], "start")
    [note] = [note for note in plan.notes if "spark2 lacks" in note]
    assert note.startswith("by estimate: spark2 lacks ") and "tp_launch_memory_check" not in note
    odd = {"path": "/srv/models/m", "weight_bytes": 127775000000}
    nodes = [dataclasses.replace(each, model=odd) for each in squatted(60)]
    weights = make(nodes, memory_check="warn")
    assert weights.problems == [] and any("for the weights alone" in note for note in weights.notes)
    [problem] = make(nodes).problems
    assert "for the weights alone" in problem
    # Where all of it is known, the sentence with the remedies is told.
    [problem] = make(squatted(60)).problems
    assert problem.startswith("spark2 lacks ")


def test_what_only_the_estimate_s_error_decides_is_told_and_not_refused() -> None:
    plan = make(squatted(38))
    assert plan.problems == [] and any(note.startswith("by estimate: spark2 lacks ") for note in plan.notes)
    # Less than the best is set then, and less than the engine would take by itself.
    assert 0 < plan.planned[OPTION] < plan.memory["knob"]["recommended"] + 0.001


def test_what_may_go_or_comes_back_counts_as_free() -> None:
    assert make(squatted(49), evict=["embeddings"]).problems == []
    assert make([node(1), node(2, 110, free_bytes=2 * GIB)]).problems == [], "page cache"
    first = make([node(1), node(2)])
    assert make(deployed(first), restart=True).problems == []
    # A driver that does not tell what a process holds.
    nodes = deployed(first)
    for each in nodes:
        each.memory["holders"] = []
    assert make(nodes, restart=True).problems == []


def test_a_running_deployment_is_not_stopped_for_what_can_not_fit_beside_others() -> None:
    nodes = deployed(make([node(1), node(2)]), (46, 0.5))
    nodes[1].memory["holders"].append({"kind": "container", "name": "embeddings", "image": "tei:1", "pid": None, "bytes": 55 * GIB, "gpu_bytes": 55 * GIB})
    assert make(nodes).action == "none"
    [problem] = make(nodes, restart=True).problems
    assert problem.startswith("spark2 lacks ") and "qwen-rank1" not in problem


def test_nothing_is_refused_by_estimate_on_nodes_without_a_gpu() -> None:
    """How an engine reckons there is not known: 62 GiB are enough for the weights."""
    plan = make([node(1, 62, gpus=[]), node(2, 62, gpus=[])])
    assert plan.problems == [] and plan.action == "start"
    roomy = make([node(1, 90, gpus=[]), node(2, 90, gpus=[])], recipe("vllm"))
    assert (roomy.planned, roomy.problems, [note for note in roomy.notes if "by estimate" in note]) == ({}, [], [])


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (recipe(mem_fraction_static=0.3), "mem-fraction-static 0.3 leaves 0 MiB for the cache of spark1"),
        (recipe("vllm", gpu_memory_utilization=0.97), "gpu-memory-utilization 0.97 asks for 116.1 GiB of spark1, where "),
        (recipe("vllm", gpu_memory_utilization=0.4), "gpu-memory-utilization 0.4 leaves 0 MiB for the cache of spark1"),
        (recipe("vllm", kv_cache_memory_bytes="90G"), "kv-cache-memory-bytes 90.0 GiB leaves 0 MiB of spark1 beside weights and cache"),
    ],
)
def test_a_value_of_the_recipe_with_which_the_engine_can_not_start_is_refused(wanted: _recipe.Recipe, words: str) -> None:
    [problem] = make([node(1), node(2)], wanted).problems
    assert problem.startswith(words) and " to 0." in problem


@pytest.mark.parametrize(
    ("wanted", "left", "words"),
    [
        (recipe("vllm"), 66, "the engine's own gpu-memory-utilization 0.92 asks for 110.1 GiB of spark1, where "),
        (recipe("vllm", gpu_memory_utilization=0.9), 66, "gpu-memory-utilization 0.9 asks for 107.7 GiB of spark1, where "),
        (recipe(), 67, "the engine's own mem-fraction-static 0.823041 leaves 0 MiB for the cache of spark1"),
    ],
)
def test_a_value_that_surely_ends_the_start_is_refused_also_where_the_model_fits_only_within_the_error(wanted: _recipe.Recipe, left: float, words: str) -> None:
    """What serves would be stopped for it."""
    nodes = [node(1, left), node(2, left)]
    [problem] = make(nodes, wanted).problems
    assert problem.startswith(words)
    # With a value that may do it is only told.
    option = "gpu_memory_utilization" if wanted.engine.name == "vllm" else "mem_fraction_static"
    careful = make(nodes, recipe(wanted.engine.name, **{option: 0.53 if wanted.engine.name == "vllm" else 0.94}))
    assert careful.problems == [] and any(note.startswith("by estimate: spark1 lacks ") for note in careful.notes)


@pytest.mark.parametrize("available", [66, 76, 80, 84])
def test_the_recipe_s_value_is_not_judged_by_what_the_old_ranks_leave_where_nobody_tells_what_they_hold(available: float) -> None:
    """The same launch serves with it."""
    wanted = recipe(mem_fraction_static=0.6)
    nodes = deployed(make([node(1), node(2)], wanted), (available, available))
    for each in nodes:
        each.memory["holders"] = []
    plan = make(nodes, wanted, restart=True)
    assert (plan.action, plan.problems) == ("restart", [])
    # It is told.
    assert any(note.startswith("by estimate: ") for note in plan.notes)


def test_a_value_that_is_only_not_the_best_is_not() -> None:
    for value in (0.57, 0.6, 0.9, 0.94):
        assert make([node(1), node(2)], recipe(mem_fraction_static=value)).problems == []


def test_a_plan_s_nodes_are_left_as_they_were() -> None:
    nodes = squatted(49)
    before = copy.deepcopy([each.memory for each in nodes])
    make(nodes, evict=["embeddings"])
    assert [each.memory for each in nodes] == before
