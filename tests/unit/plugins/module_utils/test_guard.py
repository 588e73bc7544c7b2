# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""When a load must be stopped, and when it must not, over whole curves of readings."""

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.sparkstack.inference.plugins.module_utils import _guard as subject

GIB = 1 << 30
SPARK = 127600748 << 10
"""MemTotal of a GB10."""


@pytest.mark.parametrize(
    ("wanted", "total", "floor"),
    [
        ("auto", SPARK, int(SPARK * 0.02)),
        ("auto", 64 * GIB, 2 * GIB),
        ("auto", 32 * GIB, 2 * GIB),
        ("auto", 6 * GIB, 384 << 20),
        ("auto", GIB, 64 << 20),
        (" Auto ", 64 * GIB, 2 * GIB),
        ("3221225472", SPARK, 3 * GIB),
        ("3g", SPARK, 3 * GIB),
        ("3G", SPARK, 3 * GIB),
        ("3 GiB", SPARK, 3 * GIB),
        ("1.5gb", SPARK, 3 * GIB // 2),
        ("512m", SPARK, 512 << 20),
        ("2%", 100 * GIB, 2 * GIB),
        ("2.5 %", 100 * GIB, 5 * GIB // 2),
        ("50%", 6 * GIB, 3 * GIB),
    ],
)
def test_a_floor(wanted: str, total: int, floor: int) -> None:
    assert subject.floor_bytes(wanted, total) == floor


@pytest.mark.parametrize("wanted", ["", "much", "-1g", "3x", "0", "0%", "g", "3g 4g", "1e9"])
def test_what_is_no_floor_is_one_sentence(wanted: str) -> None:
    with pytest.raises(ValueError, match=r"is no floor: give auto, bytes, a size such as 3g or a share such as 2%\.$"):
        subject.floor_bytes(wanted, SPARK)


@pytest.mark.parametrize("wanted", ["4g", "51%", "200%"])
def test_a_floor_that_leaves_no_room_to_load_is_refused(wanted: str) -> None:
    with pytest.raises(ValueError, match=rf"A floor of '{wanted}' is more than half of this node's 6\.0 GiB"):
        subject.floor_bytes(wanted, 6 * GIB)


def gib(*values: float) -> list[int]:
    return [int(value * GIB) for value in values]


def fired(curve: t.Sequence[int], floor: int = 3 * GIB) -> tuple[int, str] | None:
    """At which reading of a curve the load is stopped, and why; each is taken as long after the last one as the guard would wait."""
    kept, now = subject.Curve(), 1000.0
    for number, available in enumerate(curve):
        kept.add((now, available))
        why = subject.verdict(kept.fine, floor)
        if why:
            return number, why
        now += subject.pause(available, floor)
    return None


CURVES: dict[str, tuple[list[int], tuple[int, str] | None]] = {
    "nothing goes on": (gib(*[110] * 50), None),
    # 0.2 GiB/s near the floor: each of the last readings lower, and as much again ends below.
    "a slow rise of what is used": (gib(*[3.205 - 0.01 * step for step in range(40)]), (18, "fall")),
    "a fast one": (gib(90, 70, 50, 30, 20, 10, 5.9, 2.9, 0), (6, "fall")),
    "one step below it, and it stays": (gib(60, 60, 2.9, 2.9, 2.9), (3, "floor")),
    "below it from the first": (gib(1, 1), (1, "floor")),
    "one reading below it": (gib(60, 2.9, 60, 2.9, 60, 60), None),
    "noise around twice the floor": (gib(*[5.5, 6.5, 4.9, 6.1, 5.2] * 20), None),
    "noise just above it": (gib(*[3.3, 3.1, 3.4, 3.05, 3.2] * 20), None),
    # An engine takes its whole KV cache at once, as it was told: 40 GiB a second, and then no more.
    "the KV cache at once": (gib(70, 66, 62, 58, 54, 50, 46, 42, 38, 34, 30, 26, 22, 18, 14, 12, 12, 12), None),
    "the KV cache at once, to a little above twice the floor": (gib(70, 50, 30, 10, 6.1, 6.1, 6.1), None),
    "a fall that ends well above the floor": (gib(5.9, 5.8, 5.7, 5.6, 5.5, 5.5), None),
    "it comes to rest just above": (gib(3.2, 3.1, 3.1, 3.1, 3.1), None),
    # MemAvailable counts the page cache: a copy of 100 GB moves it by what the kernel keeps for itself.
    "the page cache fills": (gib(*[110 - 0.002 * step for step in range(200)]), None),
    "exactly the floor": (gib(3, 3, 3, 3), None),
}


@pytest.mark.parametrize(("curve", "wanted"), CURVES.values(), ids=CURVES)
def test_a_curve(curve: list[int], wanted: tuple[int, str] | None) -> None:
    assert fired(curve) == wanted


def test_near_the_floor_it_reads_twice_as_often() -> None:
    assert (subject.pause(100 * GIB, 3 * GIB), subject.pause(6 * GIB, 3 * GIB), subject.pause(6 * GIB - 1, 3 * GIB)) == (0.1, 0.1, 0.05)


@pytest.mark.parametrize(
    ("readings", "rate"),
    [
        ([], 0.0),
        ([(0.0, 9)], 0.0),
        ([(0.0, 1000), (0.5, 600)], 800.0),
        ([(0.0, 9000), (1.0, 1000), (1.5, 800), (2.0, 600)], 400.0),
        ([(0.0, 100), (1.0, 900)], 0.0),
        ([(5.0, 100), (5.0, 50)], 0.0),
    ],
)
def test_a_rate_is_that_of_the_last_second(readings: list[tuple[float, int]], rate: float) -> None:
    assert subject.rate(readings) == rate


@pytest.mark.parametrize(("minutes", "step"), [(1, 1.0), (9, 2.0), (60, 16.0)])
def test_a_curve_has_a_bound_and_keeps_its_beginning(minutes: int, step: float) -> None:
    curve = subject.Curve()
    for number in range(minutes * 600):
        curve.add((number / 10, number))
    points = curve.points()
    assert points[0] == (0.0, 0) and points[-1] == ((minutes * 600 - 1) / 10, minutes * 600 - 1)
    assert len(points) <= 300 + 22 and points == sorted(points)
    # The last two seconds are whole.
    assert [number for _at, number in points[-20:]] == list(range(minutes * 600 - 20, minutes * 600))
    assert points[2][0] - points[1][0] == pytest.approx(step)


def test_a_node_that_hardly_moves_is_judged_all_the_same() -> None:
    """The guard was let run every five seconds only."""
    curve = subject.Curve()
    for number, available in enumerate(gib(60, 20, 2.9, 2.9)):
        curve.add((number * 5.0, available))
    assert subject.verdict(curve.fine, 3 * GIB) == "floor" and len(curve.points()) == 4


def test_an_empty_curve() -> None:
    assert subject.Curve().points() == []
