# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""vLLM over the real Ray on the lab's two nodes, from nothing to a completion, and back after a loss.

It ends nowhere short of that: what vLLM's CPU build lacks for Ray stands in two of its own plugin hooks, in the image (engine/README.md). The tests
build on each other.
"""

from __future__ import annotations

import json
import pathlib
import re
import typing as t

import play
import pytest
import yaml

pytestmark = [pytest.mark.lab, pytest.mark.engine]

RECIPE = play.ROOT / "tests" / "lab" / "recipes" / "tiny-qwen3-moe.yml"
DEPLOY = "playbooks/deploy.yml"
NAME = "tiny-ray"
IMAGE = "sparkstack/vllm-ray:0.32.0"
TOKEN = "a-token-of-the-lab-with-32-characters-or-more"
RANKS = {"spark1": f"{NAME}-rank0", "spark2": f"{NAME}-rank1"}


def recipe_file(folder: pathlib.Path, engine: str = "vllm", **changes: t.Any) -> str:
    """The lab's recipe over Ray."""
    data = yaml.safe_load(RECIPE.read_text())
    data["engines"]["vllm"]["image"] = changes.pop("image", IMAGE)
    data.update({"name": NAME, "engine": engine, "executor": "ray", **changes})
    path = folder / "recipe.yml"
    path.write_text(yaml.safe_dump(data))
    return str(path)


@pytest.fixture(scope="module", name="recipe")
def _recipe(tmp_path_factory: pytest.TempPathFactory) -> t.Iterator[str]:
    """The recipe, on nodes where nothing runs; the image is at the head only."""
    play.lab("up")
    play.install_engine("--with", "vllm-ray")
    play.empty(*RANKS)
    play.node("spark2", f"docker rmi -f {IMAGE} >/dev/null 2>&1 || true")
    yield recipe_file(tmp_path_factory.mktemp("ray"))
    play.empty(*RANKS)


def ranks() -> dict[str, dict[str, t.Any]]:
    """Its containers by node."""
    return {name: play.containers(name)[rank] for name, rank in RANKS.items()}


def deployed(recipe: str, *arguments: str, **extra: t.Any) -> play.Play:
    """A run of deploy with Ray's token."""
    return play.playbook(DEPLOY, *arguments, extra={"tp_launch_recipe": recipe, "tp_launch_environment": {"RAY_AUTH_TOKEN": TOKEN}, **extra})


def refused(run: play.Play, sentence: str) -> None:
    """The run failed with that sentence, and had changed nothing until then."""
    assert run.code != 0 and sentence in run.text and set(run.changed.values()) <= {0}, run.output


def test_what_can_not_be_over_ray_is_refused(tmp_path: pathlib.Path) -> None:
    play.lab("up")
    play.install_engine()
    run = play.playbook(DEPLOY, extra={"tp_launch_recipe": recipe_file(tmp_path, engine="sglang")})
    refused(run, "SGLang has no executor 'ray': take mp")
    run = play.playbook(DEPLOY, extra={"tp_launch_recipe": recipe_file(tmp_path, container={"shm_size": "512m"})})
    refused(run, "shm_size is 512m, but Ray needs 768m of shared memory: raise it.")
    run = play.playbook(DEPLOY, extra={"tp_launch_recipe": recipe_file(tmp_path, image="sparkstack/vllm-cpu:0.32.0")})
    refused(run, "The image sparkstack/vllm-cpu:0.32.0 has no Ray (Python's package ray): take one that has it")


@pytest.mark.long
def test_a_port_of_rays_that_another_has_is_refused(recipe: str) -> None:
    play.node("spark2", "systemd-run --quiet --unit lab-taker python3 -m http.server --bind 127.0.0.1 29505")
    try:
        run = deployed(recipe)
    finally:
        play.node("spark2", "systemctl stop lab-taker")
    refused(run, "Port 29505 on spark2 is taken by process")
    assert "stop it, or set another rendezvous_port." in run.text


@pytest.mark.long
def test_it_serves_over_ray(recipe: str) -> None:
    run = deployed(recipe, "-vvv", "--diff")
    assert run.code == 0, run.output[-5000:]
    assert re.search(r"answered \"The capital of France is\" with \".*\": 16 tokens in \d", run.text), run.output[-5000:]
    assert "start all ranks, head first" in run.text and "Ray on the ports 29501 to 29507 of each node: an object store of 256 MiB" in run.text
    assert "whoever reaches those ports" not in run.text
    found = ranks()
    assert found["spark1"]["started"] < found["spark2"]["started"]
    # One container a rank, with no more rights than without Ray.
    for name, rank in RANKS.items():
        assert list(play.containers(name)) == [rank]
        host = found[name]["host"]
        assert host["CapDrop"] == ["ALL"] and not host["CapAdd"] and not host["Privileged"] and host["RestartPolicy"]["Name"] == "no"
    log = play.node("spark1", f"docker logs {RANKS['spark1']} 2>&1")
    assert "Ray launcher: all of 192.168.200.11, 192.168.200.12 have come" in log
    assert re.search(r"\(RayWorkerProc pid=\d+, ip=192\.168\.200\.12\) .*world_size=2 rank=1 .*tcp://192\.168\.200\.11:\d+ backend=gloo", log), log
    # Each rank has its own node's address, whatever the head's environment is.
    own = "for p in /proc/[0-9]*; do grep -qs RayWorkerP $p/comm && tr '\\0' '\\n' < $p/environ; done; true"
    for name, address in (("spark1", "192.168.200.11"), ("spark2", "192.168.200.12")):
        assert f"VLLM_HOST_IP={address}\n" in play.node(name, own)


@pytest.mark.long
def test_it_listens_where_it_was_told_to_and_its_token_shows_up_nowhere(recipe: str) -> None:
    for name, first in (("spark1", 29501), ("spark2", 29502)):
        listening = {int(port) for port in re.findall(r":(295\d\d) ", play.node(name, "ss -Hltn"))}
        assert first in listening and listening <= set(range(first, 29508))
        # Ray's own ports, where it is left alone: GCS, its clients' server, the dashboard, its agent, the monitor.
        assert not re.search(r":(6379|10001|8265|52365|44217) ", play.node(name, "ss -Hltn"))
        inspected = play.node(name, f"docker inspect {RANKS[name]}")
        assert TOKEN not in inspected + play.node(name, f"docker logs {RANKS[name]} 2>&1; ps -eo args")
    outside = 'python3 -c \'import ray; ray.init(address="192.168.200.11:29501", logging_level="ERROR")\' 2>&1 | tail -n 3'
    said = play.node("spark2", f"docker run --rm --network host --entrypoint sh {IMAGE} -c {json.dumps(outside)} || true")
    assert "Authentication" in said or "Failed to connect" in said, said


@pytest.mark.long
def test_a_second_run_changes_nothing(recipe: str) -> None:
    before = {name: rank["id"] + rank["started"] for name, rank in ranks().items()}
    run = deployed(recipe)
    assert run.code == 0 and set(run.changed.values()) == {0}, run.output
    assert {name: rank["id"] + rank["started"] for name, rank in ranks().items()} == before


@pytest.mark.long
def test_a_killed_worker_is_told_of_and_the_next_run_brings_it_back(recipe: str, tmp_path: pathlib.Path) -> None:
    before = ranks()
    play.node("spark2", f"docker kill --signal KILL {RANKS['spark2']}")
    told = tmp_path / "verdict.json"
    run = play.playbook("playbooks/diagnose.yml", extra={"deployment": NAME, "json": str(told)})
    verdict = json.loads(told.read_text())
    assert (verdict["verdict"], verdict["culprit"]) == ("failed", "spark2"), run.output
    assert verdict["cause"] in ("killed", "worker_died"), run.output
    run = deployed(recipe)
    assert run.code == 0 and "answered" in run.text, run.output[-5000:]
    after = ranks()
    assert all(after[name]["id"] != before[name]["id"] and after[name]["running"] for name in RANKS)
    assert len({rank["labels"]["sparkstack.launch_id"] for rank in after.values()}) == 1


@pytest.mark.long
def test_stop_leaves_no_process_of_rays(recipe: str) -> None:
    run = play.playbook("playbooks/stop.yml", extra={"deployment": NAME})
    assert run.code == 0, run.output
    for name in RANKS:
        assert not play.containers(name) and not re.search(r"raylet|gcs_server", play.node(name, "ps -eo args | grep -v grep"))
