# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""How sizes, times and names stand in sentences, and how Docker writes its times."""

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.sparkstack.inference.plugins.module_utils._logline import moment as docker_moment
from ansible_collections.sparkstack.inference.plugins.module_utils._words import GIB, clock, document, duration, listed, size, utc

NOW = 1796025731.0  # 2026-11-30T08:02:11Z


@pytest.mark.parametrize(
    "count, told", [(None, "?"), (0, "0 MiB"), (436207616, "416 MiB"), (int(GIB) - 1, "1024 MiB"), (GIB, "1.0 GiB"), (64.25 * GIB, "64.2 GiB")]
)
def test_sizes(count: float | None, told: str) -> None:
    assert size(count) == told


@pytest.mark.parametrize("seconds, told", [(0.44, "0.4 s"), (9.9, "9.9 s"), (88, "88 s"), (720, "12 min"), (11160, "3.1 h")])
def test_durations(seconds: float, told: str) -> None:
    assert duration(seconds) == told


@pytest.mark.parametrize("moment, told", [(NOW, "08:02:11Z"), (NOW - 86400, "2026-11-29T08:02:11Z"), (None, "an unknown time"), ("x", "an unknown time")])
def test_a_time_has_its_date_when_it_is_not_today(moment: t.Any, told: str) -> None:
    assert clock(moment, NOW) == told


def test_times() -> None:
    assert utc(NOW + 0.9) == "2026-11-30T08:02:11Z" and utc(None) is None and utc("1") is None
    assert clock(NOW - 86400) == "08:02:11Z"


@pytest.mark.parametrize(
    "stamp, when",
    [
        ("0001-01-01T00:00:00Z", None),
        ("", None),
        (None, None),
        ("2026-11-30T08:02:11Z", NOW),
        ("2026-11-30T08:02:11.5Z", NOW + 0.5),
        ("2026-11-30T09:02:11.123456789+01:00", NOW + 0.123456789),
    ],
)
def test_dockers_times(stamp: str | None, when: float | None) -> None:
    assert docker_moment(stamp) == when


@pytest.mark.parametrize("names, told", [(["a"], "a"), (["a", "b"], "a and b"), (["a", "b", "c"], "a, b and c")])
def test_names(names: list[str], told: str) -> None:
    assert listed(names) == told


def test_a_document_in_a_diff() -> None:
    assert document({"b": {"c": 1}, "a": True}) == '{\n  "a": true,\n  "b": {\n    "c": 1\n  }\n}\n'
    assert document({}) == document(None) == ""
