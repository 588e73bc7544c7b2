# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where the role image_sync gets an image from, on the lab's nodes with their real Docker: built, loaded, named, and pruned."""

from __future__ import annotations

import json
import pathlib
import sys
import typing as t

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lab"))

import play  # noqa: E402  (the path above must come first)

pytestmark = pytest.mark.lab

NODES = ("spark1", "spark2")
BASE, APP = "source/base:1", "source/app:1"
ARCHIVE = "/srv/source.tar"
TEXT = f"FROM {BASE}\nENV A={{}}\n"


@pytest.fixture(scope="module", autouse=True)
def nodes() -> t.Iterator[None]:
    play.lab("up", "--nodes", "2")
    clear()
    play.node("spark1", f"head -c 5000000 /dev/urandom > /tmp/data; tar cf - -C /tmp data | docker import - {BASE}; rm /tmp/data")
    yield
    clear()
    play.node("spark1", f"sudo rm -f {ARCHIVE}")


def clear() -> None:
    for node in NODES:
        play.node(node, "docker ps -aq --filter name=source- | xargs -r docker rm -f; docker images -q 'source/*' | sort -u | xargs -r docker rmi -f")


def sync(folder: pathlib.Path, *words: str, **variables: t.Any) -> play.Play:
    call = {"ansible.builtin.include_role": {"name": "sparkstack.inference.image_sync"}}
    (folder / "play.json").write_text(json.dumps([{"hosts": "sparks", "gather_facts": False, "any_errors_fatal": True, "tasks": [call]}]))
    return play.playbook(str(folder / "play.json"), *words, extra={"image_sync_image": APP, **variables})


def content(node: str, image: str = APP) -> str:
    return play.node(node, f"docker image inspect --format '{{{{json .RootFS.Layers}}}} {{{{json .Config.Env}}}}' {image}").strip()


def names(node: str) -> list[str]:
    return sorted(play.node(node, "docker images --format '{{.Repository}}:{{.Tag}}'").split())


def test_a_build_comes_to_all_nodes_once_and_again_when_its_text_changes(tmp_path: pathlib.Path) -> None:
    first = sync(tmp_path, image_sync_build={"dockerfile": TEXT.format(1)})
    assert first.code == 0 and first.changed["spark1"] > 0 and first.changed["spark2"] == 1, first.output
    assert content("spark1") == content("spark2") and "A=1" in content("spark1")
    assert not [name for name in names("spark1") if "sparkstack-new" in name]
    again = sync(tmp_path, image_sync_build={"dockerfile": TEXT.format(1)})
    assert again.code == 0 and set(again.changed.values()) == {0}, again.output
    seen = sync(tmp_path, "--check", image_sync_build={"dockerfile": TEXT.format(2)})
    assert seen.code == 0 and "A=1" in content("spark1") and seen.changed["spark2"] == 1, seen.output
    old = play.node("spark2", f"docker image inspect --format '{{{{.Id}}}}' {APP}").strip()
    assert sync(tmp_path, image_sync_build={"dockerfile": TEXT.format(2)}, image_sync_prune=True).code == 0
    assert "A=2" in content("spark2") and "gone" in play.node("spark2", f"docker image inspect {old} >/dev/null 2>&1 || echo gone")


def test_a_build_that_fails_leaves_the_name(tmp_path: pathlib.Path) -> None:
    before = content("spark1")
    run = sync(tmp_path, image_sync_build={"dockerfile": f"FROM {BASE}\nCOPY nowhere /\n"})
    assert run.code == 2 and f"The image {APP} can't be built on spark1 (" in run.text and content("spark1") == before


def test_an_archive_is_loaded_by_content_and_gets_the_name(tmp_path: pathlib.Path) -> None:
    play.node("spark1", f"printf 'FROM {BASE}\\nENV B=1\\n' | docker build -q -t source/other:7 - && docker save -o {ARCHIVE} source/other:7")
    play.node("spark1", "docker rmi source/other:7")
    run = sync(tmp_path, image_sync_archive=ARCHIVE)
    assert run.code == 0 and "B=1" in content("spark1") and content("spark1") == content("spark2"), run.output
    again = sync(tmp_path, image_sync_archive=ARCHIVE)
    assert again.code == 0 and set(again.changed.values()) == {0}, again.output


def test_an_archive_for_other_machines_is_not_loaded(tmp_path: pathlib.Path) -> None:
    before = content("spark1"), names("spark1")
    other = "arm64" if "x86_64" in play.node("spark1", "uname -m") else "amd64"
    # With a layer: Docker saves no image that has none.
    text = "FROM scratch\\nCOPY <<END /x\\nC\\nEND\\n"
    play.node("spark1", f"set -e; printf '{text}' | docker buildx build -q --platform linux/{other} -t source/alien:1 --load -")
    play.node("spark1", f"set -e; docker save -o {ARCHIVE} source/alien:1; docker rmi source/alien:1")
    run = sync(tmp_path, image_sync_archive=ARCHIVE)
    assert run.code == 2 and f"is for linux/{other}, and spark1 is" in run.text and (content("spark1"), names("spark1")) == before


def test_an_image_that_is_there_gets_its_name_and_what_is_used_is_not_pruned(tmp_path: pathlib.Path) -> None:
    old = play.node("spark2", f"docker create --name source-user {APP} /x >/dev/null; docker image inspect --format '{{{{.Id}}}}' {APP}").strip()
    run = sync(tmp_path, image_sync_source="present", image_sync_retag=BASE, image_sync_prune=True)
    assert run.code == 0 and content("spark2") == content("spark1", BASE), run.output
    assert play.node("spark2", f"docker image inspect --format '{{{{.Id}}}}' {old}").strip() == old
