# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which router is made of what the nodes tell, and what is refused; the options stand in what the routers' own programs said of themselves."""

from __future__ import annotations

import pathlib
import re
import typing as t

import pytest
import yaml
from ansible.errors import AnsibleFilterError

from ansible_collections.sparkstack.inference.plugins.filter import router_plan
from ansible_collections.sparkstack.inference.plugins.plugin_utils import _router
from ansible_collections.sparkstack.inference.plugins.plugin_utils._router_nginx import configuration

ROOT = pathlib.Path(__file__).resolve().parents[4]
ASKED: dict[str, t.Any] = {
    "deployment": "qwen", "kind": "nginx", "node": "spark1", "port": 8080, "metrics_port": 29000, "listen_address": "0.0.0.0", "upstreams": [], "policy": "",
    "image": "", "timeout": 1800, "max_body": "64m",
}  # fmt: skip


def head(deployment: str, **more: t.Any) -> dict[str, t.Any]:
    return {"deployment": deployment, "rank": 0, "model": "m", "port": 8000, "listen_address": "0.0.0.0", "running": True, **more}


def node(name: str, *containers: dict[str, t.Any], **more: t.Any) -> dict[str, t.Any]:
    return {"node": name, "host": f"10.0.0.{name[-1]}", "endpoint_host": f"{name}.lan", "containers": list(containers), **more}


def plan(*nodes: dict[str, t.Any], **asked: t.Any) -> dict[str, t.Any]:
    return router_plan.router_plan(nodes or PAIR, {**ASKED, **asked})


PAIR = (node("spark1", head("qwen-r0")), node("spark2", {**head("qwen-r0"), "rank": 1}), node("spark3", head("qwen-r1")), node("spark4"))


def test_the_heads_of_the_replicas_are_its_upstreams() -> None:
    found = plan()
    assert (found["problems"], found["upstreams"], found["model"]) == ([], ["10.0.0.1:8000", "10.0.0.3:8000"], "m")
    assert (found["name"], found["url"], found["endpoint"]) == ("qwen-router", "http://127.0.0.1:8080", "http://spark1.lan:8080/v1")
    assert found["folder"] == "/etc/sparkstack/router/qwen" and found["told"]["digest"] == found["digest"]


def test_replicas_are_in_their_order_and_those_of_another_deployment_are_not_among_them() -> None:
    others = [head("qwen2-r0"), head("qwen-r1x"), head("my-qwen-r0"), head("qwen-r0-r1")]
    nodes = [node("spark1", head("qwen-r10", port=8002), head("qwen-r2", port=8001), *others), node("spark2", head("qwen", listen_address="10.1.1.2"))]
    assert plan(*nodes)["upstreams"] == ["10.1.1.2:8000", "10.0.0.1:8001", "10.0.0.1:8002"]
    # A dot in a name is a dot.
    assert plan(node("spark1", head("qwen3.5-r0"), head("qwen3x5-r0", port=1)), deployment="qwen3.5")["upstreams"] == ["10.0.0.1:8000"]


def test_a_head_that_has_ended_stays_an_upstream_and_ipv6_has_its_brackets() -> None:
    nodes = [node("spark1", head("qwen-r0", running=False, listen_address="fd00::1")), node("spark2", head("qwen-r1"), host="fd00::2")]
    assert plan(*nodes)["upstreams"] == ["[fd00::1]:8000", "[fd00::2]:8000"]


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"deployment": "other"}, "No node has a rank 0 of 'other' or of its replicas 'other-rN': deploy it first, or name the servers with router_upstreams"),
        ({"port": 80}, "router_port must be a number from 1024 to 65535, not 80"),
        ({"port": 8000}, "Port 8000 of spark1 is a replica's: set router_port to another one."),
        ({"port": 8000, "listen_address": "10.0.0.1"}, "Port 8000 of spark1 is a replica's"),
        ({"policy": "cache_aware"}, "nginx has no policy 'cache_aware': set router_policy to least_conn or round_robin or ip_hash"),
        ({"kind": "vllm-router", "policy": "least_conn"}, "vllm-router has no policy 'least_conn'"),
        ({"kind": "vllm-router", "metrics_port": 8080}, "router_port and router_metrics_port are both 8080"),
        ({"kind": "sglang-router", "metrics_port": 0}, "router_metrics_port must be a number from 1024 to 65535, not 0."),
        ({"upstreams": ["spark1"]}, "router_upstreams has 'spark1', which is no HOST:PORT"),
        ({"upstreams": ["spark1:80;evil"]}, "router_upstreams has 'spark1:80;evil', which is no HOST:PORT"),
        ({"upstreams": ["http://spark1:80"]}, "router_upstreams has 'http://spark1:80', which is no HOST:PORT"),
        ({"upstreams": ["spark1:70000"]}, "router_upstreams has 'spark1:70000', which is no HOST:PORT"),
        ({"upstreams": ["a:1", "b:1", "a:1"]}, "a:1 stands twice among the upstreams"),
        ({"max_body": "64 MB; }"}, "router_max_body must be a size such as 64m"),
        ({"node": "spark9"}, "spark9 is none of this play's nodes: set router_host to one of them."),
    ],
)
def test_what_is_refused(asked: dict[str, t.Any], told: str) -> None:
    (problem,) = plan(**asked)["problems"]
    assert problem.startswith(told), problem


@pytest.mark.parametrize(
    ("here", "kind", "told"),
    [
        ({"listeners": [{"port": 8080, "process": "nginx", "container": None}]}, "nginx", "Port 8080 of spark1 is taken by nginx: set router_port to one"),
        ({"listeners": [{"port": 8080, "process": "x", "container": "web"}]}, "nginx", "Port 8080 of spark1 is taken by container web: set router_port"),
        ({"listeners": [{"port": 8080, "process": None, "container": None}]}, "nginx", "Port 8080 of spark1 is taken by another program"),
        ({"listeners": [{"port": 29000, "process": "x", "container": "a-router"}]}, "vllm-router", "Port 29000 of spark1 is taken by container a-router: set "),
        ({"listen_possible": False}, "nginx", "spark1 has no address 0.0.0.0: set router_listen_address to one that it has"),
        ({"foreign": "web:1"}, "nginx", "The name qwen-router on spark1 belongs to a container of web:1 that this collection did not start"),
    ],
)
def test_what_is_in_its_way_on_its_node(here: dict[str, t.Any], kind: str, told: str) -> None:
    (problem,) = plan({**PAIR[0], **here}, PAIR[2], kind=kind)["problems"]
    assert problem.startswith(told), problem


def test_its_own_listener_and_metrics_that_nginx_does_not_have_are_in_nobodys_way() -> None:
    listeners = [{"port": 8080, "process": "nginx", "container": "qwen-router"}, {"port": 29000, "process": "x", "container": None}]
    assert plan({**PAIR[0], "listeners": listeners, "listen_possible": True, "foreign": None}, PAIR[2])["problems"] == []


def test_different_models_are_not_mixed() -> None:
    (problem,) = plan(node("spark1", head("qwen-r0")), node("spark2", head("qwen-r1", model="n")))["problems"]
    assert problem.startswith("The replicas of 'qwen' serve different models (m and n)")


def test_servers_that_are_named_are_taken_as_they_are() -> None:
    found = plan(upstreams=["a.lan:8000", "[fd00::1]:8001"], kind="sglang-router")
    assert found["problems"] == [] and found["model"] == "" and found["command"][:2] == ["-m", "sglang_router.launch_router"]
    assert "--worker-urls http://a.lan:8000 http://[fd00::1]:8001 --prometheus-host 127.0.0.1" in " ".join(found["command"])


def test_the_digest_changes_with_all_that_it_is_started_with() -> None:
    changes: list[dict[str, t.Any]] = [{}, {"port": 8081}, {"timeout": 60}, {"policy": "ip_hash"}, {"image": "x:1"}, {"upstreams": ["a:1"]}]
    changes += [{"kind": kind, **more} for kind in ("sglang-router", "vllm-router") for more in ({}, {"metrics_port": 29001}, {"timeout": 60})]
    assert len({plan(**change)["digest"] for change in changes}) == len(changes)
    assert plan()["digest"] == plan(metrics_port=29001)["digest"]


@pytest.mark.parametrize("kind", ["sglang-router", "vllm-router"])
def test_every_option_is_one_of_the_programs_own(kind: str) -> None:
    usage = (ROOT / "tests" / "fixtures" / "routers" / f"{kind}.txt").read_text(encoding="utf-8")
    known = re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", usage)
    command = plan(kind=kind)["command"]
    assert not {word for word in command if word.startswith("--")} - set(known)
    for policy in _router.KINDS[kind].policies:
        assert plan(kind=kind, policy=policy)["problems"] == []
    choices = re.search(r"--policy \{([a-z_,]+)\}", usage)
    assert choices and set(_router.KINDS[kind].policies) <= set(choices[1].split(","))


def test_nginx_has_its_digest_in_it_and_nothing_is_left_open() -> None:
    found = plan()
    text = found["config"]
    assert f"return 200 {found['digest']};" in text and "@DIGEST@" not in text
    assert text.count("{") == text.count("}") and "server 10.0.0.3:8000 max_fails=1 fail_timeout=10s;" in text
    assert text.index("least_conn;") < text.index("server 10.0.0.1:8000") and "proxy_buffering off;" in text
    # A key may stand in a query.
    (line,) = [line for line in text.splitlines() if "log_format" in line]
    assert "$uri" in line and "request_uri" not in line and "$args" not in line and "$request " not in line
    # What changes something is sent once.
    harmless = re.search(r"location ~ (\S+) \{\n.*\n.*non_idempotent", text)
    assert harmless and text.count("non_idempotent") == 1
    for path in ("/v1/completions", "/v1/chat/completions", "/generate"):
        assert re.match(harmless[1], path)
    for path in ("/v1/responses", "/update_weights_from_disk", "/flush_cache", "/v1/completions/x"):
        assert not re.match(harmless[1], path)


@pytest.mark.parametrize(
    ("address", "line"),
    [("0.0.0.0", "listen 0.0.0.0:8080;"), ("::", "listen [::]:8080 ipv6only=off;"), ("fd00::1", "listen [fd00::1]:8080;")],
)
def test_where_nginx_listens(address: str, line: str) -> None:
    assert line in configuration({**ASKED, "listen_address": address, "upstreams": ["a:1"], "policy": "round_robin"})


def test_what_is_not_whole_is_an_error_of_the_role() -> None:
    with pytest.raises(AnsibleFilterError, match="each node needs"):
        router_plan.router_plan([{}], ASKED)
    with pytest.raises(AnsibleFilterError, match="not whole"):
        router_plan.router_plan(PAIR, {**ASKED, "port": None})


def test_what_the_roles_documentation_says_of_kinds_images_and_policies() -> None:
    options = yaml.safe_load((ROOT / "roles/router/meta/argument_specs.yml").read_text())["argument_specs"]["main"]["options"]
    assert options["router_kind"]["choices"] == list(_router.KINDS)
    images = re.findall(r"C\((\S+:\S+)\)", " ".join(options["router_image"]["description"]))
    assert images == [kind.image for kind in _router.KINDS.values()]
    for line, (name, kind) in zip(options["router_policy"]["description"][1:], _router.KINDS.items(), strict=True):
        assert f"C({name})" in line and re.findall(r"V\((\w+)\)", line) == list(kind.policies)
    page = (ROOT / "docs/router.md").read_text()
    assert all(kind.image in page for kind in _router.KINDS.values())
