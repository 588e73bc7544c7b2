# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The deployment that all faults of the matrix are made on, and what is wanted of it now."""

from __future__ import annotations

import concurrent.futures
import contextlib
import copy
import json
import pathlib
import typing as t

import play
import yaml

from . import deploying, makers
from .engines import HEAD, NODES, VLLM, WORKER
from .launch import Missed

ORIGINAL = "sparklab/vllm-cpu:original"
"""What keeps the engine's image while its own name is moved."""
UPGRADE = "sparklab/vllm-cpu:upgrade"


class Scene:
    """The recipe as it is now; a fault may change it, and so do rollbacks."""

    def __init__(self) -> None:
        self.data: dict[str, t.Any] = VLLM.data
        self.previous: dict[str, t.Any] | None = None
        """The recipe that served before and was something else."""
        self.extra: dict[str, t.Any] = {}
        self.image = VLLM.image
        self.left: dict[str, str] = {}
        """The marks of what the last row left serving, when it was right."""

    # What is played.

    def values(self) -> dict[str, t.Any]:
        """The extra variables of a run."""
        deploying.FOLDER.mkdir(parents=True, exist_ok=True)
        path = deploying.FOLDER / "recipe.yml"
        path.write_text(yaml.safe_dump(self.data, sort_keys=False))
        return deploying.variables(path, self.extra)

    def deploy(self, *arguments: str) -> play.Play:
        """One run."""
        return play.playbook(deploying.DEPLOY, *arguments, extra=self.values())

    def argument(self, name: str, value: t.Any) -> None:
        """The recipe gets another value for an argument; what it was is what can be gone back to."""
        self.previous = copy.deepcopy(self.data)
        self.data["engines"]["vllm"]["arguments"][name] = value

    def other_length(self) -> tuple[int, int]:
        """Another context length than now: the argument that the rows change. What it was, and is."""
        before = self.data["engines"]["vllm"]["arguments"]["max-model-len"]
        after = 384 if before == 512 else 512
        self.argument("max-model-len", after)
        return before, after

    @contextlib.contextmanager
    def unchanged(self) -> t.Iterator[None]:
        """What is done to the recipe inside is undone."""
        kept = copy.deepcopy(self.data), copy.deepcopy(self.previous), dict(self.extra)
        try:
            yield
        finally:
            self.data, self.previous, self.extra = kept

    # What is there.

    def marks(self) -> dict[str, str]:
        """Of each rank what another start changes; a rank that is not there has none."""
        return _inspect_all("{{.Id}} {{.State.StartedAt}}")

    def launch_id(self) -> str:
        """Of the head's rank."""
        return _inspect(HEAD, '{{index .Config.Labels "sparkstack.launch_id"}}')

    def state(self) -> str:
        """The ranks, and whether somebody works on them, as short as a table's cell."""
        words = []
        for rank, found in enumerate(_inspect_all("{{.State.Status}} {{.State.ExitCode}}").values()):
            found = found or "missing"
            words.append(f"rank {rank} {'runs' if found.startswith('running') else found.replace('exited', 'ended')}")
        if self.ledger("lock.json"):
            words.append("locked")
        return ", ".join(words)

    def ledger(self, name: str) -> dict[str, t.Any]:
        """A file of the head's ledger, or nothing."""
        text = play.node(HEAD, f"cat /var/lib/sparkstack/deployments/{play.DEPLOYMENT}/{name} 2>/dev/null || true")
        return dict(json.loads(text)) if text.strip() else {}

    def answers(self, seconds: int = 30) -> bool:
        """Whether the head answers a real request, asked without the collection."""
        body = json.dumps({"model": self.data["model"]["served_name"], "prompt": "Two sparks", "max_tokens": 4, "temperature": 0})
        url = f"http://127.0.0.1:{self.data['port']}/v1/completions"
        said = play.node(HEAD, f"curl -s --max-time {seconds} -H 'Content-Type: application/json' -d '{body}' {url} || true")
        with contextlib.suppress(ValueError):
            return bool(json.loads(said)["usage"]["completion_tokens"])
        return False

    def holds(self, node: str) -> str:
        """The id of the image that a node has under the recipe's name, or nothing."""
        return play.node(node, f"docker image inspect --format '{{{{.Id}}}}' {self.image} 2>/dev/null || true").strip()

    # Before and after the rows.

    def ensure(self) -> None:
        """It serves: a row begins with that, whatever was here before."""
        for node in NODES:
            play.node(node, f"docker image inspect --format . {ORIGINAL} >/dev/null 2>&1 || docker tag {VLLM.image} {ORIGINAL}")
        if self.left and self.marks() == self.left and self.answers():
            return
        # Whoever had the nodes before may have left a lock, too.
        run = play.playbook(deploying.DEPLOY, extra={**self.values(), "tp_launch_break_lock": True})
        if run.code or not self.answers():
            raise Missed(f"the deployment can't be brought to serve: {deploying.seen(run, 'ensure')}")

    def leave(self) -> None:
        """The nodes are as they were found, apart from a deployment that may serve."""
        if self.image != VLLM.image:
            play.empty(*NODES)
        for node in NODES:
            play.lab("rejoin", node)
            play.lab("rate", node, "off")
            makers.empty_disk(node)
            play.node(
                node,
                f"if docker image inspect {ORIGINAL} >/dev/null 2>&1; then docker tag {ORIGINAL} {VLLM.image}; docker rmi {ORIGINAL} >/dev/null; fi;"
                f" docker rmi {UPGRADE} >/dev/null 2>&1; docker image prune --force --filter label={makers.MADE} >/dev/null",
            )
        makers.mend(WORKER, shard(self))


def shard(scene: Scene) -> str:
    """The file of the model that is damaged."""
    return str(pathlib.PurePosixPath(scene.data["model"]["path"]) / "model-00002-of-00003.safetensors")


def _inspect(node: str, template: str) -> str:
    return play.node(node, f"docker inspect --format '{template}' {play.RANKS[node]} 2>/dev/null || true").strip()


def _inspect_all(template: str) -> dict[str, str]:
    with concurrent.futures.ThreadPoolExecutor() as pool:
        return dict(zip(NODES, pool.map(lambda node: _inspect(node, template), NODES), strict=True))


def meanwhile(call: t.Callable[[], t.Any]) -> concurrent.futures.Future[t.Any]:
    """Something that goes on while a fault is made."""
    pool = concurrent.futures.ThreadPoolExecutor(1)
    future = pool.submit(call)
    pool.shutdown(wait=False)
    return future
