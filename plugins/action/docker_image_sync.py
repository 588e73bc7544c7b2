# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The controller's half of docker_image_sync: the nodes see each other on the board, and each does its part."""

from __future__ import annotations

import hashlib
import os
import secrets
import time
import typing as t

from ansible.errors import AnsibleConnectionFailure, AnsibleError
from ansible.plugins.action import ActionBase

from ansible_collections.sparkstack.inference.plugins.module_utils._image_identity import name_problem
from ansible_collections.sparkstack.inference.plugins.module_utils._words import clock
from ansible_collections.sparkstack.inference.plugins.plugin_utils._board import Board, forks
from ansible_collections.sparkstack.inference.plugins.plugin_utils._image_sync import (
    Decision,
    View,
    amount,
    decide,
    difference,
    rate,
    task_problem,
)
from ansible_collections.sparkstack.inference.plugins.plugin_utils._staging_progress import Meter

ARGUMENTS: dict[str, dict[str, t.Any]] = {
    "image": {"type": "str", "required": True},
    "source": {"type": "str", "required": True},
    "address": {"type": "str", "required": True},
    "source_address": {"type": "str"},
    "port": {"type": "int", "default": 0},
    "docker_host": {"type": "str", "aliases": ["docker_socket"], "default": "unix:///var/run/docker.sock"},
    "members": {"type": "list", "elements": "str"},
    "progress": {"type": "int", "default": 5},
    "join_timeout": {"type": "int", "default": 60},
    "connect_timeout": {"type": "int", "default": 30},
    "stall_timeout": {"type": "int", "default": 60},
    "timeout": {"type": "int", "default": 3600},
}
_LOOK = 10.0
"""Seconds after which a node is looked at again at the latest."""
_AWAY = 20.0
"""Seconds for which a node may be out of ssh's reach while its copy goes on."""
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
        self.image: str = self.args["image"]
        self.source: str = self.args["source"]
        self.host: str = self.task_vars["inventory_hostname"]
        # After a rescue Ansible counts hosts that only ended with another one as no part of the play, though they run the task.
        hosts: list[str] = list(self.args["members"] or self.task_vars["ansible_play_batch"])
        problem = name_problem(self.image) or task_problem(
            hosts,
            self.source,
            self.host,
            forks(),
            int(self._task.throttle or 0),
            bool(self._task.run_once),
        )
        if problem:
            return {"failed": True, "changed": False, "msg": problem}
        self.board = Board.of_task(self._task._uuid, self.host, hosts)
        # A loop runs the same task for several images: each has its own words on the board.
        self.key = hashlib.sha256(f"{self.source} {self.image}".encode()).hexdigest()[:16]
        try:
            return self._sync(hosts)
        except _Failed as error:
            return {"failed": True, "changed": False, "msg": error.message}
        except TimeoutError as error:
            hint = "all nodes of the play must run this task at the same time, so no `when`, `throttle` or `until` on it"
            return {"failed": True, "changed": False, "msg": f"Image {self.image}: {error}; {hint}."}

    def _sync(self, hosts: list[str]) -> dict[str, t.Any]:
        self.hosts = hosts
        self.deadline = time.monotonic() + self.args["timeout"]
        views = self._meet("view")
        waited = self._see_to_its_end(views)
        if waited is not None:
            views = self._meet("again")
        view, wanted = views[self.host], views[self.source]
        decision = decide(self.image, self.source, wanted, self.host, view)
        if decision.kind == "refuse":
            raise _Failed(decision.text)
        result = self._result(view, wanted, waited)
        if decision.kind == "none":
            if self.host == self.source:
                self._serve(views, result)
            return result
        result["changed"] = True
        result["actions"].append(decision.text)
        result["diff"] = difference(self.image, view, wanted["identity"])
        if self._task.check_mode:
            result["verified"] = False
            self._say(f"would {decision.text}")
            return result
        self._say(decision.text)
        done = self._tag(decision) if decision.kind == "tag" else self._fetch(decision, wanted)
        return self._verify(result, done, wanted)

    def _meet(self, topic: str) -> dict[str, View]:
        """Inspect the image on this node, tell the others, and hear what they have. A node that fails says why, so that nobody waits for it."""
        view: dict[str, t.Any] = {"failed": "its task ended before it could look"}
        try:
            found = self._node(operation="inspect")
            view = {"failed": found["msg"]} if found.get("failed") else {**found, "address": self.args["address"]}
        except Exception as error:
            # An unreachable node, say.
            view = {"failed": str(error)}
            raise
        finally:
            self.board.write(f"{self.key}.{topic}", view)
        if "failed" in view:
            raise _Failed(view["failed"])
        return self.board.wait(f"{self.key}.{topic}", self.hosts, self.args["join_timeout"])

    def _see_to_its_end(self, views: t.Mapping[str, View]) -> str | None:
        """A copy of this image that runs already, begun by another run, is watched to its end; :returns: what to tell of it, or None."""
        copies = {host: view.get("running") or {} for host, view in views.items()}
        busy = [host for host in self.hosts if copies[host].get("state", "done") not in _FINAL and not copies[host]["source"]]
        if not busy or self._task.check_mode:
            return None
        own, text = copies[self.host], ""
        if self.host in busy:
            text = f"waited for a copy that ran already, since {clock(own['began'])}"
            self._say(f"a copy of {self.image} runs since {clock(own['began'])}: this run sees it to its end")
        try:
            if own.get("state", "done") not in _FINAL:
                # What came of it is seen in the image itself.
                self._follow(own)
        finally:
            self.board.write(f"{self.key}.attached", {})
        self.board.wait(f"{self.key}.attached", self.hosts, self.args["timeout"])
        return text

    def _follow(self, status: dict[str, t.Any] | None, about: int = 0) -> dict[str, t.Any] | None:
        """Look at what runs on this node until its end; :returns: its last status, or None when it is gone.

        :param about: bytes that will come, where the node can't know: C(docker save) doesn't say.
        """
        meters, away = {"running": Meter(), "loading": Meter()}, 0.0
        while status is not None and status["state"] not in _FINAL:
            if os.getppid() != self.controller:
                # A fork goes on when Ansible itself was killed. What runs on the nodes ends by itself.
                raise _Failed("Ansible is gone: run this again.")
            if time.monotonic() > self.deadline + _LOOK:
                raise _Failed(f"The copy of {self.image} is not done within {self.args['timeout']} s: run this again.")
            if self.args["progress"] and not status["source"]:
                total = status["total"] or (max(about, status["there"]) if status["state"] == "running" else 0)
                self._tell({**status, "total": total}, meters[status["state"]])
            try:
                found = self._node(operation="watch", known=status["state"], seconds=self._pause())
            except AnsibleConnectionFailure:
                # The copy does not go this way: it goes on.
                away = away or time.monotonic()
                if time.monotonic() - away > _AWAY:
                    raise
                continue
            if found.get("failed"):
                raise _Failed(found["msg"])
            status, away = found["status"], 0.0
        return status

    def _pause(self) -> float:
        return float(min(self.args["progress"] or _LOOK, _LOOK))

    def _tell(self, status: t.Mapping[str, t.Any], meter: Meter) -> None:
        """How far a receiver is."""
        line = meter.line(status) if status["total"] else ""
        if status["state"] == "loading":
            self._say(f"image {self.image}: all has come, Docker unpacks it{': ' + line if line else ''}")
        elif line:
            self._say(f"image {self.image}: {line}")

    def _part(self, about: int = 0, **arguments: t.Any) -> dict[str, t.Any]:
        """Have this node do its part, to its end; :returns: what came of it, with C(seconds), or with C(failed) and C(msg)."""
        found = self._node(seconds=self._pause(), **arguments)
        if found.get("failed"):
            return found
        status = self._follow(found["status"], about)
        if status is None:
            return {"failed": True, "msg": "what moved it there is gone, as after a restart or a kill: run this again."}
        if status["problem"]:
            return {"failed": True, "msg": status["problem"]}
        return {**status["result"], "seconds": status["seconds"]}

    def _serve(self, views: t.Mapping[str, View], result: dict[str, t.Any]) -> None:
        """The source's part: offer the image to all that need it, until each has it."""
        if self._task.check_mode:
            return
        offer: dict[str, t.Any] = {"failed": f"{self.source} failed before it could offer the image"}
        try:
            here = views[self.source]
            decisions = {host: decide(self.image, self.source, here, host, views[host]) for host in self.hosts}
            peers = {views[host]["address"]: host for host in self.hosts if decisions[host].kind == "fetch"}
            if not peers:
                offer = {}
                return
            address = self.args["source_address"] or self.args["address"]
            port = self.args["port"] or here["free_port"]
            if not port:
                raise _Failed(f"{address} is not an address of {self.source}: give its own address on the fabric.")
            # Made for this task alone. It goes to the nodes among the module's arguments, never in a command line.
            token = secrets.token_hex(32)
            offer = {"address": address, "port": port, "token": token}
            self.board.write(f"{self.key}.offer", offer)
            served = self._part(operation="serve", address=address, port=port, token=token, peers=list(peers))
            if served.get("failed"):
                raise _Failed(served["msg"])
            for reason in dict.fromkeys(served["saved"]):
                self._say(f"image {self.image}: all of it was read by `docker save`: {reason}")
            # The token is of no use any more, so that it need not lie about.
            offer = {"failed": "it has served all others already"}
        except Exception as error:
            offer = {"failed": getattr(error, "message", None) or str(error)}
            self.board.write(f"{self.key}.trouble", offer)
            raise
        finally:
            self.board.write(f"{self.key}.offer", offer)
        result.update(self._figures(served))

    def _fetch(self, decision: Decision, wanted: View) -> dict[str, t.Any]:
        """A receiver's part: wait for the source's offer, fetch, and load."""
        offer = self.board.wait(f"{self.key}.offer", [self.source], 2 * self.args["join_timeout"])[self.source]
        done: dict[str, t.Any] = {}
        if "failed" not in offer:
            done = self._part(
                decision.bytes,
                operation="fetch",
                source_address=offer["address"],
                port=offer["port"],
                token=offer["token"],
                layers=wanted["identity"]["layers"],
                common=decision.common,
            )
            if not done.get("failed"):
                return done
            # The source's own reason is the better one, when it has one.
            offer = self.board.read(f"{self.key}.trouble").get(self.source, {})
        if "failed" in offer:
            raise _Failed(f"{self.source} could not serve image {self.image}: {offer['failed']}")
        raise _Failed(f"Image {self.image} did not come from {self.source} to {self.host}: {done['msg']}")

    def _tag(self, decision: Decision) -> dict[str, t.Any]:
        done = self._node(operation="tag", known_id=decision.known_id)
        if done.get("failed"):
            raise _Failed(f"Image {self.image} can't be tagged on {self.host}: {done['msg']}")
        return done

    def _verify(self, result: dict[str, t.Any], done: dict[str, t.Any], wanted: View) -> dict[str, t.Any]:
        """Compare what is on the node now with what is on the source."""
        result.update(self._figures(done))
        found = done.get("identity") or {}
        result["verified"] = found.get("digest") == wanted["identity"]["digest"]
        if not result["verified"]:
            result["failed"] = True
            result["msg"] = (
                f"Image {self.image} on {self.host} is not what {self.source} has, though it loaded without an error"
                f" (content {found.get('digest')} instead of {wanted['identity']['digest']}): remove it there with"
                f" `docker image rm {self.image}` and run this again."
            )
            return result
        result["image"]["id"] = done["id"]
        if done.get("whole"):
            result["actions"].append("fetch all layers, as this Docker could not use the ones it has")
        sent = result["bytes_sent"]
        seconds = max(result["seconds"], 0.001)
        figures = f"{amount(sent)} in {seconds:.1f} s ({amount(sent / seconds)}/s)" if sent else "tagged"
        self._say(f"image {self.image}: {figures}, verified")
        return result

    def _result(self, view: View, wanted: View, waited: str | None) -> dict[str, t.Any]:
        identity = wanted["identity"]
        image = {key: identity[key] for key in ("digest", "architecture", "os", "layers")}
        image.update(name=self.image, id=view.get("id"))
        return {
            "changed": False,
            "actions": [waited] if waited else [],
            "bytes_total": wanted["size"],
            "bytes_sent": 0,
            "seconds": 0.0,
            "throughput_mb_s": 0.0,
            "verified": True,
            "image": image,
        }

    @staticmethod
    def _figures(done: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
        sent, seconds = int(done.get("bytes", 0)), float(done.get("seconds", 0.0))
        return {"bytes_sent": sent, "seconds": seconds, "throughput_mb_s": rate(sent, seconds)}

    def _node(self, **arguments: t.Any) -> dict[str, t.Any]:
        """Run this node's half; failures come back in the result."""
        common = ("image", "address", "docker_host", "connect_timeout", "stall_timeout", "timeout")
        result: dict[str, t.Any] = self._execute_module(
            module_name="sparkstack.inference.docker_image_transfer",
            module_args={**{key: self.args[key] for key in common}, **arguments},
            task_vars=self.task_vars,
        )
        result.pop("invocation", None)
        if not result.get("failed"):
            # From ansible-core 2.21 on it is always there, and on the board "failed" is the word of one that has.
            result.pop("failed", None)
        elif not result.get("msg"):
            result["msg"] = str(result.get("module_stderr") or result.get("exception") or "the module gave no reason")
        return result

    def _say(self, text: str) -> None:
        self._display.display(f"[{self.host}] {text}")
