# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is private to the collection: it can change at any time.

"""Judges what each node must have for a launch: room on its disks, free ports, a hosts file that tells the truth. Pure."""

from __future__ import annotations

import ipaddress
import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils._sockets import probing
from ansible_collections.sparkstack.inference.plugins.module_utils._words import listed, size
from ansible_collections.sparkstack.inference.plugins.plugin_utils._preflight_words import BLOCKED, READY, SLOW, Checked, Item, Node, Wanted

SPARE = 5 << 30
"""Bytes that Docker's disk should have free apart from the image: logs, compiled kernels."""
_HOST_VARIABLES = ("GLOO_SOCKET_IFNAME", "VLLM_HOST_IP", "SGLANG_HOST_IP")
"""With these an engine does not ask for the address of its own name."""


def disk(nodes: t.Sequence[Node], wanted: Wanted) -> Checked:
    """The model and the image have room."""
    found = []
    free = []
    head = next((node for node in nodes if node.name == wanted.head), nodes[0])
    for node in nodes:
        disks = node.preflight.get("disk") or {}
        model, data = disks.get("model"), disks.get("docker")
        if model and not model["exists"] and wanted.model_bytes:
            text = f"{model['path']} is not there"
            if model["free_bytes"] < wanted.model_bytes:
                text += f", and its disk has {size(model['free_bytes'])} free where the model takes {size(wanted.model_bytes)}"
                found.append(Item("disk", BLOCKED, text, "Make room there, or keep models on another disk (model.path of the recipe).", node.name))
            else:
                found.append(Item("disk", READY, f"{text} yet; its disk has room for it ({size(model['free_bytes'])})", "", node.name))
        if not data:
            continue
        free.append(data["free_bytes"])
        comes = 0 if node.image.get("identity") == head.image.get("identity") else head.image.get("size_bytes") or 0
        remedy = f"Remove what is not needed with 'docker system prune' on it, or move {data['path']} to a larger disk (data-root in daemon.json)."
        if data["free_bytes"] < comes:
            text = f"{data['path']} has {size(data['free_bytes'])} free, and the image takes {size(comes)}"
            if node.image:
                # An image that was built anew shares most layers with the one before, and only the others come. What does not fit ends before a start.
                found.append(Item("disk", SLOW, f"{text}, less the layers that are there already", remedy, node.name))
            else:
                found.append(Item("disk", BLOCKED, text, remedy, node.name))
        elif data["free_bytes"] < comes + SPARE:
            spare = f"{data['path']} has {size(data['free_bytes'])} free" + (f", {size(data['free_bytes'] - comes)} when the image is there" if comes else "")
            found.append(Item("disk", SLOW, spare, remedy, node.name))
    return Checked(found, f"{size(min(free))} or more free for Docker" if free else None)


def ports(nodes: t.Sequence[Node], wanted: Wanted) -> Checked:
    """Nobody else listens where the head is to: what this deployment itself holds is free for its next launch."""
    found = []
    asked = [entry for entry in wanted.ports if entry.host]
    for entry in asked:
        node = next((node for node in nodes if node.name == entry.host), None)
        holder = next((its for its in (node.preflight.get("listeners") or []) if its["port"] == entry.port), None) if node else None
        if node is None or holder is None or (wanted.deployment and holder.get("deployment") == wanted.deployment):
            continue
        who = (
            f"container {holder['container']}"
            if holder.get("container")
            else f"process {holder['pid']} ({holder['process']})"
            if holder.get("pid")
            else "a program"
        )
        remedy = f"Stop it, or give the recipe another {'rendezvous_port' if entry.use == 'rendezvous' else 'port'}."
        if probing(holder):
            remedy = "That is the listener of another preflight, which should have ended by itself: stop it, and run this again."
        found.append(Item("ports", BLOCKED, f"port {entry.port} ({entry.use}) is taken by {who}", remedy, node.name))
    return Checked(found, ", ".join(f"{entry.port} ({entry.use})" for entry in asked) + " free for it" if asked else None)


def hosts_file(nodes: t.Sequence[Node], wanted: Wanted) -> Checked:
    """No node takes itself or another one for somebody else, by its hosts file.

    An engine that asks for the address of its own name gets 127.0.1.1 on Debian and Ubuntu, and tells that to the others. Where its
    interface and address are given by variables it does not ask.
    """
    found: list[Item] = []
    notes = []
    addresses = {node.name: node.addresses for node in nodes}
    fabrics = {node.name: node.fabric.get("address") for node in nodes}
    names = {node.preflight.get("hostname"): node.name for node in nodes if node.preflight.get("hostname")} | {node.name: node.name for node in nodes}
    for node in nodes:
        # Without an address on the fabric there are none yet, and that is told already.
        pinned = not node.fabric.get("address") or all((node.fabric.get("environment") or {}).get(name) for name in _HOST_VARIABLES)
        for name, entries in (node.preflight.get("hosts") or {}).items():
            if name == "localhost":
                # A head that plays for itself can have this name in the inventory. '127.0.0.1 localhost' is right on every node.
                continue
            # Two nodes may have been given one name: each is itself.
            owner = node.name if name in (node.name, node.preflight.get("hostname")) else names.get(name)
            wrong = [entry for entry in entries if owner and _wrong(entry, addresses[owner])]
            if not wrong or not owner:
                continue
            remedy = f"Write '{fabrics[owner] or 'ADDRESS'} {name}' in its /etc/hosts instead of the line with {wrong[0]}."
            own = owner == node.name
            text = f"its /etc/hosts says that {name} is {wrong[0]}" + ("" if own else f", which {owner} is not")
            if own and ipaddress.ip_address(wrong[0]).is_loopback and pinned:
                notes.append(node.name)
            else:
                found.append(Item("hosts_file", BLOCKED if own and not pinned else SLOW, text, remedy, node.name, None if own else owner))
    if notes:
        take = "take their" if len(notes) > 1 else "takes its"
        text = f"{listed(notes)} {take} own name for a loopback address; ranks do not ask for it, as their addresses are given"
        found.append(Item("hosts_file", READY, text))
    return Checked(found, "no name leads astray" if any(node.read for node in nodes) else None)


def _wrong(entry: str, addresses: t.Collection[str]) -> bool:
    """Whether an entry of a hosts file is none of the addresses that its name's node has; IPv6 is not looked at."""
    try:
        found = ipaddress.ip_address(entry)
    except ValueError:
        return False
    return found.version == 4 and bool(addresses) and entry not in addresses
