# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later


"""The SGLang rehearsal starts as the recorded logs show, answers, and is deployed by the collection on the lab."""

from __future__ import annotations

import json
import pathlib
import re
import signal
import sys

import play
import pytest
from rehearsing import LOGS, Rank

pytestmark = [pytest.mark.lab, pytest.mark.engine]

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


@pytest.mark.long
def test_it_is_deployed_watched_and_proved_on_the_lab() -> None:
    play.lab("up")
    play.install_engine()
    play.empty("spark1", "spark2")
    recipe = {"tp_launch_recipe": str(play.ROOT / "tests/lab/recipes/tiny-sglang-rehearsal.yml")}
    first = play.playbook("playbooks/deploy.yml", extra=recipe)
    assert first.code == 0, first.output
    assert re.search(r"\[spark1\] 4/9 load_weights", first.output) and "[spark1] 9/9 ready" in first.output and "[spark2] 7/9 engine_ready" in first.output
    assert re.search(r'tiny at http://10\.77\.0\.11:30000/v1 answered "The capital of France is" with ".*": 16 tokens in \d', first.text)
    again = play.playbook("playbooks/deploy.yml", extra=recipe)
    assert again.code == 0 and again.changed == {"spark1": 0, "spark2": 0}, again.output
    log = play.node("spark2", "docker logs tiny-sglang-rehearsal-rank1 2>&1")
    assert "NCCL INFO NET/Socket : Using [0]enp1s0f0np0:192.168.200.12<0>" in log


LEDGER = "/var/lib/sparkstack/deployments/tiny-sglang-rehearsal"


@pytest.mark.long
def test_a_new_launch_that_comes_to_nothing_brings_the_one_before_back() -> None:
    good = json.loads(play.node("spark1", f"cat {LEDGER}/good.json"))
    recipe = {"tp_launch_recipe": str(play.ROOT / "tests/lab/recipes/tiny-sglang-rehearsal.yml")}
    wrong = {"tp_launch_environment": {"NCCL_SOCKET_IFNAME": "enp99s0"}, "tp_launch_rollback": True}
    run = play.playbook("playbooks/deploy.yml", extra={**recipe, **wrong})
    assert run.code == 2, run.output
    assert "no socket interface found" in run.text
    assert f"The launch before it, {good['launch_id']}, was brought back and serves." in run.text
    found = json.loads(play.node("spark1", f"cat {LEDGER}/good.json"))
    assert found["recipe"] == good["recipe"] and found["restored"] and found["launch_id"] != good["launch_id"]
    names = play.node("spark1", f"cd {LEDGER}/launches; grep -l enp99s0 *.json").split()
    failed = json.loads(play.node("spark1", f"cat {LEDGER}/launches/{names[0]}"))
    assert (failed["answered"], failed["verdict"]["cause"]) == (False, "net_unreachable") and failed["who"]["user"]
    again = play.playbook("playbooks/deploy.yml", extra=recipe)
    assert again.code == 0 and set(again.changed.values()) == {0}, again.output
    play.empty("spark1", "spark2")
