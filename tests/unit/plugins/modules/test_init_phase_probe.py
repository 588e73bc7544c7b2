# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The module around the look: its keys are those that it documents, and its one sentence when it can't."""

from __future__ import annotations

import json
import re
import typing as t

import pytest
import yaml
from ansible.module_utils import basic

from ansible_collections.sparkstack.inference.plugins.modules import init_phase_probe

Run = t.Callable[..., "dict[str, t.Any]"]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], docker: t.Any) -> Run:
    def run_module(**arguments: t.Any) -> dict[str, t.Any]:
        arguments = {"container": "rank", "docker_host": f"unix://{docker.socket}", **arguments}
        monkeypatch.setattr(basic, "_ANSIBLE_ARGS", json.dumps({"ANSIBLE_MODULE_ARGS": arguments}).encode())
        monkeypatch.setattr(basic, "_ANSIBLE_PROFILE", "legacy", raising=False)
        with pytest.raises(SystemExit):
            init_phase_probe.main()
        return t.cast("dict[str, t.Any]", json.loads(capsys.readouterr().out))

    return run_module


def test_what_is_returned_is_documented(run: Run, docker: t.Any) -> None:
    documented = yaml.safe_load(init_phase_probe.RETURN)
    scene = documented["scene"]["contains"]
    for peers in ([], ["127.0.0.1"]):
        result = run(peers=peers)
        assert (result["changed"], result["exists"], result["scene"]["oom_kills"]) == (False, False, None)
        assert result["scene"].keys() == scene.keys()
        assert sorted(result["scene"]["reach"]) == peers
    docker.start()
    result = run()
    assert result.keys() - {"changed", "invocation"} == documented.keys()
    assert result["scene"].keys() == scene.keys()
    listed = " ".join(documented["reading"]["description"]).partition("The keys are ")[2]
    assert set(re.findall(r"C\((\w+)\)", listed)) == result["reading"].keys()


@pytest.mark.parametrize("peer", ["spark2", "192.168.200.0/24", "fd00::1", ""])
def test_a_peer_that_is_no_address(run: Run, peer: str) -> None:
    result = run(peers=["192.168.200.12", peer])
    assert result["failed"]
    assert result["msg"] == f"peers: {peer} is no IPv4 address: give the other nodes' addresses on the fabric."
