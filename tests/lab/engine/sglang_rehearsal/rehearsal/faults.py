# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The errors of a rank, under the names that torch, safetensors and the engine print."""


class DistStoreError(RuntimeError):
    """The rendezvous did not come about in time."""


class DistNetworkError(RuntimeError):
    """The rendezvous' connection could not be made or was lost."""


class AcceleratorError(RuntimeError):
    """The device can't be used."""


class OutOfMemoryError(RuntimeError):
    """The device has not that much memory left."""


class SafetensorError(Exception):
    """A file of weights can't be read."""


DistStoreError.__module__ = DistNetworkError.__module__ = "torch.distributed"
AcceleratorError.__module__ = OutOfMemoryError.__module__ = "torch"
SafetensorError.__module__ = "safetensors_rust"

_ADVICE = (
    "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.\n"
    "For debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
    "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
)


def cuda(problem: str, hint: str) -> AcceleratorError:
    """What torch raises for an error of the CUDA runtime, with its advice of several lines."""
    return AcceleratorError(f"CUDA error: {problem}\n{hint}\n{_ADVICE}")
