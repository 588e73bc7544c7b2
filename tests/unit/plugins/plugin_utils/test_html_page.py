# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The report as a file: of every real log, of records, of what no program has written, and of logs that want to break out."""

from __future__ import annotations

import copy
import html.parser
import json
import pathlib
import re
import typing as t

import pytest
import real_logs
import real_memory
from ansible.errors import AnsibleFilterError
from report_samples import BESIDE, GIB, PLAN, RECORD, VERDICT, case, verdict_of

from ansible_collections.sparkstack.inference.plugins.filter.launch_report import launch_report
from ansible_collections.sparkstack.inference.plugins.filter.launch_report_html import FilterModule
from ansible_collections.sparkstack.inference.plugins.plugin_utils import _history, _html_memory, _html_page, _html_time, _report, _report_data

launch_report_html = FilterModule().filters()["launch_report_html"]


class Page(html.parser.HTMLParser):
    """A page taken apart: its text, its elements, and whether each is closed where it should be."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(page)
        self.close()
        assert not self.stack, f"{self.stack} is not closed"
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag != "meta":
            self.stack.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.stack and self.stack[-1] == tag, f"</{tag}> ends {self.stack[-1:]}"
        self.stack.pop()

    def handle_data(self, data: str) -> None:
        if not self.stack or self.stack[-1] != "style":
            self.words.append(data)


def checked(page: str) -> Page:
    """The page taken apart, once it is known to fetch nothing, to run nothing, and to be told to a screen reader."""
    found = Page(page)
    assert page.startswith('<!DOCTYPE html>\n<html lang="en">') and page.encode()
    for name, attributes in found.elements:
        assert name not in ("script", "img", "link", "iframe", "object", "embed", "form", "base")
        assert not [key for key in attributes if key.startswith("on") or key in ("src", "style", "href", "xlink:href", "action", "data")]
        # What is only read out may say anything.
        assert not [value for key, value in attributes.items() if key != "aria-label" and value and re.search(r"(?i)javascript:|https?:", value)]
        if name == "svg" and attributes.get("role") == "img":
            assert attributes.get("aria-label")
    whole = [attributes for name, attributes in found.elements if name == "svg" and attributes.get("width") == "100%" and "viewbox" not in attributes]
    assert all(attributes.get("role") == "img" for attributes in whole)
    headings = [name for name, _attributes in found.elements if re.fullmatch("h[1-6]", name)]
    assert headings[:1] == ["h1"] and headings.count("h1") == 1
    tables = [at for at, (name, _attributes) in enumerate(found.elements) if name == "table"]
    assert all(found.elements[at + 1][0] == "caption" for at in tables)
    return found


@pytest.mark.parametrize("folder", real_logs.CASES, ids=real_logs.name)
def test_every_real_verdict_is_told_whole(folder: pathlib.Path) -> None:
    verdict = verdict_of(folder)
    found = checked(_html_page.page(_report_data.launch(verdict), 0))
    assert verdict["verdict"].upper() in found.text and " ".join(verdict["summary"].split())[:300] in found.text
    if verdict["verdict"] != "ready":
        assert " ".join(verdict["remedy"].split()) in found.text
    for name, node in verdict["nodes"].items():
        assert name in found.text
        for phase in node["timeline"]:
            assert phase["phase"] in found.text
    for entry in verdict["evidence"]:
        for line in entry.splitlines()[:3]:
            assert " ".join(line.split())[:200] in found.text


def test_a_failure_is_seen_at_a_glance() -> None:
    found = checked(launch_report_html(case("vllm-cpu/kv-cache-too-big")))
    assert found.text.index("FAILED") < found.text.index("Culprit spark2 (rank 1)") < found.text.index("Where each rank stood") < found.text.index("Evidence")
    assert "Cause oom: the rank ran out of memory" in found.text
    assert "kv_cache: ended with exit code 1" in found.text and "load_weights: runs, quiet for 100 s, but its log and container tell oom" in found.text
    labels = [attributes.get("aria-label") for name, attributes in found.elements if name == "svg"]
    assert "It came to phase 5 of 9, kv_cache." in labels and "It came to phase 4 of 9, load_weights." in labels
    # By signs and words, not by colours alone.
    assert "✕ spark1 rank 0" in found.text and "! spark2 rank 1 culprit" in found.text and "▸ spark2" not in found.text
    assert "for 6.0 s, then it ended" in found.text and "for 104 s so far" in found.text


def test_in_a_launch_that_serves_no_worker_looks_unfinished() -> None:
    found = checked(launch_report_html(case("vllm-cpu/ready")))
    assert "✓ READY" in found.text and "✓ spark2 rank 1" in found.text
    assert "▸ spark2" not in found.text and "culprit" not in found.text and "Evidence" not in found.text


HOSTILE = [
    "</pre><script>alert(1)</script>", "\"><img src=x onerror=alert(1)>", "<svg/onload=alert(1)>", "javascript:alert(1)", "]]><!--", "{{ 7 * 7 }}",
    "\x1b[2J\u202ereversed\u2066", "&#60;script&#62;", "' onmouseover='alert(1)", "</title></style></svg><base href=//evil>",
]  # fmt: skip


def poisoned(value: t.Any, poison: str) -> t.Any:
    """Plain data in which every text is poison, the names of nodes too."""
    if isinstance(value, str):
        return poison if value not in ("verdict",) else value
    if isinstance(value, dict):
        return {key: poisoned(inner, poison) for key, inner in value.items()}
    if isinstance(value, list):
        return [poisoned(inner, poison) for inner in value]
    return value


@pytest.mark.parametrize("poison", HOSTILE)
def test_a_log_cannot_break_out(poison: str) -> None:
    verdict = case("vllm-cpu/kv-cache-too-big")
    nodes = {f"{poison}{name}": poisoned(node, poison) for name, node in verdict["nodes"].items()}
    record = poisoned(RECORD, poison)
    told = {"nodes": nodes, "evidence": [poison], "notes": [poison], "needs": poisoned(RECORD["told"]["needs"], poison), **poisoned(BESIDE, poison)}
    checked(launch_report_html(poisoned(verdict, poison) | {"nodes": nodes}))
    checked(launch_report_html({**record, "told": told}, note=poison))


def test_what_no_program_has_written_is_still_told() -> None:
    """A record is a file that can be edited: whatever stands there instead of what should, there is a page."""
    for wrong in (None, 5, "text", [], {}, [1], {"a": 1}, True, float("nan"), [[None, "x"]], {"spark1": 7}):
        for key in RECORD:
            checked(launch_report_html({**RECORD, key: wrong, "launch_id": "L1"}))
        for key in RECORD["told"]:
            checked(launch_report_html({**RECORD, "told": {**RECORD["told"], key: wrong}}))
        node = next(iter(RECORD["told"]["nodes"].values()))
        for key in node:
            checked(launch_report_html({**RECORD, "told": {**RECORD["told"], "nodes": {"spark1": {**node, key: wrong}}}}))


@pytest.mark.parametrize("given", [None, 5, "text", [], {}, {"summary": "?"}])
def test_what_is_neither_record_nor_verdict_is_refused(given: t.Any) -> None:
    with pytest.raises(AnsibleFilterError, match="neither a launch's record nor a verdict"):
        launch_report_html(given)


# Secrets.


def test_no_secret_is_in_it() -> None:
    verdict = case("vllm-cpu/kv-cache-too-big")
    verdict["evidence"] += [
        "export HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz012345",
        "GET /?key=open-sesame%2Fnow",
        'Authorization: Bearer "b3Blbi1zZXNhbWUvbm93"',
    ]
    verdict["nodes"]["spark1"]["last_line"] = "api_key='open-sesame/now'"
    page = launch_report_html(verdict, hide=["open-sesame/now", "", None])
    assert not re.search(r"open.{0,3}sesame|hf_abc|b3Blbi1zZXNhbWUv", page)
    assert "***" in page


# Records.


def test_a_record_tells_all_that_a_run_knew() -> None:
    found = checked(launch_report_html(json.loads(json.dumps(RECORD))))
    for words in (
        "Launch of qwen", "by alice at ctl1", "served after 412 s", "rank 1 is missing on spark2", "context-length: 65536 -> 131072",
        "139.0 GiB available at first, 59.0 GiB at the lowest, of 140.0 GiB; told by the watch",
        "Preflight: ! slow", "Set it to 9000.", "All 2 ranks reduce together.",
        "21.9 GB/s", "18.0 GiB", "586 MB/s", "nothing", "model, from the hub", "117.0 GiB", "2053 MB/s", "mem-fraction-static", "16 tokens in 1.5 s",
        "weights", "serves; the log of a worker ends with engine_ready",
    ):  # fmt: skip
        assert words in found.text, words
    # The same launch with the verdict at hand has the same ranks.
    assert checked(launch_report_html(RECORD, VERDICT)).text.count("spark2") >= found.text.count("spark2")


def test_a_record_stays_small() -> None:
    big = copy.deepcopy(VERDICT)
    big["evidence"] = ["x" * 5000] * 5000
    big["notes"] = ["y" * 5000] * 5000
    big["nodes"] = {f"spark{at}": copy.deepcopy(big["nodes"]["spark1"]) for at in range(8)}
    for node in big["nodes"].values():
        node["guard"] = {"floor": 1, "total": 2, "curve": [[float(at), at] for at in range(5000)]}
    beside = {**BESIDE, "preflight": {"result": "blocked", "checks": BESIDE["preflight"]["checks"] * 5000}}
    kept = _history.record(PLAN, big, {}, (1.0, 2.0), {}, "It failed.", beside=beside)
    # The ledger takes 512 KiB.
    assert len(json.dumps(kept)) < 300 * 1024


def test_the_terminal_has_the_same_of_a_record() -> None:
    failed = case("vllm-cpu/kv-cache-too-big")
    record = _history.record(PLAN, failed, {}, (1.0, 2.0), {}, failed["summary"])
    assert launch_report(record, 110) == launch_report(failed, 110)


def test_an_older_record_tells_what_it_has() -> None:
    older = {key: value for key, value in RECORD.items() if key != "told"}
    found = checked(launch_report_html(older))
    assert "✓ READY" in found.text and "✓ spark2 rank 1" in found.text and "load_weights" in found.text
    failed = {**older, "answered": False, "verdict": {"verdict": "failed", "summary": "Docker refused.", "remedy": "Ask it."}}
    assert "how it ended is not recorded" in checked(launch_report_html(failed)).text


def test_what_was_refused_before_the_start_shows_no_ranks() -> None:
    record = _history.record(PLAN, {}, {}, (1.0, 2.0), {}, "The preflight is blocked.", beside=BESIDE)
    found = checked(launch_report_html(record))
    assert "The preflight is blocked." in found.text and "Where each rank stood" not in found.text and "path_mtu" in found.text
    worst = next(check for check in BESIDE["preflight"]["checks"] if check["result"] != "ready")
    assert f"{worst['message']} Remedy: {worst['remedy']}" in found.text


# Pictures.


def test_phases_have_their_places() -> None:
    node = {
        "clock_offset": 100.0, "seconds_in_phase": 7.0,
        "timeline": [
            {"phase": "parse_args", "time": 1100.0, "seconds": 12.0}, {"phase": "init_dist", "time": None, "seconds": 3.0}, {"phase": "nonsense", "time": 1.0},
            {"phase": "load_weights", "time": 1120.0, "seconds": None},
        ],
    }  # fmt: skip
    assert _html_time.spans(node) == [
        _html_time.Span(1, 1000.0, 1012.0, True), _html_time.Span(2, 1012.0, 1015.0, True), _html_time.Span(4, 1020.0, 1027.0, False),
    ]  # fmt: skip
    assert _html_time.begin([("a", node)]) == 1000.0
    assert _html_time.chart([("a", {})]) == ""


def test_clocks_of_other_zones_do_not_hide_the_bars() -> None:
    phase = {"phase": "init_dist", "seconds": 10.0}
    nodes = [("a", {"timeline": [{**phase, "time": 0.0}]}), ("b", {"timeline": [{**phase, "time": 36000.0}]})]
    made = _html_time.chart(nodes)
    assert "each bar begins at its rank&#x27;s own start" in made and made.count('x="0.000%" y="20" width="100.000%"') == 1
    assert "each bar begins" not in _html_time.chart([nodes[0], ("b", {"timeline": [{**phase, "time": 300.0}]})])


@pytest.mark.parametrize("folder", real_memory.CASES, ids=lambda folder: folder.name)
def test_what_the_plan_leaves_is_what_was_left(folder: pathlib.Path) -> None:
    """Beside real runs on H200s: the line in the picture is where the engine's own last word was, to within 3 GiB."""
    row = real_memory.plan(folder)["nodes"][0]
    left = _html_memory.planned_left(row)
    told = [phase["values"]["available_gb"] for phase in real_memory.reports(folder)["spark1"] if "available_gb" in phase["values"]]
    assert left is not None and abs(left / row["ranks"] / GIB - told[-1]) < 3


def test_the_finest_curve_of_the_planned_memory_is_taken() -> None:
    need = {"node": "a", "memory_bytes": 100, "available_bytes": 90, "total_bytes": 40, "pool_bytes": 30, "needs": [{"what": "cache", "bytes": 20}]}
    guard, watch = {"floor": 3, "total": 100, "curve": [[1.0, 90], [2.0, 2]]}, {"total": 100, "curve": [[1.0, 80], [2.0, 70]]}
    found = _html_memory.known("a", {"guard": guard, "memory": watch, "clock_offset": 1.0}, [need])
    assert found is not None and (found.points, found.source, found.left, found.floor) == ([(0.0, 90.0), (1.0, 2.0)], "the memory guard", 40.0, 3.0)
    # Of a GPU with memory of its own the watch sees nothing, and its engine tells.
    timeline = [
        {"phase": name, "time": at, "seconds": 1.0, "values": {"available_gb": gb}} for at, (name, gb) in enumerate([("init_dist", 9.0), ("kv_cache", 4.0)])
    ]
    node = {"memory": {**watch, "total": 500}, "timeline": timeline}
    other = _html_memory.known("a", node, [need])
    assert other is not None and (other.source, other.left) == ("the engine's own log", 40.0)
    # Where that does not tell either, the main memory is shown without the plan.
    bare = _html_memory.known("a", {"memory": {**watch, "total": 500}}, [need])
    assert bare is not None and (bare.source, bare.total, bare.left) == ("the watch", 500.0, None)
    assert _html_memory.known("a", {}, []) is None


def test_a_curve_keeps_its_lowest_points() -> None:
    curve = [[float(at), 1000 - at if at != 777 else 1] for at in range(1000)]
    kept = _report_data.thin(curve, 50)
    assert len(kept) <= 52 and [777.0, 1.0] in kept and kept[0] == [0.0, 1000.0] and kept[-1] == [999.0, 1.0]
    assert _report_data.thin([[1.0, 2], "x", [3.0]], 50) == [[1.0, 2.0]]


@pytest.mark.parametrize(
    ("node", "sign"),
    [
        ({"state": "running", "cause": "oom"}, ("!", "bad")),
        ({"state": "paused", "cause": "oom"}, ("‖", "wait")),
        ({"state": "running", "cause": "unknown"}, ("▸", "wait")),
        ({"state": "running", "cause": None}, ("▸", "wait")),
        ({"state": "exited", "cause": "oom"}, ("✕", "bad")),
        ({"state": "ready", "cause": None}, ("✓", "good")),
    ],
)
def test_a_rank_that_runs_with_a_failure_is_not_marked_as_one_that_runs(node: dict[str, t.Any], sign: tuple[str, str]) -> None:
    assert _html_time.place(node) == sign
    assert ("but its log and container tell oom" in _report.rank(node)) is (sign[0] == "!")
    phases = [{"phase": "load_weights", "time": 100.0, "seconds": None, "values": {}}]
    drawn = _html_time.strip({**node, "phase": "load_weights", "timeline": phases, "rank": 0})
    assert (f">{sign[0]}</text>" in drawn) is (sign[0] != "✓")
