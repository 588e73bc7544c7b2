# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which program counts as a browser in which the report can be looked at: Debian's and Playwright's do, what Ubuntu puts in their place does not."""

from __future__ import annotations

import importlib.util
import pathlib
import typing as t

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]
# What the package chromium-browser of Ubuntu 24.04 has as /usr/bin/chromium-browser, in short.
STUB = '#!/bin/sh\nif ! [ -x /snap/bin/chromium ]; then\n    exit 1\nfi\nexec /snap/bin/chromium "$@"\n'
# And Debian's /usr/bin/chromium-headless-shell.
WRAPPER = '#!/bin/sh\nexec /usr/lib/chromium/headless_shell "$@"\n'


@pytest.fixture(name="subject")
def _subject(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> t.Any:
    spec = importlib.util.spec_from_file_location("browser_under_test", ROOT / "tests" / "browser.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("PLAYWRIGHT_BROWSERS_PATH", str(tmp_path / "playwright"))
    return module


def put(path: pathlib.Path, text: str = "\x7fELF") -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def test_without_one_there_is_none(subject: t.Any) -> None:
    assert subject.program() == ""


def test_what_starts_a_snap_is_none(subject: t.Any, tmp_path: pathlib.Path) -> None:
    put(tmp_path / "bin" / "chromium-browser", STUB)
    put(tmp_path / "snap" / "chromium" / "chromium")
    (tmp_path / "bin" / "chromium").symlink_to(tmp_path / "snap" / "chromium" / "chromium")
    assert subject.program() == ""
    own = put(tmp_path / "playwright" / "chromium_headless_shell-1255" / "chrome-headless-shell-linux64" / "chrome-headless-shell")
    assert subject.program() == own


def test_debians_counts_first_and_of_playwrights_the_newest(subject: t.Any, tmp_path: pathlib.Path) -> None:
    put(tmp_path / "playwright" / "chromium_headless_shell-999" / "chrome-linux" / "headless_shell")
    newest = put(tmp_path / "playwright" / "chromium_headless_shell-1255" / "chrome-linux" / "headless_shell")
    assert subject.program() == newest
    debians = put(tmp_path / "bin" / "chromium-headless-shell", WRAPPER)
    assert subject.program() == debians
