# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an image has told, kept on the node."""

from __future__ import annotations

import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils import _answers


def test_an_answer_is_kept_whole_or_not_at_all(tmp_path: t.Any) -> None:
    path = tmp_path / "options" / "vllm-aa.json"
    assert _answers.kept(str(path)) is None
    _answers.keep(str(path), {"version": "0.33.0", "options": []})
    assert _answers.kept(str(path)) == {"version": "0.33.0", "options": []}
    assert [entry.name for entry in path.parent.iterdir()] == ["vllm-aa.json"]
    path.write_text('{"version": "0.33')
    assert _answers.kept(str(path)) is None
