# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The probe over real sockets: the loopback's many addresses are the nodes, and a relay between them is the bad cable."""

from __future__ import annotations

import contextlib
import json
import pathlib
import secrets
import selectors
import socket
import subprocess
import sys
import threading
import time
import typing as t

import pytest

from ansible_collections.sparkstack.inference.plugins.module_utils import _fabric_probe_ask as asking
from ansible_collections.sparkstack.inference.plugins.module_utils import _fabric_probe_steps as stepping
from ansible_collections.sparkstack.inference.plugins.module_utils._autostart_wire import WireError
from ansible_collections.sparkstack.inference.plugins.module_utils._fabric_probe_ask import Target, probe
from ansible_collections.sparkstack.inference.plugins.module_utils._fabric_probe_listen import Listener, home, own
from ansible_collections.sparkstack.inference.plugins.module_utils._fabric_probe_rail import Udp, connect, listen, tcp
from ansible_collections.sparkstack.inference.plugins.module_utils._fabric_probe_steps import Steps

HERE, THERE, BETWEEN = "127.0.0.31", "127.0.0.32", "127.0.0.33"
SOURCES = pathlib.Path(__file__).resolve().parents[4] / "build" / "src"


class Node:
    """A listener in a thread of this process."""

    def __init__(self, address: str, callers: t.Sequence[str] = (HERE, THERE)) -> None:
        self.token = secrets.token_hex(32)
        self.address = address
        self.listener = Listener(self.token, callers, 30)
        self.udp, self.control = self.listener.open_rail("lo", address)
        self.thread = threading.Thread(target=self.listener.run, daemon=True)

    def target(self, **more: t.Any) -> Target:
        asked = {"row": 4, "netdev": "lo", "address": HERE, "peer_address": self.address, "udp": self.udp, "control": self.control}
        return Target(**{**asked, "token": self.token, "ports": (), "mtu": 9000, **more})

    def count(self) -> dict[str, t.Any]:
        return next((count for count in self.listener.counts()["counts"] if count["source"] == 1), {"received": 0, "largest": 0})

    def until(self, received: int) -> dict[str, t.Any]:
        """What it has counted, as soon as so much has come; a busy machine may let it run later than the asker."""
        deadline = time.monotonic() + 10
        while self.count()["received"] < received:
            assert time.monotonic() < deadline, self.count()
            time.sleep(0.02)
        return self.count()

    def end(self) -> None:
        with contextlib.suppress(WireError), contextlib.closing(own(self.token)) as listener:
            listener.ask({"do": "end"}, 5)
        self.thread.join(5)
        assert not self.thread.is_alive()


@pytest.fixture
def nodes() -> t.Iterator[t.Callable[[str], Node]]:
    made: list[Node] = []

    def make(address: str) -> Node:
        made.append(Node(address))
        made[-1].thread.start()
        return made[-1]

    yield make
    for node in made:
        node.end()


@contextlib.contextmanager
def relay(node: Node, there: t.Callable[[int, bytes], bool], back: t.Callable[[int, bytes], bool]) -> t.Iterator[Target]:
    """A cable that lets pass what these say, of the number of a packet in its direction and its bytes."""
    front, rear = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _side in range(2))
    for side in (front, rear):
        # A busy machine lets it run late, and a cable has no queue that is too short. Beyond the usual size only root may (SO_RCVBUFFORCE).
        side.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        with contextlib.suppress(OSError):
            side.setsockopt(socket.SOL_SOCKET, 33, 4 << 20)
        side.bind((BETWEEN, 0))
    asker: list[t.Any] = [None]

    def carry(source: socket.socket, passes: t.Callable[[int, bytes], bool], on: t.Callable[[bytes], t.Any]) -> None:
        number = 0
        with contextlib.suppress(OSError):
            while True:
                data, peer = source.recvfrom(65536)
                if source is front:
                    asker[0] = peer
                if passes(number, data):
                    on(data)
                number += 1

    ways: list[tuple[t.Any, ...]] = [
        (front, there, lambda data: rear.sendto(data, (node.address, node.udp))),
        (rear, back, lambda data: front.sendto(data, asker[0])),
    ]
    for way in ways:
        threading.Thread(target=carry, args=way, daemon=True).start()
    yield node.target(peer_address=BETWEEN, udp=front.getsockname()[1])
    front.close()
    rear.close()


def always(_number: int, _data: bytes) -> bool:
    return True


def never(_number: int, _data: bytes) -> bool:
    return False


def half(number: int, _data: bytes) -> bool:
    return number % 2 == 0


def test_a_clean_link(nodes: t.Callable[[str], Node]) -> None:
    node = nodes(THERE)
    (row,) = probe([node.target()], 1)
    assert (row["row"], row["sent"], row["answered_size"], row["refused"], row["control"]) == (4, 200, 9000, None, "ok")
    assert row["answered"] > 150
    assert 0 < row["rtt_ms"] < 500 and row["echo_ms"] is None
    assert abs(row["clock_offset_s"]) <= row["clock_error_s"] + 0.0001
    assert node.until(200) == {"source": 1, "row": 4, "received": 200, "largest": 9000, "interfaces": {"lo": node.count()["interfaces"]["lo"]}}


def test_loss_is_counted_where_it_happens(nodes: t.Callable[[str], Node]) -> None:
    node = nodes(THERE)
    with relay(node, half, always) as target:
        (row,) = probe([target], 1)
    # Every second of about 200 that are counted and of those whose size is tried.
    assert 90 <= node.until(90)["received"] <= 110 and 70 <= row["answered"] <= node.count()["received"]
    # Which of the few large ones gets through is left to chance.
    assert node.count()["largest"] > 1500 and row["sent"] == 200


def test_loss_on_the_way_back_is_none_of_this_direction(nodes: t.Callable[[str], Node]) -> None:
    node = nodes(THERE)
    with relay(node, always, half) as target:
        (row,) = probe([target], 1)
    assert node.until(200)["received"] == 200 and 70 <= row["answered"] <= 110


def test_one_way_is_cut(nodes: t.Callable[[str], Node]) -> None:
    node = nodes(THERE)
    with relay(node, always, never) as target:
        (row,) = probe([target], 1)
    assert (node.until(200)["received"], node.count()["largest"]) == (200, 9000)
    assert (row["answered"], row["rtt_ms"], row["clock_offset_s"]) == (0, None, None)


def test_large_packets_are_lost(nodes: t.Callable[[str], Node]) -> None:
    node = nodes(THERE)
    with relay(node, lambda _number, data: len(data) <= 1500 - 28, always) as target:
        (row,) = probe([target], 1)
    assert (row["answered_size"], node.until(150)["largest"]) == (1500, 1500)


def test_who_has_not_the_token_is_not_answered(nodes: t.Callable[[str], Node]) -> None:
    node = nodes(THERE)
    (row,) = probe([node.target(token="another")], 1)
    assert (row["answered"], node.listener.counts()["counts"]) == (0, [])
    with tcp("lo", HERE) as caller, pytest.raises(WireError):
        stepping.rate.reach(caller, THERE, node.control, "another").ask({"do": "ready", "step": 1, "seconds": 0}, 2)


def test_who_does_not_answer_is_waited_for_shortly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "_ECHO", 0.3)
    target = Target(0, "lo", HERE, THERE, 9, 9, "nobody", (), 9000)
    begun = time.monotonic()
    (row,) = probe([target], 0)
    assert time.monotonic() - begun < 6
    assert (row["answered"], row["answered_size"], row["control"]) == (0, 0, "refused")


def test_an_interface_that_is_not_there() -> None:
    (row,) = probe([Target(0, "none0", HERE, THERE, 9, 9, "nobody", (), 9000)], 0)
    assert (row["sent"], row["answered"], row["refused"]) == (0, 0, "No such device")
    with pytest.raises(OSError, match="No such device"):
        Udp("none0", HERE)


def test_connections_and_what_becomes_of_them() -> None:
    with listen(THERE, 0) as good, listen(THERE, 0, 0) as full, socket.socket() as filler:
        ports = [good.getsockname()[1], full.getsockname()[1]]
        # A listener whose queue is full lets SYNs fall, as a firewall does.
        filler.connect((THERE, ports[1]))
        with listen(THERE, 0) as gone:
            free = gone.getsockname()[1]
        begun = time.monotonic()
        found = connect([("lo", HERE, THERE, port) for port in (*ports, free)], 0.7)
        assert 0.6 < time.monotonic() - begun < 6
        assert list(found.values()) == ["ok", "timeout", "refused"]
        # Nothing keeps the port busy: an engine that binds it without SO_REUSEADDR can.
        good.close()
        with socket.socket() as engine:
            engine.bind((THERE, ports[0]))


def test_an_address_that_is_not_the_nodes_is_told() -> None:
    assert connect([("lo", "192.0.2.1", THERE, 9)], 0.3) == {("lo", "192.0.2.1", THERE, 9): "Cannot assign requested address"}


def test_the_launchs_ports(nodes: t.Callable[[str], Node]) -> None:
    with listen("127.0.0.1", 0) as probe_socket:
        free = probe_socket.getsockname()[1]
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen(1)
        port = taken.getsockname()[1]
        node = nodes(THERE)
        found = node.listener.open_ports([THERE], [free, port, free])
        assert (found["bound"], found["unbound"]) == ([free], [])
        (entry,) = found["in_use"]
        assert entry["port"] == port and entry["process"] == pathlib.Path("/proc/self/comm").read_text().strip()
        (row,) = probe([node.target(ports=[free])], 1)
        assert row["tcp"] == {free: "ok"}
        node.end()
        # They are free again before the task goes on.
        with socket.socket() as engine:
            engine.bind((THERE, free))


def test_a_port_on_an_address_that_is_not_there_is_told() -> None:
    listener = Listener(secrets.token_hex(32), [], 1)
    assert listener.open_ports(["192.0.2.1"], [29501]) == {
        "bound": [],
        "in_use": [],
        "unbound": [{"port": 29501, "error": "Cannot assign requested address"}],
    }
    listener.close()


# Bandwidth.


def step(number: int, kind: str, here: Node, there: Node, **more: t.Any) -> dict[str, t.Any]:
    known = {"step": number, "kind": kind, "row": number, "peer": there.address, "netdev": "lo", "address": here.address}
    reached = {"peer_address": there.address, "control": there.control, "token": there.token}
    return {**known, **reached, "seconds": 0.4, "speed_mbps": None, "rdma": None, "peer_rdma": None, **more}


class Runner:
    """Runs nothing, and answers what it was given, the last one for ever."""

    def __init__(self, *answers: tuple[int, str, str]) -> None:
        self.answers, self.commands = list(answers), []  # type: ignore[var-annotated]

    def __call__(self, command: list[str]) -> tuple[int, str, str]:
        self.commands.append(command)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


TOOLS = {"ib_write_bw": "/usr/bin/ib_write_bw", "timeout": "/usr/bin/timeout"}


def take(*parts: tuple[Node, list[dict[str, t.Any]], Runner]) -> list[list[dict[str, t.Any]]]:
    """All nodes take their steps at the same time."""
    found: dict[int, list[dict[str, t.Any]]] = {}

    def one(at: int, node: Node, steps: list[dict[str, t.Any]], runner: Runner) -> None:
        found[at] = Steps(node.token, runner, TOOLS).take(steps)

    threads = [threading.Thread(target=one, args=(at, *part)) for at, part in enumerate(parts)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    return [found[at] for at in range(len(parts))]


def test_both_directions_one_after_the_other(nodes: t.Callable[[str], Node]) -> None:
    here, there = nodes(HERE), nodes(THERE)
    nothing = Runner((1, "", ""))
    found = take(
        (here, [step(1, "send", here, there), step(2, "receive", here, there)], nothing),
        (there, [step(1, "receive", there, here), step(2, "send", there, here)], nothing),
    )
    for number, ((rate,), _name) in enumerate(zip(found, "ab", strict=True), 1):
        assert (rate["row"], rate["by"], rate["error"], rate["rdma_error"]) == (number, "tcp", None, None)
        # On the loopback nothing is slower than the processor.
        assert rate["mb_s"] > 10 and 0.3 < rate["busy"] <= 1
    assert nothing.commands == []


@pytest.mark.parametrize(
    ("speed", "rates", "expected", "tries"),
    [
        (10000, [(1200.0, 0.9)], (1200.0, 0.9), 1),
        # The processor was the limit: perhaps another time it is not, and the best is what the link can do at least.
        (10000, [(90.0, 0.9), (1100.0, 0.8)], (1100.0, 0.8), 2),
        (10000, [(90.0, 0.9), (80.0, 0.8), (95.0, 0.7)], (95.0, 0.7), 3),
        (10000, [(90.0, 0.0), (80.0, 0.0), (70.0, 0.0)], (90.0, 0.0), 3),
        # The link was: that will be so again.
        (10000, [(120.0, 0.1)], (120.0, 0.1), 1),
        # No more is asked of TCP than it can do on any machine.
        (200000, [(1000.0, 0.9)], (1000.0, 0.9), 1),
        (None, [(1.0, 0.9)], (1.0, 0.9), 1),
    ],
)
def test_a_busy_machine_gets_another_try(
    nodes: t.Callable[[str], Node],
    monkeypatch: pytest.MonkeyPatch,
    speed: int | None,
    rates: list[tuple[float, float]],
    expected: tuple[float, float],
    tries: int,
) -> None:
    answers = [{"mb_s": megabytes, "busy": busy, "bytes": 1, "error": None} for megabytes, busy in rates]
    done: list[t.Any] = []
    monkeypatch.setattr(stepping.rate, "send", lambda *given: (done.append(given), answers[len(done) - 1])[1])
    here, there = nodes(HERE), nodes(THERE)
    (rate,), _nothing = take(
        (here, [step(1, "send", here, there, speed_mbps=speed)], Runner((1, "", ""))),
        (there, [step(1, "receive", there, here, speed_mbps=speed)], Runner((1, "", ""))),
    )
    assert ((rate["mb_s"], rate["busy"]), len(done)) == (expected, tries)


def test_a_sender_that_tries_again_is_waited_for(nodes: t.Callable[[str], Node], monkeypatch: pytest.MonkeyPatch) -> None:
    def send(*_given: t.Any) -> dict[str, t.Any]:
        time.sleep(0.5)
        return {"mb_s": 90.0, "busy": 0.9, "bytes": 1, "error": None}

    monkeypatch.setattr(stepping.rate, "send", send)
    monkeypatch.setattr(stepping.rate, "MEET", 0.5)
    here, there = nodes(HERE), nodes(THERE)
    (one,), (other,) = take(
        (here, [step(1, "send", here, there, speed_mbps=10000), step(2, "receive", here, there)], Runner((1, "", ""))),
        (there, [step(1, "receive", there, here), step(2, "send", there, here, speed_mbps=10000)], Runner((1, "", ""))),
    )
    assert [(rate["mb_s"], rate["error"]) for rate in (one, other)] == [(90.0, None), (90.0, None)]


def test_a_receiver_lets_its_sender_in_at_that_step_only(nodes: t.Callable[[str], Node], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stepping.rate, "MEET", 0.4)
    here, there = nodes(HERE), nodes(THERE)
    steps = [step(5, "send", here, there), step(7, "send", here, there)]
    # The other one is at step 6: it never comes to 5, and isn't waited for again.
    begun = time.monotonic()
    with contextlib.closing(own(there.token)) as listener:
        assert listener.ask({"do": "step", "step": 6, "port": 0}, 2) == {"step": 6}
        (rates,) = take((here, steps, Runner((1, "", ""))))
    assert [rate["error"] for rate in rates] == [f"{THERE} was not ready for the test within 0 s", f"{THERE} was not ready for an earlier test"]
    assert [rate["mb_s"] for rate in rates] == [None, None] and time.monotonic() - begun < 8


def test_a_sender_that_never_comes(nodes: t.Callable[[str], Node], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stepping.rate, "MEET", 0.2)
    here, there = nodes(HERE), nodes(THERE)
    begun = time.monotonic()
    assert take((here, [step(1, "receive", here, there), step(2, "send", here, there)], Runner((1, "", "")))) == [
        [{"row": 2, "mb_s": None, "by": None, "busy": None, "error": f"{THERE} was not ready for an earlier test", "rdma_error": None}]
    ]
    assert time.monotonic() - begun < 8


def test_a_peer_that_has_gone(nodes: t.Callable[[str], Node]) -> None:
    here, there = nodes(HERE), nodes(THERE)
    there.end()
    ((rate,),) = take((here, [step(1, "send", here, there)], Runner((1, "", ""))))
    assert rate["error"] == f"the test with {THERE} broke off: Connection refused"


MINE, THEIRS = {"hca": "rocep1s0f0", "port": 1, "gid_index": 3}, {"hca": "roceP2p1s0f1", "port": 1, "gid_index": 5}
GOOD = (0, " #bytes #iterations BW peak[Gb/sec] BW average[Gb/sec] MsgRate[Mpps]\n 1048576    6200           0.00               13.02\t\t     0.001552\n", "")


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        # The other end's has not come up yet when it is called for the first time.
        ([(1, "", "Couldn't connect to 127.0.0.32:18515\n"), GOOD], {"mb_s": 1627.5, "by": "ib_write_bw", "rdma_error": None}),
        (
            [(1, "", " Port number 1 state is Down\n Couldn't set the link layer\n Couldn't get context for the device\n")],
            {"by": "tcp", "rdma_error": "ib_write_bw from rocep1s0f0 to 127.0.0.32: Couldn't get context for the device"},
        ),
        ([(124, "", "")], {"by": "tcp", "rdma_error": "ib_write_bw from rocep1s0f0 to 127.0.0.32: it took too long"}),
    ],
    ids=["slow to come up", "no link", "hangs"],
)
def test_rdma_where_both_ends_have_it(nodes: t.Callable[[str], Node], answers: list[tuple[int, str, str]], expected: dict[str, t.Any]) -> None:
    here, there = nodes(HERE), nodes(THERE)
    client, server = Runner(*answers), Runner(GOOD)
    (rate,), nothing = take(
        (here, [step(1, "send", here, there, rdma=MINE, peer_rdma=THEIRS)], client),
        (there, [step(1, "receive", there, here, rdma=THEIRS, peer_rdma=MINE)], server),
    )
    assert nothing == [] and {key: rate[key] for key in expected} == expected and rate["mb_s"] > 0
    (command,) = server.commands
    port = command[command.index("-p") + 1]
    options = ["-p", port, "-s", "1048576", "-q", "4", "-D", "1", "-F", "--report_gbits"]
    guard = ["/usr/bin/timeout", "--kill-after=1", "7", "/usr/bin/ib_write_bw"]
    assert command == [*guard, "-d", "roceP2p1s0f1", "-i", "1", "-x", "5", *options]
    assert client.commands[-1] == [*guard, "-d", "rocep1s0f0", "-i", "1", "-x", "3", *options, THERE]
    assert len(client.commands) == len(answers)


@pytest.mark.parametrize("lacking", [{"rdma": None}, {"peer_rdma": None}])
def test_tcp_where_one_end_has_no_rdma(nodes: t.Callable[[str], Node], lacking: dict[str, t.Any]) -> None:
    here, there = nodes(HERE), nodes(THERE)
    client, server = Runner(GOOD), Runner(GOOD)
    turned = {"rdma": THEIRS, "peer_rdma": MINE, **({"peer_rdma": None} if "rdma" in lacking else {"rdma": None})}
    (rate,), _nothing = take(
        (here, [step(1, "send", here, there, **{"rdma": MINE, "peer_rdma": THEIRS, **lacking})], client),
        (there, [step(1, "receive", there, here, **turned)], server),
    )
    assert (rate["by"], rate["rdma_error"], client.commands, server.commands) == ("tcp", None, [], [])


# The listener's own process.

PROGRAM = """\
import sys
sys.path.insert(0, {sources!r})
from ansible_collections.sparkstack.inference.plugins.module_utils._fabric_probe_listen import Listener, start
listener = Listener({token!r}, [], {seconds})
udp, control = listener.open_rail("lo", {address!r})
start(listener)
print(control)
"""


def started(token: str, seconds: float) -> int:
    """Start a listener by a program that ends at once, and tell its port. That its end is seen shows that nothing holds its output."""
    program = PROGRAM.format(sources=str(SOURCES), token=token, seconds=seconds, address=THERE)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=20, check=True)
    # The second process must not write what the first has buffered.
    return int(json.loads(done.stdout))


def listening(port: int) -> bool:
    return connect([("lo", HERE, THERE, port)], 1.0) == {("lo", HERE, THERE, port): "ok"}


def test_a_listener_outlives_its_module_until_it_is_told() -> None:
    token = secrets.token_hex(32)
    port = started(token, 30)
    assert listening(port)
    with contextlib.closing(own(token)) as listener:
        assert listener.ask({"do": "end"}, 5) == {"counts": [], "overrun": {THERE: 0}}
    assert not listening(port)
    with pytest.raises(WireError, match="this node's listener is gone: Connection refused"):
        own(token)


def test_a_listener_that_is_told_to_end_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(selectors.DefaultSelector):  # type: ignore[misc, valid-type]
        def register(self, *given: t.Any, **more: t.Any) -> selectors.SelectorKey:
            time.sleep(0.3)
            return super().register(*given, **more)

    monkeypatch.setattr(selectors, "DefaultSelector", Slow)
    node = Node(THERE)
    told: list[dict[str, t.Any]] = []

    def end() -> None:
        with contextlib.closing(own(node.token)) as talk:
            told.append(talk.ask({"do": "end"}, 5))

    ender = threading.Thread(target=end)
    ender.start()
    node.listener.run()
    ender.join(5)
    assert told == [{"counts": [], "overrun": {THERE: 0}}]


def test_a_listener_ends_when_nobody_tells_it_anything() -> None:
    token = secrets.token_hex(32)
    port = started(token, 1.0)
    assert listening(port)
    deadline = time.monotonic() + 10
    while listening(port):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_listener_stays_as_long_as_its_node_says() -> None:
    token = secrets.token_hex(32)
    begun = time.monotonic()
    port = started(token, 2.0)
    with contextlib.closing(own(token)) as listener:
        listener.ask({"do": "stay", "seconds": 20}, 5)
    while time.monotonic() < begun + 3:
        time.sleep(0.1)
    assert listening(port)
    with contextlib.closing(own(token)) as listener:
        listener.ask({"do": "end"}, 5)


def test_only_the_nodes_own_modules_end_it(nodes: t.Callable[[str], Node]) -> None:
    node = nodes(THERE)
    with contextlib.closing(stepping.rate.reach(tcp("lo", HERE), THERE, node.control, node.token)) as peer, pytest.raises(WireError):
        peer.ask({"do": "end"}, 2)
    assert listening(node.control) and home(node.token).startswith("\0fabric-probe-")
