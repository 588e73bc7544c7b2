# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A model's way from a hub to a lab node's disk, over SSH: what an interruption costs, and what is left in its memory."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import typing as t

import pytest

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1] / part) for part in ("lab", ".")]

import hub as hubs  # noqa: E402  (the path above must come first)
import play  # noqa: E402

pytestmark = pytest.mark.lab

CONTROLLER = "10.77.0.1"
LIBRARY = "/srv/hub-library"
MODEL = "/srv/hub-models/tiny"
SHARD = 60_000_000


@pytest.fixture(scope="module", autouse=True)
def library(tmp_path_factory: pytest.TempPathFactory) -> t.Iterator[None]:
    """A Python with the library on the head, which reaches no package index: what belongs to its version is sent there."""
    play.lab("up")
    version = play.node("spark1", "python3 -c 'import sys; print(\"%d.%d\" % sys.version_info[:2])'").strip()
    folder = tmp_path_factory.mktemp("library")
    pip = [str(play.BIN / "pip"), "install", "--quiet", "--target", str(folder / "site"), "--only-binary=:all:", "--python-version", version]
    subprocess.run([*pip, "huggingface_hub>=0.34"], check=True, timeout=300)
    (folder / "python").write_text(f'#!/bin/sh\nPYTHONPATH={LIBRARY}/site exec /usr/bin/python3 "$@"\n')
    (folder / "python").chmod(0o755)
    copy = [str(play.BIN / "ansible"), "spark1", "-i", play.inventory(), "-b", "-m", "ansible.posix.synchronize"]
    subprocess.run([*copy, "-a", f"src={folder}/ dest={LIBRARY}"], env=play.environment(), check=True, timeout=300)
    yield
    play.node("spark1", f"sudo rm -rf {LIBRARY}")


@pytest.fixture
def hub() -> t.Iterator[hubs.Hub]:
    clear()
    served = hubs.Hub(CONTROLLER)
    served.commit(hubs.tiny_model(0, SHARD))
    yield served
    served.close()
    clear()


def clear() -> None:
    play.node("spark1", f"rm -rf {MODEL} {MODEL.replace('tiny', '.tiny.download')}")


def environment() -> dict[str, str]:
    return {**play.environment(), "ANSIBLE_CALLBACK_RESULT_FORMAT": "json"}


def command(hub: hubs.Hub, **more: t.Any) -> list[str]:
    given = {"repo": hubs.REPO, "path": MODEL, "endpoint": hub.endpoint, "python": f"{LIBRARY}/python", "xet": False, **more}
    return [str(play.BIN / "ansible"), "spark1", "-i", play.inventory(), "-b", "-m", "sparkstack.inference.model_download", "-a", json.dumps(given)]


def download(hub: hubs.Hub, **more: t.Any) -> tuple[int, str]:
    done = subprocess.run(command(hub, **more), env=environment(), capture_output=True, text=True, timeout=300, check=False)
    return done.returncode, done.stdout + done.stderr


def cached() -> int:
    """The node's page cache in bytes, as its own cgroup counts it."""
    found = play.node("spark1", "cat /sys/fs/cgroup/memory/memory.stat")
    return int(next(line.split()[1] for line in found.splitlines() if line.startswith("total_cache ")))


def test_a_model_comes_over_ssh_and_the_page_cache_stays_as_it_was(hub: hubs.Hub) -> None:
    before = cached()
    code, told = download(hub)
    assert code == 0 and '"changed": true' in told, told
    assert cached() - before < 2 * SHARD // 10
    assert download(hub)[1].count('"changed": false') == 1 and "lab/tiny" in play.node("spark1", f"cat {MODEL}/.sparkstack-model.json")


@contextlib.contextmanager
def begun(hub: hubs.Hub) -> t.Iterator[subprocess.Popen[str]]:
    """A download in the background; its Ansible is killed, with all forks, when the block ends."""
    run = subprocess.Popen(command(hub), env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)
    try:
        yield run
    finally:
        os.killpg(run.pid, signal.SIGKILL)
        run.communicate()


def test_the_download_goes_on_without_its_controller_and_a_second_run_sees_it(hub: hubs.Hub) -> None:
    hub.rate = 6e6
    with begun(hub) as run:
        assert " of 0.1 GB (" in play.wait_for_line(run, "[spark1] lab/tiny:", 60)
    code, told = download(hub)
    # The first one has brought all of it.
    assert code == 0 and '"changed": false' in told and "[spark1] lab/tiny:" in told, told
    assert len(hub.loads(".safetensors")) == 2


@pytest.mark.long
def test_a_power_cut_costs_what_was_on_its_way(hub: hubs.Hub) -> None:
    hub.rate = 6e6
    with begun(hub) as run:
        play.wait_for_line(run, " GB/s", 60)
        play.lab("power-cut", "spark1")
    play.lab("start", "spark1")
    hub.rate = None
    hub.seen.clear()
    assert "gone" in play.node("spark1", f"test -e {MODEL} || echo gone")
    code, told = download(hub)
    assert code == 0 and '"changed": true' in told, told
    assert all(span for _name, span in hub.loads(".safetensors")), hub.loads()
