# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is private to the collection: it can change at any time.

"""Whether what ranks held is available again, out of two looks at a node's memory. Pure."""

from __future__ import annotations

import typing as t
from dataclasses import dataclass

from ansible_collections.sparkstack.inference.plugins.module_utils._words import GIB, size

Memory = t.Mapping[str, t.Any]
Holder = t.Mapping[str, t.Any]

_SLACK = 512 << 20
"""Bytes that others on the node may take or give back within the seconds between two looks; of much memory, a tenth."""


@dataclass(frozen=True)
class Return:
    """What came back."""

    done: bool
    held_bytes: int
    """By the ranks, at the first look."""
    returned_bytes: int
    """By how much more is available than then, at least 0."""
    taken_bytes: int
    """What others hold more than then."""
    missing_bytes: int
    """Of what the ranks held, what neither is available nor in others' hands."""
    available_bytes: int
    total_bytes: int
    unnamed: bool
    """Docker did not answer at the first look, so containers are known by their ids only."""
    unseen: bool
    """What the ranks held is not known, only what was available before they were started."""
    holder: Holder | None
    """Who has what did not come back: a rank that is still there, or who holds more than before."""

    def sentence(self, node: str, timeout: float = 0) -> str:
        """How it went on a node, for people. :param timeout: seconds after which it was given up, if it is not done."""
        room = available(self.available_bytes, self.total_bytes)
        if self.done and self.unseen:
            return f"{node}: as much is available as before the ranks were started, {room}"
        if self.done and not self.held_bytes:
            return f"{node}: Docker could not say what the ranks held, {room}" if self.unnamed else f"{node}: the ranks held nothing, {room}"
        if self.done and self.taken_bytes and self.held_bytes - self.returned_bytes > slack(self.held_bytes):
            return f"{node}: {size(self.held_bytes)} came back, of which {who(self.holder)} has taken {size(self.taken_bytes)} meanwhile, {room}"
        if self.done:
            return f"{node}: {size(self.returned_bytes)} came back, {room}"
        come = f"{node}: of the {size(self.held_bytes)} that the ranks held {size(self.returned_bytes)} came back within {timeout:.0f} s, {room}."
        if not self.held_bytes:
            come = f"{node}: {size(self.missing_bytes)} that were available before are not after {timeout:.0f} s, {room}."
        if self.holder:
            return f"{come} {who(self.holder)[:1].upper()}{who(self.holder)[1:]} holds {size(self.holder['bytes'])}: stop it there."
        return f"{come} No process is seen to hold it: if it stays so, the driver does, and a reboot of {node} gives it back."


def available(free: int, total: int) -> str:
    """How much of a node's memory is available, for people."""
    return f"{free / GIB:.1f} of {total / GIB:.1f} GiB available"


def slack(held: int) -> int:
    """How many bytes may be missing of what was held."""
    return max(held // 10, _SLACK)


def who(holder: Holder | None) -> str:
    """A holder in words."""
    if not holder:
        return "somebody"
    if holder["kind"] == "container":
        return f"container {holder['name']}" + (f" ({holder['image']})" if holder["image"] else "")
    return f"process {holder['pid']} ({holder['name']})"


def held(memory: Memory, containers: t.Collection[str]) -> int:
    """Bytes that the containers of these names hold of what C(available_bytes) is about: a GPU's own memory, or the node's."""
    key = "gpu_bytes" if memory.get("gpus") and not memory.get("unified") else "bytes"
    return sum(holder[key] for holder in memory.get("holders") or [] if holder["kind"] == "container" and holder["name"] in containers)


def before_stop(earlier: Memory, told: t.Mapping[str, t.Any], containers: t.Collection[str]) -> Memory:
    """What a look would have shown just before a guard stopped a rank: when its end is known here, its memory is in nobody's hands any more.

    :param earlier: the fact before the rank was started. Older ranks of these names may have been there; they had to go for it.
    :param told: what M(sparkstack.inference.memory_guard) told. Its curve is of the node's memory: of a GPU's own it says nothing.
    """
    free = (earlier.get("available_bytes") or 0) + held(earlier, containers)
    own_memory = earlier.get("gpus") and not earlier.get("unified")
    taken = 0 if own_memory else max(max((point[1] for point in told["curve"]), default=0) - told["available"], 0)
    others = [holder for holder in earlier.get("holders") or [] if holder["kind"] != "container" or holder["name"] not in containers]
    rank = {"kind": "container", "name": told["name"], "image": told["name"], "pid": None, "bytes": taken, "gpu_bytes": 0}
    return {**earlier, "available_bytes": free - taken, "holders": [*others, rank], "unseen": bool(own_memory)}


def compare(before: Memory, after: Memory, containers: t.Collection[str]) -> Return:
    """What came back between two looks.

    :param before: the fact C(gpu_memory) of M(sparkstack.inference.gpu_memory_facts) with its holders, while the ranks were there.
    :param after: the same, after they were removed. :param containers: the ranks' names.
    """
    there = held(before, containers)
    back = (after.get("available_bytes") or 0) - (before.get("available_bytes") or 0)
    known = {_key(holder): holder["bytes"] for holder in before.get("holders") or []}
    left = [holder for holder in after.get("holders") or [] if holder["kind"] == "container" and holder["name"] in containers]
    grown = [(holder["bytes"] - known.get(_key(holder), 0), holder) for holder in after.get("holders") or [] if holder not in left]
    grown = sorted(((more, holder) for more, holder in grown if more > 0), key=lambda pair: -pair[0])
    taken = sum(more for more, _holder in grown)
    return Return(
        done=not left and back + taken >= there - slack(there),
        held_bytes=there,
        returned_bytes=max(back, 0),
        taken_bytes=taken,
        missing_bytes=max(there - back - taken, 0),
        available_bytes=after.get("available_bytes") or 0,
        total_bytes=after.get("total_bytes") or 0,
        unseen=bool(before.get("unseen")),
        unnamed=any(holder["kind"] == "container" and not holder["image"] for holder in before.get("holders") or []),
        holder=left[0] if left else grown[0][1] if grown else None,
    )


def _key(holder: Holder) -> tuple[t.Any, ...]:
    return holder["kind"], holder["name"], holder["pid"]
