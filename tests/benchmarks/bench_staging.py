#!/usr/bin/env python3
# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What bringing a model to another node costs, against rsync over ssh and the least that is possible. An image: bench_images.py.

Needs root, three times --gigabytes of disk, and once of memory beside what the nodes may have: it makes the lab's nodes ready when they are not. Every
way is taken --turns times in turn, each with an empty page cache and an empty target, and medians count. Of model_sync the time
is its own, from the first question of the receiver to its last file; the whole run of Ansible is told beside. The limit is a program of 40 lines that
sends by sendfile(2) in two streams and writes by direct I/O, and compares, resumes and proves nothing. Prints to standard error each time, then these
figures:

    staging_vs_rsync_ssh      time of rsync -a over ssh to that of model_sync, a disk each
    staging_vs_limit          time of the limit to that of model_sync, a disk each
    staging_cpu_s_per_gb      processor seconds of both nodes together for 10**9 bytes, a disk each
    staging_vs_rsync_ssh_one_disk, staging_vs_limit_one_disk, staging_cpu_s_per_gb_one_disk
                              the same, one disk
    page_cache_share          of the tree's size, what of it is in a node's page cache afterwards, of the worse node, one disk
    fanout_4_vs_1             time of model_sync to four nodes to that to one

The lab's nodes share this machine's disk and processors. So the copies are taken in two set-ups, all ways in both. "One disk": it reads and writes
the same bytes at once, and no way can be quicker than that. "A disk each": the source's tree lies in the memory of the machine, as a tmpfs that belongs
to the source's node and is not counted to its memory; the target is on the disk. That is what two machines have, but for one thing: reading from this
disk costs the processor a copy, reading past the page cache from a real one does not. What a tmpfs holds is in the page cache by its nature, so in that
set-up only the receiver's is looked at. On real nodes four of them do not write to one disk: the last figure is an upper bound.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import shlex
import statistics
import subprocess
import sys
import time
import typing as t

LAB = pathlib.Path(__file__).resolve().parents[1] / "lab"
sys.path.insert(0, str(LAB))
import play  # noqa: E402 - lies beside the lab's tests
from sparklab import cgroups  # noqa: E402

SOURCE, TARGET = "/srv/bench-staging/model", "/srv/bench-staging/other"
# The source's own disk, in memory.
OWN = "/srv/bench-staging-memory"
SHARD = 512 << 20
KEY = "/root/bench_staging"

LAY = """
import json, os, sys
folder, total, shard = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
os.makedirs(folder, exist_ok=True)
count = max(1, total // shard)
block = os.urandom(16 << 20)
for number in range(1, count + 1):
    name = f"model-{number:05d}-of-{count:05d}.safetensors"
    head = json.dumps({"t": {"dtype": "U8", "shape": [shard], "data_offsets": [0, shard]}}).encode()
    with open(f"{folder}/{name}", "wb") as stream:
        stream.write(len(head).to_bytes(8, "little") + head)
        for turn in range(shard // len(block)):
            stream.write(block[turn + number:] + block[:turn + number])
json.dump({"model_type": "qwen3"}, open(f"{folder}/config.json", "w"))
"""
LIMIT = """
import mmap, os, socket, struct, sys, threading, time
role, address, folder = sys.argv[1:4]
STEP, STREAMS, PORT = 4 << 20, 2, 7791
def receive(talk):
    room = memoryview(mmap.mmap(-1, STEP))
    while head := talk.recv(12, socket.MSG_WAITALL):
        number, left = struct.unpack("!IQ", head)
        size, file = left, os.open(f"{folder}/{number}", os.O_WRONLY | os.O_CREAT | os.O_DIRECT, 0o644)
        while left:
            want = got = min(STEP, left)
            while got:
                got -= talk.recv_into(room[want - got:want], 0, socket.MSG_WAITALL)
            os.write(file, room[:-(-want // 4096) * 4096])
            left -= want
        os.ftruncate(file, size)
        os.fsync(file)
        os.close(file)
    talk.sendall(b"k")
def send(names):
    talk = socket.create_connection((address, PORT))
    for number, name in names:
        file = os.open(f"{folder}/{name}", os.O_RDONLY)
        size, done = os.fstat(file).st_size, 0
        talk.sendall(struct.pack("!IQ", number, size))
        while done < size:
            done += os.sendfile(talk.fileno(), file, done, size - done)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)
    talk.shutdown(socket.SHUT_WR)
    assert talk.recv(1) == b"k"
if role == "receive":
    os.makedirs(folder, exist_ok=True)
    server = socket.create_server((address, PORT))
    threads = [threading.Thread(target=receive, args=(server.accept()[0],)) for _ in range(STREAMS)]
else:
    names = list(enumerate(sorted(os.listdir(folder))))
    threads = [threading.Thread(target=send, args=(names[start::STREAMS],)) for start in range(STREAMS)]
begun = time.monotonic()
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(time.monotonic() - begun)
"""
# What the page cache holds of a folder's files, by mincore(2).
CACHED = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
lowest = bytes(byte & 1 for byte in range(256))
held = 0
for folder, _folders, names in os.walk(sys.argv[1]):
    for name in names:
        number = os.open(os.path.join(folder, name), os.O_RDONLY)
        size = os.fstat(number).st_size
        if size:
            there = ctypes.create_string_buffer(-(-size // 4096))
            where = libc.mmap(None, size, 1, 1, number, 0)
            libc.mincore(where, size, there)
            held += 4096 * there.raw.translate(lowest).count(1)
        os.close(number)
print(held)
"""


class Cost(t.NamedTuple):
    """Of one copy: its seconds, those of the processors of both nodes, and the share of it in the page cache of the worse node."""

    seconds: float
    cpu: float
    cached: float
    whole: float = 0.0


def python(program: str, *words: str) -> str:
    return " ".join(shlex.quote(word) for word in ("python3", "-c", program, *words))


def address(number: int) -> str:
    return f"192.168.200.{10 + number}"


def cpu(node: str) -> float:
    """The processor seconds of a node so far."""
    old = pathlib.Path("/sys/fs/cgroup/cpuacct/sparklab", node, "cpuacct.usage")
    if old.exists():
        return int(old.read_text()) / 1e9
    lines = dict(line.split() for line in pathlib.Path("/sys/fs/cgroup/sparklab", node, "cpu.stat").read_text().splitlines())
    return int(lines["usage_usec"]) / 1e6


def empty(nodes: t.Iterable[str]) -> None:
    """Targets and page caches are empty, and no digest is remembered."""
    for node in nodes:
        play.node(node, f"rm -rf {TARGET} /var/cache/sparkstack/staging")
    os.sync()
    pathlib.Path("/proc/sys/vm/drop_caches").write_text("3\n")


def copying(source: str, size: int, copy: t.Callable[[str], tuple[float, float]]) -> Cost:
    """One copy to the second node. :param source: the tree. :param copy: returns its seconds, and those of the whole run."""
    nodes = ("spark1", "spark2")
    empty(nodes)
    before = sum(cpu(node) for node in nodes)
    seconds, whole = copy(source)
    used = sum(cpu(node) for node in nodes) - before
    looked = [("spark2", TARGET)] + ([] if source.startswith(OWN) else [("spark1", source)])
    cached = max(int(play.node(node, python(CACHED, folder))) for node, folder in looked)
    return Cost(seconds, used, cached / size, whole)


def timed(command: str) -> tuple[float, float]:
    """A command on the head, by the head's own clock."""
    begun, ended = play.node("spark1", f"set -e; begun=$(date +%s.%N); {command} >/dev/null; echo $begun $(date +%s.%N)").split()
    return float(ended) - float(begun), float(ended) - float(begun)


def module(name: str, arguments: dict[str, t.Any], nodes: int = 2) -> tuple[dict[str, dict[str, t.Any]], float]:
    """What a module returns on the nodes, and the seconds of the whole run."""
    hosts = [f"spark{number}" for number in range(1, nodes + 1)]
    addresses = {host: address(number) for number, host in enumerate(hosts, start=1)}
    given = {"source": "spark1", "address": "{{ " + json.dumps(addresses) + "[inventory_hostname] }}", **arguments}
    command = [str(play.BIN / "ansible"), ",".join(hosts), "-i", play.inventory(), "--forks", str(nodes), "-b", "-m", f"sparkstack.inference.{name}"]
    begun = time.monotonic()
    done = subprocess.run(
        [*command, "-a", json.dumps(given)],
        env={**play.environment(), "ANSIBLE_STDOUT_CALLBACK": "ansible.posix.json", "ANSIBLE_LOAD_CALLBACK_PLUGINS": "1"},
        cwd=play.ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"bench_staging: {name} ended with code {done.returncode}:\n{done.stdout}{done.stderr}")
    return json.loads(done.stdout[done.stdout.index("{\n") :])["plays"][0]["tasks"][0]["hosts"], time.monotonic() - begun


def model_sync(source: str, nodes: int = 2, **arguments: t.Any) -> tuple[float, float]:
    found, whole = module("model_sync", {"path": source, "dest": TARGET, "progress": 0, **arguments}, nodes)
    return max(found[f"spark{number}"]["seconds"] for number in range(2, nodes + 1)), whole


def limit(source: str) -> tuple[float, float]:
    with subprocess.Popen(
        [str(play.LAB), "shell", "spark2", f"sudo {python(LIMIT, 'receive', address(2), TARGET)}"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    ) as receiver:
        deadline = time.monotonic() + 30
        while "7791" not in play.node("spark2", "ss -Hltn"):
            if time.monotonic() > deadline:
                sys.exit("bench_staging: the receiver of the bare copy does not listen after 30 s.")
            time.sleep(0.1)
        seconds = float(play.node("spark1", python(LIMIT, "send", address(2), source)))
        receiver.wait(60)
    return seconds, seconds


def trust() -> None:
    """Have the head's root log in on the second node without a question, as rsync and docker load over ssh need."""
    play.node("spark1", f"rm -f {KEY}*; ssh-keygen -q -t ed25519 -N '' -f {KEY}; ssh-keyscan -t ed25519 {address(2)} > {KEY}.hosts 2>/dev/null")
    public = play.node("spark1", f"cat {KEY}.pub").strip()
    play.node("spark2", f"mkdir -p -m 700 /root/.ssh; echo {shlex.quote(public + ' bench_staging')} >> /root/.ssh/authorized_keys")


def distrust() -> None:
    play.node("spark1", f"rm -f {KEY}*")
    play.node("spark2", "sed -i '/bench_staging/d' /root/.ssh/authorized_keys")


def ssh(cipher: str = "") -> str:
    return f"ssh -i {KEY} -o BatchMode=yes -o UserKnownHostsFile={KEY}.hosts{' -c ' + cipher if cipher else ''}"


def rsync(source: str, cipher: str = "") -> tuple[float, float]:
    """All is on the disk at its end, as it is at that of the others."""
    play.node("spark2", f"mkdir -p {TARGET}")
    return timed(f"rsync -a -e {shlex.quote(ssh(cipher))} {source}/ root@{address(2)}:{TARGET}/; {ssh(cipher)} root@{address(2)} sync")


def tell(name: str, costs: t.Sequence[Cost], size: int) -> Cost:
    """The medians of a way, which are written down."""
    found = Cost(*(statistics.median(cost[field] for cost in costs) for field in range(len(Cost._fields))))
    sys.stderr.write(
        f"{name}: {found.seconds:.2f} s ({', '.join(f'{cost.seconds:.2f}' for cost in costs)}), {size / 1e9 / found.seconds:.2f} GB/s,"
        f" {found.cpu / (size / 1e9):.2f} CPU s/GB, {100 * found.cached:.2f} % in the page cache, whole run {found.whole:.1f} s\n"
    )
    return found


WAYS: dict[str, tuple[str, t.Callable[[str], tuple[float, float]]]] = {
    "model_sync": ("model_sync", model_sync),
    "limit": ("the limit", limit),
    "rsync": ("rsync over ssh", rsync),
    "aes": ("rsync over ssh with aes128-gcm", lambda source: rsync(source, "aes128-gcm@openssh.com")),
    "tls": ("model_sync with tls", lambda source: model_sync(source, tls=True)),
    "sha256": ("model_sync with sha256", lambda source: model_sync(source, digest="sha256")),
}


def models(setup: str, source: str, ways: t.Sequence[str], turns: int) -> None:
    """Some of the ways to bring a tree to the second node.

    :param setup: what the lines are to say of where the tree lies. :param ways: of :data:`WAYS`.
    """
    size = int(play.node("spark1", f"find {source} -type f -printf '%s\\n' | awk '{{ s += $1 }} END {{ print s }}'"))
    costs: dict[str, list[Cost]] = {name: [] for name in ways}
    for _turn in range(turns):
        sys.stderr.write(f"{setup}: load of the machine {os.getloadavg()[0]:.1f}, its disk alone takes {disk():.2f} GB/s\n")
        for name in ways:
            costs[name].append(copying(source, size, WAYS[name][1]))
    told = {name: tell(f"{setup}: {WAYS[name][0]}", found, size) for name, found in costs.items()}
    suffix = "" if source.startswith(OWN) else "_one_disk"
    mine = told.get("model_sync")
    for name, figure in (("rsync", "staging_vs_rsync_ssh"), ("limit", "staging_vs_limit")):
        if mine and name in told:
            sys.stdout.write(f"figure {figure}{suffix} {told[name].seconds / mine.seconds:.2f} ratio\n")
    if mine:
        sys.stdout.write(f"figure staging_cpu_s_per_gb{suffix} {mine.cpu / (size / 1e9):.2f} s\n")
    if mine and suffix:
        sys.stdout.write(f"figure page_cache_share {mine.cached:.4f} share\n")


def disk() -> float:
    """What the target's disk takes by direct I/O and nothing else, in GB/s."""
    empty(("spark2",))
    begun, ended = play.node(
        "spark2",
        f"set -e; mkdir -p {TARGET}; begun=$(date +%s.%N);"
        f" dd if=/dev/zero of={TARGET}/disk bs=4M count=256 oflag=direct conv=fsync 2>/dev/null; echo $begun $(date +%s.%N)",
    ).split()
    return (256 << 22) / 1e9 / (float(ended) - float(begun))


def own_disk(gigabytes: float) -> None:
    """Give the source a disk of its own, in memory, with a tree on it.

    It is filled from outside of the node's control group, as the group that first writes a page is charged for it.
    """
    play.node("spark1", f"mkdir -p {OWN} && mount -t tmpfs -o size={int(gigabytes * 1.2e9)},mode=755 bench {OWN}")
    pid = cgroups.leader(cgroups.detect(), "spark1")
    if pid is None:
        sys.exit("bench_staging: spark1 went away.")
    subprocess.run(cgroups.enter_argv(pid, "python3", "-c", LAY, f"{OWN}/model", str(int(gigabytes * 1e9)), str(SHARD)), check=True)


def no_own_disk() -> None:
    play.node("spark1", f"if mountpoint -q {OWN}; then umount {OWN}; fi; rm -rf {OWN}")


def one_disk(gigabytes: float, ways: t.Sequence[str], turns: int) -> None:
    """The copies from the disk that they write to, and a second run."""
    play.node("spark1", python(LAY, SOURCE, str(int(gigabytes * 1e9)), str(SHARD)))
    models("one disk", SOURCE, ways, turns)
    empty(("spark2",))
    model_sync(SOURCE)
    found, whole = module("model_sync", {"path": SOURCE, "dest": TARGET})
    sys.stderr.write(f"model_sync again, nothing changed: {found['spark2']['bytes_sent']} bytes, whole run {whole:.1f} s\n")
    empty(("spark2",))
    play.node("spark1", f"rm -rf {SOURCE}")


def disk_each(gigabytes: float, ways: t.Sequence[str], turns: int) -> None:
    """The copies from a disk that is the source's alone."""
    try:
        own_disk(gigabytes)
        models("a disk each", f"{OWN}/model", ways, turns)
    finally:
        no_own_disk()
    empty(("spark2",))


def fanout(gigabytes: float, turns: int, memory: str) -> None:
    """To one node, and to four."""
    before = f"{json.loads(play.lab('status', '--json', ok=(0, 1)))['nodes'][0]['memory_limit'] >> 30}G"
    play.empty("spark1", "spark2")
    play.lab("up", "--nodes", "5", "--memory", memory)
    nodes = [f"spark{number}" for number in range(1, 6)]
    times: dict[int, list[float]] = {2: [], 5: []}
    try:
        play.node("spark1", f"rm -rf {SOURCE}")
        play.node("spark1", python(LAY, SOURCE, str(int(gigabytes * 1e9)), str(SHARD // 4)))
        for _turn in range(turns):
            for count, found in times.items():
                empty(nodes)
                found.append(model_sync(SOURCE, count)[0])
    finally:
        for node in nodes:
            play.node(node, "rm -rf /srv/bench-staging /var/cache/sparkstack/staging")
        play.lab("up", "--nodes", "2", "--memory", before)
    sys.stderr.write(f"{gigabytes} GB to one node {times[2]} s, to four {times[5]} s\n")
    sys.stdout.write(f"figure fanout_4_vs_1 {statistics.median(times[5]) / statistics.median(times[2]):.2f} ratio\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=8, help="size of the tree (default: 8)")
    parser.add_argument("--fanout-gigabytes", type=float, default=2, help="size of the tree for five nodes (default: 2; 0: leave it out)")
    parser.add_argument("--memory", default="1500M", help="limit of each of the five nodes (default: 1500M)")
    parser.add_argument("--turns", type=int, default=3, help="how often each way is taken (default: 3)")
    setups = ["one-disk", "disk-each"]
    parser.add_argument("--setups", nargs="*", choices=setups, default=setups, metavar="SETUP", help="one-disk, disk-each (default: both)")
    parser.add_argument("--ways", nargs="*", choices=list(WAYS), default=list(WAYS), metavar="WAY", help=f"{', '.join(WAYS)} (default: all)")
    options = parser.parse_args()
    if os.geteuid():
        sys.exit("bench_staging: the lab's nodes need root: run it with sudo.")
    play.lab("up", "--nodes", "2")
    play.empty("spark1", "spark2")
    trust()
    try:
        play.node("spark1", "rm -rf /srv/bench-staging")
        no_own_disk()
        for setup in options.setups:
            {"one-disk": one_disk, "disk-each": disk_each}[setup](options.gigabytes, options.ways, options.turns)
    finally:
        for node in ("spark1", "spark2"):
            play.node(node, "rm -rf /srv/bench-staging /var/cache/sparkstack/staging")
        distrust()
    if options.fanout_gigabytes:
        fanout(options.fanout_gigabytes, options.turns, options.memory)


if __name__ == "__main__":
    main()
