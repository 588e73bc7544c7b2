# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The ledger's files: what is kept, who may take the lock, and what a damaged file does."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import stat
import threading
import typing as t

import pytest

from ansible_collections.sparkstack.inference.plugins.module_utils._ledger import (
    ANYBODY,
    ChangedError,
    HeldError,
    Ledger,
    LedgerError,
    brief,
    deployments,
    lapsed,
)

NOW = 1796025731.0  # 2026-11-30T08:02:11Z
ALICE = {"run": "ctl1/a/123/1", "user": "alice", "host": "ctl1", "pid": 123, "job": None}
BOB = {"run": "ctl2/b/77/1", "user": "bob", "host": "ctl2", "pid": 77, "job": "17"}
NOTHING = {"lock": None, "last": None, "good": None, "previous": None, "launches": [], "nodes": [], "changed_at": None, "problems": []}


@pytest.fixture
def ledger(tmp_path: pathlib.Path) -> Ledger:
    return Ledger("qwen", str(tmp_path))


def record(number: int, **more: t.Any) -> dict[str, t.Any]:
    return {"launch_id": f"L{number}", "began": NOW + number, **more}


def test_nothing_is_read_where_nothing_was_written(ledger: Ledger, tmp_path: pathlib.Path) -> None:
    assert ledger.read() == NOTHING and deployments(str(tmp_path)) == []
    assert not os.path.exists(ledger.folder)


def test_a_launch_is_kept_and_only_root_reads_it(ledger: Ledger, tmp_path: pathlib.Path) -> None:
    whole = record(1, answered=True, odd={"kept": [1]})
    assert ledger.write(whole, good=True) == ({}, whole)
    found = ledger.read()
    assert (found["last"], found["good"], found["launches"]) == (whole, whole, ["L1"])
    assert deployments(str(tmp_path)) == ["qwen"]
    for path in pathlib.Path(ledger.folder).rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)
    assert stat.S_IMODE(os.stat(ledger.folder).st_mode) == 0o700


def test_a_full_disk_leaves_what_was_there_and_no_half_of_a_file(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger.write(record(1), good=True)

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(LedgerError, match="can't be used: No space left on device. Run this as root .* on a node whose disk has room"):
        ledger.write(record(2), good=True)
    monkeypatch.undo()
    assert ledger.read()["launches"] == ["L1"] and ledger.read()["good"] == record(1)
    assert not list(pathlib.Path(ledger.folder).rglob("*.new"))


def test_what_a_killed_writer_has_left_goes_with_the_next_record(ledger: Ledger) -> None:
    ledger.write(record(1))
    half = pathlib.Path(ledger.path("L1") + ".new")
    half.write_text('{"launch_id": "L')
    assert ledger.read()["problems"] == []
    ledger.write(record(2))
    assert not half.exists() and len(ledger.read()["launches"]) == 2


def test_a_later_word_on_a_launch_keeps_what_it_does_not_say(ledger: Ledger) -> None:
    ledger.write(record(1, who=ALICE, answered=False))
    before, after = ledger.write({"launch_id": "L1", "answered": True})
    assert before == record(1, who=ALICE, answered=False) and after == record(1, who=ALICE, answered=True)
    again = ledger.write({"launch_id": "L1", "answered": True})
    assert again == (after, after)


def test_the_newest_are_kept_and_the_good_one_for_ever(ledger: Ledger) -> None:
    ledger.write(record(1), good=True)
    for number in range(2, 7):
        ledger.write(record(number), keep=3)
    found = ledger.read()
    assert found["launches"] == ["L6", "L5", "L4"] and found["last"] == record(6) and found["good"] == record(1)
    assert sorted(os.listdir(os.path.join(ledger.folder, "launches"))) == ["L4.json", "L5.json", "L6.json"]


def test_a_dry_run_writes_nothing(ledger: Ledger) -> None:
    assert ledger.write(record(1), good=True, dry=True) == ({}, record(1))
    assert ledger.acquire(ALICE, NOW + 60, now=NOW, dry=True).changed
    assert not os.path.exists(ledger.folder)
    ledger.acquire(ALICE, NOW + 60, now=NOW)
    assert ledger.release(ALICE["run"], dry=True) and ledger.forget(dry=True)
    assert ledger.read()["lock"]["user"] == "alice"


@pytest.mark.parametrize("name", ["", ".", "..", "../etc", "a/b", "-x", "a" * 129, "a\n"])
def test_a_name_that_is_no_folder(name: str, ledger: Ledger) -> None:
    with pytest.raises(LedgerError, match="can't be a deployment's name"):
        Ledger(name)
    with pytest.raises(LedgerError, match="can't be a launch's id"):
        ledger.write({"launch_id": name})
    assert not os.path.exists(ledger.folder)


def test_a_record_that_holds_logs_is_refused(ledger: Ledger) -> None:
    with pytest.raises(LedgerError, match="The record of launch L1 is larger than 512 KiB: leave its logs out."):
        ledger.write(record(1, log="x" * 600_000))


@pytest.mark.parametrize("content", ["", "{", "[]", "\x00\x00", '"text"'])
@pytest.mark.parametrize("name", ["lock.json", "good.json", "changed.json", "launches/L1.json"])
def test_a_damaged_file_is_told_and_counts_as_none(ledger: Ledger, name: str, content: str) -> None:
    ledger.write(record(2))
    pathlib.Path(ledger.folder, name).write_text(content)
    found = ledger.read()
    assert found["problems"] == [f"{ledger.folder}/{name} is damaged: remove it."]
    assert {**found, "problems": []} == {**NOTHING, "last": record(2), "launches": ["L2"]}
    # And the next run gets on with it.
    assert ledger.acquire(ALICE, NOW + 60, seen=NOW, now=NOW).changed and ledger.release(ALICE["run"], NOW)
    ledger.write(record(1), good=True)
    assert ledger.read()["problems"] == []


def test_a_half_written_file_of_a_power_cut_is_not_read(ledger: Ledger) -> None:
    ledger.write(record(1))
    pathlib.Path(ledger.folder, "launches", "L2.json.new").write_text("{")
    assert ledger.read() == {**NOTHING, "last": record(1), "launches": ["L1"]}


def test_the_lock_is_taken_prolonged_and_given_back(ledger: Ledger) -> None:
    taken = ledger.acquire(ALICE, NOW + 60, seen=NOW, now=NOW)
    assert (taken.changed, taken.took_over) == (True, None)
    assert taken.lock == {**ALICE, "since": NOW, "until": NOW + 60} == ledger.read()["lock"]
    again = ledger.acquire(ALICE, NOW + 90, seen=NOW, now=NOW + 30)
    assert not again.changed and again.lock == {**ALICE, "since": NOW, "until": NOW + 90}
    assert ledger.acquire(ALICE, NOW + 70, now=NOW + 31).lock["until"] == NOW + 90
    assert ledger.release(BOB["run"], NOW + 40) is None and ledger.read()["lock"]
    assert ledger.release(ALICE["run"], NOW + 40) == again.lock
    assert ledger.read()["lock"] is None and ledger.read()["changed_at"] == NOW + 40
    assert ledger.release(ALICE["run"], NOW + 50) is None and ledger.read()["changed_at"] == NOW + 40


def test_another_run_is_refused_in_a_sentence(ledger: Ledger) -> None:
    ledger.acquire(BOB, NOW + 60, now=NOW)
    with pytest.raises(HeldError) as refused:
        ledger.acquire(ALICE, NOW + 60, now=NOW + 59)
    assert str(refused.value) == (
        "qwen is being worked on by bob at ctl2 (pid 77, job 17) since 08:02:11Z: wait for it, or set tp_launch_break_lock to true if that run is gone."
    )
    assert refused.value.holder == ledger.read()["lock"] == {**BOB, "since": NOW, "until": NOW + 60}


@pytest.mark.parametrize(
    "replace, later, why",
    [(BOB["run"], 1, "that run is gone"), (ANYBODY, 1, "it was broken"), ("", 60, "its time is over"), ("ctl2/b/78/1", 60, "its time is over")],
)
def test_a_lock_that_is_left_is_taken_over(ledger: Ledger, replace: str, later: float, why: str) -> None:
    ledger.acquire(BOB, NOW + 60, now=NOW)
    taken = ledger.acquire(ALICE, NOW + 900, replace=replace, now=NOW + later)
    assert (taken.changed, taken.took_over, taken.why) == (True, {**BOB, "since": NOW, "until": NOW + 60}, why)
    assert taken.lock == {**ALICE, "since": NOW + later, "until": NOW + 900} == ledger.read()["lock"]


def test_only_the_run_that_is_gone_is_replaced(ledger: Ledger) -> None:
    ledger.acquire(BOB, NOW + 60, now=NOW)
    with pytest.raises(HeldError):
        ledger.acquire(ALICE, NOW + 60, replace="ctl2/b/78/1", now=NOW + 1)


def test_who_looked_before_another_run_was_done_looks_again(ledger: Ledger) -> None:
    ledger.acquire(BOB, NOW + 60, now=NOW)
    ledger.release(BOB["run"], NOW + 40)
    with pytest.raises(ChangedError) as refused:
        ledger.acquire(ALICE, NOW + 99, seen=NOW + 39, now=NOW + 41)
    assert str(refused.value) == "Another run has worked on qwen until 08:02:51Z, after this one had looked: run this again."
    # Its own work is no surprise to a run, and nobody is surprised who does not say when he looked.
    assert ledger.acquire(BOB, NOW + 99, seen=NOW + 39, now=NOW + 41).changed
    ledger.release(BOB["run"], NOW + 42)
    assert ledger.acquire(ALICE, NOW + 99, now=NOW + 43).changed


def test_a_clock_that_was_set_back_refuses_nobody(ledger: Ledger) -> None:
    ledger.acquire(BOB, NOW + 7200, now=NOW + 3600)
    ledger.release(BOB["run"], NOW + 3640)
    # The node's clock was an hour ahead then, and was set right since.
    assert ledger.acquire(ALICE, NOW + 99, seen=NOW + 60, now=NOW + 61).changed


def test_of_many_runs_at_once_one_gets_the_lock(ledger: Ledger) -> None:
    start, won = threading.Barrier(8), []

    def run(number: int) -> None:
        start.wait()
        with contextlib.suppress(HeldError):
            won.append(ledger.acquire({**ALICE, "run": f"r{number}"}, NOW + 60, now=NOW).lock["run"])

    threads = [threading.Thread(target=run, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1 and ledger.read()["lock"]["run"] == won[0]


def test_a_deployment_is_forgotten(ledger: Ledger, tmp_path: pathlib.Path) -> None:
    assert ledger.forget() is False
    ledger.write(record(1), good=True)
    assert ledger.forget() is True and ledger.read() == NOTHING and deployments(str(tmp_path)) == []


def test_a_place_that_takes_no_folder_gets_one_sentence(tmp_path: pathlib.Path) -> None:
    (tmp_path / "var").write_text("no folder")
    with pytest.raises(LedgerError, match=r"qwen can't be used: Not a directory. Run this as root \(become\) on a node whose disk has room."):
        Ledger("qwen", str(tmp_path)).write(record(1))
    with pytest.raises(LedgerError, match="qwen can't be used: Not a directory. Name a folder of your own, on a disk that has room."):
        Ledger("qwen", folder=str(tmp_path / "var")).write(record(1))
    with pytest.raises(LedgerError, match="can't be read: Not a directory"):
        deployments(str(tmp_path))


def test_the_nodes_of_all_launches_are_told(ledger: Ledger) -> None:
    assert ledger.read()["nodes"] == []
    for began, names in enumerate((["spark1", "spark2"], ["spark3", "spark1"])):
        ledger.write(record(began, ranks=[{"node": name, "rank": rank} for rank, name in enumerate(names)], answered=True), good=began == 0)
    assert ledger.read()["nodes"] == brief(ledger.read())["nodes"] == ["spark1", "spark2", "spark3"]
    # Of a launch that only good.json tells of, too.
    (pathlib.Path(ledger.folder) / "launches").joinpath(f"{record(0)['launch_id']}.json").unlink()
    assert ledger.read()["nodes"] == ["spark1", "spark2", "spark3"]


def test_in_short(ledger: Ledger) -> None:
    ledger.write(record(1, recipe={"name": "qwen"}, image={"id": "sha256:a"}, model={"path": "/m"}, ranks=[1], answered=True), good=True)
    ledger.write(record(2, verdict={"verdict": "failed"}, timelines={"spark1": []}))
    found = brief(ledger.read())
    keys = {"launch_id", "action", "who", "began", "ended", "seconds_to_ready", "answer", "answered", "restored", "verdict"}
    keys |= {"recipe", "image", "model", "planned"}
    assert set(found["last"]) == set(found["good"]) == keys and found["previous"] is None
    assert found["last"]["verdict"] == {"verdict": "failed"} and found["last"]["answered"] is None
    assert found["good"]["recipe"] == {"name": "qwen"} and found["last"]["recipe"] is None
    assert json.loads(json.dumps(found)) == found


def test_what_answered_before_something_else_is_kept_beside_it(tmp_path: pathlib.Path) -> None:
    ledger = Ledger("tiny", str(tmp_path))
    launches = [("L1", "a", 512), ("L2", "a", 512), ("L3", "a", 1024), ("L4", "b", 1024), ("L5", "b", 1024)]
    kept = []
    for began, (identity, image, length) in enumerate(launches):
        recipe = {"name": "tiny", "arguments": {"max-model-len": length}, "proof": {"prompt": identity}}
        ledger.write({"launch_id": identity, "began": began, "recipe": recipe, "image": {"content": image}, "answered": True}, good=True)
        found = ledger.read()
        kept.append((found["good"]["launch_id"], (found["previous"] or {}).get("launch_id")))
    # The same thing started again takes no place of its own; another question that proves it makes it no other thing.
    assert kept == [("L1", None), ("L2", None), ("L3", "L2"), ("L4", "L3"), ("L5", "L3")]


def test_another_folder(tmp_path: pathlib.Path) -> None:
    ledger = Ledger("tiny", folder=str(tmp_path / "history"))
    ledger.write({"launch_id": "L1"})
    assert (tmp_path / "history" / "tiny" / "launches" / "L1.json").is_file()


def test_a_lock_is_given_back_on_a_full_disk_too(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger.acquire({"run": "r1"}, until=2000.0, now=1000.0)

    def full(self: Ledger, name: str, data: t.Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Ledger, "_save", full)
    assert ledger.release("r1", now=1100.0) is not None
    assert ledger.read()["lock"] is None


@pytest.mark.parametrize(("until", "over"), [(1001.0, False), (1000.0, True), ("soon", True), (None, True)])
def test_a_lock_whose_time_is_over(until: t.Any, over: bool) -> None:
    assert lapsed({"until": until}, 1000.0) == over
