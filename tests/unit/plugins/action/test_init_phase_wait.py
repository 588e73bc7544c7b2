# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# ruff: noqa: E501 - a real line is as long as it is.
"""The action: what it refuses, what it fails for, and what it returns; the probe is scripted, time stands still."""

from __future__ import annotations

import json
import pathlib
import types
import typing as t

import pytest
from ansible import constants as C
from ansible import context
from ansible.errors import AnsibleConnectionFailure
from ansible.parsing.dataloader import DataLoader

from ansible_collections.sparkstack.inference.plugins.action import init_phase_wait as subject
from ansible_collections.sparkstack.inference.plugins.module_utils._timeline import Timeline
from ansible_collections.sparkstack.inference.plugins.plugin_utils._board import Board

LOGS = pathlib.Path(__file__).resolve().parents[3] / "fixtures" / "logs"
READY = "[2026-11-29 22:42:02] server_args=ServerArgs()\n[2026-11-29 22:42:08] The server is fired up and ready to roll!\n"
CRASH = (
    '[2026-11-29 22:42:07 TP0] Scheduler hit an exception: Traceback (most recent call last):\n  File "a.py"\ntorch.OutOfMemoryError: CUDA out of memory.\n\n'
)
KEYS = {"verdict", "phase", "cause", "culprit", "summary", "remedy", "evidence", "nodes"}


class Display:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def display(self, text: str) -> None:
        self.lines.append(text)


class Clock:
    """Pausing moves it."""

    def __init__(self) -> None:
        self.now = 1795992130.0

    def __call__(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        self.now += seconds


def found(log: str, **known: t.Any) -> dict[str, t.Any]:
    timeline = Timeline("sglang", 2026)
    timeline.feed(log)
    return {
        "exists": True,
        "started": True,
        "running": True,
        "exit_code": None,
        "oom_killed": False,
        "error": "",
        "started_at": 1795992120.0,
        "finished_at": None,
        "now": 1795992130.0,
        "reading": timeline.reading(),
        "activity": {},
        "healthy": None,
        "addresses": [],
        "state": {"read": 1},
        **known,
    }


def vllm(log: str) -> dict[str, t.Any]:
    """A rank of vLLM whose engine nobody has named."""
    timeline = Timeline("auto", 2026)
    timeline.feed(log)
    return found("", reading=timeline.reading())


class Action(subject.ActionModule):
    """The action with its surroundings scripted."""

    def __init__(self, arguments: dict[str, t.Any], *looks: t.Any, check: bool = False, **task: t.Any) -> None:
        self.looks = list(looks)
        self.calls: list[dict[str, t.Any]] = []
        self.closer: list[dict[str, t.Any]] = []
        self.display = Display()
        self._display = self.display
        self._task = types.SimpleNamespace(args=arguments, _uuid="task", check_mode=check, run_once=False, throttle=0, **task)
        self._loader = DataLoader()
        self._templar = None
        time = Clock()
        self.clock, self.pause = time, time.pause

    def validate_argument_spec(self, argument_spec: dict[str, t.Any] | None = None, **_known: t.Any) -> tuple[t.Any, dict[str, t.Any]]:
        from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

        result = ArgumentSpecValidator(argument_spec).validate(self._task.args)
        assert not result.error_messages, result.error_messages
        return result, result.validated_parameters

    def _execute_module(self, module_name: str, module_args: dict[str, t.Any], task_vars: t.Any) -> t.Any:
        if module_name == "sparkstack.inference.init_phase_closeup":
            self.closer.append(module_args)
            return {"closeup": {"holders": []}}
        assert module_name == "sparkstack.inference.init_phase_probe"
        self.calls.append(module_args)
        look = self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]
        if isinstance(look, Exception):
            raise look
        return json.loads(json.dumps(look))


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    monkeypatch.setattr(C, "DEFAULT_LOCAL_TMP", str(tmp_path))
    monkeypatch.setattr(subject.ActionBase, "run", lambda self, tmp=None, task_vars=None: {})
    monkeypatch.setattr(context, "CLIARGS", {"forks": 5})


def run(action: Action, hosts: t.Sequence[str] = ("spark1",)) -> dict[str, t.Any]:
    return action.run(task_vars={"inventory_hostname": "spark1", "ansible_play_batch": list(hosts)})


def test_ready() -> None:
    action = Action({"container": "qwen", "engine": "sglang"}, found(READY[:47]), found(READY))
    result = run(action)
    assert set(result) >= KEYS and result["changed"] is False and "failed" not in result
    assert (result["verdict"], result["phase"], result["cause"], result["culprit"], result["evidence"]) == ("ready", "ready", None, None, [])
    assert [phase["phase"] for phase in result["nodes"]["spark1"]["timeline"]] == ["parse_args", "ready"]
    assert action.display.lines == ["[spark1] 1/9 parse_args, 10 s", "[spark1] 9/9 ready, 10 s"]
    # The second look goes on where the first one stopped.
    assert [call["state"] for call in action.calls] == [{}, {"read": 1}]


def test_failed() -> None:
    result = run(Action({"container": "qwen"}, found(READY[:47] + CRASH, running=False, exit_code=0)))
    assert result["failed"] is True
    assert (result["verdict"], result["cause"], result["culprit"]) == ("failed", "oom", "spark1")
    summary, remedy, *evidence = result["msg"].splitlines()
    assert (summary, remedy) == (result["summary"], result["remedy"])
    assert evidence == result["evidence"] == CRASH.rstrip().splitlines()


def test_judge_now_never_fails() -> None:
    result = run(Action({"container": "qwen", "timeout": 0}, found(READY[:47] + CRASH, running=False, exit_code=0)))
    assert "failed" not in result and result["verdict"] == "failed"


def test_time_over() -> None:
    result = run(Action({"container": "qwen", "timeout": 20}, found(READY[:47])))
    assert result["failed"] is True and result["verdict"] == "starting"
    assert result["summary"].startswith("Not ready after 20 s. Still starting: spark1 parse_args.")


@pytest.mark.parametrize(
    ("look", "verdict", "skipped"),
    [
        ({"exists": False, "started": False, "running": False, "now": 0, "reading": None, "state": {}}, None, True),
        (found(READY), "ready", None),
        (found(CRASH, running=False, exit_code=1), "failed", None),
    ],
    ids=["no container", "ready", "failed"],
)
def test_check_mode(look: dict[str, t.Any], verdict: str | None, skipped: bool | None) -> None:
    result = run(Action({"container": "qwen"}, look, check=True))
    assert (result["verdict"], result.get("skipped"), result.get("failed")) == (verdict, skipped, None)
    assert set(result) >= KEYS


@pytest.mark.parametrize(
    ("arguments", "hosts", "task", "sentence"),
    [
        ({}, ["spark1"], {}, "Give either container (to watch a running rank) or logs (to judge files), and not both."),
        ({"container": "q", "logs": [{"node": "a", "rank": 0}]}, ["spark1"], {}, "Give either container"),
        ({"container": "q", "stall_timeouts": {"loading": 5}}, ["spark1"], {}, "stall_timeouts has no phase loading: choose from container, parse_args,"),
        ({"container": "q", "stall_timeouts": {"load_weights": "long"}}, ["spark1"], {}, "Each of stall_timeouts must be a number of seconds."),
        ({"container": "q"}, [f"spark{n}" for n in range(1, 8)], {}, "All 7 ranks must be watched at the same time: set forks to 7 or more (it is 5)."),
        ({"container": "q", "members": ["spark2", "spark3"]}, ["spark1"], {}, "spark1 is not among the members of the watch: spark2, spark3."),
        ({"container": "q"}, ["spark1", "spark2"], {"run_once": True}, "All ranks must be watched at the same time: remove run_once and throttle"),
        ({"container": "q"}, ["spark1", "spark2"], {"throttle": 1}, "All ranks must be watched at the same time: remove run_once and throttle"),
    ],
)
def test_refused(arguments: dict[str, t.Any], hosts: list[str], task: dict[str, t.Any], sentence: str) -> None:
    action = Action(arguments, found(READY))
    action._task.__dict__.update(task)
    result = run(action, hosts)
    assert result["failed"] is True and result["msg"].startswith(sentence)
    assert action.calls == []


@pytest.mark.parametrize("look", [{"failed": True, "msg": "Docker does not answer on /x: gone."}, AnsibleConnectionFailure("no route")])
def test_a_node_that_does_not_answer(look: t.Any) -> None:
    action = Action({"container": "qwen"}, look)
    result = run(action)
    assert result["failed"] is True and result["culprit"] == "spark1"
    assert ("Docker does not answer on /x: gone" in result["summary"]) or ("no route" in result["summary"])
    assert 30 <= action.clock() - 1795992130.0 < 33


def board() -> pathlib.Path:
    """Where the words of the two hosts lie."""
    return pathlib.Path(Board.of_task("task", "spark1", ["spark1", "spark2"]).directory)


@pytest.mark.parametrize(("verdict", "looks"), [("failed", 1), ("ready", 2)])
def test_the_verdict_of_another_host_ends_the_pause(tmp_path: pathlib.Path, verdict: str, looks: int) -> None:
    action = Action({"container": "q", "members": ["spark1", "spark2"]}, found(READY[:47]))
    word = {**dict.fromkeys(subject.KEYS), "verdict": verdict, "evidence": [], "over": False}

    def pause(seconds: float) -> None:
        action.clock.now += seconds
        (board() / "1.verdict.json").write_text(json.dumps(word))

    action.pause = pause
    began = action.clock()
    assert run(action, ["spark1", "spark2"])["verdict"] == verdict
    # A whole pause and another look would be more than a second each; a rank that serves is looked at once more for its last line.
    assert (len(action.calls), round(action.clock() - began, 1)) == (looks, 0.2)


FLAG = "usage: launch_server.py\nlaunch_server.py: error: unrecognized arguments: --nosuch\n"


@pytest.mark.parametrize(
    ("log", "ended", "cause", "seconds"),
    [
        # The other one may be about to end of the same option; its memory is its own; what is no program for it never ran.
        (FLAG, {"exit_code": 2}, "bad_flag", 2.0),
        (READY[:47], {"exit_code": 137, "oom_killed": True}, "oom", 0.5),
        ("exec /usr/bin/vllm: exec format error\n", {"exit_code": 255}, "wrong_image_arch", 0.0),
    ],
    ids=["alike", "its own", "at once"],
)
def test_how_long_a_failure_must_stand(log: str, ended: dict[str, t.Any], cause: str, seconds: float, tmp_path: pathlib.Path) -> None:
    other = found(READY[:47])
    record = {"node": "spark2", "rank": 1, **{key: other[key] for key in ("started", "running", "reading")}, "written": 1795992130.0}
    (board() / "1.rank.json").write_text(json.dumps(record))
    action = Action({"container": "q", "members": ["spark1", "spark2"], "closer_look": "never"}, found(log, running=False, finished_at=1795992129.0, **ended))
    began = action.clock()
    result = run(action, ["spark1", "spark2"])
    assert (result["verdict"], result["culprit"], result["cause"]) == ("failed", "spark1", cause)
    assert round(action.clock() - began, 1) == seconds


def test_the_head_alone_says_how_many_ranks_there_are() -> None:
    result = run(Action({"container": "hh", "timeout": 0}, vllm((LOGS / "vllm-cpu" / "ready" / "head.log").read_text())))
    assert (result["verdict"], result["summary"]) == ("ready", "The head serves; 1 of its 2 ranks was looked at.")


def test_a_worker_alone_is_judged_by_the_number_that_it_tells() -> None:
    result = run(Action({"container": "ww", "timeout": 0}, vllm((LOGS / "vllm-cpu" / "ready" / "worker.log").read_text())))
    assert result["verdict"] == "starting" and "the head, whose log alone tells whether they serve, was not looked at" in result["summary"]
    assert "The log of spark1 says that it is rank 1, and it was given as rank 0: give the head's first. It is judged as rank 1." in result["notes"]
    assert result["nodes"]["spark1"]["rank"] == 1


@pytest.mark.parametrize(("name", "words"), [("ww", "There is no container ww on spark1"), ("-", "There is no container of an engine on spark1")])
def test_a_container_that_is_not_there_is_named(name: str, words: str, tmp_path: pathlib.Path) -> None:
    head = vllm((LOGS / "vllm-cpu" / "ready" / "head.log").read_text())
    record = {"node": "spark2", "rank": 0, **{key: head[key] for key in ("started", "running", "reading")}, "written": 1795992130.0}
    (board() / "1.rank.json").write_text(json.dumps(record))
    absent = {"exists": False, "started": False, "running": False, "now": 1795992130.0, "reading": None, "scene": {"booted": 1.0}, "state": {}}
    arguments = {"container": name, "rank": 1, "members": ["spark1", "spark2"], "timeout": 0, "closer_look": "never"}
    result = run(Action(arguments, absent), ["spark1", "spark2"])
    assert (result["verdict"], result["culprit"]) == ("failed", "spark1")
    assert result["summary"] == f"{words}; the head, which says that it is ready, needs rank 1."


# Logs on the controller.


def entry(folder: str, node: str, rank: int, **known: t.Any) -> dict[str, t.Any]:
    return {"node": node, "rank": rank, "path": str(LOGS / folder / ("worker.log" if rank else "head.log")), **known}


def test_logs() -> None:
    case = "sglang-gpu/squatter-no-context"
    logs = [entry(case, "spark1", 0, running=True, quiet_seconds=45), entry(case, "spark2", 1, exit_code=137)]
    result = run(Action({"logs": logs}, None))
    assert (result["failed"], result["verdict"], result["culprit"], result["cause"]) == (True, "failed", "spark2", "oom")
    assert "failed" not in run(Action({"logs": logs, "timeout": 0}, None))


def test_logs_of_which_little_is_known() -> None:
    case = "vllm-cpu/ready"
    result = run(Action({"logs": [entry(case, "a", 0), entry(case, "b", 1)]}, None))
    assert result["verdict"] == "ready" and result["nodes"]["b"]["state"] == "running"
    logs = [entry("vllm-cpu/head-only", "a", 0, exit_code=1), {"node": "b", "rank": 1, "started": False}]
    assert run(Action({"logs": logs, "timeout": 0}, None))["culprit"] == "b"


@pytest.mark.parametrize(
    ("logs", "sentence"),
    [
        ([{"node": "a", "rank": 0}], "The log of a has no path; say started: false where the rank never ran."),
        ([{"node": "a", "rank": 0, "path": "/nowhere/x.log"}], "There is no log /nowhere/x.log for a: correct its path."),
        ([{"node": "a", "rank": 0, "started": False}, {"node": "b", "rank": 0, "started": False}], "Two of the logs have the same rank."),
    ],
)
def test_logs_refused(logs: list[dict[str, t.Any]], sentence: str) -> None:
    result = run(Action({"logs": logs}, None))
    assert result["failed"] is True and result["msg"].startswith(sentence)
