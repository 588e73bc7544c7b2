# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a receiver and a source make of another end that is silent, slow or gone."""

from __future__ import annotations

import os
import socket
import threading
import time
import typing as t

import pytest
from copying import until

from ansible_collections.sparkstack.inference.plugins.module_utils import _staging_counter as counting
from ansible_collections.sparkstack.inference.plugins.module_utils import _staging_serve as serving
from ansible_collections.sparkstack.inference.plugins.module_utils import _staging_sum as sums
from ansible_collections.sparkstack.inference.plugins.module_utils import _staging_wire as wire
from ansible_collections.sparkstack.inference.plugins.module_utils import _transfer
from ansible_collections.sparkstack.inference.plugins.module_utils._staging_disk import Buffer

TOKEN = "t" * 64
SIZE = 3 * sums.PIECE + 5
CONTENT = os.urandom(SIZE)
STALL = 0.5


def source(then: t.Callable[[socket.socket], None]) -> wire.Call:
    """A call whose other end greets, hears one question, and goes on as it is told."""
    server = socket.create_server(("127.0.0.1", 0))

    def talk() -> None:
        with server, server.accept()[0] as heard:
            _transfer.admit(heard, TOKEN.encode("ascii"))
            _transfer.take(heard, wire.ASK.size)
            then(heard)

    threading.Thread(target=talk, daemon=True).start()
    port = server.getsockname()[1]
    return wire.Call(wire.Peer("spark1", []), wire.Lane("127.0.0.1", "127.0.0.1", port), TOKEN, _transfer.Limits(5, STALL, 0))


def test_what_comes_in_drops_is_whole() -> None:
    def drip(heard: socket.socket) -> None:
        heard.sendall(wire.ANSWER.pack(wire.ALIVE, 0) + wire.ANSWER.pack(wire.DATA, SIZE))
        for start in range(0, SIZE, 300_001):
            heard.sendall(CONTENT[start : start + 300_001])
            time.sleep(0.01)
        heard.sendall(wire.ANSWER.pack(wire.DIGEST, 3) + b"abc")

    buffer = Buffer(SIZE)
    assert source(drip).data(0, 0, SIZE, buffer, "gmac") == (sums.of(CONTENT, "gmac"), b"abc")
    assert bytes(buffer.view[:SIZE]) == CONTENT


@pytest.mark.parametrize("given", [0, 700_000], ids=["before the first byte", "in the middle"])
def test_silence_is_told_with_its_time(given: int) -> None:
    over = threading.Event()

    def stop(heard: socket.socket) -> None:
        heard.sendall(wire.ANSWER.pack(wire.DATA, SIZE) + CONTENT[:given] if given else b"")
        over.wait(20)

    begun = time.monotonic()
    with pytest.raises(wire.Lost, match=r"^spark1 gave no sign of life for \d+ s$"):
        source(stop).data(0, 0, SIZE, Buffer(SIZE), "gmac")
    over.set()
    # What came counts as one sign more.
    assert STALL * 0.9 < time.monotonic() - begun < 4 * STALL + 2


def test_a_source_that_goes_away_in_the_middle_is_lost() -> None:
    with pytest.raises(wire.Lost, match="^spark1 went away: "):
        source(lambda heard: heard.sendall(wire.ANSWER.pack(wire.DATA, SIZE) + CONTENT[:700_000])).data(0, 0, SIZE, Buffer(SIZE), "gmac")


class Endless:
    """A shelf that has more than fits into any buffer of the kernel."""

    def digest(self, file: int, chunk: int, alive: serving.Alive) -> bytes:
        return b"d"

    def send(self, file: int, chunk: int, alive: serving.Alive, begin: t.Callable[[int], None], put: serving.Put) -> bytes:
        begin(1 << 30)
        for _turn in range(1 << 10):
            put(memoryview(bytes(1 << 20)))
        return b"d"


def test_a_caller_that_takes_nothing_is_hung_up_on_and_one_that_asks_nothing_is_not() -> None:
    counter = counting.Counter(TOKEN, ["127.0.0.1"], STALL)
    port = counter.open("127.0.0.1", 0)
    counter.serve(Endless())
    try:
        with socket.create_connection(("127.0.0.1", port)) as idle, socket.create_connection(("127.0.0.1", port)) as full:
            for talk in (idle, full):
                _transfer.introduce(talk, TOKEN.encode("ascii"))
            until(lambda: counter.busy == 2)
            full.sendall(wire.ASK.pack(wire.GET, 0, 0))
            until(lambda: counter.busy == 1)
            time.sleep(2 * STALL)
            idle.sendall(wire.ASK.pack(wire.SUM, 0, 0))
            assert _transfer.take(idle, wire.ANSWER.size + 1) == wire.ANSWER.pack(wire.DIGEST, 1) + b"d"
    finally:
        counter.close()
