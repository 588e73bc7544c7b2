# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a rank's container tells, from the labels that a launch gives it."""

from __future__ import annotations

import types
import typing as t

import pytest

from ansible_collections.sparkstack.inference.plugins.module_utils import _engines, _ranks
from ansible_collections.sparkstack.inference.plugins.module_utils._engines._types import RankSpec
from ansible_collections.sparkstack.inference.plugins.plugin_utils import _container

RANK = RankSpec("/srv/models/m", "m", 0, 2, 2, "192.168.200.11", "192.168.200.11", 29501, 8000, "127.0.0.1")
REQUEST = _container.Request("d", _engines.get("vllm"), "vllm:1", RANK, "/srv/models/m")


def inspection(labels: dict[str, str], **state: t.Any) -> dict[str, t.Any]:
    """As Docker 28 shows it, less what isn't read."""
    return {
        "Id": "c1",
        "Name": "/d-rank0",
        "RestartCount": 0,
        "Config": {"Image": "vllm:1", "Labels": labels},
        "State": {"Running": True, "Restarting": False, "ExitCode": 0, "OOMKilled": False, "StartedAt": "2026-11-29T10:00:00.5Z", **state},
    }


def test_labels_are_read_as_they_were_written() -> None:
    found = _ranks.describe(inspection(_container.labels(REQUEST, "L1")))
    assert (found["name"], found["deployment"], found["rank"], found["ranks"], found["launch_id"]) == ("d-rank0", "d", 0, 2, "L1")
    assert (found["port"], found["listen_address"]) == (8000, "127.0.0.1")
    assert found["spec"] == _container.public(REQUEST) and found["spec_hash"] == _container.spec_hash(found["spec"])


@pytest.mark.parametrize(
    "labels, key, value",
    [
        ({}, "rank", -1),
        ({"sparkstack.rank": "one"}, "rank", -1),
        ({"sparkstack.spec": "{"}, "spec", {}),
        ({"sparkstack.spec": "[1]"}, "spec", {}),
        ({"sparkstack.planned": "[1]"}, "planned", None),
        ({"sparkstack.planned": "{"}, "planned", None),
        ({"sparkstack.planned": "{}"}, "planned", {}),
        ({"sparkstack.planned": '{"mem-fraction-static": 0.813}'}, "planned", {"mem-fraction-static": 0.813}),
        ({}, "planned", None),
        # A rank that was started before this label came.
        ({}, "listen_address", "0.0.0.0"),
    ],
)
def test_labels_that_lack_something_are_borne(labels: dict[str, str], key: str, value: t.Any) -> None:
    assert _ranks.describe(inspection(labels))[key] == value


def test_a_container_that_docker_starts_again_and_again_does_not_run() -> None:
    assert _ranks.describe(inspection({}, Restarting=True))["running"] is False


@pytest.mark.parametrize(
    "labels, image",
    [(_container.labels(REQUEST, "L1"), None), ({}, "vllm:1"), (None, "vllm:1"), ({"sparkstack.deployment": "other"}, "vllm:1")],
)
def test_a_container_of_somebody_else_is_told_by_its_labels(labels: dict[str, str], image: str | None) -> None:
    api: t.Any = types.SimpleNamespace(container=lambda name: inspection(labels) if name == "d-rank0" else None)
    assert _ranks.foreign(api, "d-rank0", "d") == image
    assert _ranks.foreign(api, "d-rank1", "d") is None


@pytest.mark.parametrize(
    "deployment, left", [("d", ["d-rank1.env"]), (None, ["d-rank1.env", "d-rank0-rank0.env", "e-rank0.env"]), ("d-rank0", ["d-rank0-rank0.env"])]
)
def test_secrets_that_no_container_has_are_told(folder_of: t.Callable[[dict[str, str]], str], deployment: str | None, left: list[str]) -> None:
    folder = "/var/lib/sparkstack/secrets/"
    names = ["d-rank0.env", "d-rank1.env", "d-rank0-rank0.env", "e-rank0.env", "notes.txt", ".d-rank7.env.1"]
    root = folder_of({(folder + name).lstrip("/"): "A=b" for name in names})
    ranks = [{"spec": {"secrets": folder + "d-rank0.env"}}, {"spec": {}}]
    assert sorted(_ranks.unused_secrets(ranks, deployment, root)) == sorted(folder + name for name in left)


def test_a_closed_or_missing_folder_of_secrets_tells_none() -> None:
    assert _ranks.unused_secrets([], None, "/nowhere") == []
