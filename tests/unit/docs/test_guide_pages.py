# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The guides say what is so: commands, names, recipes, inventories, links, and what the collection leaves on a node."""

from __future__ import annotations

import ast
import collections
import configparser
import pathlib
import re
import sys
import typing as t

import pytest
import yaml

from ansible_collections.sparkstack.inference.plugins.module_utils import _engines
from ansible_collections.sparkstack.inference.plugins.plugin_utils import _recipe

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests"))

import causes_page  # noqa: E402  (the path above must come first)
import guides  # noqa: E402

DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "roles").glob("*/README.md"))]
ROLES = sorted(path.name for path in (ROOT / "roles").iterdir())
# "-e json=FILE" and "-e '{"tp_launch_engine": "vllm"}'".
EXTRA = re.compile(r"-e ([a-z_]+)=|[{ ]\"([a-z_]+)\": ")


def options() -> set[str]:
    """Every variable that a role's specification or a playbook has."""
    found: set[str] = set()
    for role in ROLES:
        specs = yaml.safe_load((ROOT / "roles" / role / "meta" / "argument_specs.yml").read_text())["argument_specs"]
        found.update(name for entry in specs.values() for name in entry.get("options") or {})
    # Those of playbooks stand in their own templates: {{ target | default(..) }}, "model is defined".
    for playbook in (ROOT / "playbooks").glob("*.yml"):
        found.update(re.findall(r"\b([a-z][a-z_]+) (?:\| default\(|is (?:not )?defined)", playbook.read_text()))
    # Host variables, from which the roles' defaults are made.
    found.update(("fabric_cidr", "fabric_address", "control_address"))
    return found


def test_each_command_is_played_once_and_nothing_else_is() -> None:
    written = [(page, command) for page in guides.PAGES for command in guides.commands(page)]
    played = [(page, step.command) for step in guides.STEPS for page in step.pages.split()]
    assert collections.Counter(played) == collections.Counter(written)
    assert len({step.command for step in guides.STEPS}) == len(guides.STEPS)


def test_the_guides_have_no_command_outside_of_their_blocks() -> None:
    # A block of another language would hide commands from the test above.
    languages = {found for page in guides.PAGES for found, _body in guides._FENCE.findall(guides.text(page))}
    assert languages == {"shell", "yaml", "ini", "text"}


@pytest.mark.parametrize("page", guides.PAGES)
def test_what_a_guide_names_exists(page: str) -> None:
    text = guides.text(page)
    places = {"playbooks": "yml", "plugins/modules": "py", "plugins/filter": "py"}
    for name in re.findall(r"sparkstack\.inference\.(\w+)", text):
        assert name in ROLES or any((ROOT / place / f"{name}.{ending}").exists() for place, ending in places.items()), name
    known = options()
    prefixes = "|".join(sorted(ROLES, key=len, reverse=True))
    for name in re.findall(rf"\b(?:{prefixes})_[a-z_]+", re.sub(r"sparkstack\.inference\.\w+", "", text)):
        assert name in known or name in ROLES, name
    for command in guides.commands(page):
        for pair in EXTRA.findall(command):
            assert (pair[0] or pair[1]) in known, command


@pytest.mark.parametrize("page", guides.PAGES)
def test_a_guides_recipes_are_taken_and_its_inventories_have_a_head(page: str) -> None:
    for body in guides.blocks(page, "yaml"):
        data = yaml.safe_load(body)
        if "engines" in data:
            recipe = _recipe.parse(data, {})
            assert recipe.tensor_parallel_size in (2, 4)
            # What the engine's own parser would refuse can't be asked here, but the other engine's options are known.
            assert not set(recipe.arguments) & set(_engines.get(recipe.engine.name).launch.equivalents)
        elif "proof" in data:
            assert set(data["proof"]) <= {"prompt", "max_tokens", "timeout"}
        else:
            assert set(data) <= options(), body
    for body in guides.blocks(page, "ini"):
        parsed = configparser.ConfigParser(allow_no_value=True, delimiters=("\0",))
        parsed.read_string(body)
        assert len(parsed["head"]) == 1 and len(parsed["workers"]) == {"two_sparks": 1, "four_sparks": 3}[page]
        assert [line.partition("=")[0] for line in parsed["sparks:vars"]] == ["ansible_user", "fabric_cidr"]


def test_the_page_of_causes_is_what_the_diagnosis_goes_by() -> None:
    assert causes_page.PAGE.read_text(encoding="utf-8") == causes_page.page(), "run tests/causes_page.py"


def slug(title: str) -> str:
    """The anchor that a heading gets."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: pathlib.Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]*(?:#[^)\s]*)?)\)", path.read_text(encoding="utf-8")):
        where, _hash, anchor = target.partition("#")
        if where.startswith("http"):
            continue
        file = path if not where else (path.parent / where).resolve()
        assert file.exists(), target
        if anchor:
            assert anchor in [slug(title) for title in re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), re.MULTILINE)], target


# What the collection puts on a node.


def told() -> list[str]:
    """The paths, units and names in the first column of the tables of docs/guides/nodes.md."""
    cells = [row.split(" | ")[0] for row in guides.text("nodes").splitlines() if row.startswith("| ")]
    return [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]


def strings(path: pathlib.Path) -> t.Iterator[str]:
    """The texts in a Python file that are no documentation."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    idle: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            idle.add(id(node.value))
        # A module's documentation.
        if isinstance(node, ast.Assign) and any(isinstance(name, ast.Name) and name.id in ("DOCUMENTATION", "EXAMPLES", "RETURN") for name in node.targets):
            idle.update(id(one) for one in ast.walk(node.value))
    yield from (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in idle)


def created() -> set[str]:
    """The places of the collection's own that its code names: paths, units, drop-ins, hidden files."""
    pattern = re.compile(
        r"(?:^|(?<=[\s/'\"=]))((?:etc|run|usr/local/lib|var/lib|var/cache)/sparkstack\b[\w/@.-]*)|((?:60|90)-sparkstack[\w.-]*)|(sparkstack-[a-z-]+@?\.?[a-z]*)"
    )
    found: set[str] = set()
    texts = [text for path in (ROOT / "plugins").rglob("*.py") for text in strings(path)]
    texts += [path.read_text() for place in ("defaults", "tasks", "vars", "templates", "handlers") for path in (ROOT / "roles").glob(f"*/{place}/*")]
    for text in texts:
        for path, dropin, unit in pattern.findall(text):
            found.add("/" + path.rstrip("./") if path else dropin or unit)
    return found


def test_the_guide_tells_of_all_that_is_put_on_a_node() -> None:
    listed = told()
    idle = {
        # Marks in what the collection's own programs print.
        "sparkstack-collective", "sparkstack-hub", "sparkstack-options",
        # Names of images: of those that are kept, told in another column, and of a build until it has its own.
        "sparkstack-kept", "sparkstack-new",
        # A file within an environment of the collection's own, in the folder that is told.
        "sparkstack-packages",
    }  # fmt: skip
    for name in sorted(created() - idle):
        covered = any(f"{name}/".startswith(f"{one}/") or one.startswith(f"{name}/") if name.startswith("/") else name in one for one in listed)
        assert covered, f"docs/guides/nodes.md does not tell of {name}"


def test_the_guide_tells_of_nothing_that_the_code_does_not_know() -> None:
    code = "\n".join([text for path in (ROOT / "plugins").rglob("*.py") for text in strings(path)])
    code += "\n".join(path.read_text() for place in ("defaults", "tasks", "vars") for path in (ROOT / "roles").glob(f"*/{place}/*"))
    for name in told():
        # A name is put together of its folder and itself: the last part has to be in the code, without what stands for something else.
        last = re.sub(r"NAME|N$|:?…$", "", name.rstrip("/").rpartition("/")[2]).strip("-.")
        if last.endswith(".conf") and "/system/" not in name:
            assert last in code, name
        elif last not in ("port", "rendezvous_port", "image_sync_port", "model_staging_port", "# node_prep_swap:", "docker"):
            assert last.removesuffix(".timer").removesuffix(".service") in code, name


def test_the_guides_ports_are_the_engines() -> None:
    nodes, choice = guides.text("nodes"), guides.text("engines")
    sglang, vllm = _engines.get("sglang").launch, _engines.get("vllm").launch
    assert f"| {sglang.port} (SGLang), {vllm.port} (vLLM); " in nodes
    assert f"| {sglang.rendezvous_port} (SGLang), {vllm.rendezvous_port} (vLLM); " in nodes
    assert f"| {sglang.port}, {sglang.rendezvous_port} | {vllm.port}, {vllm.rendezvous_port} |" in choice
    assert str(yaml.safe_load((ROOT / "roles/tp_launch/defaults/main.yml").read_text())["tp_launch_autostart_port"]) in nodes
    for mine, theirs in (
        ("mem-fraction-static", "gpu-memory-utilization"),
        ("context-length", "max-model-len"),
        ("dist-timeout", "distributed-timeout-seconds"),
    ):
        assert sglang.equivalents[theirs] == mine and f"| `{mine}` | `{theirs}` |" in choice
