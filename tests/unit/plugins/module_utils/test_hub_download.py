# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a download makes of a request, a record and a folder, without a hub."""

from __future__ import annotations

import hashlib
import os
import pathlib
import types
import typing as t

import pytest

from ansible_collections.sparkstack.inference.plugins.module_utils import _hub_download as subject
from ansible_collections.sparkstack.inference.plugins.module_utils import _hub_program as program
from ansible_collections.sparkstack.inference.plugins.module_utils import _hub_words as words

SHA = "0123456789abcdef0123456789abcdef01234567"
RECORD = {"repo": "a/b", "revision": "main", "commit": SHA, "include": [], "exclude": ["original/*"]}


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        ({}, None),
        ({"repo": "gpt2"}, None),
        ({"repo": "a/b/c"}, "'a/b/c' is no repository of a hub"),
        ({"repo": "../b"}, "is no repository"),
        ({"path": "models/x"}, "is not an absolute path of a folder of its own"),
        ({"path": "/"}, "is not an absolute path"),
        ({"path": "{file}"}, "is not a folder: give the model's folder."),
        ({"path": "/proc"}, "is where a disk is mounted"),
        ({"path": "{cache}"}, "is a folder of a hub's cache"),
        ({"endpoint": "hub.example.org"}, "is no address of a hub: give it as https://HOST."),
        ({"endpoint": "ftp://hub.example.org"}, "is no address of a hub"),
        ({"endpoint": "https://me:secret@hub.example.org"}, "has a user's name or password in it"),
        ({"endpoint": "http://hub.example.org"}, None),
        ({"endpoint": "http://hub.example.org", "token": True}, "readable for all on its way to http://hub.example.org"),
        ({"endpoint": "http://127.0.0.1:8000", "token": True}, None),
        ({"endpoint": "https://hub.example.org", "token": True}, None),
    ],
)
def test_a_request_that_can_not_be_met_is_refused_in_a_sentence(tmp_path: pathlib.Path, request_: dict[str, t.Any], said: str | None) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "cache" / "snapshots").mkdir(parents=True)
    given = {"path": str(tmp_path / "new"), "repo": "a/b", "endpoint": "", "token": False, **request_}
    given["path"] = given["path"].format(file=tmp_path / "file", cache=tmp_path / "cache")
    told = subject.problem(**given)
    assert told is None if said is None else said in str(told)
    assert "secret" not in str(told)


def test_patterns_choose_the_files() -> None:
    names = ["config.json", "original/a.pth", "model.safetensors", "sub/model.safetensors"]
    entries = [{"name": name, "size": 1, "hash": "0" * 40} for name in names]

    def chosen(include: list[str], exclude: list[str]) -> list[str]:
        return [entry["name"] for entry in subject.wanted(entries, include, exclude)]

    assert chosen([], ["original/*"]) == ["config.json", "model.safetensors", "sub/model.safetensors"]
    assert chosen(["*.safetensors"], []) == ["model.safetensors", "sub/model.safetensors"]
    assert chosen(["*.json", "*.pth"], ["original/*"]) == ["config.json"]
    for name in ("/etc/passwd", "a/../b", "a//b", subject.RECORD):
        with pytest.raises(ValueError, match="can't be one of a model"):
            subject.wanted([{"name": name}], [], [])


@pytest.mark.parametrize(
    ("asked", "update", "holds"),
    [
        ({}, False, True),
        ({}, True, False),
        ({"revision": SHA}, True, True),
        ({"revision": "v2"}, False, False),
        ({"revision": "f" * 40}, False, False),
        ({"repo": "a/c"}, False, False),
        ({"exclude": []}, False, False),
    ],
)
def test_a_record_holds_for_what_was_asked_for_then(asked: dict[str, t.Any], update: bool, holds: bool) -> None:
    wanted = {**{name: RECORD[name] for name in ("repo", "revision", "include", "exclude")}, **asked}
    assert subject.settled(RECORD, wanted, update) is holds
    assert not subject.settled({}, wanted, update)


@pytest.mark.parametrize("content", ["", "[]", '{"files": {}}', '{"repo": "a/b", "files": {"x": {"size": 1}}}', "\0"])
def test_a_record_that_is_damaged_is_none(tmp_path: pathlib.Path, content: str) -> None:
    (tmp_path / "record.json").write_text(content)
    assert subject.known(str(tmp_path / "record.json")) == {}


def test_both_of_the_hubs_hashes_prove_a_file(tmp_path: pathlib.Path) -> None:
    data = b"x" * 5_000_000
    (tmp_path / "a").write_bytes(data)
    for content in (hashlib.sha256(data).hexdigest(), hashlib.sha1(b"blob 5000000\0" + data).hexdigest()):
        assert program.same(str(tmp_path / "a"), content, len(data))
        assert not program.same(str(tmp_path / "a"), content[::-1], len(data))


def test_a_link_to_a_folder_stays_one(tmp_path: pathlib.Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "models").symlink_to(tmp_path / "disk")
    (tmp_path / "tiny").symlink_to("models/tiny-1")
    assert subject.Places.of(str(tmp_path / "tiny")).control == str(tmp_path / "disk" / ".tiny-1.download")


def test_a_lock_whose_folder_went_away_with_it_is_taken_anew(tmp_path: pathlib.Path) -> None:
    places = subject.Places(str(tmp_path / "m"), str(tmp_path / ".m.download"))
    first, second = subject.Lock(places), subject.Lock(places)
    assert not second.taken() and first.take(1) is False and second.taken()
    os.unlink(first.path)
    assert second.take(1) is False
    with pytest.raises(TimeoutError, match="has not ended within 0 s"):
        subject.Lock(places).take(0)
    second.free()
    assert not second.taken()


@pytest.mark.parametrize("word", sorted(words.SENTENCES))
def test_every_trouble_is_one_sentence_that_says_what_to_do(word: str) -> None:
    params = {"token": "", "python": "/p", "endpoint": "", "repo": "a/b", "revision": "main", "stall_timeout": 9, "timeout": 99, "xet": True}
    told = words.sentence(word, "because.", params)
    assert told[0].isupper() or told.startswith(("/p", "a/b"))
    assert told.endswith((".",)) and "{" not in told and "\n" not in told and ".." not in told


def test_an_error_is_told_without_its_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    said = program.said(ValueError("no https://cdn.example.org/a?Signature=s3cret&x=1 for 'hf_secret'\nmore"))
    assert said == "no https://cdn.example.org/a for '***'"
    assert program.reason(OSError(28, "No space left on device", "/m/x"))[0] == "space"
    assert program.reason(PermissionError(13, "Permission denied", "/m/x"))[0] == "disk"
    assert program.reason(ConnectionResetError(104, "Connection reset by peer"))[0] == "unreachable"


@pytest.mark.parametrize(("where", "token_goes"), [("https://hub.test/x", True), ("/x", True), ("https://cdn.test/x", False), ("http://hub.test/x", False)])
def test_the_token_goes_to_the_hub_alone_and_never_in_the_clear(tmp_path: pathlib.Path, where: str, token_goes: bool) -> None:
    asked: list[dict[str, str]] = []
    hub = program.Hub.__new__(program.Hub)
    hub.repo, hub.endpoint, hub.token = "lab/tiny", "https://hub.test", "hf_secret"
    hub.utils = types.SimpleNamespace(build_hf_headers=lambda token: {"authorization": f"Bearer {token}", "user-agent": "x"})
    hub.files = types.SimpleNamespace(
        hf_hub_url=lambda *_words, **_more: "https://hub.test/lab/tiny/x",
        get_hf_file_metadata=lambda *_words, **_more: types.SimpleNamespace(location=where, xet_file_data=None),
        http_get=lambda _url, _stream, headers, **_more: asked.append(headers),
    )
    hub.load({"name": "x", "size": 9}, "0" * 40, str(tmp_path / "x"), None)
    assert [sorted(headers) for headers in asked] == [["authorization", "user-agent"] if token_goes else ["user-agent"]]
