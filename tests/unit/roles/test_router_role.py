# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The router's tasks, played by Ansible: what they ask Docker for, and what they refuse before they ask it for anything."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import typing as t

import pytest
import yaml
from test_tp_launch_ways import ROOT, STAND_IN

from ansible_collections.sparkstack.inference.plugins.plugin_utils import _router

HEAD = {"rank": 0, "model": "m", "port": 8000, "listen_address": "0.0.0.0"}
SEEN = {"docker": {"reachable": True}, "routers": [], "listeners": [], "listen_possible": True, "foreign": None}
PAIR = [{**SEEN, "containers": [{**HEAD, "deployment": f"qwen-r{number}"}]} for number in range(2)]

ASKED = {
    "deployment": "qwen", "node": "spark1", "port": 8080, "metrics_port": 29000, "listen_address": "0.0.0.0", "upstreams": ["a:1"], "policy": "",
    "image": "x:1", "timeout": 1800, "max_body": "64m",
}  # fmt: skip


class Router:
    """A collection of the real role, with stand-ins for everything that it calls on a node."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        here = folder / "ansible_collections" / "sparkstack" / "inference"
        (here / "plugins" / "action").mkdir(parents=True)
        for name in ("playbooks", "plugins/filter", "plugins/lookup", "plugins/module_utils", "plugins/plugin_utils"):
            (here / name).symlink_to(ROOT / name)
        (here / "roles" / "image_sync" / "tasks").mkdir(parents=True)
        (here / "roles" / "image_sync" / "tasks" / "main.yml").write_text("- sparkstack.inference.other:\n    image: '{{ image_sync_image }}'\n")
        (here / "roles" / "router").symlink_to(ROOT / "roles" / "router")
        docker = folder / "ansible_collections" / "community" / "docker" / "plugins" / "action"
        docker.mkdir(parents=True)
        for name in ("docker_image_info", "docker_container", "docker_container_exec"):
            (docker / f"{name}.py").write_text(STAND_IN)
        for name in ("inference_info", "inference_proof", "other"):
            (here / "plugins" / "action" / f"{name}.py").write_text(STAND_IN)

    def play(self, answers: dict[str, t.Any], playbook: str = "sparkstack.inference.router", **variables: t.Any) -> tuple[int, str]:
        """How a run of the playbook in check mode ended, and what it wrote: what Ansible's own modules do would be done on this machine."""
        (self.folder / "answers.json").write_text(json.dumps(answers))
        own = {"ansible_connection": "local", "ansible_become": False, "ansible_python_interpreter": sys.executable}
        hosts = {"head": {"hosts": {"spark1": None}}, "workers": {"hosts": {"spark2": None}}}
        (self.folder / "hosts.yml").write_text(yaml.safe_dump({"all": {"children": {"sparks": {"children": hosts}}, "vars": own}}))
        line = [sys.executable, "-m", "ansible", "playbook", "-i", "hosts.yml", playbook, "--check", "-e", json.dumps(variables)]
        environment = {
            **os.environ,
            "WAYS": str(self.folder),
            "ANSIBLE_COLLECTIONS_PATH": str(self.folder),
            "ANSIBLE_HOME": str(self.folder),
            "ANSIBLE_LOCALHOST_WARNING": "false",
        }
        done = subprocess.run(line, cwd=self.folder, env=environment, text=True, capture_output=True, check=False)
        return done.returncode, done.stdout + done.stderr

    def calls(self, name: str, host: str) -> list[dict[str, t.Any]]:
        path = self.folder / f"{name} {host}"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def router(tmp_path: pathlib.Path) -> Router:
    return Router(tmp_path)


def known(nodes: list[dict[str, t.Any]], **more: t.Any) -> dict[str, t.Any]:
    return {f"inference_info spark{number + 1}": [node] for number, node in enumerate(nodes)} | {
        "docker_image_info": [{"images": [{"Id": "x"}]}],
        "inference_proof": [{"answered": True, "seconds": 0.1}],
        **more,
    }


def test_what_docker_is_asked_for(router: Router) -> None:
    code, told = router.play(known(PAIR), deployment="qwen", router_kind="vllm-router", tp_launch_api_key="s3cret")
    assert code == 0, told
    (started,) = router.calls("docker_container", "spark1")
    assert (started["user"], started["read_only"], started["cap_drop"], started["security_opts"]) == ("65534:65534", True, ["ALL"], ["no-new-privileges"])
    assert (started["entrypoint"], started["labels"], started["mounts"]) == (["vllm-router"], {"sparkstack.router": "qwen"}, [])
    assert started["pull"] == "never" and "s3cret" not in json.dumps(started)
    assert router.calls("docker_container", "spark2") == [] and router.calls("other", "spark1") == []


def test_options_that_the_image_does_not_have_are_refused(router: Router) -> None:
    role = {"name": "sparkstack.inference.router", "tasks_from": "options"}
    (router.folder / "play.yml").write_text(yaml.safe_dump([{"hosts": "spark1", "gather_facts": False, "tasks": [{"ansible.builtin.include_role": role}]}]))
    plan = _router.plan({**ASKED, "kind": "sglang-router"}, [{"node": "spark1", "host": "spark1"}])
    usage = (ROOT / "tests/fixtures/routers/sglang-router.txt").read_text()
    for output, wanted in ((usage, 0), (usage.replace("--disable-circuit-breaker", "--no-breaker"), 2)):
        code, told = router.play({"docker_container": [{"container": {"Output": output}}]}, "play.yml", router_plan=plan, router_kind="sglang-router")
        assert code == wanted, told
    said = "x:1 is no sglang-router as this collection knows it (its program has no --disable-circuit-breaker): set router_image to another version of it."
    assert said in " ".join(told.split())
    for call in router.calls("docker_container", "spark1"):
        assert call["command"][-1] == "--help" and call["network_mode"] == "none" and call["user"] == "65534:65534" and call["cap_drop"] == ["ALL"]


def test_a_missing_image_is_brought_by_image_sync(router: Router) -> None:
    router.play(known(PAIR, docker_image_info=[{"images": []}]), deployment="qwen", router_image="mine:1")
    assert [router.calls("other", f"spark{number}") for number in (1, 2)] == [[{"image": "mine:1"}]] * 2


@pytest.mark.parametrize(
    ("nodes", "told"),
    [
        ([PAIR[0], {"unreachable": True}], "spark2 can't be looked at, so that it is unknown what serves there: the router stays as it is."),
        ([{**SEEN, "containers": []}] * 2, "No node has a rank 0 of 'qwen' or of its replicas 'qwen-rN': deploy it first"),
        ([{**PAIR[0], "listeners": [{"port": 8080, "process": "apache2", "container": None}]}, PAIR[1]], "Port 8080 of spark1 is taken by apache2"),
    ],
)
def test_what_is_refused_touches_nothing(router: Router, nodes: list[dict[str, t.Any]], told: str) -> None:
    code, said = router.play(known(nodes), deployment="qwen")
    assert code != 0 and told in " ".join(said.split())
    assert not {path.name.split()[0] for path in router.folder.glob("* spark?")} - {"inference_info"}


def test_a_name_is_asked_for(router: Router) -> None:
    code, said = router.play({})
    assert code == 2 and "Say in front of which deployment with -e deployment=NAME:" in " ".join(said.split())
    code, said = router.play({}, deployment="../x")
    assert code == 2 and "Say in front of which deployment with -e deployment=NAME, and no '../x':" in " ".join(said.split())
    assert router.calls("inference_info", "spark1") == []


def test_it_is_removed_where_it_is(router: Router) -> None:
    there = {"name": "qwen-router", "deployment": "qwen", "running": True, "digest": "d"}
    nodes = [{**SEEN, "routers": [{**there, "name": "other-router", "deployment": "other"}]}, {**SEEN, "routers": [there]}]
    code, said = router.play(known(nodes), deployment="qwen", router_state="absent")
    assert code == 0, said
    assert router.calls("docker_container", "spark1") == [] and [call["name"] for call in router.calls("docker_container", "spark2")] == ["qwen-router"]
