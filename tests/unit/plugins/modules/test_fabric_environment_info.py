# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is read of an image, of running containers and of a file, by a daemon that answers as scripted."""

from __future__ import annotations

import io
import json
import pathlib
import tarfile
import time
import typing as t
from urllib.parse import unquote

import pytest
from ansible.module_utils import basic

from ansible_collections.sparkstack.inference.plugins.module_utils import _image_files
from ansible_collections.sparkstack.inference.plugins.module_utils._docker_api import DockerError, DockerUnreachable
from ansible_collections.sparkstack.inference.plugins.modules import fabric_environment_info as subject

INSPECTION = {
    "Config": {"Env": ["NCCL_SOCKET_IFNAME=eth0", "PATH=/usr/bin"], "User": "", "Entrypoint": ["vllm"]},
    "Architecture": "arm64",
    "Os": "linux",
    "RootFS": {"Layers": ["sha256:aa"]},
}
PASSWD = "root:x:0:0:root:/root:/bin/bash\nserve:x:1000:1000::/home/serve:/bin/sh\nbare:x:7:7:::/bin/sh\n"


def archive(name: str, text: str | None = None, link: str = "") -> bytes:
    """A file, a link, or with neither a folder, as Docker's archive call gives it."""
    entry = tarfile.TarInfo(name)
    data = (text or "").encode()
    entry.size, entry.linkname = len(data), link
    entry.type = tarfile.SYMTYPE if link else tarfile.DIRTYPE if text is None else tarfile.REGTYPE
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        tar.addfile(entry, io.BytesIO(data))
    return packed.getvalue()


class Daemon:
    """A daemon with one image, which has C(files) by their paths, and some containers."""

    def __init__(self, files: t.Mapping[str, bytes | Exception] | None = None, image: t.Any = INSPECTION, containers: t.Sequence[t.Any] = ()) -> None:
        self.files = {"/etc/passwd": archive("passwd", PASSWD), **(files or {})}
        self.inspection, self.containers = image, containers
        self.calls: list[str] = []

    def image(self, _name: str) -> t.Any:
        if isinstance(self.inspection, Exception):
            raise self.inspection
        return self.inspection

    def get(self, _path: str, _query: t.Any = None) -> t.Any:
        return [
            {"Id": entry["Id"], "Created": entry.get("Created")}
            for entry in self.containers
            if (_image_files.FILES in (_query or {}).get("filters", "")) is ("Created" in entry)
        ]

    def container(self, name: str) -> t.Any:
        return next((entry for entry in self.containers if entry["Id"] == name), None)

    def request(self, method: str, path: str, query: t.Any = None, body: t.Any = None) -> t.Any:
        self.calls.append(f"{method} {unquote(path)}" + (f" {query['path']}" if query and "path" in query else ""))
        if method == "POST":
            assert body["Image"] == "vllm:1" and body["HostConfig"]["NetworkMode"] == "none" and body["Labels"] == {_image_files.FILES: "vllm:1"}
            return io.BytesIO(b'{"Id": "c1"}')
        if method == "DELETE":
            return io.BytesIO()
        found = self.files.get(query["path"], DockerError("Could not find the file", 404))
        if isinstance(found, Exception):
            raise found
        return io.BytesIO(found)


def test_a_container_is_created_never_started_and_removed() -> None:
    daemon = Daemon({"/etc/nccl.conf": archive("nccl.conf", "NCCL_IB_USE_INLINE=1\n")})
    assert _image_files.baked(daemon, INSPECTION, "vllm:1") == {
        "environment": {"NCCL_SOCKET_IFNAME": "eth0"},
        "files": [{"path": "/etc/nccl.conf", "values": {"NCCL_IB_USE_INLINE": "1"}}],
    }
    assert daemon.calls == [
        "POST /containers/create",
        "GET /containers/c1/archive /etc/passwd",
        "GET /containers/c1/archive /root/.nccl.conf",
        "GET /containers/c1/archive /etc/nccl.conf",
        "DELETE /containers/c1",
    ]


def test_the_container_is_removed_when_docker_fails() -> None:
    daemon = Daemon({"/etc/nccl.conf": DockerError("no space left on device", 500)})
    with pytest.raises(DockerError, match="no space left"):
        _image_files.baked(daemon, INSPECTION, "vllm:1")
    assert daemon.calls[-1] == "DELETE /containers/c1"


def test_what_a_killed_module_has_left_is_removed() -> None:
    now = time.time()
    daemon = Daemon(containers=[{"Id": "left", "Created": now - 700}, {"Id": "another's", "Created": now - 5}])
    _image_files.baked(daemon, INSPECTION, "vllm:1")
    assert daemon.calls[:2] == ["DELETE /containers/left", "POST /containers/create"] and daemon.calls.count("DELETE /containers/another's") == 0


@pytest.mark.parametrize(
    ("config", "first"),
    [
        ({"User": "serve"}, "/home/serve/.nccl.conf"),
        ({"User": "1000:1000"}, "/home/serve/.nccl.conf"),
        ({"User": "0"}, "/root/.nccl.conf"),
        ({"User": "4711"}, "/.nccl.conf"),
        ({"User": "bare"}, "/.nccl.conf"),
        ({"Env": ["HOME=/srv/home"]}, "/srv/home/.nccl.conf"),
        ({"Env": ["NCCL_CONF_FILE=/opt/nccl.conf", "HOME=/srv/home"]}, "/opt/nccl.conf"),
        ({"Env": ["NCCL_CONF_FILE=nccl.conf"]}, "/nccl.conf"),
        ({"Env": ["NCCL_CONF_FILE=/etc/nccl.conf"]}, "/etc/nccl.conf"),
    ],
)
def test_which_files_nccl_reads(config: dict[str, t.Any], first: str) -> None:
    paths = dict.fromkeys([first, "/etc/nccl.conf"])
    daemon = Daemon({path: archive("nccl.conf", f"NCCL_DEBUG={path}") for path in paths})
    found = _image_files.baked(daemon, {"Config": config}, "vllm:1")
    assert found["files"] == [{"path": path, "values": {"NCCL_DEBUG": path}} for path in paths]


def test_a_link_is_followed_and_a_folder_is_no_file() -> None:
    daemon = Daemon({"/etc/nccl.conf": archive("nccl.conf", link="../opt/nccl.conf"), "/opt/nccl.conf": archive("nccl.conf", "NCCL_NET=IB")})
    with _image_files.ImageFiles(daemon, "vllm:1") as files:
        assert files.text("/etc/nccl.conf") == "NCCL_NET=IB"
        daemon.files["/opt/nccl.conf"] = archive("nccl.conf", link="/etc/nccl.conf")
        assert files.text("/etc/nccl.conf") is None
        daemon.files["/etc/nccl.conf"] = archive("nccl.conf")
        assert files.text("/etc/nccl.conf") is None
        daemon.files["/etc/nccl.conf"] = b"cut off"
        assert files.text("/etc/nccl.conf") is None


def rank(number: int, running: bool, *env: str) -> dict[str, t.Any]:
    labels = {"sparkstack.deployment": "tiny", "sparkstack.rank": str(number)}
    return {"Id": f"id{number}", "Name": f"/tiny-rank{number}", "Config": {"Labels": labels, "Env": list(env)}, "State": {"Running": running}}


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path) -> t.Callable[..., dict[str, t.Any]]:
    def run_module(daemon: Daemon, **arguments: t.Any) -> dict[str, t.Any]:
        arguments = {"cache_dir": str(tmp_path / "options"), **arguments}
        monkeypatch.setattr(subject, "DockerAPI", lambda _path: daemon)
        monkeypatch.setattr(basic, "_ANSIBLE_ARGS", json.dumps({"ANSIBLE_MODULE_ARGS": arguments}).encode())
        monkeypatch.setattr(basic, "_ANSIBLE_PROFILE", "legacy", raising=False)
        with pytest.raises(SystemExit):
            subject.main()
        return t.cast("dict[str, t.Any]", json.loads(capsys.readouterr().out))

    return run_module


def test_the_answer_is_kept_for_the_images_content(run: t.Callable[..., dict[str, t.Any]], tmp_path: pathlib.Path) -> None:
    daemon = Daemon({"/root/.nccl.conf": archive("conf", "NCCL_DEBUG=INFO")})
    first = run(daemon, image="vllm:1", environment={"NCCL_SOCKET_IFNAME": "enp1s0f0np0"})
    assert [(finding["name"], finding["status"]) for finding in first["findings"]] == [("NCCL_SOCKET_IFNAME", "overridden"), ("NCCL_DEBUG", "left")]
    assert first["notes"][0] == "the image's own NCCL_SOCKET_IFNAME=eth0 does not count: each node has its own value"
    asked = len(daemon.calls)
    again = run(daemon, image="vllm:1", environment={"NCCL_SOCKET_IFNAME": "enp1s0f0np0"})
    assert (again["image"], len(daemon.calls)) == (first["image"], asked)
    daemon.inspection = {**INSPECTION, "RootFS": {"Layers": ["sha256:bb"]}}
    run(daemon, image="vllm:1")
    assert len(daemon.calls) == 2 * asked
    assert len(list((tmp_path / "options").iterdir())) == 2
    # What was cut off while it was written is read anew.
    for path in (tmp_path / "options").iterdir():
        path.write_text('{"env')
    assert run(daemon, image="vllm:1")["image"] == first["image"]


def test_check_mode_keeps_nothing(run: t.Callable[..., dict[str, t.Any]], tmp_path: pathlib.Path) -> None:
    assert run(Daemon(), image="vllm:1", _ansible_check_mode=True)["image"]["environment"] == {"NCCL_SOCKET_IFNAME": "eth0"}
    assert not (tmp_path / "options").exists()


def test_nothing_is_kept_without_a_folder(run: t.Callable[..., dict[str, t.Any]], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(Daemon(), image="vllm:1", cache_dir="")["image"]["environment"] == {"NCCL_SOCKET_IFNAME": "eth0"}
    assert list(tmp_path.iterdir()) == []


def test_an_image_that_is_not_there_and_a_daemon_that_is_not(run: t.Callable[..., dict[str, t.Any]]) -> None:
    missing = run(Daemon(image=None), image="vllm:1")
    assert (missing["image"], missing["findings"], missing["notes"], missing["problem"]) == (None, [], [], None)
    silent = run(Daemon(image=DockerUnreachable("Docker does not answer on /run/x: refused.")), image="vllm:1")
    assert (silent["image"], silent["problem"]) == (None, "Docker does not answer on /run/x: refused.")


def test_running_containers_and_a_file_are_compared(run: t.Callable[..., dict[str, t.Any]], tmp_path: pathlib.Path) -> None:
    wanted = {"NCCL_IB_HCA": "rocep1s0f0", "GLOO_SOCKET_IFNAME": "enp1s0f0np0"}
    containers = [
        rank(0, True, "NCCL_IB_HCA=rocep1s0f1", "GLOO_SOCKET_IFNAME=enp1s0f0np0", "NCCL_CROSS_NIC=0", "HF_TOKEN=hf_secret", "NCCL_DEBUG=INFO"),
        rank(1, False, "NCCL_IB_HCA=other"),
    ]
    file = tmp_path / "nccl.env"
    file.write_text("# here\nNCCL_IB_HCA=rocep1s0f0\nNCCL_DEBUG=INFO\n")
    found = run(Daemon(containers=containers), containers=True, deployment="tiny", file=str(file), environment=wanted)
    assert [(entry["where"], entry["kind"], entry["name"], entry["was"], entry["wanted"]) for entry in found["differences"]] == [
        (str(file), "file", "GLOO_SOCKET_IFNAME", None, "enp1s0f0np0"),
        (str(file), "file", "NCCL_DEBUG", "INFO", None),
        ("tiny-rank0", "container", "NCCL_CROSS_NIC", "0", None),
        ("tiny-rank0", "container", "NCCL_IB_HCA", "rocep1s0f1", "rocep1s0f0"),
    ]
    assert run(Daemon(), file=str(tmp_path / "none"), environment=wanted)["differences"] == []
