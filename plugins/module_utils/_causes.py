# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""What each cause means and what to do about it: one row a cause.

In the texts C({node}) is the culprit, and C({peer}) the first of the other nodes.
"""

from __future__ import annotations

import typing as t


class Cause(t.NamedTuple):
    """What is said of a cause."""

    what: str
    """Follows the name of the node: "spark2 (rank 1) ran out of memory"."""
    remedy: str
    closer: bool = True
    """A close look at the nodes can add to what the logs tell."""
    alike: bool = False
    """All ranks can meet it, within a second or two of each other: a wrong option, or a model that nobody knows."""


# fmt: off
CAUSES: t.Dict[str, Cause] = {
    "oom": Cause(
        "ran out of memory",
        "Free memory on {node} (other processes on its GPU, the page cache), or lower the engine's memory fraction or context length.",
    ),
    "ray_oom_kill": Cause(
        "was killed by Ray's memory monitor",
        "Set RAY_memory_monitor_refresh_ms=0 on all nodes: on unified memory Ray counts what the GPU uses as the host's.",
    ),
    "memory_unbalanced": Cause(
        "has much less free GPU memory than the others",
        "Free GPU memory on {node}: compare the processes that hold memory there with those of the other nodes.",
    ),
    "bad_flag": Cause(
        "was started with options that don't fit",
        "Correct the options of {node}, and give all ranks the same ones apart from the rank.",
        closer=False,
        alike=True,
    ),
    "unsupported_arch": Cause(
        "does not know the model's architecture",
        "Take an image with a newer engine, or a model whose configuration fits this one.",
        closer=False,
        alike=True,
    ),
    "rendezvous_timeout": Cause(
        "did not come to the rendezvous",
        "See first why {node} did not come: its log, its container, and the way to the head's address and rendezvous port.",
    ),
    "peer_exited": Cause(
        "left the group without a reason of its own in its log",
        "Look at {node}: its container, its kernel log, its link; then start all ranks again, for none heals alone.",
    ),
    "gloo_wrong_iface": Cause(
        "uses the wrong network interface for Gloo",
        "Set GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME on {node} to the interface that carries its fabric address.",
        closer=False,
    ),
    "nccl_hang": Cause(
        "hangs while NCCL connects the ranks",
        "Start again with NCCL_DEBUG=INFO on all nodes, and once with NCCL_IB_DISABLE=1: that tells the RDMA set-up from the network.",
    ),
    "ib_error": Cause(
        "met an RDMA error",
        "Check NCCL_IB_HCA and NCCL_IB_GID_INDEX (RoCE v2), the memlock limit and /dev/infiniband of {node}'s container, and the link.",
    ),
    "nccl_error": Cause(
        "met an NCCL error",
        "Read the first NCCL WARN line; without one, start again with NCCL_DEBUG=WARN, and check NCCL_SOCKET_IFNAME on {node}.",
    ),
    "nccl_timeout": Cause(
        "waited in vain for a collective operation",
        "Look at the other nodes for the rank that stopped: its process, its GPU, its link.",
    ),
    "net_unreachable": Cause(
        "has no way to the others over its network",
        "Correct the head's address that {node} was given, or the interface and route by which it would reach it.",
    ),
    "custom_allreduce_ipc": Cause(
        "used custom all-reduce across nodes",
        "Switch it off: disable-custom-all-reduce.",
        closer=False,
    ),
    "port_in_use": Cause(
        "found its port taken",
        "Stop what listens on that port on {node}, usually a container of an earlier launch, or choose another port.",
    ),
    "missing_weights": Cause(
        "has no complete copy of the model",
        "Put the model under the same path on {node} as on the other nodes, and compare sizes and checksums.",
        closer=False,
        alike=True,
    ),
    "permission": Cause(
        "may not read or write a path",
        "Give the container's user access to the path named in the evidence on {node}.",
        closer=False,
        alike=True,
    ),
    "wrong_image_arch": Cause(
        "has an image for another processor",
        "Take an image for the processor of {node}: a DGX Spark needs linux/arm64.",
        closer=False,
    ),
    "bad_image": Cause(
        "has an image that lacks a program or a library",
        "Take an image of the engine that is complete, and the same one on every node.",
        closer=False,
        alike=True,
    ),
    "unsupported_gpu_arch": Cause(
        "has an image that was not built for its GPU",
        "Take an image built for the GPU of {node}: a GB10 needs CUDA 13 and sm_121.",
        closer=False,
        alike=True,
    ),
    "driver": Cause(
        "has no working GPU driver for this image",
        "Update the driver of {node} or reboot it, and check that its containers get the GPU.",
        alike=True,
    ),
    "capture_failed": Cause(
        "failed to capture CUDA graphs",
        "Try without CUDA graphs; if it then serves, lower the largest batch that is captured.",
    ),
    "worker_died": Cause(
        "lost a process of the engine",
        "Look for the process in the kernel log of {node} (dmesg: out of memory, segfault); then start all ranks again.",
    ),
    "killed": Cause(
        "was killed from outside",
        "Find out who killed the container on {node} (a person, a tool, the kernel: dmesg); then start all ranks again.",
        closer=False,
    ),
    "watchdog": Cause(
        "was ended by the engine's own watchdog",
        "Look at the other ranks at that time, and at the stacks that the watchdog printed above.",
    ),
    "unknown": Cause(
        "failed for a reason that is not in the tables",
        "Read the evidence; it is the first exception of the group.",
        alike=True,
    ),
}
# fmt: on
