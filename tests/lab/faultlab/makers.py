# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The hands: what makes a fault on the nodes, when it happened, and what takes all of it away again."""

from __future__ import annotations

import concurrent.futures
import json
import os
import re
import struct
import time
import typing as t
from datetime import datetime

import play

from .engines import CONTAINERS, COPY, DEPLOYMENT, HEAD, NODES, WORKER, Engine
from .launch import Missed

SQUATTER = "notebook-of-somebody"
HOLDER = "lab-port-holder"
WRONG = "sparkstack/wrong-architecture:1"
EM_AARCH64, EM_X86_64 = 183, 62
GUARD = "/run/sparkstack/guard"


def both(call: t.Callable[[str], object]) -> None:
    """Do something on both nodes at once."""
    together(call, NODES)


def together(call: t.Callable[[str], object], nodes: t.Sequence[str]) -> None:
    """Do something on these nodes at once."""
    with concurrent.futures.ThreadPoolExecutor() as pool:
        list(pool.map(call, nodes))


def clean() -> None:
    """Take away whatever a fault has left: containers, holders of ports, cuts, limits, a wrong clock."""
    status = {row["name"]: row for row in json.loads(play.lab("status", "--json", ok=(0, 1)))["nodes"]}

    def sweep(node: str) -> None:
        settings = status[node]
        if settings["power"] == "frozen":
            play.lab("thaw", node)
        play.lab("rejoin", node)
        if settings["cut"]:
            play.lab("heal", node)
        if settings["disk"]:
            play.lab("disk", node, "off")
        if settings["clock"]:
            play.lab("clock", node, "0")
        play.node(
            node,
            f"systemctl stop {HOLDER} 2>/dev/null; systemctl start docker.socket docker;"
            " docker ps -q --filter status=paused | xargs -r docker unpause >/dev/null;"
            f" docker ps -aq | xargs -r docker rm -f >/dev/null; docker rmi -f {WRONG} >/dev/null 2>&1; rm -rf {COPY};"
            f" if [ -d {GUARD} ]; then systemctl stop 'sparkstack-guard@*'; rm -rf {GUARD} /run/systemd/system/sparkstack-guard@.service;"
            " systemctl daemon-reload; fi",
        )

    both(sweep)


def logs(node: str) -> str:
    """A rank's log with Docker's own times."""
    return play.node(node, f"docker logs --timestamps {CONTAINERS[node]} 2>&1 || true")


# When it happened, in seconds since the epoch.


def seconds_of(stamp: str) -> float:
    """Of '2026-11-30T03:38:09.123456789Z'."""
    whole, _dot, rest = stamp.rstrip("Z").partition(".")
    return datetime.fromisoformat(whole + "+00:00").timestamp() + float(f"0.{rest or 0}")


def ended(*nodes: str) -> float:
    """When the first of these ranks had ended, by Docker."""
    found = []
    for node in nodes:
        state = json.loads(play.node(node, f"docker inspect --format '{{{{json .State}}}}' {CONTAINERS[node]}"))
        if not state["Running"]:
            found.append(seconds_of(state["FinishedAt"]))
    if not found:
        raise Missed(f"no rank of {', '.join(nodes)} has ended")
    return min(found)


def said(pattern: str, *nodes: str) -> float:
    """When the first of these ranks printed a line that matches."""
    lines = (line.partition(" ") for node in nodes for line in logs(node).splitlines())
    found = [seconds_of(stamp) for stamp, _blank, text in lines if re.search(pattern, text)]
    if not found:
        raise Missed(f"{' and '.join(nodes)} have not printed '{pattern}'")
    return min(found)


def oom_killed(node: str) -> float:
    """When the kernel first killed a process of this rank; the nodes' kernel is this machine's."""
    container = play.node(node, f"docker inspect --format '{{{{.Id}}}}' {CONTAINERS[node]}").strip()
    # '6,1042,3600123456,-;oom-kill:constraint=CONSTRAINT_MEMCG,...,task_memcg=/sparklab/spark2/docker/4f1c..'
    begin = time.time() - time.clock_gettime(time.CLOCK_MONOTONIC)
    for line in kernel_log():
        head, _semicolon, text = line.partition(";")
        if text.startswith("oom-kill:") and container in text:
            return begin + int(head.split(",")[2]) / 1e6
    raise Missed(f"the kernel has killed nothing in {CONTAINERS[node]}")


def guard_told(node: str) -> dict[str, t.Any]:
    """What the memory guard of a node told of the rank that it has stopped, once that one's last process is gone."""
    deadline = time.monotonic() + 60
    while True:
        text = play.node(node, f"cat {GUARD}/{DEPLOYMENT}.told.json 2>/dev/null || true")
        found = json.loads(text) if text.strip() else {}
        if found.get("gone_s") is not None:
            return t.cast("dict[str, t.Any]", found)
        if time.monotonic() > deadline:
            raise Missed(f"the guard on {node} has {'seen no end of the rank that it stopped' if found else 'stopped nothing'}")
        time.sleep(0.2)


def kernel_log() -> list[str]:
    """What the kernel's ring buffer holds, a record each."""
    lines = []
    stream = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    try:
        while True:
            try:
                lines.append(os.read(stream, 8192).decode(errors="replace"))
            except BrokenPipeError:  # the record was overwritten meanwhile; the next one follows
                continue
            except BlockingIOError:
                return lines
    finally:
        os.close(stream)


# Before the start.


def copy_model(engine: Engine) -> None:
    """A copy of the model on both nodes, to be damaged."""
    both(lambda node: play.node(node, f"rm -rf {COPY}; mkdir -p {os.path.dirname(COPY)}; cp -a {engine.model} {COPY}"))


def lose_shard(engine: Engine) -> None:
    """The second shard is missing on the worker."""
    copy_model(engine)
    play.node(WORKER, f"rm {COPY}/model-00002-*.safetensors")


def cut_shard(engine: Engine) -> None:
    """The second shard has half its length on the worker."""
    copy_model(engine)
    play.node(WORKER, f"f=$(echo {COPY}/model-00002-*.safetensors); truncate --size $(($(stat -c %s $f) / 2)) $f")


def slow_disks(speed: str) -> t.Callable[[Engine], None]:
    """Both nodes read from disk at this speed, and have to read the wide model from there."""

    def make(engine: Engine) -> None:
        for node in NODES:
            play.lab("disk", node, speed)
        both(lambda node: play.node(node, f"sync; for f in {engine.wide}/*; do dd if=$f iflag=nocache count=0 status=none; done"))

    return make


def hold_port(number: t.Callable[[Engine], int]) -> t.Callable[[Engine], None]:
    """Somebody else's server listens at a port of the head."""

    def make(engine: Engine) -> None:
        port = number(engine)
        play.node(HEAD, f"systemd-run --quiet --unit {HOLDER} python3 -m http.server {port}; until ss -Hltn 'sport = :{port}' | grep -q .; do sleep 0.1; done")

    return make


def squat(engine: Engine, size: int) -> None:
    """A container that has nothing to do with the launch holds so many bytes of the worker's node."""
    program = f"import time; held = bytearray({size}); held[::4096] = b'x' * len(held[::4096]); print('held', flush=True); time.sleep(3600)"
    play.node(WORKER, f'docker run --detach --name {SQUATTER} --network none {engine.image} python3 -c "{program}"')
    play.node(WORKER, f"until docker logs {SQUATTER} | grep -q held; do sleep 0.2; done")


def wrong_clock(seconds: int) -> t.Callable[[Engine], None]:
    """The worker's clock is off; Docker's own times stay right, see sparklab/hinder.py."""
    return lambda _engine: void(play.lab("clock", WORKER, str(seconds)))


def foreign_elf() -> bytes:
    """A program of 120 bytes for the architecture that this machine is not: its kernel refuses the header."""
    machine = EM_X86_64 if os.uname().machine == "aarch64" else EM_AARCH64
    header = struct.pack("<4s5B7xHHIQQQIHHHHHH", b"\x7fELF", 2, 1, 1, 0, 0, 2, machine, 1, 0x400078, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    return header + struct.pack("<IIQQQQQQ", 1, 5, 0, 0x400000, 0x400000, 120, 120, 0x1000)


def wrong_image(_engine: Engine) -> None:
    """An image for the other architecture on the worker, the shell in it too: else libc would run the program as a script."""
    other = "amd64" if os.uname().machine == "aarch64" else "arm64"
    octets = "".join(f"\\{byte:03o}" for byte in foreign_elf())
    play.node(
        WORKER,
        "set -e; d=$(mktemp -d); cd $d; mkdir bin;"
        f" printf '{octets}' > bin/sh; chmod 755 bin/sh; for name in vllm python3 python sglang; do cp bin/sh bin/$name; done;"
        f" printf 'FROM scratch\\nCOPY bin /bin\\nENV PATH=/bin\\n' > Dockerfile; docker build -q --platform linux/{other} -t {WRONG} . ; rm -rf $d",
    )


LEDGER = "/var/lib/sparkstack"
MADE = "faults.made"
"""The label of images that are made here."""


def fill_disk(node: str) -> None:
    """The disk below the node's ledger takes not one byte more: a disk of its own of 64 KiB, since the nodes share this machine's."""
    play.node(node, f"mkdir -p {LEDGER}; mount -t tmpfs -o size=64k,mode=0755 faults {LEDGER}; dd if=/dev/zero of={LEDGER}/full bs=1k status=none || true")


def empty_disk(node: str) -> None:
    """The ledger is where it was."""
    play.node(node, f"if mountpoint -q {LEDGER}; then umount {LEDGER}; fi")


def other_image(node: str, base: str, tag: str, size: int = 0) -> None:
    """An image of other content: the base with a new label, and so many bytes on top that no compression makes less."""
    play.node(
        node,
        "set -e; d=$(mktemp -d); cd $d;"
        f" head -c {size} /dev/urandom > ballast; printf 'FROM {base}\nCOPY ballast /ballast\nLABEL {MADE}=%s\n' $(date +%s%N) > Dockerfile;"
        f" docker build -q -t {tag} .; rm -rf $d",
    )


def halve(node: str, path: str) -> None:
    """A file at rest loses its second half; what it was is kept beside the model's folder."""
    kept = f"/srv/faults/kept{path}"
    play.node(node, f"mkdir -p $(dirname {kept}); cp -a {path} {kept}; truncate --size $(($(stat -c %s {path}) / 2)) {path}")


def mend(node: str, path: str) -> None:
    """It has its whole content again, and its time."""
    kept = f"/srv/faults/kept{path}"
    play.node(node, f"if [ -e {kept} ]; then cp -a {kept} {path}; rm -rf /srv/faults/kept; fi")


# While it starts, or after.


def stop_docker(node: str) -> t.Callable[[], None]:
    """A daemon that stops, and that no call wakes."""
    return lambda: void(play.node(node, "systemctl stop --no-block docker.socket docker"))


def remove(node: str) -> t.Callable[[], None]:
    """A container taken away while it runs."""
    return lambda: void(play.node(node, f"docker rm --force {CONTAINERS[node]}"))


def kill(node: str) -> t.Callable[[], None]:
    """A rank ended as the kernel would."""
    return lambda: void(play.node(node, f"docker kill --signal KILL {CONTAINERS[node]}"))


def pause(node: str) -> t.Callable[[], None]:
    """A rank stands still. A process that waits for its disk can't be frozen (runc: "unable to freeze"): try until it can."""
    name = CONTAINERS[node]
    return lambda: void(play.node(node, f"for turn in $(seq 50); do docker pause {name} && exit 0; sleep 0.2; done; exit 1"))


def void(_result: object) -> None:
    """For a call whose answer nobody needs."""
