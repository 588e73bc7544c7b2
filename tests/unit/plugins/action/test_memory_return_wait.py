# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The wait for the ranks' memory, with a scripted node and a clock of its own."""

from __future__ import annotations

import types
import typing as t

import pytest
from ansible.errors import AnsibleActionFail

from ansible_collections.sparkstack.inference.plugins.action import memory_return_wait as subject

GIB = 1 << 30


@pytest.fixture(autouse=True)
def base(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject.ActionBase, "run", lambda self, tmp=None, task_vars=None: {})


def memory(available: int, held: int) -> dict[str, t.Any]:
    holders = [{"kind": "container", "name": "q-rank0", "image": "i", "pid": None, "bytes": held * GIB, "gpu_bytes": 0}] if held else []
    return {"available_bytes": available * GIB, "total_bytes": 32 * GIB, "holders": holders, "unified": False, "gpus": []}


def play(looks: list[dict[str, t.Any]], check_mode: bool = False, **arguments: t.Any) -> tuple[dict[str, t.Any], float]:
    """The action's result, and the seconds that it took; the last look is seen for ever."""
    action = subject.ActionModule.__new__(subject.ActionModule)
    action._task = types.SimpleNamespace(check_mode=check_mode)
    time = [100.0]
    seen = iter([*looks, *[looks[-1]] * 1000] if looks else [])
    action._execute_module = lambda module_name, module_args, task_vars: next(seen)
    action.clock = lambda: time[0]
    action.pause = lambda seconds: time.__setitem__(0, time[0] + seconds)
    args = {"before": memory(4, 20), "containers": ["q-rank0"], "guard": None, "timeout": 60, **arguments}
    action.validate_argument_spec = lambda argument_spec: (None, args)
    return action.run(None, {"inventory_hostname": "spark1"}), time[0] - 100.0


def look(available: int, held: int = 0) -> dict[str, t.Any]:
    return {"ansible_facts": {"gpu_memory": memory(available, held)}}


def test_it_waits_until_the_memory_is_back() -> None:
    result, seconds = play([look(4, 20), look(10), look(24)])
    assert not result["failed"] and seconds == 2
    assert result["msg"] == "spark1: 20.0 GiB came back, 24.0 of 32.0 GiB available"
    assert (result["held_bytes"], result["returned_bytes"], result["holder"]) == (20 * GIB, 20 * GIB, None)


def test_it_gives_up_and_names_the_holder() -> None:
    result, seconds = play([look(6, 18)])
    assert result["failed"] and not result["returned"] and seconds == 60 and result["holder"]["name"] == "q-rank0"
    assert result["msg"].endswith("Container q-rank0 (i) holds 18.0 GiB: stop it there.")


def test_of_a_rank_that_a_guard_has_stopped_its_word_is_taken() -> None:
    told = {"name": "q-rank0", "available": 1 * GIB, "curve": [[1.0, 24 * GIB], [9.0, 1 * GIB]]}
    result, seconds = play([look(10), look(24)], before=memory(24, 0), guard=told)
    assert result["returned"] and seconds == 1 and result["msg"] == "spark1: 23.0 GiB came back, 24.0 of 32.0 GiB available"


def test_check_mode_says_what_would_come_back() -> None:
    result, seconds = play([], check_mode=True)
    assert seconds == 0 and result["msg"] == "spark1: 20.0 GiB would come back, 4.0 of 32.0 GiB available"


def test_what_it_needs() -> None:
    with pytest.raises(AnsibleActionFail, match="before has no holders"):
        play([], before={"available_bytes": 1})
    with pytest.raises(AnsibleActionFail, match="The memory could not be measured: no /proc"):
        play([{"failed": True, "msg": "no /proc"}])
