# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A model from a hub on this machine, by the real library: what comes, what stays, and what is said when it can't."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import threading
import time
import types
import typing as t

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3]))

import hub as hubs  # noqa: E402  (the path above must come first)

from ansible_collections.sparkstack.inference.plugins.module_utils import _hub_download as files  # noqa: E402
from ansible_collections.sparkstack.inference.plugins.module_utils import _hub_node as subject  # noqa: E402
from ansible_collections.sparkstack.inference.plugins.module_utils._model import manifest  # noqa: E402

ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
TOKEN = "hf_a1b2c3d4e5f6"


class Node:
    """A node with a folder for models, and a hub that it reaches."""

    def __init__(self, folder: pathlib.Path, hub: hubs.Hub) -> None:
        self.folder, self.hub = folder, hub
        self.model = folder / "models" / "tiny"
        self.control = folder / "models" / ".tiny.download"
        self.commands: list[tuple[list[str], str, dict[str, str]]] = []
        self.warnings: list[str] = []
        self.child: subprocess.Popen[str] | None = None

    def download(self, check: bool = False, **params: t.Any) -> dict[str, t.Any]:
        given = {name: argument.get("default") for name, argument in subject.ARGUMENTS.items()}
        given.update(repo=hubs.REPO, path=str(self.model), endpoint=self.hub.endpoint, python=sys.executable, exclude=["original/*"], xet=False)
        given.update(stall_timeout=20, timeout=120)
        (self.folder / "tmp").mkdir(exist_ok=True)
        module = types.SimpleNamespace(
            params={**given, **params}, check_mode=check, tmpdir=str(self.folder / "tmp"), run_command=self.run, warn=self.warnings.append
        )
        return subject.Download(module).run()

    def run(self, command: list[str], data: str, environ_update: dict[str, str], pass_fds: list[int], **_rest: t.Any) -> tuple[int, str, str]:
        self.commands.append((command, data, environ_update))
        pipe = subprocess.PIPE
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
        self.child = subprocess.Popen(command, text=True, stdin=pipe, stdout=pipe, stderr=pipe, env={**environment, **environ_update}, pass_fds=pass_fds or ())
        out, err = self.child.communicate(data)
        return self.child.returncode, out, err

    def failed(self, **params: t.Any) -> str:
        with pytest.raises(subject.Failed) as caught:
            self.download(**params)
        return str(caught.value)

    def content(self) -> dict[str, bytes]:
        found = {str(path.relative_to(self.model)): path.read_bytes() for path in self.model.rglob("*") if path.is_file()}
        found.pop(files.RECORD)
        return found

    def served(self, **more: bytes) -> dict[str, bytes]:
        """What the newest commit has, but for what is excluded."""
        return {**{name: data for name, data in self.hub.commits[self.hub.refs["main"]].items() if not name.startswith("original/")}, **more}


@pytest.fixture
def node(tmp_path: pathlib.Path) -> t.Iterator[Node]:
    hub = hubs.Hub()
    hub.commit(hubs.tiny_model())
    yield Node(tmp_path, hub)
    hub.close()


def test_a_model_comes_whole_with_its_commit_and_a_second_run_asks_nobody(node: Node) -> None:
    told = node.download()
    commit = node.hub.refs["main"]
    assert told["changed"] and told["commit"] == commit and told["bytes_loaded"] == told["bytes_total"] == sum(map(len, node.served().values()))
    assert node.content() == node.served() and manifest(str(node.model))["problem"] is None
    assert not node.control.exists() and {path.stat().st_mode & 0o777 for path in node.model.rglob("*")} == {0o644}
    record = json.loads((node.model / files.RECORD).read_text())
    assert (record["repo"], record["revision"], record["commit"]) == (hubs.REPO, "main", commit)
    asked = len(node.hub.seen)
    again = node.download()
    assert not again["changed"] and again["bytes_loaded"] == 0 and again["commit"] == commit and len(node.hub.seen) == asked
    # By its commit it is the same.
    assert not node.download(revision=commit)["changed"] and len(node.hub.seen) == asked


def test_a_branch_stays_at_its_commit_until_an_update_which_brings_only_what_is_new(node: Node) -> None:
    first = node.download()["commit"]
    (node.model / "notes.md").write_text("mine")
    model = hubs.tiny_model()
    model[TWO] = hubs.safetensors(b"new" * 100_000)
    del model["README.md"]
    second = node.hub.commit(model)
    assert node.download()["commit"] == first and node.download(check=True)["changed"] is False
    node.hub.seen.clear()
    seen = node.download(check=True, update=True)
    assert (seen["changed"], seen["files_loaded"], seen["commit"]) == (True, [TWO], second) and node.hub.loads() == []
    told = node.download(update=True)
    assert told["files_loaded"] == [TWO] and [name for name, _span in node.hub.loads()] == [TWO]
    assert node.content() == node.served(**{"notes.md": b"mine"}) and told["extra"] == ["notes.md"]
    assert told["diff"]["before"].startswith(f"lab/tiny at {first}") and told["diff"]["after"].startswith(f"lab/tiny at {second}")
    assert not node.download(update=True)["changed"] and not node.control.exists()
    # Back to what was pinned.
    assert node.download(revision=first)["files_loaded"] == ["README.md", TWO] and "README.md" in node.content()


def test_what_a_power_cut_right_after_the_end_has_left_goes_with_the_next_run(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.download()
    old = node.content()
    model = hubs.tiny_model()
    model[TWO] = hubs.safetensors(b"new" * 100_000)
    node.hub.commit(model)

    def cut(_places: files.Places) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as power:
        power.setattr(files, "clear", cut)
        with pytest.raises(KeyboardInterrupt):
            node.download(update=True)
    # The new model has the name, the old one lies hidden beside it.
    assert node.content() == node.served() and (node.control / "tree" / TWO).read_bytes() == old[TWO]
    asked = len(node.hub.seen)
    assert not node.download(check=True)["changed"] and node.control.exists()
    assert not node.download()["changed"] and not node.control.exists()
    assert node.content() == node.served() and len(node.hub.seen) == asked


def test_what_is_somebodys_own_is_not_lost_with_the_old_folder(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.download()
    (node.folder / "big").mkdir()
    (node.model / "linked").symlink_to(node.folder / "big")
    (node.model / "notes.md").write_text("mine")
    model = hubs.tiny_model()
    model[TWO] = hubs.safetensors(b"new" * 100_000)
    node.hub.commit(model)
    real = os.link

    def link(source: str, target: str, **more: t.Any) -> None:
        if source.endswith("notes.md"):
            raise PermissionError(1, "Operation not permitted")
        real(source, target, **more)

    monkeypatch.setattr(os, "link", link)
    assert node.failed(update=True).startswith(f"notes.md in {node.model} is not the model's, and this disk can't give it a second name")
    assert (node.model / "notes.md").read_text() == "mine" and (node.model / "linked").is_symlink()
    monkeypatch.setattr(os, "link", real)
    assert node.download(update=True)["extra"] == ["linked", "notes.md"]
    assert (node.model / "notes.md").read_text() == "mine" and (node.model / "linked").readlink() == node.folder / "big"


@pytest.mark.parametrize("damage", ["truncated", "missing", "flipped", "linked away"])
def test_what_was_damaged_is_found_and_only_that_comes(node: Node, damage: str) -> None:
    node.download()
    path = node.model / ONE
    status = path.stat()
    if damage == "truncated":
        os.truncate(path, 1000)
    elif damage == "missing":
        path.unlink()
    elif damage == "linked away":
        path.rename(node.folder / "elsewhere")
        path.symlink_to(node.folder / "elsewhere")
    else:
        data = bytearray(path.read_bytes())
        data[-7] ^= 1
        path.write_bytes(bytes(data))
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        # By its size and time it is as it was.
        assert not node.download()["changed"]
    node.hub.seen.clear()
    told = node.download(checksum=damage == "flipped")
    assert told["changed"] and told["files_loaded"] == [ONE] and [name for name, _span in node.hub.loads()] == [ONE]
    assert node.content() == node.served() and not path.is_symlink()


def test_what_is_there_already_is_taken_over_without_a_byte(node: Node) -> None:
    for name, data in node.served(**{"mine.txt": b"x"}).items():
        node.model.mkdir(parents=True, exist_ok=True)
        (node.model / name).write_bytes(data)
    told = node.download()
    assert told["changed"] and told["bytes_loaded"] == 0 and node.hub.loads() == [] and told["extra"] == ["mine.txt"]
    assert not node.download()["changed"]


def test_another_repository_is_not_put_over_it(node: Node) -> None:
    commit = node.download()["commit"]
    asked = len(node.hub.seen)
    assert f"is of lab/tiny at {commit}: give lab/other another path, or remove it." in node.failed(repo="lab/other")
    assert len(node.hub.seen) == asked and node.content() == node.served() and not node.control.exists()


def test_check_mode_tells_what_would_come_and_writes_nothing(node: Node) -> None:
    told = node.download(check=True)
    assert told["changed"] and told["bytes_loaded"] == sum(map(len, node.served().values())) and told["running"] is False
    assert node.hub.loads() == [] and not (node.folder / "models").exists()


def test_a_download_that_was_killed_goes_on_where_it_was_and_has_no_final_name_before(node: Node) -> None:
    node.hub.commit(hubs.tiny_model(1, 14_000_000))
    node.hub.rate = 20e6

    def kill() -> None:
        deadline = time.monotonic() + 60
        # The library writes 10 MiB at a time.
        while time.monotonic() < deadline:
            parts = list(node.control.glob("parts/*")) if node.child and node.child.poll() is None else []
            if len(parts) == 2 and all(path.stat().st_size >= 10 << 20 for path in parts):
                assert not node.model.exists()
                t.cast("subprocess.Popen[str]", node.child).kill()
                return
            time.sleep(0.02)

    killer = threading.Thread(target=kill)
    killer.start()
    said = node.failed()
    killer.join()
    assert "ended with exit code -9" in said and "goes on from there" in said and not node.model.exists()
    node.hub.rate = None
    # What main is by now is no matter: what was begun is finished.
    begun, wanted = node.hub.refs["main"], node.served()
    node.hub.commit(hubs.tiny_model(2))
    node.hub.seen.clear()
    told = node.download()
    assert sorted(node.hub.loads(".safetensors")) == [(ONE, "bytes=10485760-"), (TWO, "bytes=10485760-")]
    assert told["commit"] == begun and told["bytes_resumed"] >= 2 * (10 << 20) and node.content() == wanted and not node.control.exists()


def test_what_was_begun_of_another_commit_is_not_mixed_in(node: Node) -> None:
    node.hub.wrong = {TWO: 2}
    # One after the other, so that the smaller file has come when the other one fails.
    assert f"has twice given {TWO} with another content than its hash says" in node.failed(workers=1)
    assert (node.control / "tree" / "config.json").exists() and not node.model.exists()
    model = hubs.tiny_model(5)
    model["config.json"] = model["config.json"].replace(b"Tiny", b"Timy")
    node.hub.commit(model)
    assert node.download(update=True)["changed"] and node.content() == node.served()


def test_a_wrong_byte_and_a_cut_on_the_way_cost_one_more_load(node: Node) -> None:
    node.hub.wrong = {ONE: 1}
    node.hub.cut = {TWO: [1000]}
    assert node.download()["changed"] and node.content() == node.served()
    assert [name for name, _span in node.hub.loads(".safetensors")].count(ONE) == 2


def test_a_token_is_in_the_programs_environment_only_and_goes_to_the_hub_only(node: Node) -> None:
    node.hub.token = TOKEN
    assert "or none that is read without a token: look at its name, and give a token where it is private" in node.failed()
    assert not (node.folder / "models").exists() or not list((node.folder / "models").iterdir())
    assert node.download(token=TOKEN)["changed"]
    assert all(TOKEN not in " ".join(command) + data for command, data, _environment in node.commands)
    assert node.commands[-1][2]["HF_TOKEN"] == TOKEN
    assert {auth for _method, path, _span, auth in node.hub.seen if path.startswith("/cdn/")} == {None}
    assert not [path for path in node.folder.rglob("*") if path.is_file() and TOKEN.encode() in path.read_bytes()]


def no_library(node: Node) -> dict[str, t.Any]:
    path = node.folder / "python"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} -S -E "$@"\n')
    path.chmod(0o755)
    return {"python": str(path)}


def gated(node: Node) -> dict[str, t.Any]:
    node.hub.gated = True
    return {}


def down(node: Node) -> dict[str, t.Any]:
    node.hub.down = 503
    return {}


def silent(node: Node) -> dict[str, t.Any]:
    node.hub.silent.set()
    return {"stall_timeout": 2}


def no_model(node: Node) -> dict[str, t.Any]:
    return {"exclude": ["original/*", TWO]}


def climbing(node: Node) -> dict[str, t.Any]:
    node.hub.commit({**hubs.tiny_model(), "../x": b""})
    return {}


@pytest.mark.parametrize(
    ("trouble", "said"),
    [
        (no_library, "/python has no huggingface_hub of version 0.34 or later (No module named 'huggingface_hub'): give a Python that has it"),
        (lambda node: {"python": "/nowhere/python"}, "/nowhere/python does not run here (No such file or directory): give a Python that has"),
        (gated, "lets only those read lab/tiny who have accepted its conditions"),
        (lambda node: {"revision": "v9"}, "lab/tiny has no revision v9 on http://127.0.0.1:"),
        (lambda node: {"repo": "lab/other"}, "has no repository lab/other"),
        (lambda node: {"endpoint": "http://127.0.0.1:9"}, "http://127.0.0.1:9 can't be reached from this node ("),
        (down, "did not give lab/tiny ("),
        (silent, "has come from http://127.0.0.1:"),
        (no_model, f"is no whole model: {TWO} of the model in "),
        (lambda node: {"include": ["*.gguf"]}, "that include and exclude leave over: correct them."),
        (climbing, "The hub names a file '../x', which can't be one of a model"),
    ],
)
def test_one_sentence_says_what_is_wrong_and_nothing_has_the_final_name(node: Node, trouble: t.Callable[[Node], dict[str, t.Any]], said: str) -> None:
    told = node.failed(**trouble(node))
    assert said in told and "\n" not in told and "Signature" not in told
    assert not node.model.exists()


def test_without_room_nothing_is_begun(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "free", lambda path: 1 << 20)
    assert "1 MiB are free: make room there" in node.failed()
    with pytest.raises(subject.Failed):
        node.download(check=True)
    assert node.hub.loads() == [] and list((node.folder / "models").iterdir()) == []


def test_offline_nobody_is_asked(node: Node) -> None:
    assert "tiny is not there, and offline no hub is asked" in node.failed(offline=True)
    commit = node.download()["commit"]
    node.hub.seen.clear()
    assert (node.download(offline=True)["changed"], node.download(offline=True)["commit"]) == (False, commit)
    assert f"is of lab/tiny at {commit}, and offline" in node.failed(offline=True, revision="v2")
    (node.model / ONE).unlink()
    assert f"{ONE} is missing or changed, and offline no hub is asked." in node.failed(offline=True)
    assert node.hub.seen == []


def test_offline_a_model_of_another_source_is_as_good_where_no_commit_is_asked_for(node: Node) -> None:
    for name, data in node.served().items():
        node.model.mkdir(parents=True, exist_ok=True)
        (node.model / name).write_bytes(data)
    told = node.download(offline=True)
    assert (told["changed"], told["commit"]) == (False, None) and "does not say of which repository" in node.warnings[0]
    assert "does not say from where it is" in node.failed(offline=True, revision="0" * 40)


def test_a_second_run_waits_for_the_first_and_finds_its_work(node: Node) -> None:
    node.hub.silent.set()
    first = threading.Thread(target=node.download)
    first.start()
    lock = files.Lock(files.Places.of(str(node.model)))
    deadline = time.monotonic() + 60
    while not (node.control / "progress.json").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert lock.taken() and Node(node.folder, node.hub).download(check=True)["running"] is True
    assert "has not ended within 1 s" in Node(node.folder, node.hub).failed(timeout=1)
    results: list[dict[str, t.Any]] = []
    second = threading.Thread(target=lambda: results.append(Node(node.folder, node.hub).download()))
    second.start()
    node.hub.silent.clear()
    first.join()
    second.join()
    assert results[0]["changed"] is False and node.content() == node.served() and not node.control.exists()


def test_a_mirror_that_tells_only_names_and_a_disk_that_can_not_swap_do_too(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.hub.meagre = True
    monkeypatch.setattr(files, "_exchange", lambda one, other: False)
    node.download()
    node.hub.commit(hubs.tiny_model(3))
    assert node.download(update=True)["changed"] and node.content() == node.served() and not node.control.exists()


@pytest.mark.parametrize("xet", [False, True])
def test_xet_is_used_only_where_it_is_asked_for(node: Node, xet: bool) -> None:
    node.hub.xet = True
    if xet:
        # This hub has no store behind its word.
        node.failed(xet=True)
    else:
        node.download()
    assert any("xet-read-token" in path for _method, path, _span, _auth in node.hub.seen) is xet
