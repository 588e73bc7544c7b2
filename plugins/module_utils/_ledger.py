# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""The node's ledger: of each deployment who works on it now, its last launches, and the last one that answered.

A deployment's folder holds C(lock.json) (at the head), C(launches/ID.json), C(good.json), C(previous.json) (what answered before that and was something
else), and C(changed.json), which tells when a run
last gave the lock back. Each file is written beside its place and renamed; who changes one holds a lock on the folder meanwhile.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import time
import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils._words import clock

FOLDER = "var/lib/sparkstack/deployments"
"""Under the root; owned by root, mode 0700."""
ANYBODY = "*"
"""In place of a run: the lock is taken over from whoever holds it."""

Data = t.Dict[str, t.Any]

# A container's name less "-rank0", or a launch's id: "20261130T080012Z-1a2b3c". Labels can be written by anybody.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_MOST_BYTES = 512 * 1024
_HALF = ".new"
"""Ends the name of a file that is being written."""
_BRIEF = ("launch_id", "action", "who", "began", "ended", "seconds_to_ready", "answer", "answered", "restored", "verdict")
_GOOD = ("recipe", "image", "model", "planned")
HARMLESS = ("description", "proof", "timeouts")
"""A recipe's keys that say how a launch is watched, and not what it is."""


class LedgerError(Exception):
    """The ledger can't be used as asked; the text is one sentence that says what to do."""


class ChangedError(LedgerError):
    """Another run has worked on the deployment since the caller looked."""


class HeldError(LedgerError):
    """Another run holds the lock; C(holder) is that run's lock."""

    def __init__(self, message: str, holder: Data) -> None:
        super().__init__(message)
        self.holder = holder


class Taken(t.NamedTuple):
    """How the lock was taken."""

    changed: bool
    """False when the run had it already."""
    lock: Data
    took_over: t.Optional[Data]
    """The lock of the run that had it before and did not give it back."""
    why: str
    """Why it could be taken over: C(its time is over), C(that run is gone) or C(it was broken)."""


def deployments(root: str = "/") -> t.List[str]:
    """The names of the deployments that the node has something of, in order; :raises LedgerError: when the folder is closed."""
    return sorted(name for name in _listed(os.path.join(root, FOLDER)) if _NAME.fullmatch(name))


def who(holder: t.Mapping[str, t.Any]) -> str:
    """A run in words: C(alice at ctl1 (pid 123, job 17))."""
    number = "pid {}".format(holder.get("pid") or "?") + (", job {}".format(holder["job"]) if holder.get("job") else "")
    return "{} at {} ({})".format(holder.get("user") or "somebody", holder.get("host") or "?", number)


def lapsed(holder: t.Mapping[str, t.Any], now: float) -> bool:
    """Whether a lock's time is over; so is that of one whose file tells no time."""
    return _seconds(holder.get("until")) <= now


def held(deployment: str, holder: t.Mapping[str, t.Any], now: float) -> str:
    """The sentence for a lock that another run holds."""
    return "{} is being worked on by {} since {}: wait for it, or set tp_launch_break_lock to true if that run is gone.".format(
        deployment, who(holder), clock(holder.get("since"), now)
    )


def brief(found: t.Mapping[str, t.Any]) -> Data:
    """What :meth:`Ledger.read` returned, with the launches in short, as M(sparkstack.inference.inference_info) tells it."""
    keys = {"last": _BRIEF + _GOOD, "good": _BRIEF + _GOOD, "previous": _BRIEF + _GOOD}
    return {**found, **{name: {key: found[name].get(key) for key in keys[name]} if found[name] else None for name in keys}}


def content(record: t.Mapping[str, t.Any]) -> t.Tuple[t.Any, ...]:
    """What makes two launches the same thing: what was served, from which image and which model."""
    recipe = {key: value for key, value in (record.get("recipe") or {}).items() if key not in HARMLESS}
    return recipe, (record.get("image") or {}).get("content"), (record.get("model") or {}).get("digest")


def _nodes(records: t.Iterable[t.Mapping[str, t.Any]]) -> t.List[str]:
    """The names of the nodes that had a rank in one of the launches, in order."""
    listed = [record.get("ranks") for record in records]
    ranks = [rank for kept in listed if isinstance(kept, list) for rank in kept]
    return sorted({str(rank["node"]) for rank in ranks if isinstance(rank, dict) and rank.get("node")})


class Ledger:
    """The ledger of one deployment on this node."""

    def __init__(self, deployment: str, root: str = "/", folder: t.Optional[str] = None) -> None:
        """
        :param folder: where the deployments' folders lie, below C(root) unless it is absolute.
        :raises LedgerError: for a name that can't be a folder's.
        """
        if not _NAME.fullmatch(deployment):
            raise LedgerError(f"'{deployment}' can't be a deployment's name: give one of letters, digits, '.', '_' and '-', as the recipe has it.")
        self.deployment = deployment
        self.folder = os.path.join(root, folder or FOLDER, deployment)
        self._advice = "Name a folder of your own, on a disk that has room." if folder else "Run this as root (become) on a node whose disk has room."

    def read(self) -> Data:
        """C(lock), C(last), C(good) and C(previous) (mappings or None), C(launches) (ids, newest first), C(nodes) (the names of all nodes that had a rank in
        one of these, in order), C(changed_at) (seconds since the epoch, or None), and C(problems): one sentence for each file that is damaged or closed.
        A damaged file counts as none."""
        problems: t.List[str] = []
        launches = self._launches(problems)
        good, previous = (self._load(name, problems) for name in ("good.json", "previous.json"))
        return {
            "lock": self._load("lock.json", problems),
            "last": launches[0] if launches else None,
            "good": good,
            "previous": previous,
            "launches": [record["launch_id"] for record in launches],
            "nodes": _nodes([*launches, good or {}, previous or {}]),
            "changed_at": (self._load("changed.json", problems) or {}).get("at"),
            "problems": problems,
        }

    def write(self, record: t.Mapping[str, t.Any], good: bool = False, keep: int = 20, dry: bool = False) -> t.Tuple[Data, Data]:
        """Keep a launch's record, over what is known of that launch already.

        :param good: it answered a real request, and is what can be gone back to. :param keep: how many launches are kept, at least one.
        :param dry: nothing is written.
        :returns: the record before (empty where there was none) and after.
        :raises LedgerError: for a record that is none, or a disk that takes no file.
        """
        identity = str(record.get("launch_id") or "")
        if not _NAME.fullmatch(identity):
            raise LedgerError(f"'{identity}' can't be a launch's id: give the record the launch_id that its ranks have.")
        with self._alone(dry):
            before = self._load(self._record(identity), []) or {}
            # Of a launch that was begun by a run that was killed then, nobody has told when.
            after = {"began": record.get("ended"), **before, **record}
            if len(json.dumps(after)) > _MOST_BYTES:
                raise LedgerError(f"The record of launch {identity} is larger than {_MOST_BYTES // 1024} KiB: leave its logs out.")
            if not dry:
                if after != before:
                    self._save(self._record(identity), after)
                if good:
                    self._keep_good(after)
                for old in [entry["launch_id"] for entry in self._launches([])][max(keep, 1) :]:
                    if old != identity:
                        os.unlink(os.path.join(self.folder, self._record(old)))
                # What a writer that was killed has left: nobody else writes now.
                folder = os.path.join(self.folder, "launches")
                for name in _listed(folder):
                    if name.endswith(_HALF):
                        os.unlink(os.path.join(folder, name))
        return before, after

    def _keep_good(self, record: Data) -> None:
        """What answered last, and beside it what answered before that and was something else."""
        known = self._load("good.json", [])
        if known and content(known) != content(record):
            self._save("previous.json", known)
        if known != record:
            self._save("good.json", record)

    def path(self, identity: str) -> str:
        """Where the record of a launch lies."""
        return os.path.join(self.folder, self._record(identity))

    def acquire(
        self,
        owner: t.Mapping[str, t.Any],
        until: float,
        seen: t.Optional[float] = None,
        replace: str = "",
        now: t.Optional[float] = None,
        dry: bool = False,
    ) -> Taken:
        """Take the lock, or prolong it. Times are seconds since the epoch by this node's clock.

        :param owner: C(run), which tells runs apart, and C(user), C(host), C(pid), C(job) for people. :param until: when others may take it over.
        :param seen: when the caller looked at the deployment, or None not to ask. :param replace: a run whose lock is taken over, or ANYBODY.
        :raises HeldError: when another run holds it; :raises ChangedError: when another run gave it back after C(seen).
        """
        now = time.time() if now is None else now
        with self._alone(dry):
            holder = self._load("lock.json", [])
            mine = bool(holder) and t.cast(Data, holder).get("run") == owner["run"]
            why = ""
            if holder and not mine:
                why = _takeable(holder, replace, now)
                if not why:
                    raise HeldError(held(self.deployment, holder, now), holder)
            changed = self._load("changed.json", []) or {}
            # What lies ahead was told before the node's clock was set back: it would refuse every run until the clock is there again.
            if seen is not None and not mine and changed.get("run") != owner["run"] and seen < _seconds(changed.get("at")) <= now:
                raise ChangedError(
                    "Another run has worked on {} until {}, after this one had looked: run this again.".format(self.deployment, clock(changed["at"], now))
                )
            before = t.cast(Data, holder) if mine else {}
            lock = {**owner, "since": before.get("since", now), "until": max(_seconds(before.get("until")), until)}
            if not dry:
                self._save("lock.json", lock)
        return Taken(not mine, lock, holder if why else None, why)

    def release(self, run: str, now: t.Optional[float] = None, dry: bool = False) -> t.Optional[Data]:
        """Give the lock back, and tell when; returns the lock that went. Nothing changes where the run does not hold it.

        :param run: as it was taken, or ANYBODY.
        """
        if not os.path.isdir(self.folder):
            return None
        with self._alone(dry):
            holder = self._load("lock.json", [])
            if not holder or run not in (holder.get("run"), ANYBODY):
                return None
            if not dry:
                # Whoever looked before this moment has not seen what was done: first that, then the lock.
                word = {"at": time.time() if now is None else now, "run": holder.get("run")}
                told = self._told(word)
                os.unlink(os.path.join(self.folder, "lock.json"))
                _sync(self.folder)
                if not told:
                    # A full disk: the lock's own block may do. That others can work on it counts for more than this word.
                    self._told(word)
        return holder

    def _told(self, word: t.Mapping[str, t.Any]) -> bool:
        """Whether the disk took when the lock was given back."""
        try:
            self._save("changed.json", word)
        except OSError:
            return False
        return True

    def forget(self, dry: bool = False) -> bool:
        """Remove all that the node knows of the deployment; returns whether there was anything."""
        if not os.path.isdir(self.folder):
            return False
        if not dry:
            with self._alone(dry):
                shutil.rmtree(self.folder)
        return True

    @contextlib.contextmanager
    def _alone(self, dry: bool) -> t.Iterator[None]:
        """Nobody else changes the folder meanwhile; it is made where it is not there, but for a dry run."""
        try:
            if dry and not os.path.isdir(self.folder):
                yield
                return
            descriptor = self._locked()
            try:
                yield
            finally:
                os.close(descriptor)
        except OSError as error:
            raise LedgerError(f"{self.folder} can't be used: {error.strerror or error}. {self._advice}") from error

    def _locked(self) -> int:
        """A descriptor of the folder, locked."""
        while True:
            os.makedirs(self.folder, mode=0o700, exist_ok=True)
            descriptor = os.open(self.folder, os.O_RDONLY)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            # Who had the lock before may have removed the folder.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), os.stat(self.folder)):
                    return descriptor
            os.close(descriptor)

    @staticmethod
    def _record(identity: str) -> str:
        return os.path.join("launches", identity + ".json")

    def _launches(self, problems: t.List[str]) -> t.List[Data]:
        """The records of the launches, newest first."""
        found = []
        try:
            names = _listed(os.path.join(self.folder, "launches"))
        except LedgerError as error:
            problems.append(str(error))
            return []
        for name in names:
            record = self._load(os.path.join("launches", name), problems) if name.endswith(".json") else None
            if record and self._record(str(record.get("launch_id"))) == os.path.join("launches", name):
                found.append(record)
        return sorted(found, key=lambda record: (_seconds(record.get("began")), record["launch_id"]), reverse=True)

    def _load(self, name: str, problems: t.List[str]) -> t.Optional[Data]:
        """The mapping in a file, or None."""
        path = os.path.join(self.folder, name)
        try:
            with open(path, encoding="utf-8") as stream:
                data = json.load(stream)
        except FileNotFoundError:
            return None
        except OSError as error:
            problems.append(f"{path} can't be read: {error.strerror}.")
            return None
        except ValueError:
            data = None
        if not isinstance(data, dict):
            problems.append(f"{path} is damaged: remove it.")
            return None
        return data

    def _save(self, name: str, data: t.Mapping[str, t.Any]) -> None:
        """Write a file in one step that a power cut does not halve."""
        path = os.path.join(self.folder, name)
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        temporary = path + _HALF
        try:
            with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as stream:
                json.dump(data, stream, indent=1, sort_keys=True)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(temporary, path)
        except OSError:
            # A full disk: what could be written of it is of no use to anybody.
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        _sync(os.path.dirname(path))


def _takeable(holder: t.Mapping[str, t.Any], replace: str, now: float) -> str:
    """Why another run's lock may be taken over, or nothing."""
    if lapsed(holder, now):
        return "its time is over"
    if replace == ANYBODY:
        return "it was broken"
    return "that run is gone" if replace and replace == holder.get("run") else ""


def _seconds(value: t.Any) -> float:
    """A time as it stands in a file; 0 for what is none, since a record's writer may have had text only."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return 0.0


def _listed(folder: str) -> t.List[str]:
    """The names in a folder; none where there is no folder."""
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise LedgerError(f"{folder} can't be read: {error.strerror}.") from error


def _sync(folder: str) -> None:
    """The folder's names reach the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
