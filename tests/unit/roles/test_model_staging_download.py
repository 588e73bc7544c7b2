# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The download of the role model_staging as Ansible plays it: on the head only, with a Python of its own; the modules only say what a case wants."""

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
SHA = "0123456789abcdef0123456789abcdef01234567"
WHOLE = {"complete": True, "problem": None, "digest": "d", "path": "/m", "files": 1, "bytes_total": 1}
PACKAGES = "huggingface_hub>=0.34,<3"
VENV = """#!/bin/sh
shift 2
mkdir -p $1/bin
cat > $1/bin/python <<'END'
#!/bin/sh
echo $* >> $0.calls
echo $PIP_INDEX_URL >> $0.calls
exit {code}
END
chmod +x $1/bin/python
"""


class Staging:
    """A collection of the real role, with stand-ins for its modules, and for the Python that makes virtual environments."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        here = folder / "ansible_collections" / "sparkstack" / "inference"
        (here / "plugins" / "action").mkdir(parents=True)
        (here / "roles" / "model_staging").mkdir(parents=True)
        for part in (ROOT / "roles" / "model_staging").iterdir():
            if part.name != "tasks":
                (here / "roles" / "model_staging" / part.name).symlink_to(part)
        (here / "roles" / "model_staging" / "tasks").mkdir()
        for path in (ROOT / "roles" / "model_staging" / "tasks").iterdir():
            text = path.read_text().replace("/usr/bin/python3", str(folder / "python3"))
            (here / "roles" / "model_staging" / "tasks" / path.name).write_text(text)
        for path in (ROOT / "plugins" / "modules").glob("model_*.py"):
            (here / "plugins" / "action" / path.name).write_text(STAND_IN)
        self.venv = folder / "venv"
        self.pip(0)

    def pip(self, code: int) -> None:
        (self.folder / "python3").write_text(VENV.format(code=code))
        (self.folder / "python3").chmod(0o755)

    def installs(self) -> list[str]:
        path = self.venv / "bin" / "python.calls"
        return path.read_text().splitlines() if path.exists() else []

    def play(self, *options: str, answer: dict[str, t.Any] | None = None, manifest: dict[str, t.Any] | None = None, **variables: t.Any) -> tuple[int, str]:
        """How the run ended, and what it wrote. :param answer: of the download. :param manifest: of the head's look."""
        answers = {"model_download": [answer or {"changed": True, "commit": SHA}], "model_manifest_info": [WHOLE]}
        answers["model_manifest_info spark1"] = [manifest or WHOLE]
        (self.folder / "answers.json").write_text(json.dumps(answers))
        groups = {"head": {"hosts": {"spark1": None}}, "workers": {"hosts": {"spark2": None}}}
        (self.folder / "hosts.yml").write_text(yaml.safe_dump({"all": {"children": groups, "vars": {"ansible_become": False}}}))
        given = {"model_staging_path": "/m", "model_staging_repo": "a/b", "model_staging_venv": str(self.venv), **variables}
        tasks = [
            {"ansible.builtin.include_role": {"name": "sparkstack.inference.model_staging"}, "vars": given},
            {"ansible.builtin.debug": {"msg": "commit {{ model_staging_commit | default('none') }}"}},
        ]
        (self.folder / "play.yml").write_text(yaml.safe_dump([{"hosts": "all", "gather_facts": False, "any_errors_fatal": True, "tasks": tasks}]))
        words = [sys.executable, "-m", "ansible", "playbook", "-i", "hosts.yml", "-c", "local", "play.yml", *options]
        environment = {**os.environ, "WAYS": str(self.folder), "ANSIBLE_COLLECTIONS_PATH": str(self.folder), "ANSIBLE_PYTHON_INTERPRETER": sys.executable}
        done = subprocess.run(words, cwd=self.folder, env=environment, text=True, capture_output=True, check=False)
        return done.returncode, done.stdout + done.stderr

    def calls(self, name: str, host: str = "spark1") -> list[dict[str, t.Any]]:
        path = self.folder / f"{name} {host}"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def staging(tmp_path: pathlib.Path) -> Staging:
    return Staging(tmp_path)


def test_the_head_loads_with_a_python_of_its_own_that_is_made_once(staging: Staging) -> None:
    index = {"PIP_INDEX_URL": "https://index.example.org"}
    code, told = staging.play(model_staging_token="hf_secret", model_staging_environment=index, model_staging_revision="v2")
    assert code == 0 and f"commit {SHA}" in told and "commit none" in told and "hf_secret" not in told, told
    assert staging.installs() == [f"-m pip install --quiet --disable-pip-version-check {PACKAGES}", "https://index.example.org"]
    (call,) = staging.calls("model_download")
    assert staging.calls("model_download", "spark2") == [] and len(staging.calls("model_manifest_info", "spark2")) == 1
    assert (call["repo"], call["revision"], call["path"], call["token"]) == ("a/b", "v2", "/m", "hf_secret")
    assert (call["python"], call["exclude"]) == (f"{staging.venv}/bin/python", ["original/*", "metal/*"])
    code, told = staging.play(answer={"changed": False, "commit": SHA})
    assert code == 0 and len(staging.installs()) == 2 and "token" not in staging.calls("model_download")[1]
    # Another version is asked for.
    assert staging.play(model_staging_packages=["huggingface_hub==1.0.1"])[0] == 0 and len(staging.installs()) == 4


def test_a_python_of_the_users_own_and_no_hub_need_none(staging: Staging) -> None:
    assert staging.play(model_staging_python="/opt/py")[0] == 0 and staging.play(model_staging_offline=True)[0] == 0
    first, second = staging.calls("model_download")
    assert (first["python"], first["offline"]) == ("/opt/py", False) and second["offline"] is True and "python" not in second
    assert not staging.venv.exists()


def test_without_a_repository_nothing_is_loaded(staging: Staging) -> None:
    assert staging.play(model_staging_repo="")[0] == 0 and staging.calls("model_download") == [] and not staging.venv.exists()


def test_a_library_that_can_not_be_installed_is_told_with_what_to_do(staging: Staging) -> None:
    staging.pip(1)
    code, told = staging.play()
    assert code == 2 and f"A Python with {PACKAGES} can't be made in {staging.venv} on spark1" in told and "or set model_staging_python" in told
    assert staging.calls("model_download") == []
    # The next run tries again.
    staging.pip(0)
    assert staging.play()[0] == 0


def test_check_mode_tells_what_would_come_and_does_not_miss_it(staging: Staging) -> None:
    gone = {**WHOLE, "complete": False, "problem": "The model's folder /m is not there."}
    code, told = staging.play("--check", manifest=gone)
    assert code == 0 and "a/b would be looked for at the hub" in told and not staging.venv.exists() and staging.calls("model_download") == []
    code, told = staging.play("--check", manifest=gone, model_staging_python="/opt/py")
    assert code == 0 and "changed=1" in told and len(staging.calls("model_download")) == 1
    # What would not come is missed.
    code, told = staging.play("--check", manifest=gone, model_staging_python="/opt/py", answer={"changed": False, "commit": SHA})
    assert code == 2 and "The model's folder /m is not there; download it to there" in told
