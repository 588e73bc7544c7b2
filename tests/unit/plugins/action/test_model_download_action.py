# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""model_download as Ansible runs it, on this machine: in the background, with lines on how far it is, and a token that nobody sees."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import typing as t

import pytest
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[4]
sys.path.insert(0, str(ROOT / "tests"))

import hub as hubs  # noqa: E402  (the path above must come first)

TOKEN = "hf_a1b2c3d4e5f6"


@pytest.fixture
def hub() -> t.Iterator[hubs.Hub]:
    served = hubs.Hub()
    yield served
    served.close()


def play(folder: pathlib.Path, arguments: dict[str, t.Any], *options: str) -> str:
    tasks = [{"sparkstack.inference.model_download": arguments, "register": "told"}, {"ansible.builtin.debug": {"var": "told"}}]
    (folder / "play.yml").write_text(yaml.safe_dump([{"hosts": "all", "gather_facts": False, "tasks": tasks}]))
    environment = {
        **os.environ,
        "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "build" / "src"),
        "ANSIBLE_ASYNC_DIR": str(folder / "async"),
        "ANSIBLE_PYTHON_INTERPRETER": sys.executable,
    }
    words = [sys.executable, "-m", "ansible", "playbook", "-i", "spark1,", "-c", "local", "play.yml", *options]
    done = subprocess.run(words, cwd=folder, env=environment, text=True, capture_output=True, check=False)
    return done.stdout + done.stderr


def test_it_is_told_how_far_it_is_and_the_token_is_not_told(tmp_path: pathlib.Path, hub: hubs.Hub) -> None:
    commit = hub.commit(hubs.tiny_model(0, 4_000_000))
    hub.token, hub.rate = TOKEN, 500_000
    arguments = {"repo": hubs.REPO, "path": str(tmp_path / "tiny"), "endpoint": hub.endpoint, "token": TOKEN, "xet": False}
    told = play(tmp_path, {**arguments, "python": sys.executable}, "-vvv")
    assert "[spark1] lab/tiny: 0.0 of 0.0 GB (" in told and " of 7 files left" in told
    assert "changed=1" in told and "failed=0" in told and f'"commit": "{commit}"' in told and "ansible_job_id" not in told.split("debug")[-1]
    assert TOKEN not in told and list((tmp_path / "async").iterdir()) == []
    (tmp_path / "tiny" / "README.md").unlink()
    hub.token = None
    assert "changed=1" in play(tmp_path, {**arguments, "token": None}, "--check") and not (tmp_path / "tiny" / "README.md").exists()
    # What fails in the background is told as what fails.
    told = play(tmp_path, {**arguments, "endpoint": "hub"})
    assert "The endpoint 'hub' is no address of a hub: give it as https://HOST." in told and "failed=1" in told
