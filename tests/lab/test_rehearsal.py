# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The SGLang rehearsal, two ranks as processes of this machine: it starts as the recorded logs show, and faults end as there.

Each rank is the first process of a PID namespace of its own, as it is in a container. The last test deploys it on the lab.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time
import typing as t
import urllib.error
import urllib.request

import play
import pytest

ENGINE = play.ROOT / "tests" / "lab" / "engine"
LOGS = play.ROOT / "tests" / "fixtures" / "logs" / "sglang-gpu"
sys.path.insert(0, str(ENGINE))

from sparkengine import rehearsal  # noqa: E402  (the path above must come first)

pytestmark = [pytest.mark.lab, pytest.mark.engine]
GB = 1 << 30


def free_port() -> int:
    """A TCP port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return t.cast("int", probe.getsockname()[1])


class Rank:
    """One rank: a process tree of its own, and its log."""

    def __init__(self, folder: pathlib.Path, number: int, rendezvous: int, model: pathlib.Path, package: pathlib.Path) -> None:
        self.folder, self.number, self.port = folder, number, free_port()
        self.log = folder / f"rank{number}.log"
        self.options = {"--model-path": str(model), "--served-model-name": "tiny", "--tp-size": "2", "--nnodes": "2", "--node-rank": str(number)}
        self.options |= {"--dist-init-addr": f"127.0.0.1:{rendezvous}", "--host": "127.0.0.1", "--port": str(self.port)}
        self.environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(package), "PYTHONDONTWRITEBYTECODE": "1", "REHEARSAL_PACE": "0.1"}
        self.environment |= {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
        self.shell = ""
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it as the first process of a PID namespace; shell: commands before it, in its own mount namespace."""
        engine = f"{sys.executable} -m sglang.launch_server"
        words = [word for pair in self.options.items() for word in pair if word]
        command = ["unshare", "--pid", "--fork", "--kill-child", "--mount", "--mount-proc", "sh", "-c", f'{self.shell}exec {engine} "$@"', "sh", *words]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)

    @property
    def text(self) -> str:
        """The log so far."""
        return self.log.read_text(encoding="utf-8")

    def wait(self, text: str, seconds: float = 20) -> None:
        """Wait until the log holds a text."""
        deadline = time.monotonic() + seconds
        while text not in self.text:
            assert time.monotonic() < deadline, f"rank {self.number} never said {text!r}:\n{self.text[-3000:]}"
            time.sleep(0.02)

    def code(self, seconds: float = 20) -> int:
        """The exit code, once it has ended."""
        assert self.process
        return self.process.wait(seconds)

    def runs(self) -> bool:
        """Whether it has not ended."""
        assert self.process
        return self.process.poll() is None

    def pid(self, title: str) -> int:
        """The process of this rank with such a title: "python" for the launcher, "sglang::schedul" for the scheduler."""
        assert self.process
        todo = [self.process.pid]
        while todo:
            pid = todo.pop()
            if pid != self.process.pid and pathlib.Path(f"/proc/{pid}/comm").read_text().startswith(title):
                return pid
            todo += map(int, pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
        raise AssertionError(f"rank {self.number} has no process {title!r}")

    def signal(self, title: str, number: int) -> None:
        """Send one of its processes a signal."""
        os.kill(self.pid(title), number)

    def ask(self, path: str, body: t.Any = None, key: str = "") -> tuple[int, t.Any]:
        """Status and answer of its HTTP server."""
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", body and json.dumps(body).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    @property
    def last(self) -> str:
        """The log's last line that is not empty."""
        return self.text.strip().splitlines()[-1]


@pytest.fixture(scope="module", name="package")
def _package(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("package") / "sglang"
    rehearsal.copy_package(folder)
    return folder


@pytest.fixture(scope="module", name="model")
def _model(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    rehearsal.write_model(folder, shards=6, size=1 << 20)
    return folder


@pytest.fixture(name="pair")
def _pair(tmp_path: pathlib.Path, package: pathlib.Path, model: pathlib.Path) -> t.Iterator[tuple[Rank, Rank]]:
    """Head and worker, not started; ended afterwards."""
    rendezvous = free_port()
    ranks = (Rank(tmp_path, 0, rendezvous, model, package), Rank(tmp_path, 1, rendezvous, model, package))
    yield ranks
    for rank in ranks:
        if rank.process:
            rank.process.kill()
            rank.process.wait()


@pytest.fixture(name="served")
def _served(pair: tuple[Rank, Rank]) -> tuple[Rank, Rank]:
    """Head and worker, ready."""
    head, worker = pair
    worker.start()
    head.start()
    head.wait("The server is fired up and ready to roll!")
    worker.wait("Dummy health check server started")
    return pair


def copy_model(model: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    """A copy that a test may spoil."""
    folder.mkdir()
    for file in model.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


# A start, against what was recorded.

MARKS = (
    "server_args=ServerArgs(",
    "Using default HuggingFace chat template",
    "Init torch distributed begin.",
    "sglang is using nccl==",
    "CustomAllreduce is disabled because",
    "Init torch distributed ends. elapsed=",
    "Load weight begin. avail mem=",
    "FlashInfer TRTLLM MoE deferred finalize",
    "multimem all-gather disabled",
    "Multi-thread loading shards:   0% Completed",
    "Load weight end. elapsed=",
    "KV Cache is allocated. dtype:",
    "Memory pool end. avail mem=",
    "Capture target prefill CUDA graph begin.",
    "Capturing num tokens (num_tokens=",
    "Capture target prefill CUDA graph end. elapsed=",
    "Capture target decode CUDA graph begin.",
    "Capturing batches (bs=",
    "Capture target decode CUDA graph end. elapsed=",
    "max_total_num_tokens=",
    "Tree cache initialized:",
    "Engine startup timings (s): load_weight=",
    "INFO:     Started server process [",
    "INFO:     Waiting for application startup.",
    "INFO:     Application startup complete.",
    "INFO:     Uvicorn running on http://",
    '"GET /model_info HTTP/1.1" 200 OK',
    "Prefill batch, #new-seq: 1",
    '"POST /generate HTTP/1.1" 200 OK',
    "The server is fired up and ready to roll!",
    "Dummy health check server started in background thread at",
)
# A prefix, and what differs from run to run within a line.
PREFIX = re.compile(r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?: TP\d)?\] ")
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def marks(log: str) -> list[tuple[str, str]]:
    """The marks of a log in their order, each once, with the prefix of its line: numbers and dates as 0."""
    found = []
    for mark in MARKS:
        place = log.find(mark)
        if place >= 0:
            line = re.split(r"[\r\n]", log[:place])[-1]
            prefix = PREFIX.search(line)
            found.append((place, mark, NUMBER.sub("0", prefix[0]).replace("TP", "TP" + log[place - 3 : place - 2]) if prefix else ""))
    return [(mark, prefix) for _place, mark, prefix in sorted(found)]


def shape(log: str, mark: str) -> str:
    """The line with a mark, its numbers as 0, lists and names as one word."""
    line = next(line for line in re.split(r"[\r\n]", log) if mark in line)
    return re.sub(r"\[[0, ]+\]", "[0]", NUMBER.sub("0", line[line.index(mark) :]))


@pytest.mark.parametrize("role", ["head", "worker"])
def test_a_start_has_the_recorded_lines_in_the_recorded_order(served: tuple[Rank, Rank], role: str) -> None:
    recorded = (LOGS / "ready-cold" / f"{role}.log").read_text(encoding="utf-8", errors="replace")
    log = served[role == "worker"].text
    assert marks(log) == marks(recorded)
    numbers = ("Init torch distributed ends", "Load weight begin", "Load weight end", "KV Cache is allocated", "Memory pool end", "CUDA graph end. elapsed")
    for mark in (*numbers, "Capture target decode CUDA graph begin", *(["max_total_num_tokens="] if role == "head" else [])):
        assert shape(log, mark) == shape(recorded, mark), mark
    assert ("Completed |" in log) == (role == "head")


def test_the_bars_grow_on_one_line_as_recorded(served: tuple[Rank, Rank]) -> None:
    recorded = (LOGS / "ready-cold" / "head.log").read_bytes().decode()
    log = served[0].log.read_bytes().decode()
    for mark, step in (
        ("Multi-thread loading shards", r"\rMulti-thread loading shards:  \d\d% Completed \| \d+/\d+ \[\d\d:\d\d<\d\d:\d\d, [ \d]\d\.\d\d(it/s|s/it)\]"),
        ("Capturing batches", r"\rCapturing batches \(bs=\d+ avail_mem=\d+\.\d\d GB\):  \d\d%\|[█▏▎▍▌▋▊▉ ]{10}\| \d/6 \["),
    ):
        for text in (log, recorded):
            (line,) = (line for line in text.split("\n") if mark in line)
            assert re.search(step, line), line
            assert line.count("\r") > 3


def test_it_answers_with_the_other_ranks_part(served: tuple[Rank, Rank]) -> None:
    head, worker = served
    body = {"model": "tiny", "prompt": "The capital of France is", "max_tokens": 5}
    status, answer = head.ask("/v1/completions", body)
    assert status == 200 and answer["usage"]["completion_tokens"] == 5 and len(answer["choices"][0]["text"].split()) == 5
    assert head.ask("/v1/completions", body)[1]["choices"] == answer["choices"]
    assert head.ask("/v1/models")[1]["data"][0]["id"] == "tiny"
    assert head.ask("/health")[0] == worker.ask("/health")[0] == 200
    assert head.ask("/v1/completions", {**body, "model": "other"})[0] == 404
    worker.signal("sglang::schedul", signal.SIGSTOP)
    with pytest.raises(TimeoutError):
        head.ask("/v1/completions", body)
    worker.signal("sglang::schedul", signal.SIGCONT)
    assert head.ask("/health")[0] == 200


def test_the_key_of_the_wrapper_is_asked_for_and_never_shown(pair: tuple[Rank, Rank]) -> None:
    from ansible_collections.sparkstack.inference.plugins.module_utils._engines import sglang

    for rank in pair:
        (rank.folder / "wrapper.py").write_text(sglang._WITH_KEY)
        rank.environment["SGLANG_API_KEY"] = "s3cret-value"
        rank.shell = f'exec {sys.executable} {rank.folder / "wrapper.py"} "$@"; '
        rank.start()
    head = pair[0]
    head.wait("The server is fired up and ready to roll!")
    assert head.ask("/v1/models")[0] == 401
    assert head.ask("/v1/models", key="s3cret-value")[0] == 200
    assert "api_key='***'" in head.text and "s3cret-value" not in head.text
    assert b"s3cret" not in pathlib.Path(f"/proc/{head.pid('sglang::schedul')}/cmdline").read_bytes()


def test_the_processes_have_their_titles(served: tuple[Rank, Rank]) -> None:
    head, worker = served
    for rank, title in ((head, b"sglang::scheduler_TP0"), (worker, b"sglang::scheduler_TP1"), (head, b"sglang::detokenizer")):
        pid = rank.pid(title.decode()[:15])
        assert pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0") == title


# Faults.

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


# NCCL's own lines.

NCCL = (
    "Bootstrap: Using lo:127.0.0.1<0>",
    "NCCL version 2.28.9+cuda13.0",
    "NET/Socket : Using [0]lo:127.0.0.1<0>",
    "Using network Socket",
    "Init START",
    "Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0",
    "Connected all rings",
    "Init COMPLETE",
)


def test_nccl_lines_are_late_in_a_pipe_and_at_once_in_a_file(pair: tuple[Rank, Rank]) -> None:
    head, worker = pair
    head.environment["NCCL_DEBUG"] = worker.environment["NCCL_DEBUG"] = "INFO"
    worker.environment["NCCL_DEBUG_FILE"] = "/dev/stderr"
    worker.start()
    head.start()
    head.wait("The server is fired up and ready to roll!")
    places = [worker.text.index(text.replace("0[0] -> 1[0] [send]", "0[0] -> 1[0] [receive]")) for text in NCCL]
    assert places == sorted(places) and places[-1] < worker.text.index("Load weight begin")
    assert head.text.index("Uvicorn running") < head.text.index("NCCL INFO Bootstrap: Using lo:127.0.0.1<0>")
    # A block ends in the middle of a line, and the next line of the log is glued to it.
    assert re.search(r"NCCL INFO[^\n]*\[\d{4}-\d\d-\d\d|^[^\[\n]+\[\d{4}-\d\d-\d\d", head.text, re.MULTILINE)


# On the lab.


def test_it_is_deployed_watched_and_proved_on_the_lab() -> None:
    play.lab("up")
    play.install_engine()
    recipe = {"tp_launch_recipe": str(play.ROOT / "tests/lab/recipes/tiny-sglang-rehearsal.yml")}
    first = play.playbook("playbooks/deploy.yml", extra=recipe)
    assert first.code == 0, first.output
    assert re.search(r"\[spark1\] 4/9 load_weights", first.output) and "[spark1] 9/9 ready" in first.output and "[spark2] 7/9 engine_ready" in first.output
    assert re.search(r'tiny at http://10\.77\.0\.11:30000/v1 answered "The capital of France is" with ".*": 16 tokens in \d', first.text)
    again = play.playbook("playbooks/deploy.yml", extra=recipe)
    assert again.code == 0 and again.changed == {"spark1": 0, "spark2": 0}, again.output
    log = play.node("spark2", "docker logs tiny-sglang-rehearsal-rank1 2>&1")
    assert "NCCL INFO NET/Socket : Using [0]enp1s0f0np0:192.168.200.12<0>" in log
    for name, rank in (("spark1", 0), ("spark2", 1)):
        play.node(name, f"docker rm -f tiny-sglang-rehearsal-rank{rank}")
