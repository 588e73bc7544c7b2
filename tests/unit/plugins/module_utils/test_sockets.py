# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who listens on a port and who talks to it: with the kernel's own lines and with real sockets."""

from __future__ import annotations

import os
import pathlib
import socket
import typing as t

import pytest

from ansible_collections.sparkstack.inference.plugins.module_utils import _sockets

HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
# Lines of a real /proc/net/tcp: a listener on 0.0.0.0:29501, two of its connections (one of the node itself), one that is
# being opened to 192.168.200.11:29501, and one that is closing.
TCP = HEAD + (
    "   0: 00000000:733D 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 41235 1 0000000000000000 100 0 0 10 0\n"
    "   1: 0BC8A8C0:733D 0CC8A8C0:C350 01 00000000:00000000 00:00000000 00000000     0        0 41236 1 0000000000000000 20 4 30 10 -1\n"
    "   2: 0BC8A8C0:733D 0BC8A8C0:C352 01 00000000:00000000 00:00000000 00000000     0        0 41237 1 0000000000000000 20 4 30 10 -1\n"
    "   3: 0CC8A8C0:B4A2 0BC8A8C0:733D 02 00000001:00000000 01:000000D8 00000002     0        0 50001 2 0000000000000000 200 0 0 1 7\n"
    "   4: 0BC8A8C0:733D 0DC8A8C0:C354 06 00000000:00000000 03:00001770 00000000     0        0 0 3 0000000000000000\n"
)
# The same of a socket of both families: its peer of IPv4 stands there as ::ffff:192.168.200.12.
TCP6 = (
    HEAD
    + """\
   0: 00000000000000000000000000000000:733D 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 61 1 0 100 0 0 10 0
   1: 0000000000000000FFFF00000BC8A8C0:733D 0000000000000000FFFF00000CC8A8C0:C350 01 00000000:00000000 00:00000000 00000000 0 0 62 1 0 20 4 1 10 -1
   2: 000080FE000000000000000001000000:733D 000080FE000000000000000002000000:C350 01 00000000:00000000 00:00000000 00000000 0 0 63 1 0 20 4 1 10 -1
"""
)


def test_the_kernels_lines() -> None:
    listening, peer, *_rest = _sockets.parse(TCP, [29501])
    assert listening == ("0.0.0.0", 29501, "0.0.0.0", 0, _sockets.LISTEN, "41235")
    assert peer == ("192.168.200.11", 29501, "192.168.200.12", 50000, _sockets.ESTABLISHED, "41236")
    assert [(s.address, s.peer) for s in _sockets.parse(TCP6, [29501])] == [
        ("::", "::"),
        ("192.168.200.11", "192.168.200.12"),
        ("fe80::1", "fe80::2"),
    ]
    assert _sockets.parse(TCP, [29502]) == _sockets.parse(TCP, []) == _sockets.parse("", [29501]) == []


@pytest.mark.parametrize(
    ("table", "host", "listening", "connected", "dialing"),
    [
        (TCP, "192.168.200.11", ["41235"], ["192.168.200.12"], ["192.168.200.11"]),
        (TCP, None, ["41235"], ["192.168.200.12"], ["192.168.200.11"]),
        (TCP6, "192.168.200.11", ["61"], ["192.168.200.12", "fe80::2"], []),
        # What is dialled at the same port of another host is another rendezvous.
        (TCP, "192.168.200.13", ["41235"], ["192.168.200.12"], []),
        # A listener on another address alone is none of this rendezvous.
        (TCP.replace("00000000:733D", "0100007F:733D"), "192.168.200.11", [], ["192.168.200.12"], ["192.168.200.11"]),
    ],
)
def test_who_is_at_the_rendezvous(table: str, host: str | None, listening: list[str], connected: list[str], dialing: list[str]) -> None:
    assert _sockets.around(_sockets.parse(table, [29501]), host, 29501) == (listening, connected, dialing)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("192.168.200.11:29501", ("192.168.200.11", 29501)),
        ("spark1:25000", ("spark1", 25000)),
        ("[fd00::1]:29501", ("fd00::1", 29501)),
        ("fd00::1", ("fd00::1", None)),
        ("spark1", ("spark1", None)),
        ("", ("", None)),
    ],
)
def test_the_parts_of_a_rendezvous(text: str, parts: tuple[str, int | None]) -> None:
    assert _sockets.split(text) == parts


def test_a_real_listener_is_found_with_its_process() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        (entry,) = _sockets.listeners([port])
        assert (entry["port"], entry["pid"]) == (port, os.getpid())
        assert _sockets.listeners([]) == []
        # Somebody else's connection may have the number at its end.
        (inode,) = (s.inode for s in _sockets.sockets([port]) if (s.address, s.port) == ("127.0.0.1", port) and not s.peer_port)
        # Looked for among the container's own processes first; a process that is gone holds nothing.
        assert _sockets.owners({inode}, first=[2**22 + 1, os.getpid()])[inode]["pid"] == os.getpid()


def test_real_connections() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname(), source_address=("127.0.0.2", 0)):
        port = server.getsockname()[1]
        listening, connected, dialing = _sockets.around(_sockets.sockets([port]), "127.0.0.1", port)
        assert (len(listening), connected, dialing) == (1, ["127.0.0.1", "127.0.0.2"], [])


def test_the_container_that_owns_a_socket(tmp_path: pathlib.Path, folder_of: t.Callable[[dict[str, str]], str]) -> None:
    identity = "ab" * 32
    root = folder_of(
        {
            "proc/7/comm": "VLLM::Worker\n",
            "proc/7/cgroup": f"0::/system.slice/docker-{identity}.scope\n",
            "proc/9/comm": "python3\n",
            "proc/self/net/tcp": TCP,
        }
    )
    for pid, inode in (("7", "41235"), ("9", "1")):
        (tmp_path / "proc" / pid / "fd").mkdir()
        (tmp_path / "proc" / pid / "fd" / "3").symlink_to(f"socket:[{inode}]")
    assert _sockets.listeners([29501, 8000], f"{root}/proc") == [{"port": 29501, "pid": 7, "process": "VLLM::Worker", "container": identity}]
    assert _sockets.owners({"77"}, f"{root}/proc") == {}


@pytest.mark.parametrize("address, own", [("127.0.0.1", True), ("0.0.0.0", True), ("192.0.2.1", False), ("nonsense", False)])
def test_an_address_is_the_nodes_own_or_not(address: str, own: bool) -> None:
    assert _sockets.is_own(address) is own


def test_another_preflights_listener_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    probe = {"port": 8000, "pid": 7, "process": "fabric-probe", "container": None}
    server = {"port": 8000, "pid": 9, "process": "vllm", "container": "c"}
    looks = [[probe], [probe], [server], []]
    monkeypatch.setattr(_sockets, "listeners", lambda _ports, _proc: looks.pop(0))
    monkeypatch.setattr(_sockets.time, "sleep", lambda _seconds: None)
    # What is no probe's is told at once.
    assert _sockets.settled([8000]) == [server] and looks == [[]]
    looks[:] = [[probe]] * 2
    assert _sockets.settled([8000], patience=0) == [probe] and len(looks) == 1
