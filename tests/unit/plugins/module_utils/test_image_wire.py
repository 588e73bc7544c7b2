# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The stream over real sockets of the loopback network: 127.0.0.2 is the source, 127.0.0.3 and on are the receivers."""

from __future__ import annotations

import os
import socket
import threading
import time
import typing as t

import pytest

from ansible_collections.sparkstack.inference.plugins.module_utils import _image_serve as serving_end
from ansible_collections.sparkstack.inference.plugins.module_utils import _image_wire as subject
from ansible_collections.sparkstack.inference.plugins.module_utils import _transfer as transfer

SOURCE, FIRST, SECOND, STRANGER = "127.0.0.2", "127.0.0.3", "127.0.0.4", "127.0.0.9"
TOKEN = "5e" * 32
QUICK = transfer.Limits(connect=1.5, stall=1.5, total=10)


class Serving(threading.Thread):
    """A source in a thread of its own."""

    def __init__(
        self,
        produce: t.Callable[[transfer.Request], t.Iterator[bytes]],
        peers: t.Sequence[str] = (FIRST,),
        limits: transfer.Limits = QUICK,
        size: int | None = None,
    ) -> None:
        super().__init__(daemon=True)
        self.size = size
        self.port = transfer.free_port(SOURCE)
        self.produce, self.peers, self.limits = produce, peers, limits
        self.served: list[serving_end.Served] = []
        self.start()

    def run(self) -> None:
        self.served = serving_end.serve(SOURCE, self.port, TOKEN, self.peers, self.answer, self.limits)

    def answer(self, request: transfer.Request) -> subject.Outgoing:
        return subject.Outgoing(self.produce(request), self.size)

    def result(self, seconds: float = 12) -> dict[str, serving_end.Served]:
        self.join(seconds)
        assert not self.is_alive()
        return {served.address: served for served in self.served}


def fetch(
    serving: Serving,
    address: str = FIRST,
    token: str = TOKEN,
    request: transfer.Request | None = None,
    consume: t.Callable[[t.Iterator[bytes]], None] | None = None,
    limits: transfer.Limits = QUICK,
) -> tuple[int, bytes]:
    got: list[bytes] = []
    size = subject.receive(SOURCE, serving.port, address, token, request or {}, consume or got.extend, limits)
    return size, b"".join(got)


def nothing_listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((SOURCE, port)) != 0


def test_all_bytes_arrive_at_all_receivers() -> None:
    data = os.urandom(3_000_000)
    asked: list[object] = []

    def produce(request: transfer.Request) -> t.Iterator[bytes]:
        asked.append(request["leave_out"])
        yield data[:1_000_001]
        yield data[1_000_001:]

    serving = Serving(produce, [FIRST, SECOND])
    for address in (FIRST, SECOND):
        assert fetch(serving, address, request={"leave_out": [address]}) == (len(data), data)
    served = serving.result()
    assert {address: (one.bytes_sent, one.error) for address, one in served.items()} == {
        FIRST: (len(data), None),
        SECOND: (len(data), None),
    }
    assert asked == [[FIRST], [SECOND]]
    assert nothing_listens(serving.port)


def test_the_receiver_may_come_before_the_source_listens() -> None:
    port = transfer.free_port(SOURCE)
    got: list[bytes] = []
    receiver = threading.Thread(target=lambda: subject.receive(SOURCE, port, FIRST, TOKEN, {}, got.extend, QUICK), daemon=True)
    receiver.start()
    time.sleep(0.4)
    serving_end.serve(SOURCE, port, TOKEN, [FIRST], lambda request: subject.Outgoing(iter([b"late"])), QUICK)
    receiver.join(5)
    assert got == [b"late"]


def test_the_source_listens_on_its_own_address_only() -> None:
    serving = Serving(lambda request: iter([b"x"]))
    fetched = threading.Event()

    def consume(stream: t.Iterator[bytes]) -> None:
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", serving.port)) != 0
        list(stream)
        fetched.set()

    fetch(serving, consume=consume)
    assert fetched.is_set()


def test_a_wrong_token_gets_nothing_and_spoils_nothing() -> None:
    serving = Serving(lambda request: iter([b"secret"]))
    with pytest.raises(transfer.TransferError, match="is not this task's source"):
        fetch(serving, token="ff" * 32)
    assert fetch(serving) == (6, b"secret")
    assert serving.result()[FIRST].error is None


def test_a_stranger_is_not_spoken_to() -> None:
    serving = Serving(lambda request: iter([b"secret"]))
    with socket.socket() as stranger:
        stranger.bind((STRANGER, 0))
        stranger.settimeout(3)
        connected = False
        while not connected:
            connected = stranger.connect_ex((SOURCE, serving.port)) == 0
        assert stranger.recv(100) == b""
    assert fetch(serving) == (6, b"secret")


def test_a_source_without_the_token_is_refused() -> None:
    with socket.socket() as fake:
        fake.bind((SOURCE, 0))
        fake.listen()
        port = fake.getsockname()[1]

        def answer() -> None:
            talk, _peer = fake.accept()
            with talk:
                talk.sendall(bytes(32))
                talk.recv(64)
                talk.sendall(bytes(32))
                talk.recv(1)

        threading.Thread(target=answer, daemon=True).start()
        got: list[bytes] = []
        with pytest.raises(transfer.TransferError, match="the other end does not have the token"):
            subject.receive(SOURCE, port, FIRST, TOKEN, {}, got.extend, QUICK)
        assert got == []


def test_the_token_does_not_cross_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[bytes] = []
    real = socket.socket.sendall

    def record(self: socket.socket, data: bytes) -> None:
        sent.append(bytes(data))
        real(self, data)

    monkeypatch.setattr(socket.socket, "sendall", record)
    fetch(Serving(lambda request: iter([b"x"])))
    assert sent and TOKEN.encode() not in b"".join(sent) and bytes.fromhex(TOKEN) not in b"".join(sent)


def test_a_source_that_can_not_read_says_why() -> None:
    def produce(request: transfer.Request) -> t.Iterator[bytes]:
        yield b"begun"
        raise RuntimeError("no such image")

    serving = Serving(produce)
    with pytest.raises(transfer.TransferError, match=r"^127\.0\.0\.2 could not send: no such image$"):
        fetch(serving)
    assert serving.result(2)[FIRST].error == "no such image"


def test_a_source_that_vanishes_in_the_middle() -> None:
    with socket.socket() as listener:
        listener.bind((SOURCE, 0))
        listener.listen()
        port = listener.getsockname()[1]

        def vanish() -> None:
            talk, _peer = listener.accept()
            with talk:
                transfer.admit(talk, TOKEN.encode())
                transfer.take_message(talk)
                talk.sendall(b"D" + (1000).to_bytes(4, "big") + b"half of it")

        threading.Thread(target=vanish, daemon=True).start()
        with pytest.raises(transfer.TransferError, match="went away in the middle of the transfer"):
            subject.receive(SOURCE, port, FIRST, TOKEN, {}, lambda stream: [*stream].clear(), QUICK)


def test_a_source_that_hangs() -> None:
    release = threading.Event()

    def produce(request: transfer.Request) -> t.Iterator[bytes]:
        yield b"begun"
        release.wait(20)

    # With heartbeats less often than the receiver's patience the source looks dead.
    serving = Serving(produce)
    started = time.monotonic()
    with pytest.raises(transfer.TransferError, match="sent nothing for 1 s"):
        fetch(serving, limits=transfer.Limits(connect=2, stall=0.6, total=10))
    assert time.monotonic() - started < 5
    release.set()


def test_a_source_that_takes_its_time_to_read_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving_end, "HEARTBEAT_SECONDS", 0.1)

    def produce(request: transfer.Request) -> t.Iterator[bytes]:
        time.sleep(1.2)
        yield b"at last"

    assert fetch(Serving(produce), limits=transfer.Limits(connect=2, stall=0.5, total=10)) == (7, b"at last")


def test_a_receiver_that_fails_is_named_and_does_not_stop_the_others() -> None:
    serving = Serving(lambda request: iter([b"x" * 100]), [FIRST, SECOND])

    def full_disk(stream: t.Iterator[bytes]) -> None:
        list(stream)
        raise RuntimeError("no space left on device")

    with pytest.raises(RuntimeError, match="no space left"):
        fetch(serving, consume=full_disk)
    assert fetch(serving, SECOND) == (100, b"x" * 100)
    served = serving.result()
    assert served[FIRST].error == "no space left on device"
    assert served[SECOND].error is None


def test_a_receiver_that_vanishes_in_the_middle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving_end, "RETURN_SECONDS", 0.3)

    def produce(request: transfer.Request) -> t.Iterator[bytes]:
        for _number in range(10_000):
            yield bytes(1 << 16)

    def vanish(stream: t.Iterator[bytes]) -> None:
        next(stream)
        raise KeyboardInterrupt

    serving = Serving(produce)
    with pytest.raises(KeyboardInterrupt):
        fetch(serving, consume=vanish)
    assert "the connection broke" in str(serving.result(6)[FIRST].error)
    assert nothing_listens(serving.port)


def test_a_receiver_may_come_back_for_all_of_it() -> None:
    """As when its daemon refused an archive without the layers that it seemed to have."""
    serving = Serving(lambda request: iter([b"part"] if request["leave_out"] else [b"part", b"rest"]))

    def refuse(stream: t.Iterator[bytes]) -> None:
        next(stream)
        raise RuntimeError("no such file or directory")

    with pytest.raises(RuntimeError):
        fetch(serving, request={"leave_out": ["sha256:aa"]}, consume=refuse)
    assert fetch(serving, request={"leave_out": []}) == (8, b"partrest")
    assert serving.result()[FIRST].error is None


def test_a_receiver_that_comes_back_is_waited_for_after_the_end_too() -> None:
    """As when its daemon has taken all, and then finds that it lacks a layer."""
    serving = Serving(lambda request: iter([b"part"] if request["leave_out"] else [b"part", b"rest"]))
    count = subject.Count()

    def refuse(stream: t.Iterator[bytes]) -> None:
        list(stream)
        raise RuntimeError("invalid diffID")

    with pytest.raises(RuntimeError):
        subject.receive(SOURCE, serving.port, FIRST, TOKEN, {"leave_out": ["sha256:aa"]}, refuse, QUICK, count, lambda error: "diffID" in str(error))
    got: list[bytes] = []
    subject.receive(SOURCE, serving.port, FIRST, TOKEN, {"leave_out": []}, got.extend, QUICK, count)
    assert b"".join(got) == b"partrest"
    assert (count.there, count.received) == (8, 12)
    assert serving.result()[FIRST].error is None


def test_a_source_that_has_another_way_is_asked_once_more() -> None:
    def produce(request: transfer.Request) -> t.Iterator[bytes]:
        yield b"begun"
        if not request.get("save"):
            raise subject.Otherwise("usr/x can't be read")

    serving = Serving(produce)
    with pytest.raises(subject.Otherwise, match=r"^127\.0\.0\.2 could not send: usr/x can't be read$"):
        fetch(serving)
    assert fetch(serving, request={"save": True}) == (5, b"begun")
    assert serving.result()[FIRST].error is None


def test_how_much_will_come_is_known_before_it_does() -> None:
    go_on, count = threading.Event(), subject.Count()

    def produce(request: transfer.Request) -> t.Iterator[bytes]:
        yield b"x" * 300
        assert go_on.wait(5)
        yield b"x" * 700

    serving = Serving(produce, size=1000)
    seen: list[tuple[int, int | None]] = []

    def consume(stream: t.Iterator[bytes]) -> None:
        next(stream)
        seen.append((count.there, count.total))
        go_on.set()
        list(stream)

    assert subject.receive(SOURCE, serving.port, FIRST, TOKEN, {}, consume, QUICK, count) == 1000
    assert seen == [(300, 1000)] and (count.there, count.total) == (1000, 1000)


def test_nobody_comes_and_the_source_ends_by_itself() -> None:
    started = time.monotonic()
    serving = Serving(lambda request: iter([b"x"]), limits=transfer.Limits(connect=0.5, stall=1, total=10))
    assert serving.result(4)[FIRST].error == "it did not connect within 0 s"
    assert time.monotonic() - started < 3
    assert nothing_listens(serving.port)


def test_all_ends_at_the_deadline() -> None:
    release = threading.Event()

    def produce(request: transfer.Request) -> t.Iterator[bytes]:
        yield b"x"
        release.wait(20)

    serving = Serving(produce, limits=transfer.Limits(connect=2, stall=30, total=1))
    with pytest.raises(transfer.TransferError, match="went away|could not send|not done within its time"):
        fetch(serving, limits=transfer.Limits(connect=2, stall=30, total=8))
    assert serving.result(6)[FIRST].error
    assert nothing_listens(serving.port)
    release.set()


def test_no_source_names_both_addresses_and_the_remedy() -> None:
    with pytest.raises(transfer.TransferError) as failure:
        subject.receive(SOURCE, 9, FIRST, TOKEN, {}, lambda stream: None, transfer.Limits(0.5, 1, 5))
    text = str(failure.value)
    assert "Cannot reach 127.0.0.2:9 from 127.0.0.3" in text and "refused" in text
    assert "`ping -I 127.0.0.3 127.0.0.2`" in text and "firewall" in text


@pytest.mark.parametrize("address", ["192.0.2.1"])
def test_an_address_of_another_node(address: str) -> None:
    with pytest.raises(transfer.TransferError, match=r"192\.0\.2\.1 is not an address of this node"):
        subject.receive(SOURCE, 9, address, TOKEN, {}, lambda stream: None, QUICK)
    with pytest.raises(transfer.TransferError, match=r"192\.0\.2\.1 is not an address of this node"):
        serving_end.serve(address, 0, TOKEN, [FIRST], lambda request: subject.Outgoing(iter([])), QUICK)
    with pytest.raises(OSError):
        transfer.free_port(address)


def test_a_port_that_is_taken() -> None:
    with socket.socket() as other:
        other.bind((SOURCE, 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(transfer.TransferError, match=f"Port {port} of 127.0.0.2 is taken"):
            serving_end.serve(SOURCE, port, TOKEN, [FIRST], lambda request: subject.Outgoing(iter([])), QUICK)
