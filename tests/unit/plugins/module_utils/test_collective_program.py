# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The program that runs in the image: its sums and rates, its connections, and how its parent ends what does not end by itself."""

from __future__ import annotations

import itertools
import json
import os
import pathlib
import subprocess
import sys
import time
import types
import typing as t

import pytest

from ansible_collections.sparkstack.inference.plugins.module_utils import _collective_program as subject

GIVEN = {"rank": 0, "nodes": 2, "local": 1, "head": "127.0.0.1", "port": 1, "gpus": False, "word": "w", "timeout": 20, "join": 1}
STORE = """
class DistStoreError(RuntimeError):
    pass


class TCPStore:
    def __init__(self, *arguments, wait_for_workers):
        self.keys = set()

    def set(self, key, value):
        self.keys.add(key)

    def wait(self, keys, limit):
        if set(keys) - self.keys:
            raise DistStoreError("wait timeout after 1000ms, keys: /here/1")

    def check(self, keys):
        return set(keys) <= self.keys


def PrefixStore(word, store):
    return store
"""


@pytest.mark.parametrize(
    "size, seconds, ranks, expected",
    [
        # Two ranks send each other the whole buffer, one half reduced and one half to be; eight send 7/4 of it.
        (1_000_000, 0.001, 2, 1e9),
        (1_000_000, 0.001, 8, 1.75e9),
        (1_000_000, 0.001, 1, 0.0),
        (1_000_000, 0.0, 2, 0.0),
    ],
)
def test_bus_bandwidth(size: int, seconds: float, ranks: int, expected: float) -> None:
    assert subject.bus(size, seconds, ranks) == pytest.approx(expected)


def test_sizes_are_whole_rows_and_no_more_than_a_launch_can_spare() -> None:
    for sizes in subject.SIZES.values():
        assert all(size % (4 * 1024) == 0 for size in sizes) and list(sizes) == sorted(sizes) and sizes[-1] <= 32 << 20


def test_connections_are_this_processes_own(tmp_path: pathlib.Path) -> None:
    def line(own: str, peer: str, state: str, inode: int) -> str:
        return f"   0: {own} {peer} {state} 00000000:00000000 00:00000000 00000000     0        0 {inode} 1 0000000000000000 20 4 30 10 -1"

    (tmp_path / "fd").mkdir()
    (tmp_path / "net").mkdir()
    for number, target in enumerate(["socket:[11]", "socket:[12]", "socket:[13]", "socket:[15]", "/dev/null"]):
        os.symlink(target, tmp_path / "fd" / str(number))
    if sys.byteorder == "big":
        raise AssertionError("the addresses below are those of a little-endian machine")
    mine, other = "0100007F", "0CC8A8C0"
    tcp = [line(f"{mine}:C001", f"{other}:C002", "01", 11), line(f"{mine}:C003", f"{other}:733D", "01", 12), line(f"{mine}:733D", "00000000:0000", "0A", 13)]
    tcp += [line("0BC8A8C0:C005", f"{other}:C006", "01", 14)]
    (tmp_path / "net" / "tcp").write_text("\n".join(["header", *tcp]))
    mapped = "0000000000000000FFFF0000"
    (tmp_path / "net" / "tcp6").write_text("\n".join(["header", line(f"{mapped}0BC8A8C0:C007", f"{mapped}{other}:C008", "01", 15)]))
    # 12 is the store's (29501), 13 listens, 14 is another process's.
    assert [found[1:] for found in subject.connections({29501}, str(tmp_path))] == [["127.0.0.1", "192.168.200.12"], ["192.168.200.11", "192.168.200.12"]]
    assert next(found[0] for found in subject.connections({29501}, str(tmp_path)) if found[1] == "127.0.0.1") == "lo"


# The sums.


class Tensor:
    """As much of a tensor as the check of a sum needs: rows of numbers."""

    def __init__(self, rows: list[list[float]]) -> None:
        self.rows = rows
        self.shape = (len(rows), len(rows[0]))

    def _each(self, other: t.Any, what: t.Callable[[float, float], float]) -> Tensor:
        other = other if isinstance(other, Tensor) else Tensor([[other]])
        height, width = max(self.shape[0], other.shape[0]), max(self.shape[1], other.shape[1])
        pick = lambda tensor, row, column: tensor.rows[row % tensor.shape[0]][column % tensor.shape[1]]  # noqa: E731
        self.rows = [[what(pick(self, row, column), pick(other, row, column)) for column in range(width)] for row in range(height)]
        self.shape = (height, width)
        return self

    def remainder_(self, by: int) -> Tensor:
        return self._each(by, lambda own, other: own % other)

    def mul_(self, by: float) -> Tensor:
        return self._each(by, lambda own, other: own * other)

    def sub_(self, other: Tensor, alpha: float) -> Tensor:
        return self._each(other, lambda own, theirs: own - alpha * theirs)

    def unsqueeze(self, _dimension: int) -> Tensor:
        return Tensor([[value] for value in self.rows[0]])

    def __ne__(self, other: object) -> t.Any:
        return Tensor([[float(value != other) for value in row] for row in self.rows])

    def sum(self) -> Tensor:
        return Tensor([[sum(itertools.chain(*self.rows))]])

    def item(self) -> float:
        return self.rows[0][0]


def _add(one: Tensor, other: Tensor, out: Tensor) -> None:
    out.rows = Tensor([list(row) for row in one.rows])._each(other, lambda own, theirs: own + theirs).rows


@pytest.mark.parametrize("spoil, wrong", [(None, 0), ((0, 0), 1), ((1, 1023), 1)])
def test_a_wrong_element_of_a_sum_is_found(spoil: tuple[int, int] | None, wrong: int) -> None:
    rank = subject.Rank({**GIVEN, "rank": 1, "nodes": 4}, 0)
    rank.torch = types.SimpleNamespace(float32=None, arange=lambda size, dtype, device: Tensor([[float(number) for number in range(size)]]), add=_add)

    def reduce(tensor: Tensor) -> None:
        # Rank 1's own part is twice the pattern; over four ranks it is ten times that.
        tensor.mul_(5)
        if spoil:
            tensor.rows[spoil[0]][spoil[1]] += 1

    rank._reduce = reduce  # type: ignore[method-assign, assignment]
    assert rank._wrong(Tensor([[7.0] * 1024 for _row in range(2)])) == wrong


@pytest.mark.parametrize("join, expected", [(5, 30.0), (90, 90.0)])
def test_a_node_that_reads_nccl_from_its_disk_has_as_long_as_for_torch(join: float, expected: float) -> None:
    assert subject.work({"join": join}) == expected


# The parent.


def play(
    tmp_path: pathlib.Path, torch: str, edits: t.Sequence[tuple[str, str]] = (), built: bool = True, **given: t.Any
) -> tuple[list[dict[str, t.Any]], str, float]:
    """What the program said with a torch of the test's own: its events, all other text, and the seconds that it took.

    :param built: whether that torch is made with CUDA.
    """
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").write_text(f"import time\nfrom torch import backends\n__version__ = '2.9.1'\n{torch}")
    (package / "backends.py").write_text(f"class cuda:\n    @staticmethod\n    def is_built():\n        return {built}\n")
    (package / "distributed.py").write_text(STORE)
    source = pathlib.Path(subject.__file__).read_text(encoding="utf-8")
    for old, new in edits:
        assert source.count(old) == 1
        source = source.replace(old, new)
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", source, json.dumps({**GIVEN, **given})],
        env={"PYTHONPATH": str(tmp_path), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    lines = done.stdout.splitlines()
    events = [json.loads(line[len(subject.MARK) :]) for line in lines if line.startswith(subject.MARK)]
    assert done.returncode == int(any(events[-1]["codes"])) and not done.stderr
    return events, "\n".join(line for line in lines if not line.startswith(subject.MARK)), time.monotonic() - start


def test_what_is_raised_is_told(tmp_path: pathlib.Path) -> None:
    events, text, _seconds = play(tmp_path, "raise ImportError('libcudart.so.13: cannot open shared object file')")
    assert events == [{"event": "end", "codes": [1], "late": False}]
    assert "ImportError: libcudart.so.13: cannot open shared object file" in text


def test_what_hangs_is_ended_and_its_stack_told(tmp_path: pathlib.Path) -> None:
    events, text, seconds = play(tmp_path, "time.sleep(600)", timeout=1)
    assert events == [{"event": "end", "codes": [-9], "late": True}]
    assert "(most recent call first)" in text and seconds < 60


def test_what_not_even_a_kill_ends_is_told_as_late(tmp_path: pathlib.Path) -> None:
    # A process inside a GPU's driver that hangs: it sees no signal before it comes back.
    unkillable = ("_signal(pid, signal.SIGKILL)", "_signal(pid, signal.SIGCONT)")
    events, _text, seconds = play(tmp_path, "time.sleep(25)", [unkillable, ("_LEAVE = 5.0", "_LEAVE = 0.5")], timeout=1)
    assert events == [{"event": "end", "codes": [-9], "late": True}] and seconds < 20


def test_all_processes_of_a_node_end_when_one_has_failed(tmp_path: pathlib.Path) -> None:
    once = f"import os\ntry:\n    os.mkdir({str(tmp_path / 'first')!r})\nexcept FileExistsError:\n    raise MemoryError('no more') from None\ntime.sleep(600)\n"
    events, text, _seconds = play(tmp_path, once, local=2, timeout=600)
    assert sorted(events[-1]["codes"]) == [-9, 1] and events[-1]["late"] and "MemoryError: no more" in text


def test_who_did_not_come_is_named(tmp_path: pathlib.Path) -> None:
    events, text, _seconds = play(tmp_path, "")
    assert [event["event"] for event in events] == ["imported", "met", "missing", "end"]
    assert events[2]["ranks"] == [1] and events[0]["torch"] == "2.9.1"
    assert "DistStoreError: Timed out after 1 seconds waiting for clients. 1/2 clients joined." in text


@pytest.mark.parametrize("built, backend", [(True, "nccl"), (False, "gloo")])
def test_a_torch_without_cuda_meets_over_gloo_though_there_are_gpus(tmp_path: pathlib.Path, built: bool, backend: str) -> None:
    events, text, _seconds = play(tmp_path, "", built=built, gpus=True)
    assert events[0]["backend"] == backend
    # Asked for its GPU, the stand-in has none: "module 'torch' has no attribute 'cuda'".
    assert ("has no attribute 'cuda'" in text) is built
