# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The device's communicator: a ring over the interface of NCCL_SOCKET_IFNAME, and NCCL's own lines about it.

NCCL writes to standard output, which is a pipe in a container: its lines lie in a buffer and come late, in blocks that end
in the middle of a line. With NCCL_DEBUG_FILE they are written there at once.
"""

import os
import random
import socket

from . import net
from .gloo import Group
from .system import compute, knob

VERSION = "2.28.9"
_BLOCK = 4096


class Lines:
    """NCCL's lines: written at once to NCCL_DEBUG_FILE, else kept until a flush."""

    def __init__(self, device: int) -> None:
        self._level = os.environ.get("NCCL_DEBUG", "").upper()
        path = os.environ.get("NCCL_DEBUG_FILE", "").replace("%h", socket.gethostname()).replace("%p", str(os.getpid()))
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644) if path and self._level else None
        self._head = f"{socket.gethostname()}:{os.getpid()}:{os.getpid()} [{device}] NCCL "
        self.kept = b""

    def _write(self, text: str) -> None:
        if self._file is not None:
            os.write(self._file, text.encode())
        else:
            self.kept += text.encode()

    def info(self, *texts: str) -> None:
        """Lines of NCCL_DEBUG=INFO."""
        if self._level in ("INFO", "TRACE"):
            self._write("".join(f"{self._head}INFO {text}\n" for text in texts))

    def warn(self, text: str) -> None:
        """A line of NCCL_DEBUG=WARN and above."""
        if self._level in ("WARN", "INFO", "TRACE"):
            self._write(f"\n{self._head}WARN {text}\n")

    def flush(self) -> None:
        """Write what fills whole blocks of the buffer; the rest stays in it."""
        if full := len(self.kept) // _BLOCK * _BLOCK:
            os.write(1, self.kept[:full])
            self.kept = self.kept[full:]


def interface() -> tuple[str, str] | None:
    """The interface that NCCL takes and its address, or None. NCCL_SOCKET_IFNAME: beginnings of names; ^ leaves out, = is exact."""
    wanted = os.environ.get("NCCL_SOCKET_IFNAME", "")
    without, exact = wanted.startswith("^"), wanted.lstrip("^").startswith("=")
    names = [name for name in wanted.lstrip("^=").split(",") if name]
    for _index, card in socket.if_nameindex():
        named = any(card == name if exact else card.startswith(name) for name in names)
        fits = named != without if names else not card.startswith(("lo", "docker"))
        address = net.address_of(card) if fits else None
        if address:
            return card, address
    return None


def _choose(lines: Lines) -> tuple[str, str]:
    found = interface()
    if found is None:
        lines.warn("Bootstrap : no socket interface found")
        raise RuntimeError("NCCL error: invalid usage (run with NCCL_DEBUG=WARN for details)")
    lines.info("ENV/Plugin: Could not find: libnccl-env.so")
    if wanted := os.environ.get("NCCL_SOCKET_IFNAME"):
        lines.info(f"NCCL_SOCKET_IFNAME set by environment to {wanted}")
    lines.info(f"Bootstrap: Using {found[0]}:{found[1]}<0>", "cudaDriverVersion 13000", f"NCCL version {VERSION}+cuda13.0")
    return found


def _network(lines: Lines, card: str, address: str) -> str:
    """Say which network is used; returns its name in the channels' lines."""
    lines.info("NET/Plugin: Could not find: libnccl-net.so")
    if os.environ.get("REHEARSAL_NET") == "IB":
        device = os.environ.get("NCCL_IB_HCA", "rocep1s0f0").lstrip("=^").split(",")[0].partition(":")[0]
        lines.info(f"NET/IB : Using [0]{device}:1/RoCE [RO]; OOB {card}:{address}<0>", "Initialized NET plugin IB", "Using network IB")
        return "IB"
    if os.environ.get("NCCL_IB_DISABLE", "0") not in ("", "0"):
        lines.info(f"NCCL_IB_DISABLE set by environment to {os.environ['NCCL_IB_DISABLE']}.")
    else:
        lines.info("NET/IB : No device found.")
    lines.info("Failed to initialize NET plugin IB", f"NET/Socket : Using [0]{card}:{address}<0>")
    lines.info("Initialized NET plugin Socket", "Assigned NET plugin Socket to comm", "Using network Socket")
    return "Socket"


def init_comm(group: Group, lines: Lines, device: int) -> list[net.Wire]:
    """Make the communicator of all ranks: rank 0 gives out where it listens, the others come. Returns its connections.

    Raises RuntimeError when no interface fits. Rank 0 then waits for the one that failed, for ever and in silence.
    """
    rank, world = group.rank, len(group.wires) + 1
    server = None
    if rank == 0:
        card, address = _choose(lines)
        server = net.listen(address, 0)
        place = group.broadcast([*server.getsockname(), f"0x{random.getrandbits(64):016x}"])
    else:
        place = group.broadcast()
        card, address = _choose(lines)
    network = _network(lines, card, address)
    comm = f"comm 0x{random.getrandbits(30):x} rank {rank} nranks {world} cudaDev {device} nvmlDev {device} busId f01000 commId {place[2]}"
    lines.info(f"ncclCommInitRank {comm} - Init START")
    compute(0.4)
    wires = []
    if server:
        while len(wires) < world - 1:
            wires.append(net.Wire(server.accept()[0]))
        for wire in wires:
            wire.receive()
        for wire in wires:
            wire.send("complete")
    else:
        wires.append(net.Wire(socket.create_connection((place[0], place[1]))))
        wires[0].send(rank)
        wires[0].receive()
    before, after = (rank - 1) % world, (rank + 1) % world
    channels = [f"Channel {channel:02d}/{world:02d} : {' '.join(map(str, range(world)))}" for channel in range(2)]
    ways = [(before, rank, "receive"), (rank, after, "send")]
    lines.info("Bootstrap timings total 0.080118 (create 0.000032, send 0.000079, recv 0.079644, ring 0.000019, delay 0.000001)")
    lines.info(f"{comm.partition(' cudaDev')[0].replace('nranks', 'nRanks')} nNodes {world} localRanks 1 localRank 0 MNNVL 0", *channels)
    lines.info("P2P Chunksize set to 131072", "PROFILER/Plugin: Could not find: libnccl-profiler.so")
    lines.info("[Proxy Service] Device 0 CPU core 1", "[Proxy Service UDS] Device 0 CPU core 8", "[Proxy Progress] Device 0 CPU core 9")
    lines.info(*(f"Channel {number:02d}/0 : {a}[0] -> {b}[0] [{word}] via NET/{network}/0" for a, b, word in ways for number in range(2)))
    lines.info("Connected all rings, use ring PXN 0 GDR 0", "Connected all trees", "TUNER/Plugin: Could not find: libnccl-tuner.so")
    lines.info("2 coll channels, 2 collnet channels, 0 nvls channels, 2 p2p channels, 2 p2p channels per peer")
    lines.info(f"ncclCommInitRank {comm} - Init COMPLETE")
    lines.info(f"Init timings - ncclCommInitRank: rank {rank} nranks {world} total {0.5 * knob('PACE', 1):.2f} (bootstrap 0.08, connections 0.07, rest 0.00)")
    return wires


def first_request(lines: Lines) -> None:
    """What the first request adds, a communicator of its own: it fills the buffer of standard output."""
    while 0 < len(lines.kept) < _BLOCK:
        lines.info("Comm config Blocking set to 1", "Initialized NET plugin Socket", "Assigned NET plugin Socket to comm", "Using network Socket")
    lines.flush()
