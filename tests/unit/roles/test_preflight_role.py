# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The role preflight as Ansible plays it: what it asks of the modules, which only say what a case wants, and how its gate ends a run."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import typing as t

import pytest
import yaml
from test_tp_launch_ways import STAND_IN

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "tests" / "unit" / "plugins"), str(ROOT / "tests" / "unit" / "plugins" / "plugin_utils")]

from preflighting import Scene  # noqa: E402  (the path above must come first)

INPUTS = {
    "deployment": "qwen", "image": "vllm:1", "engine": "vllm", "model_path": "/srv/models/m", "port": 8000, "rendezvous_port": 29501,
    "recipe": {"model": {"bytes": 5}, "engines": {"vllm": {"environment": {"NCCL_NVLS_ENABLE": "0"}}}},
}  # fmt: skip


class Preflight:
    """A collection of the real role and its judge, with stand-ins for what looks at nodes."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        here = folder / "ansible_collections" / "sparkstack" / "inference"
        (here / "plugins" / "action").mkdir(parents=True)
        (here / "roles").mkdir()
        for name in ("plugin_utils", "module_utils", "modules", "doc_fragments"):
            (here / "plugins" / name).symlink_to(ROOT / "plugins" / name)
        (here / "roles" / "preflight").symlink_to(ROOT / "roles" / "preflight")
        (here / "plugins" / "action" / "preflight_report.py").write_text((ROOT / "plugins/action/preflight_report.py").read_text())
        for name in ("fabric_facts", "preflight_facts", "gpu_memory_facts", "fabric_probe", "collective_proof"):
            (here / "plugins" / "action" / f"{name}.py").write_text(STAND_IN)

    def play(self, scene: Scene, *options: str, without: t.Sequence[str] = (), before: t.Sequence[str] = (), **variables: t.Any) -> tuple[int, str]:
        """How a run of the role ended, and what it wrote. :param without: hosts that can't be reached. :param before: modules that ran earlier."""
        self.answer(scene, without)
        tasks: list[t.Any] = [{f"sparkstack.inference.{name}": {}} for name in before]
        tasks.append({"ansible.builtin.include_role": {"name": "sparkstack.inference.preflight"}, "vars": variables})
        (self.folder / "play.yml").write_text(yaml.safe_dump([{"hosts": "all", "gather_facts": False, "tasks": tasks}]))
        return self.run("play.yml", *options)

    def run(self, *words: str) -> tuple[int, str]:
        """How a run of a playbook ended, and what it wrote."""
        line = [sys.executable, "-m", "ansible", "playbook", "-i", "hosts.yml", "-c", "local", *words]
        environment = {**os.environ, "WAYS": str(self.folder), "ANSIBLE_COLLECTIONS_PATH": str(self.folder), "ANSIBLE_LOCALHOST_WARNING": "false"}
        done = subprocess.run(line, cwd=self.folder, env=environment, text=True, capture_output=True, check=False)
        return done.returncode, done.stdout + done.stderr

    def answer(self, scene: Scene, without: t.Sequence[str] = ()) -> None:
        """What the modules say, and the inventory."""
        answers: dict[str, list[dict[str, t.Any]]] = {}
        for name, node in scene.nodes.items():
            answers[f"fabric_facts {name}"] = [{"unreachable": True}] if name in without else [{"ansible_facts": {"fabric": node["fabric"]}}]
            answers[f"preflight_facts {name}"] = [{"ansible_facts": {"preflight": node["preflight"]}}]
            answers[f"gpu_memory_facts {name}"] = [{"ansible_facts": {"gpu_memory": node["gpu_memory"]}}]
            answers[f"fabric_probe {name}"] = [node["probe"]]
            answers[f"collective_proof {name}"] = [{"verdict": "ready", "message": "2 ranks reduce over TCP.", "remedy": "", "culprit": None}]
        (self.folder / "answers.json").write_text(json.dumps(answers))
        groups = {"head": {"hosts": {"spark1": None}}, "workers": {"hosts": {name: None for name in scene.nodes if name != "spark1"}}}
        (self.folder / "hosts.yml").write_text(yaml.safe_dump({"all": {"children": groups, "vars": {"ansible_become": False}}}))

    def calls(self, name: str, host: str = "spark1") -> list[dict[str, t.Any]]:
        path = self.folder / f"{name} {host}"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def role(tmp_path: pathlib.Path) -> Preflight:
    return Preflight(tmp_path)


def test_a_clean_preflight_is_ready_and_writes_its_report(role: Preflight) -> None:
    code, told = role.play(Scene(), preflight_launch=INPUTS, preflight_json=str(role.folder / "report.json"), preflight_ports=[5000])
    assert code == 0 and "Preflight of 2 nodes (spark1, spark2): ready" in told and "changed=0" in told and "changed=1" not in told
    report = json.loads((role.folder / "report.json").read_text())
    assert (role.folder / "report.json").stat().st_mode & 0o777 == 0o600
    assert report["result"] == "ready" and report["not_checked"] == ["collective"] and report["nodes"] == ["spark1", "spark2"]
    for host in ("spark1", "spark2"):
        (facts,), (probe,) = role.calls("preflight_facts", host), role.calls("fabric_probe", host)
        assert facts == {"image": "vllm:1", "model_path": "/srv/models/m", "ports": [29501, 8000], "names": ["spark1", "spark2"]}
        assert probe["ports"] == [29501, 8000, 47653, 5000] and float(probe["seconds"]) == 0.5 and probe["members"] == ["spark1", "spark2"]
        assert [(peer["host"], sorted(rail["address"] for rail in peer["rails"])) for peer in probe["peers"]] == [
            ("spark1", ["192.168.200.11", "192.168.201.11"]),
            ("spark2", ["192.168.200.12", "192.168.201.12"]),
        ]
    assert role.calls("collective_proof") == []


def test_what_is_blocked_ends_the_run_with_its_sentence(role: Preflight) -> None:
    scene = Scene()
    scene.lose("spark1", "spark2")
    code, told = role.play(scene, preflight_launch=INPUTS, preflight_json=str(role.folder / "report.json"))
    assert code == 2 and "nothing that spark1 sends arrives at spark2, though what spark2 sends arrives at spark1. Check the cable" in told
    # The report is there all the same.
    assert json.loads((role.folder / "report.json").read_text())["result"] == "blocked"
    assert role.play(scene, "-e", '{"preflight_skip": ["reach"]}')[0] == 0
    code, told = role.play(scene, "-e", "preflight_gate=false", "-e", "preflight_show=problems")
    assert code == 0 and "Preflight of 2 nodes (spark1, spark2): blocked (" in told and "ready    address" not in told


def test_what_is_set_for_all_nodes_counts_as_what_the_recipe_says(role: Preflight) -> None:
    scene = Scene()
    for node in scene.nodes.values():
        node["preflight"]["image"]["nccl"] = "2.30.4"
    launch = {**INPUTS, "recipe": {"model": {"bytes": 5}, "engines": {"vllm": {"environment": {"NCCL_PROTO": "Simple"}}}}}
    for extra, result in (({}, "slow (2 slow)"), ({"NCCL_NVLS_ENABLE": 0}, "ready")):
        code, told = role.play(scene, preflight_launch=launch, nccl_env_extra=extra)
        assert code == 0 and f"Preflight of 2 nodes (spark1, spark2): {result}" in told, told


def test_what_is_slow_ends_no_run(role: Preflight) -> None:
    scene = Scene()
    scene.lose("spark1", "spark2", 0.05)
    code, told = role.play(scene, "--check", preflight_json=str(role.folder / "report.json"))
    assert code == 0 and "slow     loss" in told
    # Check mode makes no difference, not even to the report.
    assert json.loads((role.folder / "report.json").read_text())["result"] == "slow"


def test_a_node_that_is_not_reached_is_told_and_the_others_are_measured(role: Preflight) -> None:
    scene = Scene(3)
    code, told = role.play(scene, without=["spark3"])
    assert code != 0 and "spark3: it could not be looked at, as told above" in told
    (probe,) = role.calls("fabric_probe")
    assert probe["members"] == ["spark1", "spark2"] and [peer["host"] for peer in probe["peers"]] == ["spark1", "spark2"]


def test_a_probe_that_fails_is_told_by_the_report(role: Preflight) -> None:
    scene = Scene()
    scene.nodes["spark2"]["probe"] = {"failed": True, "msg": "set forks to 2 or more (it is 1)."}
    code, told = role.play(scene)
    assert code == 2 and "spark2: it could not be measured: set forks to 2 or more (it is 1)." in told


def test_a_mistake_is_told_before_a_node_is_looked_at(role: Preflight) -> None:
    mistakes = {
        "preflight_skip=[clocks]": "no item clocks",
        "preflight_clock_seconds=0": "clock_seconds is 0",
        "preflight_skips=clock": "no variable preflight_skips",
    }
    for line, sentence in mistakes.items():
        code, told = role.play(Scene(), "-e", json.dumps({line.split("=")[0]: yaml.safe_load(line.split("=")[1])}))
        assert code == 2 and sentence in told
        assert role.calls("fabric_facts") == []


def test_what_is_known_from_the_same_run_is_not_gathered_again(role: Preflight) -> None:
    plan = {"ranks": [{"launch": {"rank": rank}} for rank in range(2)]}
    known = ("fabric_facts", "gpu_memory_facts")
    code, told = role.play(Scene(), before=known, _preflight_gathered=True, tp_launch_plan=plan, preflight_collective=True)
    assert code == 0 and "ready    collective         2 ranks reduce over TCP" in told, told
    assert [call["launch"] for host in ("spark1", "spark2") for call in role.calls("collective_proof", host)] == [{"rank": 0}, {"rank": 1}]
    assert [len(role.calls(name)) for name in known] == [1, 1]
