# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is private to the collection: it can change at any time.

"""What a rank needs beside weights and cache: what was measured or what is estimated, and where a node's memory stands. Pure."""

from __future__ import annotations

import typing as t
from dataclasses import dataclass, field

from ansible_collections.sparkstack.inference.plugins.module_utils._engines._memory import GIB, MIB, Wish

# A GB10 showed 416 MiB for each process that had its context and no more; an H200 about the same.
CONTEXT = 512 * MIB
# SGLang 0.5.17 on two H200s: "Init torch distributed ends. mem usage=0.45 GB", and as much again until "Load weight begin".
COMMUNICATION = 920 * MIB
ALONE = 128 * MIB
# Main memory for the processes of a rank: SGLang 0.5.17 took 2.5 to 3.5 GiB of MemAvailable with its weights in GPUs, vLLM 0.32's build for
# CPUs 1.4 to 1.6 GiB without its cache.
PROCESSES = 3584 * MIB
PROCESSES_CPU = 1536 * MIB
# A machine whose memory runs out hangs until its power is cycled: that share of it is left to the system, at least so much.
SYSTEM_SHARE = 0.05
SYSTEM_LEAST = 2 * GIB
# Allocations that don't fill their blocks.
BLOCKS = 256 * MIB
# By how much the plan of a real run was too high at most, as shares of what was planned: over the thirteen runs of tests/fixtures/memory
# weights 1.0 %, cache 0.3 %, and all else together 31 % (no run had prompts that fill a batch). Only what is lacking beyond that is sure.
WEIGHTS_ERROR = 0.015
CACHE_ERROR = 0.01
FIXED_ERROR = 0.35


@dataclass(frozen=True)
class Node:
    """A node's memory, in bytes, as M(sparkstack.inference.gpu_memory_facts) measured it; None where it did not."""

    name: str
    ranks: int
    total: int | None = None
    available: int | None = None
    free: int | None = None
    shared: bool = True
    """The engine's processes and the system live in the same memory."""
    gpus: int = 0
    facts: t.Mapping[str, t.Any] = field(default_factory=dict)
    most: int | None = None
    """What can be available at most: what a deployment holds that is stopped before, not every driver tells."""
    joining: int = 0
    """Bytes of main memory that a rank takes for what brings the ranks together (Ray)."""

    @property
    def parts(self) -> int:
        """By how many the node's memory is divided: a GPU with memory of its own is one rank's."""
        return self.ranks if self.shared else max(self.gpus, self.ranks)


def node(name: str, facts: t.Mapping[str, t.Any], ranks: int) -> Node:
    """Read a node's facts.

    :param facts: C(gpu_memory); C(coming_back_bytes) in it is what a deployment holds that is stopped before (its own earlier ranks,
        containers that are to make room), and is available then; C(most_available_bytes) is what could be then, at most; C(joining_bytes) is
        what Ray, say, takes of main memory on the node.
    """
    gpus = facts.get("gpus") or []
    total, available = facts.get("total_bytes"), facts.get("available_bytes")
    back = int(facts.get("coming_back_bytes") or 0)
    if not total or available is None:
        return Node(name, ranks, gpus=len(gpus), facts=facts)
    own = bool(gpus) and all(gpu.get("total_bytes") for gpu in gpus)
    joining = 0 if own else int(facts.get("joining_bytes") or 0) // max(ranks, 1)
    free = facts.get("free_bytes")
    available = min(available + back, total)
    most = max(available, facts.get("most_available_bytes") or 0)
    return Node(name, ranks, total, available, None if free is None else min(free + back, total), not own, len(gpus), facts, most, joining)


def error(needs: t.Sequence[t.Mapping[str, t.Any]]) -> int:
    """By how many bytes the needs of a node may be planned too high; what is left to the system is no need and has no part in it.

    :param needs: each with C(what) and C(bytes).
    """
    shares = {"weights": WEIGHTS_ERROR, "cache": CACHE_ERROR, "system": 0.0}
    return int(sum(each["bytes"] * shares.get(each["what"], FIXED_ERROR) for each in needs))


def processes(ground: Node) -> int:
    """Bytes that the engine's own processes take where that is what the model lives in, too."""
    return 0 if not ground.shared else PROCESSES if ground.gpus or not ground.total else PROCESSES_CPU


def system(total: int, shared: bool) -> int:
    """What is left to the system, where the engine could take it away."""
    return max(int(total * SYSTEM_SHARE), SYSTEM_LEAST) if shared else BLOCKS


def activations(config: t.Mapping[str, t.Any], wish: Wish, tensor_parallel: int) -> int:
    """An estimate of what is alive at once while the largest batch of prompts is computed.

    The residual stream and what a layer makes of it; for each expert that a token goes to, its input, both halves of the gate and
    its output, as the fused kernels keep them; and the scores over the vocabulary for every request that samples.

    :param config: the language model's part.
    """
    hidden = config.get("hidden_size") or 4096
    heads = (config.get("num_attention_heads") or 32) * (config.get("head_dim") or 128)
    width = config.get("intermediate_size") or 4 * hidden
    experts = config.get("num_experts_per_tok") or 0
    narrow = config.get("moe_intermediate_size") or width
    layer = 8 * hidden + (4 * heads + (3 * width if not experts else 0)) / tensor_parallel
    routed = experts * (2 * hidden + 3 * narrow / tensor_parallel)
    rows = min(wish.requests or 256, 1024)
    scores = rows * (config.get("vocab_size") or 128000) * 4 * 2
    return int((wish.batch_tokens or 8192) * (layer + routed) * 2 + scores + BLOCKS)
