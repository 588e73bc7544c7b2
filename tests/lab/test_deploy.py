# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The main path on the lab's nodes with the real engine, in the order in which an owner walks it.

The tests build on each other: what one leaves is the next one's beginning, so that each start-up of the engine is paid once.
"""

from __future__ import annotations

import json
import pathlib
import re
import time
import typing as t

import play
import pytest
import yaml

pytestmark = [pytest.mark.lab, pytest.mark.engine]

RECIPE = play.ROOT / "tests" / "lab" / "recipes" / "tiny-qwen3-moe.yml"
DEPLOY = "deploy_qwen.yml"
MODEL = "/srv/models/tiny-qwen3-moe"
STAGED = {"model_staging_sync": True}
LEDGER = f"/var/lib/sparkstack/deployments/{play.DEPLOYMENT}"


def kept(what: str) -> dict[str, t.Any]:
    """What the head keeps of a launch: the last one, or the one that answered last."""
    newest = f"launches/$(ls {LEDGER}/launches | sort | tail -n 1)" if what == "last" else f"{what}.json"
    return t.cast("dict[str, t.Any]", json.loads(play.node("spark1", f"cat {LEDGER}/{newest}")))


@pytest.fixture(scope="module", autouse=True)
def fresh_nodes() -> None:
    """Nodes without a deployment, an image or the model on the worker, or anything that an earlier run prepared."""
    play.lab("up")
    play.install_engine()
    for name in play.RANKS:
        play.node(name, "docker ps -aq | xargs -r docker rm -f; rm -rf /var/cache/sparkstack /var/lib/sparkstack")
    play.node("spark2", f"docker images -q | sort -u | xargs -r docker rmi -f; rm -rf {MODEL}")


def test_check_before_the_first_deploy_predicts_and_touches_nothing() -> None:
    before = play.footprint()
    run = play.playbook(DEPLOY, "--check", "--diff", extra=STAGED)
    assert run.code == 0, run.output
    assert f"[spark2] would copy {MODEL} from spark1: " in run.text
    assert run.changed["spark1"] >= 2 and run.changed["spark2"] >= 3, run.output
    assert "action start all ranks, workers first because it runs on no node" in run.text
    assert re.search(r"image +sparkstack/vllm-cpu:\S+: .* on spark1, goes to spark2", run.output)
    # The diff tells the whole container.
    assert '"NCCL_SOCKET_IFNAME": "enp1s0f0np0"' in run.output
    assert play.footprint() == before


def test_the_first_deploy_brings_image_and_model_serves_and_proves_it() -> None:
    run = play.playbook(DEPLOY, extra=STAGED)
    assert run.code == 0, run.output
    assert re.search(rf"\[spark2\] model {MODEL}: .*, verified", run.text), run.output
    digests = f"cd {MODEL} && find . -type f -not -path '*/.*' | sort | xargs sha256sum"
    assert play.node("spark2", digests) == play.node("spark1", digests)
    assert re.search(r'tiny at http://10\.77\.0\.11:8000/v1 answered "The capital of France is" with ".*": 16 tokens in \d', run.text), run.output
    # The phases of both ranks were told while they were passed.
    for rank in ("spark1", "spark2"):
        assert re.search(rf"\[{rank}\].*load_weights", run.output), run.output
    assert re.search(r"\[spark1\].*ready", run.output)


def test_workers_were_started_before_the_head() -> None:
    found = play.ranks()
    assert found["spark2"]["started"] < found["spark1"]["started"]


def test_the_ranks_are_one_world_of_two() -> None:
    logs = {name: play.node(name, f"docker logs {rank} 2>&1") for name, rank in play.RANKS.items()}
    assert re.search(r"world_size=2 rank=0 .*distributed_init_method=tcp://192\.168\.200\.11:29501 backend=gloo", logs["spark1"])
    assert re.search(r"world_size=2 rank=1 .*distributed_init_method=tcp://192\.168\.200\.11:29501 backend=gloo", logs["spark2"])
    assert re.search(r"rank 1 in world size 2 is assigned as .*TP rank 1", logs["spark2"])


def test_the_containers_are_as_an_owner_wants_them() -> None:
    found = play.ranks()
    launches = {rank["labels"]["sparkstack.launch_id"] for rank in found.values()}
    assert len(launches) == 1
    for number, name in enumerate(play.RANKS):
        host, labels = found[name]["host"], found[name]["labels"]
        assert labels["sparkstack.deployment"] == play.DEPLOYMENT and labels["sparkstack.rank"] == str(number)
        assert host["NetworkMode"] == "host" and not host["Privileged"] and host["CapDrop"] == ["ALL"] and not host["CapAdd"]
        assert host["RestartPolicy"]["Name"] == "no"
        assert host["SecurityOpt"] == ["no-new-privileges"]
        assert {limit["Name"]: limit["Hard"] for limit in host["Ulimits"]} == {"memlock": -1, "stack": 67108864}
        assert host["DeviceRequests"][0]["Capabilities"] == [["gpu"]]
        assert host["LogConfig"]["Config"] == {"max-size": "64m", "max-file": "3"}
        assert host["ShmSize"] == 1024**3 and host["Memory"] == 4 * 1024**3
        assert "/var/cache/sparkstack/vllm:/cache:rw" in host["Binds"]
        assert any(bind.endswith(":ro") for bind in host["Binds"])


def test_a_second_run_changes_nothing_and_restarts_nothing() -> None:
    before = {name: rank["id"] + rank["started"] for name, rank in play.ranks().items()}
    run = play.playbook(DEPLOY)
    assert run.code == 0, run.output
    assert run.changed == {"spark1": 0, "spark2": 0}, run.output
    assert {name: rank["id"] + rank["started"] for name, rank in play.ranks().items()} == before
    assert "answered" in run.text


def test_check_after_the_deploy_is_empty() -> None:
    before = play.footprint()
    run = play.playbook(DEPLOY, "--check", "--diff")
    assert run.code == 0, run.output
    assert run.changed == {"spark1": 0, "spark2": 0}, run.output
    assert not re.search(r"^(---|\+\+\+) (before|after)", run.output, re.MULTILINE), run.output
    assert play.footprint() == before


def test_status_shows_the_ranks_and_an_answer() -> None:
    run = play.playbook("playbooks/status.yml")
    assert run.code == 0, run.output
    assert f"{play.DEPLOYMENT} rank 0 of 2 on spark1: runs since" in run.text
    assert f"{play.DEPLOYMENT} rank 1 of 2 on spark2: runs since" in run.text
    assert re.search(rf"{play.DEPLOYMENT} at port 8000 of spark1: answered in \d", run.text), run.output
    assert run.changed == {"spark1": 0, "spark2": 0}


def write_recipe(folder: pathlib.Path, **changes: t.Any) -> str:
    """The lab's recipe with values changed by dotted path (__ for the dot)."""
    data = yaml.safe_load(RECIPE.read_text())
    for path, value in changes.items():
        *way, last = path.split("__")
        place = data
        for key in way:
            place = place[key]
        place[last.replace("_DASH_", "-")] = value
    path = folder / "recipe.yml"
    path.write_text(yaml.safe_dump(data))
    return str(path)


@pytest.fixture(name="untouched")
def _untouched() -> t.Iterator[None]:
    """What runs goes on running: a refusal touches nothing."""
    before = {name: rank["id"] + rank["started"] for name, rank in play.ranks().items()}
    yield
    after = play.ranks()
    assert {name: rank["id"] + rank["started"] for name, rank in after.items()} == before
    assert all(rank["running"] for rank in after.values())


def refused(run: play.Play, sentence: str) -> None:
    """The run failed with that sentence, and had changed nothing until then."""
    assert run.code != 0, run.output
    assert sentence in run.text, run.output
    assert set(run.changed.values()) <= {0}, run.output


@pytest.mark.parametrize(
    "groups, sentence",
    [
        ("[head]\nspark1\nspark2\n[workers]\n", "The inventory's group 'head' has 2 hosts (spark1, spark2): put exactly one there"),
        ("[head]\nspark1\n", "The inventory's group 'workers' has no host: put every node but the head there."),
        ("[workers]\nspark1\nspark2\n", "The inventory's group 'head' has 0 hosts: put exactly one there"),
    ],
)
def test_an_inventory_that_will_not_do_is_refused(tmp_path: pathlib.Path, untouched: None, groups: str, sentence: str) -> None:
    path = tmp_path / "sparks.ini"
    children = "\n".join(re.findall(r"^\[(\w+)\]$", groups, re.MULTILINE))
    path.write_text(f"{groups}[sparks:children]\n{children}\n")
    refused(play.playbook(DEPLOY, hosts=str(path), extra={"tp_launch_recipe": str(RECIPE)}), sentence)


def test_a_limit_that_cuts_a_rank_is_refused(untouched: None) -> None:
    run = play.playbook(DEPLOY, "--limit", "spark1")
    refused(run, "spark2 is left out of this run, but a launch needs all its ranks (spark1, spark2): run it without --limit, ")
    assert run.seconds < 20


@pytest.mark.parametrize(
    "changes, sentence",
    [
        ({"engine": "tgi"}, "The engine 'tgi' is not known: choose sglang or vllm."),
        ({"tensor_parallel_size": 3}, "tensor_parallel_size is 3, but there are 2 nodes with 1 GPU each: possible are tensor_parallel_size 2"),
        ({"tensor_parallel_size": 4}, "tensor_parallel_size is 4, but there are 2 nodes with 1 GPU each: possible for this model are tensor_parallel_size 2"),
        ({"modell": {}}, "has no key 'modell': do you mean 'model'?"),
        (
            {"engines__vllm__arguments__max_DASH_num_DASH_seqz": 8},
            "--max-num-seqz is not an option of vLLM 0.32.0: the nearest that it has is --max-num-seqs.",
        ),
        (
            {"engines__vllm__arguments__mem_DASH_fraction_DASH_static": 0.6},
            "--mem-fraction-static is not an option of vLLM 0.32.0: the nearest that it has is --gpu-memory-utilization.",
        ),
        (
            {"engine": "sglang", "engines__sglang__arguments": {"language-model-only": True}},
            "--language-model-only is not an option of SGLang 0.5.17+rehearsal: the nearest that it has is --language-only.",
        ),
    ],
)
def test_a_recipe_that_will_not_do_is_refused(tmp_path: pathlib.Path, untouched: None, changes: dict[str, t.Any], sentence: str) -> None:
    refused(play.playbook(DEPLOY, extra={"tp_launch_recipe": write_recipe(tmp_path, **changes)}), sentence)


def test_a_misspelt_variable_is_refused(untouched: None) -> None:
    refused(
        play.playbook(DEPLOY, extra={"tp_launch_listen_adress": "127.0.0.1"}),
        "There is no variable tp_launch_listen_adress: do you mean tp_launch_listen_address?",
    )


def test_an_empty_recipe_is_refused(tmp_path: pathlib.Path, untouched: None) -> None:
    path = tmp_path / "empty.yml"
    path.write_text("---\n")
    refused(play.playbook(DEPLOY, extra={"tp_launch_recipe": str(path)}), "The recipe empty.yml is empty: it needs at least")


def test_an_address_that_the_head_does_not_have_is_refused(untouched: None) -> None:
    run = play.playbook(DEPLOY, extra={"tp_launch_listen_address": "192.0.2.7"})
    refused(run, "spark1 has no address 192.0.2.7 to serve the API on: set tp_launch_listen_address to one of its own")


def test_a_model_that_one_node_lacks_is_refused(untouched: None) -> None:
    model = yaml.safe_load(RECIPE.read_text())["model"]["path"]
    play.node("spark2", f"mv {model} {model}.away")
    try:
        run = play.playbook(DEPLOY)
    finally:
        play.node("spark2", f"mv {model}.away {model}")
    refused(run, model)
    assert re.search(r"fatal: \[spark2\]", run.output) and "rsync" in run.text, run.output


def test_a_node_whose_docker_is_stopped_is_refused(untouched: None) -> None:
    # live-restore is off: stopping Docker ends its containers, so only the service's socket is taken away.
    play.node("spark2", "mv /var/run/docker.sock /var/run/docker.sock.away")
    try:
        run = play.playbook(DEPLOY)
    finally:
        play.node("spark2", "mv /var/run/docker.sock.away /var/run/docker.sock")
    refused(run, "spark2: Docker does not answer on /var/run/docker.sock")
    assert "sudo systemctl start docker" in run.text


@pytest.mark.long
def test_a_killed_worker_restarts_both_ranks_and_a_killed_run_is_taken_up_again() -> None:
    before = play.ranks()
    play.node("spark2", f"docker kill --signal KILL {play.RANKS['spark2']}")
    # The trap that this is about: the head's health does not see it.
    assert play.node("spark1", "curl -s -o /dev/null -w '%{http_code}' http://127.0.0.1:8000/health") == "200"
    with play.playing(DEPLOY) as run:
        seen = play.wait_for_line(run, "[spark2] 1/9", 300)
    assert "rank 1 on spark2 has ended (exit code 137)" in re.sub(r"\s+", " ", seen), seen
    started = play.ranks()
    assert all(started[name]["id"] != before[name]["id"] and started[name]["running"] for name in play.RANKS)
    assert started["spark2"]["started"] < started["spark1"]["started"]
    again = play.playbook(DEPLOY)
    assert again.code == 0, again.output
    assert "action watch it until it is ready because all ranks run, and are still starting" in again.text
    assert {name: rank["id"] for name, rank in play.ranks().items()} == {name: rank["id"] for name, rank in started.items()}
    assert "answered" in again.text
    # The killed run had the lock, and left word of what it began; only that is completed now.
    assert "was taken over, because that run is gone" in again.text
    assert kept("last")["action"] == "restart" and kept("good")["launch_id"] == kept("last")["launch_id"]
    assert not play.node("spark1", f"ls {LEDGER}").count("lock.json")
    third = play.playbook(DEPLOY)
    assert third.code == 0 and set(third.changed.values()) == {0}, third.output


def test_a_changed_argument_is_predicted_with_its_field_and_then_done(tmp_path: pathlib.Path) -> None:
    recipe = write_recipe(tmp_path, engines__vllm__arguments__max_DASH_model_DASH_len=256)
    predicted = play.playbook(DEPLOY, "--check", "--diff", extra={"tp_launch_recipe": recipe})
    assert predicted.code == 0, predicted.output
    assert "--max-model-len: 512 -> 256" in predicted.text
    assert all(count > 0 for count in predicted.changed.values())


def test_the_key_of_the_api_shows_up_nowhere() -> None:
    secret = "sk-lab-7f3a9c51"
    begin = play.node("spark1", "date +%s").strip()
    token = "hf_lab_0815_token"
    extra = {"tp_launch_engine": "sglang", "tp_launch_api_key": secret, "tp_launch_listen_address": "127.0.0.1", "tp_launch_environment": {"HF_TOKEN": token}}
    run = play.playbook(DEPLOY, "-vvv", "--diff", extra=extra)
    assert run.code == 0, run.output[-5000:]
    assert "answered" in run.text
    for word in (secret, token):
        assert word not in run.output, [line[:300] for line in run.output.splitlines() if word in line]
    for name, rank in play.RANKS.items():
        found = json.loads(play.node(name, f"docker inspect {rank}"))[0]
        seen = json.dumps(found) + play.node(name, f"docker logs {rank} 2>&1; ps -eo args; journalctl --no-pager --since @{begin}")
        assert secret not in seen and token not in seen
    code = play.node("spark1", "curl -s -o /dev/null -w '%{http_code}' http://127.0.0.1:8000/v1/models")
    assert code == "401"
    # It listens where it was told to, and nowhere else.
    listening = play.node("spark1", "ss -Hltn 'sport = :8000'")
    assert "127.0.0.1:8000" in listening and "0.0.0.0:8000" not in listening


def test_stop_removes_the_ranks_and_is_safe_to_repeat() -> None:
    run = play.playbook("playbooks/stop.yml")
    assert run.code == 0 and all(count == 1 for count in run.changed.values()), run.output
    assert not play.containers("spark1") and not play.containers("spark2")
    again = play.playbook("playbooks/stop.yml")
    assert again.code == 0 and set(again.changed.values()) == {0}, again.output
    assert f"No node had a rank of '{play.DEPLOYMENT}'" in again.text
    status = play.playbook("playbooks/status.yml")
    assert "No deployment runs on these nodes." in status.text
    misspelt = play.playbook("playbooks/status.yml", extra={"deployment": "tiny-qwen"})
    assert "No node has a rank of 'tiny-qwen'" in misspelt.text


@pytest.mark.long
def test_the_installed_collection_is_played_by_name() -> None:
    begin = time.monotonic()
    run = play.playbook("sparkstack.inference.deploy_qwen", "--check", extra={"tp_launch_recipe": str(RECIPE)})
    assert run.code == 0, run.output
    assert "Plan for tiny-qwen3-moe" in run.text
    assert time.monotonic() - begin < 120
