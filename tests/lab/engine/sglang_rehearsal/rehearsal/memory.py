# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The node's memory as the device's: a GB10 has one memory for both. What is taken is really taken, and touched.

What the driver calls free is the node's MemAvailable; it knows nothing of a container's limit. Whoever takes more than
that limit is killed by the kernel, as the engine is.
"""

import os

from . import faults
from .system import knob

GB = 1 << 30
_MB = 1 << 20


def _meminfo(field: str) -> int:
    """A field of /proc/meminfo in bytes: "MemAvailable:   23833340 kB"."""
    with open("/proc/meminfo", encoding="utf-8") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(field + ":"))


class Device:
    """One rank's device; all sizes in bytes."""

    def __init__(self) -> None:
        self._blocks: list[bytes | bytearray] = []
        self._taken = 0
        self._first = _meminfo("MemAvailable")

    def free(self) -> int:
        """What is left; never more than was there at first less what this rank took, should /proc/meminfo stand still."""
        return max(0, min(_meminfo("MemAvailable"), self._first - self._taken))

    def free_gb(self) -> float:
        """What is left, in GiB, which the engine's lines call GB."""
        return self.free() / GB

    def keep(self, block: bytes | bytearray) -> None:
        """Count a block of touched memory as the device's."""
        self._blocks.append(block)
        self._taken += len(block)

    def take(self, size: int) -> None:
        """Take and touch memory, in pieces; raises OutOfMemoryError when the node has not that much left."""
        free = self.free()
        if size > free:
            raise faults.OutOfMemoryError(
                f"CUDA out of memory. Tried to allocate {size / _MB:.2f} MiB. GPU 0 has a total capacity of {_meminfo('MemTotal') / GB:.2f} GiB "
                f"of which {free / _MB:.2f} MiB is free. Including non-PyTorch memory, this process has {self._taken / _MB:.2f} MiB memory in use."
            )
        while size > 0:
            piece = min(size, 16 * _MB)
            self.keep(b"\x01" * piece)
            size -= piece


def set_device(index: int) -> Device:
    """Make the device's context; raises AcceleratorError when there is no such device or no memory for its context."""
    if index >= knob("GPUS", 1):
        raise faults.cuda("invalid device ordinal", "GPU device may be out of range, do you have enough GPUs?")
    device = Device()
    context = int(knob("CONTEXT_MB", 32) * _MB)
    # A real context takes half a GB of a GPU; the check is with the real size, what is taken is less.
    if device.free() < max(context, GB // 2):
        raise faults.cuda("out of memory", "Search for `cudaErrorMemoryAllocation' in the documentation of the CUDA runtime for more information.")
    device.take(context)
    return device


def visible_devices() -> str:
    """The value of CUDA_VISIBLE_DEVICES as the engine prints it in its context line."""
    return repr(os.environ.get("CUDA_VISIBLE_DEVICES"))
