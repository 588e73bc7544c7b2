# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The probe against a daemon of our own: only what is new is read, and no line twice or not at all."""

from __future__ import annotations

import json
import pathlib
import typing as t

import pytest

from ansible_collections.sparkstack.inference.plugins.module_utils._docker_api import DockerAPI, DockerUnreachable
from ansible_collections.sparkstack.inference.plugins.module_utils._probe import look

BEGIN = b"[2026-11-29 22:42:24] server_args=ServerArgs(nnodes=2, node_rank=1, api_key='abcDEF123456')\n"
INIT = b"[2026-11-29 22:42:25 TP1] Init torch distributed begin.\n"
LOAD = b"[2026-11-29 22:42:49 TP1] Load weight begin. avail mem=138.33 GB\n"
STAMP = "2026-11-29T22:42:{:02d}.123456789Z"


def again(docker: t.Any, state: dict[str, t.Any], engine: str = "sglang") -> dict[str, t.Any]:
    return look(DockerAPI(docker.socket), "rank", engine, json.loads(json.dumps(state)))


def test_no_container(docker: t.Any) -> None:
    found = again(docker, {})
    assert (found["exists"], found["started"], found["running"], found["reading"]) == (False, False, False, None)


def test_no_daemon(tmp_path: pathlib.Path) -> None:
    with pytest.raises(DockerUnreachable, match="does not answer on"):
        look(DockerAPI(str(tmp_path / "none.sock")), "rank", "auto", {})


@pytest.mark.parametrize("tty", [False, True])
def test_only_what_is_new_is_read(docker: t.Any, tty: bool) -> None:
    docker.start(tty=tty)
    docker.log = [(STAMP.format(24), BEGIN)]
    first = again(docker, {})
    assert docker.queries[-1]["since"] == "1795992120.400000000"
    assert first["reading"]["phase"] == "parse_args"
    # A second line of the very same nanosecond, and a later one.
    docker.log += [(STAMP.format(24), INIT), (STAMP.format(49), LOAD)]
    second = again(docker, first["state"])
    assert docker.queries[-1]["since"] == "1795992144.123456789"
    assert [phase["phase"] for phase in second["reading"]["phases"]] == ["parse_args", "init_dist", "load_weights"]
    # Docker's time is exact and counts, not the engine's.
    assert second["reading"]["phases"][2]["time"] == pytest.approx(1795992169.123456789)
    # Nothing new: the last line comes again and is known.
    before = docker.sent
    third = again(docker, second["state"])
    assert third["reading"] == second["reading"]
    assert docker.sent - before < 1000
    assert third["reading"]["earlier"] == []


def test_a_message_from_before_the_start_that_docker_tells(docker: t.Any) -> None:
    # As seen: StartedAt 11:43:16.656, and the only message of a container that ended at once.
    docker.start(began="2026-11-30T11:43:16.656118234Z")
    docker.log = [("2026-11-30T11:43:16.654450035Z", b"[FATAL tini (8)] exec vllm failed: Exec format error\n")]
    docker.end(1, FinishedAt="2026-11-30T11:43:16.671000000Z")
    found = again(docker, {})
    assert found["reading"]["candidates"][0]["cause"] == "wrong_image_arch"


def test_a_message_from_long_before_the_start_that_docker_tells(docker: t.Any) -> None:
    # A node under load: Docker writes down 1.4 s late that the container has started. It was made 0.3 s before it ran.
    docker.start(created="2026-11-30T11:43:14.950000000Z", began="2026-11-30T11:43:16.656118234Z")
    docker.log = [("2026-11-30T11:43:15.254450035Z", b"[FATAL tini (8)] exec vllm failed: Exec format error\n")]
    docker.end(1, FinishedAt="2026-11-30T11:43:16.671000000Z")
    found = again(docker, {})
    assert found["reading"]["candidates"][0]["cause"] == "wrong_image_arch"
    # It is older than its last start, or Docker has started it again: what was said so early is of a start before.
    docker.start(created="2026-11-30T11:42:15.000000000Z", began="2026-11-30T11:43:16.656118234Z")
    docker.end(1, FinishedAt="2026-11-30T11:43:16.671000000Z")
    assert not again(docker, {})["reading"]["candidates"]
    docker.start(created="2026-11-30T11:43:14.950000000Z", began="2026-11-30T11:43:16.656118234Z", restarts=1)
    docker.end(1, FinishedAt="2026-11-30T11:43:16.671000000Z")
    assert not again(docker, {})["reading"]["candidates"]


def test_what_the_start_before_wrote_is_not_read(docker: t.Any) -> None:
    docker.start(ended="2026-11-29T22:41:59.95Z")
    docker.log = [("2026-11-29T22:41:59.940000000Z", LOAD), ("2026-11-29T22:42:00.499000000Z", BEGIN)]
    found = again(docker, {})
    assert docker.queries[-1]["since"] == "1795992120.400000000"
    assert found["reading"]["phase"] == "parse_args"
    docker.start(ended="2026-11-29T22:42:00.45Z")
    again(docker, {})
    assert docker.queries[-1]["since"] == "1795992120.450000000"


def test_a_line_in_several_messages(docker: t.Any) -> None:
    docker.start()
    docker.log = [(STAMP.format(24), BEGIN), (STAMP.format(25), b"x" * 16384)]
    first = again(docker, {})
    docker.log += [(STAMP.format(25), b" [2026-11-29 22:42:25 TP1] Init torch dist")]
    second = again(docker, first["state"])
    docker.log += [(STAMP.format(25), b"ributed begin.\n")]
    assert again(docker, second["state"])["reading"]["phase"] == "init_dist"


@pytest.mark.parametrize("change", [{"identity": "b" * 64}, {"began": "2026-11-29T22:50:00.5Z"}])
def test_another_container_or_another_start_begins_anew(docker: t.Any, change: dict[str, str]) -> None:
    docker.start()
    docker.log = [(STAMP.format(24), BEGIN), (STAMP.format(49), LOAD)]
    first = again(docker, {})
    docker.start(**change)
    docker.log = [("2026-11-29T22:50:01.000000000Z", BEGIN)]
    found = again(docker, first["state"])
    assert found["reading"]["phase"] == "parse_args"
    assert found["reading"]["earlier"] == []


def test_an_ended_container(docker: t.Any) -> None:
    docker.start()
    docker.log = [(STAMP.format(24), BEGIN)]
    docker.end(137, OOMKilled=True)
    found = again(docker, {})
    assert {key: found[key] for key in ("running", "exit_code", "oom_killed", "finished_at")} == {
        "running": False,
        "exit_code": 137,
        "oom_killed": True,
        "finished_at": 1795992300.25,
    }


def test_a_log_that_docker_does_not_keep(docker: t.Any) -> None:
    docker.start()
    docker.end(2)
    docker.unread = True
    found = again(docker, {})
    assert (found["running"], found["exit_code"]) == (False, 2)
    assert found["reading"]["last_line"].startswith("Docker keeps no log of this container: start it without --log-driver")


def test_a_container_that_docker_could_not_start(docker: t.Any) -> None:
    docker.start(began="0001-01-01T00:00:00Z")
    docker.end(127, Error='exec: "vllm": executable file not found in $PATH: unknown')
    found = again(docker, {})
    assert found["started"] and not found["running"] and "not found in $PATH" in found["error"]
    docker.inspection["State"].update(Error="", ExitCode=0)
    assert again(docker, {})["started"] is False


def test_no_secret_leaves_the_node(docker: t.Any) -> None:
    docker.start()
    docker.log = [(STAMP.format(24), BEGIN)]
    assert "abcDEF123456" not in json.dumps(again(docker, {}))


def test_what_ended_the_starts_before_dockers_restart(docker: t.Any) -> None:
    oom = b"[2026-11-29 22:42:50 TP1] Scheduler hit an exception: Traceback (most recent call last):\ntorch.OutOfMemoryError: CUDA out of memory.\n\n"
    docker.start(began="2026-11-29T22:43:00.5Z")
    docker.inspection["RestartCount"] = 3
    docker.log = [(STAMP.format(second), text) for second, text in ((24, BEGIN), (25, INIT), (49, LOAD), (50, oom))]
    docker.log += [("2026-11-29T22:43:01.000000000Z", BEGIN)]
    found = again(docker, {})
    assert (found["restarts"], found["reading"]["phase"]) == (3, "parse_args")
    assert found["reading"]["earlier"] == [{"phase": "load_weights", "cause": "oom"}]
    assert found["reading"]["candidates"] == []
    # It is read once a start.
    count = len(docker.queries)
    found = again(docker, found["state"])
    assert found["reading"]["earlier"] == [{"phase": "load_weights", "cause": "oom"}] and len(docker.queries) == count + 1
