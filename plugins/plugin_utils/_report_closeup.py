# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is private to the collection: it can change at any time.

"""The closer look at a node as lines: who holds its memory, what its processes do, what the network says. Pure."""

from __future__ import annotations

import re
import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils._words import size

_STATES = {"S": "sleeps", "I": "sleeps", "D": "waits for a device", "T": "is stopped", "t": "is stopped", "Z": "has ended"}
_FRAMES = 4
"""Frames of a stack that are shown where not all are; the innermost stand first, as py-spy prints them."""
_HOLDERS = 4
_PROCESSES = 4
_STACKS = 3

Look = t.Mapping[str, t.Any]


def lines(node: Look, full: bool = False, stacks: bool = True) -> list[str]:
    """What the closer look at a node has seen, and what NCCL's own lines in its log tell; nothing where there was none.

    :param node: an entry of C(nodes) of the verdict, with C(closeup) and C(nccl).
    :param full: all stacks, processes, holders and kernel messages. :param stacks: with the stacks at all.
    """
    look: Look = node.get("closeup") or {}
    if look.get("problem"):
        return [f"it could not be taken: {look['problem']}", *nccl(node.get("nccl") or {})]
    shown = []
    for part in (_memory(look, full), _gpus(look), _processes(look, full), _fabric(look), _sockets(look), _listeners(look), _reach(look)):
        shown += part
    shown += nccl(node.get("nccl") or {}) + _kernel(look, full)
    shown += _stacks(look, full) if stacks else []
    return shown + ([f"missing: {look[key]}" for key in sorted(look) if key.endswith("_problem") and look[key]] if full else [])


def _memory(look: Look, full: bool) -> list[str]:
    memory, holders = look.get("memory") or {}, look.get("holders") or []
    if not memory and not holders:
        return []
    told = f"memory: {size(memory.get('available_bytes'))} of {size(memory.get('total_bytes'))} available" if memory else "memory"
    held = [_holder(holder) for holder in holders[: None if full else _HOLDERS]]
    return [told + ("; held by " + ", ".join(held) if held else "")]


def _holder(holder: Look) -> str:
    if holder.get("kind") == "page_cache":
        return f"the page cache ({size(holder.get('bytes'))})"
    image = f" of {holder['image']}" if holder.get("image") else ""
    own = "this rank's " if holder.get("own") else ""
    return f"{own}{holder.get('kind')} {holder.get('name')}{image} ({size(holder.get('bytes'))})"


def _gpus(look: Look) -> list[str]:
    shown = []
    for gpu in look.get("gpus") or []:
        watts, limit, busy = gpu.get("power_watts"), gpu.get("power_limit_watts"), gpu.get("utilization_percent")
        words = [f"busy {busy:.0f}%"] if busy is not None else []
        words += [f"{watts:.0f} W" + (f" of {limit:.0f} W" if limit is not None else "")] if watts is not None else []
        shown.append(f"GPU {gpu.get('index')} {gpu.get('name') or ''}: {', '.join(words) or 'tells nothing'}")
    return shown


def _processes(look: Look, full: bool) -> list[str]:
    found = look.get("processes") or []
    words = []
    for process in found[: None if full else _PROCESSES]:
        busy, wait = process.get("cpu_percent"), process.get("waits_in")
        told = f"{process.get('name')} ({process.get('pid')}) {_STATES.get(str(process.get('state')), 'runs')}"
        words.append(told + (f", {busy:.0f}% of a CPU" if busy is not None else "") + (f" in {wait}" if wait else ""))
    more = f", and {len(found) - len(words)} more" if len(found) > len(words) else ""
    return [f"processes: {'; '.join(words)}{more}"] if words else []


def _fabric(look: Look) -> list[str]:
    fabric = look.get("fabric")
    if not fabric:
        return []
    carrier = fabric.get("carrier")
    link = "" if carrier is None else ", link up" if carrier else ", NO LINK"
    speed = f", {fabric['speed_mbps']} Mbit/s" if fabric.get("speed_mbps") else ""
    return [f"fabric: {fabric.get('address')} on {fabric.get('interface')}, MTU {fabric.get('mtu')}{link}{speed}"]


def _sockets(look: Look) -> list[str]:
    sockets = look.get("sockets")
    if not sockets or not sockets.get("port"):
        return []
    words = []
    owner = sockets.get("owner") or {}
    if sockets.get("listening"):
        who = owner.get("container") or owner.get("process")
        words.append("this rank listens" if owner.get("own") else f"listened on by {who} (pid {owner.get('pid')})" if who else "somebody listens")
    if sockets.get("connected"):
        words.append(f"connected with {', '.join(sockets['connected'])}")
    if sockets.get("dialing"):
        words.append(f"dials {', '.join(sockets['dialing'])} without an answer")
    return [f"rendezvous port {sockets['port']}: {'; '.join(words) or 'nobody listens and nothing is connected'}"]


def _listeners(look: Look) -> list[str]:
    """Who else listens on a port that the rank wants."""
    others = [listener for listener in look.get("listeners") or [] if not listener.get("own")]
    return [
        f"port {listener.get('port')} is taken by {listener.get('container_name') or listener.get('process') or 'somebody'} (pid {listener.get('pid')})"
        for listener in others
    ]


def _reach(look: Look) -> list[str]:
    shown = []
    for address, times in sorted((look.get("reach") or {}).items()):
        words = [
            f"{size} packets {'are not answered' if times.get(size) is None else f'in {times[size] * 1000:.1f} ms'}"
            for size in ("small", "large")
            if size in times
        ]
        shown.append(f"way to {address}: {', '.join(words)}")
    return shown


def nccl(told: Look) -> list[str]:
    """What NCCL's INFO lines say: over which transport and devices, and how many communicators were begun and completed."""
    if not told:
        return []
    words = [f"version {told['version']}"] if told.get("version") else []
    if told.get("bootstrap"):
        words.append(f"bootstrap over {told['bootstrap']}")
    if told.get("network"):
        words.append(f"network {told['network']}")
    if told.get("devices"):
        rails = f"{len(told['devices'])} rails " if len(told["devices"]) > 1 else "one rail " if told.get("network") == "IB" else ""
        words.append(f"{rails}({', '.join(str(device) for device in told['devices'])})")
    if told.get("channels"):
        words.append("channels " + ", ".join(f"{count} x {way}" for way, count in sorted(told["channels"].items())))
    if told.get("started") is not None:
        words.append(f"{told.get('complete') or 0} of {told['started']} communicators complete")
    return [f"NCCL: {', '.join(words)}"] if words else []


def _kernel(look: Look, full: bool) -> list[str]:
    found = look.get("kernel") or []
    return [f"kernel: {' '.join(str(message.get('text')).split())}" for message in found[None if full else -5 :]]


def _stacks(look: Look, full: bool) -> list[str]:
    shown = []
    for stack in (look.get("stacks") or [])[: None if full else _STACKS]:
        name = f"stack of {stack.get('name')} ({stack.get('pid')}):"
        text = [line for line in str(stack.get("text") or "").splitlines() if line.strip()]
        shown += [name] + [f"  {line}" for line in (text if full else shorten(text))]
    if look.get("stacks_problem"):
        shown.append(f"stacks: {look['stacks_problem']}")
    return shown


def shorten(text: t.Sequence[str]) -> list[str]:
    """The main thread's innermost frames, or the first thread's.

    :param text: as py-spy prints it: C(Thread 12 (active): "MainThread"), then C(    frame (file.py:1)), the innermost first.
    """
    threads: list[list[str]] = []
    for line in text:
        if re.match(r"Thread ", line) or not threads:
            threads.append([])
        threads[-1].append(line)
    main = next((thread for thread in threads if "MainThread" in thread[0]), threads[0] if threads else [])
    frames = main[1:] if main and main[0].startswith("Thread ") else main
    head = [] if frames is main or not main else [main[0].strip()]
    cut = frames[:_FRAMES]
    more = f"  .. {len(frames) - len(cut)} more frames" if len(frames) > len(cut) else ""
    others = f", {len(threads) - 1} more threads" if len(threads) > 1 else ""
    return [line for line in [*head, *cut, (more + others) if more else others and f"  ..{others[1:]}"] if line]
