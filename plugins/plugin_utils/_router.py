# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is private to the collection: it can change at any time.

"""One router in front of the replicas of a deployment: which upstreams it has, its command line or configuration, and what is wrong. Pure."""

from __future__ import annotations

import hashlib
import json
import re
import typing as t
from dataclasses import dataclass

from ansible_collections.sparkstack.inference.plugins.module_utils._routers import FOLDER, name
from ansible_collections.sparkstack.inference.plugins.module_utils._sockets import ANY
from ansible_collections.sparkstack.inference.plugins.module_utils._words import listed
from ansible_collections.sparkstack.inference.plugins.plugin_utils._router_nginx import configuration

Data = dict[str, t.Any]
Node = t.Mapping[str, t.Any]

_UPSTREAM = re.compile(r"(\[[0-9A-Fa-f:]+\]|[A-Za-z0-9._-]+):([1-9][0-9]{0,4})")
# A program without root's rights may not listen below, and a container on the node's network has no setting of its own for that.
_LOWEST_PORT = 1024


@dataclass(frozen=True)
class Kind:
    """A router that exists: its image, how it is started, and among which ways of choosing an upstream there is a choice."""

    image: str
    entrypoint: tuple[str, ...]
    policies: tuple[str, ...]
    """The default is the first."""
    metrics: bool = True
    """Whether it serves metrics at a port of their own."""
    options: tuple[str, ...] = ()
    """Of its command line, beside those that each launch has of its own."""


# Of the two routers' options the same ones are taken: sglang-router 0.3.2 and vllm-router 0.1.17 were asked with --help, and run in front of two servers
# of which one was killed. A dead upstream is looked at every 5 s, and a request goes to an upstream 3 times at most.
_HEALTH = ("--retry-max-retries", "3", "--health-check-interval-secs", "5", "--health-failure-threshold", "2", "--health-success-threshold", "1")
KINDS = {
    # In the container its own folder lies in that place.
    # "nginx -e stderr": else it complains of a log that it may not open before it has read where its log goes.
    "nginx": Kind("nginx:1.29", ("nginx", "-e", "stderr", "-c", f"{FOLDER}/nginx.conf"), ("least_conn", "round_robin", "ip_hash"), metrics=False),
    # Its breaker counts 401 and 400 as failures of the upstream: a few requests with a wrong key shut all others out, so that it stays off. Without it only
    # round_robin goes on to another upstream at the next try; with cache_aware requests fail until the upstream's health is asked the next time.
    "sglang-router": Kind(
        "lmsysorg/sgl-model-gateway:v0.3.2",
        ("python3", "-m", "sglang_router.launch_router"),
        ("round_robin", "cache_aware", "power_of_two", "random"),
        options=(*_HEALTH, "--disable-circuit-breaker"),
    ),
    # Its breaker counts what the upstream does not answer only, and is what leads a third try away from a dead upstream.
    "vllm-router": Kind(
        "vllm/vllm-router:v0.1.17",
        ("vllm-router",),
        ("cache_aware", "round_robin", "power_of_two", "consistent_hash", "random"),
        options=(*_HEALTH, "--cb-failure-threshold", "2", "--cb-success-threshold", "1", "--cb-timeout-duration-secs", "10"),
    ),
}


def heads(deployment: str, nodes: t.Sequence[Node]) -> list[Data]:
    """The containers of rank 0 of the deployment's replicas, running or not: C(deployment), C(model), C(upstream) (address and port). In the replicas' order.

    :param nodes: one mapping a node, with C(host) (by which the router reaches it) and C(containers) of M(sparkstack.inference.inference_info).
    """
    replica = re.compile(re.escape(deployment) + r"(?:-r([0-9]+))?")
    found = []
    for node in nodes:
        for head in node.get("containers") or []:
            match = replica.fullmatch(head["deployment"])
            if match and head["rank"] == 0:
                host = str(node["host"] if head["listen_address"] in ANY else head["listen_address"])
                host = f"[{host}]" if ":" in host and not host.startswith("[") else host
                found.append((int(match[1] or -1), {"deployment": head["deployment"], "model": head["model"], "upstream": f"{host}:{head['port']}"}))
    return [head for _number, head in sorted(found, key=lambda one: (one[0], one[1]["upstream"]))]


def plan(asked: t.Mapping[str, t.Any], nodes: t.Sequence[Node]) -> Data:
    """What the router is to be, or why there can be none.

    :param asked: C(deployment), C(kind) (a key of KINDS), C(node) (where it runs), C(port), C(metrics_port), C(listen_address), C(upstreams) (empty: the
        heads of the replicas), C(policy) and C(image) (empty: the kind's own), C(timeout) (seconds without a byte of an answer), C(max_body) (as 64m).
    :param nodes: one mapping a node: C(node), C(host) (by which the router reaches it), C(endpoint_host) (by which clients reach it), and of
        M(sparkstack.inference.inference_info) C(containers), C(routers), C(listeners), C(listen_possible) and C(foreign).
    :returns: C(problems) (sentences; the rest holds only without any), C(name), C(image), C(entrypoint), C(command), C(config) (of nginx, else empty),
        C(digest), C(upstreams), C(model) (empty where it is not known), C(url) (where the router's node asks it), C(endpoint) (for clients).
    """
    kind = KINDS[asked["kind"]]
    found = heads(asked["deployment"], nodes)
    upstreams = list(asked["upstreams"]) or [head["upstream"] for head in found]
    models = sorted({head["model"] for head in found if head["model"]}) if not asked["upstreams"] else []
    here: Node = next((node for node in nodes if node["node"] == asked["node"]), {})
    policy = asked["policy"] or kind.policies[0]
    everywhere = asked["listen_address"] in ANY
    made: Data = {
        "name": name(asked["deployment"]),
        "folder": f"{FOLDER}/{asked['deployment']}",
        "kind": asked["kind"],
        "node": asked["node"],
        "image": asked["image"] or kind.image,
        "entrypoint": list(kind.entrypoint[:1]),
        "upstreams": upstreams,
        "model": models[0] if len(models) == 1 else "",
        "port": asked["port"],
        "listen_address": asked["listen_address"],
        "url": f"http://{_bracketed({'0.0.0.0': '127.0.0.1', '::': '::1'}.get(asked['listen_address'], asked['listen_address']))}:{asked['port']}",
        "endpoint": f"http://{_bracketed(here.get('endpoint_host') or asked['node'] if everywhere else asked['listen_address'])}:{asked['port']}/v1",
        "problems": [
            *_own_problems(asked, kind, policy),
            *_upstream_problems(asked, upstreams, models, here),
            *(_node_problems(asked, kind, here) if here else [f"{asked['node']} is none of this play's nodes: set router_host to one of them."]),
        ],
    }
    command, config = [], ""
    if not made["problems"]:
        settings = {**asked, "upstreams": upstreams, "policy": policy}
        command = [*kind.entrypoint[1:], *([] if asked["kind"] == "nginx" else arguments(kind, settings))]
        config = configuration(settings) if asked["kind"] == "nginx" else ""
    told = {key: value for key, value in made.items() if key not in ("problems", "url", "node")}
    digest = hashlib.sha256(json.dumps([told, command, config], sort_keys=True).encode()).hexdigest()[:16]
    return {**made, "command": command, "config": config.replace("@DIGEST@", digest), "digest": digest, "told": {**told, "digest": digest}}


def arguments(kind: Kind, settings: t.Mapping[str, t.Any]) -> list[str]:
    """The options of sglang-router and vllm-router."""
    words = ["--host", settings["listen_address"], "--port", str(settings["port"]), "--policy", settings["policy"]]
    words += ["--worker-urls", *(f"http://{upstream}" for upstream in settings["upstreams"])]
    # Metrics for the node alone: who may read them at the router's port is the user's choice, here nobody has chosen.
    words += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(settings["metrics_port"])]
    return [*words, "--request-timeout-secs", str(settings["timeout"]), *kind.options]


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def _own_problems(asked: t.Mapping[str, t.Any], kind: Kind, policy: str) -> list[str]:
    """What is wrong with the options by themselves."""
    problems = []
    if not _LOWEST_PORT <= asked["port"] <= 65535:
        problems.append(f"router_port must be a number from {_LOWEST_PORT} to 65535, not {asked['port']}: the router has no right to listen below.")
    if kind.metrics and not _LOWEST_PORT <= asked["metrics_port"] <= 65535:
        problems.append(f"router_metrics_port must be a number from {_LOWEST_PORT} to 65535, not {asked['metrics_port']}.")
    if kind.metrics and asked["metrics_port"] == asked["port"]:
        problems.append(f"router_port and router_metrics_port are both {asked['port']}: give them different numbers.")
    if policy not in kind.policies:
        problems.append(f"{asked['kind']} has no policy '{policy}': set router_policy to {' or '.join(kind.policies)}, or leave it out.")
    if not re.fullmatch(r"[1-9][0-9]*[kmg]?", asked["max_body"]):
        problems.append(f"router_max_body must be a size such as 64m, not '{asked['max_body']}'.")
    return problems


def _upstream_problems(asked: t.Mapping[str, t.Any], upstreams: t.Sequence[str], models: t.Sequence[str], here: Node) -> list[str]:
    """What is wrong with what it is to stand in front of."""
    deployment = asked["deployment"]
    if not upstreams:
        return [
            f"No node has a rank 0 of '{deployment}' or of its replicas '{deployment}-rN': deploy it first, or name the servers with router_upstreams, "
            "as HOST:PORT each."
        ]
    problems = [
        f"router_upstreams has '{upstream}', which is no HOST:PORT: write each as 192.168.200.11:8000."
        for upstream in upstreams
        if not (match := _UPSTREAM.fullmatch(str(upstream))) or int(match[2]) > 65535
    ]
    if len(set(upstreams)) < len(upstreams):
        twice = next(upstream for upstream in upstreams if upstreams.count(upstream) > 1)
        problems.append(f"{twice} stands twice among the upstreams: each replica needs an address and port of its own.")
    if len(models) > 1:
        problems.append(f"The replicas of '{deployment}' serve different models ({listed(models)}): a router would mix their answers; deploy them alike first.")
    own = {str(here.get("host")), str(here.get("endpoint_host")), "127.0.0.1", "localhost", asked["listen_address"]}
    for upstream in upstreams:
        host, _colon, port = str(upstream).rpartition(":")
        if host.strip("[]") in own and port == str(asked["port"]):
            problems.append(f"Port {port} of {asked['node']} is a replica's: set router_port to another one.")
    return problems


def _node_problems(asked: t.Mapping[str, t.Any], kind: Kind, here: Node) -> list[str]:
    """What is in its way on its node."""
    problems, mine = [], name(asked["deployment"])
    if here.get("listen_possible") is False:
        problems.append(f"{asked['node']} has no address {asked['listen_address']}: set router_listen_address to one that it has, or to 0.0.0.0.")
    if here.get("foreign"):
        problems.append(
            f"The name {mine} on {asked['node']} belongs to a container of {here['foreign']} that this collection did not start: remove or rename it first."
        )
    wanted = {"router_port": asked["port"], **({"router_metrics_port": asked["metrics_port"]} if kind.metrics else {})}
    for variable, port in wanted.items():
        taken = next((one for one in here.get("listeners") or [] if one["port"] == port and one.get("container") != mine), None)
        if taken:
            who = f"container {taken['container']}" if taken.get("container") else taken.get("process") or "another program"
            problems.append(f"Port {port} of {asked['node']} is taken by {who}: set {variable} to one that is free.")
    return problems
