# Copyright (c) 2026, The sparkstack.inference developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is private to the collection: it can change at any time.

"""What nvidia-smi, /proc/meminfo and /proc/PID/cgroup say, as a picture of the memory a model can use. Pure: no I/O.

On a GB10 the GPU's memory is the machine's memory: nvidia-smi answers C([N/A]) for it, and what CUDA calls free
follows MemFree, so that pages of the page cache count as used until the kernel gives them back.
"""

from __future__ import annotations

import dataclasses
import re
import typing as t

MIB = 1024 * 1024

# A name or a process title can hold commas and nvidia-smi quotes nothing, so that column stands last.
GPU_FIELDS = (
    "index",
    "uuid",
    "driver_version",
    "memory.total",
    "memory.used",
    "memory.free",
    "utilization.gpu",
    "power.draw",
    "mig.mode.current",
    "name",
)
PROCESS_FIELDS = ("gpu_uuid", "pid", "used_gpu_memory", "process_name")

# The GPU has no memory of its own and allocates from the machine's: 'NVIDIA GB10', 'NVIDIA Thor', 'Orin (nvgpu)'. An 'N1X' states
# the piece of it that the firmware set aside, 8128 MiB, which is not what CUDA can have.
_INTEGRATED = re.compile(r"\b(GB10|N1X|Orin|Thor|Xavier|nvgpu)\b", re.IGNORECASE)
# The GPU has its own memory, and CPU and GPU can use each other's (NVLink-C2C): 'NVIDIA GH200 480GB', 'NVIDIA GB200'.
_COHERENT = re.compile(r"\b(GH200|GB200|GB300)\b", re.IGNORECASE)
# 'Field "memory.nosuch" is not a valid field to query.' (exit code 2, on standard output)
_INVALID_FIELD = re.compile(r'^Field "([^"]+)" is not a valid field to query\.', re.MULTILINE)
# '133428', '133428 MiB', '118.53', '0 %', '119.27 W'
_NUMBER = re.compile(r"^([0-9]{1,12}(?:\.[0-9]{1,9})?)(?:\s*(?:MiB|%|W))?$")
# An index or a process id; '²' is a digit too for str.isdigit, and no number.
_COUNT = re.compile(r"[0-9]{1,10}")
# '[N/A]', '[Not Supported]', 'N/A': the driver has no such number for this GPU. '[Unknown Error]' and
# '[Insufficient Permissions]' say something else: there is a number, but not now or not for us.
_UNSUPPORTED = re.compile(r"^\[?(N/A|Not Supported)\]?$", re.IGNORECASE)
# 'No devices were found' (exit code 6) is an answer and no trouble.
_NO_GPU = re.compile(r"^No devices were found", re.MULTILINE)
# 'MemTotal:       127600748 kB' and, without a unit, 'HugePages_Total:       0'
_MEMINFO = re.compile(r"^(\w[\w()]*):[ \t]+([0-9]{1,19})(?:[ \t]+(kB))?[ \t]*$", re.MULTILINE)
# A container's id as a folder ('/docker/<id>', driver cgroupfs) or a scope ('/system.slice/docker-<id>.scope').
_CONTAINER_ID = re.compile(r"^(?:[\w.-]+-)?([0-9a-f]{64})(?:\.scope)?$")


@dataclasses.dataclass(frozen=True)
class MigDevice:
    """A slice of a GPU that is in MIG mode, in bytes. Source: C(nvidia-smi -q -x); uuid and profile: C(nvidia-smi -L)."""

    index: int
    gpu_instance: t.Optional[int]
    """Devices of one GPU instance share its memory: each of them states the whole of it."""
    compute_instance: t.Optional[int]
    total_bytes: t.Optional[int]
    used_bytes: t.Optional[int]
    free_bytes: t.Optional[int]
    uuid: t.Optional[str] = None
    profile: t.Optional[str] = None


@dataclasses.dataclass(frozen=True)
class Gpu:
    """One line of C(nvidia-smi --query-gpu). Bytes, percent and watts; None where the driver gives no number."""

    index: int
    uuid: str
    name: str
    driver_version: t.Optional[str]
    total_bytes: t.Optional[int]
    used_bytes: t.Optional[int]
    free_bytes: t.Optional[int]
    utilization_percent: t.Optional[int]
    power_watts: t.Optional[float]
    integrated: bool
    coherent: bool
    mig: bool
    power_limit_watts: t.Optional[float] = None
    mig_devices: t.Optional[t.Tuple[MigDevice, ...]] = None
    """Those of a GPU in MIG mode; None where the GPU is whole, or where nvidia-smi did not list them."""
    recovery: t.Optional[str] = None
    """What the driver wants done before the GPU works again: 'Reset', 'Reboot'; None where nothing is."""

    def fact(self) -> t.Dict[str, t.Any]:
        """The keys that RV(ansible_facts.gpu_memory.gpus) has."""
        return {
            "index": self.index,
            "uuid": self.uuid,
            "name": self.name,
            "driver_version": self.driver_version,
            "total_bytes": self.total_bytes,
            "used_bytes": self.used_bytes,
            "free_bytes": self.free_bytes,
            "utilization_percent": self.utilization_percent,
            "power_watts": self.power_watts,
            "memory": "shared" if self.integrated else "coherent" if self.coherent else "own",
            "mig_devices": None if self.mig_devices is None else [dataclasses.asdict(device) for device in self.mig_devices],
        }


class GpuProcess(t.NamedTuple):
    """A process that holds memory of a GPU; used_bytes is None where the driver does not say.

    Source: C(nvidia-smi --query-compute-apps), or C(nvidia-smi -q -x), which alone knows what follows the name.
    """

    gpu_uuid: str
    pid: int
    used_bytes: t.Optional[int]
    name: t.Optional[str]
    kind: t.Optional[str] = None
    """C computes, G draws, C+G does both."""
    gpu_instance: t.Optional[int] = None
    compute_instance: t.Optional[int] = None


def invalid_field(stdout: str) -> t.Optional[str]:
    """The field that this driver's nvidia-smi does not know, or None when its answer is not that complaint."""
    found = _INVALID_FIELD.search(stdout)
    return found.group(1) if found else None


def no_gpu(stdout: str) -> bool:
    """Whether nvidia-smi says that the driver is there and finds no GPU."""
    return bool(_NO_GPU.search(stdout))


def parse_gpus(stdout: str, fields: t.Sequence[str] = GPU_FIELDS) -> t.Tuple[t.List[Gpu], t.List[str]]:
    """Read C(nvidia-smi --query-gpu=FIELDS --format=csv,noheader,nounits).

    :param fields: the columns asked for, in order; a column that is missing becomes None in every GPU.
    :returns: the GPUs, and the lines that are no GPU (nvidia-smi writes its errors to standard output).
    """
    gpus, rest = [], []
    for row, line in _rows(stdout, fields):
        if not _COUNT.fullmatch(row.get("index", "")) or not row.get("uuid"):
            rest.append(line)
            continue
        total = row.get("memory.total", "")
        name = row.get("name", "")
        gpus.append(
            Gpu(
                index=int(row["index"]),
                uuid=row["uuid"],
                name=name,
                driver_version=told(row.get("driver_version")),
                total_bytes=mib(total),
                used_bytes=mib(row.get("memory.used")),
                free_bytes=mib(row.get("memory.free")),
                utilization_percent=_integer(row.get("utilization.gpu")),
                power_watts=_number(row.get("power.draw")),
                integrated=bool(_INTEGRATED.search(name) or _UNSUPPORTED.match(total)),
                coherent=bool(_COHERENT.search(name)),
                mig=row.get("mig.mode.current", "").lower() == "enabled",
                power_limit_watts=_number(row.get("power.limit")),
            )
        )
    if any(gpu.total_bytes is not None and not gpu.integrated for gpu in gpus):
        # Of two H200 one can answer '[N/A]': its neighbour shows that it has memory of its own, which it does not tell.
        gpus = [dataclasses.replace(gpu, integrated=bool(_INTEGRATED.search(gpu.name))) for gpu in gpus]
    return gpus, rest


def parse_processes(stdout: str, fields: t.Sequence[str] = PROCESS_FIELDS) -> t.Tuple[t.List[GpuProcess], t.List[str]]:
    """Read C(nvidia-smi --query-compute-apps=FIELDS --format=csv,noheader,nounits), largest first.

    A process with contexts on two GPUs has two lines. One whose use is unknown comes last.
    """
    processes, rest = [], []
    for row, line in _rows(stdout, fields):
        if not _COUNT.fullmatch(row.get("pid", "")):
            rest.append(line)
            continue
        used = mib(row.get("used_gpu_memory"))
        processes.append(GpuProcess(row.get("gpu_uuid", ""), int(row["pid"]), used, told(row.get("process_name"))))
    return largest_first(processes), rest


def largest_first(processes: t.Iterable[GpuProcess]) -> t.List[GpuProcess]:
    """Processes by what they hold; those whose use is unknown come last."""
    return sorted(processes, key=lambda process: (process.used_bytes is None, -(process.used_bytes or 0), process.pid))


def parse_meminfo(text: str) -> t.Dict[str, int]:
    """Read /proc/meminfo: sizes in bytes (the kernel's kB are KiB), the HugePages_ lines as counts."""
    return {name: int(value) * (1024 if unit else 1) for name, value, unit in _MEMINFO.findall(text)}


def page_cache_bytes(meminfo: t.Mapping[str, int]) -> int:
    """Bytes of file pages in memory: Cached and Buffers without shared memory, which lives in Cached too.

    Shared memory (an engine's /dev/shm) goes away by being freed or swapped, never by dropping caches.
    """
    cached = meminfo.get("Cached", 0) + meminfo.get("Buffers", 0) - meminfo.get("Shmem", 0)
    return max(0, cached)


def memory_picture(meminfo: t.Mapping[str, int], gpus: t.Sequence[Gpu]) -> t.Dict[str, t.Any]:
    """The memory that a model can use on this node, in bytes.

    * An integrated GPU, or none at all: the machine's memory. Free is MemFree, because that is what
      C(cudaMemGetInfo) follows on a GB10; available is MemAvailable, what the kernel can hand out after it reclaims.
    * GPUs with memory of their own: the sum over them, as the driver reports it; nothing there is reclaimed, so
      available equals free. A GPU that gives no number adds nothing; one in MIG mode adds its instances' memory.

    Source: /proc/meminfo and C(nvidia-smi --query-gpu).
    """
    integrated = any(gpu.integrated for gpu in gpus)
    if integrated or not gpus:
        total = meminfo.get("MemTotal", 0)
        free = meminfo.get("MemFree", 0)
        # Kernels before 3.14 have no MemAvailable.
        available = meminfo.get("MemAvailable", min(total, free + page_cache_bytes(meminfo)))
    else:
        pieces = [piece for gpu in gpus for piece in _pieces(gpu)]
        total = sum(piece.total_bytes or 0 for piece in pieces)
        free = available = sum(_free(piece) for piece in pieces)
    return {
        "unified": integrated or any(gpu.coherent for gpu in gpus),
        "total_bytes": total,
        "free_bytes": free,
        "available_bytes": available,
        "page_cache_bytes": page_cache_bytes(meminfo),
        "swap_total_bytes": meminfo.get("SwapTotal", 0),
        "swap_free_bytes": meminfo.get("SwapFree", 0),
    }


def container_ids(cgroup: str) -> t.List[str]:
    """The container ids in the text of /proc/PID/cgroup, outermost first, without repeats.

    Version 1 has one line a controller, '4:memory:/docker/<id>'; version 2 has '0::/system.slice/docker-<id>.scope'.
    The driver cgroupfs makes a folder <id>, the driver systemd a scope; podman and containerd differ in the prefix.
    Docker inside a container yields two ids: the daemon of this node knows the first one.
    """
    found: t.List[str] = []
    for line in cgroup.splitlines():
        path = line.split(":", 2)[-1]
        for part in path.split("/"):
            match = _CONTAINER_ID.match(part)
            if match and match.group(1) not in found:
                found.append(match.group(1))
    return found


def _pieces(gpu: Gpu) -> t.Sequence[t.Union[Gpu, MigDevice]]:
    """What of a GPU has memory of its own: itself, or in MIG mode one device of each GPU instance."""
    if gpu.mig_devices is None:
        return [gpu]
    return list({(device.gpu_instance if device.gpu_instance is not None else -1 - device.index): device for device in gpu.mig_devices}.values())


def _free(piece: t.Union[Gpu, MigDevice]) -> int:
    if piece.free_bytes is not None:
        return piece.free_bytes
    return max(0, (piece.total_bytes or 0) - (piece.used_bytes or 0))


def _rows(stdout: str, fields: t.Sequence[str]) -> t.Iterator[t.Tuple[t.Dict[str, str], str]]:
    for line in stdout.splitlines():
        if not line.strip():
            continue
        cells = [cell.strip() for cell in line.split(",", len(fields) - 1)]
        complete = len(cells) == len(fields)
        yield ({field: cells[at] for at, field in enumerate(fields)} if complete else {}), line.strip()


def told(cell: t.Optional[str]) -> t.Optional[str]:
    """None for what is no value: '', '[N/A]', '[Not Found]', '[Insufficient Permissions]'."""
    if not cell or cell.startswith("[") or _UNSUPPORTED.match(cell):
        return None
    return cell


def _number(cell: t.Optional[str]) -> t.Optional[float]:
    found = _NUMBER.match(cell or "")
    return float(found.group(1)) if found else None


def _integer(cell: t.Optional[str]) -> t.Optional[int]:
    number = _number(cell)
    return None if number is None else round(number)


def mib(cell: t.Optional[str]) -> t.Optional[int]:
    """Bytes of '133428' or '133428 MiB'; None for what is no number."""
    number = _number(cell)
    return None if number is None else int(number * MIB)
