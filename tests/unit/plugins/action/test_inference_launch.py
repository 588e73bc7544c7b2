# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The controller's half of inference_launch, with a scripted node."""

from __future__ import annotations

import json
import types
import typing as t

import pytest
from ansible.errors import AnsibleActionFail

from ansible_collections.sparkstack.inference.plugins.action import inference_launch as subject

KEY, TOKEN = "sk-test-4711", "hf_test_0815"
IMAGE = {"identity": "sha256:aa", "architecture": "arm64", "size_bytes": 1}
RANK: dict[str, t.Any] = {
    "deployment": "d",
    "engine": "vllm",
    "image": "vllm:1",
    "model": "/srv/models/m",
    "rank": 1,
    "ranks": 2,
    "address": "192.168.200.12",
    "head_address": "192.168.200.11",
    "environment": {"HF_TOKEN": TOKEN},
    "api_key": KEY,
    "launch_id": "L1",
    "verify_arguments": False,
}
DOCKER = "community.docker.docker_container"


@pytest.fixture(autouse=True)
def base(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject.ActionBase, "run", lambda self, tmp=None, task_vars=None: {})


class Node:
    """What the node answers, and how it was asked."""

    def __init__(self, image: dict[str, t.Any] | None = IMAGE, fails: str = "", foreign: str | None = None) -> None:
        self.image, self.fails, self.foreign = image, fails, foreign
        self.containers: list[dict[str, t.Any]] = []
        self.left: list[str] = []
        self.written: list[tuple[str, str]] = []
        self.calls: list[tuple[str, dict[str, t.Any], bool]] = []

    def run(self, check_mode: bool = False, **arguments: t.Any) -> dict[str, t.Any]:
        task = types.SimpleNamespace(args={}, check_mode=check_mode, async_val=0, diff=True, no_log=False)
        action = subject.ActionModule.__new__(subject.ActionModule)
        action._task = task

        def execute(module_name: str, module_args: dict[str, t.Any], task_vars: object) -> dict[str, t.Any]:
            self.calls.append((module_name, module_args, task.no_log))
            if module_name == self.fails:
                return {"failed": True, "msg": "it broke", "invocation": {"module_args": module_args}}
            if module_name == DOCKER:
                return {"container": {"Id": "c", "Config": {"Env": [f"{key}={value}" for key, value in module_args.get("env", {}).items()]}}}
            if module_name.endswith("engine_options_info"):
                return {"parser": None, "problem": "the image is not there"}
            found = {"containers": self.containers, "unused_secrets": self.left, "foreign": self.foreign, "image": self.image}
            return {"docker": {"reachable": True}, **found}

        action._execute_module = execute
        shell = types.SimpleNamespace(tmpdir="/var/tmp/x", join_path=lambda *parts: "/".join(parts))
        action._connection = types.SimpleNamespace(_shell=shell)
        action._make_tmp_path = lambda: shell.tmpdir
        action._transfer_data = lambda path, text: self.written.append((path, text))
        defaults = {name: option.get("default") for name, option in subject.ARGUMENTS.items()}
        action.validate_argument_spec = lambda argument_spec, required_if: (None, {**defaults, **RANK, **arguments})
        result: dict[str, t.Any] = action.run(None, {})
        assert task.no_log is False
        return result


def test_secrets_reach_the_container_and_nothing_else() -> None:
    node = Node()
    result = node.run()
    assert result["changed"] is True and result["actions"] == ["start d-rank1"]
    assert node.written == [("/var/tmp/x/variables", f"HF_TOKEN={TOKEN}\nVLLM_API_KEY={KEY}\n")]
    kept = {module.rpartition(".")[2]: asked for module, asked, _unlogged in node.calls}
    assert kept["file"]["mode"] == "0700" and kept["copy"]["mode"] == "0400"
    assert kept["copy"]["dest"] == "/var/lib/sparkstack/secrets/d-rank1.env"
    elsewhere = json.dumps(result) + json.dumps(kept)
    assert KEY not in elsewhere and TOKEN not in elsewhere


def test_an_option_that_is_null_is_missing() -> None:
    node = Node()
    with pytest.raises(AnsibleActionFail, match="state is started but all of the following are missing: model, rank"):
        node.run(model=None, rank=None)
    assert not node.calls


def test_the_call_that_carries_secrets_is_not_written_to_the_nodes_journal() -> None:
    node = Node()
    node.run()
    assert [(module.rpartition(".")[2], unlogged) for module, _asked, unlogged in node.calls] == [
        ("inference_info", False),
        ("file", False),
        ("copy", False),
        ("docker_container", True),
    ]


def test_a_failure_of_docker_tells_why_and_no_secret() -> None:
    node = Node(fails=DOCKER)
    with pytest.raises(AnsibleActionFail) as caught:
        node.run()
    assert str(caught.value) == f"{DOCKER}: it broke"
    assert KEY not in json.dumps(caught.value.result)


def test_check_mode_predicts_a_start_with_an_image_that_is_still_to_come() -> None:
    node = Node(image=None)
    assert node.run(check_mode=True, verify_arguments=True)["actions"] == ["start d-rank1"]
    with pytest.raises(AnsibleActionFail, match="bring it there first"):
        node.run(verify_arguments=True)


def test_a_container_of_somebody_else_with_the_ranks_name_is_not_removed() -> None:
    node = Node(foreign="nginx:1")
    with pytest.raises(AnsibleActionFail, match="The name d-rank1 belongs to a container of nginx:1 that this collection did not start"):
        node.run()
    assert [module for module, _asked, _unlogged in node.calls] == ["sparkstack.inference.inference_info"]
    assert node.calls[0][1]["container"] == "d-rank1"


SECRETS = "/var/lib/sparkstack/secrets"


@pytest.mark.parametrize("check_mode", [False, True])
def test_with_the_ranks_their_secrets_go_also_of_one_that_was_removed_by_hand(check_mode: bool) -> None:
    node = Node()
    node.containers = [{"name": "d-rank1", "running": True, "spec": {"secrets": f"{SECRETS}/d-rank1.env"}}]
    node.left = [f"{SECRETS}/d-rank3.env"]
    result = node.run(check_mode, state="absent")
    assert result["changed"] and result["actions"] == ["remove d-rank1", f"delete {SECRETS}/d-rank3.env"]
    gone = [asked["path"] for module, asked, _unlogged in node.calls if module == "ansible.builtin.file"]
    assert gone == ([] if check_mode else [f"{SECRETS}/d-rank1.env", f"{SECRETS}/d-rank3.env"])
    assert "secret variables" in result["diff"]["before"] and result["diff"]["after"] == ""


def test_a_label_names_no_file_that_is_removed_elsewhere() -> None:
    node = Node()
    node.containers = [{"name": "d-rank1", "running": True, "spec": {"secrets": "/etc/passwd"}}]
    node.run(state="absent")
    assert "ansible.builtin.file" not in [module for module, _asked, _unlogged in node.calls]


def test_ranks_that_are_stopped_keep_their_secrets() -> None:
    node = Node()
    node.containers = [{"name": "d-rank1", "running": False, "spec": {"secrets": f"{SECRETS}/d-rank1.env"}}]
    node.left = [f"{SECRETS}/d-rank3.env"]
    assert node.run(state="stopped")["changed"] is False


def test_over_ray_a_rank_needs_to_know_who_is_to_come() -> None:
    ray = {**RANK, "executor": "ray"}
    with pytest.raises(AnsibleActionFail, match="executor ray needs the addresses of all 2 ranks: set addresses"):
        Node().run(**ray)
    with pytest.raises(AnsibleActionFail, match="SGLang has no executor 'ray': take mp"):
        Node().run(**{**ray, "engine": "sglang"})
    found = Node().run(**ray, addresses=["192.168.200.11", "192.168.200.12"])
    assert "192.168.200.11,192.168.200.12" in found["command"] and "--block" in found["command"]
