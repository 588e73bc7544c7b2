# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The agents' lines: believed when signed for this connection, this direction and this place; else not."""

from __future__ import annotations

import contextlib
import errno
import json
import socket
import threading
import time
import typing as t

import pytest

from ansible_collections.sparkstack.inference.plugins.module_utils import _autostart_wire as wire

ME = {"deployment": "qwen", "rank": 1}
TOKEN = "s3cret-token-of-all-nodes"


def greeted(called: str = TOKEN, caller: str = TOKEN) -> tuple[wire.Channel, wire.Channel, list[bytes]]:
    """Both ends of a connection, the called one's first; and all bytes that the caller sends."""
    left, right = socket.socketpair()
    overheard: list[bytes] = []
    ends: list[wire.Channel] = []
    thread = threading.Thread(target=lambda: ends.append(wire.Channel(left, called, True)))
    thread.start()
    original = wire.Channel._put_bytes

    class Tapped(wire.Channel):
        def _put_bytes(self, data: bytes) -> None:
            overheard.append(data)
            original(self, data)

    mine = Tapped(right, caller, False, ME)
    thread.join()
    return ends[0], mine, overheard


def test_messages_come_through_both_ways() -> None:
    called, caller, _bytes = greeted()
    assert called.peer["rank"] == 1 and called.peer["deployment"] == "qwen"
    for number in range(3):
        caller.send({"running": True, "number": number})
        assert called.receive() == {"running": True, "number": number}
        called.send({"want": None})
        assert caller.receive() == {"want": None}


def test_the_token_is_never_on_the_wire() -> None:
    _called, caller, overheard = greeted()
    caller.send({"running": True})
    assert overheard and not any(TOKEN.encode() in data for data in overheard)


def test_another_token_is_not_believed_in_either_direction() -> None:
    called, caller, _bytes = greeted(caller="another token")
    caller.send({"running": True})
    with pytest.raises(wire.WireError, match="another token"):
        called.receive()
    called.send({"want": "stopped"})
    with pytest.raises(wire.WireError, match="another token"):
        caller.receive()


def test_a_line_is_good_once() -> None:
    called, caller, overheard = greeted()
    caller.send({"running": True})
    caller._connection.sendall(overheard[-1])
    assert called.receive() == {"running": True}
    with pytest.raises(wire.WireError, match="another token"):
        called.receive()


def test_what_was_overheard_is_worth_nothing_on_another_connection() -> None:
    _called, caller, overheard = greeted()
    caller.send({"running": True})
    left, right = socket.socketpair()
    # The same greeting and the same line, but the called side's nonce is another one now.
    right.sendall(b"".join(overheard))
    called = wire.Channel(left, TOKEN, True)
    with pytest.raises(wire.WireError, match="another token"):
        called.receive()


def test_a_line_does_not_come_back_as_the_other_sides() -> None:
    called, caller, overheard = greeted()
    caller.send({"want": "stopped"})
    called._connection.sendall(overheard[-1])
    with pytest.raises(wire.WireError, match="another token"):
        caller.receive()


@pytest.mark.parametrize("change", [(b"false", b"true "), (b"running", b"Running")])
def test_a_changed_line_is_not_believed(change: tuple[bytes, bytes]) -> None:
    called, caller, overheard = greeted()
    left, right = socket.socketpair()
    caller.send({"running": False})
    right.sendall(overheard[-1].replace(*change))
    called._lines = left.makefile("rb")
    with pytest.raises(wire.WireError, match="another token"):
        called.receive()


def test_who_calls_itself_by_another_rank_is_not_believed() -> None:
    left, right = socket.socketpair()
    ends: list[wire.Channel] = []
    thread = threading.Thread(target=lambda: ends.append(wire.Channel(left, TOKEN, True)))
    thread.start()
    honest = right.sendall

    class Liar:
        """On the way from the caller, its rank is changed."""

        def __getattr__(self, name: str) -> t.Any:
            return getattr(right, name)

        def sendall(self, data: bytes) -> None:
            honest(data.replace(b'"rank": 1', b'"rank": 2'))

    caller = wire.Channel(t.cast(socket.socket, Liar()), TOKEN, False, ME)
    thread.join()
    assert ends[0].peer["rank"] == 2
    caller.send({"running": True})
    with pytest.raises(wire.WireError, match="another token"):
        ends[0].receive()


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n", b"[]\n", b'{"nonce": 1}\n', b'{"nonce": "short"}\n', b"\xff\xfe\n", b""], ids=str)
def test_who_is_no_agent_gets_no_further_than_the_greeting(data: bytes) -> None:
    left, right = socket.socketpair()
    right.sendall(data)
    right.shutdown(socket.SHUT_WR)
    with pytest.raises(wire.WireError):
        wire.Channel(left, TOKEN, True)


def test_a_line_without_an_end_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MOST_BYTES", 1000)
    left, right = socket.socketpair()
    right.sendall(b"x" * 2000)
    with pytest.raises(wire.WireError):
        wire.Channel(left, TOKEN, True)


def test_silence_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "GREETING_TIMEOUT", 0.1)
    left, _right = socket.socketpair()
    begin = time.monotonic()
    with pytest.raises(wire.WireError, match="silent"):
        wire.Channel(left, TOKEN, True)
    assert time.monotonic() - begin < 2


def test_the_head_hangs_up_on_strangers_and_hears_workers() -> None:
    server = wire.listen("127.0.0.1", 0)
    port = server.getsockname()[1]
    heard: list[dict[str, t.Any]] = []
    problems: list[tuple[str, str]] = []

    def talk(channel: wire.Channel) -> None:
        heard.append(channel.receive())
        channel.send({"want": "running"})

    arguments = (server, ["127.0.0.2"], lambda c: wire.Channel(c, TOKEN, True), talk, lambda address, why: problems.append((address, why)))
    threading.Thread(target=wire.serve, args=arguments, daemon=True).start()
    worker = wire.call("127.0.0.2", "127.0.0.1", port, TOKEN, ME)
    worker.send({"running": True})
    assert worker.receive() == {"want": "running"} and heard == [{"running": True}]
    with pytest.raises(wire.WireError):
        wire.call("127.0.0.3", "127.0.0.1", port, TOKEN, ME)
    stranger = wire.call("127.0.0.2", "127.0.0.1", port, "wrong", ME)
    stranger.send({"running": True})
    with pytest.raises(wire.WireError):
        stranger.receive()
    deadline = time.monotonic() + 5
    while not problems and time.monotonic() < deadline:
        time.sleep(0.01)
    assert problems == [("127.0.0.2", "it has another token")]
    server.close()


class Shaky:
    """A listening socket whose first call is lost with its link, as accept(2) tells it."""

    def __init__(self, server: socket.socket) -> None:
        self.server, self.lost = server, 2
        self.fileno = server.fileno

    def accept(self) -> t.Any:
        if self.lost:
            self.lost -= 1
            raise OSError(errno.ENETDOWN, "Network is down")
        return self.server.accept()


def test_a_call_that_is_lost_with_its_link_does_not_make_the_head_deaf() -> None:
    server = wire.listen("127.0.0.1", 0)
    shaky = Shaky(server)
    arguments = (shaky, ["127.0.0.2"], lambda c: wire.Channel(c, TOKEN, True), lambda channel: channel.send(channel.receive()), lambda *_told: None)
    serving = threading.Thread(target=wire.serve, args=arguments, daemon=True)
    serving.start()
    worker = wire.call("127.0.0.2", "127.0.0.1", server.getsockname()[1], TOKEN, ME)
    worker.send({"running": True})
    assert worker.receive() == {"running": True} and shaky.lost == 0
    server.close()
    # A closed socket is the end of it.
    with contextlib.closing(socket.socket()) as last:
        last.close()
        gone = Shaky(last)
        ended = threading.Thread(target=wire.serve, args=(gone, *arguments[1:]), daemon=True)
        ended.start()
        ended.join(5)
        assert not ended.is_alive()


def test_the_head_listens_on_an_address_that_is_not_there_yet_and_tells_of_a_port_that_is_taken() -> None:
    early = wire.listen("192.0.2.77", 25050)
    with pytest.raises(OSError, match="in use"):
        wire.listen("192.0.2.77", 25050)
    early.close()


def test_no_agent_at_the_head_is_a_sentence() -> None:
    with pytest.raises(wire.WireError, match="refused"):
        wire.call("127.0.0.1", "127.0.0.1", 1, TOKEN, ME)


def test_records_of_a_long_log_fit_into_a_line() -> None:
    called, caller, _bytes = greeted()
    message = {"record": {"reading": "x" * 200_000}}
    sender = threading.Thread(target=caller.send, args=(message,))
    sender.start()
    assert json.dumps(called.receive()) == json.dumps(message)
    sender.join()
