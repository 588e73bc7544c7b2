# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import copy

import pytest

from ansible_collections.sparkstack.inference.plugins.module_utils import _image_identity as subject

BASE = "sha256:55715736635a6b16fe2773d39e37a089fdc48eba623bf11828b05c4d4489aa25"
TOP = "sha256:4b7aa9943e9feef5254ca2e49c73764a87447ffc513d5542a0129984652a9b29"

# One image on two daemons (Docker 26.1.5), moved by save and load: first the one with overlay2, where it was built.
OVERLAY2 = {
    "Id": "sha256:639156530b8738771ddfc5a44a8a75f138e3b9dd90ec22d30b05460c3aa6ffe4",
    "RepoTags": ["lab/app:1"],
    "RepoDigests": [],
    "Parent": "",
    "Created": "2026-11-30T00:12:53.379215035Z",
    "DockerVersion": "",
    "Config": {
        "Hostname": "",
        "User": "5",
        "AttachStdin": False,
        "ExposedPorts": {"80/tcp": {}},
        "Env": ["A=1"],
        "Cmd": ["/big"],
        "Healthcheck": {"Test": ["CMD", "/x"]},
        "ArgsEscaped": True,
        "Image": "",
        "Volumes": {"/v": {}},
        "WorkingDir": "/",
        "Entrypoint": None,
        "OnBuild": None,
        "Labels": {"a": "b"},
        "StopSignal": "SIGINT",
        "Shell": ["/sh"],
    },
    "Architecture": "amd64",
    "Os": "linux",
    "Size": 200002000,
    "GraphDriver": {"Data": {"LowerDir": "/var/lib/docker/overlay2/095d/diff"}, "Name": "overlay2"},
    "RootFS": {"Type": "layers", "Layers": [BASE, TOP]},
}
CONTAINERD = {
    **OVERLAY2,
    "Id": "sha256:1ceedcc9eb7acdb4de2817068aa66353791167937b86e19829f46a35c1b1f23e",
    "RepoDigests": ["lab/app@sha256:1ceedcc9eb7acdb4de2817068aa66353791167937b86e19829f46a35c1b1f23e"],
    "DockerVersion": "26.1.5+dfsg1",
    "Size": 200013507,
    "GraphDriver": {"Data": None, "Name": "overlayfs"},
}


def changed(**config: object) -> dict[str, object]:
    image = copy.deepcopy(OVERLAY2)
    image["Config"].update(config)
    return image


def test_identity_is_the_same_in_both_stores() -> None:
    assert OVERLAY2["Id"] != CONTAINERD["Id"]
    assert subject.identity(OVERLAY2) == subject.identity(CONTAINERD)


def test_identity_says_what_it_is_made_of() -> None:
    found = subject.identity(OVERLAY2)
    assert found["layers"] == [BASE, TOP]
    assert (found["architecture"], found["os"]) == ("amd64", "linux")
    assert found["digest"].startswith("sha256:") and len(found["digest"]) == 71
    assert "Hostname" not in found["config"] and "WorkingDir" not in found["config"]


@pytest.mark.parametrize(
    "image",
    [
        pytest.param(changed(Entrypoint=[]), id="an empty list is nothing"),
        pytest.param(changed(WorkingDir=""), id="no working folder is /"),
        pytest.param(changed(Hostname="x", Image="sha256:1", ArgsEscaped=False), id="what reaches no container"),
        pytest.param({**OVERLAY2, "Created": "2020-01-01T00:00:00Z", "Parent": "sha256:2"}, id="times and parents"),
    ],
)
def test_identity_is_equal(image: dict[str, object]) -> None:
    assert subject.identity(image)["digest"] == subject.identity(OVERLAY2)["digest"]


@pytest.mark.parametrize(
    ("image", "names"),
    [
        (changed(Env=["A=2"]), ["Env"]),
        (changed(Cmd=["/other"], Labels={}), ["Cmd", "Labels"]),
        (changed(Healthcheck={"Test": ["CMD", "/y"]}), ["Healthcheck"]),
        ({**OVERLAY2, "Architecture": "arm64"}, ["architecture"]),
        ({**OVERLAY2, "RootFS": {"Layers": [TOP, BASE]}}, ["layers"]),
        ({**OVERLAY2, "RootFS": {"Layers": [BASE]}}, ["layers"]),
    ],
)
def test_identity_differs_and_says_in_what(image: dict[str, object], names: list[str]) -> None:
    wanted, found = subject.identity(OVERLAY2), subject.identity(image)
    assert found["digest"] != wanted["digest"]
    assert subject.differences(wanted, found) == names


def test_identity_of_an_image_without_layers() -> None:
    assert subject.identity({"RootFS": {"Type": "layers"}, "Config": None})["layers"] == []


def test_chain_ids() -> None:
    # Worked out with sha256sum: the lowest is the diff id itself.
    first, second = subject.chain_ids([BASE, TOP])
    assert first == BASE
    assert second == "sha256:a06e6c08d3a283ac320dd2cb654da030a2cd6e22a2434113fe80cdab37f46024"
    assert subject.chain_ids([TOP, BASE])[1] != second


A, B, C, EMPTY = (f"sha256:{letter * 64}" for letter in "abce")


@pytest.mark.parametrize(
    ("layers", "known", "count", "left_out"),
    [
        pytest.param([A, B, C], [], 0, [], id="nothing known"),
        pytest.param([A, B, C], [[A, B]], 2, [A, B], id="all but the top"),
        pytest.param([A, B, C], [[A, B, C]], 3, [A, B, C], id="all, under another configuration"),
        pytest.param([A, B], [[C, B]], 0, [], id="the same diff id over another base is another layer"),
        pytest.param([A, EMPTY, B, EMPTY], [[A, EMPTY]], 2, [A], id="a layer that is needed once more"),
        pytest.param([A, B], [[A, C], [A, B, C]], 2, [A, B], id="the longest of several images"),
    ],
)
def test_layers_that_need_not_be_sent(layers: list[str], known: list[list[str]], count: int, left_out: list[str]) -> None:
    chains = [chain for image in known for chain in subject.chain_ids(image)]
    assert subject.common_layers(layers, chains) == count
    assert subject.needless(layers, count) == left_out


def test_usable_chains_end_at_the_first_layer_without_content() -> None:
    assert subject.usable_chains([A, B, C], {A, C}) == [A]
    assert subject.usable_chains([A, B], None) == subject.chain_ids([A, B])


@pytest.mark.parametrize(
    ("history", "layers", "common", "size"),
    [
        pytest.param([30, 20, 10], 3, 2, 30, id="newest first"),
        pytest.param([0, 30, 0, 20, 10], 3, 1, 50, id="steps without a layer"),
        pytest.param([0, 0, 10], 2, 1, 60, id="a layer without bytes can't be told from no layer"),
        pytest.param([30, 20, 10], 3, 0, 60, id="all"),
    ],
)
def test_missing_bytes(history: list[int], layers: int, common: int, size: int) -> None:
    assert subject.missing_bytes(60, history, layers, common) == size


@pytest.mark.parametrize("image", ["lab/x@sha256:" + "a" * 64, "sha256:" + "a" * 64, "", " lab/x:1"])
def test_name_is_refused(image: str) -> None:
    assert "give it by name and tag" in str(subject.name_problem(image))


@pytest.mark.parametrize(
    ("image", "repository", "tag"),
    [
        ("lab/x:1", "lab/x", "1"),
        ("x", "x", "latest"),
        ("10.0.0.1:5000/lab/x", "10.0.0.1:5000/lab/x", "latest"),
        ("10.0.0.1:5000/lab/x:2", "10.0.0.1:5000/lab/x", "2"),
    ],
)
def test_name_is_split(image: str, repository: str, tag: str) -> None:
    assert subject.name_problem(image) is None
    assert subject.with_tag(image) == (repository, tag)
