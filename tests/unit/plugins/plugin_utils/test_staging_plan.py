# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What has to move to which node, by which way, and what is said of it; and the certificate that a task makes."""

from __future__ import annotations

import hashlib
import ssl
import typing as t

import pytest

from ansible_collections.sparkstack.inference.plugins.module_utils._staging_state import partial
from ansible_collections.sparkstack.inference.plugins.plugin_utils import _certificate
from ansible_collections.sparkstack.inference.plugins.plugin_utils import _staging as subject
from ansible_collections.sparkstack.inference.plugins.plugin_utils._staging_progress import Meter, of

GB = 10**9
SOURCE = {"m-1.safetensors": [5 * GB, 1, "aa"], "m-2.safetensors": [4 * GB, 1, "bb"], "config.json": [700, 1, "cc"]}


def view(files: t.Mapping[str, t.Any], **more: t.Any) -> dict[str, t.Any]:
    rails = [{"address": "192.168.200.11", "prefix": 24}]
    return {
        "exists": bool(files),
        "files": dict(files),
        "scope": "",
        "held": {},
        "linked": [],
        "free": 100 * GB,
        "writable": True,
        "parent": "/srv",
        "rails": rails,
        "sums": ["gmac", "sha256"],
        **more,
    }


def decide(target: dict[str, t.Any], source: dict[str, t.Any] | None = None, checksum: bool = False, delete: bool = False) -> subject.Decision:
    views = {"spark1": source or view(SOURCE), "spark2": target}
    return subject.decide("/srv/m", "spark1", views, "spark2", checksum, delete)


def changed(**files: t.Any) -> dict[str, t.Any]:
    return {**SOURCE, **{name.replace("__", ".").replace("_", "-"): value for name, value in files.items()}}


@pytest.mark.parametrize(
    ("target", "checksum", "kind", "fetch", "compare", "bytes_", "text"),
    [
        (view(SOURCE), False, "none", [], [], 0, ""),
        (view({}), False, "copy", list(SOURCE), [], 9 * GB + 700, "copy /srv/m from spark1: 3 files are missing (all), 9.0 GB at most"),
        (
            view({name: SOURCE[name] for name in ("m-1.safetensors", "config.json")}),
            *(False, "copy", ["m-2.safetensors"], [], 4 * GB, "copy /srv/m from spark1: 1 file is missing, 4.0 GB at most"),
        ),
        (
            view(changed(m_1__safetensors=[5 * GB, 1, "other"])),
            *(False, "copy", [], ["m-1.safetensors"], 5 * GB, "copy /srv/m from spark1: 1 file is not as there (m-1.safetensors), 5.0 GB at most"),
        ),
        (
            view(changed(m_1__safetensors=[5 * GB, 2, "aa"])),
            *(False, "copy", [], ["m-1.safetensors"], 5 * GB, "copy /srv/m from spark1: 1 file is not as there (m-1.safetensors), 5.0 GB at most"),
        ),
        (view(SOURCE), True, "copy", [], list(SOURCE), 0, "copy /srv/m from spark1: 3 to compare by content"),
    ],
)
def test_what_moves(target: dict[str, t.Any], checksum: bool, kind: str, fetch: list[str], compare: list[str], bytes_: int, text: str) -> None:
    found = decide(target, checksum=checksum)
    assert found == subject.Decision(kind, text, fetch, compare, [], [], bytes_)


def test_extra_files_go_on_request_and_only_within_the_snapshot() -> None:
    files = {"snapshots/abc/m.bin": [1, 1, ""], "refs/main": [4, 1, ""]}
    there = {**files, "snapshots/abc/old.bin": [1, 1, ""], "snapshots/def/m.bin": [1, 1, ""], "blobs/11": [1, 1, ""]}
    kept = decide(view(there), view(files, scope="snapshots/abc"))
    assert (kept.kind, kept.extra, kept.delete) == ("none", ["snapshots/abc/old.bin"], [])
    gone = decide(view(there), view(files, scope="snapshots/abc"), delete=True)
    assert (gone.kind, gone.delete, gone.text) == ("copy", ["snapshots/abc/old.bin"], "delete snapshots/abc/old.bin")


def test_what_lies_behind_a_link_to_a_folder_is_told_and_stays() -> None:
    there = view({**SOURCE, "old.bin": [1, 1, ""], "link/a.bin": [1, 1, ""]}, linked=["link/a.bin"])
    found = decide(there, delete=True)
    assert (found.extra, found.delete, found.text) == (["link/a.bin", "old.bin"], ["old.bin"], "delete old.bin")


@pytest.mark.parametrize(
    ("target", "checksum", "told"),
    [
        (view({}, free=8 * GB), False, "spark2 has 8.0 GB free where the model /srv/m is to lie, and 9.0 GB are to come: free 1.0 GB there."),
        # What an unfinished copy holds already needs no more room.
        (view({}, free=8 * GB, held={partial("", "m-1.safetensors")[len(".sparkstack-sync/") :]: 2 * GB}), False, ""),
        (
            view({}, writable=False),
            False,
            "spark2 can't write to /srv, where the model /srv/m is to lie: mount it writable, or let this task run with `become`.",
        ),
        # Nothing to write, nothing to refuse.
        (view(SOURCE, writable=False, free=0), False, ""),
        # The old file stays until the new one is whole.
        (view(changed(m_1__safetensors=[4 * GB, 1, "aa"]), free=4 * GB), False, "spark2 has 4.0 GB free where"),
        # Of files that are expected to be equal only one at a time may need room.
        (view(SOURCE, free=5 * GB), True, ""),
        (view(SOURCE, free=4 * GB), True, "spark2 has 4.0 GB free where"),
    ],
)
def test_room_is_looked_for_before_anything_moves(target: dict[str, t.Any], checksum: bool, told: str) -> None:
    found = decide(target, checksum=checksum)
    assert found.text.startswith(told) if told else found.kind in ("copy", "none")
    assert (found.kind == "refuse") is bool(told)


def test_a_node_that_failed_is_refused_and_a_source_that_did_refuses_all() -> None:
    assert decide({"failed": "ssh: no route"}) == subject.Decision("refuse", "ssh: no route")
    told = "spark1 is the source of the model /srv/m and failed: it burns"
    assert decide(view({}), {"failed": "it burns"}) == subject.Decision("refuse", told)


def test_the_chain_has_those_that_get_something_in_their_order() -> None:
    kinds = {"spark1": "none", "spark2": "none", "spark3": "copy", "spark4": "refuse", "spark5": "copy", "spark6": "copy"}
    decisions = {host: subject.Decision(kind, fetch=["m"] if kind == "copy" else [], delete=[]) for host, kind in kinds.items()}
    decisions["spark6"] = subject.Decision("copy", delete=["old"])
    chain = subject.order(list(kinds), "spark1", decisions)
    assert chain == ["spark1", "spark3", "spark5"]
    views = {host: view({}, rails=[{"address": f"192.168.{rail}.1{host[-1]}", "prefix": 24} for rail in (200, 201)]) for host in kinds}
    assert subject.callers(chain, "spark3", views) == ["192.168.200.15", "192.168.201.15"]
    assert subject.callers(chain, "spark5", views) == []


@pytest.mark.parametrize(
    ("addresses", "told"),
    [
        (["192.168.200.12", "fd00::2"], None),
        ([], "spark2 has no address on the fabric: give its own in `addresses`."),
        (
            ["FE80::2"],
            "addresses: FE80::2 is spark2's for one link only, and other nodes would need another name for that link: give another one.",
        ),
        (["192.168.200.12", "spark2-fast"], "addresses: 'spark2-fast' is no IP address: give spark2's own on the fabric."),
    ],
)
def test_addresses_are_no_names(addresses: list[str], told: str | None) -> None:
    assert subject.address_problem("spark2", addresses) == told


def rails(*addresses: str, prefix: int = 24) -> list[dict[str, t.Any]]:
    return [{"address": address, "prefix": prefix} for address in addresses]


@pytest.mark.parametrize(
    ("own", "other", "expected"),
    [
        (rails("192.168.200.12"), rails("192.168.200.11"), [["192.168.200.12", "192.168.200.11", 7]]),
        # The cables are crossed: the subnets tell which leads where.
        (
            rails("192.168.200.12", "192.168.201.12"),
            rails("192.168.201.11", "192.168.200.11"),
            [["192.168.200.12", "192.168.200.11", 7], ["192.168.201.12", "192.168.201.11", 7]],
        ),
        # A rail that the other one does not have.
        (rails("192.168.200.12", "192.168.202.12"), rails("192.168.200.11"), [["192.168.200.12", "192.168.200.11", 7]]),
        # Routed: those at the same place.
        (rails("10.0.0.1", "10.0.1.1", prefix=32), rails("10.9.0.1", "10.9.1.1"), [["10.0.0.1", "10.9.0.1", 7], ["10.0.1.1", "10.9.1.1", 7]]),
        (rails("fd00::2", prefix=64), rails("fd00::1"), [["fd00::2", "fd00::1", 7]]),
    ],
)
def test_ways_follow_the_subnets(own: list[dict[str, t.Any]], other: list[dict[str, t.Any]], expected: list[list[t.Any]]) -> None:
    assert subject.lanes(own, other, {rail["address"]: 7 for rail in other}) == expected


@pytest.mark.parametrize(
    ("sums", "wanted", "expected"),
    [
        ((["gmac", "sha256"], ["gmac", "sha256"]), "auto", "gmac"),
        ((["gmac", "sha256"], ["sha256"]), "auto", "sha256"),
        ((["gmac", "sha256"], ["gmac", "sha256"]), "sha256", "sha256"),
        ((["gmac", "sha256"], ["sha256"]), "gmac", "sha256"),
    ],
)
def test_all_nodes_prove_by_the_same_digest(sums: tuple[list[str], list[str]], wanted: str, expected: str) -> None:
    views = {f"spark{number}": view({}, sums=offered) for number, offered in enumerate(sums)}
    assert subject.common_sum(views, list(views), wanted) == expected


def test_all_nodes_number_the_files_alike_largest_first() -> None:
    found = subject.listing(["config.json", "m-2.safetensors", "m-1.safetensors", "config.json"], view(SOURCE))
    assert [entry["name"] for entry in found] == ["m-1.safetensors", "m-2.safetensors", "config.json"]
    assert found[2] == {"name": "config.json", "size": 700, "mtime_ns": 1}


def test_what_is_not_as_there_and_what_changed() -> None:
    assert subject.unlike(view(SOURCE), view({**SOURCE, "extra": [1, 1, ""]})) == []
    assert subject.unlike(view(SOURCE), view(changed(config__json=[700, 2, "cc"]))) == ["config.json"]
    assert subject.changed_since(view(SOURCE), view(SOURCE)) == []
    assert subject.changed_since(view(SOURCE), view({"new": [1, 1, ""], **{name: SOURCE[name] for name in list(SOURCE)[1:]}})) == ["m-1.safetensors", "new"]


@pytest.mark.parametrize(("names", "told"), [(["a"], "a"), (list("abcd"), "a, b, c and d"), (list("abcdef"), "a, b, c and 3 more")])
def test_of_many_names_a_few_are_told(names: list[str], told: str) -> None:
    assert subject.some(names) == told


@pytest.mark.parametrize(
    ("forks", "throttle", "once", "told"),
    [
        (2, 0, False, None),
        (1, 0, False, "set `forks` of Ansible to at least 2 (it is 1)"),
        (5, 1, False, "set `throttle` of this task to at least 2 (it is 1)"),
        (5, 0, True, "The task has `run_once`, but the model's source"),
    ],
)
def test_all_nodes_must_be_at_it_at_the_same_time(forks: int, throttle: int, once: bool, told: str | None) -> None:
    found = subject.task_problem(["spark1", "spark2"], "spark1", forks, throttle, once)
    assert found is None if told is None else told in str(found)


def test_progress_tells_how_much_how_fast_and_how_long() -> None:
    meter = Meter()
    line = [meter.line({"now": 100 + second, "there": int(2.5 * GB * second), "total": 127 * GB}) for second in (0, 5, 10)]
    assert line == ["0.0 of 127.0 GB", "12.5 of 127.0 GB, 2.5 GB/s, 46 s left", "25.0 of 127.0 GB, 2.5 GB/s, 41 s left"]
    # The speed is that of the last seconds.
    assert meter.line({"now": 125, "there": 25 * GB, "total": 127 * GB}) == "25.0 of 127.0 GB"
    assert meter.line({"now": 126, "there": 127 * GB, "total": 127 * GB}).startswith("127.0 of 127.0 GB, ")


@pytest.mark.parametrize(("there", "total", "told"), [(0, 500, "0 of 500 B"), (500, 2000, "0.5 of 2.0 kB"), (0, 0, "0 of 0 B")])
def test_a_part_of_a_size(there: int, total: int, told: str) -> None:
    assert of(there, total) == told


def test_a_certificate_is_of_one_task_alone() -> None:
    first, second = _certificate.make("spark1"), _certificate.make("spark1")
    assert first.pin != second.pin and first.key != second.key
    assert first.pin == hashlib.sha256(ssl.PEM_cert_to_DER_cert(first.certificate)).hexdigest()
    assert "PRIVATE KEY" in first.key and "PRIVATE KEY" not in first.certificate
    # A certificate's name has 64 characters at most.
    assert _certificate.make("n" * 100).pin
