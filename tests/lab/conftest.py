# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later


"""The fixtures of the tests of the SGLang rehearsal, and of those whose launches it may stand in for."""

from __future__ import annotations

import os
import pathlib
import sys
import typing as t

import play
import pytest
from rehearsing import Rank, free_port

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "engine"))

from sparkengine import rehearsal  # noqa: E402  (the path above must come first)


@pytest.fixture(scope="module", name="rehearsed")
def _rehearsed() -> t.Iterator[None]:
    """The lab's recipe is served by the rehearsal, which starts in seconds: for what is the same with every engine.

    With SPARKSTACK_LAB_ENGINE=vllm in the environment the real engine serves here, too.
    """
    play.usual = {"tp_launch_engine": os.environ.get("SPARKSTACK_LAB_ENGINE", "sglang")}
    yield
    play.usual = {}


@pytest.fixture(scope="module", name="package")
def _package(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("package") / "sglang"
    rehearsal.copy_package(folder)
    return folder


@pytest.fixture(scope="module", name="model")
def _model(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    rehearsal.write_model(folder, shards=6, size=1 << 20)
    return folder


@pytest.fixture(name="pair")
def _pair(tmp_path: pathlib.Path, package: pathlib.Path, model: pathlib.Path) -> t.Iterator[tuple[Rank, Rank]]:
    """Head and worker, not started; ended afterwards."""
    rendezvous = free_port()
    ranks = (Rank(tmp_path, 0, rendezvous, model, package), Rank(tmp_path, 1, rendezvous, model, package))
    yield ranks
    for rank in ranks:
        if rank.process:
            rank.process.kill()
            rank.process.wait()


@pytest.fixture(name="served")
def _served(pair: tuple[Rank, Rank]) -> tuple[Rank, Rank]:
    """Head and worker, ready."""
    head, worker = pair
    worker.start()
    head.start()
    head.wait("The server is fired up and ready to roll!")
    worker.wait("Dummy health check server started")
    return pair
