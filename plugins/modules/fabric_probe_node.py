#!/usr/bin/python
# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: fabric_probe_node
short_description: One node's part of a probe of the fabric
version_added: 1.0.0
description:
  - Carries out on a node what M(sparkstack.inference.fabric_probe) decides for it. There is little use in calling it directly.
  - With O(state=listening) it starts a small process that listens on the fabric's addresses only, answers only who has O(token), and ends
    after O(lifetime) at the latest.
  - With O(state=probing) it asks the listeners of the other nodes. With O(state=ending) it takes its part in the bandwidth tests, ends its
    listener, and tells what that has counted.
author: The sparkstack.inference developers (@sparkstack)
extends_documentation_fragment:
  - sparkstack.inference.attributes
  - sparkstack.inference.attributes.actiongroup_spark
attributes:
  check_mode:
    support: full
    details:
      - Nothing remains on the node, so that check mode makes no difference.
  diff_mode:
    support: N/A
    details:
      - It changes nothing.
  idempotent:
    support: full
  platform:
    description: The nodes run Linux.
    support: full
    platforms: linux
options:
  state:
    description:
      - Which part to carry out.
    type: str
    choices: [listening, probing, ending]
    required: true
  token:
    description:
      - The one-time token of this node's listener.
    type: str
    required: true
  number:
    description:
      - This node's number in the group.
    type: int
    default: 0
  rails:
    description:
      - The own interfaces on the fabric.
      - With O(state=listening).
    type: list
    elements: dict
    default: []
    suboptions:
      netdev:
        description: The interface's name.
        type: str
        required: true
      address:
        description: Its IPv4 address.
        type: str
        required: true
      prefix:
        description: The length of its subnet's prefix, where the node shall not be asked for it.
        type: int
  ports:
    description:
      - TCP ports to listen on as well, where nobody else does.
      - With O(state=listening).
    type: list
    elements: int
    default: []
  callers:
    description:
      - The addresses that may connect to the listener.
      - With O(state=listening).
    type: list
    elements: str
    default: []
  lifetime:
    description:
      - Seconds after which the listener ends by itself.
      - With O(state=listening), and with the other two, from which on it counts anew.
    type: float
    default: 60
  targets:
    description:
      - The pairs of interfaces to ask.
      - With O(state=probing).
    type: list
    elements: dict
    default: []
    suboptions:
      row: {description: This node's number for the pair., type: int, required: true}
      netdev: {description: The own interface., type: str, required: true}
      address: {description: Its address., type: str, required: true}
      peer_address: {description: The other node's address., type: str, required: true}
      udp: {description: The UDP port of its listener., type: int, required: true}
      control: {description: The TCP port of its listener., type: int, required: true}
      token: {description: The token of its listener., type: str, required: true}
      ports: {description: The launch's ports that its listener has taken., type: list, elements: int, default: []}
      mtu: {description: The own interface's MTU., type: int, default: 1500}
  steps:
    description:
      - This node's bandwidth tests, in their order.
      - With O(state=ending).
    type: list
    elements: dict
    default: []
    suboptions:
      step: {description: The test's number in the group's plan., type: int, required: true}
      kind: {description: What this node does., type: str, choices: [send, receive], required: true}
      row: {description: The sender's number for the pair., type: int, required: true}
      peer: {description: The other node., type: str, required: true}
      netdev: {description: The own interface., type: str, required: true}
      address: {description: Its address., type: str, required: true}
      peer_address: {description: The other node's address., type: str, required: true}
      control: {description: The TCP port of the other node's listener., type: int, required: true}
      token: {description: The token of the other node's listener., type: str, required: true}
      seconds: {description: How long to send., type: float, required: true}
      speed_mbps: {description: The link's speed in Mbit/s., type: int}
      rdma: {description: 'The own RDMA device: C(hca), C(port), C(gid_index).', type: dict}
      peer_rdma: {description: The other node's., type: dict}
seealso:
  - module: sparkstack.inference.fabric_probe
"""

EXAMPLES = r"""
---
- name: Listen for the probes of the other nodes for half a minute
  sparkstack.inference.fabric_probe_node:
    state: listening
    token: "{{ probe_token }}"
    rails:
      - netdev: enp1s0f0np0
        address: 192.168.200.11
    callers: [192.168.200.12]
    lifetime: 30
"""

RETURN = r"""
rails:
  description: The own interfaces, each with its ports for the probe or with an C(error).
  returned: O(state=listening)
  type: list
  elements: dict
ports:
  description: The launch's ports, as C(bound), C(in_use) and C(unbound) of M(sparkstack.inference.fabric_probe) tell them.
  returned: O(state=listening)
  type: dict
rows:
  description: What came back of each of O(targets).
  returned: O(state=probing)
  type: list
  elements: dict
counts:
  description: What came of each of the others' pairs of interfaces; null where the listener is gone.
  returned: O(state=ending)
  type: list
  elements: dict
overrun:
  description: Packets that came and found no room, by the own address.
  returned: O(state=ending)
  type: dict
rates:
  description: How fast this node could send.
  returned: O(state=ending)
  type: list
  elements: dict
"""

import contextlib
import ipaddress
import os
import typing as t

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.sparkstack.inference.plugins.module_utils._autostart_wire import WireError
from ansible_collections.sparkstack.inference.plugins.module_utils._fabric import Rail
from ansible_collections.sparkstack.inference.plugins.module_utils._fabric_probe_ask import Target, probe
from ansible_collections.sparkstack.inference.plugins.module_utils._fabric_probe_listen import Listener, own, start
from ansible_collections.sparkstack.inference.plugins.module_utils._fabric_probe_rate import CALL
from ansible_collections.sparkstack.inference.plugins.module_utils._fabric_probe_steps import Steps
from ansible_collections.sparkstack.inference.plugins.module_utils._fabric_read import read_netdevs, read_ports
from ansible_collections.sparkstack.inference.plugins.module_utils._files import integer, text
from ansible_collections.sparkstack.inference.plugins.module_utils._reach import addresses

STRING: t.Dict[str, t.Any] = {"type": "str", "required": True}
NUMBER: t.Dict[str, t.Any] = {"type": "int", "required": True}
PAIR: t.Dict[str, t.Any] = dict.fromkeys(("netdev", "address", "peer_address"), STRING)
SECRET: t.Dict[str, t.Any] = {"type": "str", "required": True, "no_log": True}
ARGUMENTS: t.Dict[str, t.Any] = {
    "state": {"type": "str", "choices": ["listening", "probing", "ending"], "required": True},
    "token": SECRET,
    "number": {"type": "int", "default": 0},
    "rails": {"type": "list", "elements": "dict", "default": [], "options": {"netdev": STRING, "address": STRING, "prefix": {"type": "int"}}},
    "ports": {"type": "list", "elements": "int", "default": []},
    "callers": {"type": "list", "elements": "str", "default": []},
    "lifetime": {"type": "float", "default": 60},
    "targets": {
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {
            **dict.fromkeys(("row", "udp", "control"), NUMBER),
            **PAIR,
            "token": SECRET,
            "ports": {"type": "list", "elements": "int", "default": []},
            "mtu": {"type": "int", "default": 1500},
        },
    },
    "steps": {
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {
            **dict.fromkeys(("step", "row", "control"), NUMBER),
            "kind": {"type": "str", "choices": ["send", "receive"], "required": True},
            "peer": STRING,
            **PAIR,
            "token": SECRET,
            "seconds": {"type": "float", "required": True},
            "speed_mbps": {"type": "int"},
            "rdma": {"type": "dict"},
            "peer_rdma": {"type": "dict"},
        },
    },
}


def listening(params: t.Mapping[str, t.Any], rdma: bool) -> t.Dict[str, t.Any]:
    """Start the listener. :param rdma: whether this node could test by RDMA."""
    listener = Listener(params["token"], params["callers"], params["lifetime"])
    # The launch's ports come first: one that the kernel chooses could be one of them.
    here = {(entry.interface, entry.address): entry.prefix for entry in addresses()}
    known = [dict(rail, prefix=rail["prefix"] or here.get((rail["netdev"], rail["address"]))) for rail in params["rails"]]
    ports = listener.open_ports(list(dict.fromkeys(rail["address"] for rail in known if rail["prefix"])), params["ports"])
    rails = []
    for rail in known:
        entry = {**rail, **described(rail["netdev"]), "udp": None, "control": None, "rdma": None, "error": None}
        try:
            if rail["prefix"] is None:
                raise OSError("the node has no address {0} on {1}".format(rail["address"], rail["netdev"]))
            entry["udp"], entry["control"] = listener.open_rail(rail["netdev"], rail["address"])
            entry["rdma"] = device(rail["netdev"], rail["address"], rail["prefix"]) if rdma else None
        except OSError as error:
            entry["error"] = str(error.strerror or error)
        rails.append(entry)
    start(listener)
    return {"rails": rails, "ports": ports}


def described(netdev: str) -> t.Dict[str, t.Any]:
    """What the kernel says of an interface: C(mtu) in bytes, C(speed_mbps) or None, and C(mac)."""
    folder = os.path.join("/sys/class/net", netdev)
    mac = text(os.path.join(folder, "address")).strip().lower()
    return {"mtu": integer(os.path.join(folder, "mtu")), "speed_mbps": integer(os.path.join(folder, "speed")), "mac": mac or None}


def device(netdev: str, address: str, prefix: int, root: str = "/") -> t.Optional[t.Dict[str, t.Any]]:
    """The RDMA device behind an interface, where it can be used: C(hca), C(port), C(gid_index)."""
    found = read_netdevs(root).get(netdev)
    for port in read_ports(root):
        if found is not None and netdev in port.netdevs:
            rail = Rail(found, port, ipaddress.IPv4Interface((address, prefix)))
            if rail.rdma:
                return {"hca": port.hca, "port": port.port, "gid_index": rail.gid_index}
    return None


def stay(token: str, seconds: float) -> None:
    """Have the listener wait for so long from now on. One that is gone can't, and its counts will be missing."""
    with contextlib.suppress(WireError), contextlib.closing(own(token)) as listener:
        listener.ask({"do": "stay", "seconds": seconds}, CALL)


def ending(steps: Steps, params: t.Mapping[str, t.Any]) -> t.Dict[str, t.Any]:
    """Take the steps, end the listener."""
    rates = steps.take(params["steps"])
    try:
        with contextlib.closing(own(params["token"])) as listener:
            told = listener.ask({"do": "end"}, CALL)
    except WireError:
        told = {"counts": None, "overrun": {}}
    return {"rates": rates, **told}


def main() -> None:
    module = AnsibleModule(
        argument_spec=ARGUMENTS,
        supports_check_mode=True,
    )
    module.run_command_environ_update = {"LANG": "C", "LC_ALL": "C"}
    params = module.params
    tools = {name: module.get_bin_path(name) for name in ("ib_write_bw", "timeout")}
    if params["state"] == "listening":
        found = listening(params, rdma=all(tools.values()) and os.path.isdir("/dev/infiniband"))
    elif params["state"] == "probing":
        stay(params["token"], params["lifetime"])
        found = {"rows": probe([Target(**{name: target[name] for name in Target._fields}) for target in params["targets"]], params["number"])}
    else:
        stay(params["token"], params["lifetime"])
        found = ending(Steps(params["token"], lambda command: module.run_command(command, errors="replace"), tools), params)
    module.exit_json(changed=False, **found)


if __name__ == "__main__":
    main()
