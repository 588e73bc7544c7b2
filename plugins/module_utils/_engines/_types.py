# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""What an engine is to the rest of the collection: how it is started (Launch) and how its log reads (Log)."""

from __future__ import annotations

import typing as t
from dataclasses import dataclass, field

from ansible_collections.sparkstack.inference.plugins.module_utils._engines._memory import Memory


@dataclass(frozen=True)
class RankSpec:
    """What one rank is to be started with; plain data out of the plan."""

    model_path: str
    served_name: str
    rank: int
    ranks: int
    tensor_parallel_size: int
    address: str
    """The rank's own address on the fabric."""
    head_address: str
    """Rank 0's address on the fabric: the rendezvous takes place there."""
    rendezvous_port: int
    port: int
    listen_address: str
    arguments: t.Mapping[str, t.Any] = field(default_factory=dict)
    """The recipe's arguments: option name without dashes to value."""
    with_api_key: bool = False
    pipeline_parallel_size: int = 1
    """Stages, each of C(tensor_parallel_size) GPUs: ranks are numbered stage by stage."""
    expert_parallel: bool = False
    """Whole experts go to the GPUs of a stage, not a part of each to all."""
    executor: str = "mp"
    """Who brings the ranks' processes together, one of the engine's C(executors)."""
    addresses: t.Tuple[str, ...] = ()
    """The addresses of all ranks on the fabric, in rank order, for an executor that asks who is there."""


@dataclass(frozen=True)
class Executor:
    """What brings the ranks of an engine together, where that is not the engine itself."""

    title: str
    package: str
    """The Python package that the image must have for it."""
    ports: t.Callable[[int, int], t.Tuple[int, ...]]
    """(rank, rendezvous port) to the ports on which the rank's node must have no other listener, the rendezvous port among them."""
    head_first: bool
    """The head is started before the others, which join it."""
    node_bytes: t.Callable[[int], int]
    """Rank to the bytes of main memory that it takes on the rank's node, beside the engine's own processes."""
    least_shm: int
    """Bytes that C(/dev/shm) must have for it."""
    told: str
    """How it is set up, for the plan: a clause."""
    token: str = ""
    """The variable of a secret without which everybody who reaches its ports may command it."""


@dataclass(frozen=True)
class Launch:
    """How an engine is started."""

    port: int
    rendezvous_port: int
    command: t.Callable[[RankSpec], t.List[str]]
    """The whole argv of a rank, without secrets."""
    environment: t.Callable[[RankSpec], t.Dict[str, str]]
    """What the engine itself reads from its environment, apart from NCCL and Gloo."""
    owned: t.FrozenSet[str]
    """Options that only the plan may set, in the spelling without dashes that the engine lists."""
    secret: t.FrozenSet[str]
    """Options whose value is a secret: it would stand in the command line, where everybody on the node reads it."""
    equivalents: t.Mapping[str, str]
    """What other engines call an option: their spelling to this engine's, both without dashes."""
    parser_source: str
    """A Python program that prints the image's own option parser as JSON (see _options.py for its shape)."""
    abbreviations: bool
    """The parser takes an unambiguous beginning of a long option for the option."""
    underscores: bool
    """The parser takes _ for - in a long option."""
    negation: t.Optional[str]
    """What before its name turns an option off (no-), where the parser has such a form."""
    api_key_variable: str
    """The environment variable by which the API key reaches the container."""
    executors: t.Tuple[str, ...] = ("mp",)
    """Who can bring the ranks' processes together; the first is taken where the recipe says nothing."""
    even_experts: bool = False
    """Experts can only be spread evenly over the GPUs of a stage."""
    worker_ports: bool = False
    """Every rank listens on the API's port, not the head alone."""
    joined_by: t.Mapping[str, Executor] = field(default_factory=dict)
    """What that is, for those of C(executors) that are not the engine itself."""


PHASES = (
    "container",
    "parse_args",
    "init_dist",
    "create_runner",
    "load_weights",
    "kv_cache",
    "graph_capture",
    "engine_ready",
    "http_warmup",
    "ready",
)
"""The phases of a start, in order; what each means for an engine stands in its markers."""


@dataclass(frozen=True)
class Marker:
    """A line by which a rank's log shows that it has come to a phase."""

    phase: str
    text: str
    """Fixed text that the line contains."""
    values: str = ""
    """A regular expression with named groups, the numbers that the line carries; every match counts: "a=(?P<a>..)|b=(?P<b>..)"."""
    of: str = ""
    """The phase that the values belong to, where it is not the phase that begins here."""
    start: bool = False
    """The line opens a run: with it, what stands before in the log was an earlier one."""


@dataclass(frozen=True)
class Signature:
    """A text by which a log tells why a rank failed, or what it would be wrong to take for the reason.

    C(kind) says what the text is worth:
    C(cause) the reason itself, at first hand;
    C(death) a process is gone, the reason stands elsewhere or nowhere;
    C(relay) the rank repeats or infers what is wrong with another one;
    C(peer) the rank is the victim: another one left, never came or doesn't answer;
    C(soft) a trouble that the rank itself goes on retrying;
    C(wrapper) an exception around another that stands before it, or in it;
    C(noise) no trouble at all; C(stop) the rank was asked to end.
    """

    cause: str
    text: str
    """Fixed text that the line contains."""
    kind: str = "cause"
    pattern: str = ""
    """A regular expression that must be found in the line as well; the values of its named groups are kept."""
    line: t.Union[bool, str] = False
    """It counts in any line; otherwise only as the text of an exception. A string is a shorter text that every such line
    holds and that other rows share: the log is searched through once for all of them."""
    remedy: str = ""
    """Stands in for the cause's own remedy."""


@dataclass(frozen=True)
class Fact:
    """What NCCL's own lines tell under C(NCCL_DEBUG=INFO)."""

    name: str
    text: str
    """Fixed text that the line contains."""
    pattern: str
    """A regular expression that begins with fixed text; its groups, joined, are the value."""
    how: str = "first"
    """C(first): the first that is told counts; C(count): a mapping of each that is told to how often; C(sum): how
    often the fixed text is there."""


@dataclass(frozen=True)
class Log:
    """How an engine's log reads."""

    prefix: str
    """A regular expression of what its logger puts before a message."""
    markers: t.Tuple[Marker, ...]
    signatures: t.Tuple[Signature, ...]
    bars: t.Tuple[str, ...]
    """Fixed texts of lines with a progress bar: of many in a row, only the first and the last are looked at."""
    fatal: t.Tuple[str, ...]
    """Fixed texts before a traceback that say that the process ends with it."""
    claims: t.Mapping[str, str]
    """What a rank says of its place, to be compared between ranks: name to a regular expression with one group.

    C(rank), C(ranks), C(tensor_parallel), C(rendezvous), C(address) (its node's own); and C(local), told where
    C(rank) counts processes, of which the node has several.
    """
    last_sign: str
    """The last phase that the log of a rank other than 0 shows."""
    options: t.Tuple[str, ...] = ()
    """Parts of the paths of source files that check the options: what is raised there, and no signature knows, is a matter of options."""
    elsewhere: t.Tuple[str, ...] = ()
    """Fixed texts of a rank that only lends its machine: its phases stand in another rank's log."""


@dataclass(frozen=True)
class Engine:
    """One engine. A third one is one new file beside vllm.py and sglang.py, and a line in __init__.py."""

    name: str
    title: str
    launch: Launch
    log: Log
    memory: t.Optional[Memory] = None
    """How it reckons with memory; without it a plan assumes that all fits."""
