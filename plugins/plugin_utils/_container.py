# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is private to the collection: it can change at any time.

"""One rank's container: what community.docker is asked for, and the hash by which a running one is known again."""

from __future__ import annotations

import functools
import hashlib
import json
import shlex
import typing as t
from dataclasses import dataclass, field

from ansible_collections.sparkstack.inference.plugins.module_utils._engines._argv import CACHE
from ansible_collections.sparkstack.inference.plugins.module_utils._engines._types import Engine, RankSpec
from ansible_collections.sparkstack.inference.plugins.module_utils._ranks import LABEL
from ansible_collections.sparkstack.inference.plugins.module_utils._secrets import FOLDER as SECRETS
from ansible_collections.sparkstack.inference.plugins.module_utils._secrets import is_secret

# Kernels that were compiled once outlive the container on the node; otherwise each start compiles them again.
_CACHES = {
    "XDG_CACHE_HOME": CACHE,
    "TORCHINDUCTOR_CACHE_DIR": CACHE + "/torchinductor",
    "TRITON_CACHE_DIR": CACHE + "/triton",
    "FLASHINFER_WORKSPACE_BASE": CACHE + "/flashinfer",
    "CUDA_CACHE_PATH": CACHE + "/cuda",
}
# The model is a folder on the node: nothing is to be asked of a hub while the ranks wait for each other.
_OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}

_INSIDE = "/run/secrets/sparkstack.env"
# A secret in the container's own environment would stand in Docker's inspection, and so in the answer of every module that
# returns one and in a debug log of the connection. The shell reads them from a file, and is replaced by the engine.
_WITH_SECRETS = f'set -a; . {_INSIDE}; set +a; exec "$@"'


@dataclass(frozen=True)
class Request:
    """What is to run as one rank. Sizes are in Docker's notation."""

    deployment: str
    engine: Engine
    image: str
    rank: RankSpec
    model_mount: str
    """The folder on the node that is mounted at the same path, read-only; the model's path is it or lies in it."""
    environment: dict[str, str] = field(default_factory=dict)
    """The node's NCCL and Gloo variables, and the recipe's over them."""
    image_identity: str | None = None
    """The image's content; the hash changes with it, though the tag may stay."""
    gpus: bool = True
    infiniband: bool = False
    shm_size: str = "8g"
    memory: str | None = None
    cap_add: tuple[str, ...] = ()
    cache_dir: str = "/var/cache/sparkstack"
    api_key_fingerprint: str | None = None
    planned: tuple[str, ...] | None = None
    """Which of the arguments are not the recipe's but computed; None where nothing was to be computed. No part of the content."""


def name(deployment: str, rank: int) -> str:
    """The name of a rank's container."""
    return f"{deployment}-rank{rank}"


def taken(container: str, image: str, where: str) -> str:
    """The sentence for a rank's name that somebody else's container has, which is not removed."""
    return f"The name {container}{where} belongs to a container of {image} that this collection did not start: remove or rename it first, or rename the recipe."


@functools.lru_cache(maxsize=64)
def fingerprint(secret: str | None, salt: str) -> str | None:
    """What may be stored of a secret to see that it changed; slow on purpose, so that it can't be guessed back.

    :param salt: what it is for, such as the deployment's name.
    """
    if not secret:
        return None
    return hashlib.pbkdf2_hmac("sha256", secret.encode(), salt.encode(), 200_000).hex()[:16]


def secrets(request: Request, api_key: str | None = None) -> dict[str, str]:
    """The variables whose values must be seen nowhere but in the engine's own environment."""
    found = {key: value for key, value in request.environment.items() if is_secret(key)}
    if api_key:
        found[request.engine.launch.api_key_variable] = api_key
    return found


def secrets_file(request: Request) -> str:
    """Where a rank's secret variables are kept on its node."""
    return f"{SECRETS}/{name(request.deployment, request.rank.rank)}.env"


def secrets_text(found: t.Mapping[str, str]) -> str:
    """Secret variables as a shell reads them."""
    return "".join(f"{key}={shlex.quote(value)}\n" for key, value in sorted(found.items()))


def options(request: Request) -> dict[str, t.Any]:
    """The options of M(community.docker.docker_container), less its name, state and labels. No secret is among them."""
    launch = request.engine.launch
    command = launch.command(request.rank)
    environment = {**_CACHES, **_OFFLINE, **launch.environment(request.rank), **request.environment}
    wanted: dict[str, t.Any] = {
        "image": request.image,
        "entrypoint": command[:1],
        "command": command[1:],
        "env": {key: value for key, value in environment.items() if not is_secret(key)},
        # Ranks find each other on the fabric's own addresses, RDMA wants the node's network.
        "network_mode": "host",
        # Counts against memory that CPU and GPU share, and 64 GB of it have brought nodes down.
        "shm_size": request.shm_size,
        "ipc_mode": "private",
        # RDMA pins memory: "ibv_reg_mr .. Cannot allocate memory" under the usual limit of 8 MiB.
        "ulimits": ["memlock:-1:-1", "stack:67108864:67108864"],
        "volumes": [
            f"{request.model_mount}:{request.model_mount}:ro",
            f"{request.cache_dir}/{request.engine.name}:{CACHE}:rw",
        ],
        "cap_drop": ["ALL"],
        "capabilities": list(request.cap_add),
        "security_opts": ["no-new-privileges"],
        # An init as PID 1 hands signals on and takes in orphans. As PID 1 itself SGLang ends with 0 after a crash.
        "init": True,
        # One rank alone must never come back: it would wait for, or steal, a peer of another launch.
        "restart_policy": "no",
        "log_driver": "json-file",
        "log_options": {"max-size": "64m", "max-file": "3"},
        "working_dir": "/",
    }
    if secrets(request) or request.rank.with_api_key:
        wanted["entrypoint"], wanted["command"] = ["/bin/sh", "-c", _WITH_SECRETS, "sh"], command
        wanted["volumes"].append(f"{secrets_file(request)}:{_INSIDE}:ro")
    if request.memory:
        wanted["memory"] = request.memory
        wanted["memory_swap"] = request.memory
    if request.gpus:
        wanted["device_requests"] = [{"count": -1, "capabilities": [["gpu"]]}]
    if request.infiniband:
        wanted["devices"] = ["/dev/infiniband:/dev/infiniband"]
    return wanted


def public(request: Request) -> dict[str, t.Any]:
    """The container's options as they may be shown and stored: values of secret variables stand as a hash."""
    shown = options(request)
    # How the secrets get in is no difference that a reader looks for.
    del shown["entrypoint"]
    shown["command"] = request.engine.launch.command(request.rank)
    shown["volumes"] = [volume for volume in shown["volumes"] if not volume.startswith(SECRETS)]
    shown["secrets"] = secrets_file(request) if secrets(request) or request.rank.with_api_key else None
    for key, value in secrets(request).items():
        # A label goes into support bundles, and a password is no random text: a fast hash of it could be guessed back.
        shown["env"][key] = f"secret:{fingerprint(value, f'{request.deployment}/{key}') or 'empty'}"
    shown["env"] = dict(sorted(shown["env"].items()))
    shown["image_identity"] = request.image_identity
    shown["api_key"] = request.api_key_fingerprint
    return shown


def spec_hash(shown: t.Mapping[str, t.Any]) -> str:
    """16 hexadecimal digits over what :func:`public` gave; the launch's id has no part in it, and neither has the order of the arguments."""
    alike = {**shown, "command": _by_option(shown["command"])} if shown.get("command") else shown
    return hashlib.sha256(json.dumps(alike, sort_keys=True).encode()).hexdigest()[:16]


def planned(request: Request) -> dict[str, t.Any] | None:
    """The arguments that were computed, with their values; None where nothing was to be computed."""
    return None if request.planned is None else {name: request.rank.arguments.get(name) for name in request.planned}


def labels(request: Request, launch_id: str) -> dict[str, str]:
    """The labels by which the next run knows the container again."""
    shown = public(request)
    values = {
        "deployment": request.deployment,
        "engine": request.engine.name,
        "model": request.rank.served_name,
        "rank": str(request.rank.rank),
        "ranks": str(request.rank.ranks),
        "port": str(request.rank.port),
        "listen_address": request.rank.listen_address,
        "launch_id": launch_id,
        "spec_hash": spec_hash(shown),
        "spec": json.dumps(shown, sort_keys=True),
    }
    computed = planned(request)
    if computed is not None:
        values["planned"] = json.dumps(computed, sort_keys=True)
    return {LABEL + key: value for key, value in values.items()}


def differences(before: t.Any, after: t.Any, where: str = "") -> list[str]:
    """What differs between two specs, one C(field: before -> after) a line.

    A command is compared option by option, since C(--max-model-len: 512 -> 1024) is what a reader looks for.
    """
    if where == "command" and isinstance(before, list) and isinstance(after, list):
        before, after = _by_option(before), _by_option(after)
    if isinstance(before, dict) and isinstance(after, dict):
        found = []
        for key in sorted(set(before) | set(after)):
            if before.get(key) != after.get(key):
                path = key if not where or where == "command" else f"{where}.{key}"
                found += differences(before.get(key), after.get(key), path)
        return found
    if before == after:
        return []
    return [f"{where}: {_word(before)} -> {_word(after)}"]


def _by_option(argv: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    current = "command"
    for word in argv:
        if word.startswith("--"):
            current = word
            found[current] = ""
        else:
            found[current] = f"{found.get(current, '')} {word}".strip()
    return {key: value or "set" for key, value in found.items()}


def _word(value: t.Any) -> str:
    if value in (None, "", [], {}):
        return "none"
    return value if isinstance(value, str) else json.dumps(value)
