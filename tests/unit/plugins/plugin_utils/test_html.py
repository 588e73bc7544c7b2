# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Markup that can't be broken out of, marks of an axis, and colours that can be read."""

from __future__ import annotations

import base64
import hashlib
import re
import typing as t

import pytest

from ansible_collections.sparkstack.inference.plugins.plugin_utils import _html, _html_style


@pytest.mark.parametrize(
    ("child", "wanted"),
    [
        ("<script>alert('1')</script> & \"", "&lt;script&gt;alert(&#x27;1&#x27;)&lt;/script&gt; &amp; &quot;"),
        (["a<", _html.tag("b", "c>")], "a&lt;<b>c&gt;</b>"),
        (None, ""),
        (3.5, "3.5"),
        # A terminal's colours, what turns the order of characters round, what has no form in UTF-8, and what has none in HTML.
        ("\x1b[31mred \u202egnp.exe \ud800 \x00", "\\u001b[31mred \\u202egnp.exe \\ud800 \\u0000"),
        ("two\r\nlines\tand a tab", "two\nlines\tand a tab"),
        ("x" * 5000, "x" * 4000 + " [.. 1000 characters are left out ..]"),
    ],
)
def test_a_text_stays_a_text(child: t.Any, wanted: str) -> None:
    assert _html.escaped(child) == wanted
    assert _html.escaped(child).encode() == wanted.encode()


def test_an_attribute_ends_where_it_should() -> None:
    made = _html.tag("p", "text", title='"><script>', class_="a", aria_label="b", hidden=None, open=False)
    assert made == '<p title="&quot;&gt;&lt;script&gt;" class="a" aria-label="b">text</p>'
    assert _html.tag("meta", charset="utf-8", name="a") == '<meta charset="utf-8" name="a">'
    assert len(_html.tag("polyline", points=_html.Markup("1,2 " * 2000))) > 8000
    assert _html.tag("details", open=True) == "<details open></details>"


@pytest.mark.parametrize(
    ("name", "attributes"),
    [
        ("script", {}), ("iframe", {}), ("img", {}), ("link", {}), ("foreignObject", {}), ("p onclick", {}), ("p", {"onclick": "x"}), ("p", {"style": "x"}),
        ("p", {"src": "x"}), ("a", {"href": "javascript:alert(1)"}), ("a", {"href": "https://example.org"}), ("p", {"a b": "x"}),
    ],
)  # fmt: skip
def test_what_would_run_or_fetch_something_is_refused(name: str, attributes: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="of a report"):
        _html.tag(name, **attributes)


def test_a_table_names_its_rows_and_columns() -> None:
    made = _html.table(["node", "bytes"], [["spark<1>", 5]], "What came", numbers=(1,))
    assert made.startswith('<div class="scroll" role="region" aria-label="What came" tabindex="0"><table><caption>What came</caption>')
    assert '<th scope="col">node</th><th scope="col" class="number">bytes</th>' in made
    assert '<th scope="row">spark&lt;1&gt;</th><td class="number">5</td>' in made


@pytest.mark.parametrize(
    ("value", "wanted"), [(3, 3.0), (2.5, 2.5), (True, None), ("3", None), (float("nan"), None), (float("inf"), None), (None, None), (1e300, None)]
)
def test_a_number_is_one_that_has_a_place_on_an_axis(value: t.Any, wanted: float | None) -> None:
    assert _html.number(value) == wanted


@pytest.mark.parametrize(("span", "step"), [(0.5, 0.1), (10, 2), (144, 30), (1800, 300), (9000, 1800), (10 * 86400, 2 * 86400)])
def test_an_axis_has_few_marks(span: float, step: float) -> None:
    assert _html.nice(span) == step


@pytest.mark.parametrize(("seconds", "word"), [(0, "0"), (1.5, "1.5 s"), (90, "90 s"), (120, "2 min"), (7200, "2 h"), (9000, "150 min")])
def test_a_mark_has_a_short_word(seconds: float, word: str) -> None:
    assert _html.since(seconds) == word


# Colours.


def luminance(colour: str) -> float:
    """The relative luminance of WCAG 2.2."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


PHASES = [f"p{at}" for at in range(10)]
PAIRS = [
    *((name, back, 4.5) for name in ("text", "soft", "good", "bad", "wait", "plan", "floor") for back in ("back", "card")),
    *(("on", name, 4.5) for name in (*PHASES, "good", "bad", "wait", "soft")),
    *((name, back, 3.0) for name in (*PHASES, "line", "curve", "plan", "floor") for back in ("back", "card")),
]


@pytest.mark.parametrize("colours", [_html_style.LIGHT, _html_style.DARK], ids=["light", "dark"])
@pytest.mark.parametrize(("front", "back", "least"), PAIRS)
def test_what_is_written_and_drawn_can_be_seen(colours: dict[str, str], front: str, back: str, least: float) -> None:
    assert contrast(colours[front], colours[back]) >= least


def test_the_policy_lets_this_style_in_and_nothing_else() -> None:
    digest = base64.b64encode(hashlib.sha256(_html_style.STYLE.encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'" == _html_style.POLICY
    assert not re.search(r"url\(|@import|https?:|</|expression", _html_style.STYLE)
    assert set(_html_style.LIGHT) == set(_html_style.DARK)
    used = set(re.findall(r"var\(--([\w-]+)\)", _html_style.STYLE))
    assert used <= set(_html_style.LIGHT)
