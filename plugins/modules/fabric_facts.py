#!/usr/bin/python
# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: fabric_facts
short_description: Gathers a node's place on the RoCE fabric, and the environment that follows from it
version_added: 1.0.0
description:
  - Finds the network interfaces with an RDMA device, the node's address on the fabric, and what is wrong with them.
  - Returns the NCCL, gloo, UCX and engine variables that this very node should use. They must not be copied to another
    node, whose interfaces may have other names.
  - The second PCI function of a Spark's port (its twin) is used as well when it has an IPv4 address in a subnet of its
    own, even if that is outside O(fabric_cidr).
  - With InfiniBand, all ports that are ACTIVE are used, whether they have an IP address or not.
  - Only IPv4 is looked at.
extends_documentation_fragment:
  - sparkstack.inference.attributes
  - sparkstack.inference.attributes.actiongroup_spark
  - sparkstack.inference.attributes.facts_module
attributes:
  platform:
    description: Target OS/families that can be operated against.
    support: full
    platforms: linux
options:
  fabric_cidr:
    description:
      - The IPv4 network that is the fabric.
      - It may hold several rails in subnets of their own. The node's address is then that in the lowest subnet whose
        link is up.
    type: str
    default: 192.168.200.0/24
  fabric_address:
    description:
      - The node's address on the fabric, when it isn't to be looked for in O(fabric_cidr).
      - When it is outside O(fabric_cidr), the subnet that it is in counts as the fabric.
      - Empty means to look for it.
    type: str
  expected_speed_mbps:
    description:
      - The speed in Mbit/s that each rail should have. A slower one is a problem.
      - With V(0), a rail is a problem when it is slower than another one of this node.
    type: int
    default: 0
  control_address:
    description:
      - An address of this node by which all nodes reach it, where no subnet of the fabric holds them all, as with three
        Sparks in a ring. It is most often that of the management network.
      - Sockets then go over it, and RDMA over all rails inside O(fabric_cidr).
      - Empty means that the address on the fabric serves for both.
    type: str
  subnet_aware:
    description:
      - Have NCCL look for the device that shares a subnet with the peer, for rails that lead to different nodes.
      - This takes NCCL 2.30 or newer.
    type: bool
    default: false
  without:
    description:
      - Interfaces that are left out, since no other node is behind them.
    type: list
    elements: str
    default: []
requirements:
  - C(ip) of iproute2 4.13 or newer on the node.
seealso:
  - module: sparkstack.inference.fabric_environment_info
  - module: sparkstack.inference.gpu_memory_facts
  - plugin: sparkstack.inference.fabric_group
    plugin_type: filter
author:
  - The sparkstack.inference developers (@sparkstack)
"""

EXAMPLES = r"""
---
- name: Gather the fabric
  sparkstack.inference.fabric_facts:

- name: Gather the fabric of a pair of Sparks that are joined by both cables
  sparkstack.inference.fabric_facts:
    fabric_cidr: 192.168.200.0/22
    expected_speed_mbps: 200000

- name: Show what is wrong
  ansible.builtin.debug:
    msg: "{{ ansible_facts['fabric']['problems'] }}"
"""

RETURN = r"""
ansible_facts:
  description: The facts that are added to the host.
  returned: always
  type: dict
  contains:
    fabric:
      description: The node's place on the fabric.
      returned: always
      type: dict
      contains:
        rails:
          description:
            - The pairs of a network interface and an RDMA device, whether they carry the fabric or not.
            - An interface with a fabric address and without an RDMA device stands there too. Its C(hca), C(port),
              C(active_mtu) and C(gid_index) are null.
            - C(state) is V(up) when the interface is up and the RDMA port is ACTIVE, else V(down).
            - C(gid_index) is the RoCE v2 entry of the address in the port's GID table.
            - C(kind) is V(ethernet), V(infiniband), V(bond), V(vlan), V(bridge), V(wlan) or V(virtual); C(members) are the
              interfaces that a bond, bridge or VLAN stands on.
            - C(carrier) is whether there is a signal; null for an interface that is set down.
            - C(driver_version) is null for the kernel's own driver, which goes by the kernel's version. C(board) is the
              maker's word for the board, at NVIDIA the PSID.
            - C(twin) is the interface of the port's other half, and C(used) whether traffic goes over the rail.
          type: list
          elements: dict
          returned: always
          sample:
            - netdev: enp1s0f0np0
              kind: ethernet
              members: []
              hca: rocep1s0f0
              port: 1
              link_layer: ethernet
              address: 192.168.200.11
              prefix: 24
              mac: "4c:bb:47:2e:29:91"
              mtu: 9000
              active_mtu: 4096
              speed_mbps: 200000
              carrier: true
              state: up
              gid_index: 3
              pci: "0000:01:00.0"
              twin: enP2p1s0f0np0
              driver: mlx5_core
              driver_version: null
              firmware: 28.45.4028
              board: NVD0000000087
              used: true
        interfaces:
          description: All interfaces with an IPv4 address, whatever they are for, but for the loopback.
          type: list
          elements: dict
          returned: always
          sample:
            - netdev: enP7s7
              kind: ethernet
              members: []
              addresses: [10.0.0.11/24]
              mac: "4c:bb:47:2e:29:90"
              mtu: 1500
              speed_mbps: 10000
              carrier: true
              state: up
        candidates:
          description: The interfaces that could give the node its address on the fabric, best first.
          type: list
          elements: dict
          returned: always
          sample:
            - netdev: enp1s0f0np0
              address: 192.168.200.11
        address:
          description: The node's address on the fabric, or O(control_address), or null.
          type: str
          returned: always
          sample: 192.168.200.11
        netdev:
          description: The network interface that has the address, or null.
          type: str
          returned: always
          sample: enp1s0f0np0
        environment:
          description: The variables that this node's engine should be started with. Empty without an address.
          type: dict
          returned: always
          sample:
            GLOO_SOCKET_IFNAME: enp1s0f0np0
            NCCL_IB_GID_INDEX: "3"
            NCCL_IB_HCA: rocep1s0f0,roceP2p1s0f0
            NCCL_SOCKET_IFNAME: enp1s0f0np0
            VLLM_HOST_IP: 192.168.200.11
        environment_reasons:
          description: For each variable, why it has its value.
          type: dict
          returned: always
          sample:
            NCCL_IB_GID_INDEX: RoCE v2 entry of the fabric address in the GID table of rocep1s0f0, roceP2p1s0f0.
        problems:
          description:
            - What is wrong, or worth a note.
            - The codes are V(no_address), V(ipv6_only), V(fabric_address_absent), V(control_address_absent), V(link_down),
              V(several_addresses), V(twins_one_subnet), V(twin_unused), V(rail_down), V(mtu_small), V(speed_degraded),
              V(rdma_down), V(no_roce_v2_gid), V(bond), V(wireless), V(rdma_elsewhere) and V(no_rdma).
            - With the first five, nothing can be launched over the fabric.
          type: list
          elements: dict
          returned: always
          sample:
            - code: mtu_small
              message: The MTU of enp1s0f0np0 is 1500, so RDMA sends 1024 bytes at a time instead of 4096.
              remedy: Set it to 9000 on every node and on the switch between them.
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.sparkstack.inference.plugins.module_utils._fabric_env import fabric_picture
from ansible_collections.sparkstack.inference.plugins.module_utils._fabric_read import FabricError


def ip_addresses(module: AnsibleModule) -> str:
    """The text of C(ip -json addr); fails the module with what to do when there is none."""
    ip = module.get_bin_path("ip", opt_dirs=["/sbin", "/usr/sbin"])
    if not ip:
        module.fail_json(msg="There is no 'ip' on this node: install iproute2.")
    rc, stdout, stderr = module.run_command([ip, "-json", "addr"], errors="surrogate_then_replace")
    if rc != 0:
        said = (stderr or stdout).strip()
        module.fail_json(msg=f"'ip -json addr' failed ({said}): install iproute2 4.13 or newer.", rc=rc)
    return str(stdout)


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "fabric_cidr": {"type": "str", "default": "192.168.200.0/24"},
            "fabric_address": {"type": "str"},
            "expected_speed_mbps": {"type": "int", "default": 0},
            "control_address": {"type": "str"},
            "subnet_aware": {"type": "bool", "default": False},
            "without": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    module.run_command_environ_update = {"LANG": "C", "LC_ALL": "C"}
    try:
        fabric = fabric_picture(
            "/",
            ip_addresses(module),
            module.params["fabric_cidr"],
            module.params["fabric_address"],
            module.params["expected_speed_mbps"],
            module.params["control_address"],
            module.params["subnet_aware"],
            module.params["without"],
        )
    except FabricError as error:
        module.fail_json(msg=str(error))
    module.exit_json(ansible_facts={"fabric": fabric})


if __name__ == "__main__":
    main()
