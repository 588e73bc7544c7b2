# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Every command of the guides, played on the lab as it is written there: only the inventory names other nodes.

The recipe that comes along is served for real under its name, but with the lab's model and engine. The steps build on each other, in the order in
which tests/guides.py has them: two launches do for all.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import typing as t
import urllib.error
import urllib.request

import play
import pytest
import yaml
from cloning import Clone

sys.path.insert(0, str(play.ROOT / "tests"))

import guides  # noqa: E402  (the path above must come first)

pytestmark = [pytest.mark.lab, pytest.mark.engine, pytest.mark.long]

MODELS = "http://10.77.0.11:30000/v1/models"
IMAGE = "sparkstack/vllm-cpu:0.32.0"
TOUCHED = re.compile(r"`([^`]+)`")


@pytest.fixture(scope="module", name="clone")
def _clone(tmp_path_factory: pytest.TempPathFactory) -> t.Iterator[Clone]:
    """What a reader of the guides has: the clone, a recipe, a model and an image of that name on the head, two logs, and secrets."""
    play.lab("up")
    play.install_engine()
    play.empty(*play.RANKS)
    for name in play.RANKS:
        play.node(name, "rm -rf /var/lib/sparkstack /srv/models/My-Model; cp -r /srv/models/tiny-qwen3-moe /srv/models/My-Model")
    play.node("spark1", f"docker tag {IMAGE} vllm/vllm-openai:v0.33.0")
    clone = Clone(tmp_path_factory.mktemp("clone"), tmp_path_factory.mktemp("home"))
    recipe = yaml.safe_load((play.ROOT / "tests/lab/recipes/tiny-qwen3-moe.yml").read_text())
    recipe.update(name=guides.DEPLOYMENT, port=30000)
    text = yaml.safe_dump(recipe)
    (clone.folder / "my-recipe.yml").write_text(text)
    # The guides name the recipe that comes along: one in the user's folder comes before it.
    (clone.folder / f"{guides.DEPLOYMENT}.yml").write_text(text)
    clone.inventory.write_text(re.sub(r"^tp_launch_recipe=.*$", f"tp_launch_recipe={guides.DEPLOYMENT}", clone.inventory.read_text(), flags=re.MULTILINE))
    for name in ("head.log", "worker.log"):
        shutil.copy(play.ROOT / "tests/fixtures/logs/vllm-cpu/kv-cache-too-big" / name, clone.folder / name)
    (clone.folder / "secrets.yml").write_text(next(body for body in guides.blocks("security", "yaml") if "tp_launch_api_key" in body))
    (clone.folder / "vault-password").write_text("correct horse\n")
    yield clone
    play.empty(*play.RANKS)
    for name in play.RANKS:
        play.node(name, "rm -rf /srv/models/My-Model; docker image rm vllm/vllm-openai:v0.33.0 >/dev/null 2>&1; true")


@pytest.fixture(scope="module", name="before")
def _before(clone: Clone) -> dict[str, list[str]]:
    """What other tests may have left on the nodes."""
    return {name: ours(name) for name in play.RANKS}


def status(url: str, key: str = "") -> int:
    """The status with which a client is answered."""
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {key}"} if key else {})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def ours(name: str) -> list[str]:
    """The paths on a node that have the collection's name, outside of what Docker keeps for itself."""
    idle = " -o ".join(f"-path {path}" for path in ("/var/lib/docker", "/var/lib/containerd", "/run/docker", "/run/containerd"))
    return play.node(name, f"find /etc /run /usr/local /var /srv \\( {idle} \\) -prune -o -name '*sparkstack*' -print").split()


@pytest.mark.parametrize("step", guides.STEPS, ids=lambda step: f"{step.pages.split()[0]}: {step.command[:60]}")
@pytest.mark.usefixtures("before")
def test_a_command_of_the_guides(clone: Clone, step: guides.Step) -> None:
    done = clone.type(step.command)
    run = play.read(done.returncode, done.stdout + done.stderr, 0.0)
    assert run.code == step.code and step.says in run.text, f"{step.command}\n{run.output}"
    if step.changes is not None:
        assert any(run.changed.values()) is step.changes, f"{step.command}\n{run.output}"
    if "json=" in step.command:
        assert json.loads((clone.folder / re.findall(r"json=(\S+)", step.command)[0]).read_text())
    if "tp_launch_report=" in step.command:
        assert guides.DEPLOYMENT in (clone.folder / "launch.html").read_text()
    if "bundle=" in step.command:
        assert (clone.folder / "support.tar.gz").stat().st_mode & 0o777 == 0o600
    if "encrypt" in step.command:
        assert "a-long-random-text" not in (clone.folder / "secrets.yml").read_text() and status(MODELS) == 200
    if "@secrets.yml" in step.command:
        # The key is asked for, and stands nowhere.
        assert status(MODELS) == 401 and status(MODELS, "a-long-random-text") == 200
        assert "a-long-random-text" not in run.output
        seen = play.node(
            "spark1", f"docker inspect {guides.DEPLOYMENT}-rank0; ps -eo args; find /var/lib/sparkstack/deployments -name '*.json' -exec cat {{}} +"
        )
        assert "a-long-random-text" not in seen and "tp_launch_api_key" not in seen
    if "builtin.find" in step.command:
        # Nothing of ours is on a node that the guide does not tell of.
        told = [path for path in TOUCHED.findall(guides.text("nodes")) if path.startswith("/")]
        for name in play.RANKS:
            untold = [path for path in ours(name) if not any(f"{path}/".startswith(f"{one}/") or one.startswith(f"{path}/") for one in told)]
            assert not untold, f"{name}: {untold}"


def test_what_the_guide_takes_away_is_gone(before: dict[str, list[str]]) -> None:
    for name in play.RANKS:
        left = [path for path in ours(name) if path not in before[name] and not path.startswith("/run/systemd/system/sparkstack-guard@")]
        assert not left and not play.containers(name), f"{name}: {left}"
