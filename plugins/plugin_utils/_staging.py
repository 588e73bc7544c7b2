# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is private to the collection: it can change at any time.

"""What has to move so that a node has the source's model, and by which way; decided from what all nodes reported. Pure."""

from __future__ import annotations

import ipaddress
import os
import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils._staging_counter import canonical
from ansible_collections.sparkstack.inference.plugins.module_utils._staging_tree import held_by
from ansible_collections.sparkstack.inference.plugins.module_utils._words import listed
from ansible_collections.sparkstack.inference.plugins.plugin_utils._image_sync import amount

View = t.Mapping[str, t.Any]
"""What a node reports: the view of model_sync_node with operation=look, or {"failed": "a sentence"}."""

_NAMES = 3
"""Names that a sentence tells of many."""


class Decision(t.NamedTuple):
    """What to do on one node.

    C(kind): C(none) (equal), C(copy), or C(refuse). C(text): what would be done, or why not. C(fetch), C(compare): the files to get, and those that
    are there and may be equal. C(extra): files that the source does not have; C(delete): those of them to delete. C(bytes): what may come at most.
    """

    kind: str
    text: str = ""
    fetch: t.Sequence[str] = ()
    compare: t.Sequence[str] = ()
    extra: t.Sequence[str] = ()
    delete: t.Sequence[str] = ()
    bytes: int = 0


def task_problem(hosts: t.Sequence[str], source: str, forks: int, throttle: int, run_once: bool) -> str | None:
    """One sentence when the task can't run on all its hosts at once, else None: the source gives while the others fetch."""
    if source not in hosts:
        return (
            f"The source {source} does not take part: run this task on {source} and the other nodes together"
            f" (taking part: {', '.join(hosts)}; look at `hosts`, `--limit` and `serial`)."
        )
    if run_once and len(hosts) > 1:
        return "The task has `run_once`, but the model's source and all other nodes must run it together: remove it."
    slots = min(forks, throttle) if throttle else forks
    if slots < len(hosts):
        what = "`throttle` of this task" if throttle and throttle < forks else "`forks` of Ansible"
        return f"The task runs on {len(hosts)} nodes at once: set {what} to at least {len(hosts)} (it is {slots})."
    return None


def address_problem(host: str, addresses: t.Sequence[str]) -> str | None:
    """One sentence about the own addresses of a node, or None."""
    if not addresses:
        return f"{host} has no address on the fabric: give its own in `addresses`."
    for address in addresses:
        try:
            ipaddress.ip_address(address)
        except ValueError:
            return f"addresses: {address!r} is no IP address: give {host}'s own on the fabric."
        if canonical(address).startswith("fe80:"):
            return f"addresses: {address} is {host}'s for one link only, and other nodes would need another name for that link: give another one."
    return None


def decide(path: str, source: str, views: t.Mapping[str, View], host: str, checksum: bool, delete_extra: bool) -> Decision:
    """Decide for one node. The source itself needs nothing.

    :param views: what all nodes reported. :param checksum: believe nothing but the content.
    """
    view, wanted = views[host], views[source]
    if "failed" in view:
        return Decision("refuse", str(view["failed"]))
    if "failed" in wanted:
        return Decision("refuse", f"{source} is the source of the model {path} and failed: {wanted['failed']}")
    if host == source:
        return Decision("none")
    there, theirs = view["files"], wanted["files"]
    fetch = [name for name in theirs if name not in there]
    unlike = [name for name in theirs if name in there and there[name] != theirs[name]]
    compare = [name for name in theirs if name in there and (checksum or name in unlike)]
    extra = sorted(name for name in there if name not in theirs and _in_scope(name, wanted["scope"]))
    # What lies behind a link to a folder is that folder's. It is told, and stays.
    delete = [name for name in extra if name not in view["linked"]] if delete_extra else []
    # What only may differ is expected to be equal, but for the largest.
    sizes = {name: theirs[name][0] - held_by(view, name) for name in theirs}
    doubtful = [name for name in compare if name in unlike and (there[name][0] != theirs[name][0] or there[name][2] != theirs[name][2])]
    room = sum(max(0, sizes[name]) for name in [*fetch, *doubtful])
    room += max((max(0, sizes[name]) for name in compare if name not in doubtful), default=0)
    found = Decision("copy", "", fetch, compare, extra, delete, sum(theirs[name][0] for name in [*fetch, *unlike]))
    if not fetch and not compare and not delete:
        return found._replace(kind="none")
    problem = _room_problem(path, host, view, room)
    if problem:
        return Decision("refuse", problem)
    return found._replace(text=_text(path, source, view, found, unlike))


def _in_scope(name: str, scope: str) -> bool:
    """Of a hub cache only what belongs to the snapshot is the model's: other snapshots, and blobs, are nobody's concern."""
    return not scope or name.startswith(scope + os.sep)


def _room_problem(path: str, host: str, view: View, room: int) -> str:
    if not view["writable"]:
        return f"{host} can't write to {view['parent']}, where the model {path} is to lie: mount it writable, or let this task run with `become`."
    if room > view["free"]:
        return (
            f"{host} has {amount(view['free'])} free where the model {path} is to lie, and {amount(room)} are to come:"
            f" free {amount(room - view['free'])} there."
        )
    return ""


def _text(path: str, source: str, view: View, found: Decision, unlike: t.Sequence[str]) -> str:
    """What would be done, in a line: "copy /srv/models/X from spark1: 39 files are missing, 1 differs; about 127.0 GB"."""
    parts = []
    if found.fetch:
        parts.append(f"{_files(len(found.fetch))} missing{'' if view['files'] else ' (all)'}")
    if unlike:
        parts.append(f"{_files(len(unlike))} not as there ({some(unlike)})")
    if len(found.compare) > len(unlike):
        parts.append(f"{len(found.compare)} to compare by content")
    if found.bytes:
        parts.append(f"{amount(found.bytes)} at most")
    words = [f"copy {path} from {source}: {', '.join(parts)}"] if parts else []
    if found.delete:
        words.append(f"delete {some(found.delete)}")
    return "; ".join(words)


def _files(number: int) -> str:
    return f"{count(number)} {'is' if number == 1 else 'are'}"


def count(number: int) -> str:
    """A number of files: "1 file", "45 files"."""
    return f"{number} file{'' if number == 1 else 's'}"


def some(names: t.Sequence[str]) -> str:
    """A few names in a sentence: "a, b, c and 36 more"."""
    rest = len(names) - _NAMES
    return listed(list(names)) if rest <= 1 else f"{', '.join(names[:_NAMES])} and {rest} more"


def order(hosts: t.Sequence[str], source: str, decisions: t.Mapping[str, Decision]) -> list[str]:
    """The chain: the source, then each node that gets something, in the inventory's order. Each asks the one before it first."""
    return [source, *(host for host in hosts if host != source and decisions[host].kind == "copy" and (decisions[host].fetch or decisions[host].compare))]


def callers(chain: t.Sequence[str], host: str, views: t.Mapping[str, View]) -> list[str]:
    """The addresses that may call a node: those of all nodes behind it in the chain."""
    behind = chain[chain.index(host) + 1 :]
    return [rail["address"] for name in behind for rail in views[name]["rails"]]


def lanes(own: t.Sequence[t.Mapping[str, t.Any]], other: t.Sequence[t.Mapping[str, t.Any]], ports: t.Mapping[str, int]) -> list[list[t.Any]]:
    """The ways from a node to another: one for each pair of addresses in a subnet, else of those that stand at the same place.

    :param own: each C(address) and C(prefix), as of C(other). :param ports: the other's port by its address.
    """
    pairs = []
    for mine in own:
        network = ipaddress.ip_network(f"{mine['address']}/{mine['prefix']}", strict=False)
        pairs += [(mine, theirs) for theirs in other if ipaddress.ip_address(theirs["address"]) in network]
    # A routed fabric, or addresses whose subnets the kernel did not tell.
    pairs = pairs or list(zip(own, other, strict=False))
    return [[mine["address"], theirs["address"], ports[theirs["address"]]] for mine, theirs in pairs]


def common_sum(views: t.Mapping[str, View], hosts: t.Sequence[str], wanted: str) -> str:
    """The digest that all nodes can make: the wanted one, or the quickest. Every node has sha256.

    :param wanted: C(auto), or a name.
    """
    offered = [name for name in ("gmac", "sha256") if all(name in views[host]["sums"] for host in hosts)]
    return wanted if wanted in offered else offered[0] if wanted == "auto" else "sha256"


def listing(names: t.Iterable[str], wanted: View) -> list[dict[str, t.Any]]:
    """The files of a copy, as all nodes are to number them: largest first, so that the end is not one stream's alone."""
    files = wanted["files"]
    return [{"name": name, "size": files[name][0], "mtime_ns": files[name][1]} for name in sorted(set(names), key=lambda name: (-files[name][0], name))]


def difference(path: str, wanted: View, view: View, decision: Decision) -> dict[str, str]:
    """The diff of a folder: a line for each file that is missing, differs or goes."""
    before = [f"{name} {view['files'][name][0]}\n" for name in sorted({*decision.compare, *decision.delete}) if name in view["files"]]
    after = [f"{name} {wanted['files'][name][0]}\n" for name in sorted({*decision.fetch, *decision.compare})]
    return {"before_header": path, "after_header": path, "before": "".join(before), "after": "".join(after)}


def unlike(wanted: View, view: View) -> list[str]:
    """The files of the source that a node does not have as they are there."""
    return [name for name in wanted["files"] if view["files"].get(name) != wanted["files"][name]]


def changed_since(before: View, after: View) -> list[str]:
    """The source's files that are not what they were when the copy began."""
    names = {*before["files"], *after["files"]}
    return sorted(name for name in names if before["files"].get(name) != after["files"].get(name))
