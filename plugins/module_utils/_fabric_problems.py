# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""What is wrong with a node's rails, each with a code, one sentence and a remedy. Pure."""

from __future__ import annotations

import ipaddress
import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils._fabric import (
    Addresses,
    Rail,
    active_mtu,
    are_twins,
    has_ipv6_only,
)

JUMBO_MTU = 9000

Problem = t.Dict[str, str]


def no_address(
    rails: t.Sequence[Rail],
    network: ipaddress.IPv4Network,
    forced: t.Optional[ipaddress.IPv4Address],
    ip_json: str,
) -> Problem:
    """The one problem of a node without an address on the fabric; C(ip_json) is the text of C(ip -json addr)."""
    if forced:
        return _problem(
            "fabric_address_absent",
            f"No interface of this node has the fabric address {forced}.",
            "Give the fabric interface that address, or correct fabric_address for this host in the inventory.",
        )
    if has_ipv6_only(ip_json, {rail.netdev.name for rail in rails}):
        return _problem(
            "ipv6_only",
            f"The fabric interface has only IPv6 addresses, and none of the node's is inside {network}.",
            f"Give it an IPv4 address inside {network}: RoCE v2 is set up over IPv4 here.",
        )
    seen = ["{} ({}, {})".format(r.netdev.name, "up" if r.up else "down", r.ip or "no address") for r in rails]
    return _problem(
        "no_address",
        "No interface of this node has an address inside the fabric {}{}.".format(network, "; with an RDMA device there is " + ", ".join(seen) if seen else ""),
        "Give the fabric interface one, or set fabric_cidr to the network that it is in.",
    )


def find_problems(
    rails: t.Sequence[Rail],
    chosen: Rail,
    used: t.Sequence[Rail],
    network: ipaddress.IPv4Network,
    addresses: Addresses,
    forced: t.Optional[ipaddress.IPv4Address] = None,
    expected_speed_mbps: int = 0,
) -> t.List[Problem]:
    """Everything that is wrong with a node that has a fabric address.

    :param chosen: the rail that gives the node its address; C(used) are those that traffic should go over.
    :param expected_speed_mbps: Mbit/s that each used rail should have; 0 compares them among themselves.
    """
    problems = []
    if not forced:
        problems += _address_problems(rails, chosen, network, addresses.get(chosen.netdev.name, []))
    problems += _twin_problems(rails, chosen)
    problems += _link_problems(rails, chosen, network)
    for rail in used:
        problems += _rail_problems(rail, expected_speed_mbps or max(r.netdev.speed_mbps or 0 for r in used))
    if chosen.port is None:
        problems.append(_no_rdma(rails, chosen))
    return problems


def _address_problems(
    rails: t.Sequence[Rail],
    chosen: Rail,
    network: ipaddress.IPv4Network,
    own: t.Sequence[ipaddress.IPv4Interface],
) -> t.List[Problem]:
    others = [rail for rail in rails if rail.netdev.name != chosen.netdev.name and rail.subnet == chosen.subnet and not are_twins(rail, chosen)]
    names = [f"{rail.netdev.name} ({rail.ip})" for rail in others]
    names += [str(address.ip) for address in own if address.ip in network and address != chosen.address]
    if not names:
        return []
    return [
        _problem(
            "several_addresses",
            "Besides {} ({}), also {} could be the node's fabric address.".format(chosen.netdev.name, chosen.ip, ", ".join(names)),
            "Leave one, or name the right one by fabric_address for this host in the inventory.",
        )
    ]


def _twin_problems(rails: t.Sequence[Rail], chosen: Rail) -> t.List[Problem]:
    twin = next((rail for rail in rails if are_twins(rail, chosen)), None)
    if twin is None:
        return []
    name = twin.netdev.name
    if twin.subnet and twin.subnet == chosen.subnet:
        message = (
            f"{chosen.netdev.name} and {name} are the two halves of one port and are both in {twin.subnet}, so RDMA is unreliable on {name} and it is left out."
        )
        remedy = f"Give {name} an address in a subnet of its own, the same one on every node."
        return [_problem("twins_one_subnet", message, remedy)]
    if not twin.rdma:
        what = "has no IPv4 address with a GID" if twin.up else "is down"
        message = f"{name}, the second half of {chosen.netdev.name}'s port, {what}, so half of the link is unused."
        remedy = f"Bring {name} up with an address in a subnet of its own, the same one on every node."
        return [_problem("twin_unused", message, remedy)]
    return []


def _link_problems(rails: t.Sequence[Rail], chosen: Rail, network: ipaddress.IPv4Network) -> t.List[Problem]:
    problems = []
    for rail in rails:
        name = rail.netdev.name
        if rail.netdev.up:
            continue
        if name == chosen.netdev.name:
            message, code = f"The fabric link {name} is down.", "link_down"
        elif rail.address and rail.address.ip in network and not are_twins(rail, chosen):
            message, code = f"{name} has the fabric address {rail.ip} and is down, so it is left out.", "rail_down"
        else:
            continue
        remedy = f"Check the cable and the other end, then bring it up with 'ip link set {name} up'."
        problems.append(_problem(code, message, remedy))
    return problems


def _rail_problems(rail: Rail, expected_speed_mbps: int) -> t.List[Problem]:
    problems = []
    name, mtu, speed = rail.netdev.name, rail.netdev.mtu, rail.netdev.speed_mbps
    if rail.port and rail.port.ethernet and mtu < JUMBO_MTU:
        message = f"The MTU of {name} is {mtu}, so RDMA sends {active_mtu(mtu)} bytes at a time instead of 4096."
        remedy = f"Set it to {JUMBO_MTU} on every node and on the switch between them."
        problems.append(_problem("mtu_small", message, remedy))
    if speed is not None and rail.netdev.up and speed < expected_speed_mbps:
        message = f"{name} runs at {speed} Mbit/s where {expected_speed_mbps} are expected."
        remedy = "Check the cable; a Spark's network card may need its power taken off for a minute."
        problems.append(_problem("speed_degraded", message, remedy))
    if rail.port and rail.netdev.up and rail.port.state != "ACTIVE":
        message = "The RDMA port of {} on {} is {}, not ACTIVE.".format(rail.hca, name, rail.port.state or "in an unknown state")
        problems.append(_problem("rdma_down", message, "Check the cable and that the interface is up on both ends."))
    elif rail.port and rail.port.ethernet and rail.netdev.up and rail.gid_index is None:
        message = f"{rail.hca} has no RoCE v2 entry for {rail.ip} in its GID table."
        remedy = f"Set {name} down and up again, or load its driver anew."
        problems.append(_problem("no_roce_v2_gid", message, remedy))
    return problems


def _no_rdma(rails: t.Sequence[Rail], chosen: Rail) -> Problem:
    elsewhere = [f"{rail.hca} on {rail.netdev.name}" for rail in rails if rail.port]
    if elsewhere:
        return _problem(
            "rdma_elsewhere",
            "The fabric address is on {}, which has no RDMA device, while there is {}.".format(chosen.netdev.name, ", ".join(elsewhere)),
            "Put the fabric address on an interface with an RDMA device, else NCCL may go over TCP.",
        )
    return _problem(
        "no_rdma",
        f"{chosen.netdev.name} has no RDMA device, so NCCL goes over TCP.",
        "Nothing is to be done, unless this node should have one: then install or load its driver.",
    )


def _problem(code: str, message: str, remedy: str) -> Problem:
    return {"code": code, "message": message, "remedy": remedy}
