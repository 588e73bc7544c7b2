# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An image that is asked for its options, by a daemon that answers as scripted."""

from __future__ import annotations

import contextlib
import io
import pathlib
import types
import typing as t

import pytest

from ansible_collections.sparkstack.inference.plugins.module_utils._docker_api import DockerError, DockerUnreachable
from ansible_collections.sparkstack.inference.plugins.modules import engine_options_info as subject

PARAMS = {"image": "vllm:1", "gpus": False, "timeout": 300}
PRINTED = b"\x01\0\0\0\0\0\0\x04tell"


class Daemon:
    """Each answer is a body, or what is raised by the request, or (in a list) by reading the body."""

    def __init__(self, **answers: t.Any) -> None:
        self.answers = {"create": b'{"Id": "c1"}', "start": b"", "wait": b'{"StatusCode": 3}', "logs": PRINTED, "DELETE": b"", **answers}
        self.calls: list[str] = []

    def request(self, method: str, path: str, *_query: t.Any, **_body: t.Any) -> t.Any:
        word = method if method == "DELETE" else path.rpartition("/")[2]
        self.calls.append(word)
        answer = self.answers[word]
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, list):
            return contextlib.nullcontext(types.SimpleNamespace(read=lambda: (_ for _ in ()).throw(answer[0])))
        return io.BytesIO(answer)


def test_the_image_is_asked_and_its_container_removed() -> None:
    daemon = Daemon()
    assert subject.ask(daemon, PARAMS, "source") == (3, "tell")
    assert daemon.calls == ["create", "start", "wait", "logs", "DELETE"]


@pytest.mark.parametrize("silence", [DockerUnreachable("timed out"), [TimeoutError("timed out")]])
def test_an_image_that_never_answers_is_told_as_such_and_removed(silence: t.Any) -> None:
    daemon = Daemon(wait=silence)
    with pytest.raises(DockerError) as caught:
        subject.ask(daemon, PARAMS, "source")
    assert str(caught.value) == "vllm:1 did not tell its options within 300 s."
    assert daemon.calls[-1] == "DELETE"


INSPECTION = {"Config": {"Env": ["NCCL_IB_HCA=mlx5_0", "PATH=/usr/bin"]}, "Architecture": "arm64", "Os": "linux", "RootFS": {"Layers": ["sha256:aa"]}}
NETWORK = {"environment": {"NCCL_IB_HCA": "mlx5_0"}, "files": []}


@pytest.mark.parametrize(
    ("asked", "fails", "told"),
    [(True, None, NETWORK), (False, None, None), (True, DockerError("No space left on device", 500), None), (True, OSError(28, "No space"), None)],
)
def test_what_an_image_brings_of_the_network_is_told_with_its_options_where_that_is_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path, asked: bool, fails: Exception | None, told: t.Any
) -> None:
    def read(_api: t.Any, inspection: t.Any, image: str, folder: str, keep: bool) -> t.Any:
        assert (inspection, image, folder, keep) == (INSPECTION, "vllm:1", str(tmp_path), True)
        if fails:
            raise fails
        return NETWORK

    monkeypatch.setattr(subject, "brought", read)
    assert subject.of_network(t.cast("t.Any", None), INSPECTION, {**PARAMS, "network": asked, "cache_dir": str(tmp_path)}, True) == told
