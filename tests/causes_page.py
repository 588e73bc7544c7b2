#!/usr/bin/env python3
# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Writes docs/guides/causes.md out of what the diagnosis itself goes by: its causes, the engines' signatures, the kernel's messages."""

from __future__ import annotations

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import conftest  # noqa: F401 - makes the collection importable

from ansible_collections.sparkstack.inference.plugins.module_utils import _kernel
from ansible_collections.sparkstack.inference.plugins.module_utils._causes import CAUSES, Cause
from ansible_collections.sparkstack.inference.plugins.module_utils._engines import ENGINES
from ansible_collections.sparkstack.inference.plugins.module_utils._engines._common import SIGNATURES

PAGE = pathlib.Path(__file__).resolve().parents[1] / "docs" / "guides" / "causes.md"
KINDS = {
    "cause": "",
    "death": "A process is gone, the reason stands elsewhere",
    "relay": "Said of another rank",
    "peer": "Another rank left or never came",
    "soft": "The rank goes on retrying",
}
HEAD = """\
<!--
Copyright (c) 2026, The sparkstack.inference developers
GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
SPDX-License-Identifier: GPL-3.0-or-later
Written by tests/causes_page.py out of plugins/module_utils: change it there, then run that.
-->

# Every cause, and its remedy

A [verdict](verdict.md) names one of these {causes} causes. NODE stands for the culprit. A text in the tables makes its cause a suspect; which suspect is
to blame is decided over all ranks' logs and what the nodes themselves tell, so do not search one log for them by hand: run `diagnose`.

A text counts in the line of an exception, or in any line where it can't stand for anything else. The first remedy of a cause holds for all texts that have
none of their own.

{index}
"""


def plain(text: str) -> str:
    """A sentence of the knowledge base for a reader who has no node yet."""
    return text.replace("{node}", "NODE").replace("{peer}", "another node")


def code(text: str) -> str:
    """A text as code in a cell of a table."""
    fence = "``" if "`" in text else "`"
    inner = text.replace("|", "\\|")
    return f"{fence} {inner} {fence}" if "`" in text else f"{fence}{inner}{fence}"


def rows(name: str) -> list[str]:
    """The table of the texts that tell a cause, those of one remedy together; nothing where no text does."""
    found: dict[tuple[str, str], list[str]] = {}
    for whose, signatures in [("all", SIGNATURES), *((engine.name, engine.log.signatures) for engine in ENGINES.values())]:
        for one in signatures:
            if one.cause == name and one.kind in KINDS:
                note = ". ".join(note for note in (KINDS[one.kind], plain(one.remedy)) if note)
                found.setdefault((whose, note), []).append(code(one.text))
    for row in _kernel.TABLE:
        if row.cause == name:
            found.setdefault(("the kernel", ""), []).append(code(row.holds))
    lines = [f"| {whose} | {'<br>'.join(dict.fromkeys(texts))} | {note} |" for (whose, note), texts in found.items()]
    return ["| log of | text | what it is worth, or its own remedy |", "| --- | --- | --- |", *lines] if lines else []


def section(name: str, cause: Cause) -> str:
    """A cause: what is said of it, its remedy, and what tells it."""
    table = rows(name) or ["No text tells it: it is concluded from how the ranks and the nodes behave."]
    alike = ["All ranks can meet it at once: then no node is blamed, or all are."] if cause.alike else []
    return "\n".join([f"## `{name}`", "", f"NODE {cause.what}.", *alike, "", f"**Remedy:** {plain(cause.remedy)}", "", *table, ""])


def page() -> str:
    """The whole page."""
    index = "\n".join(f"- [`{name}`](#{name}): NODE {cause.what}" for name, cause in CAUSES.items())
    return HEAD.format(causes=len(CAUSES), index=index) + "\n" + "\n".join(section(name, cause) for name, cause in CAUSES.items())


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
