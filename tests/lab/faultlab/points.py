# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The controller, killed at a point of a deploy: how it is brought there, and what shows that it was there."""

from __future__ import annotations

import time
import typing as t

import play
from sparklab.network import FABRIC_CARD

from . import deploying, makers
from .engines import HEAD, WORKER
from .launch import Missed
from .scene import ORIGINAL, Scene


def killed(
    name: str,
    begin: t.Callable[[Scene], object],
    pattern: str,
    reached: t.Callable[[Scene], str | None],
    later: t.Callable[[], bool] = lambda: True,
) -> t.Callable[[Scene], None]:
    """A run that has something to do and whose controller is killed at a point.

    :param pattern: what it says there, or shortly before. :param later: then waited for too, on the nodes.
    :param reached: in words what shows that it was not at that point, or None.
    """

    def make(scene: Scene) -> None:
        begin(scene)
        with deploying.Background(scene.values(), f"killed-{name}") as run:
            run.wait(pattern, 240)
            deadline = time.monotonic() + 60
            while not later():
                if time.monotonic() > deadline:
                    raise Missed(f"the run never came to the point '{name}'")
                time.sleep(0.1)
            run.kill()
        missed = reached(scene)
        if missed:
            raise Missed(f"the controller was not killed {name}: {missed}")

    return make


def at_plan(scene: Scene) -> str | None:
    """The lock is held, and nothing is done."""
    return None if scene.ledger("lock.json") and not scene.marks()[WORKER] else f"{scene.state()}"


def slow_image(scene: Scene) -> None:
    """Content that takes some ten seconds on the way to the worker. The preflight would end the run for so slow a link."""
    makers.other_image(HEAD, ORIGINAL, scene.image, 24 << 20)
    play.lab("rate", WORKER, "20mbit")
    scene.extra["preflight_bandwidth_seconds"] = 0


def fast_again(scene: Scene) -> None:
    """The link as it was."""
    play.lab("rate", WORKER, "off")
    scene.extra.pop("preflight_bandwidth_seconds", None)


def coming() -> bool:
    """The worker gets more from the fabric now than the ranks of an idle engine say to each other: 256 KiB within the look."""
    counter = f"/sys/class/net/{FABRIC_CARD}/statistics/rx_bytes"
    first, second = (int(word) for word in play.node(WORKER, f"cat {counter}; sleep 0.3; cat {counter}").split())
    return second - first > 256 << 10


def at_image(scene: Scene) -> str | None:
    """It is not on the worker yet, and what serves still does."""
    if scene.holds(WORKER) == scene.holds(HEAD):
        return "the image is on the worker already"
    return None if scene.answers() else "the deployment does not serve any more"


def at_workers(scene: Scene) -> str | None:
    """The worker runs, and the head's rank is not there."""
    return None if scene.state().startswith("rank 0 missing, rank 1 runs") else scene.state()


def at_watch(scene: Scene) -> str | None:
    """Both run, and nothing answers yet."""
    state = scene.state()
    return None if state.startswith("rank 0 runs, rank 1 runs") and not scene.answers(2) else state


def at_record(scene: Scene) -> str | None:
    """It answers, and the record, which is kept from its start on, does not say so yet."""
    known = scene.ledger(f"launches/{scene.launch_id()}.json")
    if not known:
        return "there is no record of its start"
    return "the record was kept already" if known["answered"] else None if scene.answers() else "it does not answer"
