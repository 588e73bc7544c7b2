# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What moves an image on a node, and what those see who look at it."""

from __future__ import annotations

import pathlib
import threading
import time
import typing as t

import pytest

from ansible_collections.sparkstack.inference.plugins.module_utils import _image_agent as subject
from ansible_collections.sparkstack.inference.plugins.module_utils import _leased
from ansible_collections.sparkstack.inference.plugins.module_utils._docker_api import DockerError, DockerUnreachable
from ansible_collections.sparkstack.inference.plugins.module_utils._transfer import TransferError


class Running:
    """An agent in a thread, whose work goes on when it is told so."""

    def __init__(self, tmp_path: pathlib.Path, work: t.Callable[[subject.ImageAgent], dict[str, t.Any]], lease: float = 30) -> None:
        self.go_on = threading.Event()
        host = f"unix://{tmp_path}/docker.sock"

        def held(agent: subject.ImageAgent) -> dict[str, t.Any]:
            assert self.go_on.wait(10)
            return work(agent)

        self.agent = subject.ImageAgent(host, "lab/x:1", False, held, lease)
        self.home = subject.home(f"{tmp_path}/docker.sock", "lab/x:1")
        self.thread = threading.Thread(target=self.agent.run, daemon=True)
        self.thread.start()

    def ask(self, **message: t.Any) -> dict[str, t.Any] | None:
        return _leased.ask(self.home, {"do": "watch", "seconds": 0, **message}, message.get("seconds", 0))


@pytest.fixture
def begin(tmp_path: pathlib.Path) -> t.Iterator[t.Callable[..., Running]]:
    begun: list[Running] = []

    def one(work: t.Callable[[subject.ImageAgent], dict[str, t.Any]], **options: t.Any) -> Running:
        begun.append(Running(tmp_path, work, **options))
        return begun[-1]

    yield one
    for running in begun:
        running.go_on.set()
        running.ask(do="end", force=True)
        running.thread.join(5)
        assert not running.thread.is_alive()


def test_what_came_of_it_is_told_until_somebody_ends_it(begin: t.Callable[..., Running]) -> None:
    running = begin(lambda agent: {"bytes": 7})
    first = running.ask()
    assert first is not None and (first["state"], first["result"], first["problem"]) == ("running", {}, None)
    ended = running.ask(do="end")
    assert ended is not None and ended["ended"] is False
    running.go_on.set()
    last = running.ask(known="running", seconds=5)
    assert last is not None and (last["state"], last["result"]) == ("done", {"bytes": 7})
    assert running.ask() is not None
    ended = running.ask(do="end")
    assert ended is not None and ended["ended"] is True
    assert running.ask() is None


def test_there_is_one_for_an_image(begin: t.Callable[..., Running], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin(lambda agent: {})
    with pytest.raises(OSError, match="Address already in use"):
        subject.ImageAgent(f"{tmp_path}/docker.sock", "lab/x:1", True, lambda agent: {})
    assert (mine := subject.home("unix:///var/run/docker.sock", "x")) == subject.home("/var/run/docker.sock", "x:latest")
    monkeypatch.setattr("os.geteuid", lambda: 65534)
    assert subject.home("unix:///var/run/docker.sock", "x") != mine


def test_how_far_it_is(begin: t.Callable[..., Running]) -> None:
    steps = [threading.Event() for _step in range(3)]

    def work(agent: subject.ImageAgent) -> dict[str, t.Any]:
        agent.count.again(1000)
        agent.count.there += 300
        assert steps[0].wait(5)
        agent.loading()
        assert steps[1].wait(5)
        agent.loading(20, 900)
        assert steps[2].wait(5)
        return {}

    running = begin(work)
    running.go_on.set()
    time.sleep(0.1)
    seen = [running.ask(seconds=0)]
    for step, known, seconds in ((0, "running", 5.0), (1, "loading", 0.3), (2, "loading", 5.0)):
        steps[step].set()
        seen.append(running.ask(known=known, seconds=seconds))
    told = [(status["state"], status["there"], status["total"]) for status in seen if status]
    assert told == [("running", 300, 1000), ("loading", 0, 0), ("loading", 20, 900), ("done", 300, 1000)]


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (DockerError("no space left on device"), "Docker says: no space left on device"),
        (DockerUnreachable("Docker does not answer on /x."), "Docker does not answer on /x. Look whether Docker runs: start it with"),
        (TransferError("Port 1 is taken."), "Port 1 is taken."),
        (KeyError("size"), "KeyError: 'size'"),
    ],
)
def test_what_went_wrong_is_told(begin: t.Callable[..., Running], error: Exception, sentence: str) -> None:
    def work(agent: subject.ImageAgent) -> dict[str, t.Any]:
        raise error

    running = begin(work)
    running.go_on.set()
    status = running.ask(known="running", seconds=5)
    assert status is not None and status["state"] == "failed" and status["problem"].startswith(sentence)


def test_without_a_look_the_work_goes_on_and_only_its_result_is_dropped(begin: t.Callable[..., Running]) -> None:
    worked = threading.Event()

    def work(agent: subject.ImageAgent) -> dict[str, t.Any]:
        worked.set()
        return {}

    running = begin(work, lease=0.2)
    running.thread.join(0.6)
    assert running.thread.is_alive()
    running.go_on.set()
    assert worked.wait(5)
    running.thread.join(3)
    assert not running.thread.is_alive() and running.ask() is None
