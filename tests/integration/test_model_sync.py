# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A model's way from the head to the worker on the lab's nodes, over SSH: what moves, what can go wrong, and what is left afterwards."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import shlex
import signal
import subprocess
import sys
import time
import typing as t

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lab"))

import play  # noqa: E402  (the path above must come first)

pytestmark = pytest.mark.lab

ADDRESS = {"spark1": "192.168.200.11", "spark2": "192.168.200.12"}
MODEL = "/srv/sync-model/tiny"
SHARDS, SHARD = 3, 20_000_000
CHUNK = 8 << 20

# A model as the manifest wants it: safetensors whose headers tell their sizes, an index that names them, a configuration.
LAY = f"""
import json, os
os.makedirs({MODEL!r}, exist_ok=True)
names = [f"model-{{n:05d}}-of-{SHARDS:05d}.safetensors" for n in range(1, {SHARDS} + 1)]
for name in names:
    head = json.dumps({{name: {{"dtype": "U8", "shape": [{SHARD}], "data_offsets": [0, {SHARD}]}}}}).encode()
    with open({MODEL!r} + "/" + name, "wb") as stream:
        stream.write(len(head).to_bytes(8, "little") + head + os.urandom({SHARD}))
json.dump({{"weight_map": {{name: name for name in names}}}}, open({MODEL!r} + "/model.safetensors.index.json", "w"))
json.dump({{"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}}, open({MODEL!r} + "/config.json", "w"))
"""
FIRST = f"{MODEL}/model-00001-of-{SHARDS:05d}.safetensors"
# The pages of files in the page cache, by mincore(2): of a path's files, in bytes.
CACHED = """
import ctypes, mmap, os, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
held = 0
for folder, _folders, names in os.walk(sys.argv[1]):
    for name in names:
        number = os.open(os.path.join(folder, name), os.O_RDONLY)
        size = os.fstat(number).st_size
        if size:
            there = ctypes.create_string_buffer(-(-size // 4096))
            libc.mincore(libc.mmap(None, size, 1, 1, number, 0), size, there)
            held += 4096 * sum(byte & 1 for byte in there.raw)
        os.close(number)
print(held)
"""


def python(node: str, program: str, *words: str) -> str:
    return play.node(node, " ".join(shlex.quote(word) for word in ("python3", "-c", program, *words)))


def digests(node: str) -> str:
    return play.node(node, f"cd {MODEL} && find . -type f -not -path '*/.*' | sort | xargs sha256sum")


def command(*words: str, become: bool = True, **arguments: t.Any) -> list[str]:
    """An ad-hoc run of the module on both nodes."""
    address = "{{ " + json.dumps(ADDRESS) + "[inventory_hostname] }}"
    given = {"path": MODEL, "source": "spark1", "addresses": [address], "progress": 1, **arguments}
    line = [str(play.BIN / "ansible"), "spark1,spark2", "-i", play.inventory(), "-m", "sparkstack.inference.model_sync", "-a", json.dumps(given)]
    return [*line, *(["-b"] if become else []), *words]


def environment() -> dict[str, str]:
    return {**play.environment(), "ANSIBLE_STDOUT_CALLBACK": "ansible.posix.json", "ANSIBLE_LOAD_CALLBACK_PLUGINS": "1"}


def sync(*words: str, become: bool = True, **arguments: t.Any) -> dict[str, dict[str, t.Any]]:
    """What the module returns on both nodes, and, under C(said), all that the run wrote."""
    done = subprocess.run(
        command(*words, become=become, **arguments), env=environment(), cwd=play.ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    found = hosts(done.stdout, done.stderr)
    nothing_left()
    return {**found, "said": {"text": done.stdout + done.stderr}}


def hosts(out: str, err: str) -> dict[str, dict[str, t.Any]]:
    """What the module returned, by node."""
    assert "{\n" in out, out + err
    return t.cast("dict[str, dict[str, t.Any]]", json.loads(out[out.index("{\n") :])["plays"][0]["tasks"][0]["hosts"])


def nothing_left() -> None:
    """No agent runs and nothing listens on the fabric."""
    for node, address in ADDRESS.items():
        ended = "for _turn in $(seq 100); do pgrep -x model-sync >/dev/null || break; sleep 0.1; done; pgrep -x model-sync"
        assert play.node(node, f"{ended}; ss -Hltn 'src {address}'") == ""


def until(condition: t.Callable[[], t.Any], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.1)


@pytest.fixture(scope="module", autouse=True)
def nodes() -> t.Iterator[None]:
    play.lab("up", "--nodes", "2")
    subprocess.run(["make", "-s", "-C", str(play.ROOT), "collection"], check=True, timeout=300)
    play.empty(*ADDRESS)
    play.node("spark1", "rm -rf /srv/sync-model /var/cache/sparkstack/staging")
    python("spark1", LAY)
    yield
    for node in ADDRESS:
        play.node(node, "rm -rf /srv/sync-model /var/cache/sparkstack/staging")


@pytest.fixture
def worker() -> str:
    """The worker without the model."""
    play.node("spark2", "rm -rf /srv/sync-model /var/cache/sparkstack/staging")
    return "spark2"


@pytest.fixture
def copied() -> str:
    """The worker with the model, of which an earlier test may have left all."""
    assert sync(delete_extra=True)["spark2"]["verified"] is True
    assert digests("spark2") == digests("spark1")
    return "spark2"


def total() -> int:
    return int(play.node("spark1", f"find {MODEL} -type f -printf '%s\\n' | awk '{{ s += $1 }} END {{ print s }}'"))


def test_check_run_run(worker: str) -> None:
    predicted = sync("--check", "--diff")
    assert (predicted["spark2"]["changed"], predicted["spark1"]["changed"]) == (True, False)
    assert "model.safetensors.index.json" in predicted["spark2"]["diff"]["after"]
    assert play.node(worker, f"ls -d {MODEL} 2>/dev/null || echo none").strip() == "none"

    done = sync()
    got, source = done["spark2"], done["spark1"]
    assert got["actions"] == predicted["spark2"]["actions"]
    assert (got["changed"], got["verified"], got["bytes_sent"], got["bytes_total"]) == (True, True, total(), total())
    assert source["bytes_sent"] == total() and got["cpu_seconds"] > 0
    assert digests(worker) == digests("spark1")
    text = done["said"]["text"]
    assert f"[spark2] copy {MODEL} from spark1: 5 files are missing (all)" in text and ", verified" in text
    assert "token" not in text and "PRIVATE KEY" not in text
    assert ".sparkstack-sync" not in play.node(worker, f"ls -a {MODEL}")

    for words in ((), ("--check",)):
        again = sync(*words)
        assert (again["spark2"]["changed"], again["spark2"]["bytes_sent"], again["spark2"]["actions"]) == (False, 0, [])
    assert sync(checksum=True)["spark2"]["changed"] is False


def test_the_page_cache_of_both_stays_as_it_was(worker: str) -> None:
    for node in ADDRESS:
        # dd gives back the pages of a file that it copies nothing of.
        play.node(node, f"mkdir -p {MODEL}; sync; find {MODEL} -type f -exec dd if={{}} iflag=nocache count=0 status=none \\;")
    before = {node: int(python(node, CACHED, MODEL)) for node in ADDRESS}
    sync()
    for node in ADDRESS:
        assert int(python(node, CACHED, MODEL)) - before[node] < total() / 100


@pytest.mark.parametrize(
    ("damage", "comes"),
    [
        pytest.param(f"printf x | dd of={FIRST} bs=1 seek=9000000 conv=notrunc status=none; touch -r {MODEL}/config.json {FIRST}", CHUNK, id="a flipped byte"),
        pytest.param(f"truncate -s 9000000 {FIRST}", SHARD - CHUNK + 200, id="truncated"),
        pytest.param(f"rm {FIRST}", SHARD + 200, id="missing"),
        pytest.param(f"touch {FIRST}", 0, id="touched"),
    ],
)
def test_damage_is_found_and_only_that_is_mended(copied: str, damage: str, comes: int) -> None:
    play.node(copied, damage)
    done = sync()["spark2"]
    assert (done["changed"], done["verified"]) == (True, True) and comes - 200 <= done["bytes_sent"] <= comes
    assert digests(copied) == digests("spark1")


@pytest.mark.long
def test_a_flip_that_size_and_time_hide_is_found_by_checksum(copied: str) -> None:
    play.node(
        copied,
        f"cp -p {FIRST} /srv/sync-model/kept; printf x | dd of={FIRST} bs=1 seek=9000000 conv=notrunc status=none; touch -r /srv/sync-model/kept {FIRST}",
    )
    assert sync()["spark2"]["changed"] is False
    told = sync("--check", checksum=True)["spark2"]
    assert (told["changed"], told["bytes_sent"], told["moved"]) == (True, 0, [os.path.basename(FIRST)])
    done = sync(checksum=True)["spark2"]
    assert (done["verified"], done["bytes_sent"]) == (True, CHUNK)
    assert digests(copied) == digests("spark1")


def test_an_extra_file_is_told_and_goes_on_request(copied: str) -> None:
    play.node(copied, f"touch {MODEL}/more.bin")
    assert (sync()["spark2"]["extra"], sync()["spark2"]["changed"]) == (["more.bin"], False)
    done = sync(delete_extra=True)["spark2"]
    assert (done["changed"], done["deleted"]) == (True, ["more.bin"])
    assert digests(copied) == digests("spark1")


def test_a_hub_cache_comes_as_files(worker: str) -> None:
    cache = "/srv/sync-model/models--Q--T"
    play.node(
        "spark1",
        f"rm -rf {cache}; mkdir -p {cache}/blobs {cache}/refs {cache}/snapshots/abc; cp -p {MODEL}/* {cache}/blobs/;"
        f" cd {cache}/snapshots/abc; for name in ../../blobs/*; do ln -s $name .; done; echo abc > {cache}/refs/main",
    )
    try:
        done = sync(path=cache)["spark2"]
        assert done["verified"] is True
        assert play.node(worker, f"cd {cache} && find . -type f | sort | sed -n '1p;$p'").split() == [
            "./refs/main",
            "./snapshots/abc/model.safetensors.index.json",
        ]
        assert play.node(worker, f"find {cache} -type l") == ""
        play.node("spark1", f"rm {cache}/blobs/config.json")
        told = sync(path=cache)["spark1"]["msg"]
        assert told.startswith(f"snapshots/abc/config.json in {cache} leads nowhere:")
    finally:
        play.node("spark1", f"rm -rf {cache}")


@pytest.mark.long
def test_with_tls_and_by_the_other_digest(worker: str) -> None:
    assert sync(tls=True, digest="sha256")["spark2"]["verified"] is True
    assert digests(worker) == digests("spark1")


@pytest.fixture
def trusting(worker: str) -> t.Iterator[str]:
    """The worker's root logs in on the head without a question, as rsync needs."""
    key, there = "/root/.ssh/id_ed25519", ADDRESS["spark1"]
    play.node(
        worker, f"mkdir -p -m 700 /root/.ssh; ssh-keygen -q -t ed25519 -N '' -f {key} -C sync-test; ssh-keyscan -t ed25519 {there} > /root/.ssh/known_hosts"
    )
    public = play.node(worker, f"cat {key}.pub").strip()
    play.node("spark1", f"mkdir -p -m 700 /root/.ssh; echo {shlex.quote(public)} >> /root/.ssh/authorized_keys")
    yield worker
    play.node(worker, f"rm -f {key} {key}.pub /root/.ssh/known_hosts")
    play.node("spark1", "sed -i '/sync-test/d' /root/.ssh/authorized_keys")


@pytest.mark.long
def test_by_rsync_where_the_nodes_trust_each_other(trusting: str) -> None:
    done = sync(transport="rsync")["spark2"]
    assert (done["changed"], done["verified"], done["bytes_sent"]) == (True, True, total())
    assert max(int(python(node, CACHED, MODEL)) for node in ADDRESS) < total() / 100
    assert digests(trusting) == digests("spark1")
    assert sync(transport="rsync")["spark2"]["changed"] is False
    play.node(trusting, "rm /root/.ssh/known_hosts; rm -rf /srv/sync-model")
    told = sync(transport="rsync")["spark2"]["msg"]
    assert told.startswith(f"rsync from {ADDRESS['spark1']} ended with 255 (") and told.endswith("works here without a question.")


@contextlib.contextmanager
def half_way(worker: str, **arguments: t.Any) -> t.Iterator[subprocess.Popen[str]]:
    """A run whose copy is half done, and has on its link as good as stopped: C(play.lab("rate", "spark1", "off")) lets it go on."""
    play.lab("rate", "spark1", "50mbit")
    run = subprocess.Popen(
        command(stall_timeout=5, connect_timeout=5, **arguments), env=environment(), cwd=play.ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        chunks = f"cat {MODEL}/.sparkstack-sync/*.journal 2>/dev/null | grep -vc name; ls {MODEL} 2>/dev/null | grep -c 'safetensors$'; true"

        def half() -> bool:
            journalled, whole = (int(word) for word in play.node(worker, chunks).split())
            return journalled + 3 * whole >= 4

        until(half, 60)
        play.lab("rate", "spark1", "2mbit")
        yield run
        run.communicate(timeout=120)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(run.pid, signal.SIGKILL)
        play.lab("rate", "spark1", "off")


def agents_end() -> None:
    until(lambda: all(play.node(node, "pgrep -x model-sync || true") == "" for node in ADDRESS), 60)


def the_rest_only(worker: str) -> None:
    """Nothing half-written has a final name, nothing is left running; the next run moves what was missing, and no more."""
    agents_end()
    assert set(digests(worker).splitlines() if play.node(worker, f"ls {MODEL} || true").strip() else []) <= set(digests("spark1").splitlines())
    done = sync()["spark2"]
    assert done["verified"] is True and 0 < done["bytes_sent"] < total() * 0.75
    assert digests(worker) == digests("spark1")


@pytest.mark.parametrize("killed", ["spark2", pytest.param("spark1", marks=pytest.mark.long)])
def test_a_node_s_agent_is_killed_in_the_middle(worker: str, killed: str) -> None:
    with half_way(worker) as run:
        play.node(killed, "pkill -9 -x model-sync")
        run.wait(120)
        assert run.returncode != 0
    the_rest_only(worker)


@pytest.mark.long
def test_the_controller_is_killed_in_the_middle(worker: str) -> None:
    with half_way(worker) as run:
        os.killpg(run.pid, signal.SIGKILL)
        # They notice before the copy is done that nobody looks any more.
        agents_end()
    the_rest_only(worker)


@pytest.mark.long
def test_the_link_is_cut_in_the_middle(worker: str) -> None:
    try:
        with half_way(worker) as run:
            play.lab("cut", "spark2")
            run.wait(120)
            assert run.returncode != 0
    finally:
        play.lab("heal", "spark2")
    the_rest_only(worker)


def test_a_second_run_sees_a_copy_to_its_end_that_runs_already(worker: str) -> None:
    with half_way(worker) as first:
        with subprocess.Popen(command(stall_timeout=5), env=environment(), cwd=play.ROOT, stdout=subprocess.PIPE, text=True) as second:
            said = play.wait_for_line(second, "this run sees it to its end", 60)
            play.lab("rate", "spark1", "off")
            seen = hosts(said + second.communicate(timeout=120)[0], "")
        nothing_left()
        assert (seen["spark2"]["verified"], seen["spark2"]["bytes_sent"]) == (True, 0)
        assert seen["spark2"]["actions"][0].startswith("waited for a copy that ran already")
        first.wait(60)
        assert first.returncode == 0
    assert digests(worker) == digests("spark1")


def test_bad_input_is_one_sentence_and_both_ends_stay_as_they_are(worker: str) -> None:
    before = digests("spark1")
    assert sync(path="/srv/nowhere")["spark1"]["msg"] == "The model's folder /srv/nowhere is not there."
    assert "192.0.2.7 is not an address of this node" in sync(addresses=["192.0.2.7"])["spark1"]["msg"]
    listening = subprocess.Popen([str(play.LAB), "shell", "spark1", f"timeout 60 nc -l {ADDRESS['spark1']} 7755"], stdin=subprocess.DEVNULL)
    try:
        until(lambda: "7755" in play.node("spark1", "ss -Hltn"), 20)
        told = f"Port 7755 of {ADDRESS['spark1']} is taken: run this again, or set another one with the option `port`."
        failed = subprocess.run(command(port=7755), env=environment(), cwd=play.ROOT, capture_output=True, text=True, timeout=120, check=False)
        assert told in failed.stdout and f"spark1 could not serve the model {MODEL}: {told}" in failed.stdout
    finally:
        play.node("spark1", "pkill -x nc || true")
        listening.wait(20)
    play.node(worker, "mkdir -p /srv/sync-model; mount -t tmpfs -o size=10m tmpfs /srv/sync-model")
    try:
        assert sync()["spark2"]["msg"].startswith(f"spark2 has 10.5 MB free where the model {MODEL} is to lie, and 60.0 MB are to come: free ")
        play.node(worker, "mount -o remount,ro /srv/sync-model")
        assert sync()["spark2"]["msg"].startswith(f"spark2 can't write to /srv/sync-model, where the model {MODEL} is to lie: mount it writable")
    finally:
        play.node(worker, "umount /srv/sync-model")
    play.node("spark1", f"ln -s nowhere {MODEL}/more.bin")
    try:
        assert "more.bin in " in sync()["spark1"]["msg"]
    finally:
        play.node("spark1", f"rm {MODEL}/more.bin")
    play.node("spark1", f"cp -p {FIRST} /srv/sync-model/kept; truncate -s -1 {FIRST}")
    try:
        assert sync()["spark1"]["msg"] == f"{FIRST} is not whole by what its header says: download it again."
    finally:
        play.node("spark1", f"mv /srv/sync-model/kept {FIRST}")
    assert digests("spark1") == before
    assert play.node(worker, "ls /srv/sync-model") == ""


@pytest.mark.long
def test_a_source_that_changes_meanwhile_is_told(worker: str) -> None:
    with half_way(worker) as run:
        play.node("spark1", f"cp -p {MODEL}/config.json /srv/sync-model/kept; echo ' ' >> {MODEL}/config.json")
        play.lab("rate", "spark1", "off")
        text, _none = run.communicate(timeout=120)
        play.node("spark1", f"mv /srv/sync-model/kept {MODEL}/config.json")
        assert run.returncode != 0 and "changed" in text and "config.json" in text, text
    assert sync()["spark2"]["verified"] is True


def test_the_playbook_stages_a_model(worker: str) -> None:
    asked = {"model": MODEL, "tp_launch_recipe": ""}
    predicted = play.playbook("playbooks/stage.yml", "--check", extra=asked)
    assert predicted.code == 0 and predicted.changed == {"spark1": 0, "spark2": 1}, predicted.output
    done = play.playbook("playbooks/stage.yml", extra=asked)
    assert done.code == 0 and done.changed == {"spark1": 0, "spark2": 1}, done.output
    again = play.playbook("playbooks/stage.yml", extra=asked)
    assert again.code == 0 and again.changed == {"spark1": 0, "spark2": 0}, again.output
    assert digests(worker) == digests("spark1")
    nothing_left()
