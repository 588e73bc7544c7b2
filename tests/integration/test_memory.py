# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Memory on a lab node: who holds it, page cache that is given back, and a load that is stopped before its node is out of memory."""

from __future__ import annotations

import json
import pathlib
import shlex
import subprocess
import sys
import time
import typing as t

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lab"))

import play  # noqa: E402  (the path above must come first)

pytestmark = pytest.mark.lab

NODE = "spark2"
IMAGE = "sparkstack/vllm-cpu:0.32.0"
GIB = 1 << 30
FILE = "/var/tmp/memory-test"
HOLD = "import time; held = bytearray(b'1') * {}; print('held', flush=True); time.sleep(600)"
# About 200 MiB a second, until somebody or something ends it.
GROW = "import time\nheld = []\nwhile True:\n    held.append(bytearray(b'1') * (32 << 20))\n    time.sleep(0.12)\n"


@pytest.fixture(scope="module", autouse=True)
def nodes() -> t.Iterator[None]:
    play.lab("up")
    play.install_engine()
    play.empty(*play.RANKS)
    if not play.node(NODE, f"docker images -q {IMAGE}").strip():
        play.lab("put-image", NODE, IMAGE)
    yield
    play.node(NODE, f"rm -f {FILE}")
    play.empty(*play.RANKS)


def module(name: str, *words: str, **options: t.Any) -> dict[str, t.Any]:
    """What a module returns on the node."""
    command = [str(play.BIN / "ansible"), NODE, "-i", play.inventory(), "-b", "-m", f"sparkstack.inference.{name}", *words]
    done = subprocess.run(
        [*command, "-a", json.dumps(options)],
        env={**play.environment(), "ANSIBLE_STDOUT_CALLBACK": "ansible.posix.json", "ANSIBLE_LOAD_CALLBACK_PLUGINS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    # A watch's lines stand before it: "[spark2] 0/9 container, ..".
    return t.cast("dict[str, t.Any]", json.loads(done.stdout[done.stdout.index("{") :])["plays"][0]["tasks"][0]["hosts"][NODE])


def memory() -> dict[str, t.Any]:
    return t.cast("dict[str, t.Any]", module("gpu_memory_facts", holders=True)["ansible_facts"]["gpu_memory"])


def start(name: str, program: str) -> None:
    play.node(
        NODE,
        shlex.join(["docker", "run", "-d", "--network", "none", "--label", "sparkstack.deployment=greedy", "--name", name, IMAGE, "python3", "-c", program]),
    )


def test_a_node_on_which_nothing_runs() -> None:
    assert [holder for holder in memory()["holders"] if holder["kind"] == "container"] == []


def test_a_forgotten_container_is_named_with_how_to_stop_it() -> None:
    total = memory()["total_bytes"]
    held = total * 12 // 100
    start("forgotten", HOLD.format(held))
    try:
        play.node(NODE, "until docker logs forgotten | grep -q held; do sleep 0.2; done")
        first = memory()["holders"][0]
    finally:
        play.node(NODE, "docker rm -f forgotten")
    assert (first["kind"], first["name"], first["image"], first["stop"]) == ("container", "forgotten", IMAGE, "docker stop forgotten")
    assert first["bytes"] == pytest.approx(held, rel=0.05)


def test_what_forked_processes_share_counts_once() -> None:
    program = "import os, time; held = bytearray(b'1') * (512 << 20); [os.fork() for _ in range(2)]; open(f'/run/forked-{os.getpid()}', 'w'); time.sleep(600)"
    play.node(NODE, shlex.join(["systemd-run", "--quiet", "--unit", "forked", "/usr/bin/python3", "-c", program]))
    try:
        play.node(NODE, "until [ $(ls /run/forked-* | wc -l) = 4 ]; do systemctl is-active --quiet forked || exit 1; sleep 0.2; done")
        mine = [holder for holder in memory()["holders"] if holder["stop"] == "systemctl stop forked.service"]
    finally:
        play.node(NODE, "systemctl stop forked; rm -f /run/forked-*")
    assert len(mine) == 4 and sum(holder["bytes"] for holder in mine) == pytest.approx(512 << 20, rel=0.1)


# The nodes have no fincore. The kernel tells of each page whether it is in memory; a page is 4096 bytes at least.
HELD = """
import ctypes, os
libc, size = ctypes.CDLL(None), os.path.getsize(path)
libc.mmap.restype = ctypes.c_void_p
where = ctypes.c_void_p(libc.mmap(None, ctypes.c_size_t(size), 1, 1, os.open(path, os.O_RDONLY), ctypes.c_long(0)))
pages = ctypes.create_string_buffer(size // 4096 + 1)
assert libc.mincore(where, ctypes.c_size_t(size), pages) == 0
print(sum(byte & 1 for byte in pages.raw) * os.sysconf("SC_PAGE_SIZE"))
"""


def held() -> int:
    """Bytes of page cache that the file has on the node."""
    return int(play.node(NODE, shlex.join(["python3", "-c", f"path = {FILE!r}{HELD}"])))


def test_page_cache_after_a_copy_is_told_and_given_back() -> None:
    play.node(NODE, f"head -c {GIB} /dev/urandom >{FILE}; sync; cat {FILE} >/dev/null")
    before = memory()
    assert before["page_cache_bytes"] >= held() > GIB // 2
    assert before["available_bytes"] - before["free_bytes"] > GIB // 2
    # More than there can be: the file is given back however much is free.
    wanted = {"wanted": before["total_bytes"], "paths": [FILE, "/nowhere"]}
    for words, changed, left in ((["--check"], True, 1), ([], True, 0), (["--check"], False, 0), ([], False, 0)):
        result = module("page_cache_release", *words, **wanted)
        assert (result["changed"], result["actions"], held() > GIB // 2) == (changed, ["files"] if changed else [], bool(left))
    assert held() == 0


def grown(guarded: bool) -> tuple[dict[str, t.Any], dict[str, t.Any]]:
    """A load that takes more than the node has: how its container ended, and what the watch says."""
    before = memory()
    start("greedy-rank1", GROW)
    try:
        if guarded:
            for words, changed in ((["--check"], True), ([], True), (["--check"], False), ([], False)):
                assert module("memory_guard", *words, deployment="greedy", container="greedy-rank1", until=300)["changed"] is changed
        deadline = time.monotonic() + 180
        while (state := json.loads(play.node(NODE, "docker inspect -f '{{json .State}}' greedy-rank1")))["Running"]:
            assert time.monotonic() < deadline, "it runs still"
            time.sleep(1)
        verdict = module("init_phase_wait", container="greedy-rank1", engine="vllm", timeout=30, closer_look="never")
        ended = module("memory_guard", deployment="greedy", state="stopped")
        assert ended["changed"] is guarded
        if guarded:
            told = json.loads(play.node(NODE, "cat /run/sparkstack/guard/greedy.told.json"))
            print(f"figure guard_stop_s {told['gone_s']:.2f} s")
            assert told["gone_s"] < 5
            back = module("memory_return_wait", before=before, guard=told, containers=["greedy-rank1"], timeout=60)
            assert back["returned"] and back["held_bytes"] > GIB, back["msg"]
        return state, verdict
    finally:
        play.node(NODE, "docker rm -f greedy-rank1")


def test_a_load_that_takes_too_much_is_stopped_before_the_node_is_out_of_memory() -> None:
    state, verdict = grown(guarded=True)
    assert state["ExitCode"] == 137
    assert (verdict["verdict"], verdict["cause"], verdict["culprit"]) == ("failed", "oom", NODE)
    assert "was stopped by the memory guard" in verdict["summary"], verdict["summary"]
    assert not any("Killed process" in line for line in verdict["evidence"])
    # The node answers, and nothing of the guard is left but what it has told.
    assert play.node(NODE, "systemctl is-active docker; systemctl list-units --all --plain --no-legend 'sparkstack-guard@*' | wc -l").split() == ["active", "0"]


@pytest.mark.long
def test_without_a_guard_it_is_the_kernel_that_ends_it() -> None:
    state, verdict = grown(guarded=False)
    assert state["ExitCode"] == 137
    assert (verdict["verdict"], verdict["cause"], verdict["culprit"]) == ("failed", "oom", NODE)
    assert "memory guard" not in verdict["summary"] and "Killed process" in verdict["evidence"][0]
