#!/usr/bin/python
# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: fabric_network
short_description: Try, keep or take back a new network of a node's fabric
version_added: 1.0.0
description:
  - Gives the fabric's interfaces their addresses and MTU through netplan, on trial. Unless the trial is kept in time, the node takes it back by itself,
    whatever became of the controller and its connection.
  - Before anything is touched, the way back is written on the node as a script (C(/var/lib/sparkstack/fabric/trial.sh)), and a timer of systemd is set
    that runs it. After a reboot in the middle the timer starts anew.
  - Only the interfaces in O(interfaces) are touched. C(netplan apply) is not used, for it restarts what manages the node's other ones too.
author: The sparkstack.inference developers (@sparkstack)
extends_documentation_fragment:
  - sparkstack.inference.attributes
  - sparkstack.inference.attributes.actiongroup_spark
attributes:
  check_mode:
    support: partial
    details:
      - Whether netplan takes the file, whether the daemon behind it makes the network, and whether the peers answer can't be foretold.
  diff_mode:
    support: full
  idempotent:
    support: full
  platform:
    description: The node runs Linux with systemd, netplan, and systemd-networkd or NetworkManager.
    support: full
    platforms: linux
options:
  state:
    description:
      - V(tried) puts the new network on trial, unless all is as wanted already.
      - V(proven) waits until the peers answer, and changes nothing.
      - V(kept) keeps what is on trial. It fails when the node has taken it back already.
      - V(undone) takes back what is on trial.
      - V(restored) brings back what was before this module has kept its first network.
    type: str
    choices: [tried, proven, kept, undone, restored]
    required: true
  content:
    description:
      - The content of C(/etc/netplan/60-sparkstack-fabric.yaml), as M(sparkstack.inference.fabric_plan) makes it. Empty takes the file away.
    type: str
    default: ""
  interfaces:
    description:
      - The interfaces of O(content), and what the kernel must show of them.
    type: list
    elements: dict
    default: []
    suboptions:
      netdev:
        description: The interface.
        type: str
        required: true
      address:
        description: Its address, with the prefix.
        type: str
        required: true
      mtu:
        description: Its MTU in bytes.
        type: int
        required: true
  replace:
    description:
      - Netplan files that are taken away, as O(content) stands for them. They come back with V(undone) and V(restored).
    type: list
    elements: path
    default: []
  seconds:
    description:
      - Seconds after which the node takes back what was not kept.
    type: int
    default: 120
  run:
    description:
      - A word of this run's own. With V(kept) and V(undone), a trial of another run is left alone.
    type: str
    default: ""
  peers:
    description:
      - The addresses that must answer when O(state=proven).
    type: list
    elements: dict
    default: []
    suboptions:
      host:
        description: The host that has the address.
        type: str
        required: true
      netdev:
        description: The interface of this node that it is asked by.
        type: str
        required: true
      address:
        description: The address.
        type: str
        required: true
      mtu:
        description: The size in bytes that must go through in one piece.
        type: int
        required: true
  timeout:
    description:
      - Seconds that the peers get to answer.
    type: float
    default: 20
requirements:
  - C(ping) of iputils where O(state=proven).
seealso:
  - module: sparkstack.inference.fabric_plan
  - module: sparkstack.inference.fabric_network_info
"""

EXAMPLES = r"""
---
- name: Put the new network on trial
  sparkstack.inference.fabric_network:
    state: tried
    content: "{{ planned.content }}"
    interfaces: "{{ planned.interfaces }}"
    seconds: 120
  become: true

- name: Keep it
  sparkstack.inference.fabric_network:
    state: kept
  become: true
"""

RETURN = r"""
missing:
  description: What the kernel lacked of the wanted network, when O(state=tried).
  type: list
  elements: str
  returned: when O(state=tried)
  sample: ["enP2p1s0f0np0 has no 192.168.201.11/24"]
on_trial:
  description: Whether a network is on trial now.
  type: bool
  returned: success
"""

import time
import typing as t

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.sparkstack.inference.plugins.module_utils import _fabric_undo, _netplan
from ansible_collections.sparkstack.inference.plugins.module_utils._fabric_read import FabricError
from ansible_collections.sparkstack.inference.plugins.module_utils._fabric_trial import Trial, TrialError

ROOT = "/"
_HEADERS = 28
"""Bytes of an IPv4 header and of that of an echo request."""
_PAUSE = 0.1
"""Seconds before the next peer is asked: without a route, ping ends at once."""
Result = t.Dict[str, t.Any]


def tried(module: AnsibleModule, trial: Trial) -> Result:
    """Put the new network on trial where something is to be changed."""
    content, interfaces = module.params["content"] or None, module.params["interfaces"]
    replace = [path for path in module.params["replace"] if trial.text(path) is not None]
    if not module.check_mode:
        trial.finish()
    pending = trial.pending()
    if pending and pending["active"]:
        raise TrialError("Another run has a network on trial here: let it end, or undo it with the playbook sparkstack.inference.fabric_restore.")
    if pending and not module.check_mode:
        # A run was killed before its timer was set, so nothing else takes this back.
        trial.undo()
    before, missing = trial.text(_netplan.OURS), trial.missing(interfaces)
    diff = [{"before_header": "/" + _netplan.OURS, "after_header": "/" + _netplan.OURS, "before": before or "", "after": content or ""}]
    diff += [{"before_header": path, "after_header": path, "before": trial.text(path) or "", "after": ""} for path in replace]
    if missing:
        links = trial.links()
        told = {wanted["netdev"]: links[wanted["netdev"]] for wanted in interfaces if wanted["netdev"] in links}
        now = "".join(_line(name, [a["address"] for a in link["addresses"]], link["mtu"]) for name, link in sorted(told.items()))
        then = "".join(_line(wanted["netdev"], [wanted["address"]], wanted["mtu"]) for wanted in sorted(interfaces, key=lambda entry: str(entry["netdev"])))
        diff.append({"before_header": "the kernel", "after_header": "the kernel", "before": now, "after": then})
    changed = before != content or bool(replace) or bool(missing)
    if changed and not module.check_mode:
        trial.check(content, replace)
        trial.arm(interfaces, replace, module.params["seconds"], module.params["run"])
        trial.put(content, replace)
        trial.apply(interfaces)
    elif not module.check_mode:
        # Nothing more is to be said of a network that was taken back: what was wanted is there.
        trial.forget()
    return {"changed": changed, "diff": diff if changed else [], "missing": missing}


def _line(netdev: str, addresses: t.Sequence[str], mtu: int) -> str:
    return "{}: {}, MTU {}\n".format(netdev, " ".join(addresses) or "no address", mtu)


def proven(module: AnsibleModule, trial: Trial) -> Result:
    """Wait until every peer has answered by every interface, with packets of full size."""
    deadline = time.monotonic() + module.params["timeout"]
    waiting = list(module.params["peers"])
    while waiting:
        peer = waiting.pop(0)
        size = str(peer["mtu"] - _HEADERS)
        if trial.run(["ping", "-n", "-q", "-c", "1", "-W", "1", "-M", "do", "-s", size, "-I", peer["netdev"], peer["address"]])[0] == 0:
            continue
        waiting.append(peer)
        if time.monotonic() >= deadline:
            told = ["{} of {} by {}".format(entry["address"], entry["host"], entry["netdev"]) for entry in waiting]
            small = trial.run(["ping", "-n", "-q", "-c", "1", "-W", "1", "-I", peer["netdev"], peer["address"]])[0] == 0
            why = "check the cable and the firewall"
            if small:
                why = f"a small packet goes through, one of {peer['mtu']} bytes does not: set the MTU on the switch"
            raise TrialError(f"There is no answer from {', '.join(told)}: {why}.")
        trial.pause(_PAUSE)
    return {"changed": False}


def kept(module: AnsibleModule, trial: Trial) -> Result:
    """Keep what is on trial."""
    if module.check_mode:
        return {"changed": trial.pending() is not None}
    trial.finish()
    return {"changed": trial.keep(module.params["run"])}


def undone(module: AnsibleModule, trial: Trial) -> Result:
    """Take it back."""
    pending = trial.pending()
    own = pending is not None and pending["run"] == module.params["run"]
    return {"changed": own if module.check_mode else own and trial.undo()}


def restored(module: AnsibleModule, trial: Trial) -> Result:
    """Bring back what was before."""
    if not module.check_mode:
        trial.finish()
    before = trial.before()
    files = sorted((before or {}).get("files", {}))
    diff = [{"before_header": path, "after_header": path, "before": trial.text(path) or "", "after": _fabric_undo.plain(before, path)} for path in files]
    if module.check_mode:
        return {"changed": bool(before or trial.pending()), "diff": diff}
    return {"changed": trial.restore(), "diff": diff}


STATES = {"tried": tried, "proven": proven, "kept": kept, "undone": undone, "restored": restored}


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": list(STATES), "required": True},
            "content": {"type": "str", "default": ""},
            "interfaces": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "netdev": {"type": "str", "required": True},
                    "address": {"type": "str", "required": True},
                    "mtu": {"type": "int", "required": True},
                },
            },
            "replace": {"type": "list", "elements": "path", "default": []},
            "seconds": {"type": "int", "default": 120},
            "run": {"type": "str", "default": ""},
            "peers": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "host": {"type": "str", "required": True},
                    "netdev": {"type": "str", "required": True},
                    "address": {"type": "str", "required": True},
                    "mtu": {"type": "int", "required": True},
                },
            },
            "timeout": {"type": "float", "default": 20},
        },
        supports_check_mode=True,
    )
    module.run_command_environ_update = {"LANG": "C", "LC_ALL": "C"}
    for program in ("netplan", "systemctl", "ip"):
        if not module.get_bin_path(program, opt_dirs=["/sbin", "/usr/sbin"]):
            module.fail_json(msg=f"This node has no {program}, by which the fabric's network is made: install it, or give the addresses by hand.")
    trial = Trial(module.run_command, ROOT)
    try:
        result = STATES[module.params["state"]](module, trial)
        module.exit_json(on_trial=trial.pending() is not None, **result)
    except (FabricError, TrialError) as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=f"{error.filename} can't be written: {error.strerror}. Run this as root (become).")


if __name__ == "__main__":
    main()
