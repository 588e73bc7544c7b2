# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The module around the pure functions: what it asks the node, and its one sentence when that fails."""

from __future__ import annotations

import json
import typing as t

import pytest
from ansible.module_utils import basic
from ansible.module_utils.basic import AnsibleModule

from ansible_collections.sparkstack.inference.plugins.modules import fabric_facts

Run = t.Callable[..., dict[str, t.Any]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    def run_module(arguments: dict[str, t.Any], answer: tuple[int, str, str], ip: str | None = "/sbin/ip") -> dict[str, t.Any]:
        monkeypatch.setattr(AnsibleModule, "get_bin_path", lambda _self, _name, **_options: ip)
        monkeypatch.setattr(AnsibleModule, "run_command", lambda _self, _command, **_options: answer)
        # ansible.module_utils.testing has a helper for this since ansible-core 2.19; 2.18 is tested too.
        monkeypatch.setattr(basic, "_ANSIBLE_ARGS", json.dumps({"ANSIBLE_MODULE_ARGS": arguments}).encode())
        monkeypatch.setattr(basic, "_ANSIBLE_PROFILE", "legacy", raising=False)
        with pytest.raises(SystemExit):
            fabric_facts.main()
        return t.cast("dict[str, t.Any]", json.loads(capsys.readouterr().out))

    return run_module


def test_only_the_facts_are_returned(run: Run) -> None:
    result = run({"_ansible_check_mode": True}, (0, "[]", ""))
    assert result.keys() - {"invocation", "changed"} == {"ansible_facts"}
    assert not result.get("changed")
    assert result["ansible_facts"].keys() == {"fabric"}
    assert result["ansible_facts"]["fabric"].keys() == {
        "rails", "interfaces", "candidates", "address", "netdev", "environment", "environment_reasons", "problems",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "answer", "ip", "message"),
    [
        ({}, (0, "[]", ""), None, "There is no 'ip' on this node: install iproute2."),
        (
            {},
            (255, "", 'Option "-json" is unknown, try "ip -help".\n'),
            "/sbin/ip",
            '\'ip -json addr\' failed (Option "-json" is unknown, try "ip -help".): install iproute2 4.13 or newer.',
        ),
        (
            {"control_address": "10.0.0.1/24"},
            (0, "[]", ""),
            "/sbin/ip",
            "control_address '10.0.0.1/24' is no IPv4 address: write it like 192.168.200.11.",
        ),
        (
            {"fabric_cidr": "300.0.0.0/8"},
            (0, "[]", ""),
            "/sbin/ip",
            "fabric_cidr '300.0.0.0/8' is no IPv4 network: write it like 192.168.200.0/24.",
        ),
    ],
)
def test_failures(run: Run, arguments: dict[str, t.Any], answer: tuple[int, str, str], ip: str | None, message: str) -> None:
    result = run(arguments, answer, ip)
    assert (result["failed"], result["msg"]) == (True, message)
