# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""What follows from a node's rails: its address and its environment, with a reason for each variable. Pure."""

from __future__ import annotations

import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils._fabric import (
    Rail,
    build_rails,
    candidates,
    parse_address,
    parse_addresses,
    parse_network,
    read_netdevs,
    read_ports,
    used_rails,
)
from ansible_collections.sparkstack.inference.plugins.module_utils._fabric_problems import find_problems, no_address

Variable = t.Tuple[str, str, str]


def fabric_picture(
    root: str,
    ip_json: str,
    fabric_cidr: str,
    fabric_address: t.Optional[str] = None,
    expected_speed_mbps: int = 0,
) -> t.Dict[str, t.Any]:
    """The dictionary C(fabric) of a node.

    :param root: folder that holds C(sys).
    :param ip_json: text of C(ip -json addr).
    :param fabric_cidr: the fabric's IPv4 network.
    :param fabric_address: the node's address, when it isn't to be looked for.
    :param expected_speed_mbps: Mbit/s that each rail should have; 0 compares the rails among themselves.
    :raises FabricError: when an argument or C(ip_json) can't be read.
    """
    network = parse_network(fabric_cidr)
    forced = parse_address(fabric_address) if fabric_address else None
    addresses = parse_addresses(ip_json)
    netdevs, ports = read_netdevs(root), read_ports(root)
    if forced and forced not in network:
        # The host's own word outweighs the group's: its fabric is the subnet that this address is in.
        network = next((a.network for own in addresses.values() for a in own if a.ip == forced), network)
    rails = build_rails(netdevs, ports, addresses, network, forced)
    fitting = candidates(rails, network, forced)
    result: t.Dict[str, t.Any] = {
        "rails": [rail.fact() for rail in rails],
        "address": None,
        "netdev": None,
        "environment": {},
        "environment_reasons": {},
    }
    if not fitting:
        result["problems"] = [no_address(rails, network, forced, ip_json)]
        return result
    chosen = fitting[0]
    used = used_rails(rails, chosen, network)
    variables = environment(chosen, used, [port.hca for port in ports], list(netdevs))
    result.update(
        address=chosen.ip,
        netdev=chosen.netdev.name,
        environment={name: value for name, value, _reason in variables},
        environment_reasons={name: reason for name, _value, reason in variables},
        problems=find_problems(rails, chosen, used, network, addresses, forced, expected_speed_mbps),
    )
    return result


def environment(chosen: Rail, used: t.Sequence[Rail], hcas: t.Sequence[str], netdevs: t.Sequence[str]) -> t.List[Variable]:
    """The variables of this node as (name, value, reason).

    They hold for this node only: cables may be crossed, so that another node's interface has another name.

    :param used: the rails that traffic should go over.
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
    rdma = [rail for rail in used if rail.rdma]
    if rdma:
        variables += _rdma_variables(rdma, hcas)
    else:
        variables.append(("UCX_NET_DEVICES", netdev, "No RDMA device is usable on the fabric, so UCX gets its interface."))
    if not hcas:
        variables += [
            ("NCCL_IB_DISABLE", "1", "This node has no RDMA device."),
            ("NCCL_NET", "Socket", "This node has no RDMA device; an image may ask for IB."),
        ]
    return sorted(variables)


def _rdma_variables(rdma: t.Sequence[Rail], hcas: t.Sequence[str]) -> t.List[Variable]:
    names = [rail.hca for rail in rdma]
    where = ", ".join(f"{rail.hca} on {rail.netdev.name}" for rail in rdma)
    indexes = sorted({rail.gid_index for rail in rdma if rail.gid_index is not None})
    ucx = ",".join(f"{rail.port.hca}:{rail.port.port}" for rail in rdma if rail.port)
    variables: t.List[Variable] = [
        ("NCCL_IB_HCA", _exact(names, hcas), f"ACTIVE on the fabric: {where}."),
        ("NCCL_NET", "IB", "RDMA is there, so NCCL must fail rather than go over sockets unnoticed."),
        ("NCCL_IB_DISABLE", "0", "RDMA is there; an image may switch it off."),
        ("UCX_NET_DEVICES", ucx, f"ACTIVE on the fabric: {where}."),
    ]
    if len(indexes) == 1:
        reason = "RoCE v2 entry of the fabric address in the GID table of {}.".format(", ".join(names))
        variables.append(("NCCL_IB_GID_INDEX", str(indexes[0]), reason))
    elif indexes:
        reason = "The GID index differs between the rails ({}), so NCCL looks it up by this.".format(
            ", ".join(f"{rail.hca}: {rail.gid_index}" for rail in rdma)
        )
        variables += [("NCCL_IB_ROCE_VERSION_NUM", "2", reason), ("NCCL_IB_ADDR_FAMILY", "AF_INET", reason)]
    return variables


def _exact(names: t.Sequence[str], others: t.Sequence[str]) -> str:
    """A list for NCCL, which takes each name as a beginning: mlx5_1 means mlx5_10 too, unless a C(=) stands before."""
    bare = [name.split(":")[0] for name in names]
    ambiguous = any(other.startswith(name) and other not in bare for name in bare for other in others)
    return ("=" if ambiguous else "") + ",".join(names)
