# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The plan as a task: what it refuses before a node is reached, and what its result tells."""

from __future__ import annotations

import json
import types
import typing as t

import pytest
from ansible import context
from ansible.errors import AnsibleActionFail
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

from ansible_collections.sparkstack.inference.plugins.action import inference_plan as subject

KEY, TOKEN = "sk-test-4711", "hf_test_0815"
RECIPE: dict[str, t.Any] = {
    "name": "tiny",
    "model": {"path": "/srv/models/tiny"},
    "engine": "vllm",
    "tensor_parallel_size": 2,
    "engines": {"vllm": {"image": "vllm:1", "arguments": {"max-model-len": 512}, "environment": {"TOKENIZERS_PARALLELISM": False}}},
}
NODES = [
    {
        "name": f"spark{number}",
        "fabric": {"address": f"192.168.200.1{number}"},
        "info": {"docker": {"reachable": True}, "containers": [], "listeners": []},
    }
    for number in (1, 2)
]


EXTRA: dict[str, t.Any] = {}
"""The variables of the command line."""


@pytest.fixture(autouse=True)
def base(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject.ActionBase, "run", lambda self, tmp=None, task_vars=None: {})
    monkeypatch.setattr(context, "CLIARGS", {"forks": 5})
    monkeypatch.setattr(subject, "load_extra_vars", lambda loader: EXTRA)
    EXTRA.clear()


def run(hosts: t.Sequence[str] = ("spark1", "spark2"), **arguments: t.Any) -> dict[str, t.Any]:
    action = subject.ActionModule.__new__(subject.ActionModule)
    action._task = types.SimpleNamespace(args=arguments)
    action._display = types.SimpleNamespace(display=lambda text: None)
    action._loader = None

    def validate(argument_spec: dict[str, t.Any]) -> tuple[None, dict[str, t.Any]]:
        found = ArgumentSpecValidator(argument_spec).validate({"recipe": RECIPE, "head": list(hosts[:1]), "workers": list(hosts[1:]), **arguments})
        if found.error_messages:
            raise AnsibleActionFail(found.error_messages[0])
        return None, found.validated_parameters

    action.validate_argument_spec = validate
    return t.cast("dict[str, t.Any]", action.run(None, {"ansible_play_hosts_all": list(hosts)}))


def test_without_nodes_only_the_inputs_are_told() -> None:
    plan = run()["plan"]
    assert (plan["deployment"], plan["hosts"], plan["port"]) == ("tiny", ["spark1", "spark2"], 8000)
    assert "ranks" not in plan


def test_overrides_of_the_command_line_are_texts() -> None:
    overrides = {"port": "9000", "ready_timeout": "60", "arguments": '{"max-model-len": 1024}', "image": ""}
    plan = run(nodes=NODES, overrides=overrides)["plan"]
    assert (plan["port"], plan["ready_timeout"], plan["image"]) == (9000, 60, "vllm:1")
    assert plan["ranks"][0]["launch"]["arguments"] == {"max-model-len": 1024}


def test_a_time_that_is_over_before_it_begins_is_refused_before_a_start() -> None:
    with pytest.raises(AnsibleActionFail, match="'ready_timeout' must be 1 or more, not -5"):
        run(overrides={"ready_timeout": -5})


@pytest.mark.parametrize("text", ['{"HF_TOKEN": "x"}', "HF_TOKEN=x"])
def test_an_environment_as_a_text_is_refused(text: str) -> None:
    with pytest.raises(AnsibleActionFail, match="tp_launch_environment must be a mapping"):
        run(overrides={"environment": text})


def test_an_override_that_there_is_not_is_refused() -> None:
    with pytest.raises(AnsibleActionFail, match="prot"):
        run(overrides={"prot": 9000})


def test_secrets_are_named_and_not_told() -> None:
    plan = run(nodes=NODES, api_key=KEY, overrides={"environment": {"HF_TOKEN": TOKEN, "A": "b"}})["plan"]
    assert KEY not in json.dumps(plan) and TOKEN not in json.dumps(plan)
    assert plan["secret"] == ["HF_TOKEN"]
    assert plan["ranks"][1]["launch"]["environment"] == {"TOKENIZERS_PARALLELISM": "0", "A": "b"}
    other = run(nodes=NODES, api_key=KEY, overrides={"environment": {"HF_TOKEN": "hf_other", "A": "b"}})["plan"]
    assert other["ranks"][1]["spec_hash"] != plan["ranks"][1]["spec_hash"]


@pytest.mark.parametrize(
    "hosts, arguments, sentence",
    [
        (
            ["a", "b", "c"],
            {"recipe": {**RECIPE, "tensor_parallel_size": 4}},
            "tensor_parallel_size is 4, but there are 3 nodes with 1 GPU each: possible are tensor_parallel_size 3, tensor_parallel_size 1 with "
            "pipeline_parallel_size 3 and tensor_parallel_size 1 and replicas 3, or change the inventory's workers.",
        ),
        (
            ["a", "b", "c"],
            {"recipe": {**RECIPE, "replicas": 2}},
            "tensor_parallel_size is 2, replicas 2, but there are 3 nodes with 1 GPU each: possible are tensor_parallel_size 3, tensor_parallel_size 1 "
            "with pipeline_parallel_size 3 and tensor_parallel_size 1 and replicas 3, or change the inventory's workers.",
        ),
        (["a", "b"], {"use": ["a", "c"]}, "The node 'c' is neither in the inventory's group 'head' nor in 'workers': choose from a, b."),
        (
            ["spark1", "spark2"],
            {"nodes": NODES * 3},
            "All 6 ranks must be watched at the same time: set forks to 6 or more (it is 5).",
        ),
        (
            ["spark1", "spark2"],
            {"nodes": [NODES[0], {**NODES[1], "fabric": {}}]},
            "spark2 has no address on the fabric: give its interface one in fabric_cidr, or set fabric_address.",
        ),
    ],
)
def test_refused(hosts: list[str], arguments: dict[str, t.Any], sentence: str) -> None:
    with pytest.raises(AnsibleActionFail) as caught:
        run(hosts, **arguments)
    assert str(caught.value) == sentence


HOSTS = ["spark1", "spark2", "spark3", "spark4"]
REPLICAS = {**RECIPE, "replicas": 2}


def test_replicas_are_told_with_their_hosts_and_the_first_stands_for_all() -> None:
    plan = run(HOSTS, recipe=REPLICAS)["plan"]
    assert (plan["name"], plan["deployment"], plan["replica"], plan["hosts"]) == ("tiny", "tiny-r0", 0, HOSTS[:2])
    assert plan["replicas"] == [
        {"deployment": "tiny-r0", "replica": 0, "hosts": HOSTS[:2]},
        {"deployment": "tiny-r1", "replica": 1, "hosts": HOSTS[2:]},
    ]
    assert (plan["members"], plan["placing"]) == (HOSTS, False)
    # A record tells the recipe that all of them are of.
    assert (plan["recipe"]["name"], plan["recipe"]["replicas"]) == ("tiny", 2)


def test_a_replica_is_a_launch_of_its_own() -> None:
    nodes = [{**node, "name": name} for node, name in zip(NODES, HOSTS[2:], strict=True)]
    plan = run(HOSTS, recipe=REPLICAS, nodes=nodes, placed=HOSTS[2:], replica=1, endpoint_host="10.1.230.13")["plan"]
    assert (plan["deployment"], plan["hosts"], plan["endpoint"]) == ("tiny-r1", HOSTS[2:], "http://10.1.230.13:8000/v1")
    assert [(rank["node"], rank["launch"]["deployment"], rank["launch"]["rank"], rank["launch"]["ranks"]) for rank in plan["ranks"]] == [
        ("spark3", "tiny-r1", 0, 2),
        ("spark4", "tiny-r1", 1, 2),
    ]
    assert {rank["launch"]["head_address"] for rank in plan["ranks"]} == {"192.168.200.11"}


def test_all_replicas_start_from_one_nodes_image() -> None:
    image = {"identity": "sha256:bb", "architecture": "arm64", "size_bytes": 1}
    nodes = [{**node, "info": {**node["info"], "architecture": "arm64", "image": {**image, "identity": "sha256:aa"}}} for node in NODES]
    plan = run(HOSTS, recipe=REPLICAS, nodes=nodes, placed=HOSTS[:2], replica=0, source="spark9", source_image=image, verify_arguments=False)["plan"]
    assert (plan["image_content"], plan["staged"]) == ("sha256:bb", False)
    assert "on spark9, goes to spark1, spark2" in "\n".join(plan["screen"])


def test_where_fewer_nodes_are_needed_a_look_at_them_decides() -> None:
    plan = run(HOSTS)["plan"]
    assert (plan["placing"], plan["hosts"], plan["replicas"]) == (True, HOSTS, [])
    memory = [{"name": name, "memory": {"available_bytes": gib << 30}, "containers": []} for name, gib in zip(HOSTS, (1, 90, 2, 80), strict=True)]
    plan = run(HOSTS, seen=memory)["plan"]
    assert (plan["placing"], plan["hosts"], plan["members"], plan["candidates"]) == (False, ["spark2", "spark4"], ["spark2", "spark4"], HOSTS)
    memory[0]["containers"] = [{"deployment": "tiny", "rank": 1}, {"deployment": "other", "rank": 0}]
    assert run(HOSTS, seen=memory)["plan"]["hosts"] == ["spark1", "spark2"]
    assert run(HOSTS, use=["spark3", "spark1"])["plan"]["hosts"] == ["spark1", "spark3"]
    assert run(HOSTS, recipe={**RECIPE, "nodes": ["spark3", "spark4"]})["plan"]["hosts"] == ["spark3", "spark4"]


def test_a_pipeline_has_a_stage_for_each_rank() -> None:
    nodes = [{**NODES[0], "name": name} for name in HOSTS]
    plan = run(HOSTS, recipe={**RECIPE, "pipeline_parallel_size": 2}, nodes=nodes)["plan"]
    assert [rank["launch"]["pipeline_parallel_size"] for rank in plan["ranks"]] == [2] * 4
    shown = "\n".join(plan["screen"])
    assert "tensor parallel size 2 in 2 pipeline stages over 4 nodes" in shown and "rank  stage  node" in shown


def test_a_variable_of_a_role_that_nobody_reads_is_refused() -> None:
    EXTRA["tp_launch_listen_adress"] = "127.0.0.1"
    with pytest.raises(AnsibleActionFail, match="There is no variable tp_launch_listen_adress: do you mean tp_launch_listen_address"):
        run()


def test_what_the_plan_computes_goes_to_every_rank_and_is_told_by_itself() -> None:
    memory = {"unified": True, "total_bytes": 119 << 30, "available_bytes": 110 << 30, "gpus": [{"index": 0}], "processes": [], "holders": []}
    nodes = [{**node, "memory": memory, "model": {"path": "/srv/models/tiny", "weight_bytes": 20 << 30}} for node in NODES]
    plan = run(nodes=nodes)["plan"]
    [(option, value)] = plan["planned"].items()
    assert option == "gpu-memory-utilization" and 0.5 < value < 1
    for rank in plan["ranks"]:
        assert rank["launch"]["arguments"] == {"max-model-len": 512, option: value} and rank["launch"]["planned"] == [option]
    # A record's recipe is the user's own.
    assert plan["recipe"]["engines"]["vllm"]["arguments"] == {"max-model-len": 512}
    own = run(nodes=nodes, memory_setting="engine")["plan"]
    assert (own["planned"], own["ranks"][0]["launch"]["planned"], own["ranks"][0]["launch"]["arguments"]) == (None, None, {"max-model-len": 512})
    with pytest.raises(AnsibleActionFail, match="for the weights alone"):
        run(nodes=[nodes[0], {**nodes[1], "memory": {**memory, "available_bytes": 1 << 30}}])
    assert run(nodes=[nodes[0], {**nodes[1], "memory": {**memory, "available_bytes": 1 << 30}}], memory_check="warn")["plan"]["action"] == "start"
