# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the guides in docs/guides hold, and how each of their commands is played.

C(STEPS) has every command of every guide once, in the order in which tests/lab/test_guides.py plays them. One lab and two launches do for all of
them: what one step leaves is the next one's beginning.
"""

from __future__ import annotations

import pathlib
import re
import typing as t

ROOT = pathlib.Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "guides"
PAGES = sorted(path.stem for path in FOLDER.glob("*.md"))
DEPLOYMENT = "qwen3.5-122b-a10b-fp8"
"""The deployment's name in the guides; on the lab a small model is served under it."""
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def text(page: str) -> str:
    return (FOLDER / f"{page}.md").read_text(encoding="utf-8")


def blocks(page: str, language: str) -> list[str]:
    """The fenced blocks of a page in that language."""
    return [body for found, body in _FENCE.findall(text(page)) if found == language]


def commands(page: str) -> list[str]:
    """The command lines of a page, each of which stands on a line of its own."""
    return [line for body in blocks(page, "shell") for line in body.splitlines() if line]


class Step(t.NamedTuple):
    """A command as the guides have it."""

    pages: str
    """The guides that have it, with blanks between them."""
    command: str
    says: str
    """Found in what it says, with line breaks folded away."""
    code: int = 0
    changes: bool | None = None
    """Whether a task of it counts as changed; None where that is no matter, or the command has no recap."""


PLAYBOOK = "ansible-playbook sparkstack.inference."
STEPS = (
    # Nothing is there.
    Step("two_sparks", "python3 -m pip install --requirement requirements.txt", ""),
    Step("two_sparks", "ansible-galaxy collection install --requirements-file collections/requirements.yml", ""),
    Step("two_sparks", "ansible sparks -i sparks.ini -m ansible.builtin.ping", "spark2 | SUCCESS"),
    Step("two_sparks", f"{PLAYBOOK}preflight -i sparks.ini", "Preflight of 2 nodes (spark1, spark2)", changes=False),
    Step("two_sparks", f"{PLAYBOOK}stage -i sparks.ini -e tp_launch_recipe={DEPLOYMENT}", ""),
    Step("two_sparks", "ansible-playbook deploy_qwen.yml -i sparks.ini --check --diff", "start all ranks, workers first because it runs on no node"),
    Step("two_sparks", "ansible-playbook deploy_qwen.yml -i sparks.ini", "answered", changes=True),
    # It serves.
    Step("two_sparks", 'ansible head -i sparks.ini -m ansible.builtin.uri -a "url=http://localhost:30000/v1/models return_content=true"', "status: 200"),
    Step("two_sparks", f"{PLAYBOOK}status -i sparks.ini", DEPLOYMENT, changes=False),
    Step("four_sparks", f"{PLAYBOOK}fabric_configure -i sparks.ini --check --diff", "192.168.200.0/24"),
    Step("four_sparks", f"{PLAYBOOK}preflight -i sparks.ini -e json=preflight.json", "Preflight of 2 nodes"),
    Step("four_sparks my_model", f"{PLAYBOOK}deploy -i sparks.ini -e tp_launch_recipe=my-recipe.yml --check --diff", "", changes=False),
    Step("four_sparks", f"{PLAYBOOK}deploy -i sparks.ini -e tp_launch_recipe=my-recipe.yml -e model_staging_sync=true", "", changes=False),
    Step("engines", "ansible-playbook deploy_qwen.yml -i sparks.ini -e tp_launch_engine=vllm --check --diff", "", changes=False),
    Step(
        "engines",
        'ansible head -i sparks.ini -b -m sparkstack.inference.engine_options_info -a "image=vllm/vllm-openai:v0.33.0 engine=vllm"',
        "--max-model-len",
    ),
    Step(
        "engines",
        """ansible-playbook deploy_qwen.yml -i sparks.ini -e '{"tp_launch_engine": "vllm", "tp_launch_arguments": {"max-num-seqs": 8}}' --check --diff""",
        "max-num-seqs",
        changes=True,
    ),
    Step("my_model", "ansible head -i sparks.ini -b -m sparkstack.inference.model_manifest_info -a path=/srv/models/My-Model", "complete: true"),
    Step("my_model", f"{PLAYBOOK}stage -i sparks.ini -e tp_launch_recipe=my-recipe.yml", "", changes=False),
    Step("my_model", f"{PLAYBOOK}deploy -i sparks.ini -e tp_launch_recipe=my-recipe.yml", "", changes=False),
    Step("verdict", f"{PLAYBOOK}diagnose -i sparks.ini", "READY", changes=False),
    Step("verdict", f"{PLAYBOOK}diagnose -i sparks.ini -e report_detail=full -e json=verdict.json", "READY"),
    Step("verdict", f"{PLAYBOOK}diagnose -i sparks.ini -e strict=true", "READY", changes=False),
    Step("verdict", f"{PLAYBOOK}diagnose -e logs=head.log,worker.log", "FAILED"),
    Step("verdict", f"{PLAYBOOK}diagnose -i sparks.ini -e bundle=support.tar.gz", "The support bundle is"),
    Step("verdict", f"{PLAYBOOK}report -i sparks.ini -e deployment={DEPLOYMENT} -e tp_launch_report=launch.html", "The report is"),
    Step("verdict", f"{PLAYBOOK}health -i sparks.ini", "", changes=False),
    # It serves with a key.
    Step("security", "ansible-vault encrypt --vault-password-file vault-password secrets.yml", ""),
    Step("security", "ansible-playbook deploy_qwen.yml -i sparks.ini -e @secrets.yml --vault-password-file vault-password", "answered", changes=True),
    Step("security", f"{PLAYBOOK}status -i sparks.ini -e @secrets.yml --vault-password-file vault-password", "serving", changes=False),
    Step(
        "nodes",
        'ansible sparks -i sparks.ini -b -m ansible.builtin.find -a "paths=/etc,/etc/systemd/system,/etc/sysctl.d,/etc/netplan,/usr/local/lib,/var/lib,'
        '/var/cache,/run,/run/systemd/system patterns=*sparkstack* file_type=any"',
        "path: /var/lib/sparkstack",
    ),
    Step(
        "nodes",
        'ansible sparks -i sparks.ini -b -m ansible.builtin.command -a "docker ps --all --filter label=sparkstack.deployment"',
        f"{DEPLOYMENT}-rank1",
    ),
    # All of it goes.
    Step("two_sparks nodes", f"{PLAYBOOK}stop -i sparks.ini -e deployment={DEPLOYMENT}", "came back", changes=True),
    Step("nodes", f"{PLAYBOOK}fabric_restore -i sparks.ini", ""),
    *(
        Step("nodes", f'ansible sparks -i sparks.ini -b -m ansible.builtin.file -a "path={path} state=absent"', "spark2 | ")
        for path in ("/var/lib/sparkstack", "/var/cache/sparkstack", "/run/sparkstack")
    ),
)
