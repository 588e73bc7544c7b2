# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is wrong with a node's set-up rather than with a cable: its MTU, its addresses, a firewall, a way that is closed, its hosts file.

All of it is gone after a boot, as the node's network is new then, and 'lab mend' takes it away at once.
"""

from __future__ import annotations

import ipaddress
import re
import typing as t
from pathlib import Path

from .network import FABRIC_CARD, NETNS, PANEL
from .state import fabric_address, number
from .system import LabError, run, write

KINDS = {
    "mtu": "MTU of the fabric card, in bytes",
    "address": "another address with its prefix in place of the fabric card's, such as 192.168.210.12/24",
    "also-address": "one more address with its prefix on the fabric card",
    "drop": "a TCP port that the node's firewall drops",
    "reject": "a TCP port that the node's firewall refuses",
    "deaf": "IPv4 packets to the node on the fabric are lost, ARP is not (no value)",
    "mute": "IPv4 packets from the node on the fabric are lost, ARP is not (no value)",
    "hosts": "a line in front of the node's /etc/hosts, such as 127.0.1.1=spark1",
}
TABLE = "labfault"
_MARK = "# lab fault"


def check(kind: str, value: str) -> str:
    """The value as it is used; LabError for one that makes no sense."""
    if kind in ("mtu", "drop", "reject"):
        least, most = (576, 9000) if kind == "mtu" else (1, 65535)
        if not value.isdigit() or not least <= int(value) <= most:
            raise LabError(f"'{value}' is no {'MTU' if kind == 'mtu' else 'port'}; give a number from {least} to {most}.")
    elif kind in ("address", "also-address"):
        try:
            if "/" not in value:
                raise ValueError
            value = str(ipaddress.IPv4Interface(value))
        except ValueError:
            raise LabError(f"'{value}' is no address with a prefix; write it like 192.168.210.12/24.") from None
    elif kind == "hosts":
        if not re.fullmatch(r"[0-9a-fA-F.:]+=[A-Za-z0-9.-]+", value):
            raise LabError(f"'{value}' is no ADDRESS=NAME; write it like 127.0.1.1=spark1.")
    elif value:
        raise LabError(f"The fault {kind} takes no value.")
    return value


def rules(kind: str, value: str, name: str) -> tuple[str, str]:
    """The namespace, and what nft is told there."""
    if kind in ("deaf", "mute"):
        way = "oifname" if kind == "deaf" else "iifname"
        table = f"table bridge {TABLE}{name}"
        return PANEL, f"{table} {{ chain {kind} {{ type filter hook forward priority 0; {way} f{number(name)} ether type ip drop; }}; }}\n"
    verdict = "drop" if kind == "drop" else "reject with icmp type admin-prohibited"
    # ufw and firewalld let in what the node sends to itself.
    rule = f'iifname != "lo" tcp dport {value} {verdict}'
    return name, f"table inet {TABLE} {{ chain input {{ type filter hook input priority 0; {rule}; }}; }}\n"


def make(name: str, kind: str, value: str, root: Path) -> None:
    """Make a fault. :param root: where the node's disk is mounted."""
    value = check(kind, value)
    if not (NETNS / name).exists():
        raise LabError(f"{name} is off; switch it on with 'lab start {name}'.")
    if kind == "mtu":
        run("ip", "-n", name, "link", "set", FABRIC_CARD, "mtu", value)
    elif kind == "address":
        run("ip", "-n", name, "addr", "flush", "dev", FABRIC_CARD)
        run("ip", "-n", name, "addr", "add", value, "dev", FABRIC_CARD)
    elif kind == "also-address":
        run("ip", "-n", name, "addr", "add", value, "dev", FABRIC_CARD)
    elif kind == "hosts":
        address, _equals, other = value.partition("=")
        path = root / "etc/hosts"
        write(path, f"{address} {other} {_MARK}\n{path.read_text()}")
    else:
        namespace, told = rules(kind, value, name)
        run("ip", "netns", "exec", namespace, "nft", "-f", "-", input=told)


def mend(name: str, root: Path) -> None:
    """Take all of a node's faults away."""
    if not (NETNS / name).exists():
        return
    run("ip", "-n", name, "link", "set", FABRIC_CARD, "mtu", "9000")
    run("ip", "-n", name, "addr", "flush", "dev", FABRIC_CARD)
    run("ip", "-n", name, "addr", "add", f"{fabric_address(name)}/24", "dev", FABRIC_CARD)
    for namespace, family, table in ((name, "inet", TABLE), (PANEL, "bridge", f"{TABLE}{name}")):
        run("ip", "netns", "exec", namespace, "nft", "-f", "-", input=f"table {family} {table}\ndelete table {family} {table}\n")
    path = root / "etc/hosts"
    if path.exists() and _MARK in path.read_text():
        write(path, "".join(line for line in path.read_text().splitlines(keepends=True) if _MARK not in line))


def described() -> t.Iterator[str]:
    """Each kind with what it is, for the help."""
    return (f"{kind}: {what}" for kind, what in KINDS.items())
