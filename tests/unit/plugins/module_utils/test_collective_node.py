# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The node's part against a daemon behind a real socket, and what is kept of a proof."""

from __future__ import annotations

import http.server
import json
import pathlib
import socketserver
import threading
import time
import typing as t
import urllib.parse

import pytest

from ansible_collections.sparkstack.inference.plugins.module_utils import _collective_node as subject
from ansible_collections.sparkstack.inference.plugins.module_utils._docker_api import DockerAPI, DockerError

PARAMETERS = {"rank": 0, "timeout": 60}
OURS = {"sparkstack.collective": "d", "sparkstack.rank": "0"}


class Daemon:
    """Has containers, of which one says something when it is started, and goes when it has said it."""

    def __init__(self, path: pathlib.Path, says: bytes = b"hello\n", start: int = 204, ends: bool = True, removes: bool = True, slow: float = 0) -> None:
        """:param slow: seconds that it takes to remove a container that it is removing already."""
        self.containers: dict[str, dict[str, t.Any]] = {}
        self.images: dict[str, dict[str, t.Any]] = {}
        self.calls: list[str] = []
        self.created: dict[str, t.Any] = {}
        self.alone = False
        self.started, self.hold = threading.Event(), threading.Event()
        daemon = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                kind, name = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path).strip("/").removesuffix("/json").split("/", 1)
                known = daemon.images if kind == "images" else daemon.containers
                found = next((entry for entry in known.values() if name in (entry.get("Id"), entry.get("Name", "").lstrip("/"))), known.get(name))
                self.answer(200 if found else 404, json.dumps(found or {"message": f"No such {kind}: {name}"}).encode())

            def do_DELETE(self) -> None:
                name = self.path.split("?")[0].rpartition("/")[2]
                daemon.calls.append(f"delete {name}")
                if slow:
                    threading.Timer(slow, daemon.containers.clear).start()
                    self.answer(409, b'{"message": "removal of container old is already in progress"}')
                    return
                daemon.containers = {key: entry for key, entry in daemon.containers.items() if entry["Id"] != name}
                self.answer(204)

            def do_POST(self) -> None:
                url = urllib.parse.urlsplit(self.path)
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                word = url.path.rpartition("/")[2]
                daemon.calls.append(word)
                if word == "create":
                    name = urllib.parse.parse_qs(url.query)["name"][0]
                    daemon.alone = name not in daemon.containers
                    daemon.created = {"name": name, **json.loads(body)}
                    daemon.containers[name] = {"Id": "c1", "Name": f"/{name}", "Config": {"Labels": OURS}}
                    self.answer(201, b'{"Id": "c1"}')
                elif word == "start":
                    # Before the answer: who asked may be gone when it comes.
                    daemon.started.set()
                    self.answer(start, b'{"message": "could not select device driver"}' if start >= 400 else b"")
                else:
                    self.send_response(200)
                    self.send_header("Connection", "close")
                    self.end_headers()
                    self.wfile.flush()
                    assert daemon.started.wait(60)
                    self.wfile.write(b"\1\0\0\0" + len(says).to_bytes(4, "big") + says)
                    self.wfile.flush()
                    if not ends:
                        daemon.hold.wait(30)
                    if removes and start < 400:
                        daemon.containers.clear()
                    self.close_connection = True

            def answer(self, status: int, body: bytes = b"") -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if body:
                    self.wfile.write(body)

            def log_message(self, *_arguments: t.Any) -> None:
                pass

            def address_string(self) -> str:
                return "local"

        class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
            daemon_threads = True

        self.server = Server(str(path), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        self.api = DockerAPI(str(path))


@pytest.fixture
def daemon(tmp_path: pathlib.Path) -> t.Iterator[t.Callable[..., Daemon]]:
    made: list[Daemon] = []

    def make(**behaviour: t.Any) -> Daemon:
        made.append(Daemon(tmp_path / f"{len(made)}.sock", **behaviour))
        return made[-1]

    yield make
    for one in made:
        one.hold.set()
        one.server.shutdown()
        one.server.server_close()


def test_the_program_runs_in_a_container_that_goes(daemon: t.Callable[..., Daemon]) -> None:
    docker = daemon()
    found = subject.run(docker.api, {"Image": "i", "HostConfig": {"AutoRemove": True}}, "d-collective0", PARAMETERS)
    assert (found["output"], found["problem"]) == ("hello\n", "")
    # It listens before it starts: what a container that is gone has said can't be asked for.
    assert docker.calls == ["create", "attach", "start"] and not docker.containers
    assert docker.created["name"] == "d-collective0" and docker.created["Entrypoint"][:2] == ["python3", "-c"]
    compile(docker.created["Entrypoint"][2], "program", "exec")
    assert json.loads(docker.created["Cmd"][0]) == PARAMETERS and docker.created["HostConfig"] == {"AutoRemove": True}


def test_docker_refuses_to_start_it(daemon: t.Callable[..., Daemon]) -> None:
    docker = daemon(start=500)
    found = subject.run(docker.api, {}, "d-collective0", PARAMETERS)
    assert found["problem"] == "could not select device driver" and docker.calls[-1] == "delete c1" and not docker.containers


def test_one_that_does_not_end_is_removed(daemon: t.Callable[..., Daemon], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "_GRACE", 0)
    docker = daemon(ends=False, removes=False)
    found = subject.run(docker.api, {}, "d-collective0", {"rank": 0, "timeout": 3})
    # The daemon would hold it for 30 s.
    assert found["output"] == "hello\n" and found["seconds"] < 20
    assert docker.calls[-1] == "delete c1" and not docker.containers


def test_one_that_docker_forgets_to_remove_is_removed(daemon: t.Callable[..., Daemon], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "_GONE", 0.2)
    docker = daemon(removes=False)
    assert not subject.run(docker.api, {}, "d-collective0", PARAMETERS)["problem"]
    assert docker.calls[-1] == "delete c1" and not docker.containers


def test_what_a_killed_run_has_left_is_removed_first(daemon: t.Callable[..., Daemon]) -> None:
    docker = daemon()
    docker.containers["d-collective0"] = {"Id": "old", "Name": "/d-collective0", "Config": {"Labels": OURS}}
    assert not subject.run(docker.api, {}, "d-collective0", PARAMETERS)["problem"]
    assert docker.calls == ["delete old", "create", "attach", "start"]


def test_one_that_docker_is_removing_is_waited_for(daemon: t.Callable[..., Daemon]) -> None:
    docker = daemon(slow=0.3)
    docker.containers["d-collective0"] = {"Id": "old", "Name": "/d-collective0", "Config": {"Labels": OURS}}
    assert not subject.run(docker.api, {}, "d-collective0", PARAMETERS)["problem"]
    # Its name is free when the next one is made.
    assert docker.calls[:2] == ["delete old", "create"] and docker.alone


def test_somebody_elses_container_stays(daemon: t.Callable[..., Daemon]) -> None:
    docker = daemon()
    docker.containers["d-collective0"] = {"Id": "x", "Name": "/d-collective0", "Config": {"Labels": None, "Image": "postgres:17"}}
    found = subject.run(docker.api, {}, "d-collective0", PARAMETERS)
    assert (
        found["problem"] == "The name d-collective0 belongs to a container of postgres:17: remove or rename it first." and "d-collective0" in docker.containers
    )
    assert subject.look(docker.api, "i", "d-collective0", None, [])["foreign"] == "postgres:17"


def test_too_much_output_keeps_its_two_ends(daemon: t.Callable[..., Daemon]) -> None:
    class Stream:
        def __init__(self) -> None:
            frames = [b"first", *[bytes([65 + number % 26]) * 60000 for number in range(60)], b"last"]
            self.data = b"".join(b"\1\0\0\0" + len(frame).to_bytes(4, "big") + frame for frame in frames)

        def read(self, size: int) -> bytes:
            part, self.data = self.data[:size], self.data[size:]
            return part

    read = subject._read(t.cast("t.Any", Stream()), time.monotonic() + 60)
    assert read.startswith(b"first") and read.endswith(b"last") and len(read) <= 2 * subject._MOST


LISTENS = "   0: 00000000:733D 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 77 1 0000000000000000 100 0 0 10 0\n"


def test_a_look(daemon: t.Callable[..., Daemon], folder_of: t.Callable[[dict[str, str]], str], tmp_path: pathlib.Path) -> None:
    docker = daemon()
    docker.images["i"] = {"Architecture": "arm64", "RootFS": {"Layers": ["sha256:aa"]}}
    container = "a" * 64
    docker.containers["other"] = {"Id": container, "Name": "/other", "Config": {"Labels": {}}}
    root = folder_of(
        {
            "proc/sys/kernel/random/boot_id": "b-1\n",
            "proc/self/net/tcp": f"header\n{LISTENS}",
            "proc/42/comm": "python3\n",
            "proc/42/cgroup": f"0::/system.slice/docker-{container}.scope\n",
            "sys/class/net/eth1/mtu": "9000\n",
            "sys/class/net/eth1/speed": "-1\n",
            "sys/class/net/eth1/carrier_changes": "2\n",
            "sys/class/net/eth2/mtu": "4200\n",
            "sys/class/infiniband/mlx5_1/device/net/eth2/mtu": "4200\n",
        }
    )
    (tmp_path / "proc/42/fd").mkdir()
    (tmp_path / "proc/42/fd/3").symlink_to("socket:[77]")
    found = subject.look(docker.api, "i", "d-collective0", 29501, ["eth1", "gone0"], root)
    assert found["identity"].startswith("sha256:") and found["boot"] == "b-1" and len(found["program"]) == 16
    assert found["links"]["eth1"] == {"carrier_changes": 2, "mtu": 9000, "speed": None} and found["links"]["gone0"]["mtu"] is None
    # NCCL_IB_HCA takes the beginning of a name.
    links = subject.look(docker.api, "i", "d-collective0", 29501, ["mlx5", "eth1"], root)["links"]
    assert list(links) == ["eth1", "eth2"] and links["eth2"]["mtu"] == 4200
    assert found["listener"] == {"port": 29501, "pid": 42, "process": "python3", "container": container, "name": "other"} and found["foreign"] is None
    # A proof's own leftover holds the port for a moment more; it is removed before the next one starts.
    docker.containers = {"d-collective0": {"Id": container, "Name": "/d-collective0", "Config": {"Labels": OURS}}}
    assert subject.look(docker.api, "i", "d-collective0", 29501, [], root)["listener"] is None
    assert subject.look(docker.api, "other:1", "d-collective0", None, [], root)["identity"] is None
    docker.server.shutdown()
    docker.server.server_close()
    with pytest.raises(DockerError):
        subject.look(DockerAPI(str(tmp_path / "none")), "i", "n", None, [], root)


def test_a_proof_is_kept_whole_or_not_at_all(tmp_path: pathlib.Path) -> None:
    root = str(tmp_path)
    assert subject.kept("d", root) is None
    proof = {"key": "k", "at": 1795992120.5, "result": {"verdict": "ready"}}
    subject.keep("d", proof, root)
    assert subject.kept("d", root) == proof and subject.kept("e", root) is None
    path = pathlib.Path(subject.path("d", root))
    assert [entry.name for entry in path.parent.iterdir()] == ["d.json"] and path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    for damaged in ("{", "[]", '{"key": "k"}', '{"at": 1}'):
        path.write_text(damaged)
        assert subject.kept("d", root) is None
    subject.keep("d", {}, root)
    subject.keep("d", {}, root)
    assert not path.exists()
