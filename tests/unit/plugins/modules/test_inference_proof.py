# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What counts as a completion, and that nothing which a network or an engine does ends in a traceback."""

from __future__ import annotations

import http.client
import json
import types
import typing as t

import pytest

from ansible_collections.sparkstack.inference.plugins.modules import inference_proof as subject

PARAMS = {"url": "http://127.0.0.1:8000/v1/", "model": "m", "prompt": "The capital of France is", "max_tokens": 16, "timeout": 5, "api_key": "k"}


def ask(monkeypatch: pytest.MonkeyPatch, answer: bytes | Exception | None, status: int = 200, **info: t.Any) -> dict[str, t.Any]:
    """One completion from a head that answers so."""

    def read() -> bytes:
        if isinstance(answer, Exception):
            raise answer
        return t.cast(bytes, answer)

    def fetch(module: object, url: str, data: str, headers: dict[str, str], **_more: t.Any) -> tuple[t.Any, dict[str, t.Any]]:
        assert (url, headers["Authorization"], json.loads(data)["max_tokens"]) == ("http://127.0.0.1:8000/v1/completions", "Bearer k", 16)
        return (types.SimpleNamespace(read=read) if answer is not None else None), {"status": status, **info}

    monkeypatch.setattr(subject, "fetch_url", fetch)
    return subject.ask(t.cast(t.Any, types.SimpleNamespace(params=PARAMS)))


def test_a_completion(monkeypatch: pytest.MonkeyPatch) -> None:
    found = ask(monkeypatch, b'{"choices": [{"text": " Paris."}], "usage": {"completion_tokens": 3}}')
    assert (found["answered"], found["text"], found["tokens"], found["problem"]) == (True, " Paris.", 3, None)


@pytest.mark.parametrize(
    "answer, status, info, told",
    [
        (http.client.IncompleteRead(b"", 120), 200, {}, "IncompleteRead(0 bytes read, 120 more expected) (HTTP status -1, after "),
        (http.client.BadStatusLine("x"), 200, {}, "(HTTP status -1, after "),
        (ConnectionResetError(104, "Connection reset by peer"), 200, {}, "[Errno 104] Connection reset by peer (HTTP status -1, after "),
        (None, -1, {"msg": "Request failed: timed out"}, "gave no completion within 5 s: Request failed: timed out (HTTP status -1, after "),
        (None, 401, {"body": b'{"error":"Unauthorized"}'}, '{"error":"Unauthorized"} (HTTP status 401, after '),
        (b"<html>", 200, {}, "answered 200, but with no completion: <html>"),
        (b'{"choices": [], "usage": "none"}', 200, {}, "answered 200, but with no completion: "),
        (b'{"choices": [{"text": ""}], "usage": [1]}', 200, {}, "answered 200, but with no completion: "),
        (b'{"choices": [{"text": ""}]}', 200, {}, "answered 200, but with no completion: "),
        (b"[]", 200, {}, "answered 200, but with no completion: []"),
    ],
)
def test_what_is_none(monkeypatch: pytest.MonkeyPatch, answer: t.Any, status: int, info: dict[str, t.Any], told: str) -> None:
    found = ask(monkeypatch, answer, status, **info)
    assert found["answered"] is False and told in found["problem"]
