# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which containers are judged as which ranks, and what can't be told; which logs."""

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.sparkstack.inference.plugins.plugin_utils import _diagnosis_plan as subject

HOSTS = ["spark1", "spark2"]


def ours(name: str, rank: int, ranks: int = 2, started: str = "2026-11-29T22:00:00Z", port: int = 8000) -> dict[str, t.Any]:
    known = {"port": port, "listen_address": "0.0.0.0"}
    return {"name": f"{name}-rank{rank}", "deployment": name, "rank": rank, "ranks": ranks, "started_at": started, **known}


NOW = 1795992120


def other(name: str, by: str = "command", running: bool = True, created: int = NOW) -> dict[str, t.Any]:
    state = {"running": running, "created": created}
    return {"name": name, "id": name.ljust(64, "0"), "image": "vllm:1", "command": "vllm serve /m", "by": by, **state}


def node(*containers: dict[str, t.Any], found: t.Sequence[dict[str, t.Any]] = ()) -> dict[str, t.Any]:
    return {"docker": {"reachable": True}, "containers": list(containers), "found": list(found)}


def choose(nodes: dict[str, t.Any], container: t.Any = "", **known: t.Any) -> subject.Choice:
    hosts = known.pop("hosts", HOSTS)
    return subject.choose(hosts, nodes, {host: container.get(host, "") if known.pop("hostvars", False) else container for host in hosts}, **known)


def ranks(choice: subject.Choice) -> list[tuple[str, int, str]]:
    return [(rank.node, rank.rank, rank.container) for rank in choice.ranks]


def test_a_deployment_by_its_labels_whatever_the_order_of_the_play() -> None:
    choice = choose({"spark1": node(ours("qwen", 1)), "spark2": node(ours("qwen", 0))})
    assert ranks(choice) == [("spark2", 0, "qwen-rank0"), ("spark1", 1, "qwen-rank1")]
    assert choice.ordered and choice.deployment == "qwen"
    assert [rank.health_url for rank in choice.ranks] == ["http://127.0.0.1:8000/health", ""]


def test_a_rank_without_a_container_is_missing_on_the_node_that_has_none() -> None:
    choice = choose({"spark1": node(ours("qwen", 0)), "spark2": node()})
    assert ranks(choice) == [("spark1", 0, "qwen-rank0"), ("spark2", 1, "qwen-rank1")]


def test_a_node_that_has_no_part_in_the_deployment_is_left_out() -> None:
    nodes = {"spark1": node(ours("qwen", 0)), "spark2": node(ours("qwen", 1)), "spark3": node()}
    assert [rank.node for rank in choose(nodes, hosts=[*HOSTS, "spark3"]).ranks] == HOSTS


def test_several_deployments_are_listed() -> None:
    nodes = {"spark1": node(ours("qwen", 0), ours("glm", 0)), "spark2": node(ours("qwen", 1))}
    with pytest.raises(subject.ChoiceError, match=r"several deployments: say which one with -e deployment=NAME, for glm, qwen\."):
        choose(nodes)
    assert ranks(choose(nodes, deployment="glm")) == [("spark1", 0, "glm-rank0"), ("spark2", 1, "glm-rank1")]
    with pytest.raises(subject.ChoiceError, match="No node has a rank of 'qwem': the deployments are glm, qwen"):
        choose(nodes, deployment="qwem")


def test_containers_that_anybody_started_are_found_the_newest_of_each_node() -> None:
    nodes = {"spark1": node(found=[other("new"), other("old")]), "spark2": node(found=[other("worker")])}
    choice = choose(nodes, groups=["spark2", "spark1"])
    assert ranks(choice) == [("spark2", 0, "worker"), ("spark1", 1, "new")] and choice.ordered
    assert choice.notes[0] == "The container new was taken on spark1, by its command (vllm:1: vllm serve /m). Older ones are left aside: old."
    assert not choose(nodes).ordered


def test_a_node_without_any_container_counts() -> None:
    choice = choose({"spark1": node(found=[other("head")]), "spark2": node()}, groups=HOSTS)
    assert ranks(choice) == [("spark1", 0, "head"), ("spark2", 1, subject.NOWHERE)]


def test_a_node_that_does_not_answer_counts_too() -> None:
    for info, why in (({"unreachable": True, "msg": "Connection timed out"}, "Connection timed out."), ({}, "it does not answer.")):
        choice = choose({"spark1": node(ours("qwen", 0)), "spark2": info})
        assert ranks(choice) == [("spark1", 0, "qwen-rank0"), ("spark2", 1, "qwen-rank1")]
        assert choice.notes == [f"spark2 could not be looked at: {why}"]


NAMED = {"spark1": node(found=[other("b", "name")]), "spark2": node(found=[other("a", "name")])}


@pytest.mark.parametrize(
    "container, expected",
    [
        # The first of several names is the head's, wherever it is.
        ("a,b", [("spark2", 0, "a"), ("spark1", 1, "b")]),
        (["a", "b"], [("spark2", 0, "a"), ("spark1", 1, "b")]),
        ({"spark1": "b", "spark2": "a"}, [("spark1", 0, "b"), ("spark2", 1, "a")]),
        ("b", [("spark1", 0, "b"), ("spark2", 1, "b")]),
        ("c,b", [("spark2", 0, "c"), ("spark1", 1, "b")]),
    ],
)
def test_named_containers(container: t.Any, expected: list[tuple[str, int, str]]) -> None:
    assert sorted(ranks(choose(NAMED, container, groups=HOSTS))) == sorted(expected)


TWO = {"rank": "0", "ranks": "2"}, {"rank": "1", "ranks": "2"}
TAKEN = "spark2 has no container hh; ww there looks like an engine and was taken: name it too, the head's first, if that is wrong."


def after(choice: subject.Choice, *claims: dict[str, str]) -> subject.Choice:
    assert not choice.ordered
    return subject.by_claims(choice, dict(zip(HOSTS, claims, strict=False)))


@pytest.mark.parametrize("groups", [HOSTS, []])
@pytest.mark.parametrize("claims", [TWO, ()])
def test_the_only_engine_of_a_node_that_lacks_the_name_is_taken_and_told(groups: list[str], claims: tuple[dict[str, str], ...]) -> None:
    nodes = {"spark1": node(found=[other("hh", "name")]), "spark2": node(found=[other("ww"), other("old", running=False)])}
    choice = after(choose(nodes, "hh", groups=groups), *claims)
    assert ranks(choice) == [("spark1", 0, "hh"), ("spark2", 1, "ww")] and choice.ordered
    assert choice.notes[0] == TAKEN
    assert len(choice.notes) == (1 if groups or claims else 2)


def test_the_engine_taken_beside_two_names() -> None:
    nodes = {"spark1": node(found=[other("hh", "name")]), "spark2": node(found=[other("xx")])}
    choice = after(choose(nodes, "hh,ww", groups=HOSTS), *TWO)
    assert ranks(choice) == [("spark1", 0, "hh"), ("spark2", 1, "xx")]
    assert choice.notes == ["spark2 has no container ww; xx there looks like an engine and was taken: name it too, the head's first, if that is wrong."]
    # A worker that is named first keeps its place.
    choice = after(choose(nodes, "ww,hh", groups=HOSTS))
    assert ranks(choice) == [("spark2", 0, "xx"), ("spark1", 1, "hh")]


def test_an_engine_that_is_taken_is_put_where_its_log_says() -> None:
    nodes = {"spark1": node(found=[other("ww")]), "spark2": node(found=[other("hh", "name")])}
    assert ranks(after(choose(nodes, "hh"), TWO[1], TWO[0])) == [("spark2", 0, "hh"), ("spark1", 1, "ww")]


@pytest.mark.parametrize(
    "others, notes",
    [
        ([], []),
        (
            [other("ww"), other("xx")],
            ["spark2 has no container hh. ww, xx there look like engines: if one of them is of this launch, name it too, the head's first."],
        ),
        # It ended last week: no rank of what was started today.
        (
            [other("ww", running=False, created=NOW - 604800)],
            ["spark2 has no container hh. ww there looks like an engine: if it is of this launch, name it too, the head's first."],
        ),
    ],
)
def test_no_engine_is_taken_where_it_may_be_another(others: list[dict[str, t.Any]], notes: list[str]) -> None:
    nodes = {"spark1": node(found=[other("hh", "name")]), "spark2": node(found=others)}
    choice = after(choose(nodes, "hh", groups=HOSTS), TWO[0])
    assert ranks(choice) == [("spark1", 0, "hh"), ("spark2", 1, "hh")] and choice.notes == notes


def test_a_dead_engine_of_the_same_hour_is_taken() -> None:
    nodes = {"spark1": node(found=[other("hh", "name")]), "spark2": node(found=[other("ww", running=False, created=NOW + 60)])}
    assert ranks(after(choose(nodes, "hh", groups=HOSTS), *TWO))[1] == ("spark2", 1, "ww")


def test_an_engine_of_another_launch_is_not_taken() -> None:
    nodes = {"spark1": node(found=[other("hh", "name")]), "spark2": node(found=[other("ww")])}
    choice = after(choose(nodes, "hh", groups=HOSTS), TWO[0], {"rank": "0", "ranks": "1"})
    assert ranks(choice) == [("spark1", 0, "hh"), ("spark2", 1, "hh")]
    assert choice.notes == [
        "spark2 has no container hh; ww there looks like an engine, but its log tells of another number of ranks, 1 and not 2: if it is of this "
        "launch all the same, name it too."
    ]


@pytest.mark.parametrize("by, found", [("name", []), ("name", [other("ww")]), ("command", [])])
def test_a_launch_on_one_node_needs_no_other(by: str, found: list[dict[str, t.Any]]) -> None:
    nodes = {"spark1": node(found=[other("hh", by)]), "spark2": node(found=found)}
    choice = after(choose(nodes, "hh" if by == "name" else "", groups=HOSTS), {"rank": "0", "ranks": "1"})
    assert ranks(choice) == [("spark1", 0, "hh")]
    assert not [note for note in choice.notes if "spark2" in note]


def test_a_node_for_which_nothing_is_named() -> None:
    nodes = {"spark1": node(found=[other("hh", "name")]), "spark2": node(found=[other("ww")])}
    choice = after(choose(nodes, {"spark1": "hh"}, groups=HOSTS), *TWO)
    assert ranks(choice) == [("spark1", 0, "hh"), ("spark2", 1, "ww")]
    assert choice.notes[0].startswith("No container is named for spark2; ww there looks like an engine and was taken")


def test_a_node_that_does_not_answer_keeps_its_place() -> None:
    nodes = {"spark1": node(found=[other("hh", "name")]), "spark2": {}}
    assert ranks(after(choose(nodes, "hh", groups=HOSTS), TWO[0])) == [("spark1", 0, "hh"), ("spark2", 1, "hh")]


def test_names_that_are_all_there() -> None:
    assert choose(NAMED, "a,b", groups=HOSTS).notes == [] and choose(NAMED, "a,b", groups=HOSTS).ordered


def test_a_name_that_no_node_has_is_a_mistake() -> None:
    nodes = {"spark1": node(found=[other("vllm-head")]), "spark2": node()}
    with pytest.raises(subject.ChoiceError, match=r"No node has a container vlm: correct the name.* These look like an engine: vllm-head on spark1\."):
        choose(nodes, "vlm")
    with pytest.raises(subject.ChoiceError, match="3 containers are named and there are 2 nodes"):
        choose(nodes, "a,b,c")


def test_nothing_at_all() -> None:
    with pytest.raises(subject.ChoiceError, match="No node has a deployment, nor a container"):
        choose({"spark1": node(), "spark2": node()})
    with pytest.raises(subject.ChoiceError, match=r"No node could be looked at: Docker does not answer on /x\."):
        choose({"spark1": {"docker": {"reachable": False, "error": "Docker does not answer on /x."}}, "spark2": {}})
    with pytest.raises(subject.ChoiceError, match="sudo: a password is required"):
        choose({"spark1": {"failed": True, "msg": "sudo: a password is required"}})


def test_the_logs_tell_the_order_and_who_takes_part() -> None:
    found = {host: node(found=[other("vllm")]) for host in HOSTS}
    choice = choose({**found, "dev": node()}, hosts=["dev", *HOSTS])
    ordered = subject.by_claims(choice, {"spark1": {"rank": "1", "ranks": "2"}, "spark2": {"rank": "0", "ranks": "2"}})
    assert ranks(ordered) == [("spark2", 0, "vllm"), ("spark1", 1, "vllm")] and ordered.ordered


def test_where_the_logs_tell_nothing_the_order_of_the_play_stays_and_is_told() -> None:
    choice = choose({host: node(found=[other("vllm")]) for host in HOSTS})
    for claims in ({}, {"spark1": {"rank": "0"}, "spark2": {"rank": "0"}}):
        ordered = subject.by_claims(choice, claims)
        assert [rank.node for rank in ordered.ranks] == HOSTS
        assert ordered.notes[-1].startswith("Neither the inventory nor the logs tell which rank is which: spark1 is taken for the head")


def test_logs() -> None:
    assert subject.logs("head.log, sub/worker.log", "/here") == [
        {"node": "head", "rank": 0, "path": "/here/head.log"},
        {"node": "worker", "rank": 1, "path": "/here/sub/worker.log"},
    ]
    assert [entry["node"] for entry in subject.logs(["a/x.log", "b/x.log"], "/here")] == ["a/x.log", "b/x.log"]
    given = [{"node": "spark1", "rank": 0, "path": "/x/head.log", "exit_code": 1}, {"node": "spark2", "rank": 1, "started": False}]
    assert subject.logs(given, "/here") == given
    assert subject.logs([{"path": "head.log"}], "/here") == [{"node": "head", "rank": 0, "path": "/here/head.log"}]


@pytest.mark.parametrize(
    "given, sentence",
    [
        ([], "logs must be a list"),
        ({"path": "x"}, "logs must be a list"),
        ([3], "3 among logs is neither"),
        ([{"node": "spark1"}], "The log of spark1 has no path; say started: false"),
        ([{"node": "a", "path": "x"}, {"node": "a", "path": "y"}], "Two of the logs are of the same node, a"),
        ([{"node": "a", "path": "x", "rank": 1}, {"node": "b", "path": "y"}], "Two of the logs have the rank 1: give each its own, the head's 0."),
        ([{"node": "a", "path": "x", "rank": -1}], "-1 is no rank: number the logs from 0"),
        ([{"node": "a", "path": "x", "rank": "one"}], "'one' is no rank"),
        ([{"node": "a", "pth": "x"}], "An entry of logs has no key pth: choose from node, rank, path"),
        ("", "logs must be a list.*: -e logs=head.log,worker.log"),
    ],
)
def test_logs_that_are_none(given: t.Any, sentence: str) -> None:
    with pytest.raises(subject.ChoiceError, match=sentence):
        subject.logs(given, "/here")
