# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A few of the faults that `make faults` makes for real: the right culprit and cause, soon, and no alarm where nothing is wrong."""

from __future__ import annotations

import pathlib
import struct
import typing as t

import play
import pytest
from faultlab import guarding, makers, rows, run, wide
from faultlab.engines import ENGINES, SGLANG, VLLM, Engine
from faultlab.launch import Missed

pytestmark = [pytest.mark.lab, pytest.mark.engine]

CHOSEN = (
    (SGLANG, "worker out of memory by its limit"),
    (SGLANG, "shard truncated on the worker"),
    (SGLANG, "worker killed while it loads"),
    (SGLANG, "worker's container removed while it loads"),
    (SGLANG, "fabric cut while the ranks load"),
    (VLLM, "image of the wrong architecture"),
    (VLLM, "unknown flag"),
)
# The aim is 5 s on a machine that does nothing else, which `make faults` tells as a figure.
CRASH_SECONDS = 15


@pytest.fixture(scope="module")
def nodes() -> t.Iterator[None]:
    run.prepare(list(ENGINES.values()))
    yield
    makers.clean()
    assert not play.containers("spark1") and not play.containers("spark2")


def row_of(engine: Engine, name: str) -> rows.Row:
    return next(row for row in rows.rows_for(engine) if row.name == name)


@pytest.mark.parametrize(("engine", "name"), CHOSEN, ids=[f"{engine.name}-{name.replace(' ', '-')}" for engine, name in CHOSEN])
def test_a_fault_is_told(nodes: None, engine: Engine, name: str) -> None:
    row = row_of(engine, name)
    outcome = run.run(row, engine)
    assert outcome.right, f"{outcome.cells()}\n{outcome.text()}"
    if row.crash:
        assert outcome.seconds is not None and outcome.seconds < CRASH_SECONDS


def test_problems_of_a_verdict_are_named() -> None:
    result = {"verdict": "failed", "culprit": "spark1", "cause": "peer_exited", "summary": "s", "remedy": "r", "evidence": [], "nodes": {}}
    want = rows.Wanted("stalled", "spark2", ("oom",), ("clock",), closeup=True)
    assert rows.problems(want, result) == [
        "verdict failed instead of stalled",
        "culprit spark1 instead of spark2",
        "cause peer_exited instead of oom",
        "it does not say 'clock'",
        "no closer look at spark1",
        "no closer look at spark2",
    ]
    right = {**result, "verdict": "stalled", "culprit": "spark2", "cause": "oom", "notes": ["The Clock of .."]}
    assert rows.problems(rows.Wanted("stalled", "spark2", ("oom",), ("clock",), never=("guard",)), right) == []
    assert rows.problems(rows.Wanted("stalled", "spark2", ("oom",), never=("the clock",)), right) == ["it says 'the clock'"]


def test_figures_count_faults_crashes_and_alarms() -> None:
    crash = next(row for row in rows.ROWS if row.crash)
    slow = next(row for row in rows.ROWS if not row.is_fault)
    outcomes = [
        run.Outcome("vllm", crash, seconds=2.0),
        run.Outcome("vllm", crash, seconds=4.5, wrong=["culprit"]),
        run.Outcome("vllm", slow, seconds=40.0, healthy=["ready"]),
        run.Outcome("sglang", slow, seconds=40.0, healthy=["stalled"], wrong=["verdict"]),
    ]
    assert run.figures(outcomes, [True, True]) == [
        "figure faults_right_share 0.75 ratio",
        "figure faults_made 4 faults",
        "figure crash_to_verdict_max_s 4.5 s",
        "figure false_alarms 1 verdicts",
        "figure healthy_starts 2 starts",
    ]


def test_the_slowest_stop_of_a_guard_is_a_figure() -> None:
    outcomes = [run.Outcome("sglang", row, told={"gone_s": seconds}) for row, seconds in zip(guarding.ROWS, (0.31, 1.2), strict=True)]
    assert "figure guard_stop_s 1.20 s" in run.figures(outcomes, [])
    assert not any("guard" in line for line in run.figures([run.Outcome("sglang", row) for row in guarding.ROWS], []))


@pytest.mark.parametrize(
    ("changes", "killed", "docker", "wrong"),
    [
        ({}, False, "active", []),
        ({"gone_s": 9.0}, False, "active", ["the rank's last process was gone after 9.0 s only"]),
        ({"curve": [[1.0, 5 << 30]], "available": 5 << 30}, False, "active", ["the guard stopped it with 5.0 GiB left"]),
        ({}, True, "active", ["the kernel has killed too"]),
        ({}, False, "failed", ["Docker on spark1 is failed", "Docker on spark2 is failed"]),
    ],
)
def test_what_is_wrong_about_a_stop(monkeypatch: pytest.MonkeyPatch, changes: dict[str, t.Any], killed: bool, docker: str, wrong: list[str]) -> None:
    def oom_killed(node: str) -> float:
        if not killed:
            raise Missed("the kernel has killed nothing")
        return 1.0

    monkeypatch.setattr(makers, "oom_killed", oom_killed)
    monkeypatch.setattr(play, "node", lambda _name, _command: f"{docker}\n")
    assert guarding.problems({"gone_s": 0.4, "floor": 384 << 20, "available": 300 << 20, "curve": [[1.0, 300 << 20]], **changes}) == wrong


def test_a_wide_model_has_more_experts_and_the_same_rest(tmp_path: pathlib.Path) -> None:
    source = tmp_path / "tiny"
    source.mkdir()
    (source / "config.json").write_text('{"num_experts": 2, "hidden_size": 1}')
    (source / "tokenizer.json").write_text("{}")
    tensors = {
        "model.layers.0.mlp.experts.0.up_proj.weight": ("BF16", [1, 1], b"ab"),
        "model.layers.0.mlp.experts.1.up_proj.weight": ("BF16", [1, 1], b"cd"),
        "model.layers.0.mlp.gate.weight": ("BF16", [2, 1], b"efgh"),
        "lm_head.weight": ("BF16", [1, 1], b"ij"),
    }
    wide.write(source / "model-00001-of-00001.safetensors", tensors)
    assert wide.read(source / "model-00001-of-00001.safetensors") == tensors
    wide.make(source, tmp_path / "wide", factor=2, shards=2)
    made: dict[str, wide.Tensor] = {}
    for path in sorted((tmp_path / "wide").glob("*.safetensors")):
        made.update(wide.read(path))
    assert {name.split(".")[5] for name in made if ".experts." in name} == {"0", "1", "2", "3"}
    assert made["model.layers.0.mlp.experts.2.up_proj.weight"] == ("BF16", [1, 1], b"ab")
    assert made["model.layers.0.mlp.gate.weight"] == ("BF16", [4, 1], b"efghefgh")
    assert made["lm_head.weight"] == tensors["lm_head.weight"]
    assert '"num_experts": 4' in (tmp_path / "wide" / "config.json").read_text()
    assert (tmp_path / "wide" / "tokenizer.json").exists()


def test_the_foreign_program_is_for_another_machine() -> None:
    elf = makers.foreign_elf()
    assert elf[:4] == b"\x7fELF" and len(elf) == 120
    assert struct.unpack("<H", elf[18:20])[0] in (makers.EM_AARCH64, makers.EM_X86_64)


@pytest.mark.parametrize(
    ("stamp", "seconds"), [("1970-01-01T00:01:00Z", 60.0), ("2026-11-30T03:47:10.899067738Z", 1796010430.899067738)], ids=["whole", "nanoseconds"]
)
def test_docker_times(stamp: str, seconds: float) -> None:
    assert makers.seconds_of(stamp) == pytest.approx(seconds, abs=1e-5)
