# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The copy of the role model_staging and the playbook stage as Ansible plays them; the modules only say what a case wants."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import typing as t

import pytest
import yaml
from test_tp_launch_ways import MINE, STAND_IN

ROOT = pathlib.Path(__file__).resolve().parents[3]
WHOLE = {"complete": True, "problem": None, "digest": "d", "path": "/m", "files": 1, "bytes_total": 1}
ABSENT = {"complete": False, "problem": "The model's folder /m is not there.", "digest": None, "path": "/m", "files": 0, "bytes_total": 0}
RAILS = [
    {"address": "192.168.200.1{}", "used": True},
    {"address": "192.168.201.1{}", "used": True},
    {"address": "10.0.0.1{}", "used": False},
    {"address": None, "used": True},
]
MODULES = ("model_sync", "model_manifest_info", "fabric_facts", "docker_image_sync", "inference_info", "deployment_lock")
RECIPE = {
    "deployment": "some",
    "hosts": ["spark1", "spark2"],
    "members": ["spark1", "spark2"],
    "candidates": ["spark1", "spark2"],
    "placing": False,
    "replica": None,
    "replicas": [{"deployment": "some", "replica": None, "hosts": ["spark1", "spark2"]}],
    "model_path": "/of/recipe",
    "image": "recipe:1",
    "port": 1,
    "rendezvous_port": 2,
    "ports": [[1, 2], []],
    "ready_timeout": 9,
}
STUBS = {
    "node_prep/main": [{"sparkstack.inference.docker_image_sync": {"image": "prepared"}}],
    "image_sync/main": [{"sparkstack.inference.docker_image_sync": {"image": "{{ image_sync_image }}"}}],
    "nccl_env/main": [{"sparkstack.inference.fabric_facts": {}}],
}


class Scene:
    """A collection of the real role and playbooks, with stand-ins for modules and other roles."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        here = folder / "ansible_collections" / "sparkstack" / "inference"
        (here / "plugins" / "action").mkdir(parents=True)
        (here / "roles").mkdir()
        for name in ("roles/model_staging", "roles/tp_launch", "playbooks", "plugins/filter", "plugins/lookup", "plugins/plugin_utils", "plugins/module_utils"):
            (here / name).symlink_to(ROOT / name)
        for name in (*MODULES, "inference_plan"):
            (here / "plugins" / "action" / f"{name}.py").write_text(STAND_IN)
        for name, tasks in STUBS.items():
            path = (here / "roles" / name.replace("/", "/tasks/")).with_suffix(".yml")
            path.parent.mkdir(parents=True)
            path.write_text(yaml.safe_dump(tasks))
        self.answers: dict[str, t.Any] = {
            "model_manifest_info": [WHOLE],
            "model_sync": [{"verified": True}],
            "inference_plan": [{"plan": RECIPE}],
            "inference_info": [{"containers": [], "now": 5.0}],
            "deployment_lock": [MINE],
        }
        for number in (1, 2):
            rails = [{**rail, "address": rail["address"] and str(rail["address"]).format(number)} for rail in RAILS]
            facts = {"ansible_facts": {"fabric": {"rails": rails, "address": f"192.168.200.1{number}"}}}
            self.answers[f"fabric_facts spark{number}"] = [facts]

    def run(self, play: str, *words: str, inventory: str = "[head]\nspark1\n[workers]\nspark2\n[sparks:children]\nhead\nworkers\n") -> tuple[int, str]:
        (self.folder / "answers.json").write_text(json.dumps(self.answers))
        (self.folder / "hosts.ini").write_text(inventory)
        line = [sys.executable, "-m", "ansible", "playbook", "-i", "hosts.ini", "-c", "local", "-e", "ansible_become=false", play, *words]
        environment = {**os.environ, "WAYS": str(self.folder), "ANSIBLE_COLLECTIONS_PATH": str(self.folder), "ANSIBLE_PYTHON_INTERPRETER": sys.executable}
        done = subprocess.run(line, cwd=self.folder, env=environment, text=True, capture_output=True, check=False)
        return done.returncode, done.stdout + done.stderr

    def role(self, *words: str, **variables: t.Any) -> tuple[int, str]:
        given = {"model_staging_path": "/m", "model_staging_sync": True, **variables}
        tasks = [
            {"ansible.builtin.include_role": {"name": "sparkstack.inference.model_staging"}, "vars": given},
            {"ansible.builtin.debug": {"msg": "manifest of {{ model_staging_manifest.digest }}"}},
            {
                "ansible.builtin.debug": {
                    "msg": "{{ model_staging_moved.what }}: {{ model_staging_moved.bytes_sent // 1000 }} kB in {{ model_staging_moved.seconds }}"
                },
                "when": "model_staging_moved is defined",
            },
        ]
        (self.folder / "play.yml").write_text(yaml.safe_dump([{"hosts": "all", "gather_facts": False, "any_errors_fatal": True, "tasks": tasks}]))
        return self.run("play.yml", *words)

    def calls(self, name: str, host: str = "spark2") -> list[dict[str, t.Any]]:
        path = self.folder / f"{name} {host}"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def scene(tmp_path: pathlib.Path) -> Scene:
    return Scene(tmp_path)


def test_the_model_comes_from_the_head_over_all_rails_that_are_used(scene: Scene) -> None:
    code, told = scene.role()
    assert code == 0, told
    for number, host in enumerate(("spark1", "spark2"), start=1):
        (call,) = scene.calls("model_sync", host)
        assert (call["path"], call["source"]) == ("/m", "spark1")
        assert call["addresses"] == [f"192.168.200.1{number}", f"192.168.201.1{number}"]
        assert (call["checksum"], call["delete_extra"], call["tls"], call["transport"], call["streams"]) == (False, False, False, "fabric", 8)
    assert len(scene.calls("model_manifest_info")) == 1


def test_what_came_is_kept_for_the_report(scene: Scene) -> None:
    scene.answers["model_sync"] = [{"verified": True, "bytes_sent": 4000, "seconds": 2.5, "throughput_mb_s": 1.6}]
    code, told = scene.role()
    assert code == 0 and "model, to the others: 4 kB in 2.5" in told and "model: 4 kB in 2.5" in told, told


def test_the_options_are_handed_on(scene: Scene) -> None:
    asked = {"model_staging_addresses": ["10.1.1.1"], "model_staging_source": "spark2", "model_staging_checksum": True, "model_staging_transport": "rsync"}
    assert scene.role(**asked)[0] == 0
    (call,) = scene.calls("model_sync")
    assert (call["addresses"], call["source"], call["checksum"], call["transport"]) == (["10.1.1.1"], "spark2", True, "rsync")
    assert scene.calls("fabric_facts") == []


def test_without_being_asked_nothing_is_brought(scene: Scene) -> None:
    scene.answers["model_manifest_info spark2"] = [ABSENT]
    code, told = scene.role(model_staging_sync=False)
    assert code != 0 and scene.calls("model_sync") == [] and scene.calls("fabric_facts") == []
    assert "or have it brought with -e model_staging_sync=true." in " ".join(told.split())


def test_a_node_without_an_address_is_told_before_anything_moves(scene: Scene) -> None:
    scene.answers["fabric_facts spark2"] = [{"ansible_facts": {"fabric": {"rails": [], "address": None}}}]
    code, told = scene.role()
    assert code != 0 and "spark2 has no address on the fabric: set its host variable fabric_address" in told
    assert scene.calls("model_sync") == scene.calls("model_sync", "spark1") == []


def test_check_mode_goes_on_with_what_the_source_has(scene: Scene) -> None:
    scene.answers["model_manifest_info spark2"] = [ABSENT]
    scene.answers["model_sync spark2"] = [{"verified": False, "changed": True}]
    code, told = scene.role("--check")
    assert code == 0 and told.count("manifest of d") == 2, told
    # What the copy did not bring is a failure where it was not only predicted.
    code, told = scene.role()
    assert code != 0 and "The model's folder /m is not there" in told


STAGE = "sparkstack.inference.stage"


@pytest.mark.parametrize(
    ("words", "model", "images", "locks"),
    [
        (("-e", "model=/srv/x"), "/srv/x", [], []),
        (("-e", "image=a:1"), None, ["prepared", "a:1"], []),
        (("-e", "tp_launch_recipe=some", "-e", "model=/srv/x", "-e", "image=a:1"), "/srv/x", ["prepared", "a:1"], []),
        (("-e", "tp_launch_recipe=some"), "/of/recipe", ["prepared", "recipe:1"], ["held", "free"]),
        (("-e", "tp_launch_recipe=some", "-e", "model=/srv/x"), "/srv/x", ["prepared", "recipe:1"], ["held", "free"]),
    ],
)
def test_the_playbook_brings_what_is_named(scene: Scene, words: tuple[str, ...], model: str | None, images: list[str], locks: list[str]) -> None:
    code, told = scene.run(STAGE, *words)
    assert code == 0, told
    assert [call["path"] for call in scene.calls("model_sync")] == ([model] if model else [])
    assert [call["image"] for call in scene.calls("docker_image_sync")] == images
    # Only what is a deploy's stage needs the deployment's lock, and looks at its ranks.
    assert [call.get("state", "held") for call in scene.calls("deployment_lock", "spark1")] == locks
    assert len(scene.calls("inference_info")) == len(scene.calls("inference_plan", "spark1")) == len(locks) // 2


@pytest.mark.parametrize(("words", "locks"), [(("-e", "model=/srv/x"), []), (("-e", "tp_launch_recipe=some"), ["held", "free"])])
def test_a_copy_that_fails_ends_with_its_sentence(scene: Scene, words: tuple[str, ...], locks: list[str]) -> None:
    scene.answers["model_sync spark2"] = [{"failed": True, "msg": "spark2 has no room."}]
    code, told = scene.run(STAGE, *words)
    assert code != 0 and '"msg": "spark2 has no room."' in told.rpartition("TASK [")[2], told
    assert [call.get("state", "held") for call in scene.calls("deployment_lock", "spark1")] == locks


@pytest.mark.parametrize(
    ("inventory", "words", "told"),
    [
        ("[sparks]\nspark1\n[head]\nspark1\n", (), "Say what to bring: -e tp_launch_recipe=FILE for what a recipe names, -e model=/srv/models/NAME"),
        ("[sparks]\nspark1\nspark2\n", ("-e", "model=/m"), "The inventory's group 'head' has 0 hosts, or its host takes no part"),
        ("[head]\nspark1\n[sparks]\nspark2\n", ("-e", "model=/m"), "The inventory's group 'head' has 1 hosts, or its host takes no part"),
    ],
)
def test_what_the_playbook_lacks_is_told_before_a_node_is_looked_at(scene: Scene, inventory: str, words: tuple[str, ...], told: str) -> None:
    code, output = scene.run(STAGE, *words, inventory=inventory)
    assert code != 0 and told in " ".join(output.split()), output
    assert not any(scene.calls(name, host) for name in MODULES for host in ("spark1", "spark2"))
