# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The whole plan: two Sparks, other GPUs, none; what fits, what does not and what would help."""

from __future__ import annotations

import functools
import typing as t

import model_shapes
import pytest

from ansible_collections.sparkstack.inference.plugins.module_utils._model import config_summary
from ansible_collections.sparkstack.inference.plugins.module_utils._tensors import groups
from ansible_collections.sparkstack.inference.plugins.plugin_utils._footprint import plan_memory

GIB = 1024**3
SPARK = 128524206080  # "MemTotal: 125511920 kB"


@functools.cache
def model(name: str) -> dict[str, t.Any]:
    return {"config": config_summary(model_shapes.MODELS[name][0]), "tensors": groups(model_shapes.tensors(name))}


def spark(available: float = 112, free: float = 90, **more: t.Any) -> dict[str, t.Any]:
    """A GB10: the driver tells no size."""
    gpus = [{"index": 0, "name": "NVIDIA GB10", "total_bytes": None}]
    return {"unified": True, "total_bytes": SPARK, "available_bytes": int(available * GIB), "free_bytes": int(free * GIB), "gpus": gpus, **more}


def h200(free: float = 139.7, count: int = 1) -> dict[str, t.Any]:
    gpus = [{"index": at, "name": "NVIDIA H200", "total_bytes": 143771 * 1024**2} for at in range(count)]
    return {
        "unified": False,
        "total_bytes": count * 143771 * 1024**2,
        "available_bytes": int(count * free * GIB),
        "free_bytes": int(count * free * GIB),
        "gpus": gpus,
    }


def plan(name: str, engine: str = "sglang", arguments: dict[str, t.Any] | None = None, facts: t.Any = None, size: int = 2, **more: t.Any) -> dict[str, t.Any]:
    facts = [spark(), spark(110)] if facts is None else facts
    nodes = [(f"spark{at + 1}", each) for at, each in enumerate(facts)]
    return plan_memory(model(name), engine, arguments or {}, nodes, size, **more)


def need(found: dict[str, t.Any], what: str, at: int = 0) -> int:
    return sum(row["bytes"] for row in found["nodes"][at]["needs"] if row["what"] == what)


def test_the_mission_s_model_fits_on_two_sparks() -> None:
    """About 60 GB of weights a node."""
    found = plan("Qwen3.5-122B-A10B-FP8")
    assert (found["fits"], found["problems"], found["assumed"]) == (True, [], [])
    assert need(found, "weights") / GIB == pytest.approx(58.1, abs=0.1)
    assert (found["context_length"], found["context_length_that_fits"]) == (262144, 262144)
    assert found["knob"]["option"] == "mem-fraction-static" and found["knob"]["node"] == "spark2"
    assert 0.75 < found["knob"]["value"] < 0.88
    for row in found["nodes"]:
        assert row["total_bytes"] == sum(each["bytes"] for each in row["needs"])
        assert row["spare_bytes"] == row["available_bytes"] - row["total_bytes"]
        assert all(each["why"] for each in row["needs"])


def test_the_table_of_requests_that_sglang_keeps_beside_its_cache() -> None:
    """At "Memory pool end" of a real launch with these numbers 2.29 GiB more were gone than the cache."""
    found = plan("Qwen3.5-122B-A10B-FP8", "sglang", {"max-running-requests": 2162})
    assert need(found, "requests") == 2163 * 262148 * 4
    assert "requests" not in [each["what"] for each in plan("Qwen3.5-122B-A10B-FP8", "vllm")["nodes"][0]["needs"]]


def test_and_not_on_one() -> None:
    found = plan("Qwen3.5-122B-A10B-FP8", facts=[spark()], size=1)
    assert (found["fits"], found["nodes"][0]["fits"]) == (False, False)
    [problem] = found["problems"]
    assert problem.startswith("spark1 lacks ") and "spread it over 2 nodes (tensor parallel size 2)" in problem


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
@pytest.mark.parametrize("name", sorted(set(model_shapes.MODELS) - {"DeepSeek-V3", "Qwen3-235B-A22B"}))
def test_what_is_recommended_leaves_every_node_what_it_needs(name: str, engine: str) -> None:
    """Setting the recommended value is planned as well as leaving it open, and is no problem."""
    facts = [spark(), spark(104), spark(), spark()]
    found = plan(name, engine, facts=facts, size=4)
    given = plan(name, engine, {found["knob"]["option"]: found["knob"]["recommended"]}, facts=facts, size=4)
    assert (found["fits"], found["problems"], given["problems"]) == (True, [], [])
    assert found["knob"]["node"] == "spark2"
    assert given["tokens_that_fit"] == found["tokens_that_fit"] > 8192
    for row in found["nodes"]:
        held = row["total_bytes"] - need({"nodes": [row]}, "cache") + row["pool_bytes"]
        assert held <= row["available_bytes"]


def test_the_page_cache_that_must_go_first_is_told() -> None:
    """What both engines take for free counts it as such, and CUDA does not."""
    found = plan("Qwen3.5-122B-A10B-FP8", facts=[spark(112, free=30), spark(112, free=111)])
    assert found["nodes"][0]["reclaim_bytes"] == found["nodes"][0]["total_bytes"] - 30 * GIB
    assert found["nodes"][1]["reclaim_bytes"] == 0


def test_what_comes_back_before_is_available() -> None:
    held = spark(50, coming_back_bytes=60 * GIB)
    found = plan("Qwen3.5-122B-A10B-FP8", facts=[held, held])
    assert (found["fits"], found["nodes"][0]["available_bytes"]) == (True, 110 * GIB)


def test_the_seed_s_forgotten_container_is_named() -> None:
    holders = [{"kind": "container", "name": "embeddings", "image": "tei:1.8", "pid": None, "bytes": 52 * GIB}]
    found = plan("Qwen3.5-122B-A10B-FP8", facts=[spark(), spark(58, holders=holders)])
    [problem] = found["problems"]
    assert problem.startswith("spark2 lacks ")
    assert "stop container embeddings (tei:1.8), which holds 52.0 GiB there" in problem
    assert problem.count(",") >= 2 and problem.endswith(".") and ". " not in problem


def test_a_process_on_the_gpu_is_named_where_no_holders_were_gathered() -> None:
    processes = [{"pid": 77, "name": "python3", "used_bytes": 70 * GIB, "container": None}]
    found = plan("Qwen3.5-122B-A10B-FP8", facts=[spark(42, processes=processes), spark()])
    assert "stop process 77 (python3), which holds 70.0 GiB there" in found["problems"][0]


def test_a_context_that_is_too_long_is_shortened() -> None:
    """vLLM does not start unless one request of the whole context fits."""
    found = plan("Llama-3.3-70B", "vllm", facts=[spark(90), spark(90)])
    [problem, _other] = found["problems"]
    assert "set max-model-len to " in problem
    advised = int(problem.split("set max-model-len to ")[1].split(",")[0].split(" ")[0])
    assert 4096 <= advised < 131072
    assert plan("Llama-3.3-70B", "vllm", {"max-model-len": advised}, facts=[spark(90), spark(90)])["fits"] is True


def test_sglang_starts_with_fewer_tokens_than_the_context_and_that_is_noted() -> None:
    found = plan("Llama-3.3-70B", facts=[spark(96), spark(96)])
    assert (found["fits"], found["problems"]) == (True, [])
    assert found["context_length_that_fits"] < 131072
    assert found["notes"] == [f"requests of at most {found['context_length_that_fits']} tokens fit, where 131072 are allowed"]


def test_a_context_that_the_recipe_asks_for_must_fit() -> None:
    found = plan("Llama-3.3-70B", arguments={"context-length": 131072}, facts=[spark(88), spark(88)])
    assert found["fits"] is False
    assert "set context-length to " in found["problems"][0]


@pytest.mark.parametrize(
    ("engine", "arguments", "words"),
    [
        ("sglang", {"mem-fraction-static": 0.3}, "mem-fraction-static 0.3 leaves 0 MiB for the cache of spark1, too little for one request"),
        ("sglang", {"mem-fraction-static": 0.99}, "mem-fraction-static 0.99 leaves 3.1 GiB of spark1 beside weights and cache, but graphs"),
        ("vllm", {"gpu-memory-utilization": 0.95}, "gpu-memory-utilization 0.95 asks for 113.7 GiB of spark1, where "),
        ("vllm", {"gpu-memory-utilization": 0.45}, "gpu-memory-utilization 0.45 leaves 0 MiB for the cache of spark1"),
        ("vllm", {"kv-cache-memory-bytes": "60G", "gpu-memory-utilization": 0.5}, "kv-cache-memory-bytes 60.0 GiB leaves 0 MiB of spark1 beside"),
        ("vllm", {"kv-cache-memory-bytes": 1000}, "kv-cache-memory-bytes 0 MiB leaves 0 MiB for the cache of spark1"),
    ],
)
def test_what_the_recipe_sets_is_honoured_and_judged(engine: str, arguments: dict[str, t.Any], words: str) -> None:
    found = plan("Qwen3.5-122B-A10B-FP8", engine, arguments)
    assert found["knob"]["given"] is True
    assert found["knob"]["option"] == next(iter(arguments))
    assert found["problems"][0].startswith(words)
    assert f"set {'mem-fraction-static' if engine == 'sglang' else 'gpu-memory-utilization'} to " in found["problems"][0]
    assert found["fits"] is True, "the model does, that setting does not"


def test_the_shipped_recipe_s_settings_are_fine() -> None:
    sglang = {"mem-fraction-static": 0.60, "context-length": 262144, "kv-cache-dtype": "fp8_e4m3", "cuda-graph-max-bs-decode": 8}
    vllm = {"gpu-memory-utilization": 0.80, "max-model-len": 65536, "max-num-seqs": 4, "max-num-batched-tokens": 16384, "kv-cache-dtype": "fp8"}
    for engine, arguments in (("sglang", sglang), ("vllm", {**vllm, "language-model-only": True})):
        found = plan("Qwen3.5-122B-A10B-FP8", engine, arguments)
        assert (found["problems"], found["context_length_that_fits"]) == ([], found["context_length"])
        assert found["cache_token_bytes"] == [6144, 6144]


def test_little_left_to_the_system_is_noted() -> None:
    found = plan("Qwen3.5-122B-A10B-FP8", "sglang", {"mem-fraction-static": 0.94})
    assert found["problems"] == []
    assert found["notes"][0].startswith("mem-fraction-static 0.94 leaves little of spark1 to the system: set mem-fraction-static to 0.8")


def test_a_larger_batch_costs_what_it_takes() -> None:
    small, large = (need(plan("Qwen3.5-122B-A10B-FP8", arguments={"chunked-prefill-size": size}), "activations") for size in (2048, 16384))
    assert large > 3 * small


def test_without_graphs_nothing_is_kept_for_them() -> None:
    assert need(plan("Llama-3.3-70B", "vllm", {"enforce-eager": True}), "graphs") == 0
    assert need(plan("Llama-3.3-70B", "vllm"), "graphs") > 0


def test_moving_weights_to_main_memory_helps_a_gpu_of_its_own_only() -> None:
    arguments = {"cpu-offload-gb": 20}
    assert need(plan("Llama-3.3-70B", "vllm", arguments), "weights") == need(plan("Llama-3.3-70B", "vllm"), "weights")
    alone = [need(plan("Llama-3.3-70B", "vllm", each, facts=[h200()], size=1), "weights") for each in ({}, arguments)]
    assert alone[0] - alone[1] == 20 * GIB


def test_a_pipeline_has_stages_of_its_own() -> None:
    found = plan("Qwen3-235B-A22B-FP8", "vllm", {"max-model-len": 8192}, facts=[spark()] * 3, size=1, pipeline_parallel_size=3)
    first, second, third = found["weights_bytes"]
    angles = 40960 * 128 * 2
    whole = plan("Qwen3-235B-A22B-FP8", "vllm", size=1, facts=[spark()])["weights_bytes"][0]
    assert first > second and first + second + third == pytest.approx(whole + 2 * angles, abs=1000)
    assert found["cache_token_bytes"] == [2 * layers * 4 * 128 * 2 for layers in (31, 31, 32)]


def test_speculation_is_counted_in_weights_and_cache() -> None:
    plain = plan("Qwen3.5-122B-A10B-FP8", "vllm")
    drafting = plan("Qwen3.5-122B-A10B-FP8", "vllm", {"speculative-config": '{"method": "mtp", "num_speculative_tokens": 2}'})
    assert drafting["weights_bytes"][0] - plain["weights_bytes"][0] == drafting["draft_bytes"] > GIB
    assert drafting["cache_token_bytes"][0] * 12 == plain["cache_token_bytes"][0] * 13


def test_several_gpus_a_node_each_hold_a_rank() -> None:
    found = plan("Llama-3.3-70B", "vllm", facts=[h200(count=2), h200(count=2)], size=4)
    assert need(found, "weights") == 2 * found["weights_bytes"][0]
    assert need(found, "processes") == 0
    assert found["fits"] is True and found["nodes"][0]["available_bytes"] == int(2 * 139.7 * GIB)
    with_spare = plan("Llama-3.3-70B", "vllm", facts=[h200(count=8)], size=4)
    assert with_spare["nodes"][0]["available_bytes"] == pytest.approx(4 * 139.7 * GIB, abs=10)


def test_a_node_without_a_gpu_gives_the_engine_what_the_variable_says() -> None:
    """vLLM's build for CPUs, as in the laboratory: 1 GiB, two ranks."""
    facts = {"unified": False, "total_bytes": 24 * GIB, "available_bytes": 14 * GIB, "free_bytes": 10 * GIB, "gpus": [], "processes": []}
    config = {"architectures": ["Qwen3ForCausalLM"], "num_hidden_layers": 4, "hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2}
    config.update(head_dim=32, intermediate_size=512, vocab_size=512, max_position_embeddings=2048, dtype="bfloat16")
    found = plan_memory(
        {"config": config, "tensors": [], "weight_bytes": 2200000},
        "vllm",
        {"max-model-len": 512, "enforce-eager": True},
        [("spark1", facts), ("spark2", facts)],
        2,
        environment={"VLLM_CPU_KVCACHE_SPACE": "1"},
    )
    assert found["knob"]["option"] == "kv-cache-memory-bytes" and found["knob"]["given"]
    assert (found["tokens_that_fit"], found["concurrency_that_fits"], found["fits"]) == (2097152, 4096, True)
    assert need(found, "CUDA context") == need(found, "graphs") == 0 and found["notes"] == []
    both = {"max-model-len": 512, "enforce-eager": True, "kv-cache-memory-bytes": "4G"}
    again = plan_memory({"config": config, "weight_bytes": 2200000}, "vllm", both, [("spark1", facts)] * 2, 2, environment={"VLLM_CPU_KVCACHE_SPACE": "1"})
    assert again["knob"]["value"] == GIB and "heeds VLLM_CPU_KVCACHE_SPACE and not kv-cache-memory-bytes beside it" in again["notes"][0]


def test_nothing_measured_is_assumed_to_fit() -> None:
    found = plan("Qwen3.5-122B-A10B-FP8", facts=[{}, {}])
    assert (found["fits"], found["knob"], found["problems"], found["nodes"][0]["available_bytes"]) == (None, None, [], None)
    assert found["assumed"] == [f"{name} has room for all of it: its memory was not measured" for name in ("spark1", "spark2")]
    assert need(found, "weights") > 50 * GIB


def test_one_node_measured_is_planned_and_the_whole_stays_open() -> None:
    found = plan("Qwen3.5-122B-A10B-FP8", facts=[spark(), {}])
    assert (found["fits"], found["nodes"][0]["fits"], found["nodes"][1]["fits"]) == (None, True, None)
    assert found["knob"]["node"] == "spark1"
    assert plan("Qwen3.5-122B-A10B-FP8", facts=[spark(20), {}])["fits"] is False


@pytest.mark.parametrize("told", [{}, {"config": {}, "tensors": [], "weight_bytes": 0}])
def test_a_model_that_is_not_there_refuses_nothing(told: dict[str, t.Any]) -> None:
    found = plan_memory(told, "sglang", {}, [("spark1", spark()), ("spark2", spark())], 2)
    assert (found["fits"], found["problems"]) == (None, [])
    assert "the model fits: the size of its weights is not known" in found["assumed"]


def test_a_model_whose_size_alone_is_known_is_split_evenly() -> None:
    found = plan_memory({}, "sglang", {}, [("spark1", spark()), ("spark2", spark())], 2, model_bytes=127775000000)
    assert (found["fits"], found["weights_bytes"][0], found["context_length_that_fits"]) == (True, 63887500000, None)
    assert "the weights are split evenly over the ranks: their tensors are not known" in found["assumed"]
    assert found["knob"]["value"] > 0.7


def test_a_configuration_that_is_not_understood_yields_unknown_parts() -> None:
    odd = {"config": {"architectures": ["WondrousModel"], "model_type": "wondrous"}, "tensors": model("Llama-3.3-70B")["tensors"]}
    found = plan_memory(odd, "vllm", {}, [("spark1", spark()), ("spark2", spark())], 2)
    assert found["problems"] == [] and found["tokens_that_fit"] is None
    assert "the cache takes nothing: config.json does not tell its shape" in found["assumed"]


def test_an_engine_must_be_known() -> None:
    with pytest.raises(ValueError, match="'triton' is not an engine: choose sglang or vllm"):
        plan_memory({}, "triton", {}, [], 1)


def test_a_result_is_plain_data() -> None:
    import json

    found = plan("gpt-oss-120b", "vllm")
    assert json.loads(json.dumps(found)) == found
