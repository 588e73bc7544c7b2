# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every log of real engines, as others bring it or hold a part of it: what the verdict must not depend on, and what it must not claim."""

from __future__ import annotations

import json
import pathlib
import random
import re
import typing as t

import pytest
import real_logs

from ansible_collections.sparkstack.inference.plugins.module_utils._diagnosis import judge
from ansible_collections.sparkstack.inference.plugins.module_utils._timeline import Timeline

_TOLD = re.compile(rb"\d\d:\d\d:\d\d")
# What needs a line of the rank's own log, or what the container's state tells for certain.
FIRST_HAND = frozenset(
    "bad_flag bad_image driver gloo_wrong_iface memory_unbalanced missing_weights nccl_error net_unreachable oom permission port_in_use "
    "unsupported_arch unsupported_gpu_arch worker_died wrong_image_arch".split()
)
Change = t.Callable[[bytes], bytes]
Log = dict[int, bytes]


def each(form: t.Callable[[bytes, bytes], bytes]) -> Change:
    """Every line in another form, given its own clock or the last one that was told."""

    def change(data: bytes) -> bytes:
        clock, lines = (_TOLD.findall(data) or [b"22:00:00"])[0], data.split(b"\n")
        changed = []
        for line in lines[:-1] if not lines[-1] else lines:
            clock = (_TOLD.findall(line[:120]) or [clock])[0]
            changed.append(form(clock, line) + b"\n")
        return b"".join(changed)

    return change


def in_json(clock: bytes, line: bytes) -> bytes:
    return json.dumps({"log": line.decode("utf-8", "replace") + "\n", "stream": "stderr", "time": f"2026-11-29T{clock.decode()}.123456789Z"}).encode()


KINDS: dict[str, Change] = {
    "docker logs -t": each(lambda clock, line: b"2026-11-29T%s.123456789Z %s" % (clock, line)),
    "Docker's own file": each(in_json),
    "docker compose": each(lambda clock, line: b"head-1  | " + line),
    "CRI file": each(lambda clock, line: b"2026-11-29T%s.123456789Z stderr F %s" % (clock, line)),
    "kubectl logs --prefix": each(lambda clock, line: b"[pod/head-0/engine] " + line),
    "kubectl logs --prefix --timestamps": each(lambda clock, line: b"[pod/head-0/engine] 2026-11-29T%s.123456789Z %s" % (clock, line)),
    "journal": each(lambda clock, line: b"Nov 29 %s spark1 docker[812]: %s" % (clock, line)),
    "terminal": lambda data: data.replace(b"\n", b"\r\n"),
    "levels in colour": lambda data: re.sub(rb"\b(DEBUG|INFO|WARNING|ERROR)\b", b"\x1b[32m\\g<1>\x1b[0m", data),
}


def logs(folder: pathlib.Path) -> Log:
    nodes = real_logs.truth_of(folder)["nodes"].values()
    return {known["rank"]: (folder / known["log"]).read_bytes() for known in nodes if "log" in known}


def reading(data: bytes, engine: str = "auto") -> dict[str, t.Any]:
    timeline = Timeline(engine)
    timeline.feed(data)
    return timeline.reading()


def verdict(folder: pathlib.Path, held: Log, engine: str = "auto", **known: t.Any) -> dict[str, t.Any]:
    """The judgement of a case with other logs, or with less known of its containers."""
    truth = real_logs.truth_of(folder)
    records = []
    for node, facts in truth["nodes"].items():
        of_log = reading(held[facts["rank"]], engine) if facts["rank"] in held else None
        records.append({"started": True, "reading": of_log, "node": node, **{k: v for k, v in facts.items() if k not in ("log", "phase")}, **known})
    return judge(records)


def gist(found: dict[str, t.Any]) -> tuple[t.Any, ...]:
    return found["verdict"], found["cause"], found["culprit"], [known["phase"] for known in found["nodes"].values()]


@pytest.mark.parametrize("kind", KINDS)
def test_who_collected_it_changes_nothing(kind: str) -> None:
    for folder in real_logs.CASES:
        held = logs(folder)
        changed = {rank: KINDS[kind](data) for rank, data in held.items()}
        assert gist(verdict(folder, changed)) == gist(verdict(folder, held)), real_logs.name(folder)


def test_the_engine_is_found_out() -> None:
    for folder in real_logs.CASES:
        assert gist(verdict(folder, logs(folder), folder.parent.name.split("-")[0])) == gist(verdict(folder, logs(folder))), real_logs.name(folder)


@pytest.mark.parametrize("folder", real_logs.CASES, ids=real_logs.name)
def test_wherever_the_pieces_end_and_the_state_is_put_away(folder: pathlib.Path) -> None:
    chance = random.Random(real_logs.name(folder))
    for data in logs(folder).values():
        timeline, start = Timeline(), 0
        while start < len(data):
            size = chance.choice((1, 7, 64, 512, 4096))
            timeline = Timeline.from_state(json.loads(json.dumps(timeline.state())))
            timeline.feed(data[start : start + size])
            start += size
        assert timeline.reading() == reading(data)


EARLIER = {
    ("sglang-gpu", 0): ("ready-cold", "head-only-timeout-60", "worker-killed-after-ready"),
    ("sglang-gpu", 1): ("ready-cold", "no-kv-room-both", "worker-wrong-address"),
    ("vllm-cpu", 0): ("ready", "head-only", "worker-killed-after-ready"),
    ("vllm-cpu", 1): ("ready", "kv-cache-too-big"),
}


@pytest.mark.parametrize("folder", [folder for folder in real_logs.CASES if not folder.name.startswith("ray")], ids=real_logs.name)
def test_an_earlier_run_in_the_same_log_is_over(folder: pathlib.Path) -> None:
    """Wherever the run has come so far that a line opens it; one that fails over its options prints none."""
    held = logs(folder)
    wanted = gist(verdict(folder, held))
    for rank in held:
        if not reading(held[rank])["claims"]:
            continue
        for case in EARLIER[folder.parent.name, rank]:
            before = (folder.parent / case / ("worker.log" if rank else "head.log")).read_bytes()
            found = verdict(folder, {**held, rank: before + held[rank]})
            assert gist(found) == wanted, case
            assert any("earlier start" in note for note in found["notes"])


PARTS: dict[str, t.Callable[[Log], Log]] = {
    "all of it": lambda held: held,
    "the head's only": lambda held: {rank: data for rank, data in held.items() if rank == 0},
    "the worker's only": lambda held: {rank: data for rank, data in held.items() if rank == 1},
    "without its first 2000 lines": lambda held: {rank: b"\n".join(data.split(b"\n")[2000:]) for rank, data in held.items()},
    "without its first half": lambda held: {rank: b"\n".join(data.split(b"\n")[data.count(b"\n") // 2 :]) for rank, data in held.items()},
    "without its last 20 lines": lambda held: {rank: b"\n".join(data.split(b"\n")[:-20]) + b"\n" for rank, data in held.items()},
}


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("known", [{}, {"exit_code": None, "quiet_seconds": None}], ids=["containers known", "containers unknown"])
def test_of_a_part_it_claims_no_more_than_that_tells(part: str, known: dict[str, t.Any]) -> None:
    """The answer may get weaker; it blames nobody at first hand who is not to blame, and a group that is ready has not failed."""
    for folder in real_logs.CASES:
        truth = real_logs.truth_of(folder)
        found = verdict(folder, PARTS[part](logs(folder)), **known)
        name = real_logs.name(folder)
        if truth["verdict"] == "ready":
            assert found["verdict"] in ("ready", "starting"), name
        else:
            assert found["verdict"] != "ready" or found["culprit"] is None, name
        if found["cause"] in FIRST_HAND:
            assert found["culprit"] in [*real_logs.answers(truth, "culprit"), None], name
            assert found["cause"] in real_logs.answers(truth, "cause"), name
