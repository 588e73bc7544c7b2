# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is private to the collection: it can change at any time.

"""Every deployment on the nodes, out of what the modules told of each node: one mapping for programs, and lines for people. Pure."""

from __future__ import annotations

import time
import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils._ledger import HARMLESS, content, lapsed, who
from ansible_collections.sparkstack.inference.plugins.module_utils._logline import moment
from ansible_collections.sparkstack.inference.plugins.module_utils._sockets import ANY
from ansible_collections.sparkstack.inference.plugins.module_utils._words import duration, listed, size, utc
from ansible_collections.sparkstack.inference.plugins.plugin_utils import _container
from ansible_collections.sparkstack.inference.plugins.plugin_utils._memory_return import available

Data = dict[str, t.Any]
Node = t.Mapping[str, t.Any]

FORMAT = 1
"""Raised when a key of the mapping changes its meaning or goes; new keys may come at any time."""


def survey(
    nodes: t.Sequence[Node],
    wanted: t.Mapping[str, t.Any] | None = None,
    now: float | None = None,
    gone: t.Callable[[str], bool] = lambda run: False,
) -> Data:
    """The whole, as docs/status.md describes it.

    :param nodes: one mapping a host: C(name), C(host) (by which clients reach it), C(info), C(memory) (the fact, with its holders), C(answers) (results of
        M(sparkstack.inference.inference_proof), each with the container as C(item)), C(routed) (the same of the routers) and C(verdicts) (by deployment);
        empty where there is none.
    :param wanted: RV(sparkstack.inference.inference_plan#module:plan) of the recipe that is wanted, or None. :param now: seconds since the epoch.
    :param gone: whether a run is certain to have ended.
    """
    now = time.time() if now is None else now
    names = {rank["deployment"] for node in nodes for rank in _ranks(node)}
    names |= {name for node in nodes for key in ("ledger", "autostart") for name in _info(node).get(key) or {}}
    return {
        "format": FORMAT,
        "taken_at": utc(now),
        "nodes": {node["name"]: _of_node(node) for node in nodes},
        "deployments": {name: _deployment(name, nodes, wanted, now, gone) for name in sorted(names)},
        "routers": [_router(node, found) for node in nodes for found in _info(node).get("routers") or []],
    }


def _info(node: Node) -> t.Mapping[str, t.Any]:
    """What inference_info returned; nothing where the node could not be reached."""
    info = node.get("info") or {}
    return info if info.get("docker") else {}


def _ranks(node: Node) -> t.Sequence[t.Mapping[str, t.Any]]:
    return _info(node).get("containers") or []


def _seen(node: Node) -> bool:
    """Whether all that runs on the node is known."""
    return bool((_info(node).get("docker") or {}).get("reachable"))


def _of_node(node: Node) -> Data:
    info, memory = _info(node), node.get("memory") or {}
    problem = None if _seen(node) else info["docker"]["error"] if info else "unreachable, its ranks are unknown"
    keys = ("total_bytes", "available_bytes", "unified")
    return {
        "reachable": bool(info),
        "docker": _seen(node) if info else None,
        "problem": problem,
        "booted_at": utc(info.get("booted_at")),
        "memory": {key: memory.get(key) for key in keys} if memory else None,
    }


def _deployment(name: str, nodes: t.Sequence[Node], wanted: t.Mapping[str, t.Any] | None, now: float, gone: t.Callable[[str], bool]) -> Data:
    """One deployment over all nodes."""
    verdict = next((node["verdicts"][name] for node in nodes if (node.get("verdicts") or {}).get(name, {}).get("verdict")), None)
    ranks = [_rank(node, found, verdict) for node in nodes for found in _ranks(node) if found["deployment"] == name]
    count = max((found["ranks"] for node in nodes for found in _ranks(node) if found["deployment"] == name), default=0)
    unseen = _elsewhere(name, nodes, {rank["launch_id"] for rank in ranks}, gone)
    present = {rank["rank"] for rank in ranks}
    ranks += [_absent(number, unseen) for number in range(count) if number not in present]
    ranks.sort(key=lambda rank: (rank["rank"], rank["node"] or ""))
    head, answer = _head(name, nodes)
    ledgers = [_info(node)["ledger"][name] for node in nodes if name in (_info(node).get("ledger") or {})]
    launches = sorted({rank["launch_id"] for rank in ranks if rank["launch_id"]})
    good = _newest(ledgers, "good")
    found: Data = {
        "engine": head.get("engine"),
        "model": head.get("model"),
        "image": head.get("image"),
        "endpoint": head.get("endpoint"),
        "launch_id": launches[0] if len(launches) == 1 else None,
        "answer": answer,
        "answered_at": utc(now if (answer or {}).get("answered") else (good or {}).get("ended")),
        "ranks": ranks,
        "verdict": {key: verdict.get(key) for key in ("verdict", "phase", "cause", "culprit", "summary", "remedy")} if verdict else None,
        "lock": _lock(nodes, name, gone),
        "autostart": _autostart(name, nodes),
        "drift": _drift(name, nodes, ledgers, launches, wanted),
        "last": _launch(_newest(ledgers, "last")),
        "good": _launch(good),
        "problems": sorted({problem for ledger in ledgers for problem in ledger.get("problems") or []}),
    }
    found["state"], found["summary"] = _state(found, launches, unseen)
    if found["state"] == "serving":
        for rank in ranks:
            rank["phase"] = "ready"
    return found


def _rank(node: Node, found: t.Mapping[str, t.Any], verdict: t.Mapping[str, t.Any] | None) -> Data:
    """One rank's container, with what the verdict tells of it."""
    judged = ((verdict or {}).get("nodes") or {}).get(node["name"]) or {}
    held = [holder["bytes"] for holder in (node.get("memory") or {}).get("holders") or [] if (holder["kind"], holder["name"]) == ("container", found["name"])]
    begun = moment(found["started_at"])
    since = _info(node).get("now")
    up = round(since - begun) if found["running"] and begun is not None and since is not None else None
    return {
        "rank": found["rank"],
        "node": node["name"],
        "container": found["name"],
        "state": "running" if found["running"] else "ended",
        "launch_id": found["launch_id"],
        "started_at": utc(begun),
        "finished_at": None if found["running"] else utc(moment(found["finished_at"])),
        "uptime_seconds": up,
        "exit_code": None if found["running"] else found["exit_code"],
        "oom_killed": found["oom_killed"],
        "memory_bytes": sum(held) if held else None,
        "phase": judged.get("phase"),
        "cause": judged.get("cause"),
    }


def _elsewhere(name: str, nodes: t.Sequence[Node], launches: t.Collection[str], gone: t.Callable[[str], bool]) -> list[str]:
    """The nodes that could not be looked at and may have a rank of it.

    A node that is away is no question for a deployment whose launches were all on others, by the records of those. Where these may not tell of all, since
    a run works on it, a file is damaged, or what runs was never recorded, every node may.
    """
    unseen = [node["name"] for node in nodes if not _seen(node)]
    ledgers = [_info(node)["ledger"][name] for node in nodes if name in (_info(node).get("ledger") or {})]
    homes = {home for ledger in ledgers for home in ledger.get("nodes") or []}
    recorded = {launch for ledger in ledgers for launch in ledger.get("launches") or []}
    lock = _lock(nodes, name, gone)
    told = homes <= {node["name"] for node in nodes} and set(launches) <= recorded and not any(ledger.get("problems") for ledger in ledgers)
    return [node for node in unseen if node in homes] if homes and told and (lock is None or lock["left"]) else unseen


def _absent(number: int, unseen: t.Sequence[str]) -> Data:
    """A rank that no node showed: missing, unless it may be on a node that could not be looked at."""
    keys = ("launch_id", "started_at", "finished_at", "uptime_seconds", "exit_code", "memory_bytes", "phase", "cause")
    return {"rank": number, "node": None, "container": None, "state": "unknown" if unseen else "missing", "oom_killed": False, **dict.fromkeys(keys)}


def _router(node: Node, found: t.Mapping[str, t.Any]) -> Data:
    """One router, with what it answered just now."""
    answer = next((one for one in node.get("routed") or [] if one["item"]["id"] == found["id"]), None)
    host = node.get("host") or node["name"] if found["listen_address"] in ANY else found["listen_address"]
    return {
        "deployment": found["deployment"],
        "node": node["name"],
        "container": found["name"],
        "kind": found["kind"],
        "image": found["image"],
        "port": found["port"],
        "endpoint": f"http://{host}:{found['port']}/v1" if found["port"] else None,
        "upstreams": found["upstreams"],
        "state": "running" if found["running"] else "ended",
        "exit_code": None if found["running"] else found["exit_code"],
        "answer": {key: answer.get(key) for key in ("answered", "seconds", "problem")} if answer else None,
    }


def _head(name: str, nodes: t.Sequence[Node]) -> tuple[Data, Data | None]:
    """The head's container with its endpoint, and what it answered; None where it was not asked."""
    for node in nodes:
        for found in _ranks(node):
            if found["deployment"] == name and found["rank"] == 0:
                asked = next((one for one in node.get("answers") or [] if (one.get("item") or {}).get("name") == found["name"] and "answered" in one), None)
                host = node.get("host") or node["name"] if found["listen_address"] in ANY else found["listen_address"]
                told = {key: asked.get(key) for key in ("answered", "seconds", "problem")} if asked else None
                return {**found, "endpoint": f"http://{host}:{found['port']}/v1"}, told
    return {}, None


def _newest(ledgers: t.Sequence[t.Mapping[str, t.Any]], key: str) -> Data | None:
    """The newest record that a node keeps under that key: one that was away for a launch has an older one."""
    kept = [ledger[key] for ledger in ledgers if ledger.get(key)]
    return max(kept, key=lambda record: float(record.get("began") or 0), default=None)


def _launch(record: t.Mapping[str, t.Any] | None) -> Data | None:
    """A launch's record in short."""
    if record is None:
        return None
    keys = ("launch_id", "action", "who", "seconds_to_ready", "answer", "answered", "restored", "verdict", "image", "model")
    return {**{key: record.get(key) for key in keys}, "began": utc(record.get("began")), "ended": utc(record.get("ended"))}


def _lock(nodes: t.Sequence[Node], name: str, gone: t.Callable[[str], bool]) -> Data | None:
    """Who works on it; one whose run is gone or whose time is over is in nobody's way."""
    for node in nodes:
        lock = ((_info(node).get("ledger") or {}).get(name) or {}).get("lock")
        if lock:
            left = lapsed(lock, float(_info(node).get("now") or 0)) or gone(str(lock.get("run")))
            keys = ("user", "host", "pid", "job")
            return {**{key: lock.get(key) for key in keys}, "since": utc(lock.get("since")), "until": utc(lock.get("until")), "left": left}
    return None


def _autostart(name: str, nodes: t.Sequence[Node]) -> Data:
    """Whether the nodes start it again after a reboot: C(state), and C(problems), which end a sentence that begins with "it"."""
    kept = {node["name"]: (_info(node).get("autostart") or {}).get(name) for node in nodes if _info(node)}
    unseen = [node["name"] for node in nodes if not _info(node)]
    if not any(kept.values()):
        return {"state": "unknown" if unseen else "off", "problems": []}
    # Whom the agents know; of those that this run has not looked at nothing is known.
    members = next((one["settings"]["nodes"] for one in kept.values() if one and one["settings"].get("nodes")), list(kept))
    problems = []
    for member in [member for member in members if member in kept]:
        one = kept[member]
        if not one:
            problems.append(f"is not installed on {member}")
        elif not one["enabled"]:
            problems.append(f"is not enabled on {member}")
        elif not one["runs"]:
            problems.append(f"does not run on {member}")
    unseen = [member for member in members if member not in kept]
    return {"state": "incomplete" if problems else "unknown" if unseen else "on", "problems": problems}


def _state(found: Data, launches: t.Sequence[str], unseen: t.Sequence[str]) -> tuple[str, str]:
    """In which state it is, and why, in a sentence."""
    ranks, answered, verdict = found["ranks"], (found["answer"] or {}).get("answered"), found["verdict"] or {}
    says = "its head answers, but " if answered else ""
    if any(rank["state"] == "unknown" for rank in ranks) or (not ranks and unseen):
        return "unknown", f"{says}what runs on {listed(unseen)} is unknown"
    if not ranks:
        return "stopped", "no node has a rank of it"
    lost = [rank for rank in ranks if rank["state"] != "running"]
    if lost:
        told = ", ".join(f"rank {rank['rank']} {_lost(rank)}" for rank in lost)
        return "failed", verdict["summary"] if verdict.get("verdict") == "failed" and not answered else says + told
    if len(launches) > 1:
        return "failed", f"{says}its ranks are of different launches"
    if answered:
        return "serving", "all ranks run, and the head has answered a request"
    if verdict.get("verdict") in ("starting", "stalled", "failed"):
        return verdict["verdict"], verdict["summary"]
    problem = (found["answer"] or {}).get("problem") or "rank 0 was not asked"
    return "failed", f"all ranks run, but the head does not answer: {problem}"


def _lost(rank: Data) -> str:
    if rank["state"] == "missing":
        return "is missing"
    why = "killed by the kernel for memory" if rank["oom_killed"] else f"exit code {rank['exit_code']}"
    return f"on {rank['node']} has ended ({why})"


def _drift(
    name: str, nodes: t.Sequence[Node], ledgers: t.Sequence[t.Mapping[str, t.Any]], launches: t.Sequence[str], wanted: t.Mapping[str, t.Any] | None
) -> list[str] | None:
    """How what runs differs from the recipe that is wanted, a line each; None where there is none for it or nothing is known."""
    if not wanted or name not in [wanted.get("deployment"), *(replica["deployment"] for replica in wanted.get("replicas") or [])] or len(launches) != 1:
        return None
    records = [ledger[key] for ledger in ledgers for key in ("last", "good", "previous") if ledger.get(key)]
    record = next((record for record in records if record.get("launch_id") == launches[0] and record.get("recipe")), None)
    if record is None:
        return None
    given = {"recipe": wanted["recipe"]}
    before, after = ({key: value for key, value in one["recipe"].items() if key not in HARMLESS} for one in (record, given))
    lines = [] if content({**record, "image": None, "model": None}) == content(given) else _container.differences(before, after)
    images = {node["name"]: (_info(node).get("image") or {}).get("identity") for node in nodes}
    of_rank = {node["name"]: found["spec"].get("image_identity") for node in nodes for found in _ranks(node) if found["deployment"] == name}
    moved = [node for node, identity in of_rank.items() if identity and images.get(node) not in (None, identity)]
    return lines + [f"{node}: {wanted['image']} is another image there than the one that runs" for node in sorted(moved)]


# For people.


def lines(found: t.Mapping[str, t.Any], deployment: str = "") -> list[str]:
    """The mapping of :func:`survey` as lines. :param deployment: the only one that was asked for, or nothing."""
    told: list[str] = [f"{name}: {node['problem']}" for name, node in found["nodes"].items() if node["problem"]]
    if not told and not any(one["ranks"] for one in found["deployments"].values()):
        told.append(
            f"No node has a rank of '{deployment}': leave the variable deployment out to see which deployments there are."
            if deployment
            else "No deployment runs on these nodes."
        )
    for name, one in found["deployments"].items():
        told += _told(name, one)
    for router in found["routers"]:
        if deployment in ("", router["deployment"]):
            told += _router_told(router)
    told += [
        f"{name}: {available(node['memory']['available_bytes'], node['memory']['total_bytes'])}"
        for name, node in found["nodes"].items()
        if node["memory"] and None not in (node["memory"]["available_bytes"], node["memory"]["total_bytes"])
    ]
    return told


def _told(name: str, one: t.Mapping[str, t.Any]) -> list[str]:
    """One deployment's lines."""
    what = f", {one['model']} at {one['endpoint']} by {one['engine']} from {one['image']}" if one["endpoint"] else ""
    told = [f"{name}: {one['state']}{what}" + ("" if one["state"] == "serving" else f": {one['summary']}")]
    count = len({rank["rank"] for rank in one["ranks"]})
    told += [f"{name} rank {rank['rank']} of {count} {_rank_told(rank)}" for rank in one["ranks"]]
    answer = one["answer"]
    if answer:
        node = next(rank["node"] for rank in one["ranks"] if rank["rank"] == 0)
        said = f"answered in {answer['seconds']} s" if answer["answered"] else f"does not answer: {answer['problem']}"
        told.append(f"{name} at port {one['endpoint'].rpartition(':')[2].partition('/')[0]} of {node}: {said}")
    if one["answered_at"] and not (answer or {}).get("answered"):
        told.append(f"{name} is last known to have answered at {one['answered_at']} (launch {one['good']['launch_id']})")
    verdict = one["verdict"] or {}
    if verdict.get("remedy") and one["state"] in ("failed", "stalled") and verdict["verdict"] in ("failed", "stalled"):
        told.append(f"{name} remedy: {verdict['remedy']}")
    last = one["last"]
    if last and not last["answered"] and (last["verdict"] or {}).get("summary") not in (None, one["summary"]):
        told.append(f"{name} launch {last['launch_id']} came to nothing at {last['ended']}: {last['verdict']['summary']}")
    if one["drift"] is not None:
        told.append(f"{name} runs as the recipe says" if not one["drift"] else f"{name} differs from the recipe: {'; '.join(one['drift'])}")
    told += _autostart_told(name, one)
    lock = one["lock"]
    if lock and lock["left"]:
        told.append(f"{name} was being worked on by {who(lock)} since {lock['since']}, a run that is over: the next one takes its lock over")
    elif lock:
        told.append(f"{name} is being worked on by {who(lock)} since {lock['since']}")
    return told + [f"{name}: {problem}" for problem in one["problems"]]


def _router_told(router: t.Mapping[str, t.Any]) -> list[str]:
    """A router's lines."""
    name, answer = router["deployment"], router["answer"]
    if not router["kind"]:
        return [f"{name} router: {router['container']} on {router['node']} is there, but what it was started with is lost; the playbook router mends that"]
    ended = "" if router["state"] == "running" else f": it has ended (exit code {router['exit_code']})"
    told = [f"{name} router: {router['kind']} at {router['endpoint']} in front of {listed(router['upstreams'])}{ended}"]
    if answer:
        said = f"answered in {answer['seconds']} s" if answer["answered"] else f"does not answer: {answer['problem']}"
        told.append(f"{name} router at port {router['port']} of {router['node']}: {said}")
    return told


def _autostart_told(name: str, one: t.Mapping[str, t.Any]) -> list[str]:
    state, problems = one["autostart"]["state"], one["autostart"]["problems"]
    if state == "off" and not one["ranks"]:
        return []
    if state == "incomplete":
        return [f"{name} autostart is incomplete: it {listed(problems)}; the next deploy mends that"]
    words = {"on": "on: after a reboot the nodes start it again", "off": "off", "unknown": "not known: a node could not be looked at"}
    return [f"{name} autostart is {words[state]}"]


def _rank_told(rank: t.Mapping[str, t.Any]) -> str:
    if rank["state"] in ("missing", "unknown"):
        return "is missing" if rank["state"] == "missing" else "is unknown"
    words = [f"launch {rank['launch_id']}"]
    if rank["state"] == "running":
        begun = f"on {rank['node']}: runs since {rank['started_at']}"
        begun += f" ({duration(rank['uptime_seconds'])})" if rank["uptime_seconds"] is not None else ""
    else:
        begun = f"on {rank['node']}: ended at {rank['finished_at']}, exit code {rank['exit_code']}"
        words = ["killed by the kernel for memory", *words] if rank["oom_killed"] else words
    words = [f"phase {rank['phase']}", *words] if rank["phase"] else words
    words += [size(rank["memory_bytes"])] if rank["memory_bytes"] else []
    return ", ".join([begun, *words])
