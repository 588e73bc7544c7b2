# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Other shapes than tensor parallel over two nodes, on four: replicas, deployments beside each other, and pipelines of the real engine.

The tests of each part build on each other: what one leaves is the next one's beginning.
"""

from __future__ import annotations

import copy
import re
import typing as t

import many
import play
import pytest
from faultlab.engines import SGLANG, VLLM

pytestmark = [pytest.mark.lab, pytest.mark.engine, pytest.mark.long]

NODES = many.names(4)


@pytest.fixture(scope="module", autouse=True)
def four() -> t.Iterator[None]:
    with many.nodes(4, "5G"):
        yield


def rehearsal(**changes: t.Any) -> dict[str, t.Any]:
    """The rehearsal's recipe for pairs of nodes, with these keys."""
    return {**many.over(SGLANG, 2, REHEARSAL_PACE="0.2"), "name": "shape", **changes}


def deploy(recipe: t.Mapping[str, t.Any], *options: str, code: int = 0, **extra: t.Any) -> play.Play:
    run = play.playbook("playbooks/deploy.yml", *options, extra={"tp_launch_recipe": recipe, "tp_launch_history_dir": "", **extra})
    assert run.code == code, run.output
    return run


def found() -> dict[str, dict[str, t.Any]]:
    """By node, the names of the containers that run there to when they were started."""
    return {node: {name: one["started"] for name, one in play.containers(node).items() if one["running"]} for node in NODES}


def asked(node: str, port: int, model: str = "tiny") -> bool:
    """Whether a head answers a completion."""
    body = f'{{"model": "{model}", "prompt": "a", "max_tokens": 2}}'
    return '"text"' in play.node(
        node, f"curl -s -m 20 -H 'Content-Type: application/json' -d '{body}' http://127.0.0.1:{port}/v1/completions || true"
    )  # fmt: skip


@pytest.mark.parametrize(
    "changes, sentence",
    [
        (
            {"tensor_parallel_size": 3, "pipeline_parallel_size": 2},
            "tensor_parallel_size is 3, pipeline_parallel_size 2, but there are 4 nodes with 1 GPU",
        ),
        ({"replicas": 3}, "tensor_parallel_size is 2, replicas 3, but there are 4 nodes with 1 GPU each: possible are tensor_parallel_size 4, "),
        ({"executor": "slurm"}, "SGLang has no executor 'slurm'"),
        ({"nodes": ["spark1", "spark9"]}, "The node 'spark9' is neither in the inventory's group 'head' nor in 'workers': do you mean 'spark1'?"),
        # These need the model's configuration.
        ({"tensor_parallel_size": 1, "pipeline_parallel_size": 4, "expert_parallel": True}, "expert_parallel is set, but the model has no experts"),
    ],
)
def test_what_can_not_be_is_refused_and_nothing_is_touched(changes: dict[str, t.Any], sentence: str) -> None:
    run = deploy(rehearsal(**changes), code=2)
    assert sentence in run.text, run.output
    assert found() == {node: {} for node in NODES}


def test_two_replicas_start_in_one_run_and_each_answers() -> None:
    run = deploy(rehearsal(replicas=2))
    assert {node: list(names) for node, names in found().items()} == {
        "spark1": ["shape-r0-rank0"],
        "spark2": ["shape-r0-rank1"],
        "spark3": ["shape-r1-rank0"],
        "spark4": ["shape-r1-rank1"],
    }
    for address in ("10.77.0.11", "10.77.0.13"):
        assert f"tiny at http://{address}:30000/v1 answered" in run.text, run.output
    assert asked("spark1", 30000) and asked("spark3", 30000)
    kept = [play.node(node, "ls /var/lib/sparkstack/deployments").split() for node in NODES]
    assert kept == [["shape-r0"], ["shape-r0"], ["shape-r1"], ["shape-r1"]]


def test_a_second_run_of_replicas_changes_nothing() -> None:
    before = found()
    assert deploy(rehearsal(replicas=2)).changed == dict.fromkeys(NODES, 0)
    assert found() == before


def test_a_killed_replica_is_started_again_and_the_other_never_stops() -> None:
    before = found()
    play.node("spark4", "docker kill shape-r1-rank1")
    assert asked("spark1", 30000)
    run = deploy(rehearsal(replicas=2))
    after = found()
    assert {node: after[node] for node in NODES[:2]} == {node: before[node] for node in NODES[:2]}
    assert {node: list(names) for node, names in after.items()} == {node: list(names) for node, names in before.items()}
    assert after["spark3"] != before["spark3"] and after["spark4"] != before["spark4"]
    assert re.search(r"rank 1 on spark4 has ended \(exit code 137\)", run.text) and asked("spark1", 30000) and asked("spark3", 30000)


def test_a_replica_that_can_not_start_leaves_the_other_serving() -> None:
    before = found()
    play.node("spark4", "docker rm -f shape-r1-rank1; docker run -d --name shape-r1-rank1 --entrypoint sleep sparkstack/sglang-rehearsal:0.5.17 600")
    run = deploy(rehearsal(replicas=2), code=2)
    assert "The name shape-r1-rank1 on spark4 belongs to a container of" in run.text
    play.node("spark4", "docker rm -f shape-r1-rank1")
    assert found()["spark1"] == before["spark1"] and asked("spark1", 30000)


def test_replicas_are_stopped_by_their_recipe() -> None:
    run = play.playbook("playbooks/stop.yml", extra={"tp_launch_recipe": rehearsal(replicas=2)})
    assert run.code == 0, run.output
    assert found() == {node: {} for node in NODES}


def test_two_deployments_stand_beside_each_other() -> None:
    one = rehearsal(name="one")
    deploy(one, tp_launch_nodes="spark2,spark1")
    # Of the others two are chosen, and stay chosen.
    for node in ("spark1", "spark3"):
        play.lab("set", node, "meminfo.MemAvailable=3G")
    run = deploy(rehearsal(name="two", port=30001, rendezvous_port=25001), tp_launch_memory_check="warn")
    for node in ("spark1", "spark3"):
        play.lab("set", node, "meminfo.MemAvailable=")
    assert "two takes spark2, spark4 of 4 nodes" in run.text, run.output
    told = {node: sorted(names) for node, names in found().items()}
    assert told == {"spark1": ["one-rank0"], "spark2": ["one-rank1", "two-rank0"], "spark3": [], "spark4": ["two-rank1"]}
    again = deploy(rehearsal(name="two", port=30001, rendezvous_port=25001), tp_launch_memory_check="warn")
    assert again.changed == {"spark2": 0, "spark4": 0} | {node: again.changed[node] for node in ("spark1", "spark3") if node in again.changed}
    assert not any(again.changed.values())


def test_a_port_of_another_deployment_is_refused() -> None:
    run = deploy(rehearsal(name="three"), code=2, tp_launch_nodes="spark3,spark2")
    assert "Port 30000 on spark2 is taken by container one-rank1: stop it, or set another port." in run.text, run.output


def test_one_deployment_is_stopped_without_touching_the_other() -> None:
    before = found()
    run = play.playbook("playbooks/stop.yml", extra={"deployment": "one"})
    assert run.code == 0, run.output
    after = found()
    assert after == {"spark1": {}, "spark2": {"two-rank0": before["spark2"]["two-rank0"]}, "spark3": {}, "spark4": before["spark4"]}
    assert asked("spark2", 30001)
    play.empty(*NODES)


def real(**changes: t.Any) -> dict[str, t.Any]:
    """The real engine's recipe, with these keys."""
    recipe = copy.deepcopy(VLLM.data)
    recipe.update({"name": "shape", **changes})
    return recipe


def test_the_real_engine_serves_two_stages_of_two() -> None:
    recipe = real(tensor_parallel_size=2, pipeline_parallel_size=2)
    # Eager, the CPU build has no buffers for what one stage hands to the next, and answers with 500.
    del recipe["engines"]["vllm"]["arguments"]["enforce-eager"]
    recipe["engines"]["vllm"]["environment"]["VLLM_USE_AOT_COMPILE"] = "0"
    run = deploy(recipe, tp_launch_collective=False)
    assert "tensor parallel size 2 in 2 pipeline stages over 4 nodes" in run.text and "(4 ranks, launch " in run.text
    logs = {node: play.node(node, f"docker logs shape-rank{rank} 2>&1") for rank, node in enumerate(NODES)}
    for rank, node in enumerate(NODES):
        assert re.search(rf"rank {rank} in world size 4 is assigned as .*PP rank {rank // 2}, .*TP rank {rank % 2}", logs[node]), logs[node][-3000:]
    assert asked("spark1", 8000)
    play.empty(*NODES)


def test_the_real_engine_serves_over_four() -> None:
    run = deploy(real(tensor_parallel_size=4))
    assert "(4 ranks, launch " in run.text and asked("spark1", 8000)
    play.empty(*NODES)
