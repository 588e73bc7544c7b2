# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One node's part of a bundle: long logs, masked inspections, what the kernel says; the daemon is made of plain data."""

from __future__ import annotations

import contextlib
import io
import json
import pathlib
import typing as t

import pytest

from ansible_collections.sparkstack.inference.plugins.module_utils import _support_part as subject
from ansible_collections.sparkstack.inference.plugins.module_utils._docker_api import DockerError

KEY = "geheim-abc-123"


def stamp(number: int) -> bytes:
    return f"2026-11-29T22:{number // 60:02d}:{number % 60:02d}.000000000Z ".encode()


class Docker:
    """A daemon with one container, whose log is these messages; each is a frame, with a time of its own."""

    def __init__(self, messages: t.Sequence[bytes], tty: bool = False, container: dict[str, t.Any] | None = None) -> None:
        self.messages = [stamp(number) + message for number, message in enumerate(messages)]
        self.tty = tty
        self.inspection = container
        self.tails: list[str] = []

    @contextlib.contextmanager
    def request(self, _method: str, path: str, query: dict[str, str]) -> t.Iterator[t.Any]:
        assert path == "/containers/rank0/logs" and query["timestamps"] == "1"
        self.tails.append(query["tail"])
        messages = self.messages if query["tail"] == "all" else self.messages[-3:]
        yield io.BytesIO(b"".join(messages if self.tty else [b"\x01\0\0\0" + len(m).to_bytes(4, "big") + m for m in messages]))

    def get(self, path: str, _query: t.Any = None) -> t.Any:
        if self.inspection is None and path == "/info":
            raise DockerError("Docker does not answer on /x: [Errno 2] No such file.")
        return {"/info": {"ServerVersion": "29.1", "Runtimes": {"runc": {}}}, "/version": {"Components": [{"Name": "Engine", "Version": "29.1"}]}}.get(path, [])

    def container(self, name: str) -> t.Any:
        return self.inspection if name == "rank0" else None


def log(docker: Docker, first: int = 100, last: int = 100) -> bytes:
    return subject.long_log(t.cast(t.Any, docker), "rank0", docker.tty, first, last)


@pytest.mark.parametrize("tty", [False, True])
def test_a_short_log_is_whole(tty: bool) -> None:
    docker = Docker([b"one\n", b"two\n"], tty)
    assert log(docker) == stamp(0) + b"one\n" + stamp(1) + b"two\n"
    assert docker.tails == ["all"]


def test_the_parts_of_a_long_line_are_joined() -> None:
    assert log(Docker([b"a" * 20, b"b" * 20 + b"\n", b"c\n"])) == stamp(0) + b"a" * 20 + b"b" * 20 + b"\n" + stamp(2) + b"c\n"


def test_of_a_long_log_the_beginning_and_the_end_are_kept() -> None:
    docker = Docker([b"%03d\n" % number for number in range(20)])
    found = log(docker, first=70, last=72)
    assert found.startswith(stamp(0) + b"000\n" + stamp(1) + b"001\n") and found.endswith(stamp(18) + b"018\n" + stamp(19) + b"019\n")
    assert b"a part of the log is left out here" in found and b"010" not in found


def test_where_beginning_and_end_meet_nothing_is_told_twice_or_said_to_be_missing() -> None:
    docker = Docker([b"%03d\n" % number for number in range(4)])
    assert log(docker, first=90, last=1000) == b"".join(docker.messages)


CONTAINER = {
    "Id": "rank0",
    "Name": "/rank0",
    "Path": "vllm",
    "Args": ["serve", "/models/tiny", "--api-key", KEY],
    "Config": {"Tty": False, "Env": ["HF_TOKEN=hf-geheim", "PATH=/bin"], "Labels": {}},
    "Mounts": [],
}


def test_all_of_a_node_without_its_secrets(tmp_path: pathlib.Path) -> None:
    for name, text in {"proc/meminfo": "MemTotal: 1 kB\n", "var/lib/sparkstack/secrets/rank0.env": "VLLM_API_KEY='in the file'\n"}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    model = tmp_path / "tiny"
    model.mkdir()
    (model / "config.json").write_text("{}")
    (model / "gone.safetensors").symlink_to("../blobs/none")
    container = {**CONTAINER, "Mounts": [{"Source": str(tmp_path), "Destination": "/models", "RW": False}]}
    docker = Docker([f"key {KEY}\n".encode(), b"in the file hf-geheim\n"], container=container)
    said = {"dmesg": f"[1] eth0: Link is Down\n[2] boring\n[3] Out of memory: Killed process 7 {KEY}\n"}
    files, secrets = subject.collect(t.cast(t.Any, docker), "rank0", lambda words: said.get(words[0], ""), str(tmp_path))
    assert sorted(secrets) == sorted(["hf-geheim", KEY, "in the file"])
    assert files["container.log"] == stamp(0) + b"key ***\n" + stamp(1) + b"*** ***\n"
    assert json.loads(files["container.json"])["Config"]["Env"] == ["HF_TOKEN=***", "PATH=/bin"]
    assert json.loads(files["container.json"])["Args"][-1] == "***"
    assert files["kernel.txt"] == b"[1] eth0: Link is Down\n[3] Out of memory: Killed process 7 ***\n"
    assert b"config.json" in files["model.txt"] and b"No such file or directory  gone.safetensors -> ../blobs/none" in files["model.txt"]
    assert files["meminfo.txt"] == b"MemTotal: 1 kB\n"
    assert json.loads(files["docker.json"])["ServerVersion"] == "29.1"
    assert not [name for name, data in files.items() for secret in secrets if secret.encode() in data]


TOLD = {
    "container": "rank0", "name": "rank0", "deployment": "qwen", "at": 1796040061.3, "why": "floor", "available": 2469606195, "total": 128420151296,
    "limit": "", "floor": 2576980377, "rate": 1932735283, "swap_total": 0, "swap_used": 0, "swap_before": 0, "gone_s": 1.24,
    "curve": [[1796040001.0, 120474042368], [1796040061.3, 2469606195]],
}  # fmt: skip
JOURNAL = f"2026-11-30T12:00:01+0000 spark2 sparkstack-guard[77]: qwen: Stops rank0 when less than 2.4 GiB of 119.6 GiB are available; {KEY}.\n"


def part(root: pathlib.Path, told: str | None, deployment: str | None = "qwen", name: str = "rank0", journal: str = JOURNAL) -> dict[str, bytes]:
    """The files of a node on which a guard has told this."""
    if told is not None:
        (root / "run/sparkstack/guard").mkdir(parents=True)
        (root / "run/sparkstack/guard/qwen.told.json").write_text(told)
    labels = {"sparkstack.deployment": deployment} if deployment else None
    container = {**CONTAINER, "Config": {**t.cast("dict[str, t.Any]", CONTAINER["Config"]), "Labels": labels}}

    def run(words: list[str]) -> str:
        return journal if words[:3] == ["journalctl", "--unit", "sparkstack-guard@qwen.service"] else ""

    return subject.collect(t.cast(t.Any, Docker([], container=container)), name, run, str(root))[0]


def test_what_the_guard_told_goes_along_with_its_curve_and_its_journal(tmp_path: pathlib.Path) -> None:
    files = part(tmp_path, json.dumps(TOLD))
    assert json.loads(files["guard.json"]) == TOLD
    assert files["guard.txt"].decode().splitlines() == [
        "rank0 was stopped by the memory guard at 2026-11-30 12:01:01.3 UTC: 2.3 GiB of 119.6 GiB were left, falling by 1.8 GiB/s (floor 2.4 GiB).",
        "rank0: its last process was gone 1.2 s later.",
        "",
        "Available, by the node's clock in UTC:",
        "  12:00:01.0  112.2 GiB",
        "  12:01:01.3  2.3 GiB",
        "",
        "sparkstack-guard@qwen.service:",
        JOURNAL.replace(KEY, "***").rstrip(),
    ]


def test_a_guard_that_had_nothing_to_stop_tells_by_its_journal(tmp_path: pathlib.Path) -> None:
    files = part(tmp_path, None)
    assert files["guard.txt"].decode().splitlines()[0] == "sparkstack-guard@qwen.service:" and "guard.json" not in files


@pytest.mark.parametrize("told", ["{", "[]", '{"at": "noon", "name": "rank0"}', f'{{"name": "{KEY}"}}'])
def test_a_damaged_word_goes_along_as_it_is(tmp_path: pathlib.Path, told: str) -> None:
    files = part(tmp_path, told, journal="-- No entries --\n")
    assert files["guard.json"].decode() == told.replace(KEY, "***") and "guard.txt" not in files


@pytest.mark.parametrize("deployment", [None, "llama", "../../etc/x"])
def test_another_deployments_guard_is_left_out(tmp_path: pathlib.Path, deployment: str | None) -> None:
    assert not {"guard.json", "guard.txt"} & part(tmp_path, json.dumps(TOLD), deployment).keys()


@pytest.mark.parametrize(("name", "found"), [("rank9", True), ("rank1", False), ("", False)])
def test_a_container_that_is_gone_is_known_by_the_guards_own_word(tmp_path: pathlib.Path, name: str, found: bool) -> None:
    files = part(tmp_path, json.dumps({**TOLD, "name": "rank9"}), name=name)
    assert ("guard.json" in files) is found


@pytest.mark.parametrize(
    "words, found",
    [
        (["serve", "/models/tiny"], ["tiny"]),
        (["-c", "exec sglang serve --model-path=/models/tiny/ --port 1"], ["tiny"]),
        (["serve", "/models"], [""]),
        (["serve", "/models/none", "/modelsx/tiny", "tiny"], []),
    ],
)
def test_the_models_folder_is_the_one_that_the_command_line_names(words: list[str], found: list[str], tmp_path: pathlib.Path) -> None:
    (tmp_path / "tiny").mkdir()
    told = {"Path": "vllm", "Args": words, "Mounts": [{"Source": str(tmp_path), "Destination": "/models"}]}
    assert subject.model_folders(told) == [str(tmp_path / name) if name else str(tmp_path) for name in found]


@pytest.mark.parametrize(
    "container, name, problem",
    [(CONTAINER, "rank9", b"There is no container rank9.\n"), (None, "rank0", b"Docker does not answer on /x: [Errno 2] No such file.\n")],
)
def test_a_node_that_can_tell_little_says_why(container: t.Any, name: str, problem: bytes, tmp_path: pathlib.Path) -> None:
    files, secrets = subject.collect(t.cast(t.Any, Docker([], container=container)), name, lambda _words: "", str(tmp_path))
    assert files["problems.txt"] == problem and secrets == [] and "container.log" not in files


def test_a_log_that_breaks_off_leaves_the_rest(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(io.BytesIO):
        def read(self, _size: int | None = -1) -> bytes:
            raise TimeoutError("timed out")

    docker = Docker([b"one\n"], container=CONTAINER)
    monkeypatch.setattr(docker, "request", lambda *_arguments: contextlib.nullcontext(Broken()))
    files, _secrets = subject.collect(t.cast(t.Any, docker), "rank0", lambda _words: "", str(tmp_path))
    assert files["problems.txt"] == b"Docker has broken off an answer: timed out.\n" and "container.json" in files
