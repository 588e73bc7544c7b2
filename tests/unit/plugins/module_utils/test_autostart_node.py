# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The agent on its node: what it sees, what it keeps, and what it asks of Docker."""

from __future__ import annotations

import http.server
import json
import pathlib
import threading
import typing as t

import pytest
from conftest import FakeDocker

from ansible_collections.sparkstack.inference.plugins.module_utils import _autostart_node as subject
from ansible_collections.sparkstack.inference.plugins.module_utils._docker_api import DockerAPI, DockerError

CONFIG: dict[str, t.Any] = {
    "deployment": "qwen",
    "rank": 0,
    "nodes": ["spark1", "spark2"],
    "container": "qwen-rank0",
    "engine": "vllm",
    "model": "tiny",
    "api": "http://127.0.0.1:1",
    "stop_timeout": 7,
    "docker_socket": "/nowhere",
}


@pytest.fixture(name="node")
def _node(docker: FakeDocker, tmp_path: pathlib.Path) -> subject.Node:
    """A node whose Docker runs the rank."""
    docker.start()
    assert docker.inspection is not None
    docker.inspection["Config"]["Labels"] = {"sparkstack.deployment": "qwen", "sparkstack.launch_id": "L1"}
    return subject.Node(CONFIG, str(tmp_path), DockerAPI(docker.socket), clock=lambda: 1_796_000_000.0)


def test_a_rank_that_runs_is_reported_and_remembered(node: subject.Node, docker: FakeDocker, tmp_path: pathlib.Path) -> None:
    told = node.report()
    assert (told["rank"], told["docker"], told["here"], told["launch"], told["running"], told["lost"]) == (0, True, True, "L1", True, None)
    path = tmp_path / "var/lib/sparkstack/autostart/qwen.json"
    assert json.loads(path.read_text())["rank"]["at"] == 1_796_000_000.0
    assert path.stat().st_mode & 0o777 == 0o600
    # Another agent goes on from there.
    docker.end(1)
    later = subject.Node(CONFIG, str(tmp_path), DockerAPI(docker.socket), clock=lambda: 1_796_000_020.0)
    assert later.report()["lost"] == "unsure"


def test_the_memory_is_not_written_at_each_look(node: subject.Node, tmp_path: pathlib.Path) -> None:
    now = [1_796_000_000.0]
    node.clock = lambda: now[0]
    path = tmp_path / "var/lib/sparkstack/autostart/qwen.json"
    written = []
    for _look in range(40):
        node.report()
        written.append(path.stat().st_ino)
        now[0] += 2
    assert len(set(written)) <= 3 + 1
    assert now[0] - json.loads(path.read_text())["rank"]["at"] <= 34


def test_no_container_and_no_docker_are_told_apart(node: subject.Node, docker: FakeDocker, tmp_path: pathlib.Path) -> None:
    docker.inspection = None
    told = node.report()
    assert (told["docker"], told["here"]) == (True, False)
    told = subject.Node(CONFIG, str(tmp_path), DockerAPI(str(tmp_path / "none.sock"))).report()
    assert (told["docker"], told["here"], told["running"]) == (False, False, False)


def test_a_container_of_that_name_which_is_somebody_elses_is_none(node: subject.Node, docker: FakeDocker) -> None:
    assert docker.inspection is not None
    docker.inspection["Config"]["Labels"] = {}
    assert node.report()["here"] is False


def test_an_order_to_start_is_carried_out_once(node: subject.Node, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node.report()
    asked: list[tuple[str, dict[str, str]]] = []
    monkeypatch.setattr(node, "_post", lambda what, query: asked.append((what, dict(query))))
    for _turn in range(3):
        node.carry_out("running", "o1")
    node.carry_out("running", "o2")
    node.carry_out(None, "o3")
    node.carry_out("stopped", "o3")
    assert asked == [("start", {}), ("start", {}), ("stop", {"t": "7"})]
    # Also by the agent that comes after one that was killed.
    after = subject.Node(CONFIG, str(tmp_path), node.api)
    monkeypatch.setattr(after, "_post", lambda what, query: asked.append((what, dict(query))))
    after.carry_out("running", "o2")
    assert len(asked) == 3


def test_what_docker_refuses_is_reported(node: subject.Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.report()

    def refuse(what: str, query: t.Mapping[str, str]) -> None:
        raise DockerError('could not select device driver "" with capabilities: [[gpu]]', 500)

    monkeypatch.setattr(node, "_post", refuse)
    node.carry_out("running", "o1")
    told = node.report()
    assert (told["done"], told["error"]) == ("o1", 'could not select device driver "" with capabilities: [[gpu]]')


def test_a_record_is_what_the_judge_takes(node: subject.Node, docker: FakeDocker) -> None:
    docker.log.append(("2026-11-29T22:42:04.1Z", b"INFO 11-29 22:42:04 [api_server.py:1] vLLM API server version 0.32.0\n"))
    record = node.record()
    assert (record["node"], record["rank"], record["running"], record["started"]) == ("spark1", 0, True, True)
    assert record["reading"]["engine"] in ("vllm", "auto") and record["quiet_seconds"] >= 0
    docker.server.shutdown()
    docker.server.server_close()
    assert "unreachable" in node.record()


@pytest.mark.parametrize(
    "secrets, engine, key",
    [
        ("VLLM_API_KEY='a b'\nHF_TOKEN=x\n", "vllm", "a b"),
        ("VLLM_API_KEY=plain\n", "vllm", "plain"),
        ("HF_TOKEN=x\n", "vllm", ""),
        ("", "vllm", ""),
        ("VLLM_API_KEY=plain\n", "other", ""),
    ],
)
def test_the_api_key_is_read_as_the_collection_writes_it(secrets: str, engine: str, key: str) -> None:
    assert subject.api_key(secrets, engine) == key


class API(http.server.BaseHTTPRequestHandler):
    """A head's API that wants a key."""

    answer: t.ClassVar[bytes] = b'{"choices": [{"text": " Paris"}]}'
    asked: t.ClassVar[list[t.Any]] = []

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append((self.path, body["model"], self.headers.get("Authorization")))
        self.send_response(200 if self.headers.get("Authorization") == "Bearer k3y" else 401)
        self.end_headers()
        self.wfile.write(self.answer)

    def log_message(self, *_arguments: t.Any) -> None:
        pass


@pytest.fixture(name="api")
def _api(monkeypatch: pytest.MonkeyPatch) -> t.Iterator[str]:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), API)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("key, answered", [("k3y", True), ("other", False)])
def test_the_head_is_asked_for_a_real_completion(api: str, tmp_path: pathlib.Path, key: str, answered: bool) -> None:
    folder = tmp_path / "var/lib/sparkstack/secrets"
    folder.mkdir(parents=True)
    (folder / "qwen-rank0.env").write_text(f"VLLM_API_KEY={key}\n")
    node = subject.Node({**CONFIG, "api": api}, str(tmp_path))
    assert node.answered() is answered
    assert API.asked[-1] == ("/v1/completions", "tiny", f"Bearer {key}")
    assert subject.healthy(api) and not subject.healthy(api + "/nowhere")


def test_an_api_that_is_not_there_answers_nothing(tmp_path: pathlib.Path) -> None:
    assert not subject.Node(CONFIG, str(tmp_path)).answered()


def test_which_daemon_runs(folder_of: t.Callable[[dict[str, str]], str]) -> None:
    fields = " ".join(["S", *map(str, range(4, 22)), "7700", "0"])
    root = folder_of({"run/docker.pid": "42", "proc/42/comm": "dockerd\n", "proc/42/stat": f"42 (a ) name) {fields}"})
    assert subject.daemon(root) == "42/7700"
    root = folder_of({"proc/42/comm": "bash\n"})
    assert subject.daemon(root) is None
