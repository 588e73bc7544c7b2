# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The plan as a pure function: what is refused, what is done, and why."""

from __future__ import annotations

import copy
import dataclasses
import typing as t

import pytest

from ansible_collections.sparkstack.inference.plugins.plugin_utils import _container, _plan_memory, _planner, _recipe, _screen

GIB = 1024**3
RECIPE = {
    "name": "tiny",
    "model": {"path": "/srv/models/tiny", "id": "org/tiny", "served_name": "tiny"},
    "engine": "vllm",
    "tensor_parallel_size": 2,
    "engines": {
        "vllm": {"image": "vllm:1", "arguments": {"max-model-len": 512, "enforce-eager": True}},
        "sglang": {"image": "sglang:1", "arguments": {"context-length": 512}},
    },
}
PARSER = {
    "version": "0.32.0",
    "options": [
        {"flags": ["--max-model-len"], "nargs": None, "type": "int", "choices": None},
        {"flags": ["--gpu-memory-utilization"], "nargs": None, "type": "float", "choices": None},
        {"flags": ["--enforce-eager", "--no-enforce-eager"], "nargs": 0, "type": None, "choices": None},
    ],
}
SETTINGS = _planner.Settings(new_launch_id="L2", parser=PARSER, endpoint_host="10.1.230.11", api_key="k")


def node(number: int, **changes: t.Any) -> _planner.Node:
    """A healthy GB10 node that runs nothing."""
    base = {
        "name": f"spark{number}",
        "fabric": {
            "address": f"192.168.200.1{number}",
            "netdev": "enp1s0f0np0",
            "rails": [{"netdev": "enp1s0f0np0", "hca": "rocep1s0f0"}],
        },
        "environment": {"GLOO_SOCKET_IFNAME": "enp1s0f0np0", "NCCL_IB_HCA": "rocep1s0f0"},
        "memory": {
            "unified": True,
            "total_bytes": 121 * GIB,
            "available_bytes": 110 * GIB,
            "gpus": [{"index": 0, "name": "NVIDIA GB10"}],
            "processes": [],
        },
        "info": {
            "docker": {"reachable": True, "error": None},
            "architecture": "arm64",
            "image": {"identity": "sha256:aa", "architecture": "arm64", "size_bytes": 2 * GIB},
            "containers": [],
            "listeners": [],
            "infiniband": True,
            "boot_id": "b",
        },
        "model": {"path": "/srv/models/tiny", "weight_bytes": 20 * GIB},
    }
    base = copy.deepcopy(base)
    for path, value in changes.items():
        *way, last = path.split("__")
        place: t.Any = base
        for key in way:
            place = place.setdefault(key, {})
        place[last] = value
    return _planner.Node(**base)


def recipe(**overrides: t.Any) -> _recipe.Recipe:
    return _recipe.parse(RECIPE, overrides)


def make(nodes: list[_planner.Node], settings: _planner.Settings = SETTINGS, **overrides: t.Any) -> _planner.Plan:
    return _planner.make(recipe(**overrides), nodes, settings)


def running(plan: _planner.Plan, rank: int, **changes: t.Any) -> dict[str, t.Any]:
    """What inference_info tells of a rank that a plan has started."""
    request = plan.requests[rank]
    return {
        "name": _container.name("tiny", rank),
        "deployment": "tiny",
        "rank": rank,
        "launch_id": "L1",
        "running": True,
        "exit_code": 0,
        "oom_killed": False,
        "started_at": "2026-11-29T10:00:00.5Z",
        "spec": _container.public(request),
        "spec_hash": _container.spec_hash(_container.public(request)),
        "planned": _container.planned(request),
        **changes,
    }


def deployed(proof: dict[str, t.Any] | None = None, verdict: str | None = None, **second: t.Any) -> list[_planner.Node]:
    """Two nodes on which a launch runs; changes are those of the worker's container."""
    plan = make([node(1), node(2)])
    answer = {"answered": True} if proof is None else proof
    return [
        node(1, info__containers=[running(plan, 0)], proof=answer, verdict=verdict),
        node(2, info__containers=[running(plan, 1, **second)]),
    ]


def test_a_first_launch_is_planned_with_each_nodes_own_environment() -> None:
    plan = make([node(1), node(2, environment={"GLOO_SOCKET_IFNAME": "enp1s0f1np1"})])
    assert (plan.action, plan.problems, plan.launch_id) == ("start", [], "L2")
    head, worker = (_container.options(request) for request in plan.requests)
    assert head["env"]["GLOO_SOCKET_IFNAME"] == "enp1s0f0np0"
    assert worker["env"]["GLOO_SOCKET_IFNAME"] == "enp1s0f1np1"
    assert (head["env"]["VLLM_HOST_IP"], worker["env"]["VLLM_HOST_IP"]) == ("192.168.200.11", "192.168.200.12")
    assert "--headless" in worker["command"] and "--headless" not in head["command"]
    assert plan.endpoint == "http://10.1.230.11:8000/v1"
    assert plan.arguments_checked == "vLLM 0.32.0"


def test_a_healthy_deployment_is_left_alone() -> None:
    plan = make(deployed())
    assert (plan.action, plan.launch_id) == ("none", "L1")
    assert plan.reasons == ["all ranks run as wanted and the head answered a request"]


@pytest.mark.parametrize(
    "nodes, overrides, reason",
    [
        (deployed(running=False, exit_code=137), {}, "rank 1 on spark2 has ended (exit code 137)"),
        # A rank that crashed may exit 0.
        (deployed(running=False, exit_code=0), {}, "rank 1 on spark2 has ended (exit code 0)"),
        (deployed(running=False, oom_killed=True), {}, "rank 1 on spark2 has ended (killed by the kernel for memory)"),
        (deployed(launch_id="L0"), {}, "the ranks are of different launches"),
        # The head's /health stays 200 when its worker is dead: only the answer counts.
        (deployed(proof={"answered": False, "problem": "no answer"}), {}, "all ranks run, but no answer"),
        (deployed(proof={"answered": False, "problem": "no answer"}, verdict="stalled"), {}, "all ranks run, but no answer"),
        (
            deployed(),
            {"arguments": {"max-model-len": 1024}},
            "rank 0 on spark1 was started with something else (--max-model-len: 512 -> 1024)",
        ),
        (deployed(name="tiny-rank7"), {}, "spark2 also has tiny-rank7, which is not its rank"),
        (deployed(spec={}, spec_hash="x"), {}, "rank 1 on spark2 was started with something else"),
    ],
)
def test_whatever_is_wrong_restarts_all_ranks_together(nodes: list[_planner.Node], overrides: dict, reason: str) -> None:
    plan = make(nodes, **overrides)
    assert (plan.action, plan.launch_id, plan.problems) == ("restart", "L2", [])
    assert any(found.startswith(reason) for found in plan.reasons), plan.reasons


def test_an_image_rebuilt_under_the_same_tag_restarts() -> None:
    nodes = deployed()
    nodes[0].info["image"]["identity"] = "sha256:bb"
    plan = make(nodes)
    assert plan.action == "restart"
    assert "spark2: image_identity: sha256:aa -> sha256:bb" in plan.differences


def test_a_changed_api_key_restarts_and_is_not_shown() -> None:
    plan = make(deployed(), dataclasses.replace(SETTINGS, api_key="another-secret"))
    assert plan.action == "restart"
    assert "another-secret" not in repr(plan.differences + plan.reasons + _screen.screen(plan))


def test_a_launch_that_is_still_starting_is_watched_not_restarted() -> None:
    plan = make(deployed(proof={"answered": False, "problem": "refused"}, verdict="starting"))
    assert (plan.action, plan.launch_id) == ("watch", "L1")


def test_one_rank_left_is_no_deployment() -> None:
    nodes = deployed()
    plan = make([node(1), nodes[1]])
    assert plan.action == "restart"
    assert plan.reasons == ["rank 0 is missing on spark1", "all ranks run, but the head was not asked"][:1]


@pytest.mark.parametrize(
    "changes, sentence",
    [
        (
            {"info__docker": {"reachable": False, "error": "Docker does not answer on /var/run/docker.sock: refused."}},
            "spark2: Docker does not answer on /var/run/docker.sock: refused. Start it there (sudo systemctl start docker) and run this again.",
        ),
        ({"fabric": {}}, "spark2 has no address on the fabric: give its interface one in fabric_cidr, or set fabric_address."),
        (
            {"info__image": {"identity": "x", "architecture": "amd64", "size_bytes": 1}},
            "spark2: the image vllm:1 is for amd64, the node is arm64: build or pull it for the node's architecture.",
        ),
        (
            {"environment": {"NCCL_IB_HCA": "rocep1s0f0", "HF_TOKEN": "hf_x"}},
            "spark2: the secret 'HF_TOKEN' can't stand in nccl_env_extra: set it in tp_launch_environment, out of a vault.",
        ),
        (
            {"info__foreign": "nginx:1"},
            "The name tiny-rank1 on spark2 belongs to a container of nginx:1 that this collection did not start: "
            "remove or rename it first, or rename the recipe.",
        ),
        (
            {
                "memory__available_bytes": 5 * GIB,
                "memory__processes": [{"pid": 7, "name": "python3", "used_bytes": 100 * GIB, "container": {"name": "embeddings", "image": "tei:1"}}],
            },
            "spark2 has 5.0 GiB of 121.0 GiB available, but its rank needs 10.0 GiB for the weights alone: "
            "container embeddings (tei:1) holds 100.0 GiB; stop it first, or let this do it: tp_launch_evict with embeddings.",
        ),
        (
            {"memory__total_bytes": 8 * GIB},
            "spark2 has 8.0 GiB of memory, but its rank needs 10.0 GiB for the weights alone: take more nodes or a smaller model.",
        ),
    ],
)
def test_a_node_that_will_not_do_is_refused_in_one_sentence(changes: dict[str, t.Any], sentence: str) -> None:
    assert make([node(1), node(2, **changes)]).problems == [sentence]


@pytest.mark.parametrize("folder", ["cache", "/var/a:b"])
def test_a_cache_folder_that_docker_can_not_mount_is_refused(folder: str) -> None:
    plan = make([node(1), node(2)], dataclasses.replace(SETTINGS, cache_dir=folder))
    assert plan.problems == [f"tp_launch_cache_dir is '{folder}', which Docker can't mount: give an absolute path without ':'."]


def test_an_address_that_the_head_does_not_have_is_refused() -> None:
    plan = make([node(1, info__listen_possible=False), node(2)], dataclasses.replace(SETTINGS, listen_address="1.2.3.4"))
    assert plan.problems == [
        "spark1 has no address 1.2.3.4 to serve the API on: set tp_launch_listen_address to one of its own, or to 0.0.0.0 for all of them."
    ]


def test_a_rank_that_runs_may_hold_the_memory() -> None:
    nodes = deployed()
    nodes[1].memory["available_bytes"] = 1 * GIB
    assert make(nodes).action == "none"


def test_a_port_of_somebody_else_is_refused() -> None:
    listener = {"port": 8000, "pid": 4, "process": "python3", "container": "other"}
    plan = make([node(1, info__listeners=[listener]), node(2)])
    assert plan.problems == ["Port 8000 on spark1 is taken by container other: stop it, or set another port."]
    nodes = deployed(running=False)
    nodes[0].info["listeners"] = [{**listener, "container": "tiny-rank0"}]
    assert make(nodes).problems == []


def test_what_a_run_that_was_cut_off_left_at_a_port_is_no_strangers() -> None:
    listener = {"port": 29501, "pid": 4, "process": "python3", "container": "tiny-collective0"}
    assert make([node(1, info__listeners=[listener]), node(2)]).problems == []
    (problem,) = make([node(1, info__listeners=[{**listener, "container": "tiny-collective0-mine"}]), node(2)]).problems
    assert problem == "Port 29501 on spark1 is taken by container tiny-collective0-mine: stop it, or set another rendezvous_port."
    # Two runs at once: the second one is to be told of the first by the lock, not by its preflight's listener.
    assert make([node(1, info__listeners=[{**listener, "process": "fabric-probe", "container": None}]), node(2)]).problems == []


def test_an_argument_that_the_image_refuses_stops_the_plan() -> None:
    plan = make(deployed(), arguments={"max-model-lenn": 1})
    assert plan.problems == ["--max-model-lenn is not an option of vLLM 0.32.0: the nearest that it has is --max-model-len."]


def test_an_option_that_can_not_be_turned_off_is_refused() -> None:
    plan = make([node(1), node(2)], engine="sglang", arguments={"trust-remote-code": False})
    assert plan.problems == ["--trust-remote-code: false: the engine has no option to turn it off; leave it out or set it to null."]


def test_an_image_that_does_not_tell_its_options_is_refused_unless_the_user_says_otherwise() -> None:
    silent = dataclasses.replace(SETTINGS, parser=None, parser_problem="vLLM in vllm:1 did not tell its options.")
    assert make([node(1), node(2)], silent).problems == [
        "The arguments can't be checked: vLLM in vllm:1 did not tell its options. Set tp_launch_verify_arguments to false to start unchecked."
    ]
    accepted = make([node(1), node(2)], dataclasses.replace(silent, verify_arguments=False))
    assert accepted.problems == [] and "the arguments are valid: vLLM in vllm:1 did not tell its options." in accepted.assumed


def test_what_was_not_measured_is_told_as_assumed() -> None:
    nodes = [node(1, info__image=None, memory={}, model={}), node(2, memory={}, model={})]
    plan = make(nodes, dataclasses.replace(SETTINGS, parser=None))
    assert plan.assumed == [
        "one GPU a node: none was seen",
        "the image vllm:1 is not on spark1 yet: its content and options are unknown",
        "the arguments are valid: no image could be asked",
        "the model fits: the size of its weights is not known",
    ]


def test_an_api_open_to_everybody_is_told() -> None:
    plan = make([node(1), node(2)], dataclasses.replace(SETTINGS, api_key=None))
    assert plan.notes == ["the API is open to everybody who reaches the head: tp_launch_api_key or tp_launch_listen_address closes it"]
    assert make([node(1), node(2)]).notes == []


def test_the_screen_shows_all_that_matters() -> None:
    nodes = deployed(running=False, exit_code=137)
    nodes[1].info["image"]["identity"] = "sha256:old"
    text = "\n".join(_screen.screen(make(nodes)))
    for part in (
        "Plan for tiny: org/tiny by vLLM, tensor parallel size 2 over 2 nodes",
        "0     spark1  192.168.200.11  enp1s0f0np0  rocep1s0f0   110.0 GiB of 121.0 GiB  runs since 2026-11-29T10:00:00Z",
        "1     spark2  192.168.200.12  enp1s0f0np0  rocep1s0f0   110.0 GiB of 121.0 GiB  ended (137)",
        "/srv/models/tiny: 20.0 GiB of weights, 10.0 GiB a rank",
        "vllm:1: 2.0 GiB on spark1, goes to spark2",
        "2 in the recipe, gpu-memory-utilization 0.8",
        " by the plan, checked by the parser of vLLM 0.32.0",
        "action     stop all ranks, then start all ranks, workers first",
        "because    rank 1 on spark2 has ended (exit code 137)",
    ):
        assert part in text, text


def test_how_long_it_will_be_away_is_told() -> None:
    nodes = deployed()
    nodes[0].info["ledger"] = {"tiny": {"good": {"answered": True, "seconds_to_ready": 95.2}}}
    assert make(nodes).away is None
    plan = make(nodes, arguments={"max-model-len": 1024})
    assert plan.away == 95.2
    assert "  time       it serves now, and is away about 95 s, as long as its last start took" in _screen.screen(plan)
    nodes[1].info["containers"] = []
    nodes[0] = dataclasses.replace(nodes[0], proof={})
    assert "  time       it serves after about 95 s, as long as its last start took" in _screen.screen(make(nodes))


def test_what_others_hold_stops_a_restart_that_can_not_fit() -> None:
    """A running deployment is not stopped for one that will not fit beside them."""
    nodes = deployed()
    nodes[1].memory.update(
        total_bytes=15 * GIB,
        available_bytes=1 * GIB,
        processes=[
            {"pid": 6, "name": "VLLM::Worker", "used_bytes": 4 * GIB, "container": {"name": "tiny-rank1", "image": "vllm:1"}},
            {"pid": 7, "name": "python3", "used_bytes": 8 * GIB, "container": {"name": "embeddings", "image": "tei:1"}},
        ],
    )
    assert make(nodes).problems == []
    assert make(nodes, arguments={"max-model-len": 1024}).problems == [
        "Others hold 8.0 GiB of the 15.0 GiB of spark2, but its rank needs 10.0 GiB for the weights alone: "
        "container embeddings (tei:1) holds 8.0 GiB; stop it first, or let this do it: tp_launch_evict with embeddings."
    ]


# Memory.


def squatted(**changes: t.Any) -> _planner.Node:
    """A node on which somebody's container leaves too little."""
    holder = {"kind": "container", "name": "embeddings", "image": "tei:1", "pid": None, "bytes": 104 * GIB, "gpu_bytes": 104 * GIB}
    return node(2, memory__available_bytes=6 * GIB, memory__free_bytes=6 * GIB, memory__holders=[holder], **changes)


def test_a_container_that_may_go_makes_room() -> None:
    assert len(make([node(1), squatted()]).problems) == 1
    assert len(make([node(1), squatted()], dataclasses.replace(SETTINGS, evict=["another"])).problems) == 1
    plan = make([node(1), squatted()], dataclasses.replace(SETTINGS, evict=["embeddings", "another"]))
    assert (plan.problems, plan.evict) == ([], [[], ["embeddings"]])
    assert plan.memory["nodes"][1]["available_bytes"] == 110 * GIB


def test_nothing_goes_for_a_deployment_that_runs_as_wanted() -> None:
    nodes = deployed()
    nodes[1].memory.update(holders=squatted().memory["holders"])
    plan = make(nodes, dataclasses.replace(SETTINGS, evict=["embeddings"]))
    assert (plan.action, plan.evict, plan.memory) == ("none", [[], []], {})


def test_page_cache_is_given_back_where_it_takes_what_a_start_needs() -> None:
    plan = make([node(1, memory__free_bytes=100 * GIB), node(2, memory__free_bytes=4 * GIB)])
    assert _plan_memory.wanted_free(plan, 0) == 0
    assert _plan_memory.wanted_free(plan, 1) == plan.memory["nodes"][1]["total_bytes"] > 10 * GIB


def test_the_screen_tells_what_the_tightest_node_needs() -> None:
    plan = make([node(1, memory__free_bytes=100 * GIB), node(2, memory__available_bytes=90 * GIB, memory__free_bytes=90 * GIB)])
    lines = _plan_memory.lines(plan)
    assert lines[0] == "what spark2 needs, which has the least to spare, by estimate"
    assert lines[1].split()[:3] == ["weights", "10.0", "GiB"]
    assert [line for line in lines if line.startswith("in all")][0].endswith("of 90.0 GiB that can be had")
    screen = _screen.screen(plan)
    assert any(line.startswith("  memory     what spark2 needs") for line in screen)


def test_shared_pages_stop_no_restart() -> None:
    """A process and its forks are told with the same pages each."""
    nodes = deployed()
    forks = [{"kind": "process", "name": "python3", "image": None, "pid": pid, "bytes": 60 * GIB, "gpu_bytes": 0} for pid in range(4)]
    nodes[1].memory.update(holders=forks, available_bytes=40 * GIB)
    assert make(nodes, arguments={"max-model-len": 1024}).problems == []


def test_each_engine_is_told_of_stages_and_experts_in_its_own_words() -> None:
    wide = {**RECIPE, "pipeline_parallel_size": 2, "expert_parallel": True}
    for engine, words in (("vllm", ["--pipeline-parallel-size 2", "--enable-expert-parallel"]), ("sglang", ["--pp-size 2", "--ep-size 2"])):
        plan = _planner.make(_recipe.parse(wide, {"engine": engine}), [node(number) for number in range(1, 5)], dataclasses.replace(SETTINGS, parser=None))
        commands = [" ".join(_container.public(request)["command"]) for request in plan.requests]
        assert all(word in command for word in words for command in commands) and "--nnodes 4" in commands[3]
        # What a recipe does not ask for is said to no engine: a launch of before there was such a key stays as it was started.
        [plain, _other] = make([node(1), node(2)], engine=engine).requests
        assert not any(word.split()[0] in _container.public(plain)["command"] for word in words)


def test_stages_share_the_weights() -> None:
    plan = _planner.make(_recipe.parse({**RECIPE, "pipeline_parallel_size": 2}, {}), [node(number) for number in range(1, 5)], SETTINGS)
    assert _plan_memory.weights_per_rank(plan) == 5 * GIB


def test_a_model_that_can_not_be_split_so_is_refused_with_what_can() -> None:
    config = {"num_attention_heads": 9, "num_hidden_layers": 4}
    plan = make([node(1, model__config=config), node(2)])
    assert plan.problems == [
        "tensor_parallel_size 2 does not divide the model's 9 attention heads: possible for this model on 2 nodes with 1 GPU each are tensor_parallel_size 1 "
        "with pipeline_parallel_size 2 and tensor_parallel_size 1 and replicas 2, or change the inventory's workers."
    ]


@pytest.mark.parametrize("engine, refused", [("vllm", False), ("sglang", True)])
def test_a_workers_port_matters_where_every_rank_listens(engine: str, refused: bool) -> None:
    number = 8000 if engine == "vllm" else 30000
    taken = [{"port": number, "container": "other-rank0", "pid": 7, "process": "python3"}]
    plan = make([node(1), node(2, info__listeners=taken)], dataclasses.replace(SETTINGS, parser=None), engine=engine)
    assert plan.problems == ([f"Port {number} on spark2 is taken by container other-rank0: stop it, or set another port."] if refused else [])
