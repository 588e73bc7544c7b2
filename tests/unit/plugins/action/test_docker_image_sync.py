# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The controller's half, with two hosts in two threads on one board and scripted nodes."""

from __future__ import annotations

import threading
import time
import types
import typing as t

import pytest
from ansible import constants as C
from ansible import context
from ansible.errors import AnsibleConnectionFailure
from ansible.utils.context_objects import CLIArgs

from ansible_collections.sparkstack.inference.plugins.action import docker_image_sync as subject
from ansible_collections.sparkstack.inference.plugins.module_utils._image_identity import chain_ids, identity

ADDRESS = {"spark1": "192.168.200.11", "spark2": "192.168.200.12"}
IMAGE = identity({"Architecture": "arm64", "Os": "linux", "RootFS": {"Layers": ["sha256:aa", "sha256:bb"]}, "Config": {"Cmd": ["x"]}})
OLD = {**IMAGE, "layers": ["sha256:aa"], "digest": "sha256:old"}
Answer = dict[str, t.Any] | Exception | list[t.Any]


def seen(found: dict[str, t.Any] | None) -> dict[str, t.Any]:
    view: dict[str, t.Any] = {
        "running": None,
        "present": found is not None,
        "daemon": {"architecture": "arm64", "os": "linux", "version": "28"},
        "known": {},
        "chains": chain_ids(found["layers"]) if found else [],
        "free_port": 40001,
    }
    if found:
        view.update(identity=found, id="sha256:id", size=600, history=[200, 400])
    return view


def status(state: str = "done", result: dict[str, t.Any] | None = None, **more: t.Any) -> dict[str, t.Any]:
    """What a node says of what moves the image there."""
    told = {"state": state, "problem": None, "source": False, "there": 0, "total": 0, "began": 1764460800.0, "now": 10.0, "seconds": 2.0}
    return {**told, "result": result or {}, **more}


FETCHED = {"status": status(result={"identity": IMAGE, "id": "sha256:new", "bytes": 200_000_000, "whole": False})}
SERVED = {"status": status(result={"served": [], "bytes": 200_000_000, "saved": []}, source=True, seconds=2.5)}


class Play:
    """Both hosts run the task at the same time, as forks do."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tmp_path: t.Any) -> None:
        monkeypatch.setattr(C, "DEFAULT_LOCAL_TMP", str(tmp_path))
        monkeypatch.setattr(context, "CLIARGS", CLIArgs({"forks": 5}))
        self.calls: dict[str, list[dict[str, t.Any]]] = {"spark1": [], "spark2": []}
        self.lines: list[str] = []
        self.check_mode = False

    def run(self, answers: dict[str, dict[str, Answer]], batch: t.Sequence[str] = ("spark1", "spark2"), **arguments: t.Any) -> dict[str, dict[str, t.Any]]:
        results: dict[str, dict[str, t.Any]] = {}
        fetching = threading.Event()

        def one(host: str) -> None:
            task = types.SimpleNamespace(_uuid="task-1", args={}, throttle=0, run_once=False, check_mode=self.check_mode, async_val=0, diff=False)
            action = subject.ActionModule.__new__(subject.ActionModule)
            action._task = task
            action._display = types.SimpleNamespace(display=self.lines.append)
            task.args = {"image": "lab/x:1", "source": "spark1", "address": ADDRESS[host], "join_timeout": 8, **arguments}

            def execute(module_name: str, module_args: dict[str, t.Any], task_vars: object) -> dict[str, t.Any]:
                assert module_name == "sparkstack.inference.docker_image_transfer"
                self.calls[host].append(module_args)
                answer = answers[host][module_args["operation"]]
                if module_args["operation"] == "fetch":
                    fetching.set()
                    time.sleep(0.5)  # A connection takes a while, so that the source's word is there first.
                if answer is SERVED:
                    assert fetching.wait(5)
                if isinstance(answer, list):
                    # One answer a call, and the last for all others.
                    answer = answer.pop(0) if len(answer) > 1 else answer[0]
                if isinstance(answer, Exception):
                    raise answer
                # As ansible-core 2.21 does; before, neither was there.
                return {"changed": False, "failed": False, **answer, "invocation": {}}

            action._execute_module = execute
            action.validate_argument_spec = lambda argument_spec: (None, {**defaults(argument_spec), **task.args})
            try:
                results[host] = action._run({"inventory_hostname": host, "ansible_play_batch": batch})
            except Exception as error:
                results[host] = {"unreachable": True, "msg": str(error)}

        threads = [threading.Thread(target=one, args=(host,)) for host in ADDRESS]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
            assert not thread.is_alive()
        return results

    def operations(self, host: str) -> list[str]:
        return [call["operation"] for call in self.calls[host]]


def defaults(spec: dict[str, dict[str, t.Any]]) -> dict[str, t.Any]:
    return {name: option.get("default") for name, option in spec.items()}


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch, tmp_path: t.Any) -> Play:
    return Play(monkeypatch, tmp_path)


def test_equal_content_moves_nothing(play: Play) -> None:
    results = play.run({host: {"inspect": seen(IMAGE)} for host in ADDRESS})
    for host in ADDRESS:
        assert results[host]["changed"] is False and results[host]["verified"] is True
        assert (results[host]["actions"], results[host]["bytes_sent"], results[host]["bytes_total"]) == ([], 0, 600)
        assert play.operations(host) == ["inspect"]
    assert play.lines == []


def test_in_a_rescue_the_hosts_that_take_part_are_named(play: Play) -> None:
    answers = {"spark1": {"inspect": seen(IMAGE), "serve": SERVED}, "spark2": {"inspect": seen(None), "fetch": FETCHED}}
    # spark2's task has failed, and the head has only ended with it.
    assert "spark1 does not take part" in play.run(dict(answers), batch=["spark2"])["spark2"]["msg"]
    results = play.run(dict(answers), batch=["spark2"], members=["spark1", "spark2"])
    assert results["spark2"]["verified"] is True and results["spark1"]["bytes_sent"] == 200_000_000


def test_a_node_without_the_image_fetches_it(play: Play) -> None:
    results = play.run({"spark1": {"inspect": seen(IMAGE), "serve": SERVED}, "spark2": {"inspect": seen(None), "fetch": FETCHED}})
    assert results["spark1"]["changed"] is False and results["spark1"]["bytes_sent"] == 200_000_000
    got = results["spark2"]
    assert got["changed"] is True and got["verified"] is True and "failed" not in got
    assert (got["bytes_sent"], got["seconds"], got["throughput_mb_s"]) == (200_000_000, 2.0, 100.0)
    assert got["image"]["id"] == "sha256:new" and got["image"]["digest"] == IMAGE["digest"]
    assert got["diff"]["before"] == "lab/x:1 absent\n"
    serve, fetch = play.calls["spark1"][1], play.calls["spark2"][1]
    assert serve["peers"] == ["192.168.200.12"]
    assert (serve["address"], serve["port"]) == (fetch["source_address"], fetch["port"]) == ("192.168.200.11", 40001)
    assert serve["token"] == fetch["token"] and len(serve["token"]) == 64
    assert play.lines == [
        "[spark2] fetch lab/x:1 from spark1 (missing here): 2 of 2 layers, about 600 B",
        "[spark2] image lab/x:1: 200.0 MB in 2.0 s (100.0 MB/s), verified",
    ]
    assert serve["token"] not in str(results) + str(play.lines)


def test_only_missing_layers_are_asked_for(play: Play) -> None:
    play.run({"spark1": {"inspect": seen(IMAGE), "serve": SERVED}, "spark2": {"inspect": seen(OLD), "fetch": FETCHED}})
    fetch = play.calls["spark2"][1]
    assert (fetch["layers"], fetch["common"]) == (["sha256:aa", "sha256:bb"], 1)


def test_the_options_are_handed_on(play: Play) -> None:
    play.run(
        {"spark1": {"inspect": seen(IMAGE), "serve": SERVED}, "spark2": {"inspect": seen(None), "fetch": FETCHED}},
        port=7777,
        source_address="192.168.201.11",
        timeout=99,
    )
    fetch = play.calls["spark2"][1]
    assert (fetch["source_address"], fetch["port"], fetch["timeout"]) == ("192.168.201.11", 7777, 99)


def test_check_mode_predicts_and_moves_nothing(play: Play) -> None:
    play.check_mode = True
    results = play.run({"spark1": {"inspect": seen(IMAGE)}, "spark2": {"inspect": seen(OLD)}})
    assert results["spark2"]["changed"] is True and results["spark2"]["verified"] is False
    assert results["spark2"]["actions"] == ["fetch lab/x:1 from spark1 (differs here in layers): 1 of 2 layers, about 200 B"]
    assert results["spark1"]["changed"] is False
    assert play.operations("spark1") == play.operations("spark2") == ["inspect"]


def test_the_same_content_is_only_tagged(play: Play) -> None:
    node = {**seen(None), "known": {IMAGE["digest"]: "sha256:there"}}
    tagged = {"identity": IMAGE, "id": "sha256:there", "seconds": 0.1}
    results = play.run({"spark1": {"inspect": seen(IMAGE)}, "spark2": {"inspect": node, "tag": tagged}})
    assert results["spark2"]["changed"] is True and results["spark2"]["bytes_sent"] == 0
    assert play.calls["spark2"][1]["known_id"] == "sha256:there"
    assert play.operations("spark1") == ["inspect"]


def test_what_was_loaded_is_compared(play: Play) -> None:
    results = play.run(
        {
            "spark1": {"inspect": seen(IMAGE), "serve": SERVED},
            "spark2": {"inspect": seen(None), "fetch": {"status": status(result={"identity": OLD, "id": "sha256:x", "bytes": 9})}},
        }
    )
    assert results["spark2"]["failed"] is True and results["spark2"]["verified"] is False
    assert "Image lab/x:1 on spark2 is not what spark1 has" in results["spark2"]["msg"]


@pytest.mark.parametrize(
    ("spark1", "spark2", "failed"),
    [
        pytest.param(
            {"inspect": seen(None)},
            {"inspect": seen(None)},
            {"spark1": "Image lab/x:1 is not on spark1", "spark2": "Image lab/x:1 is not on spark1"},
            id="the source lacks it",
        ),
        pytest.param(
            {"inspect": {"failed": True, "msg": "Docker does not answer."}},
            {"inspect": seen(None)},
            {"spark1": "Docker does not answer.", "spark2": "spark1 is the source of image lab/x:1 and failed: Docker"},
            id="the source's Docker is down",
        ),
        pytest.param(
            {"inspect": seen(IMAGE)},
            {"inspect": {"failed": True, "msg": "Docker does not answer."}},
            {"spark2": "Docker does not answer."},
            id="a receiver's Docker is down",
        ),
        pytest.param(
            {"inspect": RuntimeError("ssh: no route to host")},
            {"inspect": seen(None)},
            {"spark1": "ssh: no route", "spark2": "spark1 is the source of image lab/x:1 and failed: ssh: no route"},
            id="the source is unreachable",
        ),
        pytest.param(
            {"inspect": seen(IMAGE), "serve": {"failed": True, "msg": "Port 40001 of 192.168.200.11 is taken."}},
            {"inspect": seen(None), "fetch": {"failed": True, "msg": "Cannot reach 192.168.200.11:40001."}},
            {
                "spark1": "Port 40001 of 192.168.200.11 is taken.",
                "spark2": "spark1 could not serve image lab/x:1: Port 40001 of 192.168.200.11 is taken.",
            },
            id="the port is taken",
        ),
        pytest.param(
            {"inspect": {**seen(IMAGE), "free_port": 0}},
            {"inspect": seen(None)},
            {
                "spark1": "192.168.200.11 is not an address of spark1",
                "spark2": "spark1 could not serve image lab/x:1: 192.168.200.11 is not an address of spark1",
            },
            id="the source's address is wrong",
        ),
        pytest.param(
            {"inspect": seen(IMAGE), "serve": SERVED},
            {"inspect": seen(None), "fetch": {"status": status("failed", problem="Docker says: no space left on device")}},
            {"spark2": "Image lab/x:1 did not come from spark1 to spark2: Docker says: no space left on device"},
            id="no space",
        ),
        pytest.param(
            {"inspect": seen(IMAGE), "serve": SERVED},
            {"inspect": seen(None), "fetch": {"status": status("running")}, "watch": {"status": None}},
            {"spark2": "Image lab/x:1 did not come from spark1 to spark2: what moved it there is gone, as after a restart or a kill: run this again."},
            id="killed",
        ),
        pytest.param(
            {"inspect": seen(IMAGE), "serve": {"status": status("failed", source=True, problem="Port 40001 of 192.168.200.11 is taken.")}},
            {"inspect": seen(None), "fetch": {"status": status("failed", problem="Cannot reach 192.168.200.11:40001.")}},
            {
                "spark1": "Port 40001 of 192.168.200.11 is taken.",
                "spark2": "spark1 could not serve image lab/x:1: Port 40001 of 192.168.200.11 is taken.",
            },
            id="the port was taken meanwhile",
        ),
    ],
)
def test_failures_are_one_sentence(play: Play, spark1: dict[str, Answer], spark2: dict[str, Answer], failed: dict[str, str]) -> None:
    results = play.run({"spark1": spark1, "spark2": spark2})
    for host, sentence in failed.items():
        assert results[host].get("failed") or results[host].get("unreachable")
        assert results[host]["msg"].startswith(sentence), results[host]["msg"]
    if "spark1" not in failed:
        assert "failed" not in results["spark1"]


def test_it_is_told_how_far_a_receiver_is(play: Play) -> None:
    steps = [
        {"status": status("running", there=2_000_000_000, total=8_000_000_000, now=20.0)},
        {"status": status("loading", there=0, total=0, now=30.0)},
        {"status": status("loading", there=4_000_000_000, total=8_000_000_000, now=40.0)},
        FETCHED,
    ]
    node: dict[str, Answer] = {"inspect": seen(None), "fetch": {"status": status("running", there=0, total=8_000_000_000, now=10.0)}, "watch": steps}
    results = play.run({"spark1": {"inspect": seen(IMAGE), "serve": SERVED}, "spark2": node})
    assert results["spark2"]["verified"] is True
    assert play.lines[1:-1] == [
        "[spark2] image lab/x:1: 0.0 of 8.0 GB",
        "[spark2] image lab/x:1: 2.0 of 8.0 GB, 200.0 MB/s, 30 s left",
        "[spark2] image lab/x:1: all has come, Docker unpacks it",
        "[spark2] image lab/x:1: all has come, Docker unpacks it: 4.0 of 8.0 GB",
    ]
    watched = [call for call in play.calls["spark2"] if call["operation"] == "watch"]
    assert [(call["known"], call["seconds"]) for call in watched] == [("running", 5.0), ("running", 5.0), ("loading", 5.0), ("loading", 5.0)]


def test_of_docker_save_the_size_is_a_guess(play: Play) -> None:
    steps = [{"status": status("running", there=450, now=20.0)}, {"status": status("running", there=700, now=30.0)}, FETCHED]
    node: dict[str, Answer] = {"inspect": seen(None), "fetch": {"status": status("running")}, "watch": steps}
    play.run({"spark1": {"inspect": seen(IMAGE), "serve": SERVED}, "spark2": node})
    assert play.lines[1:-1] == [f"[spark2] image lab/x:1: {told}" for told in ("0 of 600 B", "450 of 600 B", "700 of 700 B")]


def test_nothing_is_told_where_no_progress_is_wanted(play: Play) -> None:
    node: dict[str, Answer] = {"inspect": seen(None), "fetch": {"status": status("running", there=1, total=9)}, "watch": FETCHED}
    play.run({"spark1": {"inspect": seen(IMAGE), "serve": SERVED}, "spark2": node}, progress=0)
    assert len(play.lines) == 2


def test_a_node_out_of_ssh_s_reach_for_a_while_spoils_nothing(play: Play) -> None:
    node: dict[str, Answer] = {
        "inspect": seen(None),
        "fetch": {"status": status("running")},
        "watch": [AnsibleConnectionFailure("timed out"), AnsibleConnectionFailure("timed out"), FETCHED],
    }
    assert play.run({"spark1": {"inspect": seen(IMAGE), "serve": SERVED}, "spark2": node})["spark2"]["verified"] is True


def test_a_copy_that_runs_already_is_seen_to_its_end(play: Play) -> None:
    """Another run has begun it. Nothing is begun here, and what came of it is seen in the image."""
    here = {**seen(IMAGE), "running": status("running", source=True)}
    there = {**seen(None), "running": status("running", there=3_000_000_000, total=8_000_000_000)}
    results = play.run(
        {
            "spark1": {"inspect": [here, seen(IMAGE)], "watch": {"status": status(source=True)}},
            "spark2": {"inspect": [there, seen(IMAGE)], "watch": [{"status": status("loading")}, {"status": None}]},
        }
    )
    assert play.operations("spark1") == ["inspect", "watch", "inspect"]
    assert play.operations("spark2") == ["inspect", "watch", "watch", "inspect"]
    assert results["spark2"]["changed"] is False and results["spark2"]["verified"] is True
    assert results["spark2"]["actions"] == ["waited for a copy that ran already, since 00:00:00Z"]
    assert results["spark1"]["actions"] == []
    assert play.lines[:2] == [
        "[spark2] a copy of lab/x:1 runs since 00:00:00Z: this run sees it to its end",
        "[spark2] image lab/x:1: 3.0 of 8.0 GB",
    ]


def test_after_a_copy_that_came_to_nothing_it_is_fetched(play: Play) -> None:
    there = {**seen(None), "running": status("running")}
    results = play.run(
        {
            "spark1": {"inspect": seen(IMAGE), "serve": SERVED},
            "spark2": {"inspect": [there, seen(None)], "watch": {"status": status("failed", problem="Docker says: no")}, "fetch": FETCHED},
        }
    )
    assert results["spark2"]["changed"] is True and results["spark2"]["verified"] is True
    assert len(results["spark2"]["actions"]) == 2


def test_check_mode_waits_for_no_copy(play: Play) -> None:
    play.check_mode = True
    results = play.run({"spark1": {"inspect": seen(IMAGE)}, "spark2": {"inspect": {**seen(None), "running": status("running")}}})
    assert results["spark2"]["changed"] is True and play.operations("spark2") == ["inspect"]


def test_that_all_had_to_be_read_is_told(play: Play) -> None:
    served = {"status": status(result={"served": [], "bytes": 1, "saved": ["the storage driver is zfs"] * 2}, source=True)}
    play.run({"spark1": {"inspect": seen(IMAGE), "serve": served}, "spark2": {"inspect": seen(None), "fetch": FETCHED}})
    told = [line for line in play.lines if line.startswith("[spark1]")]
    assert told == ["[spark1] image lab/x:1: all of it was read by `docker save`: the storage driver is zfs"]


def test_a_host_that_does_not_take_part_is_named(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(ADDRESS, "spark2")
    results = play.run({"spark1": {"inspect": seen(IMAGE)}}, join_timeout=1)
    assert results["spark1"]["msg"].startswith("Image lab/x:1: no word from spark2 after 1 s; all nodes of the play must")


def test_a_bad_name_is_refused_before_anything_is_looked_at(play: Play) -> None:
    results = play.run({"spark1": {}, "spark2": {}}, image="sha256:abc")
    assert "give it by name and tag" in results["spark1"]["msg"]
    assert play.calls == {"spark1": [], "spark2": []}
