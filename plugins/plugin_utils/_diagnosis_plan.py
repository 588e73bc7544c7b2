# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is private to the collection: it can change at any time.

"""What a diagnosis is made of: which container on which node is which rank, or which log. Pure."""

from __future__ import annotations

import os
import typing as t
from dataclasses import dataclass, field, replace

from ansible_collections.sparkstack.inference.plugins.module_utils._sockets import ANY
from ansible_collections.sparkstack.inference.plugins.plugin_utils import _container
from ansible_collections.sparkstack.inference.plugins.plugin_utils._command_line import ChoiceError, absolute

NOWHERE = "-"
"""Stands for the container of a node that has none: no container can have that name."""

_TOGETHER = 3600
"""Seconds within which the containers of one launch are made: a dead one from last week is of another."""

Info = t.Mapping[str, t.Any]


@dataclass(frozen=True)
class Rank:
    """One rank: its node and its container there."""

    node: str
    rank: int
    container: str
    health_url: str = ""
    """Where the head of a deployment is asked, by the node itself, whether it is well."""


@dataclass(frozen=True)
class Choice:
    """The ranks in order; C(ordered) is false where their logs must tell more: the order, or who takes part."""

    ranks: list[Rank]
    ordered: bool = True
    deployment: str = ""
    notes: list[str] = field(default_factory=list)
    settled: bool = True
    """The order is that of the user, the labels or the inventory's groups."""
    absent: list[str] = field(default_factory=list)
    """Nodes that have no container to judge, or could not be asked for one."""
    guessed: dict[str, str] = field(default_factory=dict)
    """Nodes that have no container of the given name and one that looks like an engine, which is taken; with that name."""


def choose(
    hosts: t.Sequence[str],
    nodes: t.Mapping[str, Info],
    containers: t.Mapping[str, t.Any],
    deployment: str = "",
    groups: t.Sequence[str] = (),
) -> Choice:
    """Which containers are judged.

    :param hosts: the hosts of the play, in its order.
    :param nodes: what M(sparkstack.inference.inference_info) with C(search) said, by host; a host that didn't answer is missing.
    :param containers: the variable C(container) as each host has it: a name, names with commas or in a list (the head's first), or a mapping.
    :param deployment: the deployment that is wanted.
    :param groups: the head and then the workers, where the inventory tells.
    :raises ChoiceError: when there is nothing to judge, or more than one thing.
    """
    asked = {host: nodes[host] for host in hosts if nodes.get(host, {}).get("docker", {}).get("reachable")}
    if hosts and not asked:
        reasons = {_problem(info) for info in nodes.values()} - {""}
        raise ChoiceError(f"No node could be looked at: {' '.join(sorted(reasons)) or 'none can be reached.'}")
    silent = [f"{host} could not be looked at: {_problem(nodes.get(host, {})) or 'it does not answer.'}" for host in hosts if host not in asked]
    choice = _choice(hosts, asked, containers, deployment, groups)
    return replace(choice, notes=[*choice.notes, *silent])


def _problem(info: Info) -> str:
    told = " ".join(str(info.get("docker", {}).get("error") or info.get("msg") or "").split())
    # Ansible 2.19: "Task failed: Failed to connect to the host via ssh: ..".
    told = told.removeprefix("Task failed: ")
    return f"{told.rstrip('.')}." if told else ""


def _choice(hosts: t.Sequence[str], asked: t.Mapping[str, Info], containers: t.Mapping[str, t.Any], deployment: str, groups: t.Sequence[str]) -> Choice:
    if any(containers.get(host) for host in hosts):
        return _named(hosts, asked, containers, groups)
    ours = {host: [rank for rank in info["containers"] if not deployment or rank["deployment"] == deployment] for host, info in asked.items()}
    there = sorted({rank["deployment"] for ranks in ours.values() for rank in ranks})
    if len(there) > 1:
        raise ChoiceError(f"There are several deployments: say which one with -e deployment=NAME, for {', '.join(there)}.")
    if there:
        return _labelled(hosts, ours, there[0], groups)
    if deployment:
        known = sorted({rank["deployment"] for info in asked.values() for rank in info["containers"]})
        some = f"the deployments are {', '.join(known)}." if known else "no node has a deployment."
        raise ChoiceError(f"No node has a rank of '{deployment}': {some}")
    return _found(hosts, asked, groups)


def _labelled(hosts: t.Sequence[str], ours: t.Mapping[str, list[t.Any]], deployment: str, groups: t.Sequence[str]) -> Choice:
    """The ranks of a deployment by their labels; a rank that is nowhere is missing on a node that has none."""
    ranks, notes, last = [], [], 0
    for host, containers in ours.items():
        # Two of one deployment on a node are of two launches: the one that was started last counts.
        for index, container in enumerate(sorted(containers, key=lambda c: str(c["started_at"]), reverse=True)):
            last = max(last, container["ranks"] - 1, container["rank"])
            if index:
                notes.append(f"{host} has another container of {deployment}, {container['name']}, which is left aside.")
            else:
                ranks.append(Rank(host, container["rank"], container["name"], _health_url(container)))
    free = [host for host in _in_order(hosts, groups) if not ours.get(host)]
    for number in range(last + 1):
        if free and number not in [rank.rank for rank in ranks]:
            ranks.append(Rank(free.pop(0), number, _container.name(deployment, number)))
    return Choice(sorted(ranks, key=lambda rank: rank.rank), True, deployment, notes)


def _health_url(container: t.Mapping[str, t.Any]) -> str:
    if container["rank"] != 0 or container["port"] < 1:
        return ""
    address = str(container["listen_address"])
    return f"http://{'127.0.0.1' if address in ANY else address}:{container['port']}/health"


def _named(hosts: t.Sequence[str], asked: t.Mapping[str, Info], containers: t.Mapping[str, t.Any], groups: t.Sequence[str]) -> Choice:
    there = {host: [found for found in info["found"] if found["by"] == "name"] for host, info in asked.items()}
    order = _in_order(hosts, groups)
    lists = {host: names(containers.get(host), host) for host in hosts}
    pair = next((given for given in lists.values() if len(given) > 1), [])
    if len(pair) > len(hosts):
        raise ChoiceError(f"{len(pair)} containers are named and there are {len(hosts)} nodes: name one a node, the head's first.")
    chosen: dict[str, tuple[int, str]] = {}
    for host in order:
        present = [index for index, name in enumerate(lists[host]) if any(_is(found, name) for found in there.get(host, []))]
        if len(present) == 1:
            chosen[host] = (present[0], lists[host][present[0]])
    for place, host in enumerate(order):
        # Where none of several is to be seen, it is the one that no other node has.
        given, taken = lists[host], [index for index, _name in chosen.values()]
        left = [index for index in range(len(given)) if index not in taken] if len(given) > 1 else []
        index = place if place in left or not left else left[0]
        chosen.setdefault(host, (index, given[min(index, len(given) - 1)] if given else NOWHERE))
    if not any(there.values()):
        wanted = " or ".join(sorted({name for _index, name in chosen.values() if name != NOWHERE}))
        seen = [f"{found['name']} on {host}" for host, info in asked.items() for found in info["found"]]
        hint = f" These look like an engine: {', '.join(seen)}." if seen else ""
        silent = [host for host in hosts if host not in asked]
        also = f" ({', '.join(silent)} could not be asked)" if silent else ""
        raise ChoiceError(f"No node has a container {wanted}{also}: correct the name, or leave it out to have one found.{hint}")
    notes, guessed = [], {}
    for host in [host for host in chosen if host in asked and not there[host]]:
        index, name = chosen[host]
        others = [found for found in asked[host]["found"] if found["by"] != "name"]
        likely = _likely(others, [found for founds in there.values() for found in founds])
        if likely:
            chosen[host], guessed[host] = (index, likely), name
        elif others:
            look = f"{others[0]['name']} there looks like an engine: if it" if len(others) == 1 else f"{_list(others)} there look like engines: if one of them"
            notes.append(f"{_lacks(host, name)}. {look} is of this launch, name it too, the head's first.")
    settled = bool(groups) or len(order) < 2
    if len(pair) == len(hosts) and sorted(index for index, _name in chosen.values()) == list(range(len(hosts))):
        order, settled = sorted(order, key=lambda host: chosen[host][0]), True
    absent = [host for host in order if not there.get(host) and host not in guessed]
    return _in_ranks(order, {host: name for host, (_index, name) in chosen.items()}, settled, notes, absent, guessed)


def _likely(others: t.Sequence[Info], named: t.Sequence[Info]) -> str:
    """The name of the only container that may be of the launch of the named ones: the only one that runs, or ended and was made with them."""
    running = [other for other in others if other["running"]]
    near = running or [other for other in others if any(abs(other["created"] - found["created"]) <= _TOGETHER for found in named)]
    return str(near[0]["name"]) if len(near) == 1 else ""


def _lacks(host: str, name: str) -> str:
    return f"{host} has no container {name}" if name != NOWHERE else f"No container is named for {host}"


def _list(containers: t.Sequence[Info]) -> str:
    return ", ".join(str(container["name"]) for container in containers)


def names(value: t.Any, host: str) -> list[str]:
    """The names that a host's variable C(container) holds."""
    if isinstance(value, t.Mapping):
        value = value.get(host) or []
    if isinstance(value, str):
        value = value.split(",")
    return [str(name).strip() for name in value or [] if str(name).strip()]


def _is(found: t.Mapping[str, t.Any], name: str) -> bool:
    return bool(found["name"] == name or (len(name) >= 12 and found["id"].startswith(name)))


def _found(hosts: t.Sequence[str], asked: t.Mapping[str, Info], groups: t.Sequence[str]) -> Choice:
    """The newest container of each node that looks like an engine."""
    taken = {host: info["found"][0] for host, info in asked.items() if info["found"]}
    if not taken:
        raise ChoiceError(
            "No node has a deployment, nor a container whose command or image looks like an inference engine: name one with -e container=NAME, or give logs."
        )
    notes = []
    for host, container in taken.items():
        others = [other["name"] for other in asked[host]["found"][1:]]
        aside = f" Older ones are left aside: {', '.join(others)}." if others else ""
        what = container["command"] if len(container["command"]) <= 60 else container["command"][:60].rsplit(" ", 1)[0] + " .."
        notes.append(f"The container {container['name']} was taken on {host}, by its {container['by']} ({container['image']}: {what}).{aside}")
    order = _in_order(hosts, groups)
    chosen = {host: taken[host]["name"] if host in taken else NOWHERE for host in order}
    return _in_ranks(order, chosen, bool(groups) or len(order) < 2, notes, [host for host in order if host not in taken])


def _in_order(hosts: t.Sequence[str], groups: t.Sequence[str]) -> list[str]:
    return [host for host in groups if host in hosts] + [host for host in hosts if host not in groups]


def _in_ranks(
    order: t.Sequence[str],
    chosen: t.Mapping[str, str],
    settled: bool,
    notes: t.Sequence[str],
    absent: t.Sequence[str],
    guessed: t.Mapping[str, str] | None = None,
) -> Choice:
    ranks = [Rank(host, rank, chosen[host]) for rank, host in enumerate(order)]
    return Choice(ranks, settled and not absent and not guessed, "", list(notes), settled, list(absent), dict(guessed or {}))


def by_claims(choice: Choice, claims: t.Mapping[str, t.Mapping[str, t.Any]]) -> Choice:
    """The choice after the ranks' own logs: who takes part, and in which order.

    :param claims: C(claims) of each node's log (see C(_timeline)): C(rank), and C(ranks), how many there are.

    Where they say nothing, or two the same, the order stays. Nodes that have no container of the given name are left out where the logs of the
    others say that all ranks are there.
    """
    ranks, notes = list(choice.ranks), list(choice.notes)
    sure = [rank for rank in ranks if rank.node not in choice.absent and rank.node not in choice.guessed]
    worlds = {_claim(claims, rank, "ranks") for rank in sure} - {None}
    world = worlds.pop() if len(worlds) == 1 else None
    if world == len(sure):
        ranks = sure
    for index, rank in enumerate(ranks):
        name = choice.guessed.get(rank.node)
        if name is None:
            continue
        other = _claim(claims, rank, "ranks")
        told = f"{_lacks(rank.node, name)}; {rank.container} there looks like an engine"
        if other is not None and world is not None and other != world:
            ranks[index] = replace(rank, container=name)
            notes.append(f"{told}, but its log tells of another number of ranks, {other} and not {world}: if it is of this launch all the same, name it too.")
        else:
            notes.append(f"{told} and was taken: name it too, the head's first, if that is wrong.")
    if not choice.settled:
        known = {rank.node: number for rank in ranks for number in [_claim(claims, rank, "rank")] if number is not None}
        if known and len(set(known.values())) == len(known) and max(known.values()) < len(ranks):
            free = [number for number in range(len(ranks)) if number not in known.values()]
            ranks = [replace(rank, rank=known[rank.node] if rank.node in known else free.pop(0)) for rank in ranks]
        elif len(ranks) > 1:
            notes.append(f"Neither the inventory nor the logs tell which rank is which: {ranks[0].node} is taken for the head, as the first of the inventory.")
    ranks = [replace(rank, rank=number) for number, rank in enumerate(sorted(ranks, key=lambda rank: rank.rank))]
    return Choice(ranks, True, choice.deployment, notes)


def _claim(claims: t.Mapping[str, t.Mapping[str, t.Any]], rank: Rank, what: str) -> int | None:
    """A number that a rank's log tells; None where it counts processes, of which its node has several."""
    told = claims.get(rank.node) or {}
    value = str(told.get(what, ""))
    return int(value) if value.isdigit() and not told.get("local") else None


# Logs.

LOG_KEYS = ("node", "rank", "path", "started", "running", "exit_code", "oom_killed", "quiet_seconds")
"""What C(logs) of M(sparkstack.inference.init_phase_wait) takes."""


def logs(given: t.Any, folder: str) -> list[dict[str, t.Any]]:
    """The entries that M(sparkstack.inference.init_phase_wait) takes, out of them or of plain paths.

    :param given: a list of mappings, a list of paths, or paths with commas between. :param folder: what relative paths start from.
    :raises ChoiceError: for anything else.
    """
    entries = [path.strip() for path in given.split(",") if path.strip()] if isinstance(given, str) else given
    if not isinstance(entries, (list, tuple)) or not entries:
        raise ChoiceError("logs must be a list, of paths or of mappings with node, rank and path, the head's first: -e logs=head.log,worker.log.")
    short = len({_stem(str(path)) for path in entries if isinstance(path, str)}) == len(entries)
    found = []
    for rank, entry in enumerate(entries):
        if isinstance(entry, str):
            found.append({"node": _stem(entry) if short else entry, "rank": rank, "path": absolute(entry, folder)})
        elif isinstance(entry, t.Mapping):
            path = entry.get("path")
            odd = sorted(str(key) for key in entry if key not in LOG_KEYS)
            if odd:
                raise ChoiceError(f"An entry of logs has no key {odd[0]}: choose from {', '.join(LOG_KEYS)}.")
            number = entry.get("rank", rank)
            if isinstance(number, bool) or not str(number).isdigit():
                raise ChoiceError(f"{number!r} is no rank: number the logs from 0, the head's, on.")
            if not path and _true(entry.get("started", True)):
                raise ChoiceError(f"The log of {entry.get('node', f'rank {rank}')} has no path; say started: false where the rank never ran.")
            defaults = {"node": _stem(path) if path else f"rank{rank}", "rank": rank}
            found.append({**defaults, **entry, **({"path": absolute(path, folder)} if path else {})})
        else:
            raise ChoiceError(f"{entry!r} among logs is neither a path nor a mapping with node, rank and path.")
    nodes = [str(entry["node"]) for entry in found]
    same = sorted({node for node in nodes if nodes.count(node) > 1})
    if same:
        raise ChoiceError(f"Two of the logs are of the same node, {same[0]}: give each its own node.")
    numbers = [str(entry["rank"]) for entry in found]
    twice = next((number for number in numbers if numbers.count(number) > 1), None)
    if twice is not None:
        raise ChoiceError(f"Two of the logs have the rank {twice}: give each its own, the head's 0.")
    return found


def _true(value: t.Any) -> bool:
    return str(value).lower() not in ("false", "no", "0", "off", "")


def _stem(path: str) -> str:
    return os.path.splitext(os.path.basename(path))[0] or path
