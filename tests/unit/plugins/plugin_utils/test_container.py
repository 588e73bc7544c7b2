# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A rank's container: its privileges, its secrets, and what its hash sees."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import subprocess
import sys

import pytest

from ansible_collections.sparkstack.inference.plugins.module_utils import _engines
from ansible_collections.sparkstack.inference.plugins.module_utils._engines._types import RankSpec
from ansible_collections.sparkstack.inference.plugins.plugin_utils import _container

RANK = RankSpec(
    model_path="/srv/models/m",
    served_name="m",
    rank=0,
    ranks=2,
    tensor_parallel_size=2,
    address="192.168.200.11",
    head_address="192.168.200.11",
    rendezvous_port=29501,
    port=8000,
    listen_address="0.0.0.0",
    arguments={"max-model-len": 512, "enable-prefix-caching": False, "compilation-config": {"level": 3}, "seed": None},
)
REQUEST = _container.Request(
    deployment="d",
    engine=_engines.get("vllm"),
    image="vllm:1",
    rank=RANK,
    model_mount="/srv/models/m",
    environment={"NCCL_IB_HCA": "rocep1s0f0", "HF_TOKEN": "hf_verysecret"},
    image_identity="sha256:aa",
)


def test_vllm_head_and_worker_commands() -> None:
    head = REQUEST.engine.launch.command(RANK)
    assert head == (
        "vllm serve /srv/models/m --served-model-name m --tensor-parallel-size 2 --nnodes 2 --node-rank 0 "
        "--distributed-executor-backend mp --master-addr 192.168.200.11 --master-port 29501 --host 0.0.0.0 --port 8000 "
        "--max-model-len 512 --no-enable-prefix-caching --compilation-config"
    ).split() + ['{"level": 3}']
    worker = REQUEST.engine.launch.command(dataclasses.replace(RANK, rank=1, arguments={}))
    assert worker[-1] == "--headless" and "--port" not in worker


def test_sglang_commands_keep_the_key_out_of_the_command_line() -> None:
    engine = _engines.get("sglang")
    plain = dataclasses.replace(RANK, arguments={"trust-remote-code": True, "mem-fraction-static": 0.6})
    assert (
        engine.launch.command(plain)
        == (
            "python3 -m sglang.launch_server --model-path /srv/models/m --served-model-name m --tp-size 2 --nnodes 2 "
            "--node-rank 0 --dist-init-addr 192.168.200.11:29501 --host 0.0.0.0 --port 8000 --trust-remote-code "
            "--mem-fraction-static 0.6"
        ).split()
    )
    keyed = engine.launch.command(dataclasses.replace(plain, with_api_key=True))
    assert keyed[:2] == ["python3", "-c"] and "SGLANG_API_KEY" in keyed[2] and "--api-key" not in keyed[3:]


# What SGLang does with its options: reads them by argparse, prints them whole, copies them, sends them to processes that it
# spawns, and compares the header of a request.
SGLANG = """
import argparse, copy, dataclasses, multiprocessing, sys

@dataclasses.dataclass
class ServerArgs:
    model_path: str
    api_key: str

def child(args, queue):
    queue.put([type(args.api_key).__name__, args.api_key[::-1]])

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--model-path", type=str)
    parser.add_argument("--api-key", type=str)
    server_args = ServerArgs(**vars(parser.parse_args(sys.argv[1:])))
    print(f"{server_args=} {dataclasses.asdict(server_args)} {copy.deepcopy(server_args)}")
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=child, args=(server_args, queue))
    process.start()
    print(queue.get(timeout=30), f"Bearer {server_args.api_key}" == "Bearer " + "1174-tset-ks"[::-1])
    process.join()
"""


def test_sglang_gets_the_key_and_does_not_print_it(tmp_path: pathlib.Path) -> None:
    package = tmp_path / "sglang"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "launch_server.py").write_text(SGLANG)
    keyed = dataclasses.replace(RANK, with_api_key=True, arguments={})
    program = _engines.get("sglang").launch.command(keyed)[2]
    done = subprocess.run(
        [sys.executable, "-c", program, "--model-path", "/srv/models/m"],
        env={"PYTHONPATH": str(tmp_path), "SGLANG_API_KEY": "sk-test-4711"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    printed, told = done.stdout.splitlines()
    assert printed.count("'***'") == 3
    assert told == "['str', '1174-tset-ks'] True"
    assert "sk-test-4711" not in done.stdout + done.stderr


def test_the_container_has_no_more_privilege_than_it_needs() -> None:
    options = _container.options(REQUEST)
    assert options["cap_drop"] == ["ALL"] and options["capabilities"] == []
    assert options["security_opts"] == ["no-new-privileges"]
    assert "privileged" not in options
    assert options["restart_policy"] == "no"
    assert options["volumes"][0] == "/srv/models/m:/srv/models/m:ro"
    assert options["volumes"][1] == "/var/cache/sparkstack/vllm:/cache:rw"
    assert "memlock:-1:-1" in options["ulimits"]
    assert options["device_requests"] == [{"count": -1, "capabilities": [["gpu"]]}]
    assert "devices" not in options
    with_rdma = _container.options(dataclasses.replace(REQUEST, infiniband=True, gpus=False))
    assert with_rdma["devices"] == ["/dev/infiniband:/dev/infiniband"] and "device_requests" not in with_rdma


@pytest.mark.parametrize(
    "change",
    [
        {"image": "vllm:2"},
        {"image_identity": "sha256:bb"},
        {"environment": {"NCCL_IB_HCA": "rocep1s0f1", "HF_TOKEN": "hf_verysecret"}},
        {"environment": {"NCCL_IB_HCA": "rocep1s0f0", "HF_TOKEN": "hf_other"}},
        {"rank": dataclasses.replace(RANK, port=8001)},
        {"shm_size": "4g"},
        {"api_key_fingerprint": "x"},
    ],
)
def test_the_hash_sees_every_change(change: dict) -> None:
    before, after = (_container.spec_hash(_container.public(request)) for request in (REQUEST, dataclasses.replace(REQUEST, **change)))
    assert before != after
    assert before == _container.spec_hash(_container.public(dataclasses.replace(REQUEST)))


def test_the_order_of_a_recipes_arguments_is_no_difference() -> None:
    turned = dataclasses.replace(REQUEST, rank=dataclasses.replace(RANK, arguments=dict(reversed(RANK.arguments.items()))))
    before, after = _container.public(REQUEST), _container.public(turned)
    assert before["command"] != after["command"] and _container.differences(before, after) == []
    assert _container.spec_hash(before) == _container.spec_hash(after)


def test_labels_tell_the_launch_and_no_secret() -> None:
    labels = _container.labels(REQUEST, "L1")
    assert labels["sparkstack.launch_id"] == "L1" and labels["sparkstack.rank"] == "0" and labels["sparkstack.ranks"] == "2"
    assert "hf_verysecret" not in json.dumps(labels)
    assert json.loads(labels["sparkstack.spec"])["env"]["NCCL_IB_HCA"] == "rocep1s0f0"


def test_secrets_reach_the_engine_by_a_file_that_only_root_reads() -> None:
    options = _container.options(REQUEST)
    assert "hf_verysecret" not in json.dumps(options)
    assert options["entrypoint"] == ["/bin/sh", "-c", 'set -a; . /run/secrets/sparkstack.env; set +a; exec "$@"', "sh"]
    assert options["command"][:2] == ["vllm", "serve"]
    assert "/var/lib/sparkstack/secrets/d-rank0.env:/run/secrets/sparkstack.env:ro" in options["volumes"]
    found = _container.secrets(REQUEST, "k'ey")
    assert found == {"HF_TOKEN": "hf_verysecret", "VLLM_API_KEY": "k'ey"}
    # A shell reads it as it was meant.
    program = _container.secrets_text(found) + 'printf "%s" "$VLLM_API_KEY"'
    assert subprocess.run(["/bin/sh", "-c", program], capture_output=True, text=True, check=True).stdout == "k'ey"
    plain = _container.options(dataclasses.replace(REQUEST, environment={}))
    assert plain["entrypoint"] == ["vllm"] and len(plain["volumes"]) == 2


def test_the_key_leaves_a_fingerprint_only() -> None:
    assert _container.fingerprint(None, "d") is None
    first = _container.fingerprint("key", "d")
    assert first == _container.fingerprint("key", "d") != _container.fingerprint("kez", "d")
    assert first is not None and "key" not in first


@pytest.mark.parametrize("name", ["HF_TOKEN", "STORE_PASS", "NGC_KEY", "CACHE_PASSPHRASE"])
def test_what_support_bundles_hide_no_container_shows(name: str) -> None:
    request = dataclasses.replace(REQUEST, environment={name: "sesame"})
    shown = json.dumps([_container.options(request), _container.public(request), _container.labels(request, "L1")])
    assert "sesame" not in shown and _container.secrets(request) == {name: "sesame"}
    # As slow to be guessed back as the API key, and no other deployment's or variable's.
    assert _container.public(request)["env"][name] == f"secret:{_container.fingerprint('sesame', f'd/{name}')}"


def test_differences_are_told_option_by_option() -> None:
    before = _container.public(REQUEST)
    after = _container.public(
        dataclasses.replace(REQUEST, environment={"NCCL_IB_HCA": "b"}, rank=dataclasses.replace(RANK, arguments={"max-model-len": 1024, "enforce-eager": True}))
    )
    assert _container.differences(before, after) == [
        '--compilation-config: {"level": 3} -> none',
        "--enforce-eager: none -> set",
        "--max-model-len: 512 -> 1024",
        "--no-enable-prefix-caching: set -> none",
        f"env.HF_TOKEN: {before['env']['HF_TOKEN']} -> none",
        "env.NCCL_IB_HCA: rocep1s0f0 -> b",
        "secrets: /var/lib/sparkstack/secrets/d-rank0.env -> none",
    ]
    assert _container.differences(before, before) == []


@pytest.mark.parametrize(("names", "told"), [(None, None), ((), {}), (("gpu-memory-utilization",), {"gpu-memory-utilization": 0.8})])
def test_what_was_computed_is_told_by_a_label_and_is_no_part_of_the_content(names: tuple[str, ...] | None, told: dict[str, float] | None) -> None:
    rank = dataclasses.replace(REQUEST.rank, arguments={"gpu-memory-utilization": 0.8})
    said = dataclasses.replace(REQUEST, rank=rank)
    request = dataclasses.replace(said, planned=names)
    assert _container.planned(request) == told
    assert _container.labels(request, "L1").get("sparkstack.planned") == (None if told is None else json.dumps(told))
    assert _container.spec_hash(_container.public(request)) == _container.spec_hash(_container.public(said))
