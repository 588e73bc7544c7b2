# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is private to the collection: it can change at any time.

"""A recipe: what to serve. Read, checked to the last key, and merged with what the user overrides."""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
import typing as t
from dataclasses import dataclass, field

import yaml

from ansible_collections.sparkstack.inference.plugins.module_utils import _engines
from ansible_collections.sparkstack.inference.plugins.module_utils._engines._types import Engine
from ansible_collections.sparkstack.inference.plugins.module_utils._secrets import is_secret
from ansible_collections.sparkstack.inference.plugins.plugin_utils import _joining
from ansible_collections.sparkstack.inference.plugins.plugin_utils._router import KINDS


class RecipeError(Exception):
    """The recipe can't be used; each of C(problems) is one sentence that says what to do."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


@dataclass(frozen=True)
class Recipe:
    """A checked recipe for one engine. Sizes are in Docker's notation, times in seconds."""

    name: str
    engine: Engine
    image: str
    model_path: str
    model_id: str
    served_name: str
    model_bytes: int | None
    """What the recipe says of the weights' size in bytes: an assumption until a node's files are measured."""
    tensor_parallel_size: int
    port: int
    rendezvous_port: int
    arguments: dict[str, t.Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    shm_size: str = "8g"
    memory: str | None = None
    cap_add: tuple[str, ...] = ()
    ready_timeout: int = 1800
    router: str = ""
    """The router in front of the replicas, a key of C(_router.KINDS); C(none): there is to be none; empty: nothing is said of one."""
    prompt: str = "The capital of France is"
    max_tokens: int = 16
    proof_timeout: int = 120
    pipeline_parallel_size: int = 1
    expert_parallel: bool = False
    replicas: int = 1
    """Launches of the same, each on nodes of its own."""
    executor: str = "mp"
    nodes: tuple[str, ...] = ()
    """Hosts of the inventory that it may run on; none: all of them."""
    replica: int | None = None
    """Which of several replicas this is: then C(name) is that one's, see :func:`of_replica`."""


# Key to (type, what it is to be in words). A trailing ! marks a key that must be there.
_TOP: dict[str, tuple[type, str]] = {
    "name!": (str, "a text"),
    "description": (str, "a text"),
    "model!": (dict, "a mapping"),
    "engine!": (str, "a text"),
    "tensor_parallel_size!": (int, "a whole number"),
    "pipeline_parallel_size": (int, "a whole number"),
    "expert_parallel": (bool, "true or false"),
    "replicas": (int, "a whole number"),
    "executor": (str, "a text"),
    "nodes": (list, "a list"),
    "port": (int, "a whole number"),
    "rendezvous_port": (int, "a whole number"),
    "engines!": (dict, "a mapping"),
    "container": (dict, "a mapping"),
    "timeouts": (dict, "a mapping"),
    "proof": (dict, "a mapping"),
    "router": (str, "a text"),
}
_PARTS: dict[str, dict[str, tuple[type, str]]] = {
    "model": {
        "path!": (str, "a text"),
        "id": (str, "a text"),
        "served_name": (str, "a text"),
        "bytes": (int, "a whole number"),
    },
    "container": {"shm_size": (str, "a text"), "memory": (str, "a text"), "cap_add": (list, "a list")},
    "timeouts": {"ready": (int, "a whole number")},
    "proof": {"prompt": (str, "a text"), "max_tokens": (int, "a whole number"), "timeout": (int, "a whole number")},
}
_ENGINE: dict[str, tuple[type, str]] = {"image!": (str, "a text"), "arguments": (dict, "a mapping"), "environment": (dict, "a mapping")}
_OVERRIDES = ("engine", "image", "model_path", "served_name", "port", "rendezvous_port", "ready_timeout", "arguments", "environment")

# Docker's own rule for a container's name, less what would not do in a file's name; room for "-rank0" is left.
_NAME = re.compile(r"^[a-z0-9][a-z0-9._-]{0,62}$")
_SIZE = re.compile(r"^[1-9][0-9]*[bkmgBKMG]?$")
_VARIABLE = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")


def find(name: str, folders: t.Sequence[str]) -> str:
    """The file of a recipe.

    :param name: a path, or the name of a file in one of the folders, with or without its ending.
    :raises RecipeError: naming the recipes that there are.
    """
    candidates = [os.path.expanduser(name)]
    for folder in folders:
        candidates += [os.path.join(folder, name), os.path.join(folder, name + ".yml")]
    for path in candidates:
        if os.path.isfile(path):
            return os.path.abspath(path)
    known = sorted(
        entry[: -len(".yml")]
        for folder in folders
        if os.path.basename(folder) == "recipes" and os.path.isdir(folder)
        for entry in os.listdir(folder)
        if entry.endswith(".yml")
    )
    if not name:
        raise RecipeError([f"No recipe is named: set tp_launch_recipe to the path of a YAML file or to one of {', '.join(dict.fromkeys(known))}."])
    raise RecipeError([f"There is no recipe '{name}': give the path of a YAML file or one of {', '.join(dict.fromkeys(known))}."])


def load(path: str) -> t.Any:
    """The content of a recipe's file; :raises RecipeError: when it can't be read or is no YAML."""
    try:
        with open(path, encoding="utf-8") as stream:
            return yaml.safe_load(stream)
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError([f"The recipe {path} can't be read: {error}."]) from None
    except yaml.YAMLError as error:
        where = getattr(error, "problem_mark", None)
        line = f", line {where.line + 1}" if where else ""
        raise RecipeError([f"The recipe {path} is not YAML{line}: {getattr(error, 'problem', None) or error}; mend the file."]) from None


def _check(where: str, data: t.Mapping[str, t.Any], schema: t.Mapping[str, tuple[type, str]]) -> list[str]:
    keys = {key.rstrip("!"): rule for key, rule in schema.items()}
    problems = []
    for key, value in data.items():
        if key not in keys:
            close = difflib.get_close_matches(str(key), keys, n=1)
            hint = f"do you mean '{close[0]}'?" if close else f"it can have {', '.join(sorted(keys))}."
            problems.append(f"{where} has no key '{key}': {hint}")
            continue
        kind, words = keys[key]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            problems.append(f"{where}: '{key}' must be {words}, not {value!r}.")
    for key in (key.rstrip("!") for key in schema if key.endswith("!")):
        if data.get(key) in (None, "", {}) and not any(f"'{key}'" in problem for problem in problems):
            problems.append(f"{where} lacks '{key}': add it.")
    return problems


def parse(data: t.Any, overrides: t.Mapping[str, t.Any], where: str = "The recipe") -> Recipe:
    """Check a recipe's content and merge the overrides into it.

    :param overrides: the user's values by key (engine, image, model_path, served_name, port, rendezvous_port, ready_timeout, and the
        mappings arguments and environment, which are laid over the recipe's); None and {} mean "as the recipe says".
    :raises RecipeError: with a sentence for everything that is wrong.
    """
    if not data:
        raise RecipeError([f"{where} is empty: it needs at least {', '.join(k[:-1] for k in _TOP if k.endswith('!'))}."])
    if not isinstance(data, dict):
        raise RecipeError([f"{where} must be a mapping of keys to values, not a {type(data).__name__}."])
    over = {key: value for key, value in overrides.items() if value not in (None, "", 0, {})}
    unknown = sorted(set(over) - set(_OVERRIDES))
    if unknown:
        raise RecipeError([f"'{unknown[0]}' can't be overridden: only {', '.join(_OVERRIDES)} can."])

    problems = _check(where, data, _TOP)
    for part, schema in _PARTS.items():
        if isinstance(data.get(part), dict):
            problems += _check(f"{where}, '{part}'", data[part], schema)
    name = over.get("engine") or data.get("engine")
    engines = data["engines"] if isinstance(data.get("engines"), dict) else {}
    problems += _engine_problems(where, engines, name)
    problems += _secret_problems(where, engines)
    if not problems:
        problems += _environment_problems(where, {**(engines[name].get("environment") or {}), **(over.get("environment") or {})})
    if problems:
        raise RecipeError(problems)

    engine = _engines.get(t.cast(str, name))
    chosen = engines[engine.name]
    model = data["model"]
    path = over.get("model_path") or model["path"]
    identity = model.get("id") or os.path.basename(path.rstrip("/"))
    container, proof = data.get("container") or {}, data.get("proof") or {}
    recipe = Recipe(
        name=data["name"],
        engine=engine,
        image=over.get("image") or chosen["image"],
        model_path=path,
        model_id=identity,
        served_name=over.get("served_name") or model.get("served_name") or identity,
        model_bytes=model.get("bytes"),
        tensor_parallel_size=data["tensor_parallel_size"],
        port=over.get("port") or data.get("port") or engine.launch.port,
        rendezvous_port=over.get("rendezvous_port") or data.get("rendezvous_port") or engine.launch.rendezvous_port,
        arguments={**(chosen.get("arguments") or {}), **(over.get("arguments") or {})},
        environment={key: _text(value) for key, value in {**(chosen.get("environment") or {}), **(over.get("environment") or {})}.items()},
        shm_size=container.get("shm_size", Recipe.shm_size),
        memory=container.get("memory"),
        cap_add=tuple(str(capability) for capability in container.get("cap_add") or ()),
        ready_timeout=over.get("ready_timeout") or (data.get("timeouts") or {}).get("ready", Recipe.ready_timeout),
        router=data.get("router") or Recipe.router,
        prompt=proof.get("prompt", Recipe.prompt),
        max_tokens=proof.get("max_tokens", Recipe.max_tokens),
        proof_timeout=proof.get("timeout", Recipe.proof_timeout),
        pipeline_parallel_size=data.get("pipeline_parallel_size", Recipe.pipeline_parallel_size),
        expert_parallel=data.get("expert_parallel", Recipe.expert_parallel),
        replicas=data.get("replicas", Recipe.replicas),
        executor=data.get("executor") or engine.launch.executors[0],
        nodes=tuple(str(node) for node in data.get("nodes") or ()),
    )
    problems = _value_problems(where, recipe)
    if problems:
        raise RecipeError(problems)
    return recipe


def resolved(recipe: Recipe) -> dict[str, t.Any]:
    """A recipe's content that says alone, without overrides, what this one says; its secret variables are left out."""
    return {
        "name": whole_name(recipe),
        "model": {
            "path": recipe.model_path,
            "id": recipe.model_id,
            "served_name": recipe.served_name,
            **({"bytes": recipe.model_bytes} if recipe.model_bytes else {}),
        },
        "engine": recipe.engine.name,
        "tensor_parallel_size": recipe.tensor_parallel_size,
        # What a recipe need not say stands here where it says it: what was kept of a launch before there was such a key stays the same.
        **({"pipeline_parallel_size": recipe.pipeline_parallel_size} if recipe.pipeline_parallel_size > 1 else {}),
        **({"expert_parallel": True} if recipe.expert_parallel else {}),
        **({"replicas": recipe.replicas} if recipe.replicas > 1 else {}),
        **({"executor": recipe.executor} if recipe.executor != recipe.engine.launch.executors[0] else {}),
        **({"nodes": list(recipe.nodes)} if recipe.nodes else {}),
        "port": recipe.port,
        "rendezvous_port": recipe.rendezvous_port,
        "engines": {
            recipe.engine.name: {
                "image": recipe.image,
                "arguments": dict(recipe.arguments),
                "environment": {key: value for key, value in recipe.environment.items() if not is_secret(key)},
            }
        },
        "container": {"shm_size": recipe.shm_size, **({"memory": recipe.memory} if recipe.memory else {}), "cap_add": list(recipe.cap_add)},
        "timeouts": {"ready": recipe.ready_timeout},
        "proof": {"prompt": recipe.prompt, "max_tokens": recipe.max_tokens, "timeout": recipe.proof_timeout},
    }


def of_replica(recipe: Recipe, replica: int | None) -> Recipe:
    """What one replica is launched by: the same under a name of its own, C(NAME-r0), C(NAME-r1); a recipe without replicas is its own."""
    return recipe if replica is None else dataclasses.replace(recipe, name=f"{recipe.name}-r{replica}", replica=replica)


def whole_name(recipe: Recipe) -> str:
    """The name that the recipe has for all its replicas."""
    return recipe.name if recipe.replica is None else recipe.name[: -len(f"-r{recipe.replica}")]


def _engine_problems(where: str, engines: t.Mapping[str, t.Any], name: t.Any) -> list[str]:
    problems = []
    for key, value in engines.items():
        if key not in _engines.ENGINES:
            problems.append(f"{where}, 'engines': {_unknown_engine(key)}")
        elif not isinstance(value, dict):
            problems.append(f"{where}, 'engines': '{key}' must be a mapping with at least 'image'.")
        else:
            problems += _check(f"{where}, 'engines', '{key}'", value, _ENGINE)
    if isinstance(name, str) and name not in _engines.ENGINES:
        problems.append(f"The engine {_unknown_engine(name)}")
    elif isinstance(name, str) and engines and name not in engines and not problems:
        problems.append(f"{where} has nothing for the engine '{name}': choose {' or '.join(sorted(engines))}, or add it.")
    return problems


def _secret_problems(where: str, engines: t.Mapping[str, t.Any]) -> list[str]:
    """A recipe lies about in clear text, and what it says is shown in results."""
    return [
        f"{where}, 'engines', '{name}': the secret '{variable}' can't stand in a recipe: set it in tp_launch_environment, out of a vault."
        for name, chosen in engines.items()
        if isinstance(chosen, dict) and isinstance(chosen.get("environment"), dict)
        for variable in chosen["environment"]
        if is_secret(str(variable))
    ]


def _environment_problems(where: str, environment: t.Mapping[str, t.Any]) -> list[str]:
    """YAML's C(NAME:) without a value is null, which would reach the engine as the text None."""
    return [
        f"{where}, 'environment': '{key}' must be one text or number, not {'empty' if value is None else 'a ' + type(value).__name__}: put it into quotes."
        for key, value in environment.items()
        if not isinstance(value, (str, int, float))
    ]


def _unknown_engine(name: str) -> str:
    return f"'{name}' is not known: choose {' or '.join(sorted(_engines.ENGINES))}."


def _value_problems(where: str, recipe: Recipe) -> list[str]:
    problems = []
    if not _NAME.fullmatch(recipe.name):
        problems.append(f"{where}: the name '{recipe.name}' won't do for a container: use lower-case letters, digits, '.', '_' and '-', at most 63 of them.")
    if not recipe.model_path.startswith("/"):
        problems.append(f"{where}: the model's path '{recipe.model_path}' must be absolute, the same on every node.")
    elif ":" in recipe.model_path:
        problems.append(f"{where}: Docker can't mount the model's path '{recipe.model_path}', for its ':': give the folder another name.")
    for key in ("port", "rendezvous_port"):
        number = getattr(recipe, key)
        if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= 65535:
            problems.append(f"{where}: '{key}' must be a number from 1 to 65535, not {number!r}.")
    if recipe.port == recipe.rendezvous_port:
        problems.append(f"{where}: port and rendezvous_port are both {recipe.port}: give them different numbers.")
    for key in ("shm_size", "memory"):
        size = getattr(recipe, key)
        if size is not None and not _SIZE.fullmatch(size):
            problems.append(f"{where}, 'container': '{key}' must be a size such as 8g or 512m, not {size!r}.")
    if recipe.replicas > 1 and len(recipe.name) > 58:
        problems.append(f"{where}: the name '{recipe.name}' leaves no room for the replicas' -r0, -r1: use at most 58 characters.")
    if recipe.executor not in recipe.engine.launch.executors:
        known = " or ".join(recipe.engine.launch.executors)
        problems.append(f"{where}: {recipe.engine.title} has no executor '{recipe.executor}': take {known}, or leave it out.")
    elif not problems:
        problems += [f"{where}: {sentence}" for sentence in _joining.recipe_problems(recipe)]
    for key in ("tensor_parallel_size", "pipeline_parallel_size", "replicas", "ready_timeout", "max_tokens", "proof_timeout"):
        if getattr(recipe, key) < 1:
            problems.append(f"{where}: '{key}' must be 1 or more, not {getattr(recipe, key)}.")
    for key in recipe.arguments:
        if not isinstance(key, str) or key.startswith("-"):
            problems.append(f"{where}, 'arguments': write the option '{key}' without its leading dashes.")
        elif key in recipe.engine.launch.secret:
            problems.append(
                f"{where}, 'arguments': '{key}' would show its secret in every list of processes: take it out, or give the secret "
                "as a variable by tp_launch_environment where the engine reads one."
            )
        elif key in recipe.engine.launch.owned:
            problems.append(
                f"{where}, 'arguments': '{key}' is set from the plan: take it out (the recipe has its own keys for the "
                "model, the ports and the parallel sizes)."
            )
    for key in recipe.environment:
        if not isinstance(key, str) or not _VARIABLE.fullmatch(key):
            problems.append(f"{where}, 'environment': '{key}' is no name for a variable.")
    if recipe.router not in ("", "none", *KINDS):
        problems.append(f"{where}: there is no router '{recipe.router}': take {' or '.join(KINDS)}, or none.")
    return problems


def _text(value: t.Any) -> str:
    """A YAML value as an environment variable's: true and 1.0 as people mean them."""
    if isinstance(value, bool):
        return "1" if value else "0"
    return str(value)
