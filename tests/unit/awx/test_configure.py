# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What awx/configure.yml asks of AWX's modules, which here only write down what they are given."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import typing as t

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]
STAND_IN = """
import json, os
from ansible.plugins.action import ActionBase


class ActionModule(ActionBase):
    def run(self, tmp=None, task_vars=None):
        with open(os.environ["GIVEN"], "a") as log:
            log.write(json.dumps([self._task.action.rpartition(".")[2], self._task.args]) + "\\n")
        return {"changed": False}
"""
MODULES = (
    "project execution_environment inventory inventory_source notification_template job_template workflow_job_template workflow_job_template_node schedule"
)
MAIL = {"sparks_awx_mail_host": "mail.example.com", "sparks_awx_mail_recipients": ["ops@example.com"]}


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, dict[str, t.Any]]]:
    folder = tmp_path_factory.mktemp("awx")
    actions = folder / "ansible_collections" / "awx" / "awx" / "plugins" / "action"
    actions.mkdir(parents=True)
    for name in MODULES.split():
        (actions / f"{name}.py").write_text(STAND_IN)
    line = [sys.executable, "-m", "ansible", "playbook", "-i", "localhost,", str(ROOT / "awx" / "configure.yml"), "-e", json.dumps(MAIL)]
    environment = {**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(folder), "ANSIBLE_HOME": str(folder), "GIVEN": str(folder / "given")}
    done = subprocess.run(line, cwd=folder, env=environment, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return [tuple(json.loads(line)) for line in (folder / "given").read_text().splitlines()]


def of(given: list[tuple[str, dict[str, t.Any]]], module: str) -> list[dict[str, t.Any]]:
    return [arguments for name, arguments in given if name == module]


def test_what_is_made(given: list[tuple[str, dict[str, t.Any]]]) -> None:
    # Without an image there is no environment to make, and what is not given is left to AWX.
    assert of(given, "execution_environment") == [] and all("execution_environment" not in template for template in of(given, "job_template"))
    assert [len(of(given, name)) for name in ("project", "inventory", "inventory_source", "schedule", "workflow_job_template")] == [1] * 5
    assert "credential" not in of(given, "project")[0]
    (source,) = of(given, "inventory_source")
    assert (source["source"], source["source_project"], source["source_path"]) == ("scm", "Sparks", "sparks.ini")
    assert of(given, "schedule")[0]["rrule"] == "DTSTART:20260101T000000Z RRULE:FREQ=MINUTELY;INTERVAL=15"


def test_the_templates_get_their_surveys_as_data(given: list[tuple[str, dict[str, t.Any]]]) -> None:
    templates = {template["name"]: template for template in of(given, "job_template")}
    launch = templates["Sparks: launch"]
    assert launch["survey_spec"]["spec"][0]["variable"] == "tp_launch_recipe" and launch["survey_enabled"] is True
    assert launch["survey_spec"]["spec"][-1]["choices"] == ["true", "false"] and launch["survey_spec"]["spec"][-1]["default"] == "false"
    assert launch["credentials"] == ["Sparks"] and launch["extra_vars"] == {"tp_launch_history_dir": ""} and int(launch["job_slice_count"]) == 1
    assert launch["notification_templates_error"] == ["Sparks: mail"] and "survey_spec" not in templates["Sparks: preflight"]
    assert of(given, "workflow_job_template")[0]["survey_spec"] == launch["survey_spec"]


def test_the_texts_of_notifications_arrive_as_awx_is_to_render_them(given: list[tuple[str, dict[str, t.Any]]]) -> None:
    (mail,) = of(given, "notification_template")
    assert mail["messages"]["error"]["message"] == "{{ job.name }}: {{ job.artifacts.sparkstack_summary | default('failed without a verdict') }}"
    assert mail["notification_configuration"]["recipients"] == ["ops@example.com"] and mail["notification_configuration"]["port"] == 25


def test_the_nodes_are_there_before_they_are_put_in_order(given: list[tuple[str, dict[str, t.Any]]]) -> None:
    nodes = [(node["identifier"], node["unified_job_template"], node.get("success_nodes")) for node in of(given, "workflow_job_template_node")]
    stages = ["prepare", "stage", "launch", "prove"]
    assert nodes[:4] == [(stage, f"Sparks: {stage}", None) for stage in stages]
    assert nodes[4:] == [(stage, f"Sparks: {stage}", stages[index + 1 : index + 2]) for index, stage in enumerate(stages)]
