#!/usr/bin/python
# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: model_sync_node
short_description: One node's part in bringing a model to all nodes
version_added: 1.0.0
description:
  - Carries out on a node what M(sparkstack.inference.model_sync) decides for it. There is little use in calling it directly.
  - With O(operation=start) it leaves a small process that listens on the fabric's addresses only, talks only with who holds O(token), and ends
    half a minute after the last look at it.
author: The sparkstack.inference developers (@sparkstack)
extends_documentation_fragment:
  - sparkstack.inference.attributes
  - sparkstack.inference.attributes.actiongroup_spark
attributes:
  check_mode:
    support: partial
    details:
      - In check mode O(operation=start) takes only a comparison (O(dry=true)), and O(operation=settle) and O(operation=rsync) do nothing.
  diff_mode:
    support: none
    details:
      - M(sparkstack.inference.model_sync) tells the difference.
  idempotent:
    support: partial
    details:
      - What is needed is for the caller to decide.
  platform:
    description: The nodes run Linux with Python 3.8 or later.
    support: full
    platforms: linux
options:
  operation:
    description:
      - V(look) tells what is there and whether a copy runs.
      - V(start) starts this node's part of a copy.
      - V(watch) waits for news of it, for O(seconds) at most.
      - V(end) ends it.
      - V(settle) deletes O(delete), gives the page cache of O(drop) back, and tells what is there then.
      - V(rsync) fetches O(files) by rsync over ssh.
    type: str
    required: true
    choices: [look, start, watch, end, settle, rsync]
  path:
    description: The model's folder on this node.
    type: path
    required: true
  source:
    description: This node gives the model to the others.
    type: bool
    default: false
  addresses:
    description: This node's own addresses on the fabric. Nothing listens on and nothing connects from another one.
    type: list
    elements: str
    default: []
  port:
    description: The port to listen on; V(0) takes one that is free.
    type: int
    default: 0
  files:
    description: The files of the copy, the same list on all nodes.
    type: list
    elements: dict
    default: []
    suboptions:
      name: {description: Its name below the folder., type: str, required: true}
      size: {description: Its size in bytes., type: int, required: true}
      mtime_ns: {description: Its time in nanoseconds., type: int, required: true}
      mine: {description: Whether this node needs it., type: bool, default: true}
      compare: {description: Whether a file of this name is here that may be equal., type: bool, default: false}
  sum:
    description: How chunks are proved.
    type: str
    choices: [gmac, sha256]
    default: sha256
  chunk:
    description: The bytes of a chunk, a multiple of 4096. All nodes must have the same.
    type: int
    default: 8388608
  token:
    description: The one-time token that all nodes of the copy hold. It never crosses the fabric itself.
    type: str
  certificate:
    description: The one-time certificate of this node in PEM, for TLS.
    type: str
  private_key:
    description: Its key.
    type: str
  callers:
    description: The addresses that may call this node.
    type: list
    elements: str
    default: []
  providers:
    description:
      - Who gives, nearest first, the source last.
      - With O(operation=watch) it lets a receiver begin that waits for it.
    type: list
    elements: dict
    default: []
    suboptions:
      host: {description: Its name., type: str, required: true}
      lanes: {description: 'Ways to it, each an own address, its address and its port.', type: list, elements: list, required: true}
      pin: {description: The SHA-256 of its certificate in hexadecimal., type: str}
  streams:
    description: Connections at the same time.
    type: int
    default: 8
  dry:
    description: Only compare, and change nothing.
    type: bool
    default: false
  reread:
    description: Read what was written back from the disk before it gets its name.
    type: bool
    default: false
  connect_timeout:
    description: Seconds until a connection must stand.
    type: int
    default: 30
  stall_timeout:
    description: Seconds without a sign of another node after which it counts as gone.
    type: int
    default: 60
  seconds:
    description: How long O(operation=watch) waits for a change.
    type: float
    default: 0
  known:
    description: The state that the caller knows already.
    type: str
  force:
    description: End the copy even if other nodes still fetch from this one.
    type: bool
    default: false
  delete:
    description: Files to delete.
    type: list
    elements: str
    default: []
  drop:
    description: Files whose page cache is given back.
    type: list
    elements: str
    default: []
  source_address:
    description: The source's address, for rsync.
    type: str
  source_path:
    description: The model's folder there.
    type: str
  rsync_options:
    description: More options for rsync.
    type: list
    elements: str
    default: []
seealso:
  - module: sparkstack.inference.model_sync
"""

EXAMPLES = r"""
---
- name: See what is there, and whether a copy runs
  sparkstack.inference.model_sync_node:
    operation: look
    path: /srv/models/Qwen3.5-122B-A10B-FP8
    addresses: [192.168.200.12]
  become: true
  register: model
"""

RETURN = r"""
view:
  description: What is there, with the keys C(exists), C(files), C(free), C(held), C(writable), C(running) and others.
  returned: O(operation=look) and O(operation=settle)
  type: dict
ports:
  description: The port that is listened on, by the own address.
  returned: O(operation=start)
  type: dict
status:
  description: How far the copy is, with the keys C(state), C(problem), C(total), C(there), C(received), C(sent) and others.
  returned: O(operation=watch) and O(operation=end)
  type: dict
deleted:
  description: What was deleted.
  returned: O(operation=settle)
  type: list
  elements: str
moved:
  description: What was fetched.
  returned: O(operation=rsync)
  type: list
  elements: str
touched:
  description: What only got another time or mode.
  returned: O(operation=rsync)
  type: list
  elements: str
received:
  description: The bytes of what was fetched.
  returned: O(operation=rsync)
  type: int
"""

import typing as t

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.sparkstack.inference.plugins.module_utils import _staging_node as node
from ansible_collections.sparkstack.inference.plugins.module_utils._staging_tree import TreeError
from ansible_collections.sparkstack.inference.plugins.module_utils._staging_wire import Refused
from ansible_collections.sparkstack.inference.plugins.module_utils._transfer import TransferError

STRING: t.Dict[str, t.Any] = {"type": "str", "required": True}
STRINGS: t.Dict[str, t.Any] = {"type": "list", "elements": "str", "default": []}
FLAG: t.Dict[str, t.Any] = {"type": "bool", "default": False}
NUMBER: t.Dict[str, t.Any] = {"type": "int", "required": True}
ARGUMENTS: t.Dict[str, t.Any] = {
    "operation": {"type": "str", "required": True, "choices": ["look", "start", "watch", "end", "settle", "rsync"]},
    "path": {"type": "path", "required": True},
    **dict.fromkeys(("source", "dry", "reread", "force"), FLAG),
    **dict.fromkeys(("addresses", "callers", "delete", "drop", "rsync_options"), STRINGS),
    "port": {"type": "int", "default": 0},
    "files": {
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {"name": STRING, "size": NUMBER, "mtime_ns": NUMBER, "mine": {"type": "bool", "default": True}, "compare": FLAG},
    },
    "sum": {"type": "str", "choices": ["gmac", "sha256"], "default": "sha256"},
    "chunk": {"type": "int", "default": 8388608},
    "token": {"type": "str", "no_log": True},
    "certificate": {"type": "str"},
    "private_key": {"type": "str", "no_log": True},
    "providers": {
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {"host": STRING, "lanes": {"type": "list", "elements": "list", "required": True}, "pin": {"type": "str"}},
    },
    "streams": {"type": "int", "default": 8},
    "connect_timeout": {"type": "int", "default": 30},
    "stall_timeout": {"type": "int", "default": 60},
    "seconds": {"type": "float", "default": 0},
    **dict.fromkeys(("known", "source_address", "source_path"), {"type": "str"}),
}


def carry_out(module: AnsibleModule) -> t.Dict[str, t.Any]:
    """The operation's result."""
    params = module.params
    operation, path, quiet = params["operation"], params["path"], module.check_mode
    if operation == "start":
        return node.begin({**params, "dry": params["dry"] or quiet})
    if operation == "watch":
        if params["providers"]:
            node.told(path, {"do": "go", "providers": params["providers"]})
        return {"status": node.told(path, {"do": "watch", "seconds": params["seconds"], "known": params["known"]}, params["seconds"])}
    if operation == "end":
        return {"status": node.told(path, {"do": "end", "force": params["force"]})}
    if operation == "rsync":
        return node.itemized("") if quiet else node.rsync(module.run_command, module.get_bin_path("rsync"), params)
    deleted = node.settle(path, params["delete"], params["drop"]) if operation == "settle" and not quiet else []
    return {"view": node.view(path, params["source"], params["addresses"]), "deleted": deleted}


def main() -> None:
    module = AnsibleModule(
        argument_spec=ARGUMENTS,
        required_if=[("operation", "start", ("token",)), ("operation", "rsync", ("source_address", "source_path"))],
        supports_check_mode=True,
    )
    module.run_command_environ_update = {"LANG": "C", "LC_ALL": "C"}
    try:
        result = carry_out(module)
    except (TreeError, TransferError, Refused, OSError) as error:
        module.fail_json(msg=str(error))
    changed = bool(result.get("deleted") or result.get("moved") or result.get("touched")) or (
        module.params["operation"] == "start" and not (module.params["dry"] or module.check_mode)
    )
    module.exit_json(changed=changed, **result)


if __name__ == "__main__":
    main()
