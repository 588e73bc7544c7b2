# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where the role image_sync gets an image from, as Ansible plays it; the modules only say what a case wants."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import typing as t

import pytest
import yaml
from test_tp_launch_ways import STAND_IN

ROOT = pathlib.Path(__file__).resolve().parents[3]
IMAGE = "lab/engine:1"
DOCKER = "docker_image_info docker_host_info docker_image_pull docker_image_load docker_image_tag docker_image_remove docker_image_build docker_prune".split()
HOST = {"host_info": {"OSType": "linux", "Architecture": "aarch64"}}


def image(identity: str, architecture: str = "arm64", **more: t.Any) -> dict[str, t.Any]:
    """What docker_image_info says of an image."""
    return {"images": [{"Id": f"sha256:{identity}", "Os": "linux", "Architecture": architecture, "Config": {"Labels": None}, **more}]}


NONE: dict[str, t.Any] = {"images": []}
CHANGED = {"changed": True}


class Role:
    """A collection of the real role, with stand-ins for all modules."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        here = folder / "ansible_collections" / "sparkstack" / "inference"
        (here / "plugins" / "action").mkdir(parents=True)
        (here / "roles").mkdir()
        (here / "roles" / "image_sync").symlink_to(ROOT / "roles" / "image_sync")
        docker = folder / "ansible_collections" / "community" / "docker" / "plugins" / "action"
        docker.mkdir(parents=True)
        for name in DOCKER:
            (docker / f"{name}.py").write_text(STAND_IN)
        for name in ("docker_image_sync", "docker_image_archive_info", "inference_info", "fabric_facts"):
            (here / "plugins" / "action" / f"{name}.py").write_text(STAND_IN)

    def play(self, answers: dict[str, t.Any], *options: str, **variables: t.Any) -> tuple[int, str]:
        """How the run ended, and what it wrote. Each run counts its calls anew."""
        for path in [path for path in self.folder.iterdir() if " spark" in path.name]:
            path.unlink()
        (self.folder / "answers.json").write_text(json.dumps({"docker_host_info": [HOST], **answers}))
        groups = {"head": {"hosts": {"spark1": None}}, "workers": {"hosts": {"spark2": None}}}
        (self.folder / "hosts.yml").write_text(yaml.safe_dump({"all": {"children": groups, "vars": {"ansible_become": False}}}))
        given = {"image_sync_image": IMAGE, "image_sync_address": "192.168.200.1", **variables}
        task = {"ansible.builtin.include_role": {"name": "sparkstack.inference.image_sync"}, "vars": given}
        (self.folder / "play.yml").write_text(yaml.safe_dump([{"hosts": "all", "gather_facts": False, "any_errors_fatal": True, "tasks": [task]}]))
        words = [sys.executable, "-m", "ansible", "playbook", "-i", "hosts.yml", "-c", "local", "play.yml", *options]
        environment = {**os.environ, "WAYS": str(self.folder), "ANSIBLE_COLLECTIONS_PATH": str(self.folder), "ANSIBLE_PYTHON_INTERPRETER": sys.executable}
        done = subprocess.run(words, cwd=self.folder, env=environment, text=True, capture_output=True, check=False)
        return done.returncode, done.stdout + done.stderr

    def calls(self, name: str, host: str = "spark1") -> list[dict[str, t.Any]]:
        path = self.folder / f"{name} {host}"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def tags(self) -> list[tuple[str, str]]:
        return [(call["name"], *call["repository"]) for call in self.calls("docker_image_tag")]

    def synced(self) -> bool:
        return all(len(self.calls("docker_image_sync", host)) == 1 for host in ("spark1", "spark2"))


@pytest.fixture
def role(tmp_path: pathlib.Path) -> Role:
    return Role(tmp_path)


def test_it_is_pulled_where_it_is_not_there_by_its_other_name_too(role: Role) -> None:
    code, told = role.play({"docker_image_info": [image("a")]})
    assert code == 0 and role.synced() and role.calls("docker_image_pull") == [] == role.calls("docker_image_pull", "spark2"), told
    pulled = {"docker_image_info": [NONE, image("b")], "docker_image_pull": [CHANGED]}
    code, told = role.play(pulled, image_sync_retag="registry/engine:25.10")
    assert code == 0 and role.synced(), told
    assert role.calls("docker_image_pull") == [{"name": "registry/engine:25.10", "pull": "not_present"}]
    assert role.tags() == [("sha256:b", IMAGE)]
    code, told = role.play(pulled, "--check")
    assert code == 0 and "would come from spark1 after it has it" in told and not role.calls("docker_image_sync")


@pytest.mark.parametrize("before", [image("a"), NONE])
def test_a_pull_for_other_machines_gives_the_name_back(role: Role, before: dict[str, t.Any]) -> None:
    answers = {"docker_image_info": [before, image("b", "amd64")], "docker_image_pull": [CHANGED]}
    code, told = role.play(answers, image_sync_refresh=True)
    assert code == 2 and f"The image {IMAGE} is for linux/amd64, and spark1 is linux/arm64: get the build of it for that." in told
    assert role.calls("docker_image_pull") == [{"name": IMAGE, "pull": "always"}] and role.calls("docker_image_sync", "spark2") == []
    assert role.tags() == ([("sha256:a", IMAGE)] if before["images"] else [])
    assert [call["name"] for call in role.calls("docker_image_remove")] == ([] if before["images"] else [IMAGE])


def test_an_archive_is_loaded_where_its_content_is_another_one(role: Role) -> None:
    (role.folder / "x.tar").write_text("")
    archive = str(role.folder / "x.tar")
    inside = {"images": [{"names": ["engine:7"], "os": "linux", "architecture": "arm64", "digest": "d"}]}
    known = {"docker_image_archive_info": [inside], "docker_image_info": [image("a"), image("b")]}
    code, told = role.play({**known, "inference_info": [{"image": {"identity": "c"}}]}, image_sync_archive=archive)
    assert code == 0 and role.synced() and role.calls("docker_image_load") == [{"path": archive}] and role.tags() == [("sha256:b", IMAGE)], told
    code, told = role.play({**known, "inference_info": [{"image": {"identity": "d"}}]}, image_sync_archive=archive)
    assert code == 0 and role.synced() and role.calls("docker_image_load") == [] == role.tags(), told
    code, told = role.play({**known, "inference_info": [{"image": None}]}, "--check", image_sync_archive=archive)
    assert code == 0 and "would come from spark1" in told and role.calls("docker_image_load") == [] == role.calls("docker_image_sync")
    # Once it is loaded nobody needs the file.
    assert role.play({"docker_image_info": [image("a")]}, image_sync_archive="/nowhere.tar")[0] == 0
    code, told = role.play({"docker_image_info": [NONE]}, image_sync_archive="/nowhere.tar")
    assert code == 2 and "The archive /nowhere.tar is not on spark1: copy it there" in told


@pytest.mark.parametrize(
    ("inside", "said"),
    [
        ([{"names": ["engine:7"], "os": "linux", "architecture": "amd64", "digest": "d"}], "The image engine:7 in {0} is for linux/amd64, and spark1 is"),
        ([{"names": [name], "os": "linux", "architecture": "arm64", "digest": "d"} for name in ("a:1", "b:1")], "has no image lab/engine:1, but a:1, b:1: set"),
        ([{"names": [], "os": "linux", "architecture": "arm64", "digest": "d"}], "has no image lab/engine:1, but none with a name"),
    ],
)
def test_an_archive_that_will_not_do_is_not_loaded(role: Role, inside: list[dict[str, t.Any]], said: str) -> None:
    archive = role.folder / "x.tar"
    archive.write_text("")
    answers = {"docker_image_archive_info": [{"images": inside}], "inference_info": [{"image": None}], "docker_image_info": [NONE]}
    code, told = role.play(answers, image_sync_archive=str(archive))
    assert code == 2 and said.format(archive) in told, told
    assert role.calls("docker_image_load") == []


def test_a_build_is_made_under_another_name_and_only_where_something_is_new(role: Role) -> None:
    build = {"base": "sglang:1", "packages": ["flashinfer>=0.4", "x'y"]}
    came = {"docker_image_info": [NONE, image("base"), image("new")], "docker_image_build": [CHANGED]}
    code, told = role.play(came, image_sync_build=build)
    assert code == 0 and role.synced(), told
    (call,) = role.calls("docker_image_build")
    mark = call["labels"]["sparkstack.build"]
    assert call["name"] == f"sparkstack-new:{mark[:12]}" and call["rebuild"] == "always" and not os.path.exists(call["path"])
    assert role.tags() == [("sha256:new", IMAGE)] and [call["name"] for call in role.calls("docker_image_remove")] == [call["name"]]
    there = image("new", Config={"Labels": {"sparkstack.build": mark}})
    code, told = role.play({"docker_image_info": [there, image("base")]}, image_sync_build=build)
    assert code == 0 and role.synced() and role.calls("docker_image_build") == [], told
    # Another base makes another build.
    code, told = role.play({"docker_image_info": [there, image("base2"), image("new")]}, image_sync_build=build)
    assert code == 0 and role.calls("docker_image_build")[0]["labels"]["sparkstack.build"] != mark
    code, told = role.play({"docker_image_info": [there, image("base2")]}, "--check", image_sync_build=build)
    assert code == 0 and "would come from spark1" in told and role.calls("docker_image_build") == []
    code, told = role.play({"docker_image_info": [NONE, image("base", "amd64")]}, image_sync_build=build)
    assert code == 2 and "The image sglang:1 is for linux/amd64, and spark1 is linux/arm64: build on one for that." in told
    assert role.calls("docker_image_build") == []


def test_a_build_from_a_folder_is_made_anew_when_a_file_changes(role: Role) -> None:
    context = role.folder / "context"
    context.mkdir()
    (context / "Dockerfile").write_text("FROM scratch\n")
    marks = []
    for _turn in range(2):
        code, told = role.play({"docker_image_info": [NONE, image("new")]}, image_sync_build={"path": str(context), "args": {"A": "1"}})
        (call,) = role.calls("docker_image_build")
        assert code == 0 and (call["path"], call["args"]) == (str(context), {"A": "1"}), told
        marks.append(call["labels"]["sparkstack.build"])
        (context / "new").write_text("x")
    assert marks[0] != marks[1] and context.exists()


def test_a_build_that_fails_says_why_and_leaves_the_name_alone(role: Role) -> None:
    failed = {"failed": True, "msg": "Building x failed", "stderr": "#5 1.2\nERROR: No matching distribution found for nope\n"}
    code, told = role.play({"docker_image_info": [image("a")], "docker_image_build": [failed]}, image_sync_build={"dockerfile": "FROM scratch\n"})
    assert code == 2 and "can't be built on spark1 (ERROR: No matching distribution found for nope): correct image_sync_build" in told
    (call,) = role.calls("docker_image_build")
    assert role.tags() == [] and not os.path.exists(call["path"]) and not role.calls("docker_image_sync")


def test_an_image_that_is_there_gets_a_second_name(role: Role) -> None:
    given = {"image_sync_source": "present", "image_sync_retag": "lab/engine:2"}
    code, told = role.play({"docker_image_info": [image("a"), image("b")]}, **given)
    assert code == 0 and role.synced() and role.tags() == [("sha256:b", IMAGE)], told
    code, told = role.play({"docker_image_info": [NONE, NONE]}, **given)
    assert code == 2 and "The image lab/engine:2 is not on spark1: build, pull or load it there, or correct image_sync_retag" in told
    code, told = role.play({"docker_image_info": [NONE, image("b", "amd64")]}, **given)
    # It is the user's, and stays.
    assert code == 2 and "is for linux/amd64" in told and role.tags() == [] == role.calls("docker_image_remove")


@pytest.mark.parametrize(
    ("old", "containers", "removed"),
    [
        (image("a", RepoTags=[]), [], True),
        (image("a", RepoTags=["sparkstack-kept:tiny-good"]), [], False),
        (image("a", RepoTags=[]), [{"ImageID": "sha256:a"}], False),
    ],
)
def test_what_was_replaced_is_removed_unless_it_is_kept_or_used(role: Role, old: dict[str, t.Any], containers: list[t.Any], removed: bool) -> None:
    answers = {
        # The head has it before the role begins.
        "docker_image_info spark1": [image("b")],
        "docker_image_info spark2": [image("a"), image("b"), old],
        "docker_host_info spark2": [{**HOST, "containers": containers}],
    }
    code, told = role.play(answers, image_sync_prune=True)
    assert code == 0 and role.synced(), told
    assert role.calls("docker_image_remove", "spark1") == [] and role.calls("docker_image_remove", "spark2") == ([{"name": "sha256:a"}] if removed else [])
    assert role.calls("docker_prune", "spark2") == [{"images": True, "images_filters": {"dangling": True, "label": "sparkstack.build"}}]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"image_sync_source": "archive"}, "set image_sync_archive to the archive's path on spark1."),
        ({"image_sync_build": {"packages": ["x"]}}, "by one of base, dockerfile and path; it has none of them."),
        ({"image_sync_build": {"base": "x", "path": "/y"}}, "it has base and path."),
        ({"image_sync_build": {"dockerfile": "FROM x", "packages": ["x"]}}, "image_sync_build.packages are installed on image_sync_build.base"),
        ({"image_sync_retag": IMAGE}, "image_sync_retag is the image's other name"),
        ({"image_sync_build": {"base": "x", "pakages": ["x"]}}, "pakages"),
    ],
)
def test_a_mistake_is_told_before_anything_is_looked_at(role: Role, given: dict[str, t.Any], said: str) -> None:
    code, told = role.play({}, **given)
    assert code == 2 and said in told and role.calls("docker_image_info") == [], told
