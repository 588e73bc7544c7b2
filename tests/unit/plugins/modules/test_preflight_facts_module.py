# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The module: what it asks the node, and that Docker's silence is told and no failure."""

from __future__ import annotations

import json
import typing as t

import pytest
from ansible.module_utils import basic
from ansible.module_utils.basic import AnsibleModule

from ansible_collections.sparkstack.inference.plugins.modules import preflight_facts

Run = t.Callable[..., dict[str, t.Any]]
KEYS = {
    "kernel", "os", "arch", "driver", "rdma", "infiniband", "memlock", "docker", "image", "nccl", "disk", "hostname", "hosts", "listeners", "firewall", "clock",
}  # fmt: skip


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    def run_module(tools: dict[str, str], **arguments: t.Any) -> dict[str, t.Any]:
        asked: list[list[str]] = []

        def run_command(_self: AnsibleModule, command: list[str], **_options: t.Any) -> tuple[int, str, str]:
            asked.append(command)
            return (0, tools[command[0]], "") if tools[command[0]] != "fails" else (1, "no", "no")

        monkeypatch.setattr(AnsibleModule, "get_bin_path", lambda _self, name, **_options: name if name in tools else None)
        monkeypatch.setattr(AnsibleModule, "run_command", run_command)
        # ansible.module_utils.testing has a helper for this since ansible-core 2.19; 2.18 is tested too.
        monkeypatch.setattr(basic, "_ANSIBLE_ARGS", json.dumps({"ANSIBLE_MODULE_ARGS": arguments}).encode())
        monkeypatch.setattr(basic, "_ANSIBLE_PROFILE", "legacy", raising=False)
        with pytest.raises(SystemExit):
            preflight_facts.main()
        result = json.loads(capsys.readouterr().out)
        assert result.keys() - {"invocation", "changed"} == {"ansible_facts"} and not result.get("changed")
        return {**result["ansible_facts"]["preflight"], "asked": asked}

    return run_module


def test_where_nothing_answers_all_keys_are_there(run: Run) -> None:
    found = run({}, docker_socket="/nowhere/docker.sock", _ansible_check_mode=True)
    assert found.keys() - {"asked"} == KEYS and found["asked"] == []
    assert not found["docker"]["reachable"] and "/nowhere/docker.sock" in found["docker"]["error"]
    assert found["image"] is None and found["disk"] == {"model": None, "docker": None}
    assert found["firewall"] == {"tool": None, "active": False, "policy": None} and found["clock"]["synchronised"] is None


def test_tools_are_asked_and_may_fail(run: Run) -> None:
    tools = {"nft": "table inet f {\n\tchain i {\n\t\ttype filter hook input priority filter; policy drop;\n\t}\n}\n", "timedatectl": "NTPSynchronized=no\n"}
    found = run({**tools, "iptables": "-P INPUT DROP\n"}, docker_socket="/nowhere/docker.sock", model_path="/usr")
    assert found["firewall"] == {"tool": "nftables", "active": True, "policy": "drop"} and found["clock"]["synchronised"] is False
    # The old iptables is not asked where nft is: it would load its tables.
    assert [command[0] for command in found["asked"]] == ["nft", "timedatectl"]
    assert found["disk"]["model"]["exists"]
    found = run({"nft": "fails", "timedatectl": "fails"}, docker_socket="/nowhere/docker.sock")
    assert found["firewall"]["tool"] is None and found["clock"]["synchronised"] is None
    assert run({"iptables": "-P INPUT DROP\n"}, docker_socket="/nowhere/docker.sock")["firewall"]["tool"] == "iptables"


def test_who_holds_a_port_is_told_with_its_deployment() -> None:
    class Api:
        def container(self, name: str) -> dict[str, t.Any] | None:
            labels = {"a": {"sparkstack.deployment": "qwen"}, "c": {"sparkstack.collective": "qwen", "sparkstack.rank": "0"}}.get(name)
            return {"Name": "/qwen-rank0", "Config": {"Labels": labels}} if name != "gone" else None

    listeners = [{"port": port, "pid": port, "process": "python3", "container": name} for port, name in enumerate(("a", "b", "gone", None, "c"))]
    found = preflight_facts.owned(t.cast("t.Any", Api()), listeners)
    assert [entry["container"] for entry in found] == ["qwen-rank0", "qwen-rank0", None, None, "qwen-rank0"]
    assert [entry["deployment"] for entry in found] == ["qwen", None, None, None, "qwen"]
