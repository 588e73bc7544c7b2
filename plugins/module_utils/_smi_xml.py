# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""What only the long answers of nvidia-smi tell: the slices of a GPU in MIG mode, and the processes that draw. Pure: no I/O.

The answer of C(-q -x) is taken apart element by element and not by an XML parser: the titles that processes give themselves stand in
it, and one odd character, or an end that is missing because the driver hung, must not cost the rest.
"""

from __future__ import annotations

import dataclasses
import html
import re
import typing as t

from ansible_collections.sparkstack.inference.plugins.module_utils._memory import Gpu, GpuProcess, MigDevice, largest_first, mib, told

# '<gpu id="0000000F:01:00.0">'
_GPU = re.compile(r"<gpu id=[^>]*>")
# '<fb_memory_usage>', which newer text forms call 'Shared FB Memory Usage' for a slice.
_MEMORY = re.compile(r"<(?:shared_)?fb_memory_usage>(.*?)</(?:shared_)?fb_memory_usage>", re.DOTALL)
_MIG_DEVICES = re.compile(r"<mig_devices>.*?</mig_devices>", re.DOTALL)
_MIG_DEVICE = re.compile(r"<mig_device>(.*?)</mig_device>", re.DOTALL)
_PROCESS = re.compile(r"<process_info>(.*?)</process_info>", re.DOTALL)
# 'GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1..)' and below it '  MIG 3g.40gb     Device  0: (UUID: MIG-2..)'. Drivers before R470 name
# a slice 'MIG-GPU-1../1/0'.
_LISTED = re.compile(r"^\s*(?:GPU\s+\d+:.*?\(UUID:\s*(GPU-[^)\s]+)\)|MIG\s+(\S+)\s+Device\s+([0-9]{1,9}):\s*\(UUID:\s*(MIG-[^)\s]+)\))\s*$")


class Details(t.NamedTuple):
    """What C(nvidia-smi -q -x) tells of one GPU."""

    addressing: t.Optional[str]
    """ATS: CPU and GPU have one set of page tables (GB10, GH200); HMM, None: they have not; None where it is not told."""
    mig: bool
    """Whether it is in MIG mode now."""
    mig_devices: t.Tuple[MigDevice, ...]
    processes: t.Tuple[GpuProcess, ...]
    recovery: t.Optional[str]
    """See M(_memory.Gpu)."""
    whole: bool
    """Nothing is missing: the answer goes on to this GPU's end."""


def parse_details(text: str) -> t.Dict[str, Details]:
    """Read C(nvidia-smi -q -x).

    :returns: the details of each GPU by its UUID; of an answer that was cut off, what stood before the cut.
    """
    found = {}
    starts = [match.end() for match in _GPU.finditer(text)] + [len(text)]
    for at, start in enumerate(starts[:-1]):
        body, closed, _rest = text[start : starts[at + 1]].partition("</gpu>")
        devices = tuple(_device(entry) for entry in _MIG_DEVICE.findall(body) if _number(entry, "index") is not None)
        # A slice may have a UUID as well, and stands before the GPU's own.
        own = _MIG_DEVICES.sub("", body)
        uuid = _value(own, "uuid")
        if uuid and uuid.startswith("GPU-"):
            processes = [process for process in (_process(uuid, entry) for entry in _PROCESS.findall(own)) if process]
            mig = (_value(own, "current_mig") or "").lower() == "enabled"
            # Drivers before R570 say '<reset_required>Yes', later ones '<gpu_recovery_action>Reset'.
            recovery = "Reset" if _value(own, "reset_required") == "Yes" else _value(own, "gpu_recovery_action")
            recovery = recovery if recovery in ("Reset", "Reboot", "Drain and Reset") else None
            found[uuid] = Details(_value(own, "addressing_mode"), mig, devices, tuple(merge(processes)), recovery, bool(closed))
    return found


def parse_list(text: str) -> t.Dict[str, t.Dict[int, t.Tuple[str, str]]]:
    """Read C(nvidia-smi -L): for each GPU's UUID the UUID and the profile (V(3g.40gb)) of its slices by their index."""
    found: t.Dict[str, t.Dict[int, t.Tuple[str, str]]] = {}
    gpu: t.Optional[str] = None
    for line in text.splitlines():
        match = _LISTED.match(line)
        if match and match.group(1):
            gpu = match.group(1)
            found[gpu] = {}
        elif match and gpu:
            found[gpu][int(match.group(3))] = (match.group(4), match.group(2))
    return found


def refine(gpus: t.Sequence[Gpu], details: t.Mapping[str, Details], listed: t.Mapping[str, t.Mapping[int, t.Tuple[str, str]]]) -> t.List[Gpu]:
    """The GPUs with their slices, and with whether CPU and GPU share one address space, which is told by no column of the short answer.

    :param details: see M(parse_details). :param listed: see M(parse_list).
    """
    found = []
    for gpu in gpus:
        more = details.get(gpu.uuid)
        if more:
            coherent = gpu.coherent or (more.addressing == "ATS" and not gpu.integrated)
            gpu = dataclasses.replace(gpu, coherent=coherent, mig=gpu.mig or more.mig, recovery=more.recovery)
        if more and more.whole and gpu.mig:
            names = listed.get(gpu.uuid, {})
            gpu = dataclasses.replace(gpu, mig_devices=tuple(_named(device, names.get(device.index)) for device in more.mig_devices))
        found.append(gpu)
    return found


def merge(processes: t.Iterable[GpuProcess]) -> t.List[GpuProcess]:
    """Processes, each once for every GPU or slice that it is on, largest first.

    One that computes and draws can stand there twice, as C and as G, with the same bytes: that is one holding of C+G. Of two
    answers about one process, what the first does not tell is taken from the second.
    """
    found: t.Dict[t.Tuple[str, int, t.Optional[int], t.Optional[int]], GpuProcess] = {}
    for process in processes:
        key = (process.gpu_uuid, process.pid, process.gpu_instance, process.compute_instance)
        before = found.get(key)
        if before is None:
            found[key] = process
            continue
        kinds = sorted({kind for one in (before, process) for kind in (one.kind or "").split("+") if kind})
        sizes = [one.used_bytes for one in (before, process) if one.used_bytes is not None]
        found[key] = before._replace(kind="+".join(kinds) or None, used_bytes=max(sizes) if sizes else None, name=before.name or process.name)
    return largest_first(found.values())


def _named(device: MigDevice, names: t.Optional[t.Tuple[str, str]]) -> MigDevice:
    return dataclasses.replace(device, uuid=names[0], profile=names[1]) if names else device


def _device(entry: str) -> MigDevice:
    memory = _MEMORY.search(entry)
    told_of = memory.group(1) if memory else ""
    return MigDevice(
        index=_number(entry, "index") or 0,
        gpu_instance=_number(entry, "gpu_instance_id"),
        compute_instance=_number(entry, "compute_instance_id"),
        total_bytes=mib(_value(told_of, "total")),
        used_bytes=mib(_value(told_of, "used")),
        free_bytes=mib(_value(told_of, "free")),
        uuid=_value(_MEMORY.sub("", entry), "uuid"),
    )


def _process(uuid: str, entry: str) -> t.Optional[GpuProcess]:
    pid = _number(entry, "pid")
    if pid is None:
        return None
    kind = _value(entry, "type") or ""
    return GpuProcess(
        gpu_uuid=uuid,
        pid=pid,
        used_bytes=mib(_value(entry, "used_memory")),
        name=told(_value(entry, "process_name")),
        kind=kind if re.fullmatch(r"[A-Z](\+[A-Z])*", kind) else None,
        gpu_instance=_number(entry, "gpu_instance_id"),
        compute_instance=_number(entry, "compute_instance_id"),
    )


def _value(text: str, tag: str) -> t.Optional[str]:
    """The content of the first element of that name, or None where there is none, or where it says 'N/A'."""
    found = re.search(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
    content = html.unescape(found.group(1)).strip() if found else ""
    return None if content in ("", "N/A") else content


def _number(text: str, tag: str) -> t.Optional[int]:
    content = _value(text, tag) or ""
    return int(content) if re.fullmatch("[0-9]{1,10}", content) else None
