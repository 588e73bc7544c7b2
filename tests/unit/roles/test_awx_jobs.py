# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The jobs of awx/ as AWX runs them: by ansible_runner, out of this repository as the project. The nodes are stand-ins, the watch is the real one."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import sys
import typing as t

import ansible_runner
import pytest
import yaml
from test_tp_launch_ways import MINE, ROOT, Ways, plan

from ansible_collections.sparkstack.inference.plugins.module_utils._timeline import Timeline

PROBE = """#!/usr/bin/python
# WANT_JSON
import json, os, sys

with open(sys.argv[1]) as stream:
    container = json.load(stream)["container"]
with open(os.environ["WAYS"] + "/probe.json") as stream:
    print(json.dumps(json.load(stream)[container]))
"""
CLOSEUP = """#!/usr/bin/python
print('{"changed": false, "closeup": {"holders": []}}')
"""
READY = "[2026-11-29 22:42:02] server_args=ServerArgs()\n[2026-11-29 22:42:08] The server is fired up and ready to roll!\n"
CRASH = (
    '[2026-11-29 22:42:07 TP0] Scheduler hit an exception: Traceback (most recent call last):\n  File "a.py"\ntorch.OutOfMemoryError: CUDA out of memory.\n\n'
)
NOW = 1795992130.0


def look(log: str, **known: t.Any) -> dict[str, t.Any]:
    """What init_phase_probe tells of a container with this log."""
    timeline = Timeline("sglang", 2026)
    timeline.feed(log)
    return {
        "exists": True, "started": True, "running": True, "exit_code": None, "oom_killed": False, "error": "", "started_at": NOW - 10, "finished_at": None,
        "now": NOW, "reading": timeline.reading(), "activity": {}, "healthy": None, "addresses": [], "state": {"read": 1}, "changed": False, **known,
    }  # fmt: skip


def container(rank: int, **more: t.Any) -> dict[str, t.Any]:
    return {
        "name": f"tiny-rank{rank}", "deployment": "tiny", "engine": "sglang", "model": "tiny", "rank": rank, "ranks": 2, "port": 8000,
        "listen_address": "0.0.0.0", "launch_id": "L2", "image": "x:1", "running": True, "exit_code": 0, "oom_killed": False,
        "started_at": "2026-11-30T08:27:12Z", "finished_at": "0001-01-01T00:00:00Z", "spec": {"image_identity": "i"}, **more,
    }  # fmt: skip


def info(*containers: dict[str, t.Any]) -> dict[str, t.Any]:
    found = {"docker": {"reachable": True, "error": None}, "containers": list(containers), "image": {"identity": "i"}, "ledger": {}, "autostart": {}}
    found["routers"] = []
    return {**found, "now": NOW, "booted_at": NOW - 60}


SERVING = {"inference_info spark1": [info(container(0))], "inference_info spark2": [info(container(1))]}
MEMORY = {"gpus": [], "unified": True, "total_bytes": 1 << 34, "available_bytes": 1 << 33, "holders": []}


class Project(Ways):
    """The repository as a project, with stand-ins for what it calls on nodes."""

    def __init__(self, folder: pathlib.Path) -> None:
        super().__init__(folder)
        self.jobs = 0
        (folder / "runner").mkdir()
        self.here = folder / "ansible_collections" / "sparkstack" / "inference"
        (self.here / "playbooks").symlink_to(ROOT / "playbooks")
        self.real("init_phase_wait")
        (self.here / "plugins" / "modules").mkdir()
        (self.here / "plugins" / "modules" / "init_phase_probe.py").write_text(PROBE)
        (self.here / "plugins" / "modules" / "init_phase_closeup.py").write_text(CLOSEUP)
        shutil.rmtree(self.here / "roles" / "image_sync")
        (self.here / "roles" / "image_sync").symlink_to(ROOT / "roles" / "image_sync")
        before = {"before": "{{ ansible_facts['fabric'].address | default('nothing') }}"}
        stubs: dict[str, list[t.Any]] = {
            "nccl_env": [{"sparkstack.inference.other": before}, {"sparkstack.inference.fabric_facts": {}}],
            "preflight": [{"sparkstack.inference.preflight_report": {}}],
            "node_prep": [{"sparkstack.inference.page_cache_release": {}}],
        }
        for name, tasks in stubs.items():
            path = self.here / "roles" / name / "tasks"
            path.mkdir(parents=True, exist_ok=True)
            (path / "main.yml").write_text(yaml.safe_dump(tasks))

    def real(self, action: str) -> None:
        """Have this action be the real one."""
        path = self.here / "plugins" / "action" / f"{action}.py"
        path.unlink()
        path.write_text((ROOT / "plugins" / "action" / f"{action}.py").read_text(encoding="utf-8"))

    def job(self, playbook: str, answers: dict[str, t.Any] | None = None, looks: t.Sequence[dict[str, t.Any]] = (), **more: t.Any) -> Job:
        """Run a job template's playbook. :param looks: of the ranks, in their order. :param more: for ansible_runner, and hosts' variables as C(own)."""
        known: dict[str, t.Any] = {
            **SERVING,
            "inference_plan": [{"plan": plan("L2", "new", engine="sglang")}],
            "deployment_lock": [MINE],
            "docker_image_info": [{"images": [{"Id": "i"}]}],
            "diagnosis_plan": [{"plan": {"json": "", "bundle": ""}}],
            "gpu_memory_facts": [{"ansible_facts": {"gpu_memory": MEMORY}}],
            "fabric_facts spark1": [{"ansible_facts": {"fabric": {"address": "192.168.200.11"}}}],
            "fabric_facts spark2": [{"ansible_facts": {"fabric": {"address": "192.168.200.12"}}}],
            "inference_proof": [{"answered": True, "text": "b", "tokens": 1, "seconds": 0.1, "problem": None}],
        }
        (self.folder / "answers.json").write_text(json.dumps({**known, **(answers or {})}))
        probes = {f"tiny-rank{rank}": found for rank, found in enumerate(looks or (look(READY, healthy=True), look(READY)))}
        (self.folder / "probe.json").write_text(json.dumps(probes))
        own = {"ansible_connection": "local", "ansible_become": False, "ansible_python_interpreter": sys.executable, **more.pop("own", {})}
        hosts = {"head": {"hosts": {"spark1": None}}, "workers": {"hosts": {"spark2": None}}, "sparks": {"children": {"head": {}, "workers": {}}}}
        given = {"tp_launch_recipe": "tiny", "tp_launch_history_dir": "", "image_sync_source": "present", **more.pop("extravars", {})}
        environment = {
            "WAYS": str(self.folder), "ANSIBLE_COLLECTIONS_PATH": str(self.folder), "ANSIBLE_HOME": str(self.folder), "ANSIBLE_LOCALHOST_WARNING": "false",
            "PATH": f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}",
        }  # fmt: skip
        self.jobs += 1
        return Job(
            ansible_runner.run(
                private_data_dir=str(self.folder / "runner"),
                project_dir=str(ROOT),
                ident=f"job{self.jobs}",
                playbook=f"playbooks/{playbook}.yml",
                inventory={"all": {"children": hosts, "vars": own}},
                envvars=environment,
                extravars={"model_staging_manifest": {"digest": "d"}, **given},
                quiet=True,
                **more,
            )
        )


class Job:
    """A job that has ended, as AWX keeps it."""

    def __init__(self, run: t.Any) -> None:
        self.events: list[dict[str, t.Any]] = list(run.events)
        self.ended = (run.status, run.rc)
        self.output = "\n".join(event["stdout"] for event in self.events)
        # AWX takes the artifacts from the last event, also of a job that failed.
        assert self.events[-1]["event"] == "playbook_on_stats", self.output
        self.artifacts = {key.removeprefix("sparkstack_"): value for key, value in self.events[-1]["event_data"].get("artifact_data", {}).items()}

    def of(self, kind: str) -> list[dict[str, t.Any]]:
        return [event["event_data"] for event in self.events if event["event"] == kind]

    def sentence(self) -> str:
        """What the last task that failed says."""
        return str(self.of("runner_on_failed")[-1]["res"]["msg"])

    def handed(self) -> int:
        """How often something was handed over, on all hosts together."""
        return len([data for data in self.of("runner_on_ok") if data["task_action"] == "ansible.builtin.set_stats"])


@pytest.fixture
def project(tmp_path: pathlib.Path) -> Project:
    return Project(tmp_path)


def test_a_launch_shows_its_phases_and_hands_its_verdict_over_once(project: Project) -> None:
    job = project.job("launch")
    assert job.ended == ("successful", 0), job.output
    # The watch prints while it runs, each line as an event of its own, with the host in it.
    lines = [event["stdout"] for event in job.events if event["event"] == "verbose"]
    assert [host for host in ("spark1", "spark2") if any(f"[{host}]" in line and "ready" in line for line in lines)] == ["spark1", "spark2"], lines
    assert job.handed() == 1
    told = job.artifacts
    assert (told["stage"], told["verdict"], told["endpoint"], told["launch_id"]) == ("launch", "ready", "http://spark1:8000/v1", "L2")
    assert told["plan"]["action"] == "restart" and told["plan"]["hosts"] == ["spark1", "spark2"] and "environment" not in str(told["plan"])
    assert told["notification"].startswith("READY: tiny serves at http://spark1:8000/v1.\n") and project.locks() == ["held", "free"]


def test_the_last_event_of_a_failed_launch_carries_the_verdict(project: Project) -> None:
    job = project.job("launch", looks=(look(READY), look(CRASH, running=False, exit_code=1)))
    assert job.ended == ("failed", 2), job.output
    told = job.artifacts
    assert told["verdict"] == "failed" and "CUDA out of memory" in told["summary"] and told["remedy"] and told["culprit"] == "spark2"
    assert job.sentence() == f"{told['summary']} {told['remedy']}" and job.handed() == 1
    assert told["notification"].splitlines()[0] == f"FAILED: {told['summary']}" and project.locks() == ["held", "free"]


def test_a_launch_without_its_stage_is_refused_and_touches_nothing(project: Project) -> None:
    job = project.job("launch", {"inference_plan": [{"plan": plan("L2", "new", staged=False)}]})
    told = "x:1 is not on every node, or not the same there: run sparkstack.inference.stage first, then this again."
    assert (job.ended, job.sentence(), job.artifacts["summary"], job.artifacts["verdict"]) == (("failed", 2), told, told, "failed")
    assert project.calls("inference_launch", "spark1") == [] and project.locks() == ["held", "free"]


def test_a_stage_asks_the_nodes_and_not_the_facts_cache(project: Project) -> None:
    cache = project.folder / "runner" / "artifacts" / "job1" / "fact_cache"
    cache.mkdir(parents=True)
    stale = json.dumps({"fabric": {"address": "10.9.9.9"}})
    (cache / "spark1").write_text(stale)
    # Since ansible-core 2.19 the file's name has a prefix, and its content a wrapping.
    (cache / "s1_spark1").write_text(json.dumps({"__payload__": stale}))
    job = project.job("stage", fact_cache_type="jsonfile")
    assert job.ended == ("successful", 0), job.output
    assert [project.calls("other", "spark1")[0]["before"], project.calls("docker_image_sync", "spark1")[0]["address"]] == ["10.9.9.9", "192.168.200.11"]
    assert (job.artifacts["stage"], job.artifacts["summary"], job.handed()) == ("stage", "stage is done for tiny.", 1)
    assert project.locks() == ["held", "free"]


def test_a_stage_that_fails_gives_the_lock_back_and_says_why(project: Project) -> None:
    job = project.job("stage", {"docker_image_sync spark2": [{"failed": True, "msg": "spark2 has no room for x:1."}]})
    assert (job.ended, job.sentence(), job.artifacts["notification"]) == (
        ("failed", 2), "spark2 has no room for x:1.", "FAILED: spark2 has no room for x:1.\nDeployment: tiny",
    ), job.output  # fmt: skip
    assert project.locks() == ["held", "free"]


@pytest.mark.parametrize(("blocked", "ended"), [("", ("successful", 0)), ("spark1 and spark2 do not reach each other.", ("failed", 2))])
def test_the_nodes_are_prepared_only_when_they_are_proven(project: Project, blocked: str, ended: tuple[str, int]) -> None:
    job = project.job("prepare", {"preflight_report": [{"failed": True, "msg": blocked}]} if blocked else {})
    assert (job.ended, job.artifacts["stage"], job.artifacts["verdict"]) == (ended, "prepare", "failed" if blocked else "ready"), job.output
    assert len(project.calls("page_cache_release", "spark2")) == (0 if blocked else 1) and project.locks() == []
    assert not blocked or job.sentence() == job.artifacts["summary"] == blocked


@pytest.mark.parametrize(("autostart", "told"), [({}, ""), ({"failed": True, "msg": "spark2 has no systemd."}, "spark2 has no systemd.")])
def test_a_deploy_that_serves_and_cannot_be_left_to_the_nodes_says_so(project: Project, autostart: dict[str, t.Any], told: str) -> None:
    job = project.job("deploy", {"inference_autostart spark2": [autostart]}, extravars={"tp_launch_autostart": "true", "tp_launch_collective": "false"})
    assert (job.ended[0], job.handed(), project.locks()) == ("failed" if told else "successful", 1, ["held", "free"] + (["free"] if told else [])), job.output
    assert job.artifacts["stage"] == "deploy" and job.artifacts["verdict"] == ("failed" if told else "ready")
    assert not told or (job.sentence(), job.artifacts["summary"]) == (told, told)


def test_a_deploy_that_is_refused_hands_over_why(project: Project) -> None:
    job = project.job("deploy", {"inference_plan": [{"plan": plan("L2", "new")}, {"failed": True, "msg": "spark2 lacks 3 GiB."}]})
    assert (job.ended, job.sentence(), job.artifacts["notification"]) == (("failed", 2), "spark2 lacks 3 GiB.", "FAILED: spark2 lacks 3 GiB.\nDeployment: tiny")
    assert (job.handed(), project.locks(), project.calls("inference_launch", "spark1")) == (1, [], [])


def test_a_rollback_that_has_nothing_to_go_back_to_hands_over_why(project: Project) -> None:
    job = project.job("rollback", extravars={"deployment": "tiny"})
    assert job.ended == ("failed", 2) and job.sentence().startswith("There is no launch of 'tiny' to go back to: "), job.output
    assert (job.artifacts["stage"], job.artifacts["summary"], job.artifacts["deployment"]) == ("rollback", job.sentence(), "tiny")


@pytest.mark.parametrize(("strict", "ended"), [("false", ("successful", 0)), ("true", ("failed", 2))])
def test_a_diagnosis_hands_its_verdict_over_also_where_it_ends_as_the_launch_did(project: Project, strict: str, ended: tuple[str, int]) -> None:
    ranks = [{"node": f"spark{rank + 1}", "container": f"tiny-rank{rank}", "rank": rank} for rank in (0, 1)]
    stopped = {"diagnosis_plan": [{"plan": {"json": "", "bundle": "", "ordered": True, "ranks": ranks, "notes": []}}]}
    asked = {"deployment": "tiny", "strict": strict}
    job = project.job("diagnose", stopped, looks=(look(READY), look(CRASH, running=False, exit_code=1)), extravars=asked)
    assert (job.ended, job.handed()) == (ended, 1), job.output
    assert (job.artifacts["stage"], job.artifacts["verdict"], job.artifacts["culprit"]) == ("diagnose", "failed", "spark2")
    assert strict == "false" or job.sentence() == job.artifacts["summary"]


SLICE = {"awx_workflow_job_name": "Sparks: prepare", "awx_job_template_name": "Sparks: prepare"}


def test_a_limited_or_sliced_job_is_refused_before_anything_is_touched(project: Project) -> None:
    project.real("inference_plan")
    job = project.job("prepare", limit="spark1", extravars={"tp_launch_recipe": str(ROOT / "tests" / "lab" / "recipes" / "tiny-qwen3-moe.yml")})
    assert job.ended == ("failed", 2) and job.sentence() == job.artifacts["summary"]
    assert job.sentence().startswith("spark2 is left out of this run, but a launch needs all its ranks (spark1, spark2): run it without --limit")
    job = project.job("prepare", extravars=SLICE)
    assert job.ended == ("failed", 2) and job.sentence().startswith("This job is a slice of Sparks: prepare, and sees only a part of the nodes: set the ")
    assert sorted(path.name for path in project.folder.iterdir() if path.name.endswith((" spark1", " spark2"))) == []


def test_health_is_well(project: Project) -> None:
    job = project.job("health")
    assert job.ended == ("successful", 0), job.output
    assert (job.artifacts["verdict"], job.artifacts["deployment"], job.artifacts["endpoint"], job.handed()) == ("ready", "tiny", job.artifacts["endpoint"], 1)
    assert job.artifacts["endpoint"].endswith(":8000/v1") and job.artifacts["launch_id"] == "L2"


def test_health_ends_with_the_verdict(project: Project) -> None:
    ended = container(1, running=False, exit_code=1, finished_at="2026-11-30T08:29:12Z")
    answers: dict[str, t.Any] = {"inference_info spark2": [info(ended)], "inference_proof": [{"answered": False, "seconds": 1.0, "problem": "HTTP status -1"}]}
    job = project.job("health", answers, looks=(look(READY), look(CRASH, running=False, exit_code=1)))
    assert job.ended == ("failed", 2), job.output
    assert job.artifacts["verdict"] == "failed" and job.sentence().startswith(job.artifacts["summary"]) and "CUDA out of memory" in job.sentence()
    # A part of the nodes tells nothing: the ranks on the others would seem to be missing.
    job = project.job("health", limit="spark1")
    assert job.sentence() == "--limit leaves out spark2, but all nodes of the deployment are needed: run this without it."


def test_health_of_nodes_of_which_none_answers(project: Project) -> None:
    job = project.job("health", own={"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 9})
    told = "It is unknown what runs. spark1: does not answer over ssh. spark2: does not answer over ssh. "
    assert (
        job.ended == ("failed", 2)
        and job.sentence() == f"{told}See that every node is switched on and that you can log in to it by ssh from this machine, then run this again."
    ), job.output
    assert (job.artifacts["verdict"], job.handed()) == ("unknown", 1)


def test_proof_asks_from_here_too(project: Project) -> None:
    here = {"answered": False, "seconds": 1.0, "problem": "Connection refused"}
    job = project.job("prove", {"inference_proof": [{"answered": True, "seconds": 0.1, "problem": None}, here]})
    assert job.ended == ("failed", 2), job.output
    assert " does not answer this machine: Connection refused. " in job.sentence() and job.sentence() == job.artifacts["summary"]
    assert (job.artifacts["stage"], job.artifacts["verdict"], job.artifacts["launch_id"]) == ("prove", "failed", "L2")
