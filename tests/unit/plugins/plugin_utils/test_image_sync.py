# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import typing as t

import pytest

from ansible_collections.sparkstack.inference.plugins.module_utils._image_identity import chain_ids, identity
from ansible_collections.sparkstack.inference.plugins.plugin_utils import _image_sync as subject

A, B, C = (f"sha256:{letter * 64}" for letter in "abc")
ARM = {"architecture": "arm64", "os": "linux", "version": "28.0.1"}


def image(*layers: str, architecture: str = "arm64", **config: object) -> dict[str, t.Any]:
    return identity({"Architecture": architecture, "Os": "linux", "RootFS": {"Layers": layers}, "Config": config})


def view(
    found: dict[str, t.Any] | None,
    others: t.Sequence[dict[str, t.Any]] = (),
    daemon: dict[str, str] = ARM,
) -> dict[str, t.Any]:
    images = [*others, *([found] if found else [])]
    seen: dict[str, t.Any] = {
        "present": found is not None,
        "daemon": daemon,
        "known": {each["digest"]: f"sha256:id{number}" for number, each in enumerate(images)},
        "chains": [chain for each in images for chain in chain_ids(each["layers"])],
    }
    if found:
        seen.update(identity=found, id="sha256:1", size=600, history=[300, 200, 100])
    return seen


SOURCE = view(image(A, B, C, Cmd=["x"]))


def decide(node: dict[str, t.Any], source: dict[str, t.Any] = SOURCE, host: str = "spark2") -> subject.Decision:
    return subject.decide("lab/x:1", "spark1", source, host, node)


def test_equal_content_needs_nothing() -> None:
    assert decide(view(image(A, B, C, Cmd=["x"]))).kind == "none"
    assert decide(SOURCE, host="spark1").kind == "none"


@pytest.mark.parametrize(
    ("node", "common", "size", "text"),
    [
        pytest.param(view(None), 0, 600, "(missing here): 3 of 3 layers, about 600 B", id="missing"),
        pytest.param(view(None, [image(A, B)]), 2, 300, "(missing here): 1 of 3 layers, about 300 B", id="base there"),
        pytest.param(view(image(A, B, Cmd=["x"])), 2, 300, "(differs here in layers): 1 of 3 layers, about 300 B", id="older"),
        pytest.param(view(image(A, B, C, Cmd=["y"])), 3, 0, "(differs here in Cmd): 0 of 3 layers, about 0 B", id="other command"),
    ],
)
def test_what_is_fetched(node: dict[str, t.Any], common: int, size: int, text: str) -> None:
    decision = decide(node)
    assert (decision.kind, decision.common, decision.bytes) == ("fetch", common, size)
    assert decision.text == f"fetch lab/x:1 from spark1 {text}"


def test_the_same_content_under_another_name_is_tagged() -> None:
    decision = decide(view(image(A), [image(A, B, C, Cmd=["x"])]))
    assert (decision.kind, decision.known_id) == ("tag", "sha256:id0")


@pytest.mark.parametrize(
    ("source", "node", "sentence"),
    [
        pytest.param(view(None), view(None), "Image lab/x:1 is not on spark1, from where it should come", id="no source"),
        pytest.param(
            {"failed": "Docker does not answer."}, view(None), "spark1 is the source of image lab/x:1 and failed: Docker", id="no docker"
        ),
        pytest.param(SOURCE, {"failed": "Docker does not answer."}, "Docker does not answer.", id="no docker here"),
        pytest.param(
            SOURCE,
            view(None, daemon={"architecture": "amd64", "os": "linux"}),
            "Image lab/x:1 is for linux/arm64 and spark2 is linux/amd64: get the linux/amd64 build",
            id="another architecture",
        ),
        pytest.param(
            view(image(A, architecture="amd64")), view(None), "Image lab/x:1 is for linux/amd64 and spark1 is linux/arm64", id="wrong at source"
        ),
    ],
)  # fmt: skip
def test_what_is_refused(source: dict[str, t.Any], node: dict[str, t.Any], sentence: str) -> None:
    decision = decide(node, source)
    assert decision.kind == "refuse"
    assert decision.text.startswith(sentence)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"hosts": ["spark2"]}, "The source spark1 does not take part"),
        ({"run_once": True}, "The task has `run_once`"),
        ({"forks": 1}, "The task runs on 2 nodes at once: set `forks` of Ansible to at least 2 (it is 1)."),
        ({"throttle": 1}, "The task runs on 2 nodes at once: set `throttle` of this task to at least 2 (it is 1)."),
    ],
)
def test_a_task_that_can_not_run(changes: dict[str, t.Any], sentence: str) -> None:
    arguments = {"hosts": ["spark1", "spark2"], "source": "spark1", "host": "spark1"}
    task = {**arguments, "forks": 5, "throttle": 0, "run_once": False}
    assert subject.task_problem(**task) is None
    assert str(subject.task_problem(**{**task, **changes})).startswith(sentence)


def test_difference() -> None:
    wanted = image(A, B)
    assert subject.difference("lab/x:1", view(None), wanted) == {
        "before": "lab/x:1 absent\n",
        "after": f"lab/x:1 {wanted['digest']}, 2 layers\n",
    }


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (999, "999 B"), (18944, "18.9 kB"), (200_025_600, "200.0 MB"), (19_960_000_000, "20.0 GB")],
)
def test_amount(size: int, text: str) -> None:
    assert subject.amount(size) == text


def test_rate() -> None:
    assert subject.rate(200_000_000, 2.5) == 80.0
    assert subject.rate(0, 2.5) == 0.0
