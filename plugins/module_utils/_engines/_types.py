# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""What an engine is to the rest of the collection: how it is started (Launch) and how its log reads (Log)."""

from __future__ import annotations

import typing as t
from dataclasses import dataclass, field


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
    equivalents: t.Mapping[str, str]
    """What other engines call an option: their spelling to this engine's, both without dashes."""
    parser_source: str
    """A Python program that prints the image's own option parser as JSON (see _options.py for its shape)."""
    abbreviations: bool
    """The parser takes an unambiguous beginning of a long option for the option."""
    underscores: bool
    """The parser takes _ for - in a long option."""
    negations: t.Tuple[str, ...]
    """Beginnings by which the parser turns a boolean option around, such as no-."""
    api_key_variable: str
    """The environment variable by which the API key reaches the container."""


@dataclass(frozen=True)
class Engine:
    """One engine. A third one is one new file beside vllm.py and sglang.py, and a line in __init__.py."""

    name: str
    title: str
    launch: Launch
