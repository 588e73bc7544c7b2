# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is handed over to Prometheus and Grafana, with engines that answer on this machine."""

from __future__ import annotations

import http.server
import json
import os
import pathlib
import re
import subprocess
import sys
import threading
import typing as t

import pytest
import yaml
from test_tp_launch_ways import ROOT, STAND_IN


class Engine(http.server.BaseHTTPRequestHandler):
    """Has metrics, as vLLM, or none, as SGLang without enable-metrics."""

    status = 200

    def do_GET(self) -> None:
        assert self.path == "/metrics"
        self.send_response(self.status)
        self.end_headers()
        self.wfile.write(b"vllm:num_requests_running 0.0\n")

    def log_message(self, format: str, *arguments: t.Any) -> None:  # noqa: A002  (its base calls it so)
        """Keep the tests' output clean."""


@pytest.fixture
def ports() -> t.Iterator[list[int]]:
    servers = [http.server.ThreadingHTTPServer(("127.0.0.1", 0), type("Of", (Engine,), {"status": status})) for status in (200, 404)]
    for server in servers:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    yield [server.server_address[1] for server in servers]
    for server in servers:
        server.shutdown()
        server.server_close()


def play(folder: pathlib.Path, nodes: dict[str, t.Any], **variables: t.Any) -> tuple[int, str]:
    """How a run ended, and what it wrote. :param nodes: what inference_info tells of each, or how it fails."""
    here = folder / "ansible_collections" / "sparkstack" / "inference"
    (here / "plugins" / "action").mkdir(parents=True, exist_ok=True)
    (here / "plugins" / "action" / "inference_info.py").write_text(STAND_IN)
    for name in ("playbooks", "plugins/filter", "plugins/lookup", "plugins/module_utils", "plugins/plugin_utils", "roles"):
        if not (here / name).exists():
            (here / name).symlink_to(ROOT / name)
    (folder / "answers.json").write_text(json.dumps({f"inference_info {name}": [found] for name, found in nodes.items()}))
    own = {"ansible_connection": "local", "ansible_become": False, "ansible_python_interpreter": sys.executable}
    hosts = {name: {"tp_launch_endpoint_host": f"{name}.lan"} for name in nodes}
    (folder / "hosts.yml").write_text(yaml.safe_dump({"all": {"children": {"sparks": {"hosts": hosts}}, "vars": own}}))
    line = [sys.executable, "-m", "ansible", "playbook", "-i", "hosts.yml", "sparkstack.inference.monitoring", "-e", json.dumps(variables)]
    environment = {
        **os.environ,
        "WAYS": str(folder),
        "ANSIBLE_COLLECTIONS_PATH": str(folder),
        "ANSIBLE_HOME": str(folder),
        "ANSIBLE_LOCALHOST_WARNING": "false",
    }
    done = subprocess.run(line, cwd=folder, env=environment, text=True, capture_output=True, check=False)
    return done.returncode, done.stdout + done.stderr


def head(deployment: str, engine: str, port: int) -> dict[str, t.Any]:
    return {
        "name": f"{deployment}-rank0", "deployment": deployment, "engine": engine, "model": "m", "rank": 0, "running": True, "listen_address": "0.0.0.0",
        "port": port,
    }  # fmt: skip


def test_heads_with_metrics_become_targets_and_a_node_that_is_away_changes_nothing(tmp_path: pathlib.Path, ports: list[int]) -> None:
    docker = {"reachable": True, "error": None}
    worker = {**head("qwen", "vllm", 1), "rank": 1}
    nodes = {
        "spark1": {"docker": docker, "containers": [head("qwen", "vllm", ports[0]), head("other", "sglang", ports[1])]},
        "spark2": {"docker": docker, "containers": [worker]},
    }
    files = {"monitoring_targets": str(tmp_path / "targets.json"), "monitoring_dashboard": str(tmp_path / "board.json")}
    code, told = play(tmp_path, nodes, **files)
    assert code == 0, told
    labels = {"sparks_deployment": "qwen", "sparks_engine": "vllm", "sparks_model": "m", "sparks_node": "spark1"}
    written = (tmp_path / "targets.json").read_text()
    assert json.loads(written) == [{"labels": labels, "targets": [f"spark1.lan:{ports[0]}"]}]
    assert f"other is no target, for port {ports[1]} of spark1 has no metrics (HTTP status 404)" in told and "enable-metrics" in told
    assert json.loads((tmp_path / "board.json").read_text())["uid"] == "sparkstack-inference"
    code, told = play(tmp_path, {**nodes, "spark1": {"unreachable": True}}, monitoring_targets=files["monitoring_targets"])
    assert code != 0 and "spark1 can't be looked at, so that it is unknown what serves there" in told
    assert (tmp_path / "targets.json").read_text() == written


@pytest.mark.parametrize("name", ["monitoring_dashboard", "monitoring_targets"])
def test_a_folder_that_is_not_there_is_told_before_a_node_is_asked(tmp_path: pathlib.Path, name: str) -> None:
    (tmp_path / "file").write_text("")
    for missing in ("gone", "file"):
        path = tmp_path / missing / "sparks.json"
        code, told = play(tmp_path, {"spark1": {"unreachable": True}}, **{name: str(path)})
        said = f"There is no folder {path.parent} on this machine for sparks.json: make it first, or name a file in another one."
        assert code == 2 and said in " ".join(told.split()) and "can't be looked at" not in told and not (tmp_path / "inference_info spark1").exists()


def test_the_dashboard_asks_both_engines_of_each_deployment() -> None:
    board = json.loads((ROOT / "roles" / "monitoring" / "files" / "dashboard.json").read_text(encoding="utf-8"))
    asked = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"]) == 6
    for expression in asked:
        assert expression.count('{sparks_deployment=~"$deployment"}') == (1 if expression.startswith("up{") else 2)
        assert expression.count("(") == expression.count(")")
        # Each engine's own name for the same: of vLLM 0.33 and of SGLang 0.5.23.
        assert expression.startswith("up{") or re.findall(r"(vllm|sglang):", expression) == ["vllm", "sglang"]
    assert board["uid"] == "sparkstack-inference" and [one["name"] for one in board["templating"]["list"]] == ["datasource", "deployment"]
