# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later


"""Faults made for real on two ranks of the SGLang rehearsal: their last words and exit codes are those of the recorded logs."""

from __future__ import annotations

import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time
import typing as t

import pytest
from rehearsing import LOGS, Rank

pytestmark = [pytest.mark.lab, pytest.mark.engine]
GB = 1 << 30


def copy_model(model: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    """A copy that a test may spoil."""
    folder.mkdir()
    for file in model.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


CRASHED = 0  # a container's first process can't kill itself


def test_a_worker_that_is_killed(served: tuple[Rank, Rank]) -> None:
    head, worker = served
    worker.signal("python", signal.SIGKILL)
    assert worker.code() != 0
    assert head.code() == CRASHED
    assert re.search(r"RuntimeError: \[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:\d+\] .*\[127\.0\.0\.1\]:\d+", head.text)
    assert "SIGQUIT received." in head.text and "kill_process_tree called: parent_pid=1, include_parent=True, pid=1" in head.last
    assert "Scheduler" not in worker.text.partition("Dummy health check server started in background thread at")[2]


def test_a_head_that_is_killed(served: tuple[Rank, Rank]) -> None:
    head, worker = served
    head.signal("python", signal.SIGKILL)
    assert worker.code() == CRASHED
    assert re.search(r"Connection closed by peer \[127\.0\.0\.1\]:\d+", worker.text)
    assert "Received sigquit from a child process." in worker.text


def test_a_workers_scheduler_that_is_killed(served: tuple[Rank, Rank]) -> None:
    head, worker = served
    worker.signal("sglang::schedul", signal.SIGKILL)
    assert worker.code() == 3
    assert re.search(r"Scheduler or DataParallelController \d+ terminated with -9\n", worker.text)
    assert "AttributeError: 'NoneType' object has no attribute 'server_args'" in worker.text
    assert head.code() == CRASHED


def test_a_stop_of_the_head(served: tuple[Rank, Rank]) -> None:
    head, worker = served
    head.signal("python", signal.SIGTERM)
    assert head.code() == 0
    assert "SIGTERM received." in head.text and "Scheduler hit an exception" not in head.text
    assert head.last == "asyncio.exceptions.CancelledError"
    assert worker.code() == 3
    assert re.search(r"terminated with 0\n", worker.text)


def test_a_stop_while_it_waits_is_ignored(pair: tuple[Rank, Rank]) -> None:
    head, _worker = pair
    head.start()
    head.wait("Init torch distributed begin.")
    head.signal("python", signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        head.code(1)
    assert head.last.endswith("TP0] Init torch distributed begin.")


def test_a_worker_that_never_comes(pair: tuple[Rank, Rank]) -> None:
    head, _worker = pair
    head.options["--dist-timeout"] = "2"
    head.start()
    assert head.code() == CRASHED
    assert "torch.distributed.DistStoreError: Timed out after 3 seconds waiting for clients. 1/2 clients joined.\n" in head.text


def test_a_head_that_never_comes(pair: tuple[Rank, Rank]) -> None:
    _head, worker = pair
    worker.options["--dist-timeout"] = "2"
    worker.start()
    assert worker.code() == CRASHED
    place = worker.options["--dist-init-addr"].replace(":", ", ")
    assert worker.text.count(f"[c10d] The client socket has timed out after 2000ms while trying to connect to ({place}).") >= 2
    assert f"torch.distributed.DistNetworkError: The client socket has timed out after 2000ms while trying to connect to ({place})." in worker.text


def test_an_address_without_a_way(pair: tuple[Rank, Rank]) -> None:
    _head, worker = pair
    worker.options["--dist-init-addr"] = "10.255.78.1:25000"
    inside = f'ip route add unreachable 10.255.78.0/24; exec {sys.executable} -m sglang.launch_server "$@"'
    worker.shell = f"exec unshare --net sh -c 'ip link set lo up; {inside}' sh \"$@\"; "
    worker.start()
    worker.wait("retrying (try=0, timeout=600000ms")
    assert re.search(
        r"\[W\d{4} [\d:.]+ socket.cpp:764\] \[c10d\] The client socket has failed to connect to .*\(errno: 113 - No route to host\)\.", worker.text
    )
    assert worker.runs()


def test_a_rendezvous_port_that_is_taken(pair: tuple[Rank, Rank]) -> None:
    head, worker = pair
    with socket.create_server(("0.0.0.0", int(head.options["--dist-init-addr"].rpartition(":")[2]))):
        worker.start()
        head.start()
        assert head.code() == CRASHED
        port = head.options["--dist-init-addr"].rpartition(":")[2]
        assert f"failed to listen on any local network address. port: {port}, useIpv6: false, code: -98, name: EADDRINUSE" in head.text
        assert worker.runs() and worker.last.endswith("Init torch distributed begin.")


def test_an_http_port_that_is_taken(pair: tuple[Rank, Rank]) -> None:
    head, worker = pair
    with socket.create_server(("127.0.0.1", head.port)):
        worker.start()
        head.start()
        head.wait(f"[Errno 98] error while attempting to bind on address ('127.0.0.1', {head.port}): address already in use")
        worker.wait("Dummy health check server started")
        assert head.runs() and "Engine startup timings" in head.text and "Uvicorn running" not in head.text


@pytest.mark.parametrize(
    ("variable", "sentence", "head_last"),
    [
        ("GLOO_SOCKET_IFNAME", "RuntimeError: [enforce fail at /pytorch/third_party/gloo/gloo/transport/tcp/device.cc:84] ifa != nullptr. "
         "Unable to find address for: enp99s0\n", "Init torch distributed begin."),
        ("NCCL_SOCKET_IFNAME", "RuntimeError: NCCL error: invalid usage (run with NCCL_DEBUG=WARN for details)\n", "sglang is using nccl==2.28.9"),
    ],
)  # fmt: skip
def test_an_interface_that_the_worker_does_not_have(pair: tuple[Rank, Rank], variable: str, sentence: str, head_last: str) -> None:
    head, worker = pair
    worker.environment[variable] = "enp99s0"
    worker.start()
    head.start()
    assert worker.code() == CRASHED
    assert sentence in worker.text
    with pytest.raises(subprocess.TimeoutExpired):
        head.code(1)
    assert head.last.endswith(head_last)


def test_a_host_name_that_means_the_machine_itself(pair: tuple[Rank, Rank]) -> None:
    """Each rank in a network of its own, as nodes are: 127.0.1.1 of the other is nobody."""
    head, worker = pair
    address = {0: "10.255.77.1", 1: "10.255.77.2"}
    subprocess.run(["ip", "netns", "add", "rehearsal-w"], check=True)
    try:
        inside = ["ip", "-n", "rehearsal-w"]
        subprocess.run(["ip", "link", "add", "reh-h", "type", "veth", "peer", "name", "reh-w", "netns", "rehearsal-w"], check=True)
        for words in (["ip", "addr", "add", f"{address[0]}/24", "dev", "reh-h"], ["ip", "link", "set", "reh-h", "up"],
                      [*inside, "addr", "add", f"{address[1]}/24", "dev", "reh-w"], [*inside, "link", "set", "reh-w", "up"],
                      [*inside, "link", "set", "lo", "up"]):  # fmt: skip
            subprocess.run(words, check=True)
        name = socket.gethostname()
        hosts = head.folder / "hosts"
        hosts.write_text(f"127.0.0.1 localhost\n127.0.1.1 {name}\n")
        for rank in pair:
            del rank.environment["GLOO_SOCKET_IFNAME"]
            rank.options["--dist-init-addr"] = f"{address[0]}:25000"
            rank.shell = f"mount --bind {hosts} /etc/hosts; "
        worker.shell = f'mount --bind {hosts} /etc/hosts; exec nsenter --net=/run/netns/rehearsal-w {sys.executable} -m sglang.launch_server "$@"; '
        worker.start()
        head.start()
        deadline = time.monotonic() + 20
        while head.runs() and worker.runs() and time.monotonic() < deadline:
            time.sleep(0.1)
        failed, silent = (worker, head) if head.runs() else (head, worker)
        assert re.search(r"RuntimeError: Gloo connectFullMesh failed with \[.*pair\.cc:144\] .*Connection refused, remote=\[127\.0\.1\.1\]:\d+\n", failed.text)
        assert silent.runs() and silent.last.endswith("Init torch distributed begin.")
    finally:
        subprocess.run(["ip", "netns", "del", "rehearsal-w"], check=True)


def test_ranks_that_differ_in_their_size(pair: tuple[Rank, Rank]) -> None:
    head, worker = pair
    worker.options["--tp-size"] = "4"
    worker.start()
    head.start()
    assert worker.code() == CRASHED
    assert "torch.AcceleratorError: CUDA error: invalid device ordinal\n" in worker.text and " TP3] Scheduler hit an exception" in worker.text
    with pytest.raises(subprocess.TimeoutExpired):
        head.code(1)


def test_an_unknown_option_and_a_missing_model_on_the_worker(pair: tuple[Rank, Rank]) -> None:
    _head, worker = pair
    worker.options["--max-model-len"] = "4096"
    worker.start()
    assert worker.code() == 2
    assert worker.last == "sglang serve: error: unrecognized arguments: --max-model-len 4096" and worker.text.count("\n") > 300
    del worker.options["--max-model-len"]
    worker.options["--model-path"] = "/models/none/Qwen3.5-122B-A10B"
    worker.start()
    assert worker.code() == 1
    recorded = (LOGS / "model-missing-on-worker" / "worker.log").read_text().strip().splitlines()[-1]
    assert worker.last == recorded


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda shard: os.truncate(shard, shard.stat().st_size // 2),
         "safetensors_rust.SafetensorError: Error while deserializing header: incomplete metadata, file not fully covered\n"),
        (lambda shard: shard.unlink(), "FileNotFoundError: No such file or directory: "),
    ],
    ids=["cut", "gone"],
)  # fmt: skip
def test_a_shard_that_is_not_whole_on_the_worker(
    pair: tuple[Rank, Rank], model: pathlib.Path, tmp_path: pathlib.Path, spoil: t.Callable[[pathlib.Path], None], sentence: str
) -> None:
    head, worker = pair
    folder = copy_model(model, tmp_path / "spoiled")
    spoil(folder / "model-00004-of-00006.safetensors")
    worker.options["--model-path"] = str(folder)
    worker.start()
    head.start()
    assert worker.code() == CRASHED and head.code() == CRASHED
    assert sentence in worker.text
    assert "ValueError: TP rank 0 could finish the model loading, but there are other ranks" in head.text


def test_a_worker_that_stands_still_while_it_loads(pair: tuple[Rank, Rank]) -> None:
    head, worker = pair
    worker.environment["REHEARSAL_SHARD_SECONDS"] = "20"
    worker.start()
    head.start()
    worker.wait("multimem all-gather")
    worker.signal("sglang::schedul", signal.SIGSTOP)
    head.wait("100% Completed")
    with pytest.raises(subprocess.TimeoutExpired):
        head.code(1.5)
    assert "Load weight end" not in head.text and "Scheduler hit" not in head.text
    worker.signal("sglang::schedul", signal.SIGKILL)
    assert worker.code() == 1
    assert (
        "RuntimeError: Rank 0 scheduler died during initialization (exit code: -9). If exit code is -9 (SIGKILL), a common cause is the OS OOM" in worker.text
    )
    assert head.code() == CRASHED


# Memory: what /proc/meminfo says, and what the kernel allows.


def meminfo(folder: pathlib.Path, name: str, available: int) -> str:
    """The shell words that put another MemAvailable (bytes) over /proc/meminfo."""
    text = re.sub(r"(?m)^MemAvailable:.*$", f"MemAvailable:   {available // 1024:>8} kB", pathlib.Path("/proc/meminfo").read_text())
    (folder / name).write_text(text)
    return f"mount --bind {folder / name} /proc/meminfo; "


def test_no_memory_for_a_context(pair: tuple[Rank, Rank]) -> None:
    head, worker = pair
    worker.shell = meminfo(worker.folder, "low", 134 << 20)
    worker.start()
    head.start()
    assert worker.code() == CRASHED
    assert "torch.AcceleratorError: CUDA error: out of memory\n" in worker.text and "Init torch distributed begin" not in worker.text
    assert "Context: self.device='cuda' ps.gpu_id=0 os.environ.get('CUDA_VISIBLE_DEVICES')=None ps.tp_rank=1 ps.tp_size=2" in worker.text
    assert head.runs()


def test_less_memory_on_the_worker(pair: tuple[Rank, Rank]) -> None:
    head, worker = pair
    head.shell, worker.shell = meminfo(head.folder, "much", 8 * GB), meminfo(worker.folder, "little", 2 * GB)
    worker.start()
    head.start()
    assert head.code() == CRASHED
    found = re.search(r"unbalanced\. .*pre_model_load_memory=([\d.]+), local_gpu_memory=([\d.]+), local_gpu_memory \* 0\.9=", head.text)
    assert found and float(found[1]) < 2.1 and float(found[2]) > 7
    assert worker.code() == CRASHED
    assert "Connection closed by peer" in worker.text or "reset by peer" in worker.text


def test_no_room_for_the_cache(pair: tuple[Rank, Rank]) -> None:
    for rank in pair:
        rank.shell = meminfo(rank.folder, f"room{rank.number}", GB)
        # 6 MB of files as 0.6 GB a rank
        rank.environment["REHEARSAL_WEIGHT_FACTOR"] = "200"
        rank.options["--mem-fraction-static"] = "0.5"
        rank.start()
    for rank in pair:
        assert rank.code() == CRASHED
        assert "ValueError: Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static=0.5. Raise --mem-fraction-static above" in rank.text


def test_weights_that_do_not_fit(pair: tuple[Rank, Rank]) -> None:
    head, worker = pair
    for rank in pair:
        rank.shell = meminfo(rank.folder, f"small{rank.number}", GB)
        rank.environment["REHEARSAL_WEIGHT_FACTOR"] = "400"
        rank.start()
    assert head.code() == CRASHED and worker.code() == CRASHED
    assert "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1200." in worker.text
