# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The rows: each fault, how it is made, and what is right to say of it."""

from __future__ import annotations

import json
import time
import typing as t
from dataclasses import dataclass, field

import play

from . import makers
from .engines import COPY, HEAD, NODES, WORKER, Engine
from .launch import PHASE, Launch, Missed

Changes = t.Mapping[str, t.Mapping[str, t.Any]]
# The last line of the first traceback. vLLM's worker lives on for minutes after its error.
ERROR = r"\w(Error|Exception): "
ANY = "any"
"""Any cause will do, or any culprit."""


@dataclass(frozen=True)
class Wanted:
    """What is right to conclude."""

    verdict: str
    culprit: str | None = None
    causes: tuple[str | None, ...] = (None,)
    says: tuple[str, ...] = ()
    """Words that the user must read, in summary, remedy, notes or evidence."""
    never: tuple[str, ...] = ()
    """Words that must be nowhere there."""
    closeup: bool = False
    """Whether every reachable node must have been looked at closely."""
    culprits: tuple[str | None, ...] = ()
    """Where more than one answer is right."""


@dataclass(frozen=True)
class Row:
    """One fault. Seconds where it is time."""

    name: str
    wanted: Wanted
    before: tuple[t.Callable[[Engine], object], ...] = ()
    """Make it before the start."""
    changes: t.Callable[[Engine], Changes] = lambda _engine: {}
    """What is wrong with the launch itself, by node; asked after that."""
    at: tuple[tuple[str, str], ...] = ()
    """When it is made: as soon as one of these ranks is in this phase."""
    make: t.Callable[[], object] | None = None
    """Makes it while the ranks start, or after the start."""
    after_ready: bool = False
    """It is made when all ranks are ready, and the watch then begins anew."""
    moment: t.Callable[[], float] | None = None
    """When it happened; by default when it was made, or when the watch began."""
    guard: bool = False
    """The memory guard runs beside the ranks, as in a deployment, and must have stopped the worker's."""
    crash: bool = False
    """A rank has ended: the verdict must follow within seconds."""
    watch: t.Mapping[str, t.Any] = field(default_factory=dict)
    engines: tuple[str, ...] = ("vllm", "sglang")
    wanted_of: t.Mapping[str, Wanted] = field(default_factory=dict)
    """What is right for an engine that shows it in another way."""

    @property
    def is_fault(self) -> bool:
        """Whether something is wrong that must be told; a slow start is healthy."""
        return self.wanted.verdict != "ready"


def on(node: str, **options: t.Any) -> t.Callable[[Engine], Changes]:
    """Options of one node's rank."""
    return lambda _engine: {node: options}


def on_all(**options: t.Any) -> t.Callable[[Engine], Changes]:
    """Options of all ranks."""
    return lambda _engine: dict.fromkeys(NODES, options)


def squeezed(engine: Engine) -> Changes:
    """Beside somebody's container of 4 GiB a cache, or weights, that would have fitted do not."""
    meminfo = dict(line.split(":") for line in play.node(WORKER, "cat /proc/meminfo").splitlines())
    return {WORKER: engine.squeezed(int(meminfo["MemAvailable"].split()[0]) << 10)}


def restart_docker() -> None:
    """As an upgrade of the package does it."""
    play.node(WORKER, "systemctl restart docker")


def port_of(key: str) -> t.Callable[[Engine], int]:
    """A port of the recipe."""
    return lambda engine: int(engine.data[key])


LOADING = ((WORKER, "load_weights"), (HEAD, "load_weights"))
INIT = ((WORKER, "init_dist"), (HEAD, "init_dist"))


def large(engine: Engine) -> Changes:
    """A model whose load takes a while from a slow disk."""
    return dict.fromkeys(NODES, {"model": engine.wide})


SLOW = makers.slow_disks("2M")
QUICK = {"stall_timeouts": dict.fromkeys(("container", "parse_args", "init_dist", "create_runner", "load_weights", "kv_cache", "engine_ready"), 15)}

ROWS = (
    Row("nothing wrong", Wanted("ready")),
    Row(
        "worker never started",
        Wanted("stalled", WORKER, (None, "rendezvous_timeout"), (WORKER,)),
        changes=on(WORKER, absent=True),
        watch={"stall_timeouts": {"container": 15}},
    ),
    Row(
        "worker out of memory by its limit",
        Wanted("failed", WORKER, ("oom",)),
        changes=lambda engine: {WORKER: {"memory": engine.little_memory}},
        moment=lambda: makers.oom_killed(WORKER),
        crash=True,
    ),
    Row(
        "somebody's container holds the memory",
        Wanted("failed", WORKER, ("oom",), (makers.SQUATTER,)),
        changes=squeezed,
        before=(lambda engine: makers.squat(engine, 4 << 30),),
        moment=lambda: makers.said(ERROR, WORKER),
        crash=True,
    ),
    Row(
        "shard missing on the worker",
        Wanted("failed", WORKER, ("missing_weights",)),
        changes=on_all(model=COPY),
        before=(makers.lose_shard,),
        moment=lambda: makers.said(ERROR, WORKER),
        crash=True,
    ),
    Row(
        "shard truncated on the worker",
        Wanted("failed", WORKER, ("missing_weights",)),
        changes=on_all(model=COPY),
        before=(makers.cut_shard,),
        moment=lambda: makers.said(ERROR, WORKER),
        crash=True,
    ),
    Row(
        "wrong interface on the worker",
        Wanted("failed", WORKER, ("gloo_wrong_iface",), ("enp99s0",)),
        changes=lambda engine: {WORKER: {"environment": engine.wrong_interface}},
        moment=lambda: makers.said(ERROR, WORKER),
        crash=True,
        wanted_of={"sglang": Wanted("failed", WORKER, ("nccl_error", "gloo_wrong_iface", "net_unreachable"), ("NCCL_SOCKET_IFNAME",))},
    ),
    Row(
        "API port taken on the head",
        Wanted("failed", HEAD, ("port_in_use",)),
        before=(makers.hold_port(port_of("port")),),
        moment=lambda: makers.said(r"Errno 98|address already in use|Address already in use", HEAD),
        crash=True,
    ),
    Row(
        "rendezvous port taken on the head",
        Wanted("failed", HEAD, ("port_in_use",)),
        before=(makers.hold_port(port_of("rendezvous_port")),),
        moment=lambda: makers.said(r"EADDRINUSE|address already in use|Address already in use", HEAD),
        crash=True,
    ),
    Row(
        "unknown flag",
        # All are to blame; where one imports for much longer, the others are told first.
        Wanted("failed", None, ("bad_flag",), culprits=(None, *NODES)),
        changes=lambda engine: dict.fromkeys(NODES, {"arguments": engine.unknown_flag}),
        moment=lambda: makers.said("error: unrecognized", *NODES),
        crash=True,
    ),
    Row(
        "unknown flag on the worker only",
        Wanted("failed", WORKER, ("bad_flag",)),
        changes=lambda engine: {WORKER: {"arguments": engine.unknown_flag}},
        moment=lambda: makers.said("error: unrecognized", WORKER),
        crash=True,
    ),
    Row(
        "image of the wrong architecture",
        Wanted("failed", WORKER, ("wrong_image_arch",)),
        changes=on(WORKER, image=makers.WRONG),
        before=(makers.wrong_image,),
        moment=lambda: makers.ended(WORKER),
        crash=True,
    ),
    Row(
        "worker killed while it loads",
        Wanted("failed", WORKER, ("killed",)),
        changes=large,
        before=(SLOW,),
        at=LOADING,
        make=makers.kill(WORKER),
        crash=True,
    ),
    Row(
        "worker killed when ready",
        Wanted("failed", WORKER, ("killed",)),
        after_ready=True,
        make=makers.kill(WORKER),
        crash=True,
    ),
    Row(
        "head killed when ready",
        Wanted("failed", HEAD, ("killed",)),
        after_ready=True,
        make=makers.kill(HEAD),
        crash=True,
    ),
    Row(
        "clock of the worker 5 minutes ahead",
        Wanted("failed", WORKER, ("missing_weights",), ("clock",)),
        changes=on_all(model=COPY),
        before=(makers.cut_shard, makers.wrong_clock(300)),
        moment=lambda: makers.said(ERROR, WORKER),
        crash=True,
    ),
    Row(
        "clock of the worker 5 minutes behind, head killed",
        Wanted("failed", HEAD, ("killed",), ("clock",)),
        changes=large,
        before=(SLOW, makers.wrong_clock(-300)),
        at=LOADING,
        make=makers.kill(HEAD),
        crash=True,
    ),
    Row(
        "Docker restarted under the worker",
        Wanted("failed", WORKER, (ANY,), ("Docker",)),
        changes=large,
        before=(SLOW,),
        at=LOADING,
        make=restart_docker,
        moment=lambda: makers.ended(WORKER),
        crash=True,
    ),
    Row(
        "Docker stopped under the worker",
        Wanted("failed", WORKER, (ANY,), ("Docker does not answer", "load_weights")),
        changes=large,
        before=(SLOW,),
        at=LOADING,
        make=makers.stop_docker(WORKER),
        watch={"join_timeout": 60},
    ),
    Row(
        "worker's container removed while it loads",
        Wanted("failed", WORKER, ("killed",), ("removed",)),
        changes=large,
        before=(SLOW,),
        at=LOADING,
        make=makers.remove(WORKER),
        crash=True,
    ),
    Row(
        "fabric cut while the ranks meet",
        Wanted("stalled", None, (ANY,), ("enp1s0f0np0",), closeup=True, culprits=(None, HEAD, WORKER)),
        at=INIT,
        make=lambda: play.lab("cut", WORKER),
        watch=QUICK,
    ),
    Row(
        "fabric cut while the ranks load",
        Wanted("stalled", None, (ANY,), ("enp1s0f0np0",), closeup=True, culprits=(None, HEAD, WORKER)),
        changes=large,
        before=(SLOW,),
        at=LOADING,
        make=lambda: play.lab("cut", WORKER),
        watch=QUICK,
    ),
    Row(
        "worker frozen while it loads",
        Wanted("stalled", WORKER, (ANY,), ("paused",), closeup=True),
        changes=large,
        before=(SLOW,),
        at=LOADING,
        make=makers.pause(WORKER),
        watch=QUICK,
    ),
    Row(
        "worker's node unreachable by ssh",
        # "... any more: the node cannot be reached", or "... no word from it for 46 s", where ssh hangs in the middle of a packet.
        Wanted("failed", WORKER, (None,), ("Nothing is known of spark2 (rank 1) any more",)),
        changes=large,
        # A load that outlasts the 25 s in which ssh notices: ranks that serve by then are ready, whoever can be reached.
        before=(makers.slow_disks("700K"),),
        at=LOADING,
        make=lambda: play.lab("isolate", WORKER),
        watch={"join_timeout": 10},
    ),
    Row(
        "slow disk",
        Wanted("ready"),
        changes=large,
        before=(makers.slow_disks("700K"),),
        watch={"stall_timeouts": {"load_weights": 15}},
    ),
)


def rows_for(engine: Engine) -> list[Row]:
    """The rows that can be made with an engine."""
    return [row for row in ROWS if engine.name in row.engines]


def wanted(row: Row, engine: Engine) -> Wanted:
    """What is right for the row with this engine."""
    return row.wanted_of.get(engine.name, row.wanted)


def make_it(row: Row, launch: Launch) -> float | None:
    """Wait for the row's phase and make its fault: when that was (epoch), or None where the launch itself is the fault."""
    if row.make is None:
        return None
    if row.after_ready:
        _known, result = launch.verdict()
        if result["verdict"] != "ready":
            raise Missed(f"the start was not healthy: {result['verdict']}, {result['summary']}")
        now = time.time()
        row.make()
        launch.again()
        return now
    launch.wait_line("|".join(PHASE.format(node=node, phase=phase) for node, phase in row.at), 180)
    now = time.time()
    row.make()
    return now


def problems(want: Wanted, result: t.Mapping[str, t.Any]) -> list[str]:
    """What is wrong about a verdict, in words; [] when it is right."""
    found = []
    if result["verdict"] != want.verdict:
        found.append(f"verdict {result['verdict']} instead of {want.verdict}")
    if result["culprit"] not in (want.culprits or (want.culprit,)):
        found.append(f"culprit {result['culprit']} instead of {want.culprit}")
    if ANY not in want.causes and result["cause"] not in want.causes:
        found.append(f"cause {result['cause']} instead of {' or '.join(str(cause) for cause in want.causes)}")
    words = json.dumps([result[key] for key in ("summary", "remedy", "evidence")] + [result.get("notes")])
    found += [f"it does not say '{word}'" for word in want.says if word.lower() not in words.lower()]
    found += [f"it says '{word}'" for word in want.never if word.lower() in words.lower()]
    if want.closeup:
        found += [f"no closer look at {node}" for node in NODES if not (result["nodes"].get(node) or {}).get("closeup")]
    return found
