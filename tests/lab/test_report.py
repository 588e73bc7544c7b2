# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The report of real launches on the lab's nodes: of one that serves, of one that fails, and of both once more out of their records."""

from __future__ import annotations

import pathlib
import re
import stat

import play
import pytest
import yaml

pytestmark = [pytest.mark.lab, pytest.mark.engine]

RECIPE = play.ROOT / "tests" / "lab" / "recipes" / "tiny-qwen3-moe.yml"
REPORT = "sparkstack.inference.report"


@pytest.fixture(scope="module", autouse=True)
def fresh_nodes(rehearsed: None) -> None:
    """Nodes without a deployment or records of one."""
    play.lab("up")
    play.install_engine()
    for name in play.RANKS:
        play.node(name, "docker ps -aq | xargs -r docker rm -f; rm -rf /var/lib/sparkstack/deployments")


@pytest.fixture(scope="module", name="folder")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return tmp_path_factory.mktemp("reports")


def read(path: pathlib.Path) -> str:
    """The page, once it is known to be one that needs nothing else."""
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    page = path.read_text(encoding="utf-8")
    assert "<script" not in page and not re.search(r'(src|href)="', page)
    return page


def extra(folder: pathlib.Path, name: str) -> dict[str, str]:
    return {"tp_launch_report": str(folder / name), "tp_launch_history_dir": str(folder / "history")}


def test_a_path_that_will_not_do_is_refused_before_a_node_is_touched(folder: pathlib.Path) -> None:
    before = play.footprint()
    run = play.playbook("deploy_qwen.yml", extra={"tp_launch_report": str(folder / "nowhere" / "launch.html")})
    assert run.code == 2 and f"There is no folder {folder}/nowhere for launch.html" in run.text
    assert play.footprint() == before


def test_a_launch_that_serves(folder: pathlib.Path) -> None:
    run = play.playbook("deploy_qwen.yml", extra=extra(folder, "good.html"))
    assert run.code == 0, run.output
    page = read(folder / "good.html")
    assert "✓ READY" in page and "served after" in page and "GiB available at first" in page
    for word in ("spark1", "spark2", "load_weights", "kv_cache", "Preflight", "What was brought"):
        assert word in page


def test_a_second_run_has_nothing_to_tell_but_that_it_serves(folder: pathlib.Path) -> None:
    run = play.playbook("deploy_qwen.yml", extra=extra(folder, "again.html"))
    assert run.code == 0 and not any(run.changed.values()), run.output
    assert "✓ READY" in read(folder / "again.html")


def test_it_is_told_again_out_of_the_record(folder: pathlib.Path) -> None:
    run = play.playbook(REPORT, extra={"deployment": play.DEPLOYMENT, **extra(folder, "later.html")})
    assert run.code == 0 and "READY: All 2 ranks serve." in run.text, run.output
    assert "GiB available at first" in read(folder / "later.html")
    # Where the controller has kept nothing, a node has.
    run = play.playbook(REPORT, extra={"deployment": play.DEPLOYMENT, **extra(folder, "node.html"), "tp_launch_history_dir": ""})
    assert run.code == 0 and "READY: All 2 ranks serve." in run.text, run.output
    assert "GiB available at first" in read(folder / "node.html")


@pytest.mark.long
def test_a_launch_that_fails_shows_where_each_rank_stood(folder: pathlib.Path) -> None:
    recipe = yaml.safe_load(RECIPE.read_text())
    # GiB, more than the nodes have: each rank fails where it takes its cache.
    recipe["engines"]["vllm"]["environment"]["VLLM_CPU_KVCACHE_SPACE"] = "100"
    path = folder / "big.yml"
    path.write_text(yaml.safe_dump(recipe))
    own = {"tp_launch_recipe": str(path), "tp_launch_engine": "vllm", "tp_launch_memory_check": "warn"}
    run = play.playbook("deploy_qwen.yml", extra={**own, **extra(folder, "failed.html")})
    assert run.code == 2, run.output
    page = read(folder / "failed.html")
    assert "✕ FAILED" in page and "Where each rank stood" in page and "It came to phase" in page and "Evidence" in page


def test_log_files_of_anybody(folder: pathlib.Path) -> None:
    case = play.ROOT / "tests" / "fixtures" / "logs" / "vllm-cpu" / "kv-cache-too-big"
    logs = f"{case / 'head.log'},{case / 'worker.log'}"
    run = play.playbook("sparkstack.inference.diagnose", extra={"logs": logs, **extra(folder, "logs.html")})
    assert run.code == 0, run.output
    assert "Where each rank stood" in read(folder / "logs.html")
