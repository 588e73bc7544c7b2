# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""One look at a rank's container: its state, what its log has grown by, what its processes have used, and the scene around it."""

from __future__ import annotations

import io
import re
import time
import typing as t
from urllib.parse import quote

from ansible_collections.sparkstack.inference.plugins.module_utils import _guard_node, _logline
from ansible_collections.sparkstack.inference.plugins.module_utils._cgroup import activity
from ansible_collections.sparkstack.inference.plugins.module_utils._docker_api import DockerAPI, DockerError, demultiplex, unbroken
from ansible_collections.sparkstack.inference.plugins.module_utils._scene import scene
from ansible_collections.sparkstack.inference.plugins.module_utils._timeline import Timeline

# Docker's time before each message: fixed length, nine decimals ("2026-11-29T22:42:04.123456789Z ").
_STAMP = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)) ")
_BATCH = 1 << 20
_TAIL = "20000"
"""Lines that are read of a container's earlier starts."""
_RUNS = 5
_NEVER = "0001-01-01"
_AHEAD = 100000000
"""Nanoseconds: a message can be so much older than the start that Docker tells. It writes that down when the process runs
already: of 25 containers that ended at once, 9 had their only message up to 2.4 ms before it ("[FATAL tini (8)] exec vllm failed:
Exec format error"). What an earlier start wrote is older: before it starts a container again Docker waits for 100 ms or more."""
_FIRST = 60 * 10**9
"""Nanoseconds: a start that follows the container's making so closely is taken for its first, all of whose messages are its own. On
a busy node Docker can be far later than by C(_AHEAD) with writing down that it has started."""


def look(api: DockerAPI, name: str, engine: str, state: t.Mapping[str, t.Any], peers: t.Sequence[str] = (), root: str = "/") -> t.Dict[str, t.Any]:
    """What there is to know of a container now.

    :param state: the C(state) of the last look; an empty one, and that of another container or another start of it, begins anew.
    :param peers: addresses of the other nodes, to be asked whether they answer.
    :param root: where C(/proc) and C(/sys) hang.
    :returns: see M(sparkstack.inference.init_phase_probe).
    :raises DockerError: when the daemon doesn't answer.
    """
    inspection = api.container(name)
    now = time.time()
    if inspection is None:
        around, _kept = scene(None, None, None, {}, peers, root)
        return {"exists": False, "started": False, "running": False, "now": now, "reading": None, "scene": around, "state": {}}
    told = inspection["State"]
    began = str(told.get("StartedAt") or _NEVER)
    since = _since(inspection)
    log = Log(inspection["Id"], began, engine, state, since)
    tty = bool(inspection["Config"].get("Tty"))
    before: t.List[t.Dict[str, t.Any]] = state["before"] if log.same else []
    if not began.startswith(_NEVER):
        log.update(api, tty)
        if inspection.get("RestartCount") and not log.same:
            before = _before(api, inspection, engine, tty, since)
    reading = log.timeline.reading()
    reading["earlier"] = before + reading["earlier"]
    if log.unread:
        reading["last_line"] = log.unread
    start = _logline.moment(began)
    around, kept = scene(inspection, reading, start, state.get("scene", {}) if log.same else {}, peers, root)
    return {
        "exists": True,
        # Docker tells in Error why a container never came up: "exec /bin/vllm: exec format error".
        "started": not began.startswith(_NEVER) or bool(told.get("Error")),
        "running": bool(told.get("Running")) and not told.get("Restarting"),
        "paused": bool(told.get("Paused")),
        "exit_code": told.get("ExitCode") if not told.get("Running") else None,
        "oom_killed": bool(told.get("OOMKilled")),
        "error": _logline.mask(str(told.get("Error") or "")),
        "restarts": inspection.get("RestartCount", 0),
        "started_at": start,
        "finished_at": _finished(told),
        "now": now,
        "reading": reading,
        "activity": activity(told.get("Pid") or 0, root),
        "memory": _guard_node.Rank(inspection["Id"], told.get("Pid") or 0, root).memory()._asdict(),
        "scene": around,
        "state": dict(log.state(), scene=kept, before=before),
    }


def _since(inspection: t.Mapping[str, t.Any]) -> str:
    """From when on a message is of this start of the container, as Docker's C(since) takes it; empty for one that never started."""
    told = inspection["State"]
    began, ended = str(told.get("StartedAt") or _NEVER), str(told.get("FinishedAt") or _NEVER)
    if began.startswith(_NEVER):
        return ""
    start = _nanoseconds(began)
    # While it runs, the end that Docker tells is that of the start before.
    before = 0 if ended.startswith(_NEVER) or _nanoseconds(ended) > start else _nanoseconds(ended)
    made = _nanoseconds(str(inspection["Created"]))
    if not before and not inspection.get("RestartCount") and start - made < _FIRST:
        return _unix(str(inspection["Created"]))
    return "{0:d}.{1:09d}".format(*divmod(max(start - _AHEAD, before), 10**9))


def _before(api: DockerAPI, inspection: t.Mapping[str, t.Any], engine: str, tty: bool, until: str) -> t.List[t.Dict[str, t.Any]]:
    """How the starts ended after which Docker has started the container again; see C(earlier) of C(_timeline)."""
    created = str(inspection["Created"])
    log = Log(inspection["Id"], created, engine, {}, _unix(created))
    log.update(api, tty, {"until": until, "tail": _TAIL})
    reading = log.timeline.reading()
    # One that ended without a word of its engine tells nothing.
    runs = [*reading["earlier"], log.timeline.run()] if reading["last_line"] else []
    return runs[-_RUNS:]


def _finished(told: t.Mapping[str, t.Any]) -> t.Optional[float]:
    return None if told.get("Running") else _logline.moment(told.get("FinishedAt"))


class Log:
    """A container's log, read on from where the last look stopped."""

    def __init__(self, container: str, began: str, engine: str, state: t.Mapping[str, t.Any], since: str) -> None:
        """
        :param began: Docker's time of the start that is read; with the container's id it tells whether C(state) is of the same.
        :param since: from when on messages are read, where none was read before.
        """
        self.container = container
        self.began = began
        self.since = since
        self.same = same = state.get("container") == container and state.get("began") == began and state.get("engine") == engine
        self.engine = engine
        self.stamp: str = state["stamp"] if same else ""
        self.seen: int = state["seen"] if same else 0
        self.whole: bool = state["whole"] if same else True
        self.unread = ""
        self.timeline = Timeline.from_state(state["timeline"]) if same else Timeline(engine, time.gmtime().tm_year)

    def state(self) -> t.Dict[str, t.Any]:
        """All that the next look needs, as plain data."""
        return {
            "container": self.container,
            "began": self.began,
            "engine": self.engine,
            "stamp": self.stamp,
            "seen": self.seen,
            "whole": self.whole,
            "timeline": self.timeline.state(),
        }

    def update(self, api: DockerAPI, tty: bool, limits: t.Optional[t.Mapping[str, str]] = None) -> None:
        """Feed the timeline with what is new since the last look; of an earlier start of the container nothing is read.

        :param limits: what else the daemon is to keep to, C(until) and C(tail) say.
        """
        try:
            self._read_on(api, tty, limits or {})
        except DockerError as error:
            if error.status != 501:
                raise
            # "configured logging driver does not support reading": how the rank ended is known all the same.
            self.unread = "Docker keeps no log of this container: start it without --log-driver, or give the log from where the driver sends it in logs."

    def _read_on(self, api: DockerAPI, tty: bool, limits: t.Mapping[str, str]) -> None:
        query = {"stdout": "1", "stderr": "1", "timestamps": "1", "since": _unix(self.stamp) if self.stamp else self.since, **limits}
        path = "/containers/{0}/logs".format(quote(self.container, safe=""))
        # Docker gives what is as old as C(since) again: so many messages of that very time are known.
        known, last = self.seen, self.stamp
        with unbroken(), api.request("GET", path, query) as response:
            read = io.BufferedReader(t.cast(io.RawIOBase, response), _BATCH).read
            messages = _lines(read) if tty else (payload for _stream, payload in demultiplex(read))
            batch: t.List[bytes] = []
            size = 0
            for message in messages:
                match = _STAMP.match(message)
                stamp = match.group(1).decode() if match else self.stamp
                if stamp == last and known > 0:
                    known -= 1
                    continue
                self.seen = self.seen + 1 if stamp == self.stamp else 1
                self.stamp = stamp
                # A line of more than 16 KiB comes in several messages, each with a time: only the first one's is kept.
                batch.append(message if self.whole or not match else message[match.end() :])
                self.whole = message.endswith(b"\n")
                size += len(message)
                if size >= _BATCH:
                    self.timeline.feed(b"".join(batch))
                    batch, size = [], 0
            self.timeline.feed(b"".join(batch))


def _lines(read: t.Callable[[int], bytes]) -> t.Iterator[bytes]:
    """The lines of a terminal's stream, which has no frames."""
    rest = b""
    while True:
        data = read(65536)
        if not data:
            break
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            yield line + b"\n"
    if rest:
        yield rest


def _nanoseconds(stamp: str) -> int:
    """Docker's time in nanoseconds since the epoch."""
    return int(_unix(stamp).replace(".", ""))


def _unix(stamp: str) -> str:
    """Docker's time as the seconds that its C(since) takes, with all decimals: a float would lose the last ones."""
    fraction = re.search(r"\.(\d+)", stamp)
    whole = _logline.seconds(re.sub(r"\.\d+", "", stamp), 1970) or 0.0
    return "{0:d}.{1:0<9}".format(int(whole), fraction.group(1) if fraction else "0")
