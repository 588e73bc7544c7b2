# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""What follows from a node's rails: its address and its environment, with a reason for each variable. Pure."""

from __future__ import annotations

import ipaddress
import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils._fabric import (
    Rail,
    build_rails,
    candidates,
    control_rail,
    twin_of,
    used_rails,
)
from ansible_collections.sparkstack.inference.plugins.module_utils._fabric_problems import control_absent, find_problems, no_address
from ansible_collections.sparkstack.inference.plugins.module_utils._fabric_read import (
    Addresses,
    HcaPort,
    Netdev,
    parse_address,
    parse_addresses,
    parse_network,
    read_netdevs,
    read_ports,
)

Variable = t.Tuple[str, str, str]
# What NCCL takes for the length of every subnet's prefix when it looks for the device that shares one with the peer.
# Source: NCCL_PARAM(IbSubnetPrefixLen, .., 24) in NCCL's src/transport/net_ib/connect.cc.
_NCCL_PREFIX = 24

NAMES = frozenset(
    "GLOO_SOCKET_IFNAME MN_IF_NAME NCCL_CROSS_NIC NCCL_IB_ADDR_FAMILY NCCL_IB_DISABLE NCCL_IB_GID_INDEX NCCL_IB_HCA NCCL_IB_MERGE_NICS "
    "NCCL_IB_ROCE_VERSION_NUM NCCL_IB_SUBNET_AWARE_ROUTING NCCL_IB_SUBNET_PREFIX_LEN NCCL_IGNORE_CPU_AFFINITY NCCL_NET NCCL_NET_PLUGIN "
    "NCCL_SOCKET_IFNAME OMPI_MCA_btl_tcp_if_include RAY_NODE_IP_ADDRESS RAY_OVERRIDE_NODE_IP_ADDRESS SGLANG_HOST_IP TP_SOCKET_IFNAME "
    "UCX_NET_DEVICES VLLM_HOST_IP".split()
)
"""All variables that a node may be given."""


def fabric_picture(
    root: str,
    ip_json: str,
    fabric_cidr: str,
    fabric_address: t.Optional[str] = None,
    expected_speed_mbps: int = 0,
    control_address: t.Optional[str] = None,
    subnet_aware: bool = False,
    without: t.Sequence[str] = (),
) -> t.Dict[str, t.Any]:
    """The dictionary C(fabric) of a node.

    :param root: folder that holds C(sys).
    :param ip_json: text of C(ip -json addr).
    :param fabric_cidr: the fabric's IPv4 network.
    :param fabric_address: the node's address, when it isn't to be looked for.
    :param expected_speed_mbps: Mbit/s that each rail should have; 0 compares the rails among themselves.
    :param control_address: an address by which all nodes reach this one, where no subnet of the fabric holds them all.
    :param subnet_aware: whether NCCL must look for the device that shares a subnet with the peer, see :mod:`_fabric_group`.
    :param without: interfaces that are left out, since no other node is behind them.
    :raises FabricError: when an argument or C(ip_json) can't be read.
    """
    network = parse_network(fabric_cidr)
    forced = parse_address(fabric_address) if fabric_address else None
    control = parse_address(control_address, "control_address") if control_address else None
    addresses = parse_addresses(ip_json)
    netdevs, ports = read_netdevs(root), read_ports(root)
    if forced and forced not in network and not control:
        # The host's own word outweighs the group's: its fabric is the subnet that this address is in.
        network = next((a.network for own in addresses.values() for a in own if a.ip == forced), network)
    rails = build_rails(netdevs, ports, addresses, network, forced)
    fitting = candidates(rails, network, forced)
    result: t.Dict[str, t.Any] = {
        "rails": [rail.fact(twin=_name(twin_of(rail, rails))) for rail in rails],
        "interfaces": interfaces(netdevs, addresses),
        "candidates": [{"netdev": rail.netdev.name, "address": rail.ip} for rail in fitting],
        "address": None,
        "netdev": None,
        "environment": {},
        "environment_reasons": {},
    }
    if not fitting:
        result["problems"] = [no_address(rails, network, forced, ip_json)]
        return result
    chosen = next((rail for rail in fitting if control in (None, rail.address.ip if rail.address else None)), None)
    if chosen is None and control:
        chosen = control_rail(netdevs, addresses, control)
    if chosen is None:
        result["problems"] = [control_absent(str(control))]
        return result
    used = used_rails(rails, chosen, network, without)
    traffic = used if chosen in rails else used[1:]
    rdma = [rail for rail in traffic if rail.rdma]
    infiniband = infiniband_ports(ports, rdma)
    variables = environment(chosen, rdma, infiniband, [port.hca for port in ports], list(netdevs), subnet_aware)
    result.update(
        rails=[rail.fact(used=rail in traffic or rail.port in infiniband, twin=_name(twin_of(rail, rails))) for rail in rails],
        address=chosen.ip,
        netdev=chosen.netdev.name,
        environment={name: value for name, value, _reason in variables},
        environment_reasons={name: reason for name, _value, reason in variables},
        problems=find_problems(rails, chosen, used, network, addresses, bool(forced or control), expected_speed_mbps, without, bool(rdma or infiniband)),
    )
    return result


def interfaces(netdevs: t.Mapping[str, Netdev], addresses: Addresses) -> t.List[t.Dict[str, t.Any]]:
    """All interfaces with an IPv4 address, whatever they are for: RV(ansible_facts.fabric.interfaces)."""
    return [
        {
            "netdev": name,
            "kind": netdev.kind,
            "members": list(netdev.members),
            "addresses": [str(address) for address in addresses[name]],
            "mac": netdev.mac,
            "mtu": netdev.mtu,
            "speed_mbps": netdev.speed_mbps,
            "carrier": netdev.carrier,
            "state": "up" if netdev.up else "down",
        }
        for name, netdev in sorted(netdevs.items())
        if addresses.get(name)
    ]


def infiniband_ports(ports: t.Sequence[HcaPort], rdma: t.Sequence[Rail]) -> t.List[HcaPort]:
    """The InfiniBand ports that NCCL should use: all that are ACTIVE, unless the fabric is RoCE.

    A subnet manager makes a port ACTIVE, so it is on the InfiniBand fabric whether it has an IP address or not. NCCL can't
    use both kinds at once: "Attempted to merge incompatible devices".
    """
    if any(rail.port and rail.port.ethernet for rail in rdma):
        return []
    return [port for port in ports if not port.ethernet and port.state == "ACTIVE"]


def environment(
    chosen: Rail,
    rdma: t.Sequence[Rail],
    infiniband: t.Sequence[HcaPort],
    hcas: t.Sequence[str],
    netdevs: t.Sequence[str],
    subnet_aware: bool = False,
) -> t.List[Variable]:
    """The variables of this node as (name, value, reason).

    They hold for this node only: cables may be crossed, so that another node's interface has another name.

    :param chosen: the interface for sockets. :param rdma: the rails that RDMA should go over.
    :param infiniband: the InfiniBand ports that NCCL should use, whether they have an address or not.
    :param hcas: the names of all RDMA devices of the node, to see whether one is the beginning of another.
    :param netdevs: the names of all interfaces of the node, for the same.
    """
    netdev, address = chosen.netdev.name, chosen.ip
    carries = f"{netdev} carries the node's fabric address {address}"
    variables: t.List[Variable] = [
        ("VLLM_HOST_IP", address, "vLLM tells the other ranks this address; it would pick the default route's."),
        ("SGLANG_HOST_IP", address, "SGLang's message queue tells this address; it would pick the default route's."),
        ("RAY_NODE_IP_ADDRESS", address, "Ray names the node by this address."),
        ("RAY_OVERRIDE_NODE_IP_ADDRESS", address, "Ray's worker processes look here instead of guessing."),
        ("GLOO_SOCKET_IFNAME", netdev, carries + "; gloo takes exactly one interface and no pattern."),
        ("TP_SOCKET_IFNAME", netdev, carries + "."),
        ("MN_IF_NAME", netdev, carries + "."),
        ("OMPI_MCA_btl_tcp_if_include", netdev, carries + "."),
        ("NCCL_SOCKET_IFNAME", _exact([netdev], netdevs), carries + "; NCCL meets and falls back over it."),
        ("NCCL_IGNORE_CPU_AFFINITY", "1", "NCCL's threads may use all cores, not only the one they were started on."),
    ]
    named = {rail.hca: f"{rail.hca} on {rail.netdev.name}" for rail in rdma}
    named.update({port.name: f"{port.name} (InfiniBand)" for port in infiniband if port.name not in named})
    if named:
        where = "ACTIVE on the fabric: {}.".format(", ".join(named.values()))
        pairs = {rail.hca: rail.port for rail in rdma}
        pairs.update({port.name: port for port in infiniband})
        variables += [
            ("NCCL_IB_HCA", _exact(list(named), hcas), where),
            ("NCCL_NET", "IB", "RDMA is there, so NCCL must fail rather than go over sockets unnoticed."),
            ("NCCL_IB_DISABLE", "0", "RDMA is there; an image may switch it off."),
            ("UCX_NET_DEVICES", ",".join(f"{port.hca}:{port.port}" for port in pairs.values() if port), where),
        ]
        variables += _gid_variables(rdma)
        variables += _subnet_variables(rdma) if subnet_aware else _rail_variables(rdma)
    else:
        variables.append(("UCX_NET_DEVICES", netdev, "No RDMA device is usable on the fabric, so UCX gets its interface."))
    if not hcas:
        variables += [
            ("NCCL_IB_DISABLE", "1", "This node has no RDMA device."),
            ("NCCL_NET", "Socket", "This node has no RDMA device; an image may ask for IB."),
        ]
    return sorted(variables)


def _gid_variables(rdma: t.Sequence[Rail]) -> t.List[Variable]:
    """Which entry of the GID table NCCL takes. It has one number for all devices of the node."""
    indexes = sorted({rail.gid_index for rail in rdma if rail.gid_index is not None})
    if len(indexes) == 1:
        reason = "RoCE v2 entry of the fabric address in the GID table of {}.".format(", ".join(rail.hca for rail in rdma))
        return [("NCCL_IB_GID_INDEX", str(indexes[0]), reason)]
    if not indexes:
        return []
    reason = "The GID index differs between the rails ({}), so NCCL looks it up by this.".format(", ".join(f"{rail.hca}: {rail.gid_index}" for rail in rdma))
    return [("NCCL_IB_GID_INDEX", "-1", reason), ("NCCL_IB_ROCE_VERSION_NUM", "2", reason), ("NCCL_IB_ADDR_FAMILY", "AF_INET", reason)]


def _rail_variables(rdma: t.Sequence[Rail]) -> t.List[Variable]:
    """For rails that lead to the same nodes, each in a subnet of its own.

    Source: NCCL_CROSS_NIC in NCCL's documentation, and its hint for a failed ibv_modify_qp: "In many cases this error occurs
    when NICs are not cross-rail connected".
    """
    subnets = {rail.subnet for rail in rdma if rail.port and rail.port.ethernet}
    if len(subnets) < 2:
        return []
    return [("NCCL_CROSS_NIC", "0", "Each rail is in a subnet of its own, so no device reaches another rail's device.")]


def _subnet_variables(rdma: t.Sequence[Rail]) -> t.List[Variable]:
    """For rails that lead to different nodes, as in a ring of three.

    Source: ncclIbFindDevBySubnet() in NCCL's src/transport/net_ib/connect.cc (NCCL 2.30), and NVIDIA's set-up of three Sparks,
    which runs NCCL with these.
    """
    prefixes: t.Set[int] = {subnet.prefixlen for subnet in (rail.subnet for rail in rdma) if isinstance(subnet, ipaddress.IPv4Network)}
    variables: t.List[Variable] = [
        ("NCCL_IB_SUBNET_AWARE_ROUTING", "1", "The rails lead to different nodes: NCCL must take the one in the peer's subnet (NCCL 2.30 and newer)."),
        ("NCCL_IB_MERGE_NICS", "0", "The two ports of a card lead to different nodes, so NCCL must not make one device of them."),
        ("NCCL_NET_PLUGIN", "none", "Only NCCL's own network knows NCCL_IB_SUBNET_AWARE_ROUTING; an image may bring a plugin."),
    ]
    if prefixes and prefixes != {_NCCL_PREFIX}:
        reason = f"The rails' subnets are no /{_NCCL_PREFIX}, for which NCCL takes them."
        variables.append(("NCCL_IB_SUBNET_PREFIX_LEN", str(max(prefixes)), reason))
    return variables


def _exact(names: t.Sequence[str], others: t.Sequence[str]) -> str:
    """A list for NCCL, which takes each name as a beginning: mlx5_1 means mlx5_10 too, unless a C(=) stands before."""
    bare = [name.split(":")[0] for name in names]
    ambiguous = any(other.startswith(name) and other not in bare for name in bare for other in others)
    return ("=" if ambiguous else "") + ",".join(names)


def _name(rail: t.Optional[Rail]) -> t.Optional[str]:
    return rail.netdev.name if rail else None
