# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The playbook diagnose on containers that somebody else has started and on a deployment; every command of docs/diagnose.md.

The tests build on each other: first stand two containers started by hand on the nodes, then a deployment that diagnose itself started.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
import stat
import subprocess
import tarfile
import time
import typing as t

import play
import pytest

pytestmark = [pytest.mark.lab, pytest.mark.engine]

DIAGNOSE = "sparkstack.inference.diagnose"
COMMANDS = [
    line
    for block in re.findall(r"^```shell\n(.*?)^```$", (play.ROOT / "docs" / "diagnose.md").read_text(), re.MULTILINE | re.DOTALL)
    for line in block.strip().splitlines()
]
IMAGE = "sparkstack/vllm-cpu:0.32.0"
KEY = "planted-KEY/42+x"
SERVE = "vllm serve /srv/models/tiny-qwen3-moe --dtype bfloat16 --max-model-len 512 --enforce-eager"
WORLD = "--tensor-parallel-size 2 --nnodes 2 --distributed-executor-backend mp --master-addr 192.168.200.11 --master-port 29501"
RUN = "docker run --detach --network host --shm-size 256m --volume /srv/models:/srv/models:ro --env HF_HUB_OFFLINE=1 --env VLLM_CPU_KVCACHE_SPACE=1"


@pytest.fixture(scope="module", name="folder", autouse=True)
def _folder(tmp_path_factory: pytest.TempPathFactory) -> t.Iterator[pathlib.Path]:
    """A user's folder with an inventory, a recipe and two logs, and nodes on which a head waits and a worker's options are wrong."""
    play.lab("up")
    play.install_engine("--images", "spark1,spark2")
    for name in play.RANKS:
        play.node(name, "docker ps -aq | xargs -r docker rm -f; rm -rf /var/lib/sparkstack")
    play.node("spark2", f"{RUN} --name vllm-worker {IMAGE} {SERVE} {WORLD} --node-rank 1 --headless --no-such-option")
    play.node("spark1", f"{RUN} --name vllm-head --env HF_TOKEN={KEY} {IMAGE} {SERVE} {WORLD} --node-rank 0 --api-key '{KEY}'")
    folder = tmp_path_factory.mktemp("user")
    (folder / "sparks.ini").write_text(pathlib.Path(play.inventory()).read_text())
    shutil.copy(play.ROOT / "tests/lab/recipes/tiny-qwen3-moe.yml", folder / "my-recipe.yml")
    for name in ("head.log", "worker.log"):
        shutil.copy(play.ROOT / "tests/fixtures/logs/vllm-cpu/kv-cache-too-big" / name, folder / name)
    ended(play.node, "spark2", "vllm-worker")
    yield folder
    for name in play.RANKS:
        play.node(name, "docker ps -aq | xargs -r docker rm -f; rm -rf /var/lib/sparkstack")


def ended(node: t.Callable[[str, str], str], name: str, container: str) -> None:
    deadline = time.monotonic() + 90
    while node(name, f"docker inspect --format '{{{{.State.Running}}}}' {container}").strip() != "false":
        assert time.monotonic() < deadline, f"{container} does not end"
        time.sleep(1)


def run(command: str, folder: pathlib.Path) -> subprocess.CompletedProcess[str]:
    """A command line as a user types it, from a folder of his own."""
    environment = {**play.environment(), "PATH": f"{play.BIN}:{os.environ['PATH']}"}
    return subprocess.run(["bash", "-c", command], cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False)


def told(done: subprocess.CompletedProcess[str], code: int = 0) -> str:
    """What it said, with line breaks and JSON's quotes folded away."""
    assert done.returncode == code, done.stdout + done.stderr
    return re.sub(r'[\s",]+', " ", done.stdout.replace('\\"', '"'))


def unpacked(path: pathlib.Path) -> dict[str, bytes]:
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with tarfile.open(path) as archive:
        return {member.name.partition("/")[2]: t.cast(t.IO[bytes], archive.extractfile(member)).read() for member in archive}


def without(files: dict[str, bytes], *secrets: str) -> None:
    assert not [name for name, data in files.items() for secret in secrets if secret.encode() in data]


OUTPUT: dict[str, str] = {}
"""What each command of the guide printed."""


def test_every_command_of_the_guide_does_what_it_says(folder: pathlib.Path) -> None:
    by_hand = "FAILED: spark2 (rank 1) was started with options that don't fit"
    expected = {
        "-i sparks.ini": by_hand,
        "container=vllm-head,vllm-worker": by_hand,
        "logs=head.log,worker.log": "FAILED: worker (rank 1) ran out of memory",
        '{"logs":': "FAILED: spark2 (rank 1) ran out of memory",
        "-e json=verdict.json -e strict=true": by_hand,
        "bundle=support.tar.gz": by_hand,
        "relaunch=true": "",
    }
    before = {name: play.containers(name) for name in play.RANKS}
    assert len(COMMANDS) == len(expected)
    for command, (part, sentence) in zip(COMMANDS, expected.items(), strict=True):
        assert part in command
        # The last one is played below.
        if sentence:
            OUTPUT[part] = told(run(command, folder), 2 if "strict" in command else 0)
            assert sentence in OUTPUT[part], command
    assert json.loads((folder / "verdict.json").read_text())["cause"] == "bad_flag"
    assert {name: play.containers(name) for name in play.RANKS} == before


def test_it_says_which_containers_it_took_and_how_far_they_came() -> None:
    text = OUTPUT["-i sparks.ini"]
    assert "The container vllm-worker was taken on spark2 by its command" in text
    assert re.search(r"rank 0 spark1 runs.*rank 1 spark2 ended with exit code 2", text)
    assert "was taken on" not in OUTPUT["container=vllm-head,vllm-worker"]
    assert not [output for output in OUTPUT.values() if KEY in output]


def test_an_inventory_without_our_groups_will_do_and_the_logs_tell_the_order(folder: pathlib.Path) -> None:
    hosts, shared = (folder / "sparks.ini").read_text().partition("[sparks:vars]")[::2]
    addresses = re.findall(r"^spark\d .*", hosts, re.MULTILINE)
    (folder / "other.ini").write_text("\n".join(["[mine]", *reversed(addresses), "[all:vars]", shared]))
    text = told(run(f"ansible-playbook {DIAGNOSE} -i other.ini", folder))
    assert "FAILED: spark2 (rank 1) was started with options" in text


def test_a_bundle_holds_no_secret_in_any_file(folder: pathlib.Path) -> None:
    files = unpacked(folder / "support.tar.gz")
    assert {"report.txt", "verdict.json", "about.json", "spark1/closeup.json"} <= set(files)
    for node in play.RANKS:
        assert {
            f"{node}/{name}" for name in ("container.log", "container.json", "docker.json", "system.txt", "meminfo.txt", "network.txt", "fabric.json")
        } <= set(files)
    assert b"--no-such-option" in files["spark2/container.log"] and b'"HF_TOKEN=***"' in files["spark1/container.json"]
    assert b"model-00001-of-00003.safetensors" in files["spark1/model.txt"]
    without(files, KEY)


@pytest.mark.parametrize(
    "words, sentence",
    [
        ("-e container=nope", "No node has a container nope: correct the name"),
        ("-e deployment=nope", "No node has a rank of 'nope': no node has a deployment."),
        ("-e bundle=support.tar.gz", "support.tar.gz is there already: name another file or replace it with -e force=true."),
        ("-e bundle=none/support.tar.gz", "There is no folder"),
        ("-e bundle=/proc/support.tar.gz", "No file support.tar.gz can be made in /proc"),
        ("-e bundel=other.tar.gz", "There is no variable bundel: do you mean bundle?"),
    ],
)
def test_a_mistake_is_answered_in_one_sentence(words: str, sentence: str, folder: pathlib.Path) -> None:
    assert sentence in told(run(f"ansible-playbook {DIAGNOSE} -i sparks.ini {words}", folder), 2)


def test_a_bundle_of_logs_needs_no_node(folder: pathlib.Path) -> None:
    (folder / "worker.log").write_text(f"vllm serve /m --api-key {KEY}\n" + (folder / "worker.log").read_text())
    told(run(f"ansible-playbook {DIAGNOSE} -e logs=head.log,worker.log -e bundle=logs.tar.gz -e tp_launch_api_key='{KEY}'", folder))
    files = unpacked(folder / "logs.tar.gz")
    assert set(files) == {"about.json", "report.txt", "verdict.json", "variables.json", "head/container.log", "worker/container.log"}
    without(files, KEY)


@pytest.mark.long
def test_a_relaunch_asks_nccl_and_tells_how_it_ends(folder: pathlib.Path) -> None:
    for name in play.RANKS:
        play.empty(name)
    (folder / "secret.yml").write_text(json.dumps({"tp_launch_api_key": KEY}))
    command = next(command for command in COMMANDS if "relaunch" in command)
    text = told(run(f"{command} -e @secret.yml", folder))
    assert "READY: All 2 ranks serve." in text
    assert "The next deploy starts them without it." in text
    for name, rank in play.RANKS.items():
        assert "NCCL_DEBUG=INFO" in play.containers(name)[rank]["config"]["Env"]
    again = told(run(f"{command} -e @secret.yml", folder), 2)
    assert "tiny-qwen3-moe serves: its head has just answered. It is started once more only with -e force=true." in again


@pytest.mark.long
def test_a_healthy_deployment_and_then_a_dead_rank_of_it(folder: pathlib.Path) -> None:
    text = told(run(f"ansible-playbook {DIAGNOSE} -i sparks.ini -e strict=true", folder))
    assert "READY: All 2 ranks serve." in text and "closer look" not in text
    head, worker = (play.RANKS[name] for name in ("spark1", "spark2"))
    # The worker's container has another name, and nothing is wrong with it.
    text = told(run(f"ansible-playbook {DIAGNOSE} -i sparks.ini -e container={head}", folder))
    assert "READY: All 2 ranks serve." in text
    assert f"spark2 has no container {head}; {worker} there looks like an engine and was taken: name it too" in text
    # The worker's comes first, and it is the only one that is looked at.
    text = told(run(f"ansible-playbook {DIAGNOSE} -i sparks.ini -e container={worker} --limit spark2", folder))
    assert "STARTING: spark2 (rank 1) came as far as the log of a worker shows; the head whose log alone tells" in text
    assert "The log of spark2 says that it is rank 1 and it was given as rank 0" in text and "The logs tell of 2 ranks and one was looked at" in text
    text = told(run(f"ansible-playbook {DIAGNOSE} -i sparks.ini --limit spark1", folder))
    assert "READY: The head serves; 1 of its 2 ranks was looked at." in text
    play.node("spark2", f"docker kill {play.RANKS['spark2']}")
    command = f"ansible-playbook {DIAGNOSE} -i sparks.ini -e deployment={play.DEPLOYMENT} -e bundle=dead.tar.gz -e @secret.yml"
    text = told(run(command, folder))
    assert re.search(r"FAILED: spark2 \(rank 1\) .* rank 1 spark2 ended with exit code 137", text)
    files = unpacked(folder / "dead.tar.gz")
    assert json.loads(files["variables.json"])["tp_launch_api_key"] == "***"
    without(files, KEY, json.dumps(KEY)[1:-1])
    # Nothing of it is left on the nodes.
    for name in play.RANKS:
        assert "support" not in play.node(name, "find /tmp /var/tmp /home/nvidia/.ansible -newermt '-5 minutes' 2>/dev/null || :")
