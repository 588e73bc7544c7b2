# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The controller's half of model_sync: the nodes see each other on the board, and each does its part of the chain."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import time
import typing as t

from ansible.errors import AnsibleConnectionFailure, AnsibleError
from ansible.plugins.action import ActionBase

from ansible_collections.sparkstack.inference.plugins.module_utils._staging_counter import canonical
from ansible_collections.sparkstack.inference.plugins.module_utils._words import clock
from ansible_collections.sparkstack.inference.plugins.plugin_utils import _certificate
from ansible_collections.sparkstack.inference.plugins.plugin_utils import _staging as plan
from ansible_collections.sparkstack.inference.plugins.plugin_utils import _staging_result as told
from ansible_collections.sparkstack.inference.plugins.plugin_utils._board import Board, forks
from ansible_collections.sparkstack.inference.plugins.plugin_utils._staging_progress import Meter, of

ARGUMENTS: dict[str, dict[str, t.Any]] = {
    "path": {"type": "str", "required": True},
    "dest": {"type": "str"},
    "source": {"type": "str", "required": True},
    "addresses": {"type": "list", "elements": "str", "required": True, "aliases": ["address"]},
    "port": {"type": "int", "default": 0},
    "streams": {"type": "int", "default": 8},
    "checksum": {"type": "bool", "default": False},
    "digest": {"type": "str", "choices": ["auto", "gmac", "sha256"], "default": "auto"},
    "delete_extra": {"type": "bool", "default": False},
    "tls": {"type": "bool", "default": False},
    "transport": {"type": "str", "choices": ["fabric", "rsync"], "default": "fabric"},
    "rsync_options": {"type": "list", "elements": "str", "default": []},
    "members": {"type": "list", "elements": "str"},
    "progress": {"type": "int", "default": 5},
    "join_timeout": {"type": "int", "default": 60},
    "connect_timeout": {"type": "int", "default": 30},
    "stall_timeout": {"type": "int", "default": 60},
    "timeout": {"type": "int", "default": 14400},
}
NODE = "sparkstack.inference.model_sync_node"
_LOOK = 10.0
"""Seconds after which a node is looked at again at the latest: its agent lives half a minute without."""
_AWAY = 20.0
"""Seconds for which a node may be out of ssh's reach while its copy goes on."""
_AGAIN = 1.0
"""Seconds between two tries to reach it: where ssh is refused at once, nothing else would slow them down."""
_FINAL = ("done", "failed")


class _Failed(AnsibleError):
    """This node's part failed; the text is a sentence for the user."""


class ActionModule(ActionBase):
    """One node's part, in its own process beside those of the other nodes."""

    _supports_check_mode = True
    _supports_async = False
    _requires_connection = True

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        super().run(tmp, task_vars)
        return self._run(task_vars or {})

    def _run(self, task_vars: dict[str, t.Any]) -> dict[str, t.Any]:
        self.task_vars = task_vars
        self.controller = os.getppid()
        _validated, self.args = self.validate_argument_spec(argument_spec=ARGUMENTS)
        self.source: str = self.args["source"]
        self.host: str = task_vars["inventory_hostname"]
        self.is_source = self.host == self.source
        self.model: str = self.args["path"]
        self.path: str = self.model if self.is_source else self.args["dest"] or self.model
        self.hosts: list[str] = list(self.args["members"] or task_vars["ansible_play_batch"])
        problem = plan.task_problem(self.hosts, self.source, forks(), int(self._task.throttle or 0), bool(self._task.run_once))
        problem = problem or plan.address_problem(self.host, self.args["addresses"])
        if problem:
            return {"failed": True, "changed": False, "msg": problem}
        # Who calls is known by the kernel's way to write an address.
        self.args["addresses"] = [canonical(address) for address in self.args["addresses"]]
        self.board = Board.of_task(self._task._uuid, self.host, self.hosts)
        # A loop runs the same task for several models: each has its own words on the board.
        self.key = hashlib.sha256(f"{self.source} {self.model}".encode()).hexdigest()[:16]
        self.deadline = time.monotonic() + self.args["timeout"]
        try:
            return self._sync()
        except _Failed as error:
            return {"failed": True, "changed": False, "msg": error.message}
        except TimeoutError as error:
            hint = "all nodes of the play must run this task at the same time, so no `when`, `throttle` or `until` on it"
            return {"failed": True, "changed": False, "msg": f"Model {self.model}: {error}; {hint}."}

    def _sync(self) -> dict[str, t.Any]:
        views = self._meet("view", self._look)
        waited = self._see_to_its_end(views)
        if waited is not None:
            views = self._meet("again", self._look)
        decisions = {host: self._decide(views, host) for host in self.hosts}
        mine = decisions[self.host]
        if mine.kind == "refuse":
            raise _Failed(mine.text)
        result = told.begin(self.path, views[self.source], views[self.host], mine, waited)
        chain = plan.order(self.hosts, self.source, decisions)
        if mine.kind == "copy":
            self._say(("would " if self._task.check_mode else "") + mine.text)
        # What differs in content only is compared in check mode too, over the fabric.
        if len(chain) > 1 and self.host in chain and (self.args["checksum"] or not self._task.check_mode):
            status = self._copy(chain, views, decisions)
            told.account(result, status, self.is_source, self._task.check_mode)
        elif mine.kind == "copy":
            result["changed"] = True
        if self._task.check_mode:
            return told.predict(result, mine, self.is_source)
        return self._settle(result, views, mine, len(chain) > 1)

    def _decide(self, views: t.Mapping[str, plan.View], host: str) -> plan.Decision:
        return plan.decide(self.model, self.source, views, host, self.args["checksum"], self.args["delete_extra"])

    def _look(self) -> dict[str, t.Any]:
        view: dict[str, t.Any] = self._node(operation="look", source=self.is_source, addresses=self.args["addresses"])["view"]
        return view

    def _meet(self, topic: str, look: t.Callable[[], dict[str, t.Any]]) -> dict[str, plan.View]:
        """Say what this node has, and hear what all others have. A node that fails says why, so that nobody waits for it."""
        word: dict[str, t.Any] = {"failed": "its task ended before it could look"}
        try:
            word = look()
        except _Failed as error:
            word = {"failed": error.message}
        except Exception as error:
            word = {"failed": str(error)}
            raise
        finally:
            self.board.write(f"{self.key}.{topic}", word)
        return self.board.wait(f"{self.key}.{topic}", self.hosts, self.args["join_timeout"])

    def _see_to_its_end(self, views: t.Mapping[str, plan.View]) -> str | None:
        """A copy of this model that runs already, begun by another run, is watched to its end; :returns: what to tell of it, or None."""
        copies = {host: (view.get("running") or {}) for host, view in views.items()}
        busy = [host for host in self.hosts if copies[host].get("state") == "running" and not copies[host]["source"]]
        if not busy or self._task.check_mode:
            return None
        own = copies[self.host]
        text = None
        if self.host in busy:
            text = f"waited for a copy that ran already, since {clock(own['began'])}"
            self._say(f"a copy of {self.model} runs since {clock(own['began'])}, {of(own['there'], own['total'])} are there: this run sees it to its end")
        try:
            if own.get("state"):
                with contextlib.suppress(_Failed):
                    self._follow("attached", busy)
        finally:
            self.board.write(f"{self.key}.attached", {})
        self.board.wait(f"{self.key}.attached", self.hosts, self.args["timeout"])
        with contextlib.suppress(_Failed):
            # Another run's receivers may still fetch from here; then it goes on.
            self._node(operation="end")
        return text or ""

    def _copy(self, chain: list[str], views: t.Mapping[str, plan.View], decisions: t.Mapping[str, plan.Decision]) -> dict[str, t.Any]:
        """This node's part, from its start to the end of all others'; :returns: its last status."""
        if self.args["transport"] == "rsync" and not self._task.check_mode:
            return self._rsync(chain, views, decisions)
        started, last = False, None
        try:
            word = self._start(chain, views, decisions)
            started = True
            self.board.write(f"{self.key}.offer", word)
            offers = self.board.wait(f"{self.key}.offer", chain, 2 * self.args["join_timeout"])
            status = self._follow("end", chain[1:], [] if self.is_source else self._providers(chain, views, offers))
        except BaseException as error:
            why = getattr(error, "message", None) or str(error) or type(error).__name__
            for topic in ("offer", "end"):
                if self.host not in self.board.read(f"{self.key}.{topic}"):
                    self.board.write(f"{self.key}.{topic}", {"failed": why})
            if self.is_source:
                self.board.write(f"{self.key}.token", {"failed": why})
            raise
        finally:
            if started:
                # Of a node that can't be reached it ends by itself.
                with contextlib.suppress(Exception):
                    last = self._node(operation="end", force=True)["status"]
        if self.is_source:
            # It is of no use any more, so that it need not lie about.
            self.board.write(f"{self.key}.token", {"failed": "its copy has ended"})
        # What it gave to others, it gave after its own end.
        status = {**status, "sent": last["sent"], "cpu_seconds": last["cpu_seconds"]} if last else status
        if status["problem"]:
            raise _Failed(f"The model {self.model} did not come from {self.source} to {self.host}: {self._reason(status['problem'])}")
        return status

    def _reason(self, problem: str) -> str:
        """The source's own word is the better one, when it has one."""
        word = self.board.read(f"{self.key}.end").get(self.source, {})
        return str(word.get("failed") or problem)

    def _start(self, chain: list[str], views: t.Mapping[str, plan.View], decisions: t.Mapping[str, plan.Decision]) -> dict[str, t.Any]:
        """Start this node's agent; :returns: what the others need to know of it."""
        if self.is_source:
            # Made for this task alone. It goes to the nodes among the module's arguments, never in a command line.
            self.board.write(f"{self.key}.token", {"token": secrets.token_hex(32)})
        word = self.board.wait(f"{self.key}.token", [self.source], self.args["join_timeout"])[self.source]
        if "failed" in word:
            raise _Failed(f"{self.source} could not serve the model {self.model}: {word['failed']}")
        mine = decisions[self.host]
        files = plan.listing([name for host in chain for name in [*decisions[host].fetch, *decisions[host].compare]], views[self.source])
        wanted = {*mine.fetch, *mine.compare}
        try:
            certificate = _certificate.make(self.host) if self.args["tls"] else _certificate.Certificate("", "", "")
        except ValueError as error:
            raise _Failed(str(error)) from None
        found = self._node(
            operation="start",
            source=self.is_source,
            files=[{**entry, "mine": entry["name"] in wanted, "compare": entry["name"] in mine.compare} for entry in files],
            sum=plan.common_sum(views, chain, self.args["digest"]),
            token=word["token"],
            certificate=certificate.certificate,
            private_key=certificate.key,
            addresses=self.args["addresses"],
            port=self.args["port"],
            callers=plan.callers(chain, self.host, views),
            streams=self.args["streams"],
            dry=self._task.check_mode,
            reread=self.args["checksum"],
            connect_timeout=self.args["connect_timeout"],
            stall_timeout=self.args["stall_timeout"],
        )
        return {"ports": found["ports"], "pin": certificate.pin}

    def _providers(self, chain: list[str], views: t.Mapping[str, plan.View], offers: t.Mapping[str, t.Any]) -> list[dict[str, t.Any]]:
        """Who gives to this node, nearest first."""
        if "failed" in offers[self.source]:
            raise _Failed(f"{self.source} could not serve the model {self.model}: {offers[self.source]['failed']}")
        providers = []
        for host in reversed(chain[: chain.index(self.host)]):
            if "failed" in offers[host]:
                continue
            ways = plan.lanes(views[self.host]["rails"], views[host]["rails"], offers[host]["ports"])
            if ways:
                providers.append({"host": host, "lanes": ways, "pin": offers[host]["pin"]})
        return providers

    def _follow(self, topic: str, others: t.Sequence[str], providers: t.Sequence[t.Mapping[str, t.Any]] = ()) -> dict[str, t.Any]:
        """Look at the own agent until it and all others are at their end; :returns: its last status.

        :param topic: where each says so. :param providers: what a receiver that waits for it needs to begin.
        """
        meter, away, known, trouble = Meter(), 0.0, "waiting" if providers else None, None
        pause = min(self.args["progress"] or _LOOK, _LOOK)
        while True:
            try:
                status: dict[str, t.Any] = self._node(
                    operation="watch", providers=list(providers), seconds=pause if known in ("waiting", "running") else 0, known=known
                )["status"]
                away = 0.0
            except AnsibleConnectionFailure:
                # The copy does not go this way: it goes on.
                away = away or time.monotonic()
                if time.monotonic() - away > _AWAY:
                    raise
                time.sleep(_AGAIN)
                continue
            providers, known = (), status["state"]
            if status.get("trouble") and status["trouble"] != trouble:
                trouble = status["trouble"]
                self._say(str(trouble))
            if known == "running" and self.args["progress"]:
                self._say(f"model {self.model}: {meter.line(status)}")
            if known in _FINAL and self.host not in self.board.read(f"{self.key}.{topic}"):
                self.board.write(f"{self.key}.{topic}", {"failed": status["problem"]} if status["problem"] else {})
            if known != "running":
                with contextlib.suppress(TimeoutError):
                    self.board.wait(f"{self.key}.{topic}", others, _LOOK)
                    return status
            if os.getppid() != self.controller:
                # A fork goes on when Ansible itself was killed; nobody would hear what comes of it.
                raise _Failed(f"Ansible is gone: run this again, what has arrived of {self.model} is not sent twice.")
            if time.monotonic() > self.deadline:
                raise _Failed(f"The copy of {self.model} is not done within {self.args['timeout']} s: run this again, what has arrived is not sent twice.")

    def _rsync(self, chain: list[str], views: t.Mapping[str, plan.View], decisions: t.Mapping[str, plan.Decision]) -> dict[str, t.Any]:
        """Each receiver fetches by itself, all at the same time."""
        begun = time.monotonic()
        status: dict[str, t.Any] = {"problem": None, "moved": [], "touched": [], "received": 0, "sent": 0, "cpu_seconds": None}
        if self.is_source:
            self.board.wait(f"{self.key}.end", chain[1:], self.args["timeout"])
            return {**status, "seconds": time.monotonic() - begun}
        word = {"failed": "its task ended before rsync did"}
        try:
            mine = decisions[self.host]
            files = plan.listing([*mine.fetch, *mine.compare], views[self.source])
            found = self._node(
                operation="rsync",
                files=files,
                reread=self.args["checksum"],
                source_address=views[self.source]["rails"][0]["address"],
                source_path=self.model,
                rsync_options=self.args["rsync_options"],
            )
            word = {}
        finally:
            self.board.write(f"{self.key}.end", word)
        return {**status, "moved": found["moved"], "touched": found["touched"], "received": found["received"], "seconds": time.monotonic() - begun}

    def _settle(self, result: dict[str, t.Any], views: t.Mapping[str, plan.View], mine: plan.Decision, copied: bool) -> dict[str, t.Any]:
        """Tidy up, and compare what is there now with what the source had, and the source with itself."""
        if not copied and not mine.delete:
            return result
        drop = list(views[self.source]["files"]) if self.is_source and self.args["transport"] == "rsync" else []
        found = self._node(operation="settle", source=self.is_source, addresses=self.args["addresses"], delete=list(mine.delete), drop=drop)
        after, before = found["view"], views[self.source]
        if self.is_source:
            changed = plan.changed_since(before, after)
            if changed:
                raise _Failed(f"{plan.some(changed)} in {self.model} changed on {self.source} while it was copied: run this again when nothing writes there.")
            return result
        wrong = plan.unlike(before, after)
        result["deleted"] = found["deleted"]
        result["changed"] = result["changed"] or bool(found["deleted"])
        if wrong:
            raise _Failed(f"{plan.some(wrong)} in {self.path} on {self.host} changed right after it was copied: run this again when nothing writes there.")
        told.forget(result, mine)
        if result["moved"]:
            self._say(f"model {self.model}: {told.came(result)}")
        return result

    def _node(self, **arguments: t.Any) -> dict[str, t.Any]:
        """Run this node's half. :raises _Failed: with its sentence."""
        result: dict[str, t.Any] = self._execute_module(module_name=NODE, module_args={"path": self.path, **arguments}, task_vars=self.task_vars)
        if result.get("failed"):
            raise _Failed(str(result.get("msg") or result.get("module_stderr") or result.get("exception") or "the module gave no reason"))
        # From ansible-core 2.21 on it is always there, and on the board "failed" is the word of one that has.
        result.pop("failed", None)
        return result

    def _say(self, text: str) -> None:
        self._display.display(f"[{self.host}] {text}")
