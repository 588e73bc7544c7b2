# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""The program that runs in an engine's image: a small all-reduce over all ranks, without a model.

It is handed to the image's Python as text, so it imports nothing but that Python's own library and the image's torch (2.4 and later).
Its one argument is JSON: C(rank) (of the node), C(nodes), C(local) (processes of each node, one a GPU), C(head) and C(port) (the
rendezvous), C(gpus), C(word) (the same on all ranks of one proof), C(timeout) (seconds for all of it) and C(join) (seconds in which all
ranks must have come, once torch is imported).
"""

from __future__ import annotations

import contextlib
import datetime
import faulthandler
import fcntl
import importlib
import json
import os
import resource
import select
import signal
import socket
import struct
import sys
import threading
import time
import traceback
import typing as t

MARK = "@@sparkstack-collective "
"""Begins each line of the output that the program itself says; all others are NCCL's and torch's."""
SIZES = {"nccl": (4 << 10, 1 << 20, 8 << 20, 32 << 20), "gloo": (4 << 10, 1 << 20, 16 << 20)}
"""Bytes of the buffers that are reduced. The largest is the memory that the program takes for itself."""
_ROW = 1024
_STRETCH = 0.25
"""Seconds over which a size is measured."""
_PATIENCE = 2.0
"""Seconds that one operation may take: a size that would take longer is left out."""
_WORK = 30.0
"""Seconds from the rendezvous to the end, or as long as ranks wait for each other there if that is more: a healthy group needs two or three, but a
node on which the image is new reads NCCL's library from its disk only then."""
_LEAVE = 5.0
"""Seconds for the group to be taken apart; all is said by then."""
_SIOCGIFADDR = 0x8915
_ESTABLISHED = "01"

Given = t.Mapping[str, t.Any]


def work(given: Given) -> float:
    """Seconds from the rendezvous to the end."""
    return max(_WORK, float(given["join"]))


def say(event: str, **data: t.Any) -> None:
    """One line for who started this. In one write, since NCCL writes to the same pipe."""
    os.write(1, ("\n" + MARK + json.dumps(dict(data, event=event)) + "\n").encode())


def main(arguments: t.Sequence[str]) -> int:
    """Run the node's processes, pass their output on, and end them when the time is over; the exit code is 0 when all have ended well.

    A process that hangs in NCCL's own code can be ended from outside only, so this one never imports torch.
    """
    given: Given = json.loads(arguments[0])
    deadline = time.monotonic() + float(given["timeout"])
    out, into = os.pipe()
    joined, tell = os.pipe()
    children = {_start(given, local, into, tell): local for local in range(int(given["local"]))}
    os.close(into)
    os.close(tell)
    signal.signal(signal.SIGTERM, lambda _signal, _frame: _kill(children))
    open_ends = [out, joined]
    codes: t.Dict[int, int] = {}
    late = False
    done = 0
    while len(codes) < len(children) or out in open_ends:
        for end in select.select(open_ends, [], [], 0.05)[0]:
            data = os.read(end, 65536)
            if not data:
                open_ends.remove(end)
            elif end == out:
                _pass_on(data)
            else:
                # All ranks are there: from here on nothing waits for another node's start.
                deadline = min(deadline, time.monotonic() + work(given))
                done += data.count(b"r")
                if done == len(children):
                    deadline = min(deadline, time.monotonic() + _LEAVE + 1)
        for pid in set(children) - set(codes):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                codes[pid] = -(status & 0x7F) if status & 0x7F else status >> 8
                if codes[pid]:
                    # What is left of this node's ranks can only wait for the one that is gone.
                    deadline = min(deadline, time.monotonic() + _LEAVE)
        if time.monotonic() > deadline and not late:
            late = True
            for pid in set(children) - set(codes):
                # Its stacks first: they say what it waits for.
                _signal(pid, signal.SIGUSR1)
            time.sleep(0.5)
            _kill(set(children) - set(codes))
        elif late and time.monotonic() > deadline + _LEAVE:
            # Something that a child has started holds the pipe; or a child is inside the driver, where not even a kill ends it.
            break
    codes.update(dict.fromkeys(set(children) - set(codes), -signal.SIGKILL))
    say("end", codes=[codes[pid] for pid in sorted(codes, key=lambda pid: children[pid])], late=late)
    return int(any(codes.values()))


def _pass_on(data: bytes) -> None:
    while data:
        data = data[os.write(1, data) :]


def _start(given: Given, local: int, into: int, tell: int) -> int:
    """Begin one rank's process; its id.

    :param into: a pipe for its output: NCCL opens it anew, which it could not do with a terminal's, a socket or a file. :param tell: a pipe that
        it writes to when all ranks have come to the rendezvous (j), and when it has its result (r).
    """
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.dup2(into, 1)
        os.dup2(into, 2)
        faulthandler.register(signal.SIGUSR1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        Rank(given, local, tell).run()
        code = 0
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _kill(children: t.Iterable[int]) -> None:
    for pid in children:
        _signal(pid, signal.SIGKILL)


class Rank:
    """One process of the group, on a GPU of its own where there are any."""

    def __init__(self, given: Given, local: int, tell: int = -1) -> None:
        self.given, self.local, self.tell = given, local, tell
        self.rank = int(given["rank"]) * int(given["local"]) + local
        self.world = int(given["nodes"]) * int(given["local"])
        self.backend = "nccl" if given["gpus"] else "gloo"
        self.began = time.monotonic()
        self.torch: t.Any = None
        self.dist: t.Any = None
        self.store: t.Any = None
        self.device: t.Any = "cpu"
        self.free = 0

    def say(self, event: str, **data: t.Any) -> None:
        """What this process has come to, with the seconds since it began."""
        say(event, rank=self.rank, seconds=round(time.monotonic() - self.began, 3), **data)

    def run(self) -> None:
        """All of it; raises what torch raises, whose texts an engine's log has as well."""
        # Over what a recipe, an image or /etc/nccl.conf says. Into a file NCCL writes line by line, to a pipe only when its buffer is full.
        os.environ.update(NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="INIT,NET,ENV", NCCL_DEBUG_FILE="/proc/self/fd/1")
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        self.torch = importlib.import_module("torch")
        self.dist = importlib.import_module("torch.distributed")
        if not self.torch.backends.cuda.is_built():
            # "AssertionError: Torch not compiled with CUDA enabled": an engine made for processors, whose ranks meet over gloo, GPUs or not.
            self.backend = "gloo"
        self.say("imported", torch=str(self.torch.__version__), world=self.world, backend=self.backend)
        self._take_device()
        self._meet()
        group = self.dist.PrefixStore("group", self.store)
        # Less than what the parent waits: torch says more of a standstill than a stack does.
        limit = datetime.timedelta(seconds=work(self.given) - _LEAVE)
        self.dist.init_process_group(self.backend, store=group, rank=self.rank, world_size=self.world, timeout=limit)
        self.say("group")
        first = self.torch.ones(1, device=self.device)
        self._reduce(first)
        self.say("connected", connections=connections({int(self.given["port"])}), nccl_bytes=self._taken())
        measured = self._measure()
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        correct = all(size["correct"] for size in measured)
        self.say("result", sizes=measured, correct=correct, gpu_bytes=self._taken(), memory_bytes=memory, nccl=self._nccl())
        self._tell(b"r")
        self._leave()

    def _take_device(self) -> None:
        """Take this process's GPU, and see how much is free there beside the CUDA context."""
        if self.backend != "nccl":
            return
        # Raises why there is none, which is_available() would not tell.
        self.torch.cuda.init()
        self.torch.cuda.set_device(self.local)
        self.device = self.torch.device("cuda", self.local)
        self.torch.ones(1, device=self.device).add_(1).item()
        self.free = int(self.torch.cuda.mem_get_info()[0])
        self.say("device", name=self.torch.cuda.get_device_name(self.local), free_bytes=self.free)

    def _taken(self) -> t.Optional[int]:
        """Bytes of the GPU that are taken since; None without one."""
        return self.free - int(self.torch.cuda.mem_get_info()[0]) if self.backend == "nccl" else None

    def _meet(self) -> None:
        """Come to the rendezvous, and wait until all ranks of this proof have."""
        join = datetime.timedelta(seconds=float(self.given["join"]))
        # The word: what else listens there must not pass for the head.
        store = self.dist.TCPStore(self.given["head"], int(self.given["port"]), self.world, self.rank == 0, join, wait_for_workers=False)
        self.store = self.dist.PrefixStore(str(self.given["word"]), store)
        self.say("met")
        ranks = [f"here/{rank}" for rank in range(self.world)]
        self.store.set(ranks[self.rank], "1")
        try:
            self.store.wait(ranks, join)
        except RuntimeError:
            here = [rank for rank, key in enumerate(ranks) if self.store.check([key])]
            missing = [rank for rank in range(self.world) if rank not in here]
            self.say("missing", ranks=missing)
            # As torch itself says it where an engine's head waits.
            seconds = join.total_seconds()
            raise self.dist.DistStoreError(f"Timed out after {seconds:.0f} seconds waiting for clients. {len(here)}/{self.world} clients joined.") from None
        self.say("joined")
        self._tell(b"j")

    def _tell(self, word: bytes) -> None:
        if self.tell >= 0:
            os.write(self.tell, word)

    def _reduce(self, tensor: t.Any, largest: bool = False) -> None:
        self.dist.all_reduce(tensor, op=self.dist.ReduceOp.MAX if largest else self.dist.ReduceOp.SUM)
        if self.backend == "nccl":
            self.torch.cuda.synchronize()

    def _seconds(self, tensor: t.Any, times: int) -> float:
        """Seconds that one all-reduce takes; those of the slowest rank, so that all go on alike."""
        self._reduce(self.torch.ones(1, device=self.device))
        start = time.monotonic()
        for _time in range(times):
            self.dist.all_reduce(tensor)
        if self.backend == "nccl":
            self.torch.cuda.synchronize()
        taken = self.torch.tensor([(time.monotonic() - start) / times], dtype=self.torch.float64, device=self.device)
        self._reduce(taken, largest=True)
        return float(taken.item())

    def _measure(self) -> t.List[t.Dict[str, t.Any]]:
        """Each size: checked, measured, and checked again."""
        found: t.List[t.Dict[str, t.Any]] = []
        for size in SIZES[self.backend]:
            if found and found[-1]["seconds"] * size / found[-1]["bytes"] > _PATIENCE:
                break
            tensor = self.torch.empty(size // 4 // _ROW, _ROW, dtype=self.torch.float32, device=self.device)
            wrong = self._wrong(tensor)
            once = self._seconds(tensor.zero_(), 1)
            seconds = self._seconds(tensor, max(1, min(20, int(_STRETCH / max(once, 1e-6)))))
            wrong += self._wrong(tensor)
            found.append({"bytes": size, "seconds": seconds, "bus_bytes_s": bus(size, seconds, self.world), "correct": wrong == 0})
            del tensor
        return found

    def _wrong(self, tensor: t.Any) -> int:
        """How many elements of a sum over all ranks are not what they must be. Whole numbers below 2**24, which a float32 holds exactly."""
        rows = self.torch.arange(tensor.shape[0], dtype=self.torch.float32, device=self.device).remainder_(97).unsqueeze(1)
        columns = self.torch.arange(_ROW, dtype=self.torch.float32, device=self.device)
        self.torch.add(rows, columns, out=tensor)
        tensor.mul_(self.rank + 1)
        self._reduce(tensor)
        total = self.world * (self.world + 1) // 2
        tensor.sub_(rows, alpha=total).sub_(columns, alpha=total)
        return int((tensor != 0).sum().item())

    def _nccl(self) -> t.Optional[str]:
        return ".".join(str(part) for part in self.torch.cuda.nccl.version()) if self.backend == "nccl" else None

    def _leave(self) -> None:
        """Take the group apart; the head last, so that the port is free at once and nobody loses the store before its end."""
        timer = threading.Timer(_LEAVE, os._exit, [0])
        timer.daemon = True
        timer.start()
        self.dist.destroy_process_group()
        self.store.set(f"done/{self.rank}", "1")
        if self.rank == 0:
            self.store.wait([f"done/{rank}" for rank in range(self.world)], datetime.timedelta(seconds=_LEAVE))
            time.sleep(0.2)


def bus(size: int, seconds: float, ranks: int) -> float:
    """Bytes a second over the slowest link: each rank sends and receives 2(n-1)/n of the buffer, whatever the number of ranks n.

    Source: nccl-tests, doc/PERFORMANCE.md ("busbw").
    """
    return 2 * (ranks - 1) / ranks * size / seconds if seconds > 0 else 0.0


def connections(without: t.Container[int], proc: str = "/proc/self") -> t.List[t.List[str]]:
    """The IPv4 connections of this process to others: C([own interface, own address, peer's address]), each once, sorted.

    :param without: ports that do not count, such as the store's.
    A line of C(/proc/self/net/tcp) is described in Linux, Documentation/networking/proc_net_tcp; addresses are in the machine's byte order.
    """
    inodes = set()
    for name in os.listdir(os.path.join(proc, "fd")):
        try:
            target = os.readlink(os.path.join(proc, "fd", name))
        except OSError:
            continue
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    found = set()
    for table in ("tcp", "tcp6"):
        try:
            with open(os.path.join(proc, "net", table), encoding="ascii") as stream:
                lines = stream.read().splitlines()[1:]
        except OSError:
            continue
        for fields in (line.split() for line in lines):
            if len(fields) < 10 or fields[3] != _ESTABLISHED or fields[9] not in inodes:
                continue
            (own, port), (peer, peer_port) = _endpoint(fields[1]), _endpoint(fields[2])
            if own and peer and port not in without and peer_port not in without:
                found.add((own, peer))
    names = _interfaces()
    return [[names.get(own, ""), own, peer] for own, peer in sorted(found)]


def _endpoint(field: str) -> t.Tuple[str, int]:
    digits, _colon, port = field.partition(":")
    if len(digits) == 32:
        # "0000000000000000FFFF00000BC8A8C0" is ::ffff:192.168.200.11.
        digits = digits[24:] if digits.startswith("0000000000000000FFFF0000") else ""
    return (socket.inet_ntoa(struct.pack("=I", int(digits, 16))) if digits else "", int(port, 16))


def _interfaces() -> t.Dict[str, str]:
    """The node's interfaces by their first IPv4 address."""
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _index, name in socket.if_nameindex():
            try:
                told = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue
            found[socket.inet_ntoa(told[20:24])] = name
    return found


if __name__ == "__main__":
    os._exit(main(sys.argv[1:]))
