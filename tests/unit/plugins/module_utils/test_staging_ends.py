# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How a copy's processes end, and what they make of callers and of nodes that have too little for them."""

from __future__ import annotations

import errno
import os
import pathlib
import socket
import threading
import typing as t

import pytest
from copying import ADDRESS, MODEL, TOKEN, TOTAL, Node, content, lay, listing, provider, until
from test_staging_copy import BIG, Pair, ending, folder  # noqa: F401  (fixtures)

from ansible_collections.sparkstack.inference.plugins.module_utils import _staging_agent as agent
from ansible_collections.sparkstack.inference.plugins.module_utils import _staging_counter as counting
from ansible_collections.sparkstack.inference.plugins.module_utils import _staging_disk as disk
from ansible_collections.sparkstack.inference.plugins.module_utils import _staging_fetch as fetching
from ansible_collections.sparkstack.inference.plugins.module_utils import _staging_shelf as shelf
from ansible_collections.sparkstack.inference.plugins.module_utils import _staging_wire as wire
from ansible_collections.sparkstack.inference.plugins.module_utils import _transfer

LARGE = 4 * disk.PART


def calling(node: Node, host: str) -> socket.socket:
    """A caller that takes next to nothing at a time."""
    talk = socket.socket()
    talk.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    talk.bind((ADDRESS[host], 0))
    talk.connect((node.address, node.port))
    return talk


def test_a_node_that_stands_still_holds_the_source_from_nobody(tmp_path: pathlib.Path, ending: list[t.Any]) -> None:  # noqa: F811
    lay(tmp_path / "source", {"a.bin": 2 * LARGE})
    files = listing(tmp_path / "source")
    source = Node("spark1", tmp_path / "source", True, files, ["spark2", "spark3"], chunk=LARGE, streams=2, stall=60)
    ending.append(source)
    frozen = [calling(source, "spark2") for _turn in range(12)]
    try:
        for talk in frozen:
            _transfer.introduce(talk, TOKEN.encode("ascii"))
            talk.sendall(wire.ASK.pack(wire.GET, 0, 0))
            # It has begun to give, and can't go on.
            assert _transfer.take(talk, wire.ANSWER.size) == wire.ANSWER.pack(wire.DATA, LARGE)
        target = Node("spark3", tmp_path / "target", False, files, chunk=LARGE, streams=2, stall=60)
        ending.append(target)
        target.go(provider(source, "spark3"))
        assert target.end(30)["state"] == "done" and content(tmp_path / "target") == content(tmp_path / "source")
        assert (source.ask({"do": "watch", "seconds": 0}) or {})["busy"] >= len(frozen)
    finally:
        for talk in frozen:
            talk.close()


def test_readers_that_stand_still_leave_half_of_what_is_kept_to_go_round() -> None:
    pool = disk.Pool(6, 4096)
    recent = shelf.Recent(pool, 4)
    for chunk in range(4):
        recent.put((0, chunk), pool.take())
    with recent.reading((0, 0)) as one, recent.reading((0, 1)) as two, recent.reading((0, 0)) as again, recent.reading((0, 2)) as third:
        assert one is again and one is not two and two is not None and third is None
        # However many come now, there is a buffer for the next.
        for chunk in range(4, 40):
            recent.put((0, chunk), pool.take())
        with recent.reading((0, 0)) as still:
            assert still is one
    with recent.reading((0, 39)) as newest, recent.reading((0, 5)) as gone:
        assert newest is not None and gone is None


def test_no_file_is_closed_as_long_as_a_thread_writes_to_it(
    folder: pathlib.Path,  # noqa: F811
    ending: list[t.Any],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fetching, "_END", 0.3)
    held, go_on, closed = threading.Event(), threading.Event(), []
    write, close = disk.Plain.write, disk.Plain.close

    def slow(self: disk.Plain, buffer: disk.Buffer, offset: int, length: int) -> None:
        held.set()
        assert go_on.wait(60)
        write(self, buffer, offset, length)

    def note(self: disk.Plain) -> None:
        closed.append(self.path)
        close(self)

    monkeypatch.setattr(disk.Plain, "write", slow)
    monkeypatch.setattr(disk.Plain, "close", note)
    pair = Pair(folder, ending)
    pair.target.go(provider(pair.source, "spark2"))
    assert held.wait(60)
    pair.target.close()
    # Its process would end now. Another file that is opened must not get the number of one that is written to.
    assert not [path for path in closed if str(folder / "target") in path]
    go_on.set()
    assert pair.target.agent._fetch is not None
    for thread in pair.target.agent._fetch._threads:
        thread.join(60)
        assert not thread.is_alive()


def test_threads_that_wait_for_another_node_end_at_once(folder: pathlib.Path, ending: list[t.Any]) -> None:  # noqa: F811
    """A silent node is waited for a minute; a copy that is ended is not."""
    silent = socket.create_server((ADDRESS["spark1"], 0))
    talks = []

    def greet() -> None:
        while True:
            try:
                talk, _peer = silent.accept()
            except OSError:
                return
            _transfer.admit(talk, TOKEN.encode("ascii"))
            talks.append(talk)

    threading.Thread(target=greet, daemon=True).start()
    target = Node("spark2", folder / "target", False, listing(folder / "source"), stall=60)
    target.go({"host": "spark1", "lanes": [[ADDRESS["spark2"], ADDRESS["spark1"], silent.getsockname()[1]]], "pin": ""})
    until(lambda: len(talks) > 4)
    fetch = target.agent._fetch
    target.close()
    assert fetch is not None and not any(thread.is_alive() for thread in fetch._threads)
    # So all could be closed.
    assert all(one._file is None or not os.path.exists(f"/proc/self/fd/{one._file.number}") for one in fetch.files.values() if one.wanted.name == BIG)
    silent.shutdown(socket.SHUT_RDWR)
    silent.close()
    for talk in talks:
        talk.close()


class Threads:
    """No more threads, for a while, for what has this name. Source: the text is Python's own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str, refused: t.Container[int]) -> None:
        self.asked = 0
        start = threading.Thread.start

        def starting(thread: threading.Thread) -> None:
            if getattr(getattr(thread, "_target", None), "__name__", "") == name:
                self.asked += 1
                if self.asked in refused:
                    raise RuntimeError("can't start new thread")
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", starting)


def test_a_fetch_that_can_not_have_all_its_threads_stops_those_that_run(
    folder: pathlib.Path,  # noqa: F811
    ending: list[t.Any],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pair = Pair(folder, ending)
    Threads(monkeypatch, "_work", [3])
    done = pair.copy()
    assert done["state"] == "failed" and done["problem"].endswith(
        "can't have its 4 threads (can't start new thread): take fewer `streams`, or raise `ulimit -u`."
    )
    assert pair.target.agent._fetch is not None and not any(thread.is_alive() for thread in pair.target.agent._fetch._threads)
    assert BIG not in content(folder / "target")


def test_a_mistake_of_ours_stops_the_fetch_too(folder: pathlib.Path, ending: list[t.Any], monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    pair = Pair(folder, ending)

    def wrong(self: fetching.Fetch, peers: t.Sequence[wire.Peer]) -> None:
        raise LookupError("what nobody thought of")

    monkeypatch.setattr(fetching.Fetch, "run", wrong)
    done = pair.copy()
    assert (done["state"], done["problem"]) == ("failed", f"The copy to {folder / 'target'} failed: LookupError: what nobody thought of.")
    assert pair.target.agent._fetch is not None and pair.target.agent._fetch.problem == done["problem"]


def test_a_call_that_could_not_be_taken_is_told_and_comes_again(
    folder: pathlib.Path,  # noqa: F811
    ending: list[t.Any],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pair = Pair(folder, ending)
    Threads(monkeypatch, "_converse", [2, 3])
    assert pair.copy()["state"] == "done" and content(folder / "target") == content(folder / "source")
    told = (pair.source.ask({"do": "watch", "seconds": 0}) or {})["trouble"]
    assert told == "A call from 127.0.0.3 could not be taken (can't start new thread): raise the limit of processes of this user (`ulimit -u`)."


@pytest.mark.parametrize("name", ["_talk", "_go"])
def test_a_node_without_threads_answers_all_the_same(folder: pathlib.Path, ending: list[t.Any], monkeypatch: pytest.MonkeyPatch, name: str) -> None:  # noqa: F811
    pair = Pair(folder, ending)
    Threads(monkeypatch, name, range(1, 1000))
    done = pair.copy()
    if name == "_talk":
        assert done["state"] == "done" and content(folder / "target") == content(folder / "source")
    else:
        assert done["state"] == "failed" and "could not begin (can't start new thread)" in done["problem"]


def test_who_has_no_token_holds_a_few_threads_only(folder: pathlib.Path, ending: list[t.Any], monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    # Its seconds are over at some time; not in this test, on however slow a machine.
    monkeypatch.setattr(_transfer, "HELLO_SECONDS", 120.0)
    pair = Pair(folder, ending)
    strangers = [socket.create_connection((pair.source.address, pair.source.port), 60, (ADDRESS["spark2"], 0)) for _turn in range(counting._STRANGERS + 9)]
    counter = pair.source.agent.counter
    # Each is greeted first; those over the limit are hung up on instead.
    hung = [talk for talk in strangers if not talk.recv(1)]
    assert len(hung) == 9 and len(counter._strangers) == counting._STRANGERS
    for talk in strangers:
        talk.close()
    until(lambda: not counter._strangers)
    assert pair.copy()["state"] == "done" and content(folder / "target") == content(folder / "source")


def test_a_file_that_can_not_be_read_to_its_end_is_the_sources_word(tmp_path: pathlib.Path, ending: list[t.Any], monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    lay(tmp_path / "source", {"a.bin": LARGE})
    read = disk.Plain.read

    def broken(self: disk.Plain, buffer: disk.Buffer, offset: int, length: int) -> None:
        if "source" in self.path and offset >= disk.PART:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        read(self, buffer, offset, length)

    monkeypatch.setattr(disk.Plain, "read", broken)
    done = Pair(tmp_path, ending, chunk=LARGE).copy()
    assert (done["state"], done["problem"]) == ("failed", "a.bin can't be read at the source: Input/output error.")
    assert content(tmp_path / "target") == {}


def test_a_status_of_any_length_arrives_and_names_come_with_the_end_only(
    folder: pathlib.Path,  # noqa: F811
    ending: list[t.Any],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pair = Pair(folder, ending)
    gate = threading.Event()
    write = disk.Plain.write

    def wait(self: disk.Plain, buffer: disk.Buffer, offset: int, length: int) -> None:
        assert gate.wait(60) or offset == 0
        write(self, buffer, offset, length)

    monkeypatch.setattr(disk.Plain, "write", wait)
    pair.target.go(provider(pair.source, "spark2"))
    until(lambda: (pair.target.ask({"do": "watch", "seconds": 0}) or {})["moved"] == [])
    gate.set()
    assert pair.target.end()["moved"] == sorted(MODEL, key=lambda name: (-MODEL[name], name))
    status = agent.Agent.status
    names = [f"a/rather/long/folder/of/a/model/with/very/many/files/{number:06d}.bin" for number in range(40_000)]
    monkeypatch.setattr(agent.Agent, "status", lambda self: {**status(self), "moved": names})
    told = pair.target.ask({"do": "watch", "seconds": 0})
    assert told is not None and told["moved"] == names and told["received"] == TOTAL


@pytest.mark.parametrize("address", ["::1", "0:0:0:0:0:0:0:1", "0000::0001"])
def test_a_caller_is_known_however_its_address_was_written(address: str) -> None:
    counter = counting.Counter(TOKEN, [address], 5)
    port = counter.open("::1", 0)

    class Shelf:
        def digest(self, file: int, chunk: int, alive: t.Callable[[], None]) -> bytes:
            return b"d"

        def send(self, *_arguments: t.Any) -> bytes:
            raise AssertionError

    counter.serve(Shelf())
    try:
        call = wire.Call(wire.Peer("spark1", []), wire.Lane("::1", "::1", port), TOKEN, _transfer.Limits(5, 5, 0))
        assert call.digest(0, 0) == b"d"
        call.close()
    finally:
        counter.close()
        assert counter.idle(20)
