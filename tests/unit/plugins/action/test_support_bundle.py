# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The archive: what is in it, that no secret is, and that it appears whole or not at all."""

from __future__ import annotations

import base64
import gzip
import io
import json
import pathlib
import stat
import tarfile
import types
import typing as t

import pytest
from ansible import constants as C
from ansible import context
from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure

from ansible_collections.sparkstack.inference.plugins.action import support_bundle as subject
from ansible_collections.sparkstack.inference.plugins.plugin_utils import _bundle

KEY = "geheim-abc-123"
VERDICT = {"verdict": "failed", "summary": f"It said {KEY}.", "nodes": {"spark1": {"rank": 0, "closeup": {"memory": {}}}, "spark2": {"rank": 1}}}


def contents(path: pathlib.Path) -> dict[str, str]:
    with tarfile.open(path) as archive:
        return {member.name: t.cast(t.IO[bytes], archive.extractfile(member)).read().decode() for member in archive}


def test_an_archive_is_its_owners_only_and_whole(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "support.tar.gz"
    size = _bundle.write(str(path), {"a.txt": b"1\n", f"{KEY}/b": KEY.encode()}, [KEY], replace=False)
    assert contents(path) == {"support/***/b": "***", "support/a.txt": "1\n"}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and path.stat().st_size == size
    assert not list(tmp_path.glob(".*"))


def test_one_that_is_there_is_replaced_only_on_request(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "support.tar.gz"
    path.write_text("old")
    with pytest.raises(FileExistsError):
        _bundle.write(str(path), {"a": b""}, [], replace=False)
    assert path.read_text() == "old" and not list(tmp_path.glob(".*"))
    _bundle.write(str(path), {"a": b""}, [], replace=True)
    assert list(contents(path)) == ["support/a"] and not list(tmp_path.glob(".*"))


def test_a_long_log_file_keeps_its_beginning_and_its_end(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "x.log"
    path.write_bytes(b"a" * 10 + b"b" * 50 + b"c" * 10)
    assert _bundle.part_of_log(str(path), 10, 10) == b"a" * 10 + b"\n[.. 50 bytes are left out here ..]\n" + b"c" * 10
    assert _bundle.part_of_log(str(path), 35, 35) == path.read_bytes()


def test_the_version_of_a_checkout_and_of_an_installed_collection(tmp_path: pathlib.Path) -> None:
    (tmp_path / "galaxy.yml").write_text("name: inference\nversion: 1.2.3\n")
    assert _bundle.version(str(tmp_path)) == "1.2.3"
    (tmp_path / "MANIFEST.json").write_text(json.dumps({"collection_info": {"version": "1.2.4"}}))
    assert _bundle.version(str(tmp_path)) == "1.2.4"


class Action(subject.ActionModule):
    """The action with its surroundings scripted."""

    def __init__(self, arguments: dict[str, t.Any], part: t.Any, check: bool = False) -> None:
        self.part = part
        self.censored: list[bool] = []
        self._play_context = types.SimpleNamespace(no_log=False)
        # Ansible gives the connection a copy.
        self._connection = types.SimpleNamespace(_play_context=types.SimpleNamespace(no_log=False))
        self._task = types.SimpleNamespace(args=arguments, _uuid="task", check_mode=check)
        self._templar = types.SimpleNamespace(template=lambda value: value)

    def validate_argument_spec(self, argument_spec: dict[str, t.Any] | None = None, **_known: t.Any) -> tuple[t.Any, dict[str, t.Any]]:
        from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

        result = ArgumentSpecValidator(argument_spec).validate(self._task.args)
        assert not result.error_messages, result.error_messages
        return result, result.validated_parameters

    def _execute_module(self, module_name: str, module_args: dict[str, t.Any], task_vars: t.Any) -> t.Any:
        self.censored.append(self._play_context.no_log and self._connection._play_context.no_log)
        if isinstance(self.part, Exception):
            raise self.part
        if module_name == subject.PART:
            return dict(self.part, asked=module_args)
        return {"ansible_facts": {"of": module_name}}


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    (tmp_path / "local").mkdir()
    monkeypatch.setattr(C, "DEFAULT_LOCAL_TMP", str(tmp_path / "local"))
    monkeypatch.setattr(subject.ActionBase, "run", lambda self, tmp=None, task_vars=None: {})
    monkeypatch.setattr(context, "CLIARGS", {"forks": 5})
    monkeypatch.chdir(tmp_path)


def part(text: str, *secrets: str) -> dict[str, t.Any]:
    return {"files": {"container.log": base64.b64encode(gzip.compress(text.encode())).decode()}, "secrets": list(secrets)}


def run(action: Action, host: str = "spark1", hosts: t.Sequence[str] = ("spark1",), **variables: t.Any) -> dict[str, t.Any]:
    return action.run(task_vars={"inventory_hostname": host, "ansible_play_batch": list(hosts), **variables})


ARGUMENTS = {"path": "b.tar.gz", "verdict": VERDICT, "report": [f"FAILED: {KEY}"], "container": "rank0"}


def test_the_first_member_writes_what_all_told_and_no_nodes_secret_is_in_any_file(tmp_path: pathlib.Path) -> None:
    hosts = ["spark1", "spark2"]
    second = Action(ARGUMENTS, part(f"of 2: {KEY}", "other-secret"))
    assert run(second, "spark2", hosts) == {"changed": False, "path": str(tmp_path / "b.tar.gz")}
    first = Action(ARGUMENTS, part("of 1: other-secret", KEY))
    result = run(first, "spark1", hosts, tp_launch_api_key="from-a-vault", tp_launch_gpus="auto", elsewhere="x", ansible_password="sudo-word")
    assert result["changed"] and result["size_bytes"] == (tmp_path / "b.tar.gz").stat().st_size
    found = contents(tmp_path / "b.tar.gz")
    assert (
        sorted(name.removeprefix("b/") for name in found)
        == result["files"]
        == sorted(
            ["about.json", "report.txt", "variables.json", "verdict.json", "spark1/closeup.json"]
            + [f"{host}/{name}" for host in hosts for name in ("container.log", "fabric.json", "memory.json")]
        )
    )
    assert found["b/spark1/container.log"] == "of 1: ***" and found["b/spark2/container.log"] == "of 2: ***"
    assert found["b/report.txt"] == "FAILED: ***\n" and KEY not in "".join(found.values())
    assert json.loads(found["b/variables.json"]) == {"tp_launch_api_key": "***", "tp_launch_gpus": "auto"}
    # Neither a debug log nor the board keeps what the nodes told.
    assert first.censored == second.censored == [True, True, True] and not first._play_context.no_log
    assert not first._connection._play_context.no_log
    assert not [path for path in (tmp_path / "local").rglob("*") if path.is_file()]


def test_a_node_that_cannot_be_reached_is_left_out_and_told() -> None:
    run(Action(ARGUMENTS, AnsibleConnectionFailure("timed out")))
    assert contents(pathlib.Path("b.tar.gz"))["b/spark1/problems.txt"] == "The node could not be reached: timed out\n"


def test_a_node_that_never_answers_is_told(tmp_path: pathlib.Path) -> None:
    run(Action({**ARGUMENTS, "timeout": 0.1}, part("x")), hosts=["spark1", "spark2"])
    found = contents(tmp_path / "b.tar.gz")
    assert "no word from spark2 after 0 s" in found["b/spark2/problems.txt"] and found["b/spark1/container.log"] == "x"


def test_logs_need_no_node(tmp_path: pathlib.Path) -> None:
    log = tmp_path / "head.log"
    log.write_text(f"--api-key {KEY}\n")
    run(Action({"path": "b.tar.gz", "verdict": VERDICT, "logs": [{"node": "a/b", "rank": 0, "path": str(log)}, {"node": "c", "started": False}]}, None))
    assert contents(tmp_path / "b.tar.gz")["b/a_b/container.log"] == "--api-key ***\n"


def test_check_mode_writes_nothing(tmp_path: pathlib.Path) -> None:
    assert run(Action(ARGUMENTS, None, check=True)) == {"changed": True, "path": str(tmp_path / "b.tar.gz")}
    assert not (tmp_path / "b.tar.gz").exists()


@pytest.mark.parametrize(
    "change, hosts, sentence",
    [
        ({"path": "no/b.tar.gz"}, ["spark1"], r"There is no folder .*/no for b\.tar\.gz on this machine"),
        ({"path": "old"}, ["spark1"], r"old is there already: name another file"),
        ({"members": ["spark2"]}, ["spark1"], r"spark1 is not among the members of the bundle: spark2\."),
        ({}, [f"spark{number}" for number in range(1, 7)], r"All 6 nodes must be read at the same time: set forks to 6 or more \(it is 5\)\."),
        ({"logs": [{"node": "spark1", "path": "none.log"}]}, ["spark1"], r"The log of spark1 cannot be read: .*none\.log"),
    ],
)
def test_refusals(change: dict[str, t.Any], hosts: list[str], sentence: str, tmp_path: pathlib.Path) -> None:
    (tmp_path / "old").touch()
    with pytest.raises(AnsibleActionFail, match=sentence):
        run(Action({**ARGUMENTS, **change}, part("")), hosts=hosts)


def test_a_failed_module_is_told_in_the_bundle(tmp_path: pathlib.Path) -> None:
    run(Action(ARGUMENTS, {"failed": True, "msg": "sudo: a password is required"}))
    assert contents(tmp_path / "b.tar.gz")["b/spark1/problems.txt"] == "The node's part could not be read: sudo: a password is required\n"


def test_bytes_that_are_no_text_pass_through(tmp_path: pathlib.Path) -> None:
    _bundle.write(str(tmp_path / "b.tgz"), {"x": b"\xff\xfe"}, [], replace=False)
    with tarfile.open(fileobj=io.BytesIO((tmp_path / "b.tgz").read_bytes())) as archive:
        assert t.cast(t.IO[bytes], archive.extractfile("b/x")).read() == b"\xff\xfe"
