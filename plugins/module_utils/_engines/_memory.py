# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""What an engine's own arithmetic of memory is to the plan: options, what it sets aside, the pool it makes of the rest. Sizes in bytes."""

from __future__ import annotations

import typing as t
from dataclasses import dataclass, field

MIB = 1024**2
GIB = 1024**3


class Wish(t.NamedTuple):
    """What the recipe's arguments say of memory, in one vocabulary; None where they say nothing."""

    context: t.Optional[int] = None
    """Tokens of the longest request."""
    cache_dtype: str = "auto"
    requests: t.Optional[int] = None
    """Requests that run at the same time, at most."""
    tokens: t.Optional[int] = None
    """Tokens of cache, at most."""
    batch_tokens: t.Optional[int] = None
    """Tokens of a prompt that are computed at once."""
    pipeline: int = 1
    offload: int = 0
    """Bytes of weights that stay in main memory."""
    no_graphs: bool = False
    no_prompt_graphs: bool = False
    """None for prompts; those for single tokens are captured."""
    graph_batch: t.Optional[int] = None
    """The largest batch that a graph is captured for."""
    speculative: bool = False
    draft_tokens: int = 0
    draft_model: bool = False
    """The draft is a model of its own, whose size is not known."""
    text_only: bool = False
    whole_vision: bool = False
    """Every rank holds all of the vision tower."""
    no_prefix_cache: bool = False
    page: t.Optional[int] = None
    quantization: t.Optional[str] = None
    experts_backend: t.Optional[str] = None
    state_ratio: t.Optional[float] = None
    state_slots: t.Optional[int] = None
    state_dtype: t.Optional[str] = None
    window_ratio: t.Optional[float] = None
    dtype: t.Optional[str] = None


class Cache(t.NamedTuple):
    """What one rank keeps for the requests, in bytes."""

    token: float = 0.0
    """For each token, in the layers that look back at all of them."""
    window_token: float = 0.0
    """For each token that is kept, in the layers that look back at a window only."""
    window: int = 0
    """Tokens of that window."""
    state: int = 0
    """For each request, in the layers with a state of fixed size."""
    full_layers: int = 0
    window_layers: int = 0
    state_layers: int = 0


class Room(t.NamedTuple):
    """One rank's memory as the engine finds it."""

    total: int
    free: int
    """Once its context and its communication stand."""
    weights: int
    graphs: int
    activations: int


class Capacity(t.NamedTuple):
    """What a pool of memory holds."""

    tokens: int
    requests: t.Optional[int]
    """Most requests at the same time that the engine allows; None where only tokens limit them."""
    context: int
    """Tokens of the longest request that fits."""
    concurrency: float
    """Requests of the wanted length that fit at the same time."""


@dataclass(frozen=True)
class Shape:
    """What an engine's estimates need of the model and of the launch."""

    ranks: int
    """Ranks in all."""
    tensor_parallel: int
    total: int
    """The smallest node's memory as CUDA calls its total."""
    mla: bool = False
    vision: t.Optional[t.Mapping[str, t.Any]] = None
    """The vision tower's part of the configuration; None for a model without one."""
    context: int = 0
    vocabulary: int = 0


@dataclass(frozen=True)
class Memory:
    """How an engine reckons."""

    options: t.Mapping[str, t.Tuple[str, ...]]
    """A field of Wish to the options that tell it, without dashes, the one that counts first."""
    knobs: t.Tuple[str, ...]
    """The options by which its memory is set, the one that counts first; the last is the one that a plan recommends."""
    defaults: t.Callable[[Wish, Shape], Wish]
    """The wish with the engine's own defaults in it."""
    set_aside: t.Callable[[Wish, Shape], int]
    """What it leaves by itself beside weights and cache; 0 where it measures instead."""
    graphs: t.Callable[[Wish, Shape], int]
    pool: t.Callable[[str, float, t.Sequence[Room]], t.List[int]]
    """(knob, its value, all ranks) to what every rank's cache gets; may be negative."""
    value: t.Callable[[t.Sequence[Room], t.Sequence[int]], float]
    """The recommended knob's value that leaves each rank that much beside weights and cache."""
    default_value: t.Callable[[Wish, Shape], float]
    capacity: t.Callable[[int, Cache, Wish], Capacity]
    """What a pool of that many bytes holds."""
    whole_context: bool
    """It does not start unless one request of the whole context length fits."""
    paddings: t.Mapping[str, t.Tuple[int, int]] = field(default_factory=dict)
    """For weights in MXFP4: backend to what it rounds (a rank's width of an expert, the hidden size) up to; '' for any other."""
    windows: t.Optional[t.FrozenSet[str]] = None
    """Architectures whose layers with a window keep that window only; None: those of all."""
    state_dtype: str = "float32"
    """Type of a linear attention's state where the model doesn't tell."""
    state_drafts: bool = False
    """The state of a linear attention holds its convolution's inputs for every token of a draft as well."""
    position_bytes: int = 2
    """Of a number in the table by which positions are turned into angles."""
    table_bytes: int = 0
    """Bytes for each token that each request may have, in a table that stands beside the cache from the start; 0: there is none of note."""
    variables: t.Mapping[str, t.Tuple[str, int]] = field(default_factory=dict)
    """Environment variables that set a knob in place of its option, in the engine's build for CPUs, and the factor from its value to bytes."""
    source: str = ""
    """Where this was read."""


def round_up(size: int, step: int) -> int:
    """The smallest multiple of step that is not below size."""
    return -(-size // step) * step
