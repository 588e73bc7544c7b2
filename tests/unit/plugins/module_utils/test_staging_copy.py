# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A model's way from node to nodes over real sockets: whole, changed, damaged, interrupted in each way, and by who should not have it."""

from __future__ import annotations

import collections
import os
import pathlib
import socket
import stat
import typing as t

import pytest
from copying import ADDRESS, CHUNK, MODEL, TOTAL, Cable, Node, Process, answers, content, lay, listing, provider, until

from ansible_collections.sparkstack.inference.plugins.module_utils import _staging_agent as agent
from ansible_collections.sparkstack.inference.plugins.module_utils import _staging_disk as disk
from ansible_collections.sparkstack.inference.plugins.module_utils import _staging_state as state
from ansible_collections.sparkstack.inference.plugins.module_utils._staging_sum import available
from ansible_collections.sparkstack.inference.plugins.plugin_utils import _certificate

BIG = "model-1.bin"


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    lay(tmp_path / "source")
    return tmp_path


@pytest.fixture
def ending() -> t.Iterator[list[t.Any]]:
    """What is closed after the test."""
    opened: list[t.Any] = []
    yield opened
    for one in reversed(opened):
        one.close()


class Pair:
    """A source and one receiver."""

    def __init__(
        self, folder: pathlib.Path, ending: list[t.Any], mine: t.Collection[str] | None = None, compare: t.Collection[str] = (), **more: t.Any
    ) -> None:
        source_more = {key: more.pop(key) for key in ("certificate", "key") if key in more}
        files = listing(folder / "source", mine, compare)
        self.source = Node("spark1", folder / "source", True, files, ["spark2"], **{**more, "dry": False, **source_more})
        ending.append(self.source)
        self.target = Node("spark2", folder / "target", False, files, **more)
        ending.append(self.target)

    def copy(self, port: int = 0, pin: str = "") -> dict[str, t.Any]:
        self.target.go(provider(self.source, "spark2", port, pin))
        return self.target.end()


def test_a_whole_model_comes_as_it_is(folder: pathlib.Path, ending: list[t.Any]) -> None:
    done = Pair(folder, ending, sum=available()[0]).copy()
    assert (done["state"], done["received"], done["there"], sorted(done["moved"])) == ("done", TOTAL, TOTAL, sorted(MODEL))
    assert content(folder / "target") == content(folder / "source")
    for name in MODEL:
        status = (folder / "target" / name).stat()
        assert status.st_mtime_ns == (folder / "source" / name).stat().st_mtime_ns
        assert (stat.S_IMODE(status.st_mode), status.st_uid) == (0o644, folder.stat().st_uid)
    assert os.listdir(folder / "target" / state.FOLDER) == []
    assert done["cpu_seconds"] > 0


def test_only_what_is_missing_comes(folder: pathlib.Path, ending: list[t.Any]) -> None:
    lay(folder / "target")
    (folder / "target" / "model-2.bin").unlink()
    done = Pair(folder, ending, mine=["model-2.bin"]).copy()
    assert (done["received"], done["moved"]) == (3 * CHUNK, ["model-2.bin"])
    assert content(folder / "target") == content(folder / "source")


@pytest.mark.parametrize(
    ("spoil", "comes"),
    [
        pytest.param(lambda data: data[: 5 * CHUNK + 9] + bytes([data[5 * CHUNK + 9] ^ 1]) + data[5 * CHUNK + 10 :], CHUNK, id="a flipped byte"),
        pytest.param(lambda data: data[: 12 * CHUNK + 5], 8 * CHUNK + 77, id="truncated"),
        pytest.param(lambda data: b"", 20 * CHUNK + 77, id="empty"),
        pytest.param(lambda data: data + b"more", 0, id="too long"),
        pytest.param(lambda data: data, 0, id="equal"),
    ],
)
def test_of_a_file_that_differs_only_those_chunks_come(folder: pathlib.Path, ending: list[t.Any], spoil: t.Callable[[bytes], bytes], comes: int) -> None:
    lay(folder / "target")
    path = folder / "target" / BIG
    before = spoil(path.read_bytes())
    path.write_bytes(before)
    with path.open("rb") as reader:
        done = Pair(folder, ending, mine=[BIG], compare=[BIG]).copy()
        # Who has the old file open sees no other bytes in it.
        assert reader.read() == before
    assert (done["state"], done["received"]) == ("done", comes)
    assert (done["moved"], done["touched"]) == (([], [BIG]) if before == (folder / "source" / BIG).read_bytes() else ([BIG], []))
    assert content(folder / "target") == content(folder / "source")
    assert path.stat().st_mtime_ns == (folder / "source" / BIG).stat().st_mtime_ns


def test_a_dry_run_only_compares(folder: pathlib.Path, ending: list[t.Any]) -> None:
    lay(folder / "target")
    path = folder / "target" / BIG
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    (folder / "target" / "model-2.bin").unlink()
    before = content(folder / "target"), path.stat().st_mtime_ns
    done = Pair(folder, ending, compare=[BIG, "sub/config.txt", "empty"], dry=True).copy()
    assert (done["state"], done["received"], sorted(done["moved"]), done["different"]) == ("done", 0, [BIG, "model-2.bin"], 77 + 3 * CHUNK)
    assert (content(folder / "target"), path.stat().st_mtime_ns) == before
    assert not (folder / "target" / state.FOLDER).exists()


def test_what_was_written_is_read_back_when_asked(folder: pathlib.Path, ending: list[t.Any], monkeypatch: pytest.MonkeyPatch) -> None:
    write, spoilt = disk.Plain.write, []

    def lose(self: disk.Plain, buffer: disk.Buffer, offset: int, length: int) -> None:
        if offset == 4 * CHUNK and not spoilt:
            spoilt.append(bytes(buffer.view[:1]))
            buffer.view[0] ^= 255
        write(self, buffer, offset, length)

    monkeypatch.setattr(disk.Plain, "write", lose)
    done = Pair(folder, ending, reread=True).copy()
    assert spoilt and (done["state"], done["received"]) == ("done", TOTAL + CHUNK)
    assert content(folder / "target") == content(folder / "source")


def test_a_disk_that_keeps_nothing_right_is_told(folder: pathlib.Path, ending: list[t.Any], monkeypatch: pytest.MonkeyPatch) -> None:
    write = disk.Plain.write

    def lose(self: disk.Plain, buffer: disk.Buffer, offset: int, length: int) -> None:
        if offset == 4 * CHUNK:
            buffer.view[0] ^= 255
        write(self, buffer, offset, length)

    monkeypatch.setattr(disk.Plain, "write", lose)
    pair = Pair(folder, ending, mine=[BIG], reread=True)
    monkeypatch.setattr("ansible_collections.sparkstack.inference.plugins.module_utils._staging_fetch._TRIES", 1)
    done = pair.copy()
    assert done["problem"].startswith(f"Chunk 4 of {BIG} does not stay on this node's disk as it was written")
    assert not (folder / "target" / BIG).exists()


def test_damage_on_the_way_is_seen_and_mended(folder: pathlib.Path, ending: list[t.Any]) -> None:
    pair = Pair(folder, ending)
    cable = Cable(pair.source, "spark2")
    ending.append(cable)
    cable.spoil = 6 * CHUNK
    done = pair.copy(cable.port)
    assert (done["state"], done["received"]) == ("done", TOTAL + CHUNK) and not cable.spoil
    assert content(folder / "target") == content(folder / "source")


def test_a_way_that_damages_all_is_told(folder: pathlib.Path, ending: list[t.Any]) -> None:
    pair = Pair(folder, ending)
    cable = Cable(pair.source, "spark2")
    ending.append(cable)
    cable.spoil, cable.always = 1, True
    done = pair.copy(cable.port)
    assert done["state"] == "failed"
    assert "came damaged from spark1: check the link's errors" in done["problem"] and done["problem"].endswith("; 3 tries.")
    assert set(content(folder / "target")) <= {"sub/config.txt", "empty"}


def test_a_chain_gives_on_what_it_gets(folder: pathlib.Path, ending: list[t.Any]) -> None:
    files = listing(folder / "source")
    source = Node("spark1", folder / "source", True, files, ["spark2", "spark3"])
    middle = Node("spark2", folder / "middle", False, files, ["spark3"])
    last = Node("spark3", folder / "last", False, files)
    ending += [source, middle, last]
    last.go(provider(middle, "spark3"), provider(source, "spark3"))
    middle.go(provider(source, "spark2"))
    for node in (middle, last):
        assert node.end()["state"] == "done"
        assert content(node.path) == content(folder / "source")
    # The source has sent it once, whoever many there are.
    status = source.ask({"do": "watch", "seconds": 0})
    assert status is not None and status["sent"] == TOTAL
    status = middle.ask({"do": "watch", "seconds": 0})
    assert status is not None and status["sent"] == TOTAL


def test_what_the_node_before_does_not_get_comes_from_the_source(folder: pathlib.Path, ending: list[t.Any]) -> None:
    source = Node("spark1", folder / "source", True, listing(folder / "source"), ["spark2", "spark3"])
    middle = Node("spark2", folder / "middle", False, listing(folder / "source", mine=["model-2.bin"]), ["spark3"])
    last = Node("spark3", folder / "last", False, listing(folder / "source"))
    ending += [source, middle, last]
    middle.go(provider(source, "spark2"))
    last.go(provider(middle, "spark3"), provider(source, "spark3"))
    assert last.end()["state"] == "done"
    assert content(last.path) == content(folder / "source")
    assert middle.end()["moved"] == ["model-2.bin"]


def test_a_node_of_the_chain_that_dies_is_passed_over(folder: pathlib.Path, ending: list[t.Any]) -> None:
    files = listing(folder / "source")
    source = Node("spark1", folder / "source", True, files, ["spark2", "spark3"])
    middle = Process("spark2", folder / "middle", False, files, ["spark3"], halt=6)
    last = Node("spark3", folder / "last", False, files)
    ending += [source, last]
    middle.go(provider(source, "spark2"))
    last.go(provider(middle, "spark3"), provider(source, "spark3"))
    until(lambda: (last.ask({"do": "watch", "seconds": 0}) or {})["received"] > 4 * CHUNK)
    middle.kill()
    assert last.end()["state"] == "done"
    assert content(last.path) == content(folder / "source")
    assert set(content(folder / "middle")) <= {"model-2.bin", "sub/config.txt", "empty"}


def half(node: t.Any) -> None:
    until(lambda: (node.ask({"do": "watch", "seconds": 0}) or {})["there"] > TOTAL // 2)


def kept(folder: pathlib.Path) -> int:
    """The bytes that the next run must not send again."""
    lines = [path.read_text().splitlines()[1:] for path in (folder / "target" / state.FOLDER).glob("*.journal")]
    return sum(len(found) for found in lines) * CHUNK


def nothing_half_written(folder: pathlib.Path) -> None:
    whole = content(folder / "source")
    for name, data in content(folder / "target").items():
        assert data == whole[name]


def the_rest_only(folder: pathlib.Path, ending: list[t.Any], at_least: int) -> None:
    """The next run sends what was not there, and no more."""
    done = list(content(folder / "target"))
    there = kept(folder)
    missing = [name for name in MODEL if name not in done]
    rest = Pair(folder, ending, mine=missing).copy()
    assert rest["state"] == "done"
    # The last chunk of the file is smaller than the others.
    assert at_least <= there and sum(MODEL[name] for name in missing) - there <= rest["received"] <= sum(MODEL[name] for name in missing) - there + CHUNK
    assert content(folder / "target") == content(folder / "source")


def test_the_receiver_is_killed_in_the_middle(folder: pathlib.Path, ending: list[t.Any]) -> None:
    files = listing(folder / "source")
    source = Node("spark1", folder / "source", True, files, ["spark2"])
    target = Process("spark2", folder / "target", False, files)
    target.go(provider(source, "spark2"))
    half(target)
    target.kill()
    nothing_half_written(folder)
    until(lambda: not (source.ask({"do": "watch", "seconds": 0}) or {})["busy"])
    source.close()
    assert not answers(source.address, source.port)
    the_rest_only(folder, ending, 5 * CHUNK)


def test_the_source_is_killed_in_the_middle(folder: pathlib.Path, ending: list[t.Any]) -> None:
    files = listing(folder / "source")
    source = Process("spark1", folder / "source", True, files, ["spark2"])
    target = Node("spark2", folder / "target", False, files)
    target.go(provider(source, "spark2"))
    half(target)
    source.kill()
    failed = target.end()
    target.close()
    assert failed["state"] == "failed" and failed["problem"].startswith("The copy from spark1 stopped (")
    assert failed["problem"].endswith("): run this again, what has arrived is not sent twice.")
    nothing_half_written(folder)
    the_rest_only(folder, ending, 5 * CHUNK)


def test_the_controller_vanishes_in_the_middle(folder: pathlib.Path, ending: list[t.Any], monkeypatch: pytest.MonkeyPatch) -> None:
    files = listing(folder / "source")
    read = disk.Plain.read
    given: list[int] = []
    alive = True

    def halting(self: disk.Plain, buffer: disk.Buffer, offset: int, length: int) -> None:
        given.append(offset)
        until(lambda: len(given) < 13 or not alive)
        read(self, buffer, offset, length)

    monkeypatch.setattr(disk.Plain, "read", halting)
    source = Node("spark1", folder / "source", True, files, ["spark2"])
    target = Node("spark2", folder / "target", False, files)
    target.go(provider(source, "spark2"))
    half(target)
    for node in (source, target):
        # Half a minute later, in which nobody has looked.
        node.agent._until = 0.0
        node.thread.join(60)
        assert not node.thread.is_alive() and node.ask({"do": "watch", "seconds": 0}) is None
        assert not answers(node.address, node.port)
    alive = False
    monkeypatch.setattr(disk.Plain, "read", read)
    nothing_half_written(folder)
    the_rest_only(folder, ending, 5 * CHUNK)


def test_a_link_that_is_cut_and_healed_is_no_failure(folder: pathlib.Path, ending: list[t.Any]) -> None:
    files = listing(folder / "source")
    source = Process("spark1", folder / "source", True, files, ["spark2"])
    target = Node("spark2", folder / "target", False, files, connect=20)
    cable = Cable(source, "spark2")
    ending += [source, target, cable]
    target.go(provider(source, "spark2", cable.port))
    half(target)
    cable.cut()
    source.go_on()
    until(lambda: not (source.ask({"do": "watch", "seconds": 0}) or {})["busy"])
    cable.intact = True
    done = target.end()
    assert done["state"] == "done" and content(folder / "target") == content(folder / "source")


def test_a_link_that_stays_cut_is_told_and_the_next_run_goes_on(folder: pathlib.Path, ending: list[t.Any]) -> None:
    files = listing(folder / "source")
    source = Process("spark1", folder / "source", True, files, ["spark2"])
    target = Node("spark2", folder / "target", False, files)
    cable = Cable(source, "spark2")
    target.go(provider(source, "spark2", cable.port))
    half(target)
    cable.close()
    failed = target.end()
    target.close()
    source.close()
    assert failed["problem"].startswith("The copy from spark1 stopped (")
    nothing_half_written(folder)
    the_rest_only(folder, ending, 5 * CHUNK)


def test_of_two_rails_a_dead_one_is_left(folder: pathlib.Path, ending: list[t.Any]) -> None:
    pair = Pair(folder, ending, connect=8)
    cable = Cable(pair.source, "spark2")
    cable.close()
    ways = [pair.source.lane("spark2", cable.port), pair.source.lane("spark2")]
    pair.target.go({"host": "spark1", "lanes": ways, "pin": ""})
    assert pair.target.end()["state"] == "done"
    assert content(folder / "target") == content(folder / "source")


def test_after_a_boot_what_is_there_is_read_before_it_counts(folder: pathlib.Path, ending: list[t.Any], monkeypatch: pytest.MonkeyPatch) -> None:
    files = listing(folder / "source")
    source = Node("spark1", folder / "source", True, files, ["spark2"])
    target = Process("spark2", folder / "target", False, files)
    target.go(provider(source, "spark2"))
    half(target)
    target.kill()
    source.close()
    (unfinished,) = [path for path in (folder / "target" / state.FOLDER).glob("*.part") if path.stat().st_size >= 20 * CHUNK]
    lines = unfinished.with_suffix(".journal").read_text().splitlines()
    lost = int(lines[1].split()[0])
    # A power cut: the journal tells of a chunk that never came to the disk.
    with unfinished.open("r+b") as stream:
        stream.seek(lost * CHUNK)
        stream.write(bytes(CHUNK))
    monkeypatch.setattr(state, "boot", lambda: "another one")
    rest = Pair(folder, ending, mine=[name for name in MODEL if name not in content(folder / "target")]).copy()
    assert rest["state"] == "done" and rest["received"] < TOTAL - (len(lines) - 2) * CHUNK + CHUNK
    assert content(folder / "target") == content(folder / "source")


def test_what_was_begun_of_another_file_is_not_taken(folder: pathlib.Path, ending: list[t.Any]) -> None:
    files = listing(folder / "source")
    source = Node("spark1", folder / "source", True, files, ["spark2"])
    target = Process("spark2", folder / "target", False, files)
    target.go(provider(source, "spark2"))
    half(target)
    target.kill()
    source.close()
    lay(folder / "source", seed=8)
    os.utime(folder / "source" / BIG)
    there = content(folder / "target")
    done = Pair(folder, ending, compare=list(there)).copy()
    assert done["state"] == "done" and content(folder / "target") == content(folder / "source")


def test_what_is_left_of_files_that_nobody_wants_is_removed(folder: pathlib.Path, ending: list[t.Any]) -> None:
    lay(folder / "target", {f"{state.FOLDER}/0123.part": 9, f"{state.FOLDER}/0123.journal": 9, f"{state.FOLDER}/rsync/model-1.bin": 9})
    assert Pair(folder, ending).copy()["state"] == "done"
    assert os.listdir(folder / "target" / state.FOLDER) == []


def test_a_source_that_changes_is_told_and_nothing_is_named(folder: pathlib.Path, ending: list[t.Any]) -> None:
    pair = Pair(folder, ending)
    with (folder / "source" / BIG).open("r+b") as stream:
        stream.write(b"other")
    done = pair.copy()
    assert done["problem"] == f"{BIG} changed at the source while it was copied: run this again when nothing writes there any more."
    assert BIG not in content(folder / "target")


def test_a_full_disk_is_one_sentence(folder: pathlib.Path, ending: list[t.Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_arguments: t.Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(disk.Plain, "write", full)
    done = Pair(folder, ending).copy()
    told = f"There is no space left for the model in {folder / 'target'}: make room and run this again, what has arrived is not sent twice."
    assert (done["state"], done["problem"]) == ("failed", told)
    assert set(content(folder / "target")) <= {"empty"}


def test_who_has_another_token_gets_nothing(folder: pathlib.Path, ending: list[t.Any]) -> None:
    files = listing(folder / "source")
    source = Node("spark1", folder / "source", True, files, ["spark2"])
    target = Node("spark2", folder / "target", False, files, token="6f" * 32)
    ending += [source, target]
    target.go(provider(source, "spark2"))
    done = target.end()
    assert done["state"] == "failed" and "spark1 (127.0.0.2:" in done["problem"] and "hung up at the greeting" in done["problem"]
    assert content(folder / "target") == {} and (source.ask({"do": "watch", "seconds": 0}) or {})["sent"] == 0


def test_who_calls_from_another_address_gets_nothing(folder: pathlib.Path, ending: list[t.Any]) -> None:
    pair = Pair(folder, ending)
    pair.target.go({"host": "spark1", "lanes": [[ADDRESS["spark3"], ADDRESS["spark1"], pair.source.port]], "pin": ""})
    assert pair.target.end()["state"] == "failed"
    assert content(folder / "target") == {}


def test_an_address_that_is_not_this_nodes_is_told(folder: pathlib.Path, ending: list[t.Any]) -> None:
    pair = Pair(folder, ending)
    pair.target.go({"host": "spark1", "lanes": [["192.0.2.7", ADDRESS["spark1"], pair.source.port]], "pin": ""})
    assert "192.0.2.7 is not an address of this node: give the node's own address on the fabric" in pair.target.end()["problem"]


def test_with_tls(folder: pathlib.Path, ending: list[t.Any]) -> None:
    made = _certificate.make("spark1")
    done = Pair(folder, ending, certificate=made.certificate, key=made.key).copy(pin=made.pin)
    assert done["state"] == "done" and content(folder / "target") == content(folder / "source")


@pytest.mark.parametrize("plain", [False, True])
def test_another_certificate_is_refused(folder: pathlib.Path, ending: list[t.Any], plain: bool) -> None:
    made = _certificate.make("spark1")
    pair = Pair(folder, ending, **({} if plain else {"certificate": made.certificate, "key": made.key}))
    done = pair.copy(pin=_certificate.make("spark1").pin)
    assert done["state"] == "failed"
    assert ("did not greet" if plain else "has another certificate than the one that was made for this task") in done["problem"]
    assert content(folder / "target") == {}


def test_a_taken_port_is_told(folder: pathlib.Path, ending: list[t.Any]) -> None:
    pair = Pair(folder, ending)
    with pytest.raises(Exception, match=rf"^Port {pair.source.port} of 127.0.0.2 is taken: run this again, or set another one"):
        pair.source.agent.counter.open("127.0.0.2", pair.source.port)


def test_there_is_one_copy_of_a_path_at_a_time(folder: pathlib.Path, ending: list[t.Any]) -> None:
    pair = Pair(folder, ending)
    with pytest.raises(OSError, match="in use"):
        agent.Agent(pair.target.agent.given)


def test_an_end_that_is_not_forced_waits_for_who_still_fetches(folder: pathlib.Path, ending: list[t.Any]) -> None:
    pair = Pair(folder, ending)
    with socket.create_connection((ADDRESS["spark1"], pair.source.port), 5, (ADDRESS["spark2"], 0)) as talk:
        from ansible_collections.sparkstack.inference.plugins.module_utils import _transfer

        _transfer.introduce(talk, ("5e" * 32).encode())
        until(lambda: (pair.source.ask({"do": "watch", "seconds": 0}) or {})["busy"] == 1)
        assert (pair.source.ask({"do": "end"}) or {})["ended"] is False
    pair.source.agent._started -= agent.YOUNG
    until(lambda: (pair.source.ask({"do": "end"}) or {"ended": True})["ended"])
    until(lambda: not answers(pair.source.address, pair.source.port))


def test_the_source_reads_nothing_twice_for_its_digests_but_where_that_is_asked_for(
    folder: pathlib.Path, ending: list[t.Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    lay(folder / "target")
    sides: collections.Counter[str] = collections.Counter()
    read = disk.Plain.read

    def count(self: disk.Plain, buffer: disk.Buffer, offset: int, length: int) -> None:
        sides[pathlib.Path(self.path).relative_to(folder).parts[0]] += length
        read(self, buffer, offset, length)

    def copy(**more: t.Any) -> tuple[int, dict[str, int]]:
        sides.clear()
        done = Pair(folder, ending, compare=list(MODEL), **more).copy()
        for one in reversed(ending):
            one.close()
        ending.clear()
        return done["received"], dict(sides)

    monkeypatch.setattr(disk.Plain, "read", count)
    assert copy() == (0, {"source": TOTAL, "target": TOTAL})
    # This node reads its own, as it was asked to.
    assert copy() == (0, {"target": TOTAL})
    # A disk that has changed a byte by itself has changed no time.
    assert copy(reread=True) == (0, {"source": TOTAL, "target": TOTAL})
