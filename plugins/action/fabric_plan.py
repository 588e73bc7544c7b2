# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import ipaddress
import secrets
import typing as t

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from ansible_collections.sparkstack.inference.plugins.module_utils._fabric_read import FabricError, parse_address, parse_network
from ansible_collections.sparkstack.inference.plugins.plugin_utils import _fabric_plan
from ansible_collections.sparkstack.inference.plugins.plugin_utils._board import forks
from ansible_collections.sparkstack.inference.plugins.plugin_utils._fabric_segments import Node

ARGUMENTS: dict[str, dict[str, t.Any]] = {
    "hosts": {"type": "list", "elements": "str", "required": True},
    "nodes": {"type": "dict"},
    "fabric_cidr": {"type": "str", "default": "192.168.200.0/24"},
    "fabric_addresses": {"type": "dict", "default": {}},
    "mtu": {"type": "int", "default": 9000},
    "first": {"type": "int", "default": 11},
    "renderer": {"type": "str", "choices": ["", "networkd", "NetworkManager"], "default": ""},
    "replace": {"type": "list", "elements": "path", "default": []},
    "show": {"type": "bool", "default": True},
}


class ActionModule(ActionBase):
    """The plan, made on the controller out of what the modules told of the nodes."""

    TRANSFERS_FILES = False
    _supports_check_mode = True
    _supports_async = False
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        result: dict[str, t.Any] = super().run(tmp, task_vars)
        _validation, args = self.validate_argument_spec(argument_spec=ARGUMENTS)
        try:
            settings = self._settings(args)
            addresses = {host: str(parse_address(address)) for host, address in args["fabric_addresses"].items() if address}
        except FabricError as error:
            raise AnsibleActionFail(str(error)) from None
        result.update(changed=False, nodes={}, lines=[], run=secrets.token_hex(8))
        if args["nodes"] is None:
            return result
        plan = _fabric_plan.make([Node(host, args["nodes"][host], addresses.get(host, "")) for host in args["hosts"]], settings)
        if plan.problems:
            raise AnsibleActionFail("\n".join(plan.problems))
        if args["show"]:
            self._display.display("\n" + "\n".join(plan.lines) + "\n")
        result.update(nodes=plan.nodes, lines=plan.lines)
        return result

    @staticmethod
    def _settings(args: dict[str, t.Any]) -> _fabric_plan.Settings:
        hosts, mtu, first = args["hosts"], args["mtu"], args["first"]
        if len(hosts) < 2:
            raise FabricError(f"A fabric has two nodes or more, and here is only {', '.join(hosts) or 'none'}: run this without --limit, or name more hosts.")
        if forks() < len(hosts):
            raise FabricError(f"All {len(hosts)} nodes must call at the same time to find out how they are wired: set forks to {len(hosts)} or more.")
        if not _fabric_plan.LEAST_MTU <= mtu <= _fabric_plan.MOST_MTU:
            raise FabricError(f"fabric_configure_mtu is {mtu}: give one from {_fabric_plan.LEAST_MTU} to {_fabric_plan.MOST_MTU}, 9000 as a rule.")
        if not 1 <= first <= 250:
            raise FabricError(f"fabric_configure_first is {first}: give the number of the first node's address, from 1 to 250.")
        fabric = parse_network(args["fabric_cidr"])
        if not 8 <= fabric.prefixlen <= 29 or not fabric.is_private or fabric.overlaps(ipaddress.IPv4Network("169.254.0.0/16")):
            raise FabricError(f"fabric_cidr '{args['fabric_cidr']}' is no network for a fabric: give a private one from /8 to /29, such as 192.168.200.0/24.")
        return _fabric_plan.Settings(fabric, mtu, first, args["renderer"], args["replace"])
