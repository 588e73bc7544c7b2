# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""What is wrong with a node's rails, each with a code, one sentence and a remedy. Pure."""

from __future__ import annotations

import ipaddress
import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils._fabric import Rail, active_mtu, are_twins, twin_of
from ansible_collections.sparkstack.inference.plugins.module_utils._fabric_read import Addresses, has_ipv6_only

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


def control_absent(address: str) -> Problem:
    """The one problem of a node that lacks the address by which all others should reach it."""
    return _problem(
        "control_address_absent",
        f"No interface of this node has the address {address}, by which all nodes should reach it.",
        "Give control_address of this node's own management network, or leave it out.",
    )


def find_problems(
    rails: t.Sequence[Rail],
    chosen: Rail,
    used: t.Sequence[Rail],
    network: ipaddress.IPv4Network,
    addresses: Addresses,
    named: bool = False,
    expected_speed_mbps: int = 0,
    without: t.Container[str] = (),
    rdma: bool = True,
) -> t.List[Problem]:
    """Everything that is wrong with a node that has a fabric address.

    :param chosen: the rail that gives the node its address; C(used) are those that traffic should go over.
    :param named: whether the address was given, so that others that would do are no question.
    :param expected_speed_mbps: Mbit/s that each used rail should have; 0 compares them among themselves.
    :param without: interfaces that are left out for a reason of the group's.
    :param rdma: whether NCCL has an RDMA device to use.
    """
    problems = []
    if not named:
        problems += _address_problems(rails, chosen, network, addresses.get(chosen.netdev.name, []))
    carriers = [chosen] if chosen in rails else [rail for rail in used if rail is not chosen]
    problems += _twin_problems(rails, carriers, without)
    problems += _link_problems(rails, chosen, network)
    for rail in carriers if chosen not in rails else used:
        problems += _rail_problems(rail, expected_speed_mbps or max(r.netdev.speed_mbps or 0 for r in used))
    problems += _kind_problems(chosen, used)
    if not rdma and all(rail.port is None for rail in used):
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


def _twin_problems(rails: t.Sequence[Rail], carriers: t.Sequence[Rail], without: t.Container[str]) -> t.List[Problem]:
    problems = []
    seen: t.Set[str] = set()
    for rail in carriers:
        twin = twin_of(rail, rails)
        seen.add(rail.netdev.name)
        # Both on one bond are no two rails.
        if twin is None or twin.netdev.name in seen or twin.netdev.name in without:
            continue
        name = twin.netdev.name
        seen.add(name)
        if twin.subnet and twin.subnet == rail.subnet:
            message = (
                f"{rail.netdev.name} and {name} are the two halves of one port and are both in {twin.subnet}, so RDMA is unreliable on {name} "
                "and it is left out."
            )
            remedy = f"Give {name} an address in a subnet of its own, the same one on every node."
            problems.append(_problem("twins_one_subnet", message, remedy))
        elif not twin.rdma:
            what = "has no IPv4 address with a GID" if twin.up else "is down"
            message = f"{name}, the second half of {rail.netdev.name}'s port, {what}, so half of the link is unused."
            remedy = f"Bring {name} up with an address in a subnet of its own, the same one on every node."
            problems.append(_problem("twin_unused", message, remedy))
    return problems


def _link_problems(rails: t.Sequence[Rail], chosen: Rail, network: ipaddress.IPv4Network) -> t.List[Problem]:
    problems = []
    for rail in rails:
        name = rail.netdev.name
        if rail.netdev.up:
            continue
        # The kernel tells of no signal only where the interface is set up.
        state = "has no signal" if rail.netdev.carrier is False else "is down"
        if name == chosen.netdev.name:
            message, code = f"The fabric link {name} {state}.", "link_down"
        elif rail.address and rail.address.ip in network and not are_twins(rail, chosen):
            message, code = f"{name} has the fabric address {rail.ip} and {state}, so it is left out.", "rail_down"
        else:
            continue
        remedy = f"Check the cable and the other end, then bring it up with 'ip link set {name} up'."
        if rail.netdev.carrier is False:
            remedy = f"Check the cable of {name} and that the interface at its other end is up."
        problems.append(_problem(code, message, remedy))
    if not chosen.netdev.up and chosen not in rails:
        message = f"The link {chosen.netdev.name} with the address {chosen.ip} is down."
        problems.append(_problem("link_down", message, f"Check its cable, then bring it up with 'ip link set {chosen.netdev.name} up'."))
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


def _kind_problems(chosen: Rail, used: t.Sequence[Rail]) -> t.List[Problem]:
    problems = []
    if chosen.netdev.kind == "wlan":
        message = f"The fabric address {chosen.ip} is on {chosen.netdev.name}, which is wireless."
        problems.append(_problem("wireless", message, "Put it on a cabled interface, or correct fabric_cidr."))
    for netdev in {rail.netdev.name: rail.netdev for rail in used}.values():
        if netdev.kind == "bond" and any(rail.port for rail in used if rail.netdev.name == netdev.name):
            message = "{} bonds {} ({}), so NCCL sees one RDMA device where each of them could be one.".format(
                netdev.name, " and ".join(netdev.members) or "no interface", netdev.mode or "mode unknown"
            )
            problems.append(_problem("bond", message, "Take the bond apart, and give each interface an address in a subnet of its own."))
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
