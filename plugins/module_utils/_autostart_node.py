# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""What the agent does on its node: looks at the rank's container, starts and stops it, asks the head's API, and keeps its memory."""

from __future__ import annotations

import http.client
import json
import os
import shlex
import time
import typing as t
from urllib.parse import quote, urlsplit

from ansible_collections.sparkstack.inference.plugins.module_utils import _autostart_files, _autostart_rank, _probe, _reach, _scene, _unit_files
from ansible_collections.sparkstack.inference.plugins.module_utils._docker_api import DockerAPI, DockerError
from ansible_collections.sparkstack.inference.plugins.module_utils._engines import ENGINES
from ansible_collections.sparkstack.inference.plugins.module_utils._files import text
from ansible_collections.sparkstack.inference.plugins.module_utils._logline import moment
from ansible_collections.sparkstack.inference.plugins.module_utils._ranks import LABEL
from ansible_collections.sparkstack.inference.plugins.module_utils._secrets import FOLDER as SECRETS

Data = t.Dict[str, t.Any]

_REFRESH = 30.0
"""Seconds after which the memory is written again only to tell that the rank still runs."""
_BUSY = 0.3
"""The part of a processor from which on a rank counts as busy."""


class Node:
    """This node, its rank, and what is remembered of both."""

    def __init__(self, config: t.Mapping[str, t.Any], root: str = "/", api: t.Optional[DockerAPI] = None, clock: t.Callable[[], float] = time.time) -> None:
        """:param config: see M(sparkstack.inference.inference_autostart)."""
        self.config, self.root, self.clock = config, root, clock
        self.api = api or DockerAPI(config["docker_socket"], timeout=20)
        self._path = os.path.join(root, _autostart_files.memory(config["deployment"]))
        kept = _unit_files.read(self._path) or {}
        self.memory: Data = kept.get("rank") or {}
        self.state: Data = kept.get("state") or {}
        self._written = 0.0
        self._probed: Data = {}
        self._marks: t.Any = None
        self._moved = self._cpu_at = 0.0
        self._cpu: t.Optional[float] = None
        self._id = ""

    def report(self) -> Data:
        """Look at the rank, remember it, and say what the head's agent is to know; see C(_autostart_rank)."""
        now, look = self.clock(), self._look()
        before = self.memory
        self.memory = _autostart_rank.remember(before, look, now)
        known = [{key: value for key, value in memory.items() if key != "at"} for memory in (before, self.memory)]
        if known[0] != known[1] or ("at" in self.memory and not 0 <= now - self._written <= _REFRESH):
            self.save()
        return dict(_autostart_rank.report(self.memory, look, now), rank=self.config["rank"])

    def _look(self) -> Data:
        look: Data = {"docker": False, "here": False, "boot": text(os.path.join(self.root, "proc/sys/kernel/random/boot_id")).strip()}
        try:
            inspection = self.api.container(self.config["container"])
        except DockerError:
            return look
        look["docker"] = True
        labels = (inspection or {}).get("Config", {}).get("Labels") or {}
        if inspection is None or labels.get(LABEL + "deployment") != self.config["deployment"]:
            return look
        told = inspection["State"]
        self._id = inspection["Id"]
        return dict(
            look,
            here=True,
            id=inspection["Id"],
            launch=labels.get(LABEL + "launch_id"),
            running=bool(told.get("Running")),
            began=str(told.get("StartedAt")),
            started=moment(told.get("StartedAt")),
            finished=None if told.get("Running") else moment(told.get("FinishedAt")),
            daemon=daemon(self.root),
            booted=_scene.started(1, self.root),
            docker_started=_scene.docker_started(self.root),
        )

    def save(self, state: t.Optional[Data] = None) -> None:
        """Keep the memory, and what the head's agent has decided."""
        self.state = self.state if state is None else state
        os.makedirs(os.path.dirname(self._path), mode=0o700, exist_ok=True)
        _unit_files.write(self._path, json.dumps({"rank": self.memory, "state": self.state}), 0o600)
        self._written = self.clock()

    def carry_out(self, want: t.Optional[str], order: str) -> None:
        """Stop the rank's container, or start it, once for each order; what Docker said to the latter is remembered."""
        try:
            if want == "stopped":
                self._post("stop", {"t": str(self.config["stop_timeout"])})
            elif want == "running" and self.memory.get("done") != order:
                # First the note: an agent that is killed right now must not start it once more.
                self.memory.update(done=order, error=None)
                self.save()
                self._post("start", {})
        except DockerError as error:
            self.memory["error"] = str(error)
            self.save()

    def _post(self, what: str, query: t.Mapping[str, str]) -> None:
        api = DockerAPI(self.api.socket_path, timeout=120)
        with api.request("POST", "/containers/{0}/{1}".format(quote(self._id, safe=""), what), query) as response:
            response.read()

    # While a start is watched.

    def record(self) -> Data:
        """The rank's record for C(_diagnosis), as far as one node can tell it."""
        base: Data = {"node": self.config["nodes"][self.config["rank"]], "rank": self.config["rank"]}
        try:
            found = _probe.look(self.api, self.config["container"], self.config["engine"], self._probed, (), self.root)
        except DockerError as error:
            return dict(base, running=None, unreachable=str(error))
        self._probed = found.pop("state")
        reading = found["reading"] or {}
        keys = ("started", "running", "paused", "exit_code", "oom_killed", "error", "restarts", "reading", "scene")
        asked = self.config["rank"] == 0 and found["running"] and reading.get("phase") == "ready"
        return dict(
            base,
            **{key: found.get(key) for key in keys},
            healthy=healthy(self.config["api"]) if asked else None,
            addresses=[own.address for own in _reach.addresses()],
            quiet_seconds=self._quiet(reading, found.get("activity") or {}),
            busy=self._busy(found.get("activity") or {}),
            began=found.get("started_at"),
            finished=found.get("finished_at"),
            now=found["now"],
        )

    def _quiet(self, reading: t.Mapping[str, t.Any], activity: t.Mapping[str, t.Any]) -> float:
        """Seconds since anything has moved."""
        # A few pages come and go in any process; a load moves more.
        marks = (reading.get("phase"), reading.get("useful"), int(activity.get("read_bytes") or 0) >> 20, int(activity.get("memory_bytes") or 0) >> 25)
        if marks != self._marks:
            self._marks, self._moved = marks, time.monotonic()
        return round(time.monotonic() - self._moved, 1)

    def _busy(self, activity: t.Mapping[str, t.Any]) -> bool:
        """Whether it has used the processor since the last look."""
        used, before, now, at = activity.get("cpu_seconds"), self._cpu, time.monotonic(), self._cpu_at
        self._cpu, self._cpu_at = used, now
        return used is not None and before is not None and now > at and (used - before) / (now - at) > _BUSY

    def answered(self) -> bool:
        """Whether the head's API gives a completion, which a health page does not prove."""
        body = {"model": self.config["model"], "prompt": "The capital of France is", "max_tokens": 1, "temperature": 0}
        headers = {"Content-Type": "application/json"}
        key = api_key(text(os.path.join(self.root, SECRETS.lstrip("/"), self.config["container"] + ".env")), self.config["engine"])
        if key:
            headers["Authorization"] = "Bearer " + key
        status, answer = _ask("POST", self.config["api"] + "/v1/completions", json.dumps(body).encode(), headers, 60)
        try:
            return status == 200 and bool(json.loads(answer.decode())["choices"])
        except (ValueError, KeyError, TypeError):
            return False


def daemon(root: str = "/") -> t.Optional[str]:
    """Which Docker daemon runs: its process and when that was started, in ticks since the boot; None where that can't be seen."""
    for place in ("run", "var/run"):
        pid = text(os.path.join(root, place, "docker.pid")).strip()
        if pid.isdigit() and text(os.path.join(root, "proc", pid, "comm")).strip() == "dockerd":
            fields = text(os.path.join(root, "proc", pid, "stat")).rpartition(")")[2].split()
            return "{0}/{1}".format(pid, fields[19]) if len(fields) > 19 else None
    return None


def api_key(secrets: str, engine: str) -> str:
    """The API key in a container's file of secrets, as the collection writes it; nothing where there is none."""
    known = ENGINES.get(engine)
    for line in secrets.splitlines():
        name, _equals, value = line.partition("=")
        if known and name == known.launch.api_key_variable:
            return "".join(shlex.split(value))
    return ""


def healthy(api: str) -> bool:
    """The API's health page answers with 200."""
    return _ask("GET", api + "/health", None, {}, 5)[0] == 200


def _ask(method: str, url: str, body: t.Optional[bytes], headers: t.Mapping[str, str], timeout: float) -> t.Tuple[int, bytes]:
    """An answer's status, 0 where none came, and its beginning. No proxy is asked."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port or 80, timeout=timeout)
    try:
        connection.request(method, parts.path, body, dict(headers))
        response = connection.getresponse()
        return response.status, response.read(1 << 20)
    except (OSError, http.client.HTTPException):
        return 0, b""
    finally:
        connection.close()
