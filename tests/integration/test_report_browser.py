# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The report in a real browser: on a phone and on a desk, in light and dark, on paper, by keyboard, and with a log that wants to break out.

The pictures are left in build/report.
"""

from __future__ import annotations

import pathlib
import typing as t

import browser as browsers
import pytest
from playwright.sync_api import Browser, Page, sync_playwright
from report_samples import HOSTILE, PLAN, RECORD, case, guarded

from ansible_collections.sparkstack.inference.plugins.filter.launch_report_html import launch_report_html
from ansible_collections.sparkstack.inference.plugins.plugin_utils import _history

pytestmark = [pytest.mark.browser]

PICTURES = pathlib.Path(__file__).resolve().parents[2] / "build" / "report"
QUIET = ("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync")
SIZES = {"phone": (390, 844), "desk": (1280, 800)}
PATIENCE = 240_000
"""Milliseconds that one step may take: beside a lab that loads a model a browser is slow."""

# Every text's colour beside that of what lies behind it, by WCAG 2.2.
CONTRAST = """() => {
  const lum = c => { const f = c.map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
                     return 0.2126 * f[0] + 0.7152 * f[1] + 0.0722 * f[2]; };
  const rgb = s => s.match(/[0-9.]+/g).map(Number);
  const found = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const own = walk.currentNode.parentElement;
    if (!walk.currentNode.data.trim() || own.closest('svg')) continue;
    let behind = own;
    while (behind && rgb(getComputedStyle(behind).backgroundColor)[3] === 0) behind = behind.parentElement;
    const [a, b] = [lum(rgb(getComputedStyle(own).color)), lum(rgb(getComputedStyle(behind || document.body).backgroundColor))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) found.push(walk.currentNode.data.trim().slice(0, 40) + ' ' + ratio.toFixed(2));
  }
  return found;
}"""


def pages() -> dict[str, str]:
    """The pages that are looked at, by name."""
    verdict = guarded()
    stopped = _history.record(PLAN, verdict, {}, (1796029200.0, 1796029260.0), {"user": "alice", "host": "ctl1", "job": "17"}, verdict["summary"])
    many = case("vllm-cpu/kv-cache-too-big")
    first, second = many["nodes"].values()
    many["nodes"] = {f"spark{rank + 1}": {**(second if rank == 1 else first), "rank": rank} for rank in range(8)}
    return {
        "served": launch_report_html(RECORD),
        "failed": launch_report_html(case("vllm-cpu/kv-cache-too-big")),
        "guarded": launch_report_html(stopped, verdict, note="There is no other launch that answered, so there is nothing to go back to."),
        "frozen": launch_report_html(case("sglang-gpu/worker-frozen-while-loading")),
        "eight": launch_report_html(many),
    }


@pytest.fixture(scope="module", name="files")
def _files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, pathlib.Path]:
    folder = tmp_path_factory.mktemp("report")
    found = {}
    for name, page in pages().items():
        found[name] = folder / f"{name}.html"
        found[name].write_text(page, encoding="utf-8")
    PICTURES.mkdir(parents=True, exist_ok=True)
    return found


@pytest.fixture(scope="module", name="browser")
def _browser() -> t.Iterator[Browser]:
    program = browsers.program()
    assert program, "There is no browser: 'make browser' installs one."
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, args=list(QUIET), timeout=PATIENCE)
        yield started
        started.close()


def look(browser: Browser, path: pathlib.Path, size: tuple[int, int], scheme: t.Any = "light") -> tuple[Page, list[str]]:
    """The page, and all that the browser said, asked for or wanted to ask the user."""
    page = browser.new_context(viewport={"width": size[0], "height": size[1]}, color_scheme=scheme).new_page()
    page.set_default_timeout(PATIENCE)
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("dialog", lambda dialog: said.append(dialog.message))
    page.on("request", lambda request: said.append(request.url) if request.url != path.as_uri() else None)
    page.goto(path.as_uri())
    return page, said


def over(page: Page) -> int:
    """Pixels by which the page is wider than the screen."""
    return int(page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", ["served", "failed", "guarded", "frozen", "eight"])
def test_it_is_readable(browser: Browser, files: dict[str, pathlib.Path], name: str, size: str, scheme: str) -> None:
    page, said = look(browser, files[name], SIZES[size], scheme)
    page.screenshot(path=PICTURES / f"{name}-{size}-{scheme}.png", full_page=True)
    assert not said and over(page) == 0
    light = sum(int(part) for part in page.evaluate("getComputedStyle(document.body).backgroundColor").strip("rgb()").split(",")) > 3 * 128
    assert light == (scheme == "light")
    assert not page.evaluate(CONTRAST)
    for bar in page.locator("figure svg .seg").all()[:3]:
        assert (bar.bounding_box() or {"height": 0})["height"] > 20
    page.context.close()


def test_a_narrow_screen_and_large_letters_need_no_scrolling_to_the_side(browser: Browser, files: dict[str, pathlib.Path]) -> None:
    page, _said = look(browser, files["guarded"], (320, 640))
    assert over(page) == 0
    page.context.close()


def test_what_to_do_is_in_sight_on_a_phone(browser: Browser, files: dict[str, pathlib.Path]) -> None:
    page, _said = look(browser, files["served"], SIZES["phone"])
    table = page.get_by_role("region", name="What is not ready")
    assert "Remedy: " in table.inner_text() and table.evaluate("box => box.scrollWidth <= box.clientWidth")
    page.context.close()


def test_a_log_runs_nothing(browser: Browser, files: dict[str, pathlib.Path]) -> None:
    page, said = look(browser, files["guarded"], SIZES["desk"])
    assert not said and page.title() == "FAILED: qwen"
    assert page.evaluate("document.scripts.length + document.images.length") == 0
    # What could be told of the line is told as text.
    shown = page.locator("pre").first.inner_text()
    assert shown.startswith(HOSTILE[:40]) and "\\u202e" in shown and "\u202e" not in shown
    page.context.close()


def test_were_a_text_not_escaped_the_policy_would_still_let_nothing_run(browser: Browser, files: dict[str, pathlib.Path], tmp_path: pathlib.Path) -> None:
    broken = tmp_path / "broken.html"
    words = "<script>document.title='hit'</script><img src=http://127.0.0.1:9/x onerror=\"document.title='hit'\"><style>body{display:none}</style>"
    broken.write_text(files["failed"].read_text().replace("<main>", f"<main>{words}"))
    page, said = look(browser, broken, SIZES["desk"])
    assert page.title() == "FAILED: Launch" and page.evaluate("getComputedStyle(document.body).display") == "block"
    assert len([line for line in said if "Content Security Policy" in line]) >= 3
    page.context.close()


def test_a_screen_reader_is_told_the_same(browser: Browser, files: dict[str, pathlib.Path]) -> None:
    page, _said = look(browser, files["guarded"], SIZES["desk"])
    assert page.get_by_role("heading", level=1).inner_text() == "Launch of qwen"
    assert page.get_by_role("img", name="It came to phase 4 of 9, load_weights.").count() == 1
    assert page.get_by_role("img", name="Available memory of spark2").count() == 1
    page.get_by_text("Every phase as a table").click()
    table = page.get_by_role("table", name="The phases of spark2 (rank 1)")
    assert table.is_visible() and table.get_by_role("rowheader", name="4 load_weights").count() == 1
    page.context.close()


def test_the_keyboard_reaches_all(browser: Browser, files: dict[str, pathlib.Path]) -> None:
    page, _said = look(browser, files["guarded"], SIZES["phone"])
    reached = set()
    for _step in range(25):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.tagName"))
    assert {"SUMMARY", "PRE", "DIV"} <= reached
    page.context.close()


def test_paper_has_all_of_it_in_light(browser: Browser, files: dict[str, pathlib.Path]) -> None:
    page, _said = look(browser, files["guarded"], SIZES["desk"], "dark")
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    # What is folded away on a screen can't be unfolded on paper.
    assert page.get_by_role("table", name="The phases of spark2 (rank 1)").is_visible()
    page.pdf(path=PICTURES / "guarded.pdf", format="A4")
    assert (PICTURES / "guarded.pdf").read_bytes().startswith(b"%PDF")
    page.context.close()
