# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Recipes: every mistake that people make gets one sentence that says what to do."""

from __future__ import annotations

import copy
import pathlib
import typing as t

import pytest

from ansible_collections.sparkstack.inference.plugins.plugin_utils import _recipe

ROOT = pathlib.Path(__file__).resolve().parents[4]

GOOD: dict[str, t.Any] = {
    "name": "tiny",
    "model": {"path": "/srv/models/tiny", "id": "org/tiny"},
    "engine": "vllm",
    "tensor_parallel_size": 2,
    "engines": {
        "vllm": {"image": "a/vllm:1", "arguments": {"max-model-len": 512}, "environment": {"X": 1, "Y": True}},
        "sglang": {"image": "a/sglang:1"},
    },
}


def changed(**changes: t.Any) -> dict[str, t.Any]:
    """GOOD with values set by dotted path (__ for the dot); None takes the key out."""
    data = copy.deepcopy(GOOD)
    for path, value in changes.items():
        *way, last = path.split("__")
        place = data
        for key in way:
            place = place.setdefault(key, {})
        if value is None:
            place.pop(last)
        else:
            place[last] = value
    return data


def test_a_good_recipe_is_read_with_its_defaults() -> None:
    recipe = _recipe.parse(GOOD, {})
    assert (recipe.engine.name, recipe.image, recipe.port, recipe.rendezvous_port) == ("vllm", "a/vllm:1", 8000, 29501)
    assert (recipe.served_name, recipe.shm_size, recipe.memory) == ("org/tiny", "8g", None)
    assert recipe.environment == {"X": "1", "Y": "1"}


@pytest.mark.parametrize("router", ["", "none", "nginx", "sglang-router", "vllm-router"])
def test_a_router_is_none_of_the_launchs_content(router: str) -> None:
    recipe = _recipe.parse(changed(router=router) if router else GOOD, {})
    assert recipe.router == router and "router" not in _recipe.resolved(recipe)


def test_overrides_are_laid_over_the_recipe() -> None:
    recipe = _recipe.parse(GOOD, {"engine": "sglang", "port": 9000, "arguments": {"mem-fraction-static": 0.5}, "image": None, "environment": {}})
    assert (recipe.engine.name, recipe.image, recipe.port) == ("sglang", "a/sglang:1", 9000)
    assert recipe.arguments == {"mem-fraction-static": 0.5}
    merged = _recipe.parse(GOOD, {"arguments": {"max-model-len": 1024, "dtype": "auto"}})
    assert merged.arguments == {"max-model-len": 1024, "dtype": "auto"}


@pytest.mark.parametrize(
    "data, sentence",
    [
        (None, "The recipe is empty: it needs at least name, model, engine, tensor_parallel_size, engines."),
        ({}, "The recipe is empty: it needs at least name, model, engine, tensor_parallel_size, engines."),
        (["a"], "The recipe must be a mapping of keys to values, not a list."),
        (changed(tensor_paralel_size=2, tensor_parallel_size=2), "The recipe has no key 'tensor_paralel_size': do you mean 'tensor_parallel_size'?"),
        (changed(model__pth="/x"), "The recipe, 'model' has no key 'pth': do you mean 'path'?"),
        (changed(engines__vllm__argments={}), "The recipe, 'engines', 'vllm' has no key 'argments': do you mean 'arguments'?"),
        (changed(engine="tgi"), "The engine 'tgi' is not known: choose sglang or vllm."),
        (changed(engines__sglang=None, engine="sglang"), "The recipe has nothing for the engine 'sglang': choose vllm, or add it."),
        (changed(model__path=None), "The recipe, 'model' lacks 'path': add it."),
        (changed(tensor_parallel_size="2"), "The recipe: 'tensor_parallel_size' must be a whole number, not '2'."),
        (changed(tensor_parallel_size=0), "The recipe: 'tensor_parallel_size' must be 1 or more, not 0."),
        (changed(port=True), "The recipe: 'port' must be a whole number, not True."),
        (changed(port=70000), "The recipe: 'port' must be a number from 1 to 65535, not 70000."),
        (changed(engines={1: 2}), "The recipe, 'engines': '1' is not known: choose sglang or vllm."),
        (changed(model__path="/srv/a:b"), "The recipe: Docker can't mount the model's path '/srv/a:b', for its ':': give the folder another name."),
        (changed(container={"memory": "8g\n"}), "The recipe, 'container': 'memory' must be a size such as 8g or 512m, not '8g\\n'."),
        (
            changed(engines__vllm__environment={"A": None}),
            "The recipe, 'environment': 'A' must be one text or number, not empty: put it into quotes.",
        ),
        (
            changed(engines__vllm__environment={"A": ["b"]}),
            "The recipe, 'environment': 'A' must be one text or number, not a list: put it into quotes.",
        ),
        (changed(router="haproxy"), "The recipe: there is no router 'haproxy': take nginx or sglang-router or vllm-router, or none."),
        (changed(port=29501), "The recipe: port and rendezvous_port are both 29501: give them different numbers."),
        (changed(model__path="models/x"), "The recipe: the model's path 'models/x' must be absolute, the same on every node."),
        (changed(container={"shm_size": "8 GB"}), "The recipe, 'container': 'shm_size' must be a size such as 8g or 512m, not '8 GB'."),
        (
            changed(engines__vllm__arguments={"--max-model-len": 1}),
            "The recipe, 'arguments': write the option '--max-model-len' without its leading dashes.",
        ),
        (
            changed(engines__vllm__arguments={"nnodes": 2}),
            "The recipe, 'arguments': 'nnodes' is set from the plan: take it out (the recipe has its own keys for the "
            "model, the ports and the parallel sizes).",
        ),
        (
            changed(engines__vllm__arguments={"hf-token": "x"}),
            "The recipe, 'arguments': 'hf-token' would show its secret in every list of processes: take it out, or give the secret "
            "as a variable by tp_launch_environment where the engine reads one.",
        ),
        (changed(engines__vllm__environment={"A B": 1}), "The recipe, 'environment': 'A B' is no name for a variable."),
        (
            changed(engines__vllm__environment={"HF_TOKEN": "x", "TOKENIZERS_PARALLELISM": False}),
            "The recipe, 'engines', 'vllm': the secret 'HF_TOKEN' can't stand in a recipe: set it in tp_launch_environment, out of a vault.",
        ),
        (
            changed(engines__vllm__environment={"CACHE_PASSPHRASE": "x", "SSH_AUTH_SOCK": "/run/s"}),
            "The recipe, 'engines', 'vllm': the secret 'CACHE_PASSPHRASE' can't stand in a recipe: set it in tp_launch_environment, out of a vault.",
        ),
        (
            changed(name="Tiny Model"),
            "The recipe: the name 'Tiny Model' won't do for a container: use lower-case letters, digits, '.', '_' and '-', at most 63 of them.",
        ),
    ],
)
def test_a_mistake_gets_one_sentence(data: t.Any, sentence: str) -> None:
    with pytest.raises(_recipe.RecipeError) as caught:
        _recipe.parse(data, {})
    assert caught.value.problems == [sentence]


def test_all_mistakes_are_told_at_once() -> None:
    with pytest.raises(_recipe.RecipeError) as caught:
        _recipe.parse(changed(prot=1, engine="tgi"), {})
    assert len(caught.value.problems) == 2


def test_a_recipe_is_found_by_path_and_by_name(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "recipes"
    folder.mkdir()
    (folder / "tiny.yml").write_text("name: tiny\n")
    assert _recipe.find("tiny", [str(folder)]) == str(folder / "tiny.yml")
    assert _recipe.find(str(folder / "tiny.yml"), []) == str(folder / "tiny.yml")
    with pytest.raises(_recipe.RecipeError, match="There is no recipe 'tny': give the path of a YAML file or one of tiny."):
        _recipe.find("tny", [str(folder)])
    with pytest.raises(_recipe.RecipeError, match="No recipe is named: set tp_launch_recipe to the path of a YAML file or to one of tiny."):
        _recipe.find("", [str(folder)])


def test_a_file_that_is_no_yaml_is_told_with_its_line(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "r.yml"
    path.write_text("name: tiny\nmodel: {path: [\n")
    with pytest.raises(_recipe.RecipeError, match=r"r\.yml is not YAML, line 3: "):
        _recipe.load(str(path))


@pytest.mark.parametrize("path", sorted((ROOT / "playbooks" / "recipes").glob("*.yml")), ids=lambda path: path.stem)
@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_a_shipped_recipe_is_right_for_both_engines(path: pathlib.Path, engine: str) -> None:
    recipe = _recipe.parse(_recipe.load(str(path)), {"engine": engine})
    assert recipe.engine.name == engine
    assert recipe.name == path.stem


def test_a_resolved_recipe_says_the_same_alone() -> None:
    overrides = {"port": 8123, "arguments": {"max-model-len": 1024}, "environment": {"A": True}, "ready_timeout": 77, "image": "other:2"}
    recipe = _recipe.parse(GOOD, overrides)
    assert _recipe.parse(_recipe.resolved(recipe), {}) == recipe


def test_a_resolved_recipe_holds_no_secret() -> None:
    recipe = _recipe.parse(GOOD, {"environment": {"HF_TOKEN": "hf_abc"}})
    assert "hf_abc" not in str(_recipe.resolved(recipe)) and "HF_TOKEN" not in str(_recipe.resolved(recipe))


SHAPE = {"pipeline_parallel_size": 2, "expert_parallel": True, "replicas": 3, "nodes": ["a", "b"]}


def test_a_shape_stands_in_a_record_where_the_recipe_says_one() -> None:
    recipe = _recipe.parse({**GOOD, **SHAPE}, {})
    assert {key: value for key, value in _recipe.resolved(recipe).items() if key in SHAPE} == SHAPE
    assert _recipe.parse(_recipe.resolved(recipe), {}) == recipe
    assert not {*SHAPE, "executor"} & _recipe.resolved(_recipe.parse(GOOD, {})).keys()


def test_a_replica_is_the_recipe_under_a_name_of_its_own() -> None:
    whole = _recipe.parse({**GOOD, **SHAPE}, {})
    one = _recipe.of_replica(whole, 12)
    assert (one.name, _recipe.whole_name(one), one.image) == (f"{whole.name}-r12", whole.name, whole.image)
    assert _recipe.resolved(one) == _recipe.resolved(whole) and _recipe.of_replica(whole, None) is whole


@pytest.mark.parametrize(
    "changes, sentence",
    [
        ({"expert_parallel": 1}, "The recipe: 'expert_parallel' must be true or false, not 1."),
        ({"replicas": True}, "The recipe: 'replicas' must be a whole number, not True."),
        ({"pipeline_parallel_size": 0}, "The recipe: 'pipeline_parallel_size' must be 1 or more, not 0."),
        ({"replicas": 0}, "The recipe: 'replicas' must be 1 or more, not 0."),
        ({"name": "n" * 60, "replicas": 2}, f"The recipe: the name '{'n' * 60}' leaves no room for the replicas' -r0, -r1: use at most 58 characters."),
    ],
)
def test_a_shape_that_is_none_is_refused(changes: dict[str, t.Any], sentence: str) -> None:
    with pytest.raises(_recipe.RecipeError) as caught:
        _recipe.parse({**GOOD, **changes}, {})
    assert caught.value.problems == [sentence]


def test_an_executor_that_the_engine_has_not_is_refused() -> None:
    with pytest.raises(_recipe.RecipeError, match="has no executor 'slurm': take mp"):
        _recipe.parse({**GOOD, "executor": "slurm"}, {})
