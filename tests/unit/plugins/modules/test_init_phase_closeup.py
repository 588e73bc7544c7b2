# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The module around the close look: what it refuses, and that it ends in any case."""

from __future__ import annotations

import json
import signal
import typing as t

import pytest
from ansible.module_utils import basic

from ansible_collections.sparkstack.inference.plugins.modules import init_phase_closeup as subject

Run = t.Callable[..., "dict[str, t.Any]"]


class Look:
    """Stands in for a close look."""

    def __init__(self, *_arguments: t.Any) -> None:
        pass

    def take(self, *_arguments: t.Any) -> dict[str, t.Any]:
        return {"left_seconds": signal.getitimer(signal.ITIMER_REAL)[0], "handler": signal.getsignal(signal.SIGALRM) is signal.SIG_DFL}


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.setattr(subject, "Look", Look)

    def run_module(**arguments: t.Any) -> dict[str, t.Any]:
        monkeypatch.setattr(basic, "_ANSIBLE_ARGS", json.dumps({"ANSIBLE_MODULE_ARGS": {"container": "rank", **arguments}}).encode())
        monkeypatch.setattr(basic, "_ANSIBLE_PROFILE", "legacy", raising=False)
        with pytest.raises(SystemExit):
            subject.main()
        signal.alarm(0)
        return t.cast("dict[str, t.Any]", json.loads(capsys.readouterr().out))

    return run_module


def test_a_look_that_hangs_is_ended(run: Run) -> None:
    found = run(timeout=3)["closeup"]
    # Nothing but the signal's own effect ends a process that waits in the kernel.
    assert found["handler"] and 3 < found["left_seconds"] <= 3 + 15


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"timeout": 0}, "timeout is 0: give the seconds that the look may take, 1 or more."),
        ({"peers": ["spark2"]}, "peers: spark2 is no IPv4 address: give the other nodes' addresses on the fabric."),
    ],
)
def test_what_it_refuses(run: Run, arguments: dict[str, t.Any], said: str) -> None:
    result = run(**arguments)
    assert result["failed"] and result["msg"] == said
