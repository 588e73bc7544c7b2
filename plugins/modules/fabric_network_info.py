#!/usr/bin/python
# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: fabric_network_info
short_description: See how a node's fabric is wired and configured
version_added: 1.0.0
description:
  - Tells what M(sparkstack.inference.fabric_plan) needs to know of a node, its interfaces, those that may carry the fabric, by which one the node is
    managed, and what netplan's files say of them.
  - Finds out which interface is wired to which one of the other hosts. For that, each host calls out by bare Ethernet frames on its interfaces and writes down
    whom it hears there. All hosts have to run this at the same time, so Ansible's forks must be as many as the hosts.
  - It changes nothing on the node.
author: The sparkstack.inference developers (@sparkstack)
extends_documentation_fragment:
  - sparkstack.inference.attributes
  - sparkstack.inference.attributes.actiongroup_spark
  - sparkstack.inference.attributes.info_module
attributes:
  platform:
    description: Target OS/families that can be operated against.
    support: full
    platforms: linux
options:
  host:
    description:
      - The name of this host, as O(hosts) has it.
    type: str
    required: true
  hosts:
    description:
      - The names of all hosts of the fabric, this one too.
    type: list
    elements: str
    required: true
  interfaces:
    description:
      - The interfaces that are to carry the fabric. By default all that have an RDMA device and do not manage the node.
    type: list
    elements: str
    default: []
  listen:
    description:
      - The most seconds to listen for the other hosts. It ends as soon as each interface has heard somebody and every host was heard, and nothing new
        came for a second.
      - With V(0), nothing is sent, and nobody is heard.
    type: float
    default: 8
requirements:
  - C(ip) of iproute2 4.13 or newer and, where there are netplan files, the Python library PyYAML, which netplan itself needs.
seealso:
  - module: sparkstack.inference.fabric_plan
  - module: sparkstack.inference.fabric_network
"""

EXAMPLES = r"""
---
- name: See how the fabric is wired
  sparkstack.inference.fabric_network_info:
    host: "{{ inventory_hostname }}"
    hosts: "{{ ansible_play_hosts }}"
  become: true
  register: network
"""

RETURN = r"""
network:
  description: What was found.
  type: dict
  returned: success
  contains:
    links:
      description:
        - The interfaces by name, each with C(mtu) in bytes, C(up), C(carrier), C(mac), C(master) and C(addresses). Each address has C(address) with its
          prefix, C(dynamic) (it is from DHCP) and C(broadcast).
      type: dict
    candidates:
      description:
        - The interfaces that may carry the fabric, each with C(netdev), C(port) and C(lane). Those with the same C(port) are the functions of one
          physical port.
      type: list
      elements: dict
    named:
      description: Whether they were named by O(interfaces).
      type: bool
    managed_by:
      description: For each interface by which the node is managed, why it counts as one.
      type: dict
      sample: {"enP7s7": "it has the default route"}
    heard:
      description: For each candidate that is up, the hosts and their interfaces that were heard on it, as pairs.
      type: dict
      sample: {"enp1s0f0np0": [["spark2", "enp1s0f0np0"]]}
    netplan:
      description: Whether netplan is installed.
      type: bool
    definitions:
      description: The definitions of netplan's files that concern a candidate, without secrets, each with C(file), C(id), C(netdevs) and C(settings).
      type: list
      elements: dict
    others:
      description: For each of these files, what else it defines.
      type: dict
    pending:
      description: The trial of a new network that nobody has kept yet, or null.
      type: dict
    told:
      description: When this node has gone back to the network before, and what is not as it was, or null.
      type: dict
    changed_before:
      description: Whether there is something that M(sparkstack.inference.fabric_network) can restore.
      type: bool
    now:
      description: The node's clock, in seconds since 1970.
      type: float
"""

import os
import time
import typing as t

try:
    import yaml
except ImportError:
    HAS_YAML = False
else:
    HAS_YAML = True

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.sparkstack.inference.plugins.module_utils import _fabric_network, _netplan
from ansible_collections.sparkstack.inference.plugins.module_utils._fabric_cable import Heard, Wire, listen
from ansible_collections.sparkstack.inference.plugins.module_utils._fabric_read import FabricError
from ansible_collections.sparkstack.inference.plugins.module_utils._fabric_trial import Trial, TrialError

ROOT = "/"


def ip(module: AnsibleModule, *words: str) -> str:
    """What C(ip -json) says; fails the module with what to do when it says nothing."""
    path = module.get_bin_path("ip", opt_dirs=["/sbin", "/usr/sbin"])
    if not path:
        module.fail_json(msg="There is no 'ip' on this node: install iproute2.")
    rc, stdout, stderr = module.run_command([path, "-json", *words], errors="surrogate_then_replace")
    if rc != 0 and words == ("addr",):
        module.fail_json(msg="'ip -json addr' failed ({}): install iproute2 4.13 or newer.".format((stderr or stdout).strip()), rc=rc)
    return str(stdout) if rc == 0 else "[]"


def managed_by(ip_json: str, routed: t.Sequence[str]) -> t.Dict[str, str]:
    """For each interface by which the node is managed, why."""
    found = dict.fromkeys(routed, "it has the default route")
    address = _fabric_network.ssh_address(ROOT, os.getpid())
    netdev = _fabric_network.holder(ip_json, address)
    if netdev:
        found[netdev] = f"the SSH connection comes in by its address {address}"
    return found


def hear(module: AnsibleModule, netdevs: t.Sequence[str]) -> Heard:
    """Whom each interface hears."""
    if not module.params["listen"] or not netdevs:
        return {netdev: [] for netdev in netdevs}
    hosts = module.params["hosts"]
    try:
        with Wire(netdevs) as wire:
            return listen(wire, " ".join(sorted(hosts)), module.params["host"], hosts, module.params["listen"])
    except PermissionError:
        module.fail_json(msg="Only root may call out on an interface: run this with become.")
    except OSError as error:
        module.fail_json(msg=f"The other hosts can't be called on {', '.join(netdevs)}: {error.strerror}.")
    return {}


def look(module: AnsibleModule) -> t.Dict[str, t.Any]:
    """All of RV(network)."""
    ip_json = ip(module, "addr")
    links = _fabric_network.links(ip_json)
    routed = _fabric_network.routed(ip(module, "route", "show", "default"), ip(module, "-6", "route", "show", "default"))
    managed = managed_by(ip_json, routed)
    known = {entry["netdev"]: entry for entry in _fabric_network.candidates(ROOT)}
    named = list(dict.fromkeys(module.params["interfaces"]))
    absent = [name for name in named if name not in links]
    if absent:
        module.fail_json(msg="This node has no interface {}: it has {}.".format(", ".join(absent), ", ".join(sorted(links)) or "none"))
    plain = [{"netdev": name, "port": name, "lane": "0000"} for name in named if name not in known]
    candidates = [entry for name, entry in known.items() if name in links and (name in named if named else name not in managed)] + plain
    called = [entry["netdev"] for entry in candidates if links[entry["netdev"]]["carrier"] and entry["netdev"] not in managed]
    trial = Trial(module.run_command, ROOT)
    found: t.Dict[str, t.Any] = {
        "links": links,
        "candidates": candidates,
        "named": bool(named),
        "managed_by": managed,
        "heard": hear(module, called),
        "netplan": module.get_bin_path("netplan") is not None,
        "pending": trial.pending(),
        "told": trial.told(),
        "changed_before": trial.before() is not None,
        "now": time.time(),
    }
    found.update(definitions(module, links, [entry["netdev"] for entry in candidates]))
    return found


def definitions(module: AnsibleModule, links: _fabric_network.Links, netdevs: t.Sequence[str]) -> t.Dict[str, t.Any]:
    """RV(network.definitions) and RV(network.others)."""
    if not _netplan.files(ROOT):
        return {"definitions": [], "others": {}}
    if not HAS_YAML:
        module.fail_json(msg="This node's Python can't read netplan's files: install python3-yaml for the interpreter that Ansible uses there.")
    interfaces = [_netplan.Interface(name, links[name]["mac"], _fabric_network.driver(ROOT, name)) for name in netdevs]
    found = _netplan.definitions(ROOT, interfaces, yaml.safe_load)
    files = sorted({entry["file"] for entry in found})
    return {"definitions": found, "others": {file: _netplan.others(ROOT, file.lstrip("/"), netdevs, interfaces, yaml.safe_load) for file in files}}


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "host": {"type": "str", "required": True},
            "hosts": {"type": "list", "elements": "str", "required": True},
            "interfaces": {"type": "list", "elements": "str", "default": []},
            "listen": {"type": "float", "default": 8},
        },
        supports_check_mode=True,
    )
    module.run_command_environ_update = {"LANG": "C", "LC_ALL": "C"}
    try:
        network = look(module)
    except (FabricError, TrialError, _netplan.NetplanError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=False, network=network)


if __name__ == "__main__":
    main()
