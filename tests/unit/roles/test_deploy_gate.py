# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where the preflight stands in a deploy: before anything is touched, only for what is to start, and never in the way of a run that finds nothing to do."""

from __future__ import annotations

import json
import pathlib
import sys
import typing as t

import pytest
import yaml
from test_preflight_role import INPUTS, ROOT, Preflight
from test_tp_launch_ways import STAND_IN, TAKES

sys.path[:0] = [str(ROOT / "tests" / "unit" / "plugins"), str(ROOT / "tests" / "unit" / "plugins" / "plugin_utils")]

from preflighting import Scene  # noqa: E402  (the path above must come first)

STUBS = {
    "tp_launch/inputs": [{"ansible.builtin.set_fact": {"tp_launch_inputs": {**INPUTS, **TAKES}}}],
    "tp_launch/reach": [],
    "tp_launch/plan": [{"ansible.builtin.set_fact": {"tp_launch_plan": "{{ wanted_plan }}", "tp_launch_node": {"info": {"image": {"identity": "i"}}}}}],
    "tp_launch/carry_out": [{"sparkstack.inference.inference_launch": {}}],
    "tp_launch/unlock": [{"sparkstack.inference.deployment_lock": {}}],
    "nccl_env/main": [{"sparkstack.inference.fabric_facts": {}}, {"sparkstack.inference.gpu_memory_facts": {}}],
    "model_staging/main": [],
    "node_prep/main": [{"sparkstack.inference.page_cache_release": {}}],
    "image_sync/main": [],
}  # fmt: skip


class Deploy(Preflight):
    """The real playbook and the real role, with stand-ins for the other roles."""

    def __init__(self, folder: pathlib.Path) -> None:
        super().__init__(folder)
        here = folder / "ansible_collections" / "sparkstack" / "inference"
        (here / "playbooks").symlink_to(ROOT / "playbooks")
        for name in ("filter", "lookup"):
            (here / "plugins" / name).symlink_to(ROOT / "plugins" / name)
        for name in ("inference_launch", "deployment_lock", "page_cache_release"):
            (here / "plugins" / "action" / f"{name}.py").write_text(STAND_IN)
        for name, tasks in STUBS.items():
            path = here / "roles" / name.replace("/", "/tasks/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.with_suffix(".yml").write_text(yaml.safe_dump(tasks or [{"ansible.builtin.meta": "noop"}]))
        # How a job ends is the real role's.
        for name in ("tasks/end.yml", "tasks/outcome.yml", "vars/main.yml"):
            path = here / "roles" / "tp_launch" / name
            path.parent.mkdir(exist_ok=True)
            path.symlink_to(ROOT / "roles" / "tp_launch" / name)

    def deploy(self, scene: Scene, action: str, *options: str) -> tuple[int, str]:
        """How a deploy ended whose plan is this action, and what it wrote."""
        self.answer(scene)
        plan = {"action": action, "idle": action == "none", "staged": True, "ranks": [{"launch": {"gpus": True}}] * 2}
        return self.run("sparkstack.inference.deploy", "-e", "target=all", "-e", json.dumps({"wanted_plan": plan}), *options)

    def done(self) -> list[str]:
        """What was done on the head, of what counts."""
        return [name for name in ("fabric_probe", "page_cache_release", "inference_launch", "deployment_lock") if self.calls(name)]


@pytest.fixture
def role(tmp_path: pathlib.Path) -> Deploy:
    return Deploy(tmp_path)


def cut() -> Scene:
    scene = Scene()
    scene.lose("spark1", "spark2")
    return scene


@pytest.mark.parametrize(
    ("scene", "action", "options", "code", "done"),
    [
        (Scene, "start", (), 0, ["fabric_probe", "page_cache_release", "inference_launch"]),
        (cut, "restart", (), 2, ["fabric_probe", "deployment_lock"]),
        (cut, "none", (), 0, ["inference_launch"]),
        (cut, "start", ("--skip-tags", "preflight"), 0, ["page_cache_release", "inference_launch"]),
        (cut, "start", ("-e", "deploy_preflight=false"), 0, ["page_cache_release", "inference_launch"]),
        (cut, "start", ("-e", '{"preflight_skip": ["reach"]}'), 0, ["fabric_probe", "page_cache_release", "inference_launch"]),
    ],
)
def test_the_gate(role: Deploy, scene: t.Callable[[], Scene], action: str, options: tuple[str, ...], code: int, done: list[str]) -> None:
    found, told = role.deploy(scene(), action, *options)
    assert (found, role.done()) == (code, done), told
    if code:
        # The sentence and the remedy, as what the run ended with.
        assert told.count("though what spark2 sends arrives at spark1. Check the cable and the switch") >= 2
    elif "fabric_probe" in done:
        assert "Preflight of 2 nodes (spark1, spark2): ready" in told and "ready    address" not in told
    # What the plan has gathered is not gathered again.
    assert len(role.calls("fabric_facts")) == len(role.calls("gpu_memory_facts")) == 1


def test_a_plan_that_fails_once_the_image_is_there_gives_the_lock_back(role: Deploy) -> None:
    # A head without the image: its options are known, and found wrong, only after it has come.
    tasks: list[t.Any] = [
        {"ansible.builtin.fail": {"msg": "vLLM has no option --max-modle-len."}, "when": "tp_launch_plan is defined"},
        {"ansible.builtin.set_fact": {"tp_launch_plan": "{{ wanted_plan }}", "tp_launch_node": {"info": {"image": None}}}},
    ]
    plan = role.folder / "ansible_collections/sparkstack/inference/roles/tp_launch/tasks/plan.yml"
    plan.write_text(yaml.safe_dump(tasks))
    code, told = role.deploy(Scene(), "start")
    assert (code, role.done()) == (2, ["fabric_probe", "page_cache_release", "deployment_lock"]), told
    assert told.count("vLLM has no option --max-modle-len.") >= 2
    # In check mode nothing comes to the head, and there is nothing to plan again.
    code, told = role.deploy(Scene(), "start", "--check")
    assert code == 0 and len(role.calls("inference_launch")) == 1, told
