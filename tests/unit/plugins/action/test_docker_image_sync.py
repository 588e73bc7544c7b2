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
from ansible.utils.context_objects import CLIArgs

from ansible_collections.sparkstack.inference.plugins.action import docker_image_sync as subject
from ansible_collections.sparkstack.inference.plugins.module_utils._image_identity import chain_ids, identity

ADDRESS = {"spark1": "192.168.200.11", "spark2": "192.168.200.12"}
IMAGE = identity({"Architecture": "arm64", "Os": "linux", "RootFS": {"Layers": ["sha256:aa", "sha256:bb"]}, "Config": {"Cmd": ["x"]}})
OLD = {**IMAGE, "layers": ["sha256:aa"], "digest": "sha256:old"}
Answer = dict[str, t.Any] | Exception


def seen(found: dict[str, t.Any] | None) -> dict[str, t.Any]:
    view: dict[str, t.Any] = {
        "present": found is not None,
        "daemon": {"architecture": "arm64", "os": "linux", "version": "28"},
        "known": {},
        "chains": chain_ids(found["layers"]) if found else [],
        "free_port": 40001,
    }
    if found:
        view.update(identity=found, id="sha256:id", size=600, history=[200, 400])
    return view


FETCHED = {"identity": IMAGE, "id": "sha256:new", "bytes": 200_000_000, "seconds": 2.0, "whole": False}
SERVED = {"served": [], "bytes": 200_000_000, "seconds": 2.5}


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
                    time.sleep(0.2)  # A connection takes a while, so that the source's word is there first.
                if answer is SERVED:
                    assert fetching.wait(5)
                if isinstance(answer, Exception):
                    raise answer
                return {**answer, "invocation": {}}

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
            "spark2": {"inspect": seen(None), "fetch": {**FETCHED, "identity": OLD}},
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
            {"inspect": seen(None), "fetch": {"failed": True, "msg": "Docker says: no space left on device"}},
            {"spark2": "Image lab/x:1 did not come from spark1 to spark2: Docker says: no space left on device"},
            id="no space",
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


def test_a_host_that_does_not_take_part_is_named(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(ADDRESS, "spark2")
    results = play.run({"spark1": {"inspect": seen(IMAGE)}}, join_timeout=1)
    assert results["spark1"]["msg"].startswith("Image lab/x:1: no word from spark2 after 1 s; all nodes of the play must")


def test_a_bad_name_is_refused_before_anything_is_looked_at(play: Play) -> None:
    results = play.run({"spark1": {}, "spark2": {}}, image="sha256:abc")
    assert "give it by name and tag" in results["spark1"]["msg"]
    assert play.calls == {"spark1": [], "spark2": []}
