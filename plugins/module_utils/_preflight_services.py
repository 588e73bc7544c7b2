# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""What stands between a node and the others: its firewall; and what its clock follows. Pure: files below a root folder, and texts of tools."""

from __future__ import annotations

import os
import re
import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils._files import text

Fact = t.Dict[str, t.Any]
CLOCKS = {"chronyd": "chrony", "systemd-timesyn": "systemd-timesyncd", "ntpd": "ntpd", "ptp4l": "ptp4l", "phc2sys": "phc2sys"}
"""Programs that set the clock, by the name that the kernel knows them by (15 characters)."""
FIREWALLD = "firewalld"
# '	chain INPUT {', then '		type filter hook input priority filter; policy drop;'
_CHAIN = re.compile(r"^chain (\S+) \{$")
_HOOK = re.compile(r"^type filter hook input priority [^;]+;(?: policy (accept|drop);)?$")
# '-P INPUT DROP', the first line of 'iptables --list-rules INPUT'
_POLICY = re.compile(r"^-P INPUT (ACCEPT|DROP)", re.MULTILINE)
_RULES = re.compile(r"^-A INPUT ", re.MULTILINE)
_UFW_ENABLED = re.compile(r"^ENABLED=yes", re.MULTILINE | re.IGNORECASE)
_UFW_POLICY = re.compile(r"^DEFAULT_INPUT_POLICY=\W*(accept|drop|reject)", re.MULTILINE | re.IGNORECASE)


def firewall(root: str, running: t.Collection[str], nft: str, iptables: str) -> Fact:
    """The firewall for what comes in: C(tool) (ufw, firewalld, nftables, iptables or None), C(active), and C(policy) (accept, drop, reject or
    None), which is what becomes of what no rule speaks of.

    :param running: names of programs that run. :param nft: the answer of C(nft --stateless list ruleset), or nothing.
    :param iptables: that of C(iptables --list-rules INPUT), or nothing. Sources: these, /etc/ufw/ufw.conf and /etc/default/ufw.
    """
    if _UFW_ENABLED.search(text(os.path.join(root, "etc/ufw/ufw.conf"))):
        found = _UFW_POLICY.search(text(os.path.join(root, "etc/default/ufw")))
        return {"tool": "ufw", "active": True, "policy": found.group(1).lower() if found else None}
    if FIREWALLD in running:
        # Its zones reject by default, and what it lets in is in its configuration, not in a chain's policy.
        return {"tool": FIREWALLD, "active": True, "policy": "reject"}
    policy = _POLICY.search(iptables)
    chains = input_chains(nft)
    if policy and (policy.group(1) == "DROP" or _RULES.search(iptables)):
        return {"tool": "iptables", "active": True, "policy": policy.group(1).lower()}
    if chains:
        # What iptables-nft writes stands in the table 'ip filter', chain INPUT; its users know it by that program's name.
        tool = "iptables" if all(chain == "INPUT" for chain, _policy in chains) else "nftables"
        return {"tool": tool, "active": True, "policy": "drop" if any(policy == "drop" for _chain, policy in chains) else "accept"}
    return {"tool": None, "active": False, "policy": None}


def input_chains(ruleset: str) -> t.List[t.Tuple[str, str]]:
    """The chains of a ruleset of nft that what comes in goes through and that do something, each with its policy.

    Docker's and iptables' own chains are there also where nobody has written a rule: those do nothing.
    """
    found, chain, policy, rules = [], "", "", 0
    for line in (line.strip() for line in ruleset.splitlines()):
        begin, hook = _CHAIN.match(line), _HOOK.match(line)
        if begin:
            chain, policy, rules = begin.group(1), "", 0
        elif hook:
            policy = hook.group(1) or "accept"
        elif line == "}":
            if chain and policy and (rules or policy == "drop"):
                found.append((chain, policy))
            chain = ""
        elif chain and line:
            rules += 1
    return found


def clock(running: t.Collection[str], timedatectl: str) -> Fact:
    """C(synchronised) (None where nobody tells), and C(by), the program that sets the clock, or None.

    :param timedatectl: the answer of C(timedatectl show), with the line C(NTPSynchronized=yes), or nothing.
    """
    found = re.search(r"^NTPSynchronized=(yes|no)$", timedatectl, re.MULTILINE)
    return {
        "synchronised": found.group(1) == "yes" if found else None,
        "by": next((name for program, name in CLOCKS.items() if program in running), None),
    }
