# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""inference_launch, inference_info, engine_options_info and inference_proof on a real node: check, run, check, run."""

from __future__ import annotations

import json
import pathlib
import re
import subprocess
import sys
import typing as t

import pytest
import yaml

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lab"))

import play  # noqa: E402  (the path above must come first)

pytestmark = [pytest.mark.lab, pytest.mark.engine]

IMAGE = yaml.safe_load((play.ROOT / "tests/lab/recipes/tiny-qwen3-moe.yml").read_text())["engines"]["vllm"]["image"]
RANK = {
    "deployment": "alone",
    "engine": "vllm",
    "image": IMAGE,
    "model": "/srv/models/tiny-qwen3-moe",
    "rank": 0,
    "ranks": 2,
    "head_address": "192.168.200.11",
    "rendezvous_port": 29555,
    "port": 8055,
    "arguments": {"dtype": "bfloat16", "max-model-len": 512, "enforce-eager": True},
    "environment": {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_TOKEN": "hf_lab_secret_1"},
    "shm_size": "1g",
    "memory": "4g",
}


def module(name: str, args: dict[str, t.Any], *options: str) -> dict[str, t.Any]:
    """Run a module on the head as root; its result."""
    command = [str(play.BIN / "ansible"), "spark1", "-i", play.inventory(), "-b", "-m", f"sparkstack.inference.{name}"]
    environment = {**play.environment(), "ANSIBLE_CALLBACK_RESULT_FORMAT": "json", "ANSIBLE_LOAD_CALLBACK_PLUGINS": "1"}
    done = subprocess.run(
        [*command, "-a", json.dumps(args), *options], env=environment, cwd=play.ROOT, capture_output=True, text=True, timeout=400, check=False
    )
    # A diff and a failure's origin stand before it: spark1 | CHANGED => {
    start = re.search(r"^spark1 \| ([A-Z]+)!? => ", done.stdout, re.MULTILINE)
    assert start, done.stdout + done.stderr
    result, _end = json.JSONDecoder().raw_decode(done.stdout[start.end() :])
    # The command prints these two otherwise than as keys of the result.
    result.update(failed=start[1] == "FAILED", diff_lines=re.findall(r"^[+-] .*$", done.stdout[: start.start()], re.MULTILINE))
    return t.cast("dict[str, t.Any]", result)


@pytest.fixture(scope="module", autouse=True)
def engine() -> t.Iterator[None]:
    play.lab("up")
    play.install_engine()
    play.empty("spark1")
    yield
    play.empty("spark1")


def test_a_rank_is_started_once() -> None:
    check = module("inference_launch", RANK, "--check", "--diff")
    assert check["changed"] and check["actions"] == ["start alone-rank0"] and not play.containers("spark1")
    assert '+  "running": true,' in check["diff_lines"] and not any(line.startswith("-") for line in check["diff_lines"])
    run = module("inference_launch", RANK)
    assert run["changed"] and run["container"]["State"]["Running"] and run["spec_hash"] == check["spec_hash"]
    assert run["command"][:3] == ["vllm", "serve", "/srv/models/tiny-qwen3-moe"]
    assert run["endpoint"] == "http://192.168.200.11:8055/v1"
    check_again = module("inference_launch", RANK, "--check", "--diff")
    assert not check_again["changed"] and not check_again["diff_lines"]
    run_again = module("inference_launch", RANK)
    assert not run_again["changed"] and run_again["container"]["Id"] == run["container"]["Id"]


def test_secrets_are_in_the_environment_only() -> None:
    shown = json.dumps(module("inference_launch", {**RANK, "api_key": "sk-lab-4711"}, "--check", "--diff"))
    assert "hf_lab_secret_1" not in shown and "sk-lab-4711" not in shown
    run = json.dumps(module("inference_launch", RANK))
    assert "hf_lab_secret_1" not in run
    inspection = play.containers("spark1")["alone-rank0"]
    assert "hf_lab_secret_1" not in json.dumps(inspection)
    # The engine has it all the same.
    pids = play.node("spark1", "docker top alone-rank0 -eo pid,args | awk '/vllm serve/ {print $1}'").split()
    assert any("HF_TOKEN=hf_lab_secret_1" in play.node("spark1", f"tr '\\0' '\\n' < /proc/{pid}/environ") for pid in pids)
    assert play.node("spark1", "stat -c '%a %U' /var/lib/sparkstack/secrets/alone-rank0.env").strip() == "400 root"


def test_a_bad_argument_is_refused_and_the_running_rank_left_alone() -> None:
    before = play.containers("spark1")["alone-rank0"]["id"]
    run = module("inference_launch", {**RANK, "arguments": {"max-num-seqz": 8}})
    assert run["failed"] and "--max-num-seqz is not an option of vLLM" in run["msg"] and "--max-num-seqs" in run["msg"]
    assert play.containers("spark1")["alone-rank0"] == {**play.containers("spark1")["alone-rank0"], "id": before, "running": True}


@pytest.mark.parametrize(
    "change, sentence",
    [
        ({"rank": 2}, "rank 2 is not one of the 2 ranks: it goes from 0 to 1."),
        ({"rank": 1}, "rank 1 needs its own address on the fabric: set address."),
        ({"image": "not/there:1"}, "The image not/there:1 is not on this node: bring it there first (role image_sync)."),
        ({"model": None}, "state is started but all of the following are missing: model"),
    ],
)
def test_bad_input_gets_one_sentence(change: dict[str, t.Any], sentence: str) -> None:
    run = module("inference_launch", {**RANK, **change})
    assert run["failed"] and sentence in run["msg"], run


def test_info_tells_what_runs_and_who_listens() -> None:
    info = module("inference_info", {"deployment": "alone", "image": IMAGE, "ports": [22, 29555]})
    assert info["docker"]["reachable"] and info["changed"] is False
    (rank,) = info["containers"]
    assert (rank["name"], rank["rank"], rank["ranks"], rank["running"]) == ("alone-rank0", 0, 2, True)
    assert rank["spec"]["env"]["HF_TOKEN"].startswith("secret:")
    assert info["image"]["architecture"] == info["architecture"] and info["image"]["identity"].startswith("sha256:")
    assert {entry["port"]: entry["process"] for entry in info["listeners"]}[22] == "sshd"


def test_the_options_are_asked_once_an_image() -> None:
    play.node("spark1", "rm -rf /var/cache/sparkstack/options")
    asked = module("engine_options_info", {"image": IMAGE, "engine": "vllm"}, "--check")
    assert not asked["cached"] and asked["parser"]["version"].startswith("0.")
    assert play.node("spark1", "ls /var/cache/sparkstack/options 2>/dev/null || echo none").strip() == "none"
    assert not module("engine_options_info", {"image": IMAGE, "engine": "vllm"})["cached"]
    kept = module("engine_options_info", {"image": IMAGE, "engine": "vllm"})
    assert kept["cached"] and kept["parser"] == asked["parser"]
    flags = {flag for option in kept["parser"]["options"] for flag in option["flags"]}
    assert {"--max-num-seqs", "--tensor-parallel-size", "--headless"} <= flags
    wrong = module("engine_options_info", {"image": IMAGE, "engine": "sglang"})
    assert wrong["parser"] is None and "SGLang in" in wrong["problem"]


def test_a_proof_that_does_not_come_says_why() -> None:
    silent = module("inference_proof", {"url": "http://127.0.0.1:8056/v1", "model": "m", "timeout": 5, "required": False})
    assert silent["answered"] is False and "gave no completion within 5 s" in silent["problem"] and not silent["failed"]
    assert module("inference_proof", {"url": "http://127.0.0.1:8056/v1", "model": "m", "timeout": 5})["failed"]


def test_stopped_keeps_and_absent_removes() -> None:
    for state, there in (("stopped", True), ("absent", False)):
        args = {"deployment": "alone", "state": state, "stop_timeout": 2}
        assert module("inference_launch", args, "--check")["changed"]
        assert "alone-rank0" in play.containers("spark1")
        assert module("inference_launch", args)["changed"]
        assert ("alone-rank0" in play.containers("spark1")) == there
        assert ("alone-rank0.env" in play.node("spark1", "ls /var/lib/sparkstack/secrets")) == there
        assert not module("inference_launch", args, "--check")["changed"]
        assert not module("inference_launch", args)["changed"]
