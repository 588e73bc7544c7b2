# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An image's way from the head to the worker, and what can go wrong on it, on the lab's nodes with their real Docker."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import time
import typing as t
from dataclasses import dataclass

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
LAB = ROOT / "tests/lab/lab"
BIN = ROOT / ".venv/bin"
ADDRESS = {"spark1": "192.168.200.11", "spark2": "192.168.200.12"}
SIZE = 30_000_000
APP = "sync/app:1"

pytestmark = pytest.mark.lab


def lab(*words: str) -> str:
    done = subprocess.run([str(LAB), *words], capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def ssh(node: str, command: str) -> str:
    return lab("shell", node, command)


def build(image: str, base: str, content: str, extra: str = "") -> None:
    """Build an image on the head with one more file on a base."""
    ssh(
        "spark1",
        f"set -e; rm -rf ~/sync; mkdir ~/sync; cd ~/sync; {content} > file;"
        f" printf 'FROM {base}\\nCOPY file /{image.replace('/', '-').replace(':', '-')}\\n{extra}' > Dockerfile;"
        f" docker build -q -t {image} . ; rm -rf ~/sync",
    )


def remove(node: str) -> None:
    ssh(node, "docker images -q --filter reference='sync/*' | sort -u | xargs -r docker rmi -f >/dev/null")


def layers(node: str, image: str) -> str:
    return ssh(node, f"docker image inspect --format '{{{{json .RootFS.Layers}}}} {{{{json .Config.Cmd}}}}' {image}")


def images(node: str) -> list[str]:
    return sorted(ssh(node, "docker images --format '{{.Repository}}:{{.Tag}} {{.ID}}' --filter reference='sync/*'").split("\n"))


def listeners(node: str) -> str:
    return ssh(node, f"sudo ss -Hltn 'src {ADDRESS[node]}'")


def until(condition: t.Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.1)


@pytest.fixture(scope="module", autouse=True)
def nodes() -> t.Iterator[None]:
    lab("up", "--nodes", "2")
    subprocess.run(["make", "-s", "-C", str(ROOT), "collection"], check=True, timeout=300)
    for node in ADDRESS:
        # What an earlier test has left serving listens on the fabric too, and takes time from this one.
        ssh(node, "docker ps -aq | xargs -r docker rm -f >/dev/null")
        remove(node)
    ssh(
        "spark1",
        f"set -e; rm -rf ~/sync; mkdir ~/sync; cd ~/sync; head -c {SIZE} /dev/urandom > data;"
        " tar cf - data | docker import --change 'CMD [\"/data\"]' - sync/base:1; rm -rf ~/sync",
    )
    build(APP, "sync/base:1", "head -c 2000 /dev/urandom", 'ENV A=1\\nHEALTHCHECK CMD ["/x"]\\n')
    yield
    for node in ADDRESS:
        remove(node)


@dataclass
class Run:
    """The results of the last task by node."""

    code: int
    hosts: dict[str, dict[str, t.Any]]
    changed: dict[str, int]
    output: str


class Player:
    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder

    def command(self, tasks: list[dict[str, t.Any]], *words: str) -> tuple[list[str], dict[str, str]]:
        play = self.folder / "play.yml"
        play.write_text(json.dumps([{"hosts": "sparks", "gather_facts": False, "tasks": tasks}]))
        environment = {
            **os.environ,
            "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "build/collections"),
            "ANSIBLE_STDOUT_CALLBACK": "ansible.posix.json",
            "ANSIBLE_LOAD_CALLBACK_PLUGINS": "1",
            "ANSIBLE_INJECT_FACT_VARS": "false",
            "LC_ALL": "C.UTF-8",
        }
        return [str(BIN / "ansible-playbook"), "-i", lab("inventory"), str(play), *words], environment

    def play(self, tasks: list[dict[str, t.Any]], *words: str) -> Run:
        command, environment = self.command(tasks, *words)
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, cwd=ROOT)
        assert "{" in done.stdout, done.stdout + done.stderr
        output = json.loads(done.stdout[done.stdout.index("{\n") :])
        hosts: dict[str, dict[str, t.Any]] = {}
        for task in output["plays"][0]["tasks"]:
            hosts.update({host: result for host, result in task["hosts"].items() if not result.get("skipped")})
        changed = {host: stats["changed"] for host, stats in output["stats"].items()}
        return Run(done.returncode, hosts, changed, done.stdout + done.stderr)

    def sync(self, image: str, *words: str, become: bool = True, **options: t.Any) -> Run:
        return self.play([self.task(image, become, **options)], *words)

    @staticmethod
    def task(image: str, become: bool = True, **options: t.Any) -> dict[str, t.Any]:
        address = "{{ " + json.dumps(ADDRESS) + "[inventory_hostname] }}"
        arguments = {"image": image, "source": "spark1", "address": address, **options}
        return {"name": "Sync", "sparkstack.inference.docker_image_sync": arguments, "become": become}

    def role(self, name: str, *words: str, **variables: t.Any) -> Run:
        return self.play([{"ansible.builtin.include_role": {"name": f"sparkstack.inference.{name}"}, "vars": variables}], *words)


@pytest.fixture
def player(tmp_path: pathlib.Path) -> Player:
    return Player(tmp_path)


@pytest.fixture
def worker() -> str:
    """The worker without an image of these tests."""
    remove("spark2")
    return "spark2"


@contextlib.contextmanager
def containerd_store(node: str) -> t.Iterator[None]:
    """Have a node's Docker use the containerd image store for a while."""
    switch = (
        "sudo python3 -c \"import json; p = '/etc/docker/daemon.json'; d = json.load(open(p));"
        " d['features'] = {{'containerd-snapshotter': {0}}}; json.dump(d, open(p, 'w'))\";"
        " sudo systemctl reset-failed docker; sudo systemctl restart docker"
    )
    ssh(node, switch.format(True))
    try:
        assert "io.containerd.snapshotter" in ssh(node, "docker info --format '{{.DriverStatus}}'")
        remove(node)
        yield
        remove(node)
    finally:
        ssh(node, switch.format(False))


def test_check_run_check_run(player: Player, worker: str) -> None:
    wanted = layers("spark1", APP)
    predicted = player.sync(APP, "--check", "--diff")
    assert predicted.changed == {"spark1": 0, "spark2": 1}
    assert predicted.hosts["spark2"]["diff"]["before"] == f"{APP} absent\n"
    assert images(worker) == [""]

    done = player.sync(APP)
    assert done.code == 0 and done.changed == {"spark1": 0, "spark2": 1}, done.output
    got, source = done.hosts["spark2"], done.hosts["spark1"]
    assert got["actions"] == predicted.hosts["spark2"]["actions"] == [f"fetch {APP} from spark1 (missing here): 2 of 2 layers, about 30.0 MB"]
    assert got["verified"] is True and got["bytes_total"] >= SIZE and got["bytes_sent"] > SIZE
    assert got["bytes_sent"] == source["bytes_sent"]
    assert got["throughput_mb_s"] == round(got["bytes_sent"] / 1e6 / got["seconds"], 1)
    assert layers(worker, APP) == wanted
    # The live lines, and no trace of the token.
    assert f"[spark2] fetch {APP} from spark1" in done.output and ", verified" in done.output
    assert "token" not in done.output

    for words in (["--check", "--diff"], []):
        again = player.sync(APP, *words)
        assert again.code == 0 and again.changed == {"spark1": 0, "spark2": 0}, again.output
        assert again.hosts["spark2"]["bytes_sent"] == 0 and again.hosts["spark2"]["verified"] is True
    assert listeners("spark1") == ""


def test_a_small_layer_on_top_moves_alone(player: Player, worker: str) -> None:
    player.sync(APP)
    build("sync/app:2", APP, "head -c 2000 /dev/urandom")
    done = player.sync("sync/app:2").hosts["spark2"]
    assert done["verified"] is True and done["actions"] == ["fetch sync/app:2 from spark1 (missing here): 1 of 3 layers, about 2.0 kB"]
    assert 2000 < done["bytes_sent"] < done["bytes_total"] / 100
    # The base's file is whole in a container of the new image.
    assert data_sum("spark2", "sync/app:2") == data_sum("spark1", "sync/app:2")


def test_a_tag_with_other_content_is_put_right(player: Player, worker: str) -> None:
    player.sync(APP)
    ssh(worker, f"docker rmi -f {APP}; printf x > x; tar cf - x | docker import - {APP}; rm x")
    predicted = player.sync(APP, "--check")
    assert predicted.changed["spark2"] == 1
    assert "(differs here in layers, Cmd, Env, Healthcheck)" in predicted.hosts["spark2"]["actions"][0]
    done = player.sync(APP)
    assert done.changed["spark2"] == 1 and done.hosts["spark2"]["verified"] is True
    assert layers(worker, APP) == layers("spark1", APP)


def test_the_same_content_under_another_name_is_only_tagged(player: Player, worker: str) -> None:
    player.sync(APP)
    ssh("spark1", f"docker tag {APP} sync/name:9")
    done = player.sync("sync/name:9").hosts["spark2"]
    assert done["changed"] is True and done["bytes_sent"] == 0 and done["verified"] is True
    assert "tag sha256:" in done["actions"][0]
    assert layers(worker, "sync/name:9") == layers("spark1", APP)


def test_a_user_of_the_docker_group_needs_no_root(player: Player, worker: str) -> None:
    done = player.sync(APP, become=False)
    assert done.code == 0 and done.hosts["spark2"]["verified"] is True, done.output
    assert f"[spark1] image {APP}: all of it was read by `docker save`: " in done.output
    build("sync/app:5", APP, "head -c 2000 /dev/urandom")
    delta = player.sync("sync/app:5", become=False).hosts["spark2"]
    assert delta["verified"] is True and delta["bytes_sent"] < 100_000


def test_between_the_two_stores(player: Player, worker: str) -> None:
    player.sync(APP)
    build("sync/app:3", APP, "head -c 2000 /dev/urandom")
    with containerd_store(worker):
        first = player.sync(APP)
        assert first.hosts["spark2"]["verified"] is True and first.hosts["spark2"]["bytes_sent"] > SIZE
        assert first.hosts["spark2"]["image"]["id"] != first.hosts["spark1"]["image"]["id"]
        again = player.sync(APP)
        assert again.changed == {"spark1": 0, "spark2": 0}
        done = player.sync("sync/app:3")
        delta = done.hosts["spark2"]
        assert delta["verified"] is True and delta["bytes_sent"] < 100_000
        assert "docker save" not in done.output
        # What this store took without its layers is whole: it can be saved again when the base's name is gone.
        ssh(worker, f"docker rmi {APP}")
        assert int(ssh(worker, "docker save sync/app:3 | wc -c")) > SIZE


def test_layers_that_a_store_keeps_compressed_do_not_move(player: Player, worker: str) -> None:
    """Import and build compress in the containerd store: the layers have the same diff ids, but are not there by them."""
    with containerd_store(worker):
        with subprocess.Popen(
            [str(LAB), "shell", "spark1", f"head -c {SIZE} /dev/urandom > data; tar cf data.tar data; cat data.tar"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
        ) as made:
            subprocess.run([str(LAB), "shell", worker, "cat > data.tar"], stdin=made.stdout, check=True, timeout=60)
        for node in ADDRESS:
            ssh(node, "docker import data.tar sync/equal:1; rm -f data data.tar")
        assert layers("spark1", "sync/equal:1") == layers(worker, "sync/equal:1")
        build("sync/app:4", "sync/equal:1", "head -c 2000 /dev/urandom")
        done = player.sync("sync/app:4").hosts["spark2"]
        assert done["verified"] is True and done["bytes_sent"] < 100_000
        ssh(worker, "docker rmi sync/equal:1")
        assert int(ssh(worker, "docker save sync/app:4 | wc -c")) > SIZE
        assert data_sum(worker, "sync/app:4") == data_sum("spark1", "sync/app:4")


def data_sum(node: str, image: str) -> str:
    """The checksum of the base's file, in a container of the image."""
    return ssh(node, f"id=$(docker create {image} x); docker cp $id:/data - | tar xO | sha256sum; docker rm $id >/dev/null")


def test_from_the_containerd_store(player: Player, worker: str) -> None:
    """Its layers are compressed when they were built there. A graph driver takes them as they are, and so does the same store."""
    with containerd_store("spark1"):
        ssh("spark1", f"set -e; head -c {SIZE} /dev/urandom > data; tar cf - data | docker import - sync/packed:1; rm data")
        build("sync/packed:2", "sync/packed:1", "head -c 2000 /dev/urandom")
        for store in (contextlib.nullcontext(), containerd_store(worker)):
            with store:
                first = player.sync("sync/packed:1")
                assert first.hosts["spark2"]["verified"] is True and first.hosts["spark2"]["bytes_sent"] > SIZE, first.output
                delta = player.sync("sync/packed:2")
                assert delta.hosts["spark2"]["verified"] is True and delta.hosts["spark2"]["bytes_sent"] < 100_000, delta.output
                assert "docker save" not in first.output + delta.output
                assert data_sum(worker, "sync/packed:2") == data_sum("spark1", "sync/packed:2")
                remove(worker)


def test_a_damaged_layer_of_the_source_is_loaded_nowhere(player: Player, worker: str) -> None:
    build("sync/hurt:1", APP, "head -c 2000 /dev/urandom")
    top = "sudo sh -c 'ls -t /var/lib/docker/overlay2/*/diff/sync-hurt-1 | head -1'"
    flip = "sudo python3 -c 'import sys; f = open(sys.argv[1], \"r+b\"); b = f.read(1)[0]; f.seek(0); f.write(bytes([b ^ 1]))' $({})"
    ssh("spark1", flip.format(top))
    try:
        failed = player.sync("sync/hurt:1")
        assert failed.code != 0 and "Image sync/hurt:1 did not come from spark1 to spark2: " in failed.hosts["spark2"]["msg"], failed.output
        assert "sync/hurt:1" not in "".join(images(worker))
    finally:
        ssh("spark1", flip.format(top))
    assert player.sync("sync/hurt:1").hosts["spark2"]["verified"] is True


def test_a_second_run_sees_a_copy_to_its_end(player: Player, worker: str) -> None:
    """The first run's controller is killed; what it began goes on, and the next run waits for it instead of beginning another one."""
    lab("rate", "spark1", "25mbit")
    try:
        command, environment = player.command([player.task(APP)])
        run = subprocess.Popen(command, env=environment, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        until(lambda: ssh(worker, f"ss -Htn state established 'src {ADDRESS['spark2']}' 'dst {ADDRESS['spark1']}'") != "", 30)
        os.killpg(run.pid, signal.SIGKILL)
        run.wait(10)
        done = player.sync(APP, progress=1)
    finally:
        lab("rate", "spark1", "off")
    got = done.hosts["spark2"]
    assert done.code == 0 and got["verified"] is True and got["bytes_sent"] == 0, done.output
    assert got["actions"][0].startswith("waited for a copy that ran already, since ") and len(got["actions"]) == 1
    assert f"[spark2] a copy of {APP} runs since " in done.output
    assert re.search(rf"\[spark2\] image {APP}: [0-9.]+ of 30\.[0-9] MB, [0-9.]+ MB/s, [0-9.]+ s left", done.output), done.output
    assert layers(worker, APP) == layers("spark1", APP) and listeners("spark1") == ""


def test_an_image_that_the_source_lacks(player: Player, worker: str) -> None:
    failed = player.sync("sync/none:1")
    assert failed.code != 0
    for node in ADDRESS:
        assert failed.hosts[node]["msg"].startswith("Image sync/none:1 is not on spark1, from where it should come")
    assert images(worker) == [""]


@pytest.mark.parametrize("stopped", ["spark1", "spark2"])
def test_a_stopped_docker(player: Player, worker: str, stopped: str) -> None:
    ssh(stopped, "sudo systemctl stop docker.socket docker")
    try:
        failed = player.sync(APP)
    finally:
        ssh(stopped, "sudo systemctl reset-failed docker; sudo systemctl start docker")
    assert failed.code != 0
    sentence = "Docker does not answer on /var/run/docker.sock"
    if stopped == "spark1":
        assert failed.hosts["spark1"]["msg"].startswith(sentence)
        assert failed.hosts["spark2"]["msg"].startswith(f"spark1 is the source of image {APP} and failed: {sentence}")
    else:
        assert failed.hosts["spark2"]["msg"].startswith(sentence)
        assert "failed" not in failed.hosts["spark1"] or failed.hosts["spark1"]["failed"] is False
    assert "systemctl start docker" in failed.hosts["spark2"]["msg"]
    assert images(worker) == [""]


def test_a_fabric_that_is_cut(player: Player, worker: str) -> None:
    lab("cut", "spark2")
    try:
        failed = player.sync(APP, connect_timeout=3)
    finally:
        lab("heal", "spark2")
    message = failed.hosts["spark2"]["msg"]
    assert message.startswith(f"Image {APP} did not come from spark1 to spark2: Cannot reach 192.168.200.11:")
    assert "from 192.168.200.12 within 3 s" in message and "`ping -I 192.168.200.12 192.168.200.11`" in message
    assert listeners("spark1") == ""


def test_a_full_disk_is_told_in_docker_s_own_words(player: Player, worker: str) -> None:
    ssh(worker, "sudo mkdir -p /var/lib/docker/tmp; sudo mount -t tmpfs -o size=1m tmpfs /var/lib/docker/tmp")
    try:
        failed = player.sync(APP)
    finally:
        ssh(worker, "sudo umount /var/lib/docker/tmp")
    assert "no space left on device" in failed.hosts["spark2"]["msg"], failed.output
    assert "failed" not in failed.hosts["spark1"] or failed.hosts["spark1"]["failed"] is False
    assert images(worker) == [""]
    assert player.sync(APP).hosts["spark2"]["verified"] is True


def test_too_few_forks_are_told(player: Player) -> None:
    failed = player.sync(APP, "--forks", "1")
    assert "The task runs on 2 nodes at once: set `forks` of Ansible to at least 2 (it is 1)." in failed.output


@pytest.mark.parametrize("killed", ["receiver", "source", "controller"])
def test_killed_in_the_middle(player: Player, worker: str, killed: str) -> None:
    lab("rate", "spark1", "50mbit")
    command, environment = player.command([player.task(APP)])
    try:
        run = subprocess.Popen(command, env=environment, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        flowing = f"ss -Htn state established 'src {ADDRESS['spark2']}' 'dst {ADDRESS['spark1']}'"
        until(lambda: ssh(worker, flowing) != "", 30)
        if killed == "controller":
            os.killpg(run.pid, signal.SIGKILL)
        else:
            node, side = ("spark1", "src") if killed == "source" else ("spark2", "dst")
            mine = f"sudo ss -Htnp state established '{side} {ADDRESS['spark1']}' | grep -o 'pid=[0-9]*' | head -1 | cut -d= -f2"
            ssh(node, f"sudo kill -9 $({mine})")
        run.wait(60)
        if killed != "controller":
            assert run.returncode != 0
            assert images(worker) == [""]
    finally:
        lab("rate", "spark1", "off")
    # With the controller gone the nodes end by themselves: they finish, as both are well.
    until(lambda: listeners("spark1") == "" and ssh(worker, flowing) == "", 60)
    until(lambda: "docker-import" not in ssh(worker, "sudo ls /var/lib/docker/tmp"), 20)
    assert player.sync(APP).hosts["spark2"]["verified"] is True
    assert layers(worker, APP) == layers("spark1", APP)


@pytest.mark.long
def test_the_role_brings_an_archive_to_all(player: Player, worker: str) -> None:
    ssh("spark1", "docker tag sync/app:1 sync/role:1; docker save sync/role:1 > /tmp/role.tar; docker rmi sync/role:1 >/dev/null")
    asked: dict[str, t.Any] = {"image_sync_image": "sync/role:1"}
    missing = player.role("image_sync", image_sync_source="present", **asked)
    assert missing.hosts["spark1"]["msg"].startswith("Image sync/role:1 is not on spark1")
    nowhere = player.role("image_sync", image_sync_source="archive", image_sync_archive="/tmp/none.tar", **asked)
    assert "The archive /tmp/none.tar is not on spark1" in nowhere.hosts["spark1"]["msg"]

    archive = {"image_sync_source": "archive", "image_sync_archive": "/tmp/role.tar", **asked}
    predicted = player.role("image_sync", "--check", **archive)
    assert predicted.code == 0 and predicted.changed == {"spark1": 1, "spark2": 1}, predicted.output
    done = player.role("image_sync", **archive)
    assert done.code == 0 and done.changed == {"spark1": 1, "spark2": 1}, done.output
    for words in ([], ["--check"]):
        again = player.role("image_sync", *words, **archive)
        assert again.code == 0 and again.changed == {"spark1": 0, "spark2": 0}, again.output
    assert layers(worker, "sync/role:1") == layers("spark1", APP)
    ssh("spark1", "rm /tmp/role.tar")


MODEL = "/srv/sync-model"
LAY = (
    f"sudo rm -rf {MODEL}; sudo mkdir -p {MODEL}; sudo python3 -c \"import json; h = json.dumps({{'t': {{'dtype': 'U8',"
    " 'shape': [8], 'data_offsets': [0, 8]}}).encode(); d = '" + MODEL + "/';"
    " open(d + 'model.safetensors', 'wb').write(len(h).to_bytes(8, 'little') + h + bytes(8));"
    " json.dump({'model_type': 'qwen3'}, open(d + 'config.json', 'w'))\""
)


def test_the_model_is_checked_on_every_node(player: Player) -> None:
    staging: t.Callable[..., Run] = lambda *words: player.role("model_staging", *words, model_staging_path=MODEL)  # noqa: E731
    try:
        for node in ADDRESS:
            ssh(node, f"sudo rm -rf {MODEL}")
        absent = staging()
        assert f"spark1: The model's folder {MODEL} is not there; download it to there, as with `hf download" in absent.hosts["spark1"]["msg"]
        copy = f"on spark1 run `rsync -a --copy-unsafe-links --partial --mkpath {MODEL}/ "
        assert f"spark2: The model's folder {MODEL} is not there; {copy}" in absent.hosts["spark2"]["msg"]
        for node in ADDRESS:
            ssh(node, LAY)
        good = staging("--check")
        assert good.code == 0 and good.changed == {"spark1": 0, "spark2": 0}, good.output
        ssh("spark2", f"sudo truncate -s -1 {MODEL}/model.safetensors")
        short = staging()
        assert short.hosts["spark2"]["msg"].startswith(f"spark2: model.safetensors in {MODEL} is not whole by what its header says; {copy}")
        assert not short.hosts["spark1"].get("failed")
        ssh("spark2", f"{LAY}; sudo sed -i s/qwen3/qwen2/ {MODEL}/config.json")
        other = staging()
        assert f"spark2: the model in {MODEL} is not the same as on spark1" in other.hosts["spark2"]["msg"]
        ssh("spark2", LAY + f"; sudo chown 1000 {MODEL}/model.safetensors; sudo chmod 600 {MODEL}/model.safetensors")
        assert f"run `chmod -R a+rX {MODEL}`" in staging().hosts["spark2"]["msg"]
    finally:
        for node in ADDRESS:
            ssh(node, f"sudo rm -rf {MODEL}")
