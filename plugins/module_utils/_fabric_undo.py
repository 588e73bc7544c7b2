# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""The way back, written before anything is touched: a script for sh that makes a node's fabric what it was. Pure.

It needs neither Ansible nor Python, so systemd can run it when nobody comes back, and so can a person at the console. Every step can be
done twice: a node that loses its power in the middle does it again.
"""

from __future__ import annotations

import base64
import shlex
import typing as t

FOLDER = "var/lib/sparkstack/fabric"
TRIAL, BEFORE = "trial", "before"
"""What a trial goes back to, and what it was before this collection has changed anything."""
ARMED, UNDOING, OURS, TOLD = (FOLDER + "/" + name for name in ("armed", "undoing", "ours", "told"))
UNITS = "etc/systemd/system"
UNIT = "sparkstack-fabric-undo"
TIMER = UNITS + "/timers.target.wants/" + UNIT + ".timer"

Data = t.Dict[str, t.Any]

_HEAD = """\
#!/bin/sh
# Written by sparkstack.inference. Brings this node's fabric back to {what}.
# It can be run by hand, as root, and again: sh {path}
PATH=/usr/sbin:/usr/bin:/sbin:/bin
export PATH
cd {folder} || exit 1
failed=''
step() {{
    "$@" || failed="$failed; $*"
}}
"""
# Renamed in one step: either this goes back, or the trial is kept, never both.
_CLAIM = """\
if ! mv armed undoing 2>/dev/null && ! [ -e undoing ]; then
    echo 'There is nothing to take back: it was kept.'
    exit 0
fi
"""
_FILE = """\
put() {
    umask 077
    base64 -d > "$1.new" && chown "$2" "$1.new" && chmod "$3" "$1.new" && mv -f "$1.new" "$1"
}
"""
_BACKEND = """\
step netplan generate
if systemctl is-active --quiet systemd-networkd; then
    networkctl reload
    networkctl reconfigure {netdevs}
fi
if systemctl is-active --quiet NetworkManager; then
    nmcli general reload
    nmcli connection reload
    # What is up stays as it was put up, whatever its file says by now.
    for netdev in {netdevs}; do
        if [ -e "/run/NetworkManager/system-connections/netplan-$netdev.nmconnection" ]; then
            nmcli --wait 20 connection up "netplan-$netdev"
        fi
    done
    # It had left these to somebody's hand. Now it would ask DHCP on them, and take the addresses away when there is no answer.
    for netdev in {external}; do
        nmcli device disconnect "$netdev"
    done
fi
"""
# Both daemons work on after their tools have ended, and take away what is not theirs: it must hold for a while.
_SETTLE = """\
have() {
    ip -o -4 addr show dev "$1" 2>/dev/null | grep -qwF "inet $2"
}
settle() {
    wrong=''
    while read -r netdev address; do
        case $kept in *" $netdev=$address "*) continue ;; esac
        if have "$netdev" "$address"; then
            wrong="$wrong; $address is on $netdev"
            ip addr del "$address" dev "$netdev"
        fi
    done < "$ours"
    while read -r netdev address broadcast; do
        if [ -n "$netdev" ] && ! have "$netdev" "$address"; then
            wrong="$wrong; $address is not on $netdev"
            ip addr replace "$address" ${broadcast:+broadcast "$broadcast"} dev "$netdev"
        fi
    done <<END
$wanted
END
    while read -r netdev mtu up; do
        if [ "$(cat "/sys/class/net/$netdev/mtu")" != "$mtu" ]; then
            wrong="$wrong; the MTU of $netdev is not $mtu"
            ip link set dev "$netdev" mtu "$mtu"
        fi
        case $up$(ip -o link show dev "$netdev" | grep -c '[<,]UP[,>]') in
            up0 | down1) wrong="$wrong; $netdev is not $up"; ip link set dev "$netdev" "$up" ;;
        esac
    done <<END
$links
END
}
ours=ours
[ -e "$ours" ] || ours=/dev/null
looks=0
good=0
while [ "$looks" -lt 40 ] && [ "$good" -lt 4 ]; do
    settle
    good=$((good + 1))
    [ -z "$wrong" ] || good=0
    looks=$((looks + 1))
    [ "$good" -ge 4 ] || sleep 0.5
done
failed="$failed$wrong"
"""
_TELL = """\
printf '%s\\n%s\\n' "$(date -u +%Y-%m-%dT%H:%M:%SZ)" "${failed#; }" > told.new && mv -f told.new told
"""
# What is not as it was can be tried again, by hand or by the next run, but no more by itself.
_TRIAL_END = """\
if [ -z "$failed" ]; then
    [ -e before.json ] || rm -f ours
    rm -f trial.json
    rm -f undoing
fi
rm -f {units}
systemctl daemon-reload
[ -n "$failed" ] || rm -f trial.sh
"""
_BEFORE_END = """\
if [ -z "$failed" ]; then
    rm -f before.json ours before.sh
fi
"""
_END = """\
if [ -n "$failed" ]; then
    echo "Not all is as it was: ${failed#; }" >&2
    exit 1
fi
"""

SERVICE = """\
# Written by sparkstack.inference: it goes when the fabric's new network is kept.
[Unit]
Description=Bring the fabric back to what it was
ConditionPathExists=/{folder}/trial.sh

[Service]
Type=oneshot
ExecStart=/bin/sh /{folder}/trial.sh
SyslogIdentifier={unit}
"""
_TIMER = """\
# Written by sparkstack.inference: it goes when the fabric's new network is kept.
[Unit]
Description=Bring the fabric back unless its new network is kept

[Timer]
OnActiveSec={seconds}
AccuracySec=1

[Install]
WantedBy=timers.target
"""


def service() -> str:
    """The unit that goes back."""
    return SERVICE.format(folder=FOLDER, unit=UNIT)


def timer(seconds: int) -> str:
    """The unit that starts it after some seconds, and after a boot once more after as many."""
    return _TIMER.format(seconds=seconds)


def script(kind: str, data: t.Mapping[str, t.Any]) -> str:
    """The script for sh.

    :param kind: C(trial) or C(before).
    :param data: C(files): by their absolute path, None for one that was not there, else a mapping with C(content) (bytes in base64),
      C(mode) (such as C(0600)) and C(owner) (such as C(0:0)). C(interfaces): by their name, mappings with C(mtu) (bytes), C(up) and C(addresses)
      as C(_fabric_network) has them, and C(external): NetworkManager has left it to somebody else. An address from DHCP is left to who had asked for it.
    """
    path = f"/{FOLDER}/{kind}.sh"
    what = "what it was when it was changed last" if kind == TRIAL else "what it was before this collection has changed it"
    parts = [_HEAD.format(what=what, path=path, folder="/" + FOLDER)]
    parts.append(_CLAIM if kind == TRIAL else "")
    parts.append(_FILE)
    for name, kept in sorted(data["files"].items()):
        if kept is None:
            parts.append("step rm -f {}\n".format(shlex.quote(name)))
        else:
            parts.append("step put {} {} {} <<END\n{}\nEND\n".format(shlex.quote(name), kept["owner"], kept["mode"], kept["content"]))
    netdevs = sorted(data["interfaces"])
    external = [netdev for netdev in netdevs if data["interfaces"][netdev].get("external")]
    parts.append(_BACKEND.format(netdevs=" ".join(map(shlex.quote, netdevs)), external=" ".join(map(shlex.quote, external))))
    wanted, kept_words, link_lines = [], [], []
    for netdev in netdevs:
        link = data["interfaces"][netdev]
        for address in link["addresses"]:
            kept_words.append("{}={}".format(netdev, address["address"]))
            if not address["dynamic"]:
                wanted.append(" ".join([netdev, address["address"], address["broadcast"] or ""]).rstrip())
        link_lines.append("{} {} {}".format(netdev, link["mtu"], "up" if link["up"] else "down"))
    parts.append("kept={}\n".format(shlex.quote(" " + " ".join(kept_words) + " ")))
    parts.append("wanted={}\nlinks={}\n".format(shlex.quote("\n".join(wanted)), shlex.quote("\n".join(link_lines))))
    parts.append(_SETTLE)
    units = " ".join(f"/{UNITS}/{UNIT}.{ending}" for ending in ("service", "timer"))
    parts.append(_TELL + _TRIAL_END.format(units=f"/{TIMER} {units}") if kind == TRIAL else _BEFORE_END)
    return "".join(parts) + _END


def merge(first: t.Optional[t.Mapping[str, t.Any]], later: t.Mapping[str, t.Any]) -> Data:
    """What it was before anything: the earliest word on each file and on each interface."""
    known = first or {"files": {}, "interfaces": {}}
    return {key: {**later[key], **known[key]} for key in ("files", "interfaces")}


def backup(content: bytes, mode: int, uid: int, gid: int) -> Data:
    """A file as C(script) takes it."""
    return {"content": base64.b64encode(content).decode(), "mode": f"{mode & 0o7777:04o}", "owner": f"{uid}:{gid}"}


def plain(data: t.Optional[t.Mapping[str, t.Any]], path: str) -> str:
    """The content of a kept file for a reader, nothing for one that was not there."""
    kept = (data or {}).get("files", {}).get(path)
    return base64.b64decode(kept["content"]).decode(errors="replace") if kept else ""
