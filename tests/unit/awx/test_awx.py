# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What awx/ describes: its surveys ask what the roles take, its templates play what is there, its texts can be rendered, its images can be built."""

from __future__ import annotations

import pathlib
import re
import typing as t

import jinja2
import jinja2.sandbox
import pytest
import yaml
from ansible_builder import ee_schema

from ansible_collections.sparkstack.inference.plugins.module_utils import _engines
from ansible_collections.sparkstack.inference.plugins.plugin_utils import _outcome

ROOT = pathlib.Path(__file__).resolve().parents[3]


class Loader(yaml.SafeLoader):
    """Knows the tag by which Ansible leaves a text alone."""


Loader.add_constructor("!unsafe", lambda loader, node: loader.construct_scalar(t.cast("yaml.ScalarNode", node)))


def load(*way: str) -> t.Any:
    # One of ours, with a tag more than the safe loader has.
    return yaml.load(ROOT.joinpath(*way).read_text(encoding="utf-8"), Loader)  # noqa: S506


FILES = sorted(path.name for path in (ROOT / "awx" / "vars").glob("*.yml"))
WHOLE: dict[str, t.Any] = {key: value for name in FILES for key, value in load("awx", "vars", name).items()}
SURVEYS: dict[str, t.Any] = {key: value for key, value in WHOLE.items() if key.startswith("sparks_survey_")}
TEMPLATES: dict[str, dict[str, t.Any]] = {template["name"]: template for template in WHOLE["controller_templates"]}
ENTRIES = load("roles", "tp_launch", "meta", "argument_specs.yml")["argument_specs"]
DEFAULTS = load("roles", "tp_launch", "defaults", "main.yml")
QUESTIONS = [(name, question) for name, survey in SURVEYS.items() for question in survey["spec"]]
IDS = [f"{name}-{question['variable']}" for name, question in QUESTIONS]

TYPES = {"text": str, "textarea": str, "password": str, "multiplechoice": str, "multiselect": (str, list), "integer": int, "float": float}
"""The questions that AWX knows, and of which type their defaults must be (awx/main/constants.py)."""


@pytest.mark.parametrize(("survey", "question"), QUESTIONS, ids=IDS)
def test_awx_takes_the_question(survey: str, question: dict[str, t.Any]) -> None:
    """As the API's own check of a survey does it (awx/api/views/__init__.py)."""
    assert isinstance(SURVEYS[survey]["name"], str) and isinstance(SURVEYS[survey]["description"], str)
    assert [isinstance(question[key], str) for key in ("question_name", "variable", "type")] == [True] * 3 and isinstance(question["required"], bool)
    if question.get("default", "") != "":
        assert isinstance(question["default"], TYPES[question["type"]])
    assert all(isinstance(question[key], int) for key in ("min", "max") if key in question)
    if question["type"] == "multiplechoice":
        # A choice is a text: what YAML reads as a boolean, AWX would store as one and never offer.
        assert all(isinstance(choice, str) for choice in question["choices"]) and question.get("default", question["choices"][0]) in question["choices"]
    names = [other["variable"] for other in SURVEYS[survey]["spec"]]
    assert len(names) == len(set(names))


OF_ROLE = {"bool": "multiplechoice", "str": "text", "raw": "text", "int": "integer", "float": "float"}


def specified(variable: str) -> dict[str, t.Any]:
    """What the role says of a variable, in whichever of its entries."""
    found = [entry["options"][variable] for entry in ENTRIES.values() if variable in entry["options"]]
    assert found, f"no entry of tp_launch takes {variable}"
    return t.cast("dict[str, t.Any]", found[0])


@pytest.mark.parametrize(("survey", "question"), QUESTIONS, ids=IDS)
def test_a_question_asks_what_the_role_takes(survey: str, question: dict[str, t.Any]) -> None:
    variable, option = question["variable"], specified(question["variable"])
    choices = option.get("choices") or (sorted(_engines.ENGINES) if variable == "tp_launch_engine" else None)
    choices = ["true", "false"] if option["type"] == "bool" else choices
    kind = "password" if option.get("no_log") else "multiplechoice" if choices else OF_ROLE[option["type"]]
    assert (question["type"], question.get("choices")) == (kind, choices)
    default = DEFAULTS.get(variable, option.get("default"))
    if variable == "tp_launch_recipe":
        # The role's own is what a playbook brings; here it is a recipe that is there.
        assert default == option["default"] == "{{ tp_launch_default_recipe }}"
        assert (ROOT / "playbooks" / "recipes" / f"{question['default']}.yml").is_file()
    elif "default" in question:
        assert question["default"] == (str(default).lower() if isinstance(default, bool) else default if default is not None else "")
    else:
        # Without a default nothing is handed over, and the role's own holds.
        assert question["required"] or default in ("", None)


@pytest.mark.parametrize(("survey", "question"), QUESTIONS, ids=IDS)
def test_an_answer_is_a_text_and_is_read_as_what_it_means(survey: str, question: dict[str, t.Any]) -> None:
    """C(when: x) is true for the text C(false): wherever a yes or no of a survey decides, it is made one, or handed to a module that makes it one."""
    if question.get("choices") != ["true", "false"]:
        return
    files = [*(ROOT / "roles").glob("*/tasks/*.yml"), *(ROOT / "roles").glob("*/vars/*.yml"), *(ROOT / "playbooks").glob("*.yml")]
    uses = [line.strip() for path in files for line in path.read_text(encoding="utf-8").splitlines() if re.search(rf"\b{question['variable']}\b", line)]
    uses = [line for line in uses if not line.startswith("#")]
    assert uses
    for line in uses:
        name = question["variable"]
        alone = re.fullmatch(rf'(force|restart): "\{{\{{ (true if _tp_launch_debug else )?{name} \}}\}}"', line)
        assert alone or re.search(rf"{name}( \| default\(false\))? \| bool", line) or line == f"{name}: true", line


def test_the_guide_has_every_question() -> None:
    guide = (ROOT / "docs" / "awx.md").read_text(encoding="utf-8")
    told = re.findall(r"^\| `(\w+)` \| (\w+) \| (.*?) \|", guide, re.MULTILINE)
    wanted = {
        (question["variable"], question["type"], f"`{question['default']}`" if question.get("default", "") != "" else "") for _name, question in QUESTIONS
    }
    assert set(told) >= wanted and {row[0] for row in told} >= {name for name, _type, _default in wanted}
    assert {row for row in told if row[0].startswith("tp_launch_")} == {row for row in wanted if row[0].startswith("tp_launch_")}


def test_the_guide_has_every_artifact() -> None:
    guide = (ROOT / "docs" / "awx.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `sparkstack_(\w+)` \|", guide, re.MULTILINE) == list(_outcome.KEYS)


# What the project is to AWX.

DISCOVERED = re.compile(r"^\s*-?\s*?(?:hosts|(ansible\.builtin\.)?include|(ansible\.builtin\.)?import_playbook):\s*?.*?$", re.MULTILINE)
"""A file that has such a line is offered as a playbook (awx/main/utils/ansible.py)."""


@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES)
def test_a_template_plays_what_the_project_offers(template: dict[str, t.Any]) -> None:
    assert DISCOVERED.search((ROOT / template["playbook"]).read_text(encoding="utf-8"))
    assert template["project"] in [project["name"] for project in WHOLE["controller_projects"]]
    assert template["inventory"] in [inventory["name"] for inventory in WHOLE["controller_inventories"]]
    # All nodes of a deployment are in one job.
    assert template["job_slice_count"] == 1 and template["ask_job_slice_count_on_launch"] is template["ask_limit_on_launch"] is False
    assert template["timeout"] == 0 and template["extra_vars"] == {"tp_launch_history_dir": ""}
    assert bool(template.get("survey_enabled")) == ("survey_spec" in template)
    if "survey_spec" in template:
        (survey,) = re.findall(r"^\{\{ (\w+) \}\}$", template["survey_spec"])
        assert survey in SURVEYS


def test_the_project_brings_what_awx_reads() -> None:
    assert load("collections", "requirements.yml")["collections"] == [{"name": ".", "type": "dir"}]
    # AWX offers files of that name's ending as inventories, and lists no YAML.
    assert WHOLE["sparks_awx_inventory_path"] == "sparks.ini" and (ROOT / "sparks.ini").is_file()
    settings = (ROOT / "ansible.cfg").read_text(encoding="utf-8")
    assert "host_key_checking" not in settings and "forks = 16" in settings


def test_the_stages_of_the_workflow_are_templates_and_come_one_after_the_other() -> None:
    (workflow,) = WHOLE["controller_workflows"]
    nodes = workflow["simplified_workflow_nodes"]
    assert [node["identifier"] for node in nodes] == ["prepare", "stage", "launch", "prove"]
    assert [node.get("success_nodes", []) for node in nodes] == [["stage"], ["launch"], ["prove"], []]
    assert all(TEMPLATES[node["unified_job_template"]]["playbook"] == f"playbooks/{node['identifier']}.yml" for node in nodes)
    # A failed stage makes a failed workflow: no node goes on from a failure.
    assert not any(node.get("failure_nodes") or node.get("always_nodes") for node in nodes)
    # A job that is part of a workflow of its own name is taken for a slice, see playbooks/_hosts.yml.
    assert workflow["name"] not in TEMPLATES
    # What the workflow asks, its stages ask when they are run again alone.
    assert {TEMPLATES[node["unified_job_template"]]["survey_spec"] for node in nodes} == {workflow["survey_spec"]}


def test_the_schedule_runs_a_template() -> None:
    (schedule,) = WHOLE["controller_schedules"]
    assert schedule["unified_job_template"] in TEMPLATES and "RRULE:FREQ=MINUTELY" in schedule["rrule"]


# The files are in the shape of infra.aap_configuration: the variables and keys that its roles read (their README files).

COMMON = {"name", "description", "organization"}
SHAPE = {
    "controller_projects": COMMON | {"scm_type", "scm_url", "scm_branch", "credential", "scm_clean", "scm_update_on_launch", "wait", "update_project"},
    "controller_execution_environments": COMMON | {"image", "pull"},
    "controller_inventories": COMMON,
    "controller_inventory_sources": COMMON | {"inventory", "source", "source_project", "source_path", "overwrite", "overwrite_vars", "update_on_launch"},
    "controller_notifications": COMMON | {"notification_type", "notification_configuration", "messages"},
    "controller_templates": COMMON
    | {"job_type", "project", "inventory", "playbook", "credentials", "execution_environment", "forks", "job_slice_count", "extra_vars", "timeout"}
    | {"use_fact_cache", "allow_simultaneous", "survey_enabled", "survey_spec", "notification_templates_success", "notification_templates_error"}
    | {f"ask_{name}_on_launch" for name in ("job_slice_count", "limit", "job_type", "variables", "verbosity")},
    "controller_workflows": COMMON
    | {"inventory", "allow_simultaneous", "ask_variables_on_launch", "survey_enabled", "survey_spec", "simplified_workflow_nodes"},
    "controller_schedules": COMMON | {"unified_job_template", "rrule", "enabled"},
}


def test_the_files_are_in_their_shape() -> None:
    assert {key for key in WHOLE if key.startswith("controller_")} == set(SHAPE)
    for key, allowed in SHAPE.items():
        for entry in WHOLE[key]:
            assert set(entry) <= allowed, f"{key} {entry['name']}"


def test_the_playbook_hands_over_every_key() -> None:
    play = load("awx", "configure.yml")[0]
    assert sorted(play["vars_files"]) == sorted(f"vars/{name}" for name in FILES)
    given: dict[str, set[str]] = {}
    for task in play["tasks"]:
        lists = re.findall(r"controller_\w+", str(task.get("loop")))
        for name in lists:
            given.setdefault(name, set()).update(re.findall(r"item\.(?:0\.)?(\w+)", str(task)))
            given[name].update(re.findall(r"subelements\('(\w+)'\)", str(task.get("loop"))))
    assert {name: set(SHAPE[name]) - keys for name, keys in given.items()} == {name: set() for name in SHAPE}


def test_every_variable_of_the_files_is_theirs() -> None:
    text = "".join((ROOT / "awx" / "vars" / name).read_text(encoding="utf-8") for name in FILES)
    named = set(re.findall(r"\bsparks_(?:awx|survey)_\w+", text))
    assert named == {key for key in WHOLE if key.startswith("sparks_")}


# Notifications: AWX checks a text with no artifacts and refuses what is undefined, and renders it leniently with those of the job.

OUTCOME = _outcome.launch("launch", {"deployment": "qwen", "endpoint": "http://spark1:8000/v1", "action": "start"}, {}, "No space left.")
JOB = {"name": "Sparks: launch", "status": "failed"}
TEXTS = [
    (event, part, text)
    for notification in WHOLE["controller_notifications"]
    for event, texts in notification["messages"].items()
    for part, text in texts.items()
]


class Strict(jinja2.StrictUndefined):
    """Can't even be looked at, as AWX has it while it checks a text."""

    __repr__ = __str__ = jinja2.StrictUndefined._fail_with_undefined_error  # type: ignore[assignment]


@pytest.mark.parametrize(("event", "part", "text"), TEXTS)
def test_awx_takes_the_text(event: str, part: str, text: str) -> None:
    assert event in ("started", "success", "error") and part in ("message", "body")
    assert part == "body" or "\n" not in text
    bare = jinja2.sandbox.ImmutableSandboxedEnvironment(undefined=Strict).from_string(text).render(job={**JOB, "artifacts": {}}, url="https://awx/1")
    assert bare.startswith("Sparks: launch: " if part == "message" else "The job ")


@pytest.mark.parametrize(("event", "part", "text"), TEXTS)
def test_the_text_tells_the_verdict(event: str, part: str, text: str) -> None:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(undefined=jinja2.ChainableUndefined)
    told = environment.from_string(text).render(job={**JOB, "artifacts": OUTCOME}, url="https://awx/1")
    if part == "message":
        assert told == "Sparks: launch: No space left."
    else:
        lines = told.splitlines()
        assert lines[:3] == ["FAILED: No space left.", "Deployment: qwen", "Endpoint: http://spark1:8000/v1"]
        assert lines[-1] == "Sparks: launch, failed: https://awx/1"


# Execution environments.


@pytest.mark.parametrize("name", ["execution-environment.yml", "meta/execution-environment.yml"])
def test_ansible_builder_takes_the_definition(name: str) -> None:
    ee_schema.validate_schema(load(name))
    definition = load(name)
    for key in ("python", "system"):
        path = ROOT / definition["dependencies"][key]
        # What a builder reads must be in the artifact.
        assert path.is_file() and path.parent == ROOT / "meta"


def test_the_image_has_what_the_collection_depends_on() -> None:
    given = load("execution-environment.yml")["dependencies"]
    assert {entry["name"]: entry["version"] for entry in given["galaxy"]["collections"]} == load("galaxy.yml")["dependencies"]
    lowest = re.sub(r"^>=(\d+\.\d+).*", r"\1", load("meta", "runtime.yml")["requires_ansible"])
    assert given["ansible_core"]["package_pip"].startswith(f"ansible-core>={lowest},")
    ours, needs = ((ROOT / name).read_text(encoding="utf-8").splitlines() for name in ("requirements.txt", "meta/ee-requirements.txt"))
    assert {line for line in ours if line and not line.startswith(("#", "ansible-core"))} == {line for line in needs if line and not line.startswith("#")}
