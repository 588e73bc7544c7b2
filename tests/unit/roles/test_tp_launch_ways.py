# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The ways that the role's tasks take when something fails in the middle, played by Ansible; the modules only say what a case wants."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import typing as t

import pytest
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[3]
STAND_IN = """
import json, os
from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.action import ActionBase


class ActionModule(ActionBase):
    _supports_check_mode = True

    def run(self, tmp=None, task_vars=None):
        host, name = task_vars["inventory_hostname"], self._task.action.rpartition(".")[2]
        folder = os.environ["WAYS"]
        key = f"{name} {host}"
        with open(f"{folder}/{key}", "a") as log:
            log.write(json.dumps(self._task.args, default=str) + "\\n")
        count = len(open(f"{folder}/{key}").readlines())
        with open(f"{folder}/answers.json") as stream:
            answers = json.load(stream)
        told = answers.get(key, answers.get(name, [{}]))
        answer = told[min(count, len(told)) - 1]
        if answer.get("unreachable"):
            raise AnsibleConnectionFailure("Connection timed out")
        return dict({"changed": False}, **answer)
"""
MINE = {"lock": {"run": "r", "user": "alice", "host": "ctl1"}, "took_over": None}

_WORDS = "deployment engine image model model_mount served_name address head_address listen_address shm_size cache_dir launch_id"
LAUNCH = {
    **dict.fromkeys(_WORDS.split(), "x"), **dict.fromkeys(["rank", "ranks", "tensor_parallel_size", "rendezvous_port", "port"], 1),
    "pipeline_parallel_size": 1, "expert_parallel": False, "executor": "mp", "addresses": ["x", "x"], "arguments": {}, "environment": {},
    "gpus": False, "infiniband": False, "cap_add": [],
}  # fmt: skip


def record(launch: str, image: str) -> dict[str, t.Any]:
    model = {"id": "tiny", "path": "/m"}
    return {"launch_id": launch, "recipe": {"name": "tiny", "model": model}, "image": {"name": "x:1", "content": image}, "model": {"digest": "d"}}


TAKES: dict[str, t.Any] = {
    "hosts": ["spark1", "spark2"], "members": ["spark1", "spark2"], "candidates": ["spark1", "spark2"], "placing": False, "replica": None,
    "replicas": [{"deployment": "tiny", "replica": None, "hosts": ["spark1", "spark2"]}],
}  # fmt: skip


def plan(launch: str, image: str, **changes: t.Any) -> dict[str, t.Any]:
    """What inference_plan says of a launch that is to be started."""
    return {
        "deployment": "tiny", "name": "tiny", **TAKES, "engine": "vllm", "image": "x:1", "model_path": "/m", "served_name": "tiny", "port": 8000,
        "rendezvous_port": 29501, "ports": [[8000, 29501], []], "head_first": False, "ready_timeout": 60,
        "proof": {"prompt": "a", "max_tokens": 1, "timeout": 1}, "recipe": record("", "")["recipe"],
        "action": "restart", "reasons": ["new"], "differences": [], "idle": False, "staged": True, "unrecorded": False, "image_content": image,
        "model_digest": "d", "endpoint": "http://spark1:8000/v1", "launch_id": launch, "secret": [],
        "ranks": [{"node": f"spark{rank + 1}", "spec_hash": "h", "evict": [], "wanted_free": 0, "launch": LAUNCH} for rank in range(2)], **changes,
    }  # fmt: skip


class Ways:
    """A collection of the real role, with stand-ins for everything that it calls."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.workers = ["spark2"]
        here = folder / "ansible_collections" / "sparkstack" / "inference"
        (here / "plugins" / "action").mkdir(parents=True)
        (here / "roles").mkdir()
        for name in ("plugin_utils", "module_utils", "filter", "lookup"):
            (here / "plugins" / name).symlink_to(ROOT / "plugins" / name)
        (here / "roles" / "tp_launch").symlink_to(ROOT / "roles" / "tp_launch")
        for name in ("nccl_env", "model_staging", "image_sync"):
            tasks = here / "roles" / name / "tasks"
            tasks.mkdir(parents=True)
            (tasks / "main.yml").write_text("- sparkstack.inference.other:\n")
        docker = folder / "ansible_collections" / "community" / "docker" / "plugins" / "action"
        docker.mkdir(parents=True)
        for name in ("docker_host_info", "docker_image_info", "docker_image_tag", "docker_container"):
            (docker / f"{name}.py").write_text(STAND_IN)
        for path in [*(ROOT / "plugins" / "modules").glob("*.py"), pathlib.Path("other.py")]:
            (here / "plugins" / "action" / path.name).write_text(STAND_IN)

    def play(self, part: str, answers: dict[str, t.Any], *options: str, **variables: t.Any) -> str:
        """Play a part of the role; returns what the run wrote. :param answers: of the modules, by name or by name and host, one a call."""
        found = {
            "docker": {"reachable": True},
            "containers": [{"running": True, "rank": 0, "name": "tiny-rank0"}],
            "image": {"identity": "old"},
            "now": 5.0,
            "autostart": {},
        }
        known = {
            "inference_info": [{**found, "ledger": {"tiny": variables.pop("ledger", {})}}],
            "gpu_memory_facts": [{"ansible_facts": {"gpu_memory": {"gpus": []}}}],
            "deployment_lock": [MINE],
            "init_phase_wait": [{"verdict": "ready", "summary": "", "remedy": "", "nodes": {}}],
            "inference_proof": [{"answered": True, "text": "b", "tokens": 1, "seconds": 0.1}],
        }
        (self.folder / "answers.json").write_text(json.dumps({**known, **answers}))
        inventory = {
            "all": {"children": {"head": {"hosts": {"spark1": None}}, "workers": {"hosts": dict.fromkeys(self.workers)}}, "vars": {"ansible_become": False}}
        }
        (self.folder / "hosts.yml").write_text(yaml.safe_dump(inventory))
        role = {"name": "sparkstack.inference.tp_launch", "tasks_from": part}
        facts = {"model_staging_manifest": {"digest": "d"}, "tp_launch_recipe": "tiny", "tp_launch_history_dir": "", **variables}
        play = {"hosts": "all", "gather_facts": False, "any_errors_fatal": True, "vars": facts, "tasks": [{"ansible.builtin.include_role": role}]}
        (self.folder / "play.yml").write_text(yaml.safe_dump([play]))
        words = [sys.executable, "-m", "ansible", "playbook", "-i", "hosts.yml", "-c", "local", "play.yml", *options]
        environment = {**os.environ, "WAYS": str(self.folder), "ANSIBLE_COLLECTIONS_PATH": str(self.folder), "ANSIBLE_LOCALHOST_WARNING": "false"}
        done = subprocess.run(words, cwd=self.folder, env=environment, text=True, capture_output=True, check=False)
        return done.stdout + done.stderr

    def calls(self, name: str, host: str) -> list[dict[str, t.Any]]:
        path = self.folder / f"{name} {host}"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def locks(self) -> list[str]:
        """How often the lock was taken and given back, at the head."""
        assert self.calls("deployment_lock", "spark2") == []
        return [call.get("state", "held") for call in self.calls("deployment_lock", "spark1")]


@pytest.fixture
def ways(tmp_path: pathlib.Path) -> Ways:
    return Ways(tmp_path)


def test_a_controller_that_keeps_no_record_does_not_cost_the_images(ways: Ways) -> None:
    answers = {"inference_plan": [{"plan": plan("L2", "new")}], "launch_record spark1": [{}, {}, {"failed": True, "msg": "Read-only file system."}]}
    told = ways.play("main", answers, tp_launch_history_dir="/nowhere")
    assert "The record of launch L2 could not be kept: Read-only file system." in told and ways.locks() == ["held", "free"]
    assert [[call["repository"] for call in ways.calls("docker_image_tag", host)] for host in ("spark1", "spark2")] == [[["sparkstack-kept:tiny-good"]]] * 2


@pytest.mark.parametrize("head_first", [False, True])
def test_the_head_is_started_last_or_where_the_others_join_it_first(ways: Ways, head_first: bool) -> None:
    told = ways.play("main", {"inference_plan": [{"plan": plan("L2", "new", head_first=head_first)}]})
    assert (told.index(" : Start rank 0]") < told.index(" : Start rank 1]")) is head_first, told
    assert [[call["state"] for call in ways.calls("inference_launch", host)] for host in ("spark1", "spark2")] == [["absent", "started"]] * 2
    assert [ways.calls("inference_info", host)[0]["ports"] for host in ("spark1", "spark2")] == [[8000, 29501], []]


def test_room_is_made_and_the_nodes_are_guarded_while_the_ranks_load(ways: Ways) -> None:
    wanted = plan("L2", "new")
    wanted["ranks"][1].update(evict=["embeddings"], wanted_free=7)
    told = ways.play("main", {"inference_plan": [{"plan": wanted}]}, tp_launch_memory_floor="3g", tp_launch_drop_caches=True)
    assert "answered" in told
    assert [[call["name"] for call in ways.calls("docker_container", host)] for host in ("spark1", "spark2")] == [[], ["embeddings"]]
    assert [[int(call["wanted"]) for call in ways.calls("page_cache_release", host)] for host in ("spark1", "spark2")] == [[], [7]]
    # It is looked whether they can be guarded, then they are, then they are no more.
    assert [call.get("state", "started") for call in ways.calls("memory_guard", "spark2")] == ["started", "started", "stopped"]
    assert [call.get("state") for call in ways.calls("inference_launch", "spark2")] == ["absent", "started"]


def test_what_was_stopped_to_make_room_is_named_when_the_launch_comes_to_nothing(ways: Ways) -> None:
    wanted = plan("L2", "new")
    wanted["ranks"][1].update(evict=["embeddings", "idle"])
    answers = {
        "inference_plan": [{"plan": wanted}],
        "docker_container spark2": [{"changed": True}, {"changed": False}],
        "collective_proof": [{"failed": True, "msg": "spark2 (rank 1) did not reach the head."}],
    }
    told = ways.play("main", answers)
    assert "did not reach the head. To make room, embeddings had been stopped, and stays so: docker start brings it back." in " ".join(told.split())
    assert ways.calls("inference_launch", "spark1")[-1].get("state") == "absent" and ways.locks() == ["held", "free"]


STOPPED = {"verdict": "failed", "summary": "It was stopped by the memory guard.", "remedy": "Lower it.", "nodes": {"spark2": {"guarded": True}}}
TOLD = {"name": "tiny-rank1", "available": 1, "curve": [[1.0, 9]]}
BACK = {"returned": True, "msg": "spark1: 1.0 GiB came back."}
KEPT = {"returned": False, "msg": "spark2: of the 8.0 GiB that the ranks held 0 MiB came back within 60 s."}


@pytest.mark.parametrize("kept", [False, True])
def test_where_a_guard_has_stopped_a_rank_all_are_stopped_and_the_memory_is_seen_to_come_back(ways: Ways, kept: bool) -> None:
    answers = {
        "inference_plan": [{"plan": plan("L2", "new")}],
        "init_phase_wait": [STOPPED],
        "memory_guard spark2": [{}, {}, {"told": TOLD}],
        "memory_return_wait": [BACK],
        "memory_return_wait spark2": [BACK, {**KEPT, "failed": True} if kept else BACK],
        "gpu_memory_facts": [
            {"ansible_facts": {"gpu_memory": {"gpus": [], "of": "the plan"}}},
            {"ansible_facts": {"gpu_memory": {"gpus": [], "of": "the end"}}},
        ],
    }
    told = ways.play("main", answers)
    failure = "It was stopped by the memory guard. Lower it."
    assert f"{failure} {KEPT['msg']}" in told if kept else failure in told and KEPT["msg"] not in told
    assert "spark1: 1.0 GiB came back." in told and ways.locks() == ["held", "free"]
    assert [[call.get("state") for call in ways.calls("inference_launch", host)] for host in ("spark1", "spark2")] == [["absent", "started", "stopped"]] * 2
    # Those that ran before the start, then the rank that still held memory, and the one that the guard has stopped.
    first, second = (ways.calls("memory_return_wait", host) for host in ("spark1", "spark2"))
    assert [(call["before"]["of"], call["containers"], call.get("guard")) for call in first] == [
        ("the plan", ["tiny-rank0"], None),
        ("the end", ["tiny-rank0"], None),
    ]
    assert [(call["before"]["of"], call["containers"], call.get("guard")) for call in second] == [
        ("the plan", ["tiny-rank0"], None),
        ("the plan", ["tiny-rank1"], TOLD),
    ]


def test_a_rank_that_a_guard_stops_after_the_watch_is_told(ways: Ways) -> None:
    ready = {"verdict": "ready", "summary": "", "remedy": "", "nodes": {"spark2": {"guarded": False}}}
    answers = {
        "inference_plan": [{"plan": plan("L2", "new")}],
        "init_phase_wait": [ready, STOPPED],
        # The first is the look at what runs.
        "inference_proof": [{"answered": False}, {"failed": True, "msg": "The head does not answer."}],
        "memory_guard spark2": [{}, {}, {"told": TOLD}],
        "memory_return_wait": [BACK],
    }
    told = ways.play("main", answers)
    assert "It was stopped by the memory guard. Lower it." in told and ways.calls("inference_launch", "spark1")[-1]["state"] == "stopped"
    kept = ways.calls("launch_record", "spark1")[-1]["record"]
    assert kept["verdict"]["summary"].startswith("It was stopped by the memory guard.")


@pytest.mark.parametrize(
    ("late", "why"),
    [({"failed": True, "msg": "systemctl stop failed: Connection timed out."}, "systemctl stop failed"), ({"unreachable": True}, "")],
)
def test_a_guard_that_can_not_be_taken_away_hides_nothing(ways: Ways, late: dict[str, t.Any], why: str) -> None:
    told = ways.play("main", {"inference_plan": [{"plan": plan("L2", "new")}], "memory_guard spark2": [{}, {}, late]})
    assert f"could not be taken away, and ends when its time is over: {why}" in told and "Connection timed out" in told
    assert "answered" in told and "failed=0" in told and ways.locks() == ["held", "free"]
    assert ways.calls("launch_record", "spark2")[-1]["record"]["answered"] is True


def test_a_second_judgement_that_is_refused_hides_nothing(ways: Ways) -> None:
    ready = {"verdict": "ready", "summary": "", "remedy": "", "nodes": {}}
    answers = {
        "inference_plan": [{"plan": plan("L2", "new")}],
        "init_phase_wait": [ready, {"failed": True, "msg": "Two hosts have the same rank.", "verdict": None}],
        "inference_proof": [{"answered": False}, {"failed": True, "msg": "The head does not answer."}],
        "memory_guard spark2": [{}, {}, {"told": TOLD}],
    }
    told = ways.play("main", answers)
    assert "The head does not answer." in told and ways.locks() == ["held", "free"]
    assert ways.calls("launch_record", "spark1")[-1]["record"]["verdict"]["summary"] == "The head does not answer."


def test_what_an_earlier_guard_has_told_is_of_no_launch_that_never_loaded(ways: Ways) -> None:
    answers = {
        "inference_plan": [{"plan": plan("L2", "new")}],
        "inference_launch spark2": [{}, {"failed": True, "msg": "No space left."}],
        "memory_guard spark2": [{}, {"told": TOLD}],
    }
    assert "No space left." in ways.play("main", answers)
    assert ways.calls("init_phase_wait", "spark2") == [] and len(ways.calls("memory_return_wait", "spark2")) == 1


def test_what_does_not_come_back_before_a_restart_is_told_and_stops_nothing(ways: Ways) -> None:
    told = ways.play("main", {"inference_plan": [{"plan": plan("L2", "new")}], "memory_return_wait spark2": [{**KEPT, "failed": True}]})
    assert KEPT["msg"] in told and "failed=0" in told and "answered" in told


def test_ranks_that_diagnose_starts_once_more_are_guarded_too(ways: Ways) -> None:
    answers = {
        "inference_plan": [{"plan": plan("L2", "new")}],
        "diagnosis_plan": [{"plan": {"json": "", "bundle": "", "notes": [], "logs": []}}],
        "inference_proof": [{"answered": False}],
        "init_phase_wait": [{**STOPPED, **dict.fromkeys(["phase", "cause", "culprit"]), "evidence": [], "notes": []}],
        "memory_guard spark2": [{}, {}, {"told": TOLD}],
        "memory_return_wait": [BACK],
    }
    told = ways.play("diagnose", answers, relaunch=True)
    assert "FAILED: It was stopped by the memory guard." in told and "failed=0" in told and ways.locks() == ["held", "free"]
    assert [call.get("state", "started") for call in ways.calls("memory_guard", "spark1")] == ["started", "started", "stopped"]
    assert [call.get("state") for call in ways.calls("inference_launch", "spark1")] == ["absent", "started", "stopped"]
    assert ways.calls("memory_return_wait", "spark2")[-1]["guard"] == TOLD
    assert "NCCL_DEBUG=INFO and are all stopped since a memory guard had to stop" in told and "stay as they are" not in told


def test_without_a_guard_nobody_is_asked_about_it(ways: Ways) -> None:
    assert "answered" in ways.play("main", {"inference_plan": [{"plan": plan("L2", "new")}]}, tp_launch_memory_guard=False)
    assert ways.calls("memory_guard", "spark1") == []


GONE = (
    "A node can't be reached any more, as told above: see that it is switched on and that you can log in to it by ssh from this machine, then run this again."
)


def test_a_launch_gives_the_lock_back(ways: Ways) -> None:
    told = ways.play("main", {"inference_plan": [{"plan": plan("L2", "new")}]})
    assert "answered" in told and "failed=0" in told and ways.locks() == ["held", "free"]


def test_a_node_that_is_lost_in_the_middle_leaves_no_lock(ways: Ways) -> None:
    answers = {"inference_plan": [{"plan": plan("L2", "new")}], "inference_launch spark2": [{"unreachable": True}]}
    # The image is the old one's, so that nothing else is in the way of going back.
    told = ways.play("main", answers, tp_launch_rollback=True, ledger={"good": record("L1", "old")})
    assert GONE in told and ways.locks() == ["held", "free"]
    kept = ways.calls("launch_record", "spark1")[-1]["record"]
    assert kept["verdict"]["summary"].startswith("A node can't be reached any more")
    # What runs on the lost node is not known, so going back is refused before anything is removed or started again.
    assert "spark2 can't be reached" in told and [call["state"] for call in ways.calls("inference_launch", "spark1")] == ["absent"]


def test_a_failed_launch_that_is_the_good_one_is_not_exchanged_for_an_older_one(ways: Ways) -> None:
    answers = {"inference_plan": [{"plan": plan("L2", "new")}], "inference_launch spark2": [{}, {"failed": True, "msg": "No space left."}]}
    told = ways.play("main", answers, tp_launch_rollback=True, ledger={"good": record("L1", "new"), "previous": record("L0", "old")})
    assert "No space left. There is no other launch that answered, so there is nothing to go back to." in told
    assert ways.locks() == ["held", "free"]


@pytest.mark.parametrize("again", [plan("L3", "old"), plan("L1", "old", action="none", idle=True)])
def test_a_failed_upgrade_is_taken_back_and_leaves_no_lock(ways: Ways, again: dict[str, t.Any]) -> None:
    new = {"plan": plan("L2", "new")}
    answers = {
        "inference_plan": [new, new, {"plan": again}],
        "inference_launch spark2": [{"failed": True, "msg": "Docker says no."}, {}],
        "inference_proof": [{"answered": True, "text": "b", "tokens": 1, "seconds": 0.1}],
    }
    told = ways.play("main", answers, tp_launch_rollback=True, ledger={"good": record("L1", "old")})
    assert "Docker says no. The launch before it, L1, was brought back and serves." in told
    assert ways.locks()[0] == "held" and ways.locks()[-1] == "free" and ways.locks().count("free") == 1


@pytest.mark.parametrize(("launch", "failure"), [([{}], ""), ([{}, {"failed": True, "msg": "Docker says no."}], "Docker says no.")])
def test_a_rollback_takes_the_lock_before_it_touches_anything_and_gives_it_back(ways: Ways, launch: list[t.Any], failure: str) -> None:
    answers = {"inference_plan": [{"plan": plan("L3", "old")}], "inference_launch spark2": launch}
    told = ways.play("rollback", answers, deployment="tiny", ledger={"last": record("L2", "new"), "good": record("L1", "old")})
    assert "Going back to launch L1" in told and failure in told and ("failed=0" in told) is not failure.startswith("Docker")
    locks = ways.calls("deployment_lock", "spark1")
    assert [call.get("state", "held") for call in locks] == ["held", "held", "free"] and float(locks[0]["seen"]) == 5.0


def test_a_rollback_in_check_mode_plans_with_the_image_that_it_would_give_the_name_back_to(ways: Ways) -> None:
    found = {"docker": {"reachable": True}, "containers": [{"running": True, "rank": 0, "name": "tiny-rank0"}], "now": 5.0, "autostart": {}}
    found["ledger"] = {"tiny": {"last": record("L2", "new"), "good": record("L1", "old")}}
    looks = [{**found, "image": image and {"identity": image}} for image in ("new", "new", "new", "old", None, "old")]
    answers = {"inference_plan": [{"plan": plan("L3", "old")}], "inference_info spark1": looks, "inference_info spark2": [looks[0]]}
    told = ways.play("rollback", answers, "--check", deployment="tiny")
    assert "Going back to launch L1" in told and "failed=0" in told and ways.locks() == []
    asked = [[call["image"] for call in ways.calls("inference_info", host) if "image" in call] for host in ("spark1", "spark2")]
    assert asked[0] == ["x:1", "x:1", "sparkstack-kept:tiny-good", "sparkstack-kept:tiny-previous", "sparkstack-kept:tiny-good"]
    assert asked[1] == ["x:1", "sparkstack-kept:tiny-good"]


HOSTS = ["spark1", "spark2", "spark3", "spark4"]
GROUPS = [{"deployment": f"tiny-r{at}", "replica": at, "hosts": HOSTS[2 * at : 2 * at + 2]} for at in range(2)]
MEMBERS = {"name": "tiny", "members": HOSTS, "candidates": HOSTS, "replicas": GROUPS}


def replica(at: int, **changes: t.Any) -> dict[str, t.Any]:
    """What inference_plan says of one of two replicas."""
    told = plan(f"L{at}", "new", **MEMBERS, **GROUPS[at], **changes)
    for rank, host in zip(told["ranks"], GROUPS[at]["hosts"], strict=True):
        rank.update(node=host, launch={**LAUNCH, "deployment": GROUPS[at]["deployment"]})
    return {**told, "endpoint": f"http://{GROUPS[at]['hosts'][0]}:8000/v1"}


def replicas(ways: Ways, answers: dict[str, t.Any], *, first: str = "restart", second: str = "start", **variables: t.Any) -> str:
    """Play the role with two replicas."""
    ways.workers = HOSTS[1:]
    plans = {
        "inference_plan spark1": [{"plan": replica(0)}, {"plan": replica(0, action=first)}],
        "inference_plan spark3": [{"plan": replica(1, action=second)}],
    }
    return ways.play("main", {**plans, **answers}, **variables)


def test_replicas_are_started_watched_and_recorded_each_by_itself(ways: Ways) -> None:
    told = replicas(ways, {})
    assert "failed=1" not in told, told
    for at, (head, worker) in enumerate((HOSTS[:2], HOSTS[2:])):
        name = f"tiny-r{at}"
        for host in (head, worker):
            assert [call["deployment"] for call in ways.calls("inference_launch", host)] == [name, name]
            [watch] = [call for call in ways.calls("init_phase_wait", host) if call["timeout"] != 0]
            assert (watch["members"], watch["container"]) == ([head, worker], f"{name}-rank{(head, worker).index(host)}")
            kept = [call for call in ways.calls("launch_record", host) if "good" in call]
            assert [(call["deployment"], call["record"]["launch_id"], call["record"]["deployment"]) for call in kept] == [(name, f"L{at}", name)]
        assert {call["deployment"] for call in ways.calls("deployment_lock", head)} == {name} and not ways.calls("deployment_lock", worker)
        assert (len(ways.calls("inference_plan", head)), ways.calls("inference_plan", worker)) == (2 - at, [])
        assert f"http://{head}:8000/v1 answered" in told


def test_a_replica_that_serves_is_left_alone_while_the_other_starts(ways: Ways) -> None:
    told = replicas(ways, {}, first="none")
    assert "failed=1" not in told, told
    assert [len(ways.calls("inference_launch", host)) for host in HOSTS] == [0, 0, 2, 2]
    assert [len(ways.calls("launch_record", host)) for host in HOSTS] == [0, 0, 2, 2]


def test_a_replica_that_fails_takes_the_other_not_with_it(ways: Ways) -> None:
    failed = {"verdict": "failed", "summary": "Rank 1 on spark2 is out of memory.", "remedy": "Free some.", "nodes": {}}
    told = replicas(ways, {f"init_phase_wait {host}": [failed] for host in HOSTS[:2]})
    assert told.count("tiny-r0: Rank 1 on spark2 is out of memory. Free some. These replicas serve: tiny-r1.") >= 1, told
    for head, answered in (("spark1", False), ("spark3", True)):
        assert [call["good"] for call in ways.calls("launch_record", head) if "good" in call] == [answered]
        assert [call.get("state", "held") for call in ways.calls("deployment_lock", head)] == ["held", "free"]


def test_a_task_that_fails_in_one_replica_ends_that_one_only(ways: Ways) -> None:
    told = replicas(ways, {"inference_launch spark4": [{}, {"failed": True, "msg": "No such image."}]})
    assert "tiny-r1: No such image. These replicas serve: tiny-r0." in " ".join(told.split()), told
    assert "http://spark1:8000/v1 answered" in told and "http://spark3:8000/v1 answered" not in told
    # All of a replica's nodes know it.
    assert [call["good"] for host in HOSTS[2:] for call in ways.calls("launch_record", host) if "good" in call] == [False, False]


def test_nodes_are_chosen_by_what_they_have_and_the_others_leave(ways: Ways) -> None:
    ways.workers = HOSTS[1:]
    open_still = {**plan("L", "new"), "hosts": HOSTS, "members": HOSTS, "candidates": HOSTS, "replicas": [], "placing": True}
    mine = {"hosts": ["spark2", "spark4"], "members": ["spark2", "spark4"], "candidates": HOSTS}
    chosen = plan("L2", "new", **mine, replicas=[{"deployment": "tiny", "replica": None, "hosts": mine["hosts"]}])
    told = ways.play("main", {"inference_plan spark1": [{"plan": open_still}, {"plan": chosen}], "inference_plan spark2": [{"plan": chosen}]})
    assert "failed=1" not in told and "tiny takes spark2, spark4 of 4 nodes" in told, told
    [_first, look] = ways.calls("inference_plan", "spark1")
    assert [seen["name"] for seen in look["seen"]] == HOSTS
    assert [len(ways.calls("inference_launch", host)) for host in HOSTS] == [0, 2, 0, 2]


def real(ways: Ways, **changes: t.Any) -> str:
    """Play the role on four nodes with the real plan of a recipe with these keys; the image is everywhere, and nothing runs."""
    ways.workers = HOSTS[1:]
    action = ways.folder / "ansible_collections/sparkstack/inference/plugins/action/inference_plan.py"
    action.write_text((ROOT / "plugins/action/inference_plan.py").read_text())
    info = {
        "docker": {"reachable": True}, "containers": [], "listeners": [], "architecture": "arm64", "now": 5.0, "autostart": {}, "ledger": {},
        "image": {"identity": "sha256:aa", "architecture": "arm64", "size_bytes": 1},
    }  # fmt: skip
    answers: dict[str, t.Any] = {"inference_info": [info]}
    for number, host in enumerate(HOSTS, 1):
        # The real role nccl_env leaves the fabric; here it comes along with the memory.
        memory = {"unified": True, "gpus": [], "processes": [], "total_bytes": 100 << 30, "available_bytes": (50 + number) << 30}
        answers[f"gpu_memory_facts {host}"] = [{"ansible_facts": {"gpu_memory": memory, "fabric": {"address": f"192.168.200.1{number}"}}}]
    recipe = {"name": "tiny", "model": {"path": "/m"}, "engine": "vllm", "tensor_parallel_size": 2, "engines": {"vllm": {"image": "x:1"}}, **changes}
    told = ways.play("main", answers, tp_launch_recipe=recipe)
    assert "failed=1" not in told, told
    return told


def started(ways: Ways) -> dict[str, tuple[t.Any, ...]]:
    """By host its rank as it was started: deployment, rank, ranks and the head's address."""
    calls = [(host, call) for host in HOSTS for call in ways.calls("inference_launch", host) if call.get("state") == "started"]
    # Of a number that stands alone ansible-core 2.18 makes a text.
    return {host: (call["deployment"], int(call["rank"]), int(call["ranks"]), call["head_address"]) for host, call in calls}


def test_the_real_plan_of_two_replicas_comes_to_each_node(ways: Ways) -> None:
    told = real(ways, replicas=2)
    assert started(ways) == {
        "spark1": ("tiny-r0", 0, 2, "192.168.200.11"),
        "spark2": ("tiny-r0", 1, 2, "192.168.200.11"),
        "spark3": ("tiny-r1", 0, 2, "192.168.200.13"),
        "spark4": ("tiny-r1", 1, 2, "192.168.200.13"),
    }
    assert "(replica 1, the last is 1)" in told


def test_the_real_plan_of_stages_and_of_fewer_nodes(ways: Ways) -> None:
    real(ways, pipeline_parallel_size=2)
    assert [int(ways.calls("inference_launch", host)[0]["pipeline_parallel_size"]) for host in HOSTS] == [2] * 4
    for host in HOSTS:
        (ways.folder / f"inference_launch {host}").unlink()
    real(ways)
    assert {host: rank[:3] for host, rank in started(ways).items()} == {"spark3": ("tiny", 0, 2), "spark4": ("tiny", 1, 2)}


def test_replicas_are_stopped_each_under_its_own_lock_and_others_where_their_head_is(ways: Ways) -> None:
    ways.workers = HOSTS[1:]
    told = ways.play("stop", {"inference_plan spark1": [{"plan": replica(0)}], "inference_launch": [{"actions": []}]})
    assert "failed=1" not in told, told
    for head, worker, name in (("spark1", "spark2", "tiny-r0"), ("spark3", "spark4", "tiny-r1")):
        assert {call["deployment"] for host in (head, worker) for call in ways.calls("inference_launch", host)} == {name}
        assert [call["deployment"] for call in ways.calls("deployment_lock", head)] == [name, name] and not ways.calls("deployment_lock", worker)
        for host in (head, worker):
            (ways.folder / f"inference_launch {host}").unlink()
    # Of one that was given other nodes than the inventory's head, by its name.
    holders = [{"kind": "container", "name": "tiny.x-rank0", "bytes": 1}]
    memory = {"gpu_memory_facts spark4": [{"ansible_facts": {"gpu_memory": {"holders": holders, "gpus": []}}}]}
    told = ways.play("stop", {**memory, "inference_launch": [{"actions": []}]}, deployment="tiny.x")
    assert [call["deployment"] for call in ways.calls("deployment_lock", "spark1")][2:] == ["tiny.x", "tiny.x"] and "spark1 -> spark4" in told, told
