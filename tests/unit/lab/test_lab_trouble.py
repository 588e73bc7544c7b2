# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lab's wrong set-ups: what they tell ip and nft, that a bad value is one sentence, and that mending leaves nothing."""

from __future__ import annotations

import typing as t
from pathlib import Path

import pytest
from sparklab import cli, trouble
from sparklab.system import LabError

HOSTS = "127.0.0.1 localhost\n127.0.1.1 spark2\n"


@pytest.fixture(name="calls")
def _calls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[str, str]]:
    """What was run, and what it was told."""
    found: list[tuple[str, str]] = []
    monkeypatch.setattr(trouble, "run", lambda *words, input="", **_options: found.append((" ".join(words), input)))
    (tmp_path / "spark2").touch()
    monkeypatch.setattr(trouble, "NETNS", tmp_path)
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/hosts").write_text(HOSTS)
    return found


CASES: list[tuple[str, str, list[tuple[str, str]]]] = [
    ("mtu", "1500", [("ip -n spark2 link set enp1s0f0np0 mtu 1500", "")]),
    (
        "address",
        "192.168.210.12/24",
        [("ip -n spark2 addr flush dev enp1s0f0np0", ""), ("ip -n spark2 addr add 192.168.210.12/24 dev enp1s0f0np0", "")],
    ),
    ("also-address", "192.168.200.11/24", [("ip -n spark2 addr add 192.168.200.11/24 dev enp1s0f0np0", "")]),
    (
        "drop",
        "29501",
        [
            (
                "ip netns exec spark2 nft -f -",
                'table inet labfault { chain input { type filter hook input priority 0; iifname != "lo" tcp dport 29501 drop; }; }\n',
            )
        ],
    ),
    (
        "reject",
        "8000",
        [
            (
                "ip netns exec spark2 nft -f -",
                "table inet labfault { chain input { type filter hook input priority 0; "
                'iifname != "lo" tcp dport 8000 reject with icmp type admin-prohibited; }; }\n',
            )
        ],
    ),
    (
        "deaf",
        "",
        [
            (
                "ip netns exec sparklab nft -f -",
                "table bridge labfaultspark2 { chain deaf { type filter hook forward priority 0; oifname f2 ether type ip drop; }; }\n",
            )
        ],
    ),
    (
        "mute",
        "",
        [
            (
                "ip netns exec sparklab nft -f -",
                "table bridge labfaultspark2 { chain mute { type filter hook forward priority 0; iifname f2 ether type ip drop; }; }\n",
            )
        ],
    ),
]


@pytest.mark.parametrize(("kind", "value", "expected"), CASES)
def test_faults(calls: list[tuple[str, str]], tmp_path: Path, kind: str, value: str, expected: list[tuple[str, str]]) -> None:
    trouble.make("spark2", kind, value, tmp_path)
    assert calls == expected


def test_mending_leaves_nothing(calls: list[tuple[str, str]], tmp_path: Path) -> None:
    trouble.make("spark2", "hosts", "127.0.1.1=spark1", tmp_path)
    assert (tmp_path / "etc/hosts").read_text() == "127.0.1.1 spark1 # lab fault\n" + HOSTS
    trouble.mend("spark2", tmp_path)
    assert (tmp_path / "etc/hosts").read_text() == HOSTS
    assert [words for words, _told in calls[:3]] == [
        "ip -n spark2 link set enp1s0f0np0 mtu 9000",
        "ip -n spark2 addr flush dev enp1s0f0np0",
        "ip -n spark2 addr add 192.168.200.12/24 dev enp1s0f0np0",
    ]
    assert [told for _words, told in calls[3:]] == [
        "table inet labfault\ndelete table inet labfault\n",
        "table bridge labfaultspark2\ndelete table bridge labfaultspark2\n",
    ]


@pytest.mark.parametrize(
    ("kind", "value", "said"),
    [
        ("mtu", "jumbo", "'jumbo' is no MTU; give a number from 576 to 9000."),
        ("drop", "0", "'0' is no port; give a number from 1 to 65535."),
        ("address", "192.168.210.12", "'192.168.210.12' is no address with a prefix; write it like 192.168.210.12/24."),
        ("hosts", "spark1", "'spark1' is no ADDRESS=NAME; write it like 127.0.1.1=spark1."),
        ("deaf", "spark1", "The fault deaf takes no value."),
    ],
)
def test_a_bad_value_is_one_sentence(calls: list[tuple[str, str]], tmp_path: Path, kind: str, value: str, said: str) -> None:
    with pytest.raises(LabError) as error:
        trouble.make("spark2", kind, value, tmp_path)
    assert str(error.value) == said and calls == []


def test_a_node_that_is_off_has_no_faults(calls: list[tuple[str, str]], tmp_path: Path) -> None:
    with pytest.raises(LabError, match="spark3 is off"):
        trouble.make("spark3", "mtu", "1500", tmp_path)
    trouble.mend("spark3", tmp_path)
    assert calls == []


def test_the_tool_knows_each_kind() -> None:
    parsed: t.Any = cli.parser().parse_args(["fault", "spark2", "mtu", "1500"])
    assert (parsed.word, parsed.node, parsed.kind, parsed.value) == ("fault", "spark2", "mtu", "1500")
    assert all(cli.parser().parse_args(["fault", "spark2", kind]).kind == kind for kind in trouble.KINDS)
