# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An image from one node to another over the loopback network: the stores lie on disk, only the two daemons are stood in for."""

from __future__ import annotations

import contextlib
import io
import os
import pathlib
import tarfile
import threading
import typing as t

import pytest
import stored as made

from ansible_collections.sparkstack.inference.plugins.module_utils import _image_agent as agents
from ansible_collections.sparkstack.inference.plugins.module_utils import _image_node as subject
from ansible_collections.sparkstack.inference.plugins.module_utils import _image_serve as serving_end
from ansible_collections.sparkstack.inference.plugins.module_utils._docker_api import DockerAPI, DockerError
from ansible_collections.sparkstack.inference.plugins.module_utils._transfer import TransferError, free_port

SOURCE, RECEIVER = "127.0.0.2", "127.0.0.3"
LAYERS = [made.layer({"usr/a": os.urandom(300_000)}), made.layer({"opt/b": os.urandom(5000)})]
IDS = [made.digest(layer) for layer in LAYERS]
NAME = "lab/x:1"


def saved(layers: t.Sequence[bytes]) -> bytes:
    """What C(docker save) writes."""
    raw = made.config(layers)
    listing = f'[{{"Config":"blobs/sha256/{made.digest(raw)[7:]}","RepoTags":["{NAME}"],"Layers":[' + ",".join(
        f'"blobs/sha256/{made.digest(layer)[7:]}"' for layer in layers
    )
    members = {f"blobs/sha256/{made.digest(data)[7:]}": data for data in [*layers, raw]}
    members["manifest.json"] = (listing + "]}]").encode()
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


class Daemon(DockerAPI):
    """A daemon's answers."""

    def __init__(self, store: tuple[dict[str, t.Any], dict[str, t.Any]], there: bool, archive: bytes = b"") -> None:
        super().__init__("/nowhere")
        self.info, self.inspection = store
        self.there, self.archive = there, archive
        self.loaded: list[bytes] = []
        self.refusals: list[str] = []
        self.saves = 0

    def image(self, name: str) -> dict[str, t.Any] | None:
        if name == NAME and not self.there:
            return None
        return self.inspection

    def get(self, path: str, query: object = None) -> t.Any:
        answers: dict[str, t.Any] = {
            "/info": self.info,
            "/version": {"Arch": "arm64", "Os": "linux", "Version": "28"},
            "/images/json": [{"Id": self.inspection["Id"]}],
        }
        return [{"Size": 5000}, {"Size": 300_000}] if path.endswith("/history") else answers[path]

    def request(self, method: str, path: str, query: object = None, body: t.Any = None, content_type: str = "") -> t.Any:
        if path == f"/images/{NAME}/get":
            self.saves += 1
            return contextlib.closing(_Readable(self.archive))
        assert path == "/images/load"
        self.loaded.append(b"".join(body))
        if self.refusals:
            return io.BytesIO(b'{"error":"%s"}' % self.refusals.pop(0).encode())
        self.there = True
        return io.BytesIO(b'{"stream":"Loaded image: lab/x:1"}')

    def names(self) -> list[set[str]]:
        """The members of what was loaded."""
        return [set(tarfile.open(fileobj=io.BytesIO(data)).getnames()) for data in self.loaded]


class _Readable(io.BytesIO):
    def read1(self, size: int | None = -1) -> bytes:
        return super().read(size)


class Pair:
    """Both nodes, each at its part in a thread as its agent does it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, source: Daemon, receiver: Daemon) -> None:
        monkeypatch.setattr(serving_end, "RETURN_SECONDS", 1.0)
        self.source, self.receiver = source, receiver
        self.served: dict[str, t.Any] = {}

    def node(self, daemon: Daemon, address: str, **more: t.Any) -> subject.ImageNode:
        given = {"image": NAME, "docker_host": "/nowhere", "connect_timeout": 3, "stall_timeout": 3, "timeout": 20, "address": address, "token": "5e" * 32}
        one = subject.ImageNode({**given, **more})
        one.docker = daemon
        return one

    def move(self, tmp_path: pathlib.Path, common: int = 0) -> dict[str, t.Any]:
        port = free_port(SOURCE)
        agent = agents.ImageAgent(f"{tmp_path}/docker.sock", NAME, False, lambda _agent: {})
        giver = self.node(self.source, SOURCE, port=port, peers=[RECEIVER])

        def serve() -> None:
            self.served = giver._serve(agent)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            return self.node(self.receiver, RECEIVER, source_address=SOURCE, port=port, layers=IDS, common=common)._fetch(agent)
        finally:
            thread.join(10)
            agent.leave()
            assert not thread.is_alive()


def blobs(*digests: str) -> set[str]:
    return {"blobs/" + digest.replace(":", "/") for digest in digests}


CONFIG = made.digest(made.config(LAYERS))


def test_only_the_missing_layer_is_read_and_sent(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    store = made.overlay2(tmp_path / "source", LAYERS)
    pair = Pair(monkeypatch, Daemon(store, True), Daemon(made.overlay2(tmp_path / "receiver", LAYERS[:1]), False))
    # Not even the size of what is not sent is looked for.
    for split in (tmp_path / "source").glob("image/overlay2/layerdb/sha256/" + IDS[0][7:] + "/tar-split.json.gz"):
        split.write_bytes(b"not to be read")
    done = pair.move(tmp_path, common=1)
    assert pair.receiver.names() == [blobs(IDS[1], CONFIG) | {"manifest.json"}]
    assert done["whole"] is False and done["bytes"] == len(pair.receiver.loaded[0]) == pair.served["bytes"]
    assert pair.served["saved"] == [] and pair.served["served"][0]["error"] is None


def test_between_containerd_s_stores(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    """The receiver has the lower layer as it was built, the source compressed."""
    source = made.containerd(tmp_path / "source", LAYERS, packed=True)
    pair = Pair(monkeypatch, Daemon(source, True), Daemon(made.containerd(tmp_path / "receiver", LAYERS[:1], packed=False), False))
    assert pair.node(pair.receiver, RECEIVER).inspect()["chains"] == [IDS[0]]
    assert pair.move(tmp_path, common=1)["whole"] is False
    (names,) = pair.receiver.names()
    assert names >= {"index.json", "manifest.json", "oci-layout"} and not names & blobs(IDS[0])
    assert len(pair.receiver.loaded[0]) < 30_000


def test_where_the_store_is_another_one_docker_save_is_thinned_out(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    info, image = made.overlay2(tmp_path / "source", LAYERS)
    pair = Pair(monkeypatch, Daemon(({**info, "Driver": "zfs"}, image), True, saved(LAYERS)), Daemon(made.overlay2(tmp_path / "receiver", LAYERS[:1]), False))
    assert pair.move(tmp_path, common=1)["whole"] is False
    assert pair.receiver.names() == [blobs(IDS[1], CONFIG) | {"manifest.json"}]
    assert pair.served["saved"] == ["the storage driver is zfs"] and pair.source.saves == 1


def test_a_layer_that_can_not_be_read_on_the_way_makes_it_docker_save(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    store = made.overlay2(tmp_path / "source", LAYERS)
    (file,) = (tmp_path / "source").glob("overlay2/*/diff/opt/b")
    file.write_bytes(b"shorter")
    pair = Pair(monkeypatch, Daemon(store, True, saved(LAYERS)), Daemon(made.overlay2(tmp_path / "receiver", LAYERS[:1]), False))
    done = pair.move(tmp_path)
    assert done["whole"] is True and pair.source.saves == 1
    assert pair.receiver.names()[-1] == blobs(*IDS, CONFIG) | {"manifest.json"}
    (reason,) = pair.served["saved"]
    assert reason == "127.0.0.2 could not send: opt/b can't be read: it has 7 bytes instead of 5000"


def test_a_daemon_that_can_not_use_what_it_seemed_to_have_gets_all(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    pair = Pair(
        monkeypatch, Daemon(made.overlay2(tmp_path / "source", LAYERS), True, saved(LAYERS)), Daemon(made.overlay2(tmp_path / "other", LAYERS[:1]), False)
    )
    pair.receiver.refusals = ["open blobs/sha256/aa: no such file or directory"]
    done = pair.move(tmp_path, common=1)
    assert done["whole"] is True and done["identity"]["layers"] == IDS[:1]
    assert [len(names) for names in pair.receiver.names()] == [3, 4]
    assert done["bytes"] == sum(map(len, pair.receiver.loaded))


@pytest.mark.parametrize("refusals", [["write: no space left on device"], ["invalid diffID for layer 1", "invalid diffID for layer 1"]])
def test_what_another_try_can_not_mend_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path, refusals: list[str]) -> None:
    pair = Pair(
        monkeypatch, Daemon(made.overlay2(tmp_path / "source", LAYERS), True, saved(LAYERS)), Daemon(made.overlay2(tmp_path / "other", LAYERS[:1]), False)
    )
    pair.receiver.refusals = list(refusals)
    with pytest.raises(DockerError, match=refusals[0]):
        pair.move(tmp_path)
    assert len(pair.receiver.loaded) == len(refusals)
    assert refusals[0] in pair.served["served"][0]["error"]


def test_a_second_one_is_not_begun(tmp_path: pathlib.Path) -> None:
    host = f"{tmp_path}/docker.sock"
    agent = agents.ImageAgent(host, NAME, True, lambda _agent: {})
    threading.Thread(target=agent.stay, daemon=True).start()
    try:
        given = {"image": NAME, "docker_host": host, "connect_timeout": 3, "stall_timeout": 3, "timeout": 20, "seconds": 0, "known": "running"}
        with pytest.raises(TransferError, match="A copy of lab/x:1 runs on this node already: run this again to see it to its end"):
            subject.ImageNode(given).fetch()
        status = subject.ImageNode(given).watch()["status"]
        assert (status["state"], status["source"]) == ("running", True)
    finally:
        agent.leave()
    assert subject.ImageNode(given).watch() == {"status": None}
