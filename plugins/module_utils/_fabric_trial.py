# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""A new network of the fabric on trial: it stays only if somebody says so in time. Else systemd takes it back on the node itself.

'netplan try' does that for a person at a terminal. It waits for a key, its end takes it back only while it lives, and it restarts what
manages the node's other interfaces. Here the way back is written first (C(_fabric_undo)), a timer is set, and only the fabric's own interfaces
are touched.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
import time
import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils import _fabric_network, _fabric_undo, _netplan
from ansible_collections.sparkstack.inference.plugins.module_utils._fabric_undo import BEFORE, FOLDER, TRIAL, UNIT, UNITS
from ansible_collections.sparkstack.inference.plugins.module_utils._unit_files import read, write

Data = t.Dict[str, t.Any]
Run = t.Callable[[t.List[str]], t.Tuple[int, str, str]]

_LONGEST = 30.0
"""Seconds that the interfaces get to take their new addresses."""
_LOOK = 0.25
_KEPT = FOLDER + "/kept"


class TrialError(Exception):
    """The text is a sentence for the user."""


class Trial:
    """The fabric's network of one node."""

    def __init__(self, run: Run, root: str = "/", clock: t.Callable[[], float] = time.monotonic, pause: t.Callable[[float], None] = time.sleep) -> None:
        """:param run: carries a command out and returns its exit code and what it wrote. :param root: where the node's files hang."""
        self.run, self.root, self.clock, self.pause = run, root, clock, pause

    def path(self, below: str) -> str:
        """Where a path is, with or without a slash before it."""
        return os.path.join(self.root, below.lstrip("/"))

    # ---- what is there -----------------------------------------------------------------------------------------------

    def links(self) -> _fabric_network.Links:
        """The interfaces now."""
        return _fabric_network.links(self._must(["ip", "-json", "addr"], "install iproute2"))

    def pending(self) -> t.Optional[Data]:
        """The trial that nobody has kept yet: C(active) tells whether its timer still runs. None where there is none."""
        if not any(os.path.lexists(self.path(mark)) for mark in (_fabric_undo.ARMED, _fabric_undo.UNDOING)):
            return None
        # A unit of this kind is 'activating' for as long as it runs.
        states = self.run(["systemctl", "show", "--property=ActiveState", "--value", UNIT + ".timer", UNIT + ".service"])[1].split()
        known = read(self.path(f"{FOLDER}/{TRIAL}.json")) or {}
        return {"active": bool({"active", "activating"} & set(states)), "run": known.get("run"), "began": known.get("began"), "seconds": known.get("seconds")}

    def told(self) -> t.Optional[Data]:
        """What the last way back has told: C(at), and C(wrong) for what is not as it was; None where none was gone since a network was kept."""
        with contextlib.suppress(OSError):
            with open(self.path(_fabric_undo.TOLD), encoding="utf-8") as stream:
                at, wrong = (stream.read().splitlines() + ["", ""])[:2]
            return {"at": at, "wrong": wrong}
        return None

    def text(self, below: str) -> t.Optional[str]:
        """A file's content, or None where there is no such file."""
        try:
            with open(self.path(below), encoding="utf-8", errors="replace") as stream:
                return stream.read()
        except FileNotFoundError:
            return None

    def missing(self, interfaces: t.Sequence[t.Mapping[str, t.Any]]) -> t.List[str]:
        """What the kernel lacks of what is wanted. :param interfaces: each with C(netdev), C(address) (with prefix) and C(mtu) (bytes)."""
        found = []
        links = self.links()
        for wanted in interfaces:
            link = links.get(wanted["netdev"])
            if link is None:
                found.append("there is no {}".format(wanted["netdev"]))
                continue
            if wanted["address"] not in [entry["address"] for entry in link["addresses"] if not entry["dynamic"]]:
                found.append("{} has no {}".format(wanted["netdev"], wanted["address"]))
            if link["mtu"] != wanted["mtu"]:
                found.append("the MTU of {} is {} and not {}".format(wanted["netdev"], link["mtu"], wanted["mtu"]))
            if not link["up"]:
                found.append("{} is switched off".format(wanted["netdev"]))
        return found

    # ---- the trial ---------------------------------------------------------------------------------------------------

    def check(self, content: t.Optional[str], replace: t.Sequence[str]) -> None:
        """Have netplan read all its files as they would be, in a folder of their own; nothing of the node changes.

        :raises TrialError: with what it says.
        """
        with tempfile.TemporaryDirectory() as place:
            for below in _netplan.files(self.root):
                if "/" + below not in replace and below != _netplan.OURS:
                    os.makedirs(os.path.join(place, os.path.dirname(below)), exist_ok=True)
                    shutil.copy(self.path(below), os.path.join(place, below))
            if content is not None:
                write(os.path.join(place, _netplan.OURS), content, 0o600)
            rc, stdout, stderr = self.run(["netplan", "generate", "--root-dir", place])
        if rc != 0:
            said = " ".join((stderr or stdout).split())
            raise TrialError(f"netplan refuses the new network: {said} Correct the file that it names, or report this one.")

    def arm(self, interfaces: t.Sequence[t.Mapping[str, t.Any]], replace: t.Sequence[str], seconds: int, run: str = "") -> None:
        """Write the way back and set the timer. Nothing of the network is touched before this has returned."""
        links = self.links()
        files = {path: self._backup(path) for path in ["/" + _netplan.OURS, *replace]}
        state = {wanted["netdev"]: {key: links[wanted["netdev"]][key] for key in ("mtu", "up", "addresses")} for wanted in interfaces}
        manager = self.run(["systemctl", "is-active", "--quiet", "NetworkManager"])[0] == 0
        external = _fabric_network.external(self.run(["nmcli", "-t", "-f", "DEVICE,STATE", "device"])[1]) if manager else []
        for netdev, entry in state.items():
            entry["external"] = netdev in external
        data = {"run": run, "began": time.time(), "seconds": seconds, "files": files, "interfaces": state}
        os.makedirs(self.path(FOLDER), mode=0o700, exist_ok=True)
        self._keep(TRIAL, data)
        lines = (self.text(_fabric_undo.OURS) or "").splitlines()
        lines += ["{} {}".format(wanted["netdev"], wanted["address"]) for wanted in interfaces]
        write(self.path(_fabric_undo.OURS), "".join(line + "\n" for line in dict.fromkeys(lines)), 0o600)
        write(self.path(f"{UNITS}/{UNIT}.service"), _fabric_undo.service(), 0o644)
        write(self.path(f"{UNITS}/{UNIT}.timer"), _fabric_undo.timer(seconds), 0o644)
        write(self.path(_fabric_undo.ARMED), "", 0o600)
        link = self.path(_fabric_undo.TIMER)
        os.makedirs(os.path.dirname(link), exist_ok=True)
        if not os.path.lexists(link):
            os.symlink(f"/{UNITS}/{UNIT}.timer", link)
        self._must(["systemctl", "daemon-reload"], "see 'journalctl -b'")
        self._must(["systemctl", "restart", UNIT + ".timer"], f"see 'journalctl -u {UNIT}.timer'")

    def put(self, content: t.Optional[str], replace: t.Sequence[str]) -> None:
        """Write netplan's file (None: take it away), and take away those that it replaces."""
        if content is not None:
            # netplan warns of a file that others may read.
            write(self.path(_netplan.OURS), content, 0o600)
        for path in [*replace, *(["/" + _netplan.OURS] if content is None else [])]:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path(path))

    def apply(self, interfaces: t.Sequence[t.Mapping[str, t.Any]]) -> None:
        """Have the new network taken by the fabric's interfaces, and by no others, and wait until the kernel shows it.

        :raises TrialError: with what is missing when the time is over.
        """
        self._must(["netplan", "generate"], "see what it says")
        names = [wanted["netdev"] for wanted in interfaces]
        ways = self.ways(names)
        for way in sorted(set(ways.values())):
            (self._networkd if way == "networkd" else self._network_manager)([name for name in names if ways[name] == way])
        deadline = self.clock() + _LONGEST
        missing = self.missing(interfaces)
        while missing and self.clock() < deadline:
            self.pause(_LOOK)
            missing = self.missing(interfaces)
        if missing:
            how = " and ".join(sorted(set(ways.values())))
            raise TrialError("{} has not made the new network within {:.0f} s: {}. See its journal.".format(how, _LONGEST, ", ".join(missing)))

    def ways(self, netdevs: t.Sequence[str]) -> t.Dict[str, str]:
        """Which daemon netplan has given each interface to, by what it has generated.

        :raises TrialError: for one that none has.
        """
        found = {}
        for netdev in netdevs:
            known = {
                "networkd": f"run/systemd/network/10-netplan-{netdev}.network",
                "NetworkManager": f"run/NetworkManager/system-connections/netplan-{netdev}.nmconnection",
            }
            way = next((way for way, below in known.items() if os.path.exists(self.path(below))), None)
            if way is None:
                raise TrialError(f"netplan has made nothing for {netdev}: see 'netplan --debug generate'.")
            found[netdev] = way
        return found

    def _networkd(self, netdevs: t.Sequence[str]) -> None:
        if self.run(["systemctl", "is-active", "--quiet", "NetworkManager"])[0] == 0:
            # What networkd has now, it has to let go.
            self.run(["nmcli", "general", "reload"])
        self._must(["systemctl", "start", "systemd-networkd"], "see 'journalctl -u systemd-networkd'")
        self._must(["networkctl", "reload"], "see 'journalctl -u systemd-networkd'")
        self._must(["networkctl", "reconfigure", *netdevs], "see 'journalctl -u systemd-networkd'")

    def _network_manager(self, netdevs: t.Sequence[str]) -> None:
        for words in (["general", "reload"], ["connection", "reload"]):
            self._must(["nmcli", *words], "see 'journalctl -u NetworkManager'")
        for netdev in netdevs:
            self._must(["nmcli", "--wait", "20", "connection", "up", f"netplan-{netdev}"], "see 'journalctl -u NetworkManager'")

    # ---- the end of it -----------------------------------------------------------------------------------------------

    def keep(self, run: str = "") -> bool:
        """Keep the new network; False where none is on trial.

        :raises TrialError: when the node has gone back, or is about to, or when the trial is another run's.
        """
        pending = self.pending()
        if pending is not None and pending["run"] != run:
            raise TrialError("Another run has a network on trial here: it is that run's to keep.")
        if pending is None:
            told = self.told()
            if told:
                raise TrialError("This node has gone back to the network before at {}, for nobody had kept the new one in time.".format(told["at"]))
            return False
        try:
            os.rename(self.path(_fabric_undo.ARMED), self.path(_KEPT))
        except FileNotFoundError:
            raise TrialError("This node is going back to the network before right now, for nobody had kept the new one in time.") from None
        self.finish()
        return True

    def finish(self) -> None:
        """Do what is left to do once a network is kept: remember what it was before, take the timer away. A run can have been killed here."""
        if not os.path.exists(self.path(_KEPT)):
            return
        data = read(self.path(f"{FOLDER}/{TRIAL}.json"))
        if data:
            self._keep(BEFORE, _fabric_undo.merge(self.before(), data))
        self.run(["systemctl", "stop", UNIT + ".timer"])
        units = [f"{UNITS}/{UNIT}.{ending}" for ending in ("service", "timer")]
        for below in [_fabric_undo.TIMER, *units, f"{FOLDER}/{TRIAL}.sh", f"{FOLDER}/{TRIAL}.json", _fabric_undo.TOLD, _KEPT]:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path(below))
        self._must(["systemctl", "daemon-reload"], "see 'journalctl -b'")

    def forget(self) -> None:
        """Say no more that a network was taken back."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path(_fabric_undo.TOLD))

    def undo(self) -> bool:
        """Go back now; False where nothing is on trial. :raises TrialError: when something is not as it was."""
        if self.pending() is None:
            return False
        self.run(["systemctl", "stop", UNIT + ".timer"])
        # By its unit where it has one: if that runs already, this waits for its end.
        if not os.path.exists(self.path(f"{UNITS}/{UNIT}.service")):
            return self._script(TRIAL)
        self._must(["systemctl", "start", UNIT + ".service"], f"see 'journalctl -u {UNIT}', then try 'sh /{FOLDER}/{TRIAL}.sh'")
        return True

    def restore(self) -> bool:
        """Bring back what was before this collection has changed it; False where it has changed nothing."""
        done = self.undo()
        self.forget()
        if os.path.exists(self.path(f"{FOLDER}/{BEFORE}.sh")):
            done = self._script(BEFORE)
        with contextlib.suppress(OSError):
            os.rmdir(self.path(FOLDER))
        return done

    def before(self) -> t.Optional[Data]:
        """What it was before this collection has changed it, or None."""
        found: t.Optional[Data] = read(self.path(f"{FOLDER}/{BEFORE}.json"))
        return found

    def _script(self, kind: str) -> bool:
        path = self.path(f"{FOLDER}/{kind}.sh")
        rc, stdout, stderr = self.run(["sh", path])
        if rc != 0:
            said = " ".join((stderr or stdout).split())
            raise TrialError(f"{said}. See to it on the node; 'sh {path}' tries again.")
        return True

    def _keep(self, kind: str, data: t.Mapping[str, t.Any]) -> None:
        """Write what a script goes back to, and the script after it."""
        write(self.path(f"{FOLDER}/{kind}.json"), json.dumps(data, indent=1, sort_keys=True) + "\n", 0o600)
        write(self.path(f"{FOLDER}/{kind}.sh"), _fabric_undo.script(kind, data), 0o700)

    def _backup(self, path: str) -> t.Optional[Data]:
        try:
            with open(self.path(path), "rb") as stream:
                found = os.fstat(stream.fileno())
                return _fabric_undo.backup(stream.read(), found.st_mode, found.st_uid, found.st_gid)
        except FileNotFoundError:
            return None

    def _must(self, command: t.List[str], hint: str) -> str:
        rc, stdout, stderr = self.run(command)
        if rc != 0:
            said = " ".join((stderr or stdout).split())
            raise TrialError("'{}' failed ({}): {}.".format(" ".join(command), said or f"exit code {rc}", hint))
        return stdout
