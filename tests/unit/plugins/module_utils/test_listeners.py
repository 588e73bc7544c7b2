# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Who listens on a port, and on which addresses one can: with the kernel's own lines and with real sockets."""

from __future__ import annotations

import os
import socket

import pytest

from ansible_collections.sparkstack.inference.plugins.module_utils import _listeners

# Two lines of a real /proc/net/tcp: a listener on 0.0.0.0:8000, and a connection of the same local port.
TABLE = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000:1F40 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 41235 1 0000000000000000 100 0 0 10 0
   1: 0B00A8C0:1F40 0C00A8C0:C350 01 00000000:00000000 00:00000000 00000000     0        0 41236 1 0000000000000000 20 4 30 10 -1
"""


@pytest.mark.parametrize("ports, found", [([8000], {"41235": 8000}), ([8001], {}), ([], {})])
def test_only_listening_sockets_on_the_wanted_ports_count(ports: list[int], found: dict[str, int]) -> None:
    assert _listeners.parse(TABLE, ports) == found


def test_a_real_listener_is_found_with_its_process() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        (entry,) = _listeners.listeners([port])
        assert (entry["port"], entry["pid"]) == (port, os.getpid())
        assert _listeners.listeners([]) == []


@pytest.mark.parametrize("address, own", [("127.0.0.1", True), ("0.0.0.0", True), ("192.0.2.1", False), ("nonsense", False)])
def test_an_address_is_the_nodes_own_or_not(address: str, own: bool) -> None:
    assert _listeners.is_own(address) is own
