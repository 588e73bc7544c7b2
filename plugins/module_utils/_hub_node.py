# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""A node's part of a model's download: what is there, what the hub has, and the way from the one to the other."""

from __future__ import annotations

import contextlib
import json
import os
import time
import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils import _hub_download as files
from ansible_collections.sparkstack.inference.plugins.module_utils import _hub_program as program
from ansible_collections.sparkstack.inference.plugins.module_utils._hub_words import sentence
from ansible_collections.sparkstack.inference.plugins.module_utils._model import manifest
from ansible_collections.sparkstack.inference.plugins.module_utils._unit_files import write
from ansible_collections.sparkstack.inference.plugins.module_utils._words import size

Data = t.Dict[str, t.Any]

ARGUMENTS: t.Dict[str, t.Dict[str, t.Any]] = {
    "repo": {"type": "str", "required": True},
    "revision": {"type": "str", "default": "main"},
    "path": {"type": "path", "required": True},
    "token": {"type": "str", "no_log": True},
    "endpoint": {"type": "str", "default": ""},
    "include": {"type": "list", "elements": "str", "default": []},
    "exclude": {"type": "list", "elements": "str", "default": []},
    "update": {"type": "bool", "default": False},
    "checksum": {"type": "bool", "default": False},
    "offline": {"type": "bool", "default": False},
    "xet": {"type": "bool", "default": True},
    "workers": {"type": "int", "default": 8},
    "python": {"type": "path"},
    "stall_timeout": {"type": "int", "default": 120},
    "timeout": {"type": "int", "default": 43200},
}


class Failed(Exception):
    """The text is one sentence for the user."""


class Plan(t.NamedTuple):
    """What has to be done."""

    commit: str
    files: t.List[files.Entry]
    missing: t.List[str]
    """The names of those that the folder doesn't have."""
    settled: bool
    """The folder's own record says that it is what is wanted."""


class Download:
    """One folder, one repository."""

    def __init__(self, module: t.Any) -> None:
        """:param module: Ansible's; its parameters are those of M(sparkstack.inference.model_download)."""
        self.module = module
        self.params: t.Mapping[str, t.Any] = module.params
        self.places = files.Places.of(self.params["path"])
        self.asked: Data = {name: self.params[name] for name in ("repo", "revision", "include", "exclude")}
        self.lock = files.Lock(self.places)
        self.began = time.monotonic()

    def run(self) -> Data:
        """:returns: what the module returns. :raises Failed: with a sentence. :raises OSError: where the folder can't be read or written."""
        record = files.known(self.places.record)
        if self.params["offline"]:
            return self._offline(record)
        # Nothing is written, and no hub is asked, where all is as it was.
        plan = self._own(record)
        if plan is not None and not plan.missing:
            if not self.module.check_mode and files.left(self.places, record):
                self._clear(record)
            return self._result(plan, record)
        if self.module.check_mode:
            plan = plan or self._plan(record)
            self._room(plan)
            return dict(self._result(plan, record, loaded=plan.missing), running=self.lock.taken())
        made = not os.path.isdir(self.places.control)
        try:
            self.lock.take(self.params["timeout"])
        except TimeoutError as error:
            raise Failed(f"The download can't begin: {error}. Look for what it waits for, or give it more time.") from error
        try:
            return self._locked()
        finally:
            if made and os.path.isdir(self.places.control) and not os.path.exists(self.places.began):
                # Nothing came of it: leave nothing.
                os.unlink(self.lock.path)
                os.rmdir(self.places.control)
            self.lock.free()

    def _clear(self, record: Data) -> None:
        """Take away what a power cut has left of a finished download, unless another run is at it."""
        with contextlib.suppress(TimeoutError):
            self.lock.take(0)
            try:
                if files.left(self.places, record):
                    files.clear(self.places)
            finally:
                self.lock.free()

    def _locked(self) -> Data:
        # Another run may have done it all while this one waited.
        record = files.known(self.places.record)
        plan = self._own(record) or self._plan(record)
        if plan.settled and not plan.missing:
            files.clear(self.places)
            return self._result(plan, record)
        self._room(plan)
        files.tidy(self.places, plan.files)
        kept = [entry["name"] for entry in plan.files if entry["name"] not in plan.missing]
        known = {**self.asked, "commit": plan.commit}
        write(self.places.began, json.dumps({**known, "files": {entry["name"]: dict(entry) for entry in plan.files}}), 0o644)
        os.makedirs(self.places.tree, exist_ok=True)
        missing = sorted(set(plan.missing) | set(files.link(self.places.final, self.places.tree, kept)))
        left = files.stale(self.places.tree, {}, plan.files, "size")
        todo = [dict(entry) for entry in plan.files if entry["name"] in left]
        told: Data = {"came": 0, "resumed": 0}
        started = time.monotonic()
        if todo:
            told = self._ask(self._request(plan, todo), self.lock.handle)
        spent = time.monotonic() - started
        found = manifest(self.places.tree)
        if not found["complete"]:
            raise Failed(
                f"What {self.params['repo']} has at {plan.commit} is no whole model: {found['problem']} Look at include and exclude, or take another revision."
            )
        new = files.record_of(self.places.tree, known, plan.files)
        extra = files.extra(self.places.final, record, plan.files)
        lost = files.link(self.places.final, self.places.tree, extra)
        if lost:
            # The old folder goes when the new one has its name, and they would go with it.
            raise Failed(
                f"{lost[0]} in {self.params['path']} is not the model's, and this disk can't give it a second name in the new folder:"
                " move it elsewhere and run this again. What has come is kept."
            )
        files.finish(self.places, new)
        return self._result(plan, record, missing, told["came"], spent)

    # What is wanted.

    def _own(self, record: Data) -> t.Optional[Plan]:
        """The plan that the folder's own record makes, without the hub; None where the record is of something else."""
        if not files.settled(record, self.asked, self.params["update"]):
            return None
        entries = files.entries(record)
        return Plan(record["commit"], entries, self._stale(record, entries), True)

    def _plan(self, record: Data) -> Plan:
        """The plan that the hub makes. What was begun is gone on with at its commit."""
        if record and record["repo"] != self.params["repo"]:
            raise Failed(f"{self.params['path']} is of {record['repo']} at {record['commit']}: give {self.params['repo']} another path, or remove it.")
        began = files.known(self.places.began)
        revision = began["commit"] if files.settled(began, self.asked, self.params["update"]) else self.params["revision"]
        told = self._ask({"revision": revision})
        try:
            entries = files.wanted(told["files"], self.params["include"], self.params["exclude"])
        except ValueError as error:
            raise Failed(str(error)) from error
        if not entries:
            raise Failed(f"{self.params['repo']} has no file at {told['commit']} that include and exclude leave over: correct them.")
        known = {**self.asked, "commit": told["commit"]}
        settled = bool(record) and all(record[name] == value for name, value in known.items())
        return Plan(told["commit"], entries, self._stale(record, entries), settled)

    def _stale(self, record: Data, entries: t.List[files.Entry]) -> t.List[str]:
        look = "all" if self.params["checksum"] else "size" if self.module.check_mode and not record else "time"
        return files.stale(self.places.final, record, entries, look)

    def _offline(self, record: Data) -> Data:
        plan = self._own(record)
        if plan is None:
            found = manifest(self.places.final)
            if found["complete"] and not record and not files.COMMIT.fullmatch(self.params["revision"]):
                self.module.warn(f"{self.params['path']} is a whole model, but does not say of which repository and commit it is.")
                return self._result(Plan("", [], [], True), record)
            what = f"is of {record['repo']} at {record['commit']}" if record else "does not say from where it is" if found["exists"] else "is not there"
            raise Failed(f"{self.params['path']} {what}, and offline no hub is asked: bring the model there, or run this once with offline off.")
        if plan.missing:
            names = ", ".join(plan.missing[:3]) + (" and more" if len(plan.missing) > 3 else "")
            raise Failed(f"In {self.params['path']} {names} {'are' if len(plan.missing) > 1 else 'is'} missing or changed, and offline no hub is asked.")
        return self._result(plan, record)

    def _room(self, plan: Plan) -> None:
        there = set(plan.missing) - set(files.stale(self.places.tree, {}, plan.files, "size"))
        needed = sum(entry["size"] for entry in plan.files if entry["name"] in plan.missing and entry["name"] not in there)
        needed = max(0, needed - files.partial(self.places))
        parent = os.path.dirname(self.places.final)
        room = files.free(parent)
        if needed and room < needed + files.SPARE:
            raise Failed(f"The model needs {size(needed)} more in {parent}, where {size(room)} are free: make room there, or give another path.")

    # The program that asks the hub.

    def _request(self, plan: Plan, todo: t.List[Data]) -> Data:
        return {
            "commit": plan.commit,
            "files": todo,
            "parts": self.places.parts,
            "tree": self.places.tree,
            "progress": self.places.progress,
            "workers": self.params["workers"],
            "stall": self.params["stall_timeout"],
            "timeout": max(1.0, self.params["timeout"] - (time.monotonic() - self.began)),
            "xet": self.params["xet"],
        }

    def _ask(self, request: Data, lock: t.Optional[int] = None) -> Data:
        request = {**request, "repo": self.params["repo"], "endpoint": self.params["endpoint"]}
        # No note of whoever has used the hub on this node, and none for whoever does later.
        environment = {
            "HF_HOME": os.path.join(self.module.tmpdir, "hub"),
            "HF_XET_CACHE": os.path.join(self.places.parts if lock is not None else self.module.tmpdir, "xet", "cache"),
            "HF_HUB_DISABLE_XET": "0" if self.params["xet"] else "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_OFFLINE": "0",
        }
        if self.params["token"]:
            environment["HF_TOKEN"] = self.params["token"]
        loader: t.Any = program.__loader__
        command = [self.params["python"], "-c", str(loader.get_source(program.__name__))]
        try:
            code, out, err = self.module.run_command(
                command,
                data=json.dumps(request),
                environ_update=environment,
                pass_fds=[lock] if lock is not None else [],
                expand_user_and_vars=False,
                handle_exceptions=False,
            )
        except OSError as error:
            raise Failed(f"{self.params['python']} does not run here ({error.strerror}): give a Python that has huggingface_hub.") from error
        found = out.rpartition(program.MARK)[2] if program.MARK in out else ""
        if not found:
            last = program.said(RuntimeError((err.strip().splitlines() or ["it said nothing"])[-1]))
            raise Failed(sentence("other", f"{self.params['python']} ended with exit code {code} and {last!r}", self.params))
        answer: Data = json.loads(found)
        if "error" in answer:
            raise Failed(sentence(answer["error"], answer["detail"], self.params))
        return answer

    def _result(self, plan: Plan, record: Data, loaded: t.Sequence[str] = (), came: int = 0, spent: float = 0.0) -> Data:
        sizes = {entry["name"]: entry["size"] for entry in plan.files}
        changed = bool(loaded) or not plan.settled
        bytes_loaded = sum(sizes[name] for name in loaded)
        state = "{} at {}, {} files, {} bytes\n"
        before = state.format(record["repo"], record["commit"], len(record["files"]), sum(told["size"] for told in record["files"].values())) if record else ""
        after = state.format(self.params["repo"], plan.commit, len(sizes), sum(sizes.values()))
        return {
            "changed": changed,
            "repo": self.params["repo"],
            "revision": self.params["revision"],
            "commit": plan.commit or None,
            "path": self.params["path"],
            "bytes_total": sum(sizes.values()),
            "bytes_loaded": bytes_loaded,
            "bytes_resumed": 0 if self.module.check_mode else max(0, bytes_loaded - came),
            "files_loaded": list(loaded),
            "extra": files.extra(self.places.final, record, plan.files),
            "seconds": round(time.monotonic() - self.began, 3),
            "throughput_mb_s": round(came / spent / 1e6, 1) if spent > 0 else 0.0,
            "diff": {"before": before if changed else after, "after": after, "before_header": self.params["path"], "after_header": self.params["path"]},
        }
