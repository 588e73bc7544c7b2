# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The controller's half of docker_image_sync: the nodes see each other on the board, and each does its part."""

from __future__ import annotations

import hashlib
import secrets
import typing as t

from ansible.errors import AnsibleError
from ansible.plugins.action import ActionBase

from ansible_collections.sparkstack.inference.plugins.module_utils._image_identity import name_problem
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

ARGUMENTS: dict[str, dict[str, t.Any]] = {
    "image": {"type": "str", "required": True},
    "source": {"type": "str", "required": True},
    "address": {"type": "str", "required": True},
    "source_address": {"type": "str"},
    "port": {"type": "int", "default": 0},
    "docker_host": {"type": "str", "aliases": ["docker_socket"], "default": "unix:///var/run/docker.sock"},
    "members": {"type": "list", "elements": "str"},
    "join_timeout": {"type": "int", "default": 60},
    "connect_timeout": {"type": "int", "default": 30},
    "stall_timeout": {"type": "int", "default": 60},
    "timeout": {"type": "int", "default": 3600},
}


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
        view = self._look()
        if "failed" in view:
            raise _Failed(view["failed"])
        views = self.board.wait(f"{self.key}.view", {self.source, self.host}, self.args["join_timeout"])
        decision = decide(self.image, self.source, views[self.source], self.host, view)
        if decision.kind == "refuse":
            raise _Failed(decision.text)
        wanted = views[self.source]
        result = self._result(wanted)
        if decision.kind == "none":
            if self.host == self.source:
                self._serve(hosts, result)
            return result
        result["changed"] = True
        result["actions"] = [decision.text]
        result["diff"] = difference(self.image, view, wanted["identity"])
        if self._task.check_mode:
            result["verified"] = False
            self._say(f"would {decision.text}")
            return result
        self._say(decision.text)
        done = self._tag(decision) if decision.kind == "tag" else self._fetch(decision, wanted)
        return self._verify(result, done, wanted)

    def _look(self) -> View:
        """Inspect the image on this node and tell the others."""
        view: dict[str, t.Any] = {"failed": "its task ended before it could look"}
        try:
            found = self._node(operation="inspect")
            view = {"failed": found["msg"]} if found.get("failed") else {**found, "address": self.args["address"]}
        except Exception as error:
            # An unreachable node, say: the others must not wait for it.
            view = {"failed": str(error)}
            raise
        finally:
            self.board.write(f"{self.key}.view", view)
        return view

    def _serve(self, hosts: list[str], result: dict[str, t.Any]) -> None:
        """The source's part: offer the image to all that need it, until each has it."""
        if self._task.check_mode:
            return
        offer: dict[str, t.Any] = {"failed": f"{self.source} failed before it could offer the image"}
        try:
            views = self.board.wait(f"{self.key}.view", hosts, self.args["join_timeout"])
            here = views[self.source]
            decisions = {host: decide(self.image, self.source, here, host, views[host]) for host in hosts}
            peers = {views[host]["address"]: host for host in hosts if decisions[host].kind == "fetch"}
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
            served = self._node(operation="serve", address=address, port=port, token=token, peers=list(peers))
            if served.get("failed"):
                raise _Failed(served["msg"])
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
            done = self._node(
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

    def _result(self, wanted: View) -> dict[str, t.Any]:
        identity = wanted["identity"]
        image = {key: identity[key] for key in ("digest", "architecture", "os", "layers")}
        image.update(name=self.image, id=self.board.read(f"{self.key}.view")[self.host].get("id"))
        return {
            "changed": False,
            "actions": [],
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
        if result.get("failed") and not result.get("msg"):
            result["msg"] = str(result.get("module_stderr") or result.get("exception") or "the module gave no reason")
        return result

    def _say(self, text: str) -> None:
        self._display.display(f"[{self.host}] {text}")
