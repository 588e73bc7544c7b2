# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What vLLM's CPU build lacks to run over Ray: two of its own plugin hooks, so that nothing of it is changed on disk.

What is tested with it is therefore the real Ray and the real vLLM with these two changes. A GPU build needs neither.
"""

from __future__ import annotations


def platform() -> str:
    """The platform plugin: the CPU platform names no resource of Ray's ("current platform cpu does not support ray.")."""
    return "engine_ray_cpu.platform.RayCpuPlatform"


def general() -> None:
    """The general plugin: put the node into the name by which the CPU communicator knows who shares its memory.

    Ray gives all ranks one init port, of which that name is made. Ranks on two nodes would then believe that they share /dev/shm
    ("open shm in SHMManager failed. errno: 2").
    """
    import os

    from vllm.distributed.device_communicators import cpu_communicator

    original = cpu_communicator._CPUSHMDistributed.make_group_name
    if getattr(original, "of_node", False):
        return

    def of_node(communicator: object) -> str:
        return f"{original(communicator)}-{os.environ.get('VLLM_HOST_IP', '')}"

    of_node.of_node = True  # type: ignore[attr-defined]
    cpu_communicator._CPUSHMDistributed.make_group_name = staticmethod(of_node)
