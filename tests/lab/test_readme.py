# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Every command of the README and of CONTRIBUTING, played on the lab as it is written there."""

from __future__ import annotations

import re
import shutil
import subprocess

import play
import pytest
from cloning import Clone

pytestmark = [pytest.mark.lab, pytest.mark.engine]

README = (play.ROOT / "README.md").read_text()
DEFAULTS = "".join(path.read_text() for path in play.ROOT.glob("roles/*/defaults/main.yml"))
BLOCKS = re.findall(r"^```shell\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
TABLE = [re.findall(r"`([^`]+)`", row) for row in re.findall(r"^\| [a-z].* \| `.*` \|$", README, re.MULTILINE)]


@pytest.fixture(scope="module", name="clone")
def _clone(tmp_path_factory: pytest.TempPathFactory) -> Clone:
    """A fresh clone, whose my-recipe.yml is the lab's recipe."""
    play.lab("up")
    play.install_engine()
    clone = Clone(tmp_path_factory.mktemp("clone"), tmp_path_factory.mktemp("home"))
    shutil.copy(play.ROOT / "tests/lab/recipes/tiny-qwen3-moe.yml", clone.folder / "my-recipe.yml")
    return clone


def run(command: str, clone: Clone, code: int = 0) -> str:
    """A command line as a user types it; its output."""
    done = clone.type(command)
    assert done.returncode == code, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


def test_the_readme_has_the_commands_that_are_played_here() -> None:
    assert BLOCKS[0] == "make demo\n" and BLOCKS[1] == "make test\n"
    assert [block.split()[0] for block in BLOCKS[2:]] == ["python3", "ansible-playbook"]
    assert len(BLOCKS) == 4 and len(TABLE) >= 5


@pytest.mark.long
def test_make_demo_ends_with_an_answer() -> None:
    # In the checkout itself, whose environment and image are there; a clean machine takes the same way from its start.
    done = subprocess.run(["make", "demo"], cwd=play.ROOT, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "answered" in done.stdout


def test_the_way_to_real_sparks_leads_to_an_answer(clone: Clone) -> None:
    for block in BLOCKS[2:]:
        for command in block.strip().splitlines():
            output = run(command, clone)
    assert "answered" in output


@pytest.mark.long
def test_the_table_of_commands(clone: Clone) -> None:
    for words in TABLE:
        command = words[0]
        if "rollback" in command:
            # The recipe of the README was never launched here; test_deploy.py goes back to a launch that was.
            said = " ".join(run(command, clone, code=2).split())
            assert "There is no launch of 'qwen3.5-122b-a10b-fp8' to go back to" in said
        elif "inference.stage " in command:
            # The recipe's model is not here; test_model_sync.py and test_stages.py stage what is.
            assert "The model's folder /srv/models/Qwen3.5-122B-A10B-FP8 is not there." in run(command, clone, code=2)
        elif "inference.report " in command:
            # Nor is there a record of it; test_deploy.py makes a report of a launch that was.
            said = " ".join(run(command, clone, code=2).split())
            assert "There is no record of 'qwen3.5-122b-a10b-fp8', neither in" in said
        elif "inference.router " in command:
            # Nor are there replicas; test_router.py has two.
            said = " ".join(run(command, clone, code=2).split())
            assert "No node has a rank 0 of 'my-model' or of its replicas 'my-model-rN'" in said
        elif command.startswith(("ansible-playbook ", "ansible ")):
            # This machine has no Prometheus.
            run(command.replace("/etc/prometheus/", f"{clone.folder}/"), clone)
        elif command.startswith("-e model_staging_repo="):
            # Nor has it the hub; test_download.py has one of its own.
            assert "model_staging_repo:" in DEFAULTS
        elif command.startswith("-e"):
            engine = "sglang" if "context-length" in command else "vllm"
            run(f"ansible-playbook deploy_qwen.yml -i sparks.ini --check -e tp_launch_engine={engine} {command}", clone)
        else:
            assert f"\n{command}:" in DEFAULTS


def test_the_make_targets_that_contributing_names_exist() -> None:
    text = (play.ROOT / "CONTRIBUTING.md").read_text()
    for target in re.findall(r"`make ([a-z-]+)`", text):
        done = subprocess.run(["make", "--dry-run", target], cwd=play.ROOT, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
