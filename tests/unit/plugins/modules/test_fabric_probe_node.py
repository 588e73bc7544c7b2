# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a node tells of its interfaces before it is probed."""

from __future__ import annotations

import typing as t

import pytest
import yaml

from ansible_collections.sparkstack.inference.plugins.modules import fabric_probe_node as subject

PORT = "sys/class/infiniband/rocep1s0f0/ports/1"
SPARK = {
    "sys/class/net/enp1s0f0np0/mtu": "9000\n",
    "sys/class/net/enp1s0f0np0/operstate": "up\n",
    "sys/class/net/enp1s0f0np0/carrier": "1\n",
    "sys/class/net/enp1s0f0np0/speed": "200000\n",
    f"{PORT}/state": "4: ACTIVE\n",
    f"{PORT}/link_layer": "Ethernet\n",
    f"{PORT}/gids/0": "fe80:0000:0000:0000:4ebb:47ff:fe00:0011\n",
    f"{PORT}/gids/3": "0000:0000:0000:0000:0000:ffff:c0a8:c80b\n",
    f"{PORT}/gid_attrs/types/0": "IB/RoCE v1\n",
    f"{PORT}/gid_attrs/types/3": "RoCE v2\n",
    f"{PORT}/gid_attrs/ndevs/3": "enp1s0f0np0\n",
}


@pytest.mark.parametrize(
    ("changes", "netdev", "expected"),
    [
        ({}, "enp1s0f0np0", {"hca": "rocep1s0f0", "port": 1, "gid_index": 3}),
        ({}, "enP7s7", None),
        ({f"{PORT}/state": "1: DOWN\n"}, "enp1s0f0np0", None),
        # Without a GID of the address nothing can be sent from it.
        ({f"{PORT}/gids/3": "0000:0000:0000:0000:0000:ffff:c0a8:c80c\n"}, "enp1s0f0np0", None),
    ],
)
def test_the_rdma_device_behind_an_interface(
    folder_of: t.Callable[[dict[str, str]], str], changes: dict[str, str], netdev: str, expected: dict[str, t.Any] | None
) -> None:
    assert subject.device(netdev, "192.168.200.11", 24, folder_of({**SPARK, **changes})) == expected


def test_no_rdma_at_all(tmp_path: t.Any) -> None:
    assert subject.device("enp1s0f0np0", "192.168.200.11", 24, str(tmp_path)) is None


def test_the_loopback_is_described() -> None:
    assert subject.described("lo") == {"mtu": 65536, "speed_mbps": None, "mac": "00:00:00:00:00:00"}
    assert subject.described("none0") == {"mtu": None, "speed_mbps": None, "mac": None}


def flat(options: t.Mapping[str, t.Any], inner: str, where: str = "") -> dict[str, tuple[t.Any, ...]]:
    found: dict[str, tuple[t.Any, ...]] = {}
    for name, option in options.items():
        found[where + name] = tuple(option.get(key) for key in ("type", "required", "choices", "elements", "default"))
        found.update(flat(option.get(inner) or {}, inner, f"{where}{name}."))
    return found


def test_what_is_documented_is_what_is_taken() -> None:
    assert flat(yaml.safe_load(subject.DOCUMENTATION)["options"], "suboptions") == flat(subject.ARGUMENTS, "options")


def test_every_token_is_kept_out_of_the_logs() -> None:
    arguments = subject.ARGUMENTS
    assert all(options["token"]["no_log"] for options in (arguments, arguments["targets"]["options"], arguments["steps"]["options"]))
