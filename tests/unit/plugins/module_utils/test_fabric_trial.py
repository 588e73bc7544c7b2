# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A new network on trial: the way back is there before anything is touched, it works from any moment on, and it leaves nothing."""

from __future__ import annotations

import json
import pathlib
import typing as t

import pytest
from fabric_node import FabricNode

from ansible_collections.sparkstack.inference.plugins.module_utils import _fabric_undo
from ansible_collections.sparkstack.inference.plugins.module_utils._fabric_trial import Trial, TrialError

P0, T0 = "enp1s0f0np0", "enP2p1s0f0np0"
OURS = "etc/netplan/60-sparkstack-fabric.yaml"
OLD = "etc/netplan/40-cx7.yaml"
STATE = "var/lib/sparkstack/fabric/"
WANTED = [{"netdev": P0, "address": "192.168.200.11/24", "mtu": 9000}, {"netdev": T0, "address": "192.168.201.11/24", "mtu": 9000}]
UNITS = [
    "etc/systemd/system/sparkstack-fabric-undo.service",
    "etc/systemd/system/sparkstack-fabric-undo.timer",
    "etc/systemd/system/timers.target.wants/sparkstack-fabric-undo.timer",
]


def content(wanted: t.Sequence[t.Mapping[str, t.Any]] = WANTED) -> str:
    body = "".join(f"    {entry['netdev']}:\n      mtu: {entry['mtu']}\n      addresses:\n        - {entry['address']}\n" for entry in wanted)
    return "network:\n  version: 2\n  ethernets:\n" + body


@pytest.fixture
def node(tmp_path: pathlib.Path) -> FabricNode:
    """Somebody has given P0 an address by hand and T0 one by a netplan file; T0 is off."""
    found = FabricNode(tmp_path)
    found.link(P0, "192.168.100.10/24")
    found.link(T0, mtu=4200, up=False)
    found.link("enP7s7", "10.77.0.11/24")
    found.write(OLD, "# mine\n", 0o640)
    return found


@pytest.fixture
def trial(node: FabricNode) -> Trial:
    clock = iter(range(100000))
    return Trial(node.run, str(node.root), clock=lambda: float(next(clock)), pause=lambda _seconds: None)


def try_it(trial: Trial, wanted: list[dict[str, t.Any]] = WANTED, replace: t.Sequence[str] = (), run: str = "r") -> None:
    trial.check(content(wanted), replace)
    trial.arm(wanted, replace, 120, run)
    trial.put(content(wanted), replace)
    trial.apply(wanted)


NEW = {P0: (9000, True, ["192.168.200.11/24"]), T0: (9000, True, ["192.168.201.11/24"]), "enP7s7": (1500, True, ["10.77.0.11/24"])}


def test_a_trial_that_is_kept_and_restored(node: FabricNode, trial: Trial) -> None:
    kernel, files = node.kernel(), node.files()
    assert trial.missing(WANTED) == [
        f"{P0} has no 192.168.200.11/24", f"the MTU of {P0} is 1500 and not 9000",
        f"{T0} has no 192.168.201.11/24", f"the MTU of {T0} is 4200 and not 9000", f"{T0} is switched off",
    ]  # fmt: skip
    try_it(trial, replace=["/" + OLD])
    assert node.kernel() == NEW and trial.missing(WANTED) == []
    laid = {STATE + "armed": "0600", STATE + "ours": "0600", STATE + "trial.json": "0600", STATE + "trial.sh": "0700"}
    assert node.files() == {OURS: "0600", **dict(zip(UNITS, ("0644", "0644", "link"), strict=True)), **laid}
    pending = trial.pending()
    assert pending and (pending["active"], pending["run"], pending["seconds"]) == (True, "r", 120)
    assert "OnActiveSec=120\n" in node.text(UNITS[1])

    assert trial.keep("r") is True and trial.pending() is None and trial.keep("r") is False
    assert node.files() == {OURS: "0600", STATE + "before.json": "0600", STATE + "before.sh": "0700", STATE + "ours": "0600"}
    assert not (node.root / "timer").exists()

    assert trial.restore() is True and trial.restore() is False
    assert (node.kernel(), node.files()) == (kernel, files)
    assert node.text(OLD) == "# mine\n"


def test_nothing_is_touched_before_the_timer_runs(node: FabricNode, trial: Trial) -> None:
    kernel, files = node.kernel(), node.files()
    trial.arm(WANTED, ["/" + OLD], 120, "r")
    assert node.commands[-2:] == ["systemctl daemon-reload", "systemctl restart sparkstack-fabric-undo.timer"]
    assert node.kernel() == kernel and files.items() <= node.files().items() and OURS not in node.files()


def test_netplan_does_not_apply_all(node: FabricNode, trial: Trial) -> None:
    try_it(trial)
    assert [line for line in node.commands if line.startswith(("netplan", "networkctl"))][1:] == [
        "netplan generate",
        "networkctl reload",
        f"networkctl reconfigure {P0} {T0}",
    ]


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_the_way_back_from_wherever_it_stopped(node: FabricNode, trial: Trial, steps: int) -> None:
    """A run that was killed after some of the steps: the timer brings all back, and the next run is told."""
    kernel, files = node.kernel(), node.files()
    calls: list[t.Callable[[], None]] = [
        lambda: trial.arm(WANTED, ["/" + OLD], 120, "r"),
        lambda: trial.put(content(), ["/" + OLD]),
        lambda: trial.apply(WANTED),
    ]
    for call in calls[:steps]:
        call()
    # What systemd does when the time is over.
    assert node.run(["systemctl", "start", "sparkstack-fabric-undo.service"])[0] == 0
    assert node.kernel() == kernel and node.files() == {**files, STATE + "told": "0600"} | {STATE + "told": node.files()[STATE + "told"]}
    told = trial.told()
    assert told and told["at"].endswith("Z") and told["wrong"] == "" and trial.pending() is None
    with pytest.raises(TrialError, match=r"This node has gone back to the network before at 20\d\d-"):
        trial.keep("r")
    trial.forget()
    assert trial.told() is None and trial.keep("r") is False


def test_a_way_back_that_lost_its_power_is_gone_again(node: FabricNode, trial: Trial) -> None:
    kernel, files = node.kernel(), node.files()
    try_it(trial)
    # It had begun, and only the files were back.
    (node.root / STATE / "armed").rename(node.root / STATE / "undoing")
    (node.root / OURS).unlink()
    with pytest.raises(TrialError, match="is going back to the network before right now"):
        trial.keep("r")
    assert trial.undo() is True
    trial.forget()
    assert (node.kernel(), node.files()) == (kernel, files)


def test_what_was_kept_is_not_taken_back_by_a_timer_that_comes_late(node: FabricNode, trial: Trial) -> None:
    try_it(trial)
    script = node.text(STATE + "trial.sh")
    trial.keep("r")
    node.write(STATE + "trial.sh", script, 0o700)
    assert node.run(["sh", str(node.root / STATE / "trial.sh")])[1] == "There is nothing to take back: it was kept.\n"
    assert node.kernel() == NEW


def test_a_run_that_was_killed_while_it_kept_is_finished_by_the_next(node: FabricNode, trial: Trial) -> None:
    kernel, files = node.kernel(), node.files()
    try_it(trial)
    (node.root / STATE / "armed").rename(node.root / STATE / "kept")
    assert trial.pending() is None
    trial.finish()
    assert set(node.files()) - set(files) == {OURS, STATE + "before.json", STATE + "before.sh", STATE + "ours"}
    assert trial.restore() is True and (node.kernel(), node.files()) == (kernel, files)


def test_another_runs_trial_is_not_kept(trial: Trial) -> None:
    try_it(trial, run="first")
    with pytest.raises(TrialError, match="it is that run's to keep"):
        trial.keep("second")


def test_a_second_change_goes_back_to_the_first_and_restore_to_the_beginning(node: FabricNode, trial: Trial) -> None:
    kernel, files = node.kernel(), node.files()
    try_it(trial, WANTED[:1])
    trial.keep("r")
    first = node.kernel()
    again = [dict(WANTED[0], address="192.168.210.11/24", mtu=4200), WANTED[1]]
    try_it(trial, again)
    assert node.kernel()[P0] == (4200, True, ["192.168.210.11/24"]) and trial.undo() is True
    assert node.kernel() == first and node.text(OURS) == content(WANTED[:1])
    try_it(trial, again)
    trial.keep("r")
    before = trial.before()
    assert before and sorted(before["interfaces"]) == [T0, P0] and before["files"]["/" + OURS] is None
    assert trial.restore() is True
    assert (node.kernel(), node.files()) == (kernel, files)


def test_a_restore_leaves_addresses_that_somebody_has_added_since(node: FabricNode, trial: Trial) -> None:
    try_it(trial)
    trial.keep("r")
    node.run(["ip", "addr", "replace", "172.16.9.9/24", "dev", P0])
    trial.restore()
    assert node.kernel()[P0] == (1500, True, ["172.16.9.9/24", "192.168.100.10/24"])


def test_what_can_not_be_brought_back_is_told(node: FabricNode, trial: Trial) -> None:
    try_it(trial)
    node.write("etc/netplan/50-other.yaml", "broken\n")
    with pytest.raises(TrialError, match=r"Not all is as it was: netplan generate\): see 'journalctl -u sparkstack-fabric-undo', then try 'sh /var/lib"):
        trial.undo()
    told, pending = trial.told(), trial.pending()
    assert told and told["wrong"] == "netplan generate" and pending and not pending["active"]
    assert node.kernel()[P0] == (1500, True, ["192.168.100.10/24"]) and not set(UNITS) & set(node.files())
    with pytest.raises(TrialError, match=r"netplan generate\. See to it on the node; 'sh .*/trial\.sh' tries again\.$"):
        trial.undo()
    (node.root / "etc/netplan/50-other.yaml").unlink()
    assert trial.undo() is True and trial.pending() is None and STATE + "trial.sh" not in node.files()


def test_what_netplan_refuses_is_never_put_on_the_node(node: FabricNode, trial: Trial) -> None:
    files = node.files()
    with pytest.raises(TrialError, match="^netplan refuses the new network: Error in network definition: broken Correct the file"):
        trial.check("broken", [])
    assert node.files() == files
    node.write(OLD, "broken\n")
    trial.check(content(), ["/" + OLD])
    with pytest.raises(TrialError, match="netplan refuses"):
        trial.check(content(), [])


def test_a_daemon_that_does_nothing_is_told(node: FabricNode, trial: Trial) -> None:
    (node.root / "networkd-is-deaf").touch()
    with pytest.raises(TrialError, match=f"^networkd has not made the new network within 30 s: {P0} has no 192.168.200.11/24, .*See its journal"):
        try_it(trial)


def test_which_daemon_makes_it_is_read_from_what_netplan_made(node: FabricNode, trial: Trial) -> None:
    for below in (f"run/systemd/network/10-netplan-{P0}.network", f"run/NetworkManager/system-connections/netplan-{T0}.nmconnection"):
        (node.root / below).parent.mkdir(parents=True)
        (node.root / below).touch()
    assert trial.ways([P0, T0]) == {P0: "networkd", T0: "NetworkManager"}
    with pytest.raises(TrialError, match="netplan has made nothing for enp9: see 'netplan --debug generate'"):
        trial.ways(["enp9"])


def test_networkmanager_is_asked_for_these_interfaces_only() -> None:
    said: list[str] = []

    def run(command: list[str]) -> tuple[int, str, str]:
        said.append(" ".join(command))
        return 0, "", ""

    Trial(run)._network_manager([P0])
    assert said == ["nmcli general reload", "nmcli connection reload", f"nmcli --wait 20 connection up netplan-{P0}"]


def test_the_script_leaves_what_is_from_dhcp_to_dhcp() -> None:
    addresses = [{"address": "10.0.0.7/24", "dynamic": True, "broadcast": None}, {"address": "10.1.0.7/24", "dynamic": False, "broadcast": "10.1.0.255"}]
    text = _fabric_undo.script("trial", {"files": {}, "interfaces": {P0: {"mtu": 1500, "up": True, "addresses": addresses}}})
    assert f"\nkept=' {P0}=10.0.0.7/24 {P0}=10.1.0.7/24 '\n" in text
    assert f"\nwanted='{P0} 10.1.0.7/24 10.1.0.255'\nlinks='{P0} 1500 up'\n" in text


def test_the_script_takes_networkmanager_off_what_it_had_left_alone() -> None:
    link = {"mtu": 1500, "up": True, "addresses": []}
    text = _fabric_undo.script("trial", {"files": {}, "interfaces": {P0: {**link, "external": True}, T0: {**link, "external": False}}})
    assert f"    for netdev in {P0}; do\n        nmcli device disconnect" in text
    none = _fabric_undo.script("trial", {"files": {}, "interfaces": {T0: link}})
    assert "    for netdev in ; do\n        nmcli device disconnect" in none


def test_the_earliest_word_counts() -> None:
    first = {"files": {"/a": None}, "interfaces": {P0: {"mtu": 1500}}}
    later = {"files": {"/a": {"content": "eA=="}, "/b": None}, "interfaces": {P0: {"mtu": 9000}, T0: {"mtu": 4200}}, "run": "r"}
    assert _fabric_undo.merge(first, later) == {"files": {"/a": None, "/b": None}, "interfaces": {P0: {"mtu": 1500}, T0: {"mtu": 4200}}}
    assert json.loads(json.dumps(_fabric_undo.merge(None, later)["files"])) == later["files"]
